//! Cluster launch control: `clusterlaunchcontrol.try_cancel` and `query_cancel`.

use super::Result;
use super::decoder::{Claim, Decoder};
use super::isa::{Addr, Op, Reg, Src};
use super::operands::operands;
use crate::text::ast::{Operand, Space};
use crate::text::types::Ty;

operands! {
    /// Claims on clusters of the grid that have not begun.
    pub(crate) enum ClcOp {
        /// Asks for a cluster; the response comes to `addr`, with `all` in every CTA of the cluster.
        TryCancel { addr: Addr, mbar: Addr, space: Space, all: bool },
        IsCanceled { dst: Reg, response: [Src; 2] },
        /// The first CTA of the cluster: x, y and z, as far as they are asked for.
        FirstCtaid { dst: [Option<Reg>; 3], response: [Src; 2] },
    }
}

impl Decoder<'_, '_> {
    pub(super) fn clc(&mut self) -> Claim {
        if self.inst.opcode[0] != "clusterlaunchcontrol" {
            return Ok(None);
        }
        let opcode: Vec<&str> = self.inst.opcode[1..].iter().map(String::as_str).collect();
        let op = match opcode.as_slice() {
            ["try_cancel", "async", rest @ ..] => self.try_cancel(rest)?,
            ["query_cancel", "is_canceled", "pred", "b128"] => {
                let o = self.operand(0)?;
                let Some(dst) = self.predicate(&o)? else {
                    return self.error("expected a predicate register");
                };
                ClcOp::IsCanceled { dst, response: self.response()? }
            }
            ["query_cancel", field, "b32", "b128"] => {
                let i = match *field {
                    "get_first_ctaid::x" => 0,
                    "get_first_ctaid::y" => 1,
                    "get_first_ctaid::z" => 2,
                    _ => return self.unsupported(),
                };
                let mut dst = [None; 3];
                dst[i] = Some(self.dst(0)?);
                ClcOp::FirstCtaid { dst, response: self.response()? }
            }
            ["query_cancel", "get_first_ctaid", "v4", "b32", "b128"] => {
                let parts = self.elements(0)?;
                if parts.len() != 4 {
                    return self.error(format!("expected a vector of four registers, found {}", parts.len()));
                }
                let mut dst = [None; 3];
                for (part, to) in parts.iter().zip(&mut dst) {
                    if *part != Operand::Sink {
                        *to = Some(self.register_of(part)?);
                    }
                }
                if parts[3] != Operand::Sink {
                    return self.error("the fourth register would be undefined: write `_`");
                }
                ClcOp::FirstCtaid { dst, response: self.response()? }
            }
            _ => return self.unsupported(),
        };
        self.expect_operands(2, 2)?;
        Ok(Some(Op::Clc(op)))
    }

    fn try_cancel(&mut self, modifiers: &[&str]) -> Result<ClcOp> {
        let (own, rest) = match modifiers {
            ["shared::cta", rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let all = match rest {
            ["mbarrier::complete_tx::bytes", "b128"] => false,
            ["mbarrier::complete_tx::bytes", "multicast::cluster::all", "b128"] => true,
            _ => return self.unsupported(),
        };
        let space = if own { Space::Shared } else { Space::Generic };
        Ok(ClcOp::TryCancel { addr: self.addr(0)?, mbar: self.addr(1)?, space, all })
    }

    /// A response in a register of 128 bits.
    fn response(&mut self) -> Result<[Src; 2]> {
        let o = self.operand(1)?;
        match self.words(&o)?.as_slice() {
            &[low, high] => Ok([Src::Reg(low), Src::Reg(high)]),
            _ => self.error(format!("the response is a register of {} bits", Ty::B128.bits())),
        }
    }
}
