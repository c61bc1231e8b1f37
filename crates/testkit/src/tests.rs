//! Cases on the CPU: the reference is right, and whatever is wrong is found.

use oxigemm::{DType, Device, GemmLayout, GemmOptions};

use crate::GroupLayout;
use crate::{
    AddendKind, BF16, Effort, EpilogueSpec, FP8, FP16, Fill, Gemm, GemmCase, MGroups, Op, ScaleOrder,
};

fn computed(case: &GemmCase) -> Gemm {
    let mut gemm = case.on(&Device::cpu()).unwrap();
    gemm.run(&GemmOptions::default()).unwrap();
    gemm
}

#[test]
fn a_layout_does_not_change_the_data() {
    let plain = GemmCase::fp8(5, 130, 200);
    let expected = plain.on(&Device::cpu()).unwrap();
    let orders =
        [ScaleOrder::Row, ScaleOrder::RowPadded, ScaleOrder::Mn, ScaleOrder::Odd, ScaleOrder::RowOdd];
    for order in orders {
        let case = GemmCase { sfa: order, sfb: order, ab_padding: 2, at_end: true, ..plain.clone() };
        let found = case.on(&Device::cpu()).unwrap();
        let (Some(found_scales), Some(scales)) = (&found.scales, &expected.scales) else {
            panic!("FP8 has scales")
        };
        for (x, y) in [
            (&found.a, &expected.a),
            (&found.b, &expected.b),
            (&found_scales[0], &scales[0]),
            (&found_scales[1], &scales[1]),
        ] {
            assert_eq!(x.to_bytes().unwrap(), y.to_bytes().unwrap(), "{order:?}");
        }
        assert_eq!(found.a.strides()[0], 208 + 32);
    }
}

#[test]
fn every_layout_of_16_bit_operands_is_the_same_gemm() {
    for types in [BF16, FP16] {
        let results = GemmLayout::ALL.map(|layout| {
            let case = GemmCase::dense(types, layout, [5, 33, 70]);
            computed(&GemmCase { ab_padding: 1, at_end: true, ..case }).result(0).unwrap()
        });
        assert!(results.iter().all(|result| *result == results[0]), "{types}");
        assert!(results[0].iter().all(|x| x.is_finite()));
    }
}

#[test]
fn a_write_outside_of_d_is_seen() {
    let guard = crate::upload::GUARD;
    let gemm = computed(&GemmCase { d_padding: 3, d_offset: 1, ..GemmCase::fp8(4, 9, 16) });
    assert!(gemm.surroundings_untouched().unwrap());
    for place in [0, guard, guard + 1 + 9, guard + 1 + 4 * 12] {
        let mut one = gemm.d_memory.narrow(0, place, 1).unwrap();
        let before = one.to_bytes().unwrap();
        one.write_f32(&[1.0]).unwrap();
        assert!(!gemm.surroundings_untouched().unwrap(), "element {place}");
        one.write_bytes(&before).unwrap();
    }
}

/// m-grouped cases of every layout, FP8 and 16-bit.
fn m_grouped() -> Vec<GemmCase> {
    let layouts = [GroupLayout::Counts, GroupLayout::Ids, GroupLayout::Ends];
    let groups = layouts.map(|layout| MGroups {
        alignment: if layout.has_slabs() { 1 } else { 16 },
        trailing_rows: 3,
        max_m: 40,
        ..MGroups::new(layout, vec![5, 0, 33, 1])
    });
    let fp8 = groups.map(|groups| GemmCase { d_padding: 3, ..GemmCase::m_grouped(FP8, groups, [72, 200]) });
    let half = fp8.clone().map(|case| GemmCase {
        types: FP16,
        d_type: DType::F16,
        layout: GemmLayout::Nn,
        addend: AddendKind::Other,
        ..case
    });
    fp8.into_iter().chain(half).collect()
}

#[test]
fn the_reference_of_groups_is_right_and_writes_nothing_else() {
    for case in m_grouped() {
        let mut gemm = computed(&case);
        let verdict = gemm.judge(Effort::THOROUGH).unwrap();
        assert!(verdict.right && verdict.rows == 39, "{case}: {verdict:?}");
        assert!(gemm.surroundings_untouched().unwrap(), "{case}");
    }
}

#[test]
fn the_b_of_another_group_is_wrong() {
    for case in m_grouped() {
        let mut gemm = case.on(&Device::cpu()).unwrap();
        let last = gemm.b.select(3).unwrap();
        gemm.b.select(2).unwrap().copy_from(&last).unwrap();
        gemm.run(&GemmOptions::default()).unwrap();
        assert!(!gemm.judge(Effort::QUICK).unwrap().right, "{case}");
    }
}

#[test]
fn a_write_to_a_row_of_no_group_is_seen() {
    for case in m_grouped() {
        let mut gemm = case.on(&Device::cpu()).unwrap();
        let (last, first) = match gemm.d.dims().len() {
            3 => (gemm.d.select(3).unwrap(), gemm.d.select(0).unwrap()),
            _ => (gemm.d.clone(), gemm.d.clone()),
        };
        last.select(last.dims()[0] - 1).unwrap().narrow(0, 0, 1).unwrap().write_f32(&[1.0]).unwrap();
        assert!(!gemm.surroundings_untouched().unwrap(), "{case}");
        gemm.poison().unwrap();
        assert!(gemm.surroundings_untouched().unwrap(), "{case}");
        // Behind the first row.
        let at = (first.address() - gemm.d_memory.address()) as usize / case.d_type.size() + 72;
        gemm.d_memory.narrow(0, at, 1).unwrap().write_f32(&[1.0]).unwrap();
        assert!(!gemm.surroundings_untouched().unwrap(), "{case}");
    }
}

#[test]
fn k_grouped_cases_are_computed_and_nothing_beside_them() {
    let layouts = [
        (AddendKind::None, ScaleOrder::Row),
        (AddendKind::Inplace, ScaleOrder::Mn),
        (AddendKind::Other, ScaleOrder::Odd),
    ];
    for ((types, layout), (addend, order)) in
        Op::k_grouped_forms().into_iter().flat_map(|form| layouts.map(|layout| (form, layout)))
    {
        let case = GemmCase {
            addend,
            sfa: order,
            sfb: order,
            d_row_padding: 2,
            d_padding: 3,
            ..GemmCase::k_grouped(types, layout, vec![100, 0, 1, 256], [5, 9])
        };
        let mut gemm = computed(&case);
        let verdict = gemm.judge(Effort::THOROUGH).unwrap();
        assert!(verdict.right, "{case}: {verdict:?}");
        assert!(gemm.surroundings_untouched().unwrap());
        // The rows behind those of the first group.
        let at = (gemm.d.address() - gemm.d_memory.address()) as usize / case.d_type.size() + 5 * 12;
        gemm.d_memory.narrow(0, at, 24).unwrap().write_f32(&[1.0; 24]).unwrap();
        assert!(!gemm.surroundings_untouched().unwrap());
    }
}

/// Dense and m-grouped cases with epilogues of all kinds.
fn fused() -> Vec<GemmCase> {
    let mut all = Vec::new();
    for types in [FP8, BF16, FP16] {
        for words in ["gelu,bias", "swiglu,fp8", "heads=8/3/8"] {
            let epilogue = Some(words.parse::<EpilogueSpec>().unwrap().beside(&types));
            all.push(GemmCase { epilogue, ..GemmCase::dense(types, GemmLayout::Nt, [9, 256, 200]) });
        }
    }
    for layout in [GroupLayout::Counts, GroupLayout::Ids, GroupLayout::Ends] {
        for words in ["gelu,bias,beta=0.5", "swiglu,fp8", "heads=8/3/8"] {
            let groups = MGroups {
                alignment: if layout.has_slabs() { 1 } else { 16 },
                trailing_rows: 3,
                max_m: 12,
                ..MGroups::new(layout, vec![5, 0, 9, 1])
            };
            let addend = if words.contains("beta") { AddendKind::Other } else { AddendKind::None };
            let epilogue = Some(words.parse().unwrap());
            all.push(GemmCase { addend, epilogue, ..GemmCase::m_grouped(FP8, groups, [256, 200]) });
        }
    }
    all
}

#[test]
fn the_reference_of_epilogues_is_right_and_a_wrong_element_is_found() {
    for case in fused() {
        let mut gemm = computed(&case);
        for effort in [Effort::QUICK, Effort::STRICT] {
            let good = gemm.judge(effort).unwrap();
            assert!(good.right && good.rows == case.rows(), "{case}: {good:?}");
        }
        assert!(gemm.surroundings_untouched().unwrap(), "{case}");
        let group = case.groups().map_or(0, |_| 2);
        let mut row = gemm.rows_of(&gemm.d, group).unwrap();
        let (mut bytes, size) = (row.to_bytes().unwrap(), row.dtype().size());
        // The sign, or a large part, of the second element.
        bytes[2 * size - 1] ^= 0xc0;
        row.write_bytes(&bytes).unwrap();
        assert!(!gemm.judge(Effort::QUICK).unwrap().right, "{case}");
    }
}

#[test]
fn a_write_of_an_epilogue_to_a_row_of_no_group_is_seen() {
    for case in fused().into_iter().filter(|case| case.m_groups().is_some()) {
        let gemm = case.on(&Device::cpu()).unwrap();
        for tensor in [Some(&gemm.d), gemm.d_scales.as_ref()].into_iter().flatten() {
            assert!(gemm.surroundings_untouched().unwrap(), "{case}");
            let slab = match tensor.dims().len() {
                3 => tensor.select(tensor.dims()[0] - 1).unwrap(),
                _ => tensor.clone(),
            };
            let mut row = slab.select(slab.dims()[0] - 1).unwrap();
            let before = row.to_bytes().unwrap();
            row.write_bytes(&vec![0; before.len()]).unwrap();
            assert!(!gemm.surroundings_untouched().unwrap(), "{case}");
            row.write_bytes(&before).unwrap();
        }
    }
}

/// What a benchmark multiplies beside the rows of a group is no zeros, and has no part in the result.
#[test]
fn slabs_are_filled_with_the_rows_of_their_group() {
    for types in [FP8, BF16] {
        let groups = MGroups { max_m: 16, ..MGroups::new(GroupLayout::Counts, vec![3, 0, 5]) };
        let case = GemmCase { fill: Fill::Rows, ..GemmCase::m_grouped(types, groups, [32, 128]) };
        let mut gemm = case.on(&Device::cpu()).unwrap();
        let slab = |group: usize| gemm.a.select(group).unwrap().to_vec_f32().unwrap();
        for (group, rows) in [(0, 3), (2, 5)] {
            let slab = slab(group);
            let row = |row: usize| &slab[row * 128..(row + 1) * 128];
            assert!((rows..16).all(|i| row(i) == row(i % rows)), "{types}");
            assert!(row(0) != row(1) && row(0).iter().any(|x| *x != 0.0), "{types}");
        }
        assert!(slab(1).iter().all(|x| *x == 0.0), "a group without rows");
        gemm.run(&GemmOptions::default()).unwrap();
        assert!(gemm.judge(Effort::QUICK).unwrap().right, "{types}");
    }
}
