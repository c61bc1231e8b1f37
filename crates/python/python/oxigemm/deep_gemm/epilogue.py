"""Epilogue objects: what a GEMM does with its accumulators before it stores D.

``epilogue=`` of the GEMM functions takes one of them. ``alpha=`` is the short form of ``Alpha``, and a pair ``(d,
sfd)`` as ``d`` that of ``FP8Quantization``. Kernels for Hopper scale and quantize; they neither clamp nor round
stochastically.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

from .._arrays import dtype_name, is_torch
from ..errors import ArgumentError, ArgumentTypeError

__all__ = ["Alpha", "BF16StochasticRounding", "FP8CastWithClamp", "FP8Quantization", "Identity"]

#: The fields of the extension's epilogue: alpha, beta, bias, activation, gated, head_splits, d_scales, power_of_two,
#: d_format, tensor_scale, gate.
Fused = Tuple[float, float, None, str, bool, None, Any, bool, None, float, None]


class Identity:
    """D as it is: the same as no epilogue."""

    def __repr__(self) -> str:
        return "Identity()"


class Alpha:
    """``D = C + alpha * A·B``: a number, or an array of one element on the CPU."""

    def __init__(self, alpha: Any) -> None:
        self.alpha = alpha

    def __repr__(self) -> str:
        return f"Alpha({self.alpha!r})"


class FP8Quantization:
    """D as e4m3, with a scale for each row and 128 columns in ``sfd``, float32 [M, N/128] of any strides.

    The rule is that of ``per_token_cast_to_fp8``, for float32 accumulators.
    """

    def __init__(self, sfd: Any) -> None:
        self.sfd = sfd

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_shape_of(self.sfd)})"


class FP8CastWithClamp(FP8Quantization):
    """``FP8Quantization`` under the name of SGLang's build; no kernel clamps or counts, so GEMMs refuse both."""

    def __init__(self, sfd: Any, clamp_value: Optional[float] = None, clamped_count: Optional[Any] = None) -> None:
        super().__init__(sfd)
        self.clamp_value = clamp_value
        self.clamped_count = clamped_count


class BF16StochasticRounding:
    """Stochastic rounding of a bfloat16 D. No kernel for Hopper has it, so GEMMs refuse it."""

    def __repr__(self) -> str:
        return "BF16StochasticRounding()"


def _shape_of(array: Any) -> str:
    return f"{dtype_name(array.dtype)} {list(array.shape)}" if hasattr(array, "shape") else repr(array)


def _number(alpha: Any) -> float:
    """``alpha`` as a number, without a read of a GPU's memory."""
    if isinstance(alpha, (int, float)) and not isinstance(alpha, bool):
        return float(alpha)
    if is_torch(alpha) and alpha.device.type != "cpu":
        expected = "a number or an array of the CPU (reading a GPU's memory would wait for the stream)"
        raise ArgumentError(f"`alpha` is on the wrong device: expected {expected}, found {alpha.device}", "alpha")
    shape = getattr(alpha, "shape", None)
    if shape is None or not dtype_name(getattr(alpha, "dtype", "")).startswith(("float", "bfloat", "int")):
        found = type(alpha).__name__ if shape is None else dtype_name(alpha.dtype)
        raise ArgumentTypeError(f"`alpha` has the wrong type: expected a number, found {found}", "alpha")
    if any(dim != 1 for dim in shape):
        message = f"`alpha` has the wrong shape: expected one element, found {list(shape)}"
        raise ArgumentError(message, "alpha")
    return float(alpha.item())


def _expect_scales(d: Any, sfd: Any) -> None:
    """The scales that a quantized D needs, as far as errors would name another argument."""
    if not hasattr(sfd, "shape") or not hasattr(sfd, "dtype"):
        raise ArgumentTypeError(f"`sfd` has the wrong type: expected an array, found {type(sfd).__name__}", "sfd")
    if dtype_name(sfd.dtype) != "float32":
        found = dtype_name(sfd.dtype)
        raise ArgumentTypeError(f"`sfd` has the wrong element type: expected float32, found {found}", "sfd")
    shape = tuple(getattr(d, "shape", ()))
    expected = (*shape[:-1], -(-shape[-1] // 128)) if shape else None
    if expected is not None and tuple(sfd.shape) != expected:
        message = f"`sfd` has the wrong shape: expected {list(expected)}, one scale for each row of `d` and 128 columns"
        raise ArgumentError(f"{message}, found {list(sfd.shape)}", "sfd")


def _parts(d: Any, alpha: Any, epilogue: Any) -> Tuple[Any, Any, Optional[Any]]:
    """D, alpha (as given) and the scales of D, as all three arguments say."""
    sfd: Optional[Any] = None
    if isinstance(d, (tuple, list)):
        if len(d) != 2:
            expected = "an array, or a pair of codes and scales"
            raise ArgumentTypeError(f"`d` has the wrong type: expected {expected}, found {len(d)} parts", "d")
        d, sfd = d
    if epilogue is None or isinstance(epilogue, Identity):
        return d, alpha, sfd
    if isinstance(epilogue, Alpha):
        if alpha is not None:
            message = f"`alpha` is given twice: expected None with `epilogue`, found {alpha!r}"
            raise ArgumentError(message, "alpha")
        return d, epilogue.alpha, sfd
    if isinstance(epilogue, FP8Quantization):
        if sfd is not None:
            message = f"`epilogue` is given twice: expected None, as `d` is a pair, found {epilogue!r}"
            raise ArgumentError(message, "epilogue")
        for name in ("clamp_value", "clamped_count"):
            if getattr(epilogue, name, None) is not None:
                message = f"`{name}` has no kernels for Hopper: expected None, found {getattr(epilogue, name)!r}"
                raise ArgumentError(message, name)
        if epilogue.sfd is None:
            raise ArgumentTypeError("`sfd` has the wrong type: expected an array, found None", "sfd")
        return d, alpha, epilogue.sfd
    if isinstance(epilogue, BF16StochasticRounding):
        message = f"`epilogue` has no kernels for Hopper: expected no stochastic rounding, found {epilogue!r}"
        raise ArgumentError(message, "epilogue")
    expected, found = "an object of deep_gemm.epilogue", type(epilogue).__name__
    raise ArgumentTypeError(f"`epilogue` has the wrong type: expected {expected}, found {found}", "epilogue")


def resolve(d: Any, alpha: Any, epilogue: Any) -> Tuple[Any, Optional[Fused]]:
    """D, and the fused epilogue that the arguments mean; None where they mean the identity."""
    d, alpha, sfd = _parts(d, alpha, epilogue)
    factor = 1.0 if alpha is None else _number(alpha)
    if sfd is None and factor == 1.0:
        return d, None
    if sfd is not None:
        _expect_scales(d, sfd)
    return d, (factor, 1.0, None, "none", False, None, sfd, False, None, 1.0, None)


def refuse(d: Any, alpha: Any, epilogue: Any) -> Any:
    """D of a function that has no kernels with a fused epilogue: only the identity is accepted."""
    was_pair = isinstance(d, (tuple, list))
    d, fused = resolve(d, alpha, epilogue)
    if fused is None:
        return d
    if was_pair:
        expected = "an array, as this function has no kernels that quantize"
        raise ArgumentTypeError(f"`d` has the wrong type: expected {expected}, found a pair", "d")
    name, found = ("alpha", alpha) if alpha is not None else ("epilogue", epilogue)
    message = f"`{name}` has no kernels in this function: expected None, found {found!r}"
    raise ArgumentError(message, name)


def operands(fused: Optional[Fused]) -> Tuple[Any, Any]:
    """The two parts of a fused epilogue in the schemas of torch's operators: alpha and the scales of D."""
    return (None, None) if fused is None else (fused[0], fused[6])
