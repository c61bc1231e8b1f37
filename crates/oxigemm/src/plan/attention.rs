//! Plans of MQA logits: the grid of a prefill.

use oxigemm_kernels::attention::sm90::mqa_logits;
use oxigemm_kernels::attention::{HeadTile, TILE_KEYS};

use crate::check::MqaProblem;

/// The launch of a prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MqaPlan {
    /// The kernel.
    pub config: mqa_logits::Config,
    /// Blocks of the grid.
    pub blocks: u32,
}

impl MqaPlan {
    /// The plan for a problem on a device with this many SMs.
    ///
    /// Only the device knows which keys a query attends to, so the kernel itself splits the work evenly over the
    /// blocks.
    #[must_use]
    pub fn best(problem: &MqaProblem, sms: u32) -> MqaPlan {
        let config = mqa_logits::Config { tile: HeadTile::of(problem.heads) };
        let query_blocks = u64::from(problem.queries.div_ceil(config.block_queries()));
        let tiles = query_blocks * u64::from(problem.keys.div_ceil(TILE_KEYS));
        MqaPlan { config, blocks: tiles.min(sms.into()) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Logits;
    use crate::tensor::dtype::DType;
    use oxigemm_kernels::attention::Heads;

    fn plan(queries: u32, keys: u32) -> MqaPlan {
        let problem = MqaProblem {
            heads: Heads { heads: 64, dim: 128 },
            queries,
            keys,
            columns: keys,
            kv_pitch: 128,
            weights_pitch: 64,
            logits_pitch: keys,
            form: Logits::Clean,
            logits_type: DType::F32,
        };
        MqaPlan::best(&problem, 132)
    }

    #[test]
    fn there_are_no_more_blocks_than_tiles() {
        assert_eq!(plan(1, 65536).blocks, 132);
        assert_eq!(plan(1, 1000).blocks, 8);
        assert_eq!(plan(1, 100).blocks, 1);
        assert_eq!(plan(9, 100).blocks, 3);
    }
}
