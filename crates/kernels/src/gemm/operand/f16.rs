//! 16-bit operands: their types, their layouts, and their tiles in shared memory.

pub use oxigemm_ptx::wgmma::Major;
use oxigemm_ptx::wgmma::{Descriptor, MmaType, Swizzle};
use oxigemm_ptx::{F32, Kernel, Shared, U32};

/// Elements of K in one stage: a line of the 128-byte swizzle.
pub const BLOCK_K: u32 = LINE_BYTES / 2;
/// Bytes of a line of a tile in shared memory.
pub(crate) const LINE_BYTES: u32 = Swizzle::B128.bytes();
/// Rows of a panel: what one line of an MN-major tile holds.
pub(crate) const PANEL: u32 = LINE_BYTES / 2;
/// Bytes of a panel: one line for each element of K in a stage.
const PANEL_BYTES: u32 = BLOCK_K * LINE_BYTES;

/// A floating-point type of 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Half {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
}

impl Half {
    /// Its name in the names of kernels.
    pub fn name(self) -> &'static str {
        match self {
            Half::Bf16 => "bf16",
            Half::F16 => "fp16",
        }
    }

    /// Rounds two numbers and packs them, the first in the low half.
    #[track_caller]
    pub(crate) fn pack<'k>(self, k: &'k Kernel, low: F32<'k>, high: F32<'k>) -> U32<'k> {
        match self {
            Half::Bf16 => k.pack_bf16(low, high).bitcast(),
            Half::F16 => k.pack_f16(low, high).bitcast(),
        }
    }
}

/// The operands of a product: their type, and which of their dimensions is contiguous in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operands {
    /// The type of both.
    pub element: Half,
    /// A is `[M, K]` in memory (K-major) or `[K, M]`.
    pub a: Major,
    /// B is `[N, K]` in memory (K-major) or `[K, N]`.
    pub b: Major,
}

impl Operands {
    /// Both types in the four layouts.
    pub fn all() -> impl Iterator<Item = Operands> {
        let majors = [Major::K, Major::MN];
        let layouts = majors.into_iter().flat_map(move |a| majors.map(|b| (a, b)));
        [Half::Bf16, Half::F16]
            .into_iter()
            .flat_map(move |element| layouts.clone().map(move |(a, b)| Operands { element, a, b }))
    }

    /// The layout's name, as BLAS has it: whether A and B are transposed, where `n` is `[M, K]` and `[K, N]`.
    ///
    /// ```
    /// use oxigemm_kernels::gemm::operand::f16::{Half, Major, Operands};
    ///
    /// let operands = Operands { element: Half::Bf16, a: Major::K, b: Major::K };
    /// assert_eq!(operands.layout(), "nt");
    /// ```
    pub fn layout(self) -> &'static str {
        match (self.a, self.b) {
            (Major::K, Major::K) => "nt",
            (Major::K, Major::MN) => "nn",
            (Major::MN, Major::MN) => "tn",
            (Major::MN, Major::K) => "tt",
        }
    }

    /// Elements along K that a range of it begins at a multiple of: those of 16 bytes where K is contiguous, because
    /// TMA begins at such.
    pub fn k_unit(self) -> u32 {
        if [self.a, self.b].contains(&Major::K) { 8 } else { 1 }
    }

    pub(crate) fn mma_type(self) -> MmaType {
        match self.element {
            Half::Bf16 => MmaType::Bf16,
            Half::F16 => MmaType::F16,
        }
    }
}

/// An operand's part of a stage: `rows` of M or N by 64 of K, in lines of 128 bytes with 128-byte swizzle.
///
/// K-major, a line is a row. MN-major, a line is 64 rows at one depth of K, and 64 lines make a panel. Either way
/// 64 rows take 8192 bytes, and the next 64 follow them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperandTile {
    pub major: Major,
    /// A multiple of 8, of 64 where it is MN-major.
    pub rows: u32,
}

impl OperandTile {
    pub const fn bytes(&self) -> u32 {
        self.rows * LINE_BYTES
    }

    /// Lines of one tensor load where nobody shares the tile: what the blocks of a cluster divide among them.
    pub const fn lines(&self) -> u32 {
        match self.major {
            Major::K => self.rows,
            Major::MN => BLOCK_K,
        }
    }

    /// The dimension of the operand's tensor map that K is.
    pub const fn k_dimension(&self) -> u32 {
        match self.major {
            Major::K => 0,
            Major::MN => 1,
        }
    }

    /// The tensor loads of a tile that begins at `row` of M or N and at `depth` of K: the coordinates of each, and
    /// where it goes.
    pub fn boxes<'k>(
        &self,
        [row, depth]: [U32<'k>; 2],
        tile: Shared<'k>,
    ) -> impl Iterator<Item = ([U32<'k>; 2], Shared<'k>)> {
        let major = self.major;
        let count = if major == Major::K { 1 } else { self.rows / PANEL };
        (0..count).map(move |panel| match major {
            Major::K => ([depth, row], tile),
            Major::MN => ([row + panel * PANEL, depth], tile.at(panel * PANEL_BYTES)),
        })
    }

    /// The tile as the tensor core sees it.
    pub fn descriptor<'k>(&self, tile: Shared<'k>) -> Descriptor<'k> {
        match self.major {
            Major::K => Descriptor::k_major(tile, Swizzle::B128),
            Major::MN => Descriptor::mn_major(tile, Swizzle::B128, PANEL_BYTES),
        }
    }

    /// Bytes from one row to a later one, a multiple of 64 rows further on.
    pub const fn row_offset(rows: u32) -> u32 {
        rows * LINE_BYTES
    }

    /// Bytes from the beginning of a tile to a depth of K that one instruction begins with.
    pub const fn depth_offset(&self, depth: u32) -> u32 {
        match self.major {
            Major::K => depth * 2,
            Major::MN => depth * LINE_BYTES,
        }
    }
}
