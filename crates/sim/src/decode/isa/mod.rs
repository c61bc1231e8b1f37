//! The decoded form of an instruction: registers as dense indices, names resolved, modifiers as enums.
//!
//! Arithmetic is a function pointer chosen once at decode time (see [`crate::arith::alu`]); everything with an
//! effect outside of the register file is its own variant.

use crate::text::ast::Space;
use crate::units::mma::{Accumulator, Elements, MmaShape};
use crate::decode::special::Special;

/// Index of a register in a warp's register file.
pub(crate) type Reg = u32;

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

/// An address operand: base plus constant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addr {
    pub(crate) base: Src,
    pub(crate) offset: i64,
}

/// A pure function of up to three values per lane.
pub(crate) type AluFn = fn(u64, u64, u64) -> u64;
/// A comparison.
pub(crate) type CmpFn = fn(u64, u64) -> bool;

/// How a predicate is combined with a third operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    And,
    Or,
    Xor,
}

impl Combine {
    pub(crate) fn apply(self, a: bool, b: bool) -> bool {
        match self {
            Combine::And => a && b,
            Combine::Or => a || b,
            Combine::Xor => a != b,
        }
    }
}

/// How far a strong operation reaches, from the narrowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    Cta,
    Cluster,
    /// The GPU, and what is beyond it.
    Gpu,
}

/// Ordering of a memory access or a barrier operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Sem {
    pub(crate) acquire: bool,
    pub(crate) release: bool,
    /// The scope of a strong (relaxed, volatile, atomic or stronger) access: never half of a data race with another
    /// one where the scope of each includes the thread of the other.
    pub(crate) strong: Option<Scope>,
}

/// An atomic function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomOp {
    Add,
    And,
    Or,
    Xor,
    Min,
    Max,
    Inc,
    Dec,
    Exch,
    Cas,
}

/// `vote` and `redux` functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Uni,
    Ballot,
}

/// `shfl` modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Bfly,
    Idx,
}

/// What an mbarrier wait names: a parity or a token.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PhaseRef {
    Parity(Src),
    Token(Src),
}

/// Fences, by what they order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    /// `fence.sc/acq_rel`, `membar`.
    Thread { acquire: bool, release: bool, scope: Scope },
    /// `fence.proxy.async`, for the memory that it names; for both if it names none.
    ProxyAsync { shared: bool, global: bool },
    /// `fence.mbarrier_init.release.cluster`
    MbarrierInit,
    /// `fence.proxy.tensormap::generic.release`
    TensorMapRelease(Scope),
    /// `fence.proxy.alias` and others with no effect in this model.
    Nothing,
}

/// Direction of a bulk copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BulkWay {
    GlobalToShared,
    SharedToGlobal,
    SharedToShared,
}

/// A reduction that a bulk store applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BulkReduce {
    pub(crate) op: AtomOp,
    pub(crate) ty: crate::text::types::Ty,
}

/// The A operand of `wgmma`.
#[derive(Clone, Debug)]
pub(crate) enum WgmmaA {
    Descriptor(Src),
    Registers(Box<[Reg]>),
}

/// `wgmma.mma_async`, decoded.
#[derive(Clone, Debug)]
pub(crate) struct Wgmma {
    pub(crate) n: u32,
    pub(crate) k: u32,
    pub(crate) elements: Elements,
    pub(crate) accumulator: Accumulator,
    pub(crate) d: Box<[Reg]>,
    pub(crate) a: WgmmaA,
    pub(crate) b: Src,
    pub(crate) scale_d: Src,
    pub(crate) negate_a: bool,
    pub(crate) negate_b: bool,
    pub(crate) transpose_a: bool,
    pub(crate) transpose_b: bool,
}

/// `mma.sync`, decoded.
#[derive(Clone, Debug)]
pub(crate) struct Mma {
    pub(crate) shape: MmaShape,
    pub(crate) d: Box<[Reg]>,
    pub(crate) a: Box<[Src]>,
    pub(crate) b: Box<[Src]>,
    pub(crate) c: Box<[Src]>,
}

/// `lop3` with a predicate.
#[derive(Clone, Debug)]
pub(crate) struct Lop3 {
    pub(crate) dst: Option<Reg>,
    pub(crate) p: Option<Reg>,
    pub(crate) src: [Src; 4],
    pub(crate) combine: (Combine, Src),
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

/// A tensor copy through a tensor map.
#[derive(Clone, Debug)]
pub(crate) struct TensorCopy {
    pub(crate) rank: usize,
    pub(crate) map: Addr,
    pub(crate) coords: Box<[Src]>,
    pub(crate) shared: Addr,
    /// Set for loads into shared memory.
    pub(crate) mbar: Option<Addr>,
    pub(crate) multicast: Option<Src>,
    pub(crate) reduce: Option<AtomOp>,
}

/// A bulk copy without a tensor map.
#[derive(Clone, Debug)]
pub(crate) struct BulkCopy {
    pub(crate) way: BulkWay,
    pub(crate) dst: Addr,
    pub(crate) src: Addr,
    pub(crate) size: Src,
    pub(crate) mbar: Option<Addr>,
    pub(crate) multicast: Option<Src>,
    pub(crate) reduce: Option<BulkReduce>,
    /// `.cp_mask`: which bytes of every sixteen are written.
    pub(crate) mask: Option<Src>,
}

/// An arrival on an mbarrier.
#[derive(Clone, Debug)]
pub(crate) struct Arrive {
    pub(crate) addr: Addr,
    pub(crate) space: Space,
    pub(crate) count: Src,
    pub(crate) expect: Option<Src>,
    pub(crate) token: Option<Reg>,
    pub(crate) release: bool,
    pub(crate) scope: Scope,
    pub(crate) drop: bool,
    pub(crate) no_complete: bool,
}

/// Fields that `tensormap.replace` can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapField {
    GlobalAddress,
    Rank,
    BoxDim(u32),
    GlobalDim(u32),
    GlobalStride(u32),
    ElementStride(u32),
    ElementType,
    Swizzle,
    SwizzleAtom,
    Interleave,
    Fill,
}

/// One decoded operation.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)]
pub(crate) enum Op {
    /// A pure function of registers.
    Alu {
        f: AluFn,
        dst: Reg,
        a: Src,
        b: Src,
        c: Src,
    },
    /// A pure function of four registers.
    Alu4 {
        f: crate::arith::alu::Alu4Fn,
        dst: Reg,
        src: [Src; 4],
    },
    Cvt {
        cvt: crate::arith::cvt::Cvt,
        dst: Reg,
        a: Src,
        b: Src,
    },
    /// `cvt` of up to four sources, with random bits or scales as the last one.
    CvtWith {
        cvt: crate::arith::cvt::Cvt,
        dst: Reg,
        src: Box<[Src; 5]>,
    },
    /// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`.
    Carry {
        f: crate::arith::alu::CarryFn,
        dst: Reg,
        a: Src,
        b: Src,
        c: Src,
        writes: bool,
    },
    Setp {
        cmp: CmpFn,
        a: Src,
        b: Src,
        combine: Option<(Combine, Src)>,
        p: Option<Reg>,
        q: Option<Reg>,
        /// Compares two halves: p is of the low one, q of the high one.
        packed: bool,
    },
    Set {
        cmp: CmpFn,
        dst: Reg,
        a: Src,
        b: Src,
        one: u64,
        combine: Option<(Combine, Src)>,
        /// Compares two halves, each with a result of 16 bits.
        packed: bool,
    },
    Lop3(Box<Lop3>),
    /// Copies of whole registers: `mov.b128`.
    Move {
        pairs: Box<[(Reg, Src)]>,
    },
    /// `mov.b64 d, {lo, hi}`
    Pack {
        dst: Reg,
        parts: Box<[Src]>,
        bits: u32,
    },
    /// `mov.b64 {lo, hi}, a`
    Unpack {
        parts: Box<[Option<Reg>]>,
        src: Src,
        bits: u32,
    },
    Load {
        space: Space,
        bytes: u32,
        sign: u32,
        dst: Box<[Option<(Reg, u32)>]>,
        addr: Addr,
        sem: Sem,
    },
    Store {
        space: Space,
        bytes: u32,
        src: Box<[Src]>,
        addr: Addr,
        sem: Sem,
    },
    Atom {
        op: AtomOp,
        ty: crate::text::types::Ty,
        space: Space,
        dst: Option<Reg>,
        addr: Addr,
        b: Src,
        c: Option<Src>,
        sem: Sem,
    },
    /// `atom.exch.b128` and, with `c`, `atom.cas.b128`: registers are pairs that start at the one named.
    AtomWide {
        space: Space,
        dst: Option<Reg>,
        addr: Addr,
        b: Reg,
        c: Option<Reg>,
        sem: Sem,
    },
    /// One atomic per element; no destinations for `red`.
    AtomVector {
        op: AtomOp,
        ty: crate::text::types::Ty,
        space: Space,
        dst: Box<[Option<Reg>]>,
        addr: Addr,
        b: Box<[Src]>,
        sem: Sem,
    },
    /// `st.bulk`: zeros.
    StoreZeros {
        space: Space,
        addr: Addr,
        bytes: Src,
    },
    /// `discard`: 128 bytes of global memory that count as never written.
    Discard {
        addr: Addr,
    },
    /// `cvta` in either direction, `mapa`, `isspacep`, `getctarank`.
    CvtaTo {
        dst: Reg,
        src: Src,
        space: Space,
    },
    CvtaFrom {
        dst: Reg,
        src: Src,
        space: Space,
    },
    Mapa {
        dst: Reg,
        src: Src,
        rank: Src,
        generic: bool,
    },
    GetCtaRank {
        dst: Reg,
        src: Src,
        generic: bool,
    },
    IsSpace {
        dst: Reg,
        src: Src,
        space: Space,
    },
    Branch {
        target: u32,
    },
    BranchIndexed {
        index: Src,
        targets: Box<[u32]>,
    },
    Call(CallTarget),
    /// A call through a pointer: the functions that fit its arguments, by their addresses.
    CallPointer {
        pointer: Src,
        targets: Box<[(u64, CallTarget)]>,
    },
    Return,
    Exit,
    Trap,
    Nop,
    Yield,
    Shfl {
        mode: Shuffle,
        dst: Reg,
        p: Option<Reg>,
        a: Src,
        b: Src,
        c: Src,
        mask: Option<Src>,
    },
    Vote {
        kind: Vote,
        dst: Reg,
        src: Src,
        mask: Option<Src>,
    },
    Match {
        all: bool,
        dst: Reg,
        p: Option<Reg>,
        a: Src,
        mask: Src,
    },
    Redux {
        op: AtomOp,
        ty: crate::text::types::Ty,
        /// The function of two f32, and whether it takes their magnitudes.
        float: Option<(AluFn, bool)>,
        dst: Reg,
        a: Src,
        mask: Src,
    },
    Elect {
        dst: Option<Reg>,
        p: Reg,
        mask: Src,
    },
    ActiveMask {
        dst: Reg,
    },
    WarpSync {
        mask: Src,
    },
    Bar {
        id: Src,
        threads: Option<Src>,
        aligned: bool,
        arrive_only: bool,
    },
    BarReduce {
        id: Src,
        threads: Option<Src>,
        kind: Vote,
        dst: Reg,
        src: Src,
        popc: bool,
    },
    ClusterArrive {
        release: bool,
        aligned: bool,
    },
    ClusterWait {
        acquire: bool,
        aligned: bool,
    },
    MbarInit {
        addr: Addr,
        space: Space,
        count: Src,
    },
    MbarInval {
        addr: Addr,
        space: Space,
    },
    MbarArrive(Arrive),
    MbarTx {
        addr: Addr,
        space: Space,
        bytes: Src,
        complete: bool,
    },
    MbarWait {
        dst: Reg,
        addr: Addr,
        space: Space,
        phase: PhaseRef,
        blocking: bool,
        acquire: bool,
        scope: Scope,
    },
    MbarPending {
        dst: Reg,
        token: Src,
    },
    Fence(Fence),
    TensorMapAcquire {
        scope: Scope,
        addr: Addr,
        bytes: Src,
    },
    TensorMapReplace {
        field: MapField,
        addr: Addr,
        space: Space,
        value: Src,
    },
    TensorMapCopyRelease {
        dst: Addr,
        src: Addr,
    },
    CpAsync {
        dst: Addr,
        src: Addr,
        bytes: u32,
        src_bytes: Option<Src>,
        ignore: Option<Src>,
    },
    CpAsyncCommit,
    CpAsyncWait {
        pending: Option<u32>,
    },
    CpAsyncMbar {
        addr: Addr,
        space: Space,
        noinc: bool,
    },
    Bulk(Box<BulkCopy>),
    Tensor(Box<TensorCopy>),
    BulkCommit,
    BulkWait {
        pending: u32,
        read: bool,
    },
    BulkPrefetch {
        addr: Addr,
        size: Src,
    },
    TensorPrefetch {
        map: Addr,
    },
    StAsync {
        addr: Addr,
        mbar: Addr,
        src: Box<[Src]>,
        bytes: u32,
        reduce: Option<(AtomOp, crate::text::types::Ty)>,
    },
    Wgmma(Box<Wgmma>),
    WgmmaFence,
    WgmmaCommit,
    WgmmaWait {
        pending: u32,
    },
    Mma(Box<Mma>),
    LdMatrix {
        addr: Addr,
        space: Space,
        dst: Box<[Reg]>,
        form: MatrixForm,
        /// The width of elements that lie packed in shared memory.
        packed: Option<u32>,
    },
    StMatrix {
        addr: Addr,
        space: Space,
        src: Box<[Src]>,
        form: MatrixForm,
    },
    WmmaLoad(Box<(crate::units::wmma::WmmaMemory, Box<[Reg]>)>),
    WmmaStore(Box<(crate::units::wmma::WmmaMemory, Box<[Src]>)>),
    WmmaMma(Box<crate::units::wmma::WmmaProduct>),
    MovMatrix {
        dst: Reg,
        src: Src,
    },
    /// Registers of a thread from now on.
    SetMaxReg {
        count: u32,
    },
    /// `griddepcontrol.wait`
    GridDependencyWait,
    /// `griddepcontrol.launch_dependents`
    LaunchDependents,
}

impl Op {
    /// The scope of a strong access or a fence.
    pub(crate) fn scope(&self) -> Option<Scope> {
        match self {
            Op::Load { sem, .. }
            | Op::Store { sem, .. }
            | Op::Atom { sem, .. }
            | Op::AtomWide { sem, .. }
            | Op::AtomVector { sem, .. } => sem.strong,
            Op::Fence(Fence::Thread { scope, .. } | Fence::TensorMapRelease(scope))
            | Op::TensorMapAcquire { scope, .. } => Some(*scope),
            _ => None,
        }
    }
}

/// A function that is called.
#[derive(Clone, Debug)]
pub(crate) struct CallTarget {
    /// Its instructions.
    pub(crate) code: std::ops::Range<u32>,
    pub(crate) args: Box<[CallCopy]>,
    pub(crate) ret: Box<[CallCopy]>,
}

/// One value handed over by a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallCopy {
    /// Bytes between two places of the thread's local memory.
    Bytes { from: u32, to: u32, len: u32 },
    /// A register or constant to a register.
    Value { from: Src, to: Reg },
}

/// One decoded instruction.
#[derive(Clone, Debug)]
pub(crate) struct Inst {
    pub(crate) op: Op,
    /// Guard predicate and whether it is negated.
    pub(crate) guard: Option<(Reg, bool)>,
    /// Registers read and written.
    pub(crate) uses: crate::decode::operands::Uses,
    /// Line and column in the PTX text.
    pub(crate) line: u32,
    pub(crate) column: u32,
    /// `.loc` in force: file number and line.
    pub(crate) loc: Option<(u32, u32)>,
}
