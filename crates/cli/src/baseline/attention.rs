//! The peer's figures for attention (MQA) logits.

use std::sync::LazyLock;

use serde::Deserialize;

use super::{Peer, parse};
use crate::cases::attention::{PagedSpec, PrefillSpec, Ranges};
use oxigemm::random;

/// The peer's figures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionAnchor {
    /// How the figures were taken.
    pub note: String,
    /// The benchmark cases.
    pub cases: Vec<AttentionCase>,
}

/// One case of the peer's benchmark.
#[derive(Clone, Debug, Deserialize)]
pub struct AttentionCase {
    /// What is computed.
    #[serde(flatten)]
    pub problem: AttentionProblem,
    /// Heads of a query.
    pub heads: usize,
    /// Elements of a head.
    pub dim: usize,
    /// The peer's figures; `diff` is from the product of the quantized operands.
    #[serde(flatten)]
    pub figures: Peer,
}

/// A case as the anchor names it.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(tag = "family")]
pub enum AttentionProblem {
    /// A prefill.
    #[serde(rename = "mqa")]
    Prefill {
        /// How many queries there are.
        queries: usize,
        /// How many keys there are.
        keys: usize,
    },
    /// Keys in pages.
    #[serde(rename = "paged_mqa")]
    Paged {
        /// How many sequences there are.
        sequences: usize,
        /// Queries of each.
        next: usize,
        /// The keys of all of them.
        keys: usize,
    },
}

/// What the lengths of the peer's sequences lie around.
const LENGTH: usize = 8192;

impl AttentionAnchor {
    /// The figures, parsed once.
    pub fn fp8() -> &'static AttentionAnchor {
        static ANCHOR: LazyLock<AttentionAnchor> =
            LazyLock::new(|| parse(include_str!("../../data/anchor_attention_fp8.json")));
        &ANCHOR
    }
}

impl AttentionCase {
    /// Its name, such as `paged_mqa b64 n1 h64 d128 l8192`.
    pub fn name(&self) -> String {
        let AttentionCase { heads, dim, .. } = self;
        match self.problem {
            AttentionProblem::Prefill { queries, keys } => {
                format!("mqa sq{queries} sk{keys} h{heads} d{dim}")
            }
            AttentionProblem::Paged { sequences, next, .. } => {
                format!("paged_mqa b{sequences} n{next} h{heads} d{dim} l{LENGTH}")
            }
        }
    }

    /// The prefill, if it is one.
    pub fn prefill(&self) -> Option<PrefillSpec> {
        let AttentionProblem::Prefill { queries, keys } = self.problem else { return None };
        Some(PrefillSpec::new([self.heads, self.dim], [queries, keys], Ranges::Causal))
    }

    /// The sequences, if it is about some.
    pub fn paged(&self) -> Option<PagedSpec> {
        let AttentionProblem::Paged { sequences, next, keys } = self.problem else { return None };
        Some(PagedSpec {
            clean: false,
            ..PagedSpec::new([self.heads, self.dim], next, lengths(sequences, keys))
        })
    }
}

/// Lengths around that of the peer's, which together are so many keys.
fn lengths(sequences: usize, keys: usize) -> Vec<i32> {
    let (least, most) = (LENGTH as i64 * 7 / 10, LENGTH as i64 * 13 / 10);
    let draw = |i| least + (random::bits(1, i) % (most - least) as u64) as i64;
    let mut lengths: Vec<i64> = (0..sequences as u64).map(draw).collect();
    // What is missing, or too much, is shared out.
    let mut left = keys as i64 - lengths.iter().sum::<i64>();
    while left != 0 {
        let share = (left / sequences as i64).abs().max(1);
        for length in &mut lengths {
            let change = left.clamp(-share, share).clamp(least - *length, most - *length);
            *length += change;
            left -= change;
        }
    }
    lengths.into_iter().map(|length| length as i32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_is_complete_and_lengths_are_as_many_keys() {
        let anchor = AttentionAnchor::fp8();
        assert_eq!(anchor.cases.iter().filter(|case| case.prefill().is_some()).count(), 3);
        assert_eq!(anchor.cases.len(), 6);
        for case in &anchor.cases {
            assert!(
                case.figures.diff < 1e-8 && case.figures.main_kernel_us < case.figures.call_us + 0.01,
                "{case:?}"
            );
            if let (Some(spec), AttentionProblem::Paged { keys, sequences, .. }) =
                (case.paged(), case.problem)
            {
                assert_eq!(spec.lengths.iter().map(|&length| length as usize).sum::<usize>(), keys);
                assert_eq!(spec.lengths.len(), sequences);
                assert!(spec.lengths.iter().all(|length| (5734..=10649).contains(length)));
            }
        }
    }
}
