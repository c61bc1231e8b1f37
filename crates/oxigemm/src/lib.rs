//! Tensor-core kernels for large language models, in Rust, with only the GPU driver.
//!
//! The kernels are Rust functions that emit PTX. Shapes, strides and the number of SMs are kernel arguments, so a small
//! closed set serves every call and no shape compiles a kernel. What a call does:
//!
//! 1. [`check`]: every rule of the arguments, before any work. An error names the argument, what was expected of it
//!    and what came.
//! 2. [`plan`]: which kernel, how launched. A plan is made once for a problem and cached by its [`Device`].
//! 3. The launch. For a shape that was seen before nothing is allocated, compiled, or read from the environment
//!    on the way here, and everything can be captured into a CUDA graph.
//!
//! Where there is no GPU, [`Device::sim`] runs the very same kernels in the simulator ([`Sim`]), and [`Device::cpu`]
//! is the [`mod@reference`], which computes everything in `f64`:
//!
//! ```
//! use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
//! use oxigemm::metrics::calc_diff;
//! use oxigemm::{Addend, DType, Device, GemmOptions, Tensor, fp8_gemm_nt, random};
//!
//! let device = Device::cpu(); // Device::auto() takes a GPU, else the simulator
//! let (m, n, k) = (16, 256, 512);
//! let (x, w) = (random::normals(1, m * k), random::normals(2, n * k));
//!
//! // Activations have a scale per row and 128 of K, weights one per 128x128.
//! let (a, sfa) = per_token_cast_to_fp8(&x, m, k, ScaleFormat::F32)?.to_tensors(&device)?;
//! let (b, sfb) = per_block_cast_to_fp8(&w, n, k, ScaleFormat::F32)?.to_tensors(&device)?;
//! let mut d = Tensor::zeros(DType::Bf16, &[m, n], &device)?;
//! fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &GemmOptions::default())?;
//!
//! let row = |i: usize| (0..n).map(move |j| (i, j));
//! let exact: Vec<f64> = (0..m).flat_map(row).map(|(i, j)| {
//!     (0..k).map(|l| f64::from(x[i * k + l]) * f64::from(w[j * k + l])).sum()
//! }).collect();
//! assert!(calc_diff(&d.to_vec_f32()?, &exact) < 1e-3); // what three bits of mantissa cost
//! # Ok::<(), oxigemm::Error>(())
//! ```
//!
//! m-grouped GEMMs serve mixtures of experts, each of which has rows of its own: [`m_grouped_fp8_gemm_nt_contiguous`]
//! and [`m_grouped_fp8_gemm_nt_masked`]. k-grouped GEMMs compute the gradients of their weights:
//! [`k_grouped_fp8_gemm_nt_contiguous`].
//!
//! Fused epilogues do what follows a GEMM: bias, activation, gate, quantization ([`fp8_gemm_nt_fused`]).
//!
//! The attention indexer has [`fp8_mqa_logits`] and [`fp8_paged_mqa_logits`].
//!
//! [`layers`] keep quantized weights and call these functions: linear layers, experts, and checkpoints.
//!
//! Engines that own their memory call [`gemm_raw`] with addresses and a [`Stream`].

mod attention;
pub mod cast;
pub mod check;
mod device;
mod error;
mod gemm;
mod hyper_connection;
mod launch;
pub mod layers;
pub mod metrics;
mod moe;
mod moe_experts;
mod moe_forward;
mod parallel;
pub mod plan;
mod quantize;
pub mod random;
pub mod reference;
mod router;
mod tensor;

pub use attention::{
    RawMqaLogits, RawPagedMqaLogits, fp4_mqa_logits, fp4_paged_mqa_logits, fp8_mqa_logits,
    fp8_mqa_logits_raw, fp8_paged_mqa_logits, fp8_paged_mqa_logits_raw, get_paged_mqa_logits_metadata,
    get_paged_mqa_logits_metadata_raw,
};
pub use check::gemm::tensors::Addend;
pub use check::gemm::tensors::epilogue::{Epilogue, FusedOutput};
pub use check::gemm::tensors::groups::{GroupedRows, KGroupNumbers, RawGroups, RowGroups};
pub use check::{BlockFormat, GemmLayout, Granularity, GroupScore, HeadSplits, Router};
pub use device::{
    Cuda, Device, DeviceId, Event, Graph, Loaded, Sim, SimEvent, SimGraph, SimRank, SimStream, Stream,
};
pub use error::{Error, Result};
pub use float8::{F8E4M3, F8E5M2};
pub use gemm::GemmOptions;
pub use gemm::names::*;
pub use gemm::raw::{RawEpilogue, RawGemm, RawGrouping, RawMatrix, RawScaleFactors, gemm_raw};
pub use half::{bf16, f16};
pub use hyper_connection::{RawHcPrenormGemm, tf32_hc_prenorm_gemm, tf32_hc_prenorm_gemm_raw};
pub use launch::{LaunchOptions, Stats};
pub use moe::{
    PermutedRows, RawMoePermute, RawMoeUnpermute, RawPaddingRows, moe_gather, moe_permute, moe_permute_raw,
    moe_rows, moe_unpermute, moe_unpermute_raw, zero_padding_rows, zero_padding_rows_raw,
};
pub use moe_experts::{MoeExperts, MoeProjection};
pub use moe_forward::{
    MoeGroup, MoeGroupCall, MoeGroupShape, MoeRouting, moe_forward, moe_forward_group, moe_forward_quantized,
    moe_group_scratch_bytes, moe_publish, moe_scratch_bytes,
};
pub use oxigemm_kernels::Arch;
pub use oxigemm_kernels::gemm::epilogue::{Activation, Gate};
pub use oxigemm_kernels::gemm::params::{ScaleBlock, ScalesOfB};
pub use oxigemm_kernels::moe::score::Scoring;
pub use oxigemm_threads::set_interrupt_hook;
pub use quantize::{
    RawNvfp4, RawQuantize, RawScales, RawSource, RawTransformScales, RawTransposedCopy, TensorScale,
    TransposedCopy, blocked_scales, dequantize, dequantize_nvfp4, dequantize_nvfp4_raw, dequantize_raw,
    gather_quantize, gather_quantize_in_blocks, get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_mn_major_tma_aligned_packed_ue8m0_tensor, get_mn_major_tma_aligned_tensor, get_tma_aligned_size,
    packed_scales, quantize, quantize_by_scale, quantize_by_scale_raw, quantize_nvfp4, quantize_nvfp4_raw,
    quantize_raw, quantize_with_transpose, quantize_with_transpose_raw, rms_norm_quantize, swiglu_quantize,
    tma_aligned_scales, transform_scales, transform_scales_raw, transform_sf_into_required_layout,
};
pub use router::{RawMoeRoute, RawMoeTopK, RawRouting, moe_route, moe_route_raw, moe_top_k, moe_top_k_raw};
pub use tensor::{DType, Element, MAX_RANK, Tensor};

/// What the simulator is told and what it tells: see [`Sim`].
pub mod sim {
    pub use oxigemm_sim::{
        Fault, FaultKind, Launch, Module, Options, Param, Place, Policy, Report, TraceEvent, TraceUnit,
    };
}

/// The examples of the README, which compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}
