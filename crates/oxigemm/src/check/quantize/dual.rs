//! The argument checks of a quantization that writes the transpose as well.

use oxigemm_kernels::quantize::{Args, Flags};

use super::layout::{ScaleLayout, ceil};
use super::{CheckedQuantize, Quantize, QuantizeSource};
use crate::error::{Error, Result};
use crate::tensor::DType;
use crate::tensor::desc::Operand;
use crate::tensor::granularity::Granularity;

/// The arguments of `quantize_with_transpose`.
#[derive(Clone, Copy, Debug)]
pub struct QuantizeBoth {
    /// What is done without the transpose; scales are f32, of 1x128 or 128x128.
    pub matrix: Quantize,
    /// `[K, M]`, row-major, of the type of the codes.
    pub transposed_codes: Operand,
    /// Of 1x128, `[K, ceil(M/128)]` f32 of any strides; of 128x128 there are none.
    pub transposed_scales: Option<Operand>,
}

impl QuantizeBoth {
    /// Checks every rule of the call; nothing has to be done where there are no codes.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Option<CheckedQuantize>> {
        let QuantizeBoth { matrix, transposed_codes, transposed_scales } = self;
        let Quantize { x, codes, scales, granularity, source, .. } = matrix;
        let matches_granularity = match granularity {
            Granularity::PerToken => transposed_scales.is_some(),
            Granularity::PerBlock => transposed_scales.is_none(),
            _ => false,
        };
        if !matches_granularity || !matches!(source, QuantizeSource::Matrix) {
            return Err(Error::Shape {
                argument: "granularity",
                expected: "1x128 with scales of the transpose, or 128x128 without".to_owned(),
                found: format!(
                    "{granularity} {}",
                    if transposed_scales.is_some() { "with" } else { "without" }
                ),
            });
        }
        scales.expect_dtype(&[DType::F32])?;
        transposed_codes.expect_dtype(&[codes.dtype])?;
        let checked = matrix.check()?;
        let [rows, columns] = codes.matrix_dims()?;
        if transposed_codes.matrix_dims()? != [columns, rows] {
            return Err(transposed_codes.wrong_shape([columns, rows], "the transpose of `codes`"));
        }
        transposed_codes.expect_device(x)?;
        let layout = match transposed_scales {
            Some(scales) => {
                scales.expect_dtype(&[DType::F32])?;
                scales.expect_device(x)?;
                Some((scales, ScaleLayout::scales(scales, [columns, ceil(rows, 128)])?))
            }
            None => None,
        };
        let Some(checked) = checked else { return Ok(None) };
        let (pitch, codes_memory) = transposed_codes.plain_rows()?;
        for other in [x, codes] {
            transposed_codes.expect_apart(&codes_memory, other, &other.plain_rows()?.1)?;
        }
        let scales_memory = ScaleLayout::of(scales, *granularity, [rows, columns])?.written(scales)?;
        transposed_codes.expect_apart(&codes_memory, scales, &scales_memory)?;
        let (mut address, mut strides) = (0, [0, 0]);
        if let Some((own, layout)) = layout {
            let memory = layout.written(own)?;
            for other in [x, codes, transposed_codes] {
                own.expect_apart(&memory, other, &other.plain_rows()?.1)?;
            }
            own.expect_apart(&memory, scales, &scales_memory)?;
            (address, strides) = (own.address, layout.strides());
        }
        let vectors = rows % 16 == 0
            && (columns <= 1 || pitch.is_multiple_of(16))
            && transposed_codes.address.is_multiple_of(16);
        let args = Args {
            aux: transposed_codes.address,
            group_stride: address,
            // plain_rows has bounded it by u32::MAX.
            aux_strides: [pitch as u32, strides[0], strides[1]],
            flags: checked.args.flags | if vectors { Flags::TRANSPOSED_VECTORS } else { 0 },
            ..checked.args
        };
        Ok(Some(CheckedQuantize { args, ..checked }))
    }
}
