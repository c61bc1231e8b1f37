//! Tensor copies and `wgmma` in every layout: rank 1 to 5, every swizzle, both majors, A in registers.

use oxigemm_sim::*;

fn policies() -> [Options; 3] {
    let random = Options { policy: Policy::Random, seed: 3, ..Options::default() };
    [Options::default(), Options { policy: Policy::Lazy, ..Options::default() }, random]
}

// -------------------------------------------------------------------- tensor copies

/// A kernel that loads one box, and either stores it elsewhere or copies shared memory out as it is.
fn copy_kernel(rank: usize, reduce: bool) -> String {
    // Stores begin inside of the tensor.
    let coords = |name: &str| (0..rank).map(|i| format!("{name}{i}")).collect::<Vec<_>>().join(", ");
    let loads: String =
        (0..rank).map(|i| format!("ld.param.s32 c{i}, [at{i}]; max.s32 e{i}, c{i}, 0;")).collect();
    let params: String = (0..rank).map(|i| format!(", .param .s32 at{i}")).collect();
    let store = if reduce { "cp.reduce" } else { "cp" };
    let op = if reduce { ".add" } else { "" };
    format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];
        .visible .entry k(.param .align 64 .b8 src[128], .param .align 64 .b8 dst[128], .param .u64 dump, .param .u32 bytes{params})
        {{ .reg .pred p<4>; .reg .b32 r<8>, c<5>, e<5>; .reg .b64 d<8>; .shared .align 8 .b64 bar;
        {loads} mov.u32 r0, %tid.x; setp.ne.u32 p0, r0, 0; @p0 bra DONE;
        mov.b64 d0, src; cvta.param.u64 d0, d0; mov.b64 d1, dst; cvta.param.u64 d1, d1; ld.param.u32 r1, [bytes];
        mov.u32 r2, smem; mov.u32 r3, bar; ld.param.u64 d2, [dump];
        prefetch.tensormap [d0];
        mbarrier.init.shared::cta.b64 [bar], 1; fence.mbarrier_init.release.cluster;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], r1;
        cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [r2], [d0, {{{c}}}], [r3];
        W: mbarrier.try_wait.parity.shared::cta.b64 p1, [bar], 0; @!p1 bra W;
        {store}.async.bulk.tensor.{rank}d.global.shared::cta{op}.tile.bulk_group [d1, {{{e}}}], [r2];
        cp.async.bulk.global.shared::cta.bulk_group [d2], [r2], r1;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;
        DONE: ret; }}",
        c = coords("c"),
        e = coords("e")
    )
}

struct Case {
    dims: Vec<u64>,
    boxes: Vec<u32>,
    coords: Vec<i32>,
    swizzle: Swizzle,
    reduce: bool,
}

/// Runs a case: (what the destination holds, shared memory as loaded), checked against plain loops.
fn check_copy(case: &Case) {
    let rank = case.dims.len();
    // Rows of u32, padded to 16 bytes.
    let mut strides = vec![(case.dims[0] * 4).div_ceil(16) * 16];
    for d in &case.dims[1..rank] {
        strides.push(strides[strides.len() - 1] * d);
    }
    let total = strides.pop().unwrap() as usize / 4;
    let source: Vec<u32> = (0..total as u32).map(|i| i.wrapping_mul(2654435761)).collect();
    let bytes = |v: &[u32]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let words =
        |b: &[u8]| b.chunks(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect::<Vec<u32>>();
    let box_words: usize = case.boxes.iter().map(|b| *b as usize).product();

    // The expected dense box, and the expected destination.
    let mut dense = vec![0u32; box_words];
    let mut target = vec![7u32; total];
    // The word of element `i` of a box at a corner, where it lies inside.
    let place = |i: usize, corner: &dyn Fn(usize) -> i32| {
        let (mut rest, mut at, mut inside) = (i, 0usize, true);
        for d in 0..rank {
            let c = i64::from(corner(d)) + (rest % case.boxes[d] as usize) as i64;
            rest /= case.boxes[d] as usize;
            inside &= (0..case.dims[d] as i64).contains(&c);
            let stride = if d == 0 { 1 } else { strides[d - 1] as usize / 4 };
            at = at.wrapping_add((c as usize).wrapping_mul(stride));
        }
        inside.then_some(at)
    };
    for (i, slot) in dense.iter_mut().enumerate() {
        *slot = place(i, &|d| case.coords[d]).map_or(0, |at| source[at]);
        if let Some(at) = place(i, &|d| case.coords[d].max(0)) {
            target[at] = if case.reduce { slot.wrapping_add(7) } else { *slot };
        }
    }

    let module = Module::parse(&copy_kernel(rank, case.reduce)).unwrap();
    for options in policies() {
        let mut machine = Machine::new();
        let src = machine.memory.allocate_with(&bytes(&source));
        let dst = machine.memory.allocate_with(&bytes(&vec![7; total]));
        let dump = machine.memory.allocate(box_words * 4);
        let map = |address| {
            TensorMapSpec {
                address,
                element: Element::U32,
                dims: case.dims.clone(),
                strides: strides.clone(),
                box_dims: case.boxes.clone(),
                swizzle: case.swizzle,
            }
            .encode()
            .unwrap()
            .into()
        };
        let mut params = vec![map(src), map(dst), Param::U64(dump), Param::U32(box_words as u32 * 4)];
        params.extend(case.coords.iter().map(|c| Param::U32(*c as u32)));
        let launch = Launch {
            entry: "k".into(),
            grid: [1; 3],
            cluster: None,
            block: [32, 1, 1],
            shared_bytes: 65536,
            params,
        };
        machine.run(&module, &launch, &options).unwrap_or_else(|f| panic!("{f}"));
        assert_eq!(words(machine.memory.read(dst, total * 4).unwrap()), target, "destination, rank {rank}");
        let dumped = words(machine.memory.read(dump, box_words * 4).unwrap());
        for (i, want) in dense.iter().enumerate() {
            let place = case.swizzle.apply(i as u32 * 4) as usize / 4;
            assert_eq!(dumped[place], *want, "word {i}, rank {rank}, {:?}", case.swizzle);
        }
    }
}

#[test]
fn boxes_of_every_rank_and_swizzle() {
    let shapes: [(&[u64], &[u32], &[i32]); 6] = [
        (&[50], &[16], &[40]),
        (&[40, 9], &[8, 8], &[36, 3]),
        (&[33, 5, 4], &[8, 4, 3], &[-4, 2, 2]),
        (&[12, 3, 4, 3], &[8, 2, 2, 2], &[8, 2, -1, 1]),
        (&[9, 2, 3, 2, 3], &[8, 2, 2, 2, 2], &[4, 1, 2, 0, 2]),
        (&[64, 40], &[8, 32], &[1000, 1000]),
    ];
    for (dims, boxes, coords) in shapes {
        let atoms = [Swizzle::B128Atom32, Swizzle::B128Atom64];
        let plain = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];
        for swizzle in plain.into_iter().chain(atoms) {
            for reduce in [false, true] {
                let inner = boxes[0] * 4;
                if swizzle != Swizzle::None && inner > swizzle.span() {
                    continue;
                }
                check_copy(&Case {
                    dims: dims.to_vec(),
                    boxes: boxes.to_vec(),
                    coords: coords.to_vec(),
                    swizzle,
                    reduce,
                });
            }
        }
    }
}

// -------------------------------------------------------------------- wgmma

#[derive(Clone, Copy, Debug, PartialEq)]
enum Major {
    K,
    Mn,
}

/// The byte of element (row, k) of an operand in shared memory, and the descriptor's strides.
struct Layout {
    major: Major,
    swizzle: Swizzle,
    element: u32,
    rows: u32,
}

impl Layout {
    fn strides(&self) -> (u32, u32) {
        match (self.major, self.swizzle) {
            // Eight rows of 16 bytes are one core matrix; cores follow each other along the rows first.
            (Major::K, Swizzle::None) => (self.rows * 16, 128),
            (Major::K, s) => (16, 8 * s.span()),
            (Major::Mn, Swizzle::None) => (self.rows / 8 * 128, 128),
            // Two groups of eight along K, then the next span of rows.
            (Major::Mn, s) => (16 * s.span(), 8 * s.span()),
        }
    }

    fn byte(&self, row: u32, k: u32) -> u32 {
        let (leading, stride) = self.strides();
        let span = self.swizzle.span();
        let at = match (self.major, self.swizzle) {
            (Major::K, Swizzle::None) => {
                let b = k * self.element;
                row % 8 * 16 + row / 8 * stride + b / 16 * leading + b % 16
            }
            (Major::K, _) => row % 8 * span + row / 8 * stride + k * self.element,
            (Major::Mn, Swizzle::None) => row / 8 * stride + k % 8 * 16 + k / 8 * leading + row % 8 * 2,
            (Major::Mn, _) => {
                let per = span / 2;
                row % per * 2 + row / per * leading + k % 8 * span + k / 8 * stride
            }
        };
        self.swizzle.apply(at)
    }

    fn descriptor(&self, start: u32) -> u64 {
        let (leading, stride) = self.strides();
        let mode = match self.swizzle {
            Swizzle::None => 0u64,
            Swizzle::B128 => 1,
            Swizzle::B64 => 2,
            Swizzle::B32 => 3,
            other => panic!("{other:?} is no swizzle of wgmma"),
        };
        u64::from(start >> 4) | u64::from(leading >> 4) << 16 | u64::from(stride >> 4) << 32 | mode << 62
    }
}

const B_AT: u32 = 32768;

/// The accumulators of a product: their type, how many a register holds, and a register of ones.
fn accumulators(acc: &str) -> (u32, u32) {
    match acc {
        "f32" => (1, 0x3f80_0000),
        "f16" => (2, 0x3c00_3c00),
        "s32" => (1, 1),
        _ => unreachable!(),
    }
}

/// One wgmma on images of A and B; A through registers when `in_registers`.
fn wgmma_kernel(n: u32, acc: &str, ty: &str, k: u32, trans: (bool, bool), in_registers: bool) -> String {
    let (per, ones) = accumulators(acc);
    let count = n / 2 / per;
    let d: Vec<String> = (0..count).map(|i| format!("f{i}")).collect();
    let zero: String = d.iter().map(|r| format!("mov.b32 {r}, {ones};")).collect();
    let store: String =
        d.iter().enumerate().map(|(i, r)| format!("st.global.b32 [d5+{}], {r};", i * 4)).collect();
    let half = ty.ends_with("f16");
    // Integers have no scales: the sign of B is for floats.
    let scales = if acc == "s32" { "" } else { ", 1, -1" };
    let flags = match (half, in_registers) {
        (true, false) => format!(", {}, {}", u32::from(trans.0), u32::from(trans.1)),
        (true, true) => format!(", {}", u32::from(trans.1)),
        _ => String::new(),
    };
    // Register A: lane 4g + t has rows g and g + 8, two words apart along K, read from a dense image.
    let a = if in_registers { "{r10, r11, r12, r13}" } else { "d1" };
    let load_a = "shr.u32 r6, r0, 5; shl.b32 r6, r6, 4; shr.u32 r7, r0, 2; and.b32 r7, r7, 7; add.u32 r6, r6, r7;
        shl.b32 r6, r6, 5; and.b32 r7, r0, 3; shl.b32 r7, r7, 2; add.u32 r6, r6, r7; mov.u32 r7, smem; add.u32 r6, r6, r7;
        ld.shared.b32 r10, [r6]; ld.shared.b32 r11, [r6+256]; ld.shared.b32 r12, [r6+16]; ld.shared.b32 r13, [r6+272];";
    format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];
        .visible .entry k(.param .u64 image, .param .u64 out, .param .u64 da, .param .u64 db)
        {{ .reg .pred p<4>; .reg .b32 r<16>; .reg .b64 d<8>; .reg .b32 f<{count}>; .shared .align 8 .b64 bar;
        mov.u32 r0, %tid.x; ld.param.u64 d0, [image]; ld.param.u64 d1, [da]; ld.param.u64 d2, [db]; ld.param.u64 d4, [out];
        mov.u32 r2, smem; shr.u32 r3, r2, 4; cvt.u64.u32 d3, r3; add.u64 d1, d1, d3; add.u64 d2, d2, d3; mov.u32 r4, bar;
        setp.ne.u32 p0, r0, 0; @p0 bra W; mbarrier.init.shared::cta.b64 [bar], 1; fence.mbarrier_init.release.cluster;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 65536;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r2], [d0], 65536, [r4];
        W: bar.sync 0; L: mbarrier.try_wait.parity.shared::cta.b64 p1, [bar], 0; @!p1 bra L;
        {zero} {load} setp.eq.u32 p2, r0, r0;
        wgmma.fence.sync.aligned;
        wgmma.mma_async.sync.aligned.m64n{n}k{k}.{acc}.{ty}.{ty} {{{d}}}, {a}, d2, p2{scales}{flags};
        wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
        mul.wide.u32 d5, r0, {bytes}; add.u64 d5, d5, d4; {store} ret; }}",
        d = d.join(","),
        load = if in_registers { load_a } else { "" },
        bytes = count * 4,
    )
}

/// Small integers, exact in every input type; the sum is exact whatever the tensor core truncates.
fn value(i: u32) -> i32 {
    (i.wrapping_mul(2654435761) >> 13) as i32 % 4
}

fn encode(ty: &str, v: i32) -> Vec<u8> {
    let f = (v as f32).to_bits();
    match ty {
        "bf16" => ((f >> 16) as u16).to_le_bytes().to_vec(),
        "f16" => {
            let table = [(0, 0u16), (1, 0x3c00), (2, 0x4000), (3, 0x4200)];
            let code = table.iter().find(|t| t.0 == v.abs()).unwrap().1;
            (code | if v < 0 { 0x8000 } else { 0 }).to_le_bytes().to_vec()
        }
        "tf32" => f.to_le_bytes().to_vec(),
        "e4m3" | "e5m2" => {
            let codes = if ty == "e4m3" { [0u8, 0x38, 0x40, 0x44] } else { [0, 0x3c, 0x40, 0x42] };
            vec![codes[v.unsigned_abs() as usize] | if v < 0 { 0x80 } else { 0 }]
        }
        "s8" => vec![v as u8],
        "u8" => vec![v.unsigned_abs() as u8],
        _ => unreachable!(),
    }
}

fn check_wgmma(ty: &str, n: u32, a: (Major, Swizzle), b: (Major, Swizzle), in_registers: bool) {
    check_sums("f32", ty, n, a, b, in_registers);
}

fn check_sums(acc: &str, ty: &str, n: u32, a: (Major, Swizzle), b: (Major, Swizzle), in_registers: bool) {
    let value = |i: u32| if ty == "u8" { value(i).abs() } else { value(i) };
    let (per, _) = accumulators(acc);
    let element = encode(ty, 0).len() as u32;
    let k = 32 / element;
    let la = Layout { major: a.0, swizzle: a.1, element, rows: 64 };
    let lb = Layout { major: b.0, swizzle: b.1, element, rows: n };
    let mut image = vec![0u8; 65536];
    for i in 0..64 {
        for x in 0..k {
            // A for registers is dense: 32 bytes per row.
            let at = if in_registers { i * 32 + x * element } else { la.byte(i, x) } as usize;
            image[at..at + element as usize].copy_from_slice(&encode(ty, value(i * k + x)));
        }
    }
    for j in 0..n {
        for x in 0..k {
            let at = (B_AT + lb.byte(j, x)) as usize;
            image[at..at + element as usize].copy_from_slice(&encode(ty, value(10007 + j * k + x)));
        }
    }
    let text = wgmma_kernel(n, acc, ty, k, (a.0 == Major::Mn, b.0 == Major::Mn), in_registers);
    let module = Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    for options in policies() {
        let mut machine = Machine::new();
        let src = machine.memory.allocate_with(&image);
        let out = machine.memory.allocate(128 * n as usize * 2);
        let launch = Launch {
            entry: "k".into(),
            grid: [1; 3],
            cluster: None,
            block: [128, 1, 1],
            shared_bytes: 65536,
            params: vec![
                Param::U64(src),
                Param::U64(out),
                Param::U64(la.descriptor(0)),
                Param::U64(lb.descriptor(B_AT)),
            ],
        };
        machine.run(&module, &launch, &options).unwrap_or_else(|f| panic!("{ty} n={n} {a:?} {b:?}: {f}"));
        let bytes = machine.memory.read(out, 128 * n as usize * 2).unwrap().to_vec();
        for t in 0..128u32 {
            for r in 0..n / 2 {
                let row = t / 32 * 16 + t % 32 / 4 + r % 4 / 2 * 8;
                let column = r / 4 * 8 + t % 4 * 2 + r % 2;
                let sum: i32 = (0..k).map(|x| value(row * k + x) * value(10007 + column * k + x)).sum();
                // B is negated, but for integers.
                let want = if acc == "s32" { 1 + sum } else { 1 - sum };
                let at = ((t * (n / 2 / per) + r / per) * 4) as usize;
                let word = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
                let got = match acc {
                    "f32" => f32::from_bits(word),
                    "s32" => word as i32 as f32,
                    _ => small_f16((word >> (16 * (r % 2))) as u16),
                };
                assert_eq!(got, want as f32, "{acc} {ty} n={n} A {a:?} B {b:?} ({row}, {column})");
            }
        }
    }
}

#[test]
fn wgmma_in_every_layout() {
    let k_major = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128].map(|s| (Major::K, s));
    let mn_major = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128].map(|s| (Major::Mn, s));
    for layout in k_major {
        for ty in ["e4m3", "e5m2", "bf16", "f16", "tf32"] {
            check_wgmma(ty, 64, layout, layout, false);
        }
    }
    for layout in mn_major {
        check_wgmma("bf16", 64, layout, layout, false);
        check_wgmma("f16", 128, (Major::K, Swizzle::B128), layout, false);
        check_wgmma("bf16", 64, (Major::K, Swizzle::None), layout, true);
    }
}

/// A normal f16, or zero.
fn small_f16(code: u16) -> f32 {
    let magnitude = u32::from(code & 0x7fff);
    let value = if magnitude == 0 { 0.0 } else { f32::from_bits((magnitude << 13) + (112 << 23)) };
    if code >> 15 == 1 { -value } else { value }
}

#[test]
fn wgmma_with_f16_and_integer_sums() {
    for layout in [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128].map(|s| (Major::K, s)) {
        for in_registers in [false, true] {
            check_sums("f16", "f16", 64, layout, layout, in_registers);
            check_sums("f16", "e4m3", 32, layout, layout, in_registers);
            check_sums("s32", "s8", 64, layout, layout, in_registers);
            check_sums("s32", "u8", 16, layout, layout, in_registers);
        }
    }
}

#[test]
fn wgmma_of_every_width() {
    let layout = (Major::K, Swizzle::B128);
    for n in (8..=256).step_by(24) {
        check_wgmma("e4m3", n, layout, layout, false);
        check_wgmma("e4m3", n, layout, layout, true);
    }
    check_wgmma("bf16", 256, layout, layout, true);
}
