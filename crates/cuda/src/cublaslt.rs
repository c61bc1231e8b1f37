//! Calibration GEMM, which tells whether a card is cool, and cuBLASLt GEMMs as a baseline.
//!
//! A GPU at its power cap runs slower than its clock says, by up to a fifth, so two figures can be compared only where
//! a fixed reference agrees. The reference is a cuBLASLt GEMM: FP8 (e4m3), 4096 in every dimension, per-tensor scales,
//! BF16 out. Where cuBLASLt is not found, figures are shown without a calibration. GEMMs of other shapes ([`Product`])
//! are a baseline that nothing depends on.

mod product;

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::library::{library_functions, symbol, words};
use crate::stream::Stream;
pub use product::{Matrix, Number, Product};

/// Rows and columns of both operands and of the result.
pub const SIZE: usize = 4096;

type Handle = *mut c_void;

library_functions! {
    /// The functions of libcublasLt that are called here.
    struct Functions = "cublasLt" in "cublas";
    fn cublasLtCreate(handle: *mut Handle);
    fn cublasLtDestroy(handle: Handle);
    fn cublasLtMatmulDescCreate(operation: *mut Handle, compute: c_int, scale: c_int);
    fn cublasLtMatmulDescDestroy(operation: Handle);
    fn cublasLtMatmulDescSetAttribute(operation: Handle, attribute: c_int, value: *const c_void, bytes: usize);
    fn cublasLtMatrixLayoutCreate(layout: *mut Handle, element: c_int, rows: u64, columns: u64, pitch: i64);
    fn cublasLtMatrixLayoutSetAttribute(layout: Handle, attribute: c_int, value: *const c_void, bytes: usize);
    fn cublasLtMatrixLayoutDestroy(layout: Handle);
    fn cublasLtMatmulPreferenceCreate(preference: *mut Handle);
    fn cublasLtMatmulPreferenceDestroy(preference: Handle);
    fn cublasLtMatmulPreferenceSetAttribute(preference: Handle, attribute: c_int, value: *const c_void, bytes: usize);
    fn cublasLtMatmulAlgoGetHeuristic(handle: Handle, operation: Handle, a: Handle, b: Handle, c: Handle, d: Handle, preference: Handle, wanted: c_int, results: *mut Heuristic, found: *mut c_int);
    fn cublasLtMatmul(handle: Handle, operation: Handle, alpha: *const c_void, a: *const c_void, a_layout: Handle, b: *const c_void, b_layout: Handle, beta: *const c_void, c: *const c_void, c_layout: Handle, d: *mut c_void, d_layout: Handle, algorithm: *const Algorithm, workspace: *mut c_void, workspace_bytes: usize, stream: *mut c_void);
}

// The values of library_types.h, cublas_api.h and cublasLt.h.
const F32: c_int = 0;
const BF16: c_int = 14;
const E4M3: c_int = 28;
const COMPUTE_F32: c_int = 68;
const TRANSPOSE: c_int = 1;
const DESC_TRANSPOSE_A: c_int = 3;
const DESC_SCALE_A: c_int = 17;
const DESC_SCALE_B: c_int = 18;
const DESC_FAST_ACCUMULATION: c_int = 25;
const PREFERENCE_WORKSPACE: c_int = 1;

/// As much as the frameworks give it on Hopper.
const WORKSPACE_BYTES: usize = 32 << 20;

/// Where the second scale lies. Four bytes behind the first, cuBLASLt 13 answered "not supported".
const SCALE_B: usize = 256;

#[repr(C)]
#[derive(Clone, Copy)]
struct Algorithm([u64; 8]);

#[repr(C)]
#[derive(Clone, Copy)]
struct Heuristic {
    algorithm: Algorithm,
    workspace_bytes: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

impl Functions {
    fn describe(&self, code: c_int) -> String {
        type StatusString = unsafe extern "C" fn(c_int) -> *const c_char;
        // SAFETY: the signature is that of cublasLt.h; the string is static.
        unsafe {
            match symbol::<StatusString>(&self.library, "cublasLt", "cublasLtGetStatusString") {
                Ok(get) => words(get(code)),
                Err(_) => words(ptr::null()),
            }
        }
    }
}

/// Loaded once and never unloaded: a library that has used the driver may not survive it.
fn functions() -> Result<&'static Functions> {
    static FUNCTIONS: OnceLock<Result<Functions>> = OnceLock::new();
    FUNCTIONS.get_or_init(Functions::open).as_ref().map_err(Clone::clone)
}

/// Accumulation in the tensor cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accumulation {
    /// In the tensor cores' own narrow accumulators for all of K.
    Fast,
    /// With partial sums promoted to FP32.
    Promoted,
}

/// Operands and result of the calibration GEMM, D = A Bᵀ, ready to be launched.
pub struct Calibration {
    device: Device,
    a: Buffer,
    b: Buffer,
    d: Buffer,
    workspace: Buffer,
    algorithm: Algorithm,
    plan: Plan,
    /// The descriptor holds their address.
    _scales: Buffer,
}

/// The library's own objects, destroyed together.
struct Plan {
    functions: &'static Functions,
    device: Device,
    library: Handle,
    operation: Handle,
    preference: Handle,
    input: Handle,
    output: Handle,
}

// SAFETY: cuBLASLt's handles may be used from every thread, and these are not changed once they are made.
unsafe impl Send for Plan {}
// SAFETY: as above.
unsafe impl Sync for Plan {}

impl Calibration {
    /// With operands of normally distributed values, the same in every run.
    pub fn new(device: &Device, accumulation: Accumulation) -> Result<Self> {
        let (a, b) = (normal_e4m3(1, SIZE * SIZE), normal_e4m3(2, SIZE * SIZE));
        Self::with_inputs(device, accumulation, &a, &b, [1.0 / 64.0; 2])
    }

    /// With given operands: row-major e4m3 bytes, [`SIZE`] by [`SIZE`] each, and the scale of each.
    pub fn with_inputs(
        device: &Device,
        accumulation: Accumulation,
        a: &[u8],
        b: &[u8],
        scales: [f32; 2],
    ) -> Result<Self> {
        for (what, operand) in [("operand A", a), ("operand B", b)] {
            if operand.len() != SIZE * SIZE {
                return Err(Error::WrongSize { what, found: operand.len(), expected: SIZE * SIZE });
            }
        }
        // cuBLASLt is column-major: its first operand is our B, and its result, transposed, ours.
        let mut scale_bytes = vec![0; SCALE_B + 4];
        scale_bytes[..4].copy_from_slice(&scales[1].to_le_bytes());
        scale_bytes[SCALE_B..].copy_from_slice(&scales[0].to_le_bytes());
        let scales = device.upload(&scale_bytes)?;
        let plan = Plan::new(device, accumulation, &scales)?;
        let algorithm = plan.algorithm()?;
        Ok(Self {
            device: device.clone(),
            a: device.upload(a)?,
            b: device.upload(b)?,
            d: device.alloc(SIZE * SIZE * 2)?,
            workspace: device.alloc(WORKSPACE_BYTES)?,
            algorithm,
            plan,
            _scales: scales,
        })
    }

    /// Launches the GEMM in a stream.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        self.device.expect("the stream", stream.device())?;
        let _current = self.device.make_current()?;
        let plan = &self.plan;
        let (alpha, beta) = (1.0f32, 0.0f32);
        let address = |buffer: &Buffer| buffer.ptr() as *mut c_void;
        // SAFETY: the buffers have the sizes that the layouts say and live as long as `self`; the algorithm was
        // found for this operation and this workspace.
        unsafe {
            plan.functions.cublasLtMatmul(
                plan.library,
                plan.operation,
                (&raw const alpha).cast(),
                address(&self.b),
                plan.input,
                address(&self.a),
                plan.input,
                (&raw const beta).cast(),
                address(&self.d),
                plan.output,
                address(&self.d),
                plan.output,
                &self.algorithm,
                address(&self.workspace),
                WORKSPACE_BYTES,
                stream.raw(),
            )
        }
    }

    /// The result: row-major BF16.
    pub fn output(&self) -> &Buffer {
        &self.d
    }

    /// Floating-point operations of one GEMM.
    pub const fn flops() -> f64 {
        2.0 * (SIZE * SIZE * SIZE) as f64
    }
}

impl Plan {
    fn new(device: &Device, accumulation: Accumulation, scales: &Buffer) -> Result<Self> {
        let mut plan = Self {
            functions: functions()?,
            device: device.clone(),
            library: ptr::null_mut(),
            operation: ptr::null_mut(),
            preference: ptr::null_mut(),
            input: ptr::null_mut(),
            output: ptr::null_mut(),
        };
        let _current = device.make_current()?;
        let n = SIZE as u64;
        // SAFETY: each handle has a place to be written to, and `drop` destroys those that were made. The
        // attributes have the types that cublasLt.h gives them.
        unsafe {
            let lt = plan.functions;
            lt.cublasLtCreate(&mut plan.library)?;
            lt.cublasLtMatmulDescCreate(&mut plan.operation, COMPUTE_F32, F32)?;
            lt.cublasLtMatrixLayoutCreate(&mut plan.input, E4M3, n, n, n as i64)?;
            lt.cublasLtMatrixLayoutCreate(&mut plan.output, BF16, n, n, n as i64)?;
            lt.cublasLtMatmulPreferenceCreate(&mut plan.preference)?;
            plan.set(DESC_TRANSPOSE_A, &TRANSPOSE)?;
            plan.set(DESC_SCALE_A, &scales.ptr())?;
            plan.set(DESC_SCALE_B, &scales.ptr_at(SCALE_B)?)?;
            plan.set(DESC_FAST_ACCUMULATION, &i8::from(accumulation == Accumulation::Fast))?;
            lt.cublasLtMatmulPreferenceSetAttribute(
                plan.preference,
                PREFERENCE_WORKSPACE,
                ptr::from_ref(&WORKSPACE_BYTES).cast(),
                size_of::<usize>(),
            )?;
        }
        Ok(plan)
    }

    /// # Safety
    /// The attribute must be of type `T`.
    unsafe fn set<T>(&self, attribute: c_int, value: &T) -> Result<()> {
        let address = ptr::from_ref(value).cast();
        // SAFETY: the value is alive and as large as is said.
        unsafe {
            self.functions.cublasLtMatmulDescSetAttribute(self.operation, attribute, address, size_of::<T>())
        }
    }

    fn algorithm(&self) -> Result<Algorithm> {
        let _current = self.device.make_current()?;
        let mut best = Heuristic {
            algorithm: Algorithm([0; 8]),
            workspace_bytes: 0,
            state: 0,
            waves: 0.0,
            reserved: [0; 4],
        };
        let mut found = 0;
        // SAFETY: every handle is alive, and there is space for the one result that is requested.
        unsafe {
            self.functions.cublasLtMatmulAlgoGetHeuristic(
                self.library,
                self.operation,
                self.input,
                self.input,
                self.output,
                self.output,
                self.preference,
                1,
                &mut best,
                &mut found,
            )?
        };
        if found < 1 || best.state != 0 {
            let text = "there is no FP8 product for this GPU".into();
            return Err(Error::Library { call: "cublasLtMatmulAlgoGetHeuristic", code: best.state, text });
        }
        Ok(best.algorithm)
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        let Ok(_current) = self.device.make_current() else { return };
        let lt = self.functions;
        // SAFETY: each handle that is not null was made by `new` and is destroyed only here.
        unsafe {
            for layout in [self.input, self.output].into_iter().filter(|handle| !handle.is_null()) {
                let _ = lt.cublasLtMatrixLayoutDestroy(layout);
            }
            if !self.preference.is_null() {
                let _ = lt.cublasLtMatmulPreferenceDestroy(self.preference);
            }
            if !self.operation.is_null() {
                let _ = lt.cublasLtMatmulDescDestroy(self.operation);
            }
            if !self.library.is_null() {
                let _ = lt.cublasLtDestroy(self.library);
            }
        }
    }
}

/// Normally distributed e4m3 values with deviation 64: about the part of the range that a tensor fills whose largest
/// value is scaled to 448. The values matter, because the power that a GEMM draws depends on them.
pub fn normal_e4m3(seed: u64, count: usize) -> Vec<u8> {
    let mut random = SplitMix(seed);
    let table: Vec<u8> = (0..1 << 15)
        .flat_map(|_| {
            let radius = (-2.0 * (1.0 - random.uniform()).ln()).sqrt();
            let (sin, cos) = (std::f64::consts::TAU * random.uniform()).sin_cos();
            [radius * sin, radius * cos]
        })
        .map(|x| nearest_e4m3(64.0 * x))
        .collect();
    (0..count).map(|_| table[(random.next() >> 48) as usize]).collect()
}

/// Rounds to nearest even, saturating.
fn nearest_e4m3(x: f64) -> u8 {
    let magnitude = x.abs().min(448.0);
    // Subnormals have the exponent of the smallest normal number, 2^-6; a step is 1/8 of the power of two.
    let exponent = magnitude.max(2f64.powi(-6)).log2().floor() as i32;
    let steps = (magnitude * 2f64.powi(3 - exponent)).round_ties_even() as u32;
    let bits = (((exponent + 6) as u32) << 3) + steps;
    (bits as u8) | if x.is_sign_negative() { 0x80 } else { 0 }
}

struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bits: u8) -> f64 {
        let (exponent, fraction) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
        let magnitude = match exponent {
            0 => fraction * 2f64.powi(-9),
            e => (8.0 + fraction) * 2f64.powi(e - 10),
        };
        if bits & 0x80 == 0 { magnitude } else { -magnitude }
    }

    #[test]
    fn e4m3_is_the_nearest_value() {
        for bits in (0..=0x7e).chain(0x80..=0xfe) {
            assert_eq!(nearest_e4m3(value(bits)), bits, "{bits:#x}");
        }
        for bits in 0..0x7eu8 {
            let middle = (value(bits) + value(bits + 1)) / 2.0;
            assert_eq!(nearest_e4m3(middle), bits + (bits & 1), "between {bits:#x} and the next");
            assert_eq!(nearest_e4m3(middle * 0.999), bits);
            assert_eq!(nearest_e4m3(middle * 1.001), bits + 1);
        }
        assert_eq!(nearest_e4m3(1e9), 0x7e);
    }

    #[test]
    fn the_operands_are_normal_and_always_the_same() {
        let values: Vec<f64> = normal_e4m3(1, 100_000).into_iter().map(value).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 1.0, "{mean}");
        assert!((variance.sqrt() - 64.0).abs() < 1.0, "{variance}");
        assert_eq!(normal_e4m3(1, 100), normal_e4m3(1, 100));
        assert_ne!(normal_e4m3(1, 100), normal_e4m3(2, 100));
    }
}
