//! Hashes of every kernel's PTX, so that a change of structure is seen to change no instruction.
//!
//! Names do not count: the entry and its parameters are numbered before hashing, and source lines are left out. After a
//! wanted change of the code, `OXIGEMM_UPDATE_MANIFEST=1 cargo test -p oxigemm-kernels --test ptx_manifest` writes the
//! file anew.

use oxigemm_kernels::{Arch, KernelId};
use std::collections::HashMap;
use std::path::Path;

const MANIFEST: &str = "tests/data/ptx_manifest.txt";

/// The PTX of a kernel without source lines and without the names that it chooses.
fn normalized(kernel: &KernelId) -> String {
    let text = kernel.build().expect("it builds").without_lines();
    let mut numbers = HashMap::from([(kernel.name(), "kernel".to_owned())]);
    for line in text.lines().filter(|line| line.trim_start().starts_with(".param ")) {
        let name = line.trim_end_matches(',').rsplit(' ').next().expect("a declaration ends with a name");
        let name = name.split('[').next().expect("a name stands before its size");
        let number = numbers.len();
        numbers.insert(name.to_owned(), format!("param_{number}"));
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_$%.".contains(c);
    let mut result = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        result.push_str(numbers.get(word).map_or(word, String::as_str));
        let other = after.find(is_word).unwrap_or(after.len());
        result.push_str(&after[..other]);
        rest = &after[other..];
    }
    result
}

#[test]
fn no_instruction_of_any_kernel_has_changed() {
    let line = |kernel: KernelId| {
        let hash = blake3::hash(normalized(&kernel).as_bytes()).to_hex();
        format!("{} {}\n", &hash[..32], kernel.name())
    };
    let mut lines: Vec<String> = KernelId::all(Arch::Sm90a).map(line).collect();
    lines.sort();
    let (found, path) = (lines.concat(), Path::new(env!("CARGO_MANIFEST_DIR")).join(MANIFEST));
    if std::env::var_os("OXIGEMM_UPDATE_MANIFEST").is_some() {
        std::fs::write(&path, &found).expect("the manifest can be written");
    }
    let expected = std::fs::read_to_string(&path).expect("the manifest is there");
    let changed: Vec<&String> = lines.iter().filter(|line| !expected.contains(line.as_str())).collect();
    assert!(changed.is_empty() && expected == found, "other PTX or names than {MANIFEST}: {changed:#?}");
}
