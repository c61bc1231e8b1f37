//! Checks of fused epilogues, dense and m-grouped.

use oxigemm::{Device, GemmLayout, GemmOptions};
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_testkit::plan::operands_of;
use oxigemm_testkit::{ACTIVATIONS, BF16, EpilogueSpec, FP8, FP16, Failure, GemmCase, MGroups, OperandTypes};

use super::kernels::some_launches;
use super::random::{BIASES, Draw, FORMATS, GROUP_LAYOUTS, ORDERS, k_major, m_grouped};
use super::{Check, Setup, each, ensure, gemms};

pub fn checks(_: &Setup) -> Vec<Check> {
    let mut checks = Vec::new();
    for types in [FP8, BF16, FP16] {
        let name = |what: &str| format!("fused {types}: {what}");
        checks.push(Check::anywhere(&name("random epilogues"), move |setup| random_cases(setup, types)));
        checks.push(Check::anywhere(&name("repeats give the same bits"), move |setup| repeats(setup, types)));
        checks.push(Check::anywhere(&name("random epilogues of m-grouped GEMMs"), move |setup| {
            random_groups(setup, types)
        }));
        checks.push(Check::anywhere(&name("repeats of groups give the same bits"), move |setup| {
            repeats_of_groups(setup, types)
        }));
        checks.push(Check::with_kernels(name("a graph is replayed with other groups"), move |setup| {
            replayed(setup, types)
        }));
    }
    checks
}

/// Checks that compare a GPU with the simulator.
pub fn comparisons(_: &Setup) -> Vec<Check> {
    vec![
        Check::on_gpu("the simulator gives the same bits of fused epilogues", |setup| {
            same_bits(setup, GemmKernel::fused(setup.arch()), fused_case)
        }),
        Check::on_gpu("the simulator gives the same bits of m-grouped fused epilogues", |setup| {
            same_bits(setup, GemmKernel::fused_m_grouped(setup.arch()), fused_grouped_case)
        }),
    ]
}

fn random_cases(setup: &Setup, types: OperandTypes) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 41);
    let count = setup.count(if types == FP8 { 200 } else { 120 });
    gemms(setup, each((0..count).map(|i| draw.fused(types, i % 2 == 1))))
}

fn random_groups(setup: &Setup, types: OperandTypes) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 43);
    gemms(setup, each((0..setup.count(120)).map(|i| draw.fused_groups(types, i % 2 == 1, 128))))
}

/// A case with the epilogue that words say.
fn with(words: &str, case: GemmCase) -> Result<GemmCase, Failure> {
    let epilogue = words.parse::<EpilogueSpec>()?.beside(&case.types);
    Ok(GemmCase { epilogue: Some(epilogue), ..case })
}

fn repeats(setup: &Setup, types: OperandTypes) -> Result<String, Failure> {
    let gpu = setup.device.as_cuda().is_some();
    let shapes: &[[usize; 3]] =
        if gpu { &[[1, 512, 7168], [300, 1024, 1000], [4096, 4096, 512]] } else { &[[17, 256, 300]] };
    let epilogues = ["gelu,bias", "swiglu", "swiglu,fp8", "fp8-pow2,bias-f32", "heads=64/32/64"];
    for &dims in shapes {
        for words in setup.thinned(epilogues) {
            let case = with(words, GemmCase::dense(types, GemmLayout::Nt, dims))?;
            setup.repeats(&case, &GemmOptions::default())?;
        }
    }
    Ok(format!("{} shapes, {} epilogues", shapes.len(), epilogues.len()))
}

fn repeats_of_groups(setup: &Setup, types: OperandTypes) -> Result<String, Failure> {
    let gpu = setup.device.as_cuda().is_some();
    let rows: &[usize] = if gpu { &[200, 0, 1, 77, 300, 129] } else { &[20, 0, 1] };
    let dims = if gpu { [1024, 1536] } else { [256, 200] };
    let epilogues = ["gelu,bias", "swiglu", "swiglu,fp8", "fp8-pow2,bias-f32"];
    for words in setup.thinned(epilogues) {
        for (turn, layout) in setup.thinned(GROUP_LAYOUTS.into_iter().enumerate()) {
            let case = with(words, k_major(m_grouped(types, layout, rows, dims, 6 * turn)))?;
            setup.repeats(&case, &GemmOptions::default())?;
        }
    }
    Ok(format!("{} epilogues, {} layouts of groups", epilogues.len(), GROUP_LAYOUTS.len()))
}

/// A graph that was captured once, launched with groups that change, on memory that changes with them.
fn replayed(setup: &Setup, types: OperandTypes) -> Result<String, Failure> {
    let stream = setup.device.new_stream()?;
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    let turns: [[usize; 4]; 5] = [[30, 0, 7, 3], [0, 40, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [10, 10, 10, 10]];
    for layout in setup.thinned(GROUP_LAYOUTS) {
        let of = |rows: [usize; 4], turn: usize| {
            let groups = MGroups {
                alignment: 1,
                max_m: 64,
                trailing_rows: 64 - rows.iter().sum::<usize>().min(64),
                ..MGroups::new(layout, rows.to_vec())
            };
            let case = GemmCase::m_grouped(types, groups, [512, 400]);
            GemmCase { seed: turn as u64, ..with("swiglu,fp8", case)? }.drawn_for(&setup.device)
        };
        let mut gemm = of(turns[0], 0)?.upload(&setup.device)?;
        gemm.run(&options)?;
        let graph = stream.capture(|_| gemm.run(&options))?;
        for (turn, rows) in turns.into_iter().enumerate().step_by(if setup.is_thrifty() { 3 } else { 1 }) {
            gemm.replace(&of(rows, turn)?)?;
            setup.replay(&mut gemm, &graph, &stream, turn)?;
        }
    }
    Ok("a graph of each layout of groups, launched with several sets of them".to_owned())
}

/// An epilogue of a kernel: exponentials and reciprocals are approximations of the hardware; all else must be the same.
fn epilogue(config: &GemmKernel, turn: usize, types: &OperandTypes) -> EpilogueSpec {
    EpilogueSpec {
        activation: ACTIVATIONS[turn % 2],
        gated: config.fusion() == Fusion::Gated,
        bias: BIASES[turn % 3],
        alpha: 0.5,
        quantized: turn.is_multiple_of(2).then_some((ORDERS[turn % 4], FORMATS[turn / 2 % 2])),
        ..EpilogueSpec::NONE
    }
    .beside(types)
}

fn fused_case(config: &GemmKernel, turn: usize) -> GemmCase {
    let (types, layout) = operands_of(config);
    let epilogue = Some(epilogue(config, turn, &types));
    GemmCase { epilogue, seed: turn as u64, ..GemmCase::dense(types, layout, [66, 512, 656]) }
}

fn fused_grouped_case(config: &GemmKernel, turn: usize) -> GemmCase {
    let (types, _) = operands_of(config);
    let case = k_major(m_grouped(types, GROUP_LAYOUTS[turn % 3], &[66, 0, 3], [512, 656], turn));
    GemmCase { d_type: types.rounding, epilogue: Some(epilogue(config, turn, &types)), ..case }
}

/// The same inputs on the GPU and in the simulator, for every kernel and launch.
fn same_bits(
    setup: &Setup,
    configs: impl Iterator<Item = GemmKernel>,
    case: impl Fn(&GemmKernel, usize) -> GemmCase,
) -> Result<String, Failure> {
    let simulated = setup.simulator()?;
    let mut cases = 0;
    for (i, config) in configs.enumerate() {
        for (turn, choice) in some_launches(config).enumerate() {
            let data = case(&config, i + turn).drawn_for(&setup.device)?;
            let options = GemmOptions { config: Some(choice), ..Default::default() };
            setup.now(format!("{} on both", data.case));
            let bits = |device: &Device| -> Result<Vec<u8>, Failure> {
                let mut gemm = data.upload(device)?;
                gemm.run(&options)?;
                gemm.bits()
            };
            let differ =
                bits(&setup.device)?.iter().zip(bits(&simulated)?).filter(|(x, y)| **x != *y).count();
            ensure(differ == 0, || format!("{} by {}: {differ} bytes differ", data.case, config.name()))?;
            cases += 1;
        }
    }
    Ok(format!("{cases} GEMMs, no bit differs"))
}
