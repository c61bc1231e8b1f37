//! Tensor-core kernels for large language models, in Rust, with only the GPU driver.
//!
//! The kernels are Rust functions that write PTX; a shape, a stride or a number of multiprocessors is an argument of
//! theirs, so a small closed set serves every call and a new shape never compiles. What a call does:
//!
//! 1. [`check`]: every rule of the arguments, before any work. An error names the argument, what was expected of it
//!    and what came.
//! 2. [`plan`]: which kernel, how launched. A plan is made once for a problem and remembered by its [`Device`].
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
//! Mixtures of experts have a product of its own for the rows of each expert: [`m_grouped_fp8_gemm_nt_contiguous`] and
//! [`m_grouped_fp8_gemm_nt_masked`].
//!
//! Gradients of their weights are products with groups along K: [`k_grouped_fp8_gemm_nt_contiguous`].
//! The indexer of sparse attention has [`fp8_mqa_logits`] and [`fp8_paged_mqa_logits`].
//!
//! What follows a product can be part of it: bias, activation, gate, quantization ([`fp8_gemm_nt_fused`]).
//!
//! Engines that own their memory call [`fp8_gemm_nt_raw`] and [`m_grouped_fp8_gemm_nt_raw`] with addresses and a
//! [`Stream`].

mod attention;
mod call;
pub mod cast;
pub mod check;
mod device;
mod error;
mod fp8_batched;
mod fp8_layouts;
mod fused;
mod fused_grouped;
mod gemm;
mod grouped;
mod grouped_nn;
mod half_batched;
mod half_fused;
mod half_fused_grouped;
mod half_gemm;
mod half_grouped;
mod half_kgrouped;
mod half_summed;
mod hyper_connection;
mod kgrouped;
mod launch;
pub mod metrics;
mod moe;
pub mod plan;
mod quantize;
pub mod random;
pub mod reference;
mod remembered;
mod tensor;
mod transposed;
mod transposed_groups;

// The paths that the GEMM files still use for modules that stand in a folder now.
use device::{cuda as runtime, sim as simulated, stream};
use launch::cache as memo;
use tensor::{dtype, layout};

pub use attention::{
    RawMqaLogits, RawPagedMqaLogits, fp8_mqa_logits, fp8_mqa_logits_raw, fp8_paged_mqa_logits,
    fp8_paged_mqa_logits_raw, get_paged_mqa_logits_metadata, get_paged_mqa_logits_metadata_raw,
};
pub use check::{GemmLayout, Granularity, HeadSplits};
pub use device::{
    ARCH, Cuda, Device, DeviceId, Event, Graph, Loaded, Sim, SimEvent, SimGraph, SimStream, Stats, Stream,
};
pub use error::{Error, Result};
pub use float8::{F8E4M3, F8E5M2};
pub use fp8_batched::{RawFp8Bgemm, fp8_bgemm_nn, fp8_bgemm_nt, fp8_bgemm_nt_raw, fp8_einsum};
pub use fp8_layouts::{fp8_gemm, fp8_gemm_nn, fp8_gemm_raw, fp8_gemm_tn, fp8_gemm_tt};
pub use fused::{
    Epilogue, FusedOutput, RawFusedFp8Gemm, fp8_gemm_nt_fused, fp8_gemm_nt_fused_raw,
    fp8_gemm_nt_skip_head_mid,
};
pub use fused_grouped::{
    RawEpilogue, RawFusedGroupedFp8Gemm, m_grouped_fp8_gemm_nt_fused, m_grouped_fp8_gemm_nt_fused_raw,
};
pub use gemm::{Addend, GemmOptions, RawFp8Gemm, fp8_gemm_nt, fp8_gemm_nt_raw};
pub use grouped::{
    GroupedRows, RawGroupedFp8Gemm, RawGroups, RowGroups, m_grouped_fp8_gemm_nt_contiguous,
    m_grouped_fp8_gemm_nt_masked, m_grouped_fp8_gemm_nt_raw,
};
pub use grouped_nn::{
    m_grouped_fp8_gemm_nn_contiguous, m_grouped_fp8_gemm_nn_masked, m_grouped_fp8_gemm_nn_raw,
};
pub use half::{bf16, f16};
pub use half_batched::{
    RawHalfBgemm, bf16_bgemm_nn, bf16_bgemm_nt, einsum, fp16_bgemm_nn, fp16_bgemm_nt, half_bgemm,
    half_bgemm_raw,
};
pub use half_fused::{
    RawFusedHalfGemm, bf16_gemm_nt_fused, fp16_gemm_nt_fused, half_gemm_nt_fused, half_gemm_nt_fused_raw,
};
pub use half_fused_grouped::{
    RawFusedGroupedHalfGemm, m_grouped_bf16_gemm_nt_fused, m_grouped_fp16_gemm_nt_fused,
    m_grouped_half_gemm_nt_fused, m_grouped_half_gemm_nt_fused_raw,
};
pub use half_gemm::{
    RawHalfGemm, bf16_gemm_nn, bf16_gemm_nt, bf16_gemm_tn, bf16_gemm_tt, fp16_gemm_nn, fp16_gemm_nt,
    fp16_gemm_tn, fp16_gemm_tt, half_gemm, half_gemm_raw,
};
pub use half_grouped::{
    RawGroupedHalfGemm, m_grouped_bf16_gemm_nn_contiguous, m_grouped_bf16_gemm_nn_masked,
    m_grouped_bf16_gemm_nt_contiguous, m_grouped_bf16_gemm_nt_masked, m_grouped_fp16_gemm_nn_contiguous,
    m_grouped_fp16_gemm_nn_masked, m_grouped_fp16_gemm_nt_contiguous, m_grouped_fp16_gemm_nt_masked,
    m_grouped_half_gemm, m_grouped_half_gemm_raw,
};
pub use half_kgrouped::{
    RawKGroupedHalfGemm, k_grouped_bf16_gemm_nt_contiguous, k_grouped_bf16_gemm_tn_contiguous,
    k_grouped_fp16_gemm_nt_contiguous, k_grouped_fp16_gemm_tn_contiguous, k_grouped_half_gemm,
    k_grouped_half_gemm_raw,
};
pub use half_summed::{half_bgemm_nt_summed, half_bgemm_nt_summed_raw};
pub use hyper_connection::{RawHcPrenormGemm, tf32_hc_prenorm_gemm, tf32_hc_prenorm_gemm_raw};
pub use kgrouped::{
    RawKGroupedFp8Gemm, k_grouped_fp8_gemm_nt_contiguous, k_grouped_fp8_gemm_nt_contiguous_raw,
    k_grouped_fp8_gemm_tn_contiguous, k_grouped_fp8_gemm_tn_contiguous_raw,
};
pub use launch::LaunchOptions;
pub use moe::{
    PermutedRows, RawMoePermute, RawMoeUnpermute, RawPaddingRows, moe_permute, moe_permute_raw, moe_rows,
    moe_unpermute, moe_unpermute_raw, zero_padding_rows, zero_padding_rows_raw,
};
pub use oxigemm_kernels::gemm::epilogue::Activation;
pub use oxigemm_kernels::gemm::params::ScalesOfB;
pub use quantize::{
    RawNvfp4, RawQuantize, RawScales, RawSource, RawTransformScales, RawTransposedCopy, TensorScale,
    TransposedCopy, blocked_scales, dequantize, dequantize_nvfp4, dequantize_nvfp4_raw, dequantize_raw,
    gather_quantize, get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_mn_major_tma_aligned_packed_ue8m0_tensor, get_mn_major_tma_aligned_tensor, get_tma_aligned_size,
    packed_scales, quantize, quantize_by_scale, quantize_by_scale_raw, quantize_nvfp4, quantize_nvfp4_raw,
    quantize_raw, quantize_with_transpose, quantize_with_transpose_raw, rms_norm_quantize, swiglu_quantize,
    tma_aligned_scales, transform_scales, transform_scales_raw, transform_sf_into_required_layout,
};
pub use tensor::{DType, Element, MAX_RANK, Tensor};

/// What the simulator is told and what it tells: see [`Sim`].
pub mod sim {
    pub use oxigemm_sim::{Fault, FaultKind, Options, Place, Policy, Report, TraceEvent, TraceUnit};
}
