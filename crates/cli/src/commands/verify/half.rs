//! Checks of the products with 16-bit operands.

use oxigemm::plan::{Choice, Family, Plan, Shape};
use oxigemm::{Addend, DType, GemmLayout, GemmOptions, RawHalfGemm, Tensor, half_gemm, half_gemm_raw};
use oxigemm_kernels::launch::Config;

use super::products::{ADDENDS, Draw, launches, products, same_bits_again, sizes_of_zero};
use super::{Check, Setup, ensure};
use crate::problem::{AddendKind, Host, Spec};
use crate::{Failure, Op};

const OPS: [Op; 2] = [Op::Bf16, Op::Fp16];

pub fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    for op in OPS {
        let name = |what: &str| format!("{op}: {what}");
        checks.push(Check::anywhere(&name("sizes of zero"), move |setup| {
            each_layout(|layout| sizes_of_zero(setup, op, layout))
        }));
        checks
            .push(Check::anywhere(&name("random shapes and layouts"), move |setup| random_cases(setup, op)));
        checks.push(Check::anywhere(&name("bad arguments"), move |setup| bad_arguments(setup, op)));
        checks.push(Check::anywhere(&name("repeats give the same bits"), move |setup| {
            each_layout(|layout| same_bits_again(setup, op, layout))
        }));
        checks.push(Check::with_kernels(name("a limited number of multiprocessors"), move |setup| {
            limited(setup, op)
        }));
        checks.push(Check::with_kernels(name("raw pointers"), move |setup| raw_pointers(setup, op)));
    }
    for config in Config::dense() {
        if let Family::Half(_) = config.family() {
            checks.push(Check::with_kernels(format!("kernel {}", config.name()), move |setup| {
                kernel(setup, config)
            }));
        }
    }
    checks
}

/// The same for each layout; the note is the last one.
fn each_layout(check: impl Fn(GemmLayout) -> Result<String, Failure>) -> Result<String, Failure> {
    let notes = GemmLayout::ALL.into_iter().map(check).collect::<Result<Vec<_>, _>>()?;
    Ok(format!("in each of {} layouts, {}", notes.len(), notes[0]))
}

fn random_cases(setup: &Setup, op: Op) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 11 + op as u64);
    let cases =
        (0..setup.count(120)).map(|i| (draw.spec_of(op, GemmLayout::ALL[i % 4]), GemmOptions::default()));
    products(setup, cases)
}

fn limited(setup: &Setup, op: Op) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 21 + op as u64);
    let all = setup.limits()?.sms;
    let cases = [1, 2, 3, 24, 64, all - 1, all, all + 7].into_iter().enumerate().map(|(i, sms)| {
        let options = GemmOptions { num_sms: Some(sms), ..Default::default() };
        (draw.spec_of(op, GemmLayout::ALL[i % 4]), options)
    });
    products(setup, cases)
}

/// One kernel, forced: every output type and addend, with launches and shapes of all kinds.
fn kernel(setup: &Setup, config: Config) -> Result<String, Failure> {
    let limits = setup.limits()?;
    let (op, layout) = Op::of(config.family());
    let simulated = setup.device.as_sim().is_some();
    let mut draw = Draw::new(setup, 31);
    let fitting = |spec: &Spec| -> Vec<Choice> {
        let shape = Shape { m: spec.m as u32, n: spec.n as u32, k: spec.k as u32 };
        let fits = |choice: &Choice| Plan::of(*choice, shape, &limits).is_some();
        launches(config).into_iter().filter(fits).collect()
    };
    let by = |choice| GemmOptions { choice: Some(choice), ..Default::default() };
    // What the benchmark takes: whole tiles, aligned output, a deep K.
    let whole = if simulated { [128, 128, 256] } else { [256, 512, 768] };
    let mut cases = Vec::new();
    for (i, (d_type, addend)) in
        op.d_types().into_iter().flat_map(|d_type| ADDENDS.map(|addend| (d_type, addend))).enumerate()
    {
        for spec in [draw.spec_of(op, layout), Spec::of(op, layout, whole)] {
            let spec = Spec { d_type, addend, ..spec };
            let choices = fitting(&spec);
            ensure(!choices.is_empty(), || format!("{spec}: no launch fits"))?;
            cases.push((spec, by(choices[i % choices.len()])));
        }
    }
    // Every launch at least once, also where there are more of them than combinations.
    let dims = if simulated { [66, 136, 320] } else { [130, 392, 1152] };
    let spec = Spec::of(op, layout, dims);
    cases.extend(fitting(&spec).into_iter().map(|choice| (spec, by(choice))));
    // The simulator takes its time for each; three and thirteen have nothing in common with the lists above.
    let step = match (simulated, setup.quick) {
        (true, true) => 13,
        (true, false) | (false, true) => 3,
        (false, false) => 1,
    };
    products(setup, cases.into_iter().step_by(step))
}

fn raw_pointers(setup: &Setup, op: Op) -> Result<String, Failure> {
    let mut count = 0;
    for layout in GemmLayout::ALL {
        let dims @ [m, n, k] = [33, 72, 200];
        let spec = Spec { addend: AddendKind::Inplace, d_type: DType::F32, ..Spec::of(op, layout, dims) };
        let (host, mut by_tensors) = (Host::draw(spec)?, Host::draw(spec)?.upload(&setup.device)?);
        by_tensors.run(&GemmOptions::default())?;
        let operands = host.upload(&setup.device)?;
        let strides = |x: &Tensor, k_first: bool| match (k_first, x.strides()) {
            (false, strides) => [strides[0], strides[1]],
            (true, strides) => [strides[1], strides[0]],
        };
        let d = &operands.d;
        let gemm = RawHalfGemm {
            m,
            n,
            k,
            ab_type: op.ab_type(),
            a: operands.a.address(),
            a_strides: strides(&operands.a, layout.a_begins_with_k()),
            b: operands.b.address(),
            b_strides: strides(&operands.b, layout.b_begins_with_k()),
            c: d.address(),
            c_pitch: d.strides()[0],
            d: d.address(),
            d_pitch: d.strides()[0],
            d_type: d.dtype(),
        };
        let null = RawHalfGemm { a: 0, ..gemm };
        // SAFETY: the operands are tensors of this device that live until it is done; a null pointer is refused.
        let refused = unsafe {
            half_gemm_raw(&setup.device, &gemm, &GemmOptions::default())?;
            half_gemm_raw(&setup.device, &null, &GemmOptions::default())
        };
        setup.device.synchronize()?;
        ensure(d.to_bytes()? == by_tensors.d.to_bytes()?, || {
            format!("{spec}: other bits than tensors give")
        })?;
        ensure(matches!(&refused, Err(error) if error.argument() == Some("a")), || format!("{refused:?}"))?;
        count += 1;
    }
    Ok(format!("{count} layouts, the bits of the tensors"))
}

fn bad_arguments(setup: &Setup, op: Op) -> Result<String, Failure> {
    let (device, dtype) = (&setup.device, op.ab_type());
    let other = if op == Op::Bf16 { DType::F16 } else { DType::Bf16 };
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, device);
    let (a, b) = (new(dtype, &[8, 64])?, new(dtype, &[24, 64])?);
    let mut count = 0;
    let mut refuse = |a: &Tensor, b: &Tensor, d: &Tensor, argument: &str| -> Result<(), Failure> {
        count += 1;
        let result = half_gemm(GemmLayout::Nt, a, b, Addend::None, &mut d.clone(), &GemmOptions::default());
        ensure(matches!(&result, Err(error) if error.argument() == Some(argument)), || {
            format!("expected `{argument}` to be refused, got {result:?}")
        })
    };
    let d = new(dtype, &[8, 24])?;
    refuse(&new(DType::F32, &[8, 64])?, &b, &d, "a")?;
    refuse(&a, &new(other, &[24, 64])?, &d, "b")?;
    refuse(&a, &b, &new(other, &[8, 24])?, "d")?;
    refuse(&a, &new(dtype, &[24, 72])?, &d, "b")?;
    refuse(&a, &b, &new(dtype, &[8, 25])?, "d")?;
    refuse(&a, &b, &new(dtype, &[24, 8])?.transpose(0, 1)?, "d")?;
    // Rows that begin at 8 bytes, and an address that does.
    refuse(&new(dtype, &[8, 68])?.narrow(1, 0, 64)?, &b, &d, "a")?;
    refuse(&a, &new(dtype, &[24, 72])?.narrow(1, 4, 64)?, &d, "b")?;
    // D inside of A.
    let one = new(dtype, &[64, 64])?;
    refuse(&one.narrow(0, 0, 8)?, &b, &one.narrow(0, 4, 8)?.narrow(1, 0, 24)?, "a")?;
    Ok(format!("{count} refused, each with its name"))
}
