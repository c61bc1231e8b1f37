//! Random problems of every family that an architecture serves.
//!
//! A family is an operation with a layout, plain or with a fused epilogue. Operations whose operands are the same for
//! the kernels are one family. Sizes are those of layers of public models, or multiples of 16 to 128.

use oxigemm::GemmLayout;
use oxigemm::plan::{Limits, OperandKind};
use oxigemm::{Arch, DType};
use oxigemm_testkit::{
    BF16, E5m2, EpilogueSpec, FP8, Fill, GemmCase, GroupLayout, Grouping, GroupingKind, MGroups, Named, Op,
    OperandTypes, ScaleOrder, plan as planner, spread,
};

use crate::cases::models::{EXPERTS, LAYERS, Uniform};

/// How large a problem may be.
#[derive(Clone, Copy, Debug)]
struct Most {
    /// Bytes of operands and results.
    bytes: f64,
    /// Multiplications and additions.
    flops: f64,
}

/// So large that the candidates of a problem are timed within a second.
const MOST: Most = Most { bytes: 4e9, flops: 1.5e12 };

/// A drawn problem.
#[derive(Debug)]
pub struct Drawn {
    /// Its family, such as `fp8-masked` or `bf16 fused`.
    pub family: String,
    /// Its name, such as `fp8-masked g32 em20 n7168 k2048 skewed mn`.
    pub name: String,
    /// What is computed.
    pub case: GemmCase,
}

/// A family of problems.
#[derive(Clone, Debug)]
struct Family {
    op: Op,
    layout: GemmLayout,
    e5m2: Option<E5m2>,
    fused: bool,
    /// How many of its problems there are for one of a family with weight 1.
    weight: usize,
}

/// The problems of a seed: the first ones are the same however many are drawn.
pub fn draw(seed: u64, count: usize, limits: &Limits) -> Vec<Drawn> {
    let families = families(limits);
    let mut turns: Vec<&Family> = Vec::new();
    for round in 0..families.iter().map(|family| family.weight).max().unwrap_or(0) {
        turns.extend(families.iter().filter(|family| family.weight > round));
    }
    let one = |(i, family): (usize, &&Family)| family.draw(&mut Uniform::new(seed, i as u64), MOST);
    turns.iter().cycle().take(count).enumerate().map(one).collect()
}

/// The families that kernels of the architecture compute.
fn families(limits: &Limits) -> Vec<Family> {
    let mut ops = Op::all();
    // Scales of the other kind would be converted first: a kernel more, which is the same for all candidates.
    let of_codes = limits.arch == Arch::Sm100a;
    ops.sort_by_key(|op| op.types.has_scales() && (op.types.scale_type == DType::F32) == of_codes);
    let (mut found, mut kinds): (Vec<Family>, Vec<(OperandKind, GroupingKind, bool)>) = Default::default();
    for op in ops {
        let layouts = match (op.types.has_scales(), op.layouts) {
            (true, _) | (false, []) => vec![op.default_layout()],
            (false, layouts) => layouts.to_vec(),
        };
        for layout in layouts {
            let plain = Family { op, layout, e5m2: None, fused: false, weight: 1 };
            let fuses = op.fuses && layout == GemmLayout::Nt;
            let fused = fuses.then(|| Family { fused: true, ..plain.clone() });
            let e5m2 = (op == Op::default()).then(|| Family { e5m2: Some(E5m2::Both), ..plain.clone() });
            for family in [Some(plain), fused, e5m2].into_iter().flatten() {
                let sample = family.draw(&mut Uniform::new(0, 0), MOST).case;
                let kind = (planner::operand_kind_on(&sample, limits.arch), op.grouping, family.fused);
                if !kinds.contains(&kind) && !planner::rank(&sample, limits).is_empty() {
                    kinds.push(kind);
                    found.push(Family { weight: family.weight(), ..family });
                }
            }
        }
    }
    found
}

impl Family {
    fn name(&self) -> String {
        let layout = if self.layout == self.op.default_layout() {
            String::new()
        } else {
            format!(" {}", self.layout.name())
        };
        let e5m2 = if self.e5m2.is_some() { " e5m2" } else { "" };
        let fused = if self.fused { " fused" } else { "" };
        format!("{}{layout}{e5m2}{fused}", self.op)
    }

    /// What inference runs most is drawn most.
    fn weight(&self) -> usize {
        let common = self.op.types == FP8 || self.op.types == BF16;
        let usual = self.layout == self.op.default_layout() && self.e5m2.is_none() && !self.fused;
        match (common, usual, self.op.grouping) {
            (true, true, GroupingKind::Dense) => 8,
            (true, true, GroupingKind::MGroupedContiguous | GroupingKind::MGroupedMasked) => 4,
            (true, true, _) => 2,
            (true, ..) if self.fused => 2,
            _ => 1,
        }
    }

    /// The next problem of it that is not too large.
    fn draw(&self, random: &mut Uniform, most: Most) -> Drawn {
        loop {
            let drawn = self.draw_any(random);
            let is_empty = drawn.case.is_empty() || drawn.case.rows() == 0;
            if !is_empty && bytes(&drawn.case) <= most.bytes && drawn.case.flops() <= most.flops {
                return drawn;
            }
        }
    }

    /// A problem of any size.
    fn draw_any(&self, random: &mut Uniform) -> Drawn {
        let types = self.op.types;
        let skewed = random.next() < 0.5;
        let epilogue = self.fused.then(|| self.epilogue(random));
        let words = epilogue.map_or("", |(words, _)| words);
        let fit = |n: usize| epilogue.map_or(n, |(_, spec)| spec.fitting(n, &types));
        let (case, dims, skewed) = match self.op.grouping {
            GroupingKind::Dense => {
                let ([n, k], m) = (layer(random, &types), rows(random, [-0.5, 13.3]));
                let unit = if self.layout.a_begins_with_k() { 8 } else { 1 };
                let (m, n) = (m.next_multiple_of(unit), fit(n));
                (GemmCase::dense(types, self.layout, [m, n, k]), format!("m{m} n{n} k{k}"), false)
            }
            GroupingKind::Summed => {
                let (gemms, k) =
                    (random.of(&[4, 8, 16, 24, 32, 64, 128]), random.of(&[64, 128, 192, 256, 512]));
                let (m, n) = (rows(random, [0.0, 12.0]), random.of(&[512, 1536, 2048, 4096, 5120, 7168]));
                (GemmCase::summed(types, gemms, [m, n, k]), format!("g{gemms} m{m} n{n} k{k}"), false)
            }
            GroupingKind::Batched => {
                const SIZES: [usize; 8] = [64, 128, 192, 256, 512, 576, 1024, 2048];
                let (m, [n, k]) = (rows(random, [0.0, 12.0]), [random.of(&SIZES), random.of(&SIZES)]);
                let count = random.of(&[2, 8, 16, 32, 64, 128]);
                let groups = MGroups::new(GroupLayout::All, vec![m; count]);
                let case = GemmCase::m_grouped(types, groups, [n, k]);
                (case, format!("g{count} m{m} n{n} k{k}"), false)
            }
            GroupingKind::KGrouped => {
                let count = random.of(&[2, 4, 8, 16, 32]);
                let [m, n] = [0; 2].map(|_| match random.next() < 0.5 {
                    true => random.of(&[512, 1024, 1536, 2048, 4096, 7168]),
                    false => multiple(random, [16, 64, 128], [8.0, 12.5]),
                });
                let mean = random.rows([7.0, 13.0]);
                let of_group = |k: usize| k.next_multiple_of(128);
                let ks: Vec<usize> = match skewed {
                    true => random.skewed(count, mean),
                    false => spread(count, mean, random.next().to_bits()),
                };
                let ks: Vec<usize> = ks.into_iter().map(of_group).collect();
                let all: usize = ks.iter().sum();
                let case = GemmCase::k_grouped(types, self.layout, ks, [m, n]);
                (case, format!("g{count} m{m} n{n} k{all}"), skewed)
            }
            GroupingKind::MGroupedContiguous | GroupingKind::MGroupedMasked => {
                let masked = self.op.grouping == GroupingKind::MGroupedMasked;
                let [count, n, k] = experts(random, &types);
                let (n, expected) = (fit(n), random.rows(if masked { [0.5, 9.5] } else { [3.0, 11.5] }));
                let sizes = match skewed {
                    true => random.skewed(count, expected),
                    false => spread(count, expected, random.next().to_bits()),
                };
                let most = (4 * expected).next_multiple_of(128).clamp(128, 4096);
                let sizes = sizes.into_iter().map(|size| if masked { size.min(most) } else { size });
                let layout = if masked { GroupLayout::Counts } else { GroupLayout::Ids };
                let groups = MGroups { max_m: most, ..MGroups::new(layout, sizes.collect()) };
                let case = GemmCase { m: expected, ..GemmCase::m_grouped(types, groups, [n, k]) };
                (case, format!("g{count} em{expected} n{n} k{k}"), skewed)
            }
        };
        let ranges_of_k = matches!(case.grouping, Grouping::K(_));
        let mn_major =
            types.scale_type == DType::F32 && types.has_scales() && !ranges_of_k && random.next() < 0.5;
        let case = GemmCase {
            layout: self.layout,
            e5m2: self.e5m2,
            epilogue: epilogue.map(|(_, spec)| spec),
            sfa: if mn_major { ScaleOrder::Mn } else { ScaleOrder::Row },
            fill: Fill::Zeros,
            ..case
        };
        let family = self.name();
        let parts = [
            family.as_str(),
            words,
            &dims,
            if skewed { "skewed" } else { "" },
            if mn_major { "mn" } else { "" },
        ];
        let name = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
        Drawn { family, name, case }
    }

    /// A fused epilogue, with its words.
    fn epilogue(&self, random: &mut Uniform) -> (&'static str, EpilogueSpec) {
        let words = match self.op.grouping {
            GroupingKind::Dense => random.of(&["bias", "bias,gelu", "fp8", "swiglu", "swiglu,fp8"]),
            _ => random.of(&["swiglu", "swiglu,fp8"]),
        };
        let spec: EpilogueSpec = words.parse().expect("these are words of epilogues");
        (words, spec.beside(&self.op.types))
    }
}

/// Rows: a power of two, or any number.
fn rows(random: &mut Uniform, range: [f64; 2]) -> usize {
    let rows = random.rows(range).max(1);
    if random.next() < 0.25 { rows.next_power_of_two() } else { rows }
}

/// A multiple of one of the units, whose logarithm is uniform.
fn multiple(random: &mut Uniform, units: [usize; 3], range: [f64; 2]) -> usize {
    let unit = random.of(&units);
    random.rows(range).next_multiple_of(unit)
}

/// The K that operands can have next to a number: beside FP8, FP4 has lines of 128.
fn fitting_k(types: &OperandTypes, k: usize) -> usize {
    if types.has_fp4() { k.next_multiple_of(128) } else { k }
}

/// N and K of a layer.
fn layer(random: &mut Uniform, types: &OperandTypes) -> [usize; 2] {
    let [n, k] = match random.next() < 0.5 {
        true => random.of(&LAYERS),
        false => {
            let n = multiple(random, [16, 64, 128], [7.0, 15.0]);
            [n, multiple(random, [16, 64, 128], [7.0, 14.0])]
        }
    };
    [n, fitting_k(types, k)]
}

/// Groups, N and K of experts.
fn experts(random: &mut Uniform, types: &OperandTypes) -> [usize; 3] {
    let [groups, n, k] = match random.next() < 0.5 {
        true => random.of(&EXPERTS),
        false => {
            let n = multiple(random, [16, 64, 128], [8.0, 13.0]);
            let groups = random.of(&[1, 2, 4, 6, 8, 16, 24, 32, 48, 64, 96]);
            [groups, n, multiple(random, [16, 64, 128], [7.0, 13.0])]
        }
    };
    [groups, n, fitting_k(types, k)]
}

/// Elements of A, B and D.
fn parts(case: &GemmCase) -> [usize; 3] {
    let ([slabs, rows], n) = (case.slabs(), case.n);
    let d = slabs * rows * case.fused().columns(n);
    match &case.grouping {
        Grouping::Dense | Grouping::Summed(_) => [rows * case.k, n * case.k, d],
        Grouping::M(groups) => [slabs * rows * case.k, groups.sizes.len() * n * case.k, d],
        Grouping::K(ks) => {
            let k: usize = ks.iter().sum();
            [rows * k, n * k, d]
        }
    }
}

/// Elements of the operands and the result.
pub fn elements(case: &GemmCase) -> usize {
    parts(case).iter().sum()
}

/// Bytes of the operands and the result, without scales.
fn bytes(case: &GemmCase) -> f64 {
    let size = |dtype: DType| if dtype == DType::U8 { 0.5 } else { dtype.size() as f64 };
    let ([a, b, d], [a_type, b_type]) = (parts(case).map(|x| x as f64), case.ab_types());
    a * size(a_type) + b * size(b_type) + d * size(case.output_type())
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxigemm::sim::Options;
    use oxigemm::{Device, GemmOptions};
    use oxigemm_testkit::timing::Patterns;

    const LIMITS: [Limits; 2] = [Limits::h200(), Limits::b200()];

    #[test]
    fn every_family_is_drawn_and_has_a_plan() {
        for limits in LIMITS {
            let (all, drawn) = (families(&limits), draw(1, 500, &limits));
            for family in &all {
                let count = drawn.iter().filter(|drawn| drawn.family == family.name()).count();
                assert!(count >= 2 * family.weight, "{}: {count}", family.name());
            }
            for Drawn { name, case, .. } in &drawn {
                let plan = planner::untuned_plan(case, &limits);
                assert!(plan.is_some(), "{name}");
                let ranking = crate::candidates::worth_timing(case, &limits, false);
                assert_eq!(
                    plan.map(|plan| plan.config),
                    ranking.first().map(|(config, _)| *config),
                    "{name}"
                );
            }
        }
        let names: Vec<String> = families(&Limits::h200()).iter().map(Family::name).collect();
        for name in [
            "fp8",
            "fp8 fused",
            "fp8 e5m2",
            "fp8-1d1d",
            "fp8-contiguous",
            "fp8-masked",
            "fp8-masked fused",
            "fp8-batched",
            "fp8-kgrouped",
            "fp8-1x32",
            "fp8-fp4",
            "fp8-fp4-masked",
            "bf16",
            "bf16 nn",
            "bf16 fused",
            "bf16-contiguous",
            "bf16-masked",
            "bf16-batched",
            "bf16-kgrouped",
            "bf16-summed",
            "fp16",
        ] {
            assert!(names.iter().any(|found| found == name), "{name} in {names:?}");
        }
    }

    /// Sizes and layouts are ones that kernels take: operands for timing are run in the simulator.
    #[test]
    fn problems_of_every_family_can_be_timed() {
        // Rejected draws are many where less is allowed.
        let (limits, most) = (Limits::h200(), Most { bytes: 2e7, flops: 1e8 });
        let device: Device = format!("sim:{}", limits.arch).parse().unwrap();
        let sim = device.as_sim().unwrap();
        sim.set_options(Options { hazards: false, ..sim.options() });
        let patterns = Patterns::new(&device).unwrap();
        for family in families(&limits) {
            let Drawn { name, case, .. } = family.draw(&mut Uniform::new(11, 0), most);
            let timed = case.for_timing(&patterns, &device);
            let mut gemm = timed.unwrap_or_else(|error| panic!("{name}: {error}"));
            gemm.relocate().unwrap_or_else(|error| panic!("{name}: {error}"));
            let (config, _) = crate::candidates::worth_timing(&case, &limits, false)[0];
            let options = GemmOptions { config: Some(config), ..GemmOptions::default() };
            gemm.run(&options).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn groups_are_even_and_skewed_with_few_and_many_rows() {
        let drawn = draw(3, 500, &Limits::h200());
        for op in ["fp8-masked", "fp8-contiguous", "bf16-masked", "bf16-contiguous"] {
            let of = |skewed: bool, few: bool| {
                let is = |drawn: &&Drawn| {
                    drawn.family == op
                        && drawn.name.contains("skewed") == skewed
                        && (drawn.case.m <= 64) == few
                };
                drawn.iter().filter(is).count()
            };
            for (skewed, few) in [(false, false), (false, true), (true, false), (true, true)] {
                assert!(of(skewed, few) > 0, "{op} skewed {skewed}, few rows {few}");
            }
        }
    }

    #[test]
    fn sizes_are_bounded_and_a_seed_gives_the_same_problems() {
        let limits = Limits::h200();
        let names = |seed, count| -> Vec<String> {
            draw(seed, count, &limits).into_iter().map(|drawn| drawn.name).collect()
        };
        assert_eq!(names(5, 200)[..100], names(5, 100)[..]);
        assert_ne!(names(6, 20), names(5, 20));
        for Drawn { name, case, .. } in draw(7, 500, &limits) {
            assert!(bytes(&case) <= MOST.bytes && case.flops() <= MOST.flops, "{name}");
            assert!(case.rows() > 0 && case.n > 0 && case.k > 0, "{name}");
        }
    }
}
