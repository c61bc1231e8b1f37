//! Operand roles: which registers an instruction reads and which it writes.
//!
//! The type of a field is its role. A [`Src`] and the base of an [`Addr`] are read, a [`Reg`] is written, a
//! [`Copied`] is read and may be undefined, an [`AsyncRegs`] belongs to an asynchronous unit until a wait, and a modifier touches no register. The `operands!`
//! macro declares an instruction and collects its roles field by field, so that a new instruction states them once.

use super::isa::{Addr, AsyncRegs, Copied, Reg, Src};
use crate::hazard::Scope;

/// Registers that an instruction reads and writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    pub(crate) reads: Box<[Reg]>,
    /// Registers that a move or a selection hands on, also where they were never written, as compilers do where paths
    /// join.
    pub(crate) copied: Box<[Reg]>,
    pub(crate) writes: Box<[Reg]>,
}

/// Roles as they are collected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roles {
    pub(crate) reads: Vec<Reg>,
    pub(crate) copied: Vec<Reg>,
    pub(crate) writes: Vec<Reg>,
    /// The scope of a strong access or a fence.
    pub(crate) scope: Option<Scope>,
}

impl Roles {
    pub(crate) fn of(operands: &impl Operands) -> Roles {
        let mut roles = Roles::default();
        operands.collect(&mut roles);
        roles
    }

    /// The registers of an instruction with this guard, each read once.
    pub(crate) fn uses(mut self, guard: Option<(Reg, bool)>) -> Uses {
        self.reads.extend(guard.map(|g| g.0));
        self.reads.sort_unstable();
        self.reads.dedup();
        Uses { reads: self.reads.into(), copied: self.copied.into(), writes: self.writes.into() }
    }
}

/// A part of an instruction that knows its role; a modifier has none.
pub(crate) trait Operands {
    fn collect(&self, _roles: &mut Roles) {}
}

impl Operands for Src {
    fn collect(&self, roles: &mut Roles) {
        if let Src::Reg(r) | Src::Not(r) = self {
            roles.reads.push(*r);
        }
    }
}

impl Operands for Copied {
    fn collect(&self, roles: &mut Roles) {
        if let Src::Reg(r) | Src::Not(r) = self.0 {
            roles.copied.push(r);
        }
    }
}

impl Operands for Addr {
    fn collect(&self, roles: &mut Roles) {
        self.base.collect(roles);
    }
}

impl Operands for Reg {
    fn collect(&self, roles: &mut Roles) {
        roles.writes.push(*self);
    }
}

/// Left to the rules of the unit.
impl Operands for AsyncRegs {}

impl<T: Operands> Operands for Option<T> {
    fn collect(&self, roles: &mut Roles) {
        self.iter().for_each(|x| x.collect(roles));
    }
}

impl<T: Operands + ?Sized> Operands for Box<T> {
    fn collect(&self, roles: &mut Roles) {
        (**self).collect(roles);
    }
}

impl<T: Operands> Operands for [T] {
    fn collect(&self, roles: &mut Roles) {
        self.iter().for_each(|x| x.collect(roles));
    }
}

impl<T: Operands, const N: usize> Operands for [T; N] {
    fn collect(&self, roles: &mut Roles) {
        self[..].collect(roles);
    }
}

impl<A: Operands, B: Operands> Operands for (A, B) {
    fn collect(&self, roles: &mut Roles) {
        self.0.collect(roles);
        self.1.collect(roles);
    }
}

/// Types of fields that touch no register.
macro_rules! modifiers {
    ($($ty:ty),* $(,)?) => { $(impl $crate::decode::operands::Operands for $ty {})* };
}
pub(crate) use modifiers;

modifiers!(
    bool,
    u32,
    u64,
    usize,
    Scope,
    crate::text::ast::Space,
    crate::text::types::Ty,
    crate::arith::AluFn,
    fn(u64) -> bool,
    crate::arith::Alu4Fn,
    crate::arith::CarryFn,
    crate::arith::CmpFn,
    crate::arith::cvt::Cvt,
    crate::units::atomic::AtomFn,
    crate::units::copy::BulkReduce,
    crate::units::mma::Accumulator,
    crate::units::mma::Elements,
    crate::units::mma::MmaShape,
    crate::units::mma::ScaleShape,
    crate::units::tensormap::MapField,
    crate::units::wmma::Fragment,
    crate::units::wmma::WmmaShape,
);

/// Declares the struct or enum of an instruction, with the roles of its operands.
macro_rules! operands {
    ($(#[$meta:meta])* pub(crate) struct $name:ident {
        $($(#[$field_meta:meta])* pub(crate) $field:ident: $ty:ty),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub(crate) struct $name { $($(#[$field_meta])* pub(crate) $field: $ty),* }

        impl $crate::decode::operands::Operands for $name {
            fn collect(&self, roles: &mut $crate::decode::operands::Roles) {
                $($crate::decode::operands::Operands::collect(&self.$field, roles);)*
            }
        }
    };
    ($(#[$meta:meta])* pub(crate) enum $name:ident {
        $($(#[$variant_meta:meta])* $variant:ident
            $(($inner:ty))?
            $({ $($(#[$field_meta:meta])* $field:ident: $ty:ty),* $(,)? })?
        ),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub(crate) enum $name {
            $($(#[$variant_meta])* $variant $(($inner))? $({ $($(#[$field_meta])* $field: $ty),* })?),*
        }

        impl $crate::decode::operands::Operands for $name {
            #[allow(unused_variables)]
            fn collect(&self, roles: &mut $crate::decode::operands::Roles) {
                match self {
                    $(Self::$variant
                        $((operands!(@inner x $inner)))?
                        $({ $($field),* })?
                    => {
                        $(<$inner as $crate::decode::operands::Operands>::collect(x, roles);)?
                        $($(<$ty as $crate::decode::operands::Operands>::collect($field, roles);)*)?
                    })*
                }
            }
        }
    };
    (@inner $x:ident $ty:ty) => { $x };
}
pub(crate) use operands;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::isa::{Op, ZERO};

    operands! {
        pub(crate) enum Sample {
            Nothing,
            Fields { dst: Reg, src: Src, addr: Addr, mask: Option<Src>, bits: u32, lanes: Box<[Option<(Reg, u32)>]> },
            Inner(Box<Part>),
        }
    }

    operands! {
        pub(crate) struct Part {
            pub(crate) d: AsyncRegs,
            pub(crate) pair: [Src; 2],
        }
    }

    fn roles(sample: &Sample) -> (Vec<u32>, Vec<u32>) {
        let roles = Roles::of(sample);
        let numbers = |list: Vec<Reg>| list.into_iter().map(|r| r.0).collect();
        (numbers(roles.reads), numbers(roles.writes))
    }

    #[test]
    fn the_type_of_a_field_is_its_role() {
        let fields = Sample::Fields {
            dst: Reg(1),
            src: Src::Not(Reg(2)),
            addr: Addr { base: Src::Reg(Reg(3)), offset: 4 },
            mask: Some(Src::Imm(5)),
            bits: 6,
            lanes: Box::new([Some((Reg(7), 8)), None]),
        };
        assert_eq!(roles(&fields), (vec![2, 3], vec![1, 7]));
        let part = Part { d: AsyncRegs(Box::new([Reg(1)])), pair: [Src::Reg(Reg(2)), ZERO] };
        assert_eq!(roles(&Sample::Inner(Box::new(part))), (vec![2], vec![]));
        assert_eq!(roles(&Sample::Nothing), (vec![], vec![]));
    }

    #[test]
    fn a_guard_is_read_and_every_register_once() {
        let roles = Roles { reads: vec![Reg(5), Reg(2), Reg(5)], writes: vec![Reg(1)], ..Roles::default() };
        let uses = roles.uses(Some((Reg(3), true)));
        assert_eq!((&*uses.reads, &*uses.writes), (&[Reg(2), Reg(3), Reg(5)][..], &[Reg(1)][..]));
    }

    #[test]
    fn an_instruction_stays_small() {
        // Kernels are arrays of instructions; what is rare and large is in a box.
        assert!(size_of::<Op>() <= 96, "{} bytes", size_of::<Op>());
    }
}
