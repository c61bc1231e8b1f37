//! Checkpoints: every layout is read back, its values are those of its formula in f64, and a malformed file is refused
//! with a sentence that names the tensor.

use oxigemm::layers::checkpoint::{Checkpoint, CheckpointLayout, CheckpointWriter};
use oxigemm::layers::{QuantizedWeight, Recipe, WeightScales};
use oxigemm::{DType, random};
use safetensors::tensor::{Dtype, TensorView, serialize};

const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

fn e2m1(code: u8) -> f64 {
    let magnitude = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

fn e4m3(code: u8) -> f64 {
    DType::E4m3.decode(&[code])[0].into()
}

fn bytes(seed: u64, count: usize) -> Vec<u8> {
    random::normals(seed, count).iter().map(|x| x.to_bits() as u8 & 0xf7).collect()
}

/// A file of tensors: names, types, dimensions and bytes.
fn file(tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) -> Vec<u8> {
    let views = tensors
        .iter()
        .map(|(name, dtype, dims, bytes)| (*name, TensorView::new(*dtype, dims.to_vec(), bytes).unwrap()));
    serialize(views, None).unwrap()
}

/// Every value of a layer against a formula.
fn expect(file: &[u8], layer: &str, recipe: Recipe, dims: [usize; 3], formula: impl Fn([usize; 3]) -> f64) {
    let checkpoint = Checkpoint::read(file).unwrap();
    assert_eq!(checkpoint.layers(), [layer]);
    let weight = checkpoint.weight(layer).unwrap();
    assert_eq!((weight.recipe(), weight.dims()), (recipe, dims));
    let rounded = weight.dequantize();
    let [groups, n, k] = dims;
    assert_eq!(rounded.len(), groups * n * k);
    for (at, rounded) in rounded.into_iter().enumerate() {
        let index = [at / (n * k), at / k % n, at % k];
        let (found, exact) = (weight.value(index), formula(index));
        assert!(found == exact || (found.is_nan() && exact.is_nan()), "{index:?}: {found} for {exact}");
        assert!(rounded == exact as f32 || exact.is_nan(), "{index:?}");
    }
}

#[test]
fn fp8_in_blocks_as_deepseek_has_it() {
    let (n, k) = (200, 256);
    let (codes, scales) = (bytes(1, n * k), random::normals(2, 4));
    for (dtype, encoded) in
        [(Dtype::F32, DType::F32.encode(&scales)), (Dtype::BF16, DType::Bf16.encode(&scales))]
    {
        let own = if dtype == Dtype::F32 { &DType::F32 } else { &DType::Bf16 }.decode(&encoded);
        let file = file(&[
            ("q.weight", Dtype::F8_E4M3, &[n, k], codes.clone()),
            ("q.weight_scale_inv", dtype, &[2, 2], encoded),
        ]);
        expect(&file, "q", Recipe::Fp8, [1, n, k], |[_, i, j]| {
            e4m3(codes[i * k + j]) * f64::from(own[i / 128 * 2 + j / 128])
        });
    }
}

#[test]
fn fp8_by_channel_by_tensor_and_by_group() {
    let (n, k) = (48, 256);
    let codes = bytes(3, n * k);
    type Place<'a> = &'a dyn Fn(usize, usize) -> usize;
    let cases: [(&[usize], Place<'_>); 6] = [
        (&[n, 1], &|i, _| i),
        (&[n], &|i, _| i),
        (&[n, 2], &|i, j| i * 2 + j / 128),
        (&[], &|_, _| 0),
        (&[1], &|_, _| 0),
        (&[1, 1], &|_, _| 0),
    ];
    for (dims, place) in cases {
        let scales = random::normals(4, dims.iter().product());
        let file = file(&[
            ("o.weight", Dtype::F8_E4M3, &[n, k], codes.clone()),
            ("o.weight_scale", Dtype::F32, dims, DType::F32.encode(&scales)),
        ]);
        expect(&file, "o", Recipe::Fp8, [1, n, k], |[_, i, j]| {
            e4m3(codes[i * k + j]) * f64::from(scales[place(i, j)])
        });
    }
}

#[test]
fn mxfp8() {
    let (n, k) = (40, 96);
    let codes = bytes(5, n * k);
    for (dtype, down) in [(Dtype::U8, 1), (Dtype::F8_E8M0, 1), (Dtype::U8, 32)] {
        let dims = [n.div_ceil(down), 3];
        let scales: Vec<u8> = (0..dims[0] * 3).map(|i| (i * 53 % 256) as u8).collect();
        let file = file(&[
            ("w.weight", Dtype::F8_E4M3, &[n, k], codes.clone()),
            ("w.weight_scale", dtype, &dims, scales.clone()),
        ]);
        expect(&file, "w", Recipe::Mxfp8, [1, n, k], |[_, i, j]| {
            let scale = scales[i / down * 3 + j / 32];
            let scale = if scale == 255 { f64::NAN } else { 2f64.powi(i32::from(scale) - 127) };
            e4m3(codes[i * k + j]) * scale
        });
    }
}

#[test]
fn mxfp4_in_its_three_layouts() {
    let (experts, n, k) = (3, 6, 64);
    let codes = bytes(6, experts * n * k / 2);
    let scales: Vec<u8> = (0..experts * n * 2).map(|i| (100 + i) as u8).collect();
    let formula = |[e, i, j]: [usize; 3]| {
        let at = (e * n + i) * k + j;
        e2m1(codes[at / 2] >> (at % 2 * 4)) * 2f64.powi(i32::from(scales[(e * n + i) * 2 + j / 32]) - 127)
    };
    let (packed, across) = ([experts, n, k / 2], [experts, n, 2]);
    for (name, scale_name, layer, dims) in [
        ("mlp.gate_up_proj_blocks", "mlp.gate_up_proj_scales", "mlp.gate_up_proj", &[experts, n, 2, 16][..]),
        ("m.weight", "m.weight_scale", "m", &packed),
        ("m.weight_packed", "m.weight_scale", "m", &packed),
    ] {
        let file =
            file(&[(name, Dtype::U8, dims, codes.clone()), (scale_name, Dtype::U8, &across, scales.clone())]);
        expect(&file, layer, Recipe::Mxfp4, [experts, n, k], formula);
        // Rows of gate and up in turn: gates first, then ups, of each expert.
        let halves = Checkpoint::read(&file).unwrap().weight(layer).unwrap().deinterleave_gate_up().unwrap();
        for (e, i, j) in (0..experts * n * k).map(|at| (at / (n * k), at / k % n, at % k)) {
            let from = if i < n / 2 { 2 * i } else { 2 * (i - n / 2) + 1 };
            assert_eq!(halves.value([e, i, j]), formula([e, from, j]));
        }
    }
}

#[test]
fn nvfp4_by_a_factor_and_by_a_divisor() {
    let (n, k, all) = (5, 48, 3.7e-3f32);
    let (codes, scales) = (bytes(7, n * k / 2), bytes(8, n * 3));
    for (codes_name, scale_name, value, factor) in [
        ("g.weight", "g.weight_scale_2", all, all),
        ("g.weight_packed", "g.weight_global_scale", all, 1.0 / all),
    ] {
        let dims: [&[usize]; 2] = [&[], &[1]];
        for dims in dims {
            let file = file(&[
                (codes_name, Dtype::U8, &[n, k / 2], codes.clone()),
                ("g.weight_scale", Dtype::F8_E4M3, &[n, 3], scales.clone()),
                (scale_name, Dtype::F32, dims, value.to_le_bytes().to_vec()),
            ]);
            expect(&file, "g", Recipe::Nvfp4, [1, n, k], |[_, i, j]| {
                let at = i * k + j;
                e2m1(codes[at / 2] >> (at % 2 * 4)) * e4m3(scales[i * 3 + j / 16]) * f64::from(factor)
            });
        }
    }
}

#[test]
fn what_is_written_is_read() {
    use CheckpointLayout::{CompressedTensors, DeepSeek, GptOss, ModelOpt};
    let layouts = [
        (Recipe::Fp8, &[DeepSeek, ModelOpt, CompressedTensors][..]),
        (Recipe::Mxfp8, &[ModelOpt, CompressedTensors]),
        (Recipe::Mxfp4, &[GptOss, ModelOpt, CompressedTensors]),
        (Recipe::Nvfp4, &[ModelOpt, CompressedTensors]),
    ];
    for groups in [1, 3] {
        let dims @ [_, n, k] = [groups, 136, 160];
        let values: Vec<f32> = random::normals(9, groups * n * k).iter().map(|x| x * 0.02).collect();
        for (recipe, layouts) in layouts {
            let weight = QuantizedWeight::quantize(&values, dims, recipe).unwrap();
            for layout in [DeepSeek, ModelOpt, CompressedTensors, GptOss] {
                let mut writer = CheckpointWriter::new();
                if !layouts.contains(&layout) {
                    let error = writer.add("layer", &weight, layout).unwrap_err().to_string();
                    assert!(error.starts_with("`layer` of the checkpoint is wrong: expected "), "{error}");
                    continue;
                }
                writer.add("layer", &weight, layout).unwrap();
                writer.add_f32("layer.bias", &[1.5; 4], &[4]).unwrap();
                let error = writer.add_f32("layer.bias", &[1.5; 4], &[4]).unwrap_err().to_string();
                assert!(error.contains("a name of its own"), "{error}");
                let file = writer.finish().unwrap();
                let checkpoint = Checkpoint::read(&file).unwrap();
                let read = checkpoint.weight("layer").unwrap();
                assert_eq!((read.codes(), read.dims()), (weight.codes(), dims), "{recipe} {layout:?}");
                match (read.scales(), weight.scales()) {
                    (WeightScales::Nvfp4 { tensor, .. }, WeightScales::Nvfp4 { tensor: written, .. }) => {
                        for (read, written) in tensor.iter().zip(written) {
                            assert!((read / written - 1.0).abs() < 3e-7, "a reciprocal of a reciprocal");
                        }
                    }
                    (read, written) => assert_eq!(read, written, "{recipe} {layout:?}"),
                }
                assert_eq!(checkpoint.bias("layer").unwrap(), Some(vec![1.5; 4]));
                assert_eq!(checkpoint.bias("another").unwrap(), None);
            }
        }
    }
}

#[test]
fn malformed_files_are_refused_by_the_name_of_the_tensor() {
    const N: usize = 4;
    const K: usize = 64;
    let (fp8, fp4) = (vec![0u8; N * K], vec![0u8; N * K / 2]);
    type Tensors<'a> = Vec<(&'a str, Dtype, &'a [usize], Vec<u8>)>;
    let float = |count: usize| vec![0u8; 4 * count];
    let cases: Vec<(Tensors<'_>, &str)> = vec![
        (
            vec![("x.weight_scale", Dtype::F32, &[1], float(1))],
            "`x.weight` of the checkpoint is wrong: expected the codes of a quantized layer, found no such tensor",
        ),
        (
            vec![("x.weight", Dtype::F8_E4M3, &[N, K], fp8.clone())],
            "`x.weight_scale` of the checkpoint is wrong: expected the scales of FP8 codes, found no such tensor",
        ),
        (
            vec![("x.weight", Dtype::F32, &[N, K], float(N * K))],
            "`x.weight` of the checkpoint is wrong: expected F8_E4M3 codes, or U8 with two of FP4 each, found F32 [4, 64]",
        ),
        (
            vec![
                ("x.weight", Dtype::F8_E4M3, &[N, K], fp8.clone()),
                ("x.weight_scale_inv", Dtype::F32, &[2, 2], float(4)),
            ],
            "`x.weight_scale_inv` of the checkpoint is wrong: expected [1, 1] or [4, 1] or [4, 1] or [1, 1] for [1, 4, 64] codes, found F32 [2, 2]",
        ),
        (
            vec![
                ("x.weight", Dtype::F8_E4M3, &[N, K], fp8.clone()),
                ("x.weight_scale", Dtype::I32, &[1], float(1)),
            ],
            "`x.weight_scale` of the checkpoint is wrong: expected F32, BF16 or F16, found I32 [1]",
        ),
        (
            vec![
                ("x.weight", Dtype::U8, &[N, K / 2], fp4.clone()),
                ("x.weight_scale", Dtype::U8, &[N, 4], vec![0; 16]),
            ],
            "`x.weight_scale` of the checkpoint is wrong: expected F8_E4M3 [4, 4] of NVFP4 or U8 [4, 2] of MXFP4, found U8 [4, 4]",
        ),
        (
            vec![
                ("x.weight", Dtype::U8, &[N, K / 2], fp4.clone()),
                ("x.weight_scale", Dtype::F8_E4M3, &[N, 4], vec![0; 16]),
            ],
            "`x.weight_scale_2` of the checkpoint is wrong: expected the scale of all of NVFP4 weights, or a `weight_global_scale`, found no such tensor",
        ),
        (
            vec![("x_blocks", Dtype::U8, &[N, 2, 16], fp4.clone())],
            "`x_scales` of the checkpoint is wrong: expected the scales of its blocks, found no such tensor",
        ),
        (
            vec![
                ("x_blocks", Dtype::U8, &[N, 2, 16], fp4.clone()),
                ("x_scales", Dtype::U8, &[N, 1], vec![0; N]),
            ],
            "`x_scales` of the checkpoint is wrong: expected U8 [4, 2], found U8 [4, 1]",
        ),
        (
            vec![
                ("x_blocks", Dtype::U8, &[N, 4, 8], fp4.clone()),
                ("x_scales", Dtype::U8, &[N, 4], vec![0; 16]),
            ],
            "`x_blocks` of the checkpoint is wrong: expected U8 [.., N, K/32, 16], found U8 [4, 4, 8]",
        ),
    ];
    for (tensors, sentence) in cases {
        let file = file(&tensors);
        let error = Checkpoint::read(&file).unwrap().weight("x").unwrap_err();
        assert_eq!(error.to_string(), sentence);
    }
    let error = Checkpoint::read(&[1, 2, 3]).unwrap_err().to_string();
    assert!(
        error.starts_with("`file` of the checkpoint is wrong: expected a safetensors file, found 3 bytes"),
        "{error}"
    );
}
