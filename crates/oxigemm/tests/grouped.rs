//! Products whose rows are grouped, in the simulator: whatever the schedule, the same bits, no hazard, the product of
//! each group with its own B, and nothing else written to.

mod common;

use common::grouped::{Case, Problem, ids};
use common::{Scales, schedules};
use oxigemm::plan::{self, Choice};
use oxigemm::sim::Options;
use oxigemm::{DType, Sim};
use oxigemm_kernels::launch::Config;

/// Runs a case under some schedules, which must all give the same, right bits.
fn every_schedule_gives_the_same_bits(
    case: Case,
    choice: Choice,
    schedules: impl Iterator<Item = Options>,
    sim: &Sim,
) {
    let about = format!("{} {case:?}", plan::name(&choice));
    let problem = Problem::new(case, sim);
    let mut first: Option<Vec<u8>> = None;
    for options in schedules {
        let about = format!("{about} {:?} {}", options.policy, options.seed);
        sim.set_options(options);
        let found = problem.checked(Some(choice), &about);
        assert_eq!(*first.get_or_insert_with(|| found.clone()), found, "{about}: other bits");
    }
}

/// Every grouped kernel, with a cluster; over the set all clusters occur.
fn kernels() -> impl Iterator<Item = (u32, u32, u32, Choice)> {
    Config::grouped().enumerate().map(|(i, config)| {
        let Config::Wide(config) = config else { panic!("{} has no groups", config.name()) };
        let (cluster_m, cluster_n) = [(2, 1), (1, 2), (1, 1)][i % 3];
        (config.block_m, config.block_n, config.stages, Choice::Wide { config, cluster_m, cluster_n })
    })
}

/// A K of more blocks than stages, with a tail.
fn depth(stages: u32) -> usize {
    (stages as usize + 1) * 128 - 112
}

#[test]
fn every_kernel_with_masked_groups_under_ten_schedules() {
    let sim = Sim::new();
    for (block_m, block_n, stages, choice) in kernels() {
        // Groups of a tile and a bit, of none, of one row, and of all rows that there is room for.
        let rows = block_m as usize + 20;
        let case = Case::masked(&[block_m as i32 + 3, 0, 1, 17], [rows, block_n as usize + 8, depth(stages)]);
        every_schedule_gives_the_same_bits(case, choice, schedules(), &sim);
    }
}

#[test]
fn every_kernel_with_groups_behind_each_other_under_ten_schedules() {
    let sim = Sim::new();
    for (i, (block_m, block_n, stages, choice)) in kernels().enumerate() {
        let alignment = [1, 16, 32, 64, 128][i];
        let sizes = [block_m as usize / 2 + 5, 0, 1, block_m as usize];
        let ids = ids(&sizes, alignment);
        let case = Case::ids(&ids, sizes.len(), alignment, [block_n as usize - 8, depth(stages)]);
        every_schedule_gives_the_same_bits(case.clone(), choice, schedules().step_by(2), &sim);
        let ends: Vec<i32> = case
            .found(&ids)
            .iter()
            .scan(0, |reached, rows| {
                *reached = rows.end.max(*reached);
                Some(*reached as i32)
            })
            .collect();
        let case = Case::ends(&ends, alignment, [ids.len(), case.n, case.k]);
        every_schedule_gives_the_same_bits(case, choice, schedules().skip(1).step_by(2), &sim);
    }
}

/// Every type and layout of scales, on aligned and on unaligned outputs.
#[test]
fn features_of_grouped_kernels() {
    let sim = Sim::new();
    let choices =
        ["wide_grouped_64x128_s8_c1x1", "wide_grouped_64x128_s8_c1x2", "wide_grouped_64x128_s8_c2x1"];
    let mut i = 0;
    for d_type in [DType::Bf16, DType::F32] {
        for scales in [Scales::RowMajor, Scales::MnMajor, Scales::Odd] {
            for (gap, masked) in [(0, true), (3, false), (8, true)] {
                let case = match masked {
                    true => Case::masked(&[21, 0, 70], [73, 136, 272]),
                    false => Case::ends(&[21, 21, 91], 16, [95, 136, 272]),
                };
                let case = Case { d_type, scales, gap, ..case };
                let choice = plan::parse(choices[i % 3]).expect("the name of a choice");
                every_schedule_gives_the_same_bits(case, choice, schedules().skip(i % 3).step_by(3), &sim);
                i += 1;
            }
        }
    }
}
