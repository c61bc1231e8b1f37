"""Cases of ``versus.py``: which problems two modules are timed with.

``anchor_cases()`` are the 76 of docs/performance.md. ``model_cases(seed)`` draws weights and experts of public models,
with rows, group sizes and scale layouts as engines have them. The name of a case says its kind and its sizes.
"""

from __future__ import annotations

import random
from typing import Optional

from versus_operands import BLOCK, CAPACITY, Accumulated, Case, Dense, KGrouped, MGrouped, Paged, Prefill, round_up

#: N and K of the anchor's dense cases.
ANCHOR_FP8 = [(2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)]
ANCHOR_BF16 = [(2112, 7168), (7168, 16384), (4096, 7168)]
#: N and K of the anchor's experts.
ANCHOR_EXPERTS = [(6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048)]


def anchor_cases() -> list[Case]:
    """The 76 fixed cases of docs/performance.md."""
    cases: list[Case] = [Dense(m, n, k) for m in (1, 64, 128, 4096) for n, k in ANCHOR_FP8]
    cases += [Dense(8192, 8192, 8192)]
    cases += [Accumulated(*mnk) for mnk in ((4096, 7168, 4096), (7168, 4096, 2048), (24576, 4096, 1536))]
    cases += [Dense(m, n, k, bf16=True) for m in (1, 128, 4096) for n, k in ANCHOR_BF16]
    cases += [Dense(8192, 8192, 8192, bf16=True)]
    for kind, groups in (("contig", ((4, 8192), (8, 4096))), ("masked", ((32, 192), (6, 1024), (32, 20), (6, 20)))):
        cases += [MGrouped(kind, g, rows, n, k) for g, rows in groups for n, k in ANCHOR_EXPERTS]
        g, rows = (8, 4096) if kind == "contig" else (32, 192)
        cases += [MGrouped(kind, g, rows, 4096, 4096, bf16=True)]
    cases += [KGrouped(4, 4096, 7168, 8192), KGrouped(8, 7168, 2048, 4096)]
    cases += [Prefill(2048, 8192, 64, 128), Prefill(2048, 65536, 64, 128), Prefill(2048, 8192, 32, 64)]
    return [*cases, Paged(64, 1, 64, 128, 8192), Paged(64, 2, 64, 128, 8192), Paged(256, 1, 32, 128, 8192)]


#: N and K of weights of public models, whole or split over 2 to 8 GPUs.
LAYERS = [
    # DeepSeek V3
    *[(2112, 7168), (3072, 1536), (4608, 7168), (7168, 2304), (7168, 2048)],
    *[(7168, 16384), (18432, 7168), (7168, 18432), (24576, 1536), (1536, 7168)],
    # Qwen3
    *[(9216, 4096), (4096, 8192), (5120, 2048), (2048, 4096)],
    # Llama, 70 and 8 billion parameters
    *[(10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672), (7168, 8192), (8192, 3584), (1280, 8192)],
    *[(8192, 1024), (6144, 4096), (28672, 4096), (4096, 14336)],
    # Others
    *[(5120, 5120), (27648, 5120), (5120, 13824), (12288, 4096), (2880, 2880), (5760, 2880), (4096, 1280)],
    *[(5120, 1792)],
]
#: Experts of a GPU, N and K of each.
EXPERTS = [
    *[(32, 4096, 7168), (32, 7168, 2048), (8, 4096, 7168), (8, 7168, 2048), (128, 1536, 4096), (128, 4096, 768)],
    *[(16, 3072, 4096), (16, 4096, 1536), (48, 4096, 7168), (48, 7168, 2048), (64, 2816, 2048), (64, 2048, 1408)],
    *[(8, 28672, 4096), (8, 4096, 14336), (256, 512, 7168), (256, 7168, 256), (32, 5760, 2880), (32, 2880, 2880)],
]
#: How often each kind is drawn.
KINDS = {"fp8": 40, "bf16": 14, "masked": 16, "contig": 16, "1d1d": 6, "kgrouped": 4, "paged": 4}
#: Rows of all groups of a contiguous case, groups of a masked one and of one along K, at most.
MOST_ROWS, MOST_MASKED, MOST_K_GROUPS = 80_000, 128, 32


def log_uniform(drawn: random.Random, low: float, high: float) -> int:
    """A number whose binary logarithm is uniform."""
    return int(2 ** drawn.uniform(low, high))


def draw_dense(drawn: random.Random, bf16: bool, mn: bool) -> Case:
    m, (n, k) = max(1, log_uniform(drawn, -0.5, 13.3)), drawn.choice(LAYERS)
    return Dense(m, n, k, bf16, mn and not bf16)


def draw_accumulated(drawn: random.Random) -> Optional[Case]:
    m, (n, k) = round_up(log_uniform(drawn, 9, 13.5), BLOCK), drawn.choice(LAYERS)
    return None if n % BLOCK or k % BLOCK else Accumulated(m, n, k)


def draw_k_grouped(drawn: random.Random) -> Optional[Case]:
    groups, m, n = drawn.choice(EXPERTS)
    if groups > MOST_K_GROUPS or m % BLOCK or n % BLOCK:
        return None
    return KGrouped(groups, m, n, round_up(log_uniform(drawn, 8, 12), BLOCK))


def draw_paged(drawn: random.Random) -> Case:
    sequences, next_n, heads = drawn.choice((16, 48, 128, 200)), drawn.choice((1, 2)), drawn.choice((32, 64))
    return Paged(sequences, next_n, heads, 128, log_uniform(drawn, 10, 15))


def draw_m_grouped(drawn: random.Random, kind: str, mn: bool) -> Optional[Case]:
    (groups, n, k), is_skewed = drawn.choice(EXPERTS), drawn.random() < 0.5
    rows = log_uniform(drawn, 1, 8.5) if kind == "masked" else log_uniform(drawn, 4, 11)
    too_many = groups > MOST_MASKED if kind == "masked" else rows * groups > MOST_ROWS
    if k % BLOCK or too_many:
        return None
    capacity = min(CAPACITY, max(BLOCK, round_up(4 * rows, BLOCK)))
    return MGrouped(kind, groups, rows, n, k, skewed=is_skewed, mn=mn, capacity=capacity)


def draw(drawn: random.Random) -> Optional[Case]:
    """A case, or None where its sizes are of no case. The order of the draws decides what a seed means."""
    (kind,) = drawn.choices(list(KINDS), list(KINDS.values()))
    mn = drawn.random() < 0.5
    if kind in ("fp8", "bf16"):
        return draw_dense(drawn, kind == "bf16", mn)
    if kind in ("masked", "contig"):
        return draw_m_grouped(drawn, kind, mn)
    return {"1d1d": draw_accumulated, "kgrouped": draw_k_grouped, "paged": draw_paged}[kind](drawn)


def model_cases(seed: int, count: int = 80) -> list[Case]:
    """Cases of a seed; those of a smaller count are the first ones."""
    drawn = random.Random(seed)
    cases: list[Case] = []
    while len(cases) < count:
        case = draw(drawn)
        cases += [case] if case else []
    return cases
