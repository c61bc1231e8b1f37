//! The arguments of the FP8 GEMM kernels: as the host passes them and as the kernels declare them.

use crate::BLOCK_K;
use crate::common::l2_prefetch::Rows;
use crate::common::params::kernel_params;
use crate::gemm::epilogue::OutputParams;
use crate::gemm::epilogue::fusion::GateUpRows;
use crate::gemm::operand::f16::Half;
use crate::gemm::scheduler::TileInfo;
use crate::gemm::scheduler::k_grouped::TileKGroup;
use crate::gemm::scheduler::m_grouped::{MGroupedParams, TileGroup};
use crate::gemm::scheduler::stream_k::StreamKPart;
use oxigemm_ptx::tma::TensorMap;
use oxigemm_ptx::{Global, Kernel, Pred, Shared, U32};

/// What the host passes; [`pointers`](Self::pointers) has the order of the parameters.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct GemmArgs {
    /// Tensor map of A: see [`crate::gemm::launch::Launch::map_a`].
    pub a: [u64; 16],
    /// Tensor map of B: see [`crate::gemm::launch::Launch::map_b`].
    pub b: [u64; 16],
    /// Tensor map of A's scales, where [`ScaleLayout`] is `RowMajor` or `MnMajor`; not read elsewhere.
    pub sfa_map: [u64; 16],
    /// Tensor map of D where the output is [`PLAIN`](crate::gemm::epilogue::OutputFlags::PLAIN); not read elsewhere.
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
    /// See [`crate::gemm::epilogue::OutputFlags`].
    pub output_flags: u32,
    /// 128-wide blocks of K.
    pub k_blocks: u32,
    /// Strides of A's scales, in elements: along M and along K. Where it is 0, one scale holds for all.
    pub sfa_strides: [u32; 2],
    /// Strides of B's scales, in elements: along N and along K; 0 as above.
    pub sfb_strides: [u32; 2],
    /// A [`ScaleLayout`], as a number, and [`SFB_BULK`] where it holds.
    pub scale_layouts: u32,
    /// The words of a [`PersistentTuning`] or a [`SplitKTuning`], by the kernel family.
    pub tuning: [u32; 4],
    /// Address of B, for threads.
    pub b_rows: u64,
    /// Bytes from one row of B to the next; 0 where that is too much to say.
    pub b_pitch: u32,
}

/// Set in [`GemmArgs::scale_layouts`] where the copy engine can bring B's scales, a row of them: see [`sfb_bulk`].
pub const SFB_BULK: u32 = 4;

/// Whether the copy engine can bring rows of B's scales at `address` with these strides (in elements, along N and
/// along K), for a number of blocks of K: it takes addresses and sizes in multiples of 16 bytes.
pub fn sfb_bulk(address: u64, [stride_n, stride_k]: [u32; 2], k_blocks: u32) -> bool {
    stride_k == 1 && address.is_multiple_of(16) && stride_n.is_multiple_of(4) && k_blocks.is_multiple_of(4)
}

/// What shares one scale of B along N.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScalesOfB {
    /// 128 rows.
    #[default]
    Blocks,
    /// Each row has its own, as those of A have.
    Rows,
}

/// How A's scales reach shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ScaleLayout {
    /// K is contiguous, and the copy engine can address the rows.
    RowMajor = 0,
    /// M is contiguous, and the copy engine can address the columns.
    MnMajor = 1,
    /// Any other strides, also 0, which no tensor map has: copied by threads.
    Copied = 2,
    /// K is contiguous, and what comes of a row at a time is all of it: the rows of a tile are one piece.
    Packed = 3,
}

impl ScaleLayout {
    /// The layout for scales at `address` with these strides (in elements, along M and along K).
    ///
    /// The copy engine takes addresses and pitches in multiples of 16 bytes.
    pub fn of(address: u64, [stride_m, stride_k]: [u32; 2]) -> ScaleLayout {
        let addressable = |pitch: u32| address.is_multiple_of(16) && pitch.is_multiple_of(4) && pitch > 0;
        match (stride_m, stride_k) {
            (pitch, 1) if addressable(pitch) => ScaleLayout::RowMajor,
            (1, pitch) if addressable(pitch) => ScaleLayout::MnMajor,
            _ => ScaleLayout::Copied,
        }
    }

    /// The same of the `rows` of A, each with `k_blocks` scales, where those of `piece_rows` and `piece_blocks` may come as one
    /// piece: the rows of a tile.
    ///
    /// The copy engine asks for every row of a tensor map by itself. Where all blocks of a grid want the same few rows, these
    /// may lie in one slice of the L2 cache, which is then busy with nothing else: packed scales are asked for as one piece.
    pub fn in_tiles(
        self,
        strides: [u32; 2],
        k_blocks: u32,
        rows: u32,
        [piece_rows, piece_blocks]: [u32; 2],
    ) -> ScaleLayout {
        let one_piece = strides == [k_blocks, 1] && k_blocks <= piece_blocks;
        let whole_tiles = piece_rows > 0 && rows.is_multiple_of(piece_rows);
        match self {
            ScaleLayout::RowMajor if one_piece && whole_tiles => ScaleLayout::Packed,
            other => other,
        }
    }
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
    /// 1 where every other tile of a cluster takes K from its end, else 0.
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
    /// Behind the maps, the 64 bytes that first loads wait for: an SM fetches so much at a time when it first needs some of it.
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

/// The same arguments inside a kernel.
#[derive(Clone, Copy)]
pub(crate) struct Params<'k> {
    pub a: TensorMap<'k>,
    pub b: TensorMap<'k>,
    pub sfa_map: TensorMap<'k>,
    pub sfa: ScaleParams<'k>,
    pub sfb: ScaleParams<'k>,
    pub sfa_layout: U32<'k>,
    /// Whether the copy engine can bring a row of B's scales.
    pub sfb_bulk: Pred<'k>,
    pub output: OutputParams<'k>,
    pub k_blocks: U32<'k>,
    tuning: [U32<'k>; 4],
    /// B as threads see it, where it is K-major.
    pub b_rows: Rows<'k>,
    /// The group that they are of, where rows are grouped: see [`Params::of`].
    pub group: Option<TileGroup<'k>>,
    /// Whether D of groups is stored slab by slab.
    pub d_in_slabs: bool,
    /// The same where groups are along K.
    pub k_group: Option<TileKGroup<'k>>,
    /// The part of a tile that they are of, where tiles are shared out along K.
    pub part: Option<StreamKPart<'k>>,
    /// Which rows of B a tile has, where these are no neighbours.
    pub gate_up: Option<GateUpRows<'k>>,
}

/// A matrix of scales in memory, in any layout.
#[derive(Clone, Copy)]
pub(crate) struct ScaleParams<'k> {
    base: Global<'k>,
    pub stride_mn: U32<'k>,
    pub stride_k: U32<'k>,
}

impl<'k> ScaleParams<'k> {
    /// The matrix a number of strides further on.
    fn moved(self, count: U32<'k>, stride: U32<'k>) -> Self {
        ScaleParams { base: self.base.at(count.widening_mul(stride) << 2), ..self }
    }

    /// Whether the scales of one row lie side by side.
    pub fn is_row_major(&self) -> Pred<'k> {
        self.stride_k.eq(1)
    }

    /// Whether they do, and each four of them in an aligned vector.
    pub fn has_fours_along_k(&self) -> Pred<'k> {
        self.is_row_major() & (self.stride_mn & 3).eq(0) & (self.base.address() & 15u64).eq(0u64)
    }

    /// The scale of one row of A (or one or 128 rows of B) and one 128-wide block of K.
    pub fn at(&self, row: U32<'k>, block: U32<'k>) -> Global<'k> {
        let index = row.widening_mul(self.stride_mn) + block.widening_mul(self.stride_k);
        self.base.at(index << 2)
    }
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
        let sfa =
            ScaleParams { base: words.sfa, stride_mn: words.sfa_stride_mn, stride_k: words.sfa_stride_k };
        let sfb =
            ScaleParams { base: words.sfb, stride_mn: words.sfb_stride_mn, stride_k: words.sfb_stride_k };
        let layouts = words.scale_layouts;
        let (sfa_layout, sfb_bulk) = (layouts & (SFB_BULK - 1), (layouts & SFB_BULK).ne(0));
        let tuning = [words.tuning_0, words.tuning_1, words.tuning_2, words.tuning_3];
        let b_rows = Rows { at: words.b_rows, pitch: words.b_pitch, count: words.n };
        Params {
            a,
            b,
            sfa_map,
            sfa,
            sfb,
            sfa_layout,
            sfb_bulk,
            output,
            k_blocks,
            tuning,
            b_rows,
            group: None,
            d_in_slabs: false,
            k_group: None,
            part: None,
            gate_up: None,
        }
    }

    /// Tuning of a persistent kernel.
    pub fn persistent_tuning(&self) -> PersistentTuning<U32<'k>> {
        PersistentTuning::from_words(self.tuning)
    }

    /// Tuning of a split-K kernel.
    pub fn split_k_tuning(&self) -> SplitKTuning<U32<'k>> {
        SplitKTuning::from_words(self.tuning)
    }

    /// The column of D and the row of B of one of the sums of a tile whose first column is `n`.
    pub fn place_of(&self, n: U32<'k>, sum: U32<'k>) -> (U32<'k>, U32<'k>) {
        match self.gate_up {
            None => {
                let column = n + sum;
                (column, column)
            }
            Some(gate_up) => gate_up.place(n, sum),
        }
    }

    /// The arguments of the tile's group: its scales, and its rows as all rows that there are.
    pub fn of(&self, tile: &TileInfo<'k>, grouped: Option<&MGroupedParams<'k>>) -> Self {
        if let Some(place) = tile.k_group {
            return Params {
                sfa: self.sfa.moved(place.first_block, self.sfa.stride_k),
                sfb: self.sfb.moved(place.first_block, self.sfb.stride_k),
                k_blocks: place.k.div_ceil(BLOCK_K),
                k_group: tile.k_group,
                ..*self
            };
        }
        let (Some(place), Some(grouped)) = (tile.group, grouped) else {
            return Params { part: tile.part, ..*self };
        };
        Params {
            sfa: self.sfa.moved(place.slab, grouped.sfa_slab),
            sfb: self.sfb.moved(place.group, grouped.sfb_group),
            output: OutputParams { rows: place.end, ..self.output },
            group: tile.group,
            ..*self
        }
    }

    /// Tells the math warps where a tile is; where groups are along K, also the tile's blocks of K.
    pub fn store_place(&self, to: Shared<'k>, m: U32<'k>, n: U32<'k>) {
        if let Some(group) = self.k_group {
            return to.store_vec([group.d_row + m, n, group.d_row + self.output.rows, self.k_blocks]);
        }
        if let Some(part) = self.part {
            return part.tell(to, [m, n]);
        }
        match self.group {
            Some(group) if self.d_in_slabs => TileInfo::tell_in_slab(to, [m, n], group),
            // What sums are finished with may be the group's own.
            Some(group) if self.gate_up.is_some() => TileInfo::tell_with_group(to, [m, n], group),
            group => TileInfo::tell(to, [m, n], group),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_engine_brings_rows_of_b_scales_that_are_multiples_of_16_bytes() {
        assert!(sfb_bulk(0x100, [12, 1], 12));
        assert!(sfb_bulk(0x100, [16, 1], 12), "gaps between rows");
        assert!(!sfb_bulk(0x104, [12, 1], 12), "the address");
        assert!(!sfb_bulk(0x100, [13, 1], 12), "the pitch");
        assert!(!sfb_bulk(0x100, [12, 1], 11), "what is read of a row");
        assert!(!sfb_bulk(0x100, [1, 12], 12), "along N");
    }

    #[test]
    fn scales_of_whole_tiles_that_come_together_are_packed() {
        let packed = |strides, k_blocks, rows, tile| {
            ScaleLayout::of(0x100, strides).in_tiles(strides, k_blocks, rows, tile) == ScaleLayout::Packed
        };
        assert!(packed([4, 1], 4, 64, [64, 16]));
        assert!(packed([8, 1], 8, 512, [256, 8]));
        assert!(packed([12, 1], 12, 64, [64, 16]));
        assert!(packed([16, 1], 16, 256, [128, 16]));
        assert!(!packed([8, 1], 4, 64, [64, 16]), "gaps between rows");
        assert!(!packed([20, 1], 20, 64, [64, 16]), "more than comes together");
        assert!(!packed([12, 1], 12, 256, [256, 8]), "more than comes together of high tiles");
        assert!(!packed([3, 1], 3, 64, [64, 16]), "a pitch that the copy engine cannot have");
        assert!(!packed([4, 1], 4, 65, [64, 16]), "a tile that is not whole");
        assert!(!packed([1, 64], 4, 64, [64, 16]), "along M");
        assert!(!packed([4, 1], 4, 64, [0, 0]), "grouped rows");
        let odd = ScaleLayout::of(0x104, [4, 1]).in_tiles([4, 1], 4, 64, [64, 16]);
        assert_eq!(odd, ScaleLayout::Copied, "the address");
    }
}
