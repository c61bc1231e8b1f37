//! Layers of the crate: what each folder may import.

use oxigemm_layers::check;
use std::path::Path;

/// Modules, the lowest layer first: each may import those of lower layers and nothing else.
const ORDER: &[&[&str]] = &[
    // Architectures and their limits.
    &["arch"],
    // Building blocks of every operation.
    &["common"],
    // GEMM for every architecture: operands, parameters, tile scheduler, epilogue.
    &["gemm::operand"],
    &["gemm::params"],
    &["gemm::scheduler"],
    &["gemm::epilogue"],
    // GEMM kernels of the architectures, and their launches.
    &["gemm"],
    // The other operations.
    &["quantize", "attention", "hyper_connection", "moe"],
    // Between GPUs.
    &["exchange"],
    // All kernels.
    &["registry"],
];

#[test]
fn folders_import_lower_layers_only() {
    let violations = check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), ORDER);
    let text: String = violations.iter().map(|violation| format!("{violation}\n")).collect();
    assert!(violations.is_empty(), "{text}");
}
