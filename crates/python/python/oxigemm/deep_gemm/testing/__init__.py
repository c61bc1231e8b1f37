"""Comparison and timing, under DeepGEMM's names."""

from __future__ import annotations

from . import bench as _bench
from . import numeric, utils
from .bench import *  # noqa: F403
from .numeric import *  # noqa: F403
from .utils import *  # noqa: F403

__all__ = [*_bench.__all__, *numeric.__all__, *utils.__all__]
