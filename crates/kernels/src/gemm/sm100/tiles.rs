//! Tiles and stages of the Blackwell kernels: the closed set.

use super::{Kernel, persistent};
use crate::gemm::epilogue::fusion::Fusion;
use crate::gemm::kind::OperandKind;
use crate::gemm::operand::f16::Operands;
use crate::gemm::scheduler::m_grouped::Grouping;

/// Columns of a tile, whether a pair computes it, and pipeline stages.
type Tile = (u32, bool, u32);

/// 16-bit operands, dense, every layout.
const F16: &[Tile] = &[(256, true, 6), (128, true, 8), (128, false, 6)];

fn persistent(operands: OperandKind, tiles: &[Tile]) -> impl Iterator<Item = Kernel> {
    tiles.iter().map(move |&(block_n, pair, stages)| {
        Kernel::Persistent(persistent::Config {
            operands,
            block_n,
            pair,
            stages,
            grouping: Grouping::Dense,
            fusion: Fusion::None,
        })
    })
}

impl Kernel {
    /// Every kernel for Blackwell: no shape ever needs another.
    pub fn all() -> impl Iterator<Item = Kernel> {
        Operands::all().flat_map(|operands| persistent(OperandKind::f16(operands), F16))
    }
}
