//! Whether the GPU and the simulator agree.

use std::fmt::Display;

use oxigemm::plan::{self, Choice, Family, Limits, Plan, Shape};
use oxigemm::sim::Options;
use oxigemm::{DType, Device, GemmLayout, GemmOptions, Sim};
use oxigemm_kernels::grouping::GroupLayout;
use oxigemm_kernels::launch::Config;

use super::grouped::{layouts, spec};
use super::products::{ORDERS, combinations, launches};
use super::{Check, Setup, ensure, kgrouped, summed};
use crate::grouped::{GroupedHost, GroupedSpec};
use crate::kgrouped::KGroupedHost;
use crate::problem::{Host, ScaleMode, Spec};
use crate::task::shape;
use crate::{Failure, Op};

/// Cases of each kernel.
const CASES: usize = 8;
/// Small, with tails and without, a short and a deep K.
const SHAPES: [[usize; 3]; 5] =
    [[8, 64, 512], [66, 136, 656], [130, 264, 384], [17, 72, 2100], [1, 200, 100]];

pub fn checks() -> Vec<Check> {
    vec![
        Check::on_gpu("the simulator gives the same bits", same_bits),
        Check::on_gpu("the simulator gives the same bits of groups", same_bits_of_groups),
        Check::on_gpu("the simulator gives the same bits of groups along K", same_bits_of_k_groups),
        Check::on_gpu(
            "the simulator gives the same bits where tiles take K from its end",
            same_bits_from_the_end,
        ),
        Check::on_gpu("the simulator gives the same bits of sums of products", same_bits_of_sums),
        Check::on_gpu("the simulator gives the same bits of logits", super::indexer::same_bits_as_simulated),
        Check::on_gpu(
            "the simulator gives the same bits of hyper-connections",
            super::hc::same_bits_as_simulated,
        ),
    ]
}

/// The same inputs on the GPU and in the simulator, for every kernel, launch, type, addend and layout in turn.
fn same_bits(setup: &Setup) -> Result<String, Failure> {
    let limits = setup.limits()?;
    let mut compared = Compared::new(setup);
    for (i, config) in Config::dense().enumerate() {
        for case in (0..CASES).step_by(if setup.quick { 4 } else { 1 }) {
            let (spec, options) = dense_case(config, [i, case], &limits);
            let host = Host::draw(spec)?;
            compared.add(&config.name(), &spec, spec.d_type, |device| dense_bits(&host, &options, device))?;
        }
    }
    Ok(compared.summary())
}

/// One of the [`CASES`] of the `i`-th kernel.
fn dense_case(config: Config, [i, case]: [usize; 2], limits: &Limits) -> (Spec, GemmOptions) {
    let combinations: Vec<_> = combinations().collect();
    let (turn, family) = (i + case, config.family());
    let [m, n, k] = SHAPES[turn % SHAPES.len()];
    // Steps that have no divisor in common with the lists reach all of their entries.
    let (d_type, addend, sfa) = combinations[turn * 5 % combinations.len()];
    let sfb = ORDERS[(turn + turn / 4) % ORDERS.len()];
    let spec = Spec::of_family(family, [m, n, k]);
    // The other type of FP16 is its own.
    let d_type = if d_type == DType::F32 { d_type } else { spec.d_type };
    let scales = match family {
        // What has a scale for each row of B has no other.
        Family::Fp8Rows => ScaleMode::Fine,
        _ => [ScaleMode::Fine, ScaleMode::Row, ScaleMode::Fine, ScaleMode::Tensor][case % 4],
    };
    // Every layout in turn, where they share kernels.
    let layout = if family.has_scales() { GemmLayout::ALL[turn % 4] } else { spec.layout };
    let spec = Spec { d_type, addend, scales, layout, sfa, sfb, seed: turn as u64, ..spec };
    let shape = Shape { m: m as u32, n: n as u32, k: k as u32 };
    let fits = |choice: &Choice| Plan::of(*choice, shape, limits).is_some();
    let choices: Vec<Choice> = launches(config).into_iter().filter(fits).collect();
    let choice = Some(choices[turn * 5 % choices.len()]);
    (spec, GemmOptions { choice, ..Default::default() })
}

/// The bits of a product on a device.
fn dense_bits(host: &Host, options: &GemmOptions, device: &Device) -> Result<Vec<u8>, Failure> {
    let mut operands = host.upload(device)?;
    operands.run(options)?;
    Ok(operands.d.to_bytes()?)
}

/// What was computed on the GPU and in the simulator, and had the same bits.
struct Compared<'a> {
    setup: &'a Setup,
    simulated: Device,
    cases: usize,
    elements: usize,
}

impl<'a> Compared<'a> {
    fn new(setup: &'a Setup) -> Self {
        let simulated = Device::Sim(Sim::with_options(Options { hazards: false, ..Options::default() }));
        Compared { setup, simulated, cases: 0, elements: 0 }
    }

    /// Compares what `bits` gives on both devices: elements of a type, of a problem that a kernel serves.
    fn add(
        &mut self,
        kernel: &str,
        spec: &impl Display,
        d_type: DType,
        bits: impl Fn(&Device) -> Result<Vec<u8>, Failure>,
    ) -> Result<(), Failure> {
        self.setup.now(format!("{spec} on both"));
        let (gpu, sim) = (bits(&self.setup.device)?, bits(&self.simulated)?);
        let size = d_type.size();
        ensure(gpu.len() == sim.len(), || format!("{spec}: {} and {} bytes", gpu.len(), sim.len()))?;
        let differ = gpu.chunks(size).zip(sim.chunks(size)).filter(|(x, y)| x != y).count();
        let all = gpu.len() / size;
        ensure(differ == 0, || format!("{spec} by {kernel}: {differ} of {all} elements differ"))?;
        self.cases += 1;
        self.elements += all;
        Ok(())
    }

    fn summary(&self) -> String {
        format!("{} products, {} elements, no bit differs", self.cases, self.elements)
    }
}

/// The same for every kernel, launch and layout of groups; rows of no group are compared too.
fn same_bits_of_groups(setup: &Setup) -> Result<String, Failure> {
    let mut compared = Compared::new(setup);
    for (i, config) in Config::grouped().chain(Config::batched()).enumerate() {
        for (turn, choice) in launches(config).into_iter().enumerate() {
            let options = GemmOptions { choice: Some(choice), ..Default::default() };
            let (op, operands) = Op::of(config.family());
            for layout in layouts(&config) {
                let rows = if layout == GroupLayout::All { &[70; 3][..] } else { &[70, 0, 1, 129, 16] };
                let spec = spec(op, layout, rows, [136, 656], i + turn);
                let spec = GroupedSpec { operands, ..spec };
                let host = GroupedHost::draw(spec)?;
                compared.add(&config.name(), &host.spec, host.spec.d_type, |device| {
                    grouped_bits(&host, &options, device)
                })?;
            }
        }
    }
    Ok(compared.summary())
}

/// The bits of groups on a device, with what is of no group.
fn grouped_bits(host: &GroupedHost, options: &GemmOptions, device: &Device) -> Result<Vec<u8>, Failure> {
    let mut operands = host.upload(device)?;
    operands.run(options)?;
    Ok(operands.d_memory.to_bytes()?)
}

/// The same for every kernel and launch with groups along K.
fn same_bits_of_k_groups(setup: &Setup) -> Result<String, Failure> {
    let mut compared = Compared::new(setup);
    for (i, config) in Config::k_grouped().enumerate() {
        let form = kgrouped::form(&config)?;
        for (j, choice) in launches(config).into_iter().enumerate() {
            let options = GemmOptions { choice: Some(choice), ..Default::default() };
            for turn in 0..3 {
                let spec = kgrouped::spec(form, &[656, 0, 1, 130, 16], [70, 136], 4 * i + j + turn);
                let host = KGroupedHost::draw(spec)?;
                compared.add(&config.name(), &host.spec, host.spec.d_type, |device| {
                    let mut operands = host.upload(device)?;
                    operands.run(&options)?;
                    Ok(operands.d_memory.to_bytes()?)
                })?;
            }
        }
    }
    Ok(compared.summary())
}

/// The same where every other tile of a cluster takes K from its end.
fn same_bits_from_the_end(setup: &Setup) -> Result<String, Failure> {
    let mut compared = Compared::new(setup);
    for case in FROM_THE_END {
        let (spec, options) = case.dense()?;
        let host = Host::draw(spec)?;
        compared.add(case.choice, &spec, spec.d_type, |device| dense_bits(&host, &options, device))?;
    }
    for case in GROUPS_FROM_THE_END {
        let (spec, options) = case.grouped()?;
        let host = GroupedHost::draw(spec)?;
        compared
            .add(case.choice, &host.spec, host.spec.d_type, |device| grouped_bits(&host, &options, device))?;
    }
    Ok(compared.summary())
}

/// A product of which few blocks have several tiles.
#[derive(Clone, Copy)]
struct Turning {
    choice: &'static str,
    num_sms: u32,
    dims: [usize; 3],
}

/// FP8 turns where K is whole groups of scales, here two of them; of the last, a tile is shared out by clusters.
const FROM_THE_END: [Turning; 5] = [
    Turning { choice: "wide_256x128_s3_c1x1", num_sms: 1, dims: [260, 100, 2048] },
    Turning { choice: "wide_128x192_s4_c2x1", num_sms: 2, dims: [300, 200, 4096] },
    Turning { choice: "bf16_wide_nt_128x256_s3_c1x1", num_sms: 1, dims: [140, 260, 1100] },
    Turning { choice: "fp16_wide_nn_128x128_s6_c1x2", num_sms: 2, dims: [140, 260, 1100] },
    Turning { choice: "wide_shared_256x128_s3_c1x1", num_sms: 2, dims: [1034, 100, 2048] },
];

/// Groups turn where they have eight tiles or more, and rows 6 KB.
const GROUPS_FROM_THE_END: [Turning; 4] = [
    Turning { choice: "wide_grouped_64x128_s8_c1x1", num_sms: 2, dims: [500, 100, 6144] },
    Turning { choice: "wide_grouped_256x128_s3_c1x2", num_sms: 4, dims: [1900, 200, 6144] },
    Turning { choice: "bf16_wide_grouped_nt_64x128_s8_c1x1", num_sms: 2, dims: [500, 100, 3080] },
    Turning { choice: "fp16_wide_grouped_nn_64x128_s8_c2x1", num_sms: 4, dims: [1000, 100, 3080] },
];

impl Turning {
    fn options(&self) -> Result<(Family, GemmOptions), Failure> {
        let choice =
            plan::parse(self.choice).ok_or_else(|| format!("no choice is called {}", self.choice))?;
        let options = GemmOptions { choice: Some(choice), num_sms: Some(self.num_sms), ..Default::default() };
        Ok((choice.config().family(), options))
    }

    fn dense(&self) -> Result<(Spec, GemmOptions), Failure> {
        let (family, options) = self.options()?;
        Ok((Spec::of_family(family, self.dims), options))
    }

    fn grouped(&self) -> Result<(GroupedSpec, GemmOptions), Failure> {
        let (family, options) = self.options()?;
        let [rows, n, k] = self.dims;
        let (op, operands) = Op::of(family);
        let spec = GroupedSpec::new(GroupLayout::Ends, vec![rows], n, k);
        Ok((spec.of(op, operands), options))
    }
}

/// The same for every kernel and launch that adds products up.
fn same_bits_of_sums(setup: &Setup) -> Result<String, Failure> {
    let (mut compared, limits) = (Compared::new(setup), setup.limits()?);
    for config in Config::summed() {
        let (op, _) = Op::of(config.family());
        for (turn, choice) in launches(config).into_iter().enumerate() {
            let spec = summed::spec(op, 5, [66, 136, 100], turn);
            if Plan::of_summed(choice, shape(&spec), &limits).is_none() {
                continue;
            }
            let options = GemmOptions { choice: Some(choice), ..Default::default() };
            let host = Host::draw(spec)?;
            compared.add(&config.name(), &spec, spec.d_type, |device| dense_bits(&host, &options, device))?;
        }
    }
    ensure(compared.cases > 0, || "no launch fits".to_owned())?;
    Ok(compared.summary())
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxigemm_kernels::launch::Launch;

    #[test]
    fn what_is_said_to_take_k_from_its_end_does() {
        let turns = |case: &Turning, plan: Option<Plan>, tiles: [u32; 2]| {
            let Launch { grid, cluster, .. } = plan.as_ref().expect("it serves the shape").launch;
            assert!(plan.is_some_and(|plan| plan.launch.turns_back()), "{}", case.choice);
            assert!(
                tiles[0] * tiles[1] > grid[0],
                "{}: a tile for each of {grid:?} by {cluster}",
                case.choice
            );
        };
        let limits = |case: &Turning| Limits::h200().restricted_to(case.num_sms);
        for case in FROM_THE_END {
            let (spec, options) = case.dense().unwrap();
            let choice = options.choice.unwrap();
            turns(&case, Plan::of(choice, shape(&spec), &limits(&case)), tiles(choice, case.dims));
        }
        for case in GROUPS_FROM_THE_END {
            let (spec, options) = case.grouped().unwrap();
            let choice = options.choice.unwrap();
            turns(&case, Plan::of_grouped(choice, &spec.shape(), &limits(&case)), tiles(choice, case.dims));
        }
    }

    /// Tiles of blocks along M and N.
    fn tiles(choice: Choice, [m, n, _]: [usize; 3]) -> [u32; 2] {
        let tile = match choice.config() {
            Config::Wide(config) => [config.block_m, config.block_n],
            Config::HalfWide(config) => [config.block_m, config.block_n],
            other => panic!("{} has few rows", other.name()),
        };
        [(m as u32).div_ceil(tile[0]), (n as u32).div_ceil(tile[1])]
    }

    #[test]
    fn at_least_a_hundred_products_are_compared() {
        assert!(Config::dense().count() * CASES >= 100);
    }

    /// The first kernel of every family multiplies the operands of its cases, of which these have all kinds of scales.
    #[test]
    fn kernels_multiply_the_operands_that_are_drawn_for_them() {
        let device = Device::Sim(Sim::with_options(Options { hazards: false, ..Options::default() }));
        let limits = device.limits().expect("the simulator has some");
        let mut families = Vec::new();
        for (i, config) in Config::dense().enumerate() {
            if families.contains(&config.family()) {
                continue;
            }
            families.push(config.family());
            for case in 0..CASES / 2 {
                let (spec, options) = dense_case(config, [i, case], limits);
                let bits = Host::draw(spec).and_then(|host| dense_bits(&host, &options, &device));
                assert!(bits.is_ok(), "{spec} by {}: {}", config.name(), bits.unwrap_err());
            }
        }
        assert!(families.contains(&Family::Fp8Rows) && families.len() > 3);
    }
}
