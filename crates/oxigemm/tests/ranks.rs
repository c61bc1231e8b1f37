//! Two hosts and their devices: launches that meet, hosts that do not come, results that follow from the seed alone.

use std::sync::Arc;
use std::time::Duration;

use oxigemm::sim::{FaultKind, Launch, Module, Options, Param, Policy};
use oxigemm::{Addend, DType, Device, Error, GemmOptions, Result, Sim, SimRank, Tensor, bf16, bf16_gemm_nt};

/// Writes `value` to the next rank's word, then waits at a barrier of `count`, and reads its own word.
const EXCHANGE: &str = ".version 8.0\n.target sm_90a\n.address_size 64
    .visible .entry exchange(.param .u64 counter, .param .u32 count, .param .u64 own, .param .u64 next, .param .u32 value) {
        .reg .b64 c, o, n; .reg .b32 x, y, v; .reg .pred p;
        ld.param.u64 c, [counter]; ld.param.u32 y, [count]; ld.param.u64 o, [own]; ld.param.u64 n, [next];
        ld.param.u32 v, [value]; st.global.u32 [n], v; red.release.sys.global.add.u32 [c], 1;
        again: ld.acquire.sys.global.u32 x, [c]; setp.lt.u32 p, x, y; @p bra again;
        ld.global.u32 x, [o]; st.global.u32 [o+4], x; ret;
    }";

/// The exchange of one rank, in a buffer of four words: what it read.
fn exchange(rank: &SimRank, module: &Arc<Module>, count: usize) -> Result<i32> {
    let buffer = Tensor::zeros(DType::I32, &[4], &rank.device())?;
    let buffers = rank.meet(buffer.address())?;
    launch(rank.sim(), module, &buffers, count)?;
    let bytes = buffer.to_bytes()?;
    rank.meet(0)?;
    Ok(i32::from_le_bytes(bytes[4..8].try_into().expect("four bytes")))
}

fn launch(sim: &Sim, module: &Arc<Module>, buffers: &[u64], count: usize) -> Result<()> {
    let (own, next) = (buffers[sim.rank()], buffers[(sim.rank() + 1) % buffers.len()]);
    let launch = Launch {
        entry: "exchange".to_owned(),
        grid: [1; 3],
        cluster: None,
        block: [1; 3],
        shared_bytes: 0,
        params: vec![
            Param::U64(buffers[0] + 8),
            Param::U32(count as u32),
            Param::U64(own),
            Param::U64(next),
            Param::U32(100 + sim.rank() as u32),
        ],
    };
    sim.launch_module(module, &launch).map(drop)
}

fn module() -> Arc<Module> {
    Arc::new(Module::parse(EXCHANGE).unwrap())
}

#[test]
fn ranks_exchange_whatever_the_threads_of_the_hosts_do() {
    let module = module();
    for count in [2, 4] {
        for seed in 0..5 {
            let options = Options { policy: Policy::Random, seed, ..Options::default() };
            let reports = [false, true].map(|delayed| {
                let world = Sim::world(count, options.clone()).unwrap();
                let read = world[0].each_rank(|rank| {
                    if delayed {
                        std::thread::sleep(Duration::from_millis(5 * (rank.rank() as u64 ^ seed)));
                    }
                    exchange(rank, &module, count).unwrap()
                });
                let expected: Vec<i32> = (0..count).map(|r| 100 + ((r + count - 1) % count) as i32).collect();
                assert_eq!(read.unwrap(), expected);
                world.iter().map(|sim| sim.last_report().unwrap()).collect::<Vec<_>>()
            });
            assert_eq!(reports[0], reports[1], "seed {seed}");
        }
    }
}

#[test]
fn the_kernels_of_the_library_run_on_every_rank() {
    let gemm = |device: &Device| {
        let x = Tensor::from_slice(&[bf16::from_f32(1.5); 64 * 64], &[64, 64], device)?;
        let mut d = Tensor::empty(DType::Bf16, &[64, 64], device)?;
        bf16_gemm_nt(&x, &x, Addend::None, &mut d, &GemmOptions::default())?;
        d.to_bytes()
    };
    let alone = gemm(&Device::sim()).unwrap();
    let world = Sim::world(2, Options::default()).unwrap();
    let bits = world[0].each_rank(|rank| gemm(&rank.device()).unwrap()).unwrap();
    assert_eq!(bits, [alone.clone(), alone.clone()]);
    // Without hosts of their own they run one after another.
    assert_eq!(gemm(&Device::Sim(world[1].clone())).unwrap(), alone);
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let module = module();
    let fault = |outcome: Result<i32>| match outcome {
        Err(Error::Fault { fault, .. }) => {
            assert_eq!(fault.kind, FaultKind::Deadlock);
            fault.message.clone()
        }
        other => panic!("{other:?}"),
    };
    // It leaves before it launches.
    let world = Sim::world(2, Options::default()).unwrap();
    let mut outcomes = world[0]
        .each_rank(|rank| {
            let buffer = Tensor::zeros(DType::I32, &[4], &rank.device())?;
            let buffers = rank.meet(buffer.address())?;
            if rank.rank() == 0 {
                return Ok(0);
            }
            // The counter is that of rank 1, as the buffer of rank 0 is gone.
            launch(rank.sim(), &module, &[buffers[1], buffers[1]], 2).map(|()| 0)
        })
        .unwrap();
    let text = fault(outcomes.remove(1));
    assert!(text.contains("`exchange` of device 1 polls global memory of device 1"), "{text}");
    assert!(text.contains("device 0 runs nothing: it has launched no kernel (its host has left)"), "{text}");
    // The ranks wait for three.
    let world = Sim::world(2, Options::default()).unwrap();
    for outcome in world[0].each_rank(|rank| exchange(rank, &module, 3)).unwrap() {
        let text = fault(outcome);
        assert!(text.contains("`exchange` of device 0 polls") && text.contains("which is 0x2"), "{text}");
    }
    // Nobody takes part: a kernel runs alone.
    let sim = &Sim::world(2, Options::default()).unwrap()[1];
    let buffer = Tensor::zeros(DType::I32, &[4], &Device::Sim(sim.clone())).unwrap();
    let text = fault(launch(sim, &module, &[buffer.address(); 2], 2).map(|()| 0));
    assert!(text.contains("(its host takes no part)"), "{text}");
}

#[test]
fn hosts_that_do_not_meet_are_told() {
    let reason = |outcome: Result<Vec<u64>>| match outcome {
        Err(Error::Ranks { reason }) => reason,
        other => panic!("{other:?}"),
    };
    let world = Sim::world(3, Options::default()).unwrap();
    let outcomes = world[0].each_rank(|rank| (rank.rank() != 1).then(|| rank.meet(0))).unwrap();
    for outcome in outcomes.into_iter().flatten() {
        assert_eq!(reason(outcome), "rank 1 has left, and the others wait for its host");
    }
    // A host that takes part and does nothing.
    world[0].set_patience(Duration::from_millis(200));
    let idle = world[2].take_part().unwrap();
    let waits = world[0].take_part().unwrap();
    assert!(reason(waits.meet(0)).contains("the host of rank 2 takes part and has not launched"));
    assert!(reason(world[2].take_part().map(|_| Vec::new())).contains("rank 2 takes part already"));
    drop((idle, waits));
    assert!(reason(Sim::new().take_part().map(|_| Vec::new())).contains("no peers"));
    assert!(matches!(Sim::world(0, Options::default()), Err(Error::Ranks { .. })));
}

#[test]
fn memory_belongs_to_one_rank_and_is_seen_by_all() {
    let world = Sim::world(2, Options::default()).unwrap();
    let devices = [0, 1].map(|rank: usize| Device::Sim(world[rank].clone()));
    let tensors = devices.each_ref().map(|device| Tensor::zeros(DType::I32, &[4], device).unwrap());
    let owners = tensors.each_ref().map(|tensor| world[0].owner(tensor.address()).unwrap());
    assert_eq!(owners, [0, 1]);
    // Rank 0 alone, with a barrier of one.
    launch(&world[0], &module(), &tensors.each_ref().map(Tensor::address), 1).unwrap();
    assert_eq!(tensors[1].to_bytes().unwrap()[..4], 100i32.to_le_bytes());
    let d = Tensor::zeros(DType::Bf16, &[4, 4], &devices[1]).unwrap();
    let mut other = Tensor::zeros(DType::Bf16, &[4, 4], &devices[0]).unwrap();
    let error = bf16_gemm_nt(&d, &d, Addend::None, &mut other, &GemmOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Device { .. }), "{error}");
}
