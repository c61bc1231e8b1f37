//! Fused epilogues: what is done with accumulators, and whether the result is what the single steps give.

use std::str::FromStr;

use oxigemm::cast::{ScaleFormat, per_token_cast_to_fp8};
use oxigemm::check::{Fused, QuantizedRows};
use oxigemm::metrics::calc_diff;
use oxigemm::reference::Finish;
use oxigemm::{Activation, DType, Epilogue, FusedOutput, Gate, HeadSplits, Tensor};
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;

use crate::Failure;
use crate::case::AddendKind;
use crate::gemm::Gemm;
use crate::judge::{Effort, Verdict, worst};
use crate::memory::{POISON, ScaleOrder};
use crate::op::OperandTypes;

/// All activations.
pub const ACTIVATIONS: [Activation; 6] = [
    Activation::None,
    Activation::Relu,
    Activation::ReluSquared,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Silu,
];
/// The gate of gpt-oss.
pub const GPT_OSS: Gate = Gate { slope: 1.702, limit: 7.0, up_offset: 1.0 };

/// A fused epilogue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EpilogueSpec {
    /// The activation.
    pub activation: Activation,
    /// Whether it gates: B holds gates and then as many ups.
    pub gated: bool,
    /// What is done with gates and ups.
    pub gate: Gate,
    /// The type of a bias.
    pub bias: Option<DType>,
    /// What accumulators are multiplied with.
    pub alpha: f32,
    /// What C is multiplied with.
    pub beta: f32,
    /// Columns of D that are skipped.
    pub heads: Option<HeadSplits>,
    /// The scales of a quantized D.
    pub quantized: Option<(ScaleOrder, ScaleFormat)>,
}

/// A stage that a word names.
type Stage = (&'static str, fn(&mut EpilogueSpec));

/// Stages that a word alone names.
const STAGES: [Stage; 13] = [
    ("relu", |spec| spec.activation = Activation::Relu),
    ("relu2", |spec| spec.activation = Activation::ReluSquared),
    ("gelu", |spec| spec.activation = Activation::Gelu),
    ("gelu-tanh", |spec| spec.activation = Activation::GeluTanh),
    ("silu", |spec| spec.activation = Activation::Silu),
    ("swiglu", |spec| (spec.activation, spec.gated) = (Activation::Silu, true)),
    ("geglu", |spec| (spec.activation, spec.gated) = (Activation::Gelu, true)),
    ("gated", |spec| spec.gated = true),
    ("gpt-oss", |spec| (spec.activation, spec.gated, spec.gate) = (Activation::Silu, true, GPT_OSS)),
    ("bias", |spec| spec.bias = Some(DType::Bf16)),
    ("bias-f32", |spec| spec.bias = Some(DType::F32)),
    ("fp8", |spec| spec.quantized = Some((ScaleOrder::Mn, ScaleFormat::F32))),
    ("fp8-pow2", |spec| spec.quantized = Some((ScaleOrder::Mn, ScaleFormat::PowerOfTwo))),
];

impl EpilogueSpec {
    /// Nothing.
    pub const NONE: EpilogueSpec = EpilogueSpec {
        activation: Activation::None,
        gated: false,
        gate: Gate::PLAIN,
        bias: None,
        alpha: 1.0,
        beta: 1.0,
        heads: None,
        quantized: None,
    };

    /// The words that name stages.
    pub fn words() -> String {
        format!("{}, alpha=X, beta=X, heads=left/mid/right", STAGES.map(|(name, _)| name).join(", "))
    }

    /// The same for the library, with a bias if there is one.
    pub fn with<'a>(&self, bias: Option<&'a Tensor>) -> Epilogue<'a> {
        let EpilogueSpec { activation, gated, gate, alpha, beta, heads, .. } = *self;
        Epilogue { alpha, bias, activation, gated, gate, beta, heads }
    }

    /// D, with its scales where it is quantized.
    pub fn output<'a>(&self, d: &'a mut Tensor, scales: Option<&'a mut Tensor>) -> FusedOutput<'a> {
        match (scales, self.quantized) {
            (Some(scales), Some((_, format))) => FusedOutput::Fp8 { d, scales, format },
            _ => FusedOutput::Matrix(d),
        }
    }

    /// Columns that are computed of `n` rows of B.
    pub fn columns(&self, n: usize) -> usize {
        if self.gated { n / 2 } else { n }
    }

    /// The next number of B's rows that it takes, for some operands.
    pub fn fitting(&self, n: usize, types: &OperandTypes) -> usize {
        match (self.gated, self.heads, self.quantized) {
            // 128 gates share a scale, and 128 ups.
            (true, ..) if types.has_scales() => n.next_multiple_of(256),
            (true, _, Some(_)) => n.next_multiple_of(32),
            (true, ..) => n.next_multiple_of(2),
            (_, Some(heads), _) => n.next_multiple_of((heads.left + heads.right) as usize),
            (_, _, Some(_)) => n.next_multiple_of(16),
            _ => n,
        }
    }

    /// Where columns that are computed are in D, and how many D has.
    pub fn places(&self, columns: usize) -> (Vec<usize>, usize) {
        let Some(HeadSplits { left, mid, right }) = self.heads else {
            return ((0..columns).collect(), columns);
        };
        let [left, mid, computed] = [left, mid, left + right].map(|x| x as usize);
        let place = |j: usize| j + mid * (j / computed + usize::from(j % computed >= left));
        ((0..columns).map(place).collect(), columns + columns / computed * mid)
    }

    /// Rows of computed columns as rows of D, with poison in what heads skip.
    pub fn laid_out(&self, values: &[f32], columns: usize, d_type: DType) -> Vec<u8> {
        let ((places, width), size) = (self.places(columns), d_type.size());
        let mut bytes = vec![POISON; values.len() / columns.max(1) * width * size];
        for (i, element) in d_type.encode(values).chunks(size).enumerate() {
            let at = (i / columns * width + places[i % columns]) * size;
            bytes[at..at + size].copy_from_slice(element);
        }
        bytes
    }

    /// The same for some operands: a bias that is not FP32 has their 16-bit type.
    pub fn beside(self, types: &OperandTypes) -> EpilogueSpec {
        let bias = self.bias.map(|dtype| if dtype == DType::F32 { dtype } else { types.rounding });
        EpilogueSpec { bias, ..self }
    }

    /// What planning is told.
    pub(crate) fn fused(&self) -> Fused {
        Fused {
            fusion: if self.gated { Fusion::Gated } else { Fusion::Elementwise },
            activation: self.activation,
            bias: self.bias,
            bias_group: 0,
            heads: self.heads,
            quantized: self.quantized.map(|(_, format)| QuantizedRows {
                format,
                blocks: None,
                strides: [1, 1],
                slab: 0,
            }),
        }
    }
}

impl FromStr for EpilogueSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<EpilogueSpec, String> {
        let mut spec = EpilogueSpec::NONE;
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let number = |text: &str| match text.parse::<f32>() {
                Ok(number) if number.is_finite() => Ok(number),
                _ => Err(format!("{word}: expected a finite number")),
            };
            if let Some((_, stage)) = STAGES.iter().find(|(name, _)| *name == word) {
                stage(&mut spec);
                continue;
            }
            match word.split_once('=') {
                Some(("alpha", value)) => spec.alpha = number(value)?,
                Some(("beta", value)) => spec.beta = number(value)?,
                Some(("heads", value)) => {
                    let parts: Result<Vec<u32>, _> = value.split('/').map(str::parse).collect();
                    let [left, mid, right] = parts
                        .ok()
                        .and_then(|parts| <[u32; 3]>::try_from(parts).ok())
                        .ok_or_else(|| format!("{word}: expected heads=left/mid/right"))?;
                    if left.checked_add(right).is_none_or(|computed| computed == 0) {
                        let most = u32::MAX;
                        return Err(format!("{word}: expected left and right to be 1 to {most} together"));
                    }
                    spec.heads = Some(HeadSplits { left, mid, right });
                }
                _ => {
                    return Err(format!("{word} is none of {}", EpilogueSpec::words()));
                }
            }
        }
        Ok(spec)
    }
}

impl Gemm {
    /// Compares with the single steps, for the accumulators that were computed.
    pub(crate) fn judge_fused(&self, accumulators: &[Vec<f32>], effort: Effort) -> Result<Verdict, Failure> {
        let (case, epilogue) = (self.case(), self.case().fused());
        let EpilogueSpec { activation, gated, gate, alpha, beta, .. } = epilogue;
        let bias = self.bias.as_ref().map(Tensor::to_vec_f32).transpose()?;
        // Groups may share one.
        let own = self.bias.as_ref().is_some_and(|bias| bias.dims().len() == 2);
        let (mut expected, mut found, mut scales) = (Vec::new(), Vec::new(), Vec::new());
        for (group, data) in self.data.groups.iter().enumerate() {
            let [rows, n, _] = data.dims;
            if rows * n == 0 {
                continue;
            }
            let values: Vec<f64> = accumulators[group].iter().copied().map(f64::from).collect();
            let bias = bias.as_ref().map(|bias| &bias[if own { group * n } else { 0 }..][..n]);
            let c = data.c.as_deref().filter(|_| case.addend != AddendKind::None);
            expected.extend(Finish { alpha, beta, bias, activation, gated, gate }.apply(&values, n, c)?);
            found.extend(self.result(group)?);
            if let Some(of_d) = &self.d_scales {
                scales.extend(self.rows_of(of_d, group)?.to_vec_f32()?);
            }
        }
        let quantized = epilogue.quantized.map(|(_, format)| (scales.as_slice(), format));
        let rows = FusedRows { columns: epilogue.columns(case.n), d_type: case.d_type, quantized };
        Ok(rows.judge(&expected, found, effort.strict))
    }
}

/// Rows of a result with a fused epilogue.
struct FusedRows<'a> {
    /// Columns that were computed.
    columns: usize,
    /// The type of D, where it is not quantized.
    d_type: DType,
    /// The scales of all rows and what they may be, where it is.
    quantized: Option<(&'a [f32], ScaleFormat)>,
}

impl FusedRows<'_> {
    /// Compares what was found, of which the codes of a quantized result are not yet scaled, with the single steps.
    fn judge(&self, expected: &[f64], mut found: Vec<f32>, strict: bool) -> Verdict {
        let columns = self.columns.max(1);
        let blocks = columns.div_ceil(128);
        let scale =
            |i: usize| self.quantized.map(|(scales, _)| scales[i / columns * blocks + i % columns / 128]);
        for (i, value) in found.iter_mut().enumerate() {
            *value *= scale(i).unwrap_or(1.0);
        }
        let largest = expected.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
        // One rounding to the type of D, and what FP32 loses.
        let lost = if strict && self.quantized.is_some() { 1e-6 } else { 1e-6 * largest + 1e-5 };
        let allowed = |i: usize, x: f64| match (scale(i), self.d_type) {
            // Half of the distance of e4m3 numbers, in normal ones or in the smallest. A scale that is a power of two
            // may be the next one, where the largest element is near to one.
            (Some(scale), _) => (x.abs() / 16.0).max(f64::from(scale) * 2f64.powi(-10)) * 1.001 + lost,
            (None, DType::F32) if strict => 1e-5 * x.abs() + lost,
            (None, DType::F32) => 3e-5 * x.abs() + lost,
            (None, DType::F16) => (2f64.powi(-11) + 3e-5) * x.abs() + lost,
            (None, _) => x.abs() / 256.0 + lost,
        };
        let off = |i: usize| (f64::from(found[i]) - expected[i]).abs() / allowed(i, expected[i]);
        let worst_element = worst((0..expected.len()).map(off));
        let diff = calc_diff(&found, expected);
        let right = worst_element <= 1.0
            && self.scales_use_their_range(&found)
            && (!strict || self.scales_are_those_of(expected));
        Verdict { diff, diff_unquantized: diff, worst_element, rows: expected.len() / columns, right }
    }

    /// Whether no scale is larger than it has to be: the largest code of its block is near the largest there is.
    fn scales_use_their_range(&self, found: &[f32]) -> bool {
        let Some((scales, format)) = self.quantized else { return true };
        let least = if format == ScaleFormat::F32 { 440.0 } else { 208.0 };
        let columns = self.columns.max(1);
        let blocks = columns.div_ceil(128);
        found.chunks(columns).enumerate().all(|(row, values)| {
            values.chunks(128).enumerate().all(|(block, values)| {
                let scale = scales[row * blocks + block];
                let largest = values.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
                largest >= least * scale || scale <= 1.1e-4 / 448.0
            })
        })
    }

    /// Whether scales are those that the single steps give; of powers of two, or the next one.
    fn scales_are_those_of(&self, expected: &[f64]) -> bool {
        let Some((scales, format)) = self.quantized else { return true };
        let columns = self.columns.max(1);
        let values: Vec<f32> = expected.iter().map(|x| *x as f32).collect();
        let exact = per_token_cast_to_fp8(&values, expected.len() / columns, self.columns, format);
        exact.is_ok_and(|exact| {
            scales.iter().zip(&exact.scales).all(|(found, exact)| {
                let close = (found / exact - 1.0).abs() < 1e-4;
                close || (format == ScaleFormat::PowerOfTwo && [0.5, 2.0].contains(&(found / exact)))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_make_an_epilogue() {
        let spec: EpilogueSpec = "swiglu,bias,alpha=0.5,fp8-pow2".parse().unwrap();
        assert_eq!(
            spec,
            EpilogueSpec {
                activation: Activation::Silu,
                gated: true,
                bias: Some(DType::Bf16),
                alpha: 0.5,
                quantized: Some((ScaleOrder::Mn, ScaleFormat::PowerOfTwo)),
                ..EpilogueSpec::NONE
            }
        );
        let heads: EpilogueSpec = "heads=128/64/128".parse().unwrap();
        assert_eq!(heads.places(512).1, 512 + 2 * 64);
        for wrong in ["swish", "alpha=x", "heads=1/2"] {
            assert!(wrong.parse::<EpilogueSpec>().unwrap_err().contains(wrong.split('=').next().unwrap()));
        }
    }
}
