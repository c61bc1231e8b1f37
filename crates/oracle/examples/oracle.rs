//! Runs kernels of the corpus by parts of their names, without the rest of the library:
//! `cargo run -p oxigemm-oracle --example oracle -- [--schedules N] [--no-hazards | --mutants] [NAME ...]`. `--coverage` prints the
//! table of instruction forms.

use std::time::Instant;

use oxigemm_oracle::schedules;
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
    let (mutants, hazards) = (flag("--mutants"), !flag("--no-hazards"));
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
        if mutants {
            let score =
                oxigemm_oracle::score(&kernel, 1, |_, _| {}).map_err(|failure| failure.to_string())?;
            let of = score.count() + score.survivors.len();
            println!(
                "{}: {} of {of}, {:?}, {} not executed",
                kernel.name,
                score.count(),
                score.found,
                score.not_executed
            );
            score.survivors.iter().for_each(|(line, what)| println!("    line {line}: {what}"));
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
