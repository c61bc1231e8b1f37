//! The simulator finds nearly every deleted or weakened synchronization instruction of the kernels, and the
//! documentation says how many.

use serde_json::Value;
use std::process::Command;

#[test]
fn the_score_is_what_the_documentation_says() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_oxigemm")).args(["mutate", "--json"]).output().expect("it starts");
    let text = String::from_utf8(output.stdout).expect("text");
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "too few were found, or a survivor is not explained");
    let scores: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/simulator.md");
    let docs = std::fs::read_to_string(docs).expect("the documentation is there");
    let (kernels, total) = scores.split_at(scores.len() - 1);
    assert_eq!(kernels.len(), 17, "some of each family");
    for score in kernels {
        let number = |key: &str| score[key].as_u64().expect("a number");
        let (mutants, found) = (number("mutants"), number("found"));
        assert!(found * 100 >= mutants * 95 && mutants > 20 && number("not_executed") == 0, "{score}");
        let survivors = score["survivors"].as_array().expect("a list");
        let row = format!(
            "| `{}` | {mutants} | {found} | {} |",
            score["kernel"].as_str().expect("a name"),
            survivors.len()
        );
        assert!(docs.contains(&row), "docs/simulator.md does not have\n{row}");
        for survivor in survivors {
            let why = survivor["why"].as_str().expect("a reason");
            assert!(docs.contains(why), "docs/simulator.md does not tell why {survivor}");
        }
    }
    let total = format!("{} of {} are found", total[0]["found"], total[0]["mutants"]);
    assert!(docs.contains(&total), "docs/simulator.md does not say: {total}");
}

/// Every so many-th mutant of some of Blackwell's kernels, one of each family that is cheap.
#[test]
fn mutants_of_blackwell_kernels_are_found_redundant_or_explained() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/blackwell.md");
    let docs = std::fs::read_to_string(docs).expect("the documentation is there");
    for (kernel, every) in
        [("sm100_bf16_gemm_split_k_nt_16x128", "6"), ("sm100_bf16_gemm_persistent_nt_128x64_s8", "12")]
    {
        let arguments = ["mutate", "--arch", "sm_100a", "--kernel", kernel, "--every", every, "--json"];
        let output = Command::new(env!("CARGO_BIN_EXE_oxigemm")).args(arguments).output().expect("it starts");
        let text = String::from_utf8(output.stdout).expect("text");
        let score: Value = serde_json::from_str(text.lines().next().expect("a score")).expect("JSON");
        let number = |key: &str| score[key].as_u64().expect("a number");
        assert!(number("mutants") > 5 && number("not_executed") == 0, "{score}");
        for survivor in score["survivors"].as_array().expect("a list") {
            let settled = survivor["redundant"] == true || survivor["why"].is_string();
            assert!(settled, "{survivor}");
        }
        assert!(docs.contains(&format!("| `{kernel}` |")), "docs/blackwell.md has no row of {kernel}");
    }
}

#[test]
fn a_sample_of_blackwell_kernels_gives_the_same_bits_under_ten_schedules() {
    let arguments = ["verify", "--quick", "--device", "sim:sm_100a", "--filter", "ten schedules", "--json"];
    let output = Command::new(env!("CARGO_BIN_EXE_oxigemm")).args(arguments).output().expect("it starts");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}");
    let last: Value = serde_json::from_str(text.lines().last().expect("a sum")).expect("JSON");
    assert!(last["passed"].as_u64() > Some(2), "{last}");
}
