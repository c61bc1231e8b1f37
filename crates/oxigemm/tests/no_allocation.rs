//! A check that succeeds allocates nothing: it stands between every call and its launch.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use oxigemm::cast::ScaleFormat;
use oxigemm::check::{
    EpilogueArguments, Fp8GemmNt, GroupedFp8GemmNt, GroupedHalfGemm, GroupsArgument, HalfGemm,
};
use oxigemm::{DType, Device, GemmLayout, Tensor};
use oxigemm_kernels::grouping::GroupLayout;

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
        let arguments = Fp8GemmNt {
            a: a.describe("a"),
            sfa: sfa.describe("sfa"),
            b: b.describe("b"),
            sfb: sfb.describe("sfb"),
            c: Some(c.describe("c")),
            d: d.describe("d"),
        };
        black_box(arguments.check().unwrap());
    });
    assert_eq!(count, 0);
    let (bias, codes, scales) =
        (new(DType::F32, &[256]), new(DType::E4m3, &[64, 128]), new(DType::F32, &[64, 1]));
    let count = allocations(|| {
        let arguments = Fp8GemmNt {
            a: a.describe("a"),
            sfa: sfa.describe("sfa"),
            b: b.describe("b"),
            sfb: sfb.describe("sfb"),
            c: None,
            d: codes.describe("d"),
        };
        let epilogue = EpilogueArguments {
            gated: true,
            bias: Some(bias.describe("bias")),
            scales: Some((scales.describe("d_scales"), ScaleFormat::F32)),
            ..Default::default()
        };
        black_box(arguments.check_fused(&epilogue).unwrap());
    });
    assert_eq!(count, 0, "with finished sums");
    for (layout, a_dims, b_dims) in [
        (GemmLayout::Nn, [64, 512], [512, 256]),
        (GemmLayout::Tt, [512, 64], [256, 512]),
        // Of one column, only M-major can be addressed.
        (GemmLayout::Nt, [64, 1], [256, 1]),
    ] {
        let (a, b) = (new(DType::Bf16, &a_dims), new(DType::Bf16, &b_dims));
        let count = allocations(|| {
            let (a, b, c, d) = (a.describe("a"), b.describe("b"), Some(c.describe("c")), d.describe("d"));
            black_box(HalfGemm { layout, a, b, c, d }.check().unwrap());
        });
        assert_eq!(count, 0, "{layout}");
    }
    let (groups, ids) = (new(DType::E4m3, &[3, 256, 512]), new(DType::I32, &[64]));
    let sfgroups = new(DType::F32, &[3, 2, 4]);
    let count = allocations(|| {
        let arguments = GroupedFp8GemmNt {
            a: a.describe("a"),
            sfa: sfa.describe("sfa"),
            b: groups.describe("b"),
            sfb: sfgroups.describe("sfb"),
            d: d.describe("d"),
            groups: GroupsArgument {
                layout: GroupLayout::Ids,
                numbers: ids.describe("ids"),
                alignment: 16,
                expected: None,
            },
        };
        black_box(arguments.check().unwrap());
    });
    assert_eq!(count, 0);
    let (a_half, b_half) = (new(DType::Bf16, &[64, 512]), new(DType::Bf16, &[3, 512, 256]));
    let count = allocations(|| {
        let arguments = GroupedHalfGemm {
            layout: GemmLayout::Nn,
            a: a_half.describe("a"),
            b: b_half.describe("b"),
            c: Some(c.describe("c")),
            d: d.describe("d"),
            groups: Some(GroupsArgument {
                layout: GroupLayout::Ids,
                numbers: ids.describe("ids"),
                alignment: 16,
                expected: None,
            }),
        };
        black_box(arguments.check().unwrap());
    });
    assert_eq!(count, 0);
    let count = allocations(|| {
        black_box(a.narrow(0, 3, 5).unwrap().transpose(0, 1).unwrap());
        black_box(a.view(&[512, 64]).unwrap());
    });
    assert_eq!(count, 0);
}
