//! Warp collectives: shuffles, votes, matches, reductions, election and `bar.warp.sync`.

use super::Result;
use super::decoder::{Claim, Decoder};
use super::isa::{Op, Reg, Src};
use super::operands::{modifiers, operands};
use crate::arith::AluFn;
use crate::text::ast::Operand;
use crate::text::types::Ty;
use crate::units::atomic::AtomFn;

/// `vote` and `redux` functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Uni,
    Ballot,
}

/// `shfl` modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Bfly,
    Idx,
}

modifiers!(Shuffle, Vote);

operands! {
    /// Exchange between the lanes of a warp.
    pub(crate) enum CollectiveOp {
        Shfl { mode: Shuffle, dst: Reg, p: Option<Reg>, a: Src, b: Src, c: Src, mask: Option<Src> },
        Vote { kind: Vote, dst: Reg, src: Src, mask: Option<Src> },
        Match { all: bool, dst: Reg, p: Option<Reg>, a: Src, mask: Src },
        Redux {
            op: AtomFn,
            ty: Ty,
            /// The function of two f32, and whether it takes their magnitudes.
            float: Option<(AluFn, bool)>,
            dst: Reg,
            a: Src,
            mask: Src,
        },
        Elect { dst: Option<Reg>, p: Reg, mask: Src },
        ActiveMask { dst: Reg },
        /// `bar.warp.sync`
        WarpSync { mask: Src },
    }
}

impl Decoder<'_, '_> {
    pub(super) fn collective(&mut self) -> Claim {
        let op = match self.inst.opcode[0].as_str() {
            "shfl" => self.shfl()?,
            "vote" => self.vote()?,
            "match" => self.match_op()?,
            "redux" => self.redux()?,
            "elect" => self.elect()?,
            "activemask" => CollectiveOp::ActiveMask { dst: self.dst(0)? },
            "bar" if self.has("warp") && !self.has("cluster") => {
                CollectiveOp::WarpSync { mask: self.src(0, Ty::B32)? }
            }
            _ => return Ok(None),
        };
        Ok(Some(Op::Collective(op)))
    }

    fn shfl(&mut self) -> Result<CollectiveOp> {
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
        Ok(CollectiveOp::Shfl {
            mode,
            dst,
            p,
            a: self.src(1, Ty::B32)?,
            b: self.src(2, Ty::B32)?,
            c: self.src(3, Ty::B32)?,
            mask,
        })
    }

    fn vote(&mut self) -> Result<CollectiveOp> {
        let kind = match () {
            () if self.has("all") => Vote::All,
            () if self.has("any") => Vote::Any,
            () if self.has("uni") => Vote::Uni,
            () if self.has("ballot") => Vote::Ballot,
            () => return self.unsupported(),
        };
        let mask = if self.has("sync") { Some(self.src(2, Ty::B32)?) } else { None };
        Ok(CollectiveOp::Vote { kind, dst: self.dst(0)?, src: self.src(1, Ty::Pred)?, mask })
    }

    fn match_op(&mut self) -> Result<CollectiveOp> {
        let (dst, p) = match self.operand(0)? {
            Operand::Pair(d, p) => (self.register_of(&d)?, self.predicate(&p)?),
            o => (self.register_of(&o)?, None),
        };
        let ty = self.ty()?;
        Ok(CollectiveOp::Match {
            all: self.has("all"),
            dst,
            p,
            a: self.src(1, ty)?,
            mask: self.src(2, Ty::B32)?,
        })
    }

    fn redux(&mut self) -> Result<CollectiveOp> {
        let ty = self.ty()?;
        if ty.bits() != 32 {
            return self.unsupported();
        }
        let Some(op) = self.atomic_op() else { return self.unsupported() };
        let float = match (ty, op) {
            (Ty::F32, AtomFn::Min | AtomFn::Max) => {
                let name = if op == AtomFn::Min { "min" } else { "max" };
                crate::arith::float::float32(name, self.mode()).map(|f| (f, self.has("abs")))
            }
            (Ty::F32, _) => return self.unsupported(),
            _ => None,
        };
        Ok(CollectiveOp::Redux {
            op,
            ty,
            float,
            dst: self.dst(0)?,
            a: self.src(1, ty)?,
            mask: self.src(2, Ty::B32)?,
        })
    }

    fn elect(&mut self) -> Result<CollectiveOp> {
        let Operand::Pair(d, p) = self.operand(0)? else { return self.error("expected `d|p`") };
        let dst = if *d == Operand::Sink { None } else { Some(self.register_of(&d)?) };
        Ok(CollectiveOp::Elect { dst, p: self.register_of(&p)?, mask: self.src(1, Ty::B32)? })
    }
}
