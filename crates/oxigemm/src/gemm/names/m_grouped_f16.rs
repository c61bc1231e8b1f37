//! Products with BF16 and FP16 operands whose rows are grouped, each group with a B of its own.

use crate::call::{Addresses, FusedAt, PlanKey};
use crate::check::int;
use crate::check::{CheckedGroups, GemmLayout, GroupedHalfGemm, Operand};
use crate::device::{Device, DeviceId};
use crate::dtype::DType;
use crate::error::Result;
use crate::gemm::{Addend, GemmOptions, refuse_stream};
use crate::grouped::{GroupedArguments, GroupedRows, RawGroups, RowGroups, launch, run_raw, simulate};
use crate::half_gemm::expect_type;
use crate::memo::Memo;
use crate::plan::Limits;
use crate::reference;
use crate::remembered::{Call, CallArguments, Ready, RememberedCalls};
use crate::tensor::Tensor;

/// D = C + A·B with 16-bit operands for groups of rows: each group with the B of its own.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[M, K]`, masked `[G, M, K]` | bf16 or f16 | rows of K; pitch, groups and address multiples of 16 bytes |
/// | `b` | `[G, N, K]`, of `nn` `[G, K, N]` | as `a` | contiguous along either of the last two; as `a` |
/// | `c`, `d` | `[M, N]`, masked `[G, M, N]` | that of `a`, or f32; the same | rows of N, any pitch; groups any distance apart, those of both alike |
/// | the groups | `[M]` or `[G]` | i32 | without gaps |
///
/// The layout is `nt` or `nn`. Rows of no group cost nothing and are left as they are in D. They may be read, and must
/// be memory, but nothing depends on what they hold. What is expected decides about the plan, and where groups are large
/// and K is long about the order of its blocks, and so about last bits (not in the batch-invariant mode). Where M, N or the number of groups
/// is 0 nothing is done; K must not be 0. There are at most 1024 groups.
///
/// The kernel itself reads where the groups are, so that a captured call can be replayed with others.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{
///     Addend, DType, Device, GemmLayout, GemmOptions, GroupedRows, RowGroups, Tensor, m_grouped_half_gemm,
/// };
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (groups, m, n, k) = (2, 4, 8, 16);
/// let a = Tensor::from_f32(DType::F16, &vec![0.5; m * k], &[m, k], &device)?;
/// let b = [vec![1.0; k * n], vec![2.0; k * n]].concat(); // the second group's is twice the first's
/// let b = Tensor::from_f32(DType::F16, &b, &[groups, k, n], &device)?;
/// let mut d = Tensor::from_f32(DType::F32, &vec![100.0; m * n], &[m, n], &device)?;
///
/// let ids = Tensor::from_slice(&[0i32, 0, -1, 1], &[m], &device)?;
/// let rows = RowGroups::Contiguous { rows: GroupedRows::Ids(&ids), alignment: 1, expected_m: None };
/// m_grouped_half_gemm(GemmLayout::Nn, &a, &b, Addend::InPlace, &mut d, rows, &GemmOptions::default())?;
/// let column: Vec<f32> = d.to_vec_f32()?.into_iter().step_by(n).collect();
/// assert_eq!(column, [108.0, 108.0, 100.0, 116.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn m_grouped_half_gemm(
    layout: GemmLayout,
    a: &Tensor,
    b: &Tensor,
    c: Addend<'_>,
    d: &mut Tensor,
    groups: RowGroups<'_>,
    options: &GemmOptions,
) -> Result<()> {
    let (argument, numbers) = groups.describe();
    let arguments = GroupedHalfGemm {
        layout,
        a: a.describe("a"),
        b: b.describe("b"),
        c: c.describe(d),
        d: d.describe("d"),
        groups: Some(argument),
    };
    run([a, b], c, d, (&arguments, Some(numbers)), options)
}

/// Runs a product of tensors, described by these arguments.
pub(crate) fn run(
    [a, b]: [&Tensor; 2],
    c: Addend<'_>,
    d: &mut Tensor,
    (arguments, numbers): (&GroupedHalfGemm, Option<&Tensor>),
    options: &GemmOptions,
) -> Result<()> {
    match a.device() {
        // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
        Device::Cuda(cuda) => unsafe { launch(cuda, arguments, options) },
        Device::Sim(sim) => simulate(sim, arguments, options),
        Device::Cpu => {
            refuse_stream(a.device(), options)?;
            match arguments.check()? {
                CheckedGroups::Nothing => Ok(()),
                CheckedGroups::Launch(_, groups) => {
                    let layout = arguments.layout;
                    reference::m_grouped_half_gemm_tensors(layout, [a, b], c, d, &groups, numbers)
                }
            }
        }
    }
}

/// The functions by their names, each for one type, layout and kind of groups.
macro_rules! named {
    ($($contiguous:ident, $masked:ident: $dtype:ident $layout:ident, $formula:literal, $b:literal;)*) => {$(
        #[doc = concat!("D = ", $formula, " for rows that are grouped one behind another, B `", $b, "`:")]
        /// [`m_grouped_half_gemm`] with its type and layout.
        ///
        /// # Errors
        #[doc = "As [`m_grouped_half_gemm`]; operands of another type are refused."]
        pub fn $contiguous(
            a: &Tensor,
            b: &Tensor,
            d: &mut Tensor,
            rows: GroupedRows<'_>,
            alignment: usize,
            expected_m: Option<usize>,
            options: &GemmOptions,
        ) -> Result<()> {
            expect_type(a, DType::$dtype)?;
            let groups = RowGroups::Contiguous { rows, alignment, expected_m };
            m_grouped_half_gemm(GemmLayout::$layout, a, b, Addend::None, d, groups, options)
        }

        #[doc = concat!("D = ", $formula, " for groups that each have room for the same number of rows, B `", $b, "`:")]
        /// [`m_grouped_half_gemm`] with its type and layout.
        ///
        /// # Errors
        #[doc = "As [`m_grouped_half_gemm`]; operands of another type are refused."]
        pub fn $masked(
            a: &Tensor,
            b: &Tensor,
            d: &mut Tensor,
            masked_m: &Tensor,
            expected_m: usize,
            options: &GemmOptions,
        ) -> Result<()> {
            expect_type(a, DType::$dtype)?;
            let groups = RowGroups::Masked { masked_m, expected_m };
            m_grouped_half_gemm(GemmLayout::$layout, a, b, Addend::None, d, groups, options)
        }
    )*};
}

named! {
    m_grouped_bf16_gemm_nt_contiguous, m_grouped_bf16_gemm_nt_masked: Bf16 Nt, "A·Bᵀ", "[G, N, K]";
    m_grouped_bf16_gemm_nn_contiguous, m_grouped_bf16_gemm_nn_masked: Bf16 Nn, "A·B", "[G, K, N]";
    m_grouped_fp16_gemm_nt_contiguous, m_grouped_fp16_gemm_nt_masked: F16 Nt, "A·Bᵀ", "[G, N, K]";
    m_grouped_fp16_gemm_nn_contiguous, m_grouped_fp16_gemm_nn_masked: F16 Nn, "A·B", "[G, K, N]";
}

/// The operands of a product whose rows are grouped, as addresses, for engines that own their memory. Strides are in
/// elements.
///
/// What the fields mean and how they are checked is told at [`m_grouped_half_gemm`].
#[derive(Clone, Copy, Debug)]
pub struct RawGroupedHalfGemm {
    /// How many groups there are.
    pub groups: usize,
    /// Rows of A and D: of each group where they are [`Masked`](RawGroups::Masked), of all together elsewhere.
    pub m: usize,
    /// Columns of D.
    pub n: usize,
    /// What is summed over.
    pub k: usize,
    /// The element type of A and B: bf16 or f16.
    pub ab_type: DType,
    /// Address of A.
    pub a: u64,
    /// From one group of A to the next, which counts only where they are masked, and from one row to the next.
    pub a_strides: [usize; 2],
    /// Address of B.
    pub b: u64,
    /// Strides of B: along the groups, along N and along K; one of the last two is 1.
    pub b_strides: [usize; 3],
    /// Address of C: 0 for none, that of D to add to D.
    pub c: u64,
    /// As those of D.
    pub c_strides: [usize; 2],
    /// Address of D.
    pub d: u64,
    /// From one group of D to the next, which counts only where they are masked, and from one row to the next.
    pub d_strides: [usize; 2],
    /// The element type of C and D: that of A and B, or f32.
    pub d_type: DType,
    /// Where the groups are.
    pub rows: RawGroups,
}

impl RawGroupedHalfGemm {
    pub(crate) fn describe(&self, device: DeviceId) -> GroupedHalfGemm {
        let [groups, m, n, k] = [self.groups, self.m, self.n, self.k].map(int);
        let from = usize::from(!self.rows.are_masked());
        let slabs = |name, dtype, dims: [i64; 3], [slab, row]: [usize; 2], address| {
            let strides = [slab, row, 1].map(int);
            Operand::new((name, dtype), &dims[from..], &strides[from..], (address, device))
        };
        let b_strides = self.b_strides.map(int);
        GroupedHalfGemm {
            // Strides say everything: the layout is that of the formula.
            layout: GemmLayout::Nt,
            a: slabs("a", self.ab_type, [groups, m, k], self.a_strides, self.a),
            b: Operand::new(("b", self.ab_type), &[groups, n, k], &b_strides, (self.b, device)),
            c: (self.c != 0).then(|| slabs("c", self.d_type, [groups, m, n], self.c_strides, self.c)),
            d: slabs("d", self.d_type, [groups, m, n], self.d_strides, self.d),
            groups: Some(self.rows.describe([groups, m], device)),
        }
    }
}

/// [`m_grouped_half_gemm`] on memory that the caller owns, on the stream of the options. The device is a GPU or the
/// simulator, whose addresses are those of its tensors.
///
/// # Safety
/// As for [`m_grouped_fp8_gemm_nt_raw`](crate::m_grouped_fp8_gemm_nt_raw).
///
/// # Errors
/// As [`m_grouped_half_gemm`]. The CPU is refused: it has tensors only.
///
/// ```
/// use oxigemm::{DType, Device, GemmOptions, RawGroupedHalfGemm, RawGroups, Tensor, m_grouped_half_gemm_raw};
///
/// let device = Device::sim();
/// let (groups, m, n, k) = (2, 8, 64, 32);
/// let a = Tensor::from_f32(DType::Bf16, &vec![0.5; groups * m * k], &[groups, m, k], &device)?;
/// let b = Tensor::from_f32(DType::Bf16, &vec![2.0; groups * n * k], &[groups, n, k], &device)?;
/// let d = Tensor::zeros(DType::Bf16, &[groups, m, n], &device)?;
/// let masked_m = Tensor::from_slice(&[3i32, 0], &[groups], &device)?;
/// let gemm = RawGroupedHalfGemm {
///     groups, m, n, k, ab_type: DType::Bf16,
///     a: a.address(), a_strides: [m * k, k],
///     b: b.address(), b_strides: [n * k, k, 1],
///     c: 0, c_strides: [0, 0],
///     d: d.address(), d_strides: [m * n, n], d_type: DType::Bf16,
///     rows: RawGroups::Masked { masked_m: masked_m.address(), expected_m: 2 },
/// };
/// // SAFETY: the tensors live on, and nobody else uses them.
/// unsafe { m_grouped_half_gemm_raw(&device, &gemm, &GemmOptions::default())? };
/// assert_eq!(d.to_vec_f32()?.iter().filter(|x| **x == 32.0).count(), 3 * n);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub unsafe fn m_grouped_half_gemm_raw(
    device: &Device,
    gemm: &RawGroupedHalfGemm,
    options: &GemmOptions,
) -> Result<()> {
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_raw(device, &gemm.describe(device.id()), options) }
}

impl GroupedArguments for GroupedHalfGemm {
    fn key(&self, limits: &Limits, options: &GemmOptions) -> Result<Option<PlanKey>> {
        Ok(self.check()?.key(limits, options))
    }
}

impl CallArguments for GroupedHalfGemm {
    fn remembered(calls: &RememberedCalls) -> &Memo<Call<Self>, Ready> {
        &calls.grouped_half
    }

    fn addresses(&self) -> Addresses {
        Addresses {
            a: self.a.address,
            sfa: 0,
            b: self.b.address,
            sfb: 0,
            c: self.c.map_or(0, |c| c.address),
            d: self.d.address,
            groups: self.groups.map_or(0, |groups| groups.numbers.address),
            map_room: 0,
            fused: FusedAt::default(),
        }
    }
}
