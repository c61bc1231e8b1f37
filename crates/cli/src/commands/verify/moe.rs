//! Checks of MoE permutation, unpermutation and padding rows: every byte as the CPU has it.

use oxigemm::{
    DType, Device, LaunchOptions, PermutedRows, Tensor, moe_permute, moe_rows, moe_unpermute, random,
    zero_padding_rows,
};

use super::random::Draw;
use super::{Check, Setup, ensure};
use crate::Failure;

pub fn checks(_: &Setup) -> Vec<Check> {
    vec![
        Check::anywhere("moe: tokens to random experts and back", random_cases),
        Check::anywhere("moe: repeats give the same bits", repeats),
        Check::with_kernels("moe: a graph reads the choices that are there when it is launched", replayed),
    ]
}

/// What is permuted.
#[derive(Clone, Copy, Debug)]
struct Case {
    tokens: usize,
    topk: usize,
    experts: usize,
    alignment: usize,
    rows: usize,
    columns: usize,
    seed: u64,
}

impl Case {
    fn draw(draw: &mut Draw, largest: usize) -> Case {
        let (tokens, topk) = (1 + draw.below(largest), draw.of(&[1, 2, 4, 6, 8, 9]));
        let experts = draw.of(&[1, 2, 7, 8, 32, 128, 256, 1000, 1024]);
        let alignment = draw.of(&[1, 16, 32, 64, 128]);
        let enough = moe_rows(tokens, topk, experts, alignment);
        let rows = draw.of(&[enough, enough, enough + 77]);
        let (columns, seed) = (draw.of(&[8, 31, 128, 520, 1024]), draw.below(1 << 20) as u64);
        Case { tokens, topk, experts, alignment, rows, columns, seed }
    }

    /// Choices, of which a few are no experts.
    fn ids(&self, seed: u64) -> Vec<i32> {
        let draw = |i: usize| random::bits(seed, i as u64) % (self.experts as u64 + 2);
        (0..self.tokens * self.topk).map(|i| draw(i) as i32 - 1).collect()
    }

    fn on(&self, device: &Device) -> Result<Operands, Failure> {
        let Case { tokens, topk, experts, rows, columns, seed, .. } = *self;
        let new = |dims: &[usize]| Tensor::zeros(DType::I32, dims, device);
        let normals = |dtype, dims: [usize; 2]| {
            Tensor::from_f32(dtype, &random::normals(seed, dims[0] * dims[1]), &dims, device)
        };
        Ok(Operands {
            ids: Tensor::from_slice(&self.ids(seed), &[tokens, topk], device)?,
            written: [new(&[rows])?, new(&[rows])?, new(&[experts])?, new(&[tokens, topk])?],
            rows: normals(DType::Bf16, [rows, columns])?,
            weights: normals(DType::F32, [tokens, topk])?,
            out: Tensor::zeros(DType::Bf16, &[tokens, columns], device)?,
            padded: normals(DType::Bf16, [rows, columns])?,
        })
    }
}

struct Operands {
    ids: Tensor,
    written: [Tensor; 4],
    rows: Tensor,
    weights: Tensor,
    out: Tensor,
    /// Rows of which those of no expert become zero.
    padded: Tensor,
}

impl Operands {
    fn run(&mut self, case: &Case, options: &LaunchOptions) -> oxigemm::Result<()> {
        let [tokens, groups, ends, places] = &mut self.written;
        moe_permute(&self.ids, case.alignment, PermutedRows { tokens, groups, ends, places }, options)?;
        moe_unpermute(&self.rows, &self.written[3], &self.weights, &mut self.out, options)?;
        zero_padding_rows(&self.written[1], case.experts, &mut self.padded, options)
    }

    fn bytes(&self) -> Result<Vec<Vec<u8>>, Failure> {
        self.written.iter().chain([&self.out, &self.padded]).map(|tensor| Ok(tensor.to_bytes()?)).collect()
    }
}

fn check(setup: &Setup, case: Case) -> Result<(), Failure> {
    setup.now(format!("{case:?}"));
    let run = |device: &Device| -> Result<Vec<Vec<u8>>, Failure> {
        let mut operands = case.on(device)?;
        operands.run(&case, &LaunchOptions::default())?;
        device.synchronize()?;
        operands.bytes()
    };
    ensure(run(&setup.device)? == run(&Device::Cpu)?, || format!("{case:?}: other bytes than on the CPU"))
}

/// Tokens of a simulated case are few.
fn largest(setup: &Setup) -> usize {
    if setup.device.as_cuda().is_some() { 3000 } else { 100 }
}

fn random_cases(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 91);
    let count = setup.count(60);
    for _ in 0..count {
        check(setup, Case::draw(&mut draw, largest(setup)))?;
    }
    Ok(format!("{count} calls, every byte as on the CPU"))
}

fn repeats(setup: &Setup) -> Result<String, Failure> {
    let case = Case::draw(&mut Draw::new(setup, 92), largest(setup));
    let mut operands = case.on(&setup.device)?;
    setup.same_bits_again(&format_args!("{case:?}"), || {
        operands.run(&case, &LaunchOptions::default())?;
        operands.bytes()
    })?;
    Ok("no bit differs".to_owned())
}

fn replayed(setup: &Setup) -> Result<String, Failure> {
    let rows = moe_rows(50, 4, 16, 32);
    let case = Case { tokens: 50, topk: 4, experts: 16, alignment: 32, rows, columns: 128, seed: 1 };
    let stream = setup.device.new_stream()?;
    let options = LaunchOptions { stream: Some(stream.clone()), ..Default::default() };
    let mut operands = case.on(&setup.device)?;
    // The first call loads the kernels.
    operands.run(&case, &options)?;
    stream.synchronize()?;
    let graph = stream.capture(|_| operands.run(&case, &options))?;
    // Rows that became zero stay so.
    let mut expected = case.on(&Device::Cpu)?;
    expected.run(&case, &LaunchOptions::default())?;
    for seed in [2, 3, 4] {
        let ids = case.ids(seed);
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        operands.ids.write_bytes(&bytes)?;
        graph.launch(&stream)?;
        stream.synchronize()?;
        expected.ids.write_bytes(&bytes)?;
        expected.run(&case, &LaunchOptions::default())?;
        ensure(operands.bytes()? == expected.bytes()?, || {
            format!("choices {seed}: other bytes than the CPU")
        })?;
    }
    Ok("three replays, every byte as on the CPU".to_owned())
}
