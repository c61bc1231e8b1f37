//! Problems, launches and a plain reference for the GEMM kernels in `tests/ptx`.

#![allow(dead_code)]

pub mod mxfp8_pair;

use oxigemm_sim::*;

/// A deterministic generator.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A finite e4m3 code with a moderate exponent.
    pub fn e4m3(&mut self) -> u8 {
        let r = self.next();
        let magnitude = (r % 0x60) as u8;
        magnitude | (((r >> 32) as u8 & 1) << 7)
    }

    pub fn scale(&mut self) -> f32 {
        0.5 + (self.next() % 1000) as f32 / 1000.0
    }
}

/// `D[m, n] = sum over 128-wide blocks of sfa[m, kb] * sfb[n / 128, kb] * (A[m] . B[n])`
pub struct Problem {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: Vec<u8>,
    pub b: Vec<u8>,
    pub sfa: Vec<f32>,
    pub sfb: Vec<f32>,
}

impl Problem {
    pub fn new(m: usize, n: usize, k: usize) -> Problem {
        let mut rng = Rng(0x1234_5678_9abc_def1 ^ (m * 31 + n * 7 + k) as u64);
        let kb = k / 128;
        Problem {
            m,
            n,
            k,
            a: (0..m * k).map(|_| rng.e4m3()).collect(),
            b: (0..n * k).map(|_| rng.e4m3()).collect(),
            sfa: (0..m * kb).map(|_| rng.scale()).collect(),
            sfb: (0..n.div_ceil(128) * kb).map(|_| rng.scale()).collect(),
        }
    }

    /// What the hardware computes, as bf16 bits: the tensor core's fused sums of 32 products, promoted per
    /// block. `reduce` is the number of slices into which K is split, added in order.
    pub fn reference(&self, slices: usize) -> Vec<u16> {
        let kb = self.k / 128;
        let mut out = Vec::new();
        for i in 0..self.m {
            for j in 0..self.n {
                let mut total = 0f32;
                for s in 0..slices {
                    let mut sum = 0f32;
                    for block in s * kb / slices..(s + 1) * kb / slices {
                        let mut acc = 0f32;
                        for step in 0..4 {
                            let at = block * 128 + step * 32;
                            acc = fused(
                                &self.a[i * self.k + at..][..32],
                                &self.b[j * self.k + at..][..32],
                                acc,
                            );
                        }
                        let scale = self.sfa[i * kb + block] * self.sfb[j / 128 * kb + block];
                        sum = acc.mul_add(scale, sum);
                    }
                    total = if slices == 1 { sum } else { total + sum };
                }
                out.push(bf16(if slices == 1 { 0.0 + total } else { total }));
            }
        }
        out
    }
}

pub fn bf16(x: f32) -> u16 {
    let b = x.to_bits();
    ((b + 0x7fff + (b >> 16 & 1)) >> 16) as u16
}

/// Significand (4 bits) and exponent of an e4m3 code.
fn split(code: u8) -> (i64, i32) {
    let (e, m) = (i32::from(code >> 3 & 15), i64::from(code & 7));
    let s = if e == 0 { m } else { m | 8 };
    (if code & 0x80 != 0 { -s } else { s }, e.max(1) - 7)
}

/// One k32 step of the FP8 tensor core, from its definition.
fn fused(a: &[u8], b: &[u8], acc: f32) -> f32 {
    let products: Vec<(i64, i32)> = a
        .iter()
        .zip(b)
        .map(|(x, y)| {
            let ((sx, ex), (sy, ey)) = (split(*x), split(*y));
            (sx * sy, ex + ey)
        })
        .collect();
    let bits = acc.to_bits();
    let acc_exponent = if acc == 0.0 { -126 } else { (bits >> 23 & 0xff) as i32 - 127 };
    let top = products.iter().filter(|p| p.0 != 0).map(|p| p.1).max().unwrap_or(-126).max(acc_exponent);
    let mut sum = 0i64;
    for (p, e) in products {
        // Units of 2^(top - 13); a product has six fractional bits.
        let shift = 7 - (top - e);
        let magnitude = if shift >= 0 { p.abs() << shift } else { p.abs() >> (-shift).min(63) };
        sum += magnitude * p.signum();
    }
    if acc != 0.0 {
        let m = i64::from(bits & 0x7f_ffff | 1 << 23) >> (10 + top - acc_exponent).min(63);
        sum += if acc < 0.0 { -m } else { m };
    }
    let magnitude = sum.unsigned_abs();
    let drop = (64 - magnitude.leading_zeros()).saturating_sub(14);
    let kept = (magnitude >> drop << drop) as f64 * 2f64.powi(top - 13);
    (if sum < 0 { -kept } else { kept }) as f32
}

pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn map(
    address: u64,
    element: Element,
    dims: [u64; 2],
    stride: u64,
    boxes: [u32; 2],
    swizzle: Swizzle,
) -> Param {
    TensorMapSpec {
        address,
        element,
        dims: dims.to_vec(),
        strides: vec![stride],
        box_dims: boxes.to_vec(),
        swizzle,
    }
    .encode()
    .expect("the map is valid")
    .into()
}

/// A loaded kernel with its buffers.
pub struct Setup {
    pub machine: Machine,
    pub module: Module,
    pub launch: Launch,
    pub d: u64,
    pub outputs: usize,
}

impl Setup {
    pub fn run(&mut self, options: &Options) -> Result<Vec<u16>, Fault> {
        self.machine.run(&self.module, &self.launch, options)?;
        let bytes = self.machine.memory.read(self.d, self.outputs * 2)?;
        Ok(bytes.chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect())
    }
}

/// The tile kernel: `bm x bn` tiles, A multicast over a cluster of `cl`.
pub fn tile(text: &str, p: &Problem, bm: u32, bn: u32, cl: u32, shared: u32, ctas: u32) -> Setup {
    let module = Module::parse(text).expect("the module parses");
    let mut machine = Machine::new();
    let (m, n, k) = (p.m as u64, p.n as u64, p.k as u64);
    let (a, b) = (machine.memory.allocate_with(&p.a), machine.memory.allocate_with(&p.b));
    let padded = p.m.div_ceil(4) * 4;
    let kb = p.k / 128;
    let mut transposed = vec![0f32; padded * kb];
    for i in 0..p.m {
        for j in 0..kb {
            transposed[j * padded + i] = p.sfa[i * kb + j];
        }
    }
    let sfa = machine.memory.allocate_with(&bytes(&transposed));
    let sfb = machine.memory.allocate_with(&bytes(&p.sfb));
    let d = machine.memory.allocate(p.m * p.n * 2);
    let launch = Launch {
        entry: "gemm".into(),
        grid: [ctas, 1, 1],
        cluster: None,
        block: [384, 1, 1],
        shared_bytes: shared,
        params: vec![
            map(a, Element::U8, [k, m], k, [128, bm / cl], Swizzle::B128),
            map(b, Element::U8, [k, n], k, [128, bn], Swizzle::B128),
            map(d, Element::Bf16, [n, m], n * 2, [64, bm], Swizzle::B128),
            map(sfa, Element::F32, [m, kb as u64], padded as u64 * 4, [bm / cl, 1], Swizzle::None),
            Param::U64(sfb),
            Param::U32(p.m as u32),
            Param::U32(p.n as u32),
            Param::U32(p.k as u32),
        ],
    };
    Setup { machine, module, launch, d, outputs: p.m * p.n }
}

/// The few-rows kernel: `mt` rows of A against 64 rows of B per CTA, K split over a cluster of `split`.
pub fn rows(text: &str, p: &Problem, mt: u32, split: u32, shared: u32) -> Setup {
    let module = Module::parse(text).expect("the module parses");
    let mut machine = Machine::new();
    let (m, n, k) = (p.m as u64, p.n as u64, p.k as u64);
    let (a, b) = (machine.memory.allocate_with(&p.a), machine.memory.allocate_with(&p.b));
    let (sfa, sfb) =
        (machine.memory.allocate_with(&bytes(&p.sfa)), machine.memory.allocate_with(&bytes(&p.sfb)));
    let d = machine.memory.allocate(p.m * p.n * 2);
    let launch = Launch {
        entry: "gemm".into(),
        grid: [p.n.div_ceil(64) as u32 * split, p.m.div_ceil(mt as usize) as u32, 1],
        cluster: None,
        block: [160, 1, 1],
        shared_bytes: shared,
        params: vec![
            map(b, Element::U8, [k, n], k, [128, 64], Swizzle::B128),
            map(a, Element::U8, [k, m], k, [128, mt], Swizzle::B128),
            Param::U64(sfa),
            Param::U64(sfb),
            Param::U64(d),
            Param::U32(p.m as u32),
            Param::U32(p.n as u32),
            Param::U32(p.k as u32),
        ],
    };
    Setup { machine, module, launch, d, outputs: p.m * p.n }
}

/// Every schedule that a kernel must survive: eager, lazy and eight random ones.
pub fn schedules() -> Vec<Options> {
    let mut list = vec![
        Options { policy: Policy::Eager, ..Options::default() },
        Options { policy: Policy::Lazy, ..Options::default() },
    ];
    list.extend((0..8).map(|seed| Options { policy: Policy::Random, seed, ..Options::default() }));
    list
}
