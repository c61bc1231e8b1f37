//! The argument checks of quantization, of its inverse, and of transforms of scales.

mod dual;
mod layout;
mod nvfp4;
mod transform;

pub use dual::QuantizeBoth;
pub use nvfp4::{DequantizeNvfp4, QuantizeNvfp4};
pub use transform::TransformScales;

use layout::{ScaleLayout, ceil};
use oxigemm_kernels::quantize::{Args, Code, Flags, Input};

use super::Operand;
use crate::error::{Error, Result};
use crate::tensor::DType;
use crate::tensor::granularity::{Granularity, ScaleFormat};

/// Kernels count chunks of eight elements in 31 bits.
const CHUNKS_LIMIT: i64 = 1 << 30;

/// Where the values come from that are quantized.
#[derive(Clone, Copy, Debug)]
pub enum QuantizeSource {
    /// From `x`, `[M, K]`.
    Matrix,
    /// They are `silu(gate) * up`, where `x` is `[M, 2K]`: the gates of a row, and then its ups.
    SwiGlu,
    /// From rows of `x`, `[T, K]`, which `[M]` i32 name; a row that is not among them stays as it is.
    Rows(Operand),
    /// They are `x * weight * (1 / sqrt(mean(x * x) + epsilon))`, where the mean is that of the row.
    RmsNorm {
        /// `[K]`, of the type of `x`.
        weight: Operand,
        /// What is added to the mean: not negative.
        epsilon: f32,
    },
}

/// The arguments of `quantize` and its kind.
#[derive(Clone, Copy, Debug)]
pub struct Quantize {
    /// bf16, f16 or f32, row-major.
    pub x: Operand,
    /// `[M, K]` e4m3 or e5m2, row-major.
    pub codes: Operand,
    /// The scales: see [`quantize`](crate::quantize).
    pub scales: Operand,
    /// Which values share a scale.
    pub granularity: Granularity,
    /// Which scales there may be.
    pub format: ScaleFormat,
    /// Where the values come from.
    pub source: QuantizeSource,
}

/// The arguments of `dequantize`.
#[derive(Clone, Copy, Debug)]
pub struct Dequantize {
    /// `[M, K]` e4m3 or e5m2, row-major.
    pub codes: Operand,
    /// The scales, as `quantize` writes them.
    pub scales: Operand,
    /// `[M, K]` bf16, f16 or f32, row-major.
    pub x: Operand,
    /// Which values share a scale.
    pub granularity: Granularity,
}

/// What a kernel has to be told.
#[derive(Clone, Copy, Debug)]
pub struct CheckedQuantize {
    /// The arguments, but for those of a launch.
    pub args: Args,
    /// The type of the values.
    pub input: Input,
    /// The type of the codes.
    pub code: Code,
    /// Whether neighbouring rows have neighbouring scales.
    pub mn_major: bool,
    /// How many groups of scales there are.
    pub groups: u32,
}

impl Quantize {
    /// Checks every rule of the call; nothing has to be done where there are no codes.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Option<CheckedQuantize>> {
        let Quantize { x, codes, scales, granularity, format, source } = self;
        let (input, code) = types(x, codes, *granularity)?;
        let [rows, columns] = code_dims(codes, code)?;
        let [x_rows, x_columns] = x.matrix_dims()?;
        match source {
            QuantizeSource::Matrix | QuantizeSource::RmsNorm { .. }
                if [x_rows, x_columns] != [rows, columns] =>
            {
                return Err(x.wrong_shape([rows, columns], "the shape of `codes`"));
            }
            QuantizeSource::SwiGlu if [x_rows, x_columns] != [rows, 2 * columns] => {
                return Err(x.wrong_shape([rows, 2 * columns], "gates and ups for the rows of `codes`"));
            }
            QuantizeSource::Rows(_) if x_columns != columns => {
                return Err(x.wrong_shape([x_rows, columns], "the columns of `codes`"));
            }
            _ => {}
        }
        let (few, expected) = match source {
            QuantizeSource::Matrix => (&[][..], ""),
            QuantizeSource::Rows(_) => (
                &[Granularity::PerToken, Granularity::PerGroup32][..],
                "1x128 or 1x32, where rows are gathered",
            ),
            QuantizeSource::SwiGlu | QuantizeSource::RmsNorm { .. } => {
                (&[Granularity::PerToken][..], "1x128, where values are computed")
            }
        };
        if !few.is_empty() {
            codes.expect_dtype(&[DType::E4m3])?;
        }
        if !few.is_empty() && !few.contains(granularity) {
            return Err(Error::Shape {
                argument: "granularity",
                expected: expected.to_owned(),
                found: granularity.to_string(),
            });
        }
        let layout = ScaleLayout::of(scales, *granularity, [rows, columns])?;
        if layout.is_packed() && *format == ScaleFormat::F32 {
            return Err(Error::DType {
                argument: scales.name,
                expected: "f32, as packed scales are powers of two".to_owned(),
                found: scales.dtype.to_string(),
            });
        }
        for operand in [codes, scales] {
            operand.expect_device(x)?;
        }
        let (list, epsilon) = match source {
            QuantizeSource::Rows(named) => {
                named.expect_dtype(&[DType::I32])?;
                named.expect_list(rows)?;
                (Some(named), 0.0)
            }
            QuantizeSource::RmsNorm { weight, epsilon } => {
                weight.expect_dtype(&[x.dtype])?;
                weight.expect_list(columns)?;
                (Some(weight), *epsilon)
            }
            QuantizeSource::Matrix | QuantizeSource::SwiGlu => (None, 0.0),
        };
        if !(epsilon >= 0.0 && epsilon.is_finite()) {
            return Err(Error::Shape {
                argument: "epsilon",
                expected: "a number that is not negative".to_owned(),
                found: epsilon.to_string(),
            });
        }
        if let Some(list) = list {
            list.expect_device(x)?;
        }
        if rows == 0 || columns == 0 {
            return Ok(None);
        }
        let (x_pitch, x_memory) = match x_rows {
            // Nothing is read, as no row can be named.
            0 => (columns as u64, None),
            _ => x.plain_rows().map(|(pitch, memory)| (pitch, Some(memory)))?,
        };
        let (codes_pitch, codes_memory) = codes.plain_rows()?;
        limit(codes, rows, columns)?;
        let scales_memory = layout.written(scales)?;
        if let Some(memory) = &x_memory {
            codes.expect_apart(&codes_memory, x, memory)?;
            scales.expect_apart(&scales_memory, x, memory)?;
        }
        scales.expect_apart(&scales_memory, codes, &codes_memory)?;
        let mut aligned = true;
        if let Some(list) = list {
            let (_, memory) = list.list().plain_rows()?;
            codes.expect_apart(&codes_memory, list, &memory)?;
            scales.expect_apart(&scales_memory, list, &memory)?;
            aligned = list.dtype == DType::I32 || list.address.is_multiple_of(16);
        }
        let mut args = layout.args(rows, columns);
        if aligned {
            args.flags |= vectors(x, x_pitch, codes, codes_pitch, code);
        }
        if *format == ScaleFormat::PowerOfTwo {
            args.flags |= Flags::POWER_OF_TWO;
        }
        let args = Args {
            x: x.address,
            codes: codes.address,
            scales: scales.address,
            aux: list.map_or(0, |list| list.address),
            epsilon: epsilon.to_bits(),
            // plain_rows has bounded both by u32::MAX.
            x_pitch: x_pitch as u32,
            codes_pitch: codes_pitch as u32,
            source_rows: x_rows as u32,
            ..args
        };
        Ok(Some(CheckedQuantize { args, input, code, mn_major: layout.mn_major(), groups: 1 }))
    }
}

impl Dequantize {
    /// Checks every rule of the call; nothing has to be done where there are no codes.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Option<CheckedQuantize>> {
        let Dequantize { codes, scales, x, granularity } = self;
        let (input, code) = types(x, codes, *granularity)?;
        let [rows, columns] = code_dims(codes, code)?;
        if x.matrix_dims()? != [rows, columns] {
            return Err(x.wrong_shape([rows, columns], "the shape of `codes`"));
        }
        let layout = ScaleLayout::of(scales, *granularity, [rows, columns])?;
        for operand in [scales, x] {
            operand.expect_device(codes)?;
        }
        if rows == 0 || columns == 0 {
            return Ok(None);
        }
        let (x_pitch, x_memory) = x.plain_rows()?;
        let (codes_pitch, codes_memory) = codes.plain_rows()?;
        limit(codes, rows, columns)?;
        let scales_memory = layout.memory(scales)?;
        x.expect_apart(&x_memory, codes, &codes_memory)?;
        x.expect_apart(&x_memory, scales, &scales_memory)?;
        let args = layout.args(rows, columns);
        let args = Args {
            x: x.address,
            codes: codes.address,
            scales: scales.address,
            x_pitch: x_pitch as u32,
            codes_pitch: codes_pitch as u32,
            shifts: granularity.shifts(),
            flags: args.flags | vectors(x, x_pitch, codes, codes_pitch, code),
            ..args
        };
        Ok(Some(CheckedQuantize { args, input, code, mn_major: layout.mn_major(), groups: 1 }))
    }
}

/// The type of a matrix.
fn input_of(x: &Operand) -> Result<Input> {
    x.expect_dtype(&[DType::Bf16, DType::F16, DType::F32])?;
    Ok(match x.dtype {
        DType::Bf16 => Input::Bf16,
        DType::F16 => Input::F16,
        _ => Input::F32,
    })
}

/// The types of a matrix and its codes.
fn types(x: &Operand, codes: &Operand, granularity: Granularity) -> Result<(Input, Code)> {
    let input = input_of(x)?;
    if granularity == Granularity::PerGroup32 {
        codes.expect_dtype(&[DType::E4m3, DType::E5m2, DType::U8])?;
    } else {
        codes.expect_dtype(&[DType::E4m3, DType::E5m2])?;
    }
    let code = match codes.dtype {
        DType::E4m3 => Code::E4m3,
        DType::E5m2 => Code::E5m2,
        _ => Code::E2m1,
    };
    Ok((input, code))
}

/// Rows and columns of codes.
fn code_dims(codes: &Operand, code: Code) -> Result<[i64; 2]> {
    let [rows, bytes] = codes.matrix_dims()?;
    Ok([rows, bytes * i64::from(code.per_byte())])
}

/// The flag of matrices that are moved as vectors of eight elements.
fn vectors(x: &Operand, x_pitch: u64, codes: &Operand, codes_pitch: u64, code: Code) -> u32 {
    let size = x.dtype.size() as u64;
    let chunk = u64::from(8 / code.per_byte());
    let whole = (codes.dims[1] as u64).is_multiple_of(chunk)
        && (x.dims[0] <= 1 || (x_pitch * size).is_multiple_of(16))
        && x.address.is_multiple_of(16)
        && (codes.dims[0] <= 1 || codes_pitch.is_multiple_of(chunk))
        && codes.address.is_multiple_of(chunk);
    if whole { Flags::VECTORS } else { 0 }
}

/// Refuses what kernels cannot count.
fn limit(codes: &Operand, rows: i64, columns: i64) -> Result<()> {
    if rows * ceil(columns, 8) < CHUNKS_LIMIT {
        return Ok(());
    }
    Err(codes.too_large(format!("fewer than {CHUNKS_LIMIT} chunks of eight elements")))
}
