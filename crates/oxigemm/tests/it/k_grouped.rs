//! `k_grouped_fp8_gemm_nt_contiguous` in the simulator: every kernel, launch, output and layout of scales, groups of
//! every size, and numbers that the host never sees.

use oxigemm::cast::{ScaleFormat, per_token_cast_to_fp8};
use oxigemm::plan::{self, GemmConfig};
use oxigemm::sim::{Options, Policy};
use oxigemm::{
    Addend, DType, Device, GemmLayout, GemmOptions, Sim, Tensor, k_grouped_fp8_gemm_nt_contiguous,
    k_grouped_fp8_gemm_tn_contiguous, random, reference,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;

/// The operands of all groups: codes one after the other, scales side by side.
pub struct Data {
    pub m: usize,
    pub n: usize,
    pub ks: Vec<usize>,
    pub a: Vec<u8>,
    pub sfa: Vec<f32>,
    pub b: Vec<u8>,
    pub sfb: Vec<f32>,
    pub c: Vec<f32>,
    pub exact: Vec<f64>,
}

const FP8_NAN: u8 = 0x7f;

impl Data {
    pub fn new([m, n]: [usize; 2], ks: &[usize]) -> Data {
        let blocks: usize = ks.iter().map(|k| k.div_ceil(128)).sum();
        let c = DType::Bf16.decode(&DType::Bf16.encode(&random::normals(3, ks.len() * m * n)));
        let mut data = Data {
            m,
            n,
            ks: ks.to_vec(),
            a: Vec::new(),
            sfa: vec![0.0; m * blocks],
            b: Vec::new(),
            sfb: vec![0.0; n * blocks],
            c,
            exact: Vec::new(),
        };
        let mut first = 0;
        for (group, &k) in ks.iter().enumerate() {
            let draw = |rows: usize, salt: u64| {
                let values = random::normals(10 * group as u64 + salt, rows * k);
                per_token_cast_to_fp8(&values, rows, k, ScaleFormat::F32).unwrap()
            };
            let (a, b) = (draw(m, 1), draw(n, 2));
            let parts = [(&a, &mut data.a, &mut data.sfa), (&b, &mut data.b, &mut data.sfb)];
            for (x, codes, scales) in parts {
                for row in x.codes.chunks(k.max(1)) {
                    codes.extend(row);
                    // Nothing may depend on what lies between rows.
                    codes.resize(codes.len() + k.next_multiple_of(16) - k, FP8_NAN);
                }
                for (i, scale) in x.scales.iter().enumerate() {
                    let of_group = k.div_ceil(128);
                    scales[i / of_group * blocks + first + i % of_group] = *scale;
                }
            }
            data.exact.extend(reference::fp8_gemm_nt(&a.as_matrix(), &b.as_matrix(), None).unwrap());
            first += k.div_ceil(128);
        }
        data
    }

    fn expect_right(&self, d: &Tensor, added: bool, about: &str) {
        let size = self.m * self.n;
        for (i, (found, exact)) in d.to_vec_f32().unwrap().iter().zip(&self.exact).enumerate() {
            let expected = exact + if added { f64::from(self.c[i]) } else { 0.0 };
            let allowed = expected.abs() / 256.0 + 0.03 * (self.ks[i / size] as f64).sqrt();
            let off = (f64::from(*found) - expected).abs();
            assert!(
                off <= allowed,
                "{about}: group {}, element {}: {found}, not {expected}",
                i / size,
                i % size
            );
        }
    }
}

/// The operands on a device.
pub struct Operands {
    pub layout: GemmLayout,
    pub a: Tensor,
    pub sfa: Tensor,
    pub b: Tensor,
    pub sfb: Tensor,
    pub c: Tensor,
    pub d: Tensor,
    pub ks: Tensor,
}

/// Scales along K, along M, or along M with an odd pitch.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    K,
    M,
    Odd,
}

const ORDERS: [Order; 3] = [Order::K, Order::M, Order::Odd];

pub fn upload(data: &Data, device: &Device, d_type: DType, order: Order, gap: usize) -> Operands {
    let scales = |values: &[f32], rows: usize| {
        let blocks = values.len() / rows;
        let pitch = match order {
            Order::K => return Tensor::from_slice(values, &[rows, blocks], device).unwrap(),
            Order::M => rows.next_multiple_of(4),
            Order::Odd => rows | 1,
        };
        let mut turned = vec![f32::NAN; blocks * pitch];
        for (i, scale) in values.iter().enumerate() {
            turned[i % blocks * pitch + i / blocks] = *scale;
        }
        let turned = Tensor::from_slice(&turned, &[blocks, pitch], device).unwrap();
        turned.narrow(1, 0, rows).unwrap().transpose(0, 1).unwrap()
    };
    let (groups, m, n) = (data.ks.len(), data.m, data.n);
    // Rows between groups, and columns behind rows.
    let output = || {
        let memory = Tensor::zeros(d_type, &[groups, m + gap, n + 4 * gap], device).unwrap();
        let mut d = memory.narrow(1, 0, m).unwrap().narrow(2, 0, n).unwrap();
        d.write_f32(&data.c).unwrap();
        d
    };
    let ks: Vec<i32> = data.ks.iter().map(|k| *k as i32).collect();
    let bytes = |codes: &[u8]| Tensor::from_bytes(DType::E4m3, codes, &[codes.len()], device).unwrap();
    Operands {
        layout: GemmLayout::Nt,
        a: bytes(&data.a),
        sfa: scales(&data.sfa, m),
        b: bytes(&data.b),
        sfb: scales(&data.sfb, n),
        c: output(),
        d: output(),
        ks: Tensor::from_slice(&ks, &[groups], device).unwrap(),
    }
}

impl Operands {
    pub fn run(&mut self, addend: usize, options: &GemmOptions) -> oxigemm::Result<()> {
        let addend = match addend {
            0 => Addend::None,
            1 => Addend::InPlace,
            _ => Addend::From(&self.c),
        };
        let (a, b) = ((&self.a, &self.sfa), (&self.b, &self.sfb));
        let function = match self.layout {
            GemmLayout::Tn => k_grouped_fp8_gemm_tn_contiguous,
            _ => k_grouped_fp8_gemm_nt_contiguous,
        };
        function(a, b, addend, &mut self.d, &self.ks, None, options)
    }
}

/// The same operands with K first: `[K, M]` and `[K, N]` with NaN behind their rows, scales `[blocks, M]`.
pub fn with_k_first(data: &Data, operands: Operands) -> Operands {
    let device = operands.a.device().clone();
    let matrix = |codes: &[u8], rows: usize| {
        let (k, pitch) = (data.ks.iter().sum::<usize>(), (rows + 1).next_multiple_of(16));
        let mut turned = vec![FP8_NAN; k.max(1) * pitch];
        let (mut from, mut start) = (0, 0);
        for &depth in &data.ks {
            for row in 0..rows {
                for (i, code) in codes[from..][..depth].iter().enumerate() {
                    turned[(start + i) * pitch + row] = *code;
                }
                from += depth.next_multiple_of(16);
            }
            start += depth;
        }
        let memory = Tensor::from_bytes(DType::E4m3, &turned, &[k.max(1), pitch], &device).unwrap();
        memory.narrow(0, 0, k).unwrap().narrow(1, 0, rows).unwrap()
    };
    let [sfa, sfb] = [&operands.sfa, &operands.sfb].map(|scales| scales.transpose(0, 1).unwrap());
    let (a, b) = (matrix(&data.a, data.m), matrix(&data.b, data.n));
    Operands { layout: GemmLayout::Tn, a, b, sfa, sfb, ..operands }
}

fn choices() -> impl Iterator<Item = GemmConfig> {
    GemmKernel::k_grouped(Arch::Sm90a)
        .filter(|kernel| kernel.operands().is_fp8())
        .flat_map(|kernel| kernel.with_clusters([[1, 1], [1, 2], [2, 1]]))
}

#[test]
fn the_cpu_multiplies_every_group() {
    let data = Data::new([5, 9], &[100, 0, 1, 256]);
    for (addend, order) in ORDERS.into_iter().enumerate() {
        let mut operands = upload(&data, &Device::cpu(), DType::F32, order, addend);
        operands.run(addend, &GemmOptions::default()).unwrap();
        data.expect_right(&operands.d, addend > 0, "cpu");
        let mut turned = with_k_first(&data, upload(&data, &Device::cpu(), DType::F32, order, addend));
        turned.run(addend, &GemmOptions::default()).unwrap();
        assert_eq!(turned.d.to_bytes().unwrap(), operands.d.to_bytes().unwrap(), "it is the same product");
    }
}

#[test]
fn operands_that_begin_with_k_give_the_same_bits() {
    // More of M than a tile has, groups that are rounded up, none, and one of a single step.
    for (turn, ks) in
        [&[1usize, 0, 300, 16, 130][..], &[0, 128, 1, 1, 1], &[77], &[0, 0]].into_iter().enumerate()
    {
        let data = Data::new([131, 40], ks);
        let policy = [Policy::Eager, Policy::Lazy, Policy::Random][turn % 3];
        let sim = Sim::with_options(Options { policy, seed: turn as u64, ..Options::default() });
        let device = Device::Sim(sim);
        let mut expected = upload(&data, &device, DType::F32, ORDERS[turn % 3], 0);
        let mut turned = with_k_first(&data, upload(&data, &device, DType::F32, ORDERS[turn % 3], 0));
        for addend in 0..3 {
            expected.run(addend, &GemmOptions::default()).unwrap();
            turned.run(addend, &GemmOptions::default()).unwrap();
            assert_eq!(turned.d.to_bytes().unwrap(), expected.d.to_bytes().unwrap(), "{ks:?} {addend}");
        }
    }
}

#[test]
fn numbers_that_do_not_fit_operands_that_begin_with_k_are_cut_off() {
    let data = Data::new([20, 40], &[200, 100, 128]);
    for numbers in [[i32::MAX, 5, 5], [-7, 200, 1000], [0, 0, 0], [428, 1, -1], [300, 300, 300], [1, 1, 1]] {
        let [sim, cpu] = [Device::Sim(Sim::new()), Device::cpu()].map(|device| {
            let mut operands = with_k_first(&data, upload(&data, &device, DType::F32, Order::M, 0));
            operands.ks = Tensor::from_slice(&numbers, &[3], &device).unwrap();
            operands.run(0, &GemmOptions::default()).unwrap();
            operands.d.to_vec_f32().unwrap()
        });
        for (i, (sim, cpu)) in sim.iter().zip(&cpu).enumerate() {
            let allowed = 0.03 * 428f32.sqrt() + cpu.abs() / 256.0;
            assert!((sim - cpu).abs() <= allowed, "{numbers:?}, element {i}: {sim} {cpu}");
        }
    }
}

#[test]
fn a_graph_with_operands_that_begin_with_k_is_replayed_with_other_numbers() {
    let device = Device::Sim(Sim::new());
    // As many steps and blocks in all.
    let turns = [[128usize, 100, 157], [157, 128, 100], [130, 0, 255], [1, 384, 0]]
        .map(|ks| Data::new([20, 40], &ks));
    let stream = device.new_stream().unwrap();
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    let new = |data: &Data| with_k_first(data, upload(data, &device, DType::F32, Order::M, 0));
    let mut operands = new(&turns[0]);
    operands.run(0, &options).unwrap();
    let graph = stream.capture(|_| operands.run(0, &options)).unwrap();
    for data in &turns {
        let new = new(data);
        for (old, new) in [
            (&operands.a, &new.a),
            (&operands.b, &new.b),
            (&operands.sfa, &new.sfa),
            (&operands.sfb, &new.sfb),
        ] {
            old.narrow(0, 0, new.dims()[0]).unwrap().copy_from(new).unwrap();
        }
        operands.ks.copy_from(&new.ks).unwrap();
        graph.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        data.expect_right(&operands.d, false, &format!("{:?}", data.ks));
    }
}

#[test]
fn every_kernel_output_and_layout_is_right_under_every_schedule() {
    // Empty groups, one of a single column, tails, more blocks of K than a group of scales and than stages.
    let data = Data::new([100, 130], &[1, 0, 1200, 16, 130]);
    for (turn, choice) in choices().enumerate() {
        for addend in 0..3 {
            let policy = [Policy::Eager, Policy::Lazy, Policy::Random][(turn + addend) % 3];
            let sim = Sim::with_options(Options { policy, seed: turn as u64, ..Options::default() });
            let d_type = [DType::F32, DType::Bf16][(turn + addend / 2) % 2];
            let order = ORDERS[(turn + 2 * addend) % 3];
            let mut operands = upload(&data, &Device::Sim(sim), d_type, order, turn % 2);
            let options = GemmOptions { config: Some(choice), num_sms: Some(4), ..Default::default() };
            let about = format!("{} {addend} {d_type} {order:?} {policy:?}", plan::name(&choice));
            operands.run(addend, &options).unwrap_or_else(|error| panic!("{about}: {error}"));
            data.expect_right(&operands.d, addend > 0, &about);
        }
    }
}

#[test]
fn many_small_groups_take_turns_with_the_maps() {
    let ks: Vec<usize> = (0..40).map(|i| [16, 0, 144, 1][i % 4]).collect();
    let data = Data::new([20, 24], &ks);
    for policy in [Policy::Eager, Policy::Lazy, Policy::Random] {
        let sim = Sim::with_options(Options { policy, seed: 5, ..Options::default() });
        let mut operands = upload(&data, &Device::Sim(sim), DType::F32, Order::M, 0);
        operands.run(1, &GemmOptions { num_sms: Some(1), ..Default::default() }).unwrap();
        data.expect_right(&operands.d, true, &format!("{policy:?}"));
    }
}

#[test]
fn an_empty_group_leaves_d_as_it_is_or_clears_it() {
    let data = Data::new([8, 16], &[0, 128]);
    for (addend, expected) in [(0, 0.0), (1, -0.0), (2, f32::NAN)] {
        let device = Device::Sim(Sim::new());
        let mut operands = upload(&data, &device, DType::F32, Order::M, 0);
        let first = vec![-0.0f32; 8 * 16];
        operands.d.select(0).unwrap().write_f32(&first).unwrap();
        operands.run(addend, &GemmOptions::default()).unwrap();
        let found = operands.d.select(0).unwrap().to_vec_f32().unwrap();
        match addend {
            2 => assert_eq!(found, data.c[..8 * 16]),
            _ => {
                assert!(found.iter().all(|x: &f32| x.to_bits() == expected.to_bits()), "{addend}: {found:?}")
            }
        }
    }
    // Where no group has anything there is no kernel.
    for addend in 0..3 {
        let nothing = Data::new([8, 16], &[0, 0]);
        let mut operands = upload(&nothing, &Device::Sim(Sim::new()), DType::F32, Order::K, 1);
        operands.run(addend, &GemmOptions::default()).unwrap();
        nothing.expect_right(&operands.d, addend > 0, "nothing");
    }
}

#[test]
fn numbers_that_do_not_fit_are_cut_off() {
    let data = Data::new([20, 40], &[200, 100, 128]);
    let device = Device::Sim(Sim::new());
    for numbers in [[i32::MAX, 5, 5], [-7, 200, 1000], [0, 0, 0], [416, 1, -1], [300, 300, 300], [1, 1, 1]] {
        let results = [device.clone(), Device::cpu()].map(|device| {
            let mut operands = upload(&data, &device, DType::F32, Order::M, 0);
            operands.ks = Tensor::from_slice(&numbers, &[3], &device).unwrap();
            operands.run(0, &GemmOptions::default()).unwrap();
            operands.d.to_vec_f32().unwrap()
        });
        for (i, (sim, cpu)) in results[0].iter().zip(&results[1]).enumerate() {
            // What lies between rows is NaN, and may be part of a product now.
            let same = (sim - cpu).abs() <= 0.03 * 416f32.sqrt() + cpu.abs() / 256.0;
            assert!(same || (sim.is_nan() && cpu.is_nan()), "{numbers:?}, element {i}: {sim} {cpu}");
        }
    }
}

#[test]
fn a_graph_is_replayed_with_other_numbers() {
    let device = Device::Sim(Sim::new());
    let turns =
        [[128usize, 0, 256], [0, 384, 0], [127, 0, 255], [128, 128, 128]].map(|ks| Data::new([20, 40], &ks));
    let stream = device.new_stream().unwrap();
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    let mut operands = upload(&turns[0], &device, DType::F32, Order::M, 0);
    operands.run(0, &options).unwrap();
    let graph = stream.capture(|_| operands.run(0, &options)).unwrap();
    for data in &turns {
        let new = upload(data, &device, DType::F32, Order::M, 0);
        for (old, new) in [(&mut operands.a, &new.a), (&mut operands.b, &new.b), (&mut operands.ks, &new.ks)]
        {
            old.write_bytes(&new.to_bytes().unwrap()).unwrap();
        }
        for (old, new) in [(&mut operands.sfa, &new.sfa), (&mut operands.sfb, &new.sfb)] {
            old.narrow(1, 0, new.dims()[1]).unwrap().copy_from(new).unwrap();
        }
        graph.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        data.expect_right(&operands.d, false, &format!("{:?}", data.ks));
    }
}
