//! The GEMM functions with BF16 and FP16 operands.

use crate::call::{Addresses, FusedAt};
use crate::check::int;
use crate::check::{Checked, GemmLayout, HalfGemm, Operand};
use crate::device::{Device, DeviceId};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gemm::{Addend, GemmArguments, GemmOptions, refuse_stream, run, run_raw, simulate};
use crate::memo::Memo;
use crate::reference;
use crate::remembered::{Call, CallArguments, Ready, RememberedCalls};
use crate::tensor::Tensor;

/// D = C + A·B with 16-bit operands, given in some layout.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[M, K]`, or `[K, M]` where the layout begins with `t` | bf16 or f16 | contiguous along either dimension; pitch and address multiples of 16 bytes |
/// | `b` | `[N, K]`, or `[K, N]` where the layout ends with `n` | as `a` | as `a` |
/// | `c`, `d` | `[M, N]` | that of `a`, or f32; the same | rows of N, any pitch |
///
/// The tensor core adds up all of K in FP32. The same call gives the same bits.
/// The call returns when the kernel is in the stream; it can be captured into a graph once its shape was seen. In the
/// simulator it returns when the kernel is done.
/// Where M or N is 0 nothing is done; where K is 0, D becomes C or 0.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports. See [`crate::check`] for the rules.
///
/// ```
/// use oxigemm::{Addend, DType, Device, GemmLayout, GemmOptions, Tensor, half_gemm};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let a = Tensor::from_f32(DType::Bf16, &[1.0, 2.0, 3.0, 4.0], &[2, 2], &device)?;
/// let b = Tensor::from_f32(DType::Bf16, &[5.0, 6.0, 7.0, 8.0], &[2, 2], &device)?;
/// # let pad = |x: &Tensor| -> oxigemm::Result<Tensor> {
/// #     let whole = Tensor::zeros(DType::Bf16, &[2, 8], &Device::cpu())?;
/// #     let mut part = whole.narrow(1, 0, 2)?;
/// #     part.copy_from(x)?;
/// #     Ok(part)
/// # };
/// # let (a, b) = (pad(&a)?, pad(&b)?); // rows that begin at multiples of 16 bytes
/// let mut d = Tensor::zeros(DType::F32, &[2, 2], &device)?;
/// half_gemm(GemmLayout::Nn, &a, &b, Addend::None, &mut d, &GemmOptions::default())?;
/// assert_eq!(d.to_vec_f32()?, [19.0, 22.0, 43.0, 50.0]);
/// half_gemm(GemmLayout::Nt, &a, &b, Addend::InPlace, &mut d, &GemmOptions::default())?;
/// assert_eq!(d.to_vec_f32()?, [19.0 + 17.0, 22.0 + 23.0, 43.0 + 39.0, 50.0 + 53.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn half_gemm(
    layout: GemmLayout,
    a: &Tensor,
    b: &Tensor,
    c: Addend<'_>,
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let arguments =
        HalfGemm { layout, a: a.describe("a"), b: b.describe("b"), c: c.describe(d), d: d.describe("d") };
    match a.device() {
        // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
        Device::Cuda(cuda) => unsafe { run(cuda, &arguments, options) },
        Device::Sim(sim) => simulate(sim, &arguments, options),
        Device::Cpu => {
            refuse_stream(a.device(), options)?;
            let old = d.clone();
            let c = c.tensor(&old);
            reference::half_gemm_tensors(layout, a, b, c, d)
        }
    }
}

/// The functions by their names, each for one type and layout.
macro_rules! named {
    ($($name:ident: $dtype:ident $layout:ident, $formula:literal, $a:literal, $b:literal;)*) => {$(
        #[doc = concat!("D = C + ", $formula, " for A `", $a, "` and B `", $b, "`: [`half_gemm`] with its type and layout.")]
        ///
        /// # Errors
        #[doc = "As [`half_gemm`]; operands of another type are refused."]
        pub fn $name(
            a: &Tensor,
            b: &Tensor,
            c: Addend<'_>,
            d: &mut Tensor,
            options: &GemmOptions,
        ) -> Result<()> {
            expect_type(a, DType::$dtype)?;
            half_gemm(GemmLayout::$layout, a, b, c, d, options)
        }
    )*};
}

named! {
    bf16_gemm_nt: Bf16 Nt, "A·Bᵀ", "[M, K]", "[N, K]";
    bf16_gemm_nn: Bf16 Nn, "A·B", "[M, K]", "[K, N]";
    bf16_gemm_tn: Bf16 Tn, "Aᵀ·B", "[K, M]", "[K, N]";
    bf16_gemm_tt: Bf16 Tt, "Aᵀ·Bᵀ", "[K, M]", "[N, K]";
    fp16_gemm_nt: F16 Nt, "A·Bᵀ", "[M, K]", "[N, K]";
    fp16_gemm_nn: F16 Nn, "A·B", "[M, K]", "[K, N]";
    fp16_gemm_tn: F16 Tn, "Aᵀ·B", "[K, M]", "[K, N]";
    fp16_gemm_tt: F16 Tt, "Aᵀ·Bᵀ", "[K, M]", "[N, K]";
}

pub(crate) fn expect_type(a: &Tensor, expected: DType) -> Result<()> {
    if a.dtype() == expected {
        return Ok(());
    }
    Err(Error::DType { argument: "a", expected: expected.to_string(), found: a.dtype().to_string() })
}

/// The operands of a GEMM as addresses, for engines that own their memory. Strides are in elements.
///
/// What the fields mean and how they are checked is told at [`half_gemm`].
#[derive(Clone, Copy, Debug)]
pub struct RawHalfGemm {
    /// Rows of D.
    pub m: usize,
    /// Columns of D.
    pub n: usize,
    /// What is summed over.
    pub k: usize,
    /// The element type of A and B: bf16 or f16.
    pub ab_type: DType,
    /// Address of A.
    pub a: u64,
    /// Strides of A, along M and along K: one of them is 1.
    pub a_strides: [usize; 2],
    /// Address of B.
    pub b: u64,
    /// Strides of B, along N and along K: one of them is 1.
    pub b_strides: [usize; 2],
    /// Address of C: 0 for none, that of D to add to D.
    pub c: u64,
    /// From one row of C to the next.
    pub c_pitch: usize,
    /// Address of D.
    pub d: u64,
    /// From one row of D to the next.
    pub d_pitch: usize,
    /// The element type of C and D: that of A and B, or f32.
    pub d_type: DType,
}

impl RawHalfGemm {
    pub(crate) fn describe(&self, device: DeviceId) -> HalfGemm {
        let [m, n, k] = [self.m, self.n, self.k].map(int);
        let matrix = |name, dtype, dims: [i64; 2], strides: [usize; 2], address| {
            Operand::matrix(name, dtype, dims, strides.map(int), address, device)
        };
        let c = matrix("c", self.d_type, [m, n], [self.c_pitch, 1], self.c);
        HalfGemm {
            // Strides say everything: the layout is that of the formula.
            layout: GemmLayout::Nt,
            a: matrix("a", self.ab_type, [m, k], self.a_strides, self.a),
            b: matrix("b", self.ab_type, [n, k], self.b_strides, self.b),
            c: (self.c != 0).then_some(c),
            d: matrix("d", self.d_type, [m, n], [self.d_pitch, 1], self.d),
        }
    }
}

/// [`half_gemm`] on memory that the caller owns, on the stream of the options. The device is a GPU or the simulator,
/// whose addresses are those of its tensors.
///
/// # Safety
/// As for [`fp8_gemm_nt_raw`](crate::fp8_gemm_nt_raw).
///
/// # Errors
/// As [`half_gemm`]. The CPU is refused: it has tensors only.
///
/// ```
/// use oxigemm::{DType, Device, GemmOptions, RawHalfGemm, Tensor, half_gemm_raw};
///
/// let device = Device::sim();
/// let (m, n, k) = (4, 64, 16);
/// let a = Tensor::from_f32(DType::F16, &vec![0.5; m * k], &[m, k], &device)?;
/// let b = Tensor::from_f32(DType::F16, &vec![2.0; k * n], &[k, n], &device)?; // N-major
/// let d = Tensor::empty(DType::F16, &[m, n], &device)?;
/// let gemm = RawHalfGemm {
///     m, n, k, ab_type: DType::F16,
///     a: a.address(), a_strides: [k, 1],
///     b: b.address(), b_strides: [1, n],
///     c: 0, c_pitch: 0, d: d.address(), d_pitch: n, d_type: DType::F16,
/// };
/// // SAFETY: the tensors live on, and nobody else uses them.
/// unsafe { half_gemm_raw(&device, &gemm, &GemmOptions::default())? };
/// assert_eq!(d.to_vec_f32()?, vec![16.0; m * n]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub unsafe fn half_gemm_raw(device: &Device, gemm: &RawHalfGemm, options: &GemmOptions) -> Result<()> {
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_raw(device, &gemm.describe(device.id()), options) }
}

impl CallArguments for HalfGemm {
    fn remembered(calls: &RememberedCalls) -> &Memo<Call<Self>, Ready> {
        &calls.half
    }

    fn addresses(&self) -> Addresses {
        Addresses {
            a: self.a.address,
            sfa: 0,
            b: self.b.address,
            sfb: 0,
            c: self.c.map_or(0, |c| c.address),
            d: self.d.address,
            groups: 0,
            map_room: 0,
            fused: FusedAt::default(),
        }
    }
}

impl GemmArguments for HalfGemm {
    fn check(&self) -> Result<Checked> {
        HalfGemm::check(self)
    }

    fn output(&self) -> (Option<&Operand>, &Operand) {
        (self.c.as_ref(), &self.d)
    }
}
