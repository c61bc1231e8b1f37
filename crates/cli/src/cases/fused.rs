//! Products whose sums are finished before they are stored: what to do with them, data, and whether the result is what
//! the single steps give.

use std::str::FromStr;

use oxigemm::cast::ScaleFormat;
use oxigemm::check::{Fused, QuantizedRows};
use oxigemm::metrics::calc_diff;
use oxigemm::plan::{self, Choice, Plan, Shape};
use oxigemm::reference::Finish;
use oxigemm::{
    Activation, Addend, DType, Device, Epilogue, FusedOutput, GemmOptions, HeadSplits, Tensor,
    fp8_gemm_nt_fused, half_gemm_nt_fused,
};
use oxigemm_kernels::epilogue::fused::Fusion;

use crate::problem::{AddendKind, Host, Operands, POISON, ScaleOrder, Spec, values};
use crate::verdict::Verdict;
use crate::{Failure, Op};

/// What is done with the sums of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EpilogueSpec {
    pub activation: Activation,
    pub gated: bool,
    pub bias: Option<DType>,
    pub alpha: f32,
    pub beta: f32,
    pub heads: Option<HeadSplits>,
    /// The scales of a quantized D.
    pub quantized: Option<(ScaleOrder, ScaleFormat)>,
}

/// What is added: C if there is one apart from D, or D itself.
pub fn addend(c: Option<&Tensor>, kind: AddendKind) -> Addend<'_> {
    match (c, kind) {
        (Some(c), _) => Addend::From(c),
        (None, AddendKind::Inplace) => Addend::InPlace,
        (None, _) => Addend::None,
    }
}

impl EpilogueSpec {
    /// Nothing.
    pub const NONE: EpilogueSpec = EpilogueSpec {
        activation: Activation::None,
        gated: false,
        bias: None,
        alpha: 1.0,
        beta: 1.0,
        heads: None,
        quantized: None,
    };

    /// The same for the library, with a bias if there is one.
    pub fn with<'a>(&self, bias: Option<&'a Tensor>) -> Epilogue<'a> {
        let EpilogueSpec { activation, gated, alpha, beta, heads, .. } = *self;
        Epilogue { alpha, bias, activation, gated, beta, heads }
    }

    /// D, with its scales where it is quantized.
    pub fn output<'a>(&self, d: &'a mut Tensor, scales: Option<&'a mut Tensor>) -> FusedOutput<'a> {
        match (scales, self.quantized) {
            (Some(scales), Some((_, format))) => FusedOutput::Fp8 { d, scales, format },
            _ => FusedOutput::Matrix(d),
        }
    }

    /// Columns that are computed of `n` rows of B.
    pub fn columns(&self, n: usize) -> usize {
        if self.gated { n / 2 } else { n }
    }

    /// The next number of B's rows that it takes, in a product of some function.
    pub fn fitting(&self, n: usize, op: Op) -> usize {
        match (self.gated, self.heads, self.quantized) {
            // 128 gates share a scale, and 128 ups.
            (true, ..) if op == Op::Fp8 => n.next_multiple_of(256),
            (true, _, Some(_)) => n.next_multiple_of(32),
            (true, ..) => n.next_multiple_of(2),
            (_, Some(heads), _) => n.next_multiple_of((heads.left + heads.right) as usize),
            (_, _, Some(_)) => n.next_multiple_of(16),
            _ => n,
        }
    }

    /// Where columns that are computed are in D, and how many D has.
    pub fn places(&self, columns: usize) -> (Vec<usize>, usize) {
        let Some(HeadSplits { left, mid, right }) = self.heads else {
            return ((0..columns).collect(), columns);
        };
        let [left, mid, computed] = [left, mid, left + right].map(|x| x as usize);
        let place = |j: usize| j + mid * (j / computed + usize::from(j % computed >= left));
        ((0..columns).map(place).collect(), columns + columns / computed * mid)
    }

    /// Rows of computed columns as rows of D, with poison in what heads skip.
    pub fn laid_out(&self, values: &[f32], columns: usize, d_type: DType) -> Vec<u8> {
        let ((places, width), size) = (self.places(columns), d_type.size());
        let mut bytes = vec![POISON; values.len() / columns.max(1) * width * size];
        for (i, element) in d_type.encode(values).chunks(size).enumerate() {
            let at = (i / columns * width + places[i % columns]) * size;
            bytes[at..at + size].copy_from_slice(element);
        }
        bytes
    }

    /// The same beside a function: a bias that is not FP32 has its 16-bit type.
    pub fn beside(self, op: Op) -> EpilogueSpec {
        let bias = self.bias.map(|dtype| if dtype == DType::F32 { dtype } else { op.dense().rounding() });
        EpilogueSpec { bias, ..self }
    }

    /// What planning is told.
    pub fn fused(&self) -> Fused {
        Fused {
            fusion: if self.gated { Fusion::Gated } else { Fusion::Elementwise },
            activation: self.activation,
            bias: self.bias,
            bias_group: 0,
            heads: self.heads,
            quantized: self.quantized.map(|(_, format)| QuantizedRows { format, strides: [1, 1], slab: 0 }),
        }
    }
}

impl FromStr for EpilogueSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<EpilogueSpec, String> {
        let mut spec = EpilogueSpec::NONE;
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let number = |text: &str| text.parse::<f32>().map_err(|error| format!("{word}: {error}"));
            match word {
                "relu" => spec.activation = Activation::Relu,
                "gelu" => spec.activation = Activation::Gelu,
                "gelu-tanh" => spec.activation = Activation::GeluTanh,
                "silu" => spec.activation = Activation::Silu,
                "swiglu" => (spec.activation, spec.gated) = (Activation::Silu, true),
                "geglu" => (spec.activation, spec.gated) = (Activation::Gelu, true),
                "gated" => spec.gated = true,
                "bias" => spec.bias = Some(DType::Bf16),
                "bias-f32" => spec.bias = Some(DType::F32),
                "fp8" => spec.quantized = Some((ScaleOrder::Mn, ScaleFormat::F32)),
                "fp8-pow2" => spec.quantized = Some((ScaleOrder::Mn, ScaleFormat::PowerOfTwo)),
                _ => match word.split_once('=') {
                    Some(("alpha", value)) => spec.alpha = number(value)?,
                    Some(("beta", value)) => spec.beta = number(value)?,
                    Some(("heads", value)) => {
                        let parts: Result<Vec<u32>, _> = value.split('/').map(str::parse).collect();
                        let [left, mid, right] = parts
                            .ok()
                            .and_then(|parts| <[u32; 3]>::try_from(parts).ok())
                            .ok_or_else(|| format!("{word}: expected heads=left/mid/right"))?;
                        spec.heads = Some(HeadSplits { left, mid, right });
                    }
                    _ => {
                        return Err(format!(
                            "{word} is none of relu, gelu, gelu-tanh, silu, swiglu, geglu, gated, bias, bias-f32, \
                             alpha=X, beta=X, fp8, fp8-pow2, heads=left/mid/right"
                        ));
                    }
                },
            }
        }
        Ok(spec)
    }
}

/// A product and what is done with its sums.
#[derive(Clone, Copy, Debug)]
pub struct FusedSpec {
    /// The product: its N is that of B's rows, its addend and gaps are those of D.
    pub product: Spec,
    pub epilogue: EpilogueSpec,
}

impl FusedSpec {
    /// As planning sees it.
    pub fn shape(&self) -> Shape {
        let Spec { m, n, k, .. } = self.product;
        let [m, n, k] = [m, self.epilogue.columns(n), k].map(|x| x as u32);
        Shape { m, n, k }
    }

    /// Bytes that cross the memory bus at least once.
    pub fn bytes(&self) -> f64 {
        let [m, n, k] = [self.product.m, self.product.n, self.product.k].map(|x| x as f64);
        let columns = self.epilogue.columns(self.product.n) as f64;
        let scales = match self.product.op {
            Op::Bf16 | Op::Fp16 => 0.0,
            _ => 4.0 * (k / 128.0).ceil() * (m + (n / 128.0).ceil()),
        };
        let element = match self.epilogue.quantized {
            Some(_) => 1.0 + 4.0 / 128.0,
            None => self.product.d_type.size() as f64,
        };
        let outputs = if self.product.addend == AddendKind::None { 1.0 } else { 2.0 };
        let operands = (m + n) * k * self.product.op.ab_type().size() as f64;
        operands + scales + outputs * m * columns * element
    }
}

impl std::fmt::Display for FusedSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, finished by {:?}", self.product, self.epilogue)
    }
}

/// A fused product with its data on a device.
pub struct FusedTask {
    pub spec: FusedSpec,
    /// The product alone, whose D is the sums.
    sums: Operands,
    bias: Option<Tensor>,
    /// What is added, without what heads skip.
    c_values: Option<Vec<f32>>,
    c: Option<Tensor>,
    pub d: Tensor,
    pub d_memory: Tensor,
    scales: Option<Tensor>,
    /// How it was run last.
    last: GemmOptions,
}

/// Elements of poison before and behind D.
const GUARD: usize = 1024;

impl FusedTask {
    /// Draws the data and puts it on a device, with poison wherever the layout has gaps.
    pub fn new(spec: FusedSpec, device: &Device) -> Result<FusedTask, Failure> {
        let FusedSpec { product, epilogue } = spec;
        let plain =
            Spec { d_type: DType::F32, addend: AddendKind::None, d_padding: 0, d_offset: 0, ..product };
        let sums = Host::draw(plain)?.upload(device)?;
        let Spec { m, n, seed, .. } = product;
        let columns = epilogue.columns(n);
        let bias = epilogue.bias.map(|dtype| {
            let values: Vec<f32> = values(dtype, seed, 2, n).iter().map(|x| x * 4.0).collect();
            Tensor::from_f32(dtype, &values, &[n], device)
        });
        let d_type = if epilogue.quantized.is_some() { DType::E4m3 } else { product.d_type };
        let c_values = (product.addend != AddendKind::None).then(|| {
            let c = values(d_type, seed, 3, m * columns);
            c.iter().map(|x| x * 8.0).collect::<Vec<_>>()
        });
        let width = epilogue.places(columns).1;
        // Rows of codes begin at multiples of 16 bytes, as another product reads them.
        let (padding, offset) = match epilogue.quantized {
            Some(_) => (width.next_multiple_of(16) - width + product.d_padding * 16, product.d_offset * 16),
            None => (product.d_padding, product.d_offset),
        };
        let matrix = |values: Option<&[f32]>| -> Result<(Tensor, Tensor), Failure> {
            let pitch = width + padding;
            let len = GUARD + offset + m * pitch + GUARD;
            let memory = Tensor::from_bytes(d_type, &vec![POISON; len * d_type.size()], &[len], device)?;
            let mut d =
                memory.narrow(0, GUARD + offset, m * pitch)?.view(&[m, pitch])?.narrow(1, 0, width)?;
            if let Some(values) = values {
                d.write_bytes(&epilogue.laid_out(values, columns, d_type))?;
            }
            Ok((d, memory))
        };
        let in_place = c_values.as_deref().filter(|_| product.addend == AddendKind::Inplace);
        let (d, d_memory) = matrix(in_place)?;
        let c = match product.addend {
            AddendKind::Other => Some(matrix(c_values.as_deref())?.0),
            _ => None,
        };
        let scales = match epilogue.quantized {
            None => None,
            Some((order, _)) => Some(scales_of_d(order, [m, columns.div_ceil(128)], device)?),
        };
        let bias = bias.transpose()?;
        Ok(FusedTask { spec, sums, bias, c_values, c, d, d_memory, scales, last: GemmOptions::default() })
    }

    /// Runs it.
    pub fn run(&mut self, options: &GemmOptions) -> oxigemm::Result<()> {
        self.last = options.clone();
        let spec = &self.spec.epilogue;
        let (epilogue, addend) =
            (spec.with(self.bias.as_ref()), addend(self.c.as_ref(), self.spec.product.addend));
        let d = spec.output(&mut self.d, self.scales.as_mut());
        let Operands { a, b, scales, .. } = &self.sums;
        match scales {
            Some([sfa, sfb]) => fp8_gemm_nt_fused((a, sfa), (b, sfb), addend, d, &epilogue, options),
            None => half_gemm_nt_fused(a, b, addend, d, &epilogue, options),
        }
    }

    /// The bytes of the result, and of its scales.
    pub fn bits(&self) -> Result<Vec<u8>, Failure> {
        let mut bytes = self.d.to_bytes()?;
        if let Some(scales) = &self.scales {
            bytes.extend(scales.to_bytes()?);
        }
        Ok(bytes)
    }

    /// How the product alone gives the very sums that the last run has finished: with K split alike.
    fn same_sums(&self) -> GemmOptions {
        let unsplit = GemmOptions { batch_invariant: true, ..Default::default() };
        // The CPU splits nothing.
        let Some(limits) = self.d.device().limits() else { return unsplit };
        let limits = self.last.num_sms.map_or(*limits, |sms| limits.restricted_to(sms));
        let (family, fused) = (self.spec.product.family(), self.spec.epilogue.fused());
        let best = match self.last.batch_invariant {
            true => Plan::best_batch_invariant_fused,
            false => Plan::best_fused,
        };
        let choice =
            self.last.choice.unwrap_or_else(|| best(family, self.spec.shape(), &fused, &limits).choice);
        let (operands, split) = match choice {
            Choice::Slim { split, .. } => ("slim".to_owned(), split),
            Choice::HalfSlim { config, split, .. } => {
                (format!("{}_slim_nt", config.operands.element.name()), split)
            }
            Choice::Wide { .. } | Choice::HalfWide { .. } => return unsplit,
        };
        if split == 1 {
            return unsplit;
        }
        let plain = plan::parse(&format!("{operands}_64x64_k{split}_s2")).expect("it is one of the set");
        GemmOptions { choice: Some(plain), ..Default::default() }
    }

    /// Compares with the single steps, for the sums that the product alone gives on the same device.
    pub fn judge(&mut self) -> Result<Verdict, Failure> {
        self.sums.run(&self.same_sums())?;
        let sums: Vec<f64> = self.sums.result()?.into_iter().map(f64::from).collect();
        let FusedSpec { product, epilogue } = self.spec;
        let bias = self.bias.as_ref().map(Tensor::to_vec_f32).transpose()?;
        let EpilogueSpec { activation, gated, alpha, beta, .. } = epilogue;
        let finish = Finish { alpha, beta, bias: bias.as_deref(), activation, gated };
        let expected = finish.apply(&sums, product.n, self.c_values.as_deref())?;
        let columns = epilogue.columns(product.n);
        let (places, width) = epilogue.places(columns);
        let all = self.d.to_vec_f32()?;
        let place = |i: usize| i / columns * width + places[i % columns];
        let found = (0..expected.len()).map(|i| all[place(i)]).collect();
        let scales = self.scales.as_ref().map(Tensor::to_vec_f32).transpose()?;
        let quantized = scales.as_deref().zip(epilogue.quantized.map(|(_, format)| format));
        Ok(Finished { columns, d_type: product.d_type, quantized }.judge(&expected, found))
    }

    /// Whether nothing was written to that is not part of the result.
    pub fn surroundings_untouched(&self) -> Result<bool, Failure> {
        let size = self.d.dtype().size();
        let columns = self.spec.epilogue.columns(self.spec.product.n);
        let (places, _) = self.spec.epilogue.places(columns);
        let mut bytes = self.d_memory.to_bytes()?;
        let first = (self.d.address() - self.d_memory.address()) as usize;
        let pitch = self.d.strides()[0] * size;
        for row in 0..self.d.dims()[0] {
            for place in &places {
                bytes[first + row * pitch + place * size..][..size].fill(POISON);
            }
        }
        Ok(bytes.iter().all(|byte| *byte == POISON))
    }

    /// Puts into D what is added to, where it is D.
    pub fn restore(&mut self) -> Result<(), Failure> {
        let FusedSpec { product, epilogue } = self.spec;
        match &self.c_values {
            Some(values) if product.addend == AddendKind::Inplace => {
                let columns = epilogue.columns(product.n);
                Ok(self.d.write_bytes(&epilogue.laid_out(values, columns, self.d.dtype()))?)
            }
            _ => Ok(()),
        }
    }

    /// Overwrites D, and everything around it, with poison.
    pub fn poison(&mut self) -> Result<(), Failure> {
        let bytes = vec![POISON; self.d_memory.len() * self.d_memory.dtype().size()];
        Ok(self.d_memory.write_bytes(&bytes)?)
    }
}

/// Rows of a result whose sums were finished.
pub struct Finished<'a> {
    /// Columns that were computed.
    pub columns: usize,
    /// The type of D, where it is not quantized.
    pub d_type: DType,
    /// The scales of all rows and what they may be, where it is.
    pub quantized: Option<(&'a [f32], ScaleFormat)>,
}

impl Finished<'_> {
    /// Compares what was found, of which the codes of a quantized result are not yet scaled, with the single steps.
    pub fn judge(&self, expected: &[f64], mut found: Vec<f32>) -> Verdict {
        let columns = self.columns.max(1);
        let blocks = columns.div_ceil(128);
        let scale =
            |i: usize| self.quantized.map(|(scales, _)| scales[i / columns * blocks + i % columns / 128]);
        for (i, value) in found.iter_mut().enumerate() {
            *value *= scale(i).unwrap_or(1.0);
        }
        let largest = expected.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
        // One rounding to the type of D, and what FP32 loses.
        let lost = 1e-6 * largest + 1e-5;
        let allowed = |i: usize, x: f64| match (scale(i), self.d_type) {
            // A scale that is a power of two may be the next one, where the largest element is near to one.
            (Some(scale), _) => (x.abs() / 16.0).max(f64::from(scale) * 2f64.powi(-10)) * 1.001 + lost,
            (None, DType::F32) => 3e-5 * x.abs() + lost,
            (None, DType::F16) => (2f64.powi(-11) + 3e-5) * x.abs() + lost,
            (None, _) => x.abs() / 256.0 + lost,
        };
        let off = |i: usize| (f64::from(found[i]) - expected[i]).abs() / allowed(i, expected[i]);
        // NaN is worse than anything.
        let worse = |worst: f64, error: f64| if error > worst || error.is_nan() { error } else { worst };
        let worst_element = (0..expected.len()).map(off).fold(0.0, worse);
        let diff = calc_diff(&found, expected);
        let right = worst_element <= 1.0 && self.scales_use_their_range(&found);
        Verdict { diff, diff_unquantized: diff, worst_element, rows: expected.len() / columns, right }
    }

    /// Whether no scale is larger than it has to be: the largest code of its block is near the largest there is.
    fn scales_use_their_range(&self, found: &[f32]) -> bool {
        let Some((scales, format)) = self.quantized else { return true };
        let least = if format == ScaleFormat::F32 { 440.0 } else { 208.0 };
        let columns = self.columns.max(1);
        let blocks = columns.div_ceil(128);
        found.chunks(columns).enumerate().all(|(row, values)| {
            values.chunks(128).enumerate().all(|(block, values)| {
                let scale = scales[row * blocks + block];
                let largest = values.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
                largest >= least * scale || scale <= 1.1e-4 / 448.0
            })
        })
    }
}

/// Scales of D that hold poison.
fn scales_of_d(order: ScaleOrder, [rows, blocks]: [usize; 2], device: &Device) -> Result<Tensor, Failure> {
    let (lines, line, first, pitch) = match order {
        ScaleOrder::Row => (rows, blocks, 0, blocks),
        ScaleOrder::RowPadded => (rows, blocks, 0, blocks.next_multiple_of(4)),
        ScaleOrder::Mn => (blocks, rows, 0, rows.next_multiple_of(4)),
        ScaleOrder::Odd => (blocks, rows, 1, rows | 1),
    };
    let memory =
        Tensor::from_slice(&vec![f32::NAN; first + lines * pitch], &[first + lines * pitch], device)?;
    let matrix = memory.narrow(0, first, lines * pitch)?.view(&[lines, pitch])?.narrow(1, 0, line)?;
    Ok(if lines == rows && matches!(order, ScaleOrder::Row | ScaleOrder::RowPadded) {
        matrix
    } else {
        matrix.transpose(0, 1)?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxigemm::GemmLayout;

    #[test]
    fn words_make_an_epilogue() {
        let spec: EpilogueSpec = "swiglu,bias,alpha=0.5,fp8-pow2".parse().unwrap();
        assert_eq!(
            spec,
            EpilogueSpec {
                activation: Activation::Silu,
                gated: true,
                bias: Some(DType::Bf16),
                alpha: 0.5,
                quantized: Some((ScaleOrder::Mn, ScaleFormat::PowerOfTwo)),
                ..EpilogueSpec::NONE
            }
        );
        let heads: EpilogueSpec = "heads=128/64/128".parse().unwrap();
        assert_eq!(heads.places(512).1, 512 + 2 * 64);
        for wrong in ["swish", "alpha=x", "heads=1/2"] {
            assert!(wrong.parse::<EpilogueSpec>().unwrap_err().contains(wrong.split('=').next().unwrap()));
        }
    }

    #[test]
    fn a_wrong_element_is_found() {
        let cases = ["gelu,bias", "swiglu,fp8", "heads=8/3/8"];
        for (op, words) in [Op::Fp8, Op::Bf16, Op::Fp16].into_iter().flat_map(|op| cases.map(|x| (op, x))) {
            let epilogue = words.parse::<EpilogueSpec>().unwrap().beside(op);
            let product = Spec::of(op, GemmLayout::Nt, [9, 256, 200]);
            let mut task = FusedTask::new(FusedSpec { product, epilogue }, &Device::cpu()).unwrap();
            task.run(&GemmOptions::default()).unwrap();
            let good = task.judge().unwrap();
            assert!(good.right, "{words}: {good:?}");
            assert!(task.surroundings_untouched().unwrap(), "{words}");
            let mut bytes = task.d.to_bytes().unwrap();
            // The sign, or a large part, of the second element.
            let size = task.d.dtype().size();
            bytes[2 * size - 1] ^= 0xc0;
            task.d.write_bytes(&bytes).unwrap();
            assert!(!task.judge().unwrap().right, "{words}");
        }
    }
}
