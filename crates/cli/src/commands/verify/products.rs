//! Checks that compare products with the reference: shapes, layouts, kernels.

use oxigemm::plan::{self, Choice, Family, Shape};
use oxigemm::{Addend, DType, GemmLayout, GemmOptions, Tensor, fp8_gemm_nt, random};
use oxigemm_kernels::launch::Config;
use oxigemm_kernels::{fp8_slim, half_slim};

use super::{Check, Setup, computed, ensure, tally};
use crate::problem::{AddendKind, Host, ScaleOrder, Spec};
use crate::task::Work;
use crate::verdict::{self, Effort};
use crate::{Failure, Op};

pub(super) const ADDENDS: [AddendKind; 3] = [AddendKind::None, AddendKind::Inplace, AddendKind::Other];
pub const ORDERS: [ScaleOrder; 4] = [ScaleOrder::Row, ScaleOrder::RowPadded, ScaleOrder::Mn, ScaleOrder::Odd];
const D_TYPES: [DType; 2] = [DType::Bf16, DType::F32];

/// Sizes on both sides of where something changes: vectors, tiles, blocks of K.
const ROWS: [usize; 20] = [1, 2, 3, 7, 8, 9, 16, 17, 31, 64, 65, 96, 127, 128, 129, 191, 255, 257, 384, 521];
const COLUMNS: [usize; 20] =
    [1, 2, 3, 7, 8, 9, 24, 63, 64, 65, 97, 112, 127, 128, 129, 145, 176, 257, 576, 1031];
const DEPTHS: [usize; 18] =
    [1, 2, 15, 16, 17, 100, 127, 128, 129, 255, 256, 257, 384, 512, 641, 1024, 1999, 3072];

pub fn checks() -> Vec<Check> {
    let mut checks = vec![
        Check::anywhere("sizes of zero", nothing_to_multiply),
        Check::anywhere("random shapes and layouts", random_cases),
        Check::anywhere("gaps between rows, unaligned D", gaps),
        Check::anywhere("operands at the end of memory", at_the_end),
        Check::anywhere("bad arguments", bad_arguments),
        Check::anywhere("repeats give the same bits", repeats),
        Check::with_kernels("a limited number of multiprocessors", limited),
        Check::with_kernels("tiles that two clusters compute", shared_tiles),
        Check::on_gpu("tiles that two clusters compute, in streams and graphs", shared_tiles_side_by_side),
    ];
    checks.extend([
        Check::anywhere("sizes of zero, a scale for each row", |setup| {
            sizes_of_zero(setup, Op::Fp81d1d, GemmLayout::Nt)
        }),
        Check::anywhere("random shapes and layouts, a scale for each row", random_cases_of_rows),
        Check::anywhere("repeats give the same bits, a scale for each row", |setup| {
            same_bits_again(setup, Op::Fp81d1d, GemmLayout::Nt)
        }),
    ]);
    let fp8 = |config: &Config| matches!(config.family(), Family::Fp8 | Family::Fp8Rows);
    for config in Config::dense().filter(fp8) {
        checks.push(Check::with_kernels(format!("kernel {}", config.name()), move |setup| {
            kernel(setup, config)
        }));
    }
    checks
}

/// Numbers of a seed, one after another.
pub(super) struct Draw {
    seed: u64,
    next: u64,
    /// Multiplications of one problem.
    largest: usize,
}

impl Draw {
    pub fn new(setup: &Setup, salt: u64) -> Draw {
        let seed = setup.seed.wrapping_mul(1000).wrapping_add(salt);
        Draw { seed, next: 0, largest: setup.largest() }
    }

    /// Multiplications that one problem may have.
    pub fn largest(&self) -> usize {
        self.largest
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.next += 1;
        (random::bits(self.seed, self.next) % end as u64) as usize
    }

    pub fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// A size of the list, or any up to its last.
    fn size(&mut self, from: &[usize]) -> usize {
        if self.below(4) == 0 { 1 + self.below(from[from.len() - 1]) } else { self.of(from) }
    }

    /// An FP8 problem.
    pub fn spec(&mut self) -> Spec {
        self.spec_with(Op::Fp8)
    }

    /// A problem of some function that has scales.
    fn spec_with(&mut self, op: Op) -> Spec {
        let (sfa, sfb) = (self.of(&ORDERS), self.of(&ORDERS));
        Spec { sfa, sfb, ..self.spec_of(op, GemmLayout::Nt) }
    }

    /// A problem of some function and layout.
    pub fn spec_of(&mut self, op: Op, layout: GemmLayout) -> Spec {
        let (mut m, mut n, k) = (self.size(&ROWS), self.size(&COLUMNS), self.size(&DEPTHS));
        while m * n * k > self.largest {
            (m, n) = (m.div_ceil(2), n.div_ceil(2));
        }
        let gaps = self.below(3) == 0;
        Spec {
            d_type: self.of(&op.d_types()),
            addend: self.of(&ADDENDS),
            ab_padding: if gaps { self.below(4) } else { 0 },
            d_padding: if gaps { self.below(10) } else { 0 },
            d_offset: if gaps { self.below(9) } else { 0 },
            at_end: self.below(8) == 0,
            seed: self.below(1 << 20) as u64,
            ..Spec::of(op, layout, [m, n, k])
        }
    }
}

pub(super) fn products(
    setup: &Setup,
    cases: impl Iterator<Item = (Spec, GemmOptions)>,
) -> Result<String, Failure> {
    tally(cases.map(|(spec, options)| computed(setup, &Work::Dense(spec), &options)))
}

fn random_cases(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 1);
    products(setup, (0..setup.count(200)).map(|_| (draw.spec(), GemmOptions::default())))
}

fn random_cases_of_rows(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 6);
    let cases = (0..setup.count(120)).map(|_| (draw.spec_with(Op::Fp81d1d), GemmOptions::default()));
    products(setup, cases)
}

fn gaps(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 2);
    let offsets = [0, 1, 2, 3, 4, 7, 8];
    let cases = (0..setup.count(60)).map(|i| {
        let spec = Spec {
            ab_padding: i % 3,
            d_padding: offsets[i % 7],
            d_offset: offsets[(i / 2) % 7],
            at_end: false,
            ..draw.spec()
        };
        (spec, GemmOptions::default())
    });
    products(setup, cases)
}

fn at_the_end(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 3);
    let cases = (0..setup.count(20)).map(|_| (Spec { at_end: true, ..draw.spec() }, GemmOptions::default()));
    products(setup, cases)
}

fn nothing_to_multiply(setup: &Setup) -> Result<String, Failure> {
    sizes_of_zero(setup, Op::Fp8, GemmLayout::Nt)
}

/// Calls that multiply nothing: D becomes C or 0.
pub(super) fn sizes_of_zero(setup: &Setup, op: Op, layout: GemmLayout) -> Result<String, Failure> {
    let mut count = 0;
    for dims in [[0, 64, 128], [64, 0, 128], [5, 7, 0], [1, 1, 0], [300, 129, 0], [0, 0, 0]] {
        for addend in ADDENDS {
            for d_type in op.d_types() {
                let spec = Spec { addend, d_type, d_padding: 3, d_offset: 1, ..Spec::of(op, layout, dims) };
                let host = Host::draw(spec)?;
                let mut operands = host.upload(&setup.device)?;
                operands.run(&GemmOptions::default()).map_err(|error| format!("{spec}: {error}"))?;
                setup.device.synchronize()?;
                let expected = host.c.clone().unwrap_or_else(|| vec![0.0; dims[0] * dims[1]]);
                ensure(operands.result()? == expected, || format!("{spec}: D is not C, or not 0"))?;
                ensure(operands.surroundings_untouched()?, || format!("{spec}: written outside of D"))?;
                count += 1;
            }
        }
    }
    Ok(format!("{count} calls: D became C or 0"))
}

/// One kernel, forced: every output type, addend and layout of scales, with launches and shapes of all kinds.
fn kernel(setup: &Setup, config: Config) -> Result<String, Failure> {
    let limits = setup.limits()?;
    let simulated = setup.device.as_sim().is_some();
    let mut draw = Draw::new(setup, 4);
    let mut cases = Vec::new();
    let (op, layout) = Op::of(config.family());
    let of = |dims| Spec::of(op, layout, dims);
    let whole = if simulated { of([128, 128, 384]) } else { of([256, 512, 768]) };
    for (i, (d_type, addend, sfa)) in combinations().enumerate() {
        let mut spec = Spec { d_type, addend, sfa, sfb: ORDERS[(i + i / 4) % 4], ..draw.spec_with(op) };
        if i % 3 == 0 {
            // What the benchmark takes: whole tiles, aligned output, a deep K.
            spec = Spec {
                ab_padding: 0,
                d_padding: 0,
                d_offset: 0,
                ..Spec { d_type, addend, sfa, sfb: spec.sfb, seed: spec.seed, ..whole }
            };
        }
        let shape = Shape { m: spec.m as u32, n: spec.n as u32, k: spec.k as u32 };
        let fits = |choice: &Choice| plan::Plan::of(*choice, shape, &limits).is_some();
        let choices: Vec<Choice> = launches(config).into_iter().filter(fits).collect();
        ensure(!choices.is_empty(), || format!("{spec}: no launch fits"))?;
        let options = GemmOptions { choice: Some(choices[i % choices.len()]), ..Default::default() };
        cases.push((spec, options));
    }
    // Every launch at least once, also where there are more of them than combinations.
    for choice in launches(config) {
        let spec = if simulated { of([66, 136, 640]) } else { of([130, 392, 1152]) };
        let shape = Shape { m: spec.m as u32, n: spec.n as u32, k: spec.k as u32 };
        if plan::Plan::of(choice, shape, &limits).is_some() {
            cases.push((spec, GemmOptions { choice: Some(choice), ..Default::default() }));
        }
    }
    // The simulator takes its time for each; three and thirteen have nothing in common with the lists above.
    let step = match (simulated, setup.quick) {
        (true, true) => 13,
        (true, false) | (false, true) => 3,
        (false, false) => 1,
    };
    products(setup, cases.into_iter().step_by(step))
}

pub fn combinations() -> impl Iterator<Item = (DType, AddendKind, ScaleOrder)> {
    D_TYPES
        .into_iter()
        .flat_map(|d_type| ADDENDS.into_iter().map(move |addend| (d_type, addend)))
        .flat_map(|(d_type, addend)| ORDERS.into_iter().map(move |order| (d_type, addend, order)))
}

/// Every way to launch a kernel, but only some numbers of stages.
pub fn launches(config: Config) -> Vec<Choice> {
    match config {
        Config::Transpose => Vec::new(),
        Config::Wide(config) => [(1, 1), (1, 2), (2, 1), (2, 2)]
            .map(|(cluster_m, cluster_n)| Choice::Wide { config, cluster_m, cluster_n })
            .to_vec(),
        Config::Slim(config) => fp8_slim::SPLITS
            .into_iter()
            .flat_map(|split| [2, 3, 6, 16].map(|stages| Choice::Slim { config, split, stages }))
            .collect(),
        Config::HalfSlim(config) => half_slim::SPLITS
            .into_iter()
            .flat_map(|split| [2, 3, 6, 16].map(|stages| Choice::HalfSlim { config, split, stages }))
            .collect(),
        Config::HalfWide(config) => [(1, 1), (1, 2), (2, 1), (2, 2)]
            .map(|(cluster_m, cluster_n)| Choice::HalfWide { config, cluster_m, cluster_n })
            .to_vec(),
    }
}

fn repeats(setup: &Setup) -> Result<String, Failure> {
    same_bits_again(setup, Op::Fp8, GemmLayout::Nt)
}

/// The same call, again and again.
pub(super) fn same_bits_again(setup: &Setup, op: Op, layout: GemmLayout) -> Result<String, Failure> {
    let gpu = setup.device.as_cuda().is_some();
    let shapes: &[[usize; 3]] = if gpu {
        &[
            [1, 576, 7168],
            [64, 2112, 1536],
            [128, 4096, 512],
            [300, 1000, 1000],
            [1024, 2048, 2048],
            [4096, 2112, 512],
        ]
    } else {
        &[[17, 130, 300]]
    };
    for &dims in shapes {
        let mut operands = Host::draw(Spec::of(op, layout, dims))?.upload(&setup.device)?;
        setup.same_bits_again(&format_args!("{op} {layout} {dims:?}"), || {
            operands.poison()?;
            operands.run(&GemmOptions::default())?;
            Ok(operands.d.to_bytes()?)
        })?;
    }
    Ok(format!("{} shapes", shapes.len()))
}

fn limited(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 5);
    let all = setup.limits()?.sms;
    let cases = [1, 2, 3, 24, 64, all - 1, all, all + 7]
        .map(|sms| (draw.spec(), GemmOptions { num_sms: Some(sms), ..Default::default() }));
    products(setup, cases.into_iter())
}

/// Problems with tiles that clusters share out, where there are so many multiprocessors.
fn problems_that_share(setup: &Setup) -> Result<Vec<(Spec, GemmOptions)>, Failure> {
    let all: &[(&str, [usize; 3], Option<u32>)] = &[
        ("c1x1", [520, 100, 2000], Some(2)),
        ("c1x2", [520, 136, 2048], Some(4)),
        ("c2x1", [258, 264, 2300], Some(4)),
        ("c1x1", [1100, 72, 4096], Some(3)),
        ("c1x2", [5120, 5120, 5120], None),
        ("c2x1", [2300, 1200, 4096], Some(24)),
    ];
    let few = setup.device.as_cuda().is_none();
    let draw = |(i, &(cluster, dims, num_sms)): (usize, &(&str, [usize; 3], Option<u32>))| {
        let choice = plan::parse(&format!("wide_shared_256x128_s3_{cluster}")).expect("the name of a choice");
        let [m, n, k] = dims.map(|dim| dim as u32);
        let limits = setup.limits()?.restricted_to(num_sms.unwrap_or(u32::MAX));
        let plan = plan::Plan::of(choice, Shape { m, n, k }, &limits);
        ensure(plan.is_some_and(|plan| plan.launch.tail.tiles > 0), || {
            format!("{dims:?}: nothing is shared")
        })?;
        let (d_type, addend) = (D_TYPES[i % 2], ADDENDS[i % 3]);
        let spec = Spec { d_type, addend, sfa: ORDERS[i % 4], ..Spec::of(Op::Fp8, GemmLayout::Nt, dims) };
        Ok((spec, GemmOptions { choice: Some(choice), num_sms, ..Default::default() }))
    };
    all.iter().take(if few { 2 } else { all.len() }).enumerate().map(draw).collect()
}

fn shared_tiles(setup: &Setup) -> Result<String, Failure> {
    let (problems, repeats) =
        (problems_that_share(setup)?, if setup.device.as_cuda().is_some() { 20 } else { 2 });
    for (spec, options) in &problems {
        let host = Host::draw(*spec)?;
        let mut first = None;
        for repeat in 0..repeats {
            let mut operands = host.upload(&setup.device)?;
            operands.run(options)?;
            let found = operands.d.to_bytes()?;
            if first.is_none() {
                let verdict = verdict::judge(&host, &operands.result()?, Effort::QUICK)?;
                ensure(verdict.right, || format!("{spec}: {verdict:?}"))?;
            }
            ensure(*first.get_or_insert_with(|| found.clone()) == found, || {
                format!("{spec}: repeat {repeat} gave other bits")
            })?;
        }
    }
    Ok(format!("{} problems, {repeats} times each", problems.len()))
}

/// Each stream has memory of its own for sums that blocks leave, and graphs have none.
fn shared_tiles_side_by_side(setup: &Setup) -> Result<String, Failure> {
    let rounds = if setup.device.as_cuda().is_some() { 20 } else { 1 };
    let streams = (0..3).map(|_| setup.device.new_stream()).collect::<Result<Vec<_>, _>>()?;
    for (spec, options) in problems_that_share(setup)? {
        // What is added to would be another number each time.
        let host = Host::draw(Spec { addend: AddendKind::None, ..spec })?;
        let mut called = Vec::new();
        let mut graphs = Vec::new();
        for stream in &streams {
            let options = GemmOptions { stream: Some(stream.clone()), ..options.clone() };
            let (mut own, mut captured) = (host.upload(&setup.device)?, host.upload(&setup.device)?);
            own.run(&options)?;
            let graph = stream.capture(|_| captured.run(&options))?;
            called.push((own, options));
            graphs.push((captured, graph));
        }
        for _ in 0..rounds {
            for (i, (own, options)) in called.iter_mut().enumerate() {
                own.run(options)?;
                graphs[i].1.launch(&streams[(i + 1) % streams.len()])?;
            }
        }
        setup.device.synchronize()?;
        let [expected, replayed] = [called[0].0.d.to_bytes()?, graphs[0].0.d.to_bytes()?];
        for ((own, _), (captured, _)) in called.iter().zip(&graphs) {
            let same = own.d.to_bytes()? == expected && captured.d.to_bytes()? == replayed;
            ensure(same, || format!("{spec}: streams have other bits than the first"))?;
        }
        for operands in [&called[0].0, &graphs[0].0] {
            let verdict = verdict::judge(&host, &operands.result()?, Effort::QUICK)?;
            ensure(verdict.right, || format!("{spec}: {verdict:?}"))?;
        }
    }
    Ok(format!("three streams and three graphs, {rounds} times"))
}

fn bad_arguments(setup: &Setup) -> Result<String, Failure> {
    let device = &setup.device;
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, device);
    let (a, sfa) = (new(DType::E4m3, &[8, 256])?, new(DType::F32, &[8, 2])?);
    let (b, sfb) = (new(DType::E4m3, &[64, 256])?, new(DType::F32, &[1, 2])?);
    let wrong = [
        (new(DType::F16, &[8, 64])?, "d"),
        (new(DType::Bf16, &[8, 65])?, "d"),
        (new(DType::Bf16, &[64, 8])?.transpose(0, 1)?, "d"),
    ];
    for (mut d, argument) in wrong {
        let result = fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &GemmOptions::default());
        ensure(matches!(&result, Err(error) if error.argument() == Some(argument)), || {
            format!("{result:?}")
        })?;
    }
    let mut d = new(DType::Bf16, &[8, 64])?;
    let narrow = new(DType::E4m3, &[8, 264])?.narrow(1, 0, 256)?;
    let result = fp8_gemm_nt((&narrow, &sfa), (&b, &sfb), Addend::None, &mut d, &GemmOptions::default());
    ensure(matches!(&result, Err(error) if error.argument() == Some("a")), || format!("{result:?}"))?;
    // A scale for each row, or one for all, but not four.
    let four = new(DType::F32, &[4, 2])?;
    let result = fp8_gemm_nt((&a, &four), (&b, &sfb), Addend::None, &mut d, &GemmOptions::default());
    ensure(matches!(&result, Err(error) if error.argument() == Some("sfa")), || format!("{result:?}"))?;
    Ok("refused, each with its name".to_owned())
}
