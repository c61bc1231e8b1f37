"""Casts with scales, and arithmetic of shapes, under DeepGEMM's names."""

from __future__ import annotations

from . import layout, math
from .layout import *  # noqa: F403
from .math import *  # noqa: F403

__all__ = [*layout.__all__, *math.__all__]
