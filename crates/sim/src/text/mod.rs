//! Text: from PTX source to a syntax tree.

pub(crate) mod ast;
pub(crate) mod names;
pub(crate) mod parse;
pub(crate) mod scan;
pub(crate) mod types;
