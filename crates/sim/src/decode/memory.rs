//! Loads, stores and conversions of addresses.

use super::Result;
use super::decoder::{Claim, Decoder};
use super::isa::{Addr, Op, Reg, Sem, Src};
use super::operands::operands;
use crate::hazard::Scope;
use crate::text::ast::{Operand, Space};
use crate::text::types::Ty;

operands! {
    /// Loads, stores and conversions of addresses.
    pub(crate) enum MemoryOp {
        Load { space: Space, bytes: u32, sign: u32, dst: Box<[Option<(Reg, u32)>]>, addr: Addr, sem: Sem },
        Store { space: Space, bytes: u32, src: Box<[Src]>, addr: Addr, sem: Sem },
        /// `st.bulk`: zeros.
        StoreZeros { space: Space, addr: Addr, bytes: Src },
        /// `discard`: 128 bytes of global memory that count as never written.
        Discard { addr: Addr },
        /// `cvta.to`
        CvtaTo { dst: Reg, src: Src, space: Space },
        /// `cvta`
        CvtaFrom { dst: Reg, src: Src, space: Space },
        Mapa { dst: Reg, src: Src, rank: Src, generic: bool },
        GetCtaRank { dst: Reg, src: Src, generic: bool },
        IsSpace { dst: Reg, src: Src, space: Space },
    }
}

impl Decoder<'_, '_> {
    pub(super) fn memory(&mut self) -> Claim {
        let op = match self.inst.opcode[0].as_str() {
            "ld" | "ldu" => self.load()?,
            "st" if self.has("bulk") => self.store_bulk()?,
            "st" if self.inst.opcode.get(1).is_none_or(|m| m != "async") => self.store()?,
            "discard" => self.discard()?,
            "cvta" => self.cvta()?,
            "mapa" => self.mapa()?,
            "getctarank" => self.get_cta_rank()?,
            "isspacep" => self.is_space()?,
            _ => return Ok(None),
        };
        Ok(Some(Op::Memory(op)))
    }

    fn discard(&mut self) -> Result<MemoryOp> {
        if self.constant(1)? != 128 {
            return self.error("the size is 128");
        }
        Ok(MemoryOp::Discard { addr: self.addr(0)? })
    }

    /// The scope that the instruction names.
    pub(super) fn scope(&self) -> Option<Scope> {
        let named = |m: &String| match m.as_str() {
            "cta" => Some(Scope::Cta),
            "cluster" => Some(Scope::Cluster),
            "gpu" | "gl" => Some(Scope::Gpu),
            "sys" => Some(Scope::Sys),
            _ => None,
        };
        self.inst.opcode[1..].iter().find_map(named)
    }

    pub(super) fn sem(&self) -> Sem {
        let acquire = self.has("acquire") || self.has("acq_rel");
        let release = self.has("release") || self.has("acq_rel");
        let strong = acquire || release || self.has("relaxed") || self.has("volatile") || self.has("mmio");
        // A volatile access has the scope of the system.
        let unnamed = if self.has("volatile") || self.has("mmio") { Scope::Sys } else { Scope::Gpu };
        Sem { acquire, release, strong: strong.then(|| self.scope().unwrap_or(unnamed)) }
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

    pub(super) fn vector_width(&self) -> usize {
        match () {
            () if self.has("v2") => 2,
            () if self.has("v4") => 4,
            () if self.has("v8") => 8,
            () => 1,
        }
    }

    fn load(&mut self) -> Result<MemoryOp> {
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
        Ok(MemoryOp::Load {
            space,
            bytes: ty.bytes().min(8) as u32,
            sign,
            dst: dst.into(),
            addr,
            sem: self.sem(),
        })
    }

    /// `st.bulk.weak.shared::cta [a], bytes, 0`: zeros.
    fn store_bulk(&mut self) -> Result<MemoryOp> {
        if self.constant(2)? != 0 {
            return self.error("the value is 0");
        }
        let space = match self.space() {
            Space::Generic => Space::Generic,
            _ => Space::Shared,
        };
        Ok(MemoryOp::StoreZeros { space, addr: self.addr(0)?, bytes: self.src(1, Ty::U64)? })
    }

    fn store(&mut self) -> Result<MemoryOp> {
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
        Ok(MemoryOp::Store {
            space,
            bytes: ty.bytes().min(8) as u32,
            src,
            addr: self.addr(0)?,
            sem: self.sem(),
        })
    }

    fn cvta(&mut self) -> Result<MemoryOp> {
        let space = self.space();
        let dst = self.dst(0)?;
        let src = self.src(1, self.ty()?)?;
        if space == Space::Generic {
            return self.error("the state space is missing");
        }
        Ok(if self.has("to") {
            MemoryOp::CvtaTo { dst, src, space }
        } else {
            MemoryOp::CvtaFrom { dst, src, space }
        })
    }

    fn mapa(&mut self) -> Result<MemoryOp> {
        let generic = self.space() != Space::Cluster;
        let ty = self.ty()?;
        Ok(MemoryOp::Mapa { dst: self.dst(0)?, src: self.src(1, ty)?, rank: self.src(2, Ty::U32)?, generic })
    }

    fn get_cta_rank(&mut self) -> Result<MemoryOp> {
        let generic = self.space() != Space::Cluster;
        let ty = self.ty()?;
        Ok(MemoryOp::GetCtaRank { dst: self.dst(0)?, src: self.src(1, ty)?, generic })
    }

    fn is_space(&mut self) -> Result<MemoryOp> {
        Ok(MemoryOp::IsSpace { dst: self.dst(0)?, src: self.src(1, Ty::U64)?, space: self.space() })
    }
}
