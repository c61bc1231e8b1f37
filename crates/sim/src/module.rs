//! Modules: PTX text, parsed and decoded.

use crate::decode::{self, Kernel};
use crate::error::{ParseError, Position};
use crate::memory::{FUNCTION_WINDOW, MODULE_WINDOW};
use crate::target::Target;
use crate::text::ast::{ModuleAst, Space, Variable};
use crate::text::names::Names;
use crate::text::scan::Parser;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most instructions of a module's entries together, each with the functions that it calls.
const MAX_INSTRUCTIONS: usize = 1 << 21;
/// Address space of the variables of one module.
const MODULE_BYTES: u64 = 1 << 26;

/// A PTX module, parsed and decoded.
#[derive(Debug)]
pub struct Module {
    pub(crate) kernels: BTreeMap<String, Arc<Kernel>>,
    pub(crate) variables: Vec<(String, u64, usize, Option<Vec<u8>>)>,
    /// The `.target` of the text.
    target: Target,
}

impl Module {
    /// Reads PTX text. Errors name the line and column: text that is not PTX, a name that is not
    /// declared, an instruction that the simulator does not have.
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        let ast = Parser::new(text).module()?;
        expect_one_definition(&ast)?;
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
            kernels.insert(f.name.clone(), Arc::new(kernel));
        }
        Ok(Module { kernels, variables, target: ast.target })
    }

    /// Names of the entries.
    pub fn entries(&self) -> impl Iterator<Item = &str> {
        self.kernels.keys().map(String::as_str)
    }

    /// The `.target` of the module.
    pub fn target(&self) -> Target {
        self.target
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

/// Refuses a name that is defined twice at module scope. Declarations may be repeated.
fn expect_one_definition(ast: &ModuleAst) -> Result<(), ParseError> {
    let mut defined = HashSet::new();
    let functions = ast.functions.iter().filter(|f| f.body.is_some()).map(|f| (&f.name, f.at, "function"));
    let variables = ast.variables.iter().filter(|v| !v.external).map(|v| (&v.name, v.at, "variable"));
    let mut all: Vec<_> = functions.chain(variables).collect();
    all.sort_by_key(|(_, at, _)| (at.line, at.column));
    for (name, at, what) in all {
        if !defined.insert(name) {
            return decode::fail(at, format!("{what} `{name}`: the name is defined twice"));
        }
    }
    Ok(())
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
