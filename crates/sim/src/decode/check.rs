//! Operands of an instruction against its signature: kinds, types and widths, as the assembler checks them.

use super::decoder::Decoder;
use super::signatures::{KNOWN, NEEDED, ROWS};
use super::special::Special;
use super::target::fits;
use super::{Result, Symbol};
use crate::text::ast::{Instruction, Operand, Space};
use crate::text::types::Ty;
use std::collections::HashMap;
use std::sync::OnceLock;

/// Rows by opcode: the words of a pattern, and what belongs to it.
type Index<T> = HashMap<&'static str, Vec<(Vec<&'static str>, T)>>;

fn index<T: Copy>(rows: impl Iterator<Item = (&'static str, T)>) -> Index<T> {
    let mut index: Index<T> = HashMap::new();
    for (pattern, value) in rows {
        let (opcodes, words) = pattern.split_once(' ').unwrap_or((pattern, ""));
        let words: Vec<&str> = words.split(' ').filter(|word| !word.is_empty()).collect();
        for opcode in opcodes.split('|') {
            index.entry(opcode).or_default().push((words.clone(), value));
        }
    }
    index
}

fn find<T: Copy>(index: &Index<T>, inst: &Instruction) -> Option<T> {
    let rows = index.get(inst.opcode[0].as_str())?;
    let row = rows.iter().find(|(words, _)| {
        words.iter().all(|word| match *word {
            "[" => matches!(inst.operands.first(), Some(Operand::Address(..))),
            word => fits(word, inst),
        })
    });
    row.map(|row| row.1)
}

/// Whether a register of type `register` holds an operand of type `ty`; a wider one too where `wider`.
fn holds(register: Ty, ty: Ty, wider: bool) -> bool {
    let width = if wider { register.bits() >= ty.bits() } else { register.bits() == ty.bits() };
    let bits = matches!(register, Ty::B8 | Ty::B16 | Ty::B32 | Ty::B64 | Ty::B128);
    let integer = register.is_integer();
    if register == Ty::Pred || ty == Ty::Pred {
        return register == ty;
    }
    width
        && match ty {
            Ty::B8 | Ty::B16 | Ty::B32 | Ty::B64 | Ty::B128 => true,
            Ty::F16 | Ty::F32 | Ty::F64 | Ty::F16x2 => bits || register == ty,
            // A pair of halves may stand for an integer.
            _ if ty.is_integer() => bits || integer || register == Ty::F16x2,
            // Packed types of an integer.
            Ty::U16x2 | Ty::S16x2 => bits || integer,
            _ => bits,
        }
}

/// Whether a constant may stand for an operand of type `ty`.
fn constant_fits(constant: &Operand, ty: Ty) -> bool {
    match constant {
        Operand::Int(_) => {
            ty == Ty::Pred
                || ty.is_integer()
                || matches!(ty, Ty::B8 | Ty::B16 | Ty::B32 | Ty::B64 | Ty::B128 | Ty::U16x2 | Ty::S16x2)
        }
        Operand::F32Bits(_) => matches!(ty, Ty::F32 | Ty::F64 | Ty::B32),
        Operand::F64Bits(_) | Operand::Float(_) => matches!(ty, Ty::F32 | Ty::F64 | Ty::B64),
        _ => false,
    }
}

/// The register of a matrix whose elements have this type.
fn of_matrix(ty: Ty) -> Ty {
    match ty {
        Ty::F32 | Ty::F64 | Ty::S32 => ty,
        Ty::F16 => Ty::F16x2,
        Ty::U8 | Ty::S8 | Ty::U4 | Ty::S4 | Ty::B1 => Ty::U32,
        _ => Ty::Bf16x2,
    }
}

/// What one operand must be.
#[derive(Clone, Copy)]
enum Want {
    Type { ty: Ty, wider: bool },
    Address,
    Constant,
    Anything,
}

impl Decoder<'_, '_> {
    /// Refuses operands that do not fit the instruction.
    pub(super) fn check_operands(&mut self) -> Result<()> {
        static SIGNATURES: OnceLock<Index<(&str, &str)>> = OnceLock::new();
        static MODIFIERS: OnceLock<Index<&[&str]>> = OnceLock::new();
        let inst = self.inst;
        let modifiers = MODIFIERS.get_or_init(|| index(NEEDED.iter().copied()));
        if let Some(needed) = find(modifiers, inst)
            && !needed.iter().any(|m| self.has(m))
        {
            return self.error(format!("it needs one of .{}", needed.join(", .")));
        }
        self.check_modifiers()?;
        match inst.opcode[0].as_str() {
            "mov" => return self.check_move(),
            "cvt" => return self.check_conversion(),
            _ => {}
        }
        let signatures = SIGNATURES.get_or_init(|| index(ROWS.iter().map(|row| (row.0, (row.1, row.2)))));
        let Some((operands, types)) = find(signatures, inst) else { return Ok(()) };
        if !types.is_empty() {
            let ty = inst.opcode[1..].iter().rev().find(|m| Ty::parse(m).is_some());
            match ty {
                Some(ty) if types.split(' ').any(|known| known == ty) => {}
                Some(ty) => return self.error(format!("it does not exist for .{ty}")),
                None => return self.error("the type is missing"),
            }
        }
        self.check_list(operands)
    }

    /// Modifiers that would otherwise be ignored.
    fn check_modifiers(&self) -> Result<()> {
        static MODIFIERS: OnceLock<Index<&str>> = OnceLock::new();
        let inst = self.inst;
        let known = |m: &str, list: &str| {
            Ty::parse(m).is_some()
                || matches!(m, "v2" | "v4" | "v8")
                || list.split_whitespace().any(|word| match word.strip_suffix('*') {
                    Some(prefix) => m.starts_with(prefix),
                    None => m == word,
                })
        };
        let modifiers = MODIFIERS.get_or_init(|| index(KNOWN.iter().copied()));
        if let Some(list) = find(modifiers, inst)
            && let Some(unknown) = inst.opcode[1..].iter().find(|m| !known(m, list))
        {
            return self.error(format!("`.{unknown}` is not a modifier of `{}`", inst.opcode[0]));
        }
        let Some(ty) = self.types().last().copied() else { return Ok(()) };
        let rounding = ["rn", "rz", "rm", "rp"].iter().find(|m| self.has(m));
        match inst.opcode[0].as_str() {
            "add" | "sub" | "mul" | "mad" | "div" if ty.is_integer() => {
                if let Some(rounding) = rounding {
                    return self.error(format!("`.{rounding}` is not for integers"));
                }
                if self.has("sat") && ty != Ty::S32 {
                    return self.error(format!("`.sat` does not apply to .{}", ty.name()));
                }
            }
            "setp" | "set" if matches!(ty, Ty::B16 | Ty::B32 | Ty::B64) => {
                if !self.has("eq") && !self.has("ne") {
                    return self.error("bits are compared with eq or ne");
                }
            }
            "ld" | "st" => {
                let bits = ty.bits() as usize * self.vector_width();
                let global = matches!(self.space(), Space::Global | Space::Generic);
                if bits > 256 || (bits > 128 && (!global || ty == Ty::B128)) {
                    return self.error(format!("an access of {bits} bits"));
                }
                if self.has("nc") && self.space() != Space::Global {
                    return self.error("`.nc` is for global memory");
                }
            }
            "bar" | "barrier" if !self.has("cluster") && !self.has("warp") => {
                let first = usize::from(self.has("red"));
                if let Some(Operand::Int(id)) = inst.operands.get(first)
                    && !(0..16).contains(id)
                {
                    return self.error(format!("barrier {id}: there are 0 to 15"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn check_list(&mut self, tokens: &str) -> Result<()> {
        let inst = self.inst;
        let mut given = inst.operands.iter();
        let mut least = 0;
        for (at, token) in tokens.split(' ').filter(|token| !token.is_empty()).enumerate() {
            if token == "..." {
                return Ok(());
            }
            let (token, optional) = match token.strip_suffix('?') {
                Some(token) => (token, true),
                None => (token, false),
            };
            least = if optional { least } else { at + 1 };
            match given.next() {
                Some(operand) => self.check_operand(at, operand, token)?,
                None if optional => {}
                None => return self.error(format!("operand {} is missing", at + 1)),
            }
        }
        match given.next() {
            Some(_) => {
                let most = tokens.split(' ').filter(|token| !token.is_empty()).count();
                self.error(format!("expected {least} to {most} operands, found {}", inst.operands.len()))
            }
            None => Ok(()),
        }
    }

    /// The type that a token of a signature stands for.
    fn want(&self, token: &str) -> Result<Want> {
        let types = self.types();
        let nth = |n: &str| -> Result<Ty> {
            let found = match n.parse::<usize>() {
                Ok(n) => types.get(n - 1),
                Err(_) => types.last(),
            };
            match found {
                Some(ty) => Ok(*ty),
                None => self.error("the type is missing"),
            }
        };
        let exactly = |ty| Want::Type { ty, wider: false };
        Ok(match token {
            "@" => Want::Address,
            "#" => Want::Constant,
            "*" => Want::Anything,
            "p" => exactly(Ty::Pred),
            "w" => exactly(if nth("")?.bits() == 16 { Ty::U32 } else { Ty::U64 }),
            _ if token.starts_with('t') => exactly(nth(&token[1..])?),
            _ if token.starts_with('T') => Want::Type { ty: nth(&token[1..])?, wider: true },
            _ if token.starts_with('m') => {
                nth(&token[1..]).map_or(Want::Anything, |ty| exactly(of_matrix(ty)))
            }
            _ => match Ty::parse(token) {
                Some(ty) => exactly(ty),
                None => Want::Anything,
            },
        })
    }

    fn check_operand(&mut self, at: usize, operand: &Operand, token: &str) -> Result<()> {
        let (first, second) = token.split_once('|').unwrap_or((token, token));
        match operand {
            Operand::Pair(a, b) if token.contains('|') => {
                self.check_operand(at, a, first)?;
                self.check_operand(at, b, second)
            }
            operand => {
                let want = self.want(first)?;
                self.check_one(at, operand, want)
            }
        }
    }

    fn check_one(&mut self, at: usize, operand: &Operand, want: Want) -> Result<()> {
        match (want, operand) {
            (Want::Anything, _) | (_, Operand::Sink) => Ok(()),
            (Want::Address, Operand::Address(base, _, coordinates)) => {
                self.check_base(at, base)?;
                match coordinates.as_deref() {
                    Some(Operand::Vector(list)) => list.iter().try_for_each(|coordinate| {
                        self.check_one(at, coordinate, Want::Type { ty: Ty::S32, wider: false })
                    }),
                    _ => Ok(()),
                }
            }
            (Want::Address, _) => self.error(format!("operand {} is not an address in brackets", at + 1)),
            (Want::Constant, Operand::Int(_)) => Ok(()),
            (Want::Constant, _) => self.error(format!("operand {} must be a constant", at + 1)),
            (Want::Type { .. }, Operand::Vector(list)) => {
                list.iter().try_for_each(|element| self.check_element(at, element, want))
            }
            (Want::Type { ty, wider }, operand) => self.check_type(at, operand, ty, wider),
        }
    }

    /// An element of a vector; where the assembler loads pairs of floats it takes integers as well.
    fn check_element(&mut self, at: usize, element: &Operand, want: Want) -> Result<()> {
        if let (Want::Type { ty: Ty::F32, wider: true }, Operand::Name(name)) = (want, element)
            && let Some(Symbol::Register(_, Ty::U32 | Ty::S32)) = self.linker.resolve(name)
        {
            return Ok(());
        }
        self.check_one(at, element, want)
    }

    fn check_type(&mut self, at: usize, operand: &Operand, ty: Ty, wider: bool) -> Result<()> {
        let (at, name) = (at + 1, ty.name());
        match operand {
            Operand::Int(_) | Operand::Float(_) | Operand::F32Bits(_) | Operand::F64Bits(_) => {
                if constant_fits(operand, ty) {
                    return Ok(());
                }
                self.error(format!("operand {at} is a constant that does not fit .{name}"))
            }
            Operand::Not(inner) if ty == Ty::Pred => self.check_type(at - 1, inner, ty, wider),
            Operand::Name(name) | Operand::Offset(name, _) => match self.linker.resolve(name) {
                Some(Symbol::Register(_, register)) if holds(register, ty, wider) => Ok(()),
                Some(Symbol::Register(_, register)) => self.error(format!(
                    "operand {at}, `{name}`, is a register of type .{}, which does not hold .{}",
                    register.name(),
                    ty.name()
                )),
                Some(_) if ty == Ty::Pred || ty.is_float() => {
                    self.error(format!("operand {at}, `{name}`, is an address, which is no .{}", ty.name()))
                }
                Some(_) => Ok(()),
                None if Special::parse(name).is_some() => self.error(format!(
                    "operand {at}, `{name}`, is a special register, which only `mov` and `cvt` read"
                )),
                None => Ok(()),
            },
            _ => self.error(format!("operand {at} is not of type .{name}")),
        }
    }

    /// The base of an address, whose state space is that of the instruction.
    fn check_base(&mut self, at: usize, base: &Operand) -> Result<()> {
        let space = self.space();
        let Operand::Name(name) = base else {
            return match base {
                Operand::Int(_) if space != Space::Local => {
                    self.error("a constant is an address of local memory only")
                }
                _ => Ok(()),
            };
        };
        let simple = matches!(self.inst.opcode[0].as_str(), "ld" | "ldu" | "st" | "atom" | "red");
        let wrong = match self.linker.resolve(name) {
            Some(Symbol::Register(_, ty)) => {
                let integer = ty.is_integer() || matches!(ty, Ty::B8 | Ty::B16 | Ty::B32 | Ty::B64);
                if !integer {
                    let at = at + 1;
                    return self.error(format!(
                        "operand {at}, `{name}`, is a register of type .{}, which holds no address",
                        ty.name()
                    ));
                }
                false
            }
            Some(_) if !simple || space == Space::Generic => false,
            Some(Symbol::Shared(_)) => !matches!(space, Space::Shared | Space::Cluster),
            Some(Symbol::Local(_)) => space != Space::Local,
            Some(Symbol::CallParam(..) | Symbol::EntryParam(_)) => space != Space::Param,
            Some(Symbol::Global(_)) => !matches!(space, Space::Global | Space::Const),
            None => false,
        };
        if wrong {
            return self.error(format!("`{name}` is not in the state space of the instruction"));
        }
        Ok(())
    }

    /// `mov`: a scalar, or a vector of registers as wide together as the type.
    fn check_move(&mut self) -> Result<()> {
        let inst = self.inst;
        let ty = self.ty()?;
        const TYPES: &[Ty] = &[
            Ty::Pred,
            Ty::B16,
            Ty::B32,
            Ty::B64,
            Ty::B128,
            Ty::U16,
            Ty::U32,
            Ty::U64,
            Ty::S16,
            Ty::S32,
            Ty::S64,
            Ty::F32,
            Ty::F64,
        ];
        if !TYPES.contains(&ty) || self.types().len() > 1 {
            return self.error("it does not exist for these types");
        }
        let vectors = inst.operands.iter().any(|o| matches!(o, Operand::Vector(_)));
        if vectors && !matches!(ty, Ty::B16 | Ty::B32 | Ty::B64 | Ty::B128) {
            return self.error("a vector is packed and unpacked by a type of bits: .b32, .b64");
        }
        for (at, operand) in inst.operands.iter().enumerate() {
            match operand {
                Operand::Vector(list) => {
                    let element = match ty.bits() as usize / list.len().max(1) {
                        8 => Ty::B8,
                        16 => Ty::B16,
                        32 => Ty::B32,
                        64 => Ty::B64,
                        _ => return self.error(format!("a vector of {} elements", list.len())),
                    };
                    list.iter()
                        .try_for_each(|o| self.check_one(at, o, Want::Type { ty: element, wider: false }))?;
                }
                Operand::Name(name) if at == 1 && self.linker.resolve(name).is_none() => {
                    self.check_special(name, ty)?;
                }
                operand => self.check_one(at, operand, Want::Type { ty, wider: false })?,
            }
        }
        Ok(())
    }

    /// A special register as the source of a `mov`.
    fn check_special(&self, name: &str, ty: Ty) -> Result<()> {
        if Special::parse(name).is_none() {
            return Ok(());
        }
        let wide = matches!(name, "%clock64" | "%globaltimer" | "%gridid" | "%current_graph_exec");
        let both = matches!(name, "%gridid") || name.contains('.');
        let fits = match ty.bits() {
            64 => wide && !ty.is_float(),
            32 => (!wide || both) && !ty.is_float(),
            16 => both && !wide && !ty.is_float(),
            _ => false,
        };
        if fits { Ok(()) } else { self.error(format!("`{name}` does not fit .{}", ty.name())) }
    }

    /// `cvt`: numbers may lie in wider registers, packed ones may not.
    fn check_conversion(&mut self) -> Result<()> {
        let inst = self.inst;
        let types = self.types();
        let &[to, from, ..] = types.as_slice() else { return Ok(()) };
        if self.has("pack") {
            return self.check_list("b32 s32 s32 b32?");
        }
        let rounded = ["rn", "rz", "rm", "rp", "rna", "rs", "rni", "rzi", "rmi", "rpi"];
        let rounded = rounded.iter().any(|m| self.has(m));
        let (to_float, from_float) = (to.is_float(), from.is_float());
        let halves = matches!((to, from), (Ty::Bf16, Ty::F16) | (Ty::F16, Ty::Bf16));
        let exact =
            to_float && from_float && to.is_number() && (to.bits() > from.bits() || to == from || halves);
        if (to_float || from_float) && !exact && !rounded {
            return self.error("it needs a rounding");
        }
        if !to_float && !from_float && rounded && to.is_integer() && from.is_integer() {
            return self.error("a conversion of integers takes no rounding");
        }
        let plain = |ty: Ty| ty.is_integer() || matches!(ty, Ty::F16 | Ty::F32 | Ty::F64);
        let last = inst.operands.len() - 1;
        let with = self.has("rs") || self.inst.opcode.iter().any(|m| m.starts_with("scaled::"));
        for (at, operand) in inst.operands.iter().enumerate() {
            if with && at == last {
                continue;
            }
            let ty = if at == 0 { to } else { from };
            let wider = plain(ty) && (to != Ty::F16x2 || at > 0);
            if at > 0
                && let Operand::Name(name) = operand
                && self.linker.resolve(name).is_none()
                && Special::parse(name).is_some()
            {
                continue;
            }
            self.check_one(at, operand, Want::Type { ty, wider })?;
        }
        Ok(())
    }
}
