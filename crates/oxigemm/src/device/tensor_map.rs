//! Tensor maps in the simulator, from the description that the driver takes.

use oxigemm_cuda::{Element, Swizzle, TiledTensor};
use oxigemm_sim::TensorMapSpec;

/// The description of a tensor as the simulator takes it.
///
/// # Panics
/// If the elements are of a type that no kernel copies.
pub(super) fn simulated(tensor: &TiledTensor) -> TensorMapSpec {
    TensorMapSpec {
        address: tensor.address,
        element: match tensor.element {
            Element::U8 => oxigemm_sim::Element::U8,
            Element::Bf16 => oxigemm_sim::Element::Bf16,
            Element::F16 => oxigemm_sim::Element::F16,
            Element::F32 => oxigemm_sim::Element::F32,
            Element::U4Padded => oxigemm_sim::Element::U4Padded,
            other => unreachable!("no kernel has a tensor map of {other:?}"),
        },
        dims: tensor.dims[..tensor.rank].to_vec(),
        strides: tensor.strides[..tensor.rank - 1].to_vec(),
        box_dims: tensor.tile[..tensor.rank].to_vec(),
        swizzle: match tensor.swizzle {
            Swizzle::None => oxigemm_sim::Swizzle::None,
            Swizzle::B32 => oxigemm_sim::Swizzle::B32,
            Swizzle::B64 => oxigemm_sim::Swizzle::B64,
            Swizzle::B128 => oxigemm_sim::Swizzle::B128,
            Swizzle::B128Atom32 => oxigemm_sim::Swizzle::B128Atom32,
        },
    }
}
