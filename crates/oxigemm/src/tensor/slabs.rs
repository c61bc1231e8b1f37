//! Slabs: operands with a leading dimension for groups, or without one.

use super::desc::{Footprint, Operand, ScaleStrides};
use super::layout::MAX_RANK;
use crate::error::{Error, Result};

/// TMA takes strides below this many bytes.
const TMA_STRIDE_LIMIT: u64 = 1 << 40;

/// Rules of matrices that are contiguous along a leading dimension of three, or of a single matrix.
impl Operand {
    /// Number of matrices and their dimensions, of an operand with or without a leading dimension.
    pub(crate) fn slab_dims(&self, several: bool) -> Result<[i64; 3]> {
        if !several {
            let [rows, columns] = self.matrix_dims()?;
            return Ok([1, rows, columns]);
        }
        if self.rank != 3 {
            return Err(Error::Rank {
                argument: self.name,
                expected: "3 dimensions, groups first".to_owned(),
                found: format!("{} dimensions, {:?}", self.rank, self.dims()),
            });
        }
        let ([rows, columns], slabs) = (self.slab().matrix_dims()?, self.dims[0]);
        if slabs < 0 {
            return Err(Error::Shape {
                argument: self.name,
                expected: "dimensions of 0 or more".to_owned(),
                found: format!("{:?}", self.shown(self.dims())),
            });
        }
        if slabs > i64::from(i32::MAX) {
            return Err(self.too_large(format!("dimensions up to {}", i32::MAX)));
        }
        Ok([slabs, rows, columns])
    }

    /// The matrices with rows and columns exchanged.
    pub(crate) fn transposed_slabs(mut self) -> Operand {
        if self.rank == 3 {
            self.dims.swap(1, 2);
            self.strides.swap(1, 2);
            self.exchanged = !self.exchanged;
        }
        self
    }

    /// The first matrix.
    pub(crate) fn slab(&self) -> Operand {
        if self.rank < 3 {
            return *self;
        }
        let ([_, rows, columns, ..], [_, row_stride, column_stride, ..]) = (self.dims, self.strides);
        let (dims, strides) = ([rows, columns, 1, 1], [row_stride, column_stride, 1, 1]);
        Operand { rank: 2, dims, strides, ..*self }
    }

    /// Checks the shape of one matrix of scales, or of several. Along a dimension that it has 1 of, that one holds for
    /// all: the result has the expected shape, with a stride of 0 there. A single number holds for everything.
    pub(crate) fn expect_slab_scales(
        &self,
        several: bool,
        expected: [i64; 3],
        meaning: &str,
    ) -> Result<Operand> {
        let (rank, from) = if several { (3, 0) } else { (2, 1) };
        let single = self.rank < rank && self.dims().iter().all(|dim| *dim == 1);
        let all = if single { Operand { rank, dims: [1; MAX_RANK], ..*self } } else { *self };
        let found = all.slab_dims(several)?;
        if found.iter().zip(expected).any(|(&found, expected)| found != expected && found != 1) {
            let any = if several { "any" } else { "either" };
            return Err(Error::ScaleShape {
                argument: self.name,
                expected: format!(
                    "{:?}, {meaning}, or 1 along {any} dimension for all",
                    self.shown(&expected[from..])
                ),
                found: format!("{:?}", self.shown(self.dims())),
            });
        }
        Ok(all.repeated_to(&expected[from..]))
    }

    /// Checks a contiguous list of so many numbers.
    pub(crate) fn expect_list(&self, length: i64) -> Result<()> {
        if self.rank != 1 {
            return Err(Error::Rank {
                argument: self.name,
                expected: "1 dimension".to_owned(),
                found: format!("{} dimensions, {:?}", self.rank, self.dims()),
            });
        }
        if self.dims[0] != length {
            return Err(Error::Shape {
                argument: self.name,
                expected: format!("[{length}]"),
                found: format!("{:?}", self.dims()),
            });
        }
        if length > 1 && self.strides[0] != 1 {
            return Err(Error::Stride {
                argument: self.name,
                expected: "numbers without gaps".to_owned(),
                found: format!("a stride of {}", self.strides[0]),
            });
        }
        Ok(())
    }

    /// A list as a matrix of one row.
    pub(crate) fn list(&self) -> Operand {
        Operand::matrix(
            self.name,
            self.dtype,
            [1, self.dims[0]],
            [self.dims[0], 1],
            self.address,
            self.device,
        )
    }

    /// From one matrix to the next, and how many there are; `None` where there is only one.
    fn slab_stride(&self) -> Result<Option<(u64, u64)>> {
        match (self.rank, self.dims[0], self.strides[0]) {
            (3, count @ 2.., stride @ 1..) => Ok(Some((count as u64, stride as u64))),
            (3, 2.., _) => Err(Error::Stride {
                argument: self.name,
                expected: "groups apart from each other".to_owned(),
                found: self.shown_strides(),
            }),
            _ => Ok(None),
        }
    }

    /// The bytes of all matrices, from those of the first.
    fn slabs_footprint(&self, count: u64, stride: u64, first: Footprint) -> Result<Footprint> {
        let size = self.dtype.size() as u64;
        let length =
            u128::from(count - 1) * u128::from(stride) * u128::from(size) + u128::from(first.length());
        Ok(first.repeated(count, stride * size, self.end_of(length)?))
    }

    /// Checks matrices that TMA reads; gives the elements from one to the next and the bytes of all.
    pub(crate) fn tma_slabs(&self, pitch: u64, first: Footprint) -> Result<(u64, Footprint)> {
        let size = self.dtype.size() as u64;
        let Some((count, stride)) = self.slab_stride()? else {
            // The stride of one matrix has no meaning: any that TMA takes will do.
            let whole = pitch.saturating_mul(self.slab().dims[0] as u64);
            return Ok((if whole < TMA_STRIDE_LIMIT / size { whole } else { pitch }, first));
        };
        let bytes = stride.saturating_mul(size);
        if !bytes.is_multiple_of(16) || bytes >= TMA_STRIDE_LIMIT {
            return Err(self.not_tma(format!(
                "the stride from group to group must be a multiple of 16 bytes below {TMA_STRIDE_LIMIT}, found \
                 {stride} {} elements",
                self.dtype
            )));
        }
        Ok((stride, self.slabs_footprint(count, stride, first)?))
    }

    /// Checks that the rows of all matrices are rows of one; gives the elements from one row to the next, and from one
    /// matrix to the next, and the bytes of all.
    pub(crate) fn whole_rows_apart(&self, pitch: u64, first: Footprint) -> Result<(u64, u32, Footprint)> {
        let Some((count, stride)) = self.slab_stride()? else { return Ok((pitch, 0, first)) };
        let rows = self.dims[1] as u64;
        // The pitch of single rows has no meaning: they are as far apart as their groups.
        let pitch = if rows == 1 { stride } else { pitch };
        if !stride.is_multiple_of(pitch) || stride < rows * pitch || stride < self.dims[2] as u64 {
            return Err(Error::Stride {
                argument: self.name,
                expected: format!("groups whole rows of {pitch} elements apart, at least {rows} of them"),
                found: self.shown_strides(),
            });
        }
        if pitch > u64::from(u32::MAX) {
            return Err(self.too_large(format!("a row pitch of at most {} elements", u32::MAX)));
        }
        if (count - 1) * (stride / pitch) + rows > i32::MAX as u64 {
            return Err(self.too_large(format!("at most {} rows from the first to the last", i32::MAX)));
        }
        Ok((pitch, self.narrow_slab(stride)?, self.slabs_footprint(count, stride, first)?))
    }

    /// Checks an output of matrices none of which reaches into another, contiguous or row beside row; gives the
    /// elements from one row to the next, and from one matrix to the next, and the bytes of all.
    pub(crate) fn plain_slabs(&self) -> Result<(u64, u32, Footprint)> {
        let (pitch, first) = self.slab().plain_rows()?;
        let Some((count, stride)) = self.slab_stride()? else { return Ok((pitch, 0, first)) };
        let [rows, columns] = [self.dims[1], self.dims[2]].map(|dim| dim as u64);
        let behind = stride >= (rows - 1) * pitch + columns;
        let beside = stride >= columns && pitch >= (count - 1).saturating_mul(stride).saturating_add(columns);
        if !behind && !beside {
            return Err(Error::Stride {
                argument: self.name,
                expected: "groups that do not reach into each other".to_owned(),
                found: self.shown_strides(),
            });
        }
        if pitch > u64::from(u32::MAX) {
            return Err(self.too_large(format!("a row pitch of at most {} elements", u32::MAX)));
        }
        Ok((pitch, self.narrow_slab(stride)?, self.slabs_footprint(count, stride, first)?))
    }

    /// Elements from one matrix to the next, as kernels count them.
    fn narrow_slab(&self, stride: u64) -> Result<u32> {
        u32::try_from(stride)
            .map_err(|_| self.too_large(format!("at most {} elements from group to group", u32::MAX)))
    }

    /// Checks matrices of scales; gives the elements from one to the next, 0 where all groups have the same, and the
    /// bytes of all.
    pub(crate) fn scale_slabs(&self, strides: ScaleStrides, first: Footprint) -> Result<(u32, Footprint)> {
        if self.rank == 3 && self.dims[0] > 1 && self.strides[0] == 0 {
            return Ok((0, first));
        }
        let Some((count, stride)) = self.slab_stride()? else {
            // As above: the length of the matrix, whichever way it lies.
            let [rows, columns] = [self.slab().dims[0], self.slab().dims[1]].map(|dim| dim as u64);
            let whole = (rows * u64::from(strides.mn)).max(columns * u64::from(strides.k));
            return Ok((u32::try_from(whole.next_multiple_of(4)).unwrap_or(4), first));
        };
        Ok((self.narrow_slab(stride)?, self.slabs_footprint(count, stride, first)?))
    }
}
