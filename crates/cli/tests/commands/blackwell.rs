//! Commands on a simulated GPU of sm_100a.

use std::process::Command;

use super::{json, oxigemm, refused, stdout};

const DEVICE: [&str; 2] = ["--device", "sim:sm_100a"];

/// Dense and m-grouped operations, most of which only this tensor core multiplies.
const OPERANDS: [&str; 8] = ["mxfp8", "mxfp4", "nvfp4", "fp8-fp4", "fp4-fp8", "fp8-ue8m0", "fp8", "bf16"];

/// Every operation with a small case.
fn forms() -> Vec<Vec<String>> {
    let words = |text: String| text.split(' ').map(str::to_owned).collect();
    let mut forms: Vec<Vec<String>> = Vec::new();
    for op in OPERANDS {
        forms.push(words(format!("--op {op} -m 40 -n 48 -k 256")));
        for rows in ["contiguous", "masked"] {
            forms.push(words(format!("--op {op}-{rows} --rows 20,0,9 -m 10 -n 48 -k 128")));
        }
    }
    for op in ["mxfp8", "mxfp4", "fp8", "bf16"] {
        forms.push(words(format!("--op {op}-kgrouped --ks 64,0,200 -m 40 -n 48 -k 64")));
    }
    for op in ["mxfp8", "fp8"] {
        forms.push(words(format!("--op {op}-kgrouped --layout tn --ks 64,0,200 -m 40 -n 48 -k 64")));
    }
    for op in ["fp8-batched", "bf16-batched", "bf16-summed"] {
        forms.push(words(format!("--op {op} --groups 3 -m 20 -n 40 -k 128")));
    }
    for op in ["mxfp8", "mxfp4", "fp8-fp4", "fp8-ue8m0", "bf16"] {
        forms.push(words(format!("--op {op} --epilogue gelu,bias -m 20 -n 40 -k 128")));
    }
    forms.push(words("--op mxfp8-contiguous --epilogue swiglu,fp8 --rows 20,0,9 -m 10 -n 256 -k 128".into()));
    for layout in ["nn", "tn", "tt"] {
        forms.push(words(format!("--op mxfp4 --layout {layout} -m 32 -n 64 -k 128")));
        forms.push(words(format!("--op bf16 --layout {layout} -m 32 -n 64 -k 128")));
    }
    forms
}

/// The arguments of a command for a form.
fn with<'a>(command: &'a str, more: &[&'a str], form: &'a [String]) -> Vec<&'a str> {
    let form = form.iter().map(String::as_str);
    [command, "--json"].into_iter().chain(more.iter().copied()).chain(form).collect()
}

#[test]
fn gemms_of_every_form_are_right() {
    for form in forms() {
        let found = &json(&with("gemm", &DEVICE, &form))[0];
        assert!(found["right"] == true && found["nothing_outside_written"] == true, "{form:?}: {found}");
        assert!(found["plan"].as_str().is_some_and(|plan| plan.starts_with("sm100_")), "{form:?}: {found}");
        assert_eq!(found["simulated"]["hazards"], true, "{found}");
    }
}

#[test]
fn plans_of_every_form_are_shown_with_their_tensor_memory() {
    for form in forms() {
        let output = Command::new(env!("CARGO_BIN_EXE_oxigemm"))
            .args(with("inspect", &["--arch", "sm_100a"], &form))
            // Every kernel is assembled by another test.
            .env("OXIGEMM_PTXAS", "none")
            .output()
            .expect("the program starts");
        let found: &serde_json::Value = &serde_json::from_slice(&output.stdout).expect("JSON");
        let parts = found["tensor_memory"].as_array().unwrap_or_else(|| panic!("{form:?}: {found}"));
        let columns: u64 = parts.iter().filter_map(|part| part["columns"].as_u64()).sum();
        assert!(columns.is_power_of_two() && (32..=512).contains(&columns), "{form:?}: {found}");
    }
    let text = stdout(&oxigemm(&[
        "inspect", "--arch", "sm_100a", "--op", "nvfp4", "-m", "40", "-n", "48", "-k", "256",
    ]));
    assert!(text.contains("scales of A") && text.contains("##"), "{text}");
}

#[test]
fn what_has_no_kernel_or_no_time_is_refused_by_name() {
    let size = ["-m", "20", "-n", "64", "-k", "128"];
    let bench = [&["bench"][..], &DEVICE, &["--suite", "models"]].concat();
    let (status, message) = refused(&bench);
    assert!(status == 2 && message.contains("bench needs a GPU") && message.contains("inspect"), "{message}");
    let stream_k = ["gemm", "--choice", "sm90_fp8_persistent_stream_k_256x128_s3_c1x1"];
    let (status, message) = refused(&[&stream_k[..], &DEVICE, &size].concat());
    assert!(status == 2 && message.contains("sm90_fp8_persistent_stream_k"), "{message}");
    let fp4 = ["gemm", "--device", "sim", "--op", "mxfp4"];
    let (status, message) = refused(&[&fp4[..], &size].concat());
    assert!(status == 2 && message.contains("the tensor core of sm_90a has no FP4"), "{message}");
    let nvfp4 = ["gemm", "--op", "nvfp4", "--epilogue", "gelu"];
    assert!(refused(&[&nvfp4[..], &DEVICE, &size].concat()).1.contains("nvfp4 has no --epilogue"));
}

/// Checks of operands that only this architecture multiplies, and the same by name where they are not there.
#[test]
fn the_suite_runs_the_kernels_of_the_architecture() {
    let found = json(&[&["verify", "--quick", "--json", "--filter", "mxfp4: "][..], &DEVICE].concat());
    let (summary, checks) = found.split_last().expect("a line for each check");
    assert!(summary["arch"] == "sm_100a" && summary["failed"] == 0, "{summary}");
    for name in ["mxfp4: random shapes and layouts", "mxfp4: m-grouped: random groups"] {
        assert!(
            checks.iter().any(|check| check["check"] == name && check["result"] == "ok"),
            "{name}: {checks:?}"
        );
    }
    let hopper =
        oxigemm(&["verify", "--quick", "--json", "--device", "sim:sm_90a", "--filter", "mxfp4 GEMMs"]);
    let text = stdout(&hopper);
    let summary = text.lines().last().expect("a summary");
    assert!(summary.contains("mxfp4 GEMMs"), "{summary}");
    assert!(!hopper.status.success(), "nothing was checked");
}

#[test]
fn a_timeline_has_the_tensor_core_and_tensor_memory() {
    let dir = tempfile::tempdir().expect("a place for a file");
    let file = dir.path().join("t.json");
    let path = file.to_str().expect("a path of plain characters");
    let size = ["-m", "160", "-n", "136", "-k", "640", "--num-sms", "2", "--out", path];
    let choice = ["--op", "mxfp8", "--choice", "sm100_mxfp8_persistent_nt_128x128_s5_c1x1"];
    let found = &json(&[&["trace", "--json"][..], &DEVICE, &choice, &size].concat())[0];
    assert_eq!(found["right"], true, "{found}");
    let text = std::fs::read_to_string(&file).expect("the timeline was written");
    let trace: serde_json::Value = serde_json::from_str(&text).expect("a timeline in JSON");
    let events = trace["traceEvents"].as_array().expect("a list of events");
    super::simulating::timeline_is_valid(events);
    // Bars of a track: what each is, with its beginning and its end.
    let bars = |track: &str| -> Vec<(String, String, u64, u64)> {
        let of = |phase: &str| {
            events.iter().filter(|event| event["name"] == track && event["ph"] == phase).collect::<Vec<_>>()
        };
        let text =
            |event: &serde_json::Value, key: &str| event["args"][key].as_str().unwrap_or_default().to_owned();
        let time = |event: &serde_json::Value| event["ts"].as_u64().expect("a time");
        let pairs = of("b").into_iter().zip(of("e"));
        pairs.map(|(b, e)| (text(b, "opcode"), text(b, "detail"), time(b), time(e))).collect()
    };
    let count = |bars: &[(String, String, u64, u64)], opcode: &str| {
        bars.iter().filter(|(found, ..)| found.starts_with(opcode)).count()
    };
    let core = bars("tensor core");
    // Four tiles of five stages: four MMAs each, and a copy of the scales of A and of B at least.
    assert_eq!(count(&core, "tcgen05.mma"), 4 * 5 * 4, "{core:?}");
    assert!(count(&core, "tcgen05.cp") >= 4 * 5 * 2 && count(&core, "tcgen05.commit") >= 4 * 5, "{core:?}");
    let memory = bars("tensor memory");
    assert!(count(&memory, "tcgen05.ld") > 16, "{memory:?}");
    let allocated: Vec<_> = memory.iter().filter(|(_, detail, ..)| detail.ends_with("allocated")).collect();
    assert_eq!(allocated.len(), 2, "one of each CTA: {allocated:?}");
    for (opcode, detail, start, end) in &memory {
        assert!(
            opcode.starts_with("tcgen05.") && detail.contains("columns") && start <= end,
            "{opcode} {detail}"
        );
    }
    let longest = allocated.iter().map(|(.., start, end)| end - start).max().unwrap_or(0);
    assert!(
        core.iter().all(|(.., start, end)| end - start <= longest),
        "columns stay allocated while MMAs write them"
    );
}

/// Blackwell Ultra: the same kernels and the same bits, for another target.
#[test]
fn sm_103a_runs_the_kernels_of_sm_100a() {
    let size = ["--op", "mxfp4", "-m", "40", "-n", "48", "-k", "256"];
    let found = &json(&[&["gemm", "--json", "--device", "sim:sm_103a"][..], &size].concat())[0];
    assert!(
        found["right"] == true && found["plan"].as_str().is_some_and(|plan| plan.starts_with("sm100_")),
        "{found}"
    );
    let ptx = |arch: &str| stdout(&oxigemm(&[&["inspect", "--ptx", "--arch", arch][..], &size].concat()));
    let (text, other) = (ptx("sm_100a"), ptx("sm_103a"));
    assert!(other.contains(".target sm_103a\n"));
    let body = |text: &str| text.split_once(".address_size").map(|(_, body)| body.to_owned());
    assert_eq!(body(&text), body(&other));
    let listed = &json(&["prebuild", "--list", "--json", "--arch", "sm_103a"])[0];
    assert!(
        listed["arch"] == "sm_103a" && listed["kernels"].as_array().is_some_and(|all| all.len() > 100),
        "{listed}"
    );
    assert!(stdout(&oxigemm(&["devices"])).contains("sm_103a"));
}
