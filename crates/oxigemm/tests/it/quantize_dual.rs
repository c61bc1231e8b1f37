//! A matrix and its transpose in one pass: in the simulator the bytes of the CPU's, and those are the bytes of two quantizations.

use oxigemm::cast::ScaleFormat;
use oxigemm::sim::{Options, Policy};
use oxigemm::{
    DType, Device, Granularity, LaunchOptions, RawQuantize, RawScales, RawSource, RawTransposedCopy, Sim,
    Tensor, TransposedCopy, quantize, quantize_with_transpose, quantize_with_transpose_raw, random,
    tma_aligned_scales,
};

#[derive(Clone, Copy, Debug)]
struct Case {
    dims: [usize; 2],
    input: DType,
    code: DType,
    granularity: Granularity,
    format: ScaleFormat,
    mn_major: bool,
    gap: usize,
}

fn matrix(dtype: DType, [rows, columns]: [usize; 2], gap: usize, device: &Device) -> Tensor {
    let whole = Tensor::zeros(dtype, &[rows, columns + 2 * gap], device).unwrap();
    whole.narrow(1, gap, columns).unwrap()
}

fn scales([rows, columns]: [usize; 2], mn_major: bool, device: &Device) -> Tensor {
    match mn_major {
        true => tma_aligned_scales(rows, columns, device).unwrap(),
        false => Tensor::empty(DType::F32, &[rows, columns], device).unwrap(),
    }
}

fn values(seed: u64, count: usize) -> Vec<f32> {
    let spread = |i: usize| 10f32.powi((random::bits(seed, (i / 37) as u64) % 9) as i32 - 5);
    random::normals(seed, count).into_iter().enumerate().map(|(i, x)| x * spread(i)).collect()
}

/// Codes and scales of the matrix, then of its transpose; of 128x128 the latter has no scales.
fn run(case: Case, values: &[f32], device: &Device) -> Vec<Vec<u8>> {
    let Case { dims: dims @ [rows, columns], input, code, granularity, format, mn_major, gap } = case;
    let mut x = matrix(input, dims, gap, device);
    x.write_f32(values).unwrap();
    let mut codes = matrix(code, dims, gap, device);
    let mut codes_t = matrix(code, [columns, rows], gap, device);
    let mut of_rows = scales(granularity.scale_dims(rows, columns), mn_major, device);
    let mut of_columns = scales(granularity.scale_dims(columns, rows), mn_major, device);
    let own = granularity == Granularity::PerToken;
    let copy = TransposedCopy { codes: &mut codes_t, scales: own.then_some(&mut of_columns) };
    let options = LaunchOptions::default();
    quantize_with_transpose(&x, &mut codes, &mut of_rows, copy, granularity, format, &options)
        .unwrap_or_else(|e| panic!("{case:?}: {e}"));
    let mut written = vec![codes, of_rows, codes_t];
    written.extend(own.then_some(of_columns));
    written.into_iter().map(|tensor| tensor.to_bytes().unwrap()).collect()
}

/// What two calls give, one for the matrix and one for its transpose.
fn apart(case: Case, values: &[f32]) -> Vec<Vec<u8>> {
    let Case { dims: [rows, columns], input, code, granularity, format, .. } = case;
    let one = |values: &[f32], [rows, columns]: [usize; 2]| {
        let x = Tensor::from_f32(input, values, &[rows, columns], &Device::Cpu).unwrap();
        let mut codes = Tensor::zeros(code, &[rows, columns], &Device::Cpu).unwrap();
        let mut scales = scales(granularity.scale_dims(rows, columns), false, &Device::Cpu);
        quantize(&x, &mut codes, &mut scales, granularity, format, &LaunchOptions::default()).unwrap();
        [codes.to_bytes().unwrap(), scales.to_bytes().unwrap()]
    };
    let across: Vec<f32> = (0..rows * columns).map(|i| values[i % rows * columns + i / rows]).collect();
    let mut all = [one(values, [rows, columns]), one(&across, [columns, rows])].concat();
    if granularity == Granularity::PerBlock {
        all.pop();
    }
    all
}

#[test]
fn every_type_and_alignment_is_two_quantizations() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let shapes = [[1, 128], [129, 136], [5, 77], [130, 24], [144, 264], [16, 8]];
    let with = |policy, seed| Options { policy, seed, ..Options::default() };
    let schedules = [with(Policy::Eager, 0), with(Policy::Lazy, 0), with(Policy::Random, 7)];
    let mut turn = 0;
    for input in [DType::Bf16, DType::F16, DType::F32] {
        for code in [DType::E4m3, DType::E5m2] {
            for granularity in [Granularity::PerToken, Granularity::PerBlock] {
                for format in [ScaleFormat::F32, ScaleFormat::PowerOfTwo] {
                    sim.set_options(schedules[turn % 3].clone());
                    let (dims, mn_major) = (shapes[turn % 6], turn / 3 % 2 == 0);
                    let gap = [0, 16, 3][turn / 2 % 3];
                    let case = Case { dims, input, code, granularity, format, mn_major, gap };
                    let values = values(turn as u64, dims[0] * dims[1]);
                    let expected = run(case, &values, &Device::Cpu);
                    assert_eq!(expected, apart(case, &values), "{case:?} on the CPU");
                    assert!(run(case, &values, &device) == expected, "{case:?}");
                    turn += 1;
                }
            }
        }
    }
}

/// A block has four tiles along the rows, and stores their scales together.
#[test]
fn scales_of_neighbouring_tiles_are_stored_together() {
    let case = Case {
        dims: [100 * 128 - 5, 512],
        input: DType::F16,
        code: DType::E4m3,
        granularity: Granularity::PerToken,
        format: ScaleFormat::F32,
        mn_major: false,
        gap: 0,
    };
    let values = values(9, case.dims[0] * case.dims[1]);
    let lazy = Options { policy: Policy::Lazy, ..Options::default() };
    let found = run(case, &values, &Device::Sim(Sim::with_options(lazy)));
    assert!(found == run(case, &values, &Device::Cpu));
}

/// Of a matrix with more tiles than there are blocks, a block has several, and what it does with one is under way while
/// it has another.
#[test]
fn a_block_has_one_tile_after_another() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let of_tiles = |granularity, gap| Case {
        dims: [4 * 128 + 1, 53 * 128],
        input: DType::Bf16,
        code: DType::E4m3,
        granularity,
        format: ScaleFormat::F32,
        mn_major: false,
        gap,
    };
    let with = |policy| Options { policy, ..Options::default() };
    for (case, policy) in [
        (of_tiles(Granularity::PerToken, 0), Policy::Lazy),
        (of_tiles(Granularity::PerBlock, 0), Policy::Random),
    ] {
        sim.set_options(with(policy));
        let values = values(3, case.dims[0] * case.dims[1]);
        assert!(run(case, &values, &device) == run(case, &values, &Device::Cpu), "{case:?}");
    }
}

#[test]
fn what_is_not_finite_is_so_in_its_row_and_in_its_column() {
    let dims = [130, 140];
    let mut values = values(9, dims[0] * dims[1]);
    for (i, special) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-40].into_iter().enumerate()
    {
        values[(17 * i + 3) * dims[1] + 29 * i] = special;
    }
    for granularity in [Granularity::PerToken, Granularity::PerBlock] {
        for format in [ScaleFormat::F32, ScaleFormat::PowerOfTwo] {
            let (input, code) = (DType::F32, DType::E4m3);
            let case = Case { dims, input, code, granularity, format, mn_major: false, gap: 0 };
            let expected = run(case, &values, &Device::Cpu);
            assert_eq!(expected, apart(case, &values), "{case:?} on the CPU");
            assert!(run(case, &values, &Device::sim()) == expected, "{case:?}");
        }
    }
}

#[test]
fn zeros_have_the_smallest_scale_and_codes_of_zero_both_ways() {
    let sim = Device::sim();
    for (turn, granularity) in [Granularity::PerToken, Granularity::PerBlock].into_iter().enumerate() {
        for (code, largest) in [(DType::E4m3, 448.0), (DType::E5m2, 57344.0)] {
            for (format, smallest) in [
                (ScaleFormat::F32, 1e-4f32 / largest),
                (ScaleFormat::PowerOfTwo, (1e-4f32 / largest).log2().ceil().exp2()),
            ] {
                let (dims, input) = ([130, 140], [DType::Bf16, DType::F32][turn]);
                let case = Case { dims, input, code, granularity, format, mn_major: turn == 0, gap: 0 };
                for device in [&Device::Cpu, &sim] {
                    let written = run(case, &[0.0; 130 * 140], device);
                    for codes in written.iter().step_by(2) {
                        assert!(codes.iter().all(|code| *code == 0), "{case:?} on {device}");
                    }
                    for scales in written.iter().skip(1).step_by(2) {
                        let scales = DType::F32.decode(scales);
                        assert!(scales.iter().all(|scale| *scale == smallest), "{case:?} on {device}");
                    }
                }
            }
        }
    }
}

#[test]
fn addresses_give_the_bytes_of_tensors() {
    let device = Device::sim();
    let dims @ [rows, columns] = [33, 136];
    let values = values(4, rows * columns);
    let (granularity, format) = (Granularity::PerToken, ScaleFormat::F32);
    let (input, code) = (DType::Bf16, DType::E4m3);
    let case = Case { dims, input, code, granularity, format, mn_major: false, gap: 0 };
    let x = Tensor::from_f32(input, &values, &dims, &device).unwrap();
    let new = |dtype, dims: &[usize]| Tensor::empty(dtype, dims, &device).unwrap();
    let written = [
        new(code, &dims),
        new(DType::F32, &[rows, 2]),
        new(code, &[columns, rows]),
        new(DType::F32, &[columns, 1]),
    ];
    let call = RawQuantize {
        rows,
        columns,
        x: x.address(),
        x_type: input,
        x_pitch: columns,
        codes: written[0].address(),
        code_type: code,
        codes_pitch: columns,
        scales: written[1].address(),
        scale_layout: RawScales::F32([2, 1]),
        granularity,
        format,
        source: RawSource::Matrix,
    };
    let copy = RawTransposedCopy {
        codes: written[2].address(),
        codes_pitch: rows,
        scales: Some((written[3].address(), [1, 1])),
    };
    // SAFETY: the tensors live on, and nobody else uses them.
    unsafe { quantize_with_transpose_raw(&device, &call, &copy, &LaunchOptions::default()).unwrap() };
    let found: Vec<Vec<u8>> = written.iter().map(|tensor| tensor.to_bytes().unwrap()).collect();
    assert_eq!(found, run(case, &values, &device));
}

/// Each rule that is broken alone names its argument.
#[test]
fn bad_arguments_are_refused_by_name() {
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &Device::Cpu).unwrap();
    let attempt = |granularity, codes_t: Tensor, scales: Tensor, scales_t: Option<Tensor>| {
        let (x, mut codes) = (new(DType::Bf16, &[64, 256]), new(DType::E4m3, &[64, 256]));
        let (mut codes_t, mut scales, mut scales_t) = (codes_t, scales, scales_t);
        let copy = TransposedCopy { codes: &mut codes_t, scales: scales_t.as_mut() };
        let options = LaunchOptions::default();
        quantize_with_transpose(
            &x,
            &mut codes,
            &mut scales,
            copy,
            granularity,
            ScaleFormat::PowerOfTwo,
            &options,
        )
    };
    let codes_t = || new(DType::E4m3, &[256, 64]);
    let scales = || new(DType::F32, &[64, 2]);
    let scales_t = || Some(new(DType::F32, &[256, 1]));
    let (token, block) = (Granularity::PerToken, Granularity::PerBlock);
    attempt(token, codes_t(), scales(), scales_t()).expect("it is good");
    attempt(block, codes_t(), new(DType::F32, &[1, 2]), None).expect("it is good");
    let cases = [
        (attempt(token, codes_t(), scales(), None), "granularity"),
        (attempt(block, codes_t(), new(DType::F32, &[1, 2]), scales_t()), "granularity"),
        (attempt(Granularity::PerRow, codes_t(), new(DType::F32, &[64, 1]), None), "granularity"),
        (attempt(token, new(DType::E5m2, &[256, 64]), scales(), scales_t()), "transposed_codes"),
        (attempt(token, new(DType::E4m3, &[64, 256]), scales(), scales_t()), "transposed_codes"),
        (attempt(token, codes_t(), new(DType::I32, &[64, 1]), scales_t()), "scales"),
        (attempt(token, codes_t(), scales(), Some(new(DType::F32, &[256, 2]))), "transposed_scales"),
        (attempt(token, codes_t(), scales(), Some(new(DType::Bf16, &[256, 1]))), "transposed_scales"),
    ];
    for (i, (result, argument)) in cases.into_iter().enumerate() {
        let error = result.expect_err("the rule is broken");
        assert_eq!(error.argument(), Some(argument), "case {i}: {error}");
    }
}
