//! Checks of products with groups along K: sizes, layouts, kernels, and groups that change.

use oxigemm::{
    Addend, DType, Device, GemmLayout, GemmOptions, Tensor, k_grouped_fp8_gemm_nt_contiguous,
    k_grouped_half_gemm, random,
};
use oxigemm_kernels::launch::Config;

use super::products::{ADDENDS, ORDERS, launches};
use super::{Check, Setup, accept, computed, ensure, tally};
use crate::Failure;
use crate::kgrouped::{KGroupedForm, KGroupedHost, KGroupedOperands, KGroupedSpec};
use crate::task::Work;
use crate::verdict::Effort;

pub fn checks() -> Vec<Check> {
    let mut checks = vec![
        Check::anywhere("groups along K of no K, of one, and of much", sizes),
        Check::anywhere("random groups along K", random_groups),
        Check::with_kernels("groups along K with numbers that are none", clamped),
        Check::anywhere("bad arguments of groups along K", bad_arguments),
        Check::anywhere("repeats of groups along K give the same bits", repeats),
        Check::with_kernels("a graph is replayed with other groups along K", replayed),
    ];
    for config in Config::k_grouped() {
        checks.push(Check::with_kernels(format!("kernel {}", config.name()), move |setup| {
            kernel(setup, config)
        }));
    }
    checks
}

/// The form that a kernel serves.
pub fn form(config: &Config) -> Result<KGroupedForm, Failure> {
    KGroupedForm::of_family(config.family())
        .ok_or_else(|| format!("{} serves no function", config.name()).into())
}

/// A problem that nothing may be written beside.
pub fn spec(form: KGroupedForm, ks: &[usize], [m, n]: [usize; 2], turn: usize) -> KGroupedSpec {
    KGroupedSpec {
        d_type: form.op.d_types()[turn / 3 % 2],
        addend: ADDENDS[turn % ADDENDS.len()],
        scales: [ORDERS[(turn + 2) % ORDERS.len()], ORDERS[(turn + 2 + turn / 4) % ORDERS.len()]],
        d_gaps: [[0, 0], [0, 8], [3, 1], [1, 0]][turn % 4],
        seed: turn as u64,
        ..KGroupedSpec::new(form, ks.to_vec(), m, n)
    }
}

fn judge(
    host: &KGroupedHost,
    operands: &KGroupedOperands,
    about: impl Fn(&str) -> String,
) -> Result<f64, Failure> {
    accept(&host.judge(operands, Effort::QUICK)?, operands.surroundings_untouched()?, about)
}

fn products(
    setup: &Setup,
    cases: impl IntoIterator<Item = (KGroupedSpec, GemmOptions)>,
) -> Result<String, Failure> {
    tally(cases.into_iter().map(|(spec, options)| computed(setup, &Work::KGrouped(spec), &options)))
}

fn sizes(setup: &Setup) -> Result<String, Failure> {
    let much = if setup.device.as_cuda().is_some() { 5000 } else { 1100 };
    let groups: [&[usize]; 9] = [
        &[0],
        &[1],
        &[0, 0, 0],
        &[1, 1, 1, 1, 1],
        &[0, much, 0],
        &[much, 1, 0, 2],
        &[0, 0, 127, 128, 129],
        &[16, 15, 17, 0, 640],
        &[128, 0, 256],
    ];
    let shapes = groups.into_iter().enumerate().flat_map(|(i, ks)| {
        [[40, 72], [1, 1], [130, 33]].into_iter().enumerate().map(move |(j, size)| (ks, size, i + 5 * j))
    });
    let cases = shapes.flat_map(|(ks, size, turn)| {
        KGroupedForm::ALL.map(|form| (spec(form, ks, size, turn), GemmOptions::default()))
    });
    products(setup, cases.step_by(if setup.quick { 3 } else { 1 }))
}

fn random_groups(setup: &Setup) -> Result<String, Failure> {
    let draw = |turn: usize, which: u64, end: usize| {
        (random::bits(setup.seed ^ 0x5c, 1000 * turn as u64 + which) % end as u64) as usize
    };
    let cases = (0..setup.count(160)).map(|turn| {
        let groups = 1 + draw(turn, 0, 12);
        let depth = |group: usize| match draw(turn, 10 + group as u64, 4) {
            0 => draw(turn, 30 + group as u64, 3),
            1 => draw(turn, 30 + group as u64, 2000),
            _ => 16 * draw(turn, 30 + group as u64, 40),
        };
        let mut ks: Vec<usize> = (0..groups).map(depth).collect();
        let (m, n) = (1 + draw(turn, 1, 300), 1 + draw(turn, 2, 400));
        while ks.iter().sum::<usize>() * m * n > setup.largest() {
            ks.iter_mut().for_each(|k| *k /= 2);
        }
        let form = KGroupedForm::ALL[turn % KGroupedForm::ALL.len()];
        (spec(form, &ks, [m, n], draw(turn, 3, 60)), GemmOptions::default())
    });
    products(setup, cases)
}

fn kernel(setup: &Setup, config: Config) -> Result<String, Failure> {
    let (form, block_k) = (form(&config)?, config.family().block_k() as usize);
    let [block_m, block_n, stages] = match config {
        Config::Wide(config) => [config.block_m, config.block_n, config.stages],
        Config::HalfWide(config) => [config.block_m, config.block_n, config.stages],
        _ => return Err("only many-row kernels have groups".into()),
    }
    .map(|x| x as usize);
    let depth = (stages + 6) * block_k + 16;
    let mut cases = Vec::new();
    for (i, choice) in launches(config).into_iter().enumerate() {
        for turn in 0..6 {
            let options = |num_sms| GemmOptions { choice: Some(choice), num_sms, ..Default::default() };
            // More tiles than blocks, an odd number of them, more blocks of K than stages and than come together.
            let ks = [depth, 0, 1, 144];
            cases.push((spec(form, &ks, [block_m + 3, block_n + 8], i + turn), options(Some(4))));
            cases.push((spec(form, &[100, 300], [block_m / 2, 2 * block_n], i + turn + 1), options(None)));
        }
    }
    // The simulator takes its time for each.
    let step = match (setup.device.as_cuda().is_some(), setup.quick) {
        (true, _) => 1,
        (false, false) => 5,
        (false, true) => 11,
    };
    products(setup, cases.into_iter().step_by(step))
}

/// Numbers that the host never sees, and that no caller should pass: they are cut off as the CPU cuts them off.
fn clamped(setup: &Setup) -> Result<String, Failure> {
    let numbers = [[i32::MAX, 5, 5], [-7, 208, 1000], [0, 0, 0], [416, 1, -1], [304, 304, 304], [1, 1, 1]];
    for (form, numbers) in KGroupedForm::ALL.into_iter().flat_map(|form| numbers.map(|list| (form, list))) {
        let host = KGroupedHost::draw(KGroupedSpec::new(form, vec![208, 80, 128], 20, 40))?;
        setup.now(format!("{form}, groups along K of {numbers:?}"));
        let on = |device: &Device| -> Result<Vec<f32>, Failure> {
            let mut operands = host.upload(device)?;
            operands.ks = Tensor::from_slice(&numbers, &[3], device)?;
            operands.run(&GemmOptions::default())?;
            Ok(operands.d.to_vec_f32()?)
        };
        let (found, expected) = (on(&setup.device)?, on(&Device::cpu())?);
        let limit = |x: f32| 0.03 * 416f32.sqrt() + x.abs() / 128.0;
        let wrong = found
            .iter()
            .zip(&expected)
            .position(|(x, y)| (x - y).abs().is_nan() || (x - y).abs() > limit(*y));
        ensure(wrong.is_none(), || {
            let i = wrong.unwrap_or(0);
            format!("{form}, {numbers:?}, element {i}: {}, not {}", found[i], expected[i])
        })?;
    }
    Ok(format!("{} lists, each computed as far as the operands reach", numbers.len()))
}

fn repeats(setup: &Setup) -> Result<String, Failure> {
    let (ks, size): (&[usize], _) = match setup.device.as_cuda() {
        Some(_) => (&[1024, 0, 512, 2048, 16, 130], [700, 1000]),
        None => (&[130, 0, 16], [20, 40]),
    };
    for form in KGroupedForm::ALL {
        let spec = KGroupedSpec::new(form, ks.to_vec(), size[0], size[1]);
        let mut operands = KGroupedHost::draw(spec)?.upload(&setup.device)?;
        setup.same_bits_again(&form, || {
            operands.poison()?;
            operands.run(&GemmOptions::default())?;
            Ok(operands.d.to_bytes()?)
        })?;
    }
    Ok("all alike".to_owned())
}

/// A graph that was captured once, launched with groups that change, on memory that changes with them.
fn replayed(setup: &Setup) -> Result<String, Failure> {
    let stream = setup.device.new_stream()?;
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    // As much in all, in blocks and in whatever a group is rounded up to.
    let turns: [[usize; 3]; 5] = [[128, 0, 252], [0, 380, 0], [124, 0, 256], [380, 0, 0], [128, 128, 124]];
    for form in KGroupedForm::ALL {
        let of = |ks: [usize; 3], turn| KGroupedHost::draw(spec(form, &ks, [70, 136], 3 * turn));
        let mut operands = of(turns[0], 0)?.upload(&setup.device)?;
        operands.run(&options)?;
        let graph = stream.capture(|_| operands.run(&options))?;
        for (turn, ks) in turns.into_iter().enumerate() {
            let mut host = of(ks, turn)?;
            host.spec = KGroupedSpec { ks: ks.to_vec(), ..of(turns[0], 0)?.spec };
            operands.change_groups(&host)?;
            operands.poison()?;
            graph.launch(&stream)?;
            stream.synchronize()?;
            judge(&host, &operands, |what| format!("{form}: replay {turn} of {ks:?}: {what}"))?;
        }
    }
    Ok(format!("one graph of each form, launched with {} sets of groups", turns.len()))
}

fn bad_arguments(setup: &Setup) -> Result<String, Failure> {
    let device = &setup.device;
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, device);
    let (a, sfa) = (new(DType::E4m3, &[8 * 384])?, new(DType::F32, &[8, 3])?);
    let (b, sfb) = (new(DType::E4m3, &[16 * 384])?, new(DType::F32, &[16, 3])?);
    let (d, ks) = (new(DType::F32, &[2, 8, 16])?, new(DType::I32, &[2])?);
    let run = |a: &Tensor, sfb: &Tensor, ks: &Tensor, host: &[usize]| {
        let (a, b, options) = ((a, &sfa), (&b, sfb), GemmOptions::default());
        let d = &mut d.clone();
        k_grouped_fp8_gemm_nt_contiguous(a, b, Addend::None, d, ks, Some(host), &options)
    };
    for (result, argument) in [
        (run(&new(DType::E4m3, &[8 * 384 + 1])?, &sfb, &ks, &[256, 128]), "a"),
        (run(&a, &new(DType::F32, &[16, 4])?, &ks, &[256, 128]), "sfb"),
        (run(&a, &sfb, &new(DType::I32, &[3])?, &[256, 128]), "ks"),
        (run(&a, &sfb, &ks, &[256, 256]), "ks_host"),
        (run(&a, &sfb, &ks, &[384]), "ks_host"),
    ] {
        ensure(matches!(&result, Err(error) if error.argument() == Some(argument)), || {
            format!("{argument}: {result:?}")
        })?;
    }
    ensure(run(&a, &sfb, &ks, &[256, 128]).is_ok(), || "good arguments were refused".to_owned())?;
    let (a, b) = (new(DType::Bf16, &[100, 8])?, new(DType::Bf16, &[100, 16])?);
    let run = |layout, a: &Tensor, b: &Tensor, ks: &Tensor, host: &[usize]| {
        let (d, options) = (&mut d.clone(), GemmOptions::default());
        k_grouped_half_gemm(layout, a, b, Addend::None, d, ks, Some(host), &options)
    };
    let tn = GemmLayout::Tn;
    for (result, argument) in [
        (run(GemmLayout::Nn, &a, &b, &ks, &[60, 40]), "layout"),
        (run(tn, &new(DType::Bf16, &[100, 16])?, &b, &ks, &[60, 40]), "a"),
        (run(tn, &a, &new(DType::Bf16, &[99, 16])?, &ks, &[60, 40]), "b"),
        (run(tn, &a, &b, &new(DType::I32, &[3])?, &[60, 40]), "ks"),
        (run(tn, &a, &b, &ks, &[60, 41]), "ks_host"),
    ] {
        ensure(matches!(&result, Err(error) if error.argument() == Some(argument)), || {
            format!("{argument}: {result:?}")
        })?;
    }
    ensure(run(tn, &a, &b, &ks, &[60, 40]).is_ok(), || "good arguments were refused".to_owned())?;
    Ok("refused, each with its name".to_owned())
}
