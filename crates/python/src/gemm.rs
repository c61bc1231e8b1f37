//! GEMMs: one description for all functions, and the one place that passes it to the library.
//!
//! [`GemmKind`] is what the name of a facade function says: operand type, layout and grouping. [`Gemm`] adds what its
//! arguments say. [`Gemm::run`] alone chooses the function of the library.

use oxigemm::{
    Activation, BlockFormat, DType, FusedOutput, Gate, GemmLayout, GemmOptions, GroupedRows, HeadSplits,
    KGroupNumbers, RowGroups, ScaleBlock, Tensor,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::call::{AddendArgument, Arguments, Call, Index};
use crate::error::argument_error;
use crate::fields::{self, fields};
use crate::quantize::format_of;
use crate::recipe::{Recipe, Rule};
use crate::settings;

/// The library's names for arguments, and Python's.
pub const NAMES: &[(&str, &str)] = &[
    ("heads", "head_splits"),
    ("ids", "grouped_layout"),
    ("ends", "grouped_layout"),
    ("ks", "grouped_layout"),
    ("alignment", "get_mk_alignment_for_contiguous_layout()"),
    ("ks_host", "ks_cpu"),
];

const NO_KERNELS: &str = "has no kernels";

/// The type of A and B.
#[derive(Clone, Copy)]
enum OperandKind {
    /// FP8 or FP4 with scales.
    Fp8,
    /// BF16 or FP16, or FP32 that is multiplied as TF32.
    Half(DType),
}

/// Which dimension is split into groups, and which arguments say how.
#[derive(Clone, Copy)]
enum GroupingKind {
    Dense,
    MGroupedContiguous,
    MGroupedMasked,
    /// Contiguous or masked, as the arguments say.
    MGrouped,
    KGrouped,
}

/// A kind of GEMM: operand type, layout and grouping.
#[pyclass(frozen, module = "oxigemm._oxigemm")]
#[derive(Clone, Copy)]
pub struct GemmKind {
    operands: OperandKind,
    layout: GemmLayout,
    grouping: GroupingKind,
}

#[pymethods]
impl GemmKind {
    #[new]
    fn new(py: Python<'_>, dtype: &str, layout: &str, grouping: &str) -> PyResult<GemmKind> {
        let operands = match dtype {
            "fp8" => OperandKind::Fp8,
            "bfloat16" => OperandKind::Half(DType::Bf16),
            "float16" => OperandKind::Half(DType::F16),
            "float32" => OperandKind::Half(DType::F32),
            other => {
                let expected = "fp8, bfloat16, float16 or float32";
                return Err(argument_error(py, "dtype", "is unknown", expected, other));
            }
        };
        let grouping = match grouping {
            "dense" => GroupingKind::Dense,
            "m_grouped_contiguous" => GroupingKind::MGroupedContiguous,
            "m_grouped_masked" => GroupingKind::MGroupedMasked,
            "m_grouped" => GroupingKind::MGrouped,
            "k_grouped_contiguous" => GroupingKind::KGrouped,
            other => {
                let expected =
                    "dense, m_grouped_contiguous, m_grouped_masked, m_grouped or k_grouped_contiguous";
                return Err(argument_error(py, "grouping", "is unknown", expected, other));
            }
        };
        Ok(GemmKind { operands, layout: layout_of(py, layout)?, grouping })
    }
}

/// The layout of this name.
pub fn layout_of(py: Python<'_>, name: &str) -> PyResult<GemmLayout> {
    match name {
        "nt" => Ok(GemmLayout::Nt),
        "nn" => Ok(GemmLayout::Nn),
        "tn" => Ok(GemmLayout::Tn),
        "tt" => Ok(GemmLayout::Tt),
        other => Err(argument_error(py, "layout", "is unknown", "nt, nn, tn or tt", other)),
    }
}

/// A and B.
#[derive(Clone, Copy)]
enum Operands {
    Fp8(ScaledOperands),
    Half { a: Index, b: Index },
}

/// A and B of FP8 or FP4, with their scales.
#[derive(Clone, Copy)]
pub struct ScaledOperands {
    pub a: [Index; 2],
    pub b: [Index; 2],
    /// Elements of K that share a scale, where a recipe says.
    scale_blocks: [Option<ScaleBlock>; 2],
}

impl ScaledOperands {
    /// Reads A and B, and compares their scales with the recipe.
    pub fn read<'py>(
        call: &mut Call<'py>,
        [a, b]: [&Bound<'py, PyAny>; 2],
        recipe: Recipe,
        k_first: [bool; 2],
    ) -> PyResult<ScaledOperands> {
        let (a, b) = (call.pair(["a", "sfa"], a)?, call.pair(["b", "sfb"], b)?);
        // Bytes are FP4, as DeepGEMM's int8.
        if ![a, b].iter().any(|[values, _]| call.array(*values).dtype == DType::U8) {
            recipe.expect_fp8(call.py())?;
        }
        for (operand, [values, scales]) in [a, b].into_iter().enumerate() {
            let (values, scales) = (call.array(values), call.array(scales));
            recipe.expect_scales(call.py(), operand, values, scales, k_first[operand])?;
        }
        Ok(ScaledOperands { a, b, scale_blocks: recipe.scale_blocks() })
    }

    /// A and B as the library takes them: each with its scales.
    #[inline]
    pub fn get<'a>(&self, x: &'a Arguments) -> [(&'a Tensor, &'a Tensor); 2] {
        [self.a, self.b].map(|[values, scales]| (x.get(values), x.get(scales)))
    }
}

impl Operands {
    #[inline]
    fn read<'py>(
        call: &mut Call<'py>,
        kind: &GemmKind,
        operands: &Bound<'py, PyTuple>,
        is_fused: bool,
    ) -> PyResult<Operands> {
        let py = call.py();
        if let OperandKind::Half(dtype) = kind.operands {
            let [a, b] = fields(&fields::OPERANDS, operands)?;
            let (a, b) = (call.input("a", a.object())?, call.input("b", b.object())?);
            call.array(a).expect_type(py, dtype)?;
            return Ok(Operands::Half { a, b });
        }
        let [a, b, recipe, recipe_a, recipe_b] = fields(&fields::SCALED_OPERANDS, operands)?;
        let recipes = (recipe.get()?, recipe_a.get()?, recipe_b.get()?);
        let (recipe, k_first) = match kind.grouping {
            GroupingKind::KGrouped => (Recipe::k_grouped(py, recipes.0)?, [false; 2]),
            GroupingKind::Dense if !is_fused => {
                let k_first = [kind.layout.a_begins_with_k(), kind.layout.b_begins_with_k()];
                (Recipe::new(py, recipes)?, k_first)
            }
            GroupingKind::Dense => (Recipe::new(py, recipes)?, [false; 2]),
            _ => {
                let recipe = Recipe::new(py, recipes)?.with_rule(Rule::MGrouped);
                (recipe, [false, kind.layout.b_begins_with_k()])
            }
        };
        Ok(Operands::Fp8(ScaledOperands::read(call, [a.object(), b.object()], recipe, k_first)?))
    }

    fn a(&self) -> Index {
        match self {
            Operands::Fp8(scaled) => scaled.a[0],
            Operands::Half { a, .. } => *a,
        }
    }

    fn b(&self) -> Index {
        match self {
            Operands::Fp8(scaled) => scaled.b[0],
            Operands::Half { b, .. } => *b,
        }
    }
}

/// The groups of a GEMM.
enum Grouping {
    Dense,
    M(MGroups),
    /// `alignment`: of groups whose ends are given.
    K {
        numbers: Index,
        alignment: Option<usize>,
        ks_host: Option<Vec<usize>>,
    },
}

/// The groups of an m-grouped GEMM.
#[derive(Clone, Copy)]
pub enum MGroups {
    Contiguous {
        grouped_layout: Index,
        is_psum: bool,
        alignment: usize,
        expected_m: Option<usize>,
        zero_padding: bool,
    },
    Masked {
        masked_m: Index,
        expected_m: usize,
    },
}

impl MGroups {
    fn contiguous<'py>(
        call: &mut Call<'py>,
        grouped_layout: &Bound<'py, PyAny>,
        is_psum: bool,
        (name, expected_m): (&str, Option<i64>),
        zero_padding: bool,
    ) -> PyResult<MGroups> {
        if expected_m.is_some() && !is_psum {
            let (expected, found) = ("None, as `use_psum_layout` is False", format!("{expected_m:?}"));
            return Err(argument_error(call.py(), name, "means nothing", expected, &found));
        }
        let expected_m = expected_m.map(|rows| positive(call.py(), name, rows)).transpose()?;
        let grouped_layout = call.input("grouped_layout", grouped_layout)?;
        let alignment = settings::alignment();
        Ok(MGroups::Contiguous { grouped_layout, is_psum, alignment, expected_m, zero_padding })
    }

    /// The groups of a fused GEMM, for which the arguments say whether they are contiguous or masked.
    pub fn either<'py>(call: &mut Call<'py>, groups: &Bound<'py, PyTuple>, a: Index) -> PyResult<MGroups> {
        let [grouped_layout, masked_m, expected_m, psum] = fields(&fields::M_GROUPED, groups)?;
        let (expected_m, is_psum) = (expected_m.get::<Option<i64>>()?, psum.get::<bool>()?);
        match (grouped_layout.optional(), masked_m.optional()) {
            (None, Some(masked_m)) if !is_psum => {
                let expected_m = match expected_m {
                    Some(rows) => positive(call.py(), "expected_m", rows)?,
                    // The plan is for full groups.
                    None => call.array(a).dims().get(1).map_or(1, |m| (*m).max(1)),
                };
                Ok(MGroups::Masked { masked_m: call.input("masked_m", masked_m)?, expected_m })
            }
            (Some(layout), None) => {
                MGroups::contiguous(call, layout, is_psum, ("expected_m", expected_m), false)
            }
            (_, masked_m) => {
                let expected = "either it, with or without `use_psum_layout`, or `masked_m`";
                let found = if masked_m.is_some() { "more" } else { "neither" };
                let problem = "does not tell where groups are";
                Err(argument_error(call.py(), "grouped_layout", problem, expected, found))
            }
        }
    }

    #[inline]
    pub fn get<'a>(&self, x: &'a Arguments) -> RowGroups<'a> {
        match *self {
            MGroups::Contiguous { grouped_layout, is_psum, alignment, expected_m, .. } => {
                let numbers = x.get(grouped_layout);
                let rows = if is_psum { GroupedRows::Ends(numbers) } else { GroupedRows::Ids(numbers) };
                RowGroups::Contiguous { rows, alignment, expected_m }
            }
            MGroups::Masked { masked_m, expected_m } => {
                RowGroups::Masked { masked_m: x.get(masked_m), expected_m }
            }
        }
    }
}

impl Grouping {
    #[inline]
    fn read<'py>(
        call: &mut Call<'py>,
        kind: GroupingKind,
        groups: Option<&Bound<'py, PyTuple>>,
        a: Index,
    ) -> PyResult<Grouping> {
        let groups = || groups.ok_or_else(|| PyTypeError::new_err("expected a tuple of groups, found None"));
        match kind {
            GroupingKind::Dense => Ok(Grouping::Dense),
            GroupingKind::MGroupedContiguous => {
                let [grouped_layout, psum, expected_m, zero_padding] =
                    fields(&fields::M_GROUPED_CONTIGUOUS, groups()?)?;
                let expected_m = ("expected_m_for_psum_layout", expected_m.get()?);
                // Padding rows that have an id are zero for both values, as in DeepGEMM on Hopper for padding of zeros.
                let (psum, _): (bool, bool) = (psum.get()?, zero_padding.get()?);
                let groups = MGroups::contiguous(call, grouped_layout.object(), psum, expected_m, true)?;
                Ok(Grouping::M(groups))
            }
            GroupingKind::MGroupedMasked => {
                let [masked_m, expected_m] = fields(&fields::M_GROUPED_MASKED, groups()?)?;
                let expected_m = positive(call.py(), "expected_m", expected_m.get()?)?;
                let masked_m = call.input("masked_m", masked_m.object())?;
                Ok(Grouping::M(MGroups::Masked { masked_m, expected_m }))
            }
            GroupingKind::MGrouped => MGroups::either(call, groups()?, a).map(Grouping::M),
            GroupingKind::KGrouped => {
                let [ks_cpu, grouped_layout, psum] = fields(&fields::K_GROUPED, groups()?)?;
                let ks_host = known_ks(call.py(), ks_cpu.get()?)?;
                let alignment = psum.get::<bool>()?.then(settings::alignment);
                let numbers = call.input("grouped_layout", grouped_layout.object())?;
                Ok(Grouping::K { numbers, alignment, ks_host })
            }
        }
    }
}

/// The groups of a k-grouped GEMM.
fn k_groups(numbers: &Tensor, alignment: Option<usize>) -> KGroupNumbers<'_> {
    match alignment {
        None => KGroupNumbers::Ks(numbers),
        Some(alignment) => KGroupNumbers::Ends { ends: numbers, alignment },
    }
}

fn positive(py: Python<'_>, name: &str, number: i64) -> PyResult<usize> {
    usize::try_from(number)
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| argument_error(py, name, "is out of range", "1 or more", &number.to_string()))
}

/// The K of every group, where the host knows them.
fn known_ks(py: Python<'_>, ks_cpu: Option<Vec<i64>>) -> PyResult<Option<Vec<usize>>> {
    let number = |k: i64| {
        let expected = "numbers of 0 or more";
        usize::try_from(k)
            .map_err(|_| argument_error(py, "ks_cpu", "is out of range", expected, &k.to_string()))
    };
    let known = ks_cpu.filter(|ks| !ks.is_empty());
    known.map(|ks| ks.into_iter().map(number).collect()).transpose()
}

/// A fused epilogue.
#[derive(Clone, Copy)]
struct Epilogue {
    alpha: f32,
    beta: f32,
    bias: Option<Index>,
    activation: Activation,
    gated: bool,
    gate: Gate,
    heads: Option<HeadSplits>,
    d_scales: Option<Index>,
    power_of_two: bool,
    d_format: Option<BlockFormat>,
}

impl Epilogue {
    #[inline]
    fn read<'py>(call: &mut Call<'py>, epilogue: &Bound<'py, PyTuple>) -> PyResult<Epilogue> {
        let [
            alpha,
            beta,
            bias,
            activation,
            gated,
            head_splits,
            d_scales,
            power_of_two,
            d_format,
            tensor_scale,
            gate,
        ] = fields(&fields::EPILOGUE, epilogue)?;
        let d_format = d_format.get::<Option<std::borrow::Cow<'_, str>>>()?;
        let tensor_scale = tensor_scale.get()?;
        let d_format = d_format.map(|name| block_format_of(call.py(), &name, tensor_scale)).transpose()?;
        if d_format.is_some() && d_scales.optional().is_none() {
            let expected = "int32 scales beside `d_format`";
            return Err(argument_error(call.py(), "d_scales", "is missing", expected, "None"));
        }
        let activation = activation.get::<std::borrow::Cow<'_, str>>()?;
        let head_splits = head_splits.get::<Option<(u32, u32, u32)>>()?;
        Ok(Epilogue {
            alpha: alpha.get()?,
            beta: beta.get()?,
            activation: activation_of(call.py(), &activation)?,
            gated: gated.get()?,
            gate: gate.get::<Option<(f32, f32, f32)>>()?.map_or_else(Gate::default, |gate| {
                let (slope, limit, up_offset) = gate;
                Gate { slope, limit, up_offset }
            }),
            heads: head_splits.map(|(left, mid, right)| HeadSplits { left, mid, right }),
            power_of_two: power_of_two.get()?,
            d_format,
            bias: bias.optional().map(|bias| call.input("bias", bias)).transpose()?,
            d_scales: d_scales.optional().map(|scales| call.output("d_scales", scales)).transpose()?,
        })
    }

    fn get<'a>(&self, x: &'a Arguments) -> oxigemm::Epilogue<'a> {
        let Epilogue { alpha, beta, activation, gated, gate, heads, .. } = *self;
        let bias = self.bias.map(|bias| x.get(bias));
        oxigemm::Epilogue { alpha, bias, activation, gated, gate, beta, heads }
    }
}

pub fn activation_of(py: Python<'_>, name: &str) -> PyResult<Activation> {
    Ok(match name {
        "none" => Activation::None,
        "relu" => Activation::Relu,
        "relu_squared" => Activation::ReluSquared,
        "gelu" => Activation::Gelu,
        "gelu_tanh" => Activation::GeluTanh,
        "silu" => Activation::Silu,
        other => {
            let expected = "none, relu, relu_squared, gelu, gelu_tanh or silu";
            return Err(argument_error(py, "activation", "is unknown", expected, other));
        }
    })
}

/// What D is quantized to where its scales are bytes.
fn block_format_of(py: Python<'_>, name: &str, tensor_scale: f32) -> PyResult<BlockFormat> {
    Ok(match name {
        "fp8" => BlockFormat::Fp8,
        "mxfp8" => BlockFormat::Mxfp8,
        "mxfp4" => BlockFormat::Mxfp4,
        "nvfp4" => BlockFormat::Nvfp4 { tensor_scale },
        other => {
            return Err(argument_error(py, "d_format", "is unknown", "fp8, mxfp8, mxfp4 or nvfp4", other));
        }
    })
}

/// A GEMM with its arguments read.
struct Gemm {
    layout: GemmLayout,
    operands: Operands,
    c: AddendArgument,
    d: Index,
    grouping: Grouping,
    epilogue: Option<Epilogue>,
}

impl Gemm {
    /// Computes it.
    #[inline]
    fn run(&self, x: &Arguments) -> oxigemm::Result<()> {
        match self.operands {
            Operands::Fp8(ScaledOperands { scale_blocks: scale_blocks @ [Some(_), Some(_)], .. }) => {
                self.run_with(x, &GemmOptions { scale_blocks, ..x.options.clone() })
            }
            _ => self.run_with(x, &x.options),
        }
    }

    #[inline]
    fn run_with(&self, x: &Arguments, options: &GemmOptions) -> oxigemm::Result<()> {
        if let Some(epilogue) = &self.epilogue {
            return self.run_fused(x, epilogue, options);
        }
        let (layout, c, d) = (self.layout, x.addend(self.c), &mut x.output(self.d));
        match (self.operands, &self.grouping) {
            (Operands::Fp8(scaled), Grouping::Dense) => {
                let [a, b] = scaled.get(x);
                oxigemm::fp8_fp4_gemm(layout, a, b, c, d, options)
            }
            (Operands::Half { a, b }, Grouping::Dense) => {
                let is_f32 = x.get(a).dtype() == DType::F32;
                let gemm = if is_f32 { oxigemm::tf32_gemm } else { oxigemm::half_gemm };
                gemm(layout, x.get(a), x.get(b), c, d, options)
            }
            (Operands::Fp8(scaled), Grouping::M(groups)) => {
                let [a, b] = scaled.get(x);
                m_grouped_fp8_gemm(layout, [a, b], d, groups.get(x), options)?;
                self.zero_padding(x, groups)
            }
            (Operands::Half { a, b }, Grouping::M(groups)) => {
                let rows = groups.get(x);
                oxigemm::m_grouped_half_gemm(layout, x.get(a), x.get(b), c, d, rows, options)?;
                self.zero_padding(x, groups)
            }
            (Operands::Fp8(scaled), Grouping::K { numbers, alignment, ks_host }) => {
                let ([a, b], groups) = (scaled.get(x), k_groups(x.get(*numbers), *alignment));
                let ks_host = ks_host.as_deref();
                match layout {
                    GemmLayout::Tn => {
                        oxigemm::k_grouped_fp8_gemm_tn_contiguous(a, b, c, d, groups, ks_host, options)
                    }
                    _ if a.0.dtype() == DType::U8 => {
                        oxigemm::k_grouped_fp4_gemm_nt_contiguous(a, b, c, d, groups, ks_host, options)
                    }
                    _ => oxigemm::k_grouped_fp8_gemm_nt_contiguous(a, b, c, d, groups, ks_host, options),
                }
            }
            (Operands::Half { a, b }, Grouping::K { numbers, alignment, ks_host }) => {
                let (a, b, groups) = (x.get(a), x.get(b), k_groups(x.get(*numbers), *alignment));
                oxigemm::k_grouped_half_gemm(layout, a, b, c, d, groups, ks_host.as_deref(), options)
            }
        }
    }

    /// Computes it with a fused epilogue.
    fn run_fused(&self, x: &Arguments, epilogue: &Epilogue, options: &GemmOptions) -> oxigemm::Result<()> {
        let (mut d, mut scales) = (x.output(self.d), epilogue.d_scales.map(|scales| x.output(scales)));
        let quantized = scales.is_some();
        let d = match &mut scales {
            Some(scales) => match epilogue.d_format {
                Some(format) => FusedOutput::BlockScaled { d: &mut d, scales, format },
                None => FusedOutput::Fp8 { d: &mut d, scales, format: format_of(epilogue.power_of_two) },
            },
            None => FusedOutput::Matrix(&mut d),
        };
        let (c, epilogue) = (x.addend(self.c), &epilogue.get(x));
        match (self.operands, &self.grouping) {
            (Operands::Fp8(scaled), Grouping::M(groups)) => {
                let ([a, b], rows) = (scaled.get(x), groups.get(x));
                oxigemm::m_grouped_fp8_fp4_gemm_nt_fused(a, b, c, d, rows, epilogue, options)?;
                if quantized { Ok(()) } else { self.zero_padding(x, groups) }
            }
            (Operands::Half { a, b }, Grouping::M(groups)) => {
                let (a, b, rows) = (x.get(a), x.get(b), groups.get(x));
                oxigemm::m_grouped_half_gemm_nt_fused(a, b, c, d, rows, epilogue, options)?;
                if quantized { Ok(()) } else { self.zero_padding(x, groups) }
            }
            (Operands::Fp8(scaled), _) => {
                let [a, b] = scaled.get(x);
                oxigemm::fp8_fp4_gemm_nt_fused(a, b, c, d, epilogue, options)
            }
            (Operands::Half { a, b }, _) => {
                oxigemm::half_gemm_nt_fused(x.get(a), x.get(b), c, d, epilogue, options)
            }
        }
    }

    /// Zeroes the rows of D that belong to no group, where `grouped_layout` has an id for each row. DeepGEMM computes
    /// these rows from rows of A that are zero.
    fn zero_padding(&self, x: &Arguments, groups: &MGroups) -> oxigemm::Result<()> {
        match *groups {
            MGroups::Contiguous { grouped_layout, is_psum: false, zero_padding: true, .. } => {
                let groups = x.get(self.operands.b()).dims()[0];
                let (ids, d) = (x.get(grouped_layout), &mut x.output(self.d));
                oxigemm::zero_padding_rows(ids, groups, d, &x.launch_options())
            }
            _ => Ok(()),
        }
    }
}

/// An m-grouped GEMM of FP8 or FP4.
#[inline]
fn m_grouped_fp8_gemm(
    layout: GemmLayout,
    [a, b]: [(&Tensor, &Tensor); 2],
    d: &mut Tensor,
    groups: RowGroups<'_>,
    options: &GemmOptions,
) -> oxigemm::Result<()> {
    match (groups, layout) {
        (RowGroups::Contiguous { rows, alignment, expected_m }, GemmLayout::Nn) => {
            oxigemm::m_grouped_fp8_fp4_gemm_nn_contiguous(a, b, d, rows, alignment, expected_m, options)
        }
        (RowGroups::Contiguous { rows, alignment, expected_m }, _) => {
            oxigemm::m_grouped_fp8_fp4_gemm_nt_contiguous(a, b, d, rows, alignment, expected_m, options)
        }
        (RowGroups::Masked { masked_m, expected_m }, GemmLayout::Nn) => {
            oxigemm::m_grouped_fp8_fp4_gemm_nn_masked(a, b, d, masked_m, expected_m, options)
        }
        (RowGroups::Masked { masked_m, expected_m }, _) => {
            oxigemm::m_grouped_fp8_fp4_gemm_nt_masked(a, b, d, masked_m, expected_m, options)
        }
    }
}

/// A GEMM of any kind. [`fields`] has the order of the structured arguments.
#[pyfunction]
fn gemm<'py>(
    kind: &Bound<'py, GemmKind>,
    operands: &Bound<'py, PyTuple>,
    d: &Bound<'py, PyAny>,
    c: Option<&Bound<'py, PyAny>>,
    grouping: Option<&Bound<'py, PyTuple>>,
    epilogue: Option<&Bound<'py, PyTuple>>,
) -> PyResult<()> {
    let kind = kind.get();
    if epilogue.is_some()
        && (kind.layout != GemmLayout::Nt || matches!(kind.grouping, GroupingKind::KGrouped))
    {
        let (expected, found) = ("None but in nt, dense or m-grouped", "a fused epilogue");
        return Err(argument_error(d.py(), "epilogue", NO_KERNELS, expected, found));
    }
    let mut call = Call::new(d.py(), NAMES);
    let operands = Operands::read(&mut call, kind, operands, epilogue.is_some())?;
    let d = call.output("d", d)?;
    let c = call.addend(c, d)?;
    let epilogue = epilogue.map(|epilogue| Epilogue::read(&mut call, epilogue)).transpose()?;
    let grouping = Grouping::read(&mut call, kind.grouping, grouping, operands.a())?;
    let gemm = Gemm { layout: kind.layout, operands, c, d, grouping, epilogue };
    call.run(|x| gemm.run(x))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<GemmKind>()?;
    module.add_function(wrap_pyfunction!(gemm, module)?)
}
