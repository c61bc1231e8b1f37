"""Calls of ``moe.forward`` with a group. As a program this is one rank of them, and keeps what came out of each."""

import datetime
import os
import sys
from typing import NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist

import oxigemm
from oxigemm import deep_gemm, moe

RANKS, LOCAL, COLUMNS, INNER, CHOICES = 4, 2, 256, 128, 3
EXPERTS = RANKS * LOCAL


class Case(NamedTuple):
    """What every rank calls with; ``wrong`` replaces arguments of one rank."""

    counts: Tuple[int, ...] = (5, 0, 9, 3)
    routing: str = "random"
    recipe: str = "bf16"
    biases: bool = False
    gated: bool = True
    gate: Optional[Tuple[float, float, float]] = None
    quantized: bool = False
    wrong_rank: int = 2
    wrong: Optional[str] = None

    @property
    def activation(self):
        return "silu" if self.gated else "relu_squared"

    def between(self):
        return {"activation": self.activation, "gated": self.gated, "gate": self.gate}

    def tokens(self, rank, columns=COLUMNS, choices=CHOICES):
        """``x``, ``ids`` and ``weights`` of a rank."""
        count, random = self.counts[rank], torch.Generator().manual_seed(rank)
        x = torch.randn(count, columns, generator=random).bfloat16()
        weights = torch.rand(count, choices, generator=random)
        # Numbers of no expert on either side, and experts more than once.
        ids = torch.randint(-2, EXPERTS + 2, (count, choices), generator=random, dtype=torch.int32)
        if self.routing == "one expert":
            ids.fill_(5)
        elif self.routing == "none":
            ids.fill_(EXPERTS)
        elif self.routing == "one rank":
            ids = ids.remainder(LOCAL) + torch.arange(count, dtype=torch.int32)[:, None] % RANKS * LOCAL
        elif self.routing == "far":
            ids = torch.where(ids % 2 == 0, ids, torch.where(ids > 4, 2**31 - 1, -(2**31)).int())
        return (oxigemm.quantization.quantize(x) if self.quantized else x), ids, weights

    def experts(self):
        """``gate_up``, ``down`` and biases of all experts."""
        random = torch.Generator().manual_seed(100)
        both = 2 * INNER if self.gated else INNER
        weights, biases = [], []
        for n, k in ((both, COLUMNS), (COLUMNS, INNER)):
            exact = torch.randn(EXPERTS, n, k, generator=random)
            blocks = (n, k // 32) if self.recipe == "mxfp4" else (-(-n // 128), -(-k // 128))
            scales = torch.exp2(torch.randint(-5, -2, (EXPERTS, *blocks), generator=random).float())
            if self.recipe == "mxfp4":
                # Two codes in a byte, of any bits.
                codes = torch.randint(0, 256, (EXPERTS, n, k // 2), generator=random, dtype=torch.uint8)
            else:
                codes = exact.to(torch.float8_e4m3fn)
            weights.append((exact / 16).bfloat16() if self.recipe == "bf16" else (codes, scales))
            biases.append(torch.randn(EXPERTS, n, generator=random) if self.biases else None)
        return weights, tuple(biases)


def part(weight, rank, local=LOCAL):
    """What a rank has of something of all experts."""
    if isinstance(weight, tuple):
        return tuple(part(each, rank, local) for each in weight)
    return None if weight is None else weight[rank * local : (rank + 1) * local].contiguous()


CASES = {
    "bf16": Case(),
    "fp8": Case(recipe="fp8"),
    "bf16 with gate and biases": Case(gate=(1.702, 7.0, 1.0), biases=True),
    "mxfp4": Case(recipe="mxfp4"),
    "mxfp4 with gate and biases": Case(recipe="mxfp4", gate=(1.702, 7.0, 1.0), biases=True),
    "mxfp4 of quantized tokens": Case(recipe="mxfp4", quantized=True),
    "fp8 without gate": Case(recipe="fp8", gated=False),
    "one expert": Case(routing="one expert", recipe="fp8"),
    "one rank": Case(routing="one rank", recipe="fp8"),
    "no expert": Case(routing="none"),
    "far numbers": Case(routing="far"),
    "no tokens": Case(counts=(0, 0, 0, 0)),
    "one token": Case(counts=(0, 0, 0, 1), recipe="fp8"),
    "quantized tokens": Case(recipe="fp8", quantized=True),
    "more tokens": Case(counts=(70, 1, 33, 20)),
}
#: What is wrong on one rank, and the argument that the error of every rank names.
DISAGREEMENTS = {"columns": "x", "choices": "ids", "experts": "gate_up", "recipe": "gate_up", "biases": "biases"}
DISAGREEMENTS.update({"activation": "activation", "gated": "gate_up", "gate": "gate"})
#: What a rank refuses itself, and the argument that its error names.
REFUSALS = {"numpy": "x", "type": "ids", "shape": "weights", "rows": "ids", "out": "out", "scales": "gate_up_scales"}
REFUSALS.update({"quantized": "gate_up", "scales of x": "scales", "list": "weights"})
for name in (*DISAGREEMENTS, *REFUSALS):
    CASES[f"wrong {name}"] = Case(wrong=name, wrong_rank=1 if name in REFUSALS else 2)


def arguments(case, rank, local=LOCAL):
    """What a rank calls with."""
    wrong = case.wrong if rank == case.wrong_rank else None
    if wrong == "gated":
        case = case._replace(gated=False)
    if wrong == "recipe":
        case = case._replace(recipe="fp8")
    if wrong == "biases":
        case = case._replace(biases=True)
    if wrong == "gate":
        case = case._replace(gate=(1.0, 7.0, 0.0))
    (gate_up, down), biases = case.experts()
    tokens = list(case.tokens(rank, choices=CHOICES + (wrong == "choices")))
    named = {**case.between(), "biases": part(biases, rank, local)}
    gate_up, down = part(gate_up, rank, local), part(down, rank, local)
    if wrong == "columns":
        tokens[0], gate_up, down = tokens[0][:, :128], gate_up[:, :, :128], down[:, :128]
        tokens[0], gate_up, down = (each.contiguous() for each in (tokens[0], gate_up, down))
    elif wrong == "experts":
        gate_up, down = gate_up[:1], down[:1]
    elif wrong == "activation":
        named["activation"] = "gelu"
    elif wrong == "numpy":
        tokens[0] = tokens[0].float().numpy()
    elif wrong == "type":
        tokens[1] = tokens[1].long()
    elif wrong == "shape":
        tokens[2] = tokens[2][:, :-1]
    elif wrong == "rows":
        tokens[1] = torch.cat([tokens[1], tokens[1][:0].new_zeros(1, CHOICES)])
        tokens[2] = torch.cat([tokens[2], tokens[2].new_zeros(1, CHOICES)])
    elif wrong == "out":
        named["out"] = torch.empty_like(tokens[0][:, 1:])
    elif wrong == "quantized":
        tokens[0] = tokens[0].to(torch.float8_e4m3fn), torch.ones(len(tokens[0]), 2)
    elif wrong == "scales of x":
        tokens[0] = tokens[0].to(torch.float8_e4m3fn), torch.ones(len(tokens[0]), 1)
    elif wrong == "list":
        tokens[2] = tokens[2].tolist()
    elif wrong == "scales":
        gate_up = gate_up, torch.ones(LOCAL, 2, 2)
    return (*tokens, gate_up, down), named


def result(run):
    """What a call gives, or its error: its type, its argument and its text."""
    try:
        return run()
    except Exception as error:
        return type(error).__name__, getattr(error, "argument", None), str(error)


def further(rank):
    """Calls besides those of all ranks with new outputs."""
    found = {}
    tensors, named = arguments(CASES["fp8"], rank)
    # Every second column of memory: rows of another pitch, into an output that is given.
    wide = torch.zeros(len(tensors[0]), 2 * COLUMNS).bfloat16()
    wide[:, :COLUMNS] = tensors[0]
    out = torch.full_like(tensors[0], 7.0)
    same = moe.forward(wide[:, :COLUMNS], *tensors[1:], **named, out=out, group=dist.group.WORLD)
    found["given output"] = out if same is out else None
    pair = dist.new_group([1, 3])
    tensors, named = arguments(CASES["bf16"], max(rank - 1, 0) // 2, local=EXPERTS // 2)
    found["pair"] = result(lambda: moe.forward(*tensors, **named, group=pair))
    alone = [dist.new_group([each]) for each in range(RANKS)][rank]
    tensors, named = arguments(CASES["fp8"], 0, local=EXPERTS)
    found["alone"] = moe.forward(*tensors, **named, group=alone)
    if rank == 0:
        compiled = torch.compile(lambda x, *rest: moe.forward(x * 2, *rest, **named, group=alone) * 2, backend="eager")
        found["compiled"] = compiled(*tensors)
        found["capture"] = captured(tensors, named, alone)
    return found


def mega(rank):
    """Calls of Mega MoE, as engines make them: y has a row where there is no token."""
    found = {}
    for recipe, mma_type in (("fp8", "fp8xfp8"), ("mxfp4", "fp8xfp4"), ("bf16", "bf16xbf16")):
        (x, ids, factors, w1, w2), _ = arguments(CASES[recipe], rank)
        count = len(x)
        sizes = EXPERTS, max(CASES[recipe].counts), CHOICES, COLUMNS, INNER
        group = dist.group.WORLD
        buffer = deep_gemm.get_symm_buffer_for_mega_moe(group, *sizes, mma_type=mma_type, device="cpu")
        staged = buffer.topk_idx, buffer.topk_weights
        y, stats = torch.zeros(max(count, 1), COLUMNS).bfloat16(), torch.zeros(LOCAL, dtype=torch.int32)
        w1, w2 = deep_gemm.transform_weights_for_mega_moe(w1, w2)
        if recipe != "bf16":
            deep_gemm.mega_moe_pre_dispatch_sm90(x, ids, factors, buffer.x, buffer.x_sf, *staged)
            function = deep_gemm.fp8_mega_moe if recipe == "fp8" else deep_gemm.fp8_fp4_mega_moe
            function(y, w1, w2, buffer, stats)
        else:
            buffer.x[:count].copy_(x)
            staged[0][:count].copy_(ids)
            staged[1][:count].copy_(factors)
            deep_gemm.bf16_mega_moe(y, w1, w2, buffer, stats)
        found[f"mega {recipe}"] = y, stats
    return found


def captured(tensors, named, group):
    """The error of a call while a stream is captured: as torch would say of a GPU's tensor."""

    class OnGpu(torch.Tensor):
        is_cuda = True

    torch.cuda.is_current_stream_capturing = lambda: True
    x, *rest = tensors
    return result(lambda: moe.forward(x.as_subclass(OnGpu), *rest, **named, group=group))


def main():
    rank, directory = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(directory, "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=datetime.timedelta(seconds=90))
    found = {}
    for name, case in CASES.items():
        tensors, named = arguments(case, rank)
        found[name] = result(lambda: moe.forward(*tensors, **named, group=dist.group.WORLD))  # noqa: B023
    found.update(further(rank))
    found.update(mega(rank))
    torch.save(found, os.path.join(directory, f"rank{rank}"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
