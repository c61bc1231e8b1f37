//! Small kernels around a few instructions, with two result words per thread.

pub mod blackwell;
pub mod formats;

use oxigemm_sim::*;

/// The first lines of a module for a target that has these instructions.
pub fn head(body: &str) -> String {
    let target = if body.contains("wgmma") { "sm_90a" } else { "sm_100a" };
    format!(".version 9.4\n.target {target}\n.address_size 64\n")
}

/// A kernel of `block` threads: the body sees its linear thread number in `t`, and leaves 32-bit results in
/// `o`; `o2` is stored beside it.
pub fn module(body: &str) -> Module {
    let head = head(body);
    let text = format!(
        "{head}
        .extern .shared .align 1024 .b8 smem[];
        .visible .entry k(.param .u64 out, .param .u64 in, .param .u32 n)
        {{
            .reg .pred p<8>; .reg .b16 h<16>; .reg .b32 r<64>; .reg .b64 d<32>; .reg .f32 f<32>; .reg .f64 g<8>;
            .reg .b32 t, o, o2, s; .reg .b64 outp, inp;
            mov.u32 t, %tid.x; ld.param.u64 outp, [out]; ld.param.u64 inp, [in]; mov.u32 o, 0; mov.u32 o2, 0;
            mov.u32 s, smem;
            {body}
            mov.u32 r60, %ctaid.x; mov.u32 r61, %ntid.x; mad.lo.u32 r60, r60, r61, t;
            mul.wide.u32 d30, r60, 8; add.u64 d30, d30, outp; st.global.v2.b32 [d30], {{o, o2}};
            ret;
        }}"
    );
    Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

pub struct Shape {
    pub grid: u32,
    pub cluster: u32,
    pub block: u32,
}

pub const WARP: Shape = Shape { grid: 1, cluster: 1, block: 32 };

pub fn launch(body: &str, input: &[u32], shape: &Shape, options: &Options) -> Result<Vec<[u32; 2]>, Fault> {
    let mut machine = Machine::new();
    let threads = (shape.grid * shape.block) as usize;
    let out = machine.memory.allocate(threads * 8);
    let bytes: Vec<u8> = input.iter().flat_map(|v| v.to_le_bytes()).collect();
    let inp = machine.memory.allocate_with(&bytes);
    let launch = Launch {
        entry: "k".into(),
        grid: [shape.grid, 1, 1],
        cluster: Some([shape.cluster, 1, 1]),
        block: [shape.block, 1, 1],
        shared_bytes: 32768,
        params: vec![Param::U64(out), Param::U64(inp), Param::U32(input.len() as u32)],
    };
    machine.run(&module(body), &launch, options)?;
    let bytes = machine.memory.read(out, threads * 8)?;
    let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    Ok(bytes.chunks(8).map(|b| [word(b), word(&b[4..])]).collect())
}

pub fn policies() -> [Options; 4] {
    let random = |seed| Options { policy: Policy::Random, seed, ..Options::default() };
    [Options::default(), Options { policy: Policy::Lazy, ..Options::default() }, random(1), random(2)]
}

/// The results of every thread, the same under every schedule.
pub fn run(body: &str, input: &[u32], shape: &Shape) -> Vec<[u32; 2]> {
    let all: Vec<_> = policies()
        .iter()
        .map(|o| launch(body, input, shape, o).unwrap_or_else(|f| panic!("{:?}: {f}\n{body}", o.policy)))
        .collect();
    assert!(all.windows(2).all(|w| w[0] == w[1]), "schedules differ: {body}");
    all.into_iter().next().unwrap()
}

/// The result of lane 0.
pub fn one(body: &str) -> u32 {
    run(body, &[0], &WARP)[0][0]
}

pub fn fault(body: &str) -> FaultKind {
    launch(body, &[0; 64], &WARP, &Options::default()).expect_err(body).kind
}
