//! The order of `tcgen05.mma` among its own kind, with copies, loads, stores and TMA: what is clean under every
//! schedule, and what is found when one step is left out.

use crate::kernel::blackwell::*;
use oxigemm_sim::*;

const WAIT_LD: &str = "tcgen05.wait::ld.sync.aligned;";
const WAIT_ST: &str = "tcgen05.wait::st.sync.aligned;";
const BEFORE: &str = "tcgen05.fence::before_thread_sync;";
const AFTER: &str = "tcgen05.fence::after_thread_sync;";

/// A of 128 x 16 and B of 16 x 16 BF16 ones, K-major in core matrices, with their descriptors in `d1` and `d2` and the
/// instruction descriptors for N = 16 and N = 8 in `r9` and `r8`. D is at column 0, A in tensor memory at column 32.
fn operands() -> String {
    let descriptor = |name: &str, at: u32| {
        format!(
            "add.u32 r241, s, {at}; shr.u32 r241, r241, 4; cvt.u64.u32 {name}, r241; mov.b64 d3, {:#x}; \
             or.b64 {name}, {name}, d3;",
            8u64 << 16 | 16 << 32 | 1 << 46
        )
    };
    let idesc = |n: u32| 1 << 4 | 1 << 7 | 1 << 10 | (n / 8) << 17 | 8 << 24;
    let stores: String = (0..9).map(|i| format!("st.shared.b32 [r240+{}], r10;", 1024 + i * 512)).collect();
    format!(
        "mov.b32 r10, 0x3f803f80; shl.b32 r240, t, 2; add.u32 r240, r240, s; {stores}
        fence.proxy.async.shared::cta; bar.sync 0; {}{}mov.b32 r9, {}; mov.b32 r8, {}; add.u32 r7, ta, 32;
        setp.eq.u32 p5, 0, 0; setp.ne.u32 p6, 0, 0; setp.eq.u32 p3, t, 32;",
        descriptor("d1", 1024),
        descriptor("d2", 1024 + 4096),
        idesc(16),
        idesc(8)
    )
}

/// An MMA by the threads of a guard; `p5` accumulates, `p6` does not.
fn mma(guard: &str, a: &str, idesc: &str, accumulate: &str) -> String {
    format!("{guard} tcgen05.mma.cta_group::1.kind::f16 [ta], {a}, d2, {idesc}, {accumulate};")
}

fn commit(guard: &str, offset: u32) -> String {
    format!("{guard} tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [s+{offset}];")
}

/// All threads load the first columns of D, and leave the first of them as the result.
const LOAD: &str = "tcgen05.ld.sync.aligned.32x32b.x2.b32 {r0, r1}, [tw];";
const RESULT: &str = "st.global.b32 [outp], r0;";

fn kernel(parts: &[&str]) -> String {
    allocate(64) + &operands() + &parts.concat() + &free(64) + "bar.sync 0;"
}

/// Every thread has this sum under every schedule.
fn gives(parts: &[&str], sum: f32) {
    for (t, words) in run(&kernel(parts), &[0], FOUR_WARPS).iter().enumerate() {
        assert_eq!(f32::from_bits(words[0]), sum, "thread {t}");
    }
}

fn faults(parts: &[&str], kind: FaultKind) -> String {
    let (found, message) = fault(&kernel(parts), &[0], FOUR_WARPS);
    assert_eq!(found, kind, "{message}");
    message
}

/// Commit by thread 0, wait of all, load and result.
fn finish() -> String {
    commit("@p1", 16) + &wait("W", 16, 0) + LOAD + WAIT_LD + RESULT
}

#[test]
fn accumulators_are_in_order_and_read_after_the_commit() {
    let first = mma("@p1", "d1", "r9", "p6");
    let second = mma("@p1", "d1", "r9", "p5");
    gives(&[&first, &second, &finish()], 32.0);
    let message =
        faults(&[&first, &second, &commit("@p1", 16), "bar.sync 0;", LOAD, WAIT_LD], FaultKind::Race);
    assert!(message.contains("tcgen05.mma"), "{message}");
    // Another shape over the same columns is not in order with it.
    let narrow = mma("@p1", "d1", "r8", "p6");
    faults(&[&narrow, &second, &finish()], FaultKind::Race);
    let waited = commit("@p1", 24) + &wait("V", 24, 0);
    gives(&[&narrow, &waited, &first, &finish()], 16.0);
    // What was never written is not accumulated.
    let message = faults(&[&second, &finish()], FaultKind::Uninitialized);
    assert!(message.contains("column 0, lane 0"), "{message}");
}

#[test]
fn two_warps_share_an_accumulator_through_fences_or_a_commit() {
    let first = mma("@p3", "d1", "r9", "p6");
    let second = mma("@p1", "d1", "r9", "p5");
    // Thread 32 tells thread 0 that it has issued its MMA.
    let told = "@p3 mbarrier.arrive.shared::cta.b64 _, [s+24];";
    let heard = "V: @p1 mbarrier.try_wait.parity.shared::cta.b64 p7, [s+24], 0; @!p1 bra E; @!p7 bra V; E: bar.warp.sync -1;";
    // The work of both is over before the columns are freed.
    let own = commit("@p3", 32) + &wait("X", 32, 0);
    gives(&[&first, BEFORE, told, heard, AFTER, &second, &own, &finish()], 32.0);
    for parts in [[BEFORE, told, heard, ""], ["", told, heard, AFTER], ["", told, heard, ""]] {
        let [before, told, heard, after] = parts;
        let message =
            faults(&[&first, before, told, heard, after, &second, &own, &finish()], FaultKind::Race);
        assert!(message.contains("without tcgen05.fence::before_thread_sync"), "{message}");
    }
    // Waiting for the commit of the other is enough.
    let committed = commit("@p3", 24);
    gives(&[&first, &committed, heard, &second, &finish()], 32.0);
    faults(&[&first, &commit("@p3", 24), "bar.sync 0;", &second, &finish()], FaultKind::Race);
}

#[test]
fn an_accumulator_is_given_back_by_the_warps_that_load_it() {
    // Thread 0 waits for all 128 threads before it overwrites what they load: the "tensor memory empty" barrier.
    let full = commit("@p1", 16) + &wait("W", 16, 0);
    let init = "@p1 mbarrier.init.shared::cta.b64 [s+40], 128; bar.sync 0;";
    let empty = "mbarrier.arrive.shared::cta.b64 _, [s+40];";
    let wait_empty = "@!p0 bra E; V: mbarrier.try_wait.parity.shared::cta.b64 p7, [s+40], 0; @!p7 bra V; E: bar.warp.sync -1;";
    let first = mma("@p1", "d1", "r9", "p6");
    let again = commit("@p1", 24) + &wait("X", 24, 0) + LOAD + WAIT_LD + RESULT;
    let parts = |wait_ld: &'static str, fences: [&'static str; 2], wait_empty: &'static str| {
        [init, &first, &full, LOAD, wait_ld, fences[0], empty, wait_empty, fences[1], &first, &again].concat()
    };
    gives(&[&parts(WAIT_LD, [BEFORE, AFTER], wait_empty)], 16.0);
    // As compilers write it, without tcgen05.fence.
    gives(&[&parts(WAIT_LD, ["", ""], wait_empty)], 16.0);
    faults(&[&parts(WAIT_LD, [BEFORE, AFTER], "")], FaultKind::Race);
    faults(&[&parts("", [BEFORE, AFTER], wait_empty).replace(WAIT_LD, "")], FaultKind::Race);
}

/// What the manual asks for and compilers leave out is noted, or a fault where the options are strict.
#[test]
fn fences_around_the_synchronization_of_threads_are_noted() {
    let full = commit("@p1", 16) + &wait("W", 16, 0);
    let product = mma("@p1", "d1", "r9", "p6");
    let again = commit("@p1", 24) + &wait("X", 24, 0);
    let parts = |loaded: &'static str, before: &'static str, after: &'static str| {
        kernel(&[&product, &full, loaded, LOAD, WAIT_LD, before, "bar.sync 0;", after, &product, &again])
    };
    let outcome = |body: &str, strict: bool| {
        let all: Vec<Option<FaultKind>> = schedules()
            .into_iter()
            .map(|o| launch(body, &[0], FOUR_WARPS, &Options { strict, ..o }).err().map(|f| f.kind))
            .collect();
        assert!(all.windows(2).all(|w| w[0] == w[1]), "{all:?}");
        all[0]
    };
    assert_eq!(outcome(&parts(AFTER, BEFORE, AFTER), true), None);
    for body in [parts("", BEFORE, AFTER), parts(AFTER, "", AFTER), parts(AFTER, BEFORE, "")] {
        assert_eq!(outcome(&body, true), Some(FaultKind::TensorFence), "{body}");
        assert_eq!(outcome(&body, false), None);
    }
    let report = report(&parts("", "", ""), &Options::default());
    let notes: Vec<String> = report.notes.iter().map(ToString::to_string).collect();
    assert!(
        notes.iter().any(|n| n.starts_with("TensorFence") && n.contains("the manual asks for")),
        "{notes:?}"
    );
}

#[test]
fn copies_and_mmas_of_one_thread_are_in_order() {
    // A comes by copies, over the same columns for both MMAs.
    let copy = "@p1 tcgen05.cp.cta_group::1.128x256b [r7], d1;";
    let from_tensor = |accumulate: &str| mma("@p1", "[r7]", "r9", accumulate);
    gives(&[copy, &from_tensor("p6"), copy, &from_tensor("p5"), &finish()], 32.0);
    // A copy over the accumulator is not in order with the MMA that writes it.
    let over = "@p1 tcgen05.cp.cta_group::1.128x256b [ta], d1;";
    faults(&[copy, &from_tensor("p6"), over, &finish()], FaultKind::Race);
    // Nor is an MMA that takes the accumulator of another as A.
    let chained = "add.u32 r6, ta, 16; @p1 tcgen05.mma.cta_group::1.kind::f16 [r6], [ta], d2, r9, p6;";
    faults(&[&mma("@p1", "d1", "r9", "p6"), chained, &finish()], FaultKind::Race);
    // A copy by another thread is not in order without fences.
    let other = "@p3 tcgen05.cp.cta_group::1.128x256b [r7], d1; bar.sync 0;";
    faults(&[other, &from_tensor("p6"), &finish()], FaultKind::Race);
}

#[test]
fn a_stored_operand_waits_for_the_store() {
    let store = "mov.b32 r20, 0x40004000; add.u32 r6, tw, 32;
        tcgen05.st.sync.aligned.32x32b.x8.b32 [r6], {r20, r20, r20, r20, r20, r20, r20, r20};";
    let product = mma("@p1", "[r7]", "r9", "p6");
    gives(&[store, WAIT_ST, "bar.sync 0;", &product, &finish()], 32.0);
    gives(&[store, WAIT_ST, BEFORE, "bar.sync 0;", AFTER, &product, &finish()], 32.0);
    faults(&[store, "bar.sync 0;", &product, &finish()], FaultKind::Race);
    // Without the barrier the MMA may even come before the store.
    for options in schedules() {
        let body = kernel(&[store, WAIT_ST, &product, &finish()]);
        let f = launch(&body, &[0], FOUR_WARPS, &options).expect_err(&body);
        assert!(matches!(f.kind, FaultKind::Race | FaultKind::Uninitialized), "{f}");
    }
}

#[test]
fn a_tma_arrival_says_nothing_of_an_mma() {
    let product = mma("@p1", "d1", "r9", "p6");
    // 512 bytes of input over B, which the MMA reads; the copy reports to the mbarrier at 24.
    let copy = "add.u32 r30, s, 5120; add.u32 r31, s, 24;
        @p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [s+24], 512;
        @p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [r30], [inp], 512, [r31];";
    let (committed, arrived) = (commit("@p1", 16) + &wait("W", 16, 0), wait("V", 24, 0));
    let load = LOAD.to_owned() + WAIT_LD + RESULT;
    let input = [0u32; 128];
    let outcome = |parts: &[&str]| {
        let body = kernel(parts);
        let all: Vec<Option<FaultKind>> =
            schedules().iter().map(|o| launch(&body, &input, FOUR_WARPS, o).err().map(|f| f.kind)).collect();
        assert!(all.windows(2).all(|w| w[0] == w[1]), "{all:?}");
        all[0]
    };
    assert_eq!(outcome(&[&product, &committed, copy, &arrived, &load]), None);
    // The operand is overwritten while the MMA may read it.
    assert_eq!(outcome(&[&product, copy, &arrived, &committed, &load]), Some(FaultKind::Race));
    // The copy has arrived; of the MMA nothing is known.
    let apart = copy.replace("5120", "16384");
    assert_eq!(outcome(&[&product, &apart, &arrived, &load]), Some(FaultKind::Race));
}
