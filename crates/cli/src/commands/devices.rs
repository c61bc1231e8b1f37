//! `oxigemm devices`: what can run here, and why something cannot.

use oxigemm::Cuda;
use oxigemm_cuda::CubinCache;
use oxigemm_cuda::assemble::Ptxas;
use serde_json::{Value, json};

use crate::commands::prebuild::target_names;
use crate::output::{print_json, print_line};
use crate::{Common, Outcome};

/// Arguments of `devices`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(common: &Common, _: &Args) -> Outcome {
    let (gpus, why_no_gpu) = match oxigemm_cuda::device_count() {
        Ok(0) => (Vec::new(), Some("the driver sees no GPU".to_owned())),
        Ok(count) => ((0..count).map(gpu).collect(), None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let ptxas = Ptxas::find();
    let cache = CubinCache::user_default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    if common.json {
        print_json(&json!({
            "cpu": { "threads": threads },
            "sim": { "threads": threads, "archs": target_names() },
            "cuda": gpus,
            "why_no_cuda": why_no_gpu,
            "ptxas": ptxas.as_ref().map(|ptxas| json!({ "version": ptxas.version(), "path": ptxas.path() })),
            "cache": cache.root(),
        }));
        return Ok(true);
    }
    print_line(&format!("cpu      the reference, on {threads} threads"));
    print_line(&format!(
        "sim      {} simulated on {threads} threads; runs every kernel and finds its hazards",
        target_names().join(" or ")
    ));
    print_line("sim:2x   several, at most 16, that see each other's memory: sim:2xsm_90a, sim:4xsm_100a");
    for gpu in &gpus {
        print_line(&describe(gpu));
    }
    if let Some(why) = why_no_gpu {
        print_line(&format!("cuda     not here: {why}"));
    }
    print_line(&match ptxas {
        Some(ptxas) => format!("ptxas    {} at {}", ptxas.version(), ptxas.path().display()),
        None => "ptxas    none found: the driver compiles".to_owned(),
    });
    print_line(&match cache.root() {
        Some(root) => format!("cache    {}", root.display()),
        None => "cache    none".to_owned(),
    });
    Ok(true)
}

fn gpu(ordinal: usize) -> Value {
    let cuda = match Cuda::open(ordinal) {
        Ok(cuda) => cuda,
        Err(error) => return json!({ "ordinal": ordinal, "supported": false, "why_not": error.to_string() }),
    };
    let gpu = cuda.gpu();
    let (major, minor) = gpu.compute_capability();
    let (cuda_major, cuda_minor) = gpu.driver_version();
    let why_not =
        (!cuda.is_supported()).then(|| format!("the kernels are written for {}", target_names().join(", ")));
    json!({
        "ordinal": ordinal,
        "name": gpu.name(),
        "compute_capability": format!("{major}.{minor}"),
        "multiprocessors": gpu.sm_count(),
        "memory_bytes": gpu.total_memory(),
        "l2_bytes": gpu.l2_bytes(),
        "driver_cuda": format!("{cuda_major}.{cuda_minor}"),
        "supported": cuda.is_supported(),
        "why_not": why_not,
    })
}

fn describe(gpu: &Value) -> String {
    let ordinal = &gpu["ordinal"];
    let Some(name) = gpu["name"].as_str() else {
        return format!("cuda:{ordinal}   cannot be opened: {}", gpu["why_not"].as_str().unwrap_or_default());
    };
    let gib = gpu["memory_bytes"].as_u64().unwrap_or(0) >> 30;
    let text = |key: &str| gpu[key].as_str().unwrap_or_default().to_owned();
    let state = match gpu["why_not"].as_str() {
        None => "runs every kernel".to_owned(),
        Some(why) => format!("cannot be used: {why}"),
    };
    format!(
        "cuda:{ordinal}   {name}, compute capability {}, {} SMs, {gib} GiB, CUDA {}; {state}",
        text("compute_capability"),
        gpu["multiprocessors"],
        text("driver_cuda"),
    )
}
