//! Tensor memory of one CTA: 512 columns of 128 lanes, 32 bits each, and its allocations.
//!
//! An address is `lane << 16 | column`. Columns are allocated in powers of two from 32 on, always with all lanes.
//! One CTA has the tensor memory of its SM to itself here: an allocation waits only for its own CTA's.

use crate::units::tcgen05::mma::Collectors;

/// Lanes (rows) of tensor memory.
pub(crate) const TENSOR_LANES: u32 = 128;
/// Columns of tensor memory.
pub(crate) const TENSOR_COLUMNS: u32 = 512;
/// The unit of allocation.
const UNIT: u32 = 32;

/// An address, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorAddress {
    pub(crate) lane: u32,
    pub(crate) column: u32,
}

impl TensorAddress {
    pub(crate) fn new(address: u32) -> TensorAddress {
        TensorAddress { lane: address >> 16, column: address & 0xffff }
    }
}

/// Columns `column..column + columns` in some lanes (bit `l` is lane `l`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) column: u32,
    pub(crate) columns: u32,
    pub(crate) lanes: u128,
}

impl Area {
    /// `lanes` lanes from `lane` on.
    pub(crate) fn new(column: u32, columns: u32, lane: u32, lanes: u32) -> Area {
        let ones = if lanes >= 128 { u128::MAX } else { (1 << lanes) - 1 };
        Area { column, columns, lanes: ones << lane }
    }

    /// Bytes of its words.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.columns) * u64::from(self.lanes.count_ones()) * 4
    }
}

impl std::fmt::Display for Area {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Area { column, columns, lanes } = *self;
        let (first, last) = (lanes.trailing_zeros(), 127 - lanes.leading_zeros().min(127));
        write!(f, "columns {column} to {}", column + columns.max(1) - 1)?;
        if lanes == u128::MAX {
            write!(f, ", all lanes")
        } else if lanes.count_ones() == last - first + 1 {
            write!(f, ", lanes {first} to {last}")
        } else {
            write!(f, ", {} of the lanes {first} to {last}", lanes.count_ones())
        }
    }
}

/// What occupies tensor memory for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// An allocation that begins at this column.
    Columns(u32),
    /// A load or a store of a warp.
    Move { warp: u32, store: bool },
}

/// One allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) column: u32,
    pub(crate) columns: u32,
    /// Made together with the peer CTA (`cta_group::2`).
    pub(crate) pair: bool,
    /// Warp (index in the cluster) and instruction.
    pub(crate) by: (u32, u32),
}

/// An allocation that a warp asks for and has not got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) columns: u32,
    pub(crate) pair: bool,
    pub(crate) by: (u32, u32),
    /// The first column, once the allocation is made.
    pub(crate) granted: Option<u32>,
}

/// Why columns cannot be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreeError {
    /// No allocation begins at this column.
    NotAllocated,
    /// The allocation has another size.
    Size(Allocation),
    /// The allocation was made for another number of CTAs.
    Group(Allocation),
}

/// The tensor memory of one CTA.
#[derive(Clone, Debug)]
pub(crate) struct TensorMemory {
    /// Words, column by column: the lanes of a column lie together.
    words: Vec<u32>,
    /// Per column, the lanes that were written since the allocation.
    written: Vec<u128>,
    pub(crate) allocations: Vec<Allocation>,
    /// Requests of warps of this CTA, the oldest first.
    pub(crate) requests: Vec<Request>,
    /// Columns of the last allocation: the next may not be larger.
    pub(crate) last_columns: Option<u32>,
    /// Warp and instruction that gave up the right to allocate.
    pub(crate) relinquished: Option<(u32, u32)>,
    /// The last allocation that was freed, for messages.
    pub(crate) freed: Option<(Allocation, (u32, u32))>,
    /// Whether instructions are for a pair of CTAs, with the warp and instruction that was first.
    pub(crate) group: Option<(bool, (u32, u32))>,
    /// Matrices that MMAs may use again.
    pub(crate) collectors: Collectors,
    /// Bars of the timeline that have not ended.
    pub(crate) traced: Vec<(Use, usize)>,
}

impl Default for TensorMemory {
    fn default() -> TensorMemory {
        TensorMemory {
            words: vec![0; (TENSOR_LANES * TENSOR_COLUMNS) as usize],
            written: vec![0; TENSOR_COLUMNS as usize],
            allocations: Vec::new(),
            requests: Vec::new(),
            last_columns: None,
            relinquished: None,
            freed: None,
            group: None,
            collectors: Collectors::default(),
            traced: Vec::new(),
        }
    }
}

impl TensorMemory {
    /// Whether an allocation of this many columns exists on any machine.
    pub(crate) fn allocatable(columns: u32) -> bool {
        columns.is_power_of_two() && (UNIT..=TENSOR_COLUMNS).contains(&columns)
    }

    /// Whether these columns are free.
    pub(crate) fn is_free(&self, column: u32, columns: u32) -> bool {
        let apart = |a: &Allocation| column + columns <= a.column || a.column + a.columns <= column;
        column + columns <= TENSOR_COLUMNS && self.allocations.iter().all(apart)
    }

    /// The first place for an allocation that is free here and in the peer.
    pub(crate) fn place(&self, columns: u32, peer: Option<&TensorMemory>) -> Option<u32> {
        let free = |at: &u32| self.is_free(*at, columns) && peer.is_none_or(|p| p.is_free(*at, columns));
        (0..TENSOR_COLUMNS).step_by(UNIT as usize).find(free)
    }

    /// Takes columns; nothing is known of their contents.
    pub(crate) fn allocate(&mut self, allocation: Allocation) {
        let Allocation { column, columns, .. } = allocation;
        self.written[column as usize..(column + columns) as usize].fill(0);
        self.allocations.push(allocation);
        self.last_columns = Some(columns);
    }

    /// The allocation that `free` would end.
    pub(crate) fn find(&self, column: u32, columns: u32, pair: bool) -> Result<usize, FreeError> {
        let at = self.allocations.iter().position(|a| a.column == column).ok_or(FreeError::NotAllocated)?;
        let a = self.allocations[at];
        if a.columns != columns {
            return Err(FreeError::Size(a));
        }
        if a.pair != pair {
            return Err(FreeError::Group(a));
        }
        Ok(at)
    }

    /// Gives columns back.
    pub(crate) fn free(&mut self, index: usize, by: (u32, u32)) {
        let a = self.allocations.remove(index);
        self.freed = Some((a, by));
    }

    /// The first column of an area that no allocation holds.
    pub(crate) fn unallocated(&self, area: &Area) -> Option<u32> {
        let held = |c: u32| self.allocations.iter().any(|a| (a.column..a.column + a.columns).contains(&c));
        // Mostly one allocation holds all of it.
        let whole =
            |a: &Allocation| a.column <= area.column && area.column + area.columns <= a.column + a.columns;
        if self.allocations.iter().any(whole) {
            return None;
        }
        (area.column..area.column + area.columns).find(|c| !held(*c))
    }

    pub(crate) fn get(&self, lane: u32, column: u32) -> u32 {
        self.words[(column * TENSOR_LANES + lane) as usize]
    }

    pub(crate) fn set(&mut self, lane: u32, column: u32, value: u32) {
        self.words[(column * TENSOR_LANES + lane) as usize] = value;
        self.written[column as usize] |= 1 << lane;
    }

    /// The words of a column, one for each lane.
    pub(crate) fn column(&self, column: u32) -> &[u32] {
        &self.words[(column * TENSOR_LANES) as usize..][..TENSOR_LANES as usize]
    }

    /// The same, to be changed; the caller says which lanes it has written with [`TensorMemory::mark`].
    pub(crate) fn column_mut(&mut self, column: u32) -> &mut [u32] {
        &mut self.words[(column * TENSOR_LANES) as usize..][..TENSOR_LANES as usize]
    }

    /// These words are written.
    pub(crate) fn mark(&mut self, area: &Area) {
        let columns = area.column as usize..(area.column + area.columns) as usize;
        self.written[columns].iter_mut().for_each(|w| *w |= area.lanes);
    }

    pub(crate) fn is_written(&self, lane: u32, column: u32) -> bool {
        self.written[column as usize] >> lane & 1 == 1
    }

    /// The first word of an area that was never written: lane and column.
    pub(crate) fn unwritten(&self, area: &Area) -> Option<(u32, u32)> {
        (area.column..area.column + area.columns).find_map(|c| {
            let missing = area.lanes & !self.written[c as usize];
            (missing != 0).then(|| (missing.trailing_zeros(), c))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(column: u32, columns: u32) -> Allocation {
        Allocation { column, columns, pair: false, by: (0, 0) }
    }

    #[test]
    fn columns_are_given_from_the_front_and_given_back() {
        let mut t = TensorMemory::default();
        assert_eq!(t.place(512, None), Some(0));
        t.allocate(allocation(0, 256));
        assert_eq!((t.place(256, None), t.place(512, None)), (Some(256), None));
        t.allocate(allocation(256, 64));
        t.set(5, 256, 7);
        assert_eq!((t.get(5, 256), t.is_written(5, 256), t.is_written(6, 256)), (7, true, false));
        assert_eq!(t.find(0, 128, false), Err(FreeError::Size(allocation(0, 256))));
        assert_eq!(t.find(0, 256, true), Err(FreeError::Group(allocation(0, 256))));
        let at = t.find(0, 256, false).unwrap();
        t.free(at, (1, 2));
        assert_eq!(t.find(0, 256, false), Err(FreeError::NotAllocated));
        assert_eq!(t.unallocated(&Area::new(250, 10, 0, 32)), Some(250));
        assert_eq!(t.unallocated(&Area::new(256, 64, 0, 32)), None);
        assert_eq!(t.unallocated(&Area::new(300, 32, 0, 32)), Some(320));
        // The peer's columns are the same ones.
        let mut peer = TensorMemory::default();
        peer.allocate(allocation(0, 32));
        assert_eq!(t.place(32, Some(&peer)), Some(32));
    }

    #[test]
    fn what_a_new_allocation_holds_is_unknown() {
        let mut t = TensorMemory::default();
        t.allocate(allocation(0, 32));
        t.mark(&Area::new(0, 32, 0, 128));
        assert_eq!(t.unwritten(&Area::new(0, 32, 0, 128)), None);
        t.free(0, (0, 0));
        t.allocate(allocation(0, 32));
        assert_eq!(t.unwritten(&Area::new(3, 2, 64, 16)), Some((64, 3)));
    }

    #[test]
    fn areas_are_described() {
        let text = |a: Area| a.to_string();
        assert_eq!(text(Area::new(8, 4, 32, 16)), "columns 8 to 11, lanes 32 to 47");
        assert_eq!(text(Area::new(0, 1, 0, 128)), "columns 0 to 0, all lanes");
        let scattered = Area { column: 0, columns: 2, lanes: 0xffff_0000_ffff };
        assert_eq!(text(scattered), "columns 0 to 1, 32 of the lanes 0 to 47");
    }
}
