//! `wgmma`: the warpgroup's asynchronous matrix unit.
//!
//! Each warp of a warpgroup owns sixteen rows of the product, so its share is computed on its own; a wait
//! checks that the other three warps have issued as many operations. An operation may run at any time
//! between its issue and the wait that covers it, in order within the warp.

use crate::exec::context::Cx;
use crate::error::{Fault, FaultKind};
use crate::exec::Next;
use crate::hazard::{Event, Hazards, Proxy, Unit};
use crate::units::integer_core::IntProduct;
use crate::decode::isa::{Op, Src, Wgmma, WgmmaA};
use crate::machine::Policy;
use crate::units::mma::{self, Accumulator, Elements};
use crate::units::tensor_core::{Product, Scratch, Widths};
use crate::units::tensormap::Swizzle;
use crate::exec::warp::{LANES, Wait, Warp, WgmmaOp};

/// Space for operands on their way to the tensor core.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers {
    pub(crate) a: Vec<u32>,
    pub(crate) b: Vec<u32>,
    pub(crate) d: Vec<f32>,
    pub(crate) scratch: Scratch,
}

/// A matrix descriptor, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) start: u32,
    pub(crate) leading: u32,
    pub(crate) stride: u32,
    pub(crate) base_offset: u32,
    pub(crate) swizzle: Swizzle,
}

impl Descriptor {
    pub(crate) fn decode(d: u64) -> Descriptor {
        let field = |at: u32| ((d >> at & 0x3fff) << 4) as u32;
        Descriptor {
            start: field(0),
            leading: field(16),
            stride: field(32),
            base_offset: (d >> 49 & 7) as u32,
            swizzle: [Swizzle::None, Swizzle::B128, Swizzle::B64, Swizzle::B32][(d >> 62) as usize],
        }
    }

    fn swizzled(self, address: u32) -> u32 {
        // The base offset moves the start of the repeating pattern.
        let shifted = address.wrapping_sub(self.base_offset << 7);
        address ^ (self.swizzle.apply(shifted) ^ shifted)
    }

    /// Address of the 16-byte piece `j` of row `r` of a K-major operand.
    fn k_major(self, r: u32, j: u32) -> u32 {
        let along_k = if self.swizzle == Swizzle::None { j * self.leading } else { j * 16 };
        self.swizzled(self.start + r % 8 * self.swizzle.span() + r / 8 * self.stride + along_k)
    }

    /// Address of the 16-byte piece `i` (eight 16-bit elements along M or N) at depth `k` of an M- or
    /// N-major operand.
    fn mn_major(self, i: u32, k: u32) -> u32 {
        let offset = if self.swizzle == Swizzle::None {
            i * self.stride + k % 8 * 16 + k / 8 * self.leading
        } else {
            let wide = self.swizzle.span() / 16;
            i % wide * 16 + i / wide * self.leading + k % 8 * self.swizzle.span() + k / 8 * self.stride
        };
        self.swizzled(self.start + offset)
    }

    /// The 16-byte pieces of `rows` rows from `first`, with the place of each in a row-major operand: row
    /// and piece within the row, or depth when the operand is transposed.
    fn pieces(
        self,
        first: u32,
        rows: u32,
        k: u32,
        transposed: bool,
    ) -> impl Iterator<Item = (u32, u32, u32)> {
        let (outer, inner) = if transposed { (rows / 8, k) } else { (rows, 2) };
        (0..outer).flat_map(move |x| {
            (0..inner).map(move |y| {
                if transposed {
                    (self.mn_major(first / 8 + x, y), x * 8, y)
                } else {
                    (self.k_major(first + x, y), x, y)
                }
            })
        })
    }
}

impl Cx<'_> {
    pub(crate) fn wgmma(&mut self, warp: &mut Warp, op: &Op, pc: u32) -> Result<Next, Fault> {
        match op {
            Op::WgmmaFence => {
                warp.wgmma.fences += 1;
                Ok(Next::Step)
            }
            Op::WgmmaCommit => {
                warp.wgmma.committed += 1;
                warp.wgmma.open = 0;
                let issued = warp.wgmma.issued;
                warp.wgmma.commits.push(issued);
                Ok(Next::Step)
            }
            Op::WgmmaWait { pending } => {
                let target = warp.wgmma.committed.saturating_sub(*pending);
                if !self.wgmma_ready(warp, target) {
                    return Ok(Next::Retry(Wait::Wgmma(target)));
                }
                warp.wgmma.waited = warp.wgmma.waited.max(target);
                if let Some(h) = &mut self.cluster.hazards {
                    h.completed(warp.index, Hazards::agent(warp.index, Unit::Wgmma), target);
                }
                Ok(Next::Step)
            }
            Op::Wgmma(w) => {
                self.issue(warp, w, pc)?;
                Ok(Next::Step)
            }
            _ => Ok(Next::Step),
        }
    }

    /// Whether the first `groups` groups of a warp are complete.
    pub(crate) fn wgmma_ready(&self, warp: &Warp, groups: u32) -> bool {
        if warp.wgmma.queue.front().is_some_and(|op| op.group <= groups) {
            return false;
        }
        let Some(needed) = (groups as usize).checked_sub(1).and_then(|g| warp.wgmma.commits.get(g)) else {
            return true;
        };
        // The last warpgroup of a CTA may have fewer than four warps.
        let first = warp.index - warp.env.warp % 4;
        let end = (first + 4).min(warp.index - warp.env.warp + warp.env.warps);
        (first..end).all(|i| i == warp.index || self.cluster.warps[i as usize].wgmma.issued >= *needed)
    }

    pub(crate) fn busy_register(&self, warp: &Warp, r: u32, how: &str) -> Fault {
        let state = &warp.wgmma;
        let mut fault = Fault::new(
            FaultKind::WgmmaRegister,
            format!(
                "register {} is {how} while the wgmma of group {} that uses it may be in flight (waited for: {})",
                self.kernel.registers[r as usize], state.busy[r as usize].0, state.waited
            ),
        );
        fault.other = Some(Box::new(self.place(warp.index, state.last_pc)));
        fault
    }

    fn issue(&mut self, warp: &mut Warp, w: &Wgmma, pc: u32) -> Result<(), Fault> {
        if warp.env.warp / 4 * 4 + 4 > warp.env.warps || warp.valid != u32::MAX || warp.exited != 0 {
            return Err(Fault::new(
                FaultKind::Divergence,
                "wgmma needs four full warps, and this warpgroup is not",
            ));
        }
        let uniform = |s, name: &str| match warp.uniform(s, u32::MAX) {
            Some(v) => Ok(v),
            None => Err(Fault::new(FaultKind::BadOperand, format!("{name} differs between the lanes"))),
        };
        let a = match w.a {
            WgmmaA::Descriptor(s) => uniform(s, "the descriptor of A")?,
            WgmmaA::Registers(_) => 0,
        };
        let b = uniform(w.b, "the descriptor of B")?;
        let accumulate = uniform(w.scale_d, "scale-d")? & 1 == 1;
        let group = warp.wgmma.committed + 1;
        if self.options.hazards {
            self.check_issue(warp, w, accumulate, group)?;
            let agent = Hazards::agent(warp.index, Unit::Wgmma);
            let event = Event { agent, tick: group, proxy: Proxy::Async, strong: None, warp: warp.index, pc };
            let cta = warp.env.rank as usize;
            let mut spans = Vec::new();
            if let WgmmaA::Descriptor(_) = w.a {
                let d = Descriptor::decode(a);
                spans.extend(d.pieces(warp.env.warp % 4 * 16, 16, w.k, w.transpose_a).map(|p| (p.0, 16)));
            }
            let d = Descriptor::decode(b);
            spans.extend(d.pieces(0, w.n, w.k, w.transpose_b).map(|p| (p.0, 16)));
            for (at, len) in &spans {
                self.shared_range(cta, *at, *len)?;
            }
            self.shadow_async(event, None, spans.into_iter(), cta, false)?;
        }
        warp.wgmma.open += 1;
        warp.wgmma.issued += 1;
        warp.wgmma.last_pc = pc;
        warp.wgmma.queue.push_back(WgmmaOp { pc, a, b, accumulate, group, start: self.report.instructions });
        let now = match self.options.policy {
            Policy::Eager => true,
            Policy::Lazy => false,
            Policy::Random => self.rng.once_in(2),
        };
        while now && !warp.wgmma.queue.is_empty() {
            self.wgmma_execute(warp)?;
        }
        Ok(())
    }

    /// Registers: written before they are read, fenced, and now in flight.
    fn check_issue(&self, warp: &mut Warp, w: &Wgmma, accumulate: bool, group: u32) -> Result<(), Fault> {
        let name = |r: u32| &self.kernel.registers[r as usize];
        let a_regs: &[u32] = if let WgmmaA::Registers(r) = &w.a { r } else { &[] };
        for (&r, input) in w.d.iter().map(|r| (r, accumulate)).chain(a_regs.iter().map(|r| (r, true))) {
            if input && warp.written[r as usize] != u32::MAX {
                return Err(Fault::new(
                    FaultKind::Uninitialized,
                    format!("register {} is an input of this wgmma and was never written", name(r)),
                ));
            }
            let (touched, by) = warp.wgmma.touched[r as usize];
            if warp.wgmma.fences == 0 || touched == warp.wgmma.fences + 1 {
                let mut fault = Fault::new(
                    FaultKind::WgmmaRegister,
                    format!(
                        "register {} was used by another instruction and no wgmma.fence follows",
                        name(r)
                    ),
                );
                fault.other = (touched > 0).then(|| Box::new(self.place(warp.index, by)));
                return Err(fault);
            }
        }
        for &r in a_regs {
            warp.wgmma.busy[r as usize] = (group, false);
        }
        for &r in &w.d {
            warp.wgmma.busy[r as usize] = (group, true);
            warp.written[r as usize] = u32::MAX;
        }
        Ok(())
    }

    /// Runs the oldest operation of a warp.
    pub(crate) fn wgmma_execute(&mut self, warp: &mut Warp) -> Result<(), Fault> {
        let Some(op) = warp.wgmma.queue.pop_front() else { return Ok(()) };
        *self.progress += 1;
        let kernel = self.kernel;
        let Op::Wgmma(w) = &kernel.code[op.pc as usize].op else { return Ok(()) };
        self.trace(crate::machine::TraceUnit::Wgmma, warp.index, op.pc, op.start, None, |cx| {
            let a = match w.a {
                WgmmaA::Descriptor(_) => cx.shared_text(Descriptor::decode(op.a).start),
                WgmmaA::Registers(_) => "registers".to_owned(),
            };
            format!("{a} x {}", cx.shared_text(Descriptor::decode(op.b).start))
        });
        let mut buffers = std::mem::take(&mut self.cluster.scratch);
        let result = self.multiply(warp, w, &op, &mut buffers);
        self.cluster.scratch = buffers;
        result.map_err(|f| self.locate(f, warp.index, op.pc))
    }

    fn multiply(
        &mut self,
        warp: &mut Warp,
        w: &Wgmma,
        op: &WgmmaOp,
        buffers: &mut Buffers,
    ) -> Result<(), Fault> {
        let Buffers { a, b, d, scratch } = buffers;
        let (n, k) = (w.n as usize, w.k as usize);
        let cta = warp.env.rank as usize;
        match &w.a {
            WgmmaA::Descriptor(_) => {
                let first = warp.env.warp % 4 * 16;
                self.gather(
                    cta,
                    Descriptor::decode(op.a),
                    first,
                    16,
                    w.k,
                    w.elements.bits(),
                    w.transpose_a,
                    a,
                )?;
            }
            WgmmaA::Registers(regs) => mma::gather_a(warp, regs, w.elements.bits(), k, a),
        }
        self.gather(cta, Descriptor::decode(op.b), 0, w.n, w.k, w.elements.bits(), w.transpose_b, b)?;
        let place = |i: usize, lane: usize| {
            let row = lane / 4 + i % 4 / 2 * 8;
            row * n + i / 4 * 8 + lane % 4 * 2 + i % 2
        };
        match w.elements {
            Elements::Float(a_type, b_type) => {
                d.clear();
                d.resize(16 * n, 0.0);
                if op.accumulate {
                    let from: Vec<Src> = w.d.iter().map(|r| Src::Reg(*r)).collect();
                    mma::load_floats(warp, &from, w.accumulator, place, d);
                }
                let (negate_a, negate_b) = (w.negate_a, w.negate_b);
                let widths = Widths::hopper(a_type);
                Product { a, b, k, a_type, b_type, negate_a, negate_b, widths }.accumulate(d, scratch);
                mma::store_floats(warp, &w.d, w.accumulator, place, d);
            }
            Elements::Integer(a_type, b_type, term) => {
                let mut sums = vec![0i32; 16 * n];
                for (i, &r) in w.d.iter().enumerate().filter(|_| op.accumulate) {
                    (0..LANES).for_each(|lane| sums[place(i, lane)] = warp.get(r, lane) as i32);
                }
                let saturate = w.accumulator == Accumulator::S32 { saturate: true };
                IntProduct { a, b, k, a_type, b_type, term, saturate }.accumulate(&mut sums);
                for (i, &r) in w.d.iter().enumerate() {
                    (0..LANES).for_each(|lane| warp.set(r, lane, u64::from(sums[place(i, lane)] as u32)));
                }
            }
            Elements::Double => {}
        }
        self.report.macs += 16 * u64::from(w.n) * u64::from(w.k);
        Ok(())
    }

    /// Reads an operand from shared memory into row-major codes.
    #[allow(clippy::too_many_arguments)]
    fn gather(
        &self,
        cta: usize,
        d: Descriptor,
        first: u32,
        rows: u32,
        k: u32,
        bits: u32,
        transposed: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), Fault> {
        let k_elements = k as usize;
        out.clear();
        out.resize(rows as usize * k_elements, 0);
        for (at, row, piece) in d.pieces(first, rows, k, transposed) {
            let bytes = self.shared_bytes(cta, at, 16)?;
            if transposed {
                for (i, e) in bytes.chunks_exact(2).enumerate() {
                    out[(row as usize + i) * k_elements + piece as usize] =
                        u32::from(u16::from_le_bytes([e[0], e[1]]));
                }
                continue;
            }
            let per = 128 / bits as usize;
            let target = &mut out[row as usize * k_elements + piece as usize * per..][..per];
            match bits {
                1 => {
                    let bit = |i: usize| u32::from(bytes[i / 8] >> (i % 8) & 1);
                    target.iter_mut().enumerate().for_each(|(i, t)| *t = bit(i));
                }
                8 => target.iter_mut().zip(bytes).for_each(|(t, b)| *t = u32::from(*b)),
                16 => target
                    .iter_mut()
                    .zip(bytes.chunks_exact(2))
                    .for_each(|(t, b)| *t = u32::from(u16::from_le_bytes([b[0], b[1]]))),
                _ => target
                    .iter_mut()
                    .zip(bytes.chunks_exact(4))
                    .for_each(|(t, b)| *t = u32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_decode() {
        let d = Descriptor::decode(0x1234 >> 4 | 1 << 16 | 64 << 32 | 1 << 62);
        assert_eq!((d.start, d.leading, d.stride, d.swizzle), (0x1230, 16, 1024, Swizzle::B128));
    }

    #[test]
    fn k_major_rows_follow_the_swizzle() {
        let d = Descriptor::decode(0x4000 >> 4 | 64 << 32 | 1 << 62);
        assert_eq!(d.k_major(0, 1), 0x4010);
        assert_eq!(d.k_major(1, 0), 0x4000 + 128 + 16);
        assert_eq!(d.k_major(9, 0), 0x4000 + 1024 + 128 + 16);
        let none = Descriptor::decode(0x4000 >> 4 | 8 << 16 | 16 << 32);
        assert_eq!(none.k_major(9, 1), 0x4000 + 16 + 256 + 128);
    }

    #[test]
    fn n_major_pieces_cover_a_tile_once() {
        // 64 columns x 16 deep, 128-byte swizzle: two 1024-byte atoms.
        let d = Descriptor::decode(0x4000 >> 4 | 64 << 16 | 64 << 32 | 1 << 62);
        let mut all: Vec<u32> = d.pieces(0, 64, 16, true).map(|p| p.0).collect();
        all.sort_unstable();
        assert_eq!(all, (0..128).map(|i| 0x4000 + 16 * i).collect::<Vec<_>>());
    }
}
