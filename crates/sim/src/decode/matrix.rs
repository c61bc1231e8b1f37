//! Matrix instructions of a warp: `mma.sync`, `ldmatrix`, `stmatrix`, `movmatrix`.

use super::Result;
use super::decoder::{Claim, Decoder};
use super::isa::{Addr, Op, Reg, Src};
use super::operands::{modifiers, operands};
use crate::text::ast::Space;
use crate::text::types::Ty;
use crate::units::integer_core::{IntInput, Term};
use crate::units::mma::{Accumulator, Elements, MmaShape, ScaleShape};
use crate::units::tensor_core::Input;
use crate::units::tensor_core::fused::ScaleType;
use crate::units::warp_product::Generation;

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
        pub(crate) scales: Option<Box<MmaScales>>,
    }
}

operands! {
    /// Block scales of an `mma.sync`: a register for A and for B, each with a byte and a lane of every four.
    pub(crate) struct MmaScales {
        pub(crate) shape: ScaleShape,
        pub(crate) a: Src,
        pub(crate) a_at: [Src; 2],
        pub(crate) b: Src,
        pub(crate) b_at: [Src; 2],
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
        if self.inst.opcode.iter().any(|m| m == "sp" || m.starts_with("sp::")) {
            return self.error("sparse products (`.sp`) are not modelled");
        }
        if self.inst.opcode.iter().any(|m| m.starts_with("kind::")) {
            return self.mma_kind();
        }
        let (rows, n, k) = self.shape()?;
        let types = self.types();
        if self.has("block_scale") || !(self.has("row") && self.has("col")) {
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
        let (bits, generation) = (elements.bits(), self.generation());
        let shape = MmaShape { rows, k, elements, bits, accumulator, generation };
        Ok(MatrixOp::Mma(Box::new(Mma { shape, d, a, b, c, scales: None })))
    }

    /// The tensor core that the module's target has.
    pub(super) fn generation(&self) -> Generation {
        Generation::of(self.linker.module.target.arch)
    }

    /// `mma.sync` with `.kind`: FP8, FP6 and FP4 in any mixture, with and without block scales.
    fn mma_kind(&mut self) -> Result<MatrixOp> {
        let small = |name: &str| {
            Some(match name {
                "e4m3" => Input::E4m3,
                "e5m2" => Input::E5m2,
                "e3m2" => Input::E3m2,
                "e2m3" => Input::E2m3,
                "e2m1" => Input::E2m1,
                _ => return None,
            })
        };
        let is_type = |m: &str| small(m).is_some() || matches!(m, "f32" | "f16" | "ue8m0" | "ue4m3");
        let opcode: Vec<&str> = self.inst.opcode[1..].iter().map(String::as_str).collect();
        let known = |m: &str| {
            is_type(m)
                || shape(m).is_some()
                || matches!(m, "sync" | "aligned" | "row" | "col" | "block_scale")
                || m.starts_with("kind::")
                || m.starts_with("scale_vec::")
        };
        if let Some(m) = opcode.iter().find(|m| !known(m)) {
            return self.error(format!("`.{m}` is not supported here"));
        }
        let types: Vec<&str> = opcode.iter().copied().filter(|m| is_type(m)).collect();
        let &[dt, at, bt, ct, ref scale @ ..] = types.as_slice() else {
            return self.error("types are missing");
        };
        let (Some(a_type), Some(b_type)) = (small(at), small(bt)) else { return self.unsupported() };
        let kind = opcode.iter().find_map(|m| m.strip_prefix("kind::")).unwrap_or("");
        let vector = opcode.iter().find_map(|m| m.strip_prefix("scale_vec::"));
        if !self.has("row") || !self.has("col") || dt != ct || self.has("block_scale") == scale.is_empty() {
            return self.unsupported();
        }
        let fp4 = (a_type, b_type) == (Input::E2m1, Input::E2m1);
        let (bits, scales) = match (kind, vector, scale) {
            ("f8f6f4", None, []) => (8, None),
            ("mxf8f6f4", None | Some("1X"), ["ue8m0"]) => (8, Some((ScaleType::Ue8m0, 1))),
            ("mxf4", None | Some("2X"), ["ue8m0"]) if fp4 => (4, Some((ScaleType::Ue8m0, 2))),
            ("mxf4nvf4", Some("2X"), ["ue8m0"]) if fp4 => (4, Some((ScaleType::Ue8m0, 2))),
            ("mxf4nvf4", Some("4X"), ["ue4m3"]) if fp4 => (4, Some((ScaleType::Ue4m3, 4))),
            _ => return self.error("this kind does not have these types and scales"),
        };
        let accumulator = match dt {
            "f32" => Accumulator::F32,
            "f16" if scales.is_none() => Accumulator::F16,
            _ => return self.error("this kind does not have these accumulators"),
        };
        let (rows, n, k) = self.shape()?;
        let short = k == 16 && scales.is_none() && a_type.bits() == 8 && b_type.bits() == 8;
        if (rows, n) != (16, 8) || !(k == 256 / bits || short) {
            return self.error("the shape is not supported");
        }
        let (d, a, b, c) = (
            self.registers(0)?,
            self.sources(1, Ty::B32)?,
            self.sources(2, Ty::B32)?,
            self.sources(3, Ty::B32)?,
        );
        let parts = (k * bits / 128) as usize;
        let sums = if accumulator == Accumulator::F16 { 2 } else { 4 };
        if d.len() != sums || c.len() != sums || a.len() != 2 * parts || b.len() != parts {
            return self.error("the number of registers does not fit the shape");
        }
        let operands = if scales.is_some() { 8 } else { 4 };
        self.expect_operands(operands, operands)?;
        let scales = match scales {
            None => None,
            Some((ty, count)) => {
                let shape = ScaleShape { ty, count };
                let (a, a_at) = self.scale_operand(4, shape, 1)?;
                let (b, b_at) = self.scale_operand(6, shape, 3)?;
                Some(Box::new(MmaScales { shape, a, a_at, b, b_at }))
            }
        };
        let elements = Elements::Float(a_type, b_type);
        let shape = MmaShape { rows, k, elements, bits, accumulator, generation: self.generation() };
        Ok(MatrixOp::Mma(Box::new(Mma { shape, d, a, b, c, scales })))
    }

    /// A register of block scales, and behind it `{byte, thread}`.
    fn scale_operand(&mut self, i: usize, shape: ScaleShape, last_thread: u64) -> Result<(Src, [Src; 2])> {
        let (&[scales], &[byte, thread]) = (&*self.sources(i, Ty::B32)?, &*self.sources(i + 1, Ty::U16)?)
        else {
            return self.error("expected a register of scales and `{byte, thread}`");
        };
        let out_of_range = |s: Src, fits: &dyn Fn(u64) -> bool| matches!(s, Src::Imm(v) if !fits(v));
        if out_of_range(byte, &|v| shape.has_byte(v)) || out_of_range(thread, &|v| v <= last_thread) {
            return self.error(format!("the selector of scales {i} is out of range"));
        }
        Ok((scales, [byte, thread]))
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
