//! Tensors inside poisoned memory.

use oxigemm::{DType, Device, Tensor};

use crate::Failure;
use crate::op::named;

/// The byte of poison: NaN in every floating-point type.
pub const POISON: u8 = 0xff;
/// Memory is mapped in pages of this size.
pub const PAGE: usize = 2 << 20;

named! {
    /// How a matrix of scales lies in memory.
    pub enum ScaleOrder {
        /// K-major, without gaps
        Row = "row",
        /// K-major, rows padded to 16 bytes
        RowPadded = "row-padded",
        /// MN-major, columns padded to 16 bytes
        Mn = "mn",
        /// MN-major, with an odd pitch and an odd address
        Odd = "odd",
        /// K-major, with an odd pitch and an odd address
        RowOdd = "row-odd",
    }
}

impl ScaleOrder {
    /// Whether M (or N) is contiguous.
    pub fn is_mn_major(self) -> bool {
        matches!(self, ScaleOrder::Mn | ScaleOrder::Odd)
    }

    /// The pitch of lines of so many scales, and scales before the first.
    fn pitch(self, line: usize) -> [usize; 2] {
        match self {
            ScaleOrder::Row => [line, 0],
            ScaleOrder::RowPadded | ScaleOrder::Mn => [line.next_multiple_of(4), 0],
            ScaleOrder::Odd | ScaleOrder::RowOdd => [line | 1, 1],
        }
    }
}

/// What memory holds that is no part of an operand or of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fill {
    /// Poison: NaN for whoever reads it, and a byte that whoever writes changes.
    #[default]
    Poison,
    /// Zeros, which a GPU makes fast.
    Zeros,
    /// Zeros, but for slabs: behind the last row of their group, they hold its rows again as far as a tile may reach.
    /// Zeros take the tensor cores less power, and a power-limited benchmark less time.
    Rows,
    /// Poison, and D nothing at all: the simulator faults whoever reads it.
    Uninitialized,
}

impl Fill {
    /// Memory for operands.
    pub fn memory(self, dtype: DType, dims: &[usize], device: &Device) -> oxigemm::Result<Tensor> {
        match self {
            Fill::Zeros | Fill::Rows => Tensor::zeros(dtype, dims, device),
            Fill::Poison | Fill::Uninitialized => poisoned(dtype, dims, device),
        }
    }

    /// Memory for a result.
    pub fn output(self, dtype: DType, dims: &[usize], device: &Device) -> oxigemm::Result<Tensor> {
        match self {
            Fill::Uninitialized => Tensor::empty(dtype, dims, device),
            Fill::Poison | Fill::Zeros | Fill::Rows => self.memory(dtype, dims, device),
        }
    }
}

/// A tensor of poison.
pub fn poisoned(dtype: DType, dims: &[usize], device: &Device) -> oxigemm::Result<Tensor> {
    let bytes = dims.iter().product::<usize>() * dtype.size();
    Tensor::from_bytes(dtype, &vec![POISON; bytes], dims, device)
}

/// Overwrites a tensor with poison.
pub fn poison(tensor: &mut Tensor) -> oxigemm::Result<()> {
    let bytes = vec![POISON; tensor.len() * tensor.dtype().size()];
    if bytes.is_empty() { Ok(()) } else { tensor.write_bytes(&bytes) }
}

/// Elements row by row, in rows that begin at multiples of 16 bytes with so many more 16-byte units behind each; what
/// lies between is poison. At the end, there is no memory behind it.
pub fn matrix(
    dtype: DType,
    elements: &[u8],
    [rows, columns]: [usize; 2],
    (padding, at_end): (usize, bool),
    device: &Device,
) -> Result<Tensor, Failure> {
    let size = dtype.size();
    let pitch = ((columns * size).div_ceil(16) + padding) * 16;
    let mut bytes = vec![POISON; rows * pitch];
    for (row, elements) in elements.chunks((columns * size).max(1)).enumerate() {
        bytes[row * pitch..][..elements.len()].copy_from_slice(elements);
    }
    Ok(dense(dtype, &bytes, &[rows, pitch / size], at_end, device)?.narrow(1, 0, columns)?)
}

/// A tensor without gaps. At the end, there is poison before it, and behind it no memory at all.
pub fn dense(
    dtype: DType,
    bytes: &[u8],
    dims: &[usize],
    at_end: bool,
    device: &Device,
) -> Result<Tensor, Failure> {
    if !at_end {
        return Ok(Tensor::from_bytes(dtype, bytes, dims, device)?);
    }
    let (len, size) = (bytes.len().next_multiple_of(PAGE), dtype.size());
    let first = len - bytes.len();
    let mut all = vec![POISON; len];
    all[first..].copy_from_slice(bytes);
    let memory = Tensor::from_bytes(dtype, &all, &[len / size], device)?;
    Ok(memory.narrow(0, first / size, bytes.len() / size)?.view(dims)?)
}

/// Matrices of scales `[slabs, rows, blocks]` in memory of so many elements.
pub fn scale_matrices(
    [slabs, rows, blocks]: [usize; 3],
    order: ScaleOrder,
    memory: impl FnOnce(usize) -> oxigemm::Result<Tensor>,
) -> oxigemm::Result<Tensor> {
    let transposed = order.is_mn_major();
    let (lines, line) = if transposed { (blocks, rows) } else { (rows, blocks) };
    let [pitch, first] = order.pitch(line);
    let len = slabs * lines * pitch;
    let memory = memory(first + len)?.narrow(0, first, len)?;
    let matrices = memory.view(&[slabs, lines, pitch])?.narrow(2, 0, line)?;
    if transposed { matrices.transpose(1, 2) } else { Ok(matrices) }
}

/// A matrix of scales, given row by row, in elements of a type; what lies between is poison, or uninitialized.
pub fn scale_matrix(
    scales: &[f32],
    [rows, blocks]: [usize; 2],
    dtype: DType,
    order: ScaleOrder,
    fill: Fill,
    device: &Device,
) -> Result<Tensor, Failure> {
    let memory = |len| fill.output(dtype, &[len], device);
    let mut matrix = scale_matrices([1, rows, scale_columns(blocks, dtype)], order, memory)?.select(0)?;
    if !scales.is_empty() {
        matrix.write_bytes(&scale_bytes(scales, blocks, dtype))?;
    }
    Ok(matrix)
}

/// Elements of a row of so many scales: words of four, or one each.
pub fn scale_columns(blocks: usize, dtype: DType) -> usize {
    if dtype == DType::I32 { blocks.div_ceil(4) } else { blocks }
}

/// Scales, row by row, as the bytes of elements of a type: u8 and i32 are UE8M0, of scales that are powers of two. What is
/// left of the last word of a row is 0.
pub fn scale_bytes(scales: &[f32], blocks: usize, dtype: DType) -> Vec<u8> {
    let exponent = |scale: &f32| (scale.to_bits() >> 23) as u8;
    match dtype {
        DType::U8 => scales.iter().map(exponent).collect(),
        DType::I32 => {
            let fill = blocks.next_multiple_of(4) - blocks;
            let row = |row: &[f32]| row.iter().map(exponent).chain(vec![0; fill]).collect::<Vec<u8>>();
            scales.chunks(blocks.max(1)).flat_map(row).collect()
        }
        dtype => dtype.encode(scales),
    }
}

/// A matrix with rows and columns exchanged.
pub fn transposed<T: Copy>(values: &[T], [rows, columns]: [usize; 2]) -> Vec<T> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| values[row * columns + column])).collect()
}
