//! Kernels with random changes: whatever they do, the simulator answers with a report or a fault.

use crate::common::*;
use oxigemm_sim::*;

const SMALL_TILE: &str = include_str!("../ptx/tile_128x64.ptx");
const ROWS_SPLIT: &str = include_str!("../ptx/rows_8_split4.ptx");

/// Swaps, drops, repeats and renumbers statements; deterministic and bounded.
#[test]
fn no_kernel_panics_the_simulator() {
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    let mut ran = 0;
    for round in 0..240 {
        let text = if round % 3 == 0 { SMALL_TILE } else { ROWS_SPLIT };
        // Statements of the body, so that most mutants still parse.
        let (head, body) = text.split_once("smem;").expect("the kernels start this way");
        let mut statements: Vec<String> = body.split_inclusive(';').map(str::to_owned).collect();
        for _ in 0..1 + rng.next() % 3 {
            let n = statements.len();
            let at = rng.next() as usize % (n - 4);
            match rng.next() % 4 {
                0 => {
                    statements.remove(at);
                }
                1 => statements.swap(at, (at + 1 + rng.next() as usize % 3).min(n - 3)),
                2 => {
                    let copy = statements[at].split(':').next_back().unwrap_or("").to_owned();
                    statements.insert(at, copy);
                }
                _ => {
                    // Another constant in place of the last one.
                    let old = statements[at].clone();
                    let digits = old.trim_end_matches([';', ']']).len();
                    let start = old[..digits].trim_end_matches(|c: char| c.is_ascii_digit()).len();
                    let number = [0u32, 1, 7, 1 << 16, 0xffff_ffff][rng.next() as usize % 5];
                    if start < digits {
                        statements[at] = format!("{}{number}{}", &old[..start], &old[digits..]);
                    }
                }
            }
        }
        let text = format!("{head}smem;{}", statements.concat());
        let Ok(_) = Module::parse(&text) else { continue };
        ran += 1;
        let options = Options {
            policy: [Policy::Eager, Policy::Lazy, Policy::Random][round % 3],
            seed: round as u64,
            hazards: round % 2 == 0,
            instruction_limit: 300_000,
            ..Options::default()
        };
        let p = Problem::new(9, 64, 512);
        let _ = if round % 3 == 0 {
            tile(&text, &p, 128, 64, 1, 67_680, 1).run(&options)
        } else {
            rows(&text, &p, 8, 4, 44_992).run(&options)
        };
    }
    assert!(ran > 120, "only {ran} mutants parsed");
}
