//! Parameters of the top-k kernel.

use oxigemm_ptx::{Pred, U32};

use super::score::Scoring;
use crate::common::fast_divmod::FastDivmod;
use crate::common::params::kernel_params;

/// Bits of [`Args::flags`].
#[derive(Clone, Copy, Debug)]
pub struct Flags;

impl Flags {
    /// Logits are BF16.
    pub const BF16: u32 = 1;
    /// There is a bias.
    pub const BIAS: u32 = 2;
    /// There is a mask of tokens.
    pub const TOKEN_MASK: u32 = 4;
    /// There is a number of tokens in memory.
    pub const TOKEN_COUNT: u32 = 8;
    /// There is a mask of experts.
    pub const EXPERT_MASK: u32 = 16;
    /// There is a map of ids.
    pub const MAP: u32 = 32;
    /// Weights of a token add to the factor.
    pub const RENORMALIZE: u32 = 64;
    /// Experts are ranked by logits, and not by scores and bias.
    pub const BY_LOGITS: u32 = 128;
    /// The score of a group is the sum of its two best, and not its best.
    pub const SUM_OF_TWO: u32 = 256;
    /// Position of the scoring function.
    const SCORING_SHIFT: u32 = 16;

    /// The bits of a scoring function.
    pub const fn scoring(scoring: Scoring) -> u32 {
        (scoring as u32) << Flags::SCORING_SHIFT
    }
}

/// Arguments of a launch. Addresses that the flags do not mention are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Args {
    /// Address of the logits, `[tokens, experts]`.
    pub logits: u64,
    /// Pitch of the logits in elements.
    pub logits_pitch: u32,
    /// Number of tokens.
    pub tokens: u32,
    /// Number of experts.
    pub experts: u32,
    /// Experts of a token.
    pub top_k: u32,
    /// See [`Flags`].
    pub flags: u32,
    /// Address of the bias, FP32, of each expert.
    pub bias: u64,
    /// Address of a byte for each token: 0 where it is routed nowhere.
    pub token_mask: u64,
    /// Address of the number of tokens that are routed: those before it.
    pub token_count: u64,
    /// Address of a byte for each expert: 0 where it is off.
    pub expert_mask: u64,
    /// Address of the id that is stored for each expert.
    pub map: u64,
    /// Number of groups; 1 where all experts are chosen from.
    pub groups: u32,
    /// Groups that are chosen from.
    pub kept_groups: u32,
    /// Experts of a group.
    pub group_size: FastDivmod,
    /// Factor of the weights.
    pub scale: f32,
    /// Address of the ids, `[tokens, top_k]`.
    pub ids: u64,
    /// Address of the weights, `[tokens, top_k]`.
    pub weights: u64,
}

kernel_params! {
    pub(super) struct Params from Args {
        logits: Pointer = logits,
        logits_pitch: U32 = logits_pitch,
        tokens: U32 = tokens,
        experts: U32 = experts,
        top_k: U32 = top_k,
        flags: U32 = flags,
        bias: Pointer = bias,
        token_mask: Pointer = token_mask,
        token_count: Pointer = token_count,
        expert_mask: Pointer = expert_mask,
        map: Pointer = map,
        groups: U32 = groups,
        kept_groups: U32 = kept_groups,
        group_size: U32 = group_size.value,
        group_factor: U32 = group_size.factor,
        group_shift: U32 = group_size.shift,
        scale: F32 = scale,
        ids: Pointer = ids,
        weights: Pointer = weights,
    }
}

impl<'k> Params<'k> {
    /// Whether a flag is set.
    #[track_caller]
    pub fn has(&self, flag: u32) -> Pred<'k> {
        (self.flags & flag).ne(0)
    }

    /// Whether experts have these scores.
    #[track_caller]
    pub fn scores_by(&self, scoring: Scoring) -> Pred<'k> {
        (self.flags >> Flags::SCORING_SHIFT).eq(scoring as u32)
    }

    /// The group of an expert.
    #[track_caller]
    pub fn group_of(&self, expert: U32<'k>) -> U32<'k> {
        (expert.widening_mul(self.group_factor) >> self.group_shift).to_u32()
    }
}
