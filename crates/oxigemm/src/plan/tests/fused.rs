//! Fused epilogues of dense GEMMs.

use super::*;

/// Operands that have such kernels.
pub(super) const OPERANDS: [OperandKind; 3] = [OperandKind::FP8, nt(Half::Bf16), nt(Half::F16)];

/// One of each kind of epilogue that plans tell apart: fusion, and whether D is quantized.
pub(super) fn epilogues() -> impl Iterator<Item = (Fusion, bool)> {
    [Fusion::Elementwise, Fusion::Gated]
        .into_iter()
        .flat_map(|fusion| [false, true].map(|quantized| (fusion, quantized)))
}

/// A request of each kind.
fn requests(shape: GemmShape) -> impl Iterator<Item = PlanRequest> {
    epilogues().flat_map(move |(fusion, quantized_output)| {
        OPERANDS.map(|operands| PlanRequest {
            fusion,
            quantized_output,
            ..PlanRequest::dense(operands, shape)
        })
    })
}

#[test]
fn every_shape_has_a_plan_that_fits_the_device_and_leads_the_ranking() {
    for limits in [Limits::h200(), Limits::of(Arch::Sm90a, 114, 232_448), Limits::h200().restricted_to(1)] {
        for [m, n, k] in [[1, 128, 1], [64, 2048, 7168], [130, 24576, 1536], [4096, 3072, 7168]] {
            for request in requests(GemmShape { m, n, k }) {
                let plan = plan(&request, &limits).expect("there is one");
                let ranking = rank(&request, &limits);
                assert_eq!(plan.config, ranking[0].0, "{request:?}");
                assert!(plan.launch.shared_bytes <= limits.shared_per_block, "{request:?}");
                let [rows, columns] = plan.config.cluster_tile(plan.passes);
                let (tiles, [x, y]) = (m.div_ceil(rows) * n.div_ceil(columns), plan.launch.grid);
                if plan.config.is_split_k() {
                    assert_eq!(x / plan.launch.cluster * y, tiles, "{request:?}: {:?}", plan.launch);
                    assert!(!limits.restricted || x * y <= limits.sms, "{request:?}: {:?}", plan.launch);
                    continue;
                }
                assert!((1..=limits.sms).contains(&x), "{request:?}: {:?}", plan.launch);
                // A cluster without a tile would wait for scales that nobody loads.
                assert!(x / plan.launch.cluster <= tiles, "{request:?}: {:?}", plan.launch);
            }
        }
    }
}

#[test]
fn kernels_compute_what_they_are_made_for_and_nothing_else() {
    let (shape, limits) = (GemmShape { m: 100, n: 256, k: 256 }, Limits::h200());
    for request in requests(shape) {
        for (config, _) in rank(&request, &limits) {
            assert_eq!(parse(&name(&config)), Some(config));
            let refused = |request: PlanRequest| plan(&request.with_config(config), &limits).is_err();
            assert!(
                refused(PlanRequest::dense(request.operands, shape)),
                "{} for a plain call",
                name(&config)
            );
            let other = match request.fusion {
                Fusion::Gated => Fusion::Elementwise,
                _ => Fusion::Gated,
            };
            assert!(refused(PlanRequest { fusion: other, ..request }), "{}", name(&config));
        }
        for plain in [
            "sm90_fp8_persistent_128x128_s5_c1x1",
            "sm90_bf16_persistent_nt_256x128_s3_c1x1",
            "sm90_fp8_split_k_64x128_k2_s4",
        ] {
            assert!(!computes(plain, request), "{plain}");
        }
    }
}

#[test]
fn quantized_output_takes_as_many_passes_as_make_128_columns() {
    let passes = |name: &str| parse(name).unwrap().quantized_passes();
    assert_eq!(passes("sm90_fp8_persistent_fused_256x128_s3_c1x1"), 1);
    assert_eq!(passes("sm90_fp8_persistent_fused_64x128_s6_c1x1"), 2, "warpgroups split the columns");
    assert_eq!(passes("sm90_fp8_persistent_gated_128x128_s5_c1x1"), 2);
    assert_eq!(passes("sm90_fp8_persistent_gated_64x128_s6_c1x1"), 4);
    assert_eq!(passes("sm90_fp8_persistent_gated_64x64_s10_c1x1"), 8);
    assert_eq!(passes("sm90_bf16_persistent_fused_nt_256x128_s3_c1x1"), 1);
    assert_eq!(passes("sm90_bf16_persistent_gated_nt_128x256_s4_c1x1"), 1);
    assert_eq!(passes("sm90_fp16_persistent_gated_nt_64x128_s7_c1x1"), 4);
}

#[test]
fn small_m_takes_kernels_that_split_k_and_large_m_does_not() {
    for m in [1, 24, 64] {
        for request in requests(GemmShape { m, n: 2048, k: 7168 }) {
            let plan = best(&request);
            assert!(!is_batch_invariant(&plan.config), "{request:?}: {}", plan.name());
            let plan = best(&PlanRequest { batch_invariant: true, ..request });
            assert!(is_batch_invariant(&plan.config), "{request:?}: {}", plan.name());
        }
    }
    for request in requests(GemmShape { m: 4096, n: 2048, k: 7168 }) {
        let plan = best(&request);
        assert!(!plan.config.is_split_k(), "{}", plan.name());
    }
}
