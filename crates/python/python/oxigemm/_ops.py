"""The functions as custom operators of torch, for ``torch.compile``.

A call of the extension cannot be traced. While torch traces, calls go through these operators instead, of which torch is told
what they write; they return nothing, so that there are no shapes to infer. They are registered as soon as torch and this package
are both imported, in whichever order.
"""

from __future__ import annotations

import sys
from typing import Any

from . import _oxigemm as _C

_library: Any = None


def _tuple(numbers):
    return None if numbers is None else tuple(numbers)


def _fp8_gemm(layout, a, sfa, b, sfb, d, c, recipe, recipe_a, recipe_b):
    _C.fp8_gemm(layout, (a, sfa), (b, sfb), d, c, _tuple(recipe), _tuple(recipe_a), _tuple(recipe_b))


def _fp8_gemm_skip_head_mid(a, sfa, b, sfb, d, head_splits, recipe):
    _C.fp8_gemm_skip_head_mid((a, sfa), (b, sfb), d, _tuple(head_splits), _tuple(recipe))


def _fp8_contiguous(layout, a, sfa, b, sfb, d, groups, recipe, recipe_a, recipe_b, psum, expected_m):
    recipes = _tuple(recipe), _tuple(recipe_a), _tuple(recipe_b)
    _C.m_grouped_fp8_gemm_contiguous(layout, (a, sfa), (b, sfb), d, groups, *recipes, psum, expected_m)


def _fp8_masked(layout, a, sfa, b, sfb, d, masked_m, expected_m, recipe, recipe_a, recipe_b):
    recipes = _tuple(recipe), _tuple(recipe_a), _tuple(recipe_b)
    _C.m_grouped_fp8_gemm_masked(layout, (a, sfa), (b, sfb), d, masked_m, expected_m, *recipes)


def _fp8_k_grouped(a, sfa, b, sfb, d, ks_cpu, groups, c, recipe):
    _C.k_grouped_fp8_gemm((a, sfa), (b, sfb), d, ks_cpu, groups, c, _tuple(recipe))


def _fp8_einsum(expr, a, sfa, b, sfb, d, c, recipe):
    _C.fp8_einsum(expr, (a, sfa), (b, sfb), d, c, _tuple(recipe))


def _finish(c, alpha, beta, bias, activation, gated, head_splits, d_scales, power_of_two):
    return c, alpha, beta, bias, activation, gated, _tuple(head_splits), d_scales, power_of_two


def _fp8_fused(a, sfa, b, sfb, d, *finish):
    _C.fp8_gemm_nt_fused((a, sfa), (b, sfb), d, *_finish(*finish))


def _half_fused(dtype, a, b, d, *finish):
    _C.half_gemm_nt_fused(dtype, a, b, d, *_finish(*finish))


def _fp8_grouped_fused(a, sfa, b, sfb, d, groups, masked_m, expected_m, psum, *finish):
    _C.m_grouped_fp8_gemm_nt_fused((a, sfa), (b, sfb), d, groups, masked_m, expected_m, psum, *_finish(*finish))


def _half_grouped_fused(dtype, a, b, d, groups, masked_m, expected_m, psum, *finish):
    _C.m_grouped_half_gemm_nt_fused(dtype, a, b, d, groups, masked_m, expected_m, psum, *_finish(*finish))


def _nvfp4(x, codes, scales, tensor_scale):
    _C.quantize_nvfp4(x, codes, scales, tensor_scale, True)


def _nvfp4_by(x, codes, scales, tensor_scale):
    _C.quantize_nvfp4(x, codes, scales, tensor_scale, False)


_RECIPES = "int[]? recipe, int[]? recipe_a, int[]? recipe_b"
_SCALED = "Tensor a, Tensor sfa, Tensor b, Tensor sfb, Tensor(d!) d"
_PLAIN = "Tensor a, Tensor b, Tensor(d!) d"
_GROUPS = "Tensor? grouped_layout, Tensor? masked_m, int? expected_m, bool psum"
_FINISH = (
    "Tensor? c, float alpha, float beta, Tensor? bias, str activation, bool gated, int[]? head_splits, "
    "Tensor(s!)? d_scales, bool power_of_two"
)

#: Every operator: its arguments, and what it calls.
_OPERATORS = {
    "fp8_gemm": (f"str layout, {_SCALED}, Tensor? c, {_RECIPES}", _fp8_gemm),
    "fp8_gemm_skip_head_mid": (f"{_SCALED}, int[] head_splits, int[]? recipe", _fp8_gemm_skip_head_mid),
    "m_grouped_fp8_gemm_contiguous": (
        f"str layout, {_SCALED}, Tensor grouped_layout, {_RECIPES}, bool psum, int? expected_m",
        _fp8_contiguous,
    ),
    "m_grouped_fp8_gemm_masked": (
        f"str layout, {_SCALED}, Tensor masked_m, int expected_m, {_RECIPES}",
        _fp8_masked,
    ),
    "k_grouped_fp8_gemm": (
        f"{_SCALED}, int[]? ks_cpu, Tensor grouped_layout, Tensor? c, int[]? recipe",
        _fp8_k_grouped,
    ),
    "fp8_einsum": (f"str expr, {_SCALED}, Tensor? c, int[]? recipe", _fp8_einsum),
    "fp8_gemm_nt_fused": (f"{_SCALED}, {_FINISH}", _fp8_fused),
    "half_gemm_nt_fused": (f"str dtype, {_PLAIN}, {_FINISH}", _half_fused),
    "m_grouped_fp8_gemm_nt_fused": (f"{_SCALED}, {_GROUPS}, {_FINISH}", _fp8_grouped_fused),
    "m_grouped_half_gemm_nt_fused": (f"str dtype, {_PLAIN}, {_GROUPS}, {_FINISH}", _half_grouped_fused),
    "k_grouped_half_gemm": (
        f"str dtype, str layout, {_PLAIN}, int[]? ks_cpu, Tensor grouped_layout, Tensor? c",
        _C.k_grouped_half_gemm,
    ),
    "half_gemm": (f"str dtype, str layout, {_PLAIN}, Tensor? c", _C.half_gemm),
    "m_grouped_half_gemm_contiguous": (
        f"str dtype, str layout, {_PLAIN}, Tensor grouped_layout, bool psum, int? expected_m",
        _C.m_grouped_half_gemm_contiguous,
    ),
    "m_grouped_half_gemm_masked": (
        f"str dtype, str layout, {_PLAIN}, Tensor masked_m, int expected_m",
        _C.m_grouped_half_gemm_masked,
    ),
    "cublaslt_gemm": (f"str layout, {_PLAIN}, Tensor? c", _C.cublaslt_gemm),
    "einsum": (f"str expr, {_PLAIN}, Tensor? c", _C.einsum),
    "hc_prenorm_gemm": (f"{_PLAIN}, Tensor(s!) sqr_sum, int? num_splits", _C.hc_prenorm_gemm),
    "mqa_logits": (
        "Tensor q, Tensor kv, Tensor kv_scales, Tensor weights, Tensor starts, Tensor ends, Tensor(l!) logits, str form",
        _C.mqa_logits,
    ),
    "paged_mqa_logits": (
        "Tensor q, Tensor kv_cache, Tensor weights, Tensor context_lens, Tensor block_table, Tensor schedule_meta, "
        "Tensor(l!) logits, bool clean",
        _C.paged_mqa_logits,
    ),
    "paged_mqa_logits_metadata": ("Tensor context_lens, Tensor(s!) schedule", _C.paged_mqa_logits_metadata),
    "transform_scales": ("Tensor sf, Tensor(t!) to", _C.transform_scales),
    "quantize": (
        "Tensor x, Tensor(c!) codes, Tensor(s!) scales, str granularity, bool power_of_two",
        _C.quantize,
    ),
    "quantize_by_scale": ("Tensor x, Tensor scale, Tensor(c!) codes", _C.quantize_by_scale),
    "dequantize": ("Tensor codes, Tensor scales, Tensor(x!) x, str granularity", _C.dequantize),
    "quantize_with_transpose": (
        "Tensor x, Tensor(c!) codes, Tensor(s!) scales, Tensor(t!) transposed_codes, Tensor(u!)? transposed_scales, "
        "str granularity, bool power_of_two",
        _C.quantize_with_transpose,
    ),
    "quantize_nvfp4": ("Tensor x, Tensor(c!) codes, Tensor(s!) scales, Tensor(t!) tensor_scale", _nvfp4),
    "quantize_nvfp4_by": ("Tensor x, Tensor(c!) codes, Tensor(s!) scales, Tensor tensor_scale", _nvfp4_by),
    "dequantize_nvfp4": ("Tensor codes, Tensor scales, Tensor tensor_scale, Tensor(x!) x", _C.dequantize_nvfp4),
    "moe_permute": (
        "Tensor ids, int alignment, Tensor(t!) tokens, Tensor(g!) groups, Tensor(e!) ends, Tensor(p!) places",
        _C.moe_permute,
    ),
    "moe_unpermute": ("Tensor rows, Tensor places, Tensor weights, Tensor(o!) out", _C.moe_unpermute),
    "zero_padding_rows": ("Tensor ids, int num_groups, Tensor(d!) d", _C.zero_padding_rows),
    "swiglu_quantize": (
        "Tensor x, Tensor(c!) codes, Tensor(s!) scales, bool power_of_two",
        _C.swiglu_quantize,
    ),
    "gather_quantize": (
        "Tensor x, Tensor rows, Tensor(c!) codes, Tensor(s!) scales, bool power_of_two",
        _C.gather_quantize,
    ),
    "rms_norm_quantize": (
        "Tensor x, Tensor weight, float epsilon, Tensor(c!) codes, Tensor(s!) scales, bool power_of_two",
        _C.rms_norm_quantize,
    ),
}


def _nothing(*_arguments) -> None:
    """What an operator does to tensors without memory."""


def register() -> None:
    """Registers the operators, once."""
    global _library
    if _library is not None:
        return
    import torch

    _library = torch.library.Library("oxigemm", "DEF")
    for name, (arguments, function) in _OPERATORS.items():
        _library.define(f"{name}({arguments}) -> ()")
        _library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"oxigemm::{name}", _nothing, lib=_library)


class _AfterTorch:
    """Registers when torch is imported, if that comes later than this."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "torch":
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        execute = getattr(spec and spec.loader, "exec_module", None)
        if execute is None:
            return spec

        def execute_and_register(module):
            execute(module)
            register()

        spec.loader.exec_module = execute_and_register
        return spec


def register_with_torch() -> None:
    """Registers now, or as soon as torch is imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        sys.meta_path.insert(0, _AfterTorch())
    elif hasattr(torch, "library"):
        register()
