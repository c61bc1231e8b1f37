//! The router of a mixture of experts on the CPU: the bits that kernels compute.

use oxigemm_kernels::moe::score::Scoring;
use oxigemm_kernels::moe::score::on_host::{exp_below, max, sigmoid, sqrt_softplus};

use crate::check::{GroupScore, Router};
use crate::error::Result;
use crate::tensor::Tensor;

/// Lanes of a warp: sums are those of each lane, and then of all lanes.
const LANES: usize = 32;

/// The order of experts and of groups.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Rank {
    /// Off, or of a group that is not chosen from.
    Absent,
    NotANumber,
    Number(f32),
}

impl Rank {
    fn of(value: f32) -> Rank {
        if value.is_nan() { Rank::NotANumber } else { Rank::Number(value) }
    }
}

/// The router with the values of its tensors.
struct Values {
    router: Router<()>,
    ranks_by_logits: bool,
    bias: Option<Vec<f32>>,
    expert_mask: Option<Vec<u8>>,
    map: Option<Vec<i32>>,
    top_k: usize,
}

/// `moe_top_k` of checked arguments.
pub(crate) fn top_k(
    logits: &Tensor,
    router: &Router<&Tensor>,
    ids: &mut Tensor,
    weights: &mut Tensor,
) -> Result<()> {
    let (experts, top_k) = (logits.dims()[1], ids.dims()[1]);
    let bytes = |tensor: Option<&Tensor>| tensor.map(Tensor::to_bytes).transpose();
    let token_mask = bytes(router.token_mask)?;
    let token_count = router.token_count.map(|count| count.to_vec::<i32>()).transpose()?;
    let values = Values {
        router: router.map([0; 2], |_, _, _| ()),
        ranks_by_logits: router.ranks_by_logits(),
        bias: router.bias.map(Tensor::to_vec_f32).transpose()?,
        expert_mask: bytes(router.expert_mask)?,
        map: router.map.map(|map| map.to_vec::<i32>()).transpose()?,
        top_k,
    };
    let count = token_count.map_or(usize::MAX, |count| usize::try_from(count[0]).unwrap_or(0));
    let (mut all_ids, mut all_weights) = (Vec::new(), Vec::new());
    for (token, logits) in logits.to_vec_f32()?.chunks(experts).enumerate() {
        let is_routed = token < count && token_mask.as_ref().is_none_or(|mask| mask[token] != 0);
        let chosen = if is_routed { values.route(logits) } else { vec![(-1, 0.0); top_k] };
        all_ids.extend(chosen.iter().flat_map(|(id, _)| id.to_le_bytes()));
        all_weights.extend(chosen.iter().map(|(_, weight)| *weight));
    }
    ids.write_bytes(&all_ids)?;
    weights.write_f32(&all_weights)
}

impl Values {
    /// Ids and weights of a token.
    fn route(&self, logits: &[f32]) -> Vec<(i32, f32)> {
        let Router { scoring, renormalize, scale, .. } = self.router;
        let is_on = |expert: usize| self.expert_mask.as_ref().is_none_or(|mask| mask[expert] != 0);
        let on = || (0..logits.len()).filter(|expert| is_on(*expert));
        let max = max(on().map(|expert| logits[expert]));
        let score = |logit: f32| match scoring {
            Scoring::Softmax => exp_below(logit, max),
            Scoring::Sigmoid => sigmoid(logit),
            Scoring::SqrtSoftplus => sqrt_softplus(logit),
        };
        let of_all = match scoring {
            Scoring::Softmax => warp_sum(on().map(|expert| (expert, score(logits[expert])))),
            Scoring::Sigmoid | Scoring::SqrtSoftplus => 1.0,
        };
        let factor = 1.0 / positive_or_one(of_all);
        let value = |expert: usize| {
            let (logit, bias) = (logits[expert], self.bias.as_ref().map_or(0.0, |bias| bias[expert]));
            if self.ranks_by_logits || logit.is_nan() { logit } else { score(logit) * factor + bias }
        };
        let mut ranks = vec![Rank::Absent; logits.len()];
        on().for_each(|expert| ranks[expert] = Rank::of(value(expert)));
        self.keep_best_groups(&mut ranks);

        let chosen = best(&ranks, self.top_k);
        let scores: Vec<f32> = chosen.iter().map(|expert| score(logits[*expert])).collect();
        let sum = if renormalize { warp_sum(scores.iter().copied().enumerate()) } else { of_all };
        let factor = scale / positive_or_one(sum);
        let id = |expert: usize| self.map.as_ref().map_or(expert as i32, |map| map[expert]);
        let mut result: Vec<_> =
            chosen.iter().zip(scores).map(|(e, score)| (id(*e), score * factor)).collect();
        result.resize(self.top_k, (-1, 0.0));
        result
    }

    /// Makes the experts absent that are in none of the best groups.
    fn keep_best_groups(&self, ranks: &mut [Rank]) {
        let Router { groups, topk_groups, group_score, .. } = self.router;
        if groups == 1 {
            return;
        }
        let size = ranks.len() / groups;
        let group_rank = |ranks: &[Rank]| {
            let best = best(ranks, 2);
            let rank = |nth: usize| best.get(nth).map_or(Rank::Absent, |expert| ranks[*expert]);
            match (group_score, rank(0), rank(1)) {
                (GroupScore::SumOfTwo, Rank::Number(a), Rank::Number(b)) => Rank::of(a + b),
                (_, best, _) => best,
            }
        };
        let of_groups: Vec<Rank> = ranks.chunks(size).map(group_rank).collect();
        let kept = best(&of_groups, topk_groups);
        for (group, ranks) in ranks.chunks_mut(size).enumerate() {
            if !kept.contains(&group) {
                ranks.fill(Rank::Absent);
            }
        }
    }
}

/// The best of what is not absent, at most so many; ties go to the lower index.
fn best(ranks: &[Rank], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..ranks.len()).filter(|i| ranks[*i] != Rank::Absent).collect();
    // The sort is stable.
    order.sort_by(|a, b| ranks[*b].partial_cmp(&ranks[*a]).expect("no rank is NaN"));
    order.truncate(count);
    order
}

/// A sum of scores as a divisor: 1 where all scores are 0.
fn positive_or_one(sum: f32) -> f32 {
    if sum > 0.0 { sum } else { 1.0 }
}

/// The sum as a warp computes it: of each lane, and then of lanes that are further and further apart.
fn warp_sum(terms: impl Iterator<Item = (usize, f32)>) -> f32 {
    let mut lanes = [0f32; LANES];
    terms.for_each(|(index, term)| lanes[index % LANES] += term);
    for step in (0..LANES.trailing_zeros()).map(|bit| 1usize << bit) {
        lanes = std::array::from_fn(|lane| lanes[lane] + lanes[lane ^ step]);
    }
    lanes[0]
}
