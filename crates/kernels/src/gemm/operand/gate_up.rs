//! Rows of B for a tile of D: neighbours, or the gate rows and the up rows of a gated activation.

use oxigemm_ptx::U32;

/// Fused epilogue, as far as it is compiled into a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fusion {
    /// None: accumulators are stored as they are.
    #[default]
    None,
    /// Every accumulator becomes an element of D.
    Elementwise,
    /// Two accumulators become an element of D: `act(gate) * up`. B has the rows of all gates, then those of all ups.
    Gated,
}

impl Fusion {
    /// Accumulators, and rows of B, for each element of a row of D.
    pub const fn accumulators(self) -> u32 {
        match self {
            Fusion::None | Fusion::Elementwise => 1,
            Fusion::Gated => 2,
        }
    }

    /// Its part of a kernel's name.
    pub const fn name(self) -> &'static str {
        match self {
            Fusion::None => "",
            Fusion::Elementwise => "fused_",
            Fusion::Gated => "gated_",
        }
    }
}

/// Box of one tensor load of B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoxOfB {
    /// Rows, of each part.
    pub rows: u32,
    /// Parts, gates and ups, that it has rows of; 0 where B is one matrix.
    pub parts: u32,
}

impl BoxOfB {
    /// Box for the `share` of a tile's rows that a block loads, where a warpgroup has so many columns of D at a time:
    /// all rows of a warpgroup, gates before ups, and the whole share where its rows are contiguous. (See `GateUpRows`
    /// for where they are not.)
    pub fn of(fusion: Fusion, share: u32, columns: u32, passes: u32) -> BoxOfB {
        match fusion {
            Fusion::None => BoxOfB { rows: share, parts: 0 },
            Fusion::Elementwise => {
                BoxOfB { rows: if passes == 1 { share } else { share.min(columns) }, parts: 0 }
            }
            Fusion::Gated => {
                BoxOfB { rows: share.min(columns), parts: (share / columns).clamp(1, fusion.accumulators()) }
            }
        }
    }
}

/// Rows of B for a tile of a fused kernel, which need not be contiguous: a warpgroup has pieces of `columns` rows, of
/// the gates and of the ups, and warpgroups side by side are `stride` columns of D apart.
#[derive(Clone, Copy)]
pub(crate) struct GateUpRows<'k> {
    pub fusion: Fusion,
    /// Columns of D that a warpgroup computes at a time.
    pub columns: u32,
    pub stride: U32<'k>,
    /// Rows of B before the first up: the columns of D.
    pub ups: U32<'k>,
}

impl<'k> GateUpRows<'k> {
    /// The column of D and the row of B of a tile's accumulator column, for a tile whose first column of D is `n`.
    pub fn row(&self, n: U32<'k>, accumulator: U32<'k>) -> (U32<'k>, U32<'k>) {
        let [column, part] = self.column_and_part(n, accumulator);
        (column, column + part * self.ups)
    }

    /// The same as the column of D, and whether it is a gate (0) or an up (1).
    pub fn column_and_part(&self, n: U32<'k>, accumulator: U32<'k>) -> [U32<'k>; 2] {
        let (piece, within) = (accumulator / self.columns, accumulator % self.columns);
        let parts = self.fusion.accumulators();
        [n + within + (piece / parts) * self.stride, piece % parts]
    }

    /// Rows of a tile that one load takes of the `share` that a block has of them: as [`BoxOfB::of`].
    pub fn box_rows(&self, share: U32<'k>) -> U32<'k> {
        let of_warpgroup = share.min(self.columns * self.fusion.accumulators());
        match self.fusion {
            Fusion::Gated => of_warpgroup,
            Fusion::None | Fusion::Elementwise => self.stride.eq(self.columns).select(share, of_warpgroup),
        }
    }
}
