//! What needs the inside of the cache: a disk that fails, a lock that is held, an environment.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::time::SystemTime;

use super::*;

fn key(text: &str) -> Key {
    Key::new(&PtxModule { name: "k", text, arch: "sm_90a" })
}

fn files(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn full_disk(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    file.write_all(&bytes[..bytes.len() / 2])?;
    Err(io::ErrorKind::StorageFull.into())
}

#[test]
fn a_full_disk_leaves_nothing_behind_and_breaks_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let cache = CubinCache { write: full_disk, ..CubinCache::at(dir.path()) };
    let key = key("ptx");
    assert!(!cache.put(&key, "ptxas 2", b"code"));
    assert!(cache.get(&key).is_none());
    assert!(files(&key.dir(dir.path())).is_empty(), "the temporary file is removed");
    assert_eq!(cache.stats(), CacheStats::default(), "nothing was damaged");
}

#[test]
fn a_full_disk_does_not_harm_the_entry_that_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let good = CubinCache::at(dir.path());
    let full = CubinCache { write: full_disk, ..good.clone() };
    let key = key("ptx");
    assert!(good.put(&key, "ptxas 2", b"code"));
    assert!(!full.put(&key, "ptxas 2", b"other code"));
    assert_eq!(full.get(&key).unwrap().bytes, b"code");
}

#[test]
fn what_a_killed_writer_left_is_ignored_and_later_removed() {
    let dir = tempfile::tempdir().unwrap();
    let cache = CubinCache::at(dir.path());
    let key = key("ptx");
    let place = key.dir(dir.path());
    fs::create_dir_all(&place).unwrap();
    for (name, age) in [(".ptxas-1.cubin.0.tmp", 7200), (".ptxas-1.cubin.1.tmp", 60)] {
        let file = File::create(place.join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
    }
    assert!(cache.get(&key).is_none());
    assert!(cache.put(&key, "ptxas 2", b"code"));
    let mut left = files(&place);
    left.sort();
    assert_eq!(left, [".ptxas-1.cubin.1.tmp", "ptxas-2.cubin"], "only the one that is too old is gone");
    assert_eq!(cache.stats().rejected, 0);
}

#[test]
fn a_lock_that_is_held_for_good_does_not_block_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let held = Lock::acquire(dir.path(), Duration::ZERO).unwrap();
    assert!(Lock::acquire(dir.path(), Duration::from_millis(30)).is_none());
    drop(held);
    assert!(Lock::acquire(dir.path(), Duration::ZERO).is_some());
}

#[test]
fn a_lock_file_that_nobody_holds_is_taken_and_an_impossible_one_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    OpenOptions::new().create(true).append(true).open(dir.path().join("lock")).unwrap();
    assert!(Lock::acquire(dir.path(), Duration::ZERO).is_some());
    fs::create_dir(dir.path().join("lock")).unwrap();
    assert!(Lock::acquire(dir.path(), Duration::from_secs(60)).is_none(), "at once, not after a minute");
    let file = dir.path().join("file");
    File::create(&file).unwrap();
    assert!(Lock::acquire(&file.join("below"), Duration::from_secs(60)).is_none());
}

#[test]
fn the_user_says_where_the_cache_is() {
    let root = |pairs: &[(&str, &str)]| {
        let find = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).into());
        let cache = CubinCache::from_environment(find);
        (cache.root, cache.prebuilt)
    };
    let some = |path: &str| Some(PathBuf::from(path));
    let home = ("HOME", "/home/u");
    assert_eq!(root(&[home]).0, some("/home/u/.cache/oxigemm"));
    assert_eq!(root(&[home, ("XDG_CACHE_HOME", "/x")]).0, some("/x/oxigemm"));
    assert_eq!(root(&[home, ("XDG_CACHE_HOME", "relative")]).0, some("/home/u/.cache/oxigemm"));
    assert_eq!(root(&[home, ("XDG_CACHE_HOME", "/x"), ("OXIGEMM_CACHE_DIR", "/y")]).0, some("/y"));
    assert_eq!(root(&[home, ("OXIGEMM_CACHE_DIR", "")]).0, some("/home/u/.cache/oxigemm"));
    assert_eq!(root(&[home, ("OXIGEMM_CACHE_DIR", "none")]).0, None);
    assert_eq!(root(&[]), (None, vec![]));
    assert_eq!(root(&[("OXIGEMM_PREBUILT_DIR", "/p")]), (None, vec!["/p".into()]));
}

#[test]
fn a_key_depends_on_text_and_architecture_and_on_nothing_else() {
    let new = |name, text, arch| Key::new(&PtxModule { name, text, arch });
    let it = new("a", "text", "sm_90a");
    assert_eq!(it, new("b", "text", "sm_90a"));
    assert_ne!(it, new("a", "text ", "sm_90a"));
    assert_ne!(it, new("a", "text", "sm_100a"));
    assert_ne!(new("a", "xsm_90", "sm_90"), new("a", "x", "sm_90sm_90"), "the parts are told apart");
}

#[test]
fn a_name_never_leaves_its_directory() {
    for text in ["..", ".", "a/b", "../../etc", "ptxas 13.0.88", ""] {
        let name = file_name(text);
        assert!(!name.contains('/') && !name.starts_with('.'), "{text:?} became {name:?}");
    }
    assert_eq!(file_name("ptxas 13.0.88"), "ptxas-13.0.88");
}
