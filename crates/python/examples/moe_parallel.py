"""A mixture of experts whose experts lie on several ranks: rows travel by collectives of torch.distributed.

    torchrun --standalone --nproc-per-node 4 moe_parallel.py

With NCCL where there are GPUs, one for each rank; else with Gloo on the CPU. Without torchrun it is one rank.
"""

import os

import torch
import torch.distributed as dist

from oxigemm import moe, quantization

EXPERTS, INNER, COLUMNS, TOPK = 16, 128, 256, 4


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


def experts(device):
    """Weights of all experts in FP8, the same on every rank."""
    random = torch.Generator().manual_seed(0)
    found = []
    for n, k in ((2 * INNER, COLUMNS), (COLUMNS, INNER)):
        w = torch.randn(EXPERTS * n, k, generator=random).bfloat16().to(device)
        codes, scales = quantization.quantize(w, "128x128", power_of_two=True)
        found.append((codes.view(EXPERTS, n, k), scales.view(EXPERTS, n // 128, k // 128)))
    return found


def main():
    group, device = join()
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    assert EXPERTS % ranks == 0, f"expected ranks that divide {EXPERTS} experts, found {ranks}"
    own = slice(rank * EXPERTS // ranks, (rank + 1) * EXPERTS // ranks)
    gate_up, down = experts(device)

    # Every rank has its own tokens, and another number of them. Choices count the experts of all ranks.
    torch.manual_seed(rank)
    x = torch.randn(16 + 8 * rank, COLUMNS, dtype=torch.bfloat16, device=device)
    ids, weights = moe.top_k(torch.randn(len(x), EXPERTS, device=device), TOPK, renormalize=True)

    # Each rank passes the experts that it has.
    of_rank = [(codes[own], scales[own]) for codes, scales in (gate_up, down)]
    out = moe.forward(x, ids, weights, *of_rank, group=group)

    alone = moe.forward(x, ids, weights, gate_up, down).float()
    difference = float((out.float() - alone).norm() / alone.norm())
    print(f"rank {rank} of {ranks}: {len(x)} tokens, difference from the exact product of one rank: {difference:.1e}")
    assert difference < 1e-2
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
