//! Checks of the other forms of the FP8 product: scales that are shared, operands of e5m2, operands that are not K-major;
//! and that rows do not depend on their batch.

use oxigemm::plan::{Choice, Family, Plan, Shape};
use oxigemm::{
    GemmLayout, GemmOptions, GroupedRows, Tensor, m_grouped_fp8_gemm_nn_contiguous,
    m_grouped_fp8_gemm_nn_masked,
};
use oxigemm_kernels::fp8::E5m2;
use oxigemm_kernels::grouping::GroupLayout;
use oxigemm_kernels::launch::Config;

use super::grouped::{LAYOUTS, spec as grouped_spec};
use super::products::{Draw, launches, products};
use super::{Check, Setup, ensure};
use crate::counting::allocations;
use crate::grouped::GroupedHost;
use crate::problem::{Host, ScaleMode, Spec};
use crate::{Failure, Op};

pub fn checks() -> Vec<Check> {
    let mut checks = vec![
        Check::anywhere("scales of rows and of whole operands", shared_scales),
        Check::with_kernels("scales of rows and of whole operands in every kernel", shared_in_kernels),
        Check::anywhere("operands of e5m2", e5m2),
        Check::with_kernels("operands of e5m2 in every kernel", e5m2_in_kernels),
        Check::anywhere("fp8 operands that are not K-major", not_k_major),
        Check::with_kernels("a transposed product is that of K-major operands", same_as_k_major),
        Check::with_kernels("a graph transposes what is there when it is replayed", replayed),
        Check::anywhere("groups with a B that is not K-major", grouped_nn),
        Check::on_gpu("transposed products in streams that are dropped while they work", dropped_streams),
        Check::on_gpu("a transposed product that was made before allocates nothing", no_allocation),
    ];
    for (op, layout) in [(Op::Fp8, GemmLayout::Nt), (Op::Bf16, GemmLayout::Nt), (Op::Fp16, GemmLayout::Nn)] {
        let name = format!("rows of {op} {layout} do not depend on their batch");
        checks.push(Check::with_kernels(name, move |setup| batch_invariant(setup, op, layout)));
    }
    checks
}

const SHARED: [ScaleMode; 2] = [ScaleMode::Row, ScaleMode::Tensor];

fn shared_scales(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 6);
    let spec = |i: usize| Spec { scales: SHARED[i % 2], ..draw.spec() };
    products(setup, (0..setup.count(60)).map(spec).map(|spec| (spec, GemmOptions::default())))
}

/// A launch of each kernel that `holds` is true of, for one shape.
fn of_each_kernel(
    setup: &Setup,
    holds: impl Fn(Family) -> bool,
) -> Result<Vec<(Spec, GemmOptions)>, Failure> {
    let limits = setup.limits()?;
    let shape = Shape { m: 70, n: 150, k: 1168 };
    let [m, n, k] = [shape.m, shape.n, shape.k].map(|x| x as usize);
    let case = |(i, config): (usize, Config)| {
        let fits = |choice: &Choice| Plan::of(*choice, shape, &limits).is_some();
        let choices: Vec<Choice> = launches(config).into_iter().filter(fits).collect();
        let spec = Spec { seed: i as u64, ..Spec::of_family(config.family(), [m, n, k]) };
        (spec, GemmOptions { choice: Some(choices[i % choices.len()]), ..Default::default() })
    };
    Ok(Config::dense().filter(|config| holds(config.family())).enumerate().map(case).collect())
}

fn shared_in_kernels(setup: &Setup) -> Result<String, Failure> {
    let cases = of_each_kernel(setup, |family| family == Family::Fp8)?;
    let shared = |(i, (spec, options)): (usize, (Spec, GemmOptions))| {
        (Spec { scales: SHARED[i % 2], ..spec }, options)
    };
    let step = if setup.device.as_sim().is_some() { 4 } else { 1 };
    products(setup, cases.into_iter().enumerate().map(shared).step_by(step))
}

fn e5m2(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 7);
    let spec = |i: usize| Spec { e5m2: Some(E5m2::ALL[i % 3]), ..draw.spec() };
    products(setup, (0..setup.count(60)).map(spec).map(|spec| (spec, GemmOptions::default())))
}

fn e5m2_in_kernels(setup: &Setup) -> Result<String, Failure> {
    let cases = of_each_kernel(setup, |family| matches!(family, Family::Fp8E5m2(_)))?;
    products(setup, cases.into_iter())
}

const OTHER_LAYOUTS: [GemmLayout; 3] = [GemmLayout::Nn, GemmLayout::Tn, GemmLayout::Tt];

fn not_k_major(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 8);
    let spec = |i: usize| {
        let e5m2 = [None, Some(E5m2::A), None, Some(E5m2::B)][i % 4];
        Spec { layout: OTHER_LAYOUTS[i % 3], e5m2, ..draw.spec() }
    };
    products(setup, (0..setup.count(90)).map(spec).map(|spec| (spec, GemmOptions::default())))
}

/// Bit for bit, also where K, M and N are many tiles of what is transposed.
fn same_as_k_major(setup: &Setup) -> Result<String, Failure> {
    let gpu = setup.device.as_cuda().is_some();
    let shapes: &[[usize; 3]] =
        if gpu { &[[1, 576, 7168], [130, 2112, 1536], [1000, 1031, 999]] } else { &[[17, 150, 300]] };
    for &dims in shapes {
        let bits = |layout| -> Result<Vec<u8>, Failure> {
            let mut operands = Host::draw(Spec::of(Op::Fp8, layout, dims))?.upload(&setup.device)?;
            operands.run(&GemmOptions::default())?;
            Ok(operands.d.to_bytes()?)
        };
        let expected = bits(GemmLayout::Nt)?;
        for layout in OTHER_LAYOUTS {
            ensure(bits(layout)? == expected, || format!("{layout} {dims:?} has other bits than nt"))?;
        }
    }
    Ok(format!("{} shapes in {} layouts", shapes.len(), OTHER_LAYOUTS.len()))
}

fn replayed(setup: &Setup) -> Result<String, Failure> {
    let stream = setup.device.new_stream()?;
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    for layout in OTHER_LAYOUTS {
        let host = |seed| Host::draw(Spec { seed, ..Spec::of(Op::Fp8, layout, [70, 200, 640]) });
        let (first, second) = (host(1)?, host(2)?);
        let mut operands = first.upload(&setup.device)?;
        operands.run(&options)?;
        let graph = stream.capture(|_| operands.run(&options))?;
        let mut fresh = second.upload(&setup.device)?;
        operands.a.copy_from(&fresh.a)?;
        operands.b.copy_from(&fresh.b)?;
        if let (Some(to), Some(from)) = (&mut operands.scales, &fresh.scales) {
            to.iter_mut().zip(from).try_for_each(|(to, from)| to.copy_from(from))?;
        }
        operands.poison()?;
        graph.launch(&stream)?;
        stream.synchronize()?;
        fresh.run(&GemmOptions::default())?;
        setup.device.synchronize()?;
        ensure(operands.d.to_bytes()? == fresh.d.to_bytes()?, || {
            format!("{layout}: a replay gave other bits")
        })?;
    }
    Ok(format!("{} layouts", OTHER_LAYOUTS.len()))
}

/// The same bits as with a K-major B, and nothing else written.
fn grouped_nn(setup: &Setup) -> Result<String, Failure> {
    let options = GemmOptions::default();
    for (turn, layout) in LAYOUTS.into_iter().enumerate() {
        let host = GroupedHost::draw(grouped_spec(Op::Fp8, layout, &[70, 0, 1, 129, 16], [144, 656], turn))?;
        let mut x = host.upload(&setup.device)?;
        x.run(&options)?;
        let expected = x.d_memory.to_bytes()?;
        x.poison()?;
        let &[groups, n, k] = x.b.dims() else { return Err("B has groups".into()) };
        let codes = x.b.to_bytes()?;
        let turned = |i: usize| codes[(i / (n * k) * n + i % n) * k + i / n % k];
        let turned: Vec<u8> = (0..codes.len()).map(turned).collect();
        let b = Tensor::from_bytes(x.b.dtype(), &turned, &[groups, k, n], &setup.device)?;
        let Some([sfa, sfb]) = &x.scales else { return Err("FP8 has scales".into()) };
        let sfb = sfb.transpose(1, 2)?;
        let (a, b) = ((&x.a, sfa), (&b, &sfb));
        let rows = match layout {
            GroupLayout::Counts | GroupLayout::All => None,
            GroupLayout::Ids => Some(GroupedRows::Ids(&x.numbers)),
            GroupLayout::Ends => Some(GroupedRows::Ends(&x.numbers)),
        };
        let (expected_m, alignment) = (host.spec.expected, host.spec.alignment);
        match rows {
            None => m_grouped_fp8_gemm_nn_masked(a, b, &mut x.d, &x.numbers, expected_m, &options)?,
            Some(rows) => {
                m_grouped_fp8_gemm_nn_contiguous(a, b, &mut x.d, rows, alignment, None, &options)?;
            }
        }
        setup.device.synchronize()?;
        ensure(x.d_memory.to_bytes()? == expected, || format!("{}: other bits than nt", host.spec))?;
    }
    Ok(format!("{} layouts of groups", LAYOUTS.len()))
}

/// Streams that live as long as it takes to give them work. The driver gives their handles to those that follow, whose products are
/// of other operands: what one transposes must not be where the one before still reads. (One driver was seen to put it behind all the same.)
fn dropped_streams(setup: &Setup) -> Result<String, Failure> {
    const STREAMS: usize = 24;
    let draw = |seed| Host::draw(Spec { seed, ..Spec::of(Op::Fp8, GemmLayout::Nn, [64, 256, 8192]) });
    let hosts = [draw(1)?, draw(2)?];
    let upload = |host: &Host| host.upload(&setup.device);
    let mut expected = [upload(&hosts[0])?, upload(&hosts[1])?];
    for operands in &mut expected {
        operands.run(&GemmOptions::default())?;
        setup.device.synchronize()?;
    }
    let mut found = (0..STREAMS).map(|i| upload(&hosts[i % 2])).collect::<Result<Vec<_>, _>>()?;
    for operands in &mut found {
        let options = GemmOptions { stream: Some(setup.device.new_stream()?), ..Default::default() };
        (0..4).try_for_each(|_| operands.run(&options))?;
    }
    setup.device.synchronize()?;
    for (i, operands) in found.iter().enumerate() {
        let same = operands.d.to_bytes()? == expected[i % 2].d.to_bytes()?;
        ensure(same, || format!("the product of stream {i} has other bits than alone"))?;
    }
    Ok(format!("{STREAMS} streams, every bit as alone"))
}

fn no_allocation(setup: &Setup) -> Result<String, Failure> {
    for layout in OTHER_LAYOUTS {
        let mut operands = Host::draw(Spec::of(Op::Fp8, layout, [130, 256, 512]))?.upload(&setup.device)?;
        let options = GemmOptions { stream: Some(setup.device.new_stream()?), ..Default::default() };
        operands.run(&options)?;
        setup.device.synchronize()?;
        let (result, count) = allocations(|| operands.run(&options));
        result?;
        ensure(count == 0, || format!("{layout}: {count} allocations"))?;
    }
    Ok(format!("{} layouts", OTHER_LAYOUTS.len()))
}

/// Rows alone and in batches of all sizes have the same bits.
fn batch_invariant(setup: &Setup, op: Op, layout: GemmLayout) -> Result<String, Failure> {
    const MOST: usize = 300;
    let gpu = setup.device.as_cuda().is_some();
    let shapes: &[[usize; 2]] =
        if gpu { &[[576, 7168], [4096, 512], [2112, 1000], [24, 4096]] } else { &[[40, 4000]] };
    let options = GemmOptions { batch_invariant: true, ..Default::default() };
    let mut compared = 0;
    for &[n, k] in shapes {
        let host = Host::draw(Spec::of(op, layout, [MOST, n, k]))?;
        let whole = host.upload(&setup.device)?;
        let rows = |first: usize, count: usize| -> Result<Vec<u8>, Failure> {
            let mut operands = whole.rows(first, count)?;
            operands.run(&options)?;
            Ok(operands.d.to_bytes()?)
        };
        let all = rows(0, MOST)?;
        let width = all.len() / MOST;
        for count in [1, 7, 64, 130, MOST] {
            for first in [0, (MOST - count) / 2, MOST - count] {
                let same = rows(first, count)? == all[first * width..(first + count) * width];
                ensure(same, || {
                    format!("{op} {layout} n={n} k={k}: {count} rows from {first} on have other bits")
                })?;
                compared += 1;
            }
        }
    }
    Ok(format!("{compared} batches"))
}
