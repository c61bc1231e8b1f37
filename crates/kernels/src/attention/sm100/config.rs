//! Configuration, shared-memory map and tensor-memory map.

use crate::attention::paged::scale_pitch;
use crate::attention::prefill;
use crate::attention::shape::{Format, HeadTile, Heads, TILE_KEYS};
use crate::attention::smem::{SLOTS, SmemShape};
use crate::common::WARP;
use crate::common::pipeline::Pipeline;
use crate::common::tensor_memory::least_shared_bytes;
use crate::gemm::sm100::scales::{GROUP_BYTES, GROUP_COLUMNS};
use oxigemm_ptx::tcgen05::{BlockScale, Element, Instruction, Kind, OutputType, TensorMemory};
use oxigemm_ptx::wgmma::Swizzle;
use oxigemm_ptx::{BuildError, Kernel, Module, SharedLayout, Target};

/// Numbers of heads that there are kernels for: a query of fewer heads is padded to the next of them.
pub const HEADS: [u32; 3] = [32, 64, 128];

/// Warpgroups that take the tiles in turn, each with an accumulator.
pub(super) const EPILOGUE_GROUPS: u32 = 2;
pub(super) const WARPGROUP_WARPS: u32 = 4;
pub(super) const EPILOGUE_WARPS: u32 = EPILOGUE_GROUPS * WARPGROUP_WARPS;
pub(super) const WARPS: u32 = EPILOGUE_WARPS + 3 + prefill::FILL_WARPS;
pub(super) const THREADS: u32 = WARPS * WARP;
/// Columns of tensor memory that are allocated.
pub(super) const ALLOCATED_COLUMNS: u32 = TensorMemory::COLUMNS;
/// Bytes of all stages of pages at most. More loads in flight evict more from L2; see Hopper's kernel.
const MAX_PAGED_BYTES: u32 = 100 << 10;

/// Where keys are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keys {
    /// In one matrix: a prefill.
    Matrix,
    /// In pages: a decode step.
    Pages,
}

/// Compile-time configuration. Shapes, ranges, lengths, the page size and the output type are arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Where keys are.
    pub keys: Keys,
    /// Element types.
    pub format: Format,
    /// Heads of a query, padding included, and the head dimension in elements.
    pub heads: Heads,
}

impl Config {
    /// All that there are.
    pub fn all() -> impl Iterator<Item = Config> {
        let formats = [Keys::Matrix, Keys::Pages]
            .into_iter()
            .flat_map(|keys| [Format::Fp8, Format::Fp4].map(|format| (keys, format)));
        formats.flat_map(|(keys, format)| {
            HEADS.into_iter().flat_map(move |heads| {
                format.dims().iter().map(move |&dim| Config { keys, format, heads: Heads { heads, dim } })
            })
        })
    }

    /// The kernel for the heads of a query.
    ///
    /// # Panics
    /// Where there are more heads than the last of [`HEADS`].
    pub fn of(keys: Keys, format: Format, heads: Heads) -> Config {
        let most = HEADS.into_iter().find(|&most| most >= heads.heads).expect("at most MAX_HEADS");
        Config { keys, format, heads: Heads { heads: most, ..heads } }
    }

    /// Name of the kernel, unique in the registry.
    pub fn name(&self) -> String {
        let format = match self.format {
            Format::Fp8 => "fp8",
            Format::Fp4 => "fp4",
        };
        let paged = match self.keys {
            Keys::Matrix => "",
            Keys::Pages => "paged_",
        };
        let Heads { heads, dim } = self.heads;
        format!("sm100_{format}_{paged}mqa_logits_h{heads}_d{dim}")
    }

    /// The heads, as a kernel of any architecture has them.
    pub fn tile(&self) -> HeadTile {
        HeadTile { heads: self.heads, padded: true }
    }

    /// Columns of an accumulator: the heads of a unit. Beside two accumulators of 256, there would be no room for scales.
    pub(super) fn columns(&self) -> u32 {
        match self.format {
            Format::Fp8 => 256,
            Format::Fp4 => 128,
        }
    }

    /// Queries of a unit, and of one TMA load.
    pub fn unit_queries(&self) -> u32 {
        self.columns() / self.heads.heads
    }

    /// Threads of a CTA.
    pub fn threads(&self) -> u32 {
        THREADS
    }

    /// Bytes of dynamic shared memory.
    pub fn shared_bytes(&self) -> u32 {
        Map::new(self).bytes.max(least_shared_bytes(ALLOCATED_COLUMNS))
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        let k = Kernel::new(&self.name(), Target::Sm100a).threads(THREADS);
        match self.keys {
            Keys::Matrix => super::prefill::write(&k, self),
            Keys::Pages => super::paged::write(&k, self),
        }
        k.finish()
    }

    pub(super) fn row_bytes(&self) -> u32 {
        self.format.row_bytes(self.heads.dim)
    }

    /// Swizzle of rows in shared memory: as wide as a row.
    pub(super) fn swizzle(&self) -> Swizzle {
        Heads { dim: self.row_bytes(), ..self.heads }.swizzle()
    }

    pub(super) fn smem(&self) -> SmemShape {
        let (scale_pitch, words) = match self.keys {
            Keys::Matrix => (TILE_KEYS * 4, WARPS),
            Keys::Pages => (scale_pitch(), 0),
        };
        // The warps of one warpgroup, and the MMA.
        let readers = WARPGROUP_WARPS + 1;
        let (heads, row_bytes, queries) = (self.heads, self.row_bytes(), self.unit_queries());
        let one = SmemShape { heads, row_bytes, queries, stages: 1, scale_pitch, readers, words };
        let stages = match self.keys {
            Keys::Matrix if row_bytes == 128 => 8,
            Keys::Matrix => 12,
            Keys::Pages => (MAX_PAGED_BYTES / one.stage_bytes()).min(16),
        };
        // A stage is always read by the same warpgroup.
        SmemShape { stages: stages / EPILOGUE_GROUPS * EPILOGUE_GROUPS, ..one }
    }

    pub(super) fn kind(&self) -> Kind {
        match self.format {
            Format::Fp8 => Kind::F8f6f4(Element::E4m3, Element::E4m3),
            Format::Fp4 => Kind::Mxf4(BlockScale::Ue8m0Of32),
        }
    }

    /// An MMA of a tile of keys and the heads of some queries.
    pub(super) fn instruction(&self, queries: u32) -> Instruction {
        Instruction::new(self.kind(), OutputType::F32, TILE_KEYS, queries * self.heads.heads)
    }

    /// First columns of tensor memory of the scales of keys and of queries: behind the accumulators.
    pub(super) fn scale_columns(&self) -> [u32; 2] {
        let first = EPILOGUE_GROUPS * self.columns();
        [first, first + GROUP_COLUMNS]
    }
}

/// Shared memory behind that of [`Smem`](crate::attention::smem::Smem).
pub(super) struct Map {
    /// Scales of keys, stage by stage, and of queries, slot by slot, as the tensor core wants them.
    pub key_scales: u32,
    pub query_scales: u32,
    pub accumulator_barriers: u32,
    /// Address of the allocated tensor memory.
    pub allocation: u32,
    pub bytes: u32,
}

impl Map {
    pub fn new(cfg: &Config) -> Self {
        let mut layout = SharedLayout::default();
        let shape = cfg.smem();
        layout.place(shape.bytes(), 1024);
        let [stages, slots] = match cfg.format {
            Format::Fp8 => [0, 0],
            Format::Fp4 => [shape.stages, SLOTS],
        };
        let key_scales = layout.place(stages * GROUP_BYTES, 128);
        let query_scales = layout.place(slots * GROUP_BYTES, 128);
        let accumulator_barriers = layout.place(Pipeline::barrier_bytes(EPILOGUE_GROUPS), 8);
        let allocation = layout.place(8, 8);
        Map { key_scales, query_scales, accumulator_barriers, allocation, bytes: layout.bytes() }
    }

    /// Names the parts for the simulator's messages and timeline.
    pub fn name(&self, k: &Kernel, cfg: &Config) {
        if cfg.format == Format::Fp4 {
            k.name_shared("key_scales", self.key_scales, GROUP_BYTES, cfg.smem().stages);
            k.name_shared("query_scales", self.query_scales, GROUP_BYTES, SLOTS);
        }
        Pipeline::name_barriers(k, ["computed", "read"], self.accumulator_barriers, EPILOGUE_GROUPS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::sm100::scales::GROUP_ROWS;

    #[test]
    fn accumulators_and_scales_fit_tensor_memory() {
        for config in Config::all() {
            let [_, last] = config.scale_columns();
            let used = match config.format {
                Format::Fp8 => EPILOGUE_GROUPS * config.columns(),
                Format::Fp4 => last + GROUP_COLUMNS,
            };
            assert!(used <= ALLOCATED_COLUMNS, "{}: {used}", config.name());
            assert!(config.format == Format::Fp8 || config.columns() <= GROUP_ROWS);
        }
    }

    #[test]
    fn a_stage_belongs_to_one_warpgroup() {
        for config in Config::all() {
            assert!(config.smem().stages.is_multiple_of(EPILOGUE_GROUPS), "{}", config.name());
            assert!(config.smem().stages >= 2 * EPILOGUE_GROUPS, "{}", config.name());
        }
    }
}
