//! Tokens to the places of their experts and back: in the simulator the bytes of the CPU's, under every schedule; and the CPU's are
//! a sort.

use oxigemm::cast::ScaleFormat;
use oxigemm::sim::{Options, Policy};
use oxigemm::{
    DType, Device, Error, LaunchOptions, PermutedRows, RawMoePermute, RawMoeUnpermute, RawPaddingRows, Sim,
    Tensor, gather_quantize, moe_permute, moe_permute_raw, moe_rows, moe_unpermute, moe_unpermute_raw,
    random, zero_padding_rows, zero_padding_rows_raw,
};

/// Choices, of which a few are no experts.
fn choices(seed: u64, [tokens, topk]: [usize; 2], experts: usize) -> Vec<i32> {
    let draw = |i: usize| random::bits(seed, i as u64) % (experts as u64 + 2);
    (0..tokens * topk).map(|i| draw(i) as i32 - 1).collect()
}

/// Tokens, groups, ends, places.
fn permute(
    ids: &[i32],
    [tokens, topk]: [usize; 2],
    experts: usize,
    alignment: usize,
    rows: usize,
    device: &Device,
) -> [Vec<i32>; 4] {
    let ids = Tensor::from_slice(ids, &[tokens, topk], device).unwrap();
    let new = |dims: &[usize]| Tensor::empty(DType::I32, dims, device).unwrap();
    let mut written = [new(&[rows]), new(&[rows]), new(&[experts]), new(&[tokens, topk])];
    let [of_rows, groups, ends, places] = &mut written;
    let to = PermutedRows { tokens: of_rows, groups, ends, places };
    moe_permute(&ids, alignment, to, &LaunchOptions::default()).unwrap();
    written.map(|tensor| tensor.to_vec().unwrap())
}

#[test]
fn places_are_those_of_the_cpu_under_every_schedule() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let with = |policy, seed| Options { policy, seed, ..Options::default() };
    let schedules = [with(Policy::Eager, 0), with(Policy::Lazy, 0), with(Policy::Random, 7)];
    let shapes = [
        ([1, 1], 1, 1),
        ([3, 2], 5, 16),
        ([40, 8], 33, 128),
        ([129, 8], 7, 32),
        ([600, 4], 256, 64),
        ([0, 8], 4, 16),
        ([33, 1], 1024, 1),
    ];
    for (turn, (dims, experts, alignment)) in shapes.into_iter().enumerate() {
        let ids = choices(turn as u64, dims, experts);
        let enough = moe_rows(dims[0], dims[1], experts, alignment);
        // Also with room behind.
        for rows in [enough, enough + 45] {
            sim.set_options(schedules[turn % 3].clone());
            let run = |device: &Device| permute(&ids, dims, experts, alignment, rows, device);
            assert_eq!(run(&device), run(&Device::Cpu), "{dims:?} {experts} {alignment} {rows}");
        }
    }
}

#[test]
fn the_cpu_sorts_by_expert_and_keeps_the_order_of_tokens() {
    let (dims @ [_, topk], experts, alignment) = ([50, 4], 9, 16);
    let ids = choices(3, dims, experts);
    let rows = moe_rows(dims[0], topk, experts, alignment);
    let [tokens, groups, ends, places] = permute(&ids, dims, experts, alignment, rows, &Device::Cpu);
    let mut start = 0;
    for (expert, &end) in ends.iter().enumerate() {
        let chosen: Vec<i32> =
            (0..ids.len()).filter(|i| ids[*i] == expert as i32).map(|i| (i / topk) as i32).collect();
        assert_eq!(tokens[start..end as usize], chosen, "expert {expert}");
        assert!(groups[start..end as usize].iter().all(|group| *group == expert as i32));
        start = (end as usize).next_multiple_of(alignment);
        assert!(tokens[end as usize..start].iter().chain(&groups[end as usize..start]).all(|x| *x == -1));
    }
    assert!(tokens[start..].iter().chain(&groups[start..]).all(|x| *x == -1));
    for (i, &place) in places.iter().enumerate() {
        match usize::try_from(place) {
            Ok(place) => assert_eq!((tokens[place], groups[place]), ((i / topk) as i32, ids[i])),
            Err(_) => assert!(!(0..experts as i32).contains(&ids[i])),
        }
    }
}

#[test]
fn rows_are_added_as_on_the_cpu() {
    let sim = Device::sim();
    for (turn, [tokens, topk, columns]) in
        [[5, 8, 256], [3, 2, 77], [1, 1, 8], [4, 9, 1040], [2, 0, 16]].into_iter().enumerate()
    {
        let (rows, seed) = (tokens * topk + 3, turn as u64);
        let run = |device: &Device| {
            let draw = |count| random::normals(seed, count);
            let from =
                Tensor::from_f32(DType::Bf16, &draw(rows * columns), &[rows, columns], device).unwrap();
            let places: Vec<i32> = (0..tokens * topk)
                .map(|i| (random::bits(seed, i as u64) % (rows as u64 + 3)) as i32 - 2)
                .collect();
            let places = Tensor::from_slice(&places, &[tokens, topk], device).unwrap();
            let weights =
                Tensor::from_f32(DType::F32, &draw(tokens * topk), &[tokens, topk], device).unwrap();
            let mut out = Tensor::empty(DType::Bf16, &[tokens, columns], device).unwrap();
            moe_unpermute(&from, &places, &weights, &mut out, &LaunchOptions::default()).unwrap();
            out.to_bytes().unwrap()
        };
        assert!(run(&sim) == run(&Device::Cpu), "{tokens} {topk} {columns}");
    }
}

/// What is between rows, and rows that are of a group, keep what they held.
#[test]
fn rows_of_no_group_become_zero() {
    let sim = Device::sim();
    let shapes =
        [(1, 1, 0), (5, 8, 0), (70, 24, 0), (33, 7, 1), (40, 256, 8), (3, 1000, 24), (0, 8, 0), (4, 0, 0)];
    for (turn, (rows, columns, gap)) in shapes.into_iter().enumerate() {
        let ids: Vec<i32> = (0..rows).map(|i| (random::bits(turn as u64, i) % 6) as i32 - 2).collect();
        for dtype in [DType::Bf16, DType::F16, DType::F32] {
            let run = |device: &Device| {
                let ids = Tensor::from_slice(&ids, &[rows as usize], device).unwrap();
                let (rows, pitch) = (rows as usize, columns + gap);
                let memory =
                    Tensor::from_f32(dtype, &vec![7.0; rows * pitch], &[rows, pitch], device).unwrap();
                let mut d = memory.narrow(1, 0, columns).unwrap();
                zero_padding_rows(&ids, 3, &mut d, &LaunchOptions::default()).unwrap();
                memory.to_vec_f32().unwrap()
            };
            let expected: Vec<f32> = (ids.iter())
                .flat_map(|id| {
                    let inside = if (0..3).contains(id) { 7.0 } else { 0.0 };
                    (0..columns + gap).map(move |column| if column < columns { inside } else { 7.0 })
                })
                .collect();
            assert_eq!(run(&Device::Cpu), expected, "{rows} {columns} {gap} {dtype}");
            assert_eq!(run(&sim), expected, "{rows} {columns} {gap} {dtype}");
        }
    }
}

#[test]
fn rows_of_no_group_become_zero_by_address() {
    let device = Device::sim();
    let ids = Tensor::from_slice(&[-1i32, 0, 5], &[3], &device).unwrap();
    let d = Tensor::from_f32(DType::F32, &[7.0; 12], &[3, 4], &device).unwrap();
    let (rows, columns) = (3, 4);
    let addresses = RawPaddingRows {
        rows,
        columns,
        groups: 1,
        ids: ids.address(),
        d: d.address(),
        d_type: DType::F32,
        d_pitch: columns,
    };
    // SAFETY: the tensors live until the device is done.
    unsafe { zero_padding_rows_raw(&device, &addresses, &LaunchOptions::default()).unwrap() };
    assert_eq!(d.to_vec_f32().unwrap(), [0., 0., 0., 0., 7., 7., 7., 7., 0., 0., 0., 0.]);
}

/// The road of a layer: choices, gathered and quantized rows, and back with weights that add up to 1.
#[test]
fn tokens_come_back_from_their_experts() {
    let device = Device::sim();
    let ([tokens, topk], experts, columns) = ([9, 3], 5, 128);
    let ids: Vec<i32> = (0..tokens * topk).map(|i| ((i / topk + i % topk) % experts) as i32).collect();
    let rows = moe_rows(tokens, topk, experts, 16);
    let [named, _, _, places] = permute(&ids, [tokens, topk], experts, 16, rows, &device);
    let x = Tensor::from_f32(DType::Bf16, &random::normals(1, tokens * columns), &[tokens, columns], &device);
    let x = x.unwrap();
    let named = Tensor::from_slice(&named, &[rows], &device).unwrap();
    let mut codes = Tensor::zeros(DType::E4m3, &[rows, columns], &device).unwrap();
    let mut scales = Tensor::zeros(DType::F32, &[rows, 1], &device).unwrap();
    let options = LaunchOptions::default();
    gather_quantize(&x, &named, &mut codes, &mut scales, ScaleFormat::F32, &options).unwrap();
    let mut back = Tensor::empty(DType::Bf16, &[rows, columns], &device).unwrap();
    oxigemm::dequantize(&codes, &scales, &mut back, oxigemm::Granularity::PerToken, &options).unwrap();
    let places = Tensor::from_slice(&places, &[tokens, topk], &device).unwrap();
    let weights = vec![1.0 / topk as f32; tokens * topk];
    let weights = Tensor::from_f32(DType::F32, &weights, &[tokens, topk], &device).unwrap();
    let mut out = Tensor::empty(DType::Bf16, &[tokens, columns], &device).unwrap();
    moe_unpermute(&back, &places, &weights, &mut out, &options).unwrap();
    let pairs = out.to_vec_f32().unwrap().into_iter().zip(x.to_vec_f32().unwrap());
    assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() <= 0.07 * b.abs() + 0.01));
}

#[test]
fn addresses_give_the_bytes_of_tensors() {
    let device = Device::sim();
    let ([tokens, topk], experts, columns) = ([7, 2], 3, 16);
    let ids = choices(1, [tokens, topk], experts);
    let rows = moe_rows(tokens, topk, experts, 16);
    let expected = permute(&ids, [tokens, topk], experts, 16, rows, &device);
    let ids = Tensor::from_slice(&ids, &[tokens, topk], &device).unwrap();
    let new = |dims: &[usize]| Tensor::empty(DType::I32, dims, &device).unwrap();
    let written = [new(&[rows]), new(&[rows]), new(&[experts]), new(&[tokens, topk])];
    let call = RawMoePermute {
        token_count: tokens,
        topk,
        ids: ids.address(),
        experts,
        alignment: 16,
        rows,
        tokens: written[0].address(),
        groups: written[1].address(),
        ends: written[2].address(),
        places: written[3].address(),
    };
    let from = Tensor::from_f32(DType::Bf16, &vec![1.0; rows * columns], &[rows, columns], &device).unwrap();
    let weights = Tensor::from_f32(DType::F32, &[0.5; 14], &[tokens, topk], &device).unwrap();
    let out = Tensor::empty(DType::Bf16, &[tokens, columns], &device).unwrap();
    let back = RawMoeUnpermute {
        token_count: tokens,
        topk,
        row_count: rows,
        columns,
        rows: from.address(),
        places: written[3].address(),
        weights: weights.address(),
        out: out.address(),
    };
    // SAFETY: the tensors live on, and nobody else uses them.
    unsafe {
        moe_permute_raw(&device, &call, &LaunchOptions::default()).unwrap();
        moe_unpermute_raw(&device, &back, &LaunchOptions::default()).unwrap();
    }
    assert_eq!(written.map(|tensor| tensor.to_vec::<i32>().unwrap()), expected);
    let of_token = |token: usize| expected[3][token * topk..][..topk].iter().filter(|p| **p >= 0).count();
    for (i, value) in out.to_vec_f32().unwrap().into_iter().enumerate() {
        assert_eq!(value, 0.5 * of_token(i / columns) as f32);
    }
}

/// By address the choices are not compared with the rows: those without a row have no place, and nothing is written
/// behind the last.
#[test]
fn choices_without_a_row_have_no_place() {
    let device = Device::sim();
    for (dims @ [tokens, topk], experts, alignment) in
        [([40, 8], 33, 128), ([129, 8], 7, 32), ([33, 1], 1024, 1)]
    {
        let list = choices(5, dims, experts);
        let enough = moe_rows(tokens, topk, experts, alignment);
        let all = permute(&list, dims, experts, alignment, enough, &Device::Cpu);
        let rows = enough / 2;
        let ids = Tensor::from_slice(&list, &[tokens, topk], &device).unwrap();
        let new = |dims: &[usize]| Tensor::empty(DType::I32, dims, &device).unwrap();
        let written = [new(&[rows]), new(&[rows]), new(&[experts]), new(&[tokens, topk])];
        let [of_rows, groups, ends, places] = [0, 1, 2, 3].map(|i: usize| written[i].address());
        let call = RawMoePermute {
            token_count: tokens,
            topk,
            ids: ids.address(),
            experts,
            alignment,
            rows,
            tokens: of_rows,
            groups,
            ends,
            places,
        };
        // SAFETY: the tensors live on, and nobody else uses them.
        unsafe { moe_permute_raw(&device, &call, &LaunchOptions::default()).unwrap() };
        let cut = |x: i32| if x < rows as i32 { x } else { -1 };
        let expected = [
            all[0][..rows].to_vec(),
            all[1][..rows].to_vec(),
            all[2].iter().map(|end| (*end).min(rows as i32)).collect(),
            all[3].iter().copied().map(cut).collect::<Vec<i32>>(),
        ];
        assert_eq!(written.map(|tensor| tensor.to_vec::<i32>().unwrap()), expected, "{dims:?}");
    }
}

/// Each rule that is broken alone names its argument.
#[test]
fn bad_arguments_are_refused_by_name() {
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &Device::Cpu).unwrap();
    let int = |dims: &[usize]| new(DType::I32, dims);
    let attempt = |ids: Tensor, alignment, mut written: [Tensor; 4]| {
        let [tokens, groups, ends, places] = &mut written;
        let to = PermutedRows { tokens, groups, ends, places };
        moe_permute(&ids, alignment, to, &LaunchOptions::default())
    };
    let ids = || int(&[4, 2]);
    let good = || [int(&[64]), int(&[64]), int(&[3]), int(&[4, 2])];
    let with = |place: usize, tensor: Tensor| {
        let mut written = good();
        written[place] = tensor;
        attempt(ids(), 16, written)
    };
    attempt(ids(), 16, good()).expect("it is good");
    let cases = [
        (attempt(int(&[8]), 16, good()), "ids"),
        (attempt(new(DType::F32, &[4, 2]), 16, good()), "ids"),
        (attempt(ids(), 8, good()), "alignment"),
        (attempt(ids(), 0, good()), "alignment"),
        (with(0, int(&[8, 8])), "tokens"),
        (with(1, int(&[63])), "groups"),
        (with(2, int(&[1025])), "ends"),
        (with(2, new(DType::F32, &[3])), "ends"),
        (with(3, int(&[2, 4])), "places"),
        (with(3, int(&[4, 4]).narrow(1, 0, 2).unwrap()), "places"),
    ];
    for (i, (result, argument)) in cases.into_iter().enumerate() {
        let error = result.expect_err("the rule is broken");
        assert_eq!(error.argument(), Some(argument), "case {i}: {error}");
    }
    let attempt = |rows: Tensor, places: Tensor, weights: Tensor, mut out: Tensor| {
        moe_unpermute(&rows, &places, &weights, &mut out, &LaunchOptions::default())
    };
    let bf16 = |dims: &[usize]| new(DType::Bf16, dims);
    let f32s = |dims: &[usize]| new(DType::F32, dims);
    attempt(bf16(&[8, 32]), int(&[4, 2]), f32s(&[4, 2]), bf16(&[4, 32])).expect("it is good");
    let cases = [
        (attempt(f32s(&[8, 32]), int(&[4, 2]), f32s(&[4, 2]), bf16(&[4, 32])), "rows"),
        (attempt(bf16(&[8, 32]), f32s(&[4, 2]), f32s(&[4, 2]), bf16(&[4, 32])), "places"),
        (attempt(bf16(&[8, 32]), int(&[4, 2]), f32s(&[4, 3]), bf16(&[4, 32])), "weights"),
        (attempt(bf16(&[8, 32]), int(&[4, 2]), f32s(&[4, 2]), bf16(&[5, 32])), "out"),
        (attempt(bf16(&[8, 32]), int(&[4, 2]), f32s(&[4, 2]), f32s(&[4, 32])), "out"),
    ];
    for (i, (result, argument)) in cases.into_iter().enumerate() {
        let error = result.expect_err("the rule is broken");
        assert_eq!(error.argument(), Some(argument), "case {i}: {error}");
    }
    let shared = bf16(&[8, 32]);
    let itself = attempt(shared.clone(), int(&[8, 1]), f32s(&[8, 1]), shared);
    assert!(matches!(itself, Err(Error::Overlap { .. })), "{itself:?}");
    let attempt = |ids: Tensor, mut d: Tensor| zero_padding_rows(&ids, 2, &mut d, &LaunchOptions::default());
    attempt(int(&[8]), bf16(&[8, 32])).expect("it is good");
    let cases = [
        (attempt(f32s(&[8]), bf16(&[8, 32])), "ids"),
        (attempt(int(&[7]), bf16(&[8, 32])), "ids"),
        (attempt(int(&[8, 1]), bf16(&[8, 32])), "ids"),
        (attempt(int(&[8]), int(&[8, 32])), "d"),
        (attempt(int(&[8]), bf16(&[8])), "d"),
        (attempt(int(&[8]), bf16(&[32, 8]).transpose(0, 1).unwrap()), "d"),
    ];
    for (i, (result, argument)) in cases.into_iter().enumerate() {
        let error = result.expect_err("the rule is broken");
        assert_eq!(error.argument(), Some(argument), "case {i}: {error}");
    }
}
