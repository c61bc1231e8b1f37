//! What is quantized in one pass with what is computed before: SwiGLU, RMSNorm and rows that a list names. In the simulator it
//! has the bytes of the CPU, whatever the shapes, layouts and schedules are.

use oxigemm::cast::ScaleFormat;
use oxigemm::{
    DType, Device, Granularity, LaunchOptions, Sim, Tensor, dequantize, gather_quantize, quantize, random,
    rms_norm_quantize, swiglu_quantize,
};

use crate::quantize::{INPUTS, Layout, SPECIALS, schedule, schedules, values};

/// Every layout of scales, with each format that it has.
const KINDS: [(Layout, ScaleFormat); 6] = [
    (Layout::MnMajor, ScaleFormat::F32),
    (Layout::Packed, ScaleFormat::PowerOfTwo),
    (Layout::RowMajor, ScaleFormat::PowerOfTwo),
    (Layout::Blocked, ScaleFormat::PowerOfTwo),
    (Layout::RowMajor, ScaleFormat::F32),
    (Layout::MnMajor, ScaleFormat::PowerOfTwo),
];

/// SwiGLU and quantization of `[rows, 2 * columns]`: codes and scales.
fn swiglu(
    device: &Device,
    input: DType,
    values: &[f32],
    [rows, columns]: [usize; 2],
    (layout, format): (Layout, ScaleFormat),
) -> [Vec<u8>; 2] {
    let x = Tensor::from_f32(input, values, &[rows, 2 * columns], device).unwrap();
    let mut codes = Tensor::empty(DType::E4m3, &[rows, columns], device).unwrap();
    let mut scales = layout.room([rows, columns.div_ceil(128)], device);
    swiglu_quantize(&x, &mut codes, &mut scales, format, &LaunchOptions::default()).unwrap();
    [codes.to_bytes().unwrap(), scales.to_bytes().unwrap()]
}

/// Rows that a list names, quantized: codes and scales.
fn gather(
    device: &Device,
    input: DType,
    values: &[f32],
    columns: usize,
    named: &[i32],
    (layout, format): (Layout, ScaleFormat),
) -> [Vec<u8>; 2] {
    let x = Tensor::from_f32(input, values, &[values.len() / columns, columns], device).unwrap();
    let rows = Tensor::from_slice(named, &[named.len()], device).unwrap();
    let mut codes = Tensor::zeros(DType::E4m3, &[named.len(), columns], device).unwrap();
    let mut scales = layout.room([named.len(), columns.div_ceil(128)], device);
    // What belongs to no row stays as it is.
    scales.write_bytes(&vec![0u8; scales.len() * 4]).unwrap();
    gather_quantize(&x, &rows, &mut codes, &mut scales, format, &LaunchOptions::default()).unwrap();
    [codes.to_bytes().unwrap(), scales.to_bytes().unwrap()]
}

/// RMSNorm and quantization: codes and scales.
fn rms_norm(
    device: &Device,
    input: DType,
    values: &[f32],
    [rows, columns]: [usize; 2],
    (layout, format): (Layout, ScaleFormat),
) -> [Vec<u8>; 2] {
    let x = Tensor::from_f32(input, values, &[rows, columns], device).unwrap();
    let weight = Tensor::from_f32(input, &random::normals(77, columns), &[columns], device).unwrap();
    let mut codes = Tensor::empty(DType::E4m3, &[rows, columns], device).unwrap();
    let mut scales = layout.room([rows, columns.div_ceil(128)], device);
    rms_norm_quantize(&x, &weight, 1e-6, &mut codes, &mut scales, format, &LaunchOptions::default()).unwrap();
    [codes.to_bytes().unwrap(), scales.to_bytes().unwrap()]
}

#[test]
fn rows_are_gathered_and_those_of_nowhere_stay_as_they_are() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let named = [2i32, -1, 0, 4, 5, 2, i32::MIN, 1, i32::MAX];
    for (turn, kind) in KINDS.into_iter().enumerate() {
        let (columns, input) = ([384, 200, 77, 1032][turn % 4], INPUTS[turn % 3]);
        sim.set_options(schedule(turn + turn / 3));
        let values = values(turn as u64, [5, columns]);
        let run = |device: &Device| gather(device, input, &values, columns, &named, kind);
        assert_eq!(run(&Device::Cpu), run(&device), "{kind:?}");
    }
}

#[test]
fn swiglu_is_that_of_the_cpu() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    for (turn, dims @ [rows, columns]) in [[3, 128], [9, 264], [2, 77], [130, 200]].into_iter().enumerate() {
        let mut values = random::normals(turn as u64, 2 * rows * columns);
        values.iter_mut().for_each(|x| *x *= 3.0);
        values[..4].copy_from_slice(&[100.0, -100.0, 1e30, -1e30]);
        for (i, input) in INPUTS.into_iter().enumerate() {
            sim.set_options(schedule(turn + i));
            let kind = KINDS[(3 * turn + i) % KINDS.len()];
            let run = |device: &Device| swiglu(device, input, &values, dims, kind);
            assert_eq!(run(&Device::Cpu), run(&device), "{dims:?} {input} {kind:?}");
        }
    }
}

/// Ordinary rows, one for each special number, which is at two places of it.
fn with_specials(columns: usize) -> Vec<f32> {
    let mut values = random::normals(11, SPECIALS.len() * columns);
    for (row, special) in values.chunks_mut(columns).zip(SPECIALS) {
        row[3] = special;
        row[columns * 3 / 4] = special;
    }
    values
}

#[test]
fn what_is_not_finite_has_the_result_of_the_cpu() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let (rows, columns) = (SPECIALS.len(), 264);
    let values = with_specials(columns);
    // As gates and as ups.
    let pairs = with_specials(2 * columns);
    for (turn, kind) in KINDS.into_iter().enumerate() {
        sim.set_options(schedule(turn));
        let input = INPUTS[(turn + turn / 3) % 3];
        let run = |device: &Device| {
            let named: Vec<i32> = (0..rows as i32).rev().collect();
            [
                swiglu(device, input, &pairs, [rows, columns], kind),
                gather(device, input, &values, columns, &named, kind),
                rms_norm(device, input, &values, [rows, columns], kind),
            ]
        };
        assert_eq!(run(&Device::Cpu), run(&device), "{input} {kind:?}");
    }
}

/// What the documentation promises: the scale of the block that a gate and an up are in.
#[test]
fn swiglu_of_what_is_not_finite_is_as_documented() {
    let (infinity, nan) = (f32::INFINITY, f32::NAN);
    let cases = [
        (nan, 1.0, nan),
        (1.0, nan, nan),
        (infinity, 1.0, infinity),
        (infinity, -2.0, infinity),
        (1.0, infinity, infinity),
        (1.0, -infinity, infinity),
        (-infinity, 1.0, nan),
        (infinity, 0.0, nan),
        (0.0, infinity, nan),
        (-200.0, infinity, nan),
    ];
    let mut values = vec![1.0f32; cases.len() * 512];
    for (row, (gate, up, _)) in values.chunks_mut(512).zip(cases) {
        (row[9], row[256 + 9]) = (gate, up);
    }
    for device in [Device::Cpu, Device::sim()] {
        let kind = (Layout::RowMajor, ScaleFormat::F32);
        let [_, scales] = swiglu(&device, DType::F32, &values, [cases.len(), 256], kind);
        for ((gate, up, expected), scales) in cases.into_iter().zip(DType::F32.decode(&scales).chunks(2)) {
            assert_eq!(scales[0].to_string(), expected.to_string(), "gate {gate}, up {up} on {device}");
            assert!((scales[1] * 448.0 - 0.731).abs() < 1e-3, "no other block notices");
        }
    }
}

#[test]
fn gathered_rows_that_are_not_finite_are_those_of_the_matrix() {
    let columns = 264;
    let values = with_specials(columns);
    let named = [2, 0, 8, 2, 5, 1, 3, 7, 6, 4];
    let taken: Vec<f32> =
        named.iter().flat_map(|row| &values[*row as usize * columns..][..columns]).copied().collect();
    for (layout, format) in KINDS {
        let dims = [named.len(), columns];
        let x = Tensor::from_f32(DType::F32, &taken, &dims, &Device::Cpu).unwrap();
        let mut codes = Tensor::empty(DType::E4m3, &dims, &Device::Cpu).unwrap();
        let granularity = Granularity::PerToken;
        let mut scales = layout.room(granularity.scale_dims(dims[0], dims[1]), &Device::Cpu);
        quantize(&x, &mut codes, &mut scales, granularity, format, &LaunchOptions::default()).unwrap();
        let expected = [codes.to_bytes().unwrap(), scales.to_bytes().unwrap()];
        let found = gather(&Device::sim(), DType::F32, &values, columns, &named, (layout, format));
        assert!(found == expected, "{layout:?} {format:?}");
    }
}

/// Zeros, and numbers whose squares are 0, alone and beside zeros.
#[test]
fn rows_whose_squares_vanish_are_nan_by_an_epsilon_of_zero() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let dims = [4, 256];
    let mut values = vec![0.0f32; 256];
    values.extend((0..256).map(|i| if i == 7 { 1e-30 } else { 0.0 }));
    values.extend([1e-30; 256]);
    values.extend([2.0; 256]);
    for (turn, (layout, format)) in KINDS.into_iter().enumerate() {
        sim.set_options(schedule(turn));
        let run = |device: &Device| {
            let x = Tensor::from_f32(DType::F32, &values, &dims, device).unwrap();
            let weight = Tensor::from_f32(DType::F32, &[1.0; 256], &[256], device).unwrap();
            let mut codes = Tensor::empty(DType::E4m3, &dims, device).unwrap();
            let mut scales = layout.room([4, 2], device);
            let options = LaunchOptions::default();
            rms_norm_quantize(&x, &weight, 0.0, &mut codes, &mut scales, format, &options).unwrap();
            [codes.to_bytes().unwrap(), scales.to_bytes().unwrap()]
        };
        let [codes, scales] = run(&device);
        assert_eq!(run(&Device::Cpu), [codes.clone(), scales], "{layout:?} {format:?}");
        assert!(codes[..3 * 256].iter().all(|code| *code == 0x7f), "NaN");
        assert!(codes[3 * 256..].iter().all(|code| *code == codes[3 * 256] && *code != 0x7f));
    }
}

/// What the documentation promises: values of rows that have an ordinary number, NaN, an infinity or a number whose square is
/// infinite among ones.
#[test]
fn rms_norm_of_what_is_not_finite_is_as_documented() {
    let mut values = vec![1.0f32; 4 * 256];
    for (row, special) in values.chunks_mut(256).zip([1.0, f32::NAN, f32::NEG_INFINITY, 1e20]) {
        row[7] = special;
    }
    for device in [Device::Cpu, Device::sim()] {
        let dims = [4, 256];
        let x = Tensor::from_f32(DType::F32, &values, &dims, &device).unwrap();
        let weight = Tensor::from_f32(DType::F32, &[1.0; 256], &[256], &device).unwrap();
        let mut codes = Tensor::empty(DType::E4m3, &dims, &device).unwrap();
        let mut scales = Tensor::empty(DType::F32, &[4, 2], &device).unwrap();
        let mut back = Tensor::empty(DType::F32, &dims, &device).unwrap();
        let (format, options) = (ScaleFormat::F32, LaunchOptions::default());
        rms_norm_quantize(&x, &weight, 0.0, &mut codes, &mut scales, format, &options).unwrap();
        dequantize(&codes, &scales, &mut back, Granularity::PerToken, &options).unwrap();
        let back = back.to_vec_f32().unwrap();
        let all = |range: std::ops::Range<usize>, is: fn(&f32) -> bool| back[range].iter().all(is);
        assert!(all(0..256, |x| *x == 1.0), "an ordinary row on {device}");
        assert!(all(256..512, |x| x.is_nan()), "all of a row with NaN on {device}");
        assert!(all(512..640, |x| x.is_nan()), "the block of an infinity on {device}");
        assert!(all(640..768, |x| *x == 0.0), "the others of its row on {device}");
        assert!(all(768..1024, |x| *x == 0.0), "a row whose squares are too large on {device}");
    }
}

#[test]
fn rms_norm_is_that_of_the_cpu() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    // Rows of one warp and of several, such as a block cannot hold, and such as are no vectors.
    let all = [[3, 128], [2, 264], [2, 77], [2, 8456], [1, 9], [2, 16392], [3, 7168], [2, 1032], [1, 17001]];
    for (turn, dims) in all.into_iter().enumerate() {
        for (i, layout) in Layout::ALL.into_iter().enumerate() {
            sim.set_options(schedule(turn + i));
            let input = INPUTS[turn % 3];
            let mut values = values(turn as u64, dims);
            values[0] = if turn == 1 { f32::NAN } else { 1.0 };
            let run =
                |device: &Device| rms_norm(device, input, &values, dims, (layout, ScaleFormat::PowerOfTwo));
            assert_eq!(run(&Device::Cpu), run(&device), "{dims:?} {input} {layout:?}");
        }
    }
}

/// Blocks of 16 warps, one for each multiprocessor, with three rows and more each.
#[test]
fn rows_of_rms_norm_follow_each_other_on_every_schedule() {
    let dims = [270, 15368];
    let values = values(3, dims);
    let run = |device: &Device| {
        rms_norm(device, DType::Bf16, &values, dims, (Layout::MnMajor, ScaleFormat::PowerOfTwo))
    };
    let expected = run(&Device::Cpu);
    for options in schedules() {
        let found = run(&Device::Sim(Sim::with_options(options.clone())));
        assert!(found == expected, "{options:?}");
    }
}

/// Eight rows and more for each block, whose scales are stored together where they are neighbours.
#[test]
fn scales_of_neighbouring_rows_are_stored_together() {
    let dims = [19_030, 8];
    let values = values(5, dims);
    for (layout, options) in
        [Layout::MnMajor, Layout::RowMajor].into_iter().zip(schedules().into_iter().skip(1))
    {
        let run =
            |device: &Device| rms_norm(device, DType::F32, &values, dims, (layout, ScaleFormat::PowerOfTwo));
        assert!(run(&Device::Sim(Sim::with_options(options))) == run(&Device::Cpu), "{layout:?}");
    }
}
