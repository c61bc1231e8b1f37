//! Layers of public models: GEMMs as inference engines launch them.
//!
//! A benchmark of fixed cases says how fast these are, and nothing of others. Here rows, weights, group sizes and
//! layouts of scales are drawn, so that a planner can be fitted to some draws and judged by others.

use oxigemm::GemmLayout;
use oxigemm_testkit::{BF16, FP8, FP8_FP4, GemmCase, GroupLayout, MGroups, ScaleOrder, spread};

/// N and K of weights: of attention, of dense layers, whole or split over some GPUs.
pub const LAYERS: [[usize; 2]; 33] = [
    // DeepSeek V3
    [2112, 7168],
    [3072, 1536],
    [4608, 7168],
    [7168, 2304],
    [7168, 2048],
    [7168, 16384],
    [18432, 7168],
    [7168, 18432],
    [24576, 1536],
    [1536, 7168],
    // Qwen3
    [9216, 4096],
    [4096, 8192],
    [5120, 2048],
    [2048, 4096],
    // Llama, 70 and 8 billion parameters
    [10240, 8192],
    [8192, 8192],
    [57344, 8192],
    [8192, 28672],
    [7168, 8192],
    [8192, 3584],
    [1280, 8192],
    [8192, 1024],
    [6144, 4096],
    [28672, 4096],
    [4096, 14336],
    // Others
    [5120, 5120],
    [27648, 5120],
    [5120, 13824],
    [12288, 4096],
    [2880, 2880],
    [5760, 2880],
    [4096, 1280],
    [5120, 1792],
];

/// Experts of a GPU, N and K of each.
pub const EXPERTS: [[usize; 3]; 18] = [
    [32, 4096, 7168],
    [32, 7168, 2048],
    [8, 4096, 7168],
    [8, 7168, 2048],
    [128, 1536, 4096],
    [128, 4096, 768],
    [16, 3072, 4096],
    [16, 4096, 1536],
    [48, 4096, 7168],
    [48, 7168, 2048],
    [64, 2816, 2048],
    [64, 2048, 1408],
    [8, 28672, 4096],
    [8, 4096, 14336],
    [256, 512, 7168],
    [256, 7168, 256],
    [32, 5760, 2880],
    [32, 2880, 2880],
];

/// Rows of all groups of a contiguous case, at most.
const MOST_ROWS: usize = 80_000;
/// Alignment of contiguous groups, as engines have it.
const ALIGNMENT: usize = 128;

/// A drawn case.
pub struct ModelCase {
    /// Its name, such as `fp8_masked g32 em20 n7168 k2048 skewed mn`.
    pub name: String,
    /// What is computed.
    pub gemm: GemmCase,
}

/// Random numbers of a seed, each from 0 to 1.
pub struct Uniform {
    seed: u64,
    next: u64,
}

impl Uniform {
    /// Numbers of a seed; those of each stream are others.
    pub fn new(seed: u64, stream: u64) -> Uniform {
        Uniform { seed: oxigemm::random::bits(seed, stream), next: 0 }
    }

    /// The next number.
    pub fn next(&mut self) -> f64 {
        self.next += 1;
        oxigemm::random::bits(self.seed, self.next) as f64 / 2f64.powi(64)
    }

    /// One of a list.
    pub fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[((self.next() * from.len() as f64) as usize).min(from.len() - 1)]
    }

    /// A size whose logarithm is uniform.
    pub fn rows(&mut self, [low, high]: [f64; 2]) -> usize {
        2f64.powf(low + (high - low) * self.next()) as usize
    }

    /// Sizes of groups as a router gives them: a few hot experts, many cold ones.
    pub fn skewed(&mut self, groups: usize, rows: usize) -> Vec<usize> {
        let weights: Vec<f64> = (0..groups).map(|_| (1.0 - self.next()).powf(-1.0 / 1.2)).collect();
        let all: f64 = weights.iter().sum();
        weights.iter().map(|weight| (weight / all * (rows * groups) as f64) as usize).collect()
    }
}

/// The cases of a seed.
pub fn draw(seed: u64, count: usize) -> Vec<ModelCase> {
    let mut random = Uniform { seed: seed.wrapping_mul(0x9e37_79b9).wrapping_add(77), next: 0 };
    let mut cases = Vec::new();
    while cases.len() < count {
        cases.extend(draw_one(&mut random));
    }
    cases
}

/// FP8 by MXFP4 with the weights of some layers, at rows from those of a decode step to those of a prompt.
pub fn widened() -> Vec<ModelCase> {
    const LAYERS: [[usize; 2]; 4] = [[4096, 7168], [7168, 2048], [24576, 1536], [7168, 16384]];
    const EXPERTS: [[usize; 3]; 3] = [[32, 4096, 7168], [32, 7168, 2048], [128, 1536, 4096]];
    let rows =
        |up_to: usize| [1, 4, 16, 32, 64, 128, 256, 1024, 4096].into_iter().filter(move |m| *m <= up_to);
    let dense = LAYERS.into_iter().flat_map(|[n, k]| rows(4096).map(move |m| [m, n, k]));
    let dense = dense.map(|dims @ [m, n, k]| ModelCase {
        name: format!("fp8-fp4_dense m{m} n{n} k{k}"),
        gemm: GemmCase::dense(FP8_FP4, GemmLayout::Nt, dims),
    });
    let experts = EXPERTS.into_iter().flat_map(|[groups, n, k]| rows(256).map(move |m| (groups, [m, n, k])));
    let experts = experts.map(|(groups, [m, n, k])| ModelCase {
        name: format!("fp8-fp4_masked g{groups} em{m} n{n} k{k}"),
        gemm: GemmCase {
            m,
            sfa: ScaleOrder::Mn,
            ..GemmCase::m_grouped(
                FP8_FP4,
                MGroups::new(GroupLayout::Counts, spread(groups, m, m as u64)),
                [n, k],
            )
        },
    });
    dense.chain(experts).collect()
}

/// The next case, unless it is one that no engine has.
fn draw_one(random: &mut Uniform) -> Option<ModelCase> {
    let (kind, mn_major) = (random.next(), random.next() < 0.5);
    let sfa = if mn_major { ScaleOrder::Mn } else { ScaleOrder::Row };
    let scales = if mn_major { " mn" } else { "" };
    if kind < 0.62 {
        let (m, [n, k]) = (random.rows([-0.5, 13.3]).max(1), random.of(&LAYERS));
        let (types, scales) = if kind < 0.46 { (FP8, scales) } else { (BF16, "") };
        let name = format!("{}_dense m{m} n{n} k{k}{scales}", types.name);
        let gemm = GemmCase { sfa, ..GemmCase::dense(types, GemmLayout::Nt, [m, n, k]) };
        return Some(ModelCase { name, gemm });
    }
    let ([groups, n, k], skewed) = (random.of(&EXPERTS), random.next() < 0.5);
    let masked = kind < 0.81;
    let rows = random.rows(if masked { [1.0, 8.5] } else { [4.0, 11.0] });
    let unusual = if masked { groups > 128 } else { rows * groups > MOST_ROWS };
    if k % 128 != 0 || unusual {
        return None;
    }
    let sizes = match skewed {
        true => random.skewed(groups, rows),
        false => spread(groups, rows, random.next().to_bits()),
    };
    let layout = if masked { GroupLayout::Counts } else { GroupLayout::Ids };
    let most = (4 * rows).next_multiple_of(ALIGNMENT).clamp(ALIGNMENT, 4096);
    let sizes: Vec<usize> =
        sizes.into_iter().map(|size| if masked { size.min(most) } else { size }).collect();
    if sizes.iter().all(|size| *size == 0) {
        return None;
    }
    let of_groups = MGroups { max_m: most, ..MGroups::new(layout, sizes) };
    let kind = if masked { "fp8_masked" } else { "fp8_contig" };
    let skew = if skewed { " skewed" } else { "" };
    let name = format!("{kind} g{groups} em{rows} n{n} k{k}{skew}{scales}");
    let gemm = GemmCase { m: rows, sfa, ..GemmCase::m_grouped(FP8, of_groups, [n, k]) };
    Some(ModelCase { name, gemm })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_of_a_seed_are_the_same_however_many_are_drawn() {
        let names = |count| draw(5, count).into_iter().map(|case| case.name).collect::<Vec<_>>();
        assert_eq!(names(40)[..20], names(20)[..]);
        assert_ne!(draw(6, 1)[0].name, names(1)[0]);
    }

    #[test]
    fn every_family_is_drawn() {
        let cases = draw(1, 200);
        for family in ["fp8_dense", "bf16_dense", "fp8_masked", "fp8_contig", "skewed", " mn"] {
            let count = cases.iter().filter(|case| case.name.contains(family)).count();
            assert!(count > 10, "{family}: {count}");
        }
    }
}
