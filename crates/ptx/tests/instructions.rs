//! Every instruction family assembles, and what a target lacks is refused with the line that asked for it.

use oxigemm_ptx::ldmatrix::Layout;
use oxigemm_ptx::memory::AtomicOp;
use oxigemm_ptx::tma::{Eviction, LoadOptions, MapField, StoreReduction, TensorMap};
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::wgmma::{Descriptor, Major, MatrixA, MmaType, Swizzle};
use oxigemm_ptx::{Bf16x2, BuildErrorKind, Fp8, Kernel, MBarrier, Module, PtxVersion, Scope, Target, U32};
use std::io::Write;
use std::process::Command;

/// Assembles a module with `ptxas`; its absence fails the test unless that was asked for.
fn assemble(module: &Module) {
    let ptxas = std::env::var("OXIGEMM_PTXAS").unwrap_or_else(|_| "ptxas".into());
    let mut file = tempfile::NamedTempFile::with_suffix(".ptx").expect("a temporary file");
    file.write_all(module.text.as_bytes()).expect("write PTX");
    let run = Command::new(&ptxas)
        .args(["-arch", module.target.name(), "-o", "/dev/null"])
        .arg(file.path())
        .output();
    match run {
        Ok(out) => assert!(
            out.status.success(),
            "{}{}\n{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr),
            module.text
        ),
        Err(_) if std::env::var_os("OXIGEMM_ALLOW_NO_PTXAS").is_some() => {}
        Err(error) => panic!(
            "cannot run `{ptxas}` ({error}): set OXIGEMM_PTXAS to a ptxas (tools/ptxas.sh downloads one), \
             or OXIGEMM_ALLOW_NO_PTXAS=1 to do without"
        ),
    }
}

fn kernel(name: &str) -> Kernel {
    Kernel::new(name, Target::Sm90a).threads(128)
}

#[test]
fn arithmetic_and_conversions() {
    let k = &kernel("arithmetic");
    let (x, y, out) = (k.param::<u32>("x"), k.param::<u32>("y"), k.param_pointer("out"));
    let int = ((x + y * 3 - 7) / 5 % 11) ^ ((x & 0xff) | (y << 2)) ^ (x >> 3u32);
    let int = int.min(9).max(x).mad(y, x)
        + x.div_ceil(7)
        + x.mul_high(y)
        + x.permute_bytes(y, 0x5140)
        + x.count_ones();
    let wide = x.widening_mul(y) + 5u64 * (y.to_u64() % 3u64);
    let signed = k.param::<i32>("s");
    let signed = (signed - 3) / 4 + signed.min(-1);
    let p = (x.lt(y) & !y.ge(5)) | (x.ne(0) ^ signed.gt(2));
    let f = x.to_f32().fma(2.0, y.to_f32()).min(3.0).max(-1.0).abs().negate();
    let f = f.reciprocal_approx() + f.exp2_approx() * f.divide(3.0) - 1.5;
    let f = f.max_nan(0.25);
    let packed = k.pack_bf16(f, f * 2.0);
    let [low, high] = packed.to_f32();
    let pair = k.pack_f16(low, high).bitcast::<u32>();
    let [first, _] = packed.halves();
    out.store(p.select::<u32>(int, wide.to_u32()));
    out.at(4u64).store(signed);
    out.at(8u64).store_vec([low, high]);
    let codes = k.join_halves(k.pack_fp8(Fp8::E4m3, low, high), k.pack_fp8(Fp8::E5m2, high, low));
    out.at(16u64).store(pair.permute_bytes(codes, x));
    out.at(20u64).store(first);
    out.at(22u64).store(k.pack_fp8(Fp8::E4m3, f, low));
    out.at(24u64).store(k.pack_fp8(Fp8::E5m2, f, low));
    let codes = k.pack_fp8(Fp8::E4m3, f.sqrt().reciprocal(), low);
    let joined = k.join_halves(codes, codes).max_halves(k.unpack_fp8(Fp8::E4m3, codes).bitcast());
    let [a, b] = out.at(40u64).load_readonly_vec_if::<u32, 2>(p, 0, None);
    out.at(28u64).store(joined + a + b);
    out.at(32u64).store_byte(out.at(33u64).load_readonly_byte_if(p));
    out.at(26u64).store(f.to_bf16());
    out.at(28u64).store(first.to_f32().to_tf32());
    out.at(32u64).store(f.to_i32_truncating());
    out.at(36u64).store(f.to_f16());
    out.at(40u64).store(k.join(x, y));
    out.at(48u64).store(f.lt(1.0).select::<f32>(f, 0.0));
    assemble(&k.finish().expect("valid"));
}

#[test]
fn memory_atomics_and_copies() {
    let k = &kernel("memory");
    let (g, n) = (k.param_pointer("g"), k.param::<u32>("n"));
    let s = k.dynamic_shared();
    let far = s.at(64).in_block(n % 2);
    let [a, b, c, d] = g.load_readonly_vec::<f32, 4>();
    g.prefetch();
    s.store_vec([a, b, c, d]);
    far.at(16).store(far.load::<u32>() + 1);
    let counted_at = MBarrier(s.at(256)).in_block(n % 2);
    far.at(32).store_async(n, counted_at);
    far.at(48).store_vec_async([a, b], counted_at);
    g.store_vec(far.load_vec::<u32, 2>());
    g.store(g.load_if(n.gt(3), 7u32) + g.load_readonly_if::<u32>(n.gt(4), 0));
    g.store_release(g.load_acquire::<u32>(Scope::Gpu), Scope::Cluster);
    g.store_relaxed(g.load_relaxed::<u32>(Scope::Gpu), Scope::Sys);
    let old =
        g.atomic::<u32>(AtomicOp::Add, 1, Scope::Gpu) + s.atomic::<u32>(AtomicOp::Exchange, n, Scope::Cta);
    g.reduce::<f32>(AtomicOp::Add, 1.0, Scope::Gpu);
    g.reduce::<u32>(AtomicOp::Max, old, Scope::Sys);
    s.at(128).copy_async(g, 16, n.gt(0));
    s.at(144).copy_vector_async(g, n.gt(0));
    k.copies_commit();
    k.copies_wait_but(1);
    k.copies_wait();
    let kept = k.cache_policy(Eviction::Last);
    let two = g.load_readonly_vec_if::<u32, 2>(n.gt(0), 0, Some(k.cache_policy(Eviction::First)));
    g.store_by(two[0], kept);
    g.store_vec_by(two, kept);
    let pairs = s.load_matrices::<u32, 4>(Layout::Transposed);
    s.store_matrices(Layout::Rows, pairs);
    s.store_matrices(Layout::Transposed, [pairs[0], pairs[1]]);
    s.store_matrices::<Bf16x2, 1>(Layout::Rows, [k.pack_bf16(a, b)]);
    let sums = k.mma_bf16(pairs, [pairs[0], pairs[1]], [a, b, c, d]);
    g.store_vec(sums);
    assemble(&k.finish().expect("valid"));
}

#[test]
fn barriers_copies_by_the_engine_and_products() {
    let k = &kernel("hopper");
    let (map, g, n) = (k.param_tensor_map("map"), k.param_pointer("g"), k.param::<u32>("n"));
    let s = k.dynamic_shared();
    let (full, empty) = (MBarrier(s.at(65536)), MBarrier(s.at(65544)));
    full.init(1);
    empty.init(n);
    k.fence_barrier_init();
    map.prefetch();
    k.cluster_arrive_relaxed();
    k.cluster_wait();
    k.cluster_sync();
    k.sync_threads();
    k.registers_up(160);
    k.if_(k.elect(), || {
        full.expect(16);
        full.arrive_expecting(4096);
        let policy = k.cache_policy(Eviction::First);
        let both =
            LoadOptions { multicast: Some(k.constant(3)), cache: Some(policy), ..LoadOptions::default() };
        map.load(&[n, n], s, full, both);
        map.load(&[n, n, n], s, full, LoadOptions::default());
        s.bulk_load(g, 256, full);
        map.prefetch_tile(&[n, n]);
        map.store(&[n, n], s);
        map.store_reducing(StoreReduction::Add, &[n, n], s);
        s.bulk_store(g, 256);
        k.bulk_commit();
        k.bulk_wait_read(1);
        k.bulk_wait(0);
    });
    full.wait(0);
    full.wait_for_cluster(0);
    k.if_(empty.test_wait(1), || empty.arrive());
    empty.in_block(1).arrive();
    empty.in_block(1).arrive_release();
    full.arrive_after_copies();
    let a = Descriptor::k_major(s, Swizzle::B128);
    let b = Descriptor::new(s.at(16384), Swizzle::B64, 4096, 512);
    let sums = k.fragment::<f32>(32);
    let words: [U32<'_>; 4] = [n, n, n, n];
    let k_major = (Major::K, Major::K);
    let yes = k.constant(true);
    k.wgmma_fence();
    k.wgmma(MmaType::Fp8(Fp8::E4m3, Fp8::E5m2), &sums, MatrixA::Shared(a), b, k_major, k.constant(false));
    k.wgmma(MmaType::Bf16, &sums, MatrixA::Shared(a.advance(32)), b, (Major::MN, Major::MN), yes);
    k.wgmma(MmaType::F16, &sums, MatrixA::Registers(&words), b, (Major::K, Major::MN), yes);
    k.wgmma(MmaType::Tf32, &sums, MatrixA::Registers(&words), b, k_major, yes);
    k.wgmma_commit();
    k.wgmma_wait(0);
    g.store(sums[0].live());
    empty.invalidate();
    k.barrier_sync(1, 128);
    k.barrier_arrive(2, 128);
    k.fence_async_shared();
    k.fence_async();
    k.fence(Scope::Cluster);
    k.grid_dependency_wait();
    k.sleep(400);
    k.launch_dependents();
    assemble(&k.finish().expect("valid"));
}

#[test]
fn tensor_maps_changed_by_the_kernel() {
    let k = &kernel("maps");
    let (g, n) = (k.param_pointer("g"), k.param::<u64>("n"));
    let s = k.dynamic_shared();
    s.replace_map_field(MapField::GlobalAddress, n);
    s.replace_map_field(MapField::Dim(1), n);
    s.replace_map_field(MapField::Stride(0), n);
    k.sync_warp();
    s.publish_map(g);
    k.fence_tensor_maps_release();
    TensorMap::in_global(g).acquire();
    let module = k.finish().expect("valid");
    assert_eq!(module.version, PtxVersion(8, 5), "strides of tensor maps are in bytes from PTX 8.5 on");
    assemble(&module);
}

#[test]
fn what_a_warp_does_together_and_who_a_thread_is() {
    let k = &kernel("warp");
    let out = k.param_pointer("out");
    let (lane, warp) = (k.lane(), k.warp_index());
    let x = k.shuffle(Shuffle::Xor, lane, 1) + k.shuffle(Shuffle::Up, warp, 1);
    let x = x + k.shuffle(Shuffle::Down, lane, 2) + k.ballot(lane.lt(3)) + k.warp_max(x) + k.warp_sum(x);
    k.if_else(k.any(x.eq(3)), || out.store(x), || k.trap());
    let place = k.block_index(1) + k.grid_blocks(0) + k.cluster_index() + k.grid_clusters();
    let place = place + k.cluster_rank() + k.cluster_blocks() + k.clock() + k.thread_index();
    let place = place + (k.global_timer() >> 32).to_u32();
    k.if_(k.all(place.gt(5)), || k.exit());
    out.store(place);
    assemble(&k.finish().expect("valid"));
}

#[test]
fn control_flow_assembles_and_loops_nest() {
    let k = &kernel("control");
    let (n, out) = (k.param::<u32>("n"), k.param_pointer("out"));
    let sum = k.var(0u32);
    k.for_(0, n, 1, |i| {
        k.for_(i, n, 2, |j| sum.set(sum.get() + j));
        k.if_((i % 2).eq(0), || sum.set(sum.get() * 3));
    });
    k.while_(|| sum.get().gt(100), || sum.set(sum.get() / 2));
    k.do_while(|| {
        sum.set(sum.get() + 1);
        sum.get().lt(10)
    });
    k.guard(n.gt(1), || out.store(sum.live()));
    sum.set_if(n.gt(2), 9);
    out.store(sum.get());
    assemble(&k.finish().expect("valid"));
}

#[test]
fn a_missing_instruction_is_an_error_with_its_line() {
    let k = Kernel::new("ampere", Target::Sm80);
    let line = line!() + 1;
    k.wgmma_fence();
    let error = k.finish().expect_err("Ampere has no wgmma");
    assert_eq!(error.at.line(), line);
    assert!(error.at.file().ends_with("instructions.rs"));
    assert!(matches!(error.kind, BuildErrorKind::MissingOnTarget { target: Target::Sm80, .. }), "{error}");
    // Architecture-specific instructions of Hopper do not exist on Blackwell either.
    let k = Kernel::new("blackwell", Target::Sm100a);
    k.registers_up(160);
    k.wgmma_commit();
    let error = k.finish().expect_err("Blackwell has no wgmma");
    assert!(error.to_string().contains("needs sm_90a"), "{error}");
}

#[test]
fn a_version_limit_is_kept() {
    let k = Kernel::new("old", Target::Sm90a).limit_version(PtxVersion(8, 0));
    k.wgmma_fence();
    assert_eq!(k.finish().expect("8.0 has wgmma").version, PtxVersion(8, 0));
    let k = Kernel::new("new", Target::Sm90a).limit_version(PtxVersion(8, 0));
    k.fence_tensor_maps_release();
    let error = k.finish().expect_err("8.0 lacks it");
    assert!(matches!(error.kind, BuildErrorKind::VersionLimit { .. }), "{error}");
}

#[test]
fn illegal_operands_are_errors() {
    type Mistake = (&'static str, fn(&Kernel));
    let mistakes: [Mistake; 8] = [
        ("columns", |k| {
            let d = Descriptor::k_major(k.dynamic_shared(), Swizzle::B128);
            let types = MmaType::Fp8(Fp8::E4m3, Fp8::E4m3);
            let sums = k.fragment::<f32>(2);
            k.wgmma(types, &sums, MatrixA::Shared(d), d, (Major::K, Major::K), k.constant(true));
        }),
        ("MN-major", |k| {
            let d = Descriptor::k_major(k.dynamic_shared(), Swizzle::B128);
            let types = MmaType::Fp8(Fp8::E4m3, Fp8::E4m3);
            let sums = k.fragment::<f32>(4);
            k.wgmma(types, &sums, MatrixA::Shared(d), d, (Major::MN, Major::K), k.constant(true));
        }),
        ("setmaxnreg", |k| k.registers_up(100)),
        ("named barriers are 0 to 15", |k| k.barrier_sync(16, 128)),
        ("more than 1000000", |k| k.sleep(1_000_001)),
        ("whole warps", |k| k.barrier_sync(1, 100)),
        ("cannot exchange", |k| k.param_pointer("p").reduce::<u32>(AtomicOp::Exchange, 1, Scope::Gpu)),
        ("guard inside a guard", |k| {
            let p = k.lane().eq(0);
            k.guard(p, || k.guard(p, || k.sync_warp()));
        }),
    ];
    for (part, mistake) in mistakes {
        let k = kernel("mistake");
        mistake(&k);
        let error = k.finish().expect_err(part);
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn lines_name_the_rust_source_and_nothing_of_the_machine() {
    let k = &kernel("lines");
    let line = line!() + 1;
    k.sync_threads();
    let module = k.finish().expect("valid");
    assert!(module.text.contains(&format!(".loc 1 {line} ")), "{}", module.text);
    let file = module.text.lines().find(|l| l.starts_with(".file")).expect("a file");
    assert!(file.contains("instructions.rs") && !file.contains("\"/"), "{file}");
    assert!(!module.without_lines().contains(".loc"));
}

#[test]
fn constants_fold_and_cheap_forms_are_found() {
    let k = &kernel("fold");
    let x = k.param::<u32>("x");
    assert_eq!((k.constant(6u32) * 128 + 1).as_constant(), Some(769));
    let zero = k.constant(0u32);
    assert_eq!((x * zero).as_constant(), Some(0));
    assert_eq!(k.constant(3u32).lt(4).as_constant(), Some(true));
    assert_eq!((k.constant(true) & k.constant(false)).as_constant(), Some(false));
    let one = k.constant(1u32);
    let _ = (x * 8, x / 16, x % 32, x + zero, x * one);
    let text = k.finish().expect("valid").text;
    assert!(!text.contains("mul") && !text.contains("div") && !text.contains("rem"), "{text}");
    assert!(text.contains("shl.b32") && text.contains("shr.u32") && text.contains("and.b32"), "{text}");
}

/// All kinds, shapes of copies and pairs of CTAs, for both Blackwell targets.
#[test]
fn tensor_memory_and_its_products() {
    use oxigemm_ptx::tcgen05::*;
    // A kernel works with single CTAs or with pairs, not with both.
    for (target, group) in [
        (Target::Sm100a, CtaGroup::One),
        (Target::Sm100a, CtaGroup::Two),
        (Target::Sm103a, CtaGroup::One),
        (Target::Sm103a, CtaGroup::Two),
    ] {
        let k = &Kernel::new("tensor_memory", target).threads(128).cluster([2, 1, 1]);
        let (shared, maps) = (k.dynamic_shared(), k.param_tensor_map("a"));
        let (place, done) = (shared.at(65536), MBarrier(shared.at(65544)));
        let descriptor = |at: u32| Descriptor::k_major(shared.at(at), Swizzle::B128);
        k.tensor_memory_alloc(group, place, 256);
        k.tensor_memory_relinquish(group);
        k.sync_threads();
        let d = TensorMemory::at(place.load());
        let (scales_a, scales_b) = (d.column(128), d.column(132));
        let rows = 128 * group.ctas();
        let (a, b) = (descriptor(0), descriptor(16384));
        k.if_(k.thread_index().eq(0), || {
            let pair = group == CtaGroup::Two;
            maps.load(
                &[k.constant(0), k.constant(0)],
                shared,
                done,
                LoadOptions { pair, ..LoadOptions::default() },
            );
            scales_a.copy_from(group, CopyShape::Scales, descriptor(32768));
            scales_b.copy_from(group, CopyShape::Lanes128x128b, descriptor(33280));
            d.copy_from(group, CopyShape::Lanes128x256b, descriptor(33280));
            let no = k.constant(false);
            for kind in [Kind::F16, Kind::Bf16, Kind::Tf32, Kind::F8f6f4(Element::E4m3, Element::E2m1)] {
                let i = Instruction::new(kind, OutputType::F32, rows, 128);
                k.tcgen05_mma(group, &i, d, MatrixA::Shared(a), b, no);
                k.tcgen05_mma(group, &i, d, MatrixA::Tensor(d.column(64)), b, k.constant(true));
            }
            let scales = Scales { a: scales_a, b: scales_b };
            for kind in [
                Kind::Mxf8f6f4(Element::E5m2, Element::E2m3),
                Kind::Mxf8f6f4(Element::E3m2, Element::E4m3),
                Kind::Mxf4(BlockScale::Ue8m0Of32),
                Kind::Mxf4(BlockScale::Ue4m3Of16),
            ] {
                let first = if kind.scales() < 4 { 2 } else { 0 };
                let i = Instruction::new(kind, OutputType::F32, rows, 128).scale_bytes(first, first);
                k.tcgen05_mma_scaled(group, &i, d, MatrixA::Shared(a), b, scales, no);
            }
            k.tcgen05_commit(group, done);
            k.tcgen05_commit_multicast(group, done, k.constant(3));
        });
        done.wait(0);
        k.tcgen05_fence_after();
        let words = d.lane(k.thread_index() / 32 * 32).load_rows(16);
        let fragment = d.lane(k.thread_index() / 32 * 32 + 16).load_fragment(64);
        k.tensor_memory_wait_loads();
        d.column(16).store_rows(&fragment);
        d.lane(k.thread_index() / 32 * 32).store_rows(&words);
        k.tensor_memory_wait_stores();
        k.tcgen05_fence_before();
        k.sync_threads();
        k.tensor_memory_dealloc(group, d, 256);
        assemble(&k.finish().expect("valid"));
    }
}

/// Descriptors by hand from the manual's tables.
#[test]
fn instruction_descriptors_have_the_manuals_fields() {
    use oxigemm_ptx::tcgen05::*;
    let bf16 = Instruction::new(Kind::Bf16, OutputType::F32, 128, 256);
    assert_eq!(bf16.encode(), 1 << 4 | 1 << 7 | 1 << 10 | 32 << 17 | 8 << 24);
    let transposed = bf16.majors(Major::MN, Major::K);
    assert_eq!(transposed.encode(), bf16.encode() | 1 << 15);
    let mxfp8 = Instruction::new(Kind::Mxf8f6f4(Element::E4m3, Element::E5m2), OutputType::F32, 256, 64);
    assert_eq!(mxfp8.scale_bytes(3, 1).encode(), 1 << 4 | 1 << 10 | 8 << 17 | 1 << 23 | 2 << 27 | 3 << 29);
    let nvfp4 = Instruction::new(Kind::Mxf4(BlockScale::Ue4m3Of16), OutputType::F32, 128, 128);
    assert_eq!(nvfp4.encode(), 1 << 7 | 1 << 10 | 16 << 17 | 1 << 27);
}

#[test]
fn impossible_products_of_tensor_memory_are_refused() {
    use oxigemm_ptx::tcgen05::*;
    let error = |group, instruction: Instruction| {
        let k = &Kernel::new("wrong", Target::Sm100a);
        let b = Descriptor::k_major(k.dynamic_shared(), Swizzle::B128);
        let d = TensorMemory::at(k.param("d"));
        k.tcgen05_mma(group, &instruction, d, MatrixA::Shared(b), b, k.constant(false));
        k.finish().expect_err("wrong").to_string()
    };
    let new = |kind, output, m, n| Instruction::new(kind, output, m, n);
    let f32 = OutputType::F32;
    assert!(error(CtaGroup::One, new(Kind::Bf16, f32, 256, 128)).contains("[64, 128] rows, not 256"));
    assert!(error(CtaGroup::One, new(Kind::Bf16, f32, 128, 24)).contains("steps of 16, not 24"));
    assert!(error(CtaGroup::Two, new(Kind::Bf16, f32, 128, 16)).contains("steps of 32, not 16"));
    assert!(error(CtaGroup::One, new(Kind::Bf16, OutputType::F16, 128, 16)).contains("no FP16 accumulator"));
    let scaled = new(Kind::Mxf4(BlockScale::Ue8m0Of32), f32, 128, 16);
    assert!(error(CtaGroup::One, scaled).contains("tcgen05_mma_scaled"));
    assert!(error(CtaGroup::One, new(Kind::Bf16, f32, 128, 16).scale_bytes(1, 0)).contains("not at 1 and 0"));
    let k = &Kernel::new("wrong", Target::Sm100a);
    let (b, d) = (Descriptor::k_major(k.dynamic_shared(), Swizzle::B128), TensorMemory::at(k.param("d")));
    let (i, scales) = (scaled.scale_bytes(1, 0), Scales { a: d, b: d });
    k.tcgen05_mma_scaled(CtaGroup::One, &i, d, MatrixA::Shared(b), b, scales, k.constant(false));
    assert!(k.finish().expect_err("wrong").to_string().contains("[0, 2], not at 1 and 0"));
}
