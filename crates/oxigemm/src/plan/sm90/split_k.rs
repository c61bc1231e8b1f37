//! Cost of split-K kernels: a block for each tile and split.

use oxigemm_kernels::WARPGROUP;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;

use super::super::{Cost, GemmConfig, GemmShape, Limits};
use super::{Speeds, TENSOR_F16, Tile, memory_bytes};

const FP8: Speeds =
    Speeds { tensor: 12.69e6, memory: 3.94e6, l2: 9.83e6, feed: 154e3, output: 121e3, start: 3.43 };
const F16: Speeds =
    Speeds { tensor: TENSOR_F16, memory: 3.79e6, l2: 10.5e6, feed: 182e3, output: 121e3, start: 2.75 };

/// Time that L2 prefetch of B gains before TMA can load it: of small tiles, and of those whose SM has several blocks
/// with much of B.
const L2_PREFETCH: f64 = 0.35;
const L2_PREFETCH_LARGE: f64 = 0.1;

/// How much sooner a kernel ends that reads next to nothing, and the bytes that leave a third of that: memory is idle then,
/// and what the other constants take for the start is mostly waiting for it.
const IDLE_MEMORY: f64 = 2.4;
const IDLE_BYTES: f64 = 1e6;

/// Latency of memory under load; FP8 and 16-bit operands.
const LATENCY: f64 = 0.766;
const LATENCY_F16: f64 = 1.08;
/// Loads in flight for every one that is waited for, to keep the memory busy; of both.
const IN_FLIGHT: f64 = 1.5;
const IN_FLIGHT_F16: f64 = 0.9;
/// Waiting for a stage and promoting its products, where one warpgroup does all of it; and without promotion.
const STEP: f64 = 0.026;
const STEP_F16: f64 = 0.013;
/// Cluster barrier of the reduction over distributed shared memory, and what it takes longer for every doubling of the
/// cluster where no promotion hides it.
const CLUSTER_SYNC: f64 = 1.0;
const LARGER_CLUSTER_F16: f64 = 0.04;
/// Partial sums from the shared memory of one SM to that of another.
const DSMEM: f64 = 25.2e3;
/// The same with a fused epilogue, which the blocks of a cluster split among them.
const CLUSTER_SYNC_FUSED: f64 = 0.6;
const LARGER_CLUSTER_FUSED: f64 = 0.51;
const DSMEM_FUSED: f64 = 61e3;
/// How much longer two stages take to be refilled; with a fused epilogue, if no other block runs meanwhile.
const TWO_STAGES: f64 = 1.5;
/// How much more memory is read where two blocks with a fused epilogue have the same rows of B.
const READ_TWICE: f64 = 1.44;
/// Allocating the shared memory of a block, in bytes per microsecond.
const SHARED: f64 = 376e3;

/// Blocks of a split-K kernel that the registers of an SM hold: an accumulator for every two elements of a 64-row
/// subtile and, where they are promoted, as many products.
fn blocks_by_registers(config: &GemmConfig, tile: &Tile, fused: bool) -> u32 {
    let threads = config.threads();
    // Warps that do not multiply fill no warpgroup.
    let multiplying = threads - threads % WARPGROUP;
    let accumulators = tile.m * tile.n / multiplying * if tile.promotes() { 2 } else { 1 };
    let others = if fused && tile.m < 64 { 56 } else { 40 };
    let registers = config.kernel.arch().limits().registers_per_sm;
    registers / (threads * (accumulators + others).next_multiple_of(8))
}

/// A split-K kernel; N counts the columns of D.
pub(super) fn estimate(config: &GemmConfig, shape: GemmShape, limits: &Limits) -> Cost {
    let (tile, split, stages) = (Tile::of(config), config.split_k, config.stages);
    let (fusion, shared) = (config.kernel.fusion(), config.shared_bytes());
    let fused = fusion != Fusion::None;
    let shape = GemmShape { n: shape.n * fusion.accumulators(), ..shape };
    let by_shared = limits.shared_per_sm / (shared + limits.arch.limits().reserved_shared);
    let per_sm = by_shared.min(blocks_by_registers(config, &tile, fused));
    let k_blocks = f64::from(tile.operands.k_blocks(shape.k));
    let speed = if tile.promotes() { &FP8 } else { &F16 };
    let m_tiles = f64::from(shape.m.div_ceil(tile.m));
    let tiles = m_tiles * f64::from(shape.n.div_ceil(tile.n));
    let blocks = tiles * f64::from(split);
    let steps = (k_blocks / f64::from(split)).ceil();
    let sms = f64::from(limits.sms);
    let per_sm = f64::from(per_sm.max(1));
    let waves = (tiles / (f64::from(limits.clusters(split)) * per_sm)).ceil();
    // Blocks of the SM with the most of them: clusters leave some SMs out.
    let most = (tiles / f64::from(limits.clusters(split))).ceil();
    let resident = per_sm.min(most);
    let (latency, in_flight) = match tile.promotes() {
        true => (LATENCY, IN_FLIGHT),
        false => (LATENCY_F16, IN_FLIGHT_F16),
    };
    // Bytes in flight bound the bandwidth.
    let bytes_in_flight = blocks.min(sms * resident) * f64::from(stages).min(steps) * tile.stage_bytes();
    let bandwidth = speed.memory.min(bytes_in_flight / (in_flight * latency));
    let read = tiles * k_blocks * tile.stage_bytes();
    // The tensor core takes at least 16 cycles for 64 rows of B, however few the rows of A are.
    let narrow = f64::from(tile.m.max(32)) / f64::from(tile.m);
    // One warpgroup alone leaves the tensor cores idle while it promotes; two alternate.
    let alone = tile.m == 64;
    let (step, efficiency) = match tile.promotes() {
        true if alone => (STEP, 0.71),
        true if fused => (STEP, 0.67),
        true => (STEP, 0.75),
        false => (STEP_F16, if alone { 0.9 } else { 1.0 }),
    };
    let multiply = tile.stage_ops() * narrow / (tile.tensor_speed(speed.tensor) * efficiency);
    // A block cannot load more than its stages hold; large tiles are not loaded before the last one is multiplied.
    let refill = latency + tile.stage_bytes() / speed.feed;
    let refill = if fused || tile.m >= 128 { refill + step + resident * multiply } else { refill };
    let empty = stages == 2 && (resident < 2.0 || !fused);
    let refill = refill * if empty { TWO_STAGES } else { 1.0 };
    let refills = steps * refill / f64::from(stages).min(steps);
    let partial = f64::from(tile.m.min(shape.m)) * f64::from(tile.n) * 4.0;
    let reduction = match (split, fused) {
        (1, true) if tile.m >= 64 => 0.95,
        (1, true) => 0.56,
        // Without swapped operands, a block waits for TMA to have stored its tile.
        (1, false) if tile.m >= 64 => 0.9 + (most - 1.0) * 0.2,
        (1, false) => 0.3,
        (_, true) => {
            let larger = LARGER_CLUSTER_FUSED * f64::from(split).log2();
            CLUSTER_SYNC_FUSED + larger + most * partial / DSMEM_FUSED
        }
        (_, false) => {
            let larger = if tile.promotes() { 0.0 } else { LARGER_CLUSTER_F16 * f64::from(split).log2() };
            CLUSTER_SYNC + larger + most * partial / DSMEM
        }
    };
    // Blocks that read the same rows of B at the same time slow each other down.
    let again = if fused && m_tiles > 1.0 { READ_TWICE } else { 1.0 };
    let output = most * tile.output_bytes() / f64::from(split) / speed.output;
    let bytes = memory_bytes(tile.operands, shape);
    let bytes_read = bytes - 2.0 * f64::from(shape.m) * f64::from(shape.n);
    let prefetch = if tile.m < 64 || tile.n == 64 { L2_PREFETCH } else { L2_PREFETCH_LARGE };
    Cost {
        tensor: waves * steps * (step + resident * multiply),
        memory: bytes * again / bandwidth,
        l2: read / speed.l2,
        feed: (most * steps * tile.stage_bytes() / speed.feed).max(waves * refills),
        output: output + reduction + (waves - 1.0) * 1.76,
        start: speed.start + f64::from(shared) / SHARED,
        us: 0.0,
    }
    .overlapped(8.0)
    .sooner(prefetch + IDLE_MEMORY * (-bytes_read / IDLE_BYTES).exp())
}
