"""Timing of kernels with torch."""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, Optional, Sequence, Tuple, Union

__all__ = ["bench", "bench_kineto", "empty_suppress", "suppress_stdout_stderr"]

#: Larger than the L2 cache.
_FLUSH_BYTES = 256 << 20
#: Larger still, so that the tensor cores idle meanwhile.
_REST_BYTES = 8 << 30
#: Kernel names that scripts for DeepGEMM look for, and the names here of kernels that do the same.
_NAMES = {"bmn_bnk_mn_gemm_impl": "gemm_split_k_summed", "pack_fp32_into_ue8m0": "transform_scales"}


def bench(fn: Callable[[], Any], num_warmups: int = 5, num_tests: int = 10, high_precision: bool = False) -> float:
    """Seconds of a call on the GPU, by events: the mean of ``num_tests``.

    Calls follow each other, as in DeepGEMM: what they read stays in the L2 cache as far as it fits. ``bench_kineto``
    flushes it before each call.
    """
    import torch

    torch.cuda.synchronize()
    torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda").zero_()
    for _ in range(num_warmups):
        fn()
    if high_precision:
        # The host gets ahead, so that its time is not measured.
        x = torch.randn(8192, 8192, device="cuda")
        x @ x
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(num_tests):
        fn()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / num_tests / 1e3


class empty_suppress:
    """A context that changes nothing: for callers that choose between it and ``suppress_stdout_stderr``."""

    def __enter__(self) -> empty_suppress:
        return self

    def __exit__(self, *_error: object) -> None:
        return None


class suppress_stdout_stderr:
    """A context without output: neither what Python prints nor what libraries write to the two streams.

    >>> with suppress_stdout_stderr():
    ...     print("nobody reads this")
    """

    def __enter__(self) -> suppress_stdout_stderr:
        self._streams = sys.stdout, sys.stderr
        self._flush()
        self._kept = [os.dup(stream) for stream in (1, 2)]
        self._nowhere = open(os.devnull, "w")
        for stream in (1, 2):
            os.dup2(self._nowhere.fileno(), stream)
        sys.stdout = sys.stderr = self._nowhere
        return self

    def __exit__(self, *_error: object) -> None:
        # What the streams of before still hold was written inside.
        self._flush()
        sys.stdout, sys.stderr = self._streams
        for stream, copy in zip((1, 2), self._kept):
            os.dup2(copy, stream)
            os.close(copy)
        self._nowhere.close()

    def _flush(self) -> None:
        for stream in self._streams:
            # A process without a console has none.
            if stream is not None:
                stream.flush()


def bench_kineto(
    fn: Callable[[], Any],
    kernel_names: Union[str, Sequence[str]],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: Optional[str] = None,
    flush_l2: bool = True,
    with_multiple_kernels: bool = False,
    barrier: Optional[Callable[[], Any]] = None,
) -> Union[float, Tuple[float, ...]]:
    """Seconds of kernels whose names contain ``kernel_names``, by torch's profiler: the mean of ``num_tests`` calls.

    Before each call the L2 cache is flushed, unless ``flush_l2`` is False. A name may match one kernel only, unless
    ``with_multiple_kernels``. The time of a name that matches none is 0. DeepGEMM's kernel names stand for those here.
    """
    import torch

    names = [kernel_names] if isinstance(kernel_names, str) else list(kernel_names)
    fn()
    flush = None
    if flush_l2:
        free, _ = torch.cuda.mem_get_info()
        flush = torch.empty(min(_REST_BYTES, free // 2) // 4, dtype=torch.int32, device="cuda")
    steps = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    with suppress_stdout_stderr() if suppress_kineto_output else empty_suppress():
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities, schedule=steps) as profiler:
            for _ in range(2):
                for _ in range(num_tests):
                    if flush is not None:
                        flush.zero_()
                    if barrier is not None:
                        barrier()
                    fn()
                torch.cuda.synchronize()
                profiler.step()
    if trace_path is not None:
        profiler.export_chrome_trace(trace_path)
    rows = [row for row in profiler.key_averages() if row.device_time_total > 0]
    times = []
    for name in names:
        found = [row for row in rows if name in row.key or _NAMES.get(name, name) in row.key]
        if len(found) > 1 and not with_multiple_kernels:
            # What DeepGEMM raises, and its callers catch.
            raise AssertionError(f"{name} is in the names of {len(found)} kernels: {[row.key for row in found]}")
        times.append(sum(row.device_time_total for row in found) / num_tests / 1e6)
    return times[0] if isinstance(kernel_names, str) else tuple(times)
