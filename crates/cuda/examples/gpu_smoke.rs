//! Exercises everything in this crate that needs a GPU: one line per check, and a failure exit status.
//!
//! ```sh
//! cargo run --release -p oxigemm-cuda --example gpu_smoke
//! ```

#[path = "gpu_smoke/kernels.rs"]
mod kernels;

use std::ffi::c_void;
use std::path::Path;
use std::time::Instant;

use oxigemm_cuda::assemble::{Ptxas, disassemble};
use oxigemm_cuda::cublaslt::{Accumulation, Calibration, SIZE, normal_e4m3};
use oxigemm_cuda::profile::{FLUSH_BYTES, KernelTimer, Method, REST};
use oxigemm_cuda::{
    Buffer, CubinCache, Device, Element, Error, Function, Key, L2Promotion, LaunchConfig, Provenance,
    PtxModule, Stream, Swizzle, TiledTensor,
};

type Test = fn(&Bench) -> Check;
type Check = Result<String, Box<dyn std::error::Error>>;

/// What every check may use.
struct Bench {
    device: Device,
    arch: String,
}

fn main() {
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("no GPU to test: {error}");
            std::process::exit(2);
        }
    };
    let (major, minor) = device.compute_capability();
    println!(
        "{} (compute capability {major}.{minor}, {} SMs, {} GB, {} MB of L2, {} bytes of shared memory), CUDA {:?}",
        device.name(),
        device.sm_count(),
        device.total_memory() >> 30,
        device.l2_bytes() >> 20,
        device.max_shared_per_block(),
        device.driver_version()
    );
    let suffix = if (major, minor) == (9, 0) { "a" } else { "" };
    let bench = Bench { device, arch: format!("sm_{major}{minor}{suffix}") };
    let checks: [(&str, Test); 14] = [
        ("memory", memory),
        ("streams and events", streams),
        ("provenance", provenance),
        ("a cubin that the driver refuses", refused_cubin),
        ("errors", errors),
        ("launch", launch),
        ("clusters", clusters),
        ("threads", threads),
        ("graphs", graphs),
        ("tensor maps", tensor_maps),
        ("host time of a launch", launch_cost),
        ("timing by CUPTI", timing),
        ("timing by events", timing_by_events),
        ("calibration", calibration),
    ];
    let mut failures = 0;
    for (name, check) in checks {
        match check(&bench) {
            Ok(note) => println!("ok      {name}: {note}"),
            Err(error) => {
                failures += 1;
                println!("FAILED  {name}: {error}");
            }
        }
    }
    println!("{} of {} checks failed", failures, checks.len());
    std::process::exit(i32::from(failures > 0));
}

fn ensure(condition: bool, message: impl Into<String>) -> Result<(), Box<dyn std::error::Error>> {
    if condition { Ok(()) } else { Err(message.into().into()) }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn bytes(words: impl IntoIterator<Item = u32>) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

impl Bench {
    fn function(&self, entry: &str, name: &str) -> Result<Function, Error> {
        let text = kernels::module(&self.arch, entry);
        let cache = CubinCache::disabled().without_ptxas();
        self.device.load(&cache, &PtxModule { name, text: &text, arch: &self.arch })?.function(name)
    }

    fn affine(&self) -> Result<Function, Error> {
        self.function(kernels::AFFINE, "affine")
    }
}

/// Launches `affine` over a whole buffer of a multiple of 256 words.
fn run_affine(
    affine: &Function,
    stream: &Stream,
    input: &Buffer,
    output: &Buffer,
    addend: u32,
    programmatic: bool,
) -> Result<(), Error> {
    let (mut input, mut output, mut addend, blocks) = (input.ptr(), output.ptr(), addend, input.len() / 1024);
    let params: [*mut c_void; 3] =
        [(&raw mut input).cast(), (&raw mut output).cast(), (&raw mut addend).cast()];
    let config = LaunchConfig { programmatic, ..LaunchConfig::linear(blocks as u32, 256) };
    // SAFETY: the parameters are of the kernel's types, and the callers keep both buffers until it is done.
    unsafe { affine.launch(stream, &config, &params) }
}

fn memory(bench: &Bench) -> Check {
    let device = &bench.device;
    let data: Vec<u8> = (0..10_000u32).map(|i| (i * 7) as u8).collect();
    let mut buffer = device.upload(&data)?;
    ensure(buffer.to_vec()? == data, "what was copied there does not come back")?;
    buffer.copy_from_host_at(9_990, &[1; 10])?;
    let mut part = [0; 20];
    buffer.copy_to_host_at(9_980, &mut part)?;
    ensure(part[..10] == data[9_980..9_990] && part[10..] == [1; 10], "a copy at an offset went astray")?;
    let beyond = buffer.copy_from_host_at(9_991, &[0; 10]);
    ensure(matches!(beyond, Err(Error::OutOfBounds { .. })), format!("beyond the end: {beyond:?}"))?;
    buffer.fill_u32(0x0102_0304)?;
    ensure(words(&buffer.to_vec()?).iter().all(|&word| word == 0x0102_0304), "a fill of words")?;
    buffer.fill_u8(9)?;
    let mut other = device.alloc(10_000)?;
    other.copy_from(&buffer, 10_000)?;
    ensure(other.to_vec()? == [9; 10_000], "a copy on the device")?;
    let empty = device.alloc(0)?;
    ensure(empty.ptr() == 0 && empty.to_vec()?.is_empty(), "an empty buffer")?;
    let huge = device.alloc(1 << 50);
    ensure(matches!(huge, Err(Error::OutOfMemory { requested, .. }) if requested == 1 << 50), "a petabyte")?;
    Ok(format!("{} of {} GB free", device.free_memory()? >> 30, device.total_memory() >> 30))
}

fn streams(bench: &Bench) -> Check {
    let device = &bench.device;
    let (first, second) = (device.new_stream()?, device.new_stream()?);
    let (start, end) = (device.event()?, device.event()?);
    let mut buffer = device.alloc(1 << 30)?;
    first.record(&start)?;
    buffer.fill_u32_async(1, &first)?;
    first.record(&end)?;
    second.wait(&end)?;
    let mut last = [0; 4];
    // SAFETY: `last` is read after the stream is synchronized.
    unsafe { buffer.copy_to_host_async((1 << 30) - 4, &mut last, &second)? };
    second.synchronize()?;
    ensure(last == [1, 0, 0, 0], "the second stream did not wait for the first")?;
    ensure(end.has_happened()? && first.is_idle()?, "the first stream is not done")?;
    let milliseconds = start.elapsed_ms(&end)?;
    // SAFETY: `first` lives longer than this borrowed view of it.
    let borrowed = unsafe { device.stream_from_raw(first.raw()) };
    buffer.fill_u32_async(2, &borrowed)?;
    drop(borrowed);
    first.synchronize()?;
    device.default_stream().synchronize()?;
    Ok(format!("a fill of 1 GiB takes {milliseconds:.3} ms"))
}

fn provenance(bench: &Bench) -> Check {
    let dir = std::env::temp_dir().join(format!("oxigemm-smoke-{}", std::process::id()));
    let result = provenance_in(bench, &dir);
    let _ = std::fs::remove_dir_all(dir);
    result
}

fn provenance_in(bench: &Bench, dir: &Path) -> Check {
    let device = &bench.device;
    let text = kernels::module(&bench.arch, kernels::AFFINE);
    let ptx = PtxModule { name: "affine", text: &text, arch: &bench.arch };
    let by_driver = device.load(&CubinCache::disabled().without_ptxas(), &ptx)?;
    ensure(by_driver.provenance() == Provenance::Driver, "the driver was asked")?;
    let mut note = format!("driver {:.1?}", by_driver.load_time());
    let Some(ptxas) = Ptxas::find() else { return Ok(note + "; no ptxas here: the rest is left out") };
    let cache = CubinCache::at(dir.join("cache"));
    let prebuilt = CubinCache::disabled().with_prebuilt(dir.join("cache")).without_ptxas();
    let steps =
        [(&cache, Provenance::Ptxas), (&cache, Provenance::Cached), (&prebuilt, Provenance::Prebuilt)];
    for (cache, expected) in steps {
        let module = device.load(cache, &ptx)?;
        ensure(module.provenance() == expected, format!("{} is not {expected}", module.provenance()))?;
        let same = module.function("affine")?.attributes() == by_driver.function("affine")?.attributes();
        ensure(same, format!("the code from {expected} differs from the driver's"))?;
        note += &format!(", {expected} {:.1?}", module.load_time());
    }
    let cubin = cache.cubin(&ptx)?.ok_or("the cache lost it")?;
    let lines = disassemble(&cubin.bytes).map_or(0, |text| text.lines().count());
    Ok(format!("{note}; {}; {lines} lines of machine code", ptxas.version()))
}

fn refused_cubin(bench: &Bench) -> Check {
    let Some(ptxas) = Ptxas::find() else { return Ok("left out: no ptxas".into()) };
    let other = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry affine() { ret; }\n";
    let other = ptxas.assemble(&PtxModule { name: "other", text: other, arch: "sm_80" })?;
    let text = kernels::module(&bench.arch, kernels::AFFINE);
    let ptx = PtxModule { name: "affine", text: &text, arch: &bench.arch };
    let dir = std::env::temp_dir().join(format!("oxigemm-refused-{}", std::process::id()));
    let cache = CubinCache::at(&dir);
    cache.put(&Key::new(&ptx), "ptxas of another chip", &other.cubin);
    let loaded = bench.device.load(&cache, &ptx);
    let _ = std::fs::remove_dir_all(dir);
    ensure(loaded?.provenance() == Provenance::Driver, "the driver compiles instead")?;
    ensure(cache.stats().rejected == 1 && cache.stats().compiled_by_driver == 1, "it is counted")?;
    Ok("compiled by the driver instead".into())
}

fn errors(bench: &Bench) -> Check {
    let device = &bench.device;
    let cache = CubinCache::disabled().without_ptxas();
    let bad = kernels::module(&bench.arch, ".visible .entry bad() { nonsense; }\n");
    let jit = device.load(&cache, &PtxModule { name: "bad", text: &bad, arch: &bench.arch });
    ensure(
        matches!(&jit, Err(Error::Jit { log, .. }) if log.contains("nonsense") || log.contains("error")),
        format!("bad PTX: {jit:?}"),
    )?;
    let text = kernels::module("sm_123a", kernels::AFFINE);
    let arch = device.load(&cache, &PtxModule { name: "future", text: &text, arch: "sm_123a" });
    ensure(matches!(arch, Err(Error::UnsupportedArch { .. })), format!("another architecture: {arch:?}"))?;
    let affine = bench.affine()?;
    let missing = bench.function(kernels::AFFINE, "missing");
    ensure(matches!(missing, Err(Error::NoSuchFunction { .. })), format!("{missing:?}"))?;
    let config = LaunchConfig::linear(1, 4096);
    let mut nothing = 0u64;
    let params: [*mut c_void; 3] = [(&raw mut nothing).cast(); 3];
    // SAFETY: the driver refuses this many threads, so the kernel does not run.
    let launch = unsafe { affine.launch(&device.default_stream(), &config, &params) };
    ensure(matches!(launch, Err(Error::Launch { .. })), format!("4096 threads: {launch:?}"))?;
    device.synchronize()?;
    Ok(launch.map_or_else(|error| error.to_string(), |()| String::new()))
}

fn launch(bench: &Bench) -> Check {
    let device = &bench.device;
    let (affine, stream) = (bench.affine()?, device.new_stream()?);
    let input = device.upload(&bytes(0..4096))?;
    let (middle, output) = (device.alloc(16 << 10)?, device.alloc(16 << 10)?);
    run_affine(&affine, &stream, &input, &middle, 5, false)?;
    run_affine(&affine, &stream, &middle, &output, 7, true)?;
    stream.synchronize()?;
    let right = words(&output.to_vec()?).into_iter().eq((0..4096).map(|i| 3 * (3 * i + 5) + 7));
    ensure(right, "two dependent launches, the second one programmatic, gave wrong results")?;
    let attributes = affine.attributes();
    ensure(attributes.max_threads == 256 && attributes.local_bytes == 0, format!("{attributes:?}"))?;
    Ok(format!("{attributes:?}, {} blocks per SM", affine.max_active_blocks(256, 0)?))
}

fn clusters(bench: &Bench) -> Check {
    let device = &bench.device;
    if device.compute_capability().0 < 9 {
        return Ok("left out: no clusters on this GPU".into());
    }
    let cluster = bench.function(kernels::CLUSTER, "cluster")?;
    let output = device.alloc(16 * 4)?;
    let (mut address, stream) = (output.ptr(), device.new_stream()?);
    for size in [1, 2, 4, 8] {
        let config = LaunchConfig { cluster: [size, 1, 1], ..LaunchConfig::linear(16, 32) };
        // SAFETY: the one parameter is the address of 16 words, which live until the stream is synchronized.
        unsafe { cluster.launch(&stream, &config, &[(&raw mut address).cast()])? };
        stream.synchronize()?;
        let right = words(&output.to_vec()?).into_iter().eq((0..16).map(|i| size * 100 + i % size));
        ensure(right, format!("clusters of {size}"))?;
    }
    let shared_bytes = device.max_shared_per_block();
    cluster.allow_dynamic_shared(shared_bytes)?;
    cluster.allow_large_clusters()?;
    let count = |size| {
        let config = LaunchConfig { cluster: [size, 1, 1], shared_bytes, ..LaunchConfig::linear(size, 32) };
        cluster.max_active_clusters(&config)
    };
    Ok(format!(
        "with all shared memory {} clusters of 2, {} of 4, {} of 8 and {} of 16 fit",
        count(2)?,
        count(4)?,
        count(8)?,
        count(16)?
    ))
}

fn threads(bench: &Bench) -> Check {
    let affine = bench.affine()?;
    let input = bench.device.upload(&bytes(0..4096))?;
    let work = |seed: u32| -> Result<bool, Error> {
        let (stream, output) = (bench.device.new_stream()?, bench.device.alloc(16 << 10)?);
        for round in 0..50 {
            run_affine(&affine, &stream, &input, &output, seed + round, false)?;
        }
        stream.synchronize()?;
        Ok(words(&output.to_vec()?).into_iter().eq((0..4096).map(|i| 3 * i + seed + 49)))
    };
    let right = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|i| scope.spawn(move || work(1000 * i))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<Vec<_>, _>>()
    })?;
    ensure(right.iter().all(|&right| right), "a thread got another one's results")?;
    Ok("8 threads, each with its stream".into())
}

fn graphs(bench: &Bench) -> Check {
    let device = &bench.device;
    let (affine, stream) = (bench.affine()?, device.new_stream()?);
    let (mut input, output) = (device.upload(&bytes(0..4096))?, device.alloc(16 << 10)?);
    let graph = stream.capture(|stream| -> Result<(), Error> {
        input.fill_u32_async(11, stream)?;
        run_affine(&affine, stream, &input, &output, 1, false)?;
        run_affine(&affine, stream, &output, &input, 1, true)
    })?;
    ensure(words(&input.to_vec()?).into_iter().eq(0..4096), "a capture must not run anything")?;
    for _ in 0..3 {
        graph.launch(&stream)?;
    }
    stream.synchronize()?;
    ensure(words(&input.to_vec()?).iter().all(|&word| word == 3 * 34 + 1), "the graph gave wrong results")?;
    let failed = stream.capture(|_| Err(Error::BadArch { arch: "on purpose".into() }));
    ensure(matches!(failed, Err(Error::BadArch { .. })), "the error of the work is what comes back")?;
    ensure(!stream.is_capturing()?, "a failed capture is ended")?;
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let result = stream.capture(|_| -> Result<(), Error> { std::panic::resume_unwind(Box::new(())) });
        std::panic::set_hook(quiet);
        result
    }));
    ensure(panicked.is_err() && !stream.is_capturing()?, "a capture that panicked is ended")?;
    let default = device.default_stream().capture(|_| Ok::<(), Error>(()));
    ensure(default.is_err(), "the default stream cannot be captured")?;
    run_affine(&affine, &stream, &input, &output, 1, false)?;
    stream.synchronize()?;
    Ok(format!("captured, launched three times; {}", default.unwrap_err()))
}

fn tensor_maps(bench: &Bench) -> Check {
    let device = &bench.device;
    if device.compute_capability().0 < 9 {
        return Ok("left out: no tensor memory accelerator on this GPU".into());
    }
    let (columns, rows) = (100u64, 50u64);
    let pitch = 112;
    let matrix = device.upload(&bytes((0..(pitch * rows) as u32).map(|i| i + 1)))?;
    let output = device.alloc(1024)?;
    let map = TiledTensor {
        element: Element::U32,
        rank: 2,
        address: matrix.ptr(),
        dims: [columns, rows, 0, 0, 0],
        strides: [pitch * 4, 0, 0, 0],
        tile: [32, 8, 0, 0, 0],
        swizzle: Swizzle::None,
        promotion: L2Promotion::B128,
    };
    let (tile, stream) = (bench.function(kernels::TILE, "tile")?, device.new_stream()?);
    let (mut map, mut address) = (map.encode()?, output.ptr());
    for (x, y) in [(0u32, 0u32), (64, 8), (96, 46)] {
        let (mut x, mut y) = (x, y);
        let params: [*mut c_void; 4] =
            [(&raw mut map).cast(), (&raw mut address).cast(), (&raw mut x).cast(), (&raw mut y).cast()];
        let config = LaunchConfig { shared_bytes: 1024, ..LaunchConfig::linear(1, 32) };
        // SAFETY: the parameters are of the kernel's types; both buffers live until the stream is synchronized.
        unsafe { tile.launch(&stream, &config, &params)? };
        stream.synchronize()?;
        let expected = (0..256u64).map(|i| {
            let (column, row) = (u64::from(x) + i % 32, u64::from(y) + i / 32);
            if column < columns && row < rows { (row * pitch + column) as u32 + 1 } else { 0 }
        });
        ensure(words(&output.to_vec()?).into_iter().eq(expected), format!("the tile at ({x}, {y})"))?;
    }
    for swizzle in [Swizzle::B32, Swizzle::B64, Swizzle::B128] {
        for (element, rank) in [(Element::U8, 1), (Element::Bf16, 3), (Element::F32, 5)] {
            let tensor = TiledTensor {
                element,
                rank,
                address: matrix.ptr(),
                dims: [64, 4, 3, 2, 2],
                strides: [256, 1024, 3072, 6144],
                tile: [32 / element.bytes() as u32, 4, 2, 1, 2],
                swizzle,
                promotion: L2Promotion::B256,
            };
            tensor.encode()?;
        }
    }
    Ok("a tile comes as the map says, zeros beyond the edges".into())
}

fn launch_cost(bench: &Bench) -> Check {
    let (affine, stream) = (bench.affine()?, bench.device.new_stream()?);
    let (input, output) = (bench.device.alloc(1024)?, bench.device.alloc(1024)?);
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let started = Instant::now();
        for _ in 0..200 {
            run_affine(&affine, &stream, &input, &output, 1, false)?;
        }
        best = best.min(started.elapsed().as_secs_f64() * 1e6 / 200.0);
        stream.synchronize()?;
    }
    Ok(format!("{best:.2} us"))
}

fn timing(bench: &Bench) -> Check {
    let mut timer = KernelTimer::new(&bench.device)?;
    let why = timer.why_not_cupti().unwrap_or_default().to_owned();
    ensure(timer.method() == Method::Cupti, format!("CUPTI is not used: {why}"))?;
    measure(bench, &mut timer)
}

fn timing_by_events(bench: &Bench) -> Check {
    measure(bench, &mut KernelTimer::with_events(&bench.device)?)
}

fn measure(bench: &Bench, timer: &mut KernelTimer) -> Check {
    let (affine, stream) = (bench.affine()?, bench.device.new_stream()?);
    let (input, output) = (bench.device.alloc(64 << 20)?, bench.device.alloc(64 << 20)?);
    let mut flush = bench.device.alloc(FLUSH_BYTES)?;
    let call = || run_affine(&affine, &stream, &input, &output, 1, false);
    let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
    let cold = timer.time(&stream, 20, Some(&mut flush), call)?;
    let kernels: usize = timer.kernels().iter().map(|kernel| kernel.runs).sum();
    ensure(cold.len() == 20, "one time per call")?;
    let one = mean(&cold);
    // 128 MB at 4.3 TB/s are 31 us.
    ensure((15.0..200.0).contains(&one), format!("a copy of 64 MB takes {one:.1} us?"))?;
    let twice = mean(&timer.time(&stream, 20, Some(&mut flush), || call().and_then(|()| call()))?);
    ensure((1.5..2.5).contains(&(twice / one)), format!("two kernels take {twice:.1} us, one {one:.1} us"))?;
    let mut count = 0;
    let uneven = timer.time(&stream, 6, None, || {
        count += 1;
        (0..count % 3).try_for_each(|_| call())
    })?;
    let spread: Vec<String> = uneven.iter().map(|us| format!("{us:.0}")).collect();
    if timer.method() == Method::Cupti {
        ensure(kernels == 20, format!("the fill was counted: {kernels} kernels in 20 calls"))?;
        let empty = uneven.iter().filter(|us| **us == 0.0).count();
        ensure(empty == 2, format!("two of six calls run no kernel: {spread:?}"))?;
    }
    Ok(format!("{}: {one:.2} us, two {twice:.2} us, uneven calls {}", timer.method(), spread.join(" ")))
}

fn calibration(bench: &Bench) -> Check {
    let stream = bench.device.new_stream()?;
    let mut flush = bench.device.alloc(FLUSH_BYTES)?;
    let mut timer = KernelTimer::new(&bench.device)?.with_rest(REST);
    let (a, b) = (normal_e4m3(1, SIZE * SIZE), normal_e4m3(2, SIZE * SIZE));
    let mut note = String::new();
    for accumulation in [Accumulation::Fast, Accumulation::Promoted] {
        let product = Calibration::with_inputs(&bench.device, accumulation, &a, &b, [0.5, 0.25])?;
        product.launch(&stream)?;
        stream.synchronize()?;
        let result = product.output().to_vec()?;
        for (row, column) in [(0, 0), (1, 2), (4095, 4094), (1234, 4000)] {
            let expected: f64 =
                (0..SIZE).map(|k| e4m3(a[row * SIZE + k]) * e4m3(b[column * SIZE + k])).sum::<f64>() / 8.0;
            let at = 2 * (row * SIZE + column);
            let got = f64::from(f32::from_bits(u32::from_le_bytes([0, 0, result[at], result[at + 1]])));
            // The terms have a deviation of 64 * 64 / 8, and there are 4096 of them.
            ensure((got - expected).abs() < 0.02 * 512.0 * 64.0, format!("{got} for {expected}"))?;
        }
        let times = timer.time(&stream, 20, Some(&mut flush), || product.launch(&stream))?;
        let us = times.iter().sum::<f64>() / times.len() as f64;
        let tflops = Calibration::flops() / us / 1e6;
        note += &format!("{accumulation:?} {us:.1} us ({tflops:.0} TFLOPS); ");
        for kernel in timer.kernels() {
            note += &format!("{} x{} {:.1} us; ", kernel.name, kernel.runs, kernel.us);
        }
    }
    Ok(format!("{note}by {}", timer.method()))
}

fn e4m3(bits: u8) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
    let magnitude =
        if exponent == 0 { fraction * 2f64.powi(-9) } else { (8.0 + fraction) * 2f64.powi(exponent - 10) };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}
