//! Bad input: text that is not PTX, instructions the simulator lacks, launches that no GPU takes.

use oxigemm_sim::*;

const KERNELS: [&str; 3] = [
    include_str!("ptx/tile_128x64.ptx"),
    include_str!("ptx/rows_8_split4.ptx"),
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
        ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{{\n.reg .b32 r<4>; .reg .pred p;\n{body}\nret;\n}}"
    );
    Module::parse(&text).expect_err(body)
}

#[test]
fn good_text_parses() {
    for k in KERNELS {
        let module = Module::parse(k).unwrap();
        assert_eq!(module.entries().count(), 1);
        assert!(module.target().starts_with("sm_90a"));
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
        ("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [r0], 32;", 7, 1, "does not support"),
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
    assert!(Module::parse(".version 8.0\n.address_size 32").is_err());
    let recursive = ".version 8.0\n.func f() { call f; ret; }\n.visible .entry k() { call f; ret; }";
    assert!(Module::parse(recursive).unwrap_err().message.contains("recursion"));
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
        Launch { block: [129, 1, 1], ..good.clone() },
        Launch { block: [0, 1, 1], ..good.clone() },
        Launch { cluster: Some([2, 1, 1]), ..good.clone() },
        Launch { grid: [32, 1, 1], cluster: Some([32, 1, 1]), ..good.clone() },
        Launch { shared_bytes: MAX_SHARED_BYTES + 1, ..good.clone() },
        Launch { params: vec![Param::U64(0)], ..good.clone() },
        Launch { params: vec![Param::U32(0), Param::Bytes(vec![0; 24])], ..good.clone() },
    ];
    for l in refused {
        let shown = format!("{l:?}");
        assert_eq!(run(l).expect_err(&shown).kind, FaultKind::Launch, "{shown}");
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
