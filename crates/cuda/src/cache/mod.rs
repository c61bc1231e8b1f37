//! Cubin cache: cubins on disk, keyed by PTX text and architecture.
//!
//! An entry is at `ARCH/KEY/ASSEMBLER.cubin`, where `KEY` is the BLAKE3 of the PTX text and the architecture.
//! So all three that decide about a cubin are in its address, and nothing else is: no path, no host name, no
//! time, and a cache can be copied to another machine.
//!
//! A lookup takes *any* assembler's entry for the PTX and the architecture, the newest one where there are
//! several. That is on purpose. A machine without `ptxas`, or with another version of it, must still hit in a
//! cache that it was given, and asking `ptxas` for its version would cost a process on every first call.
//! Whoever wants the code of a newer assembler puts it in beside the old one (`oxigemm prebuild` does); it
//! then comes first.

mod disk;
mod entry;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::arch::Arch;
use crate::assemble::{Ptxas, Report};
use crate::error::{Error, Result};
use crate::module::{Provenance, PtxModule};
use crate::search::numbers;
use disk::{Lock, WriteFn};

/// The longest that one process waits for another one to assemble the same kernel.
const PATIENCE: Duration = Duration::from_secs(20);

/// Key of a cubin: the PTX text and the architecture.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    hash: [u8; 32],
    arch: String,
}

impl Key {
    /// The key of a PTX module. Its name is no part of it.
    pub fn new(ptx: &PtxModule<'_>) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("oxigemm cubin of PTX, version 1");
        hasher.update(&(ptx.arch.len() as u64).to_le_bytes());
        hasher.update(ptx.arch.as_bytes());
        hasher.update(ptx.text.as_bytes());
        Self { hash: *hasher.finalize().as_bytes(), arch: file_name(ptx.arch) }
    }

    fn dir(&self, root: &Path) -> PathBuf {
        root.join(&self.arch).join(self.to_string())
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&blake3::Hash::from(self.hash).to_hex())
    }
}

/// A cubin and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cubin {
    /// The ELF file.
    pub bytes: Vec<u8>,
    /// Where it came from.
    pub provenance: Provenance,
    /// The assembler that made it, such as `ptxas 13.0.88`.
    pub assembler: String,
    /// What the assembler said, where it ran just now.
    pub report: Option<Report>,
}

/// Counters of a cache since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Cubins that were found, prebuilt or cached.
    pub hits: u64,
    /// Cubins that were not found.
    pub misses: u64,
    /// Kernels that `ptxas` assembled.
    pub compiled_by_ptxas: u64,
    /// Kernels that the driver compiled.
    pub compiled_by_driver: u64,
    /// Entries that were damaged or that the driver refused.
    pub rejected: u64,
}

/// A cache of cubins. Clones share the directory and the counters.
///
/// It is safe under many threads and processes, and it never makes a call fail: where it cannot be written it
/// warns once and is left out, where an entry is damaged it warns and the entry is made anew.
///
/// ```
/// use oxigemm_cuda::{CubinCache, Key, PtxModule};
///
/// # let dir = tempfile::tempdir().unwrap();
/// let cache = CubinCache::at(dir.path());
/// let key = Key::new(&PtxModule { name: "k", text: "(PTX)", arch: "sm_90a" });
/// assert!(cache.get(&key).is_none());
/// cache.put(&key, "ptxas 13.0.88", b"(cubin)");
/// assert_eq!(cache.get(&key).unwrap().bytes, b"(cubin)");
/// ```
#[derive(Debug, Clone)]
pub struct CubinCache {
    root: Option<PathBuf>,
    prebuilt: Vec<PathBuf>,
    assembler: Assembler,
    write: WriteFn,
    shared: Arc<Shared>,
}

#[derive(Debug, Clone)]
enum Assembler {
    WhateverIsFound,
    Given(Ptxas),
    None,
}

#[derive(Debug, Default)]
struct Shared {
    hits: AtomicU64,
    misses: AtomicU64,
    compiled_by_ptxas: AtomicU64,
    compiled_by_driver: AtomicU64,
    rejected: AtomicU64,
    warned_about_writing: AtomicBool,
    warned_about_assembler: AtomicBool,
}

impl CubinCache {
    /// The user's cache: `OXIGEMM_CACHE_DIR` (`none` for no cache), else `oxigemm` in `XDG_CACHE_HOME`, else
    /// `~/.cache/oxigemm`. Cubins in `OXIGEMM_PREBUILT_DIR` come first.
    pub fn user_default() -> Self {
        Self::from_environment(|name| env::var_os(name))
    }

    fn from_environment(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let absolute = |name| set(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let root = match set("OXIGEMM_CACHE_DIR") {
            Some(value) if value == "none" => None,
            Some(value) => Some(PathBuf::from(value)),
            None => absolute("XDG_CACHE_HOME")
                .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
                .map(|dir| dir.join("oxigemm")),
        };
        Self {
            root,
            prebuilt: set("OXIGEMM_PREBUILT_DIR").map(PathBuf::from).into_iter().collect(),
            ..Self::disabled()
        }
    }

    /// A cache in a directory, which is created when something is put into it.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { root: Some(path.into()), ..Self::disabled() }
    }

    /// No cache: nothing is read or written.
    pub fn disabled() -> Self {
        Self {
            root: None,
            prebuilt: Vec::new(),
            assembler: Assembler::WhateverIsFound,
            write: disk::write_durably,
            shared: Arc::default(),
        }
    }

    /// Looks in a directory of cubins that were built ahead first. It is never written to.
    pub fn with_prebuilt(mut self, path: impl Into<PathBuf>) -> Self {
        self.prebuilt.push(path.into());
        self
    }

    /// Assembles with this `ptxas` instead of the one that [`Ptxas::find`] finds.
    pub fn with_ptxas(mut self, ptxas: Ptxas) -> Self {
        self.assembler = Assembler::Given(ptxas);
        self
    }

    /// Never runs `ptxas`: what is not found is left to the driver.
    pub fn without_ptxas(mut self) -> Self {
        self.assembler = Assembler::None;
        self
    }

    /// Its directory, where it has one.
    pub fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    /// What it did so far.
    pub fn stats(&self) -> CacheStats {
        let shared = &self.shared;
        CacheStats {
            hits: shared.hits.load(Relaxed),
            misses: shared.misses.load(Relaxed),
            compiled_by_ptxas: shared.compiled_by_ptxas.load(Relaxed),
            compiled_by_driver: shared.compiled_by_driver.load(Relaxed),
            rejected: shared.rejected.load(Relaxed),
        }
    }

    /// The cubin of a PTX module: prebuilt, cached, or assembled now and then cached. No GPU is needed.
    ///
    /// `None` means that there is no cubin and no fit assembler, so that the driver has to compile the PTX. PTX
    /// that the assembler refuses, or of which it makes ruined code, is an error.
    pub fn cubin(&self, ptx: &PtxModule<'_>) -> Result<Option<Cubin>> {
        Arch::parse(ptx.arch)?;
        let key = Key::new(ptx);
        if let Some(cubin) = self.get(&key) {
            self.shared.hits.fetch_add(1, Relaxed);
            return Ok(Some(cubin));
        }
        let ptxas = match &self.assembler {
            Assembler::WhateverIsFound => Ptxas::find(),
            Assembler::Given(ptxas) => Some(ptxas.clone()),
            Assembler::None => None,
        };
        let Some(ptxas) = ptxas else {
            self.shared.misses.fetch_add(1, Relaxed);
            return Ok(None);
        };
        let _lock = self.root.as_ref().and_then(|root| Lock::acquire(&key.dir(root), PATIENCE));
        if let Some(cubin) = self.get_cached(&key) {
            // Another thread or process made it while this one waited.
            self.shared.hits.fetch_add(1, Relaxed);
            return Ok(Some(cubin));
        }
        self.shared.misses.fetch_add(1, Relaxed);
        match ptxas.assemble(ptx) {
            Ok(assembled) => {
                self.shared.compiled_by_ptxas.fetch_add(1, Relaxed);
                self.put(&key, ptxas.version(), &assembled.cubin);
                Ok(Some(Cubin {
                    bytes: assembled.cubin,
                    provenance: Provenance::Ptxas,
                    assembler: ptxas.version().to_owned(),
                    report: Some(assembled.report),
                }))
            }
            Err(error @ (Error::AssemblerUnfit { .. } | Error::Io { .. })) => {
                if !self.shared.warned_about_assembler.swap(true, Relaxed) {
                    tracing::warn!("{error}; the driver compiles instead");
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The entry of a key, prebuilt or cached. A damaged one is skipped with a warning.
    pub fn get(&self, key: &Key) -> Option<Cubin> {
        let prebuilt =
            self.prebuilt.iter().find_map(|root| self.look(&key.dir(root), key, Provenance::Prebuilt));
        prebuilt.or_else(|| self.get_cached(key))
    }

    fn get_cached(&self, key: &Key) -> Option<Cubin> {
        self.look(&key.dir(self.root.as_ref()?), key, Provenance::Cached)
    }

    /// The newest sound entry in the directory of a key.
    fn look(&self, dir: &Path, key: &Key, provenance: Provenance) -> Option<Cubin> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.ends_with(SUFFIX) && !name.starts_with('.'))
            .collect();
        names.sort_by_cached_key(|name| std::cmp::Reverse((numbers(name), name.clone())));
        names.into_iter().find_map(|name| {
            let path = dir.join(name);
            let damage = match fs::read(&path) {
                Ok(bytes) => match entry::decode(key, &bytes) {
                    Ok((assembler, cubin)) => {
                        let (bytes, assembler) = (cubin.to_vec(), assembler.to_owned());
                        return Some(Cubin { bytes, provenance, assembler, report: None });
                    }
                    Err(damage) => damage.to_string(),
                },
                // Replaced or removed since the directory was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
                Err(error) => error.to_string(),
            };
            self.shared.rejected.fetch_add(1, Relaxed);
            tracing::warn!(entry = %path.display(), "a cubin entry is damaged ({damage}); it will be made anew");
            if provenance == Provenance::Cached {
                let _ = fs::remove_file(&path);
            }
            None
        })
    }

    /// Keeps a cubin. Where that fails, because the disk is full or the directory cannot be written, there is
    /// one warning, and `false`.
    pub fn put(&self, key: &Key, assembler: &str, cubin: &[u8]) -> bool {
        let Some(root) = &self.root else { return false };
        let name = format!("{}{SUFFIX}", file_name(assembler));
        let written = disk::replace(&key.dir(root), &name, &entry::encode(key, assembler, cubin), self.write);
        if let Err(error) = &written
            && !self.shared.warned_about_writing.swap(true, Relaxed)
        {
            tracing::warn!(
                root = %root.display(),
                "the cubin cache cannot be written ({error}); kernels are assembled anew in every process"
            );
        }
        written.is_ok()
    }

    pub(crate) fn count_driver(&self) {
        self.shared.compiled_by_driver.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_refused(&self) {
        self.shared.rejected.fetch_add(1, Relaxed);
    }
}

const SUFFIX: &str = ".cubin";

/// A text as one component of a path.
fn file_name(text: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "._".contains(c) { c } else { '-' };
    let name: String = text.chars().map(safe).take(80).collect();
    // Names that begin with a dot are hidden or special.
    name.strip_prefix('.').map_or(name.clone(), |rest| format!("-{rest}"))
}

#[cfg(test)]
mod tests;
