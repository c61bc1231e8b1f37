//! What a fused epilogue quantizes D to, and the scales that go with it.

use oxigemm_kernels::gemm::epilogue::BlockOutput;
use oxigemm_kernels::quantize::vec8::Code;

use super::blocks_of;
use super::desc::EpilogueDesc;
use super::problem::QuantizedRows;
use crate::cast::ScaleFormat;
use crate::error::{Error, Result};
use crate::tensor::desc::Operand;
use crate::tensor::dtype::DType;

/// Formats of a quantized D whose scales are bytes, which a tensor core applies: those that
/// [`quantize`](crate::quantize) and [`quantize_nvfp4`](crate::quantize_nvfp4) write, to the bit.
///
/// Scales are packed, four of a row in an i32, the first in the lowest byte; the bytes behind the last of a row are 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BlockFormat {
    /// e4m3 with UE8M0 scales of 1x128.
    Fp8,
    /// e4m3 with UE8M0 scales of 1x32.
    Mxfp8,
    /// e2m1, two to a byte, with UE8M0 scales of 1x32.
    Mxfp4,
    /// e2m1, two to a byte, with e4m3 scales of 1x16 below one for all.
    Nvfp4 {
        /// That scale, which is given: a positive number that is not subnormal.
        tensor_scale: f32,
    },
}

impl BlockFormat {
    /// What the kernels call it.
    pub(crate) const fn output(self) -> BlockOutput {
        match self {
            BlockFormat::Fp8 => BlockOutput::Fp8,
            BlockFormat::Mxfp8 => BlockOutput::Mxfp8,
            BlockFormat::Mxfp4 => BlockOutput::Mxfp4,
            BlockFormat::Nvfp4 { .. } => BlockOutput::Nvfp4,
        }
    }

    /// Type of the tensor of codes.
    pub(crate) const fn dtype(self) -> DType {
        if self.codes_per_byte() == 2 { DType::U8 } else { DType::E4m3 }
    }

    /// Codes in a byte.
    pub(crate) const fn codes_per_byte(self) -> i64 {
        matches!(self.output().code(), Code::E2m1) as i64 + 1
    }

    /// Words of scales of a row of so many columns.
    pub(crate) fn words(self, columns: i64) -> i64 {
        blocks_of(blocks_of(columns, self.output().width().into()), 4)
    }

    /// The name that users read.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            BlockFormat::Fp8 => "fp8",
            BlockFormat::Mxfp8 => "mxfp8",
            BlockFormat::Mxfp4 => "mxfp4",
            BlockFormat::Nvfp4 { .. } => "nvfp4",
        }
    }
}

/// Format of a quantized D.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OutputFormat {
    /// e4m3 with FP32 scales of 1x128.
    Fp8(ScaleFormat),
    /// Scales of bytes.
    Blocks(BlockFormat),
}

impl OutputFormat {
    /// Type of D.
    pub(super) const fn dtype(self) -> DType {
        match self {
            OutputFormat::Fp8(_) => DType::E4m3,
            OutputFormat::Blocks(format) => format.dtype(),
        }
    }

    /// Codes in a byte of D.
    pub(crate) const fn codes_per_byte(self) -> i64 {
        match self {
            OutputFormat::Fp8(_) => 1,
            OutputFormat::Blocks(format) => format.codes_per_byte(),
        }
    }

    /// Checks the columns of D, and type and shape of its scales for rows of `above`.
    pub(super) fn check_shapes(self, scales: &Operand, columns: i64, above: &[i64]) -> Result<()> {
        let unit = 16 * self.codes_per_byte();
        if columns % unit != 0 {
            return Err(Error::Shape {
                argument: "d",
                expected: format!("a multiple of {unit} columns where it is quantized"),
                found: format!("{columns} columns"),
            });
        }
        let (dtype, across, meaning) = match self {
            OutputFormat::Fp8(_) => {
                (DType::F32, blocks_of(columns, 128), "one per row of `d` and 128 columns")
            }
            OutputFormat::Blocks(format) => {
                (DType::I32, format.words(columns), "words of four scales of a row of `d`")
            }
        };
        scales.expect_dtype(&[dtype])?;
        let mut expected = [across; 3];
        expected[..above.len()].copy_from_slice(above);
        scales.expect_every_scale(&expected[..above.len() + 1], meaning)?;
        match self {
            OutputFormat::Blocks(BlockFormat::Nvfp4 { tensor_scale })
                if !tensor_scale.is_normal() || tensor_scale < 0.0 =>
            {
                Err(Error::Shape {
                    argument: "tensor_scale",
                    expected: "a positive number that is not subnormal".to_owned(),
                    found: tensor_scale.to_string(),
                })
            }
            _ => Ok(()),
        }
    }

    /// What planning and launching need to know of it.
    pub(super) fn rows(self, strides: [u32; 2], slab: u32) -> QuantizedRows {
        match self {
            OutputFormat::Fp8(format) => QuantizedRows { format, blocks: None, strides, slab },
            OutputFormat::Blocks(blocks) => {
                let blocks = Some(blocks.output());
                QuantizedRows { format: ScaleFormat::PowerOfTwo, blocks, strides, slab }
            }
        }
    }
}

impl EpilogueDesc {
    /// The factor that a kernel is given in the place of C's: the scale of all of an NVFP4 D, which has no C.
    pub(crate) fn beta_or_tensor_scale(&self) -> f32 {
        match self.scales {
            Some((_, OutputFormat::Blocks(BlockFormat::Nvfp4 { tensor_scale }))) => tensor_scale,
            _ => self.beta,
        }
    }

    /// The format of D where its scales are bytes.
    pub(crate) fn block_format(&self) -> Option<BlockFormat> {
        match self.scales {
            Some((_, OutputFormat::Blocks(format))) => Some(format),
            _ => None,
        }
    }
}
