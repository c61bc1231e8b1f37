//! Logits of an indexer: the kernels in the simulator against the reference, whatever the schedule and the numbers.

use crate::common::{same_bits, schedules};
use oxigemm::check::Logits;
use oxigemm::metrics::calc_diff;
use oxigemm::{
    DType, Device, GemmOptions, Sim, Tensor, fp8_mqa_logits, fp8_paged_mqa_logits,
    get_paged_mqa_logits_metadata, random,
};

/// What is outside of a range holds this until it is written.
const UNTOUCHED: f32 = 7.0;

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

struct Prefill {
    heads: usize,
    dim: usize,
    ranges: Vec<[i32; 2]>,
    keys: usize,
    form: Logits,
    columns: usize,
    dtype: DType,
}

impl Prefill {
    fn run(&self, device: &Device) -> Tensor {
        let Prefill { heads, dim, ref ranges, keys, form, columns, dtype } = *self;
        let queries = ranges.len();
        let (q, kv) = (fp8(1, &[queries, heads, dim], device), fp8(2, &[keys, dim], device));
        let scales = Tensor::from_slice(&positives(3, keys), &[keys], device).unwrap();
        let weights =
            Tensor::from_slice(&random::normals(4, queries * heads), &[queries, heads], device).unwrap();
        let bound = |i: usize| {
            let bounds: Vec<i32> = ranges.iter().map(|range| range[i]).collect();
            Tensor::from_slice(&bounds, &[queries], device).unwrap()
        };
        let untouched = vec![UNTOUCHED; queries * columns];
        let mut logits = Tensor::from_f32(dtype, &untouched, &[queries, columns], device).unwrap();
        let (bounds, options) = ([&bound(0), &bound(1)], GemmOptions::default());
        fp8_mqa_logits(&q, (&kv, &scales), &weights, bounds, &mut logits, form, &options).unwrap();
        logits
    }
}

/// Runs on the CPU and in the simulator.
fn check(sim: &Sim, dtype: DType, run: impl Fn(&Device) -> Tensor) {
    let expected = run(&Device::Cpu).to_vec_f32().unwrap();
    let found = run(&Device::Sim(sim.clone())).to_vec_f32().unwrap();
    expect_close(&found, &expected, dtype);
}

/// The same -inf and the same untouched values; the rest as close as the tensor core's few bits allow.
fn expect_close(found: &[f32], expected: &[f32], dtype: DType) {
    let special = |x: f32| x == UNTOUCHED || x == f32::NEG_INFINITY;
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        if special(*expected) {
            assert_eq!(found, expected, "element {i}");
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

const RANGES: [[i32; 2]; 7] =
    [[0, 150], [10, 140], [-5, 99_999], [100, 20], [129, 130], [i32::MIN, 0], [3, i32::MAX]];

const PREFILL: Prefill = Prefill {
    heads: 64,
    dim: 128,
    ranges: Vec::new(),
    keys: 150,
    form: Logits::Clean,
    columns: 150,
    dtype: DType::F32,
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
        same_bits("prefill", schedules().step_by(2), &sim, |_| {
            case.run(&Device::Sim(sim.clone())).to_bytes().unwrap()
        });
    }
}

#[derive(Clone)]
struct Paged {
    heads: usize,
    dim: usize,
    next: usize,
    page_keys: usize,
    pages: usize,
    lengths: Vec<i32>,
    per_query: bool,
    table_pages: usize,
    /// What the table may name: also what is no page.
    named: [i32; 2],
    parts: usize,
    columns: usize,
    clean: bool,
    dtype: DType,
}

impl Paged {
    fn run(&self, device: &Device) -> Tensor {
        let Paged { heads, dim, next, page_keys, pages, table_pages, parts, columns, .. } = *self;
        let sequences = if self.per_query { self.lengths.len() / next } else { self.lengths.len() };
        let queries = sequences * next;
        let q = fp8(1, &[sequences, next, heads, dim], device);
        let page = |i: usize| {
            let keys = random::normals(10 + i as u64, page_keys * dim);
            let scales = positives(1000 + i as u64, page_keys);
            [DType::E4m3.encode(&keys), DType::F32.encode(&scales)].concat()
        };
        let bytes: Vec<u8> = (0..pages).flat_map(page).collect();
        let cache = Tensor::from_bytes(DType::E4m3, &bytes, &[pages, page_keys, 1, dim + 4], device).unwrap();
        let weights =
            Tensor::from_slice(&random::normals(4, queries * heads), &[queries, heads], device).unwrap();
        let dims = if self.per_query { vec![sequences, next] } else { vec![sequences] };
        let lengths = Tensor::from_slice(&self.lengths, &dims, device).unwrap();
        let table = integers(5, sequences * table_pages, self.named[0], self.named[1]);
        let table = Tensor::from_slice(&table, &[sequences, table_pages], device).unwrap();
        let mut schedule = Tensor::empty(DType::I32, &[parts + 1, 2], device).unwrap();
        let untouched = vec![UNTOUCHED; queries * columns];
        let mut logits = Tensor::from_f32(self.dtype, &untouched, &[queries, columns], device).unwrap();
        let options = GemmOptions::default();
        get_paged_mqa_logits_metadata(&lengths, &mut schedule, &options).unwrap();
        let lists = [&lengths, &table, &schedule];
        fp8_paged_mqa_logits(&q, &cache, &weights, lists, &mut logits, self.clean, &options).unwrap();
        logits
    }
}

fn plain_pages() -> Paged {
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
    same_bits("pages", schedules().step_by(2), &sim, |_| {
        case.run(&Device::Sim(sim.clone())).to_bytes().unwrap()
    });
}

#[test]
fn the_device_shares_out_tiles_as_the_reference_does() {
    let sim = Device::sim();
    for (count, next, parts) in [(1, 1, 1), (3, 2, 132), (700, 1, 132), (1030, 4, 7), (5, 1, 1000), (0, 1, 3)]
    {
        for longest in [1, 3000] {
            let lengths = integers(count as u64, count * next, -20, longest);
            let dims = if next > 1 { vec![count, next] } else { vec![count] };
            let [found, expected] = [&sim, &Device::Cpu].map(|device| {
                let lengths = Tensor::from_slice(&lengths, &dims, device).unwrap();
                let mut schedule = Tensor::empty(DType::I32, &[parts + 1, 2], device).unwrap();
                get_paged_mqa_logits_metadata(&lengths, &mut schedule, &GemmOptions::default()).unwrap();
                schedule.to_vec::<i32>().unwrap()
            });
            assert_eq!(found, expected, "{count} sequences of up to {longest} in {parts} parts");
        }
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

/// The arguments of a prefill that are right.
struct Good {
    q: Tensor,
    kv: Tensor,
    scales: Tensor,
    weights: Tensor,
    starts: Tensor,
    ends: Tensor,
    logits: Tensor,
    form: Logits,
}

#[test]
fn what_breaks_a_rule_of_a_prefill_is_refused_by_name() {
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &Device::Cpu).unwrap();
    let (e4m3, f32, i32) = (DType::E4m3, DType::F32, DType::I32);
    let good = || Good {
        q: new(e4m3, &[4, 8, 32]),
        kv: new(e4m3, &[50, 32]),
        scales: new(f32, &[50]),
        weights: new(f32, &[4, 8]),
        starts: new(i32, &[4]),
        ends: new(i32, &[4]),
        logits: new(f32, &[4, 50]),
        form: Logits::Clean,
    };
    let run = |mut good: Good| {
        let bounds = [&good.starts, &good.ends];
        let (kv, options) = ((&good.kv, &good.scales), GemmOptions::default());
        fp8_mqa_logits(&good.q, kv, &good.weights, bounds, &mut good.logits, good.form, &options)
    };
    run(good()).unwrap();
    run(Good { form: Logits::Compressed, logits: new(f32, &[4, 3]), ..good() }).unwrap();
    let sim = Device::sim();
    let elsewhere = Tensor::zeros(f32, &[50], &sim).unwrap();
    let shared = new(f32, &[4, 80]);
    let cases = [
        ("q", "f32", Good { q: new(f32, &[4, 8, 32]), ..good() }),
        ("q", "12 heads", Good { q: new(e4m3, &[4, 12, 32]), ..good() }),
        ("q", "48 elements", Good { q: new(e4m3, &[4, 8, 48]), ..good() }),
        ("q", "two dimensions", Good { q: new(e4m3, &[4, 256]), ..good() }),
        ("q", "gaps", Good { q: new(e4m3, &[4, 16, 32]).narrow(1, 0, 8).unwrap(), ..good() }),
        ("kv", "other heads", Good { kv: new(e4m3, &[50, 64]), ..good() }),
        ("kv", "a pitch of 40 bytes", Good { kv: new(e4m3, &[50, 40]).narrow(1, 0, 32).unwrap(), ..good() }),
        ("kv", "keys that are apart", Good { kv: new(e4m3, &[32, 50]).transpose(0, 1).unwrap(), ..good() }),
        ("kv_scales", "too many", Good { scales: new(f32, &[51]), ..good() }),
        ("kv_scales", "at 4 bytes", Good { scales: new(f32, &[51]).narrow(0, 1, 50).unwrap(), ..good() }),
        ("kv_scales", "another device", Good { scales: elsewhere, ..good() }),
        ("weights", "too many", Good { weights: new(f32, &[4, 9]), ..good() }),
        ("weights", "bf16", Good { weights: new(DType::Bf16, &[4, 8]), ..good() }),
        ("starts", "f32", Good { starts: new(f32, &[4]), ..good() }),
        ("ends", "too few", Good { ends: new(i32, &[3]), ..good() }),
        ("ends", "a matrix", Good { ends: new(i32, &[4, 1]), ..good() }),
        ("logits", "f16", Good { logits: new(DType::F16, &[4, 50]), ..good() }),
        ("logits", "too few columns", Good { logits: new(f32, &[4, 49]), ..good() }),
        ("logits", "columns first", Good { logits: new(f32, &[50, 4]).transpose(0, 1).unwrap(), ..good() }),
        (
            "weights",
            "inside of the logits",
            Good {
                logits: shared.narrow(1, 0, 50).unwrap(),
                weights: shared.narrow(1, 49, 8).unwrap(),
                ..good()
            },
        ),
    ];
    for (argument, what, case) in cases {
        let error = run(case).expect_err(what);
        assert_eq!(error.argument(), Some(argument), "{what}: {error}");
    }
}

#[test]
fn what_breaks_a_rule_of_pages_is_refused_by_name() {
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &Device::Cpu).unwrap();
    let (e4m3, f32, i32) = (DType::E4m3, DType::F32, DType::I32);
    // In order: q, kv_cache, weights, context_lens, block_table, schedule, logits.
    let good = || {
        [
            new(e4m3, &[3, 2, 8, 32]),
            new(e4m3, &[5, 16, 1, 36]),
            new(f32, &[6, 8]),
            new(i32, &[3, 2]),
            new(i32, &[3, 7]),
            new(i32, &[4, 2]),
            new(f32, &[6, 100]),
        ]
    };
    let run = |[q, cache, weights, lengths, table, schedule, mut logits]: [Tensor; 7]| {
        let lists = [&lengths, &table, &schedule];
        fp8_paged_mqa_logits(&q, &cache, &weights, lists, &mut logits, true, &GemmOptions::default())
    };
    run(good()).unwrap();
    let gaps = new(e4m3, &[5, 32, 1, 36]);
    let cases = [
        (0, "q", "f32", new(f32, &[3, 2, 8, 32])),
        (0, "q", "five queries", new(e4m3, &[3, 5, 8, 32])),
        (0, "q", "no queries", new(e4m3, &[3, 0, 8, 32])),
        (0, "q", "three dimensions", new(e4m3, &[6, 8, 32])),
        (1, "kv_cache", "pages of 24", new(e4m3, &[5, 24, 1, 36])),
        (1, "kv_cache", "other heads", new(e4m3, &[5, 16, 1, 68])),
        (1, "kv_cache", "two heads of keys", new(e4m3, &[5, 16, 2, 36])),
        (
            1,
            "kv_cache",
            "keys that are apart",
            gaps.transpose(0, 1)
                .unwrap()
                .narrow(0, 0, 16)
                .unwrap()
                .transpose(0, 1)
                .unwrap()
                .transpose(1, 3)
                .unwrap(),
        ),
        (2, "weights", "too few", new(f32, &[3, 8])),
        (3, "context_lens", "f32", new(f32, &[3, 2])),
        (3, "context_lens", "too many queries", new(i32, &[3, 3])),
        (3, "context_lens", "too many sequences", new(i32, &[4])),
        (3, "context_lens", "three dimensions", new(i32, &[3, 2, 1])),
        (4, "block_table", "too few sequences", new(i32, &[2, 7])),
        (4, "block_table", "f32", new(f32, &[3, 7])),
        (4, "block_table", "columns first", new(i32, &[7, 3]).transpose(0, 1).unwrap()),
        (5, "schedule", "one column", new(i32, &[4, 1])),
        (5, "schedule", "no part", new(i32, &[1, 2])),
        (5, "schedule", "gaps", new(i32, &[4, 4]).narrow(1, 0, 2).unwrap()),
        (6, "logits", "too few rows", new(f32, &[3, 100])),
        (6, "logits", "i32", new(i32, &[6, 100])),
    ];
    for (place, argument, what, wrong) in cases {
        let mut case = good();
        case[place] = wrong;
        let error = run(case).expect_err(what);
        assert_eq!(error.argument(), Some(argument), "{what}: {error}");
    }
    for (argument, lengths, mut schedule) in [
        ("context_lens", new(i32, &[3, 5]), new(i32, &[4, 2])),
        ("context_lens", new(f32, &[3]), new(i32, &[4, 2])),
        ("schedule", new(i32, &[3]), new(i32, &[4, 3])),
        ("schedule", new(i32, &[3]), new(f32, &[4, 2])),
    ] {
        let result = get_paged_mqa_logits_metadata(&lengths, &mut schedule, &GemmOptions::default());
        assert_eq!(result.unwrap_err().argument(), Some(argument));
    }
}
