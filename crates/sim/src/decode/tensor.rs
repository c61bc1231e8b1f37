//! Matrix instructions: `wgmma`, `mma.sync`, `ldmatrix`, `stmatrix`.

use super::Result;
use super::operand::Decoder;
use crate::ast::{Operand, Space};
use crate::isa::{Mma, Op, Wgmma, WgmmaA};
use crate::mma::MmaShape;
use crate::tensor_core::Input;
use crate::types::Ty;

/// `m64n128k32` as its three numbers.
fn shape(name: &str) -> Option<(u32, u32, u32)> {
    let (m, rest) = name.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some((m.parse().ok()?, n.parse().ok()?, k.parse().ok()?))
}

impl Decoder<'_, '_> {
    fn shape(&self) -> Result<(u32, u32, u32)> {
        match self.inst.opcode.iter().find_map(|m| shape(m)) {
            Some(s) => Ok(s),
            None => self.error("the shape is missing"),
        }
    }

    pub(super) fn wgmma(&mut self) -> Result<Op> {
        match self.inst.opcode.get(1).map(String::as_str) {
            Some("fence") => return Ok(Op::WgmmaFence),
            Some("commit_group") => return Ok(Op::WgmmaCommit),
            Some("wait_group") => {
                let pending = self.constant(0)?;
                return Ok(Op::WgmmaWait { pending: pending.clamp(0, 7) as u32 });
            }
            Some("mma_async") => {}
            _ => return self.unsupported(),
        }
        if self.has("sp") {
            return self.unsupported();
        }
        let (m, n, k) = self.shape()?;
        let types = self.types();
        let (&[Ty::F32, at, bt], false) = (types.as_slice(), self.has("satfinite")) else {
            return self.error("only f32 accumulators are supported");
        };
        let (Some(a_type), Some(b_type)) = (Input::of(at), Input::of(bt)) else { return self.unsupported() };
        if m != 64
            || n == 0
            || n % 8 != 0
            || n > 256
            || k != 256 / a_type.bits()
            || a_type.bits() != b_type.bits()
        {
            return self.error("the shape does not exist for these types");
        }
        let d = self.registers(0)?;
        if d.len() != n as usize / 2 {
            return self.error(format!("expected {} accumulators, found {}", n / 2, d.len()));
        }
        let a = match self.operand(1)? {
            Operand::Vector(_) => {
                let regs = self.registers(1)?;
                if regs.len() != 4 {
                    return self.error("A in registers takes four registers");
                }
                WgmmaA::Registers(regs)
            }
            _ => WgmmaA::Descriptor(self.src(1, Ty::B64)?),
        };
        let b = self.src(2, Ty::B64)?;
        let scale_d = match self.operand(3)? {
            Operand::Int(v) => crate::isa::Src::Imm(u64::from(v != 0)),
            o => self.source(&o, Ty::Pred)?,
        };
        let negate = |v: i64| match v {
            1 => Some(false),
            -1 => Some(true),
            _ => None,
        };
        let (Some(negate_a), Some(negate_b)) = (negate(self.constant(4)?), negate(self.constant(5)?)) else {
            return self.error("the scale of A and B is 1 or -1");
        };
        let half = a_type.bits() == 16;
        let in_registers = matches!(a, WgmmaA::Registers(_));
        let expected = match (half, in_registers) {
            (true, false) => 8,
            (true, true) => 7,
            _ => 6,
        };
        if self.count() != expected {
            return self.error(format!("expected {expected} operands, found {}", self.count()));
        }
        let transpose_a = half && !in_registers && self.constant(6)? != 0;
        let transpose_b = half && self.constant(expected - 1)? != 0;
        Ok(Op::Wgmma(Box::new(Wgmma {
            n,
            k,
            a_type,
            b_type,
            d,
            a,
            b,
            scale_d,
            negate_a,
            negate_b,
            transpose_a,
            transpose_b,
        })))
    }

    pub(super) fn mma(&mut self) -> Result<Op> {
        let (m, n, k) = self.shape()?;
        let types = self.types();
        if self.has("sp") || self.has("block_scale") || !(self.has("row") && self.has("col")) {
            return self.unsupported();
        }
        let &[dt, at, bt, ct] = types.as_slice() else { return self.unsupported() };
        let (Some(a_type), Some(b_type)) = (Input::of(at), Input::of(bt)) else { return self.unsupported() };
        if dt != Ty::F32 || ct != Ty::F32 {
            return self.error("only f32 accumulators are supported");
        }
        let per_register = 32 / a_type.bits();
        if (m, n) != (16, 8) || k % (4 * per_register) != 0 || k > 8 * per_register || k == 0 {
            return self.error("the shape is not supported");
        }
        let shape = MmaShape { k, a_type, b_type };
        let (d, a, b, c) = (
            self.registers(0)?,
            self.sources(1, Ty::B32)?,
            self.sources(2, Ty::B32)?,
            self.sources(3, Ty::F32)?,
        );
        let parts = (k / (4 * per_register)) as usize;
        if d.len() != 4 || c.len() != 4 || a.len() != 2 * parts || b.len() != parts {
            return self.error("the number of registers does not fit the shape");
        }
        Ok(Op::Mma(Box::new(Mma { shape, d, a, b, c })))
    }

    fn matrices(&self) -> Result<usize> {
        if !self.has("m8n8") || !self.has("b16") {
            return self.unsupported();
        }
        Ok(match () {
            () if self.has("x4") => 4,
            () if self.has("x2") => 2,
            () => 1,
        })
    }

    fn matrix_space(&self) -> Space {
        match self.space() {
            Space::Generic => Space::Generic,
            _ => Space::Shared,
        }
    }

    pub(super) fn ldmatrix(&mut self) -> Result<Op> {
        let count = self.matrices()?;
        let dst = self.registers(0)?;
        if dst.len() != count {
            return self.error(format!("expected {count} destinations"));
        }
        Ok(Op::LdMatrix { addr: self.addr(1)?, space: self.matrix_space(), dst, trans: self.has("trans") })
    }

    pub(super) fn stmatrix(&mut self) -> Result<Op> {
        let count = self.matrices()?;
        let src = self.sources(1, Ty::B32)?;
        if src.len() != count {
            return self.error(format!("expected {count} sources"));
        }
        Ok(Op::StMatrix { addr: self.addr(0)?, space: self.matrix_space(), src, trans: self.has("trans") })
    }

    pub(super) fn movmatrix(&mut self) -> Result<Op> {
        Ok(Op::MovMatrix { dst: self.dst(0)?, src: self.src(1, Ty::B32)? })
    }
}
