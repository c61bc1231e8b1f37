//! The cubin cache gives the right cubin or none, whatever happens to its files, and costs one assembly.

mod common;

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;

use common::{FakePtxas, GOOD, child, entries, is_child};
use oxigemm_cuda::assemble::Ptxas;
use oxigemm_cuda::{CacheStats, CubinCache, Error, Key, Provenance, PtxModule};

const SLOW: &str = "sleep 0.3; assemble";

fn cubin_of(version: &str, ptx: &PtxModule<'_>) -> Vec<u8> {
    format!("version {version}\n{}", ptx.text).into_bytes()
}

#[test]
fn a_kernel_is_assembled_once_and_then_found() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakePtxas::new(dir.path(), "1.2.3", "assemble");
    let cache = CubinCache::at(dir.path().join("cache")).with_ptxas(fake.ptxas());
    let first = cache.cubin(&GOOD).unwrap().unwrap();
    assert_eq!(first.provenance, Provenance::Ptxas);
    assert_eq!(first.assembler, "ptxas 1.2.3");
    assert_eq!(first.bytes, cubin_of("1.2.3", &GOOD));
    let second = cache.cubin(&PtxModule { name: "another name", ..GOOD }).unwrap().unwrap();
    assert_eq!(second.provenance, Provenance::Cached);
    assert_eq!((second.bytes, second.assembler), (first.bytes, first.assembler));
    let expected = CacheStats { hits: 1, misses: 1, compiled_by_ptxas: 1, ..CacheStats::default() };
    assert_eq!(cache.stats(), expected);
    assert_eq!(fake.runs(), 1);
}

#[test]
fn a_damaged_entry_is_rejected_rebuilt_and_replaced() {
    type Damage = (&'static str, fn(&mut Vec<u8>));
    let damages: [Damage; 9] = [
        ("truncated", |bytes| bytes.truncate(bytes.len() / 2)),
        ("one byte short", |bytes| bytes.truncate(bytes.len() - 1)),
        ("one byte long", |bytes| bytes.push(0)),
        ("empty", Vec::clear),
        ("wrong magic", |bytes| bytes[0] = b'X'),
        ("another version of the form", |bytes| bytes[8] = 99),
        ("a bit of the payload's length flipped", |bytes| bytes[23] ^= 0x80),
        ("a bit of the assembler's name flipped", |bytes| bytes[58] ^= 1),
        ("a bit of the payload flipped", |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
        }),
    ];
    for (what, damage) in damages {
        let dir = tempfile::tempdir().unwrap();
        let fake = FakePtxas::new(dir.path(), "1.2.3", "assemble");
        let root = dir.path().join("cache");
        let cache = CubinCache::at(&root).with_ptxas(fake.ptxas());
        let good = cache.cubin(&GOOD).unwrap().unwrap().bytes;
        let [entry] = entries(&root).try_into().unwrap();
        let intact = fs::read(&entry).unwrap();
        let mut bytes = intact.clone();
        damage(&mut bytes);
        fs::write(&entry, bytes).unwrap();

        let rebuilt = cache.cubin(&GOOD).unwrap().unwrap();
        assert_eq!((rebuilt.provenance, &rebuilt.bytes), (Provenance::Ptxas, &good), "{what}");
        assert_eq!(cache.stats().rejected, 1, "{what}");
        assert_eq!(fs::read(&entry).unwrap(), intact, "{what}: the entry is replaced");
        assert_eq!(cache.cubin(&GOOD).unwrap().unwrap().provenance, Provenance::Cached, "{what}");
        assert_eq!(fake.runs(), 2, "{what}");
    }
}

#[test]
fn a_damaged_entry_without_an_assembler_is_left_to_the_driver() {
    let dir = tempfile::tempdir().unwrap();
    let cache = CubinCache::at(dir.path()).without_ptxas();
    cache.put(&Key::new(&GOOD), "ptxas 1", b"code");
    fs::write(&entries(dir.path())[0], b"OXICUBIN").unwrap();
    assert_eq!(cache.cubin(&GOOD), Ok(None));
    assert_eq!(cache.stats(), CacheStats { misses: 1, rejected: 1, ..CacheStats::default() });
    assert!(entries(dir.path()).is_empty(), "the damaged entry is gone");
}

#[test]
fn an_entry_under_the_wrong_name_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let cache = CubinCache::at(dir.path()).without_ptxas();
    let other = PtxModule { text: "other", ..GOOD };
    cache.put(&Key::new(&GOOD), "ptxas 1", b"code");
    cache.put(&Key::new(&other), "ptxas 1", b"other code");
    let [first, second] = entries(dir.path()).try_into().unwrap();
    fs::copy(&first, &second).unwrap();
    let found = [&GOOD, &other].map(|ptx| cache.cubin(ptx).unwrap());
    assert_eq!(found.iter().flatten().count(), 1, "one is right, the other one rejected");
    assert_eq!(cache.stats().rejected, 1);
}

#[test]
fn a_cache_that_cannot_be_written_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakePtxas::new(dir.path(), "1.2.3", "assemble");
    let file = dir.path().join("file");
    fs::write(&file, b"no directory").unwrap();
    for root in [file.clone(), file.join("below"), "/proc/no/such/place".into()] {
        let cache = CubinCache::at(&root).with_ptxas(fake.ptxas());
        for _ in 0..2 {
            let cubin = cache.cubin(&GOOD).unwrap().unwrap();
            assert_eq!((cubin.provenance, cubin.bytes), (Provenance::Ptxas, cubin_of("1.2.3", &GOOD)));
        }
        assert_eq!(cache.stats().compiled_by_ptxas, 2);
        assert!(!cache.put(&Key::new(&GOOD), "ptxas 1", b"code"));
    }
    assert_eq!(fs::read(&file).unwrap(), b"no directory");
}

#[test]
fn a_cache_that_was_copied_hits_with_any_assembler_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakePtxas::new(dir.path(), "1.2.3", "assemble");
    let other = FakePtxas::new(dir.path(), "9.9.9", "assemble");
    let (here, there) = (dir.path().join("here"), dir.path().join("elsewhere/there"));
    let made = CubinCache::at(&here).with_ptxas(fake.ptxas()).cubin(&GOOD).unwrap().unwrap().bytes;
    copy(&here, &there);
    fs::remove_dir_all(&here).unwrap();
    for cache in [CubinCache::at(&there).without_ptxas(), CubinCache::at(&there).with_ptxas(other.ptxas())] {
        let cubin = cache.cubin(&GOOD).unwrap().unwrap();
        assert_eq!(cubin.provenance, Provenance::Cached);
        assert_eq!((cubin.bytes, cubin.assembler.as_str()), (made.clone(), "ptxas 1.2.3"));
    }
    assert_eq!(other.runs(), 0);
}

#[test]
fn the_newest_sound_entry_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let cache = CubinCache::at(dir.path());
    let key = Key::new(&GOOD);
    for version in ["12.9.86", "12.10.1", "9.0.176"] {
        assert!(cache.put(&key, &format!("ptxas {version}"), version.as_bytes()));
    }
    assert_eq!(cache.get(&key).unwrap().assembler, "ptxas 12.10.1");
    let newest =
        entries(dir.path()).into_iter().find(|path| path.to_string_lossy().contains("12.10")).unwrap();
    fs::write(newest, b"damaged").unwrap();
    assert_eq!(cache.get(&key).unwrap().assembler, "ptxas 12.9.86");
}

#[test]
fn a_prebuilt_cubin_comes_first_and_its_directory_is_never_written() {
    let dir = tempfile::tempdir().unwrap();
    let (shipped, own) = (dir.path().join("shipped"), dir.path().join("own"));
    let fake = FakePtxas::new(dir.path(), "1.2.3", "assemble");
    let key = Key::new(&GOOD);
    CubinCache::at(&shipped).put(&key, "ptxas 1", b"shipped");
    CubinCache::at(&own).put(&key, "ptxas 2", b"own");
    let cache = CubinCache::at(&own).with_prebuilt(&shipped).with_ptxas(fake.ptxas());
    let cubin = cache.cubin(&GOOD).unwrap().unwrap();
    assert_eq!((cubin.provenance, &cubin.bytes[..]), (Provenance::Prebuilt, &b"shipped"[..]));

    let entry = entries(&shipped).remove(0);
    fs::write(&entry, b"damaged").unwrap();
    let cubin = cache.cubin(&GOOD).unwrap().unwrap();
    assert_eq!((cubin.provenance, &cubin.bytes[..]), (Provenance::Cached, &b"own"[..]));
    fs::remove_dir_all(&own).unwrap();
    assert_eq!(cache.cubin(&GOOD).unwrap().unwrap().provenance, Provenance::Ptxas);
    assert_eq!(fs::read(&entry).unwrap(), b"damaged", "not even repaired");
}

#[test]
fn an_assembler_of_no_use_leaves_the_kernel_to_the_driver() {
    let unfit = "echo \"ptxas k.ptx, line 1; fatal   : Unsupported .version 9.9; current version is '8.0'\" >&2; exit 255";
    let unknown =
        "echo \"ptxas fatal   : Value 'sm_90a' is not defined for option 'gpu-name'\" >&2; exit 255";
    for body in [unfit, unknown, "kill -9 $$", "rm -f kernel.cubin"] {
        let dir = tempfile::tempdir().unwrap();
        let fake = FakePtxas::new(dir.path(), "1.2.3", body);
        let cache = CubinCache::at(dir.path().join("cache")).with_ptxas(fake.ptxas());
        assert_eq!(cache.cubin(&GOOD), Ok(None), "{body}");
        assert!(entries(dir.path()).is_empty());
    }
}

#[test]
fn an_assembler_that_vanished_leaves_the_kernel_to_the_driver() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakePtxas::new(dir.path(), "1.2.3", "assemble");
    let cache = CubinCache::disabled().with_ptxas(fake.ptxas());
    fs::remove_file(&fake.path).unwrap();
    assert_eq!(cache.cubin(&GOOD), Ok(None));
    assert!(matches!(Ptxas::at(&fake.path), Err(Error::Io { .. })));
}

#[test]
fn ruined_code_is_an_error_and_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let body =
        "assemble; echo \"ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored\" >&2";
    let fake = FakePtxas::new(dir.path(), "1.2.3", body);
    let cache = CubinCache::at(dir.path().join("cache")).with_ptxas(fake.ptxas());
    let error = cache.cubin(&GOOD).unwrap_err();
    assert!(matches!(&error, Error::Assemble { kernel, .. } if kernel == "good"), "{error}");
    assert!(error.to_string().contains("C7508"));
    assert!(entries(dir.path()).is_empty());
}

#[test]
fn an_architecture_that_is_none_is_refused() {
    let ptx = PtxModule { arch: "../../hopper", ..GOOD };
    let error = CubinCache::disabled().cubin(&ptx).unwrap_err();
    assert_eq!(error, Error::BadArch { arch: "../../hopper".into() });
}

#[test]
fn many_threads_assemble_once() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakePtxas::new(dir.path(), "1.2.3", SLOW);
    let cache = CubinCache::at(dir.path().join("cache")).with_ptxas(fake.ptxas());
    thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| cache.cubin(&GOOD).unwrap().unwrap())).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap().bytes, cubin_of("1.2.3", &GOOD));
        }
    });
    assert_eq!(fake.runs(), 1);
    assert_eq!(
        cache.stats(),
        CacheStats { hits: 7, misses: 1, compiled_by_ptxas: 1, ..CacheStats::default() }
    );
}

/// The part of `many_processes_assemble_once` that each process runs.
#[test]
fn one_of_many_processes() {
    if !is_child() {
        return;
    }
    let cubin = CubinCache::user_default().cubin(&GOOD).unwrap().unwrap();
    assert_eq!(cubin.bytes, cubin_of("1.2.3", &GOOD));
}

#[test]
fn many_processes_assemble_once() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakePtxas::new(dir.path(), "1.2.3", SLOW);
    fake.ptxas();
    let start = || {
        child("one_of_many_processes")
            .env("OXIGEMM_CACHE_DIR", dir.path().join("cache"))
            .env("OXIGEMM_PTXAS", &fake.path)
            .env_remove("OXIGEMM_PREBUILT_DIR")
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let processes: Vec<_> = (0..8).map(|_| start()).collect();
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
    assert_eq!(fake.runs(), 1);
}

#[test]
fn a_process_that_is_killed_while_it_assembles_blocks_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let stuck = FakePtxas::new(dir.path(), "1.0.0", "exec sleep 20");
    stuck.ptxas();
    let root = dir.path().join("cache");
    let mut process = child("one_of_many_processes")
        .env("OXIGEMM_CACHE_DIR", &root)
        .env("OXIGEMM_PTXAS", &stuck.path)
        .env("TMPDIR", dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while stuck.runs() == 0 {
        thread::sleep(std::time::Duration::from_millis(10));
    }
    process.kill().unwrap();
    process.wait().unwrap();
    let fake = FakePtxas::new(dir.path(), "1.2.3", "assemble");
    let started = std::time::Instant::now();
    let cubin = CubinCache::at(&root).with_ptxas(fake.ptxas()).cubin(&GOOD).unwrap().unwrap();
    assert_eq!(cubin.provenance, Provenance::Ptxas);
    assert!(started.elapsed().as_secs() < 10, "the lock of a dead process is free");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}
