//! The emitted code, so that a change of it is seen in review.
//!
//! The smallest kernel stands here in full; of every other, how often it uses what matters. Accept a wanted change
//! with `INSTA_UPDATE=always cargo test -p oxigemm-kernels`.

use oxigemm_kernels::{Arch, KernelId};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Opcodes that tell what a kernel does, by how they begin.
const TELLING: [&str; 12] = [
    "wgmma.mma_async",
    "wgmma.wait_group",
    "mbarrier.init",
    "mbarrier.try_wait",
    "mbarrier.arrive",
    "cp.async.bulk.tensor",
    "cp.async.ca",
    "setmaxnreg",
    "fence",
    "fma.rn.f32",
    "ld.shared",
    "st.global",
];

/// How often each of those stands in a kernel.
fn counts(text: &str) -> [usize; TELLING.len()] {
    let mut counts = [0; TELLING.len()];
    for line in text.lines() {
        let opcode = line.split_whitespace().find(|word| !word.starts_with('@')).unwrap_or_default();
        for (count, telling) in counts.iter_mut().zip(TELLING) {
            *count += usize::from(opcode.starts_with(telling));
        }
    }
    counts
}

#[test]
fn the_smallest_kernel_in_full() {
    let kernel = KernelId::all(Arch::Sm90a)
        .find(|kernel| kernel.name() == "sm90_fp8_gemm_split_k_8x64")
        .expect("it exists");
    insta::assert_snapshot!(kernel.build().expect("it builds").without_lines());
}

#[test]
fn what_every_kernel_is_made_of() {
    let mut table = String::new();
    for kernel in KernelId::all(Arch::Sm90a) {
        let module = kernel.build().expect("it builds");
        let _ = write!(table, "{} (PTX {})", kernel.name(), module.version);
        for (opcode, count) in TELLING.iter().zip(counts(&module.text)) {
            let _ = write!(table, "\n    {opcode:22} {count}");
        }
        table.push('\n');
    }
    insta::assert_snapshot!(table);
}

#[test]
fn building_twice_gives_the_same_text_and_no_path() {
    for kernel in KernelId::all(Arch::Sm90a) {
        let module = kernel.build().expect("it builds");
        assert_eq!(module, kernel.build().expect("it builds"));
        for line in module.text.lines().filter(|line| line.starts_with(".file")) {
            assert!(line.contains("/src/") && !line.contains("\"/"), "{line} depends on where it was built");
        }
    }
}

/// The limit holds for optimized code; without optimization it only guards against the absurd. The fastest of five
/// builds counts, so one that is quick decides.
#[test]
fn building_is_quick() {
    let limit = if cfg!(debug_assertions) { Duration::from_millis(100) } else { Duration::from_millis(5) };
    for kernel in KernelId::all(Arch::Sm90a) {
        let mut took = Vec::new();
        let quick = (0..5).any(|_| {
            let started = Instant::now();
            kernel.build().expect("it builds");
            took.push(started.elapsed());
            started.elapsed() < limit
        });
        assert!(quick, "{} took {took:?}", kernel.name());
    }
}
