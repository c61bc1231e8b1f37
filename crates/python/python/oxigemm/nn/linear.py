"""A linear layer with quantized weights."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

import torch

from .. import deep_gemm, fused, quantization
from ..errors import ArgumentError, OxigemmError
from . import _block_scaled, _weights
from ._module import QuantizedModule, Tensors, working_dtype

__all__ = ["QuantizedLinear"]


class QuantizedLinear(QuantizedModule):
    """``x · Wᵀ + bias`` with weights that were quantized once: one kernel quantizes ``x``, another multiplies.

    ``from_linear`` makes one of a linear layer, of torch or of a quantized checkpoint. Inputs are bfloat16, float16 or
    float32 with any leading dimensions, and so are outputs. Products have the type of the input, but those of float16
    are float32 first. There is no backward pass.
    """

    def __init__(
        self, operand: _weights.Operand, bias: Optional[torch.Tensor] = None, input_scale: float = 1.0
    ) -> None:
        super().__init__()
        self._set(operand, bias, input_scale)

    def _set(self, operand: _weights.Operand, bias: Optional[torch.Tensor], input_scale: float = 1.0) -> None:
        _, self.out_features, columns = operand.codes.shape
        self.in_features = operand.columns or columns
        self._form = _block_scaled.Form.of(operand)
        self.recipe, self.runs_as = operand.recipe, operand.runs_as
        self.weight_error, self.note = operand.weight_error, operand.note
        self._block, self._alpha = operand.block, operand.alpha
        parts = {"codes": operand.codes[0]}
        if operand.scales.numel() > 0:
            parts["scales"] = operand.scales[0]
        if bias is not None:
            parts["bias_f32"] = bias.detach().float()
            # Granularities that have no kernels with an epilogue add a matrix of the type of D.
            parts["bias_bf16"] = bias.detach().bfloat16()
        self._input_scale = input_scale
        if self._form is not None and self._form.is_nvfp4:
            parts["input_scale"] = torch.full((1,), input_scale, dtype=torch.float32, device=operand.codes.device)
        self._has_bias = bias is not None
        self._allocate(parts)

    @classmethod
    def from_linear(
        cls, linear: torch.nn.Module, recipe: Optional[str] = None, nvfp4: str = "requantize"
    ) -> "QuantizedLinear":
        """The layer with the weights of ``linear``, on their device.

        ``linear`` is a ``torch.nn.Linear``, or any module with the tensors of a quantized checkpoint: ``weight`` (or
        ``weight_packed``) with ``weight_scale_inv``, ``weight_scale``, ``weight_scale_2`` or ``weight_global_scale``.
        ``recipe`` is what numbers are quantized to: ``fp8`` (the default), ``mxfp8``, ``mxfp4`` or ``nvfp4``. Weights
        that are quantized keep theirs. ``nvfp4`` is what becomes of NVFP4 weights: ``requantize`` to FP8, with
        ``weight_error``, or ``bf16``, without loss. Where the tensor core applies scales, on Blackwell, numbers become
        ``mxfp8`` by default, and NVFP4 weights stay what they are: their activations are then quantized with one scale
        of all, ``input_scale`` (or 1 by ``input_global_scale``) of the module, 1 without it.

        >>> layer = QuantizedLinear.from_linear(torch.nn.Linear(1024, 512).bfloat16())
        """
        _weights.check_recipe(recipe, nvfp4)
        try:
            with torch.no_grad():
                return cls._of(linear, recipe, nvfp4)
        except _weights.Unsupported as error:
            message = (
                f"`linear` cannot be quantized: expected weights of a checkpoint that is known, found that {error}"
            )
            raise ArgumentError(message, "linear") from None

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, torch.Tensor], name: str, recipe: Optional[str] = None, nvfp4: str = "requantize"
    ) -> "QuantizedLinear":
        """The layer ``name`` of a checkpoint, such as ``safetensors.torch.load_file`` reads it.

        Its tensors are ``name.weight`` and the like, as for ``from_linear``.

        >>> layer = QuantizedLinear.from_tensors(load_file(path), "model.layers.0.mlp.down_proj")
        """
        return cls.from_linear(Tensors(tensors, name), recipe, nvfp4)

    def tensors(self, name: str) -> Dict[str, torch.Tensor]:
        """The tensors of the layer as a checkpoint of FP8 has them, for ``safetensors.torch.save_file``.

        With scales of 128x128 they are ``weight`` and ``weight_scale_inv``, as DeepSeek has them; with others
        ``weight`` and ``weight_scale``, of which those of 32 are exponents (uint8). A layer in BF16 has no codes any
        more: save what it was made of. On Blackwell, codes and scales are those of its recipe.
        """
        if self.codes.dtype == torch.bfloat16:
            raise OxigemmError("the layer runs in BF16: expected one in FP8, whose codes can be saved")
        if self._form is not None:
            found = self._form.tensors(self.codes, self.scales, self._alpha)
            found = {f"{name}.weight{end}": tensor for end, tensor in found.items()}
            return {**found, f"{name}.bias": self.bias_f32.clone()} if self._has_bias else found
        key = "weight_scale_inv" if self._block == (128, 128) else "weight_scale"
        scales = self.scales
        if self._block[1] == 32:
            scales = (scales.view(torch.int32) >> 23).to(torch.uint8)
            scales = torch.where(self.scales.isnan(), torch.full_like(scales, 255), scales)
        found = {f"{name}.weight": self.codes.clone(), f"{name}.{key}": scales.clone()}
        if self._has_bias:
            found[f"{name}.bias"] = self.bias_f32.clone()
        return found

    @classmethod
    def _of(cls, linear: torch.nn.Module, recipe: Optional[str], nvfp4: str) -> "QuantizedLinear":
        layer = cls(*_read(linear, recipe, nvfp4))
        layer._recipe, layer._nvfp4 = recipe, nvfp4
        layer._stand_for(linear)
        return layer

    def _quantize_again(self) -> None:
        device = self.codes.device
        original = self.original
        assert original is not None
        with torch.no_grad():
            self._set(*_read(original, self._recipe, self._nvfp4, device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._refuse_gradients(x)
        dtype = working_dtype(x)
        rows = x.reshape(-1, self.in_features)
        m = rows.shape[0]
        of_d = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
        d = torch.empty(m, self.out_features, dtype=of_d, device=x.device)
        if self.codes.dtype == torch.bfloat16:
            bias = self.bias_f32 if self._has_bias else None
            fused.bf16_gemm_nt_fused(rows.to(torch.bfloat16), self.codes, d, alpha=self._alpha, bias=bias)
        else:
            self._multiply(rows, d)
        return d.to(dtype).view(*x.shape[:-1], self.out_features)

    def _multiply(self, rows: torch.Tensor, d: torch.Tensor) -> None:
        if self._form is not None:
            scale = self.input_scale if self._form.is_nvfp4 else None
            activations = self._form.quantized(rows, scale)
            weight = self.codes, self._form.words_of(self.scales, self.out_features)
            bias = self.bias_f32 if self._has_bias else None
            _block_scaled.multiply(self._form, activations, weight, d, self._alpha, bias, self._input_scale)
            return
        across = self._block[1]
        m = rows.shape[0]
        # MN-major with 16-byte columns: what GEMMs read fastest.
        scales = torch.empty(-(-self.in_features // across), -(-m // 4) * 4, dtype=torch.float32, device=rows.device)[
            :, :m
        ].T
        activations = quantization.quantize(rows, f"1x{across}", scales=scales)
        weight = self.codes, self.scales
        if not self._has_bias:
            deep_gemm.fp8_gemm_nt(activations, weight, d)
        elif self._block[0] == 128:
            fused.fp8_gemm_nt_fused(activations, weight, d, bias=self.bias_f32)
        else:
            bias = self.bias_bf16 if d.dtype == torch.bfloat16 else self.bias_f32
            deep_gemm.fp8_gemm_nt(activations, weight, d, bias.expand(m, self.out_features))

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.recipe} as {self.runs_as}"


def _read(linear: torch.nn.Module, recipe: Optional[str], nvfp4: str, device: Any = None) -> Any:
    """The operand and the bias of a module; raises ``Unsupported``."""
    weights = _weights.of_module(linear)
    groups, n, k = weights.shape
    if groups != 1 or weights.codes.shape[0] != 1:
        raise _weights.Unsupported(f"its weights are {groups} matrices")
    if k % 16 != 0 or n == 0 or k == 0:
        raise _weights.Unsupported(f"its weights are {[n, k]}: K must be a multiple of 16")
    bias = getattr(linear, "bias", None)
    bias = bias if isinstance(bias, torch.Tensor) else None
    if device is not None:
        weights = weights.to(device)
        bias = None if bias is None else bias.to(device)
    device = weights.codes.device
    if device.type not in ("cpu", "cuda"):
        raise _weights.Unsupported(f"it is on {device}")
    return _weights.operand(weights, recipe, nvfp4, False, device), bias, _input_scale(linear)


def _input_scale(linear: torch.nn.Module) -> float:
    """The scale of all activations, as a checkpoint of NVFP4 has it."""
    factor, divisor = getattr(linear, "input_scale", None), getattr(linear, "input_global_scale", None)
    if factor is not None:
        return float(factor)
    return 1.0 if divisor is None else 1.0 / float(divisor)
