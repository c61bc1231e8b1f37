//! What the tests share.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use oxigemm_cuda::PtxModule;
use oxigemm_cuda::assemble::Ptxas;

/// A kernel that assembles without complaint.
pub const GOOD: PtxModule<'static> = PtxModule {
    name: "good",
    text: ".version 8.0
.target sm_90a
.address_size 64
.visible .entry good(.param .u64 p)
{
    .reg .b64 %d<2>;
    .reg .b32 %r<2>;
    .shared .align 16 .b8 s[256];
    ld.param.u64 %d0, [p];
    cvta.to.global.u64 %d0, %d0;
    mov.u32 %r0, %tid.x;
    st.shared.b32 [s], %r0;
    bar.sync 0;
    ld.shared.b32 %r1, [s];
    st.global.u32 [%d0], %r1;
    ret;
}
",
    arch: "sm_90a",
};

/// The real assembler. Without one the test fails, unless `OXIGEMM_ALLOW_NO_PTXAS=1` says that this is known.
pub fn real_ptxas() -> Option<Ptxas> {
    let found = Ptxas::find();
    if found.is_none() {
        assert!(
            std::env::var_os("OXIGEMM_ALLOW_NO_PTXAS").is_some_and(|value| value == "1"),
            "this test needs ptxas and found none. Set OXIGEMM_PTXAS to the path of one: it is in every CUDA \
             toolkit, or `pip download --no-deps --only-binary=:all: -d w nvidia-cuda-nvcc==13.0.88` and unzip \
             nvidia/cu13/bin/ptxas. Set OXIGEMM_ALLOW_NO_PTXAS=1 to leave such tests out."
        );
        eprintln!("left out: no ptxas, and OXIGEMM_ALLOW_NO_PTXAS=1");
    }
    found
}

/// A program that acts like ptxas: the "cubin" is the PTX behind the version, and every run is counted.
pub struct FakePtxas {
    pub path: PathBuf,
    count: PathBuf,
}

impl FakePtxas {
    /// `body` runs in place of assembling; `assemble` in it makes the cubin.
    pub fn new(dir: &Path, version: &str, body: &str) -> Self {
        let path = dir.join(format!("fake-ptxas-{version}"));
        let count = dir.join(format!("runs-{version}"));
        let script = format!(
            "#!/bin/sh
assemble() {{ echo 'version {version}' > kernel.cubin; cat kernel.ptx >> kernel.cubin; }}
if [ \"$1\" = --version ]; then echo 'release 0, V{version}'; exit 0; fi
echo run >> '{}'
{body}
",
            count.display()
        );
        fs::write(&path, script).unwrap();
        assert!(Command::new("chmod").arg("+x").arg(&path).status().unwrap().success());
        Self { path, count }
    }

    pub fn ptxas(&self) -> Ptxas {
        // Another thread that forks while the script is written keeps it open, and busy, for a moment.
        for _ in 0..200 {
            match Ptxas::at(&self.path) {
                Ok(ptxas) => return ptxas,
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        Ptxas::at(&self.path).unwrap()
    }

    pub fn runs(&self) -> usize {
        fs::read_to_string(&self.count).unwrap_or_default().lines().count()
    }
}

/// Runs one test of this binary in a process of its own; it knows by `OXIGEMM_TEST_CHILD`.
pub fn child(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env("OXIGEMM_TEST_CHILD", "1");
    command
}

pub fn is_child() -> bool {
    std::env::var_os("OXIGEMM_TEST_CHILD").is_some()
}

/// Every cubin entry below a directory.
pub fn entries(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "cubin") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
