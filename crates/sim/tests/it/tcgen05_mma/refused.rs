//! What is refused: spellings that ptxas refuses, and operands that no MMA has.

use super::case::*;
use oxigemm_sim::*;

fn parse(instruction: &str) -> Result<Module, String> {
    let text = format!(
        ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k() {{
        .reg .pred p; .reg .b32 %r<9>; .reg .b64 %d<4>;\n{instruction}\nret;\n}}"
    );
    Module::parse(&text).map_err(|e| e.to_string())
}

const OPERANDS: &str = "[%r1], %d1, %d2, %r2, p";
const SCALED: &str = "[%r1], %d1, %d2, %r2, [%r3], [%r4], p";

/// Spellings that ptxas 13.0 takes.
#[test]
fn spellings() {
    for modifiers in [
        "cta_group::1.kind::f16",
        "kind::tf32.cta_group::2",
        "cta_group::1.kind::i8",
        "cta_group::2.kind::f8f6f4.collector::a::lastuse",
        "cta_group::1.collector::a::use.kind::f16",
        "ws.cta_group::1.kind::f16",
        "ws.cta_group::1.kind::i8.collector::b3::discard",
    ] {
        parse(&format!("tcgen05.mma.{modifiers} {OPERANDS};")).unwrap();
    }
    for modifiers in [
        "cta_group::1.kind::mxf8f6f4.block_scale",
        "cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X",
        "cta_group::2.kind::mxf8f6f4.block_scale.block32.collector::a::fill",
        "cta_group::1.kind::mxf4.block_scale",
        "cta_group::1.kind::mxf4.block_scale.scale_vec::2X",
        "cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::2X",
        "cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X",
        "cta_group::1.kind::mxf4nvf4.block_scale.block16",
    ] {
        parse(&format!("tcgen05.mma.{modifiers} {SCALED};")).unwrap();
    }
    for instruction in [
        "cta_group::1.kind::f16 [%r1 + 8], [%r3], %d2, %r2, !p, 15;",
        "cta_group::1.kind::f16 [%r1], %d1, %d2, %r2, 1;",
        "cta_group::1.kind::f16.ashift [%r1], [%r3], %d2, %r2, {%r1, %r2, %r3, %r4}, p;",
        "cta_group::1.kind::f16.collector::a::lastuse.ashift [%r1], [%r3], %d2, %r2, p;",
        "cta_group::2.kind::f16 [%r1], %d1, %d2, %r2, {%r1, %r2, %r3, %r4, %r1, %r2, %r3, %r4}, p, 2;",
        "ws.cta_group::1.kind::f16 [%r1], %d1, %d2, %r2, p, %d3;",
        "ws.cta_group::1.kind::f16 [%r1], %d1, %d2, %r2, p, 0;",
    ] {
        parse(&format!("tcgen05.mma.{instruction}")).unwrap();
    }
}

/// Spellings that ptxas refuses, or that the simulator lacks.
#[test]
fn spellings_that_do_not_exist() {
    for (instruction, says) in [
        (format!("cta_group::1 {OPERANDS}"), "kind"),
        (format!("kind::f16 {OPERANDS}"), "cta_group"),
        (format!("sp.cta_group::1.kind::f16 {OPERANDS}"), "sparse"),
        (format!("ws.cta_group::2.kind::f16 {OPERANDS}"), "cta_group::1"),
        (format!("ws.cta_group::1.kind::mxf4.block_scale {SCALED}"), "without scales"),
        (format!("cta_group::1.kind::mxf8f6f4 {SCALED}"), "block_scale"),
        (format!("cta_group::1.kind::f16.block_scale {SCALED}"), "no scales"),
        (format!("cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::2X {SCALED}"), "scale_vec::2X"),
        (format!("cta_group::1.kind::mxf8f6f4.block_scale.block16 {SCALED}"), "block16"),
        (format!("cta_group::1.kind::mxf4.block_scale.block16 {SCALED}"), "block16"),
        (format!("cta_group::1.kind::mxf4nvf4.block_scale {SCALED}"), "block16"),
        (format!("cta_group::1.kind::mxf4nvf4.block_scale.block16.block32 {SCALED}"), "one too many"),
        (format!("cta_group::1.kind::f16.collector::b0::fill {OPERANDS}"), "collector::b0::fill"),
        (format!("ws.cta_group::1.kind::f16.collector::a::fill {OPERANDS}"), "collector::a::fill"),
        (format!("cta_group::1.kind::f16.collector::a::keep {OPERANDS}"), "collector::a::keep"),
        (format!("cta_group::1.kind::f16.ashift {OPERANDS}"), "ashift"),
        ("cta_group::1.kind::f16.ashift.collector::a::fill [%r1], [%r3], %d2, %r2, p".into(), "ashift"),
        (format!("cta_group::1.kind::f16.aligned {OPERANDS}"), "aligned"),
        (format!("cta_group::1.kind::f16 {OPERANDS}, 16"), "16"),
        (format!("cta_group::1.kind::f8f6f4 {OPERANDS}, 3"), "scale the input"),
        (format!("cta_group::1.kind::f16 {OPERANDS}, 1, 2"), "operands"),
        ("cta_group::2.kind::f16 [%r1], %d1, %d2, %r2, {%r1, %r2, %r3, %r4}, p".into(), "8 registers"),
        ("ws.cta_group::1.kind::f16 [%r1], %d1, %d2, %r2, {%r1, %r2, %r3, %r4}, p".into(), "none with"),
    ] {
        let e = parse(&format!("tcgen05.mma.{instruction};")).expect_err(&instruction);
        assert!(e.contains(says), "{instruction}: {e}");
    }
}

fn fault(case: &Case, change: impl Fn(String) -> String) -> String {
    let f = case.run_text(&change(case.ptx()), &Options::default()).expect_err("a fault");
    assert_eq!(f.kind, FaultKind::BadOperand, "{f}");
    f.to_string()
}

#[test]
fn operands_that_no_mma_has() {
    let plain = Case::new("f16", 128, 32, F16);
    let idesc = plain.instruction().to_string();
    let with = |d: u32| fault(&plain, |t| t.replace(&idesc, &d.to_string()));
    assert!(with(plain.instruction() | 1 << 2).contains("tcgen05.mma.sp"));
    assert!(with(plain.instruction() & !(31 << 24) | 16 << 24).contains("M is 256"));
    assert!(with(plain.instruction() & !(63 << 17)).contains("N is 0"));
    // Bit 46 of both descriptors is the constant.
    assert!(
        fault(&plain, |t| t.replace("tcgen05.mma.cta", "and.b64 %d12, %d12, 0x3fff; tcgen05.mma.cta"))
            .contains("0b001")
    );
    let mn = Case { a_mn: true, swizzle: [1, 2], ..plain.clone() };
    assert!(fault(&mn, |t| t).contains("32-byte atomicity"));
    let lane = |t: String| t.replace("tcgen05.mma.cta", "add.u32 %r12, %r12, 0x100000; tcgen05.mma.cta");
    assert!(fault(&plain, lane).contains("lane 16"));
    let other = Case { a_in_tensor: true, m: 64, ..plain.clone() };
    assert!(fault(&other, lane).contains("A begins in lane 0 and D in lane 16"));
    let transposed = Case { a_in_tensor: true, a_mn: true, ..plain.clone() };
    assert!(fault(&transposed, |t| t).contains("K-major"));
    let shifted = Case { a_in_tensor: true, m: 64, suffix: ".ashift".into(), ..plain };
    assert!(fault(&shifted, |t| t).contains("M = 128 or 256"));
}

/// Scales lie in each 32 lanes again: one copy that differs is found.
#[test]
fn scales_must_agree() {
    let case = Case::new("mxf8f6f4", 128, 32, E4M3);
    // The last warp stores another word.
    let change = |t: String| {
        t.replacen(
            "add.u32 %r5, wbase, 320;",
            "setp.ge.u32 p0, t, 96; @p0 xor.b32 %r4, %r4, 1; add.u32 %r5, wbase, 320;",
            1,
        )
    };
    assert!(fault(&case, change).contains("each 32 lanes"));
}

#[test]
fn what_was_never_written_is_not_read() {
    let case = Case { accumulate: false, steps: 1, ..Case::new("f16", 128, 32, F16) };
    let text = case.ptx();
    case.run_text(&text, &Options::default()).unwrap();
    let accumulating = text.replace("setp.eq.u32 p0, 0, 1;", "setp.eq.u32 p0, 0, 0;");
    assert_ne!(accumulating, text);
    let f = case.run_text(&accumulating, &Options::default()).unwrap_err();
    assert_eq!(f.kind, FaultKind::Uninitialized);
    assert!(f.to_string().contains("D of this MMA"), "{f}");
}
