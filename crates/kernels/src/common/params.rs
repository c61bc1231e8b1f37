//! Kernel parameters: one list that the host, the kernel and the simulator share.
//!
//! [`kernel_params!`](crate::common::params) takes the struct that the host fills in and the parameters in the order in
//! which kernels declare them. It makes the list of arguments ([`ArgRef`]) for a launch, and a struct of declared
//! parameters for the kernel. So neither the order nor the types exist twice.

use oxigemm_ptx::tma::TensorMap;
use oxigemm_ptx::{F32, Global, Kernel, U32, U64};
use std::ffi::c_void;

/// Value of a kernel argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KernelArg {
    /// A number.
    U32(u32),
    /// An address, or a large number.
    U64(u64),
    /// A floating-point number.
    F32(f32),
    /// A tensor map, passed by value.
    TensorMap([u64; 16]),
}

impl KernelArg {
    /// The argument, borrowed.
    pub fn as_ref(&self) -> ArgRef<'_> {
        match self {
            KernelArg::U32(value) => ArgRef::U32(value),
            KernelArg::U64(value) => ArgRef::U64(value),
            KernelArg::F32(value) => ArgRef::F32(value),
            KernelArg::TensorMap(value) => ArgRef::TensorMap(value),
        }
    }
}

/// Borrowed kernel argument: a launch on a GPU takes its [`pointer`](Self::pointer), the simulator its
/// [`value`](Self::value).
#[derive(Clone, Copy, Debug)]
pub enum ArgRef<'a> {
    /// A number.
    U32(&'a u32),
    /// An address, or a large number.
    U64(&'a u64),
    /// A floating-point number.
    F32(&'a f32),
    /// A tensor map, passed by value.
    TensorMap(&'a [u64; 16]),
}

impl ArgRef<'_> {
    /// Address of the argument, as a launch takes it. It is valid as long as the borrowed argument is.
    #[inline]
    pub fn pointer(self) -> *mut c_void {
        fn to<T>(value: &T) -> *mut c_void {
            std::ptr::from_ref(value).cast_mut().cast()
        }
        match self {
            ArgRef::U32(value) => to(value),
            ArgRef::U64(value) => to(value),
            ArgRef::F32(value) => to(value),
            ArgRef::TensorMap(value) => to(value),
        }
    }

    /// The argument by value.
    pub fn value(self) -> KernelArg {
        match self {
            ArgRef::U32(value) => KernelArg::U32(*value),
            ArgRef::U64(value) => KernelArg::U64(*value),
            ArgRef::F32(value) => KernelArg::F32(*value),
            ArgRef::TensorMap(value) => KernelArg::TensorMap(*value),
        }
    }
}

/// Type of a kernel parameter: how the host holds it, how a kernel declares it, and what a kernel makes of it.
pub(crate) trait ParamType {
    /// On the host.
    type Host;
    /// In the kernel.
    type Declared<'k>;

    /// The host's argument.
    fn arg(value: &Self::Host) -> ArgRef<'_>;

    /// Declares and loads the parameter.
    fn declare<'k>(k: &'k Kernel, name: &str) -> Self::Declared<'k>;
}

/// The types that [`kernel_params!`](crate::common::params) knows.
pub(crate) mod types {
    /// A 32-bit number.
    pub struct U32;
    /// A 64-bit number.
    pub struct U64;
    /// An FP32 number.
    pub struct F32;
    /// An address of global memory.
    pub struct Pointer;
    /// A tensor map, passed by value.
    pub struct TensorMap;
}

macro_rules! param_type {
    ($type:ident, $arg:ident, $host:ty, $declared:ident, $declare:ident $(::<$width:ty>)?) => {
        impl ParamType for types::$type {
            type Host = $host;
            type Declared<'k> = $declared<'k>;

            #[inline]
            fn arg(value: &$host) -> ArgRef<'_> {
                ArgRef::$arg(value)
            }

            #[track_caller]
            fn declare<'k>(k: &'k Kernel, name: &str) -> $declared<'k> {
                k.$declare$(::<$width>)?(name)
            }
        }
    };
}

param_type!(U32, U32, u32, U32, param::<u32>);
param_type!(U64, U64, u64, U64, param::<u64>);
param_type!(F32, F32, f32, F32, param::<f32>);
param_type!(Pointer, U64, u64, Global, param_pointer);
param_type!(TensorMap, TensorMap, [u64; 16], TensorMap, param_tensor_map);

/// Parameter list of a kernel family. Each line names a parameter, its type and the field of the host's struct that is
/// passed for it; the order of the lines is that of the kernel's parameters.
macro_rules! kernel_params {
    (
        $(#[$meta:meta])*
        $vis:vis struct $Params:ident from $Args:ident {
            $($name:ident: $type:ident = $($field:ident).+ $([$index:literal])?,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        $vis struct $Params<'k> {
            $(pub $name: <$crate::common::params::types::$type as $crate::common::params::ParamType>::Declared<'k>,)+
        }

        impl<'k> $Params<'k> {
            /// Declares the parameters in order, each with `prefix` before its name.
            #[track_caller]
            pub fn declare(k: &'k oxigemm_ptx::Kernel, prefix: &str) -> Self {
                use $crate::common::params::{ParamType, types};
                $Params {
                    $($name: types::$type::declare(k, &format!("{prefix}{}", stringify!($name))),)+
                }
            }
        }

        impl $Args {
            /// How many parameters there are.
            pub const COUNT: usize = [$(stringify!($name)),+].len();

            /// The arguments in the order of the kernel's parameters.
            #[inline]
            pub fn args(&self) -> [$crate::common::params::ArgRef<'_>; Self::COUNT] {
                use $crate::common::params::{ParamType, types};
                [$(types::$type::arg(&self.$($field).+ $([$index])?),)+]
            }

            /// A pointer to each argument, as a launch takes them.
            #[inline]
            pub fn pointers(&self) -> [*mut std::ffi::c_void; Self::COUNT] {
                self.args().map($crate::common::params::ArgRef::pointer)
            }

            /// The arguments by value.
            pub fn values(&self) -> [$crate::common::params::KernelArg; Self::COUNT] {
                self.args().map($crate::common::params::ArgRef::value)
            }
        }
    };
}

pub(crate) use kernel_params;

#[cfg(test)]
mod tests {
    use super::*;
    use oxigemm_ptx::Target;

    struct Args {
        map: [u64; 16],
        address: u64,
        numbers: [u32; 2],
        factor: f32,
        large: u64,
    }

    kernel_params! {
        struct Params from Args {
            second: U32 = numbers[1],
            map: TensorMap = map,
            address: Pointer = address,
            factor: F32 = factor,
            first: U32 = numbers[0],
            large: U64 = large,
        }
    }

    /// A GPU is given pointers, the simulator values: both mean the same arguments, in the order of the declaration.
    #[test]
    fn pointers_values_and_declared_parameters_are_one_list() {
        let map = std::array::from_fn(|i| 100 + i as u64);
        let args = Args { map, address: 1, numbers: [2, 3], factor: 4.0, large: 5 };
        let expected = [
            KernelArg::U32(3),
            KernelArg::TensorMap(map),
            KernelArg::U64(1),
            KernelArg::F32(4.0),
            KernelArg::U32(2),
            KernelArg::U64(5),
        ];
        assert_eq!(args.values(), expected);
        for (pointer, value) in args.pointers().into_iter().zip(expected) {
            // SAFETY: a pointer to a field of `args`, which has the type of its value.
            let found = unsafe {
                match value {
                    KernelArg::U32(_) => KernelArg::U32(*pointer.cast()),
                    KernelArg::U64(_) => KernelArg::U64(*pointer.cast()),
                    KernelArg::F32(_) => KernelArg::F32(*pointer.cast()),
                    KernelArg::TensorMap(_) => KernelArg::TensorMap(*pointer.cast()),
                }
            };
            assert_eq!(found, value);
        }
        let k = &Kernel::new("declares", Target::Sm90a);
        let Params { second, map, address, factor, first, large } = Params::declare(k, "p_");
        let _ = (second, map, address, factor, first, large);
        let text = k.finish().expect("it builds").text;
        let declared: Vec<&str> = text
            .lines()
            .filter(|line| line.trim_start().starts_with(".param ."))
            .map(|line| line.trim_end_matches(',').rsplit(' ').next().expect("a name"))
            .collect();
        assert_eq!(declared, ["p_second", "p_map[128]", "p_address", "p_factor", "p_first", "p_large"]);
    }
}
