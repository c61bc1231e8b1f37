//! The argument checks of the functions.
//!
//! A check takes plain descriptions ([`Operand`]) and not tensors, so that it serves [`Tensor`](crate::Tensor)s and
//! raw device pointers alike. What it returns is all that planning and launching need to know of the arguments, in
//! a form where arguments that mean the same problem compare equal. On the way to success it allocates nothing.
//!
//! Every GEMM is a [`GemmDesc`], and its check [`GemmDesc::check`].

mod attention;
pub(crate) mod gemm;
mod hyper_connection;
mod moe;
mod quantize;
mod router;

pub use attention::{
    Logits, MqaLogits, MqaProblem, PagedMqaLogits, PagedMqaProblem, PagedMqaSchedule, ScheduleProblem,
};
pub use hyper_connection::{HcPrenormGemm, HcProblem};
pub(crate) use moe::check_routed;
pub use moe::{MoePermute, MoeUnpermute, PaddingRows, RoutedTokens};
pub use quantize::{
    CheckedQuantize, Dequantize, DequantizeNvfp4, Quantize, QuantizeBoth, QuantizeNvfp4, QuantizeSource,
    TransformScales,
};
pub use router::{GroupScore, MoeRoute, MoeTopK, RouteProblem, Router};

pub(crate) use crate::tensor::desc::int;
pub use crate::tensor::desc::{Operand, ScaleStrides};
pub use crate::tensor::granularity::{BLOCK, Granularity};
pub use gemm::desc::{
    EpilogueDesc, GemmDesc, GemmLayout, GroupingDesc, HeadSplits, HostKs, KGroupedDesc, MGroupedDesc,
};
pub use gemm::output_format::{BlockFormat, OutputFormat};
pub use gemm::problem::{
    Accumulate, Checked, Fused, Groups, KGroups, Problem, QuantizedRows, Summed, Trivial,
};
