//! `oxigemm inspect`: the plan for a problem, why it was taken, and the code.

use oxigemm::plan::{self, Cost, GemmConfig, Limits, Plan, PlanShape};
use oxigemm::{Arch, GemmLayout};
use oxigemm_cuda::PtxModule;
use oxigemm_cuda::assemble::{Assembled, Ptxas, disassemble};
use oxigemm_kernels::gemm::TensorMemoryPart;
use oxigemm_testkit::{Failure, GemmCase, Grouping, Op, plan as planner};
use serde_json::{Value, json};

use crate::cases::gemm::{GemmArgs, parse_choice};
use crate::commands::prebuild::parse_arch;
use crate::output::{Table, print_json, print_line};
use crate::{Common, Outcome};

/// Arguments of `inspect`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    gemm: GemmArgs,
    /// Another choice than the planned one.
    #[arg(long, value_parser = parse_choice)]
    choice: Option<GemmConfig>,
    /// Use at most this many SMs.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    num_sms: Option<u32>,
    /// Only batch-invariant plans: a row has the same bits whatever the number of rows.
    #[arg(long, conflicts_with = "choice")]
    batch_invariant: bool,
    /// The architecture to plan for, where it is not the device's: sm_90a (an H200) or sm_100a (a B200).
    #[arg(long, value_name = "ARCH", value_parser = parse_arch)]
    arch: Option<Arch>,
    /// How many candidates to show.
    #[arg(long, default_value_t = 8)]
    top: usize,
    /// Print the kernel's PTX and nothing else.
    #[arg(long, conflicts_with_all = ["sass", "json"])]
    ptx: bool,
    /// Print the kernel's machine code and nothing else; needs ptxas and nvdisasm or cuobjdump.
    #[arg(long, conflicts_with = "json")]
    sass: bool,
}

/// What is shown.
struct Shown<'a> {
    op: Op,
    case: &'a GemmCase,
    plan: Plan,
    /// The device that it was planned for.
    device: String,
    ranking: Vec<(GemmConfig, Cost)>,
    assembled: Option<Assembled>,
    ptx_bytes: usize,
}

/// Runs the command.
pub fn run(common: &Common, args: &Args) -> Outcome {
    let (GemmArgs { m, n, k, op, .. }, case) = (&args.gemm, args.gemm.case(0)?);
    if case.is_empty() || *k == 0 {
        return Err("nothing is multiplied: m, n, k and the sizes of groups must be at least 1".into());
    }
    let (limits, device) = limits(common, args.arch)?;
    let limits = args.num_sms.map_or(limits, |sms| limits.restricted_to(sms));
    if let (Some(choice), Grouping::Dense | Grouping::Summed(_), None) =
        (args.choice, &case.grouping, case.epilogue)
        && choice.operands() != planner::operand_kind_on(&case, limits.arch)
    {
        let expected = plan::operands_name(planner::operand_kind_on(&case, limits.arch));
        return Err(format!("{} is no kernel for {expected}", plan::name(&choice)).into());
    }
    let plan = match args.batch_invariant {
        true => planner::batch_invariant_plan(&case, &limits),
        false => planner::plan(&case, args.choice, &limits),
    };
    let plan = plan.ok_or_else(|| match args.choice {
        Some(choice) => format!("{} cannot compute {op} m={m} n={n} k={k} here", plan::name(&choice)),
        None => "no kernel takes so many groups".to_owned(),
    })?;
    let config = plan.config.kernel;
    let (name, module) = (config.name(), config.build()?);
    if args.ptx {
        print_line(&module.text);
        return Ok(true);
    }
    let ptx = PtxModule { name: &name, text: &module.text, arch: config.arch().name() };
    let assembled = Ptxas::find().map(|ptxas| ptxas.assemble(&ptx)).transpose()?;
    if args.sass {
        let assembled =
            assembled.ok_or("there is no ptxas to make machine code: set OXIGEMM_PTXAS to its path")?;
        let sass = disassemble(&assembled.cubin).ok_or("neither nvdisasm nor cuobjdump was found")?;
        print_line(&sass);
        return Ok(true);
    }
    let mut ranking = planner::rank(&case, &limits);
    if args.batch_invariant {
        ranking.retain(|(choice, _)| plan::is_batch_invariant(choice));
    }
    ranking.truncate(args.top);
    let ptx_bytes = module.text.len();
    let shown = Shown { op: *op, case: &case, plan, device, ranking, assembled, ptx_bytes };
    match common.json {
        true => print_json(&shown.as_json()),
        false => shown.print(),
    }
    Ok(true)
}

/// Plans are made for the device, and for a card of its architecture where it is no GPU.
fn limits(common: &Common, arch: Option<Arch>) -> Result<(Limits, String), Failure> {
    let device = common.device()?;
    let own = device.limits().map_or(Arch::Sm90a, |limits| limits.arch);
    if let Some(cuda) = device.as_cuda().filter(|_| arch.is_none_or(|arch| arch == own)) {
        return Ok((*cuda.limits(), cuda.gpu().name().to_owned()));
    }
    Ok(match arch.unwrap_or(own) {
        Arch::Sm90a => (Limits::h200(), "an H200, as this is no GPU".to_owned()),
        Arch::Sm100a => (Limits::b200(), "a B200, as this is no GPU".to_owned()),
    })
}

/// Columns that a letter of a drawn map stands for.
const COLUMNS_OF_A_LETTER: u32 = 8;

/// Draws the columns of tensor memory: a line for each part, and where it lies.
fn tensor_memory_map(parts: &[TensorMemoryPart]) -> Vec<String> {
    let mut first = 0;
    let line = |part: &TensorMemoryPart| {
        let end = first + part.columns;
        let [from, to] = [first / COLUMNS_OF_A_LETTER, end.div_ceil(COLUMNS_OF_A_LETTER)];
        let (before, inside) = (" ".repeat(from as usize), "#".repeat((to - from) as usize));
        let text = format!("{:<13} {first:>3} to {:>3}  |{before}{inside}", part.name, end - 1);
        first = end;
        text
    };
    parts.iter().map(line).collect()
}

impl Shown<'_> {
    fn as_json(&self) -> Value {
        let Shown { op, plan, device, ranking, assembled, .. } = self;
        let cost = |cost: &Cost| {
            let terms: serde_json::Map<_, _> =
                cost.terms().into_iter().map(|(name, us)| (name.to_owned(), json!(us))).collect();
            json!({ "us": cost.us, "terms": terms })
        };
        let (gemm, launch) = (plan.shape.gemm(plan.config.operands()), &plan.launch);
        json!({
            "op": op.name,
            "m": gemm.m, "n": gemm.n, "k": gemm.k,
            "groups": plan.shape.m_grouped().map(|groups| json!({
                "count": groups.groups, "slabs": groups.slabs, "expected": groups.expected,
            })),
            "planned_for": device,
            "choice": plan.name(),
            "kernel": plan.config.kernel.name(),
            "why": plan.why.to_string(),
            "estimate": cost(&plan.estimate),
            "launch": {
                "grid": launch.grid, "threads": launch.threads, "cluster": launch.cluster,
                "shared_bytes": launch.shared_bytes, "tuning": launch.tuning,
                "serpentine_k": launch.is_serpentine(),
                "stream_k_tiles": launch.stream_k.tiles, "stream_k_peers": launch.stream_k.peers,
            },
            "tensor_memory": plan.config.kernel.spec().tensor_memory().iter().map(|part| json!({
                "name": part.name, "columns": part.columns,
            })).collect::<Vec<_>>(),
            "candidates": ranking.iter().map(|(choice, estimate)| json!({
                "choice": plan::name(choice), "estimate": cost(estimate),
            })).collect::<Vec<_>>(),
            "assembled": assembled.as_ref().and_then(|assembled| assembled.report.entries.first()).map(|entry| json!({
                "registers": entry.registers, "stack_bytes": entry.stack_bytes,
                "spill_store_bytes": entry.spill_store_bytes, "spill_load_bytes": entry.spill_load_bytes,
            })),
        })
    }

    fn print(&self) {
        let Shown { op, case, plan, device, ranking, assembled, ptx_bytes } = self;
        let line = |name: &str, text: String| print_line(&format!("{name:<10} {text}"));
        let (gemm, launch) = (plan.shape.gemm(plan.config.operands()), plan.launch);
        let name = match case.types.has_scales() && case.layout == GemmLayout::Nt {
            true => op.name.to_owned(),
            false => format!("{op} {}", case.layout),
        };
        line("problem", format!("{name} m={} n={} k={}, planned for {device}", gemm.m, gemm.n, gemm.k));
        if let Some(groups) = plan.shape.m_grouped() {
            let expected = groups.expected;
            line(
                "groups",
                format!("{} in {} slabs, {expected} rows expected of each", groups.groups, groups.slabs),
            );
        }
        if let PlanShape::KGrouped(groups) = plan.shape {
            line("groups", format!("{} k-grouped, K of {} together", groups.groups, groups.k));
        }
        line("choice", plan.name());
        line("why", plan.why.to_string());
        line("kernel", format!("{}, {ptx_bytes} bytes of PTX", plan.config.kernel.name()));
        line(
            "launch",
            format!(
                "grid {}x{}, {} threads, clusters of {}, {} bytes of shared memory, tuning {:?}",
                launch.grid[0],
                launch.grid[1],
                launch.threads,
                launch.cluster,
                launch.shared_bytes,
                launch.tuning
            ),
        );
        for (nth, text) in
            tensor_memory_map(&plan.config.kernel.spec().tensor_memory()).into_iter().enumerate()
        {
            line(if nth == 0 { "columns" } else { "" }, text);
        }
        if launch.is_serpentine() {
            line("K order", "serpentine: every other tile of a CTA walks K backwards".to_owned());
        }
        if plan.config.has_dynamic_scheduler() {
            line(
                "scheduler",
                "dynamic: clusters take the next tile from a counter; static in a graph".to_owned(),
            );
        }
        if launch.stream_k.tiles > 0 {
            line(
                "stream-K",
                format!(
                    "{} tiles of the last wave are split; {} peer clusters leave partial accumulators in {} bytes of workspace",
                    launch.stream_k.tiles, launch.stream_k.peers, launch.workspace_bytes
                ),
            );
        }
        line(
            "assembled",
            match assembled.as_ref().and_then(|assembled| assembled.report.entries.first()) {
                Some(entry) => format!(
                    "{} registers, {} bytes of stack, {} bytes spilled",
                    entry.registers,
                    entry.stack_bytes,
                    entry.spill_store_bytes + entry.spill_load_bytes
                ),
                None => "no ptxas found".to_owned(),
            },
        );
        print_line("");
        let mut table = Table::new(["candidate", "us", "tensor", "memory", "l2", "feed", "output", "start"]);
        for (choice, cost) in ranking {
            let [tensor, memory, l2, feed, output, start] = cost.terms().map(|(_, us)| format!("{us:.2}"));
            table.row([
                plan::name(choice),
                format!("{:.2}", cost.us),
                tensor,
                memory,
                l2,
                feed,
                output,
                start,
            ]);
        }
        table.print();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxigemm_kernels::gemm::GemmKernel;

    #[test]
    fn tensor_memory_is_drawn_to_its_last_column() {
        let part = |name, columns| TensorMemoryPart { name, columns };
        let drawn = tensor_memory_map(&[part("accumulator 0", 64), part("scales of A", 4), part("free", 60)]);
        assert_eq!(drawn[0], "accumulator 0   0 to  63  |########");
        assert_eq!(drawn[1], "scales of A    64 to  67  |        #");
        assert_eq!(drawn[2], "free           68 to 127  |        ########");
        for kernel in GemmKernel::all(Arch::Sm100a) {
            let columns: u32 = kernel.spec().tensor_memory().iter().map(|part| part.columns).sum();
            assert!(columns.is_power_of_two() && (32..=512).contains(&columns), "{}", kernel.name());
        }
    }
}
