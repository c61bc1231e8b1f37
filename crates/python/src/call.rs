//! A call from Python: its arrays are read, become tensors on the device that computes, and go to the library.

use std::ffi::c_void;
use std::sync::Arc;

use oxigemm::{Addend, DType, Device, GemmOptions, LaunchOptions, Tensor};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::array::{Array, Location, refused};
use crate::dlpack::Exchange;
use crate::error::{argument_error, from_library, type_error};
use crate::settings;

/// The arrays of a call, read one by one.
pub struct Call<'py> {
    py: Python<'py>,
    arrays: Vec<Array>,
    /// A bit for each array that is written.
    outputs: u32,
    keep: Vec<Bound<'py, PyAny>>,
    exchange: Option<Exchange>,
    is_torch: bool,
    names: &'static [(&'static str, &'static str)],
}

/// An argument of a call.
#[derive(Clone, Copy)]
pub struct Index(usize);

/// The arguments of a call as tensors on the device that computes, and the options.
pub struct Arguments {
    tensors: Vec<Tensor>,
    /// The options of a GEMM.
    pub options: GemmOptions,
}

impl Arguments {
    /// An argument.
    #[inline]
    pub fn get(&self, index: Index) -> &Tensor {
        &self.tensors[index.0]
    }

    /// An argument that is written: another handle of the same memory.
    #[inline]
    pub fn output(&self, index: Index) -> Tensor {
        self.tensors[index.0].clone()
    }

    /// The options of a kernel that is not a GEMM.
    pub fn launch_options(&self) -> LaunchOptions {
        LaunchOptions { stream: self.options.stream.clone(), programmatic: self.options.programmatic }
    }

    /// C, as the library takes it.
    #[inline]
    pub fn addend(&self, c: AddendArgument) -> Addend<'_> {
        match c {
            AddendArgument::None => Addend::None,
            AddendArgument::InPlace => Addend::InPlace,
            AddendArgument::From(index) => Addend::From(self.get(index)),
        }
    }
}

/// C of a GEMM.
#[derive(Clone, Copy)]
pub enum AddendArgument {
    None,
    /// D itself.
    InPlace,
    From(Index),
}

impl<'py> Call<'py> {
    /// A call. `names` are pairs of the library's name for an argument and Python's, where they differ.
    pub fn new(py: Python<'py>, names: &'static [(&'static str, &'static str)]) -> Call<'py> {
        Call {
            py,
            arrays: Vec::with_capacity(8),
            outputs: 0,
            keep: Vec::new(),
            exchange: None,
            is_torch: false,
            names,
        }
    }

    pub fn py(&self) -> Python<'py> {
        self.py
    }

    /// Reads an argument.
    #[inline]
    pub fn input(&mut self, name: &'static str, object: &Bound<'py, PyAny>) -> PyResult<Index> {
        let (array, exchange) = Array::read(name, object, &mut self.keep)?;
        if let Some(first) = self.arrays.first() {
            if array.location != first.location {
                let expected = format!("{}, where `{}` is", first.location, first.name);
                let found = array.location.to_string();
                return Err(argument_error(self.py, name, "is on the wrong device", &expected, &found));
            }
        } else {
            self.exchange = exchange;
            self.is_torch = exchange.is_none() && object.hasattr(intern!(self.py, "data_ptr"))?;
        }
        self.arrays.push(array);
        Ok(Index(self.arrays.len() - 1))
    }

    /// Reads an argument that is written.
    #[inline]
    pub fn output(&mut self, name: &'static str, object: &Bound<'py, PyAny>) -> PyResult<Index> {
        let index = self.input(name, object)?;
        if self.arrays[index.0].read_only {
            return Err(argument_error(
                self.py,
                name,
                "cannot be written",
                "an array that can",
                "a read-only one",
            ));
        }
        self.arrays[index.0].expect_apart(self.py)?;
        self.outputs |= 1 << index.0;
        Ok(index)
    }

    /// Reads a pair of an operand and its scales.
    #[inline]
    pub fn pair(
        &mut self,
        [name, scales]: [&'static str; 2],
        object: &Bound<'py, PyAny>,
    ) -> PyResult<[Index; 2]> {
        let (first, second) = pair(name, object)?;
        Ok([self.input(name, &first)?, self.input(scales, &second)?])
    }

    /// Reads C.
    #[inline]
    pub fn addend(&mut self, object: Option<&Bound<'py, PyAny>>, d: Index) -> PyResult<AddendArgument> {
        let Some(object) = object else { return Ok(AddendArgument::None) };
        let c = self.input("c", object)?;
        Ok(match self.array(c).is_same(self.array(d)) {
            true => AddendArgument::InPlace,
            false => AddendArgument::From(c),
        })
    }

    /// Reads bytes as elements of a one-byte type.
    pub fn read_bytes_as(&mut self, index: Index, dtype: DType) {
        let array = &mut self.arrays[index.0];
        if array.dtype == DType::U8 && dtype.size() == 1 {
            array.dtype = dtype;
        }
    }

    pub fn is_on_gpu(&self) -> bool {
        self.arrays.first().is_some_and(|array| array.location != Location::Host)
    }

    pub fn array(&self, index: Index) -> &Array {
        &self.arrays[index.0]
    }

    /// Computes on the device of the arguments, without the interpreter lock.
    #[inline]
    pub fn run(self, work: impl FnOnce(&Arguments) -> oxigemm::Result<()> + Send) -> PyResult<()> {
        let Some(first) = self.arrays.first() else { return Ok(()) };
        let done = match first.location {
            Location::Cuda(gpu) => self.on_gpu(gpu, work)?,
            Location::Host => match settings::host(self.py)? {
                device @ Device::Sim(_) => self.in_simulator(&device, work)?,
                device => self.on_cpu(&device, work)?,
            },
        };
        done.map_err(|error| from_library(self.py, &error, self.names))
    }

    #[inline]
    fn on_gpu(
        &self,
        gpu: usize,
        work: impl FnOnce(&Arguments) -> oxigemm::Result<()> + Send,
    ) -> PyResult<oxigemm::Result<()>> {
        let device = settings::gpu(self.py, gpu)?;
        let cuda = device.as_cuda().expect("it is a GPU");
        let stream = self.current_stream(gpu)?;
        let mut options = settings::options();
        // SAFETY: the library keeps its current stream, in the primary context that it uses as well.
        options.stream = Some(unsafe { cuda.stream_from_raw(stream) }.into());
        let arguments = Arguments { tensors: self.tensors(device)?, options };
        // The arguments belong to this call: other threads have their own.
        Ok(self.py.detach(move || work(&arguments)))
    }

    fn on_cpu(
        &self,
        device: &Device,
        work: impl FnOnce(&Arguments) -> oxigemm::Result<()> + Send,
    ) -> PyResult<oxigemm::Result<()>> {
        let arguments = Arguments { tensors: self.tensors(device)?, options: settings::options() };
        Ok(self.py.detach(move || work(&arguments)))
    }

    /// The arguments as tensors of their own memory.
    #[inline]
    fn tensors(&self, device: &Device) -> PyResult<Vec<Tensor>> {
        let tensor = |array: &Array| {
            // SAFETY: the caller keeps the objects alive until the call returns. For work that is then in a stream the
            // library that owns the memory keeps it, as for work of its own. Races are up to the caller, as everywhere
            // in Python.
            unsafe { array.tensor(array.address, device) }
                .map_err(|error| refused(self.py, &error, array.name))
        };
        self.arrays.iter().map(tensor).collect()
    }

    /// Computes on copies in a simulated GPU's memory. Arrays that share memory share the copy, at the same alignment.
    fn in_simulator(
        &self,
        device: &Device,
        work: impl FnOnce(&Arguments) -> oxigemm::Result<()> + Send,
    ) -> PyResult<oxigemm::Result<()>> {
        let hosts = self.tensors(&Device::Cpu)?;
        let arrays = self.arrays.clone();
        let outputs = self.outputs;
        Ok(self.py.detach(move || {
            let pieces = pieces(&arrays, device)?;
            let place = |array: &Array| {
                let piece = pieces.iter().find(|piece| piece.holds(array));
                let address = piece.map_or(0, |piece| piece.at + (array.address - piece.from));
                // SAFETY: the pieces live until the work is done, which no one else knows of.
                unsafe { array.tensor(address, device) }
            };
            let tensors = arrays.iter().map(place).collect::<oxigemm::Result<Vec<Tensor>>>()?;
            let arguments = Arguments { tensors, options: settings::options() };
            work(&arguments)?;
            for (i, mut host) in hosts.into_iter().enumerate() {
                if outputs & (1 << i) != 0 && !host.is_empty() {
                    host.copy_from(&arguments.tensors[i])?;
                }
            }
            Ok(())
        }))
    }

    /// The current stream of the library that owns the arguments.
    #[inline]
    fn current_stream(&self, gpu: usize) -> PyResult<*mut c_void> {
        if let Some(stream) = self.exchange.and_then(|exchange| exchange.current_stream(gpu)) {
            return Ok(stream);
        }
        if !self.is_torch {
            return Ok(std::ptr::null_mut());
        }
        let torch = self.py.import(intern!(self.py, "torch._C"))?;
        let stream: usize =
            torch.call_method1(intern!(self.py, "_cuda_getCurrentRawStream"), (gpu,))?.extract()?;
        Ok(std::ptr::with_exposed_provenance_mut(stream))
    }
}

/// An operand and its scales.
pub fn pair<'py>(name: &str, object: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let expected = "a pair of an operand and its scales";
    if let Ok(tuple) = object.cast::<PyTuple>() {
        if tuple.len() == 2 {
            return Ok((tuple.get_item(0)?, tuple.get_item(1)?));
        }
        return Err(type_error(object.py(), name, expected, &format!("a tuple of {}", tuple.len())));
    }
    match object.cast::<PyList>() {
        Ok(list) if list.len() == 2 => Ok((list.get_item(0)?, list.get_item(1)?)),
        _ => Err(type_error(
            object.py(),
            name,
            expected,
            &object.get_type().fully_qualified_name()?.to_string(),
        )),
    }
}

/// A block of simulator memory, the copy of a block of host memory.
struct Piece {
    from: u64,
    end: u64,
    at: u64,
    _memory: Arc<Tensor>,
}

impl Piece {
    fn holds(&self, array: &Array) -> bool {
        array.bytes() > 0 && self.from <= array.address && array.address < self.end
    }
}

/// Copies of the memory of all arrays: one for each contiguous block.
fn pieces(arrays: &[Array], device: &Device) -> oxigemm::Result<Vec<Piece>> {
    let mut ranges: Vec<(u64, u64)> = arrays
        .iter()
        .filter(|array| array.bytes() > 0)
        .map(|array| (array.address, array.address + array.bytes() as u64))
        .collect();
    ranges.sort_unstable();
    ranges.dedup_by(|next, before| {
        let overlap = next.0 < before.1;
        if overlap {
            before.1 = before.1.max(next.1);
        }
        overlap
    });
    let copy = |(from, end): (u64, u64)| {
        // What numpy allocates lies at any multiple of 16: it is to lie as an allocation of a GPU does.
        let (pad, bytes) = ((from % 16) as usize, (end - from) as usize);
        let memory = Tensor::empty(DType::U8, &[pad + bytes], device)?;
        // SAFETY: the arrays are memory of the CPU from here to there, kept by their objects.
        let host = unsafe { Tensor::from_raw_parts(DType::U8, &[bytes], &[1], from, &Device::Cpu)? };
        memory.narrow(0, pad, bytes)?.copy_from(&host)?;
        Ok(Piece { from, end, at: memory.address() + pad as u64, _memory: Arc::new(memory) })
    };
    ranges.into_iter().map(copy).collect()
}
