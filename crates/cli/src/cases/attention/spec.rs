//! Sizes of attention (MQA) logits, and which keys a query sees.

use std::fmt;
use std::ops::Range;

use oxigemm::check::Logits;
use oxigemm::{DType, random};
use oxigemm_kernels::attention::Format;

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
    pub format: Format,
    pub heads: usize,
    pub dim: usize,
    pub queries: usize,
    pub keys: usize,
    pub ranges: Ranges,
    pub form: Logits,
    pub dtype: DType,
    /// Whether operands end where their memory does.
    pub at_end: bool,
    pub seed: u64,
}

/// Logits of keys in pages.
#[derive(Clone, Debug)]
pub struct PagedSpec {
    pub format: Format,
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
    /// Whether operands end where their memory does.
    pub at_end: bool,
    pub seed: u64,
}

/// Bytes of a head.
pub(super) fn row_bytes(format: Format, dim: usize) -> usize {
    format.row_bytes(dim as u32) as usize
}

/// What names of cases begin with.
fn prefix(format: Format) -> &'static str {
    match format {
        Format::Fp8 => "",
        Format::Fp4 => "fp4 ",
    }
}

impl PrefillSpec {
    pub fn new([heads, dim]: [usize; 2], [queries, keys]: [usize; 2], ranges: Ranges) -> PrefillSpec {
        let (form, dtype) = (Logits::Clean, DType::F32);
        let format = Format::Fp8;
        PrefillSpec { format, heads, dim, queries, keys, ranges, form, dtype, at_end: false, seed: 1 }
    }

    pub(super) fn range(&self, query: usize) -> [i32; 2] {
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
    pub(super) fn seen(&self, query: usize) -> Range<usize> {
        let [start, end] = self.range(query).map(|bound| (bound.max(0) as usize).min(self.keys));
        start..end.max(start)
    }

    /// Pairs of a query and a key that it sees.
    pub fn pairs(&self) -> f64 {
        (0..self.queries).map(|query| self.seen(query).len() as f64).sum()
    }

    /// Bytes that cross the memory bus at least once.
    pub fn bytes(&self) -> f64 {
        let PrefillSpec { heads, queries, keys, .. } = *self;
        let logits = queries * keys * self.dtype.size();
        let row = row_bytes(self.format, self.dim) + 4;
        (queries * heads * row + keys * row + queries * 8 + logits) as f64
    }
}

impl fmt::Display for PrefillSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PrefillSpec { format, heads, dim, queries, keys, ranges, form, dtype, at_end, seed } = self;
        write!(
            f,
            "{}mqa sq{queries} sk{keys} h{heads} d{dim} {ranges:?} {form:?} {dtype}{}",
            prefix(*format),
            place(*at_end)
        )?;
        write!(f, " seed {seed}")
    }
}

impl PagedSpec {
    pub fn new([heads, dim]: [usize; 2], next: usize, lengths: Vec<i32>) -> PagedSpec {
        let columns = lengths.iter().copied().max().unwrap_or(0).max(1) as usize;
        PagedSpec {
            format: Format::Fp8,
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
            at_end: false,
            seed: 1,
        }
    }

    pub fn sequences(&self) -> usize {
        if self.per_query { self.lengths.len() / self.next } else { self.lengths.len() }
    }

    pub(super) fn queries(&self) -> usize {
        self.sequences() * self.next
    }

    pub(super) fn table_pages(&self) -> usize {
        self.columns.div_ceil(self.page_keys)
    }

    /// The most keys that a query of a sequence sees.
    fn longest(&self, sequence: usize) -> usize {
        (0..self.next).map(|n| self.seen(sequence * self.next + n)).max().unwrap_or(0)
    }

    /// Pages of each sequence.
    fn used_pages(&self) -> impl Iterator<Item = usize> {
        (0..self.sequences()).map(|sequence| self.longest(sequence).div_ceil(self.page_keys))
    }

    /// Pages of the cache: those of all sequences, and at least a few.
    pub(super) fn pages(&self) -> usize {
        self.used_pages().sum::<usize>().max(3)
    }

    /// The block table: every page belongs to one place of one sequence, as in an engine. Pages drawn with repetition
    /// would be read from the L2 cache. What lies behind a sequence's last page is 0.
    pub(super) fn table(&self) -> Vec<i32> {
        let mut free: Vec<i32> = (0..self.pages() as i32).collect();
        let mut table = vec![0; self.sequences() * self.table_pages()];
        for (sequence, used) in self.used_pages().enumerate() {
            for entry in &mut table[sequence * self.table_pages()..][..used] {
                let drawn = random::bits(self.seed + 3, free.len() as u64) % free.len() as u64;
                *entry = free.swap_remove(drawn as usize);
            }
        }
        if self.wild {
            let nowhere = [i32::MIN, -1, self.pages() as i32, i32::MAX];
            for (i, entry) in table.iter_mut().enumerate() {
                let bits = random::bits(self.seed + 4, i as u64);
                *entry = if bits >> 61 == 0 { nowhere[bits as usize % 4] } else { *entry };
            }
        }
        table
    }

    /// How many keys a query sees.
    pub(super) fn seen(&self, query: usize) -> usize {
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
        let keys: usize = (0..self.sequences()).map(|sequence| self.longest(sequence)).sum();
        let logits = self.pairs() * self.dtype.size() as f64;
        let row = row_bytes(self.format, self.dim) + 4;
        (keys * row + self.queries() * self.heads * row) as f64 + logits
    }
}

impl fmt::Display for PagedSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PagedSpec { heads, dim, next, per_query, page_keys, columns, wild, clean, .. } = self;
        let PagedSpec { dtype, at_end, seed, .. } = self;
        let (prefix, sequences) = (prefix(self.format), self.sequences());
        write!(f, "{prefix}paged_mqa b{sequences} n{next} h{heads} d{dim} pages of {page_keys}")?;
        write!(
            f,
            " {columns} columns, per query {per_query}, wild {wild}, clean {clean}, {dtype}{} seed {seed}",
            place(*at_end)
        )
    }
}

fn place(at_end: bool) -> &'static str {
    if at_end { " at the end of memory" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::attention::AttentionAnchor;

    /// The pages of all sequences, one after another.
    fn read(spec: &PagedSpec) -> Vec<i32> {
        let table = spec.table();
        let rows = table.chunks(spec.table_pages()).zip(spec.used_pages());
        rows.flat_map(|(row, used)| row[..used].to_vec()).collect()
    }

    #[test]
    fn every_page_of_a_benchmark_is_read_once() {
        let cases = AttentionAnchor::fp8().cases.iter().filter_map(|case| case.paged());
        let odd = PagedSpec { page_keys: 16, ..PagedSpec::new([64, 128], 2, vec![0, 1, 16, 17, 300, -5]) };
        let per_query = PagedSpec { per_query: true, ..PagedSpec::new([64, 128], 2, vec![3, 70, 700, 1]) };
        for spec in cases.chain([odd, per_query]) {
            let mut pages = read(&spec);
            assert!(pages.windows(2).any(|pair| pair[1] != pair[0] + 1), "{spec}: pages in order");
            pages.sort_unstable();
            assert!(pages.iter().copied().eq(0..spec.pages() as i32), "{spec}: a page twice, or never");
        }
    }

    #[test]
    fn a_wild_table_names_pages_that_do_not_exist() {
        let spec = PagedSpec { wild: true, ..PagedSpec::new([64, 128], 1, vec![9000; 4]) };
        let outside = read(&spec).iter().filter(|page| !(0..spec.pages() as i32).contains(page)).count();
        assert!((10..200).contains(&outside), "{outside}");
    }
}
