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
    assert_eq!(kernels.len(), 16, "some of each family");
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
