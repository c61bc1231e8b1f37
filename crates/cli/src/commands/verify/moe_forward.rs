//! Checks of a mixture of experts in one call, on one device and by ranks that are streams of one GPU.

use std::thread;
use std::time::Duration;

use oxigemm::metrics::calc_diff;
use oxigemm::{
    DType, Device, GemmOptions, LaunchOptions, MoeGroup, MoeGroupCall, MoeGroupShape, Stream, Tensor,
    moe_forward_group, moe_group_scratch_bytes, moe_publish, random,
};

use super::random::Draw;
use super::{Check, Setup, ensure};
use crate::Failure;
use crate::cases::moe::{HostExperts, MoeLayer, MoeSpec, MoeWeights, PlacedExperts, RoutedTokens, choices};

pub fn checks(_: &Setup) -> Vec<Check> {
    let mut checks = vec![
        Check::anywhere("moe_forward: random layers as on the CPU", random_cases),
        Check::anywhere("moe_forward: repeats give the same bits", repeats),
        Check::with_kernels(
            "moe_forward: a graph reads the choices that are there when it is launched",
            replayed,
        ),
    ];
    for weights in MoeWeights::ALL {
        let name = format!("moe_forward: four ranks as streams, {weights:?} weights");
        checks.push(Check::on_gpu(name, move |setup| ranks(setup, weights)));
    }
    checks
}

fn draw_spec(draw: &mut Draw, setup: &Setup) -> MoeSpec {
    let most = if setup.device.as_cuda().is_some() { 100 } else { 8 };
    let spec = MoeSpec {
        weights: draw.of(&MoeWeights::ALL),
        tokens: 1 + draw.below(most),
        topk: draw.of(&[1, 2, 4, 8]),
        experts: draw.of(&[1, 3, 8, 16]),
        inner: 128 * draw.of(&[1, 1, 2, 3]),
        outer: 128 * draw.of(&[1, 2, 4, 5]),
        seed: draw.below(1 << 20) as u64,
    };
    // Three products of all columns for each choice.
    let of_token = 3 * spec.topk * spec.inner * spec.outer;
    MoeSpec { tokens: spec.tokens.min((draw.largest() / of_token).max(1)), ..spec }
}

/// The output, as numbers.
fn output(spec: MoeSpec, device: &Device) -> Result<Vec<f32>, Failure> {
    let mut layer = spec.on(device)?;
    layer.run(&GemmOptions::default())?;
    device.synchronize()?;
    Ok(layer.out.to_vec_f32()?)
}

fn random_cases(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 95);
    let (count, mut worst) = (setup.count(60), 0.0f64);
    for _ in 0..count {
        let spec = draw_spec(&mut draw, setup);
        setup.now(spec.to_string());
        let (found, exact) = (output(spec, &setup.device)?, output(spec, &Device::Cpu)?);
        let diff = calc_diff(&found, &exact);
        ensure(diff < spec.weights.most_diff(), || format!("{spec}: diff {diff:.2e} to the CPU"))?;
        worst = worst.max(diff);
    }
    Ok(format!("{count} layers, diff at most {worst:.1e}"))
}

fn repeats(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 96);
    for weights in MoeWeights::ALL {
        let spec = MoeSpec { weights, ..draw_spec(&mut draw, setup) };
        let mut layer = spec.on(&setup.device)?;
        setup.same_bits_again(&spec, || {
            layer.run(&GemmOptions::default())?;
            setup.device.synchronize()?;
            Ok(layer.out.to_bytes()?)
        })?;
    }
    Ok("no bit differs".to_owned())
}

fn replayed(setup: &Setup) -> Result<String, Failure> {
    for weights in MoeWeights::ALL {
        let spec = MoeSpec { weights, tokens: 9, topk: 3, experts: 8, inner: 128, outer: 256, seed: 11 };
        let stream = setup.device.new_stream()?;
        let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
        let (mut layer, mut fresh) = (spec.on(&setup.device)?, spec.on(&setup.device)?);
        // The first call loads the kernels.
        layer.run(&options)?;
        stream.synchronize()?;
        let graph = stream.capture(|_| layer.run(&options))?;
        for seed in [2, 3, 4] {
            let ids: Vec<u8> = choices(&spec, seed).iter().flat_map(|id| id.to_le_bytes()).collect();
            let write = |layer: &mut MoeLayer| layer.tokens.ids.write_bytes(&ids);
            write(&mut layer)?;
            graph.launch(&stream)?;
            write(&mut fresh)?;
            fresh.run(&options)?;
            stream.synchronize()?;
            ensure(layer.out.to_bytes()? == fresh.out.to_bytes()?, || {
                format!("{spec}: choices {seed} gave other bits than a call")
            })?;
        }
    }
    Ok("three replays of each kind of weights, the bits of calls".to_owned())
}

const RANKS: usize = 4;
/// Lists of tokens and choices that each rank draws from.
const LISTS: usize = 6;
/// Calls between two times that hosts look at results.
const BATCH: usize = 50;
/// Tokens that a rank's buffer has room for.
const MOST: usize = 24;
/// Seconds after which a rank counts as missing, and while kernels are loaded.
const TIMEOUT: f64 = 10.0;
const LOADING: f64 = 1.0;
/// The longest that a rank is late, in microseconds.
const LATE: u64 = 500;

/// A layer with experts on four ranks, each a stream of one GPU with its share of the SMs.
fn ranks(setup: &Setup, weights: MoeWeights) -> Result<String, Failure> {
    let spec =
        MoeSpec { weights, tokens: MOST, topk: 4, experts: 16, inner: 256, outer: 512, seed: setup.seed };
    let host = HostExperts::new(&spec)?;
    // The driver may wait for kernels that run before it loads another, also for a barrier that waits for the rank that
    // loads. Groups of their own, whose calls end in any case, load them all.
    load_kernels(&mut Rank::all(setup, &host, &spec, LOADING)?)?;
    let mut ranks = Rank::all(setup, &host, &spec, TIMEOUT)?;
    let batches = setup.count(10_000).div_ceil(BATCH);
    for batch in 0..batches {
        setup.now(format!("batch {batch} of {spec} by ranks"));
        // Nobody waits at a barrier of hosts for one that has failed.
        let calls = |(rank, own): (usize, &mut Rank)| own.calls(rank, (setup.seed << 32) + batch as u64);
        let made: Vec<_> = thread::scope(|scope| {
            let all = ranks.iter_mut().enumerate().map(|one| scope.spawn(move || calls(one)));
            let all: Vec<_> = all.collect();
            all.into_iter().map(|one| one.join().expect("a rank does not panic")).collect()
        });
        for (rank, (own, lists)) in ranks.iter_mut().zip(made).enumerate() {
            own.compare(&lists?).map_err(|error| format!("{spec}, rank {rank}: {error}"))?;
        }
    }
    let mut worst = 0.0f64;
    for (rank, own) in ranks.iter().enumerate() {
        for (list, expected) in own.expected.iter().enumerate().filter(|(_, found)| !found.is_empty()) {
            let tokens = RoutedTokens::new(&of_list(&spec, list), seed_of(&spec, rank, list), &setup.device)?;
            let mut alone = MoeLayer::new(&host, tokens, &setup.device)?;
            alone.run(&GemmOptions::default())?;
            setup.device.synchronize()?;
            let diff = calc_diff(&DType::Bf16.decode(expected), &alone.out.to_vec_f32()?);
            // The sum of each rank is rounded.
            ensure(diff < weights.most_diff(), || format!("{spec}, rank {rank}: diff {diff:.2e}"))?;
            worst = worst.max(diff);
        }
    }
    let calls = batches * BATCH;
    Ok(format!("{calls} calls of {RANKS} ranks, the same bits for the same tokens; diff at most {worst:.1e}"))
}

/// One call of each rank, at the same time, whatever comes of it.
fn load_kernels(ranks: &mut [Rank]) -> Result<(), Failure> {
    let made: Vec<_> = thread::scope(|scope| {
        let all = ranks.iter_mut().map(|own| scope.spawn(move || own.call(LISTS - 1, 0)));
        let all: Vec<_> = all.collect();
        all.into_iter().map(|one| one.join().expect("a rank does not panic")).collect()
    });
    for (own, made) in ranks.iter().zip(made) {
        made?;
        own.stream.synchronize()?;
    }
    Ok(())
}

/// A list has tokens of its own number, one of them none.
fn of_list(spec: &MoeSpec, list: usize) -> MoeSpec {
    MoeSpec { tokens: MOST * list / (LISTS - 1), ..*spec }
}

fn seed_of(spec: &MoeSpec, rank: usize, list: usize) -> u64 {
    spec.seed + (100 * rank + list) as u64
}

/// A rank, with all that its calls need.
struct Rank {
    group: MoeGroup,
    /// What other ranks write to.
    _buffer: Tensor,
    weights: PlacedExperts,
    scratch: Tensor,
    lists: Vec<RoutedTokens>,
    /// Outputs of a batch.
    outs: Vec<Tensor>,
    /// What each list gave at first; nothing before.
    expected: Vec<Vec<u8>>,
    stream: Stream,
    /// The stream, and a share of the SMs.
    options: GemmOptions,
}

impl Rank {
    fn all(setup: &Setup, host: &HostExperts, spec: &MoeSpec, timeout: f64) -> Result<Vec<Rank>, Failure> {
        let device = &setup.device;
        let shape = MoeGroupShape {
            ranks: RANKS,
            tokens: MOST,
            topk: spec.topk,
            experts: spec.experts / RANKS,
            columns: spec.outer,
            dtype: if spec.weights == MoeWeights::Bf16 { DType::Bf16 } else { DType::E4m3 },
            packed_scales: false,
        };
        let buffer = || Tensor::zeros(DType::U8, &[shape.buffer_bytes()?], device);
        let buffers = (0..RANKS).map(|_| buffer()).collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<u64> = buffers.iter().map(Tensor::address).collect();
        let num_sms = Some(setup.limits()?.sms / RANKS as u32);
        let bytes = moe_group_scratch_bytes(&shape, spec.inner, None)?;
        let of_rank = |(rank, buffer)| -> Result<Rank, Failure> {
            let stream = device.new_stream()?;
            let tokens = |list| RoutedTokens::new(&of_list(spec, list), seed_of(spec, rank, list), device);
            let out = |_| Tensor::zeros(DType::Bf16, &[MOST, spec.outer], device);
            // SAFETY: every rank keeps its buffer, and all are dropped together, after their calls.
            let mut group = unsafe { MoeGroup::new(device, &shape, rank, &addresses)? };
            group.set_timeout(timeout);
            Ok(Rank {
                group,
                _buffer: buffer,
                weights: host.place(rank * shape.experts, shape.experts, device)?,
                scratch: Tensor::zeros(DType::U8, &[bytes], device)?,
                lists: (0..LISTS).map(tokens).collect::<Result<_, _>>()?,
                outs: (0..BATCH).map(out).collect::<Result<_, _>>()?,
                expected: vec![Vec::new(); LISTS],
                options: GemmOptions { stream: Some(stream.clone()), num_sms, ..Default::default() },
                stream,
            })
        };
        let made = buffers.into_iter().enumerate().map(of_rank).collect::<Result<Vec<_>, _>>()?;
        device.synchronize()?;
        Ok(made)
    }

    /// Makes the calls of a batch, each with a list that is drawn, and waits for them.
    fn calls(&mut self, rank: usize, seed: u64) -> oxigemm::Result<Vec<usize>> {
        let drawn = |what: usize, nth: usize, below: u64| {
            random::bits(seed.wrapping_mul(31) + what as u64, nth as u64) % below
        };
        let mut lists = Vec::new();
        for nth in 0..BATCH {
            let list = drawn(rank, nth, LISTS as u64) as usize;
            // Every other call or so, one rank is late.
            if drawn(RANKS, nth, 2 * RANKS as u64) == rank as u64 {
                thread::sleep(Duration::from_micros(drawn(RANKS + 1, nth, LATE)));
            }
            self.call(list, nth)?;
            lists.push(list);
        }
        self.stream.synchronize()?;
        Ok(lists)
    }

    /// Puts a call into the stream, the so many-th of a batch.
    fn call(&mut self, list: usize, nth: usize) -> oxigemm::Result<()> {
        let (tokens, launch) = (&self.lists[list], LaunchOptions::from(&self.options));
        let call = MoeGroupCall { tokens: tokens.count(), ..MoeGroupCall::default() };
        let mut out = self.outs[nth].narrow(0, 0, call.tokens)?;
        moe_publish(&self.group, &tokens.x, &tokens.routing(), 1.0, &launch)?;
        let experts = self.weights.experts();
        moe_forward_group(&self.group, &call, &experts, &mut self.scratch, &mut out, &self.options)
    }

    /// Whether each list gave what it gave at first.
    fn compare(&mut self, lists: &[usize]) -> Result<(), Failure> {
        self.group.check()?;
        for (nth, list) in lists.iter().enumerate() {
            let found = self.outs[nth].narrow(0, 0, self.lists[*list].count())?.to_bytes()?;
            let expected = &mut self.expected[*list];
            if expected.is_empty() {
                expected.clone_from(&found);
            }
            ensure(*expected == found, || format!("tokens {list}, call {nth}: other bits"))?;
        }
        Ok(())
    }
}
