//! The layers of the crate: what each folder may import.

use oxigemm_layers::check;
use std::path::Path;

/// Folders and modules, the lowest layer first: each may import those above it in this table and nothing else.
const ORDER: &[&[&str]] = &[
    // Faults, lanes and random numbers; options of a run.
    &["error", "lanes", "options", "rng"],
    &["report"],
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
];

#[test]
fn folders_import_lower_layers_only() {
    let violations = check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), ORDER);
    let text: String = violations.iter().map(|v| format!("{v}\n")).collect();
    assert!(violations.is_empty(), "{text}");
}
