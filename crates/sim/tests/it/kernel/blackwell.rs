//! Kernels of four warps (or more CTAs of four) that work in tensor memory.

use oxigemm_sim::*;

/// Words that every thread may store at `out`, behind those of the threads before it.
pub const OUT: usize = 256;

/// A kernel of `warps` warps for `sm_100a`. The body sees the thread in `t`, its warp in `w`, its lane in `l`, shared
/// memory in `s`, the first word of its results in `outp`, the input in `inp`, and predicates: `p0` in warp 0, `p1` in
/// thread 0. Mbarriers of one arrival are at `s + 16`, `s + 24` and `s + 32`.
pub fn text(body: &str) -> String {
    format!(
        ".version 8.8\n.target sm_103a\n.address_size 64\n
        .extern .shared .align 1024 .b8 smem[];
        .visible .entry k(.param .u64 out, .param .u64 in)
        {{
            .reg .pred p<16>; .reg .b16 h<4>; .reg .b32 r<256>; .reg .b64 d<16>;
            .reg .b32 t, w, l, s, ta, tw; .reg .b64 outp, inp;
            mov.u32 t, %tid.x; shr.u32 w, t, 5; and.b32 l, t, 31; mov.u32 s, smem;
            ld.param.u64 outp, [out]; ld.param.u64 inp, [in];
            mov.u32 r0, %ctaid.x; mov.u32 r1, %ntid.x; mad.lo.u32 r0, r0, r1, t; mul.wide.u32 d0, r0, {bytes};
            add.u64 outp, outp, d0;
            setp.eq.u32 p0, w, 0; setp.eq.u32 p1, t, 0;
            @p1 mbarrier.init.shared::cta.b64 [s+16], 1; @p1 mbarrier.init.shared::cta.b64 [s+24], 1;
            @p1 mbarrier.init.shared::cta.b64 [s+32], 1; @p1 fence.mbarrier_init.release.cluster;
            {body}
            ret;
        }}",
        bytes = OUT * 4
    )
}

/// Takes `columns` columns; their address is in `ta`, and that of the warp's own lanes in `tw`.
pub fn allocate(columns: u32) -> String {
    format!(
        "@p0 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [s], {columns}; bar.sync 0;
        ld.shared.b32 ta, [s]; and.b32 tw, w, 3; shl.b32 tw, tw, 21; add.u32 tw, tw, ta;"
    )
}

/// Gives them back when all threads have come this far.
pub fn free(columns: u32) -> String {
    format!("bar.sync 0; @p0 tcgen05.dealloc.cta_group::1.sync.aligned.b32 ta, {columns};")
}

/// A wait of all threads for a phase of the mbarrier at an offset; `label` is a name of its own.
pub fn wait(label: &str, offset: u32, parity: u32) -> String {
    format!("{label}: mbarrier.try_wait.parity.shared::cta.b64 p7, [s+{offset}], {parity}; @!p7 bra {label};")
}

/// The shape of a launch.
#[derive(Clone, Copy)]
pub struct Launching {
    pub ctas: u32,
    pub cluster: u32,
    pub warps: u32,
}

pub const FOUR_WARPS: Launching = Launching { ctas: 1, cluster: 1, warps: 4 };
pub const PAIR: Launching = Launching { ctas: 2, cluster: 2, warps: 4 };

/// What a run of four warps reports.
pub fn report(body: &str, options: &Options) -> Report {
    let module = Module::parse(&text(body)).unwrap_or_else(|e| panic!("{e}\n{body}"));
    let mut machine = Machine::new();
    let out = machine.memory.allocate_with(&vec![0; 128 * OUT * 4]);
    let launch = Launch {
        entry: "k".into(),
        grid: [1, 1, 1],
        cluster: None,
        block: [128, 1, 1],
        shared_bytes: 65536,
        params: vec![Param::U64(out), Param::U64(out)],
    };
    machine.run(&module, &launch, options).unwrap_or_else(|f| panic!("{f}\n{body}"))
}

pub fn launch(
    body: &str,
    input: &[u32],
    shape: Launching,
    options: &Options,
) -> Result<Vec<Vec<u32>>, Fault> {
    let module = Module::parse(&text(body)).unwrap_or_else(|e| panic!("{e}\n{body}"));
    let mut machine = Machine::new();
    let threads = (shape.ctas * shape.warps * 32) as usize;
    let out = machine.memory.allocate_with(&vec![0; threads * OUT * 4]);
    let bytes: Vec<u8> = input.iter().flat_map(|v| v.to_le_bytes()).collect();
    let inp = machine.memory.allocate_with(&bytes);
    let launch = Launch {
        entry: "k".into(),
        grid: [shape.ctas, 1, 1],
        cluster: Some([shape.cluster, 1, 1]),
        block: [shape.warps * 32, 1, 1],
        shared_bytes: 65536,
        params: vec![Param::U64(out), Param::U64(inp)],
    };
    machine.run(&module, &launch, options)?;
    let words = machine.memory.read(out, threads * OUT * 4)?;
    let words: Vec<u32> = words.chunks(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    Ok(words.chunks(OUT).map(<[u32]>::to_vec).collect())
}

/// Eager, lazy and eight seeds.
pub fn schedules() -> Vec<Options> {
    let random = |seed| Options { policy: Policy::Random, seed, ..Options::default() };
    let fixed = [Options::default(), Options { policy: Policy::Lazy, ..Options::default() }];
    fixed.into_iter().chain((1..9).map(random)).collect()
}

/// The results of every thread, the same under every schedule.
pub fn run(body: &str, input: &[u32], shape: Launching) -> Vec<Vec<u32>> {
    let all: Vec<_> = schedules()
        .iter()
        .map(|o| {
            launch(body, input, shape, o).unwrap_or_else(|f| panic!("{:?} {}: {f}\n{body}", o.policy, o.seed))
        })
        .collect();
    assert!(all.windows(2).all(|w| w[0] == w[1]), "schedules differ: {body}");
    all.into_iter().next().unwrap()
}

/// The fault under every schedule, which is the same kind; its text is that of the eager one.
pub fn fault(body: &str, input: &[u32], shape: Launching) -> (FaultKind, String) {
    let faults: Vec<Fault> = schedules()
        .iter()
        .map(|o| match launch(body, input, shape, o) {
            Ok(_) => panic!("{:?} {}: no fault\n{body}", o.policy, o.seed),
            Err(f) => f,
        })
        .collect();
    let kind = faults[0].kind;
    assert!(
        faults.iter().all(|f| f.kind == kind),
        "{:?}\n{body}",
        faults.iter().map(|f| f.kind).collect::<Vec<_>>()
    );
    (kind, faults[0].to_string())
}
