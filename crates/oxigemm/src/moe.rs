//! Mixture of experts: permutation of tokens by expert, and back.

use oxigemm_kernels::quantize::moe_permute::unpermute_launch;
use oxigemm_kernels::quantize::{Config, zero_padding};

use crate::check::int;
use crate::check::{MoePermute, MoeUnpermute, Operand, PaddingRows};
use crate::device::{Device, DeviceId};
use crate::error::Result;
use crate::launch::{LaunchOptions, run_steps};
use crate::quantize::step;
use crate::reference::moe as on_cpu;
use crate::tensor::DType;
use crate::tensor::Tensor;

/// Where [`moe_permute`] writes; all are i32.
#[derive(Debug)]
pub struct PermutedRows<'a> {
    /// `[M]`: the token of each row, or -1. What [`gather_quantize`](crate::gather_quantize) takes.
    pub tokens: &'a mut Tensor,
    /// `[M]`: the expert of each row, or -1: [`GroupedRows::Ids`](crate::GroupedRows::Ids) of an m-grouped GEMM.
    pub groups: &'a mut Tensor,
    /// `[E]`: the row behind the last of each expert: [`GroupedRows::Ends`](crate::GroupedRows::Ends) of an
    /// m-grouped GEMM.
    pub ends: &'a mut Tensor,
    /// `[T, topk]`: the row of each choice, or -1. What [`moe_unpermute`] takes.
    pub places: &'a mut Tensor,
}

/// The most rows that [`moe_permute`] may need: some experts have to be rounded up.
///
/// ```
/// assert_eq!(oxigemm::moe_rows(100, 8, 4, 128), (800 + 4 * 127) / 128 * 128);
/// assert_eq!(oxigemm::moe_rows(2, 1, 256, 128), 2 * 128);
/// ```
#[must_use]
pub fn moe_rows(tokens: usize, topk: usize, experts: usize, alignment: usize) -> usize {
    let (choices, alignment) = (tokens * topk, alignment.max(1));
    // Each expert has a multiple of the alignment, and so have all.
    (choices + experts.min(choices) * (alignment - 1)) / alignment * alignment
}

/// Sorts tokens by the experts that are chosen for them: where each choice goes, and which token each row is.
///
/// `ids` is `[T, topk]` i32: experts from 0 to E - 1. Rows of an expert begin at a multiple of `alignment`, which is 1,
/// 16, 32, 64 or 128, and follow the order of tokens, and of the choices of a token. Rows that only round an expert up,
/// and those behind the last, are -1. An id that is no expert has no row, and its place is -1.
///
/// M must be large enough for these choices, and [`moe_rows`] says what always is. The CPU and the simulator refuse
/// one that is too small. A GPU, and a captured call, cannot tell: what has no row then has place -1.
///
/// One kernel, which needs no memory of its own. The choices are read by it alone: a captured call is replayed with
/// others.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{DType, Device, LaunchOptions, PermutedRows, Tensor, moe_permute, moe_rows};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let ids = Tensor::from_slice(&[1i32, 0, 1, 2, 0, 1], &[3, 2], &device)?; // three tokens, two experts each
/// let new = |dims: &[usize]| Tensor::empty(DType::I32, dims, &device);
/// let (mut tokens, mut groups) = (new(&[8])?, new(&[8])?);
/// let (mut ends, mut places) = (new(&[3])?, new(&[3, 2])?);
/// let to = PermutedRows { tokens: &mut tokens, groups: &mut groups, ends: &mut ends, places: &mut places };
/// moe_permute(&ids, 1, to, &LaunchOptions::default())?;
/// assert_eq!(tokens.to_vec::<i32>()?, [0, 2, 0, 1, 2, 1, -1, -1]);
/// assert_eq!(groups.to_vec::<i32>()?, [0, 0, 1, 1, 1, 2, -1, -1]);
/// assert_eq!(ends.to_vec::<i32>()?, [2, 5, 6]);
/// assert_eq!(places.to_vec::<i32>()?, [2, 0, 3, 5, 1, 4]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn moe_permute(
    ids: &Tensor,
    alignment: usize,
    to: PermutedRows<'_>,
    options: &LaunchOptions,
) -> Result<()> {
    let call = MoePermute {
        ids: ids.describe("ids"),
        alignment,
        tokens: to.tokens.describe("tokens"),
        groups: to.groups.describe("groups"),
        ends: to.ends.describe("ends"),
        places: to.places.describe("places"),
    };
    if ids.device().can_compare() && call.check()?.is_some() {
        let needed = on_cpu::rows_of(&ids.to_vec()?, to.ends.len(), alignment);
        if needed > to.tokens.len() {
            let expected = format!("[{needed}] or more, the rows of these choices");
            return Err(call.tokens.wrong_shape(expected, "padding included"));
        }
    }
    let reference = || match call.check()? {
        Some(_) => on_cpu::permute(ids, alignment, [to.tokens, to.groups, to.ends, to.places]),
        None => Ok(()),
    };
    // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
    ids.device()
        .run(options.stream.as_ref(), reference, |device| unsafe { run_permute(device, &call, options) })
}

/// Adds the rows that the choices of a token became, each with its weight: `out[t] = sum over k of weights[t, k] *
/// rows[places[t, k]]`.
///
/// `rows` is `[M, K]` bf16, `places` `[T, topk]` i32 as [`moe_permute`] writes them, `weights` `[T, topk]` f32 and
/// `out` `[T, K]` bf16. The sum is f32, in the order of the choices, and rounded once. A place that is no row adds
/// nothing.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{DType, Device, LaunchOptions, Tensor, moe_unpermute};
///
/// let device = Device::cpu();
/// let rows = Tensor::from_f32(DType::Bf16, &[1.0, 2.0, 10.0, 20.0], &[2, 2], &device)?;
/// let places = Tensor::from_slice(&[1i32, 0, -1, 0], &[2, 2], &device)?;
/// let weights = Tensor::from_f32(DType::F32, &[0.5, 2.0, 3.0, 1.0], &[2, 2], &device)?;
/// let mut out = Tensor::empty(DType::Bf16, &[2, 2], &device)?;
/// moe_unpermute(&rows, &places, &weights, &mut out, &LaunchOptions::default())?;
/// assert_eq!(out.to_vec_f32()?, [7.0, 14.0, 1.0, 2.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn moe_unpermute(
    rows: &Tensor,
    places: &Tensor,
    weights: &Tensor,
    out: &mut Tensor,
    options: &LaunchOptions,
) -> Result<()> {
    add_rows(rows, places, Some(weights), out, options)
}

/// Copies rows: `out[i] = x[rows[i]]`, and zeros where `rows[i]` is no row of `x`.
///
/// `x` is `[T, K]` bf16, `rows` `[M]` i32 such as [`PermutedRows::tokens`], `out` `[M, K]` bf16.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{DType, Device, LaunchOptions, Tensor, moe_gather};
///
/// let device = Device::cpu();
/// let x = Tensor::from_f32(DType::Bf16, &[1.0, 2.0, 10.0, 20.0], &[2, 2], &device)?;
/// let rows = Tensor::from_slice(&[1i32, -1, 0], &[3], &device)?;
/// let mut out = Tensor::empty(DType::Bf16, &[3, 2], &device)?;
/// moe_gather(&x, &rows, &mut out, &LaunchOptions::default())?;
/// assert_eq!(out.to_vec_f32()?, [10.0, 20.0, 0.0, 0.0, 1.0, 2.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn moe_gather(x: &Tensor, rows: &Tensor, out: &mut Tensor, options: &LaunchOptions) -> Result<()> {
    let list = rows.describe("rows");
    list.expect_rank(1, "a list")?;
    // A token with one choice each.
    let rows = rows.part(0, rows.dtype(), &[rows.len(), 1])?;
    add_rows(x, &rows, None, out, options)
}

/// The sums of rows, weighted where there are weights.
fn add_rows(
    rows: &Tensor,
    places: &Tensor,
    weights: Option<&Tensor>,
    out: &mut Tensor,
    options: &LaunchOptions,
) -> Result<()> {
    let names = if weights.is_some() { ["rows", "places"] } else { ["x", "rows"] };
    let call = MoeUnpermute {
        rows: rows.describe(names[0]),
        places: places.describe(names[1]),
        weights: weights.map(|weights| weights.describe("weights")),
        out: out.describe("out"),
        chosen_only: false,
    };
    let reference = || match call.check()? {
        Some(_) => on_cpu::unpermute(rows, places, weights, out),
        None => Ok(()),
    };
    // SAFETY: as in `moe_permute`.
    rows.device()
        .run(options.stream.as_ref(), reference, |device| unsafe { run_unpermute(device, &call, options) })
}

/// Makes the rows of D zero that belong to no group, which an m-grouped GEMM leaves as they are.
///
/// `ids` is `[M]` i32, as [`GroupedRows::Ids`](crate::GroupedRows::Ids) has them: the group of each row. Whatever is
/// not from 0 to `groups - 1` is no group. D is `[M, N]` bf16, f16 or f32. Only these rows are written, so the call may
/// stand before the GEMM or after it.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{DType, Device, LaunchOptions, Tensor, zero_padding_rows};
///
/// let device = Device::cpu();
/// let ids = Tensor::from_slice(&[0i32, -1, 1, 2], &[4], &device)?; // of two groups
/// let mut d = Tensor::from_f32(DType::Bf16, &[7.0; 8], &[4, 2], &device)?;
/// zero_padding_rows(&ids, 2, &mut d, &LaunchOptions::default())?;
/// assert_eq!(d.to_vec_f32()?, [7.0, 7.0, 0.0, 0.0, 7.0, 7.0, 0.0, 0.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn zero_padding_rows(ids: &Tensor, groups: usize, d: &mut Tensor, options: &LaunchOptions) -> Result<()> {
    let call = PaddingRows { ids: ids.describe("ids"), groups, d: d.describe("d") };
    let device = d.device().clone();
    let reference = || match call.check()? {
        Some(_) => on_cpu::zero_padding(ids, groups, d),
        None => Ok(()),
    };
    // SAFETY: as in `moe_permute`.
    device.run(options.stream.as_ref(), reference, |device| unsafe { run_padding(device, &call, options) })
}

/// A [`zero_padding_rows`] on memory that the caller owns.
#[derive(Clone, Copy, Debug)]
pub struct RawPaddingRows {
    /// How many rows there are.
    pub rows: usize,
    /// Columns of D.
    pub columns: usize,
    /// How many groups there are.
    pub groups: usize,
    /// Address of the group of each row.
    pub ids: u64,
    /// Address of D.
    pub d: u64,
    /// The type of its elements.
    pub d_type: DType,
    /// Elements from a row of D to the next.
    pub d_pitch: usize,
}

/// [`zero_padding_rows`] on memory that the caller owns. The device is a GPU or the simulator.
///
/// # Safety
/// As for [`gemm_raw`](crate::gemm_raw).
///
/// # Errors
/// As [`zero_padding_rows`]. The CPU is refused: it has tensors only.
pub unsafe fn zero_padding_rows_raw(
    device: &Device,
    call: &RawPaddingRows,
    options: &LaunchOptions,
) -> Result<()> {
    let id = device.id();
    let dims = [call.rows, call.columns].map(int);
    let described = PaddingRows {
        ids: dense(("ids", DType::I32), &[call.rows], call.ids, id),
        groups: call.groups,
        d: Operand::new(("d", call.d_type), &dims, &[int(call.d_pitch), 1], (call.d, id)),
    };
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_padding(device, &described, options) }
}

/// A [`moe_permute`] on memory that the caller owns.
#[derive(Clone, Copy, Debug)]
pub struct RawMoePermute {
    /// How many tokens there are.
    pub token_count: usize,
    /// Choices of each.
    pub topk: usize,
    /// Address of the choices.
    pub ids: u64,
    /// How many experts there are.
    pub experts: usize,
    /// Where the rows of an expert may begin.
    pub alignment: usize,
    /// How many rows the outputs have.
    pub rows: usize,
    /// Address of the token of each row.
    pub tokens: u64,
    /// Address of the expert of each row.
    pub groups: u64,
    /// Address of the end of each expert.
    pub ends: u64,
    /// Address of the place of each choice.
    pub places: u64,
}

/// [`moe_permute`] on memory that the caller owns. The device is a GPU or the simulator.
///
/// # Safety
/// As for [`gemm_raw`](crate::gemm_raw).
///
/// # Errors
/// As [`moe_permute`]. The CPU is refused: it has tensors only.
pub unsafe fn moe_permute_raw(device: &Device, call: &RawMoePermute, options: &LaunchOptions) -> Result<()> {
    let id = device.id();
    let list = |name, length: usize, address| dense((name, DType::I32), &[length], address, id);
    let choices = |name, address| dense((name, DType::I32), &[call.token_count, call.topk], address, id);
    let described = MoePermute {
        ids: choices("ids", call.ids),
        alignment: call.alignment,
        tokens: list("tokens", call.rows, call.tokens),
        groups: list("groups", call.rows, call.groups),
        ends: list("ends", call.experts, call.ends),
        places: choices("places", call.places),
    };
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_permute(device, &described, options) }
}

/// A [`moe_unpermute`] on memory that the caller owns, where no rows have gaps.
#[derive(Clone, Copy, Debug)]
pub struct RawMoeUnpermute {
    /// How many tokens there are.
    pub token_count: usize,
    /// Choices of each.
    pub topk: usize,
    /// How many rows there are.
    pub row_count: usize,
    /// Columns of the rows.
    pub columns: usize,
    /// Address of the rows.
    pub rows: u64,
    /// Address of the place of each choice.
    pub places: u64,
    /// Address of the weight of each choice.
    pub weights: u64,
    /// Address of the result.
    pub out: u64,
}

/// [`moe_unpermute`] on memory that the caller owns. The device is a GPU or the simulator.
///
/// # Safety
/// As for [`gemm_raw`](crate::gemm_raw).
///
/// # Errors
/// As [`moe_unpermute`]. The CPU is refused: it has tensors only.
pub unsafe fn moe_unpermute_raw(
    device: &Device,
    call: &RawMoeUnpermute,
    options: &LaunchOptions,
) -> Result<()> {
    let id = device.id();
    let choices = [call.token_count, call.topk];
    let described = MoeUnpermute {
        rows: dense(("rows", DType::Bf16), &[call.row_count, call.columns], call.rows, id),
        places: dense(("places", DType::I32), &choices, call.places, id),
        weights: Some(dense(("weights", DType::F32), &choices, call.weights, id)),
        out: dense(("out", DType::Bf16), &[call.token_count, call.columns], call.out, id),
        chosen_only: false,
    };
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_unpermute(device, &described, options) }
}

/// An operand without gaps.
fn dense(kind: (&'static str, DType), dims: &[usize], address: u64, device: DeviceId) -> Operand {
    let dims: Vec<i64> = dims.iter().copied().map(int).collect();
    let strides: Vec<i64> =
        (0..dims.len()).map(|i| dims[i + 1..].iter().fold(1, |a: i64, b| a.saturating_mul(*b))).collect();
    Operand::new(kind, &dims, &strides, (address, device))
}

/// # Safety
/// As for [`moe_permute_raw`].
pub(crate) unsafe fn run_permute(device: &Device, call: &MoePermute, options: &LaunchOptions) -> Result<()> {
    let Some(args) = call.check()? else { return Ok(()) };
    let only = step(device, Config::MoePermute, args.launch())?;
    // SAFETY: the check has compared the operands with the arguments; the caller keeps them.
    unsafe { run_steps(device, std::iter::once(only), options) }
}

/// # Safety
/// As for [`moe_unpermute_raw`].
pub(crate) unsafe fn run_unpermute(
    device: &Device,
    call: &MoeUnpermute,
    options: &LaunchOptions,
) -> Result<()> {
    let Some(args) = call.check()? else { return Ok(()) };
    let only = step(device, Config::MoeUnpermute, unpermute_launch(&args))?;
    // SAFETY: the check has compared the operands with the arguments; the caller keeps them.
    unsafe { run_steps(device, std::iter::once(only), options) }
}

/// # Safety
/// As for [`zero_padding_rows_raw`].
unsafe fn run_padding(device: &Device, call: &PaddingRows, options: &LaunchOptions) -> Result<()> {
    let Some(args) = call.check()? else { return Ok(()) };
    let only = step(device, Config::ZeroPadding, zero_padding::launch(&args))?;
    // SAFETY: the check has compared the operands with the arguments; the caller keeps them.
    unsafe { run_steps(device, std::iter::once(only), options) }
}
