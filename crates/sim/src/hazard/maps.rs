//! Tensor maps in global memory: what a thread must know of the writes to one before it uses it.
//!
//! A tensor map is read through a proxy of its own. A use must follow every write to its 128 bytes: in order, behind a
//! release of tensor maps by a thread that knew of the write, and behind an acquire by the warp that uses it or by one
//! that it has synchronized with since: a proxy fence may lie anywhere along the path (Triton has one warp make a map
//! and acquire it, and another use it behind a barrier).

use super::Hazards;
use super::global::{GlobalEvent, GlobalShadow, ordered, own_or_other};

/// What is missing between a write to a tensor map and its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapMissing {
    /// Anything that orders them.
    Order,
    /// The release of tensor maps behind the write.
    Release,
    /// The acquire by the warp that uses it, or by one before it.
    Acquire,
}

/// A warp among all of the grid.
type Identity = (u32, u32);

/// The acquires of a tensor map: by whom, how many events there were, and the acquire itself.
pub(super) type Acquires = Vec<(Identity, u32, GlobalEvent)>;

impl GlobalShadow {
    /// The last writes to a range, each once.
    fn writers(&self, (start, bytes): (u64, u64)) -> impl Iterator<Item = (u32, u8, GlobalEvent)> {
        let mut writes: Vec<(u32, u8)> =
            (start / 4..(start + bytes).div_ceil(4)).filter_map(|word| self.write_of(word)).collect();
        writes.sort_unstable();
        writes.dedup();
        writes.into_iter().map(|(event, lane)| (event, lane, self.event(event)))
    }

    /// What is missing before the running lane of a warp may use the tensor map here, and the write that it is about.
    pub(crate) fn check_map(
        &self,
        hazards: &Hazards,
        by: GlobalEvent,
        identity: Identity,
        range: (u64, u64),
    ) -> Result<(), (GlobalEvent, MapMissing)> {
        let lane = by.lane();
        let class = hazards.class(by.event.warp, lane);
        let known = |(who, _, at): &&(Identity, u32, GlobalEvent)| {
            *who == identity
                || own_or_other(hazards, &class.now, at, |t| &t.seen, |v| &v.seen) >= at.event.tick
        };
        let acquires = self.acquires.get(&range.0).into_iter().flatten();
        let acquired = acquires.filter(known).map(|a| a.1).max().unwrap_or(0);
        for (number, writer, x) in self.writers(range) {
            if class.now.knows_end(x.seat.device, x.seat.launch) {
                continue;
            }
            let missing = if ordered(hazards, class, &x, writer, &by, lane, [true, false]).is_err() {
                MapMissing::Order
            } else if own_or_other(hazards, &class.now, &x, |t| &t.mapped, |v| &v.mapped) < x.event.tick {
                MapMissing::Release
            } else if acquired < number {
                MapMissing::Acquire
            } else {
                continue;
            };
            return Err((x, missing));
        }
        Ok(())
    }

    /// The running lane of a warp acquires the tensor map here: of no effect before it knows of the release.
    pub(crate) fn acquire_map(
        &mut self,
        hazards: &Hazards,
        by: GlobalEvent,
        identity: Identity,
        range: (u64, u64),
    ) {
        let missing = self.check_map(hazards, by, identity, range).err().map(|e| e.1);
        if matches!(missing, None | Some(MapMissing::Acquire)) {
            let events = self.events();
            let list = self.acquires.entry(range.0).or_default();
            list.retain(|a| a.0 != identity);
            list.push((identity, events, by));
        }
    }
}

impl Hazards {
    /// The use of a tensor map by the running lane of a warp, as an access of that lane.
    pub(crate) fn map_event(&mut self, warp: u32, pc: u32, cta: u32) -> GlobalEvent {
        self.global_thread_event(warp, self.lead, pc, None, cta)
    }
}
