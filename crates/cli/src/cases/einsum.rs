//! Einsums of attention: the shapes of the peer's tests, as batched and summed GEMMs.

use std::fmt;

use oxigemm::{DType, GemmLayout};
use oxigemm_testkit::{AddendKind, BF16, FP8, Fill, GemmCase, GroupLayout, MGroups, OperandTypes};

/// Elements behind each row of a B that is part of a wider weight.
const WEIGHT_PADDING: usize = 128;

/// An einsum with its sizes.
#[derive(Clone, Copy, Debug)]
pub enum Einsum {
    /// `bhr,hdr->bhd`: tokens, heads, R and D.
    BhrHdr { types: OperandTypes, sizes: [usize; 4] },
    /// `bhd,hdr->bhr`, of BF16: tokens, heads, R and D.
    BhdHdr([usize; 4]),
    /// `bmk,bnk->mn`, of BF16: the batch that is summed, M, N and K, and the type of D. FP32 is added to.
    BmkBnk([usize; 4], DType),
}

impl Einsum {
    /// All cases.
    pub fn all() -> Vec<Einsum> {
        let tokens = [4, 32, 128, 512, 4096];
        let heads = [[128, 512, 128], [8, 4096, 1024]];
        let sizes: Vec<[usize; 4]> =
            heads.into_iter().flat_map(|[h, r, d]| tokens.map(|b| [b, h, r, d])).collect();
        let of = |types: OperandTypes| move |&sizes: &[usize; 4]| Einsum::BhrHdr { types, sizes };
        let mut all: Vec<Einsum> = sizes.iter().map(of(BF16)).collect();
        all.extend(sizes.iter().map(|&sizes| Einsum::BhdHdr(sizes)));
        all.extend(sizes.iter().filter(|[_, heads, ..]| *heads == 8).map(of(FP8)));
        for s in [129, 4096, 8192] {
            for [m, n, k] in [[128, 384, 128], [256, 256, 256], [384, 128, 384]] {
                all.extend([DType::F32, DType::Bf16].map(|d_type| Einsum::BmkBnk([s, m, n, k], d_type)));
            }
        }
        all
    }

    /// The GEMM that it is.
    pub fn gemm(&self) -> GemmCase {
        let fill = Fill::Rows;
        match *self {
            Einsum::BhrHdr { types, sizes: [b, h, r, d] } => {
                let padding = if types == BF16 { WEIGHT_PADDING * types.ab.size() / 16 } else { 0 };
                let case = GemmCase::m_grouped(types, heads(b, h), [d, r]);
                GemmCase { ab_padding: padding, fill, ..case }
            }
            Einsum::BhdHdr([b, h, r, d]) => {
                let case = GemmCase::m_grouped(BF16, heads(b, h), [r, d]);
                let ab_padding = WEIGHT_PADDING * BF16.ab.size() / 16;
                GemmCase { layout: GemmLayout::Nn, ab_padding, fill, ..case }
            }
            Einsum::BmkBnk([s, m, n, k], d_type) => {
                let addend = if d_type == DType::F32 { AddendKind::Inplace } else { AddendKind::None };
                GemmCase { d_type, addend, fill, ..GemmCase::summed(BF16, s, [m, n, k]) }
            }
        }
    }
}

/// A batch of heads whose rows are tokens: those of all heads lie together.
fn heads(tokens: usize, heads: usize) -> MGroups {
    MGroups { interleaved: true, ..MGroups::new(GroupLayout::All, vec![tokens; heads]) }
}

impl fmt::Display for Einsum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Einsum::BhrHdr { types, sizes: [b, h, r, d] } => {
                write!(f, "{types} bhr,hdr->bhd b{b} h{h} r{r} d{d}")
            }
            Einsum::BhdHdr([b, h, r, d]) => write!(f, "bf16 bhd,hdr->bhr b{b} h{h} r{r} d{d}"),
            Einsum::BmkBnk([s, m, n, k], d_type) => {
                write!(f, "bf16 bmk,bnk->mn s{s} m{m} n{n} k{k} {d_type}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxigemm::{Device, GemmOptions};
    use oxigemm_testkit::Effort;

    #[test]
    fn every_case_has_its_own_name_and_a_gemm_of_its_size() {
        let mut names: Vec<String> = Einsum::all().iter().map(Einsum::to_string).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        for case in Einsum::all() {
            let flops = match case {
                Einsum::BhrHdr { sizes, .. } | Einsum::BhdHdr(sizes) | Einsum::BmkBnk(sizes, _) => {
                    2.0 * sizes.iter().map(|x| *x as f64).product::<f64>()
                }
            };
            assert_eq!(case.gemm().flops(), flops, "{case}");
        }
    }

    /// Small ones, on the CPU: heads lie together, B is part of a wider weight, batches have no gaps.
    #[test]
    fn operands_lie_as_the_peer_has_them() {
        let cases = [
            Einsum::BhrHdr { types: BF16, sizes: [3, 2, 64, 32] },
            Einsum::BhdHdr([3, 2, 64, 32]),
            Einsum::BhrHdr { types: FP8, sizes: [3, 2, 256, 32] },
            Einsum::BmkBnk([3, 64, 64, 64], DType::F32),
        ];
        for case in cases {
            let mut gemm = case.gemm().on(&Device::cpu()).unwrap();
            gemm.run(&GemmOptions::default()).unwrap();
            assert!(gemm.judge(Effort::QUICK).unwrap().right, "{case}");
            match case {
                Einsum::BmkBnk(..) => assert_eq!(gemm.a.strides(), [64 * 64, 64, 1], "{case}"),
                Einsum::BhrHdr { types, sizes: [_, h, r, _] } => {
                    assert_eq!(gemm.a.strides(), [r, h * r, 1], "{case}");
                    let pitch = if types == BF16 { r + WEIGHT_PADDING } else { r };
                    assert_eq!(gemm.b.strides()[1], pitch, "{case}");
                }
                Einsum::BhdHdr([_, h, r, d]) => {
                    assert_eq!(gemm.a.strides(), [d, h * d, 1], "{case}");
                    assert_eq!(gemm.b.strides()[1], r + WEIGHT_PADDING, "{case}");
                }
            }
        }
    }
}
