//! A plan that is ready to be launched.

use std::sync::{Mutex, PoisonError};

use oxigemm_cuda::{Element, Function, L2Promotion, LaunchConfig, Stream, Swizzle, TensorMap, TiledTensor};
use oxigemm_kernels::epilogue::OutputFlags;
use oxigemm_kernels::launch::MatrixMap;
use oxigemm_kernels::params::{Args, ScaleLayout};

use crate::check::{Accumulate, Problem};
use crate::dtype::DType;
use crate::error::Result;
use crate::plan::Plan;

/// Tensor maps are kept for this many addresses of each operand.
const REMEMBERED: usize = 4;

/// Where the operands of one call are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub a: u64,
    pub sfa: u64,
    pub b: u64,
    pub sfb: u64,
    /// That of D where D is added to; not looked at where nothing is added.
    pub c: u64,
    pub d: u64,
}

/// A plan with its kernel, its launch, and everything of the arguments that does not depend on addresses.
pub(crate) struct Prepared {
    pub plan: Plan,
    function: Function,
    config: LaunchConfig,
    args: Args,
    /// Elements by which the rows of D, and of C, are apart.
    pitches: [u64; 2],
    /// Whether D could be stored by the copy engine, were its address aligned.
    plain: bool,
    maps: Mutex<Maps>,
}

struct Maps {
    a: Remembered,
    b: Remembered,
    sfa: Option<Remembered>,
    d: Option<Remembered>,
}

impl Prepared {
    pub fn new(plan: Plan, function: Function, problem: &Problem) -> Prepared {
        let (shape, launch) = (plan.shape, plan.launch);
        // The stride of a single row has no meaning: take one that the copy engine takes.
        let sfa_mn = if problem.m == 1 { problem.k_blocks().next_multiple_of(4) } else { problem.sfa.mn };
        let sfa_strides = [sfa_mn, problem.sfa.k];
        let c_pitch = match problem.c {
            Accumulate::None | Accumulate::InPlace => problem.d_pitch,
            Accumulate::From { pitch } => pitch,
        };
        let mut flags = 0;
        if problem.d_type == DType::F32 {
            flags |= OutputFlags::F32;
        }
        if problem.c != Accumulate::None {
            flags |= OutputFlags::ADDEND;
        }
        let plain = flags == 0 && problem.n.is_multiple_of(8) && problem.d_pitch.is_multiple_of(8);
        // An aligned address stands for all aligned ones; the others are copied by threads.
        let layout = ScaleLayout::of(0, sfa_strides);
        let maps = Maps {
            a: Remembered::new(bytes(launch.map_a(shape, problem.a_pitch))),
            b: Remembered::new(bytes(launch.map_b(shape, problem.b_pitch))),
            sfa: launch.map_sfa(shape, layout, sfa_strides).map(|map| Remembered::new(scales(map))),
            d: plain.then(|| Remembered::new(output(launch.map_d(shape, problem.d_pitch)))),
        };
        let args = Args {
            a: [0; 16],
            b: [0; 16],
            sfa_map: [0; 16],
            d_map: [0; 16],
            sfa: 0,
            sfb: 0,
            d: 0,
            c: 0,
            // The check has bounded both by u32::MAX.
            d_pitch: problem.d_pitch as u32,
            c_pitch: c_pitch as u32,
            m: problem.m,
            n: problem.n,
            output_flags: flags,
            k_blocks: problem.k_blocks(),
            sfa_strides,
            sfb_strides: [problem.sfb.mn, problem.sfb.k],
            sfa_layout: ScaleLayout::Copied as u32,
            tuning: launch.tuning,
        };
        let config = LaunchConfig {
            grid: [launch.grid[0], launch.grid[1], 1],
            block: [launch.threads, 1, 1],
            cluster: [launch.cluster, 1, 1],
            shared_bytes: launch.shared_bytes,
            programmatic: false,
        };
        Prepared {
            plan,
            function,
            config,
            args,
            pitches: [problem.d_pitch, c_pitch],
            plain,
            maps: Mutex::new(maps),
        }
    }

    /// Puts the kernel into a stream.
    ///
    /// # Safety
    /// The operands must be at these addresses of this GPU as the problem describes them, and stay there until the
    /// kernel is done or, where the stream is being captured, whenever the graph is launched.
    pub unsafe fn launch(&self, at: &Addresses, stream: &Stream, programmatic: bool) -> Result<()> {
        let mut args = Args { sfa: at.sfa, sfb: at.sfb, d: at.d, ..self.args };
        let size = if args.output_flags & OutputFlags::F32 != 0 { 4 } else { 2 };
        let vector = |address: u64, pitch: u64| address.is_multiple_of(4 * size) && pitch.is_multiple_of(4);
        let mut vectors = vector(at.d, self.pitches[0]);
        if args.output_flags & OutputFlags::ADDEND != 0 {
            args.c = at.c;
            vectors &= vector(at.c, self.pitches[1]);
        }
        if vectors {
            args.output_flags |= OutputFlags::VECTORS;
        }
        let plain = self.plain && at.d.is_multiple_of(16);
        if plain {
            args.output_flags |= OutputFlags::PLAIN;
        }
        let layout = ScaleLayout::of(at.sfa, args.sfa_strides);
        args.sfa_layout = layout as u32;
        {
            let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
            args.a = maps.a.at(at.a)?.0;
            args.b = maps.b.at(at.b)?.0;
            if let Some(sfa) = maps.sfa.as_mut().filter(|_| layout != ScaleLayout::Copied) {
                args.sfa_map = sfa.at(at.sfa)?.0;
            }
            if let Some(d) = maps.d.as_mut().filter(|_| plain) {
                args.d_map = d.at(at.d)?.0;
            }
        }
        let config = LaunchConfig { programmatic, ..self.config };
        // SAFETY: `Args` are the parameters of every kernel of the set, in order, and live for the call; the caller
        // keeps the operands where they are.
        Ok(unsafe { self.function.launch(stream, &config, &args.pointers())? })
    }
}

/// A matrix of FP8.
fn bytes(map: MatrixMap) -> TiledTensor {
    tiled(map, Element::U8, Swizzle::B128, L2Promotion::B256)
}

/// A matrix of FP32 scales.
fn scales(map: MatrixMap) -> TiledTensor {
    tiled(map, Element::F32, Swizzle::None, L2Promotion::B128)
}

/// A matrix of BF16 results.
fn output(map: MatrixMap) -> TiledTensor {
    tiled(map, Element::Bf16, Swizzle::B128, L2Promotion::None)
}

fn tiled(map: MatrixMap, element: Element, swizzle: Swizzle, promotion: L2Promotion) -> TiledTensor {
    TiledTensor {
        element,
        rank: 2,
        address: 0,
        dims: [map.dims[0].into(), map.dims[1].into(), 1, 1, 1],
        strides: [map.pitch * element.bytes(), 0, 0, 0],
        tile: [map.tile[0], map.tile[1], 1, 1, 1],
        swizzle,
        promotion,
    }
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
