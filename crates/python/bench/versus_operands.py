"""Operands of the cases of ``versus.py``, and the functions of DeepGEMM that take them.

A case builds its operands on a device, once for all modules. Its reference is the FP32 product of the numbers that
codes and scales stand for, so a correct result differs from it by its own rounding alone.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union

import torch

E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16
LARGEST_E4M3 = 448.0
#: Columns that share a scale, and rows of B that do.
BLOCK = 128
#: The alignment of the first row of a contiguous group.
ALIGNMENT = 128
#: Rows of memory of a masked group, at most.
CAPACITY = 4096
#: Keys of a page of the paged cache.
PAGE = 64

#: Codes with their scales, or numbers of 16 bits.
Operand = Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Call:
    """A module's function with the operands of a problem."""

    run: Callable[[], Any]
    #: What a run has computed, as far as it is defined; a function that accumulates is run on zeros for it.
    result: Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Problem:
    """Operands of a case on a device."""

    operands: dict[str, Any]
    reference: Callable[[], torch.Tensor]
    #: The function of a module, with an output of its own.
    call: Callable[[Any], Call]
    flops: int
    #: What is read and written at least.
    bytes: int


def round_up(x: int, step: int) -> int:
    return -(-x // step) * step


def normals(*shape: int, device: str, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=dtype)


def numbers(values: list[int], device: str) -> torch.Tensor:
    return torch.tensor(values, device=device, dtype=torch.int32)


def quantized(x: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of [M, K], with a scale for each block of ``rows`` x 128; M and K may be any numbers."""
    m, k = x.shape
    padded = torch.zeros(round_up(m, rows), round_up(k, BLOCK), device=x.device)
    padded[:m, :k] = x
    blocks = padded.view(-1, rows, padded.shape[1] // BLOCK, BLOCK)
    scales = blocks.abs().amax((1, 3)).clamp_min(1e-4) / LARGEST_E4M3
    codes = (blocks / scales[:, None, :, None]).view_as(padded)[:m, :k]
    return codes.to(E4M3).contiguous(), scales


def exact(operand: Operand) -> torch.Tensor:
    """The numbers that an operand [..., M, K] stands for, in FP32."""
    if isinstance(operand, torch.Tensor):
        return operand.float()
    codes, scales = operand
    rows = 1 if scales.shape[-2] == codes.shape[-2] else BLOCK
    scales = scales.repeat_interleave(rows, -2).repeat_interleave(BLOCK, -1)
    return codes.float() * scales[..., : codes.shape[-2], : codes.shape[-1]]


def part(operand: Operand, where: Any) -> Operand:
    """A group of an operand, or rows with scales of their own."""
    return operand[where] if isinstance(operand, torch.Tensor) else (operand[0][where], operand[1][where])


def mn_major(scales: torch.Tensor) -> torch.Tensor:
    """The same scales [..., M, K] with M contiguous, and padded to 16 bytes: as kernels read them."""
    *groups, m, blocks = scales.shape
    memory = torch.zeros(*groups, blocks, round_up(m, 4), device=scales.device)
    return memory.transpose(-1, -2)[..., :m, :].copy_(scales)


def activations(x: torch.Tensor, bf16: bool, mn: bool) -> Operand:
    """A of a GEMM: the numbers themselves, or codes with 1x128 scales."""
    if bf16:
        return x
    codes, scales = quantized(x, 1)
    return codes, mn_major(scales) if mn else scales


def weights(n: int, k: int, bf16: bool, device: str) -> Operand:
    """B of a GEMM: numbers, or codes with 128x128 scales."""
    return normals(n, k, device=device) if bf16 else quantized(normals(n, k, device=device), BLOCK)


def stacked(groups: list[Operand]) -> Operand:
    """An operand with a group dimension."""
    if isinstance(groups[0], torch.Tensor):
        return torch.stack(groups)
    codes, scales = zip(*groups)
    return torch.stack(codes), torch.stack(scales)


def joined(codes: list[torch.Tensor]) -> torch.Tensor:
    """Concatenated codes."""
    return torch.cat([x.flatten().view(torch.uint8) for x in codes]).view(E4M3)


def onto(d: torch.Tensor, run: Callable[[], Any]) -> Call:
    """A call that adds to ``d``."""

    def result() -> torch.Tensor:
        d.zero_()
        run()
        return d.clone()

    return Call(run, result)


def returned(run: Callable[[], torch.Tensor], seen: torch.Tensor) -> Call:
    """A call that returns logits, of which only those that are seen are defined."""
    held: dict[str, torch.Tensor] = {}

    def keep() -> None:
        held["logits"] = run()

    return Call(keep, lambda: held["logits"].float().masked_fill(~seen, 0))


def even(groups: int, rows: int) -> list[int]:
    """Sizes of groups between 0.7 and 1.3 of the mean: no tile height divides them all."""
    drawn = random.Random(0)
    return [int(rows * drawn.uniform(0.7, 1.3)) for _ in range(groups)]


def skewed(groups: int, rows: int) -> list[int]:
    """Sizes of groups as a router gives them: a few hot experts, many cold ones, the same total."""
    drawn = random.Random(0)
    shares = [drawn.paretovariate(1.2) for _ in range(groups)]
    return [int(share / sum(shares) * rows * groups) for share in shares]


class Case:
    """A problem with a name."""

    @property
    def name(self) -> str:
        raise NotImplementedError

    def build(self, device: str) -> Problem:
        """Operands, of torch's current seed."""
        raise NotImplementedError


@dataclass(frozen=True)
class Dense(Case):
    """D = A B^T, written in BF16: FP8 with 1x128 and 128x128 scales, or BF16."""

    m: int
    n: int
    k: int
    bf16: bool = False
    mn: bool = False

    @property
    def name(self) -> str:
        return f"{'bf16' if self.bf16 else 'fp8'}_dense m{self.m} n{self.n} k{self.k}{' mn' if self.mn else ''}"

    def build(self, device: str) -> Problem:
        m, n, k = self.m, self.n, self.k
        a = activations(normals(m, k, device=device), self.bf16, self.mn)
        b = weights(n, k, self.bf16, device)

        def call(module: Any) -> Call:
            function = module.bf16_gemm_nt if self.bf16 else module.fp8_gemm_nt
            d = torch.zeros(m, n, device=device, dtype=BF16)
            return Call(lambda: function(a, b, d), lambda: d)

        size = 2 if self.bf16 else 1
        moved = size * (m * k + n * k) + 2 * m * n
        return Problem({"a": a, "b": b}, lambda: exact(a) @ exact(b).T, call, 2 * m * n * k, moved)


@dataclass(frozen=True)
class Accumulated(Case):
    """D += A B^T in FP32, with 1x128 scales of both (1D1D)."""

    m: int
    n: int
    k: int

    @property
    def name(self) -> str:
        return f"fp8_1d1d m{self.m} n{self.n} k{self.k}"

    def build(self, device: str) -> Problem:
        m, n, k = self.m, self.n, self.k
        a, b = (quantized(normals(rows, k, device=device), 1) for rows in (m, n))

        def call(module: Any) -> Call:
            d = torch.zeros(m, n, device=device)
            return onto(d, lambda: module.fp8_gemm_nt(a, b, d, c=d, recipe=(1, 1, BLOCK)))

        moved = m * k + n * k + 8 * m * n
        return Problem({"a": a, "b": b}, lambda: exact(a) @ exact(b).T, call, 2 * m * n * k, moved)


@dataclass(frozen=True)
class MGrouped(Case):
    """M-grouped GEMM, contiguous or masked with ``capacity`` rows: rows of each group by its own weights."""

    kind: str
    groups: int
    rows: int
    n: int
    k: int
    bf16: bool = False
    skewed: bool = False
    mn: bool = False
    capacity: int = CAPACITY

    @property
    def name(self) -> str:
        sizes = f"g{self.groups} em{self.rows} n{self.n} k{self.k}"
        suffix = (" skewed" if self.skewed else "") + (" mn" if self.mn else "")
        return f"{'bf16' if self.bf16 else 'fp8'}_{self.kind} {sizes}{suffix}"

    def sizes(self) -> list[int]:
        """Rows of each group."""
        drawn = (skewed if self.skewed else even)(self.groups, self.rows)
        return drawn if self.kind == "contig" else [min(size, self.capacity) for size in drawn]

    def build(self, device: str) -> Problem:
        b = stacked([weights(self.n, self.k, self.bf16, device) for _ in range(self.groups)])
        return (self.contiguous if self.kind == "contig" else self.masked)(b, device)

    def problem(
        self, operands: dict[str, Any], reference: Callable[[], torch.Tensor], call: Callable[[Any], Call]
    ) -> Problem:
        rows, size = sum(self.sizes()), 2 if self.bf16 else 1
        moved = size * (rows + self.groups * self.n) * self.k + 2 * rows * self.n
        return Problem(operands, reference, call, 2 * rows * self.n * self.k, moved)

    def contiguous(self, b: Operand, device: str) -> Problem:
        """Groups that start at multiples of the alignment; rows between them are zeros and of no group."""
        sizes = self.sizes()
        firsts = [0, *itertools.accumulate(round_up(size, ALIGNMENT) for size in sizes)]
        ids = [[group] * size + [-1] * (-size % ALIGNMENT) for group, size in enumerate(sizes)]
        layout = numbers(list(itertools.chain(*ids)), device)
        real = layout >= 0
        x = normals(len(layout), self.k, device=device).masked_fill_(~real[:, None], 0)
        a = activations(x, self.bf16, self.mn)

        def reference() -> torch.Tensor:
            groups = [part(a, slice(first, first + size)) for first, size in zip(firsts, sizes)]
            return torch.cat([exact(rows) @ exact(part(b, i)).T for i, rows in enumerate(groups)])

        def call(module: Any) -> Call:
            names = "m_grouped_fp8_gemm_nt_contiguous", "m_grouped_bf16_gemm_nt_contiguous"
            function = getattr(module, names[self.bf16])
            d = torch.zeros(len(layout), self.n, device=device, dtype=BF16)
            return Call(lambda: function(a, b, d, layout), lambda: d[real])

        return self.problem({"a": a, "b": b, "layout": layout}, reference, call)

    def masked(self, b: Operand, device: str) -> Problem:
        """Groups whose rows only the device knows. Rows behind the last one are numbers too: zeros take less power."""
        sizes, counts = self.sizes(), numbers(self.sizes(), device)
        a = stacked([activations(normals(self.capacity, self.k, device=device), self.bf16, mn=False) for _ in sizes])
        if self.mn and not self.bf16:
            a = a[0], mn_major(a[1])

        def reference() -> torch.Tensor:
            groups = [part(part(a, i), slice(size)) for i, size in enumerate(sizes)]
            return torch.cat([exact(rows) @ exact(part(b, i)).T for i, rows in enumerate(groups)])

        def call(module: Any) -> Call:
            names = "m_grouped_fp8_gemm_nt_masked", "m_grouped_bf16_gemm_nt_masked"
            function = getattr(module, names[self.bf16])
            d = torch.zeros(self.groups, self.capacity, self.n, device=device, dtype=BF16)
            result = [d[group, :size] for group, size in enumerate(sizes)]
            return Call(lambda: function(a, b, d, counts, max(self.rows, 1)), lambda: torch.cat(result))

        return self.problem({"a": a, "b": b, "counts": counts}, reference, call)


@dataclass(frozen=True)
class KGrouped(Case):
    """K-grouped GEMM, D[g] += A[g] B[g]^T in FP32, as of the gradients of weights."""

    groups: int
    m: int
    n: int
    rows: int

    @property
    def name(self) -> str:
        return f"fp8_kgrouped g{self.groups} m{self.m} n{self.n} ek{self.rows}"

    def build(self, device: str) -> Problem:
        m, n, ks = self.m, self.n, [round_up(size, BLOCK) for size in even(self.groups, self.rows)]
        sides = [[quantized(normals(rows, k, device=device), 1) for k in ks] for rows in (m, n)]
        # Codes of a group are K-major; the scales of all groups, MN-major.
        a, b = ((joined([codes for codes, _ in side]), torch.cat([x.T for _, x in side]).T) for side in sides)
        counts = numbers(ks, device)

        def reference() -> torch.Tensor:
            return torch.stack([exact(left) @ exact(right).T for left, right in zip(*sides)])

        def call(module: Any) -> Call:
            d = torch.zeros(self.groups, m, n, device=device)
            return onto(d, lambda: module.k_grouped_fp8_gemm_nt_contiguous(a, b, d, ks, counts, c=d))

        moved = sum(ks) * (m + n) + 8 * self.groups * m * n
        return Problem({"a": a, "b": b, "counts": counts}, reference, call, 2 * m * n * sum(ks), moved)


def scored(q: torch.Tensor, keys: torch.Tensor, of_heads: torch.Tensor) -> torch.Tensor:
    """Logits [queries, keys]: the positive scores of all heads, weighted, of some queries at a time."""

    def some(q: torch.Tensor, of_heads: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("mhd,nd->mhn", q.float(), keys).relu_()
        return torch.einsum("mhn,mh->mn", scores, of_heads)

    return torch.cat([some(*rows) for rows in zip(q.split(64), of_heads.split(64))])


@dataclass(frozen=True)
class Prefill(Case):
    """MQA logits of the last queries of a sequence, each with the keys up to its own."""

    queries: int
    keys: int
    heads: int
    dim: int

    @property
    def name(self) -> str:
        return f"mqa sq{self.queries} sk{self.keys} h{self.heads} d{self.dim}"

    def build(self, device: str) -> Problem:
        queries, keys, heads, dim = self.queries, self.keys, self.heads, self.dim
        q = normals(queries, heads, dim, device=device).to(E4M3)
        codes, scales = quantized(normals(keys, dim, device=device), 1)
        of_heads = normals(queries, heads, device=device, dtype=torch.float32)
        starts = numbers([0] * queries, device)
        ends = numbers(list(range(keys - queries + 1, keys + 1)), device)
        seen = torch.arange(keys, device=device) < ends[:, None]
        kv = codes, scales.flatten()

        def reference() -> torch.Tensor:
            return scored(q, exact((codes, scales)), of_heads).masked_fill_(~seen, 0)

        def call(module: Any) -> Call:
            ranges = starts, ends
            if hasattr(module, "fp8_mqa_logits"):
                return returned(lambda: module.fp8_mqa_logits(q, kv, of_heads, *ranges, clean_logits=False), seen)
            # DeepGEMM since 2.8. What it returns begins with the first key of a query, which is the first of all.
            return returned(lambda: module.fp8_fp4_mqa_logits((q, None), kv, of_heads, *ranges, keys), seen)

        scores = int(seen.sum())
        operands = {"q": q, "kv": kv, "weights": of_heads, "starts": starts, "ends": ends}
        moved = queries * heads * dim + keys * (dim + 4) + 4 * scores
        return Problem(operands, reference, call, 2 * scores * heads * dim, moved)


@dataclass(frozen=True)
class Paged(Case):
    """MQA logits of the last ``next_n`` queries of sequences whose keys lie in pages.

    Every page belongs to one place of one sequence, as in an engine: pages drawn with repetition would be read from the
    L2 cache.
    """

    sequences: int
    next_n: int
    heads: int
    dim: int
    length: int

    @property
    def name(self) -> str:
        return f"paged_mqa b{self.sequences} n{self.next_n} h{self.heads} d{self.dim} l{self.length}"

    def build(self, device: str) -> Problem:
        next_n, heads, dim, lengths = self.next_n, self.heads, self.dim, even(self.sequences, self.length)
        used = [-(-length // PAGE) for length in lengths]
        pages, longest = sum(used), max(used) * PAGE
        q = normals(self.sequences, next_n, heads, dim, device=device).to(E4M3)
        of_heads = normals(self.sequences * next_n, heads, device=device, dtype=torch.float32)
        codes, scales = quantized(normals(pages * PAGE, dim, device=device), 1)
        # Of each page first the codes of all keys, then their scales.
        parts = [x.view(pages, -1).view(torch.uint8) for x in (codes, scales)]
        cache = torch.cat(parts, 1).view(pages, PAGE, 1, dim + 4)
        table = torch.zeros(self.sequences, max(used), device=device, dtype=torch.int32)
        for row, drawn in zip(table, torch.randperm(pages, device=device, dtype=torch.int32).split(used)):
            row[: len(drawn)] = drawn
        context = numbers(lengths, device)[:, None].expand(-1, next_n).contiguous()
        seen = torch.arange(longest, device=device) < context.view(-1, 1)

        def reference() -> torch.Tensor:
            keys = exact((codes, scales)).view(pages, PAGE, dim)
            found = torch.zeros(seen.shape, device=device)
            for rows, x, w, row, count in zip(found.split(next_n), q, of_heads.split(next_n), table, used):
                rows[:, : count * PAGE] = scored(x, keys[row[:count].long()].flatten(0, 1), w)
            return found.masked_fill_(~seen, 0)

        def call(module: Any) -> Call:
            schedule = module.get_paged_mqa_logits_metadata(context, PAGE, module.get_num_sms())
            paging = context, table, schedule, longest
            if hasattr(module, "fp8_paged_mqa_logits"):
                return returned(
                    lambda: module.fp8_paged_mqa_logits(q, cache, of_heads, *paging, clean_logits=False), seen
                )
            return returned(lambda: module.fp8_fp4_paged_mqa_logits((q, None), cache, of_heads, *paging), seen)

        scores = sum(lengths) * next_n
        operands = {"q": q, "cache": cache, "weights": of_heads, "context": context, "table": table}
        moved = q.numel() + sum(lengths) * (dim + 4) + 4 * scores
        return Problem(operands, reference, call, 2 * scores * heads * dim, moved)
