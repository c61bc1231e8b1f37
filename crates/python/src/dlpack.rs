//! The C structures of DLPack, and how a tensor is read through them.
//!
//! A library such as torch offers functions that describe a tensor without owning it and that tell its current stream:
//! the exchange API, a capsule on the class. Everything else has `__dlpack__`.

use std::ffi::{c_int, c_void};

use oxigemm::DType;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::array::{Array, Location};
use crate::error::argument_error;

const CPU: i32 = 1;
pub const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;

#[repr(C)]
#[derive(Clone, Copy)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    rank: i32,
    dtype: DataType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// A tensor of `__dlpack__`; what follows it is of no interest.
#[repr(C)]
struct Managed {
    tensor: DlTensor,
}

/// The same since DLPack 1.0.
#[repr(C)]
struct ManagedVersioned {
    version: Version,
    context: *mut c_void,
    deleter: *mut c_void,
    flags: u64,
    tensor: DlTensor,
}

const READ_ONLY: u64 = 1;

#[repr(C)]
struct ExchangeTable {
    version: Version,
    previous: *const ExchangeTable,
    allocate: *const c_void,
    export: *const c_void,
    import: *const c_void,
    describe: Option<unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int>,
    current_stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}

/// What a library offers for the tensors of a class.
#[derive(Clone, Copy)]
pub struct Exchange(&'static ExchangeTable);

// SAFETY: a table of functions that nobody changes.
unsafe impl Send for Exchange {}
// SAFETY: as above.
unsafe impl Sync for Exchange {}

impl Exchange {
    /// The table of a class, if it has one of a version that is known here.
    pub fn of(class: &Bound<'_, PyAny>) -> Option<Exchange> {
        let capsule = class.getattr("__dlpack_c_exchange_api__").ok()?;
        let capsule = capsule.cast::<PyCapsule>().ok()?;
        let table = capsule.pointer_checked(Some(c"dlpack_exchange_api")).ok()?;
        // SAFETY: by the name of the capsule this is such a table, and tables live as long as the process.
        let mut table: Option<&'static ExchangeTable> =
            unsafe { table.cast::<ExchangeTable>().as_ptr().as_ref() };
        while let Some(found) = table {
            if found.version.major == 1 {
                return found.describe.is_some().then_some(Exchange(found));
            }
            // SAFETY: tables of other versions begin with the same two fields.
            table = unsafe { found.previous.as_ref() };
        }
        None
    }

    /// Reads a tensor, which `object` keeps alive.
    #[inline]
    pub fn read(self, name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Array> {
        let mut tensor = std::mem::MaybeUninit::<DlTensor>::uninit();
        let describe = self.0.describe.expect("it was looked for");
        // SAFETY: the object is of the class that the table belongs to.
        let failed = unsafe { describe(object.as_ptr().cast(), tensor.as_mut_ptr()) };
        if failed != 0 {
            let error = PyErr::take(object.py()).unwrap_or_else(|| PyBufferError::new_err("it says no more"));
            return Err(unreadable(object.py(), name, error));
        }
        // SAFETY: it was written; what it points to lives as long as the object.
        unsafe { tensor.assume_init_ref().array(name, object.py()) }
    }

    /// The stream that the library puts work into now.
    #[inline]
    pub fn current_stream(self, gpu: usize) -> Option<*mut c_void> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: `stream` is valid for writes.
        let failed = unsafe { self.0.current_stream?(CUDA, gpu as i32, &mut stream) };
        (failed == 0).then_some(stream)
    }
}

/// The error of an object whose library does not tell what it holds.
#[cold]
fn unreadable(py: Python<'_>, name: &str, error: PyErr) -> PyErr {
    // The first line: torch adds the stack.
    let text = error.value(py).to_string();
    let found = text.lines().next().unwrap_or_default().to_owned();
    let expected = "a dense array in memory of a CPU or a GPU";
    let named = argument_error(py, name, "cannot be read", expected, &found);
    named.set_cause(py, Some(error));
    named
}

/// Reads anything that has `__dlpack__`; the capsule keeps the memory.
pub fn read<'py>(name: &'static str, object: &Bound<'py, PyAny>) -> PyResult<(Array, Bound<'py, PyAny>)> {
    let unread = |error| unreadable(object.py(), name, error);
    let capsule = object.call_method0("__dlpack__").map_err(unread)?;
    let found = capsule.cast::<PyCapsule>().map_err(|error| unread(error.into()))?;
    let array = if let Ok(pointer) = found.pointer_checked(Some(c"dltensor_versioned")) {
        // SAFETY: by its name the capsule holds this structure, and keeps it.
        let managed: &ManagedVersioned = unsafe { pointer.cast().as_ref() };
        if managed.version.major != 1 {
            let (py, found) = (object.py(), format!("DLPack {}", managed.version.major));
            return Err(argument_error(py, name, "cannot be read", "DLPack 1 or older", &found));
        }
        // SAFETY: the capsule keeps what it points to.
        let mut array = unsafe { managed.tensor.array(name, object.py())? };
        array.read_only = managed.flags & READ_ONLY != 0;
        array
    } else {
        let pointer = found.pointer_checked(Some(c"dltensor")).map_err(unread)?;
        // SAFETY: as above.
        let managed: &Managed = unsafe { pointer.cast().as_ref() };
        // SAFETY: as above.
        unsafe { managed.tensor.array(name, object.py())? }
    };
    Ok((array, capsule))
}

impl DlTensor {
    /// # Safety
    /// Shape and strides must be as many numbers as the rank says.
    #[inline]
    unsafe fn array(&self, name: &'static str, py: Python<'_>) -> PyResult<Array> {
        let dtype = self.dtype.known().ok_or_else(|| {
            let DataType { code, bits, lanes } = self.dtype;
            let kind = ["int", "uint", "float", "opaque", "bfloat", "complex", "bool"].get(code as usize);
            if let Some(kind) = kind.filter(|_| lanes == 1) {
                return crate::error::dtype_error(py, name, &format!("{kind}{bits}"));
            }
            crate::error::dtype_error(
                py,
                name,
                &format!("DLPack type {code} of {bits} bits and {lanes} lanes"),
            )
        })?;
        let location = match self.device_type {
            CPU | CUDA_HOST => Location::Host,
            CUDA | CUDA_MANAGED => Location::Cuda(self.device_id as usize),
            other => {
                let found = format!("DLPack device type {other}");
                return Err(argument_error(
                    py,
                    name,
                    "is on the wrong device",
                    "a CPU or a CUDA GPU",
                    &found,
                ));
            }
        };
        let rank = self.rank as usize;
        // SAFETY: the caller promises that.
        let dims = unsafe { numbers(self.shape, rank) };
        // SAFETY: as above; without strides there are no gaps.
        let strides = (!self.strides.is_null()).then(|| unsafe { numbers(self.strides, rank) });
        let address = self.data.addr() as u64 + self.byte_offset;
        Array::new(py, name, dtype, dims, strides, address, location)
    }
}

/// # Safety
/// There must be so many.
unsafe fn numbers<'a>(first: *const i64, count: usize) -> &'a [i64] {
    // SAFETY: the caller promises that.
    if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(first, count) } }
}

impl DataType {
    fn known(self) -> Option<DType> {
        if self.lanes != 1 {
            return None;
        }
        match (self.code, self.bits) {
            (10, 8) => Some(DType::E4m3),
            (12, 8) => Some(DType::E5m2),
            (4, 16) => Some(DType::Bf16),
            (2, 16) => Some(DType::F16),
            (2, 32) => Some(DType::F32),
            (0, 32) => Some(DType::I32),
            // UE8M0 is exponents in bytes.
            (0 | 1 | 14, 8) => Some(DType::U8),
            _ => None,
        }
    }
}
