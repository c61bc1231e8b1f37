//! The description of a launch: a file of JSON.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Component, Path, PathBuf};

use oxigemm::{DType, random};
use oxigemm_sim::{Element, Fault, Launch, LaunchPart, Machine, Module, Param, Swizzle, TensorMapSpec};
use serde::Deserialize;

use super::npy::Array;
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
    params: Vec<ParamSpec>,
}

/// A buffer: a file, or elements of a type by a pattern.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BufferSpec {
    npy: Option<PathBuf>,
    #[serde(rename = "type")]
    kind: Option<String>,
    shape: Option<Vec<usize>>,
    fill: Option<Fill>,
    #[serde(default)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Fill {
    /// Not written: reading it is a fault.
    None,
    Zeros,
    Ones,
    /// 0, 1, 2, ...
    Count,
    /// Standard normals, for floats.
    Normal,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ParamSpec {
    /// The address of a buffer.
    Buffer(String),
    U32(u32),
    U64(u64),
    F32(f32),
    I32(i32),
    I64(i64),
    F64(f64),
    TensorMap(MapSpec),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MapSpec {
    buffer: String,
    element: String,
    dims: Vec<u64>,
    #[serde(default)]
    strides: Vec<u64>,
    #[serde(rename = "box")]
    box_dims: Vec<u32>,
    #[serde(default)]
    swizzle: u32,
    /// NaN instead of zeros out of bounds.
    #[serde(default)]
    nan_fill: bool,
}

/// A buffer in the machine.
#[derive(Clone, Debug)]
pub struct Buffer {
    pub name: String,
    pub address: u64,
    /// What it held before the kernel; its bytes are none where nothing was written.
    pub before: Array,
    pub len: usize,
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
            let (before, len) = spec.content(folder).map_err(|why| {
                self.refuse(&[Key("buffers"), Key(name)], format_args!("buffer `{name}`: {why}"))
            })?;
            let address = if before.bytes.is_empty() {
                machine.memory.allocate(len)
            } else {
                machine.memory.allocate_with(&before.bytes)
            };
            buffers.push(Buffer { name: name.clone(), address, before, len });
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

fn parameter(spec: &ParamSpec, buffers: &[Buffer]) -> Result<Param, String> {
    let find = |name: &str| {
        buffers
            .iter()
            .find(|buffer| buffer.name == name)
            .ok_or_else(|| format!("there is no buffer `{name}`"))
    };
    Ok(match spec {
        ParamSpec::Buffer(name) => Param::U64(find(name)?.address),
        ParamSpec::U32(value) => Param::U32(*value),
        ParamSpec::U64(value) => Param::U64(*value),
        ParamSpec::F32(value) => Param::F32(*value),
        ParamSpec::I32(value) => Param::U32(value.cast_unsigned()),
        ParamSpec::I64(value) => Param::U64(value.cast_unsigned()),
        ParamSpec::F64(value) => Param::U64(value.to_bits()),
        ParamSpec::TensorMap(map) => {
            let buffer = find(&map.buffer)?;
            let spec = TensorMapSpec {
                address: buffer.address,
                element: element(&map.element)?,
                dims: map.dims.clone(),
                strides: map.strides.clone(),
                box_dims: map.box_dims.clone(),
                swizzle: swizzle(map.swizzle)?,
            };
            let outside = if map.nan_fill { oxigemm_sim::Fill::Nan } else { oxigemm_sim::Fill::Zeros };
            let encoded = spec.encode_with_fill(outside).map_err(|fault| fault.message)?;
            if spec.extent() > buffer.len as u64 {
                let (extent, name, len) = (spec.extent(), &map.buffer, buffer.len);
                return Err(format!("the tensor has {extent} bytes, buffer `{name}` only {len}"));
            }
            encoded.into()
        }
    })
}

fn element(name: &str) -> Result<Element, String> {
    Ok(match name {
        "u8" | "e4m3" | "e5m2" => Element::U8,
        "u16" => Element::U16,
        "u32" => Element::U32,
        "i32" => Element::S32,
        "u64" => Element::U64,
        "i64" => Element::S64,
        "f16" => Element::F16,
        "f32" => Element::F32,
        "f64" => Element::F64,
        "bf16" => Element::Bf16,
        _ => return Err(format!("`{name}` is not an element type of a tensor map")),
    })
}

fn swizzle(bytes: u32) -> Result<Swizzle, String> {
    Ok(match bytes {
        0 => Swizzle::None,
        32 => Swizzle::B32,
        64 => Swizzle::B64,
        128 => Swizzle::B128,
        _ => return Err(format!("a swizzle has 0, 32, 64 or 128 bytes, not {bytes}")),
    })
}

impl BufferSpec {
    /// What is written to it before the kernel, and its length.
    fn content(&self, folder: &Path) -> Result<(Array, usize), String> {
        match (&self.npy, &self.kind, &self.shape) {
            (Some(npy), None, None) if self.fill.is_none() => {
                let path = folder.join(npy);
                let file = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
                let array = Array::parse(&file).map_err(|why| format!("{}: {why}", path.display()))?;
                let len = array.bytes.len();
                Ok((array, len))
            }
            (None, Some(kind), Some(shape)) => {
                let count = shape.iter().try_fold(1usize, |count, length| count.checked_mul(*length));
                let count = count.filter(|count| *count <= 1 << 32).ok_or("it is too large")?;
                let (descr, bytes) = self.pattern(kind, count)?;
                let size = descr[2..].parse().unwrap_or(1);
                Ok((Array { descr: descr.to_owned(), shape: shape.clone(), bytes }, count * size))
            }
            _ => Err("expected either `npy`, or `type` and `shape` with `fill`".to_owned()),
        }
    }

    fn pattern(&self, kind: &str, count: usize) -> Result<(&'static str, Vec<u8>), String> {
        let fill = self.fill.unwrap_or(Fill::Zeros);
        if let Ok(dtype) = kind.parse::<DType>() {
            let descr = match dtype {
                DType::F32 => "<f4",
                DType::F16 => "<f2",
                // NumPy has no name for these: their bits.
                DType::Bf16 => "<u2",
                _ => "|u1",
            };
            let values: Vec<f32> = match fill {
                Fill::None => Vec::new(),
                Fill::Zeros => vec![0.0; count],
                Fill::Ones => vec![1.0; count],
                Fill::Count => (0..count).map(|i| i as f32).collect(),
                Fill::Normal => random::normals(self.seed, count),
            };
            return Ok((descr, dtype.encode(&values)));
        }
        let (descr, size) = match kind {
            "u8" => ("|u1", 1),
            "u16" => ("<u2", 2),
            "u32" => ("<u4", 4),
            "i32" => ("<i4", 4),
            "u64" => ("<u8", 8),
            "i64" => ("<i8", 8),
            _ => return Err(format!("`{kind}` is not an element type")),
        };
        let integer = |value: u64| value.to_le_bytes().into_iter().take(size);
        let bytes = match fill {
            Fill::None => Vec::new(),
            Fill::Zeros => vec![0; count * size],
            Fill::Ones => (0..count).flat_map(|_| integer(1)).collect(),
            Fill::Count => (0..count as u64).flat_map(integer).collect(),
            Fill::Normal => return Err("normals are floats".to_owned()),
        };
        Ok((descr, bytes))
    }
}
