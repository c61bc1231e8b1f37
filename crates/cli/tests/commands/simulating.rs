//! Commands that show kernels at work in the simulator: timelines, and kernels of others.

use super::{json, oxigemm, refused, stdout};
use serde_json::Value;

#[test]
fn plans_and_timelines_of_m_grouped_gemms_are_shown() {
    let size =
        ["--op", "fp8-masked", "--groups", "32", "-m", "24", "--max-m", "4096", "-n", "7168", "-k", "2048"];
    let found = &json(&[&["inspect", "--json"], &size[..]].concat())[0];
    assert_eq!(found["groups"]["count"], 32, "{found}");
    assert!(
        found["choice"]
            .as_str()
            .is_some_and(|choice| choice.starts_with("sm90_fp8_persistent_m_grouped_64x")),
        "{found}"
    );
    assert!(found["candidates"].as_array().is_some_and(|all| all.len() == 6), "{found}");
    let text = stdout(&oxigemm(&[&["inspect"], &size[..]].concat()));
    assert!(text.contains("32 in 32 slabs, 24 rows expected of each"), "{text}");
    let (_, message) =
        refused(&[&["inspect", "--choice", "sm90_fp8_persistent_64x128_s8_c1x1"], &size[..]].concat());
    assert!(message.contains("sm90_fp8_persistent_64x128_s8_c1x1 cannot compute fp8-masked"), "{message}");
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
pub fn timeline_is_valid(events: &[Value]) {
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
    let args =
        ["trace", "-m", "256", "-n", "128", "-k", "512", "--choice", "sm90_fp8_persistent_256x128_s3_c1x1"];
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

/// Runs `sim` on `DOUBLE` (or a change of it) with a block of `block` threads and buffers of four elements.
fn simulated(change: impl Fn(&str) -> String, block: u32, arguments: &[&str]) -> std::process::Output {
    let dir = tempfile::tempdir().expect("a place for files");
    let path = |name: &str| dir.path().join(name).to_str().expect("a path of plain characters").to_owned();
    let (ptx, launch) = (path("double.ptx"), path("launch.json"));
    std::fs::write(&ptx, change(DOUBLE)).expect("a file can be written");
    let text = format!(
        r#"{{ "grid": [1], "block": [{block}],
             "buffers": {{ "x": {{ "type": "i32", "shape": [8], "fill": "count" }},
                           "y": {{ "type": "i32", "shape": [4], "fill": "none" }} }},
             "params": [{{ "buffer": "x", "offset": 16 }}, {{ "buffer": "y" }}] }}"#
    );
    std::fs::write(&launch, text).expect("a file can be written");
    oxigemm(&[&["sim", &ptx, "--launch", &launch], arguments].concat())
}

#[test]
fn elements_that_nobody_wrote_are_told() {
    let dir = tempfile::tempdir().expect("a place for files");
    let out = dir.path().join("out").to_str().expect("a path of plain characters").to_owned();
    let found = simulated(str::to_owned, 3, &["--out", &out, "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&found.stdout).expect("JSON");
    assert_eq!((&found["unwritten"]["y"], &found["changed"][0]), (&1.into(), &"y".into()), "{found}");
    let read =
        |name: &str| std::fs::read(dir.path().join("out").join(name)).expect("a file that was written");
    // The offset leads to the fifth element; the last one is nobody's.
    assert!(read("y.npy").ends_with(&[8, 0, 0, 0, 10, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0]));
    assert!(read("y.unwritten.npy").ends_with(&[0, 0, 0, 1]));
    let text = stdout(&simulated(str::to_owned, 3, &[]));
    assert!(text.contains("`y`: 1 of 4 elements were never written"), "{text}");
}

#[test]
fn a_fault_is_json_too() {
    let output = simulated(str::to_owned, 5, &["--json"]);
    assert_eq!(output.status.code(), Some(2));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let fault = &found["fault"];
    assert_eq!(
        (&fault["kind"], &fault["at"]["opcode"]),
        (&"OutOfBounds".into(), &"ld.global.u32".into()),
        "{found}"
    );
    assert!(
        fault["at"]["line"].as_u64().is_some_and(|line| line == 13) && fault["notes"].is_array(),
        "{found}"
    );
    let output = simulated(|text| text.replace("add.u32 v, v, v", "add.f32 v, v, i"), 4, &["--json"]);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&found["error"]["line"], &found["error"]["column"]), (&14.into(), &5.into()), "{found}");
}

#[test]
fn a_run_is_bounded_and_goes_on_as_it_is_told() {
    let endless = |text: &str| text.replace("ret;", "again: bra again;");
    let message = String::from_utf8(simulated(endless, 4, &[]).stderr).expect("text");
    assert!(message.contains("EndlessLoop: a loop never ends: line 16"), "{message}");
    let counts = |text: &str| text.replace("ret;", "again: add.u32 v, v, 1; bra again;");
    let message =
        String::from_utf8(simulated(counts, 4, &["--max-instructions", "100000"]).stderr).expect("text");
    assert!(message.contains("100000") || message.contains("without a store"), "{message}");
    let message = String::from_utf8(simulated(str::to_owned, 4, &["--memory", "1K"]).stderr).expect("text");
    assert!(message.contains("MemoryLimit") && message.contains("1024"), "{message}");
    let message = String::from_utf8(simulated(str::to_owned, 4, &["--memory", "16"]).stderr).expect("text");
    assert!(message.contains("buffer `x`: 32 bytes, where --memory leaves 16"), "{message}");
    let message = String::from_utf8(simulated(str::to_owned, 4, &["--memory", "much"]).stderr).expect("text");
    assert!(message.contains("not a size such as 512M"), "{message}");

    // Lanes read what nobody wrote: a fault, a note, or one of a list.
    let reads = |text: &str| text.replace("ld.global.u32 v, [a]", "ld.global.u32 v, [b]");
    assert_eq!(simulated(reads, 4, &[]).status.code(), Some(2));
    let allowed = simulated(reads, 4, &["--allow", "uninitialized"]);
    assert!(
        allowed.status.success() && stdout(&allowed).contains("note: Uninitialized"),
        "{}",
        stdout(&allowed)
    );
    let all = simulated(reads, 4, &["--keep-going"]);
    assert_eq!(all.status.code(), Some(1));
    assert!(stdout(&all).contains("fault: Uninitialized"), "{}", stdout(&all));
    let message = String::from_utf8(simulated(reads, 4, &["--allow", "everything"]).stderr).expect("text");
    assert!(message.contains("Race, ProxyOrder") && message.contains("Divergence"), "{message}");

    let message =
        String::from_utf8(simulated(str::to_owned, 4, &["--device", "sim:sm_80"]).stderr).expect("text");
    assert!(message.contains("a GPU of sm_80 does not run a module for sm_90"), "{message}");
    assert!(simulated(str::to_owned, 4, &["--device", "sim:sm_100a:lazy"]).status.success());
}
