//! Tiles and stages of the Blackwell kernels: the closed set.
//!
//! A pair's tile has 256 rows, a single CTA's 128. Two accumulators and the scales of a stage share the 512 columns of
//! tensor memory; those of 256 columns overlap where there are scales.

use super::{Kernel, persistent, split_k};
use crate::gemm::epilogue::fusion::Fusion;
use crate::gemm::kind::{ElementType, OperandKind};
use crate::gemm::operand::f16::{Major, Operands};
use crate::gemm::params::{ScaleBlock, ScalesOfB};
use crate::gemm::scheduler::m_grouped::Grouping;

/// Columns of a tile, whether a pair computes it, and pipeline stages.
type Tile = (u32, bool, u32);

/// 16-bit operands: every layout, and K-major operands alone.
const F16: &[Tile] = &[(256, true, 6), (128, true, 8)];
const F16_NT: &[Tile] = &[(128, false, 6), (64, false, 8)];
/// 16-bit operands, m-grouped: a K-major A.
const F16_M_GROUPED: &[Tile] = &[(256, true, 5), (128, false, 5)];
/// 16-bit operands with a fused epilogue: 128 columns of D share a scale where it is quantized.
const F16_FUSED: &[Tile] = &[(256, true, 5), (128, false, 5)];
const F16_GATED: &[Tile] = &[(256, true, 5), (256, false, 4)];

/// 16-bit operands, k-grouped: both as they lie in memory with K first, or both K-major. There is room for the table of
/// 1024 groups.
const F16_K_GROUPED: &[Tile] = &[(256, true, 5), (128, false, 5)];

/// TF32, dense.
const TF32: &[Tile] = &[(256, true, 6), (128, false, 6)];

/// Operands with scales: dense, and m-grouped.
const SCALED: &[Tile] = &[(256, true, 5), (192, true, 5), (128, true, 6), (128, false, 5), (64, false, 6)];
const SCALED_M_GROUPED: &[Tile] = &[(256, true, 5), (128, false, 5)];
/// The same, k-grouped: K-major, and as they lie in memory with K first, where a line of a tile is 128 rows.
const SCALED_K_GROUPED: &[Tile] = &[(256, true, 5), (128, false, 5)];
/// FP8 with scales, dense, where an operand is contiguous along M or N, and where one is e5m2.
const FP8_LAYOUTS: &[Tile] = SCALED_K_GROUPED;
const SCALED_E5M2: &[Tile] = SCALED_K_GROUPED;
/// The same with a fused epilogue. With a gate, 128 columns of D take 256 of an accumulator.
const SCALED_FUSED: &[Tile] = &[(256, true, 5), (128, true, 6), (128, false, 5)];
const SCALED_GATED: &[Tile] = &[(256, true, 5)];

/// Rows of A of split-K kernels: plain, of an M-major A, with a fused epilogue, and where a batch is summed.
const SPLIT_K: &[u32] = &[16, 32, 64, 128];
const SPLIT_K_M_MAJOR: &[u32] = &[64, 128];
const SPLIT_K_FP8_N_MAJOR: &[u32] = &[16, 64];
const SPLIT_K_FP8_M_MAJOR: &[u32] = &[128];
const SPLIT_K_E5M2: &[u32] = &[16, 64];
const SPLIT_K_TF32: &[u32] = &[16, 64];
const SPLIT_K_TF32_M_MAJOR: &[u32] = &[64];
const SPLIT_K_FUSED: &[u32] = &[16, 64];
const SUMMED: &[u32] = &[64, 128];

/// Split-K kernels.
fn split_k(
    operands: OperandKind,
    fusion: Fusion,
    summed: bool,
    rows: &[u32],
) -> impl Iterator<Item = Kernel> {
    rows.iter().map(move |&block_m| Kernel::SplitK(split_k::Config { operands, block_m, summed, fusion }))
}

/// Operands whose scales the tensor core applies.
fn scaled() -> impl Iterator<Item = OperandKind> {
    use ElementType::{E2m1, E4m3};
    let of_32 = [[E4m3, E4m3], [E4m3, E2m1], [E2m1, E4m3], [E2m1, E2m1]];
    let of_32 = of_32.map(|types| OperandKind::block_scaled(types, ScalesOfB::Rows, ScaleBlock::Of32));
    let of_128 = [[E4m3, E4m3], [E4m3, E2m1]].into_iter().flat_map(|types| {
        [ScalesOfB::Rows, ScalesOfB::Blocks]
            .map(|scales| OperandKind::block_scaled(types, scales, ScaleBlock::Of128))
    });
    let nvfp4 = OperandKind::block_scaled([E2m1; 2], ScalesOfB::Rows, ScaleBlock::Of16);
    of_32.into_iter().chain(of_128).chain([nvfp4])
}

/// What a list of tiles is for.
type Form = (Grouping, Fusion);

const DENSE: Form = (Grouping::Dense, Fusion::None);
const M_GROUPED: Form = (Grouping::Rows, Fusion::None);
const K_GROUPED: Form = (Grouping::K, Fusion::None);
const FUSED: Form = (Grouping::Dense, Fusion::Elementwise);
const GATED: Form = (Grouping::Dense, Fusion::Gated);
const FUSED_M_GROUPED: Form = (Grouping::Rows, Fusion::Elementwise);
const GATED_M_GROUPED: Form = (Grouping::Rows, Fusion::Gated);

fn persistent_kernels(
    operands: OperandKind,
    (grouping, fusion): Form,
    tiles: &[Tile],
) -> impl Iterator<Item = Kernel> {
    tiles.iter().map(move |&(block_n, pair, stages)| {
        let claims = false;
        Kernel::Persistent(persistent::Config { operands, block_n, pair, stages, grouping, fusion, claims })
    })
}

/// The kernel with a dynamic tile scheduler (cluster launch control), of k-grouped pairs: their tiles differ in K. All other
/// tiles take as long as each other.
fn claiming(kernel: Kernel) -> Option<Kernel> {
    match kernel {
        Kernel::Persistent(config) if config.grouping == Grouping::K && config.pair => {
            Some(Kernel::Persistent(persistent::Config { claims: true, ..config }))
        }
        _ => None,
    }
}

/// Kernels of 16-bit operands.
fn f16(operands: Operands) -> impl Iterator<Item = Kernel> {
    let (kind, a_k, nt) = (
        OperandKind::f16(operands),
        operands.a == Major::K,
        operands.a == Major::K && operands.b == Major::K,
    );
    let lists = [
        (true, DENSE, F16),
        (nt, DENSE, F16_NT),
        (a_k, M_GROUPED, F16_M_GROUPED),
        (operands.a == operands.b, K_GROUPED, F16_K_GROUPED),
        (nt, FUSED, F16_FUSED),
        (nt, FUSED_M_GROUPED, F16_FUSED),
        (nt, GATED, F16_GATED),
        (nt, GATED_M_GROUPED, F16_GATED),
    ];
    let persistent = lists
        .into_iter()
        .filter(|list| list.0)
        .flat_map(move |(_, form, tiles)| persistent_kernels(kind, form, tiles));
    let few_rows = [
        (true, Fusion::None, false, if a_k { SPLIT_K } else { SPLIT_K_M_MAJOR }),
        (nt, Fusion::Elementwise, false, SPLIT_K_FUSED),
        (nt, Fusion::Gated, false, SPLIT_K_FUSED),
        (nt, Fusion::None, true, SUMMED),
    ];
    let few_rows = few_rows.into_iter().filter(|list| list.0);
    persistent.chain(few_rows.flat_map(move |(_, fusion, summed, rows)| split_k(kind, fusion, summed, rows)))
}

/// Kernels of operands with scales. No function fuses a gate with NVFP4, whose tensor scales are a factor of the fused
/// epilogue.
fn block_scaled(operands: OperandKind) -> impl Iterator<Item = Kernel> {
    let lists = [
        (DENSE, SCALED),
        (M_GROUPED, SCALED_M_GROUPED),
        (FUSED, SCALED_FUSED),
        (FUSED_M_GROUPED, SCALED_FUSED),
        (GATED, SCALED_GATED),
        (GATED_M_GROUPED, SCALED_GATED),
    ];
    let few_rows =
        [(Fusion::None, SPLIT_K), (Fusion::Elementwise, SPLIT_K_FUSED), (Fusion::Gated, SPLIT_K_FUSED)];
    let has = move |fusion: Fusion| fusion != Fusion::Gated || operands.scale_block != ScaleBlock::Of16;
    let persistent = lists.into_iter().filter(move |(form, _)| has(form.1));
    let persistent = persistent.flat_map(move |(form, tiles)| persistent_kernels(operands, form, tiles));
    let few_rows = few_rows.into_iter().filter(move |(fusion, _)| has(*fusion));
    persistent.chain(few_rows.flat_map(move |(fusion, rows)| split_k(operands, fusion, false, rows)))
}

/// Dense kernels of e4m3 operands of which one or both are contiguous along M or N. FP4 has none: the tensor core takes it
/// K-major alone.
fn fp8_layouts() -> impl Iterator<Item = Kernel> {
    let layouts = [
        ([Major::K, Major::MN], SPLIT_K_FP8_N_MAJOR),
        ([Major::MN, Major::MN], SPLIT_K_FP8_M_MAJOR),
        ([Major::MN, Major::K], SPLIT_K_FP8_M_MAJOR),
    ];
    let is_fp8 =
        |operands: &OperandKind| [operands.a, operands.b].map(|x| x.element) == [ElementType::E4m3; 2];
    scaled().filter(is_fp8).flat_map(move |operands| {
        layouts.into_iter().flat_map(move |(majors, rows)| {
            let operands = operands.with_majors(majors);
            persistent_kernels(operands, DENSE, FP8_LAYOUTS).chain(split_k(
                operands,
                Fusion::None,
                false,
                rows,
            ))
        })
    })
}

/// Dense kernels of FP8 of which one or both operands are e5m2, K-major, with 128x128 scales for B.
fn e5m2() -> impl Iterator<Item = Kernel> {
    use ElementType::{E4m3, E5m2};
    [[E4m3, E5m2], [E5m2, E4m3], [E5m2, E5m2]].into_iter().flat_map(|types| {
        let operands = OperandKind::block_scaled(types, ScalesOfB::Blocks, ScaleBlock::Of128);
        let few_rows = split_k(operands, Fusion::None, false, SPLIT_K_E5M2);
        persistent_kernels(operands, DENSE, SCALED_E5M2).chain(few_rows)
    })
}

/// Dense kernels of FP32 operands that are multiplied as TF32, in every layout.
fn tf32() -> impl Iterator<Item = Kernel> {
    let majors = [Major::K, Major::MN];
    majors.into_iter().flat_map(move |a| majors.map(|b| [a, b])).flat_map(|majors| {
        let operands = OperandKind::tf32(majors);
        let rows = if majors[0] == Major::K { SPLIT_K_TF32 } else { SPLIT_K_TF32_M_MAJOR };
        persistent_kernels(operands, DENSE, TF32).chain(split_k(operands, Fusion::None, false, rows))
    })
}

/// K-grouped kernels of operands with scales: FP8 in both layouts, FP4 K-major.
fn k_grouped_scaled() -> impl Iterator<Item = Kernel> {
    use ElementType::{E2m1, E4m3};
    let kind = |element, block| OperandKind::block_scaled([element; 2], ScalesOfB::Rows, block);
    let fp8 = [ScaleBlock::Of128, ScaleBlock::Of32].map(|block| kind(E4m3, block));
    let k_major = fp8.into_iter().chain([kind(E2m1, ScaleBlock::Of32)]);
    let k_major = k_major.flat_map(|kind| persistent_kernels(kind, K_GROUPED, SCALED_K_GROUPED));
    let k_first = fp8.into_iter().map(OperandKind::with_k_first);
    k_major.chain(k_first.flat_map(|kind| persistent_kernels(kind, K_GROUPED, SCALED_K_GROUPED)))
}

impl Kernel {
    /// Every kernel for Blackwell: no shape ever needs another. The type of one chained iterator would be the types of all
    /// of these, by name in the debug information of each use.
    pub fn all() -> impl Iterator<Item = Kernel> {
        let mut all = Vec::new();
        Operands::all().for_each(|operands| all.extend(f16(operands)));
        scaled().for_each(|operands| all.extend(block_scaled(operands)));
        all.extend(k_grouped_scaled());
        let claiming: Vec<Kernel> = all.iter().copied().filter_map(claiming).collect();
        all.extend(fp8_layouts());
        all.extend(e5m2());
        all.extend(tf32());
        all.extend(claiming);
        all.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::epilogue::Panels;

    #[test]
    fn epilogue_warps_write_whole_panels() {
        for kernel in Kernel::all() {
            let Kernel::Persistent(config) = kernel else { continue };
            assert!(config.tile_columns().is_multiple_of(Panels::MAP_TILE[1]), "{}", config.name());
            // Where D is quantized, 128 columns share a scale.
            let fused = config.fusion != Fusion::None;
            assert!(!fused || config.tile_columns().is_multiple_of(128), "{}", config.name());
        }
    }
}
