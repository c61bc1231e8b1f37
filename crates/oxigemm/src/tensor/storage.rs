//! The memory behind tensors, on any device.

use std::ops::Range;
use std::sync::{PoisonError, RwLock};

use bytemuck::{Pod, Zeroable};

use crate::device::{Device, Sim};
use crate::error::{Error, Result};

/// Host memory is made of these, so that its base is aligned as `cuMemAlloc` aligns device memory.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(256))]
struct Line([u8; 256]);

/// One allocation, shared by every tensor that is a view of it.
///
/// The lock makes each access from the host one step: two threads that use views of the same storage never race.
/// No method takes the lock of a second storage, so there is no order in which locks could block each other. Kernels
/// go by [`address`](Storage::address) and are ordered by their streams instead.
pub(crate) struct Storage {
    device: Device,
    address: u64,
    memory: Memory,
}

enum Memory {
    Host(RwLock<Vec<Line>>),
    /// Host memory of another owner, of so many bytes.
    Foreign(RwLock<usize>),
    Cuda(RwLock<oxigemm_cuda::Buffer>),
    Sim(SimBuffer),
}

/// An allocation in a simulated machine, whose one lock guards all of its memory.
struct SimBuffer {
    sim: Sim,
    address: u64,
    owned: bool,
}

impl Drop for SimBuffer {
    fn drop(&mut self) {
        if self.owned {
            self.sim.free(self.address);
        }
    }
}

impl Storage {
    /// Memory whose content is of no interest.
    pub fn empty(device: &Device, bytes: usize) -> Result<Storage> {
        let (address, memory) = match device {
            Device::Cpu => {
                let lines: Vec<Line> = bytemuck::try_zeroed_vec(bytes.div_ceil(size_of::<Line>()))
                    .map_err(|()| Error::OutOfMemory { device: device.to_string(), bytes })?;
                (lines.as_ptr().addr() as u64, Memory::Host(RwLock::new(lines)))
            }
            Device::Cuda(cuda) => {
                let buffer = cuda.gpu().alloc(bytes)?;
                (buffer.ptr(), Memory::Cuda(RwLock::new(buffer)))
            }
            Device::Sim(sim) => {
                let buffer = SimBuffer { sim: sim.clone(), address: sim.allocate(bytes)?, owned: true };
                (buffer.address, Memory::Sim(buffer))
            }
        };
        Ok(Storage { device: device.clone(), address, memory })
    }

    /// Memory of another owner.
    ///
    /// # Safety
    /// `bytes` from `address` on must be memory of the device that stays alive as long as the result, and that nobody
    /// else writes while it is read through the result, nor uses while it is written.
    pub unsafe fn foreign(device: &Device, address: u64, bytes: usize) -> Storage {
        let memory = match device {
            Device::Cpu => Memory::Foreign(RwLock::new(bytes)),
            Device::Cuda(cuda) => {
                // SAFETY: the caller keeps the same contract.
                let buffer = unsafe { cuda.gpu().buffer_from_raw(address, bytes) };
                Memory::Cuda(RwLock::new(buffer))
            }
            Device::Sim(sim) => Memory::Sim(SimBuffer { sim: sim.clone(), address, owned: false }),
        };
        Storage { device: device.clone(), address, memory }
    }

    /// Memory full of zero bytes.
    pub fn zeros(device: &Device, bytes: usize) -> Result<Storage> {
        let storage = Storage::empty(device, bytes)?;
        match &storage.memory {
            Memory::Host(_) | Memory::Foreign(_) => {}
            Memory::Cuda(buffer) => buffer.write().unwrap_or_else(PoisonError::into_inner).fill_u8(0)?,
            Memory::Sim(buffer) => buffer.sim.zero_memory([buffer.address, 0], bytes, 1)?,
        }
        Ok(storage)
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The address of the first byte, in the address space of the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Shows a range of bytes to `look`.
    pub fn read<R>(&self, range: Range<usize>, look: impl FnOnce(&[u8]) -> R) -> Result<R> {
        match &self.memory {
            Memory::Host(lines) => {
                let lines = lines.read().unwrap_or_else(PoisonError::into_inner);
                Ok(look(&bytemuck::cast_slice(&lines)[range]))
            }
            Memory::Foreign(len) => {
                let len = len.read().unwrap_or_else(PoisonError::into_inner);
                // An empty tensor may have no address.
                let base = if *len == 0 {
                    std::ptr::dangling()
                } else {
                    std::ptr::with_exposed_provenance(self.address as usize)
                };
                // SAFETY: the owner keeps so many bytes here, and does not write them meanwhile.
                let bytes: &[u8] = unsafe { std::slice::from_raw_parts(base, *len) };
                Ok(look(&bytes[range]))
            }
            Memory::Cuda(buffer) => {
                let mut bytes = vec![0; range.len()];
                let buffer = buffer.read().unwrap_or_else(PoisonError::into_inner);
                buffer.copy_to_host_at(range.start, &mut bytes)?;
                Ok(look(&bytes))
            }
            Memory::Sim(SimBuffer { sim, address, .. }) => {
                sim.read(address + range.start as u64..address + range.end as u64, look)
            }
        }
    }

    /// Writes pieces, each at its byte offset.
    pub fn write<'a>(&self, pieces: impl Iterator<Item = (usize, &'a [u8])>) -> Result<()> {
        match &self.memory {
            Memory::Host(lines) => {
                let mut lines = lines.write().unwrap_or_else(PoisonError::into_inner);
                let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut lines);
                for (offset, piece) in pieces {
                    bytes[offset..offset + piece.len()].copy_from_slice(piece);
                }
            }
            Memory::Foreign(len) => {
                let len = len.write().unwrap_or_else(PoisonError::into_inner);
                for (offset, piece) in pieces {
                    assert!(offset <= *len && piece.len() <= *len - offset, "a piece outside of the memory");
                    let to: *mut u8 = std::ptr::with_exposed_provenance_mut(self.address as usize + offset);
                    // SAFETY: within the bytes that the owner keeps here, which nobody else uses meanwhile.
                    unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), to, piece.len()) };
                }
            }
            Memory::Cuda(buffer) => {
                let mut buffer = buffer.write().unwrap_or_else(PoisonError::into_inner);
                for (offset, piece) in pieces {
                    buffer.copy_from_host_at(offset, piece)?;
                }
            }
            Memory::Sim(SimBuffer { sim, address, .. }) => {
                sim.write(pieces.map(|(offset, piece)| (address + offset as u64, piece)))?;
            }
        }
        Ok(())
    }
}
