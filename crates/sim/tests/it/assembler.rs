//! What the assembler refuses is refused here too: operands, types, names and targets. The lists in `tests/assembler`
//! say what it takes; where `OXIGEMM_PTXAS` names one, it is asked again.

use oxigemm_sim::*;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

const TARGETS: [&str; 23] = [
    "75", "80", "86", "87", "88", "89", "90", "90a", "100", "100a", "100f", "103", "103a", "103f", "110",
    "110a", "110f", "120", "120a", "120f", "121", "121a", "121f",
];

/// The lines of a list, without comments.
fn lines(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// A module whose line numbers beyond the first `HEAD` are those of its instructions.
const HEAD: usize = 5;

fn module(version: &str, target: &str, declarations: &str, body: &str) -> String {
    format!(
        ".version {version}\n.target sm_{target}\n.address_size 64\n\
         .visible .entry k(.param .u64 a, .param .u32 b, .param .f32 c, .param .align 8 .b8 d[16]) {{\n\
         {declarations}\n{body}\nret; }}\n"
    )
}

/// The assembler, where there is one.
fn assembler() -> Option<String> {
    std::env::var("OXIGEMM_PTXAS").ok().filter(|path| path != "none" && !path.is_empty())
}

/// Which of these instructions an assembler refuses. It stops at some, and looks at some things only where all else is
/// right: it is asked again without those that it has refused.
fn refused(ptxas: &str, target: &str, declarations: &str, instructions: &[&str]) -> BTreeSet<usize> {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("oxigemm-{}-{call}.ptx", std::process::id()));
    let mut refused = BTreeSet::new();
    loop {
        let left: Vec<usize> = (0..instructions.len()).filter(|i| !refused.contains(i)).collect();
        let body: Vec<&str> = left.iter().map(|i| instructions[*i]).collect();
        std::fs::write(&path, module("9.0", target, declarations, &body.join("\n"))).expect("a file");
        let arch = format!("-arch=sm_{target}");
        let output =
            Command::new(ptxas).arg(arch).arg(&path).args(["-o", "/dev/null"]).output().expect(ptxas);
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let errors = text.lines().filter(|line| line.contains("error") || line.contains("fatal"));
        let found: BTreeSet<usize> = errors
            .filter_map(|line| line.split("line ").nth(1)?.split(';').next()?.parse::<usize>().ok())
            .filter_map(|line| left.get(line.checked_sub(HEAD + 1)?).copied())
            .collect();
        if found.is_empty() {
            assert!(!text.contains("error") && !text.contains("fatal"), "sm_{target}: {text}");
            std::fs::remove_file(&path).expect("the file that was written");
            return refused;
        }
        refused.extend(found);
    }
}

const OPERANDS: &str = include_str!("../assembler/operands.txt");
const DECLARATIONS: &str = ".reg .pred p<4>; .reg .b16 h<4>; .reg .f16 k<4>; .reg .u16 hu<4>; .reg .b32 r<8>; \
     .reg .u32 u<8>; .reg .f32 f<8>; .reg .b64 d<8>; .reg .u64 du<8>; .reg .f64 g<8>; .reg .b128 q<3>; \
     .reg .b8 c<4>; .reg .f16x2 x<4>; .shared .align 16 .b8 sm[64]; .local .align 16 .b8 lo[64]; .param .b32 pp;";

#[test]
fn operands_are_taken_and_refused_as_by_the_assembler() {
    let list: Vec<(bool, &str)> =
        lines(OPERANDS).map(|line| (line.starts_with("ok"), line[4..].trim())).collect();
    assert!(list.iter().filter(|(right, _)| *right).count() > 100 && list.len() > 300);
    let mut wrong = Vec::new();
    for (right, instruction) in &list {
        match Module::parse(&module("9.0", "100a", DECLARATIONS, instruction)) {
            Ok(_) if !right => wrong.push(format!("taken: {instruction}")),
            Err(error) if *right => wrong.push(format!("refused: {error}")),
            Err(error) => assert_eq!(error.at.line, HEAD as u32 + 1, "{instruction}: {error}"),
            Ok(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let Some(ptxas) = assembler() else { return };
    let instructions: Vec<&str> = list.iter().map(|(_, instruction)| *instruction).collect();
    let refused = refused(&ptxas, "100a", DECLARATIONS, &instructions);
    for (i, (right, instruction)) in list.iter().enumerate() {
        assert_eq!(*right, !refused.contains(&i), "{ptxas} and the list differ: {instruction}");
    }
}

const FEATURES: &str = include_str!("../assembler/targets.txt");
const REGISTERS: &str = ".reg .pred p<8>; .reg .b16 h<16>; .reg .b32 r<64>; .reg .b64 rd<16>; .reg .f32 f<64>; \
     .reg .f64 fd<8>; .reg .b128 q<4>; .shared .align 128 .b8 sm[1024];";

/// An instruction, the targets that have it, and whether only a later assembler than that of CUDA 13.0 knows it.
fn feature(line: &'static str) -> (&'static str, BTreeSet<&'static str>, bool) {
    let (targets, instruction) = line.split_once(" : ").expect("targets and an instruction");
    let (targets, new) = targets.strip_suffix(" new").map_or((targets, false), |targets| (targets, true));
    let known = match targets.split_once(' ') {
        Some(("from", first)) => TARGETS.into_iter().skip_while(|target| *target != first).collect(),
        None if targets == "all" => TARGETS.into_iter().collect(),
        _ => targets.split(' ').collect(),
    };
    (instruction, known, new)
}

#[test]
fn a_target_has_the_instructions_that_the_assembler_gives_it() {
    let features: Vec<_> = lines(FEATURES).map(feature).collect();
    assert!(features.len() > 150);
    for (instruction, targets, _) in &features {
        for target in TARGETS {
            let error = Module::parse(&module("9.4", target, REGISTERS, instruction)).err();
            let missing = error.as_ref().is_some_and(|error| error.message.contains("does not have it"));
            assert_eq!(!missing, targets.contains(target), "sm_{target}: {instruction}\n{error:?}");
            if let Some(error) = error.filter(|_| missing) {
                assert!(error.message.contains(&format!("the target sm_{target}")), "{error}");
                assert_eq!(error.at.line, HEAD as u32 + 1, "{instruction}: {error}");
            }
        }
    }
    let Some(ptxas) = assembler() else { return };
    let old: Vec<_> = features.iter().filter(|(_, _, new)| !new).collect();
    // An assembler refuses one function with both sizes of groups of CTAs.
    let instructions: Vec<&str> = old.iter().map(|(instruction, ..)| *instruction).collect();
    for target in TARGETS {
        let refused = refused(&ptxas, target, REGISTERS, &instructions);
        for (i, (instruction, targets, _)) in old.iter().enumerate() {
            let expected = !targets.contains(target);
            assert_eq!(refused.contains(&i), expected, "{ptxas}, sm_{target}: {instruction}");
        }
    }
}

/// Whole modules: names, directives and characters.
#[test]
fn modules_are_taken_and_refused_as_by_the_assembler() {
    let head = ".version 8.0\n.target sm_90a\n.address_size 64\n";
    let entry = ".visible .entry k(.param .u64 a) { .reg .b32 r<4>; ret; }\n";
    let body = |body: &str| format!("{head}.visible .entry k(.param .u64 a) {{ {body} ret; }}\n");
    let list: BTreeMap<&str, (bool, String)> = [
        ("as it is", true, format!("{head}{entry}")),
        ("a NUL", false, format!("{head}\0{entry}")),
        ("a NUL in a comment", false, format!("{head}// a\0b\n{entry}")),
        ("a NUL in a body", false, format!("{head}{}", entry.replace("ret", "\0 ret"))),
        ("a control character", false, format!("{head}\x01{entry}")),
        ("not ASCII", false, format!("{head}// \u{e9}\n{entry}")),
        ("lines of another system", true, format!("{}{entry}", head.replace('\n', "\r\n"))),
        ("an entry twice", false, format!("{head}{entry}{entry}")),
        ("an entry and a function", false, format!("{head}{entry}.func k() {{ ret; }}")),
        ("a declaration first", true, format!("{head}.visible .entry k(.param .u64 a);\n{entry}")),
        ("a function twice", false, format!("{head}.func f() {{ ret; }}\n.func f() {{ ret; }}\n{entry}")),
        ("a variable twice", false, format!("{head}.global .u32 x;\n.global .u32 x;\n{entry}")),
        ("a variable and an entry", false, format!("{head}.global .u32 k;\n{entry}")),
        (
            "a parameter twice",
            false,
            format!("{head}.visible .entry k(.param .u64 a, .param .u64 a) {{ ret; }}"),
        ),
        ("a parameter and a register", false, body(".reg .b32 a;")),
        ("an inner register", true, body(".reg .b32 r; { .reg .b32 r; }")),
        ("a register twice", false, body(".reg .b32 r; .reg .b32 r;")),
        ("registers twice", false, body(".reg .b32 r<3>; .reg .b32 r<4>;")),
        ("a register of a range", false, body(".reg .b32 r<3>; .reg .b32 r1;")),
        ("a label and a register", false, body(".reg .b32 r; r:")),
        ("a label twice", false, body("L: L:")),
        ("an inner label", true, body("L: { L: }")),
        ("a variable twice in a body", false, body(".shared .b32 s; .shared .b32 s;")),
        ("a type that registers do not have", false, body(".reg .e4m3 r;")),
        ("a predicate in memory", false, body(".shared .pred s;")),
        ("no threads", false, format!("{head}.visible .entry k() .reqntid 0 {{ ret; }}")),
        ("too many values", false, format!("{head}.global .u32 x[2] = {{1, 2, 3}};\n{entry}")),
        ("a float for an integer", false, format!("{head}.global .u32 x = 1.5;\n{entry}")),
        ("an integer for a float", false, format!("{head}.global .f32 x = 1;\n{entry}")),
        ("a value in shared memory", false, format!("{head}.shared .u32 x = 1;\n{entry}")),
        ("no size", false, format!("{head}.global .u32 x[];\n{entry}")),
        ("an alignment of three", false, format!("{head}.global .align 3 .u32 x;\n{entry}")),
        ("a version twice", false, format!("{head}.version 8.0\n{entry}")),
        ("a target twice", false, format!("{head}.target sm_90a\n{entry}")),
        ("an unknown target", false, format!("{}{entry}", head.replace("90a", "999"))),
        ("a target without such features", false, format!("{}{entry}", head.replace("90a", "90f"))),
        ("a later target", false, format!("{}{entry}", head.replace("90a", "100a"))),
        ("a version that is none", false, format!("{}{entry}", head.replace("8.0", "8.9"))),
        ("no version", false, format!(".target sm_90a\n{entry}")),
        ("no target", false, format!(".version 8.0\n{entry}")),
        ("an option that is none", false, format!("{}{entry}", head.replace("90a", "90a, fast"))),
        ("no address size", true, format!("{}{entry}", head.replace(".address_size 64\n", ""))),
    ]
    .into_iter()
    .map(|(name, right, text)| (name, (right, text)))
    .collect();
    let path = std::env::temp_dir().join(format!("oxigemm-{}-module.ptx", std::process::id()));
    for (name, (right, text)) in &list {
        assert_eq!(
            Module::parse(text).map(|_| ()).is_ok(),
            *right,
            "{name}: {:?}",
            Module::parse(text).err()
        );
        if let Some(ptxas) = assembler() {
            std::fs::write(&path, text).expect("a file");
            let output =
                Command::new(&ptxas).arg("-arch=sm_90a").arg(&path).args(["-o", "/dev/null"]).output();
            assert_eq!(output.expect(&ptxas).status.success(), *right, "{ptxas}: {name}");
        }
    }
    // The driver takes a module with a NUL behind it, the assembler a file without.
    assert!(Module::parse(&format!("{head}{entry}\0")).is_ok());
}

/// A function of one and of two CTAs: the assembler refuses it when all else is right.
#[test]
fn a_function_has_groups_of_one_size() {
    let body = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n\
                tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;";
    let error = Module::parse(&module("9.0", "100a", REGISTERS, body)).unwrap_err();
    assert!(error.message.contains("both `.cta_group::1` and `.cta_group::2`"), "{error}");
    assert_eq!(error.at.line, HEAD as u32 + 2);
}
