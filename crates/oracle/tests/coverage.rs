//! The corpus: what the documents say of it.

use std::path::Path;

use oxigemm_oracle::{corpus, coverage};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn the_coverage_table_is_that_of_the_corpus() {
    let table = coverage(&corpus(&root().join("crates/oracle/ptx")).unwrap());
    let document = std::fs::read_to_string(root().join("docs/blackwell.md")).unwrap();
    assert!(document.contains(&table), "docs/blackwell.md should have this table:\n{table}");
}

#[test]
fn the_corpus_has_kernels_of_every_generation() {
    let kernels = corpus(&root().join("crates/oracle/ptx")).unwrap();
    let of =
        |targets: &[&str]| kernels.iter().filter(|kernel| targets.contains(&kernel.target.as_str())).count();
    assert!(of(&["sm_80", "sm_86", "sm_89", "sm_90a"]) >= 40, "older generations");
    assert!(of(&["sm_100a", "sm_103a"]) >= 80, "tensor memory");
    assert!(of(&["sm_120a"]) >= 7, "block scales of mma.sync");
}
