//! Which values share a scale.

use std::fmt;
use std::str::FromStr;

/// The edge of a scaling block: one scale covers 128 of K, and for B also 128 of N.
pub const BLOCK: u32 = 128;

/// Which scales a cast may choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScaleFormat {
    /// Any `f32`.
    #[default]
    F32,
    /// Powers of two, rounded up: what fits in UE8M0.
    PowerOfTwo,
}

/// Which values share a scale.
///
/// ```
/// use oxigemm::Granularity;
///
/// assert_eq!(Granularity::PerToken.to_string(), "1x128");
/// assert_eq!("128x128".parse(), Ok(Granularity::PerBlock));
/// assert_eq!(Granularity::PerChannel.scale_dims(300, 512), [3, 512]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// 128 neighbours of a row: activations.
    #[default]
    PerToken,
    /// 32 neighbours of a row: the blocks of MXFP8.
    PerGroup32,
    /// 128 rows by 128 columns: weights.
    PerBlock,
    /// 128 rows of a column.
    PerChannel,
    /// A row.
    PerRow,
    /// The whole matrix.
    PerTensor,
}

impl Granularity {
    /// All of them.
    pub const ALL: [Granularity; 6] = [
        Granularity::PerToken,
        Granularity::PerGroup32,
        Granularity::PerBlock,
        Granularity::PerChannel,
        Granularity::PerRow,
        Granularity::PerTensor,
    ];

    /// The name that users type and read.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Granularity::PerToken => "1x128",
            Granularity::PerGroup32 => "1x32",
            Granularity::PerBlock => "128x128",
            Granularity::PerChannel => "128x1",
            Granularity::PerRow => "row",
            Granularity::PerTensor => "tensor",
        }
    }

    /// Rows and columns that share a scale, of a matrix of `rows` by `columns`; at least 1.
    #[must_use]
    pub fn block(self, rows: usize, columns: usize) -> [usize; 2] {
        match self {
            Granularity::PerToken => [1, 128],
            Granularity::PerGroup32 => [1, 32],
            Granularity::PerBlock => [128, 128],
            Granularity::PerChannel => [128, 1],
            Granularity::PerRow => [1, columns.max(1)],
            Granularity::PerTensor => [rows.max(1), columns.max(1)],
        }
    }

    /// Rows and columns of the scales of a matrix.
    #[must_use]
    pub fn scale_dims(self, rows: usize, columns: usize) -> [usize; 2] {
        let [down, across] = self.block(rows, columns);
        [rows.div_ceil(down), columns.div_ceil(across)]
    }

    /// Whether a scale belongs to neighbours of one row.
    pub(crate) const fn is_group(self) -> bool {
        matches!(self, Granularity::PerToken | Granularity::PerGroup32)
    }

    /// The powers of two by which rows and columns become those of scales.
    pub(crate) const fn shifts(self) -> [u32; 2] {
        match self {
            Granularity::PerToken => [0, 7],
            Granularity::PerGroup32 => [0, 5],
            Granularity::PerBlock => [7, 7],
            Granularity::PerChannel => [7, 0],
            Granularity::PerRow => [0, 31],
            Granularity::PerTensor => [31, 31],
        }
    }
}

impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Granularity {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Granularity, String> {
        Granularity::ALL.into_iter().find(|granularity| granularity.name() == name).ok_or_else(|| {
            format!("`{name}` is no granularity: expected 1x128, 1x32, 128x128, 128x1, row or tensor")
        })
    }
}
