//! Matrix instructions of a warp: `mma.sync`, `ldmatrix`, `stmatrix`, `movmatrix`.

use super::Result;
use super::decoder::{Claim, Decoder};
use super::isa::{Addr, Op, Reg, Src};
use super::operands::{modifiers, operands};
use crate::text::ast::Space;
use crate::text::types::Ty;
use crate::units::integer_core::{IntInput, Term};
use crate::units::mma::{Accumulator, Elements, MmaShape};
use crate::units::tensor_core::Input;

operands! {
    /// Matrix instructions of a warp.
    pub(crate) enum MatrixOp {
        Mma(Box<Mma>),
        LdMatrix {
            addr: Addr,
            space: Space,
            dst: Box<[Reg]>,
            form: MatrixForm,
            /// The width of elements that lie packed in shared memory.
            packed: Option<u32>,
        },
        StMatrix { addr: Addr, space: Space, src: Box<[Src]>, form: MatrixForm },
        MovMatrix { dst: Reg, src: Src },
    }
}

operands! {
    /// `mma.sync`, decoded.
    pub(crate) struct Mma {
        pub(crate) shape: MmaShape,
        pub(crate) d: Box<[Reg]>,
        pub(crate) a: Box<[Src]>,
        pub(crate) b: Box<[Src]>,
        pub(crate) c: Box<[Src]>,
    }
}

/// Which elements of a matrix a lane has: its rows in shared memory have 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixForm {
    /// Four bytes of a row.
    Rows,
    /// Two halves of a column (`m8n8.trans.b16`).
    HalfColumns,
    /// Four bytes each of two columns of 16 rows (`m16n16.trans.b8`).
    ByteColumns,
    /// Two bytes each of two columns (`stmatrix` of `m16n8.trans.b8`).
    BytePairs,
}

impl MatrixForm {
    /// Registers of a lane for one matrix.
    pub(crate) fn registers(self) -> usize {
        if self == MatrixForm::ByteColumns { 2 } else { 1 }
    }
}

modifiers!(MatrixForm);

/// `m64n128k32` as its three numbers.
fn shape(name: &str) -> Option<(u32, u32, u32)> {
    let (m, rest) = name.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some((m.parse().ok()?, n.parse().ok()?, k.parse().ok()?))
}

impl Decoder<'_, '_> {
    pub(super) fn matrix(&mut self) -> Claim {
        let op = match self.inst.opcode[0].as_str() {
            "mma" => self.mma()?,
            "ldmatrix" => self.ldmatrix()?,
            "stmatrix" => self.stmatrix()?,
            "movmatrix" => self.movmatrix()?,
            _ => return Ok(None),
        };
        Ok(Some(Op::Matrix(op)))
    }

    pub(super) fn shape(&self) -> Result<(u32, u32, u32)> {
        match self.inst.opcode.iter().find_map(|m| shape(m)) {
            Some(s) => Ok(s),
            None => self.error("the shape is missing"),
        }
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

    fn mma(&mut self) -> Result<MatrixOp> {
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
        Ok(MatrixOp::Mma(Box::new(Mma { shape, d, a, b, c })))
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

    fn ldmatrix(&mut self) -> Result<MatrixOp> {
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
        Ok(MatrixOp::LdMatrix { addr: self.addr(1)?, space: self.matrix_space(), dst, form, packed })
    }

    fn stmatrix(&mut self) -> Result<MatrixOp> {
        let bytes = self.has("m16n8") && self.has("trans") && self.has("b8");
        let Some(form) = self.matrix_form().or(bytes.then_some(MatrixForm::BytePairs)) else {
            return self.unsupported();
        };
        let count = self.matrices();
        let src = self.sources(1, Ty::B32)?;
        if src.len() != count {
            return self.error(format!("expected {count} sources"));
        }
        Ok(MatrixOp::StMatrix { addr: self.addr(0)?, space: self.matrix_space(), src, form })
    }

    fn movmatrix(&mut self) -> Result<MatrixOp> {
        Ok(MatrixOp::MovMatrix { dst: self.dst(0)?, src: self.src(1, Ty::B32)? })
    }
}
