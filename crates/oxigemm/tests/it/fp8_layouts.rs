//! FP8 products in every layout: operands that are not K-major are transposed first, and give the same bits.

use crate::common::{same_bits, schedules};
use oxigemm::Granularity;
use oxigemm::cast::{Quantized, ScaleFormat, cast_to_fp8};
use oxigemm::metrics::calc_diff;
use oxigemm::plan::{self, GemmConfig};
use oxigemm::sim::FaultKind;
use oxigemm::{
    Addend, DType, Device, Error, GemmLayout, GemmOptions, RawGemm, RawMatrix, RawScaleFactors, Sim, Tensor,
    fp8_gemm, fp8_gemm_nn, fp8_gemm_nt, fp8_gemm_tn, fp8_gemm_tt, gemm_raw, random, reference,
};
use oxigemm_kernels::{Arch, KernelId};

/// A matrix whose rows begin at multiples of 16 bytes and end in NaN.
fn padded(dtype: DType, bytes: &[u8], [rows, columns]: [usize; 2], device: &Device) -> Tensor {
    let pitch = columns.next_multiple_of(16) + 16;
    let mut all = vec![0x7f; rows * pitch];
    for (line, bytes) in all.chunks_mut(pitch).zip(bytes.chunks(columns)) {
        line[..columns].copy_from_slice(bytes);
    }
    Tensor::from_bytes(dtype, &all, &[rows, pitch], device).unwrap().narrow(1, 0, columns).unwrap()
}

/// `[rows, k]` codes as `[k, rows]`.
fn transposed(x: &Quantized) -> Vec<u8> {
    (0..x.k).flat_map(|k| (0..x.rows).map(move |row| x.codes[row * x.k + k])).collect()
}

struct Operand {
    x: Quantized,
    /// K-major, and contiguous along the other dimension.
    codes: [Tensor; 2],
    scales: Tensor,
}

impl Operand {
    fn new(seed: u64, [rows, k]: [usize; 2], granularity: Granularity, device: &Device) -> Operand {
        let values = random::normals(seed, rows * k);
        let x = cast_to_fp8(&values, rows, k, DType::E4m3, granularity, ScaleFormat::F32).unwrap();
        let codes = [
            padded(x.dtype, &x.codes, [rows, k], device),
            padded(x.dtype, &transposed(&x), [k, rows], device),
        ];
        let scales = Tensor::from_slice(&x.scales, &x.scale_dims(), device).unwrap();
        Operand { x, codes, scales }
    }

    /// As a layout that begins with K, or not, wants it.
    fn given(&self, k_first: bool) -> (Tensor, Tensor) {
        let scales = if k_first { self.scales.transpose(0, 1).unwrap() } else { self.scales.clone() };
        (self.codes[usize::from(k_first)].clone(), scales)
    }
}

struct Problem {
    a: Operand,
    b: Operand,
    dims: [usize; 3],
    device: Device,
}

impl Problem {
    fn new([m, n, k]: [usize; 3], device: &Device) -> Problem {
        Problem {
            a: Operand::new(1, [m, k], Granularity::PerToken, device),
            b: Operand::new(2, [n, k], Granularity::PerBlock, device),
            dims: [m, n, k],
            device: device.clone(),
        }
    }

    fn output(&self) -> Tensor {
        Tensor::empty(DType::F32, &self.dims[..2], &self.device).unwrap()
    }

    fn run(&self, layout: GemmLayout, options: &GemmOptions) -> oxigemm::Result<Vec<u8>> {
        let (a, b) = (self.a.given(layout.a_begins_with_k()), self.b.given(layout.b_begins_with_k()));
        let mut d = self.output();
        fp8_gemm(layout, (&a.0, &a.1), (&b.0, &b.1), Addend::None, &mut d, options)?;
        d.to_bytes()
    }

    fn exact(&self) -> Vec<f64> {
        reference::fp8_gemm_nt(&self.a.x.as_matrix(), &self.b.x.as_matrix(), None).unwrap()
    }
}

fn forced(name: &str) -> GemmOptions {
    let choice: Option<GemmConfig> = plan::parse(name);
    assert!(choice.is_some(), "{name} is no choice");
    GemmOptions { config: choice, ..Default::default() }
}

#[test]
fn every_layout_is_the_same_product_under_ten_schedules() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    // Whole tiles; tails in every direction; less than a vector.
    for (dims, name) in [
        ([128, 128, 256], "sm90_fp8_persistent_64x64_s12_c1x2"),
        ([37, 150, 300], "sm90_fp8_split_k_64x64_k1_s2"),
        ([1, 5, 3], "sm90_fp8_split_k_8x64_k1_s2"),
    ] {
        let (problem, options) = (Problem::new(dims, &device), forced(name));
        let expected = problem.run(GemmLayout::Nt, &options).unwrap();
        for layout in [GemmLayout::Nn, GemmLayout::Tn, GemmLayout::Tt] {
            same_bits(&format!("{layout} {dims:?}"), schedules(), &sim, |about| {
                let found = problem.run(layout, &options).unwrap_or_else(|error| panic!("{about}: {error}"));
                assert_eq!(found, expected, "{about}");
                found
            });
        }
    }
}

#[test]
fn the_named_functions_give_the_product_on_every_device() {
    for device in [Device::cpu(), Device::sim()] {
        let problem = Problem::new([20, 70, 200], &device);
        let exact = problem.exact();
        let [a, a_first] = [false, true].map(|first| problem.a.given(first));
        let [b, b_first] = [false, true].map(|first| problem.b.given(first));
        let options = GemmOptions::default();
        let check = |d: &Tensor, about: &str| {
            let diff = calc_diff(&d.to_vec_f32().unwrap(), &exact);
            assert!(diff < 1e-6, "{about}: {diff}");
        };
        let mut d = problem.output();
        fp8_gemm_nn((&a.0, &a.1), (&b_first.0, &b_first.1), Addend::None, &mut d, &options).unwrap();
        check(&d, "nn");
        fp8_gemm_tn((&a_first.0, &a_first.1), (&b_first.0, &b_first.1), Addend::None, &mut d, &options)
            .unwrap();
        check(&d, "tn");
        fp8_gemm_tt((&a_first.0, &a_first.1), (&b.0, &b.1), Addend::None, &mut d, &options).unwrap();
        check(&d, "tt");
    }
}

#[test]
fn transposed_views_of_k_major_tensors_are_not_copied() {
    let sim = Sim::new();
    let problem = Problem::new([9, 70, 200], &Device::Sim(sim.clone()));
    let options = GemmOptions::default();
    let expected = problem.run(GemmLayout::Nt, &options).unwrap();
    // A kernel that transposes wrongly, if it is asked.
    let kernel = KernelId::Transpose(Arch::Sm90a);
    let text = kernel.build().unwrap().text;
    sim.replace_kernel(kernel, &text.replace("0x5140", "0x0000")).unwrap();
    assert_ne!(problem.run(GemmLayout::Tn, &options).unwrap(), expected);
    let view = |x: &Operand| (x.codes[0].transpose(0, 1).unwrap(), x.scales.transpose(0, 1).unwrap());
    let (a, b) = (view(&problem.a), view(&problem.b));
    let mut d = problem.output();
    fp8_gemm_tn((&a.0, &a.1), (&b.0, &b.1), Addend::None, &mut d, &options).unwrap();
    assert_eq!(d.to_bytes().unwrap(), expected);
}

#[test]
fn addresses_say_the_same_as_tensors() {
    let device = Device::sim();
    let problem = Problem::new([9, 70, 200], &device);
    let [m, n, k] = problem.dims;
    let expected = problem.run(GemmLayout::Nt, &GemmOptions::default()).unwrap();
    for k_major in [[true, true], [true, false], [false, true], [false, false]] {
        let [a, b] = [(&problem.a, k_major[0]), (&problem.b, k_major[1])]
            .map(|(operand, k_major)| &operand.codes[usize::from(!k_major)]);
        let d = problem.output();
        let layout = match k_major {
            [true, true] => GemmLayout::Nt,
            [true, false] => GemmLayout::Nn,
            [false, true] => GemmLayout::Tt,
            [false, false] => GemmLayout::Tn,
        };
        let pitched = |x: &Tensor| RawMatrix::new(x.address(), DType::E4m3, x.strides()[0]);
        let [sfa, sfb] = [&problem.a.scales, &problem.b.scales]
            .map(|x| RawScaleFactors::new(x.address(), [k.div_ceil(128), 1]));
        let to = RawMatrix::new(d.address(), DType::F32, n);
        let gemm =
            RawGemm { layout, ..RawGemm::new([m, n, k], pitched(a), pitched(b), to).with_scales(sfa, sfb) };
        // SAFETY: the tensors live on, and nobody else uses them.
        unsafe { gemm_raw(&device, &gemm, &GemmOptions::default()).unwrap() };
        assert_eq!(d.to_bytes().unwrap(), expected, "{k_major:?}");
    }
}

#[test]
fn a_captured_call_transposes_what_is_there_when_it_is_replayed() {
    let device = Device::sim();
    let (first, second) = (Problem::new([9, 70, 200], &device), Problem::new([9, 70, 200], &device));
    let mut b = first.b.given(true);
    let fresh = Operand::new(7, [70, 200], Granularity::PerBlock, &device);
    let a = first.a.given(false);
    let stream = device.new_stream().unwrap();
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    let mut d = first.output();
    let mut call = || fp8_gemm_nn((&a.0, &a.1), (&b.0, &b.1), Addend::None, &mut d, &options);
    call().unwrap();
    let graph = stream.capture(|_| call()).unwrap();
    b.0.copy_from(&fresh.codes[1]).unwrap();
    b.1.copy_from(&fresh.given(true).1).unwrap();
    graph.launch(&stream).unwrap();
    stream.synchronize().unwrap();
    let expected = Problem { b: fresh, ..second }.run(GemmLayout::Nt, &GemmOptions::default()).unwrap();
    assert_eq!(d.to_bytes().unwrap(), expected);
}

#[test]
fn the_product_waits_for_what_is_transposed() {
    let sim = Sim::new();
    let problem = Problem::new([9, 70, 200], &Device::Sim(sim.clone()));
    let options = forced("sm90_fp8_split_k_8x64_k1_s2");
    let config = options.config.unwrap().kernel;
    let text = config.build().unwrap().text;
    sim.replace_kernel(config, &text.replace("griddepcontrol.wait;", "")).unwrap();
    let error = problem.run(GemmLayout::Nn, &options).unwrap_err();
    let Error::Fault { fault, .. } = &error else { panic!("{error}") };
    assert_eq!(fault.kind, FaultKind::Race, "{error}");
}

#[test]
fn what_cannot_be_addressed_is_refused_with_its_name() {
    let device = Device::sim();
    let problem = Problem::new([16, 32, 64], &device);
    let (a, b) = (problem.a.given(false), problem.b.given(true));
    let refused = |a: &(Tensor, Tensor), b: &(Tensor, Tensor)| {
        let mut d = problem.output();
        fp8_gemm_nn((&a.0, &a.1), (&b.0, &b.1), Addend::None, &mut d, &GemmOptions::default()).unwrap_err()
    };
    let new = |dims: &[usize]| Tensor::zeros(DType::E4m3, dims, &device).unwrap();
    let gaps = new(&[64, 32, 2]).transpose(1, 2).unwrap().transpose(0, 1).unwrap().select(0).unwrap();
    let error = refused(&a, &(gaps, b.1.clone()));
    assert!(matches!(error, Error::Stride { argument: "b", .. }), "{error}");
    let pitch = new(&[64, 40]).narrow(1, 0, 32).unwrap();
    let error = refused(&a, &(pitch, b.1.clone()));
    assert!(matches!(error, Error::Tma { argument: "b", .. }), "{error}");
    let offset = new(&[64, 48]).narrow(1, 8, 32).unwrap();
    let error = refused(&a, &(offset, b.1.clone()));
    assert!(matches!(error, Error::Alignment { argument: "b", .. }), "{error}");
    let scales = Tensor::zeros(DType::F32, &[3, 1], &device).unwrap();
    let error = refused(&a, &(b.0.clone(), scales));
    assert!(matches!(error, Error::ScaleShape { argument: "sfb", .. }), "{error}");
    let error = refused(&a, &(b.0.narrow(0, 0, 48).unwrap(), b.1.clone()));
    assert!(matches!(error, Error::Shape { argument: "b", .. }), "{error}");
    // In nt, operands are K-major.
    let mut d = problem.output();
    let (a, b) = (problem.a.given(true), problem.b.given(false));
    let (a, sfa) = (a.0.transpose(0, 1).unwrap(), a.1.transpose(0, 1).unwrap());
    let error =
        fp8_gemm_nt((&a, &sfa), (&b.0, &b.1), Addend::None, &mut d, &GemmOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Stride { argument: "a", .. }), "{error}");
}
