//! `wmma` fragments and products.
//!
//! No manual gives the layout of a fragment. Here a lane holds neighbours of a row: elements follow each other in the
//! order of rows, as many to a lane as its registers hold, and once more in further lanes where the fragment
//! holds several copies. Code that treats all elements of a fragment alike, as it must, cannot tell.

use super::integer_core::IntProduct;
use super::mma::{Accumulator, Elements, Fragments, to_f16};
use super::tensor_core::Scratch;
use super::warp_product::{Generation, WarpProduct};
use crate::arith::minifloat::F16;
use crate::lanes::{LANES, Row};
use crate::text::types::low_mask;

/// The fragment of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) rows: u32,
    pub(crate) columns: u32,
    /// Width of an element.
    pub(crate) bits: u32,
    /// Registers of a lane.
    pub(crate) registers: u32,
}

impl Fragment {
    /// A fragment that holds one copy.
    pub(crate) fn new(rows: u32, columns: u32, bits: u32) -> Fragment {
        let registers = rows * columns / (LANES as u32 * per_register(bits));
        Fragment { rows, columns, bits, registers }
    }

    pub(crate) fn len(&self) -> usize {
        (self.rows * self.columns) as usize
    }

    pub(crate) fn per_lane(&self) -> usize {
        (self.registers * per_register(self.bits)) as usize
    }

    /// Register, lane and shift of every copy of an element.
    fn places(&self, element: usize) -> impl Iterator<Item = (usize, usize, u32)> {
        let per = per_register(self.bits) as usize;
        let (lane, slot) = (element / self.per_lane(), element % self.per_lane());
        let lanes_of_a_copy = self.len() / self.per_lane();
        let shift = (slot % per) as u32 * self.bits;
        (lane..LANES).step_by(lanes_of_a_copy).map(move |lane| (slot / per, lane, shift))
    }

    /// The elements in registers, in the order of rows.
    pub(crate) fn read(&self, registers: &[Row]) -> Vec<u64> {
        let element = |e: usize| {
            let place = self.places(e).next();
            place.map_or(0, |(r, lane, shift)| registers[r][lane] >> shift & low_mask(self.bits))
        };
        (0..self.len()).map(element).collect()
    }

    /// The registers of a fragment with these elements.
    pub(crate) fn write(&self, elements: impl Iterator<Item = u64>) -> Vec<Row> {
        let mut registers = vec![[0; LANES]; self.registers as usize];
        for (e, value) in elements.enumerate() {
            for (r, lane, shift) in self.places(e) {
                registers[r][lane] |= (value & low_mask(self.bits)) << shift;
            }
        }
        registers
    }
}

/// Elements to a register.
pub(crate) fn per_register(bits: u32) -> u32 {
    (32 / bits).max(1)
}

/// The shape and types of a `wmma.mma`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WmmaShape {
    pub(crate) k: u32,
    pub(crate) elements: Elements,
    pub(crate) generation: Generation,
    /// Types of D and C.
    pub(crate) accumulators: [Accumulator; 2],
    /// The fragments of D, A, B and C.
    pub(crate) fragments: [Fragment; 4],
}

impl WmmaShape {
    /// Multiply-adds of one product.
    pub(crate) fn macs(&self) -> u64 {
        self.fragments[0].len() as u64 * u64::from(self.k)
    }

    /// D of a product.
    pub(crate) fn multiply(&self, m: Fragments<'_>, scratch: &mut Scratch) -> Vec<Row> {
        let [d_fragment, a_fragment, b_fragment, c_fragment] = &self.fragments;
        let (n, k) = (d_fragment.columns as usize, self.k as usize);
        let a = a_fragment.read(m.a);
        let by_rows = b_fragment.read(m.b);
        // A row for every column of B.
        let b: Vec<u64> = (0..n * k).map(|i| by_rows[i % k * n + i / k]).collect();
        let c = c_fragment.read(m.c);
        let codes = |list: &[u64]| list.iter().map(|x| *x as u32).collect::<Vec<u32>>();
        let sums: Vec<u64> = match self.elements {
            Elements::Double => {
                let value = |bits: u64| f64::from_bits(bits);
                let sum = |(i, c): (usize, &u64)| {
                    let (row, column) = (&a[i / n * k..][..k], &b[i % n * k..][..k]);
                    let products = row.iter().zip(column);
                    products.fold(value(*c), |s, (x, y)| value(*x).mul_add(value(*y), s)).to_bits()
                };
                c.iter().enumerate().map(sum).collect()
            }
            Elements::Integer(a_type, b_type, term) => {
                let saturate = self.accumulators[0] == Accumulator::S32 { saturate: true };
                let mut sums: Vec<i32> = c.iter().map(|c| *c as i32).collect();
                let (a, b) = (&codes(&a)[..], &codes(&b)[..]);
                IntProduct { a, b, k, a_type, b_type, term, saturate }.accumulate(&mut sums);
                sums.iter().map(|sum| u64::from(*sum as u32)).collect()
            }
            Elements::Float(a_type, b_type) => {
                let mut sums: Vec<f32> = match self.accumulators[1] {
                    Accumulator::F16 => c.iter().map(|c| F16.decode(*c) as f32).collect(),
                    _ => c.iter().map(|c| f32::from_bits(*c as u32)).collect(),
                };
                let (generation, half) = (self.generation, self.accumulators[0] == Accumulator::F16);
                let (a, b) = (&codes(&a)[..], &codes(&b)[..]);
                WarpProduct { generation, a, b, k, a_type, b_type, half, scales: None }
                    .accumulate(&mut sums, scratch);
                match self.accumulators[0] {
                    Accumulator::F16 => sums.iter().map(|sum| to_f16(*sum)).collect(),
                    _ => sums.iter().map(|sum| u64::from(sum.to_bits())).collect(),
                }
            }
        };
        d_fragment.write(sums.into_iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_of_a_fragment_holds_one_element() {
        for (fragment, copies) in [
            (Fragment::new(16, 16, 32), 1),
            (Fragment::new(16, 16, 8), 1),
            (Fragment::new(8, 128, 1), 1),
            (Fragment::new(8, 4, 64), 1),
            (Fragment { registers: 8, ..Fragment::new(16, 16, 16) }, 2),
            (Fragment { registers: 8, ..Fragment::new(8, 16, 16) }, 4),
        ] {
            let mut seen = std::collections::HashSet::new();
            for e in 0..fragment.len() {
                assert_eq!(fragment.places(e).count(), copies, "{fragment:?}");
                assert!(fragment.places(e).all(|(r, lane, shift)| {
                    r < fragment.registers as usize && seen.insert((r, lane, shift))
                }));
            }
            assert_eq!(seen.len(), LANES * fragment.per_lane(), "{fragment:?}");
        }
    }
}
