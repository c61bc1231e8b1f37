//! The rules of products with 16-bit operands whose rows are grouped: each broken alone names its variant and its
//! argument, and everything valid passes.

use oxigemm::check::{Accumulate, Checked, GemmDesc, GroupingDesc, Groups, MGroupedDesc, Operand, Problem};
use oxigemm::{DType, DeviceId, Error, GemmLayout, MAX_RANK};
use oxigemm_kernels::gemm::operand::f16::Major;
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
    let masked = layout == GroupLayout::Counts;
    let slabs = |name, dims: [i64; 3], place| {
        operand(name, DType::Bf16, if masked { &dims } else { &dims[1..] }, place)
    };
    let (name, length) = match layout {
        GroupLayout::Counts => ("masked_m", groups),
        GroupLayout::Ends => ("ends", groups),
        GroupLayout::Ids => ("ids", m),
        GroupLayout::All => panic!("these have numbers"),
    };
    let (a, b) = (slabs("a", [groups, m, k], 1), operand("b", DType::Bf16, &[groups, n, k], 2));
    GemmDesc {
        c: Some(slabs("c", [groups, m, n], 3)),
        grouping: GroupingDesc::MGrouped(MGroupedDesc {
            layout,
            numbers: operand(name, DType::I32, &[length], 5),
            alignment: 16,
            expected_m: None,
        }),
        ..GemmDesc::new(a, b, slabs("d", [groups, m, n], 4))
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

/// Changes where the groups are.
fn groups(arguments: &mut GemmDesc) -> &mut MGroupedDesc {
    match &mut arguments.grouping {
        GroupingDesc::MGrouped(groups) => groups,
        other => panic!("rows are grouped, found {other:?}"),
    }
}

/// Changes C, which is there.
fn c(arguments: &mut GemmDesc) -> &mut Operand {
    arguments.c.as_mut().expect("there is one")
}

refused!(a_transposed, masked, Shape, "layout", |x| x.layout = GemmLayout::Tn);
refused!(masked_a_of_rank_2, masked, Rank, "a", |x| x.a.rank = 2);
refused!(contiguous_a_of_rank_3, contiguous, Rank, "a", |x| x.a.rank = 3);
refused!(b_of_rank_2, contiguous, Rank, "b", |x| x.b.rank = 2);
refused!(masked_c_of_rank_2, masked, Rank, "c", |x| c(x).rank = 2);
refused!(masked_d_of_rank_4, masked, Rank, "d", |x| x.d.rank = 4);
refused!(counts_of_rank_2, masked, Rank, "masked_m", |x| groups(x).numbers.rank = 2);

refused!(a_of_e4m3, masked, DType, "a", |x| x.a.dtype = DType::E4m3);
refused!(b_of_another_type, contiguous, DType, "b", |x| x.b.dtype = DType::F16);
refused!(c_of_another_type, contiguous, DType, "c", |x| c(x).dtype = DType::F32);
refused!(d_of_the_other_16_bits, masked, DType, "d", |x| x.d.dtype = DType::F16);
refused!(ids_of_f32, contiguous, DType, "ids", |x| groups(x).numbers.dtype = DType::F32);

refused!(a_with_other_groups, masked, Shape, "a", |x| x.a.dims[0] = 5);
refused!(a_with_another_k, contiguous, Shape, "a", |x| x.a.dims[1] = 384);
refused!(b_read_the_other_way, masked, Shape, "a", |x| x.layout = GemmLayout::Nn);
refused!(c_with_other_rows, contiguous, Shape, "c", |x| c(x).dims[0] = 65);
refused!(d_with_other_columns, masked, Shape, "d", |x| x.d.dims[2] = 255);
refused!(too_few_counts, masked, Shape, "masked_m", |x| groups(x).numbers.dims[0] = 3);
refused!(an_alignment_of_48, contiguous, Shape, "alignment", |x| groups(x).alignment = 48);
refused!(a_negative_expectation, masked, Shape, "expected_m", |x| groups(x).expected_m = Some(-1));
refused!(a_k_of_0, masked, Shape, "b", |x| *x = arguments(GroupLayout::Counts, [4, 64, 256, 0]));

refused!(an_a_along_m, contiguous, Stride, "a", |x| x.a.strides[..2].copy_from_slice(&[1, 64]));
refused!(groups_of_a_in_one_place, masked, Stride, "a", |x| x.a.strides[0] = 0);
refused!(groups_of_d_in_each_other, masked, Stride, "d", |x| x.d.strides[0] = 63 * 256);
refused!(groups_of_d_side_by_side_without_room, masked, Stride, "d", |x| {
    x.d.strides[..2].copy_from_slice(&[256, 4 * 256 - 1]);
});
refused!(groups_of_c_unlike_those_of_d, masked, Stride, "c", |x| c(x).strides[0] = 65 * 256);
refused!(gaps_between_ids, contiguous, Stride, "ids", |x| groups(x).numbers.strides[0] = 2);
refused!(groups_of_a_off_by_8_bytes, masked, Tma, "a", |x| x.a.strides[0] += 4);
refused!(groups_of_b_off_by_8_bytes, contiguous, Tma, "b", |x| x.b.strides[0] += 4);
refused!(rows_of_a_off_by_8_bytes, contiguous, Tma, "a", |x| x.a.strides[0] = 516);

refused!(b_off_by_8_bytes, masked, Alignment, "b", |x| x.b.address += 8);
refused!(d_off_by_a_byte, masked, Alignment, "d", |x| x.d.address += 1);
refused!(no_a, masked, NullPointer, "a", |x| x.a.address = 0);
refused!(no_counts, masked, NullPointer, "masked_m", |x| groups(x).numbers.address = 0);
refused!(b_elsewhere, masked, Device, "b", |x| x.b.device = DeviceId::Cuda(1));
refused!(c_elsewhere, masked, Device, "c", |x| c(x).device = DeviceId::Cpu);
refused!(too_many_groups, masked, Overflow, "b", |x| *x = arguments(GroupLayout::Counts, [1025, 1, 8, 16]));
refused!(d_in_a, masked, Overlap, "a", |x| x.a.address = x.d.address + 64);
refused!(d_in_the_last_group_of_b, masked, Overlap, "b", |x| x.d.address = x.b.address + 3 * 256 * 512 * 2);
refused!(c_half_in_d, masked, Overlap, "c", |x| c(x).address += (1 << 30) + 512);

#[test]
fn good_arguments_pass() {
    let (problem, groups) = launch(masked());
    assert_eq!((problem.m, problem.n, problem.k), (64, 256, 512));
    assert_eq!(problem.c, Accumulate::From { pitch: 256 });
    assert_eq!((groups.count, groups.slabs(), groups.d_slab, groups.expected), (4, 4, 64 * 256, 64));
    assert_eq!((groups.a_slab, groups.b_group), (64 * 512, 256 * 512));
    for layout in [GroupLayout::Ids, GroupLayout::Ends] {
        let (problem, groups) = launch(arguments(layout, DIMS));
        // Half of the 16 rows that a group has in the mean may be padding.
        assert_eq!((problem.m, groups.count, groups.slabs(), groups.expected), (64, 4, 1, 9));
    }
    let in_place = masked();
    let (problem, _) = launch(GemmDesc { c: Some(Operand { name: "c", ..in_place.d }), ..in_place });
    assert_eq!(problem.c, Accumulate::InPlace);
    assert_eq!(launch(GemmDesc { c: None, ..in_place }).0.c, Accumulate::None);
}

/// The strides say how B lies in memory, whatever the layout calls its dimensions.
#[test]
fn b_may_lie_along_n() {
    let major = |arguments| {
        let operands = launch(arguments).0.family.as_f16().expect("16 bits");
        (operands.a, operands.b)
    };
    assert_eq!(major(masked()), (Major::K, Major::K));
    let mut along_n = masked();
    along_n.layout = GemmLayout::Nn;
    along_n.b = operand("b", DType::Bf16, &[4, 512, 256], 2);
    assert_eq!(major(along_n), (Major::K, Major::MN));
    let mut viewed = masked();
    viewed.b.strides[1..3].copy_from_slice(&[1, 256]);
    assert_eq!(major(viewed), (Major::K, Major::MN));
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
