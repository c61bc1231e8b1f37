//! Workspaces of grid barriers: one for all kernels that may run at one time.
//!
//! Kernels of one stream are ordered, and so are those that one capture records in one stream, whenever its graph runs.

use std::sync::{Mutex, PoisonError};

use oxigemm_kernels::quantize::per_tensor_single::ROOM_BYTES as GRID_BARRIER_BYTES;

use crate::error::Result;

/// Bytes of all grid barriers: the granularity of allocations of a GPU.
pub(crate) const GRID_BARRIERS_BYTES: u64 = 2 << 20;

/// The kernels that are ordered, and so share a grid barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub stream: usize,
    /// The capture that records the kernels of the stream, if one does.
    pub capture: Option<u64>,
}

/// Grid barriers of a device; a `B` owns their memory.
pub(crate) struct GridBarriers<B> {
    state: Mutex<Option<State<B>>>,
}

struct State<B> {
    address: u64,
    owners: Vec<Owner>,
    _memory: B,
}

impl<B> Default for GridBarriers<B> {
    fn default() -> Self {
        GridBarriers { state: Mutex::default() }
    }
}

impl<B> GridBarriers<B> {
    /// The address of an owner's grid barrier. `allocate` returns zeroed memory for all of them, at the first call.
    /// There is none where all are taken, or where a capture comes first: it must not allocate.
    pub fn of(&self, owner: Owner, allocate: impl FnOnce() -> Result<(u64, B)>) -> Result<Option<u64>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = match &mut *state {
            Some(state) => state,
            None if owner.capture.is_some() => return Ok(None),
            none => {
                let (address, memory) = allocate()?;
                none.insert(State { address, owners: Vec::new(), _memory: memory })
            }
        };
        let known = state.owners.iter().position(|known| *known == owner);
        let index = known.unwrap_or(state.owners.len()) as u64;
        if (index + 1) * GRID_BARRIER_BYTES > GRID_BARRIERS_BYTES {
            return Ok(None);
        }
        if known.is_none() {
            state.owners.push(owner);
        }
        Ok(Some(state.address + index * GRID_BARRIER_BYTES))
    }

    /// The address of the first grid barrier, if there is memory for them.
    pub fn address(&self) -> Option<u64> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.as_ref().map(|state| state.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_may_run_at_one_time_have_separate_grid_barriers() {
        let barriers = GridBarriers::default();
        let at = |stream, capture| barriers.of(Owner { stream, capture }, || Ok((0x1000, ()))).unwrap();
        assert_eq!((at(1, Some(7)), barriers.address()), (None, None), "a capture allocates nothing");
        let [first, second] = [0, 1].map(|nth| Some(0x1000 + nth * GRID_BARRIER_BYTES));
        assert_eq!([at(1, None), at(2, None), at(1, None)], [first, second, first]);
        let of_captures = [at(1, Some(7)), at(1, Some(8)), at(2, Some(8)), at(1, Some(7))];
        let nth = of_captures.map(|address| (address.unwrap() - 0x1000) / GRID_BARRIER_BYTES);
        assert_eq!(nth, [2, 3, 4, 2]);
        let most = GRID_BARRIERS_BYTES / GRID_BARRIER_BYTES;
        let more = (0..most + 9).filter(|capture| at(3, Some(*capture)).is_some()).count();
        assert_eq!(more as u64, most - 5, "none lies outside of the memory");
        assert_eq!(at(1, None), first, "an owner keeps its grid barrier");
    }
}
