//! Text with random changes: whatever it is, the simulator answers with an error, a fault or a report, and
//! soon. Deterministic and bounded; `FUZZ_FACTOR=100` in the environment makes a run that much longer.

use crate::common::Rng;
use oxigemm_sim::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

const FILES: [&str; 7] = [
    include_str!("../ptx/rows_8_split4.ptx"),
    include_str!("../ptx/rows_16.ptx"),
    include_str!("../ptx/nvcc/lanes.sm_80.ptx"),
    include_str!("../ptx/nvcc/lanes.lineinfo.sm_90a.ptx"),
    include_str!("../ptx/nvcc/reduce.sm_100a.ptx"),
    include_str!("../ptx/nvcc/matmul.sm_90a.ptx"),
    include_str!("../ptx/nvcc/calls.sm_90a.ptx"),
];

/// One or more instructions of every family, to be changed at random.
const INSTRUCTIONS: &str = include_str!("../fuzz/instructions.ptx");

/// Tokens that often stand at a limit.
const TOKENS: [&str; 44] = [
    ";",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ",",
    ".",
    "@",
    "!",
    "|",
    "::",
    "-",
    "~",
    "+",
    "=",
    "<",
    ">",
    ":",
    "_",
    "0",
    "1",
    "-1",
    "31",
    "32",
    "255",
    "4294967295",
    "18446744073709551615",
    "99999999999999999999",
    "-9223372036854775808",
    "0x7fffffffffffffff",
    "0f7FC00000",
    "0d7FF0000000000000",
    "1e308",
    "0b101",
    "{}",
    "{r0, r1, r2}",
    "[r0+4294967295]",
    "[d0+-9223372036854775808]",
    "r0",
    "d0",
    "p0",
    "smem",
];

fn tokens(text: &str) -> Vec<String> {
    let mut list: Vec<String> = Vec::new();
    let mut word = false;
    for c in text.chars() {
        let part = c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%');
        if part && word {
            list.last_mut().expect("a word has started").push(c);
        } else {
            list.push(c.to_string());
        }
        word = part;
    }
    list
}

/// Rounds of a test: few by default, more by hand.
fn rounds(usual: usize) -> usize {
    usual * std::env::var("FUZZ_FACTOR").ok().and_then(|f| f.parse().ok()).unwrap_or(1)
}

fn below(rng: &mut Rng, n: usize) -> usize {
    (rng.next() >> 8) as usize % n.max(1)
}

/// Numbers, registers of one kind, words and punctuation: what can stand for each other.
fn kind(token: &str) -> String {
    let start = token.trim_end_matches(|c: char| c.is_ascii_digit());
    match token.chars().next() {
        Some(c) if c.is_ascii_digit() => "0".into(),
        Some(c) if c.is_ascii_alphabetic() && start.len() < token.len() => start.into(),
        Some(c) if c.is_ascii_alphabetic() => "word".into(),
        _ => token.into(),
    }
}

/// A few random changes of a list of tokens; `other` gives tokens to bring in.
fn change(rng: &mut Rng, list: &mut Vec<String>, other: &[String]) {
    for _ in 0..1 + below(rng, 3) {
        if list.is_empty() {
            return;
        }
        let at = below(rng, list.len());
        match below(rng, 24) {
            10.. => {
                // Something that may well be right: most of these parse.
                let wanted = kind(&list[at]);
                let alike = (0..40).map(|_| &other[below(rng, other.len())]).find(|t| kind(t) == wanted);
                if let Some(token) = alike {
                    list[at] = token.clone();
                }
            }
            0 => list.truncate(at),
            1 => {
                list.remove(at);
            }
            2 => {
                let to = below(rng, list.len());
                list.swap(at, to);
            }
            3 => {
                let end = (at + 1 + below(rng, 20)).min(list.len());
                let copy = list[at..end].to_vec();
                let to = below(rng, list.len());
                list.splice(to..to, copy);
            }
            4 => {
                let end = (at + 1 + below(rng, 8)).min(list.len());
                list.drain(at..end);
            }
            5 => {
                // One byte.
                let mut bytes = list[at].clone().into_bytes();
                let i = below(rng, bytes.len());
                bytes[i] ^= 1 << below(rng, 8);
                list[at] = String::from_utf8_lossy(&bytes).into_owned();
            }
            6 | 7 => list[at] = other[below(rng, other.len())].clone(),
            8 => list.insert(at, TOKENS[below(rng, TOKENS.len())].to_owned()),
            _ => list[at] = TOKENS[below(rng, TOKENS.len())].to_owned(),
        }
    }
}

/// Parses and, if that succeeds, runs every entry for a short while. True if something ran.
fn survive(text: &str, seed: u64) -> bool {
    let Ok(module) = Module::parse(text) else { return false };
    let mut ran = false;
    for entry in module.entries().map(str::to_owned).collect::<Vec<_>>() {
        let mut machine = Machine::new();
        let buffer = machine.memory.allocate_with(&[1; 4096]);
        let map = TensorMapSpec {
            address: buffer,
            element: Element::U8,
            dims: vec![64, 32],
            strides: vec![64],
            box_dims: vec![32, 4],
            swizzle: Swizzle::B32,
        };
        let params = module.parameters(&entry).expect("the entry exists");
        let params = params.iter().map(|(_, bytes)| match bytes {
            8 => Param::U64(buffer),
            128 => map.encode().expect("the map is valid").into(),
            n => Param::Bytes(vec![1; *n as usize]),
        });
        let launch = Launch {
            entry: entry.clone(),
            grid: [2, 1, 1],
            cluster: None,
            block: [if seed.is_multiple_of(3) { 128 } else { 40 }, 1, 1],
            shared_bytes: 16384,
            params: params.collect(),
        };
        let options = Options {
            policy: [Policy::Eager, Policy::Lazy, Policy::Random][seed as usize % 3],
            seed,
            hazards: !seed.is_multiple_of(4),
            instruction_limit: 2000,
            trace: seed.is_multiple_of(5),
            ..Options::default()
        };
        let result = machine.run(&module, &launch, &options);
        ran |= !matches!(result, Err(Fault { kind: FaultKind::Launch, .. }));
        if let Err(fault) = result {
            assert!(!fault.to_string().is_empty());
        }
    }
    ran
}

/// Runs one input; a panic or a long run fails with the input in the message.
fn check(text: &str, seed: u64) -> bool {
    let start = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| survive(text, seed)));
    let taken = start.elapsed();
    match result {
        Ok(ran) if taken < Duration::from_secs(10) => ran,
        Ok(_) => panic!("input {seed} took {taken:?}:\n{text}"),
        Err(_) => panic!("input {seed} panics:\n{text}"),
    }
}

#[test]
fn no_changed_file_panics_or_hangs() {
    let files: Vec<Vec<String>> = FILES.iter().map(|f| tokens(f)).collect();
    let mut rng = Rng(0x1f83_d9ab_fb41_bd6b);
    let mut ran = 0;
    for round in 0..rounds(1500) {
        let mut list = files[round % files.len()].clone();
        let other = &files[below(&mut rng, files.len())];
        change(&mut rng, &mut list, other);
        ran += usize::from(check(&list.concat(), round as u64));
    }
    assert!(ran > 150, "only {ran} inputs ran: the changes are too many to be useful");
}

fn kernel(body: &str) -> String {
    let head = crate::kernel::head(body);
    format!(
        "{head}.extern .shared .align 1024 .b8 smem[];
        .global .align 16 .b8 table[64];
        .func (.param .b32 ret) f(.param .b32 x) {{ .reg .b32 r; ld.param.b32 r, [x]; st.param.b32 [ret], r; ret; }}
        .visible .entry k(.param .u64 in, .param .align 64 .b8 map[128])
        {{ .reg .pred p<4>; .reg .b16 h<8>; .reg .b32 r<16>; .reg .f32 f<16>; .reg .b64 d<12>; .reg .f64 g<8>; .reg .b128 q<3>;
        .shared .align 8 .b64 bar; .local .align 16 .b8 own[64];
        mov.u32 r0, %tid.x; mov.u32 r1, smem; mov.u32 r2, 1; mov.u32 r3, 0x3c003f80; mov.u32 r4, bar; mov.u32 r5, 3;
        mov.f32 f0, 0f3FC00000; mov.f32 f1, 0f40000000; mov.f64 g0, 0d3FF8000000000000; mov.b16 h0, 0x3f80;
        ld.param.u64 d0, [in]; mov.b64 d1, 64; mov.b64 d2, map; cvta.param.u64 d2, d2; mov.b128 q0, {{d0, d1}};
        setp.lt.u32 p0, r0, 16; setp.eq.u32 p1, r0, 0;
        @p1 mbarrier.init.shared::cta.b64 [bar], 1; @p1 fence.mbarrier_init.release.cluster; bar.sync 0;
        {body}
        L: ret; }}"
    )
}

#[test]
fn every_instruction_of_the_list_is_known() {
    for line in INSTRUCTIONS.lines().filter(|l| !l.is_empty() && !l.starts_with("//")) {
        if let Err(e) = Module::parse(&kernel(line)) {
            panic!("{line}: {e}");
        }
    }
}

#[test]
fn no_changed_instruction_panics_or_hangs() {
    let lines: Vec<Vec<String>> =
        INSTRUCTIONS.lines().filter(|l| !l.is_empty() && !l.starts_with("//")).map(tokens).collect();
    let mut rng = Rng(0x5be0_cd19_137e_2179);
    let mut ran = 0;
    for round in 0..rounds(12_000) {
        let mut body = String::new();
        for _ in 0..1 + below(&mut rng, 3) {
            let mut list = lines[below(&mut rng, lines.len())].clone();
            if below(&mut rng, 8) != 0 {
                let other = lines[below(&mut rng, lines.len())].clone();
                change(&mut rng, &mut list, &other);
            }
            body += &list.concat();
            body.push('\n');
        }
        ran += usize::from(check(&kernel(&body), round as u64));
    }
    assert!(ran > 1500, "only {ran} inputs ran: the changes are too many to be useful");
}

/// Inputs that a careless reader would follow into deep recursion, huge allocations or quadratic time.
#[test]
fn extreme_inputs_are_answered_soon() {
    let head = ".version 8.0\n.target sm_90a\n.address_size 64\n";
    let n = 100_000;
    let many = |one: &dyn Fn(usize) -> String| (0..n).map(one).collect::<String>();
    let entry = |body: &str| format!("{head}.visible .entry k() {{ .reg .b32 r<4>; {body} ret; }}");
    let inputs = [
        "{".repeat(n),
        entry(&"{".repeat(n)),
        entry(&format!("mov.b32 r0, {}1;", "{".repeat(n))),
        entry(&format!("mov.b32 r0, {}r1;", "!".repeat(n))),
        entry(&format!("mov.b32 r0, {}r1;", "r1|".repeat(n))),
        entry(&format!("mov.b32 {{{}r1}}, r0;", "r1,".repeat(n))),
        entry(&format!("ld.shared.b32 {{{}r1}}, [r0];", "r1,".repeat(n))),
        entry(&format!("add{} r0, r1;", ".u32".repeat(n))),
        entry(&format!("mov.u32 r0, {};", "9".repeat(n))),
        entry(&format!("mov.u32 r0, 0x{};", "f".repeat(n))),
        entry(&format!("mov.f32 r0, 1.{}e{};", "0".repeat(n), "9".repeat(n))),
        entry(&format!("mov.u32 {}, 1;", "r".repeat(n))),
        entry(".shared .b8 x[18446744073709551615];"),
        entry(".shared .b8 x[4294967296][4294967296];"),
        entry(".local .b8 x[1099511627776];"),
        entry(".local .align 1048576 .b8 x[1]; .local .align 1048576 .b8 y[1];"),
        entry(".reg .b64 d<4294967295>;"),
        entry(".reg .b64 d<1048576>; mov.b64 d1048575, 1;"),
        entry(&many(&|i| format!("L{i}: "))),
        entry(&many(&|i| format!(".reg .b32 a{i}b<2>; mov.u32 a{i}b1, 1; "))),
        entry(&many(&|i| format!("{{ .reg .b32 x; mov.u32 x, {i}; }} "))),
        format!("{head}{}", many(&|i| format!(".func f{i}() {{ call f{}; ret; }}\n", i + 1)))
            + &format!(".func f{n}() {{ ret; }} .visible .entry k() {{ call f0; ret; }}"),
        format!("{head}.func f() {{ {} ret; }}", "membar.gl; ".repeat(5000))
            + &(0..5000).map(|i| format!(".visible .entry k{i}() {{ call f; ret; }}")).collect::<String>(),
        format!("{head}.visible .entry k(.param .b8 x[4000000000]) {{ ret; }}"),
        format!(
            "{head}.visible .entry k({}.param .b8 x) {{ ret; }}",
            many(&|i| format!(".param .b64 p{i}, "))
        ),
        format!("{head}.global .b8 x[1099511627776];"),
        format!("{head}.global .b8 x[1000000000000000000] = {{1}};"),
        format!("{head}.global .u64 x[] = {{{}}};", "1,".repeat(n)),
        format!("{head}.global .u64 x = y;"),
        format!("{head}{}", many(&|i| format!(".global .u64 x{i} = x{};\n", (i + 1) % n))),
        format!("{head}.file 1 \"{}", "a".repeat(n)),
        format!("{head}.section .debug_info {}", "{".repeat(n)),
        format!("{head}/*{}", "*".repeat(n)),
        format!("{head}{}", "// a comment\n".repeat(n)),
        "\u{0}".repeat(n),
        "\u{1f980}".repeat(n),
    ];
    for (i, text) in inputs.iter().enumerate() {
        let start = Instant::now();
        let result = catch_unwind(|| Module::parse(text).map(|_| ()));
        assert!(result.is_ok(), "input {i} panics");
        assert!(start.elapsed() < Duration::from_secs(10), "input {i} took {:?}", start.elapsed());
    }
}
