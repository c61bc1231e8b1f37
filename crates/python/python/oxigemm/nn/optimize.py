"""``optimize``: the linear layers and experts of a model become quantized ones, in place, and back."""

from __future__ import annotations

import fnmatch
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, Union

import torch

from ..errors import ArgumentError, ArgumentTypeError
from . import _weights
from ._module import QuantizedModule, stored_bytes
from .experts import QuantizedExperts, is_experts
from .linear import QuantizedLinear
from .report import LayerReport, Report

__all__ = ["optimize", "restore"]

Skip = Union[str, Iterable[str], Callable[[str, torch.nn.Module], bool]]

#: What is left alone unless the caller says otherwise: few columns that decide much.
SKIP = ("lm_head", "*.lm_head", "*.router", "*.gate", "*.shared_expert_gate")


def optimize(
    model: torch.nn.Module,
    recipe: Optional[str] = None,
    sample: Any = None,
    skip: Skip = SKIP,
    nvfp4: str = "requantize",
    keep: str = "cpu",
) -> Report:
    """Replaces the linear layers and the experts of a model by quantized ones, in place; reports each.

    ========== =======================================================================================================
    argument   what
    ========== =======================================================================================================
    model      any module; layers have to be on a Hopper GPU, or on the CPU, where the reference or the simulator
               computes them
    recipe     what layers that are not quantized become: ``fp8``, ``mxfp8``, ``mxfp4`` or ``nvfp4``; None is ``fp8``
               on Hopper and ``mxfp8`` on Blackwell. Layers of a quantized checkpoint keep what they are quantized to
    sample     what the model is called with once, for the error of each layer: a tuple of arguments, a dict of named
               ones, a tensor, or a function of the model. All weights are then in memory twice for a while
    skip       names of modules to leave alone, as patterns of ``fnmatch``, or a function of name and module. The
               default leaves out heads and routers
    nvfp4      what becomes of NVFP4 weights: ``requantize`` to FP8, or ``bf16``, without loss
    keep       where the original tensors wait: on the ``cpu``, or where they are (``reference``), which saves nothing
    ========== =======================================================================================================

    ``state_dict`` has the keys and the values from before, and ``load_state_dict`` takes such a dict. ``restore``
    undoes it all. Calls can be compiled by ``torch.compile`` and captured into CUDA graphs. Parameters of layers that
    were replaced are no parameters of the model any more, and there is no backward pass. Tensors that others use as
    well (tied weights) stay where they are.

    >>> print(oxigemm.optimize(model, sample=(ids,)))
    """
    if not isinstance(model, torch.nn.Module):
        found = type(model).__name__
        raise ArgumentTypeError(f"`model` has the wrong type: expected a torch.nn.Module, found {found}", "model")
    _weights.check_recipe(recipe, nvfp4)
    if keep not in ("cpu", "reference"):
        raise ArgumentError(f"`keep` is unknown: expected cpu or reference, found {keep!r}", "keep")
    if _kind(model) is not None:
        message = (
            "`model` is a layer itself: expected a module that holds layers, "
            f"found {type(model).__name__}; see QuantizedLinear.from_linear"
        )
        raise ArgumentError(message, "model")
    report = Report()
    chosen = _choose(model, _skipped(model, skip), report)
    stays = _used_by_others(model, chosen)
    # With a sample the originals have to run once more beside the new layers.
    ready: List[Tuple[str, torch.nn.Module, QuantizedModule]] = []
    for name, module, make in chosen:
        with torch.no_grad():
            try:
                layer = make(module, recipe, nvfp4)
            except _weights.Unsupported as error:
                report.left_alone[name] = str(error)
                continue
        report.layers.append(_reported(name, module, layer))
        if sample is None:
            _replace(model, {module: layer})
            _keep(layer, keep, stays)
        else:
            ready.append((name, module, layer))
    if sample is not None:
        _run_sample(model, sample, ready, {layer.name: layer for layer in report.layers})
        _replace(model, {module: layer for _, module, layer in ready})
        for _, _, layer in ready:
            _keep(layer, keep, stays)
    return report


def restore(model: torch.nn.Module) -> int:
    """Puts the original layers back, on the device of the model, with the bits that they had; says how many.

    >>> oxigemm.nn.restore(model)
    """
    layers = {module for module in model.modules() if isinstance(module, QuantizedModule)}
    originals = {layer: layer._give_back() for layer in layers if layer.original is not None}
    _replace(model, originals)
    return len(originals)


def _kind(module: torch.nn.Module) -> Optional[Callable[..., QuantizedModule]]:
    """What makes a quantized layer of a module; None of others."""
    if isinstance(module, QuantizedModule):
        return None
    if is_experts(module):
        return _experts
    if isinstance(module, torch.nn.Linear) or _is_quantized_linear(module):
        return _linear
    return None


def _is_quantized_linear(module: torch.nn.Module) -> bool:
    """A module with the tensors of a quantized checkpoint, whatever its class."""
    codes = next((getattr(module, name, None) for name in ("weight_packed", "weight") if hasattr(module, name)), None)
    scales = any(hasattr(module, name) for name in ("weight_scale_inv", "weight_scale"))
    return scales and isinstance(codes, torch.Tensor) and codes.dim() == 2


def _linear(module: torch.nn.Module, recipe: Optional[str], nvfp4: str) -> QuantizedModule:
    if any(True for _ in module.children()):
        raise _weights.Unsupported("it has modules of its own, such as an adapter")
    if module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
        raise _weights.Unsupported("it has hooks, or a `forward` of its own")
    return QuantizedLinear._of(module, recipe, nvfp4)


def _experts(module: torch.nn.Module, recipe: Optional[str], nvfp4: str) -> QuantizedModule:
    if module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
        raise _weights.Unsupported("it has hooks, or a `forward` of its own")
    return QuantizedExperts._of(module, recipe, nvfp4)


def _skipped(model: torch.nn.Module, skip: Skip) -> Callable[[str, torch.nn.Module], Optional[str]]:
    """The reason why a module is skipped, if it is."""
    if callable(skip):
        return lambda name, module: "skipped by the caller" if skip(name, module) else None
    patterns = (skip,) if isinstance(skip, str) else tuple(skip)
    names = [name for name, _ in model.named_modules()]
    for pattern in patterns:
        if pattern not in SKIP and not fnmatch.filter(names, pattern):
            message = f"`skip` is wrong: expected names or patterns of modules of the model, found {pattern!r}"
            raise ArgumentError(message, "skip")

    def reason(name: str, _module: torch.nn.Module) -> Optional[str]:
        found = next((pattern for pattern in patterns if fnmatch.fnmatchcase(name, pattern)), None)
        return None if found is None else f"skipped by {found!r}"

    return reason


Chosen = List[Tuple[str, torch.nn.Module, Callable[..., QuantizedModule]]]


def _choose(model: torch.nn.Module, skipped: Callable[[str, torch.nn.Module], Optional[str]], report: Report) -> Chosen:
    chosen: Chosen = []
    inside: List[str] = []
    for name, module in model.named_modules():
        if any(name.startswith(f"{outer}.") for outer in inside):
            continue
        if name and (reason := skipped(name, module)) is not None:
            # All that is inside is skipped as well.
            inside.append(name)
            if any(_kind(part) is not None for part in module.modules()):
                report.left_alone[name] = reason
            continue
        make = _kind(module)
        if make is not None:
            inside.append(name)
            chosen.append((name, module, make))
    return chosen


def _used_by_others(model: torch.nn.Module, chosen: Chosen) -> Callable[[torch.Tensor], bool]:
    """Whether a tensor belongs to a module that is not replaced as well."""
    replaced = {part for _, module, _ in chosen for part in module.modules()}
    others = set()
    for module in model.modules():
        if module not in replaced:
            tensors = (*module._parameters.values(), *module._buffers.values())
            others.update(id(tensor) for tensor in tensors if tensor is not None)
    return lambda tensor: id(tensor) in others


def _reported(name: str, module: torch.nn.Module, layer: Any) -> LayerReport:
    is_linear = isinstance(layer, QuantizedLinear)
    return LayerReport(
        name=name,
        kind="linear" if is_linear else "experts",
        recipe=layer.recipe,
        runs_as=layer.runs_as,
        shape=[layer.out_features, layer.in_features] if is_linear else list(layer.shape),
        bytes_before=stored_bytes(module),
        bytes_after=layer.bytes,
        weight_error=layer.weight_error,
        note=layer.note,
    )


def _replace(model: torch.nn.Module, new: Dict[torch.nn.Module, Any]) -> None:
    """Puts other modules in the places of some, wherever they are."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and child in new:
                parent._modules[name] = new[child]


def _keep(layer: QuantizedModule, keep: str, stays: Callable[[torch.Tensor], bool]) -> None:
    if keep == "cpu":
        layer._move_original(stays)


def _run_sample(
    model: torch.nn.Module,
    sample: Any,
    layers: List[Tuple[str, torch.nn.Module, QuantizedModule]],
    reports: Dict[str, LayerReport],
) -> None:
    """Runs the model as it is; each layer is compared on the inputs that it gets there, all of them together."""
    sums: Dict[str, List[float]] = {}

    def compare(name: str, layer: QuantizedModule) -> Callable[..., None]:
        def hook(_module: Any, arguments: Any, named: Any, expected: torch.Tensor) -> None:
            found = layer(*arguments, **named)
            exact = expected.double()
            pair = sums.setdefault(name, [0.0, 0.0])
            pair[0] += float((found.double() - exact).square().sum())
            pair[1] += float(exact.square().sum())

        return hook

    hooks = [module.register_forward_hook(compare(name, layer), with_kwargs=True) for name, module, layer in layers]
    try:
        with torch.no_grad():
            if callable(sample) and not isinstance(sample, torch.Tensor):
                sample(model)
            elif isinstance(sample, dict):
                model(**sample)
            elif isinstance(sample, (tuple, list)):
                model(*sample)
            else:
                model(sample)
    finally:
        for hook in hooks:
            hook.remove()
    for name, (apart, size) in sums.items():
        reports[name].output_error = (apart / size) ** 0.5 if apart else 0.0
