//! Checks of batches of 16-bit GEMMs whose results are summed.

use oxigemm::{GemmOptions, random};
use oxigemm_testkit::{BF16, FP16, Failure, OperandTypes};

use super::random::summed;
use super::{Check, Setup, each, gemms};

pub fn checks(_: &Setup) -> Vec<Check> {
    vec![
        Check::anywhere("summed: batches of all sizes", sizes),
        Check::anywhere("summed: random batches", random_sums),
        Check::anywhere("summed: repeats give the same bits", repeats),
    ]
}

const TYPES: [OperandTypes; 2] = [BF16, FP16];

fn sizes(setup: &Setup) -> Result<String, Failure> {
    let shapes = [
        (1, [1, 1, 1]),
        (3, [0, 8, 16]),
        (0, [5, 8, 16]),
        (3, [5, 8, 0]),
        (200, [3, 17, 8]),
        (9, [128, 384, 128]),
        (5, [129, 65, 63]),
        (2, [64, 64, 640]),
        (64, [70, 40, 65]),
    ];
    let cases = shapes.into_iter().enumerate().flat_map(|(i, (count, dims))| {
        TYPES.into_iter().enumerate().map(move |(j, types)| summed(types, count, dims, i + 4 * j))
    });
    gemms(setup, each(setup.thinned(cases)))
}

fn random_sums(setup: &Setup) -> Result<String, Failure> {
    let cases = (0..setup.count(80)).map(|turn| {
        let draw = |which: u64, end: usize| {
            (random::bits(setup.seed ^ 0x73, 100 * turn as u64 + which) % end as u64) as usize
        };
        let (m, n, k) = (1 + draw(0, 300), 1 + draw(1, 300), 1 + draw(2, 400));
        let most = (setup.largest() / (m * n * k)).clamp(1, 300);
        summed(TYPES[turn % 2], 1 + draw(3, most), [m, n, k], draw(4, 60))
    });
    gemms(setup, each(cases))
}

fn repeats(setup: &Setup) -> Result<String, Failure> {
    let (count, dims) = match setup.device.as_cuda() {
        Some(_) => (33, [256, 384, 384]),
        None => (5, [20, 40, 72]),
    };
    for types in TYPES {
        setup.repeats(&summed(types, count, dims, 0), &GemmOptions::default())?;
    }
    Ok("all alike".to_owned())
}
