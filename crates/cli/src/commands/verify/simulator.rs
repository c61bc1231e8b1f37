//! Whether the GPU and the simulator agree.

use oxigemm::plan::{self, KOrder};
use oxigemm::{Arch, DType, Device, GemmLayout, GemmOptions};
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_testkit::plan::{case_of, k_grouped_form_of, operands_of, plan as plan_of};
use oxigemm_testkit::{FP8, Failure, GemmCase, GemmData, GroupLayout, MGroups, ScaleMode};

use super::kernels::{combinations, fitting, group_layouts, launches};
use super::random::{ORDERS, k_grouped, m_grouped, summed};
use super::{Check, Setup, ensure};

/// Cases of each kernel.
const CASES: usize = 8;
/// Small, with tails and without, a short and a deep K.
const SHAPES: [[usize; 3]; 5] =
    [[8, 64, 512], [66, 136, 656], [130, 264, 384], [17, 72, 2100], [1, 200, 100]];

pub fn checks(setup: &Setup) -> Vec<Check> {
    let serpentine = match SERPENTINE.iter().any(|serpentine| serpentine.is_for(setup.arch())) {
        true => Check::on_gpu(
            "the simulator gives the same bits in serpentine K order",
            same_bits_in_serpentine_order,
        ),
        false => Check::absent("serpentine K order"),
    };
    vec![
        serpentine,
        Check::on_gpu("the simulator gives the same bits", same_bits),
        Check::on_gpu("the simulator gives the same bits of m-grouped GEMMs", same_bits_of_groups),
        Check::on_gpu("the simulator gives the same bits of k-grouped GEMMs", same_bits_of_k_groups),
        Check::on_gpu("the simulator gives the same bits of summed GEMMs", same_bits_of_sums),
        super::attention::comparison(setup),
        Check::on_gpu(
            "the simulator gives the same bits of hyper-connections",
            super::hyper_connection::same_bits_as_simulated,
        ),
    ]
}

/// The same inputs on the GPU and in the simulator, for every kernel, launch, type, addend and layout in turn.
fn same_bits(setup: &Setup) -> Result<String, Failure> {
    let mut compared = Compared::new(setup)?;
    for (i, config) in GemmKernel::dense(setup.arch()).enumerate() {
        for nth in (0..CASES).step_by(if setup.quick { 4 } else { 1 }) {
            let (case, options) = dense_case(setup, config, [i, nth])?;
            compared.add(&config.name(), case, &options)?;
        }
    }
    Ok(compared.summary())
}

/// One of the [`CASES`] of the `i`-th kernel.
fn dense_case(
    setup: &Setup,
    config: GemmKernel,
    [i, nth]: [usize; 2],
) -> Result<(GemmCase, GemmOptions), Failure> {
    let combinations: Vec<_> = combinations().collect();
    let turn = i + nth;
    // Steps that have no divisor in common with the lists reach all of their entries.
    let (d_type, addend, sfa) = combinations[turn * 5 % combinations.len()];
    let sfb = ORDERS[(turn + turn / 4) % ORDERS.len()];
    let case = case_of(&config, SHAPES[turn % SHAPES.len()]);
    // The other type of FP16 is its own.
    let d_type = if d_type == DType::F32 { d_type } else { case.d_type };
    // Kernels for other scales than 1D2D have no other granularity.
    let scales = match case.types.has_scales() && case.types != FP8 {
        true => ScaleMode::Fine,
        false => [ScaleMode::Fine, ScaleMode::Row, ScaleMode::Fine, ScaleMode::Tensor][nth % 4],
    };
    let choices = fitting(setup, config, &case)?;
    // Every layout in turn, where they share kernels.
    let shared = case.types.has_scales() && !config.operands().is_block_scaled();
    let layout = if shared { GemmLayout::ALL[turn % 4] } else { case.layout };
    let case = GemmCase { d_type, addend, scales, layout, sfa, sfb, seed: turn as u64, ..case };
    let choice = Some(choices[turn * 5 % choices.len()]);
    Ok((case, GemmOptions { config: choice, ..Default::default() }))
}

/// The bits of a case on a device, with what is around them.
fn bits(data: &GemmData, options: &GemmOptions, device: &Device) -> Result<Vec<u8>, Failure> {
    let mut gemm = data.upload(device)?;
    gemm.run(options)?;
    gemm.bits()
}

/// What was computed on the GPU and in the simulator, and had the same bits.
struct Compared<'a> {
    setup: &'a Setup,
    simulated: Device,
    cases: usize,
    elements: usize,
}

impl<'a> Compared<'a> {
    fn new(setup: &'a Setup) -> Result<Self, Failure> {
        Ok(Compared { setup, simulated: setup.simulator()?, cases: 0, elements: 0 })
    }

    /// Compares the result of a case that a kernel serves, and what is around it, on both devices.
    fn add(&mut self, kernel: &str, case: GemmCase, options: &GemmOptions) -> Result<(), Failure> {
        self.setup.now(format!("{case} on both"));
        let data = case.drawn_for(&self.setup.device)?;
        let case = &data.case;
        let (gpu, sim) = (bits(&data, options, &self.setup.device)?, bits(&data, options, &self.simulated)?);
        let size = case.d_type.size();
        ensure(gpu.len() == sim.len(), || format!("{case}: {} and {} bytes", gpu.len(), sim.len()))?;
        let differ = gpu.chunks(size).zip(sim.chunks(size)).filter(|(x, y)| x != y).count();
        let all = gpu.len() / size;
        ensure(differ == 0, || format!("{case} by {kernel}: {differ} of {all} elements differ"))?;
        self.cases += 1;
        self.elements += case.rows() * case.n;
        Ok(())
    }

    fn summary(&self) -> String {
        format!("{} GEMMs, {} elements, no bit differs", self.cases, self.elements)
    }
}

/// The same for every m-grouped kernel, launch and layout of groups.
fn same_bits_of_groups(setup: &Setup) -> Result<String, Failure> {
    let (mut compared, arch) = (Compared::new(setup)?, setup.arch());
    for (i, config) in GemmKernel::m_grouped(arch).chain(GemmKernel::batched(arch)).enumerate() {
        for (turn, choice) in launches(config).into_iter().enumerate() {
            let options = GemmOptions { config: Some(choice), ..Default::default() };
            let (types, operands) = operands_of(&config);
            for layout in group_layouts(&config) {
                let rows = if layout == GroupLayout::All { &[70; 3][..] } else { &[70, 0, 1, 129, 16] };
                let case = m_grouped(types, layout, rows, [136, 656], i + turn);
                compared.add(&config.name(), GemmCase { layout: operands, ..case }, &options)?;
            }
        }
    }
    Ok(compared.summary())
}

/// The same for every k-grouped kernel and launch.
fn same_bits_of_k_groups(setup: &Setup) -> Result<String, Failure> {
    let mut compared = Compared::new(setup)?;
    for (i, config) in GemmKernel::k_grouped(setup.arch()).enumerate() {
        let form = k_grouped_form_of(&config).ok_or("the kernel serves no operation")?;
        for (j, choice) in launches(config).into_iter().enumerate() {
            let options = GemmOptions { config: Some(choice), ..Default::default() };
            for turn in 0..3 {
                let case = k_grouped(form, &[656, 0, 1, 130, 16], [70, 136], 4 * i + j + turn);
                compared.add(&config.name(), case, &options)?;
            }
        }
    }
    Ok(compared.summary())
}

/// The same in serpentine K order: every other tile of a cluster walks K backwards.
fn same_bits_in_serpentine_order(setup: &Setup) -> Result<String, Failure> {
    let mut compared = Compared::new(setup)?;
    for serpentine in SERPENTINE.iter().filter(|serpentine| serpentine.is_for(setup.arch())) {
        let (case, options) = serpentine.case()?;
        compared.add(serpentine.choice, case, &options)?;
    }
    Ok(compared.summary())
}

/// A GEMM of which few CTAs have several tiles: dense, or of one group of rows.
#[derive(Clone, Copy)]
struct Serpentine {
    choice: &'static str,
    num_sms: u32,
    dims: [usize; 3],
    grouped: bool,
}

const fn dense(choice: &'static str, num_sms: u32, dims: [usize; 3]) -> Serpentine {
    Serpentine { choice, num_sms, dims, grouped: false }
}

const fn grouped(choice: &'static str, num_sms: u32, dims: [usize; 3]) -> Serpentine {
    Serpentine { choice, num_sms, dims, grouped: true }
}

/// FP8 is serpentine where K is whole groups of scales, here two of them; of the last dense one, a tile is split by
/// stream-K. Groups are where they have eight tiles or more, and rows 6 KB.
const SERPENTINE: [Serpentine; 9] = [
    dense("sm90_fp8_persistent_256x128_s3_c1x1", 1, [260, 100, 2048]),
    dense("sm90_fp8_persistent_128x192_s4_c2x1", 2, [300, 200, 4096]),
    dense("sm90_bf16_persistent_nt_128x256_s3_c1x1", 1, [140, 260, 1100]),
    dense("sm90_fp16_persistent_nn_128x128_s6_c1x2", 2, [140, 260, 1100]),
    dense("sm90_fp8_persistent_stream_k_256x128_s3_c1x1", 2, [1034, 100, 2048]),
    grouped("sm90_fp8_persistent_m_grouped_64x128_s8_c1x1", 2, [500, 100, 6144]),
    grouped("sm90_fp8_persistent_m_grouped_256x128_s3_c1x2", 4, [1900, 200, 6144]),
    grouped("sm90_bf16_persistent_m_grouped_nt_64x128_s8_c1x1", 2, [500, 100, 3080]),
    grouped("sm90_fp16_persistent_m_grouped_nn_64x128_s8_c2x1", 4, [1000, 100, 3080]),
];

impl Serpentine {
    fn is_for(&self, arch: Arch) -> bool {
        plan::parse(self.choice).is_some_and(|choice| choice.kernel.arch() == arch)
    }

    fn case(&self) -> Result<(GemmCase, GemmOptions), Failure> {
        let choice =
            plan::parse(self.choice).ok_or_else(|| format!("no choice is called {}", self.choice))?;
        let options = GemmOptions {
            config: Some(choice),
            num_sms: Some(self.num_sms),
            k_order: Some(KOrder::Serpentine),
            ..Default::default()
        };
        let (types, layout) = operands_of(&choice.kernel);
        let [rows, n, k] = self.dims;
        let case = match self.grouped {
            false => GemmCase::dense(types, layout, self.dims),
            true => GemmCase::m_grouped(types, MGroups::new(GroupLayout::Ends, vec![rows]), [n, k]),
        };
        Ok((GemmCase { layout, ..case }, options))
    }
}

/// The same for every kernel and launch that sums GEMMs.
fn same_bits_of_sums(setup: &Setup) -> Result<String, Failure> {
    let (mut compared, limits) = (Compared::new(setup)?, setup.limits()?);
    for config in GemmKernel::summed(setup.arch()) {
        let (types, _) = operands_of(&config);
        for (turn, choice) in launches(config).into_iter().enumerate() {
            let case = summed(types, 5, [66, 136, 100], turn);
            if plan_of(&case, Some(choice), &limits).is_some() {
                let options = GemmOptions { config: Some(choice), ..Default::default() };
                compared.add(&config.name(), case, &options)?;
            }
        }
    }
    ensure(compared.cases > 0, || "no launch fits".to_owned())?;
    Ok(compared.summary())
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxigemm::Sim;
    use oxigemm::plan::{GemmConfig, Limits};
    use oxigemm::sim::Options;
    use oxigemm_kernels::gemm::Launch;
    use oxigemm_testkit::plan::plan_in_order;
    use oxigemm_testkit::{FP8_1D1D, FP8_1X32, FP8_32X32};

    #[test]
    fn what_is_said_to_be_serpentine_is() {
        for serpentine in SERPENTINE {
            let (case, options) = serpentine.case().unwrap();
            let (choice, name) = (options.config.unwrap(), serpentine.choice);
            let limits = Limits::h200().restricted_to(serpentine.num_sms);
            let plan = plan_in_order(&case, Some(choice), KOrder::Serpentine, &limits);
            let plan = plan.expect("it serves the shape");
            let Launch { grid, cluster, .. } = plan.launch;
            assert!(plan.launch.is_serpentine(), "{name}");
            let [m, n] = tiles(choice, serpentine.dims);
            assert!(m * n > grid[0], "{name}: a tile for each of {grid:?} by {cluster}");
        }
    }

    /// Tiles of CTAs along M and N.
    fn tiles(choice: GemmConfig, [m, n, _]: [usize; 3]) -> [u32; 2] {
        let tile = choice.tile();
        [(m as u32).div_ceil(tile[0]), (n as u32).div_ceil(tile[1])]
    }

    #[test]
    fn at_least_a_hundred_gemms_are_compared() {
        assert!(GemmKernel::dense(Arch::Sm90a).count() * CASES >= 100);
    }

    /// The first kernel of every family multiplies the operands of its cases, of which these have all kinds of scales.
    #[test]
    fn kernels_multiply_the_operands_that_are_drawn_for_them() {
        let device = Device::Sim(Sim::with_options(Options { hazards: false, ..Options::default() }));
        let setup = Setup::new(device.clone(), false, 1);
        let mut kinds = Vec::new();
        for (i, config) in GemmKernel::dense(Arch::Sm90a).enumerate() {
            if kinds.contains(&config.operands()) {
                continue;
            }
            kinds.push(config.operands());
            for nth in 0..CASES / 2 {
                let (case, options) = dense_case(&setup, config, [i, nth]).unwrap();
                let about = format!("{case} by {}", config.name());
                let bits = GemmData::draw(case).and_then(|data| bits(&data, &options, &device));
                assert!(bits.is_ok(), "{about}: {}", bits.unwrap_err());
            }
        }
        for types in [FP8_1D1D, FP8_1X32, FP8_32X32] {
            assert!(GemmKernel::dense(Arch::Sm90a).any(|config| operands_of(&config).0 == types), "{types}");
        }
    }
}
