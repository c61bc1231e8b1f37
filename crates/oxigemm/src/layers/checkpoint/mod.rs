//! Quantized weights in safetensors files, as public checkpoints name and store them.
//!
//! | weights | tensors of a layer `name` | [`CheckpointLayout`] |
//! |---|---|---|
//! | FP8, 128x128 | `name.weight` F8_E4M3, `name.weight_scale_inv` F32 or BF16 `[N/128, K/128]`; also F8_E8M0 | `DeepSeek` |
//! | FP8, any block | `name.weight` F8_E4M3, `name.weight_scale` `[N/128, K/128]`, `[N, K/128]`, `[N, 1]`, `[N]` or one | `CompressedTensors`, `ModelOpt` |
//! | MXFP8 | `name.weight` F8_E4M3, `name.weight_scale` U8 or F8_E8M0 `[N, K/32]` | `ModelOpt` |
//! | MXFP4 | `name_blocks` U8 `[.., N, K/32, 16]`, `name_scales` U8 `[.., N, K/32]` | `GptOss` |
//! | MXFP4 | `name.weight` U8 `[N, K/2]`, `name.weight_scale` U8 or F8_E8M0 `[N, K/32]` | `ModelOpt` |
//! | MXFP4 | the same with `name.weight_packed` | `CompressedTensors` |
//! | NVFP4 | `name.weight` U8 `[N, K/2]`, `name.weight_scale` F8_E4M3 `[N, K/16]`, `name.weight_scale_2` F32, a factor | `ModelOpt` |
//! | NVFP4 | `name.weight_packed`, `name.weight_scale`, `name.weight_global_scale` F32, which divides | `CompressedTensors` |
//!
//! Two FP4 codes are in a byte, the first in the low half. A leading dimension is that of experts, which then have
//! scalars of their own, `[E]`. Rows of gate and up that a checkpoint of gpt-oss has in turn stay so:
//! [`QuantizedWeight::deinterleave_gate_up`](super::QuantizedWeight::deinterleave_gate_up).
//!
//! ```
//! use oxigemm::layers::checkpoint::{Checkpoint, CheckpointLayout, CheckpointWriter};
//! use oxigemm::layers::{QuantizedWeight, Recipe};
//! use oxigemm::random;
//!
//! let weight = QuantizedWeight::quantize(&random::normals(1, 64 * 128), [1, 64, 128], Recipe::Nvfp4)?;
//! let mut writer = CheckpointWriter::new();
//! writer.add("mlp.up_proj", &weight, CheckpointLayout::ModelOpt)?;
//! writer.add_f32("mlp.up_proj.bias", &[0.5; 64], &[64])?;
//! let file = writer.finish()?;
//!
//! let checkpoint = Checkpoint::read(&file)?;
//! assert_eq!(checkpoint.layers(), ["mlp.up_proj"]);
//! assert_eq!(checkpoint.weight("mlp.up_proj")?, weight);
//! assert_eq!(checkpoint.bias("mlp.up_proj")?, Some(vec![0.5; 64]));
//! # Ok::<(), oxigemm::Error>(())
//! ```

mod read;
mod write;

pub use read::Checkpoint;
pub use write::CheckpointWriter;

/// How a checkpoint names and stores quantized weights: see the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckpointLayout {
    /// `weight` and `weight_scale_inv`: FP8.
    DeepSeek,
    /// `weight` and `weight_scale`; of NVFP4 also `weight_scale_2`.
    ModelOpt,
    /// `weight_packed` and `weight_scale` for FP4, of NVFP4 also `weight_global_scale`; `weight` for FP8 and MXFP8.
    CompressedTensors,
    /// `_blocks` and `_scales`: MXFP4.
    GptOss,
}

/// The ends of names that quantized weights have beside codes.
const SCALE_INV: &str = "weight_scale_inv";
const SCALE: &str = "weight_scale";
const SCALE_2: &str = "weight_scale_2";
const GLOBAL_SCALE: &str = "weight_global_scale";
const INPUT_SCALE: &str = "input_scale";
const INPUT_GLOBAL_SCALE: &str = "input_global_scale";
const WEIGHT: &str = "weight";
const PACKED: &str = "weight_packed";
const BLOCKS: &str = "_blocks";
const SCALES: &str = "_scales";
