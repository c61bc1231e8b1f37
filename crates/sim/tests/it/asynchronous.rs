//! Barriers and copies in all their forms: tokens and parities, bulk copies in every direction, tensor maps
//! changed by the kernel, fills, matrices of every count.

use crate::kernel::*;
use oxigemm_sim::*;

const ONE: Shape = Shape { grid: 1, cluster: 1, block: 1 };

/// What begins every kernel here: an mbarrier of `count` at `smem + 2048`, ready for copies.
fn barrier(count: u32) -> String {
    format!(
        "mbarrier.init.shared::cta.b64 [smem+2048], {count}; fence.mbarrier_init.release.cluster; add.u32 r20, s, 2048;"
    )
}

#[test]
fn mbarriers_by_token_and_by_parity() {
    // Pending counts are those before each arrival; the third completes the phase.
    let body = barrier(3)
        + "mbarrier.arrive.shared::cta.b64 d0, [r20]; mbarrier.pending_count.b64 r0, d0;
        mbarrier.arrive.noComplete.release.cta.shared::cta.b64 d1, [r20], 1; mbarrier.pending_count.b64 r1, d1;
        mbarrier.test_wait.shared::cta.b64 p0, [r20], d0; selp.u32 r2, 1, 0, p0;
        mbarrier.arrive.shared::cta.b64 d2, [r20]; mbarrier.test_wait.shared::cta.b64 p1, [r20], d0; selp.u32 r3, 1, 0, p1;
        mbarrier.try_wait.parity.shared::cta.b64 p2, [r20], 0; selp.u32 r4, 1, 0, p2;
        mbarrier.test_wait.parity.shared::cta.b64 p3, [r20], 1; selp.u32 r5, 1, 0, p3;
        mad.lo.u32 o, r0, 16, r1; shl.b32 r2, r2, 3; shl.b32 r3, r3, 2; shl.b32 r4, r4, 1; or.b32 o2, r2, r3; or.b32 o2, o2, r4; or.b32 o2, o2, r5;";
    assert_eq!(run(&body, &[0], &ONE)[0], [0x32, 0b0110]);
    // A dropped arrival lowers the count of the phases to come.
    let body = barrier(2)
        + "mbarrier.arrive_drop.shared::cta.b64 d0, [r20]; mbarrier.arrive.shared::cta.b64 d1, [r20];
        mbarrier.arrive.shared::cta.b64 d2, [r20]; mbarrier.pending_count.b64 o, d2;
        mbarrier.test_wait.shared::cta.b64 p0, [r20], d2; selp.u32 o2, 1, 0, p0;";
    assert_eq!(run(&body, &[0], &ONE)[0], [1, 1]);
    // Bytes that are expected and completed by hand.
    let body = barrier(1)
        + "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [r20], 48; mbarrier.arrive.shared::cta.b64 d0, [r20];
        mbarrier.test_wait.shared::cta.b64 p0, [r20], d0; selp.u32 o, 1, 0, p0;
        mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [r20], 48; mbarrier.test_wait.shared::cta.b64 p0, [r20], d0; selp.u32 o2, 1, 0, p0;
        mbarrier.inval.shared::cta.b64 [r20];";
    assert_eq!(run(&body, &[0], &ONE)[0], [0, 1]);
    let body = barrier(1) + "mbarrier.arrive.shared::cta.b64 d0, [r20], 2;";
    assert_eq!(launch(&body, &[0], &ONE, &Options::default()).unwrap_err().kind, FaultKind::OverArrival);
    let body = barrier(1) + "mbarrier.arrive.noComplete.shared::cta.b64 d0, [r20], 1;";
    assert_eq!(launch(&body, &[0], &ONE, &Options::default()).unwrap_err().kind, FaultKind::BadOperand);
}

#[test]
fn bulk_copies_in_every_direction() {
    let input: Vec<u32> = (1..65).collect();
    // Into the own CTA, from there into its own shared memory again, reduced on top, and masked out.
    let body = barrier(1)
        + "mbarrier.arrive.expect_tx.shared::cta.b64 _, [r20], 256;
        cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [s], [inp], 256, [r20];
        A: mbarrier.try_wait.parity.shared::cta.b64 p0, [r20], 0; @!p0 bra A;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [r20], 256; add.u32 r0, s, 512;
        cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [r0], [s], 256, [r20];
        B: mbarrier.try_wait.parity.shared::cta.b64 p0, [r20], 1; @!p0 bra B;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [r20], 256;
        cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [r0], [s], 256, [r20];
        C: mbarrier.try_wait.parity.shared::cta.b64 p0, [r20], 0; @!p0 bra C;
        ld.shared.u32 o, [s+572]; mov.b16 h0, 0x00f0;
        cp.async.bulk.global.shared::cta.bulk_group.cp_mask [inp], [r0], 256, h0;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ld.global.u32 r1, [inp+16]; ld.global.u32 r2, [inp+20]; mad.lo.u32 o2, r1, 1000, r2;";
    // Word 15 is 16, doubled; words 4 and 5 are 5 and (doubled) 12.
    assert_eq!(run(&body, &input, &ONE)[0], [32, 5 * 1000 + 12]);
    // Every kind of bulk reduction into global memory.
    for (op, old, new, want) in [
        ("add.u32", 5u32, 7, 12u32),
        ("min.s32", 5, -7i32 as u32, -7i32 as u32),
        ("max.u32", 5, 7, 7),
        ("and.b32", 6, 3, 2),
        ("or.b32", 6, 3, 7),
        ("xor.b32", 6, 3, 5),
        ("inc.u32", 5, 5, 0),
        ("dec.u32", 0, 9, 9),
        ("add.noftz.bf16", 0x3f80_4000, 0x3f80_3f80, 0x4000_4040),
        ("min.f16", 0x3c00_4000, 0x4000_3c00, 0x3c00_3c00),
        ("add.f32", 1f32.to_bits(), 2f32.to_bits(), 3f32.to_bits()),
    ] {
        let body = format!(
            "mov.u32 r0, {new}; st.shared.v4.u32 [s], {{r0, r0, r0, r0}}; fence.proxy.async.shared::cta;
            cp.reduce.async.bulk.global.shared::cta.bulk_group.{op} [inp], [s], 16;
            cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ld.global.u32 o, [inp+4];"
        );
        assert_eq!(run(&body, &[old; 4], &ONE)[0][0], want, "{op}");
    }
}

#[test]
fn a_bulk_copy_and_stores_to_a_peer() {
    // Rank 0 sends 64 bytes to rank 1, with st.async and red.async on top.
    let body = "mov.u32 r0, %cluster_ctarank; setp.eq.u32 p0, t, 0; setp.eq.u32 p1, r0, 0; mov.u32 r5, 1; add.u32 r6, t, 100;
        shl.b32 r7, t, 2; add.u32 r7, r7, s; st.shared.u32 [r7], r6; add.u32 r20, s, 2048; fence.proxy.async.shared::cta;
        @p0 mbarrier.init.shared::cta.b64 [r20], 1; @p0 fence.mbarrier_init.release.cluster;
        barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
        and.pred p2, p0, p1; @!p2 bra W;
        mapa.shared::cluster.u32 r8, s, r5; mapa.shared::cluster.u32 r9, r20, r5; add.u32 r10, r8, 512;
        mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [r9], 76;
        cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [r10], [s], 64, [r9];
        st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [r8+1024], {r5, r6}, [r9];
        red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [r8+124], r5, [r9];
        W: mov.u32 o, 0; @p1 bra E;
        L: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p3, [r20], 0; @!p3 bra L;
        ld.shared.u32 r11, [s+572]; ld.shared.u32 r12, [s+1028]; add.u32 o, r11, r12; ld.shared.u32 o2, [s+124];
        E: barrier.cluster.arrive.release; barrier.cluster.wait.acquire;";
    let out = run(body, &[0], &Shape { grid: 2, cluster: 2, block: 32 });
    assert!(out[32..].iter().all(|o| *o == [115 + 100, 132]), "{out:?}");
}

/// What comes in its own time, under every schedule: a kernel that relies on an early arrival is found by a late one.
#[test]
fn arrivals_after_copies_are_asynchronous() {
    let late = Options { policy: Policy::Lazy, ..Options::default() };
    let early = |looks: &str, arrive: &str| {
        barrier(1)
            + &format!(
                "cp.async.ca.shared.global [s], [inp+4], 4; cp.async.mbarrier.arrive{arrive}.shared::cta.b64 [r20];
                {looks} mbarrier.test_wait.parity.shared::cta.b64 p0, [r20], 0; selp.u32 o, 1, 0, p0;
                L: mbarrier.try_wait.parity.shared::cta.b64 p0, [r20], 0; @!p0 bra L; ld.shared.u32 o2, [s];"
            )
    };
    let seen = |body: &str, options: &Options| launch(body, &[10, 11], &ONE, options).unwrap()[0];
    for (looks, arrive) in [("", ".noinc"), ("mbarrier.arrive.shared::cta.b64 d0, [r20];", "")] {
        let body = early(looks, arrive);
        assert_eq!(seen(&body, &Options::default()), [1, 11], "it may be early");
        assert_eq!(seen(&body, &late), [0, 11], "and it may be late");
        let random = |seed| Options { policy: Policy::Random, seed, ..Options::default() };
        let outcomes: Vec<u32> = (0..32).map(|seed| seen(&body, &random(seed))[0]).collect();
        assert!(outcomes.contains(&0) && outcomes.contains(&1), "{outcomes:?}");
    }
    // Each lane's arrival is behind its own copies; the data is there for whoever waits.
    let lanes = "setp.eq.u32 p0, t, 0; @p0 mbarrier.init.shared::cta.b64 [smem+2048], 32; add.u32 r20, s, 2048; bar.sync 0;
        setp.lt.u32 p1, t, 32; @!p1 bra W; shl.b32 r0, t, 2; add.u32 r1, r0, s; cvt.u64.u32 d0, r0; add.u64 d0, d0, inp;
        cp.async.ca.shared.global [r1], [d0], 4; cp.async.mbarrier.arrive.noinc.shared::cta.b64 [r20]; bra E;
        W: mbarrier.try_wait.parity.shared::cta.b64 p0, [r20], 0; @!p0 bra W; sub.u32 r0, 63, t; shl.b32 r0, r0, 2;
        add.u32 r0, r0, s; ld.shared.u32 o, [r0]; E:";
    let two_warps = Shape { grid: 1, cluster: 1, block: 64 };
    let input: Vec<u32> = (100..132).collect();
    for options in policies() {
        let out = launch(lanes, &input, &two_warps, &options).unwrap();
        assert!(out[32..].iter().enumerate().all(|(i, o)| o[0] == 131 - i as u32), "{out:?}");
    }
    // One that nobody waits for.
    let forgotten = barrier(1)
        + "cp.async.ca.shared.global [s], [inp], 4; cp.async.mbarrier.arrive.noinc.shared::cta.b64 [r20];";
    assert_eq!(launch(&forgotten, &[1], &ONE, &late).unwrap_err().kind, FaultKind::WorkInFlight);
}

#[test]
fn stores_to_a_peer_are_asynchronous() {
    let body = |store: &str, wait: &str| {
        format!(
            "mov.u32 r0, %cluster_ctarank; setp.eq.u32 p1, r0, 0; mov.u32 r5, 1; mov.u32 r6, 7; add.u32 r20, s, 2048;
            st.shared.u32 [s], 3; mbarrier.init.shared::cta.b64 [r20], 1; fence.mbarrier_init.release.cluster;
            barrier.cluster.arrive; barrier.cluster.wait; mapa.shared::cluster.u32 r8, s, r5; mapa.shared::cluster.u32 r9, r20, r5;
            @p1 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [r9], 4; @p1 {store} [r8], r6, [r9];
            barrier.cluster.arrive; barrier.cluster.wait; @p1 bra E; {wait} ld.shared.u32 o, [s];
            L: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p3, [r20], 0; @!p3 bra L;
            E: barrier.cluster.arrive; barrier.cluster.wait;"
        )
    };
    let wait = "W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p3, [r20], 0; @!p3 bra W;";
    let pair = Shape { grid: 2, cluster: 2, block: 1 };
    let store = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32";
    let add = "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32";
    for (instruction, landed) in [(store, 7), (add, 10)] {
        for options in policies() {
            let out = launch(&body(instruction, wait), &[0], &pair, &options).unwrap();
            assert_eq!(out[1][0], landed);
            // A barrier of the cluster does not wait for it.
            let f = launch(&body(instruction, ""), &[0], &pair, &options).unwrap_err();
            assert_eq!(f.kind, FaultKind::Race, "{f}");
            let unchecked = Options { hazards: false, ..options };
            let seen = launch(&body(instruction, ""), &[0], &pair, &unchecked).unwrap()[1][0];
            match unchecked.policy {
                Policy::Eager => assert_eq!(seen, landed),
                Policy::Lazy => assert_eq!(seen, 3),
                Policy::Random => assert!(seen == 3 || seen == landed),
            }
        }
    }
}

/// A kernel that builds its own tensor map in shared memory from one it is given, publishes it with
/// `cp_fenceproxy`, acquires it and loads through it.
fn replace_kernel(changes: &str) -> String {
    format!(
        ".version 8.3\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];
        .visible .entry k(.param .align 64 .b8 map[128], .param .u64 other, .param .u64 place, .param .u64 dump)
        {{ .reg .pred p<4>; .reg .b32 r<16>; .reg .b64 d<16>; .shared .align 8 .b64 bar;
        mov.u32 r0, %tid.x; mov.u32 r1, smem; mov.u32 r2, bar; ld.param.u64 d1, [other]; ld.param.u64 d2, [place]; ld.param.u64 d3, [dump];
        setp.eq.u32 p0, r0, 0; shl.b32 r3, r0, 2; add.u32 r4, r1, r3; cvt.u64.u32 d4, r3; mov.b64 d5, map; add.u64 d5, d5, d4;
        ld.param.b32 r5, [d5]; st.shared.b32 [r4+4096], r5; bar.warp.sync -1; add.u32 r6, r1, 4096;
        @!p0 bra C; {changes}
        mbarrier.init.shared::cta.b64 [bar], 1; fence.mbarrier_init.release.cluster;
        C: bar.warp.sync -1;
        tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [d2], [r6], 128;
        fence.proxy.tensormap::generic.acquire.gpu [d2], 128; @!p0 bra E;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 256; mov.u32 r7, 2; mov.u32 r8, 4;
        cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [r1], [d2, {{r8, r7}}], [r2];
        W: mbarrier.try_wait.parity.shared::cta.b64 p1, [bar], 0; @!p1 bra W;
        cp.async.bulk.global.shared::cta.bulk_group [d3], [r1], 256; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        E: ret; }}"
    )
}

fn replaced(changes: &str, options: &Options) -> Result<Vec<f32>, Fault> {
    let module = Module::parse(&replace_kernel(changes)).unwrap_or_else(|e| panic!("{e}"));
    let mut machine = Machine::new();
    let values = |first: u32| (first..first + 64).flat_map(|i| (i as f32).to_le_bytes()).collect::<Vec<u8>>();
    let (first, other) =
        (machine.memory.allocate_with(&values(0)), machine.memory.allocate_with(&values(1000)));
    let (place, dump) = (machine.memory.allocate(128), machine.memory.allocate(256));
    let spec = TensorMapSpec {
        address: first,
        element: Element::F32,
        dims: vec![8, 8],
        strides: vec![32],
        box_dims: vec![8, 8],
        swizzle: Swizzle::None,
    };
    let map = machine.memory.tensor_map(&spec)?;
    let launch = Launch {
        entry: "k".into(),
        grid: [1; 3],
        cluster: None,
        block: [32, 1, 1],
        shared_bytes: 8192,
        params: vec![map.into(), Param::U64(other), Param::U64(place), Param::U64(dump)],
    };
    machine.run(&module, &launch, options)?;
    let bytes = machine.memory.read(dump, 256)?;
    Ok(bytes.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

#[test]
fn a_kernel_changes_its_tensor_map() {
    let set = |field: &str, ty: &str, operands: &str| {
        format!("tensormap.replace.tile.{field}.shared::cta.b1024.{ty} [r6], {operands}; ")
    };
    for options in policies() {
        let box_at = |base: u32, columns: u32, rows: u32, stride: u32, fill: f32| -> Vec<f32> {
            let inside = |r: u32, c: u32| r < rows && c < columns;
            let value = |r: u32, c: u32| if inside(r, c) { (base + r * stride + c) as f32 } else { fill };
            (0..64).map(|i| value(2 + i / 8, 4 + i % 8)).collect()
        };
        assert_eq!(replaced("", &options).unwrap(), box_at(0, 8, 8, 8, 0.0));
        let changes = set("global_address", "b64", "d1") + &set("global_dim", "b32", "1, 5");
        assert_eq!(replaced(&changes, &options).unwrap(), box_at(1000, 8, 5, 8, 0.0));
        // Rows of 16 and four of them.
        let changes = set("global_stride", "b64", "0, 64")
            + &set("global_dim", "b32", "0, 16")
            + &set("global_dim", "b32", "1, 4");
        assert_eq!(replaced(&changes, &options).unwrap(), box_at(0, 16, 4, 16, 0.0));
        // NaN outside of the tensor.
        let got = replaced(&set("fill_mode", "b32", "1"), &options).unwrap();
        for (g, want) in got.iter().zip(box_at(0, 8, 8, 8, f32::NAN)) {
            assert!(*g == want || (g.is_nan() && want.is_nan()), "{g} is not {want}");
        }
    }
    let no = |changes: String| replaced(&changes, &Options::default()).unwrap_err().kind;
    assert_eq!(no(set("elemtype", "b32", "16")), FaultKind::BadOperand);
    assert_eq!(no(set("box_dim", "b32", "0, 0")), FaultKind::TensorMap);
    // A box that no shared memory holds, and a tensor larger than its buffer.
    assert_eq!(
        no(set("box_dim", "b32", "0, 256") + &set("box_dim", "b32", "1, 256")),
        FaultKind::OutOfBounds
    );
    assert_eq!(no(set("global_dim", "b32", "1, 9")), FaultKind::OutOfBounds);
}

#[test]
fn asynchronous_copies_of_threads() {
    let input: Vec<u32> = (0..64).map(|i| i + 10).collect();
    // Two groups: the first is complete when one may still be under way.
    let body = "cp.async.ca.shared.global [s], [inp], 4; cp.async.commit_group;
        cp.async.cg.shared.global.L2::128B [s+16], [inp+16], 16; cp.async.commit_group;
        cp.async.wait_group 1; ld.shared.u32 o, [s]; cp.async.wait_all; ld.shared.u32 o2, [s+28];";
    assert_eq!(run(body, &input, &ONE)[0], [10, 17]);
    // A source that is ignored is zeros.
    let body = "setp.eq.u32 p0, t, 0; cp.async.ca.shared::cta.global [s], [inp], 8, p0; cp.async.wait_all; ld.shared.v2.u32 {o, o2}, [s];";
    assert_eq!(run(body, &input, &ONE)[0], [0, 0]);
    // An mbarrier that counts the copies, with and without an arrival of their own.
    let body = barrier(2)
        + "cp.async.ca.shared.global [s], [inp+4], 4; cp.async.mbarrier.arrive.noinc.shared::cta.b64 [r20];
        cp.async.ca.shared.global [s+4], [inp+8], 4; cp.async.mbarrier.arrive.shared::cta.b64 [r20];
        mbarrier.arrive.shared::cta.b64 d0, [r20];
        L: mbarrier.try_wait.parity.shared::cta.b64 p0, [r20], 0; @!p0 bra L; ld.shared.v2.u32 {o, o2}, [s]; cp.async.wait_all;";
    assert_eq!(run(&body, &input, &ONE)[0], [11, 12]);
}

/// `ldmatrix` and `stmatrix` of one, two and four matrices, transposed and not, against element by element.
#[test]
fn matrices_of_every_count() {
    for count in [1usize, 2, 4] {
        for trans in [false, true] {
            let x = format!("x{count}");
            let suffix = if trans { ".trans" } else { "" };
            for i in 0..count {
                // Row r of matrix m is 16 bytes at 16 (8 m + r); element (r, c) of it is 64 m + 8 r + c.
                let regs: Vec<String> = (0..count).map(|i| format!("r{}", 30 + i)).collect();
                let fill = "shl.b32 r0, t, 4; add.u32 r0, r0, s; shl.b32 r1, t, 3; mad.lo.u32 r1, r1, 0x10001, 0x10000;
                    add.u32 r2, r1, 0x20002; add.u32 r3, r1, 0x40004; add.u32 r4, r1, 0x60006; st.shared.v4.b32 [r0], {r1, r2, r3, r4}; bar.warp.sync -1;";
                let load = format!(
                    "{fill} ldmatrix.sync.aligned.m8n8.{x}{suffix}.shared.b16 {{{}}}, [r0]; mov.u32 o, r{};",
                    regs.join(", "),
                    30 + i
                );
                for (lane, o) in run(&load, &[0], &WARP).iter().enumerate() {
                    let at = |r: usize, c: usize| (64 * i + if trans { 8 * c + r } else { 8 * r + c }) as u32;
                    let (r, c) = (lane / 4, lane % 4 * 2);
                    assert_eq!(o[0], at(r, c) | at(r, c + 1) << 16, "ldmatrix.{x}{suffix} {i} lane {lane}");
                }
                // The same fragments go out and are read back as rows.
                let values: String = (0..count)
                    .map(|m| format!("mad.lo.u32 r{}, t, 0x20002, {};", 30 + m, 0x10000 + 64 * m * 0x10001))
                    .collect();
                let store = format!(
                    "{fill} {values} stmatrix.sync.aligned.m8n8.{x}{suffix}.shared.b16 [r0], {{{}}}; bar.warp.sync -1;
                    and.b32 r5, t, 7; shl.b32 r5, r5, 4; add.u32 r5, r5, s; ld.shared.v2.b32 {{o, o2}}, [r5+{}];",
                    regs.join(", "),
                    128 * i
                );
                for (lane, o) in run(&store, &[0], &WARP).iter().enumerate() {
                    let row = lane % 8;
                    let at = |c: usize| (64 * i + if trans { 8 * c + row } else { 8 * row + c }) as u32;
                    let want = [at(0) | at(1) << 16, at(2) | at(3) << 16];
                    assert_eq!(*o, want, "stmatrix.{x}{suffix} {i} row {row}");
                }
            }
        }
    }
}

/// Matrices of bytes, and of elements of six and four bits that are widened to bytes; element by element.
#[test]
fn matrices_of_bytes_and_less() {
    let bytes: Vec<u8> = (0..512u32).map(|i| (i * 167 + i / 7) as u8).collect();
    let input: Vec<u32> = bytes.chunks(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    // Every lane lays out a row of 16 bytes.
    let fill =
        "shl.b32 r0, t, 4; cvt.u64.u32 d0, r0; add.u64 d0, d0, inp; ld.global.v4.b32 {r1, r2, r3, r4}, [d0];
        add.u32 r0, r0, s; st.shared.v4.b32 [r0], {r1, r2, r3, r4}; bar.warp.sync -1;";
    let element = |row: usize, column: usize, bits: usize| -> u32 {
        let packed = u128::from_le_bytes(std::array::from_fn(|i| bytes[row * 16 + i]));
        (packed >> (column * bits)) as u32 & ((1 << bits) - 1)
    };
    let word = |place: &dyn Fn(usize) -> (usize, usize), bits: usize| -> u32 {
        (0..4).map(|i| (i, place(i))).fold(0, |w, (i, (row, c))| w | element(row, c, bits) << (8 * i))
    };
    for (format, bits) in [("b8", 8), ("b8x16.b6x16_p32", 6), ("b8x16.b4x16_p64", 4)] {
        for count in [1usize, 2] {
            for (matrix, register) in (0..count).flat_map(|m| [(m, 0), (m, 1)]) {
                let names: Vec<String> = (0..2 * count).map(|i| format!("r{}", 30 + i)).collect();
                let load = format!(
                    "{fill} ldmatrix.sync.aligned.m16n16.x{count}.trans.shared.{format} {{{}}}, [r0]; mov.u32 o, r{};",
                    names.join(", "),
                    30 + 2 * matrix + register
                );
                for (lane, o) in run(&load, &input, &WARP).iter().enumerate() {
                    let place = |i: usize| (16 * matrix + 4 * (lane % 4) + i, lane / 4 + 8 * register);
                    assert_eq!(o[0], word(&place, bits), "{format} x{count} {matrix} {register} lane {lane}");
                }
            }
        }
        for (count, matrix) in [(1, 0), (2, 1), (4, 0), (4, 3)].into_iter().filter(|_| bits < 8) {
            let names: Vec<String> = (0..count).map(|i| format!("r{}", 30 + i)).collect();
            let load = format!(
                "{fill} ldmatrix.sync.aligned.m8n16.x{count}.shared.{format} {{{}}}, [r0]; mov.u32 o, r{};",
                names.join(", "),
                30 + matrix
            );
            for (lane, o) in run(&load, &input, &WARP).iter().enumerate() {
                let place = |i: usize| (8 * matrix + lane / 4, 4 * (lane % 4) + i);
                assert_eq!(o[0], word(&place, bits), "{format} x{count} {matrix} lane {lane}");
            }
        }
    }
    // Out again: byte i of lane 4g + m goes to row 2m + i % 2, byte g + 8 (i / 2).
    let store = format!(
        "{fill} mov.u32 r5, r1; add.u32 r6, s, 1024; and.b32 r7, t, 7; shl.b32 r7, r7, 4; add.u32 r6, r6, r7;
        stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [r6], {{r5}}; bar.warp.sync -1; ld.shared.v2.b32 {{o, o2}}, [r6];"
    );
    for (lane, o) in run(&store, &input, &WARP).iter().enumerate() {
        let row = lane % 8;
        let stored = |column: usize| bytes[(4 * (column % 8) + row / 2) * 16 + 2 * (column / 8) + row % 2];
        let want = [0, 4].map(|c| u32::from_le_bytes(std::array::from_fn(|i| stored(c + i))));
        assert_eq!(*o, want, "row {row}");
    }
}

#[test]
fn barriers_of_the_cta_and_what_changes_nothing() {
    // Without `.aligned`, the two halves of a warp may come from different places.
    let body = "setp.lt.u32 p0, t, 16; @p0 bra A; barrier.sync 3, 64; bra B; A: barrier.sync 3, 64; B: mov.u32 o, 1;";
    assert!(run(body, &[0], &Shape { block: 64, ..WARP }).iter().all(|o| o[0] == 1));
    let body = "setp.eq.u32 p0, t, 40; bar.red.or.pred p1, 2, 64, p0; bar.red.and.pred p2, 2, 64, !p0; selp.u32 o, 1, 0, p1; selp.u32 o2, 1, 0, p2;";
    assert!(run(body, &[0], &Shape { block: 64, ..WARP }).iter().all(|o| *o == [1, 0]));
    let body = "setmaxnreg.inc.sync.aligned.u32 232; griddepcontrol.wait; griddepcontrol.launch_dependents; nanosleep.u32 20;
        membar.cta; membar.gl; membar.sys; fence.sc.cluster; fence.acq_rel.sys; fence.acquire.sync_restrict::shared::cluster.cluster; fence.proxy.alias;
        fence.proxy.async; fence.proxy.async.global; brkpt; pmevent 1; createpolicy.fractional.L2::evict_last.b64 d0, 0.5;
        ld.global.L2::cache_hint.u32 o, [inp], d0; prefetch.global.L1 [inp]; prefetchu.L1 [inp]; applypriority.global.L2::evict_normal [inp], 128;";
    assert!(run(body, &[77; 64], &WARP).iter().all(|o| o[0] == 77));
}
