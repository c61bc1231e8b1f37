//! Kernel arguments of a GEMM: every decision that does not depend on the device.

use std::ffi::c_void;

use oxigemm_kernels::gemm::epilogue::OutputFlags;
use oxigemm_kernels::gemm::epilogue::fusion::{FusedArgs, FusedFlags, FusedGroupArgs};
use oxigemm_kernels::gemm::launch::{KGroupedShape, MGroupedShape, OperandKind};
use oxigemm_kernels::gemm::params::{Args, GroupedArgs, SFB_BULK, ScaleLayout, sfb_bulk};
use oxigemm_kernels::gemm::scheduler::dynamic::DispatchArgs;
use oxigemm_kernels::gemm::scheduler::k_grouped::KGroupArgs;
use oxigemm_kernels::gemm::scheduler::m_grouped::{GroupArgs, GroupLayout};
use oxigemm_kernels::gemm::scheduler::stream_k::{Tail, TailArgs};

use crate::cast::ScaleFormat;
use crate::check::{Accumulate, Fused, Groups, KGroups, Problem};
use crate::device::limits::Limits;
use crate::error::{Error, Result};
use crate::plan::{self, GemmConfig, GemmShape, Plan};
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
}

impl PlanKey {
    /// The plan, on a device with these limits.
    pub fn plan(&self, limits: &Limits) -> Result<Plan> {
        let Problem { family, m, n, k, .. } = self.problem;
        let refuse = |choice: GemmConfig, groups: String| Error::Config {
            name: plan::name(&choice),
            shape: format!("{groups}m={m} n={n} k={k} on {} multiprocessors", limits.sms),
        };
        let wrong_family = |choice: GemmConfig| Error::ConfigOperands {
            name: plan::name(&choice),
            expected: plan::family_name(family),
        };
        if let Some(shape) = self.k_grouped_shape() {
            return match self.config {
                Some(choice) if choice.config().family() != family => Err(wrong_family(choice)),
                Some(choice) => Plan::of_k_grouped(choice, &shape, limits)
                    .ok_or_else(|| refuse(choice, format!("{} groups along K, ", shape.groups))),
                None => Plan::best_k_grouped_of(family, &shape, limits)
                    .ok_or_else(|| too_many_groups("d", shape.groups)),
            };
        }
        if let Some(summed) = &self.problem.summed {
            let shape = GemmShape { m, n, k: summed.depth(&self.problem) };
            return match self.config {
                Some(choice) if choice.config().family() != family => Err(wrong_family(choice)),
                Some(choice) => Plan::of_summed(choice, shape, limits)
                    .ok_or_else(|| refuse(choice, format!("the sum of {} products of ", summed.slabs))),
                None => Plan::best_summed(family, shape, limits).ok_or_else(|| Error::Overflow {
                    argument: "d",
                    expected: "rows that a grid covers".to_owned(),
                    found: format!("{m} rows"),
                }),
            };
        }
        if let (Some(fused), Some(shape)) = (&self.problem.fused, self.grouped_shape()) {
            return match self.config {
                None => Plan::best_fused_grouped(family, &shape, fused, limits)
                    .ok_or_else(|| too_many_groups("b", shape.groups)),
                Some(choice) if choice.config().family() != family => Err(wrong_family(choice)),
                Some(choice) => Plan::of_fused_grouped(choice, &shape, fused, limits)
                    .ok_or_else(|| refuse(choice, format!("finished sums of {} groups of ", shape.groups))),
            };
        }
        if let Some(fused) = &self.problem.fused {
            let shape = GemmShape { m, n, k };
            return match self.config {
                None if self.batch_invariant => {
                    Ok(Plan::best_batch_invariant_fused(family, shape, fused, limits))
                }
                None => Ok(Plan::best_fused(family, shape, fused, limits)),
                Some(choice) if choice.config().family() != family => Err(wrong_family(choice)),
                Some(choice) if self.batch_invariant && !plan::is_batch_invariant(&choice) => {
                    Err(Error::ConfigBatchInvariant { name: plan::name(&choice) })
                }
                Some(choice) => Plan::of_fused(choice, shape, fused, limits)
                    .ok_or_else(|| refuse(choice, "finished sums of ".to_owned())),
            };
        }
        match (self.config, self.grouped_shape()) {
            (Some(choice), _) if choice.config().family() != family => Err(wrong_family(choice)),
            (Some(choice), _) if self.batch_invariant && !plan::is_batch_invariant(&choice) => {
                Err(Error::ConfigBatchInvariant { name: plan::name(&choice) })
            }
            (Some(choice), None) => {
                Plan::of(choice, GemmShape { m, n, k }, limits).ok_or_else(|| refuse(choice, String::new()))
            }
            (None, None) if self.batch_invariant => {
                Ok(Plan::best_batch_invariant(family, GemmShape { m, n, k }, limits))
            }
            (None, None) => Ok(Plan::best_of(family, GemmShape { m, n, k }, limits)),
            (Some(choice), Some(shape)) if self.is_fp8_batch() => Plan::of_batched(choice, &shape, limits)
                .ok_or_else(|| refuse(choice, format!("a batch of {} products of ", shape.groups))),
            (None, Some(shape)) if self.is_fp8_batch() => {
                Plan::best_batched(&shape, limits).ok_or_else(|| too_many_groups("b", shape.groups))
            }
            (Some(choice), Some(shape)) => Plan::of_grouped(choice, &shape, limits)
                .ok_or_else(|| refuse(choice, format!("{} groups of ", shape.groups))),
            (None, Some(shape)) => Plan::best_grouped_of(family, &shape, limits)
                .ok_or_else(|| too_many_groups("b", shape.groups)),
        }
    }

    /// Whether it is a batch of products with FP8 operands, whose kernels are others than those of groups.
    fn is_fp8_batch(&self) -> bool {
        let batch = self.problem.groups.is_some_and(|groups| groups.layout == GroupLayout::All);
        batch && self.problem.family == OperandKind::Fp8
    }

    fn k_grouped_shape(&self) -> Option<KGroupedShape> {
        let Problem { m, n, k, .. } = self.problem;
        Some(KGroupedShape { groups: self.problem.k_groups?.count, m, n, k })
    }

    fn grouped_shape(&self) -> Option<MGroupedShape> {
        let Problem { m, n, k, .. } = self.problem;
        let groups = self.problem.groups?;
        let (slabs, expected) = (groups.slabs(), groups.expected);
        Some(MGroupedShape { groups: groups.count, slabs, rows: m, expected, n, k })
    }
}

fn too_many_groups(argument: &'static str, groups: u32) -> Error {
    Error::Overflow {
        argument,
        expected: "as many groups as the shared memory of a block has room for".to_owned(),
        found: format!("{groups} groups"),
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
    pub beta: f32,
    pub bias: u64,
    pub scales: u64,
}

/// The arguments of a planned problem as far as they do not depend on addresses, and how these complete them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments {
    family: OperandKind,
    args: Args,
    output: Output,
    groups: Option<GroupedArgs>,
    k_groups: Option<KGroupArgs>,
    fused: Option<FusedArgs>,
    fused_groups: Option<FusedGroupArgs>,
    tail: Option<TailArgs>,
    dispatch: Option<DispatchArgs>,
    /// Whether TMA can address every slab of A's scales as it does the first, and every group's of B's.
    scales_alike: [bool; 2],
    /// As [`Launch::scale_piece`](oxigemm_kernels::gemm::launch::Launch::scale_piece).
    scale_piece: [u32; 2],
}

/// What a kernel is launched with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelArgs {
    pub product: Args,
    pub groups: Option<GroupedArgs>,
    pub k_groups: Option<KGroupArgs>,
    pub fused: Option<FusedArgs>,
    pub fused_groups: Option<FusedGroupArgs>,
    pub tail: Option<TailArgs>,
    pub dispatch: Option<DispatchArgs>,
}

impl KernelArgs {
    const MOST: usize = Args::COUNT
        + GroupedArgs::COUNT
        + KGroupArgs::COUNT
        + FusedArgs::COUNT
        + FusedGroupArgs::COUNT
        + TailArgs::COUNT
        + DispatchArgs::COUNT;

    /// The same with a workspace in which stream-K reduces and the dynamic tile scheduler counts. Without one, tiles
    /// are computed whole, in the static order.
    pub fn in_room(self, room: Option<u64>) -> KernelArgs {
        let tail = self.tail.map(|TailArgs { tail, .. }| match room {
            Some(room) => TailArgs { room, tail },
            None => TailArgs { room: 0, tail: Tail::default() },
        });
        let dispatch = self.dispatch.map(|_| DispatchArgs::in_room(room));
        KernelArgs { tail, dispatch, ..self }
    }

    /// A pointer to each argument, and how many there are.
    pub fn pointers(&self) -> ([*mut c_void; Self::MOST], usize) {
        let mut all = [std::ptr::null_mut(); Self::MOST];
        let mut count = 0;
        let mut add = |pointers: &[*mut c_void]| {
            all[count..][..pointers.len()].copy_from_slice(pointers);
            count += pointers.len();
        };
        add(&self.product.pointers());
        if let Some(groups) = &self.groups {
            add(&groups.pointers());
        }
        if let Some(groups) = &self.k_groups {
            add(&groups.pointers());
        }
        if let Some(fused) = &self.fused {
            add(&fused.pointers());
        }
        if let Some(groups) = &self.fused_groups {
            add(&groups.pointers());
        }
        if let Some(tail) = &self.tail {
            add(&tail.pointers());
        }
        if let Some(dispatch) = &self.dispatch {
            add(&dispatch.pointers());
        }
        (all, count)
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
            (None, None) => problem.k_blocks(),
        };
        let (sfa_strides, sfb_strides) = (sfa_strides(problem, blocks), sfb_strides(problem, blocks));
        let output = Output::new(problem, plan.choice.stores_f32_panels());
        let mut maps = Maps::new(&launch, problem, blocks, &output);
        let mut scales_alike = [true; 2];
        if let Some(groups) = groups {
            let slabs = groups.slabs();
            maps.a.matrix = maps.a.matrix.in_slabs(slabs, groups.a_slab);
            maps.b.matrix = maps.b.matrix.in_slabs(groups.count, groups.b_group);
            if let Some(sfa) = &mut maps.sfa {
                sfa.matrix = sfa.matrix.in_slabs(slabs, groups.sfa_slab.into());
            }
            let size = problem.d_type.size() as u32;
            maps.d = maps.d.map(|d| match problem.family {
                // The rows of D are those of all slabs.
                OperandKind::Fp8 | OperandKind::Fp8Rows | OperandKind::Fp8E5m2(_) if !key.is_fp8_batch() => {
                    let rows = (slabs - 1) * groups.d_slab_rows(problem.d_pitch) + shape.m;
                    let all = GemmShape { m: rows, n: d.matrix.dims[0], ..shape };
                    Map { matrix: launch.map_d(all, problem.d_pitch, size), ..d }
                }
                _ => Map { matrix: d.matrix.in_slabs(slabs, groups.d_slab.into()), ..d },
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
        if problem.family == OperandKind::Fp8Rows {
            // A scale producer loads those.
            scales_alike[0] = false;
            maps.sfa = None;
        }
        if let (Some(groups), Some(d)) = (k_groups, &mut maps.d) {
            d.matrix = d.matrix.in_slabs(groups.count, u64::from(groups.d_slab) * problem.d_pitch);
        }
        let mut tuning = if key.batch_invariant { launch.straight_on().tuning } else { launch.tuning };
        if let Some(summed) = summed {
            maps.a.matrix = maps.a.matrix.in_slabs(summed.slabs, summed.a_slab);
            maps.b.matrix = maps.b.matrix.in_slabs(summed.slabs, summed.b_slab);
            tuning[2] = problem.k_blocks();
        }
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
        let groups = groups.map(|groups| grouped_args(groups, problem));
        let (family, fused) = (problem.family, fused.map(fused_args));
        let tail = plan.choice.shares_tail().then_some(TailArgs { room: 0, tail: launch.tail });
        let dispatch = plan.choice.hands_out_tiles().then_some(DispatchArgs::in_room(None));
        let arguments = Arguments {
            family,
            args,
            output,
            groups,
            k_groups,
            fused,
            fused_groups,
            tail,
            dispatch,
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
        let product = Args {
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
        let groups = self
            .groups
            .map(|groups| GroupedArgs { groups: GroupArgs { layout: at.groups, ..groups.groups }, ..groups });
        let k_groups = self.k_groups.map(|groups| KGroupArgs {
            ks: at.groups,
            map_room: at.map_workspace,
            a: at.a,
            b: at.b,
            ..groups
        });
        let EpilogueAddresses { alpha, beta, bias, scales } = at.epilogue;
        let fused = self.fused.map(|fused| FusedArgs { alpha, beta, bias, scales, ..fused });
        Ok(KernelArgs {
            product,
            groups,
            k_groups,
            fused,
            fused_groups: self.fused_groups,
            tail: self.tail,
            dispatch: self.dispatch,
        })
    }
}

/// Arguments of a grouped GEMM, but for the address of the numbers.
fn grouped_args(groups: &Groups, problem: &Problem) -> GroupedArgs {
    GroupedArgs {
        groups: GroupArgs {
            layout: 0,
            kind: groups.layout as u32,
            groups: groups.count,
            alignment: groups.alignment,
            d_slab: match problem.family {
                _ if groups.layout == GroupLayout::All => groups.d_slab,
                OperandKind::Fp8 | OperandKind::Fp8Rows | OperandKind::Fp8E5m2(_) => {
                    groups.d_slab_rows(problem.d_pitch)
                }
                OperandKind::Half(_) => groups.d_slab,
            },
        },
        sfa_slab: groups.sfa_slab,
        sfb_group: groups.sfb_group,
    }
}

/// Arguments of a k-grouped GEMM, but for addresses.
fn k_group_args(groups: &KGroups, problem: &Problem) -> KGroupArgs {
    KGroupArgs {
        ks: 0,
        map_room: 0,
        a: 0,
        b: 0,
        groups: groups.count,
        extent: problem.k,
        d_slab: groups.d_slab,
        keeps_empty: u32::from(problem.c == Accumulate::InPlace),
    }
}

/// Arguments of a fused epilogue, but for addresses and factors.
fn fused_args(fused: &Fused) -> FusedArgs {
    let mut flags = match fused.bias {
        None => 0,
        Some(DType::F32) => FusedFlags::BIAS | FusedFlags::BIAS_F32,
        Some(_) => FusedFlags::BIAS,
    };
    if let Some(quantized) = fused.quantized {
        flags |= FusedFlags::QUANTIZED;
        if quantized.format == ScaleFormat::PowerOfTwo {
            flags |= FusedFlags::POWERS_OF_TWO;
        }
    }
    FusedArgs {
        alpha: 1.0,
        beta: 1.0,
        bias: 0,
        flags,
        activation: fused.activation as u32,
        heads: fused.heads.map_or([0, 0, 1], |heads| [heads.left, heads.mid, heads.left + heads.right]),
        scales: 0,
        scale_strides: fused.quantized.map_or([0; 2], |quantized| quantized.strides),
    }
}

/// Arguments of a fused epilogue of a grouped GEMM.
fn fused_group_args(fused: &Fused) -> FusedGroupArgs {
    FusedGroupArgs {
        bias_group: fused.bias_group,
        scales_slab: fused.quantized.map_or(0, |quantized| quantized.slab),
    }
}

/// Whether scales of B are copied in bulk, a row of scales at a time: not where each row of B has its own.
fn sfb_in_bulk(family: OperandKind, address: u64, strides: [u32; 2], k_blocks: u32) -> bool {
    match family {
        OperandKind::Fp8Rows => false,
        _ => sfb_bulk(address, strides, k_blocks),
    }
}
