//! Cases of a mixture of experts: on one device, or with experts on several.

use std::fmt;

use oxigemm::cast::{Quantized, ScaleFormat, cast_blocks_to_fp4, per_block_cast_to_fp8};
use oxigemm::{
    DType, Device, GemmOptions, MoeExperts, MoeProjection, MoeRouting, Tensor, moe_forward,
    moe_scratch_bytes, random,
};
use oxigemm_testkit::Failure;

/// What weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoeWeights {
    /// BF16.
    Bf16,
    /// E4M3 with scales of 128x128.
    Fp8,
    /// E2M1 with scales of 1x32.
    Mxfp4,
}

impl MoeWeights {
    /// All of them.
    pub const ALL: [MoeWeights; 3] = [MoeWeights::Bf16, MoeWeights::Fp8, MoeWeights::Mxfp4];

    /// The type of the elements.
    pub fn dtype(self) -> DType {
        match self {
            MoeWeights::Bf16 => DType::Bf16,
            MoeWeights::Fp8 => DType::E4m3,
            MoeWeights::Mxfp4 => DType::U8,
        }
    }

    /// By how much results may differ from those of another device ([`oxigemm::metrics::calc_diff`]): tokens, and what lies
    /// between the GEMMs, are quantized, with scales that are powers of two or not, as the device's tensor core has them.
    pub fn most_diff(self) -> f64 {
        if self == MoeWeights::Bf16 { 1e-5 } else { 4e-3 }
    }
}

/// A layer and its tokens.
#[derive(Clone, Copy, Debug)]
pub struct MoeSpec {
    /// What weights are.
    pub weights: MoeWeights,
    /// Tokens.
    pub tokens: usize,
    /// Choices of a token.
    pub topk: usize,
    /// Experts.
    pub experts: usize,
    /// Columns between the GEMMs.
    pub inner: usize,
    /// Columns of a token.
    pub outer: usize,
    /// Seed of everything.
    pub seed: u64,
}

impl fmt::Display for MoeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MoeSpec { weights, tokens, topk, experts, inner, outer, seed } = self;
        write!(f, "moe_forward {weights:?} m{tokens} top{topk} e{experts} i{inner} k{outer} seed {seed}")
    }
}

impl MoeSpec {
    /// Rows and columns of the weights of an expert.
    fn dims(&self) -> [[usize; 2]; 2] {
        [[2 * self.inner, self.outer], [self.outer, self.inner]]
    }

    /// Weights and tokens on a device.
    pub fn on(self, device: &Device) -> Result<MoeLayer, Failure> {
        MoeLayer::new(&HostExperts::new(&self)?, RoutedTokens::new(&self, self.seed, device)?, device)
    }
}

/// Weights of all experts, on the host.
pub struct HostExperts {
    spec: MoeSpec,
    /// Codes of both weights of all experts, one after another.
    codes: [Vec<u8>; 2],
    scales: [Vec<f32>; 2],
}

impl HostExperts {
    /// Draws them.
    pub fn new(spec: &MoeSpec) -> Result<HostExperts, Failure> {
        let mut found = HostExperts { spec: *spec, codes: Default::default(), scales: Default::default() };
        for (nth, [n, k]) in spec.dims().into_iter().enumerate() {
            let numbers = random::normals(spec.seed + nth as u64, spec.experts * n * k);
            for expert in numbers.chunks(n * k) {
                let values: Vec<f32> = expert.iter().map(|x| x / (k as f32).sqrt()).collect();
                let Quantized { codes, scales, .. } = match spec.weights {
                    MoeWeights::Bf16 => {
                        found.codes[nth].extend(DType::Bf16.encode(&values));
                        continue;
                    }
                    MoeWeights::Fp8 => per_block_cast_to_fp8(&values, n, k, ScaleFormat::PowerOfTwo)?,
                    MoeWeights::Mxfp4 => cast_blocks_to_fp4(&values, n, k, [1, 32], ScaleFormat::PowerOfTwo)?,
                };
                found.codes[nth].extend(codes);
                found.scales[nth].extend(scales);
            }
        }
        Ok(found)
    }

    /// Those of some experts, on a device.
    pub fn place(&self, first: usize, experts: usize, device: &Device) -> Result<PlacedExperts, Failure> {
        let spec = &self.spec;
        let part = |nth: usize| -> Result<(Tensor, Option<Tensor>), Failure> {
            let [n, k] = spec.dims()[nth];
            let all = &self.codes[nth];
            let columns = if spec.weights == MoeWeights::Mxfp4 { k / 2 } else { k };
            let bytes = all.len() / spec.experts;
            let codes = &all[first * bytes..][..experts * bytes];
            let codes = Tensor::from_bytes(spec.weights.dtype(), codes, &[experts, n, columns], device)?;
            let count = self.scales[nth].len() / spec.experts;
            if count == 0 {
                return Ok((codes, None));
            }
            let rows = if spec.weights == MoeWeights::Mxfp4 { n } else { n / 128 };
            let scales = &self.scales[nth][first * count..][..experts * count];
            let scales = Tensor::from_slice(scales, &[experts, rows, count / rows], device)?;
            Ok((codes, Some(scales)))
        };
        Ok(PlacedExperts { gate_up: part(0)?, down: part(1)? })
    }
}

/// Weights of some experts on a device.
pub struct PlacedExperts {
    gate_up: (Tensor, Option<Tensor>),
    down: (Tensor, Option<Tensor>),
}

impl PlacedExperts {
    /// What a call takes.
    pub fn experts(&self) -> MoeExperts<'_> {
        MoeExperts::swiglu(projection(&self.gate_up), projection(&self.down))
    }
}

fn projection((weight, scales): &(Tensor, Option<Tensor>)) -> MoeProjection<'_> {
    MoeProjection { weight, scales: scales.as_ref(), bias: None }
}

/// Tokens with their choices, of which a few are no experts.
pub struct RoutedTokens {
    /// Hidden states.
    pub x: Tensor,
    /// Choices.
    pub ids: Tensor,
    /// Their weights.
    pub factors: Tensor,
}

impl RoutedTokens {
    /// Draws them.
    pub fn new(spec: &MoeSpec, seed: u64, device: &Device) -> Result<RoutedTokens, Failure> {
        let MoeSpec { tokens, topk, outer, .. } = *spec;
        let x = random::normals(seed + 2, tokens * outer);
        let factors: Vec<f32> = random::normals(seed + 3, tokens * topk).iter().map(|x| x.abs()).collect();
        Ok(RoutedTokens {
            x: Tensor::from_f32(DType::Bf16, &x, &[tokens, outer], device)?,
            ids: Tensor::from_slice(&choices(spec, seed), &[tokens, topk], device)?,
            factors: Tensor::from_slice(&factors, &[tokens, topk], device)?,
        })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.x.dims()[0]
    }

    /// What a call takes.
    pub fn routing(&self) -> MoeRouting<'_> {
        MoeRouting { ids: &self.ids, weights: &self.factors }
    }
}

/// Choices drawn from a seed.
pub fn choices(spec: &MoeSpec, seed: u64) -> Vec<i32> {
    let experts = spec.experts as u64;
    let draw = |i: u64| match random::bits(seed + 4, i) % (experts + 2) {
        id if id < experts => id as i32,
        id if id == experts => -1,
        _ => i32::MAX,
    };
    (0..(spec.tokens * spec.topk) as u64).map(draw).collect()
}

/// Operands of a [`MoeSpec`].
pub struct MoeLayer {
    /// Tokens and choices.
    pub tokens: RoutedTokens,
    /// Weights.
    pub weights: PlacedExperts,
    scratch: Tensor,
    /// The output.
    pub out: Tensor,
}

impl MoeLayer {
    /// All experts, and tokens, on a device.
    pub fn new(experts: &HostExperts, tokens: RoutedTokens, device: &Device) -> Result<MoeLayer, Failure> {
        let spec = &experts.spec;
        let dims = [spec.experts, spec.inner, spec.outer];
        let bytes = moe_scratch_bytes([tokens.count(), spec.topk], dims, spec.weights.dtype());
        Ok(MoeLayer {
            weights: experts.place(0, spec.experts, device)?,
            scratch: Tensor::zeros(DType::U8, &[bytes], device)?,
            out: Tensor::zeros(DType::Bf16, &[tokens.count(), spec.outer], device)?,
            tokens,
        })
    }

    /// Computes the output.
    pub fn run(&mut self, options: &GemmOptions) -> oxigemm::Result<()> {
        let (tokens, experts) = (&self.tokens, self.weights.experts());
        moe_forward(&tokens.x, &tokens.routing(), &experts, &mut self.scratch, &mut self.out, options)
    }
}
