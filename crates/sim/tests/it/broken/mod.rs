//! Small kernels around a few lines of PTX, right and broken, under every schedule.

use oxigemm_sim::*;

pub fn run(body: &str, block: u32, cluster: u32, options: &Options) -> Result<Report, Fault> {
    run_grid(body, [cluster, block, cluster], options)
}

/// CTAs of the grid, threads of a CTA, CTAs of a cluster.
pub fn run_grid(body: &str, [grid, block, cluster]: [u32; 3], options: &Options) -> Result<Report, Fault> {
    let text = format!(
        ".version 8.3\n.target sm_90a\n.address_size 64\n.file 1 \"kernel.rs\"\n.extern .shared .align 1024 .b8 smem[];\n\
        .visible .entry k(.param .u64 buf, .param .align 64 .b8 map[128])\n{{\n\
        .reg .pred p<8>; .reg .b32 r<32>; .reg .b64 d<16>; .reg .f32 f<32>; .reg .b32 t, s; .reg .b64 b;\n\
        mov.u32 t, %tid.x; mov.u32 s, smem; ld.param.u64 b, [buf]; setp.eq.u32 p0, t, 0;\n{body}\nret;\n}}"
    );
    let module = Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut machine = Machine::new();
    let buf = machine.memory.allocate_with(&[1; 4096]);
    let map = TensorMapSpec {
        address: buf,
        element: Element::U8,
        dims: vec![64, 64],
        strides: vec![64],
        box_dims: vec![64, 16],
        swizzle: Swizzle::None,
    };
    let launch = Launch {
        entry: "k".into(),
        grid: [grid, 1, 1],
        cluster: Some([cluster, 1, 1]),
        block: [block, 1, 1],
        shared_bytes: 32768,
        params: vec![Param::U64(buf), map.encode().unwrap().into()],
    };
    machine.run(&module, &launch, options)
}

pub fn schedules() -> Vec<Options> {
    let random = |seed| Options { policy: Policy::Random, seed, ..Options::default() };
    let lazy = Options { policy: Policy::Lazy, ..Options::default() };
    vec![Options::default(), lazy, random(0), random(1), random(2), random(3)]
}

/// Every schedule reports this kind.
pub fn broken(body: &str, block: u32, cluster: u32, kind: FaultKind) -> Fault {
    let mut last = None;
    for o in schedules() {
        match run(body, block, cluster, &o) {
            Ok(_) => panic!("{:?} {} finds nothing in\n{body}", o.policy, o.seed),
            Err(f) => {
                assert_eq!(f.kind, kind, "{:?} {}: {f}\n{body}", o.policy, o.seed);
                last = Some(f);
            }
        }
    }
    last.unwrap()
}

pub fn correct(body: &str, block: u32, cluster: u32) {
    for o in schedules() {
        match run(body, block, cluster, &o) {
            Ok(report) => assert!(report.notes.is_empty(), "{:?}\n{body}", report.notes),
            Err(f) => panic!("{:?} {}: {f}\n{body}", o.policy, o.seed),
        }
    }
}

/// Every schedule notes this and goes on; it is a fault where options are strict. Gives the note.
pub fn noted(body: &str, block: u32, cluster: u32, kind: FaultKind) -> Fault {
    let mut last = None;
    for o in schedules() {
        let report = run(body, block, cluster, &o)
            .unwrap_or_else(|f| panic!("{:?} {}: {f}\n{body}", o.policy, o.seed));
        let [note] = &report.notes[..] else { panic!("{:?}\n{body}", report.notes) };
        assert_eq!(note.kind, kind, "{note}\n{body}");
        last = Some(note.clone());
        let fault = run(body, block, cluster, &Options { strict: true, ..o }).unwrap_err();
        assert_eq!(fault.kind, kind, "{fault}\n{body}");
    }
    last.unwrap()
}

/// A load of 1024 bytes into `smem`, reporting to the mbarrier at `smem+4096`, by thread 0.
pub const LOAD: &str = "
@!p0 bra I;
mbarrier.init.shared::cta.b64 [smem+4096], 1;
fence.mbarrier_init.release.cluster;
I: bar.sync 0;
add.u32 r9, s, 4096;
@!p0 bra W;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [r9], 1024;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [b], 1024, [r9];
W: bar.warp.sync -1;
";
pub const WAIT: &str = "L: mbarrier.try_wait.parity.shared::cta.b64 p1, [smem+4096], 0; @!p1 bra L;\n";
pub const ADDRESS: &str = "shl.b32 r0, t, 2; add.u32 r0, r0, s;\n";

/// Every schedule of a grid (CTAs of the grid, threads of a CTA, CTAs of a cluster) is without a fault.
pub fn correct_grid(body: &str, shape: [u32; 3]) {
    for o in schedules() {
        if let Err(f) = run_grid(body, shape, &o) {
            panic!("{:?} {}: {f}\n{body}", o.policy, o.seed);
        }
    }
}

/// Every schedule of a grid reports a race whose message has this in it.
pub fn racy_grid(body: &str, shape: [u32; 3], message: &str) {
    for o in schedules() {
        match run_grid(body, shape, &o) {
            Ok(_) => panic!("{:?} {} finds nothing in\n{body}", o.policy, o.seed),
            Err(f) => {
                assert_eq!(f.kind, FaultKind::Race, "{:?} {}: {f}\n{body}", o.policy, o.seed);
                assert!(f.message.contains(message), "{:?} {}: {f}\n{body}", o.policy, o.seed);
            }
        }
    }
}

/// Source lines of both sides, in order.
pub fn lines(f: &Fault) -> [u32; 2] {
    let line = |p: &Option<Box<Place>>| p.as_ref().and_then(|p| p.source.as_ref()).map_or(0, |s| s.1);
    let mut lines = [line(&f.at), line(&f.other)];
    lines.sort_unstable();
    lines
}
