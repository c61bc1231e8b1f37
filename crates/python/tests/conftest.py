"""Every test that takes ``device`` runs with the CPU reference and in the simulator, on numpy arrays.

Where torch is installed it runs on torch tensors of the CPU as well, and on a GPU where the kernels support one.
"""

import importlib.util

import pytest

import oxigemm
from oxigemm import deep_gemm

try:
    import torch
except ImportError:
    torch = None

HAS_MYPY = importlib.util.find_spec("mypy") is not None
HAS_GPU = torch is not None and torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
HAS_TRANSFORMERS = torch is not None and importlib.util.find_spec("transformers") is not None
DEVICES = ["cpu", "sim", *(["torch"] if torch else []), *(["cuda"] if HAS_GPU else [])]

collect_ignore = [
    *([] if torch else ["test_nn.py", "test_nn_checkpoints.py", "test_torch.py", "on_torch.py"]),
    *([] if torch else ["test_mega.py", "test_moe_group.py"]),
    *([] if HAS_GPU else ["test_gpu.py", "test_gpu_peers.py"]),
    *([] if HAS_TRANSFORMERS else ["test_transformers.py"]),
    *([] if HAS_MYPY else ["test_typing.py"]),
]

#: Functions that take no arrays, or only those of torch.
SETTINGS = {
    *deep_gemm.mega.__all__,
    *deep_gemm.settings.__all__,
    *deep_gemm.testing.__all__,
    *["OxigemmError", "__version__", "align", "ceil_div", "epilogue", "get_tma_aligned_size", "testing", "utils"],
}


def pytest_report_header():
    left_out = [] if torch else ["torch is not installed: nothing of torch is tested"]
    if torch and not HAS_GPU:
        left_out.append("there is no Hopper GPU: nothing is tested on one")
    if not HAS_TRANSFORMERS:
        left_out.append("transformers is not installed: none of its models is tested")
    if not HAS_MYPY:
        left_out.append("mypy is not installed: types are not tested")
    return [f"oxigemm {oxigemm.__version__} on {', '.join(DEVICES)}", *left_out]


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch):
    before = oxigemm.get_device()
    if request.param in ("cpu", "sim"):
        oxigemm.set_device(request.param)
    else:
        from on_torch import on_torch

        torch_device = torch.device("cpu" if request.param == "torch" else "cuda")
        oxigemm.set_device("cpu")
        for name in set(deep_gemm.__all__) - SETTINGS:
            monkeypatch.setattr(deep_gemm, name, on_torch(getattr(deep_gemm, name), torch_device))
    yield request.param
    oxigemm.set_device(before)
