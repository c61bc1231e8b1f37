//! Stream-K tail: the tiles of the last, partial wave, each split along K between two clusters.
//!
//! A grid takes as long as its busiest cluster: tiles for 15.5 waves take 16. Here each tile of the partial wave has an
//! owner cluster, which computes the beginning of K. The clusters without a tile are peers: they compute the rest of K,
//! of one tile or of several in turn, so that all clusters take about as long. So no tile has more than two parts, and
//! all owners read the same K blocks at one time. The cluster that finishes its part first leaves its accumulators in
//! the workspace, and the other one adds them to its own (the fix-up). Nobody waits, no two clusters need to run at one
//! time, and two numbers have one sum, whoever adds them.

use std::ops::Add;

use crate::common::even_split::Shares;
use crate::common::index::Index;
use crate::common::params::kernel_params;
use crate::common::workspace_reduce::{COUNTER_BYTES, MOST_COUNTERS};
use crate::gemm::operand::fp8::{SCALE_GROUP, scale_group_start};
use oxigemm_ptx::{Global, Kernel, Pred, Shared, U32};

/// K blocks that the main loop is unrolled by: parts of a tile are multiples of it.
pub(crate) const UNIT: u32 = 2;
/// Cost of leaving accumulators in the workspace, and of the fix-up, in K blocks of a 256x128 FP8 or 128x256 16-bit tile.
const LEAVING: u32 = 6;
const FIXUP: u32 = 6;

/// Stream-K split of the partial wave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamK<T> {
    /// Tiles of clusters that are split, the last ones of the order; the first clusters own one each.
    pub tiles: T,
    /// Clusters behind the owners that are peers.
    pub peers: T,
    /// Tiles that each peer has at least, and peers that have one more.
    pub tiles_per_peer: [T; 2],
    /// K blocks that a peer computes of each tile: with the least tiles, and with one more.
    pub peer_k_blocks: [T; 2],
}

/// Work of one cluster in the partial wave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamKWork<T> {
    /// How many tiles it has a part of, in a row.
    pub count: T,
    /// The first of those, among the tiles of the partial wave.
    pub first_tile: T,
    /// K blocks of each that its owner computes; a peer computes the others.
    pub owner_k_blocks: T,
}

impl StreamK<u32> {
    /// Split of so many tiles with so many K blocks, in a grid of so many clusters. Nothing is split where all waves
    /// are full, where none is, or where it would not pay.
    #[must_use]
    pub fn of(tiles: u32, k_blocks: u32, clusters: u32) -> StreamK<u32> {
        let left = tiles % clusters;
        if left == 0 || tiles < clusters || !k_blocks.is_multiple_of(UNIT) {
            return StreamK::default();
        }
        let peers = (clusters - left).min(left);
        let Shares { each, more } = Shares::of(left, peers);
        let peer_k_blocks = [each, each + 1].map(|tiles| {
            let units = 1..k_blocks / UNIT;
            units.map(|unit| unit * UNIT).min_by_key(|blocks| busiest(k_blocks, tiles, *blocks)).unwrap_or(0)
        });
        let split = StreamK { tiles: left, peers, tiles_per_peer: [each, more], peer_k_blocks };
        if split.blocks(k_blocks) < k_blocks { split } else { StreamK::default() }
    }

    /// Duration of the partial wave, in K blocks.
    #[must_use]
    pub fn blocks(&self, k_blocks: u32) -> u32 {
        let StreamK { tiles_per_peer: [each, more], peer_k_blocks: [least, most], .. } = *self;
        let fewer = busiest(k_blocks, each, least);
        if more > 0 { fewer.max(busiest(k_blocks, each + 1, most)) } else { fewer }
    }

    /// Bytes of the workspace for the accumulators that blocks leave, so many each, where clusters have so many blocks.
    /// The counters ahead of them begin as zeros, and are zeros again when a grid ends.
    #[must_use]
    pub fn workspace_bytes(&self, blocks: u32, accumulators: u32) -> u64 {
        assert!(self.tiles * blocks * COUNTERS <= MOST_COUNTERS, "{} stream-K tiles", self.tiles);
        match self.tiles {
            0 => 0,
            tiles => COUNTER_BYTES + u64::from(tiles * PARTS * blocks) * u64::from(accumulators * 4),
        }
    }
}

/// K blocks that an owner takes, or a peer of so many tiles, if that is longer.
fn busiest(k_blocks: u32, tiles: u32, peer_k_blocks: u32) -> u32 {
    (k_blocks - peer_k_blocks + FIXUP).max(tiles * (peer_k_blocks + LEAVING))
}

impl<T: Index + Add<u32, Output = T>> StreamK<T> {
    /// Work of a cluster, where K has so many blocks.
    pub fn work(&self, cluster: T, k_blocks: T) -> StreamKWork<T> {
        let [each, more] = self.tiles_per_peer;
        let tiles = Shares { each, more };
        let peer =
            cluster.if_less(self.tiles, tiles.part_with(cluster), cluster - cluster.smaller(self.tiles));
        // A cluster that is no peer begins and ends behind the last tile.
        let [first, behind] = [peer, peer + 1u32].map(|peer| tiles.begin(peer.smaller(self.peers)));
        let (tile, next) = (cluster, cluster + 1u32);
        StreamKWork {
            count: cluster.if_less(self.tiles, next - tile, behind - first),
            first_tile: cluster.if_less(self.tiles, tile, first),
            owner_k_blocks: k_blocks - peer.if_less(more, self.peer_k_blocks[1], self.peer_k_blocks[0]),
        }
    }
}

/// Parts of a tile.
const PARTS: u32 = 2;
/// Counters of a block: one for each consumer warpgroup.
const COUNTERS: u32 = 2;

/// Arguments of a stream-K kernel, behind those of every GEMM.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StreamKArgs {
    /// Address of [`StreamK::workspace_bytes`]; not read where nothing is split.
    pub workspace: u64,
    /// The split.
    pub split: StreamK<u32>,
}

kernel_params! {
    struct StreamKWords from StreamKArgs {
        workspace: Pointer = workspace,
        stream_k_tiles: U32 = split.tiles,
        stream_k_peers: U32 = split.peers,
        tiles_per_peer: U32 = split.tiles_per_peer[0],
        tiles_per_peer_more: U32 = split.tiles_per_peer[1],
        peer_k_blocks: U32 = split.peer_k_blocks[0],
        peer_k_blocks_more: U32 = split.peer_k_blocks[1],
    }
}

/// The same inside a kernel.
#[derive(Clone, Copy)]
pub(crate) struct StreamKParams<'k> {
    pub workspace: Global<'k>,
    split: StreamK<U32<'k>>,
}

/// Part of a tile: its K blocks, and the fix-up slot of its accumulators.
#[derive(Clone, Copy)]
pub(crate) struct StreamKPart<'k> {
    pub first: U32<'k>,
    pub end: U32<'k>,
    pub fixup: FixupSlot<'k>,
}

/// Fix-up slot of a part: 0 where it is the whole tile. Those of the two parts of a tile follow each other, and the
/// owner's is odd.
#[derive(Clone, Copy)]
pub(crate) struct FixupSlot<'k>(U32<'k>);

impl<'k> StreamKPart<'k> {
    /// Writes the message about a part of the tile at row `m` and column `n`, its K blocks counted from the beginning
    /// of the first one's scale group.
    pub fn store(&self, to: Shared<'k>, [m, n]: [U32<'k>; 2]) {
        // Stream-K tiles have so many rows that no more scales are loaded together.
        let (begin, within) = (scale_group_start(self.first, SCALE_GROUP), self.first % SCALE_GROUP);
        to.store_vec([m, n, self.end - begin, self.fixup.0 * SCALE_GROUP + within]);
    }

    /// Reads that message.
    pub fn load(from: Shared<'k>) -> ([U32<'k>; 2], StreamKPart<'k>) {
        let [row, column, end, word] = from.load_vec::<u32, 4>();
        ([row, column], StreamKPart { first: word % SCALE_GROUP, end, fixup: FixupSlot(word / SCALE_GROUP) })
    }
}

/// Tiles of a cluster: whole tiles, then parts.
#[derive(Clone, Copy)]
pub(crate) struct StreamKTiles<'k> {
    split: StreamK<U32<'k>>,
    work: StreamKWork<U32<'k>>,
    k_blocks: U32<'k>,
    /// Tiles of the grid that are not split.
    whole_tiles: U32<'k>,
    /// How many tiles and parts there are, and how many of these are whole tiles.
    pub count: U32<'k>,
    whole: U32<'k>,
}

impl<'k> StreamKParams<'k> {
    /// Declares the parameters of [`StreamKArgs`].
    pub fn declare(k: &'k Kernel) -> Self {
        let words = StreamKWords::declare(k, "");
        let split = StreamK {
            tiles: words.stream_k_tiles,
            peers: words.stream_k_peers,
            tiles_per_peer: [words.tiles_per_peer, words.tiles_per_peer_more],
            peer_k_blocks: [words.peer_k_blocks, words.peer_k_blocks_more],
        };
        StreamKParams { workspace: words.workspace, split }
    }

    /// Tiles of this block's cluster, where the grid has so many with so many K blocks.
    pub fn tiles(self, k: &'k Kernel, tiles: U32<'k>, k_blocks: U32<'k>) -> StreamKTiles<'k> {
        let (cluster, clusters, split) = (k.cluster_index(), k.grid_clusters(), self.split);
        let [count, first_tile, owner_k_blocks] = [(); 3].map(|()| k.var(0u32));
        k.if_(split.tiles.ne(0), || {
            let work = split.work(cluster, k_blocks);
            count.set(work.count);
            first_tile.set(work.first_tile);
            owner_k_blocks.set(work.owner_k_blocks);
        });
        let work = StreamKWork {
            count: count.get(),
            first_tile: first_tile.get(),
            owner_k_blocks: owner_k_blocks.get(),
        };
        let whole_tiles = tiles - split.tiles;
        let whole = (whole_tiles + clusters - 1 - cluster) / clusters;
        StreamKTiles { split, work, k_blocks, whole_tiles, count: whole + work.count, whole }
    }
}

impl<'k> StreamKTiles<'k> {
    /// The tile at an index of the cluster's tiles.
    pub fn tile(&self, k: &'k Kernel, index: U32<'k>) -> U32<'k> {
        let whole = index * k.grid_clusters() + k.cluster_index();
        index.lt(self.whole).select(whole, self.whole_tiles + self.split_tile(index))
    }

    /// The tile at an index that is a part, among those of the partial wave.
    fn split_tile(&self, index: U32<'k>) -> U32<'k> {
        self.work.first_tile + (index - self.whole)
    }

    /// The part that is computed of it.
    pub fn part(&self, k: &'k Kernel, index: U32<'k>) -> StreamKPart<'k> {
        let (is_part, owns) = (index.ge(self.whole), k.cluster_index().lt(self.split.tiles));
        let owned = self.work.owner_k_blocks;
        let slot = self.split_tile(index) * PARTS + owns.select(1u32, 2);
        StreamKPart {
            first: (is_part & !owns).select(owned, 0),
            end: (is_part & owns).select(owned, self.k_blocks),
            fixup: FixupSlot(is_part.select(slot, 0)),
        }
    }
}

/// Fix-up of a part, in the workspace.
pub(crate) struct Fixup<'k> {
    /// Accumulators that this block leaves, and those of the block with the other part.
    pub own: Global<'k>,
    pub other: Global<'k>,
    /// How many have left theirs.
    pub counter: Global<'k>,
}

impl<'k> FixupSlot<'k> {
    /// Whether there is another part.
    pub fn exists(self) -> Pred<'k> {
        self.0.ne(0)
    }

    /// Whether it is the owner's.
    pub fn is_owners(self) -> Pred<'k> {
        (self.0 & 1).ne(0)
    }

    /// The fix-up of one of the warpgroups of the `rank`-th of `blocks` blocks that have so many accumulators.
    pub fn of(
        self,
        workspace: Global<'k>,
        [rank, blocks]: [U32<'k>; 2],
        warpgroup: U32<'k>,
        accumulators: u32,
    ) -> Fixup<'k> {
        let slot = self.0 - 1;
        let slots = workspace.at(COUNTER_BYTES);
        let at = |slot: U32<'k>| slots.at((slot * blocks + rank).widening_mul(accumulators * 4));
        let counter = (slot / PARTS * blocks + rank) * COUNTERS + warpgroup;
        Fixup { own: at(slot), other: at(slot ^ 1), counter: workspace.at(counter.widening_mul(4)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every K block of every tile is computed once, by its owner or by one peer.
    #[test]
    fn parts_cover_the_tiles() {
        let cases = [(1024, 64, 66), (448, 128, 66), (512, 128, 132), (200, 36, 132), (3, 32, 2), (7, 36, 5)];
        for (tiles, k_blocks, clusters) in cases {
            let split = StreamK::of(tiles, k_blocks, clusters);
            assert_eq!(split.tiles, tiles % clusters);
            let mut computed = vec![0; split.tiles as usize];
            for cluster in 0..clusters {
                let StreamKWork { count, first_tile, owner_k_blocks } = split.work(cluster, k_blocks);
                let blocks = if cluster < split.tiles { owner_k_blocks } else { k_blocks - owner_k_blocks };
                assert!(count == 0 || (1..k_blocks).contains(&blocks));
                assert!(count * blocks < split.blocks(k_blocks));
                (first_tile..first_tile + count).for_each(|tile| computed[tile as usize] += blocks);
            }
            assert!(computed.iter().all(|&blocks| blocks == k_blocks), "{computed:?}");
        }
    }

    #[test]
    fn the_partial_wave_decides_the_split() {
        let none = StreamK::default();
        assert_eq!([132, 65].map(|tiles| StreamK::of(tiles, 64, 66)), [none; 2], "full waves, and none");
        assert_eq!([StreamK::of(67, 8, 66), StreamK::of(131, 64, 66)], [none; 2], "it would not pay");
        let StreamK { tiles, peers, tiles_per_peer, peer_k_blocks } = StreamK::of(1024, 64, 66);
        assert_eq!((tiles, peers, tiles_per_peer, peer_k_blocks), (34, 32, [1, 2], [32, 18]));
        let alone = StreamK::of(67, 64, 66);
        assert_eq!((alone.peers, alone.peer_k_blocks[0]), (1, 32), "a tile has one peer at most");
    }
}
