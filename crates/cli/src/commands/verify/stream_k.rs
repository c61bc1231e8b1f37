//! Checks of the stream-K tail: tiles of the last wave that clusters split.

use oxigemm::plan;
use oxigemm::{DType, GemmLayout, GemmOptions};
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::operand::f16::Half;
use oxigemm_testkit::plan::plan as plan_of;
use oxigemm_testkit::{AddendKind, BF16 as OF_BF16, Effort, FP16 as OF_FP16, Failure, GemmCase, GemmData};

use super::random::{ADDENDS, ORDERS};
use super::{Check, Setup, ensure};

pub fn checks(setup: &Setup) -> Vec<Check> {
    if !GemmKernel::all(setup.arch()).any(|kernel| kernel.spec().is_stream_k()) {
        return vec![Check::absent("stream-K")];
    }
    vec![
        Check::with_kernels("stream-K: tiles that clusters split", split_tiles),
        Check::on_gpu("stream-K: split tiles in streams and graphs", split_tiles_side_by_side),
    ]
}

/// Kernel, cluster, dimensions, and how many SMs there are.
type Split = (&'static str, &'static str, [usize; 3], Option<u32>);

/// Cases with tiles that clusters split, where there are so many SMs.
fn cases(setup: &Setup) -> Result<Vec<(GemmCase, GemmOptions)>, Failure> {
    const FP8: &str = "fp8_persistent_stream_k_256x128_s3";
    const BF16: &str = "bf16_persistent_stream_k_nt_128x256_s3";
    const FP16: &str = "fp16_persistent_stream_k_nt_128x128_s6";
    let all: &[Split] = &[
        (FP8, "c1x1", [520, 100, 2000], Some(2)),
        (BF16, "c1x1", [260, 200, 1000], Some(2)),
        (FP8, "c1x2", [520, 136, 2048], Some(4)),
        (FP16, "c1x2", [260, 136, 1100], Some(4)),
        (FP8, "c2x1", [258, 264, 2300], Some(4)),
        (BF16, "c2x1", [130, 520, 1000], Some(4)),
        (FP8, "c1x1", [1100, 72, 4096], Some(3)),
        (FP16, "c1x1", [600, 72, 2048], Some(3)),
        (FP8, "c1x2", [5120, 5120, 5120], None),
        (BF16, "c1x1", [2347, 4096, 14336], None),
        (FP8, "c2x1", [2300, 1200, 4096], Some(24)),
        (FP16, "c2x1", [2300, 1200, 4096], Some(24)),
    ];
    let few = setup.device.as_cuda().is_none();
    let case = |(i, &(kernel, cluster, [m, n, k], num_sms)): (usize, &Split)| {
        let choice = plan::parse(&format!("sm90_{kernel}_{cluster}")).expect("the name of a choice");
        let plain = match choice.operands().as_f16() {
            None => GemmCase { sfa: ORDERS[i / 2 % 4], ..GemmCase::fp8(m, n, k) },
            Some(operands) => {
                let types = if operands.element == Half::Bf16 { OF_BF16 } else { OF_FP16 };
                GemmCase::dense(types, GemmLayout::Nt, [m, n, k])
            }
        };
        let d_type = if i / 2 % 2 == 0 { plain.d_type } else { DType::F32 };
        let case = GemmCase { d_type, addend: ADDENDS[i / 2 % 3], ..plain };
        let limits = setup.limits()?.restricted_to(num_sms.unwrap_or(u32::MAX));
        let plan = plan_of(&case, Some(choice), &limits);
        ensure(plan.is_some_and(|plan| plan.launch.stream_k.tiles > 0), || {
            format!("{case}: no tile is split")
        })?;
        Ok((case, GemmOptions { config: Some(choice), num_sms, ..Default::default() }))
    };
    all.iter().take(if few { 2 } else { all.len() }).enumerate().map(case).collect()
}

fn split_tiles(setup: &Setup) -> Result<String, Failure> {
    let (cases, repeats) = (cases(setup)?, if setup.device.as_cuda().is_some() { 20 } else { 2 });
    for (case, options) in &cases {
        let data = GemmData::draw(case.clone())?;
        let mut first = None;
        for repeat in 0..repeats {
            let mut gemm = data.upload(&setup.device)?;
            gemm.run(options)?;
            let found = gemm.bits()?;
            if first.is_none() {
                let verdict = gemm.judge(Effort::QUICK)?;
                ensure(verdict.right, || format!("{case}: {verdict:?}"))?;
            }
            ensure(*first.get_or_insert_with(|| found.clone()) == found, || {
                format!("{case}: repeat {repeat} gave other bits")
            })?;
        }
    }
    Ok(format!("{} GEMMs, {repeats} times each", cases.len()))
}

/// Each stream has a workspace of its own for partial accumulators, and graphs have none.
fn split_tiles_side_by_side(setup: &Setup) -> Result<String, Failure> {
    let rounds = if setup.device.as_cuda().is_some() { 20 } else { 1 };
    let streams = (0..3).map(|_| setup.device.new_stream()).collect::<Result<Vec<_>, _>>()?;
    for (case, options) in cases(setup)? {
        // What is added to would be another number each time.
        let data = GemmData::draw(GemmCase { addend: AddendKind::None, ..case.clone() })?;
        let mut called = Vec::new();
        let mut graphs = Vec::new();
        for stream in &streams {
            let options = GemmOptions { stream: Some(stream.clone()), ..options.clone() };
            let (mut own, mut captured) = (data.upload(&setup.device)?, data.upload(&setup.device)?);
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
        let [expected, replayed] = [called[0].0.bits()?, graphs[0].0.bits()?];
        for ((own, _), (captured, _)) in called.iter().zip(&graphs) {
            let same = own.bits()? == expected && captured.bits()? == replayed;
            ensure(same, || format!("{case}: streams have other bits than the first"))?;
        }
        for gemm in [&mut called[0].0, &mut graphs[0].0] {
            let verdict = gemm.judge(Effort::QUICK)?;
            ensure(verdict.right, || format!("{case}: {verdict:?}"))?;
        }
    }
    Ok(format!("three streams and three graphs, {rounds} times"))
}
