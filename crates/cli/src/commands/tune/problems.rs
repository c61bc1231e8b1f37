//! Problems by the arguments of `gemm`.

use std::path::Path;

use clap::Parser;
use oxigemm_testkit::{Failure, GemmCase};

use crate::cases::gemm::GemmArgs;

/// A problem, and the words that gave it.
pub struct Problem {
    pub words: String,
    pub case: GemmCase,
}

/// The words of a problem.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Words {
    #[command(flatten)]
    gemm: GemmArgs,
}

/// Reads a file of problems.
pub fn read(path: &Path) -> Result<Vec<Problem>, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("could not read {}: {error}", path.display()))?;
    let mut all = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let words = line.split('#').next().unwrap_or_default().split_whitespace();
        let words: Vec<String> = words.map(str::to_owned).collect();
        let found = parse(&words).map_err(|error| format!("{}, line {}: {error}", path.display(), i + 1))?;
        all.extend(found);
    }
    if all.is_empty() {
        return Err(format!("{} has no problem", path.display()).into());
    }
    Ok(all)
}

/// The problems of some words: one for each M, none of no words.
pub fn parse(words: &[String]) -> Result<Vec<Problem>, Failure> {
    if words.is_empty() {
        return Ok(Vec::new());
    }
    each_m(words).iter().map(|words| one(words)).collect()
}

fn one(words: &[String]) -> Result<Problem, Failure> {
    let Words { gemm } = Words::try_parse_from(words).map_err(|error| sentence(&error))?;
    let case = gemm.case(0)?;
    if case.is_empty() || case.k == 0 {
        return Err("nothing is multiplied: m, n, k and the sizes of groups must be at least 1".into());
    }
    Ok(Problem { words: words.join(" "), case })
}

/// The words with each M of a list.
fn each_m(words: &[String]) -> Vec<Vec<String>> {
    let list = words.windows(2).position(|pair| pair[0] == "-m" || pair[0] == "--m");
    let Some(place) = list.map(|flag| flag + 1) else { return vec![words.to_vec()] };
    let with = |m: &str| {
        let mut words = words.to_vec();
        words[place] = m.to_owned();
        words
    };
    words[place].split(',').map(with).collect()
}

/// What is wrong with words, in one line.
fn sentence(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let lines: Vec<&str> = first.lines().map(str::trim).collect();
    lines.join(" ").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_list_of_rows_is_a_problem_each() {
        let found = parse(&words("--op bf16 -m 1,16,128 -n 4096 -k 7168")).unwrap();
        assert_eq!(found.iter().map(|problem| problem.case.m).collect::<Vec<_>>(), [1, 16, 128]);
        assert_eq!(found[1].words, "--op bf16 -m 16 -n 4096 -k 7168");
        let groups = parse(&words("--op fp8-masked --groups 4 -m 20 -n 256 -k 256 --max-m 128")).unwrap();
        assert_eq!(groups[0].case.groups(), Some(4));
    }

    #[test]
    fn what_is_wrong_is_one_line() {
        for (text, said) in [
            ("-m 1 -n 1", "--k <K>"),
            ("-m 1,x -n 1 -k 1", "invalid value 'x'"),
            ("-m 1, -n 1 -k 1", "--m <M>"),
            ("-m 1 -n 1 -k 1 --sfa mn", "unexpected argument '--sfa'"),
            ("-m 1 -n 1 -k 1 --help", "unexpected argument '--help'"),
            ("-m 1 -n 1 -k 0", "at least 1"),
            ("-m 1 -n 1 -k 1 --op fp8 --groups 3", "--groups is for operations with groups"),
        ] {
            let Err(error) = parse(&words(text)) else { panic!("{text} is no problem") };
            let error = error.to_string();
            assert!(error.contains(said) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
