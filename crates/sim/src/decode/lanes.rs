//! Exchange between the lanes of a warp, and what concerns a whole warp.

use super::Result;
use super::decoder::Decoder;
use crate::text::ast::Operand;
use crate::decode::isa::{AtomOp, Op, Shuffle, Vote};
use crate::text::types::Ty;

impl Decoder<'_, '_> {
    pub(super) fn shfl(&mut self) -> Result<Op> {
        let mode = match () {
            () if self.has("up") => Shuffle::Up,
            () if self.has("down") => Shuffle::Down,
            () if self.has("bfly") => Shuffle::Bfly,
            () if self.has("idx") => Shuffle::Idx,
            () => return self.unsupported(),
        };
        let (dst, p) = match self.operand(0)? {
            Operand::Pair(d, p) => (self.register_of(&d)?, Some(self.register_of(&p)?)),
            o => (self.register_of(&o)?, None),
        };
        let mask = if self.has("sync") { Some(self.src(4, Ty::B32)?) } else { None };
        Ok(Op::Shfl {
            mode,
            dst,
            p,
            a: self.src(1, Ty::B32)?,
            b: self.src(2, Ty::B32)?,
            c: self.src(3, Ty::B32)?,
            mask,
        })
    }

    pub(super) fn vote(&mut self) -> Result<Op> {
        let kind = match () {
            () if self.has("all") => Vote::All,
            () if self.has("any") => Vote::Any,
            () if self.has("uni") => Vote::Uni,
            () if self.has("ballot") => Vote::Ballot,
            () => return self.unsupported(),
        };
        let mask = if self.has("sync") { Some(self.src(2, Ty::B32)?) } else { None };
        Ok(Op::Vote { kind, dst: self.dst(0)?, src: self.src(1, Ty::Pred)?, mask })
    }

    pub(super) fn match_op(&mut self) -> Result<Op> {
        let (dst, p) = match self.operand(0)? {
            Operand::Pair(d, p) => (self.register_of(&d)?, self.predicate(&p)?),
            o => (self.register_of(&o)?, None),
        };
        let ty = self.ty()?;
        Ok(Op::Match { all: self.has("all"), dst, p, a: self.src(1, ty)?, mask: self.src(2, Ty::B32)? })
    }

    pub(super) fn redux(&mut self) -> Result<Op> {
        let ty = self.ty()?;
        if ty.bits() != 32 {
            return self.unsupported();
        }
        let Some(op) = self.atomic_op() else { return self.unsupported() };
        let float = match (ty, op) {
            (Ty::F32, AtomOp::Min | AtomOp::Max) => {
                let name = if op == AtomOp::Min { "min" } else { "max" };
                crate::arith::float::float32(name, self.mode()).map(|f| (f, self.has("abs")))
            }
            (Ty::F32, _) => return self.unsupported(),
            _ => None,
        };
        Ok(Op::Redux { op, ty, float, dst: self.dst(0)?, a: self.src(1, ty)?, mask: self.src(2, Ty::B32)? })
    }

    pub(super) fn atomic_op(&self) -> Option<AtomOp> {
        self.inst.opcode.iter().skip(1).find_map(|m| {
            Some(match m.as_str() {
                "add" => AtomOp::Add,
                "and" => AtomOp::And,
                "or" => AtomOp::Or,
                "xor" => AtomOp::Xor,
                "min" => AtomOp::Min,
                "max" => AtomOp::Max,
                "inc" => AtomOp::Inc,
                "dec" => AtomOp::Dec,
                "exch" => AtomOp::Exch,
                "cas" => AtomOp::Cas,
                _ => return None,
            })
        })
    }

    pub(super) fn elect(&mut self) -> Result<Op> {
        let Operand::Pair(d, p) = self.operand(0)? else { return self.error("expected `d|p`") };
        let dst = if *d == Operand::Sink { None } else { Some(self.register_of(&d)?) };
        Ok(Op::Elect { dst, p: self.register_of(&p)?, mask: self.src(1, Ty::B32)? })
    }

    pub(super) fn setmaxnreg(&mut self) -> Result<Op> {
        let count = self.constant(0)?;
        if !(24..=256).contains(&count) || count % 8 != 0 {
            return self.error("the register count is a multiple of 8 from 24 to 256");
        }
        Ok(Op::SetMaxReg { count: count as u32 })
    }
}
