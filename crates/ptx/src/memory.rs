//! Pointers, loads, stores, atomics and reductions (PTX manual, "Data Movement and Conversion Instructions").

use crate::kernel::Kernel;
use crate::mbarrier::RemoteMBarrier;
use crate::ops::Int;
use crate::target::Needs;
use crate::tma::CachePolicy;
use crate::value::{Arg, Class, Pred, Source, Type, U32, U64, Val};
use std::fmt;

/// A state space that pointers point into.
pub trait Space: Copy + 'static {
    /// The integer that holds an address of it.
    type Address: Int;
    /// Its name in an instruction.
    const NAME: &'static str;
    #[doc(hidden)]
    const HOPPER: bool;
}

/// Global memory.
#[derive(Clone, Copy, Debug)]
pub struct GlobalSpace;
/// The block's own shared memory.
#[derive(Clone, Copy, Debug)]
pub struct SharedSpace;
/// The shared memory of any block of the cluster.
#[derive(Clone, Copy, Debug)]
pub struct ClusterSpace;

impl Space for GlobalSpace {
    type Address = u64;
    const NAME: &'static str = "global";
    const HOPPER: bool = false;
}
impl Space for SharedSpace {
    type Address = u32;
    // The unqualified form means the same as `shared::cta` and exists in every version.
    const NAME: &'static str = "shared";
    const HOPPER: bool = false;
}
impl Space for ClusterSpace {
    type Address = u32;
    const NAME: &'static str = "shared::cluster";
    const HOPPER: bool = true;
}

/// A pointer: an address in a register, and a constant offset that costs nothing.
pub struct Ptr<'k, S: Space> {
    base: Val<'k, S::Address>,
    offset: u32,
}

/// A pointer into global memory.
pub type Global<'k> = Ptr<'k, GlobalSpace>;
/// A pointer into the block's shared memory.
pub type Shared<'k> = Ptr<'k, SharedSpace>;
/// A pointer into some block of the cluster's shared memory.
pub type ClusterShared<'k> = Ptr<'k, ClusterSpace>;

impl<S: Space> Clone for Ptr<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S: Space> Copy for Ptr<'_, S> {}

impl<S: Space> fmt::Display for Ptr<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}", self.base.operand())?;
        if self.offset != 0 {
            write!(f, "+{}", self.offset)?;
        }
        f.write_str("]")
    }
}

/// How far a memory order reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The block.
    Cta,
    /// The cluster.
    Cluster,
    /// The device.
    Gpu,
    /// Every device and the host.
    Sys,
}

impl Scope {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Scope::Cta => "cta",
            Scope::Cluster => "cluster",
            Scope::Gpu => "gpu",
            Scope::Sys => "sys",
        }
    }

    pub(crate) fn needs(self) -> Needs {
        if self == Scope::Cluster { Needs::SM90 } else { Needs::BASE }
    }
}

/// What an atomic or a reduction does to the memory it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds.
    Add,
    /// Keeps the smaller.
    Min,
    /// Keeps the larger.
    Max,
    /// Replaces (atomics only).
    Exchange,
}

impl AtomicOp {
    fn name(self) -> &'static str {
        match self {
            AtomicOp::Add => "add",
            AtomicOp::Min => "min",
            AtomicOp::Max => "max",
            AtomicOp::Exchange => "exch",
        }
    }
}

impl<'k, S: Space> Ptr<'k, S> {
    /// A pointer to an address.
    pub fn new(base: Val<'k, S::Address>) -> Self {
        Ptr { base, offset: 0 }
    }

    /// The pointer a number of bytes further on. A constant is folded into the instruction that uses it.
    #[track_caller]
    pub fn at(self, bytes: impl Arg<'k, S::Address>) -> Self {
        let bytes = bytes.val(self.base.k);
        match bytes.as_constant().map(|constant| constant.literal().parse::<u32>()) {
            Some(Ok(constant)) => Ptr { offset: self.offset + constant, ..self },
            _ => Ptr { base: self.base + bytes, ..self },
        }
    }

    /// The address in one register.
    #[track_caller]
    pub fn address(self) -> Val<'k, S::Address> {
        self.base + S::Address::from_u32(self.offset)
    }

    fn needs(self) -> Needs {
        if S::HOPPER { Needs::SM90 } else { Needs::BASE }
    }

    fn kernel(self) -> &'k Kernel {
        self.base.k
    }

    #[track_caller]
    fn load_as<T: Type>(self, opcode: &str) -> Val<'k, T> {
        let out = self.kernel().fresh::<T>();
        self.kernel().emit(self.needs(), format_args!("{opcode}.{} {}, {self};", T::RAW, out.operand()));
        out
    }

    #[track_caller]
    fn load_vec_as<T: Type, const N: usize>(self, opcode: &str) -> [Val<'k, T>; N] {
        const { assert!(N == 2 || N == 4) };
        let out = [(); N].map(|()| self.kernel().fresh::<T>());
        let list = out.map(|v| v.operand().to_string()).join(", ");
        self.kernel().emit(self.needs(), format_args!("{opcode}.v{N}.{} {{{list}}}, {self};", T::RAW));
        out
    }

    /// Loads one value.
    #[track_caller]
    pub fn load<T: Type>(self) -> Val<'k, T> {
        self.load_as(&format!("ld.{}", S::NAME))
    }

    /// Loads two or four neighbours at once; the address is aligned to all of them together.
    #[track_caller]
    pub fn load_vec<T: Type, const N: usize>(self) -> [Val<'k, T>; N] {
        self.load_vec_as(&format!("ld.{}", S::NAME))
    }

    /// Loads where the condition holds, and gives `otherwise` elsewhere without touching memory.
    #[track_caller]
    pub fn load_if<T: Type>(self, condition: Pred<'k>, otherwise: T) -> Val<'k, T> {
        self.load_if_as(&format!("ld.{}", S::NAME), condition, otherwise)
    }

    #[track_caller]
    fn load_if_as<T: Type>(self, opcode: &str, condition: Pred<'k>, otherwise: T) -> Val<'k, T> {
        let k = self.kernel();
        let out = k.var(otherwise).live();
        k.guard(condition, || {
            k.emit(self.needs(), format_args!("{opcode}.{} {}, {self};", T::RAW, out.operand()));
        });
        out
    }

    /// Stores one value.
    #[track_caller]
    pub fn store<T: Type>(self, value: impl Arg<'k, T>) {
        let value = value.val(self.kernel()).operand();
        self.kernel().emit(self.needs(), format_args!("st.{}.{} {self}, {value};", S::NAME, T::RAW));
    }

    /// Stores two or four neighbours at once; the address is aligned to all of them together.
    #[track_caller]
    pub fn store_vec<T: Type, const N: usize>(self, values: [Val<'k, T>; N]) {
        const { assert!(N == 2 || N == 4) };
        let list = values.map(|v| v.operand().to_string()).join(", ");
        self.kernel().emit(self.needs(), format_args!("st.{}.v{N}.{} {self}, {{{list}}};", S::NAME, T::RAW));
    }

    /// Loads what others may store at that time, in no order with anything else.
    #[track_caller]
    pub fn load_relaxed<T: Type>(self, scope: Scope) -> Val<'k, T> {
        self.load_ordered("relaxed", scope)
    }

    /// Loads with acquire order.
    #[track_caller]
    pub fn load_acquire<T: Type>(self, scope: Scope) -> Val<'k, T> {
        self.load_ordered("acquire", scope)
    }

    #[track_caller]
    fn load_ordered<T: Type>(self, order: &str, scope: Scope) -> Val<'k, T> {
        let out = self.kernel().fresh::<T>();
        let dst = out.operand();
        self.kernel().emit(
            scope.needs(),
            format_args!("ld.{order}.{}.{}.{} {dst}, {self};", scope.name(), S::NAME, T::RAW),
        );
        out
    }

    /// Stores what others may load at that time, in no order with anything else.
    #[track_caller]
    pub fn store_relaxed<T: Type>(self, value: impl Arg<'k, T>, scope: Scope) {
        self.store_ordered("relaxed", value, scope);
    }

    /// Stores with release order.
    #[track_caller]
    pub fn store_release<T: Type>(self, value: impl Arg<'k, T>, scope: Scope) {
        self.store_ordered("release", value, scope);
    }

    #[track_caller]
    fn store_ordered<T: Type>(self, order: &str, value: impl Arg<'k, T>, scope: Scope) {
        let value = value.val(self.kernel()).operand();
        self.kernel().emit(
            scope.needs(),
            format_args!("st.{order}.{}.{}.{} {self}, {value};", scope.name(), S::NAME, T::RAW),
        );
    }

    /// Applies `op` atomically and gives what was there before.
    #[track_caller]
    pub fn atomic<T: Type>(self, op: AtomicOp, value: impl Arg<'k, T>, scope: Scope) -> Val<'k, T> {
        self.atomic_as("relaxed", op, value, scope)
    }

    /// [`atomic`](Self::atomic) that releases what came before it, and acquires what others released by theirs.
    #[track_caller]
    pub fn atomic_ordered<T: Type>(self, op: AtomicOp, value: impl Arg<'k, T>, scope: Scope) -> Val<'k, T> {
        self.atomic_as("acq_rel", op, value, scope)
    }

    #[track_caller]
    fn atomic_as<T: Type>(
        self,
        order: &str,
        op: AtomicOp,
        value: impl Arg<'k, T>,
        scope: Scope,
    ) -> Val<'k, T> {
        let k = self.kernel();
        let out = k.fresh::<T>();
        let (dst, value) = (out.operand(), value.val(k).operand());
        // An exchange moves bits; the others need to know what the bits mean.
        let suffix = if op == AtomicOp::Exchange && T::CLASS != Class::F32 { T::RAW } else { T::NAME };
        let (scope_name, op) = (scope.name(), op.name());
        k.emit(
            scope.needs(),
            format_args!("atom.{order}.{scope_name}.{}.{op}.{suffix} {dst}, {self}, {value};", S::NAME),
        );
        out
    }

    /// Applies `op` atomically without giving anything back.
    #[track_caller]
    pub fn reduce<T: Type>(self, op: AtomicOp, value: impl Arg<'k, T>, scope: Scope) {
        let k = self.kernel();
        k.require(op != AtomicOp::Exchange, || "a reduction cannot exchange: use `atomic`".into());
        let value = value.val(k).operand();
        k.emit(
            scope.needs(),
            format_args!(
                "red.relaxed.{}.{}.{}.{} {self}, {value};",
                scope.name(),
                S::NAME,
                op.name(),
                T::NAME
            ),
        );
    }
}

impl<'k> Global<'k> {
    /// Has the L2 cache fetch the line that this lies in.
    #[track_caller]
    pub fn prefetch(self) {
        self.kernel().emit(Needs::BASE, format_args!("prefetch.global.L2 {self};"));
    }

    /// Loads through the read-only path: nothing in this grid may write the location.
    #[track_caller]
    pub fn load_readonly<T: Type>(self) -> Val<'k, T> {
        self.load_as("ld.global.nc")
    }

    /// Loads neighbours through the read-only path.
    #[track_caller]
    pub fn load_readonly_vec<T: Type, const N: usize>(self) -> [Val<'k, T>; N] {
        self.load_vec_as("ld.global.nc")
    }

    /// [`load_readonly`](Self::load_readonly) where the condition holds.
    #[track_caller]
    pub fn load_readonly_if<T: Type>(self, condition: Pred<'k>, otherwise: T) -> Val<'k, T> {
        self.load_if_as("ld.global.nc", condition, otherwise)
    }

    /// Loads neighbours through the read-only path where the condition holds, and gives `otherwise` elsewhere.
    #[track_caller]
    pub fn load_readonly_vec_if<T: Type, const N: usize>(
        self,
        condition: Pred<'k>,
        otherwise: T,
        policy: Option<CachePolicy<'k>>,
    ) -> [Val<'k, T>; N] {
        const { assert!(N == 2 || N == 4) };
        let k = self.kernel();
        let out = [(); N].map(|()| k.var(otherwise).live());
        let list = out.map(|v| v.operand().to_string()).join(", ");
        let (hint, policy) = hint(policy);
        k.guard(condition, || {
            let raw = T::RAW;
            k.emit(self.needs(), format_args!("ld.global.nc{hint}.v{N}.{raw} {{{list}}}, {self}{policy};"));
        });
        out
    }

    /// [`store`](Self::store) of what the cache treats by a policy.
    #[track_caller]
    pub fn store_by<T: Type>(self, value: Val<'k, T>, policy: CachePolicy<'k>) {
        let (hint, policy) = hint(Some(policy));
        let (k, value) = (self.kernel(), value.operand());
        k.emit(self.needs(), format_args!("st.global{hint}.{} {self}, {value}{policy};", T::RAW));
    }

    /// [`store_vec`](Self::store_vec) of what the cache treats by a policy.
    #[track_caller]
    pub fn store_vec_by<T: Type, const N: usize>(self, values: [Val<'k, T>; N], policy: CachePolicy<'k>) {
        const { assert!(N == 2 || N == 4) };
        let list = values.map(|v| v.operand().to_string()).join(", ");
        let (hint, policy) = hint(Some(policy));
        let (k, raw) = (self.kernel(), T::RAW);
        k.emit(self.needs(), format_args!("st.global{hint}.v{N}.{raw} {self}, {{{list}}}{policy};"));
    }

    /// Loads a byte through the read-only path where the condition holds, and gives 0 elsewhere.
    #[track_caller]
    pub fn load_readonly_byte_if(self, condition: Pred<'k>) -> U32<'k> {
        let k = self.kernel();
        let out = k.var(0u32).live();
        k.guard(condition, || {
            k.emit(self.needs(), format_args!("ld.global.nc.u8 {}, {self};", out.operand()))
        });
        out
    }

    /// Stores the low byte of a value.
    #[track_caller]
    pub fn store_byte(self, value: U32<'k>) {
        let value = value.in_register().operand();
        self.kernel().emit(self.needs(), format_args!("st.global.u8 {self}, {value};"));
    }

    /// The generic address.
    #[track_caller]
    pub fn generic(self) -> U64<'k> {
        let k = self.kernel();
        let (out, address) = (k.fresh::<u64>(), self.address());
        k.op(format_args!("cvta.global.u64 {}, {};", out.operand(), address.operand()));
        out
    }
}

impl<'k> Shared<'k> {
    /// The same location in the shared memory of another block of the cluster.
    #[track_caller]
    pub fn in_block(self, rank: impl Arg<'k, u32>) -> ClusterShared<'k> {
        let k = self.kernel();
        let out = k.fresh::<u32>();
        let (dst, own, rank) = (out.operand(), self.base.in_register().operand(), rank.val(k).operand());
        k.emit(Needs::SM90, format_args!("mapa.shared::cluster.u32 {dst}, {own}, {rank};"));
        Ptr { base: out, offset: self.offset }
    }
}

impl<'k> ClusterShared<'k> {
    /// Stores one value asynchronously and then counts its bytes at a barrier of the same block, which was told to
    /// [expect](crate::MBarrier::expect) them.
    #[track_caller]
    pub fn store_async<T: Type>(self, value: impl Arg<'k, T>, counted_at: RemoteMBarrier<'k>) {
        let value = value.val(self.kernel()).operand();
        self.emit_store_async::<T>("", format_args!("{value}"), counted_at);
    }

    /// [`store_async`](Self::store_async) of two or four neighbours; the address is aligned to all of them together.
    #[track_caller]
    pub fn store_vec_async<T: Type, const N: usize>(
        self,
        values: [Val<'k, T>; N],
        counted_at: RemoteMBarrier<'k>,
    ) {
        const { assert!(N == 2 || N == 4) };
        let list = values.map(|v| v.operand().to_string()).join(", ");
        self.emit_store_async::<T>(&format!(".v{N}"), format_args!("{{{list}}}"), counted_at);
    }

    #[track_caller]
    fn emit_store_async<T: Type>(
        self,
        vector: &str,
        values: std::fmt::Arguments<'_>,
        counted_at: RemoteMBarrier<'k>,
    ) {
        self.kernel().require(T::BYTES == 4 || T::BYTES == 8, || {
            format!("st.async stores values of 4 or 8 bytes, not {}", T::BYTES)
        });
        self.kernel().emit(
            Needs::from_sm(90, 8, 1),
            format_args!(
                "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{vector}.{} {self}, {values}, {};",
                T::RAW,
                counted_at.0
            ),
        );
    }
}

impl<'k> Shared<'k> {
    /// Copies 4, 8 or 16 bytes of global memory here, asynchronously; where `valid` does not hold, zeros, and
    /// the source is not read. [`MBarrier::arrive_after_copies`](crate::MBarrier::arrive_after_copies) tells when
    /// they have landed.
    #[track_caller]
    pub fn copy_async(self, from: Global<'k>, bytes: u32, valid: Pred<'k>) {
        self.copy_async_part(from, bytes, valid.select(bytes, 0));
    }

    /// The same where only the first bytes are `present`: the others become zero, and are not read.
    #[track_caller]
    pub fn copy_async_part(self, from: Global<'k>, bytes: u32, present: U32<'k>) {
        let k = from.kernel();
        k.require(matches!(bytes, 4 | 8 | 16), || format!("cp.async copies 4, 8 or 16 bytes, not {bytes}"));
        let present = present.operand();
        k.op(format_args!("cp.async.ca.shared.global {self}, {from}, {bytes}, {present};"));
    }

    /// [`copy_async`](Self::copy_async) of 16 bytes that pass the first cache by.
    ///
    /// It takes no cache policy: with one, and an offset of shared memory in a uniform register, ptxas 13.0 encodes an
    /// instruction that is illegal.
    #[track_caller]
    pub fn copy_vector_async(self, from: Global<'k>, valid: Pred<'k>) {
        let k = from.kernel();
        let present = valid.select(16u32, 0).operand();
        k.op(format_args!("cp.async.cg.shared.global {self}, {from}, 16, {present};"));
    }
}

impl Kernel {
    /// Makes a group of those [copies](Shared::copy_async) of this thread that have none yet; there may be none.
    #[track_caller]
    pub fn copies_commit(&self) {
        self.op(format_args!("cp.async.commit_group;"));
    }

    /// Waits until no more than the newest `pending` [groups](Self::copies_commit) of this thread are under way.
    #[track_caller]
    pub fn copies_wait_but(&self, pending: u32) {
        self.op(format_args!("cp.async.wait_group {pending};"));
    }

    /// Waits until every [`copy_async`](Shared::copy_async) of this thread has landed.
    #[track_caller]
    pub fn copies_wait(&self) {
        self.op(format_args!("cp.async.wait_all;"));
    }
}

/// What a cache policy adds to the name of an instruction, and to its operands.
fn hint(policy: Option<CachePolicy<'_>>) -> (&'static str, String) {
    match policy {
        Some(CachePolicy(policy)) => (".L2::cache_hint", format!(", {}", policy.operand())),
        None => ("", String::new()),
    }
}

/// Hands out offsets of dynamic shared memory, so that a kernel's map is one struct built in one place.
///
/// ```
/// # use oxigemm_ptx::SharedLayout;
/// let mut layout = SharedLayout::default();
/// let tiles = layout.place(4 * 16384, 1024);
/// let barriers = layout.place(8 * 8, 8);
/// assert_eq!((tiles, barriers, layout.bytes()), (0, 65536, 65600));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SharedLayout {
    bytes: u32,
}

impl SharedLayout {
    /// Reserves `bytes` at a multiple of `align`; returns the offset.
    pub fn place(&mut self, bytes: u32, align: u32) -> u32 {
        let offset = self.bytes.next_multiple_of(align);
        self.bytes = offset + bytes;
        offset
    }

    /// What has been reserved so far, padding included.
    pub fn bytes(self) -> u32 {
        self.bytes
    }
}

impl<'k> U32<'k> {
    /// Zero-extends.
    #[track_caller]
    pub fn to_u64(self) -> U64<'k> {
        if let Source::Constant(c) = self.source {
            return self.k.constant(u64::from(c));
        }
        let out = self.k.fresh::<u64>();
        self.k.op(format_args!("cvt.u64.u32 {}, {};", out.operand(), self.operand()));
        out
    }
}
