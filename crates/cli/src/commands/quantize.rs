//! `oxigemm quantize`: one quantization, or what belongs to it, run, compared with the CPU's and timed.

use std::time::Instant;

use oxigemm::{DType, Device, Granularity, LaunchOptions};
use oxigemm_cuda::profile::REST;
use serde_json::json;

use crate::baseline::COPY_GB_PER_S;
use crate::cases::quantize::{Judgement, Numbers, QuantizeOp, QuantizeSpec, ScaleLayout};
use crate::found::expect_size;
use crate::output::{print_json, print_line};
use crate::timing::Clock;
use crate::{Common, Outcome};

/// Arguments of `quantize`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Rows of the codes.
    #[arg(long, short)]
    m: usize,
    /// Columns of the codes.
    #[arg(long, short)]
    k: usize,
    /// The operation.
    #[arg(long, value_enum, default_value_t)]
    op: QuantizeOp,
    /// The type of the values: bf16, f16 or f32.
    #[arg(long, default_value_t = DType::Bf16)]
    input: DType,
    /// The type of the codes: e4m3, e5m2 or, with 1x32, u8: two e2m1 in each, for an even `k`.
    #[arg(long, default_value_t = DType::E4m3)]
    code: DType,
    /// Scale granularity: 1x128, 1x32, 128x128, 128x1, row or tensor.
    #[arg(long, default_value_t)]
    granularity: Granularity,
    /// Scales are powers of two; packed ones always are.
    #[arg(long)]
    power_of_two: bool,
    /// Layout of the scales.
    #[arg(long, value_enum, default_value_t)]
    scales: ScaleLayout,
    /// Seed of the values.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Calls that are timed on a GPU; 0 for none.
    #[arg(long, default_value_t = 20)]
    runs: usize,
}

/// Runs the command.
pub fn run(common: &Common, args: &Args) -> Outcome {
    let spec = QuantizeSpec {
        op: args.op,
        m: args.m,
        k: args.k,
        input: args.input,
        code: if args.op.is_nvfp4() { DType::U8 } else { args.code },
        granularity: match args.op {
            QuantizeOp::ByScale => Granularity::PerTensor,
            _ => args.granularity,
        },
        power_of_two: args.power_of_two,
        scales: args.scales,
        gaps: [0, 0],
        numbers: Numbers::Drawn,
        each_row_once: true,
        page: 1,
        seed: args.seed,
    };
    // Values of SwiGLU are twice as many, and a matrix without columns has rows all the same.
    expect_size("-m and -k", &[2, spec.m.max(1), spec.k.max(1)])?;
    if spec.code == DType::U8 && !spec.k.is_multiple_of(2) {
        return Err(
            format!("-k: expected an even number, as two codes share a byte, found {}", spec.k).into()
        );
    }
    let device = common.device()?;
    let mut task = spec.on(&device)?;
    let started = Instant::now();
    task.run(&LaunchOptions::default())?;
    device.synchronize()?;
    let first_call_us = started.elapsed().as_secs_f64() * 1e6;
    let judgement = task.judge()?;
    let timed = match &device {
        Device::Cuda(cuda) if args.runs > 0 => {
            let mut clock = Clock::new(cuda, REST)?;
            Some((clock.launches(args.runs, |options| task.run(options))?, clock.method()))
        }
        _ => None,
    };
    let gb_per_s = timed.as_ref().map(|(us, _)| spec.bytes() / us * 1e-3);
    if common.json {
        print_json(&json!({
            "device": device.to_string(), "spec": spec, "bytes_moved": spec.bytes(),
            "first_call_us": first_call_us, "us": timed.as_ref().map(|(us, _)| us),
            "timed_by": timed.as_ref().map(|(_, method)| method), "gb_per_s": gb_per_s,
            "of_copy": gb_per_s.map(|speed| speed / COPY_GB_PER_S), "judgement": judgement,
        }));
        return Ok(judgement.right);
    }
    print_line(&format!("{spec} on {device}"));
    if let (Some((us, method)), Some(speed)) = (timed, gb_per_s) {
        print_line(&format!(
            "{us:.2} us, {speed:.0} GB/s, {:.2} of a copy's {COPY_GB_PER_S:.0}; timed by {method}",
            speed / COPY_GB_PER_S
        ));
    }
    let Judgement { bytes, differ, right } = judgement;
    let verdict = if right { "right" } else { "WRONG" };
    print_line(&format!("{verdict}: {differ} of {bytes} bytes differ from the CPU's"));
    Ok(right)
}
