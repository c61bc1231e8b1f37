//! The gated experts of a mixture with quantized weights.

use super::Recipe;
use super::expert_gemms::{Projection, Projections, Rows};
use super::memory::{Buffers, Part, in_one_allocation};
use super::operand::{Conversion, Form, Operand, Use};
use super::recipe::LayerOptions;
use super::weight::{QuantizedWeight, WeightScales};
use crate::check::{RoutedTokens, check_routed};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::gemm::GemmOptions;
use crate::moe::{PermutedRows, moe_permute, moe_rows, moe_unpermute};
use crate::moe_experts::{ALIGNMENT, SortedCall};
use crate::tensor::{DType, Tensor};

use oxigemm_kernels::gemm::epilogue::Activation;

/// Gates and ups come in 128s, which share scales.
const HALF: usize = 128;

/// Experts of a mixture: `out[t] = sum over choices of weights[t, c] * down_e · (act(gate_e · x[t]) * (up_e · x[t]))`,
/// where `e = ids[t, c]`.
///
/// Codes, scales and biases of all experts lie in one allocation. A call is five kernels: the choices are permuted,
/// tokens gathered and quantized, multiplied with activation, gate and quantization in the epilogue, multiplied, and the
/// rows of each token added. The first call with more tokens than any before allocates buffers; any later one
/// allocates nothing and can be captured into a graph, which is replayed with other choices.
///
/// Used by one stream at a time; a clone shares the weights and has buffers of its own.
///
/// ```
/// use oxigemm::layers::{LayerOptions, QuantizedExperts, QuantizedWeight, Recipe};
/// use oxigemm::{DType, Device, GemmOptions, Tensor, random};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (experts, inner, outer) = (4, 128, 256);
/// let weight = |seed, n, k| {
///     QuantizedWeight::quantize(&random::normals(seed, experts * n * k), [experts, n, k], Recipe::Fp8)
/// };
/// let (gate_up, down) = (weight(1, 2 * inner, outer)?, weight(2, outer, inner)?);
/// let mut layer = QuantizedExperts::new(&gate_up, &down, &device, &LayerOptions::default())?;
///
/// let x = Tensor::from_f32(DType::Bf16, &random::normals(3, 3 * outer), &[3, outer], &device)?;
/// let ids = Tensor::from_slice(&[0i32, 2, 2, 3, 1, 0], &[3, 2], &device)?;
/// let weights = Tensor::from_slice(&[0.5f32; 6], &[3, 2], &device)?;
/// let mut out = Tensor::empty(DType::Bf16, &[3, outer], &device)?;
/// layer.forward(&x, &ids, &weights, &mut out, &GemmOptions::default())?;
/// assert!(out.to_vec_f32()?.iter().all(|x| x.is_finite()));
/// # Ok::<(), oxigemm::Error>(())
/// ```
#[derive(Debug)]
pub struct QuantizedExperts {
    dims: Dims,
    activation: Activation,
    memory: Tensor,
    gate_up: Projection,
    down: Projection,
    buffers: Buffers<Room>,
    /// The choices of a token that the buffers are for.
    topk: usize,
}

#[derive(Clone, Copy, Debug)]
struct Dims {
    experts: usize,
    inner: usize,
    outer: usize,
}

/// Buffers for the rows of some tokens.
#[derive(Debug)]
struct Room {
    tokens: Tensor,
    groups: Tensor,
    ends: Tensor,
    places: Tensor,
    rows: Rows,
    out: Tensor,
}

impl Clone for QuantizedExperts {
    fn clone(&self) -> Self {
        QuantizedExperts {
            memory: self.memory.clone(),
            gate_up: self.gate_up.clone(),
            down: self.down.clone(),
            buffers: Buffers::default(),
            ..*self
        }
    }
}

impl QuantizedExperts {
    /// Experts with SiLU: `gate_up` is `[E, 2·I, K]`, gates first, and `down` is `[E, K, I]`. I is a multiple of 128,
    /// K of 16.
    ///
    /// Where the scales of a recipe are finer than those of the grouped GEMMs, 128x128 on Hopper, the weights are
    /// converted: MXFP4 without loss wherever [`widen_mxfp4`](super::widen_mxfp4) can, all others by rounding. Where the
    /// tensor core applies scales, FP8, MXFP8 and MXFP4 are as they are, and NVFP4 is rounded to MXFP8. See
    /// [`conversions`](Self::conversions).
    ///
    /// # Errors
    /// [`Error::Shape`] for weights that do not fit each other, [`Error::DType`] for [`Nvfp4Weights::Bf16`]; as
    /// [`QuantizedLinear::new`](super::QuantizedLinear::new).
    ///
    /// [`Nvfp4Weights::Bf16`]: super::Nvfp4Weights::Bf16
    pub fn new(
        gate_up: &QuantizedWeight,
        down: &QuantizedWeight,
        device: &Device,
        options: &LayerOptions,
    ) -> Result<QuantizedExperts> {
        QuantizedExperts::with(gate_up, down, [None, None], Activation::Silu, device, options)
    }

    /// The same with biases, `[E, 2·I]` and `[E, K]`, and an activation of the gate.
    ///
    /// # Errors
    /// As [`new`](Self::new), and for biases of another length.
    pub fn with(
        gate_up: &QuantizedWeight,
        down: &QuantizedWeight,
        biases: [Option<&[f32]>; 2],
        activation: Activation,
        device: &Device,
        options: &LayerOptions,
    ) -> Result<QuantizedExperts> {
        let ([experts, both, outer], inner) = (gate_up.dims, gate_up.dims[1] / 2);
        if both == 0 || both % (2 * HALF) != 0 || outer % 16 != 0 {
            return Err(Error::Shape {
                argument: "gate_up",
                expected: "[E, 2·I, K] with an I that is a multiple of 128 and a K of 16".to_owned(),
                found: format!("{:?}", gate_up.dims),
            });
        }
        if down.dims != [experts, outer, inner] {
            return Err(Error::Shape {
                argument: "down",
                expected: format!("{:?}, as `gate_up` is {:?}", [experts, outer, inner], gate_up.dims),
                found: format!("{:?}", down.dims),
            });
        }
        for (bias, (argument, columns)) in biases.iter().zip([("gate_up_bias", both), ("down_bias", outer)]) {
            if bias.is_some_and(|bias| bias.len() != experts * columns) {
                return Err(Error::Shape {
                    argument,
                    expected: format!("{} numbers, {columns} for each expert", experts * columns),
                    found: format!("{} numbers", bias.map_or(0, <[f32]>::len)),
                });
            }
        }
        let (first, first_conversion) = gate_up.convert(device, Use::Experts, options)?;
        let (second, second_conversion) = down.convert(device, Use::Experts, options)?;
        let [bias_a, bias_b] = biases.map(|bias| DType::F32.encode(bias.unwrap_or(&[])));
        let bias_dims = |bias: Option<&[f32]>, n| if bias.is_some() { [experts, n] } else { [0, 0] };
        let (dims_a, dims_b) = (bias_dims(biases[0], both), bias_dims(biases[1], outer));
        let ([a, sfa], [b, sfb]) = (first.parts(), second.parts());
        let bias_part = |dims, bytes| Part { dtype: DType::F32, dims, bytes };
        let parts = [a, sfa, bias_part(&dims_a, &bias_a), b, sfb, bias_part(&dims_b, &bias_b)];
        let (memory, [codes, scales, bias, down_codes, down_scales, down_bias]) =
            in_one_allocation(parts, device)?;
        let gate_up = Projection {
            operand: first.on_device(codes, scales)?,
            bias: biases[0].is_some().then_some(bias),
            conversion: first_conversion,
        };
        let down = Projection {
            operand: second.on_device(down_codes, down_scales)?,
            bias: biases[1].is_some().then_some(down_bias),
            conversion: second_conversion,
        };
        let dims = Dims { experts, inner, outer };
        Ok(QuantizedExperts { dims, activation, memory, gate_up, down, buffers: Buffers::default(), topk: 0 })
    }

    /// E, I and K.
    #[must_use]
    pub fn dims(&self) -> [usize; 3] {
        [self.dims.experts, self.dims.inner, self.dims.outer]
    }

    /// How both weights are multiplied, and what they lost on the way.
    #[must_use]
    pub fn conversions(&self) -> [&Conversion; 2] {
        [&self.gate_up.conversion, &self.down.conversion]
    }

    /// Bytes of codes, scales and biases, without the gaps between them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        [&self.gate_up, &self.down]
            .iter()
            .map(|part| part.operand.bytes() + 4 * part.bias.as_ref().map_or(0, Tensor::len))
            .sum()
    }

    /// Both weights as they are multiplied, to be saved: in FP8 with scales of 128x128, or as a tensor core that applies
    /// scales reads them.
    ///
    /// # Errors
    /// What the device reports.
    pub fn weights(&self) -> Result<[QuantizedWeight; 2]> {
        let weight = |part: &Projection| {
            let Operand { form, codes, scales } = &part.operand;
            if let Form::BlockScaled(scaled) = form {
                return scaled.read(codes, scales);
            }
            let dims = codes.dims().try_into().expect("three dimensions");
            let scales = WeightScales::F32 { block: [128, 128], values: scales.to_vec()? };
            QuantizedWeight::from_parts(Recipe::Fp8, dims, codes.to_bytes()?, scales)
        };
        Ok([weight(&self.gate_up)?, weight(&self.down)?])
    }

    /// The experts of each token, in the stream of the options.
    ///
    /// | argument | shape | type | layout |
    /// |---|---|---|---|
    /// | `x` | `[T, K]` | bf16, f16 or f32 | rows of K, any pitch |
    /// | `ids` | `[T, C]` | i32: experts; any other number is none | contiguous |
    /// | `weights` | `[T, C]` | f32 | contiguous |
    /// | `out` | `[T, K]` | bf16 | contiguous |
    ///
    /// # Errors
    /// The first rule that an argument breaks, or what the device reports.
    pub fn forward(
        &mut self,
        x: &Tensor,
        ids: &Tensor,
        weights: &Tensor,
        out: &mut Tensor,
        options: &GemmOptions,
    ) -> Result<()> {
        let routed = RoutedTokens {
            x: x.describe("x"),
            ids: ids.describe("ids"),
            weights: weights.describe("weights"),
            out: out.describe("out"),
        };
        let types = [DType::Bf16, DType::F16, DType::F32];
        let [tokens, topk] = check_routed(&routed, self.dims.outer, &types, &self.memory.describe("layer"))?;
        if tokens * topk == 0 {
            return if out.is_empty() { Ok(()) } else { out.write_bytes(&vec![0; 2 * out.len()]) };
        }
        let (Dims { experts, inner, outer }, device) = (self.dims, self.memory.device());
        if topk != self.topk {
            self.buffers = Buffers::default();
            self.topk = topk;
        }
        let forms = [&self.gate_up, &self.down].map(|part| part.operand.form);
        let buffers = self.buffers.for_rows(tokens, |tokens| {
            let m = moe_rows(tokens, topk, experts, ALIGNMENT);
            let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, device);
            Ok(Room {
                tokens: new(DType::I32, &[m])?,
                groups: new(DType::I32, &[m])?,
                ends: new(DType::I32, &[experts])?,
                places: new(DType::I32, &[tokens, topk])?,
                rows: Rows::room_for(forms, m, [inner, outer], device)?,
                out: new(DType::Bf16, &[m, outer])?,
            })
        })?;
        let m = moe_rows(tokens, topk, experts, ALIGNMENT);
        let rows = |tensor: &Tensor| tensor.narrow(0, 0, m);
        let (mut of_rows, mut groups) = (rows(&buffers.tokens)?, rows(&buffers.groups)?);
        let (mut places, mut y) = (buffers.places.narrow(0, 0, tokens)?, rows(&buffers.out)?);
        let to = PermutedRows {
            tokens: &mut of_rows,
            groups: &mut groups,
            ends: &mut buffers.ends,
            places: &mut places,
        };
        moe_permute(ids, ALIGNMENT, to, &options.into())?;
        let call = SortedCall::new(&buffers.ends, tokens * topk, options);
        let weights_of =
            Projections { gate_up: &self.gate_up, down: &self.down, activation: self.activation };
        buffers.rows.run(x, m, &weights_of, &mut y, (&of_rows, &call))?;
        moe_unpermute(&y, &places, weights, out, &options.into())
    }
}
