//! Loops that never end: a warp that comes back to the same registers while nothing happens in the grid.

use super::{Grid, Shared};
use crate::decode::isa::Op;
use crate::error::{Fault, FaultKind};
use crate::exec::cluster::Cluster;
use crate::exec::warp::Warp;
use crate::exec::{self, WarpStatus};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Instructions without effect on anything else after which loops are looked for.
pub(super) const LOOK_AFTER: u64 = 500_000;
/// Instructions of the longest loop that is looked for.
const LONGEST: usize = 20_000;

/// A warp that is in a loop for good.
struct Loop {
    cluster: usize,
    warp: usize,
    /// Its instructions.
    code: BTreeSet<u32>,
}

/// What a warp does next follows from this and from memory.
#[derive(PartialEq)]
struct WarpState {
    /// Of each group: program counter, lanes and depth of calls.
    groups: Vec<(u32, u32, usize)>,
    registers: Vec<u64>,
    local: Vec<u8>,
    carry: u32,
}

impl WarpState {
    fn of(warp: &Warp) -> WarpState {
        WarpState {
            groups: warp.groups.iter().map(|g| (g.pc, g.mask, g.stack.len())).collect(),
            registers: warp.regs.clone(),
            local: warp.local.clone(),
            carry: warp.carry,
        }
    }
}

impl Grid {
    /// The fault of a grid in which nothing has happened for long, where that follows from a loop: one that reads no
    /// memory, or loops of all warps that can run where no other grid changes memory (`alone`).
    pub(super) fn endless(
        &mut self,
        live: &mut [Cluster],
        shared: &mut Shared<'_>,
        alone: bool,
    ) -> Result<Option<Fault>, Fault> {
        let (mut loops, mut others) = (Vec::new(), !alone);
        for (index, cluster) in live.iter_mut().enumerate() {
            for w in 0..cluster.warps.len() {
                if cluster.warps[w].groups.iter().all(|group| group.wait.is_some()) {
                    continue;
                }
                match self.walk(cluster, w, shared)? {
                    Some(code) => loops.push(Loop { cluster: index, warp: w, code }),
                    None => others = true,
                }
                if others && loops.is_empty() && w > 64 {
                    return Ok(None);
                }
            }
        }
        let kernel = &self.kernel;
        let reads = |l: &Loop| {
            l.code.iter().any(|pc| !matches!(kernel.code[*pc as usize].op, Op::Scalar(_) | Op::Control(_)))
        };
        let found = loops.iter().position(|l| !reads(l)).or((!others && !loops.is_empty()).then_some(0));
        let found = found.map(|i| (i, reads(&loops[i])));
        Ok(found.map(|(i, reads)| self.describe_loop(&loops[i], live, shared, reads)))
    }

    /// Steps a warp until it is where it was, with the same registers: the instructions in between. None if that does
    /// not happen, or if it waits, polls or does something on the way.
    fn walk(
        &mut self,
        cluster: &mut Cluster,
        w: usize,
        shared: &mut Shared<'_>,
    ) -> Result<Option<BTreeSet<u32>>, Fault> {
        let mut warp = std::mem::take(&mut cluster.warps[w]);
        let before = (self.progress, self.polls);
        let start = WarpState::of(&warp);
        let first = (warp.groups[0].pc, warp.groups[0].mask);
        let mut code = BTreeSet::new();
        let mut found = Ok(None);
        for _ in 0..LONGEST {
            code.extend(warp.groups.iter().filter(|group| group.wait.is_none()).map(|group| group.pc));
            let turn = exec::run(&mut warp, &mut self.cx(cluster, shared), 1);
            match turn {
                Ok(WarpStatus::Ran) => {}
                Ok(_) => break,
                Err(fault) => {
                    found = Err(fault);
                    break;
                }
            }
            if (self.progress, self.polls) != before {
                break;
            }
            if warp.groups.first().map(|g| (g.pc, g.mask)) == Some(first) && WarpState::of(&warp) == start {
                found = Ok(Some(code));
                break;
            }
        }
        cluster.warps[w] = warp;
        found
    }

    fn describe_loop(
        &mut self,
        found: &Loop,
        live: &mut [Cluster],
        shared: &mut Shared<'_>,
        reads: bool,
    ) -> Fault {
        let kernel = &Arc::clone(&self.kernel);
        let lines: BTreeSet<u32> = found.code.iter().map(|pc| kernel.code[*pc as usize].line).collect();
        let (from, to) = (lines.first().copied().unwrap_or(0), lines.last().copied().unwrap_or(0));
        let why = match reads {
            true => ", and nothing that runs changes the memory that it reads",
            false => "",
        };
        let lines = if from == to { format!("line {from}") } else { format!("lines {from} to {to}") };
        let message = format!("a loop never ends: {lines} of the PTX repeat with the same registers{why}");
        let mut fault = Fault::new(FaultKind::EndlessLoop, message);
        let cx = self.cx(&mut live[found.cluster], shared);
        let last = found.code.last().copied().unwrap_or(0);
        fault.at = Some(Box::new(cx.place(found.warp as u32, last)));
        let name = |r: &crate::decode::isa::Reg| kernel.registers[r.index()].clone();
        let written: BTreeSet<String> =
            found.code.iter().flat_map(|pc| kernel.code[*pc as usize].uses.writes.iter().map(name)).collect();
        let mut branches = 0;
        for pc in &found.code {
            let inst = &kernel.code[*pc as usize];
            let (Op::Control(_), Some((guard, negated))) = (&inst.op, inst.guard) else { continue };
            branches += 1;
            let guard = name(&guard);
            let changed = if written.contains(&guard) { "is set in it" } else { "is not set in it" };
            let not = if negated { "!" } else { "" };
            let opcode = &kernel.opcodes[*pc as usize];
            fault.notes.push(format!("`@{not}{guard} {opcode}` at line {}: `{guard}` {changed}", inst.line));
        }
        if branches == 0 {
            fault.notes.push("it has no branch that could leave it".to_owned());
        }
        let read: BTreeSet<String> =
            found.code.iter().flat_map(|pc| kernel.code[*pc as usize].uses.reads.iter().map(name)).collect();
        let constant: Vec<String> = read.difference(&written).take(8).map(|r| format!("`{r}`")).collect();
        if !constant.is_empty() {
            fault.notes.push(format!("it reads and never writes {}", constant.join(", ")));
        }
        fault
    }
}
