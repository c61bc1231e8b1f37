//! Cases for kernels with a fused epilogue.

use oxigemm::cast::ScaleFormat;
use oxigemm::{Activation, DType};
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_testkit::plan::operands_of;
use oxigemm_testkit::{AddendKind, EpilogueSpec, GemmCase, GroupLayout, OperandTypes, ScaleOrder};

use super::grouped::{case_of_rows, unaligned};
use super::{Case, Persistent, diverging, split_case};

/// An epilogue with rounded output, and one with quantized output.
fn epilogues(fusion: Fusion, types: &OperandTypes) -> [EpilogueSpec; 2] {
    let rounded = EpilogueSpec {
        activation: Activation::Silu,
        gated: fusion == Fusion::Gated,
        bias: Some(DType::Bf16),
        ..EpilogueSpec::NONE
    };
    let quantized = EpilogueSpec { quantized: Some((ScaleOrder::Row, ScaleFormat::F32)), ..rounded };
    [rounded, quantized].map(|epilogue| epilogue.beside(types))
}

fn with(epilogue: EpilogueSpec, gemm: &GemmCase) -> GemmCase {
    GemmCase { epilogue: Some(epilogue), ..gemm.clone() }
}

/// Columns of two tiles for every warpgroup.
fn columns(fusion: Fusion) -> usize {
    2 * fusion.accumulators() as usize * 128
}

/// As [`diverging`]: rows of A and of B, whose gates are multiples of 128 where they share scales.
fn fused_diverging(kernel: &Persistent, fusion: Fusion) -> [usize; 2] {
    let [m, n] = diverging([kernel.block_m, 128]);
    let n = match kernel.types.has_scales() && fusion == Fusion::Gated {
        true => 2 * 128,
        false if kernel.types.has_scales() => n,
        false => n * fusion.accumulators() as usize,
    };
    [m, n]
}

/// A deep GEMM in clusters, one that lanes store, and one whose K is short, with rounded and quantized output.
pub(super) fn dense(kernel: &Persistent, fusion: Fusion) -> Vec<Case> {
    let (block_m, columns, fp8) = (kernel.block_m, columns(fusion), kernel.types.has_scales());
    let of = |m, n, k| {
        let sfa = if fp8 { ScaleOrder::RowPadded } else { ScaleOrder::Row };
        GemmCase { sfa, ..GemmCase::dense(kernel.types, kernel.layout, [m, n, k]) }
    };
    let deep = of(block_m / 2 + 2, columns, kernel.depth);
    let [m, n] = fused_diverging(kernel, fusion);
    let copied = GemmCase {
        sfa: ScaleOrder::Odd,
        sfb: ScaleOrder::Odd,
        d_type: DType::F32,
        addend: AddendKind::Inplace,
        ..of(m, n, kernel.depth)
    };
    let short = match fp8 {
        true => of(2 * block_m, 2 * columns, kernel.short),
        false => of(block_m + 8, columns, kernel.short),
    };
    let [rounded, quantized] = epilogues(fusion, &kernel.types);
    vec![
        kernel.case(with(rounded, &deep), [1, 2], 2),
        kernel.case(with(quantized, &deep), [2, 1], 2),
        kernel.case(with(rounded, &copied), [1, 1], 1),
        kernel.case(with(rounded, &short), [1, 1], 1),
        kernel.case(with(quantized, &short), [1, 1], 1),
    ]
}

/// The same for m-grouped kernels.
pub(super) fn m_grouped(kernel: &Persistent, fusion: Fusion) -> Vec<Case> {
    let (block_m, fp8) = (kernel.block_m, kernel.types.has_scales());
    let of = |layout, rows: &[usize], k| case_of_rows(kernel, layout, rows, [columns(fusion), k]);
    let order = |order| if fp8 { order } else { ScaleOrder::Row };
    let rows = [block_m / 2 + 2, 0, block_m + 1];
    let masked =
        GemmCase { sfa: order(ScaleOrder::RowPadded), ..of(GroupLayout::Counts, &rows, kernel.depth) };
    let ids = GemmCase { sfa: order(ScaleOrder::Mn), ..unaligned(of(GroupLayout::Ids, &rows, kernel.depth)) };
    let [m, n] = fused_diverging(kernel, fusion);
    let copied = GemmCase {
        n,
        sfa: order(ScaleOrder::Odd),
        d_type: DType::F32,
        addend: AddendKind::Inplace,
        ..of(GroupLayout::Ends, &[m, 0], kernel.depth)
    };
    let short = of(GroupLayout::Ends, &[block_m, 1, 17, 2], kernel.short);
    let [rounded, quantized] = epilogues(fusion, &kernel.types);
    vec![
        kernel.case(with(rounded, &masked), [1, 2], 2),
        kernel.case(with(quantized, &ids), [2, 1], 2),
        kernel.case(with(rounded, &copied), [1, 1], 1),
        kernel.case(with(rounded, &short), [1, 1], 1),
        kernel.case(with(quantized, &short), [1, 1], 1),
    ]
}

/// The same for split-K kernels: split and not, rounded and quantized, and as lanes store it one by one.
pub(super) fn split_k(kernel: &GemmKernel, fits: impl Fn(&Case) -> bool) -> Vec<Case> {
    let ((types, layout), fusion) = (operands_of(kernel), kernel.fusion());
    let block_m = kernel.tile()[0] as usize;
    let [rounded, quantized] = epilogues(fusion, &types);
    // Columns that end inside a tile, where that is allowed, and a K that goes around all rings.
    let columns = if types.has_scales() && fusion == Fusion::Gated { 128 } else { 112 };
    let of = |m| {
        let n = columns * fusion.accumulators() as usize;
        let k = 33 * kernel.operands().block_k() as usize + 16;
        GemmCase { sfa: ScaleOrder::RowPadded, ..GemmCase::dense(types, layout, [m, n, k]) }
    };
    let copied = GemmCase { sfa: ScaleOrder::Odd, sfb: ScaleOrder::Odd, ..of(block_m + 5) };
    let added = GemmCase { d_type: DType::F32, addend: AddendKind::Inplace, ..copied.clone() };
    let case =
        |gemm: &GemmCase, epilogue, split, stages| split_case(*kernel, with(epilogue, gemm), split, stages);
    // As many stages as fit, all of them used again; and as few as there can be.
    let most = kernel.stages().rev().map(|stages| case(&of(block_m), rounded, 1, stages)).find(fits);
    let few =
        [case(&of(block_m), quantized, 2, 2), case(&copied, quantized, 4, 2), case(&added, rounded, 2, 2)];
    most.into_iter().chain(few).collect()
}
