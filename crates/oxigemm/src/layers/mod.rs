//! Quantized layers: weights that are quantized once, kept as the kernels read them, and multiplied in a few kernels.
//!
//! | type | what |
//! |---|---|
//! | [`Recipe`], [`Strategy`] | what weights are quantized to, and how a device multiplies them |
//! | [`QuantizedWeight`] | codes and scales on the host, as checkpoints hold them |
//! | [`QuantizedLinear`] | a linear layer: two kernels |
//! | [`QuantizedExperts`] | gated experts of a mixture: five kernels |
//! | [`checkpoint`] | safetensors: FP8, MXFP8, MXFP4 and NVFP4 in the layouts of public checkpoints |
//!
//! ```
//! use oxigemm::layers::{LayerOptions, QuantizedLinear, QuantizedWeight, Recipe};
//! use oxigemm::metrics::calc_diff;
//! use oxigemm::{DType, Device, GemmOptions, Tensor, random};
//!
//! let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
//! let (m, n, k) = (4, 256, 512);
//! let (x, w) = (random::normals(1, m * k), random::normals(2, n * k));
//! let weight = QuantizedWeight::quantize(&w, [1, n, k], Recipe::Mxfp4)?; // or checkpoint::Checkpoint::weight
//! let mut linear = QuantizedLinear::new(&weight, None, &device, &LayerOptions::default())?;
//! assert_eq!(linear.conversion().changed, 0); // MXFP4 is multiplied as FP8, without loss
//!
//! let x = Tensor::from_f32(DType::Bf16, &x, &[m, k], &device)?;
//! let mut out = Tensor::empty(DType::Bf16, &[m, n], &device)?;
//! linear.forward(&x, &mut out, &GemmOptions::default())?;
//! let expected = {
//!     let (x, w) = (x.to_vec_f32()?, weight.dequantize());
//!     let dot = |i: usize, j: usize| (0..k).map(|l| f64::from(x[i * k + l]) * f64::from(w[j * k + l])).sum::<f64>();
//!     (0..m * n).map(|at| dot(at / n, at % n)).collect::<Vec<f64>>()
//! };
//! assert!(calc_diff(&out.to_vec_f32()?, &expected) < 1e-3); // what the activations lose
//! # Ok::<(), oxigemm::Error>(())
//! ```

mod activations;
mod block_scaled;
pub mod checkpoint;
mod expert_gemms;
mod experts;
mod linear;
mod memory;
mod operand;
mod recipe;
mod weight;
mod widen;

pub use experts::QuantizedExperts;
pub use linear::QuantizedLinear;
pub use operand::Conversion;
pub use recipe::{LayerOptions, Nvfp4Weights, Recipe, Strategy};
pub use weight::{QuantizedWeight, WeightScales};
pub use widen::{Widened, widen_mxfp4};
