//! The cost model against times measured on an H200.

use oxigemm::plan::{self, GemmShape, Limits, MGroupedShape, OperandKind, PlanRequest};
use std::collections::BTreeMap;
use std::fmt::Debug;

/// How much slower than the best measured configuration the planned one may be.
const TOLERANCE: f64 = 1.13;
/// The same for m-grouped GEMMs.
const TOLERANCE_M_GROUPED: f64 = 1.08;
/// The same for 16-bit operands.
const TOLERANCE_F16: f64 = 1.07;

/// The name of the configuration that is planned for an H200.
fn planned(request: &PlanRequest) -> String {
    plan::plan(request, &Limits::h200()).expect("there is one").name()
}

/// Measured times by shape and configuration.
fn measured<const N: usize>(table: &str) -> BTreeMap<[u32; N], BTreeMap<&str, f64>> {
    let mut measured: BTreeMap<[u32; N], BTreeMap<&str, f64>> = BTreeMap::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [shape @ .., config, us] = &fields[..] else { panic!("a shape, a config and a time: {line}") };
        let shape: Vec<u32> = shape.iter().map(|field| field.parse().expect("a number")).collect();
        let shape = shape.try_into().expect("the numbers of a shape");
        measured.entry(shape).or_default().insert(config, us.parse().expect("microseconds"));
    }
    measured
}

/// Whether the time of the planned configuration, where it was measured, is close to the best.
fn judge(shape: &dyn Debug, name: &str, times: &BTreeMap<&str, f64>, tolerance: f64) -> bool {
    let best = times.values().copied().fold(f64::INFINITY, f64::min);
    let Some(us) = times.get(name) else { return false };
    assert!(*us <= best * tolerance, "{shape:?}: {name} takes {us} us, the best {best} us");
    true
}

#[test]
fn the_planned_config_is_close_to_the_best_measured_one() {
    let measured = measured(include_str!("data/h200_choices.txt"));
    assert_eq!(measured.len(), 29, "every dense case of the anchor");
    let judged = measured.iter().filter(|([m, n, k], times)| {
        let shape = GemmShape { m: *m, n: *n, k: *k };
        judge(&shape, &planned(&PlanRequest::dense(OperandKind::FP8, shape)), times, TOLERANCE)
    });
    let judged = judged.count();
    assert!(judged >= 26, "only {judged} planned configurations were measured");
}

#[test]
fn the_planned_config_of_bf16_is_close_to_the_best_measured_one() {
    let measured = measured(include_str!("data/h200_bf16_choices.txt"));
    assert_eq!(measured.len(), 10, "every dense case of the anchor");
    for ([m, n, k], times) in measured {
        let shape = GemmShape { m, n, k };
        let operands = plan::parse(times.keys().next().expect("a config")).expect("a name").operands();
        // There were no stream-K kernels then: the time is that of the same tiles without a tail.
        let name = planned(&PlanRequest::dense(operands, shape)).replace("_stream_k", "");
        assert!(
            judge(&shape, &name, &times, TOLERANCE_F16),
            "{shape:?}: {name} was not measured, or is far from the best"
        );
    }
}

#[test]
fn the_planned_config_of_m_grouped_gemms_is_close_to_the_best_measured_one() {
    let measured = measured(include_str!("data/h200_grouped_choices.txt"));
    assert_eq!(measured.len(), 24, "every grouped FP8 case of the anchor");
    let judged = measured.iter().filter(|([groups, slabs, rows, expected, n, k], times)| {
        let [groups, slabs, rows, expected, n, k] = [*groups, *slabs, *rows, *expected, *n, *k];
        let shape = MGroupedShape { groups, slabs, rows, expected, n, k };
        let name = planned(&PlanRequest::m_grouped(OperandKind::FP8, shape));
        judge(&shape, &name, times, TOLERANCE_M_GROUPED)
    });
    let judged = judged.count();
    assert!(judged >= 18, "only {judged} planned configurations were measured");
}
