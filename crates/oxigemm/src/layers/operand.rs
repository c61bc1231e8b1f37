//! Weights as an operand of a GEMM: what a device multiplies, made of what a checkpoint holds.

use rayon::prelude::*;

use super::memory::Part;
use super::recipe::{LayerOptions, Recipe, Strategy};
use super::weight::{MX_BLOCK, QuantizedWeight, WeightScales};
use super::widen::widen_mxfp4;
use crate::cast::{Blocks, ScaleFormat, decode_e2m1};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::parallel::THREADS;
use crate::tensor::dtype::E4M3_VALUES;
use crate::tensor::{DType, Tensor};

use oxigemm_kernels::gemm::params::ScaleBlock;

const BLOCK: [usize; 2] = [128, 128];

/// What became of weights on the way to a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conversion {
    /// What they are quantized to.
    pub recipe: Recipe,
    /// How they are multiplied.
    pub strategy: Strategy,
    /// Rows and columns that share a scale on the device; all of them for BF16.
    pub block: [usize; 2],
    /// How many values were rounded: 0 where the device multiplies what the checkpoint holds.
    pub changed: usize,
    /// The root of the mean square of what was lost, by that of the values; 0 where nothing was.
    pub error: f64,
}

/// What the weights are multiplied for: GEMMs of groups have fewer granularities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Linear,
    Experts,
}

/// How a GEMM reads weights.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// e4m3 with f32 scales.
    Fp8,
    /// BF16, to be multiplied by a factor.
    Bf16 { alpha: f32 },
    /// Scales in words, which the tensor core applies.
    BlockScaled(BlockScaled),
}

/// Weights whose scales the tensor core applies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockScaled {
    /// Elements of K that share a scale.
    pub block: ScaleBlock,
    /// Rows that share a scale.
    pub down: usize,
    /// K, and K with the zeros behind it that make rows TMA can load.
    pub k: usize,
    pub padded: usize,
    /// Rows of scales of a matrix.
    pub rows: usize,
    /// A factor of all products.
    pub alpha: f32,
}

/// Weights as the kernels read them, still on the host: types, dimensions and bytes.
pub(crate) struct Converted {
    pub form: Form,
    /// `[G, N, K]`.
    pub codes: (DType, [usize; 3], Vec<u8>),
    /// `[G, rows, columns]`, or words `[G, columns, rows]`; nothing for BF16.
    pub scales: (DType, [usize; 3], Vec<u8>),
}

/// Weights as the kernels read them, on a device.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub form: Form,
    /// `[G, N, K]`.
    pub codes: Tensor,
    /// `[G, rows, columns]`, or words of four columns.
    pub scales: Tensor,
}

impl Converted {
    /// What goes into the allocation of a layer.
    pub fn parts(&self) -> [Part<'_>; 2] {
        [&self.codes, &self.scales].map(|(dtype, dims, bytes)| Part { dtype: *dtype, dims, bytes })
    }

    /// The operand that consists of these parts.
    pub fn on_device(&self, codes: Tensor, scales: Tensor) -> Result<Operand> {
        let scales = match self.form {
            Form::BlockScaled(scaled) => scales.transpose(1, 2)?.narrow(1, 0, scaled.rows)?,
            Form::Fp8 | Form::Bf16 { .. } => scales,
        };
        Ok(Operand { form: self.form, codes, scales })
    }
}

impl Operand {
    /// Bytes of codes and scales, without the gaps between them.
    pub fn bytes(&self) -> usize {
        [&self.codes, &self.scales].map(|part| part.len() * part.dtype().size()).iter().sum()
    }
}

impl QuantizedWeight {
    /// Codes and scales for the GEMMs of a device.
    pub(crate) fn convert(
        &self,
        device: &Device,
        purpose: Use,
        options: &LayerOptions,
    ) -> Result<(Converted, Conversion)> {
        let strategy = self.recipe.runs_on(device, options)?;
        match strategy {
            Strategy::Fp8 | Strategy::Fp8Scales32 => match self.block_as_it_is(purpose) {
                Some(block) => Ok((self.as_it_is(block), self.report(strategy, block, 0, 0.0))),
                None => Ok(self.requantize()),
            },
            Strategy::Widen => {
                let mut block = BLOCK;
                let mut wide = widen_mxfp4(self, block)?;
                if wide.changed > 0 && purpose == Use::Linear {
                    block = [1, MX_BLOCK];
                    wide = widen_mxfp4(self, block)?;
                }
                let error = match wide.changed {
                    0 => 0.0,
                    _ => self.error_of(&wide.codes, &wide.scales, block),
                };
                let report = self.report(strategy, block, wide.changed, error);
                Ok((self.fp8(wide.codes, &wide.scales, block), report))
            }
            Strategy::Requantize => Ok(self.requantize()),
            Strategy::BlockScaled => {
                let (converted, changed, error) = self.block_scaled(purpose);
                let Form::BlockScaled(scaled) = converted.form else { unreachable!("it has scales") };
                let block = [scaled.down, scaled.block.size() as usize];
                Ok((converted, self.report(strategy, block, changed, error)))
            }
            Strategy::Bf16 if purpose == Use::Linear => self.to_bf16(),
            Strategy::Bf16 => Err(Error::DType {
                argument: "weight",
                expected: "weights that run in FP8, as experts do: `Nvfp4Weights::Requantize`".to_owned(),
                found: "`Nvfp4Weights::Bf16`".to_owned(),
            }),
        }
    }

    fn fp8(&self, codes: Vec<u8>, scales: &[f32], [down, across]: [usize; 2]) -> Converted {
        let [groups, n, k] = self.dims;
        let dims = [groups, n.div_ceil(down), k.div_ceil(across)];
        Converted {
            form: Form::Fp8,
            codes: (DType::E4m3, self.dims, codes),
            scales: (DType::F32, dims, DType::F32.encode(scales)),
        }
    }

    fn report(&self, strategy: Strategy, block: [usize; 2], changed: usize, error: f64) -> Conversion {
        Conversion { recipe: self.recipe, strategy, block, changed, error }
    }

    /// The block of scales that a GEMM reads these e4m3 codes with, if one does.
    fn block_as_it_is(&self, purpose: Use) -> Option<[usize; 2]> {
        let [_, n, k] = self.dims;
        let [down, across] = self.scales.block();
        let (rows, columns) = (down >= n, across >= k);
        match &self.scales {
            WeightScales::F32 { .. } if (rows || down == 128) && (columns || across == 128) => Some(BLOCK),
            WeightScales::F32 { .. } if down == 1 && (columns || across == 128) => Some([1, 128]),
            WeightScales::E8m0 { .. } if across == MX_BLOCK && (down == 1 || down == 32) => Some([down, 32]),
            _ => None,
        }
        .filter(|block| purpose == Use::Linear || *block == BLOCK)
    }

    /// The codes as they are, with a scale for each block: that of the larger block that holds it.
    fn as_it_is(&self, [rows, columns]: [usize; 2]) -> Converted {
        let ([groups, n, k], [down, across]) = (self.dims, self.scales.block());
        let mut scales = Vec::with_capacity(groups * n.div_ceil(rows) * k.div_ceil(columns));
        for group in 0..groups {
            for row in (0..n).step_by(rows) {
                for column in (0..k).step_by(columns) {
                    let band = group * n.div_ceil(down) + row / down;
                    let at = band * k.div_ceil(across) + column / across;
                    scales.push(self.scales.value(group, at) as f32);
                }
            }
        }
        self.fp8(self.codes.clone(), &scales, [rows, columns])
    }

    fn requantize(&self) -> (Converted, Conversion) {
        let [_, n, k] = self.dims;
        let blocks = Blocks { rows: 128, columns: 128, code: DType::E4m3, format: ScaleFormat::F32 };
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for matrix in self.dequantize().chunks((n * k).max(1)) {
            let (new_codes, new_scales) = blocks.cast(matrix, n, k);
            codes.extend(new_codes);
            scales.extend(new_scales);
        }
        let (changed, error) = self.difference(|group, row, column| {
            let at = (group * n.div_ceil(128) + row / 128) * k.div_ceil(128) + column / 128;
            f64::from(E4M3_VALUES[usize::from(codes[(group * n + row) * k + column])]) * f64::from(scales[at])
        });
        let report = self.report(Strategy::Requantize, BLOCK, changed, error);
        (self.fp8(codes, &scales, BLOCK), report)
    }

    fn error_of(&self, codes: &[u8], scales: &[f32], [down, across]: [usize; 2]) -> f64 {
        let [_, n, k] = self.dims;
        let of = |group, row, column| {
            let at = (group * n.div_ceil(down) + row / down) * k.div_ceil(across) + column / across;
            f64::from(E4M3_VALUES[usize::from(codes[(group * n + row) * k + column])]) * f64::from(scales[at])
        };
        self.difference(of).1
    }

    /// How many values others differ from these, and by how much.
    pub(super) fn difference(&self, other: impl Fn(usize, usize, usize) -> f64 + Sync) -> (usize, f64) {
        let [groups, n, k] = self.dims;
        let row = |row: usize| {
            let mut sums = (0usize, 0.0, 0.0);
            for column in 0..k {
                let [group, row] = [row / n, row % n];
                let (exact, new) = (self.value([group, row, column]), other(group, row, column));
                sums.0 += usize::from(exact != new && !(exact.is_nan() && new.is_nan()));
                sums.1 += (exact - new) * (exact - new);
                sums.2 += exact * exact;
            }
            sums
        };
        let rows: Vec<_> = THREADS.run(|_| (0..groups * n).into_par_iter().map(row).collect());
        // In the order of rows, so that the sum is the same each time.
        let (changed, lost, all) = rows.iter().fold((0, 0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2));
        (changed, if changed == 0 { 0.0 } else { (lost / all).sqrt() })
    }

    /// Each code by its scale of 16, which BF16 holds exactly; the scale of all is the factor.
    fn to_bf16(&self) -> Result<(Converted, Conversion)> {
        let ([_, n, k], WeightScales::Nvfp4 { values: scales, tensor }) = (self.dims, &self.scales) else {
            return Err(Error::DType {
                argument: "weight",
                expected: "nvfp4 weights".to_owned(),
                found: format!("{} weights", self.recipe),
            });
        };
        let blocks = k.div_ceil(16);
        let scaled = |at: usize| {
            let code = decode_e2m1(self.codes[at / 2] >> (at % 2 * 4) & 15);
            code * E4M3_VALUES[usize::from(scales[at / k * blocks + at % k / 16])]
        };
        let values: Vec<f32> = (0..n * k).map(scaled).collect();
        let converted = Converted {
            form: Form::Bf16 { alpha: tensor[0] },
            codes: (DType::Bf16, self.dims, DType::Bf16.encode(&values)),
            scales: (DType::F32, [1, 0, 0], Vec::new()),
        };
        Ok((converted, self.report(Strategy::Bf16, [n, k], 0, 0.0)))
    }
}
