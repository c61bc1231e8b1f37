//! Hyper-connection (HC) pre-norm GEMM: a GEMM with few columns, and the sum of squares of every row on the way.
//!
//! `D[m,n] = sum over k of  X[m,k] * W[n,k]`, `squares[m] = sum over k of  X[m,k]²`, for BF16 X and FP32 W, which is
//! rounded to TF32.

pub mod sm90;

pub use sm90::{Args, BLOCK_K, BLOCK_M, COLUMNS, Config, QUAD};
