//! Tensor maps: how the host describes a tensor, and the 128-byte block that a kernel passes around.
//!
//! The block's encoding ([`encoding`]) is this simulator's own, as NVIDIA's is not documented.

mod element;
mod encoding;
mod swizzle;
#[cfg(test)]
mod tests;

use crate::error::{Fault, FaultKind};
use crate::memory::Memory;
pub use element::{Element, Fill};
pub(crate) use encoding::{MapField, TensorMap, Window, replacement};
pub use swizzle::Swizzle;

/// Bytes of an encoded tensor map.
pub const TENSOR_MAP_BYTES: usize = 128;

/// A tensor as the host describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMapSpec {
    /// Address of the first element, a multiple of 16.
    pub address: u64,
    /// Element type.
    pub element: Element,
    /// Extent of each dimension, innermost first.
    pub dims: Vec<u64>,
    /// Distance in bytes between elements of dimensions 1 and up (one fewer than `dims`).
    pub strides: Vec<u64>,
    /// Extent of the box that one copy moves; not read where the map is one for `im2col`.
    pub box_dims: Vec<u32>,
    /// Permutation in shared memory.
    pub swizzle: Swizzle,
}

/// What few maps have beside a [`TensorMapSpec`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TensorMapDetails {
    /// What loads find outside of the tensor.
    pub fill: Fill,
    /// The step of a copy along each dimension, innermost first; one in all where the list is empty.
    pub element_strides: Vec<u32>,
    /// For copies in `im2col` mode.
    pub im2col: Option<Im2col>,
}

/// The pixels that a copy in `im2col` mode goes through (`cuTensorMapEncodeIm2col`). The tensor has channels as its
/// innermost dimension, then W (and H, and D), then N.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Im2col {
    /// The first pixel of the bounding box along W, H and D.
    pub lower: Vec<i32>,
    /// The last pixel of the bounding box, counted from the last of the tensor.
    pub upper: Vec<i32>,
    /// Channels of a pixel that one copy moves.
    pub channels: u32,
    /// Pixels that one copy moves.
    pub pixels: u32,
}

impl TensorMapSpec {
    /// Encodes the map, after the checks that `cuTensorMapEncodeTiled` does; zeros outside of the tensor.
    pub fn encode(&self) -> Result<[u8; TENSOR_MAP_BYTES], Fault> {
        self.encode_with(&TensorMapDetails::default())
    }

    /// Encodes the map with a choice of what loads find outside of the tensor.
    pub fn encode_with_fill(&self, fill: Fill) -> Result<[u8; TENSOR_MAP_BYTES], Fault> {
        self.encode_with(&TensorMapDetails { fill, ..TensorMapDetails::default() })
    }

    /// Encodes the map, after the checks that `cuTensorMapEncodeTiled` or `cuTensorMapEncodeIm2col` does.
    ///
    /// ```
    /// use oxigemm_sim::{Element, Im2col, Swizzle, TensorMapDetails, TensorMapSpec};
    ///
    /// // 2 images of 8x8 pixels with 16 channels, for a filter of 3x3 with a border of one pixel.
    /// let tensor = TensorMapSpec {
    ///     address: 0x1_0000_0000,
    ///     element: Element::Bf16,
    ///     dims: vec![16, 8, 8, 2],
    ///     strides: vec![32, 256, 2048],
    ///     box_dims: vec![],
    ///     swizzle: Swizzle::B32,
    /// };
    /// let im2col = Im2col { lower: vec![-1, -1], upper: vec![-1, -1], channels: 16, pixels: 64 };
    /// assert!(tensor.encode_with(&TensorMapDetails { im2col: Some(im2col), ..Default::default() }).is_ok());
    /// ```
    pub fn encode_with(&self, details: &TensorMapDetails) -> Result<[u8; TENSOR_MAP_BYTES], Fault> {
        let refuse = |m: String| Err(Fault::new(FaultKind::Launch, format!("tensor map: {m}")));
        let rank = self.dims.len();
        if !(1..=5).contains(&rank) {
            return refuse(format!("the rank is 1 to 5, not {rank}"));
        }
        let boxes = if details.im2col.is_some() { self.box_dims.len() } else { rank };
        if self.strides.len() != rank - 1 || self.box_dims.len() != boxes {
            return refuse(format!("rank {rank} takes {} strides and {rank} box extents", rank - 1));
        }
        let steps = &details.element_strides;
        if !steps.is_empty() && steps.len() != rank {
            return refuse(format!("rank {rank} takes {rank} element strides, not {}", steps.len()));
        }
        let mut map = TensorMap {
            address: self.address,
            element: self.element,
            fill: details.fill,
            rank,
            dims: [1; 5],
            strides: [0; 5],
            box_dims: [1; 5],
            steps: [1; 5],
            swizzle: self.swizzle,
            window: None,
        };
        map.dims[..rank].copy_from_slice(&self.dims);
        map.strides[1..rank].copy_from_slice(&self.strides);
        map.steps[..steps.len()].copy_from_slice(steps);
        match &details.im2col {
            None => map.box_dims[..rank].copy_from_slice(&self.box_dims),
            Some(im2col) => {
                let space = rank.saturating_sub(2);
                if im2col.lower.len() != space || im2col.upper.len() != space {
                    return refuse(format!("im2col of rank {rank} has corners of {space} coordinates"));
                }
                let mut window = Window { lower: [0; 3], upper: [0; 3] };
                window.lower[..space].copy_from_slice(&im2col.lower);
                window.upper[..space].copy_from_slice(&im2col.upper);
                map.window = Some(window);
                map.box_dims[..2].copy_from_slice(&[im2col.channels, im2col.pixels]);
            }
        }
        match map.problem() {
            Some(problem) => refuse(problem),
            None => Ok(map.encode()),
        }
    }

    /// The bytes from the first element to the end of the last one.
    pub fn extent(&self) -> u64 {
        let inner = self.element.global_bytes(self.dims.first().copied().unwrap_or(0));
        self.strides
            .iter()
            .zip(self.dims.iter().skip(1))
            .fold(inner, |e, (s, d)| e.saturating_add(s.saturating_mul(d.saturating_sub(1))))
    }
}

impl Memory {
    /// Encodes a tensor map, after the check that its tensor lies inside one allocation.
    pub fn tensor_map(&mut self, spec: &TensorMapSpec) -> Result<[u8; TENSOR_MAP_BYTES], Fault> {
        self.tensor_map_with(spec, &TensorMapDetails::default())
    }

    /// The same for a map with more than a [`TensorMapSpec`] says.
    pub fn tensor_map_with(
        &mut self,
        spec: &TensorMapSpec,
        details: &TensorMapDetails,
    ) -> Result<[u8; TENSOR_MAP_BYTES], Fault> {
        let encoded = spec.encode_with(details)?;
        let extent = spec.extent();
        if !self.contains(spec.address, usize::try_from(extent).unwrap_or(usize::MAX)) {
            return Err(Fault::new(
                FaultKind::Launch,
                format!(
                    "tensor map: the tensor takes {extent} bytes from {:#x}, more than its buffer has",
                    spec.address
                ),
            ));
        }
        Ok(encoded)
    }
}
