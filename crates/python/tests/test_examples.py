"""Every example runs, and checks itself."""

import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = sorted((pathlib.Path(__file__).parent.parent / "examples").glob("*.py"))


def run(example, *launcher, **environment):
    """What an example prints."""
    if "import torch\n" in example.read_text().split("def ")[0] and "torch" not in sys.modules:
        pytest.skip("torch is not installed")
    command, named = [sys.executable, *launcher, str(example)], {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=named)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example):
    assert "difference from the exact product" in run(example)


def test_example_of_several_ranks():
    (example,) = (path for path in EXAMPLES if path.stem == "moe_parallel")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    # On the CPU: a GPU for each rank may not be there.
    found = run(example, *launcher, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    assert "rank 0 of 2: 16 tokens" in found and "rank 1 of 2: 24 tokens" in found, found
