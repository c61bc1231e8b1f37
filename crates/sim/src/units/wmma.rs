//! `wmma`: loads, products and stores of one warp with fragments whose layout no manual gives.
//!
//! Here a lane holds neighbours of a row: elements follow each other in the order of rows, as many to a lane as its
//! registers have room for, and once more in further lanes where the fragment has room for several copies. Code that
//! treats all elements of a fragment alike, as it must, cannot tell.

use crate::text::ast::Space;
use crate::exec::context::{Access, Cx};
use crate::error::{Fault, FaultKind};
use crate::units::integer_core::IntProduct;
use crate::decode::isa::{Addr, Reg, Src};
use crate::arith::minifloat::F16;
use crate::units::mma::{Accumulator, Elements, to_f16};
use crate::units::tensor_core::{Product, Widths};
use crate::units::tma::word;
use crate::text::types::low_mask;
use crate::exec::warp::{LANES, Warp};

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
    /// A fragment with room for one copy.
    pub(crate) fn new(rows: u32, columns: u32, bits: u32) -> Fragment {
        let registers = rows * columns / (LANES as u32 * per_register(bits));
        Fragment { rows, columns, bits, registers }
    }

    fn len(&self) -> usize {
        (self.rows * self.columns) as usize
    }

    fn per_lane(&self) -> usize {
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
    fn read(&self, warp: &Warp, registers: &[Src]) -> Vec<u64> {
        let element = |e: usize| {
            let place = self.places(e).next();
            place.map_or(0, |(r, lane, shift)| warp.value(registers[r], lane) >> shift & low_mask(self.bits))
        };
        (0..self.len()).map(element).collect()
    }

    fn write(&self, warp: &mut Warp, registers: &[Reg], elements: impl Iterator<Item = u64>) {
        registers.iter().for_each(|r| warp.row_mut(*r).fill(0));
        for (e, value) in elements.enumerate() {
            for (r, lane, shift) in self.places(e) {
                let old = warp.get(registers[r], lane);
                warp.set(registers[r], lane, old | (value & low_mask(self.bits)) << shift);
            }
        }
    }
}

/// Elements to a register.
pub(crate) fn per_register(bits: u32) -> u32 {
    (32 / bits).max(1)
}

/// A load or a store.
#[derive(Clone, Debug)]
pub(crate) struct WmmaMemory {
    pub(crate) fragment: Fragment,
    pub(crate) addr: Addr,
    pub(crate) space: Space,
    /// Elements from one row (or column) to the next; without it, they touch.
    pub(crate) stride: Option<Src>,
    pub(crate) by_columns: bool,
}

/// `wmma.mma`, decoded.
#[derive(Clone, Debug)]
pub(crate) struct WmmaProduct {
    pub(crate) k: u32,
    pub(crate) elements: Elements,
    /// How sums are given and taken.
    pub(crate) accumulators: [Accumulator; 2],
    /// The fragments of D, A, B and C.
    pub(crate) fragments: [Fragment; 4],
    pub(crate) d: Box<[Reg]>,
    pub(crate) a: Box<[Src]>,
    pub(crate) b: Box<[Src]>,
    pub(crate) c: Box<[Src]>,
}

impl WmmaMemory {
    /// The address of every element in the order of rows, with the bit at which it begins and the lane that has it.
    fn places(&self, warp: &Warp) -> Result<Vec<(u64, u32, usize)>, Fault> {
        let f = &self.fragment;
        let same = |s: Src| {
            warp.uniform(s, !warp.exited).ok_or_else(|| {
                Fault::new(
                    FaultKind::BadOperand,
                    "the lanes name different matrices: address and stride are one",
                )
            })
        };
        let base = same(self.addr.base)?.wrapping_add(self.addr.offset as u64);
        let wide = matches!(self.space, Space::Global | Space::Generic | Space::Const);
        let base = if wide { base } else { base & 0xffff_ffff };
        let touching = if self.by_columns { f.rows } else { f.columns };
        let stride = self.stride.map_or(Ok(u64::from(touching)), |s| same(s).map(|v| u64::from(v as u32)))?;
        let (rows, columns) = (u64::from(f.rows), u64::from(f.columns));
        let elements = (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c)));
        let place = |(e, (r, c)): (usize, (u64, u64))| {
            let index = if self.by_columns { c * stride + r } else { r * stride + c };
            let bit = index.wrapping_mul(u64::from(f.bits));
            (base.wrapping_add(bit / 8), (bit % 8) as u32, e / f.per_lane())
        };
        Ok(elements.enumerate().map(place).collect())
    }

    fn bytes(&self) -> usize {
        (self.fragment.bits as usize).div_ceil(8)
    }
}

impl Cx<'_> {
    /// `wmma.load`
    pub(crate) fn wmma_load(
        &mut self,
        warp: &mut Warp,
        m: &WmmaMemory,
        to: &[Reg],
        pc: u32,
    ) -> Result<(), Fault> {
        let mut access = Access::new(warp.index, pc, None);
        let mut elements = Vec::with_capacity(m.fragment.len());
        for (address, bit, lane) in m.places(warp)? {
            let mut bytes = [0; 8];
            let bytes = &mut bytes[..m.bytes()];
            aligned(address, bytes.len())?;
            let location = self.resolve(warp, m.space, address)?;
            self.read(warp, lane, &mut access, location, bytes)?;
            elements.push(word(bytes) >> bit);
        }
        m.fragment.write(warp, to, elements.into_iter());
        Ok(())
    }

    /// `wmma.store`
    pub(crate) fn wmma_store(
        &mut self,
        warp: &mut Warp,
        m: &WmmaMemory,
        from: &[Src],
        pc: u32,
    ) -> Result<(), Fault> {
        let mut access = Access::new(warp.index, pc, None);
        let elements = m.fragment.read(warp, from);
        for ((address, _, lane), element) in m.places(warp)?.into_iter().zip(elements) {
            aligned(address, m.bytes())?;
            let location = self.resolve(warp, m.space, address)?;
            self.write(warp, lane, &mut access, location, &element.to_le_bytes()[..m.bytes()])?;
        }
        Ok(())
    }

    /// `wmma.mma`
    pub(crate) fn wmma_mma(&mut self, warp: &mut Warp, m: &WmmaProduct) {
        let [d_fragment, a_fragment, b_fragment, c_fragment] = &m.fragments;
        let (n, k) = (d_fragment.columns as usize, m.k as usize);
        let a = a_fragment.read(warp, &m.a);
        let by_rows = b_fragment.read(warp, &m.b);
        // A row for every column of B.
        let b: Vec<u64> = (0..n * k).map(|i| by_rows[i % k * n + i / k]).collect();
        let c = c_fragment.read(warp, &m.c);
        let codes = |list: &[u64]| list.iter().map(|x| *x as u32).collect::<Vec<u32>>();
        let sums: Vec<u64> = match m.elements {
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
                let saturate = m.accumulators[0] == Accumulator::S32 { saturate: true };
                let mut sums: Vec<i32> = c.iter().map(|c| *c as i32).collect();
                let (a, b) = (&codes(&a)[..], &codes(&b)[..]);
                IntProduct { a, b, k, a_type, b_type, term, saturate }.accumulate(&mut sums);
                sums.iter().map(|sum| u64::from(*sum as u32)).collect()
            }
            Elements::Float(a_type, b_type) => {
                let mut sums: Vec<f32> = match m.accumulators[1] {
                    Accumulator::F16 => c.iter().map(|c| F16.decode(*c) as f32).collect(),
                    _ => c.iter().map(|c| f32::from_bits(*c as u32)).collect(),
                };
                let (a, b, widths) = (&codes(&a)[..], &codes(&b)[..], Widths::hopper(a_type));
                Product { a, b, k, a_type, b_type, negate_a: false, negate_b: false, widths }
                    .accumulate(&mut sums, &mut self.cluster.scratch.scratch);
                match m.accumulators[0] {
                    Accumulator::F16 => sums.iter().map(|sum| to_f16(*sum)).collect(),
                    _ => sums.iter().map(|sum| u64::from(sum.to_bits())).collect(),
                }
            }
        };
        self.report.macs += (d_fragment.len() * k) as u64;
        d_fragment.write(warp, &m.d, sums.into_iter());
    }
}

fn aligned(address: u64, bytes: usize) -> Result<(), Fault> {
    if address.is_multiple_of(bytes as u64) {
        return Ok(());
    }
    Err(Fault::new(
        FaultKind::Misaligned,
        format!("the matrix element at {address:#x} is not aligned to its size, {bytes}"),
    ))
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
