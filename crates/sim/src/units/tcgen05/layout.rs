//! Where the operands of `tcgen05.mma` lie in tensor memory.
//!
//! The accumulators of one CTA are cut into parts of N columns each, one part for each group of lanes:
//!
//! | M | group | lanes of row `m` | columns | manual |
//! |---|---|---|---|---|
//! | 256 | 2 | `m % 128`; CTA `m / 128` | N | layout A |
//! | 128 | 2 | `m % 64`, and 64 further for the upper half of N; CTA `m / 64` | N / 2 | B |
//! | 128 | 1 | `m` | N | D |
//! | 64 | 1, `.ws` | `m`, and 64 further for the upper half of N | N / 2 | E |
//! | 64 | 1 | `m % 16 + 32 (m / 16)`, from lane 0 or 16 | N | F |
//! | 32 | 1, `.ws` | `m`, and 32 further for each quarter of N | N / 4 | G |
//!
//! Each group of lanes reads A and the scales from its own lanes: A lies in the lanes of D, once for each part, and
//! scales lie in each 32 lanes again. The scales of row `r` are in lane `r % 32` and column `r / 32`; those of B count
//! `r` from the first column of a part.

use super::instruction::{Form, Instruction};

/// The accumulators of one CTA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Rows of A and D in one CTA.
    pub(crate) rows: u32,
    /// Parts of N, each in lanes of its own.
    pub(crate) parts: u32,
    /// Columns of a part.
    pub(crate) columns: u32,
    /// Sixteen lanes of each 32 only.
    halves: bool,
}

impl Layout {
    pub(crate) fn new(i: &Instruction, form: Form) -> Layout {
        let rows = if form.pair { i.m / 2 } else { i.m };
        let (parts, halves) = match (rows, form.stationary, form.pair) {
            (128, ..) => (1, false),
            (64, false, false) => (1, true),
            (64, ..) => (2, false),
            _ => (4, false),
        };
        Layout { rows, parts, columns: i.n / parts, halves }
    }

    /// The lane of a row in a part, counted from the address.
    pub(crate) fn lane(&self, row: u32, part: u32) -> u32 {
        if self.halves { row % 16 + row / 16 * 32 } else { row + part * self.rows }
    }

    /// The lanes of a part, as a mask.
    pub(crate) fn lanes(&self, part: u32) -> u128 {
        (0..self.rows).fold(0, |mask, row| mask | 1 << self.lane(row, part))
    }

    /// Whether an accumulator can begin in this lane.
    pub(crate) fn begins_at(&self, lane: u32) -> bool {
        lane == 0 || self.halves && lane == 16
    }

    /// Groups of 32 lanes that a part is in.
    pub(crate) fn quarters(&self, part: u32) -> std::ops::Range<u32> {
        if self.halves {
            return 0..4;
        }
        let each = self.rows / 32;
        part * each..(part + 1) * each
    }
}

/// The place of the scales of a row: lane within 32, and column.
pub(crate) fn scale_place(row: u32) -> (u32, u32) {
    (row % 32, row / 32)
}

/// Columns that the scales of this many rows take.
pub(crate) fn scale_columns(rows: u32) -> u32 {
    rows.div_ceil(32)
}

#[cfg(test)]
mod tests {
    use super::super::instruction::Kind;
    use super::*;

    fn layout(m: u32, n: u32, pair: bool, stationary: bool) -> Layout {
        let form = Form { kind: Kind::F16, pair, stationary, block: 0 };
        let d = (n / 8) << 17 | (m / 16) << 24 | 1 << 4;
        Layout::new(&Instruction::decode(d, form).unwrap(), form)
    }

    /// The tables of the manual: for each row of one CTA, the lanes that hold it, and the first N of each.
    #[test]
    fn accumulators_lie_as_in_the_figures() {
        // (m, pair, stationary), then (row, lane, first column of N).
        type Place = (u32, u32, u32);
        let tables: [((u32, bool, bool), &[Place]); 6] = [
            ((256, true, false), &[(0, 0, 0), (31, 31, 0), (127, 127, 0)]),
            ((128, true, false), &[(0, 0, 0), (63, 63, 0), (0, 64, 64), (63, 127, 64)]),
            ((128, false, false), &[(0, 0, 0), (64, 64, 0), (127, 127, 0)]),
            ((64, false, true), &[(0, 0, 0), (63, 63, 0), (0, 64, 64), (31, 95, 64)]),
            ((64, false, false), &[(0, 0, 0), (15, 15, 0), (16, 32, 0), (47, 79, 0), (63, 111, 0)]),
            ((32, false, true), &[(0, 0, 0), (31, 31, 0), (0, 32, 32), (5, 69, 64), (31, 127, 96)]),
        ];
        for ((m, pair, stationary), places) in tables {
            let l = layout(m, 128, pair, stationary);
            for &(row, lane, first) in places {
                let part = first / l.columns;
                assert_eq!(l.lane(row, part), lane, "M {m} row {row}");
                assert_eq!(part * l.columns, first, "M {m}");
                assert_eq!(l.lanes(part) >> lane & 1, 1);
            }
        }
    }

    #[test]
    fn parts_share_no_lane_and_cover_what_the_manual_says() {
        for (m, pair, stationary, used) in [
            (256, true, false, 128),
            (128, true, false, 128),
            (128, false, false, 128),
            (128, false, true, 128),
            (64, false, true, 128),
            (64, false, false, 64),
            (32, false, true, 128),
        ] {
            let l = layout(m, 64, pair, stationary);
            let masks: Vec<u128> = (0..l.parts).map(|p| l.lanes(p)).collect();
            let all = masks.iter().fold(0, |x, y| x | y);
            assert_eq!(all.count_ones(), used, "M {m}");
            assert_eq!(masks.iter().map(|x| x.count_ones()).sum::<u32>(), used);
            assert_eq!(l.parts * l.columns, 64);
            assert_eq!((l.begins_at(0), l.begins_at(16), l.begins_at(32)), (true, used == 64, false));
            for (p, mask) in masks.iter().enumerate() {
                let quarters = l.quarters(p as u32);
                for q in 0..4 {
                    assert_eq!(
                        quarters.contains(&q),
                        mask >> (32 * q) as u128 & 0xffff_ffff != 0,
                        "M {m} part {p}"
                    );
                }
            }
        }
    }

    /// 128 rows of scales are four columns: rows 0 to 31 in the first.
    #[test]
    fn scales_lie_in_columns_of_32_rows() {
        assert_eq!([0, 31, 32, 127, 255].map(scale_place), [(0, 0), (31, 0), (0, 1), (31, 3), (31, 7)]);
        assert_eq!([8, 32, 40, 64, 128, 256].map(scale_columns), [1, 1, 2, 2, 4, 8]);
    }
}
