//! The description of a launch: a file of JSON.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Component, Path, PathBuf};

use oxigemm_sim::{Fault, Launch, LaunchPart, Machine, Module};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::buffers::{Buffer, BufferSpec};
use super::params::parameter;
use super::place::Step::{self, Index, Key};
use super::place::{DescriptionError, locate};
use crate::Failure;

/// A file that describes a launch.
#[derive(Debug)]
pub struct Description {
    file: PathBuf,
    text: String,
    spec: Spec,
}

/// A launch with its arguments.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    /// The entry; needed where the module has several.
    entry: Option<String>,
    grid: Vec<u32>,
    block: Vec<u32>,
    cluster: Option<Vec<u32>>,
    #[serde(default)]
    shared_bytes: u32,
    #[serde(default)]
    buffers: BTreeMap<String, BufferSpec>,
    #[serde(default)]
    /// An object each: see [`parameter`].
    params: Vec<Map<String, Value>>,
}

impl Description {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Description, Failure> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let spec = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Description { file: path.to_owned(), text, spec })
    }

    /// Refuses names of buffers that are no names of files: they are written into a folder, and nowhere else.
    pub fn expect_file_names(&self) -> Result<(), Failure> {
        for name in self.spec.buffers.keys() {
            let mut parts = Path::new(name).components();
            let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
            if !plain || name.contains(['/', '\\', '\0']) {
                let message =
                    format!("buffer `{name}`: expected a name that a file can have, as --out writes it");
                return Err(self.refuse(&[Key("buffers"), Key(name)], message).into());
            }
        }
        Ok(())
    }

    /// An error about the value at the end of a path.
    fn refuse(&self, path: &[Step<'_>], message: impl Display) -> DescriptionError {
        let (line, column) = locate(&self.text, path);
        DescriptionError { file: self.file.clone(), line, column, message: message.to_string() }
    }

    /// A fault of the simulator; one of the launch, with the place of what it refuses.
    pub fn fault(&self, fault: Fault) -> Failure {
        let Some(part) = fault.launch else { return fault.into() };
        let path = match part {
            LaunchPart::Entry => vec![Key("entry")],
            LaunchPart::Grid => vec![Key("grid")],
            LaunchPart::Block => vec![Key("block")],
            LaunchPart::Cluster => vec![Key("cluster")],
            LaunchPart::SharedBytes => vec![Key("shared_bytes")],
            LaunchPart::Params => vec![Key("params")],
            LaunchPart::Param(i) => vec![Key("params"), Index(i)],
        };
        self.refuse(&path, fault).into()
    }

    /// Fills a machine's memory; files are looked for beside `folder`.
    pub fn buffers(&self, folder: &Path, machine: &mut Machine) -> Result<Vec<Buffer>, Failure> {
        let mut buffers = Vec::new();
        for (name, spec) in &self.spec.buffers {
            let refuse = |why: String| {
                self.refuse(&[Key("buffers"), Key(name)], format_args!("buffer `{name}`: {why}"))
            };
            // Before its elements are made.
            if let (Some(bytes), Some(room)) = (spec.bytes(), machine.memory.room())
                && bytes > room
            {
                let why = format!("{bytes} bytes, where --memory leaves {room}");
                return Err(refuse(why).into());
            }
            buffers.push(spec.place(name, folder, &mut machine.memory).map_err(refuse)?);
        }
        Ok(buffers)
    }

    /// The launch, with these buffers.
    pub fn launch(&self, module: &Module, buffers: &[Buffer]) -> Result<Launch, Failure> {
        let entries: Vec<&str> = module.entries().collect();
        let entry = match (&self.spec.entry, &entries[..]) {
            (Some(entry), _) => entry.clone(),
            (None, [only]) => (*only).to_owned(),
            (None, _) => {
                let message = format!("`entry` must be one of {}", entries.join(", "));
                return Err(self.refuse(&[], message).into());
            }
        };
        let params = self.spec.params.iter().enumerate().map(|(i, param)| {
            parameter(param, buffers).map_err(|why| {
                let place =
                    module.declared_at(&entry).map_or(String::new(), |at| format!(", declared at {at}"));
                let message = format!("parameter {i} of `{entry}`{place}: {why}");
                self.refuse(&[Key("params"), Index(i)], message)
            })
        });
        let params = params.collect::<Result<_, _>>()?;
        let Spec { grid, block, cluster, shared_bytes, .. } = &self.spec;
        Ok(Launch {
            entry,
            grid: self.dimensions("grid", grid)?,
            cluster: cluster.as_deref().map(|cluster| self.dimensions("cluster", cluster)).transpose()?,
            block: self.dimensions("block", block)?,
            shared_bytes: *shared_bytes,
            params,
        })
    }

    fn dimensions(&self, name: &str, given: &[u32]) -> Result<[u32; 3], DescriptionError> {
        if given.is_empty() || given.len() > 3 {
            let message = format!("`{name}` has 1 to 3 dimensions, not {}", given.len());
            return Err(self.refuse(&[Key(name)], message));
        }
        Ok(std::array::from_fn(|i| given.get(i).copied().unwrap_or(1)))
    }
}
