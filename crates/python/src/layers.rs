//! Quantized layers: how a device multiplies weights, and MXFP4 weights as FP8.

use std::borrow::Cow;
use std::sync::Mutex;

use oxigemm::Device;
use oxigemm::layers::{
    LayerOptions, Nvfp4Weights, QuantizedWeight, Recipe, Strategy, WeightScales, widen_mxfp4 as widen,
};
use pyo3::prelude::*;

use crate::call::Call;
use crate::convert::convert;
use crate::error::{argument_error, from_library};
use crate::settings;

/// How weights of a recipe are multiplied on a GPU, or where arrays of the CPU are computed.
#[pyfunction]
fn layer_strategy(
    py: Python<'_>,
    recipe: &Bound<'_, PyAny>,
    nvfp4: &Bound<'_, PyAny>,
    gpu: Option<usize>,
) -> PyResult<&'static str> {
    let name: Cow<'_, str> = convert("recipe", recipe)?;
    let recipe: Recipe = name
        .parse()
        .map_err(|_| argument_error(py, "recipe", "is unknown", "fp8, mxfp8, mxfp4 or nvfp4", &name))?;
    let name: Cow<'_, str> = convert("nvfp4", nvfp4)?;
    let nvfp4 = match &*name {
        "requantize" => Nvfp4Weights::Requantize,
        "bf16" => Nvfp4Weights::Bf16,
        _ => return Err(argument_error(py, "nvfp4", "is unknown", "requantize or bf16", &name)),
    };
    let device: Device = match gpu {
        Some(ordinal) => settings::gpu(py, ordinal)?.clone(),
        None => settings::host(py)?,
    };
    let strategy = recipe.runs_on(&device, &LayerOptions { nvfp4, ..Default::default() });
    match strategy.map_err(|error| from_library(py, &error, &[]))? {
        Strategy::Fp8 => Ok("fp8"),
        Strategy::Fp8Scales32 => Ok("fp8-scales-32"),
        Strategy::Widen => Ok("widen"),
        Strategy::Requantize => Ok("requantize"),
        Strategy::Bf16 => Ok("bf16"),
        Strategy::BlockScaled => Ok("block-scaled"),
    }
}

/// `codes` `[G, N, K/2]` and `exponents` `[G, N, ceil(K/32)]` as FP8 with a scale for 128x128, or for 1x32. Gives how
/// many values were rounded.
#[pyfunction]
fn widen_mxfp4<'py>(
    py: Python<'py>,
    codes: &Bound<'py, PyAny>,
    exponents: &Bound<'py, PyAny>,
    wide: &Bound<'py, PyAny>,
    scales: &Bound<'py, PyAny>,
    by_32: bool,
) -> PyResult<usize> {
    let mut call = Call::new(py, &[]);
    let (codes, exponents) = (call.input("codes", codes)?, call.input("exponents", exponents)?);
    let (wide, scales) = (call.output("wide", wide)?, call.output("scales", scales)?);
    let block = if by_32 { [1, 32] } else { [128, 128] };
    let changed = Mutex::new(0);
    call.run(|t| {
        let &[groups, n, k] = t.get(wide).dims() else {
            return Err(oxigemm::Error::Rank {
                argument: "wide",
                expected: "three dimensions".to_owned(),
                found: format!("{:?}", t.get(wide).dims()),
            });
        };
        let exponents = WeightScales::E8m0 { block: [1, 32], values: t.get(exponents).to_bytes()? };
        let codes = t.get(codes).to_bytes()?;
        let weight = QuantizedWeight::from_parts(Recipe::Mxfp4, [groups, n, k], codes, exponents)?;
        let widened = widen(&weight, block)?;
        t.output(wide).write_bytes(&widened.codes)?;
        t.output(scales).write_f32(&widened.scales)?;
        *changed.lock().expect("no thread panicked") = widened.changed;
        Ok(())
    })?;
    Ok(changed.into_inner().expect("no thread panicked"))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(layer_strategy, module)?)?;
    module.add_function(wrap_pyfunction!(widen_mxfp4, module)?)
}
