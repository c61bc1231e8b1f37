//! The rules of `fp8_gemm_nt`: each broken alone names its variant and its argument, and everything valid passes.

use oxigemm::check::{Accumulate, Checked, GemmDesc, Operand, Problem, ScaleStrides, Trivial};
use oxigemm::plan::OperandKind;
use oxigemm::{DType, DeviceId, Error};
use proptest::prelude::*;

const GPU: DeviceId = DeviceId::Cuda(0);

/// Contiguous arguments, a gigabyte apart from each other.
fn arguments(m: i64, n: i64, k: i64, d_type: DType) -> GemmDesc {
    let matrix = |name, dtype, rows: i64, columns: i64, place: u64| {
        Operand::matrix(name, dtype, [rows, columns], [columns, 1], place << 30, GPU)
    };
    let blocks = |x: i64| (x + 127) / 128;
    let (a, b) = (matrix("a", DType::E4m3, m, k, 1), matrix("b", DType::E4m3, n, k, 3));
    GemmDesc {
        sfa: Some(matrix("sfa", DType::F32, m, blocks(k), 2)),
        sfb: Some(matrix("sfb", DType::F32, blocks(n), blocks(k), 4)),
        ..GemmDesc::new(a, b, matrix("d", d_type, m, n, 5))
    }
}

fn good() -> GemmDesc {
    arguments(64, 256, 512, DType::Bf16)
}

/// `good` with a C of its own.
fn good_with_c() -> GemmDesc {
    let mut arguments = good();
    arguments.c = Some(Operand { name: "c", address: 6 << 30, ..arguments.d });
    arguments
}

fn launch(arguments: GemmDesc) -> Problem {
    match arguments.check() {
        Ok(Checked::Launch(problem)) => problem,
        other => panic!("expected a launch, found {other:?}"),
    }
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
refused!(d_of_rank_0, Rank, "d", |x| x.d.rank = 0);
refused!(c_of_rank_4, Rank, "c", |x| c(x).rank = 4);
refused!(scales_of_a_of_rank_1, Rank, "sfa", |x| sfa(x).rank = 1);
refused!(scales_of_a_of_rank_3, Rank, "sfa", |x| (sfa(x).rank, sfa(x).dims) = (3, [1; 4]));
refused!(scales_of_b_of_a_rank_beyond_any, Rank, "sfb", |x| sfb(x).rank = 9);

refused!(a_of_f16, DType, "a", |x| x.a.dtype = DType::F16);
refused!(b_of_bf16, DType, "b", |x| x.b.dtype = DType::Bf16);
refused!(d_of_f16, DType, "d", |x| x.d.dtype = DType::F16);
refused!(c_unlike_d, DType, "c", |x| c(x).dtype = DType::F32);
refused!(scales_of_a_of_bf16, DType, "sfa", |x| sfa(x).dtype = DType::Bf16);
refused!(scales_of_b_of_e4m3, DType, "sfb", |x| sfb(x).dtype = DType::E4m3);

refused!(a_of_negative_rows, Shape, "a", |x| x.a.dims[0] = -1);
refused!(b_with_another_k, Shape, "b", |x| x.b.dims[1] = 384);
refused!(d_with_other_rows, Shape, "d", |x| x.d.dims[0] = 63);
refused!(d_with_other_columns, Shape, "d", |x| x.d.dims[1] = 255);
refused!(c_with_another_shape, Shape, "c", |x| c(x).dims[0] = 65);
refused!(too_few_scales_of_a, ScaleShape, "sfa", |x| sfa(x).dims[1] = 3);
refused!(scales_of_a_per_32_rows, ScaleShape, "sfa", |x| sfa(x).dims[0] = 2);
refused!(scales_of_a_per_row_of_b, ScaleShape, "sfa", |x| sfa(x).dims = [256, 1, 1, 1]);
refused!(scales_of_b_per_row_but_one, ScaleShape, "sfb", |x| sfb(x).dims[0] = 255);
refused!(no_scales_of_b, ScaleShape, "sfb", |x| sfb(x).dims[0] = 0);

refused!(a_in_mn_major, Stride, "a", |x| x.a.strides = [1, 64, 1, 1]);
refused!(b_with_every_second_column, Stride, "b", |x| x.b.strides = [1024, 2, 1, 1]);
refused!(d_in_column_major, Stride, "d", |x| x.d.strides = [1, 64, 1, 1]);
refused!(c_in_column_major, Stride, "c", |x| c(x).strides = [1, 64, 1, 1]);
refused!(a_with_one_row_for_all, Stride, "a", |x| x.a.strides[0] = 0);
refused!(b_backwards, Stride, "b", |x| x.b.strides[0] = -512);
refused!(d_with_rows_that_overlap, Stride, "d", |x| x.d.strides[0] = 248);
refused!(scales_of_a_backwards, ScaleLayout, "sfa", |x| sfa(x).strides[0] = -4);
refused!(scales_of_b_backwards, ScaleLayout, "sfb", |x| sfb(x).strides[1] = -1);

refused!(a_with_a_pitch_off_16_bytes, Tma, "a", |x| x.a.strides[0] = 520);
refused!(b_with_a_pitch_off_16_bytes, Tma, "b", |x| x.b.strides[0] = 513);
refused!(d_with_a_pitch_beyond_32_bits, Overflow, "d", |x| x.d.strides[0] = 1 << 32);
refused!(c_with_a_pitch_beyond_32_bits, Overflow, "c", |x| c(x).strides[0] = 1 << 32);
refused!(b_with_a_pitch_of_a_terabyte, Tma, "b", |x| x.b.strides[0] = 1 << 40);

refused!(a_off_16_bytes, Alignment, "a", |x| x.a.address += 8);
refused!(b_off_16_bytes, Alignment, "b", |x| x.b.address += 1);
refused!(d_off_its_elements, Alignment, "d", |x| x.d.address += 1);
refused!(c_off_its_elements, Alignment, "c", |x| c(x).address += 3);
refused!(scales_of_a_off_4_bytes, Alignment, "sfa", |x| sfa(x).address += 2);
refused!(scales_of_b_off_4_bytes, Alignment, "sfb", |x| sfb(x).address += 1);

refused!(a_on_another_device, Device, "sfa", |x| x.a.device = DeviceId::Cuda(1));
refused!(b_on_the_host, Device, "b", |x| x.b.device = DeviceId::Cpu);
refused!(c_on_another_device, Device, "c", |x| c(x).device = DeviceId::Cuda(1));
refused!(d_on_another_device, Device, "d", |x| x.d.device = DeviceId::Cuda(1));
refused!(scales_of_b_on_the_host, Device, "sfb", |x| sfb(x).device = DeviceId::Cpu);

refused!(a_null, NullPointer, "a", |x| x.a.address = 0);
refused!(b_null, NullPointer, "b", |x| x.b.address = 0);
refused!(c_null, NullPointer, "c", |x| c(x).address = 0);
refused!(d_null, NullPointer, "d", |x| x.d.address = 0);
refused!(scales_of_a_null, NullPointer, "sfa", |x| sfa(x).address = 0);
refused!(scales_of_b_null, NullPointer, "sfb", |x| sfb(x).address = 0);

refused!(a_in_d, Overlap, "a", |x| x.a.address = x.d.address);
refused!(b_with_its_end_in_d, Overlap, "b", |x| x.b.address = x.d.address - 256 * 512 + 16);
refused!(scales_of_a_in_the_last_of_d, Overlap, "sfa", |x| sfa(x).address = x.d.address + 64 * 256 * 2 - 4);
refused!(scales_of_b_in_d, Overlap, "sfb", |x| sfb(x).address = x.d.address + 64);
refused!(c_one_row_into_d, Overlap, "c", |x| c(x).address = x.d.address + 512);
refused!(c_at_d_with_another_pitch, Overlap, "c", |x| {
    c(x).address = x.d.address;
    c(x).strides[0] = 264;
});
refused!(c_between_the_columns_of_d, Overlap, "c", |x| {
    // A buffer 512 wide: D is its columns 0..256, C its columns 248..504.
    (x.d.strides[0], c(x).strides[0]) = (512, 512);
    c(x).address = x.d.address + 2 * 248;
});

refused!(more_rows_than_kernels_count, Overflow, "a", |x| {
    x.a.dims[0] = 1 << 31;
});
refused!(a_product_m_by_n_beyond_any_memory, Overflow, "d", |x| {
    let (m, n) = (i64::from(i32::MAX), i64::from(i32::MAX));
    *x = arguments(m, n, 16, DType::F32);
});
refused!(a_that_ends_beyond_the_address_space, Overflow, "a", |x| x.a.address = u64::MAX - 15);
refused!(a_with_a_length_beyond_64_bits, Overflow, "a", |x| {
    *x = arguments(i64::from(i32::MAX), 16, 16, DType::F32);
    x.a.strides[0] = (1 << 40) - 16;
});
refused!(scales_of_a_too_far_apart_for_32_bits, Overflow, "sfa", |x| sfa(x).strides = [1, 1 << 30, 1, 1]);
refused!(scale_strides_whose_sum_overflows, Overflow, "sfb", |x| sfb(x).strides = [i64::MAX, i64::MAX, 1, 1]);

fn c(arguments: &mut GemmDesc) -> &mut Operand {
    arguments.c.as_mut().expect("the arguments have a C")
}

fn sfa(arguments: &mut GemmDesc) -> &mut Operand {
    arguments.sfa.as_mut().expect("A has scales")
}

fn sfb(arguments: &mut GemmDesc) -> &mut Operand {
    arguments.sfb.as_mut().expect("B has scales")
}

#[test]
fn the_problem_says_what_was_passed() {
    let mut x = good_with_c();
    x.a.strides[0] = 528;
    x.d.strides[0] = 264;
    sfa(&mut x).strides = [1, 64, 1, 1];
    assert_eq!(
        launch(x),
        Problem {
            family: OperandKind::FP8,
            m: 64,
            n: 256,
            k: 512,
            a_pitch: 528,
            b_pitch: 512,
            d_pitch: 264,
            c: Accumulate::From { pitch: 256 },
            sfa: ScaleStrides { mn: 1, k: 64 },
            sfb: ScaleStrides { mn: 4, k: 1 },
            d_type: DType::Bf16,
            transpose: [false; 2],
            groups: None,
            k_groups: None,
            summed: None,
            fused: None,
        }
    );
    assert_eq!(launch(good()).c, Accumulate::None);
}

#[test]
fn c_and_d_need_no_alignment_but_that_of_their_elements() {
    for (d_type, size) in [(DType::Bf16, 2), (DType::F32, 4)] {
        let mut x = arguments(64, 257, 512, d_type);
        x.c = Some(Operand { name: "c", address: (6 << 30) + size, strides: [259, 1, 1, 1], ..x.d });
        x.d.address += 3 * size;
        let problem = launch(x);
        assert_eq!((problem.d_pitch, problem.c), (257, Accumulate::From { pitch: 259 }));
    }
}

#[test]
fn c_may_be_exactly_d() {
    let mut x = good_with_c();
    c(&mut x).address = x.d.address;
    assert_eq!(launch(x).c, Accumulate::InPlace);
}

#[test]
fn c_and_d_may_be_columns_of_one_matrix() {
    let mut x = good_with_c();
    (x.d.strides[0], c(&mut x).strides[0]) = (512, 512);
    for address in [x.d.address + 512, x.d.address - 512] {
        c(&mut x).address = address;
        assert_eq!(launch(x).c, Accumulate::From { pitch: 512 });
    }
}

#[test]
fn one_scale_along_a_dimension_holds_for_all() {
    let strides = |dims: &[i64], strides: [i64; 2]| {
        let mut x = good();
        for scales in [x.sfa.as_mut().unwrap(), x.sfb.as_mut().unwrap()] {
            let whole = scales.dims;
            (scales.rank, scales.dims) = (dims.len(), [1; 4]);
            // 0 stands for all that there are.
            for (i, &dim) in dims.iter().enumerate() {
                scales.dims[i] = if dim == 0 { whole[i] } else { dim };
            }
            scales.strides[..2].copy_from_slice(&strides);
        }
        let problem = launch(x);
        assert_eq!(problem.sfa, problem.sfb);
        [problem.sfa.mn, problem.sfa.k]
    };
    assert_eq!(strides(&[0, 1], [1, 1]), [1, 0]);
    assert_eq!(strides(&[0, 1], [7, -3]), [7, 0]);
    assert_eq!(strides(&[1, 0], [9, 1]), [0, 1]);
    assert_eq!(strides(&[1, 1], [5, 5]), [0, 0]);
    assert_eq!(strides(&[1], [1, 1]), [0, 0]);
    assert_eq!(strides(&[], [1, 1]), [0, 0]);
    assert_eq!(strides(&[0, 0], [0, 0]), [0, 0], "strides of 0 say the same");
    assert_eq!(strides(&[0, 0], [4, 0]), [4, 0]);
}

#[test]
fn the_stride_of_a_single_row_has_no_meaning() {
    let plain = launch(arguments(1, 1, 100, DType::Bf16));
    assert_eq!((plain.a_pitch, plain.b_pitch, plain.d_pitch), (112, 112, 8));
    for stride in [-7, 0, 1, 3, i64::MAX] {
        let mut x = arguments(1, 1, 100, DType::Bf16);
        let GemmDesc { a, b, sfa: Some(sfa), sfb: Some(sfb), d, .. } = &mut x else {
            panic!("there are scales")
        };
        for operand in [a, b, &mut *d, &mut *sfa, &mut *sfb] {
            operand.strides[0] = stride;
        }
        // One column as well: all but the K of A and B.
        for operand in [d, sfa, sfb] {
            operand.strides[1] = stride;
        }
        assert_eq!(launch(x), plain, "stride {stride}");
    }
}

#[test]
fn without_elements_in_d_nothing_is_done_and_null_is_fine() {
    for (m, n, k) in [(0, 256, 512), (64, 0, 512), (0, 0, 0)] {
        let mut x = arguments(m, n, k, DType::F32);
        for operand in [&mut x.a, x.sfa.as_mut().unwrap(), &mut x.b, x.sfb.as_mut().unwrap(), &mut x.d] {
            operand.address = 0;
        }
        assert_eq!(x.check().unwrap(), Checked::Nothing);
    }
}

#[test]
fn without_k_d_becomes_c_or_zero() {
    let mut x = arguments(64, 256, 0, DType::Bf16);
    for operand in [&mut x.a, x.sfa.as_mut().unwrap(), &mut x.b, x.sfb.as_mut().unwrap()] {
        operand.address = 0;
    }
    assert_eq!(x.check().unwrap(), Checked::Trivial(Trivial::Zero));
    x.c = Some(Operand { name: "c", address: 6 << 30, ..x.d });
    assert_eq!(x.check().unwrap(), Checked::Trivial(Trivial::CopyC));
    c(&mut x).address = x.d.address;
    assert_eq!(x.check().unwrap(), Checked::Nothing);
    x.d.address = 0;
    assert!(matches!(x.check(), Err(Error::NullPointer { argument: "d", .. })), "D is still written");
}

#[test]
fn a_wrong_shape_is_refused_even_when_there_is_nothing_to_do() {
    let mut x = arguments(0, 256, 512, DType::Bf16);
    x.b.dims[1] = 511;
    assert!(matches!(x.check(), Err(Error::Shape { argument: "b", .. })));
}

#[test]
fn a_sentence_says_what_was_expected_and_what_came() {
    let mut x = good();
    sfa(&mut x).dims[1] = 3;
    assert_eq!(
        x.check().unwrap_err().to_string(),
        "`sfa` has the wrong number of scales: expected [64, 4], one per row of `a` and 128 of K, or 1 along either dimension for all, found [64, 3]"
    );
    let mut x = good();
    x.b.strides[0] = 520;
    assert_eq!(
        x.check().unwrap_err().to_string(),
        "`b` cannot be addressed by TMA: the row pitch must be a multiple of 16 bytes (16 e4m3 elements), \
         found 520 elements"
    );
}

#[test]
fn the_work_is_counted() {
    let problem = launch(good_with_c());
    assert_eq!(problem.flops(), 2.0 * 64.0 * 256.0 * 512.0);
    let scales = 4 * (64 * 4 + 2 * 4);
    assert_eq!(problem.bytes(), f64::from((64 + 256) * 512 + scales + 2 * 64 * 256 * 2));
}

proptest! {
    /// Any sizes, pitches that TMA takes, scales in any order with any padding, C in any of its forms.
    #[test]
    fn everything_valid_passes(
        (m, n, k) in (1..5000i64, 1..5000i64, 1..20000i64),
        (a_pad, b_pad, d_pad, c_pad) in (0..3i64, 0..3i64, 0..3i64, 0..3i64),
        (sfa_pad, sfb_pad) in (0..5i64, 0..5i64),
        (sfa_mn_major, sfb_mn_major) in any::<(bool, bool)>(),
        d_type in prop_oneof![Just(DType::Bf16), Just(DType::F32)],
        accumulate in 0..3,
    ) {
        let mut x = arguments(m, n, k, d_type);
        let pitch = |columns: i64, unit: i64, pad: i64| (columns as u64).next_multiple_of(unit as u64) as i64 + pad * unit;
        x.a.strides[0] = pitch(k, 16, a_pad);
        x.b.strides[0] = pitch(k, 16, b_pad);
        x.d.strides[0] = n + d_pad;
        for (scales, mn_major, pad) in
            [(&mut x.sfa, sfa_mn_major, sfa_pad), (&mut x.sfb, sfb_mn_major, sfb_pad)]
        {
            let scales = scales.as_mut().unwrap();
            let [rows, columns, ..] = scales.dims;
            scales.strides = if mn_major { [1, rows + pad, 1, 1] } else { [columns + pad, 1, 1, 1] };
        }
        x.c = match accumulate {
            0 => None,
            1 => Some(Operand { name: "c", ..x.d }),
            _ => {
                let strides = [n + c_pad, 1, 1, 1];
                Some(Operand { name: "c", address: 6 << 30, strides, ..x.d })
            }
        };
        let problem = launch(x);
        prop_assert_eq!([problem.m, problem.n, problem.k].map(i64::from), [m, n, k]);
        prop_assert_eq!(problem.k_blocks(), (k as u32).div_ceil(128));
        prop_assert_eq!(problem.c == Accumulate::InPlace, accumulate == 1);
    }

    /// The overlap rule agrees with a comparison byte by byte.
    #[test]
    fn overlap_is_exact_for_matrices_of_one_pitch(
        (m, n) in (1..5i64, 1..40i64),
        pitch_units in 5..9i64,
        shift in -40..40i64,
    ) {
        let mut x = arguments(m, n, 16, DType::Bf16);
        let pitch = pitch_units * 8;
        x.d.strides[0] = pitch;
        let address = x.d.address.wrapping_add_signed(shift * 16);
        x.c = Some(Operand { name: "c", address, ..x.d });
        let bytes = |start: i64| (0..m).flat_map(move |i| (0..2 * n).map(move |j| start + i * pitch * 2 + j));
        let shared = bytes(0).any(|byte| bytes(shift * 16).any(|other| other == byte));
        match x.check() {
            Ok(Checked::Launch(problem)) => prop_assert!(!shared || problem.c == Accumulate::InPlace),
            Err(Error::Overlap { argument: "c", with: "d", .. }) => prop_assert!(shared),
            other => prop_assert!(false, "unexpected {other:?}"),
        }
    }

    /// No description makes the check panic.
    #[test]
    fn nonsense_is_refused_and_never_panics(
        dims in proptest::collection::vec(prop_oneof![0..300i64, any::<i64>()], 12),
        strides in proptest::collection::vec(prop_oneof![0..2000i64, any::<i64>()], 12),
        addresses in proptest::collection::vec(any::<u64>(), 6),
        keep_shapes in any::<bool>(),
    ) {
        let mut x = good_with_c();
        let GemmDesc { a, sfa, b, sfb, c, d, .. } = &mut x;
        let operands = [a, sfa.as_mut().unwrap(), b, sfb.as_mut().unwrap(), c.as_mut().unwrap(), d];
        for (i, operand) in operands.into_iter().enumerate() {
            if !keep_shapes {
                operand.dims[..2].copy_from_slice(&dims[2 * i..2 * i + 2]);
            }
            operand.strides[..2].copy_from_slice(&strides[2 * i..2 * i + 2]);
            operand.address = addresses[i];
        }
        let _ = x.check();
    }
}
