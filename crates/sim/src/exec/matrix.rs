//! Matrix instructions of a warp: `ldmatrix`, `stmatrix`, `movmatrix`, `mma.sync`.

use super::access::Access;
use super::aligned::{aligned, converged};
use super::context::Cx;
use super::memory::{address, check_alignment};
use super::warp::Warp;
use super::{Issue, Next, together};
use crate::decode::isa::Src;
use crate::decode::matrix::{MatrixForm, MatrixOp, MmaScales};
use crate::error::{Fault, FaultKind};
use crate::lanes::LANES;
use crate::units::mma::{BlockScales, Fragments, mma};

/// A row of a matrix in shared memory.
type Row = [u8; 16];

impl MatrixForm {
    /// Rows of a matrix in shared memory.
    fn rows(self) -> usize {
        if self == MatrixForm::ByteColumns { 16 } else { 8 }
    }

    /// Row and byte of what a lane has in byte `byte` of its register `register` of a matrix.
    fn place(self, lane: usize, register: usize, byte: usize) -> (usize, usize) {
        let (group, member) = (lane / 4, lane % 4);
        match self {
            MatrixForm::Rows => (group, 4 * member + byte),
            MatrixForm::HalfColumns => (2 * member + byte / 2, 2 * group + byte % 2),
            MatrixForm::ByteColumns => (4 * member + byte, group + 8 * register),
            MatrixForm::BytePairs => (2 * member + byte % 2, group + 8 * (byte / 2)),
        }
    }

    /// A lane's register of a matrix.
    fn word(self, rows: &[Row], lane: usize, register: usize) -> u64 {
        let byte = |byte: usize| {
            let (row, column) = self.place(lane, register, byte);
            rows[row][column]
        };
        u64::from(u32::from_le_bytes(std::array::from_fn(byte)))
    }

    /// The matrix in one register of every lane.
    fn matrix(self, word: impl Fn(usize) -> u64) -> [Row; 8] {
        let mut rows = [[0; 16]; 8];
        for lane in 0..LANES {
            for (i, byte) in (word(lane) as u32).to_le_bytes().into_iter().enumerate() {
                let (row, column) = self.place(lane, 0, i);
                rows[row][column] = byte;
            }
        }
        rows
    }
}

/// Sixteen elements of a few bits each, one to a byte.
fn unpack(row: Row, bits: u32) -> Row {
    let packed = u128::from_le_bytes(row);
    std::array::from_fn(|i| (packed >> (i as u32 * bits)) as u8 & ((1 << bits) - 1))
}

pub(super) fn execute(warp: &mut Warp, cx: &mut Cx<'_>, op: &MatrixOp, at: Issue) -> Result<Next, Fault> {
    together!(aligned(warp, cx, at));
    converged(warp, cx, at.active);
    match op {
        MatrixOp::LdMatrix { addr, space, dst, form, packed } => {
            let mut access = Access::new(warp.index, at.pc, None);
            // What is behind packed elements is padding.
            let bytes = packed.map_or(16, |bits| 2 * bits as usize);
            for (i, registers) in dst.chunks(form.registers()).enumerate() {
                let mut rows = vec![[0; 16]; form.rows()];
                for (row, to) in rows.iter_mut().enumerate() {
                    let lane = i * form.rows() + row;
                    let a = address(warp, addr, *space, lane);
                    check_alignment(a, 16)?;
                    let location = cx.resolve(warp, *space, a)?;
                    cx.read(warp, lane, &mut access, location, &mut to[..bytes])?;
                    *to = packed.map_or(*to, |bits| unpack(*to, bits));
                }
                for (j, &r) in registers.iter().enumerate() {
                    (0..LANES).for_each(|lane| warp.set(r, lane, form.word(&rows, lane, j)));
                }
            }
            // All lanes take part in the load: none of them can overwrite a row too early.
            converged(warp, cx, at.active);
        }
        MatrixOp::StMatrix { addr, space, src, form } => {
            let mut access = Access::new(warp.index, at.pc, None);
            for (i, s) in src.iter().enumerate() {
                let rows = form.matrix(|lane| warp.value(*s, lane));
                for (row, bytes) in rows.iter().enumerate() {
                    let lane = i * rows.len() + row;
                    let a = address(warp, addr, *space, lane);
                    check_alignment(a, 16)?;
                    let location = cx.resolve(warp, *space, a)?;
                    cx.write(warp, lane, &mut access, location, bytes)?;
                }
            }
        }
        MatrixOp::MovMatrix { dst, src } => {
            let rows = MatrixForm::Rows.matrix(|lane| warp.value(*src, lane));
            (0..LANES).for_each(|lane| warp.set(*dst, lane, MatrixForm::HalfColumns.word(&rows, lane, 0)));
        }
        MatrixOp::Mma(m) => {
            let fragments = Fragments { a: &warp.rows(&m.a), b: &warp.rows(&m.b), c: &warp.rows(&m.c) };
            let registers = m.scales.as_ref().map(|s| [warp.all(s.a), warp.all(s.b)]);
            let scales = match (&m.scales, &registers) {
                (Some(s), Some([a, b])) => {
                    let a_at = selector(warp, s, s.a_at, 1, at.active)?;
                    let b_at = selector(warp, s, s.b_at, 3, at.active)?;
                    Some(BlockScales { shape: s.shape, a: (a, a_at), b: (b, b_at) })
                }
                _ => None,
            };
            let d = mma(m.shape, fragments, scales, &mut cx.cluster.scratch);
            warp.set_rows(&m.d, d);
            cx.report.macs += m.shape.macs();
        }
    }
    Ok(Next::Step)
}

/// The byte and the lane of every four that block scales come from, the same in all lanes.
fn selector(warp: &Warp, s: &MmaScales, at: [Src; 2], last: u64, active: u32) -> Result<[u32; 2], Fault> {
    match at.map(|part| warp.uniform(part, active)) {
        [Some(byte), Some(thread)] if s.shape.has_byte(byte) && thread <= last => {
            Ok([byte as u32, thread as u32])
        }
        [Some(byte), Some(thread)] => Err(Fault::new(
            FaultKind::BadOperand,
            format!("the selector {{{byte}, {thread}}} of {} block scales is out of range", s.shape.count),
        )),
        _ => Err(Fault::new(FaultKind::BadOperand, "lanes differ in the selector of block scales")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storing_undoes_loading() {
        let rows: [Row; 8] = std::array::from_fn(|r| std::array::from_fn(|c| (r * 16 + c) as u8));
        for form in [MatrixForm::Rows, MatrixForm::HalfColumns, MatrixForm::BytePairs] {
            assert_eq!(form.matrix(|lane| form.word(&rows, lane, 0)), rows, "{form:?}");
        }
        assert_eq!(MatrixForm::Rows.word(&rows, 5, 0), 0x1716_1514);
        assert_eq!(MatrixForm::HalfColumns.word(&rows, 5, 0), 0x3332_2322);
    }

    #[test]
    fn packed_elements_come_one_to_a_byte() {
        let row = [0x21, 0x43, 0x65, 0x87, 0xa9, 0xcb, 0xed, 0x0f, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(unpack(row, 4), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0]);
        // 0b..._000011_000010_000001 in the lowest bytes.
        let mut packed = [0; 16];
        packed[..3].copy_from_slice(&[0x81, 0x30, 0x00]);
        assert_eq!(unpack(packed, 6)[..4], [1, 2, 3, 0]);
    }
}
