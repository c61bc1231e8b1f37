//! Scales of some rows, from memory in whatever layout they have into the registers of a lane, a few K blocks ahead of
//! who writes them to shared memory.

use crate::gemm::params::ScaleParams;
use oxigemm_ptx::{Global, Kernel, Type, U32, Val, Var};

/// Bytes of a scale, or of the word of several.
const BYTES: u32 = 4;
/// Scales that one load may take.
const VECTOR: usize = 4;

/// Loader of the scales of some rows (or columns) of a lane.
pub(crate) struct RowLoader<'k, T: Type> {
    k: &'k Kernel,
    rows: Vec<Row<'k, T>>,
    /// K blocks whose scales are loaded at once.
    at_once: u32,
    /// What stands for scales behind the end of K; else they are of any value.
    behind_end: Option<T>,
    /// Elements from the scale of a K block to that of the next.
    stride: Var<'k, u32>,
    /// Whether those of [`VECTOR`] blocks are a vector.
    vectors: Var<'k, bool>,
}

struct Row<'k, T: Type> {
    /// Address of the scale that is loaded next.
    next: Var<'k, u64>,
    /// Scales that were taken.
    held: Vec<Var<'k, T>>,
    /// Those of the K blocks behind, in flight from memory.
    ahead: Vec<Var<'k, T>>,
}

impl<'k, T: Type> RowLoader<'k, T> {
    /// Loader of so many rows, for so many K blocks at once: a multiple of [`VECTOR`].
    pub fn new(k: &'k Kernel, rows: usize, at_once: u32, zero: T, behind_end: Option<T>) -> Self {
        let some = || (0..at_once).map(|_| k.var(zero)).collect();
        let rows = (0..rows).map(|_| Row { next: k.var(0u64), held: some(), ahead: some() }).collect();
        RowLoader { k, rows, at_once, behind_end, stride: k.var(0u32), vectors: k.var(false) }
    }

    /// Begins with the first scales of these rows.
    pub fn begin(&self, scales: &ScaleParams<'k>, rows: impl Iterator<Item = U32<'k>>) {
        for (Row { next, .. }, row) in self.rows.iter().zip(rows) {
            next.set(scales.at(row, self.k.constant(0)).address());
        }
        self.stride.set(scales.stride_k);
        self.vectors.set(scales.has_fours_along_k());
    }

    /// Issues the loads of the next K blocks' scales, of which so many are left: at least one.
    pub fn fetch(&self, left: U32<'k>) {
        let (k, step) = (self.k, self.stride.get().widening_mul(BYTES));
        let each = |later: u32| {
            for Row { next, ahead, .. } in &self.rows {
                let from = Global::new(next.get()).at(step * u64::from(later));
                ahead[later as usize].set(from.load_readonly::<T>());
            }
        };
        let vectors = || {
            for Row { next, ahead, .. } in &self.rows {
                for (nth, ahead) in (0u64..).zip(ahead.as_chunks::<VECTOR>().0) {
                    let from = Global::new(next.get()).at(nth * VECTOR as u64 * u64::from(BYTES));
                    let scales = from.load_readonly_vec::<T, VECTOR>();
                    ahead.iter().zip(scales).for_each(|(ahead, scale)| ahead.set(scale));
                }
            }
        };
        let all = || k.if_else(self.vectors.get(), vectors, || (0..self.at_once).for_each(each));
        let some = || match self.behind_end {
            None => (0..self.at_once - 1).for_each(|later| k.if_(left.gt(later), || each(later))),
            Some(value) => {
                each(0);
                for later in 1..self.at_once {
                    let behind_end = || self.rows.iter().for_each(|row| row.ahead[later as usize].set(value));
                    k.if_else(left.gt(later), || each(later), behind_end);
                }
            }
        };
        k.if_else(left.ge(self.at_once), all, some);
        for Row { next, .. } in &self.rows {
            next.set(next.live() + step * u64::from(self.at_once));
        }
    }

    /// Takes what was loaded.
    pub fn take(&self) {
        for Row { held, ahead, .. } in &self.rows {
            held.iter().zip(ahead).for_each(|(held, ahead)| held.set(ahead.live()));
        }
    }

    /// The taken scale of a row, in the `nth` of the K blocks.
    pub fn held(&self, row: usize, nth: u32) -> Val<'k, T> {
        self.rows[row].held[nth as usize].get()
    }
}
