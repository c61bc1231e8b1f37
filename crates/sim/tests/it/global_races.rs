//! Races in global memory, and synchronization between CTAs that is none.

use crate::broken::*;
use oxigemm_sim::*;

#[test]
fn races_in_global_memory() {
    let everywhere = |body: &str, shape: [u32; 3]| {
        schedules().into_iter().map(move |o| run_grid(body, shape, &o)).collect::<Vec<_>>()
    };
    let clean = |body: &str, shape: [u32; 3]| {
        everywhere(body, shape).into_iter().for_each(|r| {
            if let Err(f) = r {
                panic!("{f}\n{body}")
            }
        });
    };
    let racy = |body: &str, shape: [u32; 3], expected: [u32; 2]| {
        for r in everywhere(body, shape) {
            let f = r.expect_err(body);
            assert_eq!((f.kind, lines(&f)), (FaultKind::Race, expected), "{f}");
            assert!(f.message.starts_with("global memory at 0x"), "{f}");
        }
    };
    let (two_ctas, two_warps) = ([2, 32, 1], [1, 64, 1]);
    // Two writers of one word: in two CTAs, in two warps, in two lanes.
    let write = "mov.u32 r1, %ctaid.x; shl.b32 r1, r1, 8; or.b32 r1, r1, t;";
    racy(&format!("{write}\n.loc 1 3 1\n@p0 st.global.u32 [b], r1;"), two_ctas, [3, 3]);
    let per_warp = "and.b32 r2, t, 31; setp.eq.u32 p1, r2, 0;";
    racy(&format!("{per_warp}\n.loc 1 3 1\n@p1 st.global.u32 [b], t;"), two_warps, [3, 3]);
    clean(&format!("{per_warp} @p1 st.global.u32 [b], 7; bar.sync 0; @p0 st.global.u32 [b], 8;"), two_warps);
    // The same value, neighbouring bytes, reads only: no race.
    clean("st.global.u32 [b], 16843009;", two_ctas);
    clean(
        &format!(
            "{write} cvt.u64.u32 d0, t; add.u64 d0, d0, b; mov.u32 r3, %ctaid.x; mul.wide.u32 d1, r3, 64; add.u64 d0, d0, d1; st.global.u8 [d0], r1;"
        ),
        two_ctas,
    );
    clean("ld.global.u32 r1, [b]; add.u32 r2, r1, 1;", two_ctas);
    // A write and a read: in two warps, with and without a barrier; in two CTAs.
    let handover = |sync: &str| {
        format!(
            "\n.loc 1 3 1\n@p0 st.global.u32 [b], t;\n{sync}\n.loc 1 5 1\nsetp.eq.u32 p1, t, 40; @p1 ld.global.u32 r1, [b];"
        )
    };
    clean(&handover("bar.sync 0;"), two_warps);
    racy(&handover(""), two_warps, [3, 5]);
    let handover = |publish: &str, poll: &str, acquire: &str| {
        format!(
            "@!p0 bra E; mov.u32 r3, %ctaid.x; setp.eq.u32 p1, r3, 0; @p1 bra R;
            \n.loc 1 3 1\nst.global.u32 [b], 5;\n{publish} bra E;
            R: {poll} setp.ne.u32 p2, r4, 9; @p2 bra R; {acquire}\n.loc 1 5 1\nld.global.u32 r1, [b]; E:"
        )
    };
    let (fence, relaxed) = ("fence.acq_rel.gpu;", "st.relaxed.gpu.global.u32 [b+64], 9;");
    let poll = "ld.relaxed.gpu.global.u32 r4, [b+64];";
    clean(
        &handover("st.release.gpu.global.u32 [b+64], 9;", "ld.acquire.gpu.global.u32 r4, [b+64];", ""),
        two_ctas,
    );
    clean(&handover(&format!("{fence} {relaxed}"), poll, fence), two_ctas);
    clean(
        &handover(
            &format!("{fence} atom.global.exch.b32 r5, [b+64], 9;"),
            "ld.volatile.global.u32 r4, [b+64];",
            fence,
        ),
        two_ctas,
    );
    racy(&handover(relaxed, poll, fence), two_ctas, [3, 5]);
    racy(&handover(&format!("{fence} {relaxed}"), poll, ""), two_ctas, [3, 5]);
    // A loop around a compare-and-swap begins with a plain read; a plain write among atomics is a race.
    let swap = "R: ld.global.u32 r4, [b]; L: add.u32 r5, r4, 1; mov.u32 r6, r4; atom.global.cas.b32 r4, [b], r6, r5; setp.ne.u32 p2, r4, r6; @p2 bra L;";
    clean(swap, two_ctas);
    racy(&format!("\n.loc 1 3 1\n{swap}\n.loc 1 5 1\n@p0 st.global.u32 [b], 7;"), two_ctas, [3, 5]);
    // Within a cluster, its barrier orders too.
    let cluster = |sync: &str| {
        format!(
            "mov.u32 r3, %ctaid.x; setp.eq.and.u32 p1, r3, 0, p0;\n.loc 1 3 1\n@p1 st.global.u32 [b], 5;\n{sync} setp.eq.and.u32 p2, r3, 1, p0;\n.loc 1 5 1\n@p2 ld.global.u32 r1, [b];"
        )
    };
    clean(&cluster("barrier.cluster.arrive; barrier.cluster.wait;"), [2, 32, 2]);
    racy(&cluster(""), [2, 32, 2], [3, 5]);
}

#[test]
fn a_reduction_by_the_last_block_is_no_race() {
    // As the CUDA guide has it: partial sums, a fence, a ticket; the block with the last ticket adds up.
    let kernel = |fence: &str| {
        format!(
            "mov.u32 r1, %ctaid.x; mul.wide.u32 d0, r1, 4; add.u64 d0, d0, b;
            @p0 st.global.u32 [d0], r1; {fence}
            @p0 atom.global.add.u32 r2, [b+1024], 1; @p0 st.shared.u32 [s], r2; bar.sync 0; ld.shared.u32 r2, [s];
            setp.ne.u32 p1, r2, 16843012; @p1 bra E; setp.gt.u32 p2, t, 3; @p2 bra E;
            mul.wide.u32 d1, t, 4; add.u64 d1, d1, b; ld.global.u32 r3, [d1]; add.u32 r4, r3, 1;
            @p0 st.global.u32 [b+1024], 0; E:"
        )
    };
    // Every thread fences what it wrote itself, and one of them takes the ticket behind a barrier.
    let all_write = |fence: &str| {
        format!(
            "mov.u32 r1, %ctaid.x; mad.lo.u32 r1, r1, 64, t; mul.wide.u32 d0, r1, 4; add.u64 d0, d0, b;
            st.global.u32 [d0], r1; {fence} bar.sync 0;
            @p0 atom.global.add.u32 r2, [b+2048], 1; @p0 st.shared.u32 [s], r2; bar.sync 0; ld.shared.u32 r2, [s];
            setp.ne.u32 p1, r2, 16843012; @p1 bra E; mul.wide.u32 d1, t, 4; add.u64 d1, d1, b;
            ld.global.u32 r3, [d1]; ld.global.u32 r4, [d1+512]; add.u32 r4, r3, r4; E:"
        )
    };
    for o in schedules() {
        run_grid(&all_write("fence.acq_rel.gpu;"), [4, 64, 1], &o).unwrap();
        assert_eq!(run_grid(&all_write(""), [4, 64, 1], &o).unwrap_err().kind, FaultKind::Race);
        run_grid(&kernel("fence.acq_rel.gpu;"), [4, 32, 1], &o).unwrap();
        let f = run_grid(&kernel(""), [4, 32, 1], &o).unwrap_err();
        assert_eq!(f.kind, FaultKind::Race, "{f}");
    }
}

#[test]
fn a_semaphore_between_blocks_is_no_race() {
    // Block 1 adds to what block 0 has written: every thread its own word, thread 0 holds the semaphore for all.
    let kernel = |publish: &str, poll: &str, sync: &str| {
        format!(
            "mul.wide.u32 d0, t, 4; add.u64 d0, d0, b; mov.u32 r1, %ctaid.x; setp.eq.u32 p1, r1, 0; @!p1 bra R;
            st.global.u32 [d0], t; bar.sync 0; @p0 {publish} [b+2048], 1; bra E;
            R: mov.u32 r2, 0; @p0 {poll} r2, [b+2048]; setp.ne.and.u32 p2, r2, 16843010, p0; bar.red.or.pred p3, 0, p2; @p3 bra R;
            {sync} ld.global.u32 r3, [d0]; add.u32 r3, r3, 1; st.global.u32 [d0], r3; E:"
        )
    };
    let (release, acquire) = ("red.release.gpu.global.add.u32", "ld.acquire.gpu.global.u32");
    for o in schedules() {
        run_grid(&kernel(release, acquire, "bar.sync 0;"), [2, 64, 1], &o).unwrap();
        let relaxed = "red.relaxed.gpu.global.add.u32";
        let f = run_grid(&kernel(relaxed, acquire, "bar.sync 0;"), [2, 64, 1], &o).unwrap_err();
        assert_eq!(f.kind, FaultKind::Race, "{f}");
    }
}

#[test]
fn copies_race_in_global_memory_too() {
    // What a bulk store writes is there when the group is complete, not when its source has been read.
    let store = |wait: &str| {
        format!(
            "@!p0 bra E; st.shared.v4.u32 [s], {{t, t, t, t}}; fence.proxy.async;\n.loc 1 3 1\ncp.async.bulk.global.shared::cta.bulk_group [b], [s], 16; cp.async.bulk.commit_group; {wait}\n.loc 1 5 1\nld.global.u32 r1, [b]; cp.async.bulk.wait_group 0; E:"
        )
    };
    correct(&store("cp.async.bulk.wait_group 0;"), 32, 1);
    correct(&store("cp.async.bulk.wait_group.read 0; cp.async.bulk.wait_group 0;"), 32, 1);
    for wait in ["", "cp.async.bulk.wait_group.read 0;"] {
        assert_eq!(lines(&broken(&store(wait), 32, 1, FaultKind::Race)), [3, 5]);
    }
    // What a thread has written and TMA reads needs the proxy fence.
    let load = |fence: &str| {
        format!("@p0 st.global.u32 [b], 3; {fence} {LOAD}{WAIT}{ADDRESS} ld.shared.u32 r1, [r0];")
    };
    for fence in ["fence.proxy.async;", "fence.proxy.async.global;"] {
        correct(&load(fence), 32, 1);
    }
    for fence in ["", "fence.proxy.async.shared::cta;"] {
        broken(&load(fence), 32, 1, FaultKind::ProxyOrder);
    }
    // And what it still reads must not be written.
    let write = "\n.loc 1 9 1\n@p0 st.global.u32 [b], 3;";
    correct(&format!("{LOAD}{WAIT}{write}"), 32, 1);
    assert_eq!(lines(&broken(&format!("{LOAD}{write} {WAIT}"), 32, 1, FaultKind::Race))[1], 9);
}
