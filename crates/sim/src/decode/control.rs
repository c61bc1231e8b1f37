//! Control flow: branches, calls, exits, `setmaxnreg` and `griddepcontrol`.

use super::decoder::{Claim, Decoder};
use super::isa::{Op, Reg, Src};
use super::operands::{Operands, Roles, operands};
use super::reach::through_pointer;
use super::{CallValue, FormalSlot, Result, Signature, Symbol, call_copy};
use crate::text::ast::Operand;
use crate::text::types::Ty;

operands! {
    /// Control flow, and what concerns the warp or the grid as a whole.
    pub(crate) enum ControlOp {
        Branch { target: u32 },
        BranchIndexed { index: Src, targets: Box<[u32]> },
        Call(CallTarget),
        /// A call through a pointer: the functions that fit its arguments, by their addresses.
        CallPointer { pointer: Src, targets: Box<[(u64, CallTarget)]> },
        Return,
        Exit,
        Trap,
        Nop,
        /// `nanosleep`
        Yield,
        /// Registers of a thread from now on.
        SetMaxReg { count: u32 },
        /// `vprintf`
        Print(Print),
        /// `griddepcontrol.wait`
        GridDependencyWait,
        /// `griddepcontrol.launch_dependents`
        LaunchDependents,
    }
}

/// Where lanes go after an instruction whose guard lets them run it.
pub(super) enum Flow<'a> {
    /// To the next one.
    Step,
    /// To one of these.
    Jump(&'a [u32]),
    /// Back to the caller; out of the kernel, in the entry.
    Return,
    /// Out of the kernel.
    Exit,
    /// Nowhere.
    Trap,
}

impl Op {
    pub(super) fn flow(&self) -> Flow<'_> {
        match self {
            Op::Control(ControlOp::Branch { target }) => Flow::Jump(std::slice::from_ref(target)),
            Op::Control(ControlOp::BranchIndexed { targets, .. }) => Flow::Jump(targets),
            Op::Control(ControlOp::Return) => Flow::Return,
            Op::Control(ControlOp::Exit) => Flow::Exit,
            Op::Control(ControlOp::Trap) => Flow::Trap,
            _ => Flow::Step,
        }
    }
}

/// The return at the end of a function that has none.
pub(super) const RETURN: Op = Op::Control(ControlOp::Return);

/// A function that is called.
#[derive(Clone, Debug)]
pub(crate) struct CallTarget {
    /// Its instructions.
    pub(crate) code: std::ops::Range<u32>,
    pub(crate) args: Box<[CallCopy]>,
    pub(crate) ret: Box<[CallCopy]>,
}

/// A call of `vprintf`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Print {
    pub(crate) format: Passed,
    pub(crate) arguments: Passed,
    /// Where the number of arguments goes: local memory, or a register.
    pub(crate) result: Option<Passed>,
    pub(crate) register: Option<Reg>,
}

/// A pointer that is passed: in local memory, or a value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Passed {
    Local(u32),
    Value(Src),
}

impl Operands for Print {
    fn collect(&self, roles: &mut Roles) {
        for passed in [self.format, self.arguments] {
            if let Passed::Value(src) = passed {
                src.collect(roles);
            }
        }
        self.register.collect(roles);
    }
}

/// One value passed or returned by a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallCopy {
    /// Bytes between two places of the thread's local memory.
    Bytes { from: u32, to: u32, len: u32 },
    /// A register or constant to a register.
    Value { from: Src, to: Reg },
}

impl Operands for CallTarget {
    fn collect(&self, roles: &mut Roles) {
        for copy in &self.args {
            if let CallCopy::Value { from, to } = copy {
                (*from, *to).collect(roles);
            }
        }
    }
}

impl Decoder<'_, '_> {
    pub(super) fn control(&mut self) -> Claim {
        let op = match self.inst.opcode[0].as_str() {
            "bra" | "brx" => self.branch()?,
            "call" => self.call()?,
            "ret" => ControlOp::Return,
            "exit" => ControlOp::Exit,
            "trap" => ControlOp::Trap,
            "brkpt" | "pmevent" | "nop" => ControlOp::Nop,
            "nanosleep" => ControlOp::Yield,
            "setmaxnreg" => self.setmaxnreg()?,
            "griddepcontrol" if self.has("wait") => ControlOp::GridDependencyWait,
            "griddepcontrol" if self.has("launch_dependents") => ControlOp::LaunchDependents,
            _ => return Ok(None),
        };
        Ok(Some(Op::Control(op)))
    }

    fn target(&self, o: &Operand) -> Result<u32> {
        let Operand::Name(name) = o else { return self.error("expected a label") };
        match self.linker.label(name) {
            Some(pc) => Ok(pc),
            None => self.error(format!("label `{name}` is not defined")),
        }
    }

    fn branch(&mut self) -> Result<ControlOp> {
        if self.inst.opcode[0] == "brx" {
            let index = self.src(0, Ty::U32)?;
            let Operand::Name(table) = self.operand(1)? else { return self.error("expected a branch table") };
            let Some(targets) = self.linker.table(&table) else {
                return self.error(format!("`{table}` is not a list of branch targets"));
            };
            let targets =
                targets.into_iter().map(|t| self.target(&Operand::Name(t))).collect::<Result<Box<[_]>>>()?;
            return Ok(ControlOp::BranchIndexed { index, targets });
        }
        let target = self.target(&self.operand(0)?)?;
        Ok(ControlOp::Branch { target })
    }

    fn setmaxnreg(&mut self) -> Result<ControlOp> {
        let count = self.constant(0)?;
        if !(24..=256).contains(&count) || count % 8 != 0 {
            return self.error("the register count is a multiple of 8 from 24 to 256");
        }
        Ok(ControlOp::SetMaxReg { count: count as u32 })
    }

    fn call_value(&mut self, o: &Operand) -> Result<CallValue> {
        if let Operand::Name(name) = o
            && let Some(Symbol::CallParam(at, len)) = self.linker.resolve(name)
        {
            return Ok(CallValue::Bytes(at, len));
        }
        self.source(o, Ty::B64).map(CallValue::Source)
    }

    fn call(&mut self) -> Result<ControlOp> {
        let operands = self.inst.operands.clone();
        let Some(at) = operands.iter().position(|o| matches!(o, Operand::Name(_))) else {
            return self.unsupported();
        };
        let Operand::Name(name) = &operands[at] else { return self.unsupported() };
        if super::RUNTIME.contains(&name.as_str()) && name != "vprintf" {
            return Ok(ControlOp::Trap);
        }
        let mut values = |o: Option<&Operand>| match o {
            Some(Operand::List(v)) => v.iter().map(|o| self.call_value(o)).collect::<Result<Vec<_>>>(),
            _ => Ok(Vec::new()),
        };
        let returned = values(operands.first().filter(|_| at == 1))?;
        let passed = values(operands.get(at + 1))?;
        if name == "vprintf" {
            let pointer = |value: &CallValue| match *value {
                CallValue::Bytes(at, 8) => Some(Passed::Local(at)),
                CallValue::Source(src) => Some(Passed::Value(src)),
                CallValue::Bytes(..) => None,
            };
            let [Some(format), Some(arguments)] = passed.iter().map(pointer).collect::<Vec<_>>()[..] else {
                return self.error("`vprintf` takes two pointers");
            };
            let (result, register) = match returned.first() {
                Some(CallValue::Bytes(at, 4)) => (Some(Passed::Local(*at)), None),
                Some(CallValue::Source(Src::Reg(r))) => (None, Some(*r)),
                Some(_) => return self.error("`vprintf` returns 32 bits"),
                None => (None, None),
            };
            return Ok(ControlOp::Print(Print { format, arguments, result, register }));
        }
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
            return Ok(ControlOp::CallPointer { pointer, targets: targets.into() });
        }
        let Some(signature) = self.linker.signatures.get(name) else { return self.unsupported() };
        match call_target(signature, &passed, &returned) {
            Ok(target) => Ok(ControlOp::Call(target)),
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
    let args = passed.iter().zip(&signature.params).map(|(value, slot)| call_copy(*value, *slot));
    let ret = returned.iter().zip(&signature.returns).map(|(value, slot)| match (*slot, *value) {
        (FormalSlot::Bytes { at, len }, CallValue::Bytes(to, to_len)) => {
            call_copy(CallValue::Bytes(at, len), FormalSlot::Bytes { at: to, len: to_len })
        }
        (FormalSlot::Register(r), CallValue::Source(Src::Reg(to))) => {
            call_copy(CallValue::Source(Src::Reg(r)), FormalSlot::Register(to))
        }
        _ => None,
    });
    Ok(CallTarget {
        code: signature.start..signature.end,
        args: args.collect::<Option<_>>().ok_or("an argument does not fit")?,
        ret: ret.collect::<Option<_>>().ok_or("a return value does not fit")?,
    })
}
