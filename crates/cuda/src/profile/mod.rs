//! How long calls take on the GPU.
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
use crate::stream::Stream;
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
    empty: Function,
    kernels: Vec<KernelTime>,
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
        let text = ".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry empty() { ret; }\n";
        let ptx = PtxModule { name: "empty", text, arch: "sm_75" };
        let empty = device.load(&CubinCache::disabled().without_ptxas(), &ptx)?.function("empty")?;
        Ok(Self {
            device: device.clone(),
            method: Method::Events,
            why_not_cupti: Some("events were asked for".into()),
            rest: Duration::ZERO,
            empty,
            kernels: Vec::new(),
        })
    }

    /// CUPTI may be there and record nothing, as under another profiler: one empty kernel has to be seen.
    fn try_cupti(&self) -> Result<()> {
        let session = Session::begin(&self.device)?;
        self.launch_empty(&self.device.default_stream())?;
        match session.take()?.as_slice() {
            [only] if only.name == "empty" => Ok(()),
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

    /// Times `call` that many times and gives the microseconds of each.
    ///
    /// The order is: one call, the rest, as many calls again to warm up, and the calls that count. Before each
    /// of the latter two kinds `flush` is filled. `call` must put all its work into `stream`, or into streams
    /// that `stream` waits for. Kernels of other threads that run meanwhile are counted too.
    pub fn time<E: From<Error>>(
        &mut self,
        stream: &Stream,
        calls: usize,
        mut flush: Option<&mut Buffer>,
        mut call: impl FnMut() -> Result<(), E>,
    ) -> Result<Vec<f64>, E> {
        self.device.expect("the stream", stream.device())?;
        self.kernels.clear();
        call()?;
        stream.synchronize()?;
        thread::sleep(self.rest);
        match self.method {
            Method::Cupti => {
                let (times, records) = self.by_cupti(stream, calls, &mut flush, &mut call)?;
                self.kernels = summarize(&records);
                Ok(times)
            }
            Method::Events => self.by_events(stream, calls, &mut flush, &mut call),
        }
    }

    fn by_cupti<E: From<Error>>(
        &self,
        stream: &Stream,
        calls: usize,
        flush: &mut Option<&mut Buffer>,
        call: &mut impl FnMut() -> Result<(), E>,
    ) -> Result<(Vec<f64>, Vec<Record>), E> {
        let session = Session::begin(&self.device)?;
        for _ in 0..calls {
            fill(stream, flush)?;
            call()?;
        }
        session.take()?;
        for _ in 0..calls {
            fill(stream, flush)?;
            call()?;
        }
        let records = session.take()?;
        if let Some(times) = split_evenly(&records, calls) {
            return Ok((times, records));
        }
        // Not every call runs the same kernels, so each is recorded for itself.
        let (mut times, mut all) = (Vec::with_capacity(calls), Vec::new());
        for _ in 0..calls {
            fill(stream, flush)?;
            session.take()?;
            call()?;
            let records = session.take()?;
            times.push(sum_us(&records));
            all.extend(records);
        }
        Ok((times, all))
    }

    fn by_events<E: From<Error>>(
        &self,
        stream: &Stream,
        calls: usize,
        flush: &mut Option<&mut Buffer>,
        call: &mut impl FnMut() -> Result<(), E>,
    ) -> Result<Vec<f64>, E> {
        for _ in 0..calls {
            fill(stream, flush)?;
            call()?;
        }
        let times = between_events(stream, calls, flush, call)?;
        let mut launch = || self.launch_empty(stream);
        let overhead = median(between_events(stream, calls, flush, &mut launch)?);
        Ok(times.into_iter().map(|us| (us - overhead).max(0.0)).collect())
    }

    fn launch_empty(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the kernel has no parameters and touches no memory.
        unsafe { self.empty.launch(stream, &LaunchConfig::linear(1, 32), &[]) }
    }
}

fn fill(stream: &Stream, flush: &mut Option<&mut Buffer>) -> Result<()> {
    match flush {
        Some(buffer) => stream.fill_u32_async(buffer, 0, buffer.len() / 4 * 4, 0),
        None => Ok(()),
    }
}

fn between_events<E: From<Error>>(
    stream: &Stream,
    calls: usize,
    flush: &mut Option<&mut Buffer>,
    call: &mut impl FnMut() -> Result<(), E>,
) -> Result<Vec<f64>, E> {
    let device = stream.device();
    let pairs = (0..calls).map(|_| Ok((device.event()?, device.event()?))).collect::<Result<Vec<_>>>()?;
    for (before, after) in &pairs {
        fill(stream, flush)?;
        stream.record(before)?;
        call()?;
        stream.record(after)?;
    }
    stream.synchronize()?;
    let us = |(before, after): &(_, _)| Ok(f64::from(crate::stream::Event::elapsed_ms(before, after)?) * 1e3);
    Ok(pairs.iter().map(us).collect::<Result<_>>()?)
}

/// The time of each call, where every call ran the same kernels in the same order.
fn split_evenly(records: &[Record], calls: usize) -> Option<Vec<f64>> {
    if calls == 0 || records.is_empty() {
        return records.is_empty().then(|| vec![0.0; calls]);
    }
    if !records.len().is_multiple_of(calls) {
        return None;
    }
    let per_call = records.len() / calls;
    let repeats = records.iter().zip(&records[per_call..]).all(|(a, b)| a.name == b.name);
    repeats.then(|| records.chunks_exact(per_call).map(sum_us).collect())
}

fn sum_us(records: &[Record]) -> f64 {
    records.iter().map(|record| (record.end - record.start) as f64).sum::<f64>() / 1e3
}

fn summarize(records: &[Record]) -> Vec<KernelTime> {
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
            record("transpose", 0, 1000),
            record("gemm", 2000, 9000),
            record("transpose", 20000, 1500),
            record("gemm", 22000, 9500),
        ];
        assert_eq!(split_evenly(&records, 2), Some(vec![10.0, 11.0]));
        let kernels = summarize(&records);
        assert_eq!(kernels[0], KernelTime { name: "gemm".into(), runs: 2, us: 9.25 });
        assert_eq!(kernels[1], KernelTime { name: "transpose".into(), runs: 2, us: 1.25 });
    }

    #[test]
    fn calls_that_run_different_kernels_are_not_split() {
        let uneven = [record("a", 0, 1), record("a", 2, 1), record("a", 4, 1)];
        assert_eq!(split_evenly(&uneven, 2), None);
        let different = [record("a", 0, 1), record("b", 2, 1), record("b", 4, 1), record("a", 6, 1)];
        assert_eq!(split_evenly(&different, 2), None);
    }

    #[test]
    fn a_call_without_kernels_takes_no_time() {
        assert_eq!(split_evenly(&[], 3), Some(vec![0.0; 3]));
        assert_eq!(split_evenly(&[], 0), Some(vec![]));
        assert_eq!(median(vec![]), 0.0);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
