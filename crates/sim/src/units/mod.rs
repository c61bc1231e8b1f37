//! Models of the hardware units beside the ALUs.

pub(crate) mod atomic;
pub(crate) mod copy;
pub(crate) mod integer_core;
pub(crate) mod mbarrier;
pub(crate) mod mma;
pub(crate) mod tcgen05;
pub(crate) mod tensor_core;
pub(crate) mod tensor_memory;
pub(crate) mod tensormap;
pub(crate) mod tma;
pub(crate) mod warp_product;
pub(crate) mod wgmma;
pub(crate) mod wmma;
