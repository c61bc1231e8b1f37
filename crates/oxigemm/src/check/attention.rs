//! Checks of the MQA logits functions.

use oxigemm_kernels::attention::{Format, HEAD_STEP, Heads, MAX_HEADS, PAGE_SIZES};

use super::Operand;
use crate::error::{Error, Result};
use crate::tensor::DType;
use crate::tensor::desc::Footprint;

/// What logits are like outside of a query's range, and where their columns begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Logits {
    /// A column for every key; -inf where a query does not see it.
    #[default]
    Clean,
    /// A column for every key; where a query does not see it, what was there stays.
    Partial,
    /// The first column of a query is the first key of its range; what was behind its range stays.
    Compressed,
}

/// The arguments of `fp8_mqa_logits` and of `fp4_mqa_logits`.
///
/// ```
/// use oxigemm::check::{Logits, MqaLogits};
/// use oxigemm::{DType, Device, Tensor};
///
/// let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &Device::Cpu);
/// let (q, kv) = (new(DType::E4m3, &[10, 64, 128])?, new(DType::E4m3, &[300, 128])?);
/// let (scales, weights) = (new(DType::F32, &[300])?, new(DType::F32, &[10, 64])?);
/// let (range, logits) = (new(DType::I32, &[10])?, new(DType::F32, &[10, 300])?);
/// let arguments = MqaLogits {
///     q: q.describe("q"),
///     q_scales: None,
///     kv: kv.describe("kv"),
///     kv_scales: scales.describe("kv_scales"),
///     weights: weights.describe("weights"),
///     starts: range.describe("starts"),
///     ends: range.describe("ends"),
///     logits: logits.describe("logits"),
///     form: Logits::Clean,
/// };
/// let problem = arguments.check()?.expect("there is work to do");
/// assert_eq!((problem.queries, problem.keys), (10, 300));
/// # Ok::<(), oxigemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MqaLogits {
    /// `[S, H, D]` e4m3, contiguous; of FP4 `[S, H, D / 2]` bytes.
    pub q: Operand,
    /// The scales of `q` where all is FP4: `[S, H]` words, contiguous.
    pub q_scales: Option<Operand>,
    /// `[SKV, D]` e4m3; of FP4 `[SKV, D / 2]` bytes.
    pub kv: Operand,
    /// The scales of `kv`: `[SKV]` f32; of FP4 words.
    pub kv_scales: Operand,
    /// `[S, H]` f32.
    pub weights: Operand,
    /// The first key that each query sees: `[S]` i32.
    pub starts: Operand,
    /// The key behind the last that each query sees: `[S]` i32.
    pub ends: Operand,
    /// `[S, SKV]` f32 or bf16; where they are compressed, with any number of columns.
    pub logits: Operand,
    /// What they are like.
    pub form: Logits,
}

/// Checked logits of a prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MqaProblem {
    /// Element types.
    pub format: Format,
    /// The heads of a query, with their dimension in elements.
    pub heads: Heads,
    /// How many queries there are.
    pub queries: u32,
    /// How many keys there are.
    pub keys: u32,
    /// Columns of the logits.
    pub columns: u32,
    /// From one key to the next, in bytes.
    pub kv_pitch: u64,
    /// From the weights of one query to those of the next.
    pub weights_pitch: u32,
    /// From the logits of one query to those of the next.
    pub logits_pitch: u32,
    /// What logits are like.
    pub form: Logits,
    /// f32 or bf16.
    pub logits_type: DType,
}

impl MqaLogits {
    /// Checks every rule of the call. Where there are no queries or no keys, nothing is left to do.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Option<MqaProblem>> {
        let MqaLogits { q, q_scales, kv, kv_scales, weights, starts, ends, logits, form } = self;
        let (format, [codes, scales]) = format_of(q_scales.as_ref());
        q.expect_dtype(&[codes])?;
        kv.expect_dtype(&[codes])?;
        kv_scales.expect_dtype(&[scales])?;
        weights.expect_dtype(&[DType::F32])?;
        starts.expect_dtype(&[DType::I32])?;
        ends.expect_dtype(&[DType::I32])?;
        logits.expect_dtype(&[DType::F32, DType::Bf16])?;
        let [queries, heads, dim] = q.expect_dims("[S, H, D]")?;
        let heads = expect_heads(q, format, heads, dim)?;
        expect_q_scales(q_scales.as_ref(), q, &[queries, heads.heads.into()])?;
        let [keys, kv_dim] = kv.matrix_dims()?;
        if kv_dim != dim {
            return Err(kv.wrong_shape([keys, dim], "with the head dimension of `q`"));
        }
        kv_scales.expect_shape(&[keys], "one for each row of `kv`")?;
        weights.expect_shape(&[queries, heads.heads.into()], "one for each head of `q`")?;
        starts.expect_shape(&[queries], "one for each query")?;
        ends.expect_shape(&[queries], "one for each query")?;
        let [rows, columns] = logits.matrix_dims()?;
        if rows != queries || (*form != Logits::Compressed && columns != keys) {
            return Err(logits.wrong_shape([queries, keys], "a row for each query, a column for each key"));
        }
        for operand in [kv, kv_scales, weights, starts, ends, logits] {
            operand.expect_device(q)?;
        }
        if queries == 0 || keys == 0 || columns == 0 {
            return Ok(None);
        }
        let (logits_pitch, memory) = logits.plain_rows()?;
        let q_memory = q.expect_contiguous_rows()?;
        let (kv_pitch, kv_memory) = kv.tma_rows()?;
        let scales_memory = kv_scales.as_row().tma_rows()?.1;
        let (weights_pitch, weights_memory) = weights.plain_rows()?;
        let bounds = [starts, ends].map(|bounds| bounds.as_row().plain_rows());
        let [starts_memory, ends_memory] = bounds;
        for (input, input_memory) in [
            (q, q_memory),
            (kv, kv_memory),
            (kv_scales, scales_memory),
            (weights, weights_memory),
            (starts, starts_memory?.1),
            (ends, ends_memory?.1),
        ] {
            logits.expect_apart(&memory, input, &input_memory)?;
        }
        if let Some(scales) = q_scales {
            logits.expect_apart(&memory, scales, &scales.expect_contiguous()?)?;
        }
        Ok(Some(MqaProblem {
            format,
            heads,
            // expect_dims and matrix_dims have bounded them by i32::MAX, plain_rows pitches by u32::MAX.
            queries: queries as u32,
            keys: keys as u32,
            columns: columns as u32,
            kv_pitch,
            weights_pitch: weights_pitch as u32,
            logits_pitch: logits_pitch as u32,
            form: *form,
            logits_type: logits.dtype,
        }))
    }
}

/// The arguments of `fp8_paged_mqa_logits` and of `fp4_paged_mqa_logits`.
#[derive(Clone, Copy, Debug)]
pub struct PagedMqaLogits {
    /// `[B, N, H, D]` e4m3, contiguous; of FP4 `[B, N, H, D / 2]` bytes.
    pub q: Operand,
    /// The scales of `q` where all is FP4: `[B, N, H]` words, contiguous.
    pub q_scales: Option<Operand>,
    /// Pages, `[pages, keys, 1, D + 4]` bytes: of each page first the elements of all keys, then their scales, which
    /// are f32. Of FP4 `[pages, keys, 1, D / 2 + 4]`, and scales are words.
    pub kv_cache: Operand,
    /// `[B * N, H]` f32.
    pub weights: Operand,
    /// `[B]` or `[B, N]` i32.
    pub context_lens: Operand,
    /// The pages of each sequence: `[B, pages]` i32.
    pub block_table: Operand,
    /// What the function of metadata gave: `[parts + 1, 2]` i32, contiguous.
    pub schedule: Operand,
    /// `[B * N, columns]` f32 or bf16.
    pub logits: Operand,
    /// Whether logits behind a query's length become -inf.
    pub clean: bool,
}

/// Checked logits of keys in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PagedMqaProblem {
    /// Element types.
    pub format: Format,
    /// The heads of a query, with their dimension in elements.
    pub heads: Heads,
    /// How many sequences there are.
    pub sequences: u32,
    /// Queries of each.
    pub next: u32,
    /// Whether each of those has a length.
    pub lengths_per_query: bool,
    /// Keys of a page.
    pub page_keys: u32,
    /// How many pages there are.
    pub pages: u32,
    /// From one page to the next, in bytes.
    pub page_pitch: u64,
    /// Pages that the table names of a sequence.
    pub table_pages: u32,
    /// From the pages of one sequence to those of the next.
    pub table_pitch: u32,
    /// From the weights of one query to those of the next.
    pub weights_pitch: u32,
    /// Columns of the logits.
    pub columns: u32,
    /// From the logits of one query to those of the next.
    pub logits_pitch: u32,
    /// Parts of the schedule: blocks of the grid.
    pub parts: u32,
    /// Whether logits behind a query's length become -inf.
    pub clean: bool,
    /// f32 or bf16.
    pub logits_type: DType,
}

impl PagedMqaLogits {
    /// Checks every rule of the call. Where there are no logits, nothing is left to do.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Option<PagedMqaProblem>> {
        let PagedMqaLogits {
            q,
            q_scales,
            kv_cache,
            weights,
            context_lens,
            block_table,
            schedule,
            logits,
            clean,
        } = self;
        let (format, [codes, _]) = format_of(q_scales.as_ref());
        q.expect_dtype(&[codes])?;
        kv_cache.expect_dtype(&[codes])?;
        weights.expect_dtype(&[DType::F32])?;
        block_table.expect_dtype(&[DType::I32])?;
        logits.expect_dtype(&[DType::F32, DType::Bf16])?;
        let [sequences, next, heads, dim] = q.expect_dims("[B, N, H, D]")?;
        let heads = expect_heads(q, format, heads, dim)?;
        if next < 1 {
            return Err(q.wrong_shape("[B, 1 or more, H, D]", "the queries of a sequence"));
        }
        let [pages, page_keys, one, bytes] = kv_cache.expect_dims("[pages, keys, 1, bytes of a key]")?;
        let is_page = PAGE_SIZES.iter().any(|&size| page_keys == i64::from(size));
        if !is_page || one != 1 || bytes != dim + 4 {
            return Err(kv_cache.wrong_shape(
                format!("[pages, {}, 1, {}]", one_of(&PAGE_SIZES), dim + 4),
                "the bytes of a key of `q`'s head dimension and of its scale",
            ));
        }
        let queries = sequences * next;
        expect_q_scales(q_scales.as_ref(), q, &[sequences, next, heads.heads.into()])?;
        weights.expect_shape(&[queries, heads.heads.into()], "one for each head of `q`")?;
        let lengths_per_query = expect_lengths(context_lens, sequences, Some(next))?.1;
        let [rows, table_pages] = block_table.matrix_dims()?;
        if rows != sequences {
            return Err(block_table.wrong_shape([sequences, table_pages], "a row for each sequence"));
        }
        let parts = expect_schedule(schedule)?;
        let [rows, columns] = logits.matrix_dims()?;
        if rows != queries {
            return Err(logits.wrong_shape([queries, columns], "a row for each query"));
        }
        for operand in [kv_cache, weights, context_lens, block_table, schedule, logits] {
            operand.expect_device(q)?;
        }
        if queries == 0 || columns == 0 {
            return Ok(None);
        }
        let (logits_pitch, memory) = logits.plain_rows()?;
        let q_memory = q.expect_contiguous_rows()?;
        let (page_pitch, cache_memory) = expect_pages(kv_cache)?;
        let (weights_pitch, weights_memory) = weights.plain_rows()?;
        let (table_pitch, table_memory) = match table_pages {
            0 => (0, None),
            _ => block_table.plain_rows().map(|(pitch, memory)| (pitch, Some(memory)))?,
        };
        let inputs = [
            (q, Some(q_memory)),
            (kv_cache, cache_memory),
            (weights, Some(weights_memory)),
            (context_lens, Some(context_lens.expect_contiguous()?)),
            (block_table, table_memory),
            (schedule, Some(schedule.expect_contiguous()?)),
        ];
        for (input, input_memory) in
            inputs.iter().filter_map(|(input, memory)| Some((input, memory.as_ref()?)))
        {
            logits.expect_apart(&memory, input, input_memory)?;
        }
        if let Some(scales) = q_scales {
            logits.expect_apart(&memory, scales, &scales.expect_contiguous()?)?;
        }
        Ok(Some(PagedMqaProblem {
            format,
            heads,
            sequences: sequences as u32,
            next: next as u32,
            lengths_per_query,
            page_keys: page_keys as u32,
            pages: pages as u32,
            page_pitch,
            table_pages: table_pages as u32,
            table_pitch: table_pitch as u32,
            weights_pitch: weights_pitch as u32,
            columns: columns as u32,
            logits_pitch: logits_pitch as u32,
            parts,
            clean: *clean,
            logits_type: logits.dtype,
        }))
    }
}

/// The arguments of `get_paged_mqa_logits_metadata`.
#[derive(Clone, Copy, Debug)]
pub struct PagedMqaSchedule {
    /// `[B]` or `[B, N]` i32.
    pub context_lens: Operand,
    /// The result: `[parts + 1, 2]` i32, contiguous.
    pub schedule: Operand,
}

/// A checked schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScheduleProblem {
    /// How many sequences there are.
    pub sequences: u32,
    /// Queries of each that have a length, or 1.
    pub next: u32,
    /// Whether each of those has a length.
    pub lengths_per_query: bool,
    /// How many parts there are.
    pub parts: u32,
}

impl PagedMqaSchedule {
    /// Checks every rule of the call.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<ScheduleProblem> {
        let PagedMqaSchedule { context_lens, schedule } = self;
        let [sequences, ..] = context_lens.dims;
        let (next, lengths_per_query) = expect_lengths(context_lens, sequences, None)?;
        let parts = expect_schedule(schedule)?;
        schedule.expect_device(context_lens)?;
        let memory = schedule.expect_contiguous()?;
        if sequences > 0 {
            schedule.expect_apart(&memory, context_lens, &context_lens.expect_contiguous()?)?;
        }
        Ok(ScheduleProblem { sequences: sequences as u32, next: next as u32, lengths_per_query, parts })
    }
}

/// Element types: those of codes and of keys' scales. Only FP4 has scales of queries.
fn format_of(q_scales: Option<&Operand>) -> (Format, [DType; 2]) {
    match q_scales {
        None => (Format::Fp8, [DType::E4m3, DType::F32]),
        Some(_) => (Format::Fp4, [DType::U8, DType::I32]),
    }
}

/// Scales of queries: a word for each head.
fn expect_q_scales(scales: Option<&Operand>, q: &Operand, shape: &[i64]) -> Result<()> {
    let Some(scales) = scales else { return Ok(()) };
    scales.expect_dtype(&[DType::I32])?;
    scales.expect_shape(shape, "one for each head of `q`")?;
    scales.expect_device(q)
}

/// The heads of a query of `dim` elements or, of FP4, bytes.
fn expect_heads(q: &Operand, format: Format, heads: i64, dim: i64) -> Result<Heads> {
    let is_known = heads % i64::from(HEAD_STEP) == 0 && (1..=i64::from(MAX_HEADS)).contains(&heads);
    let dims = format.dims();
    match (is_known, dims.iter().copied().find(|&known| i64::from(format.row_bytes(known)) == dim)) {
        (true, Some(dim)) => Ok(Heads { heads: heads as u32, dim }),
        (false, _) => {
            let expected = format!("a multiple of {HEAD_STEP} heads up to {MAX_HEADS}");
            Err(q.wrong_shape(expected, "for which there are kernels"))
        }
        (_, None) => {
            let expected = format!("a head dimension of {}", one_of(dims));
            Err(q.wrong_shape(expected, "for which there are kernels"))
        }
    }
}

/// Numbers in words: "16, 32 or 64".
fn one_of(numbers: &[u32]) -> String {
    let words: Vec<String> = numbers.iter().map(u32::to_string).collect();
    match words.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => words.concat(),
    }
}

/// How many queries of a sequence have a length, and whether there is one for each.
fn expect_lengths(lengths: &Operand, sequences: i64, next: Option<i64>) -> Result<(i64, bool)> {
    lengths.expect_dtype(&[DType::I32])?;
    match (lengths.rank, next) {
        (1, _) => lengths.expect_shape(&[sequences], "one for each sequence").map(|()| (1, false)),
        (2, Some(next)) => {
            lengths.expect_shape(&[sequences, next], "one for each query").map(|()| (next, true))
        }
        (2, None) => {
            let [_, next] = lengths.matrix_dims()?;
            if next < 1 {
                return Err(lengths.wrong_shape("[B, 1 or more]", "a length for each query of a sequence"));
            }
            Ok((next, true))
        }
        _ => Err(Error::Rank {
            argument: lengths.name,
            expected: "[B] or [B, N]".to_owned(),
            found: format!("{} dimensions, {:?}", lengths.rank, lengths.dims()),
        }),
    }
}

/// The parts of a schedule.
fn expect_schedule(schedule: &Operand) -> Result<u32> {
    schedule.expect_dtype(&[DType::I32])?;
    let [rows, columns] = schedule.matrix_dims()?;
    if columns != 2 || !(2..=1 << 16).contains(&rows) {
        return Err(schedule.wrong_shape("[2 to 65536, 2]", "the beginning of each part, and the end"));
    }
    Ok(rows as u32 - 1)
}

/// The bytes from page to page, and those of all pages; none where there are no pages.
fn expect_pages(cache: &Operand) -> Result<(u64, Option<Footprint>)> {
    let [pages, keys, _, bytes] = cache.dims;
    let [pitch, key, _, byte] = cache.strides;
    let page = keys * bytes;
    if key != bytes || byte != 1 || (pages > 1 && pitch < page) {
        return Err(cache.wrong_strides(format!("pages of {page} bytes without gaps")));
    }
    let rows =
        Operand::matrix(cache.name, cache.dtype, [pages, page], [pitch, 1], cache.address, cache.device);
    match pages {
        0 => Ok((page as u64, None)),
        _ => rows.tma_rows().map(|(pitch, memory)| (pitch, Some(memory))),
    }
}
