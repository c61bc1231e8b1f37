//! Checks of the router: ids and weights, bit for bit, as the CPU chooses them from the same logits.

use oxigemm::{GemmOptions, Scoring, random};

use super::random::Draw;
use super::{Check, Setup, ensure};
use crate::Failure;
use crate::cases::router::RouterSpec;

pub fn checks(_: &Setup) -> Vec<Check> {
    vec![
        Check::anywhere("router: random tokens, experts and groups", random_cases),
        Check::anywhere("router: repeats give the same bits", repeats),
        Check::with_kernels("router: a graph reads the tokens that are there when it is launched", replayed),
    ]
}

fn draw_spec(draw: &mut Draw, largest: usize) -> RouterSpec {
    let groups = draw.of(&[[1, 1], [1, 1], [8, 4], [4, 1], [2, 2]]);
    // The GEMM's kernel, and so its bits, depend on the shape alone.
    let experts = draw.of(&[32, 64, 160, 256, 384, 512]);
    RouterSpec {
        tokens: 1 + draw.below(largest),
        experts,
        k: 8 * (1 + draw.below(64)),
        topk: draw.of(&[1, 2, 6, 8]),
        groups,
        scoring: draw.of(&[Scoring::Softmax, Scoring::Sigmoid, Scoring::SqrtSoftplus]),
        bias: draw.of(&[true, false]),
        seed: draw.below(1 << 20) as u64,
        gemm: None,
    }
}

/// Tokens of a simulated case are few.
fn largest(setup: &Setup) -> usize {
    if setup.device.as_cuda().is_some() { 300 } else { 20 }
}

fn check(setup: &Setup, spec: RouterSpec) -> Result<(), Failure> {
    setup.now(spec.to_string());
    let mut task = spec.on(&setup.device)?;
    task.run(&GemmOptions::default())?;
    setup.device.synchronize()?;
    ensure(task.is_right(&setup.device)?, || format!("{spec:?}: other bits than the CPU's choice"))
}

fn random_cases(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 93);
    let count = setup.count(60);
    for _ in 0..count {
        check(setup, draw_spec(&mut draw, largest(setup)))?;
    }
    Ok(format!("{count} calls, every bit as the CPU chooses"))
}

fn repeats(setup: &Setup) -> Result<String, Failure> {
    let spec = draw_spec(&mut Draw::new(setup, 94), largest(setup));
    let mut task = spec.on(&setup.device)?;
    setup.same_bits_again(&spec, || {
        task.run(&GemmOptions::default())?;
        setup.device.synchronize()?;
        task.bytes()
    })?;
    Ok("no bit differs".to_owned())
}

fn replayed(setup: &Setup) -> Result<String, Failure> {
    let spec = RouterSpec { k: 128, ..RouterSpec::deepseek_v3(9) };
    let stream = setup.device.new_stream()?;
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    let mut task = spec.on(&setup.device)?;
    // The first call loads the kernels, and allocates the workspace.
    task.run(&options)?;
    stream.synchronize()?;
    let graph = stream.capture(|_| task.run(&options))?;
    for seed in [2, 3, 4] {
        task.x.write_f32(&random::normals(seed, spec.tokens * spec.k))?;
        graph.launch(&stream)?;
        stream.synchronize()?;
        ensure(task.is_right(&setup.device)?, || format!("tokens {seed}: other bits than the CPU's choice"))?;
    }
    Ok("three replays, every bit as the CPU chooses".to_owned())
}
