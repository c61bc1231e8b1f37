//! The road of a call: arguments are read, brought to where they are computed, and given to the library.

use std::ffi::c_void;
use std::sync::Arc;

use oxigemm::{Addend, DType, Device, GemmOptions, LaunchOptions, Tensor};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::array::{Array, Place, refused};
use crate::dlpack::Exchange;
use crate::error::{argument_error, from_library, type_error};
use crate::settings;

/// The arguments of a call, as they are read one after another.
pub struct Call<'py> {
    py: Python<'py>,
    arrays: Vec<Array>,
    /// Which of them are written.
    outputs: u32,
    keep: Vec<Bound<'py, PyAny>>,
    exchange: Option<Exchange>,
    is_torch: bool,
    names: &'static [(&'static str, &'static str)],
}

/// An argument of a call.
#[derive(Clone, Copy)]
pub struct Index(usize);

/// The arguments where they are computed, and how.
pub struct Operands {
    tensors: Vec<Tensor>,
    /// How a product is run.
    pub options: GemmOptions,
}

impl Operands {
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

    /// How a call that is no product is run.
    pub fn launch_options(&self) -> LaunchOptions {
        LaunchOptions { stream: self.options.stream.clone(), programmatic: self.options.programmatic }
    }

    /// What is added to a product.
    pub fn addend(&self, c: Added) -> Addend<'_> {
        match c {
            Added::Nothing => Addend::None,
            Added::Output => Addend::InPlace,
            Added::Other(index) => Addend::From(self.get(index)),
        }
    }
}

/// What is added to a product.
#[derive(Clone, Copy)]
pub enum Added {
    Nothing,
    Output,
    Other(Index),
}

impl<'py> Call<'py> {
    /// A call whose arguments may have other names in the library than here.
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
            if array.place != first.place {
                let expected = format!("{}, where `{}` is", first.place, first.name);
                let found = array.place.to_string();
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

    /// Reads what is added to an output.
    #[inline]
    pub fn addend(&mut self, object: Option<&Bound<'py, PyAny>>, d: Index) -> PyResult<Added> {
        let Some(object) = object else { return Ok(Added::Nothing) };
        let c = self.input("c", object)?;
        Ok(if self.array(c).is_same(self.array(d)) { Added::Output } else { Added::Other(c) })
    }

    /// Takes bytes of no type as elements of one of the same size.
    pub fn read_bytes_as(&mut self, index: Index, dtype: DType) {
        let array = &mut self.arrays[index.0];
        if array.dtype == DType::U8 && dtype.size() == 1 {
            array.dtype = dtype;
        }
    }

    pub fn is_on_gpu(&self) -> bool {
        self.arrays.first().is_some_and(|array| array.place != Place::Host)
    }

    pub fn array(&self, index: Index) -> &Array {
        &self.arrays[index.0]
    }

    /// Computes, where the arguments are, without holding up other threads of Python.
    #[inline]
    pub fn run(self, work: impl FnOnce(&Operands) -> oxigemm::Result<()> + Send) -> PyResult<()> {
        let Some(first) = self.arrays.first() else { return Ok(()) };
        let done = match first.place {
            Place::Cuda(gpu) => self.on_gpu(gpu, work)?,
            Place::Host => match settings::host(self.py)? {
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
        work: impl FnOnce(&Operands) -> oxigemm::Result<()> + Send,
    ) -> PyResult<oxigemm::Result<()>> {
        let device = settings::gpu(self.py, gpu)?;
        let cuda = device.as_cuda().expect("it is a GPU");
        let stream = self.current_stream(gpu)?;
        let mut options = settings::options();
        // SAFETY: the library keeps its current stream, in the primary context that it uses as well.
        options.stream = Some(unsafe { cuda.stream_from_raw(stream) }.into());
        let operands = Operands { tensors: self.tensors(device)?, options };
        // Operands belong to this call; those of other threads have their own.
        Ok(self.py.detach(move || work(&operands)))
    }

    fn on_cpu(
        &self,
        device: &Device,
        work: impl FnOnce(&Operands) -> oxigemm::Result<()> + Send,
    ) -> PyResult<oxigemm::Result<()>> {
        let operands = Operands { tensors: self.tensors(device)?, options: settings::options() };
        Ok(self.py.detach(move || work(&operands)))
    }

    /// The arguments as tensors where they are.
    #[inline]
    fn tensors(&self, device: &Device) -> PyResult<Vec<Tensor>> {
        let tensor = |array: &Array| {
            // SAFETY: the objects that were read are kept by the caller until the call returns, and for work that is
            // then in a stream their owner keeps the memory, as for work of its own. Who else uses them meanwhile is in
            // the hands of the caller, as everywhere in Python.
            unsafe { array.tensor(array.address, device) }
                .map_err(|error| refused(self.py, &error, array.name))
        };
        self.arrays.iter().map(tensor).collect()
    }

    /// The same in memory of a simulated GPU: arrays that share memory share it there, at addresses aligned alike.
    fn in_simulator(
        &self,
        device: &Device,
        work: impl FnOnce(&Operands) -> oxigemm::Result<()> + Send,
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
            let operands = Operands { tensors, options: settings::options() };
            work(&operands)?;
            for (i, mut host) in hosts.into_iter().enumerate() {
                if outputs & (1 << i) != 0 && !host.is_empty() {
                    host.copy_from(&operands.tensors[i])?;
                }
            }
            Ok(())
        }))
    }

    /// The stream that the owner of the arguments puts work into now.
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

/// The two parts of a pair.
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

/// Memory of the simulator for memory of the CPU.
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

/// Copies of all that arrays refer to: one of memory that hangs together.
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
        let (pad, bytes) = ((from % 256) as usize, (end - from) as usize);
        let memory = Tensor::empty(DType::U8, &[pad + bytes], device)?;
        // SAFETY: the arrays are memory of the CPU from here to there, kept by their objects.
        let host = unsafe { Tensor::from_raw_parts(DType::U8, &[bytes], &[1], from, &Device::Cpu)? };
        memory.narrow(0, pad, bytes)?.copy_from(&host)?;
        Ok(Piece { from, end, at: memory.address() + pad as u64, _memory: Arc::new(memory) })
    };
    ranges.into_iter().map(copy).collect()
}
