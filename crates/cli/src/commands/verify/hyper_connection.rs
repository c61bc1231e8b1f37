//! Checks of the GEMM before the norm of a hyper-connection.

use oxigemm::{Device, GemmOptions};

use super::random::Draw;
use super::{Check, Setup, ensure, expect_right, tally};
use crate::Failure;
use crate::cases::hyper_connection::{HcHost, HcSpec};

const COLUMNS: [usize; 4] = [8, 16, 24, 32];
const SPLITS: [Option<usize>; 5] = [None, Some(1), Some(2), Some(16), Some(100)];

pub fn checks(_: &Setup) -> Vec<Check> {
    vec![
        Check::anywhere("hyper-connection (hc): random shapes", random_cases),
        Check::anywhere("hyper-connection (hc): operands at the end of memory", at_the_end),
        Check::anywhere("hyper-connection (hc): repeats give the same bits", repeats),
    ]
}

fn check(setup: &Setup, spec: HcSpec, options: &GemmOptions) -> Result<f64, Failure> {
    let sms = options.num_sms;
    let about = move |what: &str| format!("{spec} seed {} on {sms:?} SMs: {what}", spec.seed);
    setup.now(about("this"));
    let host = HcHost::draw(spec);
    let mut operands = host.upload(&setup.device)?;
    operands.run(options).map_err(|error| about(&error.to_string()))?;
    setup.device.synchronize().map_err(|error| about(&error.to_string()))?;
    let verdict = host.judge(&operands)?;
    expect_right(&verdict, about)?;
    Ok(verdict.worst_element)
}

fn random_cases(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 51);
    let simulated = setup.device.as_sim().is_some();
    tally((0..setup.count(60)).map(|i| {
        let m = [1, 13, 64, 127, 128, 137, 300, 1 + draw.below(500)][draw.below(8)];
        // Rows of BF16 begin at multiples of 16 bytes.
        let k = 8 * (1 + draw.below(if simulated { 120 } else { 1200 }));
        let n = COLUMNS[i % COLUMNS.len()];
        let spec = HcSpec::new([m, n, k], draw.of(&SPLITS), draw.below(1 << 20) as u64);
        // Few blocks have parts of several rows and splits each.
        let options = GemmOptions {
            num_sms: draw.of(&[None, None, Some(1), Some(5), Some(50)]),
            batch_invariant: draw.below(4) == 0,
            ..GemmOptions::default()
        };
        check(setup, spec, &options)
    }))
}

fn at_the_end(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 52);
    tally((0..setup.count(24)).map(|i| {
        let (m, k) = (1 + draw.below(300), 8 * (1 + draw.below(100)));
        let spec = HcSpec::new([m, COLUMNS[i % COLUMNS.len()], k], draw.of(&SPLITS), i as u64);
        check(setup, HcSpec { at_end: true, ..spec }, &GemmOptions::default())
    }))
}

fn repeats(setup: &Setup) -> Result<String, Failure> {
    let m = if setup.device.as_cuda().is_some() { 1000 } else { 130 };
    for k in [640, 7168].into_iter().take(if setup.device.as_cuda().is_some() { 2 } else { 1 }) {
        let host = HcHost::draw(HcSpec::new([m, 24, k], None, 3));
        let mut operands = host.upload(&setup.device)?;
        setup.same_bits_again(&format_args!("k={k}"), || {
            operands.run(&GemmOptions::default())?;
            Ok([operands.d.to_bytes()?, operands.sqr_sum.to_bytes()?])
        })?;
    }
    Ok("all alike".to_owned())
}

/// The same inputs on the GPU and in the simulator, for every kernel.
pub fn same_bits_as_simulated(setup: &Setup) -> Result<String, Failure> {
    let simulated = setup.simulator()?;
    let mut cases = 0;
    for (i, n) in COLUMNS.into_iter().enumerate() {
        for (j, k) in [64, 200, 2048].into_iter().enumerate() {
            let spec = HcSpec::new([150, n, k], SPLITS[(i + j) % 4], 5);
            setup.now(format!("{spec} on both"));
            let host = HcHost::draw(spec);
            let bits = |device: &Device| -> Result<Vec<u8>, Failure> {
                let mut operands = host.upload(device)?;
                let num_sms = [None, Some(3), None][j];
                operands.run(&GemmOptions { num_sms, ..GemmOptions::default() })?;
                Ok([operands.d.to_bytes()?, operands.sqr_sum.to_bytes()?].concat())
            };
            ensure(bits(&setup.device)? == bits(&simulated)?, || format!("{spec}: the bits differ"))?;
            cases += 1;
        }
    }
    Ok(format!("{cases} GEMMs, no bit differs"))
}
