"""The package: its import, its settings and its command line."""

import json
import subprocess
import sys
from shutil import which

import pytest

import oxigemm
from oxigemm import deep_gemm


def python(code, **environment):
    import os

    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_importing_brings_neither_torch_nor_numpy_nor_a_driver():
    code = """
import sys, json, oxigemm
maps = open("/proc/self/maps").read()
found = [name for name in ("torch", "numpy") if name in sys.modules]
print(json.dumps(found + (["libcuda"] if "libcuda" in maps else [])))
"""
    assert json.loads(python(code)) == []


def test_importing_takes_less_than_50_ms():
    # The time of the processor: that of the clock depends on who else runs.
    code = "import time; t = time.process_time(); import oxigemm; print(time.process_time() - t)"
    assert min(float(python(code)) for _ in range(5)) < 0.05


def test_device_from_the_environment():
    assert python("import oxigemm; print(oxigemm.get_device())") == "cpu"
    assert python("import oxigemm; print(oxigemm.get_device())", OXIGEMM_DEVICE="sim:lazy") == "sim"


def test_a_device_of_the_environment_that_is_not_there():
    code = "import oxigemm\ntry: print(oxigemm.get_device())\nexcept oxigemm.OxigemmError as error: print(error)"
    has_gpu = (
        subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).stdout if which("nvidia-smi") else b""
    )
    expected = "cpu" if has_gpu else "OXIGEMM_DEVICE is cuda"
    assert python(code, OXIGEMM_DEVICE="cuda").startswith(expected)
    assert python(code, OXIGEMM_DEVICE="auto") == "cpu"
    for name in ("tpu", "", "sim:never", "cuda0"):
        assert python(code, OXIGEMM_DEVICE=name).startswith("`OXIGEMM_DEVICE` is no device")


def test_logging_is_set_by_the_environment():
    import os

    for level, words in [("", ""), ("debug", ""), ("loud", "OXIGEMM_LOG is wrong: expected off, error, warn")]:
        run = subprocess.run(
            [sys.executable, "-c", "import oxigemm"],
            capture_output=True,
            text=True,
            env={**os.environ, "OXIGEMM_LOG": level},
            timeout=120,
            check=False,
        )
        assert run.returncode == 0 and run.stderr.startswith(words) and bool(run.stderr) == bool(words)


def test_names_that_are_no_device():
    for name in ["cuda", "tpu", "", "sim:never"]:
        with pytest.raises(oxigemm.OxigemmError):
            oxigemm.set_device(name)


def test_deep_gemm_by_its_own_name():
    code = """
import oxigemm
oxigemm.install_as_deep_gemm()
import deep_gemm
from deep_gemm import fp8_gemm_nt
assert deep_gemm is oxigemm.deep_gemm and fp8_gemm_nt is oxigemm.deep_gemm.fp8_gemm_nt
assert deep_gemm.__name__ == "oxigemm.deep_gemm"
import importlib.util
assert importlib.util.find_spec("deep_gemm") is not None and importlib.util.find_spec("deep_gemm.nothing") is None
print("same")
"""
    assert python(code) == "same"


def test_settings():
    before = deep_gemm.get_num_sms()
    assert before == 132
    deep_gemm.set_num_sms(64)
    assert deep_gemm.get_num_sms() == 64
    deep_gemm.set_num_sms(0)
    assert deep_gemm.get_num_sms() == before
    with pytest.raises(ValueError, match="`new_num_sms` is out of range"):
        deep_gemm.set_num_sms(before + 1)
    assert deep_gemm.get_pdl() is False
    deep_gemm.set_pdl(True)
    assert deep_gemm.get_pdl() is True
    deep_gemm.set_pdl(False)
    deep_gemm.set_tc_util(50)
    assert deep_gemm.get_tc_util() == 50
    deep_gemm.set_tc_util(0)
    assert deep_gemm.get_tc_util() == 100
    assert deep_gemm.get_mk_alignment_for_contiguous_layout() == 128
    assert deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout(3) == 16
    deep_gemm.set_mk_alignment_for_contiguous_layout(64)
    assert deep_gemm.get_m_alignment_for_contiguous_layout() == 64
    deep_gemm.set_mk_alignment_for_contiguous_layout(128)
    with pytest.raises(ValueError, match="`new_value` is no alignment"):
        deep_gemm.set_mk_alignment_for_contiguous_layout(100)


def test_what_there_is_no_kernel_for_is_absent():
    for name in ["bf16_mega_gate", "mega_mhc", "batched_syrk"]:
        assert not hasattr(deep_gemm, name)


def test_the_loader_of_transformers_finds_what_it_asks_for():
    names = ["fp8_fp4_gemm_nt", "transform_sf_into_required_layout", "get_mk_alignment_for_contiguous_layout"]
    names += [f"m_grouped_{dtype}_gemm_{form}_contiguous" for dtype in ("fp8_fp4", "bf16") for form in ("nt", "nn")]
    names += ["transform_weights_for_mega_moe", "get_symm_buffer_for_mega_moe", "fp8_fp4_mega_moe"]
    for name in names:
        assert callable(getattr(deep_gemm, name, None)), name
    assert callable(deep_gemm.utils.per_token_cast_to_fp8)


def test_the_command_line():
    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "oxigemm", *arguments], capture_output=True, text=True, timeout=120, check=False
        )

    help_text = run("--help")
    assert help_text.returncode == 0 and "Tensor-core kernels" in help_text.stdout
    assert run("nothing").returncode == 2
    product = run("gemm", "--op", "fp8", "--m", "3", "--n", "128", "--k", "128", "--device", "sim", "--json")
    assert product.returncode == 0, product.stderr
    assert json.loads(product.stdout)


def test_cublaslt_needs_a_gpu():
    import numpy

    x = numpy.zeros((16, 16), numpy.float16)
    with pytest.raises(RuntimeError, match="cuBLASLt multiplies on a GPU"):
        deep_gemm.cublaslt_gemm_nt(x, x, x)


def test_every_function_of_the_extension_has_a_stub():
    import ast
    import os

    from oxigemm import _oxigemm

    path = os.path.join(os.path.dirname(oxigemm.__file__), "_oxigemm.pyi")
    with open(path, encoding="utf-8") as file:
        nodes = ast.parse(file.read()).body
    stubs = {node.name: node.args.args for node in nodes if isinstance(node, ast.FunctionDef)}
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            stubs[node.name] = node.body[0].args.args[1:]
    functions = {name for name in dir(_oxigemm) if callable(getattr(_oxigemm, name)) and not name.startswith("_")}
    assert functions == set(stubs)
    for name, arguments in stubs.items():
        signature = getattr(_oxigemm, name).__text_signature__
        assert [argument.arg for argument in arguments] == [
            part.split("=")[0].strip() for part in signature.strip("()").split(",") if part.strip()
        ], name
        assert len(arguments) < 7, f"{name} takes too many arguments: put some into a tuple"


def test_every_function_says_what_it_does():
    for name in deep_gemm.__all__:
        if name not in ("__version__",):
            assert getattr(deep_gemm, name).__doc__, name


def test_the_shim_is_the_package():
    import pathlib

    shim = pathlib.Path(__file__).parent.parent / "shim"
    code = "import deep_gemm, oxigemm, deep_gemm.utils.layout; print(deep_gemm is oxigemm.deep_gemm)"
    import os

    path = os.pathsep.join([str(shim), *filter(None, [os.environ.get("PYTHONPATH")])])
    assert python(code, PYTHONPATH=path) == "True"


def test_processes_fork_after_importing():
    code = """
import os, oxigemm
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        import numpy as np
        x, d = np.ones((8, 64), np.float16), np.empty((8, 8), np.float32)
        for device in ("cpu", "sim"):
            oxigemm.set_device(device)
            oxigemm.deep_gemm.fp16_gemm_nt(x, x, d)
            assert (d == 64).all()
        os._exit(0)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""
    assert python(code) == "[0, 0, 0, 0]"


def test_names_are_exported_once_and_are_all_of_the_modules():
    for module in (deep_gemm.attention, deep_gemm.gemm, deep_gemm.grouped, deep_gemm.settings, deep_gemm.layout):
        assert set(module.__all__) <= set(deep_gemm.__all__), module.__name__
    for module in (deep_gemm.utils.math, deep_gemm.utils.layout):
        assert set(module.__all__) <= set(deep_gemm.utils.__all__), module.__name__
    for module in (deep_gemm.testing, deep_gemm.utils, deep_gemm.baseline):
        assert set(module.__all__) <= set(deep_gemm.__all__), module.__name__
    assert len(set(deep_gemm.__all__)) == len(deep_gemm.__all__)


MODULES = ["config", "deep_gemm", "deep_gemm.utils.dist", "fused", "moe", "nvfp4", "quantization"]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_says_what_it_does_and_how_it_is_called(module):
    """By an example, shapes of its arguments, or a function that it is like; or in the page about Python."""
    import importlib
    import pathlib
    import re

    page = (pathlib.Path(__file__).parents[3] / "docs" / "python.md").read_text(encoding="utf-8")
    modules = {each: importlib.import_module(f"oxigemm.{each}") for each in MODULES}
    public = {name for each in modules.values() for name in each.__all__}
    for name in set(modules[module].__all__) - {"__version__"}:
        text = getattr(modules[module], name).__doc__ or ""
        assert len(text) > 20, name
        is_like = {other for other in re.findall(r"``(\w+)``", text) if other in public - {name}}
        is_told = ">>>" in text or re.search(r"\[(\.\.\.|[A-Z]\w*), ", text) or is_like
        assert is_told or re.search(rf"\b{name}\b", page), name
