//! MQA logits in `f64`.

use oxigemm_kernels::attention::TILE_KEYS;
use oxigemm_kernels::attention::paged_metadata::Config;
use rayon::prelude::*;

use crate::cast::decode_e2m1;
use crate::check::Logits;
use crate::error::Result;
use crate::parallel::{THREADS, refuse_interrupted};
use crate::tensor::Tensor;

/// `scale * sum over heads of relu(q[h] · key) * weights[h]` for one query and one key. NaN has no positive part but is
/// NaN, as in the kernels.
#[must_use]
pub fn mqa_logit<T: Copy + Into<f64>>(q: &[T], weights: &[f32], key: &[T], scale: f32) -> f64 {
    let heads = q.chunks(key.len()).zip(weights).map(|(head, &weight)| {
        let product: f64 = head.iter().zip(key).map(|(&a, &b)| a.into() * b.into()).sum();
        // Twice the positive part, and NaN of NaN: a maximum would be 0.
        (product + product.abs()) * (0.5 * f64::from(weight))
    });
    heads.sum::<f64>() * f64::from(scale)
}

/// Rows of FP4 as numbers: `row` bytes of two codes each, and a word of UE8M0 scales, the first in the lowest byte, each
/// for 32 numbers.
fn decode_fp4(codes: &[u8], scales: &[u8], row: usize) -> Vec<f64> {
    let rows = codes.chunks(row).zip(scales.chunks(4));
    rows.flat_map(|(codes, scales)| {
        codes.chunks(16).zip(scales).flat_map(|(codes, &scale)| {
            let scale = if scale == 0xff { f64::NAN } else { 2f64.powi(i32::from(scale) - 127) };
            codes
                .iter()
                .flat_map(move |&pair| [pair, pair >> 4].map(|code| f64::from(decode_e2m1(code)) * scale))
        })
    })
    .collect()
}

/// Rows of a tensor as numbers: of FP8, or of FP4 with these scales.
fn decode_rows(codes: &Tensor, fp4_scales: Option<&Tensor>) -> Result<Vec<f64>> {
    let row = codes.dims()[codes.dims().len() - 1];
    match fp4_scales {
        None => Ok(codes.to_vec_f32()?.into_iter().map(f64::from).collect()),
        Some(scales) => Ok(decode_fp4(&codes.to_bytes()?, &scales.to_bytes()?, row)),
    }
}

/// Which keys each query sees, of so many keys.
fn ranges(starts: &[i32], ends: &[i32], keys: usize) -> Vec<std::ops::Range<usize>> {
    let clamped = |bound: i32| (bound.max(0) as usize).min(keys);
    starts.iter().zip(ends).map(|(&start, &end)| clamped(start)..clamped(end).max(clamped(start))).collect()
}

/// [`fp8_mqa_logits`](crate::fp8_mqa_logits) or, where Q has scales, [`fp4_mqa_logits`](crate::fp4_mqa_logits) on tensors
/// of any device, whose arguments are right.
pub(crate) fn mqa_logits_tensors(
    (q, q_scales): (&Tensor, Option<&Tensor>),
    (kv, kv_scales): (&Tensor, &Tensor),
    weights: &Tensor,
    [starts, ends]: [&Tensor; 2],
    logits: &mut Tensor,
    form: Logits,
) -> Result<()> {
    let (keys, columns) = (kv.dims()[0], logits.dims()[1]);
    let heads = q.dims()[1];
    let (q, kv, scales) = match q_scales {
        None => (decode_rows(q, None)?, decode_rows(kv, None)?, kv_scales.to_vec_f32()?),
        Some(_) => (decode_rows(q, q_scales)?, decode_rows(kv, Some(kv_scales))?, vec![1.0; keys]),
    };
    let dim = kv.len() / keys;
    let row = heads * dim;
    let weights = weights.to_vec_f32()?;
    let ranges = ranges(&starts.to_vec()?, &ends.to_vec()?, keys);
    let mut values: Vec<f64> = logits.to_vec_f32()?.into_iter().map(f64::from).collect();
    let of_query = |(query, (values, range)): (usize, (&mut [f64], std::ops::Range<usize>))| {
        if form == Logits::Clean {
            values.fill(f64::NEG_INFINITY);
        }
        let first = if form == Logits::Compressed { range.start } else { 0 };
        for key in range {
            if let Some(value) = values.get_mut(key - first) {
                let (q, weights) = (&q[query * row..][..row], &weights[query * heads..][..heads]);
                *value = mqa_logit(q, weights, &kv[key * dim..][..dim], scales[key]);
            }
        }
    };
    THREADS.run(|interrupt| {
        values.par_chunks_mut(columns).zip(ranges).enumerate().try_for_each(|query| -> Result<()> {
            refuse_interrupted(interrupt)?;
            of_query(query);
            Ok(())
        })
    })?;
    logits.write_bytes(&logits.dtype().encode_f64(&values))
}

/// [`fp8_paged_mqa_logits`](crate::fp8_paged_mqa_logits) or, where Q has scales,
/// [`fp4_paged_mqa_logits`](crate::fp4_paged_mqa_logits) on tensors of any device, whose arguments are right. All logits
/// are computed, whatever the schedule says.
pub(crate) fn paged_mqa_logits_tensors(
    (q, q_scales): (&Tensor, Option<&Tensor>),
    kv_cache: &Tensor,
    weights: &Tensor,
    [context_lens, block_table]: [&Tensor; 2],
    logits: &mut Tensor,
    clean: bool,
) -> Result<()> {
    let &[_, next, heads, bytes] = q.dims() else { unreachable!("the check has counted the dimensions") };
    let &[pages, page_keys, ..] = kv_cache.dims() else {
        unreachable!("the check has counted the dimensions")
    };
    let (columns, table_pages) = (logits.dims()[1], block_table.dims()[1]);
    let per_query = context_lens.dims().len() == 2;
    let (lengths, table) = (context_lens.to_vec::<i32>()?, block_table.to_vec::<i32>()?);
    let (q, weights, cache) = (decode_rows(q, q_scales)?, weights.to_vec_f32()?, kv_cache.to_bytes()?);
    let (dtype, page_bytes) = (kv_cache.dtype(), page_keys * (bytes + 4));
    let row = heads * if q_scales.is_some() { 2 * bytes } else { bytes };
    // What a page reads as that does not exist.
    let zeros = vec![0; page_bytes];
    let mut values: Vec<f64> = logits.to_vec_f32()?.into_iter().map(f64::from).collect();
    let of_query = |(query, values): (usize, &mut [f64])| {
        let (sequence, nth) = (query / next, query % next);
        let length = match per_query {
            true => i64::from(lengths[query]),
            false => i64::from(lengths[sequence]) - (next - 1 - nth) as i64,
        };
        let length = (length.max(0) as usize).min(columns).min(table_pages * page_keys);
        if clean {
            values[length..].fill(f64::NEG_INFINITY);
        }
        let (q, weights) = (&q[query * row..][..row], &weights[query * heads..][..heads]);
        for (key, value) in values[..length].iter_mut().enumerate() {
            let page = table[sequence * table_pages + key / page_keys];
            let page = usize::try_from(page).ok().filter(|&page| page < pages);
            let page = page.map_or(&zeros[..], |page| &cache[page * page_bytes..][..page_bytes]);
            let at = key % page_keys;
            let (codes, scale) = (&page[at * bytes..][..bytes], &page[page_keys * bytes + at * 4..][..4]);
            let (key, scale) = match q_scales {
                None => {
                    let key = dtype.decode(codes).into_iter().map(f64::from).collect();
                    (key, f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]))
                }
                Some(_) => (decode_fp4(codes, scale, bytes), 1.0),
            };
            *value = mqa_logit(q, weights, &key, scale);
        }
    };
    THREADS.run(|interrupt| {
        values.par_chunks_mut(columns).enumerate().try_for_each(|query| -> Result<()> {
            refuse_interrupted(interrupt)?;
            of_query(query);
            Ok(())
        })
    })?;
    logits.write_bytes(&logits.dtype().encode_f64(&values))
}

/// [`get_paged_mqa_logits_metadata`](crate::get_paged_mqa_logits_metadata) on tensors of any device, whose arguments
/// are right.
pub(crate) fn paged_mqa_schedule_tensors(context_lens: &Tensor, schedule: &mut Tensor) -> Result<()> {
    let next = context_lens.dims().get(1).copied().unwrap_or(1);
    let lengths = context_lens.to_vec::<i32>()?;
    let longest = Config::max_length((lengths.len() / next) as u32);
    let tiles: Vec<u64> = lengths
        .chunks(next)
        .map(|lengths| lengths.iter().map(|&length| length.max(0) as u32).max().unwrap_or(0))
        .map(|length| length.min(longest).div_ceil(TILE_KEYS).into())
        .collect();
    let (total, parts) = (tiles.iter().sum::<u64>(), schedule.dims()[0] as u64 - 1);
    let entry = |part: u64| {
        let mut left = part * total / parts;
        let within = tiles.iter().position(|&tiles| {
            let within = left < tiles;
            left -= if within { 0 } else { tiles };
            within
        });
        match within {
            Some(sequence) => [sequence as i32, left as i32],
            None => [tiles.len() as i32, 0],
        }
    };
    let entries: Vec<i32> = (0..=parts).flat_map(entry).collect();
    schedule.write_bytes(bytemuck::cast_slice(&entries))
}
