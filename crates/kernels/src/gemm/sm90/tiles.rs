//! Tiles and stages of the Hopper kernels: the closed set.

use super::{Kernel, f16_persistent, fp8_mxfp4, fp8_persistent, fp8_scales32, split_k};
use crate::gemm::epilogue::fusion::Fusion;
use crate::gemm::operand::f16::{Major, Operands};
use crate::gemm::operand::fp8::E5m2;
use crate::gemm::params::ScalesOfB;
use crate::gemm::scheduler::m_grouped::Grouping;

/// Rows and columns of a tile, and pipeline stages, of a persistent kernel.
type PersistentTile = (u32, u32, u32);
/// Rows and columns of a tile of a split-K kernel.
type SplitKTile = (u32, u32);

/// FP8, dense.
const FP8: &[PersistentTile] = &[
    (256, 128, 3),
    (128, 96, 5),
    (128, 112, 5),
    (128, 128, 5),
    (128, 144, 4),
    (128, 160, 4),
    (128, 176, 4),
    (128, 192, 4),
    (64, 64, 12),
    (64, 128, 8),
    (64, 256, 4),
];
/// FP8, dense, with a stream-K tail.
const FP8_STREAM_K: &[PersistentTile] = &[(256, 128, 3)];
/// FP8, dense, with 1D1D scales.
const FP8_1D1D: &[PersistentTile] = &[(128, 128, 4), (64, 128, 6)];
/// FP8 with scales of 32, dense: 1x32 and 32x32 scales of B.
const FP8_SCALES32: &[PersistentTile] = &[(128, 128, 5), (64, 128, 7), (64, 64, 10)];
/// The same, m-grouped.
const FP8_SCALES32_M_GROUPED: &[PersistentTile] = &[(128, 128, 5), (64, 128, 7)];
/// FP8 by MXFP4, dense and m-grouped; and with a gate.
const FP8_MXFP4: &[PersistentTile] = &[(16, 128, 8), (32, 128, 6), (64, 128, 7), (128, 128, 4)];
const FP8_MXFP4_GATED: &[PersistentTile] = &[(16, 256, 8), (32, 256, 5), (64, 256, 3)];
/// FP8 with e5m2 operands.
const FP8_E5M2: &[PersistentTile] = &[(256, 128, 3), (128, 128, 5), (64, 128, 8)];
/// FP8, m-grouped.
const FP8_M_GROUPED: &[PersistentTile] =
    &[(256, 128, 3), (128, 128, 5), (128, 192, 4), (64, 64, 12), (64, 96, 10), (64, 128, 8), (64, 256, 4)];
/// FP8 batches, whose D may have any batch stride.
const FP8_BATCHED: &[PersistentTile] = &[(256, 128, 3), (128, 128, 5), (64, 128, 8)];
/// FP8, k-grouped, with 1D1D scales.
const FP8_K_GROUPED: &[PersistentTile] = &[(128, 128, 4)];
/// FP8 with a fused epilogue; and a small tile for dense GEMMs with small M.
const FP8_FUSED: &[PersistentTile] = &[(256, 128, 3), (128, 128, 5), (64, 128, 6)];
const FP8_FUSED_DENSE: &[PersistentTile] = &[(64, 64, 10)];

/// FP8 split-K.
const FP8_SPLIT_K: &[SplitKTile] = &[
    (8, 64),
    (16, 64),
    (32, 64),
    (64, 64),
    (128, 64),
    (8, 128),
    (16, 128),
    (32, 128),
    (64, 128),
    (128, 128),
];
/// FP8 split-K with e5m2 operands.
const FP8_E5M2_SPLIT_K: &[SplitKTile] = &[(8, 64), (64, 64)];

/// 16-bit operands, dense: every layout, and K-major operands alone.
const F16: &[PersistentTile] = &[(256, 128, 3), (128, 128, 6)];
const F16_NT: &[PersistentTile] =
    &[(128, 256, 3), (128, 192, 4), (128, 176, 4), (128, 144, 5), (128, 96, 6), (128, 64, 8), (64, 128, 8)];
/// The same with a stream-K tail.
const F16_STREAM_K_NT: &[PersistentTile] = &[(128, 256, 3), (128, 128, 6)];
/// 16-bit operands, m-grouped: a K-major A, and K-major operands alone.
const F16_M_GROUPED: &[PersistentTile] = &[(256, 128, 3), (128, 128, 6), (64, 128, 8)];
const F16_M_GROUPED_NT: &[PersistentTile] = &[(128, 256, 3), (64, 256, 4)];
/// 16-bit operands, k-grouped, both of the same major.
const F16_K_GROUPED: &[PersistentTile] = &[(256, 128, 3), (128, 128, 6)];
/// 16-bit operands with a fused epilogue, elementwise and gated: high tiles, in which a warpgroup has the 128 columns
/// of D that share a scale, and low ones.
const F16_FUSED: &[PersistentTile] = &[(256, 128, 3), (64, 128, 8)];
const F16_GATED: &[PersistentTile] = &[(128, 256, 4), (64, 128, 7), (64, 64, 10)];
/// The same, m-grouped: one each, because a warpgroup without rows skips its MMAs.
const F16_FUSED_M_GROUPED: &[PersistentTile] = &[(128, 128, 5)];
const F16_GATED_M_GROUPED: &[PersistentTile] = &[(128, 256, 3)];

/// 16-bit split-K: a K-major A, and K-major operands alone.
const F16_SPLIT_K: &[SplitKTile] = &[(8, 64), (64, 64)];
const F16_SPLIT_K_NT: &[SplitKTile] = &[(32, 64), (128, 64), (128, 128)];
/// 16-bit split-K kernels that sum a batch: K-major, and few, because K is long.
const F16_SUMMED: &[SplitKTile] = &[(64, 64), (128, 128)];

/// Split-K with a fused epilogue, elementwise and gated: 128 columns of D, which share a scale.
const SPLIT_K_FUSED: &[SplitKTile] = &[(8, 128), (32, 128), (64, 128), (128, 128)];
const SPLIT_K_GATED: &[SplitKTile] = &[(8, 256), (32, 256), (64, 256)];

/// Persistent FP8 kernels with these tiles.
fn fp8(
    tiles: &[PersistentTile],
    grouping: Grouping,
    scales_of_b: ScalesOfB,
) -> impl Iterator<Item = fp8_persistent::Config> {
    tiles.iter().map(move |&(block_m, block_n, stages)| fp8_persistent::Config {
        block_m,
        block_n,
        stages,
        grouping,
        d_in_slabs: false,
        scales_of_b,
        e5m2: None,
        fusion: Fusion::None,
        stream_k: false,
    })
}

/// Persistent FP8 kernels with scales of 32 and these tiles.
fn fp8_scales32(tiles: &[PersistentTile], grouping: Grouping) -> impl Iterator<Item = Kernel> {
    [ScalesOfB::Rows, ScalesOfB::Blocks].into_iter().flat_map(move |scales_of_b| {
        tiles.iter().map(move |&(block_m, block_n, stages)| {
            Kernel::Fp8Scales32(fp8_scales32::Config { block_m, block_n, stages, grouping, scales_of_b })
        })
    })
}

/// Persistent FP8 by MXFP4 kernels, with every epilogue.
fn fp8_mxfp4(grouping: Grouping) -> impl Iterator<Item = Kernel> {
    let tiles =
        [(Fusion::None, FP8_MXFP4), (Fusion::Elementwise, FP8_MXFP4), (Fusion::Gated, FP8_MXFP4_GATED)];
    tiles.into_iter().flat_map(move |(fusion, tiles)| {
        tiles.iter().map(move |&(block_m, block_n, stages)| {
            Kernel::Fp8Mxfp4(fp8_mxfp4::Config { block_m, block_n, stages, grouping, fusion })
        })
    })
}

fn fp8_split_k((block_m, block_n): SplitKTile) -> split_k::fp8::Config {
    split_k::fp8::Config { block_m, block_n, e5m2: None, fusion: Fusion::None }
}

/// Persistent 16-bit kernels with these tiles.
fn f16(
    operands: Operands,
    tiles: &[PersistentTile],
    grouping: Grouping,
    fusion: Fusion,
) -> impl Iterator<Item = f16_persistent::Config> {
    tiles.iter().map(move |&(block_m, block_n, stages)| f16_persistent::Config {
        operands,
        block_m,
        block_n,
        stages,
        grouping,
        stream_k: false,
        fusion,
    })
}

fn f16_split_k(operands: Operands, (block_m, block_n): SplitKTile) -> split_k::f16::Config {
    split_k::f16::Config { operands, block_m, block_n, summed: false, fusion: Fusion::None }
}

/// Both 16-bit types in the layout NT.
fn nt() -> impl Iterator<Item = Operands> {
    Operands::all().filter(|operands| operands.layout() == "nt")
}

fn fp8_dense() -> impl Iterator<Item = Kernel> {
    let stream_k = fp8(FP8_STREAM_K, Grouping::Dense, ScalesOfB::Blocks)
        .map(|config| fp8_persistent::Config { stream_k: true, ..config });
    let split_k = FP8_SPLIT_K.iter().copied().map(fp8_split_k);
    fp8(FP8, Grouping::Dense, ScalesOfB::Blocks)
        .chain(stream_k)
        .map(Kernel::Fp8Persistent)
        .chain(split_k.map(Kernel::Fp8SplitK))
        .chain(fp8(FP8_1D1D, Grouping::Dense, ScalesOfB::Rows).map(Kernel::Fp8Persistent))
}

fn f16_dense() -> impl Iterator<Item = Kernel> {
    Operands::all().flat_map(|operands| {
        let k_major = operands.layout() == "nt";
        let more = if k_major { F16_NT } else { &[] };
        let split_k = if operands.a == Major::K { F16_SPLIT_K } else { &[] };
        let split_k = split_k.iter().chain(if k_major { F16_SPLIT_K_NT } else { &[] });
        [F16, more]
            .into_iter()
            .flat_map(move |tiles| f16(operands, tiles, Grouping::Dense, Fusion::None))
            .map(Kernel::F16Persistent)
            .chain(split_k.map(move |&tile| Kernel::F16SplitK(f16_split_k(operands, tile))))
    })
}

fn f16_stream_k() -> impl Iterator<Item = Kernel> {
    nt().flat_map(|operands| f16(operands, F16_STREAM_K_NT, Grouping::Dense, Fusion::None))
        .map(|config| Kernel::F16Persistent(f16_persistent::Config { stream_k: true, ..config }))
}

fn fp8_e5m2() -> impl Iterator<Item = Kernel> {
    E5m2::ALL.into_iter().map(Some).flat_map(|e5m2| {
        let persistent = fp8(FP8_E5M2, Grouping::Dense, ScalesOfB::Blocks)
            .map(move |config| Kernel::Fp8Persistent(fp8_persistent::Config { e5m2, ..config }));
        let split_k = FP8_E5M2_SPLIT_K
            .iter()
            .map(move |&tile| Kernel::Fp8SplitK(split_k::fp8::Config { e5m2, ..fp8_split_k(tile) }));
        persistent.chain(split_k)
    })
}

fn f16_m_grouped() -> impl Iterator<Item = Kernel> {
    Operands::all().filter(|operands| operands.a == Major::K).flat_map(|operands| {
        let more = if operands.b == Major::K { F16_M_GROUPED_NT } else { &[] };
        [F16_M_GROUPED, more]
            .into_iter()
            .flat_map(move |tiles| f16(operands, tiles, Grouping::Rows, Fusion::None))
            .map(Kernel::F16Persistent)
    })
}

fn f16_k_grouped() -> impl Iterator<Item = Kernel> {
    Operands::all()
        .filter(|operands| operands.a == operands.b)
        .flat_map(|operands| f16(operands, F16_K_GROUPED, Grouping::K, Fusion::None))
        .map(Kernel::F16Persistent)
}

const FUSIONS: [Fusion; 2] = [Fusion::Elementwise, Fusion::Gated];

fn fp8_fused(grouping: Grouping) -> impl Iterator<Item = Kernel> {
    let more = if grouping == Grouping::Dense { FP8_FUSED_DENSE } else { &[] };
    FUSIONS.into_iter().flat_map(move |fusion| {
        let configs =
            [FP8_FUSED, more].into_iter().flat_map(move |tiles| fp8(tiles, grouping, ScalesOfB::Blocks));
        configs.map(move |config| Kernel::Fp8Persistent(fp8_persistent::Config { fusion, ..config }))
    })
}

fn f16_fused(grouping: Grouping) -> impl Iterator<Item = Kernel> {
    let tiles = match grouping {
        Grouping::Rows => [F16_FUSED_M_GROUPED, F16_GATED_M_GROUPED],
        Grouping::Dense | Grouping::K => [F16_FUSED, F16_GATED],
    };
    nt().flat_map(move |operands| {
        let kinds = FUSIONS.into_iter().zip(tiles);
        kinds
            .flat_map(move |(fusion, tiles)| f16(operands, tiles, grouping, fusion))
            .map(Kernel::F16Persistent)
    })
}

fn split_k_fused() -> impl Iterator<Item = Kernel> {
    let all = || {
        FUSIONS
            .into_iter()
            .zip([SPLIT_K_FUSED, SPLIT_K_GATED])
            .flat_map(|(fusion, tiles)| tiles.iter().map(move |&tile| (fusion, tile)))
    };
    let fp8 =
        all().map(|(fusion, tile)| Kernel::Fp8SplitK(split_k::fp8::Config { fusion, ..fp8_split_k(tile) }));
    let f16 = nt().flat_map(move |operands| {
        all().map(move |(fusion, tile)| {
            Kernel::F16SplitK(split_k::f16::Config { fusion, ..f16_split_k(operands, tile) })
        })
    });
    fp8.chain(f16)
}

fn f16_summed() -> impl Iterator<Item = Kernel> {
    nt().flat_map(|operands| {
        F16_SUMMED.iter().map(move |&tile| {
            Kernel::F16SplitK(split_k::f16::Config { summed: true, ..f16_split_k(operands, tile) })
        })
    })
}

impl Kernel {
    /// Every GEMM kernel for Hopper. The type of one chained iterator would be the types of all of these, by name in the
    /// debug information of each use.
    pub fn all() -> impl Iterator<Item = Kernel> {
        let m_grouped = fp8(FP8_M_GROUPED, Grouping::Rows, ScalesOfB::Blocks).map(Kernel::Fp8Persistent);
        let k_grouped = fp8(FP8_K_GROUPED, Grouping::K, ScalesOfB::Rows).map(Kernel::Fp8Persistent);
        let batched = fp8(FP8_BATCHED, Grouping::Rows, ScalesOfB::Blocks)
            .map(|config| Kernel::Fp8Persistent(fp8_persistent::Config { d_in_slabs: true, ..config }));
        let mut all: Vec<Kernel> = fp8_dense().collect();
        all.extend(f16_dense());
        all.extend(f16_stream_k());
        all.extend(fp8_e5m2());
        all.extend(m_grouped);
        all.extend(f16_m_grouped());
        all.extend(k_grouped);
        all.extend(f16_k_grouped());
        all.extend(fp8_fused(Grouping::Dense));
        all.extend(f16_fused(Grouping::Dense));
        all.extend(split_k_fused());
        all.extend(f16_summed());
        all.extend(batched);
        all.extend(fp8_fused(Grouping::Rows));
        all.extend(f16_fused(Grouping::Rows));
        all.extend(fp8_scales32(FP8_SCALES32, Grouping::Dense));
        all.extend(fp8_scales32(FP8_SCALES32_M_GROUPED, Grouping::Rows));
        all.extend(fp8_mxfp4(Grouping::Dense));
        all.extend(fp8_mxfp4(Grouping::Rows));
        all.into_iter()
    }
}
