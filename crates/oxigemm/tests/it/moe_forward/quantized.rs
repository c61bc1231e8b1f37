//! Tokens that are quantized before the call.

use oxigemm::cast::{cast_blocks_to_fp8, per_token_cast_to_fp8};
use oxigemm::{
    LaunchOptions, MoeGroup, MoeGroupCall, MoeGroupShape, moe_forward_group, moe_forward_quantized,
    moe_group_scratch_bytes, moe_publish,
};

use super::*;

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
