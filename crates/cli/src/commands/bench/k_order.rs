//! The price of forward K: the same GEMMs with serpentine and with forward K, in turn.

use oxigemm::plan::{KOrder, Launch, Plan};
use oxigemm::{Device, GemmLayout, GemmOptions};
use oxigemm_kernels::gemm::params::PersistentTuning;
use oxigemm_kernels::gemm::scheduler::order::Sweep;
use oxigemm_testkit::{
    BF16, Effort, FP8, Failure, Fill, GemmCase, GroupLayout, MGroups, OperandTypes, plan, spread,
};
use serde::Serialize;

use super::Bench;
use super::passes::Call;
use crate::Outcome;
use crate::baseline::geometric_mean;
use crate::cases::einsum::Einsum;
use crate::output::{LiveTable, print_json, print_line, progress};

/// A family: GEMMs whose K order is one constant of the planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Family {
    Dense,
    MGrouped,
    Batched,
}

/// Dense sizes.
const DENSE: [[usize; 3]; 7] = [
    [4096, 2112, 7168],
    [4096, 4096, 7168],
    [4096, 7168, 2048],
    [4096, 7168, 16384],
    [4096, 24576, 1536],
    [8192, 8192, 8192],
    [2048, 7168, 4096],
];
/// Contiguous groups: how many, rows that each is expected to have, N and K.
const GROUPED: [[usize; 4]; 3] = [[4, 8192, 6144, 7168], [8, 4096, 4096, 7168], [8, 4096, 4096, 4096]];
/// Batches: tokens, heads, K and N.
const BATCHED: [[usize; 4]; 3] = [[4096, 8, 4096, 1024], [8192, 8, 4096, 1024], [4096, 8, 8192, 1024]];
/// Groups with a B of their own numbers.
const DISTINCT: usize = 2;

struct Case {
    family: Family,
    types: OperandTypes,
    name: String,
    gemm: GemmCase,
}

#[derive(Serialize)]
struct Row {
    case: String,
    family: Family,
    types: &'static str,
    plan: String,
    /// Raster bands: of serpentine K, of forward K as planned, and another with forward K.
    bands: [u32; 3],
    us: [f64; 3],
    /// How much longer forward K takes, as planned and with the better band.
    price: f64,
    least_price: f64,
    right: bool,
}

const COLUMNS: [&str; 9] =
    ["case", "serpent.", "band", "forward", "band", "forward", "band", "price %", "least %"];

impl Row {
    fn cells(&self) -> [String; COLUMNS.len()] {
        let ([serpentine, forward, other], [first, second, third]) = (self.us, self.bands);
        let wrong = if self.right { "" } else { " WRONG" };
        [
            self.case.clone(),
            format!("{serpentine:.2}"),
            first.to_string(),
            format!("{forward:.2}"),
            second.to_string(),
            format!("{other:.2}"),
            third.to_string(),
            format!("{:+.2}", self.price * 100.0),
            format!("{:+.2}{wrong}", self.least_price * 100.0),
        ]
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for types in [FP8, BF16] {
        let dense = DENSE.map(|dims @ [m, n, k]| {
            let gemm = GemmCase::dense(types, GemmLayout::Nt, dims);
            Case { family: Family::Dense, types, name: format!("{types} m{m} n{n} k{k}"), gemm }
        });
        let grouped = GROUPED.map(|[groups, m, n, k]| {
            let rows = MGroups::new(GroupLayout::Ids, spread(groups, m, 0));
            let rows = MGroups { distinct_b: DISTINCT, ..rows };
            let gemm = GemmCase { m, fill: Fill::Rows, ..GemmCase::m_grouped(types, rows, [n, k]) };
            let name = format!("{types} contiguous g{groups} em{m} n{n} k{k}");
            Case { family: Family::MGrouped, types, name, gemm }
        });
        let batched = BATCHED.map(|[b, h, r, d]| {
            let einsum = Einsum::BhrHdr { types, sizes: [b, h, r, d] };
            let gemm = einsum.gemm().with_groups(|groups| MGroups { distinct_b: DISTINCT, ..groups });
            Case { family: Family::Batched, types, name: einsum.to_string(), gemm }
        });
        cases.extend(dense.into_iter().chain(grouped).chain(batched));
    }
    cases
}

fn raster_band(launch: &Launch) -> u32 {
    PersistentTuning::from_words(launch.tuning).raster_band
}

/// The raster band whose waves read the least.
fn smallest_wave(plan: &Plan) -> u32 {
    let (operands, tile) = (plan.config.operands(), plan.config.cluster_tile(plan.passes));
    let shape = plan.shape.gemm(operands);
    let line = u64::from(shape.k) * u64::from(operands.element_bytes());
    let sweep = Sweep {
        tiles: [shape.m.div_ceil(tile[0]), shape.n.div_ceil(tile[1])],
        bytes: tile.map(|rows| u64::from(rows) * line),
        concurrent: plan.launch.grid[0] / plan.launch.cluster,
    };
    sweep.smallest_wave()
}

/// Runs the suite.
pub fn run(bench: &mut Bench) -> Outcome {
    let cases: Vec<Case> = cases().into_iter().filter(|case| bench.wants(&case.name)).collect();
    if cases.is_empty() {
        return Err(bench.no_case());
    }
    let bar = progress(cases.len());
    let longest_name = cases.iter().map(|case| case.name.len()).max().unwrap_or(0);
    let table = (!bench.common.json).then(|| LiveTable::new(COLUMNS, longest_name));
    let mut rows: Vec<Row> = Vec::new();
    for case in &cases {
        bar.set_message(case.name.clone());
        match (measure(case, bench)?, &table) {
            (Some(row), Some(table)) => {
                table.row(&bar, row.cells());
                rows.push(row);
            }
            (Some(row), None) => {
                bar.suspend(|| print_json(&row));
                rows.push(row);
            }
            (None, Some(_)) => bar.suspend(|| print_line(&format!("{}: forward K in any case", case.name))),
            (None, None) => {}
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if !bench.common.json {
        print_means(&rows);
        print_line(&format!("timed by {} on {}", bench.clock.method(), bench.cuda.gpu().name()));
    }
    Ok(rows.iter().all(|row| row.right))
}

/// What decides about the constants of the planner.
fn print_means(rows: &[Row]) {
    for types in [FP8, BF16] {
        for family in [Family::Dense, Family::MGrouped, Family::Batched] {
            let of_family = rows.iter().filter(|row| row.family == family && row.types == types.name);
            let price = |of: fn(&Row) -> f64| {
                let prices: Vec<f64> = of_family.clone().map(of).collect();
                let mean = geometric_mean(prices.iter().map(|price| 1.0 + price))? - 1.0;
                Some((100.0 * mean, 100.0 * prices.into_iter().fold(f64::NEG_INFINITY, f64::max)))
            };
            if let (Some((mean, most)), Some((least, most_of_least))) =
                (price(|row| row.price), price(|row| row.least_price))
            {
                print_line(&format!(
                    "{types} {family:?}: forward K takes {mean:+.2}% in the mean, {most:+.2}% at most; \
                     with the better band {least:+.2}%, {most_of_least:+.2}%"
                ));
            }
        }
    }
}

/// The times of a case; none where its tiles visit K forward in any case.
fn measure(case: &Case, bench: &mut Bench) -> Result<Option<Row>, Failure> {
    let limits = bench.cuda.limits();
    let planned =
        |k_order| plan::plan_in_order(&case.gemm, None, k_order, limits).ok_or("no kernel serves the case");
    let (serpentine, forward) = (planned(KOrder::Serpentine)?, planned(KOrder::Forward)?);
    if !serpentine.launch.is_serpentine() {
        return Ok(None);
    }
    let bands = [raster_band(&serpentine.launch), raster_band(&forward.launch)];
    let other = if bands[0] == bands[1] { smallest_wave(&serpentine) } else { bands[0] };
    let with = |k_order, band| GemmOptions {
        config: Some(serpentine.config),
        k_order: Some(k_order),
        raster_band: Some(band),
        ..Default::default()
    };
    let variants =
        [with(KOrder::Serpentine, bands[0]), with(KOrder::Forward, bands[1]), with(KOrder::Forward, other)];
    let mut call = case.gemm.on(&Device::Cuda(bench.cuda.clone()))?;
    let mut us = [f64::INFINITY; 3];
    for _ in 0..bench.args.passes {
        for (us, options) in us.iter_mut().zip(&variants) {
            let runs = bench.args.runs as usize;
            *us = us.min(bench.clock.calls(options, runs, |options| call.run(options))?);
        }
    }
    // What forward K has computed last.
    let verdict = bench.args.judged(|| Call::judge(&mut call, &variants[2], Effort::QUICK))?;
    let price = |forward: f64| forward / us[0] - 1.0;
    Ok(Some(Row {
        case: case.name.clone(),
        family: case.family,
        types: case.types.name,
        plan: serpentine.name(),
        bands: [bands[0], bands[1], other],
        us,
        price: price(us[1]),
        least_price: price(us[1].min(us[2])),
        right: verdict.is_none_or(|verdict| verdict.right),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxigemm::plan::Limits;

    /// A family without a case that is serpentine would say nothing about its constant.
    #[test]
    fn every_family_has_cases_with_serpentine_k() {
        let serpentine = |case: &Case| {
            let plan = plan::plan_in_order(&case.gemm, None, KOrder::Serpentine, &Limits::h200()).unwrap();
            plan.launch.is_serpentine()
        };
        for types in [FP8, BF16] {
            for family in [Family::Dense, Family::MGrouped, Family::Batched] {
                let found = cases()
                    .iter()
                    .any(|case| case.family == family && case.types.name == types.name && serpentine(case));
                assert!(found, "{types} {family:?}");
            }
        }
    }
}
