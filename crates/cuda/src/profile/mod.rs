//! Kernel times of calls on the GPU.
//!
//! The time of a call is the sum of the durations of its kernels, as CUPTI records them. Events around a short
//! kernel read a few microseconds too high, because they also see the launch; they are used only where CUPTI
//! is not found, with the time of an empty launch taken off. [`KernelTimer::method`] says which it was, and
//! every figure that is shown should say so too.
//!
//! Two things besides the kernel decide what is read. What ran before leaves the L2 cache warm and the card
//! near its power cap: filling a large buffer before each call ([`FLUSH_BYTES`]) flushes the one and rests the
//! tensor cores, and a pause before each case ([`REST`]) lets the card cool.

mod cupti;

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use crate::buffer::Buffer;
use crate::cache::CubinCache;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::launch::{Function, LaunchConfig};
use crate::module::PtxModule;
use crate::stream::{Event, Stream};
use cupti::{Record, Session};

/// The size of the fill before each call that published figures of this project are taken with.
pub const FLUSH_BYTES: usize = 4_000_000_000;

/// The pause before each case that published figures of this project are taken with.
pub const REST: Duration = Duration::from_millis(400);

/// How times are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The durations of the kernels, from CUPTI.
    Cupti,
    /// Events around a call, with the time of an empty launch taken off.
    Events,
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Cupti => "CUPTI kernel durations",
            Self::Events => "events minus an empty launch",
        })
    }
}

/// The kernel that stands between two calls in the records, and the empty one that events are corrected by.
const MARK: &str = "oxigemm_timer_mark";

/// A kernel that ran inside the calls that were timed.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelTime {
    /// Its name, as the compiler wrote it.
    pub name: String,
    /// How often it ran.
    pub runs: usize,
    /// How long one run took, on average.
    pub us: f64,
}

/// Times calls on a GPU.
///
/// ```no_run
/// use oxigemm_cuda::profile::{FLUSH_BYTES, KernelTimer, REST};
/// use oxigemm_cuda::{Device, Error};
///
/// let device = Device::open(0)?;
/// let stream = device.new_stream()?;
/// let mut flush = device.alloc(FLUSH_BYTES)?;
/// let mut timer = KernelTimer::new(&device)?.with_rest(REST);
/// let us = timer.time(&stream, 20, Some(&mut flush), || {
///     // The call to time, on `stream`.
///     Ok::<(), Error>(())
/// })?;
/// println!("{:.2} us by {}", us.iter().sum::<f64>() / us.len() as f64, timer.method());
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct KernelTimer {
    device: Device,
    method: Method,
    why_not_cupti: Option<String>,
    rest: Duration,
    mark: Function,
    scratch: Buffer,
    kernels: Vec<KernelTime>,
    spans: Vec<f64>,
}

impl KernelTimer {
    /// A timer that uses CUPTI where it is found and works, else events.
    pub fn new(device: &Device) -> Result<Self> {
        let mut timer = Self::with_events(device)?;
        match timer.try_cupti() {
            Ok(()) => {
                timer.method = Method::Cupti;
                timer.why_not_cupti = None;
            }
            Err(error) => {
                tracing::warn!("kernels are timed with events: {error}");
                timer.why_not_cupti = Some(error.to_string());
            }
        }
        Ok(timer)
    }

    /// A timer that uses events.
    pub fn with_events(device: &Device) -> Result<Self> {
        let text =
            format!(".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry {MARK}() {{ ret; }}\n");
        let ptx = PtxModule { name: MARK, text: &text, arch: "sm_75" };
        let mark = device.load(&CubinCache::disabled().without_ptxas(), &ptx)?.function(MARK)?;
        Ok(Self {
            device: device.clone(),
            method: Method::Events,
            why_not_cupti: Some("events were asked for".into()),
            rest: Duration::ZERO,
            mark,
            scratch: device.alloc(4)?,
            kernels: Vec::new(),
            spans: Vec::new(),
        })
    }

    /// CUPTI may be there and record nothing, as under another profiler: one kernel has to be seen.
    fn try_cupti(&self) -> Result<()> {
        let session = Session::begin(&self.device)?;
        self.launch_mark(&self.device.default_stream())?;
        match session.take()?.as_slice() {
            [only] if only.name == MARK => Ok(()),
            other => Err(Error::Library {
                call: "cuptiActivityFlushAll",
                code: 0,
                text: format!("CUPTI recorded {} kernels where one ran", other.len()),
            }),
        }
    }

    /// Sleeps this long before each case, so that the card is cool.
    pub fn with_rest(mut self, rest: Duration) -> Self {
        self.rest = rest;
        self
    }

    /// How it takes times.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Why CUPTI is not used, where it is not.
    pub fn why_not_cupti(&self) -> Option<&str> {
        self.why_not_cupti.as_deref()
    }

    /// The kernels of the calls that were timed last; empty with [`Method::Events`].
    pub fn kernels(&self) -> &[KernelTime] {
        &self.kernels
    }

    /// From the start of a call's first kernel to the end of its last one, in microseconds, of the calls that were timed
    /// last; empty with [`Method::Events`]. Where a kernel is launched programmatically, it waits for the one before it
    /// inside its own duration: the sum of both counts that time twice, and a span once.
    pub fn spans(&self) -> &[f64] {
        &self.spans
    }

    /// Times `call` that many times and gives the microseconds of each.
    ///
    /// The order is: one call, the rest, as many calls again to warm up, and the calls that count. Before each
    /// of the latter two kinds `flush` is filled, which is a memset and no kernel. `call` must put all its work
    /// into `stream`, or into streams that `stream` waits for. Kernels of other threads that run meanwhile are
    /// counted too.
    pub fn time<E: From<Error>>(
        &mut self,
        stream: &Stream,
        calls: usize,
        mut flush: Option<&mut Buffer>,
        mut call: impl FnMut() -> Result<(), E>,
    ) -> Result<Vec<f64>, E> {
        self.device.expect("the stream", stream.device())?;
        self.kernels.clear();
        self.spans.clear();
        call()?;
        stream.synchronize()?;
        thread::sleep(self.rest);
        match self.method {
            Method::Cupti => self.by_cupti(stream, calls, &mut flush, &mut call),
            Method::Events => self.by_events(stream, calls, &mut flush, &mut call),
        }
    }

    fn by_cupti<E: From<Error>>(
        &mut self,
        stream: &Stream,
        calls: usize,
        flush: &mut Option<&mut Buffer>,
        call: &mut impl FnMut() -> Result<(), E>,
    ) -> Result<Vec<f64>, E> {
        let device = self.device.clone();
        let session = Session::begin(&device)?;
        let mut round = |timer: &mut Self| -> Result<Vec<Record>, E> {
            for _ in 0..calls {
                timer.launch_mark(stream)?;
                timer.fill(stream, flush)?;
                call()?;
            }
            Ok(session.take()?)
        };
        round(self)?;
        let records = round(self)?;
        let by_call = split(&records);
        if by_call.len() != calls {
            let text = format!("CUPTI recorded {} of {calls} calls", by_call.len());
            return Err(Error::Library { call: "cuptiActivityFlushAll", code: 0, text }.into());
        }
        self.kernels = summarize(by_call.iter().copied().flatten());
        self.spans = by_call.iter().copied().map(span_us).collect();
        Ok(by_call.into_iter().map(sum_us).collect())
    }

    fn by_events<E: From<Error>>(
        &mut self,
        stream: &Stream,
        calls: usize,
        flush: &mut Option<&mut Buffer>,
        call: &mut impl FnMut() -> Result<(), E>,
    ) -> Result<Vec<f64>, E> {
        self.between_events(stream, calls, flush, call)?;
        let times = self.between_events(stream, calls, flush, call)?;
        let mark = self.mark.clone();
        let overhead = median(self.between_events(stream, calls, flush, &mut || launch(&mark, stream))?);
        Ok(times.into_iter().map(|us| (us - overhead).max(0.0)).collect())
    }

    fn between_events<E: From<Error>>(
        &mut self,
        stream: &Stream,
        calls: usize,
        flush: &mut Option<&mut Buffer>,
        call: &mut impl FnMut() -> Result<(), E>,
    ) -> Result<Vec<f64>, E> {
        let event = || self.device.event();
        let pairs = (0..calls).map(|_| Ok((event()?, event()?))).collect::<Result<Vec<_>>>()?;
        for (before, after) in &pairs {
            self.fill(stream, flush)?;
            stream.record(before)?;
            call()?;
            stream.record(after)?;
        }
        stream.synchronize()?;
        let us = |(before, after): &(Event, Event)| Ok(f64::from(before.elapsed_ms(after)?) * 1e3);
        Ok(pairs.iter().map(us).collect::<Result<_>>()?)
    }

    /// Without a buffer to flush with, a few bytes are filled all the same: a kernel that is launched
    /// programmatically would otherwise overlap with the mark and wait inside its own time.
    fn fill(&mut self, stream: &Stream, flush: &mut Option<&mut Buffer>) -> Result<()> {
        let buffer = flush.as_deref_mut().unwrap_or(&mut self.scratch);
        stream.fill_u32_async(buffer, 0, buffer.len() / 4 * 4, 0)
    }

    fn launch_mark(&self, stream: &Stream) -> Result<()> {
        launch(&self.mark, stream)
    }
}

fn launch(mark: &Function, stream: &Stream) -> Result<()> {
    // SAFETY: the kernel has no parameters and touches no memory.
    unsafe { mark.launch(stream, &LaunchConfig::linear(1, 32), &[]) }
}

/// The records of each call: what is between two marks.
fn split(records: &[Record]) -> Vec<&[Record]> {
    let mut parts: Vec<_> = records.split(|record| record.name == MARK).collect();
    // What comes before the first mark belongs to no call.
    parts.remove(0);
    parts
}

fn sum_us(records: &[Record]) -> f64 {
    records.iter().map(|record| (record.end - record.start) as f64).sum::<f64>() / 1e3
}

fn span_us(records: &[Record]) -> f64 {
    let start = records.iter().map(|record| record.start).min().unwrap_or(0);
    let end = records.iter().map(|record| record.end).max().unwrap_or(0);
    (end - start) as f64 / 1e3
}

fn summarize<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<KernelTime> {
    let mut by_name: BTreeMap<&str, Vec<Record>> = BTreeMap::new();
    for record in records {
        by_name.entry(&record.name).or_default().push(record.clone());
    }
    let time = |(name, runs): (&str, Vec<Record>)| KernelTime {
        name: name.to_owned(),
        runs: runs.len(),
        us: sum_us(&runs) / runs.len() as f64,
    };
    by_name.into_iter().map(time).collect()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    match times.len() {
        0 => 0.0,
        n if n % 2 == 1 => times[n / 2],
        n => (times[n / 2 - 1] + times[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, start: u64, duration: u64) -> Record {
        Record { name: name.into(), start, end: start + duration, correlation: 0 }
    }

    #[test]
    fn the_kernels_of_a_call_are_added_up() {
        let records = [
            record("of somebody else", 0, 5),
            record(MARK, 10, 5),
            record("transpose", 20, 1000),
            record("gemm", 2000, 9000),
            record(MARK, 12000, 5),
            record(MARK, 13000, 5),
            record("transpose", 20000, 1500),
            record("gemm", 22000, 9500),
        ];
        let calls = split(&records);
        assert_eq!(calls.iter().copied().map(sum_us).collect::<Vec<_>>(), [10.0, 0.0, 11.0]);
        assert_eq!(calls.iter().copied().map(span_us).collect::<Vec<_>>(), [10.98, 0.0, 11.5]);
        let kernels = summarize(calls.into_iter().flatten());
        assert_eq!(kernels[0], KernelTime { name: "gemm".into(), runs: 2, us: 9.25 });
        assert_eq!(kernels[1], KernelTime { name: "transpose".into(), runs: 2, us: 1.25 });
        assert_eq!(kernels.len(), 2, "neither marks nor what ran before");
    }

    #[test]
    fn a_kernel_that_waits_for_the_one_before_counts_once_in_a_span() {
        let call = [record("gemm", 1000, 5000), record("top-k", 2000, 7000)];
        assert_eq!([sum_us(&call), span_us(&call)], [12.0, 8.0]);
    }

    #[test]
    fn without_marks_there_are_no_calls() {
        assert!(split(&[]).is_empty());
        assert!(split(&[record("gemm", 0, 1)]).is_empty());
        assert_eq!(median(vec![]), 0.0);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
