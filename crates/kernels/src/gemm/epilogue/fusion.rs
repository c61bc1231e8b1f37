//! What else a kernel may do with its sums before they are stored: `D = act(alpha * A·Bᵀ + bias) + beta * C`.
//!
//! A chain of stages, a file each: bias and alpha, activation and gate on the sums in registers, then quantization or
//! rounding; heads move columns. All of it is in FP32 and rounded once. Which stages take part is told at run time; only
//! that a gate halves the columns is compiled in.

use super::heads::Heads;
use super::{OutputFlags, OutputParams, Panels};
use crate::gemm::operand::f16::Half;
use crate::gemm::scheduler::m_grouped::GroupParams;
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Global, Kernel, Pred, U32, Var};
use std::ffi::c_void;

/// What is compiled into a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fusion {
    /// Sums are stored as they are.
    #[default]
    None,
    /// Every sum becomes an element of D.
    Elementwise,
    /// Two sums become an element of D: `act(gate) * up`. B has the rows of all gates, then those of all ups.
    Gated,
}

impl Fusion {
    /// Sums for each element of D.
    pub const fn sums(self) -> u32 {
        match self {
            Fusion::None | Fusion::Elementwise => 1,
            Fusion::Gated => 2,
        }
    }

    /// Its name in that of a kernel.
    pub const fn name(self) -> &'static str {
        match self {
            Fusion::None => "",
            Fusion::Elementwise => "fused_",
            Fusion::Gated => "gated_",
        }
    }
}

/// What one tensor load brings of the rows of B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoxOfB {
    /// Rows, of each part.
    pub rows: u32,
    /// Parts, gates and ups, that it has rows of; 0 where B is one matrix.
    pub parts: u32,
}

impl BoxOfB {
    /// A box of the `share` of a tile's rows that a block loads, where a warpgroup has so many columns of D at a time: all of what a warpgroup has, gates
    /// before ups, and all of the share where its rows follow each other. (See `Pieces` for where they do not.)
    pub fn of(fusion: Fusion, share: u32, columns: u32, passes: u32) -> BoxOfB {
        match fusion {
            Fusion::None => BoxOfB { rows: share, parts: 0 },
            Fusion::Elementwise => {
                BoxOfB { rows: if passes == 1 { share } else { share.min(columns) }, parts: 0 }
            }
            Fusion::Gated => {
                BoxOfB { rows: share.min(columns), parts: (share / columns).clamp(1, fusion.sums()) }
            }
        }
    }
}

/// Columns that share a scale where D is quantized.
pub const SCALED_COLUMNS: u32 = 128;

/// What the host passes to a fused kernel behind all else, in the order of the parameters.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FusedArgs {
    /// The factor of the product.
    pub alpha: f32,
    /// The factor of C.
    pub beta: f32,
    /// Address of the bias, one for each row of B.
    pub bias: u64,
    /// See [`FusedFlags`].
    pub flags: u32,
    /// An [`Activation`](super::Activation), as a number.
    pub activation: u32,
    /// Columns of a head before those that are skipped, those, and all that are not. 0, 0, 1 where there are no heads.
    pub heads: [u32; 3],
    /// Address of the scales of a quantized D.
    pub scales: u64,
    /// Strides of those scales, in elements: along M and along N.
    pub scale_strides: [u32; 2],
}

/// Bits of [`FusedArgs::flags`].
pub struct FusedFlags;

impl FusedFlags {
    /// There is a bias.
    pub const BIAS: u32 = 1;
    /// It is FP32, not of the 16-bit type.
    pub const BIAS_F32: u32 = 2;
    /// D is e4m3 with a scale for 128 columns of a row. It is [`PLAIN`](super::OutputFlags::PLAIN) then.
    pub const QUANTIZED: u32 = 4;
    /// Its scales are powers of two.
    pub const POWERS_OF_TWO: u32 = 8;
}

impl FusedArgs {
    /// How many parameters they are.
    pub const COUNT: usize = 11;

    /// A pointer to each argument, as a launch takes them.
    pub fn pointers(&self) -> [*mut c_void; Self::COUNT] {
        fn to<T>(value: &T) -> *mut c_void {
            std::ptr::from_ref(value).cast_mut().cast()
        }
        [
            to(&self.alpha),
            to(&self.beta),
            to(&self.bias),
            to(&self.flags),
            to(&self.activation),
            to(&self.heads[0]),
            to(&self.heads[1]),
            to(&self.heads[2]),
            to(&self.scales),
            to(&self.scale_strides[0]),
            to(&self.scale_strides[1]),
        ]
    }
}

/// What the host passes behind [`FusedArgs`] where rows are grouped, in the order of the parameters.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FusedGroupArgs {
    /// From the bias of one group to that of the next, in elements; 0 where all have the same.
    pub bias_group: u32,
    /// From one slab of the scales of a quantized D to the next, in elements.
    pub scales_slab: u32,
}

impl FusedGroupArgs {
    /// How many parameters they are.
    pub const COUNT: usize = 2;

    /// A pointer to each argument, as a launch takes them.
    pub fn pointers(&self) -> [*mut c_void; Self::COUNT] {
        [&self.bias_group, &self.scales_slab].map(|x| std::ptr::from_ref(x).cast_mut().cast())
    }
}

/// The same arguments inside a kernel.
#[derive(Clone, Copy)]
pub(crate) struct FusedGroupParams<'k> {
    bias_group: U32<'k>,
    scales_slab: U32<'k>,
}

impl<'k> FusedGroupParams<'k> {
    /// Declares them in the order of [`FusedGroupArgs`].
    pub fn declare(k: &'k Kernel) -> Self {
        FusedGroupParams { bias_group: k.param("bias_group"), scales_slab: k.param("d_scales_slab") }
    }

    /// What sums of a group are finished with.
    pub fn of(&self, fused: &FusedParams<'k>, group: U32<'k>, groups: &GroupParams<'k>) -> FusedParams<'k> {
        let slab = groups.slab_of(group);
        let in_slab = self.in_slab(fused, [group, slab]);
        FusedParams { scales_row: Some(slab * groups.d_slab), ..in_slab }
    }

    /// The same where rows are those of the group's slab.
    pub fn in_slab(&self, fused: &FusedParams<'k>, [group, slab]: [U32<'k>; 2]) -> FusedParams<'k> {
        let bias = group.widening_mul(self.bias_group) << fused.has(FusedFlags::BIAS_F32).select::<u32>(2, 1);
        FusedParams {
            bias: fused.bias.at(bias),
            scales: fused.scales.at(slab.widening_mul(self.scales_slab) << 2),
            ..*fused
        }
    }
}

/// The arguments of what is fused, inside a kernel.
#[derive(Clone, Copy)]
pub(crate) struct FusedParams<'k> {
    pub alpha: F32<'k>,
    pub beta: F32<'k>,
    pub bias: Global<'k>,
    pub flags: U32<'k>,
    pub activation: U32<'k>,
    pub heads: Heads<'k>,
    pub scales: Global<'k>,
    pub scale_strides: [U32<'k>; 2],
    /// The row of D that the first scales are of, where that is not the first.
    pub scales_row: Option<U32<'k>>,
}

impl<'k> FusedParams<'k> {
    /// Declares them in the order of [`FusedArgs`].
    pub fn declare(k: &'k Kernel) -> Self {
        FusedParams {
            alpha: k.param("alpha"),
            beta: k.param("beta"),
            bias: k.param_pointer("bias"),
            flags: k.param("fused_flags"),
            activation: k.param("activation"),
            heads: Heads::declare(k),
            scales: k.param_pointer("d_scales"),
            scale_strides: [k.param("d_scales_stride_m"), k.param("d_scales_stride_n")],
            scales_row: None,
        }
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: u32) -> Pred<'k> {
        (self.flags & flag).ne(0)
    }

    /// The same for one tile: read anew, so that what depends on it takes no registers of the main loop.
    pub fn anew(&self, k: &'k Kernel) -> Self {
        FusedParams { activation: k.shuffle(Shuffle::Index, self.activation, 0), ..*self }
    }

    /// In how many passes tiles are computed, where D takes this many to be quantized.
    pub fn passes(&self, quantized: u32) -> U32<'k> {
        self.has(FusedFlags::QUANTIZED).select(quantized, 1)
    }

    /// Has a part of a tile with so many columns stored by the copy engine, which leaves it to the lanes where D is rounded and no
    /// panel is whole.
    pub fn store(&self, k: &'k Kernel, columns: u32, quantized: impl FnOnce(), rounded: impl FnOnce()) {
        match Panels::some_are_whole(columns) {
            true => k.if_else(self.has(FusedFlags::QUANTIZED), quantized, rounded),
            false => quantized(),
        }
    }

    /// The output with what it has to know of them.
    pub fn output(&self, output: OutputParams<'k>) -> OutputParams<'k> {
        OutputParams { beta: Some(self.beta), heads: Some(self.heads), ..output }
    }
}

impl<'k> OutputParams<'k> {
    /// Whether the copy engine stores some of a part of a tile with so many columns: see [`FusedParams::store`].
    pub(crate) fn is_copied(&self, columns: u32, fused: Option<&FusedParams<'k>>) -> Pred<'k> {
        match fused {
            _ if Panels::some_are_whole(columns) => self.has(OutputFlags::PLAIN),
            Some(fused) => fused.has(FusedFlags::QUANTIZED),
            None => self.flags.kernel().constant(false),
        }
    }
}

/// A warpgroup's sums of a tile, a fragment for each 64 rows, on their way to D.
pub(crate) struct Sums<'k, 'p> {
    pub k: &'k Kernel,
    pub params: &'p FusedParams<'k>,
    pub fusion: Fusion,
    /// The type of a bias that is not FP32.
    pub half: Half,
    /// The column of D that the first sums belong to.
    pub column: U32<'k>,
    /// Columns of D.
    pub columns: U32<'k>,
    pub lane: U32<'k>,
}

impl<'k> Sums<'k, '_> {
    /// Turns sums into elements of D but for C, and tells where these are: with a gate, in the first half of each fragment.
    pub fn finish<'s>(&self, sums: &'s [Vec<Var<'k, f32>>]) -> Vec<&'s [Var<'k, f32>]> {
        self.scale_and_add_bias(sums);
        let each = self.fusion.sums() as usize;
        let parts: Vec<_> = sums.iter().map(|sums| sums.split_at(sums.len() / each)).collect();
        let firsts: Vec<_> = parts.iter().flat_map(|(first, _)| *first).copied().collect();
        super::activation::activate(self.k, self.params.activation, &firsts);
        if self.fusion == Fusion::Gated {
            for (gate, up) in parts.iter().flat_map(|(gates, ups)| gates.iter().zip(*ups)) {
                gate.set(gate.live() * up.live());
            }
        }
        parts.into_iter().map(|(first, _)| first).collect()
    }
}

/// Which rows of B a tile's sums belong to, where those need not simply follow each other: a warpgroup has pieces of
/// `columns` rows, of the gates and of the ups, and warpgroups side by side are `stride` columns of D apart.
#[derive(Clone, Copy)]
pub(crate) struct Pieces<'k> {
    pub fusion: Fusion,
    /// Columns of D that a warpgroup computes at a time.
    pub columns: u32,
    pub stride: U32<'k>,
    /// Rows of B before the first up: the columns of D.
    pub ups: U32<'k>,
}

impl<'k> Pieces<'k> {
    /// The column of D and the row of B of one of a tile's sums, for a tile whose first column of D is `n`.
    pub fn place(&self, n: U32<'k>, sum: U32<'k>) -> (U32<'k>, U32<'k>) {
        let [column, part] = self.place_in_part(n, sum);
        (column, column + part * self.ups)
    }

    /// The same as the column of D, and which of its sums it is.
    pub fn place_in_part(&self, n: U32<'k>, sum: U32<'k>) -> [U32<'k>; 2] {
        let (piece, within) = (sum / self.columns, sum % self.columns);
        let sums = self.fusion.sums();
        [n + within + (piece / sums) * self.stride, piece % sums]
    }

    /// Rows of a tile that one load brings of the `share` that a block has of them: as [`BoxOfB::of`].
    pub fn box_rows(&self, share: U32<'k>) -> U32<'k> {
        let of_warpgroup = share.min(self.columns * self.fusion.sums());
        match self.fusion {
            Fusion::Gated => of_warpgroup,
            Fusion::None | Fusion::Elementwise => self.stride.eq(self.columns).select(share, of_warpgroup),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arch;
    use crate::gemm::{GemmConfig, GemmKernel};
    use oxigemm_ptx::Target;

    /// Columns of D that a warpgroup has, rows of a tile, and passes where D is quantized, of every many-row kernel whose sums are finished.
    fn tiles() -> impl Iterator<Item = (Fusion, u32, u32, u32)> {
        let fused = GemmKernel::fused(Arch::Sm90a).chain(GemmKernel::fused_m_grouped(Arch::Sm90a));
        fused.filter(|kernel| !kernel.is_split_k()).map(|kernel| {
            let ([_, rows], passes) = (kernel.tile(), GemmConfig::of(kernel).quantized_passes());
            (kernel.fusion(), SCALED_COLUMNS / passes, rows, passes)
        })
    }

    #[test]
    fn the_host_and_the_kernel_mean_the_same_box() {
        let k = &Kernel::new("boxes", Target::Sm90a);
        let mut seen = 0;
        for (fusion, columns, rows, quantized) in tiles() {
            for (cluster_m, passes) in [(1, 1), (2, 1), (1, quantized), (2, quantized)] {
                let share = rows / cluster_m;
                let host = BoxOfB::of(fusion, share, columns, passes);
                let ups = k.constant(4096);
                let pieces = Pieces { fusion, columns, stride: k.constant(passes * columns), ups };
                let kernel = pieces.box_rows(k.constant(share)).as_constant().expect("all of it is known");
                let about =
                    format!("{fusion:?} {columns} columns, {rows} rows, {cluster_m}, {passes} passes");
                assert_eq!(host.rows * host.parts.max(1), kernel, "{about}");
                assert!(share.is_multiple_of(kernel), "{about}");
                assert!(share / kernel <= (rows / (columns * fusion.sums())).max(1), "{about}");
                seen += 1;
            }
        }
        assert!(seen >= 4 * 12, "{seen}");
    }
}
