//! Batches of products with FP8 operands, with any strides from one to the next.

use crate::check::int;
use crate::check::{CheckedGroups, GroupedFp8GemmNt, Operand};
use crate::device::{Device, DeviceId};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gemm::{GemmOptions, refuse_stream};
use crate::grouped::{launch, run_raw};
use crate::grouped_nn;
use crate::reference;
use crate::tensor::Tensor;

/// `D[g] = A[g]·B[g]ᵀ` with FP8 operands and scales, for every product of a batch.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[G, M, K]` | e4m3 | rows of K; pitch, products and address multiples of 16 bytes |
/// | scales of `a` | `[G, M, ceil(K/128)]` | f32 | any strides |
/// | `b` | `[G, N, K]` | e4m3 | as `a` |
/// | scales of `b` | `[G, ceil(N/128), ceil(K/128)]` | f32 | any strides |
/// | `d` | `[G, M, N]` | bf16 or f32 | rows of N, any pitch; products any distance apart |
///
/// Where scales have 1 instead of more along a dimension, that one holds for all. Products may lie one behind another or
/// row beside row: views that were transposed need no copy. Where G, M or N is 0 nothing is done; K must not be 0. There
/// are at most 1024 products.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{DType, Device, GemmOptions, Tensor, fp8_bgemm_nt};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (batch, m, n, k) = (2, 3, 8, 16);
/// let a = Tensor::from_f32(DType::E4m3, &vec![0.5; batch * m * k], &[batch, m, k], &device)?;
/// let b = [vec![1.0; n * k], vec![2.0; n * k]].concat();
/// let b = Tensor::from_f32(DType::E4m3, &b, &[batch, n, k], &device)?;
/// let one = Tensor::from_slice(&[1.0f32], &[1], &device)?;
/// let mut d = Tensor::zeros(DType::F32, &[batch, m, n], &device)?;
/// fp8_bgemm_nt((&a, &one), (&b, &one), &mut d, &GemmOptions::default())?;
/// assert_eq!(d.to_vec_f32()?, [vec![8.0; m * n], vec![16.0; m * n]].concat());
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp8_bgemm_nt(
    (a, sfa): (&Tensor, &Tensor),
    (b, sfb): (&Tensor, &Tensor),
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let arguments = GroupedFp8GemmNt {
        a: a.describe("a"),
        sfa: sfa.describe("sfa"),
        b: b.describe("b"),
        sfb: sfb.describe("sfb"),
        d: d.describe("d"),
        groups: None,
    };
    match a.device() {
        // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
        Device::Cuda(cuda) => unsafe { launch(cuda, &arguments, options) },
        // SAFETY: as above.
        Device::Sim(sim) => unsafe { launch(sim, &arguments, options) },
        Device::Cpu => {
            refuse_stream(a.device(), options)?;
            match arguments.check()? {
                CheckedGroups::Nothing => Ok(()),
                CheckedGroups::Launch(_, groups) => {
                    reference::m_grouped_fp8_gemm_nt_tensors((a, sfa), (b, sfb), d, &groups, None)
                }
            }
        }
    }
}

/// `D[g] = A[g]·B[g]` for every product of a batch: as [`fp8_bgemm_nt`], but B is `[G, K, N]`, contiguous along either of the
/// last dimensions, and its scales are `[G, ceil(K/128), ceil(N/128)]`.
///
/// A B that is contiguous along N is transposed first, of all products: see [`fp8_gemm`](crate::fp8_gemm) for where to. That
/// reads and writes all of B once more; who can should keep it K-major.
///
/// # Errors
/// As [`fp8_bgemm_nt`], of shapes as they are there; that the stream is being captured and its memory would have to grow.
pub fn fp8_bgemm_nn(
    (a, sfa): (&Tensor, &Tensor),
    (b, sfb): (&Tensor, &Tensor),
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let arguments = GroupedFp8GemmNt {
        a: a.describe("a"),
        sfa: sfa.describe("sfa"),
        b: b.describe("b").transposed_slabs(),
        sfb: sfb.describe("sfb").transposed_slabs(),
        d: d.describe("d"),
        groups: None,
    };
    grouped_nn::multiply((a, sfa), (b, sfb), d, (&arguments, None), options)
}

/// Einstein sums that are batches of products with FP8 operands, without a copy of A or D.
///
/// | expression | a batch over | of products |
/// |---|---|---|
/// | `bhr,hdr->bhd` | `h` | A `[b, r]` with B `[d, r]`: [`fp8_bgemm_nt`] |
/// | `bhd,hdr->bhr` | `h` | A `[b, d]` with B `[d, r]`: [`fp8_bgemm_nn`] |
///
/// The scales of A have its dimensions, and those of B its own, with one for 128 where K is, and of B one for 128 of both:
/// `[b, h, ceil(r/128)]` and `[h, ceil(d/128), ceil(r/128)]` for the first.
///
/// # Errors
/// An expression that is none of these, and as those functions.
///
/// ```
/// use oxigemm::{DType, Device, GemmOptions, Tensor, fp8_einsum};
///
/// let device = Device::cpu();
/// let (b, h, r, d) = (3, 2, 16, 8);
/// let x = Tensor::from_f32(DType::E4m3, &vec![0.5; b * h * r], &[b, h, r], &device)?;
/// let w = Tensor::from_f32(DType::E4m3, &vec![2.0; h * d * r], &[h, d, r], &device)?;
/// let scales = Tensor::from_slice(&[1.0f32, 3.0], &[h, 1, 1], &device)?; // one for each head
/// let one = Tensor::from_slice(&[1.0f32], &[1, 1, 1], &device)?;
/// let mut y = Tensor::zeros(DType::Bf16, &[b, h, d], &device)?;
/// fp8_einsum("bhr,hdr->bhd", (&x, &one), (&w, &scales), &mut y, &GemmOptions::default())?;
/// assert_eq!(y.to_vec_f32()?[..2 * d], [[16.0; 8], [48.0; 8]].concat());
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp8_einsum(
    expression: &str,
    (a, sfa): (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let function = match expression {
        "bhr,hdr->bhd" => fp8_bgemm_nt,
        "bhd,hdr->bhr" => fp8_bgemm_nn,
        other => {
            return Err(Error::Shape {
                argument: "expression",
                expected: "bhr,hdr->bhd or bhd,hdr->bhr".to_owned(),
                found: other.to_owned(),
            });
        }
    };
    // The batch comes first.
    let by_head = |name, x: &Tensor| {
        if x.dims().len() == 3 {
            return x.transpose(0, 1);
        }
        let found = format!("{} dimensions, {:?}", x.dims().len(), x.dims());
        Err(Error::Rank { argument: name, expected: "3 dimensions".to_owned(), found })
    };
    let (a, sfa) = (by_head("a", a)?, by_head("sfa", sfa)?);
    function((&a, &sfa), b, &mut by_head("d", d)?, options)
}

/// The operands of a batch of FP8 products as addresses, for engines that own their memory. Strides are in elements.
///
/// What the fields mean and how they are checked is told at [`fp8_bgemm_nt`].
#[derive(Clone, Copy, Debug)]
pub struct RawFp8Bgemm {
    /// How many products there are.
    pub batch: usize,
    /// Rows of A and D.
    pub m: usize,
    /// Rows of B, columns of D.
    pub n: usize,
    /// Columns of A and B.
    pub k: usize,
    /// Address of A.
    pub a: u64,
    /// From one product of A to the next, and from one row to the next.
    pub a_strides: [usize; 2],
    /// Address of A's scales.
    pub sfa: u64,
    /// Strides of A's scales: along the products, along M and along K.
    pub sfa_strides: [usize; 3],
    /// Address of B.
    pub b: u64,
    /// From one product of B to the next, and from one row to the next.
    pub b_strides: [usize; 2],
    /// Address of B's scales.
    pub sfb: u64,
    /// Strides of B's scales: along the products, along N and along K.
    pub sfb_strides: [usize; 3],
    /// Address of D.
    pub d: u64,
    /// From one product of D to the next, and from one row to the next.
    pub d_strides: [usize; 2],
    /// The element type of D: bf16 or f32.
    pub d_type: DType,
}

impl RawFp8Bgemm {
    fn describe(&self, device: DeviceId) -> GroupedFp8GemmNt {
        let [batch, m, n, k] = [self.batch, self.m, self.n, self.k].map(int);
        let blocks = |x: i64| x / 128 + i64::from(x % 128 != 0);
        let cube = |name, dtype, dims: [i64; 3], strides: [usize; 3], address| {
            Operand::new((name, dtype), &dims, &strides.map(int), (address, device))
        };
        let rows = |[product, row]: [usize; 2]| [product, row, 1];
        GroupedFp8GemmNt {
            a: cube("a", DType::E4m3, [batch, m, k], rows(self.a_strides), self.a),
            sfa: cube("sfa", DType::F32, [batch, m, blocks(k)], self.sfa_strides, self.sfa),
            b: cube("b", DType::E4m3, [batch, n, k], rows(self.b_strides), self.b),
            sfb: cube("sfb", DType::F32, [batch, blocks(n), blocks(k)], self.sfb_strides, self.sfb),
            d: cube("d", self.d_type, [batch, m, n], rows(self.d_strides), self.d),
            groups: None,
        }
    }
}

/// [`fp8_bgemm_nt`] on memory that the caller owns, on the stream of the options. The device is a GPU or the simulator,
/// whose addresses are those of its tensors.
///
/// # Safety
/// As for [`m_grouped_fp8_gemm_nt_raw`](crate::m_grouped_fp8_gemm_nt_raw).
///
/// # Errors
/// As [`fp8_bgemm_nt`]. The CPU is refused: it has tensors only.
pub unsafe fn fp8_bgemm_nt_raw(device: &Device, gemm: &RawFp8Bgemm, options: &GemmOptions) -> Result<()> {
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_raw(device, &gemm.describe(device.id()), options) }
}
