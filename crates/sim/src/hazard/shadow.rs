//! The shadow of shared memory: who touched each word last, and whether the next access is ordered after it.

use super::Scope;
use super::view::get;
use super::{Event, Hazards, Proxy, Unit};
use std::collections::HashMap;

/// What the shadow memory adds to an event: the lane that stands for it, and when its lanes were in step.
#[derive(Clone, Copy, Debug)]
struct Recorded {
    event: Event,
    lane: u8,
    epoch: u32,
}

/// What is missing between two accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Anything that orders them.
    Order,
    /// Only the proxy fence.
    ProxyFence,
    /// A scope that includes both threads.
    Scope,
}

/// An access that is not ordered after an earlier one.
#[derive(Clone, Debug)]
pub(crate) struct Conflict {
    pub(crate) earlier: Event,
    pub(crate) earlier_writes: bool,
    pub(crate) missing: Missing,
    /// The words where they meet; there is at least one.
    pub(crate) offsets: Vec<u32>,
}

/// Adds a conflict at a word; those with one instruction are one.
fn add(list: &mut Vec<Conflict>, earlier: Event, earlier_writes: bool, missing: Missing, offset: u32) {
    let same = |c: &&mut Conflict| {
        (c.earlier.pc, c.earlier_writes, c.missing) == (earlier.pc, earlier_writes, missing)
    };
    match list.iter_mut().find(same) {
        Some(c) => c.offsets.push(offset),
        None => list.push(Conflict { earlier, earlier_writes, missing, offsets: vec![offset] }),
    }
}

#[derive(Clone, Copy, Default)]
struct Cell {
    /// Last write, as an index into the events; zero for none.
    write: u32,
    /// Reads since then, as an index into the read sets; zero for none.
    reads: u32,
    write_bytes: u8,
    read_bytes: u8,
    /// The lane of the last write and of the reads.
    write_lane: u8,
    read_lane: u8,
}

/// More than one lane, or none.
pub(super) const MANY: u8 = 0xff;

/// Events and read sets are compacted when they pass this number.
const COMPACT_AT: usize = 1 << 19;

/// The shadow of the shared memory of a cluster.
pub(super) struct Shadow {
    /// Per CTA: its words.
    cells: Vec<Vec<Cell>>,
    base: u32,
    events: Vec<Recorded>,
    sets: Vec<Vec<u32>>,
}

impl Shadow {
    /// Bytes that it takes, about.
    pub(super) fn bytes(&self) -> u64 {
        let cells: usize = self.cells.iter().map(|cells| cells.len() * size_of::<Cell>()).sum();
        let sets: usize = self.sets.iter().map(|set| 24 + set.capacity() * 4).sum();
        (cells + sets + self.events.capacity() * size_of::<Recorded>()) as u64
    }

    pub(super) fn new(ctas: usize, base: u32, bytes: u32) -> Shadow {
        let event = Event { agent: 0, tick: 0, proxy: Proxy::Generic, strong: None, warp: 0, pc: 0 };
        Shadow {
            cells: vec![vec![Cell::default(); bytes.div_ceil(4) as usize]; ctas],
            base,
            events: vec![Recorded { event, lane: MANY, epoch: 0 }],
            sets: vec![Vec::new()],
        }
    }

    fn compact(&mut self) {
        let cells = self.cells.iter_mut().flatten().map(|cell| (&mut cell.write, &mut cell.reads));
        compact(cells, &mut self.events, &mut self.sets);
    }
}

/// Drops events and read sets that no cell refers to. Cells have the number of their last write and of the set of reads since;
/// number 0 of both lists stands for none.
pub(super) fn compact<'c, E: Copy>(
    cells: impl Iterator<Item = (&'c mut u32, &'c mut u32)>,
    events: &mut Vec<E>,
    sets: &mut Vec<Vec<u32>>,
) {
    let (mut kept, mut kept_sets) = (vec![events[0]], vec![Vec::new()]);
    let (mut new_event, mut new_set) = (HashMap::new(), HashMap::new());
    let mut keep = |old: u32, kept: &mut Vec<E>| {
        *new_event.entry(old).or_insert_with(|| {
            kept.push(events[old as usize]);
            kept.len() as u32 - 1
        })
    };
    for (write, reads) in cells {
        if *write != 0 {
            *write = keep(*write, &mut kept);
        }
        if *reads != 0 {
            *reads = *new_set.entry(*reads).or_insert_with(|| {
                kept_sets.push(sets[*reads as usize].iter().map(|e| keep(*e, &mut kept)).collect());
                kept_sets.len() as u32 - 1
            });
        }
    }
    (*events, *sets) = (kept, kept_sets);
}

impl Hazards {
    /// An access of another CTA to this CTA's shared memory that no warp of it has waited for.
    pub(crate) fn exit_cta(&self, cta: usize, warps_per_cta: usize) -> Option<Event> {
        let foreign = |e: &Event| {
            e.warp as usize / warps_per_cta != cta && e.tick > 0 && !self.exit_covers(cta, e.agent, e.tick)
        };
        let (mut write, mut reads) = (0, 0);
        for cell in &self.shadow.cells[cta] {
            if cell.write != 0 && cell.write != write {
                write = cell.write;
                if foreign(&self.shadow.events[write as usize].event) {
                    return Some(self.shadow.events[write as usize].event);
                }
            }
            if cell.reads != 0 && cell.reads != reads {
                reads = cell.reads;
                let set =
                    self.shadow.sets[reads as usize].iter().map(|r| &self.shadow.events[*r as usize].event);
                if let Some(e) = set.into_iter().find(|e| foreign(e)) {
                    return Some(*e);
                }
            }
        }
        None
    }

    /// The agent of a lane.
    pub(crate) fn lane_agent(&mut self, warp: u32, lane: u8) -> u32 {
        let _ = self.selected(warp).count();
        self.class(warp, lane).agent
    }

    /// An event of the lanes that are in step with `lane`.
    pub(crate) fn thread_event(&mut self, warp: u32, lane: u8, pc: u32, strong: Option<Scope>) -> u32 {
        let _ = self.selected(warp).count();
        let (agent, tick) = (self.class(warp, lane).agent, self.class(warp, lane).tick);
        self.record(Event { agent, tick, proxy: Proxy::Generic, strong, warp, pc }, lane)
    }

    /// An event of an asynchronous unit, issued by the running lane.
    pub(crate) fn event(&mut self, event: Event) -> u32 {
        let _ = self.selected(event.warp).count();
        self.record(event, self.lead)
    }

    /// Drops what nothing refers to, where there is much of it. Events that were recorded before have other numbers
    /// then: an access whose lanes are not in step calls this before its first.
    pub(crate) fn make_room(&mut self) {
        if self.shadow.events.len() >= COMPACT_AT || self.shadow.sets.len() >= COMPACT_AT {
            self.shadow.compact();
        }
    }

    fn record(&mut self, event: Event, lane: u8) -> u32 {
        let epoch = self.class(event.warp, lane).epoch;
        self.shadow.events.push(Recorded { event, lane, epoch });
        self.shadow.events.len() as u32 - 1
    }

    /// Checks and records one access to ranges of a CTA's shared memory, offsets and lengths, by one lane or (`None`)
    /// by an asynchronous unit; gives what it conflicts with.
    pub(crate) fn access(
        &mut self,
        event: u32,
        lane: Option<u8>,
        cta: usize,
        ranges: impl Iterator<Item = (u32, u32)>,
        write: bool,
    ) -> Vec<Conflict> {
        self.access_with(event, lane, cta, ranges, write, false)
    }

    /// The same; a write of what is there already (`same`) does not conflict with an earlier write.
    pub(crate) fn access_with(
        &mut self,
        event: u32,
        lane: Option<u8>,
        cta: usize,
        ranges: impl Iterator<Item = (u32, u32)>,
        write: bool,
        same: bool,
    ) -> Vec<Conflict> {
        let mut conflicts = Vec::new();
        let lane = lane.unwrap_or(MANY);
        // What was found in order, and what reads became: neighbours mostly have the same.
        let mut fine_write = (0, MANY);
        let (mut from, mut to) = (u32::MAX, 0);
        for (offset, len) in ranges.filter(|(_, len)| *len > 0) {
            let start = offset - self.shadow.base;
            let (first, last) = (start / 4, (start + len - 1) / 4);
            let mut fine_reads = 0;
            for c in first..=last {
                let low = start.max(c * 4) - c * 4;
                let high = (start + len).min(c * 4 + 4) - c * 4;
                let bytes = ((1u8 << (high - low)) - 1) << low;
                let mut cell = self.shadow.cells[cta][c as usize];
                let written = (cell.write, cell.write_lane);
                if cell.write != 0 && !same && written != fine_write && cell.write_bytes & bytes != 0 {
                    match self.ordered(cell.write, event, [cell.write_lane, lane], true, write) {
                        Ok(()) => fine_write = written,
                        Err(missing) => {
                            let earlier = self.shadow.events[cell.write as usize].event;
                            add(&mut conflicts, earlier, true, missing, c * 4 + self.shadow.base);
                        }
                    }
                }
                if write {
                    if cell.reads != 0 && cell.reads != fine_reads && cell.read_bytes & bytes != 0 {
                        fine_reads = cell.reads;
                        for r in &self.shadow.sets[cell.reads as usize] {
                            let lanes = [cell.read_lane, lane];
                            if let Err(missing) = self.ordered(*r, event, lanes, false, write) {
                                let earlier = self.shadow.events[*r as usize].event;
                                add(&mut conflicts, earlier, false, missing, c * 4 + self.shadow.base);
                                fine_reads = 0;
                            }
                        }
                    }
                    cell = Cell { write: event, write_bytes: bytes, write_lane: lane, ..Cell::default() };
                } else {
                    if cell.reads == 0 {
                        cell.read_bytes = 0;
                        cell.read_lane = lane;
                    } else if cell.read_lane != lane {
                        cell.read_lane = MANY;
                    }
                    if cell.reads != from || from == u32::MAX {
                        from = cell.reads;
                        to = self.extend(from, event);
                    }
                    cell.reads = to;
                    cell.read_bytes |= bytes;
                }
                self.shadow.cells[cta][c as usize] = cell;
            }
        }
        conflicts
    }

    /// Whether the event `earlier` is ordered before `event`, or else what is missing. `lanes` are the lanes of the
    /// two accesses.
    fn ordered(
        &self,
        earlier: u32,
        event: u32,
        lanes: [u8; 2],
        earlier_writes: bool,
        writes: bool,
    ) -> Result<(), Missing> {
        let Recorded { event: x, epoch, .. } = self.shadow.events[earlier as usize];
        let Recorded { event: e, lane, .. } = self.shadow.events[event as usize];
        if earlier == event || !earlier_writes && !writes {
            return Ok(());
        }
        let mut missing = Missing::Order;
        if let (Some(a), Some(b)) = (x.strong, e.strong) {
            if a.min(b) >= self.seat(x.warp).distance(self.seat(e.warp)) {
                return Ok(());
            }
            missing = Missing::Scope;
        }
        let class = self.class(e.warp, lane);
        let view = &class.now;
        let issuer = if lanes[1] == MANY { lane } else { lanes[1] };
        let same_thread = x.warp == e.warp && lanes[0] == issuer;
        if x.agent == Self::agent(x.warp, Unit::CpAsync) {
            let own = same_thread && x.tick <= class.copied;
            if !own && !self.has_copied(view, x.warp, lanes[0], x.tick) {
                return Err(missing);
            }
        } else if same_thread {
            // Program order.
        } else if x.agent == class.agent {
            // Lanes that were in step: another lane's access since then is not ordered.
            if lanes[1] != MANY && epoch == class.epoch && x.tick > class.returned {
                return Err(missing);
            }
        } else if !view.has(x.agent, x.tick) {
            // What is over can be written over, except for stores that may still be on their way.
            let over = view.is_past(x.agent, x.tick);
            if !over || earlier_writes && !(writes && x.proxy != Proxy::Generic) {
                return Err(if over { Missing::Scope } else { missing });
            }
        }
        if earlier_writes
            && x.proxy == Proxy::Generic
            && e.proxy == Proxy::Async
            && get(&view.proxied, x.agent) < x.tick
            && !self.has_fenced_copy(view, &x, lanes[0])
        {
            return Err(Missing::ProxyFence);
        }
        Ok(())
    }

    fn extend(&mut self, set: u32, event: u32) -> u32 {
        let Recorded { event: e, lane, .. } = self.shadow.events[event as usize];
        let old = &self.shadow.sets[set as usize];
        if old.last() == Some(&event) {
            return set;
        }
        let view = &self.class(e.warp, lane).now;
        let mut new: Vec<u32> = old
            .iter()
            .copied()
            .filter(|r| {
                let x = &self.shadow.events[*r as usize].event;
                // A later read of the same agent stands for the earlier ones, and so does a read by a
                // warp that has synchronized with them.
                x.agent != e.agent && !view.has(x.agent, x.tick)
            })
            .collect();
        new.push(event);
        self.shadow.sets.push(new);
        self.shadow.sets.len() as u32 - 1
    }
}
