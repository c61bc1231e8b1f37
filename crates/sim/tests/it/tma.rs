//! Tensor copies of Blackwell: mbarriers in the other CTA of a pair, four rows, `im2col`, elements of 4 and 6 bits,
//! swizzles of larger pieces. Each is compared with plain loops, under ten schedules; wrong uses are faults.

use crate::common::schedules;
use oxigemm_sim::*;

/// A kernel with up to two tensor maps, a buffer for what lands in shared memory, and some words.
fn module(body: &str) -> Module {
    let text = format!(
        ".version 8.7\n.target sm_100a\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];
        .visible .entry k(.param .align 64 .b8 map[128], .param .align 64 .b8 other[128], .param .u64 dump, .param .u64 in)
        {{ .reg .pred p<4>; .reg .b16 h<8>; .reg .b32 r<32>, bar, s, me; .reg .b64 d<8>, m0, m1, dst, inp;
        mov.u32 me, %cluster_ctarank; mov.b64 m0, map; cvta.param.u64 m0, m0; mov.b64 m1, other; cvta.param.u64 m1, m1;
        ld.param.u64 dst, [dump]; ld.param.u64 inp, [in]; mov.u32 s, smem; add.u32 bar, s, 32768;
        mov.u32 r0, %tid.x; setp.ne.u32 p0, r0, 0; @p0 bra DONE;
        {body}
        DONE: ret; }}"
    );
    Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn parse_error(instruction: &str) -> String {
    let text = format!(
        ".version 8.7\n.target sm_100a\n.address_size 64\n.visible .entry k() {{ .reg .b16 h<8>; .reg .b32 r<8>; .reg .b64 d<8>;\n{instruction}\nret; }}"
    );
    Module::parse(&text).expect_err(instruction).to_string()
}

const INIT: &str = "mbarrier.init.shared::cta.b64 [bar], 1; fence.mbarrier_init.release.cluster;";

fn wait(parity: u32) -> String {
    format!("W{parity}: mbarrier.try_wait.parity.shared::cta.b64 p1, [bar], {parity}; @!p1 bra W{parity};")
}

struct Case<'a> {
    body: &'a str,
    ctas: u32,
    /// Bytes of the dump for each CTA.
    dump: usize,
    source: Vec<u8>,
    /// The maps of the source and of the dump, made from their addresses.
    maps: &'a dyn Fn(u64, u64) -> [[u8; TENSOR_MAP_BYTES]; 2],
}

impl Case<'_> {
    /// What is left in the dump.
    fn run(&self, options: &Options) -> Result<Vec<u8>, Fault> {
        let mut machine = Machine::new();
        let source = machine.memory.allocate_with(&self.source);
        let bytes = self.dump * self.ctas as usize;
        let dump = machine.memory.allocate_with(&vec![0x55; bytes]);
        let [a, b] = (self.maps)(source, dump);
        let launch = Launch {
            entry: "k".into(),
            grid: [self.ctas, 1, 1],
            cluster: Some([self.ctas, 1, 1]),
            block: [32, 1, 1],
            shared_bytes: 32768 + 64,
            params: vec![a.into(), b.into(), Param::U64(dump), Param::U64(source)],
        };
        machine.run(&module(self.body), &launch, options)?;
        Ok(machine.memory.read(dump, bytes)?.to_vec())
    }

    fn check(&self, want: &[u8]) {
        for options in schedules() {
            let got =
                self.run(&options).unwrap_or_else(|f| panic!("{:?} {}: {f}", options.policy, options.seed));
            assert_eq!(got, want, "{:?} {}", options.policy, options.seed);
        }
    }

    /// The kinds of fault that the schedules find.
    fn faults(&self) -> Vec<FaultKind> {
        let mut kinds: Vec<FaultKind> =
            schedules().iter().filter_map(|o| self.run(o).err()).map(|f| f.kind).collect();
        kinds.dedup();
        kinds
    }
}

fn spec(address: u64, element: Element, dims: &[u64], strides: &[u64], boxes: &[u32]) -> TensorMapSpec {
    TensorMapSpec {
        address,
        element,
        dims: dims.to_vec(),
        strides: strides.to_vec(),
        box_dims: boxes.to_vec(),
        swizzle: Swizzle::None,
    }
}

/// 64 rows of 64 bytes, with a box of 4 rows.
fn rows(source: u64, _: u64) -> [[u8; TENSOR_MAP_BYTES]; 2] {
    [spec(source, Element::U8, &[64, 64], &[64], &[64, 4]).encode().unwrap(); 2]
}

fn counted(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 7 + i / 64) as u8).collect()
}

// -------------------------------------------------------------------- pairs of CTAs

/// Each CTA of two pairs loads its rows; both of a pair report to the even CTA, which tells the other.
fn pair_kernel(load: &str, expect: u32) -> String {
    format!(
        "{INIT} barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
        and.b32 r1, me, 0xfffffffe; mapa.shared::cluster.u32 r2, bar, r1; and.b32 r3, me, 1; setp.eq.u32 p2, r3, 0;
        @p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {expect};
        shl.b32 r4, me, 2; mov.u32 r5, 0; mov.u16 h0, 0xf; createpolicy.fractional.L2::evict_last.b64 d7, 1.0;
        {load}
        @!p2 bra LATE; {wait0} mapa.shared::cluster.u32 r6, bar, 1;
        or.b32 r7, me, 1; mapa.shared::cluster.u32 r6, bar, r7; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r6];
        bra OUT; LATE: LW: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p1, [bar], 0; @!p1 bra LW;
        OUT: mul.wide.u32 d0, me, 256; add.u64 dst, dst, d0; fence.proxy.async.shared::cta;
        cp.async.bulk.global.shared::cta.bulk_group [dst], [s], 256; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        barrier.cluster.arrive.release; barrier.cluster.wait.acquire;",
        wait0 = wait(0)
    )
}

#[test]
fn a_load_reports_to_either_cta_of_a_pair() {
    let source = counted(64 * 64);
    let want: Vec<u8> = source[..16 * 64].to_vec();
    for load in [
        "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes [s], [m0, {r5, r4}], [r2];",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 [s], [m0, {r5, r4}], [ r2 + 0 ];",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint.cta_group::2 [ s + 0 ], [m0, {r5, r4}], [r2], d7;",
        "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [s], [m0, {r5, r4}], [r2], d7;",
    ] {
        let body = pair_kernel(load, 512);
        Case { body: &body, ctas: 4, dump: 256, source: source.clone(), maps: &rows }.check(&want);
        // Bytes of one CTA alone do not complete the phase.
        let body = pair_kernel(load, 256);
        let faults = Case { body: &body, ctas: 4, dump: 256, source: source.clone(), maps: &rows }.faults();
        assert!(!faults.is_empty());
    }
}

#[test]
fn a_multicast_load_reports_to_the_same_parity_of_every_pair() {
    let source = counted(64 * 64);
    let want: Vec<u8> = (0..4).flat_map(|_| source[12 * 64..16 * 64].to_vec()).collect();
    for load in [
        "setp.eq.u32 p3, me, 3; @p3 cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [s], [m0, {r5, r4}], [r2], h0;",
        "setp.eq.u32 p3, me, 3; @p3 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint.cta_group::2 [s], [m0, {r5, r4}], [r2], h0, d7;",
    ] {
        let body = pair_kernel(load, 512);
        Case { body: &body, ctas: 4, dump: 256, source: source.clone(), maps: &rows }.check(&want);
    }
}

#[test]
fn an_mbarrier_elsewhere_is_a_fault() {
    let source = counted(64 * 64);
    let wrong = [
        // In the peer without `.cta_group::2`.
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [s], [m0, {r5, r4}], [r2];",
        "cp.async.bulk.tensor.2d.cta_group::1.shared::cluster.global.mbarrier::complete_tx::bytes [s], [m0, {r5, r4}], [r2];",
        "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes.cta_group::2 [s], [m0, {r5, r4}], [r2];",
        // In another pair.
        "xor.b32 r2, r2, 0x02000000; cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes [s], [m0, {r5, r4}], [r2];",
    ];
    for load in wrong {
        let body = pair_kernel(load, 512);
        let case = Case { body: &body, ctas: 4, dump: 256, source: source.clone(), maps: &rows };
        assert_eq!(case.faults(), [FaultKind::BadOperand], "{load}");
    }
    // The last CTA of an odd number has no peer.
    let load = "or.b32 r2, r2, 0x01000000; cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [s], [m0, {r5, r4}], [r2], 4;";
    let body = format!("{INIT} mov.u32 r5, 0; mov.u32 r4, 0; mov.u32 r2, bar; {load}");
    let case = Case { body: &body, ctas: 3, dump: 256, source, maps: &rows };
    assert!(case.faults().iter().all(|k| matches!(k, FaultKind::BadOperand | FaultKind::OutOfBounds)));
}

// -------------------------------------------------------------------- four rows

#[test]
fn four_rows_are_gathered_and_scattered() {
    // Rows of 32 halves; columns 8 to 23 are gathered from rows 9, 0, 70 (outside) and 3 and scattered to 1, 0, 3, 40.
    let source = counted(64 * 64);
    let maps = |source: u64, dump: u64| {
        let map = |address, rows| {
            let four = spec(address, Element::U16, &[32, rows], &[64], &[16, 1]);
            TensorMapSpec { swizzle: Swizzle::B32, ..four }.encode().unwrap()
        };
        [map(source, 64), map(dump, 4)]
    };
    let body = format!(
        "{INIT} mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 128; mov.u32 r1, 9; mov.u32 r2, 70;
        cp.async.bulk.tensor.2d.tile::gather4.shared::cta.global.mbarrier::complete_tx::bytes [s], [m0, {{8, r1, 0, r2, 3}}], [bar];
        {wait0}
        cp.async.bulk.tensor.2d.tile::scatter4.global.shared::cta.bulk_group [m1, {{8, 1, 0, 3, 40}}], [s];
        cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;",
        wait0 = wait(0)
    );
    let mut want = vec![0x55; 256];
    for (from, to) in [(Some(9), 1), (Some(0), 0), (None, 3)] {
        let row = from.map_or(vec![0; 32], |r| source[r * 64 + 16..][..32].to_vec());
        want[to * 64 + 16..][..32].copy_from_slice(&row);
    }
    Case { body: &body, ctas: 1, dump: 256, source: source.clone(), maps: &maps }.check(&want);
    let negative = body.replace("{8, 1, 0, 3, 40}", "{8, 1, -1, 3, 40}");
    let case = Case { body: &negative, ctas: 1, dump: 256, source: source.clone(), maps: &maps };
    assert_eq!(case.faults(), [FaultKind::BadOperand]);
    // A box of more than one row is not one for four rows, nor are rows that were not waited for defined.
    let case = Case { body: &body, ctas: 1, dump: 256, source: source.clone(), maps: &rows };
    assert_eq!(case.faults(), [FaultKind::TensorMap]);
    let early = body.replace(&wait(0), "");
    let case = Case { body: &early, ctas: 1, dump: 256, source, maps: &maps };
    assert_eq!(case.faults(), [FaultKind::Race]);
}

// -------------------------------------------------------------------- im2col

#[test]
fn pixels_come_and_go_as_a_convolution_reads_them() {
    // Two images of 6x5 pixels with 16 channels of one byte; a filter of 3x3 without a border, its tap at (1, 2). The
    // pixels go to an image of 4x3, which has exactly the filter's positions.
    let (w, h, c) = (6usize, 5usize, 16usize);
    let source = counted(2 * w * h * c);
    let maps = |source: u64, dump: u64| {
        let map = |address: u64, w: u64, h: u64, upper: i32| {
            let tensor = spec(address, Element::U8, &[16, w, h, 2], &[16, w * 16, w * h * 16], &[]);
            let im2col = Im2col { lower: vec![0, 0], upper: vec![upper, upper], channels: 16, pixels: 12 };
            tensor.encode_with(&TensorMapDetails { im2col: Some(im2col), ..Default::default() }).unwrap()
        };
        [map(source, 6, 5, -2), map(dump, 4, 3, 0)]
    };
    // From position (2, 1) of image 0 on; the last six positions are those of image 1.
    let body = format!(
        "{INIT} mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 192; mov.u16 h0, 1; mov.u16 h1, 2;
        cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [s], [m0, {{0, 2, 1, 0}}], [bar], {{h0, h1}};
        {wait0}
        cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [m1, {{0, 2, 1, 0}}], [s];
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;",
        wait0 = wait(0)
    );
    let mut want = vec![0x55; 2 * 4 * 3 * c];
    for position in 6..18 {
        let (image, y, x) = (position / 12, position / 4 % 3, position % 4);
        let tap = ((image * h + y + 2) * w + x + 1) * c;
        want[position * c..][..c].copy_from_slice(&source[tap..][..c]);
    }
    Case { body: &body, ctas: 1, dump: 2 * 4 * 3 * c, source: source.clone(), maps: &maps }.check(&want);
    for (text, new, kind) in [
        // A corner outside of the bounding box, offsets out of range, a map for im2col in a copy of tiles.
        ("{0, 2, 1, 0}], [bar]", "{0, 4, 1, 0}], [bar]", FaultKind::BadOperand),
        ("mov.u16 h0, 1;", "mov.u16 h0, 256;", FaultKind::BadOperand),
        ("im2col_no_offs.bulk_group", "tile.bulk_group", FaultKind::TensorMap),
        (
            "cp.async.bulk.tensor.4d.global",
            "cp.reduce.async.bulk.tensor.4d.global.add",
            FaultKind::BadOperand,
        ),
    ] {
        let wrong = body.replace(text, new);
        let case = Case { body: &wrong, ctas: 1, dump: 2 * 4 * 3 * c, source: source.clone(), maps: &maps };
        assert_eq!(case.faults(), [kind], "{new}");
    }
    // A store through a bounding box that reaches out of the tensor.
    let outside = |source: u64, dump: u64| {
        let tensor = spec(dump, Element::U8, &[16, 4, 3, 2], &[16, 64, 192], &[]);
        let im2col = Im2col { lower: vec![-1, 0], upper: vec![0, 0], channels: 16, pixels: 12 };
        let details = TensorMapDetails { im2col: Some(im2col), ..Default::default() };
        [maps(source, dump)[0], tensor.encode_with(&details).unwrap()]
    };
    let case = Case { body: &body, ctas: 1, dump: 2 * 4 * 3 * c, source, maps: &outside };
    assert_eq!(case.faults(), [FaultKind::BadOperand]);
}

// -------------------------------------------------------------------- elements of a few bits, swizzles

/// Loads one box and copies shared memory out, 8 bytes of every 16 where `half` is set.
fn dump_kernel(expect: u32, bytes: u32, half: bool) -> String {
    let mask = if half { ".cp_mask" } else { "" };
    let operand = if half { ", h0" } else { "" };
    format!(
        "{INIT} mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {expect}; mov.u16 h0, 0xff;
        cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [s], [m0, {{0, 1}}], [bar];
        {wait0}
        cp.async.bulk.global.shared::cta.bulk_group{mask} [dst], [s], {bytes}{operand};
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;",
        wait0 = wait(0)
    )
}

#[test]
fn packed_elements_are_copied_and_padded_ones_spread() {
    let source = counted(16 * 64);
    let maps = |element: Element, swizzle: Swizzle| {
        move |source: u64, _: u64| {
            let tensor = spec(source, element, &[128, 8], &[64], &[128, 4]);
            [TensorMapSpec { swizzle, ..tensor }.encode().unwrap(); 2]
        }
    };
    // Packed: four rows of 64 bytes.
    let body = dump_kernel(256, 256, false);
    let packed = maps(Element::U4, Swizzle::None);
    Case { body: &body, ctas: 1, dump: 256, source: source.clone(), maps: &packed }.check(&source[64..320]);
    // Padded: four rows of 128 bytes, of which an mbarrier counts 64, and eight of every sixteen are defined. A bulk
    // copy reads what its mask leaves out too: shared memory is looked at through `ld.shared`.
    for swizzle in [Swizzle::None, Swizzle::B128, Swizzle::B128Atom32] {
        let read = |offset: u32| {
            format!(
                "{INIT} mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 256;
                cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [s], [m0, {{0, 1}}], [bar];
                {wait0} mov.u32 r1, 0;
                L: add.u32 r2, s, r1; ld.shared.b64 d0, [r2+{offset}]; cvt.u64.u32 d1, r1; add.u64 d1, dst, d1;
                st.global.b64 [d1], d0; add.u32 r1, r1, 16; setp.lt.u32 p1, r1, 512; @p1 bra L;",
                wait0 = wait(0)
            )
        };
        let mut want = vec![0x55; 512];
        for group in 0..32usize {
            let at = swizzle.apply(group as u32 * 16) as usize;
            want[at..at + 8].copy_from_slice(&source[64 + group * 8..][..8]);
        }
        let map = maps(Element::U4Padded, swizzle);
        let (body, behind) = (read(0), read(8));
        Case { body: &body, ctas: 1, dump: 512, source: source.clone(), maps: &map }.check(&want);
        let case = Case { body: &behind, ctas: 1, dump: 512, source: source.clone(), maps: &map };
        assert_eq!(case.faults(), [FaultKind::Uninitialized]);
        let all = body.replace("[bar], 256;", "[bar], 512;");
        let case = Case { body: &all, ctas: 1, dump: 512, source: source.clone(), maps: &map };
        assert_eq!(case.faults(), [FaultKind::TransactionCount]);
    }
}

#[test]
fn what_has_no_store_is_refused() {
    let store = "mov.u32 r1, 0; st.shared.b32 [s], r1; cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [m0, {0, 0}], [s];";
    let kind = |element: Element, swizzle: Swizzle, body: &str| {
        let maps = move |source: u64, _: u64| {
            let inner = if element == Element::F32 { 32 } else { 128 };
            let tensor = spec(source, element, &[128, 2], &[512], &[inner, 1]);
            [TensorMapSpec { swizzle, ..tensor }.encode().unwrap(); 2]
        };
        Case { body, ctas: 1, dump: 16, source: vec![0; 2048], maps: &maps }.faults()
    };
    assert_eq!(kind(Element::U4Padded, Swizzle::None, store), [FaultKind::BadOperand]);
    assert_eq!(kind(Element::F32, Swizzle::B128Atom32Flip8, store), [FaultKind::BadOperand]);
    let reduce = store.replace(
        "cp.async.bulk.tensor.2d.global.shared::cta",
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add",
    );
    assert_eq!(kind(Element::U4, Swizzle::None, &reduce), [FaultKind::BadOperand]);
    assert_eq!(kind(Element::U6Padded, Swizzle::None, &reduce), [FaultKind::BadOperand]);
}

#[test]
fn a_swizzle_of_larger_pieces_is_that_of_its_table() {
    let source = counted(16 * 128);
    for swizzle in [Swizzle::B128Atom32, Swizzle::B128Atom32Flip8, Swizzle::B128Atom64] {
        let maps = |source: u64, _: u64| {
            let tensor = spec(source, Element::U8, &[128, 16], &[128], &[128, 8]);
            [TensorMapSpec { swizzle, ..tensor }.encode().unwrap(); 2]
        };
        let body = dump_kernel(1024, 1024, false);
        // The place of piece `i` of line `line`, by the number of the line.
        let mut want = vec![0; 1024];
        for at in 0..1024usize {
            let (line, byte) = (at / 128, at % 128);
            let to = match swizzle {
                Swizzle::B128Atom64 => byte ^ (line % 2 * 64),
                Swizzle::B128Atom32 => byte ^ (line % 4 * 32),
                _ => byte ^ (line % 4 * 32) ^ (line % 2 * 8),
            };
            want[line * 128 + to] = source[128 + at];
        }
        Case { body: &body, ctas: 1, dump: 1024, source: source.clone(), maps: &maps }.check(&want);
    }
}

#[test]
fn maps_round_to_tf32_and_flush() {
    let floats = [1.0f32 + 2f32.powi(-11), 1.0 + 3.0 * 2f32.powi(-11), -1e-39, f32::INFINITY];
    let source: Vec<u8> = floats.iter().cycle().take(64).flat_map(|x| x.to_le_bytes()).collect();
    for (element, want) in [
        (Element::F32, floats),
        (Element::Tf32, [1.0, 1.0 + 2f32.powi(-9), f32::from_bits(0x800a_e000), f32::INFINITY]),
        (Element::F32Ftz, [floats[0], floats[1], -0.0, f32::INFINITY]),
        (Element::Tf32Ftz, [1.0, 1.0 + 2f32.powi(-9), -0.0, f32::INFINITY]),
    ] {
        let maps =
            |source: u64, _: u64| [spec(source, element, &[16, 4], &[64], &[16, 2]).encode().unwrap(); 2];
        let body = dump_kernel(128, 128, false);
        let want: Vec<u8> = want.iter().cycle().take(32).flat_map(|x| x.to_le_bytes()).collect();
        Case { body: &body, ctas: 1, dump: 128, source: source.clone(), maps: &maps }.check(&want);
    }
}

#[test]
fn bytes_out_of_bounds_may_be_ignored() {
    let copy = |size: u32, right: u32, first: u32| {
        format!(
            "{INIT} mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {size};
            cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.ignore_oob [s], [inp], {size}, 0, {right}, [bar];
            {wait0} add.u32 r1, s, {first}; ld.shared.b32 r2, [r1]; st.global.b32 [dst], r2;",
            wait0 = wait(0)
        )
    };
    // A source of 40 bytes, of which 48 are copied.
    let source = counted(40);
    let maps = |_: u64, _: u64| [[0; TENSOR_MAP_BYTES]; 2];
    let body = copy(48, 8, 36);
    Case { body: &body, ctas: 1, dump: 4, source: source.clone(), maps: &maps }.check(&source[36..40]);
    for (body, kind) in [
        (copy(48, 7, 36), FaultKind::OutOfBounds),
        (copy(48, 8, 40), FaultKind::Uninitialized),
        (copy(48, 16, 0), FaultKind::BadOperand),
    ] {
        let case = Case { body: &body, ctas: 1, dump: 4, source: source.clone(), maps: &maps };
        assert_eq!(case.faults(), [kind]);
    }
}

// -------------------------------------------------------------------- by name

#[test]
fn what_is_not_modelled_is_refused_by_name() {
    for (instruction, name) in [
        (
            "cp.async.bulk.tensor.3d.im2col::w.shared::cluster.global.mbarrier::complete_tx::bytes [r0], [d0, {r0, r1, r2}], [r3], {h0, h1};",
            "im2col::w",
        ),
        (
            "cp.async.bulk.tensor.3d.im2col::w::128.shared::cluster.global.mbarrier::complete_tx::bytes [r0], [d0, {r0, r1, r2}], [r3], {h0, h1};",
            "im2col::w::128",
        ),
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.override::global_address [r0], [d0, {r0, r1}], [r3];",
            "override::global_address",
        ),
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster::32b [r0], [d0, {r0, r1}], [r3], r4;",
            "multicast::cluster::32b",
        ),
        (
            "cp.async.bulk.tensor.2d.tile::scatter4.shared::cluster.global.mbarrier::complete_tx::bytes [r0], [d0, {r0, r1, r2, r3, r4}], [r5];",
            "tile::scatter4",
        ),
        (
            "cp.async.bulk.tensor.2d.tile::gather4.global.shared::cta.bulk_group [d0, {r0, r1, r2, r3, r4}], [r5];",
            "tile::gather4",
        ),
        (
            "cp.async.bulk.tensor.3d.tile::gather4.shared::cta.global.mbarrier::complete_tx::bytes [r0], [d0, {r0, r1, r2, r3, r4}], [r5];",
            "rank 2",
        ),
        (
            "cp.async.bulk.tensor.2d.tile::gather4.shared::cta.global.mbarrier::complete_tx::bytes [r0], [d0, {r0, r1}], [r5];",
            "5 coordinates",
        ),
        (
            "cp.async.bulk.tensor.2d.cta_group::2.global.shared::cta.bulk_group [d0, {r0, r1}], [r5];",
            "cta_group",
        ),
        (
            "cp.async.bulk.tensor.2d.im2col.shared::cta.global.mbarrier::complete_tx::bytes [r0], [d0, {r0, r1}], [r5];",
            "rank 3 to 5",
        ),
        (
            "cp.async.bulk.tensor.4d.im2col.shared::cta.global.mbarrier::complete_tx::bytes [r0], [d0, {r0, r1, r2, r3}], [r5], {h0};",
            "2 im2col offsets",
        ),
        (
            "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [r0], [d0, {r0, r1}], [r5];",
            "operands",
        ),
        ("multimem.cp.async.bulk.global.shared::cta.bulk_group [d0], [r0], 16;", "multimem"),
    ] {
        let message = parse_error(instruction);
        assert!(message.contains(name) && message.contains("line 5"), "{instruction}\n{message}");
    }
}
