//! Checks of every kernel, forced: every launch, with shapes, groups, types and epilogues of all kinds.

use oxigemm::plan::{self, GemmConfig};
use oxigemm::{Addend, Arch, DType, Device, GemmOptions, m_grouped_nvfp4_gemm_nt, nvfp4_gemm_nt};
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_testkit::plan::{case_of, k_grouped_form_of, operands_of, plan as plan_of};
use oxigemm_testkit::{AddendKind, FP8, Failure, GemmCase, GroupLayout, OperandTypes, ScaleOrder};

use super::random::{ADDENDS, Draw, GROUP_LAYOUTS, ORDERS, k_grouped, m_grouped, summed};
use super::{Check, Setup, ensure, gemms};

/// What a check of a kernel does.
type KernelCheck = fn(&Setup, GemmKernel) -> Result<String, Failure>;

pub fn checks(setup: &Setup) -> Vec<Check> {
    let arch = setup.arch();
    let dense = |config: &GemmKernel| case_of(config, [1, 1, 1]).e5m2.is_none();
    let mut kernels: Vec<(GemmKernel, KernelCheck)> =
        GemmKernel::dense(arch).filter(dense).map(|config| (config, dense_kernel as KernelCheck)).collect();
    let m_grouped = GemmKernel::m_grouped(arch).chain(GemmKernel::batched(arch));
    kernels.extend(m_grouped.map(|config| (config, m_grouped_kernel as KernelCheck)));
    kernels.extend(GemmKernel::summed(arch).map(|config| (config, summed_kernel as KernelCheck)));
    kernels.extend(GemmKernel::k_grouped(arch).map(|config| (config, k_grouped_kernel as KernelCheck)));
    kernels.extend(GemmKernel::fused(arch).map(|config| (config, fused_kernel as KernelCheck)));
    kernels.extend(
        GemmKernel::fused_m_grouped(arch).map(|config| (config, fused_grouped_kernel as KernelCheck)),
    );
    // Every one of them is tried as a test of the library too. Those of tensor memory have large tiles.
    let few = setup.is_thrifty() && arch != Arch::Sm90a;
    let check = |(i, (config, check)): (usize, (GemmKernel, KernelCheck))| {
        let plain_nvfp4 = operands_of(&config).0.is_nvfp4() && config.fusion() == Fusion::None;
        let check = if plain_nvfp4 { without_factor } else { check };
        let run = move |setup: &Setup| check(setup, config);
        let check = Check::with_kernels(format!("kernel {}", config.name()), run);
        Check { long: few && i % 10 != 0, ..check }
    };
    kernels.into_iter().enumerate().map(check).collect()
}

/// Every way to launch a kernel, but only some numbers of stages.
pub fn launches(kernel: GemmKernel) -> Vec<GemmConfig> {
    let some = |config: &GemmConfig| !config.is_split_k() || [2, 3, 6, 16].contains(&config.stages);
    GemmConfig::all(kernel).filter(some).collect()
}

/// The same, but one number of stages for every way to split K.
pub fn some_launches(kernel: GemmKernel) -> impl Iterator<Item = GemmConfig> {
    launches(kernel).into_iter().filter(|config| {
        let stages = if [1, 4].contains(&config.split_k) { 3 } else { 2 };
        !config.is_split_k() || config.stages == stages
    })
}

/// The launches of a kernel that serve a case.
pub fn fitting(setup: &Setup, config: GemmKernel, case: &GemmCase) -> Result<Vec<GemmConfig>, Failure> {
    let limits = setup.limits()?;
    let fits = |choice: &GemmConfig| plan_of(case, Some(*choice), &limits).is_some();
    Ok(launches(config).into_iter().filter(fits).collect())
}

/// Types of D, addends and layouts of scales.
pub fn combinations() -> impl Iterator<Item = (DType, AddendKind, ScaleOrder)> {
    [DType::Bf16, DType::F32]
        .into_iter()
        .flat_map(|d_type| ADDENDS.into_iter().map(move |addend| (d_type, addend)))
        .flat_map(|(d_type, addend)| ORDERS.into_iter().map(move |order| (d_type, addend, order)))
}

fn by(choice: GemmConfig) -> GemmOptions {
    GemmOptions { config: Some(choice), ..Default::default() }
}

/// The tile and the stages of a persistent kernel.
fn tile(kernel: &GemmKernel) -> Result<[usize; 3], Failure> {
    if kernel.is_split_k() {
        return Err("only persistent kernels have groups".into());
    }
    let [block_m, block_n] = kernel.tile();
    Ok([block_m, block_n, *kernel.stages().start()].map(|x| x as usize))
}

/// Every output type, addend and layout of scales, with launches and shapes of all kinds.
fn dense_kernel(setup: &Setup, config: GemmKernel) -> Result<String, Failure> {
    let simulated = setup.device.as_sim().is_some();
    let (types, layout) = operands_of(&config);
    let fp8 = types.has_scales();
    let mut draw = Draw::new(setup, if fp8 { 4 } else { 31 });
    // What the benchmark takes: whole tiles, aligned output, a deep K.
    let whole = match (simulated, fp8) {
        (true, true) => [128, 128, 384],
        (true, false) => [128, 128, 256],
        (false, _) => [256, 512, 768],
    };
    let whole = GemmCase::dense(types, layout, whole);
    let mut shapes = Vec::new();
    if fp8 {
        for (i, (d_type, addend, sfa)) in combinations().enumerate() {
            let drawn = GemmCase { layout, ..draw.scaled(types) };
            let (sfb, seed) = (ORDERS[(i + i / 4) % 4], drawn.seed);
            let case = if i % 3 == 0 { GemmCase { seed, ..whole.clone() } } else { drawn };
            shapes.push((i, GemmCase { d_type, addend, sfa, sfb, ..case }));
        }
    } else {
        let types_and_addends =
            types.d_types.into_iter().flat_map(|d_type| ADDENDS.map(|addend| (d_type, addend)));
        for (i, (d_type, addend)) in types_and_addends.enumerate() {
            for case in [draw.dense(types, layout), whole.clone()] {
                shapes.push((i, GemmCase { d_type, addend, ..case }));
            }
        }
    }
    let mut cases = Vec::new();
    for (i, case) in shapes {
        let choices = fitting(setup, config, &case)?;
        ensure(!choices.is_empty(), || format!("{case}: no launch fits"))?;
        cases.push((case, by(choices[i % choices.len()])));
    }
    // Every launch at least once, also where there are more of them than combinations.
    let dims = match (simulated, fp8) {
        (true, true) => [66, 136, 640],
        (true, false) => [66, 136, 320],
        (false, _) => [130, 392, 1152],
    };
    let case = GemmCase::dense(types, layout, dims);
    cases.extend(fitting(setup, config, &case)?.into_iter().map(|choice| (case.clone(), by(choice))));
    // The simulator takes its time for each; three and thirteen have nothing in common with the lists above.
    let step = match (simulated, setup.quick) {
        (true, true) => 29,
        (true, false) | (false, true) => 3,
        (false, false) => 1,
    };
    gemms(setup, cases.into_iter().step_by(step))
}

/// The layouts of groups that a kernel serves.
pub fn group_layouts(config: &GemmKernel) -> Vec<GroupLayout> {
    match operands_of(config).0.has_scales() {
        _ if config.is_batched() => vec![GroupLayout::All],
        true => GROUP_LAYOUTS.to_vec(),
        false => GROUP_LAYOUTS.into_iter().chain([GroupLayout::All]).collect(),
    }
}

fn m_grouped_kernel(setup: &Setup, config: GemmKernel) -> Result<String, Failure> {
    let ([block_m, block_n, stages], block_k) = (tile(&config)?, config.operands().block_k() as usize);
    let (types, operands) = operands_of(&config);
    let of = |layout, rows: &[usize], [n, k]: [usize; 2], turn| GemmCase {
        layout: operands,
        ..m_grouped(types, layout, rows, [n, k], turn)
    };
    // More tiles than CTAs, an odd number of them, more blocks of K than stages, rows for one warpgroup only.
    let rows = [block_m + 3, 0, 1, block_m / 2, 2 * block_m + 1];
    let mut cases = Vec::new();
    for (i, choice) in launches(config).into_iter().enumerate() {
        for (j, layout) in group_layouts(&config).into_iter().enumerate() {
            let options = |num_sms| GemmOptions { num_sms, ..by(choice) };
            // The GEMMs of a batch have the same number of rows.
            let (several, few) = match layout {
                GroupLayout::All => ([block_m + 3; 5], [block_m / 2; 2]),
                _ => (rows, [rows[2], rows[3]]),
            };
            let deep = [2 * block_n + 8, (stages + 2) * block_k - [56, 0][j % 2]];
            cases.push((of(layout, &several, deep, i + j), options(Some(4))));
            cases.push((of(layout, &few, [block_n - 8, block_k - 28], i + j + 1), options(None)));
        }
    }
    // The simulator takes its time for each.
    let step = match (setup.device.as_cuda().is_some(), setup.quick) {
        (true, _) => 1,
        (false, false) => 3,
        (false, true) => 29,
    };
    gemms(setup, cases.into_iter().step_by(step))
}

fn summed_kernel(setup: &Setup, config: GemmKernel) -> Result<String, Failure> {
    let (limits, (types, _)) = (setup.limits()?, operands_of(&config));
    let simulated = setup.device.as_sim().is_some();
    let dims = if simulated { [66, 136, 72] } else { [130, 392, 200] };
    let mut cases = Vec::new();
    for (turn, choice) in launches(config).into_iter().enumerate() {
        for count in [1, 5, 24] {
            let case = summed(types, count, dims, turn + count);
            if plan_of(&case, Some(choice), &limits).is_some() {
                cases.push((case, by(choice)));
            }
        }
    }
    ensure(cases.len() > 12, || format!("only {} launches fit", cases.len()))?;
    // The simulator takes its time for each.
    let step = match (simulated, setup.quick) {
        (true, true) => 31,
        (true, false) => 4,
        (false, _) => 1,
    };
    gemms(setup, cases.into_iter().step_by(step))
}

fn k_grouped_kernel(setup: &Setup, config: GemmKernel) -> Result<String, Failure> {
    let ([block_m, block_n, stages], block_k) = (tile(&config)?, config.operands().block_k() as usize);
    let form = k_grouped_form_of(&config).ok_or("the kernel serves no operation")?;
    let depth = (stages + 6) * block_k + 16;
    let mut cases = Vec::new();
    for (i, choice) in launches(config).into_iter().enumerate() {
        for turn in 0..6 {
            let options = |num_sms| GemmOptions { num_sms, ..by(choice) };
            // More tiles than CTAs, an odd number of them, more blocks of K than stages and than come together.
            let ks = [depth, 0, 1, 144];
            cases.push((k_grouped(form, &ks, [block_m + 3, block_n + 8], i + turn), options(Some(4))));
            let short = k_grouped(form, &[100, 300], [block_m / 2, 2 * block_n], i + turn + 1);
            cases.push((short, options(None)));
        }
    }
    // The simulator takes its time for each.
    let step = match (setup.device.as_cuda().is_some(), setup.quick) {
        (true, _) => 1,
        (false, false) => 5,
        (false, true) => 31,
    };
    gemms(setup, cases.into_iter().step_by(step))
}

/// Epilogues and shapes of all kinds.
fn fused_kernel(setup: &Setup, config: GemmKernel) -> Result<String, Failure> {
    let (limits, mut draw) = (setup.limits()?, Draw::new(setup, 42));
    let (gated, (types, _)) = (config.fusion() == Fusion::Gated, operands_of(&config));
    let count = if setup.device.as_sim().is_some() { 1 } else { 10 };
    let mut cases = Vec::new();
    for choice in some_launches(config) {
        for _ in 0..count {
            // A factor is all that the epilogue of NVFP4 has.
            let case = if types.is_nvfp4() { draw.scaled(types) } else { draw.fused(types, gated) };
            let fits = plan_of(&case, Some(choice), &limits).is_some();
            ensure(fits, || format!("{case}: no plan by {}", plan::name(&choice)))?;
            cases.push((case, by(choice)));
        }
    }
    gemms(setup, setup.thinned(cases))
}

/// Epilogues and groups of all kinds.
fn fused_grouped_kernel(setup: &Setup, config: GemmKernel) -> Result<String, Failure> {
    let [block_m, ..] = tile(&config)?;
    let (gated, (types, _)) = (config.fusion() == Fusion::Gated, operands_of(&config));
    let mut draw = Draw::new(setup, 44);
    let count = if setup.device.as_sim().is_some() { 1 } else { 10 };
    let mut cases = Vec::new();
    for choice in launches(config) {
        for _ in 0..count {
            let case = match types.is_nvfp4() {
                true => {
                    let (layout, turn) = (GROUP_LAYOUTS[draw.below(3)], draw.below(60));
                    m_grouped(types, layout, &[block_m + 3, 0, 1, 40], [144, 336], turn)
                }
                false => draw.fused_groups(types, gated, block_m),
            };
            cases.push((case, by(choice)));
        }
    }
    gemms(setup, setup.thinned(cases))
}

/// NVFP4 whose tensors have no scales, compared with the CPU: a factor takes a fused epilogue.
fn without_factor(setup: &Setup, config: GemmKernel) -> Result<String, Failure> {
    let ((types, layout), [m, n]) = (operands_of(&config), config.tile().map(|x| x as usize));
    let dense = GemmCase::dense(types, layout, [m + 3, n + 8, 640]);
    let grouped = m_grouped(types, GroupLayout::Ends, &[m + 3, 0, 1], [n + 8, 640], 0);
    let case = GemmCase { d_type: DType::F32, ..if config.is_m_grouped() { grouped } else { dense } };
    let run = |device: &Device, options: &GemmOptions| -> Result<Vec<f32>, Failure> {
        let mut gemm = case.on(device)?;
        let mut d = gemm.d.clone();
        let Some([sfa, sfb]) = &gemm.scales else { return Err("NVFP4 has scales".into()) };
        let (a, b) = ((&gemm.a, sfa), (&gemm.b, sfb));
        match gemm.row_groups() {
            Some(groups) => m_grouped_nvfp4_gemm_nt(a, b, &mut d, groups, [1.0; 2], options)?,
            None => nvfp4_gemm_nt(a, b, Addend::None, &mut d, [1.0; 2], options)?,
        }
        device.synchronize()?;
        gemm.d = d;
        let groups = 0..gemm.data.groups.len();
        Ok(groups.map(|group| gemm.result(group)).collect::<Result<Vec<_>, _>>()?.concat())
    };
    let expected = run(&Device::Cpu, &GemmOptions::default())?;
    let mut count = 0;
    for choice in setup.thinned(some_launches(config)) {
        let found = run(&setup.device, &by(choice))?;
        let norm =
            |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let error =
            norm(&mut found.iter().zip(&expected).map(|(x, y)| x - y)) / norm(&mut expected.iter().copied());
        ensure(error < 1e-5, || format!("{case} by {}: off by {error:e}", plan::name(&choice)))?;
        count += 1;
    }
    Ok(format!("{count} launches, as on the CPU"))
}

/// Operands of e5m2 in every kernel that takes them, and shared scales in every other FP8 kernel.
pub fn of_each_fp8_kernel(setup: &Setup, e5m2: bool) -> Result<Vec<(GemmCase, GemmOptions)>, Failure> {
    // FP32 scales, also where the kernel's tensor core applies others.
    let case = |config: &GemmKernel| GemmCase { types: FP8, ..case_of(config, [70, 150, 1168]) };
    let holds = |config: &GemmKernel| {
        let OperandTypes { scale_blocks, fp4, .. } = operands_of(config).0;
        scale_blocks == FP8.scale_blocks && fp4 == FP8.fp4 && case(config).e5m2.is_some() == e5m2
    };
    let nth = |(i, config): (usize, GemmKernel)| {
        let choices = fitting(setup, config, &case(&config))?;
        Ok((GemmCase { seed: i as u64, ..case(&config) }, by(choices[i % choices.len()])))
    };
    GemmKernel::dense(setup.arch()).filter(holds).enumerate().map(nth).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grouped_kernels_are_persistent() {
        for config in GemmKernel::m_grouped(Arch::Sm90a) {
            assert!(!launches(config).iter().any(GemmConfig::is_split_k));
        }
        assert!(group_layouts(&GemmKernel::batched(Arch::Sm90a).next().unwrap()) == [GroupLayout::All]);
    }
}
