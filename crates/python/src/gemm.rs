//! Dense products.

use oxigemm::{Addend, GemmLayout, HeadSplits};
use pyo3::prelude::*;

use crate::array::Array;
use crate::call::{Added, Call, Index};
use crate::error::argument_error;

/// What the caller says of scales: the numbers of rows and of columns that share one, of A and of B.
#[derive(Default)]
pub struct Recipe {
    given: Option<[[i64; 2]; 2]>,
}

pub type Three = Option<(i64, i64, i64)>;
pub type Two = Option<(i64, i64)>;

impl Recipe {
    pub fn new(py: Python<'_>, recipe: Three, a: Two, b: Two) -> PyResult<Recipe> {
        let given = match (recipe, a, b) {
            (None, None, None) => return Ok(Recipe { given: None }),
            (Some((m, n, k)), None, None) => [[m, k], [n, k]],
            (None, Some(a), Some(b)) => [a.into(), b.into()],
            _ => {
                let expected = "either `recipe`, or both `recipe_a` and `recipe_b`";
                return Err(argument_error(
                    py,
                    "recipe",
                    "contradicts others",
                    expected,
                    "another choice of them",
                ));
            }
        };
        if given[0] != [1, 128] || !matches!(given[1], [1 | 128, 128]) {
            let expected = "(1, 128, 128) or (1, 1, 128)";
            let found = format!("A {:?}, B {:?}", given[0], given[1]);
            return Err(argument_error(
                py,
                "recipe",
                "is one that there are no kernels for",
                expected,
                &found,
            ));
        }
        Ok(Recipe { given: Some(given) })
    }

    /// That every 128 rows of B share scales.
    pub fn expect_blocks(&self, py: Python<'_>) -> PyResult<()> {
        match self.given {
            Some([_, [1, _]]) => Err(argument_error(
                py,
                "recipe",
                "is one that this function has no kernels for",
                "(1, 128, 128)",
                "(1, 1, 128)",
            )),
            _ => Ok(()),
        }
    }

    /// Compares scales with what was said: the last two dimensions, `mn` and `k` in this order or exchanged.
    pub fn expect(
        &self,
        py: Python<'_>,
        operand: usize,
        scales: &Array,
        [mn, k]: [usize; 2],
        k_first: bool,
    ) -> PyResult<()> {
        let Some(given) = self.given else { return Ok(()) };
        let [rows, columns] = given[operand].map(|count| count as usize);
        let mut expected = [mn.div_ceil(rows), k.div_ceil(columns)];
        if k_first {
            expected.reverse();
        }
        if scales.dims().ends_with(&expected) {
            return Ok(());
        }
        let expected = format!("{expected:?} by `recipe`");
        let found = format!("{:?}", scales.dims());
        Err(argument_error(py, scales.name, "has the wrong number of scales", &expected, &found))
    }
}

/// Rows along M or N, and K, of a matrix.
pub fn mn_and_k(array: &Array, k_first: bool) -> [usize; 2] {
    match array.dims() {
        [.., first, second] if k_first => [*second, *first],
        [.., first, second] => [*first, *second],
        _ => [0, 0],
    }
}

pub fn layout(py: Python<'_>, name: &str) -> PyResult<GemmLayout> {
    match name {
        "nt" => Ok(GemmLayout::Nt),
        "nn" => Ok(GemmLayout::Nn),
        "tn" => Ok(GemmLayout::Tn),
        "tt" => Ok(GemmLayout::Tt),
        other => Err(argument_error(py, "layout", "is unknown", "nt, nn, tn or tt", other)),
    }
}

/// Reads both operands with their scales, and compares these with the recipe.
pub fn scaled_operands<'py>(
    call: &mut Call<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    recipe: &Recipe,
    [a_k_first, b_k_first]: [bool; 2],
) -> PyResult<[Index; 4]> {
    let [a, sfa] = call.pair(["a", "sfa"], a)?;
    let [b, sfb] = call.pair(["b", "sfb"], b)?;
    recipe.expect(call.py(), 0, call.array(sfa), mn_and_k(call.array(a), a_k_first), a_k_first)?;
    recipe.expect(call.py(), 1, call.array(sfb), mn_and_k(call.array(b), b_k_first), b_k_first)?;
    Ok([a, sfa, b, sfb])
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn fp8_gemm<'py>(
    py: Python<'py>,
    layout_name: &str,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    c: Option<&Bound<'py, PyAny>>,
    recipe: Three,
    recipe_a: Two,
    recipe_b: Two,
) -> PyResult<()> {
    let layout = layout(py, layout_name)?;
    let recipe = Recipe::new(py, recipe, recipe_a, recipe_b)?;
    let mut call = Call::new(py, &[]);
    let k_first = [layout.a_begins_with_k(), layout.b_begins_with_k()];
    let [a, sfa, b, sfb] = scaled_operands(&mut call, a, b, &recipe, k_first)?;
    let d = call.output("d", d)?;
    let c = call.addend(c, d)?;
    call.run(|x| {
        let (a, b) = ((x.get(a), x.get(sfa)), (x.get(b), x.get(sfb)));
        oxigemm::fp8_gemm(layout, a, b, x.addend(c), &mut x.output(d), &x.options)
    })
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn half_gemm<'py>(
    py: Python<'py>,
    dtype: &str,
    layout_name: &str,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    c: Option<&Bound<'py, PyAny>>,
) -> PyResult<()> {
    let layout = layout(py, layout_name)?;
    let mut call = Call::new(py, &[]);
    let (a, b, d) = (call.input("a", a)?, call.input("b", b)?, call.output("d", d)?);
    call.array(a).expect_type(py, dtype)?;
    let c = call.addend(c, d)?;
    call.run(|x| oxigemm::half_gemm(layout, x.get(a), x.get(b), x.addend(c), &mut x.output(d), &x.options))
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn fp8_gemm_skip_head_mid<'py>(
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    head_splits: (u32, u32, u32),
    recipe: Three,
) -> PyResult<()> {
    let recipe = Recipe::new(py, recipe, None, None)?;
    recipe.expect_blocks(py)?;
    let mut call = Call::new(py, &[("heads", "head_splits")]);
    let [a, sfa, b, sfb] = scaled_operands(&mut call, a, b, &recipe, [false; 2])?;
    let d = call.output("d", d)?;
    let (left, mid, right) = head_splits;
    call.run(|x| {
        let (a, b, heads) = ((x.get(a), x.get(sfa)), (x.get(b), x.get(sfb)), HeadSplits { left, mid, right });
        oxigemm::fp8_gemm_nt_skip_head_mid(a, b, &mut x.output(d), heads, &x.options)
    })
}

#[pyfunction]
fn einsum<'py>(
    py: Python<'py>,
    expr: &str,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    c: Option<&Bound<'py, PyAny>>,
) -> PyResult<()> {
    let mut call = Call::new(py, &[("expression", "expr")]);
    let (a, b, d) = (call.input("a", a)?, call.input("b", b)?, call.output("d", d)?);
    let c = call.addend(c, d)?;
    call.run(|x| oxigemm::einsum(expr, x.get(a), x.get(b), x.addend(c), &mut x.output(d), &x.options))
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn fp8_einsum<'py>(
    py: Python<'py>,
    expr: &str,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    c: Option<&Bound<'py, PyAny>>,
    recipe: Three,
) -> PyResult<()> {
    let recipe = Recipe::new(py, recipe, None, None)?;
    recipe.expect_blocks(py)?;
    let mut call = Call::new(py, &[("expression", "expr")]);
    let [a, sfa, b, sfb] = scaled_operands(&mut call, a, b, &recipe, [false, expr == "bhd,hdr->bhr"])?;
    let d = call.output("d", d)?;
    match call.addend(c, d)? {
        Added::Nothing => call.run(|x| {
            let (a, b) = ((x.get(a), x.get(sfa)), (x.get(b), x.get(sfb)));
            oxigemm::fp8_einsum(expr, a, b, &mut x.output(d), &x.options)
        }),
        added => fp8_heads(call, expr, [a, sfa, b, sfb, d], added),
    }
}

/// `bhr,hdr->bhd` with something added: a product for each head, on views of the operands.
fn fp8_heads(call: Call<'_>, expr: &str, [a, sfa, b, sfb, d]: [Index; 5], added: Added) -> PyResult<()> {
    let py = call.py();
    if expr != "bhr,hdr->bhd" {
        return Err(argument_error(py, "expr", "has no kernels that add `c`", "bhr,hdr->bhd", expr));
    }
    let others = match added {
        Added::Other(c) => Some(c),
        Added::Nothing | Added::Output => None,
    };
    for index in [a, sfa, b, sfb, d].into_iter().chain(others) {
        call.array(index).expect_rank(py, 3)?;
    }
    let heads = call.array(b).dims()[0];
    for (index, head) in [(a, 1), (sfa, 1), (sfb, 0), (d, 1)].into_iter().chain(others.map(|c| (c, 1))) {
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
            let other = others.map(of_head).transpose()?;
            let c = other.as_ref().map_or(Addend::InPlace, Addend::From);
            let (b, sfb) = (x.get(b).select(head)?, x.get(sfb).select(head)?);
            oxigemm::fp8_gemm_nt((&a, &sfa), (&b, &sfb), c, &mut d, &x.options)?;
        }
        Ok(())
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(fp8_gemm, module)?)?;
    module.add_function(wrap_pyfunction!(half_gemm, module)?)?;
    module.add_function(wrap_pyfunction!(fp8_gemm_skip_head_mid, module)?)?;
    module.add_function(wrap_pyfunction!(einsum, module)?)?;
    module.add_function(wrap_pyfunction!(fp8_einsum, module)?)
}
