//! `tcgen05.cp` and `tcgen05.shift`.

use crate::error::{Fault, FaultKind};
use crate::exec::context::Cx;
use crate::units::tcgen05::descriptor::MatrixDescriptor;
use crate::units::tcgen05::queue::{Footprint, Role, TensorUse};
use crate::units::tcgen05::shapes::{CopyShape, decompress};
use crate::units::tensor_memory::{Area, TENSOR_LANES, TensorAddress};

/// Columns of a shifted row: 32 bytes.
const SHIFT_COLUMNS: u32 = 8;

fn ranks(ctas: u32) -> impl Iterator<Item = usize> {
    (0..u32::BITS as usize).filter(move |r| ctas >> r & 1 == 1)
}

fn source(descriptor: u64) -> Result<MatrixDescriptor, Fault> {
    MatrixDescriptor::decode(descriptor).map_err(|e| Fault::new(FaultKind::BadOperand, e))
}

/// Bytes of a 16-byte piece that a copy reads: what is behind packed elements is padding.
fn piece_bytes(shape: CopyShape) -> u32 {
    shape.packed.map_or(16, |bits| 2 * bits)
}

/// What a copy touches.
pub(super) fn footprint(
    to: TensorAddress,
    descriptor: u64,
    shape: CopyShape,
    ctas: u32,
) -> Result<Footprint, Fault> {
    let rows = shape.rows;
    let from = source(descriptor)?;
    let mut lanes = 0u128;
    for lane in (0..rows.rows()).flat_map(|row| rows.lanes(row)) {
        if to.lane + lane >= TENSOR_LANES {
            return Err(Fault::new(
                FaultKind::TensorMemory,
                format!("the copy begins in lane {} and goes past lane {}", to.lane, TENSOR_LANES - 1),
            ));
        }
        lanes |= 1 << (to.lane + lane);
    }
    let area = Area { column: to.column, columns: 4 * rows.pieces(), lanes };
    let pieces = (0..rows.rows()).flat_map(|row| (0..rows.pieces()).map(move |p| (row, p)));
    let read: Vec<(u32, u32)> = pieces.map(|(row, p)| (from.k_major(row, p), piece_bytes(shape))).collect();
    Ok(Footprint {
        shared: ranks(ctas).map(|cta| (cta, read.clone())).collect(),
        tensor: ranks(ctas).map(|cta| TensorUse { cta, area, role: Role::Write }).collect(),
    })
}

/// Copies rows of shared memory into tensor memory, each CTA its own.
pub(super) fn perform(
    cx: &mut Cx<'_>,
    to: TensorAddress,
    descriptor: u64,
    shape: CopyShape,
    ctas: u32,
) -> Result<(), Fault> {
    let from = source(descriptor)?;
    let rows = shape.rows;
    for cta in ranks(ctas) {
        let pieces = u64::from(rows.pieces());
        let lanes = (0..rows.rows()).flat_map(|row| rows.lanes(row)).count() as u64;
        cx.report.traffic.operands += u64::from(rows.rows()) * pieces * u64::from(piece_bytes(shape));
        cx.report.traffic.tensor_copies += lanes * pieces * 16;
        for (row, piece) in (0..rows.rows()).flat_map(|row| (0..rows.pieces()).map(move |p| (row, p))) {
            let bytes = cx.shared_bytes(cta, from.k_major(row, piece), piece_bytes(shape))?;
            let mut data = [0u8; 16];
            data[..bytes.len()].copy_from_slice(bytes);
            if let Some(bits) = shape.packed {
                data = decompress(data, bits);
            }
            let memory = cx.cluster.ctas[cta].tensor();
            for lane in rows.lanes(row) {
                for (i, word) in data.chunks_exact(4).enumerate() {
                    let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                    memory.set(to.lane + lane, to.column + 4 * piece + i as u32, word);
                }
            }
        }
    }
    Ok(())
}

/// For the timeline.
pub(super) fn detail(cx: &Cx<'_>, to: TensorAddress, descriptor: u64) -> String {
    let from = MatrixDescriptor::decode(descriptor).map_or(0, |d| d.start);
    format!("{} to tensor memory at column {}", cx.shared_text(from), to.column)
}

/// What a shift touches: the 32 lanes of a warp.
pub(super) fn shift_footprint(at: TensorAddress, ctas: u32) -> Result<Footprint, Fault> {
    if !at.lane.is_multiple_of(32) || at.lane >= TENSOR_LANES {
        return Err(Fault::new(
            FaultKind::BadOperand,
            format!("a shift begins at lane {}: it takes a multiple of 32 below {TENSOR_LANES}", at.lane),
        ));
    }
    let area = Area::new(at.column, SHIFT_COLUMNS, at.lane, 32);
    let tensor = ranks(ctas).map(|cta| TensorUse { cta, area, role: Role::Write }).collect();
    Ok(Footprint { shared: Vec::new(), tensor })
}

/// Every row but the last moves down by one: row `r` becomes row `r + 1`, and the first stays.
pub(super) fn perform_shift(cx: &mut Cx<'_>, at: TensorAddress, ctas: u32) -> Result<(), Fault> {
    let check = cx.options.hazards;
    for cta in ranks(ctas) {
        let index = cx.cluster.ctas[cta].index;
        let memory = cx.cluster.ctas[cta].tensor();
        let moved = Area::new(at.column, SHIFT_COLUMNS, at.lane, 31);
        if check && let Some((lane, column)) = memory.unwritten(&moved) {
            return Err(Fault::new(
                FaultKind::Uninitialized,
                format!(
                    "tensor memory of CTA {index}, column {column}, lane {lane} is read and was never written"
                ),
            ));
        }
        for column in at.column..at.column + SHIFT_COLUMNS {
            let lanes = &mut memory.column_mut(column)[at.lane as usize..][..32];
            lanes.copy_within(..31, 1);
        }
        memory.mark(&Area::new(at.column, SHIFT_COLUMNS, at.lane + 1, 31));
    }
    Ok(())
}
