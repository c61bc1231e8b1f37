"""What functions need to call the extension: directly, or through torch's custom operators while torch traces."""

from __future__ import annotations

import itertools
import sys
from typing import Any, Optional

from . import _oxigemm
from .errors import ArgumentError, ArgumentTypeError


def is_compiling() -> bool:
    """Whether torch traces right now. Once torch was seen outside of a trace, this is torch's own function."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    if torch.compiler.is_compiling():
        return True
    globals()["is_compiling"] = torch.compiler.is_compiling
    return False


def ops() -> Any:
    """The operators."""
    return sys.modules["torch"].ops.oxigemm


def refuse_none(name: str, value: Any) -> None:
    """The check of an argument that a function needs, for a part of the epilogue that others may leave out."""
    if value is None:
        raise ArgumentTypeError(f"`{name}` has the wrong type: expected a value, found None", name)


#: What ``compiled_dims`` may be: dimensions out of ``mnk``, each once and in any order.
_DIMS = frozenset("".join(dims) for count in range(4) for dims in itertools.permutations("mnk", count))


def expect_dims(compiled_dims: Any) -> None:
    """The check of ``compiled_dims``, which changes nothing: no dimension is compiled into a kernel."""
    if not isinstance(compiled_dims, str):
        found = type(compiled_dims).__name__
        message = f"`compiled_dims` has the wrong type: expected a string, found {found}"
        raise ArgumentTypeError(message, "compiled_dims")
    if compiled_dims not in _DIMS:
        message = f"`compiled_dims` is wrong: expected dimensions out of 'mnk', found {compiled_dims!r}"
        raise ArgumentError(message, "compiled_dims")


def refuse_overlap(enable_overlap: bool, max_block_n: Optional[int], signal: Any) -> None:
    """The check of what SGLang's build of DeepGEMM adds to masked functions: only the defaults have kernels."""
    if enable_overlap:
        raise ArgumentError("`enable_overlap` has no kernels: expected False, found True", "enable_overlap")
    if signal is not None:
        raise ArgumentError("`signal` has no kernels: expected None, found a signal", "signal")
    if max_block_n not in (None, 256):
        message = f"`max_block_n` has no effect on plans: expected 256 or None, found {max_block_n}"
        raise ArgumentError(message, "max_block_n")


def refuse_padded_scales() -> None:
    """The check of ``use_padded_sf_layout``: blocks of scales follow each other."""
    message = "`use_padded_sf_layout` has no kernels: expected False, found True"
    raise ArgumentError(message, "use_padded_sf_layout")


def expect_no_cast(*operands: Any) -> None:
    """The check of ``disable_ue8m0_cast``: on Blackwell, scales are UE8M0 then."""
    for operand in operands:
        scales = operand[1] if isinstance(operand, (tuple, list)) and len(operand) == 2 else None
        if _is_float32(scales) and arch_major(scales) == 10:
            expected = "False, or scales of UE8M0, which its tensor core takes"
            message = f"`disable_ue8m0_cast` has no kernels on Blackwell: expected {expected}, found float32 scales"
            raise ArgumentError(message, "disable_ue8m0_cast")


def _is_float32(array: Any) -> bool:
    return str(getattr(array, "dtype", None)).split(".")[-1] == "float32"


def arch_major(array: Any) -> Optional[int]:
    """The major compute capability of the device that computes this array; None for the CPU reference."""
    device = getattr(array, "device", None)
    on_gpu = getattr(device, "type", None) == "cuda"
    return _oxigemm.arch_major(device.index if on_gpu else None)


def one_of_ks(ks_cpu: Any, ks: Any) -> Any:
    """The one of two names of the same argument that is given."""
    if ks_cpu is not None:
        raise ArgumentError("`ks` is another name of `ks_cpu`: expected one of them, found both", "ks")
    return ks
