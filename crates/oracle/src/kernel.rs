//! A kernel of the corpus: PTX, and the description that the script beside it has written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::format::Format;

/// Environment variable that names the folder of the corpus.
const FOLDER: &str = "OXIGEMM_ORACLES";
/// Where the source tree has it.
const IN_TREE: &str = "crates/oracle/ptx";

/// A kernel with a launch of it.
#[derive(Clone, Debug, Deserialize)]
pub struct Kernel {
    /// Its name in the corpus.
    pub name: String,
    /// The compiler and its version.
    pub compiler: String,
    /// The target of its PTX.
    pub target: String,
    /// Name of the entry.
    pub entry: String,
    /// CTAs of the grid.
    pub grid: [u32; 3],
    /// Threads of a CTA.
    pub block: [u32; 3],
    /// CTAs of a cluster.
    pub cluster: [u32; 3],
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// What it computes, by name.
    pub reference: String,
    /// What the reference needs to know besides.
    #[serde(default)]
    pub(crate) about: About,
    /// Constants of the source.
    pub(crate) constants: BTreeMap<String, serde_json::Value>,
    /// Arguments in the order of the entry.
    pub params: Vec<Param>,
    /// The PTX.
    #[serde(skip)]
    pub ptx: String,
}

/// What some references need to know.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct About {
    /// What A is multiplied by on its way.
    pub(crate) factor: f64,
    /// Outputs that start as zeros.
    pub(crate) zeroed: Vec<String>,
}

impl Default for About {
    fn default() -> About {
        About { factor: 1.0, zeroed: Vec::new() }
    }
}

/// An argument of a kernel.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Param {
    /// The address of a row-major tensor.
    Pointer { arg: String, element: Element, shape: Vec<usize> },
    /// A tensor map of a row-major tensor.
    Map { arg: String, element: Element, shape: Vec<usize>, r#box: Vec<u32>, swizzle: u32, padded_fp4: bool },
    /// A number.
    I32 { arg: String, value: i32 },
    /// A number.
    I64 { arg: String, value: i64 },
    /// Memory that the kernel itself uses; a null pointer where it has no bytes.
    Scratch { arg: String, bytes: usize },
}

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Element(pub(crate) Format);

impl Kernel {
    /// An integer constant of the source.
    pub(crate) fn constant(&self, name: &str) -> Option<i64> {
        self.constants.get(name)?.as_i64()
    }

    /// A constant of the source that is a word.
    pub(crate) fn word(&self, name: &str) -> Option<&str> {
        self.constants.get(name)?.as_str()
    }

    /// Type and shape of a tensor. A tensor that a map describes has a `d` before its name.
    pub(crate) fn tensor(&self, name: &str) -> Option<(String, Format, &[usize])> {
        self.params.iter().find_map(|param| match param {
            Param::Pointer { arg, element, shape } if arg == name => {
                Some((arg.clone(), element.0, shape.as_slice()))
            }
            Param::Map { arg, element, shape, .. } if arg.strip_prefix('d') == Some(name) => {
                Some((arg.clone(), element.0, shape.as_slice()))
            }
            _ => None,
        })
    }
}

/// The folder of the corpus: that of `OXIGEMM_ORACLES`, or of the source tree around the current folder or the program.
pub fn folder() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(FOLDER) {
        return Some(named.into());
    }
    let around = |start: PathBuf| {
        start.ancestors().map(|above| above.join(IN_TREE)).find(|candidate| candidate.is_dir())
    };
    let here = std::env::current_dir().ok().and_then(around);
    here.or_else(|| std::env::current_exe().ok().and_then(around))
}

/// Every kernel of a folder, by name.
pub fn corpus(folder: &Path) -> Result<Vec<Kernel>, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    files.iter().map(|file| load(file)).collect()
}

fn load(description: &Path) -> Result<Kernel, String> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let text = read(description)?;
    let mut kernel: Kernel =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", description.display()))?;
    kernel.ptx = read(&description.with_extension("ptx"))?;
    Ok(kernel)
}
