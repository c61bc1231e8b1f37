"""A rank of three, whose last one does not come to a call of ``moe.forward``: a program for test_moe_group.py.

    python absent_rank.py RANK DIRECTORY

The last rank stays away in three ways, each in a group of its own, and the others keep what their call gave.
"""

import datetime
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

from oxigemm import _moe_group, moe

from group_cases import CASES, EXPERTS, arguments, result

RANKS, SECONDS = 3, 5.0
#: It is alive and does not call; it calls and fails between the exchanges; its process ends without a word.
HOW = ("elsewhere", "fails", "exits")


def stay_away(how, call):
    """What the last rank does while the others call."""
    if how == "fails":
        run_arrived = _moe_group.Tokens.run_arrived

        def out_of_memory(*_):
            raise MemoryError("no memory")

        _moe_group.Tokens.run_arrived = out_of_memory
        assert result(call)[0] == "MemoryError"
        _moe_group.Tokens.run_arrived = run_arrived
    if how == "exits":
        os._exit(0)


def main():
    rank, directory = int(sys.argv[1]), pathlib.Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=RANKS)
    timeout = datetime.timedelta(seconds=SECONDS)
    groups = [dist.new_group(range(RANKS), timeout=timeout) for _ in HOW]
    tensors, named = arguments(CASES["bf16"], rank, local=EXPERTS // RANKS)
    expected = moe.forward(*tensors, **named, group=dist.group.WORLD)
    for how, group in zip(HOW, groups):
        # Who is late from here on by so many seconds is not slow.
        dist.barrier()
        call = lambda: moe.forward(*tensors, **named, group=group)  # noqa: B023, E731
        assert torch.equal(call(), expected)
        others = [directory / f"{how}{other}" for other in range(RANKS - 1)]
        if rank == RANKS - 1:
            stay_away(how, call)
        else:
            start = time.monotonic()
            text = json.dumps([result(call), time.monotonic() - start])
            part = directory / f"{how}{rank}.part"
            part.write_text(text, encoding="utf-8")
            part.rename(others[rank])
        while not all(other.exists() for other in others):
            time.sleep(0.1)
    # Groups whose ranks are gone cannot be left in order.
    os._exit(0)


if __name__ == "__main__":
    main()
