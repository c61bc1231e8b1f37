//! Batches of products with BF16 and FP16 operands that are added up.

use crate::call::{Addresses, FusedAt};
use crate::check::int;
use crate::check::{Checked, Operand, Summed, SummedHalfGemm};
use crate::device::backend::Backend;
use crate::device::{Device, DeviceId};
use crate::error::Result;
use crate::gemm::{Addend, GemmArguments, GemmOptions, refuse_stream, run, run_raw};
use crate::half_batched::RawHalfBgemm;
use crate::launch::cache::LaunchCache;
use crate::reference;
use crate::remembered::{Call, CallArguments, LaunchCaches};
use crate::tensor::Tensor;

/// D = C + the sum of all `A[b]·B[b]ᵀ` with 16-bit operands: [`einsum`](crate::einsum) of `bmk,bnk->mn`.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[B, M, K]` | bf16 or f16 | rows of K; pitch, products and address multiples of 16 bytes |
/// | `b` | `[B, N, K]` | as `a` | as `a` |
/// | `c`, `d` | `[M, N]` | that of `a`, or f32; the same | rows of N, any pitch |
///
/// All products are added in FP32 and D is rounded once. The same call gives the same bits: where K is split, the parts
/// are added in their order. Where M or N is 0 nothing is done; where B or K is 0, D becomes C or 0.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{Addend, DType, Device, GemmOptions, Tensor, half_bgemm_nt_summed};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (batch, m, n, k) = (3, 2, 8, 16);
/// let a = Tensor::from_f32(DType::Bf16, &vec![0.5; batch * m * k], &[batch, m, k], &device)?;
/// let b = Tensor::from_f32(DType::Bf16, &vec![2.0; batch * n * k], &[batch, n, k], &device)?;
/// let mut d = Tensor::from_f32(DType::F32, &vec![1.0; m * n], &[m, n], &device)?;
/// half_bgemm_nt_summed(&a, &b, Addend::InPlace, &mut d, &GemmOptions::default())?;
/// assert_eq!(d.to_vec_f32()?, vec![49.0; m * n]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn half_bgemm_nt_summed(
    a: &Tensor,
    b: &Tensor,
    c: Addend<'_>,
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let arguments =
        SummedHalfGemm { a: a.describe("a"), b: b.describe("b"), c: c.describe(d), d: d.describe("d") };
    match a.device() {
        // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
        Device::Cuda(cuda) => unsafe { run(cuda, &arguments, options) },
        // SAFETY: as above.
        Device::Sim(sim) => unsafe { run(sim, &arguments, options) },
        Device::Cpu => {
            refuse_stream(a.device(), options)?;
            let checked = arguments.check()?;
            let old = d.clone();
            let c = c.tensor(&old);
            reference::half_bgemm_nt_summed_tensors(a, b, c, d, &checked)
        }
    }
}

/// [`half_bgemm_nt_summed`] on memory that the caller owns, on the stream of the options. The device is a GPU or the
/// simulator, whose addresses are those of its tensors. Of the strides of C and D only those from row to row count; B must
/// be contiguous along K.
///
/// # Safety
/// As for [`fp8_gemm_nt_raw`](crate::fp8_gemm_nt_raw).
///
/// # Errors
/// As [`half_bgemm_nt_summed`]. The CPU is refused: it has tensors only.
pub unsafe fn half_bgemm_nt_summed_raw(
    device: &Device,
    gemm: &RawHalfBgemm,
    options: &GemmOptions,
) -> Result<()> {
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_raw(device, &describe(gemm, device.id()), options) }
}

fn describe(gemm: &RawHalfBgemm, device: DeviceId) -> SummedHalfGemm {
    let [batch, m, n, k] = [gemm.batch, gemm.m, gemm.n, gemm.k].map(int);
    let output = |name, [_, row]: [usize; 2], address| {
        Operand::matrix(name, gemm.d_type, [m, n], [int(row), 1], address, device)
    };
    let [slab, row] = gemm.a_strides.map(int);
    SummedHalfGemm {
        a: Operand::new(("a", gemm.ab_type), &[batch, m, k], &[slab, row, 1], (gemm.a, device)),
        b: Operand::new(("b", gemm.ab_type), &[batch, n, k], &gemm.b_strides.map(int), (gemm.b, device)),
        c: (gemm.c != 0).then(|| output("c", gemm.c_strides, gemm.c)),
        d: output("d", gemm.d_strides, gemm.d),
    }
}

impl GemmArguments for SummedHalfGemm {
    fn check(&self) -> Result<Checked> {
        SummedHalfGemm::check(self)
    }

    fn output(&self) -> (Option<&Operand>, &Operand) {
        (self.c.as_ref(), &self.d)
    }

    fn summed(&self) -> Result<Option<Summed>> {
        SummedHalfGemm::summed(self).map(Some)
    }
}

impl CallArguments for SummedHalfGemm {
    fn cache<B: Backend>(caches: &LaunchCaches<B>) -> &LaunchCache<Call<Self>, B> {
        &caches.summed_half
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
