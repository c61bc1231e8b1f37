"""The layer of ``moe_layer.py`` with its experts on several ranks: rows travel by collectives of torch.distributed.

    torchrun --standalone --nproc-per-node 4 moe_parallel.py

With NCCL where there are GPUs, one for each rank; else with Gloo on the CPU. Without torchrun it is one rank.
"""

import os

import torch
import torch.distributed as dist

from moe_layer import COLUMNS, EXPERTS, Layer, difference


def join():
    """The group of all ranks, and this rank's device."""
    has_gpu = torch.cuda.is_available()
    backend = "nccl" if has_gpu else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    if not has_gpu:
        return dist.group.WORLD, torch.device("cpu")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return dist.group.WORLD, torch.device("cuda", torch.cuda.current_device())


def main():
    group, device = join()
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    assert EXPERTS % ranks == 0, f"expected ranks that divide {EXPERTS} experts, found {ranks}"
    own = slice(rank * EXPERTS // ranks, (rank + 1) * EXPERTS // ranks)
    layer = Layer(device)

    # Every rank has its own tokens, and another number of them. The router chooses among the experts of all ranks.
    tokens = 16 + 8 * rank
    x = torch.randn(tokens, COLUMNS, generator=torch.Generator().manual_seed(rank)).bfloat16().to(device)
    out = layer(x, group, own)

    error, alone = difference(out, layer.exact(x)), difference(out, layer(x).float())
    found = f"difference from the exact product: {error:.1e}, from one rank: {alone:.1e}"
    print(f"rank {rank} of {ranks}: {tokens} tokens, {found}")
    assert error < 6e-2 and alone < 1e-2
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
