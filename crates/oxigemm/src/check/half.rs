//! The checks of the GEMMs with 16-bit operands.

use std::fmt;
use std::str::FromStr;

use oxigemm_kernels::gemm::OperandKind;
use oxigemm_kernels::gemm::operand::f16::{Half, Major, Operands};

use super::{
    Checked, EpilogueArguments, Operand, Problem, ScaleStrides, Trivial, accumulation, expect_output,
};
use crate::dtype::DType;
use crate::error::Result;

/// How A and B of a GEMM are given: `n` as they stand in `D = A·B`, `t` transposed.
///
/// ```
/// use oxigemm::GemmLayout;
///
/// assert_eq!("nt".parse(), Ok(GemmLayout::Nt));
/// assert_eq!(GemmLayout::Tn.to_string(), "tn");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GemmLayout {
    /// A is `[M, K]`, B is `[N, K]`: D = A·Bᵀ.
    #[default]
    Nt,
    /// A is `[M, K]`, B is `[K, N]`: D = A·B.
    Nn,
    /// A is `[K, M]`, B is `[K, N]`: D = Aᵀ·B.
    Tn,
    /// A is `[K, M]`, B is `[N, K]`: D = Aᵀ·Bᵀ.
    Tt,
}

impl GemmLayout {
    /// All four.
    pub const ALL: [GemmLayout; 4] = [GemmLayout::Nt, GemmLayout::Nn, GemmLayout::Tn, GemmLayout::Tt];

    /// The name that users type and read.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            GemmLayout::Nt => "nt",
            GemmLayout::Nn => "nn",
            GemmLayout::Tn => "tn",
            GemmLayout::Tt => "tt",
        }
    }

    /// Whether A is `[K, M]`.
    #[must_use]
    pub const fn a_begins_with_k(self) -> bool {
        matches!(self, GemmLayout::Tn | GemmLayout::Tt)
    }

    /// The operands of this type, each contiguous along its last dimension.
    #[must_use]
    pub fn operands(self, element: Half) -> Operands {
        let major = |k_first| if k_first { Major::MN } else { Major::K };
        Operands { element, a: major(self.a_begins_with_k()), b: major(self.b_begins_with_k()) }
    }

    /// Whether B is `[K, N]`.
    #[must_use]
    pub const fn b_begins_with_k(self) -> bool {
        matches!(self, GemmLayout::Nn | GemmLayout::Tn)
    }
}

impl fmt::Display for GemmLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for GemmLayout {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<GemmLayout, String> {
        let found = GemmLayout::ALL.into_iter().find(|layout| layout.name() == name);
        found.ok_or_else(|| format!("`{name}` is no layout: expected nt, nn, tn or tt"))
    }
}

/// The arguments of a GEMM with 16-bit operands.
///
/// The layout says which dimension of an operand is K, and the strides which one is contiguous: a transposed view is
/// as good as the tensor that it views.
///
/// ```
/// use oxigemm::check::{Checked, HalfGemm};
/// use oxigemm::{DType, Device, GemmLayout, Tensor};
///
/// let cpu = Device::Cpu;
/// let a = Tensor::zeros(DType::F16, &[64, 512], &cpu)?;
/// let b = Tensor::zeros(DType::F16, &[512, 256], &cpu)?;
/// let d = Tensor::zeros(DType::F16, &[64, 256], &cpu)?;
/// let arguments = HalfGemm {
///     layout: GemmLayout::Nn,
///     a: a.describe("a"),
///     b: b.describe("b"),
///     c: None,
///     d: d.describe("d"),
/// };
/// let Checked::Launch(problem) = arguments.check()? else { panic!("there is work to do") };
/// assert_eq!((problem.m, problem.n, problem.k), (64, 256, 512));
/// # Ok::<(), oxigemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfGemm {
    /// How A and B are given.
    pub layout: GemmLayout,
    /// bf16 or f16, contiguous along either dimension.
    pub a: Operand,
    /// As `a`, of the same type.
    pub b: Operand,
    /// What is added to the product: like D. It may be D itself.
    pub c: Option<Operand>,
    /// The result: `[M, N]`, row-major, of the type of `a` or f32.
    pub d: Operand,
}

impl HalfGemm {
    /// Checks every rule of the call.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Checked> {
        self.check_finished(None)
    }

    /// A as `[M, K]` and B as `[N, K]`.
    pub(super) fn along_k(&self) -> [Operand; 2] {
        let view = |operand: &Operand, k_first| if k_first { operand.transposed() } else { *operand };
        [view(&self.a, self.layout.a_begins_with_k()), view(&self.b, self.layout.b_begins_with_k())]
    }

    /// The same; with an `epilogue` sums are finished: D may be of other columns and another type, and operands are K-major.
    pub(super) fn check_finished(&self, epilogue: Option<&EpilogueArguments>) -> Result<Checked> {
        let HalfGemm { layout, a, b, c, d } = self;
        let finish = epilogue.copied().unwrap_or_default();
        a.expect_dtype(&[DType::Bf16, DType::F16])?;
        b.expect_dtype(&[a.dtype])?;
        finish.expect_type_of_d(d, a)?;
        let ([rows, columns], a_first) = (a.matrix_dims()?, layout.a_begins_with_k());
        let [m, k] = if a_first { [columns, rows] } else { [rows, columns] };
        let ([rows, columns], b_first) = (b.matrix_dims()?, layout.b_begins_with_k());
        let [n, b_k] = if b_first { [columns, rows] } else { [rows, columns] };
        if b_k != k {
            return Err(b.wrong_shape(if b_first { [k, n] } else { [n, k] }, "with the K of `a`"));
        }
        let columns = finish.columns(b, n, 1)?;
        let meaning = epilogue.map_or("the M of `a` by the N of `b`", EpilogueArguments::meaning_of_d);
        expect_output(d, c.as_ref(), [m, finish.columns_of_d(columns)], meaning, a, &[b, d])?;
        finish.check_shapes((None, n), &[m, columns], a, c.as_ref())?;
        if m == 0 || n == 0 {
            return Ok(Checked::Trivial(Trivial::Nothing));
        }
        let (d_pitch, d_memory, accumulate) = accumulation(d, c.as_ref())?;
        if k == 0 {
            return Ok(Checked::Trivial(Trivial::without_product(accumulate)));
        }

        let majors = |along_k: &Operand, k_first| match (epilogue, k_first) {
            (Some(_), _) => along_k.tma_rows().map(|(pitch, memory)| (Major::K, pitch, memory)),
            (None, false) => along_k.tma_either_major(Major::K),
            (None, true) => along_k.tma_either_major(Major::MN),
        };
        let [along_a, along_b] = self.along_k();
        let (a_major, a_pitch, a_memory) = majors(&along_a, a_first)?;
        let (b_major, b_pitch, b_memory) = majors(&along_b, b_first)?;
        for (input, memory) in [(a, &a_memory), (b, &b_memory)] {
            d.expect_apart(&d_memory, input, memory)?;
        }
        let element = if a.dtype == DType::Bf16 { Half::Bf16 } else { Half::F16 };
        Ok(Checked::Launch(Problem {
            family: OperandKind::f16(Operands { element, a: a_major, b: b_major }),
            // matrix_dims has bounded each of them by i32::MAX.
            m: m as u32,
            n: columns as u32,
            k: k as u32,
            a_pitch,
            b_pitch,
            d_pitch,
            c: accumulate,
            sfa: ScaleStrides::NONE,
            sfb: ScaleStrides::NONE,
            d_type: d.dtype,
        }))
    }
}
