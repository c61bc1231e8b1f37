//! Launches of the MQA logits kernels.

use oxigemm_cuda::{Element, L2Promotion, Swizzle, TiledTensor};
use oxigemm_kernels::attention::paged_metadata;
use oxigemm_kernels::attention::{Config, Format, HeadTile, Heads, LogitFlags, TILE_KEYS};

use crate::check::{
    Logits, MqaLogits, MqaProblem, PagedMqaLogits, PagedMqaProblem, PagedMqaSchedule, ScheduleProblem,
};
use crate::device::Device;
use crate::device::backend::{Backend, with_backend};
use crate::device::launch::{Geometry, KernelArg, KernelLaunch, KernelParams};
use crate::error::Result;
use crate::gemm::GemmOptions;
use crate::plan::{MqaPlan, PagedMqaPlan};
use crate::tensor::DType;

/// The SMs that a call may use.
fn sms(backend: &impl Backend, options: &GemmOptions) -> u32 {
    let most = backend.limits().sms;
    options.num_sms.map_or(most, |sms| sms.clamp(1, most))
}

/// Heads whose dimension is counted in bytes, as maps count it.
fn in_bytes(heads: Heads, format: Format) -> Heads {
    Heads { dim: format.row_bytes(heads.dim), ..heads }
}

/// The arguments of a kernel of FP8.
trait LogitArgs: KernelParams {
    /// And behind them what a kernel of FP4 takes: the address of Q's scales.
    fn with_q_scales(self, address: u64) -> impl KernelParams;
}

macro_rules! logit_args {
    ($($count:literal)+) => {$(
        impl LogitArgs for [KernelArg; $count] {
            fn with_q_scales(self, address: u64) -> impl KernelParams {
                let last = KernelArg::U64(address);
                std::array::from_fn::<_, { $count + 1 }, _>(|nth| self.get(nth).copied().unwrap_or(last))
            }
        }
    )+};
}

logit_args!(13 19);

fn swizzle(heads: Heads) -> Swizzle {
    match heads.dim {
        32 => Swizzle::B32,
        64 => Swizzle::B64,
        _ => Swizzle::B128,
    }
}

/// Rows of bytes that are as long as a head.
fn rows_map(heads: Heads, address: u64, rows: u64, pitch: u64, tile: u32) -> TiledTensor {
    TiledTensor {
        element: Element::U8,
        rank: 2,
        address,
        dims: [heads.dim.into(), rows, 1, 1, 1],
        strides: [pitch, 0, 0, 0],
        tile: [heads.dim, tile, 1, 1, 1],
        swizzle: swizzle(heads),
        promotion: L2Promotion::B256,
    }
}

/// Q of some queries, of which a load brings `loaded` with the heads of a tile: rows are heads, or where the tile pads
/// them, heads are a dimension of their own, and TMA fills those that a query lacks with zeros.
fn queries_map(heads: Heads, tile: HeadTile, address: u64, queries: u32, loaded: u32) -> TiledTensor {
    let (dim, rows) = (heads.dim.into(), u64::from(queries) * u64::from(heads.heads));
    if !tile.padded {
        return rows_map(heads, address, rows, dim, loaded * heads.heads);
    }
    TiledTensor {
        rank: 3,
        dims: [dim, heads.heads.into(), queries.into(), 1, 1],
        strides: [dim, dim * u64::from(heads.heads), 0, 0],
        tile: [heads.dim, tile.heads.heads, loaded, 1, 1],
        ..rows_map(heads, address, rows, dim, tile.heads.heads)
    }
}

/// The number of heads, as padded kernels read it.
fn head_flags(heads: Heads, tile: HeadTile) -> u32 {
    if tile.padded { heads.heads << LogitFlags::HEADS_SHIFT } else { 0 }
}

/// Rows of scales.
fn scales_map(address: u64, dims: [u32; 2], pitch: u64, tile: u32) -> TiledTensor {
    TiledTensor {
        element: Element::F32,
        rank: 2,
        address,
        dims: [dims[0].into(), dims[1].into(), 1, 1, 1],
        strides: [pitch, 0, 0, 0],
        tile: [tile, 1, 1, 1, 1],
        swizzle: Swizzle::None,
        promotion: L2Promotion::B128,
    }
}

fn launch<P>(config: Config, blocks: u32, options: &GemmOptions, params: P) -> KernelLaunch<P> {
    KernelLaunch {
        kernel: config.into(),
        geometry: Geometry {
            grid: [blocks, 1],
            cluster: 1,
            threads: config.threads(),
            shared_bytes: config.shared_bytes(),
            cooperative: false,
        },
        programmatic: options.programmatic,
        params,
    }
}

/// Launches a kernel of logits, of FP4 where Q has scales.
///
/// # Safety
/// The arguments are those of the kernel, and the caller keeps what they point to.
unsafe fn launch_with<B: Backend>(
    backend: &B,
    config: Config,
    blocks: u32,
    options: &GemmOptions,
    list: impl LogitArgs,
    q_scales: Option<u64>,
) -> Result<()> {
    let stream = backend.stream(options.stream.as_ref())?;
    // SAFETY: the caller keeps the same contract.
    unsafe {
        match q_scales {
            None => backend.launch(&launch(config, blocks, options, list), stream),
            Some(address) => {
                backend.launch(&launch(config, blocks, options, list.with_q_scales(address)), stream)
            }
        }
    }
}

fn type_flag(dtype: DType) -> u32 {
    if dtype == DType::Bf16 { LogitFlags::BF16 } else { 0 }
}

/// Checks and launches.
///
/// # Safety
/// As for [`fp8_mqa_logits_raw`](crate::fp8_mqa_logits_raw).
pub(super) unsafe fn mqa_logits(device: &Device, arguments: &MqaLogits, options: &GemmOptions) -> Result<()> {
    // SAFETY: the caller keeps the same contract.
    with_backend!(device, backend => unsafe { mqa_logits_on(backend, arguments, options) })
}

unsafe fn mqa_logits_on<B: Backend>(backend: &B, arguments: &MqaLogits, options: &GemmOptions) -> Result<()> {
    let Some(problem) = arguments.check()? else { return Ok(()) };
    let plan = MqaPlan::best(&problem, backend.limits().arch, sms(backend, options))?;
    let MqaProblem {
        format,
        heads,
        queries,
        keys,
        columns,
        kv_pitch,
        weights_pitch,
        logits_pitch,
        form,
        logits_type,
    } = problem;
    let form = match form {
        Logits::Clean => LogitFlags::CLEAN,
        Logits::Partial => 0,
        Logits::Compressed => LogitFlags::COMPRESSED,
    };
    let (tile, heads) = (plan.tile, in_bytes(heads, format));
    let scales_pitch = (u64::from(keys) * 4).next_multiple_of(16);
    let map = |tensor: &TiledTensor| backend.tensor_map(tensor).map(KernelArg::TensorMap);
    let list = [
        map(&queries_map(heads, tile, arguments.q.address, queries, plan.unit_queries))?,
        map(&rows_map(heads, arguments.kv.address, keys.into(), kv_pitch, TILE_KEYS))?,
        map(&scales_map(arguments.kv_scales.address, [keys, 1], scales_pitch, TILE_KEYS))?,
        KernelArg::U64(arguments.weights.address),
        KernelArg::U64(arguments.starts.address),
        KernelArg::U64(arguments.ends.address),
        KernelArg::U64(arguments.logits.address),
        KernelArg::U32(weights_pitch),
        KernelArg::U32(logits_pitch),
        KernelArg::U32(queries),
        KernelArg::U32(keys),
        KernelArg::U32(columns),
        KernelArg::U32(form | type_flag(logits_type) | head_flags(heads, tile)),
    ];
    // SAFETY: these are the kernel's parameters; the check has compared the operands with them, and the caller keeps
    // them.
    unsafe {
        launch_with(backend, plan.config, plan.blocks, options, list, arguments.q_scales.map(|q| q.address))
    }
}

/// Checks and launches.
///
/// # Safety
/// As for [`fp8_mqa_logits_raw`](crate::fp8_mqa_logits_raw).
pub(super) unsafe fn paged_mqa_logits(
    device: &Device,
    arguments: &PagedMqaLogits,
    options: &GemmOptions,
) -> Result<()> {
    // SAFETY: the caller keeps the same contract.
    with_backend!(device, backend => unsafe { paged_mqa_logits_on(backend, arguments, options) })
}

unsafe fn paged_mqa_logits_on<B: Backend>(
    backend: &B,
    arguments: &PagedMqaLogits,
    options: &GemmOptions,
) -> Result<()> {
    let Some(problem) = arguments.check()? else { return Ok(()) };
    let plan = PagedMqaPlan::best(&problem, backend.limits().arch)?;
    let PagedMqaProblem { format, heads, sequences, next, page_keys, pages, page_pitch, columns, .. } =
        problem;
    let (tile, heads) = (plan.tile, in_bytes(heads, format));
    // Keys of a load: a page, or a tile of a larger one.
    let loaded = page_keys.min(TILE_KEYS);
    let cache = arguments.kv_cache.address;
    // A cache without pages is one with a page that nothing names: TMA needs some memory.
    let (some, at) = if pages == 0 { (1, arguments.q.address) } else { (pages, cache) };
    let keys = TiledTensor {
        rank: 3,
        dims: [heads.dim.into(), page_keys.into(), some.into(), 1, 1],
        strides: [heads.dim.into(), page_pitch, 0, 0],
        ..rows_map(heads, at, page_keys.into(), heads.dim.into(), loaded)
    };
    let scales_at = at + u64::from(page_keys * heads.dim);
    let unit_queries = next.min(plan.unit_queries);
    let limit = u64::from(problem.table_pages) * u64::from(page_keys);
    let flags = if problem.clean { LogitFlags::CLEAN } else { 0 };
    let map = |tensor: &TiledTensor| backend.tensor_map(tensor).map(KernelArg::TensorMap);
    let list = [
        map(&queries_map(heads, tile, arguments.q.address, sequences * next, unit_queries))?,
        map(&keys)?,
        map(&scales_map(scales_at, [page_keys, some], page_pitch, loaded))?,
        KernelArg::U64(arguments.weights.address),
        KernelArg::U64(arguments.block_table.address),
        KernelArg::U64(arguments.schedule.address),
        KernelArg::U64(arguments.logits.address),
        KernelArg::U64(arguments.context_lens.address),
        KernelArg::U32(sequences),
        KernelArg::U32(next),
        KernelArg::U32(problem.lengths_per_query.into()),
        KernelArg::U32(limit.min(columns.into()) as u32),
        KernelArg::U32(problem.weights_pitch),
        KernelArg::U32(problem.table_pitch),
        KernelArg::U32(problem.logits_pitch),
        KernelArg::U32(columns),
        KernelArg::U32(page_keys),
        KernelArg::U32(pages),
        KernelArg::U32(flags | type_flag(problem.logits_type) | head_flags(heads, tile)),
    ];
    // SAFETY: these are the kernel's parameters; the check has compared the operands with them, and the caller keeps
    // them.
    unsafe {
        launch_with(backend, plan.config, problem.parts, options, list, arguments.q_scales.map(|q| q.address))
    }
}

/// Checks and launches.
///
/// # Safety
/// As for [`fp8_mqa_logits_raw`](crate::fp8_mqa_logits_raw).
pub(super) unsafe fn paged_mqa_metadata(
    device: &Device,
    arguments: &PagedMqaSchedule,
    options: &GemmOptions,
) -> Result<()> {
    // SAFETY: the caller keeps the same contract.
    with_backend!(device, backend => unsafe { paged_mqa_metadata_on(backend, arguments, options) })
}

unsafe fn paged_mqa_metadata_on<B: Backend>(
    backend: &B,
    arguments: &PagedMqaSchedule,
    options: &GemmOptions,
) -> Result<()> {
    let ScheduleProblem { sequences, next, lengths_per_query, parts } = arguments.check()?;
    let config = paged_metadata::Config::of(backend.limits().arch, next);
    let list = [
        KernelArg::U64(arguments.schedule.address),
        KernelArg::U64(arguments.context_lens.address),
        KernelArg::U32(sequences),
        KernelArg::U32(next),
        KernelArg::U32(lengths_per_query.into()),
        KernelArg::U32(paged_metadata::Config::max_length(sequences)),
        KernelArg::U32(parts),
    ];
    // SAFETY: these are the kernel's parameters; the check has compared the operands with them, and the caller keeps
    // them.
    unsafe {
        backend.launch(
            &launch(Config::PagedMetadata(config), 1, options, list),
            backend.stream(options.stream.as_ref())?,
        )
    }
}
