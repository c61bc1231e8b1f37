//! Signatures: what operands every instruction takes, as the assembler has them.
//!
//! A row is a pattern of an opcode, its operands, and the types that it exists for (none: any). A pattern is as in
//! [`super::target`], with alternatives of opcodes behind `|`, and `[` for a first operand in brackets. The first row
//! that fits an instruction is its own; an instruction without a row is checked by its decoder alone.
//!
//! An operand is one of
//!
//! * `t`, `t1`, `t2`: the last, first or second type of the instruction; `T` the same or a wider register;
//! * `m1` ... `m4`: the register of a matrix with elements of that type;
//! * `w`: an integer of twice the width of the type;
//! * `u32`, `b64`, `p`: this type, a predicate;
//! * `@`: an address in brackets; `#`: a constant; `*`: anything; `...`: anything that follows;
//! * `a|b`: a pair or the first of it alone; `?` at the end: may be missing.

/// Pattern, operands, types.
pub(super) type Row = (&'static str, &'static str, &'static str);

const INTEGERS: &str = "u16 s16 u32 s32 u64 s64";
const FLOATS: &str = "f16 f16x2 bf16 bf16x2 f32 f32x2 f64";
const SUMS: &str = "u16 s16 u32 s32 u64 s64 u16x2 s16x2 f16 f16x2 bf16 bf16x2 f32 f32x2 f64";
const PRODUCTS: &str = "u16 s16 u32 s32 u64 s64 f16 f16x2 bf16 bf16x2 f32 f32x2 f64";
const LEAST: &str = "u16 s16 u32 s32 u64 s64 u16x2 s16x2 f16 f16x2 bf16 bf16x2 f32 f64";
const BITS: &str = "b16 b32 b64 pred";
const SELECTED: &str = "b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64";
const LOADED: &str = "b8 b16 b32 b64 b128 u8 u16 u32 u64 s8 s16 s32 s64 f32 f64";

pub(super) const ROWS: &[Row] = &[
    // Arithmetic.
    ("mul wide", "w t t", "u16 s16 u32 s32"),
    ("mad wide", "w t t w", "u16 s16 u32 s32"),
    ("mul lo", "t t t", INTEGERS),
    ("mul hi", "t t t", INTEGERS),
    ("mul", "t t t", FLOATS),
    ("mad|madc lo", "t t t t", INTEGERS),
    ("mad|madc hi", "t t t t", INTEGERS),
    ("mad", "t t t t", "f32 f64"),
    ("add|sub f32 f16", "t1 t2 t1", ""),
    ("add|sub f32 bf16", "t1 t2 t1", ""),
    ("fma f32 f16", "t1 t2 t2 t1", ""),
    ("fma f32 bf16", "t1 t2 t2 t1", ""),
    ("fma", "t t t t", FLOATS),
    ("sad", "t t t t", INTEGERS),
    ("mad24", "t t t t", "u32 s32"),
    ("mul24", "t t t", "u32 s32"),
    ("min|max #4", "t t t t", "f32"),
    ("min|max", "t t t", LEAST),
    ("add|sub", "t t t", SUMS),
    ("addc|subc", "t t t", "u32 s32 u64 s64"),
    ("div", "t t t", PRODUCTS),
    ("rem", "t t t", INTEGERS),
    ("neg|abs", "t t", "s16 s32 s64 f16 f16x2 bf16 bf16x2 f32 f64"),
    ("sqrt|rsqrt|rcp", "t t", "f32 f64"),
    ("lg2|sin|cos", "t t", "f32"),
    ("ex2|tanh", "t t", "f16 f16x2 bf16 bf16x2 f32"),
    ("copysign", "t t t", "f32 f64"),
    ("testp", "p t", "f32 f64"),
    ("dp4a|dp2a", "u32 u32 u32 u32", ""),
    // Bits.
    ("and|or|xor", "t t t", BITS),
    ("not", "t t", BITS),
    ("cnot", "t t", "b16 b32 b64"),
    ("shl", "t t u32", "b16 b32 b64"),
    ("shr", "t t u32", "b16 b32 b64 u16 u32 u64 s16 s32 s64"),
    ("shf", "b32 b32 b32 u32", "b32"),
    ("popc|clz", "u32 t", "b32 b64"),
    ("brev", "t t", "b32 b64"),
    ("bfind", "u32 t", "u32 s32 u64 s64"),
    ("bfe", "t t u32 u32", "u32 s32 u64 s64"),
    ("bfi", "t t t u32 u32", "b32 b64"),
    ("bmsk", "b32 b32 b32", "b32"),
    ("szext", "t t u32", "u32 s32"),
    ("fns", "b32 b32 b32 s32", "b32"),
    ("prmt", "b32 b32 b32 b32", "b32"),
    ("lop3 #6", "b32|p b32 b32 b32 # p", "b32"),
    ("lop3", "b32 b32 b32 b32 #", "b32"),
    // Comparison and selection.
    ("setp", "p|p t t p?", ""),
    ("set", "t1 t2 t2 p?", ""),
    ("selp", "t t t p", SELECTED),
    ("slct", "t1 t1 t1 t2", ""),
    // Memory.
    ("ld|ldu", "T @ b64?", LOADED),
    ("st bulk", "@ u64 #", ""),
    ("st|red async", "@ t @", ""),
    ("st", "@ T b64?", LOADED),
    ("atom cas", "t @ t t b64?", "b16 b32 b64 b128"),
    ("atom exch", "t @ t b64?", "b32 b64 b128"),
    ("atom and", "t @ t b64?", "b32 b64"),
    ("atom or", "t @ t b64?", "b32 b64"),
    ("atom xor", "t @ t b64?", "b32 b64"),
    ("atom inc", "t @ t b64?", "u32"),
    ("atom dec", "t @ t b64?", "u32"),
    ("red and", "@ t b64?", "b32 b64"),
    ("red or", "@ t b64?", "b32 b64"),
    ("red xor", "@ t b64?", "b32 b64"),
    ("red inc", "@ t b64?", "u32"),
    ("red dec", "@ t b64?", "u32"),
    ("atom add", "t @ t b64?", "u32 s32 u64 f16 f16x2 bf16 bf16x2 f32 f64"),
    ("atom", "t @ t b64?", "u32 s32 u64 s64 f16 f16x2 bf16 bf16x2"),
    ("red add", "@ t b64?", "u32 s32 u64 f16 f16x2 bf16 bf16x2 f32 f64"),
    ("red", "@ t b64?", "u32 s32 u64 s64 f16 f16x2 bf16 bf16x2"),
    ("cvta to", "t t", "u32 u64"),
    ("cvta", "t t", "u32 u64"),
    ("mapa", "t t u32", "u32 u64"),
    ("getctarank", "u32 t", "u32 u64"),
    ("isspacep", "p *", ""),
    ("prefetch|prefetchu|applypriority", "@ ...", ""),
    ("discard", "@ #", ""),
    ("createpolicy", "b64 ...", ""),
    // Collectives of a warp.
    ("shfl", "b32|p b32 b32 b32 u32?", "b32"),
    ("vote ballot", "b32 p u32?", "b32"),
    ("vote", "p p u32?", "pred"),
    ("match", "b32|p t u32", "b32 b64"),
    ("redux", "t t u32", "u32 s32 b32 f32"),
    ("elect", "b32|p u32", ""),
    ("activemask", "b32", "b32"),
    // Barriers and fences.
    ("bar warp", "u32", ""),
    ("bar|barrier red popc #3", "u32 u32 p", ""),
    ("bar|barrier red popc", "u32 u32 u32 p", ""),
    ("bar|barrier red #3", "p u32 p", ""),
    ("bar|barrier red", "p u32 u32 p", ""),
    ("barrier cluster", "", ""),
    ("bar|barrier", "u32 u32?", ""),
    ("membar", "", ""),
    ("fence tensormap::generic acquire", "@ #", ""),
    ("fence", "", ""),
    ("mbarrier arrive [", "@ u32?", "b64"),
    ("mbarrier arrive", "b64 @ u32?", "b64"),
    ("mbarrier arrive_drop [", "@ u32?", "b64"),
    ("mbarrier arrive_drop", "b64 @ u32?", "b64"),
    ("mbarrier init", "@ u32", "b64"),
    ("mbarrier inval", "@", "b64"),
    ("mbarrier expect_tx", "@ u32", "b64"),
    ("mbarrier complete_tx", "@ u32", "b64"),
    ("mbarrier try_wait parity", "p @ u32 u32?", "b64"),
    ("mbarrier try_wait", "p @ b64 u32?", "b64"),
    ("mbarrier test_wait parity", "p @ u32", "b64"),
    ("mbarrier test_wait", "p @ b64", "b64"),
    ("mbarrier pending_count", "u32 b64", "b64"),
    // Copies.
    ("cp bulk commit_group", "", ""),
    ("cp bulk wait_group", "#", ""),
    ("cp bulk tensor prefetch", "@ ...", ""),
    ("cp bulk tensor", "@ @ ...", ""),
    ("cp bulk prefetch", "@ u32 b64?", ""),
    ("cp bulk", "@ @ u32 ...", ""),
    ("cp async mbarrier", "@", ""),
    ("cp async commit_group", "", ""),
    ("cp async wait_all", "", ""),
    ("cp async wait_group", "#", ""),
    ("cp async", "@ @ # *? *?", ""),
    ("tensormap", "@ ...", ""),
    // Matrices.
    ("ldmatrix", "b32 @", ""),
    ("stmatrix", "@ b32", ""),
    ("movmatrix", "b32 b32", "b16"),
    ("mma", "m1 m2 m3 m4 ...", ""),
    ("wgmma mma_async", "m1 ...", ""),
    ("wgmma wait_group", "#", ""),
    ("wgmma fence", "", ""),
    ("wgmma commit_group", "", ""),
    // Control.
    ("nanosleep", "u32", "u32"),
    ("setmaxnreg", "#", ""),
    ("griddepcontrol", "", ""),
    ("ret|exit|trap|brkpt", "", ""),
    ("bra", "*", ""),
    ("brx", "u32 *", ""),
];

/// Modifiers that accesses of memory have beside types and vectors; any other is refused.
pub(super) const KNOWN: &[(&str, &str)] = &[
    (
        "ld|ldu",
        "weak volatile relaxed acquire mmio cta cluster gpu sys global shared shared::cta shared::cluster local param \
         param::entry param::func const nc ca cg cs lu cv unified L1::* L2::* level::*",
    ),
    (
        "st",
        "weak volatile relaxed release mmio cta cluster gpu sys global shared shared::cta shared::cluster local param \
         param::func wb cg cs wt L1::* L2::* level::* bulk async mbarrier::complete_tx::bytes",
    ),
    (
        "atom|red",
        "relaxed acquire release acq_rel cta cluster gpu sys global shared shared::cta shared::cluster add and or xor \
         exch cas min max inc dec noftz L2::* level::* async mbarrier::complete_tx::bytes",
    ),
];

/// Modifiers of which an instruction needs one.
pub(super) const NEEDED: &[(&str, &[&str])] = &[
    ("div f32", &["approx", "full", "rn", "rz", "rm", "rp"]),
    ("div f64", &["rn", "rz", "rm", "rp"]),
    ("rcp|sqrt", &["approx", "rn", "rz", "rm", "rp"]),
    ("rsqrt|ex2|lg2|sin|cos|tanh", &["approx"]),
    ("fma", &["rn", "rz", "rm", "rp"]),
    ("mad f32", &["rn", "rz", "rm", "rp"]),
    ("mad f64", &["rn", "rz", "rm", "rp"]),
    ("ld relaxed", &["cta", "cluster", "gpu", "sys"]),
    ("ld acquire", &["cta", "cluster", "gpu", "sys"]),
    ("st relaxed", &["cta", "cluster", "gpu", "sys"]),
    ("st release", &["cta", "cluster", "gpu", "sys"]),
    ("atom|red add f16", &["noftz"]),
    ("atom|red add f16x2", &["noftz"]),
    ("atom|red add bf16", &["noftz"]),
    ("atom|red add bf16x2", &["noftz"]),
];
