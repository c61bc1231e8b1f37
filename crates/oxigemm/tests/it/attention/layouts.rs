//! Where operands lie, and how many columns there are.

use super::{PREFILL, Paged, Prefill, RANGES, UNTOUCHED, check, plain_pages};
use oxigemm::check::Logits;
use oxigemm::{DType, Device, Sim, Tensor};

/// Runs on the CPU and in the simulator; neither writes to the gaps behind rows of logits.
fn check_with_gaps(sim: &Sim, [columns, gap]: [usize; 2], dtype: DType, run: impl Fn(&Device) -> Tensor) {
    check(sim, dtype, |device| {
        let room = run(device);
        let gaps = room.narrow(1, columns, gap).unwrap().to_vec_f32().unwrap();
        assert!(gaps.iter().all(|&x| x == UNTOUCHED), "{device}: written between the rows");
        room
    });
}

#[test]
fn rows_of_a_prefill_may_be_apart() {
    let sim = Sim::new();
    for (i, form) in [Logits::Clean, Logits::Partial, Logits::Compressed].into_iter().enumerate() {
        for (gap, dtype) in [(1, DType::F32), (3, DType::Bf16), (8, DType::F32)] {
            let (heads, dim) = ([8, 16, 64][i], [128, 32, 64][i]);
            let case = Prefill { heads, dim, ranges: RANGES.to_vec(), form, dtype, gap, ..PREFILL };
            check_with_gaps(&sim, [case.columns, gap], dtype, |device| case.run(device));
        }
    }
}

#[test]
fn pages_and_rows_of_a_table_may_be_apart() {
    let sim = Sim::new();
    for (i, clean) in [true, false].into_iter().enumerate() {
        for (gap, dtype) in [(1, DType::F32), (3, DType::Bf16), (8, DType::F32)] {
            let (page_keys, next) = ([64, 16][i], [1, 3][i]);
            let case = Paged {
                heads: 8,
                dim: [128, 32][i],
                page_keys,
                table_pages: 400 / page_keys,
                next,
                clean,
                dtype,
                gap,
                ..plain_pages()
            };
            check_with_gaps(&sim, [case.columns, gap], dtype, |device| case.run(device));
        }
    }
}

#[test]
fn compressed_logits_may_have_more_columns_than_keys() {
    let sim = Sim::new();
    for (columns, dtype) in [(151, DType::F32), (400, DType::Bf16)] {
        let ranges = RANGES.to_vec();
        let case = Prefill { ranges, form: Logits::Compressed, columns, dtype, ..PREFILL };
        check(&sim, dtype, |device| case.run(device));
    }
}
