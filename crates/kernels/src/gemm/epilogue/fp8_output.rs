//! Quantized output: D in e4m3 with 1x128 scales, as the next GEMM reads it.
//!
//! The rule is that of the casts: the largest magnitude of a row's 128 columns, and no less than 1e-4, divided by 448
//! is the scale, or the next power of two; an element becomes the code nearest to `x * (1 / scale)`. So a warpgroup
//! must have 128 columns. One that computes fewer at a time keeps what it has in its staging area, each thread its own,
//! and quantizes all of them with the last pass.

use super::fusion::{EpilogueFlags, EpilogueParams, SCALED_COLUMNS};
use super::{OutputParams, PANEL_BYTES, Panels, ROW_BYTES, WARP_BYTES, WARP_ROWS, chunk_offset};
use crate::common::pipeline::Pipeline;
use crate::common::{WARP, WARPGROUP};
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Fp8, Global, Kernel, Shared, U32, Var};

/// The smallest magnitude that a scale is made for.
pub(super) const SMALLEST: f32 = 1e-4;
/// The largest e4m3 number.
const LARGEST: f32 = 448.0;

/// A warp's rows of D on their way to e4m3.
#[derive(Clone, Copy)]
pub(crate) struct QuantizedOutput<'k, 'p> {
    pub k: &'k Kernel,
    pub params: &'p EpilogueParams<'k>,
    pub output: &'p OutputParams<'k>,
    /// The warpgroup's staging area, aligned to 1024.
    pub staging: Shared<'k>,
    /// The staging areas of the warpgroups, each a stage of a ring: `full` when it holds a tile's output.
    pub ring: Pipeline<'k>,
    pub warpgroup: U32<'k>,
    /// Which of the warpgroup's four warps.
    pub warp: U32<'k>,
    pub lane: U32<'k>,
}

impl<'k> QuantizedOutput<'k, '_> {
    /// Bytes of the staging area of a warpgroup that computes this many times 64 rows of `columns` columns at a time.
    pub const fn staging_bytes(m_subtiles: u32, columns: u32) -> u32 {
        let kept = (passes(columns) - 1) * kept_values(m_subtiles, columns) * WARPGROUP * 4;
        if kept > m_subtiles * PANEL_BYTES { kept } else { m_subtiles * PANEL_BYTES }
    }

    /// Where a thread keeps its values of a pass.
    fn kept_at(&self, pass: U32<'k>, values: u32) -> Shared<'k> {
        let thread = self.warp * WARP + self.lane;
        self.staging.at(thread * 4).at(pass * (values * WARPGROUP * 4))
    }

    /// Keeps what the warp has computed of each 64 rows in a pass, or with the last pass stages all of it in `panels`,
    /// for TMA. Of panels that rows of another group follow in from `end` on, the lanes store what lies before.
    /// `parity` is that of the warpgroup's staging area, which begins as a producer's.
    pub fn write(
        &self,
        m_subtiles: &[&[Var<'k, f32>]],
        (pass, end): (Option<U32<'k>>, Option<U32<'k>>),
        panels: impl FnOnce() -> Vec<Panels<'k>>,
        parity: Var<'k, u32>,
    ) {
        let (k, passes) = (self.k, passes(m_subtiles[0].len() as u32 * 2));
        let pass = pass.unwrap_or_else(|| k.constant(0));
        k.if_(pass.eq(0), || self.ring.empty(self.warpgroup).wait(parity.get()));
        let finish = || {
            let values = self.complete(m_subtiles);
            if passes > 1 {
                // Panels lie where other warps keep their values.
                k.barrier_sync(self.warpgroup + 1, WARPGROUP);
            }
            let panels = panels();
            panels.iter().zip(&values).for_each(|(panel, values)| self.rows().stage(panel, values));
            let commit = || self.ring.commit(self.warpgroup, self.lane, parity);
            let store_within = |end| panels.iter().for_each(|panel| self.rows().store_within(panel, end));
            match end {
                None => commit(),
                Some(end) if passes > 1 => {
                    // Before it is committed: what others keep next may lie in this warp's rows.
                    k.sync_warp();
                    store_within(end);
                    commit();
                }
                Some(end) => {
                    commit();
                    store_within(end);
                }
            }
        };
        match passes {
            1 => finish(),
            _ => k.if_else(pass.eq(passes - 1), finish, || self.keep(pass, m_subtiles)),
        }
    }

    /// Keeps what was computed in a pass: values of each 64 rows.
    fn keep(&self, pass: U32<'k>, m_subtiles: &[&[Var<'k, f32>]]) {
        let values: Vec<_> = m_subtiles.iter().flat_map(|values| values.iter()).collect();
        let to = self.kept_at(pass, values.len() as u32);
        for (i, value) in (0u32..).zip(values) {
            to.at(i * WARPGROUP * 4).store(value.live());
        }
    }

    /// The values of all passes of each 64 rows, of which those of the last are given.
    fn complete(&self, last: &[&[Var<'k, f32>]]) -> Vec<Vec<F32<'k>>> {
        let each = last[0].len();
        let passes = SCALED_COLUMNS as usize / 2 / each;
        let load = |pass: usize, subtile: usize| {
            let from = self.kept_at(self.k.constant(pass as u32), (last.len() * each) as u32);
            (0..each).map(move |i| from.at((subtile * each + i) as u32 * WARPGROUP * 4).load::<f32>())
        };
        let m_subtiles = last.iter().enumerate().map(|(subtile, last)| {
            let kept = (0..passes - 1).flat_map(|pass| load(pass, subtile));
            kept.chain(last.iter().map(|value| value.live())).collect()
        });
        m_subtiles.collect()
    }

    fn rows(&self) -> QuantizedRows<'k, '_> {
        let QuantizedOutput { k, params, output, warp, lane, .. } = *self;
        QuantizedRows { k, params, output, warp, lane }
    }
}

/// Rows of one of the four warps that hold 64 rows of a tile, in e4m3.
#[derive(Clone, Copy)]
pub(crate) struct QuantizedRows<'k, 'p> {
    pub k: &'k Kernel,
    pub params: &'p EpilogueParams<'k>,
    pub output: &'p OutputParams<'k>,
    /// Which of the four warps.
    pub warp: U32<'k>,
    pub lane: U32<'k>,
}

impl<'k> QuantizedRows<'k, '_> {
    /// Stages 128 columns of the warp's rows in a panel, and stores their scales.
    pub fn stage(&self, place: &Panels<'k>, values: &[F32<'k>]) {
        let k = self.k;
        let row = self.lane >> 2;
        let staged = StagedFp8::new(k, place.staging, row, [self.warp, self.lane]);
        for (half, below) in [(0, 0), (2, 8)] {
            let octets: Vec<[F32<'k>; 2]> =
                values.chunks(4).map(|octet| [octet[half], octet[half + 1]]).collect();
            let scale = self.scale(&octets);
            self.store_scale([place.row + self.warp * WARP_ROWS + row + below, place.column], scale);
            let factor = k.constant(1.0f32).divide(scale);
            for (chunk, octets) in octets.chunks(2).enumerate() {
                staged.store(k, (below, chunk), octets, factor);
            }
        }
    }

    /// The scale of a row, of which four lanes have a part each.
    fn scale(&self, octets: &[[F32<'k>; 2]]) -> F32<'k> {
        let k = self.k;
        let values = octets.iter().flatten();
        let mut largest = values.fold(k.constant(SMALLEST), |largest, x| largest.max_nan(x.abs()));
        for distance in [1, 2] {
            largest = largest.max_nan(k.shuffle(Shuffle::Xor, largest, distance));
        }
        scale_of(self.params, largest)
    }

    fn store_scale(&self, [row, column]: [U32<'k>; 2], scale: F32<'k>) {
        let to = scale_at(self.params, [row, column]);
        let exists = row.lt(self.output.rows) & column.lt(self.output.columns) & (self.lane & 3).eq(0);
        self.k.guard(exists, || to.store(scale));
    }

    /// Stores a warp's rows before `end` of a staged panel by its lanes, where TMA may not, because rows of another
    /// group follow. The warp has synchronized since it staged.
    pub fn store_within(&self, place: &Panels<'k>, end: U32<'k>) {
        self.k.if_(!place.is_before(end), || {
            self.copy(place, end, ROW_BYTES, [place.column, self.output.columns])
        });
    }

    /// Copies the warp's rows before `end` of a staged panel to D, so many bytes of each; in bytes, the first column and
    /// all columns of D are given. The warp has synchronized since it staged.
    pub fn copy(&self, place: &Panels<'k>, end: U32<'k>, bytes: u32, [first_column, columns]: [U32<'k>; 2]) {
        let (k, p) = (self.k, self.output);
        let chunks = bytes / 16;
        let rows = place.staging.at(self.warp * WARP_BYTES);
        for index in (0..WARP_ROWS * chunks).step_by(WARP as usize) {
            let index = self.lane + index;
            let (row, chunk) = (index / chunks, index % chunks);
            let words = rows.at(chunk_offset(row, chunk)).load_vec::<u32, 4>();
            let (row, column) = (place.row + self.warp * WARP_ROWS + row, first_column + chunk * 16);
            let to = p.d.at(row.widening_mul(p.d_pitch) + column.to_u64());
            k.guard(row.lt(end) & column.lt(columns), || to.store_vec(words));
        }
    }
}

/// Where a lane stages words of e4m3 codes in a warp's rows of a panel.
pub(super) struct StagedFp8<'k> {
    /// A word of each 16 columns.
    chunks: Vec<Shared<'k>>,
    selector: U32<'k>,
}

impl<'k> StagedFp8<'k> {
    pub fn new(k: &'k Kernel, panel: Shared<'k>, row: U32<'k>, [warp, lane]: [U32<'k>; 2]) -> Self {
        // Of two octets, an even lane stores a word of the first and an odd one of the second, so that each has a word:
        // its own two codes and those of its neighbour.
        let (odd, word) = ((lane & 1).ne(0), (lane & 1) * 8 + (lane & 2) * 2);
        let selector: U32<'k> = odd.select(0x3276, 0x5410);
        let rows = panel.at(warp * WARP_BYTES).at(word);
        let chunks = (0..ROW_BYTES / 16).map(|chunk| rows.at(chunk_offset(row, k.constant(chunk)))).collect();
        StagedFp8 { chunks, selector }
    }

    /// Stages the lane's numbers of two octets, times a factor, so many rows below the first.
    pub fn store(
        &self,
        k: &'k Kernel,
        (below, chunk): (u32, usize),
        octets: &[[F32<'k>; 2]],
        factor: F32<'k>,
    ) {
        let codes = |[a, b]: [F32<'k>; 2]| k.pack_fp8(Fp8::E4m3, a * factor, b * factor);
        let own = k.join_halves(codes(octets[0]), codes(octets[1]));
        let other = k.shuffle(Shuffle::Xor, own, 1);
        self.chunks[chunk].at(below * ROW_BYTES).store(own.permute_bytes(other, self.selector));
    }
}

/// The scale of 128 columns of a row whose largest magnitude is this.
pub(super) fn scale_of<'k>(params: &EpilogueParams<'k>, largest: F32<'k>) -> F32<'k> {
    let scale = largest.divide(LARGEST);
    let bits = scale.bitcast::<u32>();
    let exponent = (bits >> 23) + (bits & 0x7f_ffff).ne(0).select::<u32>(1, 0);
    let power = (exponent.max(1).min(254) << 23).bitcast::<f32>();
    params.has(EpilogueFlags::POWERS_OF_TWO).select(power, scale)
}

/// Where the scale of the 128 columns of a row that begin at this place lies.
pub(super) fn scale_at<'k>(params: &EpilogueParams<'k>, [row, column]: [U32<'k>; 2]) -> Global<'k> {
    let [stride_m, stride_n] = params.scale_strides;
    let row = params.scales_row.map_or(row, |first| row - first);
    let index = row.widening_mul(stride_m) + (column / SCALED_COLUMNS).widening_mul(stride_n);
    params.scales.at(index << 2)
}

/// Panels of a part of a tile in the warpgroup's staging area: M-subtiles, so many rows apart, of the columns of all
/// passes, of which the last has `columns` and begins at this row and column.
pub(crate) fn panels<'k>(
    staging: Shared<'k>,
    (m_subtiles, stride, columns): (u32, u32, u32),
    [row, column]: [U32<'k>; 2],
) -> Vec<Panels<'k>> {
    let column = column - (passes(columns) - 1) * columns;
    let panel =
        |subtile| Panels { row: row + subtile * stride, column, staging: staging.at(subtile * PANEL_BYTES) };
    (0..m_subtiles).map(panel).collect()
}

/// Passes of a warpgroup that computes `columns` columns at a time, for 128.
pub(crate) const fn passes(columns: u32) -> u32 {
    SCALED_COLUMNS / columns
}

/// Values of a thread in a pass.
const fn kept_values(m_subtiles: u32, columns: u32) -> u32 {
    m_subtiles * columns / 2
}
