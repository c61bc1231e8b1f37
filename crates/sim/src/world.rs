//! Worlds: several devices whose kernels run at the same time and reach each other's memory.

use crate::error::{Fault, FaultKind, LaunchPart};
use crate::exec::peers::{PeerGrid, Peers};
use crate::exec::remote::RemoteStores;
use crate::hazard::{GlobalShadow, Origin, View};
use crate::machine::{Launch, THREADS, prepare};
use crate::memory::{MAX_DEVICES, Memory};
use crate::module::Module;
use crate::options::{Options, Policy};
use crate::report::Report;
use crate::rng::Rng;
use crate::schedule::{Grid, Idle, ROUNDS, Shared, shuffle};
use oxigemm_threads::Interrupt;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Turns of all grids without effect after which a store is seen that no other device has seen yet: what has read a flag
/// reads the data behind it before.
const QUIET: u32 = 16;

/// Several simulated devices. Each has its own memory, at addresses of its own, and reads and writes that of the others
/// by their addresses.
///
/// A launch puts a grid in flight, one for each device at a time; [`World::run`] runs all of them, interleaved as the
/// options say, until one has ended. What happens follows from the launches and the options alone.
///
/// ```
/// use oxigemm_sim::{Launch, Module, Options, Param, World};
///
/// // Each device adds one to a counter in the memory of device 0 and waits until all have.
/// let barrier = Module::parse(
///     ".version 8.0\n.target sm_90\n.address_size 64
///     .visible .entry barrier(.param .u64 at, .param .u32 count) {
///         .reg .b64 a; .reg .b32 n, x; .reg .pred p;
///         ld.param.u64 a, [at]; ld.param.u32 n, [count];
///         red.release.sys.global.add.u32 [a], 1;
///         again: ld.acquire.sys.global.u32 x, [a]; setp.lt.u32 p, x, n; @p bra again; ret;
///     }",
/// )?;
/// let mut world = World::new(2);
/// let counter = world.memory.allocate_with_on(0, &[0; 4]);
/// let launch = |count| Launch {
///     entry: "barrier".into(),
///     grid: [1; 3],
///     cluster: None,
///     block: [1; 3],
///     shared_bytes: 0,
///     params: vec![Param::U64(counter), Param::U32(count)],
/// };
/// for device in 0..2 {
///     world.launch(device, &barrier, &launch(2), &Options::default())?;
/// }
/// while world.in_flight() > 0 {
///     for ended in world.run() {
///         ended.outcome?;
///     }
/// }
/// // A device that waits for more than there are never ends.
/// world.launch(1, &barrier, &launch(4), &Options::default())?;
/// let fault = world.run().remove(0).outcome.unwrap_err();
/// assert!(fault.message.contains("`barrier` of device 1 polls global memory of device 0"), "{fault}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct World {
    /// The memories of all devices ([`Memory::allocate_on`]).
    pub memory: Memory,
    /// A flag that ends a run, which any thread may raise. It stays raised until it is replaced.
    pub interrupt: Interrupt,
    devices: Vec<Device>,
    global: GlobalShadow,
    peers: Peers,
    remote: RemoteStores,
    /// Turns of all grids in which nothing has happened.
    quiet: u32,
    /// Clusters of all grids, and device and number of the grid of each, by the first.
    clusters: u32,
    grids: BTreeMap<u32, (u32, u32)>,
    /// Calls of [`World::run`].
    runs: u64,
}

/// One device.
#[derive(Default)]
struct Device {
    grid: Option<Box<Grid>>,
    /// Grids so far.
    launches: u32,
    /// What its next grid knows of the others.
    known: View,
    /// What became of its last kernel.
    last: Option<String>,
    /// Why nothing comes from it any more.
    absent: Option<String>,
}

/// A kernel that has come to its end.
#[derive(Debug)]
pub struct Ended {
    /// The device.
    pub device: usize,
    /// What it did.
    pub outcome: Result<Report, Fault>,
    /// What it printed (`vprintf`).
    pub output: String,
}

impl World {
    /// Most devices of a world.
    pub const MAX_DEVICES: usize = MAX_DEVICES;

    /// Devices with empty memories.
    ///
    /// # Panics
    /// If there are none, or more than [`World::MAX_DEVICES`].
    pub fn new(devices: usize) -> World {
        assert!((1..=MAX_DEVICES).contains(&devices), "a world has 1 to {MAX_DEVICES} devices");
        World {
            memory: Memory::of(devices),
            interrupt: Interrupt::default(),
            devices: (0..devices).map(|_| Device::default()).collect(),
            global: GlobalShadow::new(true),
            peers: Peers::default(),
            remote: RemoteStores::default(),
            quiet: 0,
            clusters: 0,
            grids: BTreeMap::new(),
            runs: 0,
        }
    }

    /// How many devices it has.
    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// How many kernels are in flight.
    pub fn in_flight(&self) -> usize {
        self.devices.iter().filter(|device| device.grid.is_some()).count()
    }

    /// The device whose memory an address lies in.
    pub fn owner(&self, address: u64) -> usize {
        self.memory.owner(address) as usize
    }

    /// The address of a module's variable in the memory of a device that has launched one of its kernels.
    pub fn symbol(&self, device: usize, module: &Module, name: &str) -> Option<u64> {
        module.symbol(name).map(|address| self.memory.own(device as u32, address))
    }

    /// Puts a kernel in flight. It comes after everything that its device has launched before.
    ///
    /// Programmatic launches are as all others here: the kernel before has ended.
    ///
    /// # Errors
    /// As [`Machine::run`](crate::Machine::run), before the kernel begins; a device that has a kernel in flight.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn launch(
        &mut self,
        device: usize,
        module: &Module,
        launch: &Launch,
        options: &Options,
    ) -> Result<(), Fault> {
        if self.devices[device].grid.is_some() {
            let message = format!("device {device} has a kernel in flight");
            return Err(Fault::launch(LaunchPart::Entry, message));
        }
        let (kernel, geometry, params) = prepare(&self.memory, module, launch, options)?;
        for (_, address, bytes, init) in &module.variables {
            self.memory.place(device, *address, *bytes, init.as_deref());
        }
        let number = self.devices[device].launches;
        let first = self.clusters;
        self.clusters += geometry.clusters();
        let id = device as u32;
        self.grids.insert(first, (id, number));
        let threads: u32 = geometry.block.iter().product();
        let peer = PeerGrid { kernel: Arc::clone(kernel), warps_per_cta: threads.div_ceil(32) };
        self.peers.insert(id, number, peer);
        let origin = Origin { several: true, device: id, launch: number, clusters: first..self.clusters };
        let own = &mut self.devices[device];
        own.launches += 1;
        own.absent = None;
        let start = (origin, own.known.clone());
        own.grid = Some(Box::new(Grid::new(Arc::clone(kernel), geometry, params, options, None, start)));
        Ok(())
    }

    /// Runs the kernels in flight until one of them, or several at once, have come to their end. Where none can go on,
    /// each ends with a fault that says what all of them wait for.
    pub fn run(&mut self) -> Vec<Ended> {
        if self.in_flight() == 0 {
            return Vec::new();
        }
        self.runs += 1;
        let outcomes = THREADS.run(|_| self.run_here());
        outcomes.into_iter().map(|(device, outcome)| self.end(device, outcome)).collect()
    }

    /// Takes a kernel out of flight, wherever it is.
    pub fn cancel(&mut self, device: usize) {
        if self.devices[device].grid.is_some() {
            let fault = Fault::new(FaultKind::Interrupted, "its host has given it up");
            self.end(device, Err(fault));
        }
    }

    /// The host has waited for all kernels and lets no device go on before: what comes is ordered after what was.
    /// Kernels that are in flight go on.
    pub fn synchronize(&mut self) {
        let idle = self.in_flight() == 0;
        let ended: Vec<u32> = self.devices.iter().map(|d| d.launches - u32::from(d.grid.is_some())).collect();
        for device in &mut self.devices {
            (0..).zip(&ended).for_each(|(other, ended)| device.known.raise_grids(other, *ended));
        }
        if idle {
            self.global.forget();
            self.peers = Peers::default();
            self.grids.clear();
            self.clusters = 0;
        }
        self.forget_ended();
    }

    /// Nothing comes from a device until it launches a kernel again, and why: what the fault of one that waits for it
    /// says.
    pub fn set_absent(&mut self, device: usize, why: &str) {
        self.devices[device].absent = Some(why.to_owned());
    }

    /// What views know of grids that have ended needs no clusters.
    fn forget_ended(&mut self) {
        let grids = &self.grids;
        let grid_of = |cluster: u32| grids.range(..=cluster).next_back().map_or((0, 0), |(_, grid)| *grid);
        self.devices.iter_mut().for_each(|device| device.known.forget_ended(grid_of));
    }

    /// One device's kernel is over.
    fn end(&mut self, device: usize, outcome: Result<(), Fault>) -> Ended {
        let own = &mut self.devices[device];
        let Some(grid) = own.grid.take() else {
            return Ended { device, outcome: outcome.map(|()| Report::default()), output: String::new() };
        };
        own.known.join_foreign(&grid.learned, &grid.origin.clusters);
        own.known.raise_grids(grid.origin.device, grid.origin.launch + 1);
        let name = grid.kernel.name.clone();
        own.last = Some(match &outcome {
            Ok(()) => format!("its last kernel, `{name}`, has ended"),
            Err(fault) => format!("its last kernel, `{name}`, has ended with a fault ({:?})", fault.kind),
        });
        let (outcome, output) = grid.finish(outcome);
        self.forget_ended();
        Ended { device, outcome, output }
    }

    /// The devices whose kernels are in flight.
    fn running(&self) -> Vec<usize> {
        (0..self.devices.len()).filter(|d| self.devices[*d].grid.is_some()).collect()
    }

    fn run_here(&mut self) -> Vec<(usize, Result<(), Fault>)> {
        let mut order = self.running();
        let options = |device: &usize| self.devices[*device].grid.as_ref().map(|grid| &grid.options);
        let random = order.iter().filter_map(options).any(|o| o.policy == Policy::Random);
        let lazy = order.iter().filter_map(options).all(|o| o.policy == Policy::Lazy);
        let seed = order.iter().find_map(options).map_or(0, |o| o.seed);
        let mut rng = Rng::new(seed.wrapping_add(self.runs << 32));
        // How rarely stores to other devices are seen in a random schedule.
        let pace = 1 << rng.below(6);
        if lazy {
            order.reverse();
        }
        loop {
            let mut rounds = if lazy { 1 } else { ROUNDS };
            if random {
                shuffle(&mut order, &mut rng);
                rounds = if rng.once_in(2) { 1 } else { 1 + rng.below(8) };
            }
            if let Some(ended) = self.pass(&order, rounds, random.then_some((&mut rng, pace))) {
                return ended;
            }
        }
    }

    /// Gives each kernel a turn; those that have come to their end, if any.
    fn pass(
        &mut self,
        order: &[usize],
        rounds: usize,
        mut rng: Option<(&mut Rng, u64)>,
    ) -> Option<Vec<(usize, Result<(), Fault>)>> {
        let World { memory, interrupt, devices, global, peers, remote, quiet, .. } = self;
        let remote = Some(remote);
        let shared = &mut Shared { memory, global, peers: Some(peers), remote, interrupt };
        let mut ended = Vec::new();
        let (mut progressed, mut ran) = (false, false);
        for &device in order {
            let Some(grid) = &mut devices[device].grid else { continue };
            let turn = grid.turn(shared, rounds);
            progressed |= grid.progressed();
            ran |= grid.ran();
            match turn {
                Ok(false) => {}
                // It ends when its stores are seen.
                Ok(true) if shared.remote.as_ref().is_some_and(|remote| remote.has(device as u32)) => {}
                Ok(true) => ended.push((device, Ok(()))),
                Err(fault) => {
                    let sent = shared.send_all(device as u32);
                    ended.push((device, sent.and(Err(fault))));
                }
            }
        }
        // Stores to other devices are seen when nothing else happens; in a random schedule also now and then.
        *quiet = if progressed { 0 } else { *quiet + 1 };
        let stores = shared.remote.as_ref().is_some_and(|remote| !remote.is_empty());
        if !ran || *quiet > QUIET || rng.as_mut().is_some_and(|(rng, pace)| rng.once_in(*pace)) {
            shared.send_one(rng.map(|(rng, _)| rng));
            *quiet = 0;
        }
        progressed |= stores;
        let mut stuck = false;
        for &device in order {
            let Some(grid) = &mut devices[device].grid else { continue };
            if progressed || !ended.is_empty() {
                grid.goes_on();
                continue;
            }
            match grid.idle(shared, ran, false) {
                Ok(Idle::Waits) => {}
                Ok(Idle::Stuck) => stuck = true,
                Err(fault) => ended.push((device, Err(fault))),
            }
        }
        if stuck && ended.is_empty() {
            let states = states(devices, shared);
            for &device in order {
                let Some(grid) = &mut devices[device].grid else { continue };
                let mut fault = grid.deadlock(shared);
                if fault.kind == FaultKind::Deadlock {
                    fault.message = format!("{}: {}", fault.message, states.join("; "));
                } else {
                    fault.notes.extend(states.iter().cloned());
                }
                ended.push((device, Err(fault)));
            }
        }
        ended.sort_by_key(|(device, _)| *device);
        (!ended.is_empty()).then_some(ended)
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World({} devices, {} kernels in flight)", self.devices(), self.in_flight())
    }
}

/// What each device does, where nothing can run.
fn states(devices: &mut [Device], shared: &mut Shared<'_>) -> Vec<String> {
    let state = |(number, device): (usize, &mut Device)| match &mut device.grid {
        Some(grid) => {
            let waits = grid.waits(shared).unwrap_or_else(|| "waits".to_owned());
            format!("`{}` of device {number} {waits}", grid.kernel.name)
        }
        None => {
            let last = device.last.as_deref().unwrap_or("it has launched no kernel");
            let absent = device.absent.as_deref().map_or(String::new(), |why| format!(" ({why})"));
            format!("device {number} runs nothing: {last}{absent}")
        }
    };
    devices.iter_mut().enumerate().map(state).collect()
}
