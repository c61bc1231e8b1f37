//! What runs on a simulated Blackwell GPU, and what is refused there by name.

use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
use oxigemm::metrics::calc_diff;
use oxigemm::{
    Addend, DType, Device, GemmOptions, Granularity, LaunchOptions, Tensor, dequantize, fp8_gemm_nt,
    quantize, random,
};

fn blackwell() -> Device {
    "sim:sm_100a".parse().expect("a device")
}

#[test]
fn quantization_gives_the_bytes_of_the_cpu() {
    let (rows, columns, device) = (130, 300, blackwell());
    let x = random::normals(1, rows * columns);
    let tensor = Tensor::from_f32(DType::F32, &x, &[rows, columns], &device).unwrap();
    let token = per_token_cast_to_fp8(&x, rows, columns, ScaleFormat::F32).unwrap();
    let block = per_block_cast_to_fp8(&x, rows, columns, ScaleFormat::F32).unwrap();
    for (expected, granularity, scale_rows) in
        [(token, Granularity::PerToken, rows), (block, Granularity::PerBlock, rows.div_ceil(128))]
    {
        let (codes_of_cpu, scales_of_cpu) = expected.to_tensors(&Device::Cpu).unwrap();
        let mut codes = Tensor::empty(DType::E4m3, &[rows, columns], &device).unwrap();
        let mut scales = Tensor::empty(DType::F32, &[scale_rows, columns.div_ceil(128)], &device).unwrap();
        let options = LaunchOptions::default();
        quantize(&tensor, &mut codes, &mut scales, granularity, ScaleFormat::F32, &options).unwrap();
        assert_eq!(codes.to_bytes().unwrap(), codes_of_cpu.to_bytes().unwrap(), "{granularity:?}");
        assert_eq!(scales.to_bytes().unwrap(), scales_of_cpu.to_bytes().unwrap(), "{granularity:?}");
        let mut back = Tensor::empty(DType::F32, &[rows, columns], &device).unwrap();
        dequantize(&codes, &scales, &mut back, granularity, &options).unwrap();
        let error = back.to_vec_f32().unwrap().iter().zip(&x).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(error < 0.25, "{error}");
    }
}

#[test]
fn fp32_scales_become_words_for_the_tensor_core() {
    let (m, n, k) = (37, 136, 528);
    let x = per_token_cast_to_fp8(&random::normals(1, m * k), m, k, ScaleFormat::PowerOfTwo).unwrap();
    let w = per_block_cast_to_fp8(&random::normals(2, n * k), n, k, ScaleFormat::PowerOfTwo).unwrap();
    let product = |device: &Device| {
        let ((a, sfa), (b, sfb)) = (x.to_tensors(device).unwrap(), w.to_tensors(device).unwrap());
        let mut d = Tensor::zeros(DType::F32, &[m, n], device).unwrap();
        fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &GemmOptions::default()).unwrap();
        d.to_vec_f32().unwrap()
    };
    let (found, expected) = (product(&blackwell()), product(&Device::Cpu));
    assert!(calc_diff(&found, &expected) < 1e-10, "{}", calc_diff(&found, &expected));
}
