//! What commands compute: operands, a call, and whether its result is right.
//!
//! GEMMs of all operations are [`oxigemm_testkit::GemmCase`]; [`gemm`] reads them from the command line.

pub mod attention;
pub mod blackwell;
pub mod einsum;
pub mod gemm;
pub mod hyper_connection;
pub mod models;
pub mod moe;
pub mod quantize;
pub mod router;
