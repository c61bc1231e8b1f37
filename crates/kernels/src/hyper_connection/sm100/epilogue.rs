//! Epilogue: D and the sums of squares to global memory.

use super::Cta;
use crate::hyper_connection::scheduler::Unit;
use oxigemm_ptx::F32;

impl<'k> Cta<'k, '_> {
    /// Stores this thread's row of an output unit.
    pub(super) fn store(&self, unit: &Unit<'k>, values: &[F32<'k>]) {
        let (k, p) = (self.k, &self.scheduler.params);
        let (square, products) = values.split_last().expect("a thread has squares");
        let row = unit.row + self.row();
        let exists = row.lt(p.rows);
        let split = p.d.at(unit.split.to_u64() * p.d_split_pitch * 4u64);
        let to = split.at(row.widening_mul(p.d_pitch) * 4u64);
        let aligned = (p.d.address() | (p.d_split_pitch * 4u64) | p.d_pitch.widening_mul(4)) & 15u64;
        let fours = || {
            for (nth, four) in (0u64..).zip(products.as_chunks::<4>().0) {
                k.guard(exists, || to.at(nth * 16).store_vec(*four));
            }
        };
        let ones = || {
            for (nth, one) in (0u64..).zip(products) {
                k.guard(exists, || to.at(nth * 4).store(*one));
            }
        };
        k.if_else(aligned.eq(0u64), fours, ones);
        let to = p.squares.at((unit.split.widening_mul(p.rows) + row.to_u64()) * 4u64);
        k.guard(exists, || to.store(*square));
    }
}
