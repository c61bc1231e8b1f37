//! The source of a `tcgen05.cp`: rows in shared memory, by a matrix descriptor.

use crate::units::tensormap::Swizzle;

/// A K-major matrix descriptor, as far as a copy uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    start: u32,
    /// From one 16-byte column of core matrices to the next; only without a swizzle.
    leading: u32,
    /// From eight rows to the next eight.
    stride: u32,
    base_offset: u32,
    swizzle: Swizzle,
}

impl Source {
    /// Takes a descriptor apart; an error says what is wrong with it.
    pub(crate) fn decode(d: u64) -> Result<Source, String> {
        let field = |at: u32| ((d >> at & 0x3fff) << 4) as u32;
        if d >> 46 & 7 != 1 {
            return Err(format!("bits 46 to 48 of the matrix descriptor are {:#b}, not 0b001", d >> 46 & 7));
        }
        let swizzle = match d >> 61 {
            0 => Swizzle::None,
            2 => Swizzle::B128,
            4 => Swizzle::B64,
            6 => Swizzle::B32,
            other => {
                return Err(format!("the matrix descriptor has swizzle {other}, which a copy does not take"));
            }
        };
        let base_offset = (d >> 49 & 7) as u32;
        Ok(Source { start: field(0), leading: field(16), stride: field(32), base_offset, swizzle })
    }

    /// The first byte of the source.
    pub(crate) fn start(self) -> u32 {
        self.start
    }

    /// Offset of 16 bytes: piece `piece` of a row.
    pub(crate) fn piece(self, row: u32, piece: u32) -> u32 {
        let along = if self.swizzle == Swizzle::None { piece * self.leading } else { piece * 16 };
        let at = self.start + row % 8 * self.swizzle.span() + row / 8 * self.stride + along;
        // The base offset moves the start of the repeating pattern.
        let shifted = at.wrapping_sub(self.base_offset << 7);
        at ^ (self.swizzle.apply(shifted) ^ shifted)
    }
}

/// Sixteen packed elements of 4 or 6 bits, one to a byte. The padding behind them is dropped.
///
/// A 6-bit element takes the low bits of its byte, a 4-bit element the four bits above the lowest two, where the
/// sign and the exponent of both end up in the same bits.
pub(crate) fn decompress(bytes: [u8; 16], bits: u32) -> [u8; 16] {
    let packed = u128::from_le_bytes(bytes);
    let shift = if bits == 4 { 2 } else { 0 };
    std::array::from_fn(|i| ((packed >> (i as u32 * bits)) as u8 & ((1 << bits) - 1)) << shift)
}
