//! `tcgen05.mma`: what an MMA takes with it when it is issued.

/// An MMA that was issued.
#[derive(Clone, Debug)]
pub(crate) struct MmaWork {}
