//! Matrix instructions: `wgmma`, `mma.sync`, `ldmatrix`, `stmatrix`.

use super::Result;
use super::decoder::Decoder;
use crate::text::ast::{Operand, Space};
use crate::units::integer_core::{IntInput, Term};
use crate::decode::isa::{MatrixForm, Mma, Op, Wgmma, WgmmaA};
use crate::units::mma::{Accumulator, Elements, MmaShape};
use crate::units::tensor_core::Input;
use crate::text::types::Ty;

/// `m64n128k32` as its three numbers.
fn shape(name: &str) -> Option<(u32, u32, u32)> {
    let (m, rest) = name.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some((m.parse().ok()?, n.parse().ok()?, k.parse().ok()?))
}

impl Decoder<'_, '_> {
    pub(super) fn shape(&self) -> Result<(u32, u32, u32)> {
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
                WgmmaA::Registers(regs)
            }
            _ => WgmmaA::Descriptor(self.src(1, Ty::B64)?),
        };
        let b = self.src(2, Ty::B64)?;
        let scale_d = match self.operand(3)? {
            Operand::Int(v) => crate::decode::isa::Src::Imm(u64::from(v != 0)),
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
        Ok(Op::Wgmma(Box::new(Wgmma {
            n,
            k,
            elements,
            accumulator,
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

    /// The types of a product, where they exist together.
    pub(super) fn matrix_types(&self, d: Ty, a: Ty, b: Ty) -> Result<(Elements, Accumulator)> {
        let term = match (self.has("popc"), self.has("and"), self.has("xor")) {
            (true, true, false) => Term::And,
            (true, false, true) => Term::Xor,
            _ => Term::Product,
        };
        let elements = if (a, b) == (Ty::F64, Ty::F64) {
            Elements::Double
        } else if let (Some(a), Some(b)) = (Input::of(a), Input::of(b)) {
            // FP8 types mix; others do not.
            if a != b && (a.bits() != 8 || b.bits() != 8) {
                return self.unsupported();
            }
            Elements::Float(a, b)
        } else if let (Some(a), Some(b)) = (IntInput::of(a), IntInput::of(b)) {
            if a.bits() != b.bits() || (term == Term::Product) == (a == IntInput::B1) {
                return self.unsupported();
            }
            Elements::Integer(a, b, term)
        } else {
            return self.unsupported();
        };
        let saturate = self.has("satfinite");
        let accumulator = match (d, elements) {
            (Ty::F32, Elements::Float(..)) => Accumulator::F32,
            (Ty::F16, Elements::Float(Input::F16 | Input::E4m3 | Input::E5m2, _)) => Accumulator::F16,
            (Ty::S32, Elements::Integer(..)) => return Ok((elements, Accumulator::S32 { saturate })),
            (Ty::F64, Elements::Double) => Accumulator::F64,
            _ => return self.unsupported(),
        };
        if saturate { self.unsupported() } else { Ok((elements, accumulator)) }
    }

    pub(super) fn mma(&mut self) -> Result<Op> {
        let (rows, n, k) = self.shape()?;
        let types = self.types();
        if self.has("sp") || self.has("block_scale") || !(self.has("row") && self.has("col")) {
            return self.unsupported();
        }
        let &[dt, at, bt, ct] = types.as_slice() else { return self.unsupported() };
        let (elements, accumulator) = self.matrix_types(dt, at, bt)?;
        if dt != ct {
            return self.unsupported();
        }
        // A register of every lane covers a depth of four registers' elements.
        let step = 4 * elements.per_register();
        let deepest = match elements {
            Elements::Double => 4,
            _ if rows == 8 => 1,
            _ => 2,
        };
        let small = rows == 8 && matches!(elements, Elements::Integer(..) | Elements::Double);
        if n != 8 || !(rows == 16 || small) || k % step != 0 || k == 0 || k > deepest * step {
            return self.error("the shape is not supported");
        }
        let word = if elements == Elements::Double { Ty::F64 } else { Ty::B32 };
        let (d, a, b, c) =
            (self.registers(0)?, self.sources(1, word)?, self.sources(2, word)?, self.sources(3, word)?);
        let parts = (k / step) as usize;
        let halves = rows as usize / 8;
        let sums = if accumulator == Accumulator::F16 { halves } else { 2 * halves };
        if d.len() != sums || c.len() != sums || a.len() != halves * parts || b.len() != parts {
            return self.error("the number of registers does not fit the shape");
        }
        let shape = MmaShape { rows, k, elements, accumulator };
        Ok(Op::Mma(Box::new(Mma { shape, d, a, b, c })))
    }

    /// How many matrices an instruction has.
    fn matrices(&self) -> usize {
        match () {
            () if self.has("x4") => 4,
            () if self.has("x2") => 2,
            () => 1,
        }
    }

    /// The form of 8x8 matrices of halves, which both directions have.
    fn matrix_form(&self) -> Option<MatrixForm> {
        let form = if self.has("trans") { MatrixForm::HalfColumns } else { MatrixForm::Rows };
        (self.has("m8n8") && self.has("b16")).then_some(form)
    }

    fn matrix_space(&self) -> Space {
        match self.space() {
            Space::Generic => Space::Generic,
            _ => Space::Shared,
        }
    }

    pub(super) fn ldmatrix(&mut self) -> Result<Op> {
        let packed = match () {
            () if self.has("b4x16_p64") => Some(4),
            () if self.has("b6x16_p32") => Some(6),
            () => None,
        };
        let bytes = self.has("b8x16") == packed.is_some();
        let form = match (self.matrix_form(), self.has("trans")) {
            (Some(form), _) if packed.is_none() => form,
            (None, false) if self.has("m8n16") && bytes && packed.is_some() => MatrixForm::Rows,
            (None, true) if self.has("m16n16") && bytes && (packed.is_some() || self.has("b8")) => {
                MatrixForm::ByteColumns
            }
            _ => return self.unsupported(),
        };
        let dst = self.registers(0)?;
        let expected = self.matrices() * form.registers();
        if dst.len() != expected || expected > 4 {
            return self.error(format!("expected {expected} destinations, of at most 4"));
        }
        Ok(Op::LdMatrix { addr: self.addr(1)?, space: self.matrix_space(), dst, form, packed })
    }

    pub(super) fn stmatrix(&mut self) -> Result<Op> {
        let bytes = self.has("m16n8") && self.has("trans") && self.has("b8");
        let Some(form) = self.matrix_form().or(bytes.then_some(MatrixForm::BytePairs)) else {
            return self.unsupported();
        };
        let count = self.matrices();
        let src = self.sources(1, Ty::B32)?;
        if src.len() != count {
            return self.error(format!("expected {count} sources"));
        }
        Ok(Op::StMatrix { addr: self.addr(0)?, space: self.matrix_space(), src, form })
    }

    pub(super) fn movmatrix(&mut self) -> Result<Op> {
        Ok(Op::MovMatrix { dst: self.dst(0)?, src: self.src(1, Ty::B32)? })
    }
}
