//! Branches and calls.

use super::operand::Decoder;
use super::{CallValue, FormalSlot, Result, Symbol, copy};
use crate::ast::Operand;
use crate::isa::{Op, Src};
use crate::types::Ty;

impl Decoder<'_, '_> {
    fn target(&self, o: &Operand) -> Result<u32> {
        let Operand::Name(name) = o else { return self.error("expected a label") };
        match self.linker.label(name) {
            Some(pc) => Ok(pc),
            None => self.error(format!("label `{name}` is not defined")),
        }
    }

    pub(super) fn branch(&mut self) -> Result<Op> {
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

    pub(super) fn call(&mut self) -> Result<Op> {
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
}
