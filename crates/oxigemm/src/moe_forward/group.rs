//! A mixture whose experts lie on several GPUs, which reach each other's memory.

use oxigemm_kernels::common::fast_divmod::FastDivmod;
use oxigemm_kernels::exchange::buffer::{self, HEADER, Layout, MAX_RANKS, STATUS, Shape, Trouble};
use oxigemm_kernels::exchange::{Step as Exchange, THREADS, collect, combine, meet, publish, pull};

use super::MoeRouting;
use super::input::{has_block_scales, run_pull, run_step};
use super::scratch::{Plan, Rows, expect_bytes};
use crate::check::{Granularity, MoePermute, MoeUnpermute, int};
use crate::device::Device;
use crate::device::launch::KernelParams;
use crate::error::{Error, Result};
use crate::gemm::GemmOptions;
use crate::launch::LaunchOptions;
use crate::layers::Recipe;
use crate::moe::{moe_rows, run_permute, run_unpermute};
use crate::moe_experts::{ALIGNMENT, BLOCK, Dims, MoeExperts, SortedCall, SortedRows};
use crate::quantize::quantize;
use crate::tensor::{DType, Tensor};

/// Seconds after which a rank counts as missing.
const TIMEOUT: f64 = 60.0;

/// Sizes that all ranks of a group agree about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoeGroupShape {
    /// How many ranks there are: 1 to 32.
    pub ranks: usize,
    /// The most tokens of a rank.
    pub tokens: usize,
    /// Choices of a token.
    pub topk: usize,
    /// Experts of a rank: rank r has those from `r * experts` on.
    pub experts: usize,
    /// Columns of a token: a multiple of 16.
    pub columns: usize,
    /// How tokens travel: as e4m3 with scales of 1x128, or as bf16.
    pub dtype: DType,
    /// Whether scales of e4m3 are i32 with four UE8M0 scales of 32 columns each, and not f32 of 128: for FP4 weights on
    /// Blackwell. Who makes the calls writes tokens by itself then.
    pub packed_scales: bool,
}

impl MoeGroupShape {
    /// How many bytes the symmetric buffer of a rank has.
    ///
    /// ```
    /// use oxigemm::{DType, MoeGroupShape};
    ///
    /// let shape =
    ///     MoeGroupShape { ranks: 8, tokens: 128, topk: 8, experts: 32, columns: 7168, dtype: DType::E4m3, packed_scales: false };
    /// assert!(shape.buffer_bytes()? < 18 << 20);
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Value`] for sizes that no group has.
    pub fn buffer_bytes(&self) -> Result<usize> {
        Ok(self.shape()?.layout().bytes as usize)
    }

    /// Where the parts of a buffer begin that a rank's own tokens lie in: tokens, scales, ids and weights.
    ///
    /// ```
    /// use oxigemm::{DType, MoeGroupShape};
    ///
    /// let shape =
    ///     MoeGroupShape { ranks: 2, tokens: 8, topk: 2, experts: 4, columns: 256, dtype: DType::Bf16, packed_scales: false };
    /// let [x, scales, ids, weights] = shape.offsets()?;
    /// assert_eq!([scales - x, ids - scales, weights - ids], [8 * 256 * 2, 0, 256]);
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`buffer_bytes`](Self::buffer_bytes).
    pub fn offsets(&self) -> Result<[usize; 4]> {
        let Layout { x, scales, ids, weights, .. } = self.shape()?.layout();
        Ok([x, scales, ids, weights].map(|offset| offset as usize))
    }

    fn shape(&self) -> Result<Shape> {
        let wrong = |argument, expected: &str, found: usize| {
            Err(Error::Value { argument, expected: expected.to_owned(), found: found.to_string() })
        };
        let MoeGroupShape { ranks, tokens, topk, experts, columns, dtype, packed_scales } = *self;
        if ranks == 0 || ranks > MAX_RANKS as usize {
            return wrong("ranks", "1 to 32 ranks", ranks);
        }
        if !columns.is_multiple_of(16) || columns == 0 || columns > 1 << 20 {
            return wrong("columns", "a multiple of 16 up to 2^20", columns);
        }
        if experts == 0 || experts.saturating_mul(ranks) >= 1 << 20 {
            return wrong("experts", "1 or more experts, and fewer than 2^20 of all ranks", experts);
        }
        if tokens.saturating_mul(ranks).saturating_mul(topk.max(1)) >= 1 << 30 {
            return wrong("tokens", "fewer than 2^30 choices of all ranks", tokens);
        }
        let (element, scales) = match dtype {
            DType::E4m3 => (1, columns.div_ceil(BLOCK)),
            DType::Bf16 => (2, 0),
            other => {
                let expected = "e4m3 or bf16".to_owned();
                return Err(Error::DType { argument: "dtype", expected, found: other.to_string() });
            }
        };
        if packed_scales && (dtype != DType::E4m3 || !columns.is_multiple_of(BLOCK)) {
            let expected = "e4m3 with a multiple of 128 columns".to_owned();
            let found = format!("{dtype} with {columns}");
            return Err(Error::Value { argument: "packed_scales", expected, found });
        }
        let [ranks, tokens, top_k, experts] = [ranks, tokens, topk, experts].map(|size| size as u32);
        Ok(Shape { ranks, tokens, top_k, experts, columns: columns as u32, element, scales: scales as u32 })
    }
}

/// One rank of a group of GPUs that reach each other's memory, with its symmetric buffer.
///
/// The library brings no transport. Each rank allocates a buffer of [`MoeGroupShape::buffer_bytes`] that all ranks can
/// read and write (torch's symmetric memory, NCCL windows, CUDA IPC), and tells the others where it is. Peer addresses
/// are those of *this* rank's address space.
#[derive(Clone, Debug)]
pub struct MoeGroup {
    shape: Shape,
    /// The type of tokens' scales.
    scales: DType,
    layout: Layout,
    rank: u32,
    memory: Tensor,
    /// Nanoseconds.
    timeout: u64,
}

impl MoeGroup {
    /// The rank of a device. `buffers` are the addresses of the symmetric buffers of all ranks, its own included; its
    /// own is prepared here. All ranks have to be here before any of them makes a call: let the hosts meet once.
    ///
    /// ```
    /// use oxigemm::{DType, Device, MoeGroup, MoeGroupShape, Tensor};
    ///
    /// let device = Device::sim();
    /// let shape = MoeGroupShape { ranks: 1, tokens: 4, topk: 2, experts: 8, columns: 128, dtype: DType::Bf16, packed_scales: false };
    /// let buffer = Tensor::zeros(DType::U8, &[shape.buffer_bytes()?], &device)?;
    /// // SAFETY: the buffer outlives the group.
    /// let group = unsafe { MoeGroup::new(&device, &shape, 0, &[buffer.address()])? };
    /// group.check()?;
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    ///
    /// # Safety
    /// Each address must be that of a buffer of so many bytes that this device can read and write, aligned to 256
    /// bytes, and that stays alive as long as any rank works with it. Nothing else may write to them but the tensors
    /// that this type gives.
    ///
    /// # Errors
    /// Sizes that no group has, a rank that is none, or what the device reports. The CPU is refused.
    pub unsafe fn new(
        device: &Device,
        shape: &MoeGroupShape,
        rank: usize,
        buffers: &[u64],
    ) -> Result<MoeGroup> {
        shape.shape()?;
        if buffers.len() != shape.ranks {
            let (expected, found) =
                (format!("[{}], one for each rank", shape.ranks), format!("{:?}", [buffers.len()]));
            return Err(Error::Shape { argument: "buffers", expected, found });
        }
        // Whether it is a rank is for `attach` to say.
        let own = buffers.get(rank).copied().unwrap_or(buffers[0]);
        // SAFETY: the caller keeps the same contract.
        let group = unsafe { MoeGroup::attach(device, shape, rank, own)? };
        for address in buffers {
            expect_aligned("buffers", *address)?;
        }
        group.memory.part(0, DType::U8, &[HEADER as usize])?.write_bytes(&buffer::header(buffers))?;
        Ok(group)
    }

    /// The rank of a device whose buffer, at this address, [`new`](Self::new) has prepared before: for who keeps only
    /// the buffer between calls.
    ///
    /// # Safety
    /// As [`new`](Self::new).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub unsafe fn attach(
        device: &Device,
        shape: &MoeGroupShape,
        rank: usize,
        buffer: u64,
    ) -> Result<MoeGroup> {
        if matches!(device, Device::Cpu) {
            let (expected, found) = ("a GPU or the simulator".to_owned(), "cpu".to_owned());
            return Err(Error::Device { argument: "device", expected, found });
        }
        let dims = shape.shape()?;
        if rank >= shape.ranks {
            let expected = format!("less than {}, the number of ranks", shape.ranks);
            return Err(Error::Value { argument: "rank", expected, found: rank.to_string() });
        }
        expect_aligned("buffers", buffer)?;
        let layout = dims.layout();
        // SAFETY: the caller keeps the same contract.
        let memory =
            unsafe { Tensor::from_raw_parts(DType::U8, &[layout.bytes as usize], &[1], buffer, device)? };
        let scales = if shape.packed_scales { DType::I32 } else { DType::F32 };
        if shape.packed_scales && !has_block_scales(device)? {
            let expected = "false, as this GPU's tensor core has no scales of 32".to_owned();
            return Err(Error::Value { argument: "packed_scales", expected, found: "true".to_owned() });
        }
        let mut group = MoeGroup { shape: dims, scales, layout, rank: rank as u32, memory, timeout: 0 };
        group.set_timeout(TIMEOUT);
        Ok(group)
    }

    /// After how many seconds without a rank a barrier gives up; 60 at first.
    pub fn set_timeout(&mut self, seconds: f64) {
        // What is too much for a number is as good as no limit.
        self.timeout = (seconds * 1e9) as u64;
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// Tokens of this rank, `[tokens, columns]`: where [`moe_publish`] writes them, or who calls
    /// [`moe_forward_group`] by itself.
    ///
    /// # Errors
    /// None for a group that exists.
    pub fn x(&self) -> Result<Tensor> {
        let dtype = if self.is_half() { DType::Bf16 } else { DType::E4m3 };
        self.part(self.layout.x, dtype, self.shape.columns)
    }

    /// Their scales, `[tokens, ceil(columns / 128)]` f32 or i32; none of bf16.
    ///
    /// # Errors
    /// As [`x`](Self::x).
    pub fn scales(&self) -> Result<Tensor> {
        self.part(self.layout.scales, self.scales, self.shape.scales)
    }

    /// Their weights, `[tokens, topk]` f32.
    ///
    /// # Errors
    /// As [`x`](Self::x).
    pub fn weights(&self) -> Result<Tensor> {
        self.part(self.layout.weights, DType::F32, self.shape.top_k)
    }

    /// The address of their ids, `[tokens, topk]` i64: experts of all ranks. Another number is no expert.
    #[must_use]
    pub fn ids(&self) -> u64 {
        self.memory.address() + self.layout.ids
    }

    /// Whether all has gone well so far. It waits for the device, so it is for after a batch, not for each call.
    ///
    /// # Errors
    /// [`Error::Group`], which names the rank that is missing or has other sizes; more rows than there was room for.
    pub fn check(&self) -> Result<()> {
        let status = self.memory.part(STATUS as usize, DType::I32, &[1])?.to_bytes()?;
        let status = u32::from_le_bytes(status.try_into().expect("four bytes"));
        let (own, seconds) = (self.rank, self.timeout as f64 / 1e9);
        let reason = match Trouble::of(status) {
            None => return Ok(()),
            Some(Trouble::Missing(rank)) => {
                format!("rank {rank} did not come within {seconds} s to rank {own}")
            }
            Some(Trouble::Disagrees(rank)) => format!(
                "rank {rank} has other sizes than rank {own}, which has {:?}; make groups of one shape",
                self.shape
            ),
            Some(Trouble::Full) => format!(
                "rank {own} had more rows than the limit of a call: choices behind it were dropped; raise `most_rows`"
            ),
        };
        Err(Error::Group { reason })
    }

    fn is_half(&self) -> bool {
        self.shape.element == 2
    }

    fn part(&self, start: u64, dtype: DType, columns: u32) -> Result<Tensor> {
        self.memory.part(start as usize, dtype, &[self.shape.tokens as usize, columns as usize])
    }

    /// Tokens of all ranks, and choices of each.
    fn choices(&self) -> [usize; 2] {
        [self.shape.all_tokens() as usize, self.shape.top_k as usize]
    }

    /// # Safety
    /// What the arguments are addresses of must be as the kernel says.
    unsafe fn launch<P: KernelParams>(
        &self,
        step: Exchange,
        (ctas, params): (u32, P),
        options: &LaunchOptions,
    ) -> Result<()> {
        let threads = if step == Exchange::Meet { MAX_RANKS } else { THREADS };
        // SAFETY: the caller keeps the memory.
        unsafe { run_step(self.memory.device(), step, (ctas, threads), params, options) }
    }

    fn meet(&self, tokens: usize, first: bool, options: &LaunchOptions) -> Result<()> {
        let args = meet::Args {
            own: self.memory.address(),
            rank: self.rank,
            ranks: self.shape.ranks,
            tokens: tokens as u32,
            digest: self.shape.digest() ^ u32::from(self.scales == DType::I32),
            first: u32::from(first),
            timeout: self.timeout,
        };
        // SAFETY: who made the group keeps the buffers.
        unsafe { self.launch(Exchange::Meet, (1, args.values()), options) }
    }

    fn expect_tokens(&self, tokens: usize) -> Result<()> {
        let most = self.shape.tokens;
        if tokens > most as usize {
            let expected = format!("at most {most} tokens, the `tokens` of the group");
            return Err(Error::Value { argument: "tokens", expected, found: tokens.to_string() });
        }
        Ok(())
    }
}

/// Buffers begin where their parts may.
fn expect_aligned(argument: &'static str, address: u64) -> Result<()> {
    if address != 0 && address.is_multiple_of(256) {
        return Ok(());
    }
    let expected = "addresses that are multiples of 256 bytes".to_owned();
    Err(Error::Alignment { argument, expected, found: format!("{address:#x}") })
}

/// Puts a rank's tokens into its symmetric buffer, quantized where tokens travel as e4m3.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `x` | `[T, K]` | bf16 | rows of K; pitch and address multiples of 16 bytes where tokens travel as bf16 |
/// | `routing` | `[T, C]` | i32, experts of all ranks, and f32 | contiguous |
///
/// Weights are multiplied by `factor`.
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
    let copied = if group.is_half() {
        let (pitch, _) = x_in.tma_rows()?;
        Some(pitch)
    } else if group.scales == DType::I32 {
        let expected = "f32 scales; tokens with packed ones are written by who makes the calls".to_owned();
        return Err(Error::Value { argument: "group", expected, found: "packed scales".to_owned() });
    } else {
        let rows = |tensor: Tensor| tensor.narrow(0, 0, tokens);
        let (mut codes, mut scales) = (rows(group.x()?)?, rows(group.scales()?)?);
        let format = Recipe::Fp8.scale_format(x.device())?;
        quantize(x, &mut codes, &mut scales, Granularity::PerToken, format, options)?;
        None
    };
    let args = publish::Args {
        own: group.memory.address(),
        x: copied.map_or(0, |_| x_in.address),
        x_pitch: copied.map_or(0, |pitch| 2 * pitch as u32),
        row_bytes: group.shape.columns * group.shape.element,
        ids: ids.address,
        wide: 0,
        weights: weights.address,
        top_k: group.shape.top_k,
        factor,
        to_x: group.memory.address() + group.layout.x,
        to_ids: group.ids(),
        to_weights: group.memory.address() + group.layout.weights,
    };
    // SAFETY: the operands are as the checks say, and tensors keep their memory.
    unsafe { group.launch(Exchange::Publish, (tokens as u32, args.values()), options) }
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
/// `experts` are this rank's own. `out` is `[T, K]` bf16. The sums of a rank's experts for a token are rounded to bf16;
/// those of all ranks are added in FP32 in the order of ranks, and rounded once: the same bits in every run, and with one
/// rank those of `moe_forward`.
///
/// Nine kernels: a barrier; the choices of all ranks; the permutation; rows from the buffers of all ranks; the two
/// GEMMs; the sums of each token's rows; a barrier; the sums of all ranks. Nothing is read back or allocated, so the
/// call can be captured into a graph, which is replayed with other tokens and choices.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports. What goes wrong between ranks is told by
/// [`MoeGroup::check`].
pub fn moe_forward_group(
    group: &MoeGroup,
    call: &MoeGroupCall<'_>,
    experts: &MoeExperts<'_>,
    scratch: &mut Tensor,
    out: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let (shape, launch) = (group.shape, LaunchOptions::from(options));
    let dims = experts.dims()?;
    let expected = [shape.experts, shape.columns].map(|size| size as usize);
    let weight = experts.gate_up.weight.describe("gate_up");
    if [dims.experts, dims.outer] != expected || experts.is_half() != group.is_half() {
        let travels = if group.is_half() { "bf16" } else { "e4m3 or u8" };
        let expected = format!("{expected:?} experts and columns of {travels}, as the group was made for");
        return Err(weight.wrong_shape(expected, "experts of this rank"));
    }
    let result = out.describe("out");
    result.expect_dtype(&[DType::Bf16])?;
    result.expect_shape(&[call.tokens, dims.outer].map(int), "a row for each token")?;
    for operand in [&weight, &result] {
        operand.expect_device(&group.memory.describe("group"))?;
    }
    if let Some(counts) = call.counts.map(|counts| counts.describe("counts")) {
        counts.expect_dtype(&[DType::I32])?;
        counts.expect_shape(&[int(dims.experts)], "one for each expert")?;
        counts.expect_contiguous()?;
    }
    group.expect_tokens(call.tokens)?;
    let layout = Scratch::new(dims, group.is_half(), group.choices(), call.most_rows);
    expect_bytes(scratch, layout.bytes, "moe_group_scratch_bytes")?;
    let mut rows = layout.plan.rows(scratch, group.scales)?;
    let list = |nth: usize, dtype| scratch.part(layout.starts[nth], dtype, &group.choices());
    let (ids, weights) = (list(0, DType::I32)?, list(1, DType::F32)?);

    group.meet(call.tokens, true, &launch)?;
    let format = Recipe::Fp8.scale_format(group.memory.device())?;
    if group.choices().iter().all(|size| *size > 0) {
        group.fetch([&ids, &weights], &mut rows, (layout.m, call), &launch)?;
        let sorted = SortedCall::new(&rows.ends, ids.len() / shape.ranks as usize, options);
        sorted.multiply(experts, &rows.sorted, &rows.out, format)?;
        group.add(&rows, &weights, &launch)?;
    }
    group.meet(call.tokens, false, &launch)?;
    group.combine(call.tokens, out, &launch)
}

impl MoeGroup {
    /// Choices and rows of this rank's experts, from all ranks.
    fn fetch(
        &self,
        [ids, weights]: [&Tensor; 2],
        rows: &mut Rows,
        (m, call): (usize, &MoeGroupCall<'_>),
        options: &LaunchOptions,
    ) -> Result<()> {
        let Shape { tokens, top_k, experts, columns, element, .. } = self.shape;
        let (own, tokens) = (self.memory.address(), FastDivmod::new(tokens));
        let collect = collect::Args {
            own,
            ids: self.layout.ids,
            weights: self.layout.weights,
            choices: ids.len() as u32,
            top_k: FastDivmod::new(top_k),
            tokens,
            first_expert: self.rank * experts,
            experts,
            to_ids: ids.address(),
            to_weights: weights.address(),
        };
        let (to, to_scales) = match &rows.sorted {
            SortedRows::Fp8 { x: [codes, scales], .. } => (codes.address(), scales.address()),
            SortedRows::Half { x, .. } => (x.address(), 0),
        };
        let all = moe_rows(self.choices()[0], self.choices()[1], experts as usize, ALIGNMENT);
        let pull = pull::Args {
            own,
            x: self.layout.x,
            scales: self.layout.scales,
            row_bytes: columns * element,
            row_scales: self.shape.scales,
            tokens,
            rows: rows.tokens.address(),
            row_count: m as u32,
            ends: rows.ends.address(),
            experts,
            alignment_shift: ALIGNMENT.trailing_zeros(),
            limited: u32::from(m < all),
            counts: call.counts.map_or(0, Tensor::address),
            to,
            to_scales,
        };
        let lists = rows.lists();
        let permute = MoePermute {
            ids: ids.describe("ids"),
            alignment: ALIGNMENT,
            tokens: lists.tokens.describe("tokens"),
            groups: lists.groups.describe("groups"),
            ends: lists.ends.describe("ends"),
            places: lists.places.describe("places"),
        };
        // SAFETY: scratch memory has room for all of it, and who made the group keeps the buffers.
        unsafe {
            self.launch(Exchange::Collect, (collect.ctas(), collect.values()), options)?;
            run_permute(self.memory.device(), &permute, options)?;
            run_pull(self.memory.device(), &pull, options)
        }
    }

    /// The sum of the rows of each token that has some, into this rank's buffer.
    fn add(&self, rows: &Rows, weights: &Tensor, options: &LaunchOptions) -> Result<()> {
        let dims = [self.choices()[0], self.shape.columns as usize];
        let sums = self.memory.part(self.layout.sums as usize, DType::Bf16, &dims)?;
        let unpermute = MoeUnpermute {
            rows: rows.out.describe("rows"),
            places: rows.places.describe("places"),
            weights: Some(weights.describe("weights")),
            out: sums.describe("out"),
            chosen_only: true,
        };
        // SAFETY: tensors keep their memory, and who made the group the buffer.
        unsafe { run_unpermute(self.memory.device(), &unpermute, options) }
    }

    /// The sums of all ranks for each token of this one.
    fn combine(&self, tokens: usize, out: &Tensor, options: &LaunchOptions) -> Result<()> {
        let Shape { ranks, tokens: most, top_k, experts, columns, .. } = self.shape;
        if tokens == 0 {
            return Ok(());
        }
        let (out_pitch, _) = out.describe("out").tma_rows()?;
        let across = combine::Args::across(columns);
        let args = combine::Args {
            own: self.memory.address(),
            ids: self.layout.ids,
            sums: self.layout.sums,
            rank: self.rank,
            ranks,
            tokens: most,
            top_k,
            experts: FastDivmod::new(experts),
            columns,
            across,
            out: out.address(),
            out_pitch: out_pitch as u32,
        };
        // SAFETY: as in `add`; the checks have compared `out` with the tokens.
        unsafe { self.launch(Exchange::Combine, (tokens as u32 * across.value, args.values()), options) }
    }
}
