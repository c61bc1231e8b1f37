//! Checks of products whose sums are finished before they are stored.

use oxigemm::cast::ScaleFormat;
use oxigemm::plan::{Choice, Plan};
use oxigemm::sim::Options;
use oxigemm::{Activation, DType, Device, GemmLayout, GemmOptions, HeadSplits, Sim};
use oxigemm_kernels::epilogue::fused::Fusion;
use oxigemm_kernels::launch::Config;

use super::products::{Draw, ORDERS, launches};
use super::{Check, Setup, computed, ensure, tally};
use crate::fused::{EpilogueSpec, FusedSpec, FusedTask};
use crate::problem::{AddendKind, Spec};
use crate::task::Work;
use crate::{Failure, Op};

pub const ACTIVATIONS: [Activation; 5] =
    [Activation::None, Activation::Relu, Activation::Gelu, Activation::GeluTanh, Activation::Silu];
pub const BIASES: [Option<DType>; 3] = [None, Some(DType::Bf16), Some(DType::F32)];
pub const FORMATS: [ScaleFormat; 2] = [ScaleFormat::F32, ScaleFormat::PowerOfTwo];

const OPS: [Op; 3] = [Op::Fp8, Op::Bf16, Op::Fp16];

pub fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    for op in OPS {
        let name = |what: &str| format!("fused {op}: {what}");
        checks.push(Check::anywhere(&name("random epilogues"), move |setup| random_cases(setup, op)));
        checks.push(Check::anywhere(&name("repeats give the same bits"), move |setup| repeats(setup, op)));
    }
    for config in Config::fused() {
        checks.push(Check::with_kernels(format!("kernel {}", config.name()), move |setup| {
            kernel(setup, config)
        }));
    }
    checks
}

/// Checks that compare a GPU with the simulator.
pub fn comparisons() -> Vec<Check> {
    vec![Check::on_gpu("the simulator gives the same bits of finished sums", same_bits)]
}

impl Draw {
    /// What is done with sums, as a kernel can; `gated` if it has a gate.
    pub fn epilogue(&mut self, gated: bool) -> EpilogueSpec {
        let quantized = (self.below(3) == 0).then(|| (self.of(&ORDERS), self.of(&FORMATS)));
        let heads = (!gated && quantized.is_none() && self.below(3) == 0).then(|| {
            let unit = self.of(&[1, 4, 64]);
            let [left, mid, right] =
                [1 + self.below(3), self.below(3), self.below(3)].map(|x| x as u32 * unit);
            HeadSplits { left, mid, right }
        });
        EpilogueSpec {
            activation: self.of(&ACTIVATIONS),
            gated,
            bias: self.of(&BIASES),
            alpha: self.of(&[1.0, 0.25, -1.5]),
            beta: self.of(&[1.0, 0.5, -2.0]),
            heads,
            quantized,
        }
    }

    /// A product of some function whose N, addend and gaps its epilogue takes.
    fn fused(&mut self, op: Op, gated: bool) -> FusedSpec {
        let mut epilogue = self.epilogue(gated).beside(op);
        if op == Op::Fp16 && gated {
            // Products of two sums stay within the range of FP16.
            epilogue.alpha = self.of(&[0.25, -0.125]);
        }
        let spec = self.spec_of(op, GemmLayout::Nt);
        let (sfa, sfb) = (self.of(&ORDERS), self.of(&ORDERS));
        let mut product = Spec { sfa, sfb, ..spec };
        product.n = epilogue.fitting(product.n, op);
        if epilogue.quantized.is_some() {
            product.addend = AddendKind::None;
        }
        FusedSpec { product, epilogue }
    }
}

fn finished(setup: &Setup, spec: FusedSpec, options: &GemmOptions) -> Result<f64, Failure> {
    computed(setup, &Work::Fused(spec), options)
}

fn random_cases(setup: &Setup, op: Op) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 41);
    let cases = (0..setup.count(if op == Op::Fp8 { 200 } else { 120 })).map(|i| draw.fused(op, i % 2 == 1));
    tally(cases.map(|spec| finished(setup, spec, &GemmOptions::default())))
}

/// One kernel, forced: every launch, with epilogues and shapes of all kinds.
fn kernel(setup: &Setup, config: Config) -> Result<String, Failure> {
    let limits = setup.limits()?;
    let mut draw = Draw::new(setup, 42);
    let (gated, (op, _)) = (config.fusion() == Fusion::Gated, Op::of(config.family()));
    let count = if setup.device.as_sim().is_some() { 1 } else { 10 };
    let mut cases = Vec::new();
    for choice in some_launches(config) {
        for _ in 0..count {
            let spec = draw.fused(op, gated);
            let fits = Plan::of_fused(choice, spec.shape(), &spec.epilogue.fused(), &limits).is_some();
            ensure(fits, || format!("{spec}: no plan by {}", oxigemm::plan::name(&choice)))?;
            cases.push((spec, GemmOptions { choice: Some(choice), ..Default::default() }));
        }
    }
    tally(cases.into_iter().map(|(spec, options)| finished(setup, spec, &options)))
}

/// Every way to launch a kernel, but one number of stages for every way to split K.
fn some_launches(config: Config) -> impl Iterator<Item = Choice> {
    launches(config).into_iter().filter(|choice| match choice {
        Choice::Slim { split, stages, .. } | Choice::HalfSlim { split, stages, .. } => {
            *stages == if [1, 4].contains(split) { 3 } else { 2 }
        }
        Choice::Wide { .. } | Choice::HalfWide { .. } => true,
    })
}

fn repeats(setup: &Setup, op: Op) -> Result<String, Failure> {
    let gpu = setup.device.as_cuda().is_some();
    let shapes: &[[usize; 3]] =
        if gpu { &[[1, 512, 7168], [300, 1024, 1000], [4096, 4096, 512]] } else { &[[17, 256, 300]] };
    let epilogues = ["gelu,bias", "swiglu", "swiglu,fp8", "fp8-pow2,bias-f32", "heads=64/32/64"];
    for &[m, n, k] in shapes {
        for words in epilogues {
            let epilogue = words.parse::<EpilogueSpec>()?.beside(op);
            let spec = FusedSpec { product: Spec::of(op, GemmLayout::Nt, [m, n, k]), epilogue };
            let mut task = FusedTask::new(spec, &setup.device)?;
            setup.same_bits_again(&spec, || {
                task.poison()?;
                task.run(&GemmOptions::default())?;
                task.bits()
            })?;
        }
    }
    Ok(format!("{} shapes, {} epilogues", shapes.len(), epilogues.len()))
}

/// The same inputs on the GPU and in the simulator, for every kernel and launch. Exponentials and reciprocals are
/// approximations of the hardware; all else must be the same.
fn same_bits(setup: &Setup) -> Result<String, Failure> {
    let simulated = Device::Sim(Sim::with_options(Options { hazards: false, ..Options::default() }));
    let mut cases = 0;
    for (i, config) in Config::fused().enumerate() {
        let (gated, (op, layout)) = (config.fusion() == Fusion::Gated, Op::of(config.family()));
        for (turn, choice) in some_launches(config).enumerate() {
            let turn = i + turn;
            let quantized = (turn % 2 == 0).then_some((ORDERS[turn % 4], FORMATS[turn / 2 % 2]));
            let epilogue = EpilogueSpec {
                activation: ACTIVATIONS[turn % 2],
                gated,
                bias: BIASES[turn % 3],
                alpha: 0.5,
                quantized,
                ..EpilogueSpec::NONE
            }
            .beside(op);
            let product = Spec { seed: turn as u64, ..Spec::of(op, layout, [66, 512, 656]) };
            let spec = FusedSpec { product, epilogue };
            let options = GemmOptions { choice: Some(choice), ..Default::default() };
            setup.now(format!("{spec} on both"));
            let bits = |device: &Device| -> Result<Vec<u8>, Failure> {
                let mut task = FusedTask::new(spec, device)?;
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
