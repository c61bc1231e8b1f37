//! Batches of products with 16-bit operands, in the simulator: whatever the schedule and the strides, the same bits, no
//! hazard, the product of each with its own B, and nothing else written to.

use crate::common::schedules;
use oxigemm::plan;
use oxigemm::{
    Addend, DType, Device, Error, GemmLayout, GemmOptions, RawGemm, RawGrouping, RawMatrix, Sim, Tensor,
    bf16_bgemm_nt, einsum, gemm_raw, half_bgemm, half_gemm, random,
};

/// A tensor with gaps behind each row, whose gaps hold NaN.
fn padded(dtype: DType, seed: u64, dims: [usize; 3], gap: usize, device: &Device) -> Tensor {
    let pitch = dims[2].next_multiple_of(8) + gap;
    let mut all = vec![f32::NAN; dims[0] * dims[1] * pitch];
    let values = random::normals(seed, dims.iter().product());
    for (row, values) in values.chunks(dims[2]).enumerate() {
        all[row * pitch..][..dims[2]].copy_from_slice(values);
    }
    let whole = Tensor::from_f32(dtype, &all, &[dims[0], dims[1], pitch], device).unwrap();
    whole.narrow(2, 0, dims[2]).unwrap()
}

/// The bits of an einsum by head, each a product on its own.
fn by_products(layout: GemmLayout, x: &Tensor, w: &Tensor, y: &Tensor) -> Vec<u8> {
    let heads = x.transpose(0, 1).unwrap();
    let out = y.transpose(0, 1).unwrap();
    for head in 0..w.dims()[0] {
        let (a, b) = (heads.select(head).unwrap(), w.select(head).unwrap());
        let name = format!("sm90_bf16_persistent_{layout}_128x128_s6_c1x1");
        let options = GemmOptions { config: plan::parse(&name), ..Default::default() };
        half_gemm(layout, &a, &b, Addend::None, &mut out.select(head).unwrap(), &options).unwrap();
    }
    y.to_bytes().unwrap()
}

#[test]
fn einsums_are_the_products_of_every_head_under_ten_schedules() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let (b, h) = (70, 3);
    for (expression, layout, r, d) in
        [("bhr,hdr->bhd", GemmLayout::Nt, 144, 72), ("bhd,hdr->bhr", GemmLayout::Nn, 136, 80)]
    {
        let (k, n) = if layout == GemmLayout::Nt { (r, d) } else { (d, r) };
        // A weight that is a slice of a larger one.
        let (x, w) =
            (padded(DType::Bf16, 1, [b, h, k], 0, &device), padded(DType::Bf16, 2, [h, d, r], 8, &device));
        for gap in [0, 3] {
            let new = || padded(DType::Bf16, 3, [b, h, n], gap, &device);
            let expected = by_products(layout, &x, &w, &new());
            for options in schedules().skip(gap).step_by(if gap == 0 { 1 } else { 4 }) {
                sim.set_options(options);
                let mut y = new();
                let options = GemmOptions { num_sms: Some(2), ..Default::default() };
                einsum(expression, &x, &w, Addend::None, &mut y, &options).unwrap();
                assert_eq!(y.to_bytes().unwrap(), expected, "{expression} with gaps of {gap}");
            }
        }
    }
}

#[test]
fn every_kernel_adds_to_slabs_wherever_they_lie() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let (g, m, n, k) = (3, 70, 136, 72);
    for (i, name) in
        ["64x128_s8_c2x1", "128x128_s6_c1x1", "256x128_s3_c1x2", "64x256_s4_c1x1"].iter().enumerate()
    {
        for (layout, d_type, beside) in [
            (GemmLayout::Nt, DType::F32, true),
            (GemmLayout::Nn, DType::Bf16, false),
            (GemmLayout::Nt, DType::F32, false),
        ] {
            if layout == GemmLayout::Nn && name.starts_with("64x256") {
                continue; // There is none.
            }
            let a = padded(DType::Bf16, 1, [g, m, k], 0, &device);
            let b_dims = if layout == GemmLayout::Nt { [g, n, k] } else { [g, k, n] };
            let b = padded(DType::Bf16, 2, b_dims, 0, &device);
            let new = || match beside {
                true => padded(d_type, 3, [m, g, n], i, &device).transpose(0, 1).unwrap(),
                false => padded(d_type, 3, [g, m, n], i, &device),
            };
            let (expected, mut d) = (new(), new());
            for product in 0..g {
                let (a, b) = (a.select(product).unwrap(), b.select(product).unwrap());
                let dense = plan::parse(&format!("sm90_bf16_persistent_{layout}_128x128_s6_c1x1"));
                let options = GemmOptions { config: dense, ..Default::default() };
                half_gemm(layout, &a, &b, Addend::InPlace, &mut expected.select(product).unwrap(), &options)
                    .unwrap();
            }
            let name = format!("sm90_bf16_persistent_m_grouped_{layout}_{name}");
            let choice = plan::parse(&name);
            assert!(choice.is_some(), "{name} is no choice");
            half_bgemm(
                layout,
                &a,
                &b,
                Addend::InPlace,
                &mut d,
                &GemmOptions { config: choice, ..Default::default() },
            )
            .unwrap();
            assert_eq!(
                d.to_bytes().unwrap(),
                expected.to_bytes().unwrap(),
                "{name} {d_type} beside {beside}"
            );
        }
    }
}

#[test]
fn the_reference_and_raw_pointers_give_the_same() {
    let sim = Device::sim();
    let (g, m, n, k) = (2, 5, 24, 40);
    let on = |device: &Device| {
        let (a, b) =
            (padded(DType::F16, 1, [g, m, k], 0, device), padded(DType::F16, 2, [g, n, k], 0, device));
        (a, b, Tensor::zeros(DType::F32, &[g, m, n], device).unwrap())
    };
    let (a, b, mut exact) = on(&Device::cpu());
    half_bgemm(GemmLayout::Nt, &a, &b, Addend::None, &mut exact, &GemmOptions::default()).unwrap();
    let (a, b, d) = on(&sim);
    let gemm = RawGemm {
        grouping: RawGrouping::Batched { count: g },
        ..RawGemm::new([m, n, k], (&a).into(), (&b).into(), (&d).into())
    };
    // SAFETY: the simulator checks every access.
    unsafe { gemm_raw(&sim, &gemm, &GemmOptions::default()) }.unwrap();
    for (found, exact) in d.to_vec_f32().unwrap().iter().zip(exact.to_vec_f32().unwrap()) {
        assert!((found - exact).abs() <= 1e-4, "{found} and not {exact}");
    }
    let nowhere = RawGemm { d: RawMatrix { address: 0, ..gemm.d }, ..gemm };
    // SAFETY: it is refused.
    let refused = unsafe { gemm_raw(&sim, &nowhere, &GemmOptions::default()) };
    assert!(matches!(refused, Err(Error::NullPointer { argument: "d", .. })), "{refused:?}");
}

#[test]
fn what_is_no_batch_is_refused() {
    let cpu = Device::cpu();
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &cpu).unwrap();
    let (a, b) = (new(DType::Bf16, &[2, 4, 16]), new(DType::Bf16, &[2, 8, 16]));
    let mut d = new(DType::Bf16, &[2, 4, 8]);
    let none = Addend::None;
    let options = GemmOptions::default();
    let mut refuse =
        |layout, a: &Tensor, b: &Tensor| half_bgemm(layout, a, b, none, &mut d, &options).unwrap_err();
    for (error, argument) in [
        (refuse(GemmLayout::Tn, &a, &b), "layout"),
        (refuse(GemmLayout::Nt, &a.select(0).unwrap(), &b), "a"),
        (refuse(GemmLayout::Nt, &a, &new(DType::Bf16, &[3, 8, 16])), "a"),
        (refuse(GemmLayout::Nt, &a, &new(DType::F16, &[2, 8, 16])), "b"),
        (refuse(GemmLayout::Nt, &a, &new(DType::Bf16, &[2, 9, 16])), "d"),
    ] {
        assert_eq!(error.argument(), Some(argument), "{error}");
    }
    let error = einsum("bmk,bnk->nm", &a, &b, none, &mut d, &options).unwrap_err();
    assert!(matches!(error, Error::Shape { argument: "expression", .. }), "{error}");
    let error = einsum("bhr,hdr->bhd", &a.select(0).unwrap(), &b, none, &mut d, &options).unwrap_err();
    assert!(matches!(error, Error::Rank { argument: "a", .. }), "{error}");
    let error = bf16_bgemm_nt(&new(DType::F16, &[2, 4, 16]), &b, none, &mut d, &options).unwrap_err();
    assert!(matches!(error, Error::DType { argument: "a", .. }), "{error}");
}
