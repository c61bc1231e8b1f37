//! Splitter: W from FP32 to two BF16 parts, in place.
//!
//! The 11 bits of TF32 are the sum of two BF16 numbers: the upper part, the nearest, and the lower part, the remainder.
//! A row's 64 FP32 numbers become a line of upper and a line of lower parts, which the tensor core reads as two
//! columns.

use super::config::{LINE, PRODUCER, SPLITTERS, W_ROW};
use super::cta::Cta;
use oxigemm_ptx::{Bf16x2, F32, Val};

/// Bound that exceeds the remainder of any finite number.
const MAX_REMAINDER: f32 = 1e38;

impl<'k> Cta<'k, '_> {
    /// Splitter warp: the two parts of W over W, half a warp for each row.
    pub fn split_w(&self) {
        let (k, cfg, lane) = (self.k, self.cfg, self.lane);
        let cursor = self.pipeline.reader();
        let row = (self.warp - (PRODUCER + 1)) * 2 + (lane >> 4);
        let nth = lane & 15;
        let from = row * W_ROW + nth * 16;
        // Lines are swizzled in units of 16 bytes, of which four BF16 numbers are half.
        let to = [0, 1].map(|part: u32| {
            let line = row * 2 + part;
            line * LINE + (((nth >> 1) ^ (line & 7)) << 4) + (nth & 1) * 8
        });
        // Rows of the four warps at a time: a whole number of swizzle patterns.
        const ROWS: u32 = SPLITTERS * 2;
        k.for_(self.scheduler.begin, self.scheduler.end, 1, |_| {
            let stage = cursor.stage();
            self.landed(stage).wait(cursor.parity());
            let w = self.w(stage);
            let rows = (0..cfg.columns / ROWS).map(|step| step * ROWS * W_ROW);
            let numbers: Vec<[F32<'k>; 4]> = rows.clone().map(|row| w.at(from).at(row).load_vec()).collect();
            k.sync_warp();
            for (row, numbers) in rows.zip(numbers) {
                for (to, part) in to.into_iter().zip(self.bf16_parts(numbers)) {
                    w.at(to).at(row).store_vec(part);
                }
            }
            k.fence_async_shared();
            k.sync_warp();
            k.guard(lane.eq(0), || self.pipeline.full(stage).arrive());
            cursor.advance();
        });
    }

    /// Upper and lower BF16 parts of four numbers, which are rounded to TF32.
    fn bf16_parts(&self, numbers: [F32<'k>; 4]) -> [[Val<'k, Bf16x2>; 2]; 2] {
        let numbers = numbers.map(|number| number.to_tf32().bitcast::<f32>());
        let pairs = [[numbers[0], numbers[1]], [numbers[2], numbers[3]]];
        let upper = pairs.map(|[a, b]| self.k.pack_bf16(a, b));
        let lower = [0, 1].map(|pair| {
            let (numbers, upper) = (pairs[pair], upper[pair].to_f32());
            // The remainder of an infinite upper part must be finite: `max` and `min` of NaN and a number are the
            // number.
            let remainder = |i: usize| (numbers[i] - upper[i]).max(-MAX_REMAINDER).min(MAX_REMAINDER);
            self.k.pack_bf16(remainder(0), remainder(1))
        });
        [upper, lower]
    }
}
