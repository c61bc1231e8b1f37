//! Kernels that nvcc compiled from the CUDA sources in `tests/ptx/nvcc`, for three generations of GPUs:
//! each gives what a plain program computes, under every schedule. The texts are those of CUDA 13.0, `nvcc -ptx
//! -arch=compute_90a` and so on, with the paths of files shortened.

use oxigemm_sim::*;

macro_rules! ptx {
    ($name:literal) => {
        [
            include_str!(concat!("../ptx/nvcc/", $name, ".sm_80.ptx")),
            include_str!(concat!("../ptx/nvcc/", $name, ".sm_90a.ptx")),
            include_str!(concat!("../ptx/nvcc/", $name, ".sm_100a.ptx")),
        ]
    };
}

/// With `-G`: debug sections, no inlining, local memory for every variable.
const DEBUG: &str = include_str!("../ptx/nvcc/reduce.debug.sm_90a.ptx");
/// With `-lineinfo`: `.loc` with `inlined_at`.
const LINES: &str = include_str!("../ptx/nvcc/lanes.lineinfo.sm_90a.ptx");

fn hash(x: u32) -> u32 {
    let x = (x ^ x >> 16).wrapping_mul(0x7feb_352d);
    let x = (x ^ x >> 15).wrapping_mul(0x846c_a68b);
    x ^ x >> 16
}

fn floats(n: u32) -> Vec<f32> {
    (0..n).map(|i| (hash(i) % 2001) as f32 / 256.0 - 1000.0 / 256.0).collect()
}

fn bytes<T: Copy, const N: usize>(values: &[T], to: fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|v| to(*v)).collect()
}

fn u32s(b: &[u8]) -> Vec<u32> {
    b.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
}

fn f32s(b: &[u8]) -> Vec<f32> {
    u32s(b).into_iter().map(f32::from_bits).collect()
}

fn schedules() -> [Options; 4] {
    let random = |seed| Options { policy: Policy::Random, seed, ..Options::default() };
    [Options::default(), Options { policy: Policy::Lazy, ..Options::default() }, random(5), random(6)]
}

fn launch(entry: &str, grid: [u32; 2], block: u32, shared_bytes: u32, params: Vec<Param>) -> Launch {
    let (grid, block) = ([grid[0], grid[1], 1], [block, 1, 1]);
    Launch { entry: entry.into(), grid, cluster: None, block, shared_bytes, params }
}

fn run(machine: &mut Machine, module: &Module, launch: &Launch, options: &Options) {
    machine
        .run(module, launch, options)
        .unwrap_or_else(|f| panic!("{} {}: {f}", module.target(), launch.entry));
}

#[test]
fn a_sum_over_blocks() {
    let x = floats(1000);
    // Multiples of 1/256 below 2^12: exact in every order.
    let want: f32 = x.iter().sum();
    for text in ptx!("reduce").into_iter().chain([DEBUG]) {
        let module = Module::parse(text).unwrap();
        for options in schedules() {
            let mut machine = Machine::new();
            let input = machine.memory.allocate_with(&bytes(&x, f32::to_le_bytes));
            let out = machine.memory.allocate_with(&[0; 4]);
            let params = vec![Param::U64(input), Param::U64(out), Param::U32(1000)];
            run(&mut machine, &module, &launch("block_sum", [3, 1], 256, 0, params), &options);
            assert_eq!(f32s(machine.memory.read(out, 4).unwrap()), [want]);
        }
    }
}

#[test]
fn a_softmax_in_dynamic_shared_memory() {
    let (rows, n) = (5, 100);
    let x = floats(rows * n);
    for text in ptx!("reduce").into_iter().chain([DEBUG]) {
        let module = Module::parse(text).unwrap();
        for options in schedules() {
            let mut machine = Machine::new();
            let input = machine.memory.allocate_with(&bytes(&x, f32::to_le_bytes));
            let out = machine.memory.allocate((rows * n * 4) as usize);
            let params = vec![Param::U64(input), Param::U64(out), Param::U32(n)];
            run(&mut machine, &module, &launch("softmax", [rows, 1], 32, n * 4, params), &options);
            let got = f32s(machine.memory.read(out, (rows * n * 4) as usize).unwrap());
            for (row, got) in x.chunks(n as usize).zip(got.chunks(n as usize)) {
                let top = row.iter().copied().fold(f32::MIN, f32::max);
                let sum: f64 = row.iter().map(|v| f64::from(v - top).exp()).sum();
                for (v, g) in row.iter().zip(got) {
                    let want = f64::from(v - top).exp() / sum;
                    assert!((f64::from(*g) - want).abs() <= want * 2e-6, "{g} is not {want}");
                }
            }
        }
    }
}

/// bf16 inputs with exponents of one range, so that sums of a few dozen products are exact in f32 up to
/// the rounding of the tensor core, which is below that of the output.
#[test]
fn a_product_with_mma_and_cp_async() {
    let (m, n, k) = (100usize, 72, 80);
    let codes = |offset: u32, n: usize| -> Vec<u16> {
        (0..n as u32).map(|i| (hash(i + offset) & 0x8070 | 0x3f80) as u16).collect()
    };
    let (a, b) = (codes(0, m * k), codes(7777, n * k));
    let value = |c: u16| f64::from(f32::from_bits(u32::from(c) << 16));
    for text in ptx!("matmul") {
        let module = Module::parse(text).unwrap();
        for options in schedules() {
            let mut machine = Machine::new();
            let pa = machine.memory.allocate_with(&bytes(&a, u16::to_le_bytes));
            let pb = machine.memory.allocate_with(&bytes(&b, u16::to_le_bytes));
            let pc = machine.memory.allocate(m * n * 2);
            let mut params = vec![Param::U64(pa), Param::U64(pb), Param::U64(pc)];
            params.extend([m, n, k].map(|x| Param::U32(x as u32)));
            run(&mut machine, &module, &launch("matmul", [2, 2], 128, 0, params), &options);
            let got = machine.memory.read(pc, m * n * 2).unwrap();
            for i in 0..m {
                for j in 0..n {
                    // Products are multiples of 2^-6: the sum is exact.
                    let sum: f64 = (0..k).map(|x| value(a[i * k + x]) * value(b[j * k + x])).sum();
                    let bits = (sum as f32).to_bits();
                    let want = ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16;
                    let at = (i * n + j) * 2;
                    assert_eq!(u16::from_le_bytes([got[at], got[at + 1]]), want, "({i}, {j})");
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Mixed {
    a: i32,
    b: f32,
    c: [i64; 2],
}

fn mix(p: Mixed, k: i32) -> Mixed {
    let wide = i64::from(k);
    Mixed { a: p.a.wrapping_mul(k), b: p.b / k as f32, c: [p.c[1] / (wide + 3), p.c[0] % (wide + 7)] }
}

fn choose(op: i32, x: i32) -> i32 {
    let u = x as u32;
    match op {
        0 => x.wrapping_add(1),
        1 => x.wrapping_mul(7),
        2 => x ^ 0x55,
        3 => (u.count_ones() + u.leading_zeros()) as i32,
        4 => (u.reverse_bits() >> 20) as i32,
        5 => (!u << 5 | u >> 27) as i32,
        6 => x.wrapping_div(x | 1),
        _ => x.wrapping_neg(),
    }
}

/// `__brev` is unsigned, so its shift is logical; the rest follows the source line by line.
fn calls(t: i32, seed: i32) -> (i32, i64, f64) {
    let primes = [2, 3, 5, 7, 11, 13, 17, 19];
    let stack: Vec<i32> = (0..16).map(|i| choose((t + i) % 9, seed + i * t)).collect();
    let mut p = Mixed { a: t, b: 1.5 * t as f32, c: [i64::from(t) * 1_000_000_007, -i64::from(t)] };
    p = mix(p, primes[t as usize % 8]);
    if t & 1 == 1 {
        p = mix(p, stack[t as usize % 16] & 15 | 1);
    }
    let out = stack[(seed + t) as usize % 16].wrapping_add(p.a).wrapping_add((p.b * 4.0) as i32);
    let (x, mut s) = (1.0 + f64::from(t), 0f64);
    for i in 1..=t % 5 + 1 {
        s = s.mul_add(x, 1.0 / f64::from(i)) + x.sqrt();
    }
    (out, p.c[0] - p.c[1], s)
}

#[test]
fn calls_structures_tables_and_local_arrays() {
    for text in ptx!("calls") {
        let module = Module::parse(text).unwrap();
        for options in schedules() {
            let mut machine = Machine::new();
            let out = machine.memory.allocate(256);
            let (wide, real) = (machine.memory.allocate(512), machine.memory.allocate(512));
            let params = vec![Param::U64(out), Param::U64(wide), Param::U64(real), Param::U32(12345)];
            run(&mut machine, &module, &launch("calls", [2, 1], 32, 0, params), &options);
            let read = |m: &mut Machine, a, n| m.memory.read(a, n).unwrap().to_vec();
            let ints = u32s(&read(&mut machine, out, 256));
            let words = |b: Vec<u8>| -> Vec<u64> {
                b.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect()
            };
            let (wide, real) = (words(read(&mut machine, wide, 512)), words(read(&mut machine, real, 512)));
            for t in 0..64 {
                let want = calls(t as i32, 12345);
                assert_eq!(ints[t] as i32, want.0, "{} thread {t}", module.target());
                assert_eq!(wide[t] as i64, want.1, "{} thread {t}", module.target());
                assert_eq!(f64::from_bits(real[t]), want.2, "{} thread {t}", module.target());
            }
            // Threads 0, 3, ..., 63 add 2 through a pointer that the module initializes.
            let counter = module.symbol("counter").unwrap();
            assert_eq!(machine.memory.read(counter, 4).unwrap(), (5u32 + 2 * 22).to_le_bytes());
        }
    }
}

/// The memory that atomics leave behind; and every generation gives the same words for every thread.
#[test]
fn votes_atomics_and_small_floats() {
    let x: Vec<u32> = (0..64).map(|i| hash(i) % 1000).collect();
    let mut results: Vec<Vec<u32>> = Vec::new();
    for text in ptx!("lanes").into_iter().chain([LINES]) {
        let module = Module::parse(text).unwrap();
        for options in schedules() {
            let mut machine = Machine::new();
            let input = machine.memory.allocate_with(&bytes(&x, u32::to_le_bytes));
            let out = machine.memory.allocate(256);
            let cells = machine.memory.allocate_with(&[0; 32]);
            let sums = machine.memory.allocate_with(&[0; 4]);
            let params = [input, out, cells, sums].map(Param::U64).to_vec();
            run(&mut machine, &module, &launch("lanes", [1, 1], 64, 0, params), &options);
            let left = u32s(machine.memory.read(cells, 32).unwrap());
            let xor = x.iter().fold(0, |a, b| a ^ b);
            // Inc wraps at 10: 64 steps end at 64 mod 11. 64 halves of 1 and 2, 64 bf16 of 1 and -1.
            assert_eq!(left[..5], [9, 77, 64 % 11, -63i32 as u32, xor]);
            assert_eq!(left[5], 0x5800_5400);
            assert_eq!(left[6], 0xc280_4280);
            assert_eq!(f32s(machine.memory.read(sums, 4).unwrap()), [32.0]);
            results.push(u32s(machine.memory.read(out, 256).unwrap()));
        }
    }
    assert!(results.windows(2).all(|w| w[0] == w[1]), "the generations differ");
}

/// `-lineinfo` gives every fault its place in the CUDA source.
#[test]
fn faults_point_at_the_cuda_source() {
    let module = Module::parse(LINES).unwrap();
    let mut machine = Machine::new();
    let input = machine.memory.allocate_with(&[0; 128]);
    let params = [input; 4].map(Param::U64).to_vec();
    let fault =
        machine.run(&module, &launch("lanes", [1, 1], 64, 0, params), &Options::default()).unwrap_err();
    let at = fault.at.clone().expect("a fault has a place");
    let line = LINES.lines().nth(at.line as usize - 1).unwrap();
    assert_eq!(fault.kind, FaultKind::OutOfBounds, "{fault}");
    assert!(line.contains("ld.global"), "{line}");
    // `v = x[t]` of the second line of the body.
    let source = include_str!("../ptx/nvcc/lanes.cu");
    let (file, number) = at.source.expect("the text has line information");
    assert_eq!(file, "lanes.cu");
    assert!(source.lines().nth(number as usize - 1).unwrap().contains("v = x[t]"), "line {number}");
}

/// A function by its place in a table, by an argument and as a virtual method; lanes of a warp go different ways.
#[test]
fn calls_through_pointers() {
    let n = 48u32;
    let function = |which: u32, x: f32| match which {
        0 => x + x,
        1 => x + n as f32,
        _ => x * x,
    };
    let which: Vec<u32> = (0..n).map(|i| hash(i) % 3).collect();
    for text in ptx!("indirect") {
        let module = Module::parse(text).unwrap();
        for options in schedules() {
            let mut machine = Machine::new();
            let out = machine.memory.allocate(n as usize * 4);
            let table = machine.memory.allocate_with(&bytes(&which, u32::to_le_bytes));
            let mut results = |entry: &str, block: u32, params: Vec<Param>| {
                let params = [vec![Param::U64(out)], params, vec![Param::U32(n)]].concat();
                run(&mut machine, &module, &launch(entry, [n / block, 1], block, 0, params), &options);
                f32s(machine.memory.read(out, n as usize * 4).unwrap())
            };
            let got = results("by_table", 24, vec![Param::U64(table)]);
            let want: Vec<f32> = (0..n).map(|i| function(which[i as usize], i as f32)).collect();
            assert_eq!(got, want);
            for pick in 0..3 {
                let got = results("by_argument", n, vec![Param::U32(pick)]);
                let want: Vec<f32> = (0..n).map(|i| function(pick, i as f32) + 1.0).collect();
                assert_eq!(got, want);
            }
            let got = results("by_virtual", n, vec![]);
            let area = |i: u32| if i.is_multiple_of(3) { (i * i) as f32 } else { (i * n) as f32 };
            assert_eq!(got, (0..n).map(area).collect::<Vec<_>>());
        }
    }
}

/// A pointer to nothing, to a function of another kind, and to one that is running.
#[test]
fn pointers_that_cannot_be_called() {
    let kernel = |pointer: &str| {
        format!(
            ".version 8.3\n.target sm_90\n.address_size 64
            .func (.param .b32 r) one(.param .b32 a) {{ .reg .b32 x; ld.param.b32 x, [a]; st.param.b32 [r], x; ret; }}
            .func other(.param .b64 a) {{ ret; }}
            .func (.param .b32 r) again(.param .b32 a);
            .global .u64 table[3] = {{one, other, again}};
            .func (.param .b32 r) again(.param .b32 a) {{
                .reg .b64 f; .param .b32 q; .param .b32 s; ld.global.u64 f, [table+16]; st.param.b32 [q], 1;
                P: .callprototype (.param .b32 _) _ (.param .b32 _); call (s), f, (q), P; ret;
            }}
            .visible .entry k() {{
                .reg .pred p; .reg .b64 f; .reg .b32 x; .param .b32 q; .param .b32 s; {pointer} st.param.b32 [q], 7;
                P: .callprototype (.param .b32 _) _ (.param .b32 _);
                call (s), f, (q), P; ld.param.b32 x, [s]; setp.ne.u32 p, x, 7; @p trap; ret;
            }}"
        )
    };
    let outcome = |pointer: &str| {
        let module = Module::parse(&kernel(pointer)).unwrap_or_else(|e| panic!("{e}"));
        Machine::new().run(&module, &launch("k", [1, 1], 32, 0, vec![]), &Options::default())
    };
    outcome("mov.u64 f, one;").unwrap();
    outcome("ld.global.u64 f, [table];").unwrap();
    for (pointer, message) in [
        ("mov.u64 f, 0;", "a call through 0x0, which is not the address of a function with these parameters"),
        ("mov.u64 f, other;", "which is not the address of a function with these parameters"),
        ("mov.u64 f, again;", "recursion is not supported"),
    ] {
        let fault = outcome(pointer).unwrap_err();
        assert_eq!(fault.kind, FaultKind::BadOperand, "{fault}");
        assert!(fault.message.contains(message) && fault.at.is_some(), "{fault}");
    }
    let error = Module::parse(&kernel("mov.u64 f, k;")).unwrap_err();
    assert!(error.message.contains("`k` has no address"), "{error}");
}

fn f16(x: f32) -> [u8; 2] {
    // Small multiples of 1/8: exact.
    let (bits, sign) = (x.to_bits(), (x.to_bits() >> 16 & 0x8000) as u16);
    let exponent = (bits >> 23 & 0xff) as i32 - 112;
    let code = if x == 0.0 { 0 } else { (exponent as u16) << 10 | (bits >> 13 & 0x3ff) as u16 };
    (sign | code).to_le_bytes()
}

fn from_f16(b: &[u8]) -> f32 {
    let code = u16::from_le_bytes([b[0], b[1]]);
    let (exponent, mantissa) = (i32::from(code >> 10 & 31), f32::from(code & 0x3ff));
    let magnitude = if exponent == 0 {
        mantissa * 2f32.powi(-24)
    } else {
        (1024.0 + mantissa) * 2f32.powi(exponent - 25)
    };
    if code & 0x8000 != 0 { -magnitude } else { magnitude }
}

/// `d[i, j] = sum over x of a(i, x) * b(x, j) + c(i, j)` in the order of rows.
fn product(
    [m, n, k]: [usize; 3],
    a: impl Fn(usize, usize) -> f64,
    b: impl Fn(usize, usize) -> f64,
    c: impl Fn(usize, usize) -> f64,
) -> Vec<f64> {
    let element = |i: usize, j: usize| (0..k).map(|x| a(i, x) * b(x, j)).sum::<f64>() + c(i, j);
    (0..m * n).map(|e| element(e / n, e % n)).collect()
}

/// The fragments of `mma.h`: every type, three shapes, both orders, shared memory, and sums changed in registers. The
/// values are small multiples of 1/8, so that every product is exact.
#[test]
fn products_with_wmma() {
    let value = |i: usize| f64::from(hash(i as u32) % 17) / 8.0 - 1.0;
    let values = |n: usize| (0..n).map(value).collect::<Vec<f64>>();
    let other = |i: usize| value(i + 5000);
    for text in ptx!("wmma") {
        let module = Module::parse(text).unwrap();
        for options in schedules() {
            let mut machine = Machine::new();
            let results =
                |machine: &mut Machine, entry: &str, inputs: &[Vec<u8>], out: usize, more: &[u32]| {
                    let mut params: Vec<Param> =
                        inputs.iter().map(|x| Param::U64(machine.memory.allocate_with(x))).collect();
                    let d = machine.memory.allocate(out);
                    params.push(Param::U64(d));
                    params.extend(more.iter().map(|x| Param::U32(*x)));
                    run(machine, &module, &launch(entry, [1, 1], 32, 0, params), &options);
                    machine.memory.read(d, out).unwrap().to_vec()
                };
            let halves = |n: usize, of: &dyn Fn(usize) -> f64| -> Vec<u8> {
                (0..n).flat_map(|i| f16(of(i) as f32)).collect()
            };
            let none = |_: usize, _: usize| 0.0;

            // A by rows of 40, B by columns of 48, D by rows of 20; K of 32 in two steps.
            let inputs = [halves(16 * 40, &value), halves(16 * 48, &other)];
            let got = results(&mut machine, "half_16", &inputs, 16 * 20 * 4, &[40, 48, 20]);
            let want = product([16, 16, 32], |i, x| value(i * 40 + x), |x, j| other(j * 48 + x), none);
            let got: Vec<f32> = f32s(&got);
            assert!((0..256).all(|e| f64::from(got[e / 16 * 20 + e % 16]) == want[e]), "half_16");

            // A by columns in shared memory, B and C by rows, D by columns; 1 is added in registers.
            let inputs = [halves(512, &value), halves(128, &other), halves(256, &|i| value(i + 900))];
            let got = results(&mut machine, "half_sums", &inputs, 512, &[]);
            let c = |i: usize, j: usize| value(i * 8 + j + 900) + 1.0;
            let want = product([32, 8, 16], |i, x| value(x * 32 + i), |x, j| other(x * 8 + j), c);
            let got: Vec<f32> = got.chunks(2).map(from_f16).collect();
            assert!((0..256).all(|e| f64::from(got[e % 8 * 32 + e / 8]) == want[e]), "half_sums");

            let code = |i: usize| hash(i as u32) as u8 as i8;
            let bytes_of =
                |n: usize, from: usize| (from..from + n).map(|i| code(i) as u8).collect::<Vec<u8>>();
            let inputs = [bytes_of(128, 0), bytes_of(512, 300)];
            let got = u32s(&results(&mut machine, "bytes_8x32", &inputs, 8 * 32 * 4, &[]));
            let byte = |i: usize| f64::from(code(i));
            let want =
                product([8, 32, 16], |i, x| byte(i * 16 + x), |x, j| byte(300 + j * 16 + x), |_, _| 5.0);
            assert_eq!(got.iter().map(|x| f64::from(*x as i32)).collect::<Vec<_>>(), want);

            let brain = |n: usize, of: &dyn Fn(usize) -> f64| -> Vec<u8> {
                (0..n).flat_map(|i| ((of(i) as f32).to_bits() >> 16).to_le_bytes()[..2].to_vec()).collect()
            };
            let inputs = [brain(256, &value), brain(256, &other)];
            let got = f32s(&results(&mut machine, "brain_16", &inputs, 1024, &[]));
            let want = product([16, 16, 16], |i, x| value(i * 16 + x), |x, j| other(x * 16 + j), |_, _| 0.5);
            assert_eq!(got.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), want);

            let singles = |n: usize, of: &dyn Fn(usize) -> f64| -> Vec<u8> {
                (0..n).flat_map(|i| (of(i) as f32).to_le_bytes()).collect()
            };
            let inputs = [singles(128, &value), singles(128, &other)];
            let got = f32s(&results(&mut machine, "tf32_16", &inputs, 1024, &[]));
            let want = product([16, 16, 8], |i, x| value(i * 8 + x), |x, j| other(j * 8 + x), none);
            assert_eq!(got.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), want);

            let doubles = |v: Vec<f64>| bytes(&v, f64::to_le_bytes);
            let inputs = [doubles(values(32)), doubles((0..32).map(other).collect())];
            let got = results(&mut machine, "double_8", &inputs, 512, &[]);
            let want = product([8, 8, 4], |i, x| value(i * 4 + x), |x, j| other(j * 4 + x), |_, _| 0.25);
            assert_eq!(got, doubles(want));
        }
    }
}
