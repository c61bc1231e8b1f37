//! Tiles that fill no round of a persistent grid: clusters that would have nothing to do help those that have one.
//!
//! A grid takes as long as its busiest cluster: tiles for 15.5 rounds take 16. Here each of the tiles that are left over, which come last, has an
//! owner, which computes it for the beginning of K. The clusters that are left over compute the rest, of one tile or of several one
//! after another, so that all take about as long. So no tile has more than two parts, and all owners read the same blocks of K at one
//! time. Who is done with a part leaves its sums in memory, or adds what the other has left to its own: nobody waits, no two clusters need
//! to run at one time, and two numbers have one sum, whoever adds them.

use std::ops::Add;

use crate::common::even_split::Shares;
use crate::common::params::kernel_params;
use crate::common::workspace_reduce::{COUNTER_BYTES, MOST_COUNTERS};
use crate::gemm::scheduler::order::Index;
use crate::gemm::sm90::scale_pipeline::{GROUP, group_start};
use oxigemm_ptx::{Global, Kernel, Pred, Shared, U32};

/// What blocks of K are shared out by: those that the main loop is unrolled by.
pub(crate) const UNIT: u32 = 2;
/// What leaving sums, and adding those that were left, takes as long as: so many blocks of K of a 256x128 tile.
const LEAVING: u32 = 6;
const ADDING: u32 = 6;

/// How tiles that are left over are shared out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamK<T> {
    /// How many tiles of clusters there are, the last ones of the order; as many clusters own one each, the first ones.
    pub tiles: T,
    /// Clusters behind those that help.
    pub helpers: T,
    /// Owners that each of these helps at least, and helpers that have one more.
    pub owners: [T; 2],
    /// Blocks of K that a helper computes for each owner: one with the least owners, and one with one more.
    pub help: [T; 2],
}

/// What a cluster computes of tiles that are left over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<T> {
    /// Of how many tiles, one behind another.
    pub count: T,
    /// The first of those, among the tiles that are left over.
    pub first_tile: T,
    /// Blocks of K of each that its owner computes; a helper computes the others.
    pub owned: T,
}

impl StreamK<u32> {
    /// Of so many tiles with so many blocks of K, in a grid of so many clusters. Nothing is shared out where all rounds are full, where none
    /// is, or where it would not pay.
    #[must_use]
    pub fn of(tiles: u32, k_blocks: u32, clusters: u32) -> StreamK<u32> {
        let left = tiles % clusters;
        if left == 0 || tiles < clusters || !k_blocks.is_multiple_of(UNIT) {
            return StreamK::default();
        }
        let helpers = (clusters - left).min(left);
        let Shares { each, more } = Shares::of(left, helpers);
        let help = [each, each + 1].map(|owners| {
            let units = 1..k_blocks / UNIT;
            units.map(|help| help * UNIT).min_by_key(|help| busiest(k_blocks, owners, *help)).unwrap_or(0)
        });
        let tail = StreamK { tiles: left, helpers, owners: [each, more], help };
        if tail.blocks(k_blocks) < k_blocks { tail } else { StreamK::default() }
    }

    /// What they take, in blocks of K.
    #[must_use]
    pub fn blocks(&self, k_blocks: u32) -> u32 {
        let StreamK { owners: [each, more], help: [least, most], .. } = *self;
        let fewer = busiest(k_blocks, each, least);
        if more > 0 { fewer.max(busiest(k_blocks, each + 1, most)) } else { fewer }
    }

    /// Bytes of room for the sums that blocks leave, so many each, where clusters have so many blocks. The counters ahead of them begin as
    /// zeros, and are zeros again when a grid ends.
    #[must_use]
    pub fn workspace_bytes(&self, blocks: u32, sums: u32) -> u64 {
        assert!(self.tiles * blocks * COUNTERS <= MOST_COUNTERS, "{} tiles are shared out", self.tiles);
        match self.tiles {
            0 => 0,
            tiles => COUNTER_BYTES + u64::from(tiles * PARTS * blocks) * u64::from(sums * 4),
        }
    }
}

/// What an owner takes, or a helper of so many, if that is longer.
fn busiest(k_blocks: u32, owners: u32, help: u32) -> u32 {
    (k_blocks - help + ADDING).max(owners * (help + LEAVING))
}

impl<T: Index + Add<u32, Output = T>> StreamK<T> {
    /// What a cluster computes of them, where K has so many blocks.
    pub fn parts(&self, cluster: T, k_blocks: T) -> Parts<T> {
        let [each, more] = self.owners;
        let owners = Shares { each, more };
        let helper =
            cluster.if_less(self.tiles, owners.part_with(cluster), cluster - cluster.smaller(self.tiles));
        // One who helps nobody begins and ends behind the last owner.
        let [first, behind] =
            [helper, helper + 1u32].map(|helper| owners.begin(helper.smaller(self.helpers)));
        let (tile, next) = (cluster, cluster + 1u32);
        Parts {
            count: cluster.if_less(self.tiles, next - tile, behind - first),
            first_tile: cluster.if_less(self.tiles, tile, first),
            owned: k_blocks - helper.if_less(more, self.help[1], self.help[0]),
        }
    }
}

/// Parts that a tile has.
const PARTS: u32 = 2;
/// Counters of a block: one for each warpgroup that multiplies.
const COUNTERS: u32 = 2;

/// What the host passes, in the order of the parameters.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StreamKArgs {
    /// Address of [`StreamK::room_bytes`]; not looked at where there is no tail.
    pub room: u64,
    /// What is shared out.
    pub tail: StreamK<u32>,
}

kernel_params! {
    struct StreamKWords from StreamKArgs {
        room: Pointer = room,
        tail_tiles: U32 = tail.tiles,
        tail_helpers: U32 = tail.helpers,
        tail_owners: U32 = tail.owners[0],
        tail_owners_more: U32 = tail.owners[1],
        tail_help: U32 = tail.help[0],
        tail_help_more: U32 = tail.help[1],
    }
}

/// The arguments inside a kernel.
#[derive(Clone, Copy)]
pub(crate) struct StreamKParams<'k> {
    pub room: Global<'k>,
    tail: StreamK<U32<'k>>,
}

/// What is computed of a tile: its blocks of K, and where its sums may be left.
#[derive(Clone, Copy)]
pub(crate) struct StreamKPart<'k> {
    pub first: U32<'k>,
    pub end: U32<'k>,
    pub fixup: FixupSlot<'k>,
}

/// Where the sums of a part may be left: 0 where it is all of the tile. Those of the two parts of a tile follow each other, and the owner's is odd.
#[derive(Clone, Copy)]
pub(crate) struct FixupSlot<'k>(pub U32<'k>);

impl<'k> StreamKPart<'k> {
    /// Tells other warps of the block of a part of the tile at row `m` and column `n`, its blocks of K counted from the beginning of the
    /// first one's group of scales.
    pub fn tell(&self, to: Shared<'k>, [m, n]: [U32<'k>; 2]) {
        // Tiles that are shared out have so many rows that no more scales come together.
        let (begin, within) = (group_start(self.first, GROUP), self.first % GROUP);
        to.store_vec([m, n, self.end - begin, self.fixup.0 * GROUP + within]);
    }

    /// What they were told.
    pub fn told(from: Shared<'k>) -> ([U32<'k>; 2], StreamKPart<'k>) {
        let [row, column, end, word] = from.load_vec::<u32, 4>();
        ([row, column], StreamKPart { first: word % GROUP, end, fixup: FixupSlot(word / GROUP) })
    }
}

/// A cluster's turns: whole tiles, then parts.
#[derive(Clone, Copy)]
pub(crate) struct StreamKTiles<'k> {
    tail: StreamK<U32<'k>>,
    parts: Parts<U32<'k>>,
    k_blocks: U32<'k>,
    /// Tiles of the grid that are not shared out.
    whole_tiles: U32<'k>,
    /// How many turns there are, and how many of these are whole tiles.
    pub count: U32<'k>,
    whole: U32<'k>,
}

impl<'k> StreamKParams<'k> {
    /// Declares the parameters of [`StreamKArgs`].
    pub fn declare(k: &'k Kernel) -> Self {
        let words = StreamKWords::declare(k, "");
        let tail = StreamK {
            tiles: words.tail_tiles,
            helpers: words.tail_helpers,
            owners: [words.tail_owners, words.tail_owners_more],
            help: [words.tail_help, words.tail_help_more],
        };
        StreamKParams { room: words.room, tail }
    }

    /// The turns of this block's cluster, where there are so many tiles of so many blocks of K.
    pub fn turns(self, k: &'k Kernel, tiles: U32<'k>, k_blocks: U32<'k>) -> StreamKTiles<'k> {
        let (cluster, clusters, tail) = (k.cluster_index(), k.grid_clusters(), self.tail);
        let [count, first_tile, owned] = [(); 3].map(|()| k.var(0u32));
        k.if_(tail.tiles.ne(0), || {
            let parts = tail.parts(cluster, k_blocks);
            count.set(parts.count);
            first_tile.set(parts.first_tile);
            owned.set(parts.owned);
        });
        let parts = Parts { count: count.get(), first_tile: first_tile.get(), owned: owned.get() };
        let whole_tiles = tiles - tail.tiles;
        let whole = (whole_tiles + clusters - 1 - cluster) / clusters;
        StreamKTiles { tail, parts, k_blocks, whole_tiles, count: whole + parts.count, whole }
    }
}

impl<'k> StreamKTiles<'k> {
    /// The tile of a turn.
    pub fn tile(&self, k: &'k Kernel, turn: U32<'k>) -> U32<'k> {
        let whole = turn * k.grid_clusters() + k.cluster_index();
        turn.lt(self.whole).select(whole, self.whole_tiles + self.shared_tile(turn))
    }

    /// The tile of a turn that is a part, among those that are left over.
    fn shared_tile(&self, turn: U32<'k>) -> U32<'k> {
        self.parts.first_tile + (turn - self.whole)
    }

    /// What is computed of it.
    pub fn part(&self, k: &'k Kernel, turn: U32<'k>) -> StreamKPart<'k> {
        let (is_part, owns) = (turn.ge(self.whole), k.cluster_index().lt(self.tail.tiles));
        let owned = self.parts.owned;
        let place = self.shared_tile(turn) * PARTS + owns.select(1u32, 2);
        StreamKPart {
            first: (is_part & !owns).select(owned, 0),
            end: (is_part & owns).select(owned, self.k_blocks),
            fixup: FixupSlot(is_part.select(place, 0)),
        }
    }
}

/// Where a block's sums of a part are left.
pub(crate) struct Fixup<'k> {
    /// By this block, and by the one that has the other part.
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

    /// For one of the warpgroups of the `rank`-th of `blocks` blocks that have so many sums.
    pub fn of(
        self,
        room: Global<'k>,
        [rank, blocks]: [U32<'k>; 2],
        warpgroup: U32<'k>,
        sums: u32,
    ) -> Fixup<'k> {
        let place = self.0 - 1;
        let places = room.at(COUNTER_BYTES);
        let at = |place: U32<'k>| places.at((place * blocks + rank).widening_mul(sums * 4));
        let counter = (place / PARTS * blocks + rank) * COUNTERS + warpgroup;
        Fixup { own: at(place), other: at(place ^ 1), counter: room.at(counter.widening_mul(4)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every block of every tile is computed once, by its owner or by one helper.
    #[test]
    fn parts_cover_the_tiles() {
        let cases = [(1024, 64, 66), (448, 128, 66), (512, 128, 132), (200, 36, 132), (3, 32, 2), (7, 36, 5)];
        for (tiles, k_blocks, clusters) in cases {
            let tail = StreamK::of(tiles, k_blocks, clusters);
            assert_eq!(tail.tiles, tiles % clusters);
            let mut computed = vec![0; tail.tiles as usize];
            for cluster in 0..clusters {
                let Parts { count, first_tile, owned } = tail.parts(cluster, k_blocks);
                let blocks = if cluster < tail.tiles { owned } else { k_blocks - owned };
                assert!(count == 0 || (1..k_blocks).contains(&blocks));
                assert!(count * blocks < tail.blocks(k_blocks));
                (first_tile..first_tile + count).for_each(|tile| computed[tile as usize] += blocks);
            }
            assert!(computed.iter().all(|&blocks| blocks == k_blocks), "{computed:?}");
        }
    }

    #[test]
    fn what_is_left_over_decides() {
        let none = StreamK::default();
        assert_eq!([132, 65].map(|tiles| StreamK::of(tiles, 64, 66)), [none; 2], "full rounds, and none");
        assert_eq!([StreamK::of(67, 8, 66), StreamK::of(131, 64, 66)], [none; 2], "it would not pay");
        let StreamK { tiles, helpers, owners, help } = StreamK::of(1024, 64, 66);
        assert_eq!((tiles, helpers, owners, help), (34, 32, [1, 2], [32, 18]));
        let alone = StreamK::of(67, 64, 66);
        assert_eq!((alone.helpers, alone.help[0]), (1, 32), "a tile has one helper at most");
    }
}
