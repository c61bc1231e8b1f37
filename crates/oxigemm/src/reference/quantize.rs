//! Quantization on the CPU: the casts, on tensors.

use oxigemm_kernels::WARP;
use oxigemm_kernels::quantize::rms_norm;
use oxigemm_kernels::quantize::vec8::CHUNK;

use crate::cast::{Blocks, ScaleFormat, ceil_to_power_of_two, decode_e2m1};
use crate::check::Granularity;
use crate::error::Result;
use crate::tensor::DType;
use crate::tensor::Tensor;

/// Where values come from, as tensors.
#[derive(Clone, Copy)]
pub(crate) enum SourceTensor<'a> {
    Matrix,
    SwiGlu,
    Rows(&'a Tensor),
    RmsNorm { weight: &'a Tensor, epsilon: f32 },
}

/// The arguments have been checked.
pub(crate) fn quantize(
    x: &Tensor,
    source: SourceTensor<'_>,
    codes: &mut Tensor,
    scales: &mut Tensor,
    granularity: Granularity,
    format: ScaleFormat,
) -> Result<()> {
    let (rows, columns) = code_dims(codes);
    let [down, across] = granularity.block(rows, columns);
    let blocks = Blocks { rows: down, columns: across, code: codes.dtype(), format };
    let values = x.to_vec_f32()?;
    let cast = |values: &[f32]| blocks.cast(values, rows, columns);
    let dims = granularity.scale_dims(rows, columns);
    match source {
        SourceTensor::Matrix => {
            let (new_codes, new_scales) = cast(&values);
            codes.write_bytes(&new_codes)?;
            scales.write_bytes(&scale_bytes(&new_scales, dims, scales))
        }
        SourceTensor::SwiGlu => {
            let pairs = values.chunks(2 * columns).map(|row| row.split_at(columns));
            let values: Vec<f32> = pairs
                .flat_map(|(gates, ups)| gates.iter().zip(ups).map(|(gate, up)| silu(*gate) * up))
                .collect();
            let (new_codes, new_scales) = cast(&values);
            codes.write_bytes(&new_codes)?;
            scales.write_bytes(&scale_bytes(&new_scales, dims, scales))
        }
        SourceTensor::RmsNorm { weight, epsilon } => {
            let weights = weight.to_vec_f32()?;
            let rows = values.chunks(columns);
            let values: Vec<f32> = rows.flat_map(|row| normalized(row, &weights, epsilon)).collect();
            let (new_codes, new_scales) = cast(&values);
            codes.write_bytes(&new_codes)?;
            scales.write_bytes(&scale_bytes(&new_scales, dims, scales))
        }
        SourceTensor::Rows(named) => {
            let available = x.dims()[0];
            for (i, row) in named.to_vec::<i32>()?.into_iter().enumerate() {
                let Some(row) = usize::try_from(row).ok().filter(|row| *row < available) else { continue };
                let (new_codes, new_scales) = blocks.cast(&values[row * columns..][..columns], 1, columns);
                codes.narrow(0, i, 1)?.write_bytes(&new_codes)?;
                write_scale_row(scales, i, &new_scales)?;
            }
            Ok(())
        }
    }
}

/// Rows and columns of codes, two of which are a byte of FP4.
fn code_dims(codes: &Tensor) -> (usize, usize) {
    (codes.dims()[0], codes.dims()[1] * if codes.dtype() == DType::U8 { 2 } else { 1 })
}

/// `x / (1 + exp(-x))` in the steps of the kernel; numbers that are not normal are 0 there.
fn silu(x: f32) -> f32 {
    let flush = |x: f32| if x.is_subnormal() { 0.0 } else { x };
    let falling = flush(f64::from(flush(x * -std::f32::consts::LOG2_E)).exp2() as f32);
    x * flush(1.0 / flush(falling + 1.0))
}

/// RMSNorm of a row, with squares added in the order of the kernel.
fn normalized(row: &[f32], weights: &[f32], epsilon: f32) -> Vec<f32> {
    const LANES: usize = WARP as usize;
    let mut sums = vec![0.0f32; rms_norm::warps(row.len() as u32) as usize * LANES];
    for round in row.chunks(sums.len() * CHUNK as usize) {
        for (sum, chunk) in sums.iter_mut().zip(round.chunks(CHUNK as usize)) {
            *sum += chunk.iter().fold(0.0, |sum, value| value.mul_add(*value, sum));
        }
    }
    for warp in sums.chunks_mut(LANES) {
        for step in [1, 2, 4, 8, 16] {
            let before: Vec<f32> = warp.to_vec();
            (0..LANES).for_each(|lane| warp[lane] = before[lane] + before[lane ^ step]);
        }
    }
    let mut sums: Vec<f32> = sums.chunks(LANES).map(|warp| warp[0]).collect();
    sums.resize(sums.len().next_power_of_two(), 0.0);
    while sums.len() > 1 {
        sums = sums.chunks(2).map(|pair| pair[0] + pair[1]).collect();
    }
    let sum = sums[0];
    let factor = 1.0 / (sum * (1.0 / row.len() as f32) + epsilon).sqrt();
    let factor = if factor.is_infinite() { f32::NAN } else { factor };
    row.iter().zip(weights).map(|(value, weight)| value * weight * factor).collect()
}

/// The scales of one row of a tensor of any layout.
fn write_scale_row(scales: &mut Tensor, row: usize, values: &[f32]) -> Result<()> {
    if scales.dims().len() == 4 {
        let (block, within) = (row / 128, row % 128);
        for (fours, four) in values.chunks(4).enumerate() {
            let place = scales.select(block)?.select(fours)?;
            let mut word = place.narrow(0, within % 32, 1)?.narrow(1, within / 32, 1)?;
            word.write_bytes(&pack(four).to_le_bytes())?;
        }
        return Ok(());
    }
    let bytes = match scales.dtype() {
        DType::F32 => values.iter().flat_map(|scale| scale.to_le_bytes()).collect::<Vec<u8>>(),
        _ => values.chunks(4).flat_map(|four| pack(four).to_le_bytes()).collect(),
    };
    scales.narrow(0, row, 1)?.write_bytes(&bytes)
}

/// Up to four exponents in a word.
fn pack(scales: &[f32]) -> u32 {
    let exponent = |scale: &f32| ceil_to_power_of_two(*scale).to_bits() >> 23;
    scales.iter().enumerate().map(|(i, scale)| exponent(scale) << (8 * i)).sum()
}

/// The content of a tensor of scales, row-major as its elements are.
fn scale_bytes(values: &[f32], [rows, columns]: [usize; 2], scales: &Tensor) -> Vec<u8> {
    if scales.dtype() == DType::F32 {
        return values.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    }
    let fours = columns.div_ceil(4);
    let word = |row: usize, four: usize| match row < rows && 4 * four < columns {
        true => pack(&values[row * columns..][4 * four..columns.min(4 * four + 4)]),
        false => 0,
    };
    let words: Vec<u32> = match scales.dims().len() {
        4 => (0..rows.div_ceil(128))
            .flat_map(|block| (0..fours).map(move |four| (block, four)))
            .flat_map(|(block, four)| {
                (0..128).map(move |i| word(block * 128 + i / 4 + i % 4 * 32, four)).collect::<Vec<_>>()
            })
            .collect(),
        _ => (0..rows).flat_map(|row| (0..fours).map(move |four| word(row, four))).collect(),
    };
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// The scales of a tensor of any layout, row-major.
fn scale_values(scales: &Tensor, [rows, columns]: [usize; 2]) -> Result<Vec<f32>> {
    if scales.dtype() == DType::F32 {
        return scales.to_vec_f32();
    }
    let words: Vec<i32> = scales.to_vec()?;
    let fours = columns.div_ceil(4);
    let blocked = scales.dims().len() == 4;
    let value = |row: usize, column: usize| {
        let place = match blocked {
            true => (row / 128 * fours + column / 4) * 128 + row % 32 * 4 + row % 128 / 32,
            false => row * fours + column / 4,
        };
        f32::from_bits((words[place] as u32 >> (8 * (column % 4)) & 0xff) << 23)
    };
    Ok((0..rows)
        .flat_map(|row| (0..columns).map(move |column| (row, column)))
        .map(|(r, c)| value(r, c))
        .collect())
}

/// The codes by one scale. The arguments have been checked.
pub(crate) fn quantize_by_scale(x: &Tensor, scale: &Tensor, codes: &mut Tensor) -> Result<()> {
    let blocks = Blocks { rows: 1, columns: 1, code: codes.dtype(), format: ScaleFormat::F32 };
    let factor = 1.0 / scale.to_vec_f32()?[0];
    let new: Vec<u8> = x.to_vec_f32()?.into_iter().map(|value| blocks.encode(value, factor)).collect();
    codes.write_bytes(&new)
}

/// The arguments have been checked.
pub(crate) fn dequantize(
    codes: &Tensor,
    scales: &Tensor,
    x: &mut Tensor,
    granularity: Granularity,
) -> Result<()> {
    let (rows, columns) = code_dims(codes);
    let [down, across] = granularity.block(rows, columns);
    let dims = granularity.scale_dims(rows, columns);
    let scales = scale_values(scales, dims)?;
    let scale = |i: usize| scales[i / columns / down * dims[1] + i % columns / across];
    let codes = match codes.dtype() {
        DType::U8 => {
            codes.to_bytes()?.into_iter().flat_map(|pair| [pair & 15, pair >> 4]).map(decode_e2m1).collect()
        }
        _ => codes.to_vec_f32()?,
    };
    let values: Vec<f32> =
        codes.into_iter().enumerate().map(|(i, code)| nan_of_gpu(code * scale(i))).collect();
    write_values(x, &values)
}

/// Rounds values to the type of a tensor.
pub(super) fn write_values(x: &mut Tensor, values: &[f32]) -> Result<()> {
    // Of NaN, the one that a GPU rounds to.
    let bytes = match x.dtype() {
        DType::F32 => x.dtype().encode(values),
        dtype => {
            let mut bytes = dtype.encode(values);
            for (half, _) in bytes.chunks_exact_mut(2).zip(values).filter(|(_, value)| value.is_nan()) {
                half.copy_from_slice(&0x7fffu16.to_le_bytes());
            }
            bytes
        }
    };
    x.write_bytes(&bytes)
}

pub(super) fn nan_of_gpu(value: f32) -> f32 {
    if value.is_nan() { f32::from_bits(0x7fff_ffff) } else { value }
}

/// The arguments have been checked.
pub(crate) fn transform_scales(from: &Tensor, to: &mut Tensor) -> Result<()> {
    if from.dims().len() == 3 {
        for group in 0..from.dims()[0] {
            transform_scales(&from.select(group)?, &mut to.select(group)?)?;
        }
        return Ok(());
    }
    let dims = [from.dims()[0], from.dims()[1]];
    let bytes = scale_bytes(&from.to_vec_f32()?, dims, to);
    to.write_bytes(&bytes)
}
