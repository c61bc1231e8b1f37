"""Weights for a tensor core that applies scales: codes as they are, and scales as words of four along K.

The rules are those of ``oxigemm::layers`` (``block_scaled.rs``).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Optional, Tuple

import torch

from .. import fused, quantization
from . import _weights
from ._weights import Operand, Weights, ceil_div

Pair = Tuple[torch.Tensor, torch.Tensor]

#: The exponent of 1 in UE8M0.
_ONE = 127


def operand(weights: Weights, experts: bool) -> Operand:
    """Codes ``[G, N, K]``, with zeros behind K where kernels want more, and words ``[G, words, rows]``."""
    found, alpha = _exact(weights, experts)
    assert found.recipe is not None and found.scales is not None
    groups, n, k = found.shape
    unit = {"mxfp4": 128, "nvfp4": 32}.get(found.recipe, 16)
    per_byte = 2 if found.recipe in ("mxfp4", "nvfp4") else 1
    codes = _padded(found.codes, ceil_div(k, unit) * unit // per_byte)
    if found.recipe == "nvfp4":
        scales = found.scales.view(torch.uint8)
    else:
        scales = found.scales if found.scales.dtype == torch.uint8 else _exponents(found.scales)
    block = found.block
    if block == (32, 32):
        block, scales = (1, 32), scales.repeat_interleave(32, 1)[:, :n]
    words = _padded(scales, ceil_div(scales.shape[2], 4) * 4).view(torch.int32)
    words = _padded(words.transpose(1, 2), ceil_div(words.shape[1], 4) * 4)
    loss = 0.0 if found.codes is weights.codes else error(weights, weights, experts)
    note = f"rounded from {weights.recipe}, to scales that are powers of two" if loss > 0 else ""
    return Operand(found.recipe, codes, words, block, alpha, loss, note, columns=k)


def error(found: Weights, exact: Weights, experts: bool) -> float:
    """What is lost of ``exact`` by the tensor core's form of ``found``."""
    form, alpha = _exact(found, experts)
    matrices = list(form.matrices())
    return _weights.relative(lambda group: _weights.dequantized(matrices[group])[0] * alpha, exact)


def _exact(weights: Weights, experts: bool) -> Tuple[Weights, float]:
    """The same weights with scales that the tensor core has, and a factor of all."""
    if weights.recipe == "nvfp4":
        if not experts:
            assert weights.tensor_scale is not None
            one = torch.ones_like(weights.tensor_scale)
            return dataclasses.replace(weights, tensor_scale=one), float(weights.tensor_scale[0])
        values = torch.cat([_weights.dequantized(matrix) for matrix in weights.matrices()])
        return _weights.quantized(Weights(None, values), "mxfp8"), 1.0
    if weights.recipe != "fp8":
        return weights, 1.0
    groups, n, k = weights.shape
    assert weights.scales is not None
    block, scales = weights.block, weights.scales
    if block == (n, k):
        if groups == 1 and bool((scales > 0).all()) and not bool(_is_power_of_two(scales).all()):
            ones = torch.ones(1, ceil_div(n, 128), ceil_div(k, 128), device=scales.device)
            return Weights("fp8", weights.codes, ones, (128, 128)), float(scales.reshape(-1)[0])
        block, scales = (128, 128), scales.expand(groups, ceil_div(n, 128), ceil_div(k, 128))
    elif block == (1, k):
        block, scales = (1, 128), scales.expand(groups, n, ceil_div(k, 128))
    if bool(_is_power_of_two(scales).all()):
        return Weights("fp8", weights.codes, scales, block), 1.0
    powers = _weights.of_exponents(_exponents(scales))
    factors = torch.where(_is_power_of_two(scales) | ~scales.isfinite(), torch.ones_like(scales), scales / powers)
    codes = torch.cat(
        [
            _weights.scaled(codes[None], factor[None], block).to(_weights.E4M3)
            for codes, factor in zip(weights.codes, factors)
        ]
    )
    return Weights("fp8", codes, powers, block), 1.0


def _is_power_of_two(scales: torch.Tensor) -> torch.Tensor:
    bits = scales.contiguous().view(torch.int32)
    exponents = (bits >> 23) & 255
    return (bits > 0) & (bits & 0x7FFFFF == 0) & (exponents > 0) & (exponents < 255)


def _exponents(scales: torch.Tensor) -> torch.Tensor:
    """Of the power of two that a scale is, or of the next above it; of what is no number, that of NaN."""
    bits = scales.contiguous().view(torch.int32)
    found = (bits >> 23) + (bits & 0x7FFFFF != 0).to(torch.int32)
    found = torch.where(scales == 0, torch.full_like(found, _ONE), found)
    return torch.where(scales.isfinite(), found, torch.full_like(found, 255)).to(torch.uint8)


def _padded(tensor: torch.Tensor, columns: int) -> torch.Tensor:
    """The same with zeros behind each row."""
    if tensor.shape[-1] == columns:
        return tensor.contiguous()
    wide = torch.zeros((*tensor.shape[:-1], columns), dtype=torch.uint8 if tensor.itemsize == 1 else tensor.dtype)
    wide = wide.to(tensor.device).view(tensor.dtype)
    wide[..., : tensor.shape[-1]] = tensor
    return wide


@dataclasses.dataclass(frozen=True)
class Form:
    """How such weights lie: what their activations must be like."""

    block: Tuple[int, int]
    #: K, and the columns that codes have.
    columns: int
    padded: int

    @classmethod
    def of(cls, weights: Operand) -> Optional["Form"]:
        """None of weights that are multiplied otherwise."""
        if weights.columns is None:
            return None
        per_byte = 2 if weights.codes.dtype == torch.uint8 else 1
        return cls(weights.block, weights.columns, per_byte * weights.codes.shape[-1])

    @property
    def is_nvfp4(self) -> bool:
        return self.block[1] == 16

    @property
    def recipes(self) -> Tuple[Any, Any]:
        return (1, self.block[1]), (128 if self.block == (128, 128) else 1, self.block[1])

    @property
    def d_format(self) -> str:
        """What a GEMM writes that these weights multiply."""
        return "mxfp8" if self.block[1] == 32 else "fp8"

    def words_of(self, words: torch.Tensor, n: int) -> torch.Tensor:
        """The words ``[..., words, pitch]`` of ``n`` rows of weights, as GEMMs take them."""
        return words[..., : ceil_div(n, self.block[0])].transpose(-1, -2)

    def tensors(self, codes: torch.Tensor, words: torch.Tensor, alpha: float) -> Dict[str, torch.Tensor]:
        """Codes ``[..., N, K]`` and words as a checkpoint has them, by the ends of their names."""
        per_byte = 2 if codes.dtype == torch.uint8 else 1
        weight = codes.view(torch.uint8)[..., : self.columns // per_byte].clone().view(codes.dtype)
        # A copy, as one word per row would keep the pitch that it lies at.
        words = self.words_of(words, codes.shape[-2]).clone(memory_format=torch.contiguous_format)
        scales = words.view(torch.uint8)
        scales = scales[..., : ceil_div(self.columns, self.block[1])].clone()
        if self.is_nvfp4:
            of_all = torch.tensor([alpha], device=codes.device)
            return {"": weight, "_scale": scales.view(_weights.E4M3), "_scale_2": of_all}
        if self.block[1] == 128:
            return {"": weight, "_scale_inv": _weights.of_exponents(scales) * alpha}
        return {"": weight, "_scale": scales}

    def room_for(self, m: int, device: torch.device) -> Pair:
        """Codes and words of ``m`` rows. What lies behind K is zero."""
        new = torch.empty if self.columns == self.padded else torch.zeros
        if self.is_nvfp4:
            codes = new(m, self.padded // 2, dtype=torch.uint8, device=device)
        else:
            codes = new(m, self.padded, dtype=torch.uint8, device=device).view(_weights.E4M3)
        count = ceil_div(ceil_div(self.columns, self.block[1]), 4)
        # Bytes behind the last scale of a row must be no NaN.
        words = torch.zeros(count, ceil_div(m, 4) * 4, dtype=torch.int32, device=device)[:, :m].T
        return codes, words

    def quantized(self, rows: torch.Tensor, scale: Optional[torch.Tensor] = None) -> Pair:
        """Rows for these weights, in one kernel. ``scale`` is that of all, which NVFP4 has."""
        codes, words = self.room_for(rows.shape[0], rows.device)
        if self.is_nvfp4:
            quantization.quantize_nvfp4(rows, scale, codes[:, : self.columns // 2], words)
        else:
            quantization.quantize(rows, f"1x{self.block[1]}", True, codes=codes[:, : self.columns], scales=words)
        return codes, words

    def gathered(self, x: torch.Tensor, tokens: torch.Tensor) -> Pair:
        """Rows of tokens for these weights, in one kernel."""
        codes, words = self.room_for(tokens.shape[0], x.device)
        own = codes[:, : self.columns]
        quantization.gather_quantize(x, tokens, True, own, words, f"1x{self.block[1]}")
        return codes, words


def multiply(
    form: Form, a: Pair, weight: Pair, d: torch.Tensor, alpha: float, bias: Optional[torch.Tensor], scale: float
) -> None:
    """``d = alpha * scale * a · weightᵀ + bias``, where ``scale`` is that of all activations of NVFP4."""
    if form.is_nvfp4:
        alpha *= scale
    recipe_a, recipe_b = form.recipes
    fused.fp8_gemm_nt_fused(a, weight, d, alpha=alpha, bias=bias, recipe_a=recipe_a, recipe_b=recipe_b)
