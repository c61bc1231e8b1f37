//! Several devices: peer accesses, flags and barriers across devices, and what is wrong with broken ones.

use crate::common::schedules;
use oxigemm_sim::*;

/// Addresses: 64 KiB of each device, by rank.
struct Ranks {
    world: World,
    buffers: Vec<u64>,
}

const BYTES: usize = 1 << 16;
/// Where the flags of a device lie in its buffer.
const FLAGS: u64 = 0x8000;
const ACKNOWLEDGED: u64 = FLAGS + 4;

/// An entry with the buffers of all devices (`p0` to `p3`), the own one (`own`) and that of the next rank (`next`), rank
/// and number of ranks, and thread 0 of the CTA as `%first`.
fn module(body: &str) -> Module {
    let text = format!(
        ".version 8.0\n.target sm_90a\n.address_size 64
        .visible .entry k(.param .u64 b0, .param .u64 b1, .param .u64 b2, .param .u64 b3, .param .u32 r, .param .u32 n,
            .param .u64 bo, .param .u64 bn) {{
        .reg .b64 p0, p1, p2, p3, own, next, a<8>; .reg .b32 rank, ranks, t, x, y, z, i<8>; .reg .pred q<8>, first, zero;
        .shared .align 128 .b8 smem[1024];
        ld.param.u64 p0, [b0]; ld.param.u64 p1, [b1]; ld.param.u64 p2, [b2]; ld.param.u64 p3, [b3];
        ld.param.u32 rank, [r]; ld.param.u32 ranks, [n]; ld.param.u64 own, [bo]; ld.param.u64 next, [bn];
        mov.u32 t, %tid.x; setp.eq.u32 first, t, 0; setp.eq.u32 zero, rank, 0;
        {body}
        ret; }}"
    );
    Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

impl Ranks {
    fn new(count: usize) -> Ranks {
        let mut world = World::new(count);
        let buffers = (0..count).map(|d| world.memory.allocate_with_on(d, &[0; BYTES])).collect();
        Ranks { world, buffers }
    }

    fn launch(&self, rank: usize, threads: u32) -> Launch {
        let count = self.buffers.len();
        let mut params: Vec<Param> =
            (0..4).map(|i| Param::U64(self.buffers.get(i).copied().unwrap_or(0))).collect();
        params.extend([Param::U32(rank as u32), Param::U32(count as u32)]);
        params.extend([self.buffers[rank], self.buffers[(rank + 1) % count]].map(Param::U64));
        Launch {
            entry: "k".into(),
            grid: [1; 3],
            cluster: None,
            block: [threads, 1, 1],
            shared_bytes: 0,
            params,
        }
    }

    /// One launch on each device, to the end: the outcome of each, in order of their ends.
    fn run(&mut self, module: &Module, threads: u32, options: &Options) -> Vec<Ended> {
        for rank in 0..self.buffers.len() {
            self.world.launch(rank, module, &self.launch(rank, threads), options).unwrap();
        }
        let mut ended = Vec::new();
        while self.world.in_flight() > 0 {
            ended.extend(self.world.run());
        }
        ended
    }

    fn word(&mut self, rank: usize, offset: u64) -> u32 {
        let bytes = self.world.memory.read(self.buffers[rank] + offset, 4).unwrap();
        u32::from_le_bytes(bytes.try_into().unwrap())
    }
}

/// The first fault of a run on so many devices.
fn first_fault(ranks: usize, body: &str, options: &Options) -> Option<Fault> {
    let module = module(body);
    let ended = Ranks::new(ranks).run(&module, 64, options);
    ended.into_iter().find_map(|ended| ended.outcome.err())
}

fn correct(ranks: usize, body: &str) {
    for options in schedules() {
        if let Some(fault) = first_fault(ranks, body, &options) {
            panic!("{:?} {}: {fault}\n{body}", options.policy, options.seed);
        }
    }
}

/// Every schedule reports a race whose text has these words.
fn racy(ranks: usize, body: &str, words: &[&str]) {
    for options in schedules() {
        let schedule = format!("{:?} {}", options.policy, options.seed);
        let fault =
            first_fault(ranks, body, &options).unwrap_or_else(|| panic!("{schedule}: no fault\n{body}"));
        assert_eq!(fault.kind, FaultKind::Race, "{schedule}: {fault}\n{body}");
        let text = fault.to_string();
        words.iter().for_each(|word| assert!(text.contains(word), "{schedule}: {word}: {text}\n{body}"));
    }
}

/// Rank 0 writes to the memory of rank 1 and sets a flag there; rank 1 waits for it and reads.
fn handshake(data: &str, publish: &str, poll: &str, acquire: &str) -> String {
    format!(
        "@!first bra E; @!zero bra R;
        {data} [next], 5; {publish} bra E;
        R: {poll} [own+{FLAGS}]; setp.ne.u32 q0, x, 9; @q0 bra R; {acquire} ld.global.u32 y, [own]; st.global.u32 [own+64], y; E:"
    )
}

/// The flag that follows the data.
fn flag(store: &str) -> String {
    format!("{store} [next+{FLAGS}], 9;")
}

#[test]
fn devices_reach_the_memory_of_each_other_by_address() {
    let mut ranks = Ranks::new(3);
    let store = module(
        "@first st.global.u32 [p2+16], 7; @first ld.global.u32 x, [p2+16]; @first st.global.u32 [p1], x;",
    );
    let launch = ranks.launch(0, 32);
    ranks.world.launch(0, &store, &launch, &Options::default()).unwrap();
    let ended = ranks.world.run();
    ended.iter().for_each(|e| assert!(e.outcome.is_ok(), "{e:?}"));
    assert_eq!([ranks.word(2, 16), ranks.word(1, 0), ranks.word(0, 16)], [7, 7, 0]);
    let owners: Vec<usize> = ranks.buffers.iter().map(|at| ranks.world.owner(*at)).collect();
    assert_eq!(owners, [0, 1, 2]);
    // What the host has waited for comes before.
    ranks.world.synchronize();
    let load = module("@first ld.global.u32 x, [p2+16]; @first st.global.u32 [own+32], x;");
    let launch = ranks.launch(1, 32);
    ranks.world.launch(1, &load, &launch, &Options::default()).unwrap();
    assert!(ranks.world.run()[0].outcome.is_ok());
    assert_eq!(ranks.word(1, 32), 7);
    let outside = module(&format!("@first ld.global.u32 x, [p1+{BYTES}];"));
    let launch = ranks.launch(1, 32);
    ranks.world.launch(1, &outside, &launch, &Options::default()).unwrap();
    let fault = ranks.world.run().remove(0).outcome.unwrap_err();
    assert_eq!(fault.kind, FaultKind::OutOfBounds);
    assert_eq!(fault.at.unwrap().device, Some(1));
}

#[test]
fn each_device_has_its_own_variables() {
    let text = ".version 8.0\n.target sm_90\n.address_size 64\n.global .u32 count = 3;
        .visible .entry k() { .reg .b32 x; .reg .b64 a; mov.u64 a, count; atom.global.add.u32 x, [a], 1; ret; }";
    let module = Module::parse(text).unwrap();
    let mut world = World::new(2);
    let launch = Launch {
        entry: "k".into(),
        grid: [1; 3],
        cluster: None,
        block: [4, 1, 1],
        shared_bytes: 0,
        params: vec![],
    };
    for device in [0, 1, 1] {
        world.launch(device, &module, &launch, &Options::default()).unwrap();
        assert!(world.run()[0].outcome.is_ok());
    }
    let at = [0, 1].map(|device| world.symbol(device, &module, "count").unwrap());
    assert_eq!(at.map(|at| world.memory.read(at, 4).unwrap()[0]), [7, 11]);
}

#[test]
fn a_flag_orders_devices_at_the_scope_of_the_system() {
    let (store, acquire) = (flag("st.release.sys.global.u32"), "ld.acquire.sys.global.u32 x,");
    correct(2, &handshake("st.global.u32", &store, acquire, ""));
    correct(2, &handshake("st.global.u32", &flag("red.release.sys.global.add.u32"), acquire, ""));
    correct(2, &handshake("st.global.u32", &flag("atom.release.sys.global.exch.b32 z,"), acquire, ""));
    let fences = ["fence.acq_rel.sys;", "fence.sc.sys;", "membar.sys;"];
    for fence in fences {
        let relaxed = format!("{fence} {}", flag("st.relaxed.sys.global.u32"));
        correct(2, &handshake("st.global.u32", &relaxed, "ld.relaxed.sys.global.u32 x,", fence));
        correct(2, &handshake("st.global.u32", &relaxed, "ld.volatile.global.u32 x,", fence));
    }
    // The threads of a CTA write, and one of them publishes for all.
    correct(
        2,
        &format!(
            "mul.wide.u32 a0, t, 4; add.u64 a1, next, a0; add.u64 a2, own, a0; @!zero bra R;
            st.global.u32 [a1], t; bar.sync 0; @!first bra E; fence.acq_rel.sys; {} bra E;
            R: @!first bra W; P: ld.acquire.sys.global.u32 x, [own+{FLAGS}]; setp.ne.u32 q0, x, 9; @q0 bra P;
            W: bar.sync 0; ld.global.u32 y, [a2]; E:",
            flag("st.relaxed.sys.global.u32")
        ),
    );
}

#[test]
fn a_narrower_or_weaker_handshake_is_a_race() {
    let (release, acquire) = (flag("st.release.sys.global.u32"), "ld.acquire.sys.global.u32 x,");
    let relaxed = flag("st.relaxed.sys.global.u32");
    let poll = "ld.relaxed.sys.global.u32 x,";
    let fence = "fence.acq_rel.sys;";
    let broken = [
        // Scopes.
        (flag("st.release.gpu.global.u32"), acquire, ""),
        (release.clone(), "ld.acquire.gpu.global.u32 x,", ""),
        (flag("red.release.gpu.global.add.u32"), acquire, ""),
        (format!("fence.acq_rel.gpu; {relaxed}"), poll, fence),
        (format!("membar.gl; {relaxed}"), poll, fence),
        (format!("{fence} {relaxed}"), poll, "fence.acq_rel.gpu;"),
        // Strength.
        (relaxed.clone(), acquire, ""),
        (relaxed.clone(), poll, fence),
        (release.clone(), poll, ""),
        (release.clone(), "ld.volatile.global.u32 x,", ""),
        (release.clone(), "ld.global.u32 x,", ""),
        (release.clone(), "ld.global.u32 x,", fence),
        (flag("st.global.u32"), acquire, ""),
        // A fence on the wrong side of the flag.
        (format!("{relaxed} {fence}"), acquire, ""),
    ];
    for (publish, poll, behind) in broken {
        racy(
            2,
            &handshake("st.global.u32", &publish, poll, behind),
            &["of device 1 at", "device 0", "device 1"],
        );
    }
}

#[test]
fn a_buffer_is_reused_once_its_reader_is_done() {
    // Rank 0 sends two values through one word; rank 1 acknowledges the first.
    let body = |wait: &str, acknowledge: &str| {
        format!(
            "@!first bra E; @!zero bra R;
            st.global.u32 [next], 5; st.release.sys.global.u32 [next+{FLAGS}], 1; {wait}
            st.global.u32 [next], 6; st.release.sys.global.u32 [next+{FLAGS}], 2; bra E;
            R: ld.acquire.sys.global.u32 x, [own+{FLAGS}]; setp.lt.u32 q0, x, 1; @q0 bra R; ld.global.u32 y, [own]; {acknowledge} st.global.u32 [own+64], y;
            Q: ld.acquire.sys.global.u32 x, [own+{FLAGS}]; setp.lt.u32 q0, x, 2; @q0 bra Q; ld.global.u32 y, [own]; st.global.u32 [own+68], y; E:"
        )
    };
    let wait = format!("W: ld.acquire.sys.global.u32 x, [own+{FLAGS}]; setp.ne.u32 q0, x, 1; @q0 bra W;");
    let acknowledge = |how: &str| format!("st.{how}.global.u32 [next+{FLAGS}], 1;");
    correct(2, &body(&wait, &acknowledge("release.sys")));
    // Without a wait the second value may be there already when the first is read, which only the result shows.
    let overwrites = module(&body("", &acknowledge("release.sys")));
    let mut races = 0;
    for options in schedules() {
        let mut ranks = Ranks::new(2);
        match ranks.run(&overwrites, 64, &options).into_iter().find_map(|ended| ended.outcome.err()) {
            Some(fault) => races += u32::from(fault.kind == FaultKind::Race),
            None => assert_eq!([ranks.word(1, 64), ranks.word(1, 68)], [6, 6]),
        }
    }
    assert!(races > 0, "no schedule finds the race");
    racy(2, &body(&wait, &acknowledge("release.gpu")), &["a scope does not include"]);
    racy(2, &body(&wait.replace("acquire", "relaxed"), &acknowledge("release.sys")), &["device 0"]);
}

/// A barrier of all ranks on a counter of rank 0.
fn barrier(count: &str, number: u32) -> String {
    format!(
        "bar.sync 0; @!first bra B{number}; red.release.sys.global.add.u32 [p0+{FLAGS}], 1; mul.lo.u32 z, {count}, {number};
        A{number}: ld.acquire.sys.global.u32 x, [p0+{FLAGS}]; setp.lt.u32 q0, x, z; @q0 bra A{number}; B{number}: bar.sync 0;"
    )
}

#[test]
fn a_barrier_lets_all_ranks_go_on_together() {
    let exchange = |first: &str, second: &str| {
        format!(
            "mul.wide.u32 a0, t, 4; add.u64 a1, next, a0; add.u64 a2, own, a0; add.u32 y, t, rank;
            st.global.u32 [a1], y; {first} ld.global.u32 x, [a2]; {second} st.global.u32 [a1], 0;"
        )
    };
    let (first, second) = (barrier("ranks", 1), barrier("ranks", 2));
    for ranks in [2, 4] {
        correct(ranks, &exchange(&first, &second));
        racy(ranks, &exchange("", &second), &["device"]);
        racy(ranks, &exchange(&first, ""), &["device"]);
    }
    racy(2, &exchange(&first.replace("release.sys", "release.gpu"), &second), &["device"]);
    racy(2, &exchange(&first, &second.replace("acquire.sys", "relaxed.sys")), &["device"]);
}

#[test]
fn a_barrier_that_waits_for_too_many_says_what_each_rank_waits_for() {
    for options in schedules() {
        let module = module(&barrier("3", 1));
        let ended = Ranks::new(2).run(&module, 64, &options);
        assert_eq!(ended.len(), 2);
        for Ended { device, outcome, .. } in ended {
            let fault = outcome.unwrap_err();
            assert_eq!(
                (fault.kind, fault.at.clone().unwrap().device),
                (FaultKind::Deadlock, Some(device as u32))
            );
            for rank in 0..2 {
                let polls = format!("`k` of device {rank} polls global memory of device 0 at ");
                assert!(fault.message.contains(&polls) && fault.message.contains("which is 0x2"), "{fault}");
            }
        }
    }
    // A rank that never comes, with the reason that the host knows.
    let mut ranks = Ranks::new(2);
    let (module, launch) = (module(&barrier("ranks", 1)), ranks.launch(1, 64));
    ranks.world.launch(1, &module, &launch, &Options::default()).unwrap();
    ranks.world.set_absent(0, "its host has left");
    let fault = ranks.world.run().remove(0).outcome.unwrap_err();
    assert!(
        fault.message.contains("device 0 runs nothing: it has launched no kernel (its host has left)"),
        "{fault}"
    );
    // Too few let a rank go on too early.
    let early = format!("@first st.global.u32 [next], 5; {} @first ld.global.u32 x, [own];", barrier("1", 1));
    let kinds: Vec<_> =
        schedules().iter().filter_map(|o| first_fault(2, &early, o)).map(|fault| fault.kind).collect();
    assert!(!kinds.is_empty() && kinds.iter().all(|kind| *kind == FaultKind::Race), "{kinds:?}");
}

#[test]
fn four_ranks_exchange_the_same_bits_under_every_schedule() {
    // Rank r sends 64 words to each rank s: into row r of its buffer.
    let send = (0..4).map(|s| {
        format!("mul.lo.u32 i0, rank, 256; cvt.u64.u32 a1, i0; add.u64 a1, p{s}, a1; add.u64 a1, a1, a0; mad.lo.u32 y, rank, 1000, t; add.u32 y, y, {s}00; st.global.u32 [a1], y;\n")
    });
    let add = (0..4).map(|r| format!("ld.global.u32 y, [a2+{}]; add.u32 i1, i1, y;\n", 256 * r));
    let body = format!(
        "mul.wide.u32 a0, t, 4; add.u64 a2, own, a0; mov.u32 i1, 0; {}{}{} st.global.u32 [a2+4096], i1;",
        send.collect::<String>(),
        barrier("ranks", 1),
        add.collect::<String>()
    );
    let module = module(&body);
    let mut options: Vec<Options> = schedules();
    options.extend([8, 9].map(|seed| Options { policy: Policy::Random, seed, ..Options::default() }));
    for options in options {
        let mut ranks = Ranks::new(4);
        for ended in ranks.run(&module, 64, &options) {
            assert!(ended.outcome.is_ok(), "{ended:?}");
        }
        for rank in 0..4u32 {
            let expected: Vec<u32> = (0..64).map(|t| 6000 + 4 * t + 400 * rank).collect();
            let found: Vec<u32> = (0..64).map(|t| ranks.word(rank as usize, 4096 + 4 * t)).collect();
            assert_eq!(found, expected, "{:?} {}", options.policy, options.seed);
        }
    }
}

#[test]
fn a_later_kernel_follows_the_earlier_ones_of_its_own_device_only() {
    let options = Options::default();
    let write = module("@first st.global.u32 [p1], 5;");
    let read = module("@first ld.global.u32 x, [p1];");
    for synchronized in [false, true] {
        let mut ranks = Ranks::new(2);
        for (rank, module) in [(0, &write), (0, &read), (1, &read)] {
            if rank == 1 && synchronized {
                ranks.world.synchronize();
            }
            let launch = ranks.launch(rank, 32);
            ranks.world.launch(rank, module, &launch, &options).unwrap();
            let outcome = ranks.world.run().remove(0).outcome;
            assert_eq!(outcome.is_ok(), rank == 0 || synchronized, "{outcome:?}");
        }
    }
    // What a kernel learns by a flag, the next one of the device knows.
    let send = module(
        &handshake("st.global.u32", &flag("st.release.sys.global.u32"), "", "")
            .replace("R:  [own", "R: ld.global.u32 x, [own"),
    );
    let wait = module(&format!(
        "@!first bra E; P: ld.acquire.sys.global.u32 x, [p1+{FLAGS}]; setp.ne.u32 q0, x, 9; @q0 bra P; E:"
    ));
    let mut ranks = Ranks::new(2);
    for (rank, module) in [(0, &send), (1, &wait), (1, &read)] {
        let launch = ranks.launch(rank, 32);
        ranks.world.launch(rank, module, &launch, &options).unwrap();
        let outcome = ranks.world.run().remove(0).outcome;
        assert!(outcome.is_ok(), "{outcome:?}");
    }
}

/// What rank 1 has read under every schedule, where none reports a fault.
fn read_by_every_schedule(body: &str) -> Vec<u32> {
    let module = module(body);
    let run = |options: &Options| {
        let mut ranks = Ranks::new(2);
        for ended in ranks.run(&module, 64, options) {
            assert!(ended.outcome.is_ok(), "{ended:?}");
        }
        ranks.word(1, 64)
    };
    schedules().iter().map(run).collect()
}

#[test]
fn stores_to_other_devices_are_seen_late_and_in_any_order() {
    // All accesses are strong, so nothing is a race: only the order of the stores is missing.
    let relaxed = |fence: &str| {
        handshake(
            "st.relaxed.sys.global.u32",
            &format!("{fence} {}", flag("st.relaxed.sys.global.u32")),
            "ld.relaxed.sys.global.u32 x,",
            "",
        )
        .replace("ld.global.u32 y", "ld.relaxed.sys.global.u32 y")
    };
    let read = read_by_every_schedule(&relaxed(""));
    assert_eq!(read[..2], [5, 0], "the eager schedule sees the data, the lazy one the flag without it");
    assert!(read[2..].contains(&5) && read[2..].contains(&0), "{read:?}");
    for fence in ["fence.acq_rel.sys;", "membar.sys;"] {
        assert!(read_by_every_schedule(&relaxed(fence)).iter().all(|value| *value == 5));
    }
    // One store has both: no fence is needed.
    let both = format!(
        "@!first bra E; @!zero bra R; mov.u32 x, 9; mov.u32 y, 5; st.relaxed.sys.global.v2.u32 [next+{FLAGS}], {{x, y}}; bra E;
        R: ld.relaxed.sys.global.v2.u32 {{x, y}}, [own+{FLAGS}]; setp.ne.u32 q0, x, 9; @q0 bra R; st.global.u32 [own+64], y; E:"
    );
    assert!(read_by_every_schedule(&both).iter().all(|value| *value == 5));
    // A device sees its own.
    let own = "@!first bra E; @!zero bra E; st.global.u32 [next], 5; ld.global.u32 x, [next]; add.u32 x, x, 1; st.global.u32 [next], x;
        atom.global.add.u32 y, [next], 1; st.global.u32 [next+64], y; E:";
    assert!(read_by_every_schedule(own).iter().all(|value| *value == 6));
}

#[test]
fn mutants_of_a_handshake_and_of_a_barrier_are_found() {
    // Two rounds of an exchange with a flag each way, and one with a barrier of relaxed operations between fences.
    let flags = format!(
        "mul.wide.u32 a0, t, 4; add.u64 a1, next, a0; add.u64 a2, own, a0; mov.u32 i0, 0; mov.u32 i1, 0;
        L: add.u32 i0, i0, 1; mad.lo.u32 y, rank, 100, i0; st.global.u32 [a1], y; bar.sync 0; @!first bra W;
        st.release.sys.global.u32 [next+{FLAGS}], i0;
        P: ld.acquire.sys.global.u32 x, [own+{FLAGS}]; setp.lt.u32 q0, x, i0; @q0 bra P;
        W: bar.sync 0; ld.global.u32 x, [a2]; mad.lo.u32 i1, i1, 1000, x; bar.sync 0; @!first bra D;
        st.release.sys.global.u32 [next+{ACKNOWLEDGED}], i0;
        Q: ld.acquire.sys.global.u32 x, [own+{ACKNOWLEDGED}]; setp.lt.u32 q0, x, i0; @q0 bra Q;
        D: bar.sync 0; setp.lt.u32 q1, i0, 2; @q1 bra L; st.global.u32 [a2+1024], i1;"
    );
    let fenced = format!(
        "mul.wide.u32 a0, t, 4; add.u64 a1, next, a0; add.u64 a2, own, a0; add.u32 y, rank, 1; st.global.u32 [a1], y;
        bar.sync 0; @!first bra W; fence.acq_rel.sys; red.relaxed.sys.global.add.u32 [p0+{FLAGS}], 1;
        P: ld.relaxed.sys.global.u32 x, [p0+{FLAGS}]; setp.lt.u32 q0, x, ranks; @q0 bra P; fence.acq_rel.sys;
        W: bar.sync 0; ld.global.u32 x, [a2]; st.global.u32 [a2+1024], x;"
    );
    for body in [flags, fenced] {
        let results = |module: &Module, options: &Options| {
            let mut ranks = Ranks::new(2);
            let fault = ranks.run(module, 64, options).into_iter().find_map(|ended| ended.outcome.err());
            let words: Vec<u32> = (0..64)
                .flat_map(|t| [0, 1].map(|r| (r, 1024 + 4 * t)))
                .map(|(r, at)| ranks.word(r, at))
                .collect();
            fault.map_or(Ok(words), Err)
        };
        let want = results(&module(&body), &Options::default()).unwrap();
        for options in schedules() {
            assert_eq!(results(&module(&body), &options).unwrap(), want);
        }
        let mut all: Vec<Mutant> = mutants(&body).into_iter().chain(misscoped(&body)).collect();
        all.sort_by(|a, b| a.text.cmp(&b.text));
        all.dedup_by(|a, b| a.text == b.text);
        let found = |mutant: &&Mutant| {
            let module = module(&mutant.text);
            schedules().iter().any(|options| results(&module, options).as_ref() != Ok(&want))
        };
        let survivors: Vec<&Mutant> = all.iter().filter(|mutant| !found(mutant)).collect();
        assert!(
            survivors.is_empty() && all.len() >= 8,
            "{} of {}: {survivors:#?}",
            survivors.len(),
            all.len()
        );
    }
}
