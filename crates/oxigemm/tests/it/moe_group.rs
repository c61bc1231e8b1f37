//! A mixture whose experts lie on several simulated GPUs, against the same experts on one.

mod refused;
mod trouble;

use oxigemm::cast::{ScaleFormat, cast_blocks_to_fp4, per_block_cast_to_fp8};
use oxigemm::metrics::calc_diff;
use oxigemm::{
    DType, Device, Error, GemmOptions, LaunchOptions, MoeExperts, MoeGroup, MoeGroupCall, MoeGroupShape,
    MoeProjection, MoeRouting, Result, Sim, SimRank, Tensor, moe_forward, moe_forward_group,
    moe_group_scratch_bytes, moe_publish, moe_scratch_bytes, random,
};

const INNER: usize = 128;
const OUTER: usize = 256;
const TOPK: usize = 3;
/// Tokens that a rank's buffer has room for.
const MOST: usize = 6;

/// Weights of all experts, on the host.
pub struct Weights {
    dtype: DType,
    pub experts: usize,
    /// Codes of both weights, and scales.
    codes: [Vec<u8>; 2],
    scales: [Vec<f32>; 2],
}

/// Weights of some experts on a device.
struct Placed {
    codes: [Tensor; 2],
    scales: Option<[Tensor; 2]>,
}

const DIMS: [[usize; 2]; 2] = [[2 * INNER, OUTER], [OUTER, INNER]];

impl Weights {
    pub fn new(dtype: DType, experts: usize, format: ScaleFormat) -> Weights {
        let (mut codes, mut scales) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for (nth, [n, k]) in DIMS.into_iter().enumerate() {
            let numbers = random::normals(nth as u64, experts * n * k);
            for expert in numbers.chunks(n * k) {
                let values: Vec<f32> = expert.iter().map(|x| x / 16.0).collect();
                if dtype == DType::Bf16 {
                    codes[nth].extend(DType::Bf16.encode(&values));
                    continue;
                }
                // MXFP4 has powers of two.
                let cast = match dtype {
                    DType::U8 => cast_blocks_to_fp4(&values, n, k, [1, 32], ScaleFormat::PowerOfTwo),
                    _ => per_block_cast_to_fp8(&values, n, k, format),
                };
                let cast = cast.unwrap();
                codes[nth].extend(cast.codes);
                scales[nth].extend(cast.scales);
            }
        }
        Weights { dtype, experts, codes, scales }
    }

    fn place(&self, first: usize, experts: usize, device: &Device) -> Placed {
        let codes = [0, 1].map(|nth| {
            let [n, k] = DIMS[nth];
            let k = if self.dtype == DType::U8 { k / 2 } else { k };
            let bytes = n * k * self.dtype.size();
            let part = &self.codes[nth][first * bytes..][..experts * bytes];
            Tensor::from_bytes(self.dtype, part, &[experts, n, k], device).unwrap()
        });
        let scales = (self.dtype != DType::Bf16).then(|| {
            [0, 1].map(|nth| {
                let [n, k] = DIMS[nth];
                let blocks = if self.dtype == DType::U8 { [n, k / 32] } else { [n / 128, k / 128] };
                let count = blocks[0] * blocks[1];
                let part = &self.scales[nth][first * count..][..experts * count];
                Tensor::from_slice(part, &[experts, blocks[0], blocks[1]], device).unwrap()
            })
        });
        Placed { codes, scales }
    }
}

impl Placed {
    fn experts(&self) -> MoeExperts<'_> {
        let of = |nth: usize| MoeProjection {
            weight: &self.codes[nth],
            scales: self.scales.as_ref().map(|scales| &scales[nth]),
            bias: None,
        };
        MoeExperts::swiglu(of(0), of(1))
    }
}

/// Tokens of a rank with their choices.
#[derive(Clone)]
pub struct Tokens {
    x: Vec<f32>,
    pub ids: Vec<i32>,
    weights: Vec<f32>,
}

impl Tokens {
    pub fn new(seed: u64, tokens: usize, experts: usize) -> Tokens {
        let x = DType::Bf16.decode(&DType::Bf16.encode(&random::normals(seed, tokens * OUTER)));
        let id = |i: u64| match random::bits(seed + 100, i) % (experts as u64 + 2) {
            id if id < experts as u64 => id as i32,
            id if id == experts as u64 => -1,
            _ => i32::MAX,
        };
        let count = tokens * TOPK;
        let weights = random::normals(seed + 200, count).iter().map(|x| x.abs()).collect();
        Tokens { x, ids: (0..count as u64).map(id).collect(), weights }
    }

    fn count(&self) -> usize {
        self.ids.len() / TOPK
    }

    /// Tokens, ids, weights and room for the result.
    fn place(&self, device: &Device) -> [Tensor; 4] {
        let tokens = self.count();
        [
            Tensor::from_f32(DType::Bf16, &self.x, &[tokens, OUTER], device).unwrap(),
            Tensor::from_slice(&self.ids, &[tokens, TOPK], device).unwrap(),
            Tensor::from_slice(&self.weights, &[tokens, TOPK], device).unwrap(),
            Tensor::zeros(DType::Bf16, &[tokens, OUTER], device).unwrap(),
        ]
    }

    /// The result with all experts on one device.
    fn alone(&self, weights: &Weights, device: &Device) -> Vec<f32> {
        let [x, ids, factors, mut out] = self.place(device);
        let placed = weights.place(0, weights.experts, device);
        let dims = [weights.experts, INNER, OUTER];
        let bytes = moe_scratch_bytes([self.count(), TOPK], dims, weights.dtype);
        let mut scratch = Tensor::zeros(DType::U8, &[bytes], device).unwrap();
        let routing = MoeRouting { ids: &ids, weights: &factors };
        let options = GemmOptions::default();
        moe_forward(&x, &routing, &placed.experts(), &mut scratch, &mut out, &options).unwrap();
        out.to_vec_f32().unwrap()
    }
}

pub fn shape(ranks: usize, weights: &Weights) -> MoeGroupShape {
    let experts = weights.experts / ranks;
    MoeGroupShape {
        ranks,
        tokens: MOST,
        topk: TOPK,
        experts,
        columns: OUTER,
        dtype: if weights.dtype == DType::Bf16 { DType::Bf16 } else { DType::E4m3 },
        packed_scales: false,
    }
}

/// A rank of a test: its group, its experts, and memory for a call.
pub struct Rank {
    pub group: MoeGroup,
    buffer: Tensor,
    placed: Placed,
    scratch: Tensor,
    options: GemmOptions,
}

impl Rank {
    pub fn new(rank: &SimRank, weights: &Weights, shape: &MoeGroupShape, most_rows: Option<usize>) -> Rank {
        let device = rank.device();
        let buffer = Tensor::zeros(DType::U8, &[shape.buffer_bytes().unwrap()], &device).unwrap();
        let buffers = rank.meet(buffer.address()).unwrap();
        // SAFETY: buffers live until their hosts have met again.
        let group = unsafe { MoeGroup::new(&device, shape, rank.rank(), &buffers).unwrap() };
        rank.meet(0).unwrap();
        let bytes = moe_group_scratch_bytes(shape, INNER, most_rows).unwrap();
        let scratch = Tensor::zeros(DType::U8, &[bytes], &device).unwrap();
        let placed = weights.place(rank.rank() * shape.experts, shape.experts, &device);
        Rank { group, buffer, placed, scratch, options: GemmOptions::default() }
    }

    pub fn forward(&mut self, tokens: &Tokens, call: MoeGroupCall<'_>) -> Result<Vec<f32>> {
        let [x, ids, weights, mut out] = tokens.place(self.buffer.device());
        let routing = MoeRouting { ids: &ids, weights: &weights };
        moe_publish(&self.group, &x, &routing, 1.0, &LaunchOptions::default())?;
        let call = MoeGroupCall { tokens: tokens.count(), ..call };
        let (experts, options) = (self.placed.experts(), &self.options);
        moe_forward_group(&self.group, &call, &experts, &mut self.scratch, &mut out, options)?;
        out.to_vec_f32()
    }
}

/// Calls of all ranks with these tokens of each, one after another, and whether all went well.
fn calls(
    world: &Sim,
    weights: &Weights,
    tokens: &[Vec<Tokens>],
    most_rows: Option<usize>,
) -> Vec<(Vec<Vec<f32>>, Result<()>)> {
    let ranks = tokens[0].len();
    let outcomes = world.each_rank(|rank| {
        let mut own = Rank::new(rank, weights, &shape(ranks, weights), most_rows);
        let call = MoeGroupCall { most_rows, ..MoeGroupCall::default() };
        let results =
            tokens.iter().map(|call_tokens| own.forward(&call_tokens[rank.rank()], call).unwrap()).collect();
        rank.meet(0).unwrap();
        (results, own.group.check())
    });
    outcomes.unwrap()
}

/// The first GPU of a new world: of an architecture, with a schedule.
fn world(ranks: usize, gpu: &str) -> Sim {
    match format!("sim:{ranks}x{gpu}").parse() {
        Ok(Device::Sim(sim)) => sim,
        other => panic!("{other:?}"),
    }
}

/// Experts of all ranks give what they give on one device, whatever the tokens of each rank are.
fn experts_of_all_ranks(ranks: usize, dtype: DType, gpu: &str) {
    let hopper = gpu.starts_with("sm_90a");
    let format = if hopper { ScaleFormat::F32 } else { ScaleFormat::PowerOfTwo };
    let weights = Weights::new(dtype, 2 * ranks, format);
    // A rank without tokens, one with all that it has room for, and other numbers at the next call.
    let counts = [[3, 0, MOST, 1], [1, 2, 0, 5]];
    let tokens: Vec<Vec<Tokens>> = (0..2)
        .map(|call| {
            (0..ranks)
                .map(|rank| Tokens::new((10 * call + rank) as u64, counts[call][rank], weights.experts))
                .collect()
        })
        .collect();
    let outcomes = calls(&world(ranks, gpu), &weights, &tokens, None);
    // On Blackwell the scales of activations are powers of two; sums of codes that are widened may round to other codes of
    // what is between the GEMMs than on the CPU.
    let alone = match (hopper, dtype) {
        (true, DType::U8) => Device::sim(),
        (true, _) => Device::cpu(),
        (false, _) => "sim:sm_100a".parse().unwrap(),
    };
    for (rank, (results, check)) in outcomes.into_iter().enumerate() {
        check.unwrap();
        for (call, found) in results.iter().enumerate() {
            let expected = tokens[call][rank].alone(&weights, &alone);
            assert_eq!(found.len(), expected.len());
            let diff = calc_diff(found, &expected);
            assert!(expected.is_empty() || diff < 2e-5, "call {call}, rank {rank} of {ranks}: {diff}");
        }
    }
}

#[test]
fn two_ranks_of_bf16() {
    experts_of_all_ranks(2, DType::Bf16, "sm_90a");
}

#[test]
fn four_ranks_of_fp8_in_any_order() {
    for schedule in ["lazy", "1"] {
        experts_of_all_ranks(4, DType::E4m3, &format!("sm_90a:{schedule}"));
    }
}

#[test]
fn two_ranks_on_blackwell() {
    experts_of_all_ranks(2, DType::E4m3, "sm_100a");
}

#[test]
fn two_ranks_of_mxfp4() {
    for gpu in ["sm_90a", "sm_100a"] {
        experts_of_all_ranks(2, DType::U8, gpu);
    }
}

#[test]
fn one_rank_has_the_bits_of_a_call_without_a_group() {
    for dtype in [DType::Bf16, DType::E4m3, DType::U8] {
        let weights = Weights::new(dtype, 3, ScaleFormat::F32);
        let tokens = Tokens::new(1, 5, 3);
        let outcomes = calls(&world(1, "sm_90a"), &weights, &[vec![tokens.clone()]], None);
        assert_eq!(outcomes[0].0[0], tokens.alone(&weights, &Device::sim()), "{dtype}");
    }
}

#[test]
fn rows_behind_the_limit_are_dropped_and_told() {
    let weights = Weights::new(DType::Bf16, 2, ScaleFormat::F32);
    // All tokens to the first expert of rank 0: 12 tokens with three choices each.
    let tokens = Tokens { ids: vec![0; MOST * TOPK], ..Tokens::new(1, MOST, 2) };
    let both = vec![vec![tokens.clone(), tokens.clone()]];
    let outcomes = calls(&world(2, "sm_90a"), &weights, &both, Some(16));
    let text = outcomes[0].1.as_ref().unwrap_err().to_string();
    assert!(text.contains("rank 0 had more rows") && text.contains("most_rows"), "{text}");
    outcomes[1].1.as_ref().unwrap();
    // Rank 0 comes first: its tokens have all of their rows.
    assert!(calc_diff(&outcomes[0].0[0], &tokens.alone(&weights, &Device::cpu())) < 2e-5);
    // With room for all of them nothing is dropped.
    let outcomes = calls(&world(2, "sm_90a"), &weights, &both, Some(2 * MOST * TOPK));
    for (results, check) in &outcomes {
        check.as_ref().unwrap();
        assert!(calc_diff(&results[0], &tokens.alone(&weights, &Device::cpu())) < 2e-5);
    }
}

#[test]
fn rows_of_experts_are_counted() {
    let weights = Weights::new(DType::Bf16, 4, ScaleFormat::F32);
    let tokens = Tokens { ids: vec![0, 3, 3, 3, 1, -1], ..Tokens::new(1, 2, 4) };
    let world = world(2, "sm_90a");
    let counts = world.each_rank(|rank| {
        let mut own = Rank::new(rank, &weights, &shape(2, &weights), None);
        let counts = Tensor::from_slice(&[10i32, 20], &[2], &rank.device()).unwrap();
        let call = MoeGroupCall { counts: Some(&counts), ..MoeGroupCall::default() };
        own.forward(&tokens, call).unwrap();
        rank.meet(0).unwrap();
        counts.to_vec::<i32>().unwrap()
    });
    assert_eq!(counts.unwrap(), [[12, 22], [10, 26]]);
}
