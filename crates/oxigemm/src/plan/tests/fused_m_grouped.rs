//! Fused epilogues of m-grouped GEMMs.

use super::fused::{OPERANDS, epilogues};
use super::*;

/// A request of each kind.
fn requests(shape: MGroupedShape) -> impl Iterator<Item = PlanRequest> {
    epilogues().flat_map(move |(fusion, quantized_output)| {
        OPERANDS.map(|operands| PlanRequest {
            fusion,
            quantized_output,
            ..PlanRequest::m_grouped(operands, shape)
        })
    })
}

#[test]
fn every_shape_has_a_plan_that_fits_the_device_and_leads_the_ranking() {
    let groups =
        [[32, 32, 4096, 20], [6, 6, 4096, 1024], [8, 1, 32768, 4096], [1024, 1024, 3, 1], [1, 1, 1, 1]];
    for limits in [Limits::h200(), Limits::of(Arch::Sm90a, 114, 232_448), Limits::h200().restricted_to(1)] {
        for [groups, slabs, rows, expected] in groups {
            for [n, k] in [[128, 1], [2048, 7168], [3072, 4096]] {
                for request in requests(MGroupedShape { groups, slabs, rows, expected, n, k }) {
                    let plan = plan(&request, &limits).expect("there is one");
                    let ranking = rank(&request, &limits);
                    assert_eq!(plan.config, ranking[0].0, "{request:?}");
                    assert!(plan.launch.shared_bytes <= limits.shared_per_block, "{request:?}");
                    assert!(
                        (1..=limits.sms).contains(&plan.launch.grid[0]),
                        "{request:?}: {:?}",
                        plan.launch
                    );
                }
            }
        }
    }
}

#[test]
fn kernels_compute_what_they_are_made_for_and_nothing_else() {
    let shape = MGroupedShape { groups: 3, slabs: 3, rows: 100, expected: 50, n: 256, k: 256 };
    let (one, limits) = (PlanShape::Dense(GemmShape { m: 100, n: 256, k: 256 }), Limits::h200());
    for request in requests(shape) {
        for (config, _) in rank(&request, &limits) {
            assert_eq!(parse(&name(&config)), Some(config));
            let refused = |request: PlanRequest| plan(&request.with_config(config), &limits).is_err();
            assert!(refused(PlanRequest::new(request.operands, one)), "{}", name(&config));
            assert!(refused(PlanRequest::m_grouped(request.operands, shape)), "{}", name(&config));
            assert!(refused(PlanRequest { shape: one, ..request }), "{}", name(&config));
        }
        for other in [
            "sm90_fp8_persistent_m_grouped_128x128_s5_c1x1",
            "sm90_fp8_persistent_fused_128x128_s5_c1x1",
            "sm90_fp8_persistent_128x128_s5_c1x1",
            "sm90_bf16_persistent_m_grouped_nt_128x128_s6_c1x1",
            "sm90_bf16_persistent_fused_nt_256x128_s3_c1x1",
        ] {
            assert!(!computes(other, request), "{other}");
        }
    }
}

#[test]
fn few_rows_of_many_groups_take_low_tiles() {
    for [expected, high] in [[20, 64], [1024, 128]] {
        let shape = MGroupedShape { groups: 32, slabs: 32, rows: 4096, expected, n: 3072, k: 7168 };
        for request in requests(shape).filter(|request| request.operands == OperandKind::FP8) {
            let plan = best(&request);
            assert_eq!(plan.config.tile()[0] > 64, high > 64, "{}", plan.name());
        }
    }
}
