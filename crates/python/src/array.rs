//! Arrays and tensors of Python as the library sees them: address, shape, strides, element type and device.

use std::sync::RwLock;

use oxigemm::{DType, Device, MAX_RANK, Tensor};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::dlpack::{self, Exchange};
use crate::error::{argument_error, dtype_error, from_library, type_error};
use crate::negation::Negation;

/// The device that memory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// The CPU.
    Host,
    /// The GPU of this number.
    Cuda(usize),
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Location::Host => f.write_str("cpu"),
            Location::Cuda(gpu) => write!(f, "cuda:{gpu}"),
        }
    }
}

/// An array of Python. It owns nothing: the object that it was read from keeps the memory.
#[derive(Clone, Copy, Debug)]
pub struct Array {
    /// The name of the argument.
    pub name: &'static str,
    pub dtype: DType,
    rank: usize,
    dims: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
    pub address: u64,
    pub location: Location,
    pub read_only: bool,
}

/// How the objects of a class are read.
#[derive(Clone, Copy)]
enum Reader {
    /// By the functions that the class offers.
    Exchange(Exchange, Negation),
    /// By the attributes of a torch tensor.
    Torch(Negation),
    /// By the attributes of a numpy array.
    Numpy,
    /// By `__dlpack__`.
    DlPack,
}

/// The cache of readers, by the address of the class. It keeps the classes alive, so an address stays one of them.
static READERS: RwLock<Vec<(usize, Reader, Py<PyType>)>> = RwLock::new(Vec::new());

impl Array {
    pub fn new(
        py: Python<'_>,
        name: &'static str,
        dtype: DType,
        dims: &[i64],
        strides: Option<&[i64]>,
        address: u64,
        location: Location,
    ) -> PyResult<Array> {
        // A scalar is a list of one.
        let (dims, strides) = if dims.is_empty() { (&[1][..], None) } else { (dims, strides) };
        let rank = dims.len();
        let mut array = Array {
            name,
            dtype,
            rank,
            dims: [1; MAX_RANK],
            strides: [1; MAX_RANK],
            address,
            location,
            read_only: false,
        };
        if rank > MAX_RANK {
            let expected = format!("at most {MAX_RANK} dimensions");
            return Err(argument_error(py, name, "has the wrong rank", &expected, &format!("{dims:?}")));
        }
        for (to, &from) in array.dims.iter_mut().zip(dims) {
            *to = usize::try_from(from).unwrap_or(0);
        }
        match strides {
            Some(strides) => {
                for ((to, &from), &dim) in array.strides.iter_mut().zip(strides).zip(dims) {
                    // Strides along 1 mean nothing.
                    *to = match usize::try_from(from) {
                        Ok(stride) => stride,
                        Err(_) if dim <= 1 => 1,
                        Err(_) => {
                            let found = format!("{strides:?} for {dims:?}");
                            let problem = "has the wrong strides";
                            return Err(argument_error(py, name, problem, "strides of 0 or more", &found));
                        }
                    };
                }
            }
            None => {
                for i in (1..rank).rev() {
                    array.strides[i - 1] = array.strides[i] * array.dims[i].max(1);
                }
            }
        }
        Ok(array)
    }

    /// Reads an object; what must be kept beside it is added to `keep`.
    #[inline]
    pub fn read<'py>(
        name: &'static str,
        object: &Bound<'py, PyAny>,
        keep: &mut Vec<Bound<'py, PyAny>>,
    ) -> PyResult<(Array, Option<Exchange>)> {
        match reader(name, object)? {
            Reader::Exchange(exchange, negation) => {
                let array = exchange.read(name, object)?;
                negation.refuse(name, object, array.dtype)?;
                Ok((array, Some(exchange)))
            }
            Reader::Torch(negation) => {
                let array = torch(name, object)?;
                negation.refuse(name, object, array.dtype)?;
                Ok((array, None))
            }
            Reader::Numpy => Ok((numpy(name, object)?, None)),
            Reader::DlPack => {
                let (array, capsule) = dlpack::read(name, object)?;
                keep.push(capsule);
                Ok((array, None))
            }
        }
    }

    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    pub fn strides(&self) -> &[usize] {
        &self.strides[..self.rank]
    }

    /// Refuses elements of another type.
    #[inline]
    pub fn expect_type(&self, py: Python<'_>, expected: DType) -> PyResult<()> {
        if self.dtype == expected {
            return Ok(());
        }
        let name = DTYPES.iter().find(|(_, dtype)| *dtype == expected).map(|(name, _)| *name);
        let error = oxigemm::Error::DType {
            argument: self.name,
            expected: name.map_or_else(|| expected.to_string(), str::to_owned),
            found: self.dtype.to_string(),
        };
        Err(from_library(py, &error, &[]))
    }

    /// Refuses another number of dimensions.
    pub fn expect_rank(&self, py: Python<'_>, rank: usize) -> PyResult<()> {
        if self.rank == rank {
            return Ok(());
        }
        let (expected, found) = (format!("{rank} dimensions"), format!("{:?}", self.dims()));
        Err(argument_error(py, self.name, "has the wrong rank", &expected, &found))
    }

    /// Whether both are the same elements.
    pub fn is_same(&self, other: &Array) -> bool {
        (self.address, self.dims(), self.strides(), self.dtype)
            == (other.address, other.dims(), other.strides(), other.dtype)
    }

    /// Refuses elements that lie on each other: of those that are written, one would stay.
    #[inline]
    pub fn expect_apart(&self, py: Python<'_>) -> PyResult<()> {
        if self.dims().contains(&0) || is_apart(self.dims(), self.strides()) {
            return Ok(());
        }
        let found = format!("{:?} for {:?}", self.strides(), self.dims());
        let expected = "memory of its own for each element, as it is written";
        Err(argument_error(py, self.name, "has the wrong strides", expected, &found))
    }

    /// The bytes from the first element to the last.
    pub fn bytes(&self) -> usize {
        if self.dims().contains(&0) {
            return 0;
        }
        let last = self
            .dims()
            .iter()
            .zip(self.strides())
            .fold(0usize, |last, (dim, stride)| last.saturating_add((dim - 1).saturating_mul(*stride)));
        last.saturating_add(1).saturating_mul(self.dtype.size())
    }

    /// It as a tensor of the library, at some address of a device.
    ///
    /// # Safety
    /// As for [`Tensor::from_raw_parts`].
    #[inline]
    pub unsafe fn tensor(&self, address: u64, device: &Device) -> oxigemm::Result<Tensor> {
        // SAFETY: the caller keeps the same contract.
        unsafe { Tensor::from_raw_parts(self.dtype, self.dims(), self.strides(), address, device) }
    }
}

/// Whether each stride leads past all that the smaller ones reach.
#[inline]
fn is_apart(dims: &[usize], strides: &[usize]) -> bool {
    let mut order: [(usize, usize); MAX_RANK] = [(0, 0); MAX_RANK];
    for (to, (&stride, &dim)) in order.iter_mut().zip(strides.iter().zip(dims)) {
        *to = (stride, dim);
    }
    let order = &mut order[..dims.len()];
    order.sort_unstable();
    let mut reach = 0usize;
    for &(stride, dim) in order.iter().filter(|(_, dim)| *dim > 1) {
        if stride <= reach {
            return false;
        }
        reach = reach.saturating_add(stride.saturating_mul(dim - 1));
    }
    true
}

#[inline]
fn reader(name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Reader> {
    let class = object.get_type_ptr().addr();
    let known = READERS.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some((_, reader, _)) = known.iter().find(|(seen, ..)| *seen == class) {
        return Ok(*reader);
    }
    drop(known);
    let class = object.get_type();
    let reader = find_reader(name, object)?;
    let mut known = READERS.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    known.push((object.get_type_ptr().addr(), reader, class.unbind()));
    Ok(reader)
}

#[cold]
fn find_reader(name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Reader> {
    let class = object.get_type();
    let has = |attribute: &str| class.hasattr(attribute).unwrap_or(false);
    if let Some(exchange) = Exchange::of(class.as_any()) {
        return Ok(Reader::Exchange(exchange, Negation::of(object)));
    }
    if has("mask") && has("filled") {
        let expected = "an array without a mask";
        return Err(type_error(object.py(), name, expected, &class.fully_qualified_name()?.to_string()));
    }
    if has("data_ptr") && has("stride") && has("device") {
        Ok(Reader::Torch(Negation::of(object)))
    } else if ["__array_interface__", "__setitem__", "dtype", "shape", "strides"].into_iter().all(has) {
        // A scalar of numpy has no `__setitem__`; its memory is gone when the interface was asked for.
        Ok(Reader::Numpy)
    } else if has("__dlpack__") {
        Ok(Reader::DlPack)
    } else {
        let expected = "a torch tensor, a numpy array or an array with __dlpack__";
        Err(type_error(object.py(), name, expected, &class.fully_qualified_name()?.to_string()))
    }
}

/// A torch tensor that offers no functions: one of an older torch.
fn torch(name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Array> {
    let py = object.py();
    let dtype = object.getattr(intern!(py, "dtype"))?.to_string();
    let dtype =
        named(dtype.strip_prefix("torch.").unwrap_or(&dtype)).ok_or_else(|| dtype_error(py, name, &dtype))?;
    let dims: Vec<i64> = object.getattr(intern!(py, "shape"))?.extract()?;
    let strides: Vec<i64> = object.call_method0(intern!(py, "stride"))?.extract()?;
    let address = object.call_method0(intern!(py, "data_ptr"))?.extract()?;
    let device = object.getattr(intern!(py, "device"))?;
    let kind = device.getattr(intern!(py, "type"))?;
    let location = if kind.eq("cpu")? {
        Location::Host
    } else if kind.eq("cuda")? {
        Location::Cuda(device.getattr(intern!(py, "index"))?.extract()?)
    } else {
        let found = device.to_string();
        return Err(argument_error(py, name, "is on the wrong device", "a CPU or a CUDA GPU", &found));
    };
    Array::new(py, name, dtype, &dims, Some(&strides), address, location)
}

/// A numpy array.
fn numpy(name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Array> {
    let py = object.py();
    let dtype = object.getattr(intern!(py, "dtype"))?;
    let found: String = dtype.getattr(intern!(py, "name"))?.extract()?;
    let native: bool = dtype.getattr(intern!(py, "isnative"))?.extract()?;
    if !native {
        let order = if cfg!(target_endian = "little") { "big-endian" } else { "little-endian" };
        return Err(dtype_error(py, name, &format!("{order} {found}")));
    }
    let dtype = named(&found).ok_or_else(|| dtype_error(py, name, &found))?;
    let dims: Vec<i64> = object.getattr(intern!(py, "shape"))?.extract()?;
    let bytes: Vec<i64> = object.getattr(intern!(py, "strides"))?.extract()?;
    let size = dtype.size() as i64;
    if bytes.iter().zip(&dims).any(|(stride, dim)| *dim > 1 && stride % size != 0) {
        let expected = format!("multiples of {size} bytes");
        return Err(argument_error(
            py,
            name,
            "has the wrong strides",
            &expected,
            &format!("{bytes:?} bytes"),
        ));
    }
    let strides: Vec<i64> = bytes.iter().map(|stride| stride / size).collect();
    let interface = object.getattr(intern!(py, "__array_interface__"))?;
    let (address, read_only): (u64, bool) = interface.get_item(intern!(py, "data"))?.extract()?;
    let mut array = Array::new(py, name, dtype, &dims, Some(&strides), address, Location::Host)?;
    array.read_only = read_only;
    Ok(array)
}

/// The names that numpy, ml_dtypes and torch have for element types.
const DTYPES: [(&str, DType); 9] = [
    ("float8_e4m3fn", DType::E4m3),
    ("float8_e5m2", DType::E5m2),
    ("bfloat16", DType::Bf16),
    ("float16", DType::F16),
    ("float32", DType::F32),
    ("int32", DType::I32),
    ("uint8", DType::U8),
    ("int8", DType::U8),
    // Exponents of UE8M0 scales.
    ("float8_e8m0fnu", DType::U8),
];

/// The element type of this name.
fn named(name: &str) -> Option<DType> {
    DTYPES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype)
}

/// The error of a shape or strides that the library refuses, with the name of the argument.
pub fn refused(py: Python<'_>, error: &oxigemm::Error, name: &'static str) -> PyErr {
    from_library(py, error, &[("dims", name), ("strides", name)])
}
