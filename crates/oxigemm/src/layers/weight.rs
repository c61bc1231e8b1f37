//! Quantized weights on the host: codes and scales as checkpoints hold them.

use rayon::prelude::*;

use super::recipe::Recipe;
use crate::cast::{Blocks, ScaleFormat, decode_e2m1};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::launch::LaunchOptions;
use crate::parallel::THREADS;
use crate::quantize::{TensorScale, quantize_nvfp4};
use crate::tensor::dtype::E4M3_VALUES;
use crate::tensor::{DType, Element, Tensor};

/// Elements of a row that share a scale of NVFP4, and of MXFP4 and MXFP8.
pub(crate) const NVFP4_BLOCK: usize = 16;
pub(crate) const MX_BLOCK: usize = 32;

/// Scales of a [`QuantizedWeight`], for each group row-major and without gaps.
#[derive(Clone, Debug, PartialEq)]
pub enum WeightScales {
    /// f32, one for a block of so many rows and columns.
    F32 {
        /// Rows and columns that share a scale.
        block: [usize; 2],
        /// `[G, ceil(N / rows), ceil(K / columns)]`.
        values: Vec<f32>,
    },
    /// UE8M0, one for a block of so many rows and columns: `2^(e - 127)`, NaN for 255.
    E8m0 {
        /// Rows and columns that share a scale.
        block: [usize; 2],
        /// `[G, ceil(N / rows), ceil(K / columns)]`.
        values: Vec<u8>,
    },
    /// e4m3, one for 16 of a row, and an f32 for each group: a value is `code * scale * tensor`.
    Nvfp4 {
        /// `[G, N, ceil(K / 16)]`.
        values: Vec<u8>,
        /// `[G]`.
        tensor: Vec<f32>,
    },
}

impl WeightScales {
    /// Rows and columns that share a scale.
    #[must_use]
    pub fn block(&self) -> [usize; 2] {
        match self {
            WeightScales::F32 { block, .. } | WeightScales::E8m0 { block, .. } => *block,
            WeightScales::Nvfp4 { .. } => [1, NVFP4_BLOCK],
        }
    }

    fn len(&self) -> usize {
        match self {
            WeightScales::F32 { values, .. } => values.len(),
            WeightScales::E8m0 { values, .. } | WeightScales::Nvfp4 { values, .. } => values.len(),
        }
    }

    /// The scale of a block of a group, which is exact.
    pub(crate) fn value(&self, group: usize, at: usize) -> f64 {
        match self {
            WeightScales::F32 { values, .. } => values[at].into(),
            WeightScales::E8m0 { values, .. } => e8m0(values[at]),
            WeightScales::Nvfp4 { values, tensor } => {
                f64::from(E4M3_VALUES[usize::from(values[at])]) * f64::from(tensor[group])
            }
        }
    }
}

/// The value of a UE8M0 exponent.
pub(crate) fn e8m0(exponent: u8) -> f64 {
    if exponent == 255 { f64::NAN } else { 2f64.powi(i32::from(exponent) - 127) }
}

/// Matrices `[G, N, K]` of codes with their scales, on the host: the weights of a linear layer, or of the experts of a
/// mixture.
///
/// Codes are e4m3, or e2m1 two in a byte, the first in the low half.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedWeight {
    pub(crate) recipe: Recipe,
    pub(crate) dims: [usize; 3],
    pub(crate) codes: Vec<u8>,
    pub(crate) scales: WeightScales,
}

impl QuantizedWeight {
    /// Weights of codes and scales that exist already.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::ScaleShape`] where there are not as many as the dimensions say, or scales are not
    /// of the recipe.
    ///
    /// ```
    /// use oxigemm::layers::{QuantizedWeight, Recipe, WeightScales};
    ///
    /// let scales = WeightScales::E8m0 { block: [1, 32], values: vec![128; 2] };
    /// let weight = QuantizedWeight::from_parts(Recipe::Mxfp4, [1, 2, 32], vec![0x2a; 32], scales)?;
    /// assert_eq!(weight.dequantize()[..2], [-2.0, 2.0]); // 0xa is -1, 0x2 is 1, the scale is 2
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    pub fn from_parts(
        recipe: Recipe,
        dims: [usize; 3],
        codes: Vec<u8>,
        scales: WeightScales,
    ) -> Result<QuantizedWeight> {
        let [groups, n, k] = dims;
        expect_k(recipe, k)?;
        let bytes = groups.saturating_mul(n).saturating_mul(k) / recipe.codes_per_byte();
        if codes.len() != bytes {
            return Err(Error::Shape {
                argument: "codes",
                expected: format!("{bytes} bytes for {dims:?} of {recipe}"),
                found: format!("{} bytes", codes.len()),
            });
        }
        let refuse =
            |expected: String, found: String| Err(Error::ScaleShape { argument: "scales", expected, found });
        let block = scales.block();
        if block.contains(&0) {
            return refuse("blocks of 1 or more rows and columns".to_owned(), format!("{block:?}"));
        }
        let fits = match (recipe, &scales) {
            (Recipe::Fp8, WeightScales::F32 { .. }) | (Recipe::Nvfp4, WeightScales::Nvfp4 { .. }) => true,
            (Recipe::Mxfp8, WeightScales::E8m0 { .. }) => block[1] == MX_BLOCK,
            (Recipe::Mxfp4, WeightScales::E8m0 { .. }) => block == [1, MX_BLOCK],
            _ => false,
        };
        if !fits {
            let expected = match recipe {
                Recipe::Fp8 => "f32 scales of fp8",
                Recipe::Mxfp8 => "UE8M0 scales of 32 columns of mxfp8",
                Recipe::Mxfp4 => "UE8M0 scales of 1x32 of mxfp4",
                Recipe::Nvfp4 => "e4m3 scales of 1x16 and an f32 of nvfp4",
            };
            return refuse(expected.to_owned(), format!("others, of {block:?}"));
        }
        let count = groups * n.div_ceil(block[0]) * k.div_ceil(block[1]);
        if scales.len() != count {
            return refuse(format!("{count}, one for {block:?} of {dims:?}"), scales.len().to_string());
        }
        if let WeightScales::Nvfp4 { tensor, .. } = &scales
            && tensor.len() != groups
        {
            return refuse(format!("{groups} scales of a whole matrix"), tensor.len().to_string());
        }
        Ok(QuantizedWeight { recipe, dims, codes, scales })
    }

    /// Quantizes `[G, N, K]` values, row-major, by the rules of [`crate::cast`] and
    /// [`quantize_nvfp4`](crate::quantize_nvfp4): scales of 128x128 for [`Recipe::Fp8`], of 1x32 (powers of two) for
    /// [`Recipe::Mxfp8`] and [`Recipe::Mxfp4`], of 1x16 for [`Recipe::Nvfp4`].
    ///
    /// # Errors
    /// [`Error::Shape`] unless there are so many values, and for an odd K of FP4.
    ///
    /// ```
    /// use oxigemm::layers::{QuantizedWeight, Recipe};
    ///
    /// let weight = QuantizedWeight::quantize(&[1.0f32, 3.0, -0.3, 6.0], [1, 1, 4], Recipe::Mxfp4)?;
    /// assert_eq!(weight.dequantize(), [1.0, 3.0, -0.5, 6.0]);
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    pub fn quantize<T: Element>(values: &[T], dims: [usize; 3], recipe: Recipe) -> Result<QuantizedWeight> {
        QuantizedWeight::quantize_in(values, dims, recipe, ScaleFormat::F32)
    }

    /// The same with scales of [`Recipe::Fp8`] in a format, such as that of [`Recipe::scale_format`]; other recipes have
    /// their own.
    ///
    /// # Errors
    /// As [`quantize`](Self::quantize).
    ///
    /// ```
    /// use oxigemm::Device;
    /// use oxigemm::layers::{QuantizedWeight, Recipe, WeightScales};
    ///
    /// let format = Recipe::Fp8.scale_format(&"sim:sm_100a".parse::<Device>()?)?;
    /// let weight = QuantizedWeight::quantize_in(&[3.0f32; 16], [1, 1, 16], Recipe::Fp8, format)?;
    /// let WeightScales::F32 { values, .. } = weight.scales() else { unreachable!("FP8 has them") };
    /// assert_eq!(values, &[2f32.powi(-7)]);
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    pub fn quantize_in<T: Element>(
        values: &[T],
        dims: [usize; 3],
        recipe: Recipe,
        format: ScaleFormat,
    ) -> Result<QuantizedWeight> {
        let [groups, n, k] = dims;
        expect_k(recipe, k)?;
        if groups.checked_mul(n).and_then(|rows| rows.checked_mul(k)) != Some(values.len()) {
            return Err(Error::Shape {
                argument: "values",
                expected: format!("{groups} matrices of {n} rows of {k} values"),
                found: format!("{} values", values.len()),
            });
        }
        if recipe == Recipe::Nvfp4 {
            return quantize_to_nvfp4(values, dims);
        }
        let blocks = match recipe {
            Recipe::Fp8 => Blocks { rows: 128, columns: 128, code: DType::E4m3, format },
            Recipe::Mxfp8 => {
                Blocks { rows: 1, columns: MX_BLOCK, code: DType::E4m3, format: ScaleFormat::PowerOfTwo }
            }
            _ => Blocks { rows: 1, columns: MX_BLOCK, code: DType::U8, format: ScaleFormat::PowerOfTwo },
        };
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for matrix in values.chunks((n * k).max(1)) {
            let (new_codes, new_scales) = blocks.cast(matrix, n, k);
            codes.extend(new_codes);
            scales.extend(new_scales);
        }
        let block = [blocks.rows, blocks.columns];
        let scales = match recipe {
            Recipe::Fp8 => WeightScales::F32 { block, values: scales },
            _ => {
                let exponents = scales.iter().map(|scale| (scale.to_bits() >> 23) as u8).collect();
                WeightScales::E8m0 { block, values: exponents }
            }
        };
        Ok(QuantizedWeight { recipe, dims, codes, scales })
    }

    /// What the weights are quantized to.
    #[must_use]
    pub fn recipe(&self) -> Recipe {
        self.recipe
    }

    /// `[G, N, K]`; G is 1 for a linear layer.
    #[must_use]
    pub fn dims(&self) -> [usize; 3] {
        self.dims
    }

    /// The codes, row-major.
    #[must_use]
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The scales.
    #[must_use]
    pub fn scales(&self) -> &WeightScales {
        &self.scales
    }

    /// Bytes of codes and scales.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.codes.len()
            + match &self.scales {
                WeightScales::F32 { values, .. } => 4 * values.len(),
                WeightScales::E8m0 { values, .. } => values.len(),
                WeightScales::Nvfp4 { values, tensor } => values.len() + 4 * tensor.len(),
            }
    }

    /// The values, `[G, N, K]`: the product of code and scales, which is exact in f64, rounded once.
    #[must_use]
    pub fn dequantize(&self) -> Vec<f32> {
        let [_, n, k] = self.dims;
        let mut values = vec![0f32; self.dims.iter().product()];
        if !values.is_empty() {
            THREADS.run(|_| {
                values.par_chunks_mut(k).enumerate().for_each(|(row, values)| {
                    for (column, value) in values.iter_mut().enumerate() {
                        *value = self.value([row / n, row % n, column]) as f32;
                    }
                });
            });
        }
        values
    }

    /// A value, exactly.
    ///
    /// # Panics
    /// If the index is not within [`dims`](Self::dims).
    #[must_use]
    pub fn value(&self, [group, row, column]: [usize; 3]) -> f64 {
        let [groups, n, k] = self.dims;
        assert!(group < groups && row < n && column < k, "an index within {:?}", self.dims);
        let [down, across] = self.scales.block();
        let scale = ((group * n.div_ceil(down)) + row / down) * k.div_ceil(across) + column / across;
        self.code([group, row, column]) * self.scales.value(group, scale)
    }

    fn code(&self, [group, row, column]: [usize; 3]) -> f64 {
        let at = (group * self.dims[1] + row) * self.dims[2] + column;
        f64::from(match self.recipe.codes_per_byte() {
            1 => E4M3_VALUES[usize::from(self.codes[at])],
            _ => decode_e2m1(self.codes[at / 2] >> (at % 2 * 4) & 15),
        })
    }

    /// Of a checkpoint whose rows are gate, up, gate, up, ...: all gates first, then all ups, as fused epilogues take
    /// them. Scales must be those of single rows.
    ///
    /// # Errors
    /// [`Error::Shape`] for an odd number of rows, [`Error::ScaleShape`] where rows share scales.
    ///
    /// ```
    /// use oxigemm::layers::{QuantizedWeight, Recipe};
    ///
    /// let rows = [[1.0f32; 32], [2.0; 32], [3.0; 32], [4.0; 32]].concat();
    /// let interleaved = QuantizedWeight::quantize(&rows, [1, 4, 32], Recipe::Mxfp4)?;
    /// let halves = interleaved.deinterleave_gate_up()?;
    /// assert_eq!([0, 1, 2, 3].map(|row| halves.value([0, row, 0])), [1.0, 3.0, 2.0, 4.0]);
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    pub fn deinterleave_gate_up(&self) -> Result<QuantizedWeight> {
        let [_, n, k] = self.dims;
        if n % 2 != 0 {
            return Err(Error::Shape {
                argument: "weight",
                expected: "an even number of rows, gates and ups in turn".to_owned(),
                found: format!("{:?}", self.dims),
            });
        }
        let [down, across] = self.scales.block();
        if down != 1 {
            return Err(Error::ScaleShape {
                argument: "weight",
                expected: "scales of single rows".to_owned(),
                found: format!("scales of {down} rows"),
            });
        }
        let rows_of = |bytes: &[u8], width: usize| -> Vec<u8> {
            let row = |group: &[u8], from: usize| group[from * width..(from + 1) * width].to_vec();
            bytes
                .chunks((n * width).max(1))
                .flat_map(|group| {
                    (0..2).flat_map(move |half| (half..n).step_by(2).flat_map(move |i| row(group, i)))
                })
                .collect()
        };
        let columns = k.div_ceil(across);
        let scales = match &self.scales {
            WeightScales::F32 { block, values } => {
                let bytes = rows_of(bytemuck::cast_slice(values), 4 * columns);
                WeightScales::F32 { block: *block, values: bytemuck::pod_collect_to_vec(&bytes) }
            }
            WeightScales::E8m0 { block, values } => {
                WeightScales::E8m0 { block: *block, values: rows_of(values, columns) }
            }
            WeightScales::Nvfp4 { values, tensor } => {
                WeightScales::Nvfp4 { values: rows_of(values, columns), tensor: tensor.clone() }
            }
        };
        let codes = rows_of(&self.codes, k / self.recipe.codes_per_byte());
        Ok(QuantizedWeight { codes, scales, ..*self })
    }
}

fn expect_k(recipe: Recipe, k: usize) -> Result<()> {
    if k.is_multiple_of(recipe.codes_per_byte()) {
        return Ok(());
    }
    Err(Error::Shape {
        argument: "dims",
        expected: format!("an even K, as a byte has two codes of {recipe}"),
        found: format!("a K of {k}"),
    })
}

fn quantize_to_nvfp4<T: Element>(values: &[T], dims: [usize; 3]) -> Result<QuantizedWeight> {
    let ([_, n, k], cpu) = (dims, Device::cpu());
    let (mut codes, mut scales, mut tensor) = (Vec::new(), Vec::new(), Vec::new());
    for matrix in values.chunks((n * k).max(1)) {
        let x = Tensor::from_slice(matrix, &[n, k], &cpu)?;
        let mut new_codes = Tensor::empty(DType::U8, &[n, k / 2], &cpu)?;
        let mut new_scales = Tensor::empty(DType::E4m3, &[n, k.div_ceil(NVFP4_BLOCK)], &cpu)?;
        let mut of_all = Tensor::empty(DType::F32, &[1], &cpu)?;
        let options = LaunchOptions::default();
        quantize_nvfp4(&x, &mut new_codes, &mut new_scales, TensorScale::Computed(&mut of_all), &options)?;
        codes.extend(new_codes.to_bytes()?);
        scales.extend(new_scales.to_bytes()?);
        tensor.extend(of_all.to_vec_f32()?);
    }
    QuantizedWeight::from_parts(Recipe::Nvfp4, dims, codes, WeightScales::Nvfp4 { values: scales, tensor })
}
