//! Mixture of experts: permute tokens to the rows of their experts, unpermute, and both around the GEMMs in one call.

use oxigemm::{DType, MoeRouting, PermutedRows};
use pyo3::prelude::*;

use crate::call::Call;
use crate::convert::convert;
use crate::experts::{Between, Experts, Parts};

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

#[pyfunction]
fn moe_forward<'py>(
    py: Python<'py>,
    tokens: (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>),
    choices: (Bound<'py, PyAny>, Bound<'py, PyAny>),
    weights: (Parts<'py>, Parts<'py>),
    between: Between<'py>,
    scratch: &Bound<'py, PyAny>,
    out: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let mut call = Call::new(py, &[]);
    let ((x, scales), (ids, factors)) = (tokens, choices);
    let x = call.input("x", &x)?;
    let scales = scales.map(|scales| call.input("scales", &scales)).transpose()?;
    let (ids, factors) = (call.input("ids", &ids)?, call.input("weights", &factors)?);
    let experts = Experts::read(&mut call, &weights, &between)?;
    let (scratch, out) = (call.output("scratch", scratch)?, call.output("out", out)?);
    call.run(|at| {
        let routing = MoeRouting { ids: at.get(ids), weights: at.get(factors) };
        let (mut scratch, mut out) = (at.output(scratch), at.output(out));
        let (x, experts, options) = (at.get(x), experts.get(at), &at.options);
        match scales {
            None => oxigemm::moe_forward(x, &routing, &experts, &mut scratch, &mut out, options),
            Some(scales) => {
                let x = (x, at.get(scales));
                oxigemm::moe_forward_quantized(x, &routing, &experts, &mut scratch, &mut out, options)
            }
        }
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
