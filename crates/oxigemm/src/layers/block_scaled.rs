//! Weights for a tensor core that applies scales: codes as a checkpoint has them, and scales as words of four along K.

use rayon::prelude::*;

use super::operand::{BlockScaled, Converted, Form, Use};
use super::recipe::Recipe;
use super::weight::{MX_BLOCK, QuantizedWeight, WeightScales, e8m0};
use crate::cast::{Blocks, ScaleFormat, ceil_to_power_of_two};
use crate::error::Result;
use crate::parallel::THREADS;
use crate::tensor::dtype::{E4M3_VALUES, encode_e4m3};
use crate::tensor::{DType, Tensor};

use oxigemm_kernels::gemm::params::ScaleBlock;

/// Scales in a word.
const PER_WORD: usize = 4;
/// Rows of words begin at multiples of so many, as TMA reads them.
const PITCH: usize = 4;
/// The exponent of 1.
const ONE: u8 = 127;

/// Codes and a byte for each scale, still without gaps.
struct Bytes {
    codes: Vec<u8>,
    scales: Vec<u8>,
    block: ScaleBlock,
    /// Rows that share a scale.
    down: usize,
    /// A factor of all.
    alpha: f32,
    /// Values that are not those of the checkpoint.
    changed: usize,
    error: f64,
}

impl QuantizedWeight {
    /// Codes and scales for a tensor core that applies the scales, how many values changed, and by how much.
    ///
    /// | weights | become |
    /// |---|---|
    /// | FP8, scales of 128x128, 1x128, rows or the matrix | the same, rounded again where a scale is no power of two |
    /// | FP8, one scale for all | the same; a scale that is no power of two is a factor |
    /// | FP8, any other blocks | rounded to scales of 128x128 |
    /// | MXFP8, MXFP4 | the same, with scales of 1x32 |
    /// | NVFP4 | the same; of experts MXFP8, rounded, as the scale of all is one of each expert |
    pub(crate) fn block_scaled(&self, purpose: Use) -> (Converted, usize, f64) {
        let bytes = match (&self.scales, self.recipe) {
            (WeightScales::F32 { block, values }, _) => self.fp8_bytes(*block, values),
            (WeightScales::E8m0 { block, values }, _) => {
                Bytes { scales: self.by_row(block[0], values), ..self.as_they_are(ScaleBlock::Of32) }
            }
            (WeightScales::Nvfp4 { values, tensor }, _) if purpose == Use::Linear => {
                Bytes { scales: values.clone(), alpha: tensor[0], ..self.as_they_are(ScaleBlock::Of16) }
            }
            (WeightScales::Nvfp4 { .. }, _) => self.rounded([1, MX_BLOCK]),
        };
        let (changed, error) = (bytes.changed, bytes.error);
        (self.laid_out(bytes), changed, error)
    }

    fn as_they_are(&self, block: ScaleBlock) -> Bytes {
        let codes = self.codes.clone();
        Bytes { codes, scales: Vec::new(), block, down: 1, alpha: 1.0, changed: 0, error: 0.0 }
    }

    /// Scales of several rows, one for each row.
    fn by_row(&self, down: usize, values: &[u8]) -> Vec<u8> {
        let [groups, n, k] = self.dims;
        let (bands, columns) = (n.div_ceil(down), k.div_ceil(MX_BLOCK));
        let band = |group: usize, row: usize| (group * bands + row / down) * columns;
        (0..groups)
            .flat_map(|group| (0..n).flat_map(move |row| &values[band(group, row)..][..columns]))
            .copied()
            .collect()
    }

    fn fp8_bytes(&self, [down, across]: [usize; 2], values: &[f32]) -> Bytes {
        let [groups, n, k] = self.dims;
        let (all_rows, all_columns) = (down >= n, across >= k);
        let block_rows = match (all_rows || down == 128, down == 1, all_columns || across == 128) {
            (true, _, true) => 128,
            (false, true, true) => 1,
            _ => return self.rounded([128, 128]),
        };
        let (bands, columns) = (n.div_ceil(block_rows), k.div_ceil(128));
        let scale = |group: usize, band: usize, column: usize| {
            let (row, column) = (band * block_rows / down, column * 128 / across);
            values[(group * n.div_ceil(down) + row) * k.div_ceil(across) + column]
        };
        let of_all = all_rows && all_columns && values.iter().all(|x| *x == values[0]);
        let factor = values.first().filter(|x| of_all && x.is_normal() && **x > 0.0 && !is_power_of_two(**x));
        let base = self.as_they_are(ScaleBlock::Of128);
        if let Some(alpha) = factor {
            let scales = vec![ONE; groups * bands * columns];
            return Bytes { scales, down: block_rows, alpha: *alpha, ..base };
        }
        let places = (0..groups).flat_map(|g| (0..bands).map(move |b| (g, b)));
        let scales: Vec<f32> = places
            .flat_map(|(g, b)| (0..columns).map(move |c| (g, b, c)))
            .map(|(g, b, c)| scale(g, b, c))
            .collect();
        let exponents: Vec<u8> = scales.iter().map(|scale| exponent(*scale)).collect();
        let mut codes = base.codes;
        let exact = scales.iter().all(|scale| is_power_of_two(*scale));
        if !exact {
            let at = |row: usize| (row / n * bands + row % n / block_rows) * columns;
            THREADS.run(|_| {
                codes.par_chunks_mut(k.max(1)).enumerate().for_each(|(row, codes)| {
                    for (column, codes) in codes.chunks_mut(128).enumerate() {
                        round_again(codes, scales[at(row) + column], exponents[at(row) + column]);
                    }
                });
            });
        }
        let mut bytes = Bytes {
            codes,
            scales: exponents,
            block: ScaleBlock::Of128,
            down: block_rows,
            alpha: 1.0,
            changed: 0,
            error: 0.0,
        };
        if !exact {
            (bytes.changed, bytes.error) = self.lost(&bytes);
        }
        bytes
    }

    /// All values rounded once more, with powers of two for such blocks.
    fn rounded(&self, [down, across]: [usize; 2]) -> Bytes {
        let [_, n, k] = self.dims;
        let blocks =
            Blocks { rows: down, columns: across, code: DType::E4m3, format: ScaleFormat::PowerOfTwo };
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for matrix in self.dequantize().chunks((n * k).max(1)) {
            let (new_codes, new_scales) = blocks.cast(matrix, n, k);
            codes.extend(new_codes);
            scales.extend(new_scales.into_iter().map(exponent));
        }
        let block = if across == MX_BLOCK { ScaleBlock::Of32 } else { ScaleBlock::Of128 };
        let mut bytes = Bytes { codes, scales, block, down, alpha: 1.0, changed: 0, error: 0.0 };
        (bytes.changed, bytes.error) = self.lost(&bytes);
        bytes
    }

    fn lost(&self, bytes: &Bytes) -> (usize, f64) {
        let ([_, n, k], across) = (self.dims, bytes.block.size() as usize);
        self.difference(|group, row, column| {
            let code = f64::from(E4M3_VALUES[usize::from(bytes.codes[(group * n + row) * k + column])]);
            let band = group * n.div_ceil(bytes.down) + row / bytes.down;
            code * e8m0(bytes.scales[band * k.div_ceil(across) + column / across])
        })
    }

    /// Codes in rows that TMA loads, zeros behind them; scales in words, MN-major.
    fn laid_out(&self, bytes: Bytes) -> Converted {
        let ([groups, n, k], across) = (self.dims, bytes.block.size() as usize);
        let packed = if bytes.block == ScaleBlock::Of128 { 1 } else { self.packed(&bytes) };
        let (dtype, unit) = match (packed, bytes.block) {
            (1, _) => (DType::E4m3, 16),
            // Beside FP8, which is what multiplies it.
            (_, ScaleBlock::Of32) => (DType::U8, 128),
            _ => (DType::U8, 32),
        };
        let padded = k.next_multiple_of(unit);
        let (from, to) = (k / packed, padded / packed);
        let mut codes = bytes.codes;
        if from != to {
            let mut wide = vec![0; groups * n * to];
            for (row, source) in codes.chunks(from.max(1)).enumerate() {
                wide[row * to..][..from].copy_from_slice(source);
            }
            codes = wide;
        }
        let (rows, columns) = (n.div_ceil(bytes.down), k.div_ceil(across));
        let (words, pitch) = (columns.div_ceil(PER_WORD), rows.next_multiple_of(PITCH));
        let mut scales = vec![0; groups * words * pitch * PER_WORD];
        for (band, source) in bytes.scales.chunks(columns.max(1)).enumerate() {
            let (group, row) = (band / rows, band % rows);
            for (word, four) in source.chunks(PER_WORD).enumerate() {
                let at = ((group * words + word) * pitch + row) * PER_WORD;
                scales[at..][..four.len()].copy_from_slice(four);
            }
        }
        Converted {
            form: Form::BlockScaled(BlockScaled {
                block: bytes.block,
                down: bytes.down,
                k,
                padded,
                rows,
                alpha: bytes.alpha,
            }),
            codes: (dtype, [groups, n, to], codes),
            scales: (DType::I32, [groups, words, pitch], scales),
        }
    }

    fn packed(&self, bytes: &Bytes) -> usize {
        if bytes.codes.len() == self.codes.len() { self.recipe.codes_per_byte() } else { 1 }
    }
}

impl BlockScaled {
    /// The weights again, of what lies on a device: codes `[G, N, K]` and words `[G, rows, words]`.
    pub(crate) fn read(&self, codes: &Tensor, words: &Tensor) -> Result<QuantizedWeight> {
        let [groups, n, _] = codes.dims().try_into().expect("three dimensions");
        let is_fp4 = codes.dtype() == DType::U8;
        let bytes = codes.narrow(2, 0, if is_fp4 { self.k / 2 } else { self.k })?.to_bytes()?;
        let columns = self.k.div_ceil(self.block.size() as usize);
        let row_bytes = columns.div_ceil(PER_WORD) * PER_WORD;
        let scales: Vec<u8> = words
            .to_bytes()?
            .chunks(row_bytes.max(1))
            .flat_map(|row| row[..columns].iter().copied())
            .collect();
        let (recipe, scales) = match (self.block, is_fp4) {
            (ScaleBlock::Of16, _) => {
                (Recipe::Nvfp4, WeightScales::Nvfp4 { values: scales, tensor: vec![self.alpha; groups] })
            }
            (ScaleBlock::Of32, _) => {
                let recipe = if is_fp4 { Recipe::Mxfp4 } else { Recipe::Mxfp8 };
                (recipe, WeightScales::E8m0 { block: [1, MX_BLOCK], values: scales })
            }
            (ScaleBlock::Of128, _) => {
                let values = scales.iter().map(|scale| e8m0(*scale) as f32 * self.alpha).collect();
                (Recipe::Fp8, WeightScales::F32 { block: [self.down, 128], values })
            }
        };
        QuantizedWeight::from_parts(recipe, [groups, n, self.k], bytes, scales)
    }
}

/// Whether a scale is one that UE8M0 holds.
fn is_power_of_two(scale: f32) -> bool {
    scale.is_normal() && scale > 0.0 && scale.to_bits() & 0x7f_ffff == 0
}

/// The exponent of the power of two that is a scale, or the next above it; of what is no number, that of NaN.
fn exponent(scale: f32) -> u8 {
    match scale {
        0.0 => ONE,
        scale if scale.is_finite() => (ceil_to_power_of_two(scale).to_bits() >> 23) as u8,
        _ => u8::MAX,
    }
}

/// Codes with a scale that is a power of two instead of another.
fn round_again(codes: &mut [u8], scale: f32, exponent: u8) {
    if is_power_of_two(scale) || !scale.is_finite() {
        return;
    }
    let factor = f64::from(scale) / e8m0(exponent);
    for code in codes {
        *code = encode_e4m3((f64::from(E4M3_VALUES[usize::from(*code)]) * factor) as f32);
    }
}
