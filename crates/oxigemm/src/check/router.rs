//! Checks of the mixture-of-experts router.

use oxigemm_kernels::common::fast_divmod::FastDivmod;
use oxigemm_kernels::moe::score::Scoring;
use oxigemm_kernels::moe::{Args, Flags, MAX_EXPERTS, MAX_GROUPS, MAX_TOP_K};

use super::Operand;
use super::moe::{contiguous, list_length};
use crate::error::{Error, Result};
use crate::tensor::DType;
use crate::tensor::desc::Footprint;

/// The router of a mixture of experts: what scores are, and which experts are chosen by them.
///
/// 1. The score of an expert is a function of its logit ([`scoring`](Self::scoring)).
/// 2. Experts are ranked by score plus [`bias`](Self::bias). Without a bias the order is that of the logits, which is the
///    same with fewer ties. Ties go to the lower index. NaN is below all numbers.
/// 3. Where there are [`groups`](Self::groups) of neighbouring experts, those of the best groups alone are chosen from.
/// 4. The weight of a chosen expert is its score, without the bias, times [`scale`](Self::scale); divided by the sum of
///    the chosen scores where [`renormalize`](Self::renormalize) says so.
///
/// `T` is how tensors are given: `&Tensor`, or `u64` for an address.
///
/// ```
/// use oxigemm::{Router, Scoring, Tensor};
///
/// // DeepSeek-V3: 256 experts in 8 groups, of which 4 are chosen from.
/// let v3: Router<&Tensor> = Router {
///     scoring: Scoring::Sigmoid,
///     groups: 8,
///     topk_groups: 4,
///     renormalize: true,
///     scale: 2.5,
///     ..Router::default()
/// };
/// assert!(v3.bias.is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router<T> {
    /// Score of an expert.
    pub scoring: Scoring,
    /// `[E]` f32: what is added to scores before experts are ranked.
    pub bias: Option<T>,
    /// Number of groups, at most 32, of as many neighbouring experts each; 1 for none.
    pub groups: usize,
    /// Groups that are chosen from.
    pub topk_groups: usize,
    /// Score of a group.
    pub group_score: GroupScore,
    /// Whether the weights of a token add up to [`scale`](Self::scale).
    pub renormalize: bool,
    /// Factor of the weights.
    pub scale: f32,
    /// `[T]` u8: tokens that are 0 are routed nowhere. Their ids are -1, and their weights 0.
    pub token_mask: Option<T>,
    /// `[1]` i32: how many tokens are routed; those behind are padding, and routed nowhere.
    pub token_count: Option<T>,
    /// `[E]` u8: experts that are 0 are off. They are never chosen, and softmax leaves them out. Where fewer are on than
    /// a token has to choose, the rest of its ids are -1, with weights 0.
    pub expert_mask: Option<T>,
    /// `[E]` i32: the id that is stored where an expert is chosen, such as that of its physical copy.
    pub map: Option<T>,
}

impl<T> Default for Router<T> {
    fn default() -> Self {
        Router {
            scoring: Scoring::Softmax,
            bias: None,
            groups: 1,
            topk_groups: 1,
            group_score: GroupScore::SumOfTwo,
            renormalize: false,
            scale: 1.0,
            token_mask: None,
            token_count: None,
            expert_mask: None,
            map: None,
        }
    }
}

/// Score of a group of experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GroupScore {
    /// The sum of its two best, with their bias (DeepSeek-V3). What is not there, or is NaN, adds nothing.
    #[default]
    SumOfTwo,
    /// Its best (DeepSeek-V2).
    Best,
}

impl<T> Router<T> {
    /// The same with tensors given in another way: a function of the name, the type, the length and the tensor.
    pub(crate) fn map<U>(
        self,
        [tokens, experts]: [usize; 2],
        mut to: impl FnMut((&'static str, DType), usize, T) -> U,
    ) -> Router<U> {
        let mut one = |name, dtype, length, tensor: Option<T>| tensor.map(|t| to((name, dtype), length, t));
        let Router { scoring, groups, topk_groups, group_score, renormalize, scale, .. } = self;
        Router {
            scoring,
            bias: one("bias", DType::F32, experts, self.bias),
            groups,
            topk_groups,
            group_score,
            renormalize,
            scale,
            token_mask: one("token_mask", DType::U8, tokens, self.token_mask),
            token_count: one("token_count", DType::I32, 1, self.token_count),
            expert_mask: one("expert_mask", DType::U8, experts, self.expert_mask),
            map: one("map", DType::I32, experts, self.map),
        }
    }

    /// Whether experts are ranked by their logits: scores have the same order.
    pub(crate) fn ranks_by_logits(&self) -> bool {
        self.bias.is_none() && (self.groups == 1 || self.group_score == GroupScore::Best)
    }
}

impl Router<Operand> {
    /// Its lists, with their types and lengths.
    fn lists(&self, tokens: i64, experts: i64) -> impl Iterator<Item = (&Operand, DType, i64, &'static str)> {
        const OF_EXPERTS: &str = "one for each expert";
        [
            (&self.bias, DType::F32, experts, OF_EXPERTS),
            (&self.token_mask, DType::U8, tokens, "one for each token"),
            (&self.token_count, DType::I32, 1, "a number of tokens"),
            (&self.expert_mask, DType::U8, experts, OF_EXPERTS),
            (&self.map, DType::I32, experts, OF_EXPERTS),
        ]
        .into_iter()
        .filter_map(|(list, dtype, length, meaning)| Some((list.as_ref()?, dtype, length, meaning)))
    }

    /// Checks everything but logits, for tokens and experts and choices of each token.
    fn check(&self, [tokens, experts, top_k]: [i64; 3]) -> Result<Args> {
        let wrong = |argument, expected: String, found: String| Error::Shape { argument, expected, found };
        let Router { groups, topk_groups, scale, .. } = *self;
        let whole = i64::try_from(groups).is_ok_and(|count| count > 0 && experts % count == 0);
        if !whole || groups > MAX_GROUPS as usize {
            let expected = format!("a divisor of {experts} experts, at most {MAX_GROUPS}");
            return Err(wrong("groups", expected, groups.to_string()));
        }
        if topk_groups == 0 || topk_groups > groups {
            return Err(wrong("topk_groups", format!("1 to {groups} groups"), topk_groups.to_string()));
        }
        let group_size = experts / groups as i64;
        let candidates = group_size * topk_groups as i64;
        if top_k > candidates {
            let expected = format!("up to {candidates} experts of a token, as many as are chosen from");
            return Err(wrong("ids", expected, top_k.to_string()));
        }
        if !scale.is_finite() {
            return Err(wrong("scale", "a finite number".to_owned(), scale.to_string()));
        }
        for (list, dtype, length, meaning) in self.lists(tokens, experts) {
            list.expect_dtype(&[dtype])?;
            if list_length(list)? != length {
                return Err(list.wrong_shape([length], meaning));
            }
        }
        let address = |list: &Option<Operand>| list.map_or(0, |list| list.address);
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let sums = self.group_score == GroupScore::SumOfTwo;
        Ok(Args {
            tokens: tokens as u32,
            experts: experts as u32,
            top_k: top_k as u32,
            flags: Flags::scoring(self.scoring)
                | flag(self.bias.is_some(), Flags::BIAS)
                | flag(self.token_mask.is_some(), Flags::TOKEN_MASK)
                | flag(self.token_count.is_some(), Flags::TOKEN_COUNT)
                | flag(self.expert_mask.is_some(), Flags::EXPERT_MASK)
                | flag(self.map.is_some(), Flags::MAP)
                | flag(self.renormalize, Flags::RENORMALIZE)
                | flag(self.ranks_by_logits(), Flags::BY_LOGITS)
                | flag(sums, Flags::SUM_OF_TWO),
            bias: address(&self.bias),
            token_mask: address(&self.token_mask),
            token_count: address(&self.token_count),
            expert_mask: address(&self.expert_mask),
            map: address(&self.map),
            groups: groups as u32,
            kept_groups: topk_groups as u32,
            group_size: FastDivmod::new(group_size as u32),
            scale,
            ..Args::default()
        })
    }
}

/// The arguments of `moe_top_k`.
#[derive(Clone, Copy, Debug)]
pub struct MoeTopK {
    /// `[T, E]` f32 or bf16, rows of E.
    pub logits: Operand,
    /// The router.
    pub router: Router<Operand>,
    /// `[T, topk]` i32, without gaps.
    pub ids: Operand,
    /// `[T, topk]` f32, without gaps.
    pub weights: Operand,
}

/// The arguments of `moe_route`.
#[derive(Clone, Copy, Debug)]
pub struct MoeRoute {
    /// `[T, K]` bf16, rows of K.
    pub x: Operand,
    /// `[E, K]` bf16, rows of K.
    pub gate: Operand,
    /// The router.
    pub router: Router<Operand>,
    /// `[T, topk]` i32, without gaps.
    pub ids: Operand,
    /// `[T, topk]` f32, without gaps.
    pub weights: Operand,
}

/// A checked `moe_route`.
#[derive(Clone, Copy, Debug)]
pub struct RouteProblem {
    /// Columns of X.
    pub k: usize,
    /// Pitch of X in elements.
    pub x_pitch: usize,
    /// Pitch of the gate's weights in elements.
    pub gate_pitch: usize,
    /// What follows the GEMM; its logits have no address yet.
    pub args: Args,
}

impl MoeTopK {
    /// Checks every rule of the call; nothing has to be done where there are no tokens.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Option<Args>> {
        let MoeTopK { logits, router, ids, weights } = self;
        logits.expect_dtype(&[DType::F32, DType::Bf16])?;
        let [tokens, experts] = logits.matrix_dims()?;
        let Some(args) = outputs(logits, [tokens, experts], router, [ids, weights])? else { return Ok(None) };
        let (pitch, memory) = logits.plain_rows()?;
        expect_apart(&[(logits, memory)], tokens, router, [ids, weights])?;
        let bf16 = if logits.dtype == DType::Bf16 { Flags::BF16 } else { 0 };
        // plain_rows has bounded the pitch.
        let logits_pitch = pitch as u32;
        Ok(Some(Args { logits: logits.address, logits_pitch, flags: args.flags | bf16, ..args }))
    }
}

impl MoeRoute {
    /// Checks every rule of the call; nothing has to be done where there are no tokens.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Option<RouteProblem>> {
        let MoeRoute { x, gate, router, ids, weights } = self;
        x.expect_dtype(&[DType::Bf16])?;
        gate.expect_dtype(&[DType::Bf16])?;
        let ([tokens, k], [experts, gate_k]) = (x.matrix_dims()?, gate.matrix_dims()?);
        if k == 0 {
            return Err(x.wrong_shape("one column or more", "which the gate multiplies"));
        }
        if gate_k != k {
            return Err(gate.wrong_shape([experts, k], "the columns of `x`"));
        }
        gate.expect_device(x)?;
        let Some(args) = outputs(gate, [tokens, experts], router, [ids, weights])? else { return Ok(None) };
        let (x_pitch, x_memory) = x.tma_rows()?;
        let (gate_pitch, gate_memory) = gate.tma_rows()?;
        expect_apart(&[(x, x_memory), (gate, gate_memory)], tokens, router, [ids, weights])?;
        let [x_pitch, gate_pitch] = [x_pitch, gate_pitch].map(|pitch| pitch as usize);
        // A multiple of 16 bytes.
        let logits_pitch = args.experts.next_multiple_of(4);
        let args = Args { logits_pitch, ..args };
        Ok(Some(RouteProblem { k: k as usize, x_pitch, gate_pitch, args }))
    }
}

/// Checks the router and the shapes of what is written; `None` where there are no tokens. Experts are those of
/// `logits`, or of the gate.
fn outputs(
    logits: &Operand,
    [tokens, experts]: [i64; 2],
    router: &Router<Operand>,
    [ids, weights]: [&Operand; 2],
) -> Result<Option<Args>> {
    ids.expect_dtype(&[DType::I32])?;
    weights.expect_dtype(&[DType::F32])?;
    if !(1..=i64::from(MAX_EXPERTS)).contains(&experts) {
        return Err(logits.wrong_shape(format!("1 to {MAX_EXPERTS} experts"), "of which a token has some"));
    }
    let [rows, top_k] = ids.matrix_dims()?;
    if rows != tokens || !(1..=i64::from(MAX_TOP_K)).contains(&top_k) {
        let expected = format!("[{tokens}, 1 to {MAX_TOP_K}]");
        return Err(ids.wrong_shape(expected, "tokens and the experts of each"));
    }
    if weights.matrix_dims()? != [tokens, top_k] {
        return Err(weights.wrong_shape([tokens, top_k], "the shape of `ids`"));
    }
    let args = router.check([tokens, experts, top_k])?;
    let lists = router.lists(tokens, experts).map(|(list, ..)| list);
    for operand in [ids, weights].into_iter().chain(lists) {
        operand.expect_device(logits)?;
    }
    let (ids, weights) = (ids.address, weights.address);
    Ok((tokens > 0).then_some(Args { ids, weights, ..args }))
}

/// Checks that nothing is written where anything is read.
fn expect_apart(
    inputs: &[(&Operand, Footprint)],
    tokens: i64,
    router: &Router<Operand>,
    [ids, weights]: [&Operand; 2],
) -> Result<()> {
    let of_ids = contiguous(ids)?;
    for (operand, own) in [(ids, &of_ids), (weights, &contiguous(weights)?)] {
        let Some(own) = own else { continue };
        for (input, memory) in inputs {
            operand.expect_apart(own, input, memory)?;
        }
        for (list, ..) in router.lists(tokens, inputs[0].0.dims[1]) {
            if let Some(memory) = contiguous(list)? {
                operand.expect_apart(own, list, &memory)?;
            }
        }
        if let (true, Some(memory)) = (operand.name == weights.name, &of_ids) {
            operand.expect_apart(own, ids, memory)?;
        }
    }
    Ok(())
}
