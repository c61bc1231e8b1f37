//! The order in which a persistent grid takes output tiles.

use oxigemm_ptx::{Arg, Int, Pred, U32, Val};

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

/// The band that keeps the least data in flight: `concurrent` tiles of `tile_m` by `tile_n` as a block of
/// `band` rows and as many columns as that takes.
pub fn best_band(m_tiles: u32, n_tiles: u32, concurrent: u32, tile_m: u32, tile_n: u32) -> u32 {
    let footprint = |band: &u32| {
        let columns = concurrent.div_ceil(*band).min(n_tiles.max(1));
        u64::from(*band) * u64::from(tile_m) + u64::from(columns) * u64::from(tile_n)
    };
    (1..=m_tiles.clamp(1, 64)).min_by_key(footprint).unwrap_or(1)
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
        let band = best_band(64, 64, 132, 128, 128);
        assert!((10..=13).contains(&band), "{band}");
        assert_eq!(best_band(1, 64, 132, 128, 128), 1);
    }
}
