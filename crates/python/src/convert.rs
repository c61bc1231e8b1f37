//! Numbers, strings and tuples of Python as Rust values. What is refused is named, as arrays are.

use std::borrow::Cow;

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

use crate::error::{argument_error, type_error};

/// A longer text of what was found is left out.
const LONGEST: usize = 60;

/// A Rust type of arguments.
pub trait Value: Sized {
    /// What a caller should have given.
    fn expected() -> String;

    /// The value, or why there is none.
    fn read(object: &Bound<'_, PyAny>) -> Result<Self, Refusal>;
}

/// Why an object is not the value that was wanted.
#[derive(Clone, Copy, Debug)]
pub enum Refusal {
    /// It is of another type.
    Type,
    /// It is of the type, and too large or too small.
    Range,
}

/// An argument, or the error that names it.
#[inline]
pub fn convert<T: Value>(name: &str, object: &Bound<'_, PyAny>) -> PyResult<T> {
    T::read(object).map_err(|refusal| refused::<T>(name, object, refusal))
}

#[cold]
fn refused<T: Value>(name: &str, object: &Bound<'_, PyAny>, refusal: Refusal) -> PyErr {
    let (py, kind) = (object.py(), object.get_type());
    let kind = kind.name().map_or_else(|_| "an object".to_owned(), |name| name.to_string());
    let found = match object.repr().map(|text| text.to_string()) {
        Ok(text) if text.len() <= LONGEST => format!("{text} ({kind})"),
        _ => kind,
    };
    match refusal {
        Refusal::Type => type_error(py, name, &T::expected(), &found),
        Refusal::Range => argument_error(py, name, "is out of range", &T::expected(), &found),
    }
}

impl From<(Python<'_>, PyErr)> for Refusal {
    fn from((py, error): (Python<'_>, PyErr)) -> Refusal {
        if error.is_instance_of::<PyOverflowError>(py) { Refusal::Range } else { Refusal::Type }
    }
}

/// A value that PyO3 converts.
#[inline]
fn extracted<'py, T>(object: &Bound<'py, PyAny>) -> Result<T, Refusal>
where
    T: pyo3::conversion::FromPyObjectOwned<'py>,
{
    object.extract::<T>().map_err(|error| Refusal::from((object.py(), error.into())))
}

/// Types that PyO3 converts, with the words for them.
macro_rules! plain {
    ($($type:ty: $expected:literal),* $(,)?) => {
        $(impl Value for $type {
            fn expected() -> String {
                $expected.to_owned()
            }

            #[inline]
            fn read(object: &Bound<'_, PyAny>) -> Result<$type, Refusal> {
                extracted(object)
            }
        })*
    };
}

plain! {
    i64: "an integer of 64 bits",
    u32: "an integer from 0 to 4294967295",
    usize: "an integer of 0 or more",
    bool: "True or False",
}

impl Value for f32 {
    fn expected() -> String {
        "a number that float32 has".to_owned()
    }

    #[inline]
    fn read(object: &Bound<'_, PyAny>) -> Result<f32, Refusal> {
        let number: f64 = extracted(object)?;
        let rounded = number as f32;
        if rounded.is_infinite() && number.is_finite() { Err(Refusal::Range) } else { Ok(rounded) }
    }
}

impl Value for Cow<'_, str> {
    fn expected() -> String {
        "a string".to_owned()
    }

    #[inline]
    fn read(object: &Bound<'_, PyAny>) -> Result<Self, Refusal> {
        extracted(object).map(Cow::Owned)
    }
}

impl<T: Value> Value for Option<T> {
    fn expected() -> String {
        format!("{}, or None", T::expected())
    }

    #[inline]
    fn read(object: &Bound<'_, PyAny>) -> Result<Option<T>, Refusal> {
        if object.is_none() { Ok(None) } else { T::read(object).map(Some) }
    }
}

impl<T: Value> Value for Vec<T> {
    fn expected() -> String {
        format!("a list, each item {}", T::expected())
    }

    fn read(object: &Bound<'_, PyAny>) -> Result<Vec<T>, Refusal> {
        if object.is_instance_of::<PyString>() {
            return Err(Refusal::Type);
        }
        let items: Vec<Bound<'_, PyAny>> = extracted(object)?;
        items.iter().map(T::read).collect()
    }
}

/// An item of a tuple, or of a list, of so many.
#[inline]
fn item<T: Value>(object: &Bound<'_, PyAny>, count: usize, i: usize) -> Result<T, Refusal> {
    let item = match (object.cast::<PyTuple>(), object.cast::<PyList>()) {
        (Ok(tuple), _) if tuple.len() == count => tuple.get_item(i),
        (_, Ok(list)) if list.len() == count => list.get_item(i),
        _ => return Err(Refusal::Type),
    };
    T::read(&item.map_err(|_| Refusal::Type)?)
}

impl<T: Value> Value for (T, T) {
    fn expected() -> String {
        format!("a tuple of 2, each {}", T::expected())
    }

    #[inline]
    fn read(object: &Bound<'_, PyAny>) -> Result<(T, T), Refusal> {
        Ok((item(object, 2, 0)?, item(object, 2, 1)?))
    }
}

impl<T: Value> Value for (T, T, T) {
    fn expected() -> String {
        format!("a tuple of 3, each {}", T::expected())
    }

    #[inline]
    fn read(object: &Bound<'_, PyAny>) -> Result<(T, T, T), Refusal> {
        Ok((item(object, 3, 0)?, item(object, 3, 1)?, item(object, 3, 2)?))
    }
}
