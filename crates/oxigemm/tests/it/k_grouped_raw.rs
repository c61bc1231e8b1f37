//! k-grouped FP8 GEMMs by addresses, and arguments that do not fit together.

use crate::k_grouped::{Data, Order, upload, with_k_first};
use oxigemm::{
    Addend, DType, Device, GemmLayout, GemmOptions, RawGemm, RawGrouping, RawMatrix, RawScaleFactors, Sim,
    Tensor, gemm_raw, k_grouped_fp8_gemm_nt_contiguous, k_grouped_fp8_gemm_tn_contiguous,
};

#[test]
fn raw_operands_are_the_same_gemm() {
    let data = Data::new([20, 40], &[200, 16]);
    let device = Device::Sim(Sim::new());
    let mut operands = upload(&data, &device, DType::F32, Order::K, 0);
    let raw = |x: &Tensor, pitch| RawMatrix::new(x.address(), DType::E4m3, pitch);
    let [sfa, sfb] = [&operands.sfa, &operands.sfb].map(|x| RawScaleFactors::new(x.address(), [3, 1]));
    let d = RawMatrix::new(operands.d.address(), DType::F32, 40).groups_apart(800);
    let (ks, ks_host) = (operands.ks.address(), Some(&[200, 16][..]));
    let gemm = RawGemm {
        c: Some(d),
        grouping: RawGrouping::KGrouped { groups: 2, blocks: 3, ks, ks_host },
        ..RawGemm::new([20, 40, 224], raw(&operands.a, 0), raw(&operands.b, 0), d).with_scales(sfa, sfb)
    };
    // SAFETY: the tensors outlive the call, which in the simulator ends when the kernel does.
    unsafe { gemm_raw(&device, &gemm, &GemmOptions::default()).unwrap() };
    let raw = operands.d.to_bytes().unwrap();
    operands.d.write_f32(&data.c).unwrap();
    operands.run(1, &GemmOptions::default()).unwrap();
    assert_eq!(operands.d.to_bytes().unwrap(), raw);
    // SAFETY: refused before anything is looked at.
    let refused = unsafe { gemm_raw(&Device::cpu(), &gemm, &GemmOptions::default()) };
    assert_eq!(refused.unwrap_err().argument(), Some("device"));
}

#[test]
fn raw_operands_that_begin_with_k_are_the_same_gemm() {
    let (device, ks) = (Device::Sim(Sim::new()), [200usize, 16]);
    let data = Data::new([32, 48], &ks);
    let mut operands = with_k_first(&data, upload(&data, &device, DType::F32, Order::K, 0));
    operands.run(1, &GemmOptions::default()).unwrap();
    let dense =
        |x: &Tensor| Tensor::from_bytes(DType::E4m3, &x.to_bytes().unwrap(), x.dims(), &device).unwrap();
    let (a, b) = (dense(&operands.a), dense(&operands.b));
    let expected = operands.d.to_bytes().unwrap();
    operands.d.write_f32(&data.c).unwrap();
    let raw = |x: &Tensor, pitch| RawMatrix::new(x.address(), DType::E4m3, pitch);
    let [sfa, sfb] = [&operands.sfa, &operands.sfb].map(|x| RawScaleFactors::new(x.address(), [3, 1]));
    let d = RawMatrix::new(operands.d.address(), DType::F32, 48).groups_apart(32 * 48);
    let (ks, ks_host) = (operands.ks.address(), Some(&ks[..]));
    let gemm = RawGemm {
        layout: GemmLayout::Tn,
        c: Some(d),
        grouping: RawGrouping::KGrouped { groups: 2, blocks: 3, ks, ks_host },
        ..RawGemm::new([32, 48, 216], raw(&a, 32), raw(&b, 48), d).with_scales(sfa, sfb)
    };
    // SAFETY: the tensors outlive the call, which in the simulator ends when the kernel does.
    unsafe { gemm_raw(&device, &gemm, &GemmOptions::default()).unwrap() };
    assert_eq!(operands.d.to_bytes().unwrap(), expected);
}

#[test]
fn operands_that_begin_with_k_and_do_not_fit_together_are_refused() {
    let device = Device::cpu();
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
    let (a, b) = (new(DType::E4m3, &[300, 16]), new(DType::E4m3, &[300, 32]));
    let (sfa, sfb) = (new(DType::F32, &[4, 16]), new(DType::F32, &[4, 32]));
    let d = new(DType::F32, &[2, 16, 32]);
    let ks = Tensor::from_slice(&[129i32, 171], &[2], &device).unwrap();
    let run = |a: &Tensor, sfa: &Tensor, b: &Tensor, sfb: &Tensor, host: &[usize]| {
        let (d, options) = (&mut d.clone(), GemmOptions::default());
        k_grouped_fp8_gemm_tn_contiguous((a, sfa), (b, sfb), Addend::None, d, &ks, Some(host), &options)
    };
    assert!(run(&a, &sfa, &b, &sfb, &[129, 171]).is_ok());
    let refused = [
        (run(&new(DType::E4m3, &[16, 300]), &sfa, &b, &sfb, &[129, 171]), "a"),
        (run(&new(DType::E4m3, &[300 * 16]), &sfa, &b, &sfb, &[129, 171]), "a"),
        (run(&a, &sfa, &new(DType::E4m3, &[299, 32]), &sfb, &[129, 171]), "b"),
        (run(&a, &new(DType::F32, &[16, 4]), &b, &sfb, &[129, 171]), "sfa"),
        (run(&a, &sfa, &b, &new(DType::F32, &[3, 32]), &[129, 171]), "sfb"),
        (run(&a, &sfa, &b, &sfb, &[128, 172]), "ks_host"),
        (run(&a, &sfa, &b, &sfb, &[129, 170]), "ks_host"),
    ];
    for (i, (result, argument)) in refused.into_iter().enumerate() {
        let error = result.expect_err(argument);
        assert_eq!(error.argument(), Some(argument), "case {i}: {error}");
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let device = Device::cpu();
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
    let (a, b) = (new(DType::E4m3, &[8 * 384]), new(DType::E4m3, &[16 * 384]));
    let (sfa, sfb) = (new(DType::F32, &[8, 3]), new(DType::F32, &[16, 3]));
    let d = new(DType::F32, &[2, 8, 16]);
    let ks = Tensor::from_slice(&[256i32, 128], &[2], &device).unwrap();
    let run = |a: &Tensor,
               sfa: &Tensor,
               b: &Tensor,
               sfb: &Tensor,
               d: &Tensor,
               ks: &Tensor,
               host: Option<&[usize]>| {
        let options = GemmOptions::default();
        k_grouped_fp8_gemm_nt_contiguous((a, sfa), (b, sfb), Addend::None, &mut d.clone(), ks, host, &options)
    };
    assert!(run(&a, &sfa, &b, &sfb, &d, &ks, Some(&[256, 128])).is_ok());
    let refused = [
        (run(&new(DType::Bf16, &[8 * 384]), &sfa, &b, &sfb, &d, &ks, None), "a"),
        (run(&new(DType::E4m3, &[8 * 384 + 1]), &sfa, &b, &sfb, &d, &ks, None), "a"),
        (run(&new(DType::E4m3, &[8 * 100]), &sfa, &b, &sfb, &d, &ks, None), "a"),
        (run(&new(DType::E4m3, &[8, 384]), &sfa, &b, &sfb, &d, &ks, None), "a"),
        (run(&a, &sfa, &new(DType::E4m3, &[16 * 256]), &sfb, &d, &ks, None), "b"),
        (run(&a, &new(DType::F32, &[9, 3]), &b, &sfb, &d, &ks, None), "sfa"),
        // Both are possible, and the longer one decides.
        (run(&a, &sfa, &b, &new(DType::F32, &[16, 4]), &d, &ks, None), "sfa"),
        (run(&a, &sfa, &b, &sfb, &new(DType::F32, &[8, 16]), &ks, None), "d"),
        (run(&a, &sfa, &b, &sfb, &new(DType::F16, &[2, 8, 16]), &ks, None), "d"),
        (run(&a, &sfa, &b, &sfb, &d, &new(DType::I32, &[3]), None), "ks"),
        (run(&a, &sfa, &b, &sfb, &d, &new(DType::F32, &[2]), None), "ks"),
        (run(&a, &sfa, &b, &sfb, &d, &ks, Some(&[384])), "ks_host"),
        (run(&a, &sfa, &b, &sfb, &d, &ks, Some(&[256, 256])), "ks_host"),
        (run(&a, &sfa, &b, &sfb, &d, &ks, Some(&[200, 176])), "ks_host"),
        (run(&a, &sfa, &b, &sfb, &d, &ks, Some(&[usize::MAX, 0])), "ks_host"),
    ];
    for (i, (result, argument)) in refused.into_iter().enumerate() {
        let error = result.expect_err(argument);
        assert_eq!(error.argument(), Some(argument), "case {i}: {error}");
    }
}
