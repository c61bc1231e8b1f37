//! Ranks that do not come, disagree, or fail in the middle of a call.

use std::fmt::Debug;

use oxigemm::Arch;
use oxigemm::sim::FaultKind;
use oxigemm_kernels::KernelId;
use oxigemm_kernels::quantize::Config;

use super::*;

fn reason(outcome: Result<()>) -> String {
    match outcome {
        Err(Error::Group { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rank_that_is_missing_or_has_other_sizes_is_named() {
    let weights = Weights::new(DType::Bf16, 4, ScaleFormat::F32);
    let tokens = Tokens::new(1, 2, 4);
    // Rank 1 has another number of tokens.
    let outcomes = world(2, "sm_90a").each_rank(|rank| {
        let own_shape = MoeGroupShape { tokens: MOST + rank.rank(), ..shape(2, &weights) };
        let mut own = Rank::new(rank, &weights, &own_shape, None);
        let zeros = own.forward(&tokens, MoeGroupCall::default()).unwrap();
        rank.meet(0).unwrap();
        (zeros, own.group.check())
    });
    for (rank, (zeros, check)) in outcomes.unwrap().into_iter().enumerate() {
        let text = reason(check);
        assert!(text.contains(&format!("rank {} has other sizes than rank {rank}", 1 - rank)), "{text}");
        assert!(zeros.iter().all(|x| *x == 0.0));
    }
    // Rank 1 makes no call.
    let outcomes = world(2, "sm_90a").each_rank(|rank| {
        let mut own = Rank::new(rank, &weights, &shape(2, &weights), None);
        own.group.set_timeout(2e-6);
        if rank.rank() == 0 {
            own.forward(&tokens, MoeGroupCall::default()).unwrap();
            // Nobody waits again.
            own.group.set_timeout(60.0);
            own.forward(&tokens, MoeGroupCall::default()).unwrap();
        }
        rank.meet(0).unwrap();
        own.group.check()
    });
    let mut outcomes = outcomes.unwrap();
    // Rank 1 is told as well, that it is meant.
    for (rank, check) in outcomes.drain(..).enumerate() {
        let text = reason(check);
        let expected =
            ["rank 1 did not come to a barrier in time (here 60 s)", "rank 1, this rank, did not come"][rank];
        assert!(text.starts_with(expected) && text.contains("make a new group"), "{text}");
    }
}

/// Others may still be reading what is there.
#[test]
fn a_broken_group_publishes_nothing() {
    for dtype in [DType::Bf16, DType::E4m3] {
        let weights = Weights::new(dtype, 4, ScaleFormat::F32);
        let outcomes = world(2, "sm_90a").each_rank(|rank| {
            let mut own = Rank::new(rank, &weights, &shape(2, &weights), None);
            own.group.set_timeout(2e-6);
            if rank.rank() == 0 {
                own.forward(&Tokens::new(1, 3, 4), MoeGroupCall::default()).unwrap();
            }
            rank.meet(0).unwrap();
            let parts = [own.group.x(), own.group.scales(), own.group.weights()].map(Result::unwrap);
            let held = || parts.each_ref().map(|part| part.to_bytes().unwrap());
            let (before, [x, ids, factors, _]) = (held(), Tokens::new(2, MOST, 4).place(&rank.device()));
            let routing = MoeRouting { ids: &ids, weights: &factors };
            moe_publish(&own.group, &x, &routing, 1.0, &LaunchOptions::default()).unwrap();
            assert!(before == held(), "{dtype}, rank {}", rank.rank());
            rank.meet(0).unwrap();
        });
        outcomes.unwrap();
    }
}

/// How a rank fails between the barriers of a call.
#[derive(Clone, Copy, Debug)]
enum Failure {
    /// The call returns an error.
    Told,
    /// It ends there, and tells nobody.
    Silent,
}

/// The sum of the rows of a rank, which is launched between the barriers.
const SUMS: KernelId = KernelId::Quantize(Arch::Sm90a, Config::MoeUnpermute);

/// Work of a rank while that kernel cannot be launched, which is how it ends.
fn without_sums<R: Debug>(rank: &SimRank, work: impl FnOnce() -> Result<R>) -> Result<()> {
    let other = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry other() { ret; }";
    rank.sim().replace_kernel(SUMS, other)?;
    let outcome = work();
    rank.sim().replace_kernel(SUMS, &SUMS.build().unwrap().text)?;
    match outcome {
        Err(Error::Fault { fault, .. }) if fault.kind == FaultKind::Launch => Ok(()),
        outcome => outcome.map(|found| panic!("it has not failed: {found:?}")),
    }
}

impl Rank {
    /// A call that fails between the barriers.
    pub fn fail(&mut self, rank: &SimRank, tokens: &Tokens, call: MoeGroupCall<'_>) -> Result<()> {
        without_sums(rank, || self.forward(tokens, call))
    }

    /// The same of a graph of the call, whose kernels behind the failure are not launched either.
    pub fn stop(&mut self, rank: &SimRank, tokens: &Tokens, call: MoeGroupCall<'_>) -> Result<()> {
        let stream = rank.device().new_stream()?;
        let [x, ids, weights, mut out] = tokens.place(&rank.device());
        let routing = MoeRouting { ids: &ids, weights: &weights };
        moe_publish(&self.group, &x, &routing, 1.0, &LaunchOptions::default())?;
        let call = MoeGroupCall { tokens: tokens.count(), ..call };
        let options = &GemmOptions { stream: Some(stream.clone()), ..GemmOptions::default() };
        let (group, experts, scratch) = (&self.group, self.placed.experts(), &mut self.scratch);
        without_sums(rank, || {
            let graph =
                stream.capture(|_| moe_forward_group(group, &call, &experts, scratch, &mut out, options))?;
            graph.launch(&stream)
        })
    }
}

/// Rank 1 of two fails in its first call, and both call again, twice: results of every rank, and what it is told.
fn after_a_failure(how: Failure, dtype: DType, gpu: &str) -> Vec<(Vec<Vec<f32>>, String)> {
    let weights = Weights::new(dtype, 4, ScaleFormat::F32);
    let outcomes = world(2, gpu).each_rank(|rank| {
        let mut own = Rank::new(rank, &weights, &shape(2, &weights), None);
        let mut found = Vec::new();
        for nth in 0..3 {
            let tokens = Tokens::new(10 * nth + rank.rank() as u64, 3, weights.experts);
            match (rank.rank(), nth, how) {
                (1, 0, Failure::Told) => own.fail(rank, &tokens, MoeGroupCall::default()).unwrap(),
                (1, 0, Failure::Silent) => own.stop(rank, &tokens, MoeGroupCall::default()).unwrap(),
                _ => found.push(own.forward(&tokens, MoeGroupCall::default()).unwrap()),
            }
        }
        rank.meet(0).unwrap();
        (found, reason(own.group.check()))
    });
    outcomes.unwrap()
}

#[test]
fn a_rank_that_fails_between_the_barriers_is_named_and_nothing_stale_is_added() {
    for how in [Failure::Told, Failure::Silent] {
        for (dtype, schedule) in [(DType::Bf16, "eager"), (DType::E4m3, "lazy"), (DType::E4m3, "1")] {
            let outcomes = after_a_failure(how, dtype, &format!("sm_90a:{schedule}"));
            for (rank, (found, text)) in outcomes.into_iter().enumerate() {
                let what = format!("{how:?} {dtype} {schedule}, rank {rank}: {text}");
                assert!(text.starts_with("rank 1") && text.contains("failed"), "{what}");
                assert_eq!(text.contains("this rank"), rank == 1, "{what}");
                assert!(text.contains("make a new group"), "{what}");
                assert!(found.iter().flatten().all(|x| *x == 0.0), "{what}");
            }
        }
    }
}

/// A new group on the same buffers begins anew.
#[test]
fn after_a_failure_a_new_group_works() {
    let weights = Weights::new(DType::E4m3, 4, ScaleFormat::F32);
    let outcomes = world(2, "sm_90a:1").each_rank(|rank| {
        let shape = shape(2, &weights);
        let mut own = Rank::new(rank, &weights, &shape, None);
        let tokens = Tokens::new(rank.rank() as u64, 4, weights.experts);
        match rank.rank() {
            1 => own.fail(rank, &tokens, MoeGroupCall::default()).unwrap(),
            _ => drop(own.forward(&tokens, MoeGroupCall::default()).unwrap()),
        }
        // No rank is in a call any more.
        let buffers = rank.meet(own.buffer.address()).unwrap();
        assert!(own.group.check().is_err());
        rank.meet(0).unwrap();
        // SAFETY: as in `Rank::new`.
        own.group = unsafe { MoeGroup::new(&rank.device(), &shape, rank.rank(), &buffers).unwrap() };
        rank.meet(0).unwrap();
        let found = own.forward(&tokens, MoeGroupCall::default()).unwrap();
        rank.meet(0).unwrap();
        own.group.check().unwrap();
        (tokens, found)
    });
    for (tokens, found) in outcomes.unwrap() {
        let diff = calc_diff(&found, &tokens.alone(&weights, &Device::sim()));
        assert!(diff < 2e-5, "{diff}");
    }
}
