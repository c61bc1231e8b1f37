//! What the model takes a B200 to be. No constant is measured here.
//!
//! | constant | source |
//! |---|---|
//! | tensor core, memory's peak | NVIDIA's datasheet of the B200: 4.5 petaFLOPS of dense FP8, 8 TB/s |
//! | share of the memory's peak | copies on an H200 |
//! | shared memory | 128 bytes a cycle: published microbenchmarks, by which MMAs of one CTA with fewer than 128 columns wait for operands |
//! | port of an SM | 64 bytes a cycle: what fits the times of an H200 (`plan/sm90`) |
//! | L2 cache | assumed: 5120 bytes a cycle for each of the two dies, NVIDIA's figure of an A100 |
//! | epilogue, start, handover, reduction | assumed |

/// Multiply-adds of one SM in a cycle, for elements of 8 bits: 4.5 petaFLOPS by 148 SMs at 1.85 GHz. Elements of 4 bits
/// have twice as many, of 16 bits half, and TF32 a quarter.
const MACS_PER_CYCLE: f64 = 8192.0;
/// Cycles of an SM under load in a microsecond.
pub(super) const CYCLES: f64 = 1850.0;
/// Memory: bytes in a microsecond. 8 TB/s, of which copies reach about 90% on Hopper.
pub(super) const MEMORY: f64 = 7.2e6;
/// L2 cache, read by all SMs: bytes in a cycle.
pub(super) const L2: f64 = 2.0 * 5120.0;
/// From the L2 cache into one SM: bytes in a cycle.
pub(super) const PORT: f64 = 64.0;
/// Shared memory of one SM, read and written: bytes in a cycle.
pub(super) const SHARED: f64 = 128.0;
/// From tensor memory to D, by the four epilogue warps of an SM: 32 bytes of FP32 a cycle for each.
pub(super) const OUTPUT: f64 = 128.0;
/// Cycles in which the tensor core waits where accumulators share columns: a commit, two reads of tensor memory and an
/// arrival, one after another.
pub(super) const HANDOVER: f64 = 600.0;
/// From the launch to the first MMA, and from the last one to the end: microseconds.
pub(super) const START: f64 = 4.0;
/// How far units overlap: see [`Cost::overlapped`](super::super::cost::Cost). Fits of an H200 have 4.0 to 4.4.
pub(super) const SHARPNESS: f64 = 4.0;
/// Exchange of the K splits of a cluster through distributed shared memory: microseconds, about what it takes on an H200.
pub(super) const REDUCTION: f64 = 1.5;

/// Multiply-adds of one SM in a cycle, for elements of so many bits.
pub(super) fn macs_per_cycle(bits: u32) -> f64 {
    MACS_PER_CYCLE * 8.0 / f64::from(bits)
}
