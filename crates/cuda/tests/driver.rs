//! Every way in which a machine has no usable GPU is one clear error and never a panic.
//!
//! The ways are played with libraries that are made here and found in place of the driver.

mod common;

use std::path::Path;
use std::process::Command;

use common::{GOOD, child, is_child};
use oxigemm_cuda::{CubinCache, Device, Element, Error, L2Promotion, Swizzle, TiledTensor, device_count};

const TENSOR: TiledTensor = TiledTensor {
    element: Element::U8,
    rank: 1,
    address: 0x1000,
    dims: [16, 0, 0, 0, 0],
    strides: [0; 4],
    tile: [16, 0, 0, 0, 0],
    swizzle: Swizzle::None,
    promotion: L2Promotion::None,
};

#[test]
fn this_machine_has_a_gpu_or_a_reason() {
    match device_count() {
        Ok(count) => {
            let Err(error) = Device::open(count) else { panic!("one device too many") };
            assert_eq!(error, Error::NoDevice { ordinal: count, count });
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert_eq!(Device::open(0).err(), Some(error));
        }
    }
}

/// The part of the tests below that runs with a library in place of the driver.
#[test]
fn what_a_process_sees() {
    if !is_child() {
        return;
    }
    println!("[count] {:?}", device_count());
    println!("[open] {:?}", Device::open(0).map(|_| ()));
    println!("[map] {:?}", TENSOR.encode().map(|_| ()));
    println!("[cubin] {:?}", CubinCache::disabled().without_ptxas().cubin(&GOOD));
    // SAFETY: the child prints one line and ends without returning to the harness.
    match unsafe { libc::fork() } {
        0 => {
            println!("[forked] {:?}", device_count());
            // SAFETY: it ends this process.
            unsafe { libc::_exit(0) }
        }
        // SAFETY: the child was started above.
        child => unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) },
    };
}

/// What a process prints where `source` is the driver.
fn with_driver(source: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let code = dir.path().join("driver.rs");
    std::fs::write(&code, source).unwrap();
    compile(&code, &dir.path().join("libcuda.so"));
    let output = child("what_a_process_sees").env("LD_LIBRARY_PATH", dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn compile(source: &Path, library: &Path) {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let flags = ["--crate-type=cdylib", "--edition=2024", "-Awarnings", "-Cpanic=abort"];
    let done = Command::new(rustc).args(flags).arg(source).arg("-o").arg(library).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn version(cuda: i32) -> String {
    format!(
        "#[unsafe(no_mangle)] pub unsafe extern \"C\" fn cuDriverGetVersion(v: *mut i32) -> i32 {{ unsafe {{ *v = {cuda} }}; 0 }}\n"
    )
}

/// Every function that the crate resolves, as one that takes nothing and returns `result(name)`.
fn functions(result: impl Fn(&str) -> i32) -> String {
    let mut source = String::new();
    for line in include_str!("../src/driver.rs").lines() {
        if let Some((name, _)) = line.trim().strip_prefix("fn cu").and_then(|rest| rest.split_once('(')) {
            let result = result(&format!("cu{name}"));
            source += &format!("#[unsafe(no_mangle)] pub extern \"C\" fn cu{name}() -> i32 {{ {result} }}\n");
        }
    }
    assert!(source.lines().count() > 40, "the functions are declared in another way now");
    for name in ["cuGetErrorName", "cuGetErrorString"] {
        source += &format!(
            "#[unsafe(no_mangle)] pub unsafe extern \"C\" fn {name}(code: i32, text: *mut *const u8) -> i32 {{
                if code == 4242 {{ return 1 }}
                unsafe {{ *text = b\"THE_WORDS\\0\".as_ptr() }}; 0
            }}\n"
        );
    }
    source
}

#[test]
fn a_driver_that_is_too_old_is_named_with_its_version() {
    let seen = with_driver(&version(11080));
    let error = "Err(DriverTooOld { found: (11, 8), needed: (12, 0) })";
    for what in ["count", "open", "map"] {
        assert!(seen.contains(&format!("[{what}] {error}")), "{seen}");
    }
    assert!(seen.contains("[cubin] Ok(None)"), "the way to a cubin needs no driver: {seen}");
}

#[test]
fn a_library_that_is_no_driver_is_named_with_what_it_lacks() {
    let seen = with_driver("");
    assert!(
        seen.contains("[count] Err(MissingSymbol { library: \"libcuda\", symbol: \"cuDriverGetVersion\" })"),
        "{seen}"
    );
    let lacking = functions(|_| 0).replace("cuLaunchKernelEx", "cuSomethingElse");
    let seen = with_driver(&(version(12000) + &lacking));
    assert!(
        seen.contains("[open] Err(MissingSymbol { library: \"libcuda\", symbol: \"cuLaunchKernelEx\" })"),
        "{seen}"
    );
}

#[test]
fn the_stub_of_a_toolkit_is_no_driver() {
    let stub = "#[unsafe(no_mangle)] pub extern \"C\" fn cuDriverGetVersion() -> i32 { 34 }";
    assert!(with_driver(stub).contains("[count] Err(NoDriver)"));
    let seen = with_driver(&(version(13000) + &functions(|_| 34)));
    assert!(seen.contains("[open] Err(NoDriver)"), "{seen}");
}

#[test]
fn a_driver_without_a_gpu_says_so() {
    let seen = with_driver(&(version(12000) + &functions(|name| if name == "cuInit" { 100 } else { 0 })));
    for what in ["count", "open"] {
        assert!(seen.contains(&format!("[{what}] Err(NoDevice {{ ordinal: 0, count: 0 }})")), "{seen}");
    }
    let seen = with_driver(&(version(12000) + &functions(|_| 0)));
    assert!(seen.contains("[count] Ok(0)"), "{seen}");
    assert!(seen.contains("[open] Err(NoDevice { ordinal: 0, count: 0 })"), "{seen}");
    assert!(seen.contains("[map] Ok(())"), "a tensor map needs the driver and no device: {seen}");
}

/// The driver fails in a forked child with what it calls a missing initialization.
#[test]
fn a_forked_child_is_told_why_the_driver_fails() {
    let after_fork = "static mut PROCESS: u32 = 0;
        #[unsafe(no_mangle)] pub extern \"C\" fn cuInit() -> i32 { unsafe { PROCESS = std::process::id() }; 0 }
        #[unsafe(no_mangle)] pub extern \"C\" fn cuDeviceGetCount() -> i32 {
            if unsafe { PROCESS } == std::process::id() { 0 } else { 3 }
        }\n";
    let others =
        functions(|_| 0).replace("cuInit", "cuInitOther").replace("cuDeviceGetCount", "cuOtherCount");
    let seen = with_driver(&(version(12000) + &others + after_fork));
    assert!(seen.contains("[count] Ok(0)") && seen.contains("[forked] Err(Forked)"), "{seen}");
    assert!(Error::Forked.to_string().contains("spawn instead of fork"));
}

#[test]
fn an_error_has_the_drivers_words_and_a_newer_drivers_error_is_no_trouble() {
    for (code, words) in [(999, "THE_WORDS"), (4242, "an unknown error")] {
        let seen =
            with_driver(&(version(14000) + &functions(|name| if name == "cuInit" { code } else { 0 })));
        let error = format!("[open] Err(Driver {{ call: \"cuInit\", code: {code}, name: \"{words}\"");
        assert!(seen.contains(&error), "{seen}");
    }
}

#[test]
fn everything_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Device>();
    shared::<oxigemm_cuda::Buffer>();
    shared::<oxigemm_cuda::Stream>();
    shared::<oxigemm_cuda::Event>();
    shared::<oxigemm_cuda::Graph>();
    shared::<oxigemm_cuda::Module>();
    shared::<oxigemm_cuda::Function>();
    shared::<CubinCache>();
    shared::<oxigemm_cuda::assemble::Ptxas>();
    shared::<oxigemm_cuda::profile::KernelTimer>();
    shared::<oxigemm_cuda::cublaslt::Calibration>();
    shared::<Error>();
}
