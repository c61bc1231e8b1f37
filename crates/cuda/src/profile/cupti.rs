//! Kernel durations from CUPTI's activity records.
//!
//! CUPTI's buffers and callbacks belong to the process, so they are set up once and one [`Session`] runs at a
//! time. A profiler of another library that registers its own callbacks afterwards takes the records away.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_char, c_int, c_uint};
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::sys::CUcontext;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::library::{library_functions, symbol, words};

type RequestBuffer = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type BufferDone = unsafe extern "C" fn(CUcontext, c_uint, *mut u8, usize, usize);

library_functions! {
    /// The functions of libcupti that are called here.
    struct Functions = "cupti" in "cuda_cupti";
    fn cuptiActivityRegisterCallbacks(request: RequestBuffer, done: BufferDone);
    fn cuptiActivityEnable(kind: c_uint);
    fn cuptiActivityDisable(kind: c_uint);
    fn cuptiActivityFlushAll(flags: c_uint);
    fn cuptiActivityGetNextRecord(buffer: *mut u8, valid: usize, record: *mut *mut KernelActivity);
}

const CONCURRENT_KERNEL: c_uint = 10;
const FLUSH_FORCED: c_uint = 1;
const BUFFER: Layout = match Layout::from_size_align(4 << 20, 8) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

/// The beginning of `CUpti_ActivityKernel3` to `CUpti_ActivityKernel13`, which has not changed between them.
#[repr(C)]
struct KernelActivity {
    kind: c_uint,
    _configuration: [u32; 3],
    start: u64,
    end: u64,
    _completed: u64,
    _device_to_local_memory: [u32; 13],
    correlation: u32,
    _grid_id: i64,
    name: *const c_char,
}

/// One run of one kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) name: String,
    /// Nanoseconds.
    pub(super) start: u64,
    pub(super) end: u64,
    /// The same for all kernels of one launch, later launches have higher ones.
    pub(super) correlation: u32,
}

static CUPTI: OnceLock<Result<Functions>> = OnceLock::new();
static RECORDS: Mutex<Vec<Record>> = Mutex::new(Vec::new());
static SESSION: Mutex<()> = Mutex::new(());

impl Functions {
    fn describe(&self, code: c_int) -> String {
        type ResultString = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
        let mut text = ptr::null();
        // SAFETY: the signature is that of cupti_result.h, `text` a valid place to write to; the string is static.
        unsafe {
            if let Ok(get) = symbol::<ResultString>(&self.library, "cupti", "cuptiGetResultString") {
                get(code, &mut text);
            }
            words(text)
        }
    }
}

/// CUPTI with our callbacks registered, or why there is none.
fn functions() -> Result<&'static Functions> {
    let set_up = || {
        let functions = Functions::open()?;
        // SAFETY: both callbacks are made for this, and the library stays loaded in a static.
        unsafe { functions.cuptiActivityRegisterCallbacks(request_buffer, buffer_done)? };
        Ok(functions)
    };
    CUPTI.get_or_init(set_up).as_ref().map_err(Clone::clone)
}

/// Kernels are recorded while it lives.
pub(super) struct Session<'a> {
    functions: &'static Functions,
    device: &'a Device,
    _alone: MutexGuard<'static, ()>,
}

impl<'a> Session<'a> {
    /// Waits for another session of this process to end, then begins one.
    pub(super) fn begin(device: &'a Device) -> Result<Self> {
        let functions = functions()?;
        let alone = SESSION.lock().unwrap_or_else(PoisonError::into_inner);
        let _current = device.make_current()?;
        // SAFETY: the kind of activity is one that CUPTI has.
        unsafe { functions.cuptiActivityEnable(CONCURRENT_KERNEL)? };
        let session = Self { functions, device, _alone: alone };
        session.take()?;
        Ok(session)
    }

    /// Waits for the GPU and gives what was recorded since the last time, in the order of execution.
    pub(super) fn take(&self) -> Result<Vec<Record>> {
        self.device.synchronize()?;
        let _current = self.device.make_current()?;
        // SAFETY: the callbacks are registered; they do not take the session's lock.
        unsafe { self.functions.cuptiActivityFlushAll(FLUSH_FORCED)? };
        let mut records = std::mem::take(&mut *records());
        records.sort_by_key(|record| (record.start, record.correlation));
        if records.iter().any(|record| record.end < record.start || record.start == 0) {
            let text = "a record has no times".into();
            return Err(Error::Library { call: "cuptiActivityFlushAll", code: 0, text });
        }
        Ok(records)
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // SAFETY: enabled in `begin`.
        let _ = unsafe { self.functions.cuptiActivityDisable(CONCURRENT_KERNEL) };
    }
}

fn records() -> MutexGuard<'static, Vec<Record>> {
    RECORDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// CUPTI asks for memory to write records to. Without it, it drops them.
unsafe extern "C" fn request_buffer(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize) {
    // SAFETY: the layout has a size; CUPTI gives three valid places to write to.
    unsafe {
        *buffer = alloc(BUFFER);
        *size = if (*buffer).is_null() { 0 } else { BUFFER.size() };
        *max_records = 0;
    }
}

/// CUPTI gives the memory back, `valid` bytes of it written.
unsafe extern "C" fn buffer_done(_: CUcontext, _: c_uint, buffer: *mut u8, _: usize, valid: usize) {
    if buffer.is_null() {
        return;
    }
    if let Some(Ok(functions)) = CUPTI.get() {
        let mut record: *mut KernelActivity = ptr::null_mut();
        // SAFETY: the buffer holds `valid` bytes of records; the call gives them one by one and fails at the end.
        while unsafe { functions.cuptiActivityGetNextRecord(buffer, valid, &mut record) }.is_ok() {
            // SAFETY: every record begins with its kind, and one of a kernel as `KernelActivity` does. Records
            // are aligned to 8 bytes. The name is a terminated string.
            unsafe {
                if (*record).kind == CONCURRENT_KERNEL {
                    let KernelActivity { start, end, correlation, name, .. } = *record;
                    records().push(Record { name: words(name), start, end, correlation });
                }
            }
        }
    }
    // SAFETY: allocated by `request_buffer` with this layout.
    unsafe { dealloc(buffer, BUFFER) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_fields_of_a_record_are_where_cupti_puts_them() {
        assert_eq!(offset_of!(KernelActivity, start), 16);
        assert_eq!(offset_of!(KernelActivity, end), 24);
        assert_eq!(offset_of!(KernelActivity, correlation), 92);
        assert_eq!(offset_of!(KernelActivity, name), 104);
    }
}
