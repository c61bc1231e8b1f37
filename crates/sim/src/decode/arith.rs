//! Arithmetic, predicates, control flow and the instructions of one warp.

use super::operand::Decoder;
use super::{CallValue, FormalSlot, Result, Symbol, copy};
use crate::alu;
use crate::ast::Operand;
use crate::cvt::Cvt;
use crate::float::Mode;
use crate::isa::{AtomOp, Combine, Op, Reg, Shuffle, Src, Vote};
use crate::minifloat::Round;
use crate::types::Ty;

const ZERO: Src = Src::Imm(0);

impl Decoder<'_, '_> {
    fn mode(&self) -> Mode {
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

    pub(super) fn scalar(&mut self) -> Result<Op> {
        match self.inst.opcode[0].as_str() {
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
            "szext" => self.unsupported(),
            "dp4a" => self.dp4a(),
            "fns" | "dp2a" | "vadd" | "vsub" => self.unsupported(),
            "testp" => self.testp(),
            "bra" | "brx" => self.branch(),
            "call" => self.call(),
            "ret" => Ok(Op::Return),
            "exit" => Ok(Op::Exit),
            "trap" => Ok(Op::Trap),
            "brkpt" | "pmevent" | "nop" => Ok(Op::Nop),
            "nanosleep" => Ok(Op::Yield),
            "shfl" => self.shfl(),
            "vote" => self.vote(),
            "match" => self.match_op(),
            "redux" => self.redux(),
            "elect" => self.elect(),
            "activemask" => Ok(Op::ActiveMask { dst: self.dst(0)? }),
            "setmaxnreg" => self.setmaxnreg(),
            "griddepcontrol" => Ok(Op::GridDependency),
            "createpolicy" => {
                // A cache policy has no functional effect; its register gets a fixed token.
                let dst = self.dst(0)?;
                Ok(Op::Alu { f: |_, _, _| 0x12f0_0000_0000_0000, dst, a: ZERO, b: ZERO, c: ZERO })
            }
            "addc" | "subc" | "madc" => self.carry(),
            "add" | "sub" | "mad" if self.has("cc") => self.carry(),
            _ => self.alu(),
        }
    }

    fn alu(&mut self) -> Result<Op> {
        let inst = self.inst;
        let ty = self.ty()?;
        let mode = self.mode();
        // Mixed-precision add/fma (`fma.rn.f32.f16`) names two types; only one-typed forms are handled.
        if self.types().len() > 1 && !self.has("wide") {
            return self.unsupported();
        }
        let Some((f, sources)) = alu::lookup(&inst.opcode, ty, mode) else { return self.unsupported() };
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
        Ok(Op::Alu { f, dst, a, b, c })
    }

    fn mov(&mut self) -> Result<Op> {
        self.expect_operands(2, 2)?;
        let ty = self.ty()?;
        if let Operand::Vector(parts) = self.operand(0)? {
            let bits = ty.bits() / parts.len() as u32;
            let parts = parts
                .iter()
                .map(|o| match o {
                    Operand::Sink => Ok(None),
                    o => self.register_of(o).map(Some),
                })
                .collect::<Result<Box<[_]>>>()?;
            let src = self.src(1, ty)?;
            return Ok(Op::Unpack { parts, src, bits });
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
            return Ok(Op::Pack { dst, parts, bits });
        }
        let a = self.src(1, ty)?;
        let Some((f, _)) = alu::lookup(&["mov".to_owned()], ty, self.mode()) else {
            return self.unsupported();
        };
        Ok(Op::Alu { f, dst, a, b: ZERO, c: ZERO })
    }

    fn cvt(&mut self) -> Result<Op> {
        let types = self.types();
        let dst = self.dst(0)?;
        if self.has("pack") || types.len() < 2 {
            return self.unsupported();
        }
        let integer_round = ["rni", "rzi", "rmi", "rpi"].iter().any(|m| self.has(m));
        let mode = self.mode();
        let mut cvt = Cvt {
            to: types[0],
            from: types[1],
            round: mode.round,
            integer_round,
            ftz: mode.ftz,
            sat: mode.sat,
            satfinite: self.has("satfinite"),
            relu: mode.relu,
            width: self.register_width(dst),
        };
        if cvt.to == Ty::Bf16x2 || cvt.from == Ty::Bf16x2 {
            cvt.ftz = false;
        }
        if !cvt.supported() || self.has("rs") || self.has("scaled::n2::ue8m0") {
            return self.unsupported();
        }
        let sources = if cvt.takes_two() { 2 } else { 1 };
        self.expect_operands(sources + 1, sources + 1)?;
        let a = self.src(1, cvt.from)?;
        let b = if sources == 2 { self.src(2, cvt.from)? } else { ZERO };
        Ok(Op::Cvt { cvt, dst, a, b })
    }

    fn comparison(&self) -> Result<(crate::isa::CmpFn, Option<Combine>)> {
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

    fn setp(&mut self) -> Result<Op> {
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
        Ok(Op::Setp { cmp, a, b, combine, p, q })
    }

    fn predicate(&mut self, o: &Operand) -> Result<Option<Reg>> {
        match o {
            Operand::Sink => Ok(None),
            o => match self.register_and_type(o)? {
                (r, Ty::Pred) => Ok(Some(r)),
                _ => self.error("expected a predicate register"),
            },
        }
    }

    /// `set` without a combining predicate, as a comparison followed by a choice of constants.
    fn set(&mut self) -> Result<Op> {
        let types = self.types();
        let (cmp, combine) = self.comparison()?;
        if types.len() != 2 || combine.is_some() {
            return self.unsupported();
        }
        let dst = self.dst(0)?;
        let (a, b) = (self.src(1, types[1])?, self.src(2, types[1])?);
        let one = match types[0] {
            Ty::F32 => u64::from(1f32.to_bits()),
            Ty::U32 | Ty::S32 | Ty::B32 => 0xffff_ffff,
            _ => return self.unsupported(),
        };
        Ok(Op::Set { cmp, dst, a, b, one })
    }

    fn selp(&mut self) -> Result<Op> {
        self.expect_operands(4, 4)?;
        let ty = self.ty()?;
        let Some((f, _)) = alu::lookup(&["selp".to_owned()], ty, self.mode()) else {
            return self.unsupported();
        };
        let dst = self.dst(0)?;
        Ok(Op::Alu { f, dst, a: self.src(1, ty)?, b: self.src(2, ty)?, c: self.src(3, Ty::Pred)? })
    }

    fn slct(&mut self) -> Result<Op> {
        let types = self.types();
        if types.len() != 2 {
            return self.unsupported();
        }
        let f: crate::isa::AluFn = match types[1] {
            Ty::S32 => |a, b, c| if c as i32 >= 0 { a } else { b },
            Ty::F32 => |a, b, c| if f32::from_bits(c as u32) >= 0.0 { a } else { b },
            _ => return self.unsupported(),
        };
        let dst = self.dst(0)?;
        Ok(Op::Alu {
            f,
            dst,
            a: self.src(1, types[0])?,
            b: self.src(2, types[0])?,
            c: self.src(3, types[1])?,
        })
    }

    fn lop3(&mut self) -> Result<Op> {
        if self.has("or") || self.has("and") {
            return self.unsupported();
        }
        self.expect_operands(5, 5)?;
        let dst = self.dst(0)?;
        let src =
            [self.src(1, Ty::B32)?, self.src(2, Ty::B32)?, self.src(3, Ty::B32)?, self.src(4, Ty::U32)?];
        Ok(Op::Alu4 { f: alu::lop3, dst, src })
    }

    fn prmt(&mut self) -> Result<Op> {
        let mode = self.inst.opcode.get(2).map(String::as_str);
        let Some(f) = alu::prmt(mode) else { return self.unsupported() };
        let dst = self.dst(0)?;
        Ok(Op::Alu { f, dst, a: self.src(1, Ty::B32)?, b: self.src(2, Ty::B32)?, c: self.src(3, Ty::B32)? })
    }

    fn shf(&mut self) -> Result<Op> {
        let f = alu::funnel(self.has("l"), self.has("clamp"));
        let dst = self.dst(0)?;
        Ok(Op::Alu { f, dst, a: self.src(1, Ty::B32)?, b: self.src(2, Ty::B32)?, c: self.src(3, Ty::U32)? })
    }

    fn bfi(&mut self) -> Result<Op> {
        let ty = self.ty()?;
        let Some(f) = alu::bfi(ty) else { return self.unsupported() };
        let dst = self.dst(0)?;
        let src = [self.src(1, ty)?, self.src(2, ty)?, self.src(3, Ty::U32)?, self.src(4, Ty::U32)?];
        Ok(Op::Alu4 { f, dst, src })
    }

    fn bmsk(&mut self) -> Result<Op> {
        let f: crate::isa::AluFn = if self.has("wrap") {
            |a, b, _| (crate::types::low_mask((b & 31) as u32) << (a & 31)) & 0xffff_ffff
        } else {
            |a, b, _| {
                let (a, b) = (a & 0xffff_ffff, (b & 0xffff_ffff).min(32) as u32);
                if a >= 32 { 0 } else { (crate::types::low_mask(b) << a) & 0xffff_ffff }
            }
        };
        let dst = self.dst(0)?;
        Ok(Op::Alu { f, dst, a: self.src(1, Ty::B32)?, b: self.src(2, Ty::B32)?, c: ZERO })
    }

    fn dp4a(&mut self) -> Result<Op> {
        let types = self.types();
        if types.len() != 2 {
            return self.unsupported();
        }
        let signs = u64::from(types[0].signed()) | u64::from(types[1].signed()) << 1;
        let dst = self.dst(0)?;
        let src = [self.src(1, Ty::B32)?, self.src(2, Ty::B32)?, self.src(3, Ty::B32)?, Src::Imm(signs)];
        Ok(Op::Alu4 { f: alu::dp4a, dst, src })
    }

    fn testp(&mut self) -> Result<Op> {
        if self.ty()? != Ty::F32 {
            return self.unsupported();
        }
        let f: crate::isa::AluFn = match self.inst.opcode[1].as_str() {
            "finite" => |a, _, _| u64::from(f32::from_bits(a as u32).is_finite()),
            "infinite" => |a, _, _| u64::from(f32::from_bits(a as u32).is_infinite()),
            "number" => |a, _, _| u64::from(!f32::from_bits(a as u32).is_nan()),
            "notanumber" => |a, _, _| u64::from(f32::from_bits(a as u32).is_nan()),
            "normal" => |a, _, _| u64::from(f32::from_bits(a as u32).is_normal()),
            "subnormal" => |a, _, _| u64::from(f32::from_bits(a as u32).is_subnormal()),
            _ => return self.unsupported(),
        };
        let dst = self.dst(0)?;
        Ok(Op::Alu { f, dst, a: self.src(1, Ty::F32)?, b: ZERO, c: ZERO })
    }

    fn carry(&mut self) -> Result<Op> {
        let inst = self.inst;
        let ty = self.ty()?;
        let Some(f) = alu::carry(&inst.opcode[0], &inst.opcode, ty) else { return self.unsupported() };
        let dst = self.dst(0)?;
        let c = if inst.opcode[0].starts_with("mad") { self.src(3, ty)? } else { ZERO };
        let writes = self.has("cc");
        Ok(Op::Carry { f, dst, a: self.src(1, ty)?, b: self.src(2, ty)?, c, writes })
    }

    fn target(&self, o: &Operand) -> Result<u32> {
        let Operand::Name(name) = o else { return self.error("expected a label") };
        match self.linker.label(name) {
            Some(pc) => Ok(pc),
            None => self.error(format!("label `{name}` is not defined")),
        }
    }

    fn branch(&mut self) -> Result<Op> {
        if self.inst.opcode[0] == "brx" {
            let index = self.src(0, Ty::U32)?;
            let Operand::Name(table) = self.operand(1)? else { return self.error("expected a branch table") };
            let Some(targets) = self.linker.table(&table) else {
                return self.error(format!("`{table}` is not a list of branch targets"));
            };
            let targets =
                targets.into_iter().map(|t| self.target(&Operand::Name(t))).collect::<Result<Box<[_]>>>()?;
            return Ok(Op::BranchIndexed { index, targets });
        }
        let target = self.target(&self.operand(0)?)?;
        Ok(Op::Branch { target })
    }

    fn call_value(&mut self, o: &Operand) -> Result<CallValue> {
        if let Operand::Name(name) = o
            && let Some(Symbol::CallParam(at, len)) = self.linker.resolve(name)
        {
            return Ok(CallValue::Bytes(at, len));
        }
        self.source(o, Ty::B64).map(CallValue::Source)
    }

    fn call(&mut self) -> Result<Op> {
        let operands = self.inst.operands.clone();
        let Some(at) = operands.iter().position(|o| matches!(o, Operand::Name(_))) else {
            return self.unsupported();
        };
        let Operand::Name(name) = &operands[at] else { return self.unsupported() };
        if super::RUNTIME.contains(&name.as_str()) {
            return Ok(if name == "vprintf" { Op::Nop } else { Op::Trap });
        }
        let Some(signature) = self.linker.signatures.get(name).cloned() else { return self.unsupported() };
        let list = |o: Option<&Operand>| match o {
            Some(Operand::List(v)) => v.clone(),
            _ => Vec::new(),
        };
        let returned = if at == 1 { list(operands.first()) } else { Vec::new() };
        let passed = list(operands.get(at + 1));
        if returned.len() != signature.returns.len() || passed.len() != signature.params.len() {
            return self.error(format!("the arguments do not fit the declaration of `{name}`"));
        }
        let mut args = Vec::new();
        for (o, slot) in passed.iter().zip(&signature.params) {
            let value = self.call_value(o)?;
            match copy(value, *slot) {
                Some(c) => args.push(c),
                None => return self.error(format!("an argument does not fit the declaration of `{name}`")),
            }
        }
        let mut ret = Vec::new();
        for (o, slot) in returned.iter().zip(&signature.returns) {
            let value = self.call_value(o)?;
            let back = match (*slot, value) {
                (FormalSlot::Bytes { at, len }, CallValue::Bytes(to, to_len)) => {
                    copy(CallValue::Bytes(at, len), FormalSlot::Bytes { at: to, len: to_len })
                }
                (FormalSlot::Register(r), CallValue::Source(Src::Reg(to))) => {
                    copy(CallValue::Source(Src::Reg(r)), FormalSlot::Register(to))
                }
                _ => None,
            };
            match back {
                Some(c) => ret.push(c),
                None => {
                    return self.error(format!("a return value does not fit the declaration of `{name}`"));
                }
            }
        }
        Ok(Op::Call { target: signature.start, args: args.into(), ret: ret.into() })
    }

    // ---------------------------------------------------------------- within a warp

    fn shfl(&mut self) -> Result<Op> {
        let mode = match () {
            () if self.has("up") => Shuffle::Up,
            () if self.has("down") => Shuffle::Down,
            () if self.has("bfly") => Shuffle::Bfly,
            () if self.has("idx") => Shuffle::Idx,
            () => return self.unsupported(),
        };
        let (dst, p) = match self.operand(0)? {
            Operand::Pair(d, p) => (self.register_of(&d)?, Some(self.register_of(&p)?)),
            o => (self.register_of(&o)?, None),
        };
        let mask = if self.has("sync") { Some(self.src(4, Ty::B32)?) } else { None };
        Ok(Op::Shfl {
            mode,
            dst,
            p,
            a: self.src(1, Ty::B32)?,
            b: self.src(2, Ty::B32)?,
            c: self.src(3, Ty::B32)?,
            mask,
        })
    }

    fn vote(&mut self) -> Result<Op> {
        let kind = match () {
            () if self.has("all") => Vote::All,
            () if self.has("any") => Vote::Any,
            () if self.has("uni") => Vote::Uni,
            () if self.has("ballot") => Vote::Ballot,
            () => return self.unsupported(),
        };
        let mask = if self.has("sync") { Some(self.src(2, Ty::B32)?) } else { None };
        Ok(Op::Vote { kind, dst: self.dst(0)?, src: self.src(1, Ty::Pred)?, mask })
    }

    fn match_op(&mut self) -> Result<Op> {
        let (dst, p) = match self.operand(0)? {
            Operand::Pair(d, p) => (self.register_of(&d)?, self.predicate(&p)?),
            o => (self.register_of(&o)?, None),
        };
        let ty = self.ty()?;
        Ok(Op::Match { all: self.has("all"), dst, p, a: self.src(1, ty)?, mask: self.src(2, Ty::B32)? })
    }

    fn redux(&mut self) -> Result<Op> {
        let ty = self.ty()?;
        if ty.bits() != 32 || ty == Ty::F32 {
            return self.unsupported();
        }
        let Some(op) = self.atomic_op() else { return self.unsupported() };
        Ok(Op::Redux { op, ty, dst: self.dst(0)?, a: self.src(1, ty)?, mask: self.src(2, Ty::B32)? })
    }

    pub(super) fn atomic_op(&self) -> Option<AtomOp> {
        self.inst.opcode.iter().skip(1).find_map(|m| {
            Some(match m.as_str() {
                "add" => AtomOp::Add,
                "and" => AtomOp::And,
                "or" => AtomOp::Or,
                "xor" => AtomOp::Xor,
                "min" => AtomOp::Min,
                "max" => AtomOp::Max,
                "inc" => AtomOp::Inc,
                "dec" => AtomOp::Dec,
                "exch" => AtomOp::Exch,
                "cas" => AtomOp::Cas,
                _ => return None,
            })
        })
    }

    fn elect(&mut self) -> Result<Op> {
        let Operand::Pair(d, p) = self.operand(0)? else { return self.error("expected `d|p`") };
        let dst = if *d == Operand::Sink { None } else { Some(self.register_of(&d)?) };
        Ok(Op::Elect { dst, p: self.register_of(&p)?, mask: self.src(1, Ty::B32)? })
    }

    fn setmaxnreg(&mut self) -> Result<Op> {
        let count = self.constant(0)?;
        if !(24..=256).contains(&count) || count % 8 != 0 {
            return self.error("the register count is a multiple of 8 from 24 to 256");
        }
        Ok(Op::SetMaxReg)
    }
}
