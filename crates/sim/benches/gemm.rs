//! Instructions and multiply-adds per second: an FP8 GEMM of 256x256x1024 with and without hazard checks, one of
//! MXFP8 by a pair of CTAs, and a kernel without tensor cores.

#[path = "../tests/it/common/mod.rs"]
mod common;

use common::mxfp8_pair::MxFp8;
use common::{Problem, tile};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use oxigemm_sim::{Launch, Machine, Module, Options, Param};

const TILE: &str = include_str!("../tests/ptx/tile_256x128_cluster2.ptx");

fn gemm(c: &mut Criterion) {
    let p = Problem::new(256, 256, 1024);
    let mut group = c.benchmark_group("fp8 gemm 256x256x1024");
    group.sample_size(10);
    group.throughput(Throughput::Elements(256 * 256 * 1024));
    for (name, hazards) in [("with hazards", true), ("without hazards", false)] {
        let options = Options { hazards, ..Options::default() };
        group.bench_function(name, |b| {
            b.iter(|| tile(TILE, &p, 256, 128, 2, 217_200, 2).run(&options).expect("the kernel is correct"));
        });
    }
    group.finish();
}

/// The same by a pair of CTAs of Blackwell, with block scales.
fn mxfp8(c: &mut Criterion) {
    let problem = MxFp8::new(1024);
    let mut group = c.benchmark_group("mxfp8 gemm 256x256x1024");
    group.sample_size(10);
    group.throughput(Throughput::Elements(256 * 256 * 1024));
    for (name, hazards) in [("with hazards", true), ("without hazards", false)] {
        let options = Options { hazards, ..Options::default() };
        group.bench_function(name, |b| b.iter(|| problem.run(&options).expect("the kernel is correct")));
    }
    group.finish();
}

/// A loop of integer and float arithmetic: warp instructions per second.
const SCALAR: &str = "
.version 8.0
.target sm_90a
.address_size 64
.visible .entry spin(.param .u64 out) {
    .reg .pred p;
    .reg .b32 r<4>;
    .reg .f32 f<2>;
    .reg .b64 d;
    mov.u32 r0, 0;
    mov.f32 f0, 0f3F800000;
LOOP:
    fma.rn.f32 f0, f0, 0f3F7FFFFF, 0f3A83126F;
    add.u32 r0, r0, 1;
    setp.lt.u32 p, r0, 20000;
    @p bra LOOP;
    ld.param.u64 d, [out];
    st.global.f32 [d], f0;
    ret;
}";

fn scalar(c: &mut Criterion) {
    let module = Module::parse(SCALAR).expect("the module parses");
    let mut group = c.benchmark_group("scalar loop");
    group.throughput(Throughput::Elements(80_000));
    for (name, hazards) in [("with hazards", true), ("without hazards", false)] {
        let options = Options { hazards, ..Options::default() };
        group.bench_function(name, |b| {
            b.iter(|| {
                let mut machine = Machine::new();
                let out = machine.memory.allocate(4);
                let launch = Launch {
                    entry: "spin".into(),
                    grid: [1; 3],
                    cluster: None,
                    block: [32, 1, 1],
                    shared_bytes: 0,
                    params: vec![Param::U64(out)],
                };
                machine.run(&module, &launch, &options).expect("the kernel is correct")
            });
        });
    }
    group.finish();
}

criterion_group!(benches, gemm, mxfp8, scalar);
criterion_main!(benches);
