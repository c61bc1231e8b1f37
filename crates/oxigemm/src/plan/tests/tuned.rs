//! Tuned configurations: their file, and plans that take them.

use super::*;

/// A shape that no other test plans, as the set of the process holds for all of them.
const SHAPE: GemmShape = GemmShape { m: 33, n: 4112, k: 2064 };

/// A request with the candidate that is not its plan, by its rank.
fn other(request: &PlanRequest, rank_of: usize) -> GemmConfig {
    rank(request, &Limits::h200())[rank_of].0
}

/// One request of each grouping and epilogue.
fn requests() -> Vec<PlanRequest> {
    let groups = MGroupedShape { groups: 8, slabs: 1, rows: 8 * 256, expected: 200, n: 4096, k: 7168 };
    let slabs = MGroupedShape { slabs: 8, rows: 1024, ..groups };
    let fused = PlanRequest { fusion: Fusion::Gated, ..fp8(64, 4096, 7168) };
    vec![
        fp8(16, 4096, 7168),
        PlanRequest::dense(bf16("nn"), SHAPE),
        fused,
        PlanRequest { quantized_output: true, ..fused },
        PlanRequest::m_grouped(OperandKind::FP8, groups),
        PlanRequest::m_grouped(OperandKind::FP8, slabs),
        PlanRequest::new(nt(Half::Bf16), PlanShape::Batched(MGroupedShape { expected: 1024, ..slabs })),
        PlanRequest::new(
            nt(Half::F16),
            PlanShape::Summed { gemm: GemmShape { m: 128, n: 7168, k: 512 }, batch: 16 },
        ),
        PlanRequest::k_grouped(
            OperandKind::FP8_1D1D,
            KGroupedShape { groups: 4, m: 4096, n: 7168, k: 32768 },
        ),
    ]
}

fn tuned_of(requests: &[PlanRequest]) -> TunedConfigs {
    let mut tuned = TunedConfigs::default();
    for request in requests {
        tuned.insert(request, &Limits::h200(), other(request, 1)).expect("it is a candidate");
    }
    tuned
}

#[test]
fn a_file_holds_every_kind_of_problem() {
    let (requests, dir) = (requests(), tempfile::tempdir().unwrap());
    let (tuned, path) = (tuned_of(&requests), dir.path().join("tuned.json"));
    tuned.save(&path).unwrap();
    let read = TunedConfigs::load(&path).unwrap();
    assert_eq!(read, tuned);
    assert_eq!(read.len(), requests.len());
    for request in &requests {
        let plan = plan_with(request, &Limits::h200(), &read).unwrap();
        assert_eq!((plan.config, plan.why), (other(request, 1), Why::Tuned), "{request:?}");
    }
    assert_eq!(TunedConfigs::from_text(&TunedConfigs::default().to_text()).unwrap(), TunedConfigs::default());
}

#[test]
fn a_second_configuration_of_a_problem_replaces_the_first() {
    let request = fp8(16, 4096, 7168);
    let mut tuned = tuned_of(&[request]);
    tuned.insert(&request, &Limits::h200(), other(&request, 2)).unwrap();
    assert_eq!((tuned.len(), tuned.get(&request, &Limits::h200())), (1, Some(other(&request, 2))));
    tuned.remove(&request, &Limits::h200());
    assert!(tuned.is_empty());
}

#[test]
fn m_grouped_problems_are_the_same_for_any_rows_but_those_expected() {
    let shape = MGroupedShape { groups: 8, slabs: 8, rows: 1024, expected: 200, n: 4096, k: 7168 };
    let request = |shape| PlanRequest::m_grouped(OperandKind::FP8, shape);
    let tuned = tuned_of(&[request(shape)]);
    let found = |shape| tuned.get(&request(shape), &Limits::h200()).is_some();
    assert!(found(MGroupedShape { rows: 4096, ..shape }));
    assert!(!found(MGroupedShape { expected: 100, ..shape }));
    assert!(
        !found(MGroupedShape { slabs: 1, rows: 8 * 200, ..shape }),
        "contiguous rows are another problem"
    );
}

#[test]
fn only_the_gpu_and_the_problem_that_were_measured_have_it() {
    let request = fp8(16, 4096, 7168);
    let tuned = tuned_of(&[request]);
    let found = |request, limits: Limits| tuned.get(&request, &limits).is_some();
    assert!(found(request, Limits::h200()));
    assert!(!found(request, Limits::of(Arch::Sm90a, 114, 232_448)), "another number of SMs");
    assert!(!found(request, Limits::b200()), "another architecture");
    assert!(!found(request, Limits::h200().restricted_to(24)), "some of the SMs");
    assert!(!found(PlanRequest { fusion: Fusion::Elementwise, ..request }, Limits::h200()));
    assert!(!found(fp8(17, 4096, 7168), Limits::h200()));
    let (mut elsewhere, b200) = (TunedConfigs::default(), Limits::b200());
    let error = elsewhere.insert(&request, &b200, other(&request, 1)).unwrap_err().to_string();
    assert!(error.contains("does not compute") && error.contains("sm_100a"), "{error}");
}

#[test]
fn batch_invariant_calls_take_batch_invariant_configurations_only() {
    let request = fp8(1, 576, 7168);
    let invariant = PlanRequest { batch_invariant: true, ..request };
    let (mut tuned, limits) = (TunedConfigs::default(), Limits::h200());
    let with = |keeps: bool| {
        let is = |(config, _): &&(GemmConfig, Cost)| is_batch_invariant(config) == keeps;
        rank(&request, &limits).iter().filter(is).nth(1).expect("there are some of both").0
    };
    tuned.insert(&request, &limits, with(false)).unwrap();
    assert_eq!(plan_with(&request, &limits, &tuned).unwrap().why, Why::Tuned);
    assert_eq!(
        plan_with(&invariant, &limits, &tuned).unwrap(),
        plan_with(&invariant, &limits, &TunedConfigs::default()).unwrap()
    );
    tuned.insert(&request, &limits, with(true)).unwrap();
    assert_eq!(plan_with(&invariant, &limits, &tuned).unwrap().config, with(true));
}

#[test]
fn the_set_of_the_process_changes_plans_and_a_requested_configuration_wins() {
    let request = PlanRequest::dense(OperandKind::FP8, SHAPE);
    let [own, tuned, requested] = [0, 1, 2].map(|rank_of| other(&request, rank_of));
    assert_eq!(best(&request).config, own);
    set_tuned(tuned_of(&[request]));
    assert_eq!((best(&request).config, best(&request).why), (tuned, Why::Tuned));
    let plan = best(&request.with_config(requested));
    assert_eq!((plan.config, plan.why), (requested, Why::Requested));
    let ordered = PlanRequest { k_order: Some(KOrder::Forward), raster_band: Some(4), ..request };
    assert_eq!(best(&ordered).config, tuned, "other wishes do not matter");
    set_tuned(TunedConfigs::default());
    assert_eq!(best(&request).config, own);
}

#[test]
fn whatever_is_wrong_with_a_file_is_said() {
    let good = tuned_of(&[fp8(16, 4096, 7168), fp8(1, 576, 7168)]).to_text();
    let config = name(&other(&fp8(16, 4096, 7168), 1));
    for (from, to, words) in [
        (good.as_str(), "", "EOF"),
        ("[", "", "line 5"),
        ("\"version\": 1", "\"version\": 7", "expected version 1, found 7"),
        (&config, "sm90_fp8_split_k_9x64_k4_s6", "entry 1 of 2: there is no configuration"),
        (&config, "sm90_bf16_persistent_nn_256x128_s3_c1x1", "is for bf16 operands"),
        (&config, "sm90_fp8_persistent_m_grouped_128x128_s5_c1x1", "does not compute"),
        ("sm_90a", "sm_80", "expected sm_90a or sm_100a as `arch`, found \"sm_80\""),
        ("\"sms\":132", "\"sms\":0", "expected at least 1"),
        ("\"dense\"", "\"k-grouped\"", "expected a number of `groups`"),
        ("\"dense\"", "\"sparse\"", "unknown variant `sparse`"),
        ("\"sms\"", "\"SMs\"", "unknown field `SMs`"),
        ("\"m\":16,", "", "missing field `m`"),
    ] {
        let text = good.replacen(from, to, 1);
        assert_ne!(text, good, "{from}");
        let error = TunedConfigs::from_text(&text).unwrap_err().to_string();
        assert!(error.contains(words), "{words} in {error}");
    }
    let error = TunedConfigs::load("/nowhere/tuned.json").unwrap_err().to_string();
    assert!(error.contains("/nowhere/tuned.json"), "{error}");
}
