//! Broken kernels: each hazard is reported as what it is, with the lines of both sides, under every schedule.

use crate::broken::*;
use oxigemm_sim::*;

#[test]
fn a_missing_barrier_between_threads() {
    let body = |sync: &str| {
        format!(
            "{ADDRESS}.loc 1 10 1\nst.shared.u32 [r0], t;\n{sync}\nxor.b32 r1, t, 32; shl.b32 r1, r1, 2; add.u32 r1, r1, s;\n.loc 1 20 1\nld.shared.u32 r2, [r1];\nbar.sync 0;"
        )
    };
    correct(&body("bar.sync 0;"), 64, 1);
    // Which side comes second depends on the schedule.
    let f = broken(&body(""), 64, 1, FaultKind::Race);
    let line = |p: Option<Box<Place>>| p.and_then(|p| p.source).unwrap();
    let mut lines = [line(f.at), line(f.other)];
    lines.sort();
    assert_eq!(lines, [("kernel.rs".to_owned(), 10), ("kernel.rs".to_owned(), 20)]);
    // A second write before the readers are done.
    let again = format!(
        "{}\nst.shared.u32 [r0], 0;",
        body("bar.sync 0;").replace("ld.shared.u32 r2, [r1];\nbar.sync 0;", "ld.shared.u32 r2, [r1];")
    );
    broken(&again, 64, 1, FaultKind::Race);
}

#[test]
fn the_same_value_twice_is_no_race() {
    // All warps store a sum that each of them has; then one reads it.
    let store = |value: &str| {
        format!("{value} st.shared.u32 [s], r1; bar.sync 0; ld.shared.u32 r2, [s]; bar.sync 0;")
    };
    correct(&store("mov.u32 r1, 7;"), 128, 1);
    broken(&store("shr.u32 r1, t, 5;"), 128, 1, FaultKind::Race);
    // Reading what another writes is one, whatever the value.
    let read = "@p0 st.shared.u32 [s], 7; bar.sync 0; ld.shared.u32 r2, [s]; setp.eq.u32 p2, t, 32; @p2 st.shared.u32 [s], 7; bar.sync 0;";
    broken(read, 64, 1, FaultKind::Race);
}

#[test]
fn lanes_of_one_warp_are_threads_too() {
    // One lane reads what another wrote.
    let neighbours = |sync: &str| {
        format!(
            "{ADDRESS}st.shared.u32 [r0], t; {sync} xor.b32 r1, r0, 4; ld.shared.u32 r2, [r1]; add.u32 r3, r2, 1;"
        )
    };
    correct(&neighbours("bar.warp.sync -1;"), 32, 1);
    broken(&neighbours(""), 32, 1, FaultKind::Race);
    // Convergence of lanes need not order what they did in memory.
    for together in [
        "shfl.sync.idx.b32 r9, t, 0, 31, -1;",
        "vote.sync.ballot.b32 r9, p0, -1;",
        "elect.sync r9|p3, -1;",
        "redux.sync.add.u32 r9, t, -1;",
    ] {
        broken(&neighbours(together), 32, 1, FaultKind::Race);
        correct(&neighbours(&format!("{together} bar.warp.sync -1;")), 32, 1);
    }
    // Its own word needs nothing.
    correct(&neighbours("").replace("xor.b32 r1, r0, 4;", "mov.u32 r1, r0;"), 32, 1);
    // One lane arrives for all, with and without waiting for them; warp 1 then overwrites.
    let handover = |sync: &str| {
        format!(
            "@p0 mbarrier.init.shared::cta.b64 [smem+4096], 1; bar.sync 0; setp.lt.u32 p2, t, 32; @!p2 bra B;
            {ADDRESS} st.shared.u32 [r0], t; {sync} @p0 mbarrier.arrive.shared::cta.b64 _, [smem+4096]; bra E;
            B: {WAIT} sub.u32 r1, t, 32; shl.b32 r1, r1, 2; add.u32 r1, r1, s; st.shared.u32 [r1], 0; E:"
        )
    };
    correct(&handover("bar.warp.sync -1;"), 64, 1);
    broken(&handover(""), 64, 1, FaultKind::Race);
    // The same for copies: each lane has waited for its own only.
    let copies = |sync: &str| {
        handover(&format!("cp.async.wait_all; {sync}")).replace(
            "st.shared.u32 [r0], t;",
            "mul.wide.u32 d0, t, 4; add.u64 d0, d0, b; cp.async.ca.shared.global [r0], [d0], 4;",
        )
    };
    correct(&copies("bar.warp.sync -1;"), 64, 1);
    broken(&copies(""), 64, 1, FaultKind::Race);
    // Unless each arrives for its own, also where they have diverged.
    let each = |wait: &str| {
        let apart = format!(
            "and.b32 r6, t, 1; setp.eq.u32 p3, r6, 0; @p3 bra X; {wait} mbarrier.arrive.shared::cta.b64 _, [smem+4096]; bra Y; X: {wait}"
        );
        copies("")
            .replace("cp.async.wait_all;", &apart)
            .replace("@p0 mbarrier.arrive", "mbarrier.arrive")
            .replace("bra E;", "Y: cp.async.wait_all; bra E;")
            .replace("[smem+4096], 1;", "[smem+4096], 32;")
    };
    correct(&each("cp.async.wait_all;"), 64, 1);
    correct(&each("cp.async.commit_group; cp.async.wait_group 0;"), 64, 1);
    broken(&each("cp.async.commit_group; cp.async.wait_group 1;"), 64, 1, FaultKind::Race);
    // Half of the lanes wait for the copies of all before they meet.
    let half = "@p3 bra X; cp.async.wait_all; X: bar.warp.sync -1;";
    let half = copies(&format!("and.b32 r6, t, 1; setp.eq.u32 p3, r6, 0; {half}")).replacen(
        "cp.async.wait_all;",
        "",
        1,
    );
    let half = half.replace("bra E;", "cp.async.wait_all; bra E;");
    broken(&half, 64, 1, FaultKind::Race);
    // A lane that waits for the others' sake.
    let waits = |sync: &str| {
        format!("{LOAD} @!p0 bra R; {WAIT} R: {sync} {ADDRESS} ld.shared.u32 r1, [r0]; bar.sync 0;")
    };
    correct(&waits("bar.warp.sync -1;"), 32, 1);
    broken(&waits(""), 32, 1, FaultKind::Race);
}

#[test]
fn reading_before_the_copy_is_complete() {
    correct(&format!("{LOAD}{WAIT}{ADDRESS}ld.shared.u32 r1, [r0];"), 128, 1);
    let f = broken(&format!("{LOAD}{ADDRESS}ld.shared.u32 r1, [r0]; {WAIT}"), 32, 1, FaultKind::Race);
    assert!(f.other.unwrap().opcode.starts_with("cp.async.bulk"));
    // The wrong parity passes at once.
    let wrong = WAIT.replace("], 0;", "], 1;");
    let body = format!("{LOAD}{wrong}{ADDRESS}ld.shared.u32 r1, [r0]; {}", WAIT.replace("L", "M"));
    for o in schedules() {
        // Unless the copy is so early that the wait is for the phase after it, which never comes.
        let late = o.policy == Policy::Lazy;
        let f = run(&body, 32, 1, &o).unwrap_err();
        assert!(f.kind == FaultKind::Race || !late && f.kind == FaultKind::WrongParity, "{f}");
        if late {
            let note = "last passed a wait for parity 1 in phase 0";
            assert!(f.notes.iter().any(|n| n.contains("1024 bytes missing") && n.contains(note)), "{f}");
        }
    }
}

#[test]
fn overwriting_what_a_copy_still_reads() {
    let body = |fence: &str, sync: &str, wait: &str| {
        format!(
            "{ADDRESS}st.shared.u32 [r0], t; {fence} {sync} @!p0 bra E; cp.async.bulk.global.shared::cta.bulk_group [b], [s], 256; cp.async.bulk.commit_group; {wait} E: bar.sync 0; st.shared.u32 [r0], 5; @p0 cp.async.bulk.wait_group 0;"
        )
    };
    let (fence, sync) = ("fence.proxy.async.shared::cta;", "bar.sync 0;");
    correct(&body(fence, sync, "cp.async.bulk.wait_group.read 0;"), 64, 1);
    broken(&body(fence, sync, ""), 64, 1, FaultKind::Race);
    broken(&body("", sync, "cp.async.bulk.wait_group.read 0;"), 64, 1, FaultKind::ProxyOrder);
    // The fence may also follow the barrier, on the thread that issues the copy.
    correct(&body("", "bar.sync 0; fence.proxy.async;", "cp.async.bulk.wait_group.read 0;"), 64, 1);
}

#[test]
fn a_copy_over_generic_writes_needs_the_fence() {
    let body = |fence: &str| format!("{ADDRESS}st.shared.u32 [r0], t; {fence}\n{LOAD}{WAIT}");
    for fence in
        ["fence.proxy.async;", "fence.proxy.async.shared::cta;", "fence.proxy.async.shared::cluster;"]
    {
        correct(&body(fence), 64, 1);
    }
    // None, or one for other memory.
    for fence in ["", "fence.proxy.async.global;"] {
        broken(&body(fence), 64, 1, FaultKind::ProxyOrder);
    }
}

#[test]
fn exiting_with_work_in_flight() {
    let store = "@!p0 bra E; st.shared.v4.u32 [s], {t, t, t, t}; fence.proxy.async; cp.async.bulk.global.shared::cta.bulk_group [b], [s], 16; cp.async.bulk.commit_group;";
    correct(&format!("{store} cp.async.bulk.wait_group.read 0; E:"), 32, 1);
    // Hardware lets a bulk store finish; the manual does not say so.
    noted(&format!("{store} E:"), 32, 1, FaultKind::WorkInFlight);
    let uncommitted = store.replace("cp.async.bulk.commit_group;", "cp.async.bulk.wait_group 0; E:");
    noted(&uncommitted, 32, 1, FaultKind::WorkInFlight);
    // Nobody may write over its source meanwhile: neither another warp nor a peer.
    let late = format!("{store} E: setp.eq.u32 p2, t, 32; @p2 st.shared.u32 [s], 5;");
    broken(&late.replace("E:", "E: bar.sync 0;"), 64, 1, FaultKind::Race);
    // A cp.async writes shared memory.
    broken("@p0 cp.async.ca.shared.global [s], [b], 16;", 32, 1, FaultKind::WorkInFlight);
    // A load that nobody waits for.
    for o in schedules().into_iter().filter(|o| o.policy == Policy::Lazy) {
        assert_eq!(run(LOAD, 32, 1, &o).unwrap_err().kind, FaultKind::WorkInFlight);
    }
    // A peer's memory after the peer's exit.
    let remote = "st.shared.u32 [s], 1; barrier.cluster.arrive; barrier.cluster.wait; mov.u32 r1, %cluster_ctarank; xor.b32 r1, r1, 1; mapa.shared::cluster.u32 r2, s, r1; ld.shared::cluster.u32 r3, [r2];";
    correct(
        &format!(
            "@!p0 bra E; E: {} barrier.cluster.arrive.relaxed; barrier.cluster.wait;",
            remote.replace("st.shared.u32 [s], 1;", "@p0 st.shared.u32 [s], 1;")
        ),
        32,
        2,
    );
    broken(
        &remote.replace("st.shared.u32 [s], 1;", "@p0 st.shared.u32 [s], 1;"),
        32,
        2,
        FaultKind::PeerExited,
    );
}

#[test]
fn mbarriers_that_are_misused() {
    let init = "@p0 mbarrier.init.shared::cta.b64 [smem], 2; bar.sync 0;";
    broken("mbarrier.arrive.shared::cta.b64 _, [smem];", 32, 1, FaultKind::BarrierInit);
    broken(
        "@p0 mbarrier.init.shared::cta.b64 [smem], 64; mbarrier.arrive.shared::cta.b64 _, [smem]; bar.sync 0;",
        64,
        1,
        FaultKind::BarrierInit,
    );
    broken(
        &format!("{init} @p0 mbarrier.arrive.shared::cta.b64 _, [smem], 3;"),
        32,
        1,
        FaultKind::OverArrival,
    );
    broken(&format!("{init} @p0 mbarrier.init.shared::cta.b64 [smem], 2;"), 32, 1, FaultKind::BarrierInit);
    broken(&format!("{init} @p0 st.shared.u32 [smem+4], 0;"), 32, 1, FaultKind::BarrierInit);
    // The own CTA's copies find an mbarrier without its fence; those of a peer need not.
    let unfenced = LOAD.replace("fence.mbarrier_init.release.cluster;", "");
    noted(&format!("{unfenced}{WAIT}"), 32, 1, FaultKind::BarrierInit);
    let peer = |fence: &str| {
        format!(
            "@!p0 bra I; mbarrier.init.shared::cta.b64 [smem+4096], 1; {fence} I: bar.warp.sync -1;
            barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
            @!p0 bra W; mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem+4096], 1024;
            mov.u32 r1, %cluster_ctarank; xor.b32 r1, r1, 1; mapa.shared::cluster.u32 r2, s, r1; add.u32 r3, r2, 4096;
            cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r2], [b], 1024, [r3];
            W: bar.warp.sync -1; {WAIT} barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
        )
    };
    correct(&peer("fence.mbarrier_init.release.cluster;"), 32, 2);
    broken(&peer(""), 32, 2, FaultKind::BarrierInit);
    broken(
        &format!("{}{WAIT}", LOAD.replace("[r9], 1024;", "[r9], 1040;")),
        32,
        1,
        FaultKind::TransactionCount,
    );
    let f = broken(&format!("{init} {}", WAIT.replace("+4096", "")), 32, 1, FaultKind::Deadlock);
    assert!(f.notes[0].contains("2 of 2 arrivals missing"), "{f}");
}

#[test]
fn deadlocks_say_what_everyone_waits_for() {
    let f = broken(
        "setp.lt.u32 p1, t, 32; @p1 bra E; bar.sync 1, 64; E: bar.sync 0;",
        64,
        1,
        FaultKind::Deadlock,
    );
    assert!(f.notes.iter().any(|n| n.contains("barrier 1: 32 of 64")), "{f}");
    assert!(f.notes.iter().any(|n| n.contains("barrier 0: 32 of 64")), "{f}");
    let f = broken(
        "@p0 bra E; barrier.cluster.arrive; barrier.cluster.wait; E: mov.u32 r0, %cluster_ctarank; setp.eq.u32 p2, r0, 0; @!p2 bra X; @!p0 bra X; L: ld.volatile.global.u32 r1, [b]; setp.ne.u32 p1, r1, 0; @p1 bra L; X:",
        32,
        2,
        FaultKind::Deadlock,
    );
    assert!(f.notes.iter().any(|n| n.contains("cluster barrier") || n.contains("polls")), "{f}");
}

#[test]
fn registers_that_nobody_gives_back() {
    // 384 threads start with 168 each: 40 for one warpgroup leave 232 for the two others, 48 do not.
    let kernel = |rest: u32| {
        format!(
            "setp.ge.u32 p1, t, 256; @p1 bra P; setmaxnreg.inc.sync.aligned.u32 232; bra E; \
            P: setmaxnreg.dec.sync.aligned.u32 {rest}; E:"
        )
    };
    correct(&kernel(40), 384, 1);
    let f = broken(&kernel(48), 384, 1, FaultKind::Deadlock);
    assert!(f.notes.iter().any(|n| n.contains("waits for 2048 registers: 1024 have been given back")), "{f}");
    // What `.maxnreg` names is there at first: 256 of 65536 for each of 256 threads.
    let most = |directive: &str| {
        let text = format!(
            ".version 8.3\n.target sm_90a\n.address_size 64\n.visible .entry k() {directive} {{ setmaxnreg.inc.sync.aligned.u32 256; ret; }}"
        );
        let launch = Launch {
            entry: "k".into(),
            grid: [1; 3],
            cluster: None,
            block: [256, 1, 1],
            shared_bytes: 0,
            params: vec![],
        };
        Machine::new().run(&Module::parse(&text).unwrap(), &launch, &Options::default())
    };
    most(".maxnreg 256").unwrap();
    assert_eq!(most(".maxnreg 240").unwrap_err().kind, FaultKind::Deadlock);
}

#[test]
fn a_wait_for_the_wrong_phase() {
    let init = "@p0 mbarrier.init.shared::cta.b64 [smem], 1; bar.sync 0;";
    let arrive = "\n.loc 1 4 1\n@p0 mbarrier.arrive.shared::cta.b64 _, [smem]; bar.sync 0;";
    let wait = |parity: u32| {
        format!("\n.loc 1 8 1\nL: mbarrier.try_wait.parity.shared::cta.b64 p1, [smem], {parity}; @!p1 bra L;")
    };
    correct(&format!("{init} {arrive} {}", wait(0)), 64, 1);
    // The phase is over; the wait is for the one behind it, which nobody has begun.
    let f = broken(&format!("{init} {arrive} {}", wait(1)), 64, 1, FaultKind::WrongParity);
    assert!(f.message.contains("the parity should be 0"), "{f}");
    assert_eq!(lines(&f), [4, 8], "the last arrival and the wait");
    assert!(f.notes[0].contains("phase 1 (parity 1), 1 of 1 arrivals missing, 0 bytes missing"), "{f}");
    // Two phases have gone by: the same parity now means the third.
    let f = broken(&format!("{init} {arrive} {arrive} {}", wait(0)), 64, 1, FaultKind::WrongParity);
    assert!(f.message.contains("a round behind"), "{f}");
    assert_eq!(lines(&f), [4, 8]);
}

#[test]
fn a_barrier_of_a_peer_that_has_left() {
    // Rank 1 leaves; rank 0 arrives at its barrier, with and without being waited for.
    let kernel = |wait: &str| {
        format!(
            "@p0 mbarrier.init.shared::cta.b64 [smem], 1; @p0 fence.mbarrier_init.release.cluster; bar.warp.sync -1;
            barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
            mov.u32 r1, %cluster_ctarank; setp.eq.u32 p2, r1, 1; @p2 bra P; mov.u32 r3, 1; mapa.shared::cluster.u32 r2, s, r3;
            \n.loc 1 6 1\n@p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r2]; bra E; P: {wait}\n.loc 1 9 1\nE: ret;"
        )
    };
    correct(&kernel(&WAIT.replace("+4096", "")), 32, 2);
    let f = broken(&kernel(""), 32, 2, FaultKind::PeerExited);
    assert_eq!(lines(&f), [6, 9], "the arrival and the exit: {f}");
    assert!(f.notes.iter().any(|n| n.contains("arrivals missing")), "{f}");
}

#[test]
fn messages_have_both_lines_and_the_state_of_the_barriers() {
    let at = |line: u32, text: &str| format!("\n.loc 1 {line} 1\n{text}\n");
    // The source of a bulk store.
    let f = broken(
        &format!(
            "@!p0 bra E; st.shared.v4.u32 [s], {{t, t, t, t}}; fence.proxy.async; {} cp.async.bulk.commit_group; {} cp.async.bulk.wait_group 0; E:",
            at(3, "cp.async.bulk.global.shared::cta.bulk_group [b], [s], 16;"),
            at(5, "st.shared.u32 [s], 5;")
        ),
        32,
        1,
        FaultKind::Race,
    );
    assert_eq!(lines(&f), [3, 5], "{f}");
    // The destination of a load.
    let load = LOAD
        .replace("cp.async.bulk.shared", "\n.loc 1 3 1\ncp.async.bulk.shared")
        .replace("W: ", "\n.loc 1 4 1\nW: ");
    let f = broken(
        &format!("{load}{ADDRESS}{} {WAIT}", at(5, "ld.shared.u32 r1, [r0];")),
        32,
        1,
        FaultKind::Race,
    );
    assert_eq!(lines(&f), [3, 5], "{f}");
    assert!(f.notes[0].starts_with("the mbarrier at 0x1400 of CTA 0: phase"), "{f}");
    // Bytes that do not come, bytes that are not expected, arrivals that are too many.
    let f = broken(
        &format!("{}{}", load.replace("[r9], 1024;", "[r9], 1040;"), at(7, WAIT)),
        32,
        1,
        FaultKind::TransactionCount,
    );
    assert_eq!(lines(&f), [3, 7], "{f}");
    assert!(f.notes[0].contains("16 bytes missing"), "{f}");
    let twice = "mbarrier.arrive.shared::cta.b64 _, [smem];";
    let f = broken(
        &format!(
            "@p0 mbarrier.init.shared::cta.b64 [smem], 2; bar.sync 0; {} {}",
            at(3, &format!("@p0 {twice}")),
            at(5, &twice.replace("_, [smem]", "_, [smem], 2").replace("mbarrier", "@p0 mbarrier"))
        ),
        32,
        1,
        FaultKind::OverArrival,
    );
    assert_eq!(lines(&f), [3, 5], "{f}");
    assert!(f.notes[0].contains("phase 0 (parity 0), 1 of 2 arrivals missing, 0 bytes missing"), "{f}");
    // Copies that are left behind.
    let f = noted(
        &format!(
            "@!p0 bra E; st.shared.v4.u32 [s], {{t, t, t, t}}; fence.proxy.async; {} E: {}",
            at(3, "cp.async.bulk.global.shared::cta.bulk_group [b], [s], 16;"),
            at(9, "ret;")
        ),
        32,
        1,
        FaultKind::WorkInFlight,
    );
    assert_eq!(lines(&f), [3, 9], "{f}");
    // A product whose registers nobody fenced.
    let unfenced = wgmma("", "", "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;", "")
        .replace(LOAD, &LOAD.replace("1024", "2048"))
        .replace("mov.f32 f0", "\n.loc 1 3 1\nmov.f32 f0")
        .replace("wgmma.mma_async", "\n.loc 1 9 1\nwgmma.mma_async");
    assert_eq!(lines(&broken(&unfenced, 128, 1, FaultKind::WgmmaRegister)), [3, 9]);
}

#[test]
fn accesses_that_nothing_allows() {
    let one = |text: &str, kind: FaultKind| {
        let f = broken(&format!("\n.loc 1 5 1\n@p0 {text}"), 32, 1, kind);
        assert_eq!(f.at.unwrap().source.unwrap().1, 5);
    };
    one("ld.global.u32 r1, [b+2];", FaultKind::Misaligned);
    one("st.shared.v4.u32 [s+8], {t, t, t, t};", FaultKind::Misaligned);
    one("ld.global.u32 r1, [b+4096];", FaultKind::OutOfBounds);
    one("st.global.u32 [b+-4], t;", FaultKind::OutOfBounds);
    one("st.shared.u32 [s+32768], t;", FaultKind::OutOfBounds);
    one("add.u32 r1, r2, 1;", FaultKind::Uninitialized);
    // Memory that nothing wrote may be loaded, as part of a vector; using it is the error, and names the load.
    let f = broken(
        "\n.loc 1 3 1\nld.shared.u32 r1, [s];\n.loc 1 5 1\nadd.u32 r2, r1, 1;",
        32,
        1,
        FaultKind::Uninitialized,
    );
    assert_eq!(lines(&f), [3, 5]);
    let f = broken(
        "@!p0 bra E; fence.proxy.async;\n.loc 1 3 1\ncp.async.bulk.global.shared::cta.bulk_group [b], [s], 16; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; E:",
        32,
        1,
        FaultKind::Uninitialized,
    );
    assert_eq!(f.at.unwrap().source.unwrap().1, 3);
}

/// A product of shared memory that a bulk copy brought.
fn wgmma(before: &str, fence: &str, middle: &str, after: &str) -> String {
    let zero: String = (0..4).map(|i| format!("mov.f32 f{i}, 0f00000000; ")).collect();
    format!(
        "{LOAD}{WAIT}{before} shr.u32 r4, s, 4; cvt.u64.u32 d1, r4; or.b64 d1, d1, 0x0000000800080000; {zero} setp.eq.u32 p3, t, t;
        {fence} wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {{f0,f1,f2,f3}}, d1, d1, p3, 1, 1;
        {middle} {after}"
    )
}

#[test]
fn wgmma_registers_and_shared_memory() {
    let load = LOAD.replace("1024", "2048");
    let kernel = |before: &str, fence: &str, middle: &str, after: &str| {
        wgmma(before, fence, middle, after).replace(LOAD, &load)
    };
    let (fence, commit, wait) =
        ("wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;");
    let done = format!("{commit} {wait}");
    correct(&kernel("", fence, &done, "add.f32 f5, f0, f0;"), 128, 1);
    broken(&kernel("", "", &done, "add.f32 f5, f0, f0;"), 128, 1, FaultKind::WgmmaRegister);
    broken(&kernel("", fence, commit, "add.f32 f5, f0, f0;"), 128, 1, FaultKind::WgmmaRegister);
    broken(&kernel("", fence, wait, "mov.f32 f0, 0f00000000;"), 128, 1, FaultKind::WgmmaRegister);
    broken(
        &kernel("", fence, commit, "wgmma.wait_group.sync.aligned 1; add.f32 f5, f0, f0;"),
        128,
        1,
        FaultKind::WgmmaRegister,
    );
    broken(&kernel("", fence, commit, ""), 128, 1, FaultKind::WorkInFlight);
    // Shared memory overwritten while the product may still read it.
    let store = "st.shared.u32 [s], 0;";
    broken(&kernel("", fence, commit, &format!("@p0 {store} {wait}")), 128, 1, FaultKind::Race);
    correct(&kernel("", fence, &done, &format!("bar.sync 0; @p0 {store}")), 128, 1);
    // Generic writes that the product reads.
    broken(&kernel(&format!("@p0 {store} bar.sync 0;"), fence, &done, ""), 128, 1, FaultKind::ProxyOrder);
    correct(&kernel(&format!("@p0 {store} fence.proxy.async; bar.sync 0;"), fence, &done, ""), 128, 1);
}

#[test]
fn a_tensor_map_must_be_fenced_and_left_alone() {
    let change = "mov.b64 d0, map; cvta.param.u64 d0, d0; ld.param.b64 d1, [map]; add.u64 d2, b, 2048;
        @!p0 bra C; ld.v4.b32 {r1,r2,r3,r4}, [d0]; st.global.v4.b32 [d2], {r1,r2,r3,r4}; ld.v4.b32 {r1,r2,r3,r4}, [d0+16]; st.global.v4.b32 [d2+16], {r1,r2,r3,r4};
        ld.v4.b32 {r1,r2,r3,r4}, [d0+32]; st.global.v4.b32 [d2+32], {r1,r2,r3,r4}; ld.v4.b32 {r1,r2,r3,r4}, [d0+48]; st.global.v4.b32 [d2+48], {r1,r2,r3,r4};
        ld.v4.b32 {r1,r2,r3,r4}, [d0+64]; st.global.v4.b32 [d2+64], {r1,r2,r3,r4}; ld.v4.b32 {r1,r2,r3,r4}, [d0+80]; st.global.v4.b32 [d2+80], {r1,r2,r3,r4};
        ld.v4.b32 {r1,r2,r3,r4}, [d0+96]; st.global.v4.b32 [d2+96], {r1,r2,r3,r4}; ld.v4.b32 {r1,r2,r3,r4}, [d0+112]; st.global.v4.b32 [d2+112], {r1,r2,r3,r4};
        tensormap.replace.tile.global_dim.global.b1024.b32 [d2], 1, 8;";
    let release = "fence.proxy.tensormap::generic.release.gpu;";
    let acquire = "fence.proxy.tensormap::generic.acquire.gpu [d2], 128;";
    let load = LOAD
        .replace("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [b], 1024, [r9];", "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [s], [d2, {0, 0}], [r9];");
    let kernel = |release: &str, acquire: &str, after: &str| {
        let load = load.replace("cp.async.bulk.tensor", &format!("{acquire} cp.async.bulk.tensor"));
        format!("{change} {release} C: bar.sync 0; {load} {after} {WAIT}{ADDRESS} ld.shared.u32 r1, [r0];")
    };
    correct(&kernel(release, acquire, ""), 32, 1);
    broken(&kernel(release, "", ""), 32, 1, FaultKind::TensorMap);
    broken(&kernel("", "", ""), 32, 1, FaultKind::TensorMap);
    let changed = "@p0 tensormap.replace.tile.global_dim.global.b1024.b32 [d2], 1, 4;";
    let lazy = Options { policy: Policy::Lazy, ..Options::default() };
    let f = run(&kernel(release, acquire, changed), 32, 1, &lazy).unwrap_err();
    assert_eq!(f.kind, FaultKind::TensorMap, "{f}");
}

#[test]
fn checks_can_be_switched_off() {
    let body = format!(
        "{ADDRESS}st.shared.u32 [r0], t; xor.b32 r1, t, 32; shl.b32 r1, r1, 2; add.u32 r1, r1, s; ld.shared.u32 r2, [r1];"
    );
    run(&body, 64, 1, &Options { hazards: false, ..Options::default() }).unwrap();
}

#[test]
fn copies_that_a_thread_has_waited_for_are_fenced_by_it() {
    // No barrier between the wait and the fence: each thread fences its own copies.
    let body = |fence: &str| {
        format!(
            "shl.b32 r1, t, 2; cvt.u64.u32 d0, r1; add.u64 d0, d0, b; add.u32 r1, r1, s;
            cp.async.ca.shared.global [r1], [d0], 4; cp.async.commit_group; cp.async.wait_group 0; {fence} bar.sync 0; add.u64 d1, b, 1024;
            @p0 cp.async.bulk.global.shared::cta.bulk_group [d1], [s], 256; cp.async.bulk.commit_group;
            cp.async.bulk.wait_group 0;"
        )
    };
    correct(&body("fence.proxy.async;"), 64, 1);
    broken(&body(""), 64, 1, FaultKind::ProxyOrder);
}

#[test]
fn an_arrival_at_the_cluster_barrier_without_a_wait_for_the_last() {
    let body = |wait: &str| {
        format!("barrier.cluster.arrive; {wait} bar.sync 0; barrier.cluster.arrive; barrier.cluster.wait;")
    };
    correct(&body("barrier.cluster.wait;"), 64, 2);
    broken(&body(""), 64, 2, FaultKind::OverArrival);
    // Alone in its cluster no CTA finds the phase incomplete.
    broken(&body(""), 32, 1, FaultKind::OverArrival);
}

#[test]
fn a_wait_that_the_next_phase_may_overtake() {
    // Thread 0 completes two phases; nothing says that the other warp has seen the first.
    let body = |sync: &str| {
        format!(
            "add.u32 r9, s, 2048; @p0 mbarrier.init.shared::cta.b64 [r9], 1; bar.sync 0;
            @p0 mbarrier.arrive.shared::cta.b64 _, [r9];
            W: mbarrier.try_wait.parity.shared::cta.b64 p2, [r9], 0; @!p2 bra W; {sync}
            @p0 mbarrier.arrive.shared::cta.b64 _, [r9];
            V: mbarrier.try_wait.parity.shared::cta.b64 p2, [r9], 1; @!p2 bra V;"
        )
    };
    correct(&body("bar.sync 0;"), 64, 1);
    // The next phase cannot be complete before a copy is, which is issued behind the wait.
    let copy = "add.u32 r9, s, 2048; @p0 mbarrier.init.shared::cta.b64 [r9], 1; bar.sync 0;
        @p0 mbarrier.arrive.shared::cta.b64 _, [r9];
        W: mbarrier.try_wait.parity.shared::cta.b64 p2, [r9], 0; @!p2 bra W;
        @p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r9], 64; fence.proxy.async; bar.sync 0;
        @p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [b], 64, [r9];
        V: mbarrier.try_wait.parity.shared::cta.b64 p2, [r9], 1; @!p2 bra V;";
    correct(copy, 64, 1);
    let kinds = [FaultKind::WrongParity, FaultKind::Deadlock];
    for options in schedules() {
        let fault = run(&body(""), 64, 1, &options).expect_err("the wait may be late");
        assert!(kinds.contains(&fault.kind), "{fault}");
    }
}

#[test]
fn copies_of_a_thread_that_exits_without_a_wait() {
    let body = |wait: &str| {
        format!("{ADDRESS}cp.async.ca.shared.global [r0], [b], 4; cp.async.commit_group; {wait}")
    };
    correct(&body("cp.async.wait_group 0;"), 32, 1);
    // Also where they happen to be over.
    broken(&body("cp.async.wait_group 1;"), 32, 1, FaultKind::WorkInFlight);
}
