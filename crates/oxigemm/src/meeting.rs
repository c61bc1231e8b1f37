//! Rooms where the blocks of a kernel meet: each belongs to one running grid at a time.

use std::sync::{Mutex, PoisonError};

use oxigemm_kernels::quantize::meeting::ROOM_BYTES;

use crate::error::Result;

/// Rooms of a device.
const ROOMS: u64 = 1024;

/// The rooms of a device; a `B` keeps their memory alive.
pub(crate) struct MeetingRooms<B> {
    taken: Mutex<Taken<B>>,
}

struct Taken<B> {
    /// The address of the first room, when there are rooms.
    memory: Option<(u64, B)>,
    rooms: u64,
    /// Streams, and the rooms that they have.
    streams: Vec<(usize, u64)>,
}

impl<B> Default for MeetingRooms<B> {
    fn default() -> Self {
        let taken = Taken { memory: None, rooms: 0, streams: Vec::new() };
        MeetingRooms { taken: Mutex::new(taken) }
    }
}

impl<B> MeetingRooms<B> {
    /// The room of a stream, whose calls follow each other. A call that is captured has one for itself, as its graph may run at
    /// the same time as the stream. None where no room is left, or where there are none yet and a capture forbids to allocate.
    /// `allocate` gives so many bytes of zeros.
    pub fn at(
        &self,
        stream: usize,
        capturing: bool,
        allocate: impl FnOnce(u64) -> Result<(u64, B)>,
    ) -> Result<Option<u64>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let first = match &taken.memory {
            Some((first, _)) => *first,
            None if capturing => return Ok(None),
            None => taken.memory.insert(allocate(ROOMS * ROOM_BYTES)?).0,
        };
        let known = taken.streams.iter().find(|(known, _)| !capturing && *known == stream);
        if let Some((_, room)) = known {
            return Ok(Some(first + room * ROOM_BYTES));
        }
        let room = taken.rooms;
        if room == ROOMS {
            return Ok(None);
        }
        taken.rooms += 1;
        if !capturing {
            taken.streams.push((stream, room));
        }
        Ok(Some(first + room * ROOM_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_has_a_room_and_every_captured_call_another() {
        let rooms = MeetingRooms::default();
        let room = |stream, capturing| rooms.at(stream, capturing, |_| Ok((0x10_0000, ()))).unwrap();
        let nth = |nth: u64| Some(0x10_0000 + nth * ROOM_BYTES);
        assert_eq!(room(1, true), None, "a capture allocates nothing");
        assert_eq!([room(1, false), room(2, false), room(1, false)], [nth(0), nth(1), nth(0)]);
        assert_eq!([room(1, true), room(1, true), room(1, false)], [nth(2), nth(3), nth(0)]);
        for i in 4..ROOMS {
            assert_eq!(room(1, true), nth(i));
        }
        assert_eq!([room(3, false), room(1, true), room(2, false)], [None, None, nth(1)]);
    }
}
