//! Machine: launches and the memory they run on.

use crate::decode::{Kernel, SHARED_BASE};
use crate::error::{Fault, FaultKind, LaunchPart};
use crate::hazard::{Footprint, Origin, View};
use crate::memory::{MAX_SHARED_BYTES, Memory};
use crate::module::Module;
use crate::options::Options;
use crate::report::Report;
use crate::schedule::{Geometry, Grid, run_grid};
use crate::units::tensormap::TENSOR_MAP_BYTES;
use oxigemm_threads::{Interrupt, Pool};
use std::sync::Arc;

/// The threads that share the arithmetic of a matrix instruction.
pub(crate) static THREADS: Pool = Pool::new("oxigemm-sim");

/// Most CTAs of a cluster (the non-portable limit).
pub const MAX_CLUSTER: u32 = 16;
const MAX_THREADS: u32 = 1024;
/// Most CTAs of a grid: a limit of the simulator, far beyond what it finishes in a day.
const MAX_CTAS: u64 = 1 << 24;

/// A kernel argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Param {
    /// A 32-bit integer.
    U32(u32),
    /// A 64-bit integer or an address.
    U64(u64),
    /// A float.
    F32(f32),
    /// Any bytes: a structure, or an encoded tensor map.
    Bytes(Vec<u8>),
}

impl Param {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Param::U32(v) => v.to_le_bytes().to_vec(),
            Param::U64(v) => v.to_le_bytes().to_vec(),
            Param::F32(v) => v.to_le_bytes().to_vec(),
            Param::Bytes(b) => b.clone(),
        }
    }
}

impl From<[u8; TENSOR_MAP_BYTES]> for Param {
    fn from(map: [u8; TENSOR_MAP_BYTES]) -> Param {
        Param::Bytes(map.to_vec())
    }
}

/// One launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Name of the entry.
    pub entry: String,
    /// CTAs in each dimension.
    pub grid: [u32; 3],
    /// CTAs of a cluster in each dimension; the entry's own when `None`.
    pub cluster: Option<[u32; 3]>,
    /// Threads in each dimension.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
    /// Arguments in order.
    pub params: Vec<Param>,
}

/// A simulated device: its memory, and the way to run kernels on it.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Global memory.
    pub memory: Memory,
    /// A flag that ends a run, which any thread may raise. It stays raised until it is replaced.
    ///
    /// ```
    /// # use oxigemm_sim::{FaultKind, Launch, Machine, Module, Options};
    /// let text = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry endless() { again: bra again; }";
    /// let launch = Launch {
    ///     entry: "endless".into(),
    ///     grid: [1; 3],
    ///     cluster: None,
    ///     block: [1; 3],
    ///     shared_bytes: 0,
    ///     params: vec![],
    /// };
    /// let mut machine = Machine::new();
    /// let flag = machine.interrupt.clone();
    /// std::thread::spawn(move || flag.raise());
    /// let fault = machine.run(&Module::parse(text)?, &launch, &Options::default()).unwrap_err();
    /// assert_eq!(fault.kind, FaultKind::Interrupted);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub interrupt: Interrupt,
    /// What kernels have printed (`vprintf`), lane by lane as they ran; the host may take it.
    pub output: String,
    /// What the last kernel touched, and those before it that a dependent need not have waited for.
    last: Footprint,
}

impl Machine {
    /// A device with empty memory.
    pub fn new() -> Machine {
        Machine::default()
    }

    /// Runs a kernel to its end.
    pub fn run(&mut self, module: &Module, launch: &Launch, options: &Options) -> Result<Report, Fault> {
        self.synchronize();
        self.run_dependent(module, launch, options)
    }

    /// Runs a kernel to its end that a GPU may start while the one before it still runs (a programmatic launch): what
    /// that one writes it must not touch, and what that one reads it must not write, before `griddepcontrol.wait`.
    ///
    /// ```
    /// use oxigemm_sim::{FaultKind, Launch, Machine, Module, Options, Param};
    ///
    /// let kernel = |wait: &str| {
    ///     Module::parse(&format!(
    ///         ".version 8.0\n.target sm_90\n.address_size 64
    ///         .visible .entry next(.param .u64 at) {{
    ///             .reg .b64 a; .reg .b32 x;
    ///             ld.param.u64 a, [at]; {wait} ld.global.u32 x, [a]; add.u32 x, x, 1; st.global.u32 [a], x; ret;
    ///         }}"
    ///     ))
    /// };
    /// let mut machine = Machine::new();
    /// let at = machine.memory.allocate_with(&[0; 4]);
    /// let launch = Launch {
    ///     entry: "next".into(),
    ///     grid: [1; 3],
    ///     cluster: None,
    ///     block: [1; 3],
    ///     shared_bytes: 0,
    ///     params: vec![Param::U64(at)],
    /// };
    /// let options = Options::default();
    /// machine.run(&kernel("")?, &launch, &options)?;
    /// machine.run_dependent(&kernel("griddepcontrol.wait;")?, &launch, &options)?;
    /// let fault = machine.run_dependent(&kernel("")?, &launch, &options).unwrap_err();
    /// assert_eq!(fault.kind, FaultKind::Race);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_dependent(
        &mut self,
        module: &Module,
        launch: &Launch,
        options: &Options,
    ) -> Result<Report, Fault> {
        let (kernel, geometry, params) = prepare(&self.memory, module, launch, options)?;
        for (_, address, bytes, init) in &module.variables {
            self.memory.place(0, *address, *bytes, init.as_deref());
        }
        // On a thread of the pool, where sharing a product with another thread costs next to nothing.
        let last = std::mem::take(&mut self.last);
        let before = (options.hazards && !last.is_empty()).then_some(last);
        let origin = Origin { clusters: 0..geometry.clusters(), ..Origin::default() };
        let start = (origin, View::default());
        let grid = Grid::new(Arc::clone(kernel), geometry, params, options, before, start);
        let (memory, interrupt) = (&mut self.memory, &self.interrupt);
        let (outcome, touched, printed) = THREADS.run(|_| run_grid(grid, memory, interrupt));
        self.last = touched;
        self.output.push_str(&printed);
        outcome
    }

    /// Nothing runs any more: a kernel that is launched next has none before it.
    pub fn synchronize(&mut self) {
        self.last = Footprint::default();
    }
}

/// The kernel of a launch, its shape and its arguments; refuses a launch that no GPU would take.
pub(crate) fn prepare<'a>(
    memory: &Memory,
    module: &'a Module,
    launch: &Launch,
    options: &Options,
) -> Result<(&'a Arc<Kernel>, Geometry, Vec<u8>), Fault> {
    let Some(kernel) = module.kernels.get(&launch.entry) else {
        return Err(Fault::launch(LaunchPart::Entry, format!("the module has no entry `{}`", launch.entry)));
    };
    let place = |f: Fault| f.note(format!("`{}` is declared at {}", kernel.name, kernel.at));
    if let Some(gpu) = options.gpu.filter(|gpu| !gpu.runs(module.target())) {
        let message = format!("a GPU of {gpu} does not run a module for {}", module.target());
        return Err(place(Fault::launch(LaunchPart::Entry, message)));
    }
    let geometry = geometry(kernel, launch).map_err(place)?;
    let params = parameters(kernel, launch).map_err(place)?;
    let geometry = Geometry {
        bytes: expect_room(memory, module, kernel, &geometry, options).map_err(place)?,
        ..geometry
    };
    Ok((kernel, geometry, params))
}

/// The bytes of a run without what hazards are found by, which grows; refuses a launch that has not enough memory.
fn expect_room(
    memory: &Memory,
    module: &Module,
    kernel: &Kernel,
    geometry: &Geometry,
    options: &Options,
) -> Result<u64, Fault> {
    let product = |v: [u32; 3]| v.iter().map(|x| u64::from(*x)).product::<u64>();
    let ctas = product(geometry.grid).min(u64::from(options.resident_ctas).max(product(geometry.cluster)));
    let warps = ctas * product(geometry.block).div_ceil(32);
    // A register of a warp is 32 words and what is known of them; a byte has a bit that says whether it is written.
    let registers = warps * kernel.registers.len() as u64 * (32 * 8 + 8);
    let local = warps * 32 * u64::from(kernel.local_bytes);
    let shared = ctas * u64::from(geometry.shared) * 9 / 8;
    let variables = module.variables.iter().map(|v| v.2 as u64).sum::<u64>() * 9 / 8;
    let buffers = memory.allocated() * 9 / 8;
    let all = registers + local + shared + variables + buffers;
    let Some(limit) = options.memory_limit.filter(|limit| all > *limit) else { return Ok(all) };
    let message = format!("the run takes {all} bytes, more than the {limit} that it has");
    Err(Fault { kind: FaultKind::MemoryLimit, ..Fault::launch(LaunchPart::Grid, message) }
        .note(format!("buffers {buffers}, variables {variables}, shared memory {shared} (of {ctas} CTAs)"))
        .note(format!("registers {registers}, local memory {local}")))
}

fn geometry(kernel: &Kernel, launch: &Launch) -> Result<Geometry, Fault> {
    let refuse = |part: LaunchPart, m: String| Err(Fault::launch(part, m));
    let product = |v: [u32; 3]| v.iter().fold(1u64, |p, x| p.saturating_mul(u64::from(*x)));
    if product(launch.grid) == 0
        || product(launch.grid) > 1 << 31
        || launch.grid[1] > 65535
        || launch.grid[2] > 65535
    {
        return refuse(LaunchPart::Grid, format!("the grid {:?} is empty or too large", launch.grid));
    }
    if product(launch.grid) > MAX_CTAS {
        return refuse(
            LaunchPart::Grid,
            format!("the grid {:?} has more CTAs than the simulator runs, {MAX_CTAS}", launch.grid),
        );
    }
    let threads = product(launch.block);
    if threads == 0 || threads > u64::from(MAX_THREADS) || launch.block[2] > 64 {
        return refuse(
            LaunchPart::Block,
            format!("the block {:?} has {threads} threads: 1 to {MAX_THREADS} are possible", launch.block),
        );
    }
    if let Some((limit, exact)) = kernel.threads {
        if exact && limit != launch.block {
            return refuse(
                LaunchPart::Block,
                format!("`{}` requires blocks of {limit:?}, not {:?}", kernel.name, launch.block),
            );
        }
        if threads > product(limit) {
            return refuse(
                LaunchPart::Block,
                format!("`{}` allows {} threads, not {threads}", kernel.name, product(limit)),
            );
        }
    }
    let cluster = match (kernel.cluster, launch.cluster) {
        (Some(k), Some(l)) if k != l => {
            return refuse(
                LaunchPart::Cluster,
                format!("`{}` requires clusters of {k:?}, not {l:?}", kernel.name),
            );
        }
        (k, l) => k.or(l).unwrap_or([1; 3]),
    };
    if product(cluster) == 0 || product(cluster) > u64::from(MAX_CLUSTER) {
        return refuse(
            LaunchPart::Cluster,
            format!("the cluster {cluster:?} is empty or has more than {MAX_CLUSTER} CTAs"),
        );
    }
    if (0..3).any(|i| !launch.grid[i].is_multiple_of(cluster[i])) {
        return refuse(
            LaunchPart::Grid,
            format!("the grid {:?} is not a multiple of the cluster {cluster:?}", launch.grid),
        );
    }
    let dynamic_end = u64::from(kernel.dynamic_shared) + u64::from(launch.shared_bytes);
    let end = if launch.shared_bytes == 0 { u64::from(kernel.static_shared) } else { dynamic_end };
    let shared = end - u64::from(SHARED_BASE);
    if shared > u64::from(MAX_SHARED_BYTES) {
        return refuse(
            LaunchPart::SharedBytes,
            format!("{shared} bytes of shared memory: a CTA has at most {MAX_SHARED_BYTES}"),
        );
    }
    Ok(Geometry {
        grid: launch.grid,
        cluster,
        explicit: kernel.cluster.is_some() || launch.cluster.is_some(),
        block: launch.block,
        shared: shared as u32,
        dynamic: launch.shared_bytes,
        bytes: 0,
    })
}

fn parameters(kernel: &Kernel, launch: &Launch) -> Result<Vec<u8>, Fault> {
    if launch.params.len() != kernel.params.len() {
        return Err(Fault::launch(
            LaunchPart::Params,
            format!(
                "`{}` takes {} parameters, not {}",
                kernel.name,
                kernel.params.len(),
                launch.params.len()
            ),
        ));
    }
    let mut bytes = vec![0; kernel.param_bytes as usize];
    for (i, (slot, param)) in kernel.params.iter().zip(&launch.params).enumerate() {
        let value = param.bytes();
        if value.len() != slot.bytes as usize {
            return Err(Fault::launch(
                LaunchPart::Param(i),
                format!(
                    "parameter `{}` of `{}` has {} bytes, not {}",
                    slot.name,
                    kernel.name,
                    slot.bytes,
                    value.len()
                ),
            ));
        }
        bytes[slot.offset as usize..][..value.len()].copy_from_slice(&value);
    }
    Ok(bytes)
}
