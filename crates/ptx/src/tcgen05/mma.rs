//! `tcgen05.mma`: kinds, instruction descriptors, and the instruction itself.

use super::{CtaGroup, TensorMemory};
use crate::descriptor::{Descriptor, Major};
use crate::kernel::Kernel;
use crate::target::{Needs, PtxVersion};
use crate::value::Pred;

/// An element type of at most 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// FP8 with 4 bits of exponent.
    E4m3,
    /// FP8 with 5 bits of exponent.
    E5m2,
    /// FP6 with 2 bits of exponent.
    E2m3,
    /// FP6 with 3 bits of exponent.
    E3m2,
    /// FP4.
    E2m1,
}

impl Element {
    /// Code in the instruction descriptor of the kinds that mix element types.
    fn code(self) -> u32 {
        match self {
            Element::E4m3 => 0,
            Element::E5m2 => 1,
            Element::E2m3 => 3,
            Element::E3m2 => 4,
            Element::E2m1 => 5,
        }
    }
}

/// Block scales: how many of K share one, and its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockScale {
    /// UE8M0 for 32 of K.
    Ue8m0Of32,
    /// UE4M3 for 16 of K.
    Ue4m3Of16,
}

/// The types of a product's operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// FP16; K is 16.
    F16,
    /// BF16; K is 16.
    Bf16,
    /// TF32; K is 8.
    Tf32,
    /// FP8, FP6 and FP4, one byte of shared memory each; K is 32.
    F8f6f4(Element, Element),
    /// The same with a UE8M0 scale for 32 of K.
    Mxf8f6f4(Element, Element),
    /// FP4, two to a byte, with block scales; K is 64.
    Mxf4(BlockScale),
}

impl Kind {
    /// Elements of K in one instruction.
    pub const fn k(self) -> u32 {
        match self {
            Kind::F16 | Kind::Bf16 => 16,
            Kind::Tf32 => 8,
            Kind::F8f6f4(..) | Kind::Mxf8f6f4(..) => 32,
            Kind::Mxf4(_) => 64,
        }
    }

    /// Whether operands have block scales.
    pub const fn has_scales(self) -> bool {
        matches!(self, Kind::Mxf8f6f4(..) | Kind::Mxf4(_))
    }

    /// Scales of one row in one instruction.
    pub const fn scales(self) -> u32 {
        match self {
            Kind::F16 | Kind::Bf16 | Kind::Tf32 | Kind::F8f6f4(..) => 0,
            Kind::Mxf8f6f4(..) => 1,
            Kind::Mxf4(BlockScale::Ue8m0Of32) => 2,
            Kind::Mxf4(BlockScale::Ue4m3Of16) => 4,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::F16 | Kind::Bf16 => "kind::f16",
            Kind::Tf32 => "kind::tf32",
            Kind::F8f6f4(..) => "kind::f8f6f4",
            Kind::Mxf8f6f4(..) => "kind::mxf8f6f4.block_scale.scale_vec::1X",
            Kind::Mxf4(BlockScale::Ue8m0Of32) => "kind::mxf4.block_scale.scale_vec::2X",
            Kind::Mxf4(BlockScale::Ue4m3Of16) => "kind::mxf4nvf4.block_scale.scale_vec::4X",
        }
    }

    /// Codes of A and B in the instruction descriptor.
    fn codes(self) -> (u32, u32) {
        match self {
            Kind::F16 => (0, 0),
            Kind::Bf16 | Kind::Mxf4(_) => (1, 1),
            Kind::Tf32 => (2, 2),
            Kind::F8f6f4(a, b) | Kind::Mxf8f6f4(a, b) => (a.code(), b.code()),
        }
    }
}

/// The type of an accumulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputType {
    /// FP32.
    F32,
    /// FP16, one to a column.
    F16,
}

/// First byte of a column that holds the scales of an instruction, for kinds with fewer than four of them a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ScaleBytes {
    /// For A.
    pub a: u32,
    /// For B.
    pub b: u32,
}

/// An instruction's shape and types: what its 32-bit descriptor says (PTX manual, "Instruction descriptor").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instruction {
    kind: Kind,
    output: OutputType,
    m: u32,
    n: u32,
    majors: (Major, Major),
    scale_bytes: ScaleBytes,
}

impl Instruction {
    /// An instruction of M rows (both CTAs of a pair together) by N columns, both operands K-major.
    pub const fn new(kind: Kind, output: OutputType, m: u32, n: u32) -> Self {
        let majors = (Major::K, Major::K);
        Instruction { kind, output, m, n, majors, scale_bytes: ScaleBytes { a: 0, b: 0 } }
    }

    /// The same with other majors.
    pub const fn majors(self, a: Major, b: Major) -> Self {
        Instruction { majors: (a, b), ..self }
    }

    /// The same with its scales in these bytes of their columns.
    pub const fn scale_bytes(self, a: u32, b: u32) -> Self {
        Instruction { scale_bytes: ScaleBytes { a, b }, ..self }
    }

    /// Operand types.
    pub const fn kind(self) -> Kind {
        self.kind
    }

    /// The 32-bit descriptor.
    pub fn encode(self) -> u32 {
        let (a, b) = self.kind.codes();
        let transposed = |major| u32::from(major == Major::MN);
        let common = a << 7
            | b << 10
            | transposed(self.majors.0) << 15
            | transposed(self.majors.1) << 16
            | (self.n >> 3) << 17;
        if self.kind.has_scales() {
            let ue8m0 = !matches!(self.kind, Kind::Mxf4(BlockScale::Ue4m3Of16));
            let ScaleBytes { a, b } = self.scale_bytes;
            return common | b << 4 | u32::from(ue8m0) << 23 | (self.m >> 7) << 27 | a << 29;
        }
        let output = match self.output {
            OutputType::F16 => 0,
            OutputType::F32 => 1,
        };
        common | output << 4 | (self.m >> 4) << 24
    }

    /// What is wrong with the shape, if anything.
    fn defect(self, group: CtaGroup) -> Option<String> {
        let Instruction { kind, m, n, .. } = self;
        let rows: &[u32] = match (group, kind.has_scales()) {
            (CtaGroup::One, false) => &[64, 128],
            (CtaGroup::One, true) => &[128],
            (CtaGroup::Two, false) => &[128, 256],
            (CtaGroup::Two, true) => &[128, 256],
        };
        if !rows.contains(&m) {
            return Some(format!("{} of {group} has one of {rows:?} rows, not {m}", kind.name()));
        }
        let step = match (group, m) {
            (CtaGroup::One, 64) => 8,
            (CtaGroup::One, _) => 16,
            (CtaGroup::Two, _) if kind.has_scales() => 16,
            (CtaGroup::Two, 256) => 16,
            (CtaGroup::Two, _) => 32,
        };
        if !n.is_multiple_of(step) || n == 0 || n > 256 {
            return Some(format!(
                "{m} rows of {group} have {step} to 256 columns in steps of {step}, not {n}"
            ));
        }
        let ScaleBytes { a, b } = self.scale_bytes;
        let places: &[u32] = match kind.scales() {
            1 => &[0, 1, 2, 3],
            2 => &[0, 2],
            _ => &[0],
        };
        if !places.contains(&a) || !places.contains(&b) {
            return Some(format!(
                "{} has its scales at one of the bytes {places:?}, not at {a} and {b}",
                kind.name()
            ));
        }
        let plain = matches!(self.majors, (Major::K, Major::K));
        if !plain && matches!(kind, Kind::Mxf4(_)) {
            return Some("packed FP4 operands are K-major".into());
        }
        (self.output == OutputType::F16 && !matches!(kind, Kind::F16 | Kind::F8f6f4(..)))
            .then(|| format!("{} has no FP16 accumulator", kind.name()))
    }
}

/// The A operand: in shared or in tensor memory.
#[derive(Clone, Copy)]
pub enum MatrixA<'k> {
    /// In shared memory.
    Shared(Descriptor<'k>),
    /// In tensor memory.
    Tensor(TensorMemory<'k>),
}

/// Where the block scales of A and B are in tensor memory.
#[derive(Clone, Copy)]
pub struct Scales<'k> {
    /// Scales of A.
    pub a: TensorMemory<'k>,
    /// Scales of B.
    pub b: TensorMemory<'k>,
}

impl Kernel {
    /// Issues `accumulator (+)= A · B`, asynchronously; one thread executes it, of the first CTA of a pair.
    ///
    /// `accumulate` says whether the old accumulator is added.
    #[track_caller]
    pub fn tcgen05_mma<'k>(
        &'k self,
        group: CtaGroup,
        instruction: &Instruction,
        accumulator: TensorMemory<'k>,
        a: MatrixA<'k>,
        b: Descriptor<'k>,
        accumulate: Pred<'k>,
    ) {
        let kind = instruction.kind;
        self.require(!kind.has_scales(), || format!("{} needs scales: tcgen05_mma_scaled", kind.name()));
        self.issue_mma(group, instruction, accumulator, a, b, None, accumulate);
    }

    /// The same for operands with block scales.
    #[track_caller]
    #[expect(clippy::too_many_arguments, reason = "the operands of the instruction")]
    pub fn tcgen05_mma_scaled<'k>(
        &'k self,
        group: CtaGroup,
        instruction: &Instruction,
        accumulator: TensorMemory<'k>,
        a: MatrixA<'k>,
        b: Descriptor<'k>,
        scales: Scales<'k>,
        accumulate: Pred<'k>,
    ) {
        let kind = instruction.kind;
        self.require(kind.has_scales(), || format!("{} has no scales: tcgen05_mma", kind.name()));
        self.issue_mma(group, instruction, accumulator, a, b, Some(scales), accumulate);
    }

    #[track_caller]
    #[expect(clippy::too_many_arguments, reason = "the operands of the instruction")]
    fn issue_mma<'k>(
        &'k self,
        group: CtaGroup,
        instruction: &Instruction,
        accumulator: TensorMemory<'k>,
        a: MatrixA<'k>,
        b: Descriptor<'k>,
        scales: Option<Scales<'k>>,
        accumulate: Pred<'k>,
    ) {
        let defect = instruction.defect(group);
        self.require(defect.is_none(), || defect.clone().unwrap_or_default());
        let tensor = |t: TensorMemory<'k>| format!("[{}]", t.address().in_register().operand());
        let a = match a {
            MatrixA::Shared(descriptor) => descriptor.pack().operand().to_string(),
            MatrixA::Tensor(place) => tensor(place),
        };
        let scales = scales.map(|s| format!("{}, {}, ", tensor(s.a), tensor(s.b))).unwrap_or_default();
        let code = self.constant(instruction.encode()).in_register().operand();
        let nvf4 = instruction.kind == Kind::Mxf4(BlockScale::Ue4m3Of16);
        let version = if nvf4 { PtxVersion(8, 7) } else { Needs::TCGEN05.version };
        self.emit(
            Needs { version, ..Needs::TCGEN05 },
            format_args!(
                "tcgen05.mma.{group}.{} {}, {a}, {}, {code}, {scales}{};",
                instruction.kind.name(),
                tensor(accumulator),
                b.pack().operand(),
                accumulate.operand()
            ),
        );
    }
}
