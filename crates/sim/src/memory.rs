//! Global memory: allocations at 64-bit addresses, each with the bytes that were ever written.

use crate::error::{Fault, FaultKind};
use std::collections::BTreeMap;

/// Bytes of shared memory that one CTA may have.
pub const MAX_SHARED_BYTES: u32 = 232_448;

/// The little-endian value of up to eight bytes.
pub(crate) fn word(bytes: &[u8]) -> u64 {
    let mut w = [0; 8];
    w[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(w)
}

/// One bit per byte: whether it was written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    bits: Vec<u64>,
}

impl Written {
    pub(crate) fn new(bytes: usize) -> Written {
        Written { bits: vec![0; bytes.div_ceil(64)] }
    }

    pub(crate) fn set(&mut self, start: usize, len: usize) {
        let mut at = start;
        let end = start + len;
        while at < end {
            let bit = at % 64;
            let n = (64 - bit).min(end - at);
            let mask = if n == 64 { u64::MAX } else { ((1u64 << n) - 1) << bit };
            self.bits[at / 64] |= mask;
            at += n;
        }
    }

    pub(crate) fn clear(&mut self, start: usize, len: usize) {
        (start..start + len).for_each(|at| self.bits[at / 64] &= !(1 << (at % 64)));
    }

    /// The first byte of the range that was never written.
    pub(crate) fn first_missing(&self, start: usize, len: usize) -> Option<usize> {
        let mut at = start;
        let end = start + len;
        while at < end {
            let bit = at % 64;
            let n = (64 - bit).min(end - at);
            let mask = if n == 64 { u64::MAX } else { ((1u64 << n) - 1) << bit };
            let missing = !self.bits[at / 64] & mask;
            if missing != 0 {
                return Some(at - bit + missing.trailing_zeros() as usize);
            }
            at += n;
        }
        None
    }
}

#[derive(Clone, Debug)]
struct Allocation {
    base: u64,
    bytes: Vec<u8>,
    written: Written,
}

/// Addresses at which the windows of other spaces start in the generic address space.
pub(crate) const SHARED_WINDOW: u64 = 0x7e00_0000_0000;
pub(crate) const LOCAL_WINDOW: u64 = 0x7d00_0000_0000;
pub(crate) const PARAM_WINDOW: u64 = 0x7c00_0000_0000;
pub(crate) const WINDOW_BYTES: u64 = 0x0100_0000_0000;
/// Addresses of functions: nothing can be read or written there.
pub(crate) const FUNCTION_WINDOW: u64 = 0x5f00_0000_0000;
/// Where the variables of modules are placed.
pub(crate) const MODULE_WINDOW: u64 = 0x6000_0000_0000;

const FIRST_ADDRESS: u64 = 0x1_0000_0000;
/// The device that owns an address, where there are several: its bits from here up.
const DEVICE_SHIFT: u32 = 42;
/// Most devices of a world: their memories end below the windows.
pub(crate) const MAX_DEVICES: usize = 16;
const _: () = assert!((MAX_DEVICES as u64) << DEVICE_SHIFT < FUNCTION_WINDOW);
/// Allocations are this far apart at least, so that an overrun hits nothing.
const GUARD: u64 = 4096;

/// The global memory of the simulated device.
///
/// ```
/// let mut memory = oxigemm_sim::Memory::new();
/// let x = memory.allocate_with(&1.5f32.to_le_bytes());
/// assert_eq!(memory.read(x, 4).unwrap(), 1.5f32.to_le_bytes());
/// assert!(memory.read(x + 4, 4).is_err());
/// ```
#[derive(Clone, Debug)]
pub struct Memory {
    /// Sorted by base address.
    allocations: Vec<Allocation>,
    /// Of each device, where it allocates next, and where the variables of modules lie in its memory.
    heaps: Vec<Heap>,
    hint: usize,
    /// Bytes that [`Memory::try_allocate`] may allocate in all.
    pub limit: Option<u64>,
}

#[derive(Clone, Debug)]
struct Heap {
    next: u64,
    end: u64,
    /// By the address that the module gives a variable: its own, and its bytes.
    variables: BTreeMap<u64, (u64, u64)>,
}

impl Default for Memory {
    fn default() -> Self {
        Memory::new()
    }
}

impl Memory {
    /// An empty memory.
    pub fn new() -> Memory {
        Memory::of(1)
    }

    /// The memories of several devices, one after another.
    pub(crate) fn of(devices: usize) -> Memory {
        let heap = |device: u64| Heap {
            next: (device << DEVICE_SHIFT) + FIRST_ADDRESS,
            end: if devices == 1 { FUNCTION_WINDOW } else { (device + 1) << DEVICE_SHIFT },
            variables: BTreeMap::new(),
        };
        Memory {
            allocations: Vec::new(),
            heaps: (0..devices as u64).map(heap).collect(),
            hint: 0,
            limit: None,
        }
    }

    /// The device that owns an address; of a variable of a module, the first.
    pub(crate) fn owner(&self, address: u64) -> u32 {
        let device = (address >> DEVICE_SHIFT) as usize;
        if device < self.heaps.len() { device as u32 } else { 0 }
    }

    /// Allocates `bytes` bytes, aligned to 512, that count as uninitialized until written.
    pub fn allocate(&mut self, bytes: usize) -> u64 {
        self.allocate_on(0, bytes)
    }

    /// The same in the memory of one of several devices.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn allocate_on(&mut self, device: usize, bytes: usize) -> u64 {
        let heap = &mut self.heaps[device];
        let base = heap.next;
        heap.next += (bytes as u64 + GUARD).div_ceil(512) * 512;
        self.insert(base, bytes);
        base
    }

    /// The same, or nothing where the host has not enough memory, or [`Memory::limit`] does not allow it.
    pub fn try_allocate(&mut self, bytes: usize) -> Option<u64> {
        self.try_allocate_on(0, bytes)
    }

    /// The same in the memory of one of several devices.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn try_allocate_on(&mut self, device: usize, bytes: usize) -> Option<u64> {
        if self.room().is_some_and(|room| bytes as u64 > room) {
            return None;
        }
        // A block of this size that the system gives now it gives again: the bytes, and a bit for each. Addresses end
        // where the windows of other spaces begin.
        let all = bytes.checked_add(bytes / 8)?.checked_add(64)?;
        Vec::<u8>::new().try_reserve_exact(all).ok()?;
        let heap = &self.heaps[device];
        (heap.next.checked_add(bytes as u64)? < heap.end).then(|| self.allocate_on(device, bytes))
    }

    /// Allocates and fills a buffer.
    pub fn allocate_with(&mut self, contents: &[u8]) -> u64 {
        self.allocate_with_on(0, contents)
    }

    /// The same in the memory of one of several devices.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn allocate_with_on(&mut self, device: usize, contents: &[u8]) -> u64 {
        let base = self.allocate_on(device, contents.len());
        self.hint = self.allocations.iter().position(|a| a.base == base).unwrap_or(0);
        let a = &mut self.allocations[self.hint];
        a.bytes.copy_from_slice(contents);
        a.written.set(0, contents.len());
        base
    }

    /// Bytes of all allocations.
    pub fn allocated(&self) -> u64 {
        self.allocations.iter().map(|a| a.bytes.len() as u64).sum()
    }

    /// Bytes that the limit leaves, where there is one.
    pub fn room(&self) -> Option<u64> {
        self.limit.map(|limit| limit.saturating_sub(self.allocated()))
    }

    fn insert(&mut self, base: u64, bytes: usize) {
        let at = self.allocations.partition_point(|a| a.base < base);
        self.allocations.insert(at, Allocation { base, bytes: vec![0; bytes], written: Written::new(bytes) });
    }

    /// Places a module's variable at its fixed address, once.
    pub(crate) fn place(&mut self, device: usize, base: u64, bytes: usize, init: Option<&[u8]>) {
        let base = match device {
            0 => base,
            _ if self.heaps[device].variables.contains_key(&base) => return,
            _ => {
                let own = self.allocate_on(device, bytes);
                self.heaps[device].variables.insert(base, (own, bytes as u64));
                self.fill(own, bytes, init);
                return;
            }
        };
        if self.allocations.iter().any(|a| a.base == base) {
            return;
        }
        self.insert(base, bytes);
        self.fill(base, bytes, init);
    }

    fn fill(&mut self, base: u64, bytes: usize, init: Option<&[u8]>) {
        let at = self.allocations.partition_point(|a| a.base < base);
        let a = &mut self.allocations[at];
        if let Some(init) = init {
            a.bytes[..init.len()].copy_from_slice(init);
        }
        // A variable without an initializer is zero.
        a.written.set(0, bytes);
    }

    /// The address that a device means: its own copy where this is a variable of a module.
    pub(crate) fn own(&self, device: u32, address: u64) -> u64 {
        if device == 0 || address < MODULE_WINDOW {
            return address;
        }
        let before = self.heaps[device as usize].variables.range(..=address).next_back();
        match before {
            Some((base, (own, bytes))) if address - base < *bytes => own + (address - base),
            _ => address,
        }
    }

    /// Frees the allocation that starts at `address`.
    pub fn free(&mut self, address: u64) -> Result<(), Fault> {
        match self.allocations.iter().position(|a| a.base == address) {
            Some(i) => {
                self.allocations.remove(i);
                Ok(())
            }
            None => Err(Fault::new(
                FaultKind::OutOfBounds,
                format!("{address:#x} is not the start of an allocation"),
            )),
        }
    }

    fn find(&mut self, address: u64, len: usize) -> Result<(usize, usize), Fault> {
        let inside = |a: &Allocation| {
            address >= a.base
                && address - a.base <= a.bytes.len() as u64
                && len as u64 <= a.bytes.len() as u64 - (address - a.base)
        };
        if let Some(a) = self.allocations.get(self.hint)
            && inside(a)
        {
            return Ok((self.hint, (address - a.base) as usize));
        }
        let at = self.allocations.partition_point(|a| a.base <= address);
        if at > 0 && inside(&self.allocations[at - 1]) {
            self.hint = at - 1;
            return Ok((at - 1, (address - self.allocations[at - 1].base) as usize));
        }
        let near = match at.checked_sub(1).map(|i| &self.allocations[i]) {
            Some(a) if address - a.base < a.bytes.len() as u64 + GUARD => {
                format!("it is {} bytes into an allocation of {}", address - a.base, a.bytes.len())
            }
            _ => "no allocation is near".to_owned(),
        };
        Err(Fault::new(
            FaultKind::OutOfBounds,
            format!("global access of {len} bytes at {address:#x} is out of bounds: {near}"),
        ))
    }

    /// Bytes at an address, for the host.
    pub fn read(&mut self, address: u64, len: usize) -> Result<&[u8], Fault> {
        let (i, at) = self.find(address, len)?;
        Ok(&self.allocations[i].bytes[at..at + len])
    }

    /// Writes bytes from the host.
    pub fn write(&mut self, address: u64, contents: &[u8]) -> Result<(), Fault> {
        let (i, at) = self.find(address, contents.len())?;
        let a = &mut self.allocations[i];
        a.bytes[at..at + contents.len()].copy_from_slice(contents);
        a.written.set(at, contents.len());
        Ok(())
    }

    /// From now on a range counts as never written.
    pub(crate) fn forget(&mut self, address: u64, len: usize) -> Result<(), Fault> {
        let (i, at) = self.find(address, len)?;
        self.allocations[i].written.clear(at, len);
        Ok(())
    }

    /// Whether a range lies inside one allocation.
    pub fn contains(&mut self, address: u64, len: usize) -> bool {
        self.find(address, len).is_ok()
    }

    /// Whether every byte of a range was written.
    pub fn defined(&mut self, address: u64, len: usize) -> bool {
        self.find(address, len)
            .is_ok_and(|(i, at)| self.allocations[i].written.first_missing(at, len).is_none())
    }

    /// Reads for the device; with `check`, a byte that nothing wrote is a fault.
    pub(crate) fn load(&mut self, address: u64, len: usize, check: bool) -> Result<&[u8], Fault> {
        let (i, at) = self.find(address, len)?;
        let a = &self.allocations[i];
        if check && let Some(missing) = a.written.first_missing(at, len) {
            return Err(Fault::new(
                FaultKind::Uninitialized,
                format!("global byte {:#x} is read and was never written", a.base + missing as u64),
            ));
        }
        Ok(&a.bytes[at..at + len])
    }
}
