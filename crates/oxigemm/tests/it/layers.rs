//! The layers of the crate: what each folder may import.

use oxigemm_layers::{Violation, check};
use std::path::Path;

/// Folders and modules, the lowest layer first: each may import those above it in this table and nothing else.
const ORDER: &[&[&str]] = &[
    &["error", "metrics", "random"],
    // Memory, streams, loaded kernels and workspaces of a device; one launch.
    &["device"],
    // Tensors in the memory of a device, and their descriptions.
    &["tensor"],
    &["cast"],
    // The rules of arguments.
    &["check"],
    // Which kernel, with which grid.
    &["plan"],
    // Kernel arguments of a planned GEMM.
    &["call"],
    // Plan cache, launch cache, launches.
    &["launch"],
    // The functions, on the CPU and on devices with kernels.
    &["reference"],
    &["gemm", "quantize"],
    &["attention", "hyper_connection", "moe"],
];

/// The files that keep to the order: all but those of the GEMM functions, which import each other.
const KEPT: &[&str] = &[
    "error.rs",
    "metrics.rs",
    "random.rs",
    "device",
    "tensor",
    "cast.rs",
    "check/attention.rs",
    "check/hyper_connection.rs",
    "check/moe.rs",
    "check/quantize",
    "launch",
    "reference/attention.rs",
    "reference/hyper_connection.rs",
    "reference/moe.rs",
    "reference/nvfp4.rs",
    "reference/quantize.rs",
    "quantize",
    "attention",
    "hyper_connection.rs",
    "moe.rs",
];

#[test]
fn folders_import_lower_layers_only() {
    let violations = check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), ORDER);
    let kept = |v: &&Violation| KEPT.iter().any(|path| v.file.starts_with(path));
    let text: String = violations.iter().filter(kept).map(|v| format!("{v}\n")).collect();
    assert!(text.is_empty(), "{text}");
}
