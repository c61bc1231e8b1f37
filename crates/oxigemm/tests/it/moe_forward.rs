//! A mixture of experts in one call, in the simulator and on the CPU, against the same in `f64`.

use oxigemm::cast::{
    ScaleFormat, cast_blocks_to_fp4, cast_blocks_to_fp8, per_block_cast_to_fp8, per_token_cast_to_fp8,
};
use oxigemm::metrics::calc_diff;
use oxigemm::{
    Activation, DType, Device, Error, Gate, GemmOptions, LaunchOptions, MoeExperts, MoeGroup, MoeGroupCall,
    MoeGroupShape, MoeProjection, MoeRouting, Tensor, moe_forward, moe_forward_group, moe_forward_quantized,
    moe_group_scratch_bytes, moe_publish, moe_scratch_bytes, random,
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
}

impl Weights {
    fn new(dtype: DType, gated: bool, format: ScaleFormat, device: &Device) -> Weights {
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
            return Weights { codes, scales: None, values, gated };
        }
        if dtype == DType::U8 {
            return Weights::fp4(dims, [numbers(0), numbers(1)], gated, device);
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
        Weights { codes: [a, b], scales: Some([sfa, sfb]), values: [va, vb], gated }
    }

    /// MXFP4.
    fn fp4(dims: [[usize; 3]; 2], numbers: [Vec<f32>; 2], gated: bool, device: &Device) -> Weights {
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
        Weights { codes: [a, b], scales: Some([sfa, sfb]), values: [va, vb], gated }
    }

    fn experts<'a>(&'a self, biases: [Option<&'a Tensor>; 2], gate: Gate) -> MoeExperts<'a> {
        let of = |nth: usize| MoeProjection {
            weight: &self.codes[nth],
            scales: self.scales.as_ref().map(|scales| &scales[nth]),
            bias: biases[nth],
        };
        let activation = if self.gated { Activation::Silu } else { Activation::ReluSquared };
        MoeExperts { gated: self.gated, gate, activation, ..MoeExperts::swiglu(of(0), of(1)) }
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
                        g / (1.0 + (-f64::from(gate.slope) * g).exp()) * (up + f64::from(gate.up_offset))
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
    let gpt_oss = Gate { slope: 1.702, limit: 1.5, up_offset: 1.0 };
    let cases = [
        (DType::E4m3, true, Gate::PLAIN, 3),
        (DType::Bf16, true, gpt_oss, 40),
        (DType::E4m3, true, gpt_oss, 40),
        (DType::Bf16, false, Gate::PLAIN, 3),
        (DType::E4m3, false, Gate::PLAIN, 21),
        (DType::U8, true, gpt_oss, 3),
        (DType::U8, true, Gate::PLAIN, 40),
        (DType::U8, false, Gate::PLAIN, 21),
    ];
    for (dtype, gated, gate, tokens) in cases {
        let topk = 3;
        let numbers = DType::Bf16.decode(&DType::Bf16.encode(&random::normals(5, tokens * OUTER)));
        let (ids, factors) = choices(tokens, topk);
        let both = if gated { 2 * INNER } else { INNER };
        let biases = [random::normals(9, EXPERTS * both), random::normals(10, EXPERTS * OUTER)];
        let biases = [&biases[0][..], &biases[1][..]];
        for device in &devices {
            // Both kinds of tensor core take powers of two.
            let weights = Weights::new(dtype, gated, ScaleFormat::PowerOfTwo, device);
            let found = forward(device, (&numbers, topk), (&ids, &factors), &weights, (biases, gate));
            let exact = weights.exact(&numbers, &ids, &factors, biases, gate);
            // Activations are quantized twice.
            let limit = if dtype == DType::Bf16 { 1e-5 } else { 2e-3 };
            let diff = calc_diff(&found, &exact);
            assert!(diff < limit, "{dtype} gated {gated} {gate:?} {tokens} tokens on {device}: {diff}");
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

/// Tokens that are quantized before give the bits of tokens that the call quantizes.
#[test]
fn quantized_tokens_give_the_same_bits() {
    let (tokens, topk) = (21, 3);
    let numbers = DType::Bf16.decode(&DType::Bf16.encode(&random::normals(5, tokens * OUTER)));
    let (list, chosen) = choices(tokens, topk);
    let zeros = [vec![0.0; EXPERTS * 2 * INNER], vec![0.0; EXPERTS * OUTER]];
    for name in ["cpu", "sim", "sim:sm_100a"] {
        let device: Device = name.parse().unwrap();
        let format = if name == "sim:sm_100a" { ScaleFormat::PowerOfTwo } else { ScaleFormat::F32 };
        let weights = Weights::new(DType::E4m3, true, format, &device);
        let plain = ([&zeros[0][..], &zeros[1][..]], Gate::PLAIN);
        let expected = forward(&device, (&numbers, topk), (&list, &chosen), &weights, plain);

        let cast = per_token_cast_to_fp8(&numbers, tokens, OUTER, format).unwrap();
        let x = Tensor::from_bytes(DType::E4m3, &cast.codes, &[tokens, OUTER], &device).unwrap();
        let scales = Tensor::from_slice(&cast.scales, &[tokens, OUTER / 128], &device).unwrap();
        let ids = Tensor::from_slice(&list, &[tokens, topk], &device).unwrap();
        let factors = Tensor::from_slice(&chosen, &[tokens, topk], &device).unwrap();
        let routing = MoeRouting { ids: &ids, weights: &factors };
        let bytes = moe_scratch_bytes([tokens, topk], [EXPERTS, INNER, OUTER], DType::E4m3);
        let mut scratch = Tensor::zeros(DType::U8, &[bytes], &device).unwrap();
        let mut out = Tensor::empty(DType::Bf16, &[tokens, OUTER], &device).unwrap();
        let experts = weights.experts([None, None], Gate::PLAIN);
        let options = GemmOptions::default();
        moe_forward_quantized((&x, &scales), &routing, &experts, &mut scratch, &mut out, &options).unwrap();
        assert_eq!(out.to_vec_f32().unwrap(), expected, "{name}");

        let mut refused = |x: &Tensor, scales: &Tensor, argument: &str| {
            let outcome =
                moe_forward_quantized((x, scales), &routing, &experts, &mut scratch, &mut out, &options);
            let error = outcome.unwrap_err();
            assert_eq!(error.argument(), Some(argument), "{error}");
        };
        refused(&x, &factors, "scales");
        refused(&x, &scales.transpose(0, 1).unwrap(), "scales");
        refused(&Tensor::zeros(DType::Bf16, &[tokens, OUTER], &device).unwrap(), &scales, "x");
    }
}

/// Tokens with four scales of 32 in a word: of Blackwell's tensor core, alone and in a group of one.
#[test]
fn packed_scales_of_tokens_are_of_32_columns() {
    let (tokens, topk) = (9, 2);
    // Blocks of 32 of very different sizes.
    let numbers: Vec<f32> = random::normals(5, tokens * OUTER)
        .iter()
        .enumerate()
        .map(|(i, x)| x * [1.0, 0.01, 8.0, 0.3][i / 32 % 4])
        .collect();
    let cast =
        cast_blocks_to_fp8(&numbers, tokens, OUTER, DType::E4m3, [1, 32], ScaleFormat::PowerOfTwo).unwrap();
    let words: Vec<i32> = cast
        .scales
        .chunks(4)
        .map(|four| i32::from_le_bytes([0, 1, 2, 3].map(|i| (four[i].to_bits() >> 23) as u8)))
        .collect();
    let (list, chosen) = choices(tokens, topk);
    for name in ["cpu", "sim:sm_100a", "sim"] {
        let device: Device = name.parse().unwrap();
        let weights = Weights::new(DType::U8, true, ScaleFormat::PowerOfTwo, &device);
        let x = Tensor::from_bytes(DType::E4m3, &cast.codes, &[tokens, OUTER], &device).unwrap();
        let scales = Tensor::from_slice(&words, &[tokens, OUTER / 128], &device).unwrap();
        let ids = Tensor::from_slice(&list, &[tokens, topk], &device).unwrap();
        let factors = Tensor::from_slice(&chosen, &[tokens, topk], &device).unwrap();
        let routing = MoeRouting { ids: &ids, weights: &factors };
        let bytes = moe_scratch_bytes([tokens, topk], [EXPERTS, INNER, OUTER], DType::U8);
        let mut scratch = Tensor::zeros(DType::U8, &[bytes], &device).unwrap();
        let mut out = Tensor::empty(DType::Bf16, &[tokens, OUTER], &device).unwrap();
        let experts = weights.experts([None, None], Gate::PLAIN);
        let options = GemmOptions::default();
        let outcome =
            moe_forward_quantized((&x, &scales), &routing, &experts, &mut scratch, &mut out, &options);
        let shape = MoeGroupShape {
            ranks: 1,
            tokens,
            topk,
            experts: EXPERTS,
            columns: OUTER,
            dtype: DType::E4m3,
            packed_scales: true,
        };
        if name == "sim" {
            assert_eq!(outcome.unwrap_err().argument(), Some("scales"));
            // SAFETY: no call follows.
            let refused = unsafe { MoeGroup::new(&device, &shape, 0, &[scratch.address()]) };
            assert_eq!(refused.unwrap_err().argument(), Some("packed_scales"));
            continue;
        }
        outcome.unwrap();
        let found = out.to_vec_f32().unwrap();
        let zeros = [vec![0.0; EXPERTS * 2 * INNER], vec![0.0; EXPERTS * OUTER]];
        let exact = weights.exact(&cast.dequantize(), &list, &chosen, [&zeros[0], &zeros[1]], Gate::PLAIN);
        let exact: Vec<f32> = exact.iter().map(|x| *x as f32).collect();
        assert!(calc_diff(&found, &exact) < 1e-3, "{name}");
        if name == "cpu" {
            continue;
        }

        let buffer = Tensor::zeros(DType::U8, &[shape.buffer_bytes().unwrap()], &device).unwrap();
        // SAFETY: the buffer lives as long as the group.
        let group = unsafe { MoeGroup::new(&device, &shape, 0, &[buffer.address()]).unwrap() };
        group.x().unwrap().copy_from(&x).unwrap();
        group.scales().unwrap().copy_from(&scales).unwrap();
        group.weights().unwrap().copy_from(&factors).unwrap();
        let wide: Vec<u8> = list.iter().flat_map(|id| i64::from(*id).to_le_bytes()).collect();
        let [_, _, start, _] = shape.offsets().unwrap();
        let mut own_ids = buffer.narrow(0, start, wide.len()).unwrap();
        own_ids.write_bytes(&wide).unwrap();
        let bytes = moe_group_scratch_bytes(&shape, INNER, None).unwrap();
        let mut scratch = Tensor::zeros(DType::U8, &[bytes], &device).unwrap();
        let call = MoeGroupCall { tokens, ..MoeGroupCall::default() };
        moe_forward_group(&group, &call, &experts, &mut scratch, &mut out, &options).unwrap();
        group.check().unwrap();
        assert_eq!(out.to_vec_f32().unwrap(), found);
        let half = Tensor::zeros(DType::Bf16, &[tokens, OUTER], &device).unwrap();
        let published = moe_publish(&group, &half, &routing, 1.0, &LaunchOptions::default());
        assert_eq!(published.unwrap_err().argument(), Some("group"));
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
