//! The decoded form of an instruction: registers as dense indices, names resolved, modifiers as enums.
//!
//! Instructions come in families, each an enum beside its decoder (`decode/FAMILY.rs`) and with its executor in
//! `exec/FAMILY.rs`. Arithmetic is a function pointer chosen once at decode time (see [`crate::arith::alu`]).

use super::atomic::AtomicOp;
use super::barrier::BarrierOp;
use super::clc::ClcOp;
use super::collective::CollectiveOp;
use super::control::ControlOp;
use super::copy::CopyOp;
use super::cp_async::CpAsyncOp;
use super::fence::FenceOp;
use super::matrix::MatrixOp;
use super::mbarrier::MbarrierOp;
use super::memory::MemoryOp;
use super::operands::{Operands, Roles, Uses, operands};
use super::scalar::ScalarOp;
use super::special::Special;
use super::tcgen05::Tcgen05Op;
use super::tensormap::TensorMapOp;
use super::wgmma::WgmmaOp;
use super::wmma::WmmaOp;
use crate::hazard::Scope;

/// A register of a warp's register file. As a field of an instruction it is one that the instruction writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reg(pub(crate) u32);

impl Reg {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A scalar source operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Src {
    /// A register.
    Reg(Reg),
    /// A negated predicate.
    Not(Reg),
    /// A constant, already in the bits of the operand's type.
    Imm(u64),
    /// A special register.
    Special(Special),
    /// The address of a shared variable: this offset in the CTA's window.
    Shared(u32),
}

/// An operand that an instruction does not have.
pub(crate) const ZERO: Src = Src::Imm(0);

/// A source whose value only moves on: the result is undefined where it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Copied(pub(crate) Src);

/// An address operand: base plus constant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addr {
    pub(crate) base: Src,
    pub(crate) offset: i64,
}

/// Registers that belong to an asynchronous unit from the issue of an instruction to the wait that covers it.
#[derive(Clone, Debug)]
pub(crate) struct AsyncRegs(pub(crate) Box<[Reg]>);

/// Memory ordering of an access or a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Sem {
    pub(crate) acquire: bool,
    pub(crate) release: bool,
    /// The scope of a strong (relaxed, volatile, atomic or stronger) access: never half of a data race with another
    /// one where the scope of each includes the thread of the other.
    pub(crate) strong: Option<Scope>,
}

impl Operands for Sem {
    fn collect(&self, roles: &mut Roles) {
        roles.scope = roles.scope.or(self.strong);
    }
}

operands! {
    /// One decoded operation, by family.
    pub(crate) enum Op {
        Scalar(ScalarOp),
        Control(ControlOp),
        Memory(MemoryOp),
        Atomic(AtomicOp),
        Collective(CollectiveOp),
        Barrier(BarrierOp),
        Mbarrier(MbarrierOp),
        Fence(FenceOp),
        CpAsync(CpAsyncOp),
        Copy(CopyOp),
        TensorMap(TensorMapOp),
        Wgmma(WgmmaOp),
        Matrix(MatrixOp),
        Wmma(WmmaOp),
        Tcgen05(Tcgen05Op),
        Clc(ClcOp),
    }
}

/// One decoded instruction.
#[derive(Clone, Debug)]
pub(crate) struct Inst {
    pub(crate) op: Op,
    /// Guard predicate and whether it is negated.
    pub(crate) guard: Option<(Reg, bool)>,
    /// Registers read and written.
    pub(crate) uses: Uses,
    /// Line and column in the PTX text.
    pub(crate) line: u32,
    pub(crate) column: u32,
    /// `.loc` in force: file number and line.
    pub(crate) loc: Option<(u32, u32)>,
}
