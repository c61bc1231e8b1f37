//! Activations for weights whose scales the tensor core applies: quantized rows, with scales in the words that GEMMs
//! read.

use super::operand::BlockScaled;
use crate::cast::ScaleFormat;
use crate::check::gemm::tensors::Gemm;
use crate::check::{BlockFormat, Granularity, OutputFormat};
use crate::device::Device;
use crate::error::Result;
use crate::launch::LaunchOptions;
use crate::quantize::{TensorScale, gather_quantize_in_blocks, packed_scales, quantize, quantize_nvfp4};
use crate::tensor::{DType, Tensor};

use oxigemm_kernels::gemm::params::ScaleBlock;

/// Quantized rows: `[M, K]` codes and `[M, words]` words.
#[derive(Debug)]
pub(super) struct QuantizedRows {
    codes: Tensor,
    words: Tensor,
}

impl QuantizedRows {
    /// The first rows.
    pub fn narrow(&self, m: usize) -> Result<QuantizedRows> {
        Ok(QuantizedRows { codes: self.codes.narrow(0, 0, m)?, words: self.words.narrow(0, 0, m)? })
    }
}

impl BlockScaled {
    /// Elements of an activation in a byte: FP4 goes with weights of NVFP4, FP8 with all others.
    fn per_byte(&self) -> usize {
        if self.block == ScaleBlock::Of16 { 2 } else { 1 }
    }

    fn granularity(&self) -> Granularity {
        match self.block {
            ScaleBlock::Of128 => Granularity::PerToken,
            ScaleBlock::Of32 | ScaleBlock::Of16 => Granularity::PerGroup32,
        }
    }

    /// Room for rows. What lies behind their K is zero.
    pub(super) fn room_for(&self, rows: usize, device: &Device) -> Result<QuantizedRows> {
        let dtype = if self.per_byte() == 2 { DType::U8 } else { DType::E4m3 };
        Ok(QuantizedRows {
            codes: Tensor::zeros(dtype, &[rows, self.padded / self.per_byte()], device)?,
            words: packed_scales(rows, self.k.div_ceil(self.block.size() as usize), device)?,
        })
    }

    /// Quantizes rows, in one kernel. `scale` is that of all of them, which NVFP4 has.
    pub(super) fn quantize(
        &self,
        x: &Tensor,
        to: &mut QuantizedRows,
        scale: Option<&Tensor>,
        options: &LaunchOptions,
    ) -> Result<()> {
        let mut codes = to.codes.narrow(1, 0, self.k / self.per_byte())?;
        match scale {
            Some(scale) if self.block == ScaleBlock::Of16 => {
                quantize_nvfp4(x, &mut codes, &mut to.words, TensorScale::Given(scale), options)
            }
            _ => {
                let format = ScaleFormat::PowerOfTwo;
                quantize(x, &mut codes, &mut to.words, self.granularity(), format, options)
            }
        }
    }

    /// Where a GEMM writes rows already quantized: codes, words and their format. Of FP8 only, as
    /// [`gather`](Self::gather).
    pub(super) fn output<'a>(&self, to: &'a QuantizedRows) -> Result<(Tensor, &'a Tensor, OutputFormat)> {
        let format = match self.block {
            ScaleBlock::Of128 => BlockFormat::Fp8,
            ScaleBlock::Of32 | ScaleBlock::Of16 => BlockFormat::Mxfp8,
        };
        Ok((to.codes.narrow(1, 0, self.k)?, &to.words, OutputFormat::Blocks(format)))
    }

    /// Gathers rows and quantizes them, in one kernel: of FP8 only.
    pub(super) fn gather(
        &self,
        x: &Tensor,
        rows: &Tensor,
        to: &mut QuantizedRows,
        options: &LaunchOptions,
    ) -> Result<()> {
        let mut codes = to.codes.narrow(1, 0, self.k)?;
        let (granularity, format) = (self.granularity(), ScaleFormat::PowerOfTwo);
        gather_quantize_in_blocks(x, rows, &mut codes, &mut to.words, granularity, format, options)
    }

    /// The GEMM of these rows with weights.
    pub(super) fn gemm<'a>(
        &self,
        a: &'a QuantizedRows,
        weight: (&'a Tensor, &'a Tensor),
        d: &'a Tensor,
    ) -> Gemm<'a> {
        let scale_blocks = [Some(self.block); 2];
        Gemm { scale_blocks, ..Gemm::fp8_fp4((&a.codes, &a.words), weight, d) }
    }
}
