//! Plans of MQA logits: the kernel and, for a prefill, its grid.

use oxigemm_kernels::Arch;
use oxigemm_kernels::attention::sm90::{mqa_logits, paged_mqa_logits};
use oxigemm_kernels::attention::{Config, Format, HeadTile, TILE_KEYS, sm100};

use crate::check::{MqaProblem, PagedMqaProblem};
use crate::error::{Error, Result};

/// The launch of a prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MqaPlan {
    /// The kernel.
    pub config: Config,
    /// The heads that it has.
    pub tile: HeadTile,
    /// Queries of a work unit.
    pub unit_queries: u32,
    /// Blocks of the grid.
    pub blocks: u32,
}

impl MqaPlan {
    /// The plan for a problem on a device with this many SMs.
    ///
    /// Only the device knows which keys a query attends to, so the kernel itself splits the work evenly over the
    /// blocks.
    ///
    /// # Errors
    /// Where the architecture has no kernel for the operands.
    pub fn best(problem: &MqaProblem, arch: Arch, sms: u32) -> Result<MqaPlan> {
        let (config, tile, unit_queries) = match arch {
            Arch::Sm90a => {
                refuse_fp4(problem.format, arch)?;
                let config = mqa_logits::Config { tile: HeadTile::of(problem.heads) };
                (Config::MqaLogits(config), config.tile, config.block_queries())
            }
            Arch::Sm100a => {
                let config = sm100::Config::of(sm100::Keys::Matrix, problem.format, problem.heads);
                (Config::Sm100(config), config.tile(), config.unit_queries())
            }
        };
        let query_blocks = u64::from(problem.queries.div_ceil(unit_queries));
        let tiles = query_blocks * u64::from(problem.keys.div_ceil(TILE_KEYS));
        Ok(MqaPlan { config, tile, unit_queries, blocks: tiles.min(sms.into()) as u32 })
    }
}

/// The launch of a decode step, whose grid is the caller's schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagedMqaPlan {
    /// The kernel.
    pub config: Config,
    /// The heads that it has.
    pub tile: HeadTile,
    /// Most queries of a work unit.
    pub unit_queries: u32,
}

impl PagedMqaPlan {
    /// The plan for a problem.
    ///
    /// # Errors
    /// Where the architecture has no kernel for the operands.
    pub fn best(problem: &PagedMqaProblem, arch: Arch) -> Result<PagedMqaPlan> {
        let PagedMqaProblem { format, heads, next, page_keys, .. } = *problem;
        let (config, tile, unit_queries) = match arch {
            Arch::Sm90a => {
                refuse_fp4(format, arch)?;
                let config = paged_mqa_logits::Config::of(heads, next, page_keys);
                (Config::PagedMqaLogits(config), config.tile, config.unit_queries())
            }
            Arch::Sm100a => {
                let config = sm100::Config::of(sm100::Keys::Pages, format, heads);
                (Config::Sm100(config), config.tile(), config.unit_queries())
            }
        };
        Ok(PagedMqaPlan { config, tile, unit_queries })
    }
}

fn refuse_fp4(format: Format, arch: Arch) -> Result<()> {
    match format {
        Format::Fp8 => Ok(()),
        Format::Fp4 => Err(Error::DType {
            argument: "q",
            expected: format!("e4m3, as {arch} has no tensor core for FP4"),
            found: "FP4 with scales".to_owned(),
        }),
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
            format: Format::Fp8,
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
        MqaPlan::best(&problem, Arch::Sm90a, 132).expect("a plan")
    }

    #[test]
    fn there_are_no_more_blocks_than_tiles() {
        assert_eq!(plan(1, 65536).blocks, 132);
        assert_eq!(plan(1, 1000).blocks, 8);
        assert_eq!(plan(1, 100).blocks, 1);
        assert_eq!(plan(9, 100).blocks, 3);
    }
}
