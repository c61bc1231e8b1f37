//! Memory of a simulated GPU.

use std::ops::Range;

use oxigemm_sim::Memory;

use super::Sim;
use crate::error::{Error, Result};

impl Sim {
    /// Memory that nothing was written to yet.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<u64> {
        self.refuse_in_capture("an allocation")?;
        let rank = self.rank();
        let address = self.with_memory(false, |memory| memory.try_allocate_on(rank, bytes))?;
        address.ok_or_else(|| Error::OutOfMemory { device: "sim".to_owned(), bytes })
    }

    /// Memory full of zeros.
    pub(super) fn zeros(&self, bytes: u64) -> Result<u64> {
        let address = self.allocate(bytes as usize)?;
        self.write(std::iter::once((address, &vec![0; bytes as usize][..])))?;
        Ok(address)
    }

    pub(crate) fn free(&self, address: u64) {
        // The address is that of an allocation: its owner calls this once.
        let _ = self.with_memory(false, |memory| memory.free(address));
    }

    /// Lets `use_it` use the memory; `waits` where kernels before have ended for the host that does so.
    fn with_memory<R>(&self, waits: bool, use_it: impl FnOnce(&mut Memory) -> R) -> Result<R> {
        if let Some(ranks) = self.ranks() {
            return ranks.memory(use_it);
        }
        let mut machine = self.inner().machine.lock()?;
        if waits {
            machine.synchronize();
        }
        Ok(use_it(&mut machine.memory))
    }

    /// Shows bytes to `look`.
    pub(crate) fn read<R>(&self, at: Range<u64>, look: impl FnOnce(&[u8]) -> R) -> Result<R> {
        self.refuse_in_capture("a read by the host")?;
        // The host and copies in the stream wait for the kernels before them.
        self.with_memory(true, |memory| {
            memory.read(at.start, (at.end - at.start) as usize).map(look).map_err(host_access)
        })?
    }

    /// Writes pieces, each at its address.
    pub(crate) fn write<'a>(&self, pieces: impl Iterator<Item = (u64, &'a [u8])>) -> Result<()> {
        self.refuse_in_capture("a write by the host")?;
        self.with_memory(true, |memory| {
            pieces
                .into_iter()
                .try_for_each(|(address, piece)| memory.write(address, piece).map_err(host_access))
        })?
    }

    /// Fills rows of `width` bytes with zeros.
    pub(crate) fn zero_memory(&self, [address, pitch]: [u64; 2], width: usize, rows: usize) -> Result<()> {
        let zeros = vec![0; width];
        self.write((0..rows as u64).map(|row| (address + row * pitch, &zeros[..])))
    }

    /// Copies rows of `width` bytes.
    pub(super) fn copy_memory(
        &self,
        [to, to_pitch]: [u64; 2],
        [from, from_pitch]: [u64; 2],
        width: usize,
        rows: usize,
    ) -> Result<()> {
        for row in 0..rows as u64 {
            let start = from + row * from_pitch;
            let bytes = self.read(start..start + width as u64, <[u8]>::to_vec)?;
            self.write(std::iter::once((to + row * to_pitch, &bytes[..])))?;
        }
        Ok(())
    }
}

pub(super) fn host_access(fault: oxigemm_sim::Fault) -> Error {
    Error::Fault { kernel: "none: an access of the host".to_owned(), fault: Box::new(fault) }
}
