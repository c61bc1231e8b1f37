//! The Python package of oxigemm: what torch tensors, numpy arrays and DLPack arrays are to the library.
//!
//! A call reads its arguments ([`array`], [`dlpack`]), finds out where they are computed ([`settings`]), and gives them to
//! the library as tensors of foreign memory ([`call`]): on a GPU in torch's current stream, on the CPU as the reference,
//! or in the simulator, where they are copied. Names and defaults of arguments are those of the Python side,
//! `python/oxigemm`, which calls these functions with all of them.

mod array;
mod call;
mod cublaslt;
mod dlpack;
mod error;
mod fused;
mod gemm;
mod grouped;
mod indexer;
mod logging;
mod moe;
mod quantize;
mod settings;

use pyo3::prelude::*;

/// Runs the command line, and gives its exit status.
#[pyfunction]
fn command_line(py: Python<'_>, arguments: Vec<std::ffi::OsString>) -> u8 {
    py.detach(|| oxigemm_cli::run(arguments))
}

/// What `oxigemm` is made of. Use that.
#[pymodule]
fn _oxigemm(module: &Bound<'_, PyModule>) -> PyResult<()> {
    logging::init();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(command_line, module)?)?;
    settings::register(module)?;
    gemm::register(module)?;
    fused::register(module)?;
    grouped::register(module)?;
    indexer::register(module)?;
    quantize::register(module)?;
    moe::register(module)?;
    cublaslt::register(module)
}
