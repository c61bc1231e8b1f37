//! Cases of `oxigemm-testkit` in the simulator, with short forms for what tests write often.

pub mod blackwell;

use std::ops::{Deref, DerefMut};

pub use oxigemm_testkit::{
    ACTIVATIONS, AddendKind, BF16, EpilogueSpec, FP8, FP16, GPT_OSS, Gemm, GroupLayout, ScaleOrder, ends,
    ids, in_turn, one_policy, policies, same_bits, schedules, some_schedules,
};

use oxigemm::cast::Quantized;
use oxigemm::plan::{self, GemmConfig, KOrder};
use oxigemm::sim::Options;
use oxigemm::{DType, Device, GemmLayout, GemmOptions, Sim, Stream, Tensor};
use oxigemm_testkit::{Fill, GemmCase, GemmData, MGroups, OperandTypes, memory};

/// A dense case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub types: OperandTypes,
    pub layout: GemmLayout,
    pub dims: [usize; 3],
    pub d_type: DType,
    pub c: AddendKind,
    /// How scales of A and B lie in memory.
    pub scales: ScaleOrder,
    /// Elements before D and behind each of its rows.
    pub gaps: [usize; 2],
    pub epilogue: Option<EpilogueSpec>,
    pub num_sms: Option<u32>,
}

/// FP8 operands and BF16 out, nothing added.
pub const PLAIN: Case = Case {
    types: FP8,
    layout: GemmLayout::Nt,
    dims: [1, 1, 1],
    d_type: DType::Bf16,
    c: AddendKind::None,
    scales: ScaleOrder::RowPadded,
    gaps: [0, 0],
    epilogue: None,
    num_sms: None,
};
/// BF16 operands and D.
pub const PLAIN_BF16: Case = Case { types: BF16, ..PLAIN };
/// FP16 operands and D.
pub const PLAIN_FP16: Case = Case { types: FP16, d_type: DType::F16, ..PLAIN };

impl Case {
    /// The same for the test kit. D is uninitialized, so that reading it is a fault, unless heads skip columns of it,
    /// which are poison then.
    pub fn gemm(&self) -> GemmCase {
        let [d_offset, d_padding] = self.gaps;
        let skips = self.epilogue.is_some_and(|epilogue| epilogue.quantized.is_none());
        GemmCase {
            d_type: self.d_type,
            addend: self.c,
            sfa: self.scales,
            sfb: self.scales,
            d_offset,
            d_padding,
            epilogue: self.epilogue,
            fill: if skips { Fill::Poison } else { Fill::Uninitialized },
            seed: 1,
            ..GemmCase::dense(self.types, self.layout, self.dims)
        }
    }

    pub fn on(&self, device: &Device) -> Problem {
        let gemm = self.gemm().on(device).unwrap();
        // The accumulators of a batch-invariant epilogue are those of a GEMM whose K is not split.
        let batch_invariant = self.epilogue.is_some();
        Problem { gemm, num_sms: self.num_sms, batch_invariant }
    }

    pub fn simulated(&self, sim: &Sim) -> Problem {
        self.on(&Device::Sim(sim.clone()))
    }
}

/// An m-grouped case.
#[derive(Clone, Debug)]
pub struct GroupedCase {
    pub types: OperandTypes,
    /// Layout of A and B.
    pub operands: GemmLayout,
    pub layout: GroupLayout,
    /// Counts, ends or ids.
    pub numbers: Vec<i32>,
    pub groups: usize,
    /// Rows of a slab.
    pub rows: usize,
    pub alignment: usize,
    pub n: usize,
    pub k: usize,
    pub d_type: DType,
    pub c: AddendKind,
    pub scales: ScaleOrder,
    /// Elements behind each row of D.
    pub gap: usize,
    /// Where groups are masked.
    pub expected_m: usize,
    pub epilogue: Option<EpilogueSpec>,
    /// Whether groups share a bias.
    pub shared_bias: bool,
    pub num_sms: Option<u32>,
}

impl GroupedCase {
    pub fn masked(counts: &[i32], [rows, n, k]: [usize; 3]) -> GroupedCase {
        GroupedCase {
            types: FP8,
            operands: GemmLayout::Nt,
            layout: GroupLayout::Counts,
            numbers: counts.to_vec(),
            groups: counts.len(),
            rows,
            alignment: 1,
            n,
            k,
            d_type: DType::Bf16,
            c: AddendKind::None,
            scales: ScaleOrder::RowPadded,
            gap: 0,
            expected_m: 20,
            epilogue: None,
            shared_bias: false,
            num_sms: Some(2),
        }
    }

    pub fn ends(ends: &[i32], alignment: usize, dims: [usize; 3]) -> GroupedCase {
        GroupedCase { layout: GroupLayout::Ends, alignment, ..GroupedCase::masked(ends, dims) }
    }

    pub fn ids(ids: &[i32], groups: usize, alignment: usize, [n, k]: [usize; 2]) -> GroupedCase {
        let layout = GroupLayout::Ids;
        GroupedCase { layout, groups, alignment, ..GroupedCase::masked(ids, [ids.len(), n, k]) }
    }

    /// Groups of some rows, of none, of one and of more than a tile has, in every layout. Alignments, types of D and orders
    /// of scales take turns.
    pub fn in_every_layout(
        types: OperandTypes,
        block_m: usize,
        [n, k]: [usize; 2],
        turn: usize,
    ) -> [GroupedCase; 3] {
        let sizes = [block_m / 2 + 5, 0, 1, block_m + 1];
        let alignment = [1, 16, 32, 64][turn % 4];
        let d_type = [DType::Bf16, DType::F32][turn % 2];
        let scales = [ScaleOrder::RowPadded, ScaleOrder::Mn, ScaleOrder::Row, ScaleOrder::Odd][turn % 4];
        let (counts, ids) = (sizes.map(|rows| rows as i32), ids(&sizes, alignment));
        let cases = [
            GroupedCase::masked(&counts, [block_m + 9, n, k]),
            GroupedCase::ids(&ids, sizes.len(), alignment, [n - 16, k]),
            GroupedCase::ends(&ends(&sizes, alignment), alignment, [ids.len(), n, k]),
        ];
        cases.map(|case| GroupedCase { types, d_type, scales, ..case })
    }

    /// The same for 16-bit operands, and a D of their type unless it is FP32.
    pub fn of(self, types: OperandTypes) -> GroupedCase {
        let d_type = if self.d_type == DType::F32 { DType::F32 } else { types.d_types[0] };
        GroupedCase { types, d_type, ..self }
    }

    /// The same with an epilogue, whose bias has the type of the operands unless it is FP32.
    pub fn with(self, epilogue: EpilogueSpec) -> GroupedCase {
        GroupedCase { epilogue: Some(epilogue.beside(&self.types)), ..self }
    }

    pub fn is_masked(&self) -> bool {
        self.layout == GroupLayout::Counts
    }

    pub fn slabs(&self) -> usize {
        if self.is_masked() { self.groups } else { 1 }
    }

    /// The same for the test kit.
    pub fn gemm(&self) -> GemmCase {
        let groups =
            MGroups::of_numbers(self.layout, &self.numbers, [self.groups, self.rows], self.alignment);
        GemmCase {
            layout: self.operands,
            m: self.expected_m,
            d_type: self.d_type,
            addend: self.c,
            sfa: self.scales,
            sfb: self.scales,
            d_padding: self.gap,
            epilogue: self.epilogue,
            seed: 1,
            ..GemmCase::m_grouped(self.types, groups, [self.n, self.k])
        }
    }

    pub fn on(&self, device: &Device) -> Problem {
        let mut gemm = self.gemm().on(device).unwrap();
        if self.shared_bias {
            gemm.bias = gemm.bias.map(|bias| bias.select(0).unwrap());
        }
        Problem { gemm, num_sms: self.num_sms, batch_invariant: false }
    }

    pub fn simulated(&self, sim: &Sim) -> Problem {
        self.on(&Device::Sim(sim.clone()))
    }
}

/// A case with its operands on a device.
#[derive(Clone)]
pub struct Problem {
    gemm: Gemm,
    num_sms: Option<u32>,
    batch_invariant: bool,
}

impl Deref for Problem {
    type Target = Gemm;

    fn deref(&self) -> &Gemm {
        &self.gemm
    }
}

impl DerefMut for Problem {
    fn deref_mut(&mut self) -> &mut Gemm {
        &mut self.gemm
    }
}

impl Problem {
    /// How it is run by a choice, or by the planned one: with serpentine K where the kernel has it.
    pub fn options(&self, choice: Option<GemmConfig>, stream: Option<Stream>) -> GemmOptions {
        let (config, num_sms) = (choice, self.num_sms);
        let batch_invariant = self.batch_invariant && choice.is_none();
        let k_order = (!batch_invariant).then_some(KOrder::Serpentine);
        GemmOptions { config, num_sms, batch_invariant, k_order, stream, ..Default::default() }
    }

    /// The scales of A and B.
    pub fn scales(&self) -> [&Tensor; 2] {
        let [sfa, sfb] = self.scales.as_ref().expect("FP8 has scales");
        [sfa, sfb]
    }

    /// Where groups are.
    pub fn numbers(&self) -> &Tensor {
        self.gemm.numbers.as_ref().expect("groups have numbers")
    }

    /// The same operands with a D that nothing was written to yet.
    pub fn fresh(&self) -> Problem {
        Problem { gemm: self.gemm.fresh().unwrap(), ..self.clone() }
    }

    /// D of a run of its own.
    pub fn computed(&self, choice: Option<GemmConfig>) -> oxigemm::Result<Tensor> {
        let mut fresh = self.fresh();
        let options = fresh.options(choice, None);
        fresh.run(&options)?;
        Ok(fresh.gemm.d)
    }

    /// The bits of D, once they were found right and nothing else was written to.
    pub fn checked(&self, choice: Option<GemmConfig>, about: &str) -> Vec<u8> {
        self.gemm.checked(&self.options(choice, None), about)
    }

    /// Gives the device other groups in the same memory.
    pub fn change_numbers(&mut self, case: &GroupedCase, numbers: &[i32]) {
        let case = GroupedCase { numbers: numbers.to_vec(), ..case.clone() };
        self.gemm.replace(&GemmData::draw(case.gemm()).unwrap()).unwrap();
    }

    /// Runs it under some schedules, which must all give the same, right bits.
    pub fn every_schedule_gives_the_same_bits(
        &self,
        choice: Option<GemmConfig>,
        schedules: impl Iterator<Item = Options>,
        sim: &Sim,
    ) {
        let mut problem = self.clone();
        sim.set_options(Options::default());
        problem.accumulate(&self.options(choice, None)).unwrap();
        let name = choice.map_or(String::new(), |choice| plan::name(&choice));
        let what = format!("{name} {} on {:?} SMs", self.case(), self.num_sms);
        same_bits(&what, schedules, sim, |about| problem.checked(choice, about));
    }
}

/// Rows of K codes, each padded to 16 bytes.
pub fn codes(x: &Quantized, device: &Device) -> Tensor {
    memory::matrix(x.dtype, &x.codes, [x.rows, x.k], (0, false), device).unwrap()
}
