//! MQA logits on memory that the caller owns.

use super::launch;
use crate::check::{Logits, MqaLogits, PagedMqaLogits, PagedMqaSchedule};
use crate::device::{Device, DeviceId};
use crate::error::Result;
use crate::gemm::GemmOptions;
use crate::tensor::DType;
use crate::tensor::desc::{Operand, int};

/// The operands of [`fp8_mqa_logits`](crate::fp8_mqa_logits) as addresses, for engines that own their memory. Pitches
/// are in elements.
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

/// [`fp8_mqa_logits`](crate::fp8_mqa_logits) on memory that the caller owns. The device is a GPU or the simulator.
///
/// # Safety
/// Every operand must be memory of this device, as large as its shape and pitch say. It must stay alive, and not be
/// written elsewhere (the logits also not be read), from the call until the stream has passed the kernel; where the
/// stream is being captured, whenever the graph runs.
///
/// # Errors
/// As [`fp8_mqa_logits`](crate::fp8_mqa_logits). The CPU is refused: it has tensors only.
pub unsafe fn fp8_mqa_logits_raw(device: &Device, raw: &RawMqaLogits, options: &GemmOptions) -> Result<()> {
    let describe = Describe(device.id());
    let arguments = MqaLogits {
        q_scales: None,
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
    unsafe { launch::mqa_logits(device, &arguments, options) }
}

/// The operands of [`fp8_paged_mqa_logits`](crate::fp8_paged_mqa_logits) as addresses. Pitches are in elements.
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

/// [`fp8_paged_mqa_logits`](crate::fp8_paged_mqa_logits) on memory that the caller owns. The device is a GPU or the
/// simulator.
///
/// # Safety
/// As for [`fp8_mqa_logits_raw`].
///
/// # Errors
/// As [`fp8_paged_mqa_logits`](crate::fp8_paged_mqa_logits). The CPU is refused: it has tensors only.
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
        q_scales: None,
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
    unsafe { launch::paged_mqa_logits(device, &arguments, options) }
}

/// [`get_paged_mqa_logits_metadata`](crate::get_paged_mqa_logits_metadata) on memory that the caller owns: `sequences`
/// lengths, or `sequences * next` of them where `next` is given. The device is a GPU or the simulator.
///
/// # Safety
/// As for [`fp8_mqa_logits_raw`].
///
/// # Errors
/// As [`get_paged_mqa_logits_metadata`](crate::get_paged_mqa_logits_metadata). The CPU is refused: it has tensors only.
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
    unsafe { launch::paged_mqa_metadata(device, &arguments, options) }
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
