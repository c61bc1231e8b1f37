//! Search paths of NVIDIA's optional programs and libraries.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The directories to look in, each list with the preferred ones first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places {
    /// The directories of `PATH`.
    pub(crate) path: Vec<PathBuf>,
    /// CUDA toolkits.
    pub(crate) toolkits: Vec<PathBuf>,
    /// Directories of Python packages: the wheels of torch, Triton and NVIDIA carry tools and libraries.
    pub(crate) packages: Vec<PathBuf>,
}

impl Places {
    pub(crate) fn of_this_machine() -> Self {
        let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let list = |name| env::var_os(name).map(|v| env::split_paths(&v).collect()).unwrap_or_default();
        let path: Vec<PathBuf> = list("PATH");

        let mut toolkits: Vec<PathBuf> =
            ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable).collect();
        toolkits.push("/usr/local/cuda".into());
        toolkits.extend(newest_first(children(Path::new("/usr/local"), "cuda-")));

        let mut packages: Vec<PathBuf> = list("PYTHONPATH");
        let mut prefixes: Vec<PathBuf> =
            ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable).collect();
        for dir in path.iter().filter(|dir| dir.join("python3").exists()) {
            prefixes.extend(dir.parent().map(Path::to_path_buf));
        }
        prefixes.extend(variable("HOME").map(|home| home.join(".local")));
        prefixes.extend(["/usr/local".into(), "/usr".into()]);
        for prefix in prefixes {
            for lib in ["lib", "lib64"] {
                for python in newest_first(children(&prefix.join(lib), "python3")) {
                    packages.extend(["site-packages", "dist-packages"].map(|name| python.join(name)));
                }
            }
        }
        packages.retain(|dir| dir.is_dir());
        let mut places = Self { path, toolkits, packages };
        for list in [&mut places.path, &mut places.toolkits, &mut places.packages] {
            let mut seen = std::collections::HashSet::new();
            list.retain(|dir| seen.insert(dir.clone()));
        }
        places
    }

    /// Every file of this name that is a program, in the order of preference.
    pub(crate) fn programs(&self, name: &str) -> Vec<PathBuf> {
        let mut dirs = self.path.clone();
        dirs.extend(self.toolkits.iter().map(|root| root.join("bin")));
        for packages in &self.packages {
            dirs.extend(
                ["triton/backends/nvidia/bin", "torch/bin", "nvidia/cuda_nvcc/bin"]
                    .map(|inside| packages.join(inside)),
            );
            dirs.extend(wheels(packages).into_iter().map(|wheel| wheel.join("bin")));
        }
        dirs.into_iter().map(|dir| dir.join(name)).filter(|file| file.is_file()).collect()
    }

    /// Every file of a shared library, whatever version it is of, in the order of preference.
    ///
    /// `part` is its directory in the NVIDIA wheels of CUDA 12, such as `cublas`.
    pub(crate) fn libraries(&self, name: &str, part: &str) -> Vec<PathBuf> {
        let mut dirs = Vec::new();
        for root in &self.toolkits {
            dirs.extend(
                ["lib64", "extras/CUPTI/lib64", "targets/x86_64-linux/lib"].map(|lib| root.join(lib)),
            );
        }
        for packages in &self.packages {
            dirs.extend(wheels(packages).into_iter().map(|wheel| wheel.join("lib")));
            dirs.push(packages.join("nvidia").join(part).join("lib"));
            dirs.push(packages.join("torch/lib"));
        }
        let file = format!("lib{name}.so");
        dirs.into_iter().flat_map(|dir| newest_first(children(&dir, &file))).collect()
    }
}

/// The directories `nvidia/cu13` and the like, where the wheels of CUDA 13 and later put everything.
fn wheels(packages: &Path) -> Vec<PathBuf> {
    let mut found = children(&packages.join("nvidia"), "cu");
    found.retain(|dir| {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        name[2..].bytes().all(|b| b.is_ascii_digit()) && name.len() > 2
    });
    newest_first(found)
}

fn children(dir: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(prefix)))
        .collect()
}

fn newest_first(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.sort_by_cached_key(|path| std::cmp::Reverse(numbers(&path.to_string_lossy())));
    paths
}

/// The numbers in a name, to order versions by: 12.10 comes after 12.9.
pub(crate) fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn touch(path: &Path) -> PathBuf {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"").unwrap();
        path.to_path_buf()
    }

    #[test]
    fn a_program_on_the_path_comes_before_toolkits_and_those_before_wheels() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        let triton = touch(&at("site/triton/backends/nvidia/bin/ptxas"));
        let wheel = touch(&at("site/nvidia/cu13/bin/ptxas"));
        let toolkit = touch(&at("cuda/bin/ptxas"));
        let path = touch(&at("bin/ptxas"));
        fs::create_dir_all(at("bin2/ptxas")).unwrap();
        let places = Places {
            path: vec![at("absent"), at("bin2"), at("bin")],
            toolkits: vec![at("cuda")],
            packages: vec![at("site")],
        };
        assert_eq!(places.programs("ptxas"), [path, toolkit, triton, wheel]);
        assert!(places.programs("nvdisasm").is_empty());
    }

    #[test]
    fn the_newest_version_of_a_library_comes_first() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        let old = touch(&at("site/nvidia/cublas/lib/libcublasLt.so.9"));
        let new = touch(&at("site/nvidia/cublas/lib/libcublasLt.so.12"));
        let wheel = touch(&at("site/nvidia/cu13/lib/libcublasLt.so.13"));
        touch(&at("site/nvidia/cudnn/lib/libcublasLt.so.13"));
        let places = Places { packages: vec![at("site")], ..Places::default() };
        assert_eq!(places.libraries("cublasLt", "cublas"), [wheel, new, old]);
    }

    #[test]
    fn versions_are_ordered_as_numbers() {
        assert!(numbers("ptxas-12.10.1") > numbers("ptxas-12.9.99"));
        assert!(numbers("ptxas-13.0.88") > numbers("ptxas-12.10.1"));
    }
}
