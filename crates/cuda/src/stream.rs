//! Streams and events.

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUDA_MEMCPY2D, CUevent, CUevent_flags, CUmemorytype, CUstream, CUstream_flags};

use crate::buffer::Buffer;
use crate::device::Device;
use crate::driver::NOT_READY;
use crate::error::{Error, Result};

/// A queue of work. Clones stand for the same one.
///
/// It is one of ours, destroyed with its last clone; the default stream of the GPU; or a stream of another
/// library, which is never destroyed here.
#[derive(Clone)]
pub struct Stream {
    device: Device,
    handle: CUstream,
    /// Present where the stream is ours: its last clone destroys it.
    owned: Option<Arc<Owned>>,
}

struct Owned {
    device: Device,
    handle: CUstream,
    id: u64,
}

// SAFETY: stream handles may be used from every thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}
// SAFETY: as above.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Device {
    /// The default stream, which libraries such as torch use unless they are told otherwise.
    pub fn default_stream(&self) -> Stream {
        Stream { device: self.clone(), handle: ptr::null_mut(), owned: None }
    }

    /// A stream of its own, which does not wait for the default stream.
    pub fn new_stream(&self) -> Result<Stream> {
        let _current = self.make_current()?;
        let mut handle = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: `handle` is a valid place to write to, and the context is current.
        unsafe { self.driver().cuStreamCreate(&mut handle, flags)? };
        let mut owned = Owned { device: self.clone(), handle, id: 0 };
        // SAFETY: `id` is a valid place to write to, the handle a live stream of the current context.
        unsafe { self.driver().cuStreamGetId(handle, &mut owned.id)? };
        Ok(Stream { device: self.clone(), handle, owned: Some(Arc::new(owned)) })
    }

    /// A stream that another library owns, such as torch's current stream. It is never destroyed here.
    ///
    /// # Safety
    /// `raw` must be a `CUstream` (or `cudaStream_t`) of this GPU's primary context, and must stay alive as
    /// long as the result or a clone of it is used.
    pub unsafe fn stream_from_raw(&self, raw: *mut c_void) -> Stream {
        Stream { device: self.clone(), handle: raw.cast(), owned: None }
    }

    /// An event that can tell times.
    pub fn event(&self) -> Result<Event> {
        let _current = self.make_current()?;
        let mut handle = ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DEFAULT as c_uint;
        // SAFETY: `handle` is a valid place to write to, and the context is current.
        unsafe { self.driver().cuEventCreate(&mut handle, flags)? };
        Ok(Event { device: self.clone(), handle })
    }
}

impl Stream {
    /// The GPU it belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The raw handle, as other libraries take it.
    pub fn raw(&self) -> *mut c_void {
        self.handle.cast()
    }

    #[inline]
    pub(crate) fn handle(&self) -> CUstream {
        self.handle
    }

    /// Waits until everything that was put into it is done.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.device.make_current()?;
        // SAFETY: the handle is a live stream of the current context.
        unsafe { self.device.driver().cuStreamSynchronize(self.handle) }
    }

    /// Whether everything that was put into it is done.
    pub fn is_idle(&self) -> Result<bool> {
        let _current = self.device.make_current()?;
        // SAFETY: the handle is a live stream of the current context.
        is_ready(unsafe { self.device.driver().cuStreamQuery(self.handle) })
    }

    /// The stream's id, which no other stream of a process ever has; a handle may be that of a stream destroyed before.
    ///
    /// `None` where another library's stream is being captured: the driver does not permit the query then.
    pub fn id(&self) -> Result<Option<u64>> {
        if let Some(owned) = &self.owned {
            return Ok(Some(owned.id));
        }
        if self.is_capturing()? {
            return Ok(None);
        }
        let _current = self.device.make_current()?;
        let mut id = 0;
        // SAFETY: `id` is a valid place to write to, the handle a live stream of the current context.
        unsafe { self.device.driver().cuStreamGetId(self.handle, &mut id)? };
        Ok(Some(id))
    }

    /// Whether it is being captured into a graph, here or by another library.
    pub fn is_capturing(&self) -> Result<bool> {
        let _current = self.device.make_current()?;
        let mut status = 0;
        // SAFETY: `status` is a valid place to write to, the handle a live stream of the current context.
        unsafe { self.device.driver().cuStreamIsCapturing(self.handle, &mut status)? };
        Ok(status != 0)
    }

    /// The number of the capture that records it, here or by another library; no two captures of a process have the
    /// same.
    pub fn capture_id(&self) -> Result<Option<u64>> {
        let _current = self.device.make_current()?;
        let (mut status, mut id) = (0, 0);
        let (graph, dependencies, count) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        // SAFETY: `status` and `id` are valid places to write to, the others may be null, the handle is a live stream
        // of the current context.
        unsafe {
            let driver = self.device.driver();
            driver.cuStreamGetCaptureInfo_v2(
                self.handle,
                &mut status,
                &mut id,
                graph,
                dependencies,
                count,
            )?;
        }
        Ok((status != 0).then_some(id))
    }

    /// Puts an event into it, which happens when everything before it is done.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.device.expect("the event", &event.device)?;
        let _current = self.device.make_current()?;
        // SAFETY: both handles are alive and of the current context.
        unsafe { self.device.driver().cuEventRecord(event.handle, self.handle) }
    }

    /// Makes what is put into it later wait for an event.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let _current = self.device.make_current()?;
        // SAFETY: both handles are alive; the event may be of another GPU.
        unsafe { self.device.driver().cuStreamWaitEvent(self.handle, event.handle, 0) }
    }

    /// Sets the 32-bit words of a part of a buffer; offset and length in bytes, both multiples of four.
    ///
    /// To a profiler this is a memset and not a kernel.
    pub fn fill_u32_async(&self, buffer: &mut Buffer, offset: usize, len: usize, value: u32) -> Result<()> {
        self.device.expect("the buffer", buffer.device())?;
        let _current = self.device.make_current()?;
        buffer.raw_fill_u32(offset, len, value, self.handle)
    }

    /// Sets the bytes of `rows` rows of `width` bytes; the first is at `address`, the others each `pitch` further.
    ///
    /// # Safety
    /// The rows must be memory of this GPU, alive and not otherwise used until the stream has reached the fill,
    /// or, where it is being captured, whenever the graph is launched.
    pub unsafe fn fill_rows_async(
        &self,
        [address, pitch]: [u64; 2],
        width: usize,
        rows: usize,
        value: u8,
    ) -> Result<()> {
        let _current = self.device.make_current()?;
        let pitch = if rows > 1 { pitch as usize } else { width };
        // SAFETY: the context is current; the caller keeps the memory.
        unsafe { self.device.driver().cuMemsetD2D8Async(address, pitch, value, width, rows, self.handle) }
    }

    /// Copies `rows` rows of `width` bytes within this GPU; `to` and `from` are the address of the first row and
    /// the pitch.
    ///
    /// # Safety
    /// As for [`fill_rows_async`](Self::fill_rows_async), for both. They must not overlap.
    pub unsafe fn copy_rows_async(
        &self,
        to: [u64; 2],
        from: [u64; 2],
        width: usize,
        rows: usize,
    ) -> Result<()> {
        let _current = self.device.make_current()?;
        let pitch = |[_, pitch]: [u64; 2]| if rows > 1 { pitch as usize } else { width };
        let copy = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: ptr::null(),
            srcDevice: from[0],
            srcArray: ptr::null_mut(),
            srcPitch: pitch(from),
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: ptr::null_mut(),
            dstDevice: to[0],
            dstArray: ptr::null_mut(),
            dstPitch: pitch(to),
            WidthInBytes: width,
            Height: rows,
        };
        // SAFETY: the context is current and `copy` lives for the call; the caller keeps the memory.
        unsafe { self.device.driver().cuMemcpy2DAsync_v2(&copy, self.handle) }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.make_current() {
            // SAFETY: created by `new_stream` and destroyed only here; the driver finishes queued work first.
            let _ = unsafe { self.device.driver().cuStreamDestroy_v2(self.handle) };
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({:?} of GPU {})", self.handle, self.device.ordinal())
    }
}

/// A point in a stream, to wait for or to measure between.
#[derive(Debug)]
pub struct Event {
    device: Device,
    handle: CUevent,
}

// SAFETY: event handles may be used from every thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// The GPU it belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Waits until it has happened.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.device.make_current()?;
        // SAFETY: the handle is a live event.
        unsafe { self.device.driver().cuEventSynchronize(self.handle) }
    }

    /// Whether it has happened.
    pub fn has_happened(&self) -> Result<bool> {
        let _current = self.device.make_current()?;
        // SAFETY: the handle is a live event.
        is_ready(unsafe { self.device.driver().cuEventQuery(self.handle) })
    }

    /// The milliseconds between this event and a later one; both must have happened.
    pub fn elapsed_ms(&self, later: &Event) -> Result<f32> {
        let _current = self.device.make_current()?;
        let mut milliseconds = 0.0;
        // SAFETY: both handles are live events, and the result has a place to go.
        unsafe { self.device.driver().cuEventElapsedTime(&mut milliseconds, self.handle, later.handle)? };
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.make_current() {
            // SAFETY: created by `event` and destroyed only here.
            let _ = unsafe { self.device.driver().cuEventDestroy_v2(self.handle) };
        }
    }
}

fn is_ready(answer: Result<()>) -> Result<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(Error::Driver { code: NOT_READY, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
