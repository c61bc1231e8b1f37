//! Matrices in shared memory: swizzles, and the descriptors by which tensor cores read them.

use crate::memory::Shared;
use crate::target::Target;
use crate::value::{U32, U64, Var};

/// Swizzle: how rows of a matrix are permuted in shared memory, so that neither TMA nor the tensor core
/// has bank conflicts. The names give the width of the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// Rows of 16 bytes, not permuted.
    None,
    /// 32-byte rows.
    B32,
    /// 64-byte rows.
    B64,
    /// 128-byte rows.
    B128,
    /// 128-byte rows in units of 32 bytes: how `tcgen05` reads 32-bit operands with M or N contiguous. Four rows make one
    /// pattern.
    B128Atom32,
}

impl Swizzle {
    /// Bytes of one row of the pattern.
    pub const fn bytes(self) -> u32 {
        match self {
            Swizzle::None => 16,
            Swizzle::B32 => 32,
            Swizzle::B64 => 64,
            Swizzle::B128 | Swizzle::B128Atom32 => 128,
        }
    }

    /// Rows of the pattern of a tile with M or N contiguous.
    const fn lines(self) -> u32 {
        if matches!(self, Swizzle::B128Atom32) { 4 } else { 8 }
    }

    /// Where byte `offset` of an unpermuted tile lies in the permuted one: 16-byte chunks (32-byte ones) are exchanged
    /// within 128 bytes, by the index of the 128-byte line.
    pub const fn apply(self, offset: u32) -> u32 {
        if matches!(self, Swizzle::B128Atom32) {
            return offset ^ (((offset >> 7) & 3) << 5);
        }
        let mask = self.bytes() / 16 - 1;
        offset ^ (((offset >> 7) & mask) << 4)
    }

    /// Bits 62 and 63 of a descriptor for `wgmma`.
    fn wgmma_code(self) -> u32 {
        match self {
            Swizzle::None => 0,
            Swizzle::B128 => 1,
            Swizzle::B64 => 2,
            Swizzle::B32 => 3,
            Swizzle::B128Atom32 => unreachable!("`wgmma` reads no units of 32 bytes"),
        }
    }

    /// Bits 61 to 63 of a descriptor for `tcgen05`.
    fn tcgen05_code(self) -> u32 {
        match self {
            Swizzle::None => 0,
            Swizzle::B128Atom32 => 1,
            Swizzle::B128 => 2,
            Swizzle::B64 => 4,
            Swizzle::B32 => 6,
        }
    }
}

/// Which dimension of an operand is contiguous in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Major {
    /// K is contiguous.
    K,
    /// M (of A) or N (of B) is contiguous. `wgmma` takes only 16-bit types so, `tcgen05` all but FP4.
    MN,
}

/// A matrix in shared memory as the tensor core of the kernel's target sees it: `wgmma` on Hopper, `tcgen05` on Blackwell
/// (PTX manual, "Matrix Descriptor Format", once for each).
#[derive(Clone, Copy)]
pub struct Descriptor<'k> {
    low: U32<'k>,
    high: u32,
}

impl<'k> Descriptor<'k> {
    /// A tile whose rows are as long as the swizzle's pattern and lie one after another, K contiguous.
    #[track_caller]
    pub fn k_major(tile: Shared<'k>, swizzle: Swizzle) -> Self {
        // Eight rows make one pattern; the next eight follow it.
        Self::new(tile, swizzle, 16, 8 * swizzle.bytes())
    }

    /// A tile with M or N contiguous, in panels: each is as wide as the swizzle's pattern, with one line of it for
    /// every element of K, and the next panel begins `panel` bytes after it.
    #[track_caller]
    pub fn mn_major(tile: Shared<'k>, swizzle: Swizzle, panel: u32) -> Self {
        // Eight lines, and so eight of K, make one pattern (four in units of 32 bytes); the next ones follow it.
        Self::new(tile, swizzle, panel, swizzle.lines() * swizzle.bytes())
    }

    /// A tile by its byte offsets: `leading` and `stride` as the manual defines them for the layout at hand.
    #[track_caller]
    pub fn new(tile: Shared<'k>, swizzle: Swizzle, leading: u32, stride: u32) -> Self {
        let low = ((tile.address() & 0x3ffff) >> 4) | ((leading >> 4) << 16);
        let layout = match low.kernel().target() {
            // Bits 46 to 48 are the constant 1.
            Target::Sm100a | Target::Sm103a => 1 << 14 | swizzle.tcgen05_code() << 29,
            _ => swizzle.wgmma_code() << 30,
        };
        Descriptor { low, high: (stride >> 4) | layout }
    }

    /// The descriptor of the same layout this many bytes further on, a multiple of 16.
    #[track_caller]
    pub fn advance(self, bytes: impl crate::Arg<'k, u32>) -> Self {
        let bytes = bytes.val(self.low.kernel());
        Descriptor { low: self.low + (bytes >> 4), ..self }
    }

    /// The same where only the start is this many bytes further on, a multiple of 16: what the leading offset leads to
    /// stays where it is.
    #[track_caller]
    pub fn advance_start(self, bytes: impl crate::Arg<'k, u32>) -> Self {
        let sixteens = bytes.val(self.low.kernel()) >> 4;
        // The leading offset is in the upper half of the word.
        Descriptor { low: self.low - sixteens * 0xffffu32, ..self }
    }

    /// A variable that holds this descriptor, and later others of the same layout.
    #[track_caller]
    pub fn var(self) -> DescriptorVar<'k> {
        DescriptorVar { low: self.low.kernel().var_from(self.low), high: self.high }
    }

    #[track_caller]
    pub(crate) fn pack(self) -> U64<'k> {
        self.low.kernel().join(self.low, self.high)
    }
}

/// A descriptor that moves while the kernel runs.
#[derive(Clone, Copy)]
pub struct DescriptorVar<'k> {
    low: Var<'k, u32>,
    high: u32,
}

impl<'k> DescriptorVar<'k> {
    /// Assigns a descriptor of the same layout.
    #[track_caller]
    pub fn set(self, to: Descriptor<'k>) {
        self.low.set(to.low);
    }

    /// What the variable holds now.
    #[track_caller]
    pub fn get(self) -> Descriptor<'k> {
        Descriptor { low: self.low.get(), high: self.high }
    }
}
