//! Dimensions and strides: which element of the storage an index means.
//!
//! Every layout of memory of our own comes from a contiguous one by transposing, narrowing and reshaping. Two indices
//! of such a layout therefore never mean the same element.

use crate::error::{Error, Result};

/// The largest rank of a tensor.
pub const MAX_RANK: usize = 4;

/// The shape of a tensor, with its strides in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    rank: usize,
    dims: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
}

impl Layout {
    /// Row-major, without gaps. Refuses ranks outside 1 to 4 and sizes beyond `isize::MAX` bytes.
    pub fn contiguous(dims: &[usize], element_size: usize) -> Result<Layout> {
        if dims.is_empty() || dims.len() > MAX_RANK {
            return Err(Error::Rank {
                argument: "dims",
                expected: format!("1 to {MAX_RANK} dimensions"),
                found: format!("{dims:?}"),
            });
        }
        // An empty dimension does not excuse the others: every partial product is a stride.
        let bytes = dims.iter().try_fold(element_size, |bytes, &dim| bytes.checked_mul(dim.max(1)));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(Error::Overflow {
                argument: "dims",
                expected: "at most isize::MAX bytes".to_owned(),
                found: format!("{dims:?} of {element_size}-byte elements"),
            });
        }
        let mut layout = Layout { rank: dims.len(), dims: [1; MAX_RANK], strides: [1; MAX_RANK] };
        layout.dims[..dims.len()].copy_from_slice(dims);
        for i in (1..dims.len()).rev() {
            layout.strides[i - 1] = layout.strides[i] * dims[i].max(1);
        }
        Ok(layout)
    }

    /// Any strides, in elements. Refuses ranks outside 1 to 4, and ends beyond `isize::MAX` bytes.
    pub fn strided(dims: &[usize], strides: &[usize], element_size: usize) -> Result<Layout> {
        let mut layout = Layout::contiguous(dims, element_size)?;
        if strides.len() != dims.len() {
            return Err(Error::Rank {
                argument: "strides",
                expected: format!("as many as dimensions, {}", dims.len()),
                found: format!("{strides:?}"),
            });
        }
        layout.strides[..strides.len()].copy_from_slice(strides);
        let last = dims.iter().zip(strides).try_fold(1usize, |last, (&dim, &stride)| {
            last.checked_add(dim.saturating_sub(1).checked_mul(stride)?)
        });
        let bytes = last.and_then(|last| last.checked_mul(element_size));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(Error::Overflow {
                argument: "strides",
                expected: "an end within isize::MAX bytes".to_owned(),
                found: format!("{strides:?} for {dims:?} of {element_size}-byte elements"),
            });
        }
        Ok(layout)
    }

    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    pub fn strides(&self) -> &[usize] {
        &self.strides[..self.rank]
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.dims().iter().product()
    }

    /// The number of elements from the first to the last, gaps included.
    pub fn span(&self) -> usize {
        if self.len() == 0 {
            return 0;
        }
        self.dims().iter().zip(self.strides()).map(|(dim, stride)| (dim - 1) * stride).sum::<usize>() + 1
    }

    pub fn is_contiguous(&self) -> bool {
        self.len() == 0 || self.run().1 == 0
    }

    /// Whether several indices may mean the same element, as those of foreign memory can.
    pub fn overlaps_itself(&self) -> bool {
        let mut reached = 0;
        self.len() > 0
            && self.memory_order()[..self.rank].iter().rev().filter(|i| self.dims[**i] > 1).any(|&i| {
                let within = self.strides[i] <= reached;
                reached += (self.dims[i] - 1) * self.strides[i];
                within
            })
    }

    pub fn transpose(mut self, first: usize, second: usize) -> Result<Layout> {
        self.check_dim(first)?;
        self.check_dim(second)?;
        self.dims.swap(first, second);
        self.strides.swap(first, second);
        Ok(self)
    }

    /// Keeps `start..start + len` of one dimension; also gives the element where the part begins.
    pub fn narrow(mut self, dim: usize, start: usize, len: usize) -> Result<(Layout, usize)> {
        self.check_dim(dim)?;
        if start.checked_add(len).is_none_or(|end| end > self.dims[dim]) {
            return Err(Error::Shape {
                argument: "range",
                expected: format!("a range within 0..{} of dimension {dim}", self.dims[dim]),
                found: format!("{start}..{}", start.saturating_add(len)),
            });
        }
        self.dims[dim] = len;
        // An empty part begins nowhere: the offset must not lie past the storage.
        let offset = if self.len() == 0 { 0 } else { start * self.strides[dim] };
        Ok((self, offset))
    }

    /// The layout without its first dimension, which must be 1.
    pub fn without_first(&self) -> Result<Layout> {
        if self.rank < 2 || self.dims[0] != 1 {
            return Err(Error::Rank {
                argument: "tensor",
                expected: "2 dimensions or more, the first of them 1".to_owned(),
                found: format!("{:?}", self.dims()),
            });
        }
        let (mut dims, mut strides) = (self.dims, self.strides);
        dims[..self.rank].rotate_left(1);
        strides[..self.rank].rotate_left(1);
        Ok(Layout { rank: self.rank - 1, dims, strides })
    }

    pub fn reshape(&self, dims: &[usize]) -> Result<Layout> {
        let layout = Layout::contiguous(dims, 1)?;
        if layout.len() != self.len() {
            return Err(Error::Shape {
                argument: "dims",
                expected: format!("{} elements, as in {:?}", self.len(), self.dims()),
                found: format!("{dims:?}"),
            });
        }
        if !self.is_contiguous() {
            return Err(Error::Stride {
                argument: "tensor",
                expected: "a contiguous tensor, which alone can be viewed in another shape".to_owned(),
                found: format!("strides {:?} for {:?}", self.strides(), self.dims()),
            });
        }
        Ok(layout)
    }

    /// The dimensions from the largest stride to the smallest: the order of the elements in memory.
    pub fn memory_order(&self) -> [usize; MAX_RANK] {
        let mut order = [0, 1, 2, 3];
        order[..self.rank].sort_by_key(|&i| (std::cmp::Reverse(self.strides[i]), i));
        order
    }

    /// The same elements with dimension `order[i]` in place `i`.
    pub fn permute(&self, order: [usize; MAX_RANK]) -> Layout {
        Layout { rank: self.rank, dims: order.map(|i| self.dims[i]), strides: order.map(|i| self.strides[i]) }
    }

    /// The first element and the length of every contiguous run, in row-major order of the index.
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (run, outer) = self.run();
        let count = self.len().checked_div(run).unwrap_or(0);
        let (dims, strides) = (self.dims, self.strides);
        (0..count).map(move |mut index| {
            let mut offset = 0;
            for i in (0..outer).rev() {
                offset += index % dims[i] * strides[i];
                index /= dims[i];
            }
            (offset, run)
        })
    }

    /// The length of a contiguous run, and how many leading dimensions lie outside it.
    fn run(&self) -> (usize, usize) {
        let mut run = 1;
        for i in (0..self.rank).rev() {
            if self.dims[i] != 1 && self.strides[i] != run {
                return (run, i + 1);
            }
            run *= self.dims[i];
        }
        (run, 0)
    }

    fn check_dim(&self, dim: usize) -> Result<()> {
        if dim < self.rank {
            return Ok(());
        }
        Err(Error::Rank {
            argument: "dim",
            expected: format!("a dimension of {:?}", self.dims()),
            found: format!("dimension {dim}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The offset of every index in row-major order, by the definition of strides.
    fn offsets(layout: &Layout) -> Vec<usize> {
        let mut offsets = vec![0];
        for (&dim, &stride) in layout.dims().iter().zip(layout.strides()) {
            offsets = offsets.iter().flat_map(|o| (0..dim).map(move |i| o + i * stride)).collect();
        }
        offsets
    }

    fn any_layout() -> impl Strategy<Value = Layout> {
        let dims = proptest::collection::vec(0..5usize, 1..=4);
        (dims, 0..4usize, 0..4usize, 0..4usize, 0..5usize, 0..5usize).prop_map(
            |(dims, a, b, cut, start, len)| {
                let layout = Layout::contiguous(&dims, 4).unwrap();
                let layout = layout.transpose(a % dims.len(), b % dims.len()).unwrap();
                let cut = cut % dims.len();
                let start = start.min(layout.dims()[cut]);
                layout.narrow(cut, start, len.min(layout.dims()[cut] - start)).unwrap().0
            },
        )
    }

    proptest! {
        #[test]
        fn runs_visit_every_element_once_in_order(layout in any_layout()) {
            let visited: Vec<usize> = layout.runs().flat_map(|(start, len)| start..start + len).collect();
            prop_assert_eq!(&visited, &offsets(&layout));
            prop_assert_eq!(visited.len(), layout.len());
            prop_assert_eq!(visited.iter().max().map_or(0, |last| last + 1), layout.span());
            let contiguous = visited.iter().copied().eq(0..layout.len());
            prop_assert_eq!(layout.is_contiguous(), contiguous);
            prop_assert!(!layout.overlaps_itself());
        }

        #[test]
        fn memory_order_visits_ascending_addresses(layout in any_layout()) {
            let visited = offsets(&layout.permute(layout.memory_order()));
            prop_assert!(visited.is_sorted());
        }
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        for dims in [&[usize::MAX][..], &[1 << 32, 1 << 32], &[0, usize::MAX, 2], &[1 << 61, 0]] {
            assert!(matches!(Layout::contiguous(dims, 4), Err(Error::Overflow { argument: "dims", .. })));
        }
    }
}
