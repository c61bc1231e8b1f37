//! Mixture of experts: permute tokens to the rows of their experts, and unpermute.

use oxigemm::PermutedRows;
use pyo3::prelude::*;

use crate::call::Call;
use crate::convert::convert;

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
    module.add_function(wrap_pyfunction!(zero_padding_rows, module)?)
}
