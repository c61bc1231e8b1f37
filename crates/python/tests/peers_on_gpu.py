"""A rank of a mixture whose experts other processes have, on one GPU: a program, and what it is called with.

    python peers_on_gpu.py HOW RANK RANKS DIRECTORY

HOW is "ipc", where processes open each other's memory, "symmetric", where torch does, or "exits": as "ipc", and the
last rank is gone before a call. A rank that is alone makes the calls of Mega MoE as well.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import reduce_tensor

import oxigemm
from oxigemm import moe

import mega_cases
from group_cases import CHOICES, COLUMNS, EXPERTS, Case, part

MOST, CALLS = 12, 20
#: Seconds after which a rank that exits counts as missing.
TIMEOUT = 5.0
#: By how much rounding the sums of ranks, and quantizing what lies between the GEMMs, may change a result.
LIMITS = {"bf16": 1e-2, "fp8": 5e-2}


def opened(buffer, rank, ranks):
    """The buffers of all ranks, in the address space of this process."""
    handles = [None] * ranks
    dist.all_gather_object(handles, reduce_tensor(buffer))
    return [buffer if other == rank else rebuild(*arguments) for other, (rebuild, arguments) in enumerate(handles)]


def lent(size, rank, ranks):
    """The buffers of all ranks, where all memory is that of the first one's process: another's exit frees none."""
    handles = [None] * ranks
    if rank == 0:
        buffers = [torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(ranks)]
        handles = [reduce_tensor(buffer) for buffer in buffers]
    dist.broadcast_object_list(handles)
    return buffers if rank == 0 else [rebuild(*arguments) for rebuild, arguments in handles]


def sizes_of(recipe, ranks):
    dtype = "bfloat16" if recipe == "bf16" else "float8_e4m3fn"
    return dict(tokens=MOST, topk=CHOICES, experts=EXPERTS // ranks, columns=COLUMNS, dtype=dtype)


def arguments(recipe, rank):
    """The tokens of a rank and the weights of all experts, on the GPU."""
    case = Case(recipe=recipe, counts=(5, 0, 12, 3))
    on_gpu = lambda one: tuple(map(on_gpu, one)) if isinstance(one, tuple) else one.cuda()  # noqa: E731
    return list(map(on_gpu, case.tokens(rank))), list(map(on_gpu, case.experts()[0]))


def check_recipe(how, rank, ranks, recipe):
    local, sizes = EXPERTS // ranks, sizes_of(recipe, ranks)
    if how == "symmetric":
        group = moe.symmetric_group(dist.group.WORLD, timeout=30.0, **sizes)
    else:
        buffer = torch.zeros(moe.PeerGroup.bytes(ranks=ranks, **sizes), dtype=torch.uint8, device="cuda")
        buffers = opened(buffer, rank, ranks)
        group = moe.PeerGroup(buffer, [one.data_ptr() for one in buffers], rank=rank, timeout=30.0, **sizes)
    dist.barrier()
    tokens, weights = arguments(recipe, rank)
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


def check_exit(rank, ranks):
    """The process of the last rank ends before a call: ``check`` names it on all others, and they have zeros."""
    sizes, last = sizes_of("fp8", ranks), ranks - 1
    buffers = lent(moe.PeerGroup.bytes(ranks=ranks, **sizes), rank, ranks)
    addresses = [one.data_ptr() for one in buffers]
    group = moe.PeerGroup(buffers[rank], addresses, rank=rank, **sizes)
    others = dist.new_group(list(range(last)))
    dist.barrier()
    tokens, weights = arguments("fp8", rank)
    own = [part(weight, rank, EXPERTS // ranks) for weight in weights]
    # A call with all ranks loads the kernels: from then on, who is late is gone.
    moe.forward(*tokens, *own, group=group)
    group.check()
    group.timeout = TIMEOUT
    dist.barrier()
    if rank == last:
        # The others wait for it by now. No word to them, as of a process that is killed.
        time.sleep(TIMEOUT / 5)
        os._exit(0)
    found = moe.forward(*tokens, *own, group=group)
    try:
        group.check()
    except oxigemm.OxigemmError as error:
        assert f"rank {last} did not come" in str(error), error
    else:
        raise AssertionError(f"rank {last} is not missed on rank {rank}")
    assert not found.any(), "sums without those of a rank"
    # The memory is there until all are through.
    dist.barrier(group=others)
    os._exit(0)


def main():
    how, (rank, ranks), directory = sys.argv[1], map(int, sys.argv[2:4]), sys.argv[4]
    torch.cuda.set_device(0)
    # Processes of one GPU are no ranks of NCCL.
    backend = "gloo" if ranks > 1 else "nccl"
    dist.init_process_group(backend, init_method=f"file://{directory}/store", rank=rank, world_size=ranks)
    if how == "exits":
        check_exit(rank, ranks)
    for recipe in LIMITS:
        check_recipe(how, rank, ranks, recipe)
    if ranks == 1:
        for check in mega_cases.CHECKS.values():
            check(dist.group.WORLD, "cuda")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
