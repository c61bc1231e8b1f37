//! Several simulated GPUs: one host thread for each, whose kernels are in flight at the same time.
//!
//! A launch puts a kernel in flight and waits for its end. Kernels run when every rank that takes part waits, in a
//! launch or for the other hosts; then the thread that came last runs all of them, until one ends. So what runs beside
//! what does not depend on the threads of the host.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use oxigemm_sim::{Ended, Fault, Launch, Memory, Module, Options, Report, World};
use oxigemm_threads::{Interrupt, is_interrupt_asked, wait};

use super::THREADS;
use crate::error::{Error, Result};

/// From one look for an interruption to the next.
const POLL: Duration = Duration::from_millis(50);
/// How long ranks wait for the host of another one.
const PATIENCE: Duration = Duration::from_secs(600);

/// The devices of a world and the hosts that use them.
pub(super) struct Ranks {
    state: Mutex<State>,
    changed: Condvar,
    process: u32,
}

struct State {
    /// Nobody has it while it runs.
    world: Option<World>,
    /// Ends the kernels that run.
    interrupt: Interrupt,
    hosts: Vec<Host>,
    /// Meetings of the hosts so far, and what they said at the last one, or why it did not take place.
    meetings: u64,
    meeting: Result<Vec<u64>, String>,
    /// How long to wait for a host that does nothing here.
    patience: Duration,
    /// When a host did something last.
    moved: Instant,
}

/// The host of one rank.
#[derive(Default)]
struct Host {
    /// Whether others wait for it.
    takes_part: bool,
    /// Whether it has taken part.
    has_left: bool,
    does: Does,
    /// How its kernel ended.
    ended: Option<Ended>,
}

/// What a host does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Does {
    #[default]
    Works,
    /// It waits for its kernel.
    Launch,
    /// It waits for the other hosts.
    Meets(u64),
}

impl State {
    /// The world, which does not run.
    fn world(&mut self) -> &mut World {
        self.world.as_mut().expect("it does not run")
    }

    fn moves(&mut self) {
        self.moved = Instant::now();
    }

    /// The ranks that take part and wait for nothing.
    fn working(&self) -> Vec<usize> {
        let works = |host: &Host| host.takes_part && host.does == Does::Works;
        (0..self.hosts.len()).filter(|rank| works(&self.hosts[*rank])).collect()
    }

    /// All that take part have come to meet.
    fn all_meet(&self) -> bool {
        self.hosts.iter().all(|host| !host.takes_part || matches!(host.does, Does::Meets(_)))
    }

    /// Tells the world which hosts launch nothing, for the faults of those that wait for them.
    fn name_absent(&mut self) {
        for rank in 0..self.hosts.len() {
            let host = &self.hosts[rank];
            let why = match (host.takes_part, host.does) {
                (true, Does::Meets(_)) => "its host waits for the other hosts",
                (true, _) => continue,
                (false, _) if host.has_left => "its host has left",
                (false, _) => "its host takes no part",
            };
            self.world().set_absent(rank, why);
        }
    }
}

impl Ranks {
    pub fn new(devices: usize) -> Ranks {
        let state = State {
            world: Some(World::new(devices)),
            interrupt: Interrupt::default(),
            hosts: (0..devices).map(|_| Host::default()).collect(),
            meetings: 0,
            meeting: Ok(Vec::new()),
            patience: PATIENCE,
            moved: Instant::now(),
        };
        Ranks { state: Mutex::new(state), changed: Condvar::new(), process: std::process::id() }
    }

    pub fn set_patience(&self, patience: Duration) {
        self.lock().patience = patience;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state while no kernel runs.
    fn idle(&self) -> Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        while state.world.is_none() {
            if self.process != std::process::id() {
                return Err(Error::Forked { device: "sim".to_owned() });
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(state)
    }

    /// Lets `use_it` use the memory of all devices.
    pub fn memory<R>(&self, use_it: impl FnOnce(&mut Memory) -> R) -> Result<R> {
        Ok(use_it(&mut self.idle()?.world().memory))
    }

    /// The device whose memory an address lies in.
    pub fn owner(&self, address: u64) -> Result<usize> {
        Ok(self.idle()?.world().owner(address))
    }

    /// From now on the others wait for this rank.
    pub fn join(&self, rank: usize) -> Result<()> {
        let mut state = self.idle()?;
        if state.hosts[rank].takes_part {
            return Err(Error::Ranks { reason: format!("rank {rank} takes part already") });
        }
        if state.hosts.iter().all(|host| !host.takes_part) {
            state.hosts.iter_mut().for_each(|host| host.has_left = false);
            if state.world().in_flight() == 0 {
                state.world().synchronize();
            }
        }
        state.hosts[rank].takes_part = true;
        state.moves();
        Ok(())
    }

    /// The others do not wait for this rank any more.
    pub fn leave(&self, rank: usize) {
        let mut state = self.lock();
        let host = &mut state.hosts[rank];
        (host.takes_part, host.has_left) = (false, true);
        state.moves();
        self.changed.notify_all();
    }

    /// Runs a kernel of a rank to its end, with those of the others.
    pub fn launch(
        &self,
        rank: usize,
        module: &Module,
        launch: &Launch,
        options: &Options,
    ) -> Result<Result<Report, Fault>> {
        let mut state = self.idle()?;
        while state.hosts[rank].does != Does::Works || state.world.is_none() {
            // Another thread has launched a kernel of this rank.
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.hosts.iter().all(|host| !host.takes_part) && state.world().in_flight() == 0 {
            // One host uses them one after another.
            state.world().synchronize();
        }
        if let Err(fault) = state.world().launch(rank, module, launch, options) {
            return Ok(Err(fault));
        }
        state.hosts[rank].does = Does::Launch;
        state.moves();
        loop {
            if let Some(ended) = state.hosts[rank].ended.take() {
                state.hosts[rank].does = Does::Works;
                state.moves();
                self.changed.notify_all();
                return Ok(ended.outcome);
            }
            state = self.advance(state).or_else(|state| self.pause(state, rank))?;
        }
    }

    /// Waits until the hosts of all ranks that take part have come here, and gives what each of them says.
    pub fn meet(&self, rank: usize, says: u64) -> Result<Vec<u64>> {
        let mut state = self.idle()?;
        let meeting = state.meetings;
        state.hosts[rank].does = Does::Meets(says);
        state.moves();
        loop {
            if state.meetings > meeting {
                return state.meeting.clone().map_err(|reason| Error::Ranks { reason });
            }
            if state.world.is_some() && state.all_meet() {
                let missing = state.hosts.iter().position(|host| !host.takes_part);
                let said = state.hosts.iter_mut().map(Host::speak).collect();
                state.meeting = missing.map_or(Ok(said), |missing| {
                    let why = if state.hosts[missing].has_left { "has left" } else { "takes no part" };
                    Err(format!("rank {missing} {why}, and the others wait for its host"))
                });
                state.meetings += 1;
                state.world().synchronize();
                state.moves();
                self.changed.notify_all();
                continue;
            }
            state = self.advance(state).or_else(|state| self.pause(state, rank))?;
        }
    }

    /// Runs the kernels in flight where every host waits; gives the state back as an error where one does not.
    fn advance<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
    ) -> Result<MutexGuard<'a, State>, MutexGuard<'a, State>> {
        let ready = state.world.as_ref().is_some_and(|world| world.in_flight() > 0)
            && state.working().is_empty()
            && state.hosts.iter().all(|host| host.ended.is_none());
        if !ready {
            return Err(state);
        }
        state.name_absent();
        let interrupt = Interrupt::default();
        state.interrupt = interrupt.clone();
        let mut world = state.world.take().expect("it is ready");
        world.interrupt = interrupt.clone();
        drop(state);
        let (send, receive) = mpsc::sync_channel(1);
        THREADS.threads().spawn(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| world.run()));
            // The caller waits for it; were it gone, nobody would want the result.
            let _ = send.send((world, outcome));
        });
        let (world, outcome) = wait(&receive, &interrupt).expect("the task sends whatever happens");
        let mut state = self.lock();
        state.world = Some(world);
        state.moves();
        self.changed.notify_all();
        for ended in outcome.unwrap_or_else(|panic| resume_unwind(panic)) {
            let device = ended.device;
            state.hosts[device].ended = Some(ended);
        }
        Ok(state)
    }

    /// Waits for another host to do something.
    fn pause<'a>(&'a self, state: MutexGuard<'a, State>, rank: usize) -> Result<MutexGuard<'a, State>> {
        let (mut state, waited) =
            self.changed.wait_timeout(state, POLL).unwrap_or_else(PoisonError::into_inner);
        if !waited.timed_out() {
            return Ok(state);
        }
        if is_interrupt_asked() {
            state.interrupt.raise();
            if state.world.is_some() {
                Self::withdraw(&mut state, rank);
                self.changed.notify_all();
                return Err(Error::Interrupted);
            }
        }
        if state.world.is_some() && state.moved.elapsed() > state.patience {
            let missing: Vec<String> = state.working().iter().map(usize::to_string).collect();
            if !missing.is_empty() {
                Self::withdraw(&mut state, rank);
                self.changed.notify_all();
                let reason = format!(
                    "rank {rank} has waited for {:?}: the host of rank {} takes part and has not launched, met the \
                     others or left",
                    state.patience,
                    missing.join(", ")
                );
                return Err(Error::Ranks { reason });
            }
        }
        Ok(state)
    }

    /// A host gives up what it waits for.
    fn withdraw(state: &mut State, rank: usize) {
        if state.hosts[rank].does == Does::Launch {
            state.world().cancel(rank);
            state.hosts[rank].ended = None;
        }
        state.hosts[rank].does = Does::Works;
    }
}

impl Host {
    /// What it says at a meeting, which is over for it.
    fn speak(&mut self) -> u64 {
        match std::mem::take(&mut self.does) {
            Does::Meets(says) => says,
            Does::Works | Does::Launch => 0,
        }
    }
}

/// A rank that takes part in a world of simulated GPUs: the others' kernels wait until it has launched one, meets the
/// other hosts, or is dropped.
///
/// [`Sim::each_rank`](super::Sim::each_rank) makes one for each device and gives it to a thread.
pub struct SimRank {
    sim: super::Sim,
    ranks: Arc<Ranks>,
}

impl SimRank {
    pub(super) fn join(sim: super::Sim, ranks: Arc<Ranks>) -> Result<SimRank> {
        ranks.join(sim.rank())?;
        Ok(SimRank { sim, ranks })
    }

    /// Its device.
    #[must_use]
    pub fn sim(&self) -> &super::Sim {
        &self.sim
    }

    /// Its device, for tensors.
    #[must_use]
    pub fn device(&self) -> super::super::Device {
        super::super::Device::Sim(self.sim.clone())
    }

    /// Its number among the devices.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.sim.rank()
    }

    /// How many devices there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.sim.peers().len()
    }

    /// Waits for the hosts of all ranks; what they launch afterwards follows all kernels before. Each says a number, such
    /// as the address of a buffer, and gets those of all.
    ///
    /// The hosts of a world meet here and not at a barrier of their own: a host that waits elsewhere is one that may
    /// still launch a kernel, for which all others wait.
    ///
    /// # Errors
    /// [`Error::Ranks`] if a rank has left, or its host does not come.
    pub fn meet(&self, says: u64) -> Result<Vec<u64>> {
        self.ranks.meet(self.rank(), says)
    }
}

impl Drop for SimRank {
    fn drop(&mut self) {
        self.ranks.leave(self.sim.rank());
    }
}
