//! Sequences of more queries than dedicated kernels have, pages that are larger than a tile, and steps without keys.

use super::{Paged, UNTOUCHED, check, integers, plain_pages, share_out};
use crate::common::{same_bits, some_schedules};
use oxigemm::{DType, Device, Sim};

#[test]
fn more_than_four_queries_of_a_sequence_give_the_reference() {
    let sim = Sim::new();
    for (i, next) in [5, 6, 7, 8, 13, 16, 33].into_iter().enumerate() {
        let heads = [64, 8, 32, 16, 128, 48, 64][i];
        let lengths = vec![300, 2, 0, 129, 99_999];
        let case = Paged { heads, dim: [128, 32, 64][i % 3], next, lengths, parts: 3, ..plain_pages() };
        let case =
            Paged { clean: i % 3 != 2, dtype: if i % 2 == 0 { DType::F32 } else { DType::Bf16 }, ..case };
        check(&sim, case.dtype, |device| case.run(device));
    }
}

#[test]
fn each_of_more_than_four_queries_may_have_a_length() {
    let sim = Sim::new();
    for (next, clean) in [(5, true), (9, false), (16, true)] {
        // The longest is the first, the last, one between, and there is none.
        let mut lengths = integers(7, 4 * next, 0, 200);
        (lengths[0], lengths[2 * next - 1], lengths[2 * next + next / 2]) = (333, 301, 257);
        lengths[3 * next..].iter_mut().for_each(|length| *length = -(*length % 3));
        let case = Paged { heads: 16, dim: 32, next, per_query: true, lengths, clean, ..plain_pages() };
        check(&sim, case.dtype, |device| case.run(device));
    }
}

#[test]
fn schedules_of_any_number_of_lengths_are_those_of_the_reference() {
    let sim = Device::sim();
    for (count, next, parts) in [(1, 5, 1), (3, 16, 132), (600, 7, 66), (2, 40, 3), (0, 6, 3)] {
        let lengths = integers(count as u64, count * next, -20, 3000);
        let [found, expected] =
            [&sim, &Device::Cpu].map(|device| share_out(&lengths, &[count, next], parts, device));
        assert_eq!(found, expected, "{count} sequences of {next} lengths in {parts} parts");
    }
}

#[test]
fn pages_of_two_tiles_give_the_reference() {
    let sim = Sim::new();
    for (i, heads) in [8, 16, 32, 64].into_iter().enumerate() {
        let case = Paged {
            heads,
            dim: [32, 64, 128][i % 3],
            next: 1 + i,
            page_keys: 256,
            // More pages than a warp has lanes, and the last of a table in parts of pages.
            table_pages: [40, 2, 3, 2][i],
            columns: [10_000, 333, 700, 512][i],
            lengths: [vec![9_900, 8_300], vec![257, 1, 0], vec![700, 129], vec![512, 255, 256]][i].clone(),
            parts: [5, 1, 132, 7][i],
            ..plain_pages()
        };
        check(&sim, case.dtype, |device| case.run(device));
        let wild = Paged { named: [-2, 9], columns: 333, lengths: vec![300, 257], ..case };
        check(&sim, wild.dtype, |device| wild.run(device));
    }
}

/// As many parts as there are SMs, half as many, one, and more than tiles: logits are the same.
#[test]
fn the_number_of_parts_changes_no_bit() {
    let sim = Sim::new();
    for (next, page_keys) in [(4, 64), (2, 64), (6, 64), (1, 256)] {
        let case = Paged { heads: 8, dim: 32, next, page_keys, ..plain_pages() };
        let run = |parts| Paged { parts, ..case.clone() }.run(&Device::Sim(sim.clone())).to_bytes().unwrap();
        let all = run(132);
        for parts in [66, 1, 3, 400] {
            assert!(run(parts) == all, "{parts} parts of {next} queries");
        }
    }
}

/// A dummy step of a captured graph: no sequence has a key. Lengths end where their memory does, and the simulator
/// reports every read behind it.
#[test]
fn steps_without_keys_read_nothing_outside() {
    let sim = Sim::new();
    for (sequences, next) in [(1, 1), (2, 4), (7, 1), (33, 2), (5, 6)] {
        for (length, per_query) in [(0, false), (0, true), (-1, true)] {
            let lengths = vec![length; if per_query { sequences * next } else { sequences }];
            for parts in [1, 66, 132] {
                let dims = if per_query { vec![sequences, next] } else { vec![sequences] };
                let schedule = share_out(&lengths, &dims, parts, &Device::Sim(sim.clone()));
                assert_eq!(schedule, [sequences as i32, 0].repeat(parts + 1), "all parts begin at the end");
            }
            for clean in [true, false] {
                let lengths = lengths.clone();
                let case = Paged { heads: 8, dim: 32, next, per_query, lengths, clean, ..plain_pages() };
                let logits = case.run(&Device::Sim(sim.clone())).to_vec_f32().unwrap();
                let expected = if clean { f32::NEG_INFINITY } else { UNTOUCHED };
                assert!(logits.iter().all(|x| *x == expected));
            }
        }
    }
}

#[test]
fn no_schedule_changes_the_bits_of_many_queries() {
    let case =
        Paged { heads: 16, dim: 32, next: 11, page_keys: 16, table_pages: 60, columns: 900, ..plain_pages() };
    let case = Paged { parts: 3, ..case };
    let sim = Sim::new();
    same_bits("pages", some_schedules(), &sim, |_| case.run(&Device::Sim(sim.clone())).to_bytes().unwrap());
}
