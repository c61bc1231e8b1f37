//! The tensor core of Blackwell.

pub(crate) mod descriptor;
