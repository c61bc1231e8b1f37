"""What quantized layers of torch share: one allocation, the module that they stand for, and its state."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch

from ..errors import ArgumentError, OxigemmError

#: Parts of an allocation start at multiples of this.
_ALIGNMENT = 256


class QuantizedModule(torch.nn.Module):
    """Tensors in one allocation, as buffers that no ``state_dict`` has; the ``state_dict`` is that of the original.

    ``.to(device)`` moves the allocation. ``.to(dtype)`` changes nothing: codes and scales have types of their own.
    """

    def __init__(self) -> None:
        super().__init__()
        self._parts: Dict[str, Tuple[int, torch.dtype, Tuple[int, ...]]] = {}
        self._memory: Optional[torch.Tensor] = None
        # Not a submodule: its parameters are not those of this module.
        object.__setattr__(self, "_original", None)
        #: Tensors of the original that wait on the CPU, each with what brings it back.
        self._moved: List[torch.Tensor] = []

    def _allocate(self, parts: Dict[str, torch.Tensor]) -> None:
        """Copies tensors into one allocation; they become buffers. One of the same form is kept: graphs may use it."""
        start, places = 0, {}
        for name, tensor in parts.items():
            places[name] = start, tensor.dtype, tuple(tensor.shape)
            start += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
        device = next(iter(parts.values())).device
        if self._memory is None or self._memory.device != device or self._parts != places:
            self._parts = places
            self._memory = torch.empty(start, dtype=torch.uint8, device=device)
            self._make_views()
        for name, tensor in parts.items():
            getattr(self, name).copy_(tensor)

    def _make_views(self) -> None:
        assert self._memory is not None
        for name, (start, dtype, shape) in self._parts.items():
            count = torch.Size(shape).numel() * dtype.itemsize
            view = self._memory[start : start + count].view(dtype).view(shape)
            self.register_buffer(name, view, persistent=False)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> "QuantizedModule":
        if self._memory is not None:
            self._memory = fn(self._memory)
            self._make_views()
        return self

    @property
    def bytes(self) -> int:
        """Bytes of codes, scales and biases."""
        return sum(torch.Size(shape).numel() * dtype.itemsize for _, dtype, shape in self._parts.values())

    @property
    def original(self) -> Optional[torch.nn.Module]:
        """The module that this one stands for, if any."""
        return self.__dict__["_original"]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            original = self.__dict__.get("_original")
            if original is None or name.startswith("__"):
                raise
            return getattr(original, name)

    def _stand_for(self, original: torch.nn.Module) -> None:
        object.__setattr__(self, "_original", original)
        self.training = original.training

    def _move_original(self, stays: Callable[[torch.Tensor], bool]) -> None:
        """Moves the tensors of the original to the CPU, but for those that other modules use."""
        original = self.original
        assert original is not None
        for tensor in (*original.parameters(), *original.buffers()):
            if tensor.device.type != "cpu" and not stays(tensor):
                tensor.data = tensor.data.to("cpu")
                self._moved.append(tensor)

    def _give_back(self) -> torch.nn.Module:
        """The original as it was, on the device of this module."""
        original = self.original
        assert original is not None and self._memory is not None
        for tensor in self._moved:
            if tensor.device != self._memory.device:
                tensor.data = tensor.data.to(self._memory.device)
        self._moved = []
        original.train(self.training)
        return original

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if self.original is not None:
            self.original.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: List[str],
        unexpected_keys: List[str],
        error_msgs: List[str],
    ) -> None:
        original = self.original
        if original is None:
            error_msgs.append(f"{prefix}: a layer that was made of weights alone has no state to load")
            return
        arguments = strict, missing_keys, unexpected_keys, error_msgs
        original._load_from_state_dict(state_dict, prefix, local_metadata, *arguments)
        self._quantize_again()

    def _quantize_again(self) -> None:
        raise NotImplementedError

    def _refuse_gradients(self, x: torch.Tensor) -> None:
        if x.requires_grad and torch.is_grad_enabled():
            raise OxigemmError(
                "`x` needs a gradient: expected inference, under torch.no_grad() or torch.inference_mode(), as "
                "quantized layers have no backward pass",
                "x",
            )


class Tensors(torch.nn.Module):
    """The tensors of one layer of a checkpoint, as a module that has them as buffers."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], name: str) -> None:
        super().__init__()
        prefix = f"{name}." if name else ""
        found = {key[len(prefix) :]: tensor for key, tensor in tensors.items() if key.startswith(prefix)}
        for key, tensor in found.items():
            if "." not in key:
                self.register_buffer(key, tensor)
        if not self._buffers:
            message = f"`tensors` has no layer of this name: expected keys that start with {prefix!r}, found none"
            raise ArgumentError(message, "tensors")


def working_dtype(x: torch.Tensor) -> torch.dtype:
    """The type that a linear layer of torch would compute in."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def stored_bytes(module: torch.nn.Module) -> int:
    """Bytes of the parameters and buffers of a module."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers()))
