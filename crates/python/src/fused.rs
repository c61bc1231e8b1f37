//! Products whose sums are finished before they are stored.

use oxigemm::{Activation, Addend, Epilogue, FusedOutput, HeadSplits, RowGroups};
use pyo3::prelude::*;

use crate::call::{Added, Call, Index, Operands};
use crate::error::argument_error;
use crate::gemm::{Recipe, scaled_operands};
use crate::grouped::{contiguous, positive};
use crate::quantize::format_of;
use crate::settings;

/// What arguments of the library are called here.
const NAMES: &[(&str, &str)] =
    &[("heads", "head_splits"), ("ids", "grouped_layout"), ("ends", "grouped_layout")];

fn activation_of(py: Python<'_>, name: &str) -> PyResult<Activation> {
    Ok(match name {
        "none" => Activation::None,
        "relu" => Activation::Relu,
        "gelu" => Activation::Gelu,
        "gelu_tanh" => Activation::GeluTanh,
        "silu" => Activation::Silu,
        other => {
            let expected = "none, relu, gelu, gelu_tanh or silu";
            return Err(argument_error(py, "activation", "is unknown", expected, other));
        }
    })
}

/// What is done with sums, as it was given.
struct Given<'a, 'py> {
    c: Option<&'a Bound<'py, PyAny>>,
    alpha: f32,
    beta: f32,
    bias: Option<&'a Bound<'py, PyAny>>,
    activation: &'a str,
    gated: bool,
    head_splits: Option<(u32, u32, u32)>,
    d_scales: Option<&'a Bound<'py, PyAny>>,
    power_of_two: bool,
}

/// The same with its arrays read, and the result.
#[derive(Clone, Copy)]
struct Finish {
    d: Index,
    c: Added,
    alpha: f32,
    beta: f32,
    bias: Option<Index>,
    activation: Activation,
    gated: bool,
    heads: Option<HeadSplits>,
    d_scales: Option<Index>,
    power_of_two: bool,
}

impl<'py> Given<'_, 'py> {
    fn read(&self, call: &mut Call<'py>, d: &Bound<'py, PyAny>) -> PyResult<Finish> {
        let Given { alpha, beta, gated, power_of_two, .. } = *self;
        let activation = activation_of(call.py(), self.activation)?;
        let d = call.output("d", d)?;
        let c = call.addend(self.c, d)?;
        let bias = self.bias.map(|bias| call.input("bias", bias)).transpose()?;
        let d_scales = self.d_scales.map(|scales| call.output("d_scales", scales)).transpose()?;
        let heads = self.head_splits.map(|(left, mid, right)| HeadSplits { left, mid, right });
        Ok(Finish { d, c, alpha, beta, bias, activation, gated, heads, d_scales, power_of_two })
    }
}

impl Finish {
    /// Runs a product with it.
    fn run(
        &self,
        x: &Operands,
        product: impl FnOnce(Addend<'_>, FusedOutput<'_>, &Epilogue<'_>) -> oxigemm::Result<()>,
    ) -> oxigemm::Result<()> {
        let Finish { alpha, beta, activation, gated, heads, .. } = *self;
        let bias = self.bias.map(|bias| x.get(bias));
        let epilogue = Epilogue { alpha, bias, activation, gated, beta, heads };
        let (mut d, mut scales) = (x.output(self.d), self.d_scales.map(|scales| x.output(scales)));
        let output = match &mut scales {
            Some(scales) => FusedOutput::Fp8 { d: &mut d, scales, format: format_of(self.power_of_two) },
            None => FusedOutput::Matrix(&mut d),
        };
        product(x.addend(self.c), output, &epilogue)
    }
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn fp8_gemm_nt_fused<'py>(
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    c: Option<&Bound<'py, PyAny>>,
    alpha: f32,
    beta: f32,
    bias: Option<&Bound<'py, PyAny>>,
    activation: &str,
    gated: bool,
    head_splits: Option<(u32, u32, u32)>,
    d_scales: Option<&Bound<'py, PyAny>>,
    power_of_two: bool,
) -> PyResult<()> {
    let given = Given { c, alpha, beta, bias, activation, gated, head_splits, d_scales, power_of_two };
    let mut call = Call::new(py, NAMES);
    let [a, sfa, b, sfb] = scaled_operands(&mut call, a, b, &Recipe::default(), [false; 2])?;
    let finish = given.read(&mut call, d)?;
    call.run(|x| {
        let (a, b) = ((x.get(a), x.get(sfa)), (x.get(b), x.get(sfb)));
        finish.run(x, |c, d, epilogue| oxigemm::fp8_gemm_nt_fused(a, b, c, d, epilogue, &x.options))
    })
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn half_gemm_nt_fused<'py>(
    py: Python<'py>,
    dtype: &str,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    c: Option<&Bound<'py, PyAny>>,
    alpha: f32,
    beta: f32,
    bias: Option<&Bound<'py, PyAny>>,
    activation: &str,
    gated: bool,
    head_splits: Option<(u32, u32, u32)>,
    d_scales: Option<&Bound<'py, PyAny>>,
    power_of_two: bool,
) -> PyResult<()> {
    let given = Given { c, alpha, beta, bias, activation, gated, head_splits, d_scales, power_of_two };
    let mut call = Call::new(py, NAMES);
    let (a, b) = (call.input("a", a)?, call.input("b", b)?);
    call.array(a).expect_type(py, dtype)?;
    let finish = given.read(&mut call, d)?;
    call.run(|x| {
        finish.run(x, |c, d, epilogue| {
            oxigemm::half_gemm_nt_fused(x.get(a), x.get(b), c, d, epilogue, &x.options)
        })
    })
}

/// Where the groups are, as it was given.
struct GivenGroups<'a, 'py> {
    grouped_layout: Option<&'a Bound<'py, PyAny>>,
    masked_m: Option<&'a Bound<'py, PyAny>>,
    expected_m: Option<i64>,
    use_psum_layout: bool,
}

impl<'py> GivenGroups<'_, 'py> {
    /// Runs a product of an `a` with them.
    fn run(
        &self,
        mut call: Call<'py>,
        a: Index,
        product: impl FnOnce(&Operands, RowGroups<'_>) -> oxigemm::Result<()> + Send,
    ) -> PyResult<()> {
        let py = call.py();
        match (self.grouped_layout, self.masked_m) {
            (None, Some(masked_m)) if !self.use_psum_layout => {
                let expected_m = self.expected_m.map(|rows| positive(py, "expected_m", rows)).transpose()?;
                // Without one, slabs are expected to be full.
                let expected_m =
                    expected_m.unwrap_or_else(|| call.array(a).dims().get(1).map_or(1, |m| (*m).max(1)));
                let masked_m = call.input("masked_m", masked_m)?;
                call.run(|x| product(x, RowGroups::Masked { masked_m: x.get(masked_m), expected_m }))
            }
            (Some(layout), None) => {
                let expected_m = ("expected_m", self.expected_m);
                let groups = contiguous(&mut call, layout, self.use_psum_layout, expected_m)?;
                let (alignment, expected_m) = (settings::alignment(), groups.expected_m);
                call.run(|x| {
                    product(x, RowGroups::Contiguous { rows: groups.rows(x), alignment, expected_m })
                })
            }
            _ => {
                let expected = "either it, with or without `use_psum_layout`, or `masked_m`";
                let found = if self.masked_m.is_some() { "more" } else { "neither" };
                Err(argument_error(py, "grouped_layout", "does not tell where groups are", expected, found))
            }
        }
    }
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn m_grouped_fp8_gemm_nt_fused<'py>(
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    grouped_layout: Option<&Bound<'py, PyAny>>,
    masked_m: Option<&Bound<'py, PyAny>>,
    expected_m: Option<i64>,
    use_psum_layout: bool,
    c: Option<&Bound<'py, PyAny>>,
    alpha: f32,
    beta: f32,
    bias: Option<&Bound<'py, PyAny>>,
    activation: &str,
    gated: bool,
    head_splits: Option<(u32, u32, u32)>,
    d_scales: Option<&Bound<'py, PyAny>>,
    power_of_two: bool,
) -> PyResult<()> {
    let given = Given { c, alpha, beta, bias, activation, gated, head_splits, d_scales, power_of_two };
    let mut call = Call::new(py, NAMES);
    let [a, sfa, b, sfb] = scaled_operands(&mut call, a, b, &Recipe::default(), [false; 2])?;
    let finish = given.read(&mut call, d)?;
    let groups = GivenGroups { grouped_layout, masked_m, expected_m, use_psum_layout };
    groups.run(call, a, |x, rows| {
        let (a, b) = ((x.get(a), x.get(sfa)), (x.get(b), x.get(sfb)));
        finish.run(x, |c, d, epilogue| {
            oxigemm::m_grouped_fp8_gemm_nt_fused(a, b, c, d, rows, epilogue, &x.options)
        })
    })
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn m_grouped_half_gemm_nt_fused<'py>(
    py: Python<'py>,
    dtype: &str,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    grouped_layout: Option<&Bound<'py, PyAny>>,
    masked_m: Option<&Bound<'py, PyAny>>,
    expected_m: Option<i64>,
    use_psum_layout: bool,
    c: Option<&Bound<'py, PyAny>>,
    alpha: f32,
    beta: f32,
    bias: Option<&Bound<'py, PyAny>>,
    activation: &str,
    gated: bool,
    head_splits: Option<(u32, u32, u32)>,
    d_scales: Option<&Bound<'py, PyAny>>,
    power_of_two: bool,
) -> PyResult<()> {
    let given = Given { c, alpha, beta, bias, activation, gated, head_splits, d_scales, power_of_two };
    let mut call = Call::new(py, NAMES);
    let (a, b) = (call.input("a", a)?, call.input("b", b)?);
    call.array(a).expect_type(py, dtype)?;
    let finish = given.read(&mut call, d)?;
    let groups = GivenGroups { grouped_layout, masked_m, expected_m, use_psum_layout };
    groups.run(call, a, |x, rows| {
        finish.run(x, |c, d, epilogue| {
            oxigemm::m_grouped_half_gemm_nt_fused(x.get(a), x.get(b), c, d, rows, epilogue, &x.options)
        })
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(fp8_gemm_nt_fused, module)?)?;
    module.add_function(wrap_pyfunction!(half_gemm_nt_fused, module)?)?;
    module.add_function(wrap_pyfunction!(m_grouped_fp8_gemm_nt_fused, module)?)?;
    module.add_function(wrap_pyfunction!(m_grouped_half_gemm_nt_fused, module)?)
}
