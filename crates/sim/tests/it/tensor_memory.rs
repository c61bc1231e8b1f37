//! Tensor memory: allocation, and `tcgen05.ld` and `tcgen05.st` in every shape.

use crate::kernel::blackwell::*;
use oxigemm_sim::*;

/// Registers `first` to `first + count - 1` as a vector.
fn registers(first: usize, count: usize) -> String {
    let list: Vec<String> = (first..first + count).map(|i| format!("r{i}")).collect();
    format!("{{{}}}", list.join(", "))
}

/// Stores registers to the results of the thread, from word `at` on.
fn results(first: usize, count: usize, at: usize) -> String {
    (0..count).map(|i| format!("st.global.b32 [outp+{}], r{};", (at + i) * 4, first + i)).collect()
}

/// Fills every lane of columns 0 to `columns - 1`: `lane * 1024 + column`.
fn fill(columns: u32) -> String {
    let mut text = "shl.b32 r200, t, 10;".to_owned();
    for c in 0..columns {
        text +=
            &format!("add.u32 r201, r200, {c}; tcgen05.st.sync.aligned.32x32b.x1.b32 [tw+{c}], {{r201}};");
    }
    text + "tcgen05.wait::st.sync.aligned;"
}

/// The shapes of the manual's figures, as the thread and register that hold a word (row and column of the fragment).
fn holder(shape: &str, row: u32, column: u32) -> (u32, u32) {
    match shape {
        "32x32b" => (row, column),
        // Rows r and r + 8 share four threads; the upper rows have the odd ones.
        "16x64b" => (row % 8 * 4 + row / 8 + column % 2 * 2, column / 2),
        "16x128b" => (row % 8 * 4 + column % 4, column / 4 * 2 + row / 8),
        "16x256b" => (row % 8 * 4 + column % 8 / 2, column / 8 * 4 + row / 8 * 2 + column % 2),
        _ => panic!("{shape}"),
    }
}

/// Registers and columns of a shape's `.x1`.
fn base(shape: &str) -> (u32, u32, u32) {
    match shape {
        "32x32b" => (32, 1, 1),
        "16x64b" => (16, 1, 2),
        "16x128b" => (16, 2, 4),
        "16x256b" => (16, 4, 8),
        _ => panic!("{shape}"),
    }
}

#[test]
fn loads_of_every_shape_follow_the_tables() {
    for shape in ["32x32b", "16x64b", "16x128b", "16x256b"] {
        let (rows, each, wide) = base(shape);
        for times in [1, 2, 4, 8, 16, 32, 64, 128] {
            let (count, columns) = ((each * times) as usize, wide * times);
            if count > 128 || !(times <= 4 || count == 128) {
                continue;
            }
            for first in if rows == 16 { vec![0, 16] } else { vec![0] } {
                let body = format!(
                    "{}{}add.u32 r202, tw, {}; tcgen05.ld.sync.aligned.{shape}.x{times}.b32 {}, [r202]; \
                     tcgen05.wait::ld.sync.aligned;{}{}",
                    allocate(256),
                    fill(columns),
                    first << 16,
                    registers(0, count),
                    results(0, count, 0),
                    free(256)
                );
                let out =
                    launch(&body, &[0], FOUR_WARPS, &Options::default()).unwrap_or_else(|f| panic!("{f}"));
                for (warp, row, column) in
                    (0..4).flat_map(|w| (0..rows).flat_map(move |r| (0..columns).map(move |c| (w, r, c))))
                {
                    let (thread, register) = holder(shape, row, column);
                    let want = (warp * 32 + first + row) * 1024 + column;
                    let got = out[(warp * 32 + thread) as usize][register as usize];
                    assert_eq!(got, want, "{shape}.x{times}: warp {warp}, row {row}, column {column}");
                }
            }
        }
    }
}

#[test]
fn stores_of_every_shape_follow_the_tables() {
    for (shape, times) in
        [("32x32b", 8), ("16x64b", 4), ("16x128b", 1), ("16x128b", 4), ("16x256b", 1), ("16x256b", 2)]
    {
        let (rows, each, wide) = base(shape);
        let (count, columns) = ((each * times) as usize, (wide * times) as usize);
        let values: String = (0..count).map(|i| format!("add.u32 r{i}, r200, {i};")).collect();
        // Read back column by column, by the lanes themselves.
        let read: String = (0..columns)
            .map(|c| {
                format!(
                    "tcgen05.ld.sync.aligned.32x32b.x1.b32 {{r201}}, [tw+{c}]; tcgen05.wait::ld.sync.aligned; \
                     st.global.b32 [outp+{}], r201;",
                    c * 4
                )
            })
            .collect();
        let body = format!(
            "{}{}shl.b32 r200, t, 10;{values} tcgen05.st.sync.aligned.{shape}.x{times}.b32 [tw], {}; \
             tcgen05.wait::st.sync.aligned;{read}{}",
            allocate(64),
            fill(columns as u32),
            registers(0, count),
            free(64)
        );
        let out = run(&body, &[0], FOUR_WARPS);
        for (warp, row, column) in
            (0..4u32).flat_map(|w| (0..rows).flat_map(move |r| (0..columns as u32).map(move |c| (w, r, c))))
        {
            let (thread, register) = holder(shape, row, column);
            let want = (warp * 32 + thread) * 1024 + register;
            let got = out[(warp * 32 + row) as usize][column as usize];
            assert_eq!(got, want, "{shape}.x{times}: warp {warp}, row {row}, column {column}");
        }
    }
}

#[test]
fn the_halves_of_a_split_shape_read_their_own_columns() {
    // Sixteen lanes; threads 0 to 15 read columns 0 to 3, the others columns 20 to 23.
    let body = format!(
        "{}{}tcgen05.ld.sync.aligned.16x32bx2.x4.b32 {}, [tw], 20; tcgen05.wait::ld.sync.aligned;{}
        add.u32 r202, tw, {}; mov.b32 r10, 7;
        tcgen05.st.sync.aligned.16x32bx2.x1.b32 [r202], 3, {{r10}}; tcgen05.wait::st.sync.aligned;
        tcgen05.ld.sync.aligned.32x32b.x4.b32 {}, [tw]; tcgen05.wait::ld.sync.aligned;{}{}",
        allocate(32),
        fill(24),
        registers(0, 4),
        results(0, 4, 0),
        16 << 16,
        registers(20, 4),
        results(20, 4, 4),
        free(32)
    );
    let out = run(&body, &[0], FOUR_WARPS);
    for (t, words) in out.iter().enumerate() {
        let lane = t / 32 * 32 + t % 16;
        for (i, word) in words[..4].iter().enumerate() {
            let column = i + if t % 32 < 16 { 0 } else { 20 };
            assert_eq!(*word as usize, lane * 1024 + column, "thread {t}, register {i}");
        }
        // The store went to lanes 16 to 31 of columns 0 and 3.
        let changed = t % 32 >= 16;
        for (c, word) in words[4..8].iter().enumerate() {
            let want = if changed && (c == 0 || c == 3) { 7 } else { t * 1024 + c };
            assert_eq!(*word as usize, want, "lane {t}, column {c}");
        }
    }
}

#[test]
fn packing_takes_the_low_halves_of_two_columns() {
    let body = format!(
        "{}{}tcgen05.ld.sync.aligned.32x32b.x2.pack::16b.b32 {}, [tw]; \
         tcgen05.ld.sync.aligned.16x64b.x1.pack::16b.b32 {{r2}}, [tw]; tcgen05.wait::ld.sync.aligned;{}
        mov.b32 r10, 0x00020001; mov.b32 r11, 0x00040003;
        tcgen05.st.sync.aligned.32x32b.x2.unpack::16b.b32 [tw], {{r10, r11}}; tcgen05.wait::st.sync.aligned;
        tcgen05.ld.sync.aligned.32x32b.x4.b32 {}, [tw]; tcgen05.wait::ld.sync.aligned;{}{}",
        allocate(32),
        fill(4),
        registers(0, 2),
        results(0, 3, 0),
        registers(20, 4),
        results(20, 4, 3),
        free(32)
    );
    let out = run(&body, &[0], FOUR_WARPS);
    for (t, words) in out.iter().enumerate() {
        let word = |lane: u32, column: u32| (lane * 1024 + column) & 0xffff;
        let pair = |lane: u32, column: u32| word(lane, column) | word(lane, column + 1) << 16;
        let t = t as u32;
        let (lane, thread) = (t / 32 * 32, t % 32);
        assert_eq!(words[..2], [pair(t, 0), pair(t, 2)], "thread {t}");
        let (row, unit) = (thread / 4 + thread % 2 * 8, thread / 2 % 2);
        assert_eq!(words[2], pair(lane + row, unit * 2), "thread {t}");
        assert_eq!(words[3..7], [1, 2, 3, 4]);
    }
}

#[test]
fn a_load_reduces_the_columns_of_each_thread() {
    let value = |i: usize, v: f32| format!("mov.b32 r{i}, {:#x};", v.to_bits());
    let body = |form: &str| {
        format!(
            "{}{}{}mov.b32 r12, 0x7fc00000; mov.b32 r13, 0x80000000;
            tcgen05.st.sync.aligned.32x32b.x4.b32 [tw], {{r10, r11, r12, r13}}; tcgen05.wait::st.sync.aligned;
            tcgen05.ld.red.sync.aligned.32x32b.x4.{form} {}, r4, [tw]; tcgen05.wait::ld.sync.aligned;{}{}",
            allocate(32),
            value(10, -3.0),
            value(11, 2.0),
            registers(0, 4),
            results(0, 5, 0),
            free(32)
        )
    };
    let total = |form: &str| {
        let out = run(&body(form), &[0], FOUR_WARPS);
        assert!(out.iter().all(|words| words == &out[0]), "{form}");
        assert_eq!(out[0][..4], [(-3f32).to_bits(), 2f32.to_bits(), 0x7fc0_0000, 0x8000_0000]);
        out[0][4]
    };
    assert_eq!(total("max.f32"), 2f32.to_bits());
    assert_eq!(total("min.f32"), (-3f32).to_bits());
    assert_eq!(total("max.abs.f32"), 3f32.to_bits());
    assert_eq!(total("min.abs.f32"), 0);
    assert!(f32::from_bits(total("max.NaN.f32")).is_nan());
    assert!(f32::from_bits(total("min.abs.NaN.f32")).is_nan());
    assert_eq!(total("max.u32"), (-3f32).to_bits());
    assert_eq!(total("max.s32"), 0x7fc0_0000);
    assert_eq!(total("min.s32"), 0x8000_0000);
    assert_eq!(total("min.u32"), 2f32.to_bits());
}

/// Texts that the assembler refuses as well.
#[test]
fn forms_that_do_not_exist_are_refused() {
    for (instruction, why) in [
        ("tcgen05.ld.sync.aligned.32x32b.x2.b32 {r0}, [ta];", "expected 2 registers, found 1"),
        ("tcgen05.ld.sync.aligned.16x128b.x1.b32 {r0}, [ta];", "expected 2 registers, found 1"),
        ("tcgen05.ld.sync.aligned.32x32b.x3.b32 {r0, r1, r2}, [ta];", "`.x3` does not exist"),
        ("tcgen05.ld.sync.aligned.32x32b.b32 {r0}, [ta];", "repetitions is missing"),
        ("tcgen05.ld.aligned.32x32b.x1.b32 {r0}, [ta];", "`.sync` is missing"),
        ("tcgen05.ld.sync.aligned.32x32b.x1.unpack::16b.b32 {r0}, [ta];", "`.unpack::16b` does not belong"),
        ("tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {r0}, [ta];", "expected 3 to 3 operands"),
        ("tcgen05.ld.red.sync.aligned.16x64b.x2.max.f32 {r0, r1}, r2, [ta];", "a reduction takes"),
        ("tcgen05.ld.red.sync.aligned.32x32b.x1.max.f32 {r0}, r2, [ta];", "a reduction takes"),
        ("tcgen05.ld.red.sync.aligned.32x32b.x2.max.abs.u32 {r0, r1}, r2, [ta];", "are of f32"),
        ("tcgen05.st.sync.aligned.32x32b.x1.pack::16b.b32 [ta], {r0};", "`.pack::16b` does not belong"),
        (
            "tcgen05.alloc.sync.aligned.shared::cta.b32 [s], 32;",
            "`.cta_group::1` or `.cta_group::2` is missing",
        ),
        ("tcgen05.alloc.cta_group::1.sync.shared::cta.b32 [s], 32;", "`.aligned` is missing"),
        ("tcgen05.cp.cta_group::1.32x128b [ta], d0;", "needs `.warpx4`"),
        ("tcgen05.cp.cta_group::1.64x128b [ta], d0;", "needs `.warpx2::02_13`"),
        ("tcgen05.cp.cta_group::1.128x128b.warpx4 [ta], d0;", "`.warpx4` does not belong"),
        ("tcgen05.cp.cta_group::1.128x128b.b8x16 [ta], d0;", "decompression is"),
        ("tcgen05.commit.cta_group::1.b64 [s];", "`.mbarrier::arrive::one` is missing"),
        ("tcgen05.commit.cta_group::1.mbarrier::arrive::one.multicast::cluster.b64 [s];", "expected 2 to 2"),
        ("tcgen05.shift.cta_group::1 [ta];", "`.down` is missing"),
        ("tcgen05.wait::mma.sync.aligned;", "does not support"),
    ] {
        let error = Module::parse(&text(instruction)).expect_err(instruction);
        assert!(error.message.contains(why), "{instruction}: {error}");
        assert!(error.at.line > 1 && error.at.column > 0);
    }
}

#[test]
fn columns_are_allocated_and_freed_in_turn() {
    // Two warps, one after the other, and a third that waits until there is room.
    let alloc = |guard: &str, at: u32, columns: u32| {
        format!("{guard} tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [s+{at}], {columns};")
    };
    let body = format!(
        "setp.eq.u32 p2, w, 1; {}bar.sync 0; ld.shared.b32 r0, [s+64]; {}bar.sync 0; {}
        @p0 tcgen05.dealloc.cta_group::1.sync.aligned.b32 r0, 256; bar.sync 0; ld.shared.b32 r1, [s+68];
        ld.shared.b32 r2, [s+72]; @p0 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
        st.global.b32 [outp], r0; st.global.b32 [outp+4], r1; st.global.b32 [outp+8], r2;
        @p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 r1, 256;
        @p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 r2, 256;",
        alloc("@p0", 64, 256),
        alloc("@p2", 68, 256),
        alloc("@p2", 72, 256),
    );
    assert_eq!(run(&body, &[0], FOUR_WARPS)[5][..3], [0, 256, 0]);
    // A destination by a generic address, without a state space.
    let body =
        "cvta.shared.u64 d1, smem; @p0 tcgen05.alloc.cta_group::1.sync.aligned.b32 [d1+64], 32; bar.sync 0;
        ld.shared.b32 r0, [s+64]; @p0 tcgen05.dealloc.cta_group::1.sync.aligned.b32 r0, 32;";
    let body = body.replace("cvta.shared.u64 d1, smem", "cvt.u64.u32 d1, s; cvta.shared.u64 d1, d1");
    run(&body, &[0], FOUR_WARPS);
}

/// Compilers put a stage of TMA over the word of the address, once all threads have read it.
#[test]
fn the_word_of_the_address_is_reused_without_a_proxy_fence() {
    let reuse = |between: &str| {
        format!(
            "{}{between} @p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [s+24], 16; add.u32 r1, s, 24;
            @p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [s], [inp], 16, [r1];{}{}bar.sync 0;",
            allocate(32),
            wait("W", 24, 0),
            free(32)
        )
    };
    run(&reuse("bar.sync 0;"), &[0; 4], FOUR_WARPS);
    let (kind, message) = fault(&reuse(""), &[0; 4], FOUR_WARPS);
    assert_eq!(kind, FaultKind::Race, "{message}");
}

/// What the allocator refuses: the rest of the kernel, the kind and a part of the message.
#[test]
fn wrong_allocations_are_faults() {
    let one = FOUR_WARPS;
    let alloc = "@p0 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [s+64]";
    let dealloc = "@p0 tcgen05.dealloc.cta_group::1.sync.aligned.b32";
    for (rest, kind, why) in [
        (format!("{alloc}, 48;"), FaultKind::BadOperand, "a power of two from 32 to 512"),
        (format!("{alloc}, 16;"), FaultKind::BadOperand, "a power of two"),
        (format!("{alloc}, 64;"), FaultKind::TensorMemory, "the next may not be larger"),
        (
            format!("@p0 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned; {alloc}, 32;"),
            FaultKind::TensorMemory,
            "given up the right",
        ),
        (format!("{dealloc} ta, 64;"), FaultKind::TensorMemory, "has 32 columns"),
        (
            format!("add.u32 r0, ta, 32; {dealloc} r0, 32;"),
            FaultKind::TensorMemory,
            "no allocation begins there",
        ),
        (format!("{dealloc} ta, 32; {dealloc} ta, 32;"), FaultKind::TensorMemory, "it was freed before"),
        (String::new(), FaultKind::TensorMemory, "exits with columns 0 to 31 of tensor memory allocated"),
        (
            "setp.lt.u32 p2, t, 16; @p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 ta, 32;".into(),
            FaultKind::Divergence,
            "predicated off",
        ),
        (format!("mov.u32 r0, t; {dealloc} r0, 32;"), FaultKind::BadOperand, "differs between the lanes"),
    ] {
        let (found, message) = fault(&(allocate(32) + &rest), &[0], one);
        assert_eq!(found, kind, "{rest}: {message}");
        assert!(message.contains(why), "{rest}: {message}");
    }
    let alone = "@p0 tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [s], 32;";
    let (kind, message) = fault(alone, &[0], one);
    assert_eq!(kind, FaultKind::BadOperand, "{message}");
    assert!(message.contains("has no peer"), "{message}");
    // All columns are taken, and nothing ever frees one.
    let body = allocate(512) + &format!("{alloc}, 512;");
    let (kind, message) = fault(&body, &[0], one);
    assert_eq!(kind, FaultKind::Deadlock, "{message}");
    assert!(
        message.contains("tcgen05.alloc of 512 columns waits, as 512 of 512 columns are allocated"),
        "{message}"
    );
}

#[test]
fn accesses_out_of_reach_are_faults() {
    let ld = |address: &str| format!("tcgen05.ld.sync.aligned.32x32b.x1.b32 {{r0}}, [{address}];");
    for (rest, why) in [
        (ld("ta"), "the address has lane 0: warp"),
        (format!("add.u32 r9, tw, {}; {}", 16 << 16, ld("r9")), "and 32 lanes begin at"),
        (ld("tw+32"), "column 32 is not allocated"),
        (ld("tw+512"), "there are 512 columns"),
        (
            format!("add.u32 r9, tw, {}; tcgen05.ld.sync.aligned.16x64b.x1.b32 {{r0}}, [r9];", 8 << 16),
            "and 16 lanes begin at",
        ),
        (format!("{} bar.sync 0; {}", free(32), ld("tw")), "columns 0 to 31 were freed"),
    ] {
        let (kind, message) =
            fault(&(allocate(32) + &rest + "tcgen05.wait::ld.sync.aligned; bar.sync 0;"), &[0], FOUR_WARPS);
        assert_eq!(kind, FaultKind::TensorMemory, "{rest}: {message}");
        assert!(message.contains(why), "{rest}: {message}");
    }
    // Nothing at all is allocated.
    let body = format!("mov.u32 tw, 0; @p0 {}", ld("tw"));
    let (kind, message) = fault(&body, &[0], FOUR_WARPS);
    assert_eq!(kind, FaultKind::TensorMemory);
    assert!(message.contains("column 0 is not allocated"), "{message}");
}

#[test]
fn words_that_nothing_wrote_are_found_when_they_are_used() {
    let body = |used: &str| {
        format!(
            "{}mov.b32 r9, 1; tcgen05.st.sync.aligned.32x32b.x1.b32 [tw], {{r9}}; tcgen05.wait::st.sync.aligned;
            tcgen05.ld.sync.aligned.32x32b.x2.b32 {{r0, r1}}, [tw]; tcgen05.wait::ld.sync.aligned;
            st.global.b32 [outp], {used};{}",
            allocate(32),
            free(32)
        )
    };
    assert_eq!(run(&body("r0"), &[0], FOUR_WARPS)[77][0], 1);
    let (kind, message) = fault(&body("r1"), &[0], FOUR_WARPS);
    assert_eq!(kind, FaultKind::Uninitialized);
    assert!(message.contains("tcgen05.ld"), "{message}");
}
