//! Faults that are put into the kernels between GPUs: the simulator has to find them.

use std::sync::atomic::{AtomicUsize, Ordering};

use oxigemm::{Arch, DType, MoeGroupCall, Result, Sim};
use oxigemm_kernels::KernelId;
use oxigemm_kernels::exchange::Step;
use oxigemm_sim::{Mutant, Options, Policy, misscoped, mutants};

use super::moe_group::{Rank, Tokens, Weights, shape};
use oxigemm::cast::ScaleFormat;

const RANKS: usize = 2;

/// Results of both calls of both ranks.
type Results = Vec<Vec<Vec<f32>>>;

/// Two calls, the second with other tokens, so that what is left of the first is seen.
fn results(weights: &Weights, mutant: Option<(KernelId, &str)>, options: &Options) -> Result<Results> {
    let world = Sim::world(RANKS, options.clone())?;
    for sim in &world {
        if let Some((kernel, text)) = mutant {
            sim.replace_kernel(kernel, text)?;
        }
    }
    let counts = [[3, 1], [2, 4]];
    let outcomes = world[0].each_rank(|rank| -> Result<Vec<Vec<f32>>> {
        let mut own = Rank::new(rank, weights, &shape(RANKS, weights), None);
        own.group.set_timeout(1e-3);
        let found = (0..2)
            .map(|call| {
                let seed = (10 * call + rank.rank()) as u64;
                let tokens = Tokens::new(seed, counts[call][rank.rank()], weights.experts);
                own.forward(&tokens, MoeGroupCall::default())
            })
            .collect::<Result<Vec<_>>>();
        let met = rank.meet(0);
        let found = found?;
        met?;
        own.group.check()?;
        Ok(found)
    });
    outcomes?.into_iter().collect()
}

fn schedules() -> Vec<Options> {
    let one = |policy, seed| Options { policy, seed, instruction_limit: 3_000_000, ..Options::default() };
    let random = (0..5).map(|seed| one(Policy::Random, seed));
    [one(Policy::Lazy, 0), one(Policy::Eager, 0)].into_iter().chain(random).collect()
}

/// Instructions that may be missing, and why nothing is lost without them.
const EXPLAINED: &[(&str, &str, &str)] = &[];

#[test]
fn faults_in_the_protocol_between_gpus_are_found() {
    let (all, found) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let dtypes = [DType::Bf16, DType::E4m3];
    let weights = dtypes.map(|dtype| Weights::new(dtype, 2 * RANKS, ScaleFormat::F32));
    let expected: Vec<Vec<Results>> = weights
        .iter()
        .map(|weights| schedules().iter().map(|options| results(weights, None, options).unwrap()).collect())
        .collect();
    for schedules in &expected {
        assert!(schedules.iter().all(|results| *results == schedules[0]));
    }
    for step in Step::ALL {
        let kernel = KernelId::Exchange(Arch::Sm90a, step);
        let text = kernel.build().unwrap().text;
        let mut list: Vec<Mutant> = mutants(&text).into_iter().chain(misscoped(&text)).collect();
        list.sort_by(|a, b| a.text.cmp(&b.text));
        list.dedup_by(|a, b| a.text == b.text);
        list.sort_by_key(|mutant| mutant.line);
        for mutant in &list {
            all.fetch_add(1, Ordering::Relaxed);
            let is_found = schedules().iter().any(|options| {
                weights.iter().zip(&expected).any(|(weights, expected)| {
                    !matches!(results(weights, Some((kernel, &mutant.text)), options), Ok(found) if found == expected[0])
                })
            });
            if is_found {
                found.fetch_add(1, Ordering::Relaxed);
            } else {
                println!("{step:?} survives: {}: {}", mutant.line, mutant.what);
            }
        }
        println!("{step:?}: {} mutants", list.len());
    }
    println!("{found:?} of {all:?}; {EXPLAINED:?}");
}
