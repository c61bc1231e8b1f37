//! Kernel arguments of a GEMM: every decision that does not depend on the device.

use std::ffi::c_void;

use oxigemm_kernels::common::params::ArgRef;
use oxigemm_kernels::gemm::epilogue::fusion::{EpilogueArgs, EpilogueFlags, Fusion, GroupedEpilogueArgs};
use oxigemm_kernels::gemm::epilogue::{Gate, OutputFlags};
use oxigemm_kernels::gemm::params::{GemmArgs, SFB_BULK, ScaleLayout, SplitKTuning, sfb_bulk};
use oxigemm_kernels::gemm::scheduler::dynamic::DynamicSchedulerArgs;
use oxigemm_kernels::gemm::scheduler::k_grouped::KGroupedArgs;
use oxigemm_kernels::gemm::scheduler::m_grouped::{GroupLayout, MGroupedArgs};
use oxigemm_kernels::gemm::scheduler::stream_k::{StreamK, StreamKArgs};
use oxigemm_kernels::gemm::{KGroupedShape, MGroupedShape, OperandKind};

use crate::cast::ScaleFormat;
use crate::check::{Accumulate, Fused, Groups, KGroups, Problem};
use crate::device::limits::Limits;
use crate::error::Result;
use crate::plan::{self, GemmConfig, GemmShape, KOrder, Plan, PlanRequest, PlanShape};
use crate::tensor::dtype::DType;

use super::output::Output;
use super::tensor_maps::{Map, Mapped, Maps, sfa_strides, sfb_strides};

/// Key of a plan: the problem, and the options that change it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PlanKey {
    pub problem: Problem,
    /// Configuration that the caller asks for.
    pub config: Option<GemmConfig>,
    pub sms: u32,
    pub batch_invariant: bool,
    pub k_order: Option<KOrder>,
    pub raster_band: Option<u32>,
}

impl PlanKey {
    /// The plan, on a device with these limits.
    pub fn plan(&self, limits: &Limits) -> Result<Plan> {
        plan::plan(&self.request(), limits)
    }

    fn request(&self) -> PlanRequest {
        let Problem { family, m, n, k, fused, .. } = self.problem;
        let gemm = GemmShape { m, n, k };
        let is_batch = self.problem.groups.is_some_and(|groups| groups.layout == GroupLayout::All);
        let shape = match (&self.problem.k_groups, &self.problem.summed, self.grouped_shape()) {
            (Some(groups), ..) => PlanShape::KGrouped(KGroupedShape { groups: groups.count, m, n, k }),
            (None, Some(summed), _) => PlanShape::Summed { gemm, batch: summed.slabs },
            (None, None, Some(shape)) if is_batch => PlanShape::Batched(shape),
            (None, None, Some(shape)) => PlanShape::MGrouped(shape),
            (None, None, None) => PlanShape::Dense(gemm),
        };
        PlanRequest {
            fusion: fused.map_or(Fusion::None, |fused| fused.fusion),
            quantized_output: fused.is_some_and(|fused| fused.quantized.is_some()),
            block_scaled_output: fused
                .and_then(|fused| fused.quantized)
                .is_some_and(|quantized| quantized.blocks.is_some()),
            batch_invariant: self.batch_invariant,
            config: self.config,
            k_order: self.k_order,
            raster_band: self.raster_band,
            ..PlanRequest::new(family, shape)
        }
    }

    fn grouped_shape(&self) -> Option<MGroupedShape> {
        let Problem { m, n, k, .. } = self.problem;
        let groups = self.problem.groups?;
        let (slabs, expected) = (groups.slabs(), groups.expected);
        Some(MGroupedShape { groups: groups.count, slabs, rows: m, expected, n, k })
    }
}

/// Addresses of the operands of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub a: u64,
    pub sfa: u64,
    pub b: u64,
    pub sfb: u64,
    /// That of D where D is added to; only where there is an addend.
    pub c: u64,
    pub d: u64,
    /// Numbers that say where groups are; only where there are some.
    pub groups: u64,
    /// Workspace for tensor maps; only of k-grouped GEMMs.
    pub map_workspace: u64,
    /// Factors and addresses of a fused epilogue.
    pub epilogue: EpilogueAddresses,
}

/// Factors and addresses of the fused epilogue of one call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EpilogueAddresses {
    pub alpha: f32,
    /// That of C, or the scale of all of an NVFP4 D.
    pub beta: f32,
    pub bias: u64,
    pub scales: u64,
    pub gate: Gate,
}

/// The arguments of a planned problem as far as they do not depend on addresses, and how these complete them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments {
    family: OperandKind,
    args: GemmArgs,
    output: Output,
    groups: Option<MGroupedArgs>,
    k_groups: Option<KGroupedArgs>,
    fused: Option<EpilogueArgs>,
    fused_groups: Option<GroupedEpilogueArgs>,
    stream_k: Option<StreamKArgs>,
    dynamic: Option<DynamicSchedulerArgs>,
    /// Whether TMA can address every slab of A's scales as it does the first, and every group's of B's.
    scales_alike: [bool; 2],
    /// As [`Launch::scale_piece`](oxigemm_kernels::gemm::Launch::scale_piece).
    scale_piece: [u32; 2],
}

/// What a kernel is launched with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelArgs {
    pub product: GemmArgs,
    pub groups: Option<MGroupedArgs>,
    pub k_groups: Option<KGroupedArgs>,
    pub fused: Option<EpilogueArgs>,
    pub fused_groups: Option<GroupedEpilogueArgs>,
    pub stream_k: Option<StreamKArgs>,
    pub dynamic: Option<DynamicSchedulerArgs>,
}

impl KernelArgs {
    const MOST: usize = GemmArgs::COUNT
        + MGroupedArgs::COUNT
        + KGroupedArgs::COUNT
        + EpilogueArgs::COUNT
        + GroupedEpilogueArgs::COUNT
        + StreamKArgs::COUNT
        + DynamicSchedulerArgs::COUNT;

    /// The same with a workspace in which stream-K reduces and the dynamic tile scheduler counts. Without one, tiles
    /// are computed whole, in the static order.
    pub fn with_workspace(self, address: Option<u64>) -> KernelArgs {
        let stream_k = self.stream_k.map(|StreamKArgs { split, .. }| match address {
            Some(workspace) => StreamKArgs { workspace, split },
            None => StreamKArgs { workspace: 0, split: StreamK::default() },
        });
        let dynamic = self.dynamic.map(|_| DynamicSchedulerArgs::in_workspace(address));
        KernelArgs { stream_k, dynamic, ..self }
    }

    /// A pointer to each argument, and how many there are.
    pub fn pointers(&self) -> ([*mut c_void; Self::MOST], usize) {
        let mut all = [std::ptr::null_mut(); Self::MOST];
        let mut count = 0;
        self.for_each(|arg| {
            all[count] = arg.pointer();
            count += 1;
        });
        (all, count)
    }

    /// Every argument in the order of the kernel's parameters.
    #[inline]
    pub fn for_each(&self, mut visit: impl FnMut(ArgRef<'_>)) {
        self.product.args().into_iter().for_each(&mut visit);
        self.groups.iter().flat_map(MGroupedArgs::args).for_each(&mut visit);
        self.k_groups.iter().flat_map(KGroupedArgs::args).for_each(&mut visit);
        self.fused.iter().flat_map(EpilogueArgs::args).for_each(&mut visit);
        self.fused_groups.iter().flat_map(GroupedEpilogueArgs::args).for_each(&mut visit);
        self.stream_k.iter().flat_map(StreamKArgs::args).for_each(&mut visit);
        self.dynamic.iter().flat_map(DynamicSchedulerArgs::args).for_each(&mut visit);
    }
}

impl Arguments {
    /// The arguments of a plan, and the tensor maps that go with them.
    pub fn new(plan: &Plan, key: &PlanKey) -> (Arguments, Maps) {
        let problem = &key.problem;
        let (groups, k_groups) = (problem.groups.as_ref(), problem.k_groups.as_ref());
        let (summed, fused) = (problem.summed.as_ref(), problem.fused.as_ref());
        let (shape, launch) = (GemmShape { m: problem.m, n: problem.n, k: problem.k }, plan.launch);
        let blocks = match (k_groups, summed) {
            (Some(groups), _) => groups.blocks,
            (None, Some(summed)) => summed.slabs * problem.k_blocks(),
            (None, None) => problem.scale_blocks(),
        };
        let (sfa_strides, sfb_strides) = (sfa_strides(problem, blocks), sfb_strides(problem, blocks));
        let output = Output::new(problem, plan.config.tma_stores_f32());
        let maps_slabs_of_d = plan.config.kernel.spec().maps_slabs_of_d();
        let mut maps = Maps::new(&launch, problem, blocks, &output);
        let mut scales_alike = [true; 2];
        if let Some(groups) = groups {
            let slabs = groups.slabs();
            maps.a = maps.a.in_slabs(slabs, groups.a_slab);
            maps.b = maps.b.in_slabs(groups.count, groups.b_group);
            if let Some(sfa) = &mut maps.sfa {
                sfa.matrix = sfa.matrix.in_slabs(slabs, groups.sfa_slab.into());
            }
            let size = problem.d_type.size() as u32;
            maps.d = maps.d.map(|d| match maps_slabs_of_d {
                true => Map { matrix: d.matrix.in_slabs(slabs, groups.d_slab.into()), ..d },
                // The rows of D are those of all slabs.
                false => {
                    let rows = (slabs - 1) * groups.d_slab_rows(problem.d_pitch) + shape.m;
                    let all = GemmShape { m: rows, n: d.matrix.dims[0], ..shape };
                    Map { matrix: launch.map_d(all, problem.d_pitch, size), ..d }
                }
            });
            scales_alike = [groups.sfa_slab, groups.sfb_group].map(|stride| stride.is_multiple_of(4));
            // No tensor map has slabs that lie in the same place.
            scales_alike[0] &= groups.sfa_slab > 0;
            // TMA starts at multiples of 16 bytes: along M, at every fourth row.
            let any_row = !groups.layout.has_slabs() && !groups.alignment.is_multiple_of(4);
            scales_alike[0] &= !(any_row && ScaleLayout::of(0, sfa_strides) == ScaleLayout::MnMajor);
            if !scales_alike[0] {
                maps.sfa = None;
            }
        }
        if !problem.family.scales_by_tma() {
            // Warps load those.
            scales_alike[0] = false;
            maps.sfa = None;
        }
        if let (Some(groups), Some(d)) = (k_groups, &mut maps.d) {
            d.matrix = d.matrix.in_slabs(groups.count, u64::from(groups.d_slab) * problem.d_pitch);
        }
        let mut tuning = launch.tuning;
        if let Some(summed) = summed {
            maps.a.matrix = maps.a.matrix.in_slabs(summed.slabs, summed.a_slab);
            maps.b.matrix = maps.b.matrix.in_slabs(summed.slabs, summed.b_slab);
            let split_k =
                SplitKTuning { slab_k_blocks: problem.k_blocks(), ..SplitKTuning::from_words(tuning) };
            tuning = split_k.words();
        }
        let args = GemmArgs {
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
            c_pitch: output.pitches[1] as u32,
            m: problem.m,
            n: problem.n,
            output_flags: output.flags,
            k_blocks: blocks,
            sfa_strides,
            sfb_strides,
            scale_layouts: ScaleLayout::Copied as u32,
            tuning,
            b_rows: 0,
            b_pitch: maps.b.pitch_bytes(),
        };
        let k_groups = k_groups.map(|groups| k_group_args(groups, problem));
        let fused_groups = groups.and(fused).map(fused_group_args);
        let groups = groups.map(|groups| grouped_args(groups, problem, maps_slabs_of_d));
        let (family, fused) = (problem.family, fused.map(fused_args));
        let stream_k =
            plan.config.is_stream_k().then_some(StreamKArgs { workspace: 0, split: launch.stream_k });
        let dynamic = plan.config.has_dynamic_scheduler().then_some(DynamicSchedulerArgs::in_workspace(None));
        let arguments = Arguments {
            family,
            args,
            output,
            groups,
            k_groups,
            fused,
            fused_groups,
            stream_k,
            dynamic,
            scales_alike,
            scale_piece: launch.scale_piece,
        };
        (arguments, maps)
    }

    /// The arguments for operands at these addresses. `encode` gives the tensor map of an operand at its address.
    #[inline]
    pub fn at(
        &self,
        at: &Addresses,
        mut encode: impl FnMut(Mapped, u64) -> Result<[u64; 16]>,
    ) -> Result<KernelArgs> {
        let output_flags = self.output.flags(at);
        // Operands without scales have strides of 0, which no copy takes.
        let (strides, k_blocks) = (self.args.sfa_strides, self.args.k_blocks);
        let layout = match self.scales_alike[0] {
            true => {
                ScaleLayout::of(at.sfa, strides).in_tiles(strides, k_blocks, self.args.m, self.scale_piece)
            }
            false => ScaleLayout::Copied,
        };
        let strides = self.args.sfb_strides;
        let bulk = self.scales_alike[1] && sfb_in_bulk(self.family, at.sfb, strides, k_blocks);
        let (a, b) = (encode(Mapped::A, at.a)?, encode(Mapped::B, at.b)?);
        let product = GemmArgs {
            a,
            b,
            // A kernel may prefetch a map that it then does not use: each is a map of something.
            sfa_map: match layout {
                ScaleLayout::Copied | ScaleLayout::Packed => a,
                ScaleLayout::RowMajor | ScaleLayout::MnMajor => encode(Mapped::ScalesOfA, at.sfa)?,
            },
            d_map: match output_flags & OutputFlags::PLAIN {
                0 => a,
                _ => encode(Mapped::D, at.d)?,
            },
            sfa: at.sfa,
            sfb: at.sfb,
            d: at.d,
            c: at.c,
            output_flags,
            scale_layouts: layout as u32 | if bulk { SFB_BULK } else { 0 },
            b_rows: at.b,
            ..self.args
        };
        let groups = self.groups.map(|groups| MGroupedArgs { layout: at.groups, ..groups });
        let k_groups = self.k_groups.map(|groups| KGroupedArgs {
            ks: at.groups,
            map_workspace: at.map_workspace,
            a: at.a,
            b: at.b,
            ..groups
        });
        let EpilogueAddresses { alpha, beta, bias, scales, gate } = at.epilogue;
        let Gate { slope: gate_slope, limit: gate_limit, up_offset } = gate;
        let fused = self.fused.map(|fused| EpilogueArgs {
            alpha,
            beta,
            bias,
            scales,
            gate_slope,
            gate_limit,
            up_offset,
            ..fused
        });
        Ok(KernelArgs {
            product,
            groups,
            k_groups,
            fused,
            fused_groups: self.fused_groups,
            stream_k: self.stream_k,
            dynamic: self.dynamic,
        })
    }
}

/// Arguments of a grouped GEMM, but for the address of the numbers.
fn grouped_args(groups: &Groups, problem: &Problem, maps_slabs_of_d: bool) -> MGroupedArgs {
    MGroupedArgs {
        layout: 0,
        kind: groups.layout as u32,
        groups: groups.count,
        alignment: groups.alignment,
        d_slab: if maps_slabs_of_d { groups.d_slab } else { groups.d_slab_rows(problem.d_pitch) },
        sfa_slab: groups.sfa_slab,
        sfb_group: groups.sfb_group,
    }
}

/// Arguments of a k-grouped GEMM, but for addresses.
fn k_group_args(groups: &KGroups, problem: &Problem) -> KGroupedArgs {
    KGroupedArgs {
        ks: 0,
        map_workspace: 0,
        a: 0,
        b: 0,
        groups: groups.count,
        extent: problem.k,
        d_slab: groups.d_slab,
        keeps_empty: u32::from(problem.c == Accumulate::InPlace),
        alignment: groups.alignment,
    }
}

/// Arguments of a fused epilogue, but for addresses and factors.
fn fused_args(fused: &Fused) -> EpilogueArgs {
    let mut flags = match fused.bias {
        None => 0,
        Some(DType::F32) => EpilogueFlags::BIAS | EpilogueFlags::BIAS_F32,
        Some(_) => EpilogueFlags::BIAS,
    };
    if let Some(quantized) = fused.quantized {
        flags |= EpilogueFlags::QUANTIZED;
        if quantized.format == ScaleFormat::PowerOfTwo {
            flags |= EpilogueFlags::POWERS_OF_TWO;
        }
        flags |= quantized.blocks.map_or(0, EpilogueFlags::block_output);
    }
    EpilogueArgs {
        alpha: 1.0,
        beta: 1.0,
        bias: 0,
        flags,
        activation: fused.activation as u32,
        heads: fused.heads.map_or([0, 0, 1], |heads| [heads.left, heads.mid, heads.left + heads.right]),
        scales: 0,
        scale_strides: fused.quantized.map_or([0; 2], |quantized| quantized.strides),
        gate_limit: f32::INFINITY,
        gate_slope: 1.0,
        up_offset: 0.0,
    }
}

/// Arguments of a fused epilogue of a grouped GEMM.
fn fused_group_args(fused: &Fused) -> GroupedEpilogueArgs {
    GroupedEpilogueArgs {
        bias_group: fused.bias_group,
        scales_slab: fused.quantized.map_or(0, |quantized| quantized.slab),
    }
}

/// Whether scales of B are copied in bulk, a row of scales at a time: not where warps load them.
fn sfb_in_bulk(family: OperandKind, address: u64, strides: [u32; 2], k_blocks: u32) -> bool {
    family.scales_by_tma() && sfb_bulk(address, strides, k_blocks)
}
