//! Einsums: batched GEMMs, written as expressions.

use std::borrow::Cow;

use oxigemm::Addend;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::call::{AddendArgument, Call, Index};
use crate::convert::convert;
use crate::error::argument_error;
use crate::fields::{self, fields};
use crate::gemm::ScaledOperands;
use crate::recipe::Recipe;

/// The library's names for arguments, and Python's.
const NAMES: &[(&str, &str)] = &[("expression", "expr")];

#[pyfunction]
fn einsum<'py>(
    expr: &Bound<'py, PyAny>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    c: Option<&Bound<'py, PyAny>>,
) -> PyResult<()> {
    let expr: Cow<'_, str> = convert("expr", expr)?;
    let mut call = Call::new(d.py(), NAMES);
    let (a, b, d) = (call.input("a", a)?, call.input("b", b)?, call.output("d", d)?);
    let c = call.addend(c, d)?;
    call.run(|x| oxigemm::einsum(&expr, x.get(a), x.get(b), x.addend(c), &mut x.output(d), &x.options))
}

#[pyfunction]
fn fp8_einsum<'py>(
    expr: &Bound<'py, PyAny>,
    operands: &Bound<'py, PyTuple>,
    d: &Bound<'py, PyAny>,
    c: Option<&Bound<'py, PyAny>>,
) -> PyResult<()> {
    let py = d.py();
    let expr: &str = &convert::<Cow<'_, str>>("expr", expr)?;
    let [a, b, recipe, recipe_a, recipe_b] = fields(&fields::SCALED_OPERANDS, operands)?;
    let recipe = Recipe::new(py, (recipe.get()?, recipe_a.get()?, recipe_b.get()?))?;
    recipe.expect_1d2d(py)?;
    let mut call = Call::new(py, NAMES);
    let k_first = [false, expr == "bhd,hdr->bhr"];
    let operands = ScaledOperands::read(&mut call, [a.object(), b.object()], recipe, k_first)?;
    let d = call.output("d", d)?;
    match call.addend(c, d)? {
        AddendArgument::None => call.run(|x| {
            let [a, b] = operands.get(x);
            oxigemm::fp8_einsum(expr, a, b, &mut x.output(d), &x.options)
        }),
        c => fp8_heads(call, expr, operands, d, c),
    }
}

/// `bhr,hdr->bhd` with an addend: a GEMM for each head, on views of the operands.
fn fp8_heads(
    call: Call<'_>,
    expr: &str,
    ScaledOperands { a: [a, sfa], b: [b, sfb] }: ScaledOperands,
    d: Index,
    c: AddendArgument,
) -> PyResult<()> {
    let py = call.py();
    if expr != "bhr,hdr->bhd" {
        return Err(argument_error(py, "expr", "has no kernels that add `c`", "bhr,hdr->bhd", expr));
    }
    let other = match c {
        AddendArgument::From(c) => Some(c),
        AddendArgument::None | AddendArgument::InPlace => None,
    };
    for index in [a, sfa, b, sfb, d].into_iter().chain(other) {
        call.array(index).expect_rank(py, 3)?;
    }
    let heads = call.array(b).dims()[0];
    for (index, head) in [(a, 1), (sfa, 1), (sfb, 0), (d, 1)].into_iter().chain(other.map(|c| (c, 1))) {
        let array = call.array(index);
        if array.dims()[head] != heads {
            let (expected, found) = (format!("{heads} heads, as `b` has"), format!("{:?}", array.dims()));
            return Err(argument_error(py, array.name, "has the wrong shape", &expected, &found));
        }
    }
    call.run(|x| {
        for head in 0..heads {
            let of_head = |i| x.get(i).transpose(0, 1).and_then(|tensor| tensor.select(head));
            let (a, sfa, mut d) = (of_head(a)?, of_head(sfa)?, of_head(d)?);
            let other = other.map(of_head).transpose()?;
            let c = other.as_ref().map_or(Addend::InPlace, Addend::From);
            let (b, sfb) = (x.get(b).select(head)?, x.get(sfb).select(head)?);
            oxigemm::fp8_gemm_nt((&a, &sfa), (&b, &sfb), c, &mut d, &x.options)?;
        }
        Ok(())
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(einsum, module)?)?;
    module.add_function(wrap_pyfunction!(fp8_einsum, module)?)
}
