//! Experts of a mixture: their weights, and the kernels that multiply sorted rows by them.

use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::epilogue::{Activation, Gate};
use oxigemm_kernels::gemm::params::ScaleBlock;
use oxigemm_kernels::quantize::moe_permute::MAX_EXPERTS;

use crate::cast::ScaleFormat;
use crate::check::gemm::tensors::epilogue::Epilogue;
use crate::check::gemm::tensors::groups::{GroupedRows, RowGroups};
use crate::check::gemm::tensors::{Gemm, Grouping};
use crate::check::{Checked, OutputFormat};
use crate::device::backend::with_backend;
use crate::error::{Error, Result};
use crate::gemm::GemmOptions;
use crate::launch::args::PlanKey;
use crate::launch::prepared;
use crate::moe::moe_gather;
use crate::quantize::gather_quantize;
use crate::tensor::desc::int;
use crate::tensor::{DType, Tensor};

/// Where the rows of an expert begin: M-subtiles of the tensor core, so few rows are only padding.
pub(crate) const ALIGNMENT: usize = 16;
/// Columns of what is between the GEMMs that share a scale.
pub(crate) const BLOCK: usize = 128;

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

/// E, I and K.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dims {
    pub experts: usize,
    pub inner: usize,
    pub outer: usize,
}

/// Names of the arguments of a projection.
struct Names {
    weight: &'static str,
    scales: &'static str,
    bias: &'static str,
}

const GATE_UP: Names = Names { weight: "gate_up", scales: "gate_up_scales", bias: "gate_up_bias" };
const DOWN: Names = Names { weight: "down", scales: "down_scales", bias: "down_bias" };

impl Names {
    /// An error of the GEMM, whose arguments have other names.
    fn of_gemm(&self, error: Error) -> Error {
        error.renamed(|argument| match argument {
            "b" => self.weight,
            "sfb" => self.scales,
            "bias" => self.bias,
            other => other,
        })
    }
}

impl MoeProjection<'_> {
    /// E, N and K of a weight that is as the rules say.
    fn check(&self, names: &Names) -> Result<[usize; 3]> {
        let weight = self.weight.describe(names.weight);
        weight.expect_dtype(&[DType::E4m3, DType::U8, DType::Bf16])?;
        weight.expect_rank(3, "weights of experts")?;
        let is_fp4 = weight.dtype == DType::U8;
        let [experts, n, bytes] = [0, 1, 2].map(|i| self.weight.dims()[i]);
        let k = if is_fp4 { 2 * bytes } else { bytes };
        let (expected, found) = match (weight.dtype != DType::Bf16, self.scales.is_some()) {
            (true, false) => ("scales of the weight", "none"),
            (false, true) => ("none, as the weight is bf16", "some"),
            _ => ("", ""),
        };
        if !found.is_empty() {
            let (expected, found) = (expected.to_owned(), found.to_owned());
            return Err(Error::Value { argument: names.scales, expected, found });
        }
        if let Some(scales) = self.scales {
            let scales = scales.describe(names.scales);
            // Of FP4 they may be packed as well: its GEMM knows.
            if !is_fp4 {
                scales.expect_dtype(&[DType::F32])?;
                scales.expect_shape(
                    &[experts, n.div_ceil(BLOCK), k.div_ceil(BLOCK)].map(int),
                    "one for each 128x128 of a weight",
                )?;
            }
            scales.expect_device(&weight)?;
        }
        if let Some(bias) = self.bias {
            let bias = bias.describe(names.bias);
            bias.expect_dtype(&[DType::F32, DType::Bf16])?;
            bias.expect_shape(&[experts, n].map(int), "one for each column of an expert")?;
            bias.expect_device(&weight)?;
        }
        Ok([experts, n, k])
    }
}

impl MoeExperts<'_> {
    /// Whether weights are bf16.
    pub(crate) fn is_half(&self) -> bool {
        self.gate_up.weight.dtype() == DType::Bf16
    }

    /// The dimensions of weights that fit each other.
    pub(crate) fn dims(&self) -> Result<Dims> {
        let [experts, both, outer] = self.gate_up.check(&GATE_UP)?;
        let down = self.down.check(&DOWN)?;
        self.down
            .weight
            .describe(DOWN.weight)
            .expect_device(&self.gate_up.weight.describe(GATE_UP.weight))?;
        let inner = if self.gated { both / 2 } else { both };
        if down != [experts, outer, inner] || (self.gated && both % 2 != 0) {
            return Err(Error::Shape {
                argument: DOWN.weight,
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
                argument: DOWN.weight,
                expected: "bf16 where `gate_up` is, and only there".to_owned(),
                found: self.down.weight.dtype().to_string(),
            });
        }
        if experts > MAX_EXPERTS as usize {
            return Err(Error::Shape {
                argument: GATE_UP.weight,
                expected: format!("at most {MAX_EXPERTS} experts"),
                found: format!("{experts}"),
            });
        }
        if !self.is_half() && inner % BLOCK != 0 {
            return Err(Error::Shape {
                argument: GATE_UP.weight,
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

/// Rows that go into the GEMMs: tokens, and what is between.
#[derive(Debug)]
pub(crate) enum SortedRows {
    /// Codes, and scales of 128.
    Fp8 { x: [Tensor; 2], hidden: [Tensor; 2] },
    /// Without scales.
    Half { x: Tensor, hidden: Tensor },
}

impl SortedRows {
    /// `m` rows of FP8 with I and K columns, in new memory: codes and scales of tokens, then of what is between. Scales
    /// begin with K: a column of them is what a GEMM loads. Those of tokens are f32, or i32 with four of 32 columns.
    pub fn fp8(
        m: usize,
        [inner, outer]: [usize; 2],
        scales: DType,
        mut new: impl FnMut(DType, [usize; 2]) -> Result<Tensor>,
    ) -> Result<SortedRows> {
        let mut rows = |columns: usize, scales: DType| -> Result<[Tensor; 2]> {
            let codes = new(DType::E4m3, [m, columns])?;
            let scales = new(scales, [columns.div_ceil(BLOCK), m])?;
            Ok([codes, scales.transpose(0, 1)?])
        };
        Ok(SortedRows::Fp8 { x: rows(outer, scales)?, hidden: rows(inner, DType::F32)? })
    }

    /// The first of them.
    pub fn narrow(&self, m: usize) -> Result<SortedRows> {
        let first = |tensor: &Tensor| tensor.narrow(0, 0, m);
        let both =
            |[codes, scales]: &[Tensor; 2]| -> Result<[Tensor; 2]> { Ok([first(codes)?, first(scales)?]) };
        Ok(match self {
            SortedRows::Fp8 { x, hidden } => SortedRows::Fp8 { x: both(x)?, hidden: both(hidden)? },
            SortedRows::Half { x, hidden } => SortedRows::Half { x: first(x)?, hidden: first(hidden)? },
        })
    }
}

/// What the kernels of a call are told besides operands.
#[derive(Clone, Copy)]
pub(crate) struct SortedCall<'a> {
    pub groups: RowGroups<'a>,
    pub options: &'a GemmOptions,
}

impl<'a> SortedCall<'a> {
    /// Rows that end at `ends`, of so many choices.
    pub fn new(ends: &'a Tensor, choices: usize, options: &'a GemmOptions) -> SortedCall<'a> {
        let expected_m = Some(choices.div_ceil(ends.len().max(1)));
        let rows = GroupedRows::Ends(ends);
        SortedCall { groups: RowGroups::Contiguous { rows, alignment: ALIGNMENT, expected_m }, options }
    }

    /// Tokens into their rows, quantized where the rows are: one kernel. `tokens` is the token of each row.
    pub fn gather(&self, x: &Tensor, tokens: &Tensor, rows: &SortedRows, format: ScaleFormat) -> Result<()> {
        let options = &self.options.into();
        match rows {
            SortedRows::Fp8 { x: [codes, scales], .. } => {
                gather_quantize(x, tokens, &mut codes.clone(), &mut scales.clone(), format, options)
            }
            SortedRows::Half { x: rows, .. } => moe_gather(x, tokens, &mut rows.clone(), options),
        }
    }

    /// `y = down · (act(gate · x) * (up · x))` of each row: two kernels.
    pub fn multiply(
        &self,
        experts: &MoeExperts<'_>,
        rows: &SortedRows,
        y: &Tensor,
        format: ScaleFormat,
    ) -> Result<()> {
        self.for_both(experts, (rows, y), format, |gemm| gemm.run(self.options))
    }

    /// Refuses what [`multiply`](Self::multiply) would refuse: each rule of both GEMMs, and options without a kernel.
    pub fn check(
        &self,
        experts: &MoeExperts<'_>,
        rows: &SortedRows,
        y: &Tensor,
        format: ScaleFormat,
    ) -> Result<()> {
        self.for_both(experts, (rows, y), format, |gemm| self.expect_launchable(gemm))
    }

    /// Does something with the first GEMM, and then with the second. Errors name arguments of experts.
    fn for_both(
        &self,
        experts: &MoeExperts<'_>,
        (rows, y): (&SortedRows, &Tensor),
        format: ScaleFormat,
        each: impl Fn(&Gemm<'_>) -> Result<()>,
    ) -> Result<()> {
        let (a, sfa, h, output) = match rows {
            SortedRows::Fp8 { x: [a, sfa], hidden: [h, sfh] } => {
                (a, Some(sfa), h, Some((sfh, OutputFormat::Fp8(format))))
            }
            SortedRows::Half { x, hidden } => (x, None, hidden, None),
        };
        let between = experts.between();
        let first = self.product((a, sfa), &experts.gate_up, h).fused(&between, output);
        each(&first).map_err(|error| GATE_UP.of_gemm(error))?;
        let down = &experts.down;
        let epilogue = Epilogue { bias: down.bias, ..Default::default() };
        let second = self.product((h, output.map(|(scales, _)| scales)), down, y);
        let second = if down.bias.is_some() { second.fused(&epilogue, None) } else { second };
        each(&second).map_err(|error| DOWN.of_gemm(error))
    }

    /// Checks a GEMM and plans it, which loads its kernel. Scales that are rewritten for the tensor core change what is
    /// planned: the plan of such a GEMM is made by its launch.
    fn expect_launchable(&self, gemm: &Gemm<'_>) -> Result<()> {
        let GemmOptions { config, num_sms, batch_invariant, k_order, raster_band, .. } = *self.options;
        let scale_blocks = [0, 1].map(|i| gemm.scale_blocks[i].or(self.options.scale_blocks[i]));
        let desc = Gemm { scale_blocks, ..*gemm }.describe();
        let as_f32 = desc.unpacked()?.map_or(desc, |(as_f32, _)| as_f32);
        let Checked::Launch(problem) = as_f32.check()? else { return Ok(()) };
        with_backend!(gemm.a.device(), backend => {
            let limits = backend.limits();
            if gemm.sfa.is_some() && (gemm.fp4 || limits.arch != Arch::Sm90a) {
                return Ok(());
            }
            let sms = num_sms.map_or(limits.sms, |sms| sms.clamp(1, limits.sms));
            let key = PlanKey { problem, config, sms, batch_invariant, k_order, raster_band };
            prepared(backend, &key).map(drop)
        })
    }

    fn product<'b>(
        &'b self,
        (a, sfa): (&'b Tensor, Option<&'b Tensor>),
        weight: &MoeProjection<'b>,
        d: &'b Tensor,
    ) -> Gemm<'b> {
        let grouping = Grouping::MGrouped(self.groups);
        let fp4 = weight.weight.dtype() == DType::U8;
        let packed = sfa.is_some_and(|scales| scales.dtype() == DType::I32);
        let of_a = if packed { ScaleBlock::Of32 } else { ScaleBlock::Of128 };
        let scale_blocks = if fp4 { [Some(of_a), Some(ScaleBlock::Of32)] } else { [None; 2] };
        Gemm { grouping, sfa, sfb: weight.scales, fp4, scale_blocks, ..Gemm::half(a, weight.weight, d) }
    }
}
