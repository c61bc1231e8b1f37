"""Processes of several GPUs, for scripts that are written for DeepGEMM's. Everything here needs torch."""

from __future__ import annotations

import os
from typing import Any, List, Optional, Tuple

from ..._arrays import expect_int, expect_shape, is_torch
from ...errors import ArgumentError, ArgumentTypeError

__all__ = ["dist_print", "init_dist", "uneven_all_gather"]

#: The number of this process among those of its node, once ``init_dist`` has set it.
_local_rank: Optional[int] = None


def _from_environment(name: str, default: int) -> int:
    value = os.environ.get(name, str(default))
    if not value.isdecimal():
        raise ArgumentError(f"`{name}` of the environment is wrong: expected a number, found {value!r}", name)
    return int(value)


def init_dist(local_rank: int, num_local_ranks: int) -> Tuple[int, int, Any]:
    """Joins the processes of all nodes: the rank, the number of ranks, and the group of all of them.

    The environment says how many nodes there are (``WORLD_SIZE``, 1), which one this is (``RANK``, 0) and where they
    meet (``MASTER_ADDR``, 127.0.0.1, and ``MASTER_PORT``, 8361). Each node runs ``num_local_ranks`` processes. Where
    there are GPUs, process ``local_rank`` takes that one, new tensors are on it and of bfloat16, and NCCL communicates;
    else Gloo does.

    >>> rank, ranks, group = init_dist(local_rank, 8)
    """
    global _local_rank
    ranks = expect_int("num_local_ranks", num_local_ranks, 1)
    local = expect_int("local_rank", local_rank, 0, ranks - 1)
    nodes, node = _from_environment("WORLD_SIZE", 1), _from_environment("RANK", 0)
    if node >= nodes:
        raise ArgumentError(f"`RANK` of the environment is wrong: expected fewer than {nodes}, found {node}", "RANK")
    address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), _from_environment("MASTER_PORT", 8361)
    import torch
    import torch.distributed

    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(local)
    torch.distributed.init_process_group(
        backend="nccl" if has_gpu else "gloo",
        init_method=f"tcp://{address}:{port}",
        world_size=nodes * ranks,
        rank=node * ranks + local,
    )
    if has_gpu:
        torch.set_default_dtype(torch.bfloat16)
        torch.set_default_device("cuda")
    _local_rank = local
    group = torch.distributed.new_group(list(range(nodes * ranks)))
    return torch.distributed.get_rank(), torch.distributed.get_world_size(), group


def uneven_all_gather(tensor: Any, dim: int = 0, group: Optional[Any] = None) -> Any:
    """The tensors of all ranks, one behind another along ``dim``, in which alone they may differ.

    >>> tokens_of_all = uneven_all_gather(tokens)
    """
    shape = expect_shape("tensor", tensor)
    if not is_torch(tensor):
        found = type(tensor).__name__
        message = f"`tensor` has the wrong type: expected a torch tensor, found {found}"
        raise ArgumentTypeError(message, "tensor")
    if not shape:
        raise ArgumentError("`tensor` has the wrong rank: expected 1 dimension or more, found 0", "tensor")
    dim = expect_int("dim", dim, -len(shape), len(shape) - 1) % len(shape)
    import torch
    import torch.distributed

    ranks = torch.distributed.get_world_size(group)
    own = torch.tensor([shape[dim]], dtype=torch.int64, device=tensor.device)
    lengths = [torch.empty_like(own) for _ in range(ranks)]
    torch.distributed.all_gather(lengths, own, group=group)
    counts = [int(length) for length in lengths]
    # All ranks send as much as the longest. What is gathered is contiguous along the dimensions behind `dim`.
    padded = list(shape)
    padded[dim] = max(counts)
    sent = torch.zeros(padded, dtype=tensor.dtype, device=tensor.device)
    sent.narrow(dim, 0, shape[dim]).copy_(tensor)
    received = [torch.empty_like(sent) for _ in range(ranks)]
    # The bytes, as not every backend knows every type.
    torch.distributed.all_gather([_flat_bytes(part) for part in received], _flat_bytes(sent), group=group)
    parts: List[Any] = [part.narrow(dim, 0, count) for part, count in zip(received, counts)]
    return torch.cat(parts, dim)


def _flat_bytes(tensor: Any) -> Any:
    """The bytes of a contiguous tensor, in the same memory."""
    import torch

    return tensor.view(-1).view(torch.uint8)


def dist_print(text: str = "", once_in_node: bool = False) -> None:
    """Prints, in every process or once in each node, and waits for all processes.

    >>> dist_print("throughput", once_in_node=True)
    """
    if _local_rank is None:
        raise ArgumentError("`init_dist` was not called: expected a call of it before `dist_print`")
    import torch.distributed

    if not once_in_node or _local_rank == 0:
        print(text, flush=True)
    torch.distributed.barrier()
