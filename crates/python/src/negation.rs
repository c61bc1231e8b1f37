//! Lazy negation: tensors of torch may have a bit that says that their memory holds the negated values.
//!
//! DLPack does not tell the bit, so each tensor is asked. This is on the path of every call: the method of torch is
//! called as the C function that it is. Complex tensors, which may be conjugated lazily, are refused by their type.

use std::ptr::null_mut;

use oxigemm::DType;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;

use crate::error::argument_error;

/// How the objects of a class tell whether they are negated.
#[derive(Clone, Copy)]
pub enum Negation {
    /// They never are.
    Never,
    /// By a C function of the object alone.
    Function(ffi::PyCFunction),
    /// By a method.
    Method,
}

impl Negation {
    /// How the class of an object tells it.
    #[cold]
    pub fn of(object: &Bound<'_, PyAny>) -> Negation {
        let Ok(method) = object.getattr("is_neg") else { return Negation::Never };
        // SAFETY: the object is alive, and it is asked for its function only where it has one.
        let function = unsafe {
            match ffi::PyCFunction_Check(method.as_ptr()) != 0
                && ffi::PyCFunction_GetFlags(method.as_ptr()) == ffi::METH_NOARGS
            {
                true => ffi::PyCFunction_GetFunction(method.as_ptr()),
                false => None,
            }
        };
        function.map_or(Negation::Method, Negation::Function)
    }

    /// Refuses an object that is negated. Torch negates no elements of FP8.
    #[inline]
    pub fn refuse(self, name: &str, object: &Bound<'_, PyAny>, dtype: DType) -> PyResult<()> {
        if matches!(dtype, DType::E4m3 | DType::E5m2) {
            return Ok(());
        }
        let py = object.py();
        let answer = match self {
            Negation::Never => return Ok(()),
            // SAFETY: the function is that of the object's class, takes no arguments and returns a new reference.
            Negation::Function(function) => unsafe {
                Bound::from_owned_ptr_or_err(py, function(object.as_ptr(), null_mut()))?
            },
            Negation::Method => object.call_method0(intern!(py, "is_neg"))?,
        };
        if !answer.is_truthy()? {
            return Ok(());
        }
        let expected = "a tensor in memory as it is, as of `resolve_neg()`";
        Err(argument_error(py, name, "is negated lazily", expected, "one whose negation bit is set"))
    }
}
