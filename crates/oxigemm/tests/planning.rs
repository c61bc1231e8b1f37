//! The cost model against times measured on an H200.

use oxigemm::plan::{GroupedShape, Limits, Plan, Shape};
use std::collections::BTreeMap;

/// How much slower than the best measured choice the planned one may be.
const TOLERANCE: f64 = 1.04;

#[test]
fn the_planned_choice_is_close_to_the_best_measured_one() {
    let mut measured: BTreeMap<[u32; 3], BTreeMap<&str, f64>> = BTreeMap::new();
    for line in include_str!("data/h200_choices.txt").lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [m, n, k, choice, us] = fields[..] else { panic!("five fields: {line}") };
        let shape = [m, n, k].map(|field| field.parse().expect("a dimension"));
        measured.entry(shape).or_default().insert(choice, us.parse().expect("microseconds"));
    }
    assert_eq!(measured.len(), 29, "every dense case of the anchor");
    let mut judged = 0;
    for ([m, n, k], times) in measured {
        let name = Plan::best(Shape { m, n, k }, &Limits::h200()).name();
        let best = times.values().copied().fold(f64::INFINITY, f64::min);
        if let Some(us) = times.get(name.as_str()) {
            judged += 1;
            assert!(*us <= best * TOLERANCE, "m={m} n={n} k={k}: {name} takes {us} us, the best {best} us");
        }
    }
    assert!(judged >= 27, "only {judged} planned choices were measured");
}

#[test]
fn the_planned_choice_of_groups_is_close_to_the_best_measured_one() {
    let mut measured: BTreeMap<[u32; 6], BTreeMap<&str, f64>> = BTreeMap::new();
    for line in include_str!("data/h200_grouped_choices.txt").lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [shape @ .., choice, us] = &fields[..] else { panic!("eight fields: {line}") };
        let shape: Vec<u32> = shape.iter().map(|field| field.parse().expect("a number")).collect();
        let shape = shape.try_into().expect("six numbers");
        measured.entry(shape).or_default().insert(choice, us.parse().expect("microseconds"));
    }
    assert_eq!(measured.len(), 13);
    for ([groups, slabs, rows, expected, n, k], times) in measured {
        let shape = GroupedShape { groups, slabs, rows, expected, n, k };
        let name = Plan::best_grouped(&shape, &Limits::h200()).expect("there is one").name();
        let best = times.values().copied().fold(f64::INFINITY, f64::min);
        let us = times.get(name.as_str()).copied().unwrap_or(f64::INFINITY);
        assert!(us <= best * TOLERANCE, "{shape:?}: {name} takes {us} us, the best {best} us");
    }
}
