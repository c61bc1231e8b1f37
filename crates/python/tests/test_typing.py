"""What a type checker sees of the package."""

import os
import pathlib
import site
import subprocess
import sys

import oxigemm
from oxigemm import deep_gemm

PACKAGE = pathlib.Path(oxigemm.__file__).parent

CLIENT = """
from typing import Any, Dict, Optional, Tuple

import oxigemm
from oxigemm import config, deep_gemm, fused, moe, quantization
from oxigemm.deep_gemm import calc_diff, per_token_cast_to_fp8
from oxigemm.deep_gemm.testing import assert_bitwise_equal, bench_kineto, suppress_stdout_stderr
from oxigemm.deep_gemm.utils import layout, math
from oxigemm.deep_gemm.utils.dist import dist_print, init_dist, uneven_all_gather


def layer(x: Any, weight: Tuple[Any, Any], d: Any) -> float:
    pair: Tuple[Any, Any] = per_token_cast_to_fp8(x, use_ue8m0=False)
    deep_gemm.fp8_gemm_nt(pair, weight, d, recipe=(1, 128, 128))
    deep_gemm.utils.per_block_cast_to_fp8(x, False)
    deep_gemm.testing.count_bytes(x)
    fused.bf16_gemm_nt_fused(x, x, d, activation="silu")
    codes, scales = quantization.quantize(x, "1x128")
    routing: moe.Routing = moe.route(x, x, 8, scoring="sigmoid", groups=8, topk_groups=4, renormalize=True)
    permuted: moe.Permuted = moe.permute(routing.ids, 8)
    assert_bitwise_equal(x, permuted.tokens, "tokens")
    with suppress_stdout_stderr():
        dist_print("text", once_in_node=True)
    rank, ranks, group = init_dist(0, 1)
    columns: int = math.ceil_div(rank, ranks) + layout.get_tma_aligned_size(5, 4)
    uneven_all_gather(x, dim=columns, group=group)
    stats: Dict[str, int] = config.gpu_stats()
    cache: Optional[str] = config.get_cache_dir()
    print(codes, scales, stats, cache, bench_kineto(lambda: None, "gemm"), oxigemm.__version__)
    try:
        oxigemm.set_device("sim")
    except oxigemm.ArgumentError as error:
        print(error.argument)
    return calc_diff(x, d)
"""


def mypy(path, *options):
    """What mypy says of a file."""
    # The package is found where this interpreter finds it, as one with types.
    environment = {**os.environ, "MYPYPATH": "", "PYTHONPATH": ""}
    if PACKAGE.parent not in map(pathlib.Path, site.getsitepackages()):
        environment["MYPYPATH"] = str(PACKAGE.parent)
    # Reading all of torch would take minutes, and tells nothing of this package.
    (path.parent / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n", encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(path.parent / "cache"), *options, str(path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=environment,
        cwd=path.parent,
    )
    return run.stdout + run.stderr


def test_a_client_passes_the_strict_check(tmp_path):
    (tmp_path / "client.py").write_text(CLIENT, encoding="utf-8")
    assert "Success" in mypy(tmp_path / "client.py", "--follow-imports=silent")


def test_the_strict_check_sees_every_name(tmp_path):
    names = [f"deep_gemm.{name}" for name in deep_gemm.__all__]
    names += [f"deep_gemm.utils.{name}" for name in deep_gemm.utils.__all__]
    names += [f"deep_gemm.testing.{name}" for name in deep_gemm.testing.__all__]
    text = "from oxigemm import deep_gemm\n" + "\n".join(f"x{i} = {name}" for i, name in enumerate(names))
    (tmp_path / "client.py").write_text(text + "\n", encoding="utf-8")
    assert "Success" in mypy(tmp_path / "client.py", "--follow-imports=silent")


def test_a_wrong_call_is_seen(tmp_path):
    (tmp_path / "client.py").write_text(
        "from oxigemm.deep_gemm import ceil_div\n\nceil_div('7', 4)\n", encoding="utf-8"
    )
    assert "[arg-type]" in mypy(tmp_path / "client.py", "--follow-imports=silent")
