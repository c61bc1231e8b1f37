//! The command line on a machine that may have no GPU.

mod blackwell;
mod computing;
#[cfg(unix)]
mod hostile;
mod simulating;
mod tuning;

use std::process::{Command, Output};

use oxigemm_kernels::{Arch, KernelId};
use serde_json::Value;

fn oxigemm(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_oxigemm")).args(arguments).output().expect("the program starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("the output is text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("messages are text")
}

/// Runs a command that must succeed, and reads its JSON lines.
fn json(arguments: &[&str]) -> Vec<Value> {
    let output = oxigemm(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    stdout(&output).lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Runs a command that must fail, and gives its exit status and message.
fn refused(arguments: &[&str]) -> (i32, String) {
    let output = oxigemm(arguments);
    assert!(!output.status.success(), "{arguments:?} succeeded: {}", stdout(&output));
    (output.status.code().expect("it was not killed"), stderr(&output))
}

#[test]
fn help_names_every_command_and_the_common_flags() {
    let help = stdout(&oxigemm(&["--help"]));
    for word in [
        "devices", "gemm", "quantize", "logits", "hc", "verify", "bench", "inspect", "tune", "prebuild",
        "trace", "mutate", "sim", "--device", "--json",
    ] {
        assert!(help.contains(word), "{word} in\n{help}");
    }
    for command in [
        "devices", "gemm", "quantize", "logits", "hc", "verify", "bench", "inspect", "tune", "prebuild",
        "trace", "mutate", "sim",
    ] {
        assert!(oxigemm(&[command, "--help"]).status.success(), "{command}");
    }
    assert_eq!(refused(&[]).0, 2, "without a command there is help, and no success");
}

#[test]
fn devices_are_shown_or_why_there_are_none() {
    let text = stdout(&oxigemm(&["devices"]));
    assert!(text.starts_with("cpu "), "{text}");
    assert!(text.contains("\nsim ") && text.contains("\ncuda"), "{text}");
    let found = &json(&["devices", "--json"])[0];
    let gpus = found["cuda"].as_array().expect("a list of GPUs");
    assert_eq!(gpus.is_empty(), found["why_no_cuda"].is_string(), "{found}");
}

#[test]
fn the_closed_set_is_listed() {
    let text = stdout(&oxigemm(&["prebuild", "--list"]));
    let names: Vec<&str> = text.lines().collect();
    for (element, most) in [("fp8", 82), ("bf16", 54), ("fp16", 54)] {
        let of = names.iter().filter(|name| name.starts_with(&format!("sm90_{element}_gemm_"))).count();
        assert!(of > 5 && of <= most, "{of} of {element}: {text}");
    }
    for (family, count) in
        [("sm90_fp8_mqa_logits_", 27), ("sm90_fp8_paged_mqa_logits_", 27), ("sm90_tf32_hc_prenorm_", 4)]
    {
        assert_eq!(names.iter().filter(|name| name.starts_with(family)).count(), count, "{family}: {text}");
    }
    assert!(names.len() <= 400, "{text}");
    let listed = &json(&["prebuild", "--list", "--json"])[0];
    assert_eq!(listed["kernels"].as_array().map(Vec::len), Some(names.len()));
    assert_eq!(listed["arch"], "sm_90a");
}

#[test]
fn the_suite_runs_kernels_in_the_simulator() {
    let lines =
        json(&["verify", "--quick", "--device", "sim", "--json", "--filter", "fp8_gemm_split_k_8x64"]);
    assert_eq!((&lines[0]["result"], &lines[1]["passed"]), (&"ok".into(), &1.into()), "{lines:?}");
    let output = oxigemm(&["verify", "--quick", "--device", "sim", "--filter", "programmatic"]);
    assert!(stdout(&output).contains("skipped  programmatic launches: this needs a GPU"));
}

#[test]
fn a_comparison_with_the_simulator_needs_a_gpu() {
    for device in ["sim", "cpu"] {
        let (code, text) = refused(&["verify", "--compare", "sim", "--device", device]);
        assert_eq!(code, 2);
        assert!(text.contains("on a GPU of sm_90a or sm_100a or sm_103a") && text.contains(device), "{text}");
    }
    assert!(refused(&["verify", "--compare", "cpu"]).1.contains("possible values: sim"));
}

#[test]
fn only_kernels_of_the_closed_set_have_mutants() {
    assert!(refused(&["mutate", "--kernel", "gemm"]).1.contains("prebuild --list"));
    assert!(refused(&["mutate", "--device", "cpu"]).1.contains("only the simulator"));
}

#[test]
fn the_suite_passes_on_the_cpu_and_says_what_it_skipped() {
    // A ninth, as it is not optimized here: whichever checks these are.
    let output = oxigemm(&["verify", "--quick", "--device", "cpu", "--part", "1/9"]);
    let text = stdout(&output);
    assert!(output.status.success(), "{text}");
    let last = text.lines().last().unwrap_or_default();
    assert!(last.contains(" passed, 0 failed") && last.contains("skipped"), "{text}");
    for (result, what) in [("ok ", "random shapes and layouts"), ("skipped ", ": this needs a GPU")] {
        assert!(text.lines().any(|line| line.starts_with(result) && line.contains(what)), "{text}");
    }

    let of_zeros = ["verify", "--quick", "--device", "cpu", "--json", "--filter", "sizes of zero"];
    let lines = json(&of_zeros);
    let names: Vec<_> = lines.iter().filter_map(|line| line["check"].as_str()).collect();
    let expected = [
        "sizes of zero",
        "fp8-1d1d: sizes of zero",
        "bf16: sizes of zero",
        "fp16: sizes of zero",
        "fp8-1x32: sizes of zero",
        "fp8-32x32: sizes of zero",
        "fp8-ue8m0: sizes of zero",
        "mxfp8: sizes of zero",
        "mxfp4: sizes of zero",
        "nvfp4: sizes of zero",
        "fp8-fp4: sizes of zero",
        "fp4-fp8: sizes of zero",
        "tf32: sizes of zero",
        "mqa logits: sizes of zero",
    ];
    assert_eq!(names, expected);
    let (last, checks) = lines.split_last().expect("a line of sums");
    assert!(checks.iter().all(|line| line["result"] == "ok"), "{lines:?}");
    assert_eq!(last["passed"], expected.len());

    for (part, first) in [("1/2", 0), ("2/2", 1)] {
        let expected: Vec<_> = expected.into_iter().skip(first).step_by(2).collect();
        let lines = json(&[&of_zeros[..], &["--part", part]].concat());
        let names: Vec<_> = lines.iter().filter_map(|line| line["check"].as_str()).collect();
        assert_eq!(names, expected);
    }
}

#[test]
fn nothing_but_skipped_checks_is_no_success() {
    let output = oxigemm(&["verify", "--device", "cpu", "--filter", "raw pointers"]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
}

#[test]
fn a_plan_is_shown_without_a_gpu() {
    let found = &json(&["inspect", "--device", "cpu", "--json", "-m", "1", "-n", "7168", "-k", "2048"])[0];
    assert!(found["choice"].as_str().is_some_and(|name| name.starts_with("sm90_fp8_split_k_")), "{found}");
    assert!(found["why"].as_str().is_some_and(|why| why.contains("candidates")), "{found}");
    let candidates = found["candidates"].as_array().expect("a list of candidates");
    assert_eq!(candidates[0]["choice"], found["choice"]);
    let best = found["estimate"]["us"].as_f64().expect("a time");
    assert!(candidates.iter().all(|candidate| candidate["estimate"]["us"].as_f64() >= Some(best)));

    let choice = candidates[1]["choice"].as_str().expect("a name");
    let other = &json(&["inspect", "--json", "-m", "1", "-n", "7168", "-k", "2048", "--choice", choice])[0];
    assert_eq!((&other["choice"], &other["why"]), (&choice.into(), &"requested by the caller".into()));

    let ptx = stdout(&oxigemm(&["inspect", "-m", "4096", "-n", "7168", "-k", "2048", "--ptx"]));
    assert!(ptx.contains(".entry sm90_fp8_gemm_persistent_"), "{}", &ptx[..ptx.len().min(400)]);
}

#[test]
fn a_sweep_is_replayed_without_a_gpu() {
    let dir = tempfile::tempdir().expect("a place for a file");
    let file = dir.path().join("sweep.jsonl");
    let line = r#"{"m":1,"n":576,"k":7168,"choice":"sm90_fp8_split_k_8x64_k4_s6","us":7.5,"anchor_us":11.2,"terms":{}}"#;
    std::fs::write(&file, format!("{line}\n")).expect("a file can be written");
    let path = file.to_str().expect("a path of plain characters");
    let found = &json(&["bench", "--replay", path, "--json"])[0][0];
    assert_eq!((&found["best"], &found["best_us"]), (&"sm90_fp8_split_k_8x64_k4_s6".into(), &7.5.into()));
    assert!(stdout(&oxigemm(&["bench", "--replay", path])).contains("plans reach"));
    let line = r#"{"case":"bias m8 n4096 k7168","choice":"sm90_fp8_split_k_fused_8x128_k2_s6","us":12.5,"estimate_us":12.0}"#;
    std::fs::write(&file, line).expect("a file can be written");
    let found = &json(&["bench", "--suite", "fused", "--replay", path, "--json"])[0][0];
    assert_eq!((&found["case"], &found["best_us"]), (&"bias m8 n4096 k7168".into(), &12.5.into()));
    std::fs::write(&file, line.replace("m8", "m9")).expect("a file can be written");
    assert!(refused(&["bench", "--suite", "fused", "--replay", path]).1.contains("no case of this suite"));
    std::fs::write(&file, "not a sweep").expect("a file can be written");
    assert!(refused(&["bench", "--replay", path]).1.contains("no line of a sweep"));
}

#[test]
fn bad_arguments_are_one_clear_sentence() {
    let gemm = |extra: &[&'static str]| [&["gemm", "-m", "1", "-n", "1", "-k", "1"], extra].concat();
    for (arguments, words) in [
        (gemm(&["--device", "sim:late"]), "eager, lazy or the seed"),
        (gemm(&["--device", "tpu"]), "expected auto, cpu, sim, cuda or cuda:N"),
        (gemm(&["--device", "cuda:x"]), "the number of a GPU"),
        (gemm(&["--d-type", "e4m3"]), "expected bf16, f16 or f32"),
        (gemm(&["--d-type", "f16"]), "fp8 gives bf16 or f32, not f16"),
        (gemm(&["--op", "fp16", "--d-type", "bf16"]), "fp16 gives f16 or f32, not bf16"),
        (gemm(&["--layout", "ids"]), "fp8 has no such --layout: expected nt, nn, tn or tt"),
        (gemm(&["--epilogue", "silly"]), "silly is none of relu, relu2, gelu"),
        (
            gemm(&["--epilogue", "relu", "--op", "bf16-batched"]),
            "dense, m-grouped contiguous and m-grouped masked GEMMs of bf16, fp16, fp8 and mx formats do",
        ),
        (
            gemm(&["--epilogue", "relu", "--e5m2", "a"]),
            "dense, m-grouped contiguous and m-grouped masked GEMMs of bf16, fp16, fp8 and mx formats do",
        ),
        (gemm(&["--epilogue", "relu", "--layout", "nn"]), "expected nt"),
        (gemm(&["--epilogue", "relu", "--op", "fp16", "--layout", "tn"]), "expected nt"),
        (gemm(&["--op", "bf16", "--layout", "ids"]), "expected nt, nn, tn or tt"),
        (gemm(&["--op", "bf16", "--layout", "mn"]), "expected nt, nn, tn or tt, or ids or ends"),
        (gemm(&["--op", "bf16-masked", "--layout", "tn"]), "expected nt or nn, and ids or ends"),
        (gemm(&["--op", "bf16-masked", "--layout", "nt,nn"]), "--layout names the same twice"),
        (gemm(&["--op", "bf16-batched", "--layout", "ids"]), "expected nt or nn"),
        (
            gemm(&["--device", "sim", "--op", "bf16", "--choice", "sm90_fp8_split_k_8x64_k4_s6"]),
            "expected a configuration for bf16 operands, A K-major and B K-major",
        ),
        (gemm(&["--choice", "best"]), "expected a name like"),
        (vec!["gemm", "-m", "1", "-n", "1"], "--k"),
        (vec!["gemm", "-m", "-1", "-n", "1", "-k", "1"], "-1"),
        (vec!["bench", "--device", "cpu"], "bench needs a GPU"),
        (vec!["bench", "--runs", "0"], "--runs"),
        (vec!["verify", "--device", "cpu", "--filter", "nothing like it"], "no check contains"),
        (vec!["verify", "--device", "cpu", "--part", "3/2"], "such as 1/2"),
        (vec!["verify", "--device", "cpu", "--part", "0/0"], "such as 1/2"),
        (
            vec!["verify", "--device", "cpu", "--filter", "sizes of zero", "--part", "99/99"],
            "part 99/99 of 14 checks has none",
        ),
        (vec!["inspect", "-m", "0", "-n", "1", "-k", "1"], "at least 1"),
        (vec!["prebuild", "--arch", "sm_80", "--list"], "no kernel is written for sm_80"),
        (vec!["compile"], "unrecognized subcommand"),
    ] {
        let (status, message) = refused(&arguments);
        assert_eq!(status, 2, "{arguments:?}");
        assert!(message.contains(words), "{arguments:?}: {message}");
        assert!(!message.contains("panicked"), "{message}");
    }
}

/// One kernel that cannot be assembled does not hide the others.
#[test]
#[cfg(unix)]
fn every_kernel_that_cannot_be_assembled_is_named() {
    use std::os::unix::fs::PermissionsExt;

    let dir = tempfile::tempdir().expect("a directory");
    let assembler = dir.path().join("ptxas");
    let script =
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'release 13.0, V13.0.88' && exit\necho no >&2\nexit 255\n";
    std::fs::write(&assembler, script).expect("a script");
    std::fs::set_permissions(&assembler, PermissionsExt::from_mode(0o755)).expect("it may be run");
    let output = Command::new(env!("CARGO_BIN_EXE_oxigemm"))
        .args(["prebuild", "--out"])
        .arg(dir.path().join("built"))
        .env("OXIGEMM_PTXAS", &assembler)
        .output()
        .expect("the program starts");
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    let lines = || message.lines().map(|line| line.trim_start_matches("error: "));
    for name in KernelId::all(Arch::Sm90a).map(|kernel| format!("{} could not be assembled", kernel.name())) {
        assert!(lines().any(|line| line.starts_with(&name)), "{name}? {message}");
    }
}

/// Every kernel of the closed set becomes good code: no spill, no stack, no dropped `setmaxnreg`, no serialized
/// `wgmma`. The assembler's wrapper makes each of them an error.
#[test]
fn the_closed_set_is_built_ahead_where_there_is_an_assembler() {
    if oxigemm_cuda::assemble::Ptxas::find().is_none() {
        assert!(
            std::env::var_os("OXIGEMM_PTXAS").is_none_or(|path| path == "none"),
            "OXIGEMM_PTXAS does not name an assembler that runs"
        );
        eprintln!("no ptxas here: nothing was assembled");
        let (_, message) = refused(&["prebuild"]);
        assert!(message.contains("needs ptxas"), "{message}");
        return;
    }
    let dir = tempfile::tempdir().expect("a place for cubins");
    let out = dir.path().to_str().expect("a path of plain characters");
    let built = &json(&["prebuild", "--arch", "sm_90a,sm_100a", "--json", "--out", out])[0];
    let kernels = built["kernels"].as_array().expect("a list of kernels");
    let names = kernels.iter().map(|kernel| kernel["kernel"].as_str().expect("a name").to_owned());
    let all = Arch::ALL.into_iter().flat_map(KernelId::all).map(|kernel| kernel.name());
    assert!(names.eq(all), "{built}");
    assert!(kernels.iter().all(|kernel| kernel["cubin_bytes"].as_u64() > Some(1000)), "{built}");
    let entries =
        |target: &str| std::fs::read_dir(dir.path().join(target)).expect("the entries of a target").count();
    assert_eq!(Arch::ALL.map(|arch| entries(arch.name())).iter().sum::<usize>(), kernels.len());
    // The same text for the other chip: some kernels, as all of them take as long again.
    let some = &json(&[
        "prebuild",
        "--arch",
        "sm_103a",
        "--filter",
        "nvfp4_gemm_persistent",
        "--json",
        "--out",
        out,
    ])[0];
    let kernels = some["kernels"].as_array().expect("a list of kernels");
    assert!(kernels.len() >= 4 && entries("sm_103a") == kernels.len(), "{some}");
    assert!(refused(&["prebuild", "--filter", "nothing"]).1.contains("no kernel has a name with `nothing`"));
}
