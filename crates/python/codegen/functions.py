"""The table of GEMM functions, dense, grouped and fused: one row for each.

``generate.py`` writes from it the functions themselves, torch's operators and the stubs of structured arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple


@dataclass(frozen=True)
class Argument:
    """An argument of a function."""

    name: str
    annotation: str
    #: The argument, or the two of a pair, in the schema of torch's operator. None for one that only the facade checks.
    schema: Optional[str] = None
    #: Source text of the default.
    default: Optional[str] = None


@dataclass(frozen=True)
class Operator:
    """An operator of torch, which several functions share: these pass ``selectors`` of theirs as strings."""

    name: str
    selectors: Tuple[str, ...]


@dataclass(frozen=True)
class Function:
    """A function: operand type, layout and grouping make its kernels, arguments and text its face."""

    name: str
    #: The type of A and B: ``fp8`` (or FP4), ``bfloat16``, ``float16`` or ``float32``; None for cuBLASLt: it takes all.
    dtype: Optional[str]
    layout: str
    #: ``dense``, or a key of ``FIELDS``.
    grouping: str
    operator: Operator
    arguments: Tuple[Argument, ...]
    doc: str
    aliases: Tuple[str, ...] = ()
    #: Whether its module lists it in ``__all__``. If not, another module does.
    is_listed: bool = True


@dataclass(frozen=True)
class Module:
    """A module of the package."""

    path: str
    doc: str
    functions: List[Function]


OPTIONAL = "Optional[Any]"

A, B = (Argument(name, "Any", f"Tensor {name}") for name in "ab")
SCALED_A, SCALED_B = (Argument(name, "Pair", f"Tensor {name}, Tensor sf{name}") for name in "ab")
C = Argument("c", OPTIONAL, "Tensor? c", "None")
D = Argument("d", "Any", "Tensor(d!) d")

RECIPES = (
    Argument("recipe", "Recipe", "int[]? recipe", "None"),
    Argument("recipe_a", "RecipeOf", "int[]? recipe_a", "None"),
    Argument("recipe_b", "RecipeOf", "int[]? recipe_b", "None"),
)
RECIPE_1D1D = Argument("recipe", "Recipe", "int[]? recipe", "(1, 1, 128)")
RECIPE_OF_32 = Argument("recipe", "Recipe", "int[]? recipe", "(1, 1, 32)")

GROUPED_LAYOUT = Argument("grouped_layout", "Any", "Tensor grouped_layout")
USE_PSUM_LAYOUT = Argument("use_psum_layout", "bool", "bool psum", "False")
EXPECTED_M_FOR_PSUM_LAYOUT = Argument("expected_m_for_psum_layout", "Optional[int]", "int? expected_m", "None")
MASKED_M = Argument("masked_m", "Any", "Tensor masked_m")
EXPECTED_M = Argument("expected_m", "int", "int expected_m")
ENSURE_ZERO_PADDING = Argument("ensure_zero_padding", "bool", "bool zero_padding", "True")
KS_CPU = Argument("ks_cpu", "Optional[Sequence[int]]", "int[]? ks_cpu", "None")
#: Without a default in DeepGEMM; here one may name ``ks`` instead of ``ks_cpu``.
K_GROUPED_LAYOUT = Argument("grouped_layout", OPTIONAL, "Tensor grouped_layout", "None")

#: Contiguous or masked groups, as the arguments say.
M_GROUPED = (
    Argument("grouped_layout", OPTIONAL, "Tensor? grouped_layout", "None"),
    Argument("masked_m", OPTIONAL, "Tensor? masked_m", "None"),
    Argument("expected_m", "Optional[int]", "int? expected_m", "None"),
    USE_PSUM_LAYOUT,
)

EPILOGUE = (
    Argument("alpha", "float", "float alpha", "1.0"),
    Argument("beta", "float", "float beta", "1.0"),
    Argument("bias", OPTIONAL, "Tensor? bias", "None"),
    Argument("activation", "str", "str activation", '"none"'),
    Argument("gated", "bool", "bool gated", "False"),
    Argument("head_splits", "Optional[Tuple[int, int, int]]", "int[]? head_splits", "None"),
    Argument("d_scales", OPTIONAL, "Tensor(s!)? d_scales", "None"),
    Argument("power_of_two", "bool", "bool power_of_two", "False"),
    Argument("d_format", "Optional[str]", "str? d_format", "None"),
    Argument("tensor_scale", "float", "float tensor_scale", "1.0"),
    Argument("gate", "Optional[Tuple[float, float, float]]", "float[]? gate", "None"),
)

#: The structured arguments of the extension's ``gemm``: tuples of these, in this order. ``src/fields.rs`` has the same.
FIELDS: Dict[str, Tuple[Argument, ...]] = {
    "operands": (A, B),
    "scaled_operands": (SCALED_A, SCALED_B, *RECIPES),
    "m_grouped_contiguous": (
        GROUPED_LAYOUT,
        USE_PSUM_LAYOUT,
        EXPECTED_M_FOR_PSUM_LAYOUT,
        ENSURE_ZERO_PADDING,
    ),
    "m_grouped_masked": (MASKED_M, EXPECTED_M),
    "m_grouped": M_GROUPED,
    "k_grouped_contiguous": (KS_CPU, K_GROUPED_LAYOUT, USE_PSUM_LAYOUT),
    "epilogue": EPILOGUE,
}

#: DeepGEMM's epilogue: the facade makes a fused epilogue of it, of ``alpha`` and of a pair ``d``.
DEEP_GEMM_ALPHA = Argument("alpha", OPTIONAL, default="None")
DEEP_GEMM_EPILOGUE = Argument("epilogue", OPTIONAL, "float? alpha, Tensor(s!)? sfd", "None")
#: The same where no kernel has one: the facade refuses all that is not the identity.
NO_ALPHA = Argument("alpha", OPTIONAL, default="None")
NO_EPILOGUE = Argument("epilogue", OPTIONAL, default="None")

#: Means something on Blackwell alone, where float32 scales become powers of two.
DISABLE_UE8M0_CAST = Argument("disable_ue8m0_cast", "bool", default="False")

#: Arguments of SGLang's fork, of which only the defaults mean something here.
OVERLAP = (
    Argument("enable_overlap", "bool", default="False"),
    Argument("max_block_n", "Optional[int]", default="256"),
    Argument("signal", OPTIONAL, default="None"),
)
USE_PADDED_SF_LAYOUT = Argument("use_padded_sf_layout", "bool", default="False")
#: Another name of ``ks_cpu``.
KS = Argument("ks", "Optional[Sequence[int]]", default="None")


def compiled_dims(dims: str) -> Argument:
    return Argument("compiled_dims", "str", default=f'"{dims}"')


#: Of each layout: the formula, the shapes of A and B, the shapes of their scales, the default of ``compiled_dims``.
LAYOUTS = {
    "nt": ("A·Bᵀ", "[M, K]", "[N, K]", "[M, K/128]", "[N/128, K/128] (or [N, K/128])", "nk"),
    "nn": ("A·B", "[M, K]", "[K, N]", "[M, K/128]", "[K/128, N/128] (or [K/128, N])", "nk"),
    "tn": ("Aᵀ·B", "[K, M]", "[K, N]", "[K/128, M]", "[K/128, N/128] (or [K/128, N])", "mn"),
    "tt": ("Aᵀ·Bᵀ", "[K, M]", "[N, K]", "[K/128, M]", "[N/128, K/128] (or [N, K/128])", "mn"),
}

FP8_GEMM = Operator("fp8_gemm", ("layout",))
FP8_GEMM_SKIP_HEAD_MID = Operator("fp8_gemm_skip_head_mid", ())
HALF_GEMM = Operator("half_gemm", ("dtype", "layout"))
CUBLASLT_GEMM = Operator("cublaslt_gemm", ("layout",))
M_GROUPED_FP8_CONTIGUOUS = Operator("m_grouped_fp8_gemm_contiguous", ("layout",))
M_GROUPED_FP8_MASKED = Operator("m_grouped_fp8_gemm_masked", ("layout",))
M_GROUPED_HALF_CONTIGUOUS = Operator("m_grouped_half_gemm_contiguous", ("dtype", "layout"))
M_GROUPED_HALF_MASKED = Operator("m_grouped_half_gemm_masked", ("dtype", "layout"))
K_GROUPED_FP8 = Operator("k_grouped_fp8_gemm", ("layout",))
K_GROUPED_HALF = Operator("k_grouped_half_gemm", ("dtype", "layout"))
FP8_FUSED = Operator("fp8_gemm_nt_fused", ())
HALF_FUSED = Operator("half_gemm_nt_fused", ("dtype",))
M_GROUPED_FP8_FUSED = Operator("m_grouped_fp8_gemm_nt_fused", ())
M_GROUPED_HALF_FUSED = Operator("m_grouped_half_gemm_nt_fused", ("dtype",))

FP8_NT_DOC = """\
D = C + A·Bᵀ with FP8 operands and fine-grained scales.

======== ============================== ====================== ==========================================
argument shape                          type                   layout
======== ============================== ====================== ==========================================
a[0]     [M, K]                         e4m3 or e5m2           one stride 1; pitch multiples of 16 bytes
a[1]     [M, K/128]                     float32 or UE8M0       any strides
b[0]     [N, K]                         e4m3 or e5m2           one stride 1; pitch multiples of 16 bytes
b[1]     [N/128, K/128]                 float32 or UE8M0       any strides
c, d     [M, N]                         bfloat16 or float32    row-major, any pitch
======== ============================== ====================== ==========================================

Scales of B are 128x128, or 1x128 where they have N rows instead of N/128. With 32 in place of 128, scales are 1x32
(MXFP8) and 32x32, of e4m3. ``recipe`` (or ``recipe_a`` and ``recipe_b``) says so too, ``(1, 128, 128)``,
``(1, 1, 128)``, ``(1, 32, 32)`` or ``(1, 1, 32)``, and is compared with the shapes. A dimension of 1 broadcasts the
scale. ``c`` may be ``d`` itself.

Scales are float32 of any value, or UE8M0: exponents of ``float8_e8m0fnu`` or uint8, or int32 with four of a row in
each, ``[M, K/512]``. ``compiled_dims`` names dimensions out of ``mnk``; no dimension is compiled in.

A or B, or both, may be FP4: int8 or uint8 [M, K/2] with two e2m1 each, the first in the low half, contiguous along
K. Their scales are 1x32, or 1x128; ``recipe_a`` and ``recipe_b`` may differ then, such as ``(1, 128)`` and
``(1, 32)``. Hopper has FP4 as ``b`` alone, MXFP4 beside FP8.

On Blackwell, whose tensor core takes scales as powers of two, float32 scales are rounded down, as by DeepGEMM.
``disable_ue8m0_cast`` refuses that there: scales are UE8M0 then. Hopper rounds no scales but those of MXFP4.

``alpha`` is a factor of the product, a number or an array of one element on the CPU. ``epilogue`` is an object of
``deep_gemm.epilogue``. A pair ``(d, sfd)`` instead of ``d``, e4m3 [M, N] and float32 [M, N/128], is the short form
of ``epilogue.FP8Quantization(sfd)``. Both need K-major operands of e4m3 and 128x128 scales of B.
"""


def epilogue_of(layout: str) -> Tuple[Argument, Argument]:
    """``alpha`` and ``epilogue`` of a dense function: kernels with a fused epilogue read K-major operands."""
    return (DEEP_GEMM_ALPHA, DEEP_GEMM_EPILOGUE) if layout == "nt" else (NO_ALPHA, NO_EPILOGUE)


def fp8_dense(layout: str) -> Function:
    formula, a, b, sfa, sfb, dims = LAYOUTS[layout]
    doc = (
        f"``fp8_fp4_gemm_nt`` for D = C + {formula}: A {a} with scales {sfa},\nB {b} with scales {sfb}.\n"
        if layout != "nt"
        else FP8_NT_DOC
    )
    arguments = (SCALED_A, SCALED_B, D, C, *RECIPES, compiled_dims(dims), DISABLE_UE8M0_CAST, *epilogue_of(layout))
    aliases = (f"fp8_gemm_{layout}",) + (("fp4_gemm_nt",) if layout == "nt" else ())
    return Function(f"fp8_fp4_gemm_{layout}", "fp8", layout, "dense", FP8_GEMM, arguments, doc, aliases)


def half_dense(short: str, dtype: str, layout: str) -> Function:
    formula, a, b, _, _, dims = LAYOUTS[layout]
    doc = (
        f"D = C + {formula} with {dtype} operands: A {a}, B {b}, C and D [M, N].\n\n"
        "A and B have a stride of 1 along one dimension and a pitch of multiples of 16 bytes. C and D are\n"
        f"{dtype} or float32, row-major with any pitch. ``c`` may be ``d`` itself.\n"
    )
    if layout == "nt":
        doc += (
            "\n``alpha`` is a factor of the product, ``epilogue`` an object of ``deep_gemm.epilogue``, and ``d`` may\n"
            "be a pair ``(d, sfd)`` of e4m3 and its scales, as for ``fp8_fp4_gemm_nt``; A and B are then K-major.\n"
        )
    arguments = (A, B, D, C, compiled_dims(dims), *epilogue_of(layout))
    return Function(f"{short}_gemm_{layout}", dtype, layout, "dense", HALF_GEMM, arguments, doc)


def tf32_dense(layout: str) -> Function:
    formula, a, b, _, _, dims = LAYOUTS[layout]
    doc = (
        f"D = C + {formula} with float32 operands, multiplied as TF32: A {a}, B {b}, C and D [M, N].\n\n"
        "A and B have a stride of 1 along one dimension and a pitch of multiples of 16 bytes. The tensor core reads\n"
        "the upper 19 bits of an operand. C and D are float32, row-major with any pitch. ``c`` may be ``d`` itself.\n"
        "On the CPU and on Blackwell; Hopper has no such kernel.\n"
    )
    arguments = (A, B, D, C, compiled_dims(dims), NO_ALPHA, NO_EPILOGUE)
    return Function(f"tf32_gemm_{layout}", "float32", layout, "dense", HALF_GEMM, arguments, doc)


def cublaslt(layout: str) -> Function:
    formula, a, b, _, _, _ = LAYOUTS[layout]
    doc = (
        f"D = C + {formula} by cuBLASLt, without scales: A {a}, B {b}, C and D [M, N], tensors of a GPU.\n\n"
        "Raises an error where cuBLASLt is not found, or has no such GEMM.\n"
    )
    return Function(f"cublaslt_gemm_{layout}", None, layout, "dense", CUBLASLT_GEMM, (A, B, D, C), doc)


FP8_SKIP_HEAD_MID = Function(
    "fp8_gemm_nt_skip_head_mid",
    "fp8",
    "nt",
    "dense",
    FP8_GEMM_SKIP_HEAD_MID,
    (
        SCALED_A,
        SCALED_B,
        D,
        Argument("head_splits", "Tuple[int, int, int]", "int[] head_splits"),
        RECIPES[0],
        compiled_dims("nk"),
        DISABLE_UE8M0_CAST,
    ),
    """\
D = A·Bᵀ whose heads have columns in the middle that are skipped.

Operands are those of ``fp8_gemm_nt``. ``head_splits`` is ``(left, mid, right)``: a head has ``left + right`` rows
of B, and ``left + mid + right`` columns of D, of which the middle ones keep their values.
""",
    is_listed=False,
)

HALVES = (("bf16", "bfloat16"), ("fp16", "float16"))

GEMM = Module(
    "deep_gemm/gemm.py",
    "Dense GEMMs.",
    [*(fp8_dense(layout) for layout in LAYOUTS), FP8_SKIP_HEAD_MID]
    + [half_dense(short, dtype, layout) for short, dtype in HALVES for layout in LAYOUTS]
    + [tf32_dense(layout) for layout in LAYOUTS],
)

BASELINE = Module(
    "deep_gemm/baseline.py",
    "GEMMs by cuBLASLt, where it is found: the baseline.",
    [cublaslt(layout) for layout in LAYOUTS],
)

M_GROUPED_FP8_NT_CONTIGUOUS = Function(
    "m_grouped_fp8_fp4_gemm_nt_contiguous",
    "fp8",
    "nt",
    "m_grouped_contiguous",
    M_GROUPED_FP8_CONTIGUOUS,
    (
        SCALED_A,
        SCALED_B,
        D,
        GROUPED_LAYOUT,
        *RECIPES,
        compiled_dims("nk"),
        DISABLE_UE8M0_CAST,
        USE_PSUM_LAYOUT,
        ENSURE_ZERO_PADDING,
        EXPECTED_M_FOR_PSUM_LAYOUT,
        DEEP_GEMM_EPILOGUE,
    ),
    """\
M-grouped contiguous FP8 GEMM, D = A·Bᵀ: groups of rows follow each other in A, and each has a B of its own.

============== ================= =================== =====================================================
argument       shape             type                layout
============== ================= =================== =====================================================
a[0]           [M, K]            e4m3                K-major, pitch multiples of 16 bytes
a[1]           [M, K/128]        float32 or UE8M0    any strides
b[0]           [G, N, K]         e4m3                K-major, pitch and group stride multiples of 16 bytes
b[1]           [G, N/128, K/128] float32 or UE8M0    any strides
d              [M, N]            bfloat16 or float32 row-major, any pitch
grouped_layout [M], psum [G]     int32               contiguous
============== ================= =================== =====================================================

``grouped_layout`` has the group of each row, or -1 for padding rows; with ``use_psum_layout``, the end row of each
group. A group starts at a multiple of ``get_mk_alignment_for_contiguous_layout()`` rows. Padding rows cost no
tensor-core work, whatever they hold in A. The kernel reads ``grouped_layout``: a CUDA graph may be replayed with
another. ``expected_m_for_psum_layout`` is the expected rows of a group. The plan depends on it, and so do the last
bits of large groups.

A second small kernel zeroes the rows of group -1 in D; with ``use_psum_layout`` padding rows keep their values.
``ensure_zero_padding`` has no effect on either, as in DeepGEMM on Hopper. ``epilogue`` and a pair ``d`` are as for
``fp8_fp4_gemm_nt``; padding rows of a quantized D keep their values.
""",
    ("m_grouped_fp8_gemm_nt_contiguous", "m_grouped_fp4_gemm_nt_contiguous"),
)

M_GROUPED_FP8_NN_CONTIGUOUS = Function(
    "m_grouped_fp8_fp4_gemm_nn_contiguous",
    "fp8",
    "nn",
    "m_grouped_contiguous",
    M_GROUPED_FP8_CONTIGUOUS,
    (*M_GROUPED_FP8_NT_CONTIGUOUS.arguments[:-2], NO_EPILOGUE),
    """\
``m_grouped_fp8_fp4_gemm_nt_contiguous`` for B [G, K, N] with scales [G, K/128, N/128], D = A·B.

A B that is not K-major is transposed first. Keep it K-major where you can.
""",
    ("m_grouped_fp8_gemm_nn_contiguous",),
)

M_GROUPED_FP8_NT_MASKED = Function(
    "m_grouped_fp8_fp4_gemm_nt_masked",
    "fp8",
    "nt",
    "m_grouped_masked",
    M_GROUPED_FP8_MASKED,
    (
        SCALED_A,
        SCALED_B,
        D,
        MASKED_M,
        EXPECTED_M,
        *RECIPES,
        compiled_dims("nk"),
        DISABLE_UE8M0_CAST,
        DEEP_GEMM_EPILOGUE,
        *OVERLAP,
    ),
    """\
M-grouped masked FP8 GEMM, D = A·Bᵀ: each group has memory for M rows, the first ``masked_m[g]`` are valid.

======== ================= =================== =======================================================
argument shape             type                layout
======== ================= =================== =======================================================
a[0]     [G, M, K]         e4m3                K-major, pitch and group stride multiples of 16 bytes
a[1]     [G, M, K/128]     float32 or UE8M0    any strides
b[0]     [G, N, K]         e4m3                as a[0]
b[1]     [G, N/128, K/128] float32 or UE8M0    any strides
d        [G, M, N]         bfloat16 or float32 row-major, any pitch
masked_m [G]               int32               contiguous
======== ================= =================== =======================================================

Other rows of D keep their values and cost nothing. The kernel reads ``masked_m``: a CUDA graph may be replayed with
other counts. ``expected_m`` is the expected rows of a group. The plan depends on it, and so do the last bits of
large groups. ``epilogue`` and a pair ``d`` are as for ``fp8_fp4_gemm_nt``.

``enable_overlap``, ``max_block_n`` and ``signal`` are arguments of SGLang's build of DeepGEMM: only their defaults
are accepted.
""",
    ("m_grouped_fp8_gemm_nt_masked", "fp8_m_grouped_gemm_nt_masked", "m_grouped_fp4_gemm_nt_masked"),
)


def half_contiguous(short: str, dtype: str, layout: str) -> Function:
    arguments = (A, B, D, GROUPED_LAYOUT, compiled_dims("nk"), USE_PSUM_LAYOUT, ENSURE_ZERO_PADDING)
    arguments += (EXPECTED_M_FOR_PSUM_LAYOUT, DEEP_GEMM_EPILOGUE) if layout == "nt" else (NO_EPILOGUE,)
    doc = {
        ("bf16", "nt"): (
            "M-grouped contiguous GEMM, D = A·Bᵀ: A [M, K] and B [G, N, K] bfloat16, D [M, N] bfloat16 or float32.\n\n"
            "Groups, padding rows and ``epilogue`` are as for ``m_grouped_fp8_gemm_nt_contiguous``. B is\n"
            "contiguous along N or along K, with an epilogue along K.\n"
        ),
        ("bf16", "nn"): "``m_grouped_bf16_gemm_nt_contiguous`` for B [G, K, N], D = A·B.",
    }.get((short, layout), f"``m_grouped_bf16_gemm_{layout}_contiguous`` for float16.")
    name = f"m_grouped_{short}_gemm_{layout}_contiguous"
    return Function(name, dtype, layout, "m_grouped_contiguous", M_GROUPED_HALF_CONTIGUOUS, arguments, doc)


def half_masked(short: str, dtype: str) -> Function:
    doc, aliases = "``m_grouped_bf16_gemm_nt_masked`` for float16.", ()
    if short == "bf16":
        aliases = ("bf16_m_grouped_gemm_nt_masked",)
        doc = (
            "M-grouped masked GEMM, D = A·Bᵀ: A [G, M, K], B [G, N, K] bfloat16, D [G, M, N] bfloat16 or float32.\n\n"
            "Groups and ``epilogue`` are as for ``m_grouped_fp8_gemm_nt_masked``.\n"
        )
    arguments = (A, B, D, MASKED_M, EXPECTED_M, compiled_dims("nk"), DEEP_GEMM_EPILOGUE)
    name = f"m_grouped_{short}_gemm_nt_masked"
    return Function(name, dtype, "nt", "m_grouped_masked", M_GROUPED_HALF_MASKED, arguments, doc, aliases)


def half_k_grouped(short: str, dtype: str) -> Function:
    doc = "``k_grouped_bf16_gemm_tn_contiguous`` for float16."
    if short == "bf16":
        doc = """\
K-grouped GEMM, D[g] = C[g] + A_gᵀ·B_g: groups share M and N, and have a K each. The gradients of weights.

A [sum of K_g, M] and B [sum of K_g, N] are bfloat16, row-major, with a pitch of multiples of 16 bytes; C and D
[G, M, N] are bfloat16 or float32. ``grouped_layout``, int32 [G], is the K of each group, any number. ``ks_cpu``, or
``ks``, are the same numbers on the host; None or empty where it does not know them.

With ``use_psum_layout``, ``grouped_layout`` has the end of each group along K. A group begins where the one before
it ends, rounded up to ``get_mk_alignment_for_contiguous_layout()``; what lies between is not read.
"""
    arguments = (A, B, D, KS_CPU, K_GROUPED_LAYOUT, C, compiled_dims("mn"), USE_PSUM_LAYOUT, NO_EPILOGUE, KS)
    name = f"k_grouped_{short}_gemm_tn_contiguous"
    return Function(name, dtype, "tn", "k_grouped_contiguous", K_GROUPED_HALF, arguments, doc)


K_GROUPED_FP8_NT = Function(
    "k_grouped_fp8_gemm_nt_contiguous",
    "fp8",
    "nt",
    "k_grouped_contiguous",
    K_GROUPED_FP8,
    (
        SCALED_A,
        SCALED_B,
        D,
        KS_CPU,
        K_GROUPED_LAYOUT,
        C,
        RECIPE_1D1D,
        compiled_dims("mn"),
        USE_PSUM_LAYOUT,
        NO_EPILOGUE,
        USE_PADDED_SF_LAYOUT,
        KS,
    ),
    """\
K-grouped FP8 GEMM, D[g] = C[g] + A_g·B_gᵀ: groups share M and N, and have a K each. The gradients of weights.

============== ======================================= =================== ====================================
argument       shape                                   type                layout
============== ======================================= =================== ====================================
a[0]           all elements, of each group [M, K_g]    e4m3                contiguous; K_g rounded up to 16
a[1]           [M, sum of K_g/128]                     float32 or UE8M0    any strides
b[0]           all elements, of each group [N, K_g]    e4m3                contiguous; K_g rounded up to 16
b[1]           [N, sum of K_g/128]                     float32 or UE8M0    any strides
c, d           [G, M, N]                               bfloat16 or float32 row-major, any pitch
grouped_layout [G]: the K of each group                int32               contiguous
============== ======================================= =================== ====================================

``ks_cpu``, or ``ks``, are the same numbers on the host, compared with the shapes; None or empty where it does not
know them. K_g may be any number, also 0. Packed UE8M0 scales are int32 [M, sum/4]: blocks of all groups, in order.
``recipe`` ``(1, 1, 32)`` means scales of 32 instead of 128, for Blackwell.

With ``use_psum_layout``, ``grouped_layout`` has the end of each group along K. A group begins where the one before
it ends, rounded up to ``get_mk_alignment_for_contiguous_layout()``, 16 or more: its [M, K_g] begins at M times
that. ``use_padded_sf_layout`` is of SGLang's build of DeepGEMM: only False is accepted.
""",
)

K_GROUPED_FP8_TN = Function(
    "k_grouped_fp8_gemm_tn_contiguous",
    "fp8",
    "tn",
    "k_grouped_contiguous",
    K_GROUPED_FP8,
    (SCALED_A, SCALED_B, D, KS_CPU, K_GROUPED_LAYOUT, C, RECIPE_1D1D, *K_GROUPED_FP8_NT.arguments[7:10], KS),
    """\
``k_grouped_fp8_gemm_nt_contiguous`` for A [sum of K_g, M] and B [sum of K_g, N], D[g] = C[g] + A_gᵀ·B_g.

Scales are [sum of K_g/128, M] and [sum of K_g/128, N], where each K_g is divided for itself. Groups follow each
other without gaps; ``use_psum_layout`` is refused.
""",
)

K_GROUPED_FP4_NT = Function(
    "k_grouped_fp4_gemm_nt_contiguous",
    "fp8",
    "nt",
    "k_grouped_contiguous",
    K_GROUPED_FP8,
    (SCALED_A, SCALED_B, D, KS_CPU, K_GROUPED_LAYOUT, C, RECIPE_OF_32, *K_GROUPED_FP8_NT.arguments[7:10], KS),
    """\
``k_grouped_fp8_gemm_nt_contiguous`` of FP4 operands with scales of 32 (MXFP4): two of K in each byte, K_g even.

A byte has the first of two in its low half, and rows of a group are rounded up to 16 bytes. Hopper has no FP4.
""",
)

GROUPED = Module(
    "deep_gemm/grouped.py",
    "Grouped GEMMs: m-grouped contiguous and masked (experts of a mixture), and k-grouped (their weight gradients).",
    [M_GROUPED_FP8_NT_CONTIGUOUS, M_GROUPED_FP8_NN_CONTIGUOUS, M_GROUPED_FP8_NT_MASKED]
    + [
        function
        for short, dtype in HALVES
        for function in (
            half_contiguous(short, dtype, "nt"),
            half_contiguous(short, dtype, "nn"),
            half_masked(short, dtype),
        )
    ]
    + [half_k_grouped(short, dtype) for short, dtype in HALVES]
    + [K_GROUPED_FP8_NT, K_GROUPED_FP8_TN, K_GROUPED_FP4_NT],
)

FP8_FUSED_DOC = """\
``D = act(alpha * A·Bᵀ + bias) + beta * C``, all in float32 and rounded once.

With ``gated`` the first half of B's rows are gates and the other half ups: ``D = act(gate) * up + beta * C``. With
``activation="silu"`` this is SwiGLU.

======== ================================== ======================= ==========================================
argument shape                              type                    layout
======== ================================== ======================= ==========================================
a[0]     [M, K]                             e4m3                    K-major, pitch multiples of 16 bytes
a[1]     [M, K/128]                         float32                 any strides
b[0]     [N, K]                             e4m3                    K-major, pitch multiples of 16 bytes
b[1]     [N/128, K/128]                     float32                 any strides
bias     [N]                                bfloat16 or float32     contiguous
c        as d                               as d                    row-major, any pitch; may be d itself
d        [M, N]; [M, N/2] if gated          bfloat16, float32, e4m3 row-major, any pitch
d_scales [M, N/128]; [M, N/2/128] if gated  float32                 any strides; only with a d of e4m3
======== ================================== ======================= ==========================================

``activation`` is ``none``, ``relu``, ``relu_squared``, ``gelu``, ``gelu_tanh`` or ``silu``. With ``gated``,
``gate`` is ``(slope, limit, up_offset)``: ``D = act(min(gate, limit)) * (clamp(up, -limit, limit) + up_offset)``,
where ``silu`` is ``x / (1 + exp(-slope * x))``; gpt-oss has ``(1.702, 7.0, 1.0)``. ``head_splits`` is
``(left, mid, right)``: of every ``left + mid + right`` columns of D the middle ones are skipped, and keep their
values. A ``d`` of e4m3 is quantized with 1x128 scales, as by ``quantization.quantize``; ``power_of_two`` rounds the
scales up to powers of two. A quantized ``d`` takes neither ``c`` nor ``head_splits``.

On Blackwell operands may be of FP8 or FP4 with any scales of ``deep_gemm.fp8_fp4_gemm_nt``; ``recipe``, or
``recipe_a`` and ``recipe_b``, say of how many each is, where shapes leave that open; ``(1, 1, 16)`` is NVFP4, whose
scales of all of A and of all of B are factors of ``alpha``.

On Blackwell and on the CPU, ``d_format`` is ``fp8``, ``mxfp8``, ``mxfp4`` or ``nvfp4``, whose scales are bytes of
128, 32, 32 and 16 columns: ``d_scales`` are int32, four scales of a row in each, [M, ceil(S/4)] for S scales a row,
as the next GEMM reads them. FP4 are uint8 [M, N/2]. ``tensor_scale`` is the scale of all that NVFP4 has.
"""

M_GROUPED_FP8_FUSED_DOC = """\
``fp8_gemm_nt_fused`` for m-grouped rows, each group with a B of its own: the first GEMM of experts.

============== ====================================== =======================================================
argument       contiguous                             masked
============== ====================================== =======================================================
a[0], a[1]     [M, K], [M, K/128]                     [G, M, K], [G, M, K/128]
b[0], b[1]     [G, N, K], [G, N/128, K/128]           the same
bias           [G, N], or [N] for all groups          the same
d, d_scales    [M, N], [M, N/128]; N/2 if gated       [G, M, N], [G, M, N/128]; N/2 if gated
grouped_layout int32 [M]: the group of each row or -1 None
               or, with ``use_psum_layout``, [G]:
               the end row of each group
masked_m       None                                   int32 [G]: the rows of each group
expected_m     with ``use_psum_layout``: expected     expected rows of a group
               rows of a group
============== ====================================== =======================================================

All else is as for ``fp8_gemm_nt_fused``. The groups are read on the device, so a CUDA graph may be replayed with
others. ``expected_m`` decides which kernel is taken and nothing else. Rows of no group keep their values, in D and
in its scales. They may hold anything when the next GEMM of the same groups reads them.
"""


def fused(short: str, dtype: str, grouping: str) -> Function:
    is_fp8, is_grouped = short == "fp8", grouping != "dense"
    operands = (SCALED_A, SCALED_B) if is_fp8 else (A, B)
    operator = {
        (True, False): FP8_FUSED,
        (True, True): M_GROUPED_FP8_FUSED,
        (False, False): HALF_FUSED,
        (False, True): M_GROUPED_HALF_FUSED,
    }[is_fp8, is_grouped]
    prefix = "m_grouped_" if is_grouped else ""
    doc = {
        ("fp8", False): FP8_FUSED_DOC,
        ("fp8", True): M_GROUPED_FP8_FUSED_DOC,
        ("bf16", False): (
            "``fp8_gemm_nt_fused`` for bfloat16 operands: A [M, K], B [N, K], K-major, pitch multiples of 16 bytes.\n\n"
            "D is bfloat16, float32, or e4m3 with ``d_scales``; the bias is bfloat16 or float32. N/2 may be any\n"
            "number with ``gated``.\n"
        ),
        ("bf16", True): (
            "``bf16_gemm_nt_fused`` for m-grouped rows, each group with a B of its own.\n\n"
            "A is [M, K] or, masked, [G, M, K]; B is [G, N, K]. All else is as for ``m_grouped_fp8_gemm_nt_fused``.\n"
        ),
    }.get((short, is_grouped), f"``{prefix}bf16_gemm_nt_fused`` with float16 wherever that has bfloat16.")
    recipes = RECIPES if is_fp8 else ()
    arguments = (*operands, D, *(M_GROUPED if is_grouped else ()), C, *EPILOGUE, *recipes)
    return Function(f"{prefix}{short}_gemm_nt_fused", dtype, "nt", grouping, operator, arguments, doc)


FUSED = Module(
    "fused.py",
    "GEMMs with a fused epilogue: bias, activation, gate, quantization. For torch and for numpy.",
    [fused(*kind, grouping) for grouping in ("dense", "m_grouped") for kind in (("fp8", "fp8"), *HALVES)],
)

MODULES = (GEMM, GROUPED, BASELINE, FUSED)
