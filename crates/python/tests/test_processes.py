"""Calls in forked children, interrupted calls, and what the environment asks for."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import oxigemm
from oxigemm import moe
from oxigemm.errors import ArgumentError

GEMM = """
import sys, time
import ml_dtypes, numpy as np, oxigemm
from oxigemm import deep_gemm

def gemm(m, n, k):
    a = np.ones((m, k), ml_dtypes.float8_e4m3fn), np.ones((m, k // 128), np.float32)
    b = np.ones((n, k), ml_dtypes.float8_e4m3fn), np.ones((n // 128, k // 128), np.float32)
    d = np.zeros((m, n), ml_dtypes.bfloat16)
    deep_gemm.fp8_gemm_nt(a, b, d)
    return float(d[0, 0])

"""


def run(code, timeout=120, **environment):
    return subprocess.run(
        [sys.executable, "-c", GEMM + code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=timeout,
        check=False,
    )


@pytest.mark.parametrize("name", ["cpu", "sim"])
def test_calls_work_in_forked_children(name):
    code = """
import multiprocessing, os

assert gemm(16, 128, 256) == 256
child = os.fork()
if child == 0:
    os._exit(0 if gemm(16, 128, 256) == 256 else 1)
assert os.waitpid(child, 0)[1] == 0
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.starmap(gemm, [(16, 128, 128), (8, 128, 256)]) == [128, 256]
assert gemm(16, 128, 256) == 256
"""
    done = run(code, OXIGEMM_DEVICE=name)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name, size", [("sim", (512, 2048, 8192)), ("cpu", (16384, 8192, 8192))])
def test_an_interrupt_ends_a_long_call(name, size):
    # A shell starts what runs in the background with the signal ignored.
    code = f"""
import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
assert gemm(8, 128, 128) == 128
print("ready", flush=True)
try:
    gemm(*{size})
except KeyboardInterrupt:
    assert gemm(8, 128, 128) == 128
    print("interrupted", flush=True)
"""
    command = [sys.executable, "-c", GEMM + code]
    environment = {**os.environ, "OXIGEMM_DEVICE": name}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout.readline() == "ready\n"
        # Operands are made in the meantime.
        time.sleep(3)
        child.send_signal(signal.SIGINT)
        sent = time.monotonic()
        try:
            line = child.stdout.readline()
            waited = time.monotonic() - sent
            assert (line, child.wait(20)) == ("interrupted\n", 0)
            assert waited < 2 or name == "cpu", waited
        finally:
            child.kill()


def test_a_handler_may_raise_what_it_wants_or_nothing():
    code = """
import signal

class Enough(Exception):
    pass

calls = []

def handler(number, frame):
    calls.append(number)
    if len(calls) > 1:
        raise Enough

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 1, 1)
try:
    gemm(512, 2048, 8192)
except Enough:
    print(len(calls))
"""
    done = run(code, OXIGEMM_DEVICE="sim")
    assert done.stdout == "2\n", done.stderr


def test_a_gpu_that_is_not_there_is_an_error():
    done = run("print(gemm(8, 128, 128))", OXIGEMM_DEVICE="cuda:63")
    assert done.returncode == 1 and "OXIGEMM_DEVICE is cuda:63: no " in done.stderr, done.stderr
    done = run("print(gemm(8, 128, 128))", OXIGEMM_DEVICE="cudax")
    assert done.returncode == 1 and "is no device for arrays of the CPU" in done.stderr, done.stderr


def test_a_permutation_without_experts_or_rows_is_refused():
    ids = np.array([[0, 1], [1, 0]], np.int32)
    for name in ("cpu", "sim"):
        oxigemm.set_device(name)
        try:
            with pytest.raises(ArgumentError, match="`experts`"):
                moe.permute(ids, 0)
            with pytest.raises(ArgumentError, match="`rows`.*130"):
                moe.permute(ids, 2, rows=8)
            assert list(moe.permute(ids, 2, rows=130).ends) == [2, 130]
        finally:
            oxigemm.set_device("cpu")
