//! Checks of MoE permutation, unpermutation and padding rows.

use oxigemm_kernels::quantize::moe_permute::{MAX_EXPERTS, PermuteArgs};
use oxigemm_kernels::quantize::{Args, Flags};

use super::Operand;
use crate::check::int;
use crate::error::{Error, Result};
use crate::tensor::DType;
use crate::tensor::desc::Footprint;

/// Choices and rows are counted in 31 bits.
const LIMIT: i64 = 1 << 30;

/// The arguments of `moe_permute`.
#[derive(Clone, Copy, Debug)]
pub struct MoePermute {
    /// `[T, topk]` i32, without gaps.
    pub ids: Operand,
    /// Where a group may begin: a multiple of 1, 16, 32, 64 or 128.
    pub alignment: usize,
    /// `[M]` i32.
    pub tokens: Operand,
    /// `[M]` i32.
    pub groups: Operand,
    /// `[E]` i32.
    pub ends: Operand,
    /// `[T, topk]` i32, without gaps.
    pub places: Operand,
}

/// The arguments of `moe_unpermute`.
#[derive(Clone, Copy, Debug)]
pub struct MoeUnpermute {
    /// `[M, K]` bf16, row-major.
    pub rows: Operand,
    /// `[T, topk]` i32, without gaps.
    pub places: Operand,
    /// `[T, topk]` f32, without gaps; where there are none, all are 1.
    pub weights: Option<Operand>,
    /// `[T, K]` bf16, row-major.
    pub out: Operand,
    /// Whether tokens without rows stay as they are.
    pub chosen_only: bool,
}

/// The arguments of `zero_padding_rows`.
#[derive(Clone, Copy, Debug)]
pub struct PaddingRows {
    /// `[M]` i32.
    pub ids: Operand,
    /// How many groups there are.
    pub groups: usize,
    /// `[M, N]` bf16, f16 or f32, row-major.
    pub d: Operand,
}

/// What goes into a mixture, and what comes out of it.
#[derive(Clone, Copy, Debug)]
pub struct RoutedTokens {
    /// `[T, K]`.
    pub x: Operand,
    /// `[T, C]` i32.
    pub ids: Operand,
    /// `[T, C]` f32.
    pub weights: Operand,
    /// `[T, K]` bf16.
    pub out: Operand,
}

/// How many tokens there are for experts of K columns beside their weights, and choices of each.
///
/// # Errors
/// The first broken rule, with the argument that breaks it.
pub fn check_routed(
    tokens: &RoutedTokens,
    columns: usize,
    types: &[DType],
    beside: &Operand,
) -> Result<[usize; 2]> {
    let RoutedTokens { x, ids, weights, out } = tokens;
    x.expect_dtype(types)?;
    ids.expect_dtype(&[DType::I32])?;
    weights.expect_dtype(&[DType::F32])?;
    out.expect_dtype(&[DType::Bf16])?;
    let ([count, found], columns) = (x.matrix_dims()?, int(columns));
    if found != columns {
        return Err(x.wrong_shape([count, columns], "with the K of the experts"));
    }
    let [rows, of_token] = ids.matrix_dims()?;
    if rows != count {
        return Err(ids.wrong_shape([count, of_token], "choices for each row of `x`"));
    }
    if weights.matrix_dims()? != [count, of_token] {
        return Err(weights.wrong_shape([count, of_token], "the shape of `ids`"));
    }
    if out.matrix_dims()? != [count, columns] {
        return Err(out.wrong_shape([count, columns], "the shape of `x`"));
    }
    for operand in [x, ids, weights, out] {
        operand.expect_device(beside)?;
    }
    Ok([count as usize, of_token as usize])
}

impl MoePermute {
    /// Checks every rule of the call; nothing has to be done where there are no choices, rows and experts.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Option<PermuteArgs>> {
        let MoePermute { ids, alignment, tokens, groups, ends, places } = self;
        for operand in [ids, tokens, groups, ends, places] {
            operand.expect_dtype(&[DType::I32])?;
        }
        let [count, of_token] = ids.matrix_dims()?;
        if places.matrix_dims()? != [count, of_token] {
            return Err(places.wrong_shape([count, of_token], "the shape of `ids`"));
        }
        let experts = list_length(ends)?;
        let rows = list_length(tokens)?;
        if list_length(groups)? != rows {
            return Err(groups.wrong_shape([rows], "the length of `tokens`"));
        }
        if experts > i64::from(MAX_EXPERTS) {
            return Err(ends.too_large(format!("at most {MAX_EXPERTS} experts")));
        }
        if ![1, 16, 32, 64, 128].contains(alignment) {
            return Err(Error::Shape {
                argument: "alignment",
                expected: "1, 16, 32, 64 or 128".to_owned(),
                found: alignment.to_string(),
            });
        }
        if count * of_token >= LIMIT {
            return Err(ids.too_large(format!("fewer than {LIMIT} choices")));
        }
        if rows >= LIMIT {
            return Err(tokens.too_large(format!("fewer than {LIMIT} rows")));
        }
        for operand in [tokens, groups, ends, places] {
            operand.expect_device(ids)?;
        }
        if experts == 0 {
            return match count * of_token == 0 && rows == 0 {
                true => Ok(None),
                false => Err(ends.wrong_shape("[1] or more", "one for each expert")),
            };
        }
        // Each apart from those before it, of which the first is read.
        let all = [ids, tokens, groups, ends, places];
        for (i, operand) in all.into_iter().enumerate() {
            let Some(memory) = contiguous(operand)? else { continue };
            for other in &all[..i] {
                if let Some(other_memory) = contiguous(other)? {
                    operand.expect_apart(&memory, other, &other_memory)?;
                }
            }
        }
        Ok(Some(PermuteArgs {
            ids: ids.address,
            choices: (count * of_token) as u32,
            top_k: of_token as u32,
            experts: experts as u32,
            alignment_shift: alignment.trailing_zeros(),
            rows: rows as u32,
            tokens: tokens.address,
            groups: groups.address,
            ends: ends.address,
            places: places.address,
        }))
    }
}

impl MoeUnpermute {
    /// Checks every rule of the call; nothing has to be done where there are no tokens or columns.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Option<Args>> {
        let MoeUnpermute { rows, places, weights, out, chosen_only } = self;
        rows.expect_dtype(&[DType::Bf16])?;
        out.expect_dtype(&[DType::Bf16])?;
        places.expect_dtype(&[DType::I32])?;
        let [count, of_token] = places.matrix_dims()?;
        if let Some(weights) = weights {
            weights.expect_dtype(&[DType::F32])?;
            if weights.matrix_dims()? != [count, of_token] {
                return Err(weights.wrong_shape([count, of_token], "the shape of `places`"));
            }
        }
        let [available, columns] = rows.matrix_dims()?;
        if out.matrix_dims()? != [count, columns] {
            return Err(out.wrong_shape([count, columns], "the tokens of `places`, the columns of `rows`"));
        }
        for operand in [Some(places), weights.as_ref(), Some(out)].into_iter().flatten() {
            operand.expect_device(rows)?;
        }
        if count == 0 || columns == 0 {
            return Ok(None);
        }
        if count * of_token >= LIMIT || count * ((columns + 7) / 8) >= LIMIT {
            return Err(out.too_large(format!("fewer than {LIMIT} chunks of eight elements")));
        }
        let (out_pitch, out_memory) = out.plain_rows()?;
        let rows_memory = if available == 0 { None } else { Some(rows.plain_rows()?) };
        if let Some((_, memory)) = &rows_memory {
            out.expect_apart(&out_memory, rows, memory)?;
        }
        for operand in [Some(places), weights.as_ref()].into_iter().flatten() {
            if let Some(memory) = contiguous(operand)? {
                out.expect_apart(&out_memory, operand, &memory)?;
            }
        }
        let rows_pitch = rows_memory.map_or(0, |(pitch, _)| pitch);
        let whole = columns % 8 == 0
            && rows_pitch.is_multiple_of(8)
            && (count <= 1 || out_pitch.is_multiple_of(8))
            && rows.address.is_multiple_of(16)
            && out.address.is_multiple_of(16);
        Ok(Some(Args {
            x: rows.address,
            codes: out.address,
            scales: weights.map_or(0, |weights| weights.address),
            aux: places.address,
            dims: [count as u32, columns as u32],
            // plain_rows has bounded both by u32::MAX.
            x_pitch: rows_pitch as u32,
            codes_pitch: out_pitch as u32,
            shifts: [of_token as u32, 0],
            source_rows: available.min(LIMIT) as u32,
            flags: if whole { Flags::VECTORS } else { 0 }
                | if weights.is_none() { Flags::UNWEIGHTED } else { 0 }
                | if *chosen_only { Flags::CHOSEN_ONLY } else { 0 },
            ..Args::default()
        }))
    }
}

impl PaddingRows {
    /// Checks every rule of the call; nothing has to be done where there are no rows or columns.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Option<Args>> {
        let PaddingRows { ids, groups, d } = self;
        ids.expect_dtype(&[DType::I32])?;
        d.expect_dtype(&[DType::Bf16, DType::F16, DType::F32])?;
        let [rows, columns] = d.matrix_dims()?;
        if list_length(ids)? != rows {
            return Err(ids.wrong_shape([rows], "the rows of `d`"));
        }
        d.expect_device(ids)?;
        if rows == 0 || columns == 0 {
            return Ok(None);
        }
        let (pitch, memory) = d.plain_rows()?;
        if let Some(read) = contiguous(ids)? {
            d.expect_apart(&memory, ids, &read)?;
        }
        let size = d.dtype.size() as u64;
        let (Ok(width), Ok(pitch)) = (u32::try_from(columns as u64 * size), u32::try_from(pitch * size))
        else {
            return Err(d.too_large(format!("rows of at most {} bytes", u32::MAX)));
        };
        let whole = width.is_multiple_of(16) && pitch.is_multiple_of(16) && d.address.is_multiple_of(16);
        Ok(Some(Args {
            aux: ids.address,
            codes: d.address,
            dims: [rows as u32, width],
            codes_pitch: pitch,
            // More than a group's number can be is as good as that.
            source_rows: (*groups).min(LIMIT as usize) as u32,
            flags: if whole { Flags::VECTORS } else { 0 },
            ..Args::default()
        }))
    }
}

/// The length of a list.
pub(super) fn list_length(list: &Operand) -> Result<i64> {
    list.expect_rank(1, "a list")?;
    list.expect_list(list.dims[0])?;
    Ok(list.dims[0])
}

/// The bytes of a list, or of a matrix whose rows have no gaps; none where it is empty.
pub(super) fn contiguous(operand: &Operand) -> Result<Option<Footprint>> {
    let as_list = match operand.rank {
        1 => operand.list(),
        _ => {
            let [rows, columns, ..] = operand.dims;
            let wrong = rows > 1 && columns > 0 && operand.strides[0] != columns;
            if wrong {
                return Err(operand.wrong_strides("rows without gaps".to_owned()));
            }
            let whole = Operand { rank: 2, dims: [1, rows * columns, 1, 1], ..*operand };
            Operand { strides: [rows * columns, operand.strides[1], 1, 1], ..whole }
        }
    };
    if as_list.dims[1] == 0 {
        return Ok(None);
    }
    as_list.plain_rows().map(|(_, memory)| Some(memory))
}
