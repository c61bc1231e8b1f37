//! The logits of an indexer: which keys a query should attend to.

use oxigemm_cuda::{Element, L2Promotion, Swizzle, TiledTensor};
use oxigemm_kernels::attention::paged_metadata;
use oxigemm_kernels::attention::paged_mqa_logits;
use oxigemm_kernels::attention::{Config, Heads, LogitFlags, TILE_KEYS};

use crate::check::int;
use crate::check::{
    Logits, MqaLogits, MqaProblem, Operand, PagedMqaLogits, PagedMqaProblem, PagedMqaSchedule,
    ScheduleProblem,
};
use crate::device::{Device, DeviceId};
use crate::error::{Error, Result};
use crate::gemm::{GemmOptions, refuse_stream};
use crate::launch::direct::{Argument, Call};
use crate::plan::MqaPlan;
use crate::reference;
use crate::tensor::DType;
use crate::tensor::Tensor;

/// What a query would attend to: `logits[q, j] = kv_scales[j] * sum over heads of relu(q[q, h] · kv[j]) * weights[q, h]` for
/// every key j with `starts[q] <= j < ends[q]`.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `q` | `[S, H, D]`; H is 8, 16, 32 or 64, D is 32, 64 or 128 | e4m3 | contiguous, at a multiple of 16 bytes |
/// | `kv` | `[SKV, D]` | e4m3 | rows of D; pitch and address multiples of 16 bytes |
/// | `kv_scales` | `[SKV]` | f32 | contiguous, at a multiple of 16 bytes |
/// | `weights` | `[S, H]` | f32 | rows of H, any pitch |
/// | `starts`, `ends` | `[S]` | i32 | contiguous |
/// | `logits` | `[S, SKV]` | f32 or bf16 | rows, any pitch |
///
/// What happens outside of a query's range is told at [`Logits`]; where these are compressed, `logits` may have any number of
/// columns, and what a longer range has behind them is not stored. Ranges are numbers of the device that nobody else
/// reads: what lies outside of `0..SKV` is cut off, and a range that ends before it starts is empty.
///
/// Codes, scales and weights may be anything. A NaN among them makes logits NaN: one in a query or in its weights those of all keys that it
/// sees, one in a key or in its scale those of all queries that see the key. (So NaN has a positive part, which is NaN.) An infinite
/// weight of a head whose product is not above 0, and an infinite scale of a sum of 0, are NaN as well. Other logits stay as they are.
///
/// The tensor core multiplies, FP32 registers sum over heads; the same call gives the same bits. The call returns when the kernel
/// is in the stream; it can be captured once the kernel is loaded. Of the options, `choice` means nothing here.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::check::Logits;
/// use oxigemm::{DType, Device, GemmOptions, Tensor, fp8_mqa_logits};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let q = Tensor::from_f32(DType::E4m3, &[1.0; 2 * 8 * 32], &[2, 8, 32], &device)?;
/// let kv = Tensor::from_f32(DType::E4m3, &[0.5; 3 * 32], &[3, 32], &device)?;
/// let kv_scales = Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[3], &device)?;
/// let weights = Tensor::from_slice(&[0.125f32; 2 * 8], &[2, 8], &device)?;
/// let starts = Tensor::from_slice(&[0, 0], &[2], &device)?;
/// let ends = Tensor::from_slice(&[2, 3], &[2], &device)?;
/// let mut logits = Tensor::zeros(DType::F32, &[2, 3], &device)?;
/// let options = GemmOptions::default();
/// fp8_mqa_logits(&q, (&kv, &kv_scales), &weights, [&starts, &ends], &mut logits, Logits::Clean, &options)?;
/// assert_eq!(logits.to_vec_f32()?, [16.0, 32.0, f32::NEG_INFINITY, 16.0, 32.0, 48.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp8_mqa_logits(
    q: &Tensor,
    (kv, kv_scales): (&Tensor, &Tensor),
    weights: &Tensor,
    [starts, ends]: [&Tensor; 2],
    logits: &mut Tensor,
    form: Logits,
    options: &GemmOptions,
) -> Result<()> {
    let arguments = MqaLogits {
        q: q.describe("q"),
        kv: kv.describe("kv"),
        kv_scales: kv_scales.describe("kv_scales"),
        weights: weights.describe("weights"),
        starts: starts.describe("starts"),
        ends: ends.describe("ends"),
        logits: logits.describe("logits"),
        form,
    };
    if let Device::Cpu = q.device() {
        refuse_stream(q.device(), options)?;
        return match arguments.check()? {
            None => Ok(()),
            Some(_) => {
                reference::mqa_logits_tensors(q, (kv, kv_scales), weights, [starts, ends], logits, form)
            }
        };
    }
    // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
    unsafe { prefill(q.device(), &arguments, options) }
}

/// The operands of [`fp8_mqa_logits`] as addresses, for engines that own their memory. Pitches are in elements.
#[derive(Clone, Copy, Debug)]
pub struct RawMqaLogits {
    /// Queries.
    pub queries: usize,
    /// Heads of each.
    pub heads: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Keys.
    pub keys: usize,
    /// Columns of the logits: as many as keys, unless they are compressed.
    pub columns: usize,
    /// Address of Q.
    pub q: u64,
    /// Address of the keys.
    pub kv: u64,
    /// From one key to the next.
    pub kv_pitch: usize,
    /// Address of their scales.
    pub kv_scales: u64,
    /// Address of the weights.
    pub weights: u64,
    /// From the weights of one query to those of the next.
    pub weights_pitch: usize,
    /// Address of the first keys that queries see.
    pub starts: u64,
    /// Address of the keys behind the last that queries see.
    pub ends: u64,
    /// Address of the logits.
    pub logits: u64,
    /// From the logits of one query to those of the next.
    pub logits_pitch: usize,
    /// f32 or bf16.
    pub logits_type: DType,
    /// What they are like.
    pub form: Logits,
}

/// [`fp8_mqa_logits`] on memory that the caller owns. The device is a GPU or the simulator.
///
/// # Safety
/// Every operand must be memory of this device, as large as its shape and pitch say. It must stay alive, and not be written
/// elsewhere (the logits also not be read), from the call until the stream has passed the kernel; where the stream is being
/// captured, whenever the graph runs.
///
/// # Errors
/// As [`fp8_mqa_logits`]. The CPU is refused: it has tensors only.
pub unsafe fn fp8_mqa_logits_raw(device: &Device, raw: &RawMqaLogits, options: &GemmOptions) -> Result<()> {
    let describe = Describe(device.id());
    let arguments = MqaLogits {
        q: describe.dense("q", DType::E4m3, &[raw.queries, raw.heads, raw.dim], raw.q),
        kv: describe.matrix("kv", DType::E4m3, [raw.keys, raw.dim], raw.kv_pitch, raw.kv),
        kv_scales: describe.dense("kv_scales", DType::F32, &[raw.keys], raw.kv_scales),
        weights: describe.matrix(
            "weights",
            DType::F32,
            [raw.queries, raw.heads],
            raw.weights_pitch,
            raw.weights,
        ),
        starts: describe.dense("starts", DType::I32, &[raw.queries], raw.starts),
        ends: describe.dense("ends", DType::I32, &[raw.queries], raw.ends),
        logits: describe.matrix(
            "logits",
            raw.logits_type,
            [raw.queries, raw.columns],
            raw.logits_pitch,
            raw.logits,
        ),
        form: raw.form,
    };
    // SAFETY: the caller keeps the operands as described.
    unsafe { prefill(device, &arguments, options) }
}

/// The same for keys that lie in pages, of sequences that are each asked for by some queries:
/// `logits[b * N + n, j] = scale[j] * sum over heads of relu(q[b, n, h] · kv[j]) * weights[b * N + n, h]`, where key j of sequence b is in
/// page `block_table[b, j / keys of a page]`.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `q` | `[B, N, H, D]`; N is 1 to 4, H and D as for [`fp8_mqa_logits`] | e4m3 | contiguous, at a multiple of 16 bytes |
/// | `kv_cache` | `[pages, 16, 32, 64 or 128, 1, D + 4]` | e4m3 (bytes) | of a page first the elements of all keys, then their scales (f32); pages begin at multiples of 16 bytes |
/// | `weights` | `[B * N, H]` | f32 | rows of H, any pitch |
/// | `context_lens` | `[B]` or `[B, N]` | i32 | contiguous |
/// | `block_table` | `[B, any]` | i32 | rows, any pitch |
/// | `schedule` | `[parts + 1, 2]` | i32 | what [`get_paged_mqa_logits_metadata`] wrote for the same lengths |
/// | `logits` | `[B * N, columns]` | f32 or bf16 | rows, any pitch |
///
/// Query n of sequence b sees the first `context_lens[b, n]` keys; of one length for each sequence, the last query sees all and
/// each before it one less than the next. Where `clean`, logits behind that become -inf, else they stay as they are.
///
/// Lengths and pages are numbers of the device that nobody else reads. A length below 0 is 0, one above what logits have columns for
/// or the table has pages for is cut off there; a page that is not one of the cache reads as zeros. Nothing outside of the
/// operands is ever touched, also where the schedule is of other lengths, of which then some logits are not computed.
///
/// What is not finite does as told at [`fp8_mqa_logits`]; a page of zeros gives NaN to queries that have a NaN or a weight that is not
/// finite.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{DType, Device, GemmOptions, Tensor, fp8_paged_mqa_logits, get_paged_mqa_logits_metadata};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// // Two pages of 16 keys, all elements 0.5 and all scales 2.
/// let page: Vec<u8> = [vec![0x30; 16 * 32], [2.0f32; 16].iter().flat_map(|x| x.to_le_bytes()).collect()].concat();
/// let kv_cache = Tensor::from_bytes(DType::E4m3, &[page.clone(), page].concat(), &[2, 16, 1, 36], &device)?;
/// let q = Tensor::from_f32(DType::E4m3, &[1.0; 8 * 32], &[1, 1, 8, 32], &device)?;
/// let weights = Tensor::from_slice(&[0.125f32; 8], &[1, 8], &device)?;
/// let context_lens = Tensor::from_slice(&[17], &[1], &device)?;
/// let block_table = Tensor::from_slice(&[1, 0], &[1, 2], &device)?;
/// let mut schedule = Tensor::zeros(DType::I32, &[132 + 1, 2], &device)?;
/// let mut logits = Tensor::zeros(DType::F32, &[1, 20], &device)?;
/// let options = GemmOptions::default();
/// get_paged_mqa_logits_metadata(&context_lens, &mut schedule, &options)?;
/// let lists = [&context_lens, &block_table, &schedule];
/// fp8_paged_mqa_logits(&q, &kv_cache, &weights, lists, &mut logits, true, &options)?;
/// assert_eq!(logits.to_vec_f32()?[..18], [vec![32.0; 17], vec![f32::NEG_INFINITY]].concat());
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp8_paged_mqa_logits(
    q: &Tensor,
    kv_cache: &Tensor,
    weights: &Tensor,
    [context_lens, block_table, schedule]: [&Tensor; 3],
    logits: &mut Tensor,
    clean: bool,
    options: &GemmOptions,
) -> Result<()> {
    let arguments = PagedMqaLogits {
        q: q.describe("q"),
        kv_cache: kv_cache.describe("kv_cache"),
        weights: weights.describe("weights"),
        context_lens: context_lens.describe("context_lens"),
        block_table: block_table.describe("block_table"),
        schedule: schedule.describe("schedule"),
        logits: logits.describe("logits"),
        clean,
    };
    if let Device::Cpu = q.device() {
        refuse_stream(q.device(), options)?;
        return match arguments.check()? {
            None => Ok(()),
            Some(_) => {
                let lists = [context_lens, block_table];
                reference::paged_mqa_logits_tensors(q, kv_cache, weights, lists, logits, clean)
            }
        };
    }
    // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
    unsafe { paged(q.device(), &arguments, options) }
}

/// The operands of [`fp8_paged_mqa_logits`] as addresses. Pitches are in elements.
#[derive(Clone, Copy, Debug)]
pub struct RawPagedMqaLogits {
    /// Sequences.
    pub sequences: usize,
    /// Queries of each.
    pub next: usize,
    /// Heads of a query.
    pub heads: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Pages of the cache.
    pub pages: usize,
    /// Keys of a page.
    pub page_keys: usize,
    /// Pages that the table has of each sequence.
    pub table_pages: usize,
    /// Columns of the logits.
    pub columns: usize,
    /// Parts of the schedule.
    pub parts: usize,
    /// Address of Q.
    pub q: u64,
    /// Address of the cache.
    pub kv_cache: u64,
    /// From one page to the next, in bytes.
    pub page_pitch: usize,
    /// Address of the weights.
    pub weights: u64,
    /// From the weights of one query to those of the next.
    pub weights_pitch: usize,
    /// Address of the lengths.
    pub context_lens: u64,
    /// Whether each query has one.
    pub lengths_per_query: bool,
    /// Address of the table.
    pub block_table: u64,
    /// From the pages of one sequence to those of the next.
    pub table_pitch: usize,
    /// Address of the schedule.
    pub schedule: u64,
    /// Address of the logits.
    pub logits: u64,
    /// From the logits of one query to those of the next.
    pub logits_pitch: usize,
    /// f32 or bf16.
    pub logits_type: DType,
    /// Whether logits behind a query's length become -inf.
    pub clean: bool,
}

/// [`fp8_paged_mqa_logits`] on memory that the caller owns. The device is a GPU or the simulator.
///
/// # Safety
/// As for [`fp8_mqa_logits_raw`].
///
/// # Errors
/// As [`fp8_paged_mqa_logits`]. The CPU is refused: it has tensors only.
pub unsafe fn fp8_paged_mqa_logits_raw(
    device: &Device,
    raw: &RawPagedMqaLogits,
    options: &GemmOptions,
) -> Result<()> {
    let describe = Describe(device.id());
    let queries = raw.sequences.saturating_mul(raw.next);
    let mut kv_cache = describe.dense(
        "kv_cache",
        DType::E4m3,
        &[raw.pages, raw.page_keys, 1, raw.dim.saturating_add(4)],
        raw.kv_cache,
    );
    kv_cache.strides[0] = int(raw.page_pitch);
    let lengths = [raw.sequences, raw.next];
    let rank = if raw.lengths_per_query { 2 } else { 1 };
    let arguments = PagedMqaLogits {
        q: describe.dense("q", DType::E4m3, &[raw.sequences, raw.next, raw.heads, raw.dim], raw.q),
        kv_cache,
        weights: describe.matrix("weights", DType::F32, [queries, raw.heads], raw.weights_pitch, raw.weights),
        context_lens: describe.dense("context_lens", DType::I32, &lengths[..rank], raw.context_lens),
        block_table: describe.matrix(
            "block_table",
            DType::I32,
            [raw.sequences, raw.table_pages],
            raw.table_pitch,
            raw.block_table,
        ),
        schedule: describe.dense("schedule", DType::I32, &[raw.parts.saturating_add(1), 2], raw.schedule),
        logits: describe.matrix(
            "logits",
            raw.logits_type,
            [queries, raw.columns],
            raw.logits_pitch,
            raw.logits,
        ),
        clean: raw.clean,
    };
    // SAFETY: the caller keeps the operands as described.
    unsafe { paged(device, &arguments, options) }
}

/// Shares out the keys of [`fp8_paged_mqa_logits`]: `schedule[s]` becomes the sequence and the tile of 128 keys where part s
/// begins, so that all parts have as many tiles.
///
/// `context_lens` is `[B]` or `[B, N]` i32, `schedule` `[parts + 1, 2]` i32, both contiguous. A part is computed by one block of
/// threads: there should be as many as multiprocessors. It is computed on the device, and so can be captured together with
/// the logits and replayed when lengths have changed.
///
/// A length below 0 is 0. Lengths may be any above the columns of the logits, which are computed all the same; but the parts are then
/// of unequal work, as the columns are not known here.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{DType, Device, GemmOptions, Tensor, get_paged_mqa_logits_metadata};
///
/// let device = Device::cpu();
/// let context_lens = Tensor::from_slice(&[100, 0, 300], &[3], &device)?; // 1, 0 and 3 tiles
/// let mut schedule = Tensor::zeros(DType::I32, &[2 + 1, 2], &device)?;
/// get_paged_mqa_logits_metadata(&context_lens, &mut schedule, &GemmOptions::default())?;
/// assert_eq!(schedule.to_vec::<i32>()?, [0, 0, 2, 1, 3, 0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn get_paged_mqa_logits_metadata(
    context_lens: &Tensor,
    schedule: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let arguments = PagedMqaSchedule {
        context_lens: context_lens.describe("context_lens"),
        schedule: schedule.describe("schedule"),
    };
    if let Device::Cpu = context_lens.device() {
        refuse_stream(context_lens.device(), options)?;
        arguments.check()?;
        return reference::paged_mqa_schedule_tensors(context_lens, schedule);
    }
    // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
    unsafe { share_out(context_lens.device(), &arguments, options) }
}

/// [`get_paged_mqa_logits_metadata`] on memory that the caller owns: `sequences` lengths, or `sequences * next` of them where `next`
/// is given. The device is a GPU or the simulator.
///
/// # Safety
/// As for [`fp8_mqa_logits_raw`].
///
/// # Errors
/// As [`get_paged_mqa_logits_metadata`]. The CPU is refused: it has tensors only.
pub unsafe fn get_paged_mqa_logits_metadata_raw(
    device: &Device,
    (context_lens, sequences, next): (u64, usize, Option<usize>),
    (schedule, parts): (u64, usize),
    options: &GemmOptions,
) -> Result<()> {
    let describe = Describe(device.id());
    let dims = [sequences, next.unwrap_or(1)];
    let rank = if next.is_some() { 2 } else { 1 };
    let arguments = PagedMqaSchedule {
        context_lens: describe.dense("context_lens", DType::I32, &dims[..rank], context_lens),
        schedule: describe.dense("schedule", DType::I32, &[parts.saturating_add(1), 2], schedule),
    };
    // SAFETY: the caller keeps the operands as described.
    unsafe { share_out(device, &arguments, options) }
}

/// Describes memory of a device.
struct Describe(DeviceId);

impl Describe {
    fn matrix(
        &self,
        name: &'static str,
        dtype: DType,
        dims: [usize; 2],
        pitch: usize,
        address: u64,
    ) -> Operand {
        Operand::matrix(name, dtype, dims.map(int), [int(pitch), 1], address, self.0)
    }

    fn dense(&self, name: &'static str, dtype: DType, dims: &[usize], address: u64) -> Operand {
        let mut operand = Operand::matrix(name, dtype, [1, 1], [1, 1], address, self.0);
        operand.rank = dims.len();
        let mut stride = 1i64;
        for (i, &dim) in dims.iter().enumerate().rev() {
            (operand.dims[i], operand.strides[i]) = (int(dim), stride);
            stride = stride.saturating_mul(int(dim));
        }
        operand
    }
}

/// The multiprocessors that a call may use.
fn multiprocessors(device: &Device, options: &GemmOptions) -> Result<u32> {
    let limits = device.limits().ok_or_else(|| Error::no_raw_memory(device))?;
    Ok(options.num_sms.map_or(limits.sms, |sms| sms.clamp(1, limits.sms)))
}

fn swizzle(heads: Heads) -> Swizzle {
    match heads.dim {
        32 => Swizzle::B32,
        64 => Swizzle::B64,
        _ => Swizzle::B128,
    }
}

/// Rows of FP8 that are as long as a head.
fn rows_map(heads: Heads, address: u64, rows: u32, pitch: u64, tile: u32) -> TiledTensor {
    TiledTensor {
        element: Element::U8,
        rank: 2,
        address,
        dims: [heads.dim.into(), rows.into(), 1, 1, 1],
        strides: [pitch, 0, 0, 0],
        tile: [heads.dim, tile, 1, 1, 1],
        swizzle: swizzle(heads),
        promotion: L2Promotion::B256,
    }
}

/// Rows of scales.
fn scales_map(address: u64, dims: [u32; 2], pitch: u64, tile: u32) -> TiledTensor {
    TiledTensor {
        element: Element::F32,
        rank: 2,
        address,
        dims: [dims[0].into(), dims[1].into(), 1, 1, 1],
        strides: [pitch, 0, 0, 0],
        tile: [tile, 1, 1, 1, 1],
        swizzle: Swizzle::None,
        promotion: L2Promotion::B128,
    }
}

fn launch<'a>(config: Config, blocks: u32, arguments: &'a [Argument]) -> Call<'a> {
    Call {
        kernel: config.into(),
        grid: [blocks, 1],
        cluster: 1,
        threads: config.threads(),
        shared_bytes: config.shared_bytes(),
        arguments,
    }
}

fn type_flag(dtype: DType) -> u32 {
    if dtype == DType::Bf16 { LogitFlags::BF16 } else { 0 }
}

/// # Safety
/// As for [`fp8_mqa_logits_raw`].
unsafe fn prefill(device: &Device, arguments: &MqaLogits, options: &GemmOptions) -> Result<()> {
    let sms = multiprocessors(device, options)?;
    let Some(problem) = arguments.check()? else { return Ok(()) };
    let plan = MqaPlan::best(&problem, sms);
    let MqaProblem {
        heads,
        queries,
        keys,
        columns,
        kv_pitch,
        weights_pitch,
        logits_pitch,
        form,
        logits_type,
    } = problem;
    let form = match form {
        Logits::Clean => LogitFlags::CLEAN,
        Logits::Partial => 0,
        Logits::Compressed => LogitFlags::COMPRESSED,
    };
    let scales_pitch = (u64::from(keys) * 4).next_multiple_of(16);
    let list = [
        Argument::Map(rows_map(
            heads,
            arguments.q.address,
            queries * heads.heads,
            heads.dim.into(),
            plan.config.columns(),
        )),
        Argument::Map(rows_map(heads, arguments.kv.address, keys, kv_pitch, TILE_KEYS)),
        Argument::Map(scales_map(arguments.kv_scales.address, [keys, 1], scales_pitch, TILE_KEYS)),
        Argument::Address(arguments.weights.address),
        Argument::Address(arguments.starts.address),
        Argument::Address(arguments.ends.address),
        Argument::Address(arguments.logits.address),
        Argument::Number(weights_pitch),
        Argument::Number(logits_pitch),
        Argument::Number(queries),
        Argument::Number(keys),
        Argument::Number(columns),
        Argument::Number(form | type_flag(logits_type)),
    ];
    // SAFETY: these are the kernel's parameters; the check has compared the operands with them, and the caller keeps them.
    unsafe { launch(Config::Prefill(plan.config), plan.blocks, &list).run(device, options) }
}

/// # Safety
/// As for [`fp8_mqa_logits_raw`].
unsafe fn paged(device: &Device, arguments: &PagedMqaLogits, options: &GemmOptions) -> Result<()> {
    multiprocessors(device, options)?;
    let Some(problem) = arguments.check()? else { return Ok(()) };
    let PagedMqaProblem { heads, sequences, next, page_keys, pages, page_pitch, columns, .. } = problem;
    let cache = arguments.kv_cache.address;
    // A cache without pages is one with a page that nothing names: the copy engine wants some memory.
    let (some, at) = if pages == 0 { (1, arguments.q.address) } else { (pages, cache) };
    let keys = TiledTensor {
        rank: 3,
        dims: [heads.dim.into(), page_keys.into(), some.into(), 1, 1],
        strides: [heads.dim.into(), page_pitch, 0, 0],
        ..rows_map(heads, at, page_keys, heads.dim.into(), page_keys)
    };
    let scales_at = at + u64::from(page_keys * heads.dim);
    let query_rows = next * heads.heads;
    let limit = u64::from(problem.table_pages) * u64::from(page_keys);
    let flags = if problem.clean { LogitFlags::CLEAN } else { 0 };
    let list = [
        Argument::Map(rows_map(
            heads,
            arguments.q.address,
            sequences * query_rows,
            heads.dim.into(),
            query_rows,
        )),
        Argument::Map(keys),
        Argument::Map(scales_map(scales_at, [page_keys, some], page_pitch, page_keys)),
        Argument::Address(arguments.weights.address),
        Argument::Address(arguments.block_table.address),
        Argument::Address(arguments.schedule.address),
        Argument::Address(arguments.logits.address),
        Argument::Address(arguments.context_lens.address),
        Argument::Number(sequences),
        Argument::Number(next),
        Argument::Number(problem.lengths_per_query.into()),
        Argument::Number(limit.min(columns.into()) as u32),
        Argument::Number(problem.weights_pitch),
        Argument::Number(problem.table_pitch),
        Argument::Number(problem.logits_pitch),
        Argument::Number(columns),
        Argument::Number(page_keys),
        Argument::Number(pages),
        Argument::Number(flags | type_flag(problem.logits_type)),
    ];
    let config = Config::Paged(paged_mqa_logits::Config { heads });
    // SAFETY: these are the kernel's parameters; the check has compared the operands with them, and the caller keeps them.
    unsafe { launch(config, problem.parts, &list).run(device, options) }
}

/// # Safety
/// As for [`fp8_mqa_logits_raw`].
unsafe fn share_out(device: &Device, arguments: &PagedMqaSchedule, options: &GemmOptions) -> Result<()> {
    multiprocessors(device, options)?;
    let ScheduleProblem { sequences, next, lengths_per_query, parts } = arguments.check()?;
    let config = paged_metadata::Config;
    let list = [
        Argument::Address(arguments.schedule.address),
        Argument::Address(arguments.context_lens.address),
        Argument::Number(sequences),
        Argument::Number(next),
        Argument::Number(lengths_per_query.into()),
        Argument::Number(config.longest(sequences)),
        Argument::Number(parts),
    ];
    // SAFETY: these are the kernel's parameters; the check has compared the operands with them, and the caller keeps them.
    unsafe { launch(Config::Schedule(config), 1, &list).run(device, options) }
}
