//! The README's example is the one that compiles and runs.

#[test]
fn the_readme_shows_the_quickstart_example() {
    let example =
        include_str!("../../examples/quickstart.rs").trim_start_matches("//! The README's example.\n\n");
    assert!(
        include_str!("../../../../README.md").contains(example),
        "copy examples/quickstart.rs into the README"
    );
}
