"""The experts of a mixture with quantized weights."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional, Tuple, Union

import torch

from .. import deep_gemm, fused, moe, quantization
from ..errors import ArgumentError
from . import _block_scaled, _weights
from ._module import QuantizedModule, Tensors

__all__ = ["QuantizedExperts", "routed"]

Pair = Tuple[torch.Tensor, torch.Tensor]
#: What is between the GEMMs: SwiGLU, SwiGLU with a slope, a limit and an offset of ups, or a function of torch.
Between = Union[None, Tuple[float, float, float], Callable[[torch.Tensor], torch.Tensor]]

#: The projections, by the names that they have here and in checkpoints.
_PARTS, _KEYS = ("gate_up", "down"), ("gate_up_proj", "down_proj")


@torch.compiler.assume_constant_result
def _alignment() -> int:
    """Where the rows of an expert start, for the GEMMs of ``deep_gemm``; a compiled graph keeps the one it found."""
    return deep_gemm.get_mk_alignment_for_contiguous_layout()


def routed(
    x: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
    gate_up: Pair,
    down: Pair,
    gate: Between = None,
    biases: Tuple[Optional[torch.Tensor], Optional[torch.Tensor]] = (None, None),
) -> torch.Tensor:
    """The experts of each token in five kernels, besides casts of ids and weights.

    That is one call of ``moe.forward``, with its ``gate``. A ``gate`` that is a function of gates and ups, ``[M, 2·I]``
    to ``[M, I]``, is computed by torch between the GEMMs, which are calls of their own then.

    ``gate_up`` is e4m3 ``[E, 2·I, K]`` with float32 scales of 128x128, ``down`` the same ``[E, K, I]``; ``x`` is
    bfloat16 ``[T, K]``. Choices that are no expert add nothing.
    """
    ids = top_k_index.to(torch.int32).contiguous()
    factors = top_k_weights.to(torch.float32).contiguous()
    if not callable(gate):
        return moe.forward(x, ids, factors, gate_up, down, biases=biases, gate=gate)

    experts, outer = gate_up[0].shape[0], x.shape[-1]
    tokens, _, ends, places = moe.permute(ids, experts, _alignment())
    rows, expected_m = tokens.shape[0], max(1, ids.numel() // experts)
    groups: Dict[str, Any] = {"grouped_layout": ends, "use_psum_layout": True, "expected_m": expected_m}
    both = torch.empty(rows, gate_up[0].shape[1], device=x.device, dtype=torch.bfloat16)
    activations = quantization.gather_quantize(x, tokens)
    fused.m_grouped_fp8_gemm_nt_fused(activations, gate_up, both, **groups, bias=biases[0])
    hidden = quantization.quantize(gate(both).contiguous())
    out = torch.empty(rows, outer, device=x.device, dtype=torch.bfloat16)
    fused.m_grouped_fp8_gemm_nt_fused(hidden, down, out, **groups, bias=biases[1])
    return moe.unpermute(out, places, factors)


def routed_block_scaled(
    x: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
    gate_up: Tuple[_block_scaled.Form, Pair, float],
    down: Tuple[_block_scaled.Form, Pair, float],
    gate: Between = None,
    biases: Tuple[Optional[torch.Tensor], Optional[torch.Tensor]] = (None, None),
) -> torch.Tensor:
    """``routed`` for weights whose scales the tensor core applies, each with its form and a factor."""
    (first, w1, alpha1), (second, w2, alpha2) = gate_up, down
    experts = w1[0].shape[0]
    ids = top_k_index.to(torch.int32).contiguous()
    tokens, _, ends, places = moe.permute(ids, experts, _alignment())
    rows, expected_m = tokens.shape[0], max(1, ids.numel() // experts)
    groups: Dict[str, Any] = {"grouped_layout": ends, "use_psum_layout": True, "expected_m": expected_m}

    def multiply(form: _block_scaled.Form, a: Pair, weight: Pair, d: torch.Tensor, **epilogue: Any) -> None:
        recipe_a, recipe_b = form.recipes
        fused.m_grouped_fp8_gemm_nt_fused(a, weight, d, **groups, **epilogue, recipe_a=recipe_a, recipe_b=recipe_b)

    new = {"device": x.device, "dtype": torch.bfloat16}
    activations = first.gathered(x, tokens)
    if not callable(gate):
        hidden = second.room_for(rows, x.device)
        gated = {"activation": "silu", "gated": True, "gate": gate}
        gated.update(d_scales=hidden[1], d_format=second.d_format)
        multiply(first, activations, w1, hidden[0], alpha=alpha1, bias=biases[0], **gated)
    else:
        gates_and_ups = torch.empty(rows, w1[0].shape[1], **new)
        multiply(first, activations, w1, gates_and_ups, alpha=alpha1, bias=biases[0])
        hidden = second.quantized(gate(gates_and_ups).contiguous())
    out = torch.empty(rows, x.shape[-1], **new)
    multiply(second, hidden, w2, out, alpha=alpha2, bias=biases[1])
    return moe.unpermute(out, places, top_k_weights.to(torch.float32).contiguous())


def is_silu(function: Any) -> bool:
    """Whether a module is SiLU, of torch or of transformers."""
    return isinstance(function, torch.nn.SiLU) or type(function).__name__ == "SiLUActivation"


class QuantizedExperts(QuantizedModule):
    """Gated experts of a mixture with weights that were quantized once: on Hopper to FP8 with scales of 128x128.

    ``from_experts`` makes them of an expert module of transformers. ``forward`` takes hidden states ``[T, K]``, the
    chosen experts ``[T, C]`` and their weights, as those modules do. SwiGLU with ups behind gates is computed in the
    epilogue of the first GEMM, for FP8 experts of transformers also with slope and limit; another gate (of interleaved
    rows, clamped elsewhere) is the module's own ``_apply_gate``, between the GEMMs. There is no backward pass.
    """

    def __init__(
        self,
        gate_up: _weights.Operand,
        down: _weights.Operand,
        biases: Tuple[Optional[torch.Tensor], Optional[torch.Tensor]] = (None, None),
        gate: Between = None,
    ) -> None:
        super().__init__()
        self._set(gate_up, down, biases, gate)

    def _set(self, gate_up: Any, down: Any, biases: Any, gate: Between) -> None:
        self.num_experts, both, columns = gate_up.codes.shape
        self.hidden_dim = gate_up.columns or columns
        self._forms = _block_scaled.Form.of(gate_up), _block_scaled.Form.of(down)
        self._alphas = gate_up.alpha, down.alpha
        self.intermediate_dim = both // 2
        self.shape = [self.num_experts, both, self.hidden_dim]
        self.recipe, self.runs_as = gate_up.recipe, gate_up.runs_as
        self.weight_error = max(gate_up.weight_error, down.weight_error)
        self.note = gate_up.note or down.note
        # A method of the original, which is no submodule.
        object.__setattr__(self, "_gate", gate)
        parts = {
            "gate_up_codes": gate_up.codes,
            "gate_up_scales": gate_up.scales,
            "down_codes": down.codes,
            "down_scales": down.scales,
        }
        for name, bias in zip(("gate_up_bias", "down_bias"), biases):
            if bias is not None:
                parts[name] = bias.detach().float()
        self._has_bias = tuple(bias is not None for bias in biases)
        self._allocate(parts)

    @classmethod
    def from_experts(
        cls, experts: torch.nn.Module, recipe: Optional[str] = None, nvfp4: str = "requantize"
    ) -> "QuantizedExperts":
        """Experts with the weights of a module of transformers, on their device.

        The module has ``gate_up_proj`` and ``down_proj`` (also transposed, or of FP8 or FP4 with their scales), and a
        gate: ``act_fn`` or ``_apply_gate``. ``recipe`` and ``nvfp4`` are those of ``QuantizedLinear.from_linear``;
        experts of NVFP4 have no BF16 form.
        """
        _weights.check_recipe(recipe, nvfp4)
        try:
            with torch.no_grad():
                return cls._of(experts, recipe, nvfp4)
        except _weights.Unsupported as error:
            message = f"`experts` cannot be quantized: expected gated experts of a known form, found that {error}"
            raise ArgumentError(message, "experts") from None

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, torch.Tensor],
        name: str,
        recipe: Optional[str] = None,
        nvfp4: str = "requantize",
        apply_gate: Optional[Callable[[torch.Tensor], torch.Tensor]] = None,
    ) -> "QuantizedExperts":
        """The experts ``name`` of a checkpoint, such as ``safetensors.torch.load_file`` reads it.

        Its tensors are ``name.gate_up_proj`` and ``name.down_proj`` with ``_scale_inv`` or ``_scale``, or ``_blocks``
        and ``_scales`` as gpt-oss has them, and ``_bias``. ``apply_gate`` makes ``[M, I]`` of gates and ups
        ``[M, 2·I]``; without it, ups follow gates and the gate is SiLU.

        >>> layer = QuantizedExperts.from_tensors(load_file(path), "model.layers.0.mlp.experts", apply_gate=clamped)
        """
        holder = Tensors(tensors, name)
        if apply_gate is None:
            holder.act_fn = torch.nn.SiLU()
        else:
            holder._apply_gate = apply_gate
            holder.is_concatenated = False
        return cls.from_experts(holder, recipe, nvfp4)

    def tensors(self, name: str) -> Dict[str, torch.Tensor]:
        """The tensors of the experts as a checkpoint of FP8 has them, for ``safetensors.torch.save_file``."""
        found = {}
        for part, key, form, alpha in zip(_PARTS, _KEYS, self._forms, self._alphas):
            codes, scales = getattr(self, f"{part}_codes"), getattr(self, f"{part}_scales")
            if form is not None:
                own = form.tensors(codes, scales, alpha)
                found.update({f"{name}.{key}{end}": tensor for end, tensor in own.items()})
            else:
                found[f"{name}.{key}"] = codes.clone()
                found[f"{name}.{key}_scale_inv"] = scales.clone()
            if self._has_bias[key == "down_proj"]:
                found[f"{name}.{key}_bias"] = getattr(self, f"{part}_bias").clone()
        return found

    @classmethod
    def _of(cls, experts: torch.nn.Module, recipe: Optional[str], nvfp4: str) -> "QuantizedExperts":
        layer = cls(*_read(experts, recipe, nvfp4))
        layer._recipe, layer._nvfp4 = recipe, nvfp4
        layer._stand_for(experts)
        return layer

    def _quantize_again(self) -> None:
        original = self.original
        assert original is not None
        with torch.no_grad():
            self._set(*_read(original, self._recipe, self._nvfp4, self.down_codes.device))

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        self._refuse_gradients(hidden_states)
        biases = (
            self.gate_up_bias if self._has_bias[0] else None,
            self.down_bias if self._has_bias[1] else None,
        )
        weights = (self.gate_up_codes, self.gate_up_scales), (self.down_codes, self.down_scales)
        x = hidden_states.to(torch.bfloat16)
        first, second = self._forms
        if first is None or second is None:
            out = routed(x, top_k_index, top_k_weights, *weights, self._gate, biases)
        else:
            rows = self.gate_up_codes.shape[1], self.down_codes.shape[1]
            operands = [
                (form, (codes, form.words_of(words, n)), alpha)
                for form, (codes, words), n, alpha in zip((first, second), weights, rows, self._alphas)
            ]
            out = routed_block_scaled(x, top_k_index, top_k_weights, *operands, self._gate, biases)
        return out.to(hidden_states.dtype)

    def extra_repr(self) -> str:
        experts, both, outer = self.shape
        return f"experts={experts}, gate_up={[both, outer]}, {self.recipe} as {self.runs_as}"


def is_experts(module: torch.nn.Module) -> bool:
    """Whether a module has the weights of gated experts."""
    either = ("gate_up_proj", "gate_up_proj_blocks"), ("down_proj", "down_proj_blocks")
    found = [[getattr(module, name, None) for name in names] for names in either]
    # Projections that are modules are those of an MLP.
    return all(any(x is not None and not isinstance(x, torch.nn.Module) for x in group) for group in found)


def _read(experts: torch.nn.Module, recipe: Optional[str], nvfp4: str, device: Any = None) -> Any:
    """The operands, biases and gate of a module; raises ``Unsupported``."""
    if getattr(experts, "has_post_expert_norm", False) or getattr(experts, "has_gate", True) is False:
        raise _weights.Unsupported("it has no gate, or a norm behind each expert")
    if getattr(experts, "_is_expert_parallel", False):
        raise _weights.Unsupported("its experts are shared by several processes")
    operands = []
    for name in ("gate_up_proj", "down_proj"):
        weights = _weights.of_module(experts, name)
        if getattr(experts, "is_transposed", False) and weights.recipe is None:
            weights.codes = weights.codes.transpose(1, 2)
        if device is not None:
            weights = weights.to(device)
        operands.append((name, weights))
    (_, gate_up), (_, down) = operands
    (count, both, outer), (groups, n, inner) = gate_up.shape, down.shape
    if (groups, n, 2 * inner) != (count, outer, both):
        raise _weights.Unsupported(f"`gate_up_proj` is {[count, both, outer]} and `down_proj` {[groups, n, inner]}")
    if outer % 16 != 0 or inner % 16 != 0 or count > 1024:
        raise _weights.Unsupported(f"`gate_up_proj` is {[count, both, outer]}: dimensions must be multiples of 16")
    place = gate_up.codes.device
    if place.type not in ("cpu", "cuda"):
        raise _weights.Unsupported(f"it is on {place}")
    biases = tuple(getattr(experts, f"{name}_bias", None) for name in ("gate_up_proj", "down_proj"))
    biases = tuple(None if bias is None else bias.to(place) for bias in biases)
    made = [_weights.operand(weights, recipe, nvfp4, True, place) for _, weights in operands]
    return made[0], made[1], biases, _gate_of(experts, inner)


def _gate_of(experts: torch.nn.Module, inner: int) -> Between:
    """What the epilogue computes between the GEMMs, else the function of the module."""
    apply_gate = getattr(experts, "_apply_gate", None)
    own = getattr(type(experts), "_apply_gate", None)
    silu = is_silu(getattr(experts, "act_fn", None))
    concatenated = getattr(experts, "is_concatenated", True)
    if concatenated and inner % 128 == 0 and type(experts).__name__ == "FP8Experts":
        in_epilogue, gate = gate_of_fp8(experts)
        if in_epilogue:
            return gate
    # The default of transformers: halves, and `act_fn` of the gates.
    plain = own is None or getattr(own, "__name__", "") == "_default_apply_gate"
    if plain and concatenated and silu and inner % 128 == 0:
        return None
    if callable(apply_gate):
        return apply_gate
    if plain and concatenated and callable(getattr(experts, "act_fn", None)):
        act = experts.act_fn

        def gated(both: torch.Tensor) -> torch.Tensor:
            gate, up = both.chunk(2, dim=-1)
            return act(gate) * up

        return gated
    raise _weights.Unsupported("its gate is unknown: it has neither `act_fn` nor `_apply_gate`")


def gate_of_fp8(experts: Any) -> Tuple[bool, Optional[Tuple[float, float, float]]]:
    """Whether an epilogue computes what the FP8 experts of transformers have between GEMMs, and its ``gate``."""
    slope, limit = (getattr(experts, name, None) for name in ("swiglu_alpha", "limit"))
    if getattr(experts, "gate_softcap", None) is not None:
        return False, None
    if slope is not None:
        # Whatever `act_fn` is, gates are multiplied by a sigmoid.
        return limit is not None, None if limit is None else (float(slope), float(limit), 1.0)
    return is_silu(experts.act_fn), None if limit is None else (1.0, float(limit), 0.0)
