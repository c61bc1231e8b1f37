//! `wgmma`: issue, groups and execution of the warpgroup's asynchronous matrix operations.
//!
//! Each warp of a warpgroup owns sixteen rows of the product, so its part is computed on its own; a wait
//! checks that the other three warps have issued as many operations. An operation may run at any time
//! between its issue and the wait that covers it, in order within the warp.

use super::aligned::{aligned, converged};
use super::context::Cx;
use super::warp::{Wait, Warp};
use super::{Issue, Next, together};
use crate::decode::isa::{Op, Reg};
use crate::decode::wgmma::{Wgmma, WgmmaA, WgmmaOp};
use crate::error::{Fault, FaultKind};
use crate::hazard::{Event, Hazards, Proxy, Unit};
use crate::lanes::LANES;
use crate::options::Policy;
use crate::record::{Deed, Store, Work};
use crate::report::TraceUnit;
use crate::units::integer_core::IntProduct;
use crate::units::mma::{self, Accumulator, Elements};
use crate::units::tensor_core::{Product, Widths};
use crate::units::wgmma::{Buffers, Descriptor, Issued, Operand};

pub(super) fn execute(warp: &mut Warp, cx: &mut Cx<'_>, op: &WgmmaOp, at: Issue) -> Result<Next, Fault> {
    together!(aligned(warp, cx, at));
    converged(warp, cx, at.active);
    cx.wgmma(warp, op, at.pc)
}

/// The rows of A that a warp multiplies.
fn operand_a(warp: &Warp, w: &Wgmma, descriptor: u64) -> Operand {
    let descriptor = Descriptor::decode(descriptor);
    Operand { descriptor, first: warp.env.warp % 4 * 16, rows: 16, k: w.k, transposed: w.transpose_a }
}

fn operand_b(w: &Wgmma, descriptor: u64) -> Operand {
    let descriptor = Descriptor::decode(descriptor);
    Operand { descriptor, first: 0, rows: w.n, k: w.k, transposed: w.transpose_b }
}

impl Cx<'_> {
    fn wgmma(&mut self, warp: &mut Warp, op: &WgmmaOp, pc: u32) -> Result<Next, Fault> {
        match op {
            WgmmaOp::Fence => {
                warp.wgmma.fences += 1;
                Ok(Next::Step)
            }
            WgmmaOp::Commit => {
                self.record(warp.index, u32::MAX, Deed::Group(Work::Wgmma));
                warp.wgmma.committed += 1;
                warp.wgmma.open = 0;
                let issued = warp.wgmma.issued;
                warp.wgmma.commits.push(issued);
                Ok(Next::Step)
            }
            WgmmaOp::Wait { pending } => {
                let target = warp.wgmma.committed.saturating_sub(*pending);
                if !self.wgmma_ready(warp, target) {
                    return Ok(Next::Retry(Wait::Wgmma(target)));
                }
                let (work, pending) = (Work::Wgmma, Some(*pending));
                self.record(warp.index, u32::MAX, Deed::GroupWait { work, pending, read: false });
                warp.wgmma.waited = warp.wgmma.waited.max(target);
                if let Some(h) = &mut self.cluster.hazards {
                    h.completed(warp.index, Hazards::agent(warp.index, Unit::Wgmma), target);
                }
                Ok(Next::Step)
            }
            WgmmaOp::Mma(w) => {
                self.issue(warp, w, pc)?;
                Ok(Next::Step)
            }
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

    /// A register of a `wgmma` in flight is touched at `pc`.
    pub(crate) fn busy_register(&mut self, warp: &Warp, pc: u32, r: Reg, how: &str) -> Result<(), Fault> {
        let state = &warp.wgmma;
        self.hazard(FaultKind::WgmmaRegister, (warp.index, pc), Some(state.last_pc), |cx| {
            let mut fault = Fault::new(
                FaultKind::WgmmaRegister,
                format!(
                    "register {} is {how} while the wgmma of group {} that uses it may be in flight (waited for: {})",
                    cx.kernel.registers[r.index()],
                    state.busy[r.index()].0,
                    state.waited
                ),
            );
            fault.other = Some(Box::new(cx.place(warp.index, state.last_pc)));
            fault
        })
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
            self.check_issue(warp, w, (accumulate, group, pc))?;
            let agent = Hazards::agent(warp.index, Unit::Wgmma);
            let event = Event { agent, tick: group, proxy: Proxy::Async, strong: None, warp: warp.index, pc };
            let cta = warp.env.rank as usize;
            let operands = [
                matches!(w.a, WgmmaA::Descriptor(_)).then(|| ("A", operand_a(warp, w, a))),
                Some(("B", operand_b(w, b))),
            ];
            let mut spans = Vec::new();
            for (_, operand) in operands.iter().flatten() {
                spans.extend(operand.pieces().map(|p| (p.0, 16)));
            }
            for (at, len) in &spans {
                self.shared_range(cta, *at, *len)?;
            }
            self.check_operands(event, spans, operands, cta)?;
        }
        warp.wgmma.open += 1;
        warp.wgmma.issued += 1;
        warp.wgmma.last_pc = pc;
        warp.wgmma.queue.push_back(Issued { pc, a, b, accumulate, group, start: self.report.instructions });
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

    /// Shared memory that the operands lie in; a conflict names the rows of the operand that it is about.
    fn check_operands(
        &mut self,
        event: Event,
        spans: Vec<(u32, u32)>,
        operands: [Option<(&str, Operand)>; 2],
        cta: usize,
    ) -> Result<(), Fault> {
        if self.options.record {
            self.record(event.warp, 1, Deed::Issue(Work::Wgmma));
            let wide: Vec<_> = spans.iter().map(|(at, len)| (u64::from(*at), u64::from(*len))).collect();
            self.record_work_access(event, None, Store::Shared(cta as u32), &wide, false);
        }
        let Some(h) = &mut self.cluster.hazards else { return Ok(()) };
        h.make_room();
        let id = h.event(event);
        let conflicts = h.access(id, None, cta, spans.into_iter(), false);
        conflicts.iter().try_for_each(|c| {
            let kind = super::explain::kind_of(c.missing);
            self.hazard(kind, (event.warp, event.pc), Some(c.earlier.pc), |cx| {
                let touched = operands.iter().flatten().filter_map(|(name, operand)| {
                    Some(format!("{} of {name}", operand.rows_text(&c.offsets)?))
                });
                let touched: Vec<String> = touched.collect();
                let mut fault = cx.conflict(c, cta, false);
                fault.message += &format!("; it is about {}", touched.join(" and "));
                fault
            })
        })
    }

    /// Registers: written before they are read, fenced, and now in flight.
    fn check_issue(
        &mut self,
        warp: &mut Warp,
        w: &Wgmma,
        (accumulate, group, pc): (bool, u32, u32),
    ) -> Result<(), Fault> {
        let (kernel, at) = (self.kernel, (warp.index, pc));
        let name = |r: Reg| &kernel.registers[r.index()];
        let a_regs: &[Reg] = if let WgmmaA::Registers(r) = &w.a { &r.0 } else { &[] };
        for (&r, input) in w.d.0.iter().map(|r| (r, accumulate)).chain(a_regs.iter().map(|r| (r, true))) {
            if input && warp.written[r.index()] != u32::MAX {
                self.hazard(FaultKind::Uninitialized, at, None, |_| {
                    Fault::new(
                        FaultKind::Uninitialized,
                        format!("register {} is an input of this wgmma and was never written", name(r)),
                    )
                })?;
            }
            let (touched, by) = warp.wgmma.touched[r.index()];
            if warp.wgmma.fences == 0 || touched == warp.wgmma.fences + 1 {
                let other = (touched > 0).then_some(by);
                self.hazard(FaultKind::WgmmaRegister, at, other, |cx| {
                    let mut fault = Fault::new(
                        FaultKind::WgmmaRegister,
                        format!(
                            "register {} was used by another instruction and no wgmma.fence follows",
                            name(r)
                        ),
                    );
                    fault.other = other.map(|by| Box::new(cx.place(warp.index, by)));
                    fault
                })?;
            }
        }
        for &r in a_regs {
            warp.wgmma.busy[r.index()] = (group, false);
        }
        for &r in &w.d.0 {
            warp.wgmma.busy[r.index()] = (group, true);
            warp.written[r.index()] = u32::MAX;
        }
        Ok(())
    }

    /// Runs the oldest operation of a warp.
    pub(crate) fn wgmma_execute(&mut self, warp: &mut Warp) -> Result<(), Fault> {
        let Some(op) = warp.wgmma.queue.pop_front() else { return Ok(()) };
        *self.progress += 1;
        self.at = (warp.index, op.pc);
        let kernel = self.kernel;
        let Op::Wgmma(WgmmaOp::Mma(w)) = &kernel.code[op.pc as usize].op else { return Ok(()) };
        self.trace(TraceUnit::Wgmma, warp.index, op.pc, op.start, None, |cx| {
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
        op: &Issued,
        buffers: &mut Buffers,
    ) -> Result<(), Fault> {
        let Buffers { a, b, d, scratch } = buffers;
        let (n, k) = (w.n as usize, w.k as usize);
        let cta = warp.env.rank as usize;
        let bits = w.elements.bits();
        let read = |at: u32| self.shared_bytes(cta, at, 16);
        match &w.a {
            WgmmaA::Descriptor(_) => operand_a(warp, w, op.a).gather(bits, read, a)?,
            WgmmaA::Registers(regs) => {
                mma::a_codes(&warp.register_rows(&regs.0).collect::<Vec<_>>(), bits, 16, k, a)
            }
        }
        operand_b(w, op.b).gather(bits, read, b)?;
        let place = |i: usize, lane: usize| {
            let row = lane / 4 + i % 4 / 2 * 8;
            row * n + i / 4 * 8 + lane % 4 * 2 + i % 2
        };
        match w.elements {
            Elements::Float(a_type, b_type) => {
                d.clear();
                d.resize(16 * n, 0.0);
                if op.accumulate {
                    mma::load_floats(warp.register_rows(&w.d.0), w.accumulator, place, d);
                }
                let (negate_a, negate_b) = (w.negate_a, w.negate_b);
                let widths = Widths::hopper(a_type);
                Product { a, b, k, a_type, b_type, negate_a, negate_b, widths }.accumulate(d, scratch);
                warp.set_rows(&w.d.0, mma::store_floats(w.accumulator, place, d));
            }
            Elements::Integer(a_type, b_type, term) => {
                let mut sums = vec![0i32; 16 * n];
                for (i, &r) in w.d.0.iter().enumerate().filter(|_| op.accumulate) {
                    (0..LANES).for_each(|lane| sums[place(i, lane)] = warp.get(r, lane) as i32);
                }
                let saturate = w.accumulator == Accumulator::S32 { saturate: true };
                IntProduct { a, b, k, a_type, b_type, term, saturate }.accumulate(&mut sums);
                for (i, &r) in w.d.0.iter().enumerate() {
                    (0..LANES).for_each(|lane| warp.set(r, lane, u64::from(sums[place(i, lane)] as u32)));
                }
            }
            Elements::Double => {}
        }
        self.report.macs += 16 * u64::from(w.n) * u64::from(w.k);
        Ok(())
    }
}
