//! What a command found of one problem.

use std::time::Duration;

use oxigemm::{Device, GemmOptions};
use oxigemm_testkit::{Failure, Verdict};
use serde_json::json;

use crate::Common;
use crate::output::{print_json, print_line};
use crate::timing::Clock;

/// A problem, whether its result is right, and the time of a call, on a GPU.
pub struct Found {
    pub problem: String,
    pub verdict: Verdict,
    pub us: Option<f64>,
}

impl Found {
    /// Prints it, and says whether the result is right.
    pub fn print(&self, common: &Common, device: &Device) -> bool {
        let Found { problem, verdict, us } = self;
        if common.json {
            let device = device.to_string();
            print_json(&json!({ "problem": problem, "device": device, "us": us, "verdict": verdict }));
        } else {
            let word = if verdict.right { "right" } else { "WRONG" };
            let time = us.map_or(String::new(), |us| format!(", {us:.2} us"));
            print_line(&format!("{problem} on {device}: {word}, diff {:.1e}{time}", verdict.diff));
        }
        verdict.right
    }
}

/// The time of a call, on a GPU, from so many of them.
pub fn call_us(
    device: &Device,
    runs: usize,
    call: impl FnMut(&GemmOptions) -> oxigemm::Result<()>,
) -> Result<Option<f64>, Failure> {
    let (Some(cuda), 1..) = (device.as_cuda(), runs) else { return Ok(None) };
    device.synchronize()?;
    let mut clock = Clock::new(cuda, Duration::from_millis(100))?;
    Ok(Some(clock.calls(&GemmOptions::default(), runs, call)?))
}

/// Elements that an operand may have: it is drawn on the host.
pub const LARGEST: usize = 1 << 32;

/// Refuses an operand that is too large, by the arguments that make it so.
pub fn expect_size(arguments: &str, sizes: &[usize]) -> Result<(), Failure> {
    let elements = sizes.iter().try_fold(1usize, |elements, &size| elements.checked_mul(size));
    match elements {
        Some(elements) if elements <= LARGEST => Ok(()),
        _ => Err(format!("{arguments}: {sizes:?} are more than {LARGEST} elements").into()),
    }
}
