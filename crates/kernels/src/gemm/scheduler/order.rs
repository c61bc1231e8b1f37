//! Raster order of the tiles of a persistent grid, and the K order of a tile.

use crate::common::index::Index;
use oxigemm_ptx::{Kernel, Pred, U32, Var};

/// Raster order in bands: `band` rows of tiles are swept along N before the next rows begin, so that the tiles of a
/// wave share their rows of A and their rows of B in the L2 cache.
#[derive(Clone, Copy, Debug)]
pub struct TileOrder<T> {
    /// Tiles along M.
    pub m_tiles: T,
    /// Tiles along N.
    pub n_tiles: T,
    /// Rows of tiles in one band.
    pub band: T,
}

impl<T: Index> TileOrder<T> {
    /// The `(m, n)` tile at position `index` of the order.
    pub fn tile(self, index: T) -> (T, T) {
        let per_band = self.n_tiles * self.band;
        let band = index / per_band;
        let first_row = band * self.band;
        let inside = index - band * per_band;
        let rows = (self.m_tiles - first_row).smaller(self.band);
        let column = inside / rows;
        (first_row + inside - column * rows, column)
    }

    /// How many tiles there are.
    pub fn count(self) -> T {
        self.m_tiles * self.n_tiles
    }
}

/// A tile order of kernel values.
pub type KernelTileOrder<'k> = TileOrder<U32<'k>>;

/// Whether so few rows have a B to themselves that their tiles are one wave and wait for B, which is read once. Where
/// there are more, the rest of a fetched L2 line of B is wanted later, and must not be evicted first.
pub(crate) fn streams_b(rows: U32<'_>) -> Pred<'_> {
    rows.le(128)
}

/// K order of a tile: forward or, in every other tile of a cluster, from the end, so that it finds in the L2 cache what
/// the tiles before it have read last.
#[derive(Clone, Copy)]
pub(crate) struct KOrder<'k> {
    /// Whether from the end, in kernels with serpentine K.
    reverse: Option<Pred<'k>>,
    /// The first block, and the one behind the last.
    blocks: [U32<'k>; 2],
    /// Blocks that stay in their order, as their scales are loaded together.
    group: u32,
}

impl<'k> KOrder<'k> {
    /// Order of a tile's K blocks from the first to before the last. What is no whole number of groups is taken
    /// forward.
    pub fn new(reverse: Option<Pred<'k>>, blocks: [U32<'k>; 2], group: u32) -> Self {
        let whole = |reverse: Pred<'k>| if group > 1 { reverse & (blocks[1] % group).eq(0) } else { reverse };
        KOrder { reverse: reverse.map(whole), blocks, group }
    }

    /// The first block of the group that is taken in place of the one that begins with `start`.
    pub fn group(self, start: U32<'k>) -> U32<'k> {
        let [_, end] = self.blocks;
        self.reverse.map_or(start, |reverse| reverse.select(end - self.group - start, start))
    }

    /// Runs `body` with each block.
    pub fn for_each(self, k: &'k Kernel, body: impl FnOnce(U32<'k>)) {
        let ([first, end], group) = (self.blocks, self.group);
        if self.reverse.is_none() {
            return k.for_(first, end, 1, body);
        }
        if group == 1 {
            return k.for_(first, end, 1, |nth| body(self.group(nth)));
        }
        k.for_(first - first % group, end, group, |start| {
            let further = self.group(start) - start;
            k.for_(first.max(start) + further, end.min(start + group) + further, 1, body);
        });
    }
}

/// Serpentine K of a cluster's tiles: 1 or 0, and what it changes by from tile to tile; nothing in other kernels.
pub(crate) struct Serpentine<'k>(Option<(Var<'k, u32>, U32<'k>)>);

impl<'k> Serpentine<'k> {
    /// Begins forward; `serpentine_k` is 1 where every other tile runs K backwards.
    pub fn new(k: &'k Kernel, serpentine_k: Option<U32<'k>>) -> Self {
        Serpentine(serpentine_k.map(|step| (k.var(0u32), step)))
    }

    /// Whether this tile runs K backwards, if it `may`.
    pub fn current(&self, may: Option<Pred<'k>>) -> Option<Pred<'k>> {
        let (reverse, _) = self.0?;
        let reverse = reverse.get().ne(0);
        Some(may.map_or(reverse, |may| reverse & may))
    }

    /// Moves to the next tile.
    pub fn advance(&self) {
        if let Some((reverse, step)) = self.0 {
            reverse.set(reverse.live() ^ step);
        }
    }
}

/// Most rows of tiles of a raster band that is chosen by its memory traffic.
pub const MAX_BAND: u32 = 64;

/// Memory traffic of a persistent grid that takes tiles in bands, wave after wave.
///
/// A wave has as many tiles as run at a time: the rows of one band and as many columns as that takes. The rows of A
/// stay the same until the band ends, and B is read once for each band.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// Tiles along M and along N.
    pub tiles: [u32; 2],
    /// Bytes of A that a row of tiles reads, and of B that a column does.
    pub bytes: [u64; 2],
    /// Tiles that run at a time.
    pub concurrent: u32,
}

impl Sweep {
    /// Bytes that the L2 cache of an H200 keeps for all of its SMs: half of what it has, as each half of it has a copy
    /// of what the SMs next to it read.
    const KEPT: u64 = 25 << 20;

    fn bands(&self) -> impl Iterator<Item = u32> {
        1..=self.tiles[0].clamp(1, MAX_BAND)
    }

    /// Bytes that a wave reads.
    fn wave_bytes(&self, band: u32) -> u64 {
        let columns = self.concurrent.div_ceil(band).min(self.tiles[1].max(1));
        u64::from(band) * self.bytes[0] + u64::from(columns) * self.bytes[1]
    }

    /// The band whose waves read the least.
    pub fn smallest_wave(&self) -> u32 {
        self.bands().min_by_key(|band| self.wave_bytes(*band)).unwrap_or(1)
    }

    /// The band that reads the least from memory, where each wave begins with what the one before has read last: of the
    /// rows that both have, it finds as much as the L2 cache keeps. Where all of B is kept, the band whose waves read
    /// the least.
    pub fn best_band(&self) -> u32 {
        let smallest = self.smallest_wave();
        let all_of_b = u64::from(self.tiles[1]) * self.bytes[1];
        if u64::from(smallest) * self.bytes[0] + all_of_b <= Self::KEPT {
            return smallest;
        }
        let read_of = |rows: u32| {
            let (a, wave) = (u64::from(rows) * self.bytes[0], self.wave_bytes(rows));
            let lost = wave.saturating_sub(Self::KEPT) as f64 / wave as f64;
            let waves = f64::from(rows) * f64::from(self.tiles[1]) / f64::from(self.concurrent);
            all_of_b as f64 + a as f64 * (1.0 + lost * (waves - 1.0).max(0.0))
        };
        let read = |band: u32| {
            let (bands, rest) = (self.tiles[0] / band, self.tiles[0] % band);
            f64::from(bands) * read_of(band) + if rest > 0 { read_of(rest) } else { 0.0 }
        };
        self.bands().min_by(|a, b| read(*a).total_cmp(&read(*b))).unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_is_taken_exactly_once() {
        for (m_tiles, n_tiles, band) in [(1, 1, 1), (7, 5, 2), (16, 56, 8), (5, 3, 8), (33, 17, 16)] {
            let order = TileOrder { m_tiles, n_tiles, band };
            let mut seen = vec![false; order.count() as usize];
            for index in 0..order.count() {
                let (m, n) = order.tile(index);
                assert!(m < m_tiles && n < n_tiles, "tile ({m}, {n}) outside {m_tiles}x{n_tiles}");
                let slot = &mut seen[(m * n_tiles + n) as usize];
                assert!(!*slot, "tile ({m}, {n}) twice");
                *slot = true;
            }
        }
    }

    #[test]
    fn the_band_balances_rows_and_columns() {
        // A wave of 132 square tiles: about 11 by 12.
        let sweep = Sweep { tiles: [64, 64], bytes: [128 * 1024; 2], concurrent: 132 };
        let band = sweep.smallest_wave();
        assert!((10..=13).contains(&band), "{band}");
        assert_eq!(Sweep { tiles: [1, 64], ..sweep }.best_band(), 1);
    }

    /// The bands that were fastest on an H200, of 256x128 tiles in clusters of 1x2.
    #[test]
    fn the_band_reads_the_least_from_memory() {
        let best = |m: u32, n: u32, k: u64| {
            let sweep = Sweep { tiles: [m / 256, n / 256], bytes: [256 * k; 2], concurrent: 66 };
            sweep.best_band()
        };
        assert_eq!(best(8192, 8192, 8192), 11);
        assert_eq!(best(4096, 7168, 16384), 8);
        assert_eq!(best(8192, 6144, 7168), 11);
        // All rows of A are kept, and B is read once.
        assert_eq!(best(4096, 7168, 3072), 16);
        // All of B is kept, and A is read once.
        assert_eq!(best(8192, 4096, 4096), 1);
    }
}
