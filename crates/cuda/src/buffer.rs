//! Device memory.

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::sys::{CUdeviceptr, CUstream};

use crate::device::Device;
use crate::driver::OUT_OF_MEMORY;
use crate::error::{Error, Result};
use crate::stream::Stream;

/// A piece of device memory, freed when it is dropped, unless another library owns it.
///
/// The functions without `_async` are for setting up and for checking: they wait for all work of the GPU
/// before and after they copy, so their result never depends on which stream wrote the memory.
#[derive(Debug)]
pub struct Buffer {
    device: Device,
    address: CUdeviceptr,
    len: usize,
    owned: bool,
}

impl Device {
    /// Allocates device memory, its contents undefined. Zero bytes are fine: nothing is allocated then.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer> {
        let mut address = 0;
        if bytes > 0 {
            let _current = self.make_current()?;
            // SAFETY: `address` is a valid place to write to, and the context is current.
            match unsafe { self.driver().cuMemAlloc_v2(&mut address, bytes) } {
                Err(Error::Driver { code: OUT_OF_MEMORY, .. }) => {
                    let (free, total) = self.memory_info()?;
                    return Err(Error::OutOfMemory { requested: bytes, free, total });
                }
                other => other?,
            }
        }
        Ok(Buffer { device: self.clone(), address, len: bytes, owned: true })
    }

    /// Memory that another library owns, such as that of a torch tensor. It is never freed here.
    ///
    /// # Safety
    /// `bytes` from `address` on must be memory of this GPU that stays alive as long as the result, and that nobody
    /// else writes while the result is read, nor uses while it is written.
    pub unsafe fn buffer_from_raw(&self, address: u64, bytes: usize) -> Buffer {
        Buffer { device: self.clone(), address, len: bytes, owned: false }
    }

    /// Allocates device memory that holds a copy of `data`.
    pub fn upload(&self, data: &[u8]) -> Result<Buffer> {
        let mut buffer = self.alloc(data.len())?;
        buffer.copy_from_host(data)?;
        Ok(buffer)
    }
}

impl Buffer {
    /// Its device address; 0 where the buffer is empty.
    pub fn ptr(&self) -> u64 {
        self.address
    }

    /// The device address of one of its bytes, or of its end.
    pub fn ptr_at(&self, offset: usize) -> Result<u64> {
        self.range("a view", offset, 0)?;
        Ok(self.address + offset as u64)
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The GPU it is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Copies `data` to its beginning.
    pub fn copy_from_host(&mut self, data: &[u8]) -> Result<()> {
        self.copy_from_host_at(0, data)
    }

    /// Copies `data` to an offset.
    pub fn copy_from_host_at(&mut self, offset: usize, data: &[u8]) -> Result<()> {
        // SAFETY: `blocking` waits for the copy before `data` can go away.
        self.blocking(|buffer, stream| unsafe { buffer.raw_from_host(offset, data, stream) })
    }

    /// Copies its beginning to `data`.
    pub fn copy_to_host(&self, data: &mut [u8]) -> Result<()> {
        self.copy_to_host_at(0, data)
    }

    /// Copies what is at an offset to `data`.
    pub fn copy_to_host_at(&self, offset: usize, data: &mut [u8]) -> Result<()> {
        // SAFETY: `blocking` waits for the copy before `data` can go away.
        self.blocking(|buffer, stream| unsafe { buffer.raw_to_host(offset, data, stream) })
    }

    /// All of its bytes, copied to the host.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut data = vec![0; self.len];
        self.copy_to_host(&mut data)?;
        Ok(data)
    }

    /// Sets every byte.
    pub fn fill_u8(&mut self, value: u8) -> Result<()> {
        self.blocking(|buffer, stream| buffer.raw_fill_u8(value, stream))
    }

    /// Sets every 32-bit word; the length must be a multiple of four.
    pub fn fill_u32(&mut self, value: u32) -> Result<()> {
        self.blocking(|buffer, stream| buffer.raw_fill_u32(0, buffer.len, value, stream))
    }

    /// Copies the beginning of another buffer of the same GPU to the beginning of this one.
    pub fn copy_from(&mut self, from: &Buffer, bytes: usize) -> Result<()> {
        self.blocking(|buffer, stream| buffer.raw_from(from, bytes, stream))
    }

    /// Copies `data` to an offset, in the order of a stream.
    ///
    /// # Safety
    /// `data` must stay alive and unchanged until the stream has reached this copy; where the stream is being
    /// captured, as long as the graph is launched.
    pub unsafe fn copy_from_host_async(&mut self, offset: usize, data: &[u8], stream: &Stream) -> Result<()> {
        let _current = self.on(stream)?;
        // SAFETY: the caller keeps `data`.
        unsafe { self.raw_from_host(offset, data, stream.handle()) }
    }

    /// Copies what is at an offset to `data`, in the order of a stream.
    ///
    /// # Safety
    /// `data` must stay alive and untouched until the stream has reached this copy; where the stream is being
    /// captured, as long as the graph is launched.
    pub unsafe fn copy_to_host_async(&self, offset: usize, data: &mut [u8], stream: &Stream) -> Result<()> {
        let _current = self.on(stream)?;
        // SAFETY: the caller keeps `data`.
        unsafe { self.raw_to_host(offset, data, stream.handle()) }
    }

    /// Sets every byte, in the order of a stream.
    pub fn fill_u8_async(&mut self, value: u8, stream: &Stream) -> Result<()> {
        let _current = self.on(stream)?;
        self.raw_fill_u8(value, stream.handle())
    }

    /// Sets every 32-bit word, in the order of a stream; the length must be a multiple of four.
    pub fn fill_u32_async(&mut self, value: u32, stream: &Stream) -> Result<()> {
        let _current = self.on(stream)?;
        self.raw_fill_u32(0, self.len, value, stream.handle())
    }

    /// Copies the beginning of another buffer of the same GPU to the beginning of this one, in the order of a stream.
    pub fn copy_from_async(&mut self, from: &Buffer, bytes: usize, stream: &Stream) -> Result<()> {
        let _current = self.on(stream)?;
        self.raw_from(from, bytes, stream.handle())
    }

    fn on(&self, stream: &Stream) -> Result<crate::device::Current> {
        self.device.expect("the stream", stream.device())?;
        self.device.make_current()
    }

    /// Runs `work` on the default stream with the rest of the GPU idle, and waits for it.
    fn blocking(&self, work: impl FnOnce(&Buffer, CUstream) -> Result<()>) -> Result<()> {
        let _current = self.device.make_current()?;
        let driver = self.device.driver();
        // SAFETY: the context is current.
        unsafe { driver.cuCtxSynchronize()? };
        let done = work(self, ptr::null_mut());
        // SAFETY: the null handle is the default stream.
        unsafe { driver.cuStreamSynchronize(ptr::null_mut())? };
        done
    }

    fn range(&self, what: &'static str, offset: usize, len: usize) -> Result<CUdeviceptr> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.address + offset as u64),
            _ => Err(Error::OutOfBounds { what, offset, len, size: self.len }),
        }
    }

    /// # Safety
    /// The context must be current, and `data` must live until the copy is done.
    unsafe fn raw_from_host(&self, offset: usize, data: &[u8], stream: CUstream) -> Result<()> {
        let to = self.range("a copy", offset, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: the range was checked; the caller keeps the rest.
        unsafe { self.device.driver().cuMemcpyHtoDAsync_v2(to, data.as_ptr().cast(), data.len(), stream) }
    }

    /// # Safety
    /// The context must be current, and `data` must live until the copy is done.
    unsafe fn raw_to_host(&self, offset: usize, data: &mut [u8], stream: CUstream) -> Result<()> {
        let from = self.range("a copy", offset, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        let to: *mut c_void = data.as_mut_ptr().cast();
        // SAFETY: the range was checked; the caller keeps the rest.
        unsafe { self.device.driver().cuMemcpyDtoHAsync_v2(to, from, data.len(), stream) }
    }

    fn raw_from(&self, from: &Buffer, bytes: usize, stream: CUstream) -> Result<()> {
        self.device.expect("the source buffer", &from.device)?;
        let (to, from) = (self.range("a copy", 0, bytes)?, from.range("a copy", 0, bytes)?);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges were checked and are on this GPU, whose context every caller makes current.
        unsafe { self.device.driver().cuMemcpyDtoDAsync_v2(to, from, bytes, stream) }
    }

    fn raw_fill_u8(&self, value: u8, stream: CUstream) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        // SAFETY: the whole buffer, on this GPU, whose context every caller makes current.
        unsafe { self.device.driver().cuMemsetD8Async(self.address, value, self.len, stream) }
    }

    pub(crate) fn raw_fill_u32(&self, offset: usize, len: usize, value: u32, stream: CUstream) -> Result<()> {
        let address = self.range("a fill", offset, len)?;
        if !offset.is_multiple_of(4) || !len.is_multiple_of(4) {
            return Err(Error::Misaligned { offset, len });
        }
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the range was checked and is on this GPU, whose context every caller makes current.
        unsafe { self.device.driver().cuMemsetD32Async(address, value, len / 4, stream) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.address == 0 || !self.owned {
            return;
        }
        if let Ok(_current) = self.device.make_current() {
            // SAFETY: allocated by `alloc` and freed only here. The driver waits for work that may still use it.
            let _ = unsafe { self.device.driver().cuMemFree_v2(self.address) };
        }
    }
}
