//! Fused epilogue: `D = act(alpha * A·Bᵀ + bias) + beta * C`.
//!
//! A chain of stages, a file each: alpha and bias, activation and gate on the accumulators in registers, then
//! quantization or rounding; head splits move columns. All of it is in FP32 and rounded once. Which stages take part is
//! a run-time argument; only that a gate halves the columns is compiled in.

use super::activation::{GateParams, activate};
use super::{BlockOutput, Heads, OutputFlags, OutputParams, Panels};
use crate::common::params::kernel_params;
use crate::gemm::operand::f16::Half;
pub use crate::gemm::operand::gate_up::{BoxOfB, Fusion};
use crate::gemm::scheduler::m_grouped::MGroupedParams;
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Global, Kernel, Pred, U32, Var};

/// Columns that share a scale where D is quantized.
pub const SCALED_COLUMNS: u32 = 128;

/// Arguments of a fused epilogue, behind those of the groups.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EpilogueArgs {
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of C. Nothing is added to a quantized D: there it is the tensor scale of NVFP4.
    pub beta: f32,
    /// Address of the bias, one for each row of B.
    pub bias: u64,
    /// See [`EpilogueFlags`].
    pub flags: u32,
    /// An [`Activation`](super::Activation), as a number.
    pub activation: u32,
    /// Columns of a head before those that are skipped, those, and all that are not. 0, 0, 1 where there are no heads.
    pub heads: [u32; 3],
    /// See [`Gate`](super::Gate).
    pub gate_limit: f32,
    /// Address of the scales of a quantized D.
    pub scales: u64,
    /// Strides of those scales, in elements: along M and along N.
    pub scale_strides: [u32; 2],
    /// See [`Gate`](super::Gate).
    pub gate_slope: f32,
    /// The same.
    pub up_offset: f32,
}

/// Bits of [`EpilogueArgs::flags`].
pub struct EpilogueFlags;

impl EpilogueFlags {
    /// There is a bias.
    pub const BIAS: u32 = 1;
    /// It is FP32, not of the 16-bit type.
    pub const BIAS_F32: u32 = 2;
    /// D is e4m3 with a scale for 128 columns of a row. It is [`PLAIN`](super::OutputFlags::PLAIN) then.
    pub const QUANTIZED: u32 = 4;
    /// Its scales are powers of two.
    pub const POWERS_OF_TWO: u32 = 8;
    /// From here on, the [`BlockOutput`] that D is quantized to, where its scales are bytes; else 0.
    pub const BLOCK_OUTPUT_SHIFT: u32 = 4;

    /// Flags of a D whose scales are bytes.
    pub const fn block_output(output: BlockOutput) -> u32 {
        EpilogueFlags::QUANTIZED | (output as u32) << EpilogueFlags::BLOCK_OUTPUT_SHIFT
    }
}

kernel_params! {
    struct EpilogueWords from EpilogueArgs {
        alpha: F32 = alpha,
        beta: F32 = beta,
        bias: Pointer = bias,
        fused_flags: U32 = flags,
        activation: U32 = activation,
        head_left: U32 = heads[0],
        head_mid: U32 = heads[1],
        head_computed: U32 = heads[2],
        d_scales: Pointer = scales,
        d_scales_stride_m: U32 = scale_strides[0],
        d_scales_stride_n: U32 = scale_strides[1],
        gate_limit: F32 = gate_limit,
        gate_slope: F32 = gate_slope,
        up_offset: F32 = up_offset,
    }
}

/// Arguments of a fused epilogue of an m-grouped kernel, behind [`EpilogueArgs`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GroupedEpilogueArgs {
    /// From the bias of one group to that of the next, in elements; 0 where all have the same.
    pub bias_group: u32,
    /// From one slab of the scales of a quantized D to the next, in elements.
    pub scales_slab: u32,
}

kernel_params! {
    /// The same inside a kernel.
    pub(crate) struct GroupedEpilogueParams from GroupedEpilogueArgs {
        bias_group: U32 = bias_group,
        d_scales_slab: U32 = scales_slab,
    }
}

impl<'k> GroupedEpilogueParams<'k> {
    /// Epilogue parameters of a group.
    pub fn of(
        &self,
        fused: &EpilogueParams<'k>,
        group: U32<'k>,
        groups: &MGroupedParams<'k>,
    ) -> EpilogueParams<'k> {
        let slab = groups.slab_of(group);
        let in_slab = self.in_slab(fused, [group, slab]);
        EpilogueParams { scales_row: Some(slab * groups.d_slab), ..in_slab }
    }

    /// The same where rows are those of the group's slab.
    pub fn in_slab(&self, fused: &EpilogueParams<'k>, [group, slab]: [U32<'k>; 2]) -> EpilogueParams<'k> {
        let bias =
            group.widening_mul(self.bias_group) << fused.has(EpilogueFlags::BIAS_F32).select::<u32>(2, 1);
        EpilogueParams {
            bias: fused.bias.at(bias),
            scales: fused.scales.at(slab.widening_mul(self.d_scales_slab) << 2),
            ..*fused
        }
    }
}

/// Epilogue parameters inside a kernel.
#[derive(Clone, Copy)]
pub(crate) struct EpilogueParams<'k> {
    pub alpha: F32<'k>,
    pub beta: F32<'k>,
    pub bias: Global<'k>,
    pub flags: U32<'k>,
    pub activation: U32<'k>,
    pub heads: Heads<'k>,
    pub scales: Global<'k>,
    pub scale_strides: [U32<'k>; 2],
    pub gate: GateParams<'k>,
    /// The row of D that the first scales are of, where that is not the first.
    pub scales_row: Option<U32<'k>>,
}

impl<'k> EpilogueParams<'k> {
    /// Declares the parameters of [`EpilogueArgs`].
    pub fn declare(k: &'k Kernel) -> Self {
        let words = EpilogueWords::declare(k, "");
        EpilogueParams {
            alpha: words.alpha,
            beta: words.beta,
            bias: words.bias,
            flags: words.fused_flags,
            activation: words.activation,
            heads: Heads { left: words.head_left, mid: words.head_mid, computed: words.head_computed },
            scales: words.d_scales,
            scale_strides: [words.d_scales_stride_m, words.d_scales_stride_n],
            gate: GateParams { slope: words.gate_slope, limit: words.gate_limit, up_offset: words.up_offset },
            scales_row: None,
        }
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: u32) -> Pred<'k> {
        (self.flags & flag).ne(0)
    }

    /// The same for one tile, read anew: so what depends on it takes no registers of the main loop.
    pub fn anew(&self, k: &'k Kernel) -> Self {
        EpilogueParams { activation: k.shuffle(Shuffle::Index, self.activation, 0), ..*self }
    }

    /// The [`BlockOutput`] that D is quantized to, as a number; 0 where its scales are FP32.
    pub fn block_output(&self) -> U32<'k> {
        self.flags >> EpilogueFlags::BLOCK_OUTPUT_SHIFT
    }

    /// The scale of all of D where it is NVFP4.
    pub fn tensor_scale(&self) -> F32<'k> {
        self.beta
    }

    /// Passes of a tile, where it takes this many to quantize D.
    pub fn passes(&self, quantized: u32) -> U32<'k> {
        self.has(EpilogueFlags::QUANTIZED).select(quantized, 1)
    }

    /// Runs what has TMA store a part of a tile with so many columns: `quantized`, or `rounded` where some panels are
    /// whole. (Else the lanes store a rounded D.)
    pub fn store(&self, k: &'k Kernel, columns: u32, quantized: impl FnOnce(), rounded: impl FnOnce()) {
        match Panels::some_are_whole(columns) {
            true => k.if_else(self.has(EpilogueFlags::QUANTIZED), quantized, rounded),
            false => quantized(),
        }
    }

    /// Output parameters with the factor of C and the head splits.
    pub fn output(&self, output: OutputParams<'k>) -> OutputParams<'k> {
        OutputParams { beta: Some(self.beta), heads: Some(self.heads), ..output }
    }
}

impl<'k> OutputParams<'k> {
    /// Whether TMA stores some of a part of a tile with so many columns: see [`EpilogueParams::store`].
    pub(crate) fn is_stored_by_tma(&self, columns: u32, epilogue: Option<&EpilogueParams<'k>>) -> Pred<'k> {
        match epilogue {
            _ if Panels::some_are_whole(columns) => self.has(OutputFlags::PLAIN),
            Some(epilogue) => epilogue.has(EpilogueFlags::QUANTIZED),
            None => self.flags.kernel().constant(false),
        }
    }
}

/// Fused epilogue of a warpgroup's accumulators of a tile, a fragment for each 64 rows.
pub(crate) struct FusedAccumulators<'k, 'p> {
    pub k: &'k Kernel,
    pub params: &'p EpilogueParams<'k>,
    pub fusion: Fusion,
    /// The type of a bias that is not FP32.
    pub half: Half,
    /// The column of D that the first accumulators belong to.
    pub column: U32<'k>,
    /// Columns of D.
    pub columns: U32<'k>,
    pub lane: U32<'k>,
}

impl<'k> FusedAccumulators<'k, '_> {
    /// Turns accumulators into elements of D but for C, and gives those: with a gate, the first half of each fragment.
    pub fn apply<'s>(&self, accumulators: &'s [Vec<Var<'k, f32>>]) -> Vec<&'s [Var<'k, f32>]> {
        self.scale_and_add_bias(accumulators);
        let each = self.fusion.accumulators() as usize;
        let parts: Vec<_> = accumulators.iter().map(|values| values.split_at(values.len() / each)).collect();
        let firsts: Vec<_> = parts.iter().flat_map(|(first, _)| *first).copied().collect();
        let ups: Vec<_> = match self.fusion {
            Fusion::Gated => parts.iter().flat_map(|(_, ups)| *ups).copied().collect(),
            _ => Vec::new(),
        };
        activate(self.k, self.params.activation, &self.params.gate, &firsts, &ups);
        parts.into_iter().map(|(first, _)| first).collect()
    }
}
