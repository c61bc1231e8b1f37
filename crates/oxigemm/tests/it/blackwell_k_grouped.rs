//! Blackwell's k-grouped GEMM kernels in the simulator: whatever the schedule, the same bits, no hazard, and the product of
//! every group.

use crate::common::{AddendKind, policies, schedules};
use oxigemm::plan::{self, GemmConfig};
use oxigemm::sim::Options;
use oxigemm::{Device, GemmOptions, Sim};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_testkit::plan::operands_of;
use oxigemm_testkit::{Effort, GemmCase};

fn blackwell() -> (Device, Sim) {
    let device: Device = "sim:sm_100a".parse().expect("a device");
    let sim = device.as_sim().expect("a simulated one").clone();
    (device, sim)
}

/// Kernels of 16-bit operands.
fn f16_kernels() -> impl Iterator<Item = GemmKernel> {
    GemmKernel::k_grouped(Arch::Sm100a).filter(|kernel| kernel.operands().as_f16().is_some())
}

/// Groups without K, of one step, of whole stages, with a tail, and of more stages than a pipeline has.
const KS: [usize; 6] = [0, 1, 128, 72, 0, 389];

/// Runs the `nth` case of a set by a kernel of 16-bit operands: tails along M, N and K, its own output and addend.
fn product_of_16_bits(kernel: &GemmKernel, nth: usize, schedules: impl Iterator<Item = Options>) {
    let (device, sim) = blackwell();
    let (types, layout) = operands_of(kernel);
    let config = GemmConfig::of(*kernel);
    let [rows, columns] = [kernel.tile()[0] * config.cluster[0], kernel.tile_columns()].map(|x| x as usize);
    let (d_type, addend) = [
        (types.d_types[1], AddendKind::Inplace),
        (types.d_types[0], AddendKind::None),
        (types.d_types[1], AddendKind::None),
        (types.d_types[0], AddendKind::Other),
    ][nth % 4];
    let case = GemmCase::k_grouped(types, layout, KS.to_vec(), [rows + 3, columns + 8]);
    let case = GemmCase { d_type, addend, d_padding: 8 * (nth % 2), d_row_padding: nth % 3, ..case };
    let options = GemmOptions { config: Some(config), num_sms: Some(2), ..Default::default() };
    let mut first: Option<Vec<u8>> = None;
    for schedule in schedules {
        let about = format!("{} of {case}, {:?} {}", plan::name(&config), schedule.policy, schedule.seed);
        sim.set_options(schedule);
        let mut gemm = case.on(&device).expect("operands");
        gemm.run(&options).unwrap_or_else(|error| panic!("{about}: {error}"));
        let verdict = gemm.judge(Effort::QUICK).expect("a verdict");
        assert!(verdict.right, "{about}: {verdict:?}");
        assert!(gemm.surroundings_untouched().expect("memory"), "{about}: wrote beside D");
        let bits = gemm.bits().expect("bits");
        assert_eq!(*first.get_or_insert_with(|| bits.clone()), bits, "{about}: other bits");
    }
}

#[test]
fn every_kernel_of_16_bit_operands() {
    for (nth, kernel) in f16_kernels().enumerate() {
        product_of_16_bits(&kernel, nth, policies(nth));
    }
}

#[test]
fn a_pair_of_16_bit_operands_under_ten_schedules() {
    let config = plan::parse("sm100_bf16_persistent_k_grouped_tn_256x256_s5_c2x1").expect("a configuration");
    product_of_16_bits(&config.kernel, 0, schedules());
}
