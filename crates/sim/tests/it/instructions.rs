//! Instruction families, each through a small kernel of one warp.

use crate::kernel::*;
use oxigemm_sim::*;

#[test]
fn integers() {
    for (body, want) in [
        ("add.u32 o, 0xffffffff, 2;", 1),
        ("sub.s32 o, 3, 5;", 0xffff_fffe),
        ("mul.lo.u32 o, 0x10001, 0x10001;", 0x0002_0001),
        ("mul.hi.u32 o, 0x80000000, 6;", 3),
        ("mul.hi.s32 o, -2, 3;", 0xffff_ffff),
        ("mad.lo.s32 o, -3, 4, 5;", (-7i32) as u32),
        ("mul.wide.s32 d0, -2, 3; cvt.u32.u64 o, d0;", (-6i32) as u32),
        ("mad.wide.u32 d0, 0xffffffff, 2, 5; shr.u64 d0, d0, 32; cvt.u32.u64 o, d0;", 2),
        ("div.s32 o, -7, 2;", (-3i32) as u32),
        ("rem.s32 o, -7, 2;", (-1i32) as u32),
        ("div.u32 o, 7, 2;", 3),
        ("abs.s32 o, -7;", 7),
        ("neg.s32 o, 7;", (-7i32) as u32),
        ("min.s32 o, -1, 1;", u32::MAX),
        ("min.u32 o, -1, 1;", 1),
        ("max.s32 o, -1, 1;", 1),
        ("and.b32 o, 12, 10;", 8),
        ("or.b32 o, 12, 10;", 14),
        ("xor.b32 o, 12, 10;", 6),
        ("not.b32 o, 0;", u32::MAX),
        ("cnot.b32 o, 0;", 1),
        ("shl.b32 o, 1, 33;", 0),
        ("shr.u32 o, 0x80000000, 31;", 1),
        ("shr.s32 o, 0x80000000, 40;", u32::MAX),
        ("shr.u32 o, 0x80000000, 32;", 0),
        ("popc.b32 o, 0xf0f0;", 8),
        ("clz.b32 o, 0xffff;", 16),
        ("brev.b32 o, 1;", 1 << 31),
        ("bfind.u32 o, 0x1000;", 12),
        ("bfind.s32 o, -1;", u32::MAX),
        ("bfe.u32 o, 0xabcd, 4, 8;", 0xbc),
        ("bfe.s32 o, 0xabcd, 4, 8;", 0xffff_ffbc),
        ("bfi.b32 o, 0xff, 0, 4, 8;", 0xff0),
        ("lop3.b32 o, 0xf0, 0xcc, 0xaa, 0x96;", 0xf0 ^ 0xcc ^ 0xaa),
        ("lop3.b32 o, 0xf0, 0xcc, 0xaa, 0xe8;", 0xf0 & 0xcc | 0xcc & 0xaa | 0xf0 & 0xaa),
        ("prmt.b32 o, 0x33221100, 0x77665544, 0x7610;", 0x7766_1100),
        ("prmt.b32 o, 0x80, 0, 0x8888;", 0xffff_ffff),
        ("prmt.b32.f4e o, 0x33221100, 0x77665544, 1;", 0x4433_2211),
        ("prmt.b32.b4e o, 0x33221100, 0x77665544, 1;", 0x6677_0011),
        ("shf.l.wrap.b32 o, 0x80000000, 1, 1;", 3),
        ("shf.r.wrap.b32 o, 2, 1, 1;", 0x8000_0001),
        ("shf.r.clamp.b32 o, 2, 5, 40;", 5),
        ("bmsk.clamp.b32 o, 4, 8;", 0xff0),
        ("dp4a.s32.s32 o, 0x01ff0203, 0x01010101, 10;", 10 + 1 - 1 + 2 + 3),
        ("sad.u32 o, 3, 10, 1;", 8),
        ("setp.lt.s32 p0, -1, 0; selp.u32 o, 5, 6, p0;", 5),
        ("setp.lt.u32 p0|p1, -1, 0; selp.u32 o, 5, 6, p1;", 5),
        ("setp.eq.u32 p1, 1, 1; setp.lt.and.s32 p0, 3, 2, p1; selp.u32 o, 5, 6, p0;", 6),
        ("setp.eq.u32 p1, 1, 1; setp.lt.or.s32 p0, 3, 2, !p1; selp.u32 o, 5, 6, p0;", 6),
        ("set.lt.u32.s32 o, -1, 0;", u32::MAX),
        ("slct.u32.s32 o, 5, 6, -1;", 6),
        ("add.cc.u32 r0, 0xffffffff, 1; addc.u32 o, 5, 5;", 11),
        ("sub.cc.u32 r0, 0, 1; subc.u32 o, 5, 2;", 2),
        ("mad.lo.cc.u32 r0, 0xffffffff, 1, 1; madc.hi.u32 o, 0x80000000, 4, 1;", 4),
        ("add.u16 h0, 0xffff, 2; cvt.u32.u16 o, h0;", 1),
        ("mov.b64 d0, {1, 2}; mov.b64 {r0, r1}, d0; shl.b32 r1, r1, 4; or.b32 o, r0, r1;", 0x21),
        ("mov.b32 r0, 0x00020001; mov.b32 {h0, _}, r0; mov.b32 o, {h0, h0};", 0x1_0001),
        ("mov.u32 o, WARP_SZ;", 32),
    ] {
        assert_eq!(one(body), want, "{body}");
    }
}

#[test]
fn floats() {
    let f = |x: f32| x.to_bits();
    let tiny = f32::from_bits(1);
    for (body, want) in [
        ("add.f32 f0, 0f3F800000, 0f40000000; mov.b32 o, f0;".to_owned(), f(3.0)),
        ("fma.rn.f32 f0, 0f3F800001, 0f3F800001, 0fBF800002; mov.b32 o, f0;".into(), f(1.4210855e-14)),
        (format!("add.rp.f32 f0, 0f3F800000, 0f{:08X}; mov.b32 o, f0;", f(tiny)), f(1.0) + 1),
        (format!("add.rz.f32 f0, 0f3F800000, 0f{:08X}; mov.b32 o, f0;", f(-tiny)), f(1.0) - 1),
        (format!("add.rm.f32 f0, 0f3F800000, 0f{:08X}; mov.b32 o, f0;", f(tiny)), f(1.0)),
        ("mul.rz.f32 f0, 0f3F800001, 0f3F800001; mov.b32 o, f0;".into(), 0x3f80_0002),
        ("mul.rp.f32 f0, 0f3F800001, 0f3F800001; mov.b32 o, f0;".into(), 0x3f80_0003),
        ("div.rn.f32 f0, 0f3F800000, 0f40400000; mov.b32 o, f0;".into(), f(1.0 / 3.0)),
        ("div.rz.f32 f0, 0f3F800000, 0f40400000; mov.b32 o, f0;".into(), 0x3eaa_aaaa),
        ("sqrt.rn.f32 f0, 0f40000000; mov.b32 o, f0;".into(), f(2f32.sqrt())),
        ("rcp.approx.ftz.f32 f0, 0f40800000; mov.b32 o, f0;".into(), f(0.25)),
        ("ex2.approx.f32 f0, 0f40400000; mov.b32 o, f0;".into(), f(8.0)),
        (format!("add.ftz.f32 f0, 0f{:08X}, 0f00000000; mov.b32 o, f0;", f(tiny)), 0),
        ("add.sat.f32 f0, 0f40000000, 0f40000000; mov.b32 o, f0;".into(), f(1.0)),
        ("max.f32 f0, 0f7FC00000, 0f3F800000; mov.b32 o, f0;".into(), f(1.0)),
        ("max.NaN.f32 f0, 0f7FC00000, 0f3F800000; mov.b32 o, f0;".into(), 0x7fff_ffff),
        ("min.f32 f0, 0f00000000, 0f80000000; mov.b32 o, f0;".into(), 0x8000_0000),
        ("abs.f32 f0, 0fC0000000; mov.b32 o, f0;".into(), f(2.0)),
        ("neg.f32 f0, 0f40000000; mov.b32 o, f0;".into(), f(-2.0)),
        ("setp.gt.f32 p0, 0f7FC00000, 0f00000000; selp.u32 o, 1, 0, p0;".into(), 0),
        ("setp.gtu.f32 p0, 0f7FC00000, 0f00000000; selp.u32 o, 1, 0, p0;".into(), 1),
        (
            "mov.f64 g0, 0d3FF8000000000000; add.f64 g0, g0, g0; cvt.rn.f32.f64 f0, g0; mov.b32 o, f0;"
                .into(),
            f(3.0),
        ),
        ("mov.b32 r0, 0x3c004000; mov.b32 r1, 0x3c003c00; add.f16x2 o, r0, r1;".into(), 0x4000_4200),
        ("mov.b32 r0, 0x3f804000; mov.b32 r1, 0x40004000; fma.rn.bf16x2 o, r0, r1, r1;".into(), 0x4080_40c0),
    ] {
        assert_eq!(one(&body), want, "{body}");
    }
}

#[test]
fn conversions() {
    let f = |x: f32| x.to_bits();
    for (body, want) in [
        ("cvt.rn.bf16x2.f32 o, 0f3F800000, 0fC0000000;", 0x3f80_c000),
        ("cvt.rn.relu.bf16x2.f32 o, 0f3F800000, 0fC0000000;", 0x3f80_0000),
        ("cvt.rn.f16x2.f32 o, 0f3F800000, 0fC0000000;", 0x3c00_c000),
        ("cvt.rn.bf16.f32 h0, 0f3F800000; cvt.u32.u16 o, h0;", 0x3f80),
        ("mov.b16 h0, 0x4049; cvt.f32.bf16 f0, h0; mov.b32 o, f0;", 0x4049_0000),
        ("cvt.rn.satfinite.e4m3x2.f32 h0, 0f43E00000, 0f3F800000; cvt.u32.u16 o, h0;", 0x7e38),
        ("cvt.rn.satfinite.e5m2x2.f32 h0, 0f43E00000, 0f3F800000; cvt.u32.u16 o, h0;", 0x5f3c),
        ("mov.b16 h0, 0x7e38; cvt.rn.f16x2.e4m3x2 o, h0;", 0x5f00_3c00),
        ("cvt.rna.tf32.f32 o, 0f3F801000;", 0x3f80_2000),
        (
            "{ .reg .b8 q; cvt.rn.satfinite.e2m1x2.f32 q, 0f40C00000, 0fBF000000; mov.b16 h0, {q, q}; } cvt.u32.u16 o, h0;",
            0x7979,
        ),
        ("{ .reg .b8 q, z; mov.b16 h0, 0x0079; mov.b16 {q, z}, h0; cvt.rn.f16x2.e2m1x2 o, q; }", 0x4600_b800),
        ("cvt.rn.satfinite.e2m3x2.f32 h0, 0f40F00000, 0f3F800000; cvt.u32.u16 o, h0;", 0x1f08),
        ("cvt.rn.satfinite.e3m2x2.f32 h0, 0f41E00000, 0f3F800000; cvt.u32.u16 o, h0;", 0x1f0c),
        ("cvt.rp.satfinite.ue8m0x2.f32 h0, 0f3FC00000, 0f3F800000; cvt.u32.u16 o, h0;", 0x807f),
        ("cvt.rz.satfinite.ue8m0x2.f32 h0, 0f3FC00000, 0f3F800000; cvt.u32.u16 o, h0;", 0x7f7f),
        ("mov.b16 h0, 0x807f; cvt.rn.bf16x2.ue8m0x2 o, h0;", 0x4000_3f80),
        ("cvt.rzi.s32.f32 o, 0fC0200000;", (-2i32) as u32),
        ("cvt.rni.s32.f32 o, 0f40200000;", 2),
        ("cvt.rpi.f32.f32 f0, 0f40200000; mov.b32 o, f0;", f(3.0)),
        ("cvt.rn.f32.s32 f0, -7; mov.b32 o, f0;", f(-7.0)),
        ("cvt.rn.f32.u32 f0, 16777217; mov.b32 o, f0;", f(16777216.0)),
        ("cvt.rp.f32.u32 f0, 16777217; mov.b32 o, f0;", f(16777218.0)),
        ("mov.u32 r0, 0x1ff; cvt.u8.u32 o, r0;", 0xff),
        ("mov.u32 r0, 0x1ff; cvt.s8.s32 o, r0;", 0xffff_ffff),
        ("mov.u32 r0, 300; cvt.sat.u8.u32 o, r0;", 255),
        ("cvt.u64.s32 d0, -1; shr.u64 d0, d0, 32; cvt.u32.u64 o, d0;", u32::MAX),
    ] {
        assert_eq!(one(body), want, "{body}");
    }
}

#[test]
fn lanes_talk_to_each_other() {
    let lanes = |body: &str| run(body, &[0], &WARP).iter().map(|o| o[0]).collect::<Vec<u32>>();
    let all = |f: fn(u32) -> u32| (0..32).map(f).collect::<Vec<_>>();
    assert_eq!(lanes("shfl.sync.bfly.b32 o, t, 16, 31, 0xffffffff;"), all(|l| l ^ 16));
    assert_eq!(lanes("shfl.sync.down.b32 o, t, 4, 31, -1;"), all(|l| if l < 28 { l + 4 } else { l }));
    assert_eq!(
        lanes("shfl.sync.up.b32 o|p0, t, 1, 0, -1; @!p0 mov.u32 o, 99;"),
        all(|l| if l == 0 { 99 } else { l - 1 })
    );
    assert_eq!(lanes("setp.gt.u32 p0, t, 7; vote.sync.ballot.b32 o, p0, -1;"), all(|_| 0xffff_ff00));
    assert_eq!(
        lanes("setp.gt.u32 p0, t, 7; vote.sync.any.pred p1, p0, -1; selp.u32 o, 1, 0, p1;"),
        all(|_| 1)
    );
    assert_eq!(lanes("and.b32 r0, t, 3; match.any.sync.b32 o, r0, -1;"), all(|l| 0x1111_1111 << (l & 3)));
    assert_eq!(lanes("redux.sync.add.u32 o, t, -1;"), all(|_| 496));
    assert_eq!(lanes("redux.sync.max.s32 o, t, -1;"), all(|_| 31));
    assert_eq!(lanes("elect.sync _|p0, -1; selp.u32 o, 1, 0, p0;"), all(|l| u32::from(l == 0)));
    assert_eq!(lanes("mov.u32 o, %lanemask_lt;"), all(|l| (1 << l) - 1));
    assert_eq!(lanes("activemask.b32 o;"), all(|_| u32::MAX));
}

#[test]
fn lanes_diverge_and_reconverge() {
    // A loop of a different length in every lane, then an exchange of the whole warp.
    let body = "mov.u32 r0, 0; mov.u32 r1, 0;
        L: setp.gt.u32 p0, r0, t; @p0 bra E; add.u32 r1, r1, r0; add.u32 r0, r0, 1; bra L;
        E: shfl.sync.idx.b32 o, r1, 5, 31, -1; mov.u32 o2, r1;";
    for (l, o) in run(body, &[0], &WARP).iter().enumerate() {
        assert_eq!(*o, [15, (l * (l + 1) / 2) as u32]);
    }
    // One side of a branch exits: the others go on without it.
    let body =
        "setp.lt.u32 p0, t, 4; mov.u32 o, 7; @p0 bra X; bar.warp.sync 0xfffffff0; bra Y; X: mov.u32 o, 8; Y:";
    let out = run(body, &[0], &WARP);
    assert!(out.iter().enumerate().all(|(l, o)| o[0] == if l < 4 { 8 } else { 7 }));
    // A lock that lanes of one warp hand to each other by polling.
    let body = "setp.eq.u32 p0, t, 0; @p0 st.shared.u32 [smem], 0; bar.warp.sync -1;
        L: ld.volatile.shared.u32 r0, [smem]; setp.ne.u32 p1, r0, t; @p1 bra L;
        add.u32 r1, t, 1; st.volatile.shared.u32 [smem], r1; mov.u32 o, r0;";
    assert!(run(body, &[0], &Shape { block: 4, ..WARP }).iter().enumerate().all(|(l, o)| o[0] == l as u32));
    // A table of branches.
    let body = "and.b32 r0, t, 3; T: .branchtargets A, B, C, A; brx.idx r0, T;
        A: mov.u32 o, 10; bra Z; B: mov.u32 o, 20; bra Z; C: mov.u32 o, 30; Z: bar.warp.sync -1;";
    let out = run(body, &[0], &WARP);
    assert!(out.iter().enumerate().all(|(l, o)| o[0] == [10, 20, 30, 10][l & 3]));
}

#[test]
fn device_functions_are_called() {
    let text = "
.version 8.0
.target sm_90
.address_size 64
.func (.param .b32 ret0) twice(.param .b32 x0)
{
    .reg .b32 %r<3>;
    ld.param.u32 %r1, [x0];
    add.u32 %r2, %r1, %r1;
    st.param.b32 [ret0], %r2;
    ret;
}
.func (.reg .b32 out) plus(.reg .b32 a, .reg .b32 b)
{
    add.u32 out, a, b;
    ret;
}
.visible .entry k(.param .u64 .ptr .global .align 4 outp)
{
    .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .pred %p<2>;
    .local .align 4 .b8 stack[16];
    ld.param.u64 %rd1, [outp];
    mov.u32 %r1, %tid.x;
    setp.gt.u32 %p1, %r1, 15;
    mov.u32 %r3, %r1;
    @%p1 bra SKIP;
    { // a call with its own parameter space
    .reg .b32 temp;
    .param .b32 p0;
    st.param.b32 [p0+0], %r1;
    .param .b32 r0;
    call.uni (r0), twice, (p0);
    ld.param.b32 %r3, [r0+0];
    }
SKIP:
    call (%r4), plus, (%r3, 100);
    mov.u64 %rd3, stack; cvta.local.u64 %rd3, %rd3;
    st.u32 [%rd3+4], %r4; ld.local.u32 %r5, [stack+4];
    mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd2, %rd1; st.global.u32 [%rd2], %r5;
    ret;
}";
    let module = Module::parse(text).unwrap();
    let mut machine = Machine::new();
    let out = machine.memory.allocate(128);
    let launch = Launch {
        entry: "k".into(),
        grid: [1; 3],
        cluster: None,
        block: [32, 1, 1],
        shared_bytes: 0,
        params: vec![Param::U64(out)],
    };
    machine.run(&module, &launch, &Options::default()).unwrap();
    let bytes = machine.memory.read(out, 128).unwrap();
    for (l, b) in bytes.chunks(4).enumerate() {
        let want = 100 + if l > 15 { l } else { 2 * l };
        assert_eq!(u32::from_le_bytes([b[0], b[1], b[2], b[3]]), want as u32);
    }
}

#[test]
fn memory_and_atomics() {
    let input: Vec<u32> = (0..64).collect();
    // Vector loads through a generic address, sign extension, shared memory and a barrier.
    let body = "mul.wide.u32 d0, t, 8; add.u64 d0, d0, inp; ld.v2.u32 {r0, r1}, [d0];
        shl.b32 r2, t, 2; add.u32 r2, r2, s; st.shared.u32 [r2], r1; bar.sync 0;
        xor.b32 r3, t, 31; shl.b32 r3, r3, 2; add.u32 r3, r3, s; ld.shared.u32 o, [r3]; mov.u32 o2, r0;";
    for (l, o) in run(body, &input, &WARP).iter().enumerate() {
        assert_eq!(*o, [2 * (31 - l as u32) + 1, 2 * l as u32]);
    }
    let body =
        "st.shared.u32 [smem], 0x80ff; bar.warp.sync -1; ld.shared.s8 o, [smem+1]; ld.shared.u8 o2, [smem];";
    assert_eq!(run(body, &[0], &Shape { block: 1, ..WARP })[0], [0xffff_ff80, 0xff]);
    let body = "setp.eq.u32 p0, t, 0; @p0 st.shared.u32 [smem], 5; bar.sync 0;
        atom.shared.add.u32 r0, [smem], 2; red.shared.max.u32 [smem], 3; bar.sync 0; ld.shared.u32 o, [smem];";
    assert!(run(body, &[0], &Shape { block: 96, ..WARP }).iter().all(|o| o[0] == 5 + 192));
    let body = "atom.global.cas.b32 o, [inp], 7, 9; red.release.gpu.global.add.u32 [inp+4], 1;
        mov.u64 d1, 0; cvta.to.global.u64 d2, inp; ld.acquire.gpu.global.u32 o2, [d2+8];";
    assert_eq!(run(body, &[7, 0, 3], &Shape { block: 1, ..WARP })[0], [7, 3]);
    let body = "cvta.shared.u64 d0, d3;";
    assert_eq!(fault(body), FaultKind::Uninitialized);
    assert_eq!(fault("ld.global.u32 o, [inp+256];"), FaultKind::OutOfBounds);
    assert_eq!(fault("ld.global.u32 o, [inp+2];"), FaultKind::Misaligned);
    assert_eq!(fault("ld.shared.u32 o, [smem+64];"), FaultKind::Uninitialized);
    // Padding that comes with a vector load and is not used is no error.
    let body = "st.shared.u32 [smem], 3; ld.shared.v4.u32 {o, r1, r2, r3}, [smem]; mov.u32 r2, 0; add.u32 o2, r2, o;";
    assert_eq!(run(body, &[0], &Shape { block: 1, ..WARP })[0], [3, 3]);
    assert_eq!(fault("@p0 bra E; E: ret;"), FaultKind::Uninitialized);
    // A register that was never written may be moved, not used.
    assert_eq!(one("mov.u32 r1, r0; mov.u32 o, 5;"), 5);
    assert_eq!(fault("mov.u32 r1, r0; add.u32 o, r1, 1;"), FaultKind::Uninitialized);
    assert_eq!(fault("st.shared.u32 [smem+40000], o;"), FaultKind::OutOfBounds);
    assert_eq!(fault("mov.u32 r0, 0; ld.shared.u32 o, [r0];"), FaultKind::OutOfBounds);
    assert_eq!(fault("trap;"), FaultKind::Trap);
}

#[test]
fn matrices_move_between_lanes_and_shared_memory() {
    // Each lane's four registers go out through stmatrix and come back transposed through ldmatrix.
    let body = "shl.b32 r10, t, 1; or.b32 r11, r10, 1; shl.b32 r11, r11, 16; or.b32 r0, r10, r11;
        add.u32 r1, r0, 0x00400040; add.u32 r2, r0, 0x00800080; add.u32 r3, r0, 0x00c000c0;
        shl.b32 r4, t, 4; add.u32 r4, r4, s;
        stmatrix.sync.aligned.m8n8.x4.shared.b16 [r4], {r0, r1, r2, r3}; bar.warp.sync -1;
        ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {r5, r6, r7, r8}, [r4];
        mov.u32 o, r5; movmatrix.sync.aligned.m8n8.trans.b16 o2, r6;";
    for (l, o) in run(body, &[0], &WARP).iter().enumerate() {
        // Element (r, c) of the first matrix is 8r + c; lane 4r + c/2 holds it.
        let (r, c) = (l as u32 / 4, l as u32 % 4 * 2);
        assert_eq!(o[0], (c * 8 + r) | ((c + 1) * 8 + r) << 16, "lane {l}");
        assert_eq!(o[1], (r * 8 + c + 64) | (r * 8 + c + 65) << 16, "lane {l}");
    }
}

#[test]
fn mma_multiplies() {
    // A is all ones, B[k][n] = n: every output is 16 n (+ 1 from C).
    let body = "mov.b32 r0, 0x3f803f80; shr.u32 r1, t, 2; cvt.rn.f32.u32 f0, r1; cvt.rn.bf16x2.f32 r2, f0, f0;
        mov.f32 f1, 0f3F800000;
        mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {f2, f3, f4, f5}, {r0, r0, r0, r0}, {r2, r2}, {f1, f1, f1, f1};
        mov.b32 o, f2; mov.b32 o2, f5;";
    for (l, o) in run(body, &[0], &WARP).iter().enumerate() {
        let c = l as u32 % 4 * 2;
        assert_eq!(o.map(f32::from_bits), [(16 * c + 1) as f32, (16 * (c + 1) + 1) as f32]);
    }
    let body = "mov.b32 r0, 0x38383838; mov.f32 f1, 0f00000000;
        mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {f2, f3, f4, f5}, {r0, r0, r0, r0}, {r0, r0}, {f1, f1, f1, f1};
        mov.b32 o, f2;";
    assert_eq!(f32::from_bits(one(body)), 32.0);
}

#[test]
fn copies_in_bulk() {
    let input: Vec<u32> = (0..64).map(|i| i * 3).collect();
    let shape = Shape { block: 64, ..WARP };
    // Global to shared with an mbarrier, doubled by every thread, and back through a bulk group.
    let body = "setp.eq.u32 p0, t, 0; @!p0 bra W;
        mbarrier.init.shared::cta.b64 [smem+1024], 1; fence.mbarrier_init.release.cluster;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem+1024], 256; add.u32 r9, s, 1024;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [inp], 256, [r9];
        W: bar.sync 0;
        L: mbarrier.try_wait.parity.shared::cta.b64 p1, [smem+1024], 0; @!p1 bra L;
        shl.b32 r0, t, 2; add.u32 r0, r0, s; ld.shared.u32 r1, [r0]; add.u32 r1, r1, r1; st.shared.u32 [r0], r1;
        fence.proxy.async.shared::cta; bar.sync 0; @!p0 bra Z;
        cp.async.bulk.global.shared::cta.bulk_group [inp], [s], 256;
        cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [inp], [s], 16;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        Z: bar.sync 0; mul.wide.u32 d0, t, 4; add.u64 d0, d0, inp; ld.global.u32 o, [d0];";
    // The two stores of one group are not ordered among themselves: give the second its own group.
    let body = body.replace("cp.reduce", "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; cp.reduce");
    for (i, o) in run(&body, &input, &shape).iter().enumerate() {
        assert_eq!(o[0], i as u32 * if i < 4 { 12 } else { 6 });
    }
    // cp.async with zero fill, by every lane.
    let body =
        "shl.b32 r0, t, 4; add.u32 r0, r0, s; and.b32 r1, t, 3; mul.wide.u32 d0, r1, 16; add.u64 d0, d0, inp;
        cp.async.ca.shared.global [r0], [d0], 16, 8; cp.async.commit_group; cp.async.wait_group 0;
        ld.shared.v2.u32 {o, r2}, [r0]; ld.shared.u32 o2, [r0+8];";
    for (l, o) in run(body, &input, &WARP).iter().enumerate() {
        assert_eq!(*o, [12 * (l as u32 & 3), 0]);
    }
}

#[test]
fn clusters_share_their_memory() {
    // Each CTA writes its rank into the next one, through mapa and a remote arrival.
    let body = "mov.u32 r0, %cluster_ctarank; mov.u32 r1, %cluster_nctarank; add.u32 r2, r0, 1; rem.u32 r2, r2, r1;
        setp.eq.u32 p0, t, 0; @!p0 bra A; mbarrier.init.shared::cta.b64 [smem+64], 1; fence.mbarrier_init.release.cluster;
        A: bar.warp.sync -1; barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
        @!p0 bra B; mapa.shared::cluster.u32 r3, s, r2; st.shared::cluster.u32 [r3], r0;
        mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r3+64];
        B: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p1, [smem+64], 0; @!p1 bra B;
        ld.shared.u32 o, [smem]; mov.u32 o2, %clusterid.x;
        barrier.cluster.arrive.release; barrier.cluster.wait.acquire;";
    let out = run(body, &[0], &Shape { grid: 8, cluster: 4, block: 64 });
    for (i, o) in out.iter().enumerate() {
        let (cta, rank) = (i / 64, i / 64 % 4);
        assert_eq!(*o, [(rank as u32 + 3) % 4, cta as u32 / 4]);
    }
}

#[test]
fn barriers_count_threads() {
    // Two producers signal named barrier 1, one consumer warp waits for both.
    let body =
        "setp.lt.u32 p0, t, 64; @!p0 bra C; shl.b32 r0, t, 2; add.u32 r0, r0, s; st.shared.u32 [r0], t;
        bar.arrive 1, 96; bra D; C: bar.sync 1, 96; sub.u32 r1, t, 64; shl.b32 r1, r1, 3; add.u32 r1, r1, s;
        ld.shared.v2.u32 {o, o2}, [r1]; D:";
    let out = run(body, &[0], &Shape { block: 96, ..WARP });
    assert!((0..32).all(|i| out[64 + i] == [2 * i as u32, 2 * i as u32 + 1]));
    let body =
        "setp.gt.u32 p0, t, 9; bar.red.popc.u32 o, 0, p0; bar.red.and.pred p1, 0, p0; selp.u32 o2, 1, 0, p1;";
    assert!(run(body, &[0], &Shape { block: 64, ..WARP }).iter().all(|o| *o == [54, 0]));
}

#[test]
fn blocks_that_wait_for_each_other_give_way() {
    let body = "atom.relaxed.gpu.global.add.u32 r0, [inp], 1; mov.u32 r2, %nctaid.x;
        L: ld.relaxed.gpu.global.u32 r1, [inp]; setp.ne.u32 p0, r1, r2; @p0 bra L; mov.u32 o, r1;";
    let meet = |grid, options: &Options| {
        let shape = Shape { grid, cluster: 1, block: 1 };
        launch(body, &[0], &shape, &Options { instruction_limit: 200_000, ..options.clone() })
    };
    for options in policies() {
        let out = meet(132, &options).unwrap_or_else(|fault| panic!("{:?}: {fault}", options.policy));
        assert!(out.iter().all(|o| o[0] == 132));
        let few = Options { resident_ctas: 131, ..options };
        assert!(meet(132, &few).is_err(), "one of them never begins");
    }
}
