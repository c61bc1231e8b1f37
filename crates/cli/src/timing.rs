//! Times on a GPU, taken as the anchor's were.

use std::time::Duration;

use oxigemm::{Cuda, GemmOptions, LaunchOptions};
use oxigemm_cuda::cublaslt::{Accumulation, Calibration};
use oxigemm_cuda::profile::{FLUSH_BYTES, KernelTimer};
use oxigemm_cuda::{Buffer, Stream};

use oxigemm_testkit::Failure;

/// A timer with its stream, its flush buffer and, where that is asked for, the calibration GEMM.
pub struct Clock {
    pub stream: Stream,
    timer: KernelTimer,
    flush: Buffer,
    calibration: Option<Calibration>,
    /// Why there is no calibration GEMM, where there is none.
    pub why_not_calibrated: Option<String>,
}

impl Clock {
    /// A clock that rests this long before each case, without the calibration GEMM: no kernels run but those that are
    /// timed.
    pub fn new(cuda: &Cuda, rest: Duration) -> Result<Clock, Failure> {
        let gpu = cuda.gpu();
        Ok(Clock {
            stream: gpu.new_stream()?,
            timer: KernelTimer::new(gpu)?.with_rest(rest),
            flush: gpu.alloc(FLUSH_BYTES)?,
            calibration: None,
            why_not_calibrated: Some("not asked for".to_owned()),
        })
    }

    /// The same with the calibration GEMM, where it can run.
    pub fn calibrated(cuda: &Cuda, rest: Duration) -> Result<Clock, Failure> {
        let clock = Clock::new(cuda, rest)?;
        // Launched once here: what cannot run is left out, with its reason, and not found in the middle of a suite.
        let tried = Calibration::new(cuda.gpu(), Accumulation::Fast).and_then(|calibration| {
            calibration.launch(&clock.stream)?;
            clock.stream.synchronize()?;
            Ok(calibration)
        });
        let (calibration, why_not_calibrated) = match tried {
            Ok(calibration) => (Some(calibration), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Ok(Clock { calibration, why_not_calibrated, ..clock })
    }

    /// How times are taken, for people.
    pub fn method(&self) -> String {
        match self.timer.why_not_cupti() {
            None => self.timer.method().to_string(),
            Some(why) => format!("{} ({why})", self.timer.method()),
        }
    }

    /// The mean time of a call, in microseconds; it must be put into the stream of the options it is given.
    pub fn calls(
        &mut self,
        options: &GemmOptions,
        runs: usize,
        mut call: impl FnMut(&GemmOptions) -> oxigemm::Result<()>,
    ) -> Result<f64, Failure> {
        let options = GemmOptions { stream: Some(self.stream.clone().into()), ..options.clone() };
        let us = self.timer.time(&self.stream, runs, Some(&mut self.flush), || call(&options))?;
        Ok(mean(&us))
    }

    /// The mean time from the start of the first kernel of a call to the end of its last, of the calls that were timed
    /// last; none where kernels are not recorded.
    pub fn span(&self) -> Option<f64> {
        let spans = self.timer.spans();
        (!spans.is_empty()).then(|| mean(spans))
    }

    /// The mean time of a launch, in microseconds; it must be put into the stream of the options it is given.
    pub fn launches(
        &mut self,
        runs: usize,
        mut launch: impl FnMut(&LaunchOptions) -> oxigemm::Result<()>,
    ) -> Result<f64, Failure> {
        let options = LaunchOptions { stream: Some(self.stream.clone().into()), ..Default::default() };
        let us = self.timer.time(&self.stream, runs, Some(&mut self.flush), || launch(&options))?;
        Ok(mean(&us))
    }

    /// The bytes per second, in GB, that a copy of this many bytes reads and writes: by events, as it is no kernel, so
    /// it has to be long.
    pub fn copy_gb_per_s(&mut self, bytes: usize, runs: usize) -> Result<f64, Failure> {
        let gpu = self.stream.device().clone();
        let (from, mut to) = (gpu.alloc(bytes)?, gpu.alloc(bytes)?);
        let mut timer = KernelTimer::with_events(&gpu)?;
        let us = timer.time(&self.stream, runs, Some(&mut self.flush), || {
            to.copy_from_async(&from, bytes, &self.stream)
        })?;
        Ok(2.0 * bytes as f64 / mean(&us) * 1e-3)
    }

    /// The mean time of the calibration GEMM, where there is one.
    pub fn calibration(&mut self, runs: usize) -> Result<Option<f64>, Failure> {
        let Some(calibration) = &self.calibration else { return Ok(None) };
        let us = self
            .timer
            .time(&self.stream, runs, Some(&mut self.flush), || calibration.launch(&self.stream))?;
        Ok(Some(mean(&us)))
    }
}

fn mean(us: &[f64]) -> f64 {
    us.iter().sum::<f64>() / us.len().max(1) as f64
}
