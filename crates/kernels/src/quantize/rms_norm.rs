//! RMSNorm with 1x128 block scales of its result.
//!
//! `y = x * weight * (1 / sqrt(mean(x * x) + epsilon))`, all in FP32. A CTA has a row at a time and as many warps as
//! can hold it, while bulk copies of its next rows are in flight; the weights stay in registers. Rows that no CTA can
//! hold are read twice.
//!
//! The order in which squares are added is fixed: those of a `Vec8`, the `Vec8`s of a thread in order, the lanes of a
//! warp as a butterfly, then the warps in pairs, and pairs of pairs. So the result is bitwise the same everywhere.

use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Kernel, MBarrier, Shared, U32, Var};

use super::block_1x128::LaneAmax;
use super::params::{Args, Flags, Launch, Params, by_access};
use super::scale::{Scale, ScaleLayout};
use super::scale_writer::{RUN_LENGTH, ScaleRun};
use super::vec8::{Access, Code, Input, Mask, VEC8, VECTOR_BYTES, Vec8, amax_of, bits, store_codes};
use crate::common::{BLOCK_K, WARP};

/// Most warps of a CTA.
const WARPS: u32 = 16;
/// Most threads of a CTA.
pub const THREADS: u32 = WARPS * WARP;
/// Warps that an SM has registers for.
const RESIDENT_WARPS: u32 = 18;
/// `Vec8`s that a thread holds.
const VECS: u32 = 4;
/// Columns that a warp holds.
const WARP_COLUMNS: u32 = VECS * VEC8 * WARP;
/// Pipeline stages, a row each.
const STAGES: u32 = 2;
/// Bytes of the warps' sums for one row.
const SUM_BYTES: u32 = 4 * WARPS;
/// Offset of the barriers in shared memory, behind the sums of one row and the next.
const BARRIERS_OFFSET: u32 = 2 * SUM_BYTES;
/// Offset of the runs of scales.
const RUNS_OFFSET: u32 = BARRIERS_OFFSET + 128;
/// Offset of the rows in flight.
const ROWS_OFFSET: u32 = RUNS_OFFSET + THREADS / LANES * VECS * ScaleRun::BYTES;
/// Lanes of a 1x128 block.
const LANES: u32 = BLOCK_K / VEC8;

/// Warps for a row of some columns: as many as can hold it, or all.
pub fn warps(columns: u32) -> u32 {
    columns.div_ceil(WARP_COLUMNS).clamp(1, WARPS)
}

/// Configuration of the kernel. The output is e4m3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Type of the input and of the weights.
    pub input: Input,
}

impl Config {
    pub(super) fn name(&self) -> String {
        format!("quantize_1x128_rmsnorm_{}_e4m3", self.input.name())
    }

    /// Launch shape on `sms` SMs, and its arguments.
    pub fn launch(&self, args: &Args, sms: u32) -> (Launch, Args) {
        let [rows, columns] = [args.scale_dims[0], args.dims[1]];
        let warps = warps(columns);
        let row_bytes = warps * WARP_COLUMNS * self.input.bytes();
        let ctas = rows.min(sms * (RESIDENT_WARPS / warps));
        let [row, four, one] = args.scale_strides;
        let vectors = (args.scales | u64::from(four | one)).is_multiple_of(u64::from(VECTOR_BYTES));
        let runs = row == 4 && vectors && args.flags & (Flags::BYTES | Flags::BLOCKED) == 0;
        let (most, least) = (args.dims[0].div_ceil(ctas), args.dims[0] / ctas);
        // A CTA's only row is in registers.
        let shared_bytes = if most <= 1 { BARRIERS_OFFSET } else { ROWS_OFFSET + STAGES * row_bytes };
        let args = Args {
            shifts: [most, if runs { least / RUN_LENGTH * RUN_LENGTH } else { 0 }],
            source_rows: args.dims[0] - least * ctas,
            aux_strides: [warps * WARP * VEC8, row_bytes, (1.0 / columns as f32).to_bits()],
            ..*args
        };
        (Launch { grid: [ctas, 1], threads: warps * WARP, shared_bytes }, args)
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        let row = Row::of(p);
        let held = p.has(Flags::VECTORS) & p.columns.le(row.step_columns * VECS);
        k.if_else(
            held,
            || self.held_rows(k, p, &row),
            || by_access(k, p, |access| self.long_rows(k, p, &row, access)),
        );
    }

    /// Rows that a CTA can hold.
    fn held_rows<'k>(&self, k: &'k Kernel, p: &Params<'k>, row: &Row<'k>) {
        // The single row first, so that its instructions follow these.
        let single = || k.if_(k.block_index(0).lt(p.rows), || self.single_row(k, p, row, k.block_index(0)));
        k.if_else(p.shifts()[0].le(1), single, || self.pipelined_rows(k, p, row, &RowSchedule::of(k, p)));
        store_padding(k, p, row);
    }

    /// The single row of a CTA: loads arrive sooner than bulk copies.
    fn single_row<'k>(&self, k: &'k Kernel, p: &Params<'k>, row: &Row<'k>, index: U32<'k>) {
        let load = |column| self.load(k, p, Access::Vectors, index, column);
        let fragments: Vec<Fragment> = row.columns(k).map(load).collect();
        let weights: Vec<_> =
            row.columns(k).map(|column| self.weights(k, p, Access::Vectors, column)).collect();
        let sum = sum_of_squares(&fragments);
        let weighted = Weighted::new(k, fragments, &weights);
        let sum = row.cta_sum(k, k.var(0u32), sum);
        OutputRow { index, factor: factor(p, sum), run: None }.store(k, p, row, weighted);
    }

    /// Rows in turn, while bulk copies of the next are in flight.
    fn pipelined_rows<'k>(&self, k: &'k Kernel, p: &Params<'k>, row: &Row<'k>, schedule: &RowSchedule<'k>) {
        let stages = Stages { k, p, bytes: self.input.bytes(), pitch: p.aux_strides()[1] };
        let leads = k.thread_index().eq(0);
        k.if_(leads, || stages.begin(schedule));
        k.sync_warp();
        let columns: Vec<U32> = row.columns(k).collect();
        let weights: Vec<_> = columns.iter().map(|at| self.weights(k, p, Access::Vectors, *at)).collect();
        // The padding of a row stays 0.
        for column in &columns {
            for stage in 0..STAGES {
                for at in self.vectors(stages.row(k.constant(stage)), *column) {
                    k.guard(column.ge(p.columns), || at.store_vec([k.constant(0u32); 4]));
                }
            }
        }
        k.sync_threads();

        let (sums, stage, parity) = (k.var(0u32), k.var(0u32), k.var(0u32));
        k.for_(0, schedule.count, 1, |step| {
            let index = schedule.row(step);
            let now = stage.get();
            stages.barrier(now).wait(parity.get());
            let fragment = |column: &U32<'k>| Fragment {
                column: *column,
                mask: Mask::Vector { inside: column.lt(p.columns) },
                values: Vec8::from_shared(k, self.input, self.vectors(stages.row(now), *column)).values(),
            };
            let fragments: Vec<Fragment> = columns.iter().map(fragment).collect();
            let sum = sum_of_squares(&fragments);
            let weighted = Weighted::new(k, fragments, &weights);
            let sum = row.cta_sum(k, sums, sum);
            // Behind the CTA's barrier: all threads have read.
            k.if_(leads, || stages.copy(schedule, step + STAGES, now));
            k.sync_warp();
            let last = now.eq(STAGES - 1);
            stage.set(last.select(0u32, now + 1));
            parity.set_if(last, parity.live() ^ 1);
            let run = Some([step, schedule.in_runs]);
            OutputRow { index, factor: factor(p, sum), run }.store(k, p, row, weighted);
        });
    }

    /// Rows of any length, read twice.
    fn long_rows<'k>(&self, k: &'k Kernel, p: &Params<'k>, row: &Row<'k>, access: Access) {
        let [scale_rows, scale_columns] = p.scale_dims();
        let sums = k.var(0u32);
        k.for_(k.block_index(0), scale_rows, k.grid_blocks(0), |index| {
            let load = |column| self.load(k, p, access, index, column);
            let held: Vec<_> = row.columns(k).map(load).collect();
            let sum = k.var_from(sum_of_squares(&held));
            let rest = held[0].column + row.step_columns * VECS;
            k.for_(rest, p.columns, row.step_columns, |column| sum.set(sum.live() + load(column).squares()));
            let weights: Vec<_> = row.columns(k).map(|column| self.weights(k, p, access, column)).collect();
            let weighted = Weighted::new(k, held, &weights);
            let factor = factor(p, row.cta_sum(k, sums, sum.get()));
            let output = OutputRow { index, factor, run: None };
            output.store(k, p, row, weighted);
            // Full steps, so that no warp diverges; they cover the padding of the scale layout.
            let end = (scale_columns * BLOCK_K).div_ceil(row.step_columns) * row.step_columns;
            k.for_(rest, end, row.step_columns, |column| {
                let weights = self.weights(k, p, access, column);
                let weighted = Weighted::new(k, vec![load(column)], &[weights]);
                output.store(k, p, row, weighted);
            });
        });
    }

    /// Vectors of a `Vec8` in a row of shared memory.
    fn vectors<'k>(&self, row: Shared<'k>, column: U32<'k>) -> impl Iterator<Item = Shared<'k>> {
        let first = row.at(column * self.input.bytes());
        (0..self.input.vectors()).map(move |vector| first.at(vector * VECTOR_BYTES))
    }

    #[track_caller]
    fn weights<'k>(&self, k: &'k Kernel, p: &Params<'k>, access: Access, column: U32<'k>) -> Vec<F32<'k>> {
        let mask = Mask::of(access, k.constant(true), column, p.columns);
        let at = p.aux.at(column.widening_mul(self.input.bytes()));
        Vec8::load(k, self.input, at, &mask, None).values()
    }

    #[track_caller]
    fn load<'k>(
        &self,
        k: &'k Kernel,
        p: &Params<'k>,
        access: Access,
        row: U32<'k>,
        column: U32<'k>,
    ) -> Fragment<'k> {
        let mask = Mask::of(access, row.lt(p.rows), column, p.columns);
        let x =
            Vec8::load(k, self.input, p.x_at(row, column, self.input.bytes()), &mask, Some(p.evict_first));
        Fragment { column, mask, values: x.values() }
    }
}

/// Output row: its index, its factor, and its step among the rows of a CTA that are in runs, if there are any.
struct OutputRow<'k> {
    index: U32<'k>,
    factor: F32<'k>,
    /// The step, and the steps that belong to runs.
    run: Option<[U32<'k>; 2]>,
}

impl<'k> OutputRow<'k> {
    /// Normalizes, quantizes and stores the fragments of a thread.
    fn store(&self, k: &'k Kernel, p: &Params<'k>, row: &Row<'k>, weighted: Weighted<'k>) {
        let &OutputRow { index, factor, run } = self;
        let Weighted { fragments, amaxes } = weighted;
        // Rounding is monotonic, so the amax of the products is the product of the amax.
        let scales = amaxes
            .scales(|amax| Scale::of(p, Code::E4m3, bits(amax.bitcast::<f32>() * factor)).bits_and_factor());
        let codes = p.codes_at(index, fragments[0].column, Code::E4m3);
        for (i, fragment) in (0..).zip(&fragments) {
            let block_factor = scales.factor(k, i);
            let scaled: Vec<F32> =
                fragment.values.iter().map(|value| *value * factor * block_factor).collect();
            let at = codes.at((row.step_columns * i).to_u64());
            store_codes(k, &Code::E4m3.encode(k, &scaled), at, &fragment.mask, p.evict_last);
        }
        let layout = ScaleLayout::new(p);
        let [_, scale_columns] = p.scale_dims();
        for (vec, scale, is_owner) in scales.owned(k) {
            let block = (fragments[0].column + vec * row.step_columns) / BLOCK_K;
            let at = p.scales.at(layout.offset(index, block));
            let real = index.lt(p.rows) & (block * BLOCK_K).lt(p.columns);
            let (scale, wanted) = (real.select(scale, 0u32), is_owner & block.lt(scale_columns));
            let alone = || layout.store(k, at, scale.bitcast(), wanted);
            let Some([step, in_runs]) = run else {
                alone();
                continue;
            };
            let slot = k.thread_index() / LANES * VECS + vec;
            let staged = ScaleRun(k.dynamic_shared().at(RUNS_OFFSET).at(slot * ScaleRun::BYTES));
            let in_run = || {
                k.guard(is_owner, || staged.stage(index, scale));
                k.if_((step % RUN_LENGTH).eq(RUN_LENGTH - 1), || {
                    let at = p.scales.at(layout.offset(index - (RUN_LENGTH - 1), block));
                    staged.store(k, at, wanted, None);
                });
            };
            k.if_else(step.lt(in_runs), in_run, alone);
        }
    }
}

/// Split of a row over the threads of a CTA.
struct Row<'k> {
    /// Columns of one `Vec8` of each thread.
    step_columns: U32<'k>,
}

impl<'k> Row<'k> {
    fn of(p: &Params<'k>) -> Row<'k> {
        Row { step_columns: p.aux_strides()[0] }
    }

    /// Columns of the `Vec8`s that a thread holds.
    fn columns(&self, k: &'k Kernel) -> impl Iterator<Item = U32<'k>> {
        (0..VECS).map(|i| k.thread_index() * VEC8 + self.step_columns * i)
    }

    /// Sum over all threads of a CTA, in all of them. Two buffers alternate (`offset`), so that one barrier is enough.
    #[track_caller]
    fn cta_sum(&self, k: &'k Kernel, offset: Var<'k, u32>, value: F32<'k>) -> F32<'k> {
        let shared = k.dynamic_shared().at(offset.get());
        offset.set(offset.live() ^ SUM_BYTES);
        let steps = (0..WARP.trailing_zeros()).map(|bit| 1u32 << bit);
        let of_warp = steps.fold(value, |sum, step| sum + k.shuffle(Shuffle::Xor, sum, step));
        // The lanes of the last warp store zeros for the warps that the CTA does not have.
        let (lane, warp) = (k.lane(), k.thread_index() / WARP);
        let (first, index) = (lane.eq(0), warp + lane);
        let missing = ((warp + 1) * (WARP * VEC8)).eq(self.step_columns) & index.lt(WARPS);
        k.guard(first | missing, || shared.at(index * 4).store(first.select(of_warp, 0f32)));
        k.sync_threads();
        let of_warps = |vectors: std::ops::Range<u32>| {
            pairwise_sum(vectors.flat_map(move |i| shared.at(16 * i).load_vec::<f32, 4>()).collect())
        };
        let sum = k.var_from(of_warps(0..WARPS / 8));
        // Usual CTAs have no more warps than these.
        k.if_(self.step_columns.gt(THREADS / 2 * VEC8), || {
            sum.set(sum.live() + of_warps(WARPS / 8..WARPS / 4));
        });
        sum.get()
    }
}

/// Rows of a CTA. Where scales are stored in runs, a CTA has runs of neighbouring rows, as long as every CTA has a full
/// one; the rest, and all rows elsewhere, are interleaved over the CTAs.
struct RowSchedule<'k> {
    cta: U32<'k>,
    ctas: U32<'k>,
    /// Rows that belong to runs.
    in_runs: U32<'k>,
    /// All rows.
    count: U32<'k>,
}

impl<'k> RowSchedule<'k> {
    fn of(k: &'k Kernel, p: &Params<'k>) -> RowSchedule<'k> {
        let (cta, ctas) = (k.block_index(0), k.grid_blocks(0));
        let [most, in_runs] = p.shifts();
        // Where the rows do not divide evenly, the first CTAs have one more.
        let less = p.source_rows.ne(0) & cta.ge(p.source_rows);
        let count = most - less.select(1u32, 0u32);
        RowSchedule { cta, ctas, in_runs, count }
    }

    fn row(&self, step: U32<'k>) -> U32<'k> {
        let of_run = step % RUN_LENGTH;
        let in_run = (step - of_run) * self.ctas + self.cta * RUN_LENGTH + of_run;
        step.lt(self.in_runs).select(in_run, step * self.ctas + self.cta)
    }
}

/// Pipeline of bulk copies, a row for each stage.
struct Stages<'a, 'k> {
    k: &'k Kernel,
    p: &'a Params<'k>,
    /// Bytes of an element.
    bytes: u32,
    /// Pitch of rows in shared memory, in bytes.
    pitch: U32<'k>,
}

impl<'k> Stages<'_, 'k> {
    fn barrier(&self, stage: U32<'k>) -> MBarrier<'k> {
        MBarrier(self.k.dynamic_shared().at(BARRIERS_OFFSET).at(stage * MBarrier::BYTES))
    }

    fn row(&self, stage: U32<'k>) -> Shared<'k> {
        self.k.dynamic_shared().at(ROWS_OFFSET).at(stage * self.pitch)
    }

    /// Initializes the barriers and issues the first copies; one thread.
    fn begin(&self, schedule: &RowSchedule<'k>) {
        let stages = || (0..STAGES).map(|stage| self.k.constant(stage));
        stages().for_each(|stage| self.barrier(stage).init(1));
        self.k.fence_barrier_init();
        stages().for_each(|stage| self.copy(schedule, stage, stage));
    }

    /// Issues the copy of a step's row, if there is one; one thread.
    fn copy(&self, schedule: &RowSchedule<'k>, step: U32<'k>, stage: U32<'k>) {
        let bytes = self.p.columns * self.bytes;
        self.k.if_(step.lt(schedule.count), || {
            self.barrier(stage).arrive_expecting(bytes);
            let x = self.p.x_at(schedule.row(step), self.k.constant(0), self.bytes);
            self.row(stage).bulk_load_by(x, bytes, self.barrier(stage), Some(self.p.evict_first));
        });
    }
}

/// `Vec8` of a thread in FP32, its column and its mask.
struct Fragment<'k> {
    column: U32<'k>,
    mask: Mask<'k>,
    values: Vec<F32<'k>>,
}

impl<'k> Fragment<'k> {
    /// Sum of squares.
    #[track_caller]
    fn squares(&self) -> F32<'k> {
        let (first, others) = self.values.split_first().expect("there are numbers");
        others.iter().fold(*first * *first, |sum, value| value.fma(*value, sum))
    }
}

/// Sum of squares of a thread.
#[track_caller]
fn sum_of_squares<'k>(fragments: &[Fragment<'k>]) -> F32<'k> {
    fragments.iter().map(Fragment::squares).reduce(|a, b| a + b).expect("there are fragments")
}

/// Pairwise sum of as many numbers as a power of two.
#[track_caller]
fn pairwise_sum(numbers: Vec<F32<'_>>) -> F32<'_> {
    match numbers[..] {
        [only] => only,
        _ => pairwise_sum(numbers.chunks(2).map(|pair| pair[0] + pair[1]).collect()),
    }
}

/// Fragments of a thread times the weights, and their amax.
struct Weighted<'k> {
    fragments: Vec<Fragment<'k>>,
    amaxes: LaneAmax<'k>,
}

impl<'k> Weighted<'k> {
    #[track_caller]
    fn new(k: &'k Kernel, fragments: Vec<Fragment<'k>>, weights: &[Vec<F32<'k>>]) -> Weighted<'k> {
        let weigh = |(fragment, weights): (Fragment<'k>, &Vec<F32<'k>>)| {
            let pairs = fragment.values.iter().zip(weights);
            Fragment { values: pairs.map(|(value, weight)| *value * *weight).collect(), ..fragment }
        };
        let fragments: Vec<Fragment> = fragments.into_iter().zip(weights).map(weigh).collect();
        let words = fragments.iter().map(|fragment| amax_of(&fragment.values)).collect();
        Weighted { amaxes: LaneAmax::new(k, LANES, Input::F32, words), fragments }
    }
}

/// `1 / sqrt(mean + epsilon)` from the sum of squares; NaN where that is infinite. (Infinity times 0 is NaN, and the
/// amax of the products would not be the product of the amax.)
#[track_caller]
fn factor<'k>(p: &Params<'k>, sum: F32<'k>) -> F32<'k> {
    let per_column: F32 = p.aux_strides()[2].bitcast();
    let factor = (sum * per_column + p.epsilon).sqrt().reciprocal();
    // A finite factor does not change.
    factor.fma(0.0, factor)
}

/// Stores zeros to the padding rows of the scale layout.
fn store_padding<'k>(k: &'k Kernel, p: &Params<'k>, row: &Row<'k>) {
    let layout = ScaleLayout::new(p);
    let [scale_rows, scale_columns] = p.scale_dims();
    k.for_(p.rows + k.block_index(0), scale_rows, k.grid_blocks(0), |index| {
        k.for_(k.thread_index(), scale_columns, row.step_columns / VEC8, |block| {
            let at = p.scales.at(layout.offset(index, block));
            layout.store(k, at, k.constant(0f32), k.constant(true));
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cta_has_the_warps_that_hold_a_row() {
        assert_eq!([8, 1024, 1032, 7168, 16384, 20000].map(warps), [1, 1, 2, 7, 16, 16]);
    }

    #[test]
    fn scales_are_stored_in_runs_where_they_are_vectors() {
        let runs = |[row, one]: [u32; 2], scales| {
            let (dims, scale_dims) = ([4736, 7168], [4736, 56]);
            let args =
                Args { dims, scale_dims, scales, scale_strides: [row, 4 * one, one], ..Args::default() };
            let (_, args) = Config { input: Input::Bf16 }.launch(&args, 132);
            args.shifts[1] != 0
        };
        assert!(runs([4, 4 * 4736], 256));
        assert!(!runs([224, 4], 256), "along a row");
        assert!(!runs([4, 4 * 4737], 256), "columns are no vectors");
        assert!(!runs([4, 4 * 4736], 260), "the first is none");
    }
}
