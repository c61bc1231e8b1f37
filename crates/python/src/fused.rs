//! Products whose sums are finished before they are stored.

use oxigemm::{Activation, Epilogue, FusedOutput, HeadSplits};
use pyo3::prelude::*;

use crate::call::Call;
use crate::error::argument_error;
use crate::gemm::{Recipe, scaled_operands};
use crate::quantize::format_of;

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
    let activation = activation_of(py, activation)?;
    let heads = head_splits.map(|(left, mid, right)| HeadSplits { left, mid, right });
    let mut call = Call::new(py, &[("heads", "head_splits")]);
    let [a, sfa, b, sfb] = scaled_operands(&mut call, a, b, &Recipe::default(), [false; 2])?;
    let d = call.output("d", d)?;
    let c = call.addend(c, d)?;
    let bias = bias.map(|bias| call.input("bias", bias)).transpose()?;
    let d_scales = d_scales.map(|scales| call.output("d_scales", scales)).transpose()?;
    call.run(|x| {
        let (a, b, mut d) = ((x.get(a), x.get(sfa)), (x.get(b), x.get(sfb)), x.output(d));
        let bias = bias.map(|bias| x.get(bias));
        let epilogue = Epilogue { alpha, bias, activation, gated, beta, heads };
        let mut scales = d_scales.map(|scales| x.output(scales));
        let output = match &mut scales {
            Some(scales) => FusedOutput::Fp8 { d: &mut d, scales, format: format_of(power_of_two) },
            None => FusedOutput::Matrix(&mut d),
        };
        oxigemm::fp8_gemm_nt_fused(a, b, x.addend(c), output, &epilogue, &x.options)
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(fp8_gemm_nt_fused, module)?)
}
