//! The order of `tcgen05` work: what is clean under every schedule, and what is found under each of them when one
//! step is left out.

use crate::kernel::blackwell::*;
use oxigemm_sim::*;

const COMMIT: &str = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64";
const LD: &str = "tcgen05.ld.sync.aligned.32x32b.x4.b32 {r0, r1, r2, r3}, [tw];";
const ST: &str = "tcgen05.st.sync.aligned.32x32b.x4.b32 [tw], {r4, r4, r4, r4};";
const WAIT_LD: &str = "tcgen05.wait::ld.sync.aligned;";
const WAIT_ST: &str = "tcgen05.wait::st.sync.aligned;";
const CP: &str = "@p1 tcgen05.cp.cta_group::1.32x128b.warpx4 [ta], d1;";
const OUT_R3: &str = "st.global.b32 [outp], r3;";

/// 512 bytes of shared memory at 1024, each thread its own word, ready to be copied; the descriptor is in `d1`.
fn operand(fence: &str) -> String {
    format!(
        "mov.b32 r4, 9; shl.b32 r240, t, 2; add.u32 r240, r240, s; st.shared.b32 [r240+1024], t; {fence} bar.sync 0;
        add.u32 r241, s, 1024; shr.u32 r241, r241, 4; cvt.u64.u32 d1, r241; mov.b64 d2, {:#x}; or.b64 d1, d1, d2;",
        8u64 << 32 | 1 << 46
    )
}

const PROXY: &str = "fence.proxy.async.shared::cta;";

fn commit(guard: &str, offset: u32) -> String {
    format!("{guard} {COMMIT} [s+{offset}];")
}

/// A kernel of parts between allocation and release; nobody exits before the columns are free.
fn kernel(parts: &[&str]) -> String {
    allocate(32) + &operand(PROXY) + &parts.concat() + &free(32) + "bar.sync 0;"
}

/// The parts in order are clean; without any one of those that are marked, the program has this fault.
fn each_is_needed(parts: &[(&str, Option<FaultKind>)]) {
    let all: Vec<&str> = parts.iter().map(|p| p.0).collect();
    run(&kernel(&all), &[0], FOUR_WARPS);
    for (i, (part, kind)) in parts.iter().enumerate() {
        let Some(kind) = kind else { continue };
        let rest: Vec<&str> = parts.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, p)| p.0).collect();
        let (found, message) = fault(&kernel(&rest), &[0], FOUR_WARPS);
        assert_eq!(found, *kind, "without {part}: {message}");
    }
}

#[test]
fn a_load_comes_after_commit_and_wait() {
    let (commit, wait) = (commit("@p1", 16), wait("W", 16, 0));
    // What a load finds before the copy is the store's.
    let before = format!("{ST}{WAIT_ST}bar.sync 0;");
    each_is_needed(&[
        (&before, None),
        (CP, None),
        (&commit, Some(FaultKind::Deadlock)),
        (&wait, Some(FaultKind::Race)),
        (LD, None),
        // The columns are freed behind it.
        (WAIT_LD, Some(FaultKind::Race)),
        (OUT_R3, None),
    ]);
    let (_, message) = fault(&kernel(&[CP, "bar.sync 0;", LD, WAIT_LD]), &[0], FOUR_WARPS);
    assert!(message.contains("tensor memory of CTA 0, column 0, lane"), "{message}");
    assert!(
        message.contains("this read follows an earlier write and nothing says that it is over"),
        "{message}"
    );
    assert!(message.contains("tcgen05.cp.cta_group::1.32x128b.warpx4"), "{message}");
}

#[test]
fn a_commit_counts_work_before_it_by_its_thread() {
    let wait = wait("W", 16, 0);
    // Behind the commit, or committed by another thread.
    let late = commit("@p1", 16) + CP;
    let (kind, message) = fault(&kernel(&[&late, &wait, LD, WAIT_LD]), &[0], FOUR_WARPS);
    assert_eq!(kind, FaultKind::Race, "{message}");
    let other = format!("{CP} setp.eq.u32 p3, t, 1; {}", commit("@p3", 16));
    let (kind, message) = fault(&kernel(&[&other, &wait, LD, WAIT_LD]), &[0], FOUR_WARPS);
    assert_eq!(kind, FaultKind::Race, "{message}");
    // Two commits of one thread: the second says enough for both.
    let twice = format!("{CP}{}{CP}{}", commit("@p1", 16), commit("@p1", 24));
    let first = twice.clone() + &wait;
    let (kind, message) = fault(&kernel(&[&first, LD, WAIT_LD]), &[0], FOUR_WARPS);
    assert_eq!(kind, FaultKind::Race, "{message}");
}

#[test]
fn operands_in_shared_memory_stay_until_the_commit() {
    let (commit, wait) = (commit("@p1", 16), wait("W", 16, 0));
    let overwrite = "st.shared.b32 [r240+1024], r4;";
    each_is_needed(&[
        (CP, None),
        (&commit, Some(FaultKind::Deadlock)),
        (&wait, Some(FaultKind::Race)),
        (overwrite, None),
    ]);
    // The generic proxy's stores need a fence before the tensor core reads them.
    let body = allocate(32) + &operand("") + CP + &commit + &wait + &free(32);
    let (kind, message) = fault(&body, &[0], FOUR_WARPS);
    assert_eq!(kind, FaultKind::ProxyOrder, "{message}");
    let body = allocate(32) + &operand(PROXY).replace("bar.sync 0;", "") + CP + &commit + &wait + &free(32);
    let (kind, message) = fault(&body, &[0], FOUR_WARPS);
    assert_eq!(kind, FaultKind::Race, "{message}");
}

#[test]
fn loads_and_stores_of_a_warp_wait_for_each_other() {
    each_is_needed(&[
        (ST, None),
        (WAIT_ST, Some(FaultKind::Race)),
        (LD, None),
        (WAIT_LD, Some(FaultKind::Race)),
        (ST, None),
        (WAIT_ST, Some(FaultKind::Race)),
    ]);
    // Registers are ready when they are read, before the wait as well.
    let out = run(&kernel(&[ST, WAIT_ST, LD, OUT_R3, WAIT_LD]), &[0], FOUR_WARPS);
    assert!(out.iter().all(|words| words[0] == 9));
    // Other columns are no concern.
    let apart = "tcgen05.ld.sync.aligned.32x32b.x4.b32 {r10, r11, r12, r13}, [tw+8];";
    run(&kernel(&[&ST.replace("[tw]", "[tw+8]"), WAIT_ST, ST, apart, WAIT_LD, WAIT_ST]), &[0], FOUR_WARPS);
}

#[test]
fn a_copy_over_words_that_warps_load_comes_after_their_waits() {
    // As compilers write it: wait, barrier, and the next work of the tensor core; no tcgen05.fence.
    let (commit, wait) = (commit("@p1", 16), wait("W", 16, 0));
    each_is_needed(&[
        (ST, None),
        (WAIT_ST, None),
        (LD, None),
        (WAIT_LD, Some(FaultKind::Race)),
        ("bar.sync 0;", Some(FaultKind::Race)),
        (CP, None),
        (&commit, None),
        (&wait, None),
    ]);
    each_is_needed(&[
        (ST, None),
        (WAIT_ST, Some(FaultKind::Race)),
        ("bar.sync 0;", Some(FaultKind::Race)),
        (CP, None),
        (&commit, None),
        (&wait, None),
    ]);
}

#[test]
fn relaxed_synchronization_needs_the_fences_around_it() {
    // The manual's own pattern: everything relaxed, ordered by tcgen05.fence alone.
    let arrive =
        "bar.warp.sync -1; setp.eq.u32 p3, t, 32; @p3 mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [s+24];";
    let relaxed = "V: @p1 mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64 p7, [s+24], 0; @!p1 bra E; @!p7 bra V; E:";
    let before = "tcgen05.fence::before_thread_sync;";
    let after = "tcgen05.fence::after_thread_sync;";
    let only = "setp.eq.u32 p4, w, 1; @!p4 bra N;";
    let end = "N: bar.warp.sync -1;";
    let cp = "@p1 tcgen05.cp.cta_group::1.4x256b [r9], d1;";
    let at = format!("add.u32 r9, ta, 0; mov.b64 d2, {:#x}; or.b64 d1, d1, d2;", 8u64 << 16);
    let (commit, wait) = (commit("@p1", 16), wait("W", 16, 0));
    // Warp 1 stores to its lanes and tells thread 0, which copies over lane 32 among others.
    let parts = |before: &str, after: &str| {
        kernel(&[&at, only, ST, WAIT_ST, before, arrive, end, relaxed, after, cp, &commit, &wait])
    };
    run(&parts(before, after), &[0], FOUR_WARPS);
    for (b, a) in [("", after), (before, ""), ("", "")] {
        let (kind, message) = fault(&parts(b, a), &[0], FOUR_WARPS);
        assert_eq!(kind, FaultKind::Race, "{b} {a}: {message}");
    }
}

#[test]
fn work_of_two_warps_in_one_pipeline_needs_fences() {
    // A shift by warp 1, then a copy of four rows by thread 0 over one of them: a pair that runs in order of issue.
    let pipeline = |before: &str, after: &str, first: &str, second: &str| {
        let parts = [
            "mov.b32 r4, 1; tcgen05.st.sync.aligned.32x32b.x8.b32 [tw], {r4, r4, r4, r4, r4, r4, r4, r4};",
            WAIT_ST,
            "bar.sync 0; mov.b64 d2, 0x80000; or.b64 d1, d1, d2; setp.eq.u32 p3, t, 32;",
            first,
            before,
            "@p3 mbarrier.arrive.shared::cta.b64 _, [s+24];",
            "V: @p1 mbarrier.try_wait.parity.shared::cta.b64 p7, [s+24], 0; @!p1 bra E; @!p7 bra V; E: bar.warp.sync -1;",
            after,
            second,
        ];
        // Both threads commit, and everybody waits for both.
        let done = commit("@p1", 16) + &commit("@p3", 32) + &wait("W", 16, 0) + &wait("X", 32, 0);
        kernel(&[&parts.concat(), &done])
    };
    let (before, after) = ("tcgen05.fence::before_thread_sync;", "tcgen05.fence::after_thread_sync;");
    let shift = "@p3 tcgen05.shift.cta_group::1.down [ta];";
    let cp4 = "@p1 tcgen05.cp.cta_group::1.4x256b [ta], d1;";
    run(&pipeline(before, after, shift, cp4), &[0], FOUR_WARPS);
    for (b, a) in [("", after), (before, "")] {
        let (kind, message) = fault(&pipeline(b, a, shift, cp4), &[0], FOUR_WARPS);
        assert_eq!(kind, FaultKind::Race, "{b} {a}: {message}");
        assert!(message.contains("without tcgen05.fence::before_thread_sync"), "{message}");
    }
    // Other copies behind a shift are not in order, whatever the fences.
    let cp32 = "@p1 tcgen05.cp.cta_group::1.32x128b.warpx4 [ta], d1;";
    let (kind, message) = fault(&pipeline(before, after, shift, cp32), &[0], FOUR_WARPS);
    assert_eq!(kind, FaultKind::Race, "{message}");
    // In one thread the pair needs nothing.
    run(&pipeline("", "", &shift.replace("@p3", "@p1"), cp4), &[0], FOUR_WARPS);
}

#[test]
fn columns_are_freed_when_nothing_uses_them() {
    let commit = commit("@p1", 16);
    for parts in [vec![CP, &commit], vec![CP], vec![ST]] {
        let (kind, message) = fault(&kernel(&parts), &[0], FOUR_WARPS);
        assert_eq!(kind, FaultKind::Race, "{parts:?}: {message}");
        assert!(message.contains("columns are freed while in use"), "{message}");
    }
    // Without the barrier a warp may still be loading.
    let body = kernel(&[ST, WAIT_ST, LD, WAIT_LD]).replace(&free(32), &free(32).replace("bar.sync 0;", ""));
    for options in schedules() {
        // Found by whoever is later: the one who frees, or the one who loads.
        let f = launch(&body, &[0], FOUR_WARPS, &options).expect_err(&body);
        assert!(matches!(f.kind, FaultKind::Race | FaultKind::TensorMemory), "{f}");
    }
    // Work that nobody waits for.
    let body = allocate(32) + &operand(PROXY) + CP + &commit;
    let (kind, message) = fault(&body, &[0], FOUR_WARPS);
    assert_eq!(kind, FaultKind::WorkInFlight, "{message}");
    let body = allocate(32) + &operand(PROXY) + ST;
    let (kind, message) = fault(&body, &[0], FOUR_WARPS);
    assert_eq!(kind, FaultKind::WorkInFlight, "{message}");
    assert!(message.contains("tcgen05.wait::st"), "{message}");
}

#[test]
fn the_timeline_has_the_tensor_core() {
    let body = kernel(&[CP, &commit("@p1", 16), &wait("W", 16, 0)]);
    let options = Options { trace: true, policy: Policy::Lazy, ..Options::default() };
    let report = report(&body, &options);
    let work: Vec<_> = report.trace.iter().filter(|e| e.unit == TraceUnit::Tcgen05).collect();
    assert_eq!(work.len(), 2);
    assert!(work[0].detail.ends_with("to tensor memory at column 0"), "{}", work[0].detail);
    assert!(work[1].detail.starts_with("arrives at"), "{}", work[1].detail);
    assert!(work.iter().all(|e| e.start < e.end));
}

#[test]
fn the_timeline_has_tensor_memory() {
    let options = Options { trace: true, ..Options::default() };
    let report = report(&kernel(&[ST, WAIT_ST, LD, WAIT_LD]), &options);
    let work: Vec<_> = report.trace.iter().filter(|e| e.unit == TraceUnit::TensorMemory).collect();
    let details = |start: &str| work.iter().filter(|e| e.detail.starts_with(start)).count();
    assert!(details("stores columns 0") > 0 && details("loads columns 0") > 0, "{work:?}");
    let allocated: Vec<_> = work.iter().filter(|e| e.detail.ends_with("allocated")).collect();
    assert_eq!(allocated.len(), 1, "{work:?}");
    let inside = |e: &&&TraceEvent| allocated[0].start <= e.start && e.end <= allocated[0].end;
    assert_eq!(work.iter().filter(inside).count(), work.len(), "{work:?}");
}
