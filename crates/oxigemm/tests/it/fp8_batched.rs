//! `fp8_bgemm_nt` and its kind in the simulator: every kernel and launch, batches that lie row beside row, edges.

use oxigemm::cast::{Quantized, ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
use oxigemm::plan;
use oxigemm::sim::{Options, Policy};
use oxigemm::{
    DType, Device, GemmOptions, RawGemm, RawGrouping, RawMatrix, RawScaleFactors, Sim, Tensor, fp8_bgemm_nn,
    fp8_bgemm_nt, fp8_einsum, gemm_raw, random, reference,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;

struct Data {
    dims: [usize; 4],
    a: Vec<Quantized>,
    b: Vec<Quantized>,
    exact: Vec<Vec<f64>>,
}

impl Data {
    fn new(dims @ [batch, m, n, k]: [usize; 4]) -> Data {
        let of = |product: u64| {
            let a = per_token_cast_to_fp8(&random::normals(2 * product + 1, m * k), m, k, ScaleFormat::F32)
                .unwrap();
            let b = per_block_cast_to_fp8(&random::normals(2 * product + 2, n * k), n, k, ScaleFormat::F32)
                .unwrap();
            (a, b)
        };
        let (a, b): (Vec<_>, Vec<_>) = (0..batch as u64).map(of).unzip();
        let product =
            |(a, b): (&Quantized, &Quantized)| reference::fp8_gemm_nt(&a.as_matrix(), &b.as_matrix(), None);
        let exact = a.iter().zip(&b).map(|pair| product(pair).unwrap()).collect();
        Data { dims, a, b, exact }
    }

    fn expect_right(&self, d: &Tensor, about: &str) {
        let allowed = 0.03 * (self.dims[3] as f64).sqrt();
        for (product, exact) in self.exact.iter().enumerate() {
            let found = d.select(product).unwrap().to_vec_f32().unwrap();
            for (i, (found, exact)) in found.iter().zip(exact).enumerate() {
                let off = (f64::from(*found) - exact).abs();
                assert!(
                    off <= allowed + exact.abs() / 256.0,
                    "{about}: product {product}, {i}: {found}, not {exact}"
                );
            }
        }
    }
}

/// Operands as `[G, M, K]` and so on.
struct Operands {
    a: Tensor,
    sfa: Tensor,
    b: Tensor,
    sfb: Tensor,
    d: Tensor,
    /// All of the memory that D is a part of.
    d_memory: Tensor,
}

/// Row beside row, as heads lie, or one after another; always with NaN in between.
fn upload(data: &Data, device: &Device, d_type: DType, beside: bool, gap: usize) -> Operands {
    let [batch, m, n, k] = data.dims;
    let fill = |dtype: DType, [x, y, z]: [usize; 3], length: usize, beside: bool| {
        let dims = if beside { [y, x, z] } else { [x, y, z] };
        let memory = Tensor::from_bytes(dtype, &vec![0xff; x * y * z * dtype.size()], &dims, device).unwrap();
        let part = memory.narrow(2, 0, length).unwrap();
        (if beside { part.transpose(0, 1).unwrap() } else { part }, memory)
    };
    let (pitch, blocks) = ((k + 1).next_multiple_of(16), k.div_ceil(128));
    let (a, _) = fill(DType::E4m3, [batch, m, pitch], k, beside);
    let (sfa, _) = fill(DType::F32, [batch, m, blocks + gap], blocks, beside);
    let (b, _) = fill(DType::E4m3, [batch, n, pitch], k, false);
    let (sfb, _) = fill(DType::F32, [batch, n.div_ceil(128), blocks], blocks, false);
    let (d, d_memory) = fill(d_type, [batch, m, n + gap], n, beside);
    let scales = |x: &Quantized| x.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect::<Vec<_>>();
    for (product, (of_a, of_b)) in data.a.iter().zip(&data.b).enumerate() {
        for (to, bytes) in
            [(&a, of_a.codes.clone()), (&sfa, scales(of_a)), (&b, of_b.codes.clone()), (&sfb, scales(of_b))]
        {
            to.select(product).unwrap().write_bytes(&bytes).unwrap();
        }
    }
    Operands { a, sfa, b, sfb, d, d_memory }
}

impl Operands {
    fn run(&mut self, options: &GemmOptions) -> oxigemm::Result<()> {
        fp8_bgemm_nt((&self.a, &self.sfa), (&self.b, &self.sfb), &mut self.d, options)
    }

    /// Whether what lies between rows of D is as it was.
    fn expect_nothing_beside(&self, about: &str) {
        let [_, _, columns] = self.d_memory.dims() else { panic!("three dimensions") };
        let n = self.d.dims()[2];
        let gap = self.d_memory.narrow(2, n, columns - n).unwrap().to_bytes().unwrap();
        assert!(gap.iter().all(|byte| *byte == 0xff), "{about}: written beside D");
    }
}

#[test]
fn the_cpu_multiplies_every_product() {
    let data = Data::new([3, 5, 130, 200]);
    for beside in [false, true] {
        let mut operands = upload(&data, &Device::cpu(), DType::F32, beside, 3);
        operands.run(&GemmOptions::default()).unwrap();
        data.expect_right(&operands.d, "cpu");
    }
}

#[test]
fn every_kernel_and_launch_is_right_under_every_schedule() {
    // Tiles that end within a product in both dimensions, and more blocks of K than come together.
    let data = Data::new([3, 70, 136, 1200]);
    let launches =
        GemmKernel::batched(Arch::Sm90a).flat_map(|kernel| kernel.with_clusters([[1, 1], [1, 2], [2, 1]]));
    let mut count = 0;
    for (turn, choice) in launches.enumerate() {
        let policy = [Policy::Eager, Policy::Lazy, Policy::Random][turn % 3];
        let sim = Sim::with_options(Options { policy, seed: turn as u64, ..Options::default() });
        let device = Device::Sim(sim);
        for (i, d_type) in [DType::Bf16, DType::F32].into_iter().enumerate() {
            let gap = [0, 8, 3][(turn + i) % 3];
            let mut operands = upload(&data, &device, d_type, (turn + i).is_multiple_of(2), gap);
            let options = GemmOptions { config: Some(choice), num_sms: Some(4), ..Default::default() };
            let about = format!("{} {d_type} {policy:?} gap {gap}", plan::name(&choice));
            operands.run(&options).unwrap_or_else(|error| panic!("{about}: {error}"));
            data.expect_right(&operands.d, &about);
            operands.expect_nothing_beside(&about);
        }
        count += 1;
    }
    assert_eq!(count, 9);
}

#[test]
fn batches_of_every_size_are_planned() {
    let device = Device::Sim(Sim::new());
    for shape in [[1, 1, 1, 16], [40, 3, 24, 100], [2, 129, 130, 128], [5, 64, 16, 300]] {
        let data = Data::new(shape);
        for beside in [false, true] {
            let mut operands = upload(&data, &device, DType::Bf16, beside, 0);
            operands.run(&GemmOptions::default()).unwrap();
            data.expect_right(&operands.d, &format!("{shape:?} {beside}"));
        }
    }
    // Nothing to do.
    for dims in [[0, 4, 8], [2, 0, 8], [2, 4, 0]] {
        let [batch, m, n] = dims;
        let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
        let (a, b) = (new(DType::E4m3, &[batch, m, 16]), new(DType::E4m3, &[batch, n, 16]));
        let one = Tensor::from_slice(&[1.0f32], &[1], &device).unwrap();
        let mut d = new(DType::Bf16, &dims);
        fp8_bgemm_nt((&a, &one), (&b, &one), &mut d, &GemmOptions::default()).unwrap();
    }
}

#[test]
fn expressions_raw_operands_and_other_layouts_are_the_same_products() {
    let device = Device::Sim(Sim::new());
    let data = Data::new([3, 20, 48, 144]);
    let mut operands = upload(&data, &device, DType::F32, true, 0);
    operands.run(&GemmOptions::default()).unwrap();
    let expected = operands.d.to_bytes().unwrap();
    let options = GemmOptions::default();
    let by_rows = |x: &Tensor| x.transpose(0, 1).unwrap();
    let clear = |d: &Tensor| d.clone().write_f32(&[0.0; 3 * 20 * 48]).unwrap();

    clear(&operands.d);
    let (a, sfa) = (by_rows(&operands.a), by_rows(&operands.sfa));
    let (b, sfb) = (&operands.b, &operands.sfb);
    fp8_einsum("bhr,hdr->bhd", (&a, &sfa), (b, sfb), &mut by_rows(&operands.d), &options).unwrap();
    assert_eq!(operands.d.to_bytes().unwrap(), expected);

    // B as [h, K, N]: a view, and a copy that has to be transposed.
    clear(&operands.d);
    let (turned, scales) = (b.transpose(1, 2).unwrap(), sfb.transpose(1, 2).unwrap());
    fp8_einsum("bhd,hdr->bhr", (&a, &sfa), (&turned, &scales), &mut by_rows(&operands.d), &options).unwrap();
    assert_eq!(operands.d.to_bytes().unwrap(), expected);
    clear(&operands.d);
    let copied =
        Tensor::from_bytes(DType::E4m3, &turned.to_bytes().unwrap(), turned.dims(), &device).unwrap();
    let d = &mut operands.d;
    fp8_bgemm_nn((&operands.a, &operands.sfa), (&copied, &scales), d, &options).unwrap();
    assert_eq!(d.to_bytes().unwrap(), expected);

    clear(&operands.d);
    let [a, b, d] = [&operands.a, &operands.b, &operands.d].map(RawMatrix::from);
    let [sfa, sfb] = [&operands.sfa, &operands.sfb].map(RawScaleFactors::from);
    let gemm = RawGemm {
        grouping: RawGrouping::Batched { count: 3 },
        ..RawGemm::new([20, 48, 144], a, b, d).with_scales(sfa, sfb)
    };
    // SAFETY: the tensors outlive the call, which in the simulator ends when the kernel does.
    unsafe { gemm_raw(&device, &gemm, &options).unwrap() };
    assert_eq!(operands.d.to_bytes().unwrap(), expected);
    // SAFETY: refused before anything is looked at.
    let refused = unsafe { gemm_raw(&Device::cpu(), &gemm, &options) };
    assert_eq!(refused.unwrap_err().argument(), Some("device"));
}

#[test]
fn gradients_of_weights_are_a_product_for_each_head() {
    let (b, h, d, r) = (144, 2, 16, 48);
    let device = Device::Sim(Sim::new());
    let codes = |seed, columns: usize| {
        let values = random::normals(seed, b * h * columns);
        let cpu = Device::cpu();
        let codes = Tensor::from_f32(DType::E4m3, &values, &[b, h, columns], &cpu).unwrap();
        let scales: Vec<f32> =
            random::normals(seed + 1, 2 * h * columns).iter().map(|x| x.abs() + 0.5).collect();
        let scales = Tensor::from_slice(&scales, &[2, h, columns], &cpu).unwrap();
        [codes, scales].map(|x| {
            (
                x.to_vec_f32().unwrap(),
                Tensor::from_bytes(x.dtype(), &x.to_bytes().unwrap(), x.dims(), &device).unwrap(),
            )
        })
    };
    let ([(x, a), (sx, sfa)], [(y, b_), (sy, sfb)]) = (codes(1, d), codes(5, r));
    let mut out = Tensor::zeros(DType::F32, &[h, d, r], &device).unwrap();
    fp8_einsum("bhd,bhr->hdr", (&a, &sfa), (&b_, &sfb), &mut out, &GemmOptions::default()).unwrap();
    for (i, found) in out.to_vec_f32().unwrap().into_iter().enumerate() {
        let (head, row, column) = (i / (d * r), i / r % d, i % r);
        let term = |t: usize| {
            let at = |columns: usize, column: usize| (t * h + head) * columns + column;
            let scale = |columns: usize, column: usize| (t / 128 * h + head) * columns + column;
            let left = f64::from(x[at(d, row)]) * f64::from(sx[scale(d, row)]);
            left * f64::from(y[at(r, column)]) * f64::from(sy[scale(r, column)])
        };
        let (expected, size) =
            (0..b).fold((0.0, 0.0), |(sum, size), t| (sum + term(t), size + term(t).abs()));
        assert!((f64::from(found) - expected).abs() <= 1e-3 * size, "{i}: {found}, expected {expected}");
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let device = Device::cpu();
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
    let (a, b) = (new(DType::E4m3, &[2, 8, 256]), new(DType::E4m3, &[2, 130, 256]));
    let (sfa, sfb) = (new(DType::F32, &[2, 8, 2]), new(DType::F32, &[2, 2, 2]));
    let d = new(DType::Bf16, &[2, 8, 130]);
    let run = |a: &Tensor, sfa: &Tensor, b: &Tensor, sfb: &Tensor, d: &Tensor| {
        fp8_bgemm_nt((a, sfa), (b, sfb), &mut d.clone(), &GemmOptions::default())
    };
    assert!(run(&a, &sfa, &b, &sfb, &d).is_ok());
    let reaching = new(DType::Bf16, &[1, 8, 130]);
    let refused = [
        (run(&new(DType::Bf16, &[2, 8, 256]), &sfa, &b, &sfb, &d), "a"),
        (run(&new(DType::E4m3, &[8, 256]), &sfa, &b, &sfb, &d), "a"),
        (run(&new(DType::E4m3, &[3, 8, 256]), &sfa, &b, &sfb, &d), "a"),
        (run(&new(DType::E4m3, &[2, 8, 128]), &sfa, &b, &sfb, &d), "a"),
        (run(&a, &new(DType::F32, &[2, 7, 2]), &b, &sfb, &d), "sfa"),
        (run(&a, &sfa, &new(DType::E4m3, &[130, 256]), &sfb, &d), "b"),
        (run(&a, &sfa, &b, &new(DType::F32, &[2, 129, 2]), &d), "sfb"),
        (run(&a, &sfa, &b, &sfb, &new(DType::F16, &[2, 8, 130])), "d"),
        (run(&a, &sfa, &b, &sfb, &reaching), "d"),
    ];
    for (i, (result, argument)) in refused.into_iter().enumerate() {
        let error = result.expect_err(argument);
        assert_eq!(error.argument(), Some(argument), "case {i}: {error}");
    }
    let options = GemmOptions::default();
    let (a, b) = ((&a, &sfa), (&b, &sfb));
    let unknown = fp8_einsum("bhd,bhr->hrd", a, b, &mut d.clone(), &options).unwrap_err();
    assert_eq!(unknown.argument(), Some("expression"));
    // Gradients of weights: [b, h, d] with [b, h, r], and scales of 128 of b.
    let (x, y) = (new(DType::E4m3, &[130, 2, 16]), new(DType::E4m3, &[130, 2, 32]));
    let (sfx, sfy) = (new(DType::F32, &[2, 2, 16]), new(DType::F32, &[2, 2, 32]));
    let gradients = |sfx: &Tensor, y: &Tensor, d: &[usize]| {
        fp8_einsum("bhd,bhr->hdr", (&x, sfx), (y, &sfy), &mut new(DType::F32, d), &options)
    };
    assert!(gradients(&sfx, &y, &[2, 16, 32]).is_ok());
    let refused = [
        (gradients(&new(DType::F32, &[2, 1, 16]), &y, &[2, 16, 32]), "sfa"),
        (gradients(&new(DType::F32, &[3, 2, 16]), &y, &[2, 16, 32]), "sfa"),
        (gradients(&sfx, &new(DType::E4m3, &[130, 3, 32]), &[2, 16, 32]), "b"),
        (gradients(&sfx, &y, &[2, 32, 16]), "d"),
    ];
    for (i, (result, argument)) in refused.into_iter().enumerate() {
        let error = result.expect_err(argument);
        assert_eq!(error.argument(), Some(argument), "gradient {i}: {error}");
    }
    // A kernel of groups is none of a batch, and the other way round.
    let sim = Device::Sim(Sim::new());
    let data = Data::new([2, 8, 16, 128]);
    let choice = plan::parse("sm90_fp8_persistent_m_grouped_128x128_s5_c1x1");
    assert!(choice.is_some());
    let mut operands = upload(&data, &sim, DType::Bf16, false, 0);
    assert!(operands.run(&GemmOptions { config: choice, ..Default::default() }).is_err());
}
