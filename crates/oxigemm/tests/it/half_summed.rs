//! `half_bgemm_nt_summed` in the simulator: every kernel and split, outputs and layouts, batches of every size.

use oxigemm::plan::{self, GemmConfig};
use oxigemm::sim::{Options, Policy};
use oxigemm::{
    Addend, DType, Device, GemmOptions, RawGemm, RawGrouping, RawMatrix, Sim, Tensor, einsum, gemm_raw,
    half_bgemm_nt_summed, random, reference,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::operand::f16::Half;

/// Operands of each product, and their sum.
struct Data {
    dims: [usize; 4],
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    exact: Vec<f64>,
}

impl Data {
    fn new(dims @ [batch, m, n, k]: [usize; 4], element: DType) -> Data {
        let draw = |seed, count| element.decode(&element.encode(&random::normals(seed, count)));
        let (a, b) = (draw(1, batch * m * k), draw(2, batch * n * k));
        let mut exact = vec![0.0; m * n];
        for slab in 0..batch {
            let (a, b) = (&a[slab * m * k..][..m * k], &b[slab * n * k..][..n * k]);
            let product = reference::gemm_nt(a, b, [m, n, k], None).unwrap();
            exact.iter_mut().zip(product).for_each(|(sum, x)| *sum += x);
        }
        Data { dims, a, b, c: draw(3, m * n), exact }
    }

    fn expect_right(&self, d: &Tensor, added: bool, about: &str) {
        let [batch, _, _, k] = self.dims;
        let step = if d.dtype() == DType::F32 { 1e-6 } else { 1.0 / 250.0 };
        for (i, (found, exact)) in d.to_vec_f32().unwrap().iter().zip(&self.exact).enumerate() {
            let expected = exact + if added { f64::from(self.c[i]) } else { 0.0 };
            let allowed = expected.abs() * step + 1e-5 * ((batch * k) as f64).sqrt() + 1e-6;
            assert!((f64::from(*found) - expected).abs() <= allowed, "{about}, {i}: {found}, not {expected}");
        }
    }
}

struct Operands {
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
}

/// With NaN behind rows and products of A and B.
fn upload(data: &Data, device: &Device, [ab_type, d_type]: [DType; 2], gap: usize) -> Operands {
    let [batch, m, n, k] = data.dims;
    let operand = |values: &[f32], rows: usize| {
        let dims = [batch, rows + gap, (k + 1).next_multiple_of(8)];
        let memory =
            Tensor::from_f32(ab_type, &vec![f32::NAN; dims.iter().product()], &dims, device).unwrap();
        let mut operand = memory.narrow(1, 0, rows).unwrap().narrow(2, 0, k).unwrap();
        operand.write_f32(values).unwrap();
        operand
    };
    let output = || {
        let memory = Tensor::zeros(d_type, &[m, n + gap], device).unwrap();
        let mut d = memory.narrow(1, 0, n).unwrap();
        d.write_f32(&data.c).unwrap();
        d
    };
    Operands { a: operand(&data.a, m), b: operand(&data.b, n), c: output(), d: output() }
}

impl Operands {
    fn run(&mut self, addend: usize, options: &GemmOptions) -> oxigemm::Result<()> {
        let addend = match addend {
            0 => Addend::None,
            1 => Addend::InPlace,
            _ => Addend::From(&self.c),
        };
        half_bgemm_nt_summed(&self.a, &self.b, addend, &mut self.d, options)
    }
}

#[test]
fn the_cpu_adds_products_up() {
    let data = Data::new([3, 5, 9, 20], DType::F16);
    for addend in 0..3 {
        let mut operands = upload(&data, &Device::cpu(), [DType::F16, DType::F32], addend);
        operands.run(addend, &GemmOptions::default()).unwrap();
        data.expect_right(&operands.d, addend > 0, "cpu");
    }
}

#[test]
fn every_kernel_split_and_output_is_right_under_every_schedule() {
    // A slice begins and ends within a product, products are no whole stages.
    let shape = [5, 70, 136, 100];
    let data = [DType::Bf16, DType::F16].map(|element| (element, Data::new(shape, element)));
    let mut kernels = 0;
    for (turn, kernel) in GemmKernel::summed(Arch::Sm90a).enumerate() {
        let operands = kernel.operands().as_f16().expect("all have 16-bit operands");
        let element = if operands.element == Half::Bf16 { DType::Bf16 } else { DType::F16 };
        let (_, data) = data.iter().find(|(of, _)| *of == element).unwrap();
        for (i, (split_k, stages)) in [(1, 2), (2, 3), (4, 2), (8, 4)].into_iter().enumerate() {
            let choice = GemmConfig { split_k, stages, ..GemmConfig::of(kernel) };
            let addend = (turn + i) % 3;
            let policy = [Policy::Eager, Policy::Lazy, Policy::Random][(turn + i) % 3];
            let sim = Sim::with_options(Options { policy, seed: i as u64, ..Options::default() });
            let d_type = [DType::F32, element][(turn + i / 2) % 2];
            let mut operands = upload(data, &Device::Sim(sim), [element, d_type], i % 2);
            let options = GemmOptions { config: Some(choice), ..Default::default() };
            let about = format!("{} {addend} {d_type} {policy:?}", plan::name(&choice));
            operands.run(addend, &options).unwrap_or_else(|error| panic!("{about}: {error}"));
            data.expect_right(&operands.d, addend > 0, &about);
        }
        kernels += 1;
    }
    assert_eq!(kernels, 4, "two tiles of two types");
}

#[test]
fn batches_of_every_size_are_planned() {
    let device = Device::Sim(Sim::new());
    for shape in
        [[1, 1, 1, 1], [7, 3, 200, 8], [40, 65, 16, 64], [2, 129, 66, 200], [0, 4, 8, 16], [3, 4, 8, 0]]
    {
        let data = Data::new(shape, DType::Bf16);
        for addend in 0..3 {
            let mut operands = upload(&data, &device, [DType::Bf16, DType::F32], 1);
            operands.run(addend, &GemmOptions::default()).unwrap();
            data.expect_right(&operands.d, addend > 0, &format!("{shape:?} {addend}"));
            let first = operands.d.to_bytes().unwrap();
            operands.d.write_f32(&data.c).unwrap();
            operands.run(addend, &GemmOptions::default()).unwrap();
            assert_eq!(operands.d.to_bytes().unwrap(), first, "{shape:?}: the same bits again");
        }
    }
}

#[test]
fn raw_operands_and_the_expression_are_the_same_sum() {
    let device = Device::Sim(Sim::new());
    let data = Data::new([3, 20, 40, 72], DType::Bf16);
    let mut operands = upload(&data, &device, [DType::Bf16, DType::F32], 0);
    operands.run(1, &GemmOptions::default()).unwrap();
    let expected = operands.d.to_bytes().unwrap();
    operands.d.write_f32(&data.c).unwrap();
    let (a, b) = (&operands.a, &operands.b);
    einsum("bmk,bnk->mn", a, b, Addend::InPlace, &mut operands.d, &GemmOptions::default()).unwrap();
    assert_eq!(operands.d.to_bytes().unwrap(), expected);
    operands.d.write_f32(&data.c).unwrap();
    let d = RawMatrix::new(operands.d.address(), DType::F32, 40);
    let gemm = RawGemm {
        c: Some(d),
        grouping: RawGrouping::Summed { count: 3 },
        ..RawGemm::new([20, 40, 72], (&operands.a).into(), (&operands.b).into(), d)
    };
    // SAFETY: the tensors outlive the call, which in the simulator ends when the kernel does.
    unsafe { gemm_raw(&device, &gemm, &GemmOptions::default()).unwrap() };
    assert_eq!(operands.d.to_bytes().unwrap(), expected);
    // SAFETY: refused before anything is looked at.
    let refused = unsafe { gemm_raw(&Device::cpu(), &gemm, &GemmOptions::default()) };
    assert_eq!(refused.unwrap_err().argument(), Some("device"));
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let device = Device::cpu();
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
    let (a, b, d) =
        (new(DType::Bf16, &[3, 8, 16]), new(DType::Bf16, &[3, 24, 16]), new(DType::F32, &[8, 24]));
    let run = |a: &Tensor, b: &Tensor, c: Addend<'_>, d: &Tensor| {
        half_bgemm_nt_summed(a, b, c, &mut d.clone(), &GemmOptions::default())
    };
    let none = Addend::None;
    assert!(run(&a, &b, none, &d).is_ok());
    let odd = new(DType::Bf16, &[3, 8, 17]).narrow(2, 0, 16).unwrap();
    let refused = [
        (run(&new(DType::F32, &[3, 8, 16]), &b, none, &d), "a"),
        (run(&new(DType::Bf16, &[8, 16]), &b, none, &d), "a"),
        (run(&odd, &b, none, &d), "a"),
        (run(&new(DType::Bf16, &[3, 16, 8]).transpose(1, 2).unwrap(), &b, none, &d), "a"),
        (run(&a, &new(DType::F16, &[3, 24, 16]), none, &d), "b"),
        (run(&a, &new(DType::Bf16, &[2, 24, 16]), none, &d), "b"),
        (run(&a, &new(DType::Bf16, &[3, 24, 8]), none, &d), "b"),
        (run(&a, &b, Addend::From(&new(DType::F32, &[8, 23])), &d), "c"),
        (run(&a, &b, Addend::From(&new(DType::Bf16, &[8, 24])), &d), "c"),
        (run(&a, &b, none, &new(DType::F32, &[3, 8, 24])), "d"),
        (run(&a, &b, none, &new(DType::F16, &[8, 24])), "d"),
        (run(&a, &b, none, &new(DType::F32, &[24, 8])), "d"),
    ];
    for (i, (result, argument)) in refused.into_iter().enumerate() {
        let error = result.expect_err(argument);
        assert_eq!(error.argument(), Some(argument), "case {i}: {error}");
    }
}
