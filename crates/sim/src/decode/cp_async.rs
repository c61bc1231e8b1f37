//! `cp.async`: copies of single threads.

use super::Result;
use super::decoder::{Claim, Decoder};
use super::isa::{Addr, Op, Src};
use super::operands::operands;
use crate::text::ast::{Operand, Space};
use crate::text::types::Ty;

operands! {
    /// `cp.async`, its groups and its arrivals at mbarriers.
    pub(crate) enum CpAsyncOp {
        Copy { dst: Addr, src: Addr, bytes: u32, src_bytes: Option<Src>, ignore: Option<Src> },
        Commit,
        /// `wait_group`, or (`None`) `wait_all`
        Wait { pending: Option<u32> },
        /// `cp.async.mbarrier.arrive`
        Arrive { addr: Addr, space: Space, noinc: bool },
    }
}

impl Decoder<'_, '_> {
    pub(super) fn cp_async(&mut self) -> Claim {
        let opcode = &self.inst.opcode;
        let bulk = opcode.get(2).is_some_and(|m| m == "bulk");
        match opcode[0].as_str() {
            "cp" if opcode.get(1).is_some_and(|m| m == "async") && !bulk => {
                self.cp_async_operation().map(|op| Some(Op::CpAsync(op)))
            }
            _ => Ok(None),
        }
    }

    fn cp_async_operation(&mut self) -> Result<CpAsyncOp> {
        if self.has("commit_group") {
            return Ok(CpAsyncOp::Commit);
        }
        if self.has("wait_all") {
            return Ok(CpAsyncOp::Wait { pending: None });
        }
        if self.has("wait_group") {
            return Ok(CpAsyncOp::Wait {
                pending: Some(self.constant(0)?.clamp(0, i64::from(u32::MAX)) as u32),
            });
        }
        if self.has("mbarrier") {
            let space = self.barrier_space();
            return Ok(CpAsyncOp::Arrive { addr: self.addr(0)?, space, noinc: self.has("noinc") });
        }
        let bytes = self.constant(2)?;
        if !matches!(bytes, 4 | 8 | 16) || (self.has("cg") && bytes != 16) {
            return self.error("the size is 4, 8 or 16 bytes (16 with .cg)");
        }
        let (mut src_bytes, mut ignore) = (None, None);
        let cached = self.has("L2::cache_hint");
        let optional = self.count() - usize::from(cached && self.count() > 3);
        if optional > 3 {
            let o = self.operand(3)?;
            let predicate = match &o {
                Operand::Name(_) => self.register_and_type(&o)?.1 == Ty::Pred,
                Operand::Not(_) => true,
                _ => false,
            };
            if predicate {
                ignore = Some(self.source(&o, Ty::Pred)?);
            } else {
                src_bytes = Some(self.source(&o, Ty::U32)?);
            }
        }
        Ok(CpAsyncOp::Copy { dst: self.addr(0)?, src: self.addr(1)?, bytes: bytes as u32, src_bytes, ignore })
    }
}
