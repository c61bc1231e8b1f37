//! The functions of a mixture of experts.

use oxigemm::{
    MoeExperts, MoeGroup, MoeGroupCall, MoeGroupShape, MoeProjection, MoeRouting, PermutedRows, Router,
    moe_forward, moe_forward_group, moe_forward_quantized, moe_gather, moe_group_scratch_bytes, moe_permute,
    moe_publish, moe_route, moe_scratch_bytes, moe_top_k, moe_unpermute, zero_padding_rows,
};

use super::*;

#[test]
fn permutation_and_back() {
    let s = Setup::new();
    let ids = Tensor::from_slice(&[1i32, 0, 1, 2, 0, 1], &[3, 2], &s.device).unwrap();
    let (tokens, groups) = (s.output(DType::I32, &[48]), s.output(DType::I32, &[48]));
    let (ends, places) = (s.output(DType::I32, &[3]), s.output(DType::I32, &[3, 2]));
    s.check("moe_permute", &[&tokens, &groups, &ends, &places], || {
        let to = PermutedRows {
            tokens: &mut tokens.clone(),
            groups: &mut groups.clone(),
            ends: &mut ends.clone(),
            places: &mut places.clone(),
        };
        moe_permute(&ids, 16, to, &s.launch)
    });
    let (rows, weights) = (s.normals(DType::Bf16, &[48, 64]), s.scales(&[3, 2]));
    let out = s.output(DType::Bf16, &[3, 64]);
    s.check("moe_unpermute", &[&out], || {
        moe_unpermute(&rows, &places, &weights, &mut out.clone(), &s.launch)
    });
    let x = s.normals(DType::Bf16, &[3, 64]);
    let gathered = s.output(DType::Bf16, &[48, 64]);
    s.check("moe_gather", &[&gathered], || moe_gather(&x, &tokens, &mut gathered.clone(), &s.launch));
    let d = s.output(DType::Bf16, &[48, 64]);
    s.check("zero_padding_rows", &[&d], || zero_padding_rows(&groups, 3, &mut d.clone(), &s.launch));
}

#[test]
fn the_router() {
    let s = Setup::new();
    let (x, gate) = (s.normals(DType::Bf16, &[5, 64]), s.normals(DType::Bf16, &[16, 64]));
    let (ids, weights) = (s.output(DType::I32, &[5, 4]), s.output(DType::F32, &[5, 4]));
    let router = Router::default();
    s.check("moe_route", &[&ids, &weights], || {
        moe_route(&x, &gate, &router, &mut ids.clone(), &mut weights.clone(), &s.gemm)
    });
    let logits = s.normals(DType::F32, &[5, 16]);
    s.check("moe_top_k", &[&ids, &weights], || {
        moe_top_k(&logits, &router, &mut ids.clone(), &mut weights.clone(), &s.launch)
    });
}

const TOKENS: usize = 5;
const TOPK: usize = 2;
const EXPERTS: usize = 3;
const INNER: usize = 128;
const OUTER: usize = 128;

/// Weights of experts, as bf16 or e4m3.
struct Weights {
    codes: [Tensor; 2],
    scales: Option<[Tensor; 2]>,
}

impl Weights {
    fn new(s: &Setup, dtype: DType) -> Weights {
        Weights {
            codes: [
                s.normals(dtype, &[EXPERTS, 2 * INNER, OUTER]),
                s.normals(dtype, &[EXPERTS, OUTER, INNER]),
            ],
            scales: (dtype == DType::E4m3).then(|| [s.scales(&[EXPERTS, 2, 1]), s.scales(&[EXPERTS, 1, 1])]),
        }
    }

    fn experts(&self) -> MoeExperts<'_> {
        let of = |nth: usize| MoeProjection {
            weight: &self.codes[nth],
            scales: self.scales.as_ref().map(|scales| &scales[nth]),
            bias: None,
        };
        MoeExperts::swiglu(of(0), of(1))
    }
}

#[test]
fn mixtures_on_one_gpu_and_in_a_group() {
    let s = Setup::new();
    let ids = Tensor::from_slice(&[1i32, 0, 1, 2, 0, 1, -1, 2, 2, 7], &[TOKENS, TOPK], &s.device).unwrap();
    let (x, weights) = (s.normals(DType::Bf16, &[TOKENS, OUTER]), s.scales(&[TOKENS, TOPK]));
    let routing = MoeRouting { ids: &ids, weights: &weights };
    let out = s.output(DType::Bf16, &[TOKENS, OUTER]);
    for dtype in [DType::Bf16, DType::E4m3] {
        let placed = Weights::new(&s, dtype);
        let experts = placed.experts();
        let bytes = moe_scratch_bytes([TOKENS, TOPK], [EXPERTS, INNER, OUTER], dtype);
        let scratch = s.output(DType::U8, &[bytes]);
        s.check(&format!("moe_forward of {dtype}"), &[&out], || {
            moe_forward(&x, &routing, &experts, &mut scratch.clone(), &mut out.clone(), &s.gemm)
        });
        if dtype == DType::E4m3 {
            let (codes, scales) = (s.normals(dtype, &[TOKENS, OUTER]), s.scales(&[TOKENS, 1]));
            s.check("moe_forward_quantized", &[&out], || {
                let (scratch, out) = (&mut scratch.clone(), &mut out.clone());
                moe_forward_quantized((&codes, &scales), &routing, &experts, scratch, out, &s.gemm)
            });
        }
        let shape = MoeGroupShape {
            ranks: 1,
            tokens: TOKENS,
            topk: TOPK,
            experts: EXPERTS,
            columns: OUTER,
            dtype,
            packed_scales: false,
        };
        let buffer = s.output(DType::U8, &[shape.buffer_bytes().unwrap()]);
        // SAFETY: the buffer lives as long as the group.
        let group = unsafe { MoeGroup::new(&s.device, &shape, 0, &[buffer.address()]).unwrap() };
        let [_, _, start, _] = shape.offsets().unwrap();
        let parts = [
            group.x().unwrap(),
            group.weights().unwrap(),
            buffer.part(start, DType::I32, &[2 * TOKENS * TOPK]).unwrap(),
        ];
        s.check(&format!("moe_publish of {dtype}"), &parts.each_ref(), || {
            moe_publish(&group, &x, &routing, 1.0, &s.launch)
        });
        let scratch = s.output(DType::U8, &[moe_group_scratch_bytes(&shape, INNER, None).unwrap()]);
        let call = MoeGroupCall { tokens: TOKENS, ..MoeGroupCall::default() };
        s.check(&format!("moe_forward_group of {dtype}"), &[&out], || {
            moe_forward_group(&group, &call, &experts, &mut scratch.clone(), &mut out.clone(), &s.gemm)
        });
        group.check().unwrap();
    }
}
