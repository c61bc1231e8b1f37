//! Format of a cache entry on disk.
//!
//! ```text
//! bytes   what
//!     8   magic
//!     4   version of this form, little-endian like every number
//!     4   length of the assembler's name and version
//!     8   length of the cubin
//!    32   key: what the cubin was made of
//!     .   the assembler's name and version
//!     .   the cubin
//!    32   BLAKE3 of everything before
//! ```
//!
//! Every byte is covered by the checksum, so a flip anywhere is seen, also one in a length.

use super::Key;

const MAGIC: [u8; 8] = *b"OXICUBIN";
const VERSION: u32 = 1;
const HEADER: usize = 8 + 4 + 4 + 8 + 32;
const CHECKSUM: usize = 32;

/// Why an entry cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Damage {
    #[error("it has {found} bytes, expected {expected}")]
    Length { found: usize, expected: usize },
    #[error("it is not a cubin entry")]
    Magic,
    #[error("its form has version {0}, expected {VERSION}")]
    Version(u32),
    #[error("its checksum is wrong")]
    Checksum,
    #[error("it belongs to another kernel")]
    Key,
    #[error("the name of its assembler is no text")]
    Assembler,
}

pub(super) fn encode(key: &Key, assembler: &str, cubin: &[u8]) -> Vec<u8> {
    let mut entry = Vec::with_capacity(HEADER + assembler.len() + cubin.len() + CHECKSUM);
    entry.extend_from_slice(&MAGIC);
    entry.extend_from_slice(&VERSION.to_le_bytes());
    entry.extend_from_slice(&(assembler.len() as u32).to_le_bytes());
    entry.extend_from_slice(&(cubin.len() as u64).to_le_bytes());
    entry.extend_from_slice(&key.hash);
    entry.extend_from_slice(assembler.as_bytes());
    entry.extend_from_slice(cubin);
    let checksum = blake3::hash(&entry);
    entry.extend_from_slice(checksum.as_bytes());
    entry
}

/// The assembler and the cubin of an entry.
pub(super) fn decode<'a>(key: &Key, entry: &'a [u8]) -> Result<(&'a str, &'a [u8]), Damage> {
    let found = entry.len();
    let too_short = Damage::Length { found, expected: HEADER + CHECKSUM };
    let (header, rest) = entry.split_first_chunk::<HEADER>().ok_or(too_short)?;
    if header[..8] != MAGIC {
        return Err(Damage::Magic);
    }
    let version = u32::from_le_bytes(array(&header[8..]));
    if version != VERSION {
        return Err(Damage::Version(version));
    }
    let assembler_len = u32::from_le_bytes(array(&header[12..])) as usize;
    let cubin_len = u64::from_le_bytes(array(&header[16..])) as usize;
    let expected = (HEADER + CHECKSUM).saturating_add(assembler_len).saturating_add(cubin_len);
    if found != expected {
        return Err(Damage::Length { found, expected });
    }
    let (covered, checksum) = entry.split_at(found - CHECKSUM);
    if blake3::hash(covered) != array(checksum) {
        return Err(Damage::Checksum);
    }
    if header[24..] != key.hash {
        return Err(Damage::Key);
    }
    let assembler = std::str::from_utf8(&rest[..assembler_len]).map_err(|_| Damage::Assembler)?;
    Ok((assembler, &rest[assembler_len..assembler_len + cubin_len]))
}

/// The first bytes of a slice that is long enough.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|i| bytes[i])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_reads_back() {
        let key = Key { hash: [7; 32], arch: "sm_90a".into() };
        let entry = encode(&key, "ptxas 13.0.88", b"code");
        assert_eq!(decode(&key, &entry), Ok(("ptxas 13.0.88", &b"code"[..])));
        assert_eq!(decode(&key, &encode(&key, "", b"")), Ok(("", &b""[..])));
    }

    #[test]
    fn every_flipped_bit_and_every_missing_byte_is_seen() {
        let key = Key { hash: [7; 32], arch: "sm_90a".into() };
        let entry = encode(&key, "ptxas 13.0.88", b"some code");
        for bit in 0..entry.len() * 8 {
            let mut flipped = entry.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&key, &flipped).is_err(), "bit {bit}");
        }
        for len in 0..entry.len() {
            assert!(decode(&key, &entry[..len]).is_err(), "{len} bytes");
        }
        let longer = [&entry[..], &[0]].concat();
        assert!(matches!(decode(&key, &longer), Err(Damage::Length { .. })));
    }

    #[test]
    fn an_entry_of_another_kernel_is_refused() {
        let key = Key { hash: [7; 32], arch: "sm_90a".into() };
        let other = Key { hash: [8; 32], arch: "sm_90a".into() };
        assert_eq!(decode(&other, &encode(&key, "ptxas 1", b"code")), Err(Damage::Key));
    }
}
