//! Numbers of heads without a kernel of their own: queries are padded inside of a kernel.

use super::{Odd, PREFILL, Paged, Prefill, RANGES, check, plain_pages};
use crate::common::{same_bits, some_schedules};
use oxigemm::check::Logits;
use oxigemm::{DType, Device, Sim};

/// Of every padded kernel the most and the fewest heads.
const HEADS: [usize; 9] = [24, 40, 48, 56, 72, 96, 104, 120, 128];

const FORMS: [Logits; 3] = [Logits::Clean, Logits::Partial, Logits::Compressed];

/// Gaps between rows of weights hold NaN: those of heads that a query lacks are not read.
#[test]
fn padded_heads_of_a_prefill_give_the_reference() {
    let sim = Sim::new();
    for (i, heads) in HEADS.into_iter().enumerate() {
        let (dim, form) = ([32, 64, 128][i % 3], FORMS[(i + i / 3) % 3]);
        let columns = if form == Logits::Compressed { 130 } else { 150 };
        let (dtype, gap) = if i % 2 == 1 { (DType::Bf16, 1) } else { (DType::F32, 0) };
        let case = Prefill { heads, dim, ranges: RANGES.to_vec(), form, columns, dtype, gap, ..PREFILL };
        check(&sim, dtype, |device| case.run(device));
    }
}

#[test]
fn padded_heads_of_pages_give_the_reference() {
    let sim = Sim::new();
    for (i, heads) in HEADS.into_iter().enumerate() {
        let page_keys = [16, 32, 64, 128, 256][i % 5];
        let case = Paged {
            heads,
            dim: [128, 32, 64][i % 3],
            next: 1 + i % 4,
            page_keys,
            table_pages: 400usize.div_ceil(page_keys),
            parts: [3, 1, 132][i % 3],
            clean: i % 4 != 0,
            dtype: if i % 2 == 1 { DType::F32 } else { DType::Bf16 },
            gap: usize::from(i % 3 == 1),
            ..plain_pages()
        };
        check(&sim, case.dtype, |device| case.run(device));
    }
}

/// A key that is NaN has NaN logits, a query or a weight that is not finite only its own: zeros that pad add nothing.
#[test]
fn what_is_not_finite_does_the_same_beside_padding() {
    let sim = Sim::new();
    let odd = vec![
        Odd::Query(0),
        Odd::Key(7),
        Odd::Scale(11, f32::NAN),
        Odd::Scale(12, f32::INFINITY),
        Odd::Weight([1, 23], f32::INFINITY),
        Odd::Weight([2, 2], f32::NAN),
    ];
    let ranges = vec![[0, 150], [0, 150], [0, 150], [3, 150]];
    let case = Prefill { heads: 24, dim: 32, ranges, gap: 1, odd: odd.clone(), ..PREFILL };
    check(&sim, case.dtype, |device| case.run(device));
    let lengths = vec![150; 4];
    let case =
        Paged { heads: 24, dim: 32, page_keys: 128, pages: 1, named: [0, 1], lengths, odd, ..plain_pages() };
    check(&sim, case.dtype, |device| case.run(device));
}

#[test]
fn no_schedule_changes_the_bits_of_padded_heads() {
    for heads in [24, 96] {
        let ranges = (0..9).map(|i| [[0, 1200], [700, 900], [5, 5]][i % 3]).collect();
        let prefill = Prefill { heads, dim: 32, ranges, keys: 1197, columns: 1197, ..PREFILL };
        let pages =
            Paged { heads, dim: 32, next: 3, page_keys: 256, columns: 900, parts: 3, ..plain_pages() };
        let sim = Sim::new();
        same_bits("prefill", some_schedules(), &sim, |_| {
            prefill.run(&Device::Sim(sim.clone())).to_bytes().unwrap()
        });
        same_bits("pages", some_schedules(), &sim, |_| {
            pages.run(&Device::Sim(sim.clone())).to_bytes().unwrap()
        });
    }
}
