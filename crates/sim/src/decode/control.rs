//! Branches and calls.

use super::decoder::Decoder;
use super::reach::through_pointer;
use super::{CallValue, FormalSlot, Result, Signature, Symbol, copy};
use crate::text::ast::Operand;
use crate::decode::isa::{CallTarget, Op, Src};
use crate::text::types::Ty;

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
        let mut values = |o: Option<&Operand>| match o {
            Some(Operand::List(v)) => v.iter().map(|o| self.call_value(o)).collect::<Result<Vec<_>>>(),
            _ => Ok(Vec::new()),
        };
        let returned = values(operands.first().filter(|_| at == 1))?;
        let passed = values(operands.get(at + 1))?;
        if through_pointer(self.inst) {
            let declared = |o: &Operand| match o {
                Operand::Name(name) => self.linker.find(|s| s.prototypes.get(name).cloned()).is_some(),
                _ => false,
            };
            if !operands.last().is_some_and(declared) {
                return self.error("a call through a pointer names a prototype or a list of targets last");
            }
            let pointer = self.source(&operands[at], Ty::B64)?;
            let linker = &self.linker;
            let target = |(name, signature): (&String, &Signature)| {
                let address = *linker.globals.get(name)?;
                Some((address, call_target(signature, &passed, &returned).ok()?))
            };
            let mut targets: Vec<_> = linker.signatures.iter().filter_map(target).collect();
            targets.sort_by_key(|target| target.0);
            return Ok(Op::CallPointer { pointer, targets: targets.into() });
        }
        let Some(signature) = self.linker.signatures.get(name) else { return self.unsupported() };
        match call_target(signature, &passed, &returned) {
            Ok(target) => Ok(Op::Call(target)),
            Err(what) => self.error(format!("{what} the declaration of `{name}`")),
        }
    }
}

/// A call of a function with these values; the error says what does not fit.
fn call_target(
    signature: &Signature,
    passed: &[CallValue],
    returned: &[CallValue],
) -> std::result::Result<CallTarget, &'static str> {
    if returned.len() != signature.returns.len() || passed.len() != signature.params.len() {
        return Err("the arguments do not fit");
    }
    let args = passed.iter().zip(&signature.params).map(|(value, slot)| copy(*value, *slot));
    let ret = returned.iter().zip(&signature.returns).map(|(value, slot)| match (*slot, *value) {
        (FormalSlot::Bytes { at, len }, CallValue::Bytes(to, to_len)) => {
            copy(CallValue::Bytes(at, len), FormalSlot::Bytes { at: to, len: to_len })
        }
        (FormalSlot::Register(r), CallValue::Source(Src::Reg(to))) => {
            copy(CallValue::Source(Src::Reg(r)), FormalSlot::Register(to))
        }
        _ => None,
    });
    Ok(CallTarget {
        code: signature.start..signature.end,
        args: args.collect::<Option<_>>().ok_or("an argument does not fit")?,
        ret: ret.collect::<Option<_>>().ok_or("a return value does not fit")?,
    })
}
