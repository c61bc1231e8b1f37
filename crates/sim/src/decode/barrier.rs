//! Barriers: named barriers of a CTA and the cluster barrier.

use super::Result;
use super::collective::Vote;
use super::decoder::{Claim, Decoder};
use super::isa::{Op, Reg, Src};
use super::operands::operands;
use crate::text::types::Ty;

operands! {
    /// Barriers of a CTA or a cluster.
    pub(crate) enum BarrierOp {
        /// `bar.sync`, `bar.arrive`, `barrier.sync`, `barrier.arrive`
        Named { id: Src, threads: Option<Src>, aligned: bool, arrive_only: bool },
        /// `bar.red`
        Reduce { id: Src, threads: Option<Src>, kind: Vote, dst: Reg, src: Src, popc: bool },
        /// `barrier.cluster.arrive`
        ClusterArrive { release: bool, aligned: bool },
        /// `barrier.cluster.wait`
        ClusterWait { acquire: bool, aligned: bool },
    }
}

impl Decoder<'_, '_> {
    pub(super) fn barrier(&mut self) -> Claim {
        match self.inst.opcode[0].as_str() {
            "bar" | "barrier" => self.barrier_of_threads().map(|op| Some(Op::Barrier(op))),
            _ => Ok(None),
        }
    }

    fn barrier_of_threads(&mut self) -> Result<BarrierOp> {
        if self.has("cluster") {
            // `.aligned` is optional and its absence means that threads arrive one by one.
            let aligned = self.has("aligned");
            return if self.has("arrive") {
                Ok(BarrierOp::ClusterArrive { release: !self.has("relaxed"), aligned })
            } else {
                Ok(BarrierOp::ClusterWait { acquire: !self.has("relaxed"), aligned })
            };
        }
        let aligned = self.inst.opcode[0] == "bar" || self.has("aligned");
        if self.has("red") {
            return self.barrier_reduce();
        }
        self.expect_operands(0, 2)?;
        let id = if self.count() == 0 { Src::Imm(0) } else { self.src(0, Ty::U32)? };
        let threads = if self.count() == 2 { Some(self.src(1, Ty::U32)?) } else { None };
        let arrive_only = self.has("arrive");
        if arrive_only && threads.is_none() {
            return self.error("an arrival names the number of threads");
        }
        Ok(BarrierOp::Named { id, threads, aligned, arrive_only })
    }

    fn barrier_reduce(&mut self) -> Result<BarrierOp> {
        let (kind, popc) = match () {
            () if self.has("popc") => (Vote::Ballot, true),
            () if self.has("and") => (Vote::All, false),
            () if self.has("or") => (Vote::Any, false),
            () => return self.unsupported(),
        };
        let dst = self.dst(0)?;
        let id = self.src(1, Ty::U32)?;
        let threads = if self.count() == 4 { Some(self.src(2, Ty::U32)?) } else { None };
        let src = self.src(self.count() - 1, Ty::Pred)?;
        Ok(BarrierOp::Reduce { id, threads, kind, dst, src, popc })
    }
}
