//! GEMM cases by the arguments of a command.

use std::str::FromStr;

use crate::found::LARGEST;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use oxigemm::GemmLayout;
use oxigemm::plan::{self, GemmConfig, KOrder};
use oxigemm_testkit::{
    E5m2, EpilogueSpec, Failure, GemmCase, GroupLayout, Grouping, GroupingKind, MGroups, Named, Op, spread,
};

/// A parser for what has names.
pub fn named<T: Named>() -> impl TypedValueParser<Value = T> {
    let value = |one: T| PossibleValue::new(one.name()).help(one.about());
    PossibleValuesParser::new(T::all().into_iter().map(value))
        .map(|name| T::named(&name).expect("only names of the list are parsed"))
}

/// The operation and its size.
#[derive(Clone, Debug, clap::Args)]
pub struct GemmArgs {
    /// The operation.
    #[arg(long, value_parser = named::<Op>(), default_value = "fp8")]
    pub op: Op,
    /// Layout of A and B: nt, nn, tn or tt. Of m-grouped contiguous rows also how the device is told where groups are:
    /// ids or ends. Both: nn,ends.
    #[arg(long, value_delimiter = ',')]
    layout: Vec<LayoutName>,
    /// Rows of A and D; of m-grouped GEMMs, rows that a group is expected to have.
    #[arg(long, short)]
    pub m: u32,
    /// Rows of B, or of each group's, and columns of D.
    #[arg(long, short)]
    pub n: u32,
    /// Columns of A and B; of k-grouped GEMMs, those that a group is expected to have.
    #[arg(long, short)]
    pub k: u32,
    /// Which operands are e5m2, of a dense FP8 GEMM.
    #[arg(long, value_parser = parse_e5m2, value_name = "a|b|both")]
    e5m2: Option<E5m2>,
    #[arg(long, value_name = "WORDS", help = epilogue_help())]
    epilogue: Option<EpilogueSpec>,
    #[command(flatten)]
    groups: GroupArgs,
}

fn epilogue_help() -> String {
    let words = EpilogueSpec::words();
    format!(
        "Fused epilogue of dense, m-grouped contiguous and m-grouped masked GEMMs, words between commas: {words}"
    )
}

/// The groups of operations that have some.
#[derive(Clone, Debug, clap::Args)]
struct GroupArgs {
    /// How many groups there are; 4 where nothing says so.
    #[arg(long)]
    groups: Option<usize>,
    /// Rows of each m-grouped group; without them, drawn from 0.7 to 1.3 times m.
    #[arg(long, value_delimiter = ',', value_name = "LIST", conflicts_with = "groups")]
    rows: Option<Vec<usize>>,
    /// K of each k-grouped group; without them, drawn from 0.7 to 1.3 times k, in blocks of 128.
    #[arg(long, value_delimiter = ',', value_name = "LIST", conflicts_with_all = ["groups", "rows"])]
    ks: Option<Vec<usize>>,
    /// Rows of a slab, of m-grouped masked GEMMs; without it, the most that a group has.
    #[arg(long)]
    max_m: Option<usize>,
    /// What the first row of a group is a multiple of, of m-grouped contiguous GEMMs: 1, 16, 32, 64 or 128, the
    /// default.
    #[arg(long, value_parser = parse_alignment)]
    alignment: Option<usize>,
}

/// Groups where none are told.
const GROUPS: usize = 4;
/// Most groups that are drawn: more than a kernel takes.
const MOST_GROUPS: usize = 1 << 16;
/// Most elements of D that a kernel takes.
const D_ELEMENTS: u128 = 1 << 40;

fn parse_alignment(word: &str) -> Result<usize, String> {
    let found = word.parse().ok().filter(|rows| [1, 16, 32, 64, 128].contains(rows));
    found.ok_or_else(|| "expected 1, 16, 32, 64 or 128".to_owned())
}

impl GroupArgs {
    /// Refuses what an operation has no use for, and sizes that no kernel counts with.
    fn expect_for(&self, op: Op) -> Result<(), Failure> {
        use GroupingKind::{Batched, Dense, KGrouped, MGroupedContiguous, MGroupedMasked};
        let grouping = op.grouping;
        let m_grouped = matches!(grouping, MGroupedContiguous | MGroupedMasked);
        for (name, given, taken) in [
            ("--groups", self.groups.is_some(), grouping != Dense),
            ("--rows", self.rows.is_some(), m_grouped),
            ("--ks", self.ks.is_some(), grouping == KGrouped),
            ("--max-m", self.max_m.is_some(), grouping == MGroupedMasked),
            ("--alignment", self.alignment.is_some(), grouping == MGroupedContiguous),
        ] {
            if given && !taken {
                let of = match name {
                    "--groups" => "operations with groups",
                    "--rows" => "m-grouped operations",
                    "--ks" => "k-grouped operations",
                    "--max-m" => "m-grouped masked operations",
                    _ => "m-grouped contiguous operations",
                };
                let rest = if grouping == Batched { ", whose products all have m rows" } else { "" };
                return Err(format!("{name} is for {of}, not for {op}{rest}").into());
            }
        }
        let lists = [("--rows", &self.rows), ("--ks", &self.ks)];
        for (name, list) in lists.into_iter().filter_map(|(name, list)| Some((name, list.as_ref()?))) {
            // What rounding up adds cannot overflow.
            let all = list.iter().try_fold(0usize, |all, size| all.checked_add(size.checked_add(128)?));
            expect_count(name, all.map_or(usize::MAX, |all| all - 128 * list.len()))?;
        }
        expect_count("--max-m", self.max_m.unwrap_or(0))?;
        let groups = [self.groups, self.rows.as_ref().map(Vec::len), self.ks.as_ref().map(Vec::len)];
        match groups.into_iter().flatten().find(|groups| *groups > MOST_GROUPS) {
            Some(groups) => Err(format!("{groups} groups: expected at most {MOST_GROUPS}").into()),
            None => Ok(()),
        }
    }

    fn groups(&self) -> usize {
        self.groups.unwrap_or(GROUPS)
    }

    /// The groups of rows, which are expected to have `m` each.
    fn rows(&self, layout: GroupLayout, m: usize, seed: u64) -> MGroups {
        if layout == GroupLayout::All {
            return MGroups::new(layout, vec![m; self.groups()]);
        }
        let groups =
            MGroups::new(layout, self.rows.clone().unwrap_or_else(|| spread(self.groups(), m, seed)));
        MGroups {
            max_m: self.max_m.unwrap_or(groups.max_m),
            alignment: if layout.has_slabs() { 1 } else { self.alignment.unwrap_or(128) },
            ..groups
        }
    }

    /// The K of each group, which are expected to be `k`.
    fn ks(&self, k: usize, seed: u64) -> Vec<usize> {
        let drawn = || spread(self.groups(), k, seed).into_iter().map(|k| k.next_multiple_of(128)).collect();
        self.ks.clone().unwrap_or_else(drawn)
    }
}

impl GemmArgs {
    /// The case, without gaps.
    pub fn case(&self, seed: u64) -> Result<GemmCase, Failure> {
        let (op, [m, n, k]) = (self.op, [self.m, self.n, self.k].map(|x| x as usize));
        for (name, size) in [("-m", m), ("-n", n), ("-k", k)] {
            expect_count(name, size)?;
        }
        self.groups.expect_for(op)?;
        if self.e5m2.is_some() && op != Op::default() {
            return Err(format!("--e5m2 is for --op fp8, not for {op}").into());
        }
        let (layout, rows) = self.layouts()?;
        let groups = match op.grouping {
            GroupingKind::Batched => GroupLayout::All,
            GroupingKind::MGroupedMasked => GroupLayout::Counts,
            _ => rows.unwrap_or(GroupLayout::Ids),
        };
        let dense = GemmCase { e5m2: self.e5m2, ..GemmCase::dense(op.types, layout, [m, n, k]) };
        let case = match op.grouping {
            GroupingKind::Dense => dense,
            GroupingKind::Summed => GemmCase::summed(op.types, self.groups.groups(), [m, n, k]),
            GroupingKind::KGrouped => GemmCase::k_grouped(op.types, layout, self.groups.ks(k, seed), [m, n]),
            GroupingKind::Batched | GroupingKind::MGroupedContiguous | GroupingKind::MGroupedMasked => {
                GemmCase { grouping: Grouping::M(self.groups.rows(groups, m, seed)), ..dense }
            }
        };
        let epilogue = self.epilogue.map(|epilogue| epilogue.beside(&op.types));
        let case = GemmCase { epilogue, seed, ..case };
        if let (Some(groups), Some(max_m)) = (case.m_groups(), self.groups.max_m)
            && let Some(rows) = groups.sizes.iter().find(|rows| **rows > max_m)
        {
            return Err(format!("--max-m {max_m} has no room for {rows} rows of a group").into());
        }
        let elements = d_elements(&case);
        if elements > D_ELEMENTS {
            return Err(format!("D has {elements} elements: expected at most {D_ELEMENTS}").into());
        }
        let [_, rows] = case.slabs();
        expect_count("the rows of all groups", rows)?;
        expect_count("the K of all groups", case.gemms().iter().map(|[.., k]| k).sum())?;
        Ok(case)
    }

    /// The same, whose operands are drawn on the host.
    pub fn drawn_case(&self, seed: u64) -> Result<GemmCase, Failure> {
        let case = self.case(seed)?;
        let [slabs, rows] = case.slabs().map(|x| x as u128);
        let of_gemm = |[_, n, k]: [usize; 3]| n as u128 * k as u128;
        let k_of_a: u128 = match &case.grouping {
            Grouping::K(ks) => ks.iter().map(|k| *k as u128).sum::<u128>() / slabs.max(1),
            _ => case.k as u128,
        };
        let b: u128 = case.gemms().into_iter().map(of_gemm).sum();
        let elements = slabs * rows * k_of_a + b + d_elements(&case);
        if elements > u128::from(LARGEST as u64) {
            return Err(format!(
                "A, B and D have {elements} elements together: expected at most {LARGEST}, as they are drawn on the host"
            )
            .into());
        }
        let needed = elements * DRAWN_BYTES;
        match available_bytes() {
            Some(available) if needed > available => {
                Err(format!("the operands take about {needed} bytes of the host, which has {available}")
                    .into())
            }
            _ => Ok(case),
        }
    }

    /// The layout of A and B, and how the device is told where groups of rows are, if that was said.
    fn layouts(&self) -> Result<(GemmLayout, Option<GroupLayout>), Failure> {
        let (op, mut operands, mut rows) = (self.op, None, None);
        for name in &self.layout {
            let told = match *name {
                LayoutName::Operands(layout) => operands.replace(layout).is_some(),
                LayoutName::Rows(layout) => rows.replace(layout).is_some(),
            };
            if told {
                return Err("--layout names the same twice".into());
            }
        }
        let contiguous = op.grouping == GroupingKind::MGroupedContiguous;
        if self.epilogue.is_some() {
            if !op.fuses || self.e5m2.is_some() {
                let which = "dense, m-grouped contiguous and m-grouped masked GEMMs of bf16, fp16, fp8 and mx formats do";
                return Err(format!("{op} has no --epilogue: {which}").into());
            }
            if operands.is_some_and(|layout| layout != GemmLayout::Nt) || (rows.is_some() && !contiguous) {
                return Err(format!("{op} has no such --layout with an --epilogue: expected nt").into());
            }
            return Ok((GemmLayout::Nt, rows));
        }
        let takes_rows = contiguous || op.grouping == GroupingKind::MGroupedMasked;
        if operands.is_some_and(|layout| !op.layouts.contains(&layout)) || (rows.is_some() && !takes_rows) {
            let names: Vec<&str> = op.layouts.iter().map(|layout| layout.name()).collect();
            let layouts = match names.split_last() {
                Some((last, [])) => (*last).to_owned(),
                Some((last, others)) => format!("{} or {last}", others.join(", ")),
                None => String::new(),
            };
            let expected = match (takes_rows, layouts.is_empty()) {
                (false, _) => layouts,
                (true, true) => "ids or ends".to_owned(),
                (true, false) => format!("{layouts}, and ids or ends"),
            };
            return Err(format!("{op} has no such --layout: expected {expected}").into());
        }
        Ok((operands.unwrap_or(op.default_layout()), rows))
    }
}

/// Bytes of the host for each element: the number that is drawn, the same rounded, and its code or its sum.
const DRAWN_BYTES: u128 = 12;

/// Memory that the system has left, where it tells.
fn available_bytes() -> Option<u128> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u128>().ok().map(|kib| kib * 1024)
}

/// Refuses what kernels do not count with.
fn expect_count(name: &str, count: usize) -> Result<(), Failure> {
    match i32::try_from(count) {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("{name}: expected at most {}, found {count}", i32::MAX).into()),
    }
}

/// Elements of D, with the columns that heads skip.
fn d_elements(case: &GemmCase) -> u128 {
    let columns = case.fused().columns(case.n) as u128;
    let skipped = case
        .fused()
        .heads
        .map_or(0, |heads| columns / u128::from(heads.computed()).max(1) * u128::from(heads.mid));
    case.slabs().iter().map(|x| *x as u128).product::<u128>() * (columns + skipped)
}

/// What `--layout` may name.
#[derive(Clone, Copy, Debug)]
enum LayoutName {
    /// The layout of A and B.
    Operands(GemmLayout),
    /// How the device is told where groups of rows are.
    Rows(GroupLayout),
}

impl FromStr for LayoutName {
    type Err = String;

    fn from_str(name: &str) -> Result<LayoutName, String> {
        match (name, name.parse()) {
            (_, Ok(layout)) => Ok(LayoutName::Operands(layout)),
            ("ids", _) => Ok(LayoutName::Rows(GroupLayout::Ids)),
            ("ends", _) => Ok(LayoutName::Rows(GroupLayout::Ends)),
            _ => Err("expected nt, nn, tn or tt, or ids or ends".to_owned()),
        }
    }
}

/// Reads a K order.
pub fn parse_k_order(name: &str) -> Result<KOrder, String> {
    match name {
        "forward" => Ok(KOrder::Forward),
        "serpentine" => Ok(KOrder::Serpentine),
        _ => Err("expected forward or serpentine".to_owned()),
    }
}

/// Reads which operands are e5m2.
fn parse_e5m2(name: &str) -> Result<E5m2, String> {
    match name {
        "a" => Ok(E5m2::A),
        "b" => Ok(E5m2::B),
        "both" => Ok(E5m2::Both),
        _ => Err("expected a, b or both".to_owned()),
    }
}

/// Reads the name of a kernel and its launch.
pub fn parse_choice(name: &str) -> Result<GemmConfig, String> {
    plan::parse(name).ok_or_else(|| {
        "expected a name like sm90_fp8_persistent_128x128_s5_c1x2 or sm90_bf16_persistent_nn_256x128_s3_c1x1; `oxigemm inspect` lists them"
            .to_owned()
    })
}
