//! The FP8 GEMM for operands in any layout.

use oxigemm_kernels::gemm::operand::f16::Major;

use crate::check::{Checked, Fp8GemmNt, GemmLayout, Operand};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::gemm::{self, Addend, GemmOptions, RawFp8Gemm};
use crate::reference;
use crate::remembered::CallArguments;
use crate::runtime::Cuda;
use crate::simulated::Sim;
use crate::tensor::Tensor;
use crate::transposed::{Source, TransposedProduct};

/// D = C + A·B with FP8 operands and scales, given in some layout.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[M, K]`, or `[K, M]` where the layout begins with `t` | e4m3 or e5m2 | contiguous along either dimension; pitch and address multiples of 16 bytes |
/// | scales of `a` | `[M, ceil(K/128)]`, or `[ceil(K/128), M]` | f32 | any strides |
/// | `b` | `[N, K]`, or `[K, N]` where the layout ends with `n` | e4m3 or e5m2 | as `a` |
/// | scales of `b` | `[ceil(N/128), ceil(K/128)]`, or `[ceil(K/128), ceil(N/128)]` | f32 | any strides |
/// | `c`, `d` | `[M, N]` | bf16 or f32, the same | rows of N, any pitch |
///
/// The tensor core multiplies FP8 operands that are contiguous along K. Those that already are, such as transposed views
/// of K-major tensors, are multiplied where they lie: then this is [`fp8_gemm_nt`](crate::fp8_gemm_nt). Any others are
/// first transposed into memory of the library, both by one kernel. Each stream has such memory of its own. It grows
/// when a call needs more than any before in its stream, so that a call can be captured once it was made; a graph with
/// such a call must not run at the same time as another one, or as calls in the stream where it was captured.
///
/// # Errors
/// As [`fp8_gemm_nt`](crate::fp8_gemm_nt), of the shapes as they are in `nt`; that the stream is being captured and its
/// memory would have to grow.
///
/// ```
/// use oxigemm::{Addend, DType, Device, GemmLayout, GemmOptions, Tensor, fp8_gemm};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let a = Tensor::from_f32(DType::E4m3, &[0.5; 4 * 16], &[4, 16], &device)?;
/// let b = Tensor::from_f32(DType::E4m3, &[4.0; 16 * 32], &[16, 32], &device)?;
/// let one = Tensor::from_slice(&[1.0f32], &[1], &device)?;
/// let mut d = Tensor::zeros(DType::Bf16, &[4, 32], &device)?;
/// fp8_gemm(GemmLayout::Nn, (&a, &one), (&b, &one), Addend::None, &mut d, &GemmOptions::default())?;
/// assert_eq!(d.to_vec_f32()?, [32.0; 4 * 32]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp8_gemm(
    layout: GemmLayout,
    (a, sfa): (&Tensor, &Tensor),
    (b, sfb): (&Tensor, &Tensor),
    c: Addend<'_>,
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let view = |x: Operand, k_first: bool| if k_first && x.rank == 2 { x.transposed() } else { x };
    let (a_first, b_first) = (layout.a_begins_with_k(), layout.b_begins_with_k());
    let arguments = Fp8GemmNt {
        a: view(a.describe("a"), a_first),
        sfa: view(sfa.describe("sfa"), a_first),
        b: view(b.describe("b"), b_first),
        sfb: view(sfb.describe("sfb"), b_first),
        c: c.describe(d),
        d: d.describe("d"),
    };
    match a.device() {
        // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
        Device::Cuda(cuda) => unsafe { run(cuda, &arguments, options) },
        Device::Sim(sim) => simulate(sim, &arguments, options),
        Device::Cpu => {
            gemm::refuse_stream(a.device(), options)?;
            let old = d.clone();
            let c = c.tensor(&old);
            reference::fp8_gemm_tensors(layout, (a, sfa), (b, sfb), c, d)
        }
    }
}

/// The functions by their names, each for one layout.
macro_rules! named {
    ($($name:ident: $layout:ident, $formula:literal, $a:literal, $b:literal;)*) => {$(
        #[doc = concat!("D = C + ", $formula, " for A `", $a, "` and B `", $b, "`: [`fp8_gemm`] with its layout.")]
        ///
        /// # Errors
        /// As [`fp8_gemm`].
        pub fn $name(
            a: (&Tensor, &Tensor),
            b: (&Tensor, &Tensor),
            c: Addend<'_>,
            d: &mut Tensor,
            options: &GemmOptions,
        ) -> Result<()> {
            fp8_gemm(GemmLayout::$layout, a, b, c, d, options)
        }
    )*};
}

named! {
    fp8_gemm_nn: Nn, "A·B", "[M, K]", "[K, N]";
    fp8_gemm_tn: Tn, "Aᵀ·B", "[K, M]", "[K, N]";
    fp8_gemm_tt: Tt, "Aᵀ·Bᵀ", "[K, M]", "[N, K]";
}

/// [`fp8_gemm`] on memory that the caller owns, on the stream of the options. An operand that is not `k_major` is
/// contiguous along M or N, and its pitch is from one step of K to the next. Strides of scales are along M or N, and
/// along K, whatever the operands are.
///
/// # Safety
/// As for [`fp8_gemm_nt_raw`](crate::fp8_gemm_nt_raw).
///
/// # Errors
/// As [`fp8_gemm`]. The CPU is refused: it has tensors only.
pub unsafe fn fp8_gemm_raw(
    device: &Device,
    gemm: &RawFp8Gemm,
    k_major: [bool; 2],
    options: &GemmOptions,
) -> Result<()> {
    let mut arguments = gemm.describe(device.id());
    for (operand, k_major) in [&mut arguments.a, &mut arguments.b].into_iter().zip(k_major) {
        if !k_major {
            operand.strides.swap(0, 1);
        }
    }
    match device {
        // SAFETY: the caller keeps the operands as described.
        Device::Cuda(cuda) => unsafe { run(cuda, &arguments, options) },
        Device::Sim(sim) => simulate(sim, &arguments, options),
        Device::Cpu => Err(Error::no_raw_memory(device)),
    }
}

/// The product, where operands have to be transposed; `None` where none has, or nothing is multiplied.
fn transposed(arguments: &Fp8GemmNt) -> Result<Option<TransposedProduct>> {
    let k_major = |x: &Operand| x.rank == 2 && x.strides[1] == 1;
    if k_major(&arguments.a) && k_major(&arguments.b) {
        return Ok(None);
    }
    let (Checked::Launch(problem), majors) = arguments.check_either_major()? else { return Ok(None) };
    let source = |major: Major, operand: &Operand, columns: u32, pitch: u64| {
        let (name, address) = (operand.name, operand.address);
        let source = Source { name, address, k: problem.k, columns, pitch, slabs: 1, slab: 0 };
        (major == Major::MN).then_some(source)
    };
    let a = source(majors[0], &arguments.a, problem.m, problem.a_pitch);
    let b = source(majors[1], &arguments.b, problem.n, problem.b_pitch);
    TransposedProduct::new(&problem, None, [a, b])
}

/// Checks, plans and launches.
///
/// # Safety
/// As for [`fp8_gemm_raw`].
unsafe fn run(cuda: &Cuda, arguments: &Fp8GemmNt, options: &GemmOptions) -> Result<()> {
    match transposed(arguments)? {
        // SAFETY: the caller keeps the operands as described, and the check has compared them with the problem.
        Some(product) => unsafe { product.launch(cuda, arguments.addresses(), options) },
        // SAFETY: as above.
        None => unsafe { gemm::run(cuda, arguments, options) },
    }
}

/// Checks, plans, and does it or has it captured.
fn simulate(sim: &Sim, arguments: &Fp8GemmNt, options: &GemmOptions) -> Result<()> {
    match transposed(arguments)? {
        Some(product) => product.simulate(sim, arguments.addresses(), options),
        None => gemm::simulate(sim, arguments, options),
    }
}
