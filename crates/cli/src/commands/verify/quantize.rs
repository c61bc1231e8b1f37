//! Checks of quantization, its inverse and scale layouts: every byte as the CPU has it.

use oxigemm::cast::ScaleFormat;
use oxigemm::{DType, Device, Granularity, LaunchOptions, Tensor, dequantize, quantize, transform_scales};

use oxigemm_testkit::memory::PAGE;

use super::random::Draw;
use super::{Check, Setup, ensure};
use crate::Failure;
use crate::cases::quantize::{Numbers, QuantizeOp, QuantizeSpec, ScaleLayout};
use crate::counting::allocations;

const OPS: [QuantizeOp; 11] = [
    QuantizeOp::Quantize,
    QuantizeOp::ByScale,
    QuantizeOp::Dequantize,
    QuantizeOp::Transform,
    QuantizeOp::Gather,
    QuantizeOp::Rmsnorm,
    QuantizeOp::Nvfp4,
    QuantizeOp::Nvfp4Computed,
    QuantizeOp::Nvfp4Dequantize,
    QuantizeOp::Both,
    QuantizeOp::Swiglu,
];
/// Sizes on both sides of where something changes: chunks, groups, tiles, what a block holds of a row.
const ROWS: [usize; 14] = [1, 2, 3, 7, 8, 9, 31, 33, 64, 127, 128, 129, 257, 600];
const COLUMNS: [usize; 16] = [1, 7, 8, 31, 32, 33, 127, 128, 129, 136, 256, 512, 1000, 1024, 2056, 9000];

pub fn checks(_: &Setup) -> Vec<Check> {
    let mut checks = Vec::new();
    for op in OPS {
        let name = format!("quantize: {op:?} with random shapes, types and layouts").to_lowercase();
        checks.push(Check::anywhere(&name, move |setup| random_cases(setup, op)));
    }
    checks.push(Check::anywhere("quantize: large matrices", large));
    checks.push(Check::anywhere("quantize: matrices at the end of their memory", at_the_end));
    checks.push(Check::anywhere("quantize: zeros and what is not finite", not_finite));
    checks.push(Check::anywhere("quantize: repeats give the same bits", repeats));
    checks.push(Check::anywhere("quantize: bad arguments", bad_arguments));
    checks.push(Check::with_kernels("quantize: a graph reads what is there when it is launched", replayed));
    checks.push(Check::with_kernels("quantize: matrices in several streams at a time", side_by_side));
    checks.push(Check::on_gpu("quantize: a second call allocates nothing", no_allocations));
    checks
}

/// Comparisons with the simulator.
pub fn comparisons(_: &Setup) -> Vec<Check> {
    vec![Check::on_gpu("quantize: the simulator gives the same bits", simulated)]
}

/// Whether it has only one granularity, and one type of codes.
fn is_fused(op: QuantizeOp) -> bool {
    matches!(op, QuantizeOp::Swiglu | QuantizeOp::Gather | QuantizeOp::Rmsnorm) || op.is_nvfp4()
}

fn draw_spec(draw: &mut Draw, op: QuantizeOp, largest: usize) -> QuantizeSpec {
    let (mut m, mut k) = (draw.of(&ROWS), draw.of(&COLUMNS));
    if op.is_nvfp4() {
        k = k.next_multiple_of(2);
    }
    while m > 1 && m * k > largest {
        m = m.div_ceil(2);
    }
    let fused = is_fused(op);
    let granularity = match op {
        _ if fused => Granularity::PerToken,
        QuantizeOp::Both => draw.of(&[Granularity::PerToken, Granularity::PerBlock]),
        QuantizeOp::ByScale => Granularity::PerTensor,
        _ => draw.of(&Granularity::ALL),
    };
    let groups = matches!(granularity, Granularity::PerToken | Granularity::PerGroup32);
    let layouts =
        if groups || op == QuantizeOp::Transform { &ScaleLayout::ALL[..] } else { &ScaleLayout::ALL[..2] };
    // A power of two just above or below its limit would differ by all of a step.
    let plain = matches!(op, QuantizeOp::Swiglu | QuantizeOp::Both);
    let layouts = if plain { &ScaleLayout::ALL[..2] } else { layouts };
    let codes: &[DType] = match granularity {
        _ if op.is_nvfp4() => &[DType::U8],
        _ if fused => &[DType::E4m3],
        Granularity::PerGroup32 if k % 2 == 0 => &[DType::E4m3, DType::E5m2, DType::U8],
        _ => &[DType::E4m3, DType::E5m2],
    };
    QuantizeSpec {
        op,
        m,
        k,
        input: draw.of(&[DType::Bf16, DType::F16, DType::F32]),
        code: draw.of(codes),
        granularity,
        power_of_two: op != QuantizeOp::Swiglu && draw.below(2) == 0,
        scales: draw.of(layouts),
        gaps: draw.of(&[[0, 0], [0, 0], [8, 16], [0, 8], [1, 0], [3, 2]]),
        numbers: Numbers::Drawn,
        each_row_once: false,
        page: 1,
        seed: draw.below(1 << 20) as u64,
    }
}

/// Runs a spec, and compares all that was written, and what lies around it, with the CPU's.
fn check(setup: &Setup, spec: &QuantizeSpec) -> Result<usize, Failure> {
    setup.now(spec.to_string());
    let mut task = spec.on(&setup.device)?;
    task.run(&LaunchOptions::default()).map_err(|error| format!("{spec}: {error}"))?;
    setup.device.synchronize().map_err(|error| format!("{spec}: {error}"))?;
    let judgement = task.judge()?;
    ensure(judgement.right, || format!("{spec}: {} of {} bytes differ", judgement.differ, judgement.bytes))?;
    Ok(judgement.bytes)
}

fn tally(bytes: impl Iterator<Item = Result<usize, Failure>>) -> Result<String, Failure> {
    let bytes = bytes.collect::<Result<Vec<usize>, _>>()?;
    Ok(format!("{} calls, {} bytes as on the CPU", bytes.len(), bytes.iter().sum::<usize>()))
}

fn random_cases(setup: &Setup, op: QuantizeOp) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 71 + op as u64);
    let largest = if setup.device.as_sim().is_some() { 20_000 } else { 2_000_000 };
    tally((0..setup.count(120)).map(|_| check(setup, &draw_spec(&mut draw, op, largest))))
}

/// As many blocks as the GPU runs, and more.
fn large(setup: &Setup) -> Result<String, Failure> {
    let dims = if setup.device.as_cuda().is_some() { [4111, 7168] } else { [70, 520] };
    let specs = Granularity::ALL.into_iter().flat_map(|granularity| {
        [QuantizeOp::Quantize, QuantizeOp::Dequantize].map(|op| QuantizeSpec {
            op,
            m: dims[0],
            k: dims[1],
            input: DType::Bf16,
            code: DType::E4m3,
            granularity,
            power_of_two: false,
            scales: ScaleLayout::Mn,
            gaps: [0, 0],
            numbers: Numbers::Drawn,
            each_row_once: false,
            page: 1,
            seed: 9,
        })
    });
    tally(specs.map(|spec| check(setup, &spec)))
}

/// Every operand ends where its pages end, so that what is read or written behind it is no memory.
fn at_the_end(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 84);
    // The simulator knows where memory ends to the byte.
    let page = if setup.device.as_cuda().is_some() { PAGE } else { 4096 };
    let specs = (0..setup.count(6)).flat_map(|_| OPS).map(|op| {
        let spec = draw_spec(&mut draw, op, 20_000);
        QuantizeSpec { gaps: [spec.gaps[0], 0], page, ..spec }
    });
    tally(specs.map(|spec| check(setup, &spec)))
}

fn not_finite(setup: &Setup) -> Result<String, Failure> {
    let specials = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN, f32::MAX, f32::MIN, 1e-40, -0.0];
    let numbers: Vec<Numbers> = specials.map(Numbers::With).into_iter().chain([Numbers::Zeros]).collect();
    let inputs = [DType::Bf16, DType::F16, DType::F32];
    let kinds = OPS.into_iter().flat_map(kinds);
    let specs = kinds.enumerate().flat_map(|(kind, spec)| {
        let input = move |i: usize| inputs[(kind + i) % inputs.len()];
        (0..).zip(&numbers).map(move |(i, numbers)| QuantizeSpec {
            numbers: *numbers,
            each_row_once: false,
            input: input(i),
            ..spec
        })
    });
    // Steps that have no divisor in common with how many numbers there are.
    let step = match (setup.quick, setup.device.as_cuda()) {
        (true, None) => 31,
        (true, Some(_)) => 7,
        (false, None) => 4,
        (false, Some(_)) => 1,
    };
    tally(specs.step_by(step).map(|spec| check(setup, &spec)))
}

/// Every granularity, type of codes, format and layout of scales that an operation has.
fn kinds(op: QuantizeOp) -> Vec<QuantizeSpec> {
    let granularities = match op {
        QuantizeOp::Quantize | QuantizeOp::Dequantize => &Granularity::ALL[..],
        QuantizeOp::Both => &[Granularity::PerToken, Granularity::PerBlock],
        QuantizeOp::ByScale => &[Granularity::PerTensor],
        _ => &[Granularity::PerToken],
    };
    let mut kinds = Vec::new();
    for &granularity in granularities {
        let codes: &[DType] = match granularity {
            _ if op.is_nvfp4() => &[DType::U8],
            _ if is_fused(op) || op == QuantizeOp::Transform => &[DType::E4m3],
            Granularity::PerGroup32 => &[DType::E4m3, DType::E5m2, DType::U8],
            _ => &[DType::E4m3, DType::E5m2],
        };
        let layouts = match granularity {
            // One scale has no layout, and those of SwiGLU and of a transpose are f32, as is said in `draw_spec`.
            Granularity::PerTensor => &ScaleLayout::ALL[..1],
            _ if matches!(op, QuantizeOp::Swiglu | QuantizeOp::Both) => &ScaleLayout::ALL[..2],
            Granularity::PerToken | Granularity::PerGroup32 => &ScaleLayout::ALL[..],
            _ => &ScaleLayout::ALL[..2],
        };
        for &code in codes {
            for &scales in layouts {
                let both = matches!(
                    op,
                    QuantizeOp::Quantize | QuantizeOp::Both | QuantizeOp::Gather | QuantizeOp::Rmsnorm
                );
                let formats = if both && !scales.is_packed() { &[false, true][..] } else { &[false] };
                kinds.extend(formats.iter().map(|&power_of_two| QuantizeSpec {
                    op,
                    m: 33,
                    k: 264,
                    input: DType::Bf16,
                    code,
                    granularity,
                    power_of_two,
                    scales,
                    gaps: [0, 0],
                    numbers: Numbers::Drawn,
                    each_row_once: false,
                    page: 1,
                    seed: 5,
                }));
            }
        }
    }
    kinds
}

fn repeats(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 81);
    let largest = if setup.device.as_sim().is_some() { 4_000 } else { 2_000_000 };
    for op in OPS {
        for granularity in Granularity::ALL {
            let alone = match op {
                QuantizeOp::ByScale => granularity != Granularity::PerTensor,
                _ => is_fused(op) && granularity != Granularity::PerToken,
            };
            let both = matches!(granularity, Granularity::PerToken | Granularity::PerBlock);
            if alone || (op == QuantizeOp::Both && !both) {
                continue;
            }
            let spec = draw_spec(&mut draw, op, largest);
            let code = if op.is_nvfp4() { DType::U8 } else { DType::E4m3 };
            let spec = QuantizeSpec { granularity, scales: ScaleLayout::Mn, code, ..spec };
            let mut task = spec.on(&setup.device)?;
            setup.same_bits_again(&spec, || {
                task.run(&LaunchOptions::default())?;
                task.bytes()
            })?;
        }
    }
    Ok("no bit differs".to_owned())
}

fn bad_arguments(setup: &Setup) -> Result<String, Failure> {
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &setup.device);
    let x = new(DType::Bf16, &[8, 256])?;
    let (mut codes, mut scales) = (new(DType::E4m3, &[8, 256])?, new(DType::F32, &[8, 2])?);
    let (token, format, options) = (Granularity::PerToken, ScaleFormat::F32, LaunchOptions::default());
    let refused = |result: oxigemm::Result<()>, argument: &str| {
        ensure(matches!(&result, Err(error) if error.argument() == Some(argument)), || format!("{result:?}"))
    };
    refused(quantize(&x, &mut new(DType::E4m3, &[7, 256])?, &mut scales, token, format, &options), "x")?;
    refused(quantize(&x, &mut codes, &mut new(DType::F32, &[8, 1])?, token, format, &options), "scales")?;
    refused(quantize(&x, &mut codes, &mut new(DType::I32, &[8, 1])?, token, format, &options), "scales")?;
    let wrong = &mut new(DType::Bf16, &[8, 256])?;
    refused(quantize(&x, wrong, &mut scales, token, format, &options), "codes")?;
    let mut across = x.transpose(0, 1)?;
    refused(dequantize(&codes, &scales, &mut across, token, &options), "x")?;
    refused(transform_scales(&scales, &mut new(DType::F32, &[8, 3])?, &options), "to")?;
    Ok("refused, each with its name".to_owned())
}

fn replayed(setup: &Setup) -> Result<String, Failure> {
    let (rows, columns) = (33, 520);
    let stream = setup.device.new_stream()?;
    let options = LaunchOptions { stream: Some(stream.clone()), ..Default::default() };
    for granularity in Granularity::ALL {
        let mut x = Tensor::zeros(DType::Bf16, &[rows, columns], &setup.device)?;
        let mut codes = Tensor::zeros(DType::E4m3, &[rows, columns], &setup.device)?;
        let mut scales = Tensor::zeros(DType::F32, &granularity.scale_dims(rows, columns), &setup.device)?;
        let mut call = || quantize(&x, &mut codes, &mut scales, granularity, ScaleFormat::F32, &options);
        // The first call loads the kernel.
        call()?;
        stream.synchronize()?;
        let graph = stream.capture(|_| call())?;
        for seed in [1, 2, 3] {
            x.write_f32(&oxigemm::random::normals(seed, rows * columns))?;
            graph.launch(&stream)?;
            stream.synchronize()?;
            let mut expected = Tensor::zeros(DType::E4m3, &[rows, columns], &Device::Cpu)?;
            let mut expected_scales =
                Tensor::zeros(DType::F32, &granularity.scale_dims(rows, columns), &Device::Cpu)?;
            let x = x.to_device(&Device::Cpu)?;
            let plain = LaunchOptions::default();
            quantize(&x, &mut expected, &mut expected_scales, granularity, ScaleFormat::F32, &plain)?;
            let same = codes.to_bytes()? == expected.to_bytes()?
                && scales.to_bytes()? == expected_scales.to_bytes()?;
            ensure(same, || format!("{granularity}: the replayed call has other bytes than the CPU"))?;
        }
    }
    Ok("three replays of each granularity, every byte as on the CPU".to_owned())
}

/// A matrix that has one scale, its codes and that scale.
struct ByOneScale {
    seed: u64,
    dims: [usize; 2],
    x: Tensor,
    codes: Tensor,
    scale: Tensor,
}

impl ByOneScale {
    fn new(seed: u64, dims: [usize; 2], device: &Device) -> Result<ByOneScale, Failure> {
        let values = oxigemm::random::normals(seed, dims.iter().product());
        let x = Tensor::from_f32(DType::Bf16, &values, &dims, device)?;
        let codes = Tensor::zeros(DType::E4m3, &dims, device)?;
        Ok(ByOneScale { seed, dims, x, codes, scale: Tensor::zeros(DType::F32, &[1, 1], device)? })
    }

    fn quantize(&mut self, stream: Option<oxigemm::Stream>) -> oxigemm::Result<()> {
        let options = LaunchOptions { stream, ..Default::default() };
        let (granularity, format) = (Granularity::PerTensor, ScaleFormat::F32);
        quantize(&self.x, &mut self.codes, &mut self.scale, granularity, format, &options)
    }

    fn is_as_on_the_cpu(&self) -> Result<(), Failure> {
        let mut expected = ByOneScale::new(self.seed, self.dims, &Device::Cpu)?;
        expected.quantize(None)?;
        let bytes = |it: &ByOneScale| Ok::<_, Failure>((it.codes.to_bytes()?, it.scale.to_bytes()?));
        ensure(bytes(self)? == bytes(&expected)?, || {
            format!("matrix {} has other bytes than on the CPU", self.seed)
        })
    }
}

/// Calls of one scale for all in some streams and in graphs of these that run in others.
fn side_by_side(setup: &Setup) -> Result<String, Failure> {
    let (dims, rounds) =
        if matches!(setup.device, Device::Cuda(_)) { ([128, 7168], 50) } else { ([9, 1000], 2) };
    let quantized = |seed| ByOneScale::new(seed, dims, &setup.device);
    let streams = (0..4).map(|_| setup.device.new_stream()).collect::<Result<Vec<_>, _>>()?;
    let mut of_streams = (0..4).map(quantized).collect::<Result<Vec<_>, _>>()?;
    let mut of_graphs = (4..8).map(quantized).collect::<Result<Vec<_>, _>>()?;
    let mut graphs = Vec::new();
    for ((stream, own), captured) in streams.iter().zip(&mut of_streams).zip(&mut of_graphs) {
        own.quantize(Some(stream.clone()))?;
        graphs.push(stream.capture(|stream| captured.quantize(Some(stream.clone())))?);
    }
    for _ in 0..rounds {
        for (i, (stream, own)) in streams.iter().zip(&mut of_streams).enumerate() {
            own.quantize(Some(stream.clone()))?;
            graphs[i].launch(&streams[(i + 1) % streams.len()])?;
        }
    }
    setup.device.synchronize()?;
    of_streams.iter().chain(&of_graphs).try_for_each(ByOneScale::is_as_on_the_cpu)?;
    Ok(format!("{} calls in four streams, half of them replayed, every byte as on the CPU", 8 * rounds))
}

fn no_allocations(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 82);
    let mut count = 0;
    for op in OPS {
        for _ in 0..6 {
            let mut task = draw_spec(&mut draw, op, 100_000).on(&setup.device)?;
            let options = LaunchOptions { stream: Some(setup.device.new_stream()?), ..Default::default() };
            task.run(&options)?;
            setup.device.synchronize()?;
            let (result, found) = allocations(|| task.run(&options));
            result?;
            ensure(found == 0, || format!("{op:?}: {found} allocations"))?;
            setup.device.synchronize()?;
            count += 1;
        }
    }
    Ok(format!("{count} calls: 0 allocations"))
}

/// All but SwiGLU, whose exponential is the GPU's own.
fn simulated(setup: &Setup) -> Result<String, Failure> {
    let simulator = setup.simulator()?;
    let mut draw = Draw::new(setup, 83);
    let mut count = 0;
    for op in &OPS[..OPS.len() - 1] {
        for _ in 0..setup.count(30) {
            let spec = draw_spec(&mut draw, *op, 20_000);
            setup.now(format!("{spec} on both"));
            let run = |device: &Device| -> Result<Vec<Vec<u8>>, Failure> {
                let mut task = spec.on(device)?;
                task.run(&LaunchOptions::default())?;
                device.synchronize()?;
                task.bytes()
            };
            ensure(run(&setup.device)? == run(&simulator)?, || format!("{spec}: other bytes"))?;
            count += 1;
        }
    }
    Ok(format!("{count} calls, no bit differs"))
}
