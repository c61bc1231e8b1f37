//! Quantization in the simulator gives the bytes of the CPU's casts, whatever the shapes, layouts and schedules are.

use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
use oxigemm::sim::{FaultKind, Options, Policy};
use oxigemm::{
    DType, Device, Error, Granularity, LaunchOptions, RawQuantize, RawScales, RawSource, Sim, Tensor,
    blocked_scales, dequantize, packed_scales, quantize, quantize_by_scale, quantize_by_scale_raw, random,
    tma_aligned_scales,
};

pub const INPUTS: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];
pub const CODES: [DType; 2] = [DType::E4m3, DType::E5m2];

/// How scales lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layout {
    RowMajor,
    MnMajor,
    Packed,
    Blocked,
}

impl Layout {
    pub const ALL: [Layout; 4] = [Layout::RowMajor, Layout::MnMajor, Layout::Packed, Layout::Blocked];

    pub fn room(self, [rows, columns]: [usize; 2], device: &Device) -> Tensor {
        match self {
            Layout::RowMajor => Tensor::empty(DType::F32, &[rows, columns], device),
            Layout::MnMajor => tma_aligned_scales(rows, columns, device),
            Layout::Packed => packed_scales(rows, columns, device),
            Layout::Blocked => blocked_scales(rows, columns, device),
        }
        .unwrap()
    }
}

/// A matrix inside of a larger one: `gap` elements behind each row, and `offset` before the first.
fn matrix(dtype: DType, [rows, columns]: [usize; 2], gap: usize, offset: usize, device: &Device) -> Tensor {
    let pitch = columns + gap + offset;
    let whole = Tensor::zeros(dtype, &[rows, pitch.max(1)], device).unwrap();
    whole.narrow(1, offset, columns).unwrap()
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub dims: [usize; 2],
    pub input: DType,
    pub code: DType,
    pub granularity: Granularity,
    pub format: ScaleFormat,
    pub layout: Layout,
    pub gap: usize,
    pub offset: usize,
}

/// Values of many magnitudes, with zeros, and rows of zeros.
pub fn values(seed: u64, [rows, columns]: [usize; 2]) -> Vec<f32> {
    let normals = random::normals(seed, rows * columns);
    let spread = |i: usize| 10f32.powi((random::bits(seed, (i / 37) as u64) % 9) as i32 - 5);
    normals
        .into_iter()
        .enumerate()
        .map(|(i, x)| if i / columns.max(1) % 7 == 3 { 0.0 } else { x * spread(i) })
        .collect()
}

/// The codes and the scales, and what they are dequantized to.
pub fn run(case: Case, values: &[f32], device: &Device) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let Case { dims, input, code, granularity, format, layout, gap, offset } = case;
    let mut x = matrix(input, dims, gap, offset, device);
    x.write_f32(values).unwrap();
    // Two codes of FP4 are a byte.
    let bytes = if code == DType::U8 { [dims[0], dims[1] / 2] } else { dims };
    let mut codes = matrix(code, bytes, gap, offset, device);
    let mut scales = layout.room(granularity.scale_dims(dims[0], dims[1]), device);
    let options = LaunchOptions::default();
    quantize(&x, &mut codes, &mut scales, granularity, format, &options)
        .unwrap_or_else(|e| panic!("{case:?}: {e}"));
    let mut back = matrix(input, dims, gap, offset, device);
    dequantize(&codes, &scales, &mut back, granularity, &options).unwrap_or_else(|e| panic!("{case:?}: {e}"));
    (codes.to_bytes().unwrap(), scales.to_bytes().unwrap(), back.to_bytes().unwrap())
}

fn same_as_the_cpu(case: Case, seed: u64, sim: &Device) {
    let values = values(seed, case.dims);
    let (expected, found) = (run(case, &values, &Device::Cpu), run(case, &values, sim));
    for (name, expected, found) in
        [("scales", expected.1, found.1), ("codes", expected.0, found.0), ("values", expected.2, found.2)]
    {
        let wrong = expected.iter().zip(&found).position(|(a, b)| a != b);
        assert!(wrong.is_none(), "{case:?} seed {seed}: byte {wrong:?} of the {name} differs");
    }
}

pub fn schedules() -> [Options; 3] {
    let with = |policy, seed| Options { policy, seed, ..Options::default() };
    [with(Policy::Eager, 0), with(Policy::Lazy, 0), with(Policy::Random, 7)]
}

/// One of the schedules after another.
pub fn schedule(turn: usize) -> Options {
    schedules()[turn % 3].clone()
}

/// Every granularity with every type, format and layout that it has, on both sides of where something changes.
fn every_combination(granularity: Granularity) {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let shapes: &[[usize; 2]] = match granularity {
        Granularity::PerToken | Granularity::PerGroup32 => {
            // Of the last all tiles are whole.
            &[[1, 128], [5, 256], [9, 136], [3, 77], [2, 1100], [130, 40], [128, 256]]
        }
        Granularity::PerBlock | Granularity::PerChannel => &[[1, 128], [129, 136], [5, 77], [130, 24]],
        Granularity::PerRow => &[[1, 128], [5, 264], [3, 77], [2, 8500]],
        // Of numbers for one block, for several, and not of vectors.
        Granularity::PerTensor => &[[1, 128], [17, 264], [3, 77], [9, 1100], [129, 264]],
    };
    let groups = matches!(granularity, Granularity::PerToken | Granularity::PerGroup32);
    let layouts = if groups { &Layout::ALL[..] } else { &Layout::ALL[..2] };
    let mut turn = 0;
    for input in INPUTS {
        for code in CODES {
            for &layout in layouts {
                for format in [ScaleFormat::F32, ScaleFormat::PowerOfTwo] {
                    if format == ScaleFormat::F32 && matches!(layout, Layout::Packed | Layout::Blocked) {
                        continue;
                    }
                    sim.set_options(schedule(turn));
                    let dims = shapes[turn % shapes.len()];
                    // Aligned, with aligned gaps, and not aligned at all.
                    let (gap, offset) = [(0, 0), (8, 8), (3, 1)][turn / 2 % 3];
                    let case = Case { dims, input, code, granularity, format, layout, gap, offset };
                    same_as_the_cpu(case, turn as u64, &device);
                    turn += 1;
                }
            }
        }
    }
}

#[test]
fn per_token_is_the_cast() {
    every_combination(Granularity::PerToken);
}

#[test]
fn per_group_of_32_is_the_cast() {
    every_combination(Granularity::PerGroup32);
}

#[test]
fn fp4_is_the_cast() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let shapes = [[1, 32], [5, 256], [9, 136], [3, 70], [130, 40]];
    for (turn, input) in INPUTS.into_iter().cycle().take(12).enumerate() {
        let layout = Layout::ALL[turn % 4];
        sim.set_options(schedule(turn / 3));
        let case = Case {
            dims: shapes[turn % shapes.len()],
            input,
            code: DType::U8,
            granularity: Granularity::PerGroup32,
            format: ScaleFormat::PowerOfTwo,
            layout,
            gap: [0, 8, 3][turn / 2 % 3],
            offset: [0, 8, 1][turn / 2 % 3],
        };
        same_as_the_cpu(case, turn as u64, &device);
    }
}

/// Every code and what lies between two of them, against the definition of e2m1: the scale of a block with 6 in it is 1.
#[test]
fn fp4_rounds_to_the_nearest_and_ties_to_even() {
    let numbers = [0.0f32, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let mut cases = vec![(6.0f32, 7u8), (f32::NAN, 7)];
    for (code, pair) in numbers.windows(2).enumerate() {
        let (code, middle) = (code as u8, (pair[0] + pair[1]) / 2.0);
        let even = code + code % 2;
        cases.extend([
            (pair[0], code),
            (middle.next_down(), code),
            (middle, even),
            (middle.next_up(), code + 1),
        ]);
    }
    let negative: Vec<_> =
        cases.iter().filter(|(x, _)| !x.is_nan()).map(|(x, code)| (-x, code | 8)).collect();
    cases.extend(negative);
    for device in [Device::Cpu, Device::sim()] {
        for block in cases.chunks(15) {
            let mut values: Vec<f32> = block.iter().map(|(x, _)| *x).collect();
            let nan = values.iter().any(|x| x.is_nan());
            values.resize(32, 6.0);
            let x = Tensor::from_slice(&values, &[1, 32], &device).unwrap();
            let mut codes = Tensor::empty(DType::U8, &[1, 16], &device).unwrap();
            let mut scales = Tensor::empty(DType::F32, &[1, 1], &device).unwrap();
            let (granularity, format) = (Granularity::PerGroup32, ScaleFormat::PowerOfTwo);
            quantize(&x, &mut codes, &mut scales, granularity, format, &LaunchOptions::default()).unwrap();
            let bytes = codes.to_bytes().unwrap();
            assert_eq!(scales.to_vec_f32().unwrap(), [if nan { 2f32.powi(127) } else { 1.0 }]);
            for (i, (value, expected)) in block.iter().enumerate().filter(|(_, (x, _))| !nan || x.is_nan()) {
                let found = bytes[i / 2] >> (4 * (i % 2)) & 15;
                assert_eq!(found, *expected, "{value} on {device}");
            }
        }
    }
}

#[test]
fn per_block_is_the_cast() {
    every_combination(Granularity::PerBlock);
}

#[test]
fn per_channel_is_the_cast() {
    every_combination(Granularity::PerChannel);
}

#[test]
fn per_row_is_the_cast() {
    every_combination(Granularity::PerRow);
}

#[test]
fn per_tensor_is_the_cast() {
    every_combination(Granularity::PerTensor);
}

/// The scale of a matrix of one number, a power of two.
fn scale_of_all(device: &Device, dims: [usize; 2], number: f32) -> oxigemm::Result<f32> {
    let x = Tensor::from_f32(DType::Bf16, &vec![number; dims[0] * dims[1]], &dims, device)?;
    let mut codes = Tensor::empty(DType::E4m3, &dims, device)?;
    let mut scale = Tensor::empty(DType::F32, &[1, 1], device)?;
    let (granularity, format) = (Granularity::PerTensor, ScaleFormat::PowerOfTwo);
    quantize(&x, &mut codes, &mut scale, granularity, format, &LaunchOptions::default())?;
    Ok(scale.to_vec_f32()?[0])
}

/// What blocks of one call have left is not taken for what those of another leave, however large both are.
#[test]
fn calls_of_other_sizes_in_between_change_nothing() {
    let device = Device::sim();
    let scale = |dims, number| scale_of_all(&device, dims, number).unwrap();
    for between in 0..4 {
        assert_eq!(scale([129, 264], 448.0), 1.0, "{between} in between");
        for _ in 0..between {
            assert_eq!(scale([1, 8], 3.5), 1.0 / 128.0, "{between} in between");
        }
        assert_eq!(scale([129, 264], 7.0), 1.0 / 64.0, "{between} in between");
    }
}

/// What a GPU would refuse to launch, the simulator finds waiting; and what such a call has left is gone before the next.
#[test]
fn blocks_that_cannot_all_run_are_found_and_leave_nothing() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    sim.set_options(Options { resident_ctas: 4, ..Options::default() });
    let stopped = scale_of_all(&device, [17, 264], 448.0);
    let kind = match &stopped {
        Err(Error::Fault { fault, .. }) => Some(fault.kind),
        _ => None,
    };
    assert_eq!(kind, Some(FaultKind::Deadlock), "{stopped:?}");
    sim.set_options(Options::default());
    assert_eq!(scale_of_all(&device, [17, 264], 7.0).unwrap(), 1.0 / 64.0);
}

#[test]
fn what_is_wrong_with_a_scale_that_is_given_is_named() {
    for device in [Device::Cpu, Device::sim()] {
        let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
        let (x, scale) = (new(DType::Bf16, &[3, 16]), new(DType::F32, &[1, 1]));
        let refused = |x: &Tensor, scale: &Tensor, codes: &mut Tensor, argument| {
            let result = quantize_by_scale(x, scale, codes, &LaunchOptions::default());
            let named = result.as_ref().err().and_then(Error::argument);
            assert_eq!(named, Some(argument), "{result:?} on {device}");
        };
        let codes = &mut new(DType::E4m3, &[3, 16]);
        refused(&x, &new(DType::F32, &[3, 1]), codes, "scale");
        refused(&x, &new(DType::F32, &[1]), codes, "scale");
        refused(&x, &new(DType::I32, &[1, 1]), codes, "scale");
        refused(&x, &new(DType::Bf16, &[1, 1]), codes, "scale");
        refused(&new(DType::E4m3, &[3, 16]), &scale, codes, "x");
        refused(&x.transpose(0, 1).unwrap(), &scale, &mut new(DType::E4m3, &[16, 3]), "x");
        refused(&x, &scale, &mut new(DType::E4m3, &[3, 8]), "x");
        refused(&x, &scale, &mut new(DType::U8, &[3, 8]), "codes");
        refused(&x, &scale, &mut new(DType::Bf16, &[3, 16]), "codes");
    }
}

#[test]
fn codes_by_a_scale_at_an_address_are_those_of_tensors() {
    let (device, dims) = (Device::sim(), [5, 264]);
    let x = Tensor::from_f32(DType::F16, &values(9, dims), &dims, &device).unwrap();
    let scale = Tensor::from_f32(DType::F32, &[0.02], &[1, 1], &device).unwrap();
    let [mut expected, found] = [(); 2].map(|()| Tensor::zeros(DType::E5m2, &dims, &device).unwrap());
    quantize_by_scale(&x, &scale, &mut expected, &LaunchOptions::default()).unwrap();
    let call = RawQuantize {
        rows: dims[0],
        columns: dims[1],
        x: x.address(),
        x_type: DType::F16,
        x_pitch: dims[1],
        codes: found.address(),
        code_type: DType::E5m2,
        codes_pitch: dims[1],
        scales: scale.address(),
        scale_layout: RawScales::F32([1, 1]),
        // Neither of these counts.
        granularity: Granularity::PerToken,
        format: ScaleFormat::PowerOfTwo,
        source: RawSource::SwiGlu,
    };
    // SAFETY: the tensors live on, and nobody else uses them.
    unsafe { quantize_by_scale_raw(&device, &call, &LaunchOptions::default()).unwrap() };
    assert_eq!(found.to_bytes().unwrap(), expected.to_bytes().unwrap());
    // SAFETY: as above; it is refused.
    let on_cpu = unsafe { quantize_by_scale_raw(&Device::Cpu, &call, &LaunchOptions::default()) };
    assert!(on_cpu.is_err(), "the CPU has tensors only");
}

#[test]
fn codes_by_a_scale_that_is_given_are_those_of_the_cpu() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let of = |device: &Device, input, code, dims: [usize; 2], scale: f32| {
        let mut numbers = values(5, dims);
        numbers.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 0.0, -0.0, 1e-40, f32::MAX, f32::MIN]);
        let dims = [1, numbers.len()];
        let x = Tensor::from_f32(input, &numbers, &dims, device).unwrap();
        let scale = Tensor::from_f32(DType::F32, &[scale], &[1, 1], device).unwrap();
        let mut codes = Tensor::empty(code, &dims, device).unwrap();
        quantize_by_scale(&x, &scale, &mut codes, &LaunchOptions::default()).unwrap();
        codes.to_bytes().unwrap()
    };
    for (turn, input) in INPUTS.into_iter().enumerate() {
        for code in CODES {
            for (i, scale) in [1.0, 0.01, 3e30, f32::INFINITY, f32::NAN, 0.0].into_iter().enumerate() {
                sim.set_options(schedule(turn + i));
                let dims = [[3, 264], [1, 77], [9, 1100]][turn];
                let [found, expected] =
                    [&device, &Device::Cpu].map(|device| of(device, input, code, dims, scale));
                assert_eq!(found, expected, "{input} {code} by {scale}");
            }
        }
    }
}

#[test]
fn per_tensor_in_a_graph_is_the_cast_of_what_is_there_when_it_runs() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let stream = device.new_stream().unwrap();
    let options = LaunchOptions { stream: Some(stream.clone()), ..LaunchOptions::default() };
    let dims = [17, 264];
    let mut x = Tensor::zeros(DType::Bf16, &dims, &device).unwrap();
    let mut codes = Tensor::empty(DType::E4m3, &dims, &device).unwrap();
    let mut scale = Tensor::empty(DType::F32, &[1, 1], &device).unwrap();
    let (granularity, format) = (Granularity::PerTensor, ScaleFormat::F32);
    let graph =
        stream.capture(|_| quantize(&x, &mut codes, &mut scale, granularity, format, &options)).unwrap();
    for seed in 1..4 {
        let values = Tensor::from_f32(DType::Bf16, &values(seed, dims), &dims, &Device::Cpu).unwrap();
        x.write_bytes(&values.to_bytes().unwrap()).unwrap();
        graph.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        let mut expected = Tensor::empty(DType::E4m3, &dims, &Device::Cpu).unwrap();
        let mut expected_scale = Tensor::empty(DType::F32, &[1, 1], &Device::Cpu).unwrap();
        let on_cpu = LaunchOptions::default();
        quantize(&values, &mut expected, &mut expected_scale, granularity, format, &on_cpu).unwrap();
        assert_eq!(codes.to_bytes().unwrap(), expected.to_bytes().unwrap(), "seed {seed}");
        assert_eq!(scale.to_bytes().unwrap(), expected_scale.to_bytes().unwrap(), "seed {seed}");
    }
}

/// The functions of the peer's names and these are the same casts.
#[test]
fn the_cpu_is_the_cast_that_was_there_before() {
    let (rows, columns) = (130, 300);
    let values = values(3, [rows, columns]);
    for format in [ScaleFormat::F32, ScaleFormat::PowerOfTwo] {
        let old = [
            (Granularity::PerToken, per_token_cast_to_fp8(&values, rows, columns, format).unwrap()),
            (Granularity::PerBlock, per_block_cast_to_fp8(&values, rows, columns, format).unwrap()),
        ];
        for (granularity, old) in old {
            let case = Case {
                dims: [rows, columns],
                input: DType::F32,
                code: DType::E4m3,
                granularity,
                format,
                layout: Layout::RowMajor,
                gap: 0,
                offset: 0,
            };
            let (codes, scales, back) = run(case, &values, &Device::Cpu);
            assert_eq!(codes, old.codes);
            assert_eq!(scales, DType::F32.encode(&old.scales));
            assert_eq!(back, DType::F32.encode(&old.dequantize()));
        }
    }
}

/// Numbers that are no ordinary ones.
pub const SPECIALS: [f32; 9] = [
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    -f32::NAN,
    f32::MAX,
    f32::MIN,
    f32::MIN_POSITIVE,
    1e-40,
    -0.0,
];

#[test]
fn a_graph_quantizes_what_is_there_when_it_is_launched() {
    let device = Device::sim();
    let stream = device.new_stream().unwrap();
    let mut x = Tensor::zeros(DType::Bf16, &[3, 256], &device).unwrap();
    let mut codes = Tensor::zeros(DType::E4m3, &[3, 256], &device).unwrap();
    let options = LaunchOptions { stream: Some(stream.clone()), ..Default::default() };
    for granularity in Granularity::ALL {
        let [rows, columns] = granularity.scale_dims(3, 256);
        let mut scales = Tensor::zeros(DType::F32, &[rows, columns], &device).unwrap();
        let format = ScaleFormat::F32;
        let graph =
            stream.capture(|_| quantize(&x, &mut codes, &mut scales, granularity, format, &options)).unwrap();
        for seed in [1, 2] {
            let new = values(seed, [3, 256]);
            x.write_f32(&new).unwrap();
            graph.launch(&stream).unwrap();
            let cpu = x.to_device(&Device::Cpu).unwrap();
            let mut expected = Tensor::zeros(DType::E4m3, &[3, 256], &Device::Cpu).unwrap();
            let mut expected_scales = Tensor::zeros(DType::F32, &[rows, columns], &Device::Cpu).unwrap();
            quantize(
                &cpu,
                &mut expected,
                &mut expected_scales,
                granularity,
                format,
                &LaunchOptions::default(),
            )
            .unwrap();
            assert_eq!(codes.to_bytes().unwrap(), expected.to_bytes().unwrap(), "{granularity}");
            assert_eq!(scales.to_bytes().unwrap(), expected_scales.to_bytes().unwrap());
        }
    }
}

#[test]
fn nothing_is_quantized_without_elements() {
    let device = Device::sim();
    for granularity in Granularity::ALL {
        for dims @ [rows, columns] in [[0, 128], [3, 0], [0, 0]] {
            let x = Tensor::zeros(DType::Bf16, &dims, &device).unwrap();
            let mut codes = Tensor::zeros(DType::E4m3, &dims, &device).unwrap();
            let scale_dims = granularity.scale_dims(rows, columns);
            let mut scales = Tensor::zeros(DType::F32, &scale_dims, &device).unwrap();
            let options = LaunchOptions::default();
            quantize(&x, &mut codes, &mut scales, granularity, ScaleFormat::F32, &options).unwrap();
            let mut back = Tensor::zeros(DType::F32, &dims, &device).unwrap();
            dequantize(&codes, &scales, &mut back, granularity, &options).unwrap();
        }
    }
}
