"""Settings of the process, as DeepGEMM has them."""

from __future__ import annotations

import sys
from typing import Any, Optional, Tuple, Union

from .. import _oxigemm
from .._arrays import expect_int
from .._oxigemm import get_pdl, set_pdl
from ..errors import ArgumentError, ArgumentTypeError

__all__ = [
    "get_deterministic_algorithms",
    "get_k_alignment_for_contiguous_layout",
    "get_m_alignment_for_contiguous_layout",
    "get_mk_alignment_for_contiguous_layout",
    "get_num_sms",
    "get_pdl",
    "get_tc_util",
    "get_theoretical_mk_alignment_for_contiguous_layout",
    "set_block_size_multiple_of",
    "set_ignore_compile_dims",
    "set_mk_alignment_for_contiguous_layout",
    "set_num_sms",
    "set_pdl",
    "set_tc_util",
    "shutdown",
    "use_deterministic_algorithms",
]

#: The alignments of the first row of a group that there are.
_ALIGNMENTS = (1, 16, 32, 64, 128)

_tc_util = 100


def _current_gpu() -> Optional[int]:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return torch.cuda.current_device()


def set_num_sms(new_num_sms: int) -> None:
    """Sets how many SMs kernels may use; 0 for all, those of torch's current GPU or of the simulated one."""
    most = _oxigemm.sm_count(_current_gpu())
    _oxigemm.set_num_sms(expect_int("new_num_sms", new_num_sms, 0, most))


def get_num_sms() -> int:
    """How many SMs kernels may use."""
    return _oxigemm.get_num_sms() or _oxigemm.sm_count(_current_gpu())


def set_tc_util(new_tc_util: int) -> None:
    """Stored without effect: no kernel for Hopper throttles its tensor cores."""
    global _tc_util
    _tc_util = expect_int("new_tc_util", new_tc_util, 0, 100) or 100


def get_tc_util() -> int:
    """The value of ``set_tc_util``, 100 by default."""
    return _tc_util


def set_ignore_compile_dims(new_value: bool) -> None:
    """Without effect: no dimension is ever compiled into a kernel."""


def set_block_size_multiple_of(new_value: Union[int, Tuple[int, int]]) -> None:
    """Without effect: tiles come from a closed set of kernels."""


def set_mk_alignment_for_contiguous_layout(new_value: int) -> None:
    """Sets the alignment of the first row of each group: 1, 16, 32, 64 or 128."""
    if expect_int("new_value", new_value) not in _ALIGNMENTS:
        expected = "1, 16, 32, 64 or 128"
        raise ArgumentError(f"`new_value` is no alignment: expected {expected}, found {new_value}", "new_value")
    _oxigemm.set_alignment(new_value)


def get_mk_alignment_for_contiguous_layout() -> int:
    """The alignment of the first row of each group, 128 by default."""
    return _oxigemm.get_alignment()


get_m_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout
get_k_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout


def get_theoretical_mk_alignment_for_contiguous_layout(
    expected_m: Optional[int] = None, num_groups: Optional[int] = None
) -> int:
    """An alignment for groups of so many rows, which ``set_mk_alignment_for_contiguous_layout`` accepts.

    ``expected_m`` is the rows of all groups together with ``num_groups``, and those of one group without it. Kernels
    need no alignment and never compute padding rows, but other kernels of an engine may. So the answer is the largest
    of 16, 32, 64 and 128 that is at most a quarter of a group's rows: padding is then an eighth of the rows on average.
    It is 16 for fewer than 64 rows, and 128 where the rows are not known.
    """
    for name, value in (("expected_m", expected_m), ("num_groups", num_groups)):
        if value is not None and (isinstance(value, bool) or not hasattr(value, "__index__")):
            found = type(value).__name__
            raise ArgumentTypeError(f"`{name}` has the wrong type: expected an integer, found {found}", name)
    if expected_m is not None and expected_m < 0:
        raise ArgumentError(f"`expected_m` is out of range: expected 0 or more, found {expected_m}", "expected_m")
    if num_groups is not None and num_groups < 1:
        raise ArgumentError(f"`num_groups` is out of range: expected 1 or more, found {num_groups}", "num_groups")
    if expected_m is None:
        return 128
    rows = -(-expected_m // (num_groups or 1))
    return max(16, *(alignment for alignment in _ALIGNMENTS[1:] if 4 * alignment <= max(rows, 64)))


def use_deterministic_algorithms(mode: bool) -> None:
    """Makes GEMMs batch-invariant: a row of D has the same bits whatever the other rows are and however many.

    Every call gives the same bits each time in either mode: no kernel adds in an order that depends on timing. With
    True, GEMMs leave out split-K, stream-K and serpentine K, whose choice depends on the number of rows. It is the
    setting of ``oxigemm.config.set_batch_invariant``.
    """
    if not isinstance(mode, bool):
        raise ArgumentTypeError(f"`mode` has the wrong type: expected a bool, found {type(mode).__name__}", "mode")
    _oxigemm.set_batch_invariant(mode)


def get_deterministic_algorithms() -> bool:
    """The value of ``use_deterministic_algorithms``, False by default."""
    return _oxigemm.get_batch_invariant()


def shutdown() -> None:
    """Releases nothing: there are no library handles. Kernels and workspaces belong to a GPU's context, with which the
    driver frees them when the process ends. Functions may be called after it.
    """
