//! Rooms in which the blocks of a kernel meet: a piece of memory for all kernels that may run at one time.
//!
//! Kernels of one stream follow each other, and so do those that one capture records in one stream, whenever its graph runs.

use std::sync::{Mutex, PoisonError};

use oxigemm_kernels::quantize::per_tensor_single::ROOM_BYTES;

use crate::error::Result;

/// Bytes of all rooms: what a GPU allocates at least.
pub(crate) const BYTES: u64 = 2 << 20;

/// Whose kernels follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tenant {
    pub stream: usize,
    /// The capture that records its kernels, if one does.
    pub capture: Option<u64>,
}

/// The rooms of a device; a `B` keeps their memory alive.
pub(crate) struct Rooms<B> {
    state: Mutex<Option<State<B>>>,
}

struct State<B> {
    address: u64,
    tenants: Vec<Tenant>,
    _memory: B,
}

impl<B> Default for Rooms<B> {
    fn default() -> Self {
        Rooms { state: Mutex::default() }
    }
}

impl<B> Rooms<B> {
    /// The address of a tenant's room. `allocate` has memory of zeros for all rooms, at the first call. There is none where all rooms are
    /// taken, and no capture may be the first: it must not allocate.
    pub fn of(&self, tenant: Tenant, allocate: impl FnOnce() -> Result<(u64, B)>) -> Result<Option<u64>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = match &mut *state {
            Some(state) => state,
            None if tenant.capture.is_some() => return Ok(None),
            none => {
                let (address, memory) = allocate()?;
                none.insert(State { address, tenants: Vec::new(), _memory: memory })
            }
        };
        let known = state.tenants.iter().position(|known| *known == tenant);
        let room = known.unwrap_or(state.tenants.len()) as u64;
        if (room + 1) * ROOM_BYTES > BYTES {
            return Ok(None);
        }
        if known.is_none() {
            state.tenants.push(tenant);
        }
        Ok(Some(state.address + room * ROOM_BYTES))
    }

    /// Where all of them are, if there are any.
    pub fn address(&self) -> Option<u64> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.as_ref().map(|state| state.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_run_at_one_time_has_a_room_of_its_own() {
        let rooms = Rooms::default();
        let at = |stream, capture| rooms.of(Tenant { stream, capture }, || Ok((0x1000, ()))).unwrap();
        assert_eq!((at(1, Some(7)), rooms.address()), (None, None), "a capture allocates nothing");
        let [first, second] = [0, 1].map(|room| Some(0x1000 + room * ROOM_BYTES));
        assert_eq!([at(1, None), at(2, None), at(1, None)], [first, second, first]);
        let of_captures = [at(1, Some(7)), at(1, Some(8)), at(2, Some(8)), at(1, Some(7))];
        assert_eq!(of_captures.map(|room| (room.unwrap() - 0x1000) / ROOM_BYTES), [2, 3, 4, 2]);
        let more = (0..BYTES / ROOM_BYTES + 9).filter(|capture| at(3, Some(*capture)).is_some()).count();
        assert_eq!(more as u64, BYTES / ROOM_BYTES - 5, "no room lies outside of the memory");
        assert_eq!(at(1, None), first, "who has one keeps it");
    }
}
