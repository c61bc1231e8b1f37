//! One warp: registers of 32 lanes, the groups of lanes that run together, and its asynchronous units.
//!
//! Lanes that are at the same place form a [`Group`]. A branch splits a group; groups that meet at the
//! same instruction (with the same call stack) merge again. The group that is furthest behind runs first,
//! so that lanes of structured code reconverge at the earliest place; a group that waits lets the others
//! go on, so that one lane may spin while the rest works. An instruction that needs lanes together
//! (`.sync` with a member mask, `.aligned`) waits until they are.

use crate::exec::convergence::Convergence;
use crate::decode::isa::{Reg, Src};
use crate::decode::special::Special;
use std::collections::{BTreeMap, VecDeque};

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

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
    /// This many registers to be given back.
    Registers(u32),
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

/// A `wgmma` that was issued and not executed.
#[derive(Clone, Debug)]
pub(crate) struct WgmmaOp {
    pub(crate) pc: u32,
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) accumulate: bool,
    /// The group that will commit it.
    pub(crate) group: u32,
    /// When it was issued.
    pub(crate) start: u64,
}

/// The warp's share of its warpgroup's `wgmma` unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct WgmmaState {
    pub(crate) queue: VecDeque<WgmmaOp>,
    pub(crate) committed: u32,
    /// Operations issued since the last commit.
    pub(crate) open: u32,
    /// Operations issued up to each commit.
    pub(crate) commits: Vec<u64>,
    /// The instruction of the newest operation.
    pub(crate) last_pc: u32,
    /// All operations issued: the four warps of a warpgroup must agree.
    pub(crate) issued: u64,
    /// Groups known to be complete through a wait.
    pub(crate) waited: u32,
    /// Number of fences so far.
    pub(crate) fences: u32,
    /// Per register: the group that still uses it (0: none), and whether it is being written.
    pub(crate) busy: Vec<(u32, bool)>,
    /// Per register: fences executed when it was last touched, plus one (0 for never), and by which instruction.
    pub(crate) touched: Vec<(u32, u32)>,
}

/// Groups of asynchronous bulk copies of one lane.
#[derive(Clone, Debug, Default)]
pub(crate) struct CopyGroups {
    pub(crate) open: Vec<u64>,
    pub(crate) groups: VecDeque<Vec<u64>>,
    /// The hazard tick of the newest copy.
    pub(crate) newest: u32,
    /// Groups, from the front, that are known to have read their sources.
    pub(crate) read: usize,
    /// The instruction of the newest copy.
    pub(crate) last_pc: u32,
    /// Ticks at each commit, in step with `groups`.
    pub(crate) ticks: VecDeque<u32>,
}

/// The `cp.async` of a warp. Groups are a thread's own: lanes that have done the same share them.
#[derive(Clone, Debug)]
pub(crate) struct LaneCopies {
    parts: Vec<(u32, LaneGroups)>,
    /// The hazard tick of the newest copy.
    pub(crate) newest: u32,
    /// The instruction of the newest copy.
    pub(crate) last_pc: u32,
}

/// The copies of some lanes.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaneGroups {
    /// Copies that no group has.
    pub(crate) open: Vec<u64>,
    /// Groups that were not waited for, each with the newest tick at its commit.
    pub(crate) groups: VecDeque<(u32, Vec<u64>)>,
    /// The newest copy for which an mbarrier has an arrival coming.
    pub(crate) tracked: u64,
}

impl LaneGroups {
    /// All copies that were not waited for.
    pub(crate) fn all(&self) -> impl Iterator<Item = u64> {
        self.groups.iter().flat_map(|group| &group.1).chain(&self.open).copied()
    }
}

impl Default for LaneCopies {
    fn default() -> LaneCopies {
        LaneCopies { parts: vec![(u32::MAX, LaneGroups::default())], newest: 0, last_pc: 0 }
    }
}

impl LaneCopies {
    /// The groups of these lanes, with the lanes that share each.
    pub(crate) fn of(&mut self, lanes: u32) -> impl Iterator<Item = &mut (u32, LaneGroups)> {
        for i in 0..self.parts.len() {
            let (all, inside) = (self.parts[i].0, self.parts[i].0 & lanes);
            if inside != 0 && inside != all {
                let groups = self.parts[i].1.clone();
                self.parts[i].0 = inside;
                self.parts.push((all & !lanes, groups));
            }
        }
        self.parts.iter_mut().filter(move |part| part.0 & lanes != 0)
    }

    /// Lanes that have nothing left to wait for are alike again.
    pub(crate) fn merge(&mut self) {
        let idle = |part: &(u32, LaneGroups)| part.1.open.is_empty() && part.1.groups.is_empty();
        let lanes = self.parts.iter().filter(|part| idle(part)).fold(0, |lanes, part| lanes | part.0);
        if lanes != 0 {
            self.parts.retain(|part| !idle(part));
            self.parts.push((lanes, LaneGroups::default()));
        }
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = &LaneGroups> {
        self.parts.iter().map(|part| &part.1)
    }
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
    /// Which lanes a branch has parted, with nothing since that waited for them.
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
    /// Instructions since the lanes were last all together.
    pub(crate) apart: u64,
    /// The generation of the `bar.red` that this warp has arrived at.
    pub(crate) bar_red: Option<u64>,
    /// Cluster barrier phases that each lane has arrived in.
    pub(crate) cluster_arrivals: Vec<u32>,
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
            wgmma: WgmmaState {
                busy: vec![(0, false); registers],
                touched: vec![(0, 0); registers],
                ..WgmmaState::default()
            },
            cluster_arrivals: vec![0; LANES],
            registers: None,
            ..Warp::default()
        }
    }

    pub(crate) fn done(&self) -> bool {
        self.groups.is_empty()
    }

    pub(crate) fn get(&self, r: Reg, lane: usize) -> u64 {
        self.regs[r as usize * LANES + lane]
    }

    pub(crate) fn set(&mut self, r: Reg, lane: usize, value: u64) {
        self.regs[r as usize * LANES + lane] = value;
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
    pub(crate) fn all(&self, s: Src) -> [u64; LANES] {
        match s {
            Src::Reg(r) => {
                let mut row = [0; LANES];
                row.copy_from_slice(&self.regs[r as usize * LANES..][..LANES]);
                row
            }
            Src::Imm(v) => [v; LANES],
            s => std::array::from_fn(|l| self.value(s, l)),
        }
    }

    /// A register in every lane.
    pub(crate) fn row_mut(&mut self, r: Reg) -> &mut [u64] {
        &mut self.regs[r as usize * LANES..][..LANES]
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

/// The lanes of a mask.
pub(crate) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = rest.trailing_zeros();
        rest &= rest - 1;
        Some(lane as usize)
    })
}
