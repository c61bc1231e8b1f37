//! Groups of rows: their sizes, where they lie, and the numbers that the device reads.

use std::ops::Range;

use crate::GroupLayout;

/// The groups of an m-grouped GEMM, or the GEMMs of a batch.
#[derive(Clone, Debug)]
pub struct MGroups {
    /// How the device is told where groups are; `All` for a batch.
    pub layout: GroupLayout,
    /// Rows of each group.
    pub sizes: Vec<usize>,
    /// Rows of a slab, where groups have slabs of their own.
    pub max_m: usize,
    /// Rows of no group after the last, where groups are contiguous.
    pub trailing_rows: usize,
    /// What the first row of a contiguous group is a multiple of.
    pub alignment: usize,
    /// Whether the rows of a batch's A, C and D are interleaved: dimensions `[m, batch, columns]` in memory.
    pub interleaved: bool,
    /// How many groups have a B of their own; the others have that of an earlier one, because drawing is slow.
    pub distinct_b: usize,
    /// Numbers for the device that sizes do not give, and the rows of a slab.
    pub given: Option<(Vec<i32>, usize)>,
}

impl MGroups {
    /// Groups of these sizes, without rows between or behind them beyond an alignment of 128.
    pub fn new(layout: GroupLayout, sizes: Vec<usize>) -> MGroups {
        MGroups {
            layout,
            max_m: sizes.iter().copied().max().unwrap_or(0),
            trailing_rows: 0,
            alignment: if layout.has_slabs() { 1 } else { 128 },
            interleaved: false,
            distinct_b: sizes.len(),
            sizes,
            given: None,
        }
    }

    /// Groups by any numbers at all, of which the rules of the layout say what they mean, in slabs of so many rows.
    pub fn of_numbers(
        layout: GroupLayout,
        numbers: &[i32],
        [groups, rows]: [usize; 2],
        alignment: usize,
    ) -> MGroups {
        let found = layout.rows(numbers, groups as u32, rows as u32, alignment as u32);
        let sizes = found.iter().map(|rows| rows.len()).collect();
        MGroups {
            max_m: rows,
            alignment,
            given: Some((numbers.to_vec(), rows)),
            ..MGroups::new(layout, sizes)
        }
    }

    /// Whether each group has a slab of A and D to itself.
    pub fn has_slabs(&self) -> bool {
        self.layout.has_slabs()
    }

    /// Whether these are the GEMMs of a batch.
    pub fn is_batch(&self) -> bool {
        self.layout == GroupLayout::All
    }

    /// The rows of each group in its slab.
    pub fn ranges(&self) -> Vec<Range<usize>> {
        if let Some((numbers, rows)) = &self.given {
            let found =
                self.layout.rows(numbers, self.sizes.len() as u32, *rows as u32, self.alignment as u32);
            return found.into_iter().map(|rows| rows.start as usize..rows.end as usize).collect();
        }
        if self.has_slabs() {
            return self.sizes.iter().map(|&rows| 0..rows).collect();
        }
        let mut next = 0usize;
        let place = |rows: &usize| {
            let first = next.next_multiple_of(self.alignment);
            if *rows > 0 {
                next = first + rows;
            }
            first..first + rows
        };
        self.sizes.iter().map(place).collect()
    }

    /// Slabs of A and D, and rows of each.
    pub fn slabs(&self) -> [usize; 2] {
        let groups = if self.has_slabs() { self.sizes.len() } else { 1 };
        if let Some((_, rows)) = self.given {
            return [groups, rows];
        }
        if self.has_slabs() {
            return [groups, self.max_m];
        }
        let end = self.ranges().into_iter().filter(|rows| !rows.is_empty()).map(|rows| rows.end).max();
        [1, end.unwrap_or(0).next_multiple_of(self.alignment) + self.trailing_rows]
    }

    /// What the device is told: counts, ends or ids.
    pub fn numbers(&self) -> Vec<i32> {
        if let Some((numbers, _)) = &self.given {
            return numbers.clone();
        }
        match self.layout {
            GroupLayout::Counts => self.sizes.iter().map(|rows| *rows as i32).collect(),
            GroupLayout::All => Vec::new(),
            GroupLayout::Ends => ends(&self.sizes, self.alignment),
            GroupLayout::Ids => {
                let mut ids = vec![-1; self.slabs()[1]];
                for (group, rows) in self.ranges().into_iter().enumerate() {
                    ids[rows].fill(group as i32);
                }
                ids
            }
        }
    }
}

/// The ids of groups of these sizes, each padded with -1 to the alignment.
pub fn ids(sizes: &[usize], alignment: usize) -> Vec<i32> {
    let mut ids = Vec::new();
    for (group, &size) in sizes.iter().enumerate() {
        ids.extend(vec![group as i32; size]);
        ids.resize(ids.len().next_multiple_of(alignment), -1);
    }
    ids
}

/// The ends of groups of these sizes. An empty group ends where the one before it does, which moves no other.
pub fn ends(sizes: &[usize], alignment: usize) -> Vec<i32> {
    let mut reached = 0usize;
    let end = |size: &usize| {
        reached = if *size == 0 { reached } else { reached.next_multiple_of(alignment) + size };
        reached as i32
    };
    sizes.iter().map(end).collect()
}
