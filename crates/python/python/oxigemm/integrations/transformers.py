"""FP8 models of Hugging Face transformers on these kernels.

    from oxigemm.integrations import transformers as integration

    integration.install()
    model = AutoModelForCausalLM.from_pretrained(name, device_map="cuda", experts_implementation="deepgemm")
    integration.fuse(model)

``install`` puts these functions where transformers keeps those of DeepGEMM. ``fuse`` also replaces what transformers
computes between them: one cast for projections that share their input, SwiGLU and quantization in the epilogue of the
GEMM before them, and mixtures of experts in five kernels.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from transformers.integrations import deepgemm as _table
from transformers.integrations import finegrained_fp8 as _fp8

from .. import deep_gemm, fused, quantization
from ..errors import OxigemmError
from ..nn.experts import gate_of_fp8, is_silu, routed

__all__ = ["experts_forward", "fuse", "install", "uninstall"]

#: The name of ``experts_forward`` among transformers' implementations of experts.
EXPERTS_IMPLEMENTATION = "oxigemm"

#: Fields of transformers' table, and the functions here.
_FUNCTIONS: Dict[str, Callable] = {
    "fp8_fp4_matmul": deep_gemm.fp8_fp4_gemm_nt,
    "grouped_fp8_fp4_matmul_nt": deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous,
    "grouped_fp8_fp4_matmul_nn": deep_gemm.m_grouped_fp8_fp4_gemm_nn_contiguous,
    "grouped_bf16_matmul_nt": deep_gemm.m_grouped_bf16_gemm_nt_contiguous,
    "grouped_bf16_matmul_nn": deep_gemm.m_grouped_bf16_gemm_nn_contiguous,
    "per_token_cast_to_fp8": deep_gemm.utils.per_token_cast_to_fp8,
    "transform_sf_into_required_layout": deep_gemm.transform_sf_into_required_layout,
    "transform_weights_for_mega_moe": deep_gemm.transform_weights_for_mega_moe,
    "get_symm_buffer_for_mega_moe": deep_gemm.get_symm_buffer_for_mega_moe,
    "fp8_fp4_mega_moe": deep_gemm.fp8_fp4_mega_moe,
}

#: The formula of the MLPs that are fused; another one is left alone.
_MLP = "self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"

#: What ``install`` has replaced.
_replaced: Optional[Dict[str, Any]] = None


def _absent(name: str) -> Callable:
    def refuse(*_arguments: Any, **_named: Any) -> None:
        raise NotImplementedError(f"`{name}` has no kernels")

    return refuse


def _is_loadable(raise_error: bool = False) -> bool:
    """Nothing is downloaded and nothing is compiled: no package and no toolkit is needed."""
    return True


def install() -> None:
    """Makes transformers call these functions wherever it would call DeepGEMM's, and registers ``experts_forward``.

    The alignment of groups is read now: ``deep_gemm.set_mk_alignment_for_contiguous_layout(16)`` before this call
    makes transformers pad each expert to 16 rows instead of 128. Fields that the table of another version has besides
    raise NotImplementedError when they are called.
    """
    global _replaced
    if _replaced is None:
        _replaced = {
            "table": _table._DEEPGEMM,
            "loadable": (_table.is_deepgemm_loadable, _fp8.is_deepgemm_loadable),
        }
    functions = {**_FUNCTIONS, "m_alignment": deep_gemm.get_mk_alignment_for_contiguous_layout()}
    names = [field.name for field in dataclasses.fields(_table.DeepGEMM)]
    _table._DEEPGEMM = _table.DeepGEMM(**{name: functions.get(name, _absent(name)) for name in names})
    _table.is_deepgemm_loadable = _fp8.is_deepgemm_loadable = _is_loadable
    _fp8.FP8ExpertsInterface.register(EXPERTS_IMPLEMENTATION, experts_forward)


def uninstall() -> None:
    """Undoes ``install``. Models that ``fuse`` has changed stay as they are."""
    global _replaced
    if _replaced is not None:
        _table._DEEPGEMM = _replaced["table"]
        _table.is_deepgemm_loadable, _fp8.is_deepgemm_loadable = _replaced["loadable"]
        _fp8.FP8ExpertsInterface._global_mapping.pop(EXPERTS_IMPLEMENTATION, None)
        _replaced = None


def _is_fp8_block(weight: Any, scale: Any, block_size: Any) -> bool:
    return (
        weight.dtype == torch.float8_e4m3fn
        and scale.dtype == torch.float32
        and block_size is not None
        and tuple(block_size) == (128, 128)
    )


def _has_fused_experts(experts: Any) -> bool:
    """Whether ``experts_forward`` computes what these experts do."""
    return (
        experts.has_gate
        and not experts.has_bias
        and not experts.is_transposed
        and experts.is_concatenated
        and experts.activation_scheme == "dynamic"
        and gate_of_fp8(experts)[0]
        and experts.intermediate_dim % 128 == 0
        and _is_fp8_block(experts.gate_up_proj, experts.gate_up_proj_scale_inv, experts.block_size)
        and _is_fp8_block(experts.down_proj, experts.down_proj_scale_inv, experts.block_size)
    )


def experts_forward(self: Any, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
    """The experts of a mixture in five kernels, besides casts of ids and weights.

    The kernels permute the choices, gather and quantize tokens, multiply with SwiGLU and quantization in the
    epilogue, multiply, and add the rows of each token. Choices that are no expert of this process add nothing.
    Experts of another form than gated SiLU, with slope and limit or without, and 128x128 scales are computed by
    transformers' own function.
    """
    if not _has_fused_experts(self) or hidden_states.dtype != torch.bfloat16:
        return _table.deepgemm_fp8_fp4_experts_forward(self, hidden_states, top_k_index, top_k_weights)
    weights = (self.gate_up_proj, self.gate_up_proj_scale_inv), (self.down_proj, self.down_proj_scale_inv)
    return routed(hidden_states, top_k_index, top_k_weights, *weights, gate_of_fp8(self)[1])


class _Casts(threading.local):
    """The quantized inputs of a module's projections, while the module's ``forward`` runs."""

    def __init__(self) -> None:
        self.depth = 0
        self.found: List[Tuple[Any, int, Any]] = []

    def quantize(self, x: Any) -> Any:
        # Tensors of inference mode do not count their changes.
        tracked = self.depth > 0 and not x.is_inference()
        if tracked:
            for input, version, quantized in self.found:
                if input is x and version == x._version:
                    return quantized
        quantized = quantization.quantize(x.reshape(-1, x.shape[-1]))
        if tracked:
            self.found.append((x, x._version, quantized))
        return quantized

    def close(self) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.found.clear()


def _is_fused_linear(module: Any) -> bool:
    return (
        type(module) is _fp8.FP8Linear
        and module.activation_scale is None
        and module.weight.element_size() == 1
        and _is_fp8_block(module.weight, module.weight_scale_inv, module.block_size)
    )


def _product(activations: Any, linear: Any, like: Any) -> Any:
    """A product of quantized activations; rows as in ``like``."""
    out = torch.empty(*like.shape[:-1], linear.out_features, device=like.device, dtype=torch.bfloat16)
    d, weight = out.view(-1, linear.out_features), (linear.weight, linear.weight_scale_inv)
    if linear.bias is None:
        deep_gemm.fp8_gemm_nt(activations, weight, d)
    else:
        fused.fp8_gemm_nt_fused(activations, weight, d, bias=linear.bias)
    return out


def _fuse_linear(linear: Any, casts: _Casts) -> None:
    before = linear.forward

    @functools.wraps(before)
    def forward(input: Any) -> Any:
        if input.dtype != torch.bfloat16 or torch.compiler.is_compiling():
            return before(input)
        return _product(casts.quantize(input), linear, input)

    linear.forward = forward


def _share_casts(module: Any, casts: _Casts) -> None:
    before = module.forward

    @functools.wraps(before)
    def forward(*arguments: Any, **named: Any) -> Any:
        casts.depth += 1
        try:
            return before(*arguments, **named)
        finally:
            casts.close()

    module.forward = forward


def _has_fused_mlp(module: Any) -> bool:
    """Whether a module's ``forward`` is SwiGLU between three projections, in transformers' own words."""
    linears = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    return (
        all(linear is not None and _is_fused_linear(linear) and linear.bias is None for linear in linears)
        and is_silu(getattr(module, "act_fn", None))
        and linears[0].weight.shape == linears[1].weight.shape
        and linears[0].out_features % 128 == 0
        and _MLP in inspect.getsource(type(module).forward)
    )


def _fuse_mlp(module: Any) -> None:
    before, down = module.forward, module.down_proj
    halves = module.gate_proj, module.up_proj
    # The parameters become views: no weight is stored twice.
    weight = torch.cat([half.weight.data.view(torch.uint8) for half in halves]).view(torch.float8_e4m3fn)
    scales = torch.cat([half.weight_scale_inv.data for half in halves])
    for half, part, sf in zip(halves, weight.chunk(2), scales.chunk(2)):
        half.weight.data, half.weight_scale_inv.data = part, sf
    inner = down.in_features

    @functools.wraps(before)
    def forward(x: Any) -> Any:
        if x.dtype != torch.bfloat16 or torch.compiler.is_compiling():
            return before(x)
        activations = quantization.quantize(x.reshape(-1, x.shape[-1]))
        codes = torch.empty(activations[0].shape[0], inner, device=x.device, dtype=torch.float8_e4m3fn)
        sf = torch.empty(codes.shape[0], inner // 128, device=x.device)
        fused.fp8_gemm_nt_fused(activations, (weight, scales), codes, activation="silu", gated=True, d_scales=sf)
        return _product((codes, sf), down, x)

    module.forward = forward


def fuse(model: Any) -> Dict[str, int]:
    """Replaces the forward functions of a loaded FP8 model's layers, in place; says how many of each were replaced.

    ========= ========================================================================================
    key       what
    ========= ========================================================================================
    linears   projections; those of one module quantize an input that they share once
    mlps      ``gate_proj``, ``up_proj``, ``down_proj`` with SiLU: the gated GEMM also quantizes
    experts   mixtures of experts, by ``experts_forward``
    ========= ========================================================================================

    Layers of another form stay as they are. Call it once, after the weights are loaded and ``install``.
    """
    if _replaced is None:
        raise OxigemmError("transformers calls other functions: expected `install()` before `fuse(model)`")
    count = {"linears": 0, "mlps": 0, "experts": 0}
    for module in list(model.modules()):
        if isinstance(module, _fp8.FP8Experts):
            count["experts"] += _has_fused_experts(module)
        elif _has_fused_mlp(module):
            _fuse_mlp(module)
            count["mlps"] += 1
        else:
            linears = [child for child in module.children() if _is_fused_linear(child)]
            if linears:
                casts = _Casts()
                for linear in linears:
                    _fuse_linear(linear, casts)
                _share_casts(module, casts)
                count["linears"] += len(linears)
    if count["experts"]:
        model.set_experts_implementation(EXPERTS_IMPLEMENTATION)
    return count
