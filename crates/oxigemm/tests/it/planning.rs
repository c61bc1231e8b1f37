//! The cost model against times measured on an H200.

use oxigemm::plan::{self, GemmShape, Limits, MGroupedShape, Plan};
use std::collections::BTreeMap;
use std::fmt::Debug;

/// How much slower than the best measured choice the planned one may be.
const TOLERANCE: f64 = 1.05;
/// The same of groups of rows.
const TOLERANCE_GROUPED: f64 = 1.045;
/// The same of 16-bit operands.
const TOLERANCE_HALF: f64 = 1.02;

/// Measured times by shape and choice.
fn measured<const N: usize>(table: &str) -> BTreeMap<[u32; N], BTreeMap<&str, f64>> {
    let mut measured: BTreeMap<[u32; N], BTreeMap<&str, f64>> = BTreeMap::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [shape @ .., choice, us] = &fields[..] else { panic!("a shape, a choice and a time: {line}") };
        let shape: Vec<u32> = shape.iter().map(|field| field.parse().expect("a number")).collect();
        let shape = shape.try_into().expect("the numbers of a shape");
        measured.entry(shape).or_default().insert(choice, us.parse().expect("microseconds"));
    }
    measured
}

/// Whether the time of the planned choice, where it was measured, is close to the best.
fn judge(shape: &dyn Debug, name: &str, times: &BTreeMap<&str, f64>, tolerance: f64) -> bool {
    let best = times.values().copied().fold(f64::INFINITY, f64::min);
    let Some(us) = times.get(name) else { return false };
    assert!(*us <= best * tolerance, "{shape:?}: {name} takes {us} us, the best {best} us");
    true
}

#[test]
fn the_planned_choice_is_close_to_the_best_measured_one() {
    let measured = measured(include_str!("data/h200_choices.txt"));
    assert_eq!(measured.len(), 29, "every dense case of the anchor");
    let judged = measured.iter().filter(|([m, n, k], times)| {
        let shape = GemmShape { m: *m, n: *n, k: *k };
        judge(&shape, &Plan::best(shape, &Limits::h200()).name(), times, TOLERANCE)
    });
    let judged = judged.count();
    assert!(judged >= 27, "only {judged} planned choices were measured");
}

#[test]
fn the_planned_choice_of_bf16_is_close_to_the_best_measured_one() {
    let measured = measured(include_str!("data/h200_bf16_choices.txt"));
    assert_eq!(measured.len(), 10, "every dense case of the anchor");
    for ([m, n, k], times) in measured {
        let shape = GemmShape { m, n, k };
        let family = plan::parse(times.keys().next().expect("a choice")).expect("a name").config().family();
        let name = Plan::best_of(family, shape, &Limits::h200()).name();
        assert!(
            judge(&shape, &name, &times, TOLERANCE_HALF),
            "{shape:?}: {name} was not measured, or is far from the best"
        );
    }
}

#[test]
fn the_planned_choice_of_groups_is_close_to_the_best_measured_one() {
    let measured = measured(include_str!("data/h200_grouped_choices.txt"));
    assert_eq!(measured.len(), 24, "every grouped FP8 case of the anchor");
    for ([groups, slabs, rows, expected, n, k], times) in measured {
        let shape = MGroupedShape { groups, slabs, rows, expected, n, k };
        let name = Plan::best_grouped(&shape, &Limits::h200()).expect("there is one").name();
        assert!(
            judge(&shape, &name, &times, TOLERANCE_GROUPED),
            "{shape:?}: {name} was not measured, or is far from the best"
        );
    }
}
