//! `tcgen05`: tensor memory, and the tensor core that works in it.

pub(crate) mod mma;

use super::Result;
use super::decoder::{Claim, Decoder};
use super::isa::{Addr, AsyncRegs, Op, Src};
use super::operands::{modifiers, operands};
use crate::arith::AluFn;
use crate::arith::float::{Mode, float32};
use crate::arith::minifloat::Round;
use crate::text::ast::{Operand, Space};
use crate::text::types::Ty;
use crate::units::tcgen05::shapes::{CopyRows, CopyShape, MoveShape};
use mma::TensorMma;

operands! {
    /// Instructions of the fifth-generation tensor core. `pair` is `cta_group::2`.
    pub(crate) enum Tcgen05Op {
        Alloc { dst: Addr, space: Space, columns: Src, pair: bool },
        Dealloc { addr: Src, columns: Src, pair: bool },
        Relinquish { pair: bool },
        Load(Box<TensorLoad>),
        Store(Box<TensorStore>),
        /// `tcgen05.wait::ld` or (`stores`) `::st`
        Wait { stores: bool },
        /// `tcgen05.fence::before_thread_sync` or (`after`) `::after_thread_sync`
        Fence { after: bool },
        Copy { addr: Addr, descriptor: Src, shape: CopyShape, pair: bool },
        Shift { addr: Addr, pair: bool },
        Commit { mbar: Addr, space: Space, mask: Option<Src>, pair: bool },
        Mma(Box<TensorMma>),
    }
}

operands! {
    /// `tcgen05.ld`
    pub(crate) struct TensorLoad {
        pub(crate) dst: AsyncRegs,
        pub(crate) addr: Addr,
        pub(crate) shape: MoveShape,
        /// Two columns of 16 bits to a register.
        pub(crate) packed: bool,
        pub(crate) reduce: Option<TensorReduce>,
    }
}

operands! {
    /// The reduction of `tcgen05.ld.red`, over the columns of a thread.
    pub(crate) struct TensorReduce {
        pub(crate) dst: AsyncRegs,
        pub(crate) fold: AluFn,
        /// Of magnitudes.
        pub(crate) abs: bool,
    }
}

operands! {
    /// `tcgen05.st`
    pub(crate) struct TensorStore {
        pub(crate) addr: Addr,
        pub(crate) src: Box<[Src]>,
        pub(crate) shape: MoveShape,
        /// A register is two columns of 16 bits.
        pub(crate) packed: bool,
    }
}

modifiers!(MoveShape, CopyShape);

impl Decoder<'_, '_> {
    pub(super) fn tcgen05(&mut self) -> Claim {
        match self.inst.opcode[0].as_str() {
            "tcgen05" => self.tcgen05_operation().map(|op| Some(Op::Tcgen05(op))),
            _ => Ok(None),
        }
    }

    fn tcgen05_operation(&mut self) -> Result<Tcgen05Op> {
        match self.inst.opcode.get(1).map(String::as_str) {
            Some("alloc") => {
                self.tcgen05_modifiers(&["sync", "aligned", "b32"], &["shared::cta"], true)?;
                self.expect_operands(2, 2)?;
                let (dst, columns, pair) = (self.addr(0)?, self.src(1, Ty::U32)?, self.cta_pair()?);
                Ok(Tcgen05Op::Alloc { dst, space: self.space(), columns, pair })
            }
            Some("dealloc") => {
                self.tcgen05_modifiers(&["sync", "aligned", "b32"], &[], true)?;
                self.expect_operands(2, 2)?;
                let (addr, columns, pair) = (self.src(0, Ty::U32)?, self.src(1, Ty::U32)?, self.cta_pair()?);
                Ok(Tcgen05Op::Dealloc { addr, columns, pair })
            }
            Some("relinquish_alloc_permit") => {
                self.tcgen05_modifiers(&["sync", "aligned"], &[], true)?;
                self.expect_operands(0, 0)?;
                Ok(Tcgen05Op::Relinquish { pair: self.cta_pair()? })
            }
            Some("ld") => self.tcgen05_load(),
            Some("st") => self.tcgen05_store(),
            Some(wait @ ("wait::ld" | "wait::st")) => {
                let stores = wait == "wait::st";
                self.tcgen05_modifiers(&["sync", "aligned"], &[], false)?;
                self.expect_operands(0, 0)?;
                Ok(Tcgen05Op::Wait { stores })
            }
            Some(fence @ ("fence::before_thread_sync" | "fence::after_thread_sync")) => {
                let after = fence == "fence::after_thread_sync";
                self.tcgen05_modifiers(&[], &[], false)?;
                self.expect_operands(0, 0)?;
                Ok(Tcgen05Op::Fence { after })
            }
            Some("cp") => self.tcgen05_copy(),
            Some("shift") => {
                self.tcgen05_modifiers(&["down"], &[], true)?;
                self.expect_operands(1, 1)?;
                Ok(Tcgen05Op::Shift { addr: self.addr(0)?, pair: self.cta_pair()? })
            }
            Some("commit") => {
                let multicast = self.has("multicast::cluster");
                let optional = ["shared::cluster", "multicast::cluster"];
                self.tcgen05_modifiers(&["mbarrier::arrive::one", "b64"], &optional, true)?;
                let operands = 1 + usize::from(multicast);
                self.expect_operands(operands, operands)?;
                let mask = if multicast { Some(self.src(1, Ty::U16)?) } else { None };
                let (mbar, space) = (self.addr(0)?, self.space());
                Ok(Tcgen05Op::Commit { mbar, space, mask, pair: self.cta_pair()? })
            }
            Some("mma") => self.tcgen05_mma().map(|mma| Tcgen05Op::Mma(Box::new(mma))),
            _ => self.unsupported(),
        }
    }

    /// Refuses an instruction without one of `needed`, or with a modifier that is neither there nor in `optional`.
    fn tcgen05_modifiers(&self, needed: &[&str], optional: &[&str], group: bool) -> Result<()> {
        if let Some(missing) = needed.iter().find(|m| !self.has(m)) {
            return self.error(format!("`.{missing}` is missing"));
        }
        let known =
            |m: &str| needed.contains(&m) || optional.contains(&m) || group && m.starts_with("cta_group::");
        match self.inst.opcode.iter().skip(2).find(|m| !known(m)) {
            Some(m) => self.error(format!("`.{m}` does not belong to this instruction")),
            None => Ok(()),
        }
    }

    /// Whether the instruction is for a pair of CTAs; it must say one or two.
    /// All of a function say the same.
    pub(super) fn cta_pair(&mut self) -> Result<bool> {
        let pair = match (self.has("cta_group::1"), self.has("cta_group::2")) {
            (true, false) => false,
            (false, true) => true,
            _ => return self.error("`.cta_group::1` or `.cta_group::2` is missing"),
        };
        if *self.linker.cta_pair.get_or_insert(pair) != pair {
            return self.error("the function uses both `.cta_group::1` and `.cta_group::2`");
        }
        Ok(pair)
    }

    /// Shape and repetitions of a load or store, and the shape's own operand.
    fn tcgen05_shape(&self, split_at: usize) -> Result<(MoveShape, u32)> {
        let shape = match () {
            () if self.has("32x32b") => MoveShape::Lanes32,
            () if self.has("16x64b") => MoveShape::Bits64,
            () if self.has("16x128b") => MoveShape::Bits128,
            () if self.has("16x256b") => MoveShape::Bits256,
            () if self.has("16x32bx2") => {
                let by = self.constant(split_at)?;
                if !(0..i64::from(crate::units::tensor_memory::TENSOR_COLUMNS)).contains(&by) {
                    return self.error(format!("the second half cannot be {by} columns further"));
                }
                MoveShape::Split(by as u32)
            }
            () => return self.error("the shape is missing"),
        };
        let times = |m: &String| m.strip_prefix('x').and_then(|n| n.parse::<u32>().ok());
        match self.inst.opcode.iter().find_map(times) {
            Some(n) => Ok((shape, n)),
            None => self.error("the number of repetitions is missing"),
        }
    }

    /// The registers that a shape takes.
    fn tcgen05_registers(&self, shape: MoveShape, times: u32, found: usize) -> Result<()> {
        match shape.registers(times) {
            None => self.error(format!("`.x{times}` does not exist for this shape")),
            Some(n) if n != found => self.error(format!("expected {n} registers, found {found}")),
            Some(_) => Ok(()),
        }
    }

    fn tcgen05_load(&mut self) -> Result<Tcgen05Op> {
        let reduces = self.has("red");
        let split = self.has("16x32bx2");
        let at = 1 + usize::from(reduces);
        let operands = at + 1 + usize::from(split);
        self.expect_operands(operands, operands)?;
        let (shape, times) = self.tcgen05_shape(at + 1)?;
        let dst = self.registers(0)?;
        self.tcgen05_registers(shape, times, dst.len())?;
        let (shape_name, times_name) = (self.shape_name(shape), format!("x{times}"));
        let mut known = vec!["sync", "aligned", shape_name, &times_name];
        let reduce = if reduces {
            let Some(ty) = self.types().pop().filter(|t| matches!(t, Ty::F32 | Ty::U32 | Ty::S32)) else {
                return self.error("a reduction is of f32, u32 or s32");
            };
            if !matches!(shape, MoveShape::Lanes32 | MoveShape::Split(_)) || times < 2 {
                return self.error("a reduction takes `.32x32b` or `.16x32bx2`, from `.x2` on");
            }
            let (max, min) = (self.has("max"), self.has("min"));
            if max == min {
                return self.error("`.min` or `.max` is missing");
            }
            let (abs, nan) = (self.has("abs"), self.has("NaN"));
            if (abs || nan) && ty != Ty::F32 {
                return self.error("`.abs` and `.NaN` are of f32");
            }
            let dst = self.registers(1)?;
            if dst.len() != 1 {
                return self.error("the result of the reduction is one register");
            }
            known.extend(["red", "min", "max", "abs", "NaN", "f32", "u32", "s32"]);
            let mode = Mode { round: Round::Nearest, ftz: false, sat: false, nan, relu: false };
            let fold: Option<AluFn> = match (ty, max) {
                (Ty::F32, max) => float32(if max { "max" } else { "min" }, mode),
                (Ty::U32, false) => Some(|a, b, _| a.min(b)),
                (Ty::U32, true) => Some(|a, b, _| a.max(b)),
                (_, false) => Some(|a, b, _| u64::from((a as i32).min(b as i32) as u32)),
                (_, true) => Some(|a, b, _| u64::from((a as i32).max(b as i32) as u32)),
            };
            let Some(fold) = fold else { return self.unsupported() };
            Some(TensorReduce { dst: AsyncRegs(dst), fold, abs })
        } else {
            known.extend(["b32", "pack::16b"]);
            None
        };
        self.tcgen05_modifiers(&["sync", "aligned"], &known, false)?;
        if !reduces && !self.has("b32") {
            return self.error("`.b32` is missing");
        }
        let packed = self.has("pack::16b");
        let addr = self.addr(at)?;
        Ok(Tcgen05Op::Load(Box::new(TensorLoad { dst: AsyncRegs(dst), addr, shape, packed, reduce })))
    }

    fn tcgen05_store(&mut self) -> Result<Tcgen05Op> {
        let split = usize::from(self.has("16x32bx2"));
        self.expect_operands(2 + split, 2 + split)?;
        let (shape, times) = self.tcgen05_shape(1)?;
        let src = self.sources(1 + split, Ty::B32)?;
        self.tcgen05_registers(shape, times, src.len())?;
        let (shape_name, times_name) = (self.shape_name(shape), format!("x{times}"));
        let known = [shape_name, &times_name, "unpack::16b"];
        self.tcgen05_modifiers(&["sync", "aligned", "b32"], &known, false)?;
        let (addr, packed) = (self.addr(0)?, self.has("unpack::16b"));
        Ok(Tcgen05Op::Store(Box::new(TensorStore { addr, src, shape, packed })))
    }

    fn shape_name(&self, shape: MoveShape) -> &'static str {
        match shape {
            MoveShape::Lanes32 => "32x32b",
            MoveShape::Bits64 => "16x64b",
            MoveShape::Bits128 => "16x128b",
            MoveShape::Bits256 => "16x256b",
            MoveShape::Split(_) => "16x32bx2",
        }
    }

    fn tcgen05_copy(&mut self) -> Result<Tcgen05Op> {
        self.expect_operands(2, 2)?;
        // Compilers write the multicast before the shape or behind it.
        let (rows, names) = match () {
            () if self.has("128x256b") => (CopyRows::R128x256, ["128x256b", ""]),
            () if self.has("128x128b") => (CopyRows::R128x128, ["128x128b", ""]),
            () if self.has("4x256b") => (CopyRows::R4x256, ["4x256b", ""]),
            () if self.has("64x128b") && self.has("warpx2::02_13") => {
                (CopyRows::R64Pairs02, ["64x128b", "warpx2::02_13"])
            }
            () if self.has("64x128b") && self.has("warpx2::01_23") => {
                (CopyRows::R64Pairs01, ["64x128b", "warpx2::01_23"])
            }
            () if self.has("32x128b") && self.has("warpx4") => (CopyRows::R32x4, ["32x128b", "warpx4"]),
            () if self.has("64x128b") => {
                return self.error("`.64x128b` needs `.warpx2::02_13` or `.warpx2::01_23`");
            }
            () if self.has("32x128b") => return self.error("`.32x128b` needs `.warpx4`"),
            () => return self.error("the shape is missing"),
        };
        let packed = match (self.has("b8x16"), self.has("b6x16_p32"), self.has("b4x16_p64")) {
            (false, false, false) => None,
            (true, true, false) => Some(6),
            (true, false, true) => Some(4),
            _ => return self.error("decompression is `.b8x16.b6x16_p32` or `.b8x16.b4x16_p64`"),
        };
        self.tcgen05_modifiers(&[names[0]], &[names[1], "b8x16", "b6x16_p32", "b4x16_p64"], true)?;
        let (addr, descriptor, pair) = (self.addr(0)?, self.src(1, Ty::B64)?, self.cta_pair()?);
        if let Operand::Int(_) = self.operand(1)? {
            return self.error("the descriptor is a register");
        }
        Ok(Tcgen05Op::Copy { addr, descriptor, shape: CopyShape { rows, packed }, pair })
    }
}
