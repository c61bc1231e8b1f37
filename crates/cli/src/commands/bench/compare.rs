//! Times of what the planner chooses, beside the anchor's.

use std::path::Path;

use oxigemm::Cuda;
use oxigemm_testkit::{Failure, Op};
use serde::Serialize;
use serde_json::{Value, json};

use super::figures::Figures;
use super::gemm::{Case, Kind};
use super::passes::figures;
use super::{Bench, attention};
use crate::Outcome;
use crate::baseline::attention::{AttentionAnchor, AttentionCase};
use crate::baseline::k_grouped::KGroupedAnchor;
use crate::baseline::m_grouped::GroupedAnchor;
use crate::baseline::{Anchor, geometric_mean};
use crate::output::{print_json, print_line};
use crate::plot::{Bar, Chart, svg};

/// A case that was timed.
#[derive(Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub about: Value,
    #[serde(skip)]
    pub family: Option<String>,
    #[serde(flatten)]
    pub figures: Figures,
}

/// The rows of all tables.
struct Rows {
    dense: Vec<Row>,
    m_grouped: Vec<Row>,
    k_grouped: Vec<Row>,
    logits: Vec<Row>,
}

impl Rows {
    fn all(&self) -> impl Iterator<Item = &Row> {
        [&self.dense, &self.m_grouped, &self.k_grouped, &self.logits].into_iter().flatten()
    }
}

/// Times the cases and compares with the anchor.
pub fn run(bench: &mut Bench, anchor: &Anchor, cases: &[Case], logits: &[&AttentionCase]) -> Outcome {
    let mut of = |kind: Kind| -> Result<Vec<Row>, Failure> {
        let cases: Vec<&Case> = cases.iter().filter(|case| case.kind == kind).collect();
        // The operands of k-grouped cases do not fit beside each other everywhere.
        let fit = kind != Kind::KGrouped;
        let figures = figures(bench, &cases, |case| case.name.clone(), fit, |case, to| case.prepare(to))?;
        let row = |(case, figures): (&&Case, Figures)| Row {
            about: case.about.clone(),
            family: case.family.clone(),
            figures,
        };
        Ok(cases.iter().zip(figures).map(row).collect())
    };
    let (dense, m_grouped, k_grouped) = (of(Kind::Dense)?, of(Kind::MGrouped)?, of(Kind::KGrouped)?);
    let rows = Rows { dense, m_grouped, k_grouped, logits: attention::rows(bench, logits)? };
    let calibration = geometric_mean(rows.all().filter_map(|row| row.figures.calibration_us));
    let (cuda, op, method) = (bench.cuda, &bench.args.op, bench.clock.method());
    if let Some(path) = &bench.args.plot {
        let calibrations = [calibration, Some(anchor.calibration_us())];
        draw(path, &format!("{}; {method}", cuda.gpu().name()), op, &rows.dense, calibrations)?;
    }
    let right = rows.all().all(|row| row.figures.is_right());
    if bench.common.json {
        print_json(&as_json(bench, anchor, &rows, calibration));
    } else {
        print(cuda, anchor, &rows, calibration, bench);
    }
    Ok(right)
}

fn as_json(bench: &Bench, anchor: &Anchor, rows: &Rows, calibration: Option<f64>) -> Value {
    let op = &bench.args.op;
    let means = |rows: &[Row]| -> Vec<Value> {
        let mean = |(name, ratio, worst)| json!({ "group": name, "ratio": ratio, "worst": worst });
        means(rows).into_iter().map(mean).collect()
    };
    json!({
        "device": bench.cuda.gpu().name(),
        "op": op.to_string(),
        "timed_by": bench.clock.method(),
        "calibration_us": calibration,
        "anchor_calibration_us": anchor.calibration_us(),
        "anchor": { "device": anchor.device, "note": anchor.note },
        "ceilings": anchor.ceilings.iter().map(|ceiling| json!({
            "m": ceiling.m, "n": ceiling.n, "k": ceiling.k, "tflops": ceiling.tflops,
        })).collect::<Vec<_>>(),
        "comparable": calibration.is_some_and(|us| anchor.is_comparable(us)),
        "geometric_means": means(&rows.dense),
        "cases": rows.dense,
        "grouped_anchor": GroupedAnchor::of(&op.types).map(|anchor| json!({ "note": anchor.note })),
        "grouped_means": means(&rows.m_grouped),
        "grouped": rows.m_grouped,
        "k_grouped_anchor": { "note": KGroupedAnchor::fp8().note },
        "k_grouped": rows.k_grouped,
        "logits_anchor": { "note": AttentionAnchor::fp8().note },
        "logits": rows.logits,
    })
}

/// The mean ratio of each family of cases, and the worst one; those of many rows first.
fn means(rows: &[Row]) -> Vec<(String, f64, f64)> {
    let mut families: Vec<&String> = Vec::new();
    for family in rows.iter().filter_map(|row| row.family.as_ref()) {
        if !families.contains(&family) {
            families.push(family);
        }
    }
    families.sort_by_key(|family| !family.starts_with("m >="));
    let mean = |family: &String| {
        let of_family = rows.iter().filter(|row| row.family.as_ref() == Some(family));
        let ratios: Vec<f64> = of_family.map(|row| row.figures.ratio).collect();
        Some((family.clone(), geometric_mean(ratios.iter().copied())?, ratios.into_iter().reduce(f64::min)?))
    };
    families.into_iter().filter_map(mean).collect()
}

/// What is said of all cases.
fn print(cuda: &Cuda, anchor: &Anchor, rows: &Rows, calibration: Option<f64>, bench: &Bench) {
    print_line("");
    let tables = [&rows.dense, &rows.m_grouped, &rows.k_grouped, &rows.logits];
    for (name, ratio, worst) in tables.into_iter().flat_map(|rows| means(rows)) {
        print_line(&format!(
            "{name}: geometric mean {ratio:.3}x the anchor's speed, the slowest {worst:.3}x"
        ));
    }
    print_line(&format!("timed by {} on {}", bench.clock.method(), cuda.gpu().name()));
    let expected = anchor.calibration_us();
    print_line(&match (calibration, &bench.clock.why_not_calibrated) {
        (Some(us), _) if anchor.is_comparable(us) => {
            format!("calibration {us:.1} us, beside the anchor {expected:.1} us: comparable")
        }
        (Some(us), _) => {
            format!("calibration {us:.1} us, beside the anchor {expected:.1} us: NOT comparable")
        }
        (None, why) => format!("no calibration: {}", why.as_deref().unwrap_or("unknown")),
    });
}

fn draw(
    path: &Path,
    subtitle: &str,
    op: &Op,
    rows: &[Row],
    [calibration_us, anchor_calibration_us]: [Option<f64>; 2],
) -> Result<(), Failure> {
    let size = |row: &Row, key: &str| row.about[key].as_u64().unwrap_or(0) as u32;
    let bar = |row: &Row| Bar {
        m: size(row, "m"),
        n: size(row, "n"),
        k: size(row, "k"),
        us: row.figures.us,
        anchor_us: row.figures.anchor_us,
    };
    let text = svg(&Chart {
        title: &match op.types.has_scales() {
            true => "FP8 GEMM with fine-grained scales".to_owned(),
            false => format!("{} GEMM", op.name.to_uppercase()),
        },
        subtitle,
        calibration_us,
        anchor_calibration_us: anchor_calibration_us.unwrap_or_default(),
        bars: &rows.iter().map(bar).collect::<Vec<_>>(),
    });
    std::fs::write(path, text).map_err(|error| format!("could not write {}: {error}", path.display()).into())
}
