//! Plans of indexer logits: how many blocks a prefill has.

use oxigemm_kernels::attention::TILE_KEYS;
use oxigemm_kernels::attention::mqa_logits;

use crate::check::MqaProblem;

/// How a prefill is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MqaPlan {
    /// The kernel.
    pub config: mqa_logits::Config,
    /// Blocks of the grid.
    pub blocks: u32,
}

impl MqaPlan {
    /// The plan for a problem on a device with so many multiprocessors.
    ///
    /// Which keys queries see only the device knows, so it is the kernel that gives all blocks the same to do.
    #[must_use]
    pub fn best(problem: &MqaProblem, sms: u32) -> MqaPlan {
        let config = mqa_logits::Config { heads: problem.heads };
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
