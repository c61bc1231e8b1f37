//! Memory of a call: of another owner, of another device, too short, with gaps, or misaligned.

use oxigemm::Sim;

use super::*;

/// A tensor of the same memory, by its address.
fn by_address(tensor: &Tensor) -> Tensor {
    let (dims, strides) = (tensor.dims(), tensor.strides());
    // SAFETY: the owner outlives the tensor in each test.
    unsafe {
        Tensor::from_raw_parts(tensor.dtype(), dims, strides, tensor.address(), tensor.device()).unwrap()
    }
}

/// Experts whose tensors are of these addresses.
fn experts_by_address<'a>(weights: &Weights, owned: &'a mut Vec<Tensor>) -> MoeExperts<'a> {
    owned.extend(weights.codes.iter().map(by_address));
    owned.extend(weights.scales.iter().flatten().map(by_address));
    let of = |nth: usize| MoeProjection { weight: &owned[nth], scales: owned.get(nth + 2), bias: None };
    MoeExperts::swiglu(of(0), of(1))
}

/// An engine that owns its memory gives addresses: the bits are those of a call on tensors.
#[test]
fn a_call_on_memory_of_another_owner_gives_the_same_bits() {
    let (tokens, topk) = (9, 3);
    let numbers = DType::Bf16.decode(&DType::Bf16.encode(&random::normals(5, tokens * OUTER)));
    let (list, chosen) = choices(tokens, topk);
    let zeros = [vec![0.0; EXPERTS * 2 * INNER], vec![0.0; EXPERTS * OUTER]];
    let plain = ([&zeros[0][..], &zeros[1][..]], Gate::PLAIN);
    for dtype in [DType::Bf16, DType::E4m3, DType::U8] {
        let device = Device::sim();
        let weights = Weights::new(dtype, true, ScaleFormat::F32, &device);
        let expected = forward(&device, (&numbers, topk), (&list, &chosen), &weights, plain);

        let x = Tensor::from_f32(DType::Bf16, &numbers, &[tokens, OUTER], &device).unwrap();
        let ids = Tensor::from_slice(&list, &[tokens, topk], &device).unwrap();
        let factors = Tensor::from_slice(&chosen, &[tokens, topk], &device).unwrap();
        let bytes = moe_scratch_bytes([tokens, topk], [EXPERTS, INNER, OUTER], dtype);
        let scratch = Tensor::zeros(DType::U8, &[bytes], &device).unwrap();
        let out = Tensor::zeros(DType::Bf16, &[tokens, OUTER], &device).unwrap();

        let (ids, factors, mut owned) = (by_address(&ids), by_address(&factors), Vec::new());
        let routing = MoeRouting { ids: &ids, weights: &factors };
        let experts = experts_by_address(&weights, &mut owned);
        let (x, mut scratch, mut to) = (by_address(&x), by_address(&scratch), by_address(&out));
        moe_forward(&x, &routing, &experts, &mut scratch, &mut to, &GemmOptions::default()).unwrap();
        assert_eq!(out.to_vec_f32().unwrap(), expected, "{dtype}");
    }
}

/// What a call needs besides its weights, on a device.
struct Operands {
    x: Tensor,
    ids: Tensor,
    factors: Tensor,
    out: Tensor,
}

impl Operands {
    fn on(device: &Device) -> Operands {
        let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, device).unwrap();
        Operands {
            x: new(DType::Bf16, &[2, OUTER]),
            ids: new(DType::I32, &[2, 3]),
            factors: new(DType::F32, &[2, 3]),
            out: new(DType::Bf16, &[2, OUTER]),
        }
    }
}

#[test]
fn memory_that_a_call_cannot_use_is_refused_by_name() {
    let world = Sim::world(2, oxigemm::sim::Options::default()).unwrap();
    let [device, other] = [0, 1].map(|rank| Device::Sim(world[rank].clone()));
    let weights = Weights::new(DType::E4m3, true, ScaleFormat::F32, &device);
    let experts = weights.experts([None, None], Gate::PLAIN);
    let bytes = moe_scratch_bytes([2, 3], [EXPERTS, INNER, OUTER], DType::E4m3);
    let room = |device: &Device, bytes| Tensor::zeros(DType::U8, &[bytes], device).unwrap();
    let refused = |at: &Operands, mut scratch: Tensor| {
        let routing = MoeRouting { ids: &at.ids, weights: &at.factors };
        let options = GemmOptions::default();
        moe_forward(&at.x, &routing, &experts, &mut scratch, &mut at.out.clone(), &options).unwrap_err()
    };
    let scratch_refused = |scratch: Tensor| {
        let error = refused(&Operands::on(&device), scratch);
        assert_eq!(error.argument(), Some("scratch"), "{error}");
        error
    };
    let is_device = |error: Error| matches!(error, Error::Device { .. });
    assert!(is_device(scratch_refused(room(&other, bytes))));
    assert!(is_device(scratch_refused(room(&Device::cpu(), bytes))));
    let gaps = Tensor::zeros(DType::U8, &[bytes, 2], &device).unwrap().narrow(1, 0, 1).unwrap();
    assert!(matches!(scratch_refused(gaps), Error::Stride { .. }));
    let misaligned = room(&device, bytes + 8).narrow(0, 8, bytes).unwrap();
    assert!(matches!(scratch_refused(misaligned), Error::Alignment { .. }));
    let good = Operands::on(&device);
    let foreign = Operands::on(&other);
    for (operands, argument) in [
        (Operands { x: foreign.x, ..Operands::on(&device) }, "x"),
        (Operands { ids: foreign.ids, ..Operands::on(&device) }, "ids"),
        (Operands { factors: foreign.factors, ..Operands::on(&device) }, "weights"),
        (Operands { out: foreign.out, ..good }, "out"),
    ] {
        let error = refused(&operands, room(&device, bytes));
        assert_eq!(error.argument(), Some(argument), "{error}");
        assert!(is_device(error));
    }
    // None of them has launched anything.
    assert!(world[0].last_report().is_none());
}
