//! `wmma`: loads, products and stores of fragments.

use super::access::Access;
use super::aligned::{aligned, converged};
use super::context::Cx;
use super::warp::Warp;
use super::{Issue, Next, together};
use crate::decode::isa::{Reg, Src};
use crate::decode::wmma::{WmmaMemory, WmmaOp};
use crate::error::{Fault, FaultKind};
use crate::memory::word;
use crate::text::ast::Space;
use crate::units::mma::Fragments;

pub(super) fn execute(warp: &mut Warp, cx: &mut Cx<'_>, op: &WmmaOp, at: Issue) -> Result<Next, Fault> {
    together!(aligned(warp, cx, at));
    converged(warp, cx, at.active);
    match op {
        WmmaOp::Load { memory, dst } => {
            cx.wmma_load(warp, memory, dst, at.pc)?;
            // All lanes take part in the load: none of them can overwrite a row too early.
            converged(warp, cx, at.active);
        }
        WmmaOp::Store { memory, src } => cx.wmma_store(warp, memory, src, at.pc)?,
        WmmaOp::Mma(m) => {
            let fragments = Fragments { a: &warp.rows(&m.a), b: &warp.rows(&m.b), c: &warp.rows(&m.c) };
            let d = m.shape.multiply(fragments, &mut cx.cluster.scratch.scratch);
            warp.set_rows(&m.d, d);
            cx.report.macs += m.shape.macs();
        }
    }
    Ok(Next::Step)
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
    fn wmma_load(&mut self, warp: &mut Warp, m: &WmmaMemory, to: &[Reg], pc: u32) -> Result<(), Fault> {
        let mut access = Access::new(warp.index, pc, None);
        let mut elements = Vec::with_capacity(m.fragment.len());
        for (address, bit, lane) in m.places(warp)? {
            let mut bytes = [0; 8];
            let bytes = &mut bytes[..m.bytes()];
            check_element(address, bytes.len())?;
            let location = self.resolve(warp, m.space, address)?;
            self.read(warp, lane, &mut access, location, bytes)?;
            elements.push(word(bytes) >> bit);
        }
        warp.set_rows(to, m.fragment.write(elements.into_iter()));
        Ok(())
    }

    /// `wmma.store`
    fn wmma_store(&mut self, warp: &mut Warp, m: &WmmaMemory, from: &[Src], pc: u32) -> Result<(), Fault> {
        let mut access = Access::new(warp.index, pc, None);
        let elements = m.fragment.read(&warp.rows(from));
        for ((address, _, lane), element) in m.places(warp)?.into_iter().zip(elements) {
            check_element(address, m.bytes())?;
            let location = self.resolve(warp, m.space, address)?;
            self.write(warp, lane, &mut access, location, &element.to_le_bytes()[..m.bytes()])?;
        }
        Ok(())
    }
}

fn check_element(address: u64, bytes: usize) -> Result<(), Fault> {
    if address.is_multiple_of(bytes as u64) {
        return Ok(());
    }
    Err(Fault::new(
        FaultKind::Misaligned,
        format!("the matrix element at {address:#x} is not aligned to its size, {bytes}"),
    ))
}
