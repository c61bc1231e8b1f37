//! The rules of quantization: each broken alone names its variant and its argument, and everything valid passes.

use oxigemm::cast::ScaleFormat;
use oxigemm::check::{Dequantize, Operand, Quantize, QuantizeSource, TransformScales};
use oxigemm::{
    DType, Device, DeviceId, Error, Granularity, LaunchOptions, RawQuantize, RawScales, RawSource, Tensor,
    quantize, quantize_raw,
};

const GPU: DeviceId = DeviceId::Cuda(0);

/// A contiguous matrix, a gigabyte apart from the others.
fn matrix(name: &'static str, dtype: DType, [rows, columns]: [i64; 2], place: u64) -> Operand {
    Operand::matrix(name, dtype, [rows, columns], [columns, 1], place << 30, GPU)
}

fn list(place: u64, length: i64) -> Operand {
    Operand { rank: 1, ..matrix("rows", DType::I32, [length, 1], place) }
}

fn good() -> Quantize {
    Quantize {
        x: matrix("x", DType::Bf16, [64, 512], 1),
        codes: matrix("codes", DType::E4m3, [64, 512], 2),
        scales: matrix("scales", DType::F32, [64, 4], 3),
        granularity: Granularity::PerToken,
        format: ScaleFormat::PowerOfTwo,
        source: QuantizeSource::Matrix,
    }
}

fn gathering() -> Quantize {
    Quantize { source: QuantizeSource::Rows(list(4, 64)), ..good() }
}

fn named(arguments: &mut Quantize) -> &mut Operand {
    match &mut arguments.source {
        QuantizeSource::Rows(rows) => rows,
        _ => panic!("it gathers"),
    }
}

fn changed<T>(mut arguments: T, change: fn(&mut T)) -> T {
    change(&mut arguments);
    arguments
}

macro_rules! refused {
    ($name:ident, $from:expr, $variant:ident, $argument:literal, $break:expr) => {
        #[test]
        fn $name() {
            $from.check().expect("it is good").expect("there is work to do");
            let error = changed($from, $break).check().expect_err("the rule is broken");
            assert!(matches!(error, Error::$variant { argument: $argument, .. }), "found {error:?}");
            assert!(error.to_string().starts_with(concat!("`", $argument, "` ")), "{error}");
        }
    };
}

refused!(x_of_rank_3, good(), Rank, "x", |x| x.x.rank = 3);
refused!(codes_of_rank_1, good(), Rank, "codes", |x| x.codes.rank = 1);
refused!(scales_of_rank_3, good(), Rank, "scales", |x| x.scales.rank = 3);
refused!(x_of_e4m3, good(), DType, "x", |x| x.x.dtype = DType::E4m3);
refused!(codes_of_bf16, good(), DType, "codes", |x| x.codes.dtype = DType::Bf16);
refused!(scales_of_bf16, good(), DType, "scales", |x| x.scales.dtype = DType::Bf16);
refused!(packed_scales_that_are_no_powers, good(), DType, "scales", |x| {
    x.scales = matrix("scales", DType::I32, [64, 1], 3);
    x.format = ScaleFormat::F32;
});
refused!(packed_scales_of_blocks, good(), DType, "scales", |x| {
    x.scales = matrix("scales", DType::I32, [1, 1], 3);
    x.granularity = Granularity::PerBlock;
});
refused!(fp4_of_another_granularity, good(), DType, "codes", |x| {
    x.codes = matrix("codes", DType::U8, [64, 256], 2);
});
refused!(x_of_other_rows, good(), Shape, "x", |x| x.x.dims[0] = 63);
refused!(x_of_negative_rows, good(), Shape, "x", |x| x.x.dims[0] = -1);
refused!(too_few_scales, good(), ScaleShape, "scales", |x| x.scales.dims[1] = 3);
refused!(one_scale_for_all_of_k, good(), ScaleShape, "scales", |x| x.scales.dims[1] = 1);
refused!(one_scale_for_all_rows, good(), ScaleShape, "scales", |x| x.scales.dims[0] = 1);
refused!(scales_of_another_granularity, good(), ScaleShape, "scales", |x| {
    x.granularity = Granularity::PerRow;
});
refused!(too_few_packed_scales, good(), ScaleShape, "scales", |x| {
    x.scales = matrix("scales", DType::I32, [64, 2], 3);
});
refused!(blocks_of_another_shape, good(), ScaleShape, "scales", |x| {
    x.scales = Operand { rank: 4, dims: [1, 2, 32, 4], ..matrix("scales", DType::I32, [1, 1], 3) };
});
refused!(blocks_with_gaps, good(), ScaleLayout, "scales", |x| {
    let blocks = matrix("scales", DType::I32, [1, 1], 3);
    x.scales = Operand { rank: 4, dims: [1, 1, 32, 4], strides: [256, 256, 8, 1], ..blocks };
});
refused!(x_in_column_major, good(), Stride, "x", |x| x.x.strides = [1, 64, 1, 1]);
refused!(codes_with_rows_that_overlap, good(), Stride, "codes", |x| x.codes.strides[0] = 511);
refused!(scales_that_overlap, good(), ScaleLayout, "scales", |x| x.scales.strides = [1, 1, 1, 1]);
refused!(scales_backwards, good(), ScaleLayout, "scales", |x| x.scales.strides[0] = -4);
refused!(scales_far_apart, good(), Overflow, "scales", |x| x.scales.strides = [1, 1 << 28, 1, 1]);
refused!(x_with_a_pitch_beyond_32_bits, good(), Overflow, "x", |x| x.x.strides[0] = 1 << 32);
refused!(x_off_its_elements, good(), Alignment, "x", |x| x.x.address += 1);
refused!(scales_off_their_elements, good(), Alignment, "scales", |x| x.scales.address += 2);
refused!(codes_on_another_device, good(), Device, "codes", |x| x.codes.device = DeviceId::Cuda(1));
refused!(scales_on_the_host, good(), Device, "scales", |x| x.scales.device = DeviceId::Cpu);
refused!(x_null, good(), NullPointer, "x", |x| x.x.address = 0);
refused!(codes_null, good(), NullPointer, "codes", |x| x.codes.address = 0);
refused!(scales_null, good(), NullPointer, "scales", |x| x.scales.address = 0);
refused!(codes_in_x, good(), Overlap, "x", |x| x.codes.address = x.x.address + 1024);
refused!(scales_in_x, good(), Overlap, "x", |x| x.scales.address = x.x.address);
refused!(scales_in_codes, good(), Overlap, "codes", |x| x.scales.address = x.codes.address);
refused!(swiglu_without_ups, good(), Shape, "x", |x| x.source = QuantizeSource::SwiGlu);
refused!(gathered_blocks, gathering(), Shape, "granularity", |x| {
    x.granularity = Granularity::PerBlock;
    x.scales = matrix("scales", DType::F32, [1, 4], 3);
});
refused!(gathered_e5m2, gathering(), DType, "codes", |x| x.codes.dtype = DType::E5m2);
refused!(gathered_columns, gathering(), Shape, "x", |x| x.x.dims[1] = 256);
refused!(rows_of_f32, gathering(), DType, "rows", |x| named(x).dtype = DType::F32);
refused!(rows_in_a_matrix, gathering(), Rank, "rows", |x| named(x).rank = 2);
refused!(too_few_rows, gathering(), Shape, "rows", |x| named(x).dims[0] = 63);
refused!(rows_with_gaps, gathering(), Stride, "rows", |x| named(x).strides[0] = 2);
refused!(rows_null, gathering(), NullPointer, "rows", |x| named(x).address = 0);
refused!(rows_in_codes, gathering(), Overlap, "rows", |x| named(x).address = x.codes.address);
refused!(rows_on_another_device, gathering(), Device, "rows", |x| named(x).device = DeviceId::Cpu);

fn normalizing() -> Quantize {
    let weight = Operand { rank: 1, ..matrix("weight", DType::Bf16, [512, 1], 4) };
    Quantize { source: QuantizeSource::RmsNorm { weight, epsilon: 1e-6 }, ..good() }
}

fn weight(arguments: &mut Quantize) -> &mut Operand {
    match &mut arguments.source {
        QuantizeSource::RmsNorm { weight, .. } => weight,
        _ => panic!("it normalizes"),
    }
}

refused!(weights_of_another_type, normalizing(), DType, "weight", |x| weight(x).dtype = DType::F32);
refused!(too_few_weights, normalizing(), Shape, "weight", |x| weight(x).dims[0] = 511);
refused!(weights_on_another_device, normalizing(), Device, "weight", |x| weight(x).device = DeviceId::Cpu);
refused!(weights_in_scales, normalizing(), Overlap, "weight", |x| weight(x).address = x.scales.address);
refused!(a_negative_epsilon, normalizing(), Shape, "epsilon", |x| {
    x.source = QuantizeSource::RmsNorm { weight: *weight(x), epsilon: -1.0 };
});
refused!(normalized_x_of_another_shape, normalizing(), Shape, "x", |x| x.x.dims[0] = 63);

fn good_back() -> Dequantize {
    let Quantize { x, codes, scales, granularity, .. } = good();
    Dequantize { codes, scales, x, granularity }
}

refused!(back_to_e4m3, good_back(), DType, "x", |x| x.x.dtype = DType::E4m3);
refused!(back_to_another_shape, good_back(), Shape, "x", |x| x.x.dims[1] = 256);
refused!(back_with_other_scales, good_back(), ScaleShape, "scales", |x| x.scales.dims[0] = 32);
refused!(back_into_the_codes, good_back(), Overlap, "codes", |x| x.x.address = x.codes.address);
refused!(back_on_another_device, good_back(), Device, "x", |x| x.x.device = DeviceId::Cpu);

fn good_transform() -> TransformScales {
    TransformScales { from: matrix("from", DType::F32, [64, 4], 1), to: matrix("to", DType::I32, [64, 1], 2) }
}

fn grouped_transform() -> TransformScales {
    let cube = |name, place| Operand {
        rank: 3,
        dims: [3, 64, 4, 1],
        strides: [256, 4, 1, 1],
        ..matrix(name, DType::F32, [1, 1], place)
    };
    TransformScales { from: cube("from", 1), to: cube("to", 2) }
}

refused!(from_i32, good_transform(), DType, "from", |x| x.from.dtype = DType::I32);
refused!(to_bf16, good_transform(), DType, "to", |x| x.to.dtype = DType::Bf16);
refused!(to_another_shape, good_transform(), ScaleShape, "to", |x| x.to.dims[1] = 4);
refused!(to_itself, good_transform(), Overlap, "from", |x| x.to.address = x.from.address);
refused!(groups_to_a_matrix, grouped_transform(), Rank, "to", |x| x.to.rank = 2);
refused!(to_other_groups, grouped_transform(), Shape, "to", |x| x.to.dims[0] = 2);
refused!(to_groups_that_overlap, grouped_transform(), ScaleLayout, "to", |x| x.to.strides[0] = 100);

#[test]
fn what_vectors_cannot_reach_is_moved_one_by_one() {
    let vectors =
        |change: fn(&mut Quantize)| changed(good(), change).check().unwrap().unwrap().args.flags & 1 == 1;
    assert!(vectors(|_| {}));
    assert!(vectors(|x| x.x.strides[0] = 520));
    assert!(!vectors(|x| x.x.strides[0] = 516));
    assert!(!vectors(|x| x.x.address += 2));
    assert!(!vectors(|x| x.codes.address += 4));
    assert!(!vectors(|x| x.codes.strides[0] = 513));
}

#[test]
fn a_matrix_that_kernels_cannot_count_is_refused() {
    let mut arguments = good();
    arguments.x.dims[0] = i64::from(i32::MAX);
    arguments.codes.dims[0] = i64::from(i32::MAX);
    arguments.scales = matrix("scales", DType::F32, [1, 1], 3);
    arguments.granularity = Granularity::PerTensor;
    (arguments.codes.address, arguments.scales.address) = (1 << 50, 1 << 55);
    assert!(matches!(arguments.check(), Err(Error::Overflow { argument: "codes", .. })));
}

#[test]
fn streams_and_addresses_are_not_for_the_cpu() {
    let x = Tensor::zeros(DType::Bf16, &[1, 8], &Device::Cpu).unwrap();
    let mut codes = Tensor::zeros(DType::E4m3, &[1, 8], &Device::Cpu).unwrap();
    let mut scales = Tensor::zeros(DType::F32, &[1, 1], &Device::Cpu).unwrap();
    let options = LaunchOptions { stream: Some(Device::sim().new_stream().unwrap()), ..Default::default() };
    let (token, format) = (Granularity::PerToken, ScaleFormat::F32);
    let result = quantize(&x, &mut codes, &mut scales, token, format, &options);
    assert!(matches!(result, Err(Error::Device { argument: "stream", .. })), "{result:?}");
    let call = RawQuantize {
        rows: 1,
        columns: 8,
        x: x.address(),
        x_type: DType::Bf16,
        x_pitch: 8,
        codes: codes.address(),
        code_type: DType::E4m3,
        codes_pitch: 8,
        scales: scales.address(),
        scale_layout: RawScales::F32([1, 1]),
        granularity: token,
        format,
        source: RawSource::Matrix,
    };
    // SAFETY: the tensors are as large as described, and live on.
    let result = unsafe { quantize_raw(&Device::Cpu, &call, &LaunchOptions::default()) };
    assert!(matches!(result, Err(Error::Device { argument: "device", .. })), "{result:?}");
}
