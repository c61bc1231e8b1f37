//! What a run goes on after: allowed kinds, all faults of a run, and what was never written but not chosen.

use crate::broken::*;
use oxigemm_sim::*;

/// Three races at two pairs of places, in a loop, and a register that was never written.
const MANY: &str = "mov.u32 r8, 0; L: 
.loc 1 3 1
@p0 st.shared.u32 [s], t;
setp.eq.u32 p2, t, 32;
.loc 1 5 1
@p2 st.shared.u32 [s], t;
.loc 1 7 1
@p2 st.shared.u32 [s+4], r9;
add.u32 r8, r8, 1; setp.lt.u32 p3, r8, 3; @p3 bra L;";

fn all(body: &str, o: &Options) -> Report {
    run(body, 64, 1, &Options { keep_going: true, ..o.clone() }).unwrap_or_else(|f| panic!("{f}"))
}

#[test]
fn every_fault_of_a_run_once() {
    for o in schedules() {
        let report = all(MANY, &o);
        assert!(!report.stopped && report.notes.is_empty());
        let kinds: Vec<FaultKind> = report.faults.iter().map(|f| f.kind).collect();
        assert!(kinds.contains(&FaultKind::Race) && kinds.contains(&FaultKind::Uninitialized), "{kinds:?}");
        let mut places: Vec<_> = report.faults.iter().map(|f| (f.kind as u32, lines(f))).collect();
        let faults = places.len();
        places.sort_unstable();
        places.dedup();
        assert!(faults <= 3, "{:?}", report.faults);
        // The last one may end the run.
        let report = all(&format!("{MANY} @p0 ld.global.u32 r1, [b+4096];"), &o);
        assert!(report.stopped && report.faults.last().unwrap().kind == FaultKind::OutOfBounds);
        // Without, the first fault is the end.
        run(MANY, 64, 1, &o).unwrap_err();
    }
}

#[test]
fn kinds_that_are_allowed_are_noted() {
    let race: FaultKinds = [FaultKind::Race].into_iter().collect();
    let both = [FaultKind::Race, FaultKind::Uninitialized].into_iter().collect();
    for o in schedules() {
        let f = run(MANY, 64, 1, &Options { allow: race, ..o.clone() }).unwrap_err();
        assert_eq!(f.kind, FaultKind::Uninitialized, "{f}");
        let report = run(MANY, 64, 1, &Options { allow: both, ..o }).unwrap();
        assert!(report.faults.is_empty() && report.notes.len() >= 2, "{:?}", report.notes);
    }
}

#[test]
fn kinds_have_names() {
    for kind in FaultKind::ALL {
        assert_eq!(kind.name().to_lowercase().parse(), Ok(kind));
    }
    let error = "Raze".parse::<FaultKind>().unwrap_err();
    assert!(error.contains("`Raze`") && error.contains("Race, ProxyOrder"), "{error}");
}

/// A run that goes on ends with the results that it would have without hazards.
#[test]
fn what_goes_on_is_the_same_computation() {
    let body = format!(
        "{ADDRESS} st.shared.u32 [r0], t; xor.b32 r1, r0, 4; ld.shared.u32 r2, [r1];
        ld.shared.u32 r3, [s+8192]; add.u32 r2, r2, r3; bar.sync 0; @p0 st.global.u32 [b], r2;
        @!p0 bra E; cp.async.bulk.global.shared::cta.bulk_group [b+1024], [s], 16; E:"
    );
    for o in schedules() {
        let report = run(&body, 32, 1, &Options { keep_going: true, ..o }).unwrap();
        let kinds: Vec<FaultKind> = report.faults.iter().map(|f| f.kind).collect();
        for kind in [FaultKind::Race, FaultKind::Uninitialized, FaultKind::ProxyOrder] {
            assert!(kinds.contains(&kind), "{kinds:?}");
        }
        assert_eq!(report.notes.len(), 1, "the store that nobody waits for");
    }
}

/// A selection is defined where what it chooses is.
#[test]
fn a_selection_follows_what_it_chooses() {
    let select = |choice: &str, used: &str| format!("mov.u32 r1, 7; {choice} {used}");
    let use_it = "add.u32 r3, r2, 1;";
    for (chosen, other) in [
        ("selp.u32 r2, r1, r9, p0;", "selp.u32 r2, r9, r1, p0;"),
        ("slct.u32.s32 r2, r1, r9, t;", "slct.u32.s32 r2, r9, r1, t;"),
    ] {
        // Lane 0 alone uses it; for slct every lane chooses the first.
        correct(&select(chosen, &format!("@p0 {use_it}")), 32, 1);
        broken(&select(other, &format!("@p0 {use_it}")), 32, 1, FaultKind::Uninitialized);
        // A move, and another selection, hand it on.
        correct(&select(chosen, "mov.u32 r4, r2; selp.u32 r5, r4, r8, p0; @p0 add.u32 r3, r5, 1;"), 32, 1);
        broken(&select(other, "mov.u32 r4, r2; @p0 add.u32 r3, r4, 1;"), 32, 1, FaultKind::Uninitialized);
    }
    broken(&select("selp.u32 r2, r1, r9, p0;", use_it), 32, 1, FaultKind::Uninitialized);
    correct(&select("setp.ne.u32 p1, t, 0; selp.u32 r2, r9, r1, p1;", &format!("@!p1 {use_it}")), 32, 1);
    // What it chooses by must be defined, and where it comes from is told.
    broken(&select("selp.u32 r2, r1, r1, p5;", ""), 32, 1, FaultKind::Uninitialized);
    let loaded =
        "\n.loc 1 3 1\nld.shared.u32 r6, [s]; mov.u32 r7, r6; selp.u32 r2, r7, r1, p0;\n.loc 1 5 1\n";
    let f = broken(&select(loaded, use_it), 32, 1, FaultKind::Uninitialized);
    assert_eq!(lines(&f), [3, 5], "{f}");
}

/// A `wgmma` that reads rows which are still on their way: the fault says which, and may be allowed.
#[test]
fn rows_that_a_wgmma_drops() {
    let zero: String = (0..4).map(|i| format!("mov.f32 f{i}, 0f00000000; ")).collect();
    // A copy of 1024 bytes brings rows 0 to 31 of A; generic stores of another warpgroup write the others.
    let body = format!(
        "setp.ge.u32 p4, t, 128; @p4 bra O; {} {WAIT} shr.u32 r4, s, 4; cvt.u64.u32 d1, r4;
        or.b64 d1, d1, 0x0000000800080000; {zero} setp.eq.u32 p3, t, t;
        wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {{f0,f1,f2,f3}}, d1, d1, p3, 1, 1;
        wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; bra E;
        O: sub.u32 r1, t, 128; shl.b32 r1, r1, 3; add.u32 r1, r1, s; st.shared.v2.u32 [r1+1024], {{0, 0}}; E:",
        LOAD.replace("bar.sync 0", "bar.sync 1, 128")
    );
    let race: FaultKinds = [FaultKind::Race].into_iter().collect();
    let mut said = false;
    for o in schedules() {
        let f = run(&body, 256, 1, &o).unwrap_err();
        if f.kind == FaultKind::Race && f.at.as_ref().unwrap().opcode.starts_with("wgmma") {
            let (_, rows) = f.message.split_once("it is about rows ").unwrap();
            assert!(rows.ends_with(" of A") && rows.starts_with(['3', '4', '5']), "{f}");
            said = true;
        }
        let allowed = Options { allow: race, ..o };
        let outcome = run(&body, 256, 1, &allowed);
        assert!(!matches!(&outcome, Err(f) if f.kind == FaultKind::Race), "{outcome:?}");
    }
    assert!(said);
}
