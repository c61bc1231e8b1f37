//! One MMA problem: operands, the images of shared and tensor memory that hold them, and the kernel around it.
//!
//! Layouts here are written from the manual's tables, apart from those of the simulator.

use oxigemm_sim::*;
use std::fmt::Write as _;

/// A type of elements: name, code in the descriptor, exponent and mantissa bits (none for integers), bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Type {
    pub name: &'static str,
    pub code: u32,
    pub bits: u32,
    float: Option<(u32, u32)>,
}

const fn float(name: &'static str, code: u32, exponent: u32, mantissa: u32, bits: u32) -> Type {
    Type { name, code, bits, float: Some((exponent, mantissa)) }
}

pub const F16: Type = float("f16", 0, 5, 10, 16);
pub const BF16: Type = float("bf16", 1, 8, 7, 16);
pub const TF32: Type = float("tf32", 2, 8, 23, 32);
pub const E4M3: Type = float("e4m3", 0, 4, 3, 8);
pub const E5M2: Type = float("e5m2", 1, 5, 2, 8);
pub const E2M3: Type = float("e2m3", 3, 2, 3, 6);
pub const E3M2: Type = float("e3m2", 4, 3, 2, 6);
pub const E2M1: Type = float("e2m1", 5, 2, 1, 4);
/// E2M1 of `mxf4` and `mxf4nvf4`.
pub const FP4: Type = float("fp4", 1, 2, 1, 4);
pub const U8: Type = Type { name: "u8", code: 0, bits: 8, float: None };
pub const S8: Type = Type { name: "s8", code: 1, bits: 8, float: None };

impl Type {
    fn decode(self, code: u32) -> f64 {
        let Some((e, m)) = self.float else {
            return if self == S8 { f64::from(code as u8 as i8) } else { f64::from(code) };
        };
        let (field, fraction) =
            (code >> m & ((1 << e) - 1), f64::from(code & ((1 << m) - 1)) / f64::from(1 << m));
        let bias = (1 << (e - 1)) - 1;
        let value = if field == 0 {
            fraction * 2f64.powi(1 - bias)
        } else {
            (1.0 + fraction) * 2f64.powi(field as i32 - bias)
        };
        if code >> (e + m) & 1 == 1 { -value } else { value }
    }

    /// The code of a small integer.
    fn encode(self, value: f64) -> u32 {
        if self == TF32 {
            return (value as f32).to_bits();
        }
        let Some((e, m)) = self.float else { return value as i32 as u32 & 0xff };
        if value == 0.0 {
            return 0;
        }
        let bias = (1 << (e - 1)) - 1;
        let exponent = (value.abs().log2().floor() as i32).max(1 - bias);
        let scaled = (value.abs() * 2f64.powi(m as i32 - exponent)) as u32;
        // The leading one of a normal number adds one to the field.
        let code = ((exponent + bias - 1) as u32) << m;
        let code = code + scaled | u32::from(value < 0.0) << (e + m);
        assert_eq!(self.decode(code), value, "{}", self.name);
        code
    }
}

/// One product `D = A * B (+ D)` and how it is done.
#[derive(Clone, Debug)]
pub struct Case {
    pub kind: &'static str,
    /// Modifiers behind the kind.
    pub suffix: String,
    pub m: usize,
    pub n: usize,
    /// Depth of one MMA, and MMAs along K.
    pub k: usize,
    pub steps: usize,
    pub a: Type,
    pub b: Type,
    /// Type of D in the descriptor.
    pub d: u32,
    pub pair: bool,
    pub ws: bool,
    pub a_mn: bool,
    pub b_mn: bool,
    /// Swizzles as in the descriptor.
    pub swizzle: [u32; 2],
    pub a_in_tensor: bool,
    /// Start with D and add to it.
    pub accumulate: bool,
    /// Scales: elements to one, whether UE4M3, and the ids.
    pub block: Option<(usize, bool)>,
    pub ids: [usize; 2],
    pub negate: [bool; 2],
    pub d_lane: usize,
    /// Lanes that are not written.
    pub disabled: Vec<u32>,
    /// Operand behind the predicate.
    pub last: Option<u64>,
}

impl Case {
    pub fn new(kind: &'static str, m: usize, n: usize, ty: Type) -> Case {
        let k = match kind {
            "tf32" => 8,
            "f16" => 16,
            "mxf4" | "mxf4nvf4" => 64,
            _ => 32,
        };
        let block = match kind {
            "mxf8f6f4" | "mxf4" => Some((32, false)),
            "mxf4nvf4" => Some((16, true)),
            _ => None,
        };
        let suffix = match kind {
            "mxf8f6f4" | "mxf4" => ".block_scale.block32",
            "mxf4nvf4" => ".block_scale.block16",
            _ => "",
        };
        Case {
            kind,
            suffix: suffix.into(),
            m,
            n,
            k,
            steps: 2,
            a: ty,
            b: ty,
            d: if kind == "i8" { 2 } else { 1 },
            pair: false,
            ws: false,
            a_mn: false,
            b_mn: false,
            swizzle: [2, 2],
            a_in_tensor: false,
            accumulate: true,
            block,
            ids: [0, 0],
            negate: [false, false],
            d_lane: 0,
            disabled: Vec::new(),
            last: None,
        }
    }

    fn ctas(&self) -> usize {
        1 + usize::from(self.pair)
    }

    pub fn rows(&self) -> usize {
        self.m / self.ctas()
    }

    pub fn depth(&self) -> usize {
        self.k * self.steps
    }

    /// Values of A (`m x depth`) and B (`n x depth`): small integers.
    pub fn value(&self, b: bool, row: usize, depth: usize) -> f64 {
        let ty = if b { self.b } else { self.a };
        let x = (row * 7 + depth * 5 + row * depth % 11 + usize::from(b) * 3) % 5;
        if ty == U8 { x as f64 } else { [-2.0, -1.0, 0.0, 1.0, 2.0][x] }
    }

    /// The scale of a block of a row: code and value.
    fn scale(&self, b: bool, row: usize, block: usize) -> (u8, f64) {
        let x = (row * 3 + block * 5 + usize::from(b)) % 4;
        match self.block {
            Some((_, true)) => [(0x30, 0.5), (0x38, 1.0), (0x3c, 1.5), (0x40, 2.0)][x],
            _ => [(126, 0.5), (127, 1.0), (128, 2.0), (129, 4.0)][x],
        }
    }

    fn start(&self, row: usize, column: usize) -> f64 {
        ((row * 5 + column * 3) % 17) as f64 - 8.0
    }

    /// What D must hold, by row and column.
    pub fn expected(&self, row: usize, column: usize) -> f64 {
        let d = if self.accumulate { self.start(row, column) } else { 0.0 };
        let shift = if self.ws { 0 } else { self.last.unwrap_or(0) as i32 };
        let sign = if self.negate[0] != self.negate[1] { -1.0 } else { 1.0 };
        // Each MMA divides what it finds.
        let mut sum = d;
        for step in 0..self.steps {
            sum /= 2f64.powi(shift);
            for i in step * self.k..(step + 1) * self.k {
                let scale = self.block.map_or(1.0, |(block, _)| {
                    self.scale(false, row, i / block).1 * self.scale(true, column, i / block).1
                });
                sum += sign * scale * self.value(false, row, i) * self.value(true, column, i);
            }
        }
        sum
    }

    /// CTA, lane and column of an element of D, by the manual's layouts A to G.
    pub fn place(&self, row: usize, column: usize) -> (usize, usize, usize) {
        let (half, quarter) = (self.n / 2, self.n / 4);
        match (self.m, self.pair, self.ws) {
            (256, true, _) => (row / 128, row % 128, column),
            (128, true, _) => (row / 64, row % 64 + column / half * 64, column % half),
            (128, false, _) => (0, row, column),
            (64, false, true) => (0, row + column / half * 64, column % half),
            (64, false, false) => (0, row % 16 + row / 16 * 32 + self.d_lane, column),
            _ => (0, row + column / quarter * 32, column % quarter),
        }
    }

    pub fn columns(&self) -> usize {
        match (self.m, self.pair, self.ws) {
            (128, true, _) | (64, _, true) => self.n / 2,
            (32, ..) => self.n / 4,
            _ => self.n,
        }
    }

    /// Where A or B lies in shared memory: bytes, LBO, SBO, and the step of the start along K.
    fn strides(&self, b: bool) -> (usize, usize, usize, usize) {
        let (mn, swizzle) = (if b { self.b_mn } else { self.a_mn }, self.swizzle[usize::from(b)]);
        let rows = if b { self.n / self.ctas() } else { self.rows() } + 32;
        let container = self.container(b);
        let span = [16, 128, 128, 0, 64, 0, 32][swizzle as usize];
        let depth = self.depth();
        match (mn, swizzle) {
            (false, 0) => (rows / 8 * 128 * depth * container / 128, rows / 8 * 128, 128, rows / 8 * 256),
            (false, _) => (rows / 8 * 8 * span, 16, 8 * span, 32),
            (true, 0) => {
                let sbo = depth / 8 * 128;
                (rows * container / 128 * sbo, 128, sbo, self.k / 8 * 128)
            }
            (true, s) => {
                let group = if s == 1 { 4 } else { 8 };
                let sbo = group * span;
                let lbo = depth / group * sbo;
                ((rows * container / 8).div_ceil(span) * lbo, lbo, sbo, self.k / group * sbo)
            }
        }
    }

    /// Bits that an element takes in shared memory.
    fn container(&self, b: bool) -> usize {
        let ty = if b { self.b } else { self.a };
        if ty.bits < 8 && ty != FP4 { 8 } else { ty.bits as usize }
    }

    /// The image of A or B in the shared memory of a CTA.
    fn shared(&self, b: bool, cta: usize) -> Vec<u8> {
        let (bytes, lbo, sbo, _) = self.strides(b);
        let (mn, swizzle) = (if b { self.b_mn } else { self.a_mn }, self.swizzle[usize::from(b)]);
        let (ty, container) = (if b { self.b } else { self.a }, self.container(b));
        let span = [16, 128, 128, 0, 64, 0, 32][swizzle as usize];
        let mut image = vec![0u8; bytes];
        let rows = if b { self.n / self.ctas() } else { self.rows() };
        let per = 128 / container;
        for row in 0..rows {
            for depth in 0..self.depth() {
                let (piece, inside) = if mn { (row / per, row % per) } else { (depth / per, depth % per) };
                let other = if mn { depth } else { row };
                let group = if mn && swizzle == 1 { 4 } else { 8 };
                let mut at = other % group * span;
                at += match (mn, swizzle) {
                    (false, 0) => other / 8 * sbo + piece * lbo,
                    (false, _) => other / 8 * sbo + piece * 16,
                    (true, 0) => piece * sbo + other / 8 * lbo,
                    (true, _) => piece % (span / 16) * 16 + piece / (span / 16) * lbo + other / group * sbo,
                };
                // The swizzle exchanges address bits; images begin at multiples of 1024.
                at ^= match swizzle {
                    1 => at >> 2 & 0x60,
                    2 => at >> 3 & 0x70,
                    4 => at >> 3 & 0x30,
                    6 => at >> 3 & 0x10,
                    _ => 0,
                };
                let step = if ty.bits == 6 || ty.bits == 4 { ty.bits as usize } else { container };
                let code = ty.encode(self.value(b, row + cta * rows, depth));
                let mut bit = at * 8 + inside * step;
                for i in 0..ty.bits {
                    image[bit / 8] |= ((code >> i & 1) as u8) << (bit % 8);
                    bit += 1;
                }
            }
        }
        image
    }

    /// Words of tensor memory before the MMA: column, and a word for each lane of a CTA.
    fn tensor(&self, cta: usize) -> Vec<(usize, Vec<u32>)> {
        let mut columns = vec![];
        if self.accumulate {
            let mut words = vec![vec![0u32; 128]; self.columns()];
            for (row, column) in (0..self.m).flat_map(|r| (0..self.n).map(move |c| (r, c))) {
                let (home, lane, at) = self.place(row, column);
                if home == cta {
                    let x = self.start(row, column);
                    words[at][lane] = match self.d {
                        0 => F16.encode(x),
                        1 => (x as f32).to_bits(),
                        _ => x as i32 as u32,
                    };
                }
            }
            columns.extend(words.into_iter().enumerate());
        }
        if self.a_in_tensor {
            let bits = self.container(false);
            let per = 32 / bits;
            // Every lane holds the row that its part of D has.
            let mut rows = [None; 128];
            for (row, c) in
                (0..self.rows()).flat_map(|r| (0..self.n).step_by(self.columns()).map(move |c| (r, c)))
            {
                rows[self.place(row + cta * self.rows(), c).1] = Some(row);
            }
            for c in 0..self.depth() / per {
                let word = |lane: usize| {
                    let Some(row) = rows[lane] else { return 0 };
                    (0..per).fold(0, |w, i| {
                        let x = self.a.encode(self.value(false, row + cta * self.rows(), c * per + i));
                        let shift = if self.a == E2M1 { 2 } else { 0 };
                        w | x << (i * bits + shift)
                    })
                };
                columns.push((256 + c, (0..128).map(word).collect()));
            }
        }
        if let Some((block, _)) = self.block {
            let count = self.k / block;
            for step in 0..self.steps {
                let all = [(false, self.rows(), 320), (true, self.n, 352)];
                for (b, rows, first) in all {
                    let halves = usize::from(b && self.m == 128 && self.pair) + 1;
                    for c in 0..(rows / halves).div_ceil(32) {
                        let word = |lane: usize| {
                            // Each 32 lanes hold the same, but for B of a pair with M = 128: half of N each.
                            let part = if halves == 2 { lane / 64 * (rows / 2) } else { 0 };
                            let row = part + c * 32 + lane % 32 + if b { 0 } else { cta * self.rows() };
                            (0..count).fold(0u32, |w, i| {
                                let code = self.scale(b, row, step * count + i).0;
                                w | u32::from(code) << (8 * (i + self.ids[usize::from(b)]))
                            })
                        };
                        columns.push((first + 8 * step + c, (0..128).map(word).collect()));
                    }
                }
            }
        }
        columns
    }

    pub fn instruction(&self) -> u32 {
        let n = (self.n as u32 / 8) << 17;
        let mut d = n | self.a.code << 7 | self.b.code << 10;
        d |= u32::from(self.negate[0]) << 13 | u32::from(self.negate[1]) << 14;
        d |= u32::from(self.a_mn) << 15 | u32::from(self.b_mn) << 16;
        match self.block {
            Some((_, ue4m3)) => {
                d | (self.m as u32 / 128) << 27
                    | u32::from(!ue4m3) << 23
                    | (self.ids[0] as u32) << 29
                    | (self.ids[1] as u32) << 4
            }
            None => d | (self.m as u32 / 16) << 24 | self.d << 4,
        }
    }

    /// The upper parts of a descriptor, without its start.
    fn descriptor(&self, b: bool) -> u64 {
        let (_, lbo, sbo, _) = self.strides(b);
        (lbo as u64 / 16) << 16
            | (sbo as u64 / 16) << 32
            | 1 << 46
            | u64::from(self.swizzle[usize::from(b)]) << 61
    }

    fn offsets(&self) -> (usize, usize, usize) {
        let round = |x: usize| x.next_multiple_of(1024);
        let (a, b) = (self.strides(false).0, self.strides(true).0);
        // Barrier and address first, then A, then B.
        (1024, 1024 + round(a), (1024 + round(a) + round(b)).next_multiple_of(2048))
    }

    /// The kernel. `edit` may change its text.
    pub fn ptx(&self) -> String {
        let group = if self.pair { 2 } else { 1 };
        let (a_at, b_at, bytes) = self.offsets();
        let tensor = self.tensor(0);
        let mut t = format!(
            ".version 8.8\n.target sm_100a\n.address_size 64\n
            .extern .shared .align 1024 .b8 smem[];
            .visible .entry k(.param .u64 shared, .param .u64 tensor, .param .u64 result) .reqntid 128
            {{
            .reg .pred p<4>; .reg .b32 %r<64>; .reg .b64 %d<32>; .reg .b32 t, s, c, taddr, wbase; .reg .b64 in, out;
            mov.u32 t, %tid.x; mov.u32 s, smem; mov.u32 c, %ctaid.x;
            ld.param.u64 in, [shared]; mul.wide.u32 %d0, c, {bytes}; add.u64 in, in, %d0;
            mul.wide.u32 %d0, t, 16; add.u64 %d1, in, %d0; shl.b32 %r0, t, 4; add.u32 %r1, s, %r0;
            mov.u32 %r2, 0;
            fill:
            ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%d1]; st.shared.v4.b32 [%r1], {{%r4, %r5, %r6, %r7}};
            add.u64 %d1, %d1, 2048; add.u32 %r1, %r1, 2048; add.u32 %r2, %r2, 2048;
            setp.lt.u32 p0, %r2, {bytes}; @p0 bra fill;
            setp.lt.u32 p1, t, 32; setp.eq.u32 p2, t, 0;
            bar.sync 0;
            @!p1 bra noalloc;
            tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [s], 512;
            tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;
            noalloc:
            add.u32 %r3, s, 8;
            @p2 mbarrier.init.shared::cta.b64 [%r3], 1;
            fence.mbarrier_init.release.cluster;
            fence.proxy.async.shared::cta;
            bar.sync 0;
            ld.shared.b32 taddr, [s];
            shr.u32 wbase, t, 5; shl.b32 wbase, wbase, 21; add.u32 wbase, wbase, taddr;
            ld.param.u64 in, [tensor]; mul.wide.u32 %d0, c, {}; add.u64 in, in, %d0;
            mul.wide.u32 %d0, t, 4; add.u64 in, in, %d0;\n",
            tensor.len() * 512
        );
        for (i, (column, _)) in tensor.iter().enumerate() {
            let _ = writeln!(
                t,
                "ld.global.b32 %r4, [in+{}]; add.u32 %r5, wbase, {column};
                tcgen05.st.sync.aligned.32x32b.x1.b32 [%r5], {{%r4}};",
                i * 512
            );
        }
        let sync = if self.pair {
            "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
        } else {
            "bar.sync 0;"
        };
        let _ = writeln!(
            t,
            "tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync; {sync} tcgen05.fence::after_thread_sync;
            setp.eq.u32 p3, c, 0; and.pred p3, p3, p2; @!p3 bra done; mov.b32 %r10, {};",
            self.instruction()
        );
        for (name, b, at) in [("%d10", false, a_at), ("%d11", true, b_at)] {
            let _ = writeln!(
                t,
                "add.u32 %r11, s, {at}; and.b32 %r11, %r11, 0x3ffff; shr.u32 %r11, %r11, 4;
                cvt.u64.u32 {name}, %r11; or.b64 {name}, {name}, {};",
                self.descriptor(b)
            );
        }
        for step in 0..self.steps {
            self.step(&mut t, step);
        }
        let columns = self.columns();
        let commit = if self.pair {
            "mov.b16 h, 3; tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r3], h;"
        } else {
            "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3];"
        };
        let _ = writeln!(
            t,
            ".reg .b16 h; {commit}
            done:
            wait: mbarrier.try_wait.parity.shared::cta.b64 p0, [%r3], 0; @!p0 bra wait;
            bar.warp.sync 0xffffffff; tcgen05.fence::after_thread_sync;
            ld.param.u64 out, [result]; mul.wide.u32 %d0, c, {}; add.u64 out, out, %d0;
            mul.wide.u32 %d0, t, {}; add.u64 out, out, %d0;",
            128 * columns * 4,
            columns * 4
        );
        for c in (0..columns).step_by(8) {
            let _ = writeln!(
                t,
                "add.u32 %r4, wbase, {c};
                tcgen05.ld.sync.aligned.32x32b.x8.b32 {{%r20,%r21,%r22,%r23,%r24,%r25,%r26,%r27}}, [%r4];
                tcgen05.wait::ld.sync.aligned;
                st.global.v4.b32 [out+{}], {{%r20,%r21,%r22,%r23}}; st.global.v4.b32 [out+{}], {{%r24,%r25,%r26,%r27}};",
                c * 4,
                c * 4 + 16
            );
        }
        let _ = writeln!(
            t,
            "tcgen05.fence::before_thread_sync; {sync}
            @!p1 bra end;
            tcgen05.fence::after_thread_sync;
            tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 taddr, 512;
            end: ret;
            }}"
        );
        t
    }

    /// One MMA of the kernel.
    fn step(&self, t: &mut String, step: usize) {
        let group = if self.pair { 2 } else { 1 };
        let ws = if self.ws { ".ws" } else { "" };
        let (a_step, b_step) = (self.strides(false).3, self.strides(true).3);
        let enable = u32::from(self.accumulate || step > 0);
        let a_column = 256 + step * 8;
        let _ = writeln!(
            t,
            "add.u64 %d12, %d10, {}; add.u64 %d13, %d11, {}; setp.eq.u32 p0, {enable}, 1;
            add.u32 %r12, taddr, {}; add.u32 %r13, taddr, {}; add.u32 %r14, taddr, {}; add.u32 %r15, taddr, {};",
            step * a_step / 16,
            step * b_step / 16,
            self.d_lane << 16,
            a_column + (self.d_lane << 16),
            320 + 8 * step,
            352 + 8 * step
        );
        let a = if self.a_in_tensor { "[%r13]" } else { "%d12" };
        let scales = if self.block.is_some() { "[%r14], [%r15], " } else { "" };
        let mut masks = String::new();
        if !self.disabled.is_empty() {
            for (i, mask) in self.disabled.iter().enumerate() {
                let _ = writeln!(t, "mov.b32 %r{}, {mask};", 40 + i);
            }
            let names: Vec<String> = (0..self.disabled.len()).map(|i| format!("%r{}", 40 + i)).collect();
            masks = format!("{{{}}}, ", names.join(", "));
        }
        let last = match self.last {
            Some(x) if self.ws => {
                let _ = writeln!(t, "mov.b64 %d14, {x};");
                ", %d14".to_owned()
            }
            Some(x) => format!(", {x}"),
            None => String::new(),
        };
        let _ = writeln!(
            t,
            "tcgen05.mma{ws}.cta_group::{group}.kind::{}{} [%r12], {a}, %d13, %r10, {scales}{masks}p0{last};",
            self.kind, self.suffix
        );
    }

    /// Runs a kernel for this case: words of D by CTA, lane and column.
    pub fn run_text(&self, text: &str, options: &Options) -> Result<(Vec<u32>, Report), Fault> {
        let module = Module::parse(text).unwrap_or_else(|e| panic!("{e}"));
        let mut machine = Machine::new();
        let (a_at, b_at, bytes) = self.offsets();
        let (mut shared, mut tensor) = (vec![], vec![]);
        for cta in 0..self.ctas() {
            let mut image = vec![0u8; bytes];
            for (at, b) in [(a_at, false), (b_at, true)] {
                let part = self.shared(b, cta);
                image[at..at + part.len()].copy_from_slice(&part);
            }
            shared.extend(image);
            tensor
                .extend(self.tensor(cta).into_iter().flat_map(|(_, words)| words).flat_map(u32::to_le_bytes));
        }
        let shared = machine.memory.allocate_with(&shared);
        let tensor = machine.memory.allocate_with(&if tensor.is_empty() { vec![0; 16] } else { tensor });
        let words = self.ctas() * 128 * self.columns();
        let out = machine.memory.allocate(words * 4);
        let launch = Launch {
            entry: "k".into(),
            grid: [self.ctas() as u32, 1, 1],
            cluster: Some([self.ctas() as u32, 1, 1]),
            block: [128, 1, 1],
            shared_bytes: bytes as u32,
            params: vec![Param::U64(shared), Param::U64(tensor), Param::U64(out)],
        };
        let report = machine.run(&module, &launch, options)?;
        let bytes = machine.memory.read(out, words * 4)?;
        Ok((bytes.chunks(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(), report))
    }

    /// The value of an element of D in the words of a run.
    pub fn result(&self, words: &[u32], row: usize, column: usize) -> f64 {
        let (cta, lane, at) = self.place(row, column);
        let word = words[(cta * 128 + lane) * self.columns() + at];
        match self.d {
            0 => F16.decode(word),
            1 => f64::from(f32::from_bits(word)),
            _ => f64::from(word as i32),
        }
    }
}
