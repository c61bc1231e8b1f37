//! Fused epilogues: bias, activation, gated activation, quantization, skipped columns.

use oxigemm_kernels::gemm::epilogue::{Activation, Gate};

use super::super::desc::{EpilogueDesc, HeadSplits};
use super::super::output_format::{BlockFormat, OutputFormat};
use crate::cast::ScaleFormat;
use crate::tensor::Tensor;

/// Fused epilogue: what is done with the accumulators before they are stored, in this order and in FP32:
///
/// `D = act(alpha * A·Bᵀ + bias) + beta * C`, rounded once.
///
/// With a gate, the first half of B's rows are gates and the other half are ups, and D has as many columns as there are
/// of each: `D = act(gate) * up + beta * C`, where gate and up are `alpha * A·Bᵀ + bias`. With
/// [`Silu`](Activation::Silu) this is SwiGLU. A [`Gate`] bounds both and changes the sigmoid, as models such as gpt-oss
/// have it.
///
/// The default does nothing.
///
/// ```
/// use oxigemm::{Activation, Epilogue};
///
/// let swiglu = Epilogue { activation: Activation::Silu, gated: true, ..Default::default() };
/// assert_eq!((swiglu.alpha, swiglu.beta), (1.0, 1.0));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'a> {
    /// Factor of the product.
    pub alpha: f32,
    /// Bias: one number for each row of B, `[N]`, contiguous. Its type is the 16-bit type of the operands (bf16 for
    /// FP8) or f32.
    pub bias: Option<&'a Tensor>,
    /// Activation of an accumulator, or of a gate.
    pub activation: Activation,
    /// Whether the first half of B's rows are gates.
    pub gated: bool,
    /// What is done with gates and ups, where there are some.
    pub gate: Gate,
    /// Factor of C.
    pub beta: f32,
    /// Columns of D that are skipped, which stay as they are.
    pub heads: Option<HeadSplits>,
}

impl Default for Epilogue<'_> {
    fn default() -> Self {
        Epilogue {
            alpha: 1.0,
            bias: None,
            activation: Activation::None,
            gated: false,
            gate: Gate::default(),
            beta: 1.0,
            heads: None,
        }
    }
}

/// Output of a GEMM with a fused epilogue.
#[derive(Debug)]
pub enum FusedOutput<'a> {
    /// A matrix of the 16-bit type of the operands (bf16 for FP8) or f32: rows of any pitch.
    Matrix(&'a mut Tensor),
    /// A matrix of e4m3, which another GEMM can read: the rule is that of
    /// [`per_token_cast_to_fp8`](crate::cast::per_token_cast_to_fp8), applied to the result in FP32.
    Fp8 {
        /// The codes: a multiple of 16 columns; pitch and address multiples of 16 bytes.
        d: &'a mut Tensor,
        /// One f32 for each row and 128 columns, in any strides that share no element.
        scales: &'a mut Tensor,
        /// Format of the scales.
        format: ScaleFormat,
    },
    /// A matrix of e4m3 or FP4 with scales of bytes, as a GEMM whose tensor core applies scales reads it: codes and scales
    /// are those of [`quantize`](crate::quantize) or [`quantize_nvfp4`](crate::quantize_nvfp4), applied to the result in
    /// FP32. On the CPU and on Blackwell.
    BlockScaled {
        /// The codes: e4m3 `[M, N]`, or u8 `[M, N/2]` with two e2m1 each; rows of a multiple of 16 bytes, and pitch and
        /// address alike.
        d: &'a mut Tensor,
        /// i32 with four scales of a row in each, `[M, ceil(S/4)]` for S scales a row, in any strides that share no
        /// element: [`packed_scales`](crate::packed_scales) makes them.
        scales: &'a mut Tensor,
        /// What D is quantized to.
        format: BlockFormat,
    },
}

impl FusedOutput<'_> {
    /// D, and its scales where it is quantized.
    pub(crate) fn parts(&self) -> (&Tensor, Option<(&Tensor, OutputFormat)>) {
        match self {
            FusedOutput::Matrix(d) => (d, None),
            FusedOutput::Fp8 { d, scales, format } => (d, Some((scales, OutputFormat::Fp8(*format)))),
            FusedOutput::BlockScaled { d, scales, format } => {
                (d, Some((scales, OutputFormat::Blocks(*format))))
            }
        }
    }
}

impl Epilogue<'_> {
    /// The description, beside the scales of D.
    pub(crate) fn describe(&self, scales: Option<(&Tensor, OutputFormat)>) -> EpilogueDesc {
        EpilogueDesc {
            alpha: self.alpha,
            beta: self.beta,
            activation: self.activation,
            gated: self.gated,
            gate: self.gate,
            bias: self.bias.map(|bias| bias.describe("bias")),
            heads: self.heads,
            scales: scales.map(|(scales, format)| (scales.describe("d_scales"), format)),
        }
    }
}
