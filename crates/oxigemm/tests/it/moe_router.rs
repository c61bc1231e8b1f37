//! The router of a mixture of experts: in the simulator the bytes of the CPU's, under every schedule; and the CPU's are
//! what exact scores say.

use oxigemm::sim::{Options, Policy};
use oxigemm::{
    Addend, DType, Device, Error, GemmLayout, GemmOptions, GroupScore, LaunchOptions, RawMoeRoute,
    RawMoeTopK, RawRouting, Router, Scoring, Tensor, half_gemm, moe_route, moe_route_raw, moe_top_k,
    moe_top_k_raw, random,
};

const SCORINGS: [Scoring; 3] = [Scoring::Softmax, Scoring::Sigmoid, Scoring::SqrtSoftplus];

/// A call on the host.
#[derive(Clone, Debug)]
struct Case {
    logits: Vec<f32>,
    experts: usize,
    topk: usize,
    dtype: DType,
    /// Elements between rows of logits.
    gap: usize,
    router: Router<()>,
    bias: Option<Vec<f32>>,
    token_mask: Option<Vec<u8>>,
    token_count: Option<i32>,
    expert_mask: Option<Vec<u8>>,
    map: Option<Vec<i32>>,
}

impl Case {
    fn new(logits: Vec<f32>, experts: usize, topk: usize, router: Router<()>) -> Case {
        Case {
            logits,
            experts,
            topk,
            dtype: DType::F32,
            gap: 0,
            router,
            bias: None,
            token_mask: None,
            token_count: None,
            expert_mask: None,
            map: None,
        }
    }

    /// Normal logits, of which many tie and some are no numbers.
    fn drawn(seed: u64, [tokens, experts, topk]: [usize; 3], router: Router<()>) -> Case {
        let rough = |(i, x): (usize, f32)| match random::bits(seed + 1, i as u64) % 64 {
            0 => f32::NAN,
            1 => f32::INFINITY,
            2 => f32::NEG_INFINITY,
            3 => -0.0,
            4 => 0.0,
            5 => 60.0 * x,
            _ => (8.0 * x).round() / 4.0,
        };
        let logits = random::normals(seed, tokens * experts).into_iter().enumerate().map(rough).collect();
        Case::new(logits, experts, topk, router)
    }

    fn with_bias(self, seed: u64) -> Case {
        let bias = random::normals(seed, self.experts).iter().map(|x| 0.1 * x).collect();
        Case { bias: Some(bias), ..self }
    }

    fn tokens(&self) -> usize {
        self.logits.len() / self.experts
    }

    /// Runs with a router of tensors on a device.
    fn with_router<R>(&self, device: &Device, run: impl FnOnce(&Router<&Tensor>) -> R) -> R {
        let floats = |list: &Option<Vec<f32>>| {
            list.as_ref().map(|list| Tensor::from_slice(list, &[list.len()], device).unwrap())
        };
        let bytes = |list: &Option<Vec<u8>>| {
            list.as_ref().map(|list| {
                let floats: Vec<f32> = list.iter().copied().map(f32::from).collect();
                Tensor::from_f32(DType::U8, &floats, &[list.len()], device).unwrap()
            })
        };
        let ints = |list: Option<Vec<i32>>| {
            list.map(|list| Tensor::from_slice(&list, &[list.len()], device).unwrap())
        };
        let (bias, map) = (floats(&self.bias), ints(self.map.clone()));
        let [token_mask, expert_mask] = [&self.token_mask, &self.expert_mask].map(bytes);
        let token_count = ints(self.token_count.map(|count| vec![count]));
        let Router { scoring, groups, topk_groups, group_score, renormalize, scale, .. } = self.router;
        run(&Router {
            scoring,
            bias: bias.as_ref(),
            groups,
            topk_groups,
            group_score,
            renormalize,
            scale,
            token_mask: token_mask.as_ref(),
            token_count: token_count.as_ref(),
            expert_mask: expert_mask.as_ref(),
            map: map.as_ref(),
        })
    }

    /// Ids and weights.
    fn run(&self, device: &Device) -> (Vec<i32>, Vec<f32>) {
        let (tokens, pitch) = (self.tokens(), self.experts + self.gap);
        let padded: Vec<f32> = (0..tokens * pitch)
            .map(|i| match i % pitch {
                column if column < self.experts => self.logits[i / pitch * self.experts + column],
                _ => 1e9,
            })
            .collect();
        let whole = Tensor::from_f32(self.dtype, &padded, &[tokens, pitch], device).unwrap();
        let logits = whole.narrow(1, 0, self.experts).unwrap();
        let mut ids = Tensor::empty(DType::I32, &[tokens, self.topk], device).unwrap();
        let mut weights = Tensor::empty(DType::F32, &[tokens, self.topk], device).unwrap();
        self.with_router(device, |router| {
            moe_top_k(&logits, router, &mut ids, &mut weights, &LaunchOptions::default()).unwrap();
        });
        (ids.to_vec().unwrap(), weights.to_vec_f32().unwrap())
    }

    /// Score of each expert of a token as softmax and its like define it; NaN of NaN.
    fn scores(&self, token: usize) -> Vec<f64> {
        let logits = &self.logits[token * self.experts..][..self.experts];
        let exact = |x: f32| f64::from(x.clamp(-f32::MAX, f32::MAX));
        let on = |expert: usize| self.expert_mask.as_ref().is_none_or(|mask| mask[expert] != 0);
        let numbers =
            || (0..self.experts).filter(|e| on(*e) && !logits[*e].is_nan()).map(|e| exact(logits[e]));
        let max = numbers().fold(f64::MIN, f64::max);
        let sum: f64 = numbers().map(|x| (x - max).exp()).sum();
        let score = |(expert, &logit): (usize, &f32)| match (on(expert), self.router.scoring) {
            _ if logit.is_nan() => f64::NAN,
            (false, _) => 0.0,
            (_, Scoring::Softmax) => (exact(logit) - max).exp() / sum,
            (_, Scoring::Sigmoid) => 1.0 / (1.0 + (-exact(logit)).exp()),
            (_, Scoring::SqrtSoftplus) => {
                let x = exact(logit);
                (x.max(0.0) + (-x.abs()).exp().ln_1p()).sqrt()
            }
        };
        logits.iter().enumerate().map(score).collect()
    }

    /// Compares with exact scores, where these are clearly apart.
    fn check_exactly(&self, (ids, weights): &(Vec<i32>, Vec<f32>)) {
        const CLOSE: f64 = 2e-6;
        let size = self.experts / self.router.groups;
        for token in 0..self.tokens() {
            let (ids, weights) = (&ids[token * self.topk..], &weights[token * self.topk..]);
            let (ids, weights) = (&ids[..self.topk], &weights[..self.topk]);
            let scores = self.scores(token);
            let rank: Vec<f64> = (0..self.experts)
                .map(|e| scores[e] + self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[e])))
                .map(|rank| if rank.is_nan() { f64::MIN } else { rank })
                .collect();
            let on = |e: usize| self.expert_mask.as_ref().is_none_or(|mask| mask[e] != 0);
            let group_score = |group: usize| {
                let mut best: Vec<f64> =
                    (group * size..(group + 1) * size).filter(|e| on(*e)).map(|e| rank[e]).collect();
                best.sort_by(|a, b| b.partial_cmp(a).unwrap());
                let sums = self.router.group_score == GroupScore::SumOfTwo;
                match best[..] {
                    [a, b, ..] if sums && b > f64::MIN => a + b,
                    [a, ..] => a,
                    [] => f64::NEG_INFINITY,
                }
            };
            let groups: Vec<f64> = (0..self.router.groups).map(group_score).collect();
            let better = |group: usize| groups.iter().filter(|x| **x > groups[group] + CLOSE).count();
            let chosen: Vec<usize> = ids.iter().filter(|id| **id >= 0).map(|id| *id as usize).collect();
            assert!(chosen.iter().all(|e| on(*e)), "{ids:?}");
            for (i, &expert) in chosen.iter().enumerate() {
                assert!(better(expert / size) < self.router.topk_groups, "group of {expert}: {groups:?}");
                assert!(!chosen[..i].contains(&expert), "{ids:?} twice");
                let of_chosen_group = |e: &usize| chosen.iter().any(|c| c / size == e / size);
                let rest = (0..self.experts).filter(|e| on(*e) && !chosen[..i].contains(e));
                let best = rest.filter(of_chosen_group).map(|e| rank[e]).fold(f64::MIN, f64::max);
                assert!(
                    rank[expert] >= best - CLOSE * best.abs().max(1.0),
                    "{expert} {} {best}",
                    rank[expert]
                );
            }
            let score = |e: usize| if scores[e].is_nan() { 0.0 } else { scores[e] };
            let sum: f64 = chosen.iter().map(|e| score(*e)).sum();
            let divisor = if self.router.renormalize && sum > 0.0 { sum } else { 1.0 };
            for (i, &weight) in weights.iter().enumerate() {
                let expected =
                    chosen.get(i).map_or(0.0, |e| score(*e) / divisor * f64::from(self.router.scale));
                let error = (f64::from(weight) - expected).abs();
                assert!(error <= 2e-6 * expected.abs() + 1e-30, "{weight} {expected}");
            }
        }
    }
}

/// Every scoring function, with and without what may follow it.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes = [
        [5, 8, 2],
        [3, 1, 1],
        [4, 33, 7],
        [9, 128, 32],
        [4, 160, 6],
        [6, 256, 8],
        [3, 500, 10],
        [2, 512, 32],
    ];
    for (i, scoring) in (0..).zip(SCORINGS) {
        for (j, dims) in (0..).zip(shapes) {
            let (seed, renormalize) = (100 * i + j, (i + j) % 2 == 0);
            let scale = if j % 3 == 0 { 2.5 } else { 1.0 };
            let router = Router { scoring, renormalize, scale, ..Router::default() };
            let case = Case::drawn(seed, dims, router);
            cases.push(if (i + j) % 3 == 0 { case.with_bias(seed) } else { case });
        }
        for (j, ([tokens, experts, topk], groups, topk_groups, group_score)) in (0..).zip([
            ([7, 256, 8], 8, 4, GroupScore::SumOfTwo),
            ([3, 160, 6], 8, 3, GroupScore::Best),
            ([3, 96, 24], 32, 8, GroupScore::SumOfTwo),
            ([5, 12, 2], 12, 2, GroupScore::SumOfTwo),
            ([2, 512, 20], 4, 1, GroupScore::SumOfTwo),
            ([3, 384, 8], 3, 3, GroupScore::Best),
        ]) {
            let seed = 1000 + 100 * i + j;
            let router =
                Router { scoring, groups, topk_groups, group_score, renormalize: true, ..Router::default() };
            let case = Case::drawn(seed, [tokens, experts, topk], router);
            cases.push(if (i + j) % 2 == 0 { case.with_bias(seed) } else { case });
        }
    }
    cases
}

fn schedule(turn: usize) -> Options {
    let with = |policy, seed| Options { policy, seed, ..Options::default() };
    [with(Policy::Eager, 0), with(Policy::Lazy, 0), with(Policy::Random, turn as u64)][turn % 3].clone()
}

fn simulators() -> [Device; 2] {
    ["sim:sm_90a", "sim:sm_100a"].map(|name| name.parse().expect("a device"))
}

fn bits((ids, weights): (Vec<i32>, Vec<f32>)) -> (Vec<i32>, Vec<u32>) {
    (ids, weights.into_iter().map(f32::to_bits).collect())
}

#[test]
fn choices_are_those_of_the_cpu_under_every_schedule() {
    let devices = simulators();
    for (turn, case) in cases().into_iter().enumerate() {
        let expected = bits(case.run(&Device::Cpu));
        let device = &devices[turn % 2];
        let Device::Sim(sim) = device else { unreachable!() };
        sim.set_options(schedule(turn));
        assert_eq!(bits(case.run(device)), expected, "{turn}: {:?} of {}", case.router, case.experts);
    }
}

#[test]
fn choices_of_the_cpu_are_those_of_exact_scores() {
    for case in cases() {
        case.check_exactly(&case.run(&Device::Cpu));
    }
}

#[test]
fn masks_padding_and_maps_are_applied() {
    let experts = 40;
    let off: Vec<u8> = (0..experts).map(|e| u8::from(e % 5 == 2) * 7).collect();
    for (turn, scoring) in SCORINGS.into_iter().enumerate() {
        let router = Router { scoring, renormalize: true, ..Router::default() };
        let mut case = Case::drawn(7 + turn as u64, [6, experts, 10], router);
        case.expert_mask = Some(off.clone());
        case.token_mask = Some(vec![1, 1, 0, 255, 1, 1]);
        case.token_count = Some(5);
        (case.dtype, case.gap) = (DType::Bf16, 3);
        case.logits = case.logits.iter().map(|x| oxigemm::bf16::from_f32(*x).to_f32()).collect();
        let unmapped = case.run(&Device::Cpu);
        case.map = Some((0..experts as i32).map(|e| 1000 - e).collect());
        let expected = case.run(&Device::Cpu);
        for device in simulators() {
            assert_eq!(bits(case.run(&device)), bits(expected.clone()), "{scoring:?}");
        }
        assert_eq!(expected.1, unmapped.1);
        for (i, (&id, &mapped)) in unmapped.0.iter().zip(&expected.0).enumerate() {
            assert_eq!(mapped, if id < 0 { -1 } else { 1000 - id });
            // Of eight experts that are on, a token that is routed gets every one.
            let is_routed = [0, 1, 3, 4].contains(&(i / 10));
            assert_eq!(id >= 0, is_routed && i % 10 < 8, "{i}");
            assert!(id < 0 || off[id as usize] != 0);
            assert!(id >= 0 || expected.1[i].to_bits() == 0);
        }
        let of_routed = Case { token_mask: None, token_count: None, map: None, ..case.clone() };
        of_routed.check_exactly(&of_routed.run(&Device::Cpu));
        case.token_count = Some(-1);
        assert!(case.run(&Device::Cpu).0.iter().all(|id| *id == -1));
        assert_eq!(bits(case.run(&Device::sim())), bits(case.run(&Device::Cpu)));
    }
}

#[test]
fn ties_go_to_the_lower_index_and_nan_is_below_all_numbers() {
    for device in simulators().into_iter().chain([Device::Cpu]) {
        for scoring in SCORINGS {
            let router = Router { scoring, ..Router::default() };
            let same = Case::new(vec![0.25; 300], 300, 32, router);
            assert_eq!(same.run(&device).0, (0..32).collect::<Vec<i32>>());
            let zeros =
                Case::new((0..64).map(|i| if i % 2 == 0 { -0.0 } else { 0.0 }).collect(), 64, 9, router);
            assert_eq!(zeros.run(&device).0, (0..9).collect::<Vec<i32>>());
            let mut logits = vec![f32::NAN; 70];
            (logits[66], logits[3], logits[40]) = (-1.0, f32::NEG_INFINITY, f32::INFINITY);
            let mixed = Case::new(logits, 70, 6, router);
            let (ids, weights) = mixed.run(&device);
            assert_eq!(ids, [40, 66, 3, 0, 1, 2], "{scoring:?}");
            assert!(weights.iter().all(|w| w.is_finite()) && weights[3..] == [0.0; 3], "{weights:?}");
            for renormalize in [false, true] {
                let router = Router { renormalize, ..router };
                let biased = Case::new(vec![f32::NAN; 40], 40, 5, router).with_bias(1);
                let (ids, weights) = biased.run(&device);
                assert_eq!((ids, weights), ((0..5).collect(), vec![0.0; 5]), "{scoring:?}");
            }
        }
    }
}

/// What a token goes to depends on the kernel's logits alone, and no workspace is left from a larger call.
#[test]
fn routing_is_the_choice_from_the_logits_of_the_gemm() {
    for (turn, [tokens, experts, k, topk]) in
        [[5, 64, 256, 6], [1, 256, 512, 8], [17, 33, 72, 4], [3, 512, 64, 32], [0, 8, 64, 2]]
            .into_iter()
            .enumerate()
    {
        for device in simulators() {
            let Device::Sim(sim) = &device else { unreachable!() };
            sim.set_options(schedule(turn));
            let seed = turn as u64;
            let of = |seed, rows: usize| {
                Tensor::from_f32(DType::Bf16, &random::normals(seed, rows * k), &[rows, k], &device).unwrap()
            };
            let (x, gate) = (of(seed, tokens), of(seed + 50, experts));
            let mut logits = Tensor::empty(DType::F32, &[tokens, experts], &device).unwrap();
            let options = GemmOptions::default();
            half_gemm(GemmLayout::Nt, &x, &gate, Addend::None, &mut logits, &options).unwrap();
            let router = Router { scoring: SCORINGS[turn % 3], renormalize: true, ..Router::default() };
            let case = Case::new(logits.to_vec_f32().unwrap(), experts, topk, router).with_bias(seed);
            let run = || {
                let mut ids = Tensor::empty(DType::I32, &[tokens, topk], &device).unwrap();
                let mut weights = Tensor::empty(DType::F32, &[tokens, topk], &device).unwrap();
                case.with_router(&device, |router| {
                    moe_route(&x, &gate, router, &mut ids, &mut weights, &options).unwrap();
                });
                bits((ids.to_vec().unwrap(), weights.to_vec_f32().unwrap()))
            };
            let expected = bits(case.run(&Device::Cpu));
            assert_eq!(run(), expected, "{tokens} {experts} {k}");
            assert_eq!(run(), expected, "again");
        }
    }
}

#[test]
fn addresses_give_the_bytes_of_tensors() {
    let device = Device::sim();
    let (tokens, experts, k, topk) = (3, 48, 64, 5);
    let of = |seed, rows: usize, columns: usize| {
        Tensor::from_f32(DType::Bf16, &random::normals(seed, rows * columns), &[rows, columns], &device)
            .unwrap()
    };
    let (x, gate) = (of(1, tokens, k), of(2, experts, k));
    let bias = Tensor::from_slice(&random::normals(3, experts), &[experts], &device).unwrap();
    let new = |dtype| Tensor::empty(dtype, &[tokens, topk], &device).unwrap();
    let router = Router { scoring: Scoring::Sigmoid, bias: Some(&bias), ..Router::default() };
    let (mut ids, mut weights) = (new(DType::I32), new(DType::F32));
    let routing = |ids: &Tensor, weights: &Tensor| RawRouting {
        tokens,
        experts,
        topk,
        router: Router { scoring: Scoring::Sigmoid, bias: Some(bias.address()), ..Router::default() },
        ids: ids.address(),
        weights: weights.address(),
    };
    let (raw_ids, raw_weights) = (new(DType::I32), new(DType::F32));
    moe_route(&x, &gate, &router, &mut ids, &mut weights, &GemmOptions::default()).unwrap();
    let call = RawMoeRoute {
        x: x.address(),
        x_pitch: k,
        gate: gate.address(),
        gate_pitch: k,
        k,
        routing: routing(&raw_ids, &raw_weights),
    };
    // SAFETY: the tensors live on, and nobody else uses them.
    unsafe { moe_route_raw(&device, &call, &GemmOptions::default()).unwrap() };
    let same = |a: &Tensor, b: &Tensor| a.to_bytes().unwrap() == b.to_bytes().unwrap();
    assert!(same(&ids, &raw_ids) && same(&weights, &raw_weights));

    let logits = of(4, tokens, experts);
    moe_top_k(&logits, &router, &mut ids, &mut weights, &LaunchOptions::default()).unwrap();
    let call = RawMoeTopK {
        logits: logits.address(),
        logits_type: DType::Bf16,
        logits_pitch: experts,
        routing: routing(&raw_ids, &raw_weights),
    };
    // SAFETY: as above.
    unsafe { moe_top_k_raw(&device, &call, &LaunchOptions::default()).unwrap() };
    assert!(same(&ids, &raw_ids) && same(&weights, &raw_weights));
    // SAFETY: nothing is launched.
    let refused = unsafe { moe_top_k_raw(&Device::Cpu, &call, &LaunchOptions::default()) };
    assert!(refused.is_err());
}

/// Each rule that is broken alone names its argument.
#[test]
fn bad_arguments_are_refused_by_name() {
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &Device::Cpu).unwrap();
    let (int, float) = (|dims: &[usize]| new(DType::I32, dims), |dims: &[usize]| new(DType::F32, dims));
    let bytes = |dims: &[usize]| new(DType::U8, dims);
    let attempt = |logits: Tensor, mut ids: Tensor, mut weights: Tensor, router: &Router<&Tensor>| {
        moe_top_k(&logits, router, &mut ids, &mut weights, &LaunchOptions::default())
    };
    let plain: Router<&Tensor> = Router::default();
    let shapes = |logits, ids, weights| attempt(logits, ids, weights, &plain);
    let with = |router: Router<&Tensor>| attempt(float(&[4, 16]), int(&[4, 8]), float(&[4, 8]), &router);
    with(plain).expect("it is good");
    let (good_bias, good_mask, good_map) = (float(&[16]), bytes(&[16]), int(&[16]));
    let (short_bias, short_mask, two) = (float(&[15]), bytes(&[3]), int(&[2]));
    with(Router { bias: Some(&good_bias), expert_mask: Some(&good_mask), map: Some(&good_map), ..plain })
        .expect("it is good");
    let cases = [
        (shapes(int(&[4, 16]), int(&[4, 8]), float(&[4, 8])), "logits"),
        (shapes(float(&[4, 513]), int(&[4, 8]), float(&[4, 8])), "logits"),
        (shapes(float(&[4, 0]), int(&[4, 8]), float(&[4, 8])), "logits"),
        (shapes(float(&[64]), int(&[4, 8]), float(&[4, 8])), "logits"),
        (shapes(float(&[4, 16]), float(&[4, 8]), float(&[4, 8])), "ids"),
        (shapes(float(&[4, 16]), int(&[5, 8]), float(&[4, 8])), "ids"),
        (shapes(float(&[4, 16]), int(&[4, 0]), float(&[4, 0])), "ids"),
        (shapes(float(&[4, 16]), int(&[4, 17]), float(&[4, 17])), "ids"),
        (shapes(float(&[4, 64]), int(&[4, 33]), float(&[4, 33])), "ids"),
        (shapes(float(&[4, 16]), int(&[4, 16]).narrow(1, 0, 8).unwrap(), float(&[4, 8])), "ids"),
        (shapes(float(&[4, 16]), int(&[4, 8]), float(&[4, 7])), "weights"),
        (shapes(float(&[4, 16]), int(&[4, 8]), int(&[4, 8])), "weights"),
        (with(Router { bias: Some(&short_bias), ..plain }), "bias"),
        (with(Router { bias: Some(&good_map), ..plain }), "bias"),
        (with(Router { token_mask: Some(&short_mask), ..plain }), "token_mask"),
        (with(Router { token_mask: Some(&good_map), ..plain }), "token_mask"),
        (with(Router { token_count: Some(&two), ..plain }), "token_count"),
        (with(Router { expert_mask: Some(&short_mask), ..plain }), "expert_mask"),
        (with(Router { map: Some(&two), ..plain }), "map"),
        (with(Router { map: Some(&good_bias), ..plain }), "map"),
        (with(Router { groups: 0, ..plain }), "groups"),
        (with(Router { groups: 5, ..plain }), "groups"),
        (with(Router { groups: 4, topk_groups: 5, ..plain }), "topk_groups"),
        (with(Router { groups: 4, topk_groups: 0, ..plain }), "topk_groups"),
        (with(Router { topk_groups: 2, ..plain }), "topk_groups"),
        (with(Router { groups: 4, topk_groups: 1, ..plain }), "ids"),
        (with(Router { scale: f32::NAN, ..plain }), "scale"),
    ];
    for (i, (result, argument)) in cases.into_iter().enumerate() {
        let error = result.expect_err("the rule is broken");
        assert_eq!(error.argument(), Some(argument), "case {i}: {error}");
    }
    let bf16 = |dims: &[usize]| new(DType::Bf16, dims);
    let route = |x: Tensor, gate: Tensor| {
        let (tokens, plain) = (x.dims()[0], Router::default());
        let (mut ids, mut weights) = (int(&[tokens, 2]), float(&[tokens, 2]));
        moe_route(&x, &gate, &plain, &mut ids, &mut weights, &GemmOptions::default())
    };
    route(bf16(&[4, 64]), bf16(&[8, 64])).expect("it is good");
    let cases = [
        (route(float(&[4, 64]), bf16(&[8, 64])), "x"),
        (route(bf16(&[4, 64]), float(&[8, 64])), "gate"),
        (route(bf16(&[4, 64]), bf16(&[8, 72])), "gate"),
        (route(bf16(&[4, 64]), bf16(&[513, 64])), "gate"),
        (route(bf16(&[4, 0]), bf16(&[8, 0])), "x"),
        (route(bf16(&[4, 63]), bf16(&[8, 63])), "x"),
    ];
    for (i, (result, argument)) in cases.into_iter().enumerate() {
        let error = result.expect_err("the rule is broken");
        assert_eq!(error.argument(), Some(argument), "case {i}: {error}");
    }
    // Weights are written where the bias is read.
    let shared = float(&[16]);
    let as_weights = shared.view(&[2, 8]).unwrap();
    let itself = attempt(float(&[2, 16]), int(&[2, 8]), as_weights, &Router { bias: Some(&shared), ..plain });
    assert!(matches!(itself, Err(Error::Overlap { argument: "bias", with: "weights", .. })), "{itself:?}");
}
