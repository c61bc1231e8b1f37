//! `mma.sync` of sm_120a: FP8, FP6 and FP4 in any mixture, with and without block scales, against plain loops over
//! values whose sums are exact; which lanes and bytes of a register scales come from.

use oxigemm_sim::*;

/// Values that every element type has.
const VALUES: [f64; 12] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, -0.5, -1.0, -1.5, -2.0, -3.0];

struct Format {
    name: &'static str,
    exponent: u32,
    mantissa: u32,
}

const FORMATS: [Format; 5] = [
    Format { name: "e4m3", exponent: 4, mantissa: 3 },
    Format { name: "e5m2", exponent: 5, mantissa: 2 },
    Format { name: "e3m2", exponent: 3, mantissa: 2 },
    Format { name: "e2m3", exponent: 2, mantissa: 3 },
    Format { name: "e2m1", exponent: 2, mantissa: 1 },
];

impl Format {
    fn value(&self, code: u32) -> f64 {
        let bias = (1 << (self.exponent - 1)) - 1;
        let field = (code >> self.mantissa & ((1 << self.exponent) - 1)) as i32;
        let fraction = f64::from(code & ((1 << self.mantissa) - 1)) / f64::from(1 << self.mantissa);
        let magnitude = if field == 0 {
            fraction * 2f64.powi(1 - bias)
        } else {
            (1.0 + fraction) * 2f64.powi(field - bias)
        };
        if code >> (self.exponent + self.mantissa) & 1 == 1 { -magnitude } else { magnitude }
    }

    fn code(&self, value: f64) -> u32 {
        (0..1 << (1 + self.exponent + self.mantissa))
            .find(|c| self.value(*c) == value)
            .expect("a value of the format")
    }

    /// The code in a register of `bits` bits an element: FP4 in the middle of a byte, FP6 at its end.
    fn stored(&self, value: f64, bits: u32) -> u32 {
        let shift = if bits == 8 && self.name == "e2m1" { 2 } else { 0 };
        self.code(value) << shift
    }
}

fn hash(x: u32) -> u32 {
    let x = (x ^ x >> 16).wrapping_mul(0x7feb_352d);
    let x = (x ^ x >> 15).wrapping_mul(0x846c_a68b);
    x ^ x >> 16
}

/// A warp loads 12 words per lane (A, B, C, scales of A and of B) and stores four words of D.
fn run(opcode: &str, sums: usize, selectors: &str, words: &[u32]) -> Result<Vec<u32>, Fault> {
    let c = (0..sums).map(|i| format!("c{i}")).collect::<Vec<_>>().join(", ");
    let text = format!(
        ".version 8.8\n.target sm_120a\n.address_size 64
        .visible .entry k(.param .u64 in, .param .u64 out)
        {{ .reg .b32 a<4>, b<2>, c<4>, sa, sb, t; .reg .b16 h<4>; .reg .b64 p<3>;
        ld.param.u64 p0, [in]; ld.param.u64 p1, [out]; mov.u32 t, %tid.x; mul.wide.u32 p2, t, 48; add.u64 p0, p0, p2;
        mul.wide.u32 p2, t, 16; add.u64 p1, p1, p2; mov.u16 h0, 1; cvt.u16.u32 h1, t;
        ld.global.v4.b32 {{a0, a1, a2, a3}}, [p0]; ld.global.v2.b32 {{b0, b1}}, [p0+16];
        ld.global.v2.b32 {{c0, c1}}, [p0+24]; ld.global.v2.b32 {{c2, c3}}, [p0+32]; ld.global.v2.b32 {{sa, sb}}, [p0+40];
        mma.sync.aligned.{opcode} {{{c}}}, {{a0, a1, a2, a3}}, {{b0, b1}}, {{{c}}}{selectors};
        st.global.v4.b32 [p1], {{c0, c1, c2, c3}}; ret; }}"
    );
    let module = Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut machine = Machine::new();
    let input = machine.memory.allocate_with(&words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>());
    let out = machine.memory.allocate(512);
    let launch = Launch {
        entry: "k".into(),
        grid: [1; 3],
        cluster: None,
        block: [32, 1, 1],
        shared_bytes: 0,
        params: vec![Param::U64(input), Param::U64(out)],
    };
    machine.run(&module, &launch, &Options::default())?;
    let bytes = machine.memory.read(out, 512)?;
    Ok(bytes.chunks(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// Matrices of a product, and the words of every lane.
struct Problem {
    k: usize,
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
    words: Vec<u32>,
}

impl Problem {
    fn new(a_format: &Format, b_format: &Format, k: usize, half: bool) -> Problem {
        let pick = |i: usize| VALUES[hash(i as u32) as usize % VALUES.len()];
        let a: Vec<f64> = (0..16 * k).map(pick).collect();
        let b: Vec<f64> = (0..8 * k).map(|i| pick(i + 5000)).collect();
        let c: Vec<f64> = (0..128).map(|i| (hash(i + 9000) % 33) as f64 - 16.0).collect();
        let bits = 256 / k as u32;
        let per = 32 / bits as usize;
        let mut words = vec![0u32; 32 * 12];
        let f16 = |x: f64| {
            let b = (x as f32).to_bits();
            if x == 0.0 { 0 } else { (b >> 16 & 0x8000) | ((b & 0x7fff_ffff) - (112 << 23)) >> 13 }
        };
        for lane in 0..32 {
            let (g, t) = (lane / 4, lane % 4);
            for e in 0..per {
                for register in 0..4 {
                    let (row, depth) = (g + 8 * (register % 2), per * t + e + register / 2 * 4 * per);
                    words[lane * 12 + register] |=
                        a_format.stored(a[row * k + depth], bits) << (e as u32 * bits);
                }
                for register in 0..2 {
                    let depth = per * t + e + register * 4 * per;
                    words[lane * 12 + 4 + register] |=
                        b_format.stored(b[g * k + depth], bits) << (e as u32 * bits);
                }
            }
            for i in 0..4 {
                let value = c[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2];
                if half {
                    words[lane * 12 + 6 + i / 2] |= f16(value) << (16 * (i as u32 % 2));
                } else {
                    words[lane * 12 + 6 + i] = (value as f32).to_bits();
                }
            }
        }
        Problem { k, a, b, c, words }
    }

    /// What is wanted at a row and a column, with the scales of blocks.
    fn want(&self, row: usize, column: usize, scale: impl Fn(usize) -> f64) -> f64 {
        let product = |x: usize| self.a[row * self.k + x] * self.b[column * self.k + x] * scale(x);
        self.c[row * 8 + column] + (0..self.k).map(product).sum::<f64>()
    }
}

#[test]
fn elements_of_every_width_mix() {
    for a in &FORMATS {
        for b in &FORMATS {
            let problem = Problem::new(a, b, 32, false);
            let opcode = format!("m16n8k32.row.col.kind::f8f6f4.f32.{}.{}.f32", a.name, b.name);
            let got = run(&opcode, 4, "", &problem.words).unwrap_or_else(|f| panic!("{f}"));
            for (i, word) in got.iter().enumerate() {
                let (lane, i) = (i / 4, i % 4);
                let (row, column) = (lane / 4 + 8 * (i / 2), lane % 4 * 2 + i % 2);
                let want = problem.want(row, column, |_| 1.0);
                assert_eq!(f64::from(f32::from_bits(*word)), want, "{opcode} ({row}, {column})");
            }
            // Accumulators of f16: all sums are small enough to be exact.
            let problem = Problem::new(a, b, 32, true);
            let opcode = format!("kind::f8f6f4.m16n8k32.row.col.f16.{}.{}.f16", a.name, b.name);
            let got = run(&opcode, 2, "", &problem.words).unwrap_or_else(|f| panic!("{f}"));
            for lane in 0..32 {
                for i in 0..4 {
                    let code = got[lane * 4 + i / 2] >> (16 * (i % 2)) & 0xffff;
                    let got = Format { name: "f16", exponent: 5, mantissa: 10 }.value(code);
                    let (row, column) = (lane / 4 + 8 * (i / 2), lane % 4 * 2 + i % 2);
                    assert_eq!(got, problem.want(row, column, |_| 1.0), "{opcode} ({row}, {column})");
                }
            }
        }
    }
}

/// A product with block scales: `count` bytes from `byte` on, in the lanes that `threads` choose for A and B; all other
/// bytes hold something else.
fn check_scaled(opcode: &str, formats: [&Format; 2], count: usize, bytes: [usize; 2], threads: [usize; 2]) {
    let k = if count == 1 { 32 } else { 64 };
    let mut problem = Problem::new(formats[0], formats[1], k, false);
    let e4m3 = opcode.ends_with("ue4m3");
    let code = |i: usize| {
        let h = hash(i as u32 + 77) as usize;
        if e4m3 { [0x30, 0x38, 0x3c, 0x40, 0x44][h % 5] } else { 125 + h as u32 % 5 }
    };
    let value = |code: u32| if e4m3 { FORMATS[0].value(code) } else { 2f64.powi(code as i32 - 127) };
    for lane in 0..32 {
        for word in [10, 11] {
            problem.words[lane * 12 + word] = hash((lane * 2 + word) as u32 + 31);
        }
    }
    let mut put = |lane: usize, word: usize, byte: usize, code: u32| {
        let w = &mut problem.words[lane * 12 + word];
        *w = *w & !(0xff << (8 * byte)) | code << (8 * byte);
    };
    for j in 0..count {
        for row in 0..16 {
            put(row % 8 * 4 + 2 * threads[0] + row / 8, 10, bytes[0] + j, code(row * 4 + j));
        }
        for column in 0..8 {
            put(column * 4 + threads[1], 11, bytes[1] + j, code(1000 + column * 4 + j));
        }
    }
    let selectors =
        format!(", sa, {{{}, {}}}, {{sb}}, {{{}, {}}}", bytes[0], threads[0], bytes[1], threads[1]);
    let got = run(opcode, 4, &selectors, &problem.words).unwrap_or_else(|f| panic!("{f}"));
    for (i, word) in got.iter().enumerate() {
        let (lane, i) = (i / 4, i % 4);
        let (row, column) = (lane / 4 + 8 * (i / 2), lane % 4 * 2 + i % 2);
        let scale = |x: usize| {
            let j = x / (k / count);
            value(code(row * 4 + j)) * value(code(1000 + column * 4 + j))
        };
        let want = problem.want(row, column, scale);
        assert_eq!(
            f64::from(f32::from_bits(*word)),
            want,
            "{opcode} {bytes:?} {threads:?} ({row}, {column})"
        );
    }
}

#[test]
fn scales_come_from_the_chosen_bytes_and_lanes() {
    let fp4 = &FORMATS[4];
    for threads in [[0, 0], [1, 0], [0, 3], [1, 2]] {
        for byte in 0..4 {
            let opcode = "m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e5m2.f32.ue8m0";
            check_scaled(opcode, [&FORMATS[0], &FORMATS[1]], 1, [byte, 3 - byte], threads);
        }
        for byte in [0, 2] {
            for kind in
                ["mxf4.block_scale", "mxf4.block_scale.scale_vec::2X", "mxf4nvf4.block_scale.scale_vec::2X"]
            {
                let opcode = format!("m16n8k64.row.col.kind::{kind}.f32.e2m1.e2m1.f32.ue8m0");
                check_scaled(&opcode, [fp4, fp4], 2, [byte, 2 - byte], threads);
            }
        }
        let opcode = "m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3";
        check_scaled(opcode, [fp4, fp4], 4, [0, 0], threads);
    }
    for a in &FORMATS {
        for b in &FORMATS {
            let opcode =
                format!("m16n8k32.row.col.kind::mxf8f6f4.block_scale.f32.{}.{}.f32.ue8m0", a.name, b.name);
            check_scaled(&opcode, [a, b], 1, [0, 1], [1, 3]);
        }
    }
}

#[test]
fn selectors_out_of_range_are_refused() {
    let mx = "m16n8k32.row.col.kind::mxf8f6f4.block_scale.f32.e4m3.e4m3.f32.ue8m0";
    let words = vec![0; 32 * 12];
    // In registers: found when the instruction runs.
    assert!(run(mx, 4, ", sa, {h0, h0}, sb, {0, h0}", &words).is_ok());
    let nv = "m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3";
    let fault = run(nv, 4, ", sa, {h0, 0}, sb, {0, 0}", &words).unwrap_err();
    assert_eq!(fault.kind, FaultKind::BadOperand, "{fault}");
    let fault = run(mx, 4, ", sa, {0, 0}, sb, {0, h1}", &words).unwrap_err();
    assert_eq!(fault.kind, FaultKind::BadOperand, "{fault}");
    // By the text.
    let parse = |target: &str, instruction: &str| {
        let text = format!(
            ".version 8.8\n.target {target}\n.address_size 64\n.visible .entry k() {{ .reg .b32 a<4>, b<2>, c<4>, s;\n{instruction}\nret; }}"
        );
        Module::parse(&text).map(|_| ()).map_err(|e| e.to_string())
    };
    let with = |opcode: &str, rest: &str| {
        format!(
            "mma.sync.aligned.{opcode} {{c0, c1, c2, c3}}, {{a0, a1, a2, a3}}, {{b0, b1}}, {{c0, c1, c2, c3}}{rest};"
        )
    };
    assert_eq!(parse("sm_120a", &with(mx, ", s, {3, 1}, s, {3, 3}")), Ok(()));
    assert_eq!(parse("sm_120f", &with(mx, ", s, {3, 1}, s, {3, 3}")), Ok(()));
    for (opcode, rest) in [
        (mx, ", s, {4, 0}, s, {0, 0}"),
        (mx, ", s, {0, 2}, s, {0, 0}"),
        (mx, ", s, {0, 0}, s, {0, 4}"),
        (mx, ", s, {0}, s, {0, 0}"),
        (mx, ""),
        (nv, ", s, {2, 0}, s, {0, 0}"),
        ("m16n8k64.row.col.kind::mxf4.block_scale.f32.e2m1.e2m1.f32.ue8m0", ", s, {1, 0}, s, {0, 0}"),
        ("m16n8k64.row.col.kind::mxf4nvf4.block_scale.f32.e2m1.e2m1.f32.ue4m3", ", s, {0, 0}, s, {0, 0}"),
        (
            "m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue4m3",
            ", s, {0, 0}, s, {0, 0}",
        ),
        ("m16n8k64.row.col.kind::mxf4.block_scale.f32.e2m1.e4m3.f32.ue8m0", ", s, {0, 0}, s, {0, 0}"),
        ("m16n8k32.row.col.kind::mxf8f6f4.f32.e4m3.e4m3.f32", ""),
        ("m16n8k32.row.col.kind::f8f6f4.satfinite.f32.e4m3.e4m3.f32", ""),
    ] {
        assert!(parse("sm_120a", &with(opcode, rest)).is_err(), "{opcode} {rest}");
    }
    let sparse = "m16n8k64.row.col.kind::mxf8f6f4.sp::ordered_metadata.block_scale.f32.e4m3.e4m3.f32.ue8m0";
    let message = parse("sm_120a", &with(sparse, ", s, 0, s, {0, 0}, s, {0, 0}")).unwrap_err();
    assert!(message.contains("sparse"), "{message}");
    assert!(parse("sm_100a", &with(mx, ", s, {3, 1}, s, {3, 3}")).unwrap_err().contains("sm_120"));
}
