//! The peer's figures for products with groups along K.

use std::sync::LazyLock;

use oxigemm::DType;
use serde::Deserialize;

use crate::kgrouped::{KGroupedForm, KGroupedSpec};
use crate::problem::{AddendKind, ScaleOrder};

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
#[serde(deny_unknown_fields)]
pub struct KGroupedCase {
    /// Rows of A and of a group's D.
    pub m: usize,
    /// Rows of B.
    pub n: usize,
    /// The K of a group, on average.
    pub expected: usize,
    /// The K of each group.
    pub ks: Vec<usize>,
    /// The time of all kernels of one call.
    pub call_us: f64,
    /// The same; the peer is given scales as it wants them.
    pub main_kernel_us: f64,
    /// The distance of the result from the unquantized product.
    pub diff: f64,
    /// The calibration product, timed beside this case.
    pub calibration_us: f64,
}

impl KGroupedAnchor {
    /// The figures, parsed once.
    pub fn fp8() -> &'static KGroupedAnchor {
        static ANCHOR: LazyLock<KGroupedAnchor> = LazyLock::new(|| {
            serde_json::from_str(include_str!("../../data/anchor_kgrouped_fp8.json"))
                .expect("the anchor's data is part of the program, and a test parses it")
        });
        &ANCHOR
    }
}

impl KGroupedCase {
    /// Its name, such as `fp8_kgrouped g4 m4096 n7168 ek8192`.
    pub fn name(&self) -> String {
        let KGroupedCase { m, n, expected, ks, .. } = self;
        format!("fp8_kgrouped g{} m{m} n{n} ek{expected}", ks.len())
    }

    /// The problem, as the peer ran it.
    pub fn spec(&self) -> KGroupedSpec {
        KGroupedSpec {
            d_type: DType::F32,
            addend: AddendKind::Inplace,
            scales: [ScaleOrder::Mn; 2],
            ..KGroupedSpec::new(KGroupedForm::FP8_NT, self.ks.clone(), self.m, self.n)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::anchor::Anchor;

    #[test]
    fn the_data_is_complete_and_plausible() {
        let anchor = KGroupedAnchor::fp8();
        assert_eq!(anchor.cases.len(), 2);
        let roofline = Anchor::dense_fp8().roofline();
        for case in &anchor.cases {
            let (low, high) = (case.expected * 7 / 10, case.expected * 13 / 10 + 128);
            assert!(case.ks.iter().all(|k| (low..=high).contains(k) && k % 128 == 0), "{}", case.name());
            assert!((5e-4..1e-3).contains(&case.diff));
            assert!(Anchor::dense_fp8().is_comparable(case.calibration_us), "{}", case.name());
            let floor = roofline.floor_us(case.spec().flops(), case.spec().bytes());
            assert!(floor < case.main_kernel_us && floor > 0.3 * case.call_us, "{}: {floor}", case.name());
        }
    }
}
