//! What hostile use found: no call panics, ends with a wrong status, or writes where it should not.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::FromRawFd;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::{oxigemm, refused, stderr, stdout};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxigemm"));
    command.args(arguments);
    command
}

/// A file that is always full.
fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").expect("Linux has it")
}

const ONE: [&str; 8] = ["gemm", "--device", "cpu", "-m", "1", "-n", "1", "-k"];

#[test]
fn sizes_beyond_reason_are_one_clear_sentence() {
    const U32: &str = "4294967295";
    const U64: &str = "18446744073709551615";
    let gemm = |extra: &[&'static str]| {
        [&["gemm", "--device", "cpu", "-m", "1", "-n", "1", "-k", "128"], extra].concat()
    };
    let contiguous = |extra: &[&'static str]| gemm(&[&["--op", "fp8-contiguous"], extra].concat());
    let masked = |extra: &[&'static str]| gemm(&[&["--op", "fp8-masked"], extra].concat());
    let k_grouped = |extra: &[&'static str]| gemm(&[&["--op", "fp8-kgrouped"], extra].concat());
    for (arguments, words) in [
        (gemm(&["--epilogue", "heads=0/0/0"]), "expected left and right to be 1 to 4294967295 together"),
        (gemm(&["--epilogue", "heads=0/5/0"]), "expected left and right"),
        (gemm(&["--epilogue", "heads=4294967295/0/4294967295"]), "expected left and right"),
        (gemm(&["--epilogue", "heads=1/4294967295/0", "--op", "bf16"]), "as they are drawn on the host"),
        (contiguous(&["--alignment", "0"]), "expected 1, 16, 32, 64 or 128"),
        (contiguous(&["--alignment", "3"]), "expected 1, 16, 32, 64 or 128"),
        (contiguous(&["--alignment", U64]), "expected 1, 16, 32, 64 or 128"),
        (contiguous(&["--rows", U64]), "--rows: expected at most 2147483647"),
        (contiguous(&["--rows", U32]), "--rows: expected at most 2147483647, found 4294967295"),
        (contiguous(&["--rows", "2147483647,2147483647"]), "--rows: expected at most 2147483647"),
        (contiguous(&["--rows", "18446744073709551600,1"]), "--rows: expected at most"),
        (contiguous(&["--rows", "2147483520"]), "as they are drawn on the host"),
        (contiguous(&["--groups", U64]), "18446744073709551615 groups: expected at most 65536"),
        (contiguous(&["--groups", "65537"]), "groups: expected at most 65536"),
        (masked(&["--max-m", U64]), "--max-m: expected at most 2147483647"),
        (masked(&["--max-m", "2147483647"]), "expected at most"),
        (masked(&["--rows", "5", "--max-m", "2"]), "--max-m 2 has no room for 5 rows"),
        (k_grouped(&["--ks", U64]), "--ks: expected at most 2147483647"),
        (k_grouped(&["--ks", U32]), "--ks: expected at most 2147483647"),
        (k_grouped(&["--groups", U32]), "groups: expected at most 65536"),
        (gemm(&["--op", "bf16-summed", "--groups", U64]), "groups: expected at most 65536"),
        (gemm(&["--op", "bf16-batched", "--groups", U32]), "groups: expected at most 65536"),
        (vec!["gemm", "-m", U32, "-n", "1", "-k", "1"], "-m: expected at most 2147483647, found 4294967295"),
        (vec!["gemm", "-m", "1", "-n", U32, "-k", "1"], "-n: expected at most"),
        (vec!["gemm", "-m", "1", "-n", "1", "-k", U32], "-k: expected at most"),
        (vec!["gemm", "-m", U64, "-n", "1", "-k", "1"], "number too large to fit in target type"),
        (
            vec!["gemm", "-m", "2147483647", "-n", "2147483647", "-k", "1"],
            "D has 4611686014132420609 elements",
        ),
        (vec!["gemm", "-m", "2147483647", "-n", "0", "-k", "2147483647"], "as they are drawn on the host"),
        (vec!["trace", "-m", U32, "-n", U32, "-k", U32], "-m: expected at most"),
        (vec!["trace", "-m", "65536", "-n", "1", "-k", "65537"], "as they are drawn on the host"),
        (vec!["inspect", "-m", U32, "-n", U32, "-k", U32], "-m: expected at most"),
        (
            vec!["inspect", "-m", "2147483647", "-n", "2147483647", "-k", "1"],
            "D has 4611686014132420609 elements",
        ),
        (vec!["quantize", "-m", U64, "-k", U64], "-m and -k: "),
        (vec!["quantize", "-m", U32, "-k", U32], "-m and -k: "),
        (vec!["quantize", "-m", U64, "-k", "0"], "-m and -k: "),
        (vec!["quantize", "-m", "0", "-k", U64], "-m and -k: "),
        (vec!["hc", "-m", U64, "-k", U64], "-m and -k: "),
        (gemm(&["--num-sms", "0"]), "0 is not in 1.."),
        (gemm(&["--epilogue", "alpha=nan"]), "expected a finite number"),
        (gemm(&["--epilogue", "beta=inf"]), "expected a finite number"),
        (vec!["devices", "--device", "nonsense"], "expected auto, cpu, sim, cuda or cuda:N"),
        (vec!["devices", "--device", "sim:18446744073709551616"], "eager, lazy or the seed"),
        (
            vec!["inspect", "--op", "fp8-contiguous", "--groups", "0", "-m", "1", "-n", "1", "-k", "1"],
            "the sizes of groups",
        ),
        (vec!["quantize", "-m", "3", "-k", "7", "--op", "nvfp4"], "expected an even number"),
        (vec!["logits", "--queries", U64, "--keys", U64], "--queries: "),
    ] {
        let (status, message) = refused(&arguments);
        assert_eq!(status, 2, "{arguments:?}: {message}");
        assert!(message.contains(words), "{arguments:?}: {message}");
        assert!(!message.contains("panicked"), "{arguments:?}: {message}");
    }
}

/// The largest that a call takes is planned without an overflow.
#[test]
fn the_largest_problems_are_planned() {
    for arguments in [
        ["-m", "2147483647", "-n", "512", "-k", "2147483647"],
        ["-m", "512", "-n", "2147483647", "-k", "2147483647"],
        ["-m", "1", "-n", "2147483647", "-k", "1"],
        ["-m", "1048576", "-n", "1048576", "-k", "2147483647"],
    ] {
        for op in ["fp8", "bf16", "fp8-1d1d"] {
            let output =
                oxigemm(&[&["inspect", "--device", "cpu", "--json", "--op", op], &arguments[..]].concat());
            assert_eq!(output.status.code(), Some(0), "{arguments:?} {op}: {}", stderr(&output));
        }
    }
}

#[test]
fn arguments_that_an_operation_has_no_use_for_are_refused() {
    let gemm = |op: &'static str, extra: &[&'static str]| [&ONE[..], &["128", "--op", op], extra].concat();
    for (arguments, words) in [
        (gemm("fp8", &["--rows", "1,2"]), "--rows is for m-grouped operations, not for fp8"),
        (gemm("fp8", &["--ks", "128"]), "--ks is for k-grouped operations, not for fp8"),
        (gemm("bf16", &["--groups", "3"]), "--groups is for operations with groups, not for bf16"),
        (gemm("bf16", &["--max-m", "3"]), "--max-m is for m-grouped masked operations"),
        (gemm("fp16", &["--alignment", "16"]), "--alignment is for m-grouped contiguous operations"),
        (gemm("fp8-contiguous", &["--ks", "128"]), "--ks is for k-grouped"),
        (gemm("fp8-contiguous", &["--max-m", "128"]), "--max-m is for m-grouped masked"),
        (gemm("fp8-masked", &["--alignment", "16"]), "--alignment is for m-grouped contiguous"),
        (gemm("fp8-kgrouped", &["--rows", "16"]), "--rows is for m-grouped"),
        (gemm("bf16-batched", &["--rows", "16"]), "whose products all have m rows"),
        (gemm("bf16-summed", &["--ks", "16"]), "--ks is for k-grouped"),
    ] {
        let (status, message) = refused(&arguments);
        assert_eq!(status, 2, "{arguments:?}: {message}");
        assert!(message.contains(words), "{arguments:?}: {message}");
        // The plan has the same arguments.
        let inspected = [&["inspect"], &arguments[1..]].concat();
        assert!(refused(&inspected).1.contains(words), "{inspected:?}");
    }
    for scales in [["--scales", "tensor"], ["--sfa", "mn"], ["--sfb", "mn"]] {
        assert!(refused(&gemm("bf16", &scales)).1.contains("bf16 has no scales"), "{scales:?}");
    }
}

#[test]
fn output_that_cannot_be_written_is_no_success() {
    let small = [&ONE[..], &["128"]].concat();
    let json = [&small[..], &["--json"]].concat();
    for arguments in [&["--help"][..], &["--version"], &["devices"], &["prebuild", "--list"], &small, &json] {
        let output = command(arguments).stdout(full()).output().expect("the program starts");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let message = stderr(&output);
        assert!(message.contains("standard output cannot be written to"), "{arguments:?}: {message}");
        assert_eq!(message.lines().count(), 1, "it is said once: {message}");

        // A closed pipe is what `head` leaves behind.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = command(arguments).stdout(writer).output().expect("the program starts");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        assert_eq!(stderr(&output), "", "{arguments:?}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let missing = dir.path().join("no/such/trace.json");
    let missing = missing.to_str().expect("a path of plain characters");
    let started = Instant::now();
    let trace = ["trace", "-m", "256", "-n", "1024", "-k", "1024", "--out"];
    assert!(refused(&[&trace[..], &[missing]].concat()).1.contains("No such file"));
    assert!(started.elapsed().as_secs() < 5, "it is found before the simulation");
    let small = ["trace", "-m", "1", "-n", "8", "-k", "128", "--out", "/dev/full"];
    assert!(refused(&small).1.contains("No space left on device"));
}

#[test]
fn a_standard_error_that_is_full_is_survived() {
    let bad = ["gemm", "--device", "tpu", "-m", "1", "-n", "1", "-k", "1"];
    let good = [&ONE[..], &["128"]].concat();
    for (arguments, status) in [(&bad[..], 2), (&["gemm"], 2), (&["nonsense"], 2), (&good, 0)] {
        let output = command(arguments).stderr(full()).output().expect("the program starts");
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        let both = command(arguments).stderr(full()).stdout(full()).output().expect("the program starts");
        assert_eq!(both.status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn a_buffer_is_written_into_its_folder_and_nowhere_else() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("plain characters").to_owned();
    let ptx = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry one(.param .u64 p) {
        .reg .b64 a; .reg .b32 x;\nld.param.u64 a, [p]; mov.u32 x, 7; st.global.u32 [a], x; ret; }";
    std::fs::write(path("k.ptx"), ptx).expect("a file can be written");
    for (name, written) in [
        ("../x", false),
        ("/tmp/x", false),
        ("..", false),
        (".", false),
        ("", false),
        ("a/b", false),
        ("x", true),
    ] {
        let launch = serde_json::json!({
            "grid": [1], "block": [1], "params": [{ "buffer": name }],
            "buffers": { name: { "type": "u32", "shape": [4], "fill": "zeros" } },
        });
        std::fs::write(path("launch.json"), launch.to_string()).expect("a file can be written");
        let arguments =
            ["sim", &path("k.ptx"), "--launch", &path("launch.json"), "--out", &path("out/inner")];
        if written {
            let output = oxigemm(&arguments);
            assert!(output.status.success(), "{}", stderr(&output));
            assert!(stdout(&output).contains("changed: x"));
            assert!(dir.path().join("out/inner/x.npy").is_file());
        } else {
            let (status, message) = refused(&arguments);
            assert_eq!(status, 2, "{name}");
            assert!(message.contains("expected a name that a file can have"), "{name}: {message}");
        }
    }
    assert!(!dir.path().join("out/x.npy").exists());
}

#[test]
fn prebuild_says_at_once_that_its_folder_cannot_be_written() {
    use std::os::unix::fs::PermissionsExt;

    let dir = tempfile::tempdir().expect("a directory");
    let ran = dir.path().join("ran");
    let assembler = dir.path().join("ptxas");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'release 13.0, V13.0.88' && exit\ntouch {}\nexit 255\n",
        ran.display()
    );
    std::fs::write(&assembler, script).expect("a script");
    std::fs::set_permissions(&assembler, PermissionsExt::from_mode(0o755)).expect("it may be run");
    std::fs::write(dir.path().join("file"), "").expect("a file");
    for folder in ["file", "file/below"] {
        let output = command(&["prebuild", "--out"])
            .arg(dir.path().join(folder))
            .env("OXIGEMM_PTXAS", &assembler)
            .output()
            .expect("the program starts");
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("cannot be written to: "), "{}", stderr(&output));
        assert!(!ran.exists(), "nothing was assembled");
    }
}

/// What runs in the simulator says so on a terminal, and nowhere else.
#[test]
fn simulations_show_that_they_go_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("t.json");
    let out = out.to_str().expect("plain characters");
    let size = ["-m", "64", "-n", "256", "-k", "1024"];
    let gemm = [&["gemm", "--device", "sim"], &size[..]].concat();
    let trace = [&["trace", "--out", out], &size[..]].concat();
    for (arguments, words) in
        [(gemm, "computing fp8 m=64 n=256 k=1024 on sim"), (trace, "simulating fp8 m=64")]
    {
        let (mut terminal, mut side) = (0, 0);
        let (name, no_settings, no_size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
        // SAFETY: both are valid places to write to.
        let opened = unsafe { libc::openpty(&mut terminal, &mut side, name, no_settings, no_size) };
        assert_eq!(opened, 0, "a terminal can be opened");
        // SAFETY: both were just opened, and nobody else has them.
        let (mut terminal, side) = unsafe { (File::from_raw_fd(terminal), File::from_raw_fd(side)) };
        let mut child = command(&arguments)
            .env("TERM", "xterm")
            .stdout(Stdio::null())
            .stderr(side)
            .spawn()
            .expect("the program starts");
        // A terminal without its other side is an error and not an end.
        let mut shown = Vec::new();
        let mut part = [0; 1024];
        while let Ok(length @ 1..) = terminal.read(&mut part) {
            shown.extend_from_slice(&part[..length]);
        }
        assert!(child.wait().expect("it ends").success());
        let shown = String::from_utf8_lossy(&shown).into_owned();
        assert!(shown.contains(words), "{shown:?}");
        assert_eq!(stderr(&oxigemm(&arguments)), "", "{arguments:?}");
    }
}
