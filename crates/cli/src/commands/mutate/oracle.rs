//! Mutants of kernels that other compilers have written.

use std::thread::available_parallelism;

use oxigemm_oracle::{Score, Tally};
use serde_json::{Value, json};

use super::BAR;
use crate::output::{print_json, print_line, progress};
use crate::{Common, Outcome};

/// Kernels of several kinds: every way that the corpus has to synchronize.
const CHOSEN: [&str; 16] = [
    "gluon_bf16_2cta_m128",
    "gluon_bf16_2cta_multicast",
    "gluon_bf16_left_tmem",
    "gluon_clc",
    "gluon_copy_f32_swizzle64",
    "gluon_gather_scatter",
    "gluon_mxfp8",
    "gluon_nvfp4",
    "gluon_tmem_16x256b_32x32b_64x64",
    "sm100_bf16_host_maps_ws",
    "sm100_f16_m64",
    "sm100_mxfp8",
    "sm120_mxfp8",
    "sm90_attention_maps",
    "sm90_bf16_device_maps",
    "sm90_e4m3_device_maps_ws",
];

/// Runs the command for kernels of the corpus.
pub(super) fn run(common: &Common, name: Option<&str>) -> Outcome {
    let folder = oxigemm_oracle::folder().ok_or("crates/oracle/ptx is not here: set OXIGEMM_ORACLES")?;
    let mut kernels = oxigemm_oracle::corpus(&folder)?;
    kernels.retain(|kernel| match name {
        Some(name) => kernel.name == name,
        None => CHOSEN.contains(&kernel.name.as_str()),
    });
    if kernels.is_empty() {
        return Err(format!("{} has no kernel {}", folder.display(), name.unwrap_or_default()).into());
    }
    let threads = available_parallelism().map_or(1, usize::from);
    let (mut explained, mut core, mut all) = (true, Tally::default(), Tally::default());
    for kernel in &kernels {
        let bar = progress(0);
        bar.set_message(kernel.name.clone());
        let score = oxigemm_oracle::score(kernel, threads, |_, total| {
            bar.set_length(total as u64);
            bar.inc(1);
        })?;
        bar.finish_and_clear();
        explained &= print(common, &kernel.name, &score, &[]);
        core.add(score.tally(|kind| kind.is_core()));
        all.add(score.tally(|_| true));
    }
    if common.json {
        print_json(&json!({ "core": counts(core), "all": counts(all) }));
    } else {
        let kinds = "alloc, commit, wait, fence, parity, count, descriptor";
        print_line(&format!("{kinds}: {}", words(core)));
        print_line(&format!("all kinds: {}", words(all)));
    }
    Ok(explained && core.share() >= BAR)
}

pub(super) fn counts(tally: Tally) -> Value {
    json!({ "mutants": tally.mutants, "found": tally.found, "redundant": tally.redundant })
}

pub(super) fn words(tally: Tally) -> String {
    let Tally { mutants, found, redundant } = tally;
    let percent = 100.0 * tally.share();
    format!(
        "{found} of {} mutants found ({percent:.1}%), {redundant} more are redundant",
        mutants - redundant
    )
}

/// Prints a score. Gives whether every survivor is redundant by proof or explained, and no found one is called
/// redundant. `sources` has where each line of the PTX comes from, if that is known.
pub(super) fn print(common: &Common, name: &str, score: &Score, sources: &[String]) -> bool {
    let all = score.tally(|_| true);
    if common.json {
        let survivors: Vec<_> = score
            .survivors
            .iter()
            .map(|s| {
                json!({
                    "ptx_line": s.line, "what": s.what, "kind": s.kind.name(),
                    "redundant": s.redundant(), "why": s.why,
                })
            })
            .collect();
        let kinds: serde_json::Map<_, _> =
            score.kinds.iter().map(|(kind, tally)| (kind.name().to_owned(), counts(*tally))).collect();
        print_json(&json!({
            "kernel": name, "row": score.row(name), "mutants": all.mutants, "found": all.found, "redundant": all.redundant,
            "explained": score.explained(), "not_executed": score.not_executed, "faults": score.found,
            "kinds": kinds, "survivors": survivors, "disputed": score.disputed,
        }));
    } else {
        print_line(&format!("{name}: {}", words(all)));
        let faults: Vec<String> = score.found.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        print_line(&format!("  by {}", faults.join(", ")));
        for (kind, tally) in &score.kinds {
            print_line(&format!("  {}: {}", kind.name(), words(*tally)));
        }
        if score.not_executed > 0 {
            print_line(&format!(
                "  {} are of instructions that the launch does not execute",
                score.not_executed
            ));
        }
        for s in &score.survivors {
            let why = match s.why {
                _ if s.redundant() => "redundant: every access is in order without it".to_owned(),
                Some(why) => format!("explained: {why}"),
                None => "NOT EXPLAINED".to_owned(),
            };
            let source =
                sources.get(s.line as usize - 1).map_or(String::new(), |source| format!("{source}, "));
            print_line(&format!("  survives: {source}PTX line {}: {}; {why}", s.line, s.what));
        }
        print_line(&format!("  {}", score.row(name)));
        for (line, what) in &score.disputed {
            print_line(&format!("  found, though every access is in order: PTX line {line}: {what}"));
        }
    }
    score.disputed.is_empty() && score.redundant() + score.explained() == score.survivors.len()
}
