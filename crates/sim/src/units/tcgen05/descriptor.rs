//! Shared-memory matrix descriptors of `tcgen05`: where the pieces of an operand lie.
//!
//! | bits | field |
//! |---|---|
//! | 0-13 | start address / 16 |
//! | 16-29 | leading dimension byte offset / 16 (LBO) |
//! | 32-45 | stride dimension byte offset / 16 (SBO) |
//! | 46-48 | constant 0b001 |
//! | 49-51 | base offset: where the swizzle pattern starts, in 128 bytes |
//! | 52 | LBO is an address (sm_103a, K = 96) |
//! | 53-60 | constant 0 |
//! | 61-63 | swizzle |
//!
//! Memory is read in pieces of 16 bytes. A K-major operand has eight rows to a swizzle atom; a piece is along K. An
//! MN-major operand has eight depths to an atom (four with 32-byte atomicity); a piece is along M or N.

/// A swizzle mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixSwizzle {
    None,
    B32,
    B64,
    B128,
    /// 128 bytes in units of 32.
    B128Atom32,
}

impl MatrixSwizzle {
    /// Bytes of an atom's row.
    fn span(self) -> u32 {
        match self {
            MatrixSwizzle::None => 16,
            MatrixSwizzle::B32 => 32,
            MatrixSwizzle::B64 => 64,
            MatrixSwizzle::B128 | MatrixSwizzle::B128Atom32 => 128,
        }
    }

    /// The address bits that change.
    fn pattern(self, address: u32) -> u32 {
        match self {
            MatrixSwizzle::None => 0,
            MatrixSwizzle::B32 => address >> 3 & 0x10,
            MatrixSwizzle::B64 => address >> 3 & 0x30,
            MatrixSwizzle::B128 => address >> 3 & 0x70,
            MatrixSwizzle::B128Atom32 => address >> 2 & 0x60,
        }
    }
}

/// A matrix descriptor, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixDescriptor {
    pub(crate) start: u32,
    pub(crate) leading: u32,
    pub(crate) stride: u32,
    pub(crate) base_offset: u32,
    pub(crate) swizzle: MatrixSwizzle,
}

impl MatrixDescriptor {
    /// Takes a descriptor apart; an error says what is wrong with it.
    pub(crate) fn decode(d: u64) -> Result<MatrixDescriptor, String> {
        let field = |at: u32| ((d >> at & 0x3fff) << 4) as u32;
        if d >> 46 & 7 != 1 {
            return Err(format!(
                "bits 46 to 48 of matrix descriptor {d:#x} are {:#05b}, not 0b001",
                d >> 46 & 7
            ));
        }
        if d >> 53 & 0xff != 0 {
            return Err(format!("bits 53 to 60 of matrix descriptor {d:#x} are not zero"));
        }
        if d >> 52 & 1 == 1 {
            return Err(format!(
                "matrix descriptor {d:#x} has the leading dimension as an address (bit 52), which only K = 96 of \
                 sm_103a uses; the simulator does not support it"
            ));
        }
        let swizzle = match d >> 61 {
            0 => MatrixSwizzle::None,
            1 => MatrixSwizzle::B128Atom32,
            2 => MatrixSwizzle::B128,
            4 => MatrixSwizzle::B64,
            6 => MatrixSwizzle::B32,
            other => {
                return Err(format!("matrix descriptor {d:#x} has swizzle {other}; 0, 1, 2, 4 and 6 exist"));
            }
        };
        let base_offset = (d >> 49 & 7) as u32;
        Ok(MatrixDescriptor { start: field(0), leading: field(16), stride: field(32), base_offset, swizzle })
    }

    fn swizzled(self, address: u32) -> u32 {
        // The base offset moves the start of the repeating pattern.
        address ^ self.swizzle.pattern(address.wrapping_sub(self.base_offset << 7))
    }

    /// Address of piece `piece` of row `row` of a K-major operand.
    pub(crate) fn k_major(self, row: u32, piece: u32) -> u32 {
        let along = if self.swizzle == MatrixSwizzle::None { piece * self.leading } else { piece * 16 };
        self.swizzled(self.start + row % 8 * self.swizzle.span() + row / 8 * self.stride + along)
    }

    /// Address of piece `piece` (along M or N) at depth `depth` of an MN-major operand.
    pub(crate) fn mn_major(self, piece: u32, depth: u32) -> u32 {
        let depths = if self.swizzle == MatrixSwizzle::B128Atom32 { 4 } else { 8 };
        let span = self.swizzle.span();
        let offset = if self.swizzle == MatrixSwizzle::None {
            piece * self.stride + depth % 8 * 16 + depth / 8 * self.leading
        } else {
            let wide = span / 16;
            piece % wide * 16
                + piece / wide * self.leading
                + depth % depths * span
                + depth / depths * self.stride
        };
        self.swizzled(self.start + offset)
    }
}

/// How elements lie in the 16 bytes of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// Elements of 8, 16 or 32 bits, one after another.
    Whole(u32),
    /// Two elements of 4 bits to a byte (`mxf4`, `mxf4nvf4`).
    Packed4,
    /// Sixteen elements of 4 or 6 bits at the front, then padding (`f8f6f4`, `mxf8f6f4`).
    Padded(u32),
}

impl Packing {
    /// Elements of a piece.
    pub(crate) fn elements(self) -> u32 {
        match self {
            Packing::Whole(bits) => 128 / bits,
            Packing::Packed4 => 32,
            Packing::Padded(_) => 16,
        }
    }

    /// Bytes of a piece that are read.
    pub(crate) fn bytes(self) -> u32 {
        match self {
            Packing::Padded(bits) => 2 * bits,
            _ => 16,
        }
    }

    /// Bits from one element to the next.
    fn step(self) -> u32 {
        match self {
            Packing::Whole(bits) | Packing::Padded(bits) => bits,
            Packing::Packed4 => 4,
        }
    }

    /// The elements of a piece, as codes.
    fn unpack(self, bytes: &[u8], mut put: impl FnMut(usize, u32)) {
        match self {
            Packing::Whole(8) => bytes.iter().enumerate().for_each(|(i, b)| put(i, u32::from(*b))),
            Packing::Whole(16) => {
                let code = |b: &[u8]| u32::from(u16::from_le_bytes([b[0], b[1]]));
                bytes.chunks_exact(2).enumerate().for_each(|(i, b)| put(i, code(b)));
            }
            _ => {
                let mut all = [0u8; 16];
                all[..bytes.len()].copy_from_slice(bytes);
                let (all, step) = (u128::from_le_bytes(all), self.step());
                let mask = u32::MAX >> (32 - step);
                (0..self.elements()).for_each(|i| put(i as usize, (all >> (i * step)) as u32 & mask));
            }
        }
    }
}

/// An operand in shared memory: `rows` rows (of M or N) of `k` elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedOperand {
    pub(crate) descriptor: MatrixDescriptor,
    pub(crate) packing: Packing,
    /// M or N is contiguous.
    pub(crate) mn_major: bool,
    /// First row, and number of rows.
    pub(crate) first: u32,
    pub(crate) rows: u32,
    pub(crate) k: u32,
}

impl SharedOperand {
    /// The pieces: address, first row and first depth.
    fn pieces(self) -> impl Iterator<Item = (u32, u32, u32)> {
        let per = self.packing.elements();
        // A shifted MN-major operand begins inside a piece: all pieces that hold one of its rows are read.
        let (low, high) = (self.first / per, (self.first + self.rows).div_ceil(per));
        let (outer, inner) =
            if self.mn_major { (low..high, 0..self.k) } else { (0..self.rows, 0..self.k.div_ceil(per)) };
        outer.flat_map(move |x| {
            inner.clone().map(move |y| {
                if self.mn_major {
                    (self.descriptor.mn_major(x, y), x * per, y)
                } else {
                    (self.descriptor.k_major(self.first + x, y), x, y * per)
                }
            })
        })
    }

    /// Ranges of shared memory that are read: offset and length.
    pub(crate) fn ranges(self) -> impl Iterator<Item = (u32, u32)> {
        self.pieces().map(move |p| (p.0, self.packing.bytes()))
    }

    /// Adds the operand to `out`, as row-major codes; `read` gives bytes of shared memory.
    pub(crate) fn gather<'s, E>(
        self,
        read: impl Fn(u32, u32) -> Result<&'s [u8], E>,
        out: &mut Vec<u32>,
    ) -> Result<(), E> {
        let (k, base) = (self.k as usize, out.len());
        out.resize(base + self.rows as usize * k, 0);
        let out = &mut out[base..];
        for (at, row, depth) in self.pieces() {
            let bytes = read(at, self.packing.bytes())?;
            let (row, depth) = (row as usize, depth as usize);
            if self.mn_major {
                let first = self.first as usize;
                self.packing.unpack(bytes, |i, code| {
                    if let Some(r) = (row + i).checked_sub(first).filter(|r| *r < self.rows as usize) {
                        out[r * k + depth] = code;
                    }
                });
            } else {
                let target = &mut out[row * k..][..k];
                self.packing.unpack(bytes, |i, code| target[depth + i] = code);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(start: u32, leading: u32, stride: u32, swizzle: u64) -> u64 {
        let field = |x: u32| u64::from(x >> 4 & 0x3fff);
        field(start) | field(leading) << 16 | field(stride) << 32 | 1 << 46 | swizzle << 61
    }

    fn decode(start: u32, leading: u32, stride: u32, swizzle: u64) -> MatrixDescriptor {
        MatrixDescriptor::decode(encode(start, leading, stride, swizzle)).unwrap()
    }

    #[test]
    fn fields_are_those_of_the_manual() {
        // A descriptor that a public library uses: 128-byte swizzle, LBO 16, SBO 1024.
        let d = MatrixDescriptor::decode(0x4000_4040_0001_0000).unwrap();
        let want = MatrixDescriptor {
            start: 0,
            leading: 16,
            stride: 1024,
            base_offset: 0,
            swizzle: MatrixSwizzle::B128,
        };
        assert_eq!(d, want);
        let all = encode(0x3fff0, 0x12340, 0x2abc0, 6) | 5 << 49;
        let d = MatrixDescriptor::decode(all).unwrap();
        let swizzle = MatrixSwizzle::B32;
        let want =
            MatrixDescriptor { start: 0x3fff0, leading: 0x12340, stride: 0x2abc0, base_offset: 5, swizzle };
        assert_eq!(d, want);
    }

    #[test]
    fn what_no_descriptor_has_is_refused() {
        let good = encode(0, 16, 1024, 2);
        for (bad, says) in [
            (good ^ 1 << 46, "not 0b001"),
            (good | 1 << 48, "not 0b001"),
            (good | 1 << 52, "K = 96"),
            (good | 1 << 53, "bits 53 to 60"),
            (good | 1 << 60, "bits 53 to 60"),
            (encode(0, 16, 1024, 3), "swizzle 3"),
            (encode(0, 16, 1024, 5), "swizzle 5"),
            (encode(0, 16, 1024, 7), "swizzle 7"),
        ] {
            let e = MatrixDescriptor::decode(bad).unwrap_err();
            assert!(e.contains(says), "{e}");
        }
    }

    /// The layouts of the manual's figures, as a program would fill shared memory: rows of an atom's width, the
    /// 16-byte units of row `r` exchanged by `r` (128 bytes), `r / 2` (64 bytes) or `r / 4` (32 bytes).
    #[test]
    fn k_major_atoms() {
        for (mode, span, by) in [(2, 128, 1), (4, 64, 2), (6, 32, 4)] {
            let d = decode(0x2000, 16, 0x400, mode);
            for row in 0..32u32 {
                for unit in 0..span / 16 {
                    let exchanged = unit ^ (row % 8 / by);
                    let want = 0x2000 + row / 8 * 0x400 + row % 8 * span + exchanged * 16;
                    assert_eq!(d.k_major(row, unit), want, "swizzle {mode} row {row} unit {unit}");
                }
            }
        }
        // Without a swizzle: core matrices of eight rows of 16 bytes; LBO along K, SBO along M.
        let d = decode(0x100, 0x800, 0x80, 0);
        assert_eq!(d.k_major(0, 1), 0x900);
        assert_eq!(d.k_major(3, 0), 0x130);
        assert_eq!(d.k_major(17, 1), 0x100 + 2 * 0x80 + 16 + 0x800);
        // 32-byte atomicity: pairs of units are exchanged by r modulo 4.
        let d = decode(0, 16, 0x400, 1);
        assert_eq!(d.k_major(1, 0), 128 + 32);
        assert_eq!(d.k_major(1, 1), 128 + 48);
        assert_eq!(d.k_major(5, 2), 5 * 128);
    }

    #[test]
    fn a_start_inside_an_atom_keeps_the_pattern() {
        // The second 32 bytes of a 128-byte atom, as a kernel that steps along K has them.
        let (whole, step) = (decode(0x400, 16, 0x400, 2), decode(0x420, 16, 0x400, 2));
        for row in 0..16 {
            for unit in 0..2 {
                assert_eq!(step.k_major(row, unit), whole.k_major(row, unit + 2));
            }
        }
        // An atom that begins at 128 bytes past a boundary: the base offset says so.
        let off = MatrixDescriptor::decode(encode(0x480, 16, 0x400, 2) | 1 << 49).unwrap();
        for unit in 0..8 {
            assert_eq!(off.k_major(0, unit), 0x480 + unit * 16);
            assert_eq!(off.k_major(1, unit), 0x500 + (unit ^ 1) * 16);
        }
    }

    #[test]
    fn mn_major_atoms() {
        for (mode, wide, by) in [(2, 8, 1), (4, 4, 2), (6, 2, 4)] {
            let d = decode(0, 0x4000, 0x400, mode);
            for depth in 0..16u32 {
                for piece in 0..16u32 {
                    let exchanged = (piece % wide) ^ (depth % 8 / by);
                    let want =
                        piece / wide * 0x4000 + depth / 8 * 0x400 + depth % 8 * wide * 16 + exchanged * 16;
                    assert_eq!(d.mn_major(piece, depth), want, "swizzle {mode} piece {piece} depth {depth}");
                }
            }
        }
        // Without a swizzle: eight depths of 16 bytes; SBO along M or N, LBO along K.
        let d = decode(0, 0x1000, 0x80, 0);
        assert_eq!(d.mn_major(3, 10), 3 * 0x80 + 2 * 16 + 0x1000);
        // 32-byte atomicity: atoms of four depths.
        let d = decode(0, 0x4000, 0x200, 1);
        assert_eq!(d.mn_major(0, 0), 0);
        assert_eq!(d.mn_major(0, 1), 128 + 32);
        assert_eq!(d.mn_major(9, 5), 0x4000 + 0x200 + 128 + (16 ^ 32));
    }

    #[test]
    fn elements_come_out_of_every_packing() {
        let take = |packing: Packing, bytes: &[u8]| {
            let mut codes = vec![0; packing.elements() as usize];
            packing.unpack(bytes, |i, c| codes[i] = c);
            codes
        };
        let bytes: Vec<u8> = (0..16).map(|i| i * 17).collect();
        assert_eq!(take(Packing::Whole(8), &bytes)[3], 0x33);
        assert_eq!(take(Packing::Whole(16), &bytes)[1], 0x3322);
        assert_eq!(take(Packing::Whole(32), &bytes)[1], 0x7766_5544);
        assert_eq!(take(Packing::Packed4, &[0x21; 16])[..4], [1, 2, 1, 2]);
        // Sixteen elements in the first 8 or 12 bytes; the rest is never read.
        assert_eq!(take(Packing::Padded(4), &[0x21; 8]), [1, 2].repeat(8));
        assert_eq!(
            take(Packing::Padded(6), &[0b0100_0001, 0b0011_0000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])[..3],
            [1, 1, 3]
        );
        assert_eq!((Packing::Padded(4).bytes(), Packing::Padded(6).bytes()), (8, 12));
    }

    /// Every place of a matrix is read once, in both majors, with every swizzle.
    #[test]
    fn operands_are_read_where_they_were_put() {
        for packing in
            [Packing::Whole(8), Packing::Whole(16), Packing::Whole(32), Packing::Packed4, Packing::Padded(6)]
        {
            let k = 2 * packing.elements();
            for (mode, mn_major) in [0, 1, 2, 4, 6].into_iter().flat_map(|m| [(m, false), (m, true)]) {
                let rows = 32;
                // LBO and SBO far enough apart that no two pieces meet.
                let descriptor = decode(0, if mn_major && mode != 0 { 0x8000 } else { 0x4000 }, 0x400, mode);
                let op = SharedOperand { descriptor, packing, mn_major, first: 0, rows, k };
                let mut seen: Vec<u32> = op.ranges().map(|r| r.0).collect();
                let count = seen.len();
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len(), count, "{packing:?} swizzle {mode}");
                assert_eq!(count as u32 * packing.elements(), rows * k);
                let mut codes = Vec::new();
                // Bytes that say where they are.
                let memory: Vec<u8> = (0..0x40000u32).map(|i| (i >> 4) as u8 ^ (i >> 9) as u8).collect();
                op.gather::<()>(|at, len| Ok(&memory[at as usize..][..len as usize]), &mut codes).unwrap();
                assert_eq!(codes.len() as u32, rows * k);
                if packing == Packing::Whole(8) {
                    let at = |row: u32, depth: u32| {
                        if mn_major {
                            descriptor.mn_major(row / 16, depth) + row % 16
                        } else {
                            descriptor.k_major(row, depth / 16) + depth % 16
                        }
                    };
                    for (i, code) in codes.iter().enumerate() {
                        let (row, depth) = (i as u32 / k, i as u32 % k);
                        assert_eq!(*code, u32::from(memory[at(row, depth) as usize]));
                    }
                }
            }
        }
    }
}
