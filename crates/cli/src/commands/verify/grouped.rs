//! Checks of products whose rows are grouped: groups of all sizes, layouts, kernels, and groups that change.

use oxigemm::plan::{self, Family};
use oxigemm::{
    Addend, DType, GemmLayout, GemmOptions, GroupedRows, RowGroups, Tensor, einsum, half_gemm,
    m_grouped_fp8_gemm_nt_contiguous, m_grouped_half_gemm, random,
};
use oxigemm_kernels::grouping::GroupLayout;
use oxigemm_kernels::launch::Config;

use super::products::{ADDENDS, ORDERS, launches};
use super::{Check, Setup, about, accept, computed, ensure, tally};
use crate::grouped::{GroupedHost, GroupedOperands, GroupedSpec};
use crate::task::Work;
use crate::verdict::Effort;
use crate::{Failure, Op};

pub const LAYOUTS: [GroupLayout; 3] = [GroupLayout::Counts, GroupLayout::Ids, GroupLayout::Ends];
const ALIGNMENTS: [usize; 5] = [1, 16, 32, 64, 128];

const OPS: [Op; 3] = [Op::Fp8, Op::Bf16, Op::Fp16];

pub fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    for op in OPS {
        let name = |what: &str| if op == Op::Fp8 { what.to_owned() } else { format!("{op}: {what}") };
        checks.push(Check::anywhere(
            &name("groups of no rows, of one row, and one of all rows"),
            move |setup| sizes(setup, op),
        ));
        checks.push(Check::anywhere(&name("random groups"), move |setup| random_groups(setup, op)));
        checks.push(Check::anywhere(&name("numbers that are no groups"), move |setup| clamped(setup, op)));
        checks.push(Check::with_kernels(name("a graph is replayed with other groups"), move |setup| {
            replayed(setup, op)
        }));
        checks.push(Check::anywhere(&name("repeats of groups give the same bits"), move |setup| {
            repeats(setup, op)
        }));
    }
    for op in OPS {
        checks.push(Check::anywhere(&format!("{op}: random batches"), move |setup| batches(setup, op)));
    }
    for op in [Op::Bf16, Op::Fp16] {
        checks.push(Check::anywhere(&format!("{op}: einsums are batches"), move |setup| einsums(setup, op)));
    }
    checks.push(Check::anywhere("bad arguments of groups", bad_arguments));
    checks.push(Check::anywhere("bad arguments of groups of 16 bits", bad_half_arguments));
    for config in Config::grouped().chain(Config::batched()) {
        checks.push(Check::with_kernels(format!("kernel {}", config.name()), move |setup| {
            kernel(setup, config)
        }));
    }
    checks
}

/// A problem that nothing may be written beside. Layouts and addends that FP8 has not occur with the others.
pub fn spec(op: Op, layout: GroupLayout, rows: &[usize], [n, k]: [usize; 2], turn: usize) -> GroupedSpec {
    let spec = GroupedSpec::new(layout, rows.to_vec(), n, k);
    let spec = GroupedSpec {
        alignment: if spec.is_masked() { 1 } else { ALIGNMENTS[turn % ALIGNMENTS.len()] },
        room: if layout == GroupLayout::All { spec.room } else { spec.room + turn % 3 * 7 + 1 },
        beside: layout == GroupLayout::All && turn.is_multiple_of(2),
        behind: turn % 4 * 5,
        d_type: [DType::Bf16, DType::F32][turn / 2 % 2],
        sfa: ORDERS[turn % ORDERS.len()],
        d_padding: [0, 8, 3][turn % 3],
        seed: turn as u64,
        ..spec
    };
    match op {
        Op::Fp8 => spec,
        _ => GroupedSpec {
            addend: ADDENDS[(turn + turn / 3) % ADDENDS.len()],
            ..spec.of(op, [GemmLayout::Nt, GemmLayout::Nn][turn / 4 % 2])
        },
    }
}

fn judge(
    host: &GroupedHost,
    operands: &GroupedOperands,
    about: impl Fn(&str) -> String,
) -> Result<f64, Failure> {
    accept(&host.judge(operands, Effort::QUICK)?, operands.surroundings_untouched()?, about)
}

fn products(
    setup: &Setup,
    cases: impl IntoIterator<Item = (GroupedSpec, GemmOptions)>,
) -> Result<String, Failure> {
    tally(cases.into_iter().map(|(spec, options)| computed(setup, &Work::Grouped(spec), &options)))
}

fn sizes(setup: &Setup, op: Op) -> Result<String, Failure> {
    let huge = if setup.device.as_cuda().is_some() { 5000 } else { 300 };
    let groups: [&[usize]; 9] = [
        &[0],
        &[1],
        &[0, 0, 0],
        &[1, 1, 1, 1, 1],
        &[0, huge, 0],
        &[huge, 1, 0, 2],
        &[0, 0, 64, 128, 129],
        &[16, 15, 17, 0, 63, 65],
        &[127, 0, 1],
    ];
    let mut cases = Vec::new();
    for (i, rows) in groups.into_iter().enumerate() {
        for (j, layout) in LAYOUTS.into_iter().enumerate() {
            cases.push((spec(op, layout, rows, [200, 272], i + 4 * j), GemmOptions::default()));
        }
    }
    let step = if setup.quick { 2 } else { 1 };
    products(setup, cases.into_iter().step_by(step))
}

fn random_groups(setup: &Setup, op: Op) -> Result<String, Failure> {
    let draw = |turn: usize, which: u64, end: usize| {
        (random::bits(setup.seed ^ 0x9a ^ op as u64, 1000 * turn as u64 + which) % end as u64) as usize
    };
    let cases = (0..setup.count(120)).map(|turn| {
        let groups = 1 + draw(turn, 0, 12);
        let rows = |group: usize| match draw(turn, 10 + group as u64, 4) {
            0 => draw(turn, 30 + group as u64, 3),
            1 => draw(turn, 30 + group as u64, 300),
            _ => draw(turn, 30 + group as u64, 70),
        };
        let mut rows: Vec<usize> = (0..groups).map(rows).collect();
        let (n, k) = (1 + draw(turn, 1, 400), 1 + draw(turn, 2, 700));
        while rows.iter().sum::<usize>() * n * k > setup.largest() {
            rows.iter_mut().for_each(|rows| *rows /= 2);
        }
        (spec(op, LAYOUTS[turn % 3], &rows, [n, k], draw(turn, 3, 60)), GemmOptions::default())
    });
    products(setup, cases)
}

fn batches(setup: &Setup, op: Op) -> Result<String, Failure> {
    let draw = |turn: usize, which: u64, end: usize| {
        (random::bits(setup.seed ^ 0xba ^ op as u64, 100 * turn as u64 + which) % end as u64) as usize
    };
    let cases = (0..setup.count(60)).map(|turn| {
        let (groups, mut m) = (1 + draw(turn, 0, 9), draw(turn, 1, 300));
        let (n, k) = (1 + draw(turn, 2, 400), 1 + draw(turn, 3, 500));
        while groups * m * n * k > setup.largest() {
            m /= 2;
        }
        let spec = spec(op, GroupLayout::All, &vec![m; groups], [n, k], draw(turn, 4, 60));
        (spec, GemmOptions::default())
    });
    products(setup, cases)
}

/// Einstein sums over heads, of weights that are slices of larger ones: a product for every head.
fn einsums(setup: &Setup, op: Op) -> Result<String, Failure> {
    let gpu = setup.device.as_cuda().is_some();
    let shapes: &[[usize; 4]] =
        if gpu { &[[4, 128, 512, 128], [128, 8, 1024, 512], [70, 3, 144, 72]] } else { &[[70, 3, 144, 72]] };
    let normals = |seed, dims: [usize; 3]| -> Result<Tensor, Failure> {
        let values = random::normals(seed, dims.iter().product());
        Ok(Tensor::from_f32(op.ab_type(), &values, &dims, &setup.device)?)
    };
    let options = GemmOptions::default();
    let mut count = 0;
    for &[b, h, r, d] in shapes {
        for (expression, layout) in [("bhr,hdr->bhd", GemmLayout::Nt), ("bhd,hdr->bhr", GemmLayout::Nn)] {
            setup.now(format!("{op} {expression} of {:?}", [b, h, r, d]));
            let (k, n) = if layout == GemmLayout::Nt { (r, d) } else { (d, r) };
            let (x, w) = (normals(1, [b, h, k])?, normals(2, [h, d, r + 128])?.narrow(2, 0, r)?);
            let mut found = Tensor::zeros(op.ab_type(), &[b, h, n], &setup.device)?;
            let expected = Tensor::zeros(op.ab_type(), &[b, h, n], &setup.device)?;
            einsum(expression, &x, &w, Addend::None, &mut found, &options)?;
            for head in 0..h {
                let part = |x: &Tensor| x.transpose(0, 1)?.select(head);
                let (a, mut of_head) = (part(&x)?, part(&expected)?);
                half_gemm(layout, &a, &w.select(head)?, Addend::None, &mut of_head, &options)?;
            }
            setup.device.synchronize()?;
            let (found, expected) = (found.to_vec_f32()?, expected.to_vec_f32()?);
            // Another kernel may add up slices of K, in another order: the last bit of 16 may differ.
            let far = |(x, y): &(&f32, &f32)| (*x - *y).abs() > 0.01 * (y.abs() + (k as f32).sqrt() / 8.0);
            let wrong = found.iter().zip(&expected).filter(far).count();
            ensure(wrong == 0, || format!("{expression} of {:?}: {wrong} elements are wrong", [b, h, r, d]))?;
            count += 1;
        }
    }
    Ok(format!("{count} sums"))
}

fn kernel(setup: &Setup, config: Config) -> Result<String, Failure> {
    let (tile, stages) = match config {
        Config::Wide(wide) => ([wide.block_m, wide.block_n], wide.stages),
        Config::HalfWide(wide) => ([wide.block_m, wide.block_n], wide.stages),
        _ => return Err("only many-row kernels have groups".into()),
    };
    let ([block_m, block_n], family) = (tile.map(|x| x as usize), config.family());
    let (op, operands) = Op::of(family);
    let spec = |layout, rows: &[usize], [n, blocks]: [usize; 2], tail: usize, turn| {
        let depth = blocks * family.block_k() as usize - tail;
        GroupedSpec { operands, ..spec(op, layout, rows, [n, depth], turn) }
    };
    // More tiles than blocks, an odd number of them, more blocks of K than stages, rows for one warpgroup only.
    let rows = [block_m + 3, 0, 1, block_m / 2, 2 * block_m + 1];
    let mut cases = Vec::new();
    for (i, choice) in launches(config).into_iter().enumerate() {
        for (j, layout) in layouts(&config).into_iter().enumerate() {
            let options = |num_sms| GemmOptions { choice: Some(choice), num_sms, ..Default::default() };
            let deep = [2 * block_n + 8, stages as usize + 2];
            // The products of a batch have the same number of rows.
            let (several, few) = match layout {
                GroupLayout::All => ([block_m + 3; 5], [block_m / 2; 2]),
                _ => (rows, [rows[2], rows[3]]),
            };
            cases.push((spec(layout, &several, deep, [56, 0][j % 2], i + j), options(Some(4))));
            cases.push((spec(layout, &few, [block_n - 8, 1], 28, i + j + 1), options(None)));
        }
    }
    // The simulator takes its time for each.
    let step = match (setup.device.as_cuda().is_some(), setup.quick) {
        (true, _) => 1,
        (false, false) => 3,
        (false, true) => 13,
    };
    products(setup, cases.into_iter().step_by(step))
}

/// The layouts of groups that a kernel serves.
pub fn layouts(config: &Config) -> Vec<GroupLayout> {
    match config.family() {
        _ if config.is_batched() => vec![GroupLayout::All],
        Family::Half(_) => LAYOUTS.into_iter().chain([GroupLayout::All]).collect(),
        _ => LAYOUTS.to_vec(),
    }
}

/// Numbers that the host never sees, and that no caller should pass.
fn clamped(setup: &Setup, op: Op) -> Result<String, Failure> {
    let cases: [(GroupLayout, &[usize], &[i32]); 5] = [
        (GroupLayout::Counts, &[40, 0, 40], &[i32::MAX, i32::MIN, 41]),
        (GroupLayout::Ends, &[10, 0, 40], &[10, 3, 1 << 30]),
        (GroupLayout::Ends, &[0, 0, 56], &[-5, 0, 56]),
        (GroupLayout::Ids, &[3, 0, 0], &[0, 0, 0, -1, 7, 7, i32::MIN, i32::MAX]),
        (GroupLayout::Ids, &[2, 1, 0], &[0, 0, 1, 0, 0, -2, 99, 0]),
    ];
    for (i, (layout, rows, numbers)) in cases.into_iter().enumerate() {
        let spec = GroupedSpec::new(layout, rows.to_vec(), 72, 160).of(op, GemmLayout::Nt);
        let mut spec = GroupedSpec { alignment: 1, ..spec };
        if layout == GroupLayout::Ids {
            spec.behind = numbers.len() - rows.iter().sum::<usize>();
        }
        let about = about(&spec, &GemmOptions::default());
        setup.now(about("this"));
        let host = GroupedHost::draw(spec)?;
        let mut operands = host.upload(&setup.device)?;
        operands.numbers = Tensor::from_slice(numbers, &[numbers.len()], &setup.device)?;
        operands.run(&GemmOptions::default()).map_err(|error| about(&error.to_string()))?;
        setup.device.synchronize()?;
        judge(&host, &operands, |what| format!("case {i}, {}", about(what)))?;
    }
    Ok(format!("{} layouts, each computed as far as there are groups", cases.len()))
}

/// A graph that was captured once, launched with groups that change, on memory that changes with them.
fn replayed(setup: &Setup, op: Op) -> Result<String, Failure> {
    let stream = setup.device.new_stream()?;
    let planned = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    // Clusters take its tiles as they get done, but in a graph in turn.
    let tall = GemmOptions {
        choice: Some(plan::parse("wide_grouped_256x128_s3_c1x2").expect("it is one of the set")),
        num_sms: Some(2),
        ..planned.clone()
    };
    let all = if op == Op::Fp8 { vec![planned, tall] } else { vec![planned] };
    let turns: [[usize; 4]; 5] = [[30, 0, 7, 3], [0, 40, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [10, 10, 10, 10]];
    for (layout, options) in LAYOUTS.into_iter().flat_map(|layout| all.iter().map(move |all| (layout, all))) {
        let of = |rows: [usize; 4], turn: usize| {
            let spec = GroupedSpec::new(layout, rows.to_vec(), 136, 400).of(op, GemmLayout::Nt);
            let mut spec = GroupedSpec { alignment: 1, room: 64, seed: turn as u64, ..spec };
            spec.behind = 64 - rows.iter().sum::<usize>().min(64);
            GroupedHost::draw(spec)
        };
        let mut operands = of(turns[0], 0)?.upload(&setup.device)?;
        operands.run(options)?;
        let graph = stream.capture(|_| operands.run(options))?;
        for (turn, rows) in turns.into_iter().enumerate() {
            let host = of(rows, turn)?;
            operands.change_groups(&host)?;
            operands.poison()?;
            graph.launch(&stream)?;
            stream.synchronize()?;
            judge(&host, &operands, |what| format!("replay {turn} of {}: {what}", host.spec))?;
        }
    }
    Ok(format!("{} graphs, each launched with {} sets of groups", LAYOUTS.len() * all.len(), turns.len()))
}

/// The same call, again and again.
fn repeats(setup: &Setup, op: Op) -> Result<String, Failure> {
    let gpu = setup.device.as_cuda().is_some();
    let rows: &[usize] = if gpu { &[200, 0, 1, 77, 300, 129] } else { &[20, 0, 1] };
    let dims = if gpu { [1000, 1536] } else { [72, 200] };
    for (turn, layout) in LAYOUTS.into_iter().enumerate() {
        let mut operands =
            GroupedHost::draw(spec(op, layout, rows, dims, 6 * turn))?.upload(&setup.device)?;
        let before = operands.d_memory.to_bytes()?;
        setup.same_bits_again(&format_args!("{op} by {layout:?}"), || {
            operands.d_memory.write_bytes(&before)?;
            operands.run(&GemmOptions::default())?;
            Ok(operands.d_memory.to_bytes()?)
        })?;
    }
    Ok(format!("{} layouts of groups", LAYOUTS.len()))
}

fn bad_half_arguments(setup: &Setup) -> Result<String, Failure> {
    let device = &setup.device;
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, device);
    let (a, b) = (new(DType::Bf16, &[8, 64])?, new(DType::Bf16, &[3, 24, 64])?);
    let (ids, ends, d) = (new(DType::I32, &[8])?, new(DType::I32, &[3])?, new(DType::Bf16, &[8, 24])?);
    let run = |layout, a: &Tensor, b: &Tensor, c: Addend<'_>, rows: GroupedRows<'_>| {
        let groups = RowGroups::Contiguous { rows, alignment: 1, expected_m: None };
        m_grouped_half_gemm(layout, a, b, c, &mut d.clone(), groups, &GemmOptions::default())
    };
    let (nt, good, none) = (GemmLayout::Nt, GroupedRows::Ends(&ends), Addend::None);
    let other = new(DType::F32, &[8, 24])?;
    for (result, argument) in [
        (run(GemmLayout::Tn, &a, &b, none, good), "layout"),
        (run(nt, &new(DType::F32, &[8, 64])?, &b, none, good), "a"),
        (run(nt, &a.transpose(0, 1)?, &b, none, good), "a"),
        (run(nt, &a, &b.select(0)?, none, good), "b"),
        (run(GemmLayout::Nn, &a, &b, none, good), "a"),
        (run(nt, &a, &new(DType::F16, &[3, 24, 64])?, none, good), "b"),
        (run(nt, &a, &b, Addend::From(&other), good), "c"),
        (run(nt, &a, &b, none, GroupedRows::Ids(&ends)), "ids"),
        (run(nt, &a, &b, none, GroupedRows::Ends(&ids)), "ends"),
    ] {
        ensure(matches!(&result, Err(error) if error.argument() == Some(argument)), || {
            format!("{argument}: {result:?}")
        })?;
    }
    ensure(run(nt, &a, &b, none, good).is_ok(), || "good arguments were refused".to_owned())?;
    Ok("refused, each with its name".to_owned())
}

fn bad_arguments(setup: &Setup) -> Result<String, Failure> {
    let device = &setup.device;
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, device);
    let (a, sfa) = (new(DType::E4m3, &[8, 256])?, new(DType::F32, &[8, 2])?);
    let (b, sfb) = (new(DType::E4m3, &[3, 64, 256])?, new(DType::F32, &[3, 1, 2])?);
    let (ids, ends) = (new(DType::I32, &[8])?, new(DType::I32, &[3])?);
    let floats = new(DType::F32, &[8])?;
    let run = |b: &Tensor, rows: GroupedRows<'_>, alignment: usize| -> Result<oxigemm::Result<()>, Failure> {
        let mut d = new(DType::Bf16, &[8, 64])?;
        let options = GemmOptions::default();
        let (a, b) = ((&a, &sfa), (b, &sfb));
        Ok(m_grouped_fp8_gemm_nt_contiguous(a, b, &mut d, rows, alignment, None, &options))
    };
    let one_group = b.select(0)?;
    for (result, argument) in [
        (run(&one_group, GroupedRows::Ids(&ids), 1)?, "b"),
        (run(&b, GroupedRows::Ids(&ends), 1)?, "ids"),
        (run(&b, GroupedRows::Ends(&ids), 1)?, "ends"),
        (run(&b, GroupedRows::Ids(&floats), 1)?, "ids"),
        (run(&b, GroupedRows::Ends(&ends), 24)?, "alignment"),
    ] {
        ensure(matches!(&result, Err(error) if error.argument() == Some(argument)), || {
            format!("{argument}: {result:?}")
        })?;
    }
    ensure(run(&b, GroupedRows::Ends(&ends), 16)?.is_ok(), || "good arguments were refused".to_owned())?;
    Ok("refused, each with its name".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::ScaleOrder;
    use oxigemm::plan::Choice;

    #[test]
    fn every_layout_order_and_alignment_occurs() {
        let all: Vec<GroupedSpec> =
            (0..60).map(|turn| spec(Op::Fp8, GroupLayout::Ids, &[3], [8, 8], turn)).collect();
        for alignment in ALIGNMENTS {
            assert!(all.iter().any(|spec| spec.alignment == alignment && spec.d_type == DType::F32));
        }
        assert!(all.iter().any(|spec| spec.sfa == ScaleOrder::Mn && spec.d_padding == 0));
        let half = |turn| spec(Op::Fp16, GroupLayout::Ids, &[3], [8, 8], turn);
        for (addend, operands) in
            ADDENDS.into_iter().flat_map(|x| [GemmLayout::Nt, GemmLayout::Nn].map(|y| (x, y)))
        {
            for d_type in Op::Fp16.d_types() {
                let same = |spec: GroupedSpec| {
                    (spec.addend, spec.operands, spec.d_type) == (addend, operands, d_type)
                };
                assert!((0..60).map(half).any(same), "{addend:?} {operands} {d_type}");
            }
        }
        for config in Config::grouped() {
            let wide = |choice: &Choice| matches!(choice, Choice::Wide { .. } | Choice::HalfWide { .. });
            assert!(launches(config).iter().all(wide));
        }
    }
}
