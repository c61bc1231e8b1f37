//! The kernel under construction: registers, parameters, source lines, and the finished module.

use crate::error::{BuildError, BuildErrorKind};
use crate::memory::{Global, Ptr, Shared, SharedSpace};
use crate::target::{Needs, PtxVersion, Target};
use crate::value::{Class, Operand, Pred, Source, Type, U64, Val, Var};
use std::cell::RefCell;
use std::fmt::{self, Write as _};
use std::panic::Location;

/// A kernel being written. Instructions append to it in the order they are called.
///
/// A mistake that Rust's types cannot see (an instruction the target lacks, an illegal tile width) is kept
/// and returned by [`finish`](Kernel::finish), with the Rust line that made it.
pub struct Kernel {
    name: String,
    target: Target,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    body: String,
    params: Vec<String>,
    registers: [u32; Class::ALL.len()],
    labels: u32,
    files: Vec<&'static str>,
    line: Option<(usize, u32)>,
    guard: Option<String>,
    truths: [Option<u32>; 2],
    version: Option<PtxVersion>,
    limit: Option<PtxVersion>,
    errors: Vec<BuildError>,
    max_threads: Option<u32>,
    min_blocks: Option<u32>,
    cluster: Option<[u32; 3]>,
    has_shared: bool,
}

/// A finished PTX module with one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The entry's name.
    pub entry: String,
    /// What it is built for.
    pub target: Target,
    /// The language version it needs, the lowest that will do.
    pub version: PtxVersion,
    /// The PTX text.
    pub text: String,
}

impl Module {
    /// The same for another target, which has all that it is written with.
    ///
    /// # Errors
    /// If the target may lack something.
    #[track_caller]
    pub fn for_target(&self, target: Target) -> Result<Module, BuildError> {
        if !target.has_all_of(self.target) {
            let (entry, of) = (self.entry.clone(), self.target);
            let kind = BuildErrorKind::OtherTarget { entry, of, target };
            return Err(BuildError { at: Location::caller(), kind });
        }
        let version = self.version.max(target.since());
        let header = |version, target| format!(".version {version}\n.target {target}\n");
        let text = self.text.replacen(&header(self.version, self.target), &header(version, target), 1);
        Ok(Module { entry: self.entry.clone(), target, version, text })
    }

    /// The text without `.file`, `.loc` and names: what the code is, apart from where it was written.
    pub fn without_lines(&self) -> String {
        let kept = self.text.lines().filter(|line| {
            let line = line.trim_start();
            ![".loc ", ".file ", "//@ "].iter().any(|start| line.starts_with(start))
        });
        kept.flat_map(|line| [line, "\n"]).collect()
    }
}

/// A place to branch to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label(u32);

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "$L{}", self.0)
    }
}

impl Kernel {
    /// Starts a kernel.
    pub fn new(name: &str, target: Target) -> Kernel {
        let state = State { version: Some(target.since()), ..State::default() };
        Kernel { name: name.to_owned(), target, state: RefCell::new(state) }
    }

    /// Sets the largest CTA that will be launched (`.maxntid`), with at least one CTA per SM.
    ///
    /// The assembler honours `setmaxnreg` only when both are known (PTX manual, "setmaxnreg"; without
    /// `.minnctapersm` it says C7508 and drops it).
    pub fn threads(self, max: u32) -> Kernel {
        self.state.borrow_mut().max_threads = Some(max);
        self
    }

    /// Limits registers so that at least this many CTAs of the largest size are resident on an SM (`.minnctapersm`).
    pub fn resident(self, blocks: u32) -> Kernel {
        self.state.borrow_mut().min_blocks = Some(blocks);
        self
    }

    /// Compiles the cluster's dimensions in, so that every launch has them.
    pub fn cluster(self, dims: [u32; 3]) -> Kernel {
        self.state.borrow_mut().cluster = Some(dims);
        self
    }

    /// Refuses instructions that need a later PTX version than this, for drivers that are no newer.
    pub fn limit_version(self, limit: PtxVersion) -> Kernel {
        self.state.borrow_mut().limit = Some(limit);
        self
    }

    /// What the kernel is built for.
    pub fn target(&self) -> Target {
        self.target
    }

    /// A constant of this kernel.
    pub fn constant<T: Type>(&self, value: T) -> Val<'_, T> {
        Val { k: self, source: Source::Constant(value) }
    }

    /// A variable with a first value.
    #[track_caller]
    pub fn var<T: Type>(&self, value: T) -> Var<'_, T> {
        let var = Var::uninitialized(self);
        var.set(value);
        var
    }

    /// A variable that starts as a copy of a value.
    #[track_caller]
    pub fn var_from<'k, T: Type>(&'k self, value: Val<'k, T>) -> Var<'k, T> {
        let var = Var::uninitialized(self);
        var.set(value);
        var
    }

    /// Registers of a tensor-core fragment: fixed, not yet written.
    pub fn fragment<T: Type>(&self, len: usize) -> Vec<Var<'_, T>> {
        (0..len).map(|_| Var::uninitialized(self)).collect()
    }

    /// Declares a scalar parameter and loads it.
    #[track_caller]
    pub fn param<T: Type>(&self, name: &str) -> Val<'_, T> {
        self.declare(format!(".param .{} {name}", T::NAME));
        let out = self.fresh::<T>();
        self.op(format_args!("ld.param.{} {}, [{name}];", T::NAME, out.operand()));
        out
    }

    /// Declares a pointer to global memory and loads it.
    #[track_caller]
    pub fn param_pointer(&self, name: &str) -> Global<'_> {
        let address = self.param::<u64>(name);
        let global = self.fresh::<u64>();
        self.op(format_args!("cvta.to.global.u64 {}, {};", global.operand(), address.operand()));
        Ptr::new(global)
    }

    /// Declares a tensor map passed by value and gives its generic address.
    #[track_caller]
    pub(crate) fn param_opaque(&self, name: &str, bytes: u32, align: u32) -> U64<'_> {
        self.declare(format!(".param .align {align} .b8 {name}[{bytes}]"));
        let (inside, generic) = (self.fresh::<u64>(), self.fresh::<u64>());
        self.op(format_args!("mov.b64 {}, {name};", inside.operand()));
        self.emit(
            Needs::from_sm(70, 7, 7),
            format_args!("cvta.param.u64 {}, {};", generic.operand(), inside.operand()),
        );
        generic
    }

    fn declare(&self, param: String) {
        self.state.borrow_mut().params.push(param);
    }

    /// The start of dynamic shared memory; the launch says how much there is.
    #[track_caller]
    pub fn dynamic_shared(&self) -> Shared<'_> {
        self.state.borrow_mut().has_shared = true;
        let base = self.fresh::<u32>();
        self.op(format_args!("mov.u32 {}, {DYNAMIC_SHARED};", base.operand()));
        Ptr::<SharedSpace>::new(base)
    }

    pub(crate) fn register(&self, class: Class) -> u32 {
        let counter = &mut self.state.borrow_mut().registers[class as usize];
        *counter += 1;
        *counter - 1
    }

    pub(crate) fn fresh<T: Type>(&self) -> Val<'_, T> {
        Val { k: self, source: Source::Register(self.register(T::CLASS)) }
    }

    /// A register that always holds this truth value; made once, at the entry's start.
    pub(crate) fn constant_predicate(&self, truth: bool) -> u32 {
        let known = self.state.borrow().truths[usize::from(truth)];
        known.unwrap_or_else(|| {
            let id = self.register(Class::Pred);
            self.state.borrow_mut().truths[usize::from(truth)] = Some(id);
            id
        })
    }

    pub(crate) fn label(&self) -> Label {
        let mut state = self.state.borrow_mut();
        state.labels += 1;
        Label(state.labels - 1)
    }

    pub(crate) fn place(&self, label: Label) {
        let _ = writeln!(self.state.borrow_mut().body, "{label}:");
    }

    /// Runs `instructions` where the predicate holds, by predication and not by a branch.
    ///
    /// For a few instructions without control flow of their own. Compute what they need before: a register that is
    /// written only where the predicate holds keeps its old value elsewhere, and so is never free inside a loop.
    #[track_caller]
    pub fn guard<'k>(&'k self, condition: Pred<'k>, instructions: impl FnOnce()) {
        match condition.as_constant() {
            Some(true) => return instructions(),
            Some(false) => return,
            None => {}
        }
        let guard = format!("@{} ", condition.operand());
        let outer = self.state.borrow_mut().guard.replace(guard);
        if outer.is_some() {
            self.fail(BuildErrorKind::Operand(
                "a guard inside a guard: combine the predicates with &".into(),
            ));
        }
        instructions();
        self.state.borrow_mut().guard = None;
    }

    pub(crate) fn is_guarded(&self) -> bool {
        self.state.borrow().guard.is_some()
    }

    /// Names what `body` writes as the work of a role, such as the warps that load tiles.
    ///
    /// The name is a comment, for the simulator's timeline; the code is the same without it.
    ///
    /// ```
    /// # use oxigemm_ptx::{Kernel, Target};
    /// let k = Kernel::new("roles", Target::Sm90a);
    /// k.role("producer", || k.if_(k.lane().eq(0), || { /* loads */ }));
    /// assert!(k.finish()?.text.contains("//@ role producer"));
    /// # Ok::<(), oxigemm_ptx::BuildError>(())
    /// ```
    pub fn role<R>(&self, name: &str, body: impl FnOnce() -> R) -> R {
        self.comment(format_args!("role {name}"));
        let result = body();
        self.comment(format_args!("end {name}"));
        result
    }

    /// Names `count` equal things of `bytes` bytes in a row, `offset` bytes into dynamic shared memory.
    ///
    /// The name is a comment, for the simulator's messages and its timeline: the third of them is `name[2]`.
    pub fn name_shared(&self, name: &str, offset: u32, bytes: u32, count: u32) {
        self.name_shared_every(bytes, name, offset, bytes, count);
    }

    /// As [`name_shared`](Self::name_shared), for things that do not touch: from one to the next are `pitch` bytes.
    pub fn name_shared_every(&self, pitch: u32, name: &str, offset: u32, bytes: u32, count: u32) {
        self.require(!name.is_empty() && !name.contains(char::is_whitespace), || {
            format!("`{name}` is no name for a part of shared memory: it must be one word")
        });
        self.require(pitch >= bytes, || format!("{bytes} bytes of `{name}` every {pitch} bytes overlap"));
        if pitch == bytes {
            self.comment(format_args!("shared {name} {offset} {bytes} {count}"));
        } else {
            self.comment(format_args!("shared {name} {offset} {bytes} {count} {pitch}"));
        }
    }

    fn comment(&self, text: fmt::Arguments<'_>) {
        let _ = writeln!(self.state.borrow_mut().body, "\t//@ {text}");
    }

    /// Appends an instruction that every target has.
    #[track_caller]
    pub(crate) fn op(&self, text: fmt::Arguments<'_>) {
        self.emit(Needs::BASE, text);
    }

    /// Appends an instruction with what it needs, and the Rust line that wrote it.
    #[track_caller]
    pub(crate) fn emit(&self, needs: Needs, text: fmt::Arguments<'_>) {
        let at = Location::caller();
        let mut state = self.state.borrow_mut();
        if !needs.met_by(self.target) {
            let kind = BuildErrorKind::MissingOnTarget {
                instruction: opcode(&text.to_string()),
                needed: needs.arch.to_string(),
                target: self.target,
            };
            state.errors.push(BuildError { at, kind });
        }
        if let Some(limit) = state.limit.filter(|&limit| needs.version > limit) {
            let instruction = opcode(&text.to_string());
            let kind = BuildErrorKind::VersionLimit { instruction, needed: needs.version, limit };
            state.errors.push(BuildError { at, kind });
        }
        state.version = state.version.max(Some(needs.version));

        let file = state.files.iter().position(|&file| file == at.file()).unwrap_or_else(|| {
            state.files.push(at.file());
            state.files.len() - 1
        });
        if state.line != Some((file, at.line())) {
            state.line = Some((file, at.line()));
            let _ = writeln!(state.body, "\t.loc {} {} {}", file + 1, at.line(), at.column());
        }
        let state = &mut *state;
        let guard = state.guard.as_deref().unwrap_or("");
        let _ = writeln!(state.body, "\t{guard}{text}");
    }

    /// Records a broken rule at the caller's line.
    #[track_caller]
    pub(crate) fn fail(&self, kind: BuildErrorKind) {
        let at = Location::caller();
        self.state.borrow_mut().errors.push(BuildError { at, kind });
    }

    /// Records `message` at the caller's line unless the rule holds.
    #[track_caller]
    pub(crate) fn require(&self, rule: bool, message: impl FnOnce() -> String) {
        if !rule {
            self.fail(BuildErrorKind::Operand(message()));
        }
    }

    /// Ends the kernel: its module, or the first mistake in it.
    ///
    /// Takes a reference, so that a kernel may be kept in a variable of type `&Kernel` by the functions that
    /// write it; nothing may be added afterwards.
    pub fn finish(&self) -> Result<Module, BuildError> {
        let state = std::mem::take(&mut *self.state.borrow_mut());
        if let Some(error) = state.errors.into_iter().next() {
            return Err(error);
        }
        let version = state.version.expect("set when the kernel was started");
        let mut text = String::with_capacity(state.body.len() + 2048);
        let _ = writeln!(text, ".version {version}\n.target {}\n.address_size 64", self.target);
        for (i, file) in state.files.iter().enumerate() {
            let _ = writeln!(text, ".file {} \"{}\"", i + 1, crate_relative(file));
        }
        if state.has_shared {
            let _ = writeln!(text, ".extern .shared .align 1024 .b8 {DYNAMIC_SHARED}[];");
        }
        let _ = write!(text, ".visible .entry {}(\n\t{}\n)", self.name, state.params.join(",\n\t"));
        if let Some(max) = state.max_threads {
            let _ = write!(text, " .maxntid {max}, 1, 1 .minnctapersm {}", state.min_blocks.unwrap_or(1));
        }
        if let Some([x, y, z]) = state.cluster {
            let _ = write!(text, " .explicitcluster .reqnctapercluster {x}, {y}, {z}");
        }
        text.push_str("\n{\n");
        for class in Class::ALL {
            let count = state.registers[class as usize];
            if count > 0 {
                let _ = writeln!(text, "\t.reg {} {}<{count}>;", class.declaration(), class.prefix());
            }
        }
        for (truth, id) in [false, true].into_iter().zip(state.truths) {
            if let Some(id) = id {
                let compare = if truth { "eq" } else { "ne" };
                let _ = writeln!(text, "\tsetp.{compare}.u32 {}, 0, 0;", Operand::Register(Class::Pred, id));
            }
        }
        text.push_str(&state.body);
        text.push_str("\tret;\n}\n");
        Ok(Module { entry: self.name.clone(), target: self.target, version, text })
    }
}

const DYNAMIC_SHARED: &str = "dynamic_shared";

fn opcode(text: &str) -> String {
    text.split_whitespace().next().unwrap_or_default().trim_end_matches(';').to_owned()
}

/// `<crate>/src/<file>` of a path, so that the text does not depend on where the crate was built.
fn crate_relative(path: &str) -> &str {
    let start = path.rfind("/src/").and_then(|src| path[..src].rfind('/')).map_or(0, |slash| slash + 1);
    &path[start..]
}
