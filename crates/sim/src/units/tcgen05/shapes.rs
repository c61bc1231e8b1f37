//! Shapes of `tcgen05` data movement: which lane and column each register of a warp, and each row of a copy, meets.

/// The shape of `tcgen05.ld` and `tcgen05.st`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoveShape {
    /// `.32x32b`
    Lanes32,
    /// `.16x64b`
    Bits64,
    /// `.16x128b`
    Bits128,
    /// `.16x256b`
    Bits256,
    /// `.16x32bx2`: the upper half of the warp is this many columns further.
    Split(u32),
}

impl MoveShape {
    /// Lanes of tensor memory that the warp touches.
    pub(crate) fn lanes(self) -> u32 {
        if self == MoveShape::Lanes32 { 32 } else { 16 }
    }

    /// Registers of `.xN`; none where that does not exist.
    pub(crate) fn registers(self, times: u32) -> Option<usize> {
        let each = match self {
            MoveShape::Bits128 => 2,
            MoveShape::Bits256 => 4,
            _ => 1,
        };
        let count = each * times;
        (times.is_power_of_two() && count <= 128).then_some(count as usize)
    }

    /// The place of register `r` of a thread: lane and 32-bit unit, counted from the address.
    ///
    /// The units of a row are its columns; with `.pack::16b` each stands for two columns of 16 bits.
    pub(crate) fn place(self, thread: u32, r: u32) -> (u32, u32) {
        match self {
            MoveShape::Lanes32 => (thread, r),
            MoveShape::Bits64 => (thread / 4 + 8 * (thread % 2), thread / 2 % 2 + 2 * r),
            MoveShape::Bits128 => (thread / 4 + 8 * (r % 2), thread % 4 + 4 * (r / 2)),
            MoveShape::Bits256 => (thread / 4 + 8 * (r / 2 % 2), r % 2 + 2 * (thread % 4) + 8 * (r / 4)),
            MoveShape::Split(_) => (thread % 16, r),
        }
    }

    /// Columns that the upper half of the warp is further.
    pub(crate) fn split(self, thread: u32) -> u32 {
        match self {
            MoveShape::Split(columns) if thread >= 16 => columns,
            _ => 0,
        }
    }

    /// Ranges of columns of an access with this many registers, counted from the address.
    pub(crate) fn columns(self, registers: u32, packed: bool) -> impl Iterator<Item = (u32, u32)> {
        let units = match self {
            MoveShape::Lanes32 | MoveShape::Split(_) => registers,
            // Sixteen lanes for the registers of 32 threads.
            MoveShape::Bits64 | MoveShape::Bits128 | MoveShape::Bits256 => 2 * registers,
        };
        let count = if packed { 2 * units } else { units };
        let second = if let MoveShape::Split(by) = self { Some((by, count)) } else { None };
        std::iter::once((0, count)).chain(second)
    }
}

/// The shape of `tcgen05.cp`, with its multicast and decompression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyShape {
    pub(crate) rows: CopyRows,
    /// Bits of the packed elements of the source that become bytes: 4 or 6.
    pub(crate) packed: Option<u32>,
}

/// Rows and row width of a copy, and where the rows go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyRows {
    /// `.128x256b`
    R128x256,
    /// `.128x128b`
    R128x128,
    /// `.4x256b`
    R4x256,
    /// `.64x128b.warpx2::02_13`
    R64Pairs02,
    /// `.64x128b.warpx2::01_23`
    R64Pairs01,
    /// `.32x128b.warpx4`
    R32x4,
}

impl CopyRows {
    /// Rows of the source.
    pub(crate) fn rows(self) -> u32 {
        match self {
            CopyRows::R128x256 | CopyRows::R128x128 => 128,
            CopyRows::R4x256 => 4,
            CopyRows::R64Pairs02 | CopyRows::R64Pairs01 => 64,
            CopyRows::R32x4 => 32,
        }
    }

    /// 16-byte pieces of a row: four columns each.
    pub(crate) fn pieces(self) -> u32 {
        if matches!(self, CopyRows::R128x256 | CopyRows::R4x256) { 2 } else { 1 }
    }

    /// The lanes that a row goes to, counted from the address.
    pub(crate) fn lanes(self, row: u32) -> impl Iterator<Item = u32> {
        let (first, apart, copies) = match self {
            CopyRows::R128x256 | CopyRows::R128x128 => (row, 0, 1),
            CopyRows::R4x256 => (32 * row, 0, 1),
            CopyRows::R64Pairs02 => (row, 64, 2),
            CopyRows::R64Pairs01 => (row / 32 * 64 + row % 32, 32, 2),
            CopyRows::R32x4 => (row, 32, 4),
        };
        (0..copies).map(move |i| first + i * apart)
    }
}

/// Sixteen packed elements of 4 or 6 bits, one to a byte. The padding behind them is dropped.
///
/// A 6-bit element takes the low bits of its byte, a 4-bit element the four bits above the lowest two, as the tensor
/// core takes elements of these types that lie one to a byte.
pub(crate) fn decompress(bytes: [u8; 16], bits: u32) -> [u8; 16] {
    let packed = u128::from_le_bytes(bytes);
    let shift = if bits == 4 { 2 } else { 0 };
    std::array::from_fn(|i| ((packed >> (i as u32 * bits)) as u8 & ((1 << bits) - 1)) << shift)
}
