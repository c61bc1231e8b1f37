//! The argument checks of the functions.
//!
//! A check takes plain descriptions ([`Operand`]) and not tensors, so that it serves [`Tensor`](crate::Tensor)s and
//! raw device pointers alike. What it returns is all that planning and launching need to know of the arguments, in
//! a form where arguments that mean the same problem compare equal. On the way to success it allocates nothing.

mod attention;
mod fused;
mod grouped;
mod half;
mod half_grouped;
mod half_kgrouped;
mod half_summed;
mod hyper_connection;
mod kgrouped;
mod moe;
mod quantize;

pub use attention::{
    Logits, MqaLogits, MqaProblem, PagedMqaLogits, PagedMqaProblem, PagedMqaSchedule, ScheduleProblem,
};
pub use fused::{CheckedFused, CheckedGroupedFused, EpilogueArguments, Fused, HeadSplits, QuantizedRows};
pub use grouped::{CheckedGroups, GroupedFp8GemmNt, Groups, GroupsArgument};
pub use half::{GemmLayout, HalfGemm};
pub use half_grouped::GroupedHalfGemm;
pub use half_kgrouped::KGroupedHalfGemm;
pub use half_summed::{Summed, SummedHalfGemm};
pub use hyper_connection::{HcPrenormGemm, HcProblem};
pub use kgrouped::{CheckedKGroups, KGroupedFp8Gemm, KGroups};
pub use moe::{MoePermute, MoeUnpermute, PaddingRows};
use oxigemm_kernels::gemm::launch::OperandKind;
use oxigemm_kernels::gemm::operand::f16::Major;
use oxigemm_kernels::gemm::operand::fp8::E5m2;
pub use quantize::{
    CheckedQuantize, Dequantize, DequantizeNvfp4, Granularity, Quantize, QuantizeBoth, QuantizeNvfp4,
    QuantizeSource, TransformScales,
};

use crate::error::Result;
use crate::tensor::desc as operand;
use crate::tensor::desc::Footprint;
pub(crate) use crate::tensor::desc::int;
pub use crate::tensor::desc::{Operand, ScaleStrides};
use crate::tensor::dtype::DType;

/// The edge of a scaling block: one scale covers 128 of K, and for B also 128 of N.
pub const BLOCK: u32 = 128;

/// Kernels count tiles of at least 64x16 elements of D in 32 bits; with this bound they cannot overflow.
const D_ELEMENTS_LIMIT: i64 = 1 << 40;

/// The arguments of `fp8_gemm_nt`: D = C + A·Bᵀ.
///
/// ```
/// use oxigemm::check::{Accumulate, Checked, Fp8GemmNt};
/// use oxigemm::{DType, Device, Tensor};
///
/// let cpu = Device::Cpu;
/// let a = Tensor::zeros(DType::E4m3, &[64, 512], &cpu)?;
/// let sfa = Tensor::zeros(DType::F32, &[64, 4], &cpu)?;
/// let b = Tensor::zeros(DType::E4m3, &[256, 512], &cpu)?;
/// let sfb = Tensor::zeros(DType::F32, &[2, 4], &cpu)?;
/// let d = Tensor::zeros(DType::Bf16, &[64, 256], &cpu)?;
///
/// let arguments = Fp8GemmNt {
///     a: a.describe("a"),
///     sfa: sfa.describe("sfa"),
///     b: b.describe("b"),
///     sfb: sfb.describe("sfb"),
///     c: Some(d.describe("c")),
///     d: d.describe("d"),
/// };
/// let Checked::Launch(problem) = arguments.check()? else { panic!("there is work to do") };
/// assert_eq!((problem.m, problem.n, problem.k), (64, 256, 512));
/// assert_eq!(problem.c, Accumulate::InPlace);
/// # Ok::<(), oxigemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fp8GemmNt {
    /// `[M, K]` e4m3 or e5m2, K-major.
    pub a: Operand,
    /// The scales of A: `[M, ceil(K/128)]` f32, or 1 along either dimension for all.
    pub sfa: Operand,
    /// `[N, K]` e4m3 or e5m2, K-major.
    pub b: Operand,
    /// The scales of B: `[ceil(N/128), ceil(K/128)]` or `[N, ceil(K/128)]` f32, or 1 along either dimension for all.
    pub sfb: Operand,
    /// What is added to the product: like D. It may be D itself.
    pub c: Option<Operand>,
    /// The result: `[M, N]` bf16 or f32, row-major.
    pub d: Operand,
}

/// What a call with good arguments has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// Run a kernel.
    Launch(Problem),
    /// Something for which no GEMM kernel is needed.
    Trivial(Trivial),
}

/// A call that multiplies nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trivial {
    /// D has no elements, or the product has none and C is D.
    Nothing,
    /// K is 0 and there is no C: D becomes 0.
    Zero,
    /// K is 0: D becomes C.
    CopyC,
}

/// A checked GEMM. Equal problems take the same plan.
///
/// Pitches and strides are in elements. Where a dimension is 1 its stride has no meaning and is normalized: a pitch
/// to the row length rounded up to 16 bytes, the stride of a scale to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// What is multiplied.
    pub family: OperandKind,
    /// Rows of A and D; at most `i32::MAX`, like `n` and `k`.
    pub m: u32,
    /// Columns that are computed: the rows of B, or half of them where there is a gate.
    pub n: u32,
    /// Columns of A and B.
    pub k: u32,
    /// From one row of A to the next; from one column where it is M-major.
    pub a_pitch: u64,
    /// From one row of B to the next; from one column where it is N-major.
    pub b_pitch: u64,
    /// From one row of D to the next.
    pub d_pitch: u64,
    /// What is added to the product.
    pub c: Accumulate,
    /// The strides of A's scales; [`ScaleStrides::NONE`] where there are none.
    pub sfa: ScaleStrides,
    /// The strides of B's scales.
    pub sfb: ScaleStrides,
    /// The element type of D (and C): f32, or 16 bits wide.
    pub d_type: DType,
}

/// What is added to a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accumulate {
    /// Nothing.
    None,
    /// The old content of D.
    InPlace,
    /// Another matrix, apart from D.
    From {
        /// From one row of C to the next, in elements.
        pitch: u64,
    },
}

impl Problem {
    /// How many stages of a kernel K takes, the tail included; of FP8 these are the 128-wide blocks with scales.
    #[must_use]
    pub const fn k_blocks(&self) -> u32 {
        self.family.k_blocks(self.k)
    }

    /// Multiplications and additions of the product.
    #[must_use]
    pub fn flops(&self) -> f64 {
        2.0 * f64::from(self.m) * f64::from(self.n) * f64::from(self.k)
    }

    /// Bytes that must cross the memory bus at least once: A, B, their scales, D, and C where there is one.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        let [m, n, k] = [self.m, self.n, self.k].map(f64::from);
        let scales = match self.family {
            OperandKind::Fp8 | OperandKind::Fp8E5m2(_) => {
                f64::from(self.k_blocks()) * (m + f64::from(self.n.div_ceil(BLOCK)))
            }
            OperandKind::Fp8Rows => f64::from(self.k_blocks()) * (m + n),
            OperandKind::Half(_) => 0.0,
        };
        let outputs = if self.c == Accumulate::None { 1.0 } else { 2.0 };
        let operands = (m + n) * k * f64::from(self.family.element_bytes());
        operands + 4.0 * scales + outputs * m * n * self.d_type.size() as f64
    }
}

impl Fp8GemmNt {
    /// Checks every rule of the call.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Checked> {
        self.check_k_major(None)
    }

    fn check_k_major(&self, epilogue: Option<&EpilogueArguments>) -> Result<Checked> {
        let k_major = |operand: &Operand| operand.tma_rows().map(|(pitch, memory)| (Major::K, pitch, memory));
        Ok(self.check_by(k_major, epilogue)?.0)
    }

    /// The same for operands that are contiguous along either dimension; also which of them are not K-major. Their
    /// pitches are from one step of K to the next.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check_either_major(&self) -> Result<(Checked, [Major; 2])> {
        self.check_by(|operand| operand.tma_either_major(Major::K), None)
    }

    /// The same by a rule for the rows of A and B. With an `epilogue` sums are finished: D may be of other columns and
    /// another type, and operands are e4m3 with one scale for 128 rows of B.
    fn check_by(
        &self,
        rows: impl Fn(&Operand) -> Result<(Major, u64, Footprint)>,
        epilogue: Option<&EpilogueArguments>,
    ) -> Result<(Checked, [Major; 2])> {
        let Fp8GemmNt { a, sfa, b, sfb, c, d } = self;
        let trivial = |trivial| Ok((Checked::Trivial(trivial), [Major::K; 2]));
        let finish = epilogue.copied().unwrap_or_default();
        let types = if epilogue.is_some() { &FP8[..1] } else { &FP8 };

        a.expect_dtype(types)?;
        b.expect_dtype(types)?;
        sfa.expect_dtype(&[DType::F32])?;
        sfb.expect_dtype(&[DType::F32])?;
        finish.expect_type_of_d(d, a)?;
        let [m, k] = a.matrix_dims()?;
        let [n, b_k] = b.matrix_dims()?;
        if b_k != k {
            return Err(b.wrong_shape([n, k], "with the K of `a`"));
        }
        let (k_blocks, n_blocks) = (blocks(k), blocks(n));
        let sfa = &sfa.expect_scales([m, k_blocks], "one per row of `a` and 128 of K")?;
        // One row has one scale either way.
        let each_row = epilogue.is_none() && n > 1 && sfb.dims().first() == Some(&n);
        let scales_along_n = if each_row { n } else { n_blocks };
        let sharing = match epilogue {
            None => "one per 128 rows, or each row, of `b` and 128 of K",
            Some(_) => "one per 128 rows of `b` and 128 of K",
        };
        let sfb = &sfb.expect_scales([scales_along_n, k_blocks], sharing)?;
        let family = if each_row { OperandKind::Fp8Rows } else { fp8_family([a.dtype, b.dtype]) };
        if each_row {
            a.expect_dtype(&[DType::E4m3])?;
            b.expect_dtype(&[DType::E4m3])?;
        }
        let columns = finish.columns(b, n, i64::from(BLOCK))?;
        let dims = [m, finish.columns_of_d(columns)];
        expect_output(d, c.as_ref(), dims, finish.meaning_of_d(), a, &[sfa, b, sfb, d])?;
        finish.check_shapes((None, n), &[m, columns], a, c.as_ref())?;
        if m == 0 || n == 0 {
            return trivial(Trivial::Nothing);
        }

        let (d_pitch, d_memory, accumulate) = accumulation(d, c.as_ref())?;
        if k == 0 {
            return trivial(Trivial::without_product(accumulate));
        }

        let (a_major, a_pitch, a_memory) = rows(a)?;
        let (b_major, b_pitch, b_memory) = rows(b)?;
        let (sfa_strides, sfa_memory) = sfa.scale_strides()?;
        let (sfb_strides, sfb_memory) = sfb.scale_strides()?;
        let inputs = [(a, a_memory), (b, b_memory), (sfa, sfa_memory), (sfb, sfb_memory)];
        for (input, memory) in &inputs {
            d.expect_apart(&d_memory, input, memory)?;
        }
        let problem = Problem {
            family,
            // matrix_dims has bounded each of them by i32::MAX.
            m: m as u32,
            n: columns as u32,
            k: k as u32,
            a_pitch,
            b_pitch,
            d_pitch,
            c: accumulate,
            sfa: sfa_strides,
            sfb: sfb_strides,
            d_type: d.dtype,
        };
        Ok((Checked::Launch(problem), [a_major, b_major]))
    }
}

/// The types that FP8 operands may have, first that of all kernels.
const FP8: [DType; 2] = [DType::E4m3, DType::E5m2];

/// The kernels for FP8 operands of these types.
fn fp8_family(types: [DType; 2]) -> OperandKind {
    E5m2::of(types.map(|dtype| dtype == DType::E5m2)).map_or(OperandKind::Fp8, OperandKind::Fp8E5m2)
}

impl Trivial {
    /// What is left to do where the product is 0.
    fn without_product(accumulate: Accumulate) -> Trivial {
        match accumulate {
            Accumulate::None => Trivial::Zero,
            Accumulate::InPlace => Trivial::Nothing,
            Accumulate::From { .. } => Trivial::CopyC,
        }
    }
}

/// The rules of D and C, and that all operands are where `a` is.
fn expect_output(
    d: &Operand,
    c: Option<&Operand>,
    dims: [i64; 2],
    meaning: &str,
    a: &Operand,
    others: &[&Operand],
) -> Result<()> {
    if d.matrix_dims()? != dims {
        return Err(d.wrong_shape(dims, meaning));
    }
    if dims[0] * dims[1] > D_ELEMENTS_LIMIT {
        return Err(d.too_large(format!("at most {D_ELEMENTS_LIMIT} elements")));
    }
    for operand in others {
        operand.expect_device(a)?;
    }
    if let Some(c) = c {
        c.expect_dtype(&[d.dtype])?;
        if c.matrix_dims()? != dims {
            return Err(c.wrong_shape(dims, "the shape of `d`"));
        }
        c.expect_device(a)?;
    }
    Ok(())
}

/// The pitch and the bytes of D, and what is added to it.
fn accumulation(d: &Operand, c: Option<&Operand>) -> Result<(u64, Footprint, Accumulate)> {
    let (d_pitch, d_memory) = d.plain_rows()?;
    let Some(c) = c else { return Ok((d_pitch, d_memory, Accumulate::None)) };
    let (pitch, memory) = c.plain_rows()?;
    if c.address == d.address && pitch == d_pitch {
        return Ok((d_pitch, d_memory, Accumulate::InPlace));
    }
    d.expect_apart(&d_memory, c, &memory)?;
    Ok((d_pitch, d_memory, Accumulate::From { pitch }))
}

fn blocks(length: i64) -> i64 {
    (length + i64::from(BLOCK) - 1) / i64::from(BLOCK)
}
