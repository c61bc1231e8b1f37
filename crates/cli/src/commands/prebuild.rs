//! `oxigemm prebuild`: the closed set of kernels, listed or built ahead.

use std::path::PathBuf;
use std::time::Instant;

use oxigemm::Arch;
use oxigemm_cuda::assemble::Ptxas;
use oxigemm_cuda::{CubinCache, Key, PtxModule};
use oxigemm_kernels::{KernelId, Target};
use rayon::iter::Either;
use rayon::prelude::*;
use serde::Serialize;
use serde_json::json;

use crate::output::{Table, print_json, print_line, progress};
use crate::{Common, Failure, Outcome};

/// Arguments of `prebuild`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// List the kernels, build nothing.
    #[arg(long)]
    list: bool,
    /// The directory for the cubins: later `OXIGEMM_PREBUILT_DIR`. The user's cache where none is given.
    #[arg(long, value_name = "DIR", conflicts_with = "list")]
    out: Option<PathBuf>,
    /// Architectures, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = Arch::Sm90a.name(), value_name = "ARCH", value_parser = parse_target)]
    arch: Vec<(Arch, Target)>,
    /// Only kernels whose name contains this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
}

#[derive(Serialize)]
struct Built {
    kernel: String,
    arch: String,
    registers: u32,
    cubin_bytes: usize,
    ms: f64,
}

/// Runs the command.
pub fn run(common: &Common, args: &Args) -> Outcome {
    let of_target = |(arch, target): &(Arch, Target)| {
        let target = *target;
        KernelId::all(*arch).map(move |kernel| (kernel, target))
    };
    let is_wanted = |(kernel, _): &(KernelId, Target)| kernel.name().contains(&args.filter);
    let kernels: Vec<(KernelId, Target)> = args.arch.iter().flat_map(of_target).filter(is_wanted).collect();
    if kernels.is_empty() {
        return Err(format!("no kernel has a name with `{}`", args.filter).into());
    }
    if args.list {
        list(common, &args.arch, &kernels);
        return Ok(true);
    }
    let ptxas =
        Ptxas::find().ok_or("prebuild needs ptxas, and none was found: set OXIGEMM_PTXAS to its path")?;
    let cache = args.out.as_ref().map_or_else(CubinCache::user_default, CubinCache::at);
    let root = cache.root().ok_or("there is no directory to build into: give one with --out")?.to_owned();
    // What cannot be kept is not worth assembling.
    std::fs::create_dir_all(&root)
        .and_then(|()| tempfile::NamedTempFile::new_in(&root))
        .map_err(|error| format!("{} cannot be written to: {error}", root.display()))?;
    let bar = progress(kernels.len());
    let (built, faults): (Vec<Built>, Vec<String>) = kernels.par_iter().partition_map(|(kernel, target)| {
        let built = build(kernel, *target, &ptxas, &cache);
        bar.inc(1);
        built.map_or_else(|fault| Either::Right(fault.to_string()), Either::Left)
    });
    bar.finish_and_clear();
    if !faults.is_empty() {
        return Err(faults.join("\n").into());
    }
    if common.json {
        print_json(&json!({ "assembler": ptxas.version(), "directory": root, "kernels": built }));
    } else {
        let mut table = Table::new(["kernel", "registers", "bytes", "ms"]);
        for kernel in &built {
            table.row([
                kernel.kernel.clone(),
                kernel.registers.to_string(),
                kernel.cubin_bytes.to_string(),
                format!("{:.0}", kernel.ms),
            ]);
        }
        table.print();
        print_line(&format!("{} kernels by {} in {}", built.len(), ptxas.version(), root.display()));
    }
    Ok(true)
}

/// A target that has kernels, with its architecture.
pub(crate) fn parse_target(name: &str) -> Result<(Arch, Target), String> {
    let found = Arch::all_targets().find(|(_, target)| target.name() == name);
    found.ok_or_else(|| format!("no kernel is written for {name}: expected {}", target_names().join(", ")))
}

/// The names of all targets that have kernels.
pub(crate) fn target_names() -> Vec<&'static str> {
    Arch::all_targets().map(|(_, target)| target.name()).collect()
}

fn list(common: &Common, archs: &[(Arch, Target)], kernels: &[(KernelId, Target)]) {
    let names: Vec<String> = kernels.iter().map(|(kernel, _)| kernel.name()).collect();
    if common.json {
        let targets: Vec<&str> = archs.iter().map(|(_, target)| target.name()).collect();
        print_json(&json!({ "arch": targets.join(","), "kernels": names }));
    } else {
        names.iter().for_each(|name| print_line(name));
    }
}

fn build(kernel: &KernelId, target: Target, ptxas: &Ptxas, cache: &CubinCache) -> Result<Built, Failure> {
    let started = Instant::now();
    let name = kernel.name();
    let text = kernel.code_text_for(target)?;
    let ptx = PtxModule { name: &name, text: &text, arch: target.name() };
    // Assembled even where an older assembler's cubin is there: it then comes first.
    let assembled = ptxas.assemble(&ptx)?;
    if !cache.put(&Key::new(&ptx), ptxas.version(), &assembled.cubin) {
        return Err(format!("the cubin of {name} could not be written").into());
    }
    let entry = assembled.report.entries.iter().find(|entry| entry.name == name);
    Ok(Built {
        registers: entry.ok_or_else(|| format!("the cubin has no kernel {name}"))?.registers,
        cubin_bytes: assembled.cubin.len(),
        ms: started.elapsed().as_secs_f64() * 1e3,
        kernel: name,
        arch: target.name().to_owned(),
    })
}
