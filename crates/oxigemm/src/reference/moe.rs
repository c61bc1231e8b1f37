//! MoE permutation and unpermutation on the CPU.

use super::quantize::write_values;
use crate::error::Result;
use crate::tensor::Tensor;

/// The rows that choices need, where those of each expert begin at a multiple of the alignment.
pub(crate) fn rows_of(ids: &[i32], experts: usize, alignment: usize) -> usize {
    let mut counts = vec![0usize; experts];
    for &id in ids {
        if let Some(count) = usize::try_from(id).ok().and_then(|id| counts.get_mut(id)) {
            *count += 1;
        }
    }
    let last = counts.iter().rposition(|count| *count > 0);
    let padded = |(expert, &count): (usize, &usize)| match Some(expert) == last {
        true => count,
        false => count.next_multiple_of(alignment),
    };
    counts.iter().enumerate().map(padded).sum()
}

/// `moe_permute` of checked arguments, to tokens, groups, ends and places.
pub(crate) fn permute(ids: &Tensor, alignment: usize, to: [&mut Tensor; 4]) -> Result<()> {
    let of_token = ids.dims()[1];
    let (experts, capacity) = (to[2].len(), to[0].len());
    let ids: Vec<i32> = ids.to_vec()?;
    let mut tokens = vec![-1i32; capacity];
    let mut groups = vec![-1i32; capacity];
    let mut places = vec![-1i32; ids.len()];
    let mut ends = Vec::new();
    let mut next = 0;
    for expert in 0..experts as i32 {
        let mut row = next;
        for (i, _) in ids.iter().enumerate().filter(|(_, id)| **id == expert) {
            if row < capacity {
                (tokens[row], groups[row]) = ((i / of_token) as i32, expert);
                places[i] = row as i32;
            }
            row += 1;
        }
        ends.push(row.min(capacity) as i32);
        next = row.next_multiple_of(alignment);
    }
    for (tensor, values) in to.into_iter().zip([tokens, groups, ends, places]) {
        tensor.write_bytes(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())?;
    }
    Ok(())
}

/// The arguments have been checked.
pub(crate) fn unpermute(
    rows: &Tensor,
    places: &Tensor,
    weights: Option<&Tensor>,
    out: &mut Tensor,
) -> Result<()> {
    let (available, columns, of_token) = (rows.dims()[0], rows.dims()[1], places.dims()[1]);
    let (rows, places) = (rows.to_vec_f32()?, places.to_vec::<i32>()?);
    let weights = weights.map_or_else(|| Ok(vec![1.0; places.len()]), Tensor::to_vec_f32)?;
    let sum = |token: usize, column: usize| {
        (token * of_token..(token + 1) * of_token).fold(0f32, |sum, choice| {
            match usize::try_from(places[choice]).ok().filter(|place| *place < available) {
                Some(place) => rows[place * columns + column].mul_add(weights[choice], sum),
                // As a row of zeros.
                None => sum + 0.0,
            }
        })
    };
    let sums: Vec<f32> = (0..out.len()).map(|i| sum(i / columns, i % columns)).collect();
    write_values(out, &sums)
}

/// The arguments have been checked.
pub(crate) fn zero_padding(ids: &Tensor, groups: usize, d: &mut Tensor) -> Result<()> {
    let zeros = vec![0.0; d.dims()[1]];
    for (row, id) in ids.to_vec::<i32>()?.into_iter().enumerate() {
        if usize::try_from(id).is_err() || id as usize >= groups {
            d.select(row)?.write_f32(&zeros)?;
        }
    }
    Ok(())
}
