//! Layer check: the modules of a crate, in the order in which they may import each other.
//!
//! A crate writes its order down once, in a test, and [`check`] reads the paths of its source files against it:
//!
//! ```no_run
//! const ORDER: &[&[&str]] = &[&["error"], &["text", "memory"], &["decode"], &["exec", "exec::units"]];
//!
//! let src = std::path::Path::new("src");
//! assert_eq!(oxigemm_layers::check(src, ORDER), []);
//! ```
//!
//! The lowest layer comes first. A module may import itself and what stands in a lower layer; modules of one layer are
//! independent of each other. An entry is a module of the crate or, with `::`, one further down; a file belongs to
//! the longest entry that is a prefix of its path. So no two entries can import each other in a circle. `lib.rs` and
//! `main.rs` tie everything together and stand outside of the order; other files reach nothing through them.

mod source;

use std::fmt;
use std::path::{Path, PathBuf};

/// Something that is not in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The file, relative to the source folder; empty for an entry that has no file.
    pub file: PathBuf,
    /// The line of the path, from one; 0 for the file as a whole.
    pub line: usize,
    /// What is wrong, with the path.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.message)
    }
}

/// The violations of `order` in the Rust files under `src`.
///
/// # Panics
///
/// If a file or folder cannot be read.
pub fn check(src: &Path, order: &[&[&str]]) -> Vec<Violation> {
    let mut files = Vec::new();
    collect(src, &mut files);
    files.sort();
    let mut used = Vec::new();
    let mut violations = Vec::new();
    for path in &files {
        let file = path.strip_prefix(src).unwrap_or(path).to_path_buf();
        let module = module_of(&file);
        if module.is_empty() {
            continue;
        }
        let mut report = |line, message| violations.push(Violation { file: file.clone(), line, message });
        let Some(own) = layer_of(&module, order) else {
            report(0, "the file belongs to no layer".to_owned());
            continue;
        };
        used.push(own.name);
        let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        for import in source::paths(&text, &module) {
            let name = import.path.join("::");
            match layer_of(&import.path, order) {
                None => report(import.line, format!("`crate::{name}` is in no layer")),
                Some(other) if other.name != own.name && other.rank >= own.rank => {
                    let message =
                        format!("`{}` may not import `crate::{name}` of `{}`", own.name, other.name);
                    report(import.line, message);
                }
                Some(_) => {}
            }
        }
    }
    let missing = order.iter().flat_map(|layer| layer.iter()).filter(|name| !used.contains(name));
    violations.extend(missing.map(|name| Violation {
        file: PathBuf::new(),
        line: 0,
        message: format!("no file belongs to `{name}`"),
    }));
    violations
}

struct Layer<'a> {
    name: &'a str,
    rank: usize,
}

/// The entry with the longest name that is a prefix of a path.
fn layer_of<'a>(path: &[String], order: &[&[&'a str]]) -> Option<Layer<'a>> {
    let entries =
        order.iter().enumerate().flat_map(|(rank, layer)| layer.iter().map(move |name| (rank, *name)));
    let fits = entries.filter(|(_, name)| {
        let mut path = path.iter();
        name.split("::").all(|segment| path.next().is_some_and(|p| p == segment))
    });
    fits.max_by_key(|(_, name)| name.len()).map(|(rank, name)| Layer { name, rank })
}

/// The path of the module that a file holds; empty for the root of the crate.
fn module_of(file: &Path) -> Vec<String> {
    let mut module: Vec<String> =
        file.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    if module == ["lib"] || module == ["main"] || module.first().is_some_and(|first| first == "bin") {
        module.clear();
    }
    module
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages of a crate with these files.
    fn messages(name: &str, files: &[(&str, &str)], order: &[&[&str]]) -> Vec<String> {
        let src = std::env::temp_dir().join(format!("oxigemm-layers-{}-{name}", std::process::id()));
        for (file, text) in files {
            let path = src.join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder is made");
            std::fs::write(path, text).expect("a file is written");
        }
        let violations = check(&src, order);
        std::fs::remove_dir_all(&src).expect("the folder is removed");
        violations.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn lower_layers_may_be_imported_and_higher_ones_may_not() {
        let files = [
            ("lib.rs", "mod low; mod high; use crate::anything;"),
            ("low.rs", "fn f() {\n    crate::high::g();\n}"),
            ("high/mod.rs", "mod part;\nuse crate::low::f;"),
            ("high/part.rs", "use super::Whole;\nuse super::super::low;"),
        ];
        assert_eq!(
            messages("order", &files, &[&["low"], &["high"]]),
            ["low.rs:2: `low` may not import `crate::high::g` of `high`"]
        );
    }

    #[test]
    fn modules_of_one_layer_are_independent() {
        let files = [("a.rs", "use crate::b::X;"), ("b.rs", "use super::a;")];
        assert_eq!(messages("rank", &files, &[&["a", "b"]]).len(), 2);
        assert_eq!(messages("chain", &files, &[&["a"], &["b"]]).len(), 1);
    }

    #[test]
    fn the_longest_entry_counts() {
        let files = [("gemm/mod.rs", "use self::sm90::K;"), ("gemm/sm90/mma.rs", "use crate::gemm::Shape;")];
        assert!(messages("nested", &files, &[&["gemm"], &["gemm::sm90"]]).len() == 1);
        let below = [("gemm/mod.rs", ""), files[1]];
        assert!(messages("below", &below, &[&["gemm"], &["gemm::sm90"]]).is_empty());
    }

    #[test]
    fn files_and_entries_without_each_other_are_found() {
        let files = [("a.rs", "use crate::Root;"), ("b.rs", "")];
        assert_eq!(
            messages("missing", &files, &[&["a"], &["c"]]),
            [
                "a.rs:1: `crate::Root` is in no layer",
                "b.rs:0: the file belongs to no layer",
                ":0: no file belongs to `c`"
            ]
        );
    }
}
