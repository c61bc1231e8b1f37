//! mbarriers: initialization, arrivals, expected bytes and waits.

use super::Result;
use super::decoder::{Claim, Decoder};
use super::isa::{Addr, Op, Reg, Src};
use super::operands::operands;
use crate::hazard::Scope;
use crate::text::ast::{Operand, Space};
use crate::text::types::Ty;

operands! {
    /// Operations on an mbarrier.
    pub(crate) enum MbarrierOp {
        Init { addr: Addr, space: Space, count: Src },
        Inval { addr: Addr, space: Space },
        Arrive(Arrive),
        /// `expect_tx`, or `complete_tx`
        Tx { addr: Addr, space: Space, bytes: Src, complete: bool },
        /// `test_wait`, or (`blocking`) `try_wait`
        Wait {
            dst: Reg,
            addr: Addr,
            space: Space,
            phase: PhaseRef,
            blocking: bool,
            acquire: bool,
            scope: Scope,
        },
        /// `pending_count`
        Pending { dst: Reg, token: Src },
    }
}

operands! {
    /// An arrival on an mbarrier.
    pub(crate) struct Arrive {
        pub(crate) addr: Addr,
        pub(crate) space: Space,
        pub(crate) count: Src,
        pub(crate) expect: Option<Src>,
        pub(crate) token: Option<Reg>,
        pub(crate) release: bool,
        pub(crate) scope: Scope,
        pub(crate) drop: bool,
        pub(crate) no_complete: bool,
    }
}

operands! {
    /// What an mbarrier wait names: a parity or a token.
    pub(crate) enum PhaseRef {
        Parity(Src),
        Token(Src),
    }
}

impl Decoder<'_, '_> {
    pub(super) fn mbarrier(&mut self) -> Claim {
        match self.inst.opcode[0].as_str() {
            "mbarrier" => self.mbarrier_operation().map(|op| Some(Op::Mbarrier(op))),
            _ => Ok(None),
        }
    }

    /// The space of an mbarrier operand.
    pub(super) fn barrier_space(&self) -> Space {
        match self.space() {
            Space::Global => Space::Generic,
            s => s,
        }
    }

    fn mbarrier_operation(&mut self) -> Result<MbarrierOp> {
        let space = self.barrier_space();
        match self.inst.opcode.get(1).map(String::as_str) {
            Some("init") => Ok(MbarrierOp::Init { addr: self.addr(0)?, space, count: self.src(1, Ty::U32)? }),
            Some("inval") => Ok(MbarrierOp::Inval { addr: self.addr(0)?, space }),
            Some("expect_tx") => Ok(MbarrierOp::Tx {
                addr: self.addr(0)?,
                space,
                bytes: self.src(1, Ty::U32)?,
                complete: false,
            }),
            Some("complete_tx") => Ok(MbarrierOp::Tx {
                addr: self.addr(0)?,
                space,
                bytes: self.src(1, Ty::U32)?,
                complete: true,
            }),
            Some("arrive" | "arrive_drop") => self.mbarrier_arrive(space),
            Some("test_wait" | "try_wait") => {
                let blocking = self.has("try_wait");
                let dst = self.dst(0)?;
                let addr = self.addr(1)?;
                let phase = if self.has("parity") {
                    PhaseRef::Parity(self.src(2, Ty::U32)?)
                } else {
                    PhaseRef::Token(self.src(2, Ty::B64)?)
                };
                self.expect_operands(3, 4)?;
                Ok(MbarrierOp::Wait {
                    dst,
                    addr,
                    space,
                    phase,
                    blocking,
                    acquire: !self.has("relaxed"),
                    scope: self.scope().unwrap_or(Scope::Cta),
                })
            }
            Some("pending_count") => {
                Ok(MbarrierOp::Pending { dst: self.dst(0)?, token: self.src(1, Ty::B64)? })
            }
            _ => self.unsupported(),
        }
    }

    fn mbarrier_arrive(&mut self, space: Space) -> Result<MbarrierOp> {
        // `mbarrier.arrive{...} {state,} [addr] {, count}`
        let with_state = !matches!(self.operand(0)?, Operand::Address(..));
        let first = usize::from(with_state);
        let token = if with_state { self.optional_dst(0)? } else { None };
        let addr = self.addr(first)?;
        let extra = if self.count() > first + 1 { Some(self.src(first + 1, Ty::U32)?) } else { None };
        let expects = self.has("expect_tx");
        if expects && extra.is_none() {
            return self.error("the expected byte count is missing");
        }
        Ok(MbarrierOp::Arrive(Arrive {
            addr,
            space,
            count: if expects { Src::Imm(1) } else { extra.unwrap_or(Src::Imm(1)) },
            expect: if expects { extra } else { None },
            token,
            release: !self.has("relaxed"),
            scope: self.scope().unwrap_or(Scope::Cta),
            drop: self.has("arrive_drop"),
            no_complete: self.has("noComplete"),
        }))
    }
}
