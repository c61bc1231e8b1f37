//! The calls of a rank of a group: its tokens go into its buffer, and its experts run for the tokens of all ranks.

use oxigemm_kernels::common::fast_divmod::FastDivmod;
use oxigemm_kernels::exchange::buffer::Shape;
use oxigemm_kernels::exchange::meet::Barrier;
use oxigemm_kernels::exchange::{Step as Exchange, collect, combine, publish, pull};

use super::MoeRouting;
use super::group::{MoeGroup, MoeGroupShape};
use super::input::run_pull;
use super::scratch::{Plan, Rows, expect_scratch};
use crate::cast::ScaleFormat;
use crate::check::{MoePermute, MoeUnpermute, int};
use crate::error::{Error, Result};
use crate::gemm::GemmOptions;
use crate::launch::LaunchOptions;
use crate::layers::Recipe;
use crate::moe::{moe_rows, run_permute, run_unpermute};
use crate::moe_experts::{ALIGNMENT, Dims, MoeExperts, SortedCall, SortedRows};
use crate::quantize::gather_quantize;
use crate::tensor::{DType, Tensor};

/// Puts a rank's tokens into its symmetric buffer, quantized where tokens travel as e4m3.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `x` | `[T, K]` | bf16 | rows of K; pitch and address multiples of 16 bytes where tokens travel as bf16 |
/// | `routing` | `[T, C]` | i32, experts of all ranks, and f32 | contiguous |
///
/// Weights are multiplied by `factor`. Nothing is written where something is wrong in the group: other ranks may still
/// read what is there.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
pub fn moe_publish(
    group: &MoeGroup,
    x: &Tensor,
    routing: &MoeRouting<'_>,
    factor: f32,
    options: &LaunchOptions,
) -> Result<()> {
    let (columns, topk) = (i64::from(group.shape.columns), i64::from(group.shape.top_k));
    let beside = group.memory.describe("group");
    let [x_in, ids, weights] =
        [x.describe("x"), routing.ids.describe("ids"), routing.weights.describe("weights")];
    x_in.expect_dtype(&[DType::Bf16])?;
    ids.expect_dtype(&[DType::I32])?;
    weights.expect_dtype(&[DType::F32])?;
    let [tokens, found] = x_in.matrix_dims()?;
    if found != columns {
        return Err(x_in.wrong_shape([tokens, columns], "with the columns of the group"));
    }
    for operand in [&ids, &weights] {
        operand.expect_shape(&[tokens, topk], "choices for each row of `x`")?;
    }
    for operand in [&x_in, &ids, &weights] {
        operand.expect_device(&beside)?;
    }
    let tokens = tokens as usize;
    group.expect_tokens(tokens)?;
    if tokens == 0 {
        return Ok(());
    }
    ids.expect_contiguous()?;
    weights.expect_contiguous()?;
    let format = Recipe::Fp8.scale_format(x.device())?;
    let (pitch, listed) = if group.is_half() {
        (Some(x_in.tma_rows()?.0), None)
    } else if group.scales == DType::I32 {
        let expected = "f32 scales; tokens with packed ones are written by who makes the calls".to_owned();
        return Err(Error::Value { argument: "group", expected, found: "packed scales".to_owned() });
    } else {
        x_in.plain_rows()?;
        (None, Some(group.memory.part(group.layout.rows as usize, DType::I32, &[tokens])?))
    };
    let args = publish::Args {
        own: group.memory.address(),
        x: pitch.map_or(0, |_| x_in.address),
        x_pitch: pitch.map_or(0, |pitch| 2 * pitch as u32),
        row_bytes: group.shape.columns * group.shape.element,
        ids: ids.address,
        wide: 0,
        weights: weights.address,
        top_k: group.shape.top_k,
        factor,
        to_x: group.memory.address() + group.layout.x,
        to_ids: group.ids(),
        to_weights: group.memory.address() + group.layout.weights,
        to_rows: listed.as_ref().map_or(0, Tensor::address),
    };
    // SAFETY: the operands are as the checks say, and tensors keep their memory.
    unsafe { group.launch(Exchange::Publish, (tokens as u32, args.values()), options)? };
    let Some(listed) = listed else { return Ok(()) };
    // What is listed is for the kernel before to say, which knows whether others may be reading.
    let rows = |tensor: Tensor| tensor.narrow(0, 0, tokens);
    let (mut codes, mut scales) = (rows(group.x()?)?, rows(group.scales()?)?);
    gather_quantize(x, &listed, &mut codes, &mut scales, format, options)
}

/// How many bytes of scratch memory [`moe_forward_group`] needs for experts of I columns between their GEMMs.
///
/// # Errors
/// As [`MoeGroupShape::buffer_bytes`].
///
/// ```
/// use oxigemm::{DType, MoeGroupShape, moe_group_scratch_bytes};
///
/// let shape =
///     MoeGroupShape { ranks: 8, tokens: 128, topk: 8, experts: 32, columns: 7168, dtype: DType::E4m3, packed_scales: false };
/// let all = moe_group_scratch_bytes(&shape, 2048, None)?;
/// assert!(moe_group_scratch_bytes(&shape, 2048, Some(2048))? < all);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn moe_group_scratch_bytes(
    shape: &MoeGroupShape,
    inner: usize,
    most_rows: Option<usize>,
) -> Result<usize> {
    let dims = Dims { experts: shape.experts, inner, outer: shape.columns };
    let dims_of = shape.shape()?;
    let choices = [dims_of.all_tokens() as usize, shape.topk];
    Ok(Scratch::new(dims, shape.dtype == DType::Bf16, choices, most_rows).bytes)
}

/// Scratch memory of a call: choices of all ranks, and what [`moe_forward`](super::moe_forward) has.
struct Scratch {
    plan: Plan,
    /// Rows.
    m: usize,
    /// Where the choices and weights of all ranks begin.
    starts: [usize; 2],
    bytes: usize,
}

impl Scratch {
    fn new(dims: Dims, is_half: bool, choices: [usize; 2], most_rows: Option<usize>) -> Scratch {
        let [tokens, topk] = choices;
        let enough = moe_rows(tokens, topk, dims.experts, ALIGNMENT);
        // Behind the limit there is room that shows that it was passed.
        let limited =
            most_rows.map(|rows| rows.div_ceil(ALIGNMENT).saturating_add(1).saturating_mul(ALIGNMENT));
        let m = limited.map_or(enough, |limited| limited.min(enough));
        let plan = Plan::with_rows(dims, is_half, choices, m);
        let list = (4 * tokens * topk).next_multiple_of(256);
        let starts = [plan.bytes, plan.bytes.saturating_add(list)];
        Scratch { m, bytes: starts[1].saturating_add(list), starts, plan }
    }
}

/// What a call of [`moe_forward_group`] is besides its weights.
#[derive(Clone, Copy, Debug, Default)]
pub struct MoeGroupCall<'a> {
    /// This rank's tokens, which lie in its buffer.
    pub tokens: usize,
    /// The most rows of this rank's experts, each rounded up to 16: scratch memory is for so many. Choices behind them
    /// are dropped, and [`MoeGroup::check`] tells. Where there is none, all choices of all ranks have room.
    pub most_rows: Option<usize>,
    /// `[E]` i32: numbers to which the rows of each expert are added.
    pub counts: Option<&'a Tensor>,
}

/// Experts of a mixture that lie on several GPUs: what [`moe_forward`](super::moe_forward) computes with the experts of
/// all ranks, for the tokens in this rank's buffer ([`moe_publish`]). All ranks make the call, with any number of tokens,
/// also none.
///
/// `experts` are this rank's own. `scratch` is as that of `moe_forward`, of [`moe_group_scratch_bytes`] or more. `out` is
/// `[T, K]` bf16; its pitch and address are multiples of 16 bytes. The sums of a rank's experts for a token are rounded to
/// bf16; those of all ranks are added in FP32 in the order of ranks, and rounded once: the same bits in every run, and with
/// one rank those of `moe_forward`.
///
/// Nine kernels: a barrier; the choices of all ranks; the permutation; rows from the buffers of all ranks; the two
/// GEMMs; the sums of each token's rows; a barrier; the sums of all ranks. Nothing is read back or allocated, so the
/// call can be captured into a graph, which is replayed with other tokens and choices.
///
/// # Errors
/// The first rule that an argument breaks, before anything is launched: the group is then as before. What the device
/// reports later, between the two barriers, ends the group: other ranks wait for the sums of this one, and are told that it
/// has failed. What goes wrong between ranks is told by [`MoeGroup::check`].
pub fn moe_forward_group(
    group: &MoeGroup,
    call: &MoeGroupCall<'_>,
    experts: &MoeExperts<'_>,
    scratch: &mut Tensor,
    out: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let launch = &LaunchOptions::from(options);
    // Who has come to the first barrier has to come to the second: what can be refused is refused before.
    let ready = Ready::new((group, call), experts, [scratch, out], options)?;
    group.meet(call.tokens, Barrier::Published, launch)?;
    let sums = ready.run_experts(launch);
    if let Err(error) = sums.and_then(|()| group.meet(call.tokens, Barrier::Added, launch)) {
        // Where not even that can be launched, the parity of this rank's next barrier tells.
        let _ = group.meet(call.tokens, Barrier::Failed, launch);
        return Err(error);
    }
    ready.combine(launch)
}

/// A call whose arguments are checked, with those of its kernels.
struct Ready<'a> {
    group: &'a MoeGroup,
    experts: &'a MoeExperts<'a>,
    options: &'a GemmOptions,
    /// Scales of activations.
    format: ScaleFormat,
    /// This rank's tokens.
    tokens: u32,
    /// The choices of all ranks, and their weights.
    ids: Tensor,
    weights: Tensor,
    /// Rows of this rank's experts.
    rows: Rows,
    collect: collect::Args,
    pull: pull::Args,
    /// None where there are no tokens.
    combine: Option<combine::Args>,
}

impl<'a> Ready<'a> {
    fn new(
        (group, call): (&'a MoeGroup, &MoeGroupCall<'_>),
        experts: &'a MoeExperts<'a>,
        [scratch, out]: [&Tensor; 2],
        options: &'a GemmOptions,
    ) -> Result<Ready<'a>> {
        let dims = expect_operands(group, call, experts, out)?;
        let layout = Scratch::new(dims, group.is_half(), group.choices(), call.most_rows);
        expect_scratch(scratch, layout.bytes, "moe_group_scratch_bytes", &group.memory.describe("group"))?;
        let rows = layout.plan.rows(scratch, group.scales)?;
        let list = |nth: usize, dtype| scratch.part(layout.starts[nth], dtype, &group.choices());
        let (ids, weights) = (list(0, DType::I32)?, list(1, DType::F32)?);
        let format = Recipe::Fp8.scale_format(group.memory.device())?;
        let ready = Ready {
            collect: group.collect_args(&ids, &weights),
            pull: group.pull_args(&rows, layout.m, call),
            combine: group.combine_args(call.tokens, out)?,
            group,
            experts,
            options,
            format,
            tokens: call.tokens as u32,
            ids,
            weights,
            rows,
        };
        if ready.has_choices() {
            ready.permute().check()?;
            ready.sorted().check(experts, &ready.rows.sorted, &ready.rows.out, format)?;
            ready.unpermute()?.check()?;
        }
        Ok(ready)
    }

    /// Whether any rank may have a choice.
    fn has_choices(&self) -> bool {
        self.group.choices().iter().all(|size| *size > 0)
    }

    /// The permutation of the choices of all ranks.
    fn permute(&self) -> MoePermute {
        let Rows { tokens, groups, ends, places, .. } = &self.rows;
        MoePermute {
            ids: self.ids.describe("ids"),
            alignment: ALIGNMENT,
            tokens: tokens.describe("tokens"),
            groups: groups.describe("groups"),
            ends: ends.describe("ends"),
            places: places.describe("places"),
        }
    }

    /// The GEMMs of this rank's experts.
    fn sorted(&self) -> SortedCall<'_> {
        let of_rank = self.weights.len() / self.group.shape.ranks as usize;
        SortedCall::new(&self.rows.ends, of_rank, self.options)
    }

    /// The sum of the rows of each token that has some, into this rank's buffer.
    fn unpermute(&self) -> Result<MoeUnpermute> {
        let (group, rows) = (self.group, &self.rows);
        let dims = [group.choices()[0], group.shape.columns as usize];
        let sums = group.memory.part(group.layout.sums as usize, DType::Bf16, &dims)?;
        Ok(MoeUnpermute {
            rows: rows.out.describe("rows"),
            places: rows.places.describe("places"),
            weights: Some(self.weights.describe("weights")),
            out: sums.describe("out"),
            chosen_only: true,
        })
    }

    /// Choices and rows of this rank's experts from all ranks, the GEMMs, and the sums for all ranks.
    fn run_experts(&self, options: &LaunchOptions) -> Result<()> {
        if !self.has_choices() {
            return Ok(());
        }
        let (group, device) = (self.group, self.group.memory.device());
        // SAFETY: scratch memory has room for all of it, and who made the group keeps the buffers.
        unsafe {
            group.launch(Exchange::Collect, (self.collect.ctas(), self.collect.values()), options)?;
            run_permute(device, &self.permute(), options)?;
            run_pull(device, &self.pull, options)?;
        }
        self.sorted().multiply(self.experts, &self.rows.sorted, &self.rows.out, self.format)?;
        // SAFETY: as above.
        unsafe { run_unpermute(device, &self.unpermute()?, options) }
    }

    /// The sums of all ranks for each token of this one.
    fn combine(&self, options: &LaunchOptions) -> Result<()> {
        let Some(args) = &self.combine else { return Ok(()) };
        let ctas = self.tokens * args.across.value;
        // SAFETY: as in `run_experts`; the checks have compared the result with the tokens.
        unsafe { self.group.launch(Exchange::Combine, (ctas, args.values()), options) }
    }
}

/// The rules of a call's operands, but of its scratch memory.
fn expect_operands(
    group: &MoeGroup,
    call: &MoeGroupCall<'_>,
    experts: &MoeExperts<'_>,
    out: &Tensor,
) -> Result<Dims> {
    let dims = experts.dims()?;
    let expected = [group.shape.experts, group.shape.columns].map(|size| size as usize);
    let weight = experts.gate_up.weight.describe("gate_up");
    if [dims.experts, dims.outer] != expected || experts.is_half() != group.is_half() {
        let travels = if group.is_half() { "bf16" } else { "e4m3 or u8" };
        let expected = format!("{expected:?} experts and columns of {travels}, as the group was made for");
        return Err(weight.wrong_shape(expected, "experts of this rank"));
    }
    let result = out.describe("out");
    result.expect_dtype(&[DType::Bf16])?;
    result.expect_shape(&[call.tokens, dims.outer].map(int), "a row for each token")?;
    let beside = group.memory.describe("group");
    for operand in [&weight, &result] {
        operand.expect_device(&beside)?;
    }
    if let Some(counts) = call.counts.map(|counts| counts.describe("counts")) {
        counts.expect_dtype(&[DType::I32])?;
        counts.expect_shape(&[int(dims.experts)], "one for each expert")?;
        counts.expect_contiguous()?;
        counts.expect_device(&beside)?;
    }
    group.expect_tokens(call.tokens)?;
    Ok(dims)
}

impl MoeGroup {
    /// Arguments of the kernel that collects the choices of all ranks.
    fn collect_args(&self, ids: &Tensor, weights: &Tensor) -> collect::Args {
        let Shape { tokens, top_k, experts, .. } = self.shape;
        collect::Args {
            own: self.memory.address(),
            ids: self.layout.ids,
            weights: self.layout.weights,
            choices: ids.len() as u32,
            top_k: FastDivmod::new(top_k),
            tokens: FastDivmod::new(tokens),
            first_expert: self.rank * experts,
            experts,
            to_ids: ids.address(),
            to_weights: weights.address(),
        }
    }

    /// Arguments of the kernel that fetches `m` rows of this rank's experts from all ranks.
    fn pull_args(&self, rows: &Rows, m: usize, call: &MoeGroupCall<'_>) -> pull::Args {
        let Shape { tokens, experts, columns, element, scales, .. } = self.shape;
        let (to, to_scales) = match &rows.sorted {
            SortedRows::Fp8 { x: [codes, scales], .. } => (codes.address(), scales.address()),
            SortedRows::Half { x, .. } => (x.address(), 0),
        };
        let all = moe_rows(self.choices()[0], self.choices()[1], experts as usize, ALIGNMENT);
        pull::Args {
            own: self.memory.address(),
            x: self.layout.x,
            scales: self.layout.scales,
            row_bytes: columns * element,
            row_scales: scales,
            tokens: FastDivmod::new(tokens),
            rows: rows.tokens.address(),
            row_count: m as u32,
            ends: rows.ends.address(),
            experts,
            alignment_shift: ALIGNMENT.trailing_zeros(),
            limited: u32::from(m < all),
            counts: call.counts.map_or(0, Tensor::address),
            to,
            to_scales,
        }
    }

    /// Arguments of the kernel that adds the sums of all ranks; none where there are no tokens.
    fn combine_args(&self, tokens: usize, out: &Tensor) -> Result<Option<combine::Args>> {
        if tokens == 0 {
            return Ok(None);
        }
        let Shape { ranks, tokens: most, top_k, experts, columns, .. } = self.shape;
        let (out_pitch, _) = out.describe("out").tma_rows()?;
        Ok(Some(combine::Args {
            own: self.memory.address(),
            ids: self.layout.ids,
            sums: self.layout.sums,
            rank: self.rank,
            ranks,
            tokens: most,
            top_k,
            experts: FastDivmod::new(experts),
            columns,
            across: combine::Args::across(columns),
            out: out.address(),
            out_pitch: out_pitch as u32,
        }))
    }
}
