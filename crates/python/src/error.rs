//! Errors as Python exceptions: `oxigemm.errors` has the classes.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// A class of `oxigemm.errors`.
fn class<'py>(py: Python<'py>, cell: &PyOnceLock<Py<PyType>>, name: &str) -> PyResult<Bound<'py, PyType>> {
    cell.import(py, "oxigemm.errors", name).cloned()
}

/// An exception with the argument at fault, where there is one.
fn raise(py: Python<'_>, kind: Kind, argument: Option<&str>, text: String) -> PyErr {
    static ANY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static VALUE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = match kind {
        Kind::Any => class(py, &ANY, "OxigemmError"),
        Kind::Value => class(py, &VALUE, "ArgumentError"),
        Kind::Type => class(py, &TYPE, "ArgumentTypeError"),
    };
    let made = class.and_then(|class| class.call1((text.as_str(), argument)));
    made.map_or_else(|_| PyRuntimeError::new_err(text), PyErr::from_value)
}

#[derive(Clone, Copy)]
enum Kind {
    Any,
    Value,
    Type,
}

/// An error of the library, whose argument may have another name in Python.
pub fn from_library(py: Python<'_>, error: &oxigemm::Error, names: &[(&str, &str)]) -> PyErr {
    let kind = match error {
        oxigemm::Error::Interrupted => return crate::interrupt::exception(),
        oxigemm::Error::DType { .. } => Kind::Type,
        error if error.argument().is_some() => Kind::Value,
        _ => Kind::Any,
    };
    let mut text = error.to_string();
    let mut argument = error.argument();
    for (rust, python) in names {
        text = text.replace(&format!("`{rust}`"), &format!("`{python}`"));
        if argument == Some(rust) {
            argument = Some(python);
        }
    }
    raise(py, kind, argument, text)
}

/// A failure that no argument is at fault for.
pub fn other(py: Python<'_>, text: String) -> PyErr {
    raise(py, Kind::Any, None, text)
}

/// An argument that is not what it should be.
pub fn argument_error(py: Python<'_>, argument: &str, problem: &str, expected: &str, found: &str) -> PyErr {
    raise(
        py,
        Kind::Value,
        Some(argument),
        format!("`{argument}` {problem}: expected {expected}, found {found}"),
    )
}

/// An argument of a type that there is no function for.
pub fn type_error(py: Python<'_>, argument: &str, expected: &str, found: &str) -> PyErr {
    let text = format!("`{argument}` has the wrong type: expected {expected}, found {found}");
    raise(py, Kind::Type, Some(argument), text)
}

/// An element type that the library does not have.
pub fn dtype_error(py: Python<'_>, argument: &str, found: &str) -> PyErr {
    let expected = element_types(argument);
    let text = format!("`{argument}` has the wrong element type: expected {expected}, found {found}");
    raise(py, Kind::Type, Some(argument), text)
}

/// The element types of an argument: what its name says, or all that there are.
fn element_types(argument: &str) -> &'static str {
    match argument {
        "block_table" | "context_lens" | "cu_seq_len_k_end" | "cu_seq_len_k_start" | "ends"
        | "grouped_layout" | "groups" | "ids" | "indices" | "masked_m" | "places" | "schedule_meta"
        | "tokens" => "int32",
        "kv[1]" | "scale" | "sqr_sum" | "tensor_scale" => "float32",
        _ => "float8_e4m3fn, float8_e5m2, bfloat16, float16, float32, int32, int8 or uint8",
    }
}
