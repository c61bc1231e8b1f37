"""Every example runs, and checks itself."""

import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = sorted((pathlib.Path(__file__).parent.parent / "examples").glob("*.py"))


def run(example, *launcher, **environment):
    """What an example prints."""
    if "import torch\n" in example.read_text(encoding="utf-8").split("def ")[0] and "torch" not in sys.modules:
        pytest.skip("torch is not installed")
    command, named = [sys.executable, *launcher, str(example)], {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=named)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example):
    assert "difference from the exact product" in run(example)


def test_example_in_the_simulator():
    (example,) = (path for path in EXAMPLES if path.stem == "moe_layer")
    found = run(example, OXIGEMM_DEVICE="sim", CUDA_VISIBLE_DEVICES="")
    assert found.count("difference from the exact product") == 3


def test_example_of_several_ranks():
    (example,) = (path for path in EXAMPLES if path.stem == "moe_parallel")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    # On the CPU: a GPU for each rank may not be there.
    found = run(example, *launcher, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    assert all(f"rank {rank} of 4: {16 + 8 * rank} tokens" in found for rank in range(4)), found
