//! Places of streams: what tells those apart whose kernels may run at one time, so that each has memory of its own.
//!
//! A place is a handle, and the driver gives that of a stream which was destroyed to a later one, whose memory is then the first one's.
//! What the first was given may still run: so the later one waits for it, once.

use std::sync::{Mutex, PoisonError};

use oxigemm_cuda::Stream;

use crate::error::{Error, Result};

/// The streams of a device that memory was given to.
#[derive(Default)]
pub(crate) struct StreamPlaces {
    known: Mutex<Vec<Known>>,
}

struct Known {
    place: usize,
    /// The number of the stream that has it.
    id: u64,
}

impl StreamPlaces {
    /// The place of a stream, where nothing of another one runs any more.
    pub fn of(&self, stream: &Stream) -> Result<usize> {
        let place = place(stream);
        self.take(place, stream.id()?, || {
            if stream.is_capturing()? {
                let reason = "a captured call needs memory that a destroyed stream may still use: make the call once before";
                return Err(Error::Stream { reason: reason.to_owned() });
            }
            Ok(stream.device().synchronize()?)
        })?;
        Ok(place)
    }

    /// Gives a place to the stream with an id; `wait` is for all that was given to the one that had it.
    ///
    /// A stream of another library that is being captured tells no id. It keeps the place that its handle has: memory was given to
    /// that place by a call before the capture, which did compare ids.
    fn take(&self, place: usize, id: Option<u64>, wait: impl FnOnce() -> Result<()>) -> Result<()> {
        let Some(id) = id else { return Ok(()) };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.iter_mut().find(|known| known.place == place) {
            Some(known) if known.id == id => {}
            Some(known) => {
                wait()?;
                known.id = id;
            }
            None => known.push(Known { place, id }),
        }
        Ok(())
    }
}

/// The place of a stream, whoever had it before: its handle, but one handle means a stream of each thread's own.
pub(crate) fn place(stream: &Stream) -> usize {
    const OF_EACH_THREAD: usize = 2;
    thread_local! {
        static OWN: u8 = const { 0 };
    }
    match stream.raw().addr() {
        OF_EACH_THREAD => OWN.with(|own| std::ptr::from_ref(own).addr()),
        handle => handle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_the_place_of_another_waits_once() {
        let places = StreamPlaces::default();
        let waits = |place, id| {
            let mut waited = false;
            let wait = || {
                waited = true;
                Ok(())
            };
            places.take(place, Some(id), wait).unwrap();
            waited
        };
        assert_eq!([(0x10, 1), (0x20, 2), (0x10, 1)].map(|(place, id)| waits(place, id)), [false; 3]);
        assert_eq!([waits(0x10, 3), waits(0x10, 3), waits(0x20, 2)], [true, false, false]);
    }

    #[test]
    fn who_cannot_wait_has_no_place() {
        let places = StreamPlaces::default();
        places.take(0x10, Some(1), || Ok(())).unwrap();
        let refuse = || Err(Error::Stream { reason: "no".to_owned() });
        assert!(places.take(0x10, Some(2), refuse).is_err());
        assert!(places.take(0x10, Some(2), refuse).is_err(), "it is still the first one's");
    }

    #[test]
    fn a_captured_stream_of_another_library_keeps_the_place_of_its_handle() {
        let places = StreamPlaces::default();
        places.take(0x10, Some(1), || Ok(())).unwrap();
        let refuse = || Err(Error::Stream { reason: "no".to_owned() });
        places.take(0x10, None, refuse).unwrap();
        places.take(0x10, Some(1), refuse).unwrap();
    }
}
