//! Attention (MQA) logits: random operands, the call, and whether its result is right.

mod rows;
mod spec;

use oxigemm::check::Logits;
use oxigemm::metrics::calc_diff;
use oxigemm::{
    DType, Device, GemmOptions, Tensor, fp4_mqa_logits, fp4_paged_mqa_logits, fp8_mqa_logits,
    fp8_paged_mqa_logits, get_paged_mqa_logits_metadata, random, reference,
};
use oxigemm_kernels::attention::Format;

use oxigemm_testkit::memory::dense;
use oxigemm_testkit::{Failure, UNQUANTIZED_LIMIT, Verdict};
use rows::{Queries, Rows};
use spec::row_bytes;
pub use spec::{PagedSpec, PrefillSpec, Ranges};

/// The largest distance from the logits of the quantized operands, as the peer's tests have it.
const DIFF_LIMIT: f64 = 5e-6;
const DIFF_LIMIT_BF16: f64 = 3e-5;
/// In fewer logits `calc_diff` says little.
const FEW: usize = 512;
/// The part of an element's deviation by which the tensor core may be off.
const ELEMENT_LIMIT: f64 = 0.03;
/// What logits hold before a call.
const UNTOUCHED: f32 = 7.0;
/// Keys that are drawn for pages, at most: the pages of a large cache hold the same ones again, in other memory.
const DISTINCT: usize = 1 << 16;
/// Queries of a large case that are looked at, and keys of each.
const SAMPLED: [usize; 2] = [24, 512];

/// Logits that were compared so far.
#[derive(Default)]
struct Comparison {
    found: Vec<f32>,
    quantized: Vec<f64>,
    exact: Vec<f64>,
    worst: f64,
    /// Whether what must be -inf, or stay as it was, is.
    masked: bool,
    format: Option<Format>,
    rows: usize,
}

impl Comparison {
    fn new() -> Comparison {
        Comparison { masked: true, ..Comparison::default() }
    }

    /// Compares the logit of a query and a key.
    fn add(&mut self, queries: &Queries, query: usize, keys: &Rows, key: usize, found: f32, dtype: DType) {
        let weights = queries.weights(query);
        let q = queries.quantized(query);
        let (k, scale) = keys.quantized(key);
        self.format = Some(keys.format);
        let quantized = reference::mqa_logit(&q, weights, &k, scale);
        let norm = |x: &[f32]| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        // Errors of heads are independent of each other.
        let part = ELEMENT_LIMIT * f64::from(scale) * norm(&k) / (k.len() as f64).sqrt();
        let heads = q.chunks(k.len()).zip(weights).map(|(q, &w)| (part * norm(q) * f64::from(w)).powi(2));
        let rounding = if dtype == DType::Bf16 { 1.0 / 256.0 } else { 1e-5 };
        let allowed = heads.sum::<f64>().sqrt() + rounding * quantized.abs();
        let error = (f64::from(found) - quantized).abs() / allowed;
        // NaN is worse than anything.
        self.worst = if error > self.worst || error.is_nan() { error } else { self.worst };
        self.exact.push(reference::mqa_logit(queries.exact(query), weights, keys.exact(key), 1.0));
        self.quantized.push(quantized);
        self.found.push(found);
    }

    /// Compares what lies outside of what a query sees.
    fn add_outside(&mut self, found: &[f32], clean: bool) {
        let expected = if clean { f32::NEG_INFINITY } else { UNTOUCHED };
        self.masked &= found.iter().all(|&x| x == expected);
    }

    fn verdict(&self, dtype: DType) -> Verdict {
        let diff = calc_diff(&self.found, &self.quantized);
        let diff_unquantized = calc_diff(&self.found, &self.exact);
        let limit = if dtype == DType::Bf16 { DIFF_LIMIT_BF16 } else { DIFF_LIMIT };
        // What casting costs differs from query to query.
        let unquantized = if self.rows < SAMPLED[0] { 3.0 * UNQUANTIZED_LIMIT } else { UNQUANTIZED_LIMIT };
        // Two operands of FP4.
        let unquantized = if self.format == Some(Format::Fp4) { 32.0 * unquantized } else { unquantized };
        let close = self.found.len() < FEW || (diff < limit && diff_unquantized < unquantized);
        let right = self.masked && close && self.worst <= 1.0;
        Verdict { diff, diff_unquantized, worst_element: self.worst, rows: self.rows, right }
    }
}

/// Some of `0..count`, at least the first and the last.
fn sample(seed: u64, count: usize, most: usize) -> Vec<usize> {
    if count <= most {
        return (0..count).collect();
    }
    let drawn = (2..most as u64).map(|i| (random::bits(seed, i) % count as u64) as usize);
    [0, count - 1].into_iter().chain(drawn).collect()
}

/// A prefill with its data.
pub struct PrefillHost {
    pub spec: PrefillSpec,
    queries: Queries,
    keys: Rows,
}

/// The same on a device.
pub struct PrefillOperands {
    form: Logits,
    pub q: Tensor,
    /// Of FP4.
    pub q_scales: Option<Tensor>,
    pub kv: Tensor,
    pub kv_scales: Tensor,
    pub weights: Tensor,
    pub bounds: [Tensor; 2],
    pub logits: Tensor,
}

impl PrefillHost {
    pub fn draw(spec: PrefillSpec) -> PrefillHost {
        let queries = Queries::draw(spec.format, spec.seed, spec.queries, [spec.heads, spec.dim]);
        let keys = Rows::draw(spec.format, spec.seed + 2, spec.keys, spec.dim);
        PrefillHost { spec, queries, keys }
    }

    pub fn upload(&self, device: &Device) -> Result<PrefillOperands, Failure> {
        let PrefillSpec { format, heads, queries, keys, form, dtype, at_end, .. } = self.spec;
        let row = row_bytes(format, self.spec.dim);
        let upload = Upload { at_end, device };
        let bounds = [0, 1].map(|end| {
            let bounds: Vec<i32> = (0..queries).map(|query| self.spec.range(query)[end]).collect();
            upload.integers(&bounds, &[queries])
        });
        let [starts, ends] = bounds;
        Ok(PrefillOperands {
            form,
            q: upload.codes(&self.queries.rows, &[queries, heads, row])?,
            q_scales: upload.q_scales(&self.queries.rows, &[queries, heads])?,
            kv: upload.codes(&self.keys, &[keys, row])?,
            kv_scales: upload.bytes(self.keys.scale_type(), &self.keys.scale_bytes(0..keys), &[keys])?,
            weights: upload.floats(DType::F32, &self.queries.weights, &[queries, heads])?,
            bounds: [starts?, ends?],
            logits: upload.untouched(dtype, [queries, keys])?,
        })
    }

    /// Looks at some queries whole, and at some of their logits closely.
    pub fn judge(&self, operands: &PrefillOperands) -> Result<Verdict, Failure> {
        let spec = &self.spec;
        let (clean, mut comparison) = (spec.form == Logits::Clean, Comparison::new());
        for query in sample(spec.seed + 5, spec.queries, SAMPLED[0]) {
            let found = operands.logits.select(query)?.to_vec_f32()?;
            let seen = spec.seen(query);
            let at = if spec.form == Logits::Compressed { 0..seen.len() } else { seen.clone() };
            comparison.add_outside(&found[..at.start], clean);
            comparison.add_outside(&found[at.end..], clean);
            comparison.rows += 1;
            for nth in sample(spec.seed + query as u64, seen.len(), SAMPLED[1]) {
                let (key, found) = (seen.start + nth, found[at.start + nth]);
                comparison.add(&self.queries, query, &self.keys, key, found, spec.dtype);
            }
        }
        Ok(comparison.verdict(spec.dtype))
    }
}

impl PrefillOperands {
    pub fn run(&mut self, options: &GemmOptions) -> oxigemm::Result<()> {
        let [starts, ends] = &self.bounds;
        let (keys, bounds) = ((&self.kv, &self.kv_scales), [starts, ends]);
        let (weights, logits) = (&self.weights, &mut self.logits);
        match &self.q_scales {
            None => fp8_mqa_logits(&self.q, keys, weights, bounds, logits, self.form, options),
            Some(scales) => {
                fp4_mqa_logits((&self.q, scales), keys, weights, bounds, logits, self.form, options)
            }
        }
    }
}

/// Where operands are put.
struct Upload<'a> {
    at_end: bool,
    device: &'a Device,
}

impl Upload<'_> {
    fn bytes(&self, dtype: DType, bytes: &[u8], dims: &[usize]) -> Result<Tensor, Failure> {
        dense(dtype, bytes, dims, self.at_end, self.device)
    }

    fn codes(&self, rows: &Rows, dims: &[usize]) -> Result<Tensor, Failure> {
        self.bytes(rows.code_type(), &rows.codes, dims)
    }

    /// Scales of queries, which those of FP8 have not.
    fn q_scales(&self, rows: &Rows, dims: &[usize]) -> Result<Option<Tensor>, Failure> {
        let has_scales = rows.format == Format::Fp4;
        has_scales.then(|| self.bytes(DType::I32, &rows.scale_bytes(0..rows.len()), dims)).transpose()
    }

    fn floats(&self, dtype: DType, values: &[f32], dims: &[usize]) -> Result<Tensor, Failure> {
        self.bytes(dtype, &dtype.encode(values), dims)
    }

    fn integers(&self, values: &[i32], dims: &[usize]) -> Result<Tensor, Failure> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.bytes(DType::I32, &bytes, dims)
    }

    fn untouched(&self, dtype: DType, [rows, columns]: [usize; 2]) -> Result<Tensor, Failure> {
        self.floats(dtype, &vec![UNTOUCHED; rows * columns], &[rows, columns])
    }
}

/// Sequences with their data.
pub struct PagedHost {
    pub spec: PagedSpec,
    queries: Queries,
    /// The keys of all pages, or of the first ones, which then come again.
    keys: Rows,
    table: Vec<i32>,
}

/// The same on a device.
pub struct PagedOperands {
    clean: bool,
    pub q: Tensor,
    /// Of FP4.
    pub q_scales: Option<Tensor>,
    pub kv_cache: Tensor,
    pub weights: Tensor,
    pub lengths: Tensor,
    pub table: Tensor,
    pub schedule: Tensor,
    pub logits: Tensor,
}

impl PagedHost {
    pub fn draw(spec: PagedSpec) -> PagedHost {
        let queries = Queries::draw(spec.format, spec.seed, spec.queries(), [spec.heads, spec.dim]);
        let keys = (spec.pages() * spec.page_keys).min(DISTINCT);
        let keys = Rows::draw(spec.format, spec.seed + 2, keys, spec.dim);
        let table = spec.table();
        PagedHost { spec, queries, keys, table }
    }

    pub fn upload(&self, device: &Device) -> Result<PagedOperands, Failure> {
        let spec = &self.spec;
        let PagedSpec { heads, next, page_keys, columns, .. } = *spec;
        let row = row_bytes(spec.format, spec.dim);
        let (sequences, queries, pages) = (spec.sequences(), spec.queries(), spec.pages());
        let page = |(nth, codes): (usize, &[u8])| {
            let first = nth * page_keys;
            [codes, &self.keys.scale_bytes(first..first + codes.len() / row)].concat()
        };
        let drawn: Vec<Vec<u8>> = self.keys.codes.chunks(page_keys * row).enumerate().map(page).collect();
        let cache = drawn.iter().cycle().take(pages).map(Vec::as_slice).collect::<Vec<_>>().concat();
        let dims = if spec.per_query { vec![sequences, next] } else { vec![sequences] };
        // As many parts as SMs; the reference computes everything whatever they are.
        let parts = spec.parts.unwrap_or_else(|| device.limits().map_or(1, |limits| limits.sms as usize));
        let upload = Upload { at_end: spec.at_end, device };
        Ok(PagedOperands {
            clean: spec.clean,
            q: upload.codes(&self.queries.rows, &[sequences, next, heads, row])?,
            q_scales: upload.q_scales(&self.queries.rows, &[sequences, next, heads])?,
            kv_cache: upload.bytes(self.keys.code_type(), &cache, &[pages, page_keys, 1, row + 4])?,
            weights: upload.floats(DType::F32, &self.queries.weights, &[queries, heads])?,
            lengths: upload.integers(&spec.lengths, &dims)?,
            table: upload.integers(&self.table, &[sequences, spec.table_pages()])?,
            schedule: upload.integers(&vec![0; 2 * (parts + 1)], &[parts + 1, 2])?,
            logits: upload.untouched(spec.dtype, [queries, columns])?,
        })
    }

    /// Looks at some queries whole, and at some of their logits closely.
    pub fn judge(&self, operands: &PagedOperands) -> Result<Verdict, Failure> {
        let spec = &self.spec;
        let (pages, mut comparison) = (spec.pages(), Comparison::new());
        for query in sample(spec.seed + 5, spec.queries(), SAMPLED[0]) {
            let found = operands.logits.select(query)?.to_vec_f32()?;
            let seen = spec.seen(query);
            comparison.add_outside(&found[seen..], spec.clean);
            comparison.rows += 1;
            for key in sample(spec.seed + query as u64, seen, SAMPLED[1]) {
                let page = self.table[query / spec.next * spec.table_pages() + key / spec.page_keys];
                let page = usize::try_from(page).ok().filter(|&page| page < pages);
                match page {
                    None => comparison.masked &= found[key] == 0.0,
                    Some(page) => {
                        let row = (page * spec.page_keys + key % spec.page_keys) % self.keys.len();
                        comparison.add(&self.queries, query, &self.keys, row, found[key], spec.dtype);
                    }
                }
            }
        }
        Ok(comparison.verdict(spec.dtype))
    }
}

impl PagedOperands {
    /// Shares out the keys.
    pub fn plan(&mut self, options: &GemmOptions) -> oxigemm::Result<()> {
        get_paged_mqa_logits_metadata(&self.lengths, &mut self.schedule, options)
    }

    /// Computes the logits.
    pub fn run(&mut self, options: &GemmOptions) -> oxigemm::Result<()> {
        let lists = [&self.lengths, &self.table, &self.schedule];
        let (q, cache, weights, logits) = (&self.q, &self.kv_cache, &self.weights, &mut self.logits);
        match &self.q_scales {
            None => fp8_paged_mqa_logits(q, cache, weights, lists, logits, self.clean, options),
            Some(scales) => {
                fp4_paged_mqa_logits((q, scales), cache, weights, lists, logits, self.clean, options)
            }
        }
    }
}
