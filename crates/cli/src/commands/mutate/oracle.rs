//! Mutants of kernels that other compilers have written.

use std::thread::available_parallelism;

use oxigemm_oracle::{Kernel, Score};
use serde_json::json;

use super::{BAR, percent};
use crate::output::{print_json, print_line, progress};
use crate::{Common, Outcome};

/// Kernels of several kinds: every way that the corpus has to synchronize.
const CHOSEN: [&str; 10] = [
    "gluon_bf16_2cta_m128",
    "gluon_bf16_left_tmem",
    "gluon_copy_f32_swizzle64",
    "gluon_mxfp8",
    "gluon_tmem_16x256b_32x32b_64x64",
    "sm100_bf16_host_maps_ws",
    "sm100_f16_m64",
    "sm100_mxfp8",
    "sm90_attention_maps_ws",
    "sm90_bf16_device_maps",
];

/// Mutants that may survive: in which kernels, what is done, and why nothing is lost without it.
struct Redundant {
    kernels: &'static [&'static str],
    what: &'static str,
    why: &'static str,
}

const REDUNDANT: &[Redundant] = &[];

fn why(kernel: &Kernel, what: &str) -> Option<&'static str> {
    let known = |r: &&Redundant| r.kernels.contains(&kernel.name.as_str()) && what.contains(r.what);
    REDUNDANT.iter().find(known).map(|known| known.why)
}

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
    let (mut right, mut all, mut found) = (true, 0, 0);
    for kernel in &kernels {
        let bar = progress(0);
        bar.set_message(kernel.name.clone());
        let score = oxigemm_oracle::score(kernel, threads, |_, total| {
            bar.set_length(total as u64);
            bar.inc(1);
        })?;
        bar.finish_and_clear();
        right &= print(common, kernel, &score);
        found += score.count();
        all += score.count() + score.survivors.len();
    }
    if kernels.len() > 1 {
        if common.json {
            print_json(&json!({ "mutants": all, "found": found }));
        } else {
            print_line(&format!("{found} of {all} mutants found ({:.1}%)", percent(found, all)));
        }
    }
    Ok(right && found as f64 >= BAR * all as f64)
}

/// Prints a score. Gives whether the reason of every survivor is known.
fn print(common: &Common, kernel: &Kernel, score: &Score) -> bool {
    let (found, all) = (score.count(), score.count() + score.survivors.len());
    let survivors: Vec<_> =
        score.survivors.iter().map(|(line, what)| (line, what, why(kernel, what))).collect();
    if common.json {
        let survivors: Vec<_> = survivors
            .iter()
            .map(|(line, what, why)| json!({ "ptx_line": line, "what": what, "why": why }))
            .collect();
        print_json(&json!({
            "kernel": kernel.name, "mutants": all, "found": found, "survivors": survivors,
            "not_executed": score.not_executed, "kinds": score.found,
        }));
    } else {
        print_line(&format!("{}: {found} of {all} mutants found ({:.1}%)", kernel.name, percent(found, all)));
        let kinds: Vec<String> = score.found.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        print_line(&format!("  by {}", kinds.join(", ")));
        if score.not_executed > 0 {
            print_line(&format!("  {} are of instructions that the launch does not execute", score.not_executed));
        }
        for (line, what, why) in &survivors {
            let why = why.map_or("NOT EXPLAINED".to_owned(), |why| format!("redundant: {why}"));
            print_line(&format!("  survives: PTX line {line}: {what}; {why}"));
        }
    }
    survivors.iter().all(|(_, _, why)| why.is_some())
}
