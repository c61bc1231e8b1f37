//! What runs on a simulated Blackwell GPU, and what is refused there by name.

use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
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
fn a_gemm_without_a_kernel_is_refused_with_the_architecture() {
    let device = blackwell();
    let a = Tensor::zeros(DType::E4m3, &[16, 256], &device).unwrap();
    let scales = |rows: usize| Tensor::zeros(DType::F32, &[rows, 2], &device).unwrap();
    let b = Tensor::zeros(DType::E4m3, &[128, 256], &device).unwrap();
    let mut d = Tensor::zeros(DType::Bf16, &[16, 128], &device).unwrap();
    let options = GemmOptions::default();
    let refused = fp8_gemm_nt((&a, &scales(16)), (&b, &scales(1)), Addend::None, &mut d, &options);
    assert!(refused.unwrap_err().to_string().contains("on sm_100a"));
}
