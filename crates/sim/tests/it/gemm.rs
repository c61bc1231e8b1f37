//! Two FP8 GEMM kernels that run on Hopper: every schedule gives the bits of the plain reference.

use crate::common::*;

const TILE: &str = include_str!("../ptx/tile_256x128_cluster2.ptx");
const SMALL_TILE: &str = include_str!("../ptx/tile_128x64.ptx");
const ROWS_SPLIT: &str = include_str!("../ptx/rows_8_split4.ptx");
const ROWS: &str = include_str!("../ptx/rows_16.ptx");

fn check(mut make: impl FnMut() -> Setup, want: &[u16]) {
    for options in schedules() {
        let got =
            make().run(&options).unwrap_or_else(|f| panic!("{:?} {}: {f}", options.policy, options.seed));
        let wrong = got.iter().zip(want).filter(|(g, w)| g != w).count();
        assert_eq!(wrong, 0, "{:?} seed {}: {wrong} of {} differ", options.policy, options.seed, want.len());
    }
}

#[test]
fn tile_kernel_with_a_cluster_and_ragged_edges() {
    let p = Problem::new(200, 384, 512);
    let want = p.reference(1);
    check(|| tile(TILE, &p, 256, 128, 2, 217_200, 4), &want);
}

#[test]
fn tile_kernel_that_walks_several_tiles() {
    let p = Problem::new(130, 192, 384);
    let want = p.reference(1);
    check(|| tile(SMALL_TILE, &p, 128, 64, 1, 67_680, 2), &want);
}

#[test]
fn few_rows_with_k_split_over_a_cluster() {
    let p = Problem::new(5, 128, 1024);
    let want = p.reference(4);
    check(|| rows(ROWS_SPLIT, &p, 8, 4, 44_992), &want);
}

#[test]
fn few_rows_without_a_cluster() {
    let p = Problem::new(17, 96, 384);
    let want = p.reference(1);
    check(|| rows(ROWS, &p, 16, 1, 46_000), &want);
}

#[test]
fn the_timeline_has_every_unit() {
    use oxigemm_sim::{Options, Policy, TraceUnit};
    let p = Problem::new(64, 64, 256);
    let mut setup = tile(SMALL_TILE, &p, 128, 64, 1, 67_680, 1);
    let options = Options { policy: Policy::Lazy, trace: true, ..Options::default() };
    let report = setup.machine.run(&setup.module, &setup.launch, &options).expect("the kernel is correct");
    let count = |unit| report.trace.iter().filter(|e| e.unit == unit).count();
    // Two blocks of K: three loads each, four products each for eight warps; one store.
    assert_eq!((count(TraceUnit::Load), count(TraceUnit::Store)), (2 * 3, 1));
    assert_eq!(count(TraceUnit::Wgmma), 2 * 4 * 8);
    assert!(count(TraceUnit::Warp) >= 12);
    assert!(report.trace.iter().all(|e| e.start <= e.end && e.end <= report.instructions));
    assert!(report.lines.is_sorted() && report.lines.len() > 100);
}
