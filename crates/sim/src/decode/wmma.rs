//! `wmma.load`, `wmma.mma` and `wmma.store`.

use super::Result;
use super::decoder::{Claim, Decoder};
use super::isa::{Addr, Op, Reg, Src};
use super::operands::operands;
use crate::text::ast::Space;
use crate::text::types::Ty;
use crate::units::integer_core::IntInput;
use crate::units::mma::{Accumulator, Elements};
use crate::units::tensor_core::Input;
use crate::units::wmma::{Fragment, WmmaShape};

operands! {
    /// `wmma`: loads, products and stores of fragments.
    pub(crate) enum WmmaOp {
        Load { memory: Box<WmmaMemory>, dst: Box<[Reg]> },
        Store { memory: Box<WmmaMemory>, src: Box<[Src]> },
        Mma(Box<WmmaMma>),
    }
}

operands! {
    /// A load or a store.
    pub(crate) struct WmmaMemory {
        pub(crate) fragment: Fragment,
        pub(crate) addr: Addr,
        pub(crate) space: Space,
        /// Elements from one row (or column) to the next; without it, they touch.
        pub(crate) stride: Option<Src>,
        pub(crate) by_columns: bool,
    }
}

operands! {
    /// `wmma.mma`, decoded.
    pub(crate) struct WmmaMma {
        pub(crate) shape: WmmaShape,
        pub(crate) d: Box<[Reg]>,
        pub(crate) a: Box<[Src]>,
        pub(crate) b: Box<[Src]>,
        pub(crate) c: Box<[Src]>,
    }
}

/// The shapes that exist for elements of A and B.
fn shapes(ty: Ty) -> &'static [(u32, u32, u32)] {
    match ty {
        Ty::F16 | Ty::Bf16 | Ty::U8 | Ty::S8 => &[(16, 16, 16), (8, 32, 16), (32, 8, 16)],
        Ty::Tf32 => &[(16, 16, 8)],
        Ty::F64 => &[(8, 8, 4)],
        Ty::U4 | Ty::S4 => &[(8, 8, 32)],
        Ty::B1 => &[(8, 8, 128)],
        _ => &[],
    }
}

/// Elements of A and B whose products are added up in this type.
fn inputs(sum: Ty) -> &'static [Ty] {
    match sum {
        Ty::F16 => &[Ty::F16],
        Ty::F32 => &[Ty::F16, Ty::Bf16, Ty::Tf32],
        Ty::S32 => &[Ty::U8, Ty::S8, Ty::U4, Ty::S4, Ty::B1],
        Ty::F64 => &[Ty::F64],
        _ => &[],
    }
}

/// A or B: fragments of f16 have eight registers, whatever their shape.
fn operand(rows: u32, columns: u32, ty: Ty) -> Fragment {
    let fragment = Fragment::new(rows, columns, ty.bits());
    if ty == Ty::F16 { Fragment { registers: 8, ..fragment } } else { fragment }
}

impl Decoder<'_, '_> {
    pub(super) fn wmma(&mut self) -> Claim {
        match self.inst.opcode[0].as_str() {
            "wmma" => self.wmma_operation().map(|op| Some(Op::Wmma(op))),
            _ => Ok(None),
        }
    }

    fn wmma_operation(&mut self) -> Result<WmmaOp> {
        match self.inst.opcode.get(1).map(String::as_str) {
            Some("load") => {
                let (fragment, ty) = self.wmma_fragment()?;
                let memory = self.wmma_memory(fragment, 1)?;
                let dst = self.registers(0)?;
                self.wmma_count(dst.len(), fragment, ty)?;
                Ok(WmmaOp::Load { memory: Box::new(memory), dst })
            }
            Some("store") => {
                let (fragment, ty) = self.wmma_fragment()?;
                let memory = self.wmma_memory(fragment, 0)?;
                let word = if ty == Ty::F64 { Ty::F64 } else { Ty::B32 };
                let src = self.sources(1, word)?;
                self.wmma_count(src.len(), fragment, ty)?;
                Ok(WmmaOp::Store { memory: Box::new(memory), src })
            }
            Some("mma") => self.wmma_mma(),
            _ => self.unsupported(),
        }
    }

    fn wmma_count(&self, found: usize, fragment: Fragment, ty: Ty) -> Result<()> {
        let expected = fragment.registers;
        if found == expected as usize {
            return Ok(());
        }
        self.error(format!("expected {expected} registers for this fragment of {ty:?}, found {found}"))
    }

    /// The fragment that a load or a store names, and the type of its elements.
    fn wmma_fragment(&self) -> Result<(Fragment, Ty)> {
        let (shape, ty) = (self.shape()?, self.ty()?);
        let (m, n, k) = shape;
        let exists = |types: &[Ty]| types.iter().any(|ty| shapes(*ty).contains(&shape));
        let fragment = match self.inst.opcode.get(2).map(String::as_str) {
            Some("a") if exists(&[ty]) => operand(m, k, ty),
            Some("b") if exists(&[ty]) => operand(k, n, ty),
            Some("c" | "d") if exists(inputs(ty)) => Fragment::new(m, n, ty.bits()),
            _ => return self.error("the shape does not exist for this type"),
        };
        Ok((fragment, ty))
    }

    fn wmma_memory(&mut self, fragment: Fragment, address: usize) -> Result<WmmaMemory> {
        if self.has("row") == self.has("col") {
            return self.error("expected `.row` or `.col`");
        }
        self.expect_operands(2, 3)?;
        let stride = if self.count() == 3 { Some(self.src(2, Ty::U32)?) } else { None };
        let (addr, space) = (self.addr(address)?, self.space());
        Ok(WmmaMemory { fragment, addr, space, stride, by_columns: self.has("col") })
    }

    fn wmma_mma(&mut self) -> Result<WmmaOp> {
        let shape = self.shape()?;
        let (m, n, k) = shape;
        // Products of f16 name the types of D and C only.
        let (dt, at, bt, ct) = match self.types()[..] {
            [d, c] => (d, Ty::F16, Ty::F16, c),
            [d, a, b, c] => (d, a, b, c),
            _ => return self.unsupported(),
        };
        if !shapes(at).contains(&shape) || !inputs(ct).contains(&at) {
            return self.error("the shape does not exist for these types");
        }
        let (elements, given) = self.matrix_types(dt, at, bt)?;
        let mixed = matches!(elements, Elements::Float(Input::F16, _));
        if dt != ct && !mixed {
            return self.unsupported();
        }
        let narrow = matches!(elements, Elements::Integer(IntInput::U4 | IntInput::S4 | IntInput::B1, ..));
        if narrow && !self.inst.opcode.windows(2).any(|pair| pair == ["row", "col"]) {
            return self.error("elements of less than a byte have A by rows and B by columns");
        }
        let taken = match ct {
            Ty::F16 => Accumulator::F16,
            Ty::F32 => Accumulator::F32,
            _ => given,
        };
        let fragments = [
            Fragment::new(m, n, dt.bits()),
            operand(m, k, at),
            operand(k, n, bt),
            Fragment::new(m, n, ct.bits()),
        ];
        let word = if elements == Elements::Double { Ty::F64 } else { Ty::B32 };
        let (d, a, b, c) =
            (self.registers(0)?, self.sources(1, word)?, self.sources(2, word)?, self.sources(3, word)?);
        let counts = [d.len(), a.len(), b.len(), c.len()];
        for ((fragment, count), ty) in fragments.iter().zip(counts).zip([dt, at, bt, ct]) {
            self.wmma_count(count, *fragment, ty)?;
        }
        let accumulators = [given, taken];
        Ok(WmmaOp::Mma(Box::new(WmmaMma {
            shape: WmmaShape { k, elements, generation: self.generation(), accumulators, fragments },
            d,
            a,
            b,
            c,
        })))
    }
}
