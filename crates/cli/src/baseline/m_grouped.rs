//! The peer's figures for m-grouped GEMMs.

use std::sync::LazyLock;

use oxigemm_testkit::{Fill, GemmCase, GroupLayout, GroupingKind, MGroups, Named, Op, OperandTypes};
use serde::Deserialize;

use super::{Peer, parse};

/// The peer's figures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupedAnchor {
    /// How the figures were taken.
    pub note: String,
    /// The benchmark cases.
    pub cases: Vec<GroupedCase>,
}

/// One case of the peer's benchmark.
#[derive(Clone, Debug, Deserialize)]
pub struct GroupedCase {
    /// The anchor's name for its operation: `fp8_contig` for `fp8-contiguous`, `fp8_masked` for `fp8-masked`.
    pub family: String,
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
    /// The peer's figures.
    #[serde(flatten)]
    pub figures: Peer,
}

/// Rows of a slab of the peer's m-grouped masked GEMMs.
const MAX_M: usize = 4096;
/// Groups with a B of their own: enough that the B of a neighbour would be noticed, and soon drawn.
const DISTINCT: usize = 5;

impl GroupedAnchor {
    /// The figures for some operands, if the peer has some.
    pub fn of(types: &OperandTypes) -> Option<&'static GroupedAnchor> {
        static ANCHORS: LazyLock<[(&str, GroupedAnchor); 2]> = LazyLock::new(|| {
            [
                ("fp8", include_str!("../../data/anchor_m_grouped_fp8.json")),
                ("bf16", include_str!("../../data/anchor_m_grouped_bf16.json")),
            ]
            .map(|(types, text)| (types, parse(text)))
        });
        ANCHORS.iter().find(|(name, _)| *name == types.name).map(|(_, anchor)| anchor)
    }
}

impl GroupedCase {
    /// Its name, such as `fp8_masked g32 em20 n6144 k7168`.
    pub fn name(&self) -> String {
        let GroupedCase { family, groups, expected, n, k, .. } = self;
        format!("{family} g{groups} em{expected} n{n} k{k}")
    }

    /// Its operation.
    pub fn op(&self) -> Op {
        let name = self.family.replace("_contig", "-contiguous").replace('_', "-");
        Op::named(&name).expect("the anchor's data is part of the program, and a test reads it")
    }

    /// The GEMM, as the peer ran it.
    pub fn gemm(&self) -> GemmCase {
        let op = self.op();
        let layout = match op.grouping == GroupingKind::MGroupedMasked {
            true => GroupLayout::Counts,
            false => GroupLayout::Ids,
        };
        let groups =
            MGroups { max_m: MAX_M, distinct_b: DISTINCT, ..MGroups::new(layout, self.rows.clone()) };
        GemmCase {
            m: if op.types.has_scales() { self.expected * 6 / 5 } else { self.expected },
            fill: Fill::Rows,
            ..GemmCase::m_grouped(op.types, groups, [self.n, self.k])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::Anchor;
    use oxigemm_testkit::{BF16, FP8, FP16};

    #[test]
    fn the_data_is_complete_and_plausible() {
        let anchor = GroupedAnchor::of(&FP8).unwrap();
        let count = |family: &str| anchor.cases.iter().filter(|case| case.family == family).count();
        assert_eq!((count("fp8_contig"), count("fp8_masked")), (8, 16));
        let roofline = Anchor::dense_fp8().roofline();
        for case in &anchor.cases {
            assert_eq!(case.rows.len(), case.groups, "{}", case.name());
            let (low, high) = (case.expected * 7 / 10, case.expected * 13 / 10);
            assert!(case.rows.iter().all(|rows| (low..=high).contains(rows)), "{}", case.name());
            assert!(
                case.figures.main_kernel_us < case.figures.call_us
                    && (5e-4..1e-3).contains(&case.figures.diff)
            );
            assert!(Anchor::dense_fp8().is_comparable(case.figures.calibration_us), "{}", case.name());
            let floor = roofline.floor_us(case.gemm().flops(), case.gemm().bytes());
            assert!(
                floor < case.figures.main_kernel_us && floor > 0.3 * case.figures.call_us,
                "{}: {floor}",
                case.name()
            );
        }
    }

    #[test]
    fn the_data_of_bf16_is_complete_and_plausible() {
        let anchor = GroupedAnchor::of(&BF16).unwrap();
        let families: Vec<&str> = anchor.cases.iter().map(|case| case.family.as_str()).collect();
        assert_eq!(families, ["bf16_contig", "bf16_masked"]);
        let roofline = Anchor::named("bf16").unwrap().roofline();
        for case in &anchor.cases {
            assert_eq!(case.rows.len(), case.groups, "{}", case.name());
            assert!(
                Anchor::named("bf16").unwrap().is_comparable(case.figures.calibration_us),
                "{}",
                case.name()
            );
            let floor = roofline.floor_us(case.gemm().flops(), case.gemm().bytes());
            assert!(
                floor < case.figures.call_us && floor > 0.6 * case.figures.call_us,
                "{}: {floor}",
                case.name()
            );
        }
        assert!(GroupedAnchor::of(&FP16).is_none(), "the peer has no FP16");
    }
}
