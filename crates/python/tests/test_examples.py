"""Every example runs, and checks itself."""

import pathlib
import subprocess
import sys

import pytest

EXAMPLES = sorted((pathlib.Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example):
    if "import torch\n" in example.read_text().split("def ")[0] and "torch" not in sys.modules:
        pytest.skip("torch is not installed")
    run = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert "difference from the exact product" in run.stdout
