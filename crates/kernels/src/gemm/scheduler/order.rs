//! The order in which a persistent grid takes output tiles, and a tile its blocks of K.

use oxigemm_ptx::{Arg, Int, Kernel, Pred, U32, Val};

/// Tiles in bands: `band` rows of tiles are swept along N before the next rows begin, so that the tiles in
/// flight at one time share their rows of A and their rows of B in the L2 cache.
#[derive(Clone, Copy, Debug)]
pub struct TileOrder<T> {
    /// Tiles along M.
    pub m_tiles: T,
    /// Tiles along N.
    pub n_tiles: T,
    /// Rows of tiles in one band.
    pub band: T,
}

/// The arithmetic that the order needs, of plain integers and of kernel values.
///
/// The order exists once: the kernel executes the same function that the host and the tests call.
pub trait Index:
    Copy
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
{
    /// The smaller of the two.
    fn smaller(self, other: Self) -> Self;
    /// One of two, where it is less than the other and elsewhere.
    fn if_less(self, other: Self, then: Self, otherwise: Self) -> Self;
}

impl Index for u32 {
    fn smaller(self, other: u32) -> u32 {
        self.min(other)
    }

    fn if_less(self, other: u32, then: u32, otherwise: u32) -> u32 {
        if self < other { then } else { otherwise }
    }
}

impl<'k, T: Int> Index for Val<'k, T>
where
    T: Arg<'k, T>,
{
    fn smaller(self, other: Self) -> Self {
        self.min(other)
    }

    fn if_less(self, other: Self, then: Self, otherwise: Self) -> Self {
        self.lt(other).select(then, otherwise)
    }
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

/// Whether so few rows have a B to themselves that their tiles run at one time and wait for it: B passes by once. Where there
/// are more, what the L2 cache fetches beside a piece of B is wanted later, and must not leave first.
pub(crate) fn streams_b(rows: U32<'_>) -> Pred<'_> {
    rows.le(128)
}

/// The order in which a tile takes its blocks of K: from the beginning or, every other tile of a cluster, from the end, so that it finds in the L2 cache
/// what the tiles before it have read last.
#[derive(Clone, Copy)]
pub(crate) struct KOrder<'k> {
    /// Whether from the end, in kernels that can.
    back: Option<Pred<'k>>,
    /// The first block, and the one behind the last.
    blocks: [U32<'k>; 2],
    /// Blocks that stay in their order, as their scales come together.
    group: u32,
}

impl<'k> KOrder<'k> {
    /// Of a tile's blocks from the first to before the last. What is no whole number of groups is taken from the beginning.
    pub fn new(back: Option<Pred<'k>>, blocks: [U32<'k>; 2], group: u32) -> Self {
        let whole = |back: Pred<'k>| if group > 1 { back & (blocks[1] % group).eq(0) } else { back };
        KOrder { back: back.map(whole), blocks, group }
    }

    /// The first block of the group that is taken in the place of the one that begins with `start`.
    pub fn group(self, start: U32<'k>) -> U32<'k> {
        let [_, end] = self.blocks;
        self.back.map_or(start, |back| back.select(end - self.group - start, start))
    }

    /// Runs `body` with each block.
    pub fn for_each(self, k: &'k Kernel, body: impl FnOnce(U32<'k>)) {
        let ([first, end], group) = (self.blocks, self.group);
        if self.back.is_none() {
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

/// What a persistent grid reads while it takes tiles in bands, round after round.
///
/// A round has as many tiles as run at a time: the rows of one band and as many columns as that takes. The rows of A stay the same until the band
/// ends, and B passes by once for each band.
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
    /// Bytes that the L2 cache of an H200 keeps for all of its multiprocessors: half of what it has, as each half of it
    /// has a copy of what the multiprocessors next to it read.
    const KEPT: u64 = 25 << 20;

    fn bands(&self) -> impl Iterator<Item = u32> {
        1..=self.tiles[0].clamp(1, 64)
    }

    /// Bytes that a round reads.
    fn round_bytes(&self, band: u32) -> u64 {
        let columns = self.concurrent.div_ceil(band).min(self.tiles[1].max(1));
        u64::from(band) * self.bytes[0] + u64::from(columns) * self.bytes[1]
    }

    /// The band whose rounds read the least.
    pub fn smallest_round(&self) -> u32 {
        self.bands().min_by_key(|band| self.round_bytes(*band)).unwrap_or(1)
    }

    /// The band that is read the least for from memory, where each round begins with what the one before has read last: of the rows that both
    /// have, it finds as much as is kept. Where all of B is kept, it is the one whose rounds read the least.
    pub fn best_band(&self) -> u32 {
        let smallest = self.smallest_round();
        let all_of_b = u64::from(self.tiles[1]) * self.bytes[1];
        if u64::from(smallest) * self.bytes[0] + all_of_b <= Self::KEPT {
            return smallest;
        }
        let read_of = |rows: u32| {
            let (a, round) = (u64::from(rows) * self.bytes[0], self.round_bytes(rows));
            let lost = round.saturating_sub(Self::KEPT) as f64 / round as f64;
            let rounds = f64::from(rows) * f64::from(self.tiles[1]) / f64::from(self.concurrent);
            all_of_b as f64 + a as f64 * (1.0 + lost * (rounds - 1.0).max(0.0))
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
        // 132 square tiles in flight: about 11 by 12.
        let sweep = Sweep { tiles: [64, 64], bytes: [128 * 1024; 2], concurrent: 132 };
        let band = sweep.smallest_round();
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
        // All rows of A are kept, and B passes by once.
        assert_eq!(best(4096, 7168, 3072), 16);
        // All of B is kept, and A passes by.
        assert_eq!(best(8192, 4096, 4096), 1);
    }
}
