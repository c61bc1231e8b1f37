//! `mma.sync`: the bits that an H200 gives for 64 random products of each form, and the integer and f64
//! forms against plain loops.

use oxigemm_sim::*;

fn hash(x: u32) -> u32 {
    let x = (x ^ x >> 16).wrapping_mul(0x7feb_352d);
    let x = (x ^ x >> 15).wrapping_mul(0x846c_a68b);
    x ^ x >> 16
}

/// A warp loads 16 words per lane: A from word 0, B from word 4, C from word 6; it stores four words of D.
fn kernel(opcode: &str, a: usize, b: usize, d: usize) -> Module {
    let list = |name: &str, n: usize| (0..n).map(|i| format!("{name}{i}")).collect::<Vec<_>>().join(", ");
    let text = format!(
        ".version 8.4\n.target sm_90a\n.address_size 64
        .visible .entry k(.param .u64 in, .param .u64 out)
        {{ .reg .b32 a<4>, b<4>, c<4>, t<4>; .reg .b64 p<4>;
        ld.param.u64 p0, [in]; ld.param.u64 p1, [out]; mov.u32 t0, %ctaid.x; mov.u32 t1, %tid.x; mad.lo.u32 t0, t0, 32, t1;
        mul.wide.u32 p2, t0, 64; add.u64 p0, p0, p2; mul.wide.u32 p2, t0, 16; add.u64 p1, p1, p2;
        ld.global.v4.b32 {{a0, a1, a2, a3}}, [p0]; ld.global.v2.b32 {{b0, b1}}, [p0+16];
        ld.global.v2.b32 {{c0, c1}}, [p0+24]; ld.global.v2.b32 {{c2, c3}}, [p0+32];
        mma.sync.aligned.{opcode} {{{d}}}, {{{a}}}, {{{b}}}, {{{d}}};
        st.global.v4.b32 [p1], {{c0, c1, c2, c3}}; ret; }}",
        d = list("c", d),
        a = list("a", a),
        b = list("b", b),
    );
    Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

const BLOCKS: u32 = 64;

/// The 16 words of a lane: `inputs` keeps and sets bits of A and B, `sums` of C.
fn words(inputs: [u32; 2], sums: [u32; 2]) -> Vec<u32> {
    (0..BLOCKS * 32 * 16)
        .map(|i| match i % 16 {
            0..6 => hash(i) & inputs[0] | inputs[1],
            _ => hash(i) & sums[0] | sums[1],
        })
        .collect()
}

fn run(module: &Module, words: &[u32]) -> Vec<u8> {
    let mut machine = Machine::new();
    let input = machine.memory.allocate_with(&words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>());
    let out = machine.memory.allocate((BLOCKS * 512) as usize);
    let launch = Launch {
        entry: "k".into(),
        grid: [BLOCKS, 1, 1],
        cluster: None,
        block: [32, 1, 1],
        shared_bytes: 0,
        params: vec![Param::U64(input), Param::U64(out)],
    };
    machine.run(module, &launch, &Options::default()).unwrap_or_else(|f| panic!("{f}"));
    machine.memory.read(out, (BLOCKS * 512) as usize).unwrap().to_vec()
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// 8192 outputs of each form, as an H200 computed them from the same inputs.
#[test]
fn products_have_the_bits_of_the_hardware() {
    let f16 = [0xbfff_bfff, 0];
    let bf16 = [0x87ff_87ff, 0x3800_3800];
    let tf32 = [0x87ff_ffff, 0x3800_0000];
    let fp8 = [0xbfbf_bfbf, 0];
    let f32 = [0x81ff_ffff, 0x3e00_0000];
    let any = [u32::MAX, 0];
    for (opcode, registers, inputs, sums, want) in [
        ("m16n8k16.row.col.f32.f16.f16.f32", [4, 2, 4], f16, f32, 0xbbe1_adb2_c2cb_f007),
        ("m16n8k16.row.col.f32.bf16.bf16.f32", [4, 2, 4], bf16, f32, 0x3194_c448_8ae7_99b7),
        ("m16n8k8.row.col.f32.tf32.tf32.f32", [4, 2, 4], tf32, f32, 0xef3d_db2a_a99e_de7a),
        ("m16n8k32.row.col.f32.e4m3.e4m3.f32", [4, 2, 4], fp8, f32, 0x8b3e_7abc_7ac1_ae81),
        ("m16n8k32.row.col.f32.e5m2.e4m3.f32", [4, 2, 4], fp8, f32, 0xcd0a_6e56_f355_e94b),
        ("m16n8k8.row.col.f32.f16.f16.f32", [2, 1, 4], f16, f32, 0x7414_8ecb_ba00_83eb),
        ("m16n8k4.row.col.f32.tf32.tf32.f32", [2, 1, 4], tf32, f32, 0xa026_bb11_fbdc_4514),
        ("m16n8k32.row.col.satfinite.s32.s8.u8.s32", [4, 2, 4], any, any, 0xb9cf_e1dd_1571_c1f9),
        ("m16n8k16.row.col.f16.f16.f16.f16", [4, 2, 2], f16, f16, 0x1c2c_af17_19c4_47f8),
        ("m16n8k8.row.col.f32.bf16.bf16.f32", [2, 1, 4], bf16, f32, 0xda20_57c2_cc8b_2512),
    ] {
        let [a, b, d] = registers;
        assert_eq!(fnv(&run(&kernel(opcode, a, b, d), &words(inputs, sums))), want, "{opcode}");
    }
}

/// Integer forms against a loop over the definition of their fragments.
#[test]
fn integer_products_are_exact() {
    // (shape and types, rows, depth, bits, a signed, b signed, registers, bit function)
    type Term = fn(i64, i64) -> i64;
    let product: Term = |x, y| x * y;
    let and: Term = |x, y| x & y;
    let xor: Term = |x, y| x ^ y;
    let cases = [
        ("m16n8k16.row.col.s32.s8.s8.s32", 16, 16, 8, true, true, [2, 1, 4], product),
        ("m16n8k32.row.col.s32.u8.s8.s32", 16, 32, 8, false, true, [4, 2, 4], product),
        ("m8n8k16.row.col.s32.s8.u8.s32", 8, 16, 8, true, false, [1, 1, 2], product),
        ("m16n8k32.row.col.s32.s4.s4.s32", 16, 32, 4, true, true, [2, 1, 4], product),
        ("m16n8k64.row.col.s32.u4.s4.s32", 16, 64, 4, false, true, [4, 2, 4], product),
        ("m8n8k32.row.col.s32.u4.u4.s32", 8, 32, 4, false, false, [1, 1, 2], product),
        ("m16n8k128.row.col.s32.b1.b1.s32.and.popc", 16, 128, 1, false, false, [2, 1, 4], and),
        ("m16n8k256.row.col.s32.b1.b1.s32.xor.popc", 16, 256, 1, false, false, [4, 2, 4], xor),
        ("m8n8k128.row.col.s32.b1.b1.s32.xor.popc", 8, 128, 1, false, false, [1, 1, 2], xor),
    ];
    let input = words([u32::MAX, 0], [u32::MAX, 0]);
    for (opcode, rows, k, bits, a_signed, b_signed, [a, b, d], term) in cases {
        let out = run(&kernel(opcode, a, b, d), &input);
        let element = |word: u32, i: usize, signed: bool| {
            let code = i64::from(word >> (i as u32 * bits)) & ((1 << bits) - 1);
            if signed && code >> (bits - 1) == 1 { code - (1 << bits) } else { code }
        };
        let per = 32 / bits as usize;
        for block in 0..BLOCKS as usize {
            let word = |lane: usize, i: usize| input[(block * 32 + lane) * 16 + i];
            for lane in 0..32 {
                for i in 0..rows / 4 {
                    let (row, column) = (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2);
                    let mut sum = i64::from(word(lane, 6 + i) as i32);
                    for x in 0..k {
                        // The register of depth x, and the lane that holds it.
                        let (part, t, e) = (x / (4 * per), x / per % 4, x % per);
                        let ar = if rows == 8 { part } else { part * 2 + row / 8 };
                        let av = element(word(row % 8 * 4 + t, ar), e, a_signed);
                        let bv = element(word(column * 4 + t, 4 + part), e, b_signed);
                        sum += term(av, bv);
                    }
                    let at = ((block * 32 + lane) * 4 + i) * 4;
                    let got = i32::from_le_bytes([out[at], out[at + 1], out[at + 2], out[at + 3]]);
                    assert_eq!(got, sum as i32, "{opcode} block {block} ({row}, {column})");
                }
            }
        }
    }
}

/// f64: A[r][x] = r + x / 8, B[x][c] = c - x, C = 100 r + c: every sum is exact.
#[test]
fn f64_products_are_fused() {
    for (shape, rows, k) in [("m8n8k4", 8, 4), ("m16n8k4", 16, 4), ("m16n8k8", 16, 8), ("m16n8k16", 16, 16)] {
        let (halves, parts) = (rows / 8, k / 4);
        let mut body = String::new();
        for i in 0..halves * parts {
            let (row, depth) = (i % halves * 8, i / halves * 4);
            body += &format!(
                "add.u32 r2, r0, {row}; add.u32 r3, r1, {depth}; cvt.rn.f64.u32 a{i}, r2; cvt.rn.f64.u32 x, r3;
                fma.rn.f64 a{i}, x, 0d3FC0000000000000, a{i};"
            );
        }
        for i in 0..parts {
            body += &format!("add.u32 r3, r1, {}; sub.s32 r3, r0, r3; cvt.rn.f64.s32 b{i}, r3;", i * 4);
        }
        for i in 0..2 * halves {
            body += &format!(
                "add.u32 r2, r0, {}; mul.lo.u32 r2, r2, 100; mad.lo.u32 r2, r1, 2, r2; add.u32 r2, r2, {}; cvt.rn.f64.u32 c{i}, r2;",
                i / 2 * 8,
                i % 2
            );
        }
        let list = |name: &str, n: usize| (0..n).map(|i| format!("{name}{i}")).collect::<Vec<_>>().join(", ");
        let store: String =
            (0..2 * halves).map(|i| format!("st.global.f64 [p], c{i}; add.u64 p, p, 8;")).collect();
        let text = format!(
            ".version 8.4\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 out)
            {{ .reg .f64 a<8>, b<4>, c<4>, x; .reg .b32 r<4>; .reg .b64 p, q;
            mov.u32 r0, %tid.x; and.b32 r1, r0, 3; shr.u32 r0, r0, 2; {body}
            mma.sync.aligned.{shape}.row.col.f64.f64.f64.f64 {{{c}}}, {{{a}}}, {{{b}}}, {{{c}}};
            ld.param.u64 p, [out]; mov.u32 r2, %tid.x; mul.wide.u32 q, r2, {bytes}; add.u64 p, p, q; {store} ret; }}",
            a = list("a", halves * parts),
            b = list("b", parts),
            c = list("c", 2 * halves),
            bytes = 16 * halves,
        );
        let module = Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let mut machine = Machine::new();
        let out = machine.memory.allocate(32 * 16 * halves);
        let launch = Launch {
            entry: "k".into(),
            grid: [1; 3],
            cluster: None,
            block: [32, 1, 1],
            shared_bytes: 0,
            params: vec![Param::U64(out)],
        };
        machine.run(&module, &launch, &Options::default()).unwrap_or_else(|f| panic!("{f}"));
        let got = machine.memory.read(out, 32 * 16 * halves).unwrap();
        for (at, bytes) in got.chunks(8).enumerate() {
            let (lane, i) = (at / (2 * halves), at % (2 * halves));
            let (row, column) = ((lane / 4 + i / 2 * 8) as f64, (lane % 4 * 2 + i % 2) as f64);
            let sum: f64 = (0..k).map(|x| (row + x as f64 / 8.0) * (column - x as f64)).sum();
            let want = 100.0 * row + column + sum;
            assert_eq!(f64::from_le_bytes(bytes.try_into().unwrap()), want, "{shape} ({row}, {column})");
        }
    }
}
