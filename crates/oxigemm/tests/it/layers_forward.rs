//! Quantized layers: the products are those of the dequantized weights, on the CPU and by the kernels.

use oxigemm::layers::{
    LayerOptions, Nvfp4Weights, QuantizedExperts, QuantizedLinear, QuantizedWeight, Recipe, Strategy,
    WeightScales,
};
use oxigemm::metrics::calc_diff;
use oxigemm::{Activation, DType, Device, GemmOptions, Tensor, random};

fn blackwell() -> Device {
    "sim:sm_100a".parse().unwrap()
}

fn scaled(seed: u64, count: usize, factor: f32) -> Vec<f32> {
    random::normals(seed, count).iter().map(|x| x * factor).collect()
}

/// `x · Wᵀ + bias` in f64.
fn product(x: &[f32], w: &[f32], bias: Option<&[f32]>, [m, n, k]: [usize; 3]) -> Vec<f64> {
    let dot =
        |i: usize, j: usize| (0..k).map(|l| f64::from(x[i * k + l]) * f64::from(w[j * k + l])).sum::<f64>();
    (0..m * n).map(|at| dot(at / n, at % n) + bias.map_or(0.0, |bias| bias[at % n].into())).collect()
}

/// A layer against the product of its weights; gives the bits of its results.
fn check(
    weight: &QuantizedWeight,
    options: &LayerOptions,
    device: &Device,
    m: usize,
    limit: f64,
) -> Vec<Vec<u8>> {
    let [_, n, k] = weight.dims();
    let bias = random::normals(3, n);
    let x = random::normals(4, m * k);
    let mut results = Vec::new();
    for bias in [None, Some(&bias[..])] {
        let mut layer = QuantizedLinear::new(weight, bias, device, options).unwrap();
        for dtype in [DType::Bf16, DType::F32] {
            let x = Tensor::from_f32(DType::Bf16, &x, &[m, k], device).unwrap();
            let mut out = Tensor::zeros(dtype, &[m, n], device).unwrap();
            layer.forward(&x, &mut out, &GemmOptions::default()).unwrap();
            let expected = product(&x.to_vec_f32().unwrap(), &weight.dequantize(), bias, [m, n, k]);
            let difference = calc_diff(&out.to_vec_f32().unwrap(), &expected);
            let what =
                format!("{} {:?} bias {} {dtype}", weight.recipe(), layer.conversion(), bias.is_some());
            assert!(difference < limit, "{what}: {difference}");
            results.push(out.to_bytes().unwrap());
        }
    }
    results
}

/// Weights of every recipe, and FP8 with every block of scales.
fn weights(n: usize, k: usize) -> Vec<QuantizedWeight> {
    let values = scaled(1, n * k, 0.05);
    let mut weights: Vec<_> = Recipe::ALL
        .iter()
        .map(|recipe| QuantizedWeight::quantize(&values, [1, n, k], *recipe).unwrap())
        .collect();
    for block in [[1, k], [n, k], [1, 128], [64, 64]] {
        let count = n.div_ceil(block[0]) * k.div_ceil(block[1]);
        let scales = scaled(2, count, 0.01).iter().map(|x| x.abs() + 1e-3).collect();
        let codes = DType::E4m3.encode(&scaled(5, n * k, 4.0));
        let scales = WeightScales::F32 { block, values: scales };
        weights.push(QuantizedWeight::from_parts(Recipe::Fp8, [1, n, k], codes, scales).unwrap());
    }
    weights
}

#[test]
fn linear_layers_of_every_recipe() {
    for weight in weights(130, 288) {
        check(&weight, &LayerOptions::default(), &Device::cpu(), 7, 2e-3);
        // Activations of four bits lose more.
        let limit = if weight.recipe() == Recipe::Nvfp4 { 2e-2 } else { 2e-3 };
        check(&weight, &LayerOptions::default(), &blackwell(), 7, limit);
    }
    let nvfp4 = QuantizedWeight::quantize(&scaled(1, 130 * 288, 0.05), [1, 130, 288], Recipe::Nvfp4).unwrap();
    let exact = LayerOptions { nvfp4: Nvfp4Weights::Bf16, ..Default::default() };
    check(&nvfp4, &exact, &Device::cpu(), 7, 1e-5);
}

#[test]
fn kernels_give_what_the_cpu_gives() {
    let sim = Device::sim();
    let cpu = Device::cpu();
    for weight in weights(136, 160) {
        let options = LayerOptions::default();
        let [on_sim, on_cpu] = [&sim, &cpu].map(|device| check(&weight, &options, device, 5, 2e-3));
        for (i, (a, b)) in on_sim.iter().zip(&on_cpu).enumerate() {
            let dtype = [DType::Bf16, DType::F32][i % 2];
            let difference = calc_diff(&dtype.decode(a), &dtype.decode(b));
            assert!(difference < 1e-5, "{} {difference}", weight.recipe());
        }
    }
    let nvfp4 = QuantizedWeight::quantize(&scaled(1, 136 * 160, 0.05), [1, 136, 160], Recipe::Nvfp4).unwrap();
    check(&nvfp4, &LayerOptions { nvfp4: Nvfp4Weights::Bf16, ..Default::default() }, &sim, 5, 1e-5);
}

#[test]
fn conversions_say_what_they_lose() {
    let device = Device::cpu();
    let layer = |weight: &QuantizedWeight| {
        QuantizedLinear::new(weight, None, &device, &LayerOptions::default()).unwrap()
    };
    let conversion = |weight: &QuantizedWeight| *layer(weight).conversion();
    let (n, k) = (256, 256);
    let values = scaled(1, n * k, 0.05);
    let quantized = |recipe| QuantizedWeight::quantize(&values, [1, n, k], recipe).unwrap();
    for (recipe, strategy, block) in [
        (Recipe::Fp8, Strategy::Fp8, [128, 128]),
        (Recipe::Mxfp8, Strategy::Fp8Scales32, [1, 32]),
        (Recipe::Mxfp4, Strategy::Widen, [128, 128]),
    ] {
        let found = conversion(&quantized(recipe));
        assert_eq!((found.strategy, found.block, found.changed, found.error), (strategy, block, 0, 0.0));
    }
    let nvfp4 = conversion(&quantized(Recipe::Nvfp4));
    assert_eq!((nvfp4.strategy, nvfp4.block), (Strategy::Requantize, [128, 128]));
    assert!(nvfp4.changed > 0 && (0.001..0.05).contains(&nvfp4.error), "{nvfp4:?}");

    // 32s that are 20 binades apart: scales of 128x128 do not hold them, those of 1x32 do.
    let far: Vec<f32> =
        (0..n * k).map(|i| if i / 32 % 2 == 0 { 3.0 * 2f32.powi(12) } else { 3.0 * 2f32.powi(-8) }).collect();
    let far = QuantizedWeight::quantize(&far, [1, n, k], Recipe::Mxfp4).unwrap();
    let found = conversion(&far);
    assert_eq!((found.block, found.changed, found.error), ([1, 32], 0, 0.0));
    assert_eq!(layer(&far).weight().unwrap().dequantize(), far.dequantize(), "what is saved is as exact");
    assert_eq!(
        layer(&quantized(Recipe::Mxfp4)).weight().unwrap().dequantize(),
        quantized(Recipe::Mxfp4).dequantize()
    );

    // Experts have scales of 128x128 alone.
    let experts = QuantizedWeight::quantize(&far.dequantize(), [1, n, k], Recipe::Mxfp4).unwrap();
    let down = QuantizedWeight::quantize(&values[..k * n / 2], [1, k, n / 2], Recipe::Fp8).unwrap();
    let layer = QuantizedExperts::new(&experts, &down, &device, &LayerOptions::default()).unwrap();
    let [found, exact] = layer.conversions();
    assert_eq!((found.block, found.changed, exact.changed), ([128, 128], n * k / 2, 0));
    assert!(found.error > 0.0 && found.error < 1e-3, "small values are lost: {found:?}");
}

#[test]
fn buffers_are_kept_and_rows_may_come_in_any_number() {
    for (device, recipe) in [(Device::cpu(), Recipe::Fp8), (blackwell(), Recipe::Mxfp4)] {
        buffers_are_kept(&device, recipe);
    }
}

fn buffers_are_kept(device: &Device, recipe: Recipe) {
    let weight = QuantizedWeight::quantize(&scaled(1, 64 * 128, 0.05), [1, 64, 128], recipe).unwrap();
    let mut layer = QuantizedLinear::new(&weight, None, device, &LayerOptions::default()).unwrap();
    let mut other = layer.clone();
    let x = Tensor::from_f32(DType::Bf16, &random::normals(2, 40 * 128), &[40, 128], device).unwrap();
    let options = GemmOptions { batch_invariant: true, ..Default::default() };
    let run = |layer: &mut QuantizedLinear, m: usize| {
        let mut out = Tensor::zeros(DType::Bf16, &[m, 64], device).unwrap();
        layer.forward(&x.narrow(0, 0, m).unwrap(), &mut out, &options).unwrap();
        out.to_bytes().unwrap()
    };
    let all = run(&mut other, 40);
    for m in [1, 7, 3, 40, 0, 12] {
        assert_eq!(run(&mut layer, m), all[..m * 128], "{m} rows");
    }
}

/// Gated experts by hand, in f64.
fn experts(
    x: &[f32],
    [gate_up, down]: [&[f32]; 2],
    [e, i, k]: [usize; 3],
    ids: &[i32],
    weights: &[f32],
    topk: usize,
) -> Vec<f64> {
    let tokens = ids.len() / topk;
    let mut out = vec![0.0; tokens * k];
    for (choice, (&id, &weight)) in ids.iter().zip(weights).enumerate() {
        let Some(id) = usize::try_from(id).ok().filter(|id| *id < e) else { continue };
        let row = &x[choice / topk * k..][..k];
        let both = product(row, &gate_up[id * 2 * i * k..][..2 * i * k], None, [1, 2 * i, k]);
        let hidden: Vec<f32> =
            (0..i).map(|j| (both[j] / (1.0 + (-both[j]).exp()) * both[i + j]) as f32).collect();
        let y = product(&hidden, &down[id * k * i..][..k * i], None, [1, k, i]);
        for (out, y) in out[choice / topk * k..].iter_mut().zip(y) {
            *out += f64::from(weight) * y;
        }
    }
    out
}

#[test]
fn experts_of_every_recipe() {
    let dims @ [e, i, k] = [3, 128, 144];
    let (tokens, topk) = (6, 2);
    let [gate_up, down] = [scaled(1, e * 2 * i * k, 0.08), scaled(2, e * k * i, 0.08)];
    let ids: Vec<i32> = vec![0, 2, 2, 0, -1, 2, 0, 7, 2, 2, 0, 2];
    let (x, weights) = (random::normals(3, tokens * k), random::normals(4, tokens * topk));
    let run = |recipe: Recipe, device: &Device| {
        let gate_up = QuantizedWeight::quantize(&gate_up, [e, 2 * i, k], recipe).unwrap();
        let down = QuantizedWeight::quantize(&down, [e, k, i], recipe).unwrap();
        let mut layer = QuantizedExperts::new(&gate_up, &down, device, &LayerOptions::default()).unwrap();
        let x = Tensor::from_f32(DType::Bf16, &x, &[tokens, k], device).unwrap();
        let id_tensor = Tensor::from_slice(&ids, &[tokens, topk], device).unwrap();
        let weight_tensor = Tensor::from_slice(&weights, &[tokens, topk], device).unwrap();
        let mut out = Tensor::zeros(DType::Bf16, &[tokens, k], device).unwrap();
        for _ in 0..2 {
            layer.forward(&x, &id_tensor, &weight_tensor, &mut out, &GemmOptions::default()).unwrap();
        }
        let exact = [gate_up.dequantize(), down.dequantize()];
        let expected = experts(&x.to_vec_f32().unwrap(), [&exact[0], &exact[1]], dims, &ids, &weights, topk);
        let out = out.to_vec_f32().unwrap();
        let difference = calc_diff(&out, &expected);
        assert!(difference < 4e-3, "{recipe}: {difference}, {:?}", layer.conversions());
        out
    };
    for recipe in Recipe::ALL {
        run(recipe, &Device::cpu());
    }
    let difference = calc_diff(&run(Recipe::Mxfp4, &Device::sim()), &run(Recipe::Mxfp4, &Device::cpu()));
    assert!(difference < 1e-4, "{difference}");
    for recipe in Recipe::ALL {
        run(recipe, &blackwell());
    }
}

#[test]
fn experts_with_biases_and_another_activation() {
    for device in [Device::cpu(), blackwell()] {
        biases_and_another_activation(&device);
    }
}

fn biases_and_another_activation(device: &Device) {
    let [e, i, k] = [2, 128, 128];
    let zeros =
        |n, k: usize| QuantizedWeight::quantize(&vec![0.0f32; e * n * k], [e, n, k], Recipe::Mxfp4).unwrap();
    let gate_up_bias: Vec<f32> = (0..e * 2 * i).map(|at| if at % (2 * i) < i { 2.0 } else { 3.0 }).collect();
    let down_bias: Vec<f32> = (0..e * k).map(|at| if at < k { 1.0 } else { -1.0 }).collect();
    let biases = [Some(&gate_up_bias[..]), Some(&down_bias[..])];
    let options = LayerOptions::default();
    let mut layer =
        QuantizedExperts::with(&zeros(2 * i, k), &zeros(k, i), biases, Activation::Relu, device, &options)
            .unwrap();
    let x = Tensor::zeros(DType::Bf16, &[2, k], device).unwrap();
    let ids = Tensor::from_slice(&[0i32, 1], &[2, 1], device).unwrap();
    let weights = Tensor::from_slice(&[1.0f32, 2.0], &[2, 1], device).unwrap();
    let mut out = Tensor::zeros(DType::Bf16, &[2, k], device).unwrap();
    layer.forward(&x, &ids, &weights, &mut out, &GemmOptions::default()).unwrap();
    let out = out.to_vec_f32().unwrap();
    assert!(out[..k].iter().all(|x| *x == 1.0) && out[k..].iter().all(|x| *x == -2.0));
}

#[test]
fn wrong_arguments_are_refused_by_name() {
    let device = Device::cpu();
    let options = LayerOptions::default();
    let weight = |dims: [usize; 3]| {
        QuantizedWeight::quantize(&vec![1.0f32; dims.iter().product()], dims, Recipe::Fp8).unwrap()
    };
    let refused = |weight: &QuantizedWeight, bias: Option<&[f32]>, device: &Device| {
        QuantizedLinear::new(weight, bias, device, &options).unwrap_err().to_string()
    };
    let error = refused(&weight([1, 4, 24]), None, &device);
    assert!(error.contains("`weight` has the wrong shape: expected one matrix [1, N, K] with a K that is a multiple of 16, found [1, 4, 24]"), "{error}");
    assert!(refused(&weight([2, 4, 32]), None, &device).contains("found [2, 4, 32]"));
    let error = refused(&weight([1, 4, 32]), Some(&[0.0; 3]), &device);
    assert!(
        error.contains(
            "`bias` has the wrong shape: expected 4 numbers, one for each row of `weight`, found 3 numbers"
        ),
        "{error}"
    );
    let negative = LayerOptions { input_scale: Some(-1.0), ..options };
    let error = QuantizedLinear::new(&weight([1, 4, 32]), None, &device, &negative).unwrap_err().to_string();
    assert!(error.contains("`input_scale`") && error.contains("found -1"), "{error}");

    let mut layer = QuantizedLinear::new(&weight([1, 4, 32]), None, &device, &options).unwrap();
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
    for (x, out, words) in [
        (new(DType::Bf16, &[3, 16]), new(DType::Bf16, &[3, 4]), "`x` has the wrong shape: expected [3, 32]"),
        (new(DType::Bf16, &[3, 32]), new(DType::Bf16, &[3, 5]), "`out` has the wrong shape: expected [3, 4]"),
        (new(DType::E4m3, &[3, 32]), new(DType::Bf16, &[3, 4]), "`x` has the wrong element type"),
        (new(DType::Bf16, &[3, 32]), new(DType::F16, &[3, 4]), "`out` has the wrong element type"),
        (new(DType::Bf16, &[32]), new(DType::Bf16, &[3, 4]), "`x` has the wrong rank"),
    ] {
        let error = layer.forward(&x, &mut out.clone(), &GemmOptions::default()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let (gate_up, down) = (weight([2, 256, 128]), weight([2, 128, 128]));
    let experts = |gate_up: &QuantizedWeight, down: &QuantizedWeight| {
        QuantizedExperts::new(gate_up, down, &device, &options).map(|_| ()).map_err(|error| error.to_string())
    };
    experts(&gate_up, &down).unwrap();
    assert!(experts(&weight([2, 192, 128]), &down).unwrap_err().contains("`gate_up` has the wrong shape"));
    assert!(
        experts(&gate_up, &weight([2, 128, 64]))
            .unwrap_err()
            .contains("`down` has the wrong shape: expected [2, 128, 128]")
    );
}

/// Calls can be captured once they were made, and a replay computes what is in memory then.
#[test]
fn layers_are_captured_and_replayed() {
    for device in [Device::sim(), blackwell()] {
        captured_and_replayed(&device);
    }
}

fn captured_and_replayed(device: &Device) {
    let stream = device.new_stream().unwrap();
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    let (m, n, k) = (3, 128, 128);
    let x = |seed| random::normals(seed, m * k);
    let mut input = Tensor::from_f32(DType::Bf16, &x(1), &[m, k], device).unwrap();
    let mut out = Tensor::zeros(DType::Bf16, &[m, n], device).unwrap();
    let check = |input: &mut Tensor, out: &mut Tensor, call: &mut dyn FnMut(&Tensor, &mut Tensor)| {
        call(input, out);
        input.write_f32(&x(2)).unwrap();
        call(input, out);
        let expected = out.to_bytes().unwrap();
        input.write_f32(&x(1)).unwrap();
        let graph = stream
            .capture(|_| {
                call(input, out);
                Ok(())
            })
            .unwrap();
        input.write_f32(&x(2)).unwrap();
        out.write_bytes(&vec![0; 2 * m * n]).unwrap();
        graph.launch(&stream).unwrap();
        assert_eq!(out.to_bytes().unwrap(), expected);
    };
    let bias = random::normals(3, n);
    for recipe in [Recipe::Fp8, Recipe::Mxfp8] {
        let weight = QuantizedWeight::quantize(&scaled(4, n * k, 0.1), [1, n, k], recipe).unwrap();
        let mut layer = QuantizedLinear::new(&weight, Some(&bias), device, &LayerOptions::default()).unwrap();
        check(&mut input, &mut out, &mut |x, out| layer.forward(x, out, &options).unwrap());
    }
    let weight = |seed, n, k| {
        QuantizedWeight::quantize(&scaled(seed, 2 * n * k, 0.1), [2, n, k], Recipe::Fp8).unwrap()
    };
    let (gate_up, down) = (weight(5, 256, 128), weight(6, 128, 128));
    let mut layer = QuantizedExperts::new(&gate_up, &down, device, &LayerOptions::default()).unwrap();
    let ids = Tensor::from_slice(&[0i32, 1, 1], &[m, 1], device).unwrap();
    let weights = Tensor::from_slice(&[1.0f32; 3], &[m, 1], device).unwrap();
    check(&mut input, &mut out, &mut |x, out| layer.forward(x, &ids, &weights, out, &options).unwrap());
}
