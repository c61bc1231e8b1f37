//! Scopes: a release and an acquire synchronize only if the scope of each includes the thread of the other.

use crate::broken::*;

/// CTAs of the grid, threads of a CTA, CTAs of a cluster.
const TWO_CLUSTERS: [u32; 3] = [2, 32, 1];
const ONE_CLUSTER: [u32; 3] = [2, 32, 2];
const ONE_BLOCK: [u32; 3] = [1, 64, 1];

/// Thread 0 of one side writes to global memory and publishes; of the other it waits, and reads. The sides are the
/// blocks, or the warps of a block.
fn handover(shape: [u32; 3], publish: &str, poll: &str, acquire: &str) -> String {
    let side = if shape == ONE_BLOCK { "shr.u32 r3, t, 5;" } else { "mov.u32 r3, %ctaid.x;" };
    format!(
        "{side} and.b32 r5, t, 31; setp.ne.u32 p1, r5, 0; @p1 bra E; setp.eq.u32 p1, r3, 0; @p1 bra R;
        st.global.u32 [b], 5; {publish} bra E;
        R: {poll} setp.ne.u32 p2, r4, 9; @p2 bra R; {acquire} ld.global.u32 r1, [b]; E:"
    )
}

/// The narrowest scope that includes both sides, and those that do not.
fn needed(shape: [u32; 3]) -> (&'static [&'static str], &'static [&'static str]) {
    match shape {
        ONE_BLOCK => (&["cta", "cluster", "gpu", "sys"], &[]),
        ONE_CLUSTER => (&["cluster", "gpu", "sys"], &["cta"]),
        _ => (&["gpu", "sys"], &["cta", "cluster"]),
    }
}

const SHAPES: [[u32; 3]; 3] = [TWO_CLUSTERS, ONE_CLUSTER, ONE_BLOCK];

#[test]
fn a_flag_needs_a_scope_that_includes_both_sides() {
    let flag = |shape: [u32; 3], release: &str, acquire: &str| {
        handover(
            shape,
            &format!("st.release.{release}.global.u32 [b+64], 9;"),
            &format!("ld.acquire.{acquire}.global.u32 r4, [b+64];"),
            "",
        )
    };
    for shape in SHAPES {
        let (wide, narrow) = needed(shape);
        for scope in wide {
            correct_grid(&flag(shape, scope, wide[0]), shape);
            correct_grid(&flag(shape, "gpu", scope), shape);
        }
        for scope in narrow {
            racy_grid(&flag(shape, scope, "gpu"), shape, "a scope does not include");
            racy_grid(&flag(shape, "gpu", scope), shape, "a scope does not include");
        }
    }
}

#[test]
fn a_fence_needs_one_too() {
    let fenced = |shape: [u32; 3], release: &str, acquire: &str| {
        handover(
            shape,
            &format!("{release} st.relaxed.gpu.global.u32 [b+64], 9;"),
            "ld.relaxed.gpu.global.u32 r4, [b+64];",
            acquire,
        )
    };
    let gpu = "fence.acq_rel.gpu;";
    for shape in SHAPES {
        let (wide, narrow) = needed(shape);
        for scope in wide {
            let fence = format!("fence.acq_rel.{scope};");
            correct_grid(&fenced(shape, &fence, gpu), shape);
            correct_grid(&fenced(shape, gpu, &fence), shape);
        }
        for scope in narrow {
            let fence = format!("fence.acq_rel.{scope};");
            racy_grid(&fenced(shape, &fence, gpu), shape, "is not ordered");
            racy_grid(&fenced(shape, gpu, &fence), shape, "is not ordered");
        }
    }
    racy_grid(&fenced(TWO_CLUSTERS, "membar.cta;", gpu), TWO_CLUSTERS, "is not ordered");
    correct_grid(&fenced(TWO_CLUSTERS, "membar.gl;", gpu), TWO_CLUSTERS);
    // A wide fence behind a narrow one, and the reverse: the wide one counts for what came before it.
    let both = ["fence.acq_rel.gpu; fence.acq_rel.cta;", "fence.acq_rel.cta; fence.acq_rel.gpu;"];
    for fences in both {
        correct_grid(&fenced(TWO_CLUSTERS, fences, gpu), TWO_CLUSTERS);
        correct_grid(&fenced(TWO_CLUSTERS, gpu, fences), TWO_CLUSTERS);
    }
}

#[test]
fn atomics_meet_within_their_scope() {
    let add = |scope: &str| format!("@p0 atom{scope}.global.add.u32 r1, [b], 1;");
    for shape in SHAPES {
        let (wide, narrow) = needed(shape);
        correct_grid(&add(""), shape);
        wide.iter().for_each(|scope| correct_grid(&add(&format!(".relaxed.{scope}")), shape));
        for scope in narrow {
            racy_grid(&add(&format!(".relaxed.{scope}")), shape, "a scope does not include");
        }
    }
    // In the shared memory of a block of the cluster.
    let remote = |scope: &str| {
        format!(
            "@p0 st.shared.u32 [s], 0; barrier.cluster.arrive; barrier.cluster.wait; mov.u32 r1, 0; mapa.shared::cluster.u32 r2, s, r1;
            @p0 atom.relaxed.{scope}.shared::cluster.add.u32 r3, [r2], 1; barrier.cluster.arrive; barrier.cluster.wait;"
        )
    };
    correct_grid(&remote("cluster"), ONE_CLUSTER);
    racy_grid(&remote("cta"), ONE_CLUSTER, "a scope does not include");
}

/// Block 0 does `before` and arrives at an mbarrier of block 1, which waits and does `after`: both with the address of
/// block 1's shared memory in `r2`.
fn arrival(before: &str, arrive: &str, wait: &str, after: &str) -> String {
    format!(
        "@p0 mbarrier.init.shared::cta.b64 [smem+4096], 1; @p0 fence.mbarrier_init.release.cluster; st.shared.u32 [s+2048], 7;
        barrier.cluster.arrive; barrier.cluster.wait; mov.u32 r3, %ctaid.x; setp.eq.u32 p1, r3, 0; mov.u32 r1, 1;
        mapa.shared::cluster.u32 r2, s, r1; @!p1 bra W; @!p0 bra E;
        {before} mbarrier.arrive{arrive}.shared::cluster.b64 _, [r2+4096]; bra E;
        W: mbarrier.try_wait.parity{wait}.shared::cta.b64 p2, [smem+4096], 0; @!p2 bra W; @p0 {after}
        E: barrier.cluster.arrive; barrier.cluster.wait;"
    )
    .replace("st.shared.u32 [s+2048], 7;", "@p0 st.shared.u32 [s+2048], 7;")
}

#[test]
fn an_arrival_at_a_peer_needs_the_scope_of_the_cluster() {
    let (release, acquire) = (".release.cluster", ".acquire.cluster");
    let (write, read) = ("st.shared::cluster.u32 [r2], 5;", "ld.shared.u32 r4, [s];");
    correct_grid(&arrival(write, release, acquire, read), ONE_CLUSTER);
    // Without a scope it is that of the block, on either side.
    for (arrive, wait) in [("", acquire), (".release.cta", acquire), (release, ""), (release, ".acquire.cta")]
    {
        racy_grid(&arrival(write, arrive, wait, read), ONE_CLUSTER, "a scope does not include");
    }
    // Where the peer has only read, it is enough to know that it is done.
    let (read, write) = ("ld.shared::cluster.u32 r4, [r2+2048];", "st.shared.u32 [s+2048], 5;");
    for (arrive, wait) in [("", ""), ("", acquire), (release, "")] {
        correct_grid(&arrival(read, arrive, wait, write), ONE_CLUSTER);
    }
}

#[test]
fn a_thread_that_arrives_at_the_cluster_and_exits_counts_once() {
    // The second warps leave before the first warp of the second block has written what the other block reads.
    let body = "mov.u32 r3, %cluster_ctarank; setp.lt.u32 p1, t, 32; @p1 bra F; barrier.cluster.arrive.release.aligned; bra E;
        F: setp.ne.u32 p1, r3, 1; @p1 bra A; mov.u32 r4, 0;
        L: add.u32 r4, r4, 1; setp.lt.u32 p2, r4, 100; @p2 bra L; st.shared.u32 [smem], 42;
        A: barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
        @!p1 bra D; mov.u32 r5, 1; mapa.shared::cluster.u32 r5, s, r5; ld.shared::cluster.u32 r1, [r5];
        D: barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; E:";
    correct(body, 64, 2);
}
