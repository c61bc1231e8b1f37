//! The memory of layers: one allocation for all that a layer keeps, and buffers of activations that grow.

use crate::device::Device;
use crate::error::Result;
use crate::tensor::{DType, Tensor};

/// Parts of an allocation begin at multiples of this, as tensors do.
const ALIGNMENT: usize = 256;

/// What goes into one allocation.
pub(crate) struct Part<'a> {
    pub dtype: DType,
    pub dims: &'a [usize],
    /// Little-endian, row-major.
    pub bytes: &'a [u8],
}

/// One allocation with these parts, and a tensor for each.
pub(crate) fn in_one_allocation<const N: usize>(
    parts: [Part<'_>; N],
    device: &Device,
) -> Result<(Tensor, [Tensor; N])> {
    let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.bytes.len() + ALIGNMENT).sum());
    let starts = parts.each_ref().map(|part| {
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        let start = bytes.len();
        bytes.extend_from_slice(part.bytes);
        start
    });
    // A layer without weights has an allocation too.
    bytes.resize(bytes.len().max(1), 0);
    let memory = Tensor::from_bytes(DType::U8, &bytes, &[bytes.len()], device)?;
    let mut tensors = Vec::with_capacity(N);
    for (part, start) in parts.iter().zip(starts) {
        tensors.push(memory.part(start, part.dtype, part.dims)?);
    }
    let tensors = tensors.try_into().expect("a tensor for each part");
    Ok((memory, tensors))
}

/// Buffers of a layer for up to so many rows. A graph may still use those that were outgrown, so they are kept; as
/// sizes double, they are less than the last ones.
#[derive(Debug)]
pub(crate) struct Buffers<T> {
    rows: usize,
    current: Option<T>,
    outgrown: Vec<T>,
}

impl<T> Default for Buffers<T> {
    fn default() -> Self {
        Buffers { rows: 0, current: None, outgrown: Vec::new() }
    }
}

impl<T> Buffers<T> {
    /// The buffers, made anew where they are for fewer rows.
    pub fn for_rows(&mut self, rows: usize, make: impl FnOnce(usize) -> Result<T>) -> Result<&mut T> {
        if self.current.is_none() || rows > self.rows {
            let enough = rows.max(2 * self.rows).max(1);
            let new = make(enough)?;
            self.outgrown.extend(self.current.replace(new));
            self.rows = enough;
        }
        Ok(self.current.as_mut().expect("made above"))
    }
}
