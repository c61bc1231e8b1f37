//! Buffers of a launch: what they hold before the kernel, and what nobody has written after it.

use std::path::{Path, PathBuf};

use oxigemm::{DType, random};
use oxigemm_sim::Memory;
use serde::Deserialize;

use super::npy::Array;

/// A buffer: a file, or elements of a type by a pattern.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferSpec {
    npy: Option<PathBuf>,
    #[serde(rename = "type")]
    kind: Option<String>,
    shape: Option<Vec<usize>>,
    fill: Option<Fill>,
    #[serde(default)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Fill {
    /// Not written: reading it is a fault.
    None,
    Zeros,
    Ones,
    /// 0, 1, 2, ...
    Count,
    /// Standard normals, for floats.
    Normal,
    /// NaN, for floats.
    Nan,
}

/// An element type: NumPy's name and the bytes of an element; how floats are encoded; the bits of NaN.
struct Kind {
    descr: &'static str,
    bytes: usize,
    float: Option<DType>,
    nan: u64,
}

/// Types by their names. NumPy has no names for some: their bits.
fn kind(name: &str) -> Option<Kind> {
    let integer = |descr, bytes| Some(Kind { descr, bytes, float: None, nan: 0 });
    let float = |descr, bytes, dtype, nan| Some(Kind { descr, bytes, float: Some(dtype), nan });
    match name {
        "u8" => integer("|u1", 1),
        "i8" => integer("|i1", 1),
        "bool" => integer("|b1", 1),
        "u16" => integer("<u2", 2),
        "i16" => integer("<i2", 2),
        "u32" => integer("<u4", 4),
        "i32" => integer("<i4", 4),
        "u64" => integer("<u8", 8),
        "i64" => integer("<i8", 8),
        "f32" | "tf32" => float("<f4", 4, DType::F32, 0x7fc0_0000),
        "f16" => float("<f2", 2, DType::F16, 0x7e00),
        "bf16" => float("<u2", 2, DType::Bf16, 0x7fc0),
        "e4m3" => float("|u1", 1, DType::E4m3, 0x7f),
        "e5m2" => float("|u1", 1, DType::E5m2, 0x7e),
        _ => None,
    }
}

/// A buffer in the machine.
#[derive(Clone, Debug)]
pub struct Buffer {
    pub name: String,
    pub address: u64,
    /// What it held before the kernel; its bytes are none where nothing was written.
    pub before: Array,
    pub len: usize,
    /// Bytes of an element.
    element: usize,
    /// The bits of NaN, where there are some.
    nan: u64,
}

impl Buffer {
    /// What it holds now.
    pub fn after(&self, memory: &mut Memory) -> Result<After, oxigemm_sim::Fault> {
        let unwritten: Vec<bool> = (0..self.len / self.element)
            .map(|i| !memory.defined(self.address + (i * self.element) as u64, self.element))
            .collect();
        let mut bytes = memory.read(self.address, self.len)?.to_vec();
        let missing = unwritten.iter().filter(|unwritten| **unwritten).count();
        // A number that stands out where nobody wrote one.
        for (element, _) in
            bytes.chunks_mut(self.element).zip(&unwritten).filter(|(_, unwritten)| **unwritten)
        {
            element.copy_from_slice(&self.nan.to_le_bytes()[..self.element]);
        }
        Ok(After { bytes, unwritten, missing })
    }

    /// Whether a kernel has left something else in it.
    pub fn changed(&self, after: &After) -> bool {
        match self.before.bytes.is_empty() {
            true => after.missing < after.unwritten.len(),
            false => self.before.bytes != after.bytes,
        }
    }
}

/// What a buffer holds after a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct After {
    /// Its bytes, with NaN (zero for integers) where nobody has written.
    pub bytes: Vec<u8>,
    /// Elements with a byte that nobody has written.
    pub unwritten: Vec<bool>,
    /// How many these are.
    pub missing: usize,
}

impl BufferSpec {
    /// The bytes that it will take, where it is not a file.
    pub fn bytes(&self) -> Option<u64> {
        let element = kind(self.kind.as_deref()?)?.bytes as u64;
        self.shape.as_ref()?.iter().try_fold(element, |bytes, length| bytes.checked_mul(*length as u64))
    }

    /// Puts it into memory; files are looked for beside `folder`.
    pub fn place(&self, name: &str, folder: &Path, memory: &mut Memory) -> Result<Buffer, String> {
        let (before, element, nan) = self.content(folder)?;
        let len = before.shape.iter().product::<usize>() * element;
        let len = if self.npy.is_some() { before.bytes.len() } else { len };
        let full = || format!("{len} bytes do not fit into the memory of the simulation");
        let address = memory.try_allocate(len).ok_or_else(full)?;
        if !before.bytes.is_empty() {
            memory.write(address, &before.bytes).map_err(|fault| fault.message)?;
        }
        Ok(Buffer { name: name.to_owned(), address, before, len, element, nan })
    }

    /// What is written to it before the kernel, the bytes of an element and the bits of NaN.
    fn content(&self, folder: &Path) -> Result<(Array, usize, u64), String> {
        match (&self.npy, &self.kind, &self.shape) {
            (Some(npy), None, None) if self.fill.is_none() => {
                let path = folder.join(npy);
                let file = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
                let array = Array::parse(&file).map_err(|why| format!("{}: {why}", path.display()))?;
                let element = array.descr[2..].parse().unwrap_or(1);
                Ok((array, element, 0))
            }
            (None, Some(name), Some(shape)) => {
                let kind = kind(name).ok_or_else(|| format!("`{name}` is not an element type"))?;
                let count = shape.iter().try_fold(1usize, |count, length| count.checked_mul(*length));
                let count = count.filter(|count| *count <= 1 << 32).ok_or("it is too large")?;
                let bytes = self.pattern(&kind, count)?;
                let array = Array { descr: kind.descr.to_owned(), shape: shape.clone(), bytes };
                Ok((array, kind.bytes, kind.nan))
            }
            _ => Err("expected either `npy`, or `type` and `shape` with `fill`".to_owned()),
        }
    }

    fn pattern(&self, kind: &Kind, count: usize) -> Result<Vec<u8>, String> {
        let fill = self.fill.unwrap_or(Fill::Zeros);
        if let Some(dtype) = kind.float {
            let values: Vec<f32> = match fill {
                Fill::None => return Ok(Vec::new()),
                Fill::Zeros => vec![0.0; count],
                Fill::Ones => vec![1.0; count],
                Fill::Count => (0..count).map(|i| i as f32).collect(),
                Fill::Normal => random::normals(self.seed, count),
                Fill::Nan => return Ok(kind.nan.to_le_bytes()[..kind.bytes].repeat(count)),
            };
            return Ok(dtype.encode(&values));
        }
        let integer = |value: u64| value.to_le_bytes().into_iter().take(kind.bytes);
        Ok(match fill {
            Fill::None => Vec::new(),
            Fill::Zeros => vec![0; count * kind.bytes],
            Fill::Ones => (0..count).flat_map(|_| integer(1)).collect(),
            Fill::Count => (0..count as u64).flat_map(integer).collect(),
            Fill::Normal => return Err("normals are floats".to_owned()),
            Fill::Nan => return Err("NaN is a float".to_owned()),
        })
    }
}
