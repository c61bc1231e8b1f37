//! Converters of the persistent FP8 by MXFP4 kernel: warpgroups that widen packed codes to tiles of e4m3.
//!
//! A lane has a row of B in each 128 of them: it reads the row's 64 bytes in four loads, one for each scale, and writes
//! 128 bytes, in the swizzle that `wgmma` reads. Loads and stores of eight neighbouring lanes fall into all banks.

use super::Block;
use super::config::{CODE_LINE, ROW_SCALE_BYTES, ROWS_AT_ONCE};
use super::scales::{B_WARPS, FOLDED};
use super::widen::{Applied, Table, byte};
use crate::common::{BLOCK_K, WARP};
use crate::gemm::operand::fp8::SCALE_K;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::sm90::warpgroups::MATH_WARPS;
use oxigemm_ptx::{Shared, U32};

/// The first converter warp, behind the producers' warpgroup, and how many of them take a stage.
pub(super) const CONVERTER_WARP: u32 = MATH_WARPS + 4;
pub(super) const STAGE_WARPS: u32 = 4;

/// Scales of a row in a stage, and bytes of the codes that share one.
const STEPS: u32 = BLOCK_K / SCALE_K;
const STEP_BYTES: u32 = SCALE_K / 2;
/// Bytes that a swizzle moves together.
const CHUNK: u32 = 16;

impl<'k> Block<'k, '_> {
    /// Converter: widens stage after stage, or every second where there are two converter warpgroups.
    pub(super) fn convert(&self) {
        let k = self.k;
        let warp = self.warp - CONVERTER_WARP;
        let row = (warp & (STAGE_WARPS - 1)) * WARP + self.lane;
        let (stages, tiles) = (self.pipe.reader(), self.wide.writer());
        let convert_stage = || {
            stages.wait_full();
            tiles.wait_empty();
            for subtile in 0..self.cfg.subtiles() {
                self.convert_row(subtile, row, [stages.stage(), tiles.stage()]);
            }
            // The tensor core reads what this warp has written.
            k.fence_async_shared();
            k.sync_warp();
            let full = self.wide.full(tiles.stage());
            k.guard(self.lane.eq(0), || full.arrive());
        };
        // Whether the next stage is that of the other warpgroup.
        let others = k.var_from(warp.ge(STAGE_WARPS));
        let convert_tile = || {
            k.for_(0, self.params.k_blocks, 1, |_| {
                match self.cfg.converter_warpgroups() {
                    1 => convert_stage(),
                    _ => {
                        k.if_(!others.get(), convert_stage);
                        others.set(!others.live());
                    }
                }
                stages.advance();
                tiles.advance();
            });
        };
        match self.cfg.grouping {
            Grouping::Dense => self.scheduler.for_each_dense_tile(k, |_, _| convert_tile()),
            Grouping::Rows => self.scheduler.for_each_index(k, |_| convert_tile()),
            Grouping::K => unreachable!("no such kernel is in the set"),
        }
    }

    /// Widens a row of a subtile, as the scale producers decided for its 64 rows.
    fn convert_row(&self, subtile: u32, row: U32<'k>, [stage, tile]: [U32<'k>; 2]) {
        let (k, scales, [of_b, applied, _]) = (self.k, self.scales(stage), self.cfg.scale_map());
        let row = row + subtile * ROWS_AT_ONCE;
        let how = scales.at(applied).at((row >> 6) * 4).load::<u32>();
        let word = scales.at(of_b).at(row * ROW_SCALE_BYTES).load::<u32>();
        // 64-byte swizzle: two rows share a line of 128 bytes, and lines permute chunks.
        let from = self.codes(stage).at(row * CODE_LINE).address() + ((row >> 1) & (STEPS - 1)) * CHUNK;
        let to = self.wide_tile(tile).at(row * BLOCK_K).address() + (row & 7) * CHUNK;
        let widen = |fold: &dyn Fn(u32) -> U32<'k>| {
            // Of all steps first: loads take as long as what follows them.
            let codes: Vec<[U32<'k>; 4]> =
                (0..STEPS).map(|step| Shared::new(from ^ (step * STEP_BYTES)).load_vec()).collect();
            for (step, codes) in (0u32..).zip(codes) {
                let table = Table::new(fold(step));
                for (half, codes) in (0u32..).zip(codes.as_chunks::<2>().0) {
                    let [[a, b], [c, d]] = codes.map(|codes| table.widen(codes));
                    Shared::new(to ^ ((2 * step + half) * CHUNK)).store_vec([a, b, c, d]);
                }
            }
        };
        k.if_else(
            how.eq(FOLDED),
            || widen(&|step| byte(k, word, step)),
            || widen(&|step| Applied::of_one(byte(k, word, step)).folds),
        );
    }
}

const _: () = assert!(STAGE_WARPS * WARP == ROWS_AT_ONCE && B_WARPS * 64 == ROWS_AT_ONCE);
