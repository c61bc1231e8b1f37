//! Where lanes that a branch separates come together again, and what an instruction of the whole warp needs.

use crate::broken::*;
use oxigemm_sim::*;

/// Instructions that need a converged warp.
const ALIGNED: [&str; 5] = [
    "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
    "barrier.sync.aligned 1, 32;",
    "setmaxnreg.inc.sync.aligned.u32 240;",
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r2}, [s];",
    "wgmma.fence.sync.aligned;",
];

fn kernel(body: &str) -> String {
    format!("{ADDRESS} st.shared.u32 [r0], t; bar.warp.sync -1; {body} mov.u32 r5, 5;")
}

/// A branch joins at its post-dominator: after an `if`, an `if` with `else`, a loop, a switch, a call of some lanes.
#[test]
fn lanes_are_together_where_their_ways_meet() {
    for aligned in ALIGNED {
        for apart in [
            "@!p0 bra J; mov.u32 r1, 1; J:",
            "@!p0 bra A; mov.u32 r1, 1; bra J; A: mov.u32 r1, 2; J:",
            // The join lies before the two ways in the text.
            "bra S; J: bra N; S: @!p0 bra A; mov.u32 r1, 1; bra J; A: mov.u32 r1, 2; bra J; N:",
            "mov.u32 r1, 0; L: add.u32 r1, r1, 1; setp.lt.u32 p1, r1, t; @p1 bra L;",
            // Loops that lanes leave from the middle and from the end.
            "mov.u32 r1, 0; L: add.u32 r1, r1, 1; setp.eq.u32 p1, r1, t; @p1 bra J; setp.lt.u32 p2, r1, 9; @p2 bra L; J:",
            "and.b32 r1, t, 3; min.u32 r1, r1, 2; T: .branchtargets A, B, C; brx.idx r1, T; A: bra J; B: bra J; C: mov.u32 r2, 7; J:",
            // One inside another.
            "setp.lt.u32 p1, t, 8; @!p1 bra J; @!p0 bra I; mov.u32 r1, 1; I: mov.u32 r2, 2; J:",
            // A way that ends in a trap, or out of the kernel, is not waited for.
            "setp.gt.u32 p1, t, 40; @!p0 bra J; @!p1 bra J; trap; J:",
            "setp.gt.u32 p1, t, 40; @!p0 bra J; @p1 bra E; mov.u32 r1, 1; J:",
        ] {
            let body = kernel(&format!("{apart} {aligned} ret; E: ret;"));
            correct(&body, 32, 1);
            // PTX itself promises nothing.
            for o in schedules() {
                let f = run(&body, 32, 1, &Options { strict: true, ..o }).unwrap_err();
                assert_eq!(f.kind, FaultKind::Divergence, "{f}\n{body}");
            }
            for sync in [
                "bar.warp.sync -1;",
                "vote.sync.any.pred p1, p0, -1;",
                "elect.sync r9|p1, -1;",
                "bar.sync 0;",
            ] {
                let body = kernel(&format!("{apart} {sync} {aligned} ret; E: ret;"));
                for o in schedules() {
                    run(&body, 32, 1, &Options { strict: true, ..o })
                        .unwrap_or_else(|f| panic!("{f}\n{body}"));
                }
            }
        }
        // A branch that all lanes take separates nobody.
        correct(&kernel(&format!("setp.lt.u32 p2, t, 64; @p2 bra K; {aligned} K: {aligned}")), 32, 1);
    }
}

/// Between a branch and the place where its ways meet, lanes are apart, also where two of three ways meet.
#[test]
fn lanes_that_are_apart_at_an_aligned_instruction() {
    for aligned in ALIGNED {
        for (apart, line) in [
            ("\n.loc 1 7 1\n@!p0 bra J;\n.loc 1 9 1\nALIGNED J:", 7),
            ("\n.loc 1 7 1\n@!p0 bra A;\n.loc 1 9 1\nALIGNED bra J; A: ALIGNED J:", 7),
            (
                "mov.u32 r1, 0;\n.loc 1 9 1\nL: ALIGNED add.u32 r1, r1, 1; setp.lt.u32 p1, r1, t;\n.loc 1 7 1\n@p1 bra L;",
                7,
            ),
            (
                "setp.lt.u32 p1, t, 8;\n.loc 1 7 1\n@p1 bra A; setp.lt.u32 p1, t, 16; @p1 bra B; bra J; A: bra B; B:\n.loc 1 9 1\nALIGNED J:",
                7,
            ),
        ] {
            let body = kernel(&apart.replace("ALIGNED", aligned));
            for o in schedules() {
                let f = run(&body, 32, 1, &o).unwrap_err();
                assert_eq!(f.kind, FaultKind::Divergence, "{f}\n{body}");
                assert!(f.other.is_some_and(|p| p.source.is_some_and(|s| s.1 >= line)), "{body}");
            }
        }
        // Part of the lanes is not enough.
        let some = format!("@!p0 bra K; bar.warp.sync 1; {aligned} K:");
        broken(&kernel(&some), 32, 1, FaultKind::Divergence);
        let off = format!("@p0 {aligned}");
        broken(&kernel(&off), 32, 1, FaultKind::Divergence);
    }
}

/// Functions: lanes that return on two ways meet in the caller; those of a call that not all make meet behind it.
#[test]
fn lanes_meet_behind_a_call() {
    let text = |call: &str, inside: &str| {
        format!(
            ".version 8.3\n.target sm_90a\n.address_size 64
            .func f(.reg .b32 x) {{ .reg .pred p; setp.eq.u32 p, x, 0; @p ret; {inside} ret; }}
            .visible .entry k() {{ .reg .pred p; .reg .b32 t; mov.u32 t, %tid.x; setp.lt.u32 p, t, 8;
            {call} call f, (t); wgmma.fence.sync.aligned; ret; }}"
        )
    };
    let outcome = |text: &str, options: &Options| {
        let module = Module::parse(text).unwrap_or_else(|e| panic!("{e}"));
        let launch = Launch {
            entry: "k".into(),
            grid: [1; 3],
            cluster: None,
            block: [32, 1, 1],
            shared_bytes: 0,
            params: vec![],
        };
        Machine::new().run(&module, &launch, options)
    };
    for o in schedules() {
        for call in ["", "@p"] {
            outcome(&text(call, ""), &o).unwrap();
            let f = outcome(&text(call, "wgmma.fence.sync.aligned;"), &o).unwrap_err();
            assert_eq!(f.kind, FaultKind::Divergence, "{f}");
        }
    }
}

#[test]
fn lanes_that_have_exited() {
    for aligned in ALIGNED.iter().filter(|a| !a.starts_with("barrier.sync")) {
        let exit = "setp.ge.u32 p1, t, 16;\n.loc 1 5 1\n@p1 exit;";
        let f = broken(&kernel(&format!("{exit}\n.loc 1 9 1\n{aligned}")), 32, 1, FaultKind::Divergence);
        assert_eq!(lines(&f), [5, 9], "{f}");
        let branch =
            format!("{ADDRESS} st.shared.u32 [r0], t; setp.ge.u32 p1, t, 16; @p1 bra E; {aligned} E:");
        broken(&branch, 32, 1, FaultKind::Divergence);
    }
    // A barrier of the CTA waits for threads that have not exited.
    correct("setp.ge.u32 p1, t, 16; @p1 exit; barrier.sync.aligned 1, 32;", 32, 1);
    correct("setp.ge.u32 p1, t, 16; @p1 bra E; bar.sync 0; E:", 32, 1);
    // Lanes that the block never had are not missed.
    correct("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", 20, 1);
}

#[test]
fn setmaxnreg_is_for_a_warpgroup() {
    let change = "setmaxnreg.dec.sync.aligned.u32 40;";
    let some = |first: u32| format!("setp.ge.u32 p1, t, {first}; @p1 bra E; {change} E:");
    correct(change, 128, 1);
    correct(&some(128), 256, 1);
    broken(&some(32), 128, 1, FaultKind::Divergence);
    broken(&some(96), 256, 1, FaultKind::Divergence);
    broken(&some(1), 128, 1, FaultKind::Divergence);
    // Two instructions with the same number, as Triton has them, and with two.
    let two = format!("setp.ge.u32 p1, t, 64; @p1 bra E; {change} bra F; E: {change} F: mov.u32 r1, 1;");
    correct(&two, 128, 1);
    broken(&two.replacen("40", "48", 1), 128, 1, FaultKind::Divergence);
    // Not for those who come to the barrier behind it, either.
    let waits = format!("{} bar.sync 0;", some(64));
    broken(&waits, 128, 1, FaultKind::Divergence);
}
