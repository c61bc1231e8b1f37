//! From the syntax tree to executable code, once per entry.
//!
//! An entry and every device function it reaches become one flat array of [`Inst`]. Each instruction of
//! the text is one instruction here, so a label is an index known before any operand is decoded.
//! Registers get dense indices in the order of their first use. Recursion is refused, so that every
//! function owns a fixed range of registers and of local memory. A function's address is a number of its own, which a
//! call through a pointer looks up among the functions that fit its arguments.

pub(crate) mod atomic;
pub(crate) mod barrier;
mod check;
pub(crate) mod clc;
pub(crate) mod collective;
pub(crate) mod control;
pub(crate) mod copy;
pub(crate) mod cp_async;
mod cvt;
mod decoder;
pub(crate) mod fence;
pub(crate) mod flow;
pub(crate) mod isa;
pub(crate) mod matrix;
pub(crate) mod mbarrier;
pub(crate) mod memory;
pub(crate) mod operands;
mod reach;
pub(crate) mod scalar;
mod signatures;
pub(crate) mod special;
pub(crate) mod target;
pub(crate) mod tcgen05;
pub(crate) mod tensormap;
pub(crate) mod wgmma;
pub(crate) mod wmma;

use crate::error::{ParseError, Place, Position};
use crate::text::ast::*;

use crate::text::types::Ty;
use control::CallCopy;
use decoder::Decoder;
use isa::{Inst, Reg, Src};
use operands::Roles;
use reach::{collect_names, definitions, reachable};
use std::collections::{HashMap, HashSet};

/// Functions of the device runtime that a module may declare and call without defining them: `vprintf` prints, the
/// others stop the kernel.
pub(crate) const RUNTIME: [&str; 3] = ["vprintf", "__assertfail", "abort"];

/// Where the shared window of a CTA starts: the hardware keeps the first kilobyte for itself.
pub(crate) const SHARED_BASE: u32 = 1024;

/// A parameter of an entry.
#[derive(Clone, Debug)]
pub(crate) struct ParamSlot {
    pub(crate) name: String,
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
}

/// An entry, ready to run.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) code: Vec<Inst>,
    /// Opcode of every instruction, for messages.
    pub(crate) opcodes: Vec<Box<str>>,
    pub(crate) registers: Vec<String>,
    pub(crate) params: Vec<ParamSlot>,
    pub(crate) param_bytes: u32,
    pub(crate) local_bytes: u32,
    /// Offset of the end of static shared memory, from the window's start.
    pub(crate) static_shared: u32,
    /// Offset of dynamic shared memory.
    pub(crate) dynamic_shared: u32,
    pub(crate) threads: Option<([u32; 3], bool)>,
    /// `.maxnreg`
    pub(crate) max_registers: Option<u32>,
    pub(crate) cluster: Option<[u32; 3]>,
    /// Where the entry is declared.
    pub(crate) at: Position,
    pub(crate) files: std::collections::BTreeMap<u32, String>,
    /// Whether a load, store, atomic or fence has a scope narrower than the GPU.
    pub(crate) scoped: bool,
    /// The instructions of its functions, the entry first.
    functions: Vec<std::ops::Range<u32>>,
    joins: std::sync::OnceLock<flow::Joins>,
    /// What its text calls its parts.
    pub(crate) names: crate::text::names::Names,
}

impl Kernel {
    /// The place of an instruction, by the first warp.
    pub(crate) fn place(&self, pc: u32) -> Place {
        let inst = &self.code[pc as usize];
        Place {
            line: inst.line,
            column: inst.column,
            source: inst.loc.and_then(|(file, line)| Some((self.files.get(&file)?.clone(), line))),
            opcode: self.opcodes[pc as usize].to_string(),
            cta: 0,
            warp: 0,
            device: None,
        }
    }

    /// Where lanes that branches separate come together again.
    pub(crate) fn joins(&self) -> &flow::Joins {
        self.joins.get_or_init(|| flow::Joins::of(&self.code, &self.functions))
    }
}

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Symbol {
    Register(Reg, Ty),
    /// Offset in the CTA's shared window.
    Shared(u32),
    /// Offset in the thread's local memory.
    Local(u32),
    /// A `.param` variable of a call or of a function: local memory in this model.
    CallParam(u32, u32),
    /// Offset in the entry's parameters.
    EntryParam(u32),
    /// An address in global memory.
    Global(u64),
}

#[derive(Default)]
struct Scope {
    parent: Option<usize>,
    /// Ranges declared as `name<count>` by their prefix, and single names.
    ranges: HashMap<String, (u32, Ty)>,
    singles: HashMap<String, Ty>,
    symbols: HashMap<String, Symbol>,
    labels: HashMap<String, u32>,
    tables: HashMap<String, Vec<String>>,
    /// What calls through pointers name.
    prototypes: HashSet<String>,
}

impl Scope {
    /// Whether a register or variable of this name is declared so far.
    fn declares(&self, name: &str) -> bool {
        self.singles.contains_key(name) || self.symbols.contains_key(name) || self.in_range(name).is_some()
    }

    /// The type of `name` as a member of a range. A prefix may itself end in digits, so every split of the
    /// trailing digits (an index has at most seven) is tried, the longest index first.
    fn in_range(&self, name: &str) -> Option<Ty> {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        (1..=digits.min(7)).rev().find_map(|n| {
            let (prefix, index) = name.split_at(name.len() - n);
            if n > 1 && index.starts_with('0') {
                return None;
            }
            let (count, ty) = self.ranges.get(prefix)?;
            (index.parse::<u32>().ok()? < *count).then_some(*ty)
        })
    }
}

/// Where a function's formals live.
#[derive(Clone, Debug, Default)]
struct Signature {
    /// The function's instructions: the first, and the one behind the last.
    start: u32,
    end: u32,
    params: Vec<FormalSlot>,
    returns: Vec<FormalSlot>,
}

#[derive(Clone, Copy, Debug)]
enum FormalSlot {
    Bytes { at: u32, len: u32 },
    Register(Reg),
}

/// State of decoding one entry.
pub(crate) struct Linker<'a> {
    module: &'a ModuleAst,
    globals: &'a HashMap<String, u64>,
    registers: Vec<String>,
    register_bits: Vec<u32>,
    local_bytes: u32,
    /// Whether a load, store, atomic or fence has a scope narrower than the GPU.
    scoped: bool,
    /// Whether `tcgen05` instructions of this function are for a pair of CTAs, once one has said so.
    cta_pair: Option<bool>,
    shared: HashMap<String, u32>,
    signatures: HashMap<String, Signature>,
    scopes: Vec<Scope>,
    scope: usize,
}

type Result<T> = std::result::Result<T, ParseError>;

pub(super) fn fail<T>(at: Position, message: impl Into<String>) -> Result<T> {
    Err(ParseError { at, message: message.into() })
}

fn round_up(value: u64, align: u64) -> u64 {
    value.div_ceil(align.max(1)) * align.max(1)
}

/// Decodes `entry` of `module`; `globals` gives the addresses of its global and constant variables.
pub(crate) fn decode(module: &ModuleAst, entry: &Function, globals: &HashMap<String, u64>) -> Result<Kernel> {
    let defined = definitions(module);
    let functions = reachable(module, &defined, entry)?;
    let mut used = HashSet::new();
    for f in &functions {
        collect_names(f, &mut used);
    }
    if entry.cluster.is_some()
        && let Some(why) = target::missing(module.target, target::CLUSTERS)
    {
        return fail(entry.at, format!("the clusters of `{}`: {why}", entry.name));
    }
    let mut linker = Linker {
        module,
        globals,
        registers: Vec::new(),
        register_bits: Vec::new(),
        local_bytes: 0,
        scoped: false,
        cta_pair: None,
        shared: HashMap::new(),
        signatures: HashMap::new(),
        scopes: Vec::new(),
        scope: 0,
    };
    let (static_shared, dynamic_shared) = linker.place_shared(&functions, &used)?;
    let mut params = Vec::new();
    let mut param_bytes = 0u64;
    for formal in &entry.params {
        let Formal::Param(v) = formal else {
            return fail(entry.at, "an entry takes `.param` parameters only");
        };
        param_bytes = round_up(param_bytes, v.align);
        params.push(ParamSlot { name: v.name.clone(), offset: param_bytes as u32, bytes: v.bytes() as u32 });
        param_bytes += v.bytes();
        if param_bytes > 32764 {
            return fail(entry.at, "the parameters exceed 32764 bytes");
        }
    }
    let mut start = 0;
    for f in &functions {
        linker.declare_function(f, start)?;
        start = linker.signatures[&f.name].end;
    }
    let mut code = Vec::new();
    let mut opcodes = Vec::new();
    let mut ranges = Vec::new();
    for f in &functions {
        let Signature { start, end, .. } = linker.signatures[&f.name];
        ranges.push(start..end);
        let entry_params: &[ParamSlot] = if f.entry { &params } else { &[] };
        linker.function(f, entry_params, &mut code, &mut opcodes)?;
    }
    Ok(Kernel {
        name: entry.name.clone(),
        scoped: linker.scoped,
        code,
        opcodes,
        functions: ranges,
        joins: Default::default(),
        names: Default::default(),
        registers: linker.registers,
        params,
        param_bytes: param_bytes as u32,
        local_bytes: linker.local_bytes,
        static_shared,
        dynamic_shared,
        threads: entry.threads,
        max_registers: entry.max_registers,
        cluster: entry.cluster,
        at: entry.at,
        files: module.files.clone(),
    })
}

fn instruction_count(f: &Function) -> u32 {
    f.body.iter().flatten().filter(|s| matches!(s, Statement::Instruction(_))).count() as u32
}

impl<'a> Linker<'a> {
    /// Lays out shared memory: static variables first, then dynamic memory.
    fn place_shared(&mut self, functions: &[&Function], used: &HashSet<&str>) -> Result<(u32, u32)> {
        let mut end = u64::from(SHARED_BASE);
        let mut dynamic: Vec<&Variable> = Vec::new();
        let module_scope = self.module.variables.iter().filter(|v| v.space == Space::Shared);
        let local = functions.iter().flat_map(|f| f.body.iter().flatten()).filter_map(|s| match s {
            Statement::Variable(v) if v.space == Space::Shared => Some(v),
            _ => None,
        });
        for (v, always) in module_scope.map(|v| (v, false)).chain(local.map(|v| (v, true))) {
            if !always && !used.contains(v.name.as_str()) {
                continue;
            }
            if v.count == 0 {
                dynamic.push(v);
                continue;
            }
            end = round_up(end, v.align);
            if end + v.bytes() > 1 << 20 {
                return fail(v.at, format!("shared variable `{}` does not fit in shared memory", v.name));
            }
            self.shared.insert(v.name.clone(), end as u32);
            end += v.bytes();
        }
        let align = dynamic.iter().map(|v| v.align).max().unwrap_or(16).max(16);
        let base = round_up(end, align);
        for v in dynamic {
            self.shared.insert(v.name.clone(), base as u32);
        }
        Ok((end as u32, base as u32))
    }

    fn local(&mut self, bytes: u64, align: u64, at: Position) -> Result<u32> {
        let start = round_up(u64::from(self.local_bytes), align);
        if start + bytes > 512 << 10 {
            return fail(at, "local memory exceeds 512 KiB per thread");
        }
        self.local_bytes = (start + bytes) as u32;
        Ok(start as u32)
    }

    /// A new register; one of 128 bits is two, low word first.
    fn register(&mut self, name: &str, ty: Ty) -> Reg {
        let first = Reg(self.registers.len() as u32);
        for _ in 0..ty.bits().div_ceil(64) {
            self.registers.push(name.to_owned());
            self.register_bits.push(ty.bits().min(64));
        }
        first
    }

    fn declare_function(&mut self, f: &Function, start: u32) -> Result<()> {
        let mut signature =
            Signature { start, end: start + instruction_count(f) + 1, ..Signature::default() };
        if !f.entry {
            for (formals, returns) in [(&f.params, false), (&f.returns, true)] {
                for formal in formals {
                    let slot = match formal {
                        Formal::Param(v) => FormalSlot::Bytes {
                            at: self.local(v.bytes(), v.align, v.at)?,
                            len: v.bytes() as u32,
                        },
                        Formal::Register(name, ty) => {
                            let Some(ty) = Ty::parse(ty) else {
                                return fail(f.at, format!("`.{ty}` is not a type"));
                            };
                            FormalSlot::Register(self.register(name, ty))
                        }
                    };
                    if returns { signature.returns.push(slot) } else { signature.params.push(slot) }
                }
            }
        }
        self.signatures.insert(f.name.clone(), signature);
        Ok(())
    }

    fn function(
        &mut self,
        f: &Function,
        entry_params: &[ParamSlot],
        code: &mut Vec<Inst>,
        opcodes: &mut Vec<Box<str>>,
    ) -> Result<()> {
        let body = f.body.as_deref().unwrap_or_default();
        self.scopes.clear();
        self.cta_pair = None;
        let mut root = Scope::default();
        for p in entry_params {
            if root.symbols.insert(p.name.clone(), Symbol::EntryParam(p.offset)).is_some() {
                return fail(f.at, format!("parameter `{}` is declared twice in `{}`", p.name, f.name));
            }
        }
        let signature = self.signatures[&f.name].clone();
        let formals = f.params.iter().zip(&signature.params).chain(f.returns.iter().zip(&signature.returns));
        for (formal, slot) in formals {
            let (name, symbol) = match (formal, slot) {
                (Formal::Param(v), FormalSlot::Bytes { at, len }) => (&v.name, Symbol::CallParam(*at, *len)),
                (Formal::Register(name, ty), FormalSlot::Register(r)) => {
                    (name, Symbol::Register(*r, Ty::parse(ty).unwrap_or(Ty::B32)))
                }
                _ => continue,
            };
            if root.symbols.insert(name.clone(), symbol).is_some() {
                return fail(f.at, format!("parameter `{name}` is declared twice in `{}`", f.name));
            }
        }
        self.scopes.push(root);
        self.scan(f, body, code.len() as u32)?;

        // Second pass: decode, walking the same scopes in the same order.
        let mut next_scope = 1;
        self.scope = 0;
        let mut loc = None;
        for statement in body {
            match statement {
                Statement::Open => {
                    self.scope = next_scope;
                    next_scope += 1;
                }
                Statement::Close => self.scope = self.scopes[self.scope].parent.unwrap_or(0),
                Statement::Loc(file, line) => loc = Some((*file, *line)),
                Statement::Instruction(i) => {
                    let (op, guard) = Decoder { linker: self, inst: i, in_entry: f.entry }.decode()?;
                    let roles = Roles::of(&op);
                    self.scoped |= roles.scope.is_some_and(|scope| scope < crate::hazard::Scope::Gpu);
                    let uses = roles.uses(guard);
                    let Position { line, column } = i.at;
                    code.push(Inst { op, guard, uses, line, column, loc });
                    opcodes.push(i.opcode.join(".").into());
                }
                _ => {}
            }
        }
        // Falling off the end returns.
        let last = body.iter().rev().find_map(|s| match s {
            Statement::Instruction(i) => Some(i.at),
            _ => None,
        });
        let Position { line, column } = last.unwrap_or(f.at);
        code.push(Inst { op: control::RETURN, guard: None, uses: Default::default(), line, column, loc });
        opcodes.push("ret".into());
        Ok(())
    }

    /// First pass: scopes, declarations and labels.
    fn scan(&mut self, f: &Function, body: &[Statement], start: u32) -> Result<()> {
        let mut current = 0;
        let mut pc = start;
        for statement in body {
            match statement {
                Statement::Open => {
                    self.scopes.push(Scope { parent: Some(current), ..Scope::default() });
                    current = self.scopes.len() - 1;
                }
                Statement::Close => current = self.scopes[current].parent.unwrap_or(0),
                Statement::Label(name, at) => {
                    let scope = &mut self.scopes[current];
                    if scope.declares(name) || scope.labels.insert(name.clone(), pc).is_some() {
                        return fail(*at, format!("label `{name}` is defined twice in `{}`", f.name));
                    }
                }
                Statement::Register { ty, name, count, at } => {
                    let Some(ty) = Ty::parse(ty).filter(|ty| ty.in_register()) else {
                        return fail(*at, format!("`.{ty}` is not a register type"));
                    };
                    let scope = &mut self.scopes[current];
                    let twice = match count {
                        Some(n) => scope.ranges.insert(name.clone(), (*n, ty)).is_some(),
                        None => scope.declares(name) || scope.singles.insert(name.clone(), ty).is_some(),
                    };
                    if twice {
                        return fail(*at, format!("register `{name}` is declared twice in `{}`", f.name));
                    }
                }
                Statement::Variable(v) => {
                    let symbol = match v.space {
                        Space::Shared => Symbol::Shared(self.shared.get(&v.name).copied().unwrap_or(0)),
                        Space::Local => Symbol::Local(self.local(v.bytes(), v.align, v.at)?),
                        _ => Symbol::CallParam(self.local(v.bytes(), v.align, v.at)?, v.bytes() as u32),
                    };
                    if self.scopes[current].declares(&v.name) {
                        return fail(
                            v.at,
                            format!("variable `{}` is declared twice in `{}`", v.name, f.name),
                        );
                    }
                    self.scopes[current].symbols.insert(v.name.clone(), symbol);
                }
                Statement::BranchTargets(name, targets) => {
                    self.scopes[current].tables.insert(name.clone(), targets.clone());
                }
                Statement::CallPrototype(name) => {
                    self.scopes[current].prototypes.insert(name.clone());
                }
                Statement::Instruction(_) => pc += 1,
                Statement::Loc(..) => {}
            }
        }
        Ok(())
    }

    fn find<T>(&self, look: impl Fn(&Scope) -> Option<T>) -> Option<T> {
        let mut scope = Some(self.scope);
        while let Some(s) = scope {
            if let Some(found) = look(&self.scopes[s]) {
                return Some(found);
            }
            scope = self.scopes[s].parent;
        }
        None
    }

    /// Resolves a name, giving a declared register its index on first use.
    fn resolve(&mut self, name: &str) -> Option<Symbol> {
        let mut scope = Some(self.scope);
        while let Some(s) = scope {
            if let Some(symbol) = self.scopes[s].symbols.get(name) {
                return Some(*symbol);
            }
            let declared = self.scopes[s].singles.get(name).copied();
            if let Some(ty) = declared.or_else(|| self.scopes[s].in_range(name)) {
                let symbol = Symbol::Register(self.register(name, ty), ty);
                self.scopes[s].symbols.insert(name.to_owned(), symbol);
                return Some(symbol);
            }
            scope = self.scopes[s].parent;
        }
        if let Some(offset) = self.shared.get(name) {
            return Some(Symbol::Shared(*offset));
        }
        self.globals.get(name).map(|a| Symbol::Global(*a))
    }

    fn label(&self, name: &str) -> Option<u32> {
        self.find(|s| s.labels.get(name).copied())
    }

    fn table(&self, name: &str) -> Option<Vec<String>> {
        self.find(|s| s.tables.get(name).cloned())
    }
}

/// Copies that hand values over a call.
fn call_copy(from: CallValue, to: FormalSlot) -> Option<CallCopy> {
    match (from, to) {
        (CallValue::Bytes(at, len), FormalSlot::Bytes { at: to, len: to_len }) if len == to_len => {
            Some(CallCopy::Bytes { from: at, to, len })
        }
        (CallValue::Source(from), FormalSlot::Register(to)) => Some(CallCopy::Value { from, to }),
        _ => None,
    }
}

/// An actual argument or the receiver of a return value.
#[derive(Clone, Copy)]
enum CallValue {
    Bytes(u32, u32),
    Source(Src),
}
