//! The argument checks of NVFP4.

use oxigemm_kernels::quantize::block_1x128::NVFP4_WIDTH;
use oxigemm_kernels::quantize::{Args, Code, Input};

use super::layout::{ScaleLayout, ceil};
use super::{CheckedQuantize, code_dims, input_of, limit, vectors};
use crate::error::Result;
use crate::tensor::DType;
use crate::tensor::desc::Operand;

/// The arguments of `quantize_nvfp4`.
#[derive(Clone, Copy, Debug)]
pub struct QuantizeNvfp4 {
    /// `[M, K]` bf16, f16 or f32, row-major.
    pub x: Operand,
    /// `[M, K/2]` u8, row-major: two codes each.
    pub codes: Operand,
    /// The scales of blocks: see [`quantize_nvfp4`](crate::quantize_nvfp4).
    pub scales: Operand,
    /// `[1]` f32: the scale of all.
    pub tensor_scale: Operand,
}

/// The arguments of `dequantize_nvfp4`.
#[derive(Clone, Copy, Debug)]
pub struct DequantizeNvfp4 {
    /// `[M, K/2]` u8, row-major.
    pub codes: Operand,
    /// The scales of blocks, as `quantize_nvfp4` writes them.
    pub scales: Operand,
    /// `[1]` f32.
    pub tensor_scale: Operand,
    /// `[M, K]` bf16, f16 or f32, row-major.
    pub x: Operand,
}

/// The shift from columns to those of scales.
const SHIFT: u32 = NVFP4_WIDTH.trailing_zeros();

/// What is written of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    Codes,
    Values,
}

impl QuantizeNvfp4 {
    /// Checks every rule of the call; nothing has to be done where there are no codes.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Option<CheckedQuantize>> {
        let QuantizeNvfp4 { x, codes, scales, tensor_scale } = self;
        check([x, codes, scales, tensor_scale], Written::Codes)
    }
}

impl DequantizeNvfp4 {
    /// Checks every rule of the call; nothing has to be done where there are no codes.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Option<CheckedQuantize>> {
        let DequantizeNvfp4 { codes, scales, tensor_scale, x } = self;
        check([x, codes, scales, tensor_scale], Written::Values)
    }
}

fn check(
    [x, codes, scales, tensor_scale]: [&Operand; 4],
    written: Written,
) -> Result<Option<CheckedQuantize>> {
    let input: Input = input_of(x)?;
    codes.expect_dtype(&[DType::U8])?;
    let [rows, columns] = code_dims(codes, Code::E2m1)?;
    if x.matrix_dims()? != [rows, columns] {
        return Err(x.wrong_shape([rows, columns], "two columns for each of `codes`"));
    }
    let layout = ScaleLayout::of_e4m3(scales, [rows, ceil(columns, NVFP4_WIDTH.into())])?;
    tensor_scale.expect_dtype(&[DType::F32])?;
    tensor_scale.expect_list(1)?;
    for operand in [codes, scales, tensor_scale] {
        operand.expect_device(x)?;
    }
    if rows == 0 || columns == 0 {
        return Ok(None);
    }
    let (x_pitch, x_memory) = x.plain_rows()?;
    let (codes_pitch, codes_memory) = codes.plain_rows()?;
    limit(codes, rows, columns)?;
    let scales_memory = match written {
        Written::Codes => layout.written(scales)?,
        Written::Values => layout.memory(scales)?,
    };
    let (_, tensor_memory) = tensor_scale.list().plain_rows()?;
    x.expect_apart(&x_memory, codes, &codes_memory)?;
    x.expect_apart(&x_memory, scales, &scales_memory)?;
    x.expect_apart(&x_memory, tensor_scale, &tensor_memory)?;
    if written == Written::Codes {
        scales.expect_apart(&scales_memory, codes, &codes_memory)?;
        tensor_scale.expect_apart(&tensor_memory, codes, &codes_memory)?;
        tensor_scale.expect_apart(&tensor_memory, scales, &scales_memory)?;
    }
    let args = layout.args(rows, columns);
    let args = Args {
        x: x.address,
        codes: codes.address,
        scales: scales.address,
        aux: tensor_scale.address,
        // plain_rows has bounded both by u32::MAX.
        x_pitch: x_pitch as u32,
        codes_pitch: codes_pitch as u32,
        shifts: [0, SHIFT],
        flags: args.flags | vectors(x, x_pitch, codes, codes_pitch, Code::E2m1),
        ..args
    };
    Ok(Some(CheckedQuantize { args, input, code: Code::E2m1, mn_major: layout.mn_major(), groups: 1 }))
}
