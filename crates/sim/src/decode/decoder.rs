//! Operands of one instruction, and the families that decode it.

use super::isa::{Addr, Op, Reg, Src};
use super::special::Special;
use super::{Linker, Result, Symbol, fail};
use crate::text::ast::*;

use crate::text::types::{Ty, low_mask};

/// What a family makes of an instruction: `None` where the opcode is not one of its own.
pub(super) type Claim = Result<Option<Op>>;

/// The families of instructions, in the order in which they are asked; the last one takes what is left.
const FAMILIES: [fn(&mut Decoder<'_, '_>) -> Claim; 17] = [
    |d| d.collective(),
    |d| d.memory(),
    |d| d.atomic(),
    |d| d.barrier(),
    |d| d.mbarrier(),
    |d| d.fence(),
    |d| d.cp_async(),
    |d| d.copy(),
    |d| d.tensormap(),
    |d| d.wgmma(),
    |d| d.matrix(),
    |d| d.wmma(),
    |d| d.tcgen05(),
    |d| d.clc(),
    |d| d.control(),
    |d| d.missing_units(),
    |d| d.scalar(),
];

pub(super) struct Decoder<'l, 'a> {
    pub(super) linker: &'l mut Linker<'a>,
    pub(super) inst: &'l Instruction,
    pub(super) in_entry: bool,
}

impl Decoder<'_, '_> {
    pub(super) fn decode(mut self) -> Result<(Op, Option<(Reg, bool)>)> {
        let guard = match &self.inst.guard {
            None => None,
            Some((name, negate)) => match self.linker.resolve(name) {
                Some(Symbol::Register(r, Ty::Pred)) => Some((r, *negate)),
                _ => return self.error(format!("`{name}` is not a predicate register")),
            },
        };
        self.check_target()?;
        let op = self.operation()?;
        self.check_operands()?;
        Ok((op, guard))
    }

    pub(super) fn text(&self) -> String {
        self.inst.opcode.join(".")
    }

    pub(super) fn error<T>(&self, message: impl AsRef<str>) -> Result<T> {
        fail(self.inst.at, format!("`{}`: {}", self.text(), message.as_ref()))
    }

    pub(super) fn unsupported<T>(&self) -> Result<T> {
        self.error("the simulator does not support this instruction")
    }

    /// An instruction of a unit that the simulator lacks as a whole.
    fn not_modelled<T>(&self, unit: &str) -> Result<T> {
        self.error(format!("{unit} is not modelled: the simulator does not support this instruction"))
    }

    pub(super) fn has(&self, modifier: &str) -> bool {
        self.inst.has(modifier)
    }

    pub(super) fn count(&self) -> usize {
        self.inst.operands.len()
    }

    pub(super) fn operand(&self, i: usize) -> Result<Operand> {
        match self.inst.operands.get(i) {
            Some(o) => Ok(o.clone()),
            None => self.error(format!("operand {} is missing", i + 1)),
        }
    }

    pub(super) fn expect_operands(&self, least: usize, most: usize) -> Result<()> {
        let n = self.count();
        if n < least || n > most {
            return self.error(format!("expected {least} to {most} operands, found {n}"));
        }
        Ok(())
    }

    /// Types among the modifiers, in order.
    pub(super) fn types(&self) -> Vec<Ty> {
        self.inst.opcode.iter().skip(1).filter_map(|m| Ty::parse(m)).collect()
    }

    /// The last type among the modifiers: the operand type of most instructions.
    pub(super) fn ty(&self) -> Result<Ty> {
        match self.types().last() {
            Some(t) => Ok(*t),
            None => self.error("the type is missing"),
        }
    }

    pub(super) fn dst(&mut self, i: usize) -> Result<Reg> {
        let o = self.operand(i)?;
        self.register_of(&o)
    }

    /// A destination that may be `_`.
    pub(super) fn optional_dst(&mut self, i: usize) -> Result<Option<Reg>> {
        match self.operand(i)? {
            Operand::Sink => Ok(None),
            o => self.register_of(&o).map(Some),
        }
    }

    pub(super) fn register_of(&mut self, o: &Operand) -> Result<Reg> {
        self.register_and_type(o).map(|r| r.0)
    }

    pub(super) fn register_and_type(&mut self, o: &Operand) -> Result<(Reg, Ty)> {
        let Operand::Name(name) = o else { return self.error(format!("expected a register, found {o:?}")) };
        match self.linker.resolve(name) {
            Some(Symbol::Register(_, Ty::B128)) => self.error(format!("`{name}` is 128 bits wide")),
            Some(Symbol::Register(r, ty)) => Ok((r, ty)),
            Some(_) => self.error(format!("`{name}` is a variable, not a register")),
            None => self.error(format!("`{name}` is not declared")),
        }
    }

    /// The registers that hold an operand: two, low word first, for one of 128 bits.
    pub(super) fn words(&mut self, o: &Operand) -> Result<Vec<Reg>> {
        if let Operand::Name(name) = o
            && let Some(Symbol::Register(r, Ty::B128)) = self.linker.resolve(name)
        {
            return Ok(vec![r, Reg(r.0 + 1)]);
        }
        self.register_of(o).map(|r| vec![r])
    }

    pub(super) fn register_width(&self, r: Reg) -> u32 {
        self.linker.register_bits[r.index()]
    }

    /// A scalar source of the given type.
    pub(super) fn src(&mut self, i: usize, ty: Ty) -> Result<Src> {
        let o = self.operand(i)?;
        self.source(&o, ty)
    }

    pub(super) fn source(&mut self, o: &Operand, ty: Ty) -> Result<Src> {
        Ok(match o {
            Operand::Int(v) => match ty {
                Ty::F32 => Src::Imm(u64::from((*v as f32).to_bits())),
                Ty::F64 => Src::Imm((*v as f64).to_bits()),
                _ => Src::Imm(*v as u64 & low_mask(ty.bits())),
            },
            Operand::F32Bits(b) if ty == Ty::F64 => Src::Imm(f64::from(f32::from_bits(*b)).to_bits()),
            Operand::F32Bits(b) => Src::Imm(u64::from(*b)),
            Operand::F64Bits(b) if ty == Ty::F32 => {
                Src::Imm(u64::from((f64::from_bits(*b) as f32).to_bits()))
            }
            Operand::F64Bits(b) => Src::Imm(*b),
            Operand::Float(v) => match ty {
                Ty::F64 | Ty::B64 => Src::Imm(v.to_bits()),
                Ty::F32 | Ty::B32 => Src::Imm(u64::from((*v as f32).to_bits())),
                _ => return self.error("a decimal constant needs an f32 or f64 operand"),
            },
            Operand::Not(inner) => match self.source(inner, ty)? {
                Src::Reg(r) if self.register_width(r) == 1 => Src::Not(r),
                _ => return self.error("`!` takes a predicate"),
            },
            Operand::Name(name) => self.named(name, 0)?,
            Operand::Offset(name, offset) => self.named(name, *offset)?,
            _ => return self.error(format!("expected a scalar operand, found {o:?}")),
        })
    }

    fn named(&mut self, name: &str, offset: i64) -> Result<Src> {
        let resolved = self.linker.resolve(name);
        Ok(match resolved {
            Some(Symbol::Register(_, Ty::B128)) => return self.error(format!("`{name}` is 128 bits wide")),
            Some(Symbol::Register(r, _)) if offset == 0 => Src::Reg(r),
            Some(Symbol::Register(..)) => {
                return self.error("a register with an offset stands only in brackets");
            }
            Some(Symbol::Shared(at)) => Src::Shared(at.wrapping_add(offset as u32)),
            Some(Symbol::Local(at) | Symbol::CallParam(at, _) | Symbol::EntryParam(at)) => {
                Src::Imm(u64::from(at).wrapping_add(offset as u64))
            }
            Some(Symbol::Global(at)) => Src::Imm(at.wrapping_add(offset as u64)),
            None if name == "WARP_SZ" => Src::Imm(32),
            None if self.linker.module.functions.iter().any(|f| f.name == name) => {
                return self
                    .error(format!("`{name}` has no address: it is a kernel, or is not defined here"));
            }
            None => match Special::parse(name) {
                Some(s) => {
                    if name.contains("cluster") {
                        self.require(&format!("`{name}`"), super::target::CLUSTERS)?;
                    }
                    Src::Special(s)
                }
                None => return self.error(format!("`{name}` is not declared")),
            },
        })
    }

    pub(super) fn addr(&mut self, i: usize) -> Result<Addr> {
        let o = self.operand(i)?;
        self.address_of(&o)
    }

    pub(super) fn address_of(&mut self, o: &Operand) -> Result<Addr> {
        match o {
            Operand::Address(base, offset, None) => {
                let base = self.source(base, Ty::U64)?;
                Ok(match base {
                    Src::Shared(at) => Addr { base: Src::Shared(at.wrapping_add(*offset as u32)), offset: 0 },
                    base => Addr { base, offset: *offset },
                })
            }
            _ => self.error(format!("expected an address in brackets, found {o:?}")),
        }
    }

    /// Whether the address names a `.param` variable of a call, which lives in local memory.
    pub(super) fn is_call_param(&mut self, i: usize) -> Result<bool> {
        let Operand::Address(base, _, _) = self.operand(i)? else { return Ok(false) };
        let Operand::Name(name) = *base else { return Ok(!self.in_entry) };
        Ok(match self.linker.resolve(&name) {
            Some(Symbol::CallParam(..)) => true,
            Some(Symbol::Register(..)) => !self.in_entry,
            _ => false,
        })
    }

    /// The elements of `{a, b}`, or the operand itself.
    pub(super) fn elements(&self, i: usize) -> Result<Vec<Operand>> {
        Ok(match self.operand(i)? {
            Operand::Vector(v) => v,
            o => vec![o],
        })
    }

    pub(super) fn registers(&mut self, i: usize) -> Result<Box<[Reg]>> {
        let elements = self.elements(i)?;
        elements.iter().map(|o| self.register_of(o)).collect()
    }

    pub(super) fn sources(&mut self, i: usize, ty: Ty) -> Result<Box<[Src]>> {
        let elements = self.elements(i)?;
        elements.iter().map(|o| self.source(o, ty)).collect()
    }

    pub(super) fn constant(&self, i: usize) -> Result<i64> {
        match self.operand(i)? {
            Operand::Int(v) => Ok(v as i64),
            _ => self.error(format!("operand {} must be a constant", i + 1)),
        }
    }

    /// The state space among the modifiers.
    pub(super) fn space(&self) -> Space {
        for m in self.inst.opcode.iter().skip(1) {
            match m.as_str() {
                "global" => return Space::Global,
                "shared" | "shared::cta" => return Space::Shared,
                "shared::cluster" => return Space::Cluster,
                "local" => return Space::Local,
                "param" | "param::entry" | "param::func" => return Space::Param,
                "const" => return Space::Const,
                _ => {}
            }
        }
        Space::Generic
    }

    fn operation(&mut self) -> Result<Op> {
        for family in FAMILIES {
            if let Some(op) = family(self)? {
                return Ok(op);
            }
        }
        self.unsupported()
    }

    /// Units that the simulator lacks as a whole.
    fn missing_units(&mut self) -> Claim {
        match self.inst.opcode[0].as_str() {
            "multimem" => self.not_modelled("memory that several GPUs share (multimem)"),
            "tex" | "tld4" | "txq" | "suld" | "sust" | "sured" | "suq" | "istypep" => {
                self.not_modelled("texture and surface memory")
            }
            _ => Ok(None),
        }
    }
}
