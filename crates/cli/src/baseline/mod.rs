//! The baseline, called anchor: what the peer library reaches on one H200, and what the hardware allows.
//!
//! The figures are data in `data/anchor_*.json`, with a note on how they were taken. A run is comparable with them only
//! when its calibration GEMM takes the same time: the card is power-capped, and a warm one is slow.

pub mod attention;
pub mod k_grouped;
pub mod m_grouped;

use std::sync::LazyLock;

use oxigemm::{DType, GemmLayout};
use oxigemm_testkit::{AddendKind, FP8_1D1D, GemmCase, Op};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Bandwidth that a large copy reads and writes with on the GPU of the anchor, for quantization.
pub const COPY_GB_PER_S: f64 = 4280.0;
/// How far a run's calibration may be from the anchor's.
pub const CALIBRATION_TOLERANCE: f64 = 0.02;

/// The peer's figures for a dense GEMM.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anchor {
    /// How the figures were taken.
    pub note: String,
    /// The GPU that they are of.
    pub device: String,
    /// What a large copy reaches, reads and writes counted.
    pub copy_gb_per_s: f64,
    /// What GEMMs without block scaling reach.
    pub ceilings: Vec<Ceiling>,
    /// The benchmark cases.
    pub cases: Vec<Case>,
}

/// The best speed on a large GEMM: of FP8 that of cuBLASLt with one scale per tensor.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ceiling {
    /// Rows of A.
    pub m: u32,
    /// Rows of B.
    pub n: u32,
    /// Columns of both.
    pub k: u32,
    /// Its speed.
    pub tflops: f64,
}

/// The peer's figures for one case.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Peer {
    /// The time of all kernels of one call.
    pub call_us: f64,
    /// The same without kernels that prepare: a transposition of scales, a fill with -inf.
    pub main_kernel_us: f64,
    /// The distance of the result from the unquantized product.
    pub diff: f64,
    /// The calibration GEMM, timed beside this case.
    pub calibration_us: f64,
}

/// One dense case of the peer's benchmark.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Case {
    /// Rows of A.
    pub m: u32,
    /// Rows of B.
    pub n: u32,
    /// Columns of both.
    pub k: u32,
    /// cuBLASLt on the same sizes, where it has them; of FP8 with one scale per tensor.
    #[serde(default)]
    pub cublaslt_us: Option<f64>,
    /// The peer's figures.
    #[serde(flatten)]
    pub figures: Peer,
}

/// Data that is part of the program.
fn parse<T: DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).expect("the anchor's data is part of the program, and a test parses it")
}

impl Anchor {
    /// The figures for a dense operation, if the peer has it.
    pub fn of(op: &Op) -> Option<&'static Anchor> {
        Anchor::named(op.name)
    }

    /// The figures for the dense operation of this name.
    pub fn named(name: &str) -> Option<&'static Anchor> {
        static ANCHORS: LazyLock<[(&str, Anchor); 3]> = LazyLock::new(|| {
            [
                ("fp8", include_str!("../../data/anchor_dense_fp8.json")),
                ("fp8-1d1d", include_str!("../../data/anchor_fp8_1d1d.json")),
                ("bf16", include_str!("../../data/anchor_dense_bf16.json")),
            ]
            .map(|(op, text)| (op, parse(text)))
        });
        ANCHORS.iter().find(|(op, _)| *op == name).map(|(_, anchor)| anchor)
    }

    /// The figures for dense FP8 GEMMs.
    pub fn dense_fp8() -> &'static Anchor {
        Anchor::named("fp8").expect("it is in the table")
    }

    /// The case of these sizes, if it is one of the peer's.
    pub fn case(&self, m: u32, n: u32, k: u32) -> Option<&Case> {
        self.cases.iter().find(|case| (case.m, case.n, case.k) == (m, n, k))
    }

    /// The mean time of the calibration GEMM over all cases.
    pub fn calibration_us(&self) -> f64 {
        self.cases.iter().map(|case| case.figures.calibration_us).sum::<f64>() / self.cases.len() as f64
    }

    /// Whether a run with this calibration can be compared with the anchor.
    pub fn is_comparable(&self, calibration_us: f64) -> bool {
        (calibration_us / self.calibration_us() - 1.0).abs() <= CALIBRATION_TOLERANCE
    }

    /// What the GPU of the anchor allows.
    pub fn roofline(&self) -> Roofline {
        let peak_tflops = self.ceilings.iter().map(|ceiling| ceiling.tflops).fold(0.0, f64::max);
        Roofline { peak_tflops, gb_per_s: self.copy_gb_per_s }
    }
}

impl Case {
    /// Its name, such as `m4096 n7168 k2048`.
    pub fn name(&self) -> String {
        format!("m{} n{} k{}", self.m, self.n, self.k)
    }

    /// The GEMM, as the peer ran it. Its 1D1D kernel only adds, to FP32.
    pub fn gemm(&self, op: &Op) -> GemmCase {
        let dims = [self.m, self.n, self.k].map(|x| x as usize);
        let case = GemmCase::dense(op.types, GemmLayout::Nt, dims);
        match op.types == FP8_1D1D {
            true => GemmCase { d_type: DType::F32, addend: AddendKind::Inplace, ..case },
            false => case,
        }
    }
}

/// The practical limits of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Roofline {
    /// The fastest GEMM that any library reaches.
    pub peak_tflops: f64,
    /// The bandwidth of a large copy.
    pub gb_per_s: f64,
}

impl Roofline {
    /// The least time for this much work: that of the arithmetic or that of the traffic, whichever is longer.
    pub fn floor_us(&self, flops: f64, bytes: f64) -> f64 {
        (flops / self.peak_tflops * 1e-6).max(bytes / self.gb_per_s * 1e-3)
    }
}

/// The geometric mean, or `None` of nothing.
pub fn geometric_mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.into_iter().fold((0.0, 0), |(sum, count), value| (sum + value.ln(), count + 1));
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxigemm_testkit::Named;

    #[test]
    fn the_data_is_complete_and_plausible() {
        let anchor = Anchor::dense_fp8();
        assert_eq!(anchor.cases.len(), 29);
        for m in [1, 64, 128, 4096] {
            assert_eq!(anchor.cases.iter().filter(|case| case.m == m).count(), 7, "m = {m}");
        }
        for case in &anchor.cases {
            assert!(case.figures.main_kernel_us < case.figures.call_us, "{case:?}");
            assert!((5e-4..1e-3).contains(&case.figures.diff), "{case:?}");
            assert!(anchor.is_comparable(case.figures.calibration_us), "{case:?}");
            assert_eq!(
                anchor.case(case.m, case.n, case.k).unwrap().figures.call_us,
                case.figures.call_us,
                "no case twice"
            );
        }
        assert!(anchor.case(2, 3, 4).is_none());
    }

    #[test]
    fn the_data_of_bf16_is_complete_and_plausible() {
        let anchor = Anchor::named("bf16").unwrap();
        assert_eq!(anchor.cases.len(), 10);
        for case in &anchor.cases {
            // There are no scales that a second kernel would transpose.
            assert!((case.figures.main_kernel_us - case.figures.call_us).abs() < 0.01, "{case:?}");
            assert!(case.figures.diff < 1e-5, "{case:?}");
            assert!(anchor.is_comparable(case.figures.calibration_us), "{case:?}");
        }
        assert!(Anchor::named("fp16").is_none(), "the peer has no FP16");
    }

    #[test]
    fn the_data_of_1d1d_scales_is_complete_and_plausible() {
        let anchor = Anchor::named("fp8-1d1d").unwrap();
        assert_eq!(anchor.cases.len(), 3);
        for case in &anchor.cases {
            assert!(case.figures.main_kernel_us < case.figures.call_us, "{case:?}");
            assert!((5e-4..1e-3).contains(&case.figures.diff), "{case:?}");
            assert!(anchor.is_comparable(case.figures.calibration_us), "{case:?}");
        }
    }

    #[test]
    fn no_case_is_faster_than_the_roofline() {
        for name in ["fp8", "fp8-1d1d", "bf16"] {
            let op = Op::named(name).expect("it is in the table");
            let anchor = Anchor::of(&op).expect("the peer has it");
            let roofline = anchor.roofline();
            for case in &anchor.cases {
                let floor = roofline.floor_us(case.gemm(&op).flops(), case.gemm(&op).bytes());
                assert!(floor < case.figures.main_kernel_us, "{case:?} has a floor of {floor} us");
                assert!(floor > 0.05 * case.figures.call_us, "{case:?} has a floor of {floor} us");
            }
        }
    }

    #[test]
    fn few_rows_are_bound_by_memory_and_many_by_arithmetic() {
        let roofline = Roofline { peak_tflops: 1000.0, gb_per_s: 1000.0 };
        assert_eq!(roofline.floor_us(1e9, 1e6), 1.0);
        assert_eq!(roofline.floor_us(1e10, 1e6), 10.0);
        assert_eq!(roofline.floor_us(1e9, 5e6), 5.0);
    }

    #[test]
    fn a_warm_card_is_not_comparable() {
        let anchor = Anchor::dense_fp8();
        assert!((91.0..93.0).contains(&anchor.calibration_us()));
        assert!(anchor.is_comparable(93.0));
        assert!(!anchor.is_comparable(94.5));
        assert!(!anchor.is_comparable(f64::NAN));
    }

    #[test]
    fn the_geometric_mean_weighs_ratios_alike() {
        assert!((geometric_mean([0.5, 2.0]).unwrap() - 1.0).abs() < 1e-12);
        assert_eq!(geometric_mean([]), None);
    }
}
