//! Streams, events and graphs: the order of work on a device, the same on a GPU and in the simulator.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::sim::{Sim, Work};
use super::{Device, DeviceId};
use crate::error::{Error, Result};

/// A queue of work on one device; what is put into it is done in order. Clones stand for the same stream.
///
/// In the simulator work is done when it is put into a stream, so a stream is never behind; everything else is as on
/// a GPU.
///
/// ```
/// use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
/// use oxigemm::{Addend, DType, Device, GemmOptions, Tensor, fp8_gemm_nt, random};
///
/// let device = Device::auto();
/// let (m, n, k) = (4, 64, 256);
/// let a = per_token_cast_to_fp8(&random::normals(1, m * k), m, k, ScaleFormat::F32)?;
/// let b = per_block_cast_to_fp8(&random::normals(2, n * k), n, k, ScaleFormat::F32)?;
/// let ((a, sfa), (b, sfb)) = (a.to_tensors(&device)?, b.to_tensors(&device)?);
/// let mut d = Tensor::zeros(DType::Bf16, &[m, n], &device)?;
///
/// let stream = device.new_stream()?;
/// let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
/// // The first call of a shape prepares it; then it can be captured.
/// fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &options)?;
/// let graph = stream.capture(|_| fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &options))?;
/// graph.launch(&stream)?;
/// stream.synchronize()?;
/// assert!(d.to_vec_f32()?.iter().any(|x| *x != 0.0));
/// # Ok::<(), oxigemm::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Stream {
    /// A stream of a GPU, also one that another library owns.
    Cuda(oxigemm_cuda::Stream),
    /// A stream of a simulated GPU.
    Sim(SimStream),
}

/// A stream of a simulated GPU; see [`Stream`].
#[derive(Clone, Debug)]
pub struct SimStream {
    sim: Sim,
    /// Which stream it is; the default stream is 0.
    number: usize,
    /// What was recorded so far, while it is being captured.
    captured: Arc<Mutex<Option<Vec<Work>>>>,
}

/// A point in a stream, to wait for or to measure between.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// An event of a GPU.
    Cuda(oxigemm_cuda::Event),
    /// An event of a simulated GPU.
    Sim(SimEvent),
}

/// An event of a simulated GPU; see [`Event`].
#[derive(Debug)]
pub struct SimEvent {
    device: DeviceId,
    happened: Mutex<Option<Instant>>,
}

/// Work that was captured once and is launched as a whole.
///
/// It holds addresses and not contents: a launch reads what is in memory then. The tensors that the captured
/// work uses must be alive when it is launched.
#[derive(Debug)]
#[non_exhaustive]
pub enum Graph {
    /// A graph of a GPU.
    Cuda(oxigemm_cuda::Graph),
    /// A graph of a simulated GPU.
    Sim(SimGraph),
}

/// A graph of a simulated GPU; see [`Graph`].
#[derive(Debug)]
pub struct SimGraph {
    sim: Sim,
    work: Vec<Work>,
}

impl Device {
    /// A stream of its own.
    ///
    /// # Errors
    /// What the driver says; the CPU has no streams.
    pub fn new_stream(&self) -> Result<Stream> {
        match self {
            Device::Cpu => Err(no_streams()),
            Device::Cuda(cuda) => Ok(Stream::Cuda(cuda.new_stream()?)),
            Device::Sim(sim) => Ok(Stream::Sim(SimStream::new(sim))),
        }
    }

    /// An event that can tell times.
    ///
    /// # Errors
    /// What the driver says; the CPU has no streams.
    pub fn event(&self) -> Result<Event> {
        match self {
            Device::Cpu => Err(no_streams()),
            Device::Cuda(cuda) => Ok(Event::Cuda(cuda.gpu().event()?)),
            Device::Sim(_) => Ok(Event::Sim(SimEvent { device: self.id(), happened: Mutex::default() })),
        }
    }
}

impl Stream {
    /// The device it belongs to.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        match self {
            Stream::Cuda(stream) => DeviceId::Cuda(stream.device().ordinal()),
            Stream::Sim(stream) => stream.device(),
        }
    }

    /// Waits until everything that was put into it is done.
    ///
    /// # Errors
    /// What the GPU reports of the work before; that the stream is being captured.
    pub fn synchronize(&self) -> Result<()> {
        match self {
            Stream::Cuda(stream) => Ok(stream.synchronize()?),
            Stream::Sim(stream) => stream.refuse_while_captured("a captured stream cannot be waited for"),
        }
    }

    /// Whether everything that was put into it is done.
    ///
    /// # Errors
    /// As [`synchronize`](Self::synchronize).
    pub fn is_idle(&self) -> Result<bool> {
        match self {
            Stream::Cuda(stream) => Ok(stream.is_idle()?),
            Stream::Sim(_) => self.synchronize().map(|()| true),
        }
    }

    /// Whether it is being captured into a graph.
    ///
    /// # Errors
    /// What the driver says.
    pub fn is_capturing(&self) -> Result<bool> {
        match self {
            Stream::Cuda(stream) => Ok(stream.is_capturing()?),
            Stream::Sim(stream) => Ok(stream.is_captured()),
        }
    }

    /// Puts an event into it, which happens when everything before it is done.
    ///
    /// # Errors
    /// If the event is of another device.
    pub fn record(&self, event: &Event) -> Result<()> {
        match (self, event) {
            (Stream::Cuda(stream), Event::Cuda(event)) => Ok(stream.record(event)?),
            (Stream::Sim(stream), Event::Sim(event)) if stream.device() == event.device => {
                *event.happened.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                Ok(())
            }
            _ => Err(self.other_device("event", event.device())),
        }
    }

    /// Makes what is put into it later wait for an event.
    ///
    /// # Errors
    /// What the driver says; if one of the two is simulated and the other is not on the same device.
    pub fn wait(&self, event: &Event) -> Result<()> {
        match (self, event) {
            (Stream::Cuda(stream), Event::Cuda(event)) => Ok(stream.wait(event)?),
            // Whatever came before the event is done.
            (Stream::Sim(stream), Event::Sim(event)) if stream.device() == event.device => Ok(()),
            _ => Err(self.other_device("event", event.device())),
        }
    }

    /// Records what `work` puts into this stream, instead of doing it.
    ///
    /// Where `work` fails or panics, the capture is ended and thrown away.
    ///
    /// # Errors
    /// What `work` returns; that the stream is being captured already; what the driver says.
    pub fn capture(&self, work: impl FnOnce(&Stream) -> Result<()>) -> Result<Graph> {
        match self {
            Stream::Cuda(stream) => Ok(Graph::Cuda(stream.capture(|_| work(self))?)),
            Stream::Sim(stream) => {
                stream.refuse_while_captured("the stream is being captured already")?;
                let capture = Capture::begin(stream);
                work(self)?;
                let work = capture.0.lock().take().unwrap_or_default();
                Ok(Graph::Sim(SimGraph { sim: stream.sim.clone(), work }))
            }
        }
    }

    fn other_device(&self, argument: &'static str, found: DeviceId) -> Error {
        Error::Device { argument, expected: self.device().to_string(), found: found.to_string() }
    }
}

/// A capture that has begun; dropping it ends it.
struct Capture<'s>(&'s SimStream);

impl<'s> Capture<'s> {
    fn begin(stream: &'s SimStream) -> Capture<'s> {
        *stream.lock() = Some(Vec::new());
        stream.sim.begin_capture();
        Capture(stream)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        self.0.lock().take();
        self.0.sim.end_capture();
    }
}

impl SimStream {
    fn new(sim: &Sim) -> SimStream {
        static CREATED: AtomicUsize = AtomicUsize::new(0);
        let number = 1 + CREATED.fetch_add(1, Ordering::Relaxed);
        SimStream { sim: sim.clone(), number, captured: Arc::default() }
    }

    /// What tells streams apart that have workspaces of their own.
    pub(crate) fn key(stream: Option<&SimStream>) -> usize {
        stream.map_or(0, |stream| stream.number)
    }

    /// The device it belongs to.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        DeviceId::Sim(self.sim.number())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Vec<Work>>> {
        self.captured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_captured(&self) -> bool {
        self.lock().is_some()
    }

    fn refuse_while_captured(&self, reason: &str) -> Result<()> {
        match &*self.lock() {
            None => Ok(()),
            Some(_) => Err(Error::Stream { reason: reason.to_owned() }),
        }
    }

    /// Records work where the stream is being captured, else does it.
    pub(super) fn submit(&self, work: Work) -> Result<()> {
        if let Some(captured) = &mut *self.lock() {
            captured.push(work);
            return Ok(());
        }
        self.sim.perform(&work)
    }
}

impl Event {
    /// The device it belongs to.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        match self {
            Event::Cuda(event) => DeviceId::Cuda(event.device().ordinal()),
            Event::Sim(event) => event.device,
        }
    }

    /// Waits until it has happened. One that was never recorded counts as such.
    ///
    /// # Errors
    /// What the GPU reports of the work before it.
    pub fn synchronize(&self) -> Result<()> {
        match self {
            Event::Cuda(event) => Ok(event.synchronize()?),
            Event::Sim(_) => Ok(()),
        }
    }

    /// Whether it has happened. One that was never recorded counts as such.
    ///
    /// # Errors
    /// What the GPU reports of the work before it.
    pub fn has_happened(&self) -> Result<bool> {
        match self {
            Event::Cuda(event) => Ok(event.has_happened()?),
            Event::Sim(_) => Ok(true),
        }
    }

    /// The milliseconds between this event and a later one; both must have been recorded. Those of the simulator are
    /// the time that the simulation took.
    ///
    /// # Errors
    /// What the driver says; if one of them is of another kind of device, or was never recorded.
    pub fn elapsed_ms(&self, later: &Event) -> Result<f32> {
        let time = |event: &SimEvent| *event.happened.lock().unwrap_or_else(PoisonError::into_inner);
        match (self, later) {
            (Event::Cuda(first), Event::Cuda(later)) => Ok(first.elapsed_ms(later)?),
            (Event::Sim(first), Event::Sim(later)) => match (time(first), time(later)) {
                (Some(first), Some(later)) => Ok(later.saturating_duration_since(first).as_secs_f32() * 1e3),
                _ => {
                    Err(Error::Stream { reason: "an event that was never recorded tells no time".to_owned() })
                }
            },
            _ => Err(Error::Device {
                argument: "later",
                expected: self.device().to_string(),
                found: later.device().to_string(),
            }),
        }
    }
}

impl Graph {
    /// Puts the whole graph into a stream of the same device.
    ///
    /// # Errors
    /// If the stream is of another device; what the device reports. In the simulator, a fault of the kernels.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        match (self, stream) {
            (Graph::Cuda(graph), Stream::Cuda(stream)) => Ok(graph.launch(stream)?),
            (Graph::Sim(graph), Stream::Sim(stream)) if stream.sim.number() == graph.sim.number() => {
                graph.work.iter().try_for_each(|work| stream.submit(work.clone()))
            }
            _ => Err(Error::Device {
                argument: "stream",
                expected: self.device().to_string(),
                found: stream.device().to_string(),
            }),
        }
    }

    /// How many kernels it launches, in the simulator; a GPU does not tell.
    #[must_use]
    pub fn kernels(&self) -> Option<usize> {
        match self {
            Graph::Cuda(_) => None,
            Graph::Sim(graph) => {
                Some(graph.work.iter().filter(|work| matches!(work, Work::Kernel { .. })).count())
            }
        }
    }

    /// The device it was captured on.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        match self {
            Graph::Cuda(graph) => DeviceId::Cuda(graph.device().ordinal()),
            Graph::Sim(graph) => DeviceId::Sim(graph.sim.number()),
        }
    }
}

impl From<oxigemm_cuda::Stream> for Stream {
    fn from(stream: oxigemm_cuda::Stream) -> Stream {
        Stream::Cuda(stream)
    }
}

/// Refuses a stream on the CPU, which has none.
pub(crate) fn refuse_stream(device: &Device, stream: Option<&Stream>) -> Result<()> {
    match stream {
        None => Ok(()),
        Some(stream) => Err(Error::Device {
            argument: "stream",
            expected: format!("no stream, as the operands are on {device}"),
            found: format!("a stream of {}", stream.device()),
        }),
    }
}

/// A stream of another device than that of the operands.
pub(super) fn wrong_stream(device: DeviceId, stream: &Stream) -> Error {
    Error::Device {
        argument: "stream",
        expected: format!("a stream of {device}"),
        found: format!("a stream of {}", stream.device()),
    }
}

fn no_streams() -> Error {
    Error::Device {
        argument: "device",
        expected: "a GPU or the simulator, which have streams".to_owned(),
        found: DeviceId::Cpu.to_string(),
    }
}
