//! Workspaces: device memory that the library owns and lends to the kernels of one call.
//!
//! Each stream has its own, because calls in one stream are ordered and those in others are not. A workspace grows when
//! a call needs more than any before, and is freed with the device: a kernel that still runs, or a graph, may use it.
//! It at least doubles, so that all of it is less than four times what the largest call needs.

pub(super) mod grid_barrier;
pub(super) mod stream_key;

use std::sync::{Mutex, PoisonError};

use crate::error::Result;

/// Granularity of allocations.
const UNIT: u64 = 2 << 20;

/// Workspaces of a device, by stream; a `B` owns the memory of one.
pub(crate) struct Workspaces<B> {
    streams: Mutex<Vec<Workspace<B>>>,
}

struct Workspace<B> {
    stream: usize,
    address: u64,
    bytes: u64,
    kept: Vec<B>,
}

impl<B> Default for Workspaces<B> {
    fn default() -> Self {
        Workspaces { streams: Mutex::default() }
    }
}

impl<B> Workspaces<B> {
    /// The address of `bytes` bytes for a stream. `grow` allocates, where the stream has fewer.
    pub fn at(&self, stream: usize, bytes: u64, grow: impl FnOnce(u64) -> Result<(u64, B)>) -> Result<u64> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let index = streams.iter().position(|workspace| workspace.stream == stream);
        let old = index.map_or(0, |index| streams[index].bytes);
        if let (Some(index), true) = (index, old >= bytes) {
            return Ok(streams[index].address);
        }
        let bytes = bytes.max(2 * old).next_multiple_of(UNIT);
        let (address, buffer) = grow(bytes)?;
        match index {
            Some(index) => {
                let workspace = &mut streams[index];
                (workspace.address, workspace.bytes) = (address, bytes);
                workspace.kept.push(buffer);
            }
            None => streams.push(Workspace { stream, address, bytes, kept: vec![buffer] }),
        }
        Ok(address)
    }

    /// The addresses of the workspaces of all streams.
    pub fn addresses(&self) -> Vec<u64> {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.iter().map(|workspace| workspace.address).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn a_stream_keeps_its_workspace_until_it_needs_more() {
        let workspaces = Workspaces::default();
        let mut grown = Vec::new();
        let mut at = |stream, bytes| {
            let grow = |bytes| {
                grown.push(bytes);
                Ok((0x1000 * grown.len() as u64, ()))
            };
            workspaces.at(stream, bytes, grow).unwrap()
        };
        assert_eq!([at(1, 100), at(1, UNIT), at(1, 1)], [0x1000; 3]);
        assert_eq!(at(2, 5), 0x2000, "another stream has its own");
        assert_eq!([at(1, UNIT + 1), at(1, 2 * UNIT)], [0x3000; 2]);
        assert_eq!(at(2, UNIT), 0x2000);
        assert_eq!(grown, [UNIT, UNIT, 2 * UNIT]);
        let refuse = |_| Err(Error::Stream { reason: "no".to_owned() });
        assert!(workspaces.at(3, 1, refuse).is_err());
        assert!(workspaces.at(1, 5 * UNIT, refuse).is_err());
        assert_eq!(workspaces.at(1, UNIT, refuse).unwrap(), 0x3000, "what it had is still there");
    }
}
