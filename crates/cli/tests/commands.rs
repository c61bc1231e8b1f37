//! The command line on a machine that may have no GPU.

use std::process::{Command, Output};

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
        "devices", "gemm", "quantize", "logits", "verify", "bench", "inspect", "prebuild", "trace", "mutate",
        "sim", "--device", "--json",
    ] {
        assert!(help.contains(word), "{word} in\n{help}");
    }
    for command in [
        "devices", "gemm", "quantize", "logits", "verify", "bench", "inspect", "prebuild", "trace", "mutate",
        "sim",
    ] {
        assert!(oxigemm(&[command, "--help"]).status.success(), "{command}");
    }
    assert_eq!(refused(&[]).0, 2, "without a command there is help, and no success");
}

#[test]
fn logits_are_computed_checked_and_refused() {
    let prefill =
        ["logits", "--device", "sim", "--heads", "8", "--dim", "32", "--queries", "5", "--keys", "200"];
    let found = &json(&[&prefill[..], &["--form", "partial", "--json"]].concat())[0];
    assert_eq!(found["verdict"]["right"], true, "{found}");
    let paged =
        ["logits", "--device", "sim", "--heads", "8", "--dim", "32", "--paged", "100,0,33", "--page", "16"];
    let text = stdout(&oxigemm(&[&paged[..], &["--next", "2", "--logits", "bf16"]].concat()));
    assert!(text.contains("right"), "{text}");
    assert!(refused(&["logits", "--device", "sim", "--heads", "9"]).1.contains("`q` has the wrong shape"));
    assert!(refused(&["logits", "--device", "sim", "--page", "16"]).1.contains("--paged"));
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
    for (element, most) in [("fp8", 70), ("bf16", 40), ("fp16", 40)] {
        let of = names.iter().filter(|name| name.starts_with(&format!("{element}_gemm_"))).count();
        assert!(of > 5 && of <= most, "{of} of {element}: {text}");
    }
    for (family, count) in [("fp8_mqa_logits_", 12), ("fp8_paged_mqa_logits_", 12), ("tf32_hc_prenorm_", 4)] {
        assert_eq!(names.iter().filter(|name| name.starts_with(family)).count(), count, "{family}: {text}");
    }
    assert!(names.len() <= 270, "{text}");
    let listed = &json(&["prebuild", "--list", "--json"])[0];
    assert_eq!(listed["kernels"].as_array().map(Vec::len), Some(names.len()));
    assert_eq!(listed["arch"], "sm_90a");
}

#[test]
fn finished_sums_are_compared_with_the_single_steps() {
    for extra in [
        &["--epilogue", "bias,gelu,alpha=0.5,beta=2", "--c", "inplace", "--batch-invariant"][..],
        &["--epilogue", "swiglu,fp8", "--scales", "tensor"],
        &["--epilogue", "heads=64/32/64", "--d-type", "f32"],
    ] {
        let size = ["gemm", "--device", "sim", "--json", "-m", "5", "-n", "256", "-k", "200"];
        let found = &json(&[&size[..], extra].concat())[0];
        assert!(found["epilogue"] == true && found["right"] == true, "{extra:?}: {found}");
    }
    for (op, d_type) in [("bf16", "bf16"), ("fp16", "f16")] {
        let size = ["gemm", "--device", "sim", "--json", "-m", "5", "-n", "250", "-k", "200", "--op", op];
        for (words, c, stored) in
            [("bias,geglu", "other", d_type), ("heads=64/32/61,alpha=0.5,beta=2", "inplace", d_type)]
        {
            let found = &json(&[&size[..], &["--epilogue", words, "--c", c]].concat())[0];
            assert!(found["epilogue"] == true && found["right"] == true, "{words}: {found}");
            assert!(found["d_type"] == stored && found["nothing_outside_written"] == true, "{found}");
        }
    }
    let size = ["gemm", "--device", "sim", "--json", "-m", "5", "-n", "256", "-k", "200", "--rows", "3,0,9"];
    for extra in [
        &["--op", "fp8-masked", "--epilogue", "swiglu,fp8,bias"][..],
        &["--op", "bf16-masked", "--epilogue", "swiglu,fp8,bias"],
        &["--op", "fp16-contiguous", "--epilogue", "relu,bias,beta=0.5", "--c", "inplace"],
        &[
            "--op",
            "fp8-contiguous",
            "--alignment",
            "16",
            "--layout",
            "ends",
            "--epilogue",
            "gelu",
            "--c",
            "other",
        ],
    ] {
        let found = &json(&[&size[..], extra].concat())[0];
        assert!(found["epilogue"] == true && found["right"] == true, "{extra:?}: {found}");
        assert!(found["groups"] == 3 && found["nothing_outside_written"] == true, "{extra:?}: {found}");
    }
    let plan = &json(&[
        "inspect",
        "--json",
        "-m",
        "20",
        "-n",
        "512",
        "-k",
        "256",
        "--op",
        "fp8-masked",
        "--epilogue",
        "swiglu",
    ])[0];
    assert!(plan["choice"].as_str().is_some_and(|name| name.starts_with("wide_gated_grouped_")), "{plan}");
    let (status, message) =
        refused(&["gemm", "-m", "5", "-n", "256", "-k", "200", "--op", "fp8-batched", "--epilogue", "relu"]);
    assert!(status == 2 && message.contains("--epilogue"), "{message}");
}

#[test]
fn a_quantization_is_compared_with_the_cpu() {
    for extra in [
        &["--scales", "mn"][..],
        &["--granularity", "tensor", "--code", "e5m2", "--input", "f32"],
        &["--granularity", "1x32", "--code", "u8", "--scales", "blocked"],
        &["--op", "dequantize", "--granularity", "128x1"],
        &["--op", "nvfp4", "--scales", "blocked"],
        &["--op", "both", "--scales", "mn"],
        &["--op", "both", "--granularity", "128x128", "--code", "e5m2"],
        &["--op", "nvfp4-computed", "--scales", "mn"],
        &["--op", "nvfp4-dequantize", "--input", "f32"],
        &["--op", "transform", "--scales", "packed"],
    ] {
        let mut arguments = vec!["quantize", "--device", "sim", "--json", "-m", "3", "-k", "200"];
        arguments.extend(extra);
        let found = &json(&arguments)[0];
        assert_eq!((&found["judgement"]["right"], &found["judgement"]["differ"]), (&true.into(), &0.into()));
    }
    let (status, message) = refused(&["quantize", "-m", "3", "-k", "200", "--granularity", "2x2"]);
    assert!(status == 2 && message.contains("expected 1x128"), "{message}");
    let (_, message) = refused(&["quantize", "--device", "cpu", "-m", "3", "-k", "64", "--code", "u8"]);
    assert!(message.contains("`codes` has the wrong element type"), "{message}");
}

#[test]
fn a_product_on_the_cpu_is_checked() {
    for extra in [
        &[][..],
        &["--d-type", "f32", "--c", "inplace"],
        &["--c", "other", "--sfa", "mn", "--sfb", "odd"],
        &["--sfa", "row-padded", "--seed", "7"],
    ] {
        let mut arguments = vec!["gemm", "--device", "cpu", "--json", "-m", "33", "-n", "200", "-k", "300"];
        arguments.extend(extra);
        let found = &json(&arguments)[0];
        assert_eq!(found["right"], true, "{found}");
        assert_eq!(found["nothing_outside_written"], true, "{found}");
        assert_eq!(found["rows"], 33, "{found}");
        assert!(found["diff"].as_f64().is_some_and(|diff| diff < 1e-5), "{found}");
    }
    let text = stdout(&oxigemm(&["gemm", "--device", "cpu", "--m", "4", "--n", "64", "--k", "128"]));
    assert!(text.ends_with("right\n"), "{text}");
}

#[test]
fn a_product_in_the_simulator_is_checked_and_not_timed() {
    for device in ["sim", "sim:lazy", "sim:3"] {
        let arguments = ["gemm", "--device", device, "--json", "-m", "20", "-n", "72", "-k", "300"];
        let found = &json(&arguments)[0];
        assert_eq!((&found["right"], &found["device"]), (&true.into(), &"sim".into()), "{found}");
        assert!(found["plan"].as_str().is_some_and(|plan| plan.starts_with("slim_")), "{found}");
        assert!(found["simulated"]["instructions"].as_u64() > Some(100), "{found}");
        assert!(found["us"].is_null() && found["host_first_call_us"].is_null(), "{found}");
    }
    let text = stdout(&oxigemm(&["gemm", "--device", "sim", "-m", "1", "-n", "64", "-k", "128"]));
    assert!(text.contains("no hazards") && text.ends_with("right\n"), "{text}");
    assert!(!text.contains(" us"), "{text}");
}

#[test]
fn products_of_16_bits_are_checked_in_every_layout() {
    for op in ["bf16", "fp16"] {
        for (layout, d_type) in [("nt", "f32"), ("nn", "f32"), ("tn", "f32"), ("tt", "f32")] {
            let arguments = ["gemm", "--device", "sim:3", "--json", "--op", op, "--layout", layout];
            let size = ["-m", "9", "-n", "72", "-k", "136", "--c", "inplace", "--d-type", d_type];
            let found = &json(&[&arguments[..], &size[..]].concat())[0];
            assert_eq!((&found["right"], &found["nothing_outside_written"]), (&true.into(), &true.into()));
            let prefix = format!("{op}_");
            assert!(found["plan"].as_str().is_some_and(|plan| plan.starts_with(&prefix)), "{found}");
            assert!(found["diff"].as_f64().is_some_and(|diff| diff < 1e-9), "{found}");
        }
    }
    let plan = &json(&[
        "inspect", "--op", "bf16", "--layout", "nn", "--json", "-m", "1", "-n", "7168", "-k", "2048",
    ])[0];
    assert!(plan["kernel"].as_str().is_some_and(|name| name.starts_with("bf16_gemm_slim_nn_")), "{plan}");
}

#[test]
fn grouped_rows_are_computed_and_checked_everywhere() {
    for device in ["cpu", "sim", "sim:lazy"] {
        let masked = ["gemm", "--device", device, "--json", "--op", "fp8-masked", "--rows", "3,0,40"];
        let found =
            &json(&[&masked[..], &["--max-m", "50", "-m", "20", "-n", "72", "-k", "300"]].concat())[0];
        assert_eq!((&found["right"], &found["rows"]), (&true.into(), &43.into()), "{found}");
        assert_eq!(
            (&found["nothing_outside_written"], &found["groups"]),
            (&true.into(), &3.into()),
            "{found}"
        );
        for layout in ["ids", "ends"] {
            let contiguous =
                ["gemm", "--device", device, "--json", "--op", "fp8-contiguous", "--groups", "3"];
            let size = ["-m", "20", "-n", "72", "-k", "300", "--alignment", "16", "--layout", layout];
            let found = &json(&[&contiguous[..], &size].concat())[0];
            assert_eq!((&found["right"], &found["nothing_outside_written"]), (&true.into(), &true.into()));
            assert!(found["plan"].is_null() || found["plan"].as_str().unwrap().starts_with("wide_grouped_"));
        }
        for (op, layout, c) in [
            ("bf16-masked", "nn", "inplace"),
            ("fp16-masked", "nt", "none"),
            ("bf16-contiguous", "nn,ends", "other"),
            ("fp16-contiguous", "ids", "inplace"),
            ("bf16-batched", "nt", "none"),
            ("fp16-batched", "nn", "inplace"),
        ] {
            let problem = ["gemm", "--device", device, "--json", "--op", op, "--layout", layout, "--c", c];
            let size = ["--groups", "3", "-m", "20", "-n", "72", "-k", "130", "--alignment", "16"];
            let found = &json(&[&problem[..], &size, &["--d-type", "f32"]].concat())[0];
            assert_eq!((&found["right"], &found["nothing_outside_written"]), (&true.into(), &true.into()));
            assert!(found["plan"].is_null() || found["plan"].as_str().unwrap().contains("16_wide_grouped_n"));
        }
    }
    let text = stdout(&oxigemm(&[
        "gemm",
        "--device",
        "sim",
        "--op",
        "fp8-masked",
        "--rows",
        "5",
        "-m",
        "5",
        "-n",
        "64",
        "-k",
        "128",
    ]));
    assert!(text.contains("fp8-masked groups=1") && text.ends_with("right\n"), "{text}");
    let (_, message) = refused(&[
        "gemm",
        "--device",
        "cpu",
        "--op",
        "fp8-masked",
        "-m",
        "5",
        "-n",
        "64",
        "-k",
        "128",
        "--c",
        "inplace",
    ]);
    assert!(message.contains("nothing can be added"), "{message}");
    let (_, message) = refused(&[
        "gemm",
        "--device",
        "sim",
        "--op",
        "fp8-contiguous",
        "-m",
        "5",
        "-n",
        "64",
        "-k",
        "128",
        "--alignment",
        "3",
    ]);
    assert!(message.contains("`alignment`") && message.contains("1, 16, 32, 64 or 128"), "{message}");
}

#[test]
fn plans_and_timelines_of_grouped_rows_are_shown() {
    let size =
        ["--op", "fp8-masked", "--groups", "32", "-m", "24", "--max-m", "4096", "-n", "7168", "-k", "2048"];
    let found = &json(&[&["inspect", "--json"], &size[..]].concat())[0];
    assert_eq!(found["groups"]["count"], 32, "{found}");
    assert!(found["choice"].as_str().is_some_and(|choice| choice.starts_with("wide_grouped_64x")), "{found}");
    assert!(found["candidates"].as_array().is_some_and(|all| all.len() == 8), "{found}");
    let text = stdout(&oxigemm(&[&["inspect"], &size[..]].concat()));
    assert!(text.contains("32 in 32 slabs, 24 rows expected of each"), "{text}");
    let (_, message) = refused(&[&["inspect", "--choice", "wide_64x128_s8_c1x1"], &size[..]].concat());
    assert!(message.contains("wide_64x128_s8_c1x1 cannot compute fp8-masked"), "{message}");
    let dir = tempfile::tempdir().expect("a place for a file");
    let file = dir.path().join("t.json");
    let path = file.to_str().expect("a path of plain characters");
    let size =
        ["--op", "fp8-contiguous", "--rows", "3,7", "--alignment", "16", "-m", "5", "-n", "64", "-k", "256"];
    let found = &json(&[&["trace", "--out", path, "--json"], &size[..]].concat())[0];
    assert_eq!(found["right"], true, "{found}");
    assert!(std::fs::read_to_string(&file).expect("the timeline was written").contains("math warpgroup 1"));
}

#[test]
fn the_suite_runs_kernels_in_the_simulator() {
    let lines = json(&["verify", "--quick", "--device", "sim", "--json", "--filter", "slim_8x64"]);
    assert_eq!((&lines[0]["result"], &lines[1]["passed"]), (&"ok".into(), &1.into()), "{lines:?}");
    let output = oxigemm(&["verify", "--quick", "--device", "sim", "--filter", "programmatic"]);
    assert!(stdout(&output).contains("skipped  programmatic launches: this needs a GPU"));
}

#[test]
fn a_timeline_is_written_for_perfetto() {
    let dir = tempfile::tempdir().expect("a place for a file");
    let file = dir.path().join("t.json");
    let path = file.to_str().expect("a path of plain characters");
    let found = &json(&["trace", "-m", "8", "-n", "64", "-k", "640", "--out", path, "--json"])[0];
    assert_eq!(found["right"], true, "{found}");
    let text = std::fs::read_to_string(&file).expect("the timeline was written");
    let trace: Value = serde_json::from_str(&text).expect("a timeline in JSON");
    let events = trace["traceEvents"].as_array().expect("a list of events");
    assert_eq!(found["events"].as_u64(), Some(events.len() as u64));
    let count = |key: &str, value: &str| events.iter().filter(|event| event[key] == value).count();
    assert!(count("ph", "X") > 10 && count("cat", "load") > 4 && count("cat", "wgmma") > 4);
    timeline_is_valid(events);
    let names = track_names(events);
    for track in ["producer", "scales", "math warpgroup 0", "TMA load", "tensor core", "cp.async"] {
        assert!(names.iter().any(|name| name == track), "{track} in {names:?}");
    }
    let details = |part: &str| {
        events
            .iter()
            .any(|event| event["args"]["detail"].as_str().is_some_and(|detail| detail.contains(part)))
    };
    for part in ["b[1], reports to full[1]", "a[3], reports to full[3]", "b[1] x a[1]", "scales[0]"] {
        assert!(details(part), "stages and barriers have their names: {part}");
    }
    assert!(
        events
            .iter()
            .any(|event| { event["args"]["source"].as_str().is_some_and(|source| source.contains(".rs:")) })
    );
    assert!(refused(&["trace", "-m", "0", "-n", "1", "-k", "1", "--out", path]).1.contains("at least 1"));
    assert!(refused(&["trace", "--device", "cpu", "-m", "1", "-n", "1", "-k", "1"]).1.contains("simulator"));
}

/// Every bar has a place and a length, stands on a track with a name, and overlaps no other bar of its track; what
/// begins on a unit ends, the inner before the outer.
fn timeline_is_valid(events: &[Value]) {
    let mut tracks: std::collections::BTreeMap<(u64, u64), Vec<(u64, u64)>> = Default::default();
    let mut open: std::collections::BTreeMap<u64, Vec<(&str, u64)>> = Default::default();
    let number = |event: &Value, key: &str| event[key].as_u64().unwrap_or_else(|| panic!("{key} of {event}"));
    let track = |event: &Value| (number(event, "pid"), number(event, "tid"));
    for event in events {
        let name = event["name"].as_str().expect("a name");
        assert!(!name.is_empty(), "{event}");
        match event["ph"].as_str() {
            Some("M") => continue,
            Some("X") => {
                let start = number(event, "ts");
                tracks.entry(track(event)).or_default().push((start, start + number(event, "dur")));
            }
            Some("b") => open.entry(number(event, "id")).or_default().push((name, number(event, "ts"))),
            Some("e") => {
                let begun = open.get_mut(&number(event, "id")).and_then(Vec::pop).expect("it has begun");
                assert!(begun.0 == name && begun.1 <= number(event, "ts"), "{event}");
            }
            _ => panic!("{event}"),
        }
        assert!(event["args"]["ptx_line"].as_u64().is_some_and(|line| line > 0), "{event}");
    }
    assert!(open.values().all(Vec::is_empty), "what begins ends");
    for (at, bars) in &mut tracks {
        let named = |event: &&Value| event["name"] == "thread_name" && track(event) == *at;
        assert_eq!(events.iter().filter(named).count(), 1, "track {at:?} has one name");
        bars.sort_unstable();
        assert!(bars.windows(2).all(|pair| pair[0].1 <= pair[1].0), "bars of track {at:?} overlap");
    }
}

/// The names of roles and of asynchronous units.
fn track_names(events: &[Value]) -> Vec<String> {
    let name = |event: &Value| match event["name"].as_str() {
        Some("thread_name") => event["args"]["name"].as_str().map(str::to_owned),
        Some(unit) if event["ph"] == "b" => Some(unit.to_owned()),
        _ => None,
    };
    events.iter().filter_map(name).collect()
}

#[test]
fn roles_of_several_warpgroups_have_a_track_each() {
    let dir = tempfile::tempdir().expect("a place for a file");
    let file = dir.path().join("t.json");
    let path = file.to_str().expect("a path of plain characters");
    let args = ["trace", "-m", "256", "-n", "128", "-k", "512", "--choice", "wide_256x128_s3_c1x1"];
    json(&[&args[..], &["--device", "sim:lazy", "--out", path, "--json"]].concat());
    let text = std::fs::read_to_string(&file).expect("the timeline was written");
    let trace: Value = serde_json::from_str(&text).expect("a timeline in JSON");
    let events = trace["traceEvents"].as_array().expect("a list of events");
    timeline_is_valid(events);
    let names = track_names(events);
    for track in ["producer", "scales", "math warpgroup 0", "math warpgroup 1", "TMA store"] {
        assert!(names.iter().any(|name| name == track), "{track} in {names:?}");
    }
    let details: Vec<&str> = events.iter().filter_map(|event| event["args"]["detail"].as_str()).collect();
    for part in [
        "a[2], reports to full[2]",
        "scales[0], reports to scales_full[0]",
        "empty[0]",
        "a[1] x b[1]",
        "staging[0]",
    ] {
        assert!(details.iter().any(|detail| detail.contains(part)), "{part}");
    }
}

#[test]
fn a_comparison_with_the_simulator_needs_a_gpu() {
    for device in ["sim", "cpu"] {
        let (code, text) = refused(&["verify", "--compare", "sim", "--device", device]);
        assert_eq!(code, 2);
        assert!(text.contains("on a GPU of sm_90a and in the simulator") && text.contains(device), "{text}");
    }
    assert!(refused(&["verify", "--compare", "cpu"]).1.contains("possible values: sim"));
}

#[test]
fn only_kernels_of_the_closed_set_have_mutants() {
    assert!(refused(&["mutate", "--kernel", "gemm"]).1.contains("prebuild --list"));
    assert!(refused(&["mutate", "--device", "cpu"]).1.contains("only the simulator"));
}

const DOUBLE: &str = "
.version 8.0
.target sm_90
.address_size 64
.visible .entry double(.param .u64 x, .param .u64 y) {
    .reg .b32 v; .reg .b64 a, b, i;
    ld.param.u64 a, [x];
    ld.param.u64 b, [y];
    mov.u32 v, %tid.x;
    mul.wide.u32 i, v, 4;
    add.u64 a, a, i;
    add.u64 b, b, i;
    ld.global.u32 v, [a];
    add.u32 v, v, v;
    st.global.u32 [b], v;
    ret;
}";

#[test]
fn a_foreign_kernel_runs_from_its_description() {
    let dir = tempfile::tempdir().expect("a place for files");
    let path = |name: &str| dir.path().join(name).to_str().expect("a path of plain characters").to_owned();
    let (ptx, launch, out) = (path("double.ptx"), path("launch.json"), path("out"));
    std::fs::write(&ptx, DOUBLE).expect("a file can be written");
    let describe = |x: &str, block: u32| {
        let text = format!(
            r#"{{ "grid": [1], "block": [{block}],
                 "buffers": {{ "x": {x}, "y": {{ "type": "u32", "shape": [4], "fill": "none" }} }},
                 "params": [{{ "buffer": "x" }}, {{ "buffer": "y" }}] }}"#
        );
        std::fs::write(&launch, text).expect("a file can be written");
    };
    describe(r#"{ "type": "u32", "shape": [4], "fill": "count" }"#, 4);
    let found = &json(&["sim", &ptx, "--launch", &launch, "--every-schedule", "--out", &out, "--json"])[0];
    assert_eq!((&found["schedules"], &found["changed"][0]), (&10.into(), &"y".into()), "{found}");
    let written = std::fs::read(dir.path().join("out/y.npy")).expect("the changed buffer was written");
    assert!(written.ends_with(&[0, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 6, 0, 0, 0]));

    // What was written can be read, in the place of a pattern.
    describe(r#"{ "npy": "out/y.npy" }"#, 4);
    let trace = path("t.json");
    assert!(oxigemm(&["sim", &ptx, "--launch", &launch, "--trace", &trace]).status.success());
    assert!(std::fs::read_to_string(&trace).expect("a timeline").contains("traceEvents"));

    describe(r#"{ "type": "u32", "shape": [4], "fill": "none" }"#, 4);
    assert!(refused(&["sim", &ptx, "--launch", &launch]).1.contains("memory that nothing wrote"));
    describe(r#"{ "type": "u32", "shape": [4] }"#, 5);
    assert!(refused(&["sim", &ptx, "--launch", &launch]).1.contains("out of bounds"));
    describe(r#"{ "npy": "nothing.npy" }"#, 4);
    assert!(refused(&["sim", &ptx, "--launch", &launch]).1.contains("buffer `x`"));
    describe(r#"{ "type": "u3", "shape": [4] }"#, 4);
    assert!(refused(&["sim", &ptx, "--launch", &launch]).1.contains("not an element type"));
    // A tensor map that is larger than its buffer, with the place of the kernel.
    let map = r#"{ "grid": [1], "block": [4], "buffers": { "x": { "type": "u32", "shape": [4] } }, "params":
        [{ "tensor_map": { "buffer": "x", "element": "u32", "dims": [8], "strides": [], "box": [4], "swizzle": 0 } }] }"#;
    std::fs::write(&launch, map).expect("a file can be written");
    let message = refused(&["sim", &ptx, "--launch", &launch]).1;
    assert!(message.contains("PTX line ") && message.contains("32 bytes, buffer `x` only 16"), "{message}");
    // NaN out of bounds is for floats only; a scalar of another size is not an address.
    let nan = map.replace("[8]", "[4]").replace(r#""swizzle": 0"#, r#""nan_fill": true"#);
    std::fs::write(&launch, nan).expect("a file can be written");
    assert!(refused(&["sim", &ptx, "--launch", &launch]).1.contains("NaN"));
    let scalars = r#"{ "grid": [1], "block": [4], "params": [{ "i32": -1 }, { "f64": 0.5 }] }"#;
    std::fs::write(&launch, scalars).expect("a file can be written");
    assert!(refused(&["sim", &ptx, "--launch", &launch]).1.contains("bytes"));
    // What the launch asks for and cannot have is pointed at in its file.
    let lines = r#"{
        "grid": [1], "block": [4], "shared_bytes": 0,
        "buffers": { "x": { "type": "u32", "shape": [4] } },
        "params": [{ "buffer": "x" },
                   { "buffer": "x" }] }"#;
    for (from, to, place) in [
        ("[4], \"sh", "[2048], \"sh", "line 2, column 31: Launch: the block [2048, 1, 1] has 2048 threads"),
        ("[1]", "[1, 70000]", "line 2, column 17: Launch: the grid [1, 70000, 1] is empty or too large"),
        ("[1]", "[1], \"cluster\": [3]", "line 2, column 17: Launch: the grid [1, 1, 1] is not a multiple"),
        ("[1]", "[1], \"cluster\": [17]", "line 2, column 33: Launch: the cluster [17, 1, 1]"),
        ("\"shared_bytes\": 0", "\"shared_bytes\": 300000", "line 2, column 52: Launch: 300000 bytes"),
        ("[1]", "[1, 1, 1, 1]", "line 2, column 17: `grid` has 1 to 3 dimensions, not 4"),
        ("{ \"buffer\": \"x\" }]", "{ \"u32\": 1 }]", "line 5, column 20: Launch: parameter `y`"),
        ("{ \"buffer\": \"x\" }]", "{ \"buffer\": \"z\" }]", "line 5, column 20: parameter 1 of `double`"),
        (",\n                   { \"buffer\": \"x\" }]", "]", "line 4, column 19: Launch: `double` takes 2"),
        ("\"u32\"", "\"u3\"", "line 3, column 27: buffer `x`: `u3`"),
        ("\"grid\"", "\"entry\": \"triple\", \"grid\"", "line 2, column 18: Launch: the module has no entry"),
    ] {
        std::fs::write(&launch, lines.replacen(from, to, 1)).expect("a file can be written");
        let message = refused(&["sim", &ptx, "--launch", &launch]).1;
        assert!(message.contains(&format!("launch.json, {place}")), "{message}");
    }
    describe(r#"{ "type": "u32", "shape": [4] }"#, 4);
    std::fs::write(&ptx, "not PTX").expect("a file can be written");
    assert!(refused(&["sim", &ptx, "--launch", &launch]).1.contains("line 1"));
}

#[test]
fn sizes_of_zero_are_no_error() {
    for (m, n, k) in [("0", "64", "128"), ("4", "0", "128"), ("4", "64", "0")] {
        let found = &json(&["gemm", "--device", "cpu", "--json", "-m", m, "-n", n, "-k", k])[0];
        assert_eq!(found["right"], true, "{found}");
    }
}

#[test]
fn the_suite_passes_on_the_cpu_and_says_what_it_skipped() {
    let output = oxigemm(&["verify", "--quick", "--device", "cpu"]);
    let text = stdout(&output);
    assert!(output.status.success(), "{text}");
    let last = text.lines().last().unwrap_or_default();
    assert!(last.contains(" passed, 0 failed") && last.contains("skipped"), "{text}");
    assert!(text.contains("ok       random shapes and layouts"), "{text}");
    assert!(text.contains("skipped  programmatic launches: this needs a GPU"), "{text}");

    let lines = json(&["verify", "--quick", "--device", "cpu", "--json", "--filter", "zero"]);
    let names: Vec<_> = lines.iter().filter_map(|line| line["check"].as_str()).collect();
    let expected = [
        "sizes of zero",
        "sizes of zero, a scale for each row",
        "bf16: sizes of zero",
        "fp16: sizes of zero",
        "mqa logits: sizes of zero",
    ];
    assert_eq!(names, expected);
    assert!(lines[..5].iter().all(|line| line["result"] == "ok"), "{lines:?}");
    assert_eq!(lines[5]["passed"], 5);

    for (part, expected) in
        [("1/2", vec![expected[0], expected[2], expected[4]]), ("2/2", vec![expected[1], expected[3]])]
    {
        let lines =
            json(&["verify", "--quick", "--device", "cpu", "--json", "--filter", "zero", "--part", part]);
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
    assert!(found["choice"].as_str().is_some_and(|name| name.starts_with("slim_")), "{found}");
    assert!(found["why"].as_str().is_some_and(|why| why.contains("candidates")), "{found}");
    let candidates = found["candidates"].as_array().expect("a list of candidates");
    assert_eq!(candidates[0]["choice"], found["choice"]);
    let best = found["estimate"]["us"].as_f64().expect("a time");
    assert!(candidates.iter().all(|candidate| candidate["estimate"]["us"].as_f64() >= Some(best)));

    let choice = candidates[1]["choice"].as_str().expect("a name");
    let other = &json(&["inspect", "--json", "-m", "1", "-n", "7168", "-k", "2048", "--choice", choice])[0];
    assert_eq!((&other["choice"], &other["why"]), (&choice.into(), &"it was asked for".into()));

    let ptx = stdout(&oxigemm(&["inspect", "-m", "4096", "-n", "7168", "-k", "2048", "--ptx"]));
    assert!(ptx.contains(".entry fp8_gemm_wide_"), "{}", &ptx[..ptx.len().min(400)]);
}

#[test]
fn a_sweep_is_replayed_without_a_gpu() {
    let dir = tempfile::tempdir().expect("a place for a file");
    let file = dir.path().join("sweep.jsonl");
    let line = r#"{"m":1,"n":576,"k":7168,"choice":"slim_8x64_k4_s6","us":7.5,"anchor_us":11.2,"terms":{}}"#;
    std::fs::write(&file, format!("{line}\n")).expect("a file can be written");
    let path = file.to_str().expect("a path of plain characters");
    let found = &json(&["bench", "--replay", path, "--json"])[0][0];
    assert_eq!((&found["best"], &found["best_us"]), (&"slim_8x64_k4_s6".into(), &7.5.into()));
    assert!(stdout(&oxigemm(&["bench", "--replay", path])).contains("plans reach"));
    std::fs::write(&file, "not a sweep").expect("a file can be written");
    assert!(refused(&["bench", "--replay", path]).1.contains("no line of a sweep"));
}

#[test]
fn bad_arguments_are_one_clear_sentence() {
    let gemm = |extra: &[&'static str]| [&["gemm", "-m", "1", "-n", "1", "-k", "1"], extra].concat();
    for (arguments, words) in [
        (gemm(&["--device", "sim:late"]), "expected eager, lazy or the seed"),
        (gemm(&["--device", "tpu"]), "expected auto, cpu, sim, cuda or cuda:N"),
        (gemm(&["--device", "cuda:x"]), "the number of a GPU"),
        (gemm(&["--d-type", "e4m3"]), "expected bf16, f16 or f32"),
        (gemm(&["--d-type", "f16"]), "fp8 gives bf16 or f32, not f16"),
        (gemm(&["--op", "fp16", "--d-type", "bf16"]), "fp16 gives f16 or f32, not bf16"),
        (gemm(&["--layout", "ids"]), "fp8 has no such --layout: expected nt, nn, tn or tt"),
        (gemm(&["--epilogue", "silly"]), "silly is none of relu, gelu"),
        (gemm(&["--epilogue", "relu", "--op", "bf16-batched"]), "only products of e4m3, bf16 and fp16 have"),
        (gemm(&["--epilogue", "relu", "--e5m2", "a"]), "only products of e4m3, bf16 and fp16 have"),
        (gemm(&["--epilogue", "relu", "--layout", "nn"]), "expected nt"),
        (gemm(&["--epilogue", "relu", "--op", "fp16", "--layout", "tn"]), "expected nt"),
        (gemm(&["--op", "bf16", "--layout", "ids"]), "expected nt, nn, tn or tt"),
        (gemm(&["--op", "bf16", "--layout", "mn"]), "expected nt, nn, tn or tt, or ids or ends"),
        (gemm(&["--op", "bf16-masked", "--layout", "tn"]), "expected nt or nn, and ids or ends"),
        (gemm(&["--op", "bf16-masked", "--layout", "nt,nn"]), "--layout names the same twice"),
        (gemm(&["--op", "bf16-batched", "--layout", "ids"]), "expected nt or nn"),
        (
            gemm(&["--device", "sim", "--op", "bf16", "--choice", "slim_8x64_k4_s6"]),
            "expected a choice for bf16 operands, A K-major and B K-major",
        ),
        (gemm(&["--choice", "best"]), "expected a name like"),
        (vec!["gemm", "-m", "1", "-n", "1"], "--k"),
        (vec!["gemm", "-m", "-1", "-n", "1", "-k", "1"], "-1"),
        (vec!["bench", "--device", "cpu"], "bench needs a GPU"),
        (vec!["bench", "--runs", "0"], "--runs"),
        (vec!["verify", "--device", "cpu", "--filter", "nothing like it"], "no check contains"),
        (vec!["verify", "--device", "cpu", "--part", "3/2"], "such as 1/2"),
        (vec!["verify", "--device", "cpu", "--part", "0/0"], "such as 1/2"),
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

#[test]
fn the_closed_set_is_built_ahead_where_there_is_an_assembler() {
    if oxigemm_cuda::assemble::Ptxas::find().is_none() {
        let (_, message) = refused(&["prebuild"]);
        assert!(message.contains("needs ptxas"), "{message}");
        return;
    }
    let dir = tempfile::tempdir().expect("a place for cubins");
    let out = dir.path().to_str().expect("a path of plain characters");
    let built = &json(&["prebuild", "--json", "--out", out])[0];
    let kernels = built["kernels"].as_array().expect("a list of kernels");
    assert!(kernels.iter().all(|kernel| kernel["cubin_bytes"].as_u64() > Some(1000)), "{built}");
    let entries = std::fs::read_dir(dir.path().join("sm_90a")).expect("the entries of the architecture");
    assert_eq!(entries.count(), kernels.len());
}
