"""Comparison and timing, under DeepGEMM's names."""

from __future__ import annotations

from .bench import bench, bench_kineto, empty_suppress, suppress_stdout_stderr
from .numeric import assert_bitwise_equal, calc_diff, count_bytes
from .utils import get_arch_major, ignore_env, test_filter

__all__ = [
    "assert_bitwise_equal",
    "bench",
    "bench_kineto",
    "calc_diff",
    "count_bytes",
    "empty_suppress",
    "get_arch_major",
    "ignore_env",
    "suppress_stdout_stderr",
    "test_filter",
]
