//! Casts to FP8 and FP4 with scales, on the CPU.
//!
//! A block of values shares the scale `max(amax, 1e-4) / 448`; each value becomes the e4m3 code nearest to
//! `value * (1 / scale)`, all in `f32`. Activations take blocks of one row by 128 of K, weights of 128 rows by 128
//! of K; blocks at the edges are smaller. These are the casts of the peer, bit for bit. A row, or a whole matrix, may
//! have one scale as well, and codes may be e5m2, whose largest is 57344: see [`cast_to_fp8`].
//!
//! A block with an infinity in it has an infinite scale, and one with NaN has NaN: whatever its codes are, they stand
//! for NaN. Scales that are powers of two are never more than 2¹²⁷, so that there infinity saturates, and only NaN has
//! the code of NaN.

use float8::F8E5M2;
use rayon::prelude::*;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::parallel::THREADS;
use crate::tensor::Tensor;
use crate::tensor::dtype::{DType, Element, Fp8Codes};
pub use crate::tensor::granularity::ScaleFormat;
use crate::tensor::granularity::{BLOCK, Granularity};

const K_BLOCK: usize = BLOCK as usize;

/// A matrix `[rows, k]` of FP8 or FP4 codes with its scales, both row-major and without gaps.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    /// The type of the codes: e4m3 or e5m2, or u8 for FP4.
    pub dtype: DType,
    /// The codes: `rows * k` of them; of FP4 two to a byte, the first in the low half.
    pub codes: Vec<u8>,
    /// The scales: `[ceil(rows / rows_per_scale), ceil(k / k_per_scale)]`.
    pub scales: Vec<f32>,
    /// The number of rows.
    pub rows: usize,
    /// The number of columns.
    pub k: usize,
    /// How many rows share a scale: 1, 32, 128 or all.
    pub rows_per_scale: usize,
    /// How many columns share a scale: 16, 32, 128 or all.
    pub k_per_scale: usize,
}

/// Casts each 128 of a row with a scale of its own: for activations.
///
/// # Errors
/// [`Error::Shape`] unless there are `rows * k` values.
///
/// ```
/// use oxigemm::cast::{ScaleFormat, per_token_cast_to_fp8};
///
/// let x = per_token_cast_to_fp8(&[1.0f32, -0.5, 0.25], 1, 3, ScaleFormat::F32)?;
/// assert_eq!(x.scales, [1.0 / 448.0]);
/// assert_eq!(x.dequantize(), [1.0, -0.5, 0.25]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn per_token_cast_to_fp8<T: Element>(
    values: &[T],
    rows: usize,
    k: usize,
    format: ScaleFormat,
) -> Result<Quantized> {
    cast_to_fp8(values, rows, k, DType::E4m3, Granularity::PerToken, format)
}

/// Casts each block of 128 rows by 128 of K with a scale of its own: for weights.
///
/// # Errors
/// [`Error::Shape`] unless there are `rows * k` values.
///
/// ```
/// use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8};
///
/// let x = per_block_cast_to_fp8(&vec![3.5f32; 130 * 256], 130, 256, ScaleFormat::PowerOfTwo)?;
/// assert_eq!(x.scale_dims(), [2, 2]);
/// assert_eq!(x.scales, [1.0 / 128.0; 4]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn per_block_cast_to_fp8<T: Element>(
    values: &[T],
    rows: usize,
    k: usize,
    format: ScaleFormat,
) -> Result<Quantized> {
    cast_to_fp8(values, rows, k, DType::E4m3, Granularity::PerBlock, format)
}

/// Casts to e4m3 or e5m2 with any granularity of scales.
///
/// # Errors
/// [`Error::Shape`] unless there are `rows * k` values; [`Error::DType`] for other types.
///
/// ```
/// use oxigemm::DType;
/// use oxigemm::Granularity;
/// use oxigemm::cast::{ScaleFormat, cast_to_fp8};
///
/// let values = [1.0f32, -0.5, 8.0, 2.0];
/// let rows = cast_to_fp8(&values, 2, 2, DType::E4m3, Granularity::PerRow, ScaleFormat::F32)?;
/// assert_eq!((rows.scale_dims(), &rows.scales[..]), ([2, 1], &[1.0 / 448.0, 8.0 / 448.0][..]));
/// let one = cast_to_fp8(&values, 2, 2, DType::E5m2, Granularity::PerTensor, ScaleFormat::PowerOfTwo)?;
/// assert_eq!((one.scale_dims(), one.dequantize()), ([1, 1], values.to_vec()));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn cast_to_fp8<T: Element>(
    values: &[T],
    rows: usize,
    k: usize,
    dtype: DType,
    granularity: Granularity,
    format: ScaleFormat,
) -> Result<Quantized> {
    cast_blocks_to_fp8(values, rows, k, dtype, granularity.block(rows, k), format)
}

/// The same where blocks of so many rows and columns share a scale: `[32, 32]` have the weights of some MXFP8
/// checkpoints.
///
/// # Errors
/// As for [`cast_to_fp8`], and if a block is empty.
///
/// ```
/// use oxigemm::DType;
/// use oxigemm::cast::{ScaleFormat, cast_blocks_to_fp8};
///
/// let x = cast_blocks_to_fp8(&[1.0f32; 40 * 96], 40, 96, DType::E4m3, [32, 32], ScaleFormat::F32)?;
/// assert_eq!(x.scale_dims(), [2, 3]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn cast_blocks_to_fp8<T: Element>(
    values: &[T],
    rows: usize,
    k: usize,
    dtype: DType,
    block: [usize; 2],
    format: ScaleFormat,
) -> Result<Quantized> {
    fp8_codes("dtype", dtype)?;
    cast_blocks(values, [rows, k], dtype, block, format)
}

fn cast_blocks<T: Element>(
    values: &[T],
    [rows, k]: [usize; 2],
    dtype: DType,
    [rows_per_scale, k_per_scale]: [usize; 2],
    format: ScaleFormat,
) -> Result<Quantized> {
    if rows.checked_mul(k) != Some(values.len()) {
        return Err(Error::Shape {
            argument: "values",
            expected: format!("{rows} rows of {k} values"),
            found: format!("{} values", values.len()),
        });
    }
    if rows_per_scale == 0 || k_per_scale == 0 {
        return Err(Error::Shape {
            argument: "block",
            expected: "1 or more rows and columns that share a scale".to_owned(),
            found: format!("{:?}", [rows_per_scale, k_per_scale]),
        });
    }
    let blocks = Blocks { rows: rows_per_scale, columns: k_per_scale, code: dtype, format };
    let (codes, scales) = blocks.cast(values, rows, k);
    Ok(Quantized { dtype, codes, scales, rows, k, rows_per_scale, k_per_scale })
}

/// Casts to FP4, e2m1, where blocks of so many rows and columns share a scale, `max(amax, 1e-4) / 6`: `[1, 32]` with
/// scales that are powers of two is MXFP4.
///
/// # Errors
/// As for [`cast_blocks_to_fp8`], and if K is odd.
///
/// ```
/// use oxigemm::cast::{ScaleFormat, cast_blocks_to_fp4};
///
/// let x = cast_blocks_to_fp4(&[6.0f32, -0.5], 1, 2, [1, 32], ScaleFormat::PowerOfTwo)?;
/// assert_eq!((&x.codes[..], &x.scales[..]), (&[0x97][..], &[1.0][..]));
/// assert_eq!(x.dequantize(), [6.0, -0.5]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn cast_blocks_to_fp4<T: Element>(
    values: &[T],
    rows: usize,
    k: usize,
    block: [usize; 2],
    format: ScaleFormat,
) -> Result<Quantized> {
    if !k.is_multiple_of(2) {
        return Err(Error::Shape {
            argument: "k",
            expected: "an even number, as two codes are in a byte".to_owned(),
            found: k.to_string(),
        });
    }
    cast_blocks(values, [rows, k], DType::U8, block, format)
}

/// The codes of a type, which must be one of FP8.
fn fp8_codes(argument: &'static str, dtype: DType) -> Result<&'static Fp8Codes> {
    Fp8Codes::of(dtype).ok_or_else(|| Error::DType {
        argument,
        expected: format!("{} or {}", DType::E4m3, DType::E5m2),
        found: dtype.to_string(),
    })
}

/// Who shares a scale, and what the values become.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    pub rows: usize,
    pub columns: usize,
    pub code: DType,
    pub format: ScaleFormat,
}

impl Blocks {
    /// The codes of a matrix, and its scales.
    pub fn cast<T: Element>(&self, values: &[T], rows: usize, k: usize) -> (Vec<u8>, Vec<f32>) {
        let mut codes = vec![0; values.len()];
        let k_blocks = k.div_ceil(self.columns.max(1));
        let mut scales = vec![0.0; rows.div_ceil(self.rows.max(1)) * k_blocks];
        if !values.is_empty() {
            let band = self.rows * k;
            THREADS.run(|_| {
                codes
                    .par_chunks_mut(band)
                    .zip(values.par_chunks(band))
                    .zip(scales.par_chunks_mut(k_blocks))
                    .for_each(|((codes, values), scales)| self.cast_band(codes, values, scales, k));
            });
        }
        if self.code == DType::U8 {
            codes = codes.chunks(2).map(|pair| pair[0] | pair.get(1).map_or(0, |code| code << 4)).collect();
        }
        (codes, scales)
    }

    /// Casts rows that share their scales.
    fn cast_band<T: Element>(&self, codes: &mut [u8], values: &[T], scales: &mut [f32], k: usize) {
        scales.fill(0.0);
        for row in values.chunks(k) {
            for (amax, block) in scales.iter_mut().zip(row.chunks(self.columns)) {
                *amax = block.iter().fold(*amax, |amax, value| larger(amax, value.widen().abs()));
            }
        }
        for scale in scales.iter_mut() {
            *scale = self.scale(*scale);
        }
        for (codes, row) in codes.chunks_mut(k).zip(values.chunks(k)) {
            let blocks = codes.chunks_mut(self.columns).zip(row.chunks(self.columns));
            for ((codes, block), &scale) in blocks.zip(scales.iter()) {
                let factor = 1.0 / scale;
                for (code, value) in codes.iter_mut().zip(block) {
                    *code = self.encode(value.widen(), factor);
                }
            }
        }
    }

    /// The scale of values up to a magnitude. NaN is the one that a GPU computes.
    fn scale(&self, amax: f32) -> f32 {
        let largest = if self.code == DType::U8 { 6.0 } else { self.code.max_finite() };
        let scale = larger(1e-4, amax) / largest;
        match self.format {
            ScaleFormat::PowerOfTwo => ceil_to_power_of_two(scale),
            ScaleFormat::F32 if scale.is_nan() => f32::from_bits(0x7fff_ffff),
            ScaleFormat::F32 => scale,
        }
    }

    /// The code of a value by a factor. That of NaN has no sign in FP8, as a GPU's.
    pub fn encode(&self, value: f32, factor: f32) -> u8 {
        if self.code == DType::U8 {
            return encode_e2m1(value, factor);
        }
        match (self.code, value * factor) {
            (_, scaled) if scaled.is_nan() => 0x7f,
            (DType::E5m2, scaled) => F8E5M2::from_f32(scaled).to_bits(),
            (_, scaled) => crate::tensor::dtype::encode_e4m3(scaled),
        }
    }
}

/// The e2m1 code nearest to `value * factor`, which is not rounded before: ties to even, saturating at 6, which is also
/// what becomes of NaN. Its sign is that of `value`.
pub(crate) fn encode_e2m1(value: f32, factor: f32) -> u8 {
    // Halfway to the next larger code; where the lower of the two is even, halfway stays.
    const MIDDLES: [f64; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
    let magnitude = f64::from(value.abs()) * f64::from(factor);
    let above = |(i, middle): (usize, f64)| magnitude > middle || (i % 2 == 1 && magnitude == middle);
    let code = match magnitude.is_nan() {
        true => 7,
        false => MIDDLES.into_iter().enumerate().filter(|&pair| above(pair)).count(),
    };
    code as u8 | if value.is_sign_negative() { 8 } else { 0 }
}

/// The value of an e2m1 code, in the low half of a byte.
pub(crate) fn decode_e2m1(code: u8) -> f32 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// The maximum, but a NaN on the right wins: a block with NaN in it has no scale.
fn larger(amax: f32, value: f32) -> f32 {
    if amax >= value || amax.is_nan() { amax } else { value }
}

/// The smallest power of two that is not below a positive scale, within the exponents 1 to 254 of UE8M0.
///
/// ```
/// use oxigemm::cast::ceil_to_power_of_two;
///
/// assert_eq!(ceil_to_power_of_two(0.25), 0.25);
/// assert_eq!(ceil_to_power_of_two(0.2500001), 0.5);
/// ```
#[must_use]
pub fn ceil_to_power_of_two(scale: f32) -> f32 {
    let bits = scale.abs().to_bits();
    let exponent = (bits >> 23) + u32::from(bits & 0x7f_ffff != 0);
    f32::from_bits(exponent.clamp(1, 254) << 23)
}

impl Quantized {
    /// Copies a matrix and its scales from tensors of any device and strides; FP4 codes are u8. There is a scale for each
    /// `rows_per_scale` rows and 128 of K, or one for all of them along one dimension or both.
    ///
    /// # Errors
    /// If the tensors are not matrices of FP8 and f32, or if the scales do not fit the matrix.
    pub fn from_tensors(codes: &Tensor, scales: &Tensor, rows_per_scale: usize) -> Result<Quantized> {
        Quantized::from_tensors_in_blocks(codes, scales, [rows_per_scale, K_BLOCK])
    }

    /// The same where blocks of so many rows and columns share a scale.
    ///
    /// # Errors
    /// As for [`from_tensors`](Self::from_tensors).
    pub fn from_tensors_in_blocks(
        codes: &Tensor,
        scales: &Tensor,
        [rows_per_scale, k_per_scale]: [usize; 2],
    ) -> Result<Quantized> {
        let &[rows, columns] = codes.dims() else {
            return Err(Error::Rank {
                argument: "codes",
                expected: "a matrix (2 dimensions)".to_owned(),
                found: format!("{:?}", codes.dims()),
            });
        };
        let dtype = codes.dtype();
        let k = match dtype {
            DType::U8 => 2 * columns,
            _ => fp8_codes("codes", dtype).map(|_| columns)?,
        };
        let whole = [rows.div_ceil(rows_per_scale), k.div_ceil(k_per_scale)];
        let found = match *scales.dims() {
            [1] => Some([1, 1]),
            [rows, blocks] => Some([rows, blocks]),
            _ => None,
        };
        let fits =
            |found: &[usize; 2]| found.iter().zip(whole).all(|(&found, whole)| found == whole || found == 1);
        let Some(found) = found.filter(fits) else {
            return Err(Error::ScaleShape {
                argument: "scales",
                expected: format!("{whole:?}, or 1 of either"),
                found: format!("{:?}", scales.dims()),
            });
        };
        Ok(Quantized {
            dtype,
            codes: codes.to_bytes()?,
            scales: scales.to_vec::<f32>()?,
            rows,
            k,
            rows_per_scale: if found[0] == whole[0] { rows_per_scale } else { rows.max(1) },
            k_per_scale: if found[1] == whole[1] { k_per_scale } else { k.max(1) },
        })
    }

    /// The matrix and its scales as tensors on a device, both contiguous.
    ///
    /// # Errors
    /// If the device has no memory left.
    pub fn to_tensors(&self, device: &Device) -> Result<(Tensor, Tensor)> {
        let columns = if self.dtype == DType::U8 { self.k / 2 } else { self.k };
        let codes = Tensor::from_bytes(self.dtype, &self.codes, &[self.rows, columns], device)?;
        Ok((codes, Tensor::from_slice(&self.scales, &self.scale_dims(), device)?))
    }

    /// The dimensions of the scales.
    #[must_use]
    pub fn scale_dims(&self) -> [usize; 2] {
        [self.rows.div_ceil(self.rows_per_scale), self.k.div_ceil(self.k_per_scale)]
    }

    /// This matrix as an operand of the reference.
    #[must_use]
    pub fn as_matrix(&self) -> Fp8Matrix<'_> {
        let [_, columns] = self.scale_dims();
        Fp8Matrix {
            dtype: self.dtype,
            codes: &self.codes,
            rows: self.rows,
            k: self.k,
            pitch: if self.dtype == DType::U8 { self.k / 2 } else { self.k },
            scales: &self.scales,
            scale_strides: [columns, 1],
            rows_per_scale: self.rows_per_scale,
            k_per_scale: self.k_per_scale,
        }
    }

    /// The values that the codes and scales stand for, rounded to `f32`.
    #[must_use]
    pub fn dequantize(&self) -> Vec<f32> {
        let columns = self.scale_dims()[1];
        let mut values = match self.dtype {
            DType::U8 => {
                self.codes.iter().flat_map(|pair| [decode_e2m1(*pair), decode_e2m1(pair >> 4)]).collect()
            }
            dtype => dtype.decode(&self.codes),
        };
        if !values.is_empty() {
            let scale_row = |(row, values): (usize, &mut [f32])| {
                let scales = &self.scales[row / self.rows_per_scale * columns..];
                for (values, scale) in values.chunks_mut(self.k_per_scale).zip(scales) {
                    values.iter_mut().for_each(|value| *value *= scale);
                }
            };
            THREADS.run(|_| values.par_chunks_mut(self.k).enumerate().for_each(scale_row));
        }
        values
    }
}

/// A matrix `[rows, k]` of FP8 or FP4 codes with its scales, in host memory with any strides.
#[derive(Clone, Copy, Debug)]
pub struct Fp8Matrix<'a> {
    /// The type of the codes: e4m3 or e5m2, or u8 for FP4.
    pub dtype: DType,
    /// The codes, of FP4 two to a byte, the first in the low half; row `i` begins at `i * pitch`.
    pub codes: &'a [u8],
    /// The number of rows.
    pub rows: usize,
    /// The number of columns.
    pub k: usize,
    /// From one row to the next.
    pub pitch: usize,
    /// The scales, one per `rows_per_scale` rows and `k_per_scale` of K.
    pub scales: &'a [f32],
    /// From one group of rows to the next, and from one block of K to the next, in elements; 0 where they share.
    pub scale_strides: [usize; 2],
    /// How many rows share a scale.
    pub rows_per_scale: usize,
    /// How many of K share a scale.
    pub k_per_scale: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::calc_diff;
    use half::bf16;
    use proptest::prelude::*;

    #[test]
    fn an_all_zero_block_takes_the_smallest_scale() {
        let x = per_token_cast_to_fp8(&[0.0f32; 256], 2, 128, ScaleFormat::F32).unwrap();
        assert_eq!(x.scales, [1e-4 / 448.0; 2]);
        assert_eq!(x.codes, [0; 256]);
    }

    #[test]
    fn normals_lose_what_three_mantissa_bits_lose() {
        let values = crate::random::normals(5, 300 * 1000);
        for cast in [per_token_cast_to_fp8::<f32>, per_block_cast_to_fp8::<f32>] {
            for format in [ScaleFormat::F32, ScaleFormat::PowerOfTwo] {
                let x = cast(&values, 300, 1000, format).unwrap();
                let diff = calc_diff(&x.dequantize(), &values);
                assert!((1e-4..6e-4).contains(&diff), "{diff}");
            }
        }
    }

    #[test]
    fn bf16_and_f32_inputs_of_the_same_values_cast_the_same() {
        let narrow: Vec<bf16> = crate::random::normals(6, 5 * 200).into_iter().map(bf16::from_f32).collect();
        let wide: Vec<f32> = narrow.iter().map(|x| x.to_f32()).collect();
        assert_eq!(
            per_token_cast_to_fp8(&narrow, 5, 200, ScaleFormat::F32).unwrap(),
            per_token_cast_to_fp8(&wide, 5, 200, ScaleFormat::F32).unwrap()
        );
    }

    #[test]
    fn nan_spoils_its_block_and_no_other() {
        let mut values = vec![1.0f32; 2 * 256];
        values[3] = f32::NAN;
        let x = per_token_cast_to_fp8(&values, 2, 256, ScaleFormat::F32).unwrap().dequantize();
        assert!(x[..128].iter().all(|x| x.is_nan()));
        assert!(x[128..].iter().all(|&x| (x - 1.0).abs() < 1e-6));
    }

    #[test]
    fn a_wrong_count_is_refused() {
        let error = per_block_cast_to_fp8(&[0.0f32; 10], 3, 4, ScaleFormat::F32).unwrap_err();
        assert!(matches!(error, Error::Shape { argument: "values", .. }));
        assert!(per_block_cast_to_fp8(&[0.0f32; 0], usize::MAX, 4, ScaleFormat::F32).is_err());
    }

    proptest! {
        /// Against the formula, value by value, with tails in both directions.
        #[test]
        fn every_code_is_the_formula(
            (rows, k) in (0..300usize, 0..300usize), per_block: bool, seed: u64, spread in -6..6i32,
        ) {
            let magnitude = 10f32.powi(spread);
            let values: Vec<f32> = crate::random::normals(seed, rows * k).iter().map(|x| x * magnitude).collect();
            let (rows_per_scale, granularity) =
                if per_block { (128, Granularity::PerBlock) } else { (1, Granularity::PerToken) };
            let x = cast_to_fp8(&values, rows, k, DType::E4m3, granularity, ScaleFormat::F32).unwrap();
            let scale_dims = x.scale_dims();
            prop_assert_eq!(x.scales.len(), scale_dims[0] * scale_dims[1]);
            for block_row in 0..scale_dims[0] {
                for block in 0..scale_dims[1] {
                    let indices = || (block_row * rows_per_scale..((block_row + 1) * rows_per_scale).min(rows))
                        .flat_map(|i| (block * 128..(block * 128 + 128).min(k)).map(move |j| i * k + j));
                    let amax = indices().map(|i| values[i].abs()).fold(1e-4, f32::max);
                    let scale = amax / 448.0;
                    prop_assert_eq!(x.scales[block_row * scale_dims[1] + block], scale);
                    for i in indices() {
                        prop_assert_eq!(x.codes[i..=i].to_vec(), DType::E4m3.encode(&[values[i] * (1.0 / scale)]));
                    }
                }
            }
        }

        #[test]
        fn powers_of_two_are_the_next_above(scale in 1e-30f32..1e30) {
            let power = ceil_to_power_of_two(scale);
            prop_assert!(scale <= power && power < 2.0 * scale);
            prop_assert_eq!(power.to_bits() & 0x7f_ffff, 0);
        }
    }
}
