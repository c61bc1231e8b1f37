//! Plans of indexer logits: how much of the keys a block of a prefill takes at a time.

use oxigemm_kernels::indexer::TILE_KEYS;
use oxigemm_kernels::mqa_logits;

use crate::check::MqaProblem;

/// Tiles of keys that a block may take at a time.
const CHUNKS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// What it costs to begin a chunk, in tiles.
const START: f64 = 0.25;

/// How a prefill is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MqaPlan {
    /// The kernel.
    pub config: mqa_logits::Config,
    /// Blocks of the grid.
    pub blocks: u32,
    /// Tiles of keys that a block takes at a time.
    pub chunk: u32,
}

impl MqaPlan {
    /// The plan for a problem on a device with so many multiprocessors.
    ///
    /// Which keys queries see only the device knows. So chunks are to be small, that blocks have about the same to do
    /// whatever it is, and large, that they seldom begin one.
    #[must_use]
    pub fn best(problem: &MqaProblem, sms: u32) -> MqaPlan {
        let config = mqa_logits::Config { heads: problem.heads };
        let query_blocks = u64::from(problem.queries.div_ceil(config.block_queries()));
        let tiles = problem.keys.div_ceil(TILE_KEYS);
        let units = |chunk: u32| query_blocks * u64::from(tiles.div_ceil(chunk));
        let cost = |chunk: u32| {
            let turns = (units(chunk) as f64 / f64::from(sms)).max(1.0);
            // The last turn is as good as any to have nothing to do in.
            turns * (f64::from(chunk) + START) + f64::from(chunk)
        };
        let chunk = CHUNKS.into_iter().min_by(|a, b| cost(*a).total_cmp(&cost(*b))).expect("there are some");
        MqaPlan { config, blocks: units(chunk).min(sms.into()) as u32, chunk }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::check::Logits;
    use oxigemm_kernels::indexer::Heads;

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
    fn few_queries_share_out_the_keys_and_many_take_large_chunks() {
        assert_eq!(plan(1, 65536).blocks, 132);
        assert_eq!(plan(1, 100).blocks, 1);
        assert!(plan(2048, 65536).chunk >= plan(2048, 8192).chunk);
        assert!(plan(2048, 8192).chunk >= 4);
    }
}
