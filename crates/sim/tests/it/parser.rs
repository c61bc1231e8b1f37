//! Bad input: text that is not PTX, instructions the simulator lacks, launches that no GPU takes.

use oxigemm_sim::*;

const KERNELS: [&str; 3] = [
    include_str!("../ptx/tile_128x64.ptx"),
    include_str!("../ptx/rows_8_split4.ptx"),
    "
.version 8.0
.target sm_90a, debug
.address_size 64
.file 1 \"/some/file.rs\"
.global .align 4 .u32 counter = 5;
.const .align 8 .b8 table[16] = {1, 2, 3, 0x10};
.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
.weak .func (.param .b32 out) f(.param .b32 x) { .reg .b32 %r<3>; ld.param.u32 %r1, [x]; st.param.b32 [out+0], %r1; ret; }
.visible .entry k(.param .u64 p, .param .align 16 .b8 s[24]) .maxntid 128, 1, 1 .minnctapersm 1
{
    .reg .pred %p<3>; .reg .b32 %r<5>; .reg .f32 %f<3>; .reg .b64 %rd<4>;
    .loc 1 12 3
    mov.u32 %r1, %tid.x; // a comment
    /* another */ setp.ge.s32 %p1, %r1, 100; @!%p1 bra $L__BB0_2;
    mov.f32 %f1, 0f3F800000; mov.f32 %f2, -1.5e3;
$L__BB0_2:
    ld.global.u32 %r2, [counter]; ld.const.u8 %r3, [table+3];
    ret;
}
",
];

fn error(body: &str) -> ParseError {
    let text = format!(
        "{}.visible .entry k()\n{{\n.reg .b32 r<4>; .reg .pred p;\n{body}\nret;\n}}",
        crate::kernel::head(body)
    );
    Module::parse(&text).expect_err(body)
}

#[test]
fn good_text_parses() {
    for k in KERNELS {
        let module = Module::parse(k).unwrap();
        assert_eq!(module.entries().count(), 1);
        assert_eq!(module.target().to_string(), "sm_90a");
    }
    let module = Module::parse(KERNELS[2]).unwrap();
    assert!(module.symbol("counter").is_some() && module.symbol("nothing").is_none());
    assert_eq!(module.parameters("k").unwrap(), [("p", 8), ("s", 24)]);
}

#[test]
fn errors_name_the_place_and_the_reason() {
    for (body, line, column, part) in [
        ("frobnicate.b32 r0, r1;", 7, 1, "frobnicate.b32"),
        ("mov.u32 r0, r9;", 7, 1, "`r9` is not declared"),
        ("\n  mov.u32 r0 r1;", 8, 14, "expected `;`"),
        ("bra NOWHERE;", 7, 1, "label `NOWHERE` is not defined"),
        ("add.u32 r0, r1;", 7, 1, "operands"),
        ("@r0 mov.u32 r0, 1;", 7, 5, "not a predicate"),
        (
            "  tcgen05.mma.cta_group::2.kind::f16 [r0], r1, r2, r3, p;",
            7,
            3,
            "tensor memory of Blackwell is not modelled",
        ),
        ("wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {r0}, [r1], r2;", 7, 1, "expected 8 registers"),
        (
            "wmma.load.a.sync.aligned.row.m16n16k8.global.f16 {r0}, [r1], r2;",
            7,
            1,
            "does not exist for this type",
        ),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.e4m3.e4m3.f32 {r0}, {r0}, {r0}, {r0};", 7, 1, "shape"),
        (
            "tex.1d.v4.f32.s32 {r0, r1, r2, r3}, [r1, {r2}];",
            7,
            1,
            "texture and surface memory is not modelled",
        ),
        ("max.sideways.f32 r0, r1, r2;", 7, 1, "`.sideways` is not supported"),
        ("mov.b32 {}, r0;", 7, 1, "cannot be unpacked"),
        (".reg .b128 q; mov.u32 r0, q;", 7, 15, "128 bits wide"),
        ("call (r0), r1, (r2);", 7, 1, "which this module does not define as a function"),
        ("call (r0), r1, (r2), proto;", 7, 1, "names a prototype or a list of targets"),
        ("mov.u32 r0, 99999999999999999999999;", 7, 36, "64-bit"),
        (".bogus x;", 7, 7, ".bogus"),
        ("call f;", 7, 1, "does not define"),
        ("wgmma.mma_async.sync.aligned.m64n12k32.f32.e4m3.e4m3 {r0}, r1, r1, p, 1, 1;", 7, 1, "shape"),
        ("L: L: ret;", 7, 4, "twice"),
    ] {
        let e = error(body);
        assert_eq!((e.at.line, e.at.column), (line, column), "{body}: {e}");
        assert!(e.message.contains(part), "{body}: {e}");
    }
    assert!(Module::parse("").unwrap_err().message.contains(".version"));
    assert!(Module::parse("int main() {}").is_err());
    assert!(Module::parse(".version 8.0\n.target sm_80\n.address_size 32").is_err());
    let recursive =
        ".version 8.0\n.target sm_80\n.func f() { call f; ret; }\n.visible .entry k() { call f; ret; }";
    assert!(Module::parse(recursive).unwrap_err().message.contains("recursion"));
}

/// `cvt.rs` and `.scaled` take exactly what the manual lists.
#[test]
fn conversions_with_wrong_operands() {
    let registers = ".reg .f32 a, b; .reg .b32 d, n; .reg .b16 h, s; .reg .b64 w;";
    for (instruction, part) in [
        ("cvt.rs.f16x2.f32 d, a, b;", "expected 4 to 4 operands, found 3"),
        ("cvt.rs.bf16x2.f32 d, {a, b}, n;", "expected 4 to 4 operands, found 3"),
        ("cvt.rs.bf16x2.f32 d, a, b, 5;", "the random bits are a register of 32 bits"),
        ("cvt.rs.bf16x2.f32 d, a, b, s;", "the random bits are a register of 32 bits"),
        ("cvt.rs.f16x2.f32 h, a, b, n;", "the result needs a register of 32 bits"),
        ("cvt.rs.satfinite.e4m3x4.f32 d, {a, b, a}, n;", "a vector of four sources"),
        ("cvt.rs.satfinite.e4m3x4.f32 d, a, b, a, b, n;", "expected 3 to 3 operands, found 6"),
        ("cvt.rs.e4m3x4.f32 d, {a, b, a, b}, n;", "needs `.satfinite`"),
        ("cvt.rs.satfinite.e4m3x2.f32 h, a, b, n;", "does not support"),
        ("cvt.rs.f16.f32 h, a, n;", "does not support"),
        ("cvt.rs.rn.f16x2.f32 d, a, b, n;", "two roundings"),
        ("cvt.rs.rz.f16x2.f32 d, a, b, n;", "`.rz` does not go with"),
        ("cvt.rs.ftz.f16x2.f32 d, a, b, n;", "`.ftz` does not go with"),
        ("cvt.rn.satfinite.e4m3x4.f32 d, {a, b, a, b};", "does not support"),
        ("cvt.rn.scaled::n2::ue8m0.bf16x2.e4m3x2 d, h;", "expected 3 to 3 operands, found 2"),
        ("cvt.rn.scaled::n2::ue8m0.bf16x2.e4m3x2 d, h, n;", "the scales are a register of 16 bits"),
        ("cvt.rn.scaled::n2::ue8m0.f16x2.e4m3x2 d, h, s;", "does not support"),
        ("cvt.rz.scaled::n2::ue8m0.bf16x2.e4m3x2 d, h, s;", "does not support"),
        ("cvt.rn.scaled::n2::ue8m0.s2f6x2.f32 h, a, b, s;", "needs `.satfinite`"),
        (
            "cvt.rn.satfinite.scaled::n1::ue8m0.e4m3x2.f32 h, a, b, s;",
            "`.scaled::n1::ue8m0` is not supported",
        ),
        ("cvt.rn.pzo.f16x2.f32 d, a, b;", "`.pzo` is not supported"),
    ] {
        let e = error(&format!("{registers}\n  {instruction}"));
        assert_eq!((e.at.line, e.at.column), (8, 3), "{instruction}: {e}");
        assert!(e.message.contains(part), "{instruction}: {e}");
    }
}

#[test]
fn errors_outside_of_bodies() {
    let head = ".version 8.0\n.target sm_90a\n.address_size 64\n";
    for (text, line, part) in [
        (".global .u64 x = y;", 4, "`y` is not a global or constant variable"),
        (".global .b8 x[2] = {1, 2, 3};", 4, "more initial values"),
        (".global .align 3 .b8 x;", 4, "power of two"),
        (".global .b8 x[99999999999999];", 4, "too large"),
        (".global .quux x;", 4, "`.quux` is not a type"),
        ("\n.visible .entry k(.reg .b32 r) { ret; }", 5, "`.param` parameters only"),
        (".visible .entry k() .frobnicate { ret; }", 4, "`.frobnicate`"),
        (".visible .entry k() { ret;", 4, "not closed"),
        (
            ".func f() { ret; } .visible .entry k() { .reg .b64 d; mov.u64 d, k; ret; }",
            4,
            "`k` has no address",
        ),
        (
            ".shared .b8 big[2000000]; .visible .entry k() { .reg .b32 r; mov.u32 r, big; ret; }",
            4,
            "does not fit in shared memory",
        ),
    ] {
        let e = Module::parse(&format!("{head}{text}")).expect_err(text);
        assert_eq!(e.at.line, line, "{text}: {e}");
        assert!(e.message.contains(part), "{text}: {e}");
        assert!(e.to_string().starts_with(&format!("PTX line {line}, column {}: ", e.at.column)), "{e}");
    }
}

/// Addresses of variables as initial values, whole and byte by byte, and vectors of them.
#[test]
fn initial_values_refer_to_other_variables() {
    let module = Module::parse(
        ".version 8.0\n.target sm_90\n.address_size 64
        .global .align 8 .u64 list[3] = {generic(word)+4, word, 7};
        .global .align 1 .b8 split[8] = {0xFF(word), 0xFF00(word), 0xFF0000(word), 0xFF000000(word), 0xFF00000000(word), 0xFF0000000000(word), 0, 0};
        .global .align 16 .v4 .f32 four = {0f3F800000, 2.0, -1.5, 0.25};
        .global .attribute(.managed) .align 4 .u32 word[2] = {1, 2};
        .visible .entry k() { .reg .b64 d; mov.u64 d, list; mov.u64 d, split; mov.u64 d, four; ret; }",
    )
    .unwrap();
    let mut machine = Machine::new();
    let launch = Launch {
        entry: "k".into(),
        grid: [1; 3],
        cluster: None,
        block: [1, 1, 1],
        shared_bytes: 0,
        params: vec![],
    };
    machine.run(&module, &launch, &Options::default()).unwrap();
    let address = module.symbol("word").unwrap();
    let mut read = |name: &str, n| machine.memory.read(module.symbol(name).unwrap(), n).unwrap().to_vec();
    let words: Vec<u64> =
        read("list", 24).chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect();
    assert_eq!(words, [address + 4, address, 7]);
    assert_eq!(read("split", 8), address.to_le_bytes());
    let four: Vec<u32> =
        read("four", 16).chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
    assert_eq!(four, [0x3f80_0000, 0x4000_0000, 0xbfc0_0000, 0x3e80_0000]);
}

/// A fault of a running kernel names its instruction by line and column.
#[test]
fn faults_name_the_instruction() {
    let module = Module::parse(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p) {\n.reg .b64 d; .reg .b32 r;
        ld.param.u64 d, [p];   ld.global.u32 r, [d+4096];\nret; }",
    )
    .unwrap();
    let mut machine = Machine::new();
    let buffer = machine.memory.allocate_with(&[0; 16]);
    let launch = Launch {
        entry: "k".into(),
        grid: [1; 3],
        cluster: None,
        block: [1, 1, 1],
        shared_bytes: 0,
        params: vec![Param::U64(buffer)],
    };
    let fault = machine.run(&module, &launch, &Options::default()).unwrap_err();
    let at = fault.at.clone().expect("a fault has a place");
    assert_eq!((fault.kind, at.line, at.column), (FaultKind::OutOfBounds, 6, 32));
    assert!(fault.to_string().contains("`ld.global.u32` (PTX line 6, column 32, CTA 0, warp 0)"), "{fault}");
}

#[test]
fn tensor_maps_fit_their_buffers() {
    let mut memory = Memory::new();
    let address = memory.allocate(32 * 100);
    let spec = TensorMapSpec {
        address,
        element: Element::U8,
        dims: vec![20, 100],
        strides: vec![32],
        box_dims: vec![16, 8],
        swizzle: Swizzle::None,
    };
    memory.tensor_map(&spec).unwrap();
    for (dims, text) in [(vec![20, 101], "3220 bytes"), (vec![33, 100], "3201 bytes")] {
        let fault = memory.tensor_map(&TensorMapSpec { dims, ..spec.clone() }).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Launch);
        assert!(fault.message.contains(text), "{fault}");
    }
}

/// Mutated kernels: nothing panics and nothing hangs. Deterministic and bounded.
#[test]
fn no_input_panics_the_parser() {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let words: [&[u8]; 16] = [
        b";",
        b"{",
        b"}",
        b"[",
        b"]",
        b"(",
        b".",
        b"@",
        b"::",
        b"|",
        b"0f",
        b"-",
        b"<4294967295>",
        b".reg .b32 ",
        b"%r1",
        b"/*",
    ];
    let mut parsed = 0;
    for round in 0..3000 {
        // The first and third are short enough to mutate often.
        let base = KERNELS[[1, 2, 2][round % 3]].as_bytes();
        let start = if round % 4 == 0 { 0 } else { next() as usize % base.len() };
        let mut text = base[if round % 8 == 7 { start } else { 0 }..].to_vec();
        for _ in 0..1 + next() % 6 {
            let at = next() as usize % (text.len() + 1);
            match next() % 5 {
                0 if at < text.len() => text[at] = next() as u8,
                1 if at < text.len() => {
                    text.remove(at);
                }
                2 => {
                    let word = words[next() as usize % words.len()];
                    text.splice(at..at, word.iter().copied());
                }
                3 => text.truncate(at),
                _ => {
                    let from = next() as usize % (text.len() + 1);
                    let piece = text[from..(from + 40).min(text.len())].to_vec();
                    text.splice(at..at, piece);
                }
            }
        }
        parsed += usize::from(Module::parse(&String::from_utf8_lossy(&text)).is_ok());
    }
    assert!(parsed > 0, "every mutant was refused: the test mutates too much to be useful");
}

#[test]
fn launches_beyond_the_limits_are_refused() {
    let module = Module::parse(KERNELS[2]).unwrap();
    let good = Launch {
        entry: "k".into(),
        grid: [1, 1, 1],
        cluster: None,
        block: [32, 1, 1],
        shared_bytes: 0,
        params: vec![Param::U64(0), Param::Bytes(vec![0; 24])],
    };
    let run = |l: Launch| Machine::new().run(&module, &l, &Options::default());
    run(good.clone()).unwrap();
    let refused = [
        Launch { entry: "other".into(), ..good.clone() },
        Launch { grid: [0, 1, 1], ..good.clone() },
        Launch { grid: [1, 70000, 1], ..good.clone() },
        Launch { grid: [u32::MAX; 3], ..good.clone() },
        Launch { grid: [1 << 30, 1, 1], ..good.clone() },
        Launch { block: [u32::MAX; 3], ..good.clone() },
        Launch { cluster: Some([u32::MAX; 3]), ..good.clone() },
        Launch { cluster: Some([0, 1, 1]), ..good.clone() },
        Launch { block: [1025, 1, 1], ..good.clone() },
        Launch { block: [129, 1, 1], ..good.clone() },
        Launch { block: [0, 1, 1], ..good.clone() },
        Launch { cluster: Some([2, 1, 1]), ..good.clone() },
        Launch { grid: [32, 1, 1], cluster: Some([32, 1, 1]), ..good.clone() },
        Launch { shared_bytes: MAX_SHARED_BYTES + 1, ..good.clone() },
        Launch { params: vec![Param::U64(0)], ..good.clone() },
        Launch { params: vec![Param::U32(0), Param::Bytes(vec![0; 24])], ..good.clone() },
    ];
    for l in refused {
        let (shown, known) = (format!("{l:?}"), l.entry == "k");
        let fault = run(l).expect_err(&shown);
        assert_eq!(fault.kind, FaultKind::Launch, "{shown}");
        // The entry that refuses has its place in the text.
        assert_eq!(fault.to_string().contains("`k` is declared at PTX line 10, column 10"), known, "{fault}");
    }
}

/// The variables of a module live in memory and keep their values between launches.
#[test]
fn module_variables_persist() {
    let module = Module::parse(
        ".version 8.0\n.target sm_90\n.address_size 64\n.global .align 4 .u32 counter = 5;
        .visible .entry k() { .reg .b32 r<2>; atom.global.add.u32 r0, [counter], 2; ret; }",
    )
    .unwrap();
    let mut machine = Machine::new();
    let launch = Launch {
        entry: "k".into(),
        grid: [3, 1, 1],
        cluster: None,
        block: [1, 1, 1],
        shared_bytes: 0,
        params: vec![],
    };
    for _ in 0..2 {
        machine.run(&module, &launch, &Options::default()).unwrap();
    }
    let address = module.symbol("counter").unwrap();
    assert_eq!(machine.memory.read(address, 4).unwrap(), 17u32.to_le_bytes());
}
