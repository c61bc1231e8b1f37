//! Scalar instructions: arithmetic, logic, comparison, selection and moves.

use super::Result;
use super::decoder::{Claim, Decoder};
use super::isa::{Copied, Op, Reg, Src, ZERO};
use super::operands::{modifiers, operands};
use crate::arith::alu;
use crate::arith::cvt::Cvt;
use crate::arith::float::Mode;
use crate::arith::minifloat::Round;
use crate::arith::{Alu4Fn, AluFn, CarryFn, CmpFn};
use crate::text::ast::Operand;
use crate::text::types::{Ty, low_mask};

/// How a predicate is combined with a third operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    And,
    Or,
    Xor,
}

impl Combine {
    pub(crate) fn apply(self, a: bool, b: bool) -> bool {
        match self {
            Combine::And => a && b,
            Combine::Or => a || b,
            Combine::Xor => a != b,
        }
    }
}

modifiers!(Combine);

operands! {
    /// Functions of registers.
    pub(crate) enum ScalarOp {
        /// A function of up to three values.
        Alu { f: AluFn, dst: Reg, a: Src, b: Src, c: Src },
        /// A function of four values.
        Alu4 { f: Alu4Fn, dst: Reg, src: [Src; 4] },
        Cvt { cvt: Cvt, dst: Reg, a: Src, b: Src },
        /// `cvt` of up to four sources, with random bits or scales as the last one.
        CvtWith { cvt: Cvt, dst: Reg, src: Box<[Src; 5]> },
        /// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`.
        Carry { f: CarryFn, dst: Reg, a: Src, b: Src, c: Src, writes: bool },
        Setp {
            cmp: CmpFn,
            a: Src,
            b: Src,
            combine: Option<(Combine, Src)>,
            p: Option<Reg>,
            q: Option<Reg>,
            /// Compares two halves: p is of the low one, q of the high one.
            packed: bool,
        },
        Set {
            cmp: CmpFn,
            dst: Reg,
            a: Src,
            b: Src,
            one: u64,
            combine: Option<(Combine, Src)>,
            /// Compares two halves, each with a result of 16 bits.
            packed: bool,
        },
        /// `lop3` with a predicate.
        Lop3(Box<Lop3>),
        /// `mov`: one register.
        Copy { f: AluFn, dst: Reg, a: Copied },
        /// `selp`, `slct`: a where the function of c says so, else b.
        Select { choose: fn(u64) -> bool, dst: Reg, a: Copied, b: Copied, c: Src },
        /// Copies of whole registers: `mov.b128`.
        Move { pairs: Box<[(Reg, Src)]> },
        /// `mov.b64 d, {lo, hi}`
        Pack { dst: Reg, parts: Box<[Src]>, bits: u32 },
        /// `mov.b64 {lo, hi}, a`
        Unpack { parts: Box<[Option<Reg>]>, src: Src, bits: u32 },
    }
}

operands! {
    /// `lop3` with a predicate.
    pub(crate) struct Lop3 {
        pub(crate) dst: Option<Reg>,
        pub(crate) p: Option<Reg>,
        pub(crate) src: [Src; 4],
        pub(crate) combine: (Combine, Src),
    }
}

/// Whether plain arithmetic knows a modifier; an unknown one would change the result in silence.
fn known_modifier(m: &str) -> bool {
    Ty::parse(m).is_some()
        || matches!(m, "rn" | "rz" | "rm" | "rp" | "ftz" | "sat" | "NaN" | "relu" | "xorsign" | "abs")
        || matches!(m, "lo" | "hi" | "wide" | "approx" | "full" | "shiftamt" | "clamp" | "wrap" | "uni")
}

impl Decoder<'_, '_> {
    pub(super) fn mode(&self) -> Mode {
        let round = if self.has("rz") || self.has("rzi") {
            Round::Zero
        } else if self.has("rm") || self.has("rmi") {
            Round::Down
        } else if self.has("rp") || self.has("rpi") {
            Round::Up
        } else if self.has("rna") {
            Round::NearestAway
        } else {
            Round::Nearest
        };
        Mode {
            round,
            ftz: self.has("ftz"),
            sat: self.has("sat"),
            nan: self.has("NaN"),
            relu: self.has("relu"),
        }
    }

    /// Scalar instructions, and whatever no other family knows.
    pub(super) fn scalar(&mut self) -> Claim {
        let op = match self.inst.opcode[0].as_str() {
            "mov" => self.mov(),
            "cvt" => self.cvt(),
            "setp" => self.setp(),
            "set" => self.set(),
            "selp" => self.selp(),
            "slct" => self.slct(),
            "lop3" => self.lop3(),
            "prmt" => self.prmt(),
            "shf" => self.shf(),
            "bfi" => self.bfi(),
            "bmsk" => self.bmsk(),
            "dp4a" => self.dp4a(),
            "dp2a" => self.dp2a(),
            "testp" => self.testp(),
            "createpolicy" => {
                // A cache policy has no functional effect; its register gets a fixed token.
                let dst = self.dst(0)?;
                Ok(ScalarOp::Alu { f: |_, _, _| 0x12f0_0000_0000_0000, dst, a: ZERO, b: ZERO, c: ZERO })
            }
            "addc" | "subc" | "madc" => self.carry(),
            "add" | "sub" | "mad" if self.has("cc") => self.carry(),
            _ => self.alu(),
        };
        op.map(|op| Some(Op::Scalar(op)))
    }

    fn alu(&mut self) -> Result<ScalarOp> {
        let inst = self.inst;
        let ty = self.ty()?;
        let mode = self.mode();
        if let Some(unknown) = inst.opcode[1..].iter().find(|m| !known_modifier(m)) {
            return self.error(format!("`.{unknown}` is not supported here"));
        }
        if self.types().len() > 1 {
            return self.mixed();
        }
        let (signs, magnitudes) = (self.has("xorsign"), self.has("abs"));
        // `min.f32 d, a, b, c`, also of magnitudes
        let three = match inst.opcode[0].as_str() {
            "min" | "max" if self.count() != 4 || signs => None,
            "min" if magnitudes => Some("min3.abs"),
            "max" if magnitudes => Some("max3.abs"),
            "min" => Some("min3"),
            "max" => Some("max3"),
            _ => None,
        };
        if (signs != magnitudes && three.is_none()) || (signs && ty != Ty::F32) {
            return self.unsupported();
        }
        let lookup = match three {
            Some(name) => alu::lookup(&[name.to_owned()], ty, mode),
            None => alu::lookup(&inst.opcode, ty, mode),
        };
        let Some((f, sources)) = lookup else { return self.unsupported() };
        self.expect_operands(sources + 1, sources + 1)?;
        let dst = self.dst(0)?;
        let wide = self.has("wide");
        let shift = matches!(inst.opcode[0].as_str(), "shl" | "shr");
        let a = self.src(1, ty)?;
        let b = match sources {
            1 => ZERO,
            _ if shift => self.src(2, Ty::U32)?,
            _ if inst.opcode[0] == "bfe" => self.src(2, Ty::U32)?,
            _ => self.src(2, ty)?,
        };
        let c = match sources {
            3 if wide => self.src(3, if ty.bits() == 16 { Ty::U32 } else { Ty::U64 })?,
            3 if inst.opcode[0] == "bfe" => self.src(3, Ty::U32)?,
            3 => self.src(3, ty)?,
            _ => ZERO,
        };
        Ok(ScalarOp::Alu { f, dst, a, b, c })
    }

    /// `add`, `sub` and `fma` with an f32 result and sources of half precision.
    fn mixed(&mut self) -> Result<ScalarOp> {
        let (types, name) = (self.types(), self.inst.opcode[0].as_str());
        let (&[Ty::F32, half], false) = (types.as_slice(), self.has("ftz")) else {
            return self.unsupported();
        };
        let Some(f) = crate::arith::float::mixed(name, half, self.mode()) else { return self.unsupported() };
        let dst = self.dst(0)?;
        let a = self.src(1, half)?;
        let (b, c) = if name == "fma" {
            self.expect_operands(4, 4)?;
            (self.src(2, half)?, self.src(3, Ty::F32)?)
        } else {
            self.expect_operands(3, 3)?;
            (self.src(2, Ty::F32)?, ZERO)
        };
        Ok(ScalarOp::Alu { f, dst, a, b, c })
    }

    fn mov(&mut self) -> Result<ScalarOp> {
        self.expect_operands(2, 2)?;
        let ty = self.ty()?;
        if ty == Ty::B128 {
            return self.mov_wide();
        }
        if let Operand::Vector(parts) = self.operand(0)? {
            if !matches!(parts.len(), 2 | 4 | 8) || ty.bits() / (parts.len() as u32) < 8 {
                return self.error("a vector of this width cannot be unpacked");
            }
            let bits = ty.bits() / parts.len() as u32;
            let parts = parts
                .iter()
                .map(|o| match o {
                    Operand::Sink => Ok(None),
                    o => self.register_of(o).map(Some),
                })
                .collect::<Result<Box<[_]>>>()?;
            let src = self.src(1, ty)?;
            return Ok(ScalarOp::Unpack { parts, src, bits });
        }
        let dst = self.dst(0)?;
        if let Operand::Vector(parts) = self.operand(1)? {
            let bits = ty.bits() / parts.len().max(1) as u32;
            let part_ty = match bits {
                8 => Ty::B8,
                16 => Ty::B16,
                32 => Ty::B32,
                _ => return self.error("a vector of this width cannot be packed"),
            };
            let parts = parts.iter().map(|o| self.source(o, part_ty)).collect::<Result<Box<[_]>>>()?;
            return Ok(ScalarOp::Pack { dst, parts, bits });
        }
        let a = self.src(1, ty)?;
        let Some((f, _)) = alu::lookup(&["mov".to_owned()], ty, self.mode()) else {
            return self.unsupported();
        };
        Ok(ScalarOp::Copy { f, dst, a: Copied(a) })
    }

    /// `mov.b128` between registers, or from and to a pair of 64-bit ones.
    fn mov_wide(&mut self) -> Result<ScalarOp> {
        let mut dst = Vec::new();
        for o in self.elements(0)? {
            match o {
                Operand::Sink => dst.push(None),
                o => dst.extend(self.words(&o)?.into_iter().map(Some)),
            }
        }
        let mut src = Vec::new();
        for o in self.elements(1)? {
            match o {
                Operand::Name(_) => src.extend(self.words(&o)?.into_iter().map(Src::Reg)),
                o => src.push(self.source(&o, Ty::B64)?),
            }
        }
        if dst.len() != 2 || src.len() != 2 {
            return self.error("the two sides are not 128 bits wide");
        }
        Ok(ScalarOp::Move { pairs: dst.into_iter().zip(src).filter_map(|(d, s)| Some((d?, s))).collect() })
    }

    fn comparison(&self) -> Result<(CmpFn, Option<Combine>)> {
        let ty = self.ty()?;
        let name = self.inst.opcode.get(1).map(String::as_str).unwrap_or("");
        let Some(cmp) = alu::compare(name, ty, self.has("ftz")) else { return self.unsupported() };
        let combine = if self.has("and") {
            Some(Combine::And)
        } else if self.has("or") {
            Some(Combine::Or)
        } else if self.has("xor") {
            Some(Combine::Xor)
        } else {
            None
        };
        Ok((cmp, combine))
    }

    fn setp(&mut self) -> Result<ScalarOp> {
        let ty = self.ty()?;
        let (cmp, combine) = self.comparison()?;
        let (p, q) = match self.operand(0)? {
            Operand::Pair(p, q) => (self.predicate(&p)?, self.predicate(&q)?),
            o => (self.predicate(&o)?, None),
        };
        let (a, b) = (self.src(1, ty)?, self.src(2, ty)?);
        let combine = match combine {
            Some(c) => Some((c, self.src(3, Ty::Pred)?)),
            None => None,
        };
        self.expect_operands(3, if combine.is_some() { 4 } else { 3 })?;
        let packed = matches!(ty, Ty::F16x2 | Ty::Bf16x2);
        Ok(ScalarOp::Setp { cmp, a, b, combine, p, q, packed })
    }

    pub(super) fn predicate(&mut self, o: &Operand) -> Result<Option<Reg>> {
        match o {
            Operand::Sink => Ok(None),
            o => match self.register_and_type(o)? {
                (r, Ty::Pred) => Ok(Some(r)),
                _ => self.error("expected a predicate register"),
            },
        }
    }

    /// `set`: a comparison followed by a choice of constants, for each half of a packed pair.
    fn set(&mut self) -> Result<ScalarOp> {
        let types = self.types();
        let &[to, from] = types.as_slice() else { return self.unsupported() };
        let (cmp, combine) = self.comparison()?;
        let dst = self.dst(0)?;
        let (a, b) = (self.src(1, from)?, self.src(2, from)?);
        let combine = match combine {
            Some(c) => Some((c, self.src(3, Ty::Pred)?)),
            None => None,
        };
        self.expect_operands(3, if combine.is_some() { 4 } else { 3 })?;
        let packed = matches!(from, Ty::F16x2 | Ty::Bf16x2);
        let one = match (to, packed) {
            (Ty::F32, false) => u64::from(1f32.to_bits()),
            (Ty::U32 | Ty::S32 | Ty::B32, false) => 0xffff_ffff,
            (Ty::U32 | Ty::S32 | Ty::B32, true) | (Ty::U16 | Ty::S16, false) => 0xffff,
            (Ty::F16, false) | (Ty::F16x2, true) => 0x3c00,
            (Ty::Bf16, false) | (Ty::Bf16x2, true) => 0x3f80,
            _ => return self.unsupported(),
        };
        Ok(ScalarOp::Set { cmp, dst, a, b, one, combine, packed })
    }

    fn selp(&mut self) -> Result<ScalarOp> {
        self.expect_operands(4, 4)?;
        let ty = self.ty()?;
        if alu::lookup(&["selp".to_owned()], ty, self.mode()).is_none() {
            return self.unsupported();
        }
        self.select(ty, Ty::Pred, |c| c & 1 == 1)
    }

    fn slct(&mut self) -> Result<ScalarOp> {
        let types = self.types();
        if types.len() != 2 {
            return self.unsupported();
        }
        match types[1] {
            Ty::S32 => self.select(types[0], Ty::S32, |c| c as i32 >= 0),
            Ty::F32 => self.select(types[0], Ty::F32, |c| f32::from_bits(c as u32) >= 0.0),
            _ => self.unsupported(),
        }
    }

    fn select(&mut self, ty: Ty, by: Ty, choose: fn(u64) -> bool) -> Result<ScalarOp> {
        let dst = self.dst(0)?;
        let (a, b) = (Copied(self.src(1, ty)?), Copied(self.src(2, ty)?));
        Ok(ScalarOp::Select { choose, dst, a, b, c: self.src(3, by)? })
    }

    /// `lop3.or.b32 d|p, a, b, c, table, q`: p is whether the result has a bit, combined with q.
    fn lop3_predicate(&mut self) -> Result<ScalarOp> {
        self.expect_operands(6, 6)?;
        let (dst, p) = match self.operand(0)? {
            Operand::Pair(d, p) if *d == Operand::Sink => (None, self.predicate(&p)?),
            Operand::Pair(d, p) => (Some(self.register_of(&d)?), self.predicate(&p)?),
            _ => return self.error("expected `d|p`"),
        };
        let src =
            [self.src(1, Ty::B32)?, self.src(2, Ty::B32)?, self.src(3, Ty::B32)?, self.src(4, Ty::U32)?];
        let how = if self.has("or") { Combine::Or } else { Combine::And };
        Ok(ScalarOp::Lop3(Box::new(Lop3 { dst, p, src, combine: (how, self.src(5, Ty::Pred)?) })))
    }

    fn lop3(&mut self) -> Result<ScalarOp> {
        if self.has("or") || self.has("and") {
            return self.lop3_predicate();
        }
        self.expect_operands(5, 5)?;
        let dst = self.dst(0)?;
        let src =
            [self.src(1, Ty::B32)?, self.src(2, Ty::B32)?, self.src(3, Ty::B32)?, self.src(4, Ty::U32)?];
        Ok(ScalarOp::Alu4 { f: alu::lop3, dst, src })
    }

    fn prmt(&mut self) -> Result<ScalarOp> {
        let mode = self.inst.opcode.get(2).map(String::as_str);
        let Some(f) = alu::prmt(mode) else { return self.unsupported() };
        let dst = self.dst(0)?;
        Ok(ScalarOp::Alu {
            f,
            dst,
            a: self.src(1, Ty::B32)?,
            b: self.src(2, Ty::B32)?,
            c: self.src(3, Ty::B32)?,
        })
    }

    fn shf(&mut self) -> Result<ScalarOp> {
        let f = alu::funnel(self.has("l"), self.has("clamp"));
        let dst = self.dst(0)?;
        Ok(ScalarOp::Alu {
            f,
            dst,
            a: self.src(1, Ty::B32)?,
            b: self.src(2, Ty::B32)?,
            c: self.src(3, Ty::U32)?,
        })
    }

    fn bfi(&mut self) -> Result<ScalarOp> {
        let ty = self.ty()?;
        let Some(f) = alu::bfi(ty) else { return self.unsupported() };
        let dst = self.dst(0)?;
        let src = [self.src(1, ty)?, self.src(2, ty)?, self.src(3, Ty::U32)?, self.src(4, Ty::U32)?];
        Ok(ScalarOp::Alu4 { f, dst, src })
    }

    fn bmsk(&mut self) -> Result<ScalarOp> {
        let f: AluFn = if self.has("wrap") {
            |a, b, _| (low_mask((b & 31) as u32) << (a & 31)) & 0xffff_ffff
        } else {
            |a, b, _| {
                let (a, b) = (a & 0xffff_ffff, (b & 0xffff_ffff).min(32) as u32);
                if a >= 32 { 0 } else { (low_mask(b) << a) & 0xffff_ffff }
            }
        };
        let dst = self.dst(0)?;
        Ok(ScalarOp::Alu { f, dst, a: self.src(1, Ty::B32)?, b: self.src(2, Ty::B32)?, c: ZERO })
    }

    fn dp4a(&mut self) -> Result<ScalarOp> {
        let types = self.types();
        if types.len() != 2 {
            return self.unsupported();
        }
        let signs = u64::from(types[0].signed()) | u64::from(types[1].signed()) << 1;
        let dst = self.dst(0)?;
        let src = [self.src(1, Ty::B32)?, self.src(2, Ty::B32)?, self.src(3, Ty::B32)?, Src::Imm(signs)];
        Ok(ScalarOp::Alu4 { f: alu::dp4a, dst, src })
    }

    fn dp2a(&mut self) -> Result<ScalarOp> {
        let types = self.types();
        if types.len() != 2 || self.has("lo") == self.has("hi") {
            return self.unsupported();
        }
        let how =
            u64::from(types[0].signed()) | u64::from(types[1].signed()) << 1 | u64::from(self.has("hi")) << 2;
        let dst = self.dst(0)?;
        let src = [self.src(1, Ty::B32)?, self.src(2, Ty::B32)?, self.src(3, Ty::B32)?, Src::Imm(how)];
        Ok(ScalarOp::Alu4 { f: crate::arith::simd::DP2A, dst, src })
    }

    fn testp(&mut self) -> Result<ScalarOp> {
        let ty = self.ty()?;
        let name = self.inst.opcode[1].as_str();
        let f = match ty {
            Ty::F32 => alu::classify32(name),
            Ty::F64 => alu::classify64(name),
            _ => None,
        };
        let Some(f) = f else { return self.unsupported() };
        let dst = self.dst(0)?;
        Ok(ScalarOp::Alu { f, dst, a: self.src(1, ty)?, b: ZERO, c: ZERO })
    }

    fn carry(&mut self) -> Result<ScalarOp> {
        let inst = self.inst;
        let ty = self.ty()?;
        let Some(f) = alu::carry(&inst.opcode[0], &inst.opcode, ty) else { return self.unsupported() };
        let dst = self.dst(0)?;
        let c = if inst.opcode[0].starts_with("mad") { self.src(3, ty)? } else { ZERO };
        let writes = self.has("cc");
        Ok(ScalarOp::Carry { f, dst, a: self.src(1, ty)?, b: self.src(2, ty)?, c, writes })
    }
}
