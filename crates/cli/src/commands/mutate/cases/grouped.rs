//! Cases for kernels with groups.

use oxigemm::DType;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_testkit::plan::k_grouped_form_of;
use oxigemm_testkit::{AddendKind, GemmCase, GroupLayout, MGroups, ScaleOrder};

use super::{Case, Persistent};

/// Groups of rows, aligned to 16 where they are contiguous.
pub(super) fn case_of_rows(
    kernel: &Persistent,
    layout: GroupLayout,
    rows: &[usize],
    dims: [usize; 2],
) -> GemmCase {
    let alignment = if layout.has_slabs() { 1 } else { 16 };
    let groups = MGroups { alignment, ..MGroups::new(layout, rows.to_vec()) };
    GemmCase { layout: kernel.layout, ..GemmCase::m_grouped(kernel.types, groups, dims) }
}

/// The same without an alignment.
pub(super) fn unaligned(case: GemmCase) -> GemmCase {
    case.with_groups(|groups| MGroups { alignment: 1, ..groups })
}

/// Every layout of groups, and groups that end inside the rows of a warp, of a warpgroup, and of a cluster.
pub(super) fn m_grouped(kernel: &Persistent, dynamic: bool) -> Vec<Case> {
    let (block_m, block_n, depth) = (kernel.block_m, kernel.block_n, kernel.depth);
    let rows = [block_m / 2 + 2, 0, block_m + 1];
    let of = |layout, rows: &[usize], n, k| case_of_rows(kernel, layout, rows, [n, k]);
    if !kernel.types.has_scales() {
        return half_m_grouped(kernel, &rows);
    }
    let masked =
        GemmCase { sfa: ScaleOrder::RowPadded, ..of(GroupLayout::Counts, &rows, block_n + 8, depth) };
    // So many rows to look at that several warps do.
    let ids = GemmCase { sfa: ScaleOrder::Mn, ..unaligned(of(GroupLayout::Ids, &rows, block_n + 8, depth)) };
    let copied = GemmCase {
        sfa: ScaleOrder::Odd,
        d_type: DType::F32,
        ..of(GroupLayout::Ends, &rows[..2], 2 * block_n + 8, depth)
    };
    let short = of(GroupLayout::Ends, &[block_m, 1, 17, 2], 3 * block_n + 8, kernel.short);
    let mut cases = vec![
        kernel.case(masked, [1, 2], 2),
        kernel.case(ids, [2, 1], 2),
        kernel.case(copied, [1, 1], 2),
        kernel.case(short, [1, 1], 1),
    ];
    if dynamic {
        // So many tiles for a cluster that the ring of the dynamic scheduler goes round; lanes that store in FP32
        // diverge.
        let rows = [block_m - 61, 1, block_m / 2 - 3, 17, block_m / 2 + 2];
        let many = of(GroupLayout::Ends, &rows, 4 * block_n + 8, kernel.short);
        let wide_type = GemmCase { d_type: DType::F32, ..many.clone() };
        cases.extend([kernel.case(many, [1, 2], 2), kernel.case(wide_type, [1, 1], 1)]);
    }
    cases
}

/// 16-bit operands: every way to D, for rows that others follow and for those that none does.
fn half_m_grouped(kernel: &Persistent, rows: &[usize; 3]) -> Vec<Case> {
    let (block_m, n, depth) = (kernel.block_m, kernel.block_n + 8, kernel.depth);
    let of = |layout, rows: &[usize], k| case_of_rows(kernel, layout, rows, [n, k]);
    let masked = of(GroupLayout::Counts, rows, depth);
    // So many rows to look at that several warps do.
    let ids = GemmCase { d_type: DType::F32, ..unaligned(of(GroupLayout::Ids, rows, depth)) };
    let added = GemmCase { addend: AddendKind::Inplace, ..ids.clone() };
    let odd =
        GemmCase { d_padding: 1, addend: AddendKind::Other, ..of(GroupLayout::Ends, &rows[..2], depth) };
    let short = of(GroupLayout::Ends, &[block_m, 1, 17, 2], kernel.short);
    vec![
        kernel.case(masked, [1, 2], 2),
        kernel.case(ids, [2, 1], 2),
        kernel.case(added, [1, 1], 1),
        kernel.case(odd, [1, 1], 1),
        kernel.case(short.clone(), [1, 1], 1),
        kernel.case(GemmCase { d_type: DType::F32, ..short }, [1, 1], 1),
    ]
}

/// A batch: every way to D, for GEMMs whose rows are interleaved and for those in slabs.
pub(super) fn batched(kernel: &Persistent) -> Vec<Case> {
    let (block_m, block_n, depth) = (kernel.block_m, kernel.block_n, kernel.depth);
    let of = |rows, gemms, n, k| case_of_rows(kernel, GroupLayout::All, &vec![rows; gemms], [n, k]);
    let interleaved =
        of(block_m + 1, 2, block_n + 8, depth).with_groups(|groups| MGroups { interleaved: true, ..groups });
    let slabs = GemmCase { sfa: ScaleOrder::Mn, ..of(block_m / 2 + 2, 3, block_n + 8, depth) };
    let copied = GemmCase { sfa: ScaleOrder::Odd, d_type: DType::F32, d_padding: 3, ..slabs.clone() };
    let short = of(block_m, 3, 3 * block_n + 8, kernel.short);
    vec![
        kernel.case(interleaved, [1, 2], 2),
        kernel.case(slabs, [2, 1], 2),
        kernel.case(copied, [1, 1], 2),
        kernel.case(short, [1, 1], 1),
    ]
}

/// k-grouped: groups without any K, of which a CTA comes by several, and more than it has tensor maps.
pub(super) fn k_grouped(kernel: &Persistent, config: &GemmKernel) -> Vec<Case> {
    let (types, layout) = k_grouped_form_of(config).expect("every kernel serves an operation");
    let (block_m, block_n, fp8) = (kernel.block_m, kernel.block_n, types.has_scales());
    let of = |ks: &[usize], m, n| GemmCase {
        sfa: if fp8 { ScaleOrder::Mn } else { ScaleOrder::Row },
        sfb: if fp8 { ScaleOrder::Mn } else { ScaleOrder::Row },
        ..GemmCase::k_grouped(types, layout, ks.to_vec(), [m, n])
    };
    // Of 16-bit operands, groups of whole stages and others.
    let deep = of(&[kernel.depth, 0, if fp8 { 272 } else { 64 }], block_m / 2 + 2, block_n + 8);
    let halves = GemmCase { d_type: types.d_types[0], ..deep.clone() };
    let added = GemmCase { addend: AddendKind::Inplace, ..deep.clone() };
    let odd = match fp8 {
        // Lanes diverge at the last columns; a tile of the next group follows.
        true => GemmCase {
            n: block_n - 8,
            sfa: ScaleOrder::Odd,
            sfb: ScaleOrder::Row,
            d_row_padding: 4,
            d_padding: 8,
            ..deep.clone()
        },
        // Rows of D that TMA cannot address.
        false => GemmCase { d_row_padding: 1, d_padding: 3, ..halves.clone() },
    };
    let odd = GemmCase { addend: AddendKind::Other, ..odd };
    // So short a K that scales, maps or a tile's output are what is waited for.
    let short: Vec<usize> = (0..20).map(|i| [100, 16, 0, if fp8 { 130 } else { 64 }][i % 4]).collect();
    let short = of(&short, block_m / 2 + 2, 24);
    vec![
        kernel.case(deep, [1, 2], 2),
        kernel.case(added, [2, 1], 2),
        kernel.case(halves, [1, 1], 2),
        kernel.case(odd, [1, 1], if fp8 { 1 } else { 2 }),
        kernel.case(short, [1, 1], 1),
    ]
}
