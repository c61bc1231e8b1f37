//! FP4 operands of an indexer: codes, and words of scales.

use super::{Odd, Paged, Prefill, room, rows, weights};
use oxigemm::{DType, Device, GemmOptions, Tensor, fp4_mqa_logits, random};

/// Any codes.
fn codes(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|i| random::bits(seed, i) as u8).collect()
}

/// Words of scales of some powers of two; the bytes that a head of 64 does not use are NaN.
fn words(seed: u64, count: usize, dim: usize) -> Vec<[u8; 4]> {
    let byte = |i: usize, nth: usize| match 32 * nth < dim {
        true => 118 + (random::bits(seed, (4 * i + nth) as u64) % 10) as u8,
        false => 0xff,
    };
    (0..count).map(|i| [0, 1, 2, 3].map(|nth| byte(i, nth))).collect()
}

const NAN: u8 = 0xff;

/// Queries of such dimensions, the last of which counts elements, and their scales.
pub fn queries(dims: &[usize], odd: &[Odd], device: &Device) -> (Tensor, Tensor) {
    let (dim, heads) = (dims[dims.len() - 1], dims[dims.len() - 2]);
    let rows: usize = dims[..dims.len() - 1].iter().product();
    let mut scales = words(21, rows, dim);
    for odd in odd {
        if let Odd::Query(query) = odd {
            scales[query * heads][1] = NAN;
        }
    }
    let mut bytes = dims.to_vec();
    bytes[dims.len() - 1] = dim / 2;
    let q = Tensor::from_bytes(DType::U8, &codes(22, rows * dim / 2), &bytes, device).unwrap();
    let scales =
        Tensor::from_bytes(DType::I32, scales.as_flattened(), &dims[..dims.len() - 1], device).unwrap();
    (q, scales)
}

/// The logits of a prefill and what lies in the gaps between their rows.
pub fn prefill(case: &Prefill, device: &Device) -> Tensor {
    let Prefill { heads, dim, keys, form, columns, dtype, gap, ref odd, ref ranges, .. } = *case;
    let queries = ranges.len();
    let (mut scales, mut factors) = (words(23, keys, dim), random::normals(4, queries * heads));
    for odd in odd {
        match *odd {
            Odd::Key(key) => scales[key][0] = NAN,
            Odd::Weight([query, head], weight) => factors[query * heads + head] = weight,
            Odd::Query(_) | Odd::Scale(..) => {}
        }
    }
    let (q, q_scales) = self::queries(&[queries, heads, dim], odd, device);
    let kv = rows(DType::U8, &codes(24, keys * dim / 2), [keys, dim / 2], 16 * gap, device);
    let scales = Tensor::from_bytes(DType::I32, scales.as_flattened(), &[keys], device).unwrap();
    let weights = weights(&factors, [queries, heads], gap, device);
    let [mut logits, room] = room(dtype, [queries, columns], gap, device);
    let ([starts, ends], options) = (case.bounds(device), GemmOptions::default());
    let (q, kv) = ((&q, &q_scales), (&kv, &scales));
    fp4_mqa_logits(q, kv, &weights, [&starts, &ends], &mut logits, form, &options).unwrap();
    room
}

/// The cache of a decode step, whose pages may be apart.
pub fn cache(case: &Paged, device: &Device) -> Tensor {
    let Paged { dim, page_keys, pages, gap, .. } = *case;
    let bytes = dim / 2 + 4;
    let page = |i: usize| {
        let mut scales = words(1000 + i as u64, page_keys, dim);
        for odd in case.odd.iter().filter(|_| i == 0) {
            if let Odd::Key(key) = *odd {
                scales[key][0] = NAN;
            }
        }
        let codes = codes(10 + i as u64, page_keys * dim / 2);
        [codes, scales.as_flattened().to_vec(), vec![0xff; 16 * gap * bytes]].concat()
    };
    let all: Vec<u8> = (0..pages).flat_map(page).collect();
    let dims = [pages, page_keys + 16 * gap, 1, bytes];
    Tensor::from_bytes(DType::U8, &all, &dims, device).unwrap().narrow(1, 0, page_keys).unwrap()
}
