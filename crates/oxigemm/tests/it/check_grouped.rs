//! The rules of products whose rows are grouped: each broken alone names its variant and its argument, and everything
//! valid passes.

use oxigemm::check::{Checked, GemmDesc, GroupingDesc, Groups, MGroupedDesc, Operand, Problem};
use oxigemm::{DType, DeviceId, Error, MAX_RANK};
use oxigemm_kernels::gemm::scheduler::m_grouped::GroupLayout;

const GPU: DeviceId = DeviceId::Cuda(0);

/// Contiguous dimensions, at a gigabyte of their own.
fn operand(name: &'static str, dtype: DType, shape: &[i64], place: u64) -> Operand {
    let (mut dims, mut strides) = ([1; MAX_RANK], [1; MAX_RANK]);
    dims[..shape.len()].copy_from_slice(shape);
    for i in (0..shape.len().saturating_sub(1)).rev() {
        strides[i] = strides[i + 1] * shape[i + 1];
    }
    Operand {
        name,
        dtype,
        rank: shape.len(),
        dims,
        strides,
        address: place << 30,
        device: GPU,
        exchanged: false,
    }
}

fn arguments(layout: GroupLayout, [groups, m, n, k]: [i64; 4]) -> GemmDesc {
    let blocks = |x: i64| (x + 127) / 128;
    let masked = layout == GroupLayout::Counts;
    let slabs = |name, dtype, dims: [i64; 3], place| {
        operand(name, dtype, if masked { &dims } else { &dims[1..] }, place)
    };
    let (name, length) = match layout {
        GroupLayout::Counts => ("masked_m", groups),
        GroupLayout::Ends => ("ends", groups),
        GroupLayout::Ids => ("ids", m),
        GroupLayout::All => panic!("these have numbers"),
    };
    let a = slabs("a", DType::E4m3, [groups, m, k], 1);
    let b = operand("b", DType::E4m3, &[groups, n, k], 3);
    GemmDesc {
        sfa: Some(slabs("sfa", DType::F32, [groups, m, blocks(k)], 2)),
        sfb: Some(operand("sfb", DType::F32, &[groups, blocks(n), blocks(k)], 4)),
        grouping: GroupingDesc::MGrouped(MGroupedDesc {
            layout,
            numbers: operand(name, DType::I32, &[length], 6),
            alignment: if masked { 1 } else { 16 },
            expected_m: None,
        }),
        ..GemmDesc::new(a, b, slabs("d", DType::Bf16, [groups, m, n], 5))
    }
}

const DIMS: [i64; 4] = [4, 64, 256, 512];

fn masked() -> GemmDesc {
    arguments(GroupLayout::Counts, DIMS)
}

fn contiguous() -> GemmDesc {
    arguments(GroupLayout::Ids, DIMS)
}

fn launch(arguments: GemmDesc) -> (Problem, Groups) {
    match arguments.check() {
        Ok(Checked::Launch(problem)) => (problem, problem.groups.expect("rows are grouped")),
        other => panic!("expected a launch, found {other:?}"),
    }
}

fn groups(x: &mut GemmDesc) -> &mut MGroupedDesc {
    match &mut x.grouping {
        GroupingDesc::MGrouped(groups) => groups,
        other => panic!("rows are grouped, found {other:?}"),
    }
}

fn sfa(x: &mut GemmDesc) -> &mut Operand {
    x.sfa.as_mut().expect("A has scales")
}

fn sfb(x: &mut GemmDesc) -> &mut Operand {
    x.sfb.as_mut().expect("B has scales")
}

/// Breaks good arguments and expects one variant for one argument, with a sentence that names it.
macro_rules! refused {
    ($name:ident, $good:ident, $variant:ident, $argument:literal, $break:expr) => {
        #[test]
        fn $name() {
            let mut arguments = $good();
            let change: fn(&mut GemmDesc) = $break;
            change(&mut arguments);
            let error = arguments.check().expect_err("the rule is broken");
            assert!(matches!(error, Error::$variant { argument: $argument, .. }), "found {error:?}");
            assert!(error.to_string().starts_with(concat!("`", $argument, "` ")), "{error}");
        }
    };
}

refused!(masked_a_of_rank_2, masked, Rank, "a", |x| x.a.rank = 2);
refused!(contiguous_a_of_rank_3, contiguous, Rank, "a", |x| x.a.rank = 3);
refused!(b_of_rank_2, contiguous, Rank, "b", |x| x.b.rank = 2);
refused!(masked_d_of_rank_4, masked, Rank, "d", |x| x.d.rank = 4);
refused!(masked_scales_of_a_of_rank_2, masked, Rank, "sfa", |x| sfa(x).rank = 2);
refused!(scales_of_b_of_rank_2, contiguous, Rank, "sfb", |x| sfb(x).rank = 2);
refused!(ids_of_rank_2, contiguous, Rank, "ids", |x| groups(x).numbers.rank = 2);

refused!(a_of_bf16, masked, DType, "a", |x| x.a.dtype = DType::Bf16);
refused!(b_of_e5m2, contiguous, DType, "b", |x| x.b.dtype = DType::E5m2);
refused!(d_of_f16, masked, DType, "d", |x| x.d.dtype = DType::F16);
refused!(scales_of_a_of_i32, masked, DType, "sfa", |x| sfa(x).dtype = DType::I32);
refused!(scales_of_b_of_bf16, masked, DType, "sfb", |x| sfb(x).dtype = DType::Bf16);
refused!(counts_of_f32, masked, DType, "masked_m", |x| groups(x).numbers.dtype = DType::F32);

refused!(b_of_negative_groups, masked, Shape, "b", |x| x.b.dims[0] = -1);
refused!(a_with_other_groups, masked, Shape, "a", |x| x.a.dims[0] = 5);
refused!(a_with_another_k, contiguous, Shape, "a", |x| x.a.dims[1] = 384);
refused!(d_with_other_groups, masked, Shape, "d", |x| x.d.dims[0] = 3);
refused!(d_with_other_rows, contiguous, Shape, "d", |x| x.d.dims[0] = 65);
refused!(d_with_other_columns, masked, Shape, "d", |x| x.d.dims[2] = 255);
refused!(too_few_scales_of_a, masked, ScaleShape, "sfa", |x| sfa(x).dims[2] = 3);
refused!(scales_of_a_of_other_groups, masked, ScaleShape, "sfa", |x| sfa(x).dims[0] = 3);
refused!(scales_of_b_per_row_but_one, contiguous, ScaleShape, "sfb", |x| sfb(x).dims[1] = 255);
refused!(scales_of_b_per_row_but_one_and_all_of_k, masked, ScaleShape, "sfb", |x| sfb(x).dims[1..3]
    .copy_from_slice(&[255, 1]));
refused!(too_few_counts, masked, Shape, "masked_m", |x| groups(x).numbers.dims[0] = 3);
refused!(ids_of_groups, contiguous, Shape, "ids", |x| groups(x).numbers.dims[0] = 4);
refused!(an_alignment_of_0, contiguous, Shape, "alignment", |x| groups(x).alignment = 0);
refused!(an_alignment_of_48, contiguous, Shape, "alignment", |x| groups(x).alignment = 48);
refused!(a_negative_expectation, masked, Shape, "expected_m", |x| groups(x).expected_m = Some(-1));
refused!(a_k_of_0, masked, Shape, "b", |x| *x = arguments(GroupLayout::Counts, [4, 64, 256, 0]));

refused!(gaps_between_ids, contiguous, Stride, "ids", |x| groups(x).numbers.strides[0] = 2);
refused!(columns_of_a_apart, masked, Stride, "a", |x| x.a.strides[2] = 2);
refused!(overlapping_rows_of_b, contiguous, Stride, "b", |x| x.b.strides[1] = 496);
refused!(groups_of_a_in_one_place, masked, Stride, "a", |x| x.a.strides[0] = 0);
refused!(groups_of_d_half_a_row_apart, masked, Stride, "d", |x| x.d.strides[0] = 64 * 256 + 128);
refused!(overlapping_groups_of_d, masked, Stride, "d", |x| x.d.strides[0] = 63 * 256);
refused!(negative_groups_of_scales, masked, Stride, "sfa", |x| sfa(x).strides[0] = -4);
refused!(scales_of_b_backwards, masked, ScaleLayout, "sfb", |x| sfb(x).strides[2] = -1);
refused!(groups_of_a_off_by_8_bytes, masked, Tma, "a", |x| x.a.strides[0] += 8);
refused!(groups_of_b_off_by_8_bytes, contiguous, Tma, "b", |x| x.b.strides[0] += 8);
refused!(groups_of_b_too_far_apart, contiguous, Tma, "b", |x| x.b.strides[0] = 1 << 40);
refused!(rows_of_a_off_by_8_bytes, contiguous, Tma, "a", |x| x.a.strides[0] = 520);

refused!(a_off_by_8_bytes, masked, Alignment, "a", |x| x.a.address += 8);
refused!(d_off_by_a_byte, masked, Alignment, "d", |x| x.d.address += 1);
refused!(ids_off_by_2_bytes, contiguous, Alignment, "ids", |x| groups(x).numbers.address += 2);
refused!(no_a, masked, NullPointer, "a", |x| x.a.address = 0);
refused!(no_counts, masked, NullPointer, "masked_m", |x| groups(x).numbers.address = 0);
refused!(ids_elsewhere, contiguous, Device, "ids", |x| groups(x).numbers.device = DeviceId::Cpu);
refused!(b_elsewhere, masked, Device, "b", |x| x.b.device = DeviceId::Cuda(1));

refused!(too_many_groups, masked, Overflow, "b", |x| *x = arguments(GroupLayout::Counts, [1025, 1, 8, 16]));
refused!(too_many_rows, contiguous, Overflow, "d", |x| {
    *x = arguments(GroupLayout::Ids, [1, 1 << 30, 1 << 11, 16]);
});
refused!(rows_of_d_too_far_apart, masked, Overflow, "d", |x| x.d.strides[0] = 1 << 39);
refused!(scales_too_far_apart, masked, Overflow, "sfa", |x| sfa(x).strides[0] = 1 << 32);

refused!(d_in_a, masked, Overlap, "a", |x| x.a.address = x.d.address + 64);
refused!(d_in_the_last_group_of_b, masked, Overlap, "b", |x| x.d.address = x.b.address + 3 * 256 * 512);
refused!(d_in_the_counts, masked, Overlap, "masked_m", |x| {
    groups(x).numbers.address = x.d.address + 4 * 64 * 256 * 2 - 16;
});

#[test]
fn good_arguments_pass() {
    let (problem, groups) = launch(masked());
    assert_eq!((problem.m, problem.n, problem.k), (64, 256, 512));
    assert_eq!((groups.count, groups.slabs(), groups.d_slab, groups.expected), (4, 4, 64 * 256, 64));
    assert_eq!((groups.a_slab, groups.b_group), (64 * 512, 256 * 512));
    assert_eq!((groups.sfa_slab, groups.sfb_group), (64 * 4, 2 * 4));
    for layout in [GroupLayout::Ids, GroupLayout::Ends] {
        let (problem, groups) = launch(arguments(layout, DIMS));
        // Half of the 16 rows that a group has in the mean may be padding.
        assert_eq!((problem.m, groups.count, groups.slabs(), groups.expected), (64, 4, 1, 9));
    }
}

#[test]
fn rows_and_groups_may_have_gaps() {
    let mut padded = masked();
    padded.a.strides[..2].copy_from_slice(&[100 * 528, 528]);
    padded.d.strides[..2].copy_from_slice(&[70 * 260, 260]);
    sfa(&mut padded).strides[..3].copy_from_slice(&[999, 1, 67]);
    let (problem, groups) = launch(padded);
    assert_eq!((problem.a_pitch, groups.a_slab), (528, 100 * 528));
    assert_eq!((problem.d_pitch, groups.d_slab), (260, 70 * 260));
    assert_eq!(groups.sfa_slab, 999);
}

#[test]
fn groups_of_one_row_are_as_far_apart_as_they_say() {
    let mut one = arguments(GroupLayout::Counts, [4, 1, 250, 512]);
    one.d.strides[0] = 252;
    let (problem, groups) = launch(one);
    assert_eq!((problem.d_pitch, groups.d_slab), (252, 252));
}

#[test]
fn without_groups_rows_or_columns_there_is_nothing_to_do() {
    for layout in [GroupLayout::Counts, GroupLayout::Ids, GroupLayout::Ends] {
        for dims in [[0, 64, 256, 512], [4, 0, 256, 512], [4, 64, 0, 512], [0, 0, 0, 0]] {
            let checked = arguments(layout, dims).check();
            assert!(matches!(checked, Ok(Checked::Nothing)), "{layout:?} {dims:?}: {checked:?}");
        }
    }
}

#[test]
fn what_is_expected_is_bounded_by_what_there_is() {
    for (expected, found) in [(None, 64), (Some(20), 20), (Some(0), 1), (Some(1 << 40), 64)] {
        let mut arguments = masked();
        groups(&mut arguments).expected_m = expected;
        assert_eq!(launch(arguments).1.expected, found);
    }
}

#[test]
fn d_may_lie_beside_what_is_read() {
    let mut beside = masked();
    // Columns of the same larger matrix.
    beside.d.strides[..2].copy_from_slice(&[64 * 1024, 1024]);
    beside.a.address = beside.d.address + 1024;
    beside.a.strides[..2].copy_from_slice(&[64 * 2048, 2048]);
    launch(beside);
}
