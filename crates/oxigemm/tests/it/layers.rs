//! The layers of the crate: what each folder may import.

use oxigemm_layers::check;
use std::path::Path;

/// Folders and modules, the lowest layer first: each may import those above it in this table and nothing else.
const ORDER: &[&[&str]] = &[
    &["error"],
    // The threads of the reference.
    &["parallel"],
    &["random"],
    &["metrics"],
    // Memory, streams, loaded kernels and workspaces of a device; one launch.
    &["device"],
    // Tensors in the memory of a device, and their descriptions.
    &["tensor"],
    &["cast"],
    // The rules of arguments.
    &["check"],
    // Which kernel, with which grid.
    &["plan"],
    // Kernel arguments of a planned GEMM, plan cache, launches.
    &["launch"],
    // The functions, on the CPU and on devices with kernels.
    &["reference"],
    &["gemm", "quantize"],
    &["attention", "hyper_connection", "moe", "router"],
    // Sorted rows times the weights of experts.
    &["moe_experts"],
    // Layers that own weights and call the functions.
    &["layers"],
    // All of them for a mixture of experts.
    &["moe_forward"],
];

#[test]
fn folders_import_lower_layers_only() {
    let violations = check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../oxigemm/src"), ORDER);
    let text: String = violations.iter().map(|v| format!("{v}\n")).collect();
    assert!(text.is_empty(), "{text}");
}
