//! `tcgen05.ld` and `tcgen05.st`: tensor memory to registers and back.
//!
//! Both are performed at their issue. That they may be late is a matter of the shadow memory: nothing that touches the
//! same words is ordered after them before their wait. Registers are ready when they are read: the manual keeps true
//! dependencies through registers, whatever the wait.

use super::{ALL, tensor_address, uniform};
use crate::decode::isa::{Addr, Reg};
use crate::decode::tcgen05::{TensorLoad, TensorStore};
use crate::error::{Fault, FaultKind};
use crate::exec::context::Cx;
use crate::exec::warp::Warp;
use crate::record::{Deed, Way, Work};
use crate::units::tcgen05::queue::{Role, TensorUse};
use crate::units::tcgen05::shapes::MoveShape;
use crate::units::tensor_memory::{Area, TENSOR_LANES, TensorAddress, Use};

/// The address of an access, which the warp can reach.
fn reach(
    warp: &Warp,
    cx: &Cx<'_>,
    addr: &Addr,
    shape: MoveShape,
    registers: usize,
    packed: bool,
) -> Result<(TensorAddress, Vec<Area>), Fault> {
    uniform(warp, addr.base, "the tensor-memory address")?;
    let at = tensor_address(warp, addr, 0);
    let first = warp.env.warp % 4 * 32;
    let lanes = shape.lanes();
    let inside =
        (at.lane == first || lanes == 16 && at.lane == first + 16) && at.lane + lanes <= TENSOR_LANES;
    if !inside {
        return Err(Fault::new(
            FaultKind::TensorMemory,
            format!(
                "the address has lane {}: warp {} reaches lanes {first} to {}, and {lanes} lanes begin at {}",
                at.lane,
                warp.env.warp,
                first + 31,
                if lanes == 32 { format!("{first}") } else { format!("{first} or {}", first + 16) }
            ),
        ));
    }
    let areas: Vec<Area> = shape
        .columns(registers as u32, packed)
        .map(|(from, columns)| Area::new(at.column + from, columns, at.lane, lanes))
        .collect();
    areas.iter().try_for_each(|a| cx.check_area(warp.env.rank as usize, a))?;
    Ok((at, areas))
}

/// Records the access of a warp.
fn record(warp: &Warp, cx: &mut Cx<'_>, areas: &[Area], store: bool, pc: u32) -> Result<(), Fault> {
    let role = if store { Role::Write } else { Role::Operand };
    cx.trace_tensor_memory(
        (warp.index, pc),
        warp.env.rank as usize,
        Use::Move { warp: warp.index, store },
        |_| moved(areas, store),
    );
    let cta = warp.env.rank as usize;
    let at = (warp.index, pc);
    cx.record_at(at, 1, Deed::Issue(if store { Work::TensorStore } else { Work::TensorLoad }));
    for area in areas {
        cx.record_tensor(at, 0, Way::Generic, &TensorUse { cta, area: *area, role });
    }
    let Some(h) = &mut cx.cluster.hazards else { return Ok(()) };
    let event = h.tensor_move(warp.index, pc, store);
    areas.iter().try_for_each(|area| cx.shadow_tensor(event, at, &TensorUse { cta, area: *area, role }))
}

/// What a move reads or writes, in words.
fn moved(areas: &[Area], store: bool) -> String {
    let verb = if store { "stores" } else { "loads" };
    let names: Vec<String> = areas.iter().map(ToString::to_string).collect();
    format!("{verb} {}", names.join(", "))
}

pub(super) fn load(warp: &mut Warp, cx: &mut Cx<'_>, op: &TensorLoad, pc: u32) -> Result<(), Fault> {
    let registers = &op.dst.0;
    let (at, areas) = reach(warp, cx, &op.addr, op.shape, registers.len(), op.packed)?;
    let result = op.reduce.as_ref().map(|r| r.dst.0[0]);
    record(warp, cx, &areas, false, pc)?;
    cx.report.traffic.tensor_loads += areas.iter().map(Area::bytes).sum::<u64>();
    let Some(memory) = cx.cluster.ctas[warp.env.rank as usize].tensor.as_deref() else { return Ok(()) };
    let mut totals = [0u64; 32];
    let mut total_known = u32::MAX;
    for (i, &r) in registers.iter().enumerate() {
        let mut known = 0u32;
        for thread in ALL {
            let (row, unit) = op.shape.place(thread as u32, i as u32);
            let lane = at.lane + row;
            let column = at.column + op.shape.split(thread as u32) + if op.packed { 2 * unit } else { unit };
            let mut value = memory.get(lane, column);
            let mut written = memory.is_written(lane, column);
            if op.packed {
                value = value & 0xffff | memory.get(lane, column + 1) << 16;
                written &= memory.is_written(lane, column + 1);
            }
            warp.set(r, thread, u64::from(value));
            known |= u32::from(written) << thread;
            if let Some(reduce) = &op.reduce {
                let value = u64::from(if reduce.abs { value & 0x7fff_ffff } else { value });
                totals[thread] = if i == 0 { value } else { (reduce.fold)(totals[thread], value, 0) };
            }
        }
        define(warp, r, known, pc);
        total_known &= known;
    }
    if let Some(r) = result {
        ALL.for_each(|thread| warp.set(r, thread, totals[thread]));
        define(warp, r, total_known, pc);
    }
    Ok(())
}

/// A register has been loaded; in lanes that are not `known`, from words that nothing wrote.
fn define(warp: &mut Warp, r: Reg, known: u32, pc: u32) {
    warp.written[r.index()] = known;
    if known != u32::MAX {
        warp.undefined.insert(r, pc);
    }
}

pub(super) fn store(warp: &mut Warp, cx: &mut Cx<'_>, op: &TensorStore, pc: u32) -> Result<(), Fault> {
    let (at, areas) = reach(warp, cx, &op.addr, op.shape, op.src.len(), op.packed)?;
    record(warp, cx, &areas, true, pc)?;
    *cx.progress += 1;
    let memory = cx.cluster.ctas[warp.env.rank as usize].tensor();
    for (i, s) in op.src.iter().enumerate() {
        let row: [u64; 32] = warp.all(*s);
        for thread in ALL {
            let (row_of, unit) = op.shape.place(thread as u32, i as u32);
            let lane = at.lane + row_of;
            let column = at.column + op.shape.split(thread as u32);
            let value = row[thread] as u32;
            if op.packed {
                memory.set(lane, column + 2 * unit, value & 0xffff);
                memory.set(lane, column + 2 * unit + 1, value >> 16);
            } else {
                memory.set(lane, column + unit, value);
            }
        }
    }
    Ok(())
}
