//! NVFP4 in the simulator gives the bytes of the CPU's, whatever the shapes, layouts and schedules are; and the CPU's are those
//! of the definition.

use oxigemm::sim::{Options, Policy};
use oxigemm::{
    DType, Device, Error, LaunchOptions, RawNvfp4, RawScales, Sim, Tensor, TensorScale, blocked_scales,
    dequantize_nvfp4, dequantize_nvfp4_raw, packed_scales, quantize_nvfp4, quantize_nvfp4_raw, random,
};

/// How scales lie.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    RowMajor,
    MnMajor,
    Packed,
    Blocked,
}

impl Layout {
    const ALL: [Layout; 4] = [Layout::RowMajor, Layout::MnMajor, Layout::Packed, Layout::Blocked];

    fn room(self, rows: usize, columns: usize, device: &Device) -> Tensor {
        match self {
            Layout::RowMajor => Tensor::empty(DType::E4m3, &[rows, columns], device).unwrap(),
            Layout::MnMajor => {
                let memory = Tensor::zeros(DType::E4m3, &[columns, rows + 3], device).unwrap();
                memory.transpose(0, 1).unwrap().narrow(0, 0, rows).unwrap()
            }
            Layout::Packed => packed_scales(rows, columns, device).unwrap(),
            Layout::Blocked => blocked_scales(rows, columns, device).unwrap(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    dims: [usize; 2],
    input: DType,
    layout: Layout,
    /// The scale of all; computed where there is none.
    given: Option<f32>,
    gap: usize,
}

fn matrix(dtype: DType, [rows, columns]: [usize; 2], gap: usize, device: &Device) -> Tensor {
    let whole = Tensor::zeros(dtype, &[rows, columns + 2 * gap], device).unwrap();
    whole.narrow(1, gap, columns).unwrap()
}

/// The codes, the scales, the scale of all, and what they are dequantized to.
fn run(case: Case, values: &[f32], device: &Device) -> [Vec<u8>; 4] {
    let Case { dims: [rows, columns], input, layout, given, gap } = case;
    let mut x = matrix(input, [rows, columns], gap, device);
    x.write_f32(values).unwrap();
    let mut codes = matrix(DType::U8, [rows, columns / 2], gap, device);
    let mut scales = layout.room(rows, columns.div_ceil(16), device);
    let mut of_all = Tensor::from_f32(DType::F32, &[given.unwrap_or(7.0)], &[1], device).unwrap();
    let options = LaunchOptions::default();
    let tensor_scale = match given {
        Some(_) => TensorScale::Given(&of_all),
        None => TensorScale::Computed(&mut of_all),
    };
    quantize_nvfp4(&x, &mut codes, &mut scales, tensor_scale, &options)
        .unwrap_or_else(|e| panic!("{case:?}: {e}"));
    let mut back = matrix(input, [rows, columns], gap, device);
    dequantize_nvfp4(&codes, &scales, &of_all, &mut back, &options)
        .unwrap_or_else(|e| panic!("{case:?}: {e}"));
    [codes, scales, of_all, back].map(|tensor| tensor.to_bytes().unwrap())
}

fn same_as_the_cpu(case: Case, values: &[f32], device: &Device) {
    let (expected, found) = (run(case, values, &Device::Cpu), run(case, values, device));
    let names = ["codes", "scales", "scale of all", "values"];
    for (name, (expected, found)) in names.into_iter().zip(expected.into_iter().zip(found)) {
        let wrong = expected.iter().zip(&found).position(|(a, b)| a != b);
        assert!(wrong.is_none(), "{case:?}: byte {wrong:?} of the {name} differs");
    }
}

/// Values of many magnitudes, with zeros, and rows of zeros.
fn values(seed: u64, [rows, columns]: [usize; 2]) -> Vec<f32> {
    let spread = |i: usize| 10f32.powi((random::bits(seed, (i / 21) as u64) % 9) as i32 - 5);
    let normals = random::normals(seed, rows * columns).into_iter().enumerate();
    normals.map(|(i, x)| if i / columns % 7 == 3 { 0.0 } else { x * spread(i) }).collect()
}

#[test]
fn every_type_layout_and_alignment_is_that_of_the_cpu() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let shapes = [[1, 16], [5, 256], [9, 136], [3, 70], [130, 40], [2, 1100], [1, 2], [128, 256], [4, 1024]];
    let with = |policy, seed| Options { policy, seed, ..Options::default() };
    let schedules = [with(Policy::Eager, 0), with(Policy::Lazy, 0), with(Policy::Random, 7)];
    let mut turn = 0;
    for input in [DType::Bf16, DType::F16, DType::F32] {
        for layout in Layout::ALL {
            for given in [None, Some(1e-3), None, Some(12.5)] {
                sim.set_options(schedules[turn % 3].clone());
                let case =
                    Case { dims: shapes[turn % 9], input, layout, given, gap: [0, 8, 3][turn / 2 % 3] };
                same_as_the_cpu(case, &values(turn as u64, case.dims), &device);
                turn += 1;
            }
        }
    }
}

/// The definition, element by element and without a single line of the library.
#[test]
fn the_cpu_follows_the_definition() {
    let (rows, columns) = (6, 48);
    let values = values(5, [rows, columns]);
    let case =
        Case { dims: [rows, columns], input: DType::F32, layout: Layout::RowMajor, given: None, gap: 0 };
    let [codes, scales, of_all, back] = run(case, &values, &Device::Cpu);
    let amax = |values: &[f32]| values.iter().fold(0f32, |a, b| a.max(b.abs()));
    let tensor = amax(&values) / 2688.0;
    assert_eq!(of_all, tensor.to_le_bytes());
    // Every positive e4m3 but 0 and NaN, and every e2m1.
    let e4m3 = |code: u8| match (code >> 3, f32::from(code & 7)) {
        (0, mantissa) => mantissa * 2f32.powi(-9),
        (exponent, mantissa) => (8.0 + mantissa) * 2f32.powi(i32::from(exponent) - 10),
    };
    let e2m1 = [0.0f32, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let distance = |a: f32, b: f32| (f64::from(a) - f64::from(b)).abs();
    for (i, block) in values.chunks(16).enumerate() {
        let wanted = amax(block) / 6.0 / tensor;
        let best = (1..0x7fu8).map(|code| distance(e4m3(code), wanted)).fold(f64::INFINITY, f64::min);
        let scale = e4m3(scales[i]);
        assert!(scales[i] != 0 && distance(scale, wanted) <= best * (1.0 + 1e-5), "scale {i}");
        for (j, value) in block.iter().enumerate() {
            let code = codes[(16 * i + j) / 2] >> (4 * (j % 2)) & 15;
            let unit = scale * tensor;
            let wanted = value.abs() / unit;
            let best = e2m1.iter().map(|number| distance(*number, wanted)).fold(f64::INFINITY, f64::min);
            let number = e2m1[usize::from(code & 7)];
            assert!(distance(number, wanted) <= best * (1.0 + 1e-5) + 1e-6, "{value} is {number} of {unit}");
            assert_eq!(code & 8 != 0, value.is_sign_negative());
            let expected = if code & 8 != 0 { -number } else { number } * unit;
            assert_eq!(back[4 * (16 * i + j)..][..4], expected.to_le_bytes());
        }
    }
}

#[test]
fn zeros_and_what_is_not_finite_are_as_documented_everywhere() {
    let sim = Device::sim();
    let specials =
        [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN, f32::MAX, f32::MIN_POSITIVE, 1e-40, -0.0];
    let columns = 64;
    let mut values = vec![0.0; specials.len() * columns];
    for (i, special) in specials.into_iter().enumerate() {
        let row = &mut values[i * columns..][..columns];
        row[..32].copy_from_slice(&random::normals(i as u64, 32));
        row[3 * i] = special;
        row[40] = special;
    }
    for input in [DType::Bf16, DType::F16, DType::F32] {
        for given in [None, Some(0.25), Some(1e-30), Some(1e30), Some(f32::INFINITY), Some(0.0), Some(1e-44)]
        {
            let case = Case { dims: [8, columns], input, layout: Layout::Packed, given, gap: 0 };
            same_as_the_cpu(case, &values, &sim);
        }
    }
    // As the documentation has it.
    let case =
        Case { dims: [8, columns], input: DType::F32, layout: Layout::RowMajor, given: Some(0.25), gap: 0 };
    let [codes, scales, _, back] = run(case, &values, &sim);
    let back = DType::F32.decode(&back);
    assert_eq!((scales[2], codes[20]), (0x7e, 0x07), "an infinity has the scale 448 and the code 6");
    assert_eq!(scales[3], 1, "zeros have the smallest scale");
    assert!(back[48..64].iter().all(|x| *x == 0.0));
    assert!(scales[2 * 4 + 2] == 0x7f && back[2 * columns + 32..][..16].iter().all(|x| x.is_nan()));
    assert!(back[2 * columns + 48..][..16].iter().all(|x| *x == 0.0), "no other block notices");
}

#[test]
fn a_matrix_of_zeros_has_the_smallest_scales() {
    let sim = Device::sim();
    for (turn, layout) in Layout::ALL.into_iter().enumerate() {
        for (given, of_all) in [(None, 1e-4 / 2688.0), (Some(12.5), 12.5f32)] {
            let input = [DType::Bf16, DType::F16, DType::F32][turn % 3];
            let case = Case { dims: [130, 64], input, layout, given, gap: 0 };
            for device in [&Device::Cpu, &sim] {
                let [codes, scales, found, back] = run(case, &[0.0; 130 * 64], device);
                assert_eq!(found, of_all.to_le_bytes(), "{case:?} on {device}");
                assert!(codes.iter().chain(&back).all(|byte| *byte == 0), "{case:?} on {device}");
                // Of blocks, rows 130 to 255 only fill up.
                let smallest = scales.iter().filter(|scale| **scale == 1).count();
                let rest = scales.iter().filter(|scale| **scale == 0).count();
                assert_eq!([smallest, rest], [130 * 4, scales.len() - 130 * 4], "{case:?} on {device}");
            }
        }
    }
}

#[test]
fn a_matrix_without_elements_is_left_alone() {
    for device in [Device::Cpu, Device::sim()] {
        for [rows, columns] in [[0, 32], [3, 0]] {
            let x = Tensor::zeros(DType::Bf16, &[rows, columns], &device).unwrap();
            let mut codes = Tensor::zeros(DType::U8, &[rows, columns / 2], &device).unwrap();
            let mut scales = Tensor::zeros(DType::E4m3, &[rows, columns / 16], &device).unwrap();
            let mut of_all = Tensor::from_f32(DType::F32, &[3.0], &[1], &device).unwrap();
            let computed = TensorScale::Computed(&mut of_all);
            quantize_nvfp4(&x, &mut codes, &mut scales, computed, &LaunchOptions::default()).unwrap();
            assert_eq!(of_all.to_vec_f32().unwrap(), [3.0]);
        }
    }
}

#[test]
fn addresses_give_the_bytes_of_tensors() {
    let device = Device::sim();
    let (rows, columns) = (5, 96);
    let values = values(2, [rows, columns]);
    let case =
        Case { dims: [rows, columns], input: DType::F16, layout: Layout::Blocked, given: None, gap: 0 };
    let expected = run(case, &values, &device);
    let x = Tensor::from_f32(DType::F16, &values, &[rows, columns], &device).unwrap();
    let codes = Tensor::empty(DType::U8, &[rows, columns / 2], &device).unwrap();
    let scales = blocked_scales(rows, columns / 16, &device).unwrap();
    let of_all = Tensor::empty(DType::F32, &[1], &device).unwrap();
    let back = Tensor::empty(DType::F16, &[rows, columns], &device).unwrap();
    let call = RawNvfp4 {
        rows,
        columns,
        x: x.address(),
        x_type: DType::F16,
        x_pitch: columns,
        codes: codes.address(),
        codes_pitch: columns / 2,
        scales: scales.address(),
        scale_layout: RawScales::Blocked,
        tensor_scale: of_all.address(),
        computed: true,
    };
    let options = LaunchOptions::default();
    // SAFETY: the tensors live on, and nobody else uses them.
    unsafe {
        quantize_nvfp4_raw(&device, &call, &options).unwrap();
        dequantize_nvfp4_raw(&device, &RawNvfp4 { x: back.address(), ..call }, &options).unwrap();
    }
    assert_eq!([codes, scales, of_all, back].map(|tensor| tensor.to_bytes().unwrap()), expected);
    // SAFETY: it is refused before anything is touched.
    let refused = unsafe { quantize_nvfp4_raw(&Device::Cpu, &call, &options) };
    assert!(refused.is_err());
}

/// Each rule that is broken alone names its argument.
#[test]
fn bad_arguments_are_refused_by_name() {
    let device = Device::Cpu;
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
    let good = || {
        [
            new(DType::Bf16, &[8, 64]),
            new(DType::U8, &[8, 32]),
            new(DType::E4m3, &[8, 4]),
            new(DType::F32, &[1]),
        ]
    };
    let attempt = |[x, mut codes, mut scales, of_all]: [Tensor; 4]| {
        let options = LaunchOptions::default();
        quantize_nvfp4(&x, &mut codes, &mut scales, TensorScale::Given(&of_all), &options)
    };
    attempt(good()).expect("it is good");
    let with = |place: usize, tensor: Tensor| {
        let mut arguments = good();
        arguments[place] = tensor;
        attempt(arguments)
    };
    let cases = [
        (with(0, new(DType::E4m3, &[8, 64])), "x"),
        (with(0, new(DType::Bf16, &[8, 63])), "x"),
        (with(0, new(DType::Bf16, &[7, 64])), "x"),
        (with(0, new(DType::Bf16, &[8, 8, 8])), "x"),
        (with(1, new(DType::E4m3, &[8, 32])), "codes"),
        (with(1, new(DType::U8, &[256])), "codes"),
        (with(2, new(DType::F32, &[8, 4])), "scales"),
        (with(2, new(DType::E4m3, &[8, 3])), "scales"),
        (with(2, new(DType::I32, &[8, 2])), "scales"),
        (with(2, new(DType::I32, &[1, 2, 32, 4])), "scales"),
        (with(3, new(DType::Bf16, &[1])), "tensor_scale"),
        (with(3, new(DType::F32, &[2])), "tensor_scale"),
        (with(3, new(DType::F32, &[1, 1])), "tensor_scale"),
    ];
    for (i, (result, argument)) in cases.into_iter().enumerate() {
        let error = result.expect_err("the rule is broken");
        assert_eq!(error.argument(), Some(argument), "case {i}: {error}");
    }
    let [x, mut codes, _, of_all] = good();
    let mut overlapping = x.clone();
    let options = LaunchOptions::default();
    let inverse = dequantize_nvfp4(&codes, &new(DType::E4m3, &[8, 5]), &of_all, &mut overlapping, &options);
    assert!(matches!(inverse, Err(Error::ScaleShape { argument: "scales", .. })), "{inverse:?}");
    let mut same = Tensor::zeros(DType::U8, &[8, 36], &device).unwrap();
    codes = same.narrow(1, 0, 32).unwrap();
    let mut scales = Tensor::zeros(DType::I32, &[8, 1], &Device::sim()).unwrap();
    let elsewhere = quantize_nvfp4(&x, &mut codes, &mut scales, TensorScale::Given(&of_all), &options);
    assert!(matches!(elsewhere, Err(Error::Device { argument: "scales", .. })), "{elsewhere:?}");
    same.write_bytes(&[0; 8 * 36]).unwrap();
}
