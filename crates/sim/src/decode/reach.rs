//! Which functions an entry reaches, by name and through pointers.

use super::{RUNTIME, Result, fail};
use crate::text::ast::*;
use std::collections::{HashMap, HashSet};

/// Longest chain of calls by name.
const MAX_CALL_DEPTH: usize = 128;

/// Functions with a body, by name.
pub(super) fn definitions(module: &ModuleAst) -> HashMap<&str, &Function> {
    module.functions.iter().filter(|f| f.body.is_some()).map(|f| (f.name.as_str(), f)).collect()
}

/// Whether a `call` goes through a pointer: it then names a prototype, or a list of targets, last.
pub(super) fn through_pointer(i: &Instruction) -> bool {
    let names = i.operands.iter().filter(|o| matches!(o, Operand::Name(_))).count();
    i.opcode[0] == "call" && names > 1
}

/// The function that a `call` names.
fn callee(i: &Instruction) -> Option<&str> {
    if i.opcode[0] != "call" || through_pointer(i) {
        return None;
    }
    i.operands.iter().find_map(|o| if let Operand::Name(n) = o { Some(n.as_str()) } else { None })
}

fn instructions(f: &Function) -> impl Iterator<Item = &Instruction> {
    f.body.iter().flatten().filter_map(|s| match s {
        Statement::Instruction(i) => Some(i),
        _ => None,
    })
}

/// What has been seen of a function while the calls of an entry are followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    Open,
    Done,
}

/// The functions of a module, while those that an entry reaches are looked for.
struct Search<'a> {
    defined: &'a HashMap<&'a str, &'a Function>,
    state: HashMap<&'a str, Visit>,
    /// Every function behind those that it calls by name.
    found: Vec<&'a Function>,
}

impl<'a> Search<'a> {
    fn visit(&mut self, f: &'a Function, depth: usize) -> Result<()> {
        match self.state.get(f.name.as_str()) {
            Some(Visit::Open) => {
                return fail(f.at, format!("`{}` calls itself: recursion is not supported", f.name));
            }
            Some(Visit::Done) => return Ok(()),
            None => {}
        }
        if depth > MAX_CALL_DEPTH {
            return fail(f.at, format!("calls are nested deeper than {MAX_CALL_DEPTH} functions"));
        }
        self.state.insert(&f.name, Visit::Open);
        for i in instructions(f) {
            let Some(name) = callee(i).filter(|n| !RUNTIME.contains(n)) else { continue };
            let Some(target) = self.defined.get(name) else {
                return fail(
                    i.at,
                    format!("`call` of `{name}`, which this module does not define as a function"),
                );
            };
            self.visit(target, depth + 1)?;
        }
        self.state.insert(&f.name, Visit::Done);
        self.found.push(f);
        Ok(())
    }

    /// Adds the functions that a pointer may point to: those that variables and the code found so far name.
    fn visit_pointers(&mut self, module: &'a ModuleAst) -> Result<()> {
        let tables = || module.variables.iter().flat_map(|v| &v.references).map(|r| r.name.as_str());
        loop {
            if !self.found.iter().copied().flat_map(instructions).any(through_pointer) {
                return Ok(());
            }
            let mut named = tables().collect();
            self.found.iter().for_each(|f| collect_names(f, &mut named));
            let new = |f: &&&Function| {
                !f.entry && named.contains(f.name.as_str()) && !self.state.contains_key(f.name.as_str())
            };
            let mut new: Vec<&'a Function> = self.defined.values().filter(new).copied().collect();
            if new.is_empty() {
                return Ok(());
            }
            new.sort_by_key(|f| (f.at.line, f.at.column));
            for f in new {
                self.visit(f, 0)?;
            }
        }
    }
}

/// The entry and the functions that it reaches; the entry comes first and runs from instruction zero.
pub(super) fn reachable<'a>(
    module: &'a ModuleAst,
    defined: &'a HashMap<&'a str, &'a Function>,
    entry: &'a Function,
) -> Result<Vec<&'a Function>> {
    let mut search = Search { defined, state: HashMap::new(), found: Vec::new() };
    search.visit(entry, 0)?;
    let by_name = search.found.len();
    search.visit_pointers(module)?;
    search.found[..by_name].reverse();
    Ok(search.found)
}

/// Adds the names in the code of a function.
pub(super) fn collect_names<'a>(f: &'a Function, used: &mut HashSet<&'a str>) {
    fn walk<'a>(o: &'a Operand, used: &mut HashSet<&'a str>) {
        match o {
            Operand::Name(n) | Operand::Offset(n, _) => {
                used.insert(n);
            }
            Operand::Not(x) => walk(x, used),
            Operand::Vector(v) | Operand::List(v) => v.iter().for_each(|x| walk(x, used)),
            Operand::Address(b, _, c) => {
                walk(b, used);
                if let Some(c) = c {
                    walk(c, used);
                }
            }
            Operand::Pair(a, b) => {
                walk(a, used);
                walk(b, used);
            }
            _ => {}
        }
    }
    for s in f.body.iter().flatten() {
        if let Statement::Instruction(i) = s {
            i.operands.iter().for_each(|o| walk(o, used));
        }
    }
}
