//! Values: typed, `Copy` handles to registers or constants, with Rust's operators.

use crate::kernel::Kernel;
use std::fmt;
use std::marker::PhantomData;

/// The register file class that holds a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `.pred`
    Pred,
    /// `.b16`
    B16,
    /// `.b32`
    B32,
    /// `.b64`
    B64,
    /// `.f32`
    F32,
}

impl Class {
    pub(crate) const ALL: [Class; 5] = [Class::Pred, Class::B16, Class::B32, Class::B64, Class::F32];

    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Class::Pred => "%p",
            Class::B16 => "%h",
            Class::B32 => "%r",
            Class::B64 => "%d",
            Class::F32 => "%f",
        }
    }

    pub(crate) fn declaration(self) -> &'static str {
        match self {
            Class::Pred => ".pred",
            Class::B16 => ".b16",
            Class::B32 => ".b32",
            Class::B64 => ".b64",
            Class::F32 => ".f32",
        }
    }
}

/// A type that a register can hold. The Rust type doubles as the type of its constants.
pub trait Type: Copy + fmt::Debug + 'static {
    /// Which registers hold it.
    const CLASS: Class;
    /// Its suffix in arithmetic instructions, such as `u32`.
    const NAME: &'static str;
    /// Its untyped suffix, such as `b32`, for moves, loads and stores.
    const RAW: &'static str;
    /// Its size in memory.
    const BYTES: u32;
    /// A constant as PTX writes it.
    fn literal(self) -> String;
    #[doc(hidden)]
    fn truth(self) -> Option<bool> {
        None
    }
}

macro_rules! int_type {
    ($t:ty, $class:ident, $name:literal, $raw:literal) => {
        impl Type for $t {
            const CLASS: Class = Class::$class;
            const NAME: &'static str = $name;
            const RAW: &'static str = $raw;
            const BYTES: u32 = size_of::<$t>() as u32;
            fn literal(self) -> String {
                self.to_string()
            }
        }
    };
}
int_type!(u16, B16, "u16", "b16");
int_type!(u32, B32, "u32", "b32");
int_type!(i32, B32, "s32", "b32");
int_type!(u64, B64, "u64", "b64");

impl Type for f32 {
    const CLASS: Class = Class::F32;
    const NAME: &'static str = "f32";
    const RAW: &'static str = "f32";
    const BYTES: u32 = 4;
    fn literal(self) -> String {
        format!("0f{:08X}", self.to_bits())
    }
}

impl Type for bool {
    const CLASS: Class = Class::Pred;
    const NAME: &'static str = "pred";
    const RAW: &'static str = "pred";
    const BYTES: u32 = 0;
    fn literal(self) -> String {
        unreachable!("PTX has no predicate constants: `Val::operand` makes a register of one")
    }
    fn truth(self) -> Option<bool> {
        Some(self)
    }
}

macro_rules! packed_type {
    ($(#[$doc:meta])* $t:ident, $raw:ty, $class:ident, $name:literal, $b:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $t(pub $raw);
        impl Type for $t {
            const CLASS: Class = Class::$class;
            const NAME: &'static str = $name;
            const RAW: &'static str = $b;
            const BYTES: u32 = size_of::<$raw>() as u32;
            fn literal(self) -> String {
                self.0.to_string()
            }
        }
    };
}
packed_type!(
    /// One BF16 number, as its bits.
    Bf16, u16, B16, "bf16", "b16");
packed_type!(
    /// One FP16 number, as its bits.
    F16, u16, B16, "f16", "b16");
packed_type!(
    /// Two BF16 numbers in one register; the first in the low half.
    Bf16x2, u32, B32, "bf16x2", "b32");
packed_type!(
    /// Two FP16 numbers in one register; the first in the low half.
    F16x2, u32, B32, "f16x2", "b32");
packed_type!(
    /// Two FP8 numbers in one register; the first in the low byte.
    Fp8x2, u16, B16, "b16", "b16");

#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<T> {
    Register(u32),
    Constant(T),
}

/// A value of type `T` in kernel `'k`: a register, or a constant that is still foldable.
///
/// Arithmetic is ordinary Rust: `a + b`, `row * 128`, `x >> 3`. Constants fold, so the same source serves
/// a dimension that is known when the kernel is built and one that is an argument of it.
///
/// ```
/// # use oxigemm_ptx::{Kernel, Target};
/// let k = Kernel::new("example", Target::Sm90a);
/// let tile = k.constant(6u32) * 128 + 1;
/// assert_eq!(tile.as_constant(), Some(769));
/// let m = k.param::<u32>("m");
/// assert_eq!((m * 128 + 0).as_constant(), None);
/// ```
pub struct Val<'k, T: Type> {
    pub(crate) k: &'k Kernel,
    pub(crate) source: Source<T>,
}

impl<T: Type> Clone for Val<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: Type> Copy for Val<'_, T> {}

impl<T: Type> fmt::Debug for Val<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Source::Register(id) => write!(f, "{}{id}", T::CLASS.prefix()),
            Source::Constant(c) => write!(f, "{c:?}"),
        }
    }
}

/// A 32-bit unsigned value.
pub type U32<'k> = Val<'k, u32>;
/// A 32-bit signed value.
pub type I32<'k> = Val<'k, i32>;
/// A 64-bit unsigned value.
pub type U64<'k> = Val<'k, u64>;
/// A 16-bit unsigned value.
pub type U16<'k> = Val<'k, u16>;
/// A single-precision value.
pub type F32<'k> = Val<'k, f32>;
/// A predicate.
pub type Pred<'k> = Val<'k, bool>;

/// What an instruction takes where it wants a `T`: a [`Val`], or a plain Rust constant.
pub trait Arg<'k, T: Type> {
    /// The value it stands for in kernel `k`.
    fn val(self, k: &'k Kernel) -> Val<'k, T>;
}

impl<'k, T: Type> Arg<'k, T> for T {
    fn val(self, k: &'k Kernel) -> Val<'k, T> {
        k.constant(self)
    }
}

impl<'k, T: Type> Arg<'k, T> for Val<'k, T> {
    fn val(self, _: &'k Kernel) -> Val<'k, T> {
        self
    }
}

impl<'k, T: Type> Val<'k, T> {
    /// The constant, if its value is known now.
    pub fn as_constant(self) -> Option<T> {
        match self.source {
            Source::Constant(c) => Some(c),
            Source::Register(_) => None,
        }
    }

    /// The kernel this value belongs to.
    pub fn kernel(self) -> &'k Kernel {
        self.k
    }

    /// The operand as PTX writes it.
    #[track_caller]
    pub(crate) fn operand(self) -> Operand {
        match self.source {
            Source::Register(id) => Operand::Register(T::CLASS, id),
            Source::Constant(c) => match c.truth() {
                Some(truth) => Operand::Register(Class::Pred, self.k.constant_predicate(truth)),
                None => Operand::Literal(c.literal()),
            },
        }
    }

    /// The same bits in a register, for instructions that take no constant there.
    #[track_caller]
    pub(crate) fn in_register(self) -> Val<'k, T> {
        match self.source {
            Source::Register(_) => self,
            Source::Constant(_) => {
                let out = self.k.fresh::<T>();
                self.k.op(format_args!("mov.{} {}, {};", T::RAW, out.operand(), self.operand()));
                out
            }
        }
    }

    /// The same bits under another type of the same register class.
    pub fn bitcast<U: Type>(self) -> Val<'k, U> {
        const { assert!(T::BYTES == U::BYTES) };
        let this = self.in_register();
        let Source::Register(id) = this.source else { unreachable!("in_register returned a constant") };
        if T::CLASS == U::CLASS {
            return Val { k: self.k, source: Source::Register(id) };
        }
        let out = self.k.fresh::<U>();
        self.k.op(format_args!("mov.b{} {}, {};", T::BYTES * 8, out.operand(), this.operand()));
        out
    }
}

/// An operand as text, made only when it is written.
pub(crate) enum Operand {
    Register(Class, u32),
    Literal(String),
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Register(class, id) => write!(f, "{}{id}", class.prefix()),
            Operand::Literal(text) => f.write_str(text),
        }
    }
}

/// A register that the kernel assigns more than once: loop state, accumulators.
///
/// ```
/// # use oxigemm_ptx::{Kernel, Target};
/// let k = Kernel::new("example", Target::Sm90a);
/// let stage = k.var(0u32);
/// stage.set(stage.get() + 1);
/// ```
pub struct Var<'k, T: Type> {
    k: &'k Kernel,
    id: u32,
    _type: PhantomData<T>,
}

impl<T: Type> Clone for Var<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: Type> Copy for Var<'_, T> {}

impl<'k, T: Type> Var<'k, T> {
    pub(crate) fn uninitialized(k: &'k Kernel) -> Self {
        Var { k, id: k.register(T::CLASS), _type: PhantomData }
    }

    /// What the variable holds now; a later [`set`](Self::set) does not change it.
    #[track_caller]
    pub fn get(self) -> Val<'k, T> {
        let out = self.k.fresh::<T>();
        self.k.op(format_args!("mov.{} {}, {};", T::RAW, out.operand(), self.live().operand()));
        out
    }

    /// The register itself: what it holds when the instruction that uses it runs.
    ///
    /// Accumulators of `wgmma` are read this way, because a copy of one makes the assembler serialize.
    pub fn live(self) -> Val<'k, T> {
        Val { k: self.k, source: Source::Register(self.id) }
    }

    /// Assigns.
    #[track_caller]
    pub fn set(self, value: impl Arg<'k, T>) {
        let value = value.val(self.k);
        self.k.op(format_args!("mov.{} {}, {};", T::RAW, self.live().operand(), value.operand()));
    }

    /// Assigns where the predicate holds.
    #[track_caller]
    pub fn set_if(self, condition: Pred<'k>, value: impl Arg<'k, T>) {
        let value = value.val(self.k);
        self.k.guard(condition, || self.set(value));
    }
}
