//! The suite of quantization: how near to a copy's speed it comes.

use oxigemm::{DType, Device, Granularity, LaunchOptions};
use oxigemm_testkit::Failure;
use serde::Serialize;
use serde_json::json;

use super::Bench;
use crate::Outcome;
use crate::baseline::COPY_GB_PER_S;
use crate::cases::quantize::{Judgement, Numbers, QuantizeOp, QuantizeSpec, ScaleLayout};
use crate::output::{LiveTable, print_json, print_line, progress};

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

/// A matrix as small as a batch of decoding, one of 64 MB of BF16, and a large one.
const SMALL: [usize; 2] = [128, 7168];
const MIDDLE: [usize; 2] = [4736, 7168];
const LARGE: [usize; 2] = [16384, 7168];
/// Bytes of the copy that others are compared with.
const COPY_BYTES: usize = 1 << 30;

fn plain([m, k]: [usize; 2], granularity: Granularity) -> QuantizeSpec {
    QuantizeSpec {
        op: QuantizeOp::Quantize,
        m,
        k,
        input: DType::Bf16,
        code: DType::E4m3,
        granularity,
        power_of_two: false,
        scales: ScaleLayout::Row,
        gaps: [0, 0],
        numbers: Numbers::Drawn,
        each_row_once: true,
        page: 1,
        seed: 0,
    }
}

/// As exponents, in the blocks that tensor memory wants.
fn blocked(spec: QuantizeSpec) -> QuantizeSpec {
    QuantizeSpec { scales: ScaleLayout::Blocked, power_of_two: true, ..spec }
}

fn mxfp4(dims: [usize; 2]) -> QuantizeSpec {
    QuantizeSpec { code: DType::U8, ..blocked(plain(dims, Granularity::PerGroup32)) }
}

fn nvfp4(dims: [usize; 2], op: QuantizeOp) -> QuantizeSpec {
    let scales = ScaleLayout::Blocked;
    QuantizeSpec { op, code: DType::U8, scales, ..plain(dims, Granularity::PerToken) }
}

fn inverse(spec: QuantizeSpec) -> QuantizeSpec {
    QuantizeSpec { op: QuantizeOp::Dequantize, ..spec }
}

/// Operations fused with quantization, with the scales that GEMMs read.
fn fused(dims: [usize; 2]) -> [QuantizeSpec; 3] {
    [QuantizeOp::Swiglu, QuantizeOp::Rmsnorm, QuantizeOp::Gather].map(|op| QuantizeSpec {
        op,
        scales: ScaleLayout::Mn,
        ..plain(dims, Granularity::PerToken)
    })
}

fn by_scale(dims: [usize; 2]) -> QuantizeSpec {
    QuantizeSpec { op: QuantizeOp::ByScale, ..plain(dims, Granularity::PerTensor) }
}

/// Every granularity and format of BF16 at 64 MB, other types once, and the small matrix.
fn usual() -> Vec<QuantizeSpec> {
    let of_each = |dims| Granularity::ALL.map(|granularity| plain(dims, granularity));
    let mut specs = of_each(SMALL).to_vec();
    specs.push(QuantizeSpec { scales: ScaleLayout::Mn, ..plain(SMALL, Granularity::PerToken) });
    specs.extend([by_scale(SMALL), inverse(plain(SMALL, Granularity::PerToken))]);
    specs.extend(fused(SMALL));
    specs.extend(of_each(MIDDLE));
    specs.push(by_scale(MIDDLE));
    specs.extend(of_each(MIDDLE).map(|spec| QuantizeSpec { code: DType::E5m2, ..spec }));
    specs.extend(of_each(MIDDLE).map(inverse));
    let token = plain(MIDDLE, Granularity::PerToken);
    specs.push(QuantizeSpec { scales: ScaleLayout::Mn, ..token });
    specs.push(QuantizeSpec { scales: ScaleLayout::Packed, power_of_two: true, ..token });
    let mxfp8 = blocked(plain(MIDDLE, Granularity::PerGroup32));
    specs.extend([mxfp8, inverse(mxfp8), mxfp4(MIDDLE), inverse(mxfp4(MIDDLE))]);
    let of_nvfp4 = [QuantizeOp::Nvfp4, QuantizeOp::Nvfp4Computed, QuantizeOp::Nvfp4Dequantize];
    specs.extend(of_nvfp4.map(|op| nvfp4(MIDDLE, op)));
    let both = [Granularity::PerToken, Granularity::PerBlock].map(|granularity| plain(MIDDLE, granularity));
    specs.extend(both.map(|spec| QuantizeSpec { op: QuantizeOp::Both, ..spec }));
    specs.extend([DType::F16, DType::F32].map(|input| QuantizeSpec { input, ..token }));
    specs.extend(fused(MIDDLE));
    specs
}

/// What the usual ones leave out: the large matrix, other types of every granularity, layouts of scales alone.
fn unusual() -> Vec<QuantizeSpec> {
    let mut specs = Vec::new();
    for granularity in Granularity::ALL {
        specs.extend([plain(LARGE, granularity), inverse(plain(LARGE, granularity))]);
        specs.extend(
            [DType::F16, DType::F32].map(|input| QuantizeSpec { input, ..plain(MIDDLE, granularity) }),
        );
    }
    specs.extend([mxfp4(LARGE), inverse(mxfp4(LARGE)), mxfp4(SMALL)]);
    specs.extend(fused(LARGE));
    for [m, k] in [SMALL, MIDDLE, LARGE] {
        let scales_alone =
            QuantizeSpec { op: QuantizeOp::Transform, ..plain([m, k / 128], Granularity::PerToken) };
        specs.extend(
            [ScaleLayout::Mn, ScaleLayout::Packed].map(|scales| QuantizeSpec { scales, ..scales_alone }),
        );
    }
    specs
}

/// Runs the suite.
pub fn run(bench: &mut Bench) -> Outcome {
    let (common, cuda, args) = (bench.common, bench.cuda, bench.args);
    let device = Device::Cuda(cuda.clone());
    let mut specs = usual();
    if args.all {
        specs.extend(unusual());
    }
    specs.retain(|spec| bench.wants(&spec.to_string()));
    if specs.is_empty() {
        return Err(bench.no_case());
    }
    let copy = bench.clock.copy_gb_per_s(COPY_BYTES, args.runs as usize)?;
    let bar = progress(specs.len());
    let longest_name = specs.iter().map(|spec| spec.to_string().len()).max().unwrap_or(0);
    let table = (!common.json).then(|| LiveTable::new(COLUMNS, longest_name));
    let mut rows = Vec::new();
    for spec in specs {
        bar.set_message(spec.to_string());
        let row = measure(spec, &device, bench, copy)?;
        if let Some(table) = &table {
            table.row(&bar, row.cells());
        }
        bar.inc(1);
        rows.push(row);
    }
    bar.finish_and_clear();
    let right = rows.iter().all(|row| row.judgement.right);
    if common.json {
        print_json(&json!({
            "device": cuda.gpu().name(), "timed_by": bench.clock.method(), "copy_gb_per_s": copy,
            "anchor_copy_gb_per_s": COPY_GB_PER_S, "cases": rows,
        }));
    } else {
        print_line(&format!(
            "timed by {} on {}; a copy reads and writes {copy:.0} GB/s here, {COPY_GB_PER_S:.0} beside the anchor",
            bench.clock.method(),
            cuda.gpu().name()
        ));
    }
    Ok(right)
}

const COLUMNS: [&str; 6] = ["case", "MB", "us", "GB/s", "of a copy", "result"];

impl Row {
    fn cells(&self) -> [String; COLUMNS.len()] {
        [
            self.name.clone(),
            format!("{:.1}", self.bytes_moved * 1e-6),
            format!("{:.2}", self.us),
            format!("{:.0}", self.gb_per_s),
            format!("{:.3}", self.of_copy),
            if self.judgement.right { "right" } else { "WRONG" }.to_owned(),
        ]
    }
}

fn measure(spec: QuantizeSpec, device: &Device, bench: &mut Bench, copy: f64) -> Result<Row, Failure> {
    let mut task = spec.on(device)?;
    task.run(&LaunchOptions::default())?;
    device.synchronize()?;
    let judgement = task.judge()?;
    let mut us = f64::INFINITY;
    for _ in 0..bench.args.passes {
        let runs = bench.args.runs as usize;
        us = us.min(bench.clock.launches(runs, |options| task.run(options))?);
    }
    let (bytes_moved, name) = (spec.bytes(), spec.to_string());
    let gb_per_s = bytes_moved / us * 1e-3;
    Ok(Row { name, spec, bytes_moved, us, gb_per_s, of_copy: gb_per_s / copy, judgement })
}
