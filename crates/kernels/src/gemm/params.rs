//! GEMM arguments: as the host passes them and as the kernels declare them.

mod output;
mod scales;

use crate::common::l2_prefetch::Rows;
use crate::common::params::kernel_params;
use crate::gemm::operand::f16::Half;
pub use output::{Heads, OutputFlags, OutputParams};
use oxigemm_ptx::tma::TensorMap;
use oxigemm_ptx::{Kernel, Pred, U32};
pub(crate) use scales::ScaleParams;
pub use scales::{SFB_BULK, ScaleBlock, ScaleLayout, ScalesOfB, sfb_bulk};

/// Arguments that every GEMM kernel takes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct GemmArgs {
    /// Tensor map of A: see [`crate::gemm::launch::Launch::map_a`].
    pub a: [u64; 16],
    /// Tensor map of B: see [`crate::gemm::launch::Launch::map_b`].
    pub b: [u64; 16],
    /// Tensor map of A's scales, where [`ScaleLayout`] is `RowMajor` or `MnMajor`; not read elsewhere.
    pub sfa_map: [u64; 16],
    /// Tensor map of D where the output is [`PLAIN`](OutputFlags::PLAIN); not read elsewhere.
    pub d_map: [u64; 16],
    /// Address of A's scales.
    pub sfa: u64,
    /// Address of B's scales.
    pub sfb: u64,
    /// Address of D.
    pub d: u64,
    /// Address of C, or null.
    pub c: u64,
    /// Elements from one row of D to the next.
    pub d_pitch: u32,
    /// Elements from one row of C to the next.
    pub c_pitch: u32,
    /// Rows of A and D.
    pub m: u32,
    /// Rows of B, columns of D.
    pub n: u32,
    /// See [`OutputFlags`].
    pub output_flags: u32,
    /// Blocks of K that share scales, of 128 or of 32; stages where there are no scales.
    pub k_blocks: u32,
    /// Strides of A's scales, in elements: along M and along K. A stride of 0 means one scale for all.
    pub sfa_strides: [u32; 2],
    /// Strides of B's scales, in elements: along N and along K; 0 as above.
    pub sfb_strides: [u32; 2],
    /// A [`ScaleLayout`], as a number, and [`SFB_BULK`] where it holds.
    pub scale_layouts: u32,
    /// The words of a [`PersistentTuning`] or a [`SplitKTuning`], by the kernel family.
    pub tuning: [u32; 4],
    /// Address of B, for threads.
    pub b_rows: u64,
    /// Bytes from one row of B to the next; 0 where that does not fit.
    pub b_pitch: u32,
}

/// Tuning words of the persistent kernels: see [`GemmArgs::tuning`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PersistentTuning<T> {
    /// Blocks of a cluster along M; they share B.
    pub cluster_m: T,
    /// Blocks of a cluster along N; they share A.
    pub cluster_n: T,
    /// Rows of tiles in a [raster band](crate::gemm::scheduler::order::TileOrder).
    pub raster_band: T,
    /// Serpentine K: 1 where every other tile of a cluster runs K backwards, else 0.
    pub serpentine_k: T,
}

impl<T> PersistentTuning<T> {
    /// The words, in the order of the parameters.
    pub fn words(self) -> [T; 4] {
        let PersistentTuning { cluster_m, cluster_n, raster_band, serpentine_k } = self;
        [cluster_m, cluster_n, raster_band, serpentine_k]
    }

    /// Names for the words.
    pub fn from_words([cluster_m, cluster_n, raster_band, serpentine_k]: [T; 4]) -> Self {
        PersistentTuning { cluster_m, cluster_n, raster_band, serpentine_k }
    }
}

/// Tuning words of the split-K kernels: see [`GemmArgs::tuning`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitKTuning<T> {
    /// Stages of the pipeline.
    pub stages: T,
    /// 1 where every row of B is read once and need not stay in the L2 cache, else 0.
    pub stream_b_once: T,
    /// K blocks of one slab, where K runs through the slabs of a batch.
    pub slab_k_blocks: T,
}

impl<T: Default> SplitKTuning<T> {
    /// The words, in the order of the parameters.
    pub fn words(self) -> [T; 4] {
        let SplitKTuning { stages, stream_b_once, slab_k_blocks } = self;
        [stages, stream_b_once, slab_k_blocks, T::default()]
    }
}

impl<T> SplitKTuning<T> {
    /// Names for the words.
    pub fn from_words([stages, stream_b_once, slab_k_blocks, _]: [T; 4]) -> Self {
        SplitKTuning { stages, stream_b_once, slab_k_blocks }
    }
}

kernel_params! {
    /// Parameters in their tuned order. Behind the tensor maps come the 64 bytes that the first loads wait for: an SM
    /// fetches so many parameters at a time when it first needs one of them.
    struct Words from GemmArgs {
        a: TensorMap = a,
        b: TensorMap = b,
        sfa_map: TensorMap = sfa_map,
        d_map: TensorMap = d_map,
        sfa: Pointer = sfa,
        sfb: Pointer = sfb,
        b_rows: Pointer = b_rows,
        m: U32 = m,
        n: U32 = n,
        k_blocks: U32 = k_blocks,
        b_pitch: U32 = b_pitch,
        sfb_stride_mn: U32 = sfb_strides[0],
        sfb_stride_k: U32 = sfb_strides[1],
        scale_layouts: U32 = scale_layouts,
        tuning_0: U32 = tuning[0],
        tuning_1: U32 = tuning[1],
        tuning_2: U32 = tuning[2],
        tuning_3: U32 = tuning[3],
        output_flags: U32 = output_flags,
        sfa_stride_mn: U32 = sfa_strides[0],
        sfa_stride_k: U32 = sfa_strides[1],
        d: Pointer = d,
        c: Pointer = c,
        d_pitch: U32 = d_pitch,
        c_pitch: U32 = c_pitch,
    }
}

/// Parameters of a GEMM kernel, as declared. What depends on a tile is a
/// [`TileView`](crate::gemm::scheduler::tile::TileView).
#[derive(Clone, Copy)]
pub(crate) struct Params<'k> {
    pub a: TensorMap<'k>,
    pub b: TensorMap<'k>,
    pub sfa_map: TensorMap<'k>,
    pub sfa: ScaleParams<'k>,
    pub sfb: ScaleParams<'k>,
    pub sfa_layout: U32<'k>,
    /// Whether TMA can load rows of B's scales.
    pub sfb_bulk: Pred<'k>,
    pub output: OutputParams<'k>,
    pub k_blocks: U32<'k>,
    tuning: [U32<'k>; 4],
    /// B as threads see it, where it is K-major.
    pub b_rows: Rows<'k>,
}

impl<'k> Params<'k> {
    /// Declares the parameters of [`GemmArgs`].
    pub fn declare(k: &'k Kernel) -> Self {
        let words = Words::declare(k, "");
        let Words { a, b, sfa_map, d_map, k_blocks, .. } = words;
        let output = OutputParams {
            d_map,
            rows: words.m,
            columns: words.n,
            flags: words.output_flags,
            d: words.d,
            c: words.c,
            d_pitch: words.d_pitch,
            c_pitch: words.c_pitch,
            half: Half::Bf16,
            beta: None,
            heads: None,
        };
        let scales = |base, stride_mn, stride_k| ScaleParams { base, stride_mn, stride_k };
        let sfa = scales(words.sfa, words.sfa_stride_mn, words.sfa_stride_k);
        let sfb = scales(words.sfb, words.sfb_stride_mn, words.sfb_stride_k);
        let layouts = words.scale_layouts;
        let (sfa_layout, sfb_bulk) = (layouts & (SFB_BULK - 1), (layouts & SFB_BULK).ne(0));
        let tuning = [words.tuning_0, words.tuning_1, words.tuning_2, words.tuning_3];
        let b_rows = Rows { at: words.b_rows, pitch: words.b_pitch, count: words.n };
        Params { a, b, sfa_map, sfa, sfb, sfa_layout, sfb_bulk, output, k_blocks, tuning, b_rows }
    }

    /// Tuning of a persistent kernel.
    pub fn persistent_tuning(&self) -> PersistentTuning<U32<'k>> {
        PersistentTuning::from_words(self.tuning)
    }

    /// Tuning of a split-K kernel.
    pub fn split_k_tuning(&self) -> SplitKTuning<U32<'k>> {
        SplitKTuning::from_words(self.tuning)
    }
}
