//! The two GEMMs of experts, and the rows that go into them: gathered and quantized tokens, and what is between.

use super::activations::QuantizedRows;
use super::operand::{BlockScaled, Conversion, Form, Operand};
use crate::cast::ScaleFormat;
use crate::check::gemm::tensors::epilogue::{Epilogue, FusedOutput};
use crate::check::gemm::tensors::groups::RowGroups;
use crate::check::gemm::tensors::{Addend, Gemm, Grouping};
use crate::device::Device;
use crate::error::Result;
use crate::gemm::GemmOptions;
use crate::gemm::names::m_grouped_fp8_gemm_nt_fused;
use crate::quantize::gather_quantize;
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

/// What the kernels of a call are told besides.
pub(super) struct Call<'a> {
    /// The token of each row.
    pub tokens: &'a Tensor,
    pub groups: RowGroups<'a>,
    pub options: &'a GemmOptions,
}

/// Rows that go into the GEMMs: tokens, and what is between.
#[derive(Debug)]
pub(super) enum Rows {
    /// Codes and f32 scales of 128.
    Fp8 { x: [Tensor; 2], hidden: [Tensor; 2] },
    /// Codes and words.
    BlockScaled { x: QuantizedRows, hidden: QuantizedRows },
}

impl Rows {
    /// Room for `m` rows of projections that are `[2·I, K]` and `[K, I]`.
    pub fn room_for(forms: [Form; 2], m: usize, [inner, outer]: [usize; 2], device: &Device) -> Result<Rows> {
        let new = |dtype, columns: usize| Tensor::zeros(dtype, &[m, columns], device);
        Ok(match forms {
            [Form::BlockScaled(first), Form::BlockScaled(second)] => {
                Rows::BlockScaled { x: first.room_for(m, device)?, hidden: second.room_for(m, device)? }
            }
            _ => Rows::Fp8 {
                x: [new(DType::E4m3, outer)?, new(DType::F32, outer.div_ceil(128))?],
                hidden: [new(DType::E4m3, inner)?, new(DType::F32, inner / 128)?],
            },
        })
    }

    /// `y = down · (act(gate · x) * (up · x))` for the first `m` rows.
    pub fn run(
        &self,
        x: &Tensor,
        m: usize,
        weights: &Projections<'_>,
        y: &mut Tensor,
        call: &Call<'_>,
    ) -> Result<()> {
        let forms = (weights.gate_up.operand.form, weights.down.operand.form);
        match (self, forms) {
            (Rows::BlockScaled { x: a, hidden }, (Form::BlockScaled(first), Form::BlockScaled(second))) => {
                let rows = [a.narrow(m)?, hidden.narrow(m)?];
                block_scaled(x, rows, [first, second], weights, y, call)
            }
            (Rows::Fp8 { x: a, hidden }, _) => {
                let [a, sfa, h, sfh] = [&a[0], &a[1], &hidden[0], &hidden[1]].map(|x| x.narrow(0, 0, m));
                fp8(x, [a?, sfa?], [h?, sfh?], weights, y, call)
            }
            (Rows::BlockScaled { .. }, _) => unreachable!("rows are made for the projections"),
        }
    }
}

impl Projections<'_> {
    /// What follows the first GEMM.
    fn gated(&self) -> Epilogue<'_> {
        let bias = self.gate_up.bias.as_ref();
        Epilogue { activation: self.activation, gated: true, bias, ..Default::default() }
    }
}

/// With f32 scales: three kernels, of which the first GEMM quantizes what is between.
fn fp8(
    x: &Tensor,
    [mut a, mut sfa]: [Tensor; 2],
    [mut h, mut sfh]: [Tensor; 2],
    weights: &Projections<'_>,
    y: &mut Tensor,
    call: &Call<'_>,
) -> Result<()> {
    let Call { tokens, groups, options } = *call;
    gather_quantize(x, tokens, &mut a, &mut sfa, ScaleFormat::F32, &options.into())?;
    let b = &weights.gate_up.operand;
    let b = (&b.codes, &b.scales);
    let d = FusedOutput::Fp8 { d: &mut h, scales: &mut sfh, format: ScaleFormat::F32 };
    let epilogue = weights.gated();
    m_grouped_fp8_gemm_nt_fused((&a, &sfa), b, Addend::None, d, groups, &epilogue, options)?;

    let Operand { codes, scales, .. } = &weights.down.operand;
    let grouping = Grouping::MGrouped(groups);
    let gemm = Gemm { grouping, ..Gemm::fp8((&h, &sfh), (codes, scales), y) };
    let epilogue = Epilogue { bias: weights.down.bias.as_ref(), ..Default::default() };
    if epilogue.bias.is_some() { gemm.fused(&epilogue, None) } else { gemm }.run(options)
}

/// With scales that the tensor core applies: the same three kernels.
fn block_scaled(
    x: &Tensor,
    [mut a, hidden]: [QuantizedRows; 2],
    [first, second]: [BlockScaled; 2],
    weights: &Projections<'_>,
    y: &mut Tensor,
    call: &Call<'_>,
) -> Result<()> {
    let Call { tokens, groups, options } = *call;
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
