//! NVFP4 on the CPU.

use oxigemm_kernels::quantize::block_1x128::NVFP4_WIDTH;

use super::quantize::{nan_of_gpu, write_values};
use crate::cast::{decode_e2m1, encode_e2m1};
use crate::error::Result;
use crate::tensor::Tensor;
use crate::tensor::dtype::{DType, encode_e4m3};

const WIDTH: usize = NVFP4_WIDTH as usize;
/// The largest code by the largest scale.
const LARGEST: f32 = 6.0 * 448.0;

/// `quantize_nvfp4` of checked arguments: the scale of the tensor, which is computed where none is given.
pub(crate) fn quantize(
    x: &Tensor,
    codes: &mut Tensor,
    scales: &mut Tensor,
    given: Option<f32>,
) -> Result<f32> {
    let values = x.to_vec_f32()?;
    let columns = x.dims()[1];
    let computed = || nan_of_gpu(at_least(amax(&values), 1e-4) / LARGEST);
    let of_all = given.unwrap_or_else(computed);
    let per_magnitude = reciprocal(6.0 * of_all);
    let (mut new_codes, mut new_scales) = (Vec::new(), Vec::new());
    for row in values.chunks(columns) {
        let mut row_codes = Vec::new();
        for block in row.chunks(WIDTH) {
            let scale = scale_code(amax(block) * per_magnitude);
            let factor = reciprocal(DType::E4m3.decode(&[scale])[0] * of_all);
            row_codes.extend(block.iter().map(|value| encode_e2m1(*value, factor)));
            new_scales.push(scale);
        }
        new_codes.extend(row_codes.chunks(2).map(|pair| pair[0] | pair[1] << 4));
    }
    codes.write_bytes(&new_codes)?;
    scales.write_bytes(&scale_bytes(&new_scales, [x.dims()[0], columns.div_ceil(WIDTH)], scales))?;
    Ok(of_all)
}

/// The larger of two; NaN is the largest.
fn at_least(a: f32, b: f32) -> f32 {
    if a >= b || a.is_nan() { a } else { b }
}

/// The largest magnitude, or NaN where there is one.
fn amax(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |found, value| at_least(found, value.abs()))
}

/// The e4m3 code of a scale: never that of 0.
fn scale_code(scale: f32) -> u8 {
    if scale.is_nan() { 0x7f } else { encode_e4m3(scale).max(1) }
}

/// `1 / x` for a kernel: what is subnormal counts as 0.
fn reciprocal(x: f32) -> f32 {
    let flush = |x: f32| if x.is_subnormal() { 0.0 } else { x };
    flush(1.0 / flush(x))
}

/// The content of a tensor of scales, row-major as its elements are.
fn scale_bytes(values: &[u8], [rows, columns]: [usize; 2], scales: &Tensor) -> Vec<u8> {
    let fours = columns.div_ceil(4);
    let byte = |row: usize, column: usize| match row < rows && column < columns {
        true => values[row * columns + column],
        false => 0,
    };
    let word = |row: usize, four: usize| (0..4).map(move |i| byte(row, 4 * four + i));
    match (scales.dtype(), scales.dims().len()) {
        (DType::E4m3, _) => values.to_vec(),
        (_, 4) => (0..rows.div_ceil(128) * fours * 128)
            .flat_map(|i| {
                let (block, within) = (i / 128, i % 128);
                word(block / fours * 128 + within / 4 + within % 4 * 32, block % fours)
            })
            .collect(),
        _ => (0..rows * fours).flat_map(|i| word(i / fours, i % fours)).collect(),
    }
}

/// The codes of the scales of a tensor of any layout, row-major.
fn scale_codes(scales: &Tensor, [rows, columns]: [usize; 2]) -> Result<Vec<u8>> {
    let bytes = scales.to_bytes()?;
    let fours = columns.div_ceil(4);
    let place = |row: usize, column: usize| match (scales.dtype(), scales.dims().len()) {
        (DType::E4m3, _) => row * columns + column,
        (_, 4) => 4 * ((row / 128 * fours + column / 4) * 128 + row % 32 * 4 + row % 128 / 32) + column % 4,
        _ => row * 4 * fours + column,
    };
    Ok((0..rows * columns).map(|i| bytes[place(i / columns, i % columns)]).collect())
}

/// The arguments have been checked.
pub(crate) fn dequantize(
    codes: &Tensor,
    scales: &Tensor,
    tensor_scale: &Tensor,
    x: &mut Tensor,
) -> Result<()> {
    let [rows, columns] = [x.dims()[0], x.dims()[1]];
    let across = columns.div_ceil(WIDTH);
    let of_all = tensor_scale.to_vec_f32()?[0];
    let scales = DType::E4m3.decode(&scale_codes(scales, [rows, across])?);
    let codes = codes.to_bytes()?.into_iter().flat_map(|pair| [pair & 15, pair >> 4]);
    let values: Vec<f32> = codes
        .enumerate()
        .map(|(i, code)| {
            let scale = scales[i / columns * across + i % columns / WIDTH];
            nan_of_gpu(decode_e2m1(code) * (scale * of_all))
        })
        .collect();
    write_values(x, &values)
}
