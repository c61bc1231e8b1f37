"""Mixtures of processes on one GPU that reach each other's memory. Collected where there is a Hopper GPU.

The calls of Mega MoE are those of ``mega_cases.py``, which test_mega.py makes on the CPU and in the simulator.
"""

import os
import subprocess
import sys

import pytest

import mega_cases

SCRIPT = os.path.join(os.path.dirname(__file__), "peers_on_gpu.py")


@pytest.mark.parametrize("how, ranks", [("ipc", 2), ("ipc", 4), ("symmetric", 1), ("exits", 3)])
def test_processes_of_one_gpu(how, ranks, tmp_path):
    start = lambda rank: [sys.executable, SCRIPT, how, str(rank), str(ranks), str(tmp_path)]  # noqa: E731
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    runs = [subprocess.Popen(start(rank), **pipes) for rank in range(ranks)]
    try:
        texts = [run.communicate(timeout=300)[0] for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert [run.returncode for run in runs] == [0] * ranks, "\n".join(texts)


@pytest.mark.parametrize("name", mega_cases.CHECKS)
def test_mega_moe_without_a_process_group(name):
    mega_cases.CHECKS[name](None, "cuda")
