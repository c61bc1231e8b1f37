//! Logits of an indexer: drawn operands, their upload, the call, and whether the result is right.

use std::fmt;

use oxigemm::check::Logits;
use oxigemm::metrics::calc_diff;
use oxigemm::{
    DType, Device, GemmOptions, Tensor, fp8_mqa_logits, fp8_paged_mqa_logits, get_paged_mqa_logits_metadata,
    random, reference,
};

use crate::Failure;
use crate::verdict::{UNQUANTIZED_LIMIT, Verdict};

/// The largest distance from the logits of the quantized operands, as the peer's tests have it.
const DIFF_LIMIT: f64 = 5e-6;
const DIFF_LIMIT_BF16: f64 = 3e-5;
/// In fewer logits `calc_diff` says little.
const FEW: usize = 512;
/// The part of a product's deviation by which the tensor core may be off.
const ELEMENT_LIMIT: f64 = 0.03;
/// What logits hold before a call.
const UNTOUCHED: f32 = 7.0;
/// Keys that are drawn for pages, at most: a large cache has the same ones again.
const DISTINCT: usize = 1 << 16;
/// Queries of a large case that are looked at, and keys of each.
const SAMPLED: [usize; 2] = [24, 512];

/// Which keys queries see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranges {
    /// All before the query's own, as if they were the last of the keys.
    Causal,
    /// Any, also outside of the keys and backwards.
    Wild,
}

/// Logits of a prefill.
#[derive(Clone, Copy, Debug)]
pub struct PrefillSpec {
    pub heads: usize,
    pub dim: usize,
    pub queries: usize,
    pub keys: usize,
    pub ranges: Ranges,
    pub form: Logits,
    pub dtype: DType,
    pub seed: u64,
}

/// Logits of keys in pages.
#[derive(Clone, Debug)]
pub struct PagedSpec {
    pub heads: usize,
    pub dim: usize,
    pub next: usize,
    /// One for each sequence, or for each query.
    pub lengths: Vec<i32>,
    pub per_query: bool,
    pub page_keys: usize,
    /// Columns of the logits.
    pub columns: usize,
    /// Whether the table names some pages that do not exist.
    pub wild: bool,
    pub clean: bool,
    pub dtype: DType,
    pub parts: Option<usize>,
    pub seed: u64,
}

impl PrefillSpec {
    pub fn new([heads, dim]: [usize; 2], [queries, keys]: [usize; 2], ranges: Ranges) -> PrefillSpec {
        let (form, dtype) = (Logits::Clean, DType::F32);
        PrefillSpec { heads, dim, queries, keys, ranges, form, dtype, seed: 1 }
    }

    fn range(&self, query: usize) -> [i32; 2] {
        match self.ranges {
            Ranges::Causal => [0, (self.keys + query) as i32 + 1 - self.queries as i32],
            Ranges::Wild => [0, 1].map(|end| {
                let bits = random::bits(self.seed + 77, (2 * query + end) as u64);
                match bits >> 56 {
                    0..8 => i32::MIN,
                    8..16 => i32::MAX,
                    _ => (bits % (self.keys as u64 + 40)) as i32 - 20,
                }
            }),
        }
    }

    /// The keys that a query sees.
    fn seen(&self, query: usize) -> std::ops::Range<usize> {
        let [start, end] = self.range(query).map(|bound| (bound.max(0) as usize).min(self.keys));
        start..end.max(start)
    }

    /// Pairs of a query and a key that it sees.
    pub fn pairs(&self) -> f64 {
        (0..self.queries).map(|query| self.seen(query).len() as f64).sum()
    }

    /// Bytes that cross the memory bus at least once.
    pub fn bytes(&self) -> f64 {
        let PrefillSpec { heads, dim, queries, keys, .. } = *self;
        let logits = queries * keys * self.dtype.size();
        (queries * heads * (dim + 4) + keys * (dim + 4) + queries * 8 + logits) as f64
    }
}

impl fmt::Display for PrefillSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PrefillSpec { heads, dim, queries, keys, ranges, form, dtype, seed } = self;
        write!(f, "mqa sq{queries} sk{keys} h{heads} d{dim} {ranges:?} {form:?} {dtype} seed {seed}")
    }
}

impl PagedSpec {
    pub fn new([heads, dim]: [usize; 2], next: usize, lengths: Vec<i32>) -> PagedSpec {
        let columns = lengths.iter().copied().max().unwrap_or(0).max(1) as usize;
        PagedSpec {
            heads,
            dim,
            next,
            lengths,
            per_query: false,
            page_keys: 64,
            columns,
            wild: false,
            clean: true,
            dtype: DType::F32,
            parts: None,
            seed: 1,
        }
    }

    pub fn sequences(&self) -> usize {
        if self.per_query { self.lengths.len() / self.next } else { self.lengths.len() }
    }

    fn queries(&self) -> usize {
        self.sequences() * self.next
    }

    fn table_pages(&self) -> usize {
        self.columns.div_ceil(self.page_keys)
    }

    /// Pages of the cache: about as many as the sequences have together.
    fn pages(&self) -> usize {
        let keys: usize = self.lengths.iter().map(|&length| length.max(0) as usize).sum();
        (keys / self.page_keys / if self.per_query { self.next } else { 1 }).clamp(3, 1 << 20)
    }

    /// How many keys a query sees.
    fn seen(&self, query: usize) -> usize {
        let length = match self.per_query {
            true => i64::from(self.lengths[query]),
            false => i64::from(self.lengths[query / self.next]) - (self.next - 1 - query % self.next) as i64,
        };
        (length.max(0) as usize).min(self.columns)
    }

    /// Pairs of a query and a key that it sees.
    pub fn pairs(&self) -> f64 {
        (0..self.queries()).map(|query| self.seen(query) as f64).sum()
    }

    /// Bytes that cross the memory bus at least once.
    pub fn bytes(&self) -> f64 {
        let longest = |sequence: usize| (0..self.next).map(|n| self.seen(sequence * self.next + n)).max();
        let keys: usize = (0..self.sequences()).filter_map(longest).sum();
        let logits = self.pairs() * self.dtype.size() as f64;
        (keys * (self.dim + 4) + self.queries() * self.heads * (self.dim + 4)) as f64 + logits
    }
}

impl fmt::Display for PagedSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PagedSpec { heads, dim, next, per_query, page_keys, columns, wild, clean, dtype, seed, .. } =
            self;
        write!(f, "paged_mqa b{} n{next} h{heads} d{dim} pages of {page_keys}", self.sequences())?;
        write!(
            f,
            " {columns} columns, per query {per_query}, wild {wild}, clean {clean}, {dtype} seed {seed}"
        )
    }
}

/// Rows that are quantized with a scale each.
struct Rows {
    dim: usize,
    exact: Vec<f32>,
    codes: Vec<u8>,
    scales: Vec<f32>,
}

impl Rows {
    fn draw(seed: u64, rows: usize, dim: usize) -> Rows {
        let exact = random::normals(seed, rows * dim);
        let scale = |row: &[f32]| row.iter().fold(1e-4f32, |most, x| most.max(x.abs())) / 448.0;
        let scales: Vec<f32> = exact.chunks(dim).map(scale).collect();
        let scaled =
            exact.chunks(dim).zip(&scales).flat_map(|(row, scale)| row.iter().map(move |x| x / scale));
        let codes = DType::E4m3.encode(&scaled.collect::<Vec<f32>>());
        Rows { dim, exact, codes, scales }
    }

    /// How many there are.
    fn len(&self) -> usize {
        self.scales.len()
    }

    fn exact(&self, row: usize) -> &[f32] {
        &self.exact[row * self.dim..][..self.dim]
    }

    fn quantized(&self, row: usize) -> Vec<f32> {
        DType::E4m3.decode(&self.codes[row * self.dim..][..self.dim])
    }
}

/// What all queries are made of.
struct Queries {
    row: usize,
    heads: usize,
    exact: Vec<f32>,
    codes: Vec<u8>,
    weights: Vec<f32>,
}

impl Queries {
    fn draw(seed: u64, queries: usize, heads: usize, dim: usize) -> Queries {
        let exact = random::normals(seed, queries * heads * dim);
        let codes = DType::E4m3.encode(&exact);
        let weights = random::normals(seed + 1, queries * heads);
        Queries { row: heads * dim, heads, exact, codes, weights }
    }

    fn weights(&self, query: usize) -> &[f32] {
        &self.weights[query * self.heads..][..self.heads]
    }
}

/// Logits that were compared so far.
#[derive(Default)]
struct Comparison {
    found: Vec<f32>,
    quantized: Vec<f64>,
    exact: Vec<f64>,
    worst: f64,
    /// Whether what must be -inf, or stay as it was, is.
    masked: bool,
    rows: usize,
}

impl Comparison {
    fn new() -> Comparison {
        Comparison { masked: true, ..Comparison::default() }
    }

    /// Compares the logit of a query and a key.
    fn add(&mut self, queries: &Queries, query: usize, keys: &Rows, key: usize, found: f32, dtype: DType) {
        let (row, weights) = (queries.row, queries.weights(query));
        let q = DType::E4m3.decode(&queries.codes[query * row..][..row]);
        let (k, scale) = (keys.quantized(key), keys.scales[key]);
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
        self.exact.push(reference::mqa_logit(
            &queries.exact[query * row..][..row],
            weights,
            keys.exact(key),
            1.0,
        ));
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
    pub kv: Tensor,
    pub kv_scales: Tensor,
    pub weights: Tensor,
    pub bounds: [Tensor; 2],
    pub logits: Tensor,
}

impl PrefillHost {
    pub fn draw(spec: PrefillSpec) -> PrefillHost {
        let queries = Queries::draw(spec.seed, spec.queries, spec.heads, spec.dim);
        let keys = Rows::draw(spec.seed + 2, spec.keys, spec.dim);
        PrefillHost { spec, queries, keys }
    }

    pub fn upload(&self, device: &Device) -> Result<PrefillOperands, Failure> {
        let PrefillSpec { heads, dim, queries, keys, form, dtype, .. } = self.spec;
        let bounds = [0, 1].map(|end| {
            let bounds: Vec<i32> = (0..queries).map(|query| self.spec.range(query)[end]).collect();
            Tensor::from_slice(&bounds, &[queries], device)
        });
        let [starts, ends] = bounds;
        Ok(PrefillOperands {
            form,
            q: Tensor::from_bytes(DType::E4m3, &self.queries.codes, &[queries, heads, dim], device)?,
            kv: Tensor::from_bytes(DType::E4m3, &self.keys.codes, &[keys, dim], device)?,
            kv_scales: Tensor::from_slice(&self.keys.scales, &[keys], device)?,
            weights: Tensor::from_slice(&self.queries.weights, &[queries, heads], device)?,
            bounds: [starts?, ends?],
            logits: untouched(dtype, [queries, keys], device)?,
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
        let keys = (&self.kv, &self.kv_scales);
        fp8_mqa_logits(&self.q, keys, &self.weights, [starts, ends], &mut self.logits, self.form, options)
    }
}

fn untouched(dtype: DType, [rows, columns]: [usize; 2], device: &Device) -> Result<Tensor, Failure> {
    Ok(Tensor::from_f32(dtype, &vec![UNTOUCHED; rows * columns], &[rows, columns], device)?)
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
    pub kv_cache: Tensor,
    pub weights: Tensor,
    pub lengths: Tensor,
    pub table: Tensor,
    pub schedule: Tensor,
    pub logits: Tensor,
}

impl PagedHost {
    pub fn draw(spec: PagedSpec) -> PagedHost {
        let queries = Queries::draw(spec.seed, spec.queries(), spec.heads, spec.dim);
        let pages = spec.pages();
        let keys = Rows::draw(spec.seed + 2, (pages * spec.page_keys).min(DISTINCT), spec.dim);
        let entry = |i: u64| match (spec.wild, random::bits(spec.seed + 3, i)) {
            (true, bits) if bits >> 61 == 0 => [i32::MIN, -1, pages as i32, i32::MAX][bits as usize % 4],
            (_, bits) => (bits % pages as u64) as i32,
        };
        let table = (0..(spec.sequences() * spec.table_pages()) as u64).map(entry).collect();
        PagedHost { spec, queries, keys, table }
    }

    pub fn upload(&self, device: &Device) -> Result<PagedOperands, Failure> {
        let spec = &self.spec;
        let PagedSpec { heads, dim, next, page_keys, columns, .. } = *spec;
        let (sequences, queries, pages) = (spec.sequences(), spec.queries(), spec.pages());
        let page = |(codes, scales): (&[u8], &[f32])| [codes, &DType::F32.encode(scales)].concat();
        let codes = self.keys.codes.chunks(page_keys * dim);
        let drawn: Vec<Vec<u8>> = codes.zip(self.keys.scales.chunks(page_keys)).map(page).collect();
        let cache = drawn.iter().cycle().take(pages).map(Vec::as_slice).collect::<Vec<_>>().concat();
        let dims = if spec.per_query { vec![sequences, next] } else { vec![sequences] };
        // As many parts as multiprocessors; the reference computes everything whatever they are.
        let parts = spec.parts.unwrap_or_else(|| device.limits().map_or(1, |limits| limits.sms as usize));
        Ok(PagedOperands {
            clean: spec.clean,
            q: Tensor::from_bytes(DType::E4m3, &self.queries.codes, &[sequences, next, heads, dim], device)?,
            kv_cache: Tensor::from_bytes(DType::E4m3, &cache, &[pages, page_keys, 1, dim + 4], device)?,
            weights: Tensor::from_slice(&self.queries.weights, &[queries, heads], device)?,
            lengths: Tensor::from_slice(&spec.lengths, &dims, device)?,
            table: Tensor::from_slice(&self.table, &[sequences, spec.table_pages()], device)?,
            schedule: Tensor::zeros(DType::I32, &[parts + 1, 2], device)?,
            logits: untouched(spec.dtype, [queries, columns], device)?,
        })
    }

    /// Looks at some queries whole, and at some of their logits closely.
    pub fn judge(&self, operands: &PagedOperands) -> Result<Verdict, Failure> {
        let spec = &self.spec;
        let mut comparison = Comparison::new();
        for query in sample(spec.seed + 5, spec.queries(), SAMPLED[0]) {
            let found = operands.logits.select(query)?.to_vec_f32()?;
            let seen = spec.seen(query);
            comparison.add_outside(&found[seen..], spec.clean);
            comparison.rows += 1;
            for key in sample(spec.seed + query as u64, seen, SAMPLED[1]) {
                let page = self.table[query / spec.next * spec.table_pages() + key / spec.page_keys];
                let page = usize::try_from(page).ok().filter(|&page| page < spec.pages());
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
        let logits = &mut self.logits;
        fp8_paged_mqa_logits(&self.q, &self.kv_cache, &self.weights, lists, logits, self.clean, options)
    }
}
