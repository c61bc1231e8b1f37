//! One argument, and the rules that it keeps by itself or beside another one.

use super::dtype::DType;
use super::layout::MAX_RANK;
use crate::device::DeviceId;
use crate::error::{Error, Result};
use oxigemm_kernels::gemm::operand::f16::Major;

/// TMA takes base addresses and row pitches in multiples of this many bytes.
const TMA_ALIGNMENT: u64 = 16;
/// TMA takes row pitches below this many bytes.
const TMA_PITCH_LIMIT: u64 = 1 << 40;
/// One argument of a call: what it is and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// The argument's name, for errors.
    pub name: &'static str,
    /// The type of the elements.
    pub dtype: DType,
    /// How many of `dims` and `strides` count.
    pub rank: usize,
    /// The dimensions, outermost first.
    pub dims: [i64; MAX_RANK],
    /// The distance between neighbours along each dimension, in elements.
    pub strides: [i64; MAX_RANK],
    /// The address of the first element.
    pub address: u64,
    /// Where the memory is.
    pub device: DeviceId,
    /// Whether the last two dimensions are exchanged beside those that the caller gave; errors show the caller's.
    pub exchanged: bool,
}

impl Operand {
    /// A matrix.
    #[must_use]
    pub const fn matrix(
        name: &'static str,
        dtype: DType,
        dims: [i64; 2],
        strides: [i64; 2],
        address: u64,
        device: DeviceId,
    ) -> Operand {
        let dims = [dims[0], dims[1], 1, 1];
        let strides = [strides[0], strides[1], 1, 1];
        Operand { name, dtype, rank: 2, dims, strides, address, device, exchanged: false }
    }

    /// An operand of as many dimensions as are given, at most [`MAX_RANK`].
    pub(crate) fn new(
        (name, dtype): (&'static str, DType),
        dims: &[i64],
        strides: &[i64],
        (address, device): (u64, DeviceId),
    ) -> Operand {
        let mut all = ([1; MAX_RANK], [1; MAX_RANK]);
        all.0[..dims.len()].copy_from_slice(dims);
        all.1[..dims.len()].copy_from_slice(strides);
        let (rank, (dims, strides)) = (dims.len(), all);
        Operand { name, dtype, rank, dims, strides, address, device, exchanged: false }
    }
}

/// The strides of a scale matrix, in elements; 0 where one scale holds for all. The offset of the last scale fits in an
/// `i32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaleStrides {
    /// From one row of A, or one or 128 rows of B, to the next.
    pub mn: u32,
    /// From one 128 of K to the next.
    pub k: u32,
}

impl ScaleStrides {
    /// Those of operands without scales.
    pub const NONE: ScaleStrides = ScaleStrides { mn: 0, k: 0 };
}

/// The bytes of a matrix: `width` bytes at `start`, and again every `pitch` up to `end`. Where that is not its form
/// `pitch` is 0 and all of `start..end` counts.
pub(crate) struct Footprint {
    start: u64,
    end: u64,
    pitch: u64,
    width: u64,
}

impl Footprint {
    /// All bytes of a range.
    pub(crate) fn whole(start: u64, end: u64) -> Footprint {
        Footprint { start, end, pitch: 0, width: 0 }
    }

    /// Bytes from the first to behind the last.
    pub(crate) fn length(&self) -> u64 {
        self.end - self.start
    }

    /// The bytes of `count` such matrices, each `stride` bytes behind the one before, up to before `end`.
    pub(crate) fn repeated(self, count: u64, stride: u64, end: u64) -> Footprint {
        // Rows of all of them are rows of one matrix only where the matrices are whole rows apart.
        let whole_rows = self.pitch > 0 && stride.is_multiple_of(self.pitch);
        let keeps = count == 1 || whole_rows;
        Footprint { end, pitch: if keeps { self.pitch } else { 0 }, ..self }
    }

    /// Whether elements of a matrix of scales may lie in the same place.
    pub(crate) fn overlaps_itself(&self, dims: &[i64]) -> bool {
        self.pitch == 0 && dims.iter().product::<i64>() > 1
    }

    fn overlaps(&self, other: &Footprint) -> bool {
        if self.start >= other.end || other.start >= self.end {
            return false;
        }
        if self.pitch == 0 || self.pitch != other.pitch {
            return true;
        }
        // Columns of one larger matrix, side by side: compare where in a row the two begin and end.
        let shift = i128::from(self.start) - i128::from(other.start);
        let begin = shift.rem_euclid(i128::from(self.pitch)) as u64;
        begin < other.width || begin + self.width > self.pitch
    }
}

impl Operand {
    pub(crate) fn dims(&self) -> &[i64] {
        &self.dims[..self.rank.min(MAX_RANK)]
    }

    /// Dimensions or strides as the caller gave them, for errors.
    pub(crate) fn shown(&self, list: &[i64]) -> Vec<i64> {
        let mut shown = list.to_vec();
        if let (true, [.., row, column]) = (self.exchanged, &mut shown[..]) {
            std::mem::swap(row, column);
        }
        shown
    }

    /// Strides and dimensions as the caller gave them, for errors.
    pub(crate) fn shown_strides(&self) -> String {
        let strides = &self.strides[..self.rank.min(MAX_RANK)];
        format!("strides {:?} for {:?}", self.shown(strides), self.shown(self.dims()))
    }

    pub(crate) fn expect_dtype(&self, allowed: &[DType]) -> Result<()> {
        if allowed.contains(&self.dtype) {
            return Ok(());
        }
        let names: Vec<&str> = allowed.iter().map(|dtype| dtype.name()).collect();
        Err(Error::DType { argument: self.name, expected: names.join(" or "), found: self.dtype.to_string() })
    }

    pub(crate) fn expect_rank(&self, rank: usize, meaning: &str) -> Result<()> {
        if self.rank == rank {
            return Ok(());
        }
        Err(Error::Rank {
            argument: self.name,
            expected: format!("{rank} dimensions, {meaning}"),
            found: format!("{} dimensions, {:?}", self.rank, self.dims()),
        })
    }

    /// Without its first dimension: the first of what there are several of.
    pub(crate) fn of_group(&self) -> Operand {
        let ([_, rows, columns, last], [_, row, column, rest]) = (self.dims, self.strides);
        Operand {
            rank: self.rank.saturating_sub(1),
            dims: [rows, columns, last, 1],
            strides: [row, column, rest, 1],
            ..*self
        }
    }

    pub(crate) fn expect_device(&self, first: &Operand) -> Result<()> {
        if self.device == first.device {
            return Ok(());
        }
        Err(Error::Device {
            argument: self.name,
            expected: format!("{}, where `{}` is", first.device, first.name),
            found: self.device.to_string(),
        })
    }

    /// The two dimensions, each within what a kernel counts with.
    pub(crate) fn matrix_dims(&self) -> Result<[i64; 2]> {
        if self.rank != 2 {
            return Err(Error::Rank {
                argument: self.name,
                expected: "a matrix (2 dimensions)".to_owned(),
                found: format!("{} dimensions, {:?}", self.rank, self.dims()),
            });
        }
        let [rows, columns, ..] = self.dims;
        if rows < 0 || columns < 0 {
            return Err(Error::Shape {
                argument: self.name,
                expected: "dimensions of 0 or more".to_owned(),
                found: format!("{:?}", self.shown(self.dims())),
            });
        }
        if rows.max(columns) > i64::from(i32::MAX) {
            return Err(self.too_large(format!("dimensions up to {}", i32::MAX)));
        }
        Ok([rows, columns])
    }

    /// The dimensions, of which there must be as many as `shape` names, each within what a kernel counts with, also
    /// where all but the last are taken as one.
    pub(crate) fn expect_dims<const N: usize>(&self, shape: &str) -> Result<[i64; N]> {
        if self.rank != N {
            return Err(Error::Rank {
                argument: self.name,
                expected: shape.to_owned(),
                found: format!("{} dimensions, {:?}", self.rank, self.dims()),
            });
        }
        let dims: [i64; N] = std::array::from_fn(|i| self.dims[i]);
        if dims.iter().any(|&dim| dim < 0) {
            return Err(self.wrong_shape(shape, "dimensions of 0 or more"));
        }
        let rows = dims[..N - 1].iter().try_fold(1i64, |rows, &dim| rows.checked_mul(dim));
        if rows.is_none_or(|rows| rows > i64::from(i32::MAX)) || dims[N - 1] > i64::from(i32::MAX) {
            return Err(self.too_large(format!("up to {} rows", i32::MAX)));
        }
        Ok(dims)
    }

    pub(crate) fn expect_shape(&self, expected: &[i64], meaning: &str) -> Result<()> {
        if self.dims() == expected { Ok(()) } else { Err(self.wrong_shape(expected, meaning)) }
    }

    /// One of the matrices of a tensor of three dimensions, the first.
    pub(crate) fn within_first(&self) -> Operand {
        let ([_, rows, columns, _], [_, row, column, _]) = (self.dims, self.strides);
        Operand::matrix(self.name, self.dtype, [rows, columns], [row, column], self.address, self.device)
    }

    /// A vector as a matrix of one row.
    pub(crate) fn as_row(&self) -> Operand {
        let ([length, ..], [stride, ..]) = (self.dims, self.strides);
        Operand::matrix(self.name, self.dtype, [1, length], [length, stride], self.address, self.device)
    }

    /// Checks a tensor without gaps that threads read or write; gives its bytes.
    pub(crate) fn expect_contiguous(&self) -> Result<Footprint> {
        self.expect_dense()?;
        let length: i64 = self.dims().iter().product();
        let whole =
            Operand::matrix(self.name, self.dtype, [1, length], [length, 1], self.address, self.device);
        whole.plain_rows().map(|(_, memory)| memory)
    }

    /// Checks a tensor without gaps whose rows along the last dimension TMA reads; gives its bytes.
    pub(crate) fn expect_contiguous_rows(&self) -> Result<Footprint> {
        self.expect_dense()?;
        let last = self.dims[self.rank - 1];
        let rows = self.dims()[..self.rank - 1].iter().product();
        let matrix =
            Operand::matrix(self.name, self.dtype, [rows, last], [last, 1], self.address, self.device);
        matrix.tma_rows().map(|(_, memory)| memory)
    }

    fn expect_dense(&self) -> Result<()> {
        let mut dense = 1;
        for (&dim, &stride) in self.dims().iter().zip(&self.strides).rev() {
            if dim > 1 && stride != dense {
                return Err(self.wrong_strides("a contiguous tensor".to_owned()));
            }
            dense *= dim;
        }
        Ok(())
    }

    /// Checks the shape of a scale matrix that has every scale of its own.
    pub(crate) fn expect_every_scale(&self, expected: &[i64], meaning: &str) -> Result<()> {
        self.expect_rank(expected.len(), meaning)?;
        if self.dims() == expected {
            return Ok(());
        }
        Err(Error::ScaleShape {
            argument: self.name,
            expected: format!("{expected:?}, {meaning}"),
            found: format!("{:?}", self.dims()),
        })
    }

    /// The same with these dimensions: where it had 1 of another number, that one again and again.
    pub(crate) fn repeated_to(self, dims: &[i64]) -> Operand {
        let mut repeated = self;
        for (i, &dim) in dims.iter().enumerate() {
            if self.dims[i] != dim {
                (repeated.dims[i], repeated.strides[i]) = (dim, 0);
            }
        }
        repeated
    }

    /// Checks a matrix that TMA reads; gives its pitch in elements and its bytes.
    pub(crate) fn tma_rows(&self) -> Result<(u64, Footprint)> {
        let size = self.dtype.size() as u64;
        let unit = TMA_ALIGNMENT / size;
        let pitch = self.row_pitch()?;
        if !pitch.is_multiple_of(unit) {
            return Err(self.not_tma(format!(
                "the row pitch must be a multiple of {TMA_ALIGNMENT} bytes ({unit} {} elements), found {pitch} elements",
                self.dtype
            )));
        }
        if pitch >= TMA_PITCH_LIMIT / size {
            return Err(self.not_tma(format!(
                "the row pitch must be below {TMA_PITCH_LIMIT} bytes, found {pitch} {} elements",
                self.dtype
            )));
        }
        let footprint = self.rows_footprint(pitch)?;
        self.expect_aligned(TMA_ALIGNMENT)?;
        Ok((pitch, footprint))
    }

    /// The matrix with rows and columns exchanged.
    pub(crate) fn transposed(&self) -> Operand {
        let ([rows, columns, ..], [row_stride, column_stride, ..]) = (self.dims, self.strides);
        let (dims, strides) = ([columns, rows, 1, 1], [column_stride, row_stride, 1, 1]);
        Operand { dims, strides, exchanged: !self.exchanged, ..*self }
    }

    /// Checks a matrix `[rows, K]` that TMA reads in either major; gives the major, the pitch and its bytes.
    ///
    /// Where a dimension is 1 both may do: `preferred` comes first, unless only the other can be addressed.
    pub(crate) fn tma_either_major(&self, preferred: Major) -> Result<(Major, u64, Footprint)> {
        let unit = (TMA_ALIGNMENT / self.dtype.size() as u64) as i64;
        let contiguous = |operand: &Operand| operand.dims[1] <= 1 || operand.strides[1] == 1;
        let addressable = |operand: &Operand| operand.dims[0] <= 1 || operand.strides[0] % unit == 0;
        let (along_k, across) = ((Major::K, *self), (Major::MN, self.transposed()));
        let order = if preferred == Major::K { [along_k, across] } else { [across, along_k] };
        let mut candidates = order.iter().filter(|(_, view)| contiguous(view));
        let first = candidates.clone().next();
        let (major, view) = candidates
            .find(|(_, view)| addressable(view))
            .or(first)
            .ok_or_else(|| self.wrong_strides("a stride of 1 along one of the dimensions".to_owned()))?;
        let (pitch, memory) = view.tma_rows()?;
        Ok((*major, pitch, memory))
    }

    /// Checks a matrix that threads read and write; gives its pitch in elements and its bytes.
    pub(crate) fn plain_rows(&self) -> Result<(u64, Footprint)> {
        let pitch = self.row_pitch()?;
        if pitch > u64::from(u32::MAX) {
            return Err(self.too_large(format!("a row pitch of at most {} elements", u32::MAX)));
        }
        let footprint = self.rows_footprint(pitch)?;
        self.expect_aligned(self.dtype.size() as u64)?;
        Ok((pitch, footprint))
    }

    /// Whether this is a matrix whose rows are all the same elements, such as a bias that is added to each row.
    pub(crate) fn is_one_row(&self) -> bool {
        self.rank == 2 && self.dims[0] > 1 && self.strides[0] == 0
    }

    /// The first row of a matrix.
    pub(crate) fn first_row(&self) -> Operand {
        let [_, columns, ..] = self.dims;
        Operand { dims: [1, columns, 1, 1], ..*self }
    }

    /// The elements from row to row of a matrix whose rows have no gaps and do not overlap.
    fn row_pitch(&self) -> Result<u64> {
        let ([rows, columns, ..], [row_stride, column_stride, ..]) = (self.dims, self.strides);
        let [last, row] = if self.exchanged { ["first", "column"] } else { ["last", "row"] };
        if columns > 1 && column_stride != 1 {
            return Err(self.wrong_strides(format!("a stride of 1 along the {last} dimension")));
        }
        if rows > 1 && row_stride < columns {
            return Err(self.wrong_strides(format!("at least {columns} elements from {row} to {row}")));
        }
        let unit = TMA_ALIGNMENT / self.dtype.size() as u64;
        Ok(if rows > 1 { row_stride as u64 } else { (columns as u64).next_multiple_of(unit) })
    }

    fn rows_footprint(&self, pitch: u64) -> Result<Footprint> {
        let size = self.dtype.size() as u64;
        let [rows, columns, ..] = self.dims;
        let (pitch, width) = (pitch * size, columns as u64 * size);
        let end = self.end_of((rows as u128 - 1) * u128::from(pitch) + u128::from(width))?;
        Ok(Footprint { start: self.address, end, pitch, width })
    }

    /// Checks the layout of a scale matrix; gives its strides and its bytes.
    pub(crate) fn scale_strides(&self) -> Result<(ScaleStrides, Footprint)> {
        let size = self.dtype.size() as u64;
        let ([rows, columns, ..], [row_stride, column_stride, ..]) = (self.dims, self.strides);
        if (rows > 1 && row_stride < 0) || (columns > 1 && column_stride < 0) {
            return Err(Error::ScaleLayout {
                argument: self.name,
                expected: "strides of 0 or more".to_owned(),
                found: self.shown_strides(),
            });
        }
        let mn = if rows > 1 { row_stride as u64 } else { 1 };
        let k = if columns > 1 { column_stride as u64 } else { 1 };
        let last = (rows as u128 - 1) * u128::from(mn) + (columns as u128 - 1) * u128::from(k);
        if last > i32::MAX as u128 {
            return Err(
                self.too_large(format!("the last scale at most {} elements behind the first", i32::MAX))
            );
        }
        let end = self.end_of((last + 1) * u128::from(size))?;
        self.expect_aligned(size)?;
        let (pitch, width) = match (mn, k) {
            (_, 1) if rows > 1 && mn >= columns as u64 => (mn * size, columns as u64 * size),
            (1, _) if columns > 1 && k >= rows as u64 => (k * size, rows as u64 * size),
            _ => (0, 0),
        };
        let strides = ScaleStrides { mn: mn as u32, k: k as u32 };
        Ok((strides, Footprint { start: self.address, end, pitch, width }))
    }

    /// The address behind the last of `length` bytes.
    pub(crate) fn end_of(&self, length: u128) -> Result<u64> {
        if self.address == 0 {
            return Err(Error::NullPointer {
                argument: self.name,
                expected: format!("a {:?} matrix of {}", self.shown(self.dims()), self.dtype),
            });
        }
        u64::try_from(u128::from(self.address) + length).map_err(|_| {
            self.too_large(format!("an end within the address space, from {:#x} on", self.address))
        })
    }

    pub(crate) fn expect_aligned(&self, alignment: u64) -> Result<()> {
        if self.address.is_multiple_of(alignment) {
            return Ok(());
        }
        Err(Error::Alignment {
            argument: self.name,
            expected: format!("an address that is a multiple of {alignment} bytes"),
            found: format!("{:#x}", self.address),
        })
    }

    /// Refuses an input that shares bytes with this output.
    pub(crate) fn expect_apart(
        &self,
        memory: &Footprint,
        input: &Operand,
        input_memory: &Footprint,
    ) -> Result<()> {
        if !memory.overlaps(input_memory) {
            return Ok(());
        }
        let exception = if input.name == "c" { ", or exactly the same matrix" } else { "" };
        Err(Error::Overlap {
            argument: input.name,
            with: self.name,
            expected: format!("memory apart from that of `{}`{exception}", self.name),
            found: format!(
                "{:#x}..{:#x} beside {:#x}..{:#x}",
                input_memory.start, input_memory.end, memory.start, memory.end
            ),
        })
    }

    #[cold]
    pub(crate) fn wrong_shape(&self, expected: impl ExpectedShape, meaning: &str) -> Error {
        Error::Shape {
            argument: self.name,
            expected: format!("{}, {meaning}", expected.shown(self)),
            found: format!("{:?}", self.shown(self.dims())),
        }
    }

    #[cold]
    pub(crate) fn wrong_strides(&self, expected: String) -> Error {
        Error::Stride { argument: self.name, expected, found: self.shown_strides() }
    }

    #[cold]
    pub(crate) fn too_large(&self, expected: String) -> Error {
        let [dims, strides] = [self.dims(), &self.strides[..self.rank]].map(|list| self.shown(list));
        let found = format!("{dims:?} {} with strides {strides:?}", self.dtype);
        Error::Overflow { argument: self.name, expected, found }
    }

    #[cold]
    pub(crate) fn not_tma(&self, reason: String) -> Error {
        Error::Tma { argument: self.name, reason }
    }
}

/// What a shape should have been.
pub(crate) trait ExpectedShape {
    /// In words, with dimensions as the caller of an operand gives them.
    fn shown(&self, operand: &Operand) -> String;
}

impl ExpectedShape for &[i64] {
    fn shown(&self, operand: &Operand) -> String {
        format!("{:?}", operand.shown(self))
    }
}

impl<const N: usize> ExpectedShape for [i64; N] {
    fn shown(&self, operand: &Operand) -> String {
        format!("{:?}", operand.shown(self))
    }
}

impl ExpectedShape for &str {
    fn shown(&self, _: &Operand) -> String {
        (*self).to_owned()
    }
}

impl ExpectedShape for String {
    fn shown(&self, _: &Operand) -> String {
        self.clone()
    }
}

/// A size as those of operands are: what does not fit is refused as too large.
pub(crate) fn int(x: usize) -> i64 {
    i64::try_from(x).unwrap_or(i64::MAX)
}
