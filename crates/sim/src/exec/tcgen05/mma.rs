//! `tcgen05.mma`: issue and execution.
//!
//! The operands are taken when the MMA is issued: descriptors, addresses and masks. Memory is read and written when
//! the schedule has it done. With `cta_group::2` each CTA of the pair has half of the rows of A and D, and half of the
//! columns of B; the even one has the first half.

use super::{cta_mask, tensor_address};
use crate::decode::isa::Addr;
use crate::decode::tcgen05::mma::{MmaA, TensorMma};
use crate::error::{Fault, FaultKind};
use crate::exec::context::Cx;
use crate::exec::warp::Warp;
use crate::units::tcgen05::descriptor::{MatrixDescriptor, SharedOperand};
use crate::units::tcgen05::instruction::Instruction;
use crate::units::tcgen05::layout::{Layout, scale_columns, scale_place};
use crate::units::tcgen05::mma::{Held, MmaBuffers, MmaWork, SourceA, ZeroColumns};
use crate::units::tcgen05::queue::{Footprint, Role, TensorUse};
use crate::units::tensor_memory::{Area, TensorAddress, TensorMemory};
use std::hash::{DefaultHasher, Hash, Hasher};

fn bad(message: impl Into<String>) -> Fault {
    Fault::new(FaultKind::BadOperand, message)
}

fn ranks(ctas: u32) -> impl Iterator<Item = usize> {
    (0..u32::BITS as usize).filter(move |r| ctas >> r & 1 == 1)
}

/// An MMA of one lane: its work, what it touches, and a number that is the same for MMAs that are in order on one
/// accumulator (same address, shape and kind).
pub(super) fn issue(
    warp: &Warp,
    cx: &mut Cx<'_>,
    mma: &TensorMma,
    lane: usize,
) -> Result<(MmaWork, Footprint, u64), Fault> {
    let form = mma.form;
    let word = |s| warp.value(s, lane);
    let instruction = Instruction::decode(word(mma.instruction) as u32, form).map_err(bad)?;
    let layout = Layout::new(&instruction, form);
    let d = tensor_address(warp, &mma.d, lane);
    if !layout.begins_at(d.lane) {
        let lanes = if layout.begins_at(16) { "0 and 16" } else { "0" };
        return Err(bad(format!("D begins in lane {}; M = {} allows {}", d.lane, instruction.m, lanes)));
    }
    let a = match &mma.a {
        MmaA::Descriptor(s) => SourceA::Shared(operand(word(*s), "A", &instruction)?),
        MmaA::Tensor(address) => {
            let at = tensor_address(warp, address, lane);
            if at.lane != d.lane {
                return Err(bad(format!(
                    "A begins in lane {} and D in lane {}: they must be the same",
                    at.lane, d.lane
                )));
            }
            if instruction.a_mn_major {
                return Err(bad(
                    "A in tensor memory is K-major: bit 15 of the instruction descriptor must be zero",
                ));
            }
            SourceA::Tensor(at)
        }
    };
    let scales = match &mma.scales {
        Some((a, b)) => Some((scale_address(warp, a, lane, "A")?, scale_address(warp, b, lane, "B")?)),
        None => None,
    };
    let mut disabled = [0u128; 2];
    for (i, mask) in mma.disabled.iter().enumerate() {
        disabled[i / 4] |= u128::from(word(*mask) as u32) << (32 * (i % 4));
    }
    if mma.shift_a && instruction.m < 128 {
        return Err(bad(format!("`.ashift` takes M = 128 or 256, not {}", instruction.m)));
    }
    let zero_columns = match mma.zero_columns {
        Some(s) => ZeroColumns::decode(word(s), instruction.m, instruction.n).map_err(bad)?,
        None => ZeroColumns::default(),
    };
    let work = MmaWork {
        form,
        instruction,
        layout,
        d,
        a,
        b: operand(word(mma.b), "B", &instruction)?,
        scales,
        accumulate: (word(mma.accumulate) & 1 == 1).then_some(mma.input_shift),
        disabled,
        zero_columns,
        shift_a: mma.shift_a,
    };
    collect(warp, cx, mma, &work)?;
    let footprint = footprint(&work, cta_mask(warp.env.rank, mma.pair));
    let mut hasher = DefaultHasher::new();
    (d.lane, d.column, instruction.m, instruction.n, form.kind, form.pair, form.stationary).hash(&mut hasher);
    Ok((work, footprint, hasher.finish()))
}

/// A matrix descriptor, with a swizzle that its operand can have.
fn operand(descriptor: u64, name: &str, i: &Instruction) -> Result<MatrixDescriptor, Fault> {
    let d = MatrixDescriptor::decode(descriptor).map_err(|e| bad(format!("{name}: {e}")))?;
    let (element, mn_major) = if name == "A" { (i.a, i.a_mn_major) } else { (i.b, i.b_mn_major) };
    i.check_swizzle(name, element, mn_major, d.swizzle).map_err(bad)?;
    Ok(d)
}

/// The address of scales. Its upper two bits are the scale id to some compilers, and not part of it.
fn scale_address(warp: &Warp, address: &Addr, lane: usize, name: &str) -> Result<TensorAddress, Fault> {
    let mut at = tensor_address(warp, address, lane);
    at.lane &= 0x3fff;
    if at.lane != 0 {
        return Err(bad(format!("the scales of {name} begin in lane {}: they begin in lane 0", at.lane)));
    }
    Ok(at)
}

/// The collector buffer that the MMA names.
fn collect(warp: &Warp, cx: &mut Cx<'_>, mma: &TensorMma, work: &MmaWork) -> Result<(), Fault> {
    let i = &work.instruction;
    let (source, rows, mn_major) = if work.form.stationary {
        (SourceA::Shared(work.b), i.n, i.b_mn_major)
    } else {
        (work.a, i.m, i.a_mn_major)
    };
    let rank = warp.env.rank & if mma.pair { !1 } else { !0 };
    let matrix = Held { source, kind: i.kind, rows, mn_major };
    let collectors = &mut cx.cluster.ctas[rank as usize].tensor().collectors;
    match collectors.apply(mma.collector, matrix) {
        Err(why) if cx.options.hazards => Err(bad(format!("the collector buffer is used, and {why}"))),
        _ => Ok(()),
    }
}

/// A in the shared memory of one CTA.
fn shared_a(work: &MmaWork, descriptor: MatrixDescriptor) -> SharedOperand {
    let i = &work.instruction;
    SharedOperand {
        descriptor,
        packing: i.packing(i.a),
        mn_major: i.a_mn_major,
        first: 0,
        rows: work.layout.rows,
        k: i.k,
    }
}

/// B in the shared memory of one CTA.
fn shared_b(work: &MmaWork) -> SharedOperand {
    let i = &work.instruction;
    SharedOperand {
        descriptor: work.b,
        packing: i.packing(i.b),
        mn_major: i.b_mn_major,
        first: work.zero_columns.shift,
        rows: if work.form.pair { i.n / 2 } else { i.n },
        k: i.k,
    }
}

impl MmaWork {
    /// The accumulators of a CTA (0 or 1 of a pair) that are written.
    fn area_d(&self, half: usize) -> Area {
        let lanes = (0..self.layout.parts).fold(0, |mask, part| mask | self.layout.lanes(part));
        let lanes = (lanes << self.d.lane) & !self.disabled[half];
        Area { column: self.d.column, columns: self.layout.columns, lanes }
    }

    /// A in tensor memory, with its copies for each part.
    fn area_a(&self, at: TensorAddress) -> Area {
        let lanes = (0..self.layout.parts).fold(0, |mask, part| mask | self.layout.lanes(part));
        Area { column: at.column, columns: MmaWork::A_COLUMNS, lanes: lanes << at.lane }
    }

    /// Scales of A and B, with their copies for each 32 lanes.
    fn area_scales(&self) -> impl Iterator<Item = Area> {
        let rows = [self.layout.rows, self.layout.columns];
        let addresses = self.scales.into_iter().flat_map(|(a, b)| [a, b]);
        addresses.zip(rows).map(|(at, rows)| Area::new(at.column, scale_columns(rows), 0, 128))
    }
}

/// What an MMA touches.
fn footprint(work: &MmaWork, ctas: u32) -> Footprint {
    let mut shared: Vec<(u32, u32)> = shared_b(work).ranges().collect();
    let mut tensor = Vec::new();
    if let SourceA::Shared(descriptor) = work.a {
        shared.extend(shared_a(work, descriptor).ranges());
    }
    let shared = merged(shared);
    for (half, cta) in ranks(ctas).enumerate() {
        let mut area = |area: Area, role| {
            if area.lanes != 0 {
                tensor.push(TensorUse { cta, area, role });
            }
        };
        if let SourceA::Tensor(at) = work.a {
            area(work.area_a(at), Role::Operand);
        }
        work.area_scales().for_each(|a| area(a, Role::Operand));
        area(work.area_d(half), Role::Accumulator);
    }
    Footprint { shared: ranks(ctas).map(|cta| (cta, shared.clone())).collect(), tensor }
}

/// Ranges in order, those that touch as one.
fn merged(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.sort_unstable();
    let mut out: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
    for (at, len) in ranges {
        match out.last_mut() {
            Some(last) if last.0 + last.1 >= at => last.1 = last.1.max(at + len - last.0),
            _ => out.push((at, len)),
        }
    }
    out
}

/// Does an MMA in the CTAs of the mask.
pub(super) fn perform(cx: &mut Cx<'_>, work: &MmaWork, ctas: u32) -> Result<(), Fault> {
    let mut buffers = std::mem::take(&mut cx.cluster.tensor_work.buffers);
    let result = multiply(cx, work, ctas, &mut buffers);
    cx.cluster.tensor_work.buffers = buffers;
    result
}

fn multiply(cx: &mut Cx<'_>, work: &MmaWork, ctas: u32, buffers: &mut MmaBuffers) -> Result<(), Fault> {
    let i = &work.instruction;
    buffers.b.clear();
    for cta in ranks(ctas) {
        shared_b(work).gather(|at, len| cx.shared_bytes(cta, at, len), &mut buffers.b)?;
    }
    for column in (0..i.n).filter(|c| work.zero_columns.is_zero(*c)) {
        buffers.b[(column * i.k) as usize..][..i.k as usize].fill(0);
    }
    for (half, cta) in ranks(ctas).enumerate() {
        check_written(cx, work, cta, half)?;
        if let SourceA::Shared(descriptor) = work.a {
            buffers.a.clear();
            shared_a(work, descriptor).gather(|at, len| cx.shared_bytes(cta, at, len), &mut buffers.a)?;
        }
        let hazards = cx.options.hazards;
        let memory = cx.cluster.ctas[cta].tensor();
        for part in 0..work.layout.parts {
            if let SourceA::Tensor(at) = work.a {
                read_a(memory, work, at, part, &mut buffers.a);
            }
            if work.scales.is_some() {
                read_scales(memory, work, part, hazards, buffers)?;
            }
            read_d(memory, work, part, &mut buffers.d);
            let columns = work.layout.columns;
            work.multiply(buffers, part * columns..(part + 1) * columns);
            write_d(memory, work, part, half, &buffers.d);
        }
        memory.mark(&work.area_d(half));
    }
    cx.report.macs += u64::from(i.m) * u64::from(i.n) * u64::from(i.k);
    count(cx, work, ctas);
    Ok(())
}

/// Counts what an MMA reads and writes.
fn count(cx: &mut Cx<'_>, work: &MmaWork, ctas: u32) {
    let bytes = |operand: SharedOperand| operand.ranges().map(|(_, len)| u64::from(len)).sum::<u64>();
    let a = match work.a {
        SourceA::Shared(descriptor) => bytes(shared_a(work, descriptor)),
        SourceA::Tensor(_) => 0,
    };
    let b = bytes(shared_b(work));
    let d: u64 = ranks(ctas).enumerate().map(|(half, _)| work.area_d(half).bytes()).sum();
    let traffic = &mut cx.report.traffic;
    traffic.operands += u64::from(ctas.count_ones()) * (a + b);
    traffic.accumulators_written += d;
    traffic.accumulators_read += if work.accumulate.is_some() { d } else { 0 };
}

/// Operands in tensor memory must have been written.
fn check_written(cx: &mut Cx<'_>, work: &MmaWork, cta: usize, half: usize) -> Result<(), Fault> {
    if !cx.options.hazards {
        return Ok(());
    }
    let a = match work.a {
        SourceA::Tensor(at) => Some(("A", work.area_a(at))),
        SourceA::Shared(_) => None,
    };
    let d = work.accumulate.map(|_| ("D", work.area_d(half)));
    let scales = ["scales of A", "scales of B"].into_iter().zip(work.area_scales());
    let areas: Vec<_> = a.into_iter().chain(d).chain(scales).collect();
    let index = cx.cluster.ctas[cta].index;
    let memory = cx.cluster.ctas[cta].tensor();
    for (name, area) in areas {
        if let Some((lane, column)) = memory.unwritten(&area) {
            return Err(Fault::new(
                FaultKind::Uninitialized,
                format!(
                    "{name} of this MMA: tensor memory of CTA {index}, column {column}, lane {lane} was never written"
                ),
            ));
        }
    }
    Ok(())
}

/// Rows of A out of the lanes of a part.
fn read_a(memory: &TensorMemory, work: &MmaWork, at: TensorAddress, part: u32, out: &mut Vec<u32>) {
    out.clear();
    for row in 0..work.layout.rows {
        let from = if work.shift_a { row.saturating_sub(1) } else { row };
        let lane = at.lane + work.layout.lane(from, part);
        work.unpack_a(std::array::from_fn(|c| memory.get(lane, at.column + c as u32)), out);
    }
}

/// The scales that the lanes of a part read. The copies in other lanes must be the same.
fn read_scales(
    memory: &TensorMemory,
    work: &MmaWork,
    part: u32,
    check: bool,
    buffers: &mut MmaBuffers,
) -> Result<(), Fault> {
    let (Some(scales), Some((a, b))) = (work.instruction.scales, work.scales) else { return Ok(()) };
    let count = work.instruction.k / scales.block;
    let quarters = work.layout.quarters(part);
    let all = [
        (&mut buffers.scale_a, "A", a, scales.id_a, work.layout.rows),
        (&mut buffers.scale_b, "B", b, scales.id_b, work.layout.columns),
    ];
    for (out, name, at, id, rows) in all {
        out.clear();
        for row in 0..rows {
            let (lane, column) = scale_place(row);
            let bytes = |quarter: u32| memory.get(32 * quarter + lane, at.column + column) >> (8 * id);
            let word = bytes(quarters.start);
            let used = u32::MAX >> (32 - 8 * count);
            if check && let Some(other) = quarters.clone().find(|q| (bytes(*q) ^ word) & used != 0) {
                return Err(bad(format!(
                    "scales of {name}, row {row}: lane {} of column {} holds {:#x} and lane {} {:#x}; each 32 lanes \
                     need the same scales",
                    32 * quarters.start + lane,
                    at.column + column,
                    word & used,
                    32 * other + lane,
                    bytes(other) & used
                )));
            }
            out.extend_from_slice(&word.to_le_bytes()[..count as usize]);
        }
    }
    Ok(())
}

/// D of a part, or zeros if it is not added.
fn read_d(memory: &TensorMemory, work: &MmaWork, part: u32, out: &mut Vec<u32>) {
    let columns = work.layout.columns as usize;
    out.clear();
    out.resize(work.layout.rows as usize * columns, 0);
    if work.accumulate.is_none() {
        return;
    }
    for c in 0..columns {
        let lanes = memory.column(work.d.column + c as u32);
        for row in 0..work.layout.rows {
            out[row as usize * columns + c] = lanes[(work.d.lane + work.layout.lane(row, part)) as usize];
        }
    }
}

fn write_d(memory: &mut TensorMemory, work: &MmaWork, part: u32, half: usize, d: &[u32]) {
    let columns = work.layout.columns as usize;
    for c in 0..columns {
        let lanes = memory.column_mut(work.d.column + c as u32);
        for row in 0..work.layout.rows {
            let lane = work.d.lane + work.layout.lane(row, part);
            if work.disabled[half] >> lane & 1 == 0 {
                lanes[lane as usize] = d[row as usize * columns + c];
            }
        }
    }
}

/// For the timeline.
pub(super) fn detail(cx: &Cx<'_>, work: &MmaWork) -> String {
    let a = match work.a {
        SourceA::Shared(d) => cx.shared_text(d.start),
        SourceA::Tensor(at) => format!("tensor memory at column {}", at.column),
    };
    format!("{a} x {} to tensor memory at column {}", cx.shared_text(work.b.start), work.d.column)
}
