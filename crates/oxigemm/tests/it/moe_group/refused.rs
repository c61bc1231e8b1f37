//! What is refused before a kernel is launched, so that no other rank waits for this one.

use oxigemm::plan::GemmConfig;
use oxigemm::{Arch, Gate};
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::quantize::moe_permute::MAX_EXPERTS;

use super::*;

#[test]
fn sizes_that_no_group_has_are_refused() {
    let weights = Weights::new(DType::Bf16, 2, ScaleFormat::F32);
    let good = shape(2, &weights);
    let wrong = [
        (MoeGroupShape { ranks: 0, ..good }, "ranks"),
        (MoeGroupShape { ranks: 33, ..good }, "ranks"),
        (MoeGroupShape { columns: 24, ..good }, "columns"),
        (MoeGroupShape { experts: 0, ..good }, "experts"),
        (MoeGroupShape { tokens: 1 << 30, ..good }, "tokens"),
        (MoeGroupShape { dtype: DType::F16, ..good }, "dtype"),
    ];
    for (shape, argument) in wrong {
        assert_eq!(shape.buffer_bytes().unwrap_err().argument(), Some(argument));
    }
    let device = Device::sim();
    let buffer = Tensor::zeros(DType::U8, &[good.buffer_bytes().unwrap()], &device).unwrap();
    let at = buffer.address();
    // SAFETY: the buffer lives as long as the group.
    let new = |device: &Device, rank, buffers: &[u64]| unsafe { MoeGroup::new(device, &good, rank, buffers) };
    let argument = |outcome: Result<MoeGroup>| outcome.unwrap_err().argument();
    assert_eq!(argument(new(&device, 2, &[at, at])), Some("rank"));
    assert_eq!(argument(new(&device, 0, &[at])), Some("buffers"));
    assert_eq!(argument(new(&device, 0, &[at + 16, at])), Some("buffers"));
    assert_eq!(argument(new(&device, 0, &[at, 0])), Some("buffers"));
    assert_eq!(argument(new(&Device::cpu(), 0, &[at, at])), Some("device"));

    let group = new(&device, 0, &[at, at]).unwrap();
    let [x, ids, factors, mut out] = Tokens::new(1, 2, 2).place(&device);
    let options = LaunchOptions::default();
    let publish = |x: &Tensor, ids: &Tensor, factors: &Tensor| {
        let routing = MoeRouting { ids, weights: factors };
        moe_publish(&group, x, &routing, 1.0, &options).unwrap_err().argument()
    };
    let [more, more_ids, more_factors, _] = Tokens::new(1, MOST + 1, 2).place(&device);
    assert_eq!(publish(&more, &more_ids, &more_factors), Some("tokens"));
    assert_eq!(publish(&x, &more_ids, &factors), Some("ids"));
    assert_eq!(publish(&x, &ids, &more_factors), Some("weights"));
    assert_eq!(publish(&x, &factors, &factors), Some("ids"));
    assert_eq!(publish(&x.narrow(1, 0, 128).unwrap(), &ids, &factors), Some("x"));

    let mut forward = |weights: &Weights, tokens, scratch: usize| {
        let placed = weights.place(0, weights.experts / 2, &device);
        let mut scratch = Tensor::zeros(DType::U8, &[scratch], &device).unwrap();
        let call = MoeGroupCall { tokens, ..MoeGroupCall::default() };
        let options = GemmOptions::default();
        let outcome = moe_forward_group(&group, &call, &placed.experts(), &mut scratch, &mut out, &options);
        outcome.unwrap_err().argument()
    };
    let enough = moe_group_scratch_bytes(&good, INNER, None).unwrap();
    assert_eq!(forward(&weights, 2, enough - 1), Some("scratch"));
    assert_eq!(forward(&weights, 1, enough), Some("out"));
    assert_eq!(forward(&Weights::new(DType::Bf16, 4, ScaleFormat::F32), 2, enough), Some("gate_up"));
    assert_eq!(forward(&Weights::new(DType::E4m3, 2, ScaleFormat::F32), 2, enough), Some("gate_up"));
}

#[test]
fn more_experts_than_are_counted_are_refused_in_the_shape() {
    let most = MAX_EXPERTS as usize;
    let shape = MoeGroupShape { experts: most, ..shape(2, &Weights::new(DType::Bf16, 2, ScaleFormat::F32)) };
    shape.buffer_bytes().unwrap();
    let more = MoeGroupShape { experts: most + 1, ..shape };
    let error = more.buffer_bytes().unwrap_err();
    assert_eq!(error.argument(), Some("experts"));
    assert!(error.to_string().contains("1024"), "{error}");
}

/// The own buffer is the one that other ranks are told of.
#[test]
fn a_buffer_beside_the_addresses_of_all_is_one_of_them() {
    let shape = shape(2, &Weights::new(DType::Bf16, 2, ScaleFormat::F32));
    let (bytes, device) = (shape.buffer_bytes().unwrap(), Device::sim());
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
    let (own, other) = (new(DType::U8, &[bytes]), new(DType::U8, &[bytes]));
    let both = [own.address(), other.address()];
    let of = |buffer: &Tensor, rank, buffers: &[u64]| {
        // SAFETY: the buffers outlive the group.
        unsafe { MoeGroup::with_buffer(buffer, &shape, rank, buffers) }
    };
    of(&own, 0, &both).unwrap().check().unwrap();
    of(&other, 1, &both).unwrap();
    let argument = |outcome: Result<MoeGroup>| outcome.unwrap_err().argument();
    let error = of(&own, 1, &both).unwrap_err();
    assert_eq!(error.argument(), Some("buffers"));
    assert!(error.to_string().contains(&format!("{:#x} for rank 1", own.address())), "{error}");
    assert_eq!(argument(of(&own, 0, &both[..1])), Some("buffers"));
    assert_eq!(argument(of(&own, 2, &both)), Some("rank"));
    assert_eq!(argument(of(&own.narrow(0, 0, bytes - 1).unwrap(), 0, &both)), Some("buffer"));
    assert_eq!(argument(of(&new(DType::I32, &[bytes]), 0, &both)), Some("buffer"));
    assert_eq!(argument(of(&new(DType::U8, &[bytes, 2]).narrow(1, 0, 1).unwrap(), 0, &both)), Some("buffer"));
}

/// What a call of a group of one is given.
struct Given<'a> {
    experts: MoeExperts<'a>,
    counts: Option<Tensor>,
    scratch: Tensor,
    out: Tensor,
    options: GemmOptions,
}

/// Every argument that is wrong is refused before the first barrier: a rank that has come to it has to come to the second.
#[test]
fn a_refused_call_has_launched_nothing() {
    for dtype in [DType::Bf16, DType::E4m3] {
        let world = Sim::world(2, oxigemm::sim::Options::default()).unwrap();
        let [device, other] = [0, 1].map(|rank| Device::Sim(world[rank].clone()));
        let weights = Weights::new(dtype, 2, ScaleFormat::F32);
        let shape = shape(1, &weights);
        let buffer = Tensor::zeros(DType::U8, &[shape.buffer_bytes().unwrap()], &device).unwrap();
        // SAFETY: the buffer lives as long as the group.
        let group = unsafe { MoeGroup::new(&device, &shape, 0, &[buffer.address()]).unwrap() };
        let placed = weights.place(0, 2, &device);
        let bytes = moe_group_scratch_bytes(&shape, INNER, None).unwrap();
        let new = |dtype, dims: &[usize], device: &Device| Tensor::zeros(dtype, dims, device).unwrap();
        let good = || Given {
            experts: placed.experts(),
            counts: None,
            scratch: new(DType::U8, &[bytes], &device),
            out: new(DType::Bf16, &[2, OUTER], &device),
            options: GemmOptions::default(),
        };
        let run = |given: Given<'_>| {
            let call = MoeGroupCall { tokens: 2, counts: given.counts.as_ref(), ..MoeGroupCall::default() };
            let (mut scratch, mut out) = (given.scratch, given.out);
            moe_forward_group(&group, &call, &given.experts, &mut scratch, &mut out, &given.options)
        };
        let refused = |what: &str, given: Given<'_>| {
            let error = run(given).unwrap_err();
            assert!(world[0].last_report().is_none(), "{dtype}, {what}: {error}, behind a launch");
            error
        };
        let named = |argument: &str, given: Given<'_>| {
            let error = refused(argument, given);
            assert_eq!(error.argument(), Some(argument), "{error}");
        };
        named("scratch", Given { scratch: new(DType::U8, &[bytes], &other), ..good() });
        named("scratch", Given { scratch: new(DType::U8, &[bytes], &Device::cpu()), ..good() });
        let gaps = new(DType::U8, &[bytes, 2], &device).narrow(1, 0, 1).unwrap();
        named("scratch", Given { scratch: gaps, ..good() });
        let misaligned = new(DType::U8, &[bytes + 8], &device).narrow(0, 8, bytes).unwrap();
        named("scratch", Given { scratch: misaligned, ..good() });
        named("counts", Given { counts: Some(new(DType::I32, &[2], &other)), ..good() });
        named("counts", Given { counts: Some(new(DType::I32, &[3], &device)), ..good() });
        named("out", Given { out: new(DType::Bf16, &[2, OUTER], &other), ..good() });
        let odd = new(DType::Bf16, &[2, OUTER + 1], &device).narrow(1, 0, OUTER).unwrap();
        named("out", Given { out: odd, ..good() });
        let columns = new(DType::Bf16, &[OUTER, 2], &device).transpose(0, 1).unwrap();
        named("out", Given { out: columns, ..good() });

        let experts = placed.experts();
        let gate = Gate { limit: -1.0, ..Gate::PLAIN };
        named("gate", Given { experts: MoeExperts { gate, ..experts }, ..good() });
        let wide = new(dtype, &[2, OUTER, INNER + 1], &device).narrow(2, 0, INNER).unwrap();
        let down = MoeProjection { weight: &wide, ..experts.down };
        named("down", Given { experts: MoeExperts { down, ..experts }, ..good() });
        let bias = new(DType::F32, &[2, OUTER], &other);
        let down = MoeProjection { bias: Some(&bias), ..experts.down };
        named("down_bias", Given { experts: MoeExperts { down, ..experts }, ..good() });

        let family = if dtype == DType::Bf16 { "fp8" } else { "f16" };
        let kernel = GemmKernel::all(Arch::Sm90a).find(|kernel| kernel.name().contains(family)).unwrap();
        let config = Some(GemmConfig::of(kernel));
        refused("config", Given { options: GemmOptions { config, ..GemmOptions::default() }, ..good() });
        let stream = Some(other.new_stream().unwrap());
        refused("stream", Given { options: GemmOptions { stream, ..GemmOptions::default() }, ..good() });

        // The group is as new.
        let [x, ids, factors, _] = Tokens::new(1, 2, 2).place(&device);
        let publish = |x: &Tensor, ids: &Tensor, factors: &Tensor| {
            let routing = MoeRouting { ids, weights: factors };
            moe_publish(&group, x, &routing, 1.0, &LaunchOptions::default())
        };
        let foreign = Tokens::new(1, 2, 2).place(&other);
        for (given, argument) in [
            ([&foreign[0], &ids, &factors], "x"),
            ([&x, &foreign[1], &factors], "ids"),
            ([&x, &ids, &foreign[2]], "weights"),
        ] {
            let error = publish(given[0], given[1], given[2]).unwrap_err();
            assert_eq!(error.argument(), Some(argument), "{error}");
        }
        assert!(world[0].last_report().is_none());
        publish(&x, &ids, &factors).unwrap();
        run(good()).unwrap();
        group.check().unwrap();
    }
}
