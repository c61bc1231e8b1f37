//! A check that succeeds allocates nothing: it stands between every call and its launch.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use oxigemm::cast::ScaleFormat;
use oxigemm::check::{
    Dequantize, EpilogueDesc, GemmDesc, GroupingDesc, HcPrenormGemm, Logits, MGroupedDesc, MqaLogits,
    OutputFormat, PagedMqaLogits, PagedMqaSchedule, Quantize, QuantizeSource, TransformScales,
};
use oxigemm::{DType, Device, GemmLayout, Granularity, Tensor};
use oxigemm_kernels::gemm::scheduler::m_grouped::GroupLayout;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every request goes to the system allocator unchanged; counting touches a constant-initialized thread local,
// which allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, and `pointer` came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn checks_and_views_allocate_nothing() {
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &Device::Cpu).unwrap();
    let a = new(DType::E4m3, &[64, 512]);
    let sfa = new(DType::F32, &[4, 64]).transpose(0, 1).unwrap();
    let b = new(DType::E4m3, &[256, 512]);
    let sfb = new(DType::F32, &[2, 4]);
    let (c, d) = (new(DType::Bf16, &[64, 256]), new(DType::Bf16, &[64, 256]));
    assert!(allocations(|| drop(black_box(vec![0u8; 100]))) > 0, "the counter counts");
    let count = allocations(|| {
        let arguments = GemmDesc {
            sfa: Some(sfa.describe("sfa")),
            sfb: Some(sfb.describe("sfb")),
            c: Some(c.describe("c")),
            ..GemmDesc::new(a.describe("a"), b.describe("b"), d.describe("d"))
        };
        black_box(arguments.check().unwrap());
    });
    assert_eq!(count, 0);
    let (bias, codes, scales) =
        (new(DType::F32, &[256]), new(DType::E4m3, &[64, 128]), new(DType::F32, &[64, 1]));
    let count = allocations(|| {
        let arguments = GemmDesc {
            sfa: Some(sfa.describe("sfa")),
            sfb: Some(sfb.describe("sfb")),
            c: None,
            ..GemmDesc::new(a.describe("a"), b.describe("b"), codes.describe("d"))
        };
        let epilogue = EpilogueDesc {
            gated: true,
            bias: Some(bias.describe("bias")),
            scales: Some((scales.describe("d_scales"), OutputFormat::Fp8(ScaleFormat::F32))),
            ..Default::default()
        };
        black_box(GemmDesc { epilogue: Some(epilogue), ..arguments }.check().unwrap());
    });
    assert_eq!(count, 0, "with a fused epilogue");
    let (a_half, b_half) = (new(DType::F16, &[64, 512]), new(DType::F16, &[256, 512]));
    let count = allocations(|| {
        let arguments = GemmDesc::new(a_half.describe("a"), b_half.describe("b"), codes.describe("d"));
        let epilogue = EpilogueDesc {
            gated: true,
            bias: Some(bias.describe("bias")),
            scales: Some((scales.describe("d_scales"), OutputFormat::Fp8(ScaleFormat::F32))),
            ..Default::default()
        };
        black_box(GemmDesc { epilogue: Some(epilogue), ..arguments }.check().unwrap());
    });
    assert_eq!(count, 0, "with a fused epilogue, 16-bit operands");
    for (layout, a_dims, b_dims) in [
        (GemmLayout::Nn, [64, 512], [512, 256]),
        (GemmLayout::Tt, [512, 64], [256, 512]),
        // Of one column, only M-major can be addressed.
        (GemmLayout::Nt, [64, 1], [256, 1]),
    ] {
        let (a, b) = (new(DType::Bf16, &a_dims), new(DType::Bf16, &b_dims));
        let count = allocations(|| {
            let (a, b, c, d) = (a.describe("a"), b.describe("b"), Some(c.describe("c")), d.describe("d"));
            black_box(GemmDesc { layout, c, ..GemmDesc::new(a, b, d) }.check().unwrap());
        });
        assert_eq!(count, 0, "{layout}");
    }
    let (groups, ids) = (new(DType::E4m3, &[3, 256, 512]), new(DType::I32, &[64]));
    let (sfgroups, each_bias) = (new(DType::F32, &[3, 2, 4]), new(DType::F32, &[3, 256]));
    let count = allocations(|| {
        let arguments = GemmDesc {
            sfa: Some(sfa.describe("sfa")),
            sfb: Some(sfgroups.describe("sfb")),
            c: None,
            grouping: GroupingDesc::MGrouped(MGroupedDesc {
                layout: GroupLayout::Ids,
                numbers: ids.describe("ids"),
                alignment: 16,
                expected_m: None,
            }),
            ..GemmDesc::new(a.describe("a"), groups.describe("b"), d.describe("d"))
        };
        black_box(arguments.check().unwrap());
        let epilogue = EpilogueDesc {
            gated: true,
            bias: Some(each_bias.describe("bias")),
            scales: Some((scales.describe("d_scales"), OutputFormat::Fp8(ScaleFormat::F32))),
            ..Default::default()
        };
        let fused = GemmDesc { d: codes.describe("d"), epilogue: Some(epilogue), ..arguments };
        black_box(fused.check().unwrap());
    });
    assert_eq!(count, 0);
    let (b_half, each) = (new(DType::F16, &[3, 256, 512]), new(DType::F16, &[3, 256]));
    let count = allocations(|| {
        let arguments = GemmDesc {
            grouping: GroupingDesc::MGrouped(MGroupedDesc {
                layout: GroupLayout::Ids,
                numbers: ids.describe("ids"),
                alignment: 16,
                expected_m: None,
            }),
            ..GemmDesc::new(a_half.describe("a"), b_half.describe("b"), codes.describe("d"))
        };
        let epilogue = EpilogueDesc {
            gated: true,
            bias: Some(each.describe("bias")),
            scales: Some((scales.describe("d_scales"), OutputFormat::Fp8(ScaleFormat::F32))),
            ..Default::default()
        };
        black_box(GemmDesc { epilogue: Some(epilogue), ..arguments }.check().unwrap());
    });
    assert_eq!(count, 0, "m-grouped with a fused epilogue, 16-bit operands");
    let (a_half, b_half) = (new(DType::Bf16, &[64, 512]), new(DType::Bf16, &[3, 512, 256]));
    let count = allocations(|| {
        let arguments = GemmDesc {
            layout: GemmLayout::Nn,
            c: Some(c.describe("c")),
            grouping: GroupingDesc::MGrouped(MGroupedDesc {
                layout: GroupLayout::Ids,
                numbers: ids.describe("ids"),
                alignment: 16,
                expected_m: None,
            }),
            ..GemmDesc::new(a_half.describe("a"), b_half.describe("b"), d.describe("d"))
        };
        black_box(arguments.check().unwrap());
    });
    assert_eq!(count, 0);
    let (x, packed) = (new(DType::Bf16, &[64, 512]), new(DType::I32, &[64, 1]));
    let count = allocations(|| {
        let (x, codes, scales) = (x.describe("x"), a.describe("codes"), sfa.describe("scales"));
        let granularity = Granularity::PerToken;
        let (format, source) = (ScaleFormat::F32, QuantizeSource::Rows(ids.describe("rows")));
        black_box(Quantize { x, codes, scales, granularity, format, source }.check().unwrap());
        black_box(Dequantize { codes, scales, x, granularity }.check().unwrap());
        black_box(TransformScales { from: scales, to: packed.describe("to") }.check().unwrap());
    });
    assert_eq!(count, 0);
    let count = allocations(|| {
        black_box(a.narrow(0, 3, 5).unwrap().transpose(0, 1).unwrap());
        black_box(a.view(&[512, 64]).unwrap());
    });
    assert_eq!(count, 0);
}

#[test]
fn checks_of_other_operations_allocate_nothing() {
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &Device::Cpu).unwrap();
    let (q, kv) = (new(DType::E4m3, &[6, 64, 128]), new(DType::E4m3, &[300, 128]));
    let (scales, weights) = (new(DType::F32, &[300]), new(DType::F32, &[6, 64]));
    let (bounds, logits) = (new(DType::I32, &[6]), new(DType::F32, &[6, 300]));
    let count = allocations(|| {
        let arguments = MqaLogits {
            q: q.describe("q"),
            q_scales: None,
            kv: kv.describe("kv"),
            kv_scales: scales.describe("kv_scales"),
            weights: weights.describe("weights"),
            starts: bounds.describe("starts"),
            ends: bounds.describe("ends"),
            logits: logits.describe("logits"),
            form: Logits::Clean,
        };
        black_box(arguments.check().unwrap());
    });
    assert_eq!(count, 0);
    let (q, cache) = (q.view(&[3, 2, 64, 128]).unwrap(), new(DType::E4m3, &[5, 64, 1, 132]));
    let (lengths, table) = (new(DType::I32, &[3, 2]), new(DType::I32, &[3, 7]));
    let schedule = new(DType::I32, &[133, 2]);
    let count = allocations(|| {
        let arguments = PagedMqaLogits {
            q: q.describe("q"),
            q_scales: None,
            kv_cache: cache.describe("kv_cache"),
            weights: weights.describe("weights"),
            context_lens: lengths.describe("context_lens"),
            block_table: table.describe("block_table"),
            schedule: schedule.describe("schedule"),
            logits: logits.describe("logits"),
            clean: true,
        };
        black_box(arguments.check().unwrap());
        let (context_lens, schedule) = (lengths.describe("context_lens"), schedule.describe("schedule"));
        black_box(PagedMqaSchedule { context_lens, schedule }.check().unwrap());
    });
    assert_eq!(count, 0);
    let (a, b) = (new(DType::Bf16, &[5, 640]), new(DType::F32, &[24, 640]));
    let (d, sqr_sum) = (new(DType::F32, &[2, 5, 24]), new(DType::F32, &[2, 5]));
    let count = allocations(|| {
        let (a, b, d) = (a.describe("a"), b.describe("b"), d.describe("d"));
        black_box(HcPrenormGemm { a, b, d, sqr_sum: sqr_sum.describe("sqr_sum") }.check().unwrap());
    });
    assert_eq!(count, 0);
}
