//! Checks of batches of products with 16-bit operands that are added up.

use oxigemm::plan::{Choice, Plan};
use oxigemm::{Addend, DType, GemmLayout, GemmOptions, Tensor, einsum, random};
use oxigemm_kernels::launch::Config;

use super::products::{ADDENDS, launches, products};
use super::{Check, Setup, ensure};
use crate::problem::{Host, Spec};
use crate::task::shape;
use crate::{Failure, Op};

pub fn checks() -> Vec<Check> {
    let mut checks = vec![
        Check::anywhere("sums of products of all sizes", sizes),
        Check::anywhere("random sums of products", random_sums),
        Check::anywhere("bad arguments of sums of products", bad_arguments),
        Check::anywhere("repeats of sums of products give the same bits", repeats),
    ];
    for config in Config::summed() {
        checks.push(Check::with_kernels(format!("kernel {}", config.name()), move |setup| {
            kernel(setup, config)
        }));
    }
    checks
}

/// A sum of products of `[m, n, k]` each.
pub fn spec(op: Op, slabs: usize, [m, n, k]: [usize; 3], turn: usize) -> Spec {
    Spec {
        slabs: Some(slabs),
        d_type: op.d_types()[turn / 3 % 2],
        addend: ADDENDS[turn % ADDENDS.len()],
        d_padding: [0, 8, 1][turn / 2 % 3],
        seed: turn as u64,
        ..Spec::of(op, GemmLayout::Nt, [m, n, slabs * k])
    }
}

const OPS: [Op; 2] = [Op::Bf16, Op::Fp16];

fn sizes(setup: &Setup) -> Result<String, Failure> {
    let shapes = [
        (1, [1, 1, 1]),
        (3, [0, 8, 16]),
        (0, [5, 8, 16]),
        (3, [5, 8, 0]),
        (200, [3, 17, 8]),
        (9, [128, 384, 128]),
        (5, [129, 65, 63]),
        (2, [64, 64, 640]),
        (64, [70, 40, 65]),
    ];
    let cases = shapes.into_iter().enumerate().flat_map(|(i, (slabs, dims))| {
        OPS.into_iter()
            .enumerate()
            .map(move |(j, op)| (spec(op, slabs, dims, i + 4 * j), GemmOptions::default()))
    });
    products(setup, cases)
}

fn random_sums(setup: &Setup) -> Result<String, Failure> {
    let cases = (0..setup.count(80)).map(|turn| {
        let draw = |which: u64, end: usize| {
            (random::bits(setup.seed ^ 0x73, 100 * turn as u64 + which) % end as u64) as usize
        };
        let (m, n, k) = (1 + draw(0, 300), 1 + draw(1, 300), 1 + draw(2, 400));
        let most = (setup.largest() / (m * n * k)).clamp(1, 300);
        (spec(OPS[turn % 2], 1 + draw(3, most), [m, n, k], draw(4, 60)), GemmOptions::default())
    });
    products(setup, cases)
}

fn kernel(setup: &Setup, config: Config) -> Result<String, Failure> {
    let (limits, (op, _)) = (setup.limits()?, Op::of(config.family()));
    let simulated = setup.device.as_sim().is_some();
    let dims = if simulated { [66, 136, 72] } else { [130, 392, 200] };
    let mut cases = Vec::new();
    for (turn, choice) in launches(config).into_iter().enumerate() {
        for slabs in [1, 5, 24] {
            let spec = spec(op, slabs, dims, turn + slabs);
            let fits = |choice: &Choice| Plan::of_summed(*choice, shape(&spec), &limits).is_some();
            if fits(&choice) {
                cases.push((spec, GemmOptions { choice: Some(choice), ..Default::default() }));
            }
        }
    }
    ensure(cases.len() > 12, || format!("only {} launches fit", cases.len()))?;
    // The simulator takes its time for each.
    let step = match (simulated, setup.quick) {
        (true, true) => 11,
        (true, false) => 4,
        (false, _) => 1,
    };
    products(setup, cases.into_iter().step_by(step))
}

fn repeats(setup: &Setup) -> Result<String, Failure> {
    let (slabs, dims) = match setup.device.as_cuda() {
        Some(_) => (33, [256, 384, 384]),
        None => (5, [20, 40, 72]),
    };
    for op in OPS {
        let mut operands = Host::draw(spec(op, slabs, dims, 0))?.upload(&setup.device)?;
        setup.same_bits_again(&op, || {
            operands.poison()?;
            operands.run(&GemmOptions::default())?;
            Ok(operands.d.to_bytes()?)
        })?;
    }
    Ok("all alike".to_owned())
}

fn bad_arguments(setup: &Setup) -> Result<String, Failure> {
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &setup.device);
    let (a, b) = (new(DType::Bf16, &[3, 8, 16])?, new(DType::Bf16, &[3, 24, 16])?);
    let d = new(DType::F32, &[8, 24])?;
    let run = |a: &Tensor, b: &Tensor, d: &Tensor| {
        einsum("bmk,bnk->mn", a, b, Addend::None, &mut d.clone(), &GemmOptions::default())
    };
    for (result, argument) in [
        (run(&new(DType::Bf16, &[8, 16])?, &b, &d), "a"),
        (run(&a, &new(DType::Bf16, &[2, 24, 16])?, &d), "b"),
        (run(&a, &new(DType::F16, &[3, 24, 16])?, &d), "b"),
        (run(&a, &b, &new(DType::F32, &[24, 8])?), "d"),
    ] {
        ensure(matches!(&result, Err(error) if error.argument() == Some(argument)), || {
            format!("{argument}: {result:?}")
        })?;
    }
    ensure(run(&a, &b, &d).is_ok(), || "good arguments were refused".to_owned())?;
    Ok("refused, each with its name".to_owned())
}
