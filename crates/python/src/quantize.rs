//! Quantization, dequantization, and layout transforms of scales.

use std::borrow::Cow;

use oxigemm::cast::ScaleFormat;
use oxigemm::{Granularity, TensorScale, TransposedCopy};
use pyo3::prelude::*;

use crate::call::{Call, Index};
use crate::convert::convert;
use crate::error::argument_error;

fn granularity_of(name: &Bound<'_, PyAny>) -> PyResult<Granularity> {
    let text: Cow<'_, str> = convert("granularity", name)?;
    let expected = "1x128, 1x32, 128x128, 128x1, row or tensor";
    text.parse().map_err(|_| argument_error(name.py(), "granularity", "is unknown", expected, &text))
}

/// The format of scales that an argument asks for.
fn format_from(power_of_two: &Bound<'_, PyAny>) -> PyResult<ScaleFormat> {
    convert("power_of_two", power_of_two).map(format_of)
}

pub fn format_of(power_of_two: bool) -> ScaleFormat {
    if power_of_two { ScaleFormat::PowerOfTwo } else { ScaleFormat::F32 }
}

/// Reads the input and both outputs of a quantization.
fn operands<'py>(
    call: &mut Call<'py>,
    x: &Bound<'py, PyAny>,
    codes: &Bound<'py, PyAny>,
    scales: &Bound<'py, PyAny>,
) -> PyResult<[Index; 3]> {
    Ok([call.input("x", x)?, call.output("codes", codes)?, call.output("scales", scales)?])
}

#[pyfunction]
fn quantize<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    codes: &Bound<'py, PyAny>,
    scales: &Bound<'py, PyAny>,
    granularity: &Bound<'py, PyAny>,
    power_of_two: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let granularity = granularity_of(granularity)?;
    let format = format_from(power_of_two)?;
    let mut call = Call::new(py, &[]);
    let [x, codes, scales] = operands(&mut call, x, codes, scales)?;
    call.run(|t| {
        let (mut codes, mut scales) = (t.output(codes), t.output(scales));
        let options = t.launch_options();
        oxigemm::quantize(t.get(x), &mut codes, &mut scales, granularity, format, &options)
    })
}

#[pyfunction]
fn swiglu_quantize<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    codes: &Bound<'py, PyAny>,
    scales: &Bound<'py, PyAny>,
    power_of_two: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let format = format_from(power_of_two)?;
    let mut call = Call::new(py, &[]);
    let [x, codes, scales] = operands(&mut call, x, codes, scales)?;
    call.run(|t| {
        let (mut codes, mut scales) = (t.output(codes), t.output(scales));
        let options = t.launch_options();
        oxigemm::swiglu_quantize(t.get(x), &mut codes, &mut scales, format, &options)
    })
}

#[pyfunction]
fn gather_quantize<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    rows: &Bound<'py, PyAny>,
    codes: &Bound<'py, PyAny>,
    scales: &Bound<'py, PyAny>,
    granularity: &Bound<'py, PyAny>,
    power_of_two: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let (granularity, format) = (granularity_of(granularity)?, format_from(power_of_two)?);
    let mut call = Call::new(py, &[]);
    let [x, codes, scales] = operands(&mut call, x, codes, scales)?;
    let rows = call.input("rows", rows)?;
    call.run(|t| {
        let (mut codes, mut scales) = (t.output(codes), t.output(scales));
        let (x, rows, options) = (t.get(x), t.get(rows), t.launch_options());
        oxigemm::gather_quantize_in_blocks(x, rows, &mut codes, &mut scales, granularity, format, &options)
    })
}

#[pyfunction]
fn rms_norm_quantize<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    weight: &Bound<'py, PyAny>,
    epsilon: &Bound<'py, PyAny>,
    codes: &Bound<'py, PyAny>,
    scales: &Bound<'py, PyAny>,
    power_of_two: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let epsilon: f32 = convert("epsilon", epsilon)?;
    let format = format_from(power_of_two)?;
    let mut call = Call::new(py, &[]);
    let [x, codes, scales] = operands(&mut call, x, codes, scales)?;
    let weight = call.input("weight", weight)?;
    call.run(|t| {
        let (mut codes, mut scales) = (t.output(codes), t.output(scales));
        let options = t.launch_options();
        oxigemm::rms_norm_quantize(
            t.get(x),
            t.get(weight),
            epsilon,
            &mut codes,
            &mut scales,
            format,
            &options,
        )
    })
}

#[pyfunction]
fn quantize_by_scale<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    scale: &Bound<'py, PyAny>,
    codes: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let mut call = Call::new(py, &[]);
    let (x, scale, codes) = (call.input("x", x)?, call.input("scale", scale)?, call.output("codes", codes)?);
    call.run(|t| {
        let options = t.launch_options();
        oxigemm::quantize_by_scale(t.get(x), t.get(scale), &mut t.output(codes), &options)
    })
}

#[pyfunction]
fn dequantize<'py>(
    py: Python<'py>,
    codes: &Bound<'py, PyAny>,
    scales: &Bound<'py, PyAny>,
    x: &Bound<'py, PyAny>,
    granularity: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let granularity = granularity_of(granularity)?;
    let mut call = Call::new(py, &[]);
    let (codes, scales, x) =
        (call.input("codes", codes)?, call.input("scales", scales)?, call.output("x", x)?);
    call.run(|t| {
        let options = t.launch_options();
        oxigemm::dequantize(t.get(codes), t.get(scales), &mut t.output(x), granularity, &options)
    })
}

/// Dual output: row-wise and transposed. `transposed` is `(codes, scales)`; the scales may be `None`.
#[pyfunction]
fn quantize_with_transpose<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    codes: &Bound<'py, PyAny>,
    scales: &Bound<'py, PyAny>,
    transposed: (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>),
    granularity: &Bound<'py, PyAny>,
    power_of_two: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let granularity = granularity_of(granularity)?;
    let format = format_from(power_of_two)?;
    let mut call = Call::new(py, &[]);
    let [x, codes, scales] = operands(&mut call, x, codes, scales)?;
    let transposed_codes = call.output("transposed_codes", &transposed.0)?;
    let transposed_scales =
        transposed.1.as_ref().map(|scales| call.output("transposed_scales", scales)).transpose()?;
    call.run(|t| {
        let (mut codes, mut scales) = (t.output(codes), t.output(scales));
        let mut transposed = (t.output(transposed_codes), transposed_scales.map(|scales| t.output(scales)));
        let copy = TransposedCopy { codes: &mut transposed.0, scales: transposed.1.as_mut() };
        let options = t.launch_options();
        oxigemm::quantize_with_transpose(
            t.get(x),
            &mut codes,
            &mut scales,
            copy,
            granularity,
            format,
            &options,
        )
    })
}

#[pyfunction]
fn quantize_nvfp4<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    codes: &Bound<'py, PyAny>,
    scales: &Bound<'py, PyAny>,
    tensor_scale: &Bound<'py, PyAny>,
    computed: bool,
) -> PyResult<()> {
    let mut call = Call::new(py, &[]);
    let [x, codes, scales] = operands(&mut call, x, codes, scales)?;
    let tensor_scale = match computed {
        true => call.output("tensor_scale", tensor_scale)?,
        false => call.input("tensor_scale", tensor_scale)?,
    };
    call.run(|t| {
        let (mut codes, mut scales, options) = (t.output(codes), t.output(scales), t.launch_options());
        let mut written = t.output(tensor_scale);
        let of_all = match computed {
            true => TensorScale::Computed(&mut written),
            false => TensorScale::Given(t.get(tensor_scale)),
        };
        oxigemm::quantize_nvfp4(t.get(x), &mut codes, &mut scales, of_all, &options)
    })
}

#[pyfunction]
fn dequantize_nvfp4<'py>(
    py: Python<'py>,
    codes: &Bound<'py, PyAny>,
    scales: &Bound<'py, PyAny>,
    tensor_scale: &Bound<'py, PyAny>,
    x: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let mut call = Call::new(py, &[]);
    let (codes, scales) = (call.input("codes", codes)?, call.input("scales", scales)?);
    let (tensor_scale, x) = (call.input("tensor_scale", tensor_scale)?, call.output("x", x)?);
    call.run(|t| {
        let options = t.launch_options();
        oxigemm::dequantize_nvfp4(
            t.get(codes),
            t.get(scales),
            t.get(tensor_scale),
            &mut t.output(x),
            &options,
        )
    })
}

#[pyfunction]
fn transform_scales<'py>(py: Python<'py>, sf: &Bound<'py, PyAny>, to: &Bound<'py, PyAny>) -> PyResult<()> {
    let mut call = Call::new(py, &[("from", "sf")]);
    let (from, to) = (call.input("sf", sf)?, call.output("to", to)?);
    call.run(|t| oxigemm::transform_scales(t.get(from), &mut t.output(to), &t.launch_options()))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(quantize, module)?)?;
    module.add_function(wrap_pyfunction!(swiglu_quantize, module)?)?;
    module.add_function(wrap_pyfunction!(gather_quantize, module)?)?;
    module.add_function(wrap_pyfunction!(rms_norm_quantize, module)?)?;
    module.add_function(wrap_pyfunction!(quantize_by_scale, module)?)?;
    module.add_function(wrap_pyfunction!(dequantize, module)?)?;
    module.add_function(wrap_pyfunction!(quantize_with_transpose, module)?)?;
    module.add_function(wrap_pyfunction!(quantize_nvfp4, module)?)?;
    module.add_function(wrap_pyfunction!(dequantize_nvfp4, module)?)?;
    module.add_function(wrap_pyfunction!(transform_scales, module)?)
}
