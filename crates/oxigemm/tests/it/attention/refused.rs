//! Arguments of an indexer's functions that are refused, each by its name.

use oxigemm::check::Logits;
use oxigemm::{
    DType, Device, GemmOptions, RawPagedMqaLogits, Tensor, fp8_mqa_logits, fp8_paged_mqa_logits,
    fp8_paged_mqa_logits_raw, get_paged_mqa_logits_metadata,
};

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
        ("q", "136 heads", Good { q: new(e4m3, &[4, 136, 32]), ..good() }),
        ("q", "no heads", Good { q: new(e4m3, &[4, 0, 32]), ..good() }),
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
        (0, "q", "no queries", new(e4m3, &[3, 0, 8, 32])),
        (0, "q", "three dimensions", new(e4m3, &[6, 8, 32])),
        (1, "kv_cache", "pages of 24", new(e4m3, &[5, 24, 1, 36])),
        (1, "kv_cache", "pages of 512", new(e4m3, &[5, 512, 1, 36])),
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
        ("context_lens", new(i32, &[3, 0]), new(i32, &[4, 2])),
        ("context_lens", new(f32, &[3]), new(i32, &[4, 2])),
        ("schedule", new(i32, &[3]), new(i32, &[4, 3])),
        ("schedule", new(i32, &[3]), new(f32, &[4, 2])),
    ] {
        let result = get_paged_mqa_logits_metadata(&lengths, &mut schedule, &GemmOptions::default());
        assert_eq!(result.unwrap_err().argument(), Some(argument));
    }
}

#[test]
fn a_head_dimension_beyond_all_numbers_is_refused() {
    let device = Device::sim();
    let raw = RawPagedMqaLogits {
        sequences: 1,
        next: 1,
        heads: 8,
        dim: 32,
        pages: 1,
        page_keys: 16,
        table_pages: 1,
        columns: 16,
        parts: 1,
        q: 0,
        kv_cache: 0,
        page_pitch: 16 * 36,
        weights: 0,
        weights_pitch: 8,
        context_lens: 0,
        lengths_per_query: false,
        block_table: 0,
        table_pitch: 1,
        schedule: 0,
        logits: 0,
        logits_pitch: 16,
        logits_type: DType::F32,
        clean: true,
    };
    for dim in [usize::MAX, usize::MAX - 3, i64::MAX as usize] {
        let raw = RawPagedMqaLogits { dim, ..raw };
        // SAFETY: what is refused touches nothing.
        let refused = unsafe { fp8_paged_mqa_logits_raw(&device, &raw, &GemmOptions::default()) };
        assert_eq!(refused.unwrap_err().argument(), Some("q"));
    }
}
