//! A mixture of experts in one call: from hidden states and their choices to the combined output.

use oxigemm_kernels::gemm::epilogue::{Activation, Gate};
use oxigemm_kernels::gemm::params::ScaleBlock;

use crate::check::OutputFormat;
use crate::check::gemm::tensors::epilogue::Epilogue;
use crate::check::gemm::tensors::groups::{GroupedRows, RowGroups};
use crate::check::gemm::tensors::{Gemm, Grouping};
use crate::error::{Error, Result};
use crate::gemm::GemmOptions;
use crate::layers::Recipe;
use crate::moe::{PermutedRows, moe_gather, moe_permute, moe_rows, moe_unpermute};
use crate::quantize::gather_quantize;
use crate::tensor::{DType, Tensor};

/// Where the rows of an expert begin: M-subtiles of the tensor core, so few rows are only padding.
const ALIGNMENT: usize = 16;
/// Columns of what is between the GEMMs that share a scale.
const BLOCK: usize = 128;
/// Where parts of the scratch memory begin.
const PART: usize = 256;

/// A weight of all experts.
#[derive(Clone, Copy, Debug)]
pub struct MoeProjection<'a> {
    /// `[E, N, K]`: e4m3, FP4 as u8 `[E, N, K/2]`, or bf16.
    pub weight: &'a Tensor,
    /// Of e4m3 `[E, ceil(N/128), ceil(K/128)]` f32, of FP4 `[E, N, ceil(K/32)]`; bf16 has none.
    pub scales: Option<&'a Tensor>,
    /// `[E, N]` f32 or bf16.
    pub bias: Option<&'a Tensor>,
}

/// Weights of experts, and what is between them.
///
/// Experts that every token takes are experts too: a token that names them, behind those that are chosen for it and
/// with a weight of 1, has them computed in the same launches.
#[derive(Clone, Copy, Debug)]
pub struct MoeExperts<'a> {
    /// `[E, 2·I, K]`, gates and then ups; `[E, I, K]` where nothing is gated.
    pub gate_up: MoeProjection<'a>,
    /// `[E, K, I]`.
    pub down: MoeProjection<'a>,
    /// The activation of gates, or of all.
    pub activation: Activation,
    /// Whether there are gates.
    pub gated: bool,
    /// What is done with gates and ups.
    pub gate: Gate,
}

impl<'a> MoeExperts<'a> {
    /// Experts with SwiGLU.
    #[must_use]
    pub fn swiglu(gate_up: MoeProjection<'a>, down: MoeProjection<'a>) -> MoeExperts<'a> {
        MoeExperts { gate_up, down, activation: Activation::Silu, gated: true, gate: Gate::PLAIN }
    }
}

/// The experts that are chosen for tokens.
#[derive(Clone, Copy, Debug)]
pub struct MoeRouting<'a> {
    /// `[T, C]` i32, contiguous; a number that is no expert adds nothing.
    pub ids: &'a Tensor,
    /// `[T, C]` f32, contiguous.
    pub weights: &'a Tensor,
}

/// E, I and K.
#[derive(Clone, Copy, Debug)]
struct Dims {
    experts: usize,
    inner: usize,
    outer: usize,
}

/// How many bytes [`moe_forward`] needs for so many tokens with so many choices each, and for weights of E, I and K of
/// this type.
///
/// ```
/// use oxigemm::{DType, moe_scratch_bytes};
///
/// let experts = [32, 2048, 7168];
/// assert!(moe_scratch_bytes([128, 8], experts, DType::E4m3) < moe_scratch_bytes([128, 8], experts, DType::Bf16));
/// ```
#[must_use]
pub fn moe_scratch_bytes(choices: [usize; 2], [experts, inner, outer]: [usize; 3], weight: DType) -> usize {
    Plan::new(Dims { experts, inner, outer }, weight == DType::Bf16, choices).bytes
}

/// Experts of a mixture: `out[t] = sum over choices of weights[t, c] * down_e · (act(gate_e · x[t]) * (up_e · x[t]))`,
/// where `e = ids[t, c]`, in the stream of the options.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `x` | `[T, K]` | bf16 | rows of K, any pitch |
/// | `routing` | `[T, C]` | i32 and f32 | contiguous |
/// | `scratch` | [`moe_scratch_bytes`] or more | u8 | contiguous; from a multiple of 256 bytes on; of any content, but not uninitialized in the simulator |
/// | `out` | `[T, K]` | bf16 | contiguous |
///
/// Five kernels, of which none is launched twice: choices are permuted, tokens gathered and quantized, multiplied
/// with activation, gate and quantization in the epilogue, multiplied, and the rows of each token added. Nothing is
/// read back or allocated, so the call can be captured into a graph, which is replayed with other choices. Sums are in
/// the order of choices: results do not depend on how work is scheduled. An expert without tokens costs nothing.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{DType, Device, GemmOptions, MoeExperts, MoeProjection, MoeRouting, Tensor};
/// use oxigemm::{moe_forward, moe_scratch_bytes, random};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (tokens, experts, inner, outer) = (3, 4, 64, 128);
/// let new = |seed, dims: &[usize]| {
///     let count = dims.iter().product();
///     Tensor::from_f32(DType::Bf16, &random::normals(seed, count), dims, &device)
/// };
/// let (gate_up, down) = (new(1, &[experts, 2 * inner, outer])?, new(2, &[experts, outer, inner])?);
/// let of = |weight| MoeProjection { weight, scales: None, bias: None };
/// let weights = MoeExperts::swiglu(of(&gate_up), of(&down));
///
/// let ids = Tensor::from_slice(&[0i32, 2, 2, 3, 1, 0], &[tokens, 2], &device)?;
/// let factors = Tensor::from_slice(&[0.5f32; 6], &[tokens, 2], &device)?;
/// let routing = MoeRouting { ids: &ids, weights: &factors };
/// let bytes = moe_scratch_bytes([tokens, 2], [experts, inner, outer], DType::Bf16);
/// let mut scratch = Tensor::zeros(DType::U8, &[bytes], &device)?;
/// let (x, mut out) = (new(3, &[tokens, outer])?, Tensor::empty(DType::Bf16, &[tokens, outer], &device)?);
/// moe_forward(&x, &routing, &weights, &mut scratch, &mut out, &GemmOptions::default())?;
/// assert!(out.to_vec_f32()?.iter().all(|x| x.is_finite()));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn moe_forward(
    x: &Tensor,
    routing: &MoeRouting<'_>,
    experts: &MoeExperts<'_>,
    scratch: &mut Tensor,
    out: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let dims = experts.dims()?;
    let [tokens, topk] = check(dims, x, routing, out)?;
    if tokens == 0 {
        return Ok(());
    }
    let plan = Plan::new(dims, experts.is_half(), [tokens, topk]);
    let mut rows = plan.rows(scratch)?;
    let to = PermutedRows {
        tokens: &mut rows.tokens,
        groups: &mut rows.groups,
        ends: &mut rows.ends,
        places: &mut rows.places,
    };
    moe_permute(routing.ids, ALIGNMENT, to, &options.into())?;
    let groups = RowGroups::Contiguous {
        rows: GroupedRows::Ends(&rows.ends),
        alignment: ALIGNMENT,
        expected_m: Some((tokens * topk).div_ceil(dims.experts)),
    };
    let call = Call { tokens: &rows.tokens, groups, options };
    call.multiply(x, experts, &rows.between, &mut rows.out)?;
    moe_unpermute(&rows.out, &rows.places, routing.weights, out, &options.into())
}

impl MoeExperts<'_> {
    fn is_half(&self) -> bool {
        self.gate_up.weight.dtype() == DType::Bf16
    }

    /// The dimensions of weights that fit each other.
    fn dims(&self) -> Result<Dims> {
        for (name, projection) in [("gate_up", self.gate_up), ("down", self.down)] {
            let weight = projection.weight.describe(name);
            weight.expect_dtype(&[DType::E4m3, DType::U8, DType::Bf16])?;
            weight.expect_rank(3, "weights of experts")?;
            let needs_scales = weight.dtype != DType::Bf16;
            if needs_scales != projection.scales.is_some() {
                let scales = if name == "down" { "down_scales" } else { "gate_up_scales" };
                let (expected, found) = match needs_scales {
                    true => ("scales of the weight", "none"),
                    false => ("none, as the weight is bf16", "some"),
                };
                let (expected, found) = (expected.to_owned(), found.to_owned());
                return Err(Error::Value { argument: scales, expected, found });
            }
        }
        let of = |projection: &MoeProjection<'_>| {
            let weight = projection.weight;
            let per_byte = if weight.dtype() == DType::U8 { 2 } else { 1 };
            [weight.dims()[0], weight.dims()[1], per_byte * weight.dims()[2]]
        };
        let ([experts, both, outer], down) = (of(&self.gate_up), of(&self.down));
        let inner = if self.gated { both / 2 } else { both };
        if down != [experts, outer, inner] || (self.gated && both % 2 != 0) {
            return Err(Error::Shape {
                argument: "down",
                expected: format!(
                    "{:?}, as `gate_up` is {:?}",
                    [experts, outer, inner],
                    [experts, both, outer]
                ),
                found: format!("{down:?}"),
            });
        }
        if self.is_half() != (self.down.weight.dtype() == DType::Bf16) {
            return Err(Error::DType {
                argument: "down",
                expected: "bf16 where `gate_up` is, and only there".to_owned(),
                found: self.down.weight.dtype().to_string(),
            });
        }
        if !self.is_half() && inner % BLOCK != 0 {
            return Err(Error::Shape {
                argument: "gate_up",
                expected: format!("an I that is a multiple of {BLOCK}, as its columns share scales"),
                found: format!("{inner}"),
            });
        }
        Ok(Dims { experts, inner, outer })
    }

    /// What follows the first GEMM.
    fn between(&self) -> Epilogue<'_> {
        let (activation, gated, gate) = (self.activation, self.gated, self.gate);
        Epilogue { activation, gated, gate, bias: self.gate_up.bias, ..Default::default() }
    }
}

/// Tokens, and choices of each.
fn check(dims: Dims, x: &Tensor, routing: &MoeRouting<'_>, out: &Tensor) -> Result<[usize; 2]> {
    let outer = dims.outer as i64;
    let [x, ids] = [x.describe("x"), routing.ids.describe("ids")];
    let [weights, out] = [routing.weights.describe("weights"), out.describe("out")];
    x.expect_dtype(&[DType::Bf16])?;
    ids.expect_dtype(&[DType::I32])?;
    weights.expect_dtype(&[DType::F32])?;
    out.expect_dtype(&[DType::Bf16])?;
    let [tokens, columns] = x.matrix_dims()?;
    if columns != outer {
        return Err(x.wrong_shape([tokens, outer], "with the K of the weights"));
    }
    let [rows, topk] = ids.matrix_dims()?;
    if rows != tokens {
        return Err(ids.wrong_shape([tokens, topk], "choices for each row of `x`"));
    }
    if weights.matrix_dims()? != [tokens, topk] {
        return Err(weights.wrong_shape([tokens, topk], "the shape of `ids`"));
    }
    if out.matrix_dims()? != [tokens, outer] {
        return Err(out.wrong_shape([tokens, outer], "the shape of `x`"));
    }
    Ok([tokens as usize, topk as usize])
}

/// Where everything lies in the scratch memory.
struct Plan {
    dims: Dims,
    is_half: bool,
    tokens: usize,
    topk: usize,
    /// Rows of all experts, padding included.
    m: usize,
    /// The start of each part: lists, rows that go into the GEMMs with their scales, and rows that come out.
    starts: [usize; Plan::PARTS],
    bytes: usize,
}

impl Plan {
    const PARTS: usize = 9;

    fn new(dims: Dims, is_half: bool, [tokens, topk]: [usize; 2]) -> Plan {
        let Dims { experts, inner, outer } = dims;
        let m = moe_rows(tokens, topk, experts, ALIGNMENT);
        let (size, scales) = if is_half { (2, 0) } else { (1, 4) };
        // What does not fit into memory does not fit into a number either.
        let parts: [[usize; 3]; Plan::PARTS] = [
            [4, m, 1],
            [4, m, 1],
            [4, experts, 1],
            [4, tokens, topk],
            [size, m, outer],
            [scales, m, outer.div_ceil(BLOCK)],
            [size, m, inner],
            [scales, m, inner.div_ceil(BLOCK)],
            [2, m, outer],
        ];
        let mut bytes = 0usize;
        let starts = parts.map(|[size, rows, columns]| {
            let part = size.saturating_mul(rows).saturating_mul(columns);
            let start = bytes;
            bytes = bytes.saturating_add(part.saturating_add(PART - 1) / PART * PART);
            start
        });
        Plan { dims, is_half, tokens, topk, m, starts, bytes }
    }

    /// The parts of the scratch memory.
    fn rows(&self, scratch: &Tensor) -> Result<Rows> {
        let found = scratch.describe("scratch");
        found.expect_dtype(&[DType::U8])?;
        let bytes = scratch.len();
        if bytes < self.bytes {
            return Err(Error::Shape {
                argument: "scratch",
                expected: format!("{} bytes or more, by `moe_scratch_bytes`", self.bytes),
                found: format!("{bytes} bytes"),
            });
        }
        let [tokens, groups, ends, places, a, sfa, h, sfh, out] = self.starts;
        let (Dims { experts, inner, outer }, m) = (self.dims, self.m);
        let list = |start, length| scratch.part(start, DType::I32, &[length]);
        // Scales begin with K: a column of them is what a GEMM loads.
        let scaled = |start, scales, columns: usize| -> Result<[Tensor; 2]> {
            let across = columns.div_ceil(BLOCK);
            Ok([
                scratch.part(start, DType::E4m3, &[m, columns])?,
                scratch.part(scales, DType::F32, &[across, m])?.transpose(0, 1)?,
            ])
        };
        let half = |start, columns| scratch.part(start, DType::Bf16, &[m, columns]);
        Ok(Rows {
            tokens: list(tokens, m)?,
            groups: list(groups, m)?,
            ends: list(ends, experts)?,
            places: scratch.part(places, DType::I32, &[self.tokens, self.topk])?,
            between: match self.is_half {
                true => Between::Half { x: half(a, outer)?, hidden: half(h, inner)? },
                false => Between::Fp8 { x: scaled(a, sfa, outer)?, hidden: scaled(h, sfh, inner)? },
            },
            out: half(out, outer)?,
        })
    }
}

/// Rows of all experts.
struct Rows {
    tokens: Tensor,
    groups: Tensor,
    ends: Tensor,
    places: Tensor,
    between: Between,
    out: Tensor,
}

/// What goes into the GEMMs: tokens, and what is between.
enum Between {
    /// Codes, and scales of 128.
    Fp8 {
        x: [Tensor; 2],
        hidden: [Tensor; 2],
    },
    Half {
        x: Tensor,
        hidden: Tensor,
    },
}

/// What the kernels of a call are told besides operands.
struct Call<'a> {
    /// The token of each row.
    tokens: &'a Tensor,
    groups: RowGroups<'a>,
    options: &'a GemmOptions,
}

impl Call<'_> {
    /// `y = down · (act(gate · x) * (up · x))` of each row: three kernels.
    fn multiply(&self, x: &Tensor, experts: &MoeExperts<'_>, rows: &Between, y: &mut Tensor) -> Result<()> {
        let Call { tokens, options, .. } = *self;
        match rows {
            Between::Fp8 { x: [a, sfa], hidden: [h, sfh] } => {
                let format = Recipe::Fp8.scale_format(x.device())?;
                gather_quantize(x, tokens, &mut a.clone(), &mut sfa.clone(), format, &options.into())?;
                let first = self.product((a, Some(sfa)), &experts.gate_up, h);
                let output = Some((sfh, OutputFormat::Fp8(format)));
                first.fused(&experts.between(), output).run(options)?;
                self.down((h, Some(sfh)), &experts.down, y)
            }
            Between::Half { x: a, hidden } => {
                moe_gather(x, tokens, &mut a.clone(), &options.into())?;
                let first = self.product((a, None), &experts.gate_up, hidden);
                first.fused(&experts.between(), None).run(options)?;
                self.down((hidden, None), &experts.down, y)
            }
        }
    }

    /// The second GEMM.
    fn down(&self, a: (&Tensor, Option<&Tensor>), weight: &MoeProjection<'_>, y: &Tensor) -> Result<()> {
        let epilogue = Epilogue { bias: weight.bias, ..Default::default() };
        let gemm = self.product(a, weight, y);
        if weight.bias.is_some() { gemm.fused(&epilogue, None) } else { gemm }.run(self.options)
    }

    fn product<'a>(
        &'a self,
        (a, sfa): (&'a Tensor, Option<&'a Tensor>),
        weight: &MoeProjection<'a>,
        d: &'a Tensor,
    ) -> Gemm<'a> {
        let grouping = Grouping::MGrouped(self.groups);
        let fp4 = weight.weight.dtype() == DType::U8;
        let scale_blocks = if fp4 { [Some(ScaleBlock::Of128), Some(ScaleBlock::Of32)] } else { [None; 2] };
        Gemm { grouping, sfa, sfb: weight.scales, fp4, scale_blocks, ..Gemm::half(a, weight.weight, d) }
    }
}
