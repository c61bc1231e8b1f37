"""The functions as custom operators of torch, for ``torch.compile``.

Torch cannot trace a call of the extension. While it traces, calls go through these operators. Their schemas say which
arguments they write. They return nothing, so no shapes are inferred. The operators are registered as soon as torch and
this package are both imported, in either order.
"""

from __future__ import annotations

import sys
from typing import Any

from . import _oxigemm as _C

_library: Any = None


def _fused(alpha, sfd):
    """The epilogue of an einsum."""
    return None if alpha is None and sfd is None else (1.0 if alpha is None else alpha, sfd)


def _einsum(expr, a, b, d, c, alpha, sfd):
    _C.einsum(expr, a, b, d, c, _fused(alpha, sfd))


def _fp8_einsum(expr, a, sfa, b, sfb, d, c, recipe, alpha, sfd):
    recipe = None if recipe is None else tuple(recipe)
    _C.fp8_einsum(expr, ((a, sfa), (b, sfb), recipe, None, None), d, c, _fused(alpha, sfd))


def _mqa_logits(q, q_scales, kv, kv_scales, weights, starts, ends, logits, form):
    _C.mqa_logits((q, q_scales), (kv, kv_scales), weights, (starts, ends), logits, form)


def _paged_mqa_logits(q, q_scales, kv_cache, weights, context_lens, block_table, schedule_meta, logits, clean):
    _C.paged_mqa_logits((q, q_scales), kv_cache, weights, (context_lens, block_table, schedule_meta), logits, clean)


def _quantize_with_transpose(x, codes, scales, transposed_codes, transposed_scales, granularity, power_of_two):
    transposed = transposed_codes, transposed_scales
    _C.quantize_with_transpose(x, codes, scales, transposed, granularity, power_of_two)


def _nvfp4_gemm(a, sfa, b, sfb, d, c, tensor_scales):
    _C.nvfp4_gemm((a, sfa), (b, sfb), d, c, tuple(tensor_scales), None)


def _m_grouped_nvfp4_gemm(a, sfa, b, sfb, d, tensor_scales, grouped_layout, masked_m, expected_m, psum):
    groups = grouped_layout, masked_m, expected_m, psum
    _C.nvfp4_gemm((a, sfa), (b, sfb), d, None, tuple(tensor_scales), groups)


def _nvfp4(x, codes, scales, tensor_scale):
    _C.quantize_nvfp4(x, codes, scales, tensor_scale, True)


def _nvfp4_by(x, codes, scales, tensor_scale):
    _C.quantize_nvfp4(x, codes, scales, tensor_scale, False)


def _moe_forward(
    x,
    scales,
    ids,
    weights,
    gate_up,
    gate_up_scales,
    gate_up_bias,
    down,
    down_scales,
    down_bias,
    activation,
    gated,
    gate,
    out,
):
    from . import moe

    # No graph holds the scratch memory: it is the call's own.
    x, gate_up, down = (
        codes if of_codes is None else (codes, of_codes)
        for codes, of_codes in ((x, scales), (gate_up, gate_up_scales), (down, down_scales))
    )
    between = {"activation": activation, "gated": gated, "gate": None if gate is None else tuple(gate)}
    moe.forward(x, ids, weights, gate_up, down, biases=(gate_up_bias, down_bias), **between, out=out)


def _moe_group_publish(buffer, sizes, flags, rank, timeout, x, ids, weights, factor):
    _C.moe_group_publish((buffer, (sizes, flags), rank, timeout), x, (ids, weights), factor)


def _moe_group_forward(
    buffer,
    sizes,
    flags,
    rank,
    timeout,
    tokens,
    most_rows,
    counts,
    gate_up,
    gate_up_scales,
    gate_up_bias,
    down,
    down_scales,
    down_bias,
    activation,
    gated,
    gate,
    scratch,
    out,
):
    member, call = (buffer, (sizes, flags), rank, timeout), (tokens, most_rows, counts)
    first, second = (gate_up, gate_up_scales, gate_up_bias), (down, down_scales, down_bias)
    _C.moe_group_forward(member, call, (first, second), (activation, gated, gate), scratch, out)


def _moe_top_k(
    logits,
    ids,
    weights,
    bias,
    token_mask,
    token_count,
    expert_mask,
    map,
    scoring,
    groups,
    topk_groups,
    group_score,
    renormalize,
    scale,
):
    tensors = bias, token_mask, token_count, expert_mask, map
    _C.moe_top_k(logits, (ids, weights), tensors, (scoring, groups, topk_groups, group_score, renormalize, scale))


def _moe_route(
    x,
    gate,
    ids,
    weights,
    bias,
    token_mask,
    token_count,
    expert_mask,
    map,
    scoring,
    groups,
    topk_groups,
    group_score,
    renormalize,
    scale,
):
    tensors = bias, token_mask, token_count, expert_mask, map
    _C.moe_route(x, gate, (ids, weights), tensors, (scoring, groups, topk_groups, group_score, renormalize, scale))


_EXPERTS = (
    "Tensor gate_up, Tensor? gate_up_scales, Tensor? gate_up_bias, Tensor down, Tensor? down_scales, "
    "Tensor? down_bias, str activation, bool gated, float[]? gate"
)
_RANK = "Tensor(b!) buffer, int[] sizes, bool[] flags, int rank, float timeout"
_ROUTING = (
    "Tensor(i!) ids, Tensor(w!) weights, Tensor? bias, Tensor? token_mask, Tensor? token_count, Tensor? expert_mask, "
    "Tensor? map, str scoring, int groups, int topk_groups, str group_score, bool renormalize, float scale"
)
_SCALED = "Tensor a, Tensor sfa, Tensor b, Tensor sfb, Tensor(d!) d"
_PLAIN = "Tensor a, Tensor b, Tensor(d!) d"

#: The operators besides those of ``_gemm_operators``: their arguments in torch's schema, and what they call.
OPERATORS = {
    "fp8_einsum": (
        f"str expr, {_SCALED}, Tensor? c, int[]? recipe, float? alpha, Tensor(s!)? sfd",
        _fp8_einsum,
    ),
    "einsum": (f"str expr, {_PLAIN}, Tensor? c, float? alpha, Tensor(s!)? sfd", _einsum),
    "hc_prenorm_gemm": (f"{_PLAIN}, Tensor(s!) sqr_sum, int? num_splits", _C.hc_prenorm_gemm),
    "mqa_logits": (
        "Tensor q, Tensor? q_scales, Tensor kv, Tensor kv_scales, Tensor weights, Tensor starts, Tensor ends, "
        "Tensor(l!) logits, str form",
        _mqa_logits,
    ),
    "paged_mqa_logits": (
        "Tensor q, Tensor? q_scales, Tensor kv_cache, Tensor weights, Tensor context_lens, Tensor block_table, "
        "Tensor schedule_meta, Tensor(l!) logits, bool clean",
        _paged_mqa_logits,
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
        _quantize_with_transpose,
    ),
    "quantize_nvfp4": ("Tensor x, Tensor(c!) codes, Tensor(s!) scales, Tensor(t!) tensor_scale", _nvfp4),
    "quantize_nvfp4_by": ("Tensor x, Tensor(c!) codes, Tensor(s!) scales, Tensor tensor_scale", _nvfp4_by),
    "dequantize_nvfp4": ("Tensor codes, Tensor scales, Tensor tensor_scale, Tensor(x!) x", _C.dequantize_nvfp4),
    "nvfp4_gemm": (f"{_SCALED}, Tensor? c, float[] tensor_scales", _nvfp4_gemm),
    "m_grouped_nvfp4_gemm": (
        f"{_SCALED}, float[] tensor_scales, Tensor? grouped_layout, Tensor? masked_m, int? expected_m, bool psum",
        _m_grouped_nvfp4_gemm,
    ),
    "moe_permute": (
        "Tensor ids, int alignment, Tensor(t!) tokens, Tensor(g!) groups, Tensor(e!) ends, Tensor(p!) places",
        _C.moe_permute,
    ),
    "moe_unpermute": ("Tensor rows, Tensor places, Tensor weights, Tensor(o!) out", _C.moe_unpermute),
    "moe_forward": (
        f"Tensor x, Tensor? scales, Tensor ids, Tensor weights, {_EXPERTS}, Tensor(o!) out",
        _moe_forward,
    ),
    "moe_group_publish": (f"{_RANK}, Tensor x, Tensor ids, Tensor weights, float factor", _moe_group_publish),
    "moe_group_forward": (
        f"{_RANK}, int tokens, int? most_rows, Tensor(c!)? counts, {_EXPERTS}, Tensor(s!) scratch, Tensor(o!) out",
        _moe_group_forward,
    ),
    "zero_padding_rows": ("Tensor ids, int num_groups, Tensor(d!) d", _C.zero_padding_rows),
    "moe_top_k": (f"Tensor logits, {_ROUTING}", _moe_top_k),
    "moe_route": (f"Tensor x, Tensor gate, {_ROUTING}", _moe_route),
    "swiglu_quantize": (
        "Tensor x, Tensor(c!) codes, Tensor(s!) scales, bool power_of_two",
        _C.swiglu_quantize,
    ),
    "gather_quantize": (
        "Tensor x, Tensor rows, Tensor(c!) codes, Tensor(s!) scales, str granularity, bool power_of_two",
        _C.gather_quantize,
    ),
    "rms_norm_quantize": (
        "Tensor x, Tensor weight, float epsilon, Tensor(c!) codes, Tensor(s!) scales, bool power_of_two",
        _C.rms_norm_quantize,
    ),
}


def _nothing(*_arguments) -> None:
    """The fake implementation: outputs are arguments."""


def register() -> None:
    """Registers the operators, once."""
    global _library
    if _library is not None:
        return
    import torch

    from ._gemm_operators import OPERATORS as GEMM_OPERATORS

    _library = torch.library.Library("oxigemm", "DEF")
    for name, (arguments, function) in {**GEMM_OPERATORS, **OPERATORS}.items():
        _library.define(f"{name}({arguments}) -> ()")
        _library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"oxigemm::{name}", _nothing, lib=_library)


class _AfterTorch:
    """An import hook that registers the operators when torch is imported later than this package."""

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
