//! Kernels of other compilers in the simulator: right under every schedule, and free of hazards.

use std::rc::Rc;
use std::thread::available_parallelism;

use oxigemm_oracle::Kernel;

use super::{Check, Needs, Setup};

/// What `--quick` runs: every kind of instruction and of synchronization once, in about a minute on two cores.
const QUICK: &[&str] = &[
    "gluon_bf16_2cta_m128",
    "gluon_clc_2ctas",
    "gluon_copy_f32_swizzle64",
    "gluon_f16_mn_major",
    "gluon_f16_sum16",
    "gluon_gather_scatter",
    "gluon_load_max_sm103",
    "gluon_mx_e2m1_e5m2",
    "gluon_reduce",
    "gluon_tmem_16x128b_16x64b_64x4",
    "gluon_tmem_32x32b_32x32b_splitn_128x32",
    "gluon_tmem_bf16_stride2",
    "sm100_f16_m64",
    "sm100_mxfp8",
    "sm100_nvfp4_cp",
    "sm120_nvfp4",
    "sm80_bf16",
    "sm80_locked_sum",
    "sm80_softmax",
    "sm89_e4m3",
    "sm89_sort",
    "sm90_attention_maps",
    "sm90_bf16_device_maps",
    "sm90_e4m3",
];

/// A check for each kernel of the corpus.
pub(super) fn checks(setup: &Setup) -> Vec<Check> {
    // A simulated GPU of one architecture runs what is written for it.
    let gpu = setup.device.as_sim().and_then(|sim| sim.options().gpu).map(|gpu| gpu.to_string());
    let Some(folder) = oxigemm_oracle::folder() else {
        return vec![absent(
            "crates/oracle/ptx is not here: run this in the source tree, or set OXIGEMM_ORACLES",
        )];
    };
    match oxigemm_oracle::corpus(&folder) {
        Ok(kernels) => {
            let is_for = |kernel: &Kernel| gpu.as_ref().is_none_or(|gpu| *gpu == kernel.target);
            kernels.into_iter().filter(is_for).map(of).collect()
        }
        Err(error) => vec![absent(&error)],
    }
}

fn of(kernel: Kernel) -> Check {
    let (name, long) = (format!("oracle {}", kernel.name), !QUICK.contains(&kernel.name.as_str()));
    let kernel = Rc::new(kernel);
    let run = move |_: &Setup| {
        let threads = available_parallelism().map_or(1, usize::from);
        Ok(oxigemm_oracle::check(&kernel, &oxigemm_oracle::schedules(), threads)?)
    };
    Check { name, needs: Needs::Simulator, run: Box::new(run), long }
}

/// A check that fails: the corpus cannot be read.
fn absent(why: &str) -> Check {
    let why = why.to_owned();
    let run = move |_: &Setup| Err(why.clone().into());
    Check { name: "oracle corpus".to_owned(), needs: Needs::Simulator, run: Box::new(run), long: true }
}
