//! The two GEMMs of experts, and the rows that go into them: gathered and quantized tokens, and what is between.

use super::activations::QuantizedRows;
use super::operand::{BlockScaled, Conversion, Form, Operand};
use crate::cast::ScaleFormat;
use crate::check::gemm::tensors::epilogue::Epilogue;
use crate::check::gemm::tensors::{Gemm, Grouping};
use crate::device::Device;
use crate::error::Result;
use crate::moe_experts::{MoeExperts, MoeProjection, SortedCall, SortedRows};
use crate::tensor::{DType, Tensor};

use oxigemm_kernels::gemm::epilogue::Activation;

/// A projection of all experts.
#[derive(Clone, Debug)]
pub(super) struct Projection {
    pub operand: Operand,
    pub bias: Option<Tensor>,
    pub conversion: Conversion,
}

/// The projections, and the activation of the gate.
pub(super) struct Projections<'a> {
    pub gate_up: &'a Projection,
    pub down: &'a Projection,
    pub activation: Activation,
}

/// Rows that go into the GEMMs: tokens, and what is between.
#[derive(Debug)]
pub(super) enum Rows {
    /// Codes and f32 scales of 128: as many rows as there is room for.
    Fp8(SortedRows),
    /// Codes and words.
    BlockScaled { x: QuantizedRows, hidden: QuantizedRows },
}

impl Rows {
    /// Room for `m` rows of projections that are `[2·I, K]` and `[K, I]`.
    pub fn room_for(forms: [Form; 2], m: usize, [inner, outer]: [usize; 2], device: &Device) -> Result<Rows> {
        Ok(match forms {
            [Form::BlockScaled(first), Form::BlockScaled(second)] => {
                Rows::BlockScaled { x: first.room_for(m, device)?, hidden: second.room_for(m, device)? }
            }
            _ => {
                let new = |dtype, dims: [usize; 2]| Tensor::zeros(dtype, &dims, device);
                Rows::Fp8(SortedRows::fp8(m, [inner, outer], DType::F32, new)?)
            }
        })
    }

    /// `y = down · (act(gate · x) * (up · x))` for the first `m` rows.
    pub fn run(
        &self,
        x: &Tensor,
        m: usize,
        weights: &Projections<'_>,
        y: &mut Tensor,
        (tokens, call): (&Tensor, &SortedCall<'_>),
    ) -> Result<()> {
        let forms = (weights.gate_up.operand.form, weights.down.operand.form);
        match (self, forms) {
            (Rows::BlockScaled { x: a, hidden }, (Form::BlockScaled(first), Form::BlockScaled(second))) => {
                let rows = [a.narrow(m)?, hidden.narrow(m)?];
                block_scaled((x, tokens), rows, [first, second], weights, y, call)
            }
            (Rows::Fp8(rows), _) => {
                let rows = rows.narrow(m)?;
                call.gather(x, tokens, &rows, ScaleFormat::F32)?;
                call.multiply(&weights.as_experts(), &rows, y, ScaleFormat::F32)
            }
            (Rows::BlockScaled { .. }, _) => unreachable!("rows are made for the projections"),
        }
    }
}

impl Projections<'_> {
    /// The same with codes and scales of 128x128.
    fn as_experts(&self) -> MoeExperts<'_> {
        let [gate_up, down] = [self.gate_up, self.down].map(|part| MoeProjection {
            weight: &part.operand.codes,
            scales: Some(&part.operand.scales),
            bias: part.bias.as_ref(),
        });
        MoeExperts { activation: self.activation, ..MoeExperts::swiglu(gate_up, down) }
    }

    /// What follows the first GEMM.
    fn gated(&self) -> Epilogue<'_> {
        let bias = self.gate_up.bias.as_ref();
        Epilogue { activation: self.activation, gated: true, bias, ..Default::default() }
    }
}

/// With scales that the tensor core applies: the same three kernels.
fn block_scaled(
    (x, tokens): (&Tensor, &Tensor),
    [mut a, hidden]: [QuantizedRows; 2],
    [first, second]: [BlockScaled; 2],
    weights: &Projections<'_>,
    y: &mut Tensor,
    call: &SortedCall<'_>,
) -> Result<()> {
    let SortedCall { groups, options } = *call;
    let grouping = Grouping::MGrouped(groups);
    first.gather(x, tokens, &mut a, &options.into())?;
    let b = &weights.gate_up.operand;
    let epilogue = Epilogue { alpha: first.alpha, ..weights.gated() };
    let (codes, words, format) = second.output(&hidden)?;
    let gemm = Gemm { grouping, ..first.gemm(&a, (&b.codes, &b.scales), &codes) };
    gemm.fused(&epilogue, Some((words, format))).run(options)?;

    let b = &weights.down.operand;
    let epilogue = Epilogue { alpha: second.alpha, bias: weights.down.bias.as_ref(), ..Default::default() };
    let gemm = Gemm { grouping, ..second.gemm(&hidden, (&b.codes, &b.scales), y) };
    let plain = epilogue.bias.is_none() && epilogue.alpha == 1.0;
    if plain { gemm } else { gemm.fused(&epilogue, None) }.run(options)
}
