//! Cluster launch control: every cluster's work is done once, by itself or by one that has cancelled it.

use crate::common::schedules;
use oxigemm_sim::*;

/// A persistent kernel: each CTA counts for the cluster that it was launched as, and for those that it takes over.
/// `all`: clusters of two, in which the first CTA asks and both get the response.
fn kernel(all: bool, query: &str, fence: &str, wait: &str) -> Module {
    let multicast = if all { ".multicast::cluster::all" } else { "" };
    let asks = if all { "setp.eq.u32 p1, me, 0; @p1" } else { "" };
    let text = format!(
        ".version 8.7\n.target sm_100a\n.address_size 64
        .visible .entry k(.param .u64 out, .param .u32 width)
        {{ .reg .pred p<8>; .reg .b32 r<16>, me, x, y, z, parity; .reg .b64 d<8>; .reg .b128 q;
        .shared .align 16 .b8 answer[16]; .shared .align 8 .b64 bar;
        mov.u32 r0, %tid.x; setp.ne.u32 p0, r0, 0; @p0 bra DONE;
        mov.u32 me, %cluster_ctarank; mov.u32 x, %ctaid.x; mov.u32 y, %ctaid.y; mov.u32 z, %ctaid.z; mov.u32 parity, 0;
        sub.u32 x, x, me;
        mbarrier.init.shared::cta.b64 [bar], 1; fence.mbarrier_init.release.cluster;
        NEXT: barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 16; mov.u32 r1, answer; mov.u32 r2, bar;
        barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
        {asks} clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes{multicast}.b128 [r1], [r2];
        // The work of a CTA: one more for its place in the grid.
        ld.param.u32 r3, [width]; mad.lo.u32 r4, z, 2, y; mad.lo.u32 r4, r4, r3, x; add.u32 r4, r4, me;
        ld.param.u64 d0, [out]; mul.wide.u32 d1, r4, 4; add.u64 d0, d0, d1; red.global.add.u32 [d0], 1;
        {wait}
        ld.shared.b128 q, [answer]; {query}
        xor.b32 parity, parity, 1; {fence}
        clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p2, q; @p2 bra NEXT;
        DONE: barrier.cluster.arrive.release; barrier.cluster.wait.acquire; ret; }}"
    );
    Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

const V4: &str = "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {x, y, z, _}, q;";
const SINGLE: &str = "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 x, q;
    clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 y, q;
    clusterlaunchcontrol.query_cancel.get_first_ctaid::z.b32.b128 z, q;";
const FENCE: &str = "fence.proxy.async.shared::cta;";
const WAIT: &str = "W: mbarrier.try_wait.parity.shared::cta.b64 p3, [bar], parity; @!p3 bra W;";

/// Counts of every CTA of a grid of 6x2x2, and what the run says.
fn run(module: &Module, options: &Options) -> Result<(Vec<u32>, Report), Fault> {
    let mut machine = Machine::new();
    let out = machine.memory.allocate_with(&[0; 24 * 4]);
    let cluster = if module_is_wide(module) { 2 } else { 1 };
    let launch = Launch {
        entry: "k".into(),
        grid: [6, 2, 2],
        cluster: Some([cluster, 1, 1]),
        block: [1, 1, 1],
        shared_bytes: 0,
        params: vec![Param::U64(out), Param::U32(6)],
    };
    let report = machine.run(module, &launch, options)?;
    let counts = machine.memory.read(out, 96)?;
    Ok((counts.chunks(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(), report))
}

fn module_is_wide(module: &Module) -> bool {
    format!("{module:?}").contains("multicast::cluster::all")
}

#[test]
fn every_cluster_is_done_once() {
    for all in [false, true] {
        for query in [V4, SINGLE] {
            let module = kernel(all, query, FENCE, WAIT);
            let mut taken = Vec::new();
            for options in schedules() {
                let (counts, report) = run(&module, &options).unwrap_or_else(|f| panic!("{f}"));
                assert_eq!(counts, [1; 24], "{all} {:?} {}", options.policy, options.seed);
                assert_eq!(report.ctas + report.cancelled, 24);
                taken.push(report.cancelled);
            }
            // The eager schedule gives all clusters away, the lazy one none where all fit, others some.
            assert_eq!(taken[0], if all { 22 } else { 23 });
            assert_eq!(taken[1], 0);
            assert!(taken[2..].iter().any(|n| *n > 0 && *n < taken[0]), "{taken:?}");
        }
    }
}

#[test]
fn a_response_is_read_behind_its_mbarrier() {
    let faults = |module: &Module| {
        let mut kinds: Vec<FaultKind> =
            schedules().iter().filter_map(|o| run(module, o).err()).map(|f| f.kind).collect();
        kinds.dedup();
        kinds
    };
    for all in [false, true] {
        let early = kernel(all, V4, FENCE, "");
        assert!(faults(&early).contains(&FaultKind::Race), "{:?}", faults(&early));
        // A wait for the phase before, a second claim after a failure, a response that is none.
        let wrong = WAIT.replace("parity; @", "r15; @");
        let before = format!("xor.b32 r15, parity, 1; {wrong}");
        assert!(!faults(&kernel(all, V4, FENCE, &before)).is_empty());
        let again = format!(
            "{FENCE} mov.u32 x, 0; mov.u32 y, 0; mov.u32 z, 0; setp.eq.u32 p2, me, me; @p2 bra NEXT;"
        );
        let again = format!("clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p4, q; {again}");
        assert_eq!(faults(&kernel(all, V4, &again, WAIT)), [FaultKind::BadOperand]);
        let none = format!("mov.u64 d2, 7; mov.b128 q, {{d2, d2}}; {V4}");
        assert_eq!(faults(&kernel(all, &none, FENCE, WAIT)), [FaultKind::BadOperand]);
    }
}

#[test]
fn forms_that_do_not_exist_are_refused() {
    let parse = |instruction: &str| {
        let text = format!(
            ".version 8.7\n.target sm_100a\n.address_size 64\n.visible .entry k() {{ .reg .b32 r<8>; .reg .b64 d<2>; .reg .pred p; .reg .b128 q;\n{instruction}\nret; }}"
        );
        Module::parse(&text).map(|_| ())
    };
    for right in [
        "clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes.b128 [d0], [d1];",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {r0, _, _, _}, q;",
    ] {
        parse(right).unwrap_or_else(|e| panic!("{e}"));
    }
    for wrong in [
        "clusterlaunchcontrol.try_cancel.shared::cta.mbarrier::complete_tx::bytes.b128 [r0], [r1];",
        "clusterlaunchcontrol.try_cancel.async.shared::cluster.mbarrier::complete_tx::bytes.b128 [r0], [r1];",
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 r0, q;",
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, d0;",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {r0, r1, r2}, q;",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid::w.b32.b128 r0, q;",
    ] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}
