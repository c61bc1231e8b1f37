//! A checkpoint in MXFP4 is written, read and run: a linear layer and the experts of a mixture.
//!
//! ```sh
//! cargo run --release --example quantized_layers           # a GPU, else the simulator
//! cargo run --release --example quantized_layers -- cpu
//! ```

use oxigemm::layers::checkpoint::{Checkpoint, CheckpointLayout, CheckpointWriter};
use oxigemm::layers::{LayerOptions, QuantizedExperts, QuantizedLinear, QuantizedWeight, Recipe};
use oxigemm::metrics::calc_diff;
use oxigemm::{DType, Device, GemmOptions, Tensor, random};

const TOKENS: usize = 8;
const HIDDEN: usize = 256;
const EXPERTS: usize = 4;
const INNER: usize = 128;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device: Device = std::env::args().nth(1).as_deref().unwrap_or("auto").parse()?;
    let file = write_checkpoint()?;
    let checkpoint = Checkpoint::read(&file)?;
    println!("{} bytes of safetensors: {}", file.len(), checkpoint.layers().join(", "));
    let options = LayerOptions::default();
    let x = random::normals(7, TOKENS * HIDDEN);
    let x = Tensor::from_f32(DType::Bf16, &x, &[TOKENS, HIDDEN], &device)?;

    let weight = checkpoint.weight("self_attn.o_proj")?;
    let bias = checkpoint.bias("self_attn.o_proj")?;
    let mut linear = QuantizedLinear::new(&weight, bias.as_deref(), &device, &options)?;
    let mut out = Tensor::empty(DType::Bf16, &[TOKENS, HIDDEN], &device)?;
    linear.forward(&x, &mut out, &GemmOptions::default())?;
    let found = linear.conversion();
    println!("o_proj on {device}: {} as {:?} with scales of {:?}", found.recipe, found.strategy, found.block);
    assert_eq!(found.changed, 0, "MXFP4 runs as FP8 without loss");

    let (values, weights, bias) = (x.to_vec_f32()?, weight.dequantize(), bias.expect("it was written"));
    let exact: Vec<f64> = (0..TOKENS * HIDDEN)
        .map(|at| {
            let (x, w) = (&values[at / HIDDEN * HIDDEN..], &weights[at % HIDDEN * HIDDEN..]);
            let product: f64 = (0..HIDDEN).map(|l| f64::from(x[l]) * f64::from(w[l])).sum();
            product + f64::from(bias[at % HIDDEN])
        })
        .collect();
    let difference = calc_diff(&out.to_vec_f32()?, &exact);
    println!("difference from the exact product: {difference:.1e}");
    assert!(difference < 1e-3);

    // The rows of gate and up are in turn in checkpoints of gpt-oss; the fused epilogue takes halves.
    let gate_up = checkpoint.weight("mlp.experts.gate_up_proj")?.deinterleave_gate_up()?;
    let down = checkpoint.weight("mlp.experts.down_proj")?;
    let mut experts = QuantizedExperts::new(&gate_up, &down, &device, &options)?;
    let ids: Vec<i32> = (0..2 * TOKENS as i32).map(|i| i * 3 % EXPERTS as i32).collect();
    let ids = Tensor::from_slice(&ids, &[TOKENS, 2], &device)?;
    let weights = Tensor::from_slice(&[0.5f32; 2 * TOKENS], &[TOKENS, 2], &device)?;
    experts.forward(&x, &ids, &weights, &mut out, &GemmOptions::default())?;
    assert!(out.to_vec_f32()?.iter().all(|x| x.is_finite()));
    let before = 2 * (gate_up.dims().iter().product::<usize>() + down.dims().iter().product::<usize>());
    println!("experts: {} bytes in BF16, {} on {device}", before, experts.bytes());
    Ok(())
}

/// A layer as ModelOpt stores it, and experts as gpt-oss does.
fn write_checkpoint() -> oxigemm::Result<Vec<u8>> {
    let quantized = |seed, dims: [usize; 3]| {
        let values: Vec<f32> =
            random::normals(seed, dims.iter().product()).iter().map(|x| x * 0.06).collect();
        QuantizedWeight::quantize(&values, dims, Recipe::Mxfp4)
    };
    let mut writer = CheckpointWriter::new();
    writer.add("self_attn.o_proj", &quantized(1, [1, HIDDEN, HIDDEN])?, CheckpointLayout::ModelOpt)?;
    writer.add_f32("self_attn.o_proj.bias", &random::normals(2, HIDDEN), &[HIDDEN])?;
    let gate_up = quantized(3, [EXPERTS, 2 * INNER, HIDDEN])?;
    writer.add("mlp.experts.gate_up_proj", &gate_up, CheckpointLayout::GptOss)?;
    let down = quantized(4, [EXPERTS, HIDDEN, INNER])?;
    writer.add("mlp.experts.down_proj", &down, CheckpointLayout::GptOss)?;
    writer.finish()
}
