//! Mixture of experts: permute tokens to the rows of their experts, unpermute, and both around the GEMMs in one call.

use std::borrow::Cow;

use oxigemm::{DType, Gate, GemmOptions, MoeExperts, MoeProjection, MoeRouting, PermutedRows};
use pyo3::prelude::*;

use crate::call::{Arguments, Call, Index};
use crate::convert::convert;
use crate::gemm::activation_of;

#[pyfunction]
fn moe_permute<'py>(
    py: Python<'py>,
    ids: &Bound<'py, PyAny>,
    alignment: &Bound<'py, PyAny>,
    tokens: &Bound<'py, PyAny>,
    groups: &Bound<'py, PyAny>,
    ends: &Bound<'py, PyAny>,
    places: &Bound<'py, PyAny>,
) -> PyResult<()> {
    // Outputs are made by the facade, from these arguments.
    let mut call = Call::new(py, &[("tokens", "rows"), ("ends", "experts")]);
    let ids = call.input("ids", ids)?;
    let (tokens, groups) = (call.output("tokens", tokens)?, call.output("groups", groups)?);
    let (ends, places) = (call.output("ends", ends)?, call.output("places", places)?);
    let alignment: usize = convert("alignment", alignment)?;
    call.run(|x| {
        let [mut tokens, mut groups, mut ends, mut places] =
            [tokens, groups, ends, places].map(|index| x.output(index));
        let to =
            PermutedRows { tokens: &mut tokens, groups: &mut groups, ends: &mut ends, places: &mut places };
        oxigemm::moe_permute(x.get(ids), alignment, to, &x.launch_options())
    })
}

#[pyfunction]
fn moe_unpermute<'py>(
    py: Python<'py>,
    rows: &Bound<'py, PyAny>,
    places: &Bound<'py, PyAny>,
    weights: &Bound<'py, PyAny>,
    out: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let mut call = Call::new(py, &[]);
    let (rows, places) = (call.input("rows", rows)?, call.input("places", places)?);
    let (weights, out) = (call.input("weights", weights)?, call.output("out", out)?);
    call.run(|x| {
        let options = x.launch_options();
        oxigemm::moe_unpermute(x.get(rows), x.get(places), x.get(weights), &mut x.output(out), &options)
    })
}

/// Bytes of scratch memory for so many tokens and choices of each, and weights of E, I and K.
#[pyfunction]
fn moe_scratch_bytes(choices: [usize; 2], experts: [usize; 3], half: bool) -> usize {
    oxigemm::moe_scratch_bytes(choices, experts, if half { DType::Bf16 } else { DType::E4m3 })
}

/// A weight of all experts: itself, its scales and its bias.
struct Projection {
    weight: Index,
    scales: Option<Index>,
    bias: Option<Index>,
}

/// The names of those.
const PROJECTIONS: [[&str; 3]; 2] =
    [["gate_up", "gate_up_scales", "gate_up_bias"], ["down", "down_scales", "down_bias"]];

type Parts<'py> = (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>, Option<Bound<'py, PyAny>>);

impl Projection {
    fn read<'py>(call: &mut Call<'py>, names: [&'static str; 3], parts: &Parts<'py>) -> PyResult<Self> {
        let (weight, scales, bias) = parts;
        let weight = call.input(names[0], weight)?;
        let mut optional = |name, part: &Option<Bound<'py, PyAny>>| {
            part.as_ref().map(|part| call.input(name, part)).transpose()
        };
        Ok(Projection { weight, scales: optional(names[1], scales)?, bias: optional(names[2], bias)? })
    }

    fn get<'a>(&self, x: &'a Arguments) -> MoeProjection<'a> {
        let optional = |index: Option<Index>| index.map(|index| x.get(index));
        MoeProjection { weight: x.get(self.weight), scales: optional(self.scales), bias: optional(self.bias) }
    }
}

#[pyfunction]
fn moe_forward<'py>(
    py: Python<'py>,
    routed: (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>),
    gate_up: Parts<'py>,
    down: Parts<'py>,
    between: (Bound<'py, PyAny>, bool, Bound<'py, PyAny>),
    scratch: &Bound<'py, PyAny>,
    out: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let mut call = Call::new(py, &[]);
    let ((x, ids, weights), (activation, gated, gate)) = (routed, between);
    let (x, ids) = (call.input("x", &x)?, call.input("ids", &ids)?);
    let weights = call.input("weights", &weights)?;
    let gate_up = Projection::read(&mut call, PROJECTIONS[0], &gate_up)?;
    let down = Projection::read(&mut call, PROJECTIONS[1], &down)?;
    let (scratch, out) = (call.output("scratch", scratch)?, call.output("out", out)?);
    let activation = activation_of(py, &convert::<Cow<'_, str>>("activation", &activation)?)?;
    let gate = convert::<Option<(f32, f32, f32)>>("gate", &gate)?;
    let gate = gate.map_or(Gate::PLAIN, |(slope, limit, up_offset)| Gate { slope, limit, up_offset });
    call.run(|at| {
        let routing = MoeRouting { ids: at.get(ids), weights: at.get(weights) };
        let experts = MoeExperts { gate_up: gate_up.get(at), down: down.get(at), activation, gated, gate };
        let (mut scratch, mut out) = (at.output(scratch), at.output(out));
        let options: &GemmOptions = &at.options;
        oxigemm::moe_forward(at.get(x), &routing, &experts, &mut scratch, &mut out, options)
    })
}

#[pyfunction]
fn zero_padding_rows<'py>(
    py: Python<'py>,
    ids: &Bound<'py, PyAny>,
    num_groups: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let num_groups: usize = convert("num_groups", num_groups)?;
    let mut call = Call::new(py, &[]);
    let (ids, d) = (call.input("ids", ids)?, call.output("d", d)?);
    call.run(|x| oxigemm::zero_padding_rows(x.get(ids), num_groups, &mut x.output(d), &x.launch_options()))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(moe_permute, module)?)?;
    module.add_function(wrap_pyfunction!(moe_unpermute, module)?)?;
    module.add_function(wrap_pyfunction!(moe_scratch_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(moe_forward, module)?)?;
    module.add_function(wrap_pyfunction!(zero_padding_rows, module)?)
}
