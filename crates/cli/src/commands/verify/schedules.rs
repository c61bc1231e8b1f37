//! Every kernel for Blackwell under ten schedules of the simulator: no hazard, the same bits, and the right ones.

use oxigemm::Device;
use oxigemm_kernels::{Arch, KernelId};
use oxigemm_testkit::{Failure, schedules};

use super::{Check, Needs, Setup, ensure};
use crate::cases::blackwell::{Case, cases};

/// One of so many kernels is what `--quick` runs.
const SAMPLED: u32 = 40;

/// A check for each kernel that has cases, of which kernels of a kind take others in turn.
pub(super) fn checks(_setup: &Setup) -> Vec<Check> {
    let kernels =
        KernelId::all(Arch::Sm100a).map(|id| (id, cases(id))).filter(|(_, cases)| !cases.is_empty());
    let check = |(nth, (id, mut cases)): (usize, (KernelId, Vec<Case>))| {
        let case = cases.swap_remove(nth % cases.len());
        Check {
            name: format!("ten schedules of {}", id.name()),
            needs: Needs::SimulatedBlackwell,
            run: Box::new(move |setup| every_schedule(setup, &case)),
            long: !hash(&id.name()).is_multiple_of(SAMPLED),
        }
    };
    kernels.enumerate().map(check).collect()
}

/// FNV-1a: the sample stays what it is when kernels are added.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn every_schedule(setup: &Setup, case: &Case) -> Result<String, Failure> {
    let device: Device = "sim:sm_100a".parse()?;
    let sim = device.as_sim().ok_or("the simulator is one")?;
    let mut loaded = case.on(&device)?;
    let mut first: Option<Vec<u8>> = None;
    for schedule in schedules() {
        let about = format!("{case}, {:?} {}", schedule.policy, schedule.seed);
        setup.now(about.clone());
        sim.set_options(schedule);
        loaded.run()?.map_err(|error| format!("{about}: {error}"))?;
        let bits = loaded.bits()?;
        match &first {
            Some(first) => ensure(*first == bits, || format!("{about}: other bits"))?,
            None => ensure(loaded.is_right()?, || format!("{about}: the result is wrong"))?,
        }
        first.get_or_insert(bits);
    }
    Ok(case.to_string())
}
