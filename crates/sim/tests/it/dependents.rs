//! Programmatic launches: a kernel that may start while the one before it still runs must wait before they meet.

use oxigemm_sim::*;

const BUFFER: usize = 4096;

/// A kernel of two warps around a body, which has the buffer in `b` and the thread in `t`.
fn kernel(name: &str, body: &str) -> (Module, String) {
    let text = format!(
        ".version 8.3\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];
        .visible .entry {name}(.param .u64 buf)\n{{
        .reg .pred p<4>; .reg .b32 r<8>; .reg .b64 d<4>; .reg .b32 t, s; .reg .b64 b;
        mov.u32 t, %tid.x; mov.u32 s, smem; ld.param.u64 b, [buf]; setp.eq.u32 p0, t, 0; setp.eq.u32 p1, t, 32;
        {body}\nret;\n}}"
    );
    (Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}")), name.to_owned())
}

/// Runs kernels one after the other, each but the first as a dependent; gives the fault of the last.
fn chain(kernels: &[(Module, String)], options: &Options) -> Option<Fault> {
    let mut machine = Machine::new();
    let buffer = machine.memory.allocate_with(&[0; BUFFER]);
    let mut outcome = None;
    for (i, (module, entry)) in kernels.iter().enumerate() {
        assert!(outcome.is_none(), "{outcome:?}");
        let launch = Launch {
            entry: entry.clone(),
            grid: [2, 1, 1],
            cluster: None,
            block: [64, 1, 1],
            shared_bytes: 4096,
            params: vec![Param::U64(buffer)],
        };
        outcome = if i == 0 {
            machine.run(module, &launch, options).err()
        } else {
            machine.run_dependent(module, &launch, options).err()
        };
    }
    outcome
}

fn schedules() -> Vec<Options> {
    let random = |seed| Options { policy: Policy::Random, seed, ..Options::default() };
    let lazy = Options { policy: Policy::Lazy, ..Options::default() };
    vec![Options::default(), lazy, random(0), random(1), random(2)]
}

fn clean(bodies: &[&str]) {
    let kernels: Vec<_> = bodies.iter().enumerate().map(|(i, body)| kernel(&format!("k{i}"), body)).collect();
    for options in schedules() {
        if let Some(fault) = chain(&kernels, &options) {
            panic!("{fault}\n{bodies:?}");
        }
    }
}

/// The last kernel does something too early, which the kernel named here may still do.
fn early(bodies: &[&str], what: &str) {
    let kernels: Vec<_> = bodies.iter().enumerate().map(|(i, body)| kernel(&format!("k{i}"), body)).collect();
    for options in schedules() {
        let fault = chain(&kernels, &options).unwrap_or_else(|| panic!("nothing was found in {bodies:?}"));
        assert_eq!(fault.kind, FaultKind::Race, "{fault}");
        assert!(
            fault.message.contains("before griddepcontrol.wait") && fault.message.contains(what),
            "{fault}"
        );
        assert!(fault.at.is_some(), "{fault}");
    }
}

const WAIT: &str = "griddepcontrol.wait;";
const WRITES: &str = "@p0 st.global.u32 [b], 5; @p0 st.global.u32 [b+4], 6;";
const READS: &str = "ld.global.u32 r1, [b];";

#[test]
fn what_the_kernel_before_writes_is_read_behind_the_wait() {
    clean(&[WRITES, &format!("{WAIT} {READS}")]);
    early(
        &[WRITES, READS],
        "this read comes before griddepcontrol.wait, and the kernel before, `k0`, may still write",
    );
    early(&[WRITES, &format!("{READS} {WAIT}")], "still write");
    // What it does not touch is free, and so is what it only reads.
    clean(&[WRITES, "ld.global.u32 r1, [b+8];"]);
    clean(&[READS, READS]);
    early(&[WRITES, "@p0 cp.async.ca.shared.global [s], [b], 4; cp.async.wait_all;"], "still write");
    early(&[WRITES, "@p0 atom.global.add.u32 r1, [b+4], 1;"], "still write");
}

#[test]
fn what_it_reads_is_written_behind_the_wait() {
    let same = "@p0 st.global.u32 [b], 7;";
    // Both blocks write the same value.
    clean(&[READS, &format!("{WAIT} {same}")]);
    early(
        &[READS, same],
        "this write comes before griddepcontrol.wait, and the kernel before, `k0`, may still read",
    );
    early(&[WRITES, same], "still write");
    clean(&[READS, "@p0 st.global.u32 [b+8], 7;"]);
}

#[test]
fn one_thread_can_wait_for_others() {
    // Thread 0 waits; the others know through a barrier.
    let wait = |sync: &str| format!("@!p0 bra W; {WAIT} W: {sync} @p1 {READS}");
    clean(&[WRITES, &wait("bar.sync 0;")]);
    early(&[WRITES, &wait("")], "still write");
}

#[test]
fn a_launch_without_the_attribute_needs_no_wait() {
    let (first, second) = (kernel("k0", WRITES), kernel("k1", READS));
    let mut machine = Machine::new();
    let buffer = machine.memory.allocate_with(&[0; BUFFER]);
    let launch = |entry: &str| Launch {
        entry: entry.to_owned(),
        grid: [2, 1, 1],
        cluster: None,
        block: [64, 1, 1],
        shared_bytes: 0,
        params: vec![Param::U64(buffer)],
    };
    let options = Options::default();
    machine.run(&first.0, &launch("k0"), &options).unwrap();
    machine.run(&second.0, &launch("k1"), &options).unwrap();
    // Nor one behind something that waits for all.
    machine.run(&first.0, &launch("k0"), &options).unwrap();
    machine.synchronize();
    machine.run_dependent(&second.0, &launch("k1"), &options).unwrap();
    // Without a look for hazards nothing is reported.
    machine.run(&first.0, &launch("k0"), &options).unwrap();
    let unchecked = Options { hazards: false, ..options };
    machine.run_dependent(&second.0, &launch("k1"), &unchecked).unwrap();
}

#[test]
fn a_kernel_that_lets_the_next_start_before_it_waits() {
    // The third may run beside the first if the second has not waited for that before it lets the third start.
    let second = |before: &str, after: &str| format!("{before} griddepcontrol.launch_dependents; {after}");
    clean(&[WRITES, &second(WAIT, ""), READS]);
    clean(&[WRITES, WAIT, READS]);
    early(&[WRITES, &second("", WAIT), READS], "`k1`, `k0`, may still write");
    early(&[WRITES, "", READS], "`k1`, `k0`, may still write");
    clean(&[WRITES, &second("", WAIT), &format!("{WAIT} {READS}")]);
}
