//! A linear layer with quantized weights.

use super::activations::QuantizedRows;
use super::memory::{Buffers, Part, in_one_allocation};
use super::operand::{BlockScaled, Conversion, Form, Operand, Use};
use super::recipe::{LayerOptions, Recipe};
use super::weight::{MX_BLOCK, QuantizedWeight, WeightScales};
use crate::cast::ScaleFormat;
use crate::check::Granularity;
use crate::check::gemm::tensors::Addend;
use crate::check::gemm::tensors::epilogue::{Epilogue, FusedOutput};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::gemm::GemmOptions;
use crate::gemm::names::{bf16_gemm_nt_fused, fp8_gemm_nt, fp8_gemm_nt_fused};
use crate::quantize::{quantize, tma_aligned_scales};
use crate::tensor::{DType, Element, Tensor};

use oxigemm_kernels::gemm::params::ScaleBlock;

/// Rows of FP8 operands begin at multiples of so many bytes, as TMA needs it.
const PITCH: usize = 16;

/// `out = x · Wᵀ + bias` with quantized weights.
///
/// Codes, scales and bias lie in one allocation, as the kernels read them. A call is two kernels: one quantizes `x`, with
/// scales where the other reads them; that one multiplies and adds the bias. (Weights in BF16 need the second only.) The first call with more rows than any
/// before allocates buffers of activations; any later one allocates nothing and can be captured into a graph.
///
/// A layer is used by one stream at a time, as it keeps its buffers. A clone shares the weights and has buffers of its
/// own, for another stream.
///
/// See [`layers`](crate::layers) for an example.
#[derive(Debug)]
pub struct QuantizedLinear {
    dims: [usize; 2],
    conversion: Conversion,
    memory: Tensor,
    operand: Operand,
    bias: Option<Bias>,
    /// `[1]`: the scale of all activations of NVFP4.
    input_scale: Tensor,
    buffers: Buffers<Activations>,
}

/// `[N]` in both types: an epilogue adds f32, an addend has the type of D.
#[derive(Clone, Debug)]
struct Bias {
    f32: Tensor,
    bf16: Tensor,
}

/// Quantized rows.
#[derive(Debug)]
enum Activations {
    /// With f32 scales.
    Fp8 { codes: Tensor, scales: Tensor },
    /// With words of scales.
    BlockScaled(QuantizedRows),
}

impl Clone for QuantizedLinear {
    fn clone(&self) -> Self {
        QuantizedLinear {
            memory: self.memory.clone(),
            operand: self.operand.clone(),
            bias: self.bias.clone(),
            input_scale: self.input_scale.clone(),
            buffers: Buffers::default(),
            ..*self
        }
    }
}

impl QuantizedLinear {
    /// A layer of weights `[1, N, K]` and a bias of N numbers.
    ///
    /// # Errors
    /// [`Error::Shape`] for weights of several groups, a K that is no multiple of 16 and a bias of another length;
    /// [`Error::Device`] where [`Recipe::runs_on`] refuses the device; what the device reports.
    pub fn new(
        weight: &QuantizedWeight,
        bias: Option<&[f32]>,
        device: &Device,
        options: &LayerOptions,
    ) -> Result<QuantizedLinear> {
        let [groups, n, k] = weight.dims;
        if groups != 1 || k % PITCH != 0 {
            return Err(Error::Shape {
                argument: "weight",
                expected: format!("one matrix [1, N, K] with a K that is a multiple of {PITCH}"),
                found: format!("{:?}", weight.dims),
            });
        }
        if bias.is_some_and(|bias| bias.len() != n) {
            return Err(Error::Shape {
                argument: "bias",
                expected: format!("{n} numbers, one for each row of `weight`"),
                found: format!("{} numbers", bias.map_or(0, <[f32]>::len)),
            });
        }
        let input_scale = options.input_scale.unwrap_or(1.0);
        if !(input_scale.is_normal() && input_scale > 0.0) {
            return Err(Error::Shape {
                argument: "input_scale",
                expected: "a positive number that is not subnormal".to_owned(),
                found: input_scale.to_string(),
            });
        }
        let (mut converted, conversion) = weight.convert(device, Use::Linear, options)?;
        if let Form::BlockScaled(scaled) = &mut converted.form
            && scaled.block == ScaleBlock::Of16
        {
            scaled.alpha *= input_scale;
        }
        let numbers = bias.unwrap_or(&[]);
        let (wide, narrow) = (DType::F32.encode(numbers), DType::Bf16.encode(numbers));
        let (count, input_scale) = ([numbers.len()], DType::F32.encode(&[input_scale]));
        let [codes, scales] = converted.parts();
        let parts = [
            codes,
            scales,
            Part { dtype: DType::F32, dims: &count, bytes: &wide },
            Part { dtype: DType::Bf16, dims: &count, bytes: &narrow },
            Part { dtype: DType::F32, dims: &[1], bytes: &input_scale },
        ];
        let (memory, [codes, scales, wide, narrow, input_scale]) = in_one_allocation(parts, device)?;
        let operand = converted.on_device(codes, scales)?;
        let bias = bias.is_some().then_some(Bias { f32: wide, bf16: narrow });
        let buffers = Buffers::default();
        Ok(QuantizedLinear { dims: [n, k], conversion, memory, operand, bias, input_scale, buffers })
    }

    /// Quantizes `[N, K]` values, row-major, and makes a layer of them.
    ///
    /// # Errors
    /// As [`QuantizedWeight::quantize`] and [`new`](Self::new).
    ///
    /// ```
    /// use oxigemm::layers::{LayerOptions, QuantizedLinear, Recipe};
    /// use oxigemm::{Device, bf16};
    ///
    /// // On Hopper and the CPU this is FP8 with scales of 128x128, on Blackwell MXFP8.
    /// let (device, weights) = (Device::cpu(), vec![bf16::ONE; 256 * 128]);
    /// let recipe = Recipe::for_device(&device)?;
    /// let options = LayerOptions::default();
    /// let linear = QuantizedLinear::from_weights(&weights, [256, 128], None, recipe, &device, &options)?;
    /// assert_eq!((linear.dims(), linear.bytes()), ([256, 128], 256 * 128 + 2 * 4));
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    pub fn from_weights<T: Element>(
        values: &[T],
        [n, k]: [usize; 2],
        bias: Option<&[f32]>,
        recipe: Recipe,
        device: &Device,
        options: &LayerOptions,
    ) -> Result<QuantizedLinear> {
        let format = recipe.scale_format(device)?;
        let weight = QuantizedWeight::quantize_in(values, [1, n, k], recipe, format)?;
        QuantizedLinear::new(&weight, bias, device, options)
    }

    /// N and K.
    #[must_use]
    pub fn dims(&self) -> [usize; 2] {
        self.dims
    }

    /// How the weights are multiplied, and what they lost on the way.
    #[must_use]
    pub fn conversion(&self) -> &Conversion {
        &self.conversion
    }

    /// The device that the layer is on.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.memory.device()
    }

    /// Bytes of codes, scales and bias, without the gaps between them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.operand.bytes() + self.bias.as_ref().map_or(0, |bias| 6 * bias.f32.len())
    }

    /// The weights as they are multiplied, to be saved. Those in BF16 have no codes any more: save what they were made
    /// of.
    ///
    /// # Errors
    /// [`Error::DType`] for a layer in BF16, and what the device reports.
    pub fn weight(&self) -> Result<QuantizedWeight> {
        let (Operand { form, codes, scales }, [n, k]) = (&self.operand, self.dims);
        match form {
            Form::Bf16 { .. } => Err(Error::DType {
                argument: "layer",
                expected: "weights in FP8 or FP4".to_owned(),
                found: "weights in BF16".to_owned(),
            }),
            Form::BlockScaled(scaled) => {
                let own = match scaled.block {
                    // The other factor is that of the activations.
                    ScaleBlock::Of16 => scaled.alpha / self.input_scale.to_vec_f32()?[0],
                    _ => scaled.alpha,
                };
                BlockScaled { alpha: own, ..*scaled }.read(codes, scales)
            }
            Form::Fp8 => {
                let (block, values) = (self.conversion.block, scales.to_vec::<f32>()?);
                let (recipe, scales) = match block[1] {
                    MX_BLOCK => {
                        let exponent =
                            |scale: &f32| if scale.is_nan() { 255 } else { (scale.to_bits() >> 23) as u8 };
                        let values = values.iter().map(exponent).collect();
                        (Recipe::Mxfp8, WeightScales::E8m0 { block, values })
                    }
                    _ => (Recipe::Fp8, WeightScales::F32 { block, values }),
                };
                QuantizedWeight::from_parts(recipe, [1, n, k], codes.to_bytes()?, scales)
            }
        }
    }

    /// `out = x · Wᵀ + bias`, in the stream of the options.
    ///
    /// | argument | shape | type | layout |
    /// |---|---|---|---|
    /// | `x` | `[M, K]` | bf16, f16 or f32; bf16 for weights in BF16 | rows of K, any pitch |
    /// | `out` | `[M, N]` | bf16 or f32 | rows of N, any pitch |
    ///
    /// # Errors
    /// The first rule that an argument breaks, or what the device reports.
    pub fn forward(&mut self, x: &Tensor, out: &mut Tensor, options: &GemmOptions) -> Result<()> {
        let m = self.check(x, out)?;
        if m == 0 {
            return Ok(());
        }
        let Operand { form, codes, scales } = &self.operand;
        let (codes, scales) = (codes.select(0)?, scales.select(0)?);
        match *form {
            Form::Bf16 { alpha } => {
                let bias = self.bias.as_ref().map(|bias| &bias.f32);
                let epilogue = Epilogue { alpha, bias, ..Default::default() };
                let d = FusedOutput::Matrix(out);
                bf16_gemm_nt_fused(x, &codes, Addend::None, d, &epilogue, options)
            }
            Form::Fp8 => self.forward_in_fp8(x, (&codes, &scales), m, out, options),
            Form::BlockScaled(scaled) => {
                let device = self.memory.device();
                let buffers = self
                    .buffers
                    .for_rows(m, |rows| scaled.room_for(rows, device).map(Activations::BlockScaled))?;
                let Activations::BlockScaled(rows) = buffers else { unreachable!("made above") };
                let mut a = rows.narrow(m)?;
                scaled.quantize(x, &mut a, Some(&self.input_scale), &options.into())?;
                let bias = self.bias.as_ref().map(|bias| &bias.f32);
                let epilogue = Epilogue { alpha: scaled.alpha, bias, ..Default::default() };
                let gemm = scaled.gemm(&a, (&codes, &scales), out);
                let plain = bias.is_none() && scaled.alpha == 1.0;
                if plain { gemm } else { gemm.fused(&epilogue, None) }.run(options)
            }
        }
    }

    /// With f32 scales, which kernels multiply sums with.
    fn forward_in_fp8(
        &mut self,
        x: &Tensor,
        b: (&Tensor, &Tensor),
        m: usize,
        out: &mut Tensor,
        options: &GemmOptions,
    ) -> Result<()> {
        let ([_, k], [down, across]) = (self.dims, self.conversion.block);
        let device = self.memory.device();
        let buffers = self.buffers.for_rows(m, |rows| {
            Ok(Activations::Fp8 {
                codes: Tensor::empty(DType::E4m3, &[rows, k], device)?,
                scales: tma_aligned_scales(rows, k.div_ceil(across), device)?,
            })
        })?;
        let Activations::Fp8 { codes, scales } = buffers else { unreachable!("made above") };
        let (mut a, mut sfa) = (codes.narrow(0, 0, m)?, scales.narrow(0, 0, m)?);
        let granularity = if across == MX_BLOCK { Granularity::PerGroup32 } else { Granularity::PerToken };
        quantize(x, &mut a, &mut sfa, granularity, ScaleFormat::F32, &options.into())?;
        let a = (&a, &sfa);
        match &self.bias {
            None => fp8_gemm_nt(a, b, Addend::None, out, options),
            Some(bias) if down == 128 => {
                let epilogue = Epilogue { bias: Some(&bias.f32), ..Default::default() };
                fp8_gemm_nt_fused(a, b, Addend::None, FusedOutput::Matrix(out), &epilogue, options)
            }
            // Other granularities have no kernels with an epilogue, but all add a matrix: one whose rows are the bias.
            Some(bias) => {
                let rows = if out.dtype() == DType::F32 { &bias.f32 } else { &bias.bf16 }.repeated(m)?;
                fp8_gemm_nt(a, b, Addend::From(&rows), out, options)
            }
        }
    }

    /// The rows of `x`.
    fn check(&self, x: &Tensor, out: &Tensor) -> Result<usize> {
        let [n, k] = self.dims;
        let types: &[DType] = match self.operand.form {
            Form::Fp8 | Form::BlockScaled(_) => &[DType::Bf16, DType::F16, DType::F32],
            Form::Bf16 { .. } => &[DType::Bf16],
        };
        let (own, x_is) = (self.memory.describe("layer"), x.describe("x"));
        let out_is = out.describe("out");
        x_is.expect_dtype(types)?;
        out_is.expect_dtype(&[DType::Bf16, DType::F32])?;
        let [m, columns] = x_is.matrix_dims()?;
        if columns != k as i64 {
            return Err(x_is.wrong_shape([m, k as i64], "with the K of the layer"));
        }
        if out_is.matrix_dims()? != [m, n as i64] {
            return Err(out_is.wrong_shape([m, n as i64], "the rows of `x` by those of the weights"));
        }
        x_is.expect_device(&own)?;
        out_is.expect_device(&own)?;
        Ok(m as usize)
    }
}
