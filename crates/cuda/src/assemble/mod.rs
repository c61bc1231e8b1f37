//! NVIDIA's assembler and disassembler, where the machine has them.
//!
//! `ptxas` comes with every CUDA toolkit and inside the Triton and PyTorch wheels. It is looked for in
//! `OXIGEMM_PTXAS` (a path; `none` means that none shall be used), on `PATH`, in `CUDA_HOME`, `CUDA_PATH` and
//! `/usr/local/cuda`, and among the installed Python packages. Nothing depends on finding one.

mod report;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub use report::{EntryReport, Notice, Report};

use crate::error::{Error, Result};
use crate::module::PtxModule;
use crate::search::Places;

/// A `ptxas` that runs. Clones are cheap.
#[derive(Debug, Clone)]
pub struct Ptxas {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    version: String,
}

/// A cubin fresh from the assembler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assembled {
    /// The ELF file.
    pub cubin: Vec<u8>,
    /// What the assembler said about it.
    pub report: Report,
}

impl Ptxas {
    /// The `ptxas` of this machine, looked for once per process.
    pub fn find() -> Option<Self> {
        static FOUND: OnceLock<Option<Ptxas>> = OnceLock::new();
        FOUND.get_or_init(Self::look).clone()
    }

    fn look() -> Option<Self> {
        if let Some(given) = env::var_os("OXIGEMM_PTXAS").filter(|value| !value.is_empty()) {
            if given == "none" {
                return None;
            }
            return match Self::at(&given) {
                Ok(ptxas) => Some(ptxas),
                Err(error) => {
                    tracing::warn!("OXIGEMM_PTXAS is of no use: {error}; the driver compiles instead");
                    None
                }
            };
        }
        let found = Places::of_this_machine().programs("ptxas").into_iter().find_map(|p| Self::at(p).ok());
        match &found {
            Some(ptxas) => {
                tracing::debug!(path = %ptxas.path().display(), version = ptxas.version(), "ptxas")
            }
            None => tracing::debug!("no ptxas found: the driver compiles"),
        }
        found
    }

    /// A `ptxas` at a known place; it is asked for its version.
    pub fn at(path: impl AsRef<Path>) -> Result<Self> {
        // The assembler runs in another directory, where a relative path would mean something else.
        let path = std::path::absolute(path.as_ref())
            .map_err(|e| Error::io(format!("find {}", path.as_ref().display()), e))?;
        let output = run(Command::new(&path).arg("--version"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text
            .split(|c: char| c.is_whitespace() || c == ',')
            .filter_map(|word| word.strip_prefix('V'))
            .find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        match version {
            Some(version) if output.status.success() => {
                Ok(Self { inner: Arc::new(Inner { path, version: format!("ptxas {version}") }) })
            }
            _ => Err(Error::Io {
                action: format!("ask {} for its version", path.display()),
                text: format!("it answered {:?}", text.trim()),
            }),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Its name and version, such as `ptxas 13.0.88`.
    pub fn version(&self) -> &str {
        &self.inner.version
    }

    /// Makes a cubin.
    ///
    /// Refused PTX, spills, a stack and every message that means ruined code are [`Error::Assemble`], with
    /// the log. An assembler that is too old for the PTX or the architecture is [`Error::AssemblerUnfit`].
    pub fn assemble(&self, ptx: &PtxModule<'_>) -> Result<Assembled> {
        let scratch = Scratch::new()?;
        let (input, output) = (scratch.path("kernel.ptx"), scratch.path("kernel.cubin"));
        fs::write(&input, ptx.text).map_err(|e| Error::io(format!("write {}", input.display()), e))?;
        let mut command = Command::new(self.path());
        command.arg(format!("-arch={}", ptx.arch)).arg("-v");
        if ptx.text.contains(".loc") {
            // Without it the lines of the kernel's source are lost.
            command.arg("-lineinfo");
        }
        // Relative names: what the assembler writes does not depend on the place of the scratch directory.
        command.current_dir(scratch.dir()).args(["-o", "kernel.cubin", "kernel.ptx"]);
        let done = run(&mut command)?;
        let log = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        if !done.status.success() {
            return Err(self.failure(ptx, done.status.code(), log));
        }
        let report = Report::parse(&log);
        if let Some(reason) = report.fault() {
            return Err(Error::Assemble { kernel: ptx.name.into(), reason, log: report.log });
        }
        let cubin = fs::read(&output).map_err(|e| Error::io(format!("read {}", output.display()), e))?;
        Ok(Assembled { cubin, report })
    }

    fn failure(&self, ptx: &PtxModule<'_>, status: Option<i32>, log: String) -> Error {
        let unfit = |reason: &str| Error::AssemblerUnfit {
            assembler: self.version().into(),
            kernel: ptx.name.into(),
            reason: reason.trim().into(),
        };
        if status.is_none() {
            return unfit("it was killed");
        }
        let too_old = ["Unsupported .version", "is not defined for option 'gpu-name'"];
        if let Some(line) = log.lines().find(|line| too_old.iter().any(|words| line.contains(words))) {
            return unfit(line);
        }
        let refused = |line: &&str| line.contains("error   :") || line.contains("fatal   :");
        let reason = log.lines().find(refused).unwrap_or("ptxas failed").trim().to_owned();
        Error::Assemble { kernel: ptx.name.into(), reason, log: log.trim_end().to_owned() }
    }
}

/// The machine code of a cubin as text, where `nvdisasm` or `cuobjdump` is found.
///
/// They are looked for beside `ptxas` and in the same places.
pub fn disassemble(cubin: &[u8]) -> Option<String> {
    let scratch = Scratch::new().ok()?;
    let file = scratch.path("kernel.cubin");
    fs::write(&file, cubin).ok()?;
    let mut places = Places::of_this_machine();
    places.path.splice(0..0, Ptxas::find().and_then(|ptxas| Some(ptxas.path().parent()?.to_path_buf())));
    for (program, flags) in [("nvdisasm", ["-c"]), ("cuobjdump", ["-sass"])] {
        for path in places.programs(program) {
            let output = run(Command::new(path).args(flags).arg(&file));
            if let Ok(output) = output
                && output.status.success()
                && !output.stdout.is_empty()
            {
                return Some(String::from_utf8_lossy(&output.stdout).into_owned());
            }
        }
    }
    None
}

fn run(command: &mut Command) -> Result<Output> {
    command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::io(format!("run {}", command.get_program().to_string_lossy()), e))
}

/// A directory for the files of one run, removed when it is dropped.
struct Scratch {
    dir: PathBuf,
}

impl Scratch {
    fn new() -> Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let dir = env::temp_dir().join(format!("oxigemm-{}-{number}", std::process::id()));
            match fs::create_dir(&dir) {
                Ok(()) => return Ok(Self { dir }),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::io(format!("create {}", dir.display()), e)),
            }
        }
    }

    fn dir(&self) -> &Path {
        &self.dir
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}
