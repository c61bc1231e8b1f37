//! Fused epilogues, in `f64`.

use oxigemm_kernels::gemm::epilogue::{Activation, Gate};
use std::f64::consts::{FRAC_1_PI, PI, SQRT_2};

use super::quantize::SourceTensor;
use crate::cast::{ScaleFormat, per_token_cast_to_fp8};
use crate::check::{BlockFormat, Granularity, HeadSplits, OutputFormat};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Fused epilogue: see [`Epilogue`](crate::Epilogue).
///
/// ```
/// use oxigemm::reference::Finish;
/// use oxigemm::{Activation, Gate};
///
/// // Two rows of two gates and two ups.
/// let (activation, gate) = (Activation::Relu, Gate::default());
/// let finish = Finish { alpha: 1.0, beta: 1.0, bias: None, activation, gated: true, gate };
/// let sums = [1.0, -2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
/// assert_eq!(finish.apply(&sums, 4, None)?, [3.0, 0.0, 35.0, 48.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Finish<'a> {
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of the addend.
    pub beta: f32,
    /// Bias: one number for each column of the product.
    pub bias: Option<&'a [f32]>,
    /// Activation of an accumulator, or of a gate.
    pub activation: Activation,
    /// Whether the first half of the columns are gates.
    pub gated: bool,
    /// What is done with gates and ups.
    pub gate: Gate,
}

impl Finish<'_> {
    /// The result for the rows of a product with `n` columns, and for as many rows of C, if there is one.
    ///
    /// # Errors
    /// [`Error::Shape`] if lengths do not fit each other.
    pub fn apply(&self, product: &[f64], n: usize, c: Option<&[f32]>) -> Result<Vec<f64>> {
        let columns = if self.gated { n / 2 } else { n };
        let lengths = [
            ("product", product.len().is_multiple_of(n.max(1))),
            ("bias", self.bias.is_none_or(|b| b.len() == n)),
        ];
        let of_c = c.is_none_or(|c| n > 0 && c.len() == product.len() / n * columns);
        if let Some((argument, _)) = lengths.into_iter().chain([("c", of_c)]).find(|(_, fits)| !fits) {
            return Err(Error::Shape {
                argument,
                expected: format!("what {n} columns of a product need"),
                found: format!("{} sums", product.len()),
            });
        }
        let bias = |column: usize| self.bias.map_or(0.0, |bias| f64::from(bias[column]));
        let mut result = Vec::with_capacity(product.len());
        for sums in product.chunks(n.max(1)) {
            let scaled = |column: usize| f64::from(self.alpha) * sums[column] + bias(column);
            result.extend((0..columns).map(|column| {
                if !self.gated {
                    return activate(self.activation, 1.0, scaled(column));
                }
                let Gate { slope, limit, up_offset } = self.gate;
                let (limit, up) = (f64::from(limit), scaled(column + columns));
                let gate = below(scaled(column), limit);
                let up = -below(-below(up, limit), limit);
                activate(self.activation, f64::from(slope), gate) * (up + f64::from(up_offset))
            }));
        }
        if let Some(c) = c {
            let beta = f64::from(self.beta);
            result.iter_mut().zip(c).for_each(|(x, &c)| *x += beta * f64::from(c));
        }
        Ok(result)
    }
}

/// The smaller of the two, or NaN.
fn below(x: f64, limit: f64) -> f64 {
    if x > limit { limit } else { x }
}

fn activate(activation: Activation, slope: f64, x: f64) -> f64 {
    // NaN stays.
    let positive = if x < 0.0 { 0.0 } else { x };
    match activation {
        Activation::None => x,
        Activation::Relu => positive,
        Activation::ReluSquared => positive * positive,
        Activation::Gelu => x * 0.5 * erfc(-x / SQRT_2),
        Activation::GeluTanh => {
            x / (1.0 + (-2.0 * (2.0 * FRAC_1_PI).sqrt() * (x + 0.044715 * x.powi(3))).exp())
        }
        Activation::Silu => x / (1.0 + (-slope * x).exp()),
    }
}

/// `1 - erf(x)`: by the power series of erf near 0, by the continued fraction of erfc elsewhere.
fn erfc(x: f64) -> f64 {
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    if x < 2.0 {
        let (mut term, mut sum) = (x, x);
        for n in 1..60 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return 1.0 - 2.0 / PI.sqrt() * sum;
    }
    let fraction = (1..=80).rev().fold(x, |behind, n| x + f64::from(n) / 2.0 / behind);
    (-x * x).exp() / PI.sqrt() / fraction
}

/// Output of an epilogue: a matrix of D, its scales where it is quantized, and the columns that are skipped.
pub(super) struct EpilogueOutput {
    pub d: Tensor,
    pub scales: Option<(Tensor, OutputFormat)>,
    pub heads: Option<HeadSplits>,
}

impl EpilogueOutput {
    /// Stores the result of an epilogue: rows of so many columns. A quantized one is rounded to `f32` before it is
    /// cast.
    pub fn store(mut self, result: &[f64], [rows, columns]: [usize; 2]) -> Result<()> {
        let Some((mut scales, format)) = self.scales else {
            for (first, width, mut part) in parts(&self.d, self.heads)? {
                let values: Vec<f64> =
                    (0..rows).flat_map(|row| &result[row * columns + first..][..width]).copied().collect();
                part.write_bytes(&part.dtype().encode_f64(&values))?;
            }
            return Ok(());
        };
        let values: Vec<f32> = result.iter().map(|x| *x as f32).collect();
        let format = match format {
            OutputFormat::Blocks(format) => format,
            OutputFormat::Fp8(format) => {
                let cast = per_token_cast_to_fp8(&values, rows, columns, format)?;
                self.d.write_bytes(&cast.codes)?;
                return scales.write_f32(&cast.scales);
            }
        };
        let (x, d) = (Tensor::from_slice(&values, &[rows, columns], &Device::Cpu)?, &mut self.d);
        let granularity = match format {
            BlockFormat::Nvfp4 { tensor_scale } => {
                return super::nvfp4::quantize(&x, d, &mut scales, Some(tensor_scale)).map(drop);
            }
            BlockFormat::Fp8 => Granularity::PerToken,
            BlockFormat::Mxfp8 | BlockFormat::Mxfp4 => Granularity::PerGroup32,
        };
        let (source, format) = (SourceTensor::Matrix, ScaleFormat::PowerOfTwo);
        super::quantize::quantize(&x, source, d, &mut scales, granularity, format)
    }
}

/// The parts of D that are computed: of each the first column of the product, its width, and itself.
fn parts(d: &Tensor, heads: Option<HeadSplits>) -> Result<Vec<(usize, usize, Tensor)>> {
    let width = d.dims()[1];
    let Some(HeadSplits { left, mid, right }) = heads else { return Ok(vec![(0, width, d.clone())]) };
    let [left, mid, right] = [left, mid, right].map(|x| x as usize);
    let mut all = Vec::new();
    for head in 0..width / (left + mid + right) {
        let (from, to) = (head * (left + right), head * (left + mid + right));
        for (from, to, width) in [(from, to, left), (from + left, to + left + mid, right)] {
            if width > 0 {
                all.push((from, width, d.narrow(1, to, width)?));
            }
        }
    }
    Ok(all)
}

/// The values of a matrix like D, without the columns that are skipped.
pub(super) fn computed(x: &Tensor, heads: Option<HeadSplits>) -> Result<Vec<f32>> {
    let parts = parts(x, heads)?;
    let columns: usize = parts.iter().map(|(_, width, _)| width).sum();
    let rows = x.dims()[0];
    let mut values = vec![0.0; rows * columns];
    for (first, width, part) in parts {
        let part = part.to_vec_f32()?;
        for (row, part) in part.chunks(width).enumerate() {
            values[row * columns + first..][..width].copy_from_slice(part);
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_has_its_known_values() {
        for (x, value) in [
            (0.0, 1.0),
            (0.5, 0.479_500_122_186_953_5),
            (1.0, 0.157_299_207_050_285_13),
            (1.999_999, 0.004_677_755_636_0),
            (2.0, 0.004_677_734_981_047_266),
            (4.0, 1.541_725_790_028_002e-8),
            (-1.0, 1.842_700_792_949_715),
        ] {
            let found: f64 = erfc(x);
            assert!((found / value - 1.0).abs() < 1e-8, "erfc({x}) is {found} and not {value}");
        }
    }
}
