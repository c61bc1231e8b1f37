//! MQA logits of the attention indexer: which keys a query should attend to.

mod launch;
mod raw;

pub use raw::{
    RawMqaLogits, RawPagedMqaLogits, fp8_mqa_logits_raw, fp8_paged_mqa_logits_raw,
    get_paged_mqa_logits_metadata_raw,
};

use crate::check::{Logits, MqaLogits, PagedMqaLogits, PagedMqaSchedule};
use crate::error::Result;
use crate::gemm::GemmOptions;
use crate::reference;
use crate::tensor::Tensor;

/// MQA logits: `logits[q, j] = kv_scales[j] * sum over heads of relu(q[q, h] · kv[j]) * weights[q, h]` for
/// every key j with `starts[q] <= j < ends[q]`.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `q` | `[S, H, D]` | e4m3 | contiguous, at a multiple of 16 bytes |
/// | `kv` | `[SKV, D]` | e4m3 | rows of D; pitch and address multiples of 16 bytes |
/// | `kv_scales` | `[SKV]` | f32 | contiguous, at a multiple of 16 bytes |
/// | `weights` | `[S, H]` | f32 | rows of H, any pitch |
/// | `starts`, `ends` | `[S]` | i32 | contiguous |
/// | `logits` | `[S, SKV]` | f32 or bf16 | rows, any pitch |
///
/// H is a multiple of 8 up to 128, D is 32, 64 or 128. There are dedicated kernels for 8, 16, 32 and 64 heads; other
/// numbers are padded inside of a kernel.
///
/// What happens outside of a query's range is told at [`Logits`]; where these are compressed, `logits` may have any
/// number of columns, and what a longer range has behind them is not stored. Ranges are numbers of the device that
/// nobody else reads: what lies outside of `0..SKV` is cut off, and a range that ends before it starts is empty.
///
/// Codes, scales and weights may be anything. A NaN among them makes logits NaN: one in a query or in its weights those
/// of all keys that it sees, one in a key or in its scale those of all queries that see the key. (So NaN has a positive
/// part, which is NaN.) An infinite weight of a head whose product is not above 0, and an infinite scale of a sum of 0,
/// are NaN as well. Other logits stay as they are.
///
/// The tensor core multiplies, FP32 registers sum over heads; the same call gives the same bits. The call returns when
/// the kernel is in the stream; it can be captured once the kernel is loaded. Of the options, `choice` means nothing
/// here.
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
    let operands = ((q, None), (kv, kv_scales), weights, [starts, ends]);
    mqa_logits(operands, logits, form, options)
}

/// [`fp8_mqa_logits`] of FP4 queries and keys: `logits[q, j] = sum over heads of relu(q[q, h] · kv[j]) * weights[q, h]`,
/// of e2m1 codes times their UE8M0 scales. It runs on devices of `sm_100a`, their simulator and the CPU.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `q` | `[S, H, D / 2]` | u8, two codes each, the first in the low half | contiguous, at a multiple of 16 bytes |
/// | `q_scales` | `[S, H]` | i32, a scale for 32 elements in each byte, the first in the lowest | contiguous |
/// | `kv` | `[SKV, D / 2]` | u8 | rows; pitch and address multiples of 16 bytes |
/// | `kv_scales` | `[SKV]` | i32 | contiguous, at a multiple of 16 bytes |
///
/// The others are those of [`fp8_mqa_logits`]. D is 64 or 128; of 64, two bytes of a word of scales are used. The scale
/// code 255 is NaN.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::check::Logits;
/// use oxigemm::{DType, Device, GemmOptions, Tensor, fp4_mqa_logits};
///
/// let device = Device::Cpu;
/// // All codes are 1.0; scales of queries are 1, those of keys 2.
/// let q = Tensor::from_bytes(DType::U8, &[0x22; 8 * 32], &[1, 8, 32], &device)?;
/// let q_scales = Tensor::from_slice(&[0x7f7f; 8], &[1, 8], &device)?;
/// let kv = Tensor::from_bytes(DType::U8, &[0x22; 3 * 32], &[3, 32], &device)?;
/// let kv_scales = Tensor::from_slice(&[0x8080; 3], &[3], &device)?;
/// let weights = Tensor::from_slice(&[0.125f32; 8], &[1, 8], &device)?;
/// let [start, end] = [Tensor::from_slice(&[0], &[1], &device)?, Tensor::from_slice(&[2], &[1], &device)?];
/// let mut logits = Tensor::zeros(DType::F32, &[1, 3], &device)?;
/// let (q, kv, options) = ((&q, &q_scales), (&kv, &kv_scales), GemmOptions::default());
/// fp4_mqa_logits(q, kv, &weights, [&start, &end], &mut logits, Logits::Clean, &options)?;
/// assert_eq!(logits.to_vec_f32()?, [128.0, 128.0, f32::NEG_INFINITY]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp4_mqa_logits(
    (q, q_scales): (&Tensor, &Tensor),
    (kv, kv_scales): (&Tensor, &Tensor),
    weights: &Tensor,
    [starts, ends]: [&Tensor; 2],
    logits: &mut Tensor,
    form: Logits,
    options: &GemmOptions,
) -> Result<()> {
    let operands = ((q, Some(q_scales)), (kv, kv_scales), weights, [starts, ends]);
    mqa_logits(operands, logits, form, options)
}

/// Q with its scales if it is FP4, keys with their scales, weights, and ranges.
type PrefillOperands<'a> =
    ((&'a Tensor, Option<&'a Tensor>), (&'a Tensor, &'a Tensor), &'a Tensor, [&'a Tensor; 2]);

fn mqa_logits(
    ((q, q_scales), (kv, kv_scales), weights, [starts, ends]): PrefillOperands<'_>,
    logits: &mut Tensor,
    form: Logits,
    options: &GemmOptions,
) -> Result<()> {
    let arguments = MqaLogits {
        q: q.describe("q"),
        q_scales: q_scales.map(|scales| scales.describe("q_scales")),
        kv: kv.describe("kv"),
        kv_scales: kv_scales.describe("kv_scales"),
        weights: weights.describe("weights"),
        starts: starts.describe("starts"),
        ends: ends.describe("ends"),
        logits: logits.describe("logits"),
        form,
    };
    let reference = || match arguments.check()? {
        None => Ok(()),
        Some(_) => reference::mqa_logits_tensors(
            (q, q_scales),
            (kv, kv_scales),
            weights,
            [starts, ends],
            logits,
            form,
        ),
    };
    // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
    q.device().run(options.stream.as_ref(), reference, |device| unsafe {
        launch::mqa_logits(device, &arguments, options)
    })
}

/// Paged MQA logits, of sequences with some queries each: `logits[b * N + n, j] = scale[j] * sum over heads of
/// relu(q[b, n, h] · kv[j]) * weights[b * N + n, h]`, where key j of sequence b is in page `block_table[b, j / keys of
/// a page]`.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `q` | `[B, N, H, D]` | e4m3 | contiguous, at a multiple of 16 bytes |
/// | `kv_cache` | `[pages, 16, 32, 64, 128 or 256, 1, D + 4]` | e4m3 (bytes) | pages begin at multiples of 16 bytes |
/// | `weights` | `[B * N, H]` | f32 | rows of H, any pitch |
/// | `context_lens` | `[B]` or `[B, N]` | i32 | contiguous |
/// | `block_table` | `[B, any]` | i32 | rows, any pitch |
/// | `schedule` | `[parts + 1, 2]` | i32 | what [`get_paged_mqa_logits_metadata`] wrote for the same lengths |
/// | `logits` | `[B * N, columns]` | f32 or bf16 | rows, any pitch |
///
/// H and D are as for [`fp8_mqa_logits`]. A page holds the elements of all its keys, then their scales (f32). There are
/// dedicated kernels for up to 4 queries of a sequence, pages of up to 128 keys and 8, 16, 32 or 64 heads.
///
/// Query n of sequence b sees the first `context_lens[b, n]` keys; of one length for each sequence, the last query sees
/// all and each before it one less than the next. Where `clean`, logits behind that become -inf, else they stay as they
/// are.
///
/// Lengths and pages are numbers of the device that nobody else reads. A length below 0 is 0, one above what logits
/// have columns for or the table has pages for is cut off there; a page that is not one of the cache reads as zeros.
/// Nothing outside of the operands is ever touched, also where the schedule is of other lengths, of which then some
/// logits are not computed.
///
/// What is not finite does as told at [`fp8_mqa_logits`]; a page of zeros gives NaN to queries that have a NaN or a
/// weight that is not finite.
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
    let lists = [context_lens, block_table, schedule];
    paged_mqa_logits((q, None), kv_cache, weights, lists, logits, clean, options)
}

/// [`fp8_paged_mqa_logits`] of FP4 queries and keys, whose scales are as for [`fp4_mqa_logits`].
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `q` | `[B, N, H, D / 2]` | u8 | contiguous, at a multiple of 16 bytes |
/// | `q_scales` | `[B, N, H]` | i32 | contiguous |
/// | `kv_cache` | `[pages, 16, 32, 64, 128 or 256, 1, D / 2 + 4]` | u8 | pages begin at multiples of 16 bytes |
///
/// The others are those of [`fp8_paged_mqa_logits`]. A page holds the codes of all its keys, then a word of scales for
/// each.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
pub fn fp4_paged_mqa_logits(
    (q, q_scales): (&Tensor, &Tensor),
    kv_cache: &Tensor,
    weights: &Tensor,
    lists: [&Tensor; 3],
    logits: &mut Tensor,
    clean: bool,
    options: &GemmOptions,
) -> Result<()> {
    paged_mqa_logits((q, Some(q_scales)), kv_cache, weights, lists, logits, clean, options)
}

fn paged_mqa_logits(
    (q, q_scales): (&Tensor, Option<&Tensor>),
    kv_cache: &Tensor,
    weights: &Tensor,
    [context_lens, block_table, schedule]: [&Tensor; 3],
    logits: &mut Tensor,
    clean: bool,
    options: &GemmOptions,
) -> Result<()> {
    let arguments = PagedMqaLogits {
        q: q.describe("q"),
        q_scales: q_scales.map(|scales| scales.describe("q_scales")),
        kv_cache: kv_cache.describe("kv_cache"),
        weights: weights.describe("weights"),
        context_lens: context_lens.describe("context_lens"),
        block_table: block_table.describe("block_table"),
        schedule: schedule.describe("schedule"),
        logits: logits.describe("logits"),
        clean,
    };
    let reference = || match arguments.check()? {
        None => Ok(()),
        Some(_) => {
            let lists = [context_lens, block_table];
            reference::paged_mqa_logits_tensors((q, q_scales), kv_cache, weights, lists, logits, clean)
        }
    };
    // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
    q.device().run(options.stream.as_ref(), reference, |device| unsafe {
        launch::paged_mqa_logits(device, &arguments, options)
    })
}

/// Schedule metadata of [`fp8_paged_mqa_logits`]: `schedule[s]` becomes the sequence and the tile of 128 keys where
/// part s begins, so that all parts have as many tiles.
///
/// `context_lens` is `[B]` or `[B, N]` i32, `schedule` `[parts + 1, 2]` i32, both contiguous. A part is computed by one
/// block of threads: there should be as many as SMs, but any number gives the same logits. It is computed on the device,
/// and so can be captured together with the logits and replayed when lengths have changed.
///
/// A length below 0 is 0. Lengths may be any above the columns of the logits, which are computed all the same; but the
/// parts are then of unequal work, as the columns are not known here.
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
    let reference = || {
        arguments.check()?;
        reference::paged_mqa_schedule_tensors(context_lens, schedule)
    };
    // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
    context_lens.device().run(options.stream.as_ref(), reference, |device| unsafe {
        launch::paged_mqa_metadata(device, &arguments, options)
    })
}
