//! K-grouped GEMMs.

use super::*;

fn operands() -> [OperandKind; 3] {
    let f16 = |element, major| OperandKind::f16(Operands { element, a: major, b: major });
    [OperandKind::FP8_1D1D, f16(Half::Bf16, Major::MN), f16(Half::F16, Major::K)]
}

#[test]
fn every_shape_has_a_plan_that_fits_the_device() {
    for limits in [Limits::h200(), Limits::of(Arch::Sm90a, 114, 232_448), Limits::h200().restricted_to(24)] {
        for (groups, m, n, k) in
            [(4, 4096, 7168, 32768), (8, 7168, 2048, 32768), (1, 1, 1, 16), (1024, 64, 40, 0)]
        {
            for operands in operands() {
                let request = PlanRequest::k_grouped(operands, KGroupedShape { groups, m, n, k });
                let found = plan(&request, &limits).expect("there is one");
                assert_eq!(found.config.operands(), operands);
                assert!(found.launch.shared_bytes <= limits.shared_per_block, "{request:?}");
                assert_eq!(found.launch.grid[0] % found.launch.cluster, 0, "{request:?}");
                assert!((1..=limits.sms).contains(&found.launch.grid[0]), "{request:?}: {:?}", found.launch);
                assert_eq!(parse(&name(&found.config)), Some(found.config));
                let same = plan(&request.with_config(found.config), &limits).unwrap();
                assert_eq!(same.launch, found.launch);
            }
        }
    }
}

#[test]
fn clusters_multicast_the_larger_operand() {
    for (groups, m, n, k) in [(4, 4096, 7168, 32768), (8, 7168, 2048, 32768)] {
        let shape = KGroupedShape { groups, m, n, k };
        let plan = best(&PlanRequest::k_grouped(OperandKind::FP8_1D1D, shape));
        assert_eq!(plan.name(), "sm90_fp8_persistent_k_grouped_1d1d_128x128_s4_c1x2");
    }
}

#[test]
fn other_kernels_are_refused() {
    let shape = KGroupedShape { groups: 2, m: 64, n: 64, k: 256 };
    for dense in ["sm90_fp8_persistent_1d1d_128x128_s4_c1x1", "sm90_bf16_persistent_tn_128x128_s6_c1x1"] {
        let operands = parse(dense).unwrap().operands();
        assert!(!computes(dense, PlanRequest::k_grouped(operands, shape)), "{dense}");
    }
    for operands in operands() {
        let config = best(&PlanRequest::k_grouped(operands, shape)).config;
        let dense = PlanRequest::dense(operands, shape.group()).with_config(config);
        assert!(plan(&dense, &Limits::h200()).is_err());
    }
}
