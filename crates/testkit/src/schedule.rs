//! Schedules of the simulator, and the property that all of them give the same bits.

use oxigemm::Sim;
use oxigemm::sim::{Options, Policy};

/// Eager, lazy, and eight random schedules.
pub fn schedules() -> impl Iterator<Item = Options> {
    let options = |policy, seed| Options { policy, seed, ..Options::default() };
    [options(Policy::Eager, 0), options(Policy::Lazy, 0)]
        .into_iter()
        .chain((0..8).map(move |seed| options(Policy::Random, seed)))
}

/// So many of the ten, others for each `nth`: for one of many kernels, which share the schedules among them. All ten where
/// the environment variable `OXIGEMM_ALL_SCHEDULES` is set.
pub fn in_turn(nth: usize, count: usize) -> impl Iterator<Item = Options> {
    let all: Vec<Options> = schedules().collect();
    let count = if std::env::var_os("OXIGEMM_ALL_SCHEDULES").is_some() { all.len() } else { count };
    let first = nth * count % all.len();
    all.into_iter().cycle().skip(first).take(count)
}

/// Eager, lazy, and three random schedules: for a kernel that takes long.
pub fn some_schedules() -> impl Iterator<Item = Options> {
    schedules().take(5)
}

/// A schedule of each policy: for a kernel that differs only in types from one that has run under all [`schedules`].
/// The random one goes by a seed.
pub fn policies(seed: usize) -> impl Iterator<Item = Options> {
    schedules().take(2).chain(schedules().skip(2 + seed % 8).take(1))
}

/// A schedule of one policy, by turns: for one of many kernels, each of which `oxigemm verify --filter "ten schedules"` runs
/// under all of them.
pub fn one_policy(turn: usize) -> impl Iterator<Item = Options> {
    policies(turn).skip(turn % 3).take(1)
}

/// Runs something under some schedules, which must all give the same bits. It is told what it runs, for its messages.
///
/// # Panics
///
/// Where a schedule gives other bits than the first.
pub fn same_bits(
    what: &str,
    schedules: impl Iterator<Item = Options>,
    sim: &Sim,
    run: impl Fn(&str) -> Vec<u8>,
) {
    let mut first: Option<Vec<u8>> = None;
    for options in schedules {
        let about = format!("{what} {:?} {}", options.policy, options.seed);
        sim.set_options(options);
        let found = run(&about);
        assert_eq!(*first.get_or_insert_with(|| found.clone()), found, "{about}: other bits");
    }
}
