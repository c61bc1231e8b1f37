//! Loads, stores, atomics and address conversions.

use super::Result;
use super::decoder::Decoder;
use crate::text::ast::{Operand, Space};
use crate::decode::isa::{AtomOp, Op, Reg, Scope, Sem, Src};
use crate::text::types::Ty;

impl Decoder<'_, '_> {
    /// The scope that the instruction names.
    pub(super) fn scope(&self) -> Option<Scope> {
        let named = |m: &String| match m.as_str() {
            "cta" => Some(Scope::Cta),
            "cluster" => Some(Scope::Cluster),
            "gpu" | "gl" | "sys" => Some(Scope::Gpu),
            _ => None,
        };
        self.inst.opcode[1..].iter().find_map(named)
    }

    fn sem(&self) -> Sem {
        let acquire = self.has("acquire") || self.has("acq_rel");
        let release = self.has("release") || self.has("acq_rel");
        let strong = acquire || release || self.has("relaxed") || self.has("volatile") || self.has("mmio");
        Sem { acquire, release, strong: strong.then(|| self.scope().unwrap_or(Scope::Gpu)) }
    }

    /// The ordering of an atomic, which is always strong.
    fn atomic_sem(&self) -> Sem {
        Sem { strong: Some(self.scope().unwrap_or(Scope::Gpu)), ..self.sem() }
    }

    fn access(&mut self, address: usize) -> Result<(Space, Ty)> {
        let ty = self.ty()?;
        if ty.bits() < 8 {
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
        let words = ty.bits().div_ceil(64) as usize;
        let mut dst = Vec::new();
        for o in &elements {
            match o {
                Operand::Sink => dst.extend(vec![None; words]),
                o => dst.extend(self.words(o)?.into_iter().map(|r| Some((r, self.register_width(r))))),
            }
        }
        if dst.len() != width * words {
            return self.error("a destination does not have the width of the type");
        }
        // An optional cache policy follows the address.
        self.expect_operands(2, 3)?;
        let addr = self.addr(1)?;
        let sign = if ty.signed() { ty.bits() } else { 0 };
        Ok(Op::Load { space, bytes: ty.bytes().min(8) as u32, sign, dst: dst.into(), addr, sem: self.sem() })
    }

    /// `st.bulk.weak.shared::cta [a], bytes, 0`: zeros.
    fn store_bulk(&mut self) -> Result<Op> {
        if self.constant(2)? != 0 {
            return self.error("the value is 0");
        }
        let space = match self.space() {
            Space::Generic => Space::Generic,
            _ => Space::Shared,
        };
        Ok(Op::StoreZeros { space, addr: self.addr(0)?, bytes: self.src(1, Ty::U64)? })
    }

    pub(super) fn store(&mut self) -> Result<Op> {
        if self.has("bulk") {
            return self.store_bulk();
        }
        let (space, ty) = self.access(0)?;
        let width = self.vector_width();
        self.expect_operands(2, 3)?;
        let src = if ty == Ty::B128 {
            let mut words = Vec::new();
            for o in self.elements(1)? {
                words.extend(self.words(&o)?.into_iter().map(Src::Reg));
            }
            words.into()
        } else {
            self.sources(1, ty)?
        };
        if src.len() != width * ty.bits().div_ceil(64) as usize {
            return self.error(format!("expected {width} sources of the type's width"));
        }
        if matches!(space, Space::Const) || (space == Space::Param && self.in_entry) {
            return self.error("this space is read-only");
        }
        Ok(Op::Store { space, bytes: ty.bytes().min(8) as u32, src, addr: self.addr(0)?, sem: self.sem() })
    }

    pub(super) fn atomic(&mut self) -> Result<Op> {
        let red = self.inst.opcode[0] == "red";
        let ty = self.ty()?;
        let Some(op) = self.atomic_op() else { return self.unsupported() };
        if ty == Ty::B128 {
            return self.atomic_wide(op, red);
        }
        if self.vector_width() != 1 {
            return self.atomic_vector(op, ty, red);
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
        let sem = self.atomic_sem();
        Ok(Op::Atom { op, ty, space: self.space(), dst, addr, b, c, sem })
    }

    /// `atom.exch.b128` and `atom.cas.b128`.
    fn atomic_wide(&mut self, op: AtomOp, red: bool) -> Result<Op> {
        if red || !matches!(op, AtomOp::Exch | AtomOp::Cas) {
            return self.unsupported();
        }
        let sources = if op == AtomOp::Cas { 2 } else { 1 };
        self.expect_operands(2 + sources, 2 + sources)?;
        let wide = |d: &mut Self, i: usize| -> Result<Reg> {
            let o = d.operand(i)?;
            match d.words(&o)?.as_slice() {
                [low, _] => Ok(*low),
                _ => d.error("expected a register of 128 bits"),
            }
        };
        let dst = match self.operand(0)? {
            Operand::Sink => None,
            _ => Some(wide(self, 0)?),
        };
        let b = wide(self, 2)?;
        let c = if sources == 2 { Some(wide(self, 3)?) } else { None };
        let sem = self.atomic_sem();
        Ok(Op::AtomWide { space: self.space(), dst, addr: self.addr(1)?, b, c, sem })
    }

    /// `red.global.add.v4.f32` and its kin: one atomic per element.
    fn atomic_vector(&mut self, op: AtomOp, ty: Ty, red: bool) -> Result<Op> {
        let known = match ty {
            Ty::F32 => op == AtomOp::Add && self.vector_width() <= 4,
            Ty::F16x2 | Ty::Bf16x2 => self.vector_width() <= 4,
            Ty::F16 | Ty::Bf16 => true,
            _ => false,
        };
        if !known || !matches!(op, AtomOp::Add | AtomOp::Min | AtomOp::Max) {
            return self.unsupported();
        }
        let first = usize::from(!red);
        let mut dst = Vec::new();
        if !red {
            for o in self.elements(0)? {
                dst.push(if o == Operand::Sink { None } else { Some(self.register_of(&o)?) });
            }
        }
        let b = self.sources(first + 1, ty)?;
        let width = self.vector_width();
        if b.len() != width || (!red && dst.len() != width) {
            return self.error(format!("expected vectors of {width}"));
        }
        let sem = self.atomic_sem();
        Ok(Op::AtomVector { op, ty, space: self.space(), dst: dst.into(), addr: self.addr(first)?, b, sem })
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
            if self.constant(1)? != 128 {
                return self.error("the size is 128");
            }
            return Ok(Op::Discard { addr: self.addr(0)? });
        }
        if self.has("tensormap") {
            return Ok(Op::TensorPrefetch { map: self.addr(0)? });
        }
        let addr = self.addr(0)?;
        Ok(Op::BulkPrefetch { addr, size: crate::decode::isa::Src::Imm(1) })
    }
}
