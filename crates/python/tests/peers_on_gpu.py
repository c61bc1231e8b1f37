"""A rank of a mixture whose experts other processes have, on one GPU: a program, and what it is called with.

    python peers_on_gpu.py HOW RANK RANKS DIRECTORY

HOW is "ipc", where processes open each other's memory, or "symmetric", where torch does.
"""

import sys

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import reduce_tensor

from oxigemm import moe

from group_cases import CHOICES, COLUMNS, EXPERTS, Case, part

MOST, CALLS = 12, 20
#: By how much rounding the sums of ranks, and quantizing what lies between the GEMMs, may change a result.
LIMITS = {"bf16": 1e-2, "fp8": 5e-2}


def opened(buffer, rank, ranks):
    """The buffers of all ranks, in the address space of this process."""
    handles = [None] * ranks
    dist.all_gather_object(handles, reduce_tensor(buffer))
    return [buffer if other == rank else rebuild(*arguments) for other, (rebuild, arguments) in enumerate(handles)]


def check_recipe(how, rank, ranks, recipe):
    local = EXPERTS // ranks
    dtype = "bfloat16" if recipe == "bf16" else "float8_e4m3fn"
    sizes = dict(tokens=MOST, topk=CHOICES, experts=local, columns=COLUMNS, dtype=dtype)
    if how == "symmetric":
        group = moe.symmetric_group(dist.group.WORLD, timeout=30.0, **sizes)
    else:
        buffer = torch.zeros(moe.PeerGroup.bytes(ranks=ranks, **sizes), dtype=torch.uint8, device="cuda")
        buffers = opened(buffer, rank, ranks)
        group = moe.PeerGroup(buffer, [one.data_ptr() for one in buffers], rank=rank, timeout=30.0, **sizes)
    dist.barrier()
    case = Case(recipe=recipe, counts=(5, 0, 12, 3))
    on_gpu = lambda one: tuple(map(on_gpu, one)) if isinstance(one, tuple) else one.cuda()  # noqa: E731
    tokens, weights = list(map(on_gpu, case.tokens(rank))), list(map(on_gpu, case.experts()[0]))
    own = [part(weight, rank, local) for weight in weights]
    found = moe.forward(*tokens, *own, group=group).clone()
    for _ in range(CALLS):
        assert torch.equal(moe.forward(*tokens, *own, group=group), found), "another call has other bits"
    group.check()
    alone = moe.forward(*tokens, *weights)
    if ranks == 1:
        assert torch.equal(found, alone), "one rank has other bits than a call without a group"
    difference = (found.float() - alone.float()).norm() / alone.float().norm().clamp_min(1e-9)
    assert difference < LIMITS[recipe], f"{recipe}: {difference}"
    dist.barrier()


def main():
    how, (rank, ranks), directory = sys.argv[1], map(int, sys.argv[2:4]), sys.argv[4]
    torch.cuda.set_device(0)
    # Processes of one GPU are no ranks of NCCL.
    backend = "gloo" if ranks > 1 else "nccl"
    dist.init_process_group(backend, init_method=f"file://{directory}/store", rank=rank, world_size=ranks)
    for recipe in LIMITS:
        check_recipe(how, rank, ranks, recipe)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
