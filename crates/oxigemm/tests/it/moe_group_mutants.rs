//! Faults that are put into the kernels between GPUs: the simulator has to find them.

use std::sync::Mutex;

use oxigemm::cast::ScaleFormat;
use oxigemm::{Arch, DType, MoeGroupCall, MoeGroupShape, Result, Sim, SimRank, Tensor};
use oxigemm_kernels::KernelId;
use oxigemm_kernels::exchange::Step;
use oxigemm_sim::{Mutant, Options, Policy, misscoped, mutants};

use super::moe_group::{Rank, Tokens, Weights, shape};

/// What two ranks do, or three.
#[derive(Clone, Copy, Debug)]
enum Scenario {
    /// Two calls, the second with other tokens, so that what is left of the first is seen; rows are counted.
    Calls(DType),
    /// Rank 1 has other sizes.
    Sizes,
    /// The last of three ranks makes no call.
    Missing,
    /// The last of three ranks makes no call, and the others have different sizes.
    SizesAndMissing,
    /// Rank 0 gets more rows than it has room for.
    Full,
    /// The last of three ranks gets more rows than it has room for, and goes no further than to the sums of its first call.
    FullAndStops(DType),
    /// The same, but that rank tells the others, and another one fails beside it; both call again.
    FullAndFails(DType),
}

const SCENARIOS: [Scenario; 9] = [
    Scenario::Calls(DType::Bf16),
    Scenario::Sizes,
    Scenario::Missing,
    Scenario::SizesAndMissing,
    Scenario::Full,
    Scenario::FullAndStops(DType::Bf16),
    Scenario::Calls(DType::E4m3),
    Scenario::FullAndFails(DType::E4m3),
    Scenario::FullAndStops(DType::E4m3),
];

/// What a rank sees: results of its calls, counts, and what its check tells.
type Seen = (Vec<Vec<f32>>, Vec<i32>, String);

impl Scenario {
    fn dtype(self) -> DType {
        match self {
            Scenario::Calls(dtype) | Scenario::FullAndStops(dtype) | Scenario::FullAndFails(dtype) => dtype,
            _ => DType::Bf16,
        }
    }

    fn ranks(self) -> usize {
        if matches!(self, Scenario::Calls(_) | Scenario::Sizes | Scenario::Full) { 2 } else { 3 }
    }

    /// Seconds after which a rank is missing.
    fn timeout(self) -> f64 {
        match self {
            Scenario::Missing | Scenario::SizesAndMissing => 2e-6,
            Scenario::FullAndStops(_) => 1e-5,
            _ => 1e-3,
        }
    }

    fn of_rank(self, rank: &SimRank, weights: &Weights) -> Result<Seen> {
        let number = rank.rank();
        let (others, most_rows) = match self {
            Scenario::Sizes | Scenario::SizesAndMissing => (number, None),
            Scenario::Full | Scenario::FullAndStops(_) | Scenario::FullAndFails(_) => (0, Some(16)),
            _ => (0, None),
        };
        let sizes = shape(self.ranks(), weights);
        let sizes = MoeGroupShape { tokens: sizes.tokens + others, ..sizes };
        let mut own = Rank::new(rank, weights, &sizes, most_rows);
        let counts = Tensor::from_slice(&[0i32, 0], &[2], &rank.device())?;
        let call = MoeGroupCall { most_rows, counts: Some(&counts), ..MoeGroupCall::default() };
        own.group.set_timeout(self.timeout());
        let calls = match (self, number) {
            (Scenario::Missing | Scenario::SizesAndMissing, 2) => 0,
            (Scenario::FullAndStops(_), 2) => 1,
            _ => 2,
        };
        let found: Result<Vec<Vec<f32>>> = (0..calls)
            .map(|nth| {
                let seed = (10 * nth + number) as u64;
                let count = [[3, 1, 2], [2, 4, 0]][nth][number];
                let mut tokens = Tokens::new(seed, count, weights.experts);
                let wanted = match self {
                    Scenario::Full => Some(nth),
                    Scenario::FullAndStops(_) | Scenario::FullAndFails(_) => Some(weights.experts - 1 - nth),
                    _ => None,
                };
                if let Some(expert) = wanted {
                    tokens = Tokens::new(seed, sizes.tokens, weights.experts);
                    tokens.ids.fill(expert as i32);
                }
                match (self, number, nth) {
                    (Scenario::FullAndStops(_), 2, 0) => own.stop(rank, &tokens, call).map(|()| Vec::new()),
                    (Scenario::FullAndFails(_), 1 | 2, 0) => {
                        own.fail(rank, &tokens, call).map(|()| Vec::new())
                    }
                    _ => own.forward(&tokens, call),
                }
            })
            .collect();
        // Who fails leaves the others, which then see that.
        let met = rank.meet(0);
        let told = own.group.check().map_or_else(|error| error.to_string(), |()| String::new());
        let found = found?;
        met?;
        Ok((found, counts.to_vec()?, told))
    }

    fn run(
        self,
        weights: &Weights,
        mutant: Option<(KernelId, &str)>,
        options: &Options,
    ) -> Result<Vec<Seen>> {
        let world = Sim::world(self.ranks(), options.clone())?;
        if let Some((kernel, text)) = mutant {
            world.iter().try_for_each(|sim| sim.replace_kernel(kernel, text))?;
        }
        world[0].each_rank(|rank| self.of_rank(rank, weights))?.into_iter().collect()
    }
}

fn schedules() -> [Options; 4] {
    [(Policy::Lazy, 0), (Policy::Random, 1), (Policy::Random, 2), (Policy::Eager, 0)]
        .map(|(policy, seed)| Options { policy, seed, instruction_limit: 3_000_000, ..Options::default() })
}

/// An instruction that may be missing, and why nothing is lost without it.
struct Explained {
    step: Step,
    what: &'static str,
    times: usize,
    why: &'static str,
}

const EXPLAINED: &[Explained] = &[Explained {
    step: Step::Meet,
    what: "deleted: bar.warp.sync",
    times: 1,
    why: "simulated lanes come together where their branches meet, those of a GPU need not",
}];

#[test]
fn faults_in_the_kernels_between_gpus_are_found() {
    let cases: Vec<(Scenario, Weights, Vec<Seen>)> = SCENARIOS
        .into_iter()
        .map(|scenario| {
            let weights = Weights::new(scenario.dtype(), 2 * scenario.ranks(), ScaleFormat::F32);
            let seen: Vec<_> =
                schedules().iter().map(|options| scenario.run(&weights, None, options).unwrap()).collect();
            assert!(seen.iter().all(|one| *one == seen[0]), "{scenario:?}: {seen:?}");
            (scenario, weights, seen.into_iter().next().unwrap())
        })
        .collect();
    let mut list: Vec<(Step, KernelId, Mutant)> = Vec::new();
    for step in Step::ALL {
        let kernel = KernelId::Exchange(Arch::Sm90a, step);
        let text = kernel.build().unwrap().text;
        let mut of_kernel: Vec<Mutant> = mutants(&text).into_iter().chain(misscoped(&text)).collect();
        of_kernel.sort_by(|a, b| a.text.cmp(&b.text));
        of_kernel.dedup_by(|a, b| a.text == b.text);
        of_kernel.sort_by_key(|mutant| mutant.line);
        list.extend(of_kernel.into_iter().map(|mutant| (step, kernel, mutant)));
    }
    let (all, queue, survivors) = (list.len(), Mutex::new(list.iter()), Mutex::new(Vec::new()));
    let is_found = |kernel: KernelId, mutant: &Mutant| {
        schedules().iter().any(|options| {
            cases.iter().any(|(scenario, weights, seen)| {
                scenario.run(weights, Some((kernel, &mutant.text)), options).ok().as_ref() != Some(seen)
            })
        })
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some((step, kernel, mutant)) = queue.lock().unwrap().next() else { break };
                    if !is_found(*kernel, mutant) {
                        eprintln!("{step:?} {}: {}", mutant.line, mutant.what);
                        survivors.lock().unwrap().push((*step, mutant));
                    }
                }
            });
        }
    });
    let mut survivors = survivors.into_inner().unwrap();
    println!("{} of {all} found", all - survivors.len());
    for explained in EXPLAINED {
        for _ in 0..explained.times {
            let at = survivors
                .iter()
                .position(|(step, mutant)| *step == explained.step && mutant.what.contains(explained.what));
            let at = at.unwrap_or_else(|| panic!("{} is found: {}", explained.what, explained.why));
            survivors.remove(at);
        }
    }
    let what: Vec<_> = survivors.iter().map(|(step, mutant)| (step, mutant.line, &mutant.what)).collect();
    assert!(what.is_empty(), "{what:#?}");
}
