//! `tcgen05.mma`.

use super::super::Result;
use super::super::decoder::Decoder;
use super::super::isa::Addr;
use super::super::operands::operands;

operands! {
    /// `tcgen05.mma`, decoded.
    pub(crate) struct TensorMma {
        pub(crate) d: Addr,
        pub(crate) pair: bool,
    }
}

impl Decoder<'_, '_> {
    pub(super) fn tcgen05_mma(&mut self) -> Result<TensorMma> {
        self.unsupported()
    }
}
