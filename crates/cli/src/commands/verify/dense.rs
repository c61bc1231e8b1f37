//! Checks of dense GEMMs: shapes, layouts, sizes of zero, repeats.

use oxigemm::{GemmLayout, GemmOptions};
use oxigemm_testkit::{
    BF16, FP4_FP8, FP8, FP8_1D1D, FP8_1X32, FP8_32X32, FP8_FP4, FP8_UE8M0, FP16, Failure, GemmCase, MXFP4,
    MXFP8, NVFP4, OperandTypes, TF32,
};

use super::random::{ADDENDS, Draw, fitting_k};
use super::{Check, Setup, each, ensure, gemms};

const TYPES: [OperandTypes; 13] =
    [FP8, FP8_1D1D, BF16, FP16, FP8_1X32, FP8_32X32, FP8_UE8M0, MXFP8, MXFP4, NVFP4, FP8_FP4, FP4_FP8, TF32];

pub fn checks(setup: &Setup) -> Vec<Check> {
    let mut checks = Vec::new();
    for types in TYPES {
        let name = |what: &str| if types == FP8 { what.to_owned() } else { format!("{types}: {what}") };
        let mut of_types = Vec::new();
        of_types.push(Check::anywhere(&name("sizes of zero"), move |setup| {
            each_layout(setup, &types, |layout| sizes_of_zero(setup, types, layout))
        }));
        of_types.push(Check::anywhere(&name("random shapes and layouts"), move |setup| {
            random_cases(setup, types)
        }));
        of_types.push(Check::anywhere(&name("repeats give the same bits"), move |setup| {
            each_layout(setup, &types, |layout| repeats(setup, types, layout))
        }));
        if types != FP8_1D1D {
            of_types.push(Check::with_kernels(name("a limited number of SMs"), move |setup| {
                limited(setup, types)
            }));
        }
        let case = GemmCase::dense(types, GemmLayout::Nt, [128; 3]);
        checks.extend(setup.family(format!("{types} GEMMs"), &case, of_types));
    }
    checks.extend([
        Check::anywhere("gaps between rows, unaligned D", gaps),
        Check::anywhere("operands at the end of memory", at_the_end),
    ]);
    checks
}

/// The same for each layout that has kernels of its own; the note is the first one.
fn each_layout(
    setup: &Setup,
    types: &OperandTypes,
    check: impl Fn(GemmLayout) -> Result<String, Failure>,
) -> Result<String, Failure> {
    if types.has_scales() {
        return check(GemmLayout::Nt);
    }
    let notes = setup.thinned(GemmLayout::ALL).map(check).collect::<Result<Vec<_>, _>>()?;
    Ok(format!("in each of {} layouts, {}", notes.len(), notes[0]))
}

/// The `i`-th case of a check.
fn nth(draw: &mut Draw, types: OperandTypes, i: usize) -> GemmCase {
    match types.has_scales() {
        true => draw.scaled(types),
        false => draw.dense(types, GemmLayout::ALL[i % 4]),
    }
}

fn random_cases(setup: &Setup, types: OperandTypes) -> Result<String, Failure> {
    let (salt, count) = match types {
        FP8 => (1, 200),
        FP8_1D1D => (6, 120),
        _ => (11 + types.salt(), 120),
    };
    let mut draw = Draw::new(setup, salt);
    gemms(setup, each((0..setup.count(count)).map(|i| nth(&mut draw, types, i))))
}

fn limited(setup: &Setup, types: OperandTypes) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, if types == FP8 { 5 } else { 21 + types.salt() });
    let all = setup.limits()?.sms;
    let cases = [1, 2, 3, 24, 64, all - 1, all, all + 7]
        .into_iter()
        .enumerate()
        .map(|(i, sms)| (nth(&mut draw, types, i), GemmOptions { num_sms: Some(sms), ..Default::default() }));
    gemms(setup, setup.thinned(cases))
}

fn gaps(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 2);
    let offsets = [0, 1, 2, 3, 4, 7, 8];
    let cases = (0..setup.count(60)).map(|i| GemmCase {
        ab_padding: i % 3,
        d_padding: offsets[i % 7],
        d_offset: offsets[(i / 2) % 7],
        at_end: false,
        ..draw.fp8()
    });
    gemms(setup, each(cases))
}

fn at_the_end(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 3);
    gemms(setup, each((0..setup.count(20)).map(|_| GemmCase { at_end: true, ..draw.fp8() })))
}

/// Calls that multiply nothing: D becomes C or 0.
fn sizes_of_zero(setup: &Setup, types: OperandTypes, layout: GemmLayout) -> Result<String, Failure> {
    let mut count = 0;
    // The factor of NVFP4 is an epilogue's, and those are not of nothing.
    let has_products = |dims: &[usize; 3]| dims[2] > 0 || !types.is_nvfp4();
    let all = [[0, 64, 128], [64, 0, 128], [5, 7, 0], [1, 1, 0], [300, 129, 0], [0, 0, 0]];
    for dims in all.into_iter().filter(has_products) {
        for addend in ADDENDS {
            for d_type in setup.thinned(types.d_types) {
                let case = GemmCase::dense(types, layout, dims);
                let case = GemmCase { addend, d_type, d_padding: 3, d_offset: 1, ..case };
                let mut gemm = case.on(&setup.device)?;
                gemm.run(&GemmOptions::default()).map_err(|error| format!("{case}: {error}"))?;
                setup.device.synchronize()?;
                let c = gemm.data.groups[0].c.clone();
                let expected = c.unwrap_or_else(|| vec![0.0; dims[0] * dims[1]]);
                ensure(gemm.result(0)? == expected, || format!("{case}: D is not C, or not 0"))?;
                ensure(gemm.surroundings_untouched()?, || format!("{case}: written outside of D"))?;
                count += 1;
            }
        }
    }
    Ok(format!("{count} calls: D became C or 0"))
}

/// The same call, again and again.
fn repeats(setup: &Setup, types: OperandTypes, layout: GemmLayout) -> Result<String, Failure> {
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
        &[[17, 130, fitting_k(&types, 300)]]
    };
    for &dims in shapes {
        setup.repeats(&GemmCase::dense(types, layout, dims), &GemmOptions::default())?;
    }
    Ok(format!("{} shapes", shapes.len()))
}
