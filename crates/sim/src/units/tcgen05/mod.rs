//! The tensor core of Blackwell: descriptors and layouts of its operands, shapes of its data movement, and its
//! asynchronous work.

pub(crate) mod descriptor;
pub(crate) mod instruction;
pub(crate) mod layout;
pub(crate) mod mma;
pub(crate) mod queue;
pub(crate) mod shapes;
