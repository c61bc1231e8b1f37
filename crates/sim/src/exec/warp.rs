//! Warp: registers of 32 lanes, the groups of lanes that run together, and its asynchronous units.
//!
//! Lanes that are at the same place form a [`Group`]. A branch splits a group; groups that meet at the
//! same instruction (with the same call stack) merge again. The group that is furthest behind runs first,
//! so that lanes of structured code reconverge at the earliest place; a group that waits lets the others
//! go on, so that one lane may spin while the rest works. An instruction that needs lanes together
//! (`.sync` with a member mask, `.aligned`) waits until they are.

use super::convergence::Convergence;
use crate::decode::isa::{Reg, Src};
use crate::decode::special::Special;
use crate::lanes::{LANES, Row, lanes};
use crate::units::copy::{CopyGroups, LaneCopies};
use crate::units::wgmma::WgmmaState;
use std::collections::BTreeMap;

/// What a group waits for.
#[derive(Clone, Debug)]
pub(crate) enum Wait {
    /// These lanes to come to the same instruction.
    Converge(u32),
    /// A named barrier to pass this generation; then the instruction is done.
    Bar { id: usize, generation: u64 },
    /// The same, with the instruction run once more to take its result.
    BarRetry { id: usize, generation: u64 },
    /// The cluster barrier's phase.
    Cluster,
    /// One of these mbarrier phases.
    Mbar(Vec<MbarWait>),
    /// This many `wgmma` groups to be complete.
    Wgmma(u32),
    /// These asynchronous copies to be complete (or, with `true`, to have read their source).
    Copies(Vec<u64>, bool),
    /// This many registers to be released.
    Registers(u32),
    /// An allocation of this many columns of tensor memory, for a pair of CTAs or one.
    TensorColumns(u32, bool),
}

/// One phase that a lane waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MbarWait {
    pub(crate) cta: usize,
    pub(crate) offset: u32,
    pub(crate) phase: PhaseWait,
}

/// A phase by parity or token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PhaseWait {
    Parity(u32),
    Token(u64),
}

/// Lanes at the same place.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) pc: u32,
    pub(crate) mask: u32,
    pub(crate) wait: Option<Wait>,
    /// A blocking wait that gave up: its instruction runs once more without blocking.
    pub(crate) timed_out: bool,
    /// Return addresses.
    pub(crate) stack: Vec<u32>,
}

/// The coordinates of a warp, for special registers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Env {
    pub(crate) ntid: [u32; 3],
    pub(crate) ctaid: [u32; 3],
    pub(crate) nctaid: [u32; 3],
    pub(crate) cluster: [u32; 3],
    pub(crate) explicit: bool,
    pub(crate) rank: u32,
    pub(crate) warp: u32,
    pub(crate) warps: u32,
    pub(crate) cta_index: u32,
    pub(crate) dynamic_shared: u32,
    pub(crate) total_shared: u32,
}

/// A warp.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warp {
    /// Index in the cluster.
    pub(crate) index: u32,
    pub(crate) env: Env,
    pub(crate) regs: Vec<u64>,
    /// Per register: lanes in which it was written.
    pub(crate) written: Vec<u32>,
    /// Registers that were loaded from memory that nothing wrote, and by which instruction.
    pub(crate) undefined: BTreeMap<Reg, u32>,
    pub(crate) groups: Vec<Group>,
    /// Which lanes have diverged, with nothing since that waited for them.
    pub(crate) convergence: Convergence,
    pub(crate) valid: u32,
    pub(crate) exited: u32,
    pub(crate) local: Vec<u8>,
    pub(crate) local_bytes: usize,
    pub(crate) carry: u32,
    pub(crate) wgmma: WgmmaState,
    pub(crate) bulk: BTreeMap<u32, CopyGroups>,
    pub(crate) cp_async: LaneCopies,
    /// The line of the last instruction that belongs to a role, while a timeline is recorded.
    pub(crate) role_line: u32,
    /// The instruction at which lanes last left.
    pub(crate) left_at: u32,
    /// Instructions executed.
    pub(crate) clock: u64,
    /// Instructions since the whole warp was last one group.
    pub(crate) diverged_for: u64,
    /// The generation of the `bar.red` that this warp has arrived at.
    pub(crate) bar_red: Option<u64>,
    /// Cluster barrier phases that each lane has arrived in.
    pub(crate) cluster_arrivals: Vec<u32>,
    /// Those of them that each lane has waited for.
    pub(crate) cluster_waits: Vec<u32>,
    /// The `setmaxnreg` that the warp has executed, and their numbers.
    pub(crate) register_changes: Vec<(u32, u32)>,
    /// The instruction at which the warp has seen that a claim on a cluster failed.
    pub(crate) claim_failed: Option<u32>,
    /// The global address that it has last looked at with a strong load or atomic, and what it found.
    pub(crate) polled: Option<(u64, u64)>,
    /// Registers of a thread; none until `setmaxnreg` names a number.
    pub(crate) registers: Option<u32>,
}

impl Warp {
    pub(crate) fn new(index: u32, env: Env, registers: usize, valid: u32, local_bytes: usize) -> Warp {
        Warp {
            index,
            env,
            regs: vec![0; registers * LANES],
            written: vec![0; registers],
            groups: vec![Group { pc: 0, mask: valid, wait: None, timed_out: false, stack: Vec::new() }],
            valid,
            exited: !valid,
            local: vec![0; local_bytes * LANES],
            local_bytes,
            wgmma: WgmmaState::new(registers),
            cluster_arrivals: vec![0; LANES],
            cluster_waits: vec![0; LANES],
            registers: None,
            ..Warp::default()
        }
    }

    pub(crate) fn done(&self) -> bool {
        self.groups.is_empty()
    }

    pub(crate) fn get(&self, r: Reg, lane: usize) -> u64 {
        self.regs[r.index() * LANES + lane]
    }

    pub(crate) fn set(&mut self, r: Reg, lane: usize, value: u64) {
        self.regs[r.index() * LANES + lane] = value;
    }

    /// The value of an operand in one lane.
    pub(crate) fn value(&self, s: Src, lane: usize) -> u64 {
        match s {
            Src::Reg(r) => self.get(r, lane),
            Src::Imm(v) => v,
            Src::Not(r) => !self.get(r, lane) & 1,
            Src::Shared(offset) => u64::from(self.env.rank << 24 | offset),
            Src::Special(s) => self.special(s, lane),
        }
    }

    /// The value of an operand in every lane.
    pub(crate) fn all(&self, s: Src) -> Row {
        match s {
            Src::Reg(r) => {
                let mut row = [0; LANES];
                row.copy_from_slice(&self.regs[r.index() * LANES..][..LANES]);
                row
            }
            Src::Imm(v) => [v; LANES],
            s => std::array::from_fn(|l| self.value(s, l)),
        }
    }

    /// The values of operands in every lane.
    pub(crate) fn rows(&self, list: &[Src]) -> Vec<Row> {
        list.iter().map(|s| self.all(*s)).collect()
    }

    /// The values of registers in every lane.
    pub(crate) fn register_rows(&self, list: &[Reg]) -> impl Iterator<Item = Row> {
        list.iter().map(|r| self.all(Src::Reg(*r)))
    }

    /// Writes registers in every lane.
    pub(crate) fn set_rows(&mut self, list: &[Reg], rows: impl IntoIterator<Item = Row>) {
        list.iter().zip(rows).for_each(|(r, row)| self.row_mut(*r).copy_from_slice(&row));
    }

    /// A register in every lane.
    pub(crate) fn row_mut(&mut self, r: Reg) -> &mut [u64] {
        &mut self.regs[r.index() * LANES..][..LANES]
    }

    /// The value of an operand that is the same in every active lane, if it is.
    pub(crate) fn uniform(&self, s: Src, active: u32) -> Option<u64> {
        let mut all = lanes(active).map(|l| self.value(s, l));
        let first = all.next()?;
        all.all(|v| v == first).then_some(first)
    }

    fn special(&self, s: Special, lane: usize) -> u64 {
        let e = &self.env;
        let component = |v: [u32; 3], i: u8| v[i as usize];
        let thread = e.warp * LANES as u32 + lane as u32;
        let lane = lane as u32;
        let below = (1u64 << lane) as u32 - 1;
        u64::from(match s {
            Special::Tid(0) => thread % e.ntid[0],
            Special::Tid(1) => thread / e.ntid[0] % e.ntid[1],
            Special::Tid(_) => thread / e.ntid[0] / e.ntid[1],
            Special::Ntid(i) => component(e.ntid, i),
            Special::Ctaid(i) => component(e.ctaid, i),
            Special::Nctaid(i) => component(e.nctaid, i),
            Special::ClusterId(i) => component(e.ctaid, i) / component(e.cluster, i),
            Special::NclusterId(i) => component(e.nctaid, i) / component(e.cluster, i),
            Special::ClusterCtaid(i) => component(e.ctaid, i) % component(e.cluster, i),
            Special::ClusterNctaid(i) => component(e.cluster, i),
            Special::ClusterCtarank => e.rank,
            Special::ClusterNctarank => e.cluster.iter().product(),
            Special::IsExplicitCluster => u32::from(e.explicit),
            Special::LaneId => lane,
            Special::WarpId => e.warp,
            Special::NwarpId => e.warps,
            Special::SmId => e.cta_index % 132,
            Special::NsmId => 132,
            Special::GridId | Special::Zero => 0,
            Special::LanemaskEq => 1 << lane,
            Special::LanemaskLt => below,
            Special::LanemaskLe => below | 1 << lane,
            Special::LanemaskGt => !(below | 1 << lane),
            Special::LanemaskGe => !below,
            Special::Clock => return self.clock,
            Special::ClockHigh => (self.clock >> 32) as u32,
            Special::ReservedEnd => crate::decode::SHARED_BASE,
            Special::DynamicSmemSize => e.dynamic_shared,
            Special::TotalSmemSize => e.total_shared,
        })
    }

    /// Merges groups that stand at the same place.
    pub(crate) fn merge(&mut self) {
        let mut i = 0;
        while i < self.groups.len() {
            let mut j = i + 1;
            while j < self.groups.len() {
                let (a, b) = (&self.groups[i], &self.groups[j]);
                let free = |g: &Group| matches!(g.wait, None | Some(Wait::Converge(_))) && !g.timed_out;
                if a.pc == b.pc && free(a) && free(b) && a.stack == b.stack {
                    let b = self.groups.swap_remove(j);
                    self.groups[i].mask |= b.mask;
                    self.groups[i].wait = None;
                } else {
                    j += 1;
                }
            }
            i += 1;
        }
    }
}
