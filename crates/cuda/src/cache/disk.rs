//! Atomic file writes, and a lock that never blocks for good.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// How the bytes of an entry get into a file; a test puts a full disk here.
pub(super) type WriteFn = fn(&mut File, &[u8]) -> io::Result<()>;

pub(super) fn write_durably(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)?;
    file.sync_all()
}

const TEMPORARY: &str = ".tmp";

/// Writes a file beside its final place, then moves it there. A reader sees the old file or the new one; a
/// writer that is killed leaves a temporary file, which a later writer removes.
pub(super) fn replace(dir: &Path, name: &str, bytes: &[u8], write: WriteFn) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    remove_stale(dir);
    let unique = RandomState::new().build_hasher().finish();
    let temporary = dir.join(format!(".{name}.{unique:016x}{TEMPORARY}"));
    let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
    let written = write(&mut file, bytes);
    drop(file);
    let moved = written.and_then(|()| fs::rename(&temporary, dir.join(name)));
    if moved.is_err() {
        let _ = fs::remove_file(&temporary);
    } else if let Ok(dir) = File::open(dir) {
        // Makes the name durable too; where that fails, a crash costs one rebuild.
        let _ = dir.sync_all();
    }
    moved
}

/// Removes what killed writers left: nobody takes an hour to write a cubin.
fn remove_stale(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let limit = Duration::from_secs(3600);
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let temporary = path.to_string_lossy().ends_with(TEMPORARY);
        let age = || SystemTime::now().duration_since(fs::metadata(&path).ok()?.modified().ok()?).ok();
        if temporary && age().is_some_and(|age| age > limit) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Held by the one process that assembles a kernel, while others wait for its entry.
///
/// It only saves work: whoever does not get it, because the file system has no locks or the holder hangs,
/// assembles too and writes the same entry. The kernel of the operating system drops it when its holder dies.
pub(super) struct Lock {
    _file: File,
    path: PathBuf,
}

impl Lock {
    pub(super) fn acquire(dir: &Path, patience: Duration) -> Option<Self> {
        fs::create_dir_all(dir).ok()?;
        let path = dir.join("lock");
        let file = OpenOptions::new().create(true).write(true).truncate(false).open(&path).ok()?;
        let started = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Some(Self { _file: file, path }),
                Err(TryLockError::WouldBlock) if started.elapsed() < patience => {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(TryLockError::WouldBlock) => {
                    tracing::warn!(path = %path.display(), "another process holds this lock for too long; going on without");
                    return None;
                }
                Err(TryLockError::Error(error)) => {
                    tracing::debug!(path = %path.display(), %error, "no locks here; going on without");
                    return None;
                }
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Whoever waits holds the same file and looks for the entry first, so removing its name is harmless.
        let _ = fs::remove_file(&self.path);
    }
}
