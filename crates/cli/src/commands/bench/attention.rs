//! The peer's cases of attention (MQA) logits.

use oxigemm::check::MqaLogits;
use oxigemm::plan::MqaPlan;
use oxigemm::{Device, GemmOptions};
use oxigemm_testkit::{Effort, Failure, Verdict};
use serde_json::json;

use super::Bench;
use super::compare::Row;
use super::figures::{Figures, Work};
use super::passes::{Call, Prepared, figures};
use crate::baseline::Anchor;
use crate::baseline::attention::AttentionCase;
use crate::cases::attention::{PagedHost, PagedOperands, PrefillHost, PrefillOperands};

/// Logits of a prefill, or of keys in pages.
enum Logits {
    Prefill(PrefillHost, Box<PrefillOperands>),
    Paged(PagedHost, Box<PagedOperands>),
}

impl Call for Logits {
    fn run(&mut self, options: &GemmOptions) -> oxigemm::Result<()> {
        match self {
            Logits::Prefill(_, operands) => operands.run(options),
            Logits::Paged(_, operands) => operands.run(options),
        }
    }

    fn judge(&mut self, _: &GemmOptions, _: Effort) -> Result<Verdict, Failure> {
        match self {
            Logits::Prefill(host, operands) => host.judge(operands),
            Logits::Paged(host, operands) => host.judge(operands),
        }
    }
}

/// Times each case.
pub fn rows(bench: &mut Bench, cases: &[&AttentionCase]) -> Result<Vec<Row>, Failure> {
    let figures = figures(bench, cases, |case| case.name(), true, |case, device| prepare(case, device))?;
    let row = |(case, figures): (&&AttentionCase, Figures)| {
        let mut about = json!({ "case": case.name(), "anchor_calibration_us": case.figures.calibration_us });
        // Keys of each sequence, where they are in pages.
        if let Some(spec) = case.paged() {
            about["lengths"] = json!(spec.lengths);
        }
        Row { about, family: Some("logits".to_owned()), figures }
    };
    Ok(cases.iter().zip(figures).map(row).collect())
}

fn prepare(case: &AttentionCase, device: &Device) -> Result<Prepared, Failure> {
    let (call, pairs, bytes, plan);
    if let Some(spec) = case.prefill() {
        let host = PrefillHost::draw(spec);
        let operands = host.upload(device)?;
        plan = describe(&operands, spec.form, device)?;
        (pairs, bytes) = (spec.pairs(), spec.bytes());
        call = Logits::Prefill(host, Box::new(operands));
    } else {
        let spec = case.paged().expect("a case is one or the other");
        (pairs, bytes) = (spec.pairs(), spec.bytes());
        let host = PagedHost::draw(spec);
        let mut operands = host.upload(device)?;
        operands.plan(&GemmOptions::default())?;
        device.synchronize()?;
        plan = "schedule".to_owned();
        call = Logits::Paged(host, Box::new(operands));
    }
    let flops = 2.0 * pairs * (case.heads * case.dim) as f64;
    let floor_us = Anchor::dense_fp8().roofline().floor_us(flops, bytes);
    let work = Work { flops, bytes, floor_us };
    Ok(Prepared { call: Box::new(call), plan: (plan, floor_us), work, peer: case.figures })
}

/// How a prefill is launched.
fn describe(
    operands: &PrefillOperands,
    form: oxigemm::check::Logits,
    device: &Device,
) -> Result<String, Failure> {
    let [starts, ends] = &operands.bounds;
    let arguments = MqaLogits {
        q_scales: operands.q_scales.as_ref().map(|scales| scales.describe("q_scales")),
        q: operands.q.describe("q"),
        kv: operands.kv.describe("kv"),
        kv_scales: operands.kv_scales.describe("kv_scales"),
        weights: operands.weights.describe("weights"),
        starts: starts.describe("starts"),
        ends: ends.describe("ends"),
        logits: operands.logits.describe("logits"),
        form,
    };
    let problem = arguments.check()?.ok_or("there is nothing to compute")?;
    let limits = device.limits().ok_or("bench needs a GPU")?;
    let plan = MqaPlan::best(&problem, limits.arch, limits.sms)?;
    Ok(format!("{} blocks", plan.blocks))
}
