//! Products whose rows are grouped, with a B of each group that begins with K.

use oxigemm_kernels::gemm::operand::f16::Major;

use crate::check::{CheckedGroups, GroupedFp8GemmNt};
use crate::device::Device;
use crate::device::backend::{Backend, with_backend};
use crate::error::Result;
use crate::gemm::{GemmOptions, refuse_stream};
use crate::grouped::{self, GroupedRows, RawGroupedFp8Gemm, RowGroups};
use crate::reference;
use crate::remembered::CallArguments;
use crate::tensor::Tensor;
use crate::transposed::{Source, TransposedProduct};

/// D = A·B for rows that are grouped one behind another: as
/// [`m_grouped_fp8_gemm_nt_contiguous`](crate::m_grouped_fp8_gemm_nt_contiguous), but B is `[G, K, N]`, contiguous along
/// either of the last dimensions, and its scales are `[G, ceil(K/128), ceil(N/128)]`.
///
/// A B that is contiguous along N is transposed first, of all groups: see [`fp8_gemm`](crate::fp8_gemm) for where to. That
/// reads and writes all of B once more; who can should keep it K-major.
///
/// # Errors
/// As the other one, of shapes as they are there; that the stream is being captured and its memory would have to grow.
///
/// ```
/// use oxigemm::{DType, Device, GemmOptions, GroupedRows, Tensor, m_grouped_fp8_gemm_nn_contiguous};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let a = Tensor::from_f32(DType::E4m3, &[0.5; 8 * 16], &[8, 16], &device)?;
/// let b = Tensor::from_f32(DType::E4m3, &[4.0; 2 * 16 * 32], &[2, 16, 32], &device)?;
/// let one = Tensor::from_slice(&[1.0f32], &[1], &device)?;
/// let per_group = Tensor::from_slice(&[1.0f32, 2.0], &[2, 1, 1], &device)?;
/// let ends = Tensor::from_slice(&[3i32, 8], &[2], &device)?;
/// let mut d = Tensor::zeros(DType::Bf16, &[8, 32], &device)?;
/// let rows = GroupedRows::Ends(&ends);
/// let options = GemmOptions::default();
/// m_grouped_fp8_gemm_nn_contiguous((&a, &one), (&b, &per_group), &mut d, rows, 1, None, &options)?;
/// let d = d.to_vec_f32()?;
/// assert!(d[..3 * 32].iter().all(|x| *x == 32.0) && d[3 * 32..].iter().all(|x| *x == 64.0));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn m_grouped_fp8_gemm_nn_contiguous(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    rows: GroupedRows<'_>,
    alignment: usize,
    expected_m: Option<usize>,
    options: &GemmOptions,
) -> Result<()> {
    run(a, b, d, RowGroups::Contiguous { rows, alignment, expected_m }, options)
}

/// D = A·B for groups of rows that each have room for the same number: as
/// [`m_grouped_fp8_gemm_nt_masked`](crate::m_grouped_fp8_gemm_nt_masked), but B and its scales are as for
/// [`m_grouped_fp8_gemm_nn_contiguous`].
///
/// # Errors
/// As [`m_grouped_fp8_gemm_nn_contiguous`].
pub fn m_grouped_fp8_gemm_nn_masked(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    masked_m: &Tensor,
    expected_m: usize,
    options: &GemmOptions,
) -> Result<()> {
    run(a, b, d, RowGroups::Masked { masked_m, expected_m }, options)
}

fn run(
    (a, sfa): (&Tensor, &Tensor),
    (b, sfb): (&Tensor, &Tensor),
    d: &mut Tensor,
    rows: RowGroups<'_>,
    options: &GemmOptions,
) -> Result<()> {
    let (groups, numbers) = rows.describe();
    let arguments = GroupedFp8GemmNt {
        a: a.describe("a"),
        sfa: sfa.describe("sfa"),
        b: b.describe("b").transposed_slabs(),
        sfb: sfb.describe("sfb").transposed_slabs(),
        d: d.describe("d"),
        groups: Some(groups),
    };
    multiply((a, sfa), (b, sfb), d, (&arguments, Some(numbers)), options)
}

/// Runs a product of tensors, described by these arguments, with every B and its scales transposed.
pub(crate) fn multiply(
    (a, sfa): (&Tensor, &Tensor),
    (b, sfb): (&Tensor, &Tensor),
    d: &mut Tensor,
    (arguments, numbers): (&GroupedFp8GemmNt, Option<&Tensor>),
    options: &GemmOptions,
) -> Result<()> {
    match a.device() {
        // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
        Device::Cuda(cuda) => unsafe { launch(cuda, arguments, options) },
        // SAFETY: as above.
        Device::Sim(sim) => unsafe { launch(sim, arguments, options) },
        Device::Cpu => {
            refuse_stream(a.device(), options)?;
            let view = |x: &Tensor| if x.dims().len() == 3 { x.transpose(1, 2) } else { Ok(x.clone()) };
            match arguments.check_either_major()?.0 {
                CheckedGroups::Nothing => Ok(()),
                CheckedGroups::Launch(_, groups) => {
                    let (b, sfb) = (view(b)?, view(sfb)?);
                    reference::m_grouped_fp8_gemm_nt_tensors((a, sfa), (&b, &sfb), d, &groups, numbers)
                }
            }
        }
    }
}

/// [`m_grouped_fp8_gemm_nn_contiguous`] or [`m_grouped_fp8_gemm_nn_masked`] on memory that the caller owns, with every
/// B contiguous along N: the second of `b_strides` is from one step of K to the next. The strides of B's scales are
/// along the groups, along N and along K.
///
/// # Safety
/// As for [`m_grouped_fp8_gemm_nt_raw`](crate::m_grouped_fp8_gemm_nt_raw).
///
/// # Errors
/// As for those functions. The CPU is refused: it has tensors only.
pub unsafe fn m_grouped_fp8_gemm_nn_raw(
    device: &Device,
    gemm: &RawGroupedFp8Gemm,
    options: &GemmOptions,
) -> Result<()> {
    let mut arguments = gemm.describe(device.id());
    arguments.b.strides.swap(1, 2);
    // SAFETY: the caller keeps the operands as described.
    with_backend!(device, backend => unsafe { launch(backend, &arguments, options) })
}

/// The product, where B has to be transposed; `None` where it has not, or nothing is multiplied.
fn transposed(arguments: &GroupedFp8GemmNt) -> Result<Option<TransposedProduct>> {
    let (CheckedGroups::Launch(problem, groups), Major::MN) = arguments.check_either_major()? else {
        return Ok(None);
    };
    let source = Source {
        name: arguments.b.name,
        address: arguments.b.address,
        k: problem.k,
        columns: problem.n,
        pitch: problem.b_pitch,
        slabs: groups.count,
        slab: groups.b_group,
    };
    TransposedProduct::new(&problem, Some(&groups), [None, Some(source)])
}

/// Checks, plans and launches.
///
/// # Safety
/// As for [`m_grouped_fp8_gemm_nn_raw`].
unsafe fn launch<B: Backend>(backend: &B, arguments: &GroupedFp8GemmNt, options: &GemmOptions) -> Result<()> {
    match transposed(arguments)? {
        // SAFETY: the caller keeps the operands as described, and the check has compared them with the problem.
        Some(product) => unsafe { product.launch(backend, arguments.addresses(), options) },
        // SAFETY: as above.
        None => unsafe { grouped::launch(backend, arguments, options) },
    }
}
