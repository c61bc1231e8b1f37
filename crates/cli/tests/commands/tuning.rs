//! Tuned configurations: `tune` on a machine that may have no GPU, and commands that read a file of them.

use std::path::Path;
use std::process::{Command, Output};

use oxigemm::GemmLayout;
use oxigemm::plan::{self, GemmConfig, Limits, TunedConfigs};
use oxigemm_testkit::{BF16, FP8, FP8_1D1D, GemmCase, GroupLayout, MGroups, plan as planner};
use serde_json::Value;

use super::{oxigemm, refused, stderr, stdout};

/// Runs a command with a file of tuned configurations.
fn with_tuned(path: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_oxigemm"))
        .args(arguments)
        .env("OXIGEMM_TUNED", path)
        .output()
        .expect("the program starts")
}

fn line(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_str(&stdout(output)).expect("a line of JSON")
}

#[test]
fn tuning_needs_a_gpu_and_problems() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("problems.txt");
    let problems = path.to_str().expect("a path of letters");
    let write = |text: &str| std::fs::write(&path, text).expect("a file");
    let gemm = ["--op", "fp8", "-m", "1,16", "-n", "4096", "-k", "7168"];
    let on_cpu = |rest: &[&str]| refused(&[&["tune", "--device", "cpu"], rest].concat());
    for arguments in [&gemm[..], &["--check", "--count", "3"]] {
        let (status, message) = on_cpu(arguments);
        assert!(status == 2 && message.contains("tune needs a GPU"), "{message}");
    }
    write("# layers\n\n--op bf16 -m 1,16 -n 4096 -k 7168  # the first\n");
    assert!(on_cpu(&["--problems", problems]).1.contains("tune needs a GPU"));
    write("--op bf16 -m 1 -n 4096 -k 7168\n\n-m 1 -n 4096 -q 7168\n");
    let (_, message) = on_cpu(&["--problems", problems]);
    assert!(message.contains("problems.txt, line 3") && message.contains("'-q'"), "{message}");
    write("# nothing\n");
    for (arguments, words) in [
        (vec!["--problems", problems], "has no problem"),
        (vec!["--problems", "/nowhere/problems.txt"], "could not read /nowhere/problems.txt"),
        (vec![], "no problem is given"),
        (vec!["--check", "--problems", problems], "cannot be used with"),
        (vec!["--check", "--count", "0"], "--count"),
        (vec!["--append", "-m", "1"], "--out"),
        (vec!["-m", "1", "-n", "1"], "--k <K>"),
        (vec!["-m", "1", "-n", "1", "-k", "0"], "at least 1"),
    ] {
        let (status, message) = on_cpu(&arguments);
        assert!(status == 2 && message.contains(words), "{arguments:?}: {message}");
    }
    write("{}");
    let (_, message) = on_cpu(&[&["--out", problems, "--append"], &gemm[..]].concat());
    assert!(message.contains("problems.txt: missing field `version`"), "{message}");
}

#[test]
fn a_tuned_plan_says_so_and_a_file_that_cannot_be_used_is_a_warning() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, limits) = (dir.path().join("tuned.json"), Limits::h200());
    let request = planner::request(&GemmCase::fp8(16, 4096, 7168), limits.arch);
    let other = plan::rank(&request, &limits)[2].0;
    let mut tuned = TunedConfigs::default();
    tuned.insert(&request, &limits, other).expect("it is a candidate");
    tuned.save(&path).expect("a file");
    let inspect = ["inspect", "--device", "cpu", "-m", "16", "-n", "4096", "-k", "7168", "--json"];
    let (own, found) = (line(&oxigemm(&inspect)), line(&with_tuned(&path, &inspect)));
    assert_ne!(own["choice"], found["choice"]);
    assert_eq!(found["choice"], plan::name(&other).as_str());
    assert!(found["why"].as_str().is_some_and(|why| why.starts_with("a tuned configuration")), "{found}");

    std::fs::write(&path, tuned.to_text().replace(&plan::name(&other), "sm90_fp8_gone")).expect("a file");
    let output = with_tuned(&path, &inspect);
    assert_eq!(line(&output)["choice"], own["choice"]);
    let warning = stderr(&output);
    for words in ["OXIGEMM_TUNED is not used", "tuned.json", "there is no configuration \"sm90_fp8_gone\""] {
        assert!(warning.contains(words), "{words} in {warning}");
    }
}

/// What planning is told of a call is what a file has of the case: another grid is launched.
#[test]
fn calls_of_every_grouping_launch_what_was_tuned() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, limits) = (dir.path().join("tuned.json"), Limits::h200());
    let groups = |layout, sizes: &[usize]| MGroups { max_m: 128, ..MGroups::new(layout, sizes.to_vec()) };
    let m_grouped = |m, groups| GemmCase { m, ..GemmCase::m_grouped(FP8, groups, [512, 256]) };
    let dense = |types| GemmCase::dense(types, GemmLayout::Nt, [70, 512, 256]);
    for (case, arguments) in [
        (dense(FP8), "--op fp8 -m 70"),
        (dense(BF16), "--op bf16 -m 70"),
        (
            m_grouped(25, groups(GroupLayout::Counts, &[20, 30])),
            "--op fp8-masked -m 25 --rows 20,30 --max-m 128",
        ),
        (m_grouped(50, groups(GroupLayout::Ids, &[40, 60])), "--op fp8-contiguous -m 50 --rows 40,60"),
        (GemmCase::summed(BF16, 3, [70, 512, 256]), "--op bf16-summed -m 70 --groups 3"),
        (
            GemmCase::k_grouped(FP8_1D1D, GemmLayout::Nt, vec![128, 256], [70, 512]),
            "--op fp8-kgrouped -m 70 --ks 128,256",
        ),
        (
            GemmCase::m_grouped(BF16, MGroups::new(GroupLayout::All, vec![70; 3]), [512, 256]),
            "--op bf16-batched -m 70 --groups 3",
        ),
    ] {
        let request = planner::request(&case, limits.arch);
        let grid = |config: GemmConfig| {
            let plan = plan::plan(&request.with_config(config), &limits).expect("it is a candidate");
            plan.launch.grid.iter().product::<u32>()
        };
        let configs: Vec<GemmConfig> =
            plan::rank(&request, &limits).into_iter().map(|(config, _)| config).collect();
        let other = configs.iter().find(|config| grid(**config) != grid(configs[0]));
        let other = *other.unwrap_or_else(|| panic!("{arguments}: all candidates have one grid"));
        let mut tuned = TunedConfigs::default();
        tuned.insert(&request, &limits, other).expect("it is a candidate");
        tuned.save(&path).expect("a file");
        let all = format!("gemm --device sim --json -n 512 -k 256 {arguments}");
        let all: Vec<&str> = all.split(' ').collect();
        let ctas = |output: &Output| line(output)["simulated"]["ctas"].as_u64().expect("a number");
        assert_eq!(ctas(&oxigemm(&all)), u64::from(grid(configs[0])), "{arguments}");
        let found = with_tuned(&path, &all);
        assert_eq!(ctas(&found), u64::from(grid(other)), "{arguments} by {}", plan::name(&other));
        assert_eq!(line(&found)["plan"], plan::name(&other).as_str());
    }
}
