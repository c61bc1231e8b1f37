//! Runs kernels of the corpus by parts of their names, without the rest of the library:
//! `cargo run -p oxigemm-oracle --example oracle -- [--schedules N] [--no-hazards | --mutants | --order] [NAME ...]`. `--coverage` prints the
//! table of instruction forms.

use std::time::Instant;

use oxigemm_oracle::{Unordered, schedules};
use oxigemm_sim::Options;

fn main() -> Result<(), String> {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    let mut count = 10;
    if let Some(at) = names.iter().position(|name| name == "--schedules") {
        count = names.get(at + 1).and_then(|count| count.parse().ok()).ok_or("--schedules takes a number")?;
        names.drain(at..at + 2);
    }
    let mut flag =
        |text: &str| names.iter().position(|name| name == text).map(|at| names.remove(at)).is_some();
    let (mutants, hazards, ordered) = (flag("--mutants"), !flag("--no-hazards"), flag("--order"));
    let folder = oxigemm_oracle::folder().ok_or("there is no corpus here")?;
    if names == ["--coverage"] {
        print!("{}", oxigemm_oracle::coverage(&oxigemm_oracle::corpus(&folder)?));
        return Ok(());
    }
    let schedules: Vec<Options> =
        schedules().into_iter().take(count).map(|options| Options { hazards, ..options }).collect();
    let (mut right, mut all) = (0, 0);
    for kernel in oxigemm_oracle::corpus(&folder)? {
        if !names.is_empty() && !names.iter().any(|name| kernel.name.contains(name.as_str())) {
            continue;
        }
        let started = Instant::now();
        if ordered {
            let list = oxigemm_oracle::disorder_of(&kernel).map_err(|failure| failure.to_string())?;
            all += 1;
            right += usize::from(list.is_empty());
            let seconds = started.elapsed().as_secs_f64();
            println!("{}: {} ({seconds:.1} s)", kernel.name, order(Some(&list)));
            continue;
        }
        if mutants {
            let score =
                oxigemm_oracle::score(&kernel, 1, |_, _| {}).map_err(|failure| failure.to_string())?;
            let of = score.count() + score.survivors.len();
            println!(
                "{}: {} of {of} ({} more redundant), {:?}, {} not executed ({:.1} s)",
                kernel.name,
                score.count(),
                score.redundant(),
                score.found,
                score.not_executed,
                started.elapsed().as_secs_f64()
            );
            println!("{}", score.row(&kernel.name));
            for s in score.survivors.iter().filter(|s| !s.redundant()) {
                let why = s.why.map_or_else(|| order(s.unordered.as_deref()), str::to_owned);
                println!("    line {}: {}; {why}", s.line, s.what);
            }
            println!(
                "    of {} found, {} are disputed: {:?}",
                score.asked,
                score.disputed.len(),
                score.disputed
            );
            right += score.count();
            all += of;
            continue;
        }
        let outcome = oxigemm_oracle::check(&kernel, &schedules, 1);
        all += 1;
        right += usize::from(outcome.is_ok());
        let note = outcome.unwrap_or_else(|failure| format!("FAILED, {failure}"));
        println!("{}: {note} ({:.1} s)", kernel.name, started.elapsed().as_secs_f64());
    }
    println!("{right} of {all}");
    Ok(())
}

/// What is not in order, in words.
fn order(unordered: Option<&[Unordered]>) -> String {
    match unordered {
        None => "order is not all that it does".to_owned(),
        Some([]) => "everything is in order".to_owned(),
        Some(list) => {
            let pairs = list.iter().map(|u| format!("{} and {} ({})", u.first, u.second, u.what));
            format!("not in order: lines {}", pairs.collect::<Vec<_>>().join(", "))
        }
    }
}
