//! A mixture of experts in one call: from hidden states and their choices to the combined output.

mod group;
mod group_call;
mod input;
mod scratch;

use crate::check::{RoutedTokens, check_routed};
use crate::error::Result;
use crate::gemm::GemmOptions;
use crate::layers::Recipe;
use crate::moe::{moe_permute, moe_unpermute};
use crate::moe_experts::{ALIGNMENT, Dims, MoeExperts, SortedCall};
use crate::tensor::{DType, Tensor};
use input::{Input, gather};
use scratch::{Plan, expect_scratch};

pub use group::{MoeGroup, MoeGroupShape};
pub use group_call::{MoeGroupCall, moe_forward_group, moe_group_scratch_bytes, moe_publish};

/// The experts that are chosen for tokens.
#[derive(Clone, Copy, Debug)]
pub struct MoeRouting<'a> {
    /// `[T, C]` i32, contiguous; a number that is no expert adds nothing.
    pub ids: &'a Tensor,
    /// `[T, C]` f32, contiguous.
    pub weights: &'a Tensor,
}

/// How many bytes [`moe_forward`] needs for so many tokens with so many choices each, and for weights of E, I and K of
/// this type.
///
/// ```
/// use oxigemm::{DType, moe_scratch_bytes};
///
/// let experts = [32, 2048, 7168];
/// assert!(moe_scratch_bytes([128, 8], experts, DType::E4m3) < moe_scratch_bytes([128, 8], experts, DType::Bf16));
/// ```
#[must_use]
pub fn moe_scratch_bytes(choices: [usize; 2], [experts, inner, outer]: [usize; 3], weight: DType) -> usize {
    Plan::new(Dims { experts, inner, outer }, weight == DType::Bf16, choices).bytes
}

/// Experts of a mixture: `out[t] = sum over choices of weights[t, c] * down_e · (act(gate_e · x[t]) * (up_e · x[t]))`,
/// where `e = ids[t, c]`, in the stream of the options.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `x` | `[T, K]` | bf16 | rows of K, any pitch |
/// | `routing` | `[T, C]` | i32 and f32 | contiguous |
/// | `scratch` | [`moe_scratch_bytes`] or more | u8 | contiguous; address a multiple of 16 bytes; of any content, but not uninitialized in the simulator |
/// | `out` | `[T, K]` | bf16 | contiguous |
///
/// Five kernels, of which none is launched twice: choices are permuted, tokens gathered and quantized, multiplied
/// with activation, gate and quantization in the epilogue, multiplied, and the rows of each token added. Nothing is
/// read back or allocated, so the call can be captured into a graph, which is replayed with other choices. Sums are in
/// the order of choices: results do not depend on how work is scheduled. An expert without tokens costs nothing.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{DType, Device, GemmOptions, MoeExperts, MoeProjection, MoeRouting, Tensor};
/// use oxigemm::{moe_forward, moe_scratch_bytes, random};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (tokens, experts, inner, outer) = (3, 4, 64, 128);
/// let new = |seed, dims: &[usize]| {
///     let count = dims.iter().product();
///     Tensor::from_f32(DType::Bf16, &random::normals(seed, count), dims, &device)
/// };
/// let (gate_up, down) = (new(1, &[experts, 2 * inner, outer])?, new(2, &[experts, outer, inner])?);
/// let of = |weight| MoeProjection { weight, scales: None, bias: None };
/// let weights = MoeExperts::swiglu(of(&gate_up), of(&down));
///
/// let ids = Tensor::from_slice(&[0i32, 2, 2, 3, 1, 0], &[tokens, 2], &device)?;
/// let factors = Tensor::from_slice(&[0.5f32; 6], &[tokens, 2], &device)?;
/// let routing = MoeRouting { ids: &ids, weights: &factors };
/// let bytes = moe_scratch_bytes([tokens, 2], [experts, inner, outer], DType::Bf16);
/// let mut scratch = Tensor::zeros(DType::U8, &[bytes], &device)?;
/// let (x, mut out) = (new(3, &[tokens, outer])?, Tensor::empty(DType::Bf16, &[tokens, outer], &device)?);
/// moe_forward(&x, &routing, &weights, &mut scratch, &mut out, &GemmOptions::default())?;
/// assert!(out.to_vec_f32()?.iter().all(|x| x.is_finite()));
///
/// // An engine that owns its memory gives addresses: a tensor of each costs no allocation of memory, and no copy.
/// // SAFETY: `out` stays alive until the call is done, and nobody else writes it.
/// let mut to = unsafe { Tensor::from_raw_parts(DType::Bf16, out.dims(), out.strides(), out.address(), &device)? };
/// moe_forward(&x, &routing, &weights, &mut scratch, &mut to, &GemmOptions::default())?;
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn moe_forward(
    x: &Tensor,
    routing: &MoeRouting<'_>,
    experts: &MoeExperts<'_>,
    scratch: &mut Tensor,
    out: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    forward(Input::Half(x), routing, experts, scratch, out, options)
}

/// [`moe_forward`] of tokens that are quantized already: `x` is `[T, K]` e4m3, `scales` `[T, ceil(K/128)]` f32, both
/// without gaps, and K a multiple of 16. Weights are e4m3 or FP4. For FP4 on Blackwell, `scales` may also be i32: four
/// UE8M0 scales of 32 columns each.
///
/// # Errors
/// As [`moe_forward`].
///
/// ```
/// use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8};
/// use oxigemm::{DType, Device, GemmOptions, MoeExperts, MoeProjection, MoeRouting, Tensor};
/// use oxigemm::{moe_forward_quantized, moe_scratch_bytes};
///
/// let device = Device::cpu();
/// let one = per_block_cast_to_fp8(&[0.5f32; 256 * 128], 256, 128, ScaleFormat::F32)?;
/// let gate_up = Tensor::from_bytes(DType::E4m3, &one.codes, &[1, 256, 128], &device)?;
/// let gate_up_scales = Tensor::from_slice(&one.scales, &[1, 2, 1], &device)?;
/// let down = Tensor::from_bytes(DType::E4m3, &one.codes[..128 * 128], &[1, 128, 128], &device)?;
/// let down_scales = Tensor::from_slice(&one.scales[..1], &[1, 1, 1], &device)?;
/// let experts = MoeExperts::swiglu(
///     MoeProjection { weight: &gate_up, scales: Some(&gate_up_scales), bias: None },
///     MoeProjection { weight: &down, scales: Some(&down_scales), bias: None },
/// );
/// let x = Tensor::from_bytes(DType::E4m3, &[0x38; 128], &[1, 128], &device)?; // ones
/// let scales = Tensor::from_slice(&[0.01f32], &[1, 1], &device)?;
/// let (ids, weights) = (Tensor::from_slice(&[0i32], &[1, 1], &device)?, Tensor::from_slice(&[1f32], &[1, 1], &device)?);
/// let mut scratch = Tensor::zeros(DType::U8, &[moe_scratch_bytes([1, 1], [1, 128, 128], DType::E4m3)], &device)?;
/// let mut out = Tensor::empty(DType::Bf16, &[1, 128], &device)?;
/// let routing = MoeRouting { ids: &ids, weights: &weights };
/// moe_forward_quantized((&x, &scales), &routing, &experts, &mut scratch, &mut out, &GemmOptions::default())?;
/// let gate = 0.64f32; // 128 * 0.01 * 0.5
/// let expected = 128.0 * 0.5 * gate / (1.0 + (-gate).exp()) * gate;
/// assert!((out.to_vec_f32()?[0] / expected - 1.0).abs() < 0.05);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn moe_forward_quantized(
    (x, scales): (&Tensor, &Tensor),
    routing: &MoeRouting<'_>,
    experts: &MoeExperts<'_>,
    scratch: &mut Tensor,
    out: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    forward(Input::Quantized(x, scales), routing, experts, scratch, out, options)
}

fn forward(
    input: Input<'_>,
    routing: &MoeRouting<'_>,
    experts: &MoeExperts<'_>,
    scratch: &mut Tensor,
    out: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let dims = experts.dims()?;
    let tokens = RoutedTokens {
        x: input.x().describe("x"),
        ids: routing.ids.describe("ids"),
        weights: routing.weights.describe("weights"),
        out: out.describe("out"),
    };
    let weights = experts.gate_up.weight.describe("gate_up");
    let [tokens, topk] = check_routed(&tokens, dims.outer, &[input.dtype()], &weights)?;
    if tokens == 0 {
        return Ok(());
    }
    input.check(experts)?;
    let plan = Plan::new(dims, experts.is_half(), [tokens, topk]);
    expect_scratch(scratch, plan.bytes, "moe_scratch_bytes", &weights)?;
    let mut rows = plan.rows(scratch, input.scales())?;
    moe_permute(routing.ids, ALIGNMENT, rows.lists(), &options.into())?;
    let format = Recipe::Fp8.scale_format(out.device())?;
    let call = SortedCall::new(&rows.ends, tokens * topk, options);
    match input {
        Input::Half(x) => call.gather(x, &rows.tokens, &rows.sorted, format)?,
        Input::Quantized(x, scales) => gather(x, scales, &rows, &options.into())?,
    }
    call.multiply(experts, &rows.sorted, &rows.out, format)?;
    moe_unpermute(&rows.out, &rows.places, routing.weights, out, &options.into())
}
