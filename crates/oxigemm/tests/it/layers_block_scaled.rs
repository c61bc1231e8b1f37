//! Quantized layers where the tensor core applies scales: exact products, kernels of a call, weights that come back.

use oxigemm::cast::{Quantized, ScaleFormat, cast_blocks_to_fp8};
use oxigemm::layers::{
    LayerOptions, Nvfp4Weights, QuantizedExperts, QuantizedLinear, QuantizedWeight, Recipe, Strategy,
    WeightScales,
};
use oxigemm::metrics::calc_diff;
use oxigemm::sim::{Options, Policy};
use oxigemm::{
    DType, Device, GemmOptions, LaunchOptions, Tensor, TensorScale, dequantize_nvfp4, quantize_nvfp4, random,
};

fn blackwell() -> Device {
    "sim:sm_100a".parse().unwrap()
}

fn scaled(seed: u64, count: usize, factor: f32) -> Vec<f32> {
    random::normals(seed, count).iter().map(|x| x * factor).collect()
}

fn quantized(seed: u64, dims: [usize; 3], recipe: Recipe) -> QuantizedWeight {
    let format = recipe.scale_format(&blackwell()).unwrap();
    QuantizedWeight::quantize_in(&scaled(seed, dims.iter().product(), 0.05), dims, recipe, format).unwrap()
}

/// FP8 weights with scales that are no powers of two.
fn checkpoint(block: [usize; 2], [groups, n, k]: [usize; 3]) -> QuantizedWeight {
    let count = groups * n.div_ceil(block[0]) * k.div_ceil(block[1]);
    let values = scaled(2, count, 0.01).iter().map(|x| x.abs() + 1e-3).collect();
    let codes = DType::E4m3.encode(&scaled(5, groups * n * k, 4.0));
    let scales = WeightScales::F32 { block, values };
    QuantizedWeight::from_parts(Recipe::Fp8, [groups, n, k], codes, scales).unwrap()
}

/// Activations as the tensor core multiplies them.
fn activations(x: &Tensor, recipe: Recipe, input_scale: f32) -> Vec<f64> {
    let cpu = Device::cpu();
    let (values, [m, k]) = (x.to_vec_f32().unwrap(), [x.dims()[0], x.dims()[1]]);
    if recipe == Recipe::Nvfp4 {
        let x = Tensor::from_f32(DType::Bf16, &values, &[m, k], &cpu).unwrap();
        let mut codes = Tensor::empty(DType::U8, &[m, k / 2], &cpu).unwrap();
        let mut scales = Tensor::empty(DType::E4m3, &[m, k.div_ceil(16)], &cpu).unwrap();
        let all = Tensor::from_f32(DType::F32, &[input_scale], &[1], &cpu).unwrap();
        let options = LaunchOptions::default();
        quantize_nvfp4(&x, &mut codes, &mut scales, TensorScale::Given(&all), &options).unwrap();
        let mut back = Tensor::empty(DType::F32, &[m, k], &cpu).unwrap();
        dequantize_nvfp4(&codes, &scales, &all, &mut back, &options).unwrap();
        return back.to_vec_f32().unwrap().into_iter().map(f64::from).collect();
    }
    let block = if recipe == Recipe::Fp8 { 128 } else { 32 };
    let rows: Quantized =
        cast_blocks_to_fp8(&values, m, k, DType::E4m3, [1, block], ScaleFormat::PowerOfTwo).unwrap();
    rows.dequantize().into_iter().map(f64::from).collect()
}

/// `a · Wᵀ + bias` in f64, of the values that the layer has.
fn product(a: &[f64], weight: &QuantizedWeight, bias: Option<&[f32]>) -> Vec<f64> {
    let [_, n, k] = weight.dims();
    let w: Vec<f64> = (0..n * k).map(|at| weight.value([0, at / k, at % k])).collect();
    let dot = |i: usize, j: usize| (0..k).map(|l| a[i * k + l] * w[j * k + l]).sum::<f64>();
    let m = a.len() / k;
    (0..m * n).map(|at| dot(at / n, at % n) + bias.map_or(0.0, |bias| bias[at % n].into())).collect()
}

/// Every recipe, K that is no multiple of what TMA loads, FP8 with every block.
fn weights() -> Vec<QuantizedWeight> {
    let (n, k) = (136, 208);
    let mut weights: Vec<_> = Recipe::ALL.iter().map(|recipe| quantized(1, [1, n, k], *recipe)).collect();
    for block in [[128, 128], [1, k], [n, k], [1, 128], [64, 64]] {
        weights.push(checkpoint(block, [1, n, k]));
    }
    let exponents = (0..n.div_ceil(32) * k.div_ceil(32)).map(|i| 120 + (i % 5) as u8).collect();
    let scales = WeightScales::E8m0 { block: [32, 32], values: exponents };
    let codes = DType::E4m3.encode(&scaled(7, n * k, 4.0));
    weights.push(QuantizedWeight::from_parts(Recipe::Mxfp8, [1, n, k], codes, scales).unwrap());
    weights
}

/// Products are exact but for the order of sums, whatever the schedule, and what is saved is what is multiplied.
#[test]
fn linear_layers_multiply_what_they_hold() {
    let Device::Sim(sim) = blackwell() else { unreachable!("it is the simulator") };
    let device = Device::Sim(sim.clone());
    for weight in weights() {
        let [_, n, k] = weight.dims();
        let bias = random::normals(3, n);
        let options = LayerOptions { input_scale: Some(0.25), ..Default::default() };
        for (bias, m) in [(None, 5), (Some(&bias[..]), 70)] {
            let mut layer = QuantizedLinear::new(&weight, bias, &device, &options).unwrap();
            let what = format!("{} {:?}, {m} rows", weight.recipe(), layer.conversion());
            assert_eq!(layer.conversion().strategy, Strategy::BlockScaled, "{what}");
            let held = layer.weight().unwrap();
            assert_eq!(held.dims(), weight.dims(), "{what}");
            if layer.conversion().changed == 0 {
                let (held, own) = (held.dequantize(), weight.dequantize());
                assert!(held.iter().zip(&own).all(|(a, b)| (a - b).abs() <= b.abs() * 1e-6), "{what}");
            }
            let x = Tensor::from_f32(DType::Bf16, &random::normals(4, m * k), &[m, k], &device).unwrap();
            let expected = product(&activations(&x, held.recipe(), 0.25), &held, bias);
            let mut results = Vec::new();
            for policy in [Policy::Eager, Policy::Lazy, Policy::Random] {
                sim.set_options(Options { policy, ..sim.options() });
                let mut out = Tensor::zeros(DType::F32, &[m, n], &device).unwrap();
                layer.forward(&x, &mut out, &GemmOptions::default()).unwrap();
                let difference = calc_diff(&out.to_vec_f32().unwrap(), &expected);
                assert!(difference < 1e-6, "{what}: {difference}");
                results.push(out.to_bytes().unwrap());
            }
            assert!(results.iter().all(|bits| *bits == results[0]), "{what}");
        }
    }
}

/// What the weights lose is reported, and is what the report says.
#[test]
fn conversions_say_what_they_lose() {
    let (device, options) = (blackwell(), LayerOptions::default());
    for weight in weights() {
        let layer = QuantizedLinear::new(&weight, None, &device, &options).unwrap();
        let found = *layer.conversion();
        let (held, own) = (layer.weight().unwrap().dequantize(), weight.dequantize());
        let sums = held.iter().zip(&own).fold([0.0; 2], |sums, (a, b)| {
            let (apart, size) = (f64::from(a - b), f64::from(*b));
            [sums[0] + apart * apart, sums[1] + size * size]
        });
        let error = (sums[0] / sums[1]).sqrt();
        assert!((error - found.error).abs() < 1e-6, "{} {found:?}: {error}", weight.recipe());
        let scales = weight.scales();
        let exact = match scales {
            WeightScales::F32 { block, values } => {
                *block == [136, 208] || values.iter().all(|x| x.to_bits() & 0x7f_ffff == 0)
            }
            _ => true,
        };
        assert_eq!(found.changed == 0, exact, "{} {:?}: {found:?}", weight.recipe(), scales.block());
        assert!(found.error < 0.05, "{found:?}");
    }
    // Weights of a byte and half a byte take as much memory as in a checkpoint, but for what makes K a multiple of 128.
    for (recipe, bytes) in [
        (Recipe::Fp8, 256 * 512 + 2 * 4 + 2 * 4),
        (Recipe::Mxfp8, 256 * 512 + 256 * 16),
        (Recipe::Mxfp4, 256 * 256 + 256 * 16),
        (Recipe::Nvfp4, 256 * 256 + 256 * 32),
    ] {
        let layer =
            QuantizedLinear::new(&quantized(1, [1, 256, 512], recipe), None, &device, &options).unwrap();
        assert!(layer.bytes().abs_diff(bytes) <= 16, "{recipe}: {} and {bytes}", layer.bytes());
    }
}

/// NVFP4 without rounding: weights in BF16, and activations as they are.
#[test]
fn nvfp4_in_bf16_is_exact() {
    let (device, m) = (blackwell(), 9);
    let weight = quantized(1, [1, 136, 208], Recipe::Nvfp4);
    let options = LayerOptions { nvfp4: Nvfp4Weights::Bf16, ..Default::default() };
    let mut layer = QuantizedLinear::new(&weight, None, &device, &options).unwrap();
    let x = Tensor::from_f32(DType::Bf16, &random::normals(4, m * 208), &[m, 208], &device).unwrap();
    let mut out = Tensor::zeros(DType::F32, &[m, 136], &device).unwrap();
    layer.forward(&x, &mut out, &GemmOptions::default()).unwrap();
    let a: Vec<f64> = x.to_vec_f32().unwrap().into_iter().map(f64::from).collect();
    let difference = calc_diff(&out.to_vec_f32().unwrap(), &product(&a, &weight, None));
    assert!(difference < 1e-6, "{difference}");
}

/// Kernels of one call, counted in a graph.
fn kernels(device: &Device, call: &mut dyn FnMut(&GemmOptions)) -> usize {
    let stream = device.new_stream().unwrap();
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    call(&options);
    let graph = stream.capture(|_| {
        call(&options);
        Ok(())
    });
    graph.unwrap().kernels().expect("the simulator tells")
}

#[test]
fn a_call_is_two_kernels() {
    let blackwell = blackwell();
    let (m, n, k) = (4, 128, 144);
    for (device, recipes) in [(&blackwell, &Recipe::ALL[..]), (&Device::sim(), &[Recipe::Fp8, Recipe::Mxfp4])]
    {
        let x = Tensor::from_f32(DType::Bf16, &random::normals(4, m * k), &[m, k], device).unwrap();
        let bias = random::normals(3, n);
        for (recipe, bias) in recipes.iter().flat_map(|recipe| [(recipe, None), (recipe, Some(&bias[..]))]) {
            let weight = quantized(1, [1, n, k], *recipe);
            let mut layer = QuantizedLinear::new(&weight, bias, device, &LayerOptions::default()).unwrap();
            let mut out = Tensor::zeros(DType::Bf16, &[m, n], device).unwrap();
            let count = kernels(device, &mut |options| layer.forward(&x, &mut out, options).unwrap());
            assert_eq!(count, 2, "{recipe}, bias {}", bias.is_some());
        }
    }
    let [e, inner, outer] = [2, 128, 144];
    for (device, recipe, expected) in
        [(&blackwell, Recipe::Fp8, 5), (&blackwell, Recipe::Mxfp4, 5), (&Device::sim(), Recipe::Fp8, 5)]
    {
        let (gate_up, down) =
            (quantized(1, [e, 2 * inner, outer], recipe), quantized(2, [e, outer, inner], recipe));
        let mut layer = QuantizedExperts::new(&gate_up, &down, device, &LayerOptions::default()).unwrap();
        let x = Tensor::from_f32(DType::Bf16, &random::normals(4, 3 * outer), &[3, outer], device).unwrap();
        let ids = Tensor::from_slice(&[0i32, 1, 1], &[3, 1], device).unwrap();
        let weights = Tensor::from_slice(&[1.0f32; 3], &[3, 1], device).unwrap();
        let mut out = Tensor::zeros(DType::Bf16, &[3, outer], device).unwrap();
        let count =
            kernels(device, &mut |options| layer.forward(&x, &ids, &weights, &mut out, options).unwrap());
        assert_eq!(count, expected, "{recipe}");
    }
}
