//! Which targets have which instructions.
//!
//! One table, asked before an instruction is decoded. Its rows are those that the assembler of CUDA 13.4 has: a test
//! (`tests/it/targets.rs`) assembles an example of each row for every target and compares.

use super::Result;
use super::decoder::Decoder;
use crate::target::{Features, Target};
use crate::text::ast::Instruction;
use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;

/// Targets that have something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    /// This one and all later ones.
    From(u32),
    /// Those before this one.
    Before(u32),
    /// `sm_100f` and later GPUs of its family, by an `a` or `f` target.
    Family(u32),
    /// `sm_90a` alone.
    Only(u32),
}

use On::{Before, Family, From, Only};

impl On {
    fn has(self, target: Target) -> bool {
        match self {
            From(arch) => target.arch >= arch,
            Before(arch) => target.arch < arch,
            Family(arch) => {
                let first = Target { arch, features: Features::Family };
                target.features != Features::Base && target.runs(first)
            }
            Only(arch) => target == Target { arch, features: Features::Specific },
        }
    }
}

impl fmt::Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            From(arch) => write!(f, "sm_{arch} or later"),
            Before(arch) => write!(f, "a target before sm_{arch}"),
            Family(arch) => write!(f, "sm_{arch}f (and later ones of its family)"),
            Only(arch) => write!(f, "sm_{arch}a"),
        }
    }
}

/// GPUs with tensor memory; sm_110 is a later name of sm_101.
const TENSOR_MEMORY: &[On] = &[Family(100), Family(101)];
/// All Blackwell GPUs.
pub(super) const BLACKWELL: &[On] = &[Family(100), Family(101), Family(120)];
/// Hopper, and all Blackwell GPUs.
const SPECIFIC: &[On] = &[Only(90), Family(100), Family(101), Family(120)];
/// Each GPU with tensor memory by its own name.
const TENSOR_ONLY: &[On] = &[Only(100), Only(101), Only(103), Only(110)];

/// Special registers of clusters, and the directives of an entry.
pub(crate) const CLUSTERS: &[On] = &[From(90)];

/// Instructions and targets that have them. A row begins with the opcode (`*` for any) and names modifiers that the
/// instruction has, or does not have (`!`), in any order; `#4` is a number of operands, and `*` ends a prefix. All
/// rows that fit an instruction must have the target; of those that do not, the first is reported.
const ROWS: &[(&str, &[On])] = &[
    // Tensor memory and its matrix instructions.
    ("tcgen05 ld red", &[Family(103), Family(101)]),
    ("tcgen05 shift", TENSOR_ONLY),
    ("tcgen05 mma kind::i8", &[Only(100), Only(101), Only(110)]),
    ("tcgen05 mma scale_vec::*", TENSOR_ONLY),
    ("tcgen05", TENSOR_MEMORY),
    // Matrix instructions of warpgroups and warps.
    ("wgmma", &[Only(90)]),
    ("mma kind::mx*", &[Family(120)]),
    ("mma kind::f8f6f4 e2m1", &[Family(120)]),
    ("mma kind::f8f6f4 e2m3", &[Family(120)]),
    ("mma kind::f8f6f4 e3m2", &[Family(120)]),
    ("mma kind::f8f6f4", BLACKWELL),
    ("mma e4m3", &[From(89)]),
    ("mma e5m2", &[From(89)]),
    ("mma m16n8k4 f64", &[From(90)]),
    ("mma m16n8k8 f64", &[From(90)]),
    ("mma m16n8k16 f64", &[From(90)]),
    ("mma f64", &[From(80)]),
    ("mma bf16", &[From(80)]),
    ("mma tf32", &[From(80)]),
    ("mma m16n8k16", &[From(80)]),
    ("mma m16n8k32", &[From(80)]),
    ("mma m16n8k64", &[From(80)]),
    ("mma m16n8k128", &[From(80)]),
    ("mma m16n8k256", &[From(80)]),
    ("mma and", &[From(80)]),
    ("mma sp*", &[From(80)]),
    ("mma", &[From(75)]),
    ("wmma bf16", &[From(80)]),
    ("wmma tf32", &[From(80)]),
    ("wmma f64", &[From(80)]),
    ("wmma", &[From(70)]),
    ("ldmatrix b8", BLACKWELL),
    ("ldmatrix b8x16", BLACKWELL),
    ("ldmatrix", &[From(75)]),
    ("stmatrix b8", BLACKWELL),
    ("stmatrix", &[From(90)]),
    ("movmatrix", &[From(75)]),
    // Copies.
    ("cp bulk tensor cta_group::*", TENSOR_MEMORY),
    ("cp bulk tensor im2col::w*", TENSOR_MEMORY),
    ("cp bulk tensor tile::scatter4", TENSOR_MEMORY),
    ("cp bulk tensor tile::gather4 shared::cluster", TENSOR_MEMORY),
    ("cp bulk tensor tile::gather4", &[From(100)]),
    ("cp bulk cp_mask", &[From(100)]),
    ("cp bulk", &[From(90)]),
    ("cp async", &[From(80)]),
    ("tensormap replace swizzle_atomicity", BLACKWELL),
    ("tensormap replace", SPECIFIC),
    ("tensormap", &[From(90)]),
    ("prefetch tensormap", &[From(90)]),
    ("st async", &[From(90)]),
    ("red async", &[From(90)]),
    ("st bulk", &[From(100)]),
    ("multimem", &[From(90)]),
    // Clusters, barriers and fences.
    ("clusterlaunchcontrol multicast::cluster::all", BLACKWELL),
    ("clusterlaunchcontrol", &[From(100)]),
    ("mbarrier try_wait", &[From(90)]),
    ("mbarrier expect_tx", &[From(90)]),
    ("mbarrier complete_tx", &[From(90)]),
    ("mbarrier arrive !noComplete #3", &[From(90)]),
    ("mbarrier", &[From(80)]),
    ("fence proxy async*", &[From(90)]),
    ("fence tensormap::generic", &[From(90)]),
    ("fence mbarrier_init", &[From(90)]),
    ("fence acquire", &[From(90)]),
    ("fence release", &[From(90)]),
    ("fence", &[From(70)]),
    ("mapa", &[From(90)]),
    ("getctarank", &[From(90)]),
    ("* shared::cluster", &[From(90)]),
    ("* cluster", &[From(90)]),
    ("elect", &[From(90)]),
    ("griddepcontrol", &[From(90)]),
    ("setmaxnreg", SPECIFIC),
    // Collectives of a warp.
    ("redux f32", &[Family(100)]),
    ("redux", &[From(80)]),
    ("shfl !sync", &[Before(70)]),
    ("vote !sync", &[Before(70)]),
    ("match", &[From(70)]),
    // Loads, stores and atomics.
    ("ld v8", &[From(100)]),
    ("st v8", &[From(100)]),
    ("ld v4 b64", &[From(100)]),
    ("ld v4 u64", &[From(100)]),
    ("ld v4 s64", &[From(100)]),
    ("ld v4 f64", &[From(100)]),
    ("st v4 b64", &[From(100)]),
    ("st v4 u64", &[From(100)]),
    ("st v4 s64", &[From(100)]),
    ("st v4 f64", &[From(100)]),
    ("* L2::cache_hint", &[From(80)]),
    ("* L2::256B", &[From(80)]),
    ("createpolicy", &[From(80)]),
    ("discard", &[From(80)]),
    ("applypriority", &[From(80)]),
    ("atom b128", &[From(90)]),
    ("atom v*", &[From(90)]),
    ("red v*", &[From(90)]),
    ("atom bf16*", &[From(90)]),
    ("red bf16*", &[From(90)]),
    // Conversions.
    ("cvt rs", &[Only(100), Only(103)]),
    ("cvt s2f6x2", &[Only(100), Only(101), Only(103), Only(110), Only(120), Only(121)]),
    ("cvt e2m1x2", BLACKWELL),
    ("cvt e2m3x2", BLACKWELL),
    ("cvt e3m2x2", BLACKWELL),
    ("cvt ue8m0x2", BLACKWELL),
    ("cvt scaled::*", BLACKWELL),
    ("cvt bf16x2 e4m3x2", BLACKWELL),
    ("cvt bf16x2 e5m2x2", BLACKWELL),
    ("cvt e4m3x2", &[From(89)]),
    ("cvt e5m2x2", &[From(89)]),
    ("cvt tf32 rn satfinite", &[From(100)]),
    ("cvt tf32 rz satfinite", &[From(100)]),
    ("cvt tf32 rn", &[From(90)]),
    ("cvt tf32 rz", &[From(90)]),
    ("cvt tf32", &[From(80)]),
    ("cvt bf16 u*", &[From(90)]),
    ("cvt bf16 s8", &[From(90)]),
    ("cvt bf16 s16", &[From(90)]),
    ("cvt bf16 s32", &[From(90)]),
    ("cvt bf16 s64", &[From(90)]),
    ("cvt bf16 f16", &[From(90)]),
    ("cvt bf16 f64", &[From(90)]),
    ("cvt bf16*", &[From(80)]),
    ("cvt f16x2", &[From(80)]),
    // Arithmetic.
    ("* f32x2", &[From(100)]),
    ("min f32 #4", &[From(100)]),
    ("max f32 #4", &[From(100)]),
    ("add f32 f16", &[From(100)]),
    ("add f32 bf16", &[From(100)]),
    ("sub f32 f16", &[From(100)]),
    ("sub f32 bf16", &[From(100)]),
    ("fma f32 f16", &[From(100)]),
    ("fma f32 bf16", &[From(100)]),
    ("fma oob", &[From(90)]),
    ("fma bf16*", &[From(80)]),
    ("fma relu", &[From(80)]),
    ("add bf16*", &[From(90)]),
    ("sub bf16*", &[From(90)]),
    ("mul bf16*", &[From(90)]),
    ("neg bf16*", &[From(80)]),
    ("abs bf16*", &[From(80)]),
    ("ex2 bf16*", &[From(90)]),
    ("tanh bf16*", &[From(90)]),
    ("setp bf16*", &[From(90)]),
    ("set bf16*", &[From(90)]),
    ("add u16x2", &[From(90)]),
    ("add s16x2", &[From(90)]),
    ("min u16x2", &[From(90)]),
    ("min s16x2", &[From(90)]),
    ("max u16x2", &[From(90)]),
    ("max s16x2", &[From(90)]),
    ("min relu", &[From(90)]),
    ("max relu", &[From(90)]),
    ("min xorsign", &[From(86)]),
    ("max xorsign", &[From(86)]),
    ("min NaN", &[From(80)]),
    ("max NaN", &[From(80)]),
    ("min f16*", &[From(80)]),
    ("max f16*", &[From(80)]),
    ("min bf16*", &[From(80)]),
    ("max bf16*", &[From(80)]),
];

/// A row without its opcode.
type Rule = (Vec<&'static str>, &'static [On]);

/// The rows of every opcode, in their order, and under `*` those of all opcodes.
fn rules(opcode: &str) -> &'static [Rule] {
    static RULES: OnceLock<HashMap<&str, Vec<Rule>>> = OnceLock::new();
    let rules = RULES.get_or_init(|| {
        let mut rules: HashMap<&str, Vec<Rule>> = HashMap::new();
        for (row, on) in ROWS {
            let (opcode, words) = row.split_once(' ').unwrap_or((row, ""));
            let words = words.split(' ').filter(|word| !word.is_empty()).collect();
            rules.entry(opcode).or_default().push((words, on));
        }
        rules
    });
    rules.get(opcode).map_or(&[], Vec::as_slice)
}

/// Whether an instruction has what a word of a row says.
pub(super) fn fits(word: &str, inst: &Instruction) -> bool {
    let modifiers = &inst.opcode[1..];
    match word.as_bytes() {
        [b'#', ..] => word[1..].parse() == Ok(inst.operands.len()),
        [b'!', ..] => !modifiers.iter().any(|m| *m == word[1..]),
        [.., b'*'] => modifiers.iter().any(|m| m.starts_with(&word[..word.len() - 1])),
        _ => modifiers.iter().any(|m| m == word),
    }
}

/// Targets as one reads them: `sm_90a`, `sm_90a or sm_100f (...)`.
fn list(on: &[On]) -> String {
    on.iter().map(On::to_string).collect::<Vec<_>>().join(", ")
}

/// Why a target does not have something.
pub(super) fn missing(target: Target, on: &[On]) -> Option<String> {
    let found = on.iter().any(|on| on.has(target));
    (!found).then(|| format!("the target {target} does not have it; it needs {}", list(on)))
}

impl Decoder<'_, '_> {
    /// Refuses what the module's target does not have. Most instructions are rows of the table and need no call; this
    /// is for what depends on operands.
    pub(crate) fn require(&self, what: &str, on: &[On]) -> Result<()> {
        match missing(self.linker.module.target, on) {
            Some(why) => self.error(format!("{what}: {why}")),
            None => Ok(()),
        }
    }

    /// Refuses an instruction that the module's target does not have.
    pub(super) fn check_target(&self) -> Result<()> {
        let target = self.linker.module.target;
        let rules = rules(&self.inst.opcode[0]).iter().chain(rules("*"));
        let mut fitting = rules.filter(|(words, _)| words.iter().all(|word| fits(word, self.inst)));
        match fitting.find_map(|(_, on)| missing(target, on)) {
            Some(why) => self.error(why),
            None => Ok(()),
        }
    }
}
