//! The tensor core of Blackwell: shapes of its data movement, and its asynchronous work.

pub(crate) mod mma;
pub(crate) mod queue;
pub(crate) mod shapes;
pub(crate) mod source;
