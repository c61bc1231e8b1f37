//! The rules of the GEMMs with 16-bit operands: each broken alone names its variant and its argument, and everything
//! valid passes.

use oxigemm::check::{Accumulate, Checked, GemmDesc, Operand, Problem, Trivial};
use oxigemm::{
    Addend, DType, Device, DeviceId, Error, GemmLayout, GemmOptions, Tensor, bf16_gemm_nn, bf16_gemm_nt,
    bf16_gemm_tn, bf16_gemm_tt, fp16_gemm_nn, fp16_gemm_nt, fp16_gemm_tn, fp16_gemm_tt, half_gemm,
};
use oxigemm_kernels::gemm::operand::f16::{Half, Major};
use proptest::prelude::*;

const GPU: DeviceId = DeviceId::Cuda(0);

/// Contiguous arguments, a gigabyte apart from each other.
fn arguments(layout: GemmLayout, [m, n, k]: [i64; 3], ab_type: DType, d_type: DType) -> GemmDesc {
    let matrix = |name, dtype, [rows, columns]: [i64; 2], place: u64| {
        Operand::matrix(name, dtype, [rows, columns], [columns, 1], place << 30, GPU)
    };
    let a = if layout.a_begins_with_k() { [k, m] } else { [m, k] };
    let b = if layout.b_begins_with_k() { [k, n] } else { [n, k] };
    let (a, b) = (matrix("a", ab_type, a, 1), matrix("b", ab_type, b, 2));
    GemmDesc { layout, ..GemmDesc::new(a, b, matrix("d", d_type, [m, n], 3)) }
}

fn good() -> GemmDesc {
    arguments(GemmLayout::Nn, [64, 256, 512], DType::Bf16, DType::Bf16)
}

/// `good` with a C of its own.
fn good_with_c() -> GemmDesc {
    let mut arguments = good();
    arguments.c = Some(Operand { name: "c", address: 6 << 30, ..arguments.d });
    arguments
}

fn c(arguments: &mut GemmDesc) -> &mut Operand {
    arguments.c.as_mut().expect("there is a C")
}

fn launch(arguments: GemmDesc) -> Problem {
    match arguments.check() {
        Ok(Checked::Launch(problem)) => problem,
        other => panic!("expected a launch, found {other:?}"),
    }
}

fn majors(problem: Problem) -> (Half, Major, Major) {
    let operands = problem.family.as_f16().expect("these are 16-bit operands");
    (operands.element, operands.a, operands.b)
}

/// Breaks the good arguments and expects one variant for one argument, with a sentence that names it.
macro_rules! refused {
    ($name:ident, $variant:ident, $argument:literal, $break:expr) => {
        #[test]
        fn $name() {
            let mut arguments = good_with_c();
            let change: fn(&mut GemmDesc) = $break;
            change(&mut arguments);
            let error = arguments.check().expect_err("the rule is broken");
            assert!(matches!(error, Error::$variant { argument: $argument, .. }), "found {error:?}");
            assert!(error.to_string().starts_with(concat!("`", $argument, "` ")), "{error}");
        }
    };
}

refused!(a_of_rank_3, Rank, "a", |x| x.a.rank = 3);
refused!(b_of_rank_1, Rank, "b", |x| x.b.rank = 1);
refused!(c_of_rank_4, Rank, "c", |x| c(x).rank = 4);
refused!(d_of_rank_0, Rank, "d", |x| x.d.rank = 0);

refused!(a_of_e4m3, DType, "a", |x| x.a.dtype = DType::E4m3);
// An f32 A is multiplied as TF32, and by such a B alone.
refused!(b_unlike_a_of_f32, DType, "b", |x| x.a.dtype = DType::F32);
refused!(a_of_i32, DType, "a", |x| x.a.dtype = DType::I32);
refused!(b_unlike_a, DType, "b", |x| x.b.dtype = DType::F16);
refused!(c_unlike_d, DType, "c", |x| c(x).dtype = DType::F32);
refused!(d_of_the_other_16_bits, DType, "d", |x| x.d.dtype = DType::F16);

refused!(a_of_negative_rows, Shape, "a", |x| x.a.dims[0] = -1);
refused!(b_with_another_k, Shape, "b", |x| x.b.dims[0] = 384);
refused!(c_with_another_shape, Shape, "c", |x| c(x).dims[0] = 65);
refused!(d_with_other_rows, Shape, "d", |x| x.d.dims[0] = 63);
refused!(d_with_other_columns, Shape, "d", |x| x.d.dims[1] = 255);

refused!(a_contiguous_nowhere, Stride, "a", |x| x.a.strides = [1024, 2, 1, 1]);
refused!(b_contiguous_nowhere, Stride, "b", |x| x.b.strides = [2, 1024, 1, 1]);
refused!(a_with_one_row_for_all, Stride, "a", |x| x.a.strides[0] = 0);
refused!(b_backwards, Stride, "b", |x| x.b.strides[0] = -256);
refused!(c_in_column_major, Stride, "c", |x| c(x).strides = [1, 64, 1, 1]);
refused!(d_in_column_major, Stride, "d", |x| x.d.strides = [1, 64, 1, 1]);
refused!(d_with_rows_that_overlap, Stride, "d", |x| x.d.strides[0] = 248);

refused!(a_with_a_pitch_off_16_bytes, Tma, "a", |x| x.a.strides[0] = 516);
refused!(b_with_a_pitch_off_16_bytes, Tma, "b", |x| x.b.strides[0] = 257);
refused!(b_with_a_pitch_of_a_terabyte, Tma, "b", |x| x.b.strides[0] = 1 << 39);
refused!(c_with_a_pitch_beyond_32_bits, Overflow, "c", |x| c(x).strides[0] = 1 << 32);
refused!(d_with_a_pitch_beyond_32_bits, Overflow, "d", |x| x.d.strides[0] = 1 << 32);

refused!(a_off_16_bytes, Alignment, "a", |x| x.a.address += 8);
refused!(b_off_16_bytes, Alignment, "b", |x| x.b.address += 2);
refused!(c_off_its_elements, Alignment, "c", |x| c(x).address += 3);
refused!(d_off_its_elements, Alignment, "d", |x| x.d.address += 1);

refused!(a_on_another_device, Device, "b", |x| x.a.device = DeviceId::Cuda(1));
refused!(b_on_the_host, Device, "b", |x| x.b.device = DeviceId::Cpu);
refused!(c_on_another_device, Device, "c", |x| c(x).device = DeviceId::Cuda(1));
refused!(d_on_another_device, Device, "d", |x| x.d.device = DeviceId::Cuda(1));

refused!(a_null, NullPointer, "a", |x| x.a.address = 0);
refused!(b_null, NullPointer, "b", |x| x.b.address = 0);
refused!(c_null, NullPointer, "c", |x| c(x).address = 0);
refused!(d_null, NullPointer, "d", |x| x.d.address = 0);

refused!(a_in_d, Overlap, "a", |x| x.a.address = x.d.address);
refused!(b_with_its_end_in_d, Overlap, "b", |x| x.b.address = x.d.address - 512 * 256 * 2 + 16);
refused!(c_one_row_off_d, Overlap, "c", |x| c(x).address = x.d.address + 512);

#[test]
fn an_error_tells_shapes_as_they_were_given() {
    let mut arguments = good();
    arguments.b.dims = [384, 256, 1, 1];
    let text = arguments.check().expect_err("another K").to_string();
    assert!(text.contains("[512, 256]") && text.contains("[384, 256]"), "{text}");
}

#[test]
fn a_layout_says_where_k_is_and_strides_say_what_is_contiguous() {
    let expected = [
        (GemmLayout::Nt, Major::K, Major::K),
        (GemmLayout::Nn, Major::K, Major::MN),
        (GemmLayout::Tn, Major::MN, Major::MN),
        (GemmLayout::Tt, Major::MN, Major::K),
    ];
    for (layout, a, b) in expected {
        let dims = [64, 256, 512];
        let problem = launch(arguments(layout, dims, DType::F16, DType::F32));
        assert_eq!((problem.m, problem.n, problem.k), (64, 256, 512), "{layout}");
        assert_eq!(majors(problem), (Half::F16, a, b), "{layout}");
        // The transposed view of the other layout is the same problem.
        let mut view = arguments(layout, dims, DType::F16, DType::F32);
        view.layout = GemmLayout::Nt;
        for (operand, k_first) in
            [(&mut view.a, layout.a_begins_with_k()), (&mut view.b, layout.b_begins_with_k())]
        {
            if k_first {
                operand.dims.swap(0, 1);
                operand.strides.swap(0, 1);
            }
        }
        assert_eq!(launch(view), problem, "{layout}");
    }
}

#[test]
fn a_dimension_of_one_takes_the_major_that_can_be_addressed() {
    // [M, 1] without gaps: no pitch of 16 bytes along K, but one column of M.
    let problem = launch(arguments(GemmLayout::Nt, [64, 256, 1], DType::Bf16, DType::Bf16));
    assert_eq!(majors(problem), (Half::Bf16, Major::MN, Major::MN));
    // One row: K-major, whatever its stride.
    let problem = launch(arguments(GemmLayout::Nt, [1, 256, 33 * 8], DType::Bf16, DType::Bf16));
    assert_eq!((majors(problem).1, problem.a_pitch), (Major::K, 264));
    let problem = launch(arguments(GemmLayout::Tn, [1, 256, 40], DType::Bf16, DType::Bf16));
    assert_eq!(majors(problem).1, Major::K, "[K, 1] without gaps is contiguous along K");
}

#[test]
fn what_multiplies_nothing_is_told_apart() {
    for layout in GemmLayout::ALL {
        let check = |dims, c_address: Option<u64>| {
            let mut arguments = arguments(layout, dims, DType::Bf16, DType::F32);
            let mut c = arguments.d;
            c.name = "c";
            if let Some(address) = c_address {
                c.address = address;
                arguments.c = Some(c);
            }
            arguments.check().expect("the arguments are good")
        };
        assert_eq!(check([0, 5, 7], None), Checked::Nothing);
        assert_eq!(check([5, 0, 7], None), Checked::Nothing);
        assert_eq!(check([5, 7, 0], None), Checked::Trivial(Trivial::Zero));
        assert_eq!(check([5, 7, 0], Some(3 << 30)), Checked::Nothing);
        assert_eq!(check([5, 7, 0], Some(4 << 30)), Checked::Trivial(Trivial::CopyC));
    }
}

#[test]
fn c_may_be_d() {
    let mut arguments = good_with_c();
    c(&mut arguments).address = arguments.d.address;
    assert_eq!(launch(arguments).c, Accumulate::InPlace);
}

proptest! {
    /// Whatever the shape, contiguous rows of a multiple of 16 bytes pass, and the problem is what was asked for.
    #[test]
    fn good_arguments_pass(m in 1i64..5000, n in 1i64..600, k in 1i64..600, layout in 0usize..4, wide: bool) {
        let layout = GemmLayout::ALL[layout];
        let round = |x: i64| (x + 7) / 8 * 8;
        // The last dimension of each operand is a multiple of 8.
        let (m, n, k) = match layout {
            GemmLayout::Nt => (m, n, round(k)),
            GemmLayout::Nn => (m, round(n), round(k)),
            GemmLayout::Tn => (round(m), round(n), k),
            GemmLayout::Tt => (round(m), n, round(k)),
        };
        let d_type = if wide { DType::F32 } else { DType::Bf16 };
        let problem = launch(arguments(layout, [m, n, k], DType::Bf16, d_type));
        prop_assert_eq!([problem.m, problem.n, problem.k].map(i64::from), [m, n, k]);
        prop_assert_eq!(problem.k_blocks(), (k as u32).div_ceil(64));
        let bytes = 2.0 * ((m + n) * k) as f64 + (m * n) as f64 * d_type.size() as f64;
        prop_assert_eq!(problem.bytes(), bytes);
    }
}

#[test]
fn functions_by_name_take_their_type_and_layout() {
    type Function = fn(&Tensor, &Tensor, Addend<'_>, &mut Tensor, &GemmOptions) -> oxigemm::Result<()>;
    let functions: [(Function, DType, GemmLayout); 8] = [
        (bf16_gemm_nt, DType::Bf16, GemmLayout::Nt),
        (bf16_gemm_nn, DType::Bf16, GemmLayout::Nn),
        (bf16_gemm_tn, DType::Bf16, GemmLayout::Tn),
        (bf16_gemm_tt, DType::Bf16, GemmLayout::Tt),
        (fp16_gemm_nt, DType::F16, GemmLayout::Nt),
        (fp16_gemm_nn, DType::F16, GemmLayout::Nn),
        (fp16_gemm_tn, DType::F16, GemmLayout::Tn),
        (fp16_gemm_tt, DType::F16, GemmLayout::Tt),
    ];
    let cpu = Device::cpu();
    let [m, n, k] = [8, 16, 24];
    for (function, dtype, layout) in functions {
        let new = |salt: usize, dims: [usize; 2], dtype| {
            let values: Vec<f32> = (0..dims[0] * dims[1]).map(|i| ((i * salt) % 7) as f32 - 3.0).collect();
            Tensor::from_f32(dtype, &values, &dims, &cpu).unwrap()
        };
        let operands = |dtype| {
            let a = if layout.a_begins_with_k() { [k, m] } else { [m, k] };
            let b = if layout.b_begins_with_k() { [k, n] } else { [n, k] };
            (new(3, a, dtype), new(5, b, dtype))
        };
        let (a, b) = operands(dtype);
        let zeros = || Tensor::zeros(dtype, &[m, n], &cpu).unwrap();
        let (mut named, mut general) = (zeros(), zeros());
        function(&a, &b, Addend::None, &mut named, &GemmOptions::default()).unwrap();
        half_gemm(layout, &a, &b, Addend::None, &mut general, &GemmOptions::default()).unwrap();
        assert_eq!(named.to_bytes().unwrap(), general.to_bytes().unwrap());
        let sum: f32 = named.to_vec_f32().unwrap().iter().map(|x| x.abs()).sum();
        assert!(sum > 0.0);
        let other = if dtype == DType::Bf16 { DType::F16 } else { DType::Bf16 };
        let (a, b) = operands(other);
        let error = function(&a, &b, Addend::None, &mut named, &GemmOptions::default()).unwrap_err();
        assert!(matches!(error, Error::DType { argument: "a", .. }), "{error}");
    }
}
