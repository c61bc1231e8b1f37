//! The `.npy` files of NumPy: raw elements behind a header that names their type and shape.

use std::fmt::Write;

const MAGIC: &[u8] = b"\x93NUMPY";
/// The header is padded so that the elements start at a multiple of this.
const ALIGNMENT: usize = 64;

/// An array as a file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// NumPy's name of the element type, such as `<f4`.
    pub descr: String,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Array {
    /// Reads a file's content.
    pub fn parse(file: &[u8]) -> Result<Array, String> {
        let truncated = || "the file ends inside its header".to_owned();
        let rest = file.strip_prefix(MAGIC).ok_or("this is not a .npy file")?;
        let (length, start) = match rest {
            [1, _, low, high, ..] => (usize::from(u16::from_le_bytes([*low, *high])), 4),
            [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 6),
            [1..=3, ..] => return Err(truncated()),
            _ => return Err("the version of the .npy file is not 1, 2 or 3".to_owned()),
        };
        let header = rest.get(start..start + length).ok_or_else(truncated)?;
        let header = std::str::from_utf8(header).map_err(|_| "the header is not text")?;
        let field = |name: &str| {
            let (_, value) =
                header.split_once(&format!("'{name}'")).ok_or(format!("there is no `{name}`"))?;
            Ok::<_, String>(value.trim_start_matches([':', ' ']))
        };
        if field("fortran_order")?.starts_with("True") {
            return Err("the array is in Fortran order: write it with numpy.ascontiguousarray".to_owned());
        }
        let descr = field("descr")?.split('\'').nth(1).ok_or("structured element types are not supported")?;
        let shape = field("shape")?.split(['(', ')']).nth(1).ok_or("the shape is not a tuple")?;
        let shape = shape
            .split(',')
            .map(str::trim)
            .filter(|length| !length.is_empty())
            .map(|length| length.parse().map_err(|_| format!("`{length}` is not a length")))
            .collect::<Result<Vec<usize>, String>>()?;
        let size: usize =
            descr.get(2..).and_then(|size| size.parse().ok()).ok_or("an element has no size")?;
        if descr.starts_with('>') {
            return Err("the elements are big-endian".to_owned());
        }
        let bytes = &rest[start + length..];
        let expected = shape.iter().try_fold(size, |product, length| product.checked_mul(*length));
        if expected != Some(bytes.len()) {
            return Err(format!("{} bytes of elements are not what {descr} {shape:?} needs", bytes.len()));
        }
        Ok(Array { descr: descr.to_owned(), shape, bytes: bytes.to_vec() })
    }

    /// The content of a file.
    pub fn to_file(&self) -> Vec<u8> {
        let shape = self.shape.iter().fold(String::new(), |mut text, length| {
            let _ = write!(text, "{length}, ");
            text
        });
        let descr = &self.descr;
        let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
        let before = MAGIC.len() + 2 + 4;
        let padded = (before + header.len() + 1).next_multiple_of(ALIGNMENT) - before;
        header.extend(std::iter::repeat_n(' ', padded - 1 - header.len()));
        header.push('\n');
        [MAGIC, &[2, 0], &(header.len() as u32).to_le_bytes(), header.as_bytes(), &self.bytes].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (descr, shape, size) in [("<f4", vec![2, 3], 24), ("|u1", vec![5], 5), ("<u2", vec![], 2)] {
            let array = Array { descr: descr.to_owned(), shape, bytes: (0..size).collect() };
            let file = array.to_file();
            assert!((file.len() - array.bytes.len()).is_multiple_of(ALIGNMENT));
            assert_eq!(Array::parse(&file).unwrap(), array);
        }
    }

    #[test]
    fn a_file_of_numpy_is_read() {
        let mut file = b"\x93NUMPY\x01\x00\x46\x00".to_vec();
        let header = "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }";
        file.extend(format!("{header:<69}\n").bytes());
        file.extend([1, 0, 0, 0, 2, 0, 0, 0]);
        let array = Array::parse(&file).unwrap();
        assert_eq!((array.descr.as_str(), array.shape, array.bytes.len()), ("<i4", vec![2], 8));
        file.pop();
        assert!(Array::parse(&file).unwrap_err().contains("7 bytes"));
        assert!(Array::parse(&file[..20]).unwrap_err().contains("inside its header"));
        assert!(Array::parse(b"PK").unwrap_err().contains("not a .npy"));
    }
}
