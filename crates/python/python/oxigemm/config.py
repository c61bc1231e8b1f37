"""Settings of the process.

Environment variables, read when something first needs them:

====================== ==========================================================================================
``OXIGEMM_DEVICE``     what computes CPU arrays: ``cpu`` (the default), ``sim``, ``sim:lazy``, ``sim:7``. ``cuda``
                       is an error where there is no GPU, and else the CPU: a GPU computes its own tensors
``OXIGEMM_CACHE_DIR``  the cubin cache; ``none`` for no cache; else ``~/.cache/oxigemm``
``OXIGEMM_PREBUILT_DIR`` prebuilt cubins, preferred to those of the package
``OXIGEMM_PTXAS``      the assembler for kernels that are not prebuilt
``OXIGEMM_TUNED``      a file of tuned configurations, that ``oxigemm tune`` wrote: see `load_tuned`
``OXIGEMM_LOG``        what is written to stderr: ``off``, ``error``, ``warn`` (the default), ``info``, ``debug``
====================== ==========================================================================================
"""

from __future__ import annotations

import os
from typing import Dict, Optional

from . import _oxigemm
from ._arrays import expect_int
from ._oxigemm import get_batch_invariant, get_device, set_batch_invariant, set_device
from .errors import ArgumentError, ArgumentTypeError

__all__ = [
    "get_batch_invariant",
    "get_cache_dir",
    "get_device",
    "gpu_stats",
    "load_all",
    "load_tuned",
    "set_batch_invariant",
    "set_cache_dir",
    "set_device",
]

#: More than a machine has.
_MOST_GPUS = 64


def set_cache_dir(path: "Optional[str | os.PathLike[str]]") -> None:
    """Sets the directory of the cubin cache, or None for no cache. It holds for GPUs that are not in use yet.

    >>> set_cache_dir("/var/cache/oxigemm")
    """
    if path is not None and not isinstance(path, (str, os.PathLike)):
        found = f"{path!r} ({type(path).__name__})"
        raise ArgumentTypeError(f"`path` has the wrong type: expected a path or None, found {found}", "path")
    if path is not None and not os.fspath(path):
        raise ArgumentError("`path` is empty: expected a directory, or None for no cache", "path")
    os.environ["OXIGEMM_CACHE_DIR"] = "none" if path is None else os.fspath(path)


def get_cache_dir() -> Optional[str]:
    """The directory of the cubin cache, if there is one."""
    path = os.environ.get("OXIGEMM_CACHE_DIR")
    if path == "none":
        return None
    if path:
        return path
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "oxigemm")


def load_all(gpu: int = 0) -> None:
    """Loads every kernel on a GPU, so that no later call has to.

    >>> load_all(torch.cuda.current_device())
    """
    _oxigemm.load_all(expect_int("gpu", gpu, 0, _MOST_GPUS - 1))


def load_tuned(path: "str | os.PathLike[str]") -> int:
    """Reads a file of tuned configurations, that ``oxigemm tune --out`` wrote, and gives their number.

    GEMMs of the problems and the kind of GPU that were measured then take the configuration that was found. They
    replace those of an earlier file. Problems that were computed before keep their plan, so this comes first.

    >>> load_tuned("h200.json")
    """
    if not isinstance(path, (str, os.PathLike)):
        found = f"{path!r} ({type(path).__name__})"
        raise ArgumentTypeError(f"`path` has the wrong type: expected a path, found {found}", "path")
    return _oxigemm.load_tuned(path)


def gpu_stats(gpu: int = 0) -> Dict[str, int]:
    """What a GPU has loaded (``kernels``), planned (``plans``) and compiled (``compilations``) so far."""
    return _oxigemm.gpu_stats(expect_int("gpu", gpu, 0, _MOST_GPUS - 1))
