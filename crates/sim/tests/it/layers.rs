//! The layers of the crate: what each folder may import.

use oxigemm_layers::check;
use std::path::Path;

/// Folders and modules, the lowest layer first: each may import those above it in this table and nothing else.
const ORDER: &[&[&str]] = &[
    // Faults, targets, lanes, random numbers and counts of bytes; options of a run, and what it reports.
    &["error", "target", "lanes", "rng", "record", "traffic"],
    &["options", "report"],
    // PTX text, up to the syntax tree.
    &["text"],
    // Functions of register values; global memory.
    &["arith", "memory"],
    // Vector clocks and shadow memory.
    &["hazard"],
    // Hardware units: tensor cores, copies, tensor maps, mbarriers.
    &["units"],
    // Instructions, decoded.
    &["decode"],
    // Instructions, executed by warps.
    &["exec"],
    // Which warp runs, and when asynchronous work happens.
    &["schedule", "module", "mutate"],
    &["machine"],
    &["world"],
];

#[test]
fn folders_import_lower_layers_only() {
    let violations = check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), ORDER);
    let text: String = violations.iter().map(|v| format!("{v}\n")).collect();
    assert!(violations.is_empty(), "{text}");
}

/// The files of an instruction: its row and decoder, and its executor. `cvt` has a decoder of its own.
#[test]
fn an_instruction_is_known_to_its_decoder_and_its_executor_only() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let read = |file: &Path| std::fs::read_to_string(file).expect("a source file");
    let isa = read(&src.join("decode/isa.rs"));
    let families: Vec<(&str, &str)> = isa
        .lines()
        .filter_map(|line| line.strip_prefix("use super::")?.strip_suffix("Op;")?.split_once("::"))
        .collect();
    assert!(families.len() >= 14, "{families:?}");
    let files: Vec<_> = ["decode", "exec", "units", "hazard", "arith"]
        .iter()
        .flat_map(|folder| std::fs::read_dir(src.join(folder)).expect("a folder"))
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_file())
        .chain([src.join("schedule.rs"), src.join("machine.rs"), src.join("module.rs")])
        .collect();
    for (file, name) in families {
        let matched = format!("{name}Op::");
        let mut at: Vec<String> = files
            .iter()
            .filter(|path| {
                read(path).split(|c: char| !c.is_alphanumeric() && c != ':').any(|w| w.starts_with(&matched))
            })
            .map(|path| path.strip_prefix(&src).expect("a file of the crate").display().to_string())
            .filter(|path| path != "decode/cvt.rs")
            .collect();
        at.sort();
        assert_eq!(at, [format!("decode/{file}.rs"), format!("exec/{file}.rs")], "{name}Op");
    }
}
