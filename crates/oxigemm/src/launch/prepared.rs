//! A plan that is ready to be launched.

use std::sync::{Mutex, PoisonError};

use oxigemm_cuda::{Element, L2Promotion, TiledTensor};
use oxigemm_kernels::gemm::GemmKernel;

use super::args::{Addresses, Arguments, KernelArgs, PlanKey};
use super::tensor_maps::{Map, MapElement, Mapped, Maps};
use crate::device::backend::Backend;
use crate::device::launch::Geometry;
use crate::error::Result;
use crate::plan::{Launch, Plan};

/// Tensor maps are kept for this many addresses of each operand.
const CACHED_MAPS: usize = 4;

/// A plan with its kernel, its geometry, and everything of the arguments that does not depend on addresses.
pub(crate) struct Prepared<B: Backend> {
    kernel: B::Kernel,
    geometry: Geometry,
    arguments: Arguments,
    maps: Mutex<TensorMaps>,
    /// Bytes of the workspace in which blocks reduce partial tiles or count tiles.
    workspace_bytes: u64,
}

/// The geometry of a planned launch.
pub(crate) fn geometry(launch: &Launch) -> Geometry {
    Geometry {
        grid: launch.grid,
        cluster: launch.cluster,
        threads: launch.threads,
        shared_bytes: launch.shared_bytes,
        cooperative: false,
    }
}

impl<B: Backend> Prepared<B> {
    pub fn new(plan: &Plan, kernel: B::Kernel, key: &PlanKey) -> Prepared<B> {
        let (arguments, maps) = Arguments::new(plan, key);
        Prepared {
            kernel,
            geometry: geometry(&plan.launch),
            arguments,
            maps: Mutex::new(TensorMaps::new(&maps, plan.config.kernel)),
            workspace_bytes: plan.launch.workspace_bytes,
        }
    }

    /// The arguments of the kernel for operands at these addresses.
    pub fn arguments(&self, backend: &B, at: &Addresses) -> Result<KernelArgs> {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        self.arguments.at(at, |operand, address| maps.at(backend, operand, address))
    }

    /// Puts the kernel into a stream.
    ///
    /// # Safety
    /// The arguments must be of this plan, and the operands at the addresses they were made for as the problem
    /// describes them; they must stay there until the kernel is done or, where the stream is being captured, whenever
    /// the graph is launched.
    #[inline]
    pub unsafe fn launch(
        &self,
        backend: &B,
        args: &KernelArgs,
        stream: B::Stream<'_>,
        programmatic: bool,
    ) -> Result<()> {
        if self.workspace_bytes == 0 {
            // SAFETY: the caller's promise.
            return unsafe {
                backend.launch_loaded(&self.kernel, &self.geometry, args, stream, programmatic)
            };
        }
        // A graph may run beside what its stream does later, and so must not use the workspace of the stream. Without
        // one, tiles are neither split along K nor scheduled dynamically.
        let workspace = match backend.is_capturing(stream)? {
            true => None,
            false => backend
                .zeroed_workspace(stream, self.workspace_bytes)
                .inspect_err(
                    |error| tracing::warn!(%error, bytes = self.workspace_bytes, "a GEMM runs without workspace"),
                )
                .ok(),
        };
        let args = args.with_workspace(workspace);
        // SAFETY: the caller's promise; the workspace is this stream's, whose kernels are ordered.
        unsafe { backend.launch_loaded(&self.kernel, &self.geometry, &args, stream, programmatic) }
    }
}

/// The tensor maps of the operands at the addresses where they were last.
struct TensorMaps {
    a: CachedMaps,
    b: CachedMaps,
    sfa: Option<CachedMaps>,
    d: Option<CachedMaps>,
}

impl TensorMaps {
    fn new(maps: &Maps, kernel: GemmKernel) -> TensorMaps {
        TensorMaps {
            a: CachedMaps::new(tiled(&maps.a, promotion_of_a(kernel))),
            b: CachedMaps::new(tiled(&maps.b, promotion_of_b(&maps.b))),
            sfa: maps.sfa.map(|map| CachedMaps::new(tiled(&map, L2Promotion::B128))),
            d: maps.d.map(|map| CachedMaps::new(tiled(&map, L2Promotion::None))),
        }
    }

    /// The map of an operand, which must be one that TMA copies.
    fn at(&mut self, backend: &impl Backend, operand: Mapped, address: u64) -> Result<[u64; 16]> {
        let maps = match operand {
            Mapped::A => Some(&mut self.a),
            Mapped::B => Some(&mut self.b),
            Mapped::ScalesOfA => self.sfa.as_mut(),
            Mapped::D => self.d.as_mut(),
        };
        maps.expect("the arguments need maps that they announced").at(backend, address)
    }
}

/// The tensor maps of one operand at the addresses where it was last.
struct CachedMaps {
    tensor: TiledTensor,
    maps: [(u64, [u64; 16]); CACHED_MAPS],
    oldest: usize,
}

impl CachedMaps {
    fn new(tensor: TiledTensor) -> CachedMaps {
        CachedMaps { tensor, maps: [(0, [0; 16]); CACHED_MAPS], oldest: 0 }
    }

    fn at(&mut self, backend: &impl Backend, address: u64) -> Result<[u64; 16]> {
        if let Some((_, map)) = self.maps.iter().find(|(known, _)| *known == address) {
            return Ok(*map);
        }
        let map = backend.tensor_map(&TiledTensor { address, ..self.tensor })?;
        self.maps[self.oldest] = (address, map);
        self.oldest = (self.oldest + 1) % CACHED_MAPS;
        Ok(map)
    }
}

/// How much the L2 cache fetches when a piece of A is missing there. (Groups of 192 rows of 16 bits were half a percent
/// faster with less.)
fn promotion_of_a(kernel: GemmKernel) -> L2Promotion {
    match kernel.operands().is_fp8() {
        false if kernel.is_m_grouped() => L2Promotion::B128,
        _ => L2Promotion::B256,
    }
}

/// How much the L2 cache fetches when a piece of B is missing there. Where rows are short their other pieces come soon
/// enough by themselves.
fn promotion_of_b(map: &Map) -> L2Promotion {
    const SHORT_ROW: u32 = 2048;
    match map.element {
        MapElement::Byte if map.matrix.dims[0] <= SHORT_ROW => L2Promotion::B128,
        _ => L2Promotion::B256,
    }
}

fn tiled(map: &Map, promotion: L2Promotion) -> TiledTensor {
    let element = match map.element {
        MapElement::Byte => Element::U8,
        MapElement::Bf16 => Element::Bf16,
        MapElement::F16 => Element::F16,
        MapElement::F32 => Element::F32,
        MapElement::PaddedFp4 => Element::U4Padded,
    };
    let matrix = map.matrix;
    let mut tensor = TiledTensor {
        element,
        rank: 2,
        address: 0,
        dims: [matrix.dims[0].into(), matrix.dims[1].into(), 1, 1, 1],
        strides: [matrix.pitch * element.bits() / 8, 0, 0, 0],
        tile: [matrix.tile[0], matrix.tile[1], 1, 1, 1],
        swizzle: map.swizzle,
        promotion,
    };
    for outer in matrix.outer() {
        let nth = tensor.rank;
        tensor.dims[nth] = outer.count.into();
        tensor.strides[nth - 1] = outer.pitch * element.bits() / 8;
        tensor.tile[nth] = outer.tile;
        tensor.rank += 1;
    }
    tensor
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{self, Limits, MGroupedShape, OperandKind, PlanRequest};
    use oxigemm_cuda::Swizzle;
    use oxigemm_kernels::gemm::MatrixMap;
    use oxigemm_kernels::gemm::params::ScaleLayout;

    fn tensor(element: MapElement, swizzle: Swizzle, matrix: MatrixMap) -> TiledTensor {
        tiled(&Map { matrix, element, swizzle }, L2Promotion::None)
    }

    #[test]
    fn maps_of_groups_are_ones_that_the_driver_takes() {
        for (slabs, rows) in [(32, 4096), (1, 34_304), (3, 1)] {
            let shape = MGroupedShape { groups: 32, slabs, rows, expected: 200, n: 6144, k: 7168 };
            let plan = plan::plan(&PlanRequest::m_grouped(OperandKind::FP8, shape), &Limits::h200())
                .expect("there is one");
            let (launch, slab) = (plan.launch, shape.slab());
            let a = launch.map_a(slab, 7168).in_slabs(slabs, 7168 * u64::from(rows));
            let b = launch.map_b(slab, 7168).in_slabs(32, 7168 * 6144);
            let bytes = |matrix| tensor(MapElement::Byte, Swizzle::B128, matrix);
            let result = |matrix| tensor(MapElement::Bf16, Swizzle::B128, matrix);
            let scales = |matrix| tensor(MapElement::F32, Swizzle::None, matrix);
            let tensor = bytes(a);
            assert_eq!((tensor.rank, tensor.dims[..3].to_vec()), (3, vec![7168, rows.into(), slabs.into()]));
            assert_eq!(tensor.strides[..2], [7168, 7168 * u64::from(rows)]);
            assert_eq!(tensor.tile[2], 1);
            let pitch = rows.next_multiple_of(4);
            let sfa = [(ScaleLayout::RowMajor, [56, 1]), (ScaleLayout::MnMajor, [1, pitch])];
            let sfa = sfa.map(|(layout, strides)| {
                let map = launch.map_sfa(slab, layout, strides).expect("TMA reads it");
                scales(map.in_slabs(slabs, u64::from(pitch) * 56))
            });
            for tensor in [tensor, bytes(b), result(launch.map_d(slab, 6144, 2))].into_iter().chain(sfa) {
                let at = TiledTensor { address: 0x1000, ..tensor };
                assert!(at.check().is_ok(), "{:?}", at.check());
            }
        }
    }
}
