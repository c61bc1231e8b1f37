//! cuBLASLt GEMMs of any shape: a baseline for other kernels.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use super::{Algorithm, COMPUTE_F32, F32, Functions, Handle, Heuristic, functions};
use super::{BF16, DESC_TRANSPOSE_A, E4M3, PREFERENCE_WORKSPACE, TRANSPOSE, WORKSPACE_BYTES};
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::stream::Stream;

const F16: c_int = 2;
const E5M2: c_int = 29;
const DESC_TRANSPOSE_B: c_int = 4;
const DESC_SM_TARGET: c_int = 15;
const LAYOUT_BATCH: c_int = 5;
const LAYOUT_BATCH_STRIDE: c_int = 6;

/// The type of a matrix's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// FP8 with 4 exponent bits.
    E4m3,
    /// FP8 with 5 exponent bits.
    E5m2,
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
}

impl Number {
    fn code(self) -> c_int {
        match self {
            Number::E4m3 => E4M3,
            Number::E5m2 => E5M2,
            Number::Bf16 => BF16,
            Number::F16 => F16,
            Number::F32 => F32,
        }
    }
}

/// A matrix, or a batch of them. Strides are in elements.
#[derive(Debug, Clone, Copy)]
pub struct Matrix {
    /// Device address.
    pub address: u64,
    /// Element type.
    pub number: Number,
    /// Whether its second dimension is contiguous, and not its first.
    pub row_major: bool,
    /// From one row to the next, or from one column to the next.
    pub pitch: usize,
    /// From one matrix of a batch to the next.
    pub batch_stride: usize,
}

/// A GEMM: `D = C + A Bᵀ`, with A `[m, k]`, B `[n, k]` and D `[m, n]`.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    /// Rows of A and D.
    pub m: usize,
    /// Rows of B.
    pub n: usize,
    /// Columns of A and B.
    pub k: usize,
    /// GEMMs of the batch.
    pub batch: usize,
    /// A.
    pub a: Matrix,
    /// B.
    pub b: Matrix,
    /// Addend, row-major as D.
    pub c: Option<Matrix>,
    /// The result, row-major.
    pub d: Matrix,
    /// SMs that cuBLASLt plans for; 0 for all.
    pub sms: u32,
}

impl Product {
    /// Launches the GEMM in a stream.
    ///
    /// # Safety
    /// The matrices must be memory of this GPU, as large as is said, until the stream has passed the GEMM.
    ///
    /// # Errors
    /// If there is no cuBLASLt, or it has no kernel for this.
    pub unsafe fn launch(&self, device: &Device, stream: &Stream) -> Result<()> {
        device.expect("the stream", stream.device())?;
        let lt = functions()?;
        let _current = device.make_current()?;
        let library = library(lt, device)?;
        let workspace = workspace(device, stream)?;
        // cuBLASLt is column-major: its first operand is our B, its second our A, and its result, transposed, ours.
        let operation = Operation::new(lt)?;
        if self.b.row_major {
            operation.set(DESC_TRANSPOSE_A, &TRANSPOSE)?;
        }
        if !self.a.row_major {
            operation.set(DESC_TRANSPOSE_B, &TRANSPOSE)?;
        }
        if self.sms != 0 {
            operation.set(DESC_SM_TARGET, &(self.sms as i32))?;
        }
        let c = self.c.unwrap_or(self.d);
        let layouts = [
            (&self.b, self.n, self.k),
            (&self.a, self.m, self.k),
            (&c, self.m, self.n),
            (&self.d, self.m, self.n),
        ];
        let [first, second, added, result] =
            layouts.map(|(matrix, rows, columns)| Layout::new(lt, matrix, [rows, columns], self.batch));
        let (first, second, added, result) = (first?, second?, added?, result?);
        let preference = Preference::new(lt)?;
        let mut best = Heuristic {
            algorithm: Algorithm([0; 8]),
            workspace_bytes: 0,
            state: 0,
            waves: 0.0,
            reserved: [0; 4],
        };
        let mut found = 0;
        let (alpha, beta) = (1.0f32, if self.c.is_some() { 1.0f32 } else { 0.0 });
        let at = |matrix: &Matrix| matrix.address as *mut c_void;
        // SAFETY: every handle is alive, there is space for the one result that is requested, and the caller keeps the
        // matrices; the workspace is that of this stream.
        unsafe {
            lt.cublasLtMatmulAlgoGetHeuristic(
                library,
                operation.handle,
                first.handle,
                second.handle,
                added.handle,
                result.handle,
                preference.handle,
                1,
                &mut best,
                &mut found,
            )?;
            if found < 1 || best.state != 0 {
                let text = "there is no such product for this GPU".into();
                return Err(Error::Library {
                    call: "cublasLtMatmulAlgoGetHeuristic",
                    code: best.state,
                    text,
                });
            }
            lt.cublasLtMatmul(
                library,
                operation.handle,
                (&raw const alpha).cast(),
                at(&self.b),
                first.handle,
                at(&self.a),
                second.handle,
                (&raw const beta).cast(),
                at(&c),
                added.handle,
                at(&self.d),
                result.handle,
                &best.algorithm,
                workspace as *mut c_void,
                WORKSPACE_BYTES,
                stream.raw(),
            )
        }
    }
}

/// The handle of a GPU, made once and kept.
fn library(lt: &Functions, device: &Device) -> Result<Handle> {
    static HANDLES: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);
    let mut handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    let handles = handles.get_or_insert_default();
    let context = device.raw_context().addr();
    if let Some(handle) = handles.get(&context) {
        return Ok(ptr::with_exposed_provenance_mut(*handle));
    }
    let mut handle = ptr::null_mut();
    // SAFETY: there is a place to write to, and the context is current.
    unsafe { lt.cublasLtCreate(&mut handle)? };
    handles.insert(context, handle.expose_provenance());
    Ok(handle)
}

/// The workspace of a stream, made once and kept.
fn workspace(device: &Device, stream: &Stream) -> Result<u64> {
    static WORKSPACES: Mutex<Option<HashMap<(usize, usize), Buffer>>> = Mutex::new(None);
    let mut workspaces = WORKSPACES.lock().unwrap_or_else(PoisonError::into_inner);
    let workspaces = workspaces.get_or_insert_default();
    let key = (device.raw_context().addr(), stream.raw().addr());
    if let Some(buffer) = workspaces.get(&key) {
        return Ok(buffer.ptr());
    }
    let buffer = device.alloc(WORKSPACE_BYTES)?;
    let address = buffer.ptr();
    workspaces.insert(key, buffer);
    Ok(address)
}

/// Matmul descriptor; destroyed when it is dropped.
struct Operation<'a> {
    lt: &'a Functions,
    handle: Handle,
}

impl<'a> Operation<'a> {
    fn new(lt: &'a Functions) -> Result<Self> {
        let mut handle = ptr::null_mut();
        // SAFETY: there is a place to write to.
        unsafe { lt.cublasLtMatmulDescCreate(&mut handle, COMPUTE_F32, F32)? };
        Ok(Operation { lt, handle })
    }

    /// Sets an attribute of four bytes.
    fn set(&self, attribute: c_int, value: &i32) -> Result<()> {
        let address = ptr::from_ref(value).cast();
        // SAFETY: the value is alive and as large as is said.
        unsafe { self.lt.cublasLtMatmulDescSetAttribute(self.handle, attribute, address, 4) }
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `new` and destroyed only here.
        let _ = unsafe { self.lt.cublasLtMatmulDescDestroy(self.handle) };
    }
}

/// Matrix layout; destroyed when it is dropped.
struct Layout<'a> {
    lt: &'a Functions,
    handle: Handle,
}

impl<'a> Layout<'a> {
    fn new(lt: &'a Functions, matrix: &Matrix, [rows, columns]: [usize; 2], batch: usize) -> Result<Self> {
        let mut handle = ptr::null_mut();
        // A row-major matrix is its transposed one, column by column.
        let [rows, columns] = if matrix.row_major { [columns, rows] } else { [rows, columns] };
        let code = matrix.number.code();
        // SAFETY: there is a place to write to.
        unsafe {
            lt.cublasLtMatrixLayoutCreate(
                &mut handle,
                code,
                rows as u64,
                columns as u64,
                matrix.pitch as i64,
            )?;
        }
        let layout = Layout { lt, handle };
        if batch > 1 {
            let (count, stride) = (batch as i32, matrix.batch_stride as i64);
            // SAFETY: the values are alive and as large as is said.
            unsafe {
                lt.cublasLtMatrixLayoutSetAttribute(handle, LAYOUT_BATCH, (&raw const count).cast(), 4)?;
                lt.cublasLtMatrixLayoutSetAttribute(
                    handle,
                    LAYOUT_BATCH_STRIDE,
                    (&raw const stride).cast(),
                    8,
                )?;
            }
        }
        Ok(layout)
    }
}

impl Drop for Layout<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `new` and destroyed only here.
        let _ = unsafe { self.lt.cublasLtMatrixLayoutDestroy(self.handle) };
    }
}

/// Algorithm preference; destroyed when it is dropped.
struct Preference<'a> {
    lt: &'a Functions,
    handle: Handle,
}

impl<'a> Preference<'a> {
    fn new(lt: &'a Functions) -> Result<Self> {
        let mut handle = ptr::null_mut();
        // SAFETY: there is a place to write to.
        unsafe { lt.cublasLtMatmulPreferenceCreate(&mut handle)? };
        let preference = Preference { lt, handle };
        let bytes = ptr::from_ref(&WORKSPACE_BYTES).cast();
        // SAFETY: the value is alive and as large as is said.
        unsafe {
            lt.cublasLtMatmulPreferenceSetAttribute(handle, PREFERENCE_WORKSPACE, bytes, size_of::<usize>())?;
        }
        Ok(preference)
    }
}

impl Drop for Preference<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `new` and destroyed only here.
        let _ = unsafe { self.lt.cublasLtMatmulPreferenceDestroy(self.handle) };
    }
}
