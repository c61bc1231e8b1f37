//! The product before the norm of a hyper-connection: the kernels in the simulator against the reference.

use crate::common::{same_bits, some_schedules};
use oxigemm::metrics::calc_diff;
use oxigemm::{
    DType, Device, GemmOptions, RawHcPrenormGemm, Tensor, random, tf32_hc_prenorm_gemm,
    tf32_hc_prenorm_gemm_raw,
};

/// Simulated devices of every architecture.
fn simulated() -> [Device; 2] {
    ["sim", "sim:sm_100a"].map(|name| name.parse().expect("a device"))
}

struct Case {
    m: usize,
    n: usize,
    k: usize,
    splits: Option<usize>,
}

impl Case {
    /// D and the sums of squares.
    fn run(&self, device: &Device) -> [Tensor; 2] {
        self.run_with(device, &GemmOptions::default())
    }

    fn run_with(&self, device: &Device, options: &GemmOptions) -> [Tensor; 2] {
        let Case { m, n, k, splits } = *self;
        // Rows that are apart, and begin at multiples of 16 bytes.
        let rows = |dtype, seed, rows: usize| {
            let mut part = Tensor::empty(dtype, &[rows, k.next_multiple_of(8) + 8], device)
                .unwrap()
                .narrow(1, 0, k)
                .unwrap();
            part.write_f32(&random::normals(seed, rows * k)).unwrap();
            part
        };
        let (a, b) = (rows(DType::Bf16, 1, m), rows(DType::F32, 2, n));
        let [d_dims, s_dims] = match splits {
            None => [vec![m, n], vec![m]],
            Some(splits) => [vec![splits, m, n], vec![splits, m]],
        };
        let mut d = Tensor::empty(DType::F32, &d_dims, device).unwrap();
        let mut sqr_sum = Tensor::empty(DType::F32, &s_dims, device).unwrap();
        tf32_hc_prenorm_gemm(&a, &b, &mut d, &mut sqr_sum, options).unwrap();
        [d, sqr_sum]
    }
}

#[test]
fn every_number_of_columns_gives_the_reference() {
    for (i, n) in [8, 16, 24, 32].into_iter().enumerate() {
        for (j, k) in [8, 200, 1024].into_iter().enumerate() {
            let splits = [None, Some(1), Some(3), Some(16)][(i + j) % 4];
            let case = Case { m: [1, 64, 137][(i + 2 * j) % 3], n, k, splits };
            let expected = case.run(&Device::Cpu);
            for device in simulated() {
                expect_close(&case.run(&device), &expected, &format!("{device}: n={n} k={k} {splits:?}"));
            }
        }
    }
}

#[test]
fn splits_take_blocks_of_k_in_turn() {
    let (n, blocks, splits) = (8, 5, 2);
    let k = 64 * blocks;
    for device in simulated().into_iter().chain([Device::Cpu]) {
        let b = Tensor::from_slice(&vec![1f32; n * k], &[n, k], &device).unwrap();
        for block in 0..blocks {
            // One number that is not 0.
            let row: Vec<f32> = (0..k).map(|i| if i == 64 * block + 3 { 2.0 } else { 0.0 }).collect();
            let a = Tensor::from_f32(DType::Bf16, &row, &[1, k], &device).unwrap();
            let mut d = Tensor::zeros(DType::F32, &[splits, 1, n], &device).unwrap();
            let mut sqr_sum = Tensor::zeros(DType::F32, &[splits, 1], &device).unwrap();
            tf32_hc_prenorm_gemm(&a, &b, &mut d, &mut sqr_sum, &GemmOptions::default()).unwrap();
            let mut expected = [[0f32; 8]; 2];
            expected[block % splits] = [2.0; 8];
            assert_eq!(d.to_vec_f32().unwrap(), expected.as_flattened(), "block {block}");
            let squares = expected.map(|split| split[0] * split[0]);
            assert_eq!(sqr_sum.to_vec_f32().unwrap(), squares, "block {block}");
        }
    }
}

fn expect_close(found: &[Tensor; 2], expected: &[Tensor; 2], what: &str) {
    for (found, expected) in found.iter().zip(expected) {
        let [found, expected] = [found, expected].map(|tensor| tensor.to_vec_f32().unwrap());
        let diff = calc_diff(&found, &expected);
        assert!(diff < 1e-11, "{what}: diff {diff}");
    }
}

/// Few blocks have parts of several rows and splits each, or do not share K evenly; more splits than blocks of K are zeros.
#[test]
fn blocks_may_share_rows_and_splits_in_any_way() {
    for (m, k, splits, sms) in [
        (300, 64 * 20, None, 5),
        (300, 64 * 20, Some(3), 5),
        (260, 64 * 9, Some(2), 7),
        (130, 64 * 11, Some(11), 1),
        (130, 64 * 3, Some(8), 132),
        (16, 64 * 20, None, 132),
        (16, 64 * 20 - 24, Some(3), 132),
    ] {
        let case = Case { m, n: 8, k, splits };
        let options = GemmOptions { num_sms: Some(sms), ..GemmOptions::default() };
        let expected = case.run(&Device::Cpu);
        for device in simulated() {
            let what = format!("{device}: m={m} k={k} {splits:?}, {sms} SMs");
            expect_close(&case.run_with(&device, &options), &expected, &what);
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_every_batch_that_asks_for_it() {
    let options = GemmOptions { batch_invariant: true, ..GemmOptions::default() };
    for device in simulated() {
        let run = |m| Case { m, n: 16, k: 64 * 20, splits: None }.run_with(&device, &options);
        let [few, many] = [run(3), run(137)];
        for (few, many) in few.iter().zip(many) {
            let few = few.to_bytes().unwrap();
            assert_eq!(few, many.to_bytes().unwrap()[..few.len()], "{device}");
        }
    }
}

#[test]
fn weights_that_are_not_finite_stay_in_their_columns() {
    simulated().iter().for_each(weights_that_are_not_finite);
}

fn weights_that_are_not_finite(device: &Device) {
    let (m, n, k) = (5, 8, 192);
    let mut weights = vec![1.0f32; n * k];
    for (column, weight) in
        [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, 1e38].into_iter().enumerate()
    {
        weights[column * k + 100] = weight;
    }
    let a = Tensor::from_f32(DType::Bf16, &vec![1.0; m * k], &[m, k], device).unwrap();
    let b = Tensor::from_slice(&weights, &[n, k], device).unwrap();
    let mut d = Tensor::zeros(DType::F32, &[m, n], device).unwrap();
    let mut sqr_sum = Tensor::zeros(DType::F32, &[m], device).unwrap();
    tf32_hc_prenorm_gemm(&a, &b, &mut d, &mut sqr_sum, &GemmOptions::default()).unwrap();
    for row in d.to_vec_f32().unwrap().chunks(n) {
        assert_eq!(row[..2], [f32::INFINITY, f32::NEG_INFINITY]);
        assert!(row[2].is_nan(), "{row:?}");
        assert_eq!(row[3], f32::INFINITY, "{device}: beyond the largest TF32");
        assert!((row[4] / 1e38 - 1.0).abs() < 1e-3, "{row:?}");
        assert_eq!(row[5..], [192.0; 3]);
    }
    assert_eq!(sqr_sum.to_vec_f32().unwrap(), [192.0; 5]);
}

#[test]
fn no_rows_are_no_work() {
    for device in simulated().into_iter().chain([Device::Cpu]) {
        for splits in [None, Some(3)] {
            let case = Case { m: 0, n: 16, k: 200, splits };
            assert!(case.run(&device).iter().all(|tensor| tensor.is_empty()), "{device}");
        }
    }
}

#[test]
fn rows_that_are_not_finite_do_not_touch_others() {
    let (m, n, k) = (140, 8, 192);
    let mut rows = random::normals(1, m * k);
    let odd = [(3, f32::NAN), (64, f32::INFINITY), (139, f32::NEG_INFINITY)];
    for (row, value) in odd {
        rows[row * k + 100] = value;
    }
    let weights = random::normals(2, n * k);
    let compute = |device: Device| {
        let a = Tensor::from_f32(DType::Bf16, &rows, &[m, k], &device).unwrap();
        let b = Tensor::from_slice(&weights, &[n, k], &device).unwrap();
        let mut d = Tensor::zeros(DType::F32, &[m, n], &device).unwrap();
        let mut sqr_sum = Tensor::zeros(DType::F32, &[m], &device).unwrap();
        tf32_hc_prenorm_gemm(&a, &b, &mut d, &mut sqr_sum, &GemmOptions::default()).unwrap();
        let (d, mut squares) = (d.to_vec_f32().unwrap(), sqr_sum.to_vec_f32().unwrap());
        for (row, value) in odd {
            // Infinity times the two parts of a weight may be infinity or NaN.
            assert!(d[row * n..][..n].iter().all(|x| !x.is_finite()), "{device}: row {row}");
            let square = std::mem::take(&mut squares[row]);
            assert!(
                if value.is_nan() { square.is_nan() } else { square == f32::INFINITY },
                "{device}: {square}"
            );
        }
        let others = (0..m).filter(|row| odd.iter().all(|(odd, _)| odd != row));
        let d: Vec<f32> = others.flat_map(|row| d[row * n..][..n].to_vec()).collect();
        [d, squares].map(|values| Tensor::from_slice(&values, &[values.len()], &Device::Cpu).unwrap())
    };
    let expected = compute(Device::Cpu);
    for device in simulated() {
        expect_close(&compute(device), &expected, "rows that are finite");
    }
}

/// Products of numbers with a deviation of 1 have one of the square root of K.
#[test]
fn sums_are_those_of_tf32_weights() {
    let case = Case { m: 16, n: 24, k: 7168, splits: None };
    let [exact_products, exact_squares] = case.run(&Device::Cpu);
    let worst = |found: &Tensor, exact: &Tensor, part: &dyn Fn(f32) -> f32| {
        let (found, exact) = (found.to_vec_f32().unwrap(), exact.to_vec_f32().unwrap());
        found.iter().zip(exact).map(|(found, exact)| (found - exact).abs() / part(exact)).fold(0.0, f32::max)
    };
    let errors = |device: &Device, batch_invariant| {
        let options = GemmOptions { batch_invariant, ..GemmOptions::default() };
        let [products, squares] = case.run_with(device, &options);
        [
            worst(&products, &exact_products, &|_| 7168f32.sqrt()),
            worst(&squares, &exact_squares, &|exact| exact),
        ]
    };
    for device in simulated() {
        let [products, squares] = errors(&device, false);
        assert!(products < 2e-5, "{device}: products: {products}");
        assert!(squares < 1e-6, "{device}: squares: {squares}");
    }
    // One CTA has all of K.
    let [hopper, blackwell] = simulated().map(|device| errors(&device, true));
    assert!(blackwell[0] <= hopper[0] && blackwell[1] <= hopper[1], "{hopper:?} {blackwell:?}");
}

#[test]
fn no_schedule_changes_the_bits() {
    for (k, splits, num_sms) in [(64 * 40, None, None), (64 * 12, Some(2), Some(3))] {
        let case = Case { m: 130, n: 24, k, splits };
        let options = GemmOptions { num_sms, ..GemmOptions::default() };
        for device in simulated() {
            let sim = device.as_sim().expect("a simulated one");
            same_bits("hc", some_schedules(), sim, |_| {
                case.run_with(&device, &options).map(|tensor| tensor.to_bytes().unwrap()).concat()
            });
        }
    }
}

/// Neighbours are stored together only where they are aligned.
#[test]
fn rows_of_d_may_begin_anywhere() {
    simulated().iter().for_each(rows_of_d_begin_anywhere);
}

fn rows_of_d_begin_anywhere(device: &Device) {
    let (m, n, k) = (66, 24, 192);
    let a = Tensor::from_f32(DType::Bf16, &random::normals(1, m * k), &[m, k], device).unwrap();
    let b = Tensor::from_slice(&random::normals(2, n * k), &[n, k], device).unwrap();
    let with_gap = |gap: usize| {
        let room = Tensor::zeros(DType::F32, &[m, n + gap], device).unwrap();
        let (mut d, mut squares) =
            (room.narrow(1, gap, n).unwrap(), Tensor::zeros(DType::F32, &[m], device).unwrap());
        tf32_hc_prenorm_gemm(&a, &b, &mut d, &mut squares, &GemmOptions::default()).unwrap();
        d.to_vec_f32().unwrap()
    };
    let together = with_gap(0);
    assert_eq!(with_gap(1), together, "odd rows");
    assert_eq!(with_gap(2), together);
}

#[test]
fn raw_pointers_give_the_bits_of_tensors() {
    let device = Device::sim();
    let (m, n, k, splits) = (66, 24, 192, 2);
    let (a, b) = (random::normals(1, m * k), random::normals(2, n * k));
    let a = Tensor::from_f32(DType::Bf16, &a, &[m, k], &device).unwrap();
    let b = Tensor::from_slice(&b, &[n, k], &device).unwrap();
    let outputs = || {
        [vec![splits, m, n], vec![splits, m]].map(|dims| Tensor::zeros(DType::F32, &dims, &device).unwrap())
    };
    let [[mut d, mut squares], [raw_d, raw_squares]] = [outputs(), outputs()];
    tf32_hc_prenorm_gemm(&a, &b, &mut d, &mut squares, &GemmOptions::default()).unwrap();
    let raw = RawHcPrenormGemm {
        m,
        n,
        k,
        splits,
        a: a.address(),
        a_pitch: k,
        b: b.address(),
        b_pitch: k,
        d: raw_d.address(),
        d_pitch: n,
        d_split: m * n,
        sqr_sum: raw_squares.address(),
    };
    // SAFETY: the tensors live until the simulator is done, which is when the call returns; null is refused.
    let refused = unsafe {
        tf32_hc_prenorm_gemm_raw(&device, &raw, &GemmOptions::default()).unwrap();
        tf32_hc_prenorm_gemm_raw(&device, &RawHcPrenormGemm { a: 0, ..raw }, &GemmOptions::default())
    };
    assert_eq!(refused.unwrap_err().argument(), Some("a"));
    assert_eq!(d.to_bytes().unwrap(), raw_d.to_bytes().unwrap());
    assert_eq!(squares.to_bytes().unwrap(), raw_squares.to_bytes().unwrap());
}

#[test]
fn what_breaks_a_rule_is_refused_by_name() {
    let device = Device::cpu();
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
    let (bf16, f32) = (DType::Bf16, DType::F32);
    let (a, b, d, s) = (new(bf16, &[4, 64]), new(f32, &[24, 64]), new(f32, &[4, 24]), new(f32, &[4]));
    let shared = new(f32, &[4, 64]);
    let cases = [
        ("a", "f32 rows", new(f32, &[4, 64]), b.clone(), d.clone(), s.clone()),
        ("a", "no columns", new(bf16, &[4, 0]), new(f32, &[24, 0]), d.clone(), s.clone()),
        (
            "a",
            "a pitch of 8 bytes",
            new(bf16, &[4, 68]).narrow(1, 0, 64).unwrap(),
            b.clone(),
            d.clone(),
            s.clone(),
        ),
        ("b", "bf16", a.clone(), new(bf16, &[24, 64]), d.clone(), s.clone()),
        ("b", "another K", a.clone(), new(f32, &[24, 128]), d.clone(), s.clone()),
        ("b", "20 rows", a.clone(), new(f32, &[20, 64]), new(f32, &[4, 20]), s.clone()),
        ("b", "40 rows", a.clone(), new(f32, &[40, 64]), new(f32, &[4, 40]), s.clone()),
        ("b", "at 8 bytes", a.clone(), new(f32, &[24, 72]).narrow(1, 2, 64).unwrap(), d.clone(), s.clone()),
        ("d", "bf16", a.clone(), b.clone(), new(bf16, &[4, 24]), s.clone()),
        ("d", "another shape", a.clone(), b.clone(), new(f32, &[4, 25]), s.clone()),
        ("d", "one dimension", a.clone(), b.clone(), new(f32, &[96]), s.clone()),
        ("d", "no splits", a.clone(), b.clone(), new(f32, &[0, 4, 24]), new(f32, &[0, 4])),
        ("d", "columns first", a.clone(), b.clone(), new(f32, &[24, 4]).transpose(0, 1).unwrap(), s.clone()),
        ("sqr_sum", "splits of D alone", a.clone(), b.clone(), new(f32, &[2, 4, 24]), s.clone()),
        ("sqr_sum", "too many", a.clone(), b.clone(), d.clone(), new(f32, &[5])),
        (
            "sqr_sum",
            "apart",
            a.clone(),
            b.clone(),
            d.clone(),
            new(f32, &[4, 2]).transpose(0, 1).unwrap().select(0).unwrap(),
        ),
        (
            "sqr_sum",
            "inside of D",
            a.clone(),
            b.clone(),
            shared.narrow(1, 0, 24).unwrap(),
            shared.view(&[256]).unwrap().narrow(0, 1, 4).unwrap(),
        ),
    ];
    for (argument, what, a, b, mut d, mut s) in cases {
        let error = tf32_hc_prenorm_gemm(&a, &b, &mut d, &mut s, &GemmOptions::default()).expect_err(what);
        assert_eq!(error.argument(), Some(argument), "{what}: {error}");
    }
}
