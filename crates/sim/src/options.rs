//! Options of a run: the schedule, and what is looked for and recorded.

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
    /// Whether [`Report::trace`](crate::Report::trace) is recorded.
    pub trace: bool,
    /// CTAs that run at the same time.
    pub resident_ctas: u32,
    /// Warp instructions after which the run is given up.
    pub instruction_limit: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            policy: Policy::Eager,
            seed: 0,
            hazards: true,
            trace: false,
            resident_ctas: 132,
            instruction_limit: 20_000_000_000,
        }
    }
}
