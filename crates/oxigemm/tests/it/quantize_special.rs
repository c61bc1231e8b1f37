//! Quantization of zeros and of what is not finite: the result of the CPU's casts, in the simulator too.

use crate::quantize::{CODES, Case, INPUTS, Layout, SPECIALS, run, schedule};
use oxigemm::cast::ScaleFormat;
use oxigemm::{DType, Device, Granularity, LaunchOptions, Sim, Tensor, dequantize, quantize, random};

/// Infinities, NaN, subnormals, the largest numbers and zeros, in blocks of their own and beside others.
#[test]
fn what_is_not_finite_has_the_result_of_the_cast() {
    let sim = Device::sim();
    let (rows, columns) = (2 * SPECIALS.len(), 128);
    let mut values = vec![0.0; rows * columns];
    for (i, special) in SPECIALS.into_iter().enumerate() {
        values[2 * i * columns + 5 * i] = special;
        let row = &mut values[(2 * i + 1) * columns..][..columns];
        row.copy_from_slice(&random::normals(i as u64, columns));
        row[100] = special;
    }
    for granularity in Granularity::ALL {
        for (input, code) in
            [(DType::F32, DType::E4m3), (DType::Bf16, DType::E5m2), (DType::F16, DType::E4m3)]
        {
            for format in [ScaleFormat::F32, ScaleFormat::PowerOfTwo] {
                let case = Case {
                    dims: [rows, columns],
                    input,
                    code,
                    granularity,
                    format,
                    layout: Layout::RowMajor,
                    gap: 0,
                    offset: 0,
                };
                let (expected, found) = (run(case, &values, &Device::Cpu), run(case, &values, &sim));
                assert_eq!(expected, found, "{case:?}");
            }
        }
    }
}

/// What the documentation promises of it.
#[test]
fn a_block_that_is_not_finite_is_nan_and_no_other_is() {
    let device = Device::sim();
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = vec![1.0f32; 256];
        values[7] = special;
        let x = Tensor::from_f32(DType::F32, &values, &[1, 256], &device).unwrap();
        let mut codes = Tensor::empty(DType::E4m3, &[1, 256], &device).unwrap();
        let mut scales = Tensor::empty(DType::F32, &[1, 2], &device).unwrap();
        let mut back = Tensor::empty(DType::F32, &[1, 256], &device).unwrap();
        let (granularity, options) = (Granularity::PerToken, LaunchOptions::default());
        for format in [ScaleFormat::F32, ScaleFormat::PowerOfTwo] {
            quantize(&x, &mut codes, &mut scales, granularity, format, &options).unwrap();
            dequantize(&codes, &scales, &mut back, granularity, &options).unwrap();
            let back = back.to_vec_f32().unwrap();
            assert!(back[128..].iter().all(|x| (x - 1.0).abs() < 0.07));
            match format {
                ScaleFormat::F32 => assert!(back[..128].iter().all(|x| x.is_nan())),
                ScaleFormat::PowerOfTwo => {
                    assert!(back[..128].iter().enumerate().all(|(i, x)| *x == 0.0 || i == 7));
                    assert_eq!(back[7].is_nan(), special.is_nan());
                    assert!(special.is_nan() || back[7].abs() > 1e38);
                }
            }
        }
    }
}

/// The largest magnitude of a code.
fn largest(code: DType) -> f32 {
    match code {
        DType::E4m3 => 448.0,
        DType::E5m2 => 57344.0,
        _ => 6.0,
    }
}

#[test]
fn zeros_have_the_smallest_scale_and_codes_of_zero() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let dims = [130, 136];
    let every = Granularity::ALL.into_iter().flat_map(|granularity| CODES.map(|code| (granularity, code)));
    let fp4 = (Granularity::PerGroup32, DType::U8);
    for (turn, (granularity, code)) in every.chain([fp4]).enumerate() {
        for (format, smallest) in [
            (ScaleFormat::F32, 1e-4 / largest(code)),
            (ScaleFormat::PowerOfTwo, (1e-4 / largest(code)).log2().ceil().exp2()),
        ] {
            let (input, layout) = (INPUTS[turn % 3], Layout::ALL[turn % 2]);
            let case = Case { dims, input, code, granularity, format, layout, gap: 0, offset: 0 };
            sim.set_options(schedule(turn / 2));
            for device in [&Device::Cpu, &device] {
                let (codes, scales, back) = run(case, &[0.0; 130 * 136], device);
                let scales = DType::F32.decode(&scales);
                assert!(scales.iter().all(|scale| *scale == smallest), "{case:?}: {}", scales[0]);
                assert!(codes.iter().chain(&back).all(|byte| *byte == 0), "{case:?} on {device}");
            }
        }
    }
}

/// Blocks of zeros beside others, of every granularity that has several blocks.
#[test]
fn zeros_keep_their_scale_beside_other_blocks() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    for (turn, granularity) in Granularity::ALL.into_iter().enumerate() {
        let (rows, columns) = (130, 136);
        // Only the last row and the last column are no zeros: of one scale for all there is no such block.
        let values: Vec<f32> = (0..rows * columns)
            .map(|i| if i / columns == rows - 1 || i % columns == columns - 1 { 448.0 } else { 0.0 })
            .collect();
        let (format, layout) = (ScaleFormat::F32, Layout::RowMajor);
        let (input, code) = (INPUTS[turn % 3], DType::E4m3);
        let case =
            Case { dims: [rows, columns], input, code, granularity, format, layout, gap: 0, offset: 0 };
        sim.set_options(schedule(turn));
        let (_, scales, back) = run(case, &values, &device);
        let scales = DType::F32.decode(&scales);
        let alone = matches!(granularity, Granularity::PerTensor | Granularity::PerRow);
        assert_eq!(scales[0], if alone { 1.0 } else { 1e-4 / 448.0 }, "{granularity}");
        assert_eq!(scales[scales.len() - 1], 1.0, "{granularity}");
        assert_eq!(input.decode(&back), values, "{granularity}");
    }
}

/// What the documentation promises of MXFP4: the scale of a block of ones that has a number in it, and the number's code.
#[test]
fn what_is_not_finite_in_fp4_is_as_documented() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let end = 2f32.powi(127);
    let cases = [
        (f32::INFINITY, end, 7u8),
        (f32::NEG_INFINITY, end, 15),
        (f32::NAN, end, 7),
        (-f32::NAN, end, 15),
        (f32::MAX, 2f32.powi(126), 6),
        (f32::MIN, 2f32.powi(126), 14),
        (1e-40, 0.25, 0),
        (-1e-40, 0.25, 8),
        (f32::MIN_POSITIVE, 0.25, 0),
        (-0.0, 0.25, 8),
    ];
    let dims = [cases.len(), 32];
    let mut values = vec![1.0f32; cases.len() * 32];
    for (row, (special, ..)) in values.chunks_mut(32).zip(cases) {
        row[5] = special;
    }
    for (turn, layout) in Layout::ALL.into_iter().enumerate() {
        sim.set_options(schedule(turn));
        for format in [ScaleFormat::F32, ScaleFormat::PowerOfTwo] {
            if format == ScaleFormat::F32 && matches!(layout, Layout::Packed | Layout::Blocked) {
                continue;
            }
            for input in INPUTS {
                let (code, granularity) = (DType::U8, Granularity::PerGroup32);
                let case = Case { dims, input, code, granularity, format, layout, gap: 0, offset: 0 };
                assert_eq!(run(case, &values, &Device::Cpu), run(case, &values, &device), "{case:?}");
            }
        }
    }
    let of = |format| Case {
        dims,
        input: DType::F32,
        code: DType::U8,
        granularity: Granularity::PerGroup32,
        format,
        layout: Layout::RowMajor,
        gap: 0,
        offset: 0,
    };
    let (codes, scales, _) = run(of(ScaleFormat::PowerOfTwo), &values, &device);
    let scales = DType::F32.decode(&scales);
    for (i, (special, scale, code)) in cases.into_iter().enumerate() {
        assert_eq!((scales[i], codes[16 * i + 2] >> 4), (scale, code), "{special}");
        // 1 is 4 of 0.25, and nothing beside what is so large.
        assert_eq!(codes[16 * i], if scale == 0.25 { 0x66 } else { 0 }, "{special}");
    }
    // Subnormal numbers alone have the scale of zeros, and their signs.
    let alone: Vec<f32> = [1e-40, -1e-40].into_iter().cycle().take(32).collect();
    let (codes, scales, _) = run(Case { dims: [1, 32], ..of(ScaleFormat::PowerOfTwo) }, &alone, &device);
    assert_eq!((codes, scales), (vec![0x80; 16], 2f32.powi(-15).to_le_bytes().to_vec()));
    let (_, scales, back) = run(of(ScaleFormat::F32), &values, &device);
    let (scales, back) = (DType::F32.decode(&scales), DType::F32.decode(&back));
    for (i, row) in back.chunks(32).enumerate() {
        let special = cases[i].0;
        let others = [&row[..5], &row[6..]].concat();
        assert_eq!(others.iter().all(|x| x.is_nan()), !special.is_finite(), "{special}");
        assert_eq!(scales[i].is_nan(), special.is_nan());
        assert_eq!(scales[i] == f32::INFINITY, special.is_infinite());
        // e2m1 has no NaN: six times an infinite scale is infinite.
        assert!(
            special.is_finite() || row[5] == special || (special.is_nan() && row[5].is_nan()),
            "{special}"
        );
    }
}
