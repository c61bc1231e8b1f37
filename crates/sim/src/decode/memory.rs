//! Loads, stores, atomics and address conversions.

use super::Result;
use super::operand::Decoder;
use crate::ast::{Operand, Space};
use crate::isa::{AtomOp, Op, Sem};
use crate::types::Ty;

impl Decoder<'_, '_> {
    fn sem(&self) -> Sem {
        let acquire = self.has("acquire") || self.has("acq_rel");
        let release = self.has("release") || self.has("acq_rel");
        let strong = acquire || release || self.has("relaxed") || self.has("volatile") || self.has("mmio");
        Sem { acquire, release, strong }
    }

    fn access(&mut self, address: usize) -> Result<(Space, Ty)> {
        let ty = self.ty()?;
        if ty.bits() < 8 || ty == Ty::B128 {
            return self.unsupported();
        }
        let mut space = self.space();
        if space == Space::Param && self.is_call_param(address)? {
            space = Space::Local;
        }
        Ok((space, ty))
    }

    fn vector_width(&self) -> usize {
        match () {
            () if self.has("v2") => 2,
            () if self.has("v4") => 4,
            () if self.has("v8") => 8,
            () => 1,
        }
    }

    pub(super) fn load(&mut self) -> Result<Op> {
        let (space, ty) = self.access(1)?;
        let width = self.vector_width();
        let elements = self.elements(0)?;
        if elements.len() != width {
            return self.error(format!("expected {width} destinations"));
        }
        let mut dst = Vec::new();
        for o in &elements {
            dst.push(match o {
                Operand::Sink => None,
                o => {
                    let r = self.register_of(o)?;
                    Some((r, self.register_width(r)))
                }
            });
        }
        // An optional cache policy follows the address.
        self.expect_operands(2, 3)?;
        let addr = self.addr(1)?;
        let sign = if ty.signed() { ty.bits() } else { 0 };
        Ok(Op::Load { space, bytes: ty.bytes() as u32, sign, dst: dst.into(), addr, sem: self.sem() })
    }

    pub(super) fn store(&mut self) -> Result<Op> {
        let (space, ty) = self.access(0)?;
        let width = self.vector_width();
        if self.has("bulk") {
            return self.unsupported();
        }
        self.expect_operands(2, 3)?;
        let src = self.sources(1, ty)?;
        if src.len() != width {
            return self.error(format!("expected {width} sources"));
        }
        if matches!(space, Space::Const) || (space == Space::Param && self.in_entry) {
            return self.error("this space is read-only");
        }
        Ok(Op::Store { space, bytes: ty.bytes() as u32, src, addr: self.addr(0)?, sem: self.sem() })
    }

    pub(super) fn atomic(&mut self) -> Result<Op> {
        let red = self.inst.opcode[0] == "red";
        let ty = self.ty()?;
        let Some(op) = self.atomic_op() else { return self.unsupported() };
        if self.vector_width() != 1 {
            return self.unsupported();
        }
        let known = match op {
            AtomOp::Add => matches!(
                ty,
                Ty::U32
                    | Ty::S32
                    | Ty::U64
                    | Ty::S64
                    | Ty::F32
                    | Ty::F64
                    | Ty::F16x2
                    | Ty::Bf16x2
                    | Ty::F16
                    | Ty::Bf16
            ),
            AtomOp::And | AtomOp::Or | AtomOp::Xor => matches!(ty, Ty::B32 | Ty::B64),
            AtomOp::Exch | AtomOp::Cas => {
                matches!(ty, Ty::B16 | Ty::B32 | Ty::B64 | Ty::U32 | Ty::U64 | Ty::S32)
            }
            AtomOp::Min | AtomOp::Max => matches!(ty, Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64),
            AtomOp::Inc | AtomOp::Dec => ty == Ty::U32,
        };
        if !known {
            return self.unsupported();
        }
        let first = usize::from(!red);
        let dst = if red { None } else { self.optional_dst(0)? };
        let addr = self.addr(first)?;
        let b = self.src(first + 1, ty)?;
        let c = if op == AtomOp::Cas { Some(self.src(first + 2, ty)?) } else { None };
        let mut sem = self.sem();
        sem.strong = true;
        Ok(Op::Atom { op, ty, space: self.space(), dst, addr, b, c, sem })
    }

    pub(super) fn cvta(&mut self) -> Result<Op> {
        let space = self.space();
        let dst = self.dst(0)?;
        let src = self.src(1, self.ty()?)?;
        if space == Space::Generic {
            return self.error("the state space is missing");
        }
        Ok(if self.has("to") { Op::CvtaTo { dst, src, space } } else { Op::CvtaFrom { dst, src, space } })
    }

    pub(super) fn mapa(&mut self) -> Result<Op> {
        let generic = self.space() != Space::Cluster;
        let ty = self.ty()?;
        Ok(Op::Mapa { dst: self.dst(0)?, src: self.src(1, ty)?, rank: self.src(2, Ty::U32)?, generic })
    }

    pub(super) fn get_cta_rank(&mut self) -> Result<Op> {
        let generic = self.space() != Space::Cluster;
        let ty = self.ty()?;
        Ok(Op::GetCtaRank { dst: self.dst(0)?, src: self.src(1, ty)?, generic })
    }

    pub(super) fn is_space(&mut self) -> Result<Op> {
        Ok(Op::IsSpace { dst: self.dst(0)?, src: self.src(1, Ty::U64)?, space: self.space() })
    }

    pub(super) fn prefetch(&mut self) -> Result<Op> {
        if self.inst.opcode[0] == "discard" {
            return self.unsupported();
        }
        if self.has("tensormap") {
            return Ok(Op::TensorPrefetch { map: self.addr(0)? });
        }
        let addr = self.addr(0)?;
        Ok(Op::BulkPrefetch { addr, size: crate::isa::Src::Imm(1) })
    }
}
