"""Settings of the process.

Environment variables, read when something first needs them:

====================== ==========================================================================================
``OXIGEMM_DEVICE``     what computes CPU arrays: ``cpu`` (the default), ``sim``, ``sim:lazy``, ``sim:7``
``OXIGEMM_CACHE_DIR``  the cubin cache; ``none`` for no cache; else ``~/.cache/oxigemm``
``OXIGEMM_PREBUILT_DIR`` prebuilt cubins, preferred to those of the package
``OXIGEMM_PTXAS``      the assembler for kernels that are not prebuilt
``OXIGEMM_LOG``        what is written to stderr: ``off``, ``error``, ``warn`` (the default), ``info``, ``debug``
====================== ==========================================================================================
"""

from __future__ import annotations

import os
from typing import Dict, Optional

from . import _oxigemm
from ._oxigemm import get_batch_invariant, get_device, set_batch_invariant, set_device

__all__ = [
    "get_batch_invariant",
    "get_cache_dir",
    "get_device",
    "gpu_stats",
    "load_all",
    "set_batch_invariant",
    "set_cache_dir",
    "set_device",
]


def set_cache_dir(path: Optional[str]) -> None:
    """Sets the directory of the cubin cache, or None for no cache. It holds for GPUs that are not in use yet."""
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
    """Loads every kernel on a GPU, so that no later call has to."""
    _oxigemm.load_all(gpu)


def gpu_stats(gpu: int = 0) -> Dict[str, int]:
    """What a GPU has loaded (``kernels``), planned (``plans``) and compiled (``compilations``) so far."""
    return _oxigemm.gpu_stats(gpu)
