//! Deleting or weakening any synchronization instruction of a correct kernel is found.

use crate::common::*;
use oxigemm_sim::*;

const TILE: &str = include_str!("../ptx/tile_256x128_cluster2.ptx");
const SMALL_TILE: &str = include_str!("../ptx/tile_128x64.ptx");
const ROWS_SPLIT: &str = include_str!("../ptx/rows_8_split4.ptx");

/// The fault that some schedule finds, or a note that the bits changed.
fn verdict(make: &dyn Fn(&str) -> Setup, text: &str, want: &[u16]) -> Option<String> {
    if let Err(e) = Module::parse(text) {
        panic!("a mutant does not parse: {e}");
    }
    for options in schedules().into_iter().take(4) {
        // What only hardware promises is to be found as well.
        match make(text).run(&Options { strict: true, ..options }) {
            Err(f) => return Some(format!("{:?}", f.kind)),
            Ok(got) if got != want => return Some("wrong result".into()),
            Ok(_) => {}
        }
    }
    None
}

fn score(name: &str, text: &str, make: &dyn Fn(&str) -> Setup, want: &[u16], redundant: &[&str]) {
    let all = mutants(text);
    let mut survivors = Vec::new();
    for mutant in &all {
        match verdict(make, &mutant.text, want) {
            Some(found) => println!("{name}: line {}: {} -> {found}", mutant.line, mutant.what),
            None => survivors.push(format!("line {}: {}", mutant.line, mutant.what)),
        }
    }
    println!("{name}: {} of {} found", all.len() - survivors.len(), all.len());
    let unexplained: Vec<_> = survivors.iter().filter(|s| !redundant.iter().any(|r| s.contains(r))).collect();
    assert!(unexplained.is_empty(), "{name}: not found: {unexplained:#?}");
    assert!(all.len() > 10, "{name}: only {} mutants", all.len());
}

#[test]
fn mutants_of_the_cluster_tile_kernel() {
    let p = Problem::new(300, 256, 512);
    let want = p.reference(1);
    // The producer's last waits keep the CTA alive until its peer has released every stage; the wait for
    // the newest stage covers those for the two before it.
    let redundant = ["line 45: does not wait", "line 48: does not wait"];
    score("tile cluster", TILE, &|t| tile(t, &p, 256, 128, 2, 217_200, 2), &want, &redundant);
}

#[test]
fn mutants_of_the_small_tile_kernel() {
    let p = Problem::new(130, 128, 512);
    let want = p.reference(1);
    score("tile", SMALL_TILE, &|t| tile(t, &p, 128, 64, 1, 67_680, 2), &want, &[]);
}

#[test]
fn mutants_of_the_few_rows_kernel() {
    let p = Problem::new(5, 64, 4096);
    let want = p.reference(4);
    score("rows", ROWS_SPLIT, &|t| rows(t, &p, 8, 4, 44_992), &want, &[]);
}
