//! The Python bindings: torch tensors, numpy arrays and DLPack arrays as tensors of the library.
//!
//! A call reads its arrays ([`array`], [`dlpack`]), finds the device that computes ([`settings`]), and passes them to
//! the library as tensors of foreign memory ([`call`]): on a GPU in torch's current stream, on the CPU with the
//! reference, or in the simulator on copies. Operands, grouping and epilogue of a GEMM arrive as tuples ([`fields`])
//! and become one description ([`gemm`]); all other values are read by [`convert`]. Names and defaults of arguments are
//! those of the facade, `python/oxigemm`, which passes all of them.

mod array;
mod attention;
mod call;
mod convert;
mod cublaslt;
mod dlpack;
mod einsum;
mod error;
mod experts;
mod fields;
mod gemm;
mod interrupt;
mod layers;
mod logging;
mod moe;
mod moe_group;
mod negation;
mod nvfp4;
mod quantize;
mod recipe;
mod router;
mod settings;

use pyo3::prelude::*;

/// Runs the command line, and gives its exit status.
#[pyfunction]
fn command_line(py: Python<'_>, arguments: Vec<std::ffi::OsString>) -> u8 {
    py.detach(|| oxigemm_cli::run(arguments))
}

/// The extension module of `oxigemm`, which has the public functions.
#[pymodule]
fn _oxigemm(module: &Bound<'_, PyModule>) -> PyResult<()> {
    logging::init();
    interrupt::init();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(command_line, module)?)?;
    settings::register(module)?;
    fields::register(module)?;
    gemm::register(module)?;
    einsum::register(module)?;
    nvfp4::register(module)?;
    attention::register(module)?;
    quantize::register(module)?;
    moe::register(module)?;
    moe_group::register(module)?;
    router::register(module)?;
    layers::register(module)?;
    cublaslt::register(module)
}
