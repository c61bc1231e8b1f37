//! FP8 operands of which one or both are e5m2: every kernel under all policies, the plan, and the reference.

use crate::common::{self, policies, same_bits};
use oxigemm::Granularity;
use oxigemm::cast::{Quantized, ScaleFormat, cast_to_fp8};
use oxigemm::metrics::calc_diff;
use oxigemm::plan::{self, GemmConfig};
use oxigemm::{Addend, DType, Device, Error, GemmOptions, Sim, Tensor, fp8_gemm_nt, random, reference};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::operand::fp8::E5m2;

fn types(mix: E5m2) -> [DType; 2] {
    mix.operands().map(|e5m2| if e5m2 { DType::E5m2 } else { DType::E4m3 })
}

struct Problem {
    a: (Tensor, Tensor),
    b: (Tensor, Tensor),
    exact: Vec<f64>,
    unquantized: Vec<f64>,
}

fn problem([m, n, k]: [usize; 3], [a_type, b_type]: [DType; 2], device: &Device) -> Problem {
    let (a_values, b_values) = (random::normals(1, m * k), random::normals(2, n * k));
    let a = cast_to_fp8(&a_values, m, k, a_type, Granularity::PerToken, ScaleFormat::F32).unwrap();
    let b = cast_to_fp8(&b_values, n, k, b_type, Granularity::PerBlock, ScaleFormat::F32).unwrap();
    let tensors = |x: &Quantized| {
        let scales = Tensor::from_slice(&x.scales, &x.scale_dims(), device).unwrap();
        (common::codes(x, device), scales)
    };
    Problem {
        exact: reference::fp8_gemm_nt(&a.as_matrix(), &b.as_matrix(), None).unwrap(),
        unquantized: reference::gemm_nt(&a_values, &b_values, [m, n, k], None).unwrap(),
        a: tensors(&a),
        b: tensors(&b),
    }
}

fn run(x: &Problem, choice: Option<GemmConfig>) -> oxigemm::Result<Tensor> {
    let dims = [x.a.0.dims()[0], x.b.0.dims()[0]];
    let mut d = Tensor::empty(DType::F32, &dims, x.a.0.device())?;
    let options = GemmOptions { config: choice, ..Default::default() };
    fp8_gemm_nt((&x.a.0, &x.a.1), (&x.b.0, &x.b.1), Addend::None, &mut d, &options)?;
    Ok(d)
}

#[test]
fn every_kernel_under_every_policy() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    for (i, config) in GemmKernel::dense(Arch::Sm90a).enumerate() {
        let Some(mix) = config.operands().e5m2() else { continue };
        let ([block_m, block_n], plain) = (config.tile(), GemmConfig::of(config));
        let (choice, dims) = match config.is_split_k() {
            false => {
                let cluster = [[1, 1], [1, 2], [2, 1]][i % 3];
                let dims = [block_m * cluster[0] - 3, block_n * cluster[1] - 8, 528];
                (GemmConfig { cluster, ..plain }, dims)
            }
            true => {
                let (split_k, stages) = ([4, 1, 2][i % 3], 2);
                (GemmConfig { split_k, stages, ..plain }, [block_m - 1, block_n + 8, 528 * split_k])
            }
        };
        let x = problem(dims.map(|x| x as usize), types(mix), &device);
        same_bits(&config.name(), policies(i), &sim, |about| {
            let d = run(&x, Some(choice)).unwrap_or_else(|error| panic!("{about}: {error}"));
            let diff = calc_diff(&d.to_vec_f32().unwrap(), &x.exact);
            assert!(diff < 1e-6, "{about}: {diff}");
            d.to_bytes().unwrap()
        });
    }
}

#[test]
fn the_planned_kernel_serves_any_shape_of_any_mix() {
    for device in [Device::cpu(), Device::sim()] {
        for mix in E5m2::ALL {
            for dims in [[1, 1, 1], [3, 70, 300], [17, 130, 160], [70, 40, 129]] {
                let x = problem(dims, types(mix), &device);
                let d = run(&x, None).unwrap().to_vec_f32().unwrap();
                let diff = calc_diff(&d, &x.exact);
                assert!(diff < 1e-5, "{mix:?} {dims:?}: {diff}");
                if d.len() > 1000 {
                    // Two bits of a mantissa lose more than three.
                    let diff = calc_diff(&d, &x.unquantized);
                    assert!((5e-4..4e-3).contains(&diff), "{mix:?} {dims:?}: {diff}");
                }
            }
        }
    }
}

#[test]
fn a_kernel_of_other_types_is_refused() {
    let device = Device::sim();
    let x = problem([3, 64, 128], [DType::E5m2, DType::E4m3], &device);
    for name in [
        "sm90_fp8_split_k_8x64_k1_s2",
        "sm90_fp8_split_k_e4m3_e5m2_8x64_k1_s2",
        "sm90_fp8_split_k_e5m2_e5m2_8x64_k1_s2",
    ] {
        let error = run(&x, plan::parse(name)).unwrap_err();
        assert!(matches!(error, Error::ConfigOperands { .. }), "{name}: {error}");
    }
    run(&x, plan::parse("sm90_fp8_split_k_e5m2_e4m3_8x64_k1_s2")).unwrap();
}
