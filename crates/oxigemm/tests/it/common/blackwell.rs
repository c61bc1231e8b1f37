//! Blackwell's kernels in the simulator: the runner that their tests share.

use std::cell::Cell;

use super::{AddendKind, same_bits};
use oxigemm::plan::{self, GemmConfig};
use oxigemm::sim::Options;
use oxigemm::{DType, Device, GemmOptions, Sim, reference};
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_testkit::{Effort, Gemm, GemmCase, Grouping};

/// What an FP32 D may be apart from the product in `f64`, in parts of its size.
const F32_LIMIT: f64 = 1e-6;

/// A simulated B200.
pub fn blackwell() -> (Device, Sim) {
    let device: Device = "sim:sm_100a".parse().expect("a device");
    let sim = device.as_sim().expect("a simulated one").clone();
    (device, sim)
}

/// The configuration of a kernel that the `nth` case of a set runs.
pub fn config_of(kernel: &GemmKernel, nth: usize) -> GemmConfig {
    let splits = kernel.spec().splits();
    let stages = if kernel.is_split_k() { 2 + nth as u32 % 3 } else { *kernel.stages().start() };
    GemmConfig { split_k: splits[nth % splits.len()], stages, ..GemmConfig::of(*kernel) }
}

/// Options of a run by a configuration: persistent kernels have more tiles than CTAs.
pub fn options_of(config: GemmConfig) -> GemmOptions {
    let num_sms = (!config.covers_d()).then_some(2);
    GemmOptions { config: Some(config), num_sms, ..Default::default() }
}

/// Runs a case by a configuration under some schedules, which must all give the same, right bits, have no hazard and write
/// nothing else.
pub fn every_schedule_gives_the_same_bits(
    case: &GemmCase,
    config: GemmConfig,
    schedules: impl Iterator<Item = Options>,
) {
    let (device, sim) = blackwell();
    let options = options_of(config);
    // Of other schedules the bits are the same.
    let compared = Cell::new(false);
    same_bits(&format!("{} of {case}", plan::name(&config)), schedules, &sim, |about| {
        let mut gemm = case.on(&device).expect("operands");
        gemm.run(&options).unwrap_or_else(|error| panic!("{about}: {error}"));
        let verdict = gemm.judge(Effort::QUICK).expect("a verdict");
        assert!(verdict.right, "{about}: {verdict:?}");
        if !compared.replace(true)
            && let Some(error) = f32_error(&gemm)
        {
            assert!(error < F32_LIMIT, "{about}: {error:e}");
        }
        assert!(gemm.surroundings_untouched().expect("memory"), "{about}: wrote beside D");
        gemm.bits().expect("bits")
    });
}

/// The distance of a dense FP32 D without an epilogue from the product of its operands in `f64`, in parts of its size.
pub fn f32_error(gemm: &Gemm) -> Option<f64> {
    let case = gemm.case();
    let is_plain =
        case.epilogue.is_none() && !case.types.is_nvfp4() && matches!(case.grouping, Grouping::Dense);
    if !is_plain || case.output_type() != DType::F32 {
        return None;
    }
    let data = &gemm.data.groups[0];
    let c = data.c.as_deref().filter(|_| case.addend != AddendKind::None);
    let exact = match &data.fp8 {
        Some(pair) => reference::fp8_gemm_nt(&pair.a.as_matrix(), &pair.b.as_matrix(), c),
        None if case.types.ab == DType::F32 => {
            let read =
                |x: &[f32]| -> Vec<f32> { x.iter().map(|x| reference::truncated_to_tf32(*x)).collect() };
            reference::gemm_nt(&read(&data.a_values), &read(&data.b_values), data.dims, c)
        }
        None => reference::gemm_nt(&data.a_values, &data.b_values, data.dims, c),
    };
    let (found, exact) = (gemm.result(0).expect("D"), exact.expect("a product"));
    let square = |x: f64| x * x;
    let sum = |of: &mut dyn Iterator<Item = f64>| of.map(square).sum::<f64>();
    let error = sum(&mut found.iter().zip(&exact).map(|(x, y)| f64::from(*x) - y));
    Some((error / sum(&mut exact.iter().copied())).sqrt())
}
