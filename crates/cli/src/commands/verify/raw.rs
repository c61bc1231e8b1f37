//! Checks of the unsafe functions, which take addresses.

use oxigemm::{
    DType, Device, GemmLayout, GemmOptions, RawFp8Gemm, RawHalfGemm, ScalesOfB, Stream, Tensor,
    fp8_gemm_nt_raw, half_gemm_raw,
};
use oxigemm_testkit::{AddendKind, BF16, Effort, FP16, Failure, Fp8Pair, GemmCase, OperandTypes};

use super::{Check, Setup, ensure};

pub fn checks() -> Vec<Check> {
    let mut checks = vec![Check::with_kernels("raw pointers", fp8)];
    for types in [BF16, FP16] {
        let name = format!("{types}: raw pointers");
        checks.push(Check::with_kernels(name, move |setup| half(setup, types)));
    }
    checks
}

/// The unsafe function, with scales that have gaps in both directions.
fn fp8(setup: &Setup) -> Result<String, Failure> {
    let stream = setup.device.new_stream()?;
    let cases = [
        (5, 200, 300, AddendKind::None),
        (129, 384, 1000, AddendKind::Inplace),
        (300, 96, 512, AddendKind::Other),
    ];
    for (m, n, k, addend) in cases {
        let case = GemmCase { addend, ..GemmCase::fp8(m, n, k) };
        let mut gemm = case.on(&setup.device)?;
        let spread = |scales: &[f32], [rows, blocks]: [usize; 2]| -> Result<_, Failure> {
            let mut values = vec![f32::NAN; rows * blocks * 6];
            for (i, scale) in scales.iter().enumerate() {
                values[i / blocks * blocks * 6 + i % blocks * 2] = *scale;
            }
            Ok((Tensor::from_slice(&values, &[values.len()], &setup.device)?, [blocks * 6, 2]))
        };
        let data = gemm.data.clone();
        let Fp8Pair { a, b } = data.groups[0].quantized()?;
        let (sfa, sfa_strides) = spread(&a.scales, a.scale_dims())?;
        let (sfb, sfb_strides) = spread(&b.scales, b.scale_dims())?;
        let c = match addend {
            AddendKind::None => 0,
            AddendKind::Inplace => gemm.d.address(),
            AddendKind::Other => gemm.c.as_ref().map_or(0, Tensor::address),
        };
        let raw = RawFp8Gemm {
            m,
            n,
            k,
            ab_types: [DType::E4m3; 2],
            a: gemm.a.address(),
            a_pitch: gemm.a.strides()[0],
            sfa: sfa.address(),
            sfa_strides,
            b: gemm.b.address(),
            b_pitch: gemm.b.strides()[0],
            sfb: sfb.address(),
            sfb_strides,
            scales_of_b: ScalesOfB::Blocks,
            c,
            c_pitch: n,
            d: gemm.d.address(),
            d_pitch: gemm.d.strides()[0],
            d_type: case.d_type,
        };
        // SAFETY: the stream is ours, and all tensors live until it is done.
        unsafe {
            // On a GPU as another library would pass its own.
            let stream = match (&stream, &setup.device) {
                (Stream::Cuda(stream), Device::Cuda(cuda)) => cuda.stream_from_raw(stream.raw()).into(),
                _ => stream.clone(),
            };
            let options = GemmOptions { stream: Some(stream), ..Default::default() };
            fp8_gemm_nt_raw(&setup.device, &raw, &options)?;
            let null = RawFp8Gemm { b: 0, ..raw };
            let error = fp8_gemm_nt_raw(&setup.device, &null, &options);
            ensure(matches!(&error, Err(error) if error.argument() == Some("b")), || format!("{error:?}"))?;
        }
        stream.synchronize()?;
        let verdict = gemm.judge(Effort::QUICK)?;
        ensure(verdict.right, || format!("{case}: {verdict:?}"))?;
        ensure(gemm.surroundings_untouched()?, || format!("{case}: written outside of D"))?;
    }
    Ok(format!("{} GEMMs, and null was refused", cases.len()))
}

fn half(setup: &Setup, types: OperandTypes) -> Result<String, Failure> {
    let mut count = 0;
    for layout in GemmLayout::ALL {
        let dims @ [m, n, k] = [33, 72, 200];
        let case = GemmCase::dense(types, layout, dims);
        let case = GemmCase { addend: AddendKind::Inplace, d_type: DType::F32, ..case };
        let mut by_tensors = case.on(&setup.device)?;
        by_tensors.run(&GemmOptions::default())?;
        let gemm = case.on(&setup.device)?;
        let strides = |x: &Tensor, k_first: bool| match (k_first, x.strides()) {
            (false, strides) => [strides[0], strides[1]],
            (true, strides) => [strides[1], strides[0]],
        };
        let d = &gemm.d;
        let raw = RawHalfGemm {
            m,
            n,
            k,
            ab_type: types.ab,
            a: gemm.a.address(),
            a_strides: strides(&gemm.a, layout.a_begins_with_k()),
            b: gemm.b.address(),
            b_strides: strides(&gemm.b, layout.b_begins_with_k()),
            c: d.address(),
            c_pitch: d.strides()[0],
            d: d.address(),
            d_pitch: d.strides()[0],
            d_type: d.dtype(),
        };
        let null = RawHalfGemm { a: 0, ..raw };
        // SAFETY: the operands are tensors of this device that live until it is done; a null pointer is refused.
        let refused = unsafe {
            half_gemm_raw(&setup.device, &raw, &GemmOptions::default())?;
            half_gemm_raw(&setup.device, &null, &GemmOptions::default())
        };
        setup.device.synchronize()?;
        ensure(d.to_bytes()? == by_tensors.d.to_bytes()?, || {
            format!("{case}: other bits than tensors give")
        })?;
        ensure(matches!(&refused, Err(error) if error.argument() == Some("a")), || format!("{refused:?}"))?;
        count += 1;
    }
    Ok(format!("{count} layouts, the bits of the tensors"))
}
