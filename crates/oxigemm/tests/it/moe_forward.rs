//! A mixture of experts in one call, in the simulator and on the CPU, against the same in `f64`.

mod memory;
mod quantized;

use oxigemm::cast::{ScaleFormat, cast_blocks_to_fp4, per_block_cast_to_fp8};
use oxigemm::metrics::calc_diff;
use oxigemm::{
    Activation, DType, Device, Error, Gate, GemmOptions, MoeExperts, MoeProjection, MoeRouting, Tensor,
    moe_forward, moe_scratch_bytes, random,
};

const EXPERTS: usize = 5;
const INNER: usize = 128;
const OUTER: usize = 256;

/// Weights of a recipe, and what they mean.
struct Weights {
    codes: [Tensor; 2],
    scales: Option<[Tensor; 2]>,
    values: [Vec<f32>; 2],
    gated: bool,
    activation: Activation,
}

impl Weights {
    /// With SwiGLU, or squared ReLU where nothing is gated.
    fn new(dtype: DType, gated: bool, format: ScaleFormat, device: &Device) -> Weights {
        let activation = if gated { Activation::Silu } else { Activation::ReluSquared };
        Weights::with_activation(activation, dtype, format, device)
    }

    /// Squared ReLU has no gates, all others have.
    fn with_activation(
        activation: Activation,
        dtype: DType,
        format: ScaleFormat,
        device: &Device,
    ) -> Weights {
        let gated = activation != Activation::ReluSquared;
        let both = if gated { 2 * INNER } else { INNER };
        let dims = [[EXPERTS, both, OUTER], [EXPERTS, OUTER, INNER]];
        let numbers = |nth: usize| -> Vec<f32> {
            let count = dims[nth].iter().product();
            random::normals(nth as u64, count).iter().map(|x| x / 16.0).collect()
        };
        if dtype == DType::Bf16 {
            let values = [0, 1].map(|nth| DType::Bf16.decode(&DType::Bf16.encode(&numbers(nth))));
            let codes =
                [0, 1].map(|nth| Tensor::from_f32(DType::Bf16, &values[nth], &dims[nth], device).unwrap());
            return Weights { codes, scales: None, values, gated, activation };
        }
        if dtype == DType::U8 {
            return Weights::fp4(dims, [numbers(0), numbers(1)], activation, device);
        }
        let parts = [0, 1].map(|nth| {
            let [_, n, k] = dims[nth];
            let all = numbers(nth);
            let casts: Vec<_> =
                all.chunks(n * k).map(|one| per_block_cast_to_fp8(one, n, k, format).unwrap()).collect();
            let codes: Vec<u8> = casts.iter().flat_map(|cast| cast.codes.clone()).collect();
            let scales: Vec<f32> = casts.iter().flat_map(|cast| cast.scales.clone()).collect();
            let values: Vec<f32> = casts.iter().flat_map(|cast| cast.dequantize()).collect();
            let blocks = [EXPERTS, n.div_ceil(128), k.div_ceil(128)];
            (
                Tensor::from_bytes(DType::E4m3, &codes, &dims[nth], device).unwrap(),
                Tensor::from_slice(&scales, &blocks, device).unwrap(),
                values,
            )
        });
        let [(a, sfa, va), (b, sfb, vb)] = parts;
        Weights { codes: [a, b], scales: Some([sfa, sfb]), values: [va, vb], gated, activation }
    }

    /// MXFP4.
    fn fp4(
        dims: [[usize; 3]; 2],
        numbers: [Vec<f32>; 2],
        activation: Activation,
        device: &Device,
    ) -> Weights {
        let gated = activation != Activation::ReluSquared;
        let parts = [0, 1].map(|nth| {
            let [groups, n, k] = dims[nth];
            let cast =
                cast_blocks_to_fp4(&numbers[nth], groups * n, k, [1, 32], ScaleFormat::PowerOfTwo).unwrap();
            (
                Tensor::from_bytes(DType::U8, &cast.codes, &[groups, n, k / 2], device).unwrap(),
                Tensor::from_slice(&cast.scales, &[groups, n, k / 32], device).unwrap(),
                cast.dequantize(),
            )
        });
        let [(a, sfa, va), (b, sfb, vb)] = parts;
        Weights { codes: [a, b], scales: Some([sfa, sfb]), values: [va, vb], gated, activation }
    }

    fn experts<'a>(&'a self, biases: [Option<&'a Tensor>; 2], gate: Gate) -> MoeExperts<'a> {
        let of = |nth: usize| MoeProjection {
            weight: &self.codes[nth],
            scales: self.scales.as_ref().map(|scales| &scales[nth]),
            bias: biases[nth],
        };
        let (gated, activation) = (self.gated, self.activation);
        MoeExperts { gated, gate, activation, ..MoeExperts::swiglu(of(0), of(1)) }
    }

    /// The output in `f64`.
    fn exact(&self, x: &[f32], ids: &[i32], factors: &[f32], biases: [&[f32]; 2], gate: Gate) -> Vec<f64> {
        let (topk, both) = (ids.len() * OUTER / x.len(), if self.gated { 2 * INNER } else { INNER });
        let product = |weights: &[f32], bias: f32, x: &[f64]| -> f64 {
            weights.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>() + f64::from(bias)
        };
        let mut out = Vec::new();
        for (token, x) in x.chunks(OUTER).enumerate() {
            let x: Vec<f64> = x.iter().copied().map(f64::from).collect();
            let mut sums = vec![0.0; OUTER];
            for choice in token * topk..(token + 1) * topk {
                let Some(expert) = usize::try_from(ids[choice]).ok().filter(|id| *id < EXPERTS) else {
                    continue;
                };
                let row = |n: usize| &self.values[0][(expert * both + n) * OUTER..][..OUTER];
                let first = |n: usize| product(row(n), biases[0][expert * both + n], &x);
                let hidden: Vec<f64> = (0..INNER)
                    .map(|n| {
                        if !self.gated {
                            return first(n).max(0.0).powi(2);
                        }
                        let limit = f64::from(gate.limit);
                        let (g, up) = (first(n).min(limit), first(n + INNER).clamp(-limit, limit));
                        let activated = match self.activation {
                            Activation::Gelu => g * 0.5 * libm::erfc(-g / std::f64::consts::SQRT_2),
                            _ => g / (1.0 + (-f64::from(gate.slope) * g).exp()),
                        };
                        activated * (up + f64::from(gate.up_offset))
                    })
                    .collect();
                for (n, sum) in sums.iter_mut().enumerate() {
                    let row = &self.values[1][(expert * OUTER + n) * INNER..][..INNER];
                    let y = product(row, biases[1][expert * OUTER + n], &hidden);
                    *sum += f64::from(factors[choice]) * y;
                }
            }
            out.extend(sums);
        }
        out
    }
}

/// Tokens with their choices: some of no expert, one expert without tokens.
fn choices(tokens: usize, topk: usize) -> (Vec<i32>, Vec<f32>) {
    let id = |i: u64| match random::bits(7, i) % 7 {
        id @ (0..2 | 3..5) => id as i32,
        2 => 0,
        5 => -1,
        _ => i32::MAX,
    };
    let count = tokens * topk;
    let factors = random::normals(8, count).iter().map(|x| x.abs()).collect();
    ((0..count as u64).map(id).collect(), factors)
}

fn forward(
    device: &Device,
    (x, topk): (&[f32], usize),
    (ids, factors): (&[i32], &[f32]),
    weights: &Weights,
    (biases, gate): ([&[f32]; 2], Gate),
) -> Vec<f32> {
    let tokens = x.len() / OUTER;
    let x = Tensor::from_f32(DType::Bf16, x, &[tokens, OUTER], device).unwrap();
    let both = if weights.gated { 2 * INNER } else { INNER };
    let bias = |nth: usize, n: usize| Tensor::from_slice(biases[nth], &[EXPERTS, n], device).unwrap();
    let (first, second) = (bias(0, both), bias(1, OUTER));
    let ids = Tensor::from_slice(ids, &[tokens, topk], device).unwrap();
    let factors = Tensor::from_slice(factors, &[tokens, topk], device).unwrap();
    let routing = MoeRouting { ids: &ids, weights: &factors };
    let bytes = moe_scratch_bytes([tokens, topk], [EXPERTS, INNER, OUTER], weights.codes[0].dtype());
    let mut scratch = Tensor::zeros(DType::U8, &[bytes], device).unwrap();
    let mut out = Tensor::empty(DType::Bf16, &[tokens, OUTER], device).unwrap();
    let experts = weights.experts([Some(&first), Some(&second)], gate);
    moe_forward(&x, &routing, &experts, &mut scratch, &mut out, &GemmOptions::default()).unwrap();
    out.to_vec_f32().unwrap()
}

#[test]
fn every_recipe_and_activation_is_the_mixture() {
    let devices: [Device; 3] = [Device::cpu(), Device::sim(), "sim:sm_100a".parse().unwrap()];
    let [silu, gelu, relu2] = [Activation::Silu, Activation::Gelu, Activation::ReluSquared];
    // Of gpt-oss; tokens are made so large that the limit of 7 matters.
    let gpt_oss = Gate { slope: 1.702, limit: 7.0, up_offset: 1.0 };
    let cases = [
        (DType::E4m3, silu, Gate::PLAIN, 3),
        (DType::Bf16, silu, gpt_oss, 40),
        (DType::E4m3, silu, gpt_oss, 40),
        (DType::Bf16, relu2, Gate::PLAIN, 3),
        (DType::E4m3, relu2, Gate::PLAIN, 21),
        (DType::U8, silu, gpt_oss, 3),
        (DType::U8, silu, Gate::PLAIN, 40),
        (DType::U8, relu2, Gate::PLAIN, 21),
        (DType::Bf16, gelu, Gate::PLAIN, 21),
        (DType::E4m3, gelu, Gate::PLAIN, 3),
        (DType::U8, gelu, Gate::PLAIN, 3),
    ];
    for (dtype, activation, gate, tokens) in cases {
        let (topk, size) = (3, if gate == gpt_oss { 6.0 } else { 1.0 });
        let numbers: Vec<f32> = random::normals(5, tokens * OUTER).iter().map(|x| size * x).collect();
        let numbers = DType::Bf16.decode(&DType::Bf16.encode(&numbers));
        let (ids, factors) = choices(tokens, topk);
        let both = if activation == relu2 { INNER } else { 2 * INNER };
        let biases = [random::normals(9, EXPERTS * both), random::normals(10, EXPERTS * OUTER)];
        let biases = [&biases[0][..], &biases[1][..]];
        for device in &devices {
            // Both kinds of tensor core take powers of two.
            let weights = Weights::with_activation(activation, dtype, ScaleFormat::PowerOfTwo, device);
            let found = forward(device, (&numbers, topk), (&ids, &factors), &weights, (biases, gate));
            let exact = weights.exact(&numbers, &ids, &factors, biases, gate);
            // Activations are quantized twice.
            let limit = if dtype == DType::Bf16 { 1e-5 } else { 2e-3 };
            let diff = calc_diff(&found, &exact);
            assert!(diff < limit, "{dtype} {activation:?} {gate:?} {tokens} tokens on {device}: {diff}");
        }
    }
}

/// An expert that every token takes: the last choice of each, with a weight of 1.
#[test]
fn a_shared_expert_is_a_choice_with_weight_1() {
    let (tokens, topk) = (19, 3);
    let numbers = DType::Bf16.decode(&DType::Bf16.encode(&random::normals(5, tokens * OUTER)));
    let (mut ids, mut factors) = choices(tokens, topk);
    for last in (topk - 1..tokens * topk).step_by(topk) {
        (ids[last], factors[last]) = (EXPERTS as i32 - 1, 1.0);
    }
    // Nobody chooses it otherwise.
    let is_last = |i: usize| i % topk == topk - 1;
    ids.iter_mut()
        .enumerate()
        .filter(|(i, id)| !is_last(*i) && **id == EXPERTS as i32 - 1)
        .for_each(|(_, id)| *id = 0);
    let zeros = [vec![0.0; EXPERTS * 2 * INNER], vec![0.0; EXPERTS * OUTER]];
    let plain = ([&zeros[0][..], &zeros[1][..]], Gate::PLAIN);
    for (dtype, limit) in [(DType::Bf16, 1e-5), (DType::E4m3, 2e-3), (DType::U8, 2e-3)] {
        for device in [Device::cpu(), Device::sim()] {
            let weights = Weights::new(dtype, true, ScaleFormat::F32, &device);
            let found = forward(&device, (&numbers, topk), (&ids, &factors), &weights, plain);
            let exact = weights.exact(&numbers, &ids, &factors, plain.0, plain.1);
            assert!(calc_diff(&found, &exact) < limit, "{dtype} on {device}");
            // What it adds is what it alone gives.
            let of_shared = |i: usize, id: i32| if is_last(i) { id } else { -1 };
            let alone: Vec<i32> = ids.iter().enumerate().map(|(i, id)| of_shared(i, *id)).collect();
            let routed: Vec<i32> =
                ids.iter().zip(&alone).map(|(id, own)| if *own < 0 { *id } else { -1 }).collect();
            let parts = [alone, routed]
                .map(|ids| forward(&device, (&numbers, topk), (&ids, &factors), &weights, plain));
            let sum: Vec<f64> = parts[0].iter().zip(&parts[1]).map(|(a, b)| f64::from(a + b)).collect();
            assert!(calc_diff(&found, &sum) < 1e-5, "{dtype} on {device}");
        }
    }
}

#[test]
fn no_token_and_no_choice_add_nothing() {
    for device in [Device::cpu(), Device::sim()] {
        let weights = Weights::new(DType::E4m3, true, ScaleFormat::F32, &device);
        let zeros = [vec![0.0; EXPERTS * 2 * INNER], vec![0.0; EXPERTS * OUTER]];
        let plain = ([&zeros[0][..], &zeros[1][..]], Gate::PLAIN);
        let found = forward(&device, (&[0.5; OUTER], 2), (&[-1, 9], &[1.0; 2]), &weights, plain);
        assert_eq!(found, [0.0; OUTER], "{device}");
        assert!(forward(&device, (&[], 2), (&[], &[]), &weights, plain).is_empty());
    }
}

#[test]
fn bad_arguments_are_refused_by_name() {
    let device = Device::cpu();
    let weights = Weights::new(DType::E4m3, true, ScaleFormat::F32, &device);
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
    let good = weights.experts([None, None], Gate::PLAIN);
    let bytes = moe_scratch_bytes([2, 3], [EXPERTS, INNER, OUTER], DType::E4m3);
    let refused = |x: &[usize], ids: &[usize], bytes: usize, experts: &MoeExperts<'_>, argument: &str| {
        let (x, ids) = (new(DType::Bf16, x), new(DType::I32, ids));
        let factors = new(DType::F32, &[2, 3]);
        let routing = MoeRouting { ids: &ids, weights: &factors };
        let (mut scratch, mut out) = (new(DType::U8, &[bytes]), new(DType::Bf16, &[2, OUTER]));
        let options = GemmOptions::default();
        let error = moe_forward(&x, &routing, experts, &mut scratch, &mut out, &options).unwrap_err();
        assert_eq!(error.argument(), Some(argument), "{error}");
        error
    };
    refused(&[2, 128], &[2, 3], bytes, &good, "x");
    refused(&[3, OUTER], &[2, 3], bytes, &good, "ids");
    refused(&[2, OUTER], &[2, 4], bytes, &good, "weights");
    let error = refused(&[2, OUTER], &[2, 3], bytes - 1, &good, "scratch");
    assert!(error.to_string().contains("moe_scratch_bytes"), "{error}");
    let no_scales = MoeProjection { scales: None, ..good.down };
    let error = refused(&[2, OUTER], &[2, 3], bytes, &MoeExperts { down: no_scales, ..good }, "down_scales");
    assert!(matches!(error, Error::Value { .. }));
    let swapped = MoeExperts { down: good.gate_up, ..good };
    refused(&[2, OUTER], &[2, 3], bytes, &swapped, "down");
    let gate = Gate { limit: -1.0, ..Gate::PLAIN };
    refused(&[2, OUTER], &[2, 3], bytes, &MoeExperts { gate, ..good }, "gate");

    // Each weight by its own name, not by that of the GEMM's argument.
    let wrong = [
        (MoeProjection { weight: &new(DType::F16, &[EXPERTS, 2 * INNER, OUTER]), ..good.gate_up }, "gate_up"),
        (MoeProjection { weight: &new(DType::E4m3, &[2 * INNER, OUTER]), ..good.gate_up }, "gate_up"),
        (
            MoeProjection { scales: Some(&new(DType::F32, &[EXPERTS, 2, 1])), ..good.gate_up },
            "gate_up_scales",
        ),
        (
            MoeProjection { scales: Some(&new(DType::I32, &[EXPERTS, 2, 2])), ..good.gate_up },
            "gate_up_scales",
        ),
        (MoeProjection { bias: Some(&new(DType::F32, &[EXPERTS, INNER])), ..good.gate_up }, "gate_up_bias"),
        (
            MoeProjection { bias: Some(&new(DType::F16, &[EXPERTS, 2 * INNER])), ..good.gate_up },
            "gate_up_bias",
        ),
    ];
    for (gate_up, argument) in wrong {
        refused(&[2, OUTER], &[2, 3], bytes, &MoeExperts { gate_up, ..good }, argument);
    }
    let wrong = [
        (
            MoeProjection { weight: &new(DType::Bf16, &[EXPERTS, OUTER, INNER]), scales: None, ..good.down },
            "down",
        ),
        (MoeProjection { scales: Some(&new(DType::F32, &[EXPERTS, 1, 1])), ..good.down }, "down_scales"),
        (MoeProjection { bias: Some(&new(DType::F32, &[EXPERTS, INNER])), ..good.down }, "down_bias"),
    ];
    for (down, argument) in wrong {
        refused(&[2, OUTER], &[2, 3], bytes, &MoeExperts { down, ..good }, argument);
    }
}

/// Strides that the GEMM does not read are those of the weight, too.
#[test]
fn strides_of_weights_are_refused_by_their_names() {
    let device = Device::sim();
    let weights = Weights::new(DType::E4m3, true, ScaleFormat::F32, &device);
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
    let wide = new(DType::E4m3, &[EXPERTS, OUTER, INNER + 1]).narrow(2, 0, INNER).unwrap();
    let good = weights.experts([None, None], Gate::PLAIN);
    let experts = MoeExperts { down: MoeProjection { weight: &wide, ..good.down }, ..good };
    let (x, ids, factors) =
        (new(DType::Bf16, &[2, OUTER]), new(DType::I32, &[2, 3]), new(DType::F32, &[2, 3]));
    let routing = MoeRouting { ids: &ids, weights: &factors };
    let bytes = moe_scratch_bytes([2, 3], [EXPERTS, INNER, OUTER], DType::E4m3);
    let (mut scratch, mut out) = (new(DType::U8, &[bytes]), new(DType::Bf16, &[2, OUTER]));
    let error = moe_forward(&x, &routing, &experts, &mut scratch, &mut out, &GemmOptions::default());
    let error = error.unwrap_err();
    assert_eq!(error.argument(), Some("down"), "{error}");
}

/// A captured call is replayed with other tokens, choices and weights of them.
#[test]
fn a_graph_is_replayed_with_other_choices() {
    let device = Device::sim();
    let stream = device.new_stream().unwrap();
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    let (tokens, topk) = (20, 3);
    let zeros = [vec![0.0; EXPERTS * 2 * INNER], vec![0.0; EXPERTS * OUTER]];
    let plain = ([&zeros[0][..], &zeros[1][..]], Gate::PLAIN);
    for dtype in [DType::Bf16, DType::E4m3] {
        let weights = Weights::new(dtype, true, ScaleFormat::F32, &device);
        let biases = [
            Tensor::from_slice(&zeros[0], &[EXPERTS, 2 * INNER], &device).unwrap(),
            Tensor::from_slice(&zeros[1], &[EXPERTS, OUTER], &device).unwrap(),
        ];
        let experts = weights.experts([Some(&biases[0]), Some(&biases[1])], Gate::PLAIN);
        let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
        let (mut x, mut ids) = (new(DType::Bf16, &[tokens, OUTER]), new(DType::I32, &[tokens, topk]));
        let mut factors = new(DType::F32, &[tokens, topk]);
        let mut out = new(DType::Bf16, &[tokens, OUTER]);
        let bytes = moe_scratch_bytes([tokens, topk], [EXPERTS, INNER, OUTER], dtype);
        let mut scratch = new(DType::U8, &[bytes]);
        let graph = stream
            .capture(|_| {
                let routing = MoeRouting { ids: &ids, weights: &factors };
                moe_forward(&x, &routing, &experts, &mut scratch, &mut out, &options)
            })
            .unwrap();
        for seed in 0..3u64 {
            let numbers = DType::Bf16.decode(&DType::Bf16.encode(&random::normals(seed, tokens * OUTER)));
            let list: Vec<i32> =
                (0..(tokens * topk) as u64).map(|i| (random::bits(seed, i) % 7) as i32 - 1).collect();
            let chosen: Vec<f32> = random::normals(seed + 9, tokens * topk);
            x.write_f32(&numbers).unwrap();
            ids.write_bytes(&list.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<_>>()).unwrap();
            factors.write_f32(&chosen).unwrap();
            graph.launch(&stream).unwrap();
            stream.synchronize().unwrap();
            let expected = forward(&device, (&numbers, topk), (&list, &chosen), &weights, plain);
            assert_eq!(out.to_vec_f32().unwrap(), expected, "{dtype}, replay {seed}");
        }
    }
}

/// Results do not depend on how work is scheduled.
#[test]
fn schedules_give_the_same_bits() {
    let (tokens, topk) = (33, 3);
    let numbers = DType::Bf16.decode(&DType::Bf16.encode(&random::normals(5, tokens * OUTER)));
    let (ids, factors) = choices(tokens, topk);
    let biases = [random::normals(9, EXPERTS * 2 * INNER), random::normals(10, EXPERTS * OUTER)];
    let biases = [&biases[0][..], &biases[1][..]];
    for dtype in [DType::Bf16, DType::E4m3, DType::U8] {
        let found = ["sim:eager", "sim:lazy", "sim:1", "sim:2"].map(|name| {
            let device: Device = name.parse().unwrap();
            let weights = Weights::new(dtype, true, ScaleFormat::F32, &device);
            forward(&device, (&numbers, topk), (&ids, &factors), &weights, (biases, Gate::PLAIN))
        });
        assert!(found.iter().all(|one| *one == found[0]), "{dtype}");
    }
}
