//! The grids of a world of several devices, as far as a fault on one side names the other.

use crate::decode::Kernel;
use crate::hazard::Seat;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Grids that have run or run, by device and number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peers {
    grids: BTreeMap<(u32, u32), PeerGrid>,
}

/// One grid.
#[derive(Clone, Debug)]
pub(crate) struct PeerGrid {
    pub(crate) kernel: Arc<Kernel>,
    /// Threads of a CTA, in warps.
    pub(crate) warps_per_cta: u32,
}

impl Peers {
    pub(crate) fn insert(&mut self, device: u32, launch: u32, grid: PeerGrid) {
        self.grids.insert((device, launch), grid);
    }

    /// The grid that a thread belongs to.
    pub(crate) fn of(&self, seat: Seat) -> Option<&PeerGrid> {
        self.grids.get(&(seat.device, seat.launch))
    }
}
