//! Tensors on the CPU: views share memory, strides are honoured in both directions, threads do not race.

use oxigemm::{DType, Device, Error, F8E4M3, MAX_RANK, Tensor, bf16, f16};
use proptest::prelude::*;

const CPU: Device = Device::Cpu;

fn counting(dims: &[usize]) -> Tensor {
    let values: Vec<f32> = (0..dims.iter().product()).map(|i: usize| i as f32).collect();
    Tensor::from_slice(&values, dims, &CPU).unwrap()
}

#[test]
fn what_is_written_through_a_view_is_read_through_all() {
    let whole = Tensor::zeros(DType::F32, &[3, 4], &CPU).unwrap();
    let mut column = whole.narrow(1, 2, 1).unwrap();
    column.write_f32(&[1.0, 2.0, 3.0]).unwrap();
    assert_eq!(whole.to_vec_f32().unwrap(), [0., 0., 1., 0., 0., 0., 2., 0., 0., 0., 3., 0.]);
    assert_eq!(whole.transpose(0, 1).unwrap().narrow(0, 2, 1).unwrap().to_vec_f32().unwrap(), [1., 2., 3.]);
}

#[test]
fn a_copy_is_not_a_view() {
    let original = counting(&[2, 2]);
    let mut copy = original.to_device(&CPU).unwrap();
    copy.write_f32(&[9.0; 4]).unwrap();
    assert_eq!(original.to_vec_f32().unwrap(), [0., 1., 2., 3.]);
}

#[test]
fn addresses_are_aligned_and_follow_the_view() {
    for len in [1, 255, 256, 257, 5000] {
        assert_eq!(Tensor::empty(DType::E4m3, &[len], &CPU).unwrap().address() % 256, 0);
    }
    let x = counting(&[4, 8]);
    assert_eq!(x.narrow(0, 2, 1).unwrap().narrow(1, 3, 2).unwrap().address(), x.address() + 4 * (2 * 8 + 3));
}

#[test]
fn every_element_type_goes_in_and_out() {
    let values = [0.0, 1.0, -1.5, 448.0];
    for dtype in DType::ALL {
        let values = match dtype {
            DType::I32 => values.map(f32::trunc),
            DType::U8 => [0.0, 1.0, 200.0, 255.0],
            _ => values,
        };
        let x = Tensor::from_f32(dtype, &values, &[2, 2], &CPU).unwrap();
        assert_eq!(x.to_vec_f32().unwrap(), values, "{dtype}");
        assert_eq!(x.to_bytes().unwrap().len(), 4 * dtype.size());
    }
    let halves = [f16::from_f32(0.5); 2];
    assert_eq!(Tensor::from_slice(&halves, &[2], &CPU).unwrap().to_vec::<f16>().unwrap(), halves);
    let counts = [i32::MIN, -1, i32::MAX];
    assert_eq!(Tensor::from_slice(&counts, &[3], &CPU).unwrap().to_vec::<i32>().unwrap(), counts);
    let codes = Tensor::from_slice(&[F8E4M3::from_f32(2.0)], &[1], &CPU).unwrap();
    assert_eq!(codes.to_bytes().unwrap(), [0x40]);
}

#[test]
fn empty_tensors_work() {
    let x = Tensor::zeros(DType::Bf16, &[0, 7], &CPU).unwrap();
    assert!(x.is_empty() && x.is_contiguous());
    assert_eq!(x.to_vec::<bf16>().unwrap(), []);
    let part = counting(&[4, 4]).narrow(0, 4, 0).unwrap();
    assert_eq!(part.to_vec_f32().unwrap(), [0f32; 0]);
    assert_eq!(part.to_device(&CPU).unwrap().dims(), [0, 4]);
}

#[test]
fn bad_arguments_are_named() {
    let x = counting(&[2, 3]);
    let too_many = [1; MAX_RANK + 1];
    assert!(matches!(Tensor::zeros(DType::F32, &too_many, &CPU), Err(Error::Rank { argument: "dims", .. })));
    assert!(matches!(Tensor::zeros(DType::F32, &[], &CPU), Err(Error::Rank { argument: "dims", .. })));
    let huge = Tensor::zeros(DType::F32, &[1 << 40, 1 << 40], &CPU);
    assert!(matches!(huge, Err(Error::Overflow { argument: "dims", .. })));
    assert!(matches!(x.transpose(0, 2), Err(Error::Rank { argument: "dim", .. })));
    assert!(matches!(x.narrow(1, 1, usize::MAX), Err(Error::Shape { argument: "range", .. })));
    assert!(matches!(x.view(&[7]), Err(Error::Shape { argument: "dims", .. })));
    assert!(matches!(x.transpose(0, 1).unwrap().view(&[6]), Err(Error::Stride { argument: "tensor", .. })));
    assert!(matches!(x.to_vec::<bf16>(), Err(Error::DType { argument: "tensor", .. })));
    assert!(matches!(x.clone().write_f32(&[0.0]), Err(Error::Shape { argument: "values", .. })));
    assert!(matches!(x.clone().copy_from(&counting(&[3, 2])), Err(Error::Shape { argument: "source", .. })));
    let narrow = Tensor::zeros(DType::Bf16, &[2, 3], &CPU).unwrap();
    assert!(matches!(x.clone().copy_from(&narrow), Err(Error::DType { argument: "source", .. })));
}

#[test]
fn a_tensor_copied_onto_its_own_transpose_is_transposed() {
    let x = counting(&[3, 3]);
    x.transpose(0, 1).unwrap().copy_from(&x).unwrap();
    assert_eq!(x.to_vec_f32().unwrap(), [0., 3., 6., 1., 4., 7., 2., 5., 8.]);
}

#[test]
fn a_write_from_another_thread_is_seen_whole() {
    let x = Tensor::zeros(DType::F32, &[1 << 12], &CPU).unwrap();
    std::thread::scope(|scope| {
        let mut writer = x.clone();
        scope.spawn(move || {
            for i in 0..200 {
                writer.write_f32(&[i as f32; 1 << 12]).unwrap();
            }
        });
        for _ in 0..200 {
            let seen = x.to_vec_f32().unwrap();
            assert!(seen.iter().all(|&value| value == seen[0]));
        }
    });
}

/// A view of a larger tensor: dimensions swapped, then every dimension narrowed.
fn any_view() -> impl Strategy<Value = (Tensor, Tensor)> {
    let dims = proptest::collection::vec((0..5usize, 0..2usize, 0..2usize), 1..=MAX_RANK);
    (dims, 0..MAX_RANK, 0..MAX_RANK).prop_map(|(parts, first, second)| {
        let dims: Vec<usize> = parts.iter().map(|(len, before, after)| before + len + after).collect();
        let whole = counting(&dims);
        let mut view = whole.clone();
        for (dim, &(len, before, _)) in parts.iter().enumerate() {
            view = view.narrow(dim, before, len).unwrap();
        }
        (whole, view.transpose(first % dims.len(), second % dims.len()).unwrap())
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back_and_nothing_else_changes((whole, mut view) in any_view()) {
        let before = whole.to_vec_f32().unwrap();
        let inside: Vec<usize> = view.to_vec_f32().unwrap().iter().map(|&x| x as usize).collect();
        let fresh: Vec<f32> = (0..view.len()).map(|i| -1.0 - i as f32).collect();
        view.write_f32(&fresh).unwrap();
        prop_assert_eq!(&view.to_vec_f32().unwrap(), &fresh);
        let mut expected = before;
        for (&place, value) in inside.iter().zip(fresh) {
            expected[place] = value;
        }
        prop_assert_eq!(whole.to_vec_f32().unwrap(), expected);
    }

    #[test]
    fn copies_keep_the_elements((_, view) in any_view()) {
        let elements = view.to_vec_f32().unwrap();
        let copy = view.to_device(&CPU).unwrap();
        prop_assert_eq!(copy.dims(), view.dims());
        prop_assert_eq!(&copy.to_vec_f32().unwrap(), &elements);
        prop_assert_eq!(&view.contiguous().unwrap().to_vec_f32().unwrap(), &elements);
        let flat = view.contiguous().unwrap().view(&[view.len()]).unwrap();
        prop_assert_eq!(flat.to_vec_f32().unwrap(), elements);
    }
}

#[test]
fn foreign_memory_is_read_and_written_in_place_and_not_freed() {
    let mut values = [0.0f32; 6];
    let address = values.as_mut_ptr().expose_provenance() as u64;
    let part = |dims: &[usize], strides: &[usize]| {
        // SAFETY: the values outlive the tensors, and nobody else uses them meanwhile.
        unsafe { Tensor::from_raw_parts(DType::F32, dims, strides, address, &Device::Cpu) }
    };
    part(&[2, 2], &[1, 3]).unwrap().write_f32(&[1.0, 2.0, 3.0, 4.0]).unwrap();
    assert_eq!(values, [1.0, 3.0, 0.0, 2.0, 4.0, 0.0]);
    assert_eq!(part(&[3], &[0]).unwrap().to_vec_f32().unwrap(), [1.0; 3]);
    assert!(part(&[0, 4], &[4, 1]).unwrap().to_vec_f32().unwrap().is_empty());
    let error = part(&[2, usize::MAX / 8], &[1, 1 << 40]).unwrap_err();
    assert!(matches!(error, Error::Overflow { .. }), "{error}");
    let error = part(&[2, 2], &[1]).unwrap_err();
    assert!(matches!(error, Error::Rank { argument: "strides", .. }), "{error}");
}
