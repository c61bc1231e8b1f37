//! Numbers that are not finite.

use super::{Odd, PREFILL, Paged, Prefill, check, plain_pages};
use oxigemm::check::Logits;
use oxigemm::{DType, Device, Sim};

/// Of everything that may be other than finite one, in queries and keys of its own.
fn odd() -> Vec<Odd> {
    let (nan, infinite) = (f32::NAN, f32::INFINITY);
    vec![
        Odd::Query(0),
        Odd::Key(7),
        Odd::Scale(11, nan),
        Odd::Scale(12, infinite),
        Odd::Scale(13, -infinite),
        Odd::Scale(14, 0.0),
        Odd::Weight([1, 2], nan),
        Odd::Weight([2, 2], infinite),
        Odd::Weight([3, 0], infinite),
        Odd::Weight([3, 7], -infinite),
    ]
}

#[test]
fn what_is_not_finite_stays_with_its_query_or_key() {
    let sim = Sim::new();
    for (form, dtype) in
        [(Logits::Clean, DType::F32), (Logits::Partial, DType::Bf16), (Logits::Compressed, DType::F32)]
    {
        // The last query does not see the keys that have something of it.
        let ranges = vec![[0, 150], [0, 150], [0, 150], [0, 140], [0, 150], [20, 150]];
        let case = Prefill { heads: 8, dim: 32, ranges, form, dtype, odd: odd(), ..PREFILL };
        check(&sim, dtype, |device| {
            let logits = case.run(device);
            let found = logits.to_vec_f32().unwrap();
            let rows: Vec<&[f32]> = found.chunks(150).collect();
            expect_odd(&rows, device);
            let seen = if form == Logits::Compressed { 0..130 } else { 20..150 };
            assert!(rows[5][seen].iter().all(|x| x.is_finite()), "{device}: a query without any");
            logits
        });
    }
}

#[test]
fn what_is_not_finite_in_a_page_stays_with_its_query_or_key() {
    let sim = Sim::new();
    for dtype in [DType::F32, DType::Bf16] {
        // Both pages of every sequence are the only one.
        let case = Paged {
            heads: 8,
            dim: 32,
            page_keys: 128,
            pages: 1,
            named: [0, 1],
            table_pages: 2,
            columns: 150,
            lengths: vec![150; 5],
            dtype,
            odd: odd(),
            ..plain_pages()
        };
        check(&sim, dtype, |device| {
            let logits = case.run(device);
            let found = logits.to_vec_f32().unwrap();
            expect_odd(&found.chunks(150).collect::<Vec<&[f32]>>(), device);
            logits
        });
        // Queries that are not finite and pages that do not exist, which are zeros.
        let wild = Paged { pages: 3, page_keys: 16, table_pages: 10, named: [-1, 5], ..case };
        check(&sim, dtype, |device| wild.run(device));
    }
}

/// What rows of [`odd`] numbers are, of which the first five see all keys up to 140.
fn expect_odd(rows: &[&[f32]], device: &Device) {
    assert!(rows[0][..140].iter().all(|x| x.is_nan()), "{device}: a NaN in a query");
    assert!(rows[1][..140].iter().all(|x| x.is_nan()), "{device}: a NaN among weights");
    // A product of 0 times infinity is NaN.
    assert!(rows[2][20..140].contains(&f32::INFINITY), "{device}: an infinite weight");
    assert!(rows[2][20..140].iter().any(|x| x.is_nan()), "{device}: an infinite weight of nothing");
    assert!(rows[2][20..140].iter().all(|x| !x.is_finite()), "{device}: an infinite weight, all");
    assert!(rows[3][20..140].iter().all(|x| x.is_nan()), "{device}: infinite weights of both signs");
    for key in [7, 11] {
        assert!(rows[4][key].is_nan(), "{device}: a NaN in key {key}");
    }
    assert!(rows[4][12].is_infinite() && rows[4][13].is_infinite(), "{device}: infinite scales");
    assert!(rows[4][14] == 0.0, "{device}: a scale of 0");
    let others = [0..7, 8..11, 15..128];
    assert!(others.into_iter().flat_map(|keys| &rows[4][keys]).all(|x| x.is_finite()), "{device}: others");
}
