//! Atomics: `atom` and `red`.

use super::Result;
use super::decoder::{Claim, Decoder};
use super::isa::{Addr, Op, Reg, Sem, Src};
use super::operands::operands;
use crate::hazard::Scope;
use crate::text::ast::{Operand, Space};
use crate::text::types::Ty;
use crate::units::atomic::AtomFn;

operands! {
    /// Atomics and reductions of threads; a reduction has no destination.
    pub(crate) enum AtomicOp {
        Scalar { op: AtomFn, ty: Ty, space: Space, dst: Option<Reg>, addr: Addr, b: Src, c: Option<Src>, sem: Sem },
        Wide(Box<AtomicWide>),
        /// One atomic per element.
        Vector {
            op: AtomFn,
            ty: Ty,
            space: Space,
            dst: Box<[Option<Reg>]>,
            addr: Addr,
            b: Box<[Src]>,
            sem: Sem,
        },
    }
}

operands! {
    /// `atom.exch.b128` and, with `c`, `atom.cas.b128`: pairs of registers, low word first.
    pub(crate) struct AtomicWide {
        pub(crate) space: Space,
        pub(crate) dst: Option<[Reg; 2]>,
        pub(crate) addr: Addr,
        pub(crate) b: [Src; 2],
        pub(crate) c: Option<[Src; 2]>,
        pub(crate) sem: Sem,
    }
}

impl Decoder<'_, '_> {
    pub(super) fn atomic(&mut self) -> Claim {
        match self.inst.opcode[0].as_str() {
            "red" if self.inst.opcode.get(1).is_some_and(|m| m == "async") => Ok(None),
            "atom" | "red" => self.atomic_scalar().map(|op| Some(Op::Atomic(op))),
            _ => Ok(None),
        }
    }

    pub(super) fn atomic_op(&self) -> Option<AtomFn> {
        self.inst.opcode.iter().skip(1).find_map(|m| {
            Some(match m.as_str() {
                "add" => AtomFn::Add,
                "and" => AtomFn::And,
                "or" => AtomFn::Or,
                "xor" => AtomFn::Xor,
                "min" => AtomFn::Min,
                "max" => AtomFn::Max,
                "inc" => AtomFn::Inc,
                "dec" => AtomFn::Dec,
                "exch" => AtomFn::Exch,
                "cas" => AtomFn::Cas,
                _ => return None,
            })
        })
    }

    /// The ordering of an atomic, which is always strong.
    fn atomic_sem(&self) -> Sem {
        Sem { strong: Some(self.scope().unwrap_or(Scope::Gpu)), ..self.sem() }
    }

    fn atomic_scalar(&mut self) -> Result<AtomicOp> {
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
            AtomFn::Add => matches!(
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
            AtomFn::And | AtomFn::Or | AtomFn::Xor => matches!(ty, Ty::B32 | Ty::B64),
            AtomFn::Exch | AtomFn::Cas => {
                matches!(ty, Ty::B16 | Ty::B32 | Ty::B64 | Ty::U32 | Ty::U64 | Ty::S32)
            }
            AtomFn::Min | AtomFn::Max => matches!(ty, Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64),
            AtomFn::Inc | AtomFn::Dec => ty == Ty::U32,
        };
        if !known {
            return self.unsupported();
        }
        let first = usize::from(!red);
        let dst = if red { None } else { self.optional_dst(0)? };
        let addr = self.addr(first)?;
        let b = self.src(first + 1, ty)?;
        let c = if op == AtomFn::Cas { Some(self.src(first + 2, ty)?) } else { None };
        let sem = self.atomic_sem();
        Ok(AtomicOp::Scalar { op, ty, space: self.space(), dst, addr, b, c, sem })
    }

    /// `atom.exch.b128` and `atom.cas.b128`.
    fn atomic_wide(&mut self, op: AtomFn, red: bool) -> Result<AtomicOp> {
        if red || !matches!(op, AtomFn::Exch | AtomFn::Cas) {
            return self.unsupported();
        }
        let sources = if op == AtomFn::Cas { 2 } else { 1 };
        self.expect_operands(2 + sources, 2 + sources)?;
        let wide = |d: &mut Self, i: usize| -> Result<[Reg; 2]> {
            let o = d.operand(i)?;
            match d.words(&o)?.as_slice() {
                [low, high] => Ok([*low, *high]),
                _ => d.error("expected a register of 128 bits"),
            }
        };
        let dst = match self.operand(0)? {
            Operand::Sink => None,
            _ => Some(wide(self, 0)?),
        };
        let b = wide(self, 2)?.map(Src::Reg);
        let c = if sources == 2 { Some(wide(self, 3)?.map(Src::Reg)) } else { None };
        let sem = self.atomic_sem();
        let addr = self.addr(1)?;
        Ok(AtomicOp::Wide(Box::new(AtomicWide { space: self.space(), dst, addr, b, c, sem })))
    }

    /// `red.global.add.v4.f32` and the like: one atomic per element.
    fn atomic_vector(&mut self, op: AtomFn, ty: Ty, red: bool) -> Result<AtomicOp> {
        let known = match ty {
            Ty::F32 => op == AtomFn::Add && self.vector_width() <= 4,
            Ty::F16x2 | Ty::Bf16x2 => self.vector_width() <= 4,
            Ty::F16 | Ty::Bf16 => true,
            _ => false,
        };
        if !known || !matches!(op, AtomFn::Add | AtomFn::Min | AtomFn::Max) {
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
        Ok(AtomicOp::Vector { op, ty, space: self.space(), dst: dst.into(), addr: self.addr(first)?, b, sem })
    }
}
