//! Structured arguments: tuples whose fields have names and an order.
//!
//! A facade function passes its operands, its grouping and its epilogue as one tuple each. The order of their fields is
//! told here once; `crates/python/codegen` writes the calls, and a test compares both through `_oxigemm.FIELDS`.

use pyo3::Borrowed;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::convert::{Value, convert};

/// The operands of a 16-bit GEMM.
pub const OPERANDS: [&str; 2] = ["a", "b"];
/// The operands of an FP8 GEMM.
pub const SCALED_OPERANDS: [&str; 5] = ["a", "b", "recipe", "recipe_a", "recipe_b"];
/// The groups of an m-grouped contiguous GEMM.
pub const M_GROUPED_CONTIGUOUS: [&str; 4] =
    ["grouped_layout", "use_psum_layout", "expected_m_for_psum_layout", "ensure_zero_padding"];
/// The groups of an m-grouped masked GEMM.
pub const M_GROUPED_MASKED: [&str; 2] = ["masked_m", "expected_m"];
/// The groups of an m-grouped GEMM whose arguments say whether it is contiguous or masked.
pub const M_GROUPED: [&str; 4] = ["grouped_layout", "masked_m", "expected_m", "use_psum_layout"];
/// The groups of a k-grouped GEMM.
pub const K_GROUPED: [&str; 3] = ["ks_cpu", "grouped_layout", "use_psum_layout"];
/// The fused epilogue.
pub const EPILOGUE: [&str; 11] = [
    "alpha",
    "beta",
    "bias",
    "activation",
    "gated",
    "head_splits",
    "d_scales",
    "power_of_two",
    "d_format",
    "tensor_scale",
    "gate",
];

/// A field: its name and its value.
#[derive(Clone, Copy)]
pub struct Field<'a, 'py> {
    name: &'static str,
    value: Borrowed<'a, 'py, PyAny>,
}

/// The fields of a structured argument.
#[inline]
pub fn fields<'a, 'py, const N: usize>(
    names: &[&'static str; N],
    tuple: &'a Bound<'py, PyTuple>,
) -> PyResult<[Field<'a, 'py>; N]> {
    if tuple.len() != N {
        return Err(PyTypeError::new_err(format!("expected ({}), found {tuple}", names.join(", "))));
    }
    let value = |i| tuple.get_borrowed_item(i).expect("the tuple has N items");
    Ok(std::array::from_fn(|i| Field { name: names[i], value: value(i) }))
}

impl<'py> Field<'_, 'py> {
    /// The value itself.
    #[inline]
    pub fn object(&self) -> &Bound<'py, PyAny> {
        &self.value
    }

    /// The value, unless it is `None`.
    #[inline]
    pub fn optional(&self) -> Option<&Bound<'py, PyAny>> {
        (!self.value.is_none()).then_some(&*self.value)
    }

    /// The value as a Rust type. An error names the field.
    #[inline]
    pub fn get<T: Value>(&self) -> PyResult<T> {
        convert(self.name, &self.value)
    }
}

/// Adds the names of all structured arguments to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let all: [(&str, &[&str]); 7] = [
        ("operands", &OPERANDS),
        ("scaled_operands", &SCALED_OPERANDS),
        ("m_grouped_contiguous", &M_GROUPED_CONTIGUOUS),
        ("m_grouped_masked", &M_GROUPED_MASKED),
        ("m_grouped", &M_GROUPED),
        ("k_grouped_contiguous", &K_GROUPED),
        ("epilogue", &EPILOGUE),
    ];
    let names = PyDict::new(module.py());
    for (argument, fields) in all {
        names.set_item(argument, PyTuple::new(module.py(), fields)?)?;
    }
    module.add("FIELDS", names)
}
