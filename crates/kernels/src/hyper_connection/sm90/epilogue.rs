//! Epilogue: D and the sums of squares to global memory.

use super::config::QUAD;
use super::cta::Cta;
use crate::hyper_connection::scheduler::Unit;
use oxigemm_ptx::F32;

impl<'k> Cta<'k, '_> {
    /// Stores the values of an output unit.
    pub fn store(&self, unit: &Unit<'k>, values: &[F32<'k>]) {
        let (k, p, lane) = (self.k, &self.scheduler.params, self.lane);
        let (square, products) = values.split_last().expect("a thread has squares");
        let split = p.d.at(unit.split.to_u64() * p.d_split_pitch * 4u64);
        let aligned = (p.d.address() | (p.d_split_pitch * 4u64) | p.d_pitch.widening_mul(4)) & 7u64;
        for lower in 0..2u32 {
            let row = unit.row + self.warp * 16 + (lane >> 2) + lower * 8;
            let column = lane % QUAD * self.cfg.run();
            let to = split.at((row.widening_mul(p.d_pitch) + column.to_u64()) * 4u64);
            let own: Vec<F32> = products.iter().skip(lower as usize).step_by(2).copied().collect();
            let exists = row.lt(p.rows);
            let pairs = || {
                for (nth, pair) in (0u64..).zip(own.as_chunks::<2>().0) {
                    k.guard(exists, || to.at(nth * 8).store_vec(*pair));
                }
            };
            let ones = || {
                for (nth, one) in (0u64..).zip(&own) {
                    k.guard(exists, || to.at(nth * 4).store(*one));
                }
            };
            k.if_else(aligned.eq(0u64), pairs, ones);
        }
        let row = unit.row + self.square_row();
        let to = p.squares.at((unit.split.widening_mul(p.rows) + row.to_u64()) * 4u64);
        k.guard(row.lt(p.rows) & lane.lt(16), || to.store(*square));
    }
}
