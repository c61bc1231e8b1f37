//! CUDA graphs: captured work that is launched as a whole.

use std::ffi::c_uint;
use std::ptr;

use cudarc::driver::sys::{CUgraph, CUgraphExec, CUstreamCaptureMode};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::stream::Stream;

/// A captured and instantiated graph.
///
/// It holds addresses: the buffers that the captured work uses must be alive when it is launched.
#[derive(Debug)]
pub struct Graph {
    device: Device,
    exec: CUgraphExec,
}

// SAFETY: an instantiated graph is bound to no thread.
unsafe impl Send for Graph {}
// SAFETY: the driver serializes launches of the same graph.
unsafe impl Sync for Graph {}

impl Stream {
    /// Captures what `work` launches in this stream, instead of running it.
    ///
    /// The default stream cannot be captured. Calls that the driver forbids during a capture, such as an
    /// allocation, fail; other threads are not disturbed. Where `work` fails or panics, the capture is ended
    /// and thrown away.
    ///
    /// ```no_run
    /// # use oxigemm_cuda::{Device, Error};
    /// let device = Device::open(0)?;
    /// let (stream, mut buffer) = (device.new_stream()?, device.alloc(1024)?);
    /// let graph = stream.capture(|stream| buffer.fill_u32_async(7, stream))?;
    /// graph.launch(&stream)?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn capture<E: From<Error>>(&self, work: impl FnOnce(&Stream) -> Result<(), E>) -> Result<Graph, E> {
        let mut capture = Capture::begin(self)?;
        work(self)?;
        let graph = capture.end()?;
        Ok(graph.instantiate(self.device())?)
    }
}

/// A capture that has begun; dropping it ends and discards it.
struct Capture<'a> {
    stream: &'a Stream,
    open: bool,
}

impl<'a> Capture<'a> {
    fn begin(stream: &'a Stream) -> Result<Self> {
        let _current = stream.device().make_current()?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as c_uint;
        // SAFETY: the handle is a live stream of the current context.
        unsafe { stream.device().driver().cuStreamBeginCapture_v2(stream.handle(), mode)? };
        Ok(Self { stream, open: true })
    }

    fn end(&mut self) -> Result<Template> {
        self.open = false;
        let device = self.stream.device();
        let _current = device.make_current()?;
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is being captured, and `graph` is a valid place to write to.
        let ended = unsafe { device.driver().cuStreamEndCapture(self.stream.handle(), &mut graph) };
        let template = Template { device: device.clone(), graph };
        ended.map(|()| template)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if self.open {
            let _ = self.end();
        }
    }
}

/// The captured graph before it is instantiated.
struct Template {
    device: Device,
    graph: CUgraph,
}

impl Template {
    fn instantiate(&self, device: &Device) -> Result<Graph> {
        let _current = device.make_current()?;
        let mut exec = ptr::null_mut();
        // SAFETY: the graph is alive, and `exec` is a valid place to write to.
        unsafe { device.driver().cuGraphInstantiateWithFlags(&mut exec, self.graph, 0)? };
        Ok(Graph { device: device.clone(), exec })
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        if self.graph.is_null() {
            return;
        }
        if let Ok(_current) = self.device.make_current() {
            // SAFETY: ours since `cuStreamEndCapture`, destroyed only here; an instance outlives it.
            let _ = unsafe { self.device.driver().cuGraphDestroy(self.graph) };
        }
    }
}

impl Graph {
    /// Puts the whole graph into a stream of the same GPU.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        self.device.expect("the stream", stream.device())?;
        let _current = self.device.make_current()?;
        // SAFETY: both handles are alive and of the current context.
        unsafe { self.device.driver().cuGraphLaunch(self.exec, stream.handle()) }
    }

    /// The GPU it was captured on.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.make_current() {
            // SAFETY: instantiated by `capture`, destroyed only here; the driver defers it behind launches in flight.
            let _ = unsafe { self.device.driver().cuGraphExecDestroy(self.exec) };
        }
    }
}
