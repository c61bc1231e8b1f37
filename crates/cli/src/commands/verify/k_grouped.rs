//! Checks of k-grouped GEMMs: sizes, layouts, and groups that change.

use oxigemm::{
    Addend, DType, Device, GemmLayout, GemmOptions, KGroupNumbers, Tensor, k_grouped_half_gemm, random,
};
use oxigemm_testkit::{Failure, GemmCase, Op, OperandTypes};

use super::random::k_grouped;
use super::{Check, Setup, each, ensure, gemms};

pub fn checks(setup: &Setup) -> Vec<Check> {
    let served = forms(setup);
    let absent = Op::k_grouped_forms().into_iter().filter(|form| !served.contains(form));
    let mut checks: Vec<Check> =
        absent.map(|(types, layout)| Check::absent(format!("{types} {layout}: k-grouped GEMMs"))).collect();
    checks.extend([
        Check::anywhere("k-grouped: groups of no K, of one, and of much", sizes),
        Check::anywhere("k-grouped: random groups", random_groups),
        Check::with_kernels("k-grouped: numbers that are no K", clamped),
        Check::anywhere("k-grouped: repeats of groups give the same bits", repeats),
        Check::with_kernels("k-grouped: a graph is replayed with other groups", replayed),
        Check::with_kernels("k-grouped: the ends of groups are as good as their K", ends),
    ]);
    checks
}

/// Operand types and layouts that the device computes.
fn forms(setup: &Setup) -> Vec<(OperandTypes, GemmLayout)> {
    let served =
        |form: &(OperandTypes, GemmLayout)| setup.serves(&k_grouped(*form, &[128, 64], [64, 128], 0));
    Op::k_grouped_forms().into_iter().filter(served).collect()
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
    let forms = &forms(setup);
    let cases =
        shapes.flat_map(|(ks, size, turn)| forms.iter().map(move |form| k_grouped(*form, ks, size, turn)));
    gemms(setup, each(setup.thinned(cases.step_by(if setup.quick { 3 } else { 1 }))))
}

/// The same bits, with NaN between a group's end and the start of the next.
fn ends(setup: &Setup) -> Result<String, Failure> {
    let (device, options) = (&setup.device, GemmOptions::default());
    let (m, n, alignment) = (40, 72, 64);
    let ks = [40usize, 0, 100, 1, 640, 64];
    let starts = ks.iter().scan(0usize, |end, k| {
        let start = end.next_multiple_of(alignment);
        *end = start + k;
        Some(start)
    });
    let starts: Vec<usize> = starts.collect();
    let extent = starts[5] + ks[5];
    let draw = |seed, columns: usize| -> Result<[Tensor; 2], Failure> {
        let values = random::normals(seed, ks.iter().sum::<usize>() * columns);
        let mut apart = vec![f32::NAN; extent * columns];
        let mut from = 0;
        for (start, k) in starts.iter().zip(ks) {
            apart[start * columns..(start + k) * columns].copy_from_slice(&values[from..from + k * columns]);
            from += k * columns;
        }
        let dense = Tensor::from_f32(DType::Bf16, &values, &[values.len() / columns, columns], device)?;
        Ok([dense, Tensor::from_f32(DType::Bf16, &apart, &[extent, columns], device)?])
    };
    let ([dense_a, a], [dense_b, b]) = (draw(1, m)?, draw(2, n)?);
    let numbers = |numbers: Vec<usize>| {
        let numbers: Vec<i32> = numbers.into_iter().map(|x| x as i32).collect();
        Tensor::from_slice(&numbers, &[ks.len()], device)
    };
    let given = numbers(ks.to_vec())?;
    let ends = numbers(starts.iter().zip(ks).map(|(start, k)| start + k).collect())?;
    let run = |a: &Tensor, b: &Tensor, groups: KGroupNumbers<'_>| -> Result<Vec<u8>, Failure> {
        let mut d = Tensor::zeros(DType::F32, &[ks.len(), m, n], device)?;
        k_grouped_half_gemm(GemmLayout::Tn, a, b, Addend::None, &mut d, groups, Some(&ks), &options)?;
        device.synchronize()?;
        Ok(d.to_bytes()?)
    };
    let expected = run(&dense_a, &dense_b, KGroupNumbers::Ks(&given))?;
    let found = run(&a, &b, KGroupNumbers::Ends { ends: &ends, alignment })?;
    ensure(found == expected, || "ends of groups give other bits than their K".to_owned())?;
    Ok(format!("{} groups", ks.len()))
}

fn random_groups(setup: &Setup) -> Result<String, Failure> {
    let forms = &forms(setup);
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
        k_grouped(forms[turn % forms.len()], &ks, [m, n], draw(turn, 3, 60))
    });
    gemms(setup, each(cases))
}

/// Numbers that the host never sees, and that no caller should pass: they are cut off as the CPU cuts them off.
fn clamped(setup: &Setup) -> Result<String, Failure> {
    let numbers = [[i32::MAX, 5, 5], [-7, 208, 1000], [0, 0, 0], [416, 1, -1], [304, 304, 304], [1, 1, 1]];
    let forms = forms(setup);
    let lists = forms.into_iter().flat_map(|form| numbers.map(|list| (form, list)));
    for ((types, layout), numbers) in setup.thinned(lists) {
        // FP4 has two elements to a byte.
        let numbers = numbers.map(|k| if types.has_fp4() { k & !1 } else { k });
        let case = GemmCase::k_grouped(types, layout, vec![208, 80, 128], [20, 40]);
        let about = format!("{types} {layout}, K of groups {numbers:?}");
        setup.now(about.clone());
        let data = case.drawn_for(&setup.device)?;
        let on = |device: &Device| -> Result<Vec<f32>, Failure> {
            let mut gemm = data.upload(device)?;
            gemm.numbers = Some(Tensor::from_slice(&numbers, &[3], device)?);
            gemm.run(&GemmOptions::default())?;
            Ok(gemm.d.to_vec_f32()?)
        };
        let (found, expected) = (on(&setup.device)?, on(&Device::cpu())?);
        let limit = |x: f32| 0.03 * 416f32.sqrt() + x.abs() / 128.0;
        let wrong = found
            .iter()
            .zip(&expected)
            .position(|(x, y)| (x - y).abs().is_nan() || (x - y).abs() > limit(*y));
        ensure(wrong.is_none(), || {
            let i = wrong.unwrap_or(0);
            format!("{about}, element {i}: {}, not {}", found[i], expected[i])
        })?;
    }
    Ok(format!("{} lists, each computed as far as the operands reach", numbers.len()))
}

fn repeats(setup: &Setup) -> Result<String, Failure> {
    let (ks, size): (&[usize], _) = match setup.device.as_cuda() {
        Some(_) => (&[1024, 0, 512, 2048, 16, 130], [700, 1000]),
        None => (&[130, 0, 16], [20, 40]),
    };
    for (types, layout) in forms(setup) {
        let case = GemmCase::k_grouped(types, layout, ks.to_vec(), size);
        setup.repeats(&case, &GemmOptions::default())?;
    }
    Ok("all alike".to_owned())
}

/// A graph that was captured once, launched with groups that change, on memory that changes with them.
fn replayed(setup: &Setup) -> Result<String, Failure> {
    let stream = setup.device.new_stream()?;
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    // As much in all, in blocks and in whatever a group is rounded up to.
    let turns: [[usize; 3]; 5] = [[128, 0, 252], [0, 380, 0], [124, 0, 256], [380, 0, 0], [128, 128, 124]];
    for form in forms(setup) {
        let of = |ks: [usize; 3], turn: u64| {
            GemmCase { seed: turn, ..k_grouped(form, &ks, [70, 136], 0) }.drawn_for(&setup.device)
        };
        let mut gemm = of(turns[0], 0)?.upload(&setup.device)?;
        gemm.run(&options)?;
        let graph = stream.capture(|_| gemm.run(&options))?;
        for (turn, ks) in turns.into_iter().enumerate().step_by(if setup.is_thrifty() { 3 } else { 1 }) {
            gemm.replace(&of(ks, turn as u64)?)?;
            setup.replay(&mut gemm, &graph, &stream, turn)?;
        }
    }
    Ok("one graph of each form, launched with several sets of groups".to_owned())
}
