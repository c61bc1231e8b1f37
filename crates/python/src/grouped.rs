//! Products of groups: of rows, each with a B of its own, and along K, each with a D of its own.

use oxigemm::{Addend, GemmLayout, GroupedRows, RowGroups};
use pyo3::prelude::*;

use crate::call::{Call, Index, Operands};
use crate::error::argument_error;
use crate::gemm::{Recipe, Three, Two, layout, scaled_operands};
use crate::settings;

/// What arguments of the library are called here.
const NAMES: &[(&str, &str)] =
    &[("ids", "grouped_layout"), ("ends", "grouped_layout"), ("ks", "grouped_layout")];

/// The rows that each group should have, of groups one behind another.
const EXPECTED_M: &str = "expected_m_for_psum_layout";

/// How groups one behind another are told.
#[derive(Clone, Copy)]
pub struct Contiguous {
    numbers: Index,
    ends: bool,
    pub expected_m: Option<usize>,
}

impl Contiguous {
    pub fn rows<'a>(&self, x: &'a Operands) -> GroupedRows<'a> {
        let numbers = x.get(self.numbers);
        if self.ends { GroupedRows::Ends(numbers) } else { GroupedRows::Ids(numbers) }
    }

    /// Makes rows of no group zero, where every row tells its own: DeepGEMM computes them, and those of A are zero.
    fn zero_padding(&self, x: &Operands, b: Index, d: Index) -> oxigemm::Result<()> {
        if self.ends {
            return Ok(());
        }
        let groups = x.get(b).dims()[0];
        oxigemm::zero_padding_rows(x.get(self.numbers), groups, &mut x.output(d), &x.launch_options())
    }
}

/// Reads where groups are, and how many rows each should have, by the name of that argument.
pub fn contiguous<'py>(
    call: &mut Call<'py>,
    grouped_layout: &Bound<'py, PyAny>,
    use_psum_layout: bool,
    (name, expected_m): (&str, Option<i64>),
) -> PyResult<Contiguous> {
    if expected_m.is_some() && !use_psum_layout {
        let expected = "None, as `use_psum_layout` is False";
        return Err(argument_error(call.py(), name, "means nothing", expected, &format!("{expected_m:?}")));
    }
    let expected_m = expected_m.map(|rows| positive(call.py(), name, rows)).transpose()?;
    Ok(Contiguous {
        numbers: call.input("grouped_layout", grouped_layout)?,
        ends: use_psum_layout,
        expected_m,
    })
}

pub fn positive(py: Python<'_>, name: &str, number: i64) -> PyResult<usize> {
    usize::try_from(number)
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| argument_error(py, name, "is out of range", "1 or more", &number.to_string()))
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn m_grouped_fp8_gemm_contiguous<'py>(
    py: Python<'py>,
    layout_name: &str,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    grouped_layout: &Bound<'py, PyAny>,
    recipe: Three,
    recipe_a: Two,
    recipe_b: Two,
    use_psum_layout: bool,
    expected_m: Option<i64>,
) -> PyResult<()> {
    let layout = layout(py, layout_name)?;
    let recipe = Recipe::new(py, recipe, recipe_a, recipe_b)?;
    recipe.expect_blocks(py)?;
    let mut call = Call::new(py, NAMES);
    let [a, sfa, b, sfb] = scaled_operands(&mut call, a, b, &recipe, [false, layout.b_begins_with_k()])?;
    let d = call.output("d", d)?;
    let groups = contiguous(&mut call, grouped_layout, use_psum_layout, (EXPECTED_M, expected_m))?;
    let alignment = settings::alignment();
    call.run(|x| {
        let run = match layout {
            GemmLayout::Nn => oxigemm::m_grouped_fp8_gemm_nn_contiguous,
            _ => oxigemm::m_grouped_fp8_gemm_nt_contiguous,
        };
        let (scaled_a, scaled_b) = ((x.get(a), x.get(sfa)), (x.get(b), x.get(sfb)));
        let rows = groups.rows(x);
        run(scaled_a, scaled_b, &mut x.output(d), rows, alignment, groups.expected_m, &x.options)?;
        groups.zero_padding(x, b, d)
    })
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn m_grouped_fp8_gemm_masked<'py>(
    py: Python<'py>,
    layout_name: &str,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    masked_m: &Bound<'py, PyAny>,
    expected_m: i64,
    recipe: Three,
    recipe_a: Two,
    recipe_b: Two,
) -> PyResult<()> {
    let layout = layout(py, layout_name)?;
    let recipe = Recipe::new(py, recipe, recipe_a, recipe_b)?;
    recipe.expect_blocks(py)?;
    let expected_m = positive(py, "expected_m", expected_m)?;
    let mut call = Call::new(py, NAMES);
    let [a, sfa, b, sfb] = scaled_operands(&mut call, a, b, &recipe, [false, layout.b_begins_with_k()])?;
    let d = call.output("d", d)?;
    let masked_m = call.input("masked_m", masked_m)?;
    call.run(|x| {
        let (a, b, mut d) = ((x.get(a), x.get(sfa)), (x.get(b), x.get(sfb)), x.output(d));
        let run = match layout {
            GemmLayout::Nn => oxigemm::m_grouped_fp8_gemm_nn_masked,
            _ => oxigemm::m_grouped_fp8_gemm_nt_masked,
        };
        run(a, b, &mut d, x.get(masked_m), expected_m, &x.options)
    })
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn m_grouped_half_gemm_contiguous<'py>(
    py: Python<'py>,
    dtype: &str,
    layout_name: &str,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    grouped_layout: &Bound<'py, PyAny>,
    use_psum_layout: bool,
    expected_m: Option<i64>,
) -> PyResult<()> {
    let layout = layout(py, layout_name)?;
    let mut call = Call::new(py, NAMES);
    let (a, b, d) = (call.input("a", a)?, call.input("b", b)?, call.output("d", d)?);
    call.array(a).expect_type(py, dtype)?;
    let groups = contiguous(&mut call, grouped_layout, use_psum_layout, (EXPECTED_M, expected_m))?;
    let alignment = settings::alignment();
    call.run(|x| {
        let rows = RowGroups::Contiguous { rows: groups.rows(x), alignment, expected_m: groups.expected_m };
        oxigemm::m_grouped_half_gemm(
            layout,
            x.get(a),
            x.get(b),
            Addend::None,
            &mut x.output(d),
            rows,
            &x.options,
        )?;
        groups.zero_padding(x, b, d)
    })
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn m_grouped_half_gemm_masked<'py>(
    py: Python<'py>,
    dtype: &str,
    layout_name: &str,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    masked_m: &Bound<'py, PyAny>,
    expected_m: i64,
) -> PyResult<()> {
    let layout = layout(py, layout_name)?;
    let expected_m = positive(py, "expected_m", expected_m)?;
    let mut call = Call::new(py, NAMES);
    let (a, b, d) = (call.input("a", a)?, call.input("b", b)?, call.output("d", d)?);
    call.array(a).expect_type(py, dtype)?;
    let masked_m = call.input("masked_m", masked_m)?;
    call.run(|x| {
        let rows = RowGroups::Masked { masked_m: x.get(masked_m), expected_m };
        oxigemm::m_grouped_half_gemm(
            layout,
            x.get(a),
            x.get(b),
            Addend::None,
            &mut x.output(d),
            rows,
            &x.options,
        )
    })
}

const K_GROUPED_NAMES: &[(&str, &str)] = &[("ks", "grouped_layout"), ("ks_host", "ks_cpu")];

/// The K of every group, if the host knows them.
fn known_numbers(py: Python<'_>, ks_cpu: Option<Vec<i64>>) -> PyResult<Option<Vec<usize>>> {
    let number = |k: i64| {
        let expected = "numbers of 0 or more";
        usize::try_from(k)
            .map_err(|_| argument_error(py, "ks_cpu", "is out of range", expected, &k.to_string()))
    };
    let known = ks_cpu.filter(|ks| !ks.is_empty());
    known.map(|ks| ks.into_iter().map(number).collect()).transpose()
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn k_grouped_half_gemm<'py>(
    py: Python<'py>,
    dtype: &str,
    layout_name: &str,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    ks_cpu: Option<Vec<i64>>,
    grouped_layout: &Bound<'py, PyAny>,
    c: Option<&Bound<'py, PyAny>>,
) -> PyResult<()> {
    let layout = layout(py, layout_name)?;
    let ks_host = known_numbers(py, ks_cpu)?;
    let mut call = Call::new(py, K_GROUPED_NAMES);
    let (a, b, d) = (call.input("a", a)?, call.input("b", b)?, call.output("d", d)?);
    call.array(a).expect_type(py, dtype)?;
    let c = call.addend(c, d)?;
    let ks = call.input("grouped_layout", grouped_layout)?;
    call.run(|x| {
        let (c, ks) = (x.addend(c), x.get(ks));
        oxigemm::k_grouped_half_gemm(
            layout,
            x.get(a),
            x.get(b),
            c,
            &mut x.output(d),
            ks,
            ks_host.as_deref(),
            &x.options,
        )
    })
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn k_grouped_fp8_gemm<'py>(
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    ks_cpu: Option<Vec<i64>>,
    grouped_layout: &Bound<'py, PyAny>,
    c: Option<&Bound<'py, PyAny>>,
    recipe: Three,
) -> PyResult<()> {
    if let Some(recipe) = recipe.filter(|recipe| *recipe != (1, 1, 128)) {
        let problem = "is one that there are no kernels for";
        return Err(argument_error(py, "recipe", problem, "(1, 1, 128)", &format!("{recipe:?}")));
    }
    let ks_host = known_numbers(py, ks_cpu)?;
    let mut call = Call::new(py, K_GROUPED_NAMES);
    let [a, sfa] = call.pair(["a", "sfa"], a)?;
    let [b, sfb] = call.pair(["b", "sfb"], b)?;
    let d = call.output("d", d)?;
    let c = call.addend(c, d)?;
    let ks = call.input("grouped_layout", grouped_layout)?;
    call.run(|x| {
        let (a, b) = ((x.get(a), x.get(sfa)), (x.get(b), x.get(sfb)));
        let (c, ks) = (x.addend(c), x.get(ks));
        oxigemm::k_grouped_fp8_gemm_nt_contiguous(
            a,
            b,
            c,
            &mut x.output(d),
            ks,
            ks_host.as_deref(),
            &x.options,
        )
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(m_grouped_fp8_gemm_contiguous, module)?)?;
    module.add_function(wrap_pyfunction!(m_grouped_fp8_gemm_masked, module)?)?;
    module.add_function(wrap_pyfunction!(m_grouped_half_gemm_contiguous, module)?)?;
    module.add_function(wrap_pyfunction!(m_grouped_half_gemm_masked, module)?)?;
    module.add_function(wrap_pyfunction!(k_grouped_half_gemm, module)?)?;
    module.add_function(wrap_pyfunction!(k_grouped_fp8_gemm, module)?)
}
