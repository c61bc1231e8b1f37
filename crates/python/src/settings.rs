//! Settings of the process: the device for CPU arrays, and the launch options.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

use oxigemm::plan::{TunedConfigs, set_tuned};
use oxigemm::{Arch, Cuda, Device};
use oxigemm_cuda::{CubinCache, Key, PtxModule};
use oxigemm_kernels::KernelId;
use pyo3::prelude::*;

use crate::convert::convert;
use crate::error::{argument_error, from_library, other};

/// More GPUs than a machine has.
const GPUS: usize = 64;

static NUM_SMS: AtomicU32 = AtomicU32::new(0);
static PDL: AtomicBool = AtomicBool::new(false);
static BATCH_INVARIANT: AtomicBool = AtomicBool::new(false);
static ALIGNMENT: AtomicU32 = AtomicU32::new(128);
static HOST: RwLock<Option<Device>> = RwLock::new(None);
static OPENED: [OnceLock<Device>; GPUS] = [const { OnceLock::new() }; GPUS];
static OPENING: Mutex<()> = Mutex::new(());
static PREBUILT: OnceLock<PathBuf> = OnceLock::new();

/// The options of a GEMM.
pub fn options() -> oxigemm::GemmOptions {
    let sms = NUM_SMS.load(Relaxed);
    oxigemm::GemmOptions {
        num_sms: (sms != 0).then_some(sms),
        programmatic: PDL.load(Relaxed),
        batch_invariant: BATCH_INVARIANT.load(Relaxed),
        ..Default::default()
    }
}

/// The alignment of the first row of a group.
pub fn alignment() -> usize {
    ALIGNMENT.load(Relaxed) as usize
}

/// A GPU, opened at the first call.
pub fn gpu(py: Python<'_>, ordinal: usize) -> PyResult<&'static Device> {
    match OPENED.get(ordinal).and_then(OnceLock::get) {
        Some(device) => Ok(device),
        None => open(py, ordinal),
    }
}

#[cold]
fn open(py: Python<'_>, ordinal: usize) -> PyResult<&'static Device> {
    let slot = OPENED.get(ordinal).ok_or_else(|| other(py, format!("there is no GPU {ordinal}")))?;
    let opened = py.detach(|| {
        let _one = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = slot.get() {
            return Ok(device);
        }
        let cache = CubinCache::user_default();
        let cache = PREBUILT.get().map_or(cache.clone(), |path| cache.with_prebuilt(path));
        let cuda = Cuda::with_cache(ordinal, cache)?;
        Ok(slot.get_or_init(|| Device::Cuda(cuda)))
    });
    let device = opened.map_err(|error: oxigemm::Error| from_library(py, &error, &[]))?;
    let supported = device.as_cuda().is_some_and(Cuda::is_supported);
    if !supported {
        return Err(other(
            py,
            format!(
                "the kernels are for {}, and cuda:{ordinal} is something else",
                Arch::ALL.map(Arch::name).join(" and ")
            ),
        ));
    }
    Ok(device)
}

/// The device that computes CPU arrays: the CPU, or a simulated GPU.
pub fn host(py: Python<'_>) -> PyResult<Device> {
    let set = HOST.read().unwrap_or_else(PoisonError::into_inner).clone();
    match set {
        Some(device) => Ok(device),
        None => {
            let name = std::env::var("OXIGEMM_DEVICE").unwrap_or_else(|_| "cpu".to_owned());
            // A GPU computes what is in its memory; arrays of the CPU are not. It must be there, though.
            let is_gpu = name == "cuda" || name.starts_with("cuda:");
            if is_gpu {
                py.detach(|| name.parse::<Device>())
                    .map_err(|error| other(py, format!("OXIGEMM_DEVICE is {name}: {error}")))?;
            }
            let device =
                host_device(py, "OXIGEMM_DEVICE", if is_gpu || name == "auto" { "cpu" } else { &name })?;
            *HOST.write().unwrap_or_else(PoisonError::into_inner) = Some(device.clone());
            Ok(device)
        }
    }
}

/// The device of this name, for arrays of the CPU.
fn host_device(py: Python<'_>, argument: &str, name: &str) -> PyResult<Device> {
    if matches!(name.split(':').next(), Some("cpu" | "sim")) {
        return name.parse().map_err(|error: oxigemm::Error| {
            let expected = "\"cpu\", \"sim\", \"sim:lazy\" or \"sim:\" and a seed";
            argument_error(py, argument, "is no device", expected, &error.to_string())
        });
    }
    let expected =
        "\"cpu\", \"sim\", \"sim:lazy\" or \"sim:\" and a seed (tensors of a GPU are computed there)";
    Err(argument_error(py, argument, "is no device for arrays of the CPU", expected, &format!("{name:?}")))
}

/// Sets the device that computes CPU arrays: "cpu", or "sim" with an optional schedule.
#[pyfunction]
fn set_device(py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<()> {
    let device = host_device(py, "name", &convert::<Cow<'_, str>>("name", name)?)?;
    *HOST.write().unwrap_or_else(PoisonError::into_inner) = Some(device);
    Ok(())
}

/// The device that computes CPU arrays: "cpu" or "sim".
#[pyfunction]
fn get_device(py: Python<'_>) -> PyResult<String> {
    Ok(host(py)?.to_string())
}

/// Sets how many SMs kernels may use; 0 for all.
#[pyfunction]
fn set_num_sms(num_sms: u32) {
    NUM_SMS.store(num_sms, Relaxed);
}

/// How many SMs kernels may use; 0 for all.
#[pyfunction]
fn get_num_sms() -> u32 {
    NUM_SMS.load(Relaxed)
}

/// Sets programmatic dependent launch: a kernel may start while the one before it in the stream still runs.
#[pyfunction]
fn set_pdl(enable: &Bound<'_, PyAny>) -> PyResult<()> {
    PDL.store(convert("enable", enable)?, Relaxed);
    Ok(())
}

/// Whether kernels use programmatic dependent launch.
#[pyfunction]
fn get_pdl() -> bool {
    PDL.load(Relaxed)
}

/// Sets batch invariance: a row of D has the same bits whatever the number of rows.
#[pyfunction]
fn set_batch_invariant(enable: &Bound<'_, PyAny>) -> PyResult<()> {
    BATCH_INVARIANT.store(convert("enable", enable)?, Relaxed);
    Ok(())
}

/// Whether GEMMs are batch-invariant.
#[pyfunction]
fn get_batch_invariant() -> bool {
    BATCH_INVARIANT.load(Relaxed)
}

/// Sets the alignment of the first row of each group.
#[pyfunction]
fn set_alignment(rows: u32) {
    ALIGNMENT.store(rows, Relaxed);
}

/// The alignment of the first row of each group.
#[pyfunction]
fn get_alignment() -> u32 {
    ALIGNMENT.load(Relaxed)
}

/// Sets the directory of the package's prebuilt cubins.
#[pyfunction]
fn set_prebuilt(path: PathBuf) {
    // The first one stays: GPUs may have been opened with it.
    let _ = PREBUILT.set(path);
}

/// The kernels without a prebuilt cubin in the package.
#[pyfunction]
fn missing_cubins(py: Python<'_>) -> PyResult<Vec<String>> {
    let Some(path) = PREBUILT.get() else {
        return Ok(Arch::ALL.into_iter().flat_map(KernelId::all).map(|kernel| kernel.name()).collect());
    };
    let cache = CubinCache::disabled().with_prebuilt(path);
    let mut missing = Vec::new();
    for kernel in Arch::ALL.into_iter().flat_map(KernelId::all) {
        let name = kernel.name();
        let text = kernel.code_text().map_err(|error| other(py, format!("{name}: {error}")))?;
        let module = PtxModule { name: &name, text: &text, arch: kernel.arch().name() };
        if cache.get(&Key::new(&module)).is_none() {
            missing.push(name);
        }
    }
    Ok(missing)
}

/// The SMs of the GPU of this number; of the simulated one without a number.
#[pyfunction]
#[pyo3(signature = (gpu_number=None))]
fn sm_count(py: Python<'_>, gpu_number: Option<usize>) -> PyResult<u32> {
    let limits = match gpu_number {
        Some(number) => gpu(py, number)?.limits().map(|limits| limits.sms),
        None => host(py)?.limits().or(Device::sim().limits()).map(|limits| limits.sms),
    };
    Ok(limits.unwrap_or(0))
}

/// The major compute capability of the GPU of this number; without a number, of the simulated one, if there is one.
#[pyfunction]
#[pyo3(signature = (gpu_number=None))]
fn arch_major(py: Python<'_>, gpu_number: Option<usize>) -> PyResult<Option<u32>> {
    let major = |device: &Device| Some(device.limits()?.arch.target().compute_capability().0);
    Ok(match gpu_number {
        Some(number) => major(gpu(py, number)?),
        None => major(&host(py)?),
    })
}

/// What a GPU has loaded, planned and compiled since it was opened, and where its kernels came from.
#[pyfunction]
fn gpu_stats<'py>(py: Python<'py>, ordinal: usize) -> PyResult<Bound<'py, pyo3::types::PyDict>> {
    let stats = gpu(py, ordinal)?.as_cuda().expect("it is a GPU").stats();
    let dict = pyo3::types::PyDict::new(py);
    dict.set_item("kernels", stats.kernels)?;
    dict.set_item("plans", stats.plans)?;
    dict.set_item("compilations", stats.compilations())?;
    dict.set_item("cache_hits", stats.cache.hits)?;
    Ok(dict)
}

/// Loads every kernel on a GPU, so that no later call has to.
#[pyfunction]
fn load_all(py: Python<'_>, ordinal: usize) -> PyResult<()> {
    let device = gpu(py, ordinal)?;
    py.detach(|| device.as_cuda().expect("it is a GPU").load_all())
        .map_err(|error| from_library(py, &error, &[]))
}

/// Reads a file of tuned configurations, which plans then take, and gives their number.
#[pyfunction]
fn load_tuned(py: Python<'_>, path: PathBuf) -> PyResult<usize> {
    let tuned = TunedConfigs::load(path).map_err(|error| from_library(py, &error, &[]))?;
    let count = tuned.len();
    set_tuned(tuned);
    Ok(count)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(set_device, module)?)?;
    module.add_function(wrap_pyfunction!(get_device, module)?)?;
    module.add_function(wrap_pyfunction!(set_num_sms, module)?)?;
    module.add_function(wrap_pyfunction!(get_num_sms, module)?)?;
    module.add_function(wrap_pyfunction!(set_pdl, module)?)?;
    module.add_function(wrap_pyfunction!(get_pdl, module)?)?;
    module.add_function(wrap_pyfunction!(set_batch_invariant, module)?)?;
    module.add_function(wrap_pyfunction!(get_batch_invariant, module)?)?;
    module.add_function(wrap_pyfunction!(set_alignment, module)?)?;
    module.add_function(wrap_pyfunction!(get_alignment, module)?)?;
    module.add_function(wrap_pyfunction!(set_prebuilt, module)?)?;
    module.add_function(wrap_pyfunction!(missing_cubins, module)?)?;
    module.add_function(wrap_pyfunction!(sm_count, module)?)?;
    module.add_function(wrap_pyfunction!(arch_major, module)?)?;
    module.add_function(wrap_pyfunction!(gpu_stats, module)?)?;
    module.add_function(wrap_pyfunction!(load_all, module)?)?;
    module.add_function(wrap_pyfunction!(load_tuned, module)?)
}
