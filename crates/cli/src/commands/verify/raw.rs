//! Checks of the unsafe functions, which take addresses.

use oxigemm::{
    DType, Device, GemmLayout, GemmOptions, RawGemm, RawMatrix, RawScaleFactors, Stream, Tensor, gemm_raw,
};
use oxigemm_testkit::{AddendKind, BF16, Effort, FP16, Failure, Fp8Pair, GemmCase, OperandTypes};

use super::{Check, Setup, ensure};

pub fn checks(_: &Setup) -> Vec<Check> {
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
            AddendKind::None => None,
            AddendKind::Inplace => Some((&gemm.d).into()),
            AddendKind::Other => gemm.c.as_ref().map(RawMatrix::from),
        };
        let (a, b, d) = ((&gemm.a).into(), (&gemm.b).into(), (&gemm.d).into());
        let [sfa, sfb] = [(&sfa, sfa_strides), (&sfb, sfb_strides)]
            .map(|(scales, strides)| RawScaleFactors::new(scales.address(), strides));
        let raw = RawGemm { c, ..RawGemm::new([m, n, k], a, b, d).with_scales(sfa, sfb) };
        // SAFETY: the stream is ours, and all tensors live until it is done.
        unsafe {
            // On a GPU as another library would pass its own.
            let stream = match (&stream, &setup.device) {
                (Stream::Cuda(stream), Device::Cuda(cuda)) => cuda.stream_from_raw(stream.raw()).into(),
                _ => stream.clone(),
            };
            let options = GemmOptions { stream: Some(stream), ..Default::default() };
            gemm_raw(&setup.device, &raw, &options)?;
            let null = RawGemm { b: RawMatrix { address: 0, ..b }, ..raw };
            let error = gemm_raw(&setup.device, &null, &options);
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
        let dims = [33, 72, 200];
        let case = GemmCase::dense(types, layout, dims);
        let case = GemmCase { addend: AddendKind::Inplace, d_type: DType::F32, ..case };
        let mut by_tensors = case.on(&setup.device)?;
        by_tensors.run(&GemmOptions::default())?;
        let gemm = case.on(&setup.device)?;
        let (d, a) = (&gemm.d, RawMatrix::from(&gemm.a));
        let raw = RawGemm { layout, c: Some(d.into()), ..RawGemm::new(dims, a, (&gemm.b).into(), d.into()) };
        let null = RawGemm { a: RawMatrix { address: 0, ..a }, ..raw };
        // SAFETY: the operands are tensors of this device that live until it is done; a null pointer is refused.
        let refused = unsafe {
            gemm_raw(&setup.device, &raw, &GemmOptions::default())?;
            gemm_raw(&setup.device, &null, &GemmOptions::default())
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
