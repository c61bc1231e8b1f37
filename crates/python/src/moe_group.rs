//! A mixture on several GPUs that reach each other's memory. A group lives in Python, as its buffer and its sizes.

use oxigemm::{DType, Device, MoeGroup, MoeGroupCall, MoeGroupShape, MoeRouting, Tensor};
use pyo3::prelude::*;

use crate::call::{Arguments, Call, Index};
use crate::error::from_library;
use crate::experts::{Between, Experts, Parts};

/// Ranks, tokens, choices of each, experts of a rank and columns; whether tokens travel as bf16, and whether their
/// scales are packed.
type Sizes = ([usize; 5], [bool; 2]);

fn shape_of(([ranks, tokens, topk, experts, columns], [half, packed_scales]): Sizes) -> MoeGroupShape {
    let dtype = if half { DType::Bf16 } else { DType::E4m3 };
    MoeGroupShape { ranks, tokens, topk, experts, columns, dtype, packed_scales }
}

/// How many bytes a symmetric buffer has, and where tokens, scales, ids and weights begin in it.
#[pyfunction]
fn moe_group_layout(py: Python<'_>, sizes: Sizes) -> PyResult<(usize, [usize; 4])> {
    let shape = shape_of(sizes);
    let layout = shape.buffer_bytes().and_then(|bytes| Ok((bytes, shape.offsets()?)));
    layout.map_err(|error| from_library(py, &error, &[]))
}

/// Bytes of scratch memory for experts of I columns between their products.
#[pyfunction]
fn moe_group_scratch_bytes(
    py: Python<'_>,
    sizes: Sizes,
    inner: usize,
    most_rows: Option<usize>,
) -> PyResult<usize> {
    let bytes = oxigemm::moe_group_scratch_bytes(&shape_of(sizes), inner, most_rows);
    bytes.map_err(|error| from_library(py, &error, &[]))
}

/// A buffer, its sizes, the rank it is of, and the seconds after which another one counts as missing.
type Rank<'py> = (Bound<'py, PyAny>, Sizes, usize, f64);

/// One rank of a group, of which Python keeps the buffer.
struct Member {
    buffer: Index,
    shape: MoeGroupShape,
    rank: usize,
    timeout: f64,
}

impl Member {
    fn read<'py>(call: &mut Call<'py>, (buffer, sizes, rank, timeout): &Rank<'py>) -> PyResult<Self> {
        let buffer = call.output("buffer", buffer)?;
        Ok(Member { buffer, shape: shape_of(*sizes), rank: *rank, timeout: *timeout })
    }

    /// The group, where its buffer is long enough. Memory of a simulated GPU is another one in each call, so its header
    /// is written anew: it is a group of one.
    fn get(&self, at: &Arguments) -> oxigemm::Result<MoeGroup> {
        let buffer = at.get(self.buffer);
        self.expect_bytes(buffer)?;
        let (device, address) = (buffer.device(), buffer.address());
        // SAFETY: the buffer is one that Python keeps, and has room for all parts.
        let mut group = unsafe {
            match device {
                Device::Sim(_) => MoeGroup::new(device, &self.shape, self.rank, &[address])?,
                _ => MoeGroup::attach(device, &self.shape, self.rank, address)?,
            }
        };
        group.set_timeout(self.timeout);
        Ok(group)
    }

    fn expect_bytes(&self, buffer: &Tensor) -> oxigemm::Result<()> {
        let bytes = self.shape.buffer_bytes()?;
        if buffer.dtype() != DType::U8 || buffer.len() < bytes {
            return Err(oxigemm::Error::Shape {
                argument: "buffer",
                expected: format!("{bytes} contiguous bytes or more"),
                found: format!("{:?} of {}", buffer.dims(), buffer.dtype()),
            });
        }
        Ok(())
    }
}

/// Prepares the buffer of a rank: `buffers` are the addresses of all of them.
#[pyfunction]
fn moe_group_init<'py>(py: Python<'py>, rank: Rank<'py>, buffers: Vec<u64>) -> PyResult<()> {
    let mut call = Call::new(py, &[]);
    let member = Member::read(&mut call, &rank)?;
    call.run(|at| {
        let buffer = at.get(member.buffer);
        member.expect_bytes(buffer)?;
        // Where the caller has its buffer is what others call it, also where this call works with a copy.
        let copied = matches!(buffer.device(), Device::Sim(_)) && buffers.len() == 1;
        let own = [buffer.address()];
        let buffers = if copied { &own } else { buffers.as_slice() };
        // SAFETY: Python keeps the buffer, and vouches for those of others.
        unsafe { MoeGroup::with_buffer(buffer, &member.shape, member.rank, buffers).map(drop) }
    })
}

/// Puts tokens, their choices and the factors of these into a rank's buffer.
#[pyfunction]
fn moe_group_publish<'py>(
    py: Python<'py>,
    rank: Rank<'py>,
    x: &Bound<'py, PyAny>,
    choices: (Bound<'py, PyAny>, Bound<'py, PyAny>),
    factor: f32,
) -> PyResult<()> {
    let mut call = Call::new(py, &[]);
    let member = Member::read(&mut call, &rank)?;
    let (x, ids, weights) =
        (call.input("x", x)?, call.input("ids", &choices.0)?, call.input("weights", &choices.1)?);
    call.run(|at| {
        let routing = MoeRouting { ids: at.get(ids), weights: at.get(weights) };
        oxigemm::moe_publish(&member.get(at)?, at.get(x), &routing, factor, &at.launch_options())
    })
}

/// The experts of all ranks for the tokens in a rank's buffer: `call` has their number, the most rows of this rank's
/// experts, and where those are counted.
#[pyfunction]
fn moe_group_forward<'py>(
    py: Python<'py>,
    rank: Rank<'py>,
    call: (usize, Option<usize>, Option<Bound<'py, PyAny>>),
    weights: (Parts<'py>, Parts<'py>),
    between: Between<'py>,
    scratch: &Bound<'py, PyAny>,
    out: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let (tokens, most_rows, counts) = call;
    let mut call = Call::new(py, &[]);
    let member = Member::read(&mut call, &rank)?;
    let experts = Experts::read(&mut call, &weights, &between)?;
    let counts = counts.map(|counts| call.output("counts", &counts)).transpose()?;
    let (scratch, out) = (call.output("scratch", scratch)?, call.output("out", out)?);
    call.run(|at| {
        let group = member.get(at)?;
        let call = MoeGroupCall { tokens, most_rows, counts: counts.map(|counts| at.get(counts)) };
        let (mut scratch, mut out) = (at.output(scratch), at.output(out));
        oxigemm::moe_forward_group(&group, &call, &experts.get(at), &mut scratch, &mut out, &at.options)?;
        match at.get(member.buffer).device() {
            // What went wrong is lost with the copy of the buffer.
            Device::Sim(_) => group.check(),
            _ => Ok(()),
        }
    })
}

/// Waits, and tells what went wrong between ranks.
#[pyfunction]
fn moe_group_check<'py>(py: Python<'py>, rank: Rank<'py>) -> PyResult<()> {
    let mut call = Call::new(py, &[]);
    let member = Member::read(&mut call, &rank)?;
    call.run(|at| member.get(at)?.check())
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(moe_group_layout, module)?)?;
    module.add_function(wrap_pyfunction!(moe_group_scratch_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(moe_group_init, module)?)?;
    module.add_function(wrap_pyfunction!(moe_group_publish, module)?)?;
    module.add_function(wrap_pyfunction!(moe_group_forward, module)?)?;
    module.add_function(wrap_pyfunction!(moe_group_check, module)?)
}
