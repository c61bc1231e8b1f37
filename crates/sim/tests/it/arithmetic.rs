//! Arithmetic that compilers write less often: packed integers, bit searches, mixed precision, minima of
//! three, comparisons of pairs, f64 with directed rounding, special registers.

use crate::kernel::*;
use oxigemm_sim::{FaultKind, Module};

#[test]
fn packed_and_narrow_integers() {
    for (body, want) in [
        ("add.u16x2 o, 0xffff0001, 0x00010002;", 0x0000_0003),
        ("min.u16x2 o, 0xffff0001, 0x00010002;", 0x0001_0001),
        ("max.s16x2 o, 0xffff0001, 0x00010002;", 0x0001_0002),
        ("min.s16x2 o, 0xffff0001, 0x00010002;", 0xffff_0001),
        ("min.relu.s16x2 o, 0xffff0001, 0x00010002;", 0x0000_0001),
        ("max.relu.s32 o, -5, -3;", 0),
        ("mul24.lo.u32 o, 0xff000003, 5;", 15),
        ("mul24.hi.s32 o, 0x00800000, 0x10000;", 0xff80_0000),
        ("mad24.lo.s32 o, 0xffffff, 3, 10;", 7),
        ("dp2a.lo.s32.s32 o, 0x0002ffff, 0x0403ff05, 1;", (1i32 - 5 - 2) as u32),
        ("dp2a.hi.u32.u32 o, 0x00020003, 0x04030201, 0;", 3 * 3 + 2 * 4),
        ("dp4a.u32.s32 o, 0xff000000, 0xff000000, 0;", (-255i32) as u32),
        ("szext.clamp.s32 o, 0xff, 8;", u32::MAX),
        ("szext.clamp.u32 o, 0x1ff, 8;", 0xff),
        ("szext.wrap.u32 o, 0x1ff, 33;", 1),
        ("fns.b32 o, 0xaaaaaaaa, 3, 1;", 3),
        ("fns.b32 o, 0xaaaaaaaa, 2, 3;", 7),
        ("fns.b32 o, 0xaaaaaaaa, 4, -2;", 1),
        ("fns.b32 o, 0xaaaaaaaa, 0, -1;", u32::MAX),
        ("fns.b32 o, 0xaaaaaaaa, 5, 0;", 5),
        ("cvt.pack.sat.s16.s32 o, 70000, -5;", 0x7fff_fffb),
        ("cvt.pack.sat.u16.s32 o, 70000, -5;", 0xffff_0000),
        ("cvt.pack.sat.u8.s32.b32 o, 300, -5, 0x1234;", 0x1234_ff00),
        ("cvt.pack.sat.s8.s32.b32 o, -300, 7, 0x1234;", 0x1234_8007),
        ("setp.eq.u32 p1, 1, 1; lop3.or.b32 o|p0, 0xf0, 0xcc, 0xaa, 0x80, !p1; selp.u32 o, 1, 0, p0;", 1),
        ("setp.eq.u32 p1, 1, 2; lop3.and.b32 _|p0, 0xf0, 0xcc, 0xaa, 0x80, p1; selp.u32 o, 1, 0, p0;", 0),
        ("setp.eq.u32 p1, 1, 1; set.lt.and.u32.s32 o, -1, 0, !p1;", 0),
        ("set.gt.f32.s32 f0, 4, 3; mov.b32 o, f0;", 0x3f80_0000),
        ("mov.b64 d0, 0x8000000000000000; clz.b64 o, d0; popc.b64 o2, d0;", 0),
        ("bfind.shiftamt.u32 o, 0x1000;", 19),
        ("mul.hi.u64 d0, 0x8000000000000000, 6; cvt.u32.u64 o, d0;", 3),
        ("mul.hi.s64 d0, -2, 3; cvt.u32.u64 o, d0;", u32::MAX),
        ("add.cc.u64 d0, -1, 1; addc.u64 d1, 0, 0; cvt.u32.u64 o, d1;", 1),
        ("add.sat.s32 o, 0x7fffffff, 1;", 0x7fff_ffff),
        ("sad.s32 o, -3, 10, 1;", 14),
        ("bfe.s64 d0, 0xff00, 8, 8; cvt.u32.u64 o, d0;", u32::MAX),
        ("abs.s16 h0, 0xfffe; cvt.u32.u16 o, h0;", 2),
        ("shr.s16 h0, 0x8000, 3; cvt.u32.u16 o, h0;", 0xf000),
        ("mul.wide.u16 o, 0xffff, 0xffff;", 0xfffe_0001),
        ("mad.wide.s16 o, 0xffff, 3, 10;", 7),
        ("slct.u32.f32 o, 5, 6, 0f80000000;", 5),
    ] {
        assert_eq!(one(body), want, "{body}");
    }
}

#[test]
fn floats_of_mixed_and_packed_forms() {
    let f = |x: f32| x.to_bits();
    for (body, want) in [
        ("min.f32 f0, 0f40000000, 0f3F800000, 0f40400000; mov.b32 o, f0;", f(1.0)),
        ("max.f32 f0, 0f40000000, 0f7FC00000, 0f40400000; mov.b32 o, f0;", f(3.0)),
        ("max.abs.f32 f0, 0f40000000, 0fC0800000, 0f40400000; mov.b32 o, f0;", f(4.0)),
        ("min.abs.f32 f0, 0fC0000000, 0fC0800000, 0f40400000; mov.b32 o, f0;", f(2.0)),
        ("max.NaN.abs.f32 f0, 0f40000000, 0f7FC00000, 0f40400000; mov.b32 o, f0;", 0x7fff_ffff),
        ("max.NaN.f32 f0, 0f40000000, 0f7FC00000, 0f40400000; mov.b32 o, f0;", 0x7fff_ffff),
        ("min.xorsign.abs.f32 f0, 0fC0000000, 0f3F800000; mov.b32 o, f0;", f(-1.0)),
        ("max.xorsign.abs.f32 f0, 0fC0000000, 0fBF800000; mov.b32 o, f0;", f(2.0)),
        ("mov.b16 h0, 0x3e00; add.f32.f16 f0, h0, 0f3F800000; mov.b32 o, f0;", f(2.5)),
        ("mov.b16 h0, 0x3fc0; sub.f32.bf16 f0, h0, 0f3F800000; mov.b32 o, f0;", f(0.5)),
        (
            "mov.b16 h0, 0x3e00; mov.b16 h1, 0x4000; fma.rn.f32.f16 f0, h0, h1, 0f3F800000; mov.b32 o, f0;",
            f(4.0),
        ),
        ("mov.b16 h0, 0x3fc0; fma.rz.sat.f32.bf16 f0, h0, h0, 0f3F800000; mov.b32 o, f0;", f(1.0)),
        ("mov.b32 r0, 0x3c004000; mov.b32 r1, 0x40003c00; set.gt.f16x2.f16x2 o, r0, r1;", 0x0000_3c00),
        ("mov.b32 r0, 0x3f804000; mov.b32 r1, 0x40003f80; set.lt.u32.bf16x2 o, r0, r1;", 0xffff_0000),
        (
            "mov.b32 r0, 0x3c004000; mov.b32 r1, 0x40003c00; setp.gt.f16x2 p0|p1, r0, r1; selp.u32 o, 1, 2, p0;",
            1,
        ),
        (
            "mov.b32 r0, 0x3c004000; mov.b32 r1, 0x40003c00; setp.gt.f16x2 p0|p1, r0, r1; selp.u32 o, 1, 2, p1;",
            2,
        ),
        ("mov.b32 r0, 0xbc004000; neg.f16x2 o, r0;", 0x3c00_c000),
        ("mov.b32 r0, 0x02000600; mov.b32 r1, 0x00000400; sub.ftz.f16x2 o, r0, r1;", 0),
        ("mov.b32 r0, 0x02000600; mov.b32 r1, 0x00000400; sub.f16x2 o, r0, r1;", 0x0200_0200),
        ("mov.b32 r0, 0x8001c31a; ex2.approx.ftz.bf16x2 o, r0;", 0x3f80_0000),
        ("mov.b32 r0, 0xbf804000; abs.bf16x2 o, r0;", 0x3f80_4000),
        ("mov.b32 r0, 0xbf804000; fma.rn.relu.bf16x2 o, r0, r0, r0;", 0x0000_40c0),
        ("mov.b32 r0, 0x7e003c00; mov.b32 r1, 0x3c004000; max.NaN.f16x2 o, r0, r1;", 0x7fff_4000),
        ("mov.b32 r0, 0x3c003c00; ex2.approx.f16x2 o, r0;", 0x4000_4000),
        ("mov.b16 h0, 0x3f80; mov.b16 h1, 0x4000; mul.bf16 h2, h0, h1; cvt.u32.u16 o, h2;", 0x4000),
        ("testp.subnormal.f32 p0, 0f00000001; selp.u32 o, 1, 0, p0;", 1),
        ("testp.infinite.f64 p0, 0d7FF0000000000000; selp.u32 o, 1, 0, p0;", 1),
        ("copysign.f32 f0, 0fBF800000, 0f40000000; mov.b32 o, f0;", f(-2.0)),
        ("mov.b64 d0, {0x3f800000, 0x40000000}; add.rn.f32x2 d1, d0, d0; mov.b64 {o, o2}, d1;", f(2.0)),
        ("div.full.f32 f0, 0f40C00000, 0f40000000; mov.b32 o, f0;", f(3.0)),
        ("rsqrt.approx.f32 f0, 0f40800000; mov.b32 o, f0;", f(0.5)),
        ("lg2.approx.ftz.f32 f0, 0f41000000; mov.b32 o, f0;", f(3.0)),
        ("sqrt.approx.f32 f0, 0f41100000; mov.b32 o, f0;", f(3.0)),
        ("tanh.approx.f32 f0, 0f00000000; mov.b32 o, f0;", 0),
    ] {
        assert_eq!(one(body), want, "{body}");
    }
}

/// The direction of f64 rounding: the result of each mode brackets the exact value, one step apart.
#[test]
fn doubles_round_in_the_asked_direction() {
    let run = |op: &str, mode: &str, values: &[f64]| {
        let list: Vec<String> = values.iter().map(|v| format!("0d{:016X}", v.to_bits())).collect();
        let body = format!("{op}.{mode}.f64 g0, {}; mov.b64 {{o, o2}}, g0;", list.join(", "));
        let [low, high] = crate::kernel::run(&body, &[0], &WARP)[0];
        f64::from_bits(u64::from(low) | u64::from(high) << 32)
    };
    let third = 1.0f64 / 3.0;
    for values in [[1.0, 3.0], [1e300, -7e-5], [-third, 0.1], [2.0f64.powi(60), -third]] {
        for (op, n) in [("add", 2), ("sub", 2), ("mul", 2), ("div", 2), ("fma", 3)] {
            let list = &[values[0], values[1], third][..n];
            let [down, up, zero, near] = ["rm", "rp", "rz", "rn"].map(|m| run(op, m, list));
            assert!(down == up || down.next_up() == up, "{op} {list:?}: {down:e} {up:e}");
            assert!(near == down || near == up, "{op} {list:?}");
            assert_eq!(zero, if near > 0.0 { down } else { up }, "{op} {list:?}");
        }
    }
    let [down, up] = ["rm", "rp"].map(|m| run("sqrt", m, &[2.0]));
    assert!(down * down < 2.0 && up * up > 2.0 && down.next_up() == up);
    // 1 + 2^-60 lies strictly between 1 and its neighbour.
    let tiny = 2f64.powi(-60);
    assert_eq!(run("add", "rp", &[1.0, tiny]), 1.0f64.next_up());
    assert_eq!(run("add", "rz", &[1.0, -tiny]), 1.0f64.next_down());
    assert_eq!(run("fma", "rm", &[1.0, 1.0, tiny]), 1.0);
    assert_eq!(run("rcp", "rn", &[4.0]), 0.25);
    // An exact zero is negative only when rounding down.
    assert!(run("sub", "rm", &[1.0, 1.0]).is_sign_negative());
    assert!(run("sub", "rn", &[1.0, 1.0]).is_sign_positive());
}

#[test]
fn special_registers() {
    for (body, want) in [
        ("mov.u32 o, %ntid.x;", 32),
        ("mov.u32 o, %nctaid.z;", 1),
        ("mov.u32 o, %nwarpid;", 1),
        ("mov.u32 o, %warpid;", 0),
        ("mov.u32 o, %laneid;", 0),
        ("mov.u32 o, %dynamic_smem_size;", 32768),
        ("mov.u32 o, %envreg3;", 0),
        ("mov.u32 o, %clock_hi;", 0),
        ("mov.u32 o, %lanemask_ge;", u32::MAX),
        ("mov.u32 o, %is_explicit_cluster;", 1),
        ("mov.u32 o, %cluster_nctarank;", 1),
        ("mov.u32 r0, %clock; mov.u32 r1, %clock; setp.gt.u32 p0, r1, r0; selp.u32 o, 1, 0, p0;", 1),
        ("mov.u64 d0, %globaltimer; mov.u64 d1, %clock64; setp.ge.u64 p0, d1, d0; selp.u32 o, 1, 0, p0;", 1),
    ] {
        assert_eq!(one(body), want, "{body}");
    }
}

#[test]
fn reductions_of_floats_over_lanes() {
    let body = |op: &str| {
        format!(
            "cvt.rn.f32.u32 f0, t; sub.f32 f0, f0, 0f41A00000; redux.sync.{op}.f32 f1, f0, -1; mov.b32 o, f1;"
        )
    };
    assert_eq!(f32::from_bits(one(&body("min"))), -20.0);
    assert_eq!(f32::from_bits(one(&body("max"))), 11.0);
    assert_eq!(f32::from_bits(one(&body("max.abs"))), 20.0);
    let nan = "setp.eq.u32 p0, t, 5; selp.f32 f0, 0f7FC00000, 0f3F800000, p0; redux.sync.min.NaN.f32 f1, f0, -1; mov.b32 o, f1;";
    assert_eq!(one(nan), 0x7fff_ffff);
    assert_eq!(one(&nan.replace(".NaN", "")), 0x3f80_0000);
}

#[test]
fn atomics_of_every_width() {
    let single = Shape { block: 1, ..WARP };
    // Vectors, one atomic per element.
    let body = "red.global.add.v4.f32 [inp], {0f3F800000, 0f40000000, 0f40400000, 0f40800000};
        atom.global.add.v2.f32 {f0, f1}, [inp+8], {0f3F800000, 0f3F800000}; ld.global.u32 o, [inp+12]; mov.b32 o2, f1;";
    let ones = [1f32.to_bits(); 4];
    assert_eq!(run(body, &ones, &single)[0].map(f32::from_bits), [6.0, 5.0]);
    let body = "red.global.max.noftz.v2.bf16x2 [inp], {r0, r0}; ld.global.u32 o, [inp+4];";
    let body = format!("mov.b32 r0, 0x3f80c000; {body}");
    assert_eq!(run(&body, &[0, 0x4000_3f80], &single)[0][0], 0x4000_3f80);
    // 128 bits: an exchange, then a compare-and-swap that fails and one that succeeds.
    let body = "{ .reg .b128 q<4>; mov.b64 d0, 7; mov.b64 d1, 8; mov.b128 q0, {d0, d1};
        atom.global.exch.b128 q1, [inp], q0; atom.global.cas.b128 q2, [inp], q1, q1; atom.global.cas.b128 _, [inp], q2, q1;
        mov.b128 {d2, d3}, q2; cvt.u32.u64 o, d3; ld.global.b128 q3, [inp]; st.global.b128 [inp], q3;
        mov.b128 {d4, _}, q3; cvt.u32.u64 o2, d4; }";
    assert_eq!(run(body, &[5, 0, 6, 0], &single)[0], [8, 5]);
    let body = "atom.global.inc.u32 o, [inp], 3; atom.global.dec.u32 o2, [inp+4], 3;";
    assert_eq!(run(body, &[3, 0], &single)[0], [3, 0]);
    let body = "mov.b32 r9, 0x3c003c00; atom.global.add.noftz.f16x2 o, [inp], r9; atom.global.add.f64 g0, [inp+8], 0d3FF0000000000000;
        ld.global.u32 o2, [inp];";
    assert_eq!(run(body, &[0x3c00_4000, 0, 0, 0], &single)[0], [0x3c00_4000, 0x4000_4200]);
    let body = "atom.acq_rel.gpu.global.min.s64 d0, [inp], -5; ld.global.u32 o, [inp]; atom.shared.or.b32 o2, [s], 1;";
    let body = format!("st.shared.u32 [s], 6; {body}");
    assert_eq!(run(&body, &[3, 0], &single)[0], [-5i32 as u32, 6]);
}

#[test]
fn memory_is_cleared_and_discarded() {
    let single = Shape { block: 1, ..WARP };
    let body = "st.shared.u32 [s], 6; st.bulk.weak.shared::cta [s], 64, 0; ld.shared.v2.u32 {o, o2}, [s];";
    assert_eq!(run(body, &[0], &single)[0], [0, 0]);
    let body = "discard.global.L2 [inp], 128; ld.global.u32 r0, [inp]; add.u32 o, r0, 1;";
    assert_eq!(fault(body), FaultKind::Uninitialized);
    assert_eq!(fault("prefetch.global.L2 [inp+100000];"), FaultKind::OutOfBounds);
    // Addresses of every space through one generic instruction.
    let body = "{ .local .align 4 .b8 own[8]; mov.u64 d0, own; cvta.local.u64 d0, d0; st.u32 [d0], 11;
        cvt.u64.u32 d1, s; cvta.shared.u64 d1, d1; st.u32 [d1], 22; atom.add.u32 r2, [d1], 1;
        isspacep.shared p0, d1; isspacep.global p1, inp; isspacep.local p2, d1; isspacep.shared::cluster p3, d1;
        ld.u32 r0, [d0]; ld.u32 r1, [d1]; add.u32 o, r0, r1;
        selp.u32 o2, 1, 0, p0; @p1 add.u32 o2, o2, 2; @p2 add.u32 o2, o2, 4; @p3 add.u32 o2, o2, 8; }";
    assert_eq!(run(body, &[0], &single)[0], [34, 11]);
}

/// Pairs of f32 give what two single instructions give, in every rounding.
#[test]
fn pairs_of_f32_are_two_single_floats() {
    let words: Vec<u32> = (0..64u32)
        .flat_map(|i| {
            let h = i.wrapping_mul(2654435761);
            // Ordinary numbers, subnormal ones, infinities, NaN, zeros.
            let special =
                [0, 0x8000_0000, 1, 0x807f_ffff, 0x7f80_0000, 0x7fc0_0000, 0x0080_0000, 0xff7f_ffff];
            [0x3f00_0000 + (h >> 8), special[i as usize % 8], 0x3e80_0000 ^ h.rotate_left(9) & 0x80ff_ffff, h]
        })
        .collect();
    let shape = Shape { grid: 1, cluster: 1, block: 252 };
    for op in ["add", "sub", "mul", "fma"] {
        for round in ["rn", "rz", "rm", "rp"] {
            for flush in ["", ".ftz"] {
                let third = if op == "fma" { ", f4" } else { "" };
                let third_high = if op == "fma" { ", f5" } else { "" };
                let third_pair = if op == "fma" { ", d4" } else { "" };
                // Six words from the thread's number on: two of each operand; the results must be the same bits.
                let body = format!(
                    "mul.wide.u32 d0, t, 4; add.u64 d0, inp, d0;
                    ld.global.f32 f0, [d0]; ld.global.f32 f1, [d0+4]; ld.global.f32 f2, [d0+8]; ld.global.f32 f3, [d0+12];
                    ld.global.f32 f4, [d0+4]; ld.global.f32 f5, [d0]; mov.b64 d2, {{f0, f1}}; mov.b64 d3, {{f2, f3}};
                    mov.b64 d4, {{f4, f5}}; {op}.{round}{flush}.f32x2 d5, d2, d3{third_pair};
                    {op}.{round}{flush}.f32 f6, f0, f2{third}; {op}.{round}{flush}.f32 f7, f1, f3{third_high};
                    mov.b64 {{o, o2}}, d5; mov.b32 r0, f6; mov.b32 r1, f7; xor.b32 o, o, r0; xor.b32 o2, o2, r1;"
                );
                assert!(run(&body, &words, &shape).iter().all(|o| *o == [0, 0]), "{op}.{round}{flush}.f32x2");
            }
        }
    }
    for wrong in ["add.sat.f32x2 d0, d1, d2;", "min.f32x2 d0, d1, d2;", "abs.f32x2 d0, d1;"] {
        let text = format!("{}.visible .entry k() {{ .reg .b64 d<4>;\n{wrong}\nret; }}", head(wrong));
        assert!(Module::parse(&text).is_err(), "{wrong}");
    }
}

/// Scalar forms of sm_100a that the assembler takes, and those of later GPUs.
#[test]
fn forms_of_blackwell() {
    let parse = |line: &str| {
        let text = format!(
            ".version 9.4\n.target sm_100a\n.address_size 64\n.visible .entry k() {{ .reg .b8 c<4>; .reg .b16 h<4>;
            .reg .b32 r<9>; .reg .b64 d<5>; .reg .f32 f<9>;\n{line}\nret; }}"
        );
        Module::parse(&text).map(|_| ()).map_err(|e| e.to_string())
    };
    for line in [
        "min.f32 f0, f1, f2, f3;",
        "max.NaN.abs.f32 f0, f1, f2, f3;",
        "ex2.approx.ftz.bf16x2 r0, r1;",
        "ex2.approx.f16x2 r0, r1;",
        "tanh.approx.bf16x2 r0, r1;",
        "tanh.approx.f16 h0, h1;",
        "add.f32.f16 f0, h1, f2;",
        "add.rz.f32.bf16 f0, h1, f2;",
        "sub.rn.f32.bf16 f0, h1, f2;",
        "fma.rn.f32.f16 f0, h1, h2, f3;",
        "cvt.rn.satfinite.e2m1x2.f32 c0, f0, f1;",
        "cvt.rn.satfinite.relu.e2m3x2.f32 h0, f0, f1;",
        "cvt.rn.f16x2.e2m1x2 r0, c1;",
        "cvt.rn.bf16x2.e4m3x2 r0, h1;",
        "cvt.rn.bf16x2.ue8m0x2 r0, h1;",
        "cvt.rz.satfinite.ue8m0x2.f32 h0, f0, f1;",
        "cvt.rp.ue8m0x2.bf16x2 h0, r1;",
        "cvt.rz.satfinite.tf32.f32 r0, f1;",
        "cvt.rn.satfinite.e4m3x2.bf16x2 h0, r1;",
        "cvt.rn.satfinite.e2m1x2.f16x2 c0, r1;",
        "cvt.rs.satfinite.e2m1x4.f32 h0, {f0, f1, f2, f3}, r1;",
        "cvt.rn.scaled::n2::ue8m0.bf16x2.e2m1x2 r0, c1, h1;",
        "st.bulk.weak.shared::cta [r0], 64, 0;",
        "redux.sync.max.f32 f0, f1, r1;",
        "redux.sync.min.abs.NaN.f32 f0, f1, r1;",
        "griddepcontrol.wait;",
        "griddepcontrol.launch_dependents;",
        "ld.global.v8.f32 {f0, f1, f2, f3, f4, f5, f6, f7}, [d0];",
        "ld.global.v4.b64 {d0, d1, d2, d3}, [d4];",
        "st.global.v8.b32 [d0], {r0, r1, r2, r3, r4, r5, r6, r7};",
        "ld.global.nc.L1::no_allocate.L2::256B.v8.b32 {r0, r1, r2, r3, r4, r5, r6, r7}, [d0];",
        "ld.global.L2::evict_first.v8.b32 {r0, r1, r2, r3, r4, r5, r6, r7}, [d0];",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {r0, r1}, [r3];",
        "ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8x16.b6x16_p32 {r0, r1, r2, r4}, [r3];",
        "ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b4x16_p64 {r0, r1, r2, r4}, [r3];",
        "stmatrix.sync.aligned.m16n8.x4.trans.shared.b8 [r3], {r0, r1, r2, r4};",
    ] {
        assert_eq!(parse(line), Ok(()), "{line}");
    }
    // What the assembler refuses for sm_100a, and `multimem`, which is not modelled.
    for line in [
        "add.f32 f0, f1, f2, f3;",
        "min.s32 r0, r1, r2, r3;",
        "mul.f32.f16 f0, h1, f2;",
        "cvt.rn.satfinite.pzo.e4m3x2.f32 h0, f0, f1;",
        "cvt.rn.satfinite.scaled::n1::ue8m0.e4m3x2.f32 h0, f0, f1, c1;",
        "cvt.rn.ue5m3x2.f32 h0, f0, f1;",
        "cvt.rz.satfinite.e4m3x2.f32 h0, f0, f1;",
        "cvt.rn.satfinite.e4m3x2.e5m2x2 h0, h1;",
        "cvt.rn.ue8m0x2.f32 h0, f0, f1;",
        "multimem.ld_reduce.global.add.f32 f0, [d0];",
        "multimem.red.global.add.f32 [d0], f0;",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
    assert!(parse("multimem.ld_reduce.global.add.f32 f0, [d0];").unwrap_err().contains("multimem"));
}
