//! Options of a run: the schedule, and what is looked for and recorded.

use crate::error::FaultKinds;
use crate::target::Target;

/// When asynchronous work happens, and in which order warps run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// As early as possible; warps in order.
    Eager,
    /// As late as the rules allow; warps in reverse order.
    Lazy,
    /// At any allowed moment, by [`Options::seed`]; warps in random order, for a random number of instructions.
    Random,
}

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The schedule.
    pub policy: Policy,
    /// Seed of [`Policy::Random`].
    pub seed: u64,
    /// Whether hazards are looked for. Without, only what stops a real kernel is reported.
    pub hazards: bool,
    /// Kinds of faults that are only noted ([`Report::notes`](crate::Report::notes)), once for every pair of places,
    /// where the run [can go on](crate::FaultKind::can_go_on).
    pub allow: FaultKinds,
    /// Whether the run goes on after faults, where it [can](crate::FaultKind::can_go_on), and lists them all
    /// ([`Report::faults`](crate::Report::faults)), once for every pair of places. `Machine::run` is then `Ok` also
    /// where there are some.
    pub keep_going: bool,
    /// Whether what is otherwise noted is a fault: what the manual does not promise and hardware does all the same.
    pub strict: bool,
    /// Whether [`Report::trace`](crate::Report::trace) is recorded.
    pub trace: bool,
    /// Whether [`Report::record`](crate::Report::record) is made.
    pub record: bool,
    /// The GPU, which must run the module's target; that of the module where it is `None`.
    pub gpu: Option<Target>,
    /// CTAs that run at the same time.
    pub resident_ctas: u32,
    /// Warp instructions after which the run is given up.
    pub instruction_limit: u64,
    /// Warp instructions in a row that have no effect outside of their warps after which a loop counts as endless;
    /// where it is `None`, 20 million for each warp and at most 200 million.
    pub idle_limit: Option<u64>,
    /// Bytes that memory, registers and what hazards are found by may take; a launch beyond it is refused.
    pub memory_limit: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            policy: Policy::Eager,
            seed: 0,
            hazards: true,
            allow: FaultKinds::default(),
            keep_going: false,
            strict: false,
            trace: false,
            record: false,
            gpu: None,
            resident_ctas: 132,
            instruction_limit: 20_000_000_000,
            idle_limit: None,
            memory_limit: None,
        }
    }
}
