//! Mutants of some kernels of the corpus: what the documents say of them.

use std::path::Path;

use oxigemm_oracle::{corpus, score};

/// Those that take the least time.
const QUICK: [&str; 5] = [
    "gluon_bf16_left_tmem",
    "gluon_clc",
    "gluon_copy_f32_swizzle64",
    "gluon_gather_scatter",
    "gluon_tmem_16x256b_32x32b_64x64",
];

#[test]
fn the_table_of_mutants_is_what_the_simulator_finds() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let document = std::fs::read_to_string(root.join("docs/blackwell.md")).unwrap();
    let kernels = corpus(&root.join("crates/oracle/ptx")).unwrap();
    for name in QUICK {
        let kernel = kernels.iter().find(|kernel| kernel.name == name).unwrap();
        let score = score(kernel, 1, |_, _| {}).unwrap();
        assert!(score.disputed.is_empty(), "{name}: {:?}", score.disputed);
        let row = score.row(name);
        assert!(document.contains(&row), "docs/blackwell.md does not have\n{row}");
        for survivor in score.survivors.iter().filter(|s| !s.redundant()) {
            assert!(survivor.why.is_some(), "{name}: {survivor:?}");
        }
    }
}

#[test]
fn the_kernels_themselves_are_in_order() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    for kernel in corpus(&root.join("crates/oracle/ptx")).unwrap() {
        if QUICK.contains(&kernel.name.as_str()) {
            assert_eq!(oxigemm_oracle::disorder_of(&kernel).unwrap(), [], "{}", kernel.name);
        }
    }
}
