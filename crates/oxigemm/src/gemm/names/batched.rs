//! Batches of products with BF16 and FP16 operands, with any strides from one to the next.

use crate::check::int;
use crate::check::{GemmLayout, GroupedHalfGemm, Operand};
use crate::device::{Device, DeviceId};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gemm::{Addend, GemmOptions};
use crate::grouped::run_raw;
use crate::half_gemm::expect_type;
use crate::half_grouped::run;
use crate::half_summed::half_bgemm_nt_summed;
use crate::tensor::Tensor;

/// `D[g] = C[g] + A[g]·B[g]` with 16-bit operands, for every product of a batch.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[G, M, K]` | bf16 or f16 | rows of K; pitch, products and address multiples of 16 bytes |
/// | `b` | `[G, N, K]`, of `nn` `[G, K, N]` | as `a` | contiguous along either of the last two; as `a` |
/// | `c`, `d` | `[G, M, N]` | that of `a`, or f32; the same | rows of N, any pitch; products any distance apart, those of both alike |
///
/// The layout is `nt` or `nn`. Products may lie one behind another or row beside row: views that were transposed need
/// no copy. Where G, M or N is 0 nothing is done; K must not be 0. There are at most 1024 products.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{Addend, DType, Device, GemmLayout, GemmOptions, Tensor, half_bgemm};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (batch, m, n, k) = (2, 3, 8, 16);
/// let a = Tensor::from_f32(DType::Bf16, &vec![0.5; batch * m * k], &[batch, m, k], &device)?;
/// let b = [vec![1.0; n * k], vec![2.0; n * k]].concat();
/// let b = Tensor::from_f32(DType::Bf16, &b, &[batch, n, k], &device)?;
/// let mut d = Tensor::zeros(DType::F32, &[batch, m, n], &device)?;
/// half_bgemm(GemmLayout::Nt, &a, &b, Addend::None, &mut d, &GemmOptions::default())?;
/// assert_eq!(d.to_vec_f32()?, [vec![8.0; m * n], vec![16.0; m * n]].concat());
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn half_bgemm(
    layout: GemmLayout,
    a: &Tensor,
    b: &Tensor,
    c: Addend<'_>,
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let arguments = GroupedHalfGemm {
        layout,
        a: a.describe("a"),
        b: b.describe("b"),
        c: c.describe(d),
        d: d.describe("d"),
        groups: None,
    };
    run([a, b], c, d, (&arguments, None), options)
}

/// The functions by their names, each for one type and layout.
macro_rules! named {
    ($($name:ident: $dtype:ident $layout:ident, $formula:literal, $b:literal;)*) => {$(
        #[doc = concat!("D = C + ", $formula, " for every product of a batch, A `[G, M, K]` and B `", $b, "`:")]
        /// [`half_bgemm`] with its type and layout.
        ///
        /// # Errors
        #[doc = "As [`half_bgemm`]; operands of another type are refused."]
        pub fn $name(
            a: &Tensor,
            b: &Tensor,
            c: Addend<'_>,
            d: &mut Tensor,
            options: &GemmOptions,
        ) -> Result<()> {
            expect_type(a, DType::$dtype)?;
            half_bgemm(GemmLayout::$layout, a, b, c, d, options)
        }
    )*};
}

named! {
    bf16_bgemm_nt: Bf16 Nt, "A·Bᵀ", "[G, N, K]";
    bf16_bgemm_nn: Bf16 Nn, "A·B", "[G, K, N]";
    fp16_bgemm_nt: F16 Nt, "A·Bᵀ", "[G, N, K]";
    fp16_bgemm_nn: F16 Nn, "A·B", "[G, K, N]";
}

/// Einstein sums that are batches of products with 16-bit operands, without a copy of anything.
///
/// | expression | a batch over | of products |
/// |---|---|---|
/// | `bhr,hdr->bhd` | `h` | A `[b, r]` with B `[d, r]` |
/// | `bhd,hdr->bhr` | `h` | A `[b, d]` with B `[d, r]` |
/// | `bmk,bnk->mn` | `b` | A `[m, k]` with B `[n, k]`, added up: [`half_bgemm_nt_summed`](crate::half_bgemm_nt_summed) |
///
/// Tensors are those of [`half_bgemm`]: of each, the last dimension is contiguous, and every other distance free.
///
/// # Errors
/// An expression that is none of these, and as [`half_bgemm`].
///
/// ```
/// use oxigemm::{Addend, DType, Device, GemmOptions, Tensor, einsum};
///
/// let device = Device::cpu();
/// let (b, h, r, d) = (3, 2, 16, 8);
/// let x = Tensor::from_f32(DType::Bf16, &vec![0.5; b * h * r], &[b, h, r], &device)?;
/// let w = Tensor::from_f32(DType::Bf16, &vec![2.0; h * d * r], &[h, d, r], &device)?;
/// let mut y = Tensor::zeros(DType::Bf16, &[b, h, d], &device)?;
/// einsum("bhr,hdr->bhd", &x, &w, Addend::None, &mut y, &GemmOptions::default())?;
/// assert_eq!(y.to_vec_f32()?, vec![16.0; b * h * d]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn einsum(
    expression: &str,
    a: &Tensor,
    b: &Tensor,
    c: Addend<'_>,
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let layout = match expression {
        "bhr,hdr->bhd" => GemmLayout::Nt,
        "bhd,hdr->bhr" => GemmLayout::Nn,
        "bmk,bnk->mn" => return half_bgemm_nt_summed(a, b, c, d, options),
        other => {
            return Err(Error::Shape {
                argument: "expression",
                expected: "bhr,hdr->bhd, bhd,hdr->bhr or bmk,bnk->mn".to_owned(),
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
    let other = match c {
        Addend::From(c) => Some(by_head("c", c)?),
        Addend::None | Addend::InPlace => None,
    };
    let c = other.as_ref().map_or(c, Addend::From);
    half_bgemm(layout, &by_head("a", a)?, b, c, &mut by_head("d", d)?, options)
}

/// The operands of a batch of products as addresses, for engines that own their memory. Strides are in elements.
///
/// What the fields mean and how they are checked is told at [`half_bgemm`].
#[derive(Clone, Copy, Debug)]
pub struct RawHalfBgemm {
    /// How many products there are.
    pub batch: usize,
    /// Rows of A and D.
    pub m: usize,
    /// Columns of D.
    pub n: usize,
    /// What is summed over.
    pub k: usize,
    /// The element type of A and B: bf16 or f16.
    pub ab_type: DType,
    /// Address of A.
    pub a: u64,
    /// From one product of A to the next, and from one row to the next.
    pub a_strides: [usize; 2],
    /// Address of B.
    pub b: u64,
    /// Strides of B: along the products, along N and along K; one of the last two is 1.
    pub b_strides: [usize; 3],
    /// Address of C: 0 for none, that of D to add to D.
    pub c: u64,
    /// As those of D.
    pub c_strides: [usize; 2],
    /// Address of D.
    pub d: u64,
    /// From one product of D to the next, and from one row to the next.
    pub d_strides: [usize; 2],
    /// The element type of C and D: that of A and B, or f32.
    pub d_type: DType,
}

impl RawHalfBgemm {
    fn describe(&self, device: DeviceId) -> GroupedHalfGemm {
        let [batch, m, n, k] = [self.batch, self.m, self.n, self.k].map(int);
        let rows = |name, dtype, dims: [i64; 3], [slab, row]: [usize; 2], address| {
            Operand::new((name, dtype), &dims, &[slab, row, 1].map(int), (address, device))
        };
        GroupedHalfGemm {
            // Strides say everything: the layout is that of the formula.
            layout: GemmLayout::Nt,
            a: rows("a", self.ab_type, [batch, m, k], self.a_strides, self.a),
            b: Operand::new(("b", self.ab_type), &[batch, n, k], &self.b_strides.map(int), (self.b, device)),
            c: (self.c != 0).then(|| rows("c", self.d_type, [batch, m, n], self.c_strides, self.c)),
            d: rows("d", self.d_type, [batch, m, n], self.d_strides, self.d),
            groups: None,
        }
    }
}

/// [`half_bgemm`] on memory that the caller owns, on the stream of the options. The device is a GPU or the simulator,
/// whose addresses are those of its tensors.
///
/// # Safety
/// As for [`m_grouped_fp8_gemm_nt_raw`](crate::m_grouped_fp8_gemm_nt_raw).
///
/// # Errors
/// As [`half_bgemm`]. The CPU is refused: it has tensors only.
pub unsafe fn half_bgemm_raw(device: &Device, gemm: &RawHalfBgemm, options: &GemmOptions) -> Result<()> {
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_raw(device, &gemm.describe(device.id()), options) }
}
