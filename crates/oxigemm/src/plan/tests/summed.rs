//! Sums of batches.

use super::*;

fn request(operands: OperandKind, gemm: GemmShape, batch: u32) -> PlanRequest {
    PlanRequest::new(operands, PlanShape::Summed { gemm, batch })
}

#[test]
fn every_shape_has_a_plan() {
    for limits in [Limits::h200(), Limits::of(Arch::Sm90a, 114, 232_448), Limits::h200().restricted_to(24)] {
        for (m, n, k) in [(1, 1, 64), (128, 384, 1 << 20), (4096, 7168, 8192), (70, 33, 192)] {
            let request = request(nt(Half::F16), GemmShape { m, n, k }, 1);
            let plan = plan(&request, &limits).expect("there is one");
            assert!(plan.launch.shared_bytes <= limits.shared_per_block, "{request:?}");
            assert_eq!(parse(&name(&plan.config)), Some(plan.config));
        }
    }
}

#[test]
fn the_k_of_a_sum_is_that_of_the_batch_in_whole_stages() {
    let request = request(nt(Half::Bf16), GemmShape { m: 128, n: 384, k: 100 }, 4096);
    assert_eq!(request.shape.gemm(request.operands), GemmShape { m: 128, n: 384, k: 4096 * 128 });
    assert!(best(&request).name().starts_with("sm90_bf16_split_k_summed_nt_64x64_k8"));
}

#[test]
fn other_kernels_are_refused() {
    let (shape, operands) = (GemmShape { m: 64, n: 64, k: 256 }, nt(Half::Bf16));
    let (dense, summed) = ("sm90_bf16_split_k_nt_64x64_k4_s2", "sm90_bf16_split_k_summed_nt_64x64_k4_s2");
    assert!(!computes(dense, request(operands, shape, 1)));
    assert!(!computes(summed, PlanRequest::dense(operands, shape)));
    assert!(computes(summed, request(operands, shape, 1)));
}
