//! m-grouped GEMMs of 16-bit operands in the simulator: whatever the schedule, the same bits, no
//! hazard, the product of each group with its own B, and nothing else written to.

use crate::common::{AddendKind, BF16, FP16, GroupedCase as Rows, ends, ids, in_turn, schedules};
use crate::grouped::rows_of_no_group_do_not_matter;
use oxigemm::plan::{self, GemmConfig, KOrder, Limits, MGroupedShape, OperandKind, Plan, PlanRequest};
use oxigemm::sim::{Options, Policy};
use oxigemm::{
    Addend, DType, Device, Error, GemmLayout, GemmOptions, RawGemm, RawGrouping, RawGroups, RawMatrix, Sim,
    Tensor, gemm_raw, half_gemm, m_grouped_fp16_gemm_nn_masked,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::operand::f16::Half;
use oxigemm_kernels::gemm::scheduler::m_grouped::GroupLayout;
use oxigemm_kernels::gemm::{ElementType, GemmKernel};
use proptest::prelude::*;

/// Runs a case under some schedules, which must all give the same, right bits.
fn every_schedule_gives_the_same_bits(
    case: Rows,
    choice: GemmConfig,
    schedules: impl Iterator<Item = Options>,
    sim: &Sim,
) {
    case.simulated(sim).every_schedule_gives_the_same_bits(Some(choice), schedules, sim);
}

/// Every grouped kernel of 16-bit operands.
fn configs() -> impl Iterator<Item = GemmKernel> {
    GemmKernel::m_grouped(Arch::Sm90a).filter(|kernel| !kernel.operands().is_fp8())
}

/// The same with a cluster; over the set all clusters occur.
fn kernels() -> impl Iterator<Item = (GemmKernel, GemmConfig)> {
    configs().enumerate().map(|(i, config)| {
        let cluster = [[2, 1], [1, 2], [1, 1]][i % 3];
        (config, GemmConfig { cluster, ..GemmConfig::of(config) })
    })
}

/// A case of a kernel's operands.
fn case_of(config: &GemmKernel, of: Rows) -> Rows {
    let operands = config.operands().as_f16().expect("16-bit operands");
    let types = if operands.element == Half::Bf16 { BF16 } else { FP16 };
    let operands: GemmLayout = operands.layout().parse().expect("the same names");
    Rows { operands, ..of.of(types) }
}

/// A K of more blocks than stages, with a tail.
fn depth(stages: u32) -> usize {
    (stages as usize + 1) * 64 - 56
}

#[test]
fn every_kernel_with_masked_groups_by_schedules_in_turn() {
    let sim = Sim::new();
    for (nth, (config, choice)) in kernels().enumerate() {
        // Rows for one warpgroup and a bit, none, and one row. The last tile lies partly outside of B.
        let rows = config.tile()[0] as usize / 2 + 5;
        let n = config.tile()[1] as usize + 8;
        let of = Rows::masked(&[rows as i32 - 2, 0, 1], [rows, n, depth(choice.stages)]);
        every_schedule_gives_the_same_bits(case_of(&config, of), choice, in_turn(nth, 2), &sim);
    }
}

#[test]
fn every_kernel_with_contiguous_groups_by_schedules_in_turn() {
    let sim = Sim::new();
    for (i, (config, choice)) in kernels().enumerate() {
        let alignment = [1, 16, 32, 64, 128][i % 5];
        let sizes = [config.tile()[0] as usize / 2 + 5, 0, 1];
        let ids = ids(&sizes, alignment);
        let (n, k) = (config.tile()[1] as usize - 8, depth(choice.stages));
        let of = Rows::ids(&ids, sizes.len(), alignment, [n, k]);
        // The schedules are dealt to both layouts, fewer for FP16, whose kernels differ in the name of a type.
        let is_bf16 = config.operands().a.element == ElementType::Bf16;
        let by = |of, from: usize| {
            let schedules = in_turn(i, if is_bf16 { 4 } else { 2 }).skip(from).step_by(2);
            every_schedule_gives_the_same_bits(case_of(&config, of), choice, schedules, &sim);
        };
        by(of, 0);
        let of = Rows::ends(&ends(&sizes, alignment), alignment, [ids.len(), n, k]);
        by(of, 1);
    }
}

#[test]
fn groups_of_several_tiles_and_one_huge_one() {
    let sim = Sim::new();
    for (i, (config, choice)) in kernels().enumerate() {
        let block_m = config.tile()[0] as usize;
        // An odd number of tiles: a cluster of two along M has one that lies behind the group's last row.
        let sizes = [3, 2 * block_m + 1, 0, 1];
        let of = match i % 2 {
            0 => Rows::masked(&sizes.map(|x| x as i32), [2 * block_m + 20, 200, 96]),
            _ => Rows::ids(&ids(&sizes, 16), 4, 16, [200, 96]),
        };
        every_schedule_gives_the_same_bits(case_of(&config, of), choice, schedules().step_by(5), &sim);
    }
}

/// The plan of a choice for groups that are expected to have so many rows each.
fn planned(choice: GemmConfig, of: &Rows, expected: u32) -> Plan {
    let (groups, slabs) = (of.groups as u32, of.slabs() as u32);
    let (rows, n, k) = (of.rows as u32, of.n as u32, of.k as u32);
    let shape = MGroupedShape { groups, slabs, rows, expected, n, k };
    let request = PlanRequest::m_grouped(choice.operands(), shape).with_config(choice);
    let request = PlanRequest { k_order: Some(KOrder::Serpentine), ..request };
    plan::plan(&request, &Limits::h200()).expect("it computes the shape")
}

/// Where groups have many tiles and K is long, K order is serpentine, but not in the batch-invariant mode.
#[test]
fn long_groups_have_serpentine_k_order() {
    let sim = Sim::new();
    let k = 3080;
    for (name, of) in [
        ("sm90_bf16_persistent_m_grouped_nt_64x128_s8_c1x1", Rows::masked(&[500, 0, 65], [512, 100, k])),
        ("sm90_fp16_persistent_m_grouped_nn_64x128_s8_c1x2", Rows::ends(&[450], 16, [460, 200, k])),
        ("sm90_bf16_persistent_m_grouped_nt_64x128_s8_c2x1", Rows::ids(&ids(&[900], 64), 1, 64, [100, k])),
    ] {
        let choice = plan::parse(name).expect("the name of a choice");
        let config = choice.kernel;
        let expected = (of.rows * of.slabs() / of.groups) as u32;
        assert!(planned(choice, &of, expected).launch.is_serpentine(), "{name}");
        let case = case_of(&config, of);
        let case = Rows { d_type: DType::F32, expected_m: expected as usize, ..case };
        every_schedule_gives_the_same_bits(case.clone(), choice, schedules().step_by(5), &sim);
        let problem = case.simulated(&sim);
        let bits = |num_sms, batch_invariant: bool| {
            let choice = Some(choice);
            let k_order = (!batch_invariant).then_some(KOrder::Serpentine);
            let options =
                GemmOptions { config: choice, num_sms, batch_invariant, k_order, ..Default::default() };
            let mut fresh = problem.fresh();
            fresh.run(&options).unwrap();
            fresh.bits().unwrap()
        };
        // Of all SMs every cluster has one tile at most, whose K it walks forwards.
        let forward = bits(None, false);
        assert_eq!(bits(Some(2), true), forward, "{name}");
        assert_ne!(bits(Some(2), false), forward, "{name}");
    }
}

#[test]
fn short_groups_and_short_ks_have_forward_k_order() {
    let choice =
        plan::parse("sm90_bf16_persistent_m_grouped_nt_64x128_s8_c1x1").expect("the name of a choice");
    let is_serpentine = |expected, k| {
        planned(choice, &Rows::masked(&[1, 1], [4096, 512, k]), expected).launch.is_serpentine()
    };
    assert!(is_serpentine(449, 3072));
    assert!(!is_serpentine(448, 3072), "seven tiles");
    assert!(!is_serpentine(449, 3071), "rows of less than 6 KB");
}

/// Every type of D and addend, on aligned and on unaligned outputs, where a group ends at every part of a tile.
#[test]
fn features_of_grouped_kernels() {
    let sim = Sim::new();
    let mut i = 0;
    for d_wide in [false, true] {
        for c in [AddendKind::None, AddendKind::Inplace, AddendKind::Other] {
            for (gap, masked) in [(0, true), (3, false), (8, true)] {
                let types = [BF16, FP16][i % 2];
                let operands = [GemmLayout::Nt, GemmLayout::Nn][i / 2 % 2];
                let of = match masked {
                    true => Rows::masked(&[21, 0, 70, 130], [133, 136, 144]),
                    false => Rows::ends(&[21, 21, 91, 200], 16, [205, 136, 144]),
                };
                let of = Rows { d_type: if d_wide { DType::F32 } else { of.d_type }, gap, ..of };
                let tile = ["128x128_s6", "64x128_s8", "256x128_s3"][i % 3];
                let cluster = ["1x1", "1x2", "2x1"][i / 3 % 3];
                let name = format!("sm90_{types}_persistent_m_grouped_{operands}_{tile}_c{cluster}");
                let choice = plan::parse(&name).unwrap_or_else(|| panic!("{name} is no choice"));
                let case = Rows { operands, c, ..of.of(types) };
                every_schedule_gives_the_same_bits(case, choice, schedules().skip(i % 3).step_by(4), &sim);
                i += 1;
            }
        }
    }
}

#[test]
fn what_is_no_group_is_clamped() {
    let sim = Sim::new();
    let cases = [
        Rows::masked(&[-1, i32::MIN, 41, i32::MAX, 40], [40, 24, 72]),
        Rows::ends(&[10, 5, 1000, 40, -7], 16, [50, 24, 72]),
        Rows::ends(&[i32::MIN, 50], 128, [50, 24, 72]),
        Rows::ids(&[7, 7, -2, 0, 0, i32::MIN, 2, 2, -1, 4, i32::MAX, 3, 1, 1, -1, 7], 4, 1, [24, 72]),
        Rows::ids(&[-1; 40], 3, 16, [24, 72]),
    ];
    for of in cases {
        let choice =
            plan::parse("sm90_bf16_persistent_m_grouped_nt_64x128_s8_c2x1").expect("the name of a choice");
        every_schedule_gives_the_same_bits(of.of(BF16), choice, schedules().step_by(4), &sim);
    }
}

#[test]
fn groups_without_rows_need_no_tile() {
    let sim = Sim::new();
    for (counts, num_sms) in [(&[0, 0, 0][..], Some(4)), (&[0, 1, 0], Some(8)), (&[0], None)] {
        for name in [
            "sm90_bf16_persistent_m_grouped_nt_64x256_s4_c1x2",
            "sm90_bf16_persistent_m_grouped_nt_128x128_s6_c1x1",
        ] {
            let choice = plan::parse(name).expect("the name of a choice");
            let case = Rows { num_sms, ..Rows::masked(counts, [30, 40, 200]) }.of(BF16);
            every_schedule_gives_the_same_bits(case, choice, schedules().step_by(5), &sim);
        }
    }
}

/// What rows of no group hold, numbers or not, changes no bit of the others.
#[test]
fn rows_of_no_group_are_never_used() {
    let sim = Sim::new();
    let sizes = [21, 0, 70, 5];
    for of in [
        Rows::masked(&sizes.map(|x| x as i32), [73, 136, 136]),
        Rows::ids(&ids(&sizes, 32), 4, 32, [136, 136]),
    ] {
        rows_of_no_group_do_not_matter(&of.of(BF16), &sim);
    }
}

/// The kernel reads where the groups are: a graph that was captured once serves any groups.
#[test]
fn a_graph_is_replayed_with_other_groups() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    for (of, turns) in [
        (Rows::masked(&[3, 0, 9], [70, 136, 136]), [vec![0, 64, 1], vec![70, 0, 0], vec![0, 0, 0]]),
        (Rows::ends(&[3, 20, 29], 16, [70, 136, 136]), [vec![0, 64, 70], vec![70, 70, 70], vec![16, 16, 33]]),
    ] {
        let case = of.of(BF16);
        let mut problem = case.simulated(&sim);
        let stream = device.new_stream().unwrap();
        let options = problem.options(None, Some(stream.clone()));
        let graph = stream.capture(|_| problem.run(&options)).unwrap();
        for numbers in turns {
            problem.change_numbers(&case, &numbers);
            problem.poison().unwrap();
            graph.launch(&stream).unwrap();
            stream.synchronize().unwrap();
            problem.assert_right(&format!("{case:?} with {numbers:?}"));
        }
    }
}

#[test]
fn raw_pointers_are_addresses_of_the_simulated_memory() {
    let sim = Sim::new();
    let sizes = [3, 0, 20];
    for (of, layout) in [
        (Rows::masked(&sizes.map(|x| x as i32), [20, 64, 128]), GemmLayout::Nn),
        (Rows::ids(&ids(&sizes, 16), 3, 16, [64, 128]), GemmLayout::Nt),
        (Rows::ends(&ends(&sizes, 16), 16, [40, 64, 128]), GemmLayout::Nt),
    ] {
        let case = Rows { operands: layout, ..of.of(BF16) };
        let p = case.simulated(&sim);
        let expected = p.checked(None, "tensors");
        let fresh = p.fresh();
        let (d, memory) = (&fresh.d, &fresh.d_memory);
        let (numbers, alignment) = (p.numbers().address(), case.alignment);
        let rows = match case.layout {
            GroupLayout::Counts => RawGroups::Masked { masked_m: numbers, expected_m: 20 },
            GroupLayout::Ids => RawGroups::Ids { ids: numbers, alignment, expected_m: None },
            GroupLayout::Ends => RawGroups::Ends { ends: numbers, alignment, expected_m: None },
            GroupLayout::All => panic!("these have numbers"),
        };
        let gemm = RawGemm {
            layout,
            grouping: RawGrouping::MGrouped { groups: case.groups, rows },
            ..RawGemm::new([case.rows, case.n, case.k], (&p.a).into(), (&p.b).into(), d.into())
        };
        let options = GemmOptions { num_sms: case.num_sms, ..Default::default() };
        // SAFETY: the simulator checks every access.
        unsafe { gemm_raw(p.device(), &gemm, &options) }.unwrap();
        assert_eq!(memory.to_bytes().unwrap(), expected, "{case:?}");
        // SAFETY: it is refused.
        let refused = unsafe { gemm_raw(&Device::Cpu, &gemm, &options) };
        assert!(matches!(refused, Err(Error::Device { argument: "device", .. })));
        let nowhere = RawGemm { a: RawMatrix { address: 0, ..gemm.a }, ..gemm };
        // SAFETY: it is refused.
        let refused = unsafe { gemm_raw(p.device(), &nowhere, &options) };
        assert!(matches!(refused, Err(Error::NullPointer { argument: "a", .. })), "{refused:?}");
    }
}

#[test]
fn kernels_and_types_for_something_else_are_refused() {
    let sim = Sim::new();
    let problem = Rows::masked(&[3], [4, 64, 64]).of(BF16).simulated(&sim);
    let mut d = problem.fresh().d.clone();
    for name in ["sm90_bf16_persistent_nt_64x128_s8_c1x1", "sm90_bf16_split_k_nt_8x64_k1_s2"] {
        let refused = problem.computed(plan::parse(name));
        assert!(matches!(&refused, Err(Error::Config { name: found, .. }) if found == name), "{refused:?}");
    }
    for name in
        ["sm90_fp8_persistent_m_grouped_64x128_s8_c1x1", "sm90_bf16_persistent_m_grouped_nn_64x128_s8_c1x1"]
    {
        let refused = problem.computed(plan::parse(name));
        assert!(matches!(&refused, Err(Error::ConfigOperands { name: found, .. }) if found == name));
    }
    let one = |x: &Tensor| x.select(0).unwrap();
    let choice = plan::parse("sm90_bf16_persistent_m_grouped_nt_64x128_s8_c1x1");
    let options = GemmOptions { config: choice, ..Default::default() };
    let (a, b) = (one(&problem.a), one(&problem.b));
    let refused = half_gemm(GemmLayout::Nt, &a, &b, Addend::None, &mut one(&d), &options);
    assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
    let options = GemmOptions::default();
    let refused =
        m_grouped_fp16_gemm_nn_masked(&problem.a, &problem.b, &mut d, problem.numbers(), 1, &options);
    assert!(matches!(refused, Err(Error::DType { argument: "a", .. })), "{refused:?}");
}

/// Whatever the tiles and clusters, and whatever else is computed beside it, a row has the bits that the plain product
/// of its group has.
#[test]
fn neither_tiles_nor_other_groups_change_a_bit() {
    let sim = Sim::with_options(Options { hazards: false, ..Options::default() });
    for layout in [GemmLayout::Nt, GemmLayout::Nn] {
        let case = Rows { operands: layout, ..Rows::masked(&[70, 0, 3, 21], [73, 200, 328]).of(BF16) };
        let problem = case.simulated(&sim);
        let expected = problem.fresh().d.clone();
        for (group, &rows) in case.numbers.iter().enumerate().filter(|(_, rows)| **rows > 0) {
            let part = |x: &Tensor| x.select(group).unwrap().narrow(0, 0, rows as usize).unwrap();
            let name = format!("sm90_bf16_persistent_{layout}_128x128_s6_c1x1");
            let options = GemmOptions { config: plan::parse(&name), ..Default::default() };
            let b = problem.b.select(group).unwrap();
            half_gemm(layout, &part(&problem.a), &b, Addend::None, &mut part(&expected), &options).unwrap();
        }
        let operands = OperandKind::f16(layout.operands(Half::Bf16));
        for config in configs().filter(|config| config.operands() == operands) {
            for choice in config.with_clusters([[1, 1], [1, 2], [2, 1]]) {
                let d = problem.computed(Some(choice)).unwrap();
                assert_eq!(d.to_bytes().unwrap(), expected.to_bytes().unwrap(), "{}", plan::name(&choice));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Any groups, by the kernel that is planned for them.
    #[test]
    fn any_groups(
        sizes in proptest::collection::vec(prop_oneof![Just(0usize), Just(1), 0..40usize, 60..200usize], 1..6),
        layout in 0..3usize, alignment in 0..5usize, n in 1..150usize, k in 1..150usize,
        nn: bool, c in 0..3usize, wide: bool, seed: u64,
    ) {
        let sim = Sim::with_options(Options { policy: Policy::Random, seed, ..Options::default() });
        let alignment = [1, 16, 32, 64, 128][alignment];
        let ids = ids(&sizes, alignment);
        let counts: Vec<i32> = sizes.iter().map(|size| *size as i32).collect();
        let most = *sizes.iter().max().expect("one at least");
        let of = match layout {
            0 => Rows::masked(&counts, [most + seed as usize % 7, n, k]),
            1 => Rows::ids(&ids, sizes.len(), alignment, [n, k]),
            _ => Rows::ends(&ends(&sizes, alignment), alignment, [ids.len(), n, k]),
        };
        if of.rows > 0 {
            let of = Rows { d_type: if wide { DType::F32 } else { DType::Bf16 }, ..of };
            let operands = if nn { GemmLayout::Nn } else { GemmLayout::Nt };
            let c = [AddendKind::None, AddendKind::Inplace, AddendKind::Other][c];
            let case = Rows { operands, c, ..of.of(BF16) };
            case.simulated(&sim).checked(None, &format!("{case:?}"));
        }
    }
}
