//! Checks of m-grouped GEMMs and batches: groups of all sizes, layouts, and groups that change.

use oxigemm::plan;
use oxigemm::{
    Addend, Arch, DType, Device, GemmLayout, GemmOptions, GroupedRows, Tensor, einsum, half_gemm,
    m_grouped_fp8_gemm_nt_contiguous, random,
};
use oxigemm_testkit::{
    BF16, Effort, FP4_FP8, FP8, FP8_1X32, FP8_32X32, FP8_FP4, FP8_UE8M0, FP16, Failure, GemmCase,
    GroupLayout, MGroups, MXFP4, MXFP8, NVFP4, OperandTypes,
};

use super::random::{GROUP_LAYOUTS, fitting_k, m_grouped};
use super::{Check, Setup, about, accept, each, ensure, gemms};

const TYPES: [OperandTypes; 11] =
    [FP8, BF16, FP16, FP8_1X32, FP8_32X32, FP8_UE8M0, MXFP8, MXFP4, NVFP4, FP8_FP4, FP4_FP8];

pub fn checks(setup: &Setup) -> Vec<Check> {
    let mut checks = Vec::new();
    for types in TYPES {
        let mut of_types = Vec::new();
        let name = |what: &str| if types == FP8 { what.to_owned() } else { format!("{types}: {what}") };
        of_types.push(Check::anywhere(
            &name("m-grouped: groups of no rows, of one row, and one of all rows"),
            move |setup| sizes(setup, types),
        ));
        of_types.push(Check::anywhere(&name("m-grouped: random groups"), move |setup| {
            random_groups(setup, types)
        }));
        of_types.push(Check::anywhere(&name("m-grouped: numbers that are no groups"), move |setup| {
            clamped(setup, types)
        }));
        of_types.push(Check::with_kernels(
            name("m-grouped: a graph is replayed with other groups"),
            move |setup| replayed(setup, types),
        ));
        of_types
            .push(Check::anywhere(&name("m-grouped: repeats of groups give the same bits"), move |setup| {
                repeats(setup, types)
            }));
        let case = m_grouped(types, GroupLayout::Ends, &[64, 64], [128, 128], 0);
        checks.extend(setup.family(format!("{types}: m-grouped GEMMs"), &case, of_types));
    }
    checks.push(Check::anywhere("m-grouped: groups in several places", scattered));
    for types in [FP8, BF16, FP16] {
        let name = format!("{types}: random batches");
        let case = m_grouped(types, GroupLayout::All, &[64, 64], [128, 128], 0);
        let of_types = vec![Check::anywhere(&name, move |setup| batches(setup, types))];
        checks.extend(setup.family(format!("{types}: batches"), &case, of_types));
    }
    for types in [BF16, FP16] {
        checks.push(Check::anywhere(&format!("{types}: einsums are batches"), move |setup| {
            einsums(setup, types)
        }));
    }
    checks
}

fn sizes(setup: &Setup, types: OperandTypes) -> Result<String, Failure> {
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
        for (j, layout) in GROUP_LAYOUTS.into_iter().enumerate() {
            cases.push(m_grouped(types, layout, rows, [200, 272], i + 4 * j));
        }
    }
    let step = if setup.quick { 2 } else { 1 };
    gemms(setup, each(setup.thinned(cases.into_iter().step_by(step))))
}

fn random_groups(setup: &Setup, types: OperandTypes) -> Result<String, Failure> {
    let draw = |turn: usize, which: u64, end: usize| {
        (random::bits(setup.seed ^ 0x9a ^ types.salt(), 1000 * turn as u64 + which) % end as u64) as usize
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
        m_grouped(types, GROUP_LAYOUTS[turn % 3], &rows, [n, k], draw(turn, 3, 60))
    });
    gemms(setup, each(cases))
}

fn batches(setup: &Setup, types: OperandTypes) -> Result<String, Failure> {
    let draw = |turn: usize, which: u64, end: usize| {
        (random::bits(setup.seed ^ 0xba ^ types.salt(), 100 * turn as u64 + which) % end as u64) as usize
    };
    let cases = (0..setup.count(60)).map(|turn| {
        let (groups, mut m) = (1 + draw(turn, 0, 9), draw(turn, 1, 300));
        let (n, k) = (1 + draw(turn, 2, 400), 1 + draw(turn, 3, 500));
        while groups * m * n * k > setup.largest() {
            m /= 2;
        }
        m_grouped(types, GroupLayout::All, &vec![m; groups], [n, k], draw(turn, 4, 60))
    });
    gemms(setup, each(cases))
}

/// Einstein sums over heads, of weights that are slices of larger ones: a GEMM for every head.
fn einsums(setup: &Setup, types: OperandTypes) -> Result<String, Failure> {
    let gpu = setup.device.as_cuda().is_some();
    let shapes: &[[usize; 4]] =
        if gpu { &[[4, 128, 512, 128], [128, 8, 1024, 512], [70, 3, 144, 72]] } else { &[[70, 3, 144, 72]] };
    let normals = |seed, dims: [usize; 3]| -> Result<Tensor, Failure> {
        let values = random::normals(seed, dims.iter().product());
        Ok(Tensor::from_f32(types.ab, &values, &dims, &setup.device)?)
    };
    let options = GemmOptions::default();
    let mut count = 0;
    for &[b, h, r, d] in shapes {
        for (expression, layout) in [("bhr,hdr->bhd", GemmLayout::Nt), ("bhd,hdr->bhr", GemmLayout::Nn)] {
            setup.now(format!("{types} {expression} of {:?}", [b, h, r, d]));
            let (k, n) = if layout == GemmLayout::Nt { (r, d) } else { (d, r) };
            let (x, w) = (normals(1, [b, h, k])?, normals(2, [h, d, r + 128])?.narrow(2, 0, r)?);
            let mut found = Tensor::zeros(types.ab, &[b, h, n], &setup.device)?;
            let expected = Tensor::zeros(types.ab, &[b, h, n], &setup.device)?;
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

/// Numbers that the host never sees, and that no caller should pass.
fn clamped(setup: &Setup, types: OperandTypes) -> Result<String, Failure> {
    let cases: [(GroupLayout, &[usize], &[i32]); 5] = [
        (GroupLayout::Counts, &[40, 0, 40], &[i32::MAX, i32::MIN, 41]),
        (GroupLayout::Ends, &[10, 0, 40], &[10, 3, 1 << 30]),
        (GroupLayout::Ends, &[0, 0, 56], &[-5, 0, 56]),
        (GroupLayout::Ids, &[3, 0, 0], &[0, 0, 0, -1, 7, 7, i32::MIN, i32::MAX]),
        (GroupLayout::Ids, &[2, 1, 0], &[0, 0, 1, -3, 98, -2, 99, 3]),
    ];
    for (i, (layout, rows, numbers)) in cases.into_iter().enumerate() {
        let mut groups = MGroups { alignment: 1, ..MGroups::new(layout, rows.to_vec()) };
        if layout == GroupLayout::Ids {
            groups.trailing_rows = numbers.len() - rows.iter().sum::<usize>();
        }
        let case = GemmCase::m_grouped(types, groups, [72, fitting_k(&types, 160)]);
        let about = about(&case, &GemmOptions::default());
        setup.now(about("this"));
        let mut gemm = case.on(&setup.device)?;
        gemm.numbers = Some(Tensor::from_slice(numbers, &[numbers.len()], &setup.device)?);
        gemm.run(&GemmOptions::default()).map_err(|error| about(&error.to_string()))?;
        setup.device.synchronize()?;
        let untouched = gemm.surroundings_untouched()?;
        accept(&gemm.judge(Effort::QUICK)?, untouched, |what| format!("case {i}, {}", about(what)))?;
    }
    Ok(format!("{} layouts, each computed as far as there are groups", cases.len()))
}

/// Groups in several places, and a hole in one: as on the CPU.
fn scattered(setup: &Setup) -> Result<String, Failure> {
    // Blocks of 128 rows: group 1 in two places, a hole of -1 in group 0, a block of no group.
    let mut ids = vec![1i32; 128];
    ids.extend([0; 300]);
    ids[200..210].fill(-1);
    ids.extend([-1; 212]);
    ids.extend([1; 100]);
    ids.extend([-1; 28]);
    ids.extend([2; 131]);
    let (rows, groups, n, k) = (ids.len(), 3, 136, 256);
    let run = |device: &Device| -> Result<Vec<f32>, Failure> {
        let drawn = |dtype, seed, dims: &[usize]| {
            Tensor::from_f32(dtype, &random::normals(seed, dims.iter().product()), dims, device)
        };
        let ones =
            |dims: &[usize]| Tensor::from_f32(DType::F32, &vec![1.0; dims.iter().product()], dims, device);
        let (a, b) = (drawn(DType::E4m3, 1, &[rows, k])?, drawn(DType::E4m3, 2, &[groups, n, k])?);
        let (sfa, sfb) = (ones(&[rows, 2])?, ones(&[groups, 2, 2])?);
        let mut d = Tensor::from_f32(DType::Bf16, &vec![99.0; rows * n], &[rows, n], device)?;
        let ids = Tensor::from_slice(&ids, &[rows], device)?;
        let (places, options) = (GroupedRows::Ids(&ids), GemmOptions::default());
        m_grouped_fp8_gemm_nt_contiguous((&a, &sfa), (&b, &sfb), &mut d, places, 128, None, &options)?;
        device.synchronize()?;
        Ok(d.to_vec_f32()?)
    };
    let (found, expected) = (run(&setup.device)?, run(&Device::Cpu)?);
    let wrong = found.iter().zip(&expected).position(|(x, y)| (x - y).abs() > 0.02 * y.abs() + 0.5);
    match wrong {
        Some(at) => Err(format!("row {}: {} instead of {}", at / n, found[at], expected[at]).into()),
        None => Ok("group 1 in two places, group 0 with a hole".to_owned()),
    }
}

/// A graph that was captured once, launched with groups that change, on memory that changes with them.
fn replayed(setup: &Setup, types: OperandTypes) -> Result<String, Failure> {
    let stream = setup.device.new_stream()?;
    let planned = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    // It has a dynamic tile scheduler, and in a graph a static one.
    let tall = GemmOptions {
        config: Some(
            plan::parse("sm90_fp8_persistent_m_grouped_256x128_s3_c1x2").expect("it is one of the set"),
        ),
        num_sms: Some(2),
        ..planned.clone()
    };
    let has_dynamic_scheduler = setup.arch() == Arch::Sm90a;
    let all = if types == FP8 && has_dynamic_scheduler { vec![planned, tall] } else { vec![planned] };
    let turns: [[usize; 4]; 5] = [[30, 0, 7, 3], [0, 40, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [10, 10, 10, 10]];
    let mut graphs = 0;
    let some =
        if setup.is_thrifty() { types.salt() as usize % 3..1 + types.salt() as usize % 3 } else { 0..3 };
    for (layout, options) in
        GROUP_LAYOUTS[some].iter().flat_map(|layout| all.iter().map(move |all| (*layout, all)))
    {
        let of = |rows: [usize; 4], turn: usize| {
            let groups = MGroups {
                alignment: 1,
                max_m: 64,
                trailing_rows: 64 - rows.iter().sum::<usize>().min(64),
                ..MGroups::new(layout, rows.to_vec())
            };
            let case = GemmCase::m_grouped(types, groups, [136, fitting_k(&types, 400)]);
            GemmCase { seed: turn as u64, ..case }.drawn_for(&setup.device)
        };
        let mut gemm = of(turns[0], 0)?.upload(&setup.device)?;
        gemm.run(options)?;
        let graph = stream.capture(|_| gemm.run(options))?;
        graphs += 1;
        for (turn, rows) in turns.into_iter().enumerate().step_by(if setup.is_thrifty() { 3 } else { 1 }) {
            gemm.replace(&of(rows, turn)?)?;
            setup.replay(&mut gemm, &graph, &stream, turn)?;
        }
    }
    Ok(format!("{graphs} graphs, each launched with several sets of groups"))
}

/// The same call, again and again.
fn repeats(setup: &Setup, types: OperandTypes) -> Result<String, Failure> {
    let gpu = setup.device.as_cuda().is_some();
    let rows: &[usize] = if gpu { &[200, 0, 1, 77, 300, 129] } else { &[20, 0, 1] };
    let dims = if gpu { [1000, 1536] } else { [72, 200] };
    for (turn, layout) in setup.thinned(GROUP_LAYOUTS.into_iter().enumerate()) {
        setup.repeats(&m_grouped(types, layout, rows, dims, 6 * turn), &GemmOptions::default())?;
    }
    Ok(format!("{} layouts of groups", GROUP_LAYOUTS.len()))
}
