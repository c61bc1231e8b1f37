//! Fences: of the memory model, between proxies, and of tensor maps.

use super::Result;
use super::decoder::{Claim, Decoder};
use super::isa::{Addr, Op, Sem, Src};
use super::operands::operands;
use crate::hazard::Scope;
use crate::text::types::Ty;

operands! {
    /// Fences, by what they order.
    pub(crate) enum FenceOp {
        /// `fence.sc/acq_rel`, `membar`.
        Thread { sem: Sem },
        /// `fence.proxy.async`, for the memory that it names; for both if it names none.
        ProxyAsync { shared: bool, global: bool },
        /// `fence.mbarrier_init.release.cluster`
        MbarrierInit,
        /// `fence.proxy.tensormap::generic.release`
        TensorMapRelease { sem: Sem },
        /// `fence.proxy.tensormap::generic.acquire`
        TensorMapAcquire { sem: Sem, addr: Addr, bytes: Src },
        /// `fence.proxy.alias` and others with no effect in this model.
        Nothing,
    }
}

impl Decoder<'_, '_> {
    pub(super) fn fence(&mut self) -> Claim {
        match self.inst.opcode[0].as_str() {
            "fence" | "membar" => self.fence_operation().map(|op| Some(Op::Fence(op))),
            _ => Ok(None),
        }
    }

    fn fence_operation(&mut self) -> Result<FenceOp> {
        let scope = self.scope().unwrap_or(Scope::Gpu);
        if self.inst.opcode[0] == "membar" {
            if self.has("proxy") {
                return Ok(FenceOp::Nothing);
            }
            return Ok(FenceOp::Thread { sem: Sem { acquire: true, release: true, strong: Some(scope) } });
        }
        if self.has("mbarrier_init") {
            return Ok(FenceOp::MbarrierInit);
        }
        if self.has("tensormap::generic") {
            if self.has("acquire") {
                let sem = Sem { acquire: true, release: false, strong: Some(scope) };
                return Ok(FenceOp::TensorMapAcquire {
                    sem,
                    addr: self.addr(0)?,
                    bytes: self.src(1, Ty::U32)?,
                });
            }
            return Ok(FenceOp::TensorMapRelease {
                sem: Sem { acquire: false, release: true, strong: Some(scope) },
            });
        }
        if self.has("proxy") {
            return match () {
                () if self.inst.opcode.iter().any(|m| m.starts_with("async")) => {
                    let shared = self.inst.opcode.iter().any(|m| m.contains("shared::"));
                    let global = self.has("global");
                    Ok(FenceOp::ProxyAsync { shared: shared || !global, global: global || !shared })
                }
                () if self.has("alias") => Ok(FenceOp::Nothing),
                () => self.unsupported(),
            };
        }
        let acquire = !self.has("release");
        let release = !self.has("acquire");
        Ok(FenceOp::Thread { sem: Sem { acquire, release, strong: Some(scope) } })
    }
}
