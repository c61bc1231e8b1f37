//! The peer's GEMM cases: dense, m-grouped and k-grouped.

use oxigemm::Device;
use oxigemm_testkit::{Failure, GemmCase, GroupingKind, Op, plan};
use serde_json::{Value, json};

use super::figures::Work;
use super::passes::Prepared;
use crate::baseline::k_grouped::KGroupedAnchor;
use crate::baseline::m_grouped::GroupedAnchor;
use crate::baseline::{Anchor, Peer};

/// The table that a case stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Dense,
    MGrouped,
    KGrouped,
}

/// A GEMM case of the peer's benchmark.
pub struct Case {
    pub kind: Kind,
    pub name: String,
    /// Cases whose mean ratio is told together.
    pub family: Option<String>,
    pub gemm: GemmCase,
    pub peer: Peer,
    /// What its row says beside figures, and what identifies it in a sweep.
    pub about: Value,
    pub identity: Value,
}

/// Whether the peer has figures for an operation, or for others with the same operands.
pub fn has_figures(op: &Op) -> bool {
    matches!(op.grouping, GroupingKind::Dense | GroupingKind::KGrouped)
        && Anchor::named(op.types.name).is_some()
}

/// All cases of an operation; those of a dense one have m-grouped and k-grouped ones of the same operands beside them.
pub fn cases(op: &Op) -> Vec<Case> {
    let mut cases = Vec::new();
    if let Some(anchor) = Anchor::of(op) {
        cases.extend(anchor.cases.iter().map(|case| {
            let family = match case.m {
                4096.. => Some("m >= 4096".to_owned()),
                ..=128 => Some("m <= 128".to_owned()),
                _ => None,
            };
            let identity = json!({ "m": case.m, "n": case.n, "k": case.k });
            let about = json!({ "m": case.m, "n": case.n, "k": case.k, "cublaslt_us": case.cublaslt_us });
            let (kind, name, gemm, peer) = (Kind::Dense, case.name(), case.gemm(op), case.figures);
            Case { kind, name, family, gemm, peer, about, identity }
        }));
    }
    let grouped = GroupedAnchor::of(&op.types).filter(|_| op.grouping == GroupingKind::Dense);
    cases.extend(grouped.iter().flat_map(|anchor| &anchor.cases).map(|case| Case {
        kind: Kind::MGrouped,
        name: case.name(),
        family: Some(format!("{} em{}", case.family, case.expected)),
        gemm: case.gemm(),
        peer: case.figures,
        about: json!({
            "case": case.name(), "family": case.family, "groups": case.groups, "expected": case.expected,
            "n": case.n, "k": case.k, "rows_of_groups": case.rows,
            "anchor_calibration_us": case.figures.calibration_us,
        }),
        identity: json!({ "case": case.name() }),
    }));
    let k_grouped = ["fp8", "fp8-kgrouped"].contains(&op.name).then(KGroupedAnchor::fp8);
    cases.extend(k_grouped.iter().flat_map(|anchor| &anchor.cases).map(|case| Case {
        kind: Kind::KGrouped,
        name: case.name(),
        family: Some("fp8_kgrouped".to_owned()),
        gemm: case.gemm(),
        peer: case.figures,
        about: json!({
            "case": case.name(), "ks": case.ks, "anchor_calibration_us": case.figures.calibration_us,
        }),
        identity: json!({ "case": case.name() }),
    }));
    cases
}

impl Case {
    /// Its operands on a GPU, with what is said about them.
    pub fn prepare(&self, device: &Device) -> Result<Prepared, Failure> {
        let limits = device.limits().ok_or("bench needs a GPU")?;
        let plan = plan::plan(&self.gemm, None, limits).ok_or("no kernel takes so many groups")?;
        // The roofline of k-grouped GEMMs is that of dense ones, whatever their scales.
        let roofline = match self.kind {
            Kind::KGrouped => Anchor::dense_fp8().roofline(),
            _ => Anchor::named(self.gemm.types.name).ok_or("the peer has no such GEMM")?.roofline(),
        };
        let (flops, bytes) = (self.gemm.flops(), self.gemm.bytes());
        let work = Work { flops, bytes, floor_us: roofline.floor_us(flops, bytes) };
        let call = Box::new(self.gemm.on(device)?);
        Ok(Prepared { call, plan: (plan.name(), plan.estimate.us), work, peer: self.peer })
    }
}
