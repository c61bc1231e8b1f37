"""Layout transforms of scales. GEMMs take any layout; engines that prepare the fastest one call these."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from .. import _call
from .. import _oxigemm as _C
from .._arrays import dtype_name, empty, expect_elements, expect_int, expect_shape, is_torch
from ..errors import ArgumentError, ArgumentTypeError

__all__ = [
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor",
    "get_mn_major_tma_aligned_tensor",
    "get_tma_aligned_size",
    "transform_sf_into_required_layout",
]


def get_tma_aligned_size(x: int, element_size: int) -> int:
    """``x`` elements, rounded up to a multiple of 16 bytes.

    >>> get_tma_aligned_size(5, element_size=4)
    8
    """
    expect_int("x", x, 0)
    if expect_int("element_size", element_size) not in (1, 2, 4, 8, 16):
        message = f"`element_size` is wrong: expected 1, 2, 4, 8 or 16 bytes, found {element_size}"
        raise ArgumentError(message, "element_size")
    unit = 16 // element_size
    return -(-x // unit) * unit


def _strides(array: Any) -> Sequence[int]:
    """Strides in elements."""
    if is_torch(array):
        return array.stride()
    return [stride // array.itemsize for stride in array.strides]


def _expect_scales(sf: Any) -> None:
    if len(expect_shape("sf", sf)) not in (2, 3):
        raise ArgumentError(f"`sf` has the wrong rank: expected 2 or 3 dimensions, found {tuple(sf.shape)}", "sf")
    expect_elements("sf", sf, ("float32",))


def _is_for_blackwell(sf: Any) -> bool:
    return _call.arch_major(sf) == 10


def _expect_psum_layout(sf: Any, psum_layout: Optional[Any]) -> None:
    if psum_layout is not None and not _is_for_blackwell(sf):
        raise ArgumentError("`psum_layout` is not for Hopper: expected None, found a layout", "psum_layout")


def _is_mn_major(sf: Any) -> bool:
    """Whether it has the layout of ``get_mn_major_tma_aligned_tensor``."""
    *_, mn, k = sf.shape
    pitch = get_tma_aligned_size(mn, 4)
    *slabs, row, column = _strides(sf)
    return row == 1 and column == pitch and all(slab == pitch * k for slab in slabs)


def _transform(sf: Any, to: Any) -> None:
    if _call.is_compiling():
        _call.ops().transform_scales(sf, to)
    else:
        _C.transform_scales(sf, to)


def _transformed(sf: Any, dtype: str, columns: int) -> Any:
    *slabs, mn, _ = sf.shape
    memory = empty(sf, (*slabs, columns, get_tma_aligned_size(mn, 4)), dtype)
    to = memory.swapaxes(-1, -2)[..., :mn, :]
    _transform(sf, to)
    return to


def _without_mantissa(sf: Any) -> Any:
    """Powers of two: DeepGEMM cuts what UE8M0 has no bits for, where the kernel would round up."""
    if is_torch(sf):
        import torch

        return (sf.view(torch.int32) & 0x7F800000).view(torch.float32)
    return (sf.view("int32") & 0x7F800000).view("float32")


def get_mn_major_tma_aligned_tensor(sf: Any) -> Any:
    """float32 scales [MN, K] or [G, MN, K] MN-major: contiguous along MN, column pitch multiples of 16 bytes.

    Scales that have the layout are returned as they are.
    """
    _expect_scales(sf)
    return sf if _is_mn_major(sf) else _transformed(sf, "float32", sf.shape[-1])


def get_mn_major_tma_aligned_packed_ue8m0_tensor(sf: Any, psum_layout: Optional[Any] = None) -> Any:
    """float32 scales [MN, K] or [G, MN, K] as packed UE8M0, int32 [MN, K/4] or [G, MN, K/4].

    An int32 holds four exponents of a row, the first in the lowest byte. The layout is MN-major. Scales that are no
    powers of two lose their mantissa. ``psum_layout`` is for Blackwell, and without effect there: what lies between
    groups is packed as it is.
    """
    _expect_psum_layout(sf, psum_layout)
    _expect_scales(sf)
    return _transformed(_without_mantissa(sf), "int32", -(-sf.shape[-1] // 4))


def get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: Any,
    grouped_layout: Any,
    ks_cpu: Sequence[int],
    gran_k: int,
    k_alignment: Optional[int] = None,
    use_psum_layout: bool = False,
) -> Any:
    """float32 scales [sum of K_g/gran_k, MN] of k-grouped operands as UE8M0, int32 [sum of K_g/(4 * gran_k), MN].

    An int32 holds four exponents of a column of one group. The layout is contiguous along MN, with a row pitch of
    16-byte multiples. ``ks_cpu`` are the K of the groups, multiples of ``k_alignment`` if that is given;
    ``grouped_layout`` has the same on the device. A group's exponents begin in an int32 of their own, so K-grouped
    GEMMs read this result, transposed, where every K is a multiple of ``4 * gran_k``. This is a launch for each group.
    """
    if use_psum_layout:
        message = "`use_psum_layout` has no kernels: expected False, found True"
        raise ArgumentError(message, "use_psum_layout")
    _expect_scales(sf)
    if len(sf.shape) != 2:
        raise ArgumentError(f"`sf` has the wrong rank: expected 2 dimensions, found {tuple(sf.shape)}", "sf")
    expect_int("gran_k", gran_k, 1)
    if k_alignment is not None:
        expect_int("k_alignment", k_alignment, 1)
    if not isinstance(ks_cpu, (tuple, list)):
        found = type(ks_cpu).__name__
        raise ArgumentTypeError(f"`ks_cpu` has the wrong type: expected a list of integers, found {found}", "ks_cpu")
    if not ks_cpu or any(expect_int("ks_cpu", k) < 0 or k % (k_alignment or 1) for k in ks_cpu):
        expected = f"multiples of `k_alignment`, {k_alignment}" if k_alignment else "numbers of 0 or more"
        raise ArgumentError(f"`ks_cpu` is wrong: expected {expected}, found {ks_cpu}", "ks_cpu")
    expect_elements("grouped_layout", grouped_layout, ("int32",))
    if tuple(grouped_layout.shape) != (len(ks_cpu),):
        found = tuple(grouped_layout.shape)
        message = f"`grouped_layout` has the wrong shape: expected {(len(ks_cpu),)}, found {found}"
        raise ArgumentError(message, "grouped_layout")
    sf = _without_mantissa(sf)
    rows = [-(-k // gran_k) for k in ks_cpu]
    mn = sf.shape[1]
    if sf.shape[0] != sum(rows):
        message = f"`sf` has the wrong shape: expected {(sum(rows), mn)}, found {tuple(sf.shape)}"
        raise ArgumentError(message, "sf")
    packed = [-(-count // 4) for count in rows]
    found = empty(sf, (sum(packed), get_tma_aligned_size(mn, 4)), "int32")[:, :mn]
    first = first_packed = 0
    for count, count_packed in zip(rows, packed):
        to = found[first_packed : first_packed + count_packed]
        if count > 0:
            _transform(sf[first : first + count].swapaxes(0, 1), to.swapaxes(0, 1))
        first, first_packed = first + count, first_packed + count_packed
    return found


def transform_sf_into_required_layout(
    sf: Any,
    mn: int,
    k: int,
    recipe: Sequence[int],
    num_groups: Optional[int] = None,
    is_sfa: Optional[bool] = None,
    disable_ue8m0_cast: bool = False,
    psum_layout: Optional[Any] = None,
) -> Any:
    """Scales in the layout that the kernels of the device of ``sf`` read fastest.

    ``recipe`` is the block ``(rows, columns)`` that shares a scale, or with ``is_sfa`` the ``(m, n, k)`` of both
    operands.

    ========= ============================== ==================================================================
    device    ``recipe``                     float32 scales become
    ========= ============================== ==================================================================
    Hopper    (1, 128)                       MN-major: ``get_mn_major_tma_aligned_tensor``
    Hopper    (128, 128)                     what they are
    Blackwell (1, 128), (128, 128)           a row for each of MN, as packed UE8M0:
    Blackwell (1, 32), (32, 32)              ``get_mn_major_tma_aligned_packed_ue8m0_tensor``
    ========= ============================== ==================================================================

    Packed UE8M0 scales, int32 with four of a row in each, stay as they are. ``disable_ue8m0_cast`` refuses float32
    scales on Blackwell, and has no effect on Hopper, where they keep every bit.
    """
    _expect_psum_layout(sf, psum_layout)
    if not isinstance(recipe, (tuple, list)):
        found = type(recipe).__name__
        raise ArgumentTypeError(f"`recipe` has the wrong type: expected a tuple of integers, found {found}", "recipe")
    mn, k = expect_int("mn", mn, 0), expect_int("k", k, 0)
    if len(recipe) == 3 and is_sfa is not None:
        rows, columns = (recipe[0] if is_sfa else recipe[1]), recipe[2]
    elif len(recipe) == 2 and is_sfa is None:
        rows, columns = recipe
    else:
        expected = "two numbers without `is_sfa`, or three with it"
        raise ArgumentError(f"`recipe` is wrong: expected {expected}, found {tuple(recipe)}", "recipe")
    blackwell = _is_for_blackwell(sf)
    recipes = ((1, 128), (128, 128), (1, 32), (32, 32)) if blackwell else ((1, 128), (128, 128))
    if (rows, columns) not in recipes:
        chip = "Blackwell" if blackwell else "Hopper"
        expected = f"{' or '.join(map(str, recipes))}, which {chip} has kernels for"
        raise ArgumentError(f"`recipe` is wrong: expected {expected}, found {(rows, columns)}", "recipe")
    groups = () if num_groups is None else (expect_int("num_groups", num_groups, 0),)
    shape = (*groups, -(-mn // rows), -(-k // columns))
    if expect_shape("sf", sf) and dtype_name(sf.dtype) == "int32":
        shape = (*shape[:-1], -(-shape[-1] // 4))
    else:
        _expect_scales(sf)
    if tuple(sf.shape) != shape:
        raise ArgumentError(f"`sf` has the wrong shape: expected {shape}, found {tuple(sf.shape)}", "sf")
    if dtype_name(sf.dtype) == "int32":
        return sf
    if not blackwell:
        return get_mn_major_tma_aligned_tensor(sf) if rows == 1 else sf
    if disable_ue8m0_cast:
        _call.expect_no_cast((None, sf))
    repeated = sf if rows == 1 else _repeated_rows(sf, rows)[..., :mn, :]
    return get_mn_major_tma_aligned_packed_ue8m0_tensor(repeated)


def _repeated_rows(sf: Any, times: int) -> Any:
    return sf.repeat_interleave(times, -2) if is_torch(sf) else sf.repeat(times, -2)
