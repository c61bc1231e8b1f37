"""Weights of a module: how they are quantized, found by their names and types, and what a device multiplies."""

from __future__ import annotations

import dataclasses
from typing import Callable, Iterator, List, Optional, Tuple

import torch

from .. import _oxigemm as _C
from .. import quantization
from ..errors import ArgumentError

RECIPES = ("fp8", "mxfp8", "mxfp4", "nvfp4")
E4M3 = torch.float8_e4m3fn
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
#: Where torch has a type for UE8M0.
_E8M0 = getattr(torch, "float8_e8m0fnu", torch.uint8)
_BYTES = (torch.uint8, torch.int8)


class Unsupported(Exception):
    """Weights that are left alone; its text is the reason."""


@dataclasses.dataclass
class Weights:
    """Weights ``[G, N, K]`` as a module has them."""

    #: What they are quantized to; None for numbers that are not quantized.
    recipe: Optional[str]
    #: Numbers, e4m3 codes, or bytes of two e2m1 codes each.
    codes: torch.Tensor
    #: Scales: float32, or uint8 exponents, or e4m3 of NVFP4.
    scales: Optional[torch.Tensor] = None
    #: Rows and columns that share a scale.
    block: Tuple[int, int] = (0, 0)
    #: Of NVFP4: ``[G]``, a factor.
    tensor_scale: Optional[torch.Tensor] = None

    @property
    def shape(self) -> Tuple[int, int, int]:
        groups, n, k = self.codes.shape
        return groups, n, 2 * k if self.recipe in ("mxfp4", "nvfp4") else k

    def matrices(self) -> Iterator["Weights"]:
        """Each group alone: what is computed of one is small beside all of them."""
        for group in range(self.codes.shape[0]):
            one = slice(group, group + 1)
            scales = None if self.scales is None else self.scales[one]
            of_all = None if self.tensor_scale is None else self.tensor_scale[one]
            yield Weights(self.recipe, self.codes[one], scales, self.block, of_all)

    def to(self, device: torch.device) -> "Weights":
        """The same on another device."""
        parts = (self.codes, self.scales, self.tensor_scale)
        codes, scales, of_all = (None if part is None else part.to(device) for part in parts)
        assert codes is not None
        return Weights(self.recipe, codes, scales, self.block, of_all)


@dataclasses.dataclass
class Operand:
    """What kernels multiply: ``[G, N, K]`` codes with float32 scales, or numbers of bfloat16 with a factor."""

    recipe: str
    codes: torch.Tensor
    scales: torch.Tensor
    block: Tuple[int, int]
    alpha: float
    weight_error: float
    note: str = ""
    #: Of weights whose scales the tensor core applies: K, as codes may have more, with zeros behind it.
    columns: Optional[int] = None

    @property
    def runs_as(self) -> str:
        if self.codes.dtype == torch.bfloat16:
            return "bf16"
        of = f"{self.block[0]}x{self.block[1]}"
        return f"fp8 {of}" if self.columns is None else f"{self.recipe} {of}"


def ceil_div(x: int, y: int) -> int:
    return -(-x // y)


def _exponents(scales: torch.Tensor) -> torch.Tensor:
    return scales.view(torch.uint8) if scales.dtype == _E8M0 else scales


def of_exponents(exponents: torch.Tensor) -> torch.Tensor:
    """Float32 of UE8M0: ``2 ** (e - 127)``, NaN for 255."""
    bits = exponents.to(torch.int32)
    found = (bits << 23).view(torch.float32)
    found = torch.where(bits == 0, torch.full_like(found, 2.0**-127), found)
    return torch.where(bits == 255, torch.full_like(found, float("nan")), found)


def of_module(module: torch.nn.Module, name: str = "weight") -> Weights:
    """The weights ``[N, K]`` of a linear layer, or ``[G, N, K]`` of experts, whatever they are quantized to.

    Tensors are found by the names that checkpoints have: ``weight`` or ``weight_packed``, with ``weight_scale_inv``,
    ``weight_scale``, ``weight_scale_2`` and ``weight_global_scale``. Of experts, ``name`` stands for ``weight``.
    """

    def find(*ends: str) -> Optional[torch.Tensor]:
        found = (getattr(module, f"{name}{end}", None) for end in ends)
        return next((tensor for tensor in found if isinstance(tensor, torch.Tensor)), None)

    blocks = find("_blocks")
    if blocks is not None:
        codes: Optional[torch.Tensor] = blocks.flatten(-2)
        scales = find("_scales")
    else:
        codes, scales = find("_packed", ""), find("_scale_inv", "_scale")
    if codes is None:
        raise Unsupported(f"its `{name}` is no tensor, but {type(getattr(module, name, None)).__name__}")
    codes = codes.detach()
    if codes.dim() not in (2, 3):
        raise Unsupported(f"its `{name}` has {codes.dim()} dimensions")
    codes = codes if codes.dim() == 3 else codes[None]
    if codes.dtype in FLOATS:
        return Weights(None, codes)
    if scales is None:
        raise Unsupported(f"its `{name}` is {codes.dtype} without scales")
    scales = scales.detach()
    if codes.dtype == E4M3:
        return _fp8(codes, scales)
    if codes.dtype in _BYTES:
        return _fp4(codes.view(torch.uint8), scales, find("_scale_2"), find("_global_scale"))
    raise Unsupported(f"its `{name}` is {codes.dtype}")


def _fp8(codes: torch.Tensor, scales: torch.Tensor) -> Weights:
    groups, n, k = codes.shape
    scales = _exponents(scales)
    exponents = scales.dtype == torch.uint8
    blocks = [(1, 32), (32, 32), (128, 128)] if exponents else [(128, 128), (1, 128), (1, k), (n, k)]
    for block in blocks:
        shape = groups, ceil_div(n, block[0]), ceil_div(k, block[1])
        if _fits(scales, shape):
            scales = scales.reshape(shape)
            if exponents and block[1] == 32:
                return Weights("mxfp8", codes, scales, block)
            return Weights("fp8", codes, of_exponents(scales) if exponents else scales.float(), block)
    raise Unsupported(f"its scales are {list(scales.shape)} for e4m3 codes {list(codes.shape)}")


def _fp4(
    codes: torch.Tensor, scales: torch.Tensor, factor: Optional[torch.Tensor], divisor: Optional[torch.Tensor]
) -> Weights:
    groups, n, k = codes.shape[0], codes.shape[1], 2 * codes.shape[2]
    of_mx, of_nv = (groups, n, ceil_div(k, 32)), (groups, n, ceil_div(k, 16))
    if scales.dtype == E4M3 and _fits(scales, of_nv):
        if factor is None and divisor is None:
            raise Unsupported("it has NVFP4 codes without a scale of all")
        tensor_scale = factor.detach().float() if factor is not None else 1.0 / divisor.detach().float()
        if tensor_scale.numel() not in (1, groups):
            raise Unsupported(f"it has {tensor_scale.numel()} scales of all for {groups} matrices")
        tensor_scale = tensor_scale.reshape(-1).expand(groups)
        return Weights("nvfp4", codes, scales.reshape(of_nv), (1, 16), tensor_scale)
    if scales.dtype == torch.float32 and _fits(scales, of_mx):
        # Exponents that were widened: the loss of what is no power of two would be silent.
        bits = scales.view(torch.int32)
        if bool((bits & 0x7FFFFF).any()) or bool((bits <= 0).any()):
            raise Unsupported("it has FP4 codes with float32 scales that are no powers of two")
        scales = (bits >> 23).to(torch.uint8)
    scales = _exponents(scales)
    if scales.dtype == torch.uint8 and _fits(scales, of_mx):
        return Weights("mxfp4", codes, scales.reshape(of_mx), (1, 32))
    raise Unsupported(f"its scales are {scales.dtype} {list(scales.shape)} for FP4 codes {list(codes.shape)}")


def _fits(scales: torch.Tensor, shape: Tuple[int, int, int]) -> bool:
    count = shape[0] * shape[1] * shape[2]
    full = tuple(scales.shape) in (shape, shape[1:] if shape[0] == 1 else shape)
    return full or (scales.numel() == count and (count == shape[0] or (scales.dim() == 1 and shape[2] == 1)))


def operand(weights: Weights, recipe: Optional[str], nvfp4: str, experts: bool, device: torch.device) -> Operand:
    """What the device multiplies for these weights. ``recipe`` is for numbers that are not quantized yet; None is what
    the device multiplies fastest with the least loss.

    The library says how: ``oxigemm::layers::Recipe::runs_on``.
    """
    gpu = None
    if device.type == "cuda":
        gpu = torch.cuda.current_device() if device.index is None else device.index
    applies_scales = _C.layer_strategy("mxfp8", nvfp4, gpu) == "block-scaled"
    recipe = recipe or ("mxfp8" if applies_scales else "fp8")
    strategy = _C.layer_strategy(weights.recipe or recipe, nvfp4, gpu)
    if strategy == "bf16" and experts:
        raise Unsupported("experts of nvfp4 run in FP8, not in BF16")
    found = weights if weights.recipe is not None else quantized(weights, recipe, applies_scales)
    if strategy == "block-scaled":
        result = _block_scaled.operand(found, experts)
    elif strategy in ("fp8", "fp8-scales-32"):
        result = _as_it_is(found, experts)
    elif strategy == "widen":
        result = _widened(found, experts)
    elif strategy == "bf16":
        result = _in_bf16(found)
    else:
        result = _requantized(found)
    if weights.recipe is None and strategy != "block-scaled":
        # What was lost on both ways together.
        result.weight_error = error(result, weights)
    elif weights.recipe is None:
        result.weight_error = _block_scaled.error(found, weights, experts)
    return result


def quantized(weights: Weights, recipe: str, power_of_two: bool = False) -> Weights:
    """Numbers quantized to a recipe, matrix by matrix. Scales of ``fp8`` are powers of two where that is asked for."""
    matrices = [matrix.contiguous() for matrix in weights.codes]
    if recipe == "nvfp4":
        parts = [quantization.quantize_nvfp4(matrix) for matrix in matrices]
        codes, scales, of_all = (torch.stack(list(part)) for part in zip(*parts))
        return Weights(recipe, codes, scales, (1, 16), of_all.reshape(-1))
    granularity, dtype = ("128x128", "float8_e4m3fn") if recipe == "fp8" else ("1x32", "float8_e4m3fn")
    dtype = "uint8" if recipe == "mxfp4" else dtype
    power_of_two = power_of_two or recipe != "fp8"
    pairs = [quantization.quantize(matrix, granularity, power_of_two, dtype) for matrix in matrices]
    codes, scales = (torch.stack(list(part)) for part in zip(*pairs))
    if recipe == "fp8":
        return Weights(recipe, codes, scales, (128, 128))
    return Weights(recipe, codes, (scales.view(torch.int32) >> 23).to(torch.uint8), (1, 32))


def _as_it_is(weights: Weights, experts: bool) -> Operand:
    (groups, n, k), block, scales = weights.shape, weights.block, weights.scales
    assert scales is not None and weights.recipe is not None
    if scales.dtype == torch.uint8:
        scales = of_exponents(scales)
    if block == (n, k):
        # One scale for all is one for every block.
        block = (128, 128)
        scales = scales.expand(groups, ceil_div(n, 128), ceil_div(k, 128))
    elif block == (1, k):
        block = (1, 128)
        scales = scales.expand(groups, n, ceil_div(k, 128))
    if experts and block != (128, 128):
        return _requantized(weights)
    return Operand(weights.recipe, weights.codes, scales, block, 1.0, 0.0)


def _widened(weights: Weights, experts: bool) -> Operand:
    groups, n, k = weights.shape
    assert weights.scales is not None
    device = weights.codes.device
    codes = torch.empty(groups, n, k, dtype=E4M3, device=device)
    source = weights.codes.contiguous(), weights.scales.contiguous()
    if device.type == "cuda":
        # The library reads them on the host.
        torch.cuda.current_stream(device).synchronize()
    for block in ((128, 128), (1, 32)):
        shape = groups, ceil_div(n, block[0]), ceil_div(k, block[1])
        scales = torch.empty(shape, dtype=torch.float32, device=device)
        changed = _C.widen_mxfp4(*source, codes, scales, block == (1, 32))
        result = Operand("mxfp4", codes, scales, block, 1.0, 0.0)
        if changed == 0:
            if block == (1, 32):
                result.note = "exponents of 128x128 lie too far apart: scales of 32"
            return result
        if experts:
            result.weight_error = error(result, weights)
            result.note = f"exponents of 128x128 lie too far apart: {changed} values rounded"
            return result
    raise AssertionError("scales of 32 hold every MXFP4 value")


def _in_bf16(weights: Weights) -> Operand:
    """Each NVFP4 code by its scale of 16, which BF16 holds exactly; the scale of all is a factor."""
    assert weights.scales is not None and weights.tensor_scale is not None
    one = torch.ones(1, device=weights.codes.device)
    matrix = quantization.dequantize_nvfp4(weights.codes[0].contiguous(), weights.scales[0].contiguous(), one)
    scales = torch.empty(0, device=matrix.device)
    return Operand("nvfp4", matrix[None], scales, weights.shape[1:], float(weights.tensor_scale[0]), 0.0)


def _requantized(weights: Weights) -> Operand:
    codes: List[torch.Tensor] = []
    scales: List[torch.Tensor] = []
    for matrix in weights.matrices():
        new_codes, new_scales = quantization.quantize(dequantized(matrix)[0], "128x128")
        codes.append(new_codes)
        scales.append(new_scales)
    assert weights.recipe is not None
    result = Operand(weights.recipe, torch.stack(codes), torch.stack(scales), (128, 128), 1.0, 0.0)
    result.weight_error = error(result, weights)
    result.note = f"rounded from {weights.recipe}, scales of {weights.block[0]}x{weights.block[1]}"
    return result


def dequantized(weights: Weights) -> torch.Tensor:
    """The values in float32, ``[G, N, K]``."""
    codes, scales = weights.codes.contiguous(), weights.scales
    if scales is None:
        return codes.float()
    if weights.recipe == "nvfp4":
        assert weights.tensor_scale is not None
        parts = zip(codes, scales.contiguous(), weights.tensor_scale)
        return torch.stack([quantization.dequantize_nvfp4(c, s, all.reshape(1), "float32") for c, s, all in parts])
    if scales.dtype == torch.uint8:
        scales = of_exponents(scales)
    if weights.recipe == "mxfp4":
        return torch.stack([quantization.dequantize(c, s, "1x32", "float32") for c, s in zip(codes, scales)])
    return scaled(codes, scales, weights.block)


def scaled(codes: torch.Tensor, scales: torch.Tensor, block: Tuple[int, int]) -> torch.Tensor:
    _, n, k = codes.shape
    wide = scales.repeat_interleave(block[0], 1)[:, :n].repeat_interleave(block[1], 2)[:, :, :k]
    return codes.float() * wide


def error(found: Operand, exact: Weights) -> float:
    """Root of the mean square of the difference, by that of what is exact."""

    def values(group: int) -> torch.Tensor:
        codes = found.codes[group : group + 1]
        if codes.dtype == torch.bfloat16:
            return codes.float() * found.alpha
        return scaled(codes, found.scales[group : group + 1], found.block)

    return relative(values, exact)


def relative(values: Callable[[int], torch.Tensor], exact: Weights) -> float:
    """The same of the values of each matrix."""
    apart = size = 0.0
    for group, matrix in enumerate(exact.matrices()):
        expected = dequantized(matrix)
        apart += float(torch.linalg.vector_norm(values(group) - expected, dtype=torch.float64)) ** 2
        size += float(torch.linalg.vector_norm(expected, dtype=torch.float64)) ** 2
    return float((apart / size) ** 0.5) if apart != 0.0 else 0.0


def check_recipe(recipe: Optional[str], nvfp4: str) -> None:
    """Refuses other names."""
    if recipe is not None and recipe not in RECIPES:
        message = f"`recipe` is unknown: expected fp8, mxfp8, mxfp4, nvfp4 or None, found {recipe!r}"
        raise ArgumentError(message, "recipe")
    if nvfp4 not in ("requantize", "bf16"):
        raise ArgumentError(f"`nvfp4` is unknown: expected requantize or bf16, found {nvfp4!r}", "nvfp4")


from . import _block_scaled  # noqa: E402
