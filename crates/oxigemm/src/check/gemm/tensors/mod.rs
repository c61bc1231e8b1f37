//! The tensors of a GEMM, and their description.

pub(crate) mod epilogue;
pub(crate) mod groups;

use oxigemm_kernels::gemm::params::ScaleBlock;

use super::desc::{GemmDesc, GemmLayout, GroupingDesc, HostKs, KGroupedDesc};
use super::output_format::OutputFormat;
use crate::tensor::Tensor;
use crate::tensor::desc::{Operand, int};
use epilogue::Epilogue;
use groups::{KGroupNumbers, RowGroups};

/// Addend of a GEMM.
#[derive(Clone, Copy, Debug, Default)]
pub enum Addend<'a> {
    /// None.
    #[default]
    None,
    /// The old content of D.
    InPlace,
    /// Another matrix like D.
    From(&'a Tensor),
}

impl<'a> Addend<'a> {
    /// The tensor, beside D.
    pub(crate) fn tensor(self, d: &'a Tensor) -> Option<&'a Tensor> {
        match self {
            Addend::None => None,
            Addend::InPlace => Some(d),
            Addend::From(c) => Some(c),
        }
    }

    /// The argument `c`, beside D.
    fn describe(&self, d: &Tensor) -> Option<Operand> {
        match self {
            Addend::None => None,
            Addend::InPlace => Some(d.describe("c")),
            Addend::From(c) => Some(c.describe("c")),
        }
    }
}

/// Tensors of a GEMM: what its description is made of, and what the CPU reads and writes.
#[derive(Clone, Copy)]
pub(crate) struct Gemm<'a> {
    pub layout: GemmLayout,
    /// As [`GemmDesc::transpose`].
    pub transpose: bool,
    pub a: &'a Tensor,
    pub sfa: Option<&'a Tensor>,
    pub b: &'a Tensor,
    pub sfb: Option<&'a Tensor>,
    /// As [`GemmDesc::scale_blocks`].
    pub scale_blocks: [Option<ScaleBlock>; 2],
    /// Whether operands may be FP4, in a function of that name.
    pub fp4: bool,
    /// Whether operands are f32, in a function of the name TF32.
    pub tf32: bool,
    pub c: Addend<'a>,
    /// Written, though it is shared here: the public functions have it exclusively.
    pub d: &'a Tensor,
    pub grouping: Grouping<'a>,
    pub epilogue: Option<&'a Epilogue<'a>>,
    /// Scales of a quantized D.
    pub d_scales: Option<(&'a Tensor, OutputFormat)>,
}

/// Grouping of a GEMM of tensors.
#[derive(Clone, Copy)]
pub(crate) enum Grouping<'a> {
    Dense,
    Batched,
    Summed,
    MGrouped(RowGroups<'a>),
    KGrouped { groups: KGroupNumbers<'a>, ks_host: Option<&'a [usize]> },
}

impl<'a> Gemm<'a> {
    /// A dense GEMM `D = A·Bᵀ` of 16-bit operands.
    pub fn half(a: &'a Tensor, b: &'a Tensor, d: &'a Tensor) -> Gemm<'a> {
        Gemm {
            layout: GemmLayout::Nt,
            transpose: false,
            a,
            sfa: None,
            b,
            sfb: None,
            scale_blocks: [None; 2],
            fp4: false,
            tf32: false,
            c: Addend::None,
            d,
            grouping: Grouping::Dense,
            epilogue: None,
            d_scales: None,
        }
    }

    /// A dense GEMM `D = A·Bᵀ` of f32 operands that are multiplied as TF32.
    pub fn tf32(a: &'a Tensor, b: &'a Tensor, d: &'a Tensor) -> Gemm<'a> {
        Gemm { tf32: true, ..Gemm::half(a, b, d) }
    }

    /// A dense GEMM `D = A·Bᵀ` of FP8 operands with their scales.
    pub fn fp8(
        (a, sfa): (&'a Tensor, &'a Tensor),
        (b, sfb): (&'a Tensor, &'a Tensor),
        d: &'a Tensor,
    ) -> Self {
        Gemm { sfa: Some(sfa), sfb: Some(sfb), ..Gemm::half(a, b, d) }
    }

    /// The same of FP8 or FP4 operands.
    pub fn fp8_fp4(a: (&'a Tensor, &'a Tensor), b: (&'a Tensor, &'a Tensor), d: &'a Tensor) -> Self {
        Gemm { fp4: true, ..Gemm::fp8(a, b, d) }
    }

    /// The same with a fused epilogue.
    pub fn fused(self, epilogue: &'a Epilogue<'a>, d_scales: Option<(&'a Tensor, OutputFormat)>) -> Gemm<'a> {
        Gemm { epilogue: Some(epilogue), d_scales, ..self }
    }

    /// The description of the call.
    pub fn describe(&self) -> GemmDesc {
        GemmDesc {
            layout: self.layout,
            transpose: self.transpose,
            a: self.a.describe("a"),
            b: self.b.describe("b"),
            sfa: self.sfa.map(|sfa| sfa.describe("sfa")),
            sfb: self.sfb.map(|sfb| sfb.describe("sfb")),
            scale_blocks: self.scale_blocks,
            c: self.c.describe(self.d),
            d: self.d.describe("d"),
            grouping: match &self.grouping {
                Grouping::Dense => GroupingDesc::Dense,
                Grouping::Batched => GroupingDesc::Batched,
                Grouping::Summed => GroupingDesc::Summed,
                Grouping::MGrouped(groups) => GroupingDesc::MGrouped(groups.describe()),
                Grouping::KGrouped { groups, ks_host } => {
                    let unit = GemmDesc::k_unit(self.layout, self.a.dtype()) as usize;
                    let (name, ends) = match groups {
                        KGroupNumbers::Ks(_) => ("ks", None),
                        KGroupNumbers::Ends { alignment, .. } => ("ends", Some(*alignment)),
                    };
                    let host = ks_host.map(|ks| HostKs::new(ks, ends.unwrap_or(0).max(unit)));
                    let ks = groups.numbers().describe(name);
                    GroupingDesc::KGrouped(KGroupedDesc { ks, ends: ends.map(int), host })
                }
            },
            epilogue: self.epilogue.map(|epilogue| epilogue.describe(self.d_scales)),
        }
    }
}
