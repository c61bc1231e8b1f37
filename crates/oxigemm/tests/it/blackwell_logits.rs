//! Logits of an indexer on Blackwell: the kernels in the simulator against the reference, whatever the schedule and the
//! numbers.

use crate::attention::{Odd, PREFILL, Paged, Prefill, RANGES, check, plain_pages};
use crate::common::{same_bits, some_schedules};
use oxigemm::check::Logits;
use oxigemm::{DType, Device, GemmOptions, Sim, Tensor, fp4_mqa_logits};

fn blackwell() -> Sim {
    let device: Device = "sim:sm_100a".parse().expect("a device");
    device.as_sim().expect("a simulated one").clone()
}

/// Whether operands are FP4, and the head dimensions that there are.
const FORMATS: [(bool, &[usize]); 2] = [(false, &[32, 64, 128]), (true, &[64, 128])];

#[test]
fn prefills_of_every_kernel_give_the_reference() {
    let sim = blackwell();
    for (fp4, dims) in FORMATS {
        for (i, heads) in [32, 64, 128, 8, 72].into_iter().enumerate() {
            let dim = dims[i % dims.len()];
            let form = [Logits::Clean, Logits::Partial, Logits::Compressed][(i + usize::from(fp4)) % 3];
            let columns = if form == Logits::Compressed { 130 } else { 150 };
            let dtype = if i == 1 { DType::Bf16 } else { DType::F32 };
            let gap = i % 2;
            let case =
                Prefill { heads, dim, ranges: RANGES.to_vec(), form, columns, dtype, gap, fp4, ..PREFILL };
            check(&sim, dtype, |device| case.run(device));
        }
    }
}

#[test]
fn pages_of_every_kernel_give_the_reference() {
    let sim = blackwell();
    for (fp4, dims) in FORMATS {
        for (i, heads) in [32, 64, 128, 8, 72].into_iter().enumerate() {
            let page_keys = [64, 32, 256, 16, 128][i];
            let case = Paged {
                heads,
                dim: dims[(i + 1) % dims.len()],
                next: [3, 1, 2, 9, 5][i],
                page_keys,
                table_pages: 512 / page_keys,
                parts: [1, 2, 5, 132, 3][i],
                clean: i % 3 != 0,
                dtype: if i == 1 { DType::Bf16 } else { DType::F32 },
                gap: i % 2,
                fp4,
                ..plain_pages()
            };
            check(&sim, case.dtype, |device| case.run(device));
        }
    }
}

#[test]
fn no_schedule_changes_the_bits_of_a_prefill() {
    // More tiles than stages, units without keys, a last tile that is not full.
    let ranges: Vec<[i32; 2]> = (0..7).map(|i| [[0, 1800], [700, 900], [5, 5]][i % 3]).collect();
    for fp4 in [false, true] {
        let case = Prefill {
            heads: 64,
            dim: 64,
            ranges: ranges.clone(),
            keys: 1797,
            columns: 1797,
            form: if fp4 { Logits::Partial } else { Logits::Clean },
            fp4,
            ..PREFILL
        };
        let sim = blackwell();
        let about = if fp4 { "FP4 prefill" } else { "FP8 prefill" };
        same_bits(about, some_schedules(), &sim, |_| case.run(&Device::Sim(sim.clone())).to_bytes().unwrap());
    }
}

#[test]
fn no_schedule_changes_the_bits_of_pages() {
    for fp4 in [false, true] {
        let (next, page_keys) = (if fp4 { 3 } else { 5 }, 16);
        let (table_pages, columns, parts) = (100, 1500, 3);
        let lengths = vec![1500, 0, 128, 1];
        let case = Paged {
            heads: 64,
            dim: 64,
            next,
            page_keys,
            table_pages,
            columns,
            parts,
            lengths,
            fp4,
            ..plain_pages()
        };
        let sim = blackwell();
        let about = if fp4 { "FP4 pages" } else { "FP8 pages" };
        same_bits(about, some_schedules(), &sim, |_| case.run(&Device::Sim(sim.clone())).to_bytes().unwrap());
    }
}

#[test]
fn ranges_lengths_and_pages_may_be_anything() {
    let sim = blackwell();
    for fp4 in [false, true] {
        // A warp looks at more than 32 queries; most of them see nothing.
        let few = |i: usize| [[0, 0], [40, 300], [130, 131], [299, 300]][if i % 37 == 5 { i % 4 } else { 0 }];
        let ranges: Vec<[i32; 2]> = (0..300).map(few).collect();
        let case = Prefill { heads: 32, dim: 64, ranges, keys: 300, columns: 300, fp4, ..PREFILL };
        check(&sim, case.dtype, |device| case.run(device));
        let lengths = vec![300, 299, 0, 0, 5, 200, 140, 129];
        let case = Paged { heads: 32, dim: 64, next: 2, per_query: true, lengths, fp4, ..plain_pages() };
        for case in [
            Paged { named: [-2, 9], ..case.clone() },
            Paged { table_pages: 0, ..case.clone() },
            Paged { pages: 0, ..case.clone() },
            Paged { lengths: vec![0; 8], clean: false, ..case.clone() },
            Paged { lengths: vec![], ..case.clone() },
            // The schedule of other lengths.
            Paged { clean: false, lengths: vec![0; 8], scheduled: Some(vec![700, 3, 2, 800]), ..case },
        ] {
            check(&sim, case.dtype, |device| case.run(device));
        }
    }
}

#[test]
fn what_is_not_finite_stays_with_its_query_or_key() {
    let sim = blackwell();
    let odd = || {
        vec![
            Odd::Query(0),
            Odd::Key(7),
            Odd::Scale(11, f32::NAN),
            Odd::Scale(12, f32::INFINITY),
            Odd::Weight([1, 2], f32::NAN),
            Odd::Weight([2, 2], f32::INFINITY),
            Odd::Weight([3, 0], f32::INFINITY),
            Odd::Weight([3, 7], f32::NEG_INFINITY),
        ]
    };
    for fp4 in [false, true] {
        // The last query does not see the keys that have something of it; five heads are padded.
        let ranges = vec![[0, 150], [0, 150], [0, 150], [0, 140], [0, 150], [20, 150]];
        let case = Prefill { heads: 24, dim: 64, ranges, odd: odd(), fp4, ..PREFILL };
        check(&sim, case.dtype, |device| {
            let logits = case.run(device);
            let found = logits.to_vec_f32().unwrap();
            let rows: Vec<&[f32]> = found.chunks(150).collect();
            assert!(rows[0].iter().chain(rows[1]).all(|x| x.is_nan()), "{device}: a NaN in a query");
            assert!(rows[4][7].is_nan() && rows[4][8].is_finite(), "{device}: a NaN in a key");
            assert!(rows[5][20..].iter().all(|x| x.is_finite()), "{device}: a query without any");
            logits
        });
        let case = Paged {
            heads: 24,
            dim: 64,
            page_keys: 128,
            pages: 1,
            named: [-1, 1],
            table_pages: 2,
            columns: 150,
            lengths: vec![150; 5],
            odd: odd(),
            fp4,
            ..plain_pages()
        };
        check(&sim, case.dtype, |device| case.run(device));
    }
}

#[test]
fn fp4_is_refused_by_name_where_it_does_not_fit() {
    let new = |dtype, dims: &[usize], device: &Device| Tensor::zeros(dtype, dims, device).unwrap();
    let (cpu, u8, i32, f32) = (&Device::Cpu, DType::U8, DType::I32, DType::F32);
    let run = |[q, q_scales, kv, kv_scales]: [Tensor; 4]| {
        let device = q.device();
        let weights = new(f32, &[4, 8], device);
        let (bounds, mut logits) = (new(i32, &[4], device), new(f32, &[4, 50], device));
        let (q, kv, options) = ((&q, &q_scales), (&kv, &kv_scales), GemmOptions::default());
        fp4_mqa_logits(q, kv, &weights, [&bounds, &bounds], &mut logits, Logits::Clean, &options)
    };
    let good = |device: &Device| {
        let (q, kv) = (new(u8, &[4, 8, 32], device), new(u8, &[50, 32], device));
        [q, new(i32, &[4, 8], device), kv, new(i32, &[50], device)]
    };
    run(good(cpu)).unwrap();
    let refused = [
        ("`q` has the wrong shape", 0, new(u8, &[4, 8, 16], cpu)),
        ("`q` has the wrong element type", 0, new(DType::E4m3, &[4, 8, 32], cpu)),
        ("`q_scales` has the wrong shape", 1, new(i32, &[4, 9], cpu)),
        ("`q_scales` has the wrong element type", 1, new(f32, &[4, 8], cpu)),
        ("`kv` has the wrong shape", 2, new(u8, &[50, 64], cpu)),
        ("`kv_scales` has the wrong element type", 3, new(f32, &[50], cpu)),
    ];
    for (message, place, wrong) in refused {
        let mut arguments = good(cpu);
        arguments[place] = wrong;
        let error = run(arguments).unwrap_err().to_string();
        assert!(error.contains(message), "{message}: {error}");
    }
    let error = run(good(&Device::sim())).unwrap_err().to_string();
    assert!(error.contains("`q`") && error.contains("sm_90a"), "{error}");
}
