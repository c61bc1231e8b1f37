"""Running a test only where it can run."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, Callable

from ... import _oxigemm

__all__ = ["get_arch_major", "ignore_env", "test_filter"]


def get_arch_major() -> int:
    """The major compute capability of torch's current GPU; without one that of the simulated GPU, or 9."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return _oxigemm.arch_major() or 9
    return torch.cuda.get_device_capability()[0]


def test_filter(condition: Callable[[], bool]) -> Callable:
    """A decorator: the function is only run where ``condition()`` holds, else its name is printed."""

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def run(*arguments, **named):
            if condition():
                return function(*arguments, **named)
            print(f"{function.__name__}: not for this device")

        return run

    return decorate


# It is no test of its own.
test_filter.__test__ = False  # type: ignore[attr-defined]


def ignore_env(name: str, condition: Callable[[], bool]) -> Callable:
    """A decorator: where ``condition()`` holds, the function runs without this environment variable."""

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def run(*arguments, **named):
            if not condition() or name not in os.environ:
                return function(*arguments, **named)
            value = os.environ.pop(name)
            try:
                return function(*arguments, **named)
            finally:
                os.environ[name] = value

        return run

    return decorate
