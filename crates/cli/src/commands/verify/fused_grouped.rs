//! Checks of products whose rows are grouped and whose sums are finished before they are stored.

use oxigemm::sim::Options;
use oxigemm::{Device, GemmLayout, GemmOptions, Sim};
use oxigemm_kernels::epilogue::fused::Fusion;
use oxigemm_kernels::launch::Config;

use super::fused::{ACTIVATIONS, BIASES, FORMATS};
use super::grouped::{LAYOUTS, spec};
use super::products::{Draw, ORDERS, launches};
use super::{Check, Setup, accept, computed, ensure, tally};
use crate::fused::EpilogueSpec;
use crate::fused_grouped::{FusedGroupedSpec, FusedGroupedTask};
use crate::grouped::GroupedSpec;
use crate::problem::AddendKind;
use crate::task::Work;
use crate::{Failure, Op};

const OPS: [Op; 3] = [Op::Fp8, Op::Bf16, Op::Fp16];

pub fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    for op in OPS {
        let name = |what: &str| format!("fused {op}: {what}");
        checks
            .push(Check::anywhere(&name("random epilogues of groups"), move |setup| random_cases(setup, op)));
        checks.push(Check::anywhere(&name("repeats of groups give the same bits"), move |setup| {
            repeats(setup, op)
        }));
        checks.push(Check::with_kernels(name("a graph is replayed with other groups"), move |setup| {
            replayed(setup, op)
        }));
    }
    for config in Config::fused_grouped() {
        checks.push(Check::with_kernels(format!("kernel {}", config.name()), move |setup| {
            kernel(setup, config)
        }));
    }
    checks
}

/// Checks that compare a GPU with the simulator.
pub fn comparisons() -> Vec<Check> {
    vec![Check::on_gpu("the simulator gives the same bits of finished sums of groups", same_bits)]
}

impl Draw {
    /// A product whose rows, N, addend and gaps its epilogue takes: rows around a tile of so many, or fewer.
    fn fused_groups(&mut self, op: Op, gated: bool, tile: usize) -> FusedGroupedSpec {
        let mut epilogue = self.epilogue(gated).beside(op);
        if op == Op::Fp16 && gated {
            // Products of two sums stay within the range of FP16.
            epilogue.alpha = self.of(&[0.25, -0.125]);
        }
        let groups = 1 + self.below(6);
        let mut rows: Vec<usize> = (0..groups)
            .map(|_| match self.below(4) {
                0 => self.below(3),
                1 => tile / 2 + self.below(tile),
                _ => self.below(70),
            })
            .collect();
        let (n, k) = (epilogue.fitting(16 * (1 + self.below(40)), op), 16 * (1 + self.below(40)));
        while rows.iter().sum::<usize>() * n * k > self.largest() {
            rows.iter_mut().for_each(|rows| *rows /= 2);
        }
        let turn = self.below(240);
        let product = k_major(spec(op, LAYOUTS[self.below(3)], &rows, [n, k], turn));
        let addend = match epilogue.quantized {
            Some(_) => AddendKind::None,
            None => self.of(&[AddendKind::None, AddendKind::Inplace, AddendKind::Other]),
        };
        FusedGroupedSpec { product: GroupedSpec { addend, ..product }, epilogue }
    }
}

/// The same with operands that are K-major, and nothing added.
fn k_major(product: GroupedSpec) -> GroupedSpec {
    GroupedSpec { operands: GemmLayout::Nt, addend: AddendKind::None, ..product }
}

fn finished(setup: &Setup, spec: FusedGroupedSpec, options: &GemmOptions) -> Result<f64, Failure> {
    computed(setup, &Work::FusedGrouped(spec), options)
}

fn random_cases(setup: &Setup, op: Op) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 43);
    let cases: Vec<_> = (0..setup.count(120)).map(|i| draw.fused_groups(op, i % 2 == 1, 128)).collect();
    tally(cases.into_iter().map(|spec| finished(setup, spec, &GemmOptions::default())))
}

/// One kernel, forced: every launch, with epilogues and groups of all kinds.
fn kernel(setup: &Setup, config: Config) -> Result<String, Failure> {
    let block_m = match config {
        Config::Wide(wide) => wide.block_m,
        Config::HalfWide(wide) => wide.block_m,
        _ => return Err("only kernels of many rows finish sums of groups".into()),
    };
    let (gated, (op, _)) = (config.fusion() == Fusion::Gated, Op::of(config.family()));
    let mut draw = Draw::new(setup, 44);
    let count = if setup.device.as_sim().is_some() { 1 } else { 10 };
    let mut cases = Vec::new();
    for choice in launches(config) {
        for _ in 0..count {
            let spec = draw.fused_groups(op, gated, block_m as usize);
            cases.push((spec, GemmOptions { choice: Some(choice), ..Default::default() }));
        }
    }
    tally(cases.into_iter().map(|(spec, options)| finished(setup, spec, &options)))
}

fn repeats(setup: &Setup, op: Op) -> Result<String, Failure> {
    let gpu = setup.device.as_cuda().is_some();
    let rows: &[usize] = if gpu { &[200, 0, 1, 77, 300, 129] } else { &[20, 0, 1] };
    let dims = if gpu { [1024, 1536] } else { [256, 200] };
    let epilogues = ["gelu,bias", "swiglu", "swiglu,fp8", "fp8-pow2,bias-f32"];
    for words in epilogues {
        for (turn, layout) in LAYOUTS.into_iter().enumerate() {
            let product = k_major(spec(op, layout, rows, dims, 6 * turn));
            let spec = FusedGroupedSpec { product, epilogue: words.parse::<EpilogueSpec>()?.beside(op) };
            let mut task = FusedGroupedTask::new(spec.clone(), &setup.device)?;
            setup.same_bits_again(&spec, || {
                task.poison()?;
                task.run(&GemmOptions::default())?;
                task.bits()
            })?;
        }
    }
    Ok(format!("{} epilogues, {} layouts of groups", epilogues.len(), LAYOUTS.len()))
}

/// A graph that was captured once, launched with groups that change, on memory that changes with them.
fn replayed(setup: &Setup, op: Op) -> Result<String, Failure> {
    let stream = setup.device.new_stream()?;
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    let turns: [[usize; 4]; 5] = [[30, 0, 7, 3], [0, 40, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [10, 10, 10, 10]];
    for layout in LAYOUTS {
        let of = |rows: [usize; 4], turn: usize| {
            let spec = GroupedSpec::new(layout, rows.to_vec(), 512, 400).of(op, GemmLayout::Nt);
            let mut spec = GroupedSpec { alignment: 1, room: 64, seed: turn as u64, ..spec };
            spec.behind = 64 - rows.iter().sum::<usize>().min(64);
            spec
        };
        let spec = FusedGroupedSpec { product: of(turns[0], 0), epilogue: "swiglu,fp8".parse()? };
        let mut task = FusedGroupedTask::new(spec, &setup.device)?;
        task.run(&options)?;
        let graph = stream.capture(|_| task.run(&options))?;
        for (turn, rows) in turns.into_iter().enumerate() {
            task.change_groups(&of(rows, turn))?;
            task.poison()?;
            graph.launch(&stream)?;
            stream.synchronize()?;
            let about = task.spec.to_string();
            accept(&task.judge()?, task.surroundings_untouched()?, |what| {
                format!("replay {turn} of {about}: {what}")
            })?;
        }
    }
    Ok(format!("{} graphs, each launched with {} sets of groups", LAYOUTS.len(), turns.len()))
}

/// The same inputs on the GPU and in the simulator, for every kernel and launch. Exponentials and reciprocals are
/// approximations of the hardware; all else must be the same.
fn same_bits(setup: &Setup) -> Result<String, Failure> {
    let simulated = Device::Sim(Sim::with_options(Options { hazards: false, ..Options::default() }));
    let mut cases = 0;
    for (i, config) in Config::fused_grouped().enumerate() {
        let (op, _) = Op::of(config.family());
        for (turn, choice) in launches(config).into_iter().enumerate() {
            let turn = i + turn;
            let epilogue = EpilogueSpec {
                activation: ACTIVATIONS[turn % 2],
                gated: config.fusion() == Fusion::Gated,
                bias: BIASES[turn % 3],
                alpha: 0.5,
                quantized: (turn % 2 == 0).then_some((ORDERS[turn % 4], FORMATS[turn / 2 % 2])),
                ..EpilogueSpec::NONE
            }
            .beside(op);
            let product = k_major(spec(op, LAYOUTS[turn % 3], &[66, 0, 3], [512, 656], turn));
            let product = GroupedSpec { d_type: op.rounding(), ..product };
            let spec = FusedGroupedSpec { product, epilogue };
            let options = GemmOptions { choice: Some(choice), ..Default::default() };
            setup.now(format!("{spec} on both"));
            let bits = |device: &Device| -> Result<Vec<u8>, Failure> {
                let mut task = FusedGroupedTask::new(spec.clone(), device)?;
                task.run(&options)?;
                task.bits()
            };
            let differ =
                bits(&setup.device)?.iter().zip(bits(&simulated)?).filter(|(x, y)| **x != *y).count();
            ensure(differ == 0, || format!("{spec} by {}: {differ} bytes differ", config.name()))?;
            cases += 1;
        }
    }
    Ok(format!("{cases} products, no bit differs"))
}
