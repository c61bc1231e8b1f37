//! The closed set of kernels that multiply: their tiles and stages.

use crate::gemm::epilogue::fusion::Fusion;
use crate::gemm::launch::{GemmKernel, OperandKind};
use crate::gemm::operand::f16::{Major, Operands};
use crate::gemm::operand::fp8::E5m2;
use crate::gemm::params::ScalesOfB;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::sm90::f16_persistent;
use crate::gemm::sm90::fp8_persistent;
use crate::gemm::sm90::split_k;
use crate::gemm::transpose;
use oxigemm_ptx::{BuildError, Module};

const WIDE: &[(u32, u32, u32)] = &[
    (256, 128, 3),
    (128, 96, 5),
    (128, 112, 5),
    (128, 128, 5),
    (128, 144, 4),
    (128, 160, 4),
    (128, 176, 4),
    (128, 192, 4),
    (64, 64, 12),
    (64, 128, 8),
    (64, 256, 4),
];
const SLIM: &[(u32, u32)] = &[
    (8, 64),
    (16, 64),
    (32, 64),
    (64, 64),
    (128, 64),
    (8, 128),
    (16, 128),
    (32, 128),
    (64, 128),
    (128, 128),
];

/// Tiles of the many-row kernels of 16-bit operands in every layout, and those of K-major operands alone.
const HALF_WIDE: &[(u32, u32, u32)] = &[(256, 128, 3), (128, 128, 6)];
const HALF_WIDE_NT: &[(u32, u32, u32)] =
    &[(128, 256, 3), (128, 192, 4), (128, 176, 4), (128, 144, 5), (64, 128, 8)];
/// Tiles of the few-row kernels where A is K-major, and those where B is too.
const HALF_SLIM: &[(u32, u32)] = &[(8, 64), (64, 64)];
const HALF_SLIM_NT: &[(u32, u32)] = &[(32, 64), (128, 64), (128, 128)];

/// The kernels of 16-bit operands.
fn half_kernels() -> impl Iterator<Item = GemmKernel> {
    Operands::all().flat_map(|operands| {
        let k_major = operands.layout() == "nt";
        let wide = HALF_WIDE.iter().chain(if k_major { HALF_WIDE_NT } else { &[] });
        let slim = if operands.a == Major::K { HALF_SLIM } else { &[] };
        let slim = slim.iter().chain(if k_major { HALF_SLIM_NT } else { &[] });
        let wide = wide.map(move |&(block_m, block_n, stages)| {
            half_wide(operands, block_m, block_n, stages, Grouping::Dense)
        });
        wide.chain(
            slim.map(move |&(block_m, block_n)| GemmKernel::HalfSlim(half_slim(operands, block_m, block_n))),
        )
    })
}

fn half_slim(operands: Operands, block_m: u32, block_n: u32) -> split_k::f16::Config {
    split_k::f16::Config { operands, block_m, block_n, summed: false, fusion: Fusion::None }
}

fn half_wide(operands: Operands, block_m: u32, block_n: u32, stages: u32, grouping: Grouping) -> GemmKernel {
    GemmKernel::HalfWide(f16_persistent::Config {
        operands,
        block_m,
        block_n,
        stages,
        grouping,
        fusion: Fusion::None,
    })
}

/// Tiles of the 16-bit kernels whose rows are grouped, where A is K-major, and those where B is too.
const HALF_GROUPED: &[(u32, u32, u32)] = &[(256, 128, 3), (128, 128, 6), (64, 128, 8)];
const HALF_GROUPED_NT: &[(u32, u32, u32)] = &[(128, 256, 3), (64, 256, 4)];

fn half_grouped() -> impl Iterator<Item = GemmKernel> {
    Operands::all().filter(|operands| operands.a == Major::K).flat_map(|operands| {
        let more = if operands.b == Major::K { HALF_GROUPED_NT } else { &[] };
        HALF_GROUPED.iter().chain(more).map(move |&(block_m, block_n, stages)| {
            half_wide(operands, block_m, block_n, stages, Grouping::Rows)
        })
    })
}

/// Tiles of the kernels with operands that are e5m2: many rows and few.
const E5M2_WIDE: &[(u32, u32, u32)] = &[(256, 128, 3), (128, 128, 5), (64, 128, 8)];
const E5M2_SLIM: &[(u32, u32)] = &[(8, 64), (64, 64)];

/// The kernels with operands that are e5m2.
fn e5m2_kernels() -> impl Iterator<Item = GemmKernel> {
    E5m2::ALL.into_iter().map(Some).flat_map(|e5m2| {
        let wide = wide(E5M2_WIDE, Grouping::Dense, ScalesOfB::Blocks)
            .map(move |config| GemmKernel::Wide(fp8_persistent::Config { e5m2, ..config }));
        wide.chain(
            E5M2_SLIM.iter().map(move |&tile| GemmKernel::Slim(split_k::fp8::Config { e5m2, ..slim(tile) })),
        )
    })
}

/// Those of which rows are grouped.
const GROUPED: &[(u32, u32, u32)] =
    &[(256, 128, 3), (128, 128, 5), (128, 192, 4), (64, 64, 12), (64, 96, 10), (64, 128, 8), (64, 256, 4)];

/// Those of batches, whose D may lie row beside row.
const BATCHED: &[(u32, u32, u32)] = &[(256, 128, 3), (128, 128, 5), (64, 128, 8)];

/// Tiles of the kernels with a scale for each row of B.
const ROW_SCALES: &[(u32, u32, u32)] = &[(128, 128, 4), (64, 128, 6)];

/// Tiles of the kernels that add the products of a batch up: K-major, as few of them as K is long.
const HALF_SUMMED: &[(u32, u32)] = &[(64, 64), (128, 128)];

fn half_summed() -> impl Iterator<Item = GemmKernel> {
    Operands::all().filter(|operands| operands.layout() == "nt").flat_map(|operands| {
        HALF_SUMMED.iter().map(move |&(block_m, block_n)| {
            GemmKernel::HalfSlim(split_k::f16::Config {
                summed: true,
                ..half_slim(operands, block_m, block_n)
            })
        })
    })
}

/// Tiles of the 16-bit kernels whose groups are along K, where both operands have the same major.
const HALF_K_GROUPED: &[(u32, u32, u32)] = &[(256, 128, 3), (128, 128, 6)];

fn half_k_grouped() -> impl Iterator<Item = GemmKernel> {
    Operands::all().filter(|operands| operands.a == operands.b).flat_map(|operands| {
        HALF_K_GROUPED.iter().map(move |&(block_m, block_n, stages)| {
            half_wide(operands, block_m, block_n, stages, Grouping::K)
        })
    })
}

/// Those of which groups are along K.
const K_GROUPED: &[(u32, u32, u32)] = &[(128, 128, 4)];

/// Tiles of the 16-bit kernels whose sums are finished before they are stored, as they are or with a gate: high ones, in which a
/// warpgroup has the 128 columns of D that share a scale, and low ones.
const HALF_FUSED: &[(u32, u32, u32)] = &[(256, 128, 3), (64, 128, 8)];
const HALF_GATED: &[(u32, u32, u32)] = &[(128, 256, 4), (64, 128, 7), (64, 64, 10)];

/// The same where rows are grouped: one each, of which a warpgroup without rows multiplies nothing.
const HALF_FUSED_GROUPED: &[(u32, u32, u32)] = &[(128, 128, 5)];
const HALF_GATED_GROUPED: &[(u32, u32, u32)] = &[(128, 256, 3)];

fn half_fused(grouping: Grouping) -> impl Iterator<Item = GemmKernel> {
    let [elementwise, gated] = match grouping {
        Grouping::Rows => [HALF_FUSED_GROUPED, HALF_GATED_GROUPED],
        Grouping::Dense | Grouping::K => [HALF_FUSED, HALF_GATED],
    };
    Operands::all().filter(|operands| operands.layout() == "nt").flat_map(move |operands| {
        [(Fusion::Elementwise, elementwise), (Fusion::Gated, gated)].into_iter().flat_map(
            move |(fusion, tiles)| {
                tiles.iter().map(move |&(block_m, block_n, stages)| {
                    GemmKernel::HalfWide(f16_persistent::Config {
                        operands,
                        block_m,
                        block_n,
                        stages,
                        grouping,
                        fusion,
                    })
                })
            },
        )
    })
}

/// Those whose sums are finished before they are stored; and a small one for few rows, which are not grouped.
const FUSED: &[(u32, u32, u32)] = &[(256, 128, 3), (128, 128, 5), (64, 128, 6)];
const FUSED_DENSE: &[(u32, u32, u32)] = &[(64, 64, 10)];

fn wide(
    tiles: &[(u32, u32, u32)],
    grouping: Grouping,
    scales_of_b: ScalesOfB,
) -> impl Iterator<Item = fp8_persistent::Config> {
    tiles.iter().map(move |&(block_m, block_n, stages)| fp8_persistent::Config {
        block_m,
        block_n,
        stages,
        grouping,
        d_in_slabs: false,
        scales_of_b,
        e5m2: None,
        fusion: Fusion::None,
        stream_k: false,
    })
}

fn slim((block_m, block_n): (u32, u32)) -> split_k::fp8::Config {
    split_k::fp8::Config { block_m, block_n, e5m2: None, fusion: Fusion::None }
}

/// Tiles of the few-row kernels whose sums are finished, as they are or with a gate: 128 columns of D, which share a scale.
const SLIM_FUSED: &[(u32, u32)] = &[(8, 128), (32, 128), (64, 128), (128, 128)];
const SLIM_GATED: &[(u32, u32)] = &[(8, 256), (32, 256), (64, 256)];

fn slim_tiles(fusion: Fusion) -> impl Iterator<Item = (u32, u32)> {
    let tiles = match fusion {
        Fusion::None => &[],
        Fusion::Elementwise => SLIM_FUSED,
        Fusion::Gated => SLIM_GATED,
    };
    tiles.iter().copied()
}

/// The few-row kernels whose sums are finished.
fn slim_fused() -> impl Iterator<Item = GemmKernel> {
    let fusions = [Fusion::Elementwise, Fusion::Gated];
    let fp8 = fusions.into_iter().flat_map(|fusion| {
        slim_tiles(fusion).map(move |tile| GemmKernel::Slim(split_k::fp8::Config { fusion, ..slim(tile) }))
    });
    let half = Operands::all().filter(|operands| operands.layout() == "nt").flat_map(move |operands| {
        fusions.into_iter().flat_map(move |fusion| {
            slim_tiles(fusion).map(move |(block_m, block_n)| {
                GemmKernel::HalfSlim(split_k::f16::Config { fusion, ..half_slim(operands, block_m, block_n) })
            })
        })
    });
    fp8.chain(half)
}

/// Tiles of the kernels that share out those that fill no round.
const SHARED: &[(u32, u32, u32)] = &[(256, 128, 3)];

fn wide_fused(grouping: Grouping) -> impl Iterator<Item = GemmKernel> {
    let more = if grouping == Grouping::Dense { FUSED_DENSE } else { &[] };
    [Fusion::Elementwise, Fusion::Gated].into_iter().flat_map(move |fusion| {
        let configs =
            [FUSED, more].into_iter().flat_map(move |tiles| wide(tiles, grouping, ScalesOfB::Blocks));
        configs.map(move |config| GemmKernel::Wide(fp8_persistent::Config { fusion, ..config }))
    })
}

impl GemmKernel {
    /// Every kernel that exists: no shape ever needs another.
    pub fn all() -> impl Iterator<Item = GemmKernel> {
        let products = GemmKernel::dense().chain(GemmKernel::grouped()).chain(GemmKernel::k_grouped());
        let products =
            products.chain(GemmKernel::fused()).chain(GemmKernel::summed()).chain(GemmKernel::batched());
        products.chain(GemmKernel::fused_grouped()).chain([GemmKernel::Transpose])
    }

    /// The kernels of one product.
    pub fn dense() -> impl Iterator<Item = GemmKernel> {
        let slim = SLIM.iter().copied().map(slim);
        wide(WIDE, Grouping::Dense, ScalesOfB::Blocks)
            .chain(
                wide(SHARED, Grouping::Dense, ScalesOfB::Blocks)
                    .map(|config| fp8_persistent::Config { stream_k: true, ..config }),
            )
            .map(GemmKernel::Wide)
            .chain(slim.map(GemmKernel::Slim))
            .chain(wide(ROW_SCALES, Grouping::Dense, ScalesOfB::Rows).map(GemmKernel::Wide))
            .chain(half_kernels())
            .chain(e5m2_kernels())
    }

    /// The kernels whose rows are grouped.
    pub fn grouped() -> impl Iterator<Item = GemmKernel> {
        wide(GROUPED, Grouping::Rows, ScalesOfB::Blocks).map(GemmKernel::Wide).chain(half_grouped())
    }

    /// The kernels whose groups are along K.
    pub fn k_grouped() -> impl Iterator<Item = GemmKernel> {
        wide(K_GROUPED, Grouping::K, ScalesOfB::Rows).map(GemmKernel::Wide).chain(half_k_grouped())
    }

    /// The kernels of batches of FP8 products.
    pub fn batched() -> impl Iterator<Item = GemmKernel> {
        wide(BATCHED, Grouping::Rows, ScalesOfB::Blocks)
            .map(|config| GemmKernel::Wide(fp8_persistent::Config { d_in_slabs: true, ..config }))
    }

    /// The kernels that add the products of a batch up.
    pub fn summed() -> impl Iterator<Item = GemmKernel> {
        half_summed()
    }

    /// The kernels that finish their sums before they store them.
    pub fn fused() -> impl Iterator<Item = GemmKernel> {
        wide_fused(Grouping::Dense).chain(half_fused(Grouping::Dense)).chain(slim_fused())
    }

    /// The same whose rows are grouped.
    pub fn fused_grouped() -> impl Iterator<Item = GemmKernel> {
        wide_fused(Grouping::Rows).chain(half_fused(Grouping::Rows))
    }

    /// Whether rows are grouped.
    pub fn is_grouped(&self) -> bool {
        match self {
            GemmKernel::Wide(config) => config.is_grouped(),
            GemmKernel::HalfWide(config) => config.is_grouped(),
            GemmKernel::Slim(_) | GemmKernel::HalfSlim(_) | GemmKernel::Transpose => false,
        }
    }

    /// Whether the kernel is one for few rows.
    pub fn has_few_rows(&self) -> bool {
        matches!(self, GemmKernel::Slim(_) | GemmKernel::HalfSlim(_))
    }

    /// Whether the kernel computes batches and not other groups of rows.
    pub fn is_batched(&self) -> bool {
        matches!(self, GemmKernel::Wide(config) if config.d_in_slabs)
    }

    /// What the kernel does with its sums before it stores them.
    pub fn fusion(&self) -> Fusion {
        match self {
            GemmKernel::Wide(config) => config.fusion,
            GemmKernel::HalfWide(config) => config.fusion,
            GemmKernel::Slim(config) => config.fusion,
            GemmKernel::HalfSlim(config) => config.fusion,
            GemmKernel::Transpose => Fusion::None,
        }
    }

    /// What the kernel multiplies, or prepares for those that do.
    pub fn family(&self) -> OperandKind {
        match self {
            GemmKernel::Transpose => OperandKind::Fp8,
            GemmKernel::Wide(config) if config.scales_of_b == ScalesOfB::Rows => OperandKind::Fp8Rows,
            GemmKernel::Wide(fp8_persistent::Config { e5m2, .. })
            | GemmKernel::Slim(split_k::fp8::Config { e5m2, .. }) => {
                e5m2.map_or(OperandKind::Fp8, OperandKind::Fp8E5m2)
            }
            GemmKernel::HalfWide(config) => OperandKind::Half(config.operands),
            GemmKernel::HalfSlim(config) => OperandKind::Half(config.operands),
        }
    }

    /// The kernel's name, which is also the entry's.
    pub fn name(&self) -> String {
        match self {
            GemmKernel::Transpose => transpose::NAME.to_owned(),
            GemmKernel::Wide(config) => config.name(),
            GemmKernel::Slim(config) => config.name(),
            GemmKernel::HalfWide(config) => config.name(),
            GemmKernel::HalfSlim(config) => config.name(),
        }
    }

    /// Writes the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        match self {
            GemmKernel::Transpose => transpose::build(),
            GemmKernel::Wide(config) => config.build(),
            GemmKernel::Slim(config) => config.build(),
            GemmKernel::HalfWide(config) => config.build(),
            GemmKernel::HalfSlim(config) => config.build(),
        }
    }
}
