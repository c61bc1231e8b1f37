//! The surface of the simulator: modules, launches, options and reports.

use crate::text::ast::{ModuleAst, Position, Space, Variable};
use crate::decode::{self, Kernel, SHARED_BASE};
use crate::error::{Fault, LaunchPart, ParseError, Place};
use crate::hazard::Footprint;
use crate::memory::{FUNCTION_WINDOW, MODULE_WINDOW, Memory};
use crate::text::names::Names;
use crate::text::scan::Parser;
use crate::schedule::{Geometry, run_grid};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of shared memory that one CTA may have.
pub const MAX_SHARED_BYTES: u32 = 232_448;
/// Most CTAs of a cluster (the non-portable limit).
pub const MAX_CLUSTER: u32 = 16;
const MAX_THREADS: u32 = 1024;
/// Most CTAs of a grid: a limit of the simulator, far beyond what it finishes in a day.
const MAX_CTAS: u64 = 1 << 24;
/// Most instructions of a module's entries together, each with the functions that it calls.
const MAX_INSTRUCTIONS: usize = 1 << 22;
/// Room for the variables of one module.
const MODULE_BYTES: u64 = 1 << 26;

/// A PTX module, parsed and decoded.
#[derive(Debug)]
pub struct Module {
    kernels: BTreeMap<String, Kernel>,
    variables: Vec<(String, u64, usize, Option<Vec<u8>>)>,
    /// The `.target` of the text.
    target: String,
}

impl Module {
    /// Reads PTX text. Errors name the line and column: text that is not PTX, a name that is not
    /// declared, an instruction that the simulator does not have.
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        let ast = Parser::new(text).module()?;
        let (globals, variables) = place_variables(&ast)?;
        let mut kernels = BTreeMap::new();
        let mut instructions = 0;
        for (i, f) in ast.functions.iter().enumerate().filter(|(_, f)| f.entry && f.body.is_some()) {
            let mut kernel = decode::decode(&ast, f, &globals)?;
            instructions += kernel.code.len();
            if instructions > MAX_INSTRUCTIONS {
                return decode::fail(
                    f.at,
                    format!("the entries have more than {MAX_INSTRUCTIONS} instructions"),
                );
            }
            let end = ast.functions.get(i + 1).map_or(u32::MAX, |next| next.at.line);
            kernel.names = Names::read(text, f.at.line..end);
            kernels.insert(f.name.clone(), kernel);
        }
        Ok(Module { kernels, variables, target: ast.target })
    }

    /// Names of the entries.
    pub fn entries(&self) -> impl Iterator<Item = &str> {
        self.kernels.keys().map(String::as_str)
    }

    /// The `.target` of the module.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The address of a global or constant variable.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        self.variables.iter().find(|v| v.0 == name).map(|v| v.1)
    }

    /// Names and sizes in bytes of an entry's parameters.
    pub fn parameters(&self, entry: &str) -> Option<Vec<(&str, u32)>> {
        Some(self.kernels.get(entry)?.params.iter().map(|p| (p.name.as_str(), p.bytes)).collect())
    }

    /// Where an entry is declared.
    pub fn declared_at(&self, entry: &str) -> Option<Position> {
        self.kernels.get(entry).map(|k| k.at)
    }

    /// Instructions of an entry and the functions it calls.
    pub fn instructions(&self, entry: &str) -> Option<usize> {
        self.kernels.get(entry).map(|k| k.code.len())
    }
}

type Variables = Vec<(String, u64, usize, Option<Vec<u8>>)>;

/// Variables that live in global memory.
fn placeable(ast: &ModuleAst) -> impl Iterator<Item = &Variable> {
    ast.variables.iter().filter(|v| matches!(v.space, Space::Global | Space::Const))
}

fn place_variables(ast: &ModuleAst) -> Result<(HashMap<String, u64>, Variables), ParseError> {
    static MODULES: AtomicU64 = AtomicU64::new(0);
    let mut globals = HashMap::new();
    let mut variables = Vec::new();
    let mut base = None;
    let mut used = 0u64;
    for v in placeable(ast) {
        // Each module has its own range of addresses, so that two modules never share a variable.
        let start = *base.get_or_insert_with(|| {
            MODULE_WINDOW + MODULES.fetch_add(1, Ordering::Relaxed) % (1 << 18) * MODULE_BYTES
        });
        used = used.div_ceil(v.align.max(16)) * v.align.max(16);
        let bytes = v.bytes().max(v.init.as_ref().map_or(0, |i| i.len() as u64));
        if used + bytes > MODULE_BYTES {
            return decode::fail(v.at, "the module's variables exceed 64 MiB");
        }
        globals.insert(v.name.clone(), start + used);
        variables.push((v.name.clone(), start + used, bytes as usize, v.init.clone()));
        used += bytes + 16;
    }
    let defined = ast.functions.iter().filter(|f| f.body.is_some() && !f.entry);
    globals.extend((FUNCTION_WINDOW..).step_by(16).zip(defined).map(|(at, f)| (f.name.clone(), at)));
    for (v, placed) in placeable(ast).zip(&mut variables) {
        let (_, _, _, Some(init)) = placed else { continue };
        for r in &v.references {
            let Some(address) = globals.get(&r.name) else {
                return decode::fail(
                    r.position,
                    format!("`{}` is not a global or constant variable, or a function", r.name),
                );
            };
            let bits = address.wrapping_add(r.offset as u64) & r.mask;
            let value = bits >> r.mask.trailing_zeros().min(63);
            init[r.at..r.at + r.bytes].copy_from_slice(&value.to_le_bytes()[..r.bytes]);
        }
    }
    Ok((globals, variables))
}

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

impl From<[u8; crate::TENSOR_MAP_BYTES]> for Param {
    fn from(map: [u8; crate::TENSOR_MAP_BYTES]) -> Param {
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

/// When asynchronous work happens, and in which order warps run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// As early as possible; warps in order.
    Eager,
    /// As late as the rules allow; warps in reverse order.
    Lazy,
    /// At any allowed moment, by [`Options::seed`]; warps in random order and turns.
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
    /// Whether [`Report::trace`] is recorded.
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

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Warp instructions executed.
    pub instructions: u64,
    /// Multiply-adds of the tensor cores.
    pub macs: u64,
    /// Asynchronous copies (one per receiver of a multicast).
    pub copies: u64,
    /// CTAs run.
    pub ctas: u64,
    /// Lines of the PTX text with an instruction that some lane executed (not predicated off), in order.
    pub lines: Vec<u32>,
    /// What ran when, if asked for.
    pub trace: Vec<TraceEvent>,
}

/// The unit that a [`TraceEvent`] belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TraceUnit {
    /// The warp's own threads: one turn, up to the instruction at which it gave way.
    Warp,
    /// A `wgmma` from its issue to its completion.
    Wgmma,
    /// A bulk or tensor copy into shared memory, from its issue to its completion.
    Load,
    /// A bulk or tensor copy out of shared memory.
    Store,
    /// The `cp.async` of a warp.
    CpAsync,
    /// A `st.async` or `red.async` to a peer.
    RemoteStore,
}

/// One bar of the timeline. Time counts the warp instructions of the whole grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Which track.
    pub unit: TraceUnit,
    /// The instruction, its source line, its CTA and its warp.
    pub place: Place,
    /// The role of the code that the instruction is part of, or that the warp came from, where the kernel names roles
    /// (`//@ role NAME`).
    pub role: Option<String>,
    /// What a turn ended to wait for, or which parts of shared memory and which barrier the work uses, by the names
    /// that the kernel gives them (`//@ shared NAME OFFSET BYTES COUNT`); empty if there is nothing to say.
    pub detail: String,
    /// First moment.
    pub start: u64,
    /// Last moment.
    pub end: u64,
}

/// A simulated device: its memory, and the way to run kernels on it.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Global memory.
    pub memory: Memory,
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
        let Some(kernel) = module.kernels.get(&launch.entry) else {
            return Err(Fault::launch(
                LaunchPart::Entry,
                format!("the module has no entry `{}`", launch.entry),
            ));
        };
        let place = |f: Fault| f.note(format!("`{}` is declared at {}", kernel.name, kernel.at));
        let geometry = geometry(kernel, launch).map_err(place)?;
        let params = parameters(kernel, launch).map_err(place)?;
        for (_, address, bytes, init) in &module.variables {
            self.memory.place(*address, *bytes, init.as_deref());
        }
        // On a thread of the pool, where sharing a product with another thread costs next to nothing.
        let (memory, last) = (&mut self.memory, &self.last);
        let before = (options.hazards && !last.is_empty()).then_some(last);
        let (outcome, touched) =
            rayon::scope(|_| run_grid(kernel, &geometry, memory, &params, options, before));
        self.last = touched;
        outcome
    }

    /// Nothing runs any more: a kernel that is launched next has none before it.
    pub fn synchronize(&mut self) {
        self.last = Footprint::default();
    }
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
