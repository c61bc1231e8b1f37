//! Errors of a kernel when it is built.

use crate::target::{PtxVersion, Target};
use std::panic::Location;

/// A mistake in a kernel, found while it was built.
///
/// Types of operands are checked by the Rust compiler; what is left are rules that depend on values:
/// the target, shapes, and constants.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{at}: {kind}")]
pub struct BuildError {
    /// The Rust line that wrote the instruction.
    pub at: &'static Location<'static>,
    /// What is wrong with it.
    pub kind: BuildErrorKind,
}

/// The rule that a [`BuildError`] reports as broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildErrorKind {
    /// The target does not have the instruction.
    #[error("`{instruction}` needs {needed}, and this kernel is built for {target}")]
    MissingOnTarget {
        /// The instruction's opcode.
        instruction: String,
        /// The architectures that have it.
        needed: String,
        /// What the kernel is built for.
        target: Target,
    },
    /// The kernel was limited to a PTX version that lacks the instruction.
    #[error("`{instruction}` needs PTX {needed}, and this kernel is limited to PTX {limit}")]
    VersionLimit {
        /// The instruction's opcode.
        instruction: String,
        /// The first version that has it.
        needed: PtxVersion,
        /// The limit that was set.
        limit: PtxVersion,
    },
    /// A module was asked for a target that may lack what it is written with.
    #[error("`{entry}` is written for {of}, and {target} has not all of that")]
    OtherTarget {
        /// The module's entry.
        entry: String,
        /// What it is written for.
        of: Target,
        /// What it was asked for.
        target: Target,
    },
    /// An operand's value breaks a rule of the instruction.
    #[error("{0}")]
    Operand(String),
}
