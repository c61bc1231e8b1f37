//! m-grouped FP8 GEMMs in the simulator: whatever the schedule, the same bits, no hazard, the product of each group with
//! its own B, and nothing else written to.

use crate::common::{GroupedCase as Case, ScaleOrder, ends, ids, in_turn, schedules};
use oxigemm::plan::{self, GemmConfig, OperandKind};
use oxigemm::sim::{Options, Policy};
use oxigemm::{
    Addend, DType, Device, Error, GemmOptions, GroupedRows, RawGemm, RawGrouping, RawGroups, RawMatrix,
    RawScaleFactors, Sim, Tensor, fp8_gemm_nt, gemm_raw, m_grouped_fp8_gemm_nt_contiguous, random,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::scheduler::m_grouped::GroupLayout;
use oxigemm_testkit::{Fill, GemmCase};
use proptest::prelude::*;

/// Runs a case under some schedules, which must all give the same, right bits.
fn every_schedule_gives_the_same_bits(
    case: Case,
    choice: GemmConfig,
    schedules: impl Iterator<Item = Options>,
    sim: &Sim,
) {
    case.simulated(sim).every_schedule_gives_the_same_bits(Some(choice), schedules, sim);
}

/// Every grouped kernel of FP8.
fn configs() -> impl Iterator<Item = GemmKernel> {
    GemmKernel::m_grouped(Arch::Sm90a).filter(|kernel| kernel.operands() == OperandKind::FP8)
}

/// The same with a cluster; over the set all clusters occur.
fn kernels() -> impl Iterator<Item = (u32, u32, u32, GemmConfig)> {
    configs().enumerate().map(|(i, config)| {
        let (cluster, [block_m, block_n]) = ([[2, 1], [1, 2], [1, 1]][i % 3], config.tile());
        let choice = GemmConfig { cluster, ..GemmConfig::of(config) };
        (block_m, block_n, choice.stages, choice)
    })
}

/// A K of more blocks than stages, with a tail.
fn depth(stages: u32) -> usize {
    (stages as usize + 1) * 128 - 112
}

#[test]
fn every_kernel_with_masked_groups_by_schedules_in_turn() {
    let sim = Sim::new();
    for (i, (block_m, block_n, stages, choice)) in kernels().enumerate() {
        // Rows for one warpgroup and a bit, none, and one row. The last tile lies partly outside of B.
        let rows = block_m as usize / 2 + 5;
        let case = Case::masked(&[rows as i32 - 2, 0, 1], [rows, block_n as usize + 8, depth(stages)]);
        every_schedule_gives_the_same_bits(case, choice, in_turn(i, 2), &sim);
    }
}

#[test]
fn every_kernel_with_contiguous_groups_by_schedules_in_turn() {
    let sim = Sim::new();
    for (i, (block_m, block_n, stages, choice)) in kernels().enumerate() {
        let alignment = [1, 16, 32, 64, 128][i % 5];
        let sizes = [block_m as usize / 2 + 5, 0, 1];
        let ids = ids(&sizes, alignment);
        let case = Case::ids(&ids, sizes.len(), alignment, [block_n as usize - 8, depth(stages)]);
        every_schedule_gives_the_same_bits(case.clone(), choice, in_turn(i, 2), &sim);
        let case = Case::ends(&ends(&sizes, alignment), alignment, [ids.len(), case.n, case.k]);
        every_schedule_gives_the_same_bits(case, choice, in_turn(i, 2), &sim);
    }
}

#[test]
fn groups_of_several_tiles_and_one_huge_one() {
    let sim = Sim::new();
    for (i, (block_m, _, _, choice)) in kernels().enumerate() {
        let block_m = block_m as usize;
        // An odd number of tiles: a cluster of two along M has one that lies behind the group's last row.
        let sizes = [3, 2 * block_m + 1, 0, 1];
        let rows = 2 * block_m + 20;
        let case = match i % 2 {
            0 => Case::masked(&sizes.map(|x| x as i32), [rows, 200, 160]),
            _ => Case::ids(&ids(&sizes, 16), 4, 16, [200, 160]),
        };
        every_schedule_gives_the_same_bits(case, choice, schedules().step_by(5), &sim);
    }
}

#[test]
fn m_grouped_tiles_alternate_in_serpentine_k_order() {
    let sim = Sim::new();
    // As many rows of tiles as it takes.
    let case = Case::ids(&ids(&[500], 1), 1, 1, [40, 6144]);
    let choice = plan::parse("sm90_fp8_persistent_m_grouped_64x128_s8_c1x1").expect("the name of a choice");
    let case = Case { scales: ScaleOrder::Mn, num_sms: Some(4), ..case };
    every_schedule_gives_the_same_bits(case.clone(), choice, schedules().step_by(5), &sim);
    // Whichever cluster has a tile that others may take as well.
    let choice = plan::parse("sm90_fp8_persistent_m_grouped_256x128_s3_c1x1").expect("the name of a choice");
    let case = Case { num_sms: Some(3), ..Case::ids(&ids(&[1800], 1), 1, 1, [16, 6144]) };
    every_schedule_gives_the_same_bits(case, choice, schedules().step_by(5), &sim);
}

#[test]
fn what_is_no_group_is_clamped() {
    let sim = Sim::new();
    let cases = [
        Case::masked(&[-1, i32::MIN, 41, i32::MAX, 40], [40, 24, 128]),
        // Behind the rows, behind the next, before the rows.
        Case::ends(&[10, 5, 1000, 40, -7], 16, [50, 24, 128]),
        Case::ends(&[i32::MAX, 3], 1, [50, 24, 128]),
        Case::ends(&[i32::MIN, 50], 128, [50, 24, 128]),
        // No group.
        Case::ids(&[7, 7, -2, 0, 0, i32::MIN, 2, 2, -1, 4, i32::MAX, 3, 1, 1, -1, 7], 4, 1, [24, 128]),
        Case::ids(&[-1; 40], 3, 16, [24, 128]),
        // Padding that carries the number of its group.
        Case::ids(&[vec![1; 16], vec![0; 16], vec![2; 9]].concat(), 3, 16, [24, 128]),
    ];
    for case in cases {
        let choice =
            plan::parse("sm90_fp8_persistent_m_grouped_64x128_s8_c2x1").expect("the name of a choice");
        every_schedule_gives_the_same_bits(case, choice, schedules().step_by(4), &sim);
    }
}

#[test]
fn groups_without_rows_need_no_tile() {
    let sim = Sim::new();
    for (counts, num_sms) in [(&[0, 0, 0][..], Some(4)), (&[0, 1, 0], Some(8)), (&[0], None)] {
        for name in [
            "sm90_fp8_persistent_m_grouped_64x256_s4_c1x2",
            "sm90_fp8_persistent_m_grouped_128x128_s5_c1x1",
            "sm90_fp8_persistent_m_grouped_256x128_s3_c1x2",
        ] {
            let choice = plan::parse(name).expect("the name of a choice");
            let case = Case { num_sms, ..Case::masked(counts, [30, 40, 200]) };
            every_schedule_gives_the_same_bits(case, choice, schedules().step_by(5), &sim);
        }
    }
}

#[test]
fn many_groups() {
    let sim = Sim::new();
    let counts: Vec<i32> = (0..300).map(|i| if i % 7 == 0 { i % 3 } else { 0 }).collect();
    let sizes: Vec<usize> = counts.iter().map(|count| *count as usize).collect();
    let choice = plan::parse("sm90_fp8_persistent_m_grouped_64x128_s8_c1x1").expect("the name of a choice");
    for case in [
        Case::masked(&counts, [3, 8, 16]),
        Case::ids(&ids(&sizes, 1), counts.len(), 1, [8, 16]),
        Case::ends(&ends(&sizes, 16), 16, [ids(&sizes, 16).len(), 8, 16]),
    ] {
        every_schedule_gives_the_same_bits(case, choice, schedules().step_by(9), &sim);
    }
}

/// What rows of no group hold, numbers or not, changes no bit of the others.
pub fn rows_of_no_group_do_not_matter(case: &Case, sim: &Sim) {
    let about = format!("{case:?}");
    let poisoned = case.simulated(sim);
    poisoned.checked(None, &about);
    let zeros = GemmCase { fill: Fill::Zeros, ..case.gemm() }.on(&Device::Sim(sim.clone())).unwrap();
    let results = [(*poisoned).clone(), zeros].map(|mut gemm| {
        gemm.run(&poisoned.options(None, None)).unwrap();
        (0..case.groups).map(|group| gemm.result(group).unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(results[0], results[1], "{about}");
}

#[test]
fn rows_of_no_group_are_never_used() {
    let sim = Sim::new();
    let sizes = [21, 0, 70, 5];
    for case in [
        Case::masked(&sizes.map(|x| x as i32), [73, 136, 272]),
        Case::ids(&ids(&sizes, 32), 4, 32, [136, 272]),
        Case { scales: ScaleOrder::Mn, ..Case::masked(&sizes.map(|x| x as i32), [73, 136, 272]) },
    ] {
        rows_of_no_group_do_not_matter(&case, &sim);
    }
}

/// The kernel reads where the groups are: a graph that was captured once serves any groups. (A kernel with a dynamic
/// scheduler has a static one there.)
#[test]
fn a_graph_is_replayed_with_other_groups() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let turns = |case: &Case| -> Vec<Vec<i32>> {
        match case.layout {
            GroupLayout::Counts => vec![vec![0, 64, 1], vec![70, 0, 0], vec![0, 0, 0], vec![5, 6, 7]],
            GroupLayout::Ends => vec![vec![0, 64, 70], vec![70, 70, 70], vec![0, 0, 0], vec![16, 16, 33]],
            GroupLayout::All => panic!("these have numbers"),
            GroupLayout::Ids => {
                [[70, 0, 0], [1, 2, 3], [0, 60, 0]].map(|sizes| padded(ids(&sizes, 16), 70)).to_vec()
            }
        }
    };
    for case in [
        Case::masked(&[3, 0, 9], [70, 136, 272]),
        Case::ends(&[3, 20, 29], 16, [70, 136, 272]),
        Case::ids(&padded(ids(&[3, 20, 9], 16), 70), 3, 16, [136, 272]),
    ] {
        let few = Case { num_sms: Some(2), ..case.clone() };
        let tall = plan::parse("sm90_fp8_persistent_m_grouped_256x128_s3_c1x2").unwrap();
        for (case, choice) in [(case, None), (few, Some(tall))] {
            let mut problem = case.simulated(&sim);
            let stream = device.new_stream().unwrap();
            let options = problem.options(choice, Some(stream.clone()));
            let graph = stream.capture(|_| problem.run(&options)).unwrap();
            for numbers in turns(&case) {
                problem.change_numbers(&case, &numbers);
                problem.poison().unwrap();
                graph.launch(&stream).unwrap();
                stream.synchronize().unwrap();
                problem.assert_right(&format!("{case:?} with {numbers:?}"));
            }
        }
    }
}

/// The counter of the dynamic scheduler is zero again when a grid ends: other calls count from there. Tiles of no rows
/// in their lower half, in any quarter, and of one row, for as many clusters, fewer and more.
#[test]
fn the_dynamic_scheduler_starts_anew_every_launch() {
    let sim = Sim::new();
    let sizes = [300, 0, 60, 130, 1, 200, 256, 70];
    // Of one cluster, so many tiles that the ring that tells of them goes round.
    for (cluster, sms) in [("c1x1", 3), ("c1x2", 2), ("c2x1", 4), ("c1x1", 132)] {
        let choice = plan::parse(&format!("sm90_fp8_persistent_m_grouped_256x128_s3_{cluster}")).unwrap();
        let case = Case { num_sms: Some(sms), ..Case::ends(&ends(&sizes, 16), 16, [1100, 520, 100]) };
        every_schedule_gives_the_same_bits(case, choice, schedules().step_by(2), &sim);
    }
}

/// A kernel that is stopped has handed out some tiles: the next call begins with the first again.
#[test]
fn the_dynamic_scheduler_starts_anew_after_a_fault() {
    let sim = Sim::new();
    let choice = plan::parse("sm90_fp8_persistent_m_grouped_256x128_s3_c1x1").unwrap();
    let case = Case { num_sms: Some(1), ..Case::masked(&[300, 60, 200], [300, 392, 200]) };
    let problem = case.simulated(&sim);
    let right = problem.checked(Some(choice), "before");
    let mut broken = problem.fresh();
    // Memory that nobody has written to.
    let unknown = Tensor::empty(DType::F32, problem.scales()[1].dims(), problem.device()).unwrap();
    broken.scales.as_mut().unwrap()[1] = unknown;
    let stopped = broken.run(&problem.options(Some(choice), None));
    assert!(matches!(stopped, Err(Error::Fault { .. })), "{stopped:?}");
    assert_eq!(problem.checked(Some(choice), "after"), right);
}

#[test]
fn raw_pointers_are_addresses_of_the_simulated_memory() {
    let sim = Sim::new();
    let sizes = [3, 0, 20];
    let counts = sizes.map(|x| x as i32);
    for case in [
        Case::masked(&counts, [20, 64, 256]),
        Case::ids(&ids(&sizes, 16), 3, 16, [64, 256]),
        Case::ends(&ends(&sizes, 16), 16, [40, 64, 256]),
    ] {
        let p = case.simulated(&sim);
        let expected = p.checked(None, "tensors");
        let fresh = p.fresh();
        let (d, memory, [sfa, sfb]) = (&fresh.d, &fresh.d_memory, p.scales());
        // Strides along groups, rows and columns; those along groups count only where rows are masked.
        let strides = |tensor: &Tensor| -> [usize; 3] {
            let strides = tensor.strides();
            [
                if strides.len() == 3 { strides[0] } else { 0 },
                strides[strides.len() - 2],
                strides[strides.len() - 1],
            ]
        };
        let (numbers, alignment) = (p.numbers().address(), case.alignment);
        let matrix =
            |x: &Tensor| RawMatrix { strides: strides(x), ..RawMatrix::new(x.address(), x.dtype(), 0) };
        let factors =
            |x: &Tensor| RawScaleFactors { address: x.address(), dtype: x.dtype(), strides: strides(x) };
        let rows = match case.layout {
            GroupLayout::Counts => RawGroups::Masked { masked_m: numbers, expected_m: 20 },
            GroupLayout::Ids => RawGroups::Ids { ids: numbers, alignment, expected_m: None },
            GroupLayout::Ends => RawGroups::Ends { ends: numbers, alignment, expected_m: None },
            GroupLayout::All => panic!("these have numbers"),
        };
        let gemm = RawGemm {
            grouping: RawGrouping::MGrouped { groups: case.groups, rows },
            ..RawGemm::new([case.rows, case.n, case.k], matrix(&p.a), matrix(&p.b), matrix(d))
                .with_scales(factors(sfa), factors(sfb))
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
fn a_kernel_without_groups_is_refused_and_so_is_one_with_them_for_a_plain_product() {
    let sim = Sim::new();
    let problem = Case::masked(&[3], [4, 64, 128]).simulated(&sim);
    let d = problem.fresh().d.clone();
    for name in ["sm90_fp8_persistent_64x128_s8_c1x1", "sm90_fp8_split_k_8x64_k1_s2"] {
        let refused = problem.computed(plan::parse(name));
        assert!(matches!(&refused, Err(Error::Config { name: found, .. }) if found == name), "{refused:?}");
    }
    let one = |x: &Tensor| x.select(0).unwrap();
    let [sfa, sfb] = problem.scales().map(one);
    let (a, b) = (one(&problem.a), one(&problem.b));
    let options = GemmOptions {
        config: plan::parse("sm90_fp8_persistent_m_grouped_64x128_s8_c1x1"),
        ..Default::default()
    };
    let refused = fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut one(&d), &options);
    assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
}

/// Ids, with rows of no group up to a number of rows.
fn padded(mut ids: Vec<i32>, rows: usize) -> Vec<i32> {
    ids.resize(rows, -1);
    ids
}

/// The same numbers, each only where it stands first.
fn in_one_place(numbers: &[i32]) -> Vec<i32> {
    let mut left = Vec::new();
    let mut kept = Vec::new();
    for (row, &number) in numbers.iter().enumerate() {
        if row > 0 && numbers[row - 1] != number {
            left.push(numbers[row - 1]);
        }
        kept.push(if left.contains(&number) { -1 } else { number });
    }
    kept
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Any numbers at all: what the rules make of them is computed, and nothing else is touched.
    #[test]
    fn any_numbers(
        numbers in proptest::collection::vec(prop_oneof![-2..4i32, -10..90i32, any::<i32>()], 1..80),
        layout in 0..3usize, alignment in 0..5usize, groups in 1..6usize, seed: u64,
    ) {
        let sim = Sim::with_options(Options { policy: Policy::Random, seed, ..Options::default() });
        let alignment = [1, 16, 32, 64, 128][alignment];
        let first = &numbers[..groups.min(numbers.len())];
        let case = match layout {
            0 => Case::masked(first, [70, 72, 144]),
            1 => Case::ends(first, alignment, [85, 72, 144]),
            // Only where every row is looked at is a group sure to end where its number does.
            _ => Case::ids(&in_one_place(&numbers), groups, 1, [72, 144]),
        };
        let about = format!("{case:?}");
        case.simulated(&sim).checked(None, &about);
        if layout == 2 {
            let coarse = Case::ids(&numbers, groups, alignment, [72, 144]).simulated(&sim);
            prop_assert!(coarse.computed(None).is_ok(), "{about}");
        }
    }

    /// Any groups, by the kernel that is planned for them.
    #[test]
    fn any_groups(
        sizes in proptest::collection::vec(prop_oneof![Just(0usize), Just(1), 0..40usize, 60..200usize], 1..6),
        layout in 0..3usize, alignment in 0..5usize, n in 1..150usize, k in 1..300usize, seed: u64,
    ) {
        let sim = Sim::with_options(Options { policy: Policy::Random, seed, ..Options::default() });
        let alignment = [1, 16, 32, 64, 128][alignment];
        let ids = ids(&sizes, alignment);
        let counts: Vec<i32> = sizes.iter().map(|size| *size as i32).collect();
        let most = *sizes.iter().max().expect("one at least");
        let case = match layout {
            0 => Case::masked(&counts, [most + seed as usize % 7, n, k]),
            1 => Case::ids(&ids, sizes.len(), alignment, [n, k]),
            _ => Case::ends(&ends(&sizes, alignment), alignment, [ids.len(), n, k]),
        };
        if case.rows > 0 {
            let about = format!("{case:?}");
            case.simulated(&sim).checked(None, &about);
        }
    }
}

/// Whatever the tiles and clusters, and whatever else is computed beside it, a row has the bits that the plain product
/// of its group has.
#[test]
fn neither_tiles_nor_other_groups_change_a_bit() {
    let sim = Sim::with_options(Options { hazards: false, ..Options::default() });
    let case = Case { scales: ScaleOrder::Mn, ..Case::masked(&[70, 0, 3, 21], [73, 200, 656]) };
    let problem = case.simulated(&sim);
    let (expected, [sfa, sfb]) = (problem.fresh().d.clone(), problem.scales());
    for (group, &rows) in case.numbers.iter().enumerate().filter(|(_, rows)| **rows > 0) {
        let part = |x: &Tensor| x.select(group).unwrap().narrow(0, 0, rows as usize).unwrap();
        let options =
            GemmOptions { config: plan::parse("sm90_fp8_persistent_128x144_s4_c1x1"), ..Default::default() };
        let (a, b) = ((&part(&problem.a), &part(sfa)), (&problem.b, sfb));
        let b = (&b.0.select(group).unwrap(), &b.1.select(group).unwrap());
        fp8_gemm_nt(a, b, Addend::None, &mut part(&expected), &options).unwrap();
    }
    for config in configs() {
        for choice in config.with_clusters([[1, 1], [1, 2], [2, 1]]) {
            let d = problem.computed(Some(choice)).unwrap();
            assert_eq!(d.to_bytes().unwrap(), expected.to_bytes().unwrap(), "{}", plan::name(&choice));
        }
    }
}

/// Every type and layout of scales, on aligned and on unaligned outputs.
#[test]
fn features_of_grouped_kernels() {
    let sim = Sim::new();
    let choices = [
        "sm90_fp8_persistent_m_grouped_64x128_s8_c1x1",
        "sm90_fp8_persistent_m_grouped_64x128_s8_c1x2",
        "sm90_fp8_persistent_m_grouped_64x128_s8_c2x1",
        "sm90_fp8_persistent_m_grouped_256x128_s3_c1x2",
    ];
    let mut i = 0;
    for d_type in [DType::Bf16, DType::F32] {
        for scales in [ScaleOrder::RowPadded, ScaleOrder::Mn, ScaleOrder::RowOdd] {
            for (gap, masked) in [(0, true), (3, false), (8, true)] {
                let case = match masked {
                    true => Case::masked(&[21, 0, 70], [73, 136, 272]),
                    false => Case::ends(&[21, 21, 91], 16, [95, 136, 272]),
                };
                let case = Case { d_type, scales, gap, ..case };
                let choice = plan::parse(choices[i % 4]).expect("the name of a choice");
                every_schedule_gives_the_same_bits(case, choice, schedules().skip(i % 3).step_by(3), &sim);
                i += 1;
            }
        }
    }
}

/// Operands of three groups with K 256 and N 136, and D of one value, on a device.
fn scattered(rows: usize, device: &Device) -> Result<[Tensor; 5], Error> {
    let (groups, n, k) = (3, 136, 256);
    let drawn = |dtype, seed, dims: &[usize]| {
        let values = random::normals(seed, dims.iter().product());
        Tensor::from_f32(dtype, &values, dims, device)
    };
    let positive = |seed, dims: &[usize]| {
        let values: Vec<f32> =
            random::normals(seed, dims.iter().product()).iter().map(|x| x.abs() + 0.1).collect();
        Tensor::from_f32(DType::F32, &values, dims, device)
    };
    Ok([
        drawn(DType::E4m3, 1, &[rows, k])?,
        positive(2, &[rows, 2])?,
        drawn(DType::E4m3, 3, &[groups, n, k])?,
        positive(4, &[groups, 2, 2])?,
        Tensor::from_f32(DType::Bf16, &vec![7.0; rows * n], &[rows, n], device)?,
    ])
}

#[test]
fn groups_in_several_places_and_holes_are_computed() -> Result<(), Error> {
    // Blocks of 16 rows: group 1 in two places, a hole of -1 in group 0, a block of no group.
    let mut ids = vec![1i32; 16];
    ids.extend([0; 40]);
    ids[24..27].fill(-1);
    ids.extend([-1; 24]);
    ids.extend([1; 20]);
    ids.extend([-1; 12]);
    ids.extend([2; 70]);
    // The same with each group in one place: only a hole is left.
    let once: Vec<i32> = ids.iter().enumerate().map(|(row, id)| if row < 16 { -1 } else { *id }).collect();
    for ids in [ids, once] {
        let run = |device: &Device| -> Result<Vec<f32>, Error> {
            let [a, sfa, b, sfb, mut d] = scattered(ids.len(), device)?;
            let ids = Tensor::from_slice(&ids, &[ids.len()], device)?;
            let options = GemmOptions::default();
            let rows = GroupedRows::Ids(&ids);
            m_grouped_fp8_gemm_nt_contiguous((&a, &sfa), (&b, &sfb), &mut d, rows, 16, None, &options)?;
            d.to_vec_f32()
        };
        let (found, expected) = (run(&Device::sim())?, run(&Device::Cpu)?);
        for (row, (found, expected)) in found.chunks(136).zip(expected.chunks(136)).enumerate() {
            let id = ids[row];
            assert!(id < 0 || expected.iter().any(|x| *x != 7.0), "row {row} of group {id} is not computed");
            let close = |(x, y): (&f32, &f32)| (x - y).abs() <= 0.02 * y.abs() + 0.3;
            assert!(found.iter().zip(expected).all(close), "row {row} of group {id}");
        }
    }
    Ok(())
}
