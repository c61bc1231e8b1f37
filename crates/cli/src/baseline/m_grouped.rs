//! The peer's figures for products whose rows are grouped.

use std::sync::LazyLock;

use oxigemm::GemmLayout;
use oxigemm_kernels::grouping::GroupLayout;
use serde::{Deserialize, Serialize};

use crate::Op;
use crate::grouped::GroupedSpec;

/// The peer's figures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupedAnchor {
    /// How the figures were taken.
    pub note: String,
    /// The benchmark cases.
    pub cases: Vec<GroupedCase>,
}

/// How the groups of a case lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Family {
    /// FP8, one behind another.
    #[serde(rename = "fp8_contig")]
    Contiguous,
    /// FP8, each with room for the same number of rows.
    #[serde(rename = "fp8_masked")]
    Masked,
    /// BF16, one behind another.
    #[serde(rename = "bf16_contig")]
    Bf16Contiguous,
    /// BF16, each with room for the same number of rows.
    #[serde(rename = "bf16_masked")]
    Bf16Masked,
}

impl Family {
    /// The name that the anchor has for it.
    pub fn name(self) -> &'static str {
        match self {
            Family::Contiguous => "fp8_contig",
            Family::Masked => "fp8_masked",
            Family::Bf16Contiguous => "bf16_contig",
            Family::Bf16Masked => "bf16_masked",
        }
    }

    /// The function of one product with the same operands.
    fn op(self) -> Op {
        match self {
            Family::Contiguous | Family::Masked => Op::Fp8,
            Family::Bf16Contiguous | Family::Bf16Masked => Op::Bf16,
        }
    }
}

/// One case of the peer's benchmark.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupedCase {
    /// How its groups lie.
    pub family: Family,
    /// How many groups there are.
    pub groups: usize,
    /// The rows of a group, on average.
    pub expected: usize,
    /// Rows of a group's B.
    pub n: usize,
    /// Columns of A and B.
    pub k: usize,
    /// The rows of each group.
    pub rows: Vec<usize>,
    /// The time of all kernels of one call.
    pub call_us: f64,
    /// The same without the kernel that transposes the scales.
    pub main_kernel_us: f64,
    /// The distance of the result from the unquantized product.
    pub diff: f64,
    /// The calibration product, timed beside this case.
    pub calibration_us: f64,
}

/// Rows that the peer's masked groups have room for.
const ROOM: usize = 4096;
/// Groups with a B of their own: enough that the B of a neighbour would be noticed, and soon drawn.
const DIFFERENT: usize = 5;

impl GroupedAnchor {
    /// The figures of a function's operands, if the peer has some.
    pub fn of(op: Op) -> Option<&'static GroupedAnchor> {
        match op {
            Op::Fp8 => Some(GroupedAnchor::fp8()),
            Op::Bf16 => Some(GroupedAnchor::bf16()),
            _ => None,
        }
    }

    /// The figures of BF16, parsed once.
    pub fn bf16() -> &'static GroupedAnchor {
        static ANCHOR: LazyLock<GroupedAnchor> = LazyLock::new(|| {
            serde_json::from_str(include_str!("../../data/anchor_grouped_bf16.json"))
                .expect("the anchor's data is part of the program, and a test parses it")
        });
        &ANCHOR
    }

    /// The figures of FP8, parsed once.
    pub fn fp8() -> &'static GroupedAnchor {
        static ANCHOR: LazyLock<GroupedAnchor> = LazyLock::new(|| {
            serde_json::from_str(include_str!("../../data/anchor_grouped_fp8.json"))
                .expect("the anchor's data is part of the program, and a test parses it")
        });
        &ANCHOR
    }
}

impl GroupedCase {
    /// Its name, such as `fp8_masked g32 em20 n6144 k7168`.
    pub fn name(&self) -> String {
        let GroupedCase { groups, expected, n, k, .. } = self;
        format!("{} g{groups} em{expected} n{n} k{k}", self.family.name())
    }

    /// The problem, as the peer ran it.
    pub fn spec(&self) -> GroupedSpec {
        let layout = match self.family {
            Family::Contiguous | Family::Bf16Contiguous => GroupLayout::Ids,
            Family::Masked | Family::Bf16Masked => GroupLayout::Counts,
        };
        let op = self.family.op();
        GroupedSpec {
            room: ROOM,
            expected: if op == Op::Fp8 { self.expected * 6 / 5 } else { self.expected },
            different: DIFFERENT,
            poison: false,
            ..GroupedSpec::new(layout, self.rows.clone(), self.n, self.k).of(op, GemmLayout::Nt)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::anchor::Anchor;

    #[test]
    fn the_data_is_complete_and_plausible() {
        let anchor = GroupedAnchor::fp8();
        let count = |family| anchor.cases.iter().filter(|case| case.family == family).count();
        assert_eq!((count(Family::Contiguous), count(Family::Masked)), (8, 16));
        let roofline = Anchor::dense_fp8().roofline();
        for case in &anchor.cases {
            assert_eq!(case.rows.len(), case.groups, "{}", case.name());
            let (low, high) = (case.expected * 7 / 10, case.expected * 13 / 10);
            assert!(case.rows.iter().all(|rows| (low..=high).contains(rows)), "{}", case.name());
            assert!(case.main_kernel_us < case.call_us && (5e-4..1e-3).contains(&case.diff));
            assert!(Anchor::dense_fp8().is_comparable(case.calibration_us), "{}", case.name());
            let floor = roofline.floor_us(case.spec().flops(), case.spec().bytes());
            assert!(floor < case.main_kernel_us && floor > 0.3 * case.call_us, "{}: {floor}", case.name());
        }
    }

    #[test]
    fn the_data_of_bf16_is_complete_and_plausible() {
        let anchor = GroupedAnchor::bf16();
        let families: Vec<Family> = anchor.cases.iter().map(|case| case.family).collect();
        assert_eq!(families, [Family::Bf16Contiguous, Family::Bf16Masked]);
        let roofline = Anchor::dense_bf16().roofline();
        for case in &anchor.cases {
            assert_eq!(case.rows.len(), case.groups, "{}", case.name());
            assert!(Anchor::dense_bf16().is_comparable(case.calibration_us), "{}", case.name());
            let floor = roofline.floor_us(case.spec().flops(), case.spec().bytes());
            assert!(floor < case.call_us && floor > 0.6 * case.call_us, "{}: {floor}", case.name());
        }
        assert!(GroupedAnchor::of(Op::Fp16).is_none(), "the peer has no FP16");
    }
}
