//! GEMM: one description of a call from the public function to the launch.
//!
//! A public function ([`names`]) or [`gemm_raw`](raw::gemm_raw) builds a [`GemmDesc`](desc::GemmDesc). `check` turns it
//! into a [`Problem`](problem::Problem), `plan` chooses a kernel for it, and `run` launches that kernel, simulates it, or
//! computes the reference on the CPU.

pub(crate) mod check;
pub(crate) mod desc;
pub(crate) mod epilogue;
pub(crate) mod groups;
pub(crate) mod names;
pub(crate) mod problem;
pub(crate) mod raw;
mod run;
mod transpose;

use crate::cast::ScaleFormat;
use crate::device::sim::Work;
use crate::device::{Cuda, Device, DeviceId, Sim, SimStream, Stream};
use crate::error::{Error, Result};
use crate::plan::GemmConfig;
use crate::tensor::Tensor;
use crate::tensor::desc::Operand;
use desc::{GemmDesc, GemmLayout, GroupingDesc, HostKs, KGroupedDesc};
use epilogue::Epilogue;
use groups::RowGroups;
pub(crate) use run::LaunchCache;

/// Addend of a GEMM.
#[derive(Clone, Copy, Debug, Default)]
pub enum Addend<'a> {
    /// None.
    #[default]
    None,
    /// The old content of D.
    InPlace,
    /// Another matrix like D.
    From(&'a Tensor),
}

impl<'a> Addend<'a> {
    /// The tensor, beside D.
    pub(crate) fn tensor(self, d: &'a Tensor) -> Option<&'a Tensor> {
        match self {
            Addend::None => None,
            Addend::InPlace => Some(d),
            Addend::From(c) => Some(c),
        }
    }

    /// The argument `c`, beside D.
    fn describe(&self, d: &Tensor) -> Option<Operand> {
        match self {
            Addend::None => None,
            Addend::InPlace => Some(d.describe("c")),
            Addend::From(c) => Some(c.describe("c")),
        }
    }
}

/// Options of a GEMM. The default is right for most calls.
#[derive(Clone, Debug, Default)]
pub struct GemmOptions {
    /// Stream of the call; the default stream where there is none. Only for a GPU or the simulator.
    pub stream: Option<Stream>,
    /// Kernel and its launch configuration, instead of the planned one.
    pub config: Option<GemmConfig>,
    /// Most SMs that the kernel may use; all where there is none.
    pub num_sms: Option<u32>,
    /// Programmatic dependent launch: whether the kernel may start while the one before it in the stream still runs. It
    /// then sets itself up, and waits for the other's results before it reads or writes anything. The simulator runs one
    /// at a time, and reports what would be too early.
    pub programmatic: bool,
    /// Batch invariance: whether a row of D must have the same bits however many rows A has, and whatever the others
    /// hold. Split-K and stream-K kernels are then left out, which costs time where rows are few. The others all
    /// accumulate K in the same order in every tile: without it every other tile may run K backwards (serpentine K).
    pub batch_invariant: bool,
}

/// Tensors of a GEMM: what its description is made of, and what the CPU reads and writes.
#[derive(Clone, Copy)]
pub(crate) struct Gemm<'a> {
    pub layout: GemmLayout,
    /// As [`GemmDesc::transpose`].
    pub transpose: bool,
    pub a: &'a Tensor,
    pub sfa: Option<&'a Tensor>,
    pub b: &'a Tensor,
    pub sfb: Option<&'a Tensor>,
    pub c: Addend<'a>,
    /// Written, though it is shared here: the public functions have it exclusively.
    pub d: &'a Tensor,
    pub grouping: Grouping<'a>,
    pub epilogue: Option<&'a Epilogue<'a>>,
    /// Scales of a quantized D.
    pub d_scales: Option<(&'a Tensor, ScaleFormat)>,
}

/// Grouping of a GEMM of tensors.
#[derive(Clone, Copy)]
pub(crate) enum Grouping<'a> {
    Dense,
    Batched,
    Summed,
    MGrouped(RowGroups<'a>),
    KGrouped { ks: &'a Tensor, ks_host: Option<&'a [usize]> },
}

impl<'a> Gemm<'a> {
    /// A dense GEMM `D = A·Bᵀ` of 16-bit operands.
    pub fn half(a: &'a Tensor, b: &'a Tensor, d: &'a Tensor) -> Gemm<'a> {
        Gemm {
            layout: GemmLayout::Nt,
            transpose: false,
            a,
            sfa: None,
            b,
            sfb: None,
            c: Addend::None,
            d,
            grouping: Grouping::Dense,
            epilogue: None,
            d_scales: None,
        }
    }

    /// A dense GEMM `D = A·Bᵀ` of FP8 operands with their scales.
    pub fn fp8(
        (a, sfa): (&'a Tensor, &'a Tensor),
        (b, sfb): (&'a Tensor, &'a Tensor),
        d: &'a Tensor,
    ) -> Self {
        Gemm { sfa: Some(sfa), sfb: Some(sfb), ..Gemm::half(a, b, d) }
    }

    /// The same with a fused epilogue.
    pub fn fused(self, epilogue: &'a Epilogue<'a>, d_scales: Option<(&'a Tensor, ScaleFormat)>) -> Gemm<'a> {
        Gemm { epilogue: Some(epilogue), d_scales, ..self }
    }

    /// The description of the call.
    pub fn describe(&self) -> GemmDesc {
        GemmDesc {
            layout: self.layout,
            transpose: self.transpose,
            a: self.a.describe("a"),
            b: self.b.describe("b"),
            sfa: self.sfa.map(|sfa| sfa.describe("sfa")),
            sfb: self.sfb.map(|sfb| sfb.describe("sfb")),
            c: self.c.describe(self.d),
            d: self.d.describe("d"),
            grouping: match &self.grouping {
                Grouping::Dense => GroupingDesc::Dense,
                Grouping::Batched => GroupingDesc::Batched,
                Grouping::Summed => GroupingDesc::Summed,
                Grouping::MGrouped(groups) => GroupingDesc::MGrouped(groups.describe()),
                Grouping::KGrouped { ks, ks_host } => {
                    let unit = GemmDesc::k_unit(self.layout, self.sfa.is_some()) as usize;
                    let host = ks_host.map(|ks| HostKs::new(ks, unit));
                    GroupingDesc::KGrouped(KGroupedDesc { ks: ks.describe("ks"), host })
                }
            },
            epilogue: self.epilogue.map(|epilogue| epilogue.describe(self.d_scales)),
        }
    }

    /// Runs it on the device of A.
    ///
    /// # Errors
    /// The first rule that an argument breaks, or what the device reports.
    pub fn run(&self, options: &GemmOptions) -> Result<()> {
        // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
        unsafe { run::run(self.a.device(), &self.describe(), Some(self), options) }
    }
}

/// The stream of a call on a GPU.
pub(crate) fn cuda_stream<'a>(cuda: &'a Cuda, options: &'a GemmOptions) -> Result<&'a oxigemm_cuda::Stream> {
    stream_on_cuda(cuda, options.stream.as_ref())
}

/// A stream of a GPU: the default one where there is none.
pub(crate) fn stream_on_cuda<'a>(
    cuda: &'a Cuda,
    stream: Option<&'a Stream>,
) -> Result<&'a oxigemm_cuda::Stream> {
    match stream {
        None => Ok(cuda.default_stream()),
        Some(Stream::Cuda(stream)) => Ok(stream),
        Some(stream) => Err(wrong_stream(DeviceId::Cuda(cuda.gpu().ordinal()), stream)),
    }
}

/// The stream of a call in the simulator, if it has one.
pub(crate) fn sim_stream<'a>(sim: &Sim, options: &'a GemmOptions) -> Result<Option<&'a SimStream>> {
    stream_on_sim(sim, options.stream.as_ref())
}

/// A stream of a simulated GPU, if there is one.
pub(crate) fn stream_on_sim<'a>(sim: &Sim, stream: Option<&'a Stream>) -> Result<Option<&'a SimStream>> {
    match stream {
        None => Ok(None),
        Some(Stream::Sim(stream)) if stream.device() == DeviceId::Sim(sim.number()) => Ok(Some(stream)),
        Some(stream) => Err(wrong_stream(DeviceId::Sim(sim.number()), stream)),
    }
}

/// Does work in the simulator, or puts it into a stream.
pub(crate) fn put(sim: &Sim, stream: Option<&SimStream>, work: Work) -> Result<()> {
    match stream {
        Some(stream) => stream.put(work),
        None => sim.perform(&work),
    }
}

/// The CPU has no streams.
pub(crate) fn refuse_stream(device: &Device, options: &GemmOptions) -> Result<()> {
    no_stream(device, options.stream.as_ref())
}

/// Refuses a stream where there are none.
pub(crate) fn no_stream(device: &Device, stream: Option<&Stream>) -> Result<()> {
    match stream {
        None => Ok(()),
        Some(stream) => Err(Error::Device {
            argument: "stream",
            expected: format!("no stream, as the operands are on {device}"),
            found: format!("a stream of {}", stream.device()),
        }),
    }
}

/// A stream belongs to the device of the operands.
fn wrong_stream(device: DeviceId, stream: &Stream) -> Error {
    Error::Device {
        argument: "stream",
        expected: format!("a stream of {device}"),
        found: format!("a stream of {}", stream.device()),
    }
}
