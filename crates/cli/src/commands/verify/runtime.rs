//! Checks of what is around the kernels: graphs, threads, compilations, host time.

use std::collections::BTreeSet;
use std::time::Instant;

use oxigemm::{Addend, Cuda, DType, Device, GemmOptions, Tensor, fp8_gemm_nt, random};
use oxigemm_cuda::{CubinCache, LaunchConfig, PtxModule};
use oxigemm_kernels::KernelId;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_testkit::plan::{case_of, plan};
use oxigemm_testkit::{AddendKind, Effort, FP8, Failure, GemmCase, GroupLayout, MGroups, ScaleOrder};

use super::kernels::launches;
use super::{Check, Setup, ensure};
use crate::counting::allocations;

/// What a call whose shape was seen before may cost the host on top of the driver's launch of an empty kernel,
/// which is not ours to shorten and differs from machine to machine. The total is printed beside it.
const OWN_SHARE_US: f64 = 2.0;
/// The first call of a kernel with nothing cached.
const FIRST_CALL_MS: f64 = 500.0;
/// The first call of a kernel whose cubin is cached.
const CACHED_CALL_MS: f64 = 20.0;

pub fn checks(_: &Setup) -> Vec<Check> {
    vec![
        Check::with_kernels("graph capture and replay", graphs),
        Check::on_gpu("programmatic launches", programmatic),
        Check::with_kernels("threads on one device", threads),
        Check::with_kernels("random shapes without a compilation", no_compilations),
        Check::on_gpu("the second call of a shape", second_call),
        Check::on_gpu("first call, nothing cached", first_call),
        Check::on_gpu_with_ptxas("first call, cubin cached", cached_call),
    ]
}

/// A graph that computes a GEMM and clears the D of another, launched on poison, and then on other data.
fn graphs(setup: &Setup) -> Result<String, Failure> {
    let stream = setup.device.new_stream()?;
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    let shapes = match setup.device {
        Device::Sim(_) => [(1, 136, 640), (64, 96, 256), (130, 128, 128), (33, 77, 200)],
        _ => [(1, 576, 7168), (64, 2112, 1024), (384, 1024, 1024), (33, 77, 200)],
    };
    for (m, n, k) in shapes {
        let case = GemmCase::fp8(m, n, k);
        let mut product = case.on(&setup.device)?;
        let mut cleared = GemmCase::fp8(m, n, 0).on(&setup.device)?;
        product.run(&options)?;
        cleared.run(&options)?;
        let expected = product.d.to_bytes()?;
        let graph = stream.capture(|_| {
            product.run(&options)?;
            cleared.run(&options)
        })?;
        for _ in 0..2 {
            product.poison()?;
            cleared.poison()?;
            graph.launch(&stream)?;
            stream.synchronize()?;
            ensure(product.d.to_bytes()? == expected, || format!("{case}: the graph gave other bits"))?;
            ensure(cleared.result(0)?.iter().all(|x| *x == 0.0), || "k = 0 did not clear D".to_owned())?;
        }
        // The same addresses hold something else: the graph must read that.
        let other = GemmCase { seed: case.seed + 1, ..case.clone() };
        product.replace(&other.drawn_for(&setup.device)?)?;
        product.poison()?;
        graph.launch(&stream)?;
        stream.synchronize()?;
        let verdict = product.judge(Effort::QUICK)?;
        ensure(verdict.right, || format!("{case}: the graph did not read the new data: {verdict:?}"))?;
    }
    Ok(format!("{} graphs, each launched three times, the last time on other data", shapes.len()))
}

/// Kernels that each add to what the one before wrote, with and without early starts.
fn programmatic(setup: &Setup) -> Result<String, Failure> {
    let shapes = [(1, 2112, 2048), (64, 576, 2048), (512, 1024, 512), (1024, 2112, 256)];
    for (m, n, k) in shapes {
        let mut results = Vec::new();
        for programmatic in [false, true] {
            let case = GemmCase { addend: AddendKind::Inplace, ..GemmCase::fp8(m, n, k) };
            let mut operands = case.on(&setup.device)?;
            let options = GemmOptions { programmatic, ..Default::default() };
            for _ in 0..20 {
                operands.run(&options)?;
            }
            results.push(operands.d.to_bytes()?);
        }
        ensure(results[0] == results[1], || format!("{m}x{n}x{k}: early starts changed the result"))?;
    }
    Ok(format!("{} chains of 20 kernels", shapes.len()))
}

/// Threads with streams of their own on one device get the bits that one thread gets.
fn threads(setup: &Setup) -> Result<String, Failure> {
    const THREADS: u64 = 8;
    // A device with nothing loaded, so that the threads load and plan at the same time.
    let (device, calls, [m, n, k]) = match &setup.device {
        Device::Cuda(cuda) => (Device::Cuda(Cuda::open(cuda.gpu().ordinal())?), 20, [37, 576, 1024]),
        _ => (format!("sim:{}", setup.arch()).parse()?, 2, [9, 72, 256]),
    };
    let cases: Vec<GemmCase> = (0..THREADS)
        .map(|i| GemmCase { seed: i, ..GemmCase::fp8(1 + m * i as usize, n, k + 128 * (i as usize % 3)) })
        .collect();
    let expected = cases.iter().map(|case| -> Result<_, Failure> {
        let mut operands = case.on(&setup.device)?;
        operands.run(&GemmOptions::default())?;
        Ok(operands.d.to_bytes()?)
    });
    let expected = expected.collect::<Result<Vec<_>, _>>()?;
    let work = |case: &GemmCase, expected: &[u8]| -> Result<(), Failure> {
        let mut operands = case.on(&device)?;
        let options = GemmOptions { stream: Some(device.new_stream()?), ..Default::default() };
        for _ in 0..calls {
            operands.run(&options)?;
        }
        ensure(operands.d.to_bytes()? == expected, || format!("{case}: other bits than on one thread"))
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = cases
            .iter()
            .zip(&expected)
            .map(|(case, expected)| scope.spawn(|| work(case, expected)))
            .collect();
        handles
            .into_iter()
            .try_for_each(|handle| handle.join().map_err(|_| Failure::from("a thread panicked"))?)
    })?;
    Ok(format!("{THREADS} threads of {calls} calls each, on a device with nothing loaded"))
}

/// The closed set is loaded once; no shape needs more.
fn no_compilations(setup: &Setup) -> Result<String, Failure> {
    let device = &setup.device;
    let limits = setup.limits()?;
    if let Device::Cuda(cuda) = device {
        cuda.load_all()?;
    }
    let compilations = || device.as_cuda().map_or(0, |cuda| cuda.stats().compilations());
    let before = compilations();
    let closed: BTreeSet<String> = KernelId::all(setup.arch()).map(|kernel| kernel.name()).collect();
    let mut kernels = BTreeSet::new();
    let size = |i: u64, which: u64, largest: u64| {
        // Evenly over orders of magnitude.
        let part = (random::bits(setup.seed ^ 0x51, 3 * i + which) % 1000) as f64 / 1000.0;
        (largest as f64).powf(part).round().max(1.0) as usize
    };
    let [largest_m, largest_n, largest_k] = match device {
        Device::Sim(_) => [200, 400, 512],
        _ => [8192, 8192, 4096],
    };
    let shapes = if setup.is_thrifty() { 20 } else { 200 };
    for i in 0..shapes {
        let (m, n, k) = (size(i, 0, largest_m), size(i, 1, largest_n), size(i, 2, largest_k));
        let (pitch, blocks) = (k.next_multiple_of(16), k.div_ceil(128));
        let new = |dtype, dims: [usize; 2]| Tensor::zeros(dtype, &dims, device);
        let (a, sfa) = (new(DType::E4m3, [m, pitch])?, new(DType::F32, [m, blocks])?);
        let (b, sfb) = (new(DType::E4m3, [n, pitch])?, new(DType::F32, [n.div_ceil(128), blocks])?);
        let d = Tensor::empty(DType::Bf16, &[m, n], device)?;
        let (a, b, mut d) = (a.narrow(1, 0, k)?, b.narrow(1, 0, k)?, d);
        setup.now(format!("m={m} n={n} k={k}"));
        fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &GemmOptions::default())?;
        device.synchronize().map_err(|error| format!("m={m} n={n} k={k}: {error}"))?;
        let plan = plan(&GemmCase::fp8(m, n, k), None, &limits).ok_or("every shape has a plan")?;
        kernels.insert(plan.config.kernel.name());
    }
    let compiled = compilations() - before;
    ensure(compiled == 0, || format!("{compiled} compilations"))?;
    ensure(kernels.is_subset(&closed), || format!("{kernels:?} are not all in the closed set"))?;
    Ok(format!("{shapes} shapes on {} of {} kernels: 0 compilations", kernels.len(), closed.len()))
}

/// What a call costs the host once its shape was seen.
fn second_call(setup: &Setup) -> Result<String, Failure> {
    let driver = empty_launch_us(setup)?;
    let mut notes = Vec::new();
    let in_place =
        GemmCase { addend: AddendKind::Inplace, sfa: ScaleOrder::Mn, ..GemmCase::fp8(128, 256, 256) };
    let groups = |layout| GemmCase::m_grouped(FP8, MGroups::new(layout, vec![3, 0, 40, 1]), [256, 256]);
    for (name, case) in [
        ("plain", GemmCase::fp8(1, 256, 256)),
        ("in place", in_place),
        ("m-grouped masked", groups(GroupLayout::Counts)),
        ("m-grouped by ids", groups(GroupLayout::Ids)),
    ] {
        let mut task = case.on(&setup.device)?;
        let options = GemmOptions { stream: Some(setup.device.new_stream()?), ..Default::default() };
        task.run(&options)?;
        setup.device.synchronize()?;
        let (result, count) = allocations(|| task.run(&options));
        result?;
        ensure(count == 0, || format!("{name}: {count} allocations"))?;
        let median = host_us(setup, || Ok(task.run(&options)?))?;
        let own = median - driver;
        ensure(own < OWN_SHARE_US, || {
            format!(
                "{name}: {median:.2} us of host time in the median, {own:.2} us more than an empty launch"
            )
        })?;
        notes.push(format!("{name} {median:.2} us"));
    }
    let notes = notes.join(", ");
    Ok(format!("{notes} of host time, {driver:.2} us of it the driver's for an empty kernel; 0 allocations"))
}

/// The median of what `call` costs the host, each time with space in the stream's queue.
fn host_us(setup: &Setup, mut call: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    const CALLS: usize = 2000;
    let mut times = Vec::with_capacity(CALLS);
    for i in 0..CALLS {
        let started = Instant::now();
        call()?;
        times.push(started.elapsed().as_secs_f64() * 1e6);
        if i % 64 == 0 {
            // A full queue would make the host wait.
            setup.device.synchronize()?;
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[CALLS / 2])
}

/// What the driver takes to launch a kernel that does nothing.
fn empty_launch_us(setup: &Setup) -> Result<f64, Failure> {
    let text = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry empty()\n{\n\tret;\n}\n";
    let gpu = setup.cuda()?.gpu();
    let module = gpu.load(&CubinCache::disabled(), &PtxModule { name: "empty", text, arch: "sm_90" })?;
    let (function, stream) = (module.function("empty")?, gpu.new_stream()?);
    let config = LaunchConfig::linear(1, 32);
    // SAFETY: the kernel takes no parameters and touches nothing.
    host_us(setup, || Ok(unsafe { function.launch(&stream, &config, &[]) }?))
}

/// The first call of some kernels on a device that has nothing loaded, with a given cache.
fn first_calls(setup: &Setup, cache: &CubinCache) -> Result<(f64, String), Failure> {
    let ordinal = setup.cuda()?.gpu().ordinal();
    let mut worst = (0.0, String::new());
    for config in GemmKernel::dense(setup.arch()).step_by(if setup.quick { 5 } else { 1 }) {
        setup.now(format!("the first call of {}", config.name()));
        let cuda = Cuda::with_cache(ordinal, cache.clone())?;
        let choice = launches(config)[0];
        let mut operands = case_of(&config, [1, 128, 256]).on(&Device::Cuda(cuda.clone()))?;
        let started = Instant::now();
        operands.run(&GemmOptions { config: Some(choice), ..Default::default() })?;
        cuda.gpu().synchronize()?;
        let ms = started.elapsed().as_secs_f64() * 1e3;
        if ms > worst.0 {
            let by = cuda.loaded().first().map_or(String::new(), |loaded| loaded.provenance.to_string());
            worst = (ms, format!("{} ({by})", config.name()));
        }
    }
    Ok(worst)
}

fn first_call(setup: &Setup) -> Result<String, Failure> {
    let dir = tempfile::tempdir()?;
    let roads =
        [("as found", CubinCache::at(dir.path())), ("without ptxas", CubinCache::disabled().without_ptxas())];
    let (mut notes, mut slowest) = (Vec::new(), 0.0f64);
    // Both roads are timed before either is judged.
    for (name, cache) in roads {
        let (ms, kernel) = first_calls(setup, &cache)?;
        slowest = slowest.max(ms);
        notes.push(format!("{name} at most {ms:.0} ms, {kernel}"));
    }
    let notes = notes.join("; ");
    ensure(slowest < FIRST_CALL_MS, || notes.clone())?;
    Ok(notes)
}

fn cached_call(setup: &Setup) -> Result<String, Failure> {
    let dir = tempfile::tempdir()?;
    let cache = CubinCache::at(dir.path());
    first_calls(setup, &cache)?;
    let before = cache.stats();
    ensure(before.compiled_by_ptxas > 0, || "ptxas was found, and assembled nothing".to_owned())?;
    let (ms, kernel) = first_calls(setup, &cache)?;
    let after = cache.stats();
    ensure(after.compiled_by_ptxas == before.compiled_by_ptxas, || {
        "a cached kernel was assembled".to_owned()
    })?;
    ensure(ms < CACHED_CALL_MS, || format!("{ms:.1} ms for {kernel}"))?;
    Ok(format!("at most {ms:.1} ms, {kernel}"))
}
