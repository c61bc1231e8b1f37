//! `wgmma` unit: matrix descriptors, and the operations of a warp in flight.

use super::tensor_core::Scratch;
use super::tensormap::Swizzle;
use std::collections::VecDeque;

/// Space for operands on their way to the tensor core.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) a: Vec<u32>,
    pub(crate) b: Vec<u32>,
    pub(crate) d: Vec<f32>,
    pub(crate) scratch: Scratch,
}

/// A matrix descriptor, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) start: u32,
    pub(crate) leading: u32,
    pub(crate) stride: u32,
    pub(crate) base_offset: u32,
    pub(crate) swizzle: Swizzle,
}

impl Descriptor {
    pub(crate) fn decode(d: u64) -> Descriptor {
        let field = |at: u32| ((d >> at & 0x3fff) << 4) as u32;
        Descriptor {
            start: field(0),
            leading: field(16),
            stride: field(32),
            base_offset: (d >> 49 & 7) as u32,
            swizzle: [Swizzle::None, Swizzle::B128, Swizzle::B64, Swizzle::B32][(d >> 62) as usize],
        }
    }

    fn swizzled(self, address: u32) -> u32 {
        // The base offset moves the start of the repeating pattern.
        let shifted = address.wrapping_sub(self.base_offset << 7);
        address ^ (self.swizzle.apply(shifted) ^ shifted)
    }

    /// Address of the 16-byte piece `j` of row `r` of a K-major operand.
    fn k_major(self, r: u32, j: u32) -> u32 {
        let along_k = if self.swizzle == Swizzle::None { j * self.leading } else { j * 16 };
        self.swizzled(self.start + r % 8 * self.swizzle.span() + r / 8 * self.stride + along_k)
    }

    /// Address of the 16-byte piece `i` (eight 16-bit elements along M or N) at depth `k` of an M- or
    /// N-major operand.
    fn mn_major(self, i: u32, k: u32) -> u32 {
        let offset = if self.swizzle == Swizzle::None {
            i * self.stride + k % 8 * 16 + k / 8 * self.leading
        } else {
            let wide = self.swizzle.span() / 16;
            i % wide * 16 + i / wide * self.leading + k % 8 * self.swizzle.span() + k / 8 * self.stride
        };
        self.swizzled(self.start + offset)
    }

    /// The 16-byte pieces of `rows` rows from `first`, with the place of each in a row-major operand: row
    /// and piece within the row, or depth when the operand is transposed.
    fn pieces(
        self,
        first: u32,
        rows: u32,
        k: u32,
        transposed: bool,
    ) -> impl Iterator<Item = (u32, u32, u32)> {
        let (outer, inner) = if transposed { (rows / 8, k) } else { (rows, 2) };
        (0..outer).flat_map(move |x| {
            (0..inner).map(move |y| {
                if transposed {
                    (self.mn_major(first / 8 + x, y), x * 8, y)
                } else {
                    (self.k_major(first + x, y), x, y)
                }
            })
        })
    }
}

/// An operand of a `wgmma` in shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    pub(crate) descriptor: Descriptor,
    /// First row, and number of rows.
    pub(crate) first: u32,
    pub(crate) rows: u32,
    pub(crate) k: u32,
    pub(crate) transposed: bool,
}

impl Operand {
    /// The 16-byte pieces of the operand: see [`Descriptor::pieces`].
    pub(crate) fn pieces(self) -> impl Iterator<Item = (u32, u32, u32)> {
        self.descriptor.pieces(self.first, self.rows, self.k, self.transposed)
    }

    /// The rows that these words of shared memory are part of, in words; none where they are not of this operand.
    pub(crate) fn rows_text(self, words: &[u32]) -> Option<String> {
        let words: std::collections::HashSet<u32> = words.iter().copied().collect();
        let per_piece = if self.transposed { 8 } else { 1 };
        let mut rows: Vec<u32> = self
            .pieces()
            .filter(|(at, ..)| (*at..at + 16).step_by(4).any(|word| words.contains(&word)))
            .flat_map(|(_, row, _)| row..row + per_piece)
            .map(|row| self.first + row)
            .collect();
        rows.sort_unstable();
        rows.dedup();
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for row in rows {
            match runs.last_mut() {
                Some(run) if run.1 + 1 == row => run.1 = row,
                _ => runs.push((row, row)),
            }
        }
        let text = |run: &(u32, u32)| {
            if run.0 == run.1 { run.0.to_string() } else { format!("{} to {}", run.0, run.1) }
        };
        let text: Vec<String> = runs.iter().map(text).collect();
        (!text.is_empty()).then(|| format!("rows {}", text.join(", ")))
    }

    /// The operand as row-major codes of `bits` bits; `read` gives the 16 bytes at an offset of shared memory.
    pub(crate) fn gather<'s, E>(
        self,
        bits: u32,
        read: impl Fn(u32) -> Result<&'s [u8], E>,
        out: &mut Vec<u32>,
    ) -> Result<(), E> {
        let Operand { rows, k, transposed, .. } = self;
        let k_elements = k as usize;
        out.clear();
        out.resize(rows as usize * k_elements, 0);
        for (at, row, piece) in self.pieces() {
            let bytes = read(at)?;
            if transposed {
                for (i, e) in bytes.chunks_exact(2).enumerate() {
                    out[(row as usize + i) * k_elements + piece as usize] =
                        u32::from(u16::from_le_bytes([e[0], e[1]]));
                }
                continue;
            }
            let per = 128 / bits as usize;
            let target = &mut out[row as usize * k_elements + piece as usize * per..][..per];
            match bits {
                1 => {
                    let bit = |i: usize| u32::from(bytes[i / 8] >> (i % 8) & 1);
                    target.iter_mut().enumerate().for_each(|(i, t)| *t = bit(i));
                }
                8 => target.iter_mut().zip(bytes).for_each(|(t, b)| *t = u32::from(*b)),
                16 => target
                    .iter_mut()
                    .zip(bytes.chunks_exact(2))
                    .for_each(|(t, b)| *t = u32::from(u16::from_le_bytes([b[0], b[1]]))),
                _ => target
                    .iter_mut()
                    .zip(bytes.chunks_exact(4))
                    .for_each(|(t, b)| *t = u32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            }
        }
        Ok(())
    }
}

/// A `wgmma` that was issued and not executed.
#[derive(Clone, Debug)]
pub(crate) struct Issued {
    pub(crate) pc: u32,
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) accumulate: bool,
    /// The group that will commit it.
    pub(crate) group: u32,
    /// When it was issued.
    pub(crate) start: u64,
}

/// State of a warp's `wgmma` operations.
#[derive(Clone, Debug, Default)]
pub(crate) struct WgmmaState {
    pub(crate) queue: VecDeque<Issued>,
    pub(crate) committed: u32,
    /// Operations issued since the last commit.
    pub(crate) open: u32,
    /// Operations issued up to each commit.
    pub(crate) commits: Vec<u64>,
    /// The instruction of the newest operation.
    pub(crate) last_pc: u32,
    /// All operations issued: the four warps of a warpgroup must agree.
    pub(crate) issued: u64,
    /// Groups known to be complete through a wait.
    pub(crate) waited: u32,
    /// Number of fences so far.
    pub(crate) fences: u32,
    /// Per register: the group that still uses it (0: none), and whether it is being written.
    pub(crate) busy: Vec<(u32, bool)>,
    /// Per register: fences executed when it was last touched, plus one (0 for never), and by which instruction.
    pub(crate) touched: Vec<(u32, u32)>,
}

impl WgmmaState {
    pub(crate) fn new(registers: usize) -> WgmmaState {
        WgmmaState {
            busy: vec![(0, false); registers],
            touched: vec![(0, 0); registers],
            ..WgmmaState::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_decode() {
        let d = Descriptor::decode(0x1234 >> 4 | 1 << 16 | 64 << 32 | 1 << 62);
        assert_eq!((d.start, d.leading, d.stride, d.swizzle), (0x1230, 16, 1024, Swizzle::B128));
    }

    #[test]
    fn k_major_rows_follow_the_swizzle() {
        let d = Descriptor::decode(0x4000 >> 4 | 64 << 32 | 1 << 62);
        assert_eq!(d.k_major(0, 1), 0x4010);
        assert_eq!(d.k_major(1, 0), 0x4000 + 128 + 16);
        assert_eq!(d.k_major(9, 0), 0x4000 + 1024 + 128 + 16);
        let none = Descriptor::decode(0x4000 >> 4 | 8 << 16 | 16 << 32);
        assert_eq!(none.k_major(9, 1), 0x4000 + 16 + 256 + 128);
    }

    #[test]
    fn n_major_pieces_cover_a_tile_once() {
        // 64 columns x 16 deep, 128-byte swizzle: two 1024-byte atoms.
        let d = Descriptor::decode(0x4000 >> 4 | 64 << 16 | 64 << 32 | 1 << 62);
        let mut all: Vec<u32> = d.pieces(0, 64, 16, true).map(|p| p.0).collect();
        all.sort_unstable();
        assert_eq!(all, (0..128).map(|i| 0x4000 + 16 * i).collect::<Vec<_>>());
    }
}
