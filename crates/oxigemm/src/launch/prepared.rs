//! A plan that is ready to be launched on a GPU.

use std::sync::{Mutex, PoisonError};

use oxigemm_cuda::{Element, Function, L2Promotion, LaunchConfig, Stream, Swizzle, TensorMap, TiledTensor};
use oxigemm_kernels::gemm::launch::GemmKernel;

use super::args::{Addresses, Arguments, KernelArgs, PlanKey};
use super::tensor_maps::{Map, MapElement, Mapped, Maps};
use crate::device::Cuda;
use crate::error::Result;
use crate::plan::Plan;

/// Tensor maps are kept for this many addresses of each operand.
const REMEMBERED: usize = 4;

/// A plan with its kernel, its launch, and everything of the arguments that does not depend on addresses.
pub(crate) struct Prepared {
    function: Function,
    config: LaunchConfig,
    arguments: Arguments,
    maps: Mutex<RememberedMaps>,
    /// Bytes in which blocks leave sums, or count tiles.
    room_bytes: u64,
}

struct RememberedMaps {
    a: Remembered,
    b: Remembered,
    sfa: Option<Remembered>,
    d: Option<Remembered>,
}

impl RememberedMaps {
    fn new(maps: &Maps, kernel: GemmKernel) -> RememberedMaps {
        RememberedMaps {
            a: Remembered::new(tiled(&maps.a, promotion_of_a(kernel))),
            b: Remembered::new(tiled(&maps.b, promotion_of_b(&maps.b))),
            sfa: maps.sfa.map(|map| Remembered::new(tiled(&map, L2Promotion::B128))),
            d: maps.d.map(|map| Remembered::new(tiled(&map, L2Promotion::None))),
        }
    }

    /// The map of an operand, which must be one that the copy engine moves.
    fn at(&mut self, operand: Mapped, address: u64) -> Result<[u64; 16]> {
        let remembered = match operand {
            Mapped::A => Some(&mut self.a),
            Mapped::B => Some(&mut self.b),
            Mapped::ScalesOfA => self.sfa.as_mut(),
            Mapped::D => self.d.as_mut(),
        };
        Ok(remembered.expect("the arguments ask for maps that they announced").at(address)?.0)
    }
}

impl Prepared {
    pub fn new(plan: &Plan, function: Function, key: &PlanKey) -> Prepared {
        let (arguments, maps) = Arguments::new(plan, key);
        let maps = RememberedMaps::new(&maps, plan.choice.config());
        let launch = plan.launch;
        let config = LaunchConfig {
            grid: [launch.grid[0], launch.grid[1], 1],
            block: [launch.threads, 1, 1],
            cluster: [launch.cluster, 1, 1],
            shared_bytes: launch.shared_bytes,
            programmatic: false,
            cooperative: false,
        };
        Prepared { function, config, arguments, maps: Mutex::new(maps), room_bytes: launch.room_bytes }
    }

    /// The arguments of the kernel for operands at these addresses.
    pub fn arguments(&self, at: &Addresses) -> Result<KernelArgs> {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        self.arguments.at(at, |operand, address| maps.at(operand, address))
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
        cuda: &Cuda,
        args: &KernelArgs,
        stream: &Stream,
        programmatic: bool,
    ) -> Result<()> {
        if self.room_bytes == 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.launch_in_room(args, stream, programmatic) };
        }
        // A graph may run beside what its stream does later, and so must not use its room. Without memory for one, tiles are computed whole,
        // by clusters in turn.
        let room = match stream.is_capturing()? {
            true => None,
            false => cuda
                .gathering_room(stream, self.room_bytes)
                .inspect_err(
                    |error| tracing::warn!(%error, bytes = self.room_bytes, "tiles are not shared out"),
                )
                .ok(),
        };
        // SAFETY: the caller's promise; the room is this stream's, whose kernels follow each other.
        unsafe { self.launch_in_room(&args.in_room(room), stream, programmatic) }
    }

    /// # Safety
    /// As for [`launch`](Self::launch), and the room is as large as the plan says, and no other kernel's at that time.
    #[inline]
    unsafe fn launch_in_room(&self, args: &KernelArgs, stream: &Stream, programmatic: bool) -> Result<()> {
        let config = LaunchConfig { programmatic, ..self.config };
        let (pointers, count) = args.pointers();
        // SAFETY: `KernelArgs` are the parameters of every kernel of the set, in order, and live for the call; the
        // caller keeps the operands where they are.
        unsafe { self.function.launch(stream, &config, &pointers[..count])? };
        Ok(())
    }
}

/// How much the L2 cache fetches when a piece of A is missing there. (Groups of 192 rows of 16 bits were half a percent faster with less.)
fn promotion_of_a(kernel: GemmKernel) -> L2Promotion {
    match kernel {
        GemmKernel::HalfWide(config) if config.is_grouped() => L2Promotion::B128,
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
    };
    let matrix = map.matrix;
    let mut tensor = TiledTensor {
        element,
        rank: 2,
        address: 0,
        dims: [matrix.dims[0].into(), matrix.dims[1].into(), 1, 1, 1],
        strides: [matrix.pitch * element.bytes(), 0, 0, 0],
        tile: [matrix.tile[0], matrix.tile[1], 1, 1, 1],
        swizzle: if map.swizzled { Swizzle::B128 } else { Swizzle::None },
        promotion,
    };
    for outer in matrix.outer() {
        let nth = tensor.rank;
        tensor.dims[nth] = outer.count.into();
        tensor.strides[nth - 1] = outer.pitch * element.bytes();
        tensor.tile[nth] = outer.tile;
        tensor.rank += 1;
    }
    tensor
}

/// The tensor maps of one operand at the addresses where it was last.
struct Remembered {
    tensor: TiledTensor,
    maps: [(u64, TensorMap); REMEMBERED],
    oldest: usize,
}

impl Remembered {
    fn new(tensor: TiledTensor) -> Remembered {
        Remembered { tensor, maps: [(0, TensorMap([0; 16])); REMEMBERED], oldest: 0 }
    }

    fn at(&mut self, address: u64) -> Result<TensorMap> {
        if let Some((_, map)) = self.maps.iter().find(|(known, _)| *known == address) {
            return Ok(*map);
        }
        let map = TiledTensor { address, ..self.tensor }.encode()?;
        self.maps[self.oldest] = (address, map);
        self.oldest = (self.oldest + 1) % REMEMBERED;
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Limits, MGroupedShape};
    use oxigemm_kernels::gemm::launch::MatrixMap;
    use oxigemm_kernels::gemm::params::ScaleLayout;

    fn tensor(element: MapElement, swizzled: bool, matrix: MatrixMap) -> TiledTensor {
        tiled(&Map { matrix, element, swizzled }, L2Promotion::None)
    }

    #[test]
    fn maps_of_groups_are_ones_that_the_driver_takes() {
        for (slabs, rows) in [(32, 4096), (1, 34_304), (3, 1)] {
            let shape = MGroupedShape { groups: 32, slabs, rows, expected: 200, n: 6144, k: 7168 };
            let plan = Plan::best_grouped(&shape, &Limits::h200()).expect("there is one");
            let (launch, slab) = (plan.launch, shape.slab());
            let a = launch.map_a(slab, 7168).in_slabs(slabs, 7168 * u64::from(rows));
            let b = launch.map_b(slab, 7168).in_slabs(32, 7168 * 6144);
            let bytes = |matrix| tensor(MapElement::Byte, true, matrix);
            let result = |matrix| tensor(MapElement::Bf16, true, matrix);
            let scales = |matrix| tensor(MapElement::F32, false, matrix);
            let tensor = bytes(a);
            assert_eq!((tensor.rank, tensor.dims[..3].to_vec()), (3, vec![7168, rows.into(), slabs.into()]));
            assert_eq!(tensor.strides[..2], [7168, 7168 * u64::from(rows)]);
            assert_eq!(tensor.tile[2], 1);
            let pitch = rows.next_multiple_of(4);
            let sfa = [(ScaleLayout::RowMajor, [56, 1]), (ScaleLayout::MnMajor, [1, pitch])];
            let sfa = sfa.map(|(layout, strides)| {
                let map = launch.map_sfa(slab, layout, strides).expect("the copy engine reads it");
                scales(map.in_slabs(slabs, u64::from(pitch) * 56))
            });
            for tensor in [tensor, bytes(b), result(launch.map_d(slab, 6144, 2))].into_iter().chain(sfa) {
                let at = TiledTensor { address: 0x1000, ..tensor };
                assert!(at.check().is_ok(), "{:?}", at.check());
            }
        }
    }
}
