//! Tensor maps: TMA descriptors of tensors in device memory.

use std::ffi::{c_uint, c_void};

use cudarc::driver::sys::CUtensorMap;

use crate::driver::driver;
use crate::error::{Error, Result};

/// A tensor map, passed to a kernel as a `.param .align 64 .b8 [128]`.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorMap(pub [u64; 16]);

/// Element type, as far as TMA distinguishes them: its size, and whether a fill must be a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Element {
    /// 8 bits: FP8 too.
    U8 = 0,
    /// 16 bits, unsigned.
    U16 = 1,
    /// 32 bits, unsigned.
    U32 = 2,
    /// 32 bits, signed.
    I32 = 3,
    /// 64 bits, unsigned.
    U64 = 4,
    /// 64 bits, signed.
    I64 = 5,
    /// IEEE half precision.
    F16 = 6,
    /// IEEE single precision.
    F32 = 7,
    /// IEEE double precision.
    F64 = 8,
    /// Brain floating point.
    Bf16 = 9,
    /// 4 bits, two to a byte of memory. In shared memory sixteen of them take 16 bytes, of which they fill the first 8.
    U4Padded = 14,
}

impl Element {
    /// Its size in bits, in device memory.
    pub const fn bits(self) -> u64 {
        match self {
            Self::U4Padded => 4,
            other => other.bytes() * 8,
        }
    }

    /// Its size in bytes, in shared memory.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::U8 | Self::U4Padded => 1,
            Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }
}

/// Swizzle of a tile in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Swizzle {
    /// None: row after row.
    None = 0,
    /// 16-byte chunks exchanged within 32 bytes.
    B32 = 1,
    /// 16-byte chunks exchanged within 64 bytes.
    B64 = 2,
    /// 16-byte chunks exchanged within 128 bytes.
    B128 = 3,
    /// 32-byte chunks exchanged within 128 bytes.
    B128Atom32 = 4,
}

impl Swizzle {
    /// The longest row of a tile, in bytes, where there is such a limit.
    pub const fn span(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::B32 => Some(32),
            Self::B64 => Some(64),
            Self::B128 | Self::B128Atom32 => Some(128),
        }
    }
}

/// L2 promotion: how much the L2 cache fetches at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum L2Promotion {
    /// None: what the copy requests.
    None = 0,
    /// 64 bytes.
    B64 = 1,
    /// 128 bytes.
    B128 = 2,
    /// 256 bytes.
    B256 = 3,
}

/// A tensor in device memory and the tile of it that one copy moves. Dimension 0 is the contiguous one.
///
/// Elements of a tile outside of the tensor read as zero and are not written.
///
/// ```
/// use oxigemm_cuda::{Element, L2Promotion, Swizzle, TiledTensor};
///
/// // A row-major matrix of 4096 x 7168 FP8 values, copied in tiles of 128 x 128.
/// let matrix = TiledTensor {
///     element: Element::U8,
///     rank: 2,
///     address: 0x7f00_0000_0000,
///     dims: [7168, 4096, 1, 1, 1],
///     strides: [7168, 0, 0, 0],
///     tile: [128, 128, 1, 1, 1],
///     swizzle: Swizzle::B128,
///     promotion: L2Promotion::B256,
/// };
/// assert!(matrix.check().is_ok());
/// let error = TiledTensor { strides: [7160, 0, 0, 0], ..matrix }.check().unwrap_err();
/// assert!(error.to_string().contains("the stride of dimension 1 is 7160 bytes"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TiledTensor {
    /// The type of its elements.
    pub element: Element,
    /// How many dimensions it has, 1 to 5.
    pub rank: usize,
    /// The device address of its first element.
    pub address: u64,
    /// Its size in each dimension, in elements.
    pub dims: [u64; 5],
    /// The distance in bytes between neighbours in dimensions 1 and up.
    pub strides: [u64; 4],
    /// The size of a tile in each dimension, in elements.
    pub tile: [u32; 5],
    /// Swizzle of a tile in shared memory.
    pub swizzle: Swizzle,
    /// L2 promotion: how much the L2 cache fetches at a time.
    pub promotion: L2Promotion,
}

/// A TMA rule that a [`TiledTensor`] breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorMapRule {
    /// The number of dimensions.
    #[error("it has {rank} dimensions, expected 1 to 5")]
    Rank {
        /// What it is.
        rank: usize,
    },
    /// The address.
    #[error("its address is {address:#x}, expected a multiple of 16 that is not null")]
    Address {
        /// What it is.
        address: u64,
    },
    /// The size of a dimension.
    #[error("dimension {dim} has {size} elements, expected 1 to 2^32")]
    Size {
        /// Which dimension.
        dim: usize,
        /// What its size is.
        size: u64,
    },
    /// The stride of a dimension.
    #[error("the stride of dimension {dim} is {stride} bytes, expected a multiple of 16 below 2^40")]
    Stride {
        /// Which dimension.
        dim: usize,
        /// What its stride is.
        stride: u64,
    },
    /// The size of the tile.
    #[error("the tile has {size} elements in dimension {dim}, expected 1 to 256")]
    Tile {
        /// Which dimension.
        dim: usize,
        /// What its size is.
        size: u32,
    },
    /// The length of a row of the tile.
    #[error("a row of the tile has {bytes} bytes, expected a multiple of 16")]
    Row {
        /// What it is.
        bytes: u64,
    },
    /// The length of a row of the tile, against the swizzle.
    #[error("a row of the tile has {bytes} bytes, expected at most {span} for this swizzle")]
    Span {
        /// What it is.
        bytes: u64,
        /// What the swizzle allows.
        span: u64,
    },
}

impl TiledTensor {
    /// Checks the rules of TMA, which the driver answers with a mere "invalid argument".
    pub fn check(&self) -> Result<()> {
        self.broken_rule().map_or(Ok(()), |rule| Err(Error::TensorMap(rule)))
    }

    fn broken_rule(&self) -> Option<TensorMapRule> {
        use TensorMapRule as Rule;
        let rank = self.rank;
        if !(1..=5).contains(&rank) {
            return Some(Rule::Rank { rank });
        }
        if self.address == 0 || !self.address.is_multiple_of(16) {
            return Some(Rule::Address { address: self.address });
        }
        let sizes = self.dims[..rank].iter().enumerate();
        if let Some((dim, &size)) = sizes.into_iter().find(|(_, size)| !(1..=1 << 32).contains(*size)) {
            return Some(Rule::Size { dim, size });
        }
        let strides = self.strides[..rank - 1].iter().enumerate();
        let wrong = |stride: u64| !stride.is_multiple_of(16) || stride >= 1 << 40;
        if let Some((i, &stride)) = strides.into_iter().find(|(_, stride)| wrong(**stride)) {
            return Some(Rule::Stride { dim: i + 1, stride });
        }
        let tile = self.tile[..rank].iter().enumerate();
        if let Some((dim, &size)) = tile.into_iter().find(|(_, size)| !(1..=256).contains(*size)) {
            return Some(Rule::Tile { dim, size });
        }
        let bytes = u64::from(self.tile[0]) * self.element.bytes();
        if !bytes.is_multiple_of(16) {
            return Some(Rule::Row { bytes });
        }
        self.swizzle.span().filter(|span| bytes > *span).map(|span| Rule::Span { bytes, span })
    }

    /// Makes the tensor map, after [`check`](Self::check). It needs the driver, but no device.
    pub fn encode(&self) -> Result<TensorMap> {
        self.check()?;
        const NO_INTERLEAVE: c_uint = 0;
        const FILL_ZERO: c_uint = 0;
        /// Newer drivers declare the type with this alignment; older ones want 64.
        #[repr(align(128))]
        struct Aligned(CUtensorMap);
        let mut map = Aligned(CUtensorMap { opaque: [0; 16] });
        // SAFETY: `map` has the size and alignment of the driver's type; the arrays have at least `rank`
        // elements. The address is stored and not read.
        unsafe {
            driver()?.cuTensorMapEncodeTiled(
                &mut map.0,
                self.element as c_uint,
                self.rank as c_uint,
                self.address as *mut c_void,
                self.dims.as_ptr(),
                self.strides.as_ptr(),
                self.tile.as_ptr(),
                [1u32; 5].as_ptr(),
                NO_INTERLEAVE,
                self.swizzle as c_uint,
                self.promotion as c_uint,
                FILL_ZERO,
            )?
        };
        Ok(TensorMap(map.0.opaque))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix() -> TiledTensor {
        TiledTensor {
            element: Element::Bf16,
            rank: 2,
            address: 0x1000,
            dims: [576, 33, 0, 0, 0],
            strides: [1152, 7, 7, 7],
            tile: [64, 256, 0, 0, 0],
            swizzle: Swizzle::B128,
            promotion: L2Promotion::B128,
        }
    }

    #[test]
    fn dimensions_beyond_the_rank_are_not_looked_at() {
        assert_eq!(matrix().check(), Ok(()));
        let vector = TiledTensor { rank: 1, strides: [3, 3, 3, 3], ..matrix() };
        assert_eq!(vector.check(), Ok(()));
    }

    #[test]
    fn every_broken_rule_is_named() {
        use TensorMapRule as Rule;
        let ok = matrix();
        let cases = [
            (TiledTensor { rank: 0, ..ok }, Rule::Rank { rank: 0 }),
            (TiledTensor { rank: 6, ..ok }, Rule::Rank { rank: 6 }),
            (TiledTensor { address: 0, ..ok }, Rule::Address { address: 0 }),
            (TiledTensor { address: 0x1008, ..ok }, Rule::Address { address: 0x1008 }),
            (TiledTensor { dims: [0, 33, 0, 0, 0], ..ok }, Rule::Size { dim: 0, size: 0 }),
            (
                TiledTensor { dims: [8, (1 << 32) + 1, 0, 0, 0], ..ok },
                Rule::Size { dim: 1, size: (1 << 32) + 1 },
            ),
            (TiledTensor { strides: [1160, 0, 0, 0], ..ok }, Rule::Stride { dim: 1, stride: 1160 }),
            (TiledTensor { strides: [1 << 40, 0, 0, 0], ..ok }, Rule::Stride { dim: 1, stride: 1 << 40 }),
            (
                TiledTensor { rank: 3, dims: [8, 8, 8, 0, 0], tile: [8, 8, 8, 0, 0], ..ok },
                Rule::Stride { dim: 2, stride: 7 },
            ),
            (TiledTensor { tile: [0, 1, 0, 0, 0], ..ok }, Rule::Tile { dim: 0, size: 0 }),
            (TiledTensor { tile: [64, 257, 0, 0, 0], ..ok }, Rule::Tile { dim: 1, size: 257 }),
            (TiledTensor { tile: [60, 1, 0, 0, 0], ..ok }, Rule::Row { bytes: 120 }),
            (TiledTensor { tile: [72, 1, 0, 0, 0], ..ok }, Rule::Span { bytes: 144, span: 128 }),
            (TiledTensor { swizzle: Swizzle::B64, ..ok }, Rule::Span { bytes: 128, span: 64 }),
            (
                TiledTensor { swizzle: Swizzle::B32, tile: [32, 1, 0, 0, 0], ..ok },
                Rule::Span { bytes: 64, span: 32 },
            ),
        ];
        for (tensor, rule) in cases {
            assert_eq!(tensor.check(), Err(Error::TensorMap(rule)));
            assert_eq!(
                tensor.encode(),
                Err(Error::TensorMap(rule)),
                "checked before the driver is asked for"
            );
        }
    }

    #[test]
    fn the_largest_legal_values_pass() {
        let mut tensor = matrix();
        tensor.dims[1] = 1 << 32;
        tensor.strides[0] = (1 << 40) - 16;
        assert_eq!(tensor.check(), Ok(()));
        tensor.swizzle = Swizzle::None;
        tensor.tile[0] = 256;
        assert_eq!(tensor.check(), Ok(()));
    }

    #[test]
    fn a_tensor_map_is_what_the_driver_writes() {
        assert_eq!(size_of::<TensorMap>(), size_of::<CUtensorMap>());
        assert_eq!(align_of::<TensorMap>(), align_of::<CUtensorMap>());
    }
}
