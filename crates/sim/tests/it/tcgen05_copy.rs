//! `tcgen05.cp` in every shape and swizzle, `tcgen05.shift`, and copies for a pair of CTAs.

use crate::kernel::blackwell::*;
use oxigemm_sim::*;

/// Where the source begins in shared memory.
const SOURCE: u32 = 1024;

/// A matrix descriptor, as the manual draws it.
fn descriptor(at: u32, leading: u32, stride: u32, swizzle: u64) -> String {
    let field = |bytes: u32| u64::from(bytes >> 4 & 0x3fff);
    let d = field(leading) << 16 | field(stride) << 32 | 1 << 46 | swizzle << 61;
    format!(
        "add.u32 r240, s, {at}; shr.u32 r240, r240, 4; and.b32 r240, r240, 0x3fff; cvt.u64.u32 d1, r240;
        mov.b64 d2, {d:#x}; or.b64 d1, d1, d2;"
    )
}

/// Copies `words` words of the input to shared memory at `SOURCE`, for the async proxy.
fn source(words: usize) -> String {
    format!(
        "mov.u32 r241, t; F: mul.wide.u32 d3, r241, 4; add.u64 d3, d3, inp; ld.global.b32 r242, [d3];
        shl.b32 r243, r241, 2; add.u32 r243, r243, s; st.shared.b32 [r243+{SOURCE}], r242;
        add.u32 r241, r241, 128; setp.lt.u32 p8, r241, {words}; @p8 bra F;
        fence.proxy.async.shared::cta; bar.sync 0;"
    )
}

/// Reads columns 0 to `columns - 1` of each thread's lane.
fn columns(columns: u32) -> String {
    (0..columns)
        .map(|c| {
            format!(
                "tcgen05.ld.sync.aligned.32x32b.x1.b32 {{r0}}, [tw+{c}]; tcgen05.wait::ld.sync.aligned; \
                 st.global.b32 [outp+{}], r0;",
                c * 4
            )
        })
        .collect()
}

/// Fills columns 0 to `columns - 1` with a word that no source has.
fn clear(columns: u32) -> String {
    let store = |c| format!("tcgen05.st.sync.aligned.32x32b.x1.b32 [tw+{c}], {{r0}};");
    let all: String = (0..columns).map(store).collect();
    format!("mov.b32 r0, 0xdead; {all}tcgen05.wait::st.sync.aligned; bar.sync 0;")
}

const UNTOUCHED: u32 = 0xdead;

/// A copy by thread 0, waited for by all.
fn copied(form: &str) -> String {
    format!(
        "@p1 tcgen05.cp.cta_group::1.{form} [ta], d1; \
         @p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [s+16];"
    ) + &wait("W", 16, 0)
}

/// The lanes that row `row` of a shape goes to, from the manual's list of warps.
fn targets(form: &str, row: usize) -> Vec<usize> {
    // The halves of 64 rows and the warps that get each.
    let halves = |warps: [[usize; 2]; 2]| warps[row / 32].iter().map(|w| w * 32 + row % 32).collect();
    match form {
        "4x256b" => vec![32 * row],
        "64x128b.warpx2::02_13" => halves([[0, 2], [1, 3]]),
        "64x128b.warpx2::01_23" => halves([[0, 1], [2, 3]]),
        "32x128b.warpx4" | "warpx4.32x128b" => (0..4).map(|w| w * 32 + row).collect(),
        _ => vec![row],
    }
}

/// Rows and 32-bit columns of a shape.
fn extent(form: &str) -> (usize, usize) {
    let (rows, bits) = form.split('.').find_map(|p| p.strip_suffix('b')?.split_once('x')).expect("a shape");
    (rows.parse().expect("rows"), bits.parse::<usize>().expect("bits") / 32)
}

const SHAPES: [&str; 7] = [
    "128x256b",
    "128x128b",
    "4x256b",
    "64x128b.warpx2::02_13",
    "64x128b.warpx2::01_23",
    "32x128b.warpx4",
    "warpx4.32x128b",
];

#[test]
fn copies_of_every_shape_follow_the_tables() {
    // Core matrices of eight rows of 16 bytes: 128 bytes apart along K, 512 from eight rows to the next.
    let (leading, stride) = (128, 512);
    let words: Vec<u32> = (0..16 * 512 / 4).map(|i| 0x0100_0000 + i).collect();
    for form in SHAPES {
        let (rows, wide) = extent(form);
        let body = allocate(32)
            + &source(words.len())
            + &clear(8)
            + &descriptor(SOURCE, leading, stride, 0)
            + &copied(form)
            + &columns(8)
            + &free(32);
        let out = run(&body, &words, FOUR_WARPS);
        let mut want = vec![[UNTOUCHED; 8]; 128];
        for (row, column) in (0..rows).flat_map(|r| (0..wide).map(move |c| (r, c))) {
            let byte =
                row / 8 * stride as usize + column / 4 * leading as usize + row % 8 * 16 + column % 4 * 4;
            targets(form, row).into_iter().for_each(|lane| want[lane][column] = words[byte / 4]);
        }
        for (lane, want) in want.iter().enumerate() {
            assert_eq!(out[lane][..8], want[..], "{form}, lane {lane}");
        }
    }
}

#[test]
fn swizzled_sources_follow_the_pattern() {
    // Mode, bytes of a row, how many rows share one permutation of its pieces, and the 16-byte pieces that move together.
    for (mode, span, alike, unit) in [(2u64, 128usize, 1, 1), (4, 64, 2, 1), (6, 32, 4, 1), (1, 128, 1, 2)] {
        let stride = 8 * span;
        let words: Vec<u32> = (0..16 * stride as u32 / 4).collect();
        // The second half of each row as well: the start moves within the row.
        for first in [0, span / 2] {
            let body = allocate(32)
                + &source(words.len())
                + &descriptor(SOURCE + first as u32, 0, stride as u32, mode)
                + &copied(if span == 32 && first > 0 { "128x128b" } else { "128x256b" })
                + &columns(if span == 32 && first > 0 { 4 } else { 8 })
                + &free(32);
            let out = run(&body, &words, FOUR_WARPS);
            for (lane, row) in out.iter().enumerate().take(128) {
                let width = if span == 32 && first > 0 { 4 } else { 8 };
                for (column, word) in row.iter().enumerate().take(width) {
                    let piece = first / 16 + column / 4;
                    let moved = piece ^ (lane / alike % (span / 16 / unit) * unit);
                    let byte = lane / 8 * stride + lane % 8 * span + moved * 16 + column % 4 * 4;
                    assert_eq!(*word, words[byte / 4], "{mode}: lane {lane}, column {column}");
                }
            }
        }
    }
}

#[test]
fn packed_elements_become_bytes() {
    // Sixteen elements of 4 bits and eight bytes of padding; of 6 bits and four.
    let words: Vec<u32> = (0..128 * 4).map(|i: u32| i.wrapping_mul(0x9e37_79b9)).collect();
    for (form, bits, shift) in
        [("128x128b.b8x16.b4x16_p64", 4u32, 2), ("32x128b.warpx4.b8x16.b6x16_p32", 6, 0)]
    {
        let rows = if bits == 4 { 128 } else { 32 };
        let body = allocate(32)
            + &source(words.len())
            + &descriptor(SOURCE, 0, 128, 0)
            + &copied(form)
            + &columns(4)
            + &free(32);
        let out = run(&body, &words, FOUR_WARPS);
        for (lane, got) in out.iter().enumerate().take(128) {
            let row = lane % rows;
            let bit = |i: u32| words[row * 4 + i as usize / 32] >> (i % 32) & 1;
            for element in 0..16u32 {
                let code = (0..bits).fold(0, |c, b| c | bit(element * bits + b) << b) << shift;
                let byte = got[element as usize / 4] >> (element % 4 * 8) & 0xff;
                assert_eq!(byte, code, "{form}: lane {lane}, element {element}");
            }
        }
    }
}

#[test]
fn a_shift_moves_rows_down_by_one() {
    let store =
        |c: u32| format!("add.u32 r1, r0, {c}; tcgen05.st.sync.aligned.32x32b.x1.b32 [tw+{c}], {{r1}};");
    let fill: String = (0..16).map(store).collect();
    let body = format!(
        "{}shl.b32 r0, t, 8; {fill} tcgen05.wait::st.sync.aligned; bar.sync 0; add.u32 r2, ta, {};
        @p1 tcgen05.shift.cta_group::1.down [r2];
        @p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [d4];{}{}{}",
        allocate(32).replace(
            "bar.sync 0;",
            "cvt.u64.u32 d4, s; cvta.shared.u64 d4, d4; add.u64 d4, d4, 16; bar.sync 0;"
        ),
        32 << 16 | 4,
        wait("W", 16, 0),
        columns(16),
        free(32)
    );
    let out = run(&body, &[0], FOUR_WARPS);
    for (lane, words) in out.iter().enumerate() {
        for (column, word) in words[..16].iter().enumerate() {
            // Lanes 32 to 63 of columns 4 to 11: the first stays.
            let moved = (33..64).contains(&lane) && (4..12).contains(&column);
            assert_eq!(*word as usize, (lane - usize::from(moved)) * 256 + column, "lane {lane}");
        }
    }
    let body =
        allocate(32) + &format!("add.u32 r2, ta, {}; @p1 tcgen05.shift.cta_group::1.down [r2];", 16 << 16);
    let (kind, message) = fault(&body, &[0], FOUR_WARPS);
    assert_eq!(kind, FaultKind::BadOperand);
    assert!(message.contains("a multiple of 32"), "{message}");
}

/// Both CTAs of a pair allocate, one copies for both, and its commit arrives in both.
fn pair_kernel(mask: u32) -> String {
    let setup = "@p0 tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [s], 32; bar.sync 0; ld.shared.b32 ta, [s];
        shl.b32 tw, w, 21; add.u32 tw, tw, ta; mov.u32 r230, %cluster_ctarank; setp.eq.u32 p3, r230, 0;
        and.pred p4, p1, p3;";
    let finish = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
        @p0 tcgen05.dealloc.cta_group::2.sync.aligned.b32 ta, 32;
        barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;";
    setup.to_owned()
        + &source(128)
        + "st.shared.b32 [s+1024], r230; fence.proxy.async.shared::cta;
        barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
            .replace("st.shared.b32 [s+1024], r230;", "@p1 st.shared.b32 [s+1024], r230;")
            .as_str()
        + &descriptor(SOURCE, 0, 128, 0)
        + &format!(
            "mov.b16 h0, {mask};
            @p4 tcgen05.cp.cta_group::2.32x128b.warpx4 [ta], d1;
            @p4 tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [s+16], h0;"
        )
        + &wait("W", 16, 0)
        + &columns(4)
        + finish
}

#[test]
fn a_pair_of_ctas_copies_and_commits_together() {
    let words: Vec<u32> = (100..228).collect();
    let out = run(&pair_kernel(3), &words, PAIR);
    for (t, got) in out.iter().enumerate() {
        let row = t % 32;
        let mut want: Vec<u32> = words[row * 4..row * 4 + 4].to_vec();
        if row == 0 {
            want[0] = (t / 128) as u32;
        }
        assert_eq!(got[..4], want[..], "thread {t}");
    }
    // The peer is not told.
    let (kind, message) = fault(&pair_kernel(1), &words, PAIR);
    assert_eq!(kind, FaultKind::Deadlock, "{message}");
}

#[test]
fn a_pair_allocates_together() {
    let alone = "mov.u32 r0, %cluster_ctarank; setp.eq.u32 p3, r0, 0; and.pred p4, p0, p3;
        @p4 tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [s], 32;";
    let (kind, message) = fault(alone, &[0], PAIR);
    assert_eq!(kind, FaultKind::Deadlock, "{message}");
    assert!(message.contains("no warp of the peer CTA allocates with it"), "{message}");
    let different = "mov.u32 r0, %cluster_ctarank; shl.b32 r0, 32, r0;
        @p0 tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [s], r0;";
    let (kind, message) = fault(different, &[0], PAIR);
    assert_eq!(kind, FaultKind::TensorMemory, "{message}");
    let mixed =
        "tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned; tcgen05.shift.cta_group::1.down [ta];";
    let error = Module::parse(&text(mixed)).expect_err("one function has one");
    assert!(error.message.contains("uses both `.cta_group::1` and `.cta_group::2`"), "{error}");
}

#[test]
fn a_descriptor_of_hopper_is_refused() {
    let body = allocate(32) + &source(128) + "mov.b64 d1, 0x0000000800000040;" + &copied("32x128b.warpx4");
    let (kind, message) = fault(&body, &[0; 128], FOUR_WARPS);
    assert_eq!(kind, FaultKind::BadOperand, "{message}");
    assert!(message.contains("bits 46 to 48"), "{message}");
}
