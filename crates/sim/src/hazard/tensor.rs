//! The shadow of tensor memory: who touched each word last, and what orders the next access after it.
//!
//! A cell is one column of sixteen lanes, with the lanes of the last write and of the reads since. Accesses of
//! `tcgen05.ld` and `tcgen05.st` are over when their warp has waited for them (`tcgen05.wait`); `mma`, `cp` and
//! `shift` when a commit that their thread issued later has completed a phase that somebody waits for. Both are
//! ticks of agents, as for other asynchronous units, so a missing wait is found under every schedule.
//!
//! Some pairs of `mma`, `cp` and `shift` are executed in the order of their issue ([`Pipe`]): then only the issue of
//! the second must come after that of the first, in one warp by program order, between warps through
//! `tcgen05.fence::before_thread_sync`, a synchronization and `tcgen05.fence::after_thread_sync`.

use super::shadow::compact;
use super::view::{get, join};
use super::{Hazards, Scope, View};
use std::collections::HashMap;

/// Lanes of a cell.
const CELL_LANES: u32 = 16;
/// Cells of a column.
const CELLS: usize = 8;
/// Columns of tensor memory.
const COLUMNS: usize = 512;
/// Events and read sets are compacted when they pass this number.
const COMPACT_AT: usize = 1 << 17;

/// Work of the tensor core, as far as its order goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pipe {
    /// MMAs with the same address, shape and kind of accumulator have the same form.
    Mma {
        form: u64,
    },
    /// `tcgen05.cp`; one of four rows may follow a shift.
    Copy {
        rows4: bool,
    },
    Shift,
}

/// An access to tensor memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorEvent {
    /// When it is complete.
    agent: u32,
    tick: u32,
    /// Issuing warp (index in the cluster), lane and instruction.
    pub(crate) warp: u32,
    lane: u8,
    pub(crate) pc: u32,
    pipe: Option<Pipe>,
    /// When it was issued: agent and tick of the thread.
    issued: (u32, u32),
    /// The agent and number that `tcgen05.fence::before_thread_sync` raises behind it.
    fenced: (u32, u32),
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorAccess {
    Read,
    /// Reads and writes an accumulator.
    Accumulate,
    Write,
}

/// What is missing between two accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorMissing {
    /// Anything that says that the earlier one is over.
    Completion,
    /// The fences beside the synchronization of two warps, where only the issue of the earlier one is known.
    Fence,
    /// The same where it is known to be over: the manual asks for them, and compilers leave them out.
    Unfenced,
}

/// An access that is not ordered after an earlier one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorConflict {
    pub(crate) earlier: TensorEvent,
    pub(crate) earlier_writes: bool,
    pub(crate) missing: TensorMissing,
    pub(crate) column: u32,
    /// The first lane of the cell that both touch.
    pub(crate) lane: u32,
}

#[derive(Clone, Copy, Default)]
struct Cell {
    /// Last write, as an index into the events; zero for none.
    write: u32,
    /// Reads since then, as an index into the read sets; zero for none.
    reads: u32,
    write_lanes: u16,
    read_lanes: u16,
}

/// A thread that issues work for the tensor core.
#[derive(Clone, Copy, Debug)]
struct Issuer {
    /// The agent of its work; ticks count commits.
    agent: u32,
    commits: u32,
    /// The agent of its fences; ticks count pieces of work.
    fence: u32,
    issued: u32,
    /// The tick of the last work, and its instruction.
    last: (u32, u32),
}

/// The loads or stores of a warp: agents of them and of fences behind their waits, waits so far, and the instruction
/// of the newest that no wait covers.
#[derive(Clone, Copy, Debug)]
struct Moves {
    agent: u32,
    fence: u32,
    waits: u32,
    open: Option<u32>,
}

/// The shadow of a cluster's tensor memory.
#[derive(Default)]
pub(crate) struct TensorShadow {
    cells: Vec<Vec<Cell>>,
    events: Vec<TensorEvent>,
    sets: Vec<Vec<u32>>,
    issuers: HashMap<(u32, u8), Issuer>,
    moves: HashMap<(u32, bool), Moves>,
}

impl TensorShadow {
    fn new(ctas: usize) -> TensorShadow {
        let none = TensorEvent {
            agent: 0,
            tick: 0,
            warp: 0,
            lane: 0,
            pc: 0,
            pipe: None,
            issued: (0, 0),
            fenced: (0, 0),
        };
        TensorShadow {
            cells: vec![vec![Cell::default(); COLUMNS * CELLS]; ctas],
            events: vec![none],
            sets: vec![Vec::new()],
            ..TensorShadow::default()
        }
    }

    /// Drops events and read sets that no cell refers to.
    fn compact(&mut self) {
        if self.events.len() < COMPACT_AT && self.sets.len() < COMPACT_AT {
            return;
        }
        let cells = self.cells.iter_mut().flatten().map(|cell| (&mut cell.write, &mut cell.reads));
        compact(cells, &mut self.events, &mut self.sets);
    }
}

/// Whether two pieces of tensor-core work are executed in the order of their issue: the pairs of the manual, as
/// newer editions spell them out by operand. `e` names what the later one does with the words.
fn in_order(x: Pipe, x_writes: bool, e: Pipe, does: TensorAccess) -> bool {
    match (x, e) {
        // An accumulator after the same accumulator; an accumulator where earlier MMAs have read operands.
        (Pipe::Mma { form: a }, Pipe::Mma { form: b }) => match does {
            TensorAccess::Read => false,
            _ => !x_writes || a == b,
        },
        // Scales or A of earlier MMAs are copied over; their accumulators are not.
        (Pipe::Mma { .. }, Pipe::Copy { .. }) => !x_writes,
        (Pipe::Copy { .. } | Pipe::Shift, Pipe::Mma { .. }) | (Pipe::Mma { .. }, Pipe::Shift) => true,
        // No pair of the manual, but every block-scaled main loop copies scales over those of the stage before.
        (Pipe::Copy { .. }, Pipe::Copy { .. }) => true,
        (Pipe::Shift, Pipe::Copy { rows4 }) => rows4,
        (Pipe::Copy { .. } | Pipe::Shift, Pipe::Shift) => false,
    }
}

impl Hazards {
    fn tensor(&mut self) -> &mut TensorShadow {
        let ctas = self.exits.len();
        self.tensor.get_or_insert_with(|| Box::new(TensorShadow::new(ctas)))
    }

    fn issuer(&mut self, warp: u32, lane: u8) -> Issuer {
        if let Some(known) = self.tensor().issuers.get(&(warp, lane)) {
            return *known;
        }
        let (agent, fence) = (self.new_agent(), self.new_agent());
        let new = Issuer { agent, commits: 0, fence, issued: 0, last: (0, 0) };
        self.tensor().issuers.insert((warp, lane), new);
        new
    }

    /// A piece of work for the tensor core by one lane: its event there, and the agent and tick of its end.
    pub(crate) fn tensor_work(&mut self, warp: u32, lane: u8, pc: u32, pipe: Pipe) -> (u32, (u32, u32)) {
        let _ = self.selected(warp).count();
        let mut issuer = self.issuer(warp, lane);
        issuer.issued += 1;
        let tick = issuer.commits + 1;
        issuer.last = (tick, pc);
        let class = self.class(warp, lane);
        let issued = (class.agent, class.tick);
        let Issuer { agent, fence, issued: number, .. } = issuer;
        let t = self.tensor();
        t.issuers.insert((warp, lane), issuer);
        t.compact();
        let fenced = (fence, number);
        t.events.push(TensorEvent { agent, tick, warp, lane, pc, pipe: Some(pipe), issued, fenced });
        (t.events.len() as u32 - 1, (agent, tick))
    }

    /// A load or store of a warp: its event.
    pub(crate) fn tensor_move(&mut self, warp: u32, pc: u32, store: bool) -> u32 {
        let Moves { agent, fence, waits, .. } = self.moves(warp, store);
        let lane = self.lead;
        let t = self.tensor();
        if let Some(m) = t.moves.get_mut(&(warp, store)) {
            m.open = Some(pc);
        }
        t.compact();
        let tick = waits + 1;
        let (issued, fenced) = ((0, 0), (fence, tick));
        t.events.push(TensorEvent { agent, tick, warp, lane, pc, pipe: None, issued, fenced });
        t.events.len() as u32 - 1
    }

    fn moves(&mut self, warp: u32, store: bool) -> Moves {
        if let Some(m) = self.tensor().moves.get(&(warp, store)) {
            return *m;
        }
        let (agent, fence) = (self.new_agent(), self.new_agent());
        let new = Moves { agent, fence, waits: 0, open: None };
        self.tensor().moves.insert((warp, store), new);
        new
    }

    /// A warp has waited for its loads or its stores.
    pub(crate) fn tensor_wait(&mut self, warp: u32, store: bool) {
        let Moves { agent, waits, .. } = self.moves(warp, store);
        if let Some(m) = self.tensor().moves.get_mut(&(warp, store)) {
            (m.waits, m.open) = (waits + 1, None);
        }
        self.completed(warp, agent, waits + 1);
    }

    /// The access of a warp that was just recorded is over at once, as that of a synchronous instruction.
    pub(crate) fn tensor_moved(&mut self, warp: u32, store: bool) {
        if let Some(m) = self.tensor().moves.get_mut(&(warp, store)) {
            m.open = None;
        }
    }

    /// The instruction of a load or store that a warp has not waited for, and whether it is a store.
    pub(crate) fn tensor_moves_open(&self, warp: u32) -> Option<(u32, bool)> {
        let t = self.tensor.as_ref()?;
        [false, true].into_iter().find_map(|store| Some((t.moves.get(&(warp, store))?.open?, store)))
    }

    /// `tcgen05.fence` of the selected lanes: what they have issued is ordered before what they release from here
    /// on, or (`after`) what they have learned before what they issue. Relaxed operations count as well.
    pub(crate) fn tensor_fence(&mut self, warp: u32, after: bool) {
        let Some(t) = &self.tensor else { return };
        let issuers = t.issuers.values().flat_map(|i| [i.agent, i.fence]);
        let moves = t.moves.values().flat_map(|m| [m.agent, m.fence]);
        let agents: Vec<u32> = issuers.chain(moves).collect();
        let own = t.issuers.iter().filter(|i| i.0.0 == warp);
        let issued: Vec<(u8, u32, u32)> = own.map(|((_, lane), i)| (*lane, i.fence, i.issued)).collect();
        let waited = t.moves.iter().filter(|m| m.0.0 == warp);
        let waited: Vec<(u32, u32)> = waited.map(|(_, m)| (m.fence, m.waits)).collect();
        for c in self.selected(warp) {
            if after {
                for agent in &agents {
                    let observed = c.observed.iter().map(|(_, view)| get(&view.seen, *agent)).max();
                    c.now.raise(*agent, observed.unwrap_or(0));
                }
                join(&mut c.ordered, &c.now.seen);
                continue;
            }
            for (lane, fence, count) in &issued {
                if c.lanes >> lane & 1 == 1 {
                    c.now.raise(*fence, *count);
                }
            }
            waited.iter().for_each(|(fence, waits)| c.now.raise(*fence, *waits));
            for agent in &agents {
                let known = get(&c.now.seen, *agent);
                c.released.at(Scope::Cluster).raise(*agent, known);
            }
        }
    }

    /// A commit by one lane: what it releases, and the agents and ticks that are complete then.
    pub(crate) fn tensor_commit(&mut self, warp: u32, lane: u8) -> (View, Vec<(u32, u32)>) {
        let mut issuer = self.issuer(warp, lane);
        issuer.commits += 1;
        self.tensor().issuers.insert((warp, lane), issuer);
        let mut view = View::default();
        self.release(warp, true, Scope::Cluster, &mut view);
        (view, vec![(issuer.agent, issuer.commits), (issuer.fence, issuer.issued)])
    }

    /// Work of a CTA's threads that none of its warps has waited for when it exits: warp and instruction.
    pub(crate) fn tensor_unfinished(&self, cta: usize) -> Option<(u32, u32)> {
        let t = self.tensor.as_ref()?;
        let mut open: Vec<(u32, u32)> = t
            .issuers
            .iter()
            .filter(|((warp, _), _)| (*warp / self.warps_per_cta) as usize == cta)
            .filter(|(_, i)| i.last.0 > 0 && !self.exit_covers(cta, i.agent, i.last.0))
            .map(|((warp, _), i)| (*warp, i.last.1))
            .collect();
        open.sort_unstable();
        open.first().copied()
    }

    /// Checks and records an access to some columns of a CTA's tensor memory, in some lanes: what it is not ordered
    /// after, one conflict for each earlier access.
    pub(crate) fn tensor_access(
        &mut self,
        event: u32,
        cta: usize,
        columns: std::ops::Range<u32>,
        lanes: u128,
        does: TensorAccess,
    ) -> Vec<TensorConflict> {
        let mut shadow = self.tensor.take().unwrap_or_else(|| Box::new(TensorShadow::new(self.exits.len())));
        let conflicts = self.tensor_cells(&mut shadow, event, cta, columns, lanes, does);
        self.tensor = Some(shadow);
        conflicts
    }

    fn tensor_cells(
        &self,
        t: &mut TensorShadow,
        event: u32,
        cta: usize,
        columns: std::ops::Range<u32>,
        lanes: u128,
        does: TensorAccess,
    ) -> Vec<TensorConflict> {
        let writes = does != TensorAccess::Read;
        let parts: Vec<(usize, u16)> = (0..CELLS)
            .map(|i| (i, (lanes >> (i as u32 * CELL_LANES)) as u16))
            .filter(|part| part.1 != 0)
            .collect();
        let mut conflicts: Vec<(u32, TensorConflict)> = Vec::new();
        // What was looked at, and what reads became: neighbours mostly have the same.
        let (mut seen_write, mut seen_reads) = (0, 0);
        let (mut from, mut to) = (u32::MAX, 0);
        for column in columns {
            for &(part, mask) in &parts {
                let index = column as usize * CELLS + part;
                let mut cell = t.cells[cta][index];
                let mut check = |earlier: u32, earlier_writes: bool, common: u16| {
                    let Err(missing) = self.tensor_ordered(t, earlier, earlier_writes, event, does) else {
                        return;
                    };
                    if conflicts.iter().all(|c| c.0 != earlier) {
                        let lane = part as u32 * CELL_LANES + common.trailing_zeros();
                        let earlier_event = t.events[earlier as usize];
                        let conflict =
                            TensorConflict { earlier: earlier_event, earlier_writes, missing, column, lane };
                        conflicts.push((earlier, conflict));
                    }
                };
                // Who comes after reads of all these words comes after what those reads came after.
                let behind_reads = writes && cell.reads != 0 && mask & !cell.read_lanes == 0;
                let common = cell.write_lanes & mask;
                if cell.write != 0 && cell.write != seen_write && common != 0 && !behind_reads {
                    check(cell.write, true, common);
                    seen_write = cell.write;
                }
                if writes {
                    let common = cell.read_lanes & mask;
                    if cell.reads != 0 && cell.reads != seen_reads && common != 0 {
                        t.sets[cell.reads as usize].iter().for_each(|r| check(*r, false, common));
                        seen_reads = cell.reads;
                    }
                    cell = Cell { write: event, write_lanes: mask, reads: 0, read_lanes: 0 };
                } else {
                    if cell.reads == 0 {
                        cell.read_lanes = 0;
                    }
                    if cell.reads != from {
                        from = cell.reads;
                        to = self.tensor_extend(t, from, event);
                    }
                    cell.reads = to;
                    cell.read_lanes |= mask;
                }
                t.cells[cta][index] = cell;
            }
        }
        conflicts.into_iter().map(|c| c.1).collect()
    }

    /// Whether an earlier access is ordered before the event, or else what is missing.
    fn tensor_ordered(
        &self,
        t: &TensorShadow,
        earlier: u32,
        earlier_writes: bool,
        event: u32,
        does: TensorAccess,
    ) -> Result<(), TensorMissing> {
        let (x, e) = (&t.events[earlier as usize], &t.events[event as usize]);
        if earlier == event {
            return Ok(());
        }
        let class = self.class(e.warp, e.lane);
        let view = &class.now;
        let fenced = |(agent, tick): (u32, u32)| get(&class.ordered, agent) >= tick;
        if view.has(x.agent, x.tick) || !earlier_writes && view.is_past(x.agent, x.tick) {
            // A warp's own loads and stores need no fence behind their wait; a commit is a fence before.
            let own = x.warp == e.warp && (x.pipe.is_none() || e.pipe.is_some());
            let last = if x.pipe.is_some() { (x.agent, x.tick) } else { x.fenced };
            return if own || fenced(last) { Ok(()) } else { Err(TensorMissing::Unfenced) };
        }
        let (Some(first), Some(second)) = (x.pipe, e.pipe) else { return Err(TensorMissing::Completion) };
        if !in_order(first, earlier_writes, second, does) {
            return Err(TensorMissing::Completion);
        }
        if x.warp == e.warp {
            let known = x.lane == e.lane || x.issued.0 == class.agent || view.has(x.issued.0, x.issued.1);
            return if known { Ok(()) } else { Err(TensorMissing::Completion) };
        }
        if !view.has(x.issued.0, x.issued.1) {
            return Err(TensorMissing::Completion);
        }
        if fenced(x.fenced) { Ok(()) } else { Err(TensorMissing::Fence) }
    }

    fn tensor_extend(&self, t: &mut TensorShadow, set: u32, event: u32) -> u32 {
        let e = t.events[event as usize];
        let old = &t.sets[set as usize];
        if old.last() == Some(&event) {
            return set;
        }
        let view = &self.class(e.warp, e.lane).now;
        let mut new: Vec<u32> = old
            .iter()
            .copied()
            .filter(|r| {
                let x = &t.events[*r as usize];
                // A later read by the same thread stands for the earlier ones, and so does one by a warp that has
                // synchronized with them.
                (x.agent, x.pipe.is_some()) != (e.agent, e.pipe.is_some()) && !view.has(x.agent, x.tick)
            })
            .collect();
        new.push(event);
        t.sets.push(new);
        t.sets.len() as u32 - 1
    }

    /// Columns are given back: whoever gets them next starts anew.
    pub(crate) fn tensor_forget(&mut self, cta: usize, columns: std::ops::Range<u32>) {
        let cells = columns.start as usize * CELLS..columns.end as usize * CELLS;
        self.tensor().cells[cta][cells].fill(Cell::default());
    }
}
