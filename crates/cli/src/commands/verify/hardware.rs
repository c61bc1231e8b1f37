//! What hardware does and the manual does not promise: the simulator notes it where a kernel relies on it.
//!
//! The same PTX runs on the GPU, many times over, and in the simulator.

use std::ffi::c_void;

use oxigemm::Device;
use oxigemm_cuda::{
    CubinCache, Element, L2Promotion, LaunchConfig, PtxModule, Swizzle, TensorMap, TiledTensor,
};
use oxigemm_sim as sim;
use oxigemm_testkit::Failure;

use super::{Check, Setup, ensure};

const STORE: &str = include_str!("hardware/store_and_exit.ptx");
const INIT: &str = include_str!("hardware/init_without_fence.ptx");
/// Bytes that a CTA stores through a tensor map, and of a row of it.
const BOX: u32 = 16384;
const ROW: u64 = 256;
/// Threads of a CTA: one for each word of a piece that it loads.
const THREADS: u32 = 1024;
const PIECE: usize = 4096;
const ROUNDS: usize = 16;

pub fn checks(_: &Setup) -> Vec<Check> {
    vec![
        Check::with_kernels("hardware: bulk stores of CTAs that have exited", stores),
        Check::with_kernels("hardware: an mbarrier that no fence follows", barriers),
    ]
}

/// A kernel to be run, the bytes that it reads and how many it writes, and scalars.
struct Run<'a> {
    text: &'a str,
    entry: &'a str,
    ctas: u32,
    threads: u32,
    shared_bytes: u32,
    input: &'a [u8],
    /// Whether the output is also passed as a tensor map.
    mapped: bool,
    output: usize,
    scalars: &'a [u32],
}

impl Run<'_> {
    /// What the kernel leaves, and in the simulator the kinds of its notes.
    fn on(&self, device: &Device) -> Result<(Vec<u8>, Vec<sim::FaultKind>), Failure> {
        match device {
            Device::Cuda(cuda) => Ok((self.on_gpu(cuda.gpu())?, Vec::new())),
            _ => self.simulated(),
        }
    }

    fn on_gpu(&self, gpu: &oxigemm_cuda::Device) -> Result<Vec<u8>, Failure> {
        let ptx = PtxModule { name: self.entry, text: self.text, arch: "sm_90" };
        let module = gpu.load(&CubinCache::disabled(), &ptx)?;
        let (function, stream) = (module.function(self.entry)?, gpu.new_stream()?);
        function.allow_dynamic_shared(self.shared_bytes)?;
        let input = gpu.upload(if self.input.is_empty() { &[0; 16] } else { self.input })?;
        let mut output = gpu.alloc(self.output)?;
        output.fill_u8(0xee)?;
        let mut addresses = [output.ptr(), input.ptr()];
        let mut map = TensorMap([0; 16]);
        if self.mapped {
            let tensor = TiledTensor {
                element: Element::U32,
                rank: 2,
                address: output.ptr(),
                dims: [ROW / 4, self.output as u64 / ROW, 1, 1, 1],
                strides: [ROW, 0, 0, 0],
                tile: [(ROW / 4) as u32, BOX / ROW as u32, 1, 1, 1],
                swizzle: Swizzle::None,
                promotion: L2Promotion::None,
            };
            map = tensor.encode()?;
        }
        let mut scalars = self.scalars.to_vec();
        let second: *mut c_void =
            if self.mapped { (&raw mut map).cast() } else { (&raw mut addresses[1]).cast() };
        let mut params: Vec<*mut c_void> = vec![(&raw mut addresses[0]).cast(), second];
        params.extend(scalars.iter_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>()));
        let config =
            LaunchConfig { shared_bytes: self.shared_bytes, ..LaunchConfig::linear(self.ctas, self.threads) };
        // SAFETY: the parameters are those of the entry, and its memory lives until the stream is done.
        unsafe { function.launch(&stream, &config, &params)? };
        stream.synchronize()?;
        Ok(output.to_vec()?)
    }

    fn simulated(&self) -> Result<(Vec<u8>, Vec<sim::FaultKind>), Failure> {
        let module = sim::Module::parse(self.text)?;
        let (mut bytes, mut kinds) = (Vec::new(), Vec::new());
        for policy in [sim::Policy::Eager, sim::Policy::Lazy, sim::Policy::Random] {
            let mut machine = sim::Machine::new();
            let (output, input) =
                (machine.memory.allocate(self.output), machine.memory.allocate_with(self.input));
            let second = if self.mapped {
                let spec = sim::TensorMapSpec {
                    address: output,
                    element: sim::Element::U32,
                    dims: vec![ROW / 4, self.output as u64 / ROW],
                    strides: vec![ROW],
                    box_dims: vec![(ROW / 4) as u32, BOX / ROW as u32],
                    swizzle: sim::Swizzle::None,
                };
                spec.encode()?.into()
            } else {
                sim::Param::U64(input)
            };
            let mut params = vec![sim::Param::U64(output), second];
            params.extend(self.scalars.iter().map(|value| sim::Param::U32(*value)));
            let launch = sim::Launch {
                entry: self.entry.to_owned(),
                grid: [self.ctas, 1, 1],
                cluster: None,
                block: [self.threads, 1, 1],
                shared_bytes: self.shared_bytes,
                params,
            };
            let options = sim::Options { policy, ..sim::Options::default() };
            let report = machine.run(&module, &launch, &options)?;
            kinds.extend(report.notes.iter().map(|note| note.kind));
            bytes = machine.memory.read(output, self.output)?.to_vec();
        }
        kinds.dedup();
        Ok((bytes, kinds))
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// In the simulator the kernel must have been noted for what it relies on.
fn expect_note(setup: &Setup, kinds: &[sim::FaultKind], kind: sim::FaultKind) -> Result<(), Failure> {
    let simulated = matches!(setup.device, Device::Sim(_));
    ensure(!simulated || kinds == [kind], || format!("the simulator notes {kinds:?}, expected {kind:?}"))
}

/// CTAs that exit right behind their bulk stores, while others come to use the same shared memory.
fn stores(setup: &Setup) -> Result<String, Failure> {
    let gpu = matches!(setup.device, Device::Cuda(_));
    let (launches, total) = if gpu { (if setup.quick { 2 } else { 10 }, 256 << 20) } else { (1, 256 << 10) };
    let mut count = 0;
    // From a box alone to as much as a CTA may have, where the next one takes the same bytes.
    for bytes in [BOX, 2 * BOX, 6 * BOX, 13 * BOX] {
        let ctas = (total / bytes).max(2);
        for salt in 0..launches {
            let run = Run {
                text: STORE,
                entry: "store_and_exit",
                ctas,
                threads: 128,
                shared_bytes: bytes,
                input: &[],
                mapped: true,
                output: bytes as usize * ctas as usize,
                scalars: &[bytes, salt],
            };
            setup.now(format!("store_and_exit with {bytes} bytes"));
            let (out, kinds) = run.on(&setup.device)?;
            expect_note(setup, &kinds, sim::FaultKind::WorkInFlight)?;
            let per_cta = bytes / 4;
            let wrong = words(&out).zip(0u32..).position(|(word, i)| {
                let (cta, index) = (i / per_cta, i % per_cta);
                let base = cta.wrapping_mul(0x9e37_79b1).wrapping_add(salt);
                word != index.wrapping_mul(0x85eb_ca6b).wrapping_add(base)
            });
            ensure(wrong.is_none(), || {
                format!("{bytes} bytes a CTA, launch {salt}: word {} is wrong", wrong.unwrap_or(0))
            })?;
            count += ctas;
        }
    }
    Ok(format!("{count} CTAs exited without waiting, and all bytes came"))
}

/// Copies that report to an mbarrier whose initialization only `bar.sync` or program order separates from them.
fn barriers(setup: &Setup) -> Result<String, Failure> {
    let gpu = matches!(setup.device, Device::Cuda(_));
    let (launches, ctas, pieces) =
        if gpu { (if setup.quick { 5 } else { 50 }, 132 * 16, 4096) } else { (1, 3, 40) };
    let input: Vec<u8> = (0..(pieces * PIECE / 4) as u32)
        .flat_map(|i| i.wrapping_mul(0x9e37_79b1).rotate_left(7).to_le_bytes())
        .collect();
    let numbers: Vec<u32> = words(&input).collect();
    for launch in 0..launches {
        let run = Run {
            text: INIT,
            entry: "init_without_fence",
            ctas,
            threads: THREADS,
            shared_bytes: PIECE as u32,
            input: &input,
            mapped: false,
            output: ctas as usize * THREADS as usize * 4,
            scalars: &[pieces as u32],
        };
        setup.now(format!("init_without_fence, launch {launch}"));
        let (out, kinds) = run.on(&setup.device)?;
        expect_note(setup, &kinds, sim::FaultKind::BarrierInit)?;
        let wrong = words(&out).enumerate().position(|(i, sum)| {
            let (cta, thread) = (i / THREADS as usize, i % THREADS as usize);
            let word = |round: usize| numbers[(cta * ROUNDS + round) % pieces * PIECE / 4 + thread];
            sum != (0..ROUNDS).fold(0u32, |sum, round| sum.wrapping_add(word(round)))
        });
        ensure(wrong.is_none(), || format!("launch {launch}: sum {} is wrong", wrong.unwrap_or(0)))?;
    }
    let copies = launches * ctas as usize * ROUNDS;
    Ok(format!("{copies} copies reported to mbarriers that no fence had followed"))
}
