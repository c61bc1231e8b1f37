//! Lengths beyond all columns, lengths of each query, and schedules of other lengths.

use super::{Paged, UNTOUCHED, check, expect_close, integers, plain_pages, share_out};
use oxigemm::{Device, Sim};

#[test]
fn lengths_beyond_all_columns_are_counted_without_end() {
    let sim = Sim::new();
    // So many tiles of 128 keys that their sum has more than 32 bits.
    for sequences in [255, 256, 300] {
        let lengths = vec![i32::MAX; sequences];
        for (parts, per_query) in [(1, false), (2, false), (132, true)] {
            let dims = if per_query { vec![sequences / 3, 3] } else { vec![sequences] };
            let lengths = &lengths[..dims.iter().product()];
            let schedule = share_out(lengths, &dims, parts, &Device::Cpu);
            assert_eq!(share_out(lengths, &dims, parts, &Device::Sim(sim.clone())), schedule);
            let middle = (parts / 2 * dims[0] / parts) as i32;
            assert_eq!(schedule[parts / 2 * 2], middle, "{sequences} sequences in {parts} parts");
        }
        let case = Paged {
            heads: 8,
            dim: 32,
            page_keys: 16,
            table_pages: 9,
            lengths,
            columns: 140,
            parts: 3,
            ..plain_pages()
        };
        check(&sim, case.dtype, |device| {
            let logits = case.run(device);
            assert!(logits.to_vec_f32().unwrap().iter().all(|x| x.is_finite() && *x != UNTOUCHED));
            logits
        });
    }
    // A few of them beside others.
    let lengths: Vec<i32> = integers(3, 600, -9, 900)
        .into_iter()
        .enumerate()
        .map(|(i, x)| if i % 2 == 0 { i32::MAX } else { x })
        .collect();
    let [found, expected] =
        [&Device::Sim(sim), &Device::Cpu].map(|device| share_out(&lengths, &[600], 132, device));
    assert_eq!(found, expected);
}

#[test]
fn a_schedule_of_other_lengths_touches_nothing_else() {
    let sim = Sim::new();
    let case = Paged { heads: 8, dim: 32, parts: 5, ..plain_pages() };
    let all = case.run(&Device::Cpu).to_vec_f32().unwrap();
    // Longer, shorter, none at first, none, and of more and of fewer sequences.
    for (scheduled, complete) in [
        (vec![5000; 6], true),
        (vec![i32::MAX; 6], true),
        (vec![1; 6], true),
        (vec![0, 0, 0, 0, 0, 9], false),
        (vec![0; 6], false),
        (vec![300; 40], true),
        (vec![300; 2], false),
        (vec![], false),
    ] {
        let case = Paged { scheduled: Some(scheduled.clone()), ..case.clone() };
        let found = case.run(&Device::Sim(sim.clone())).to_vec_f32().unwrap();
        // What is not computed stays.
        let expected: Vec<f32> = found
            .iter()
            .zip(&all)
            .map(|(&found, &all)| if found == UNTOUCHED { found } else { all })
            .collect();
        expect_close(&found, &expected, case.dtype);
        let missing = found.iter().filter(|x| **x == UNTOUCHED).count();
        assert_eq!(missing == 0, complete, "{missing} logits are missing of a schedule of {scheduled:?}");
    }
}

#[test]
fn each_of_three_and_of_four_queries_may_have_a_length() {
    let sim = Sim::new();
    // Longest first, last, between, and none at all.
    let lengths = [300, 2, 130, 0, -1, 0, 5, 99_999, 129, 1, 1, 257, 128, 127, 200, 40, 0, 7, 333, 64, 9];
    for (next, clean) in [(3, true), (3, false), (4, true), (4, false)] {
        let lengths = lengths[..lengths.len() / next * next].to_vec();
        let case = Paged { heads: 16, dim: 32, next, per_query: true, lengths, clean, ..plain_pages() };
        check(&sim, case.dtype, |device| case.run(device));
    }
}
