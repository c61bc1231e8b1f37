//! The peer's figures for k-grouped GEMMs.

use std::sync::LazyLock;

use oxigemm::GemmLayout;
use oxigemm_testkit::{AddendKind, FP8_1D1D, GemmCase, ScaleOrder};
use serde::Deserialize;

use super::{Peer, parse};

/// The peer's figures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KGroupedAnchor {
    /// How the figures were taken.
    pub note: String,
    /// The benchmark cases.
    pub cases: Vec<KGroupedCase>,
}

/// One case of the peer's benchmark.
#[derive(Clone, Debug, Deserialize)]
pub struct KGroupedCase {
    /// Rows of A and of a group's D.
    pub m: usize,
    /// Rows of B.
    pub n: usize,
    /// The K of a group, on average.
    pub expected: usize,
    /// The K of each group.
    pub ks: Vec<usize>,
    /// The peer's figures; it is given scales as it wants them.
    #[serde(flatten)]
    pub figures: Peer,
}

impl KGroupedAnchor {
    /// The figures, parsed once.
    pub fn fp8() -> &'static KGroupedAnchor {
        static ANCHOR: LazyLock<KGroupedAnchor> =
            LazyLock::new(|| parse(include_str!("../../data/anchor_k_grouped_fp8.json")));
        &ANCHOR
    }
}

impl KGroupedCase {
    /// Its name, such as `fp8_kgrouped g4 m4096 n7168 ek8192`.
    pub fn name(&self) -> String {
        let KGroupedCase { m, n, expected, ks, .. } = self;
        format!("fp8_kgrouped g{} m{m} n{n} ek{expected}", ks.len())
    }

    /// The GEMM, as the peer ran it.
    pub fn gemm(&self) -> GemmCase {
        GemmCase {
            addend: AddendKind::Inplace,
            sfa: ScaleOrder::Mn,
            sfb: ScaleOrder::Mn,
            ..GemmCase::k_grouped(FP8_1D1D, GemmLayout::Nt, self.ks.clone(), [self.m, self.n])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::Anchor;

    #[test]
    fn the_data_is_complete_and_plausible() {
        let anchor = KGroupedAnchor::fp8();
        assert_eq!(anchor.cases.len(), 2);
        let roofline = Anchor::dense_fp8().roofline();
        for case in &anchor.cases {
            let (low, high) = (case.expected * 7 / 10, case.expected * 13 / 10 + 128);
            assert!(case.ks.iter().all(|k| (low..=high).contains(k) && k % 128 == 0), "{}", case.name());
            assert!((5e-4..1e-3).contains(&case.figures.diff));
            assert!(Anchor::dense_fp8().is_comparable(case.figures.calibration_us), "{}", case.name());
            let floor = roofline.floor_us(case.gemm().flops(), case.gemm().bytes());
            assert!(
                floor < case.figures.main_kernel_us && floor > 0.3 * case.figures.call_us,
                "{}: {floor}",
                case.name()
            );
        }
    }
}
