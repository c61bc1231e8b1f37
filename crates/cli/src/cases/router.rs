//! Cases of the router of a mixture of experts.

use std::fmt;

use oxigemm::plan::{self, GemmConfig};
use oxigemm::{
    Addend, DType, Device, GemmLayout, GemmOptions, LaunchOptions, Router, Scoring, Tensor, half_gemm,
    moe_route, moe_top_k, random,
};
use oxigemm_testkit::Failure;
use serde::Serialize;

/// A call: what is routed, and by which router.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RouterSpec {
    /// Tokens.
    pub tokens: usize,
    /// Experts.
    pub experts: usize,
    /// Columns of the hidden states.
    pub k: usize,
    /// Experts of a token.
    pub topk: usize,
    /// Groups of experts, and those that are chosen from.
    pub groups: [usize; 2],
    /// What scores are.
    #[serde(skip)]
    pub scoring: Scoring,
    /// Whether there is a bias.
    pub bias: bool,
    /// Seed of the operands.
    pub seed: u64,
    /// Kernel of the GEMM, instead of the planned one.
    #[serde(skip)]
    pub gemm: Option<GemmConfig>,
}

impl RouterSpec {
    /// The router of DeepSeek-V3.
    pub const fn deepseek_v3(tokens: usize) -> RouterSpec {
        RouterSpec {
            tokens,
            experts: 256,
            k: 7168,
            topk: 8,
            groups: [8, 4],
            scoring: Scoring::Sigmoid,
            bias: true,
            seed: 1,
            gemm: None,
        }
    }

    /// Operands on a device.
    pub fn on(self, device: &Device) -> Result<RouterTask, Failure> {
        let RouterSpec { tokens, experts, k, topk, seed, .. } = self;
        let draw = |seed, dtype, dims: &[usize], factor: f32| {
            let values: Vec<f32> =
                random::normals(seed, dims.iter().product()).iter().map(|x| factor * x).collect();
            Tensor::from_f32(dtype, &values, dims, device)
        };
        let scale = 1.0 / (k as f32).sqrt();
        Ok(RouterTask {
            spec: self,
            x: draw(seed, DType::Bf16, &[tokens, k], 1.0)?,
            gate: draw(seed + 1, DType::Bf16, &[experts, k], scale)?,
            bias: draw(seed + 2, DType::F32, &[experts], 0.1)?,
            ids: Tensor::zeros(DType::I32, &[tokens, topk], device)?,
            weights: Tensor::zeros(DType::F32, &[tokens, topk], device)?,
        })
    }
}

impl fmt::Display for RouterSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RouterSpec { tokens, experts, k, topk, groups: [groups, kept], scoring, bias, .. } = self;
        write!(f, "router m{tokens} e{experts} k{k} top{topk} {scoring:?}")?;
        if *groups > 1 {
            write!(f, " {kept} of {groups} groups")?;
        }
        f.write_str(if *bias { " bias" } else { "" })?;
        self.gemm.map_or(Ok(()), |gemm| write!(f, " by {}", plan::name(&gemm)))
    }
}

/// Operands of a [`RouterSpec`].
pub struct RouterTask {
    spec: RouterSpec,
    /// Hidden states.
    pub x: Tensor,
    gate: Tensor,
    bias: Tensor,
    ids: Tensor,
    weights: Tensor,
}

impl RouterTask {
    fn router<'a>(&self, bias: &'a Tensor) -> Router<&'a Tensor> {
        let RouterSpec { scoring, groups: [groups, topk_groups], .. } = self.spec;
        let bias = self.spec.bias.then_some(bias);
        Router { scoring, groups, topk_groups, bias, renormalize: true, scale: 2.5, ..Router::default() }
    }

    /// Options of a call with the kernel of the case.
    fn options(&self, options: &GemmOptions) -> GemmOptions {
        GemmOptions { config: self.spec.gemm.or(options.config), ..options.clone() }
    }

    /// Routes.
    pub fn run(&mut self, options: &GemmOptions) -> oxigemm::Result<()> {
        let options = &self.options(options);
        let bias = self.bias.clone();
        let router = self.router(&bias);
        moe_route(&self.x, &self.gate, &router, &mut self.ids, &mut self.weights, options)
    }

    /// Whether ids and weights are, to the bit, those that the CPU chooses from the logits of the same GEMM.
    pub fn is_right(&self, device: &Device) -> Result<bool, Failure> {
        let RouterSpec { tokens, experts, topk, .. } = self.spec;
        let mut logits = Tensor::zeros(DType::F32, &[tokens, experts], device)?;
        let options = self.options(&GemmOptions::default());
        half_gemm(GemmLayout::Nt, &self.x, &self.gate, Addend::None, &mut logits, &options)?;
        device.synchronize()?;
        let cpu = &Device::Cpu;
        let logits = Tensor::from_slice(&logits.to_vec_f32()?, &[tokens, experts], cpu)?;
        let bias = Tensor::from_slice(&self.bias.to_vec_f32()?, &[experts], cpu)?;
        let mut ids = Tensor::zeros(DType::I32, &[tokens, topk], cpu)?;
        let mut weights = Tensor::zeros(DType::F32, &[tokens, topk], cpu)?;
        let options = LaunchOptions::default();
        moe_top_k(&logits, &self.router(&bias), &mut ids, &mut weights, &options)?;
        Ok(self.bytes()? == [ids.to_bytes()?, weights.to_bytes()?])
    }

    /// Ids and weights.
    pub fn bytes(&self) -> Result<[Vec<u8>; 2], Failure> {
        Ok([self.ids.to_bytes()?, self.weights.to_bytes()?])
    }
}
