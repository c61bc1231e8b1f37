//! Deleting or weakening any synchronization instruction of a correct kernel is found.

mod common;

use common::*;
use oxigemm_sim::*;

const TILE: &str = include_str!("ptx/tile_256x128_cluster2.ptx");
const SMALL_TILE: &str = include_str!("ptx/tile_128x64.ptx");
const ROWS_SPLIT: &str = include_str!("ptx/rows_8_split4.ptx");

/// Opcodes whose removal must be noticed.
const SYNCHRONIZATION: [&str; 13] = [
    "bar.sync",
    "barrier.cluster.arrive",
    "barrier.cluster.wait",
    "mbarrier.init",
    "mbarrier.arrive",
    "mbarrier.try_wait",
    "fence.mbarrier_init",
    "fence.proxy.async",
    "cp.async.bulk.commit_group",
    "cp.async.bulk.wait_group",
    "wgmma.fence",
    "wgmma.commit_group",
    "wgmma.wait_group",
];

/// One changed module and what was changed.
struct Mutant {
    what: String,
    text: String,
}

/// Every statement that synchronizes, deleted; waits made to succeed at once, expectations weakened.
fn mutants(text: &str) -> Vec<Mutant> {
    let mut list = Vec::new();
    let mut start = 0;
    for (end, _) in text.match_indices(';') {
        let statement = &text[start..end + 1];
        // A statement may follow a label.
        let body = statement.rsplit(':').next().filter(|_| !statement.contains("::")).unwrap_or(statement);
        let Some(opcode) = SYNCHRONIZATION.iter().find(|o| statement.contains(*o)) else {
            start = end + 1;
            continue;
        };
        let at = start + statement.find(opcode).unwrap_or(0);
        // Back to the guard, if there is one.
        let from = text[start..at].rfind('@').map_or(at, |g| start + g);
        let line = text[..at].matches('\n').count() + 1;
        let mut push = |kind: &str, new: &str| {
            let what = format!("line {line}: {kind} `{}`", &text[from..=end]);
            list.push(Mutant { what, text: format!("{}{new}{}", &text[..from], &text[end + 1..]) });
        };
        if *opcode == "mbarrier.try_wait" {
            let p = body[body.find(" p").unwrap_or(0)..].trim_start().split(',').next().unwrap_or("p3");
            push("no wait in", &format!("setp.eq.u32 {p}, 0, 0;"));
        } else {
            push("deleted", "");
        }
        if statement.contains("expect_tx") {
            let plain = text[from..=end].replace(".expect_tx", "");
            let cut = plain.rfind(',').unwrap_or(plain.len() - 1);
            push("no expectation in", &format!("{};", &plain[..cut]));
            let bytes =
                text[from..end].rsplit(',').next().and_then(|b| b.trim().parse::<u32>().ok()).unwrap_or(0);
            let cut = text[from..end].rfind(',').unwrap_or(0);
            push("16 bytes too many in", &format!("{}, {};", &text[from..from + cut], bytes + 16));
            push("16 bytes too few in", &format!("{}, {};", &text[from..from + cut], bytes - 16));
        }
        start = end + 1;
    }
    list
}

/// The fault that some schedule finds, or a note that the bits changed.
fn verdict(make: &dyn Fn(&str) -> Setup, text: &str, want: &[u16]) -> Option<String> {
    if let Err(e) = Module::parse(text) {
        panic!("a mutant does not parse: {e}");
    }
    for options in schedules().into_iter().take(4) {
        match make(text).run(&options) {
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
            Some(found) => println!("{name}: {} -> {found}", mutant.what),
            None => survivors.push(mutant.what.clone()),
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
    let redundant = ["line 45: no wait", "line 48: no wait"];
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
