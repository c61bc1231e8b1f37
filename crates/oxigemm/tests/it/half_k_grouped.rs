//! `k_grouped_half_gemm` in the simulator: every kernel, launch, output and layout, groups of every size, and numbers
//! that the host never sees.

use oxigemm::plan::{self, GemmConfig};
use oxigemm::sim::{Options, Policy};
use oxigemm::{
    Addend, DType, Device, GemmLayout, GemmOptions, RawGemm, RawGrouping, RawMatrix, Sim, Tensor, gemm_raw,
    k_grouped_bf16_gemm_nt_contiguous, k_grouped_bf16_gemm_tn_contiguous, k_grouped_fp16_gemm_nt_contiguous,
    k_grouped_fp16_gemm_tn_contiguous, k_grouped_half_gemm, random, reference,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::operand::f16::{Half, Major};

/// The operands of each group as `[M, K]` and `[N, K]`, and the products.
struct Data {
    m: usize,
    n: usize,
    ks: Vec<usize>,
    a: Vec<Vec<f32>>,
    b: Vec<Vec<f32>>,
    c: Vec<f32>,
    exact: Vec<f64>,
}

impl Data {
    fn new([m, n]: [usize; 2], ks: &[usize], element: DType) -> Data {
        let draw = |seed, count| element.decode(&element.encode(&random::normals(seed, count)));
        let (mut a, mut b, mut exact) = (Vec::new(), Vec::new(), Vec::new());
        for (group, &k) in (0u64..).zip(ks) {
            a.push(draw(10 * group + 1, m * k));
            b.push(draw(10 * group + 2, n * k));
            let (a, b) = (&a[group as usize], &b[group as usize]);
            exact.extend(reference::gemm_nt(a, b, [m, n, k], None).unwrap());
        }
        Data { m, n, ks: ks.to_vec(), a, b, c: draw(3, ks.len() * m * n), exact }
    }

    /// Where each group begins, and K of all.
    fn starts(&self, layout: GemmLayout) -> (Vec<usize>, usize) {
        let unit = if layout == GemmLayout::Nt { 8 } else { 1 };
        let mut end = 0usize;
        let place = |k: &usize| {
            let start = end;
            end += k.next_multiple_of(unit);
            start
        };
        (self.ks.iter().map(place).collect(), end)
    }

    fn expect_right(&self, d: &Tensor, added: bool, about: &str) {
        let (size, step) = (self.m * self.n, if d.dtype() == DType::F32 { 1e-6 } else { 1.0 / 250.0 });
        for (i, (found, exact)) in d.to_vec_f32().unwrap().iter().zip(&self.exact).enumerate() {
            let expected = exact + if added { f64::from(self.c[i]) } else { 0.0 };
            let depth = self.ks[i / size] as f64;
            let allowed = expected.abs() * step + 1e-5 * depth.sqrt() + 1e-6;
            let off = (f64::from(*found) - expected).abs();
            let (group, element) = (i / size, i % size);
            assert!(off <= allowed, "{about}: group {group}, element {element}: {found}, not {expected}");
        }
    }
}

/// The operands on a device.
struct Operands {
    layout: GemmLayout,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    ks: Tensor,
}

/// Rows of A and B have NaN behind them, and so do groups where they leave gaps; where `gap` is not 0 so do rows and groups of D.
fn upload(
    data: &Data,
    device: &Device,
    layout: GemmLayout,
    [ab_type, d_type]: [DType; 2],
    gap: usize,
) -> Operands {
    let (starts, k) = data.starts(layout);
    let matrix = |groups: &[Vec<f32>], rows: usize| {
        let tn = layout == GemmLayout::Tn;
        let [lines, length] = if tn { [k, rows] } else { [rows, k] };
        let pitch = (length + 1).next_multiple_of(8);
        let memory = vec![f32::NAN; (lines + 3) * pitch];
        let memory = Tensor::from_f32(ab_type, &memory, &[lines + 3, pitch], device).unwrap();
        let matrix = memory.narrow(0, 0, lines).unwrap().narrow(1, 0, length).unwrap();
        let by_rows = if tn { matrix.transpose(0, 1).unwrap() } else { matrix.clone() };
        for ((values, start), depth) in groups.iter().zip(&starts).zip(&data.ks) {
            by_rows.narrow(1, *start, *depth).unwrap().write_f32(values).unwrap();
        }
        matrix
    };
    let output = || {
        let memory = Tensor::zeros(d_type, &[data.ks.len(), data.m + gap, data.n + 4 * gap], device).unwrap();
        let mut d = memory.narrow(1, 0, data.m).unwrap().narrow(2, 0, data.n).unwrap();
        d.write_f32(&data.c).unwrap();
        d
    };
    let ks: Vec<i32> = data.ks.iter().map(|k| *k as i32).collect();
    Operands {
        layout,
        a: matrix(&data.a, data.m),
        b: matrix(&data.b, data.n),
        c: output(),
        d: output(),
        ks: Tensor::from_slice(&ks, &[ks.len()], device).unwrap(),
    }
}

impl Operands {
    fn run(&mut self, addend: usize, options: &GemmOptions) -> oxigemm::Result<()> {
        let addend = match addend {
            0 => Addend::None,
            1 => Addend::InPlace,
            _ => Addend::From(&self.c),
        };
        k_grouped_half_gemm(self.layout, &self.a, &self.b, addend, &mut self.d, &self.ks, None, options)
    }
}

const LAYOUTS: [GemmLayout; 2] = [GemmLayout::Tn, GemmLayout::Nt];

fn choices() -> Vec<(GemmConfig, GemmLayout, DType)> {
    let f16 =
        GemmKernel::k_grouped(Arch::Sm90a).filter_map(|kernel| Some((kernel, kernel.operands().as_f16()?)));
    f16.flat_map(|(kernel, operands)| {
        let layout = if operands.a == Major::K { GemmLayout::Nt } else { GemmLayout::Tn };
        let dtype = if operands.element == Half::Bf16 { DType::Bf16 } else { DType::F16 };
        kernel.with_clusters([[1, 1], [1, 2], [2, 1]]).map(|config| (config, layout, dtype))
    })
    .collect()
}

#[test]
fn the_cpu_multiplies_every_group() {
    for layout in LAYOUTS {
        let data = Data::new([5, 9], &[100, 0, 1, 33], DType::Bf16);
        for addend in 0..3 {
            let types = [DType::Bf16, DType::F32];
            let mut operands = upload(&data, &Device::cpu(), layout, types, addend);
            operands.run(addend, &GemmOptions::default()).unwrap();
            data.expect_right(&operands.d, addend > 0, "cpu");
        }
    }
}

#[test]
fn every_kernel_and_output_is_right_under_every_schedule() {
    // Empty groups, one of a single row, tails in both operands, whole stages, and more of them than the pipeline has.
    let ks = [1, 0, 450, 64, 63];
    let data = [DType::Bf16, DType::F16].map(|element| (element, Data::new([70, 136], &ks, element)));
    let all = choices();
    assert_eq!(all.len(), 24, "two tiles, two layouts and two types with three clusters");
    for (turn, (choice, layout, element)) in all.into_iter().enumerate() {
        let (_, data) = data.iter().find(|(of, _)| *of == element).unwrap();
        // The types differ in one instruction.
        let addends = if element == DType::Bf16 { 0..3 } else { turn % 3..turn % 3 + 1 };
        for addend in addends {
            let policy = [Policy::Eager, Policy::Lazy, Policy::Random][(turn + addend) % 3];
            let sim = Sim::with_options(Options { policy, seed: turn as u64, ..Options::default() });
            let d_type = [DType::F32, element][(turn + addend / 2) % 2];
            let mut operands = upload(data, &Device::Sim(sim), layout, [element, d_type], turn % 2);
            let options = GemmOptions { config: Some(choice), num_sms: Some(4), ..Default::default() };
            let about = format!("{} {addend} {d_type} {policy:?}", plan::name(&choice));
            operands.run(addend, &options).unwrap_or_else(|error| panic!("{about}: {error}"));
            data.expect_right(&operands.d, addend > 0, &about);
        }
    }
}

#[test]
fn many_small_groups_take_turns_with_the_maps() {
    let ks: Vec<usize> = (0..40).map(|i| [16, 0, 144, 1, 64][i % 5]).collect();
    let data = Data::new([20, 24], &ks, DType::Bf16);
    for (layout, policy) in LAYOUTS
        .into_iter()
        .flat_map(|layout| [Policy::Eager, Policy::Lazy, Policy::Random].map(|p| (layout, p)))
    {
        let sim = Sim::with_options(Options { policy, seed: 5, ..Options::default() });
        let mut operands = upload(&data, &Device::Sim(sim), layout, [DType::Bf16, DType::F32], 0);
        operands.run(1, &GemmOptions { num_sms: Some(1), ..Default::default() }).unwrap();
        data.expect_right(&operands.d, true, &format!("{layout} {policy:?}"));
    }
}

#[test]
fn an_empty_group_leaves_d_as_it_is_or_clears_it() {
    let data = Data::new([8, 16], &[0, 128], DType::Bf16);
    for (addend, expected) in [(0, 0.0f32), (1, -0.0), (2, f32::NAN)] {
        let device = Device::Sim(Sim::new());
        let mut operands = upload(&data, &device, GemmLayout::Tn, [DType::Bf16, DType::F32], 0);
        operands.d.select(0).unwrap().write_f32(&[-0.0; 8 * 16]).unwrap();
        operands.run(addend, &GemmOptions::default()).unwrap();
        let found = operands.d.select(0).unwrap().to_vec_f32().unwrap();
        match addend {
            2 => assert_eq!(found, data.c[..8 * 16]),
            _ => assert!(found.iter().all(|x| x.to_bits() == expected.to_bits()), "{addend}: {found:?}"),
        }
    }
    // Where no group has anything there is no kernel.
    for addend in 0..3 {
        let nothing = Data::new([8, 16], &[0, 0], DType::Bf16);
        let device = Device::Sim(Sim::new());
        let mut operands = upload(&nothing, &device, GemmLayout::Tn, [DType::Bf16, DType::F32], 1);
        operands.run(addend, &GemmOptions::default()).unwrap();
        nothing.expect_right(&operands.d, addend > 0, "nothing");
    }
}

#[test]
fn numbers_that_do_not_fit_are_cut_off() {
    let data = Data::new([20, 40], &[200, 85, 131], DType::F16);
    for numbers in [[i32::MAX, 5, 5], [-7, 200, 1000], [0, 0, 0], [416, 1, -1], [300, 300, 300], [1, 1, 1]] {
        for layout in LAYOUTS {
            let [sim, cpu] = [Device::Sim(Sim::new()), Device::cpu()].map(|device| {
                let mut operands = upload(&data, &device, layout, [DType::F16, DType::F32], 0);
                operands.ks = Tensor::from_slice(&numbers, &[3], &device).unwrap();
                operands.run(0, &GemmOptions::default()).unwrap();
                operands.d.to_vec_f32().unwrap()
            });
            for (i, (sim, cpu)) in sim.iter().zip(&cpu).enumerate() {
                // What lies between groups is NaN, and may be part of a product now.
                let same = (sim - cpu).abs() <= 1e-3 || (sim.is_nan() && cpu.is_nan());
                assert!(same, "{layout} {numbers:?}, element {i}: {sim} {cpu}");
            }
        }
    }
}

#[test]
fn a_graph_is_replayed_with_other_numbers() {
    let device = Device::Sim(Sim::new());
    let turns = [[128usize, 0, 256], [0, 384, 0], [123, 0, 253], [100, 160, 120], [384, 0, 0]];
    let turns = turns.map(|ks| Data::new([20, 40], &ks, DType::Bf16));
    let types = [DType::Bf16, DType::F32];
    for layout in LAYOUTS {
        let stream = device.new_stream().unwrap();
        let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
        let mut operands = upload(&turns[0], &device, layout, types, 0);
        operands.run(0, &options).unwrap();
        let graph = stream.capture(|_| operands.run(0, &options)).unwrap();
        for data in &turns {
            let new = upload(data, &device, layout, types, 0);
            // Those of less K lie in a part of the memory.
            let along_k = usize::from(layout == GemmLayout::Nt);
            for (old, new) in [(&operands.a, &new.a), (&operands.b, &new.b)] {
                old.narrow(along_k, 0, new.dims()[along_k]).unwrap().copy_from(new).unwrap();
            }
            operands.ks.copy_from(&new.ks).unwrap();
            graph.launch(&stream).unwrap();
            stream.synchronize().unwrap();
            data.expect_right(&operands.d, false, &format!("{layout} {:?}", data.ks));
        }
    }
}

#[test]
fn raw_operands_and_named_functions_are_the_same_product() {
    let device = Device::Sim(Sim::new());
    for (layout, ab_type) in
        LAYOUTS.into_iter().flat_map(|layout| [(layout, DType::Bf16), (layout, DType::F16)])
    {
        let data = Data::new([24, 40], &[200, 16], ab_type);
        let mut operands = upload(&data, &device, layout, [ab_type, DType::F32], 0);
        let pitched = |x: &Tensor| RawMatrix::new(x.address(), ab_type, x.strides()[0]);
        let d = RawMatrix::new(operands.d.address(), DType::F32, 40).groups_apart(960);
        let (ks, ks_host) = (operands.ks.address(), Some(&[200, 16][..]));
        let gemm = RawGemm {
            layout,
            c: Some(d),
            grouping: RawGrouping::KGrouped { groups: 2, blocks: 0, ks, ks_host },
            ..RawGemm::new([24, 40, 216], pitched(&operands.a), pitched(&operands.b), d)
        };
        // SAFETY: the tensors outlive the call, which in the simulator ends when the kernel does.
        unsafe { gemm_raw(&device, &gemm, &GemmOptions::default()).unwrap() };
        let raw = operands.d.to_bytes().unwrap();
        operands.d.write_f32(&data.c).unwrap();
        let function = match (layout, ab_type) {
            (GemmLayout::Tn, DType::Bf16) => k_grouped_bf16_gemm_tn_contiguous,
            (GemmLayout::Tn, _) => k_grouped_fp16_gemm_tn_contiguous,
            (_, DType::Bf16) => k_grouped_bf16_gemm_nt_contiguous,
            (_, _) => k_grouped_fp16_gemm_nt_contiguous,
        };
        let (a, b, ks) = (&operands.a, &operands.b, &operands.ks);
        function(a, b, Addend::InPlace, &mut operands.d, ks, None, &GemmOptions::default()).unwrap();
        assert_eq!(operands.d.to_bytes().unwrap(), raw);
        // SAFETY: refused before anything is looked at.
        let refused = unsafe { gemm_raw(&Device::cpu(), &gemm, &GemmOptions::default()) };
        assert_eq!(refused.unwrap_err().argument(), Some("device"));
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let device = Device::cpu();
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
    let (a, b) = (new(DType::Bf16, &[100, 8]), new(DType::Bf16, &[100, 16]));
    let d = new(DType::F32, &[2, 8, 16]);
    let ks = Tensor::from_slice(&[60i32, 40], &[2], &device).unwrap();
    let (tn, host) = (GemmLayout::Tn, Some(&[60usize, 40][..]));
    let run =
        |layout, a: &Tensor, b: &Tensor, c: Addend<'_>, d: &Tensor, ks: &Tensor, host: Option<&[usize]>| {
            k_grouped_half_gemm(layout, a, b, c, &mut d.clone(), ks, host, &GemmOptions::default())
        };
    let none = Addend::None;
    assert!(run(tn, &a, &b, none, &d, &ks, host).is_ok());
    let wide = new(DType::Bf16, &[100, 9]);
    let apart = new(DType::F32, &[2, 9, 16]).narrow(1, 0, 8).unwrap();
    let refused = [
        (run(GemmLayout::Nn, &a, &b, none, &d, &ks, None), "layout"),
        (run(GemmLayout::Tt, &a, &b, none, &d, &ks, None), "layout"),
        (run(GemmLayout::Nt, &a, &b, none, &d, &ks, None), "a"),
        (run(tn, &new(DType::F32, &[100, 8]), &b, none, &d, &ks, None), "a"),
        (run(tn, &new(DType::Bf16, &[100, 16]), &b, none, &d, &ks, None), "a"),
        (run(tn, &new(DType::Bf16, &[100]), &b, none, &d, &ks, None), "a"),
        (run(tn, &wide.narrow(1, 0, 8).unwrap(), &b, none, &d, &ks, None), "a"),
        (run(tn, &new(DType::Bf16, &[8, 100]).transpose(0, 1).unwrap(), &b, none, &d, &ks, None), "a"),
        (run(tn, &a, &new(DType::F16, &[100, 16]), none, &d, &ks, None), "b"),
        (run(tn, &a, &new(DType::Bf16, &[99, 16]), none, &d, &ks, None), "b"),
        (run(tn, &a, &new(DType::Bf16, &[100, 24]), none, &d, &ks, None), "b"),
        (run(tn, &a, &b, Addend::From(&new(DType::Bf16, &[2, 8, 16])), &d, &ks, None), "c"),
        (run(tn, &a, &b, Addend::From(&new(DType::F32, &[2, 8, 8])), &d, &ks, None), "c"),
        (run(tn, &a, &b, Addend::From(&apart), &d, &ks, None), "c"),
        (run(tn, &a, &b, none, &new(DType::F32, &[8, 16]), &ks, None), "d"),
        (run(tn, &a, &b, none, &new(DType::F16, &[2, 8, 16]), &ks, None), "d"),
        (run(tn, &a, &b, none, &d, &new(DType::I32, &[3]), None), "ks"),
        (run(tn, &a, &b, none, &d, &new(DType::F32, &[2]), None), "ks"),
        (run(tn, &a, &b, none, &d, &ks, Some(&[100])), "ks_host"),
        (run(tn, &a, &b, none, &d, &ks, Some(&[60, 39])), "ks_host"),
        (run(tn, &a, &b, none, &d, &ks, Some(&[usize::MAX, 101])), "ks_host"),
    ];
    for (i, (result, argument)) in refused.into_iter().enumerate() {
        let error = result.expect_err(argument);
        assert_eq!(error.argument(), Some(argument), "case {i}: {error}");
    }
    let options = GemmOptions {
        config: plan::parse("sm90_fp8_persistent_k_grouped_1d1d_128x128_s4_c1x1"),
        ..Default::default()
    };
    assert!(options.config.is_some());
    let sim = Device::Sim(Sim::new());
    let data = Data::new([8, 16], &[3], DType::Bf16);
    let mut operands = upload(&data, &sim, tn, [DType::Bf16, DType::F32], 0);
    assert!(operands.run(0, &options).is_err(), "a kernel of another family");
}
