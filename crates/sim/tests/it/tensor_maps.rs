//! Tensor maps that a kernel writes: what must lie between the write and the use.

use crate::broken::*;
use oxigemm_sim::*;

/// Thread 0 loads through the map at `d2`.
fn load(acquire: &str) -> String {
    LOAD.replace(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [b], 1024, [r9];",
        &format!("{acquire} cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [s], [d2, {{0, 0}}], [r9];"),
    )
}

const RELEASE: &str = "fence.proxy.tensormap::generic.release.gpu;";
const ACQUIRE: &str = "fence.proxy.tensormap::generic.acquire.gpu [d2], 128;";

/// Threads 0 to 31 copy the parameter to global memory by plain stores; then `between`, and thread 0 uses it.
fn copied(between: &str, acquire: &str) -> String {
    format!(
        "mov.b64 d0, map; cvta.param.u64 d0, d0; add.u64 d2, b, 2048; setp.ge.u32 p4, t, 32; @p4 bra C;
        mul.wide.u32 d3, t, 4; add.u64 d4, d0, d3; add.u64 d5, d2, d3; ld.u32 r1, [d4];
        st.global.u32 [d5], r1; C: {between} {} {WAIT} {ADDRESS} ld.shared.u32 r1, [r0]; bar.sync 0;",
        load(acquire)
    )
}

#[test]
fn a_map_written_by_plain_stores() {
    let release = format!("{RELEASE} bar.sync 0;");
    correct(&copied(&release, ACQUIRE), 64, 1);
    // One thread may release for all whose writes it knows of.
    correct(&copied(&format!("bar.sync 0; @p0 {RELEASE}"), ACQUIRE), 64, 1);
    for (between, acquire, missing) in [
        ("bar.sync 0;", ACQUIRE, "generic.release"),
        (release.as_str(), "", "generic.acquire"),
        ("bar.sync 0;", "", "generic.release"),
        // Other fences are not enough, nor is one that comes before the writes are known.
        ("fence.proxy.async; bar.sync 0;", ACQUIRE, "generic.release"),
        ("fence.acq_rel.gpu; bar.sync 0;", ACQUIRE, "generic.release"),
        ("@p0 fence.proxy.tensormap::generic.release.gpu; bar.sync 0;", ACQUIRE, "generic.release"),
    ] {
        let body = copied(between, acquire);
        let f = broken(&body, 64, 1, FaultKind::TensorMap);
        assert!(f.message.contains(missing), "{f}\n{body}");
        assert!(f.other.unwrap().opcode.starts_with("st.global"));
    }
    // An acquire before the release is none.
    let early = copied(&format!("@p0 {ACQUIRE} {release}"), "");
    broken(&early, 64, 1, FaultKind::TensorMap);
    // Another change needs both again.
    let again = |more: &str| {
        format!(
            "{} @p0 st.global.u32 [d2+124], 0; {more} {}",
            copied(&release, ACQUIRE),
            load("")
                .replace("@!p0 bra I;", "@!p0 bra I2;")
                .replace("I:", "I2:")
                .replace("@!p0 bra W;", "@!p0 bra W2;")
                .replace("W:", "W2:")
                .replace("4096", "4104")
                + &WAIT.replace("L", "L2").replace("4096", "4104")
        )
    };
    correct(&again(&format!("@p0 {RELEASE} @p0 {ACQUIRE} bar.sync 0;")), 64, 1);
    broken(&again("bar.sync 0;"), 64, 1, FaultKind::TensorMap);
    broken(&again(&format!("@p0 {RELEASE} bar.sync 0;")), 64, 1, FaultKind::TensorMap);
}

/// A map in global memory must not be changed by one who does not know that its last use is over.
#[test]
fn a_map_changed_while_others_use_it() {
    let release = format!("{RELEASE} bar.sync 0;");
    let body = |sync: &str| {
        let use_it = copied(&release, ACQUIRE).replace("ld.shared.u32 r1, [r0]; bar.sync 0;", "");
        format!("{use_it} {sync} setp.eq.u32 p5, t, 32; @p5 st.global.u32 [d2+124], 0;")
    };
    correct(&body("bar.sync 0;"), 64, 1);
    broken(&body(""), 64, 1, FaultKind::Race);
}

/// Between CTAs: a flag in global memory with a release and an acquire, and the fences of the map on both sides.
#[test]
fn a_map_written_by_another_cluster() {
    let body = |release: &str, acquire: &str| {
        format!(
            "mov.b64 d0, map; cvta.param.u64 d0, d0; add.u64 d2, b, 2048; add.u64 d6, b, 3072; mov.u32 r8, %ctaid.x;
            setp.ne.u32 p4, r8, 0; @p4 bra R; mul.wide.u32 d3, t, 4; add.u64 d4, d0, d3; add.u64 d5, d2, d3;
            ld.u32 r1, [d4]; st.global.u32 [d5], r1; bar.warp.sync -1; @!p0 bra E; {release} st.release.gpu.global.u32 [d6], 77; bra E;
            R: @!p0 bra Q; P: ld.acquire.gpu.global.u32 r2, [d6]; setp.ne.u32 p5, r2, 77; @p5 bra P; Q: bar.warp.sync -1;
            {} {WAIT} E:",
            load(acquire)
        )
    };
    correct_grid(&body(RELEASE, ACQUIRE), [2, 32, 1]);
    for body in [body("", ACQUIRE), body(RELEASE, ""), body("", "")] {
        for o in schedules() {
            let f = run_grid(&body, [2, 32, 1], &o).unwrap_err();
            assert_eq!(f.kind, FaultKind::TensorMap, "{f}\n{body}");
        }
    }
    // A flag that orders nothing.
    let relaxed =
        body(RELEASE, ACQUIRE).replace("ld.acquire", "ld.relaxed").replace("bar.sync 0", "bar.warp.sync -1");
    for o in schedules() {
        let f = run_grid(&relaxed, [2, 32, 1], &o).unwrap_err();
        assert!(f.kind == FaultKind::TensorMap && f.message.contains("nothing that orders"), "{f}");
    }
}
