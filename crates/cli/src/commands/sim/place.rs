//! Where a value stands in a file of JSON, for errors that point at it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde_json::value::RawValue;

/// One step from a value into it.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// The member of an object.
    Key(&'a str),
    /// The element of an array.
    Index(usize),
}

/// A value of a description that cannot be, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptionError {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1, in characters.
    pub column: usize,
    /// What is wrong, in one sentence or with the simulator's notes.
    pub message: String,
}

impl fmt::Display for DescriptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DescriptionError { file, line, column, message } = self;
        write!(f, "{}, line {line}, column {column}: {message}", file.display())
    }
}

impl std::error::Error for DescriptionError {}

/// Line and column of the value at the end of a path, or of the last value on the path that is there.
pub fn locate(text: &str, path: &[Step<'_>]) -> (usize, usize) {
    let mut value = text.trim_start();
    for step in path {
        let inner = match step {
            Step::Key(key) => serde_json::from_str(value)
                .ok()
                .and_then(|mut o: BTreeMap<Cow<'_, str>, &RawValue>| o.remove(*key)),
            Step::Index(index) => {
                serde_json::from_str(value).ok().and_then(|a: Vec<&RawValue>| a.get(*index).copied())
            }
        };
        let Some(inner) = inner else { break };
        value = inner.get();
    }
    let before = &text[..value.as_ptr() as usize - text.as_ptr() as usize];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::Step::{Index, Key};
    use super::locate;

    #[test]
    fn values_are_found_by_their_path() {
        let text = "\n{ \"grid\": [4,\n  2], \"é\": {\"x\": [ {\"u32\": 1}, 7 ]}}";
        assert_eq!(locate(text, &[]), (2, 1));
        assert_eq!(locate(text, &[Key("grid")]), (2, 11));
        assert_eq!(locate(text, &[Key("grid"), Index(1)]), (3, 3));
        assert_eq!(locate(text, &[Key("é"), Key("x"), Index(1)]), (3, 32));
        assert_eq!(locate(text, &[Key("é"), Key("x"), Index(0), Key("u32")]), (3, 28));
        assert_eq!(locate(text, &[Key("grid"), Key("none")]), (2, 11), "the last that is there");
        assert_eq!(locate("not JSON", &[Key("grid")]), (1, 1));
    }
}
