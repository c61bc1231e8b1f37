//! `wgmma`: matrix multiply-accumulate of a warpgroup.

use super::Result;
use super::decoder::{Claim, Decoder};
use super::isa::{AsyncRegs, Op, Src};
use super::operands::operands;
use crate::text::ast::Operand;
use crate::text::types::Ty;
use crate::units::integer_core::{IntInput, Term};
use crate::units::mma::{Accumulator, Elements};

operands! {
    /// `wgmma`, its fence and its groups.
    pub(crate) enum WgmmaOp {
        Mma(Box<Wgmma>),
        Fence,
        Commit,
        Wait { pending: u32 },
    }
}

operands! {
    /// `wgmma.mma_async`, decoded.
    pub(crate) struct Wgmma {
        pub(crate) n: u32,
        pub(crate) k: u32,
        pub(crate) elements: Elements,
        pub(crate) accumulator: Accumulator,
        pub(crate) d: AsyncRegs,
        pub(crate) a: WgmmaA,
        pub(crate) b: Src,
        pub(crate) scale_d: Src,
        pub(crate) negate_a: bool,
        pub(crate) negate_b: bool,
        pub(crate) transpose_a: bool,
        pub(crate) transpose_b: bool,
    }
}

operands! {
    /// The A operand of `wgmma`.
    pub(crate) enum WgmmaA {
        Descriptor(Src),
        Registers(AsyncRegs),
    }
}

impl Decoder<'_, '_> {
    pub(super) fn wgmma(&mut self) -> Claim {
        match self.inst.opcode[0].as_str() {
            "wgmma" => self.wgmma_operation().map(|op| Some(Op::Wgmma(op))),
            _ => Ok(None),
        }
    }

    fn wgmma_operation(&mut self) -> Result<WgmmaOp> {
        match self.inst.opcode.get(1).map(String::as_str) {
            Some("fence") => return Ok(WgmmaOp::Fence),
            Some("commit_group") => return Ok(WgmmaOp::Commit),
            Some("wait_group") => {
                let pending = self.constant(0)?;
                return Ok(WgmmaOp::Wait { pending: pending.clamp(0, 7) as u32 });
            }
            Some("mma_async") => {}
            _ => return self.unsupported(),
        }
        if self.has("sp") {
            return self.unsupported();
        }
        let (m, n, k) = self.shape()?;
        let types = self.types();
        let &[dt, at, bt] = types.as_slice() else { return self.unsupported() };
        let (elements, accumulator) = self.matrix_types(dt, at, bt)?;
        let narrow = matches!(elements, Elements::Integer(IntInput::U4 | IntInput::S4, ..));
        let wide_bits = matches!(elements, Elements::Integer(.., Term::Xor));
        if m != 64
            || n == 0
            || n % 8 != 0
            || n > 256
            || k != 256 / elements.bits()
            || elements == Elements::Double
            || narrow
            || wide_bits
        {
            return self.error("the shape does not exist for these types");
        }
        let d = self.registers(0)?;
        let count = if accumulator == Accumulator::F16 { n / 4 } else { n / 2 };
        if d.len() != count as usize {
            return self.error(format!("expected {count} accumulators, found {}", d.len()));
        }
        let a = match self.operand(1)? {
            Operand::Vector(_) => {
                let regs = self.registers(1)?;
                if regs.len() != 4 {
                    return self.error("A in registers takes four registers");
                }
                WgmmaA::Registers(AsyncRegs(regs))
            }
            _ => WgmmaA::Descriptor(self.src(1, Ty::B64)?),
        };
        let b = self.src(2, Ty::B64)?;
        let scale_d = match self.operand(3)? {
            Operand::Int(v) => Src::Imm(u64::from(v != 0)),
            o => self.source(&o, Ty::Pred)?,
        };
        let negate = |v: i64| match v {
            1 => Some(false),
            -1 => Some(true),
            _ => None,
        };
        let integer = matches!(elements, Elements::Integer(..));
        let (negate_a, negate_b) = match (integer, self.count()) {
            (true, _) => (false, false),
            (false, n) if n < 6 => return self.error("the scales of A and B are missing"),
            _ => match (negate(self.constant(4)?), negate(self.constant(5)?)) {
                (Some(a), Some(b)) => (a, b),
                _ => return self.error("the scale of A and B is 1 or -1"),
            },
        };
        let half = elements.bits() == 16;
        let in_registers = matches!(a, WgmmaA::Registers(_));
        let expected = match (half, in_registers) {
            (true, false) => 8,
            (true, true) => 7,
            _ if integer => 4,
            _ => 6,
        };
        if self.count() != expected {
            return self.error(format!("expected {expected} operands, found {}", self.count()));
        }
        let transpose_a = half && !in_registers && self.constant(6)? != 0;
        let transpose_b = half && self.constant(expected - 1)? != 0;
        Ok(WgmmaOp::Mma(Box::new(Wgmma {
            n,
            k,
            elements,
            accumulator,
            d: AsyncRegs(d),
            a,
            b,
            scale_d,
            negate_a,
            negate_b,
            transpose_a,
            transpose_b,
        })))
    }
}
