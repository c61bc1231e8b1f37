//! Large tiles of Blackwell's persistent kernels in the simulator: accumulators that share columns, tiles that clusters
//! claim, and what the cost model counts against what the simulator counts.

use crate::blackwell_scaled::{product, relative_error};
use crate::common::blackwell::blackwell;
use crate::common::some_schedules;
use oxigemm::plan::{self, GemmConfig, GemmShape, KGroupedShape, Limits, OperandKind, PlanRequest, TileWork};
use oxigemm::sim::{Options, Policy};
use oxigemm::{Device, GemmLayout, GemmOptions};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::params::{ScaleBlock, ScalesOfB};
use oxigemm_kernels::gemm::sm100::Kernel;
use oxigemm_kernels::gemm::{ElementType, GemmKernel};
use oxigemm_testkit::plan::operands_of;
use oxigemm_testkit::{Effort, GemmCase};

/// Tiles whose accumulators share columns, of each number of words of scales, with the stages that a K of these takes.
const SHARING: [&str; 4] = [
    "sm100_mxfp8_persistent_nt_256x256_s5_c2x1",
    "sm100_ue8m0_e4m3_blocks_persistent_nt_256x256_s5_c2x1",
    "sm100_mxfp4_persistent_nt_256x256_s5_c2x1",
    "sm100_nvfp4_persistent_nt_256x256_s5_c2x1",
];

fn config(name: &str) -> GemmConfig {
    plan::parse(name).expect("the name of a configuration")
}

fn shared_columns(config: &GemmConfig) -> u32 {
    match config.kernel {
        GemmKernel::Sm100(Kernel::Persistent(kernel)) => kernel.shared_columns(),
        _ => 0,
    }
}

#[test]
fn accumulators_share_as_many_columns_as_the_scales_take() {
    assert_eq!(SHARING.map(|name| shared_columns(&config(name))), [16, 16, 32, 48]);
    assert_eq!(shared_columns(&config("sm100_mxfp8_persistent_nt_256x192_s5_c2x1")), 0);
    assert_eq!(shared_columns(&config("sm100_bf16_persistent_nt_256x256_s6_c2x1")), 0);
}

/// Three tiles by one pair: the second accumulator is written while the first is read, and then the first again.
#[test]
fn tiles_that_share_columns_under_five_schedules() {
    let (device, sim) = blackwell();
    for name in SHARING {
        let config = config(name);
        let kind = config.operands();
        let dims = [2 * 256 + 9, 250, 2 * kind.block_k() as usize];
        let expected = product(kind, dims, &Device::Cpu, None);
        let mut first: Option<Vec<u32>> = None;
        for schedule in some_schedules() {
            let about = format!("{name}, {:?} {}", schedule.policy, schedule.seed);
            sim.set_options(schedule);
            let found = product(kind, dims, &device, Some(config));
            let error = relative_error(&found, &expected);
            assert!(error < 1e-6, "{about}: {error:e}");
            let bits: Vec<u32> = found.iter().map(|x| x.to_bits()).collect();
            assert_eq!(*first.get_or_insert_with(|| bits.clone()), bits, "{about}: other bits");
        }
    }
}

/// Whole tiles, so that every element that the model counts exists.
#[test]
fn the_model_counts_the_bytes_that_the_simulator_counts() {
    let names = [
        "sm100_mxfp8_persistent_nt_256x256_s5_c2x1",
        "sm100_mxfp8_persistent_nt_256x192_s5_c2x1",
        "sm100_mxfp4_persistent_nt_256x256_s5_c2x1",
        "sm100_mx_e4m3_e2m1_persistent_nt_256x256_s5_c2x1",
        "sm100_ue8m0_e4m3_persistent_nt_256x256_s5_c2x1",
        "sm100_mxfp8_persistent_nt_128x128_s5_c1x1",
        "sm100_bf16_persistent_nt_256x256_s6_c2x1",
    ];
    let (device, sim) = blackwell();
    sim.set_options(Options { policy: Policy::Eager, hazards: false, ..Options::default() });
    for name in names {
        let config = config(name);
        let ([tile_m, tile_n], k) = (config.cluster_tile(1), 3 * config.operands().block_k());
        let dims = [2 * tile_m, tile_n, k].map(|x| x as usize);
        let case = GemmCase::dense(operands_of(&config.kernel).0, GemmLayout::Nt, dims);
        let mut gemm = case.on(&device).expect("operands");
        gemm.run(&GemmOptions { config: Some(config), ..Default::default() }).expect("a run");
        let report = sim.last_report().expect("a report");
        assert!(gemm.judge(Effort::QUICK).expect("a verdict").right, "{name}");
        let (work, traffic) = (TileWork::new(&config, k), report.traffic);
        let parts = f64::from(2 * config.cluster_blocks());
        let counted = [
            ("read", work.loaded, traffic.read),
            ("loaded", work.loaded, traffic.loaded),
            ("operands", work.operands, traffic.operands),
            ("accumulators read", work.accumulators_read, traffic.accumulators_read),
            ("accumulators written", work.accumulators_written, traffic.accumulators_written),
            ("tensor copies", work.tensor_copies, traffic.tensor_copies),
            ("tensor loads", work.tensor_loads, traffic.tensor_loads),
            ("scales", work.scales, traffic.global_loads),
            ("stored", work.stored, traffic.stored),
            ("multiply-adds", work.macs, report.macs),
        ];
        for (what, expected, found) in counted {
            assert_eq!(parts * expected, found as f64, "{name}: {what}");
        }
    }
}

const MXFP8: OperandKind =
    OperandKind::block_scaled([ElementType::E4m3; 2], ScalesOfB::Rows, ScaleBlock::Of32);
const NVFP4: OperandKind =
    OperandKind::block_scaled([ElementType::E2m1; 2], ScalesOfB::Rows, ScaleBlock::Of16);
const LARGE: GemmShape = GemmShape { m: 8192, n: 8192, k: 4096 };

/// The share of the tensor cores' peak that the model predicts, in percent.
fn share(kind: OperandKind, peak: f64) -> (String, f64) {
    let plan = plan::plan(&PlanRequest::dense(kind, LARGE), &Limits::b200()).expect("a plan");
    let [m, n, k] = [LARGE.m, LARGE.n, LARGE.k].map(f64::from);
    (plan.name(), 2.0 * m * n * k / (peak * plan.estimate.us) * 100.0)
}

#[test]
fn large_gemms_take_tiles_of_256_columns() {
    let (name, mxfp8) = share(MXFP8, 4.5e9);
    assert_eq!(name, "sm100_mxfp8_persistent_nt_256x256_s5_c2x1");
    let (name, nvfp4) = share(NVFP4, 9.0e9);
    assert_eq!(name, "sm100_nvfp4_persistent_nt_256x256_s5_c2x1");
    // What `docs/blackwell.md` says.
    println!("MXFP8 {mxfp8:.1}%, NVFP4 {nvfp4:.1}%");
    assert!(mxfp8 > 65.0 && nvfp4 > 50.0, "{mxfp8} {nvfp4}");
}

#[test]
fn groups_of_unknown_k_are_claimed_and_one_group_or_few_sms_are_not() {
    let shape = KGroupedShape { groups: 16, m: 2048, n: 4096, k: 65536 };
    let kind = OperandKind::block_scaled([ElementType::E4m3; 2], ScalesOfB::Rows, ScaleBlock::Of128);
    let name = |shape, limits: &Limits| {
        plan::plan(&PlanRequest::k_grouped(kind, shape), limits).expect("a plan").name()
    };
    let (b200, few) = (Limits::b200(), Limits::b200().restricted_to(64));
    assert_eq!(name(shape, &b200), "sm100_ue8m0_e4m3_persistent_clc_k_grouped_nt_256x256_s5_c2x1");
    assert!(!name(shape, &few).contains("_clc_"));
    assert!(!name(KGroupedShape { groups: 1, k: 4096, ..shape }, &b200).contains("_clc_"));
}

#[test]
fn every_kernel_that_claims_tiles_has_one_that_does_not() {
    let kernels: Vec<String> = GemmKernel::all(Arch::Sm100a).map(|kernel| kernel.name()).collect();
    let claiming: Vec<&String> = kernels.iter().filter(|name| name.contains("_clc_")).collect();
    assert_eq!(claiming.len(), 9, "{claiming:#?}");
    assert!(claiming.iter().all(|name| kernels.contains(&name.replace("_clc_", "_"))));
}
