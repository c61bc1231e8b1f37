//! The suite of quantization: how near to a copy's speed it comes.

use oxigemm::{Cuda, DType, Device, Granularity, LaunchOptions};
use serde::Serialize;
use serde_json::json;

use super::Args;
use crate::output::{Table, print_json, print_line, progress};
use crate::quantize::{COPY_GB_PER_S, Judgement, QuantizeOp, QuantizeSpec, ScaleRoom};
use crate::timing::Clock;
use crate::{Common, Failure, Outcome};

#[derive(Serialize)]
struct Row {
    name: String,
    spec: QuantizeSpec,
    bytes_moved: f64,
    us: f64,
    gb_per_s: f64,
    of_copy: f64,
    judgement: Judgement,
}

/// A small matrix, one of 64 MB of BF16 and a large one for every granularity; types, layouts and fused forms at 64 MB.
fn specs() -> Vec<QuantizeSpec> {
    const SMALL: [usize; 2] = [128, 7168];
    const MIDDLE: [usize; 2] = [4736, 7168];
    const LARGE: [usize; 2] = [16384, 7168];
    let plain = |[m, k]: [usize; 2], granularity| QuantizeSpec {
        op: QuantizeOp::Quantize,
        m,
        k,
        input: DType::Bf16,
        code: DType::E4m3,
        granularity,
        power_of_two: false,
        scales: ScaleRoom::Row,
        gaps: [0, 0],
        seed: 0,
    };
    let mut specs = Vec::new();
    for granularity in Granularity::ALL {
        for dims in [SMALL, MIDDLE, LARGE] {
            specs.push(plain(dims, granularity));
            specs.push(QuantizeSpec { op: QuantizeOp::Dequantize, ..plain(dims, granularity) });
        }
    }
    for dims in [SMALL, MIDDLE, LARGE] {
        let token = plain(dims, Granularity::PerToken);
        for scales in [ScaleRoom::Mn, ScaleRoom::Packed, ScaleRoom::Blocked] {
            specs.push(QuantizeSpec { scales, power_of_two: scales.is_packed(), ..token });
        }
        let blocked = ScaleRoom::Blocked;
        specs.push(QuantizeSpec {
            scales: blocked,
            power_of_two: true,
            ..plain(dims, Granularity::PerGroup32)
        });
        let fp4 = QuantizeSpec {
            code: DType::U8,
            scales: blocked,
            power_of_two: true,
            ..plain(dims, Granularity::PerGroup32)
        };
        specs.push(fp4);
        specs.push(QuantizeSpec { op: QuantizeOp::Dequantize, ..fp4 });
        specs.push(QuantizeSpec { op: QuantizeOp::Swiglu, scales: ScaleRoom::Mn, ..token });
        specs.push(QuantizeSpec { op: QuantizeOp::Gather, scales: ScaleRoom::Mn, ..token });
        specs.push(QuantizeSpec { op: QuantizeOp::Rmsnorm, scales: ScaleRoom::Mn, ..token });
        let scales_alone = QuantizeSpec { op: QuantizeOp::Transform, k: dims[1] / 128, ..token };
        for scales in [ScaleRoom::Mn, ScaleRoom::Packed] {
            specs.push(QuantizeSpec { scales, ..scales_alone });
        }
    }
    for granularity in Granularity::ALL {
        for input in [DType::F16, DType::F32] {
            specs.push(QuantizeSpec { input, ..plain(MIDDLE, granularity) });
        }
    }
    specs
}

/// Runs the suite.
pub fn run(common: &Common, cuda: &Cuda, args: &Args, clock: &mut Clock) -> Outcome {
    let device = Device::Cuda(cuda.clone());
    let wanted = |spec: &QuantizeSpec| {
        args.filter.as_ref().is_none_or(|text| spec.to_string().contains(text.as_str()))
    };
    let specs: Vec<QuantizeSpec> = specs().into_iter().filter(wanted).collect();
    if specs.is_empty() {
        return Err(format!("no case contains {:?}", args.filter.as_deref().unwrap_or_default()).into());
    }
    let bar = progress(specs.len());
    let rows = specs
        .into_iter()
        .map(|spec| {
            bar.set_message(spec.to_string());
            let row = measure(spec, &device, args, clock);
            bar.inc(1);
            row
        })
        .collect::<Result<Vec<Row>, Failure>>()?;
    bar.finish_and_clear();
    let right = rows.iter().all(|row| row.judgement.right);
    if common.json {
        print_json(&json!({
            "device": cuda.gpu().name(), "timed_by": clock.method(), "copy_gb_per_s": COPY_GB_PER_S, "cases": rows,
        }));
        return Ok(right);
    }
    let mut table = Table::new(["case", "MB", "us", "GB/s", "of a copy", "result"]);
    for row in &rows {
        let verdict = if row.judgement.right { "right" } else { "WRONG" };
        table.row([
            row.name.clone(),
            format!("{:.1}", row.bytes_moved * 1e-6),
            format!("{:.2}", row.us),
            format!("{:.0}", row.gb_per_s),
            format!("{:.3}", row.of_copy),
            verdict.to_owned(),
        ]);
    }
    table.print();
    print_line(&format!(
        "timed by {} on {}; a copy's {COPY_GB_PER_S:.0} GB/s read and written were measured on an H200",
        clock.method(),
        cuda.gpu().name()
    ));
    Ok(right)
}

fn measure(spec: QuantizeSpec, device: &Device, args: &Args, clock: &mut Clock) -> Result<Row, Failure> {
    let mut task = spec.on(device)?;
    task.run(&LaunchOptions::default())?;
    device.synchronize()?;
    let judgement = task.judge()?;
    let mut us = f64::INFINITY;
    for _ in 0..args.passes {
        us = us.min(clock.quantization(&mut task, args.runs as usize)?);
    }
    let (bytes_moved, name) = (spec.bytes(), spec.to_string());
    let gb_per_s = bytes_moved / us * 1e-3;
    Ok(Row { name, spec, bytes_moved, us, gb_per_s, of_copy: gb_per_s / COPY_GB_PER_S, judgement })
}
