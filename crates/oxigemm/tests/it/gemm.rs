//! `fp8_gemm_nt` through its public face, on the device that every machine has.

use crate::common;
use oxigemm::cast::{Quantized, ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
use oxigemm::{Addend, DType, Device, Error, GemmOptions, Tensor, fp8_gemm_nt, plan, random, reference};

const M: usize = 5;
const N: usize = 140;
const K: usize = 300;

struct Data {
    a: Tensor,
    sfa: Tensor,
    b: Tensor,
    sfb: Tensor,
    exact: Vec<f64>,
}

fn data(device: &Device) -> Data {
    let a = per_token_cast_to_fp8(&random::normals(1, M * K), M, K, ScaleFormat::F32).unwrap();
    let b = per_block_cast_to_fp8(&random::normals(2, N * K), N, K, ScaleFormat::F32).unwrap();
    let exact = reference::fp8_gemm_nt(&a.as_matrix(), &b.as_matrix(), None).unwrap();
    let scales = |x: &Quantized| Tensor::from_slice(&x.scales, &x.scale_dims(), device).unwrap();
    Data {
        sfa: scales(&a),
        sfb: scales(&b),
        a: common::codes(&a, device),
        b: common::codes(&b, device),
        exact,
    }
}

#[test]
fn every_addend_gives_c_plus_the_product() {
    let cpu = Device::cpu();
    let x = data(&cpu);
    let c_values = random::normals(3, M * N);
    let c = Tensor::from_slice(&c_values, &[M, N], &cpu).unwrap();
    for addend in ["none", "in place", "from"] {
        let mut d = Tensor::zeros(DType::F32, &[M, N], &cpu).unwrap();
        let addend_argument = match addend {
            "none" => Addend::None,
            "in place" => {
                d.write_f32(&c_values).unwrap();
                Addend::InPlace
            }
            _ => Addend::From(&c),
        };
        fp8_gemm_nt((&x.a, &x.sfa), (&x.b, &x.sfb), addend_argument, &mut d, &GemmOptions::default())
            .unwrap();
        for ((found, exact), c) in d.to_vec_f32().unwrap().iter().zip(&x.exact).zip(&c_values) {
            let expected = exact + if addend == "none" { 0.0 } else { f64::from(*c) };
            assert!((f64::from(*found) - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{addend}");
        }
    }
}

#[test]
fn an_unaligned_d_is_as_good_as_any() {
    let cpu = Device::cpu();
    let x = data(&cpu);
    let memory = Tensor::zeros(DType::Bf16, &[1 + M * (N + 3)], &cpu).unwrap();
    let mut d = memory.narrow(0, 1, M * (N + 3)).unwrap().view(&[M, N + 3]).unwrap().narrow(1, 0, N).unwrap();
    fp8_gemm_nt((&x.a, &x.sfa), (&x.b, &x.sfb), Addend::None, &mut d, &GemmOptions::default()).unwrap();
    for (found, exact) in d.to_vec_f32().unwrap().iter().zip(&x.exact) {
        assert!((f64::from(*found) - exact).abs() <= exact.abs() / 256.0 + 1e-6);
    }
    assert_eq!(memory.to_vec_f32().unwrap()[0], 0.0);
}

#[test]
fn an_error_names_the_argument() {
    let cpu = Device::cpu();
    let x = data(&cpu);
    let mut d = Tensor::zeros(DType::Bf16, &[M, N + 1], &cpu).unwrap();
    let error = fp8_gemm_nt((&x.a, &x.sfa), (&x.b, &x.sfb), Addend::None, &mut d, &GemmOptions::default());
    assert!(matches!(error, Err(Error::Shape { argument: "d", .. })), "{error:?}");
    let c = Tensor::zeros(DType::F32, &[M, N], &cpu).unwrap();
    let mut d = Tensor::zeros(DType::Bf16, &[M, N], &cpu).unwrap();
    let error =
        fp8_gemm_nt((&x.a, &x.sfa), (&x.b, &x.sfb), Addend::From(&c), &mut d, &GemmOptions::default());
    assert!(matches!(error, Err(Error::DType { argument: "c", .. })), "{error:?}");
}

#[test]
fn a_choice_means_nothing_to_the_cpu() {
    let cpu = Device::cpu();
    let x = data(&cpu);
    let mut results = Vec::new();
    for choice in [None, plan::parse("sm90_fp8_split_k_8x64_k4_s6")] {
        let mut d = Tensor::zeros(DType::Bf16, &[M, N], &cpu).unwrap();
        let options = GemmOptions { config: choice, num_sms: Some(3), ..Default::default() };
        fp8_gemm_nt((&x.a, &x.sfa), (&x.b, &x.sfb), Addend::None, &mut d, &options).unwrap();
        results.push(d.to_bytes().unwrap());
    }
    assert_eq!(results[0], results[1]);
}

#[test]
fn devices_can_be_sent_and_shared() {
    fn check<T: Send + Sync>() {}
    check::<Device>();
    check::<Tensor>();
    check::<GemmOptions>();
}
