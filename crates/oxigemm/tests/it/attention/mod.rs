//! Logits of an indexer: the kernels in the simulator against the reference, whatever the schedule and the numbers.

mod any_heads;
mod any_next;
mod fp4;
mod layouts;
mod lengths;
mod odd;
mod refused;

use crate::common::{same_bits, schedules, some_schedules};
use oxigemm::check::Logits;
use oxigemm::metrics::calc_diff;
use oxigemm::{
    DType, Device, GemmOptions, Sim, Tensor, fp4_paged_mqa_logits, fp8_mqa_logits, fp8_paged_mqa_logits,
    get_paged_mqa_logits_metadata, random,
};

/// What is outside of a range holds this until it is written: more than any logit is.
const UNTOUCHED: f32 = 1048576.0;

fn integers(seed: u64, count: usize, from: i32, to: i32) -> Vec<i32> {
    let number = |i| from + (random::bits(seed, i) % (to - from) as u64) as i32;
    (0..count as u64).map(number).collect()
}

fn fp8(seed: u64, dims: &[usize], device: &Device) -> Tensor {
    Tensor::from_f32(DType::E4m3, &random::normals(seed, dims.iter().product()), dims, device).unwrap()
}

fn positives(seed: u64, count: usize) -> Vec<f32> {
    random::normals(seed, count).iter().map(|x| x.abs() + 0.1).collect()
}

/// A matrix with as many elements behind each row, all bytes of which are 0xff: a NaN, or -1.
fn rows(dtype: DType, bytes: &[u8], [rows, columns]: [usize; 2], gap: usize, device: &Device) -> Tensor {
    let (width, pitch) = (columns * dtype.size(), (columns + gap) * dtype.size());
    let mut all = vec![0xff; rows * pitch];
    for (to, from) in all.chunks_mut(pitch.max(1)).zip(bytes.chunks(width.max(1))) {
        to[..width].copy_from_slice(from);
    }
    let room = Tensor::from_bytes(dtype, &all, &[rows, columns + gap], device).unwrap();
    room.narrow(1, 0, columns).unwrap()
}

/// A matrix of weights.
fn weights(values: &[f32], dims: [usize; 2], gap: usize, device: &Device) -> Tensor {
    rows(DType::F32, &DType::F32.encode(values), dims, gap, device)
}

/// What has room for logits: their matrix, and that with the gaps behind its rows. All is untouched.
fn room(dtype: DType, [rows, columns]: [usize; 2], gap: usize, device: &Device) -> [Tensor; 2] {
    let untouched = vec![UNTOUCHED; rows * (columns + gap)];
    let room = Tensor::from_f32(dtype, &untouched, &[rows, columns + gap], device).unwrap();
    [room.narrow(1, 0, columns).unwrap(), room]
}

/// Numbers of a query, a head or a key that are something else than drawn.
#[derive(Clone, Copy)]
pub enum Odd {
    /// A code of a query's first head is NaN.
    Query(usize),
    /// A code of a key.
    Key(usize),
    /// The scale of a key.
    Scale(usize, f32),
    /// The weight of a query's head.
    Weight([usize; 2], f32),
}

pub struct Prefill {
    pub heads: usize,
    pub dim: usize,
    pub ranges: Vec<[i32; 2]>,
    pub keys: usize,
    pub form: Logits,
    pub columns: usize,
    pub dtype: DType,
    /// Elements between rows: of keys 16 times as many.
    pub gap: usize,
    pub odd: Vec<Odd>,
    /// Whether queries and keys are FP4.
    pub fp4: bool,
}

impl Prefill {
    /// The logits and what lies in the gaps between their rows.
    pub fn run(&self, device: &Device) -> Tensor {
        if self.fp4 {
            return fp4::prefill(self, device);
        }
        let Prefill { heads, dim, keys, form, columns, dtype, gap, ref odd, .. } = *self;
        let queries = self.ranges.len();
        let mut q = random::normals(1, queries * heads * dim);
        let mut kv = random::normals(2, keys * dim);
        let (mut scales, mut factors) = (positives(3, keys), random::normals(4, queries * heads));
        for odd in odd {
            match *odd {
                Odd::Query(query) => q[query * heads * dim + 5] = f32::NAN,
                Odd::Key(key) => kv[key * dim + 3] = f32::NAN,
                Odd::Scale(key, scale) => scales[key] = scale,
                Odd::Weight([query, head], weight) => factors[query * heads + head] = weight,
            }
        }
        let q = Tensor::from_f32(DType::E4m3, &q, &[queries, heads, dim], device).unwrap();
        let kv = rows(DType::E4m3, &DType::E4m3.encode(&kv), [keys, dim], 16 * gap, device);
        let scales = Tensor::from_slice(&scales, &[keys], device).unwrap();
        let weights = weights(&factors, [queries, heads], gap, device);
        let [mut logits, room] = room(dtype, [queries, columns], gap, device);
        let ([starts, ends], options) = (self.bounds(device), GemmOptions::default());
        let bounds = [&starts, &ends];
        fp8_mqa_logits(&q, (&kv, &scales), &weights, bounds, &mut logits, form, &options).unwrap();
        room
    }

    /// The first keys of queries, and the ends.
    fn bounds(&self, device: &Device) -> [Tensor; 2] {
        [0, 1].map(|i| {
            let bounds: Vec<i32> = self.ranges.iter().map(|range| range[i]).collect();
            Tensor::from_slice(&bounds, &[bounds.len()], device).unwrap()
        })
    }
}

/// Runs on the CPU and in the simulator.
pub fn check(sim: &Sim, dtype: DType, run: impl Fn(&Device) -> Tensor) {
    let expected = run(&Device::Cpu).to_vec_f32().unwrap();
    let found = run(&Device::Sim(sim.clone())).to_vec_f32().unwrap();
    expect_close(&found, &expected, dtype);
}

/// The same infinities, NaNs and untouched values; the rest as close as the tensor core's few bits allow.
fn expect_close(found: &[f32], expected: &[f32], dtype: DType) {
    let special = |x: f32| x == UNTOUCHED || !x.is_finite();
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        if special(*expected) {
            let same = found == expected || (found.is_nan() && expected.is_nan());
            assert!(same, "element {i} is {found} and not {expected}");
        }
    }
    let rest = |values: &[f32]| -> Vec<f32> {
        values.iter().zip(expected).filter(|(_, x)| !special(**x)).map(|(value, _)| *value).collect()
    };
    let exact: Vec<f64> = rest(expected).into_iter().map(f64::from).collect();
    let allowed = if dtype == DType::Bf16 { 3e-5 } else { 5e-6 };
    let diff = calc_diff(&rest(found), &exact);
    assert!(diff < allowed, "diff {diff} of {} logits", exact.len());
}

pub const RANGES: [[i32; 2]; 7] =
    [[0, 150], [10, 140], [-5, 99_999], [100, 20], [129, 130], [i32::MIN, 0], [3, i32::MAX]];

pub const PREFILL: Prefill = Prefill {
    heads: 64,
    dim: 128,
    ranges: Vec::new(),
    keys: 150,
    form: Logits::Clean,
    columns: 150,
    dtype: DType::F32,
    gap: 0,
    odd: Vec::new(),
    fp4: false,
};

#[test]
fn every_number_of_heads_and_every_dimension_gives_the_reference() {
    let sim = Sim::new();
    for (i, heads) in [8, 16, 32, 64].into_iter().enumerate() {
        for (j, dim) in [32, 64, 128].into_iter().enumerate() {
            let form = [Logits::Clean, Logits::Partial, Logits::Compressed][(i + j) % 3];
            let columns = if form == Logits::Compressed { 130 } else { 150 };
            let dtype = if j == 1 { DType::Bf16 } else { DType::F32 };
            let case = Prefill { heads, dim, ranges: RANGES.to_vec(), form, columns, dtype, ..PREFILL };
            check(&sim, dtype, |device| case.run(device));
        }
    }
}

#[test]
fn tiles_are_shared_out_whatever_queries_see() {
    let sim = Sim::new();
    // A warp looks at more than 32 queries; most of them see nothing, and some blocks of the grid nothing but those.
    let few = |i: usize| [[0, 0], [40, 300], [130, 131], [299, 300]][if i % 37 == 5 { i % 4 } else { 0 }];
    let last = |i: usize| if i < 650 { [7, 3] } else { [0, 299] };
    for (heads, ranges) in [(64, (0..1300).map(few).collect()), (8, (0..669).map(last).collect())] {
        let ranges: Vec<[i32; 2]> = ranges;
        for (form, columns) in [(Logits::Clean, 300), (Logits::Compressed, 129)] {
            let case =
                Prefill { heads, dim: 32, ranges: ranges.clone(), keys: 300, form, columns, ..PREFILL };
            check(&sim, DType::F32, |device| case.run(device));
        }
    }
}

#[test]
fn no_schedule_changes_the_bits_of_a_prefill() {
    for (heads, dim) in [(64, 128), (16, 32)] {
        // More tiles than stages, units without keys, a last tile that is not full.
        let ranges = (0..11).map(|i| [[0, 1800], [700, 900], [1500, 1700], [5, 5]][i % 4]).collect();
        let case = Prefill { heads, dim, ranges, keys: 1797, columns: 1797, ..PREFILL };
        let sim = Sim::new();
        same_bits("prefill", some_schedules(), &sim, |_| {
            case.run(&Device::Sim(sim.clone())).to_bytes().unwrap()
        });
    }
}

#[derive(Clone)]
pub struct Paged {
    pub heads: usize,
    pub dim: usize,
    pub next: usize,
    pub page_keys: usize,
    pub pages: usize,
    pub lengths: Vec<i32>,
    pub per_query: bool,
    pub table_pages: usize,
    /// What the table may name: also what is no page.
    pub named: [i32; 2],
    pub parts: usize,
    pub columns: usize,
    pub clean: bool,
    pub dtype: DType,
    /// Elements between rows: of pages 16 keys for each.
    pub gap: usize,
    /// Keys are those of the first page.
    pub odd: Vec<Odd>,
    /// The lengths that the schedule is made for, where these are others: one for each sequence.
    pub scheduled: Option<Vec<i32>>,
    /// Whether queries and keys are FP4.
    pub fp4: bool,
}

impl Paged {
    fn sequences(&self) -> usize {
        if self.per_query { self.lengths.len() / self.next } else { self.lengths.len() }
    }

    /// The cache, whose pages may be apart.
    fn cache(&self, device: &Device) -> Tensor {
        let Paged { dim, page_keys, pages, gap, .. } = *self;
        let page = |i: usize| {
            let mut keys = random::normals(10 + i as u64, page_keys * dim);
            let mut scales = positives(1000 + i as u64, page_keys);
            for odd in self.odd.iter().filter(|_| i == 0) {
                match *odd {
                    Odd::Key(key) => keys[key * dim + 3] = f32::NAN,
                    Odd::Scale(key, scale) => scales[key] = scale,
                    Odd::Query(_) | Odd::Weight(..) => {}
                }
            }
            [DType::E4m3.encode(&keys), DType::F32.encode(&scales), vec![0xff; 16 * gap * (dim + 4)]].concat()
        };
        let bytes: Vec<u8> = (0..pages).flat_map(page).collect();
        let dims = [pages, page_keys + 16 * gap, 1, dim + 4];
        Tensor::from_bytes(DType::E4m3, &bytes, &dims, device).unwrap().narrow(1, 0, page_keys).unwrap()
    }

    /// The logits and what lies in the gaps between their rows.
    pub fn run(&self, device: &Device) -> Tensor {
        let Paged { heads, dim, next, table_pages, parts, columns, gap, .. } = *self;
        let (sequences, queries) = (self.sequences(), self.sequences() * next);
        let (mut q, mut factors) =
            (random::normals(1, queries * heads * dim), random::normals(4, queries * heads));
        for odd in &self.odd {
            match *odd {
                Odd::Query(query) => q[query * heads * dim + 5] = f32::NAN,
                Odd::Weight([query, head], weight) => factors[query * heads + head] = weight,
                Odd::Key(_) | Odd::Scale(..) => {}
            }
        }
        let weights = weights(&factors, [queries, heads], gap, device);
        let dims = if self.per_query { vec![sequences, next] } else { vec![sequences] };
        let lengths = Tensor::from_slice(&self.lengths, &dims, device).unwrap();
        let table = integers(5, sequences * table_pages, self.named[0], self.named[1]);
        let bytes: Vec<u8> = table.iter().flat_map(|page| page.to_le_bytes()).collect();
        let table = rows(DType::I32, &bytes, [sequences, table_pages], gap, device);
        let (scheduled, dims) = match &self.scheduled {
            None => (&self.lengths, dims),
            Some(lengths) => (lengths, vec![lengths.len()]),
        };
        let schedule = share_out(scheduled, &dims, parts, device);
        let schedule = Tensor::from_slice(&schedule, &[parts + 1, 2], device).unwrap();
        let [mut logits, room] = room(self.dtype, [queries, columns], gap, device);
        let (lists, options) = ([&lengths, &table, &schedule], GemmOptions::default());
        if self.fp4 {
            let (q, q_scales) = fp4::queries(&[sequences, next, heads, dim], &self.odd, device);
            let (q, cache) = ((&q, &q_scales), fp4::cache(self, device));
            fp4_paged_mqa_logits(q, &cache, &weights, lists, &mut logits, self.clean, &options).unwrap();
            return room;
        }
        let q = Tensor::from_f32(DType::E4m3, &q, &[sequences, next, heads, dim], device).unwrap();
        let cache = self.cache(device);
        fp8_paged_mqa_logits(&q, &cache, &weights, lists, &mut logits, self.clean, &options).unwrap();
        room
    }
}

pub fn plain_pages() -> Paged {
    Paged {
        heads: 64,
        dim: 128,
        next: 1,
        page_keys: 64,
        pages: 6,
        lengths: vec![300, 0, 128, 1, -3, 99_999],
        per_query: false,
        table_pages: 7,
        named: [0, 6],
        parts: 4,
        columns: 333,
        clean: true,
        dtype: DType::F32,
        gap: 0,
        odd: Vec::new(),
        scheduled: None,
        fp4: false,
    }
}

#[test]
fn every_number_of_heads_and_every_size_of_pages_gives_the_reference() {
    let sim = Sim::new();
    for (i, heads) in [8, 16, 32, 64].into_iter().enumerate() {
        for (j, dim) in [32, 64, 128].into_iter().enumerate() {
            let page_keys = [16, 32, 64, 128][(i + j) % 4];
            let case = Paged {
                heads,
                dim,
                next: 1 + (i + 2 * j) % 4,
                page_keys,
                table_pages: 400 / page_keys,
                parts: [1, 2, 5, 132][(2 * i + j) % 4],
                clean: (i + j) % 3 != 0,
                dtype: if j == 1 { DType::Bf16 } else { DType::F32 },
                ..plain_pages()
            };
            check(&sim, case.dtype, |device| case.run(device));
        }
    }
}

#[test]
fn every_query_may_have_a_length_and_pages_that_do_not_exist_read_as_zeros() {
    let sim = Sim::new();
    let lengths = vec![300, 299, 0, 0, 5, 200, 140, 129];
    let case = Paged { heads: 32, dim: 64, next: 2, per_query: true, lengths, ..plain_pages() };
    check(&sim, case.dtype, |device| case.run(device));
    let wild = Paged { named: [-2, 9], ..case };
    check(&sim, wild.dtype, |device| wild.run(device));
    // No pages, no table, and nothing to compute at all.
    for case in [
        Paged { table_pages: 0, ..plain_pages() },
        Paged { pages: 0, ..plain_pages() },
        Paged { lengths: vec![0; 5], ..plain_pages() },
        Paged { lengths: vec![0; 5], clean: false, ..plain_pages() },
        Paged { lengths: vec![], ..plain_pages() },
    ] {
        check(&sim, case.dtype, |device| case.run(device));
    }
}

#[test]
fn no_schedule_changes_the_bits_of_pages() {
    let case = Paged { next: 2, page_keys: 16, table_pages: 130, columns: 2000, parts: 3, ..plain_pages() };
    let sim = Sim::new();
    same_bits("pages", some_schedules(), &sim, |_| case.run(&Device::Sim(sim.clone())).to_bytes().unwrap());
}

/// The schedule of these lengths.
fn share_out(lengths: &[i32], dims: &[usize], parts: usize, device: &Device) -> Vec<i32> {
    let lengths = Tensor::from_slice(lengths, dims, device).unwrap();
    let mut schedule = Tensor::empty(DType::I32, &[parts + 1, 2], device).unwrap();
    get_paged_mqa_logits_metadata(&lengths, &mut schedule, &GemmOptions::default()).unwrap();
    schedule.to_vec().unwrap()
}

#[test]
fn the_device_shares_out_tiles_as_the_reference_does() {
    let sim = Device::sim();
    for (count, next, parts) in [(1, 1, 1), (3, 2, 132), (700, 1, 132), (1030, 4, 7), (5, 1, 1000), (0, 1, 3)]
    {
        for longest in [1, 3000] {
            let lengths = integers(count as u64, count * next, -20, longest);
            let dims = if next > 1 { vec![count, next] } else { vec![count] };
            let [found, expected] =
                [&sim, &Device::Cpu].map(|device| share_out(&lengths, &dims, parts, device));
            assert_eq!(found, expected, "{count} sequences of up to {longest} in {parts} parts");
        }
    }
}

#[test]
fn no_schedule_changes_how_tiles_are_shared_out() {
    // More sequences than threads, and more parts.
    let (lengths, parts) = (integers(1, 1100 * 2, -20, 3000), 700);
    let run = |device: &Device| share_out(&lengths, &[1100, 2], parts, device);
    let (sim, expected) = (Sim::new(), run(&Device::Cpu));
    for options in schedules() {
        let about = format!("{:?} {}", options.policy, options.seed);
        sim.set_options(options);
        assert_eq!(run(&Device::Sim(sim.clone())), expected, "{about}");
    }
}

/// A captured step is replayed with other lengths, and so another schedule.
#[test]
fn a_graph_is_replayed_with_other_lengths() {
    let device = Device::sim();
    let (heads, dim, pages) = (8, 32, 4);
    let q = fp8(1, &[2, 1, heads, dim], &device);
    let weights = Tensor::from_slice(&random::normals(4, 2 * heads), &[2, heads], &device).unwrap();
    let bytes: Vec<u8> =
        [DType::E4m3.encode(&random::normals(2, 128 * dim)), DType::F32.encode(&positives(3, 128))].concat();
    let bytes: Vec<u8> = (0..pages).flat_map(|_| bytes.clone()).collect();
    let cache = Tensor::from_bytes(DType::E4m3, &bytes, &[pages, 128, 1, dim + 4], &device).unwrap();
    let table = Tensor::from_slice(&[0, 1, 2, 3, 3, 2, 1, 0], &[2, 4], &device).unwrap();
    let mut lengths = Tensor::from_slice(&[1, 1], &[2], &device).unwrap();
    let mut schedule = Tensor::zeros(DType::I32, &[3, 2], &device).unwrap();
    let mut logits = Tensor::zeros(DType::F32, &[2, 512], &device).unwrap();
    let stream = device.new_stream().unwrap();
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    let mut step = |schedule: &mut Tensor| {
        get_paged_mqa_logits_metadata(&lengths.clone(), schedule, &options)?;
        let lists = [&lengths.clone(), &table, &*schedule];
        fp8_paged_mqa_logits(&q, &cache, &weights, lists, &mut logits, true, &options)
    };
    let graph = stream.capture(|_| step(&mut schedule)).unwrap();
    for numbers in [[512, 1], [0, 0], [130, 400]] {
        lengths.write_bytes(&numbers.map(i32::to_le_bytes).concat()).unwrap();
        graph.launch(&stream).unwrap();
        let found = logits.to_vec_f32().unwrap();
        for (row, length) in found.chunks(512).zip(numbers) {
            let finite = row.iter().filter(|x| x.is_finite()).count();
            assert_eq!(finite, length as usize);
            assert!(row[finite..].iter().all(|x| *x == f32::NEG_INFINITY));
        }
    }
}
