//! Keys of streams: what tells streams apart whose kernels may run at one time, so that each has its own workspace.
//!
//! A key is the handle of a stream. The driver may give the handle of a destroyed stream to a later one, which then
//! finds the workspace of the first. Kernels of the first may still run: so the later one waits for them, once.

use std::sync::{Mutex, PoisonError};

use oxigemm_cuda::Stream;

use crate::error::{Error, Result};

/// The streams of a device that have workspaces.
#[derive(Default)]
pub(crate) struct StreamKeys {
    known: Mutex<Vec<Known>>,
}

struct Known {
    key: usize,
    /// The id of the stream that has it.
    id: u64,
}

impl StreamKeys {
    /// The key of a stream, once no kernel of an earlier stream with this key runs any more.
    pub fn of(&self, stream: &Stream) -> Result<usize> {
        let key = stream_key(stream);
        self.take(key, stream.id()?, || {
            if stream.is_capturing()? {
                let reason = "a captured call needs memory that a destroyed stream may still use: make the call once before";
                return Err(Error::Stream { reason: reason.to_owned() });
            }
            Ok(stream.device().synchronize()?)
        })?;
        Ok(key)
    }

    /// Gives a key to the stream with an id; `wait` waits for all kernels of the stream that had it.
    ///
    /// A stream of another library that is being captured tells no id. It keeps the key of its handle: the call before
    /// the capture, which allocated the workspace, did compare ids.
    fn take(&self, key: usize, id: Option<u64>, wait: impl FnOnce() -> Result<()>) -> Result<()> {
        let Some(id) = id else { return Ok(()) };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.iter_mut().find(|known| known.key == key) {
            Some(known) if known.id == id => {}
            Some(known) => {
                wait()?;
                known.id = id;
            }
            None => known.push(Known { key, id }),
        }
        Ok(())
    }
}

/// The key of a stream, whichever stream had it before: its handle, except for the handle of per-thread streams.
pub(crate) fn stream_key(stream: &Stream) -> usize {
    const PER_THREAD: usize = 2;
    thread_local! {
        static OWN: u8 = const { 0 };
    }
    match stream.raw().addr() {
        PER_THREAD => OWN.with(|own| std::ptr::from_ref(own).addr()),
        handle => handle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_with_the_key_of_another_waits_once() {
        let keys = StreamKeys::default();
        let waits = |key, id| {
            let mut waited = false;
            let wait = || {
                waited = true;
                Ok(())
            };
            keys.take(key, Some(id), wait).unwrap();
            waited
        };
        assert_eq!([(0x10, 1), (0x20, 2), (0x10, 1)].map(|(key, id)| waits(key, id)), [false; 3]);
        assert_eq!([waits(0x10, 3), waits(0x10, 3), waits(0x20, 2)], [true, false, false]);
    }

    #[test]
    fn a_stream_that_cannot_wait_gets_no_key() {
        let keys = StreamKeys::default();
        keys.take(0x10, Some(1), || Ok(())).unwrap();
        let refuse = || Err(Error::Stream { reason: "no".to_owned() });
        assert!(keys.take(0x10, Some(2), refuse).is_err());
        assert!(keys.take(0x10, Some(2), refuse).is_err(), "it is still the first one's");
    }

    #[test]
    fn a_captured_stream_of_another_library_keeps_the_key_of_its_handle() {
        let keys = StreamKeys::default();
        keys.take(0x10, Some(1), || Ok(())).unwrap();
        let refuse = || Err(Error::Stream { reason: "no".to_owned() });
        keys.take(0x10, None, refuse).unwrap();
        keys.take(0x10, Some(1), refuse).unwrap();
    }
}
