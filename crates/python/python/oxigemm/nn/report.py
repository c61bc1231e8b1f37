"""What ``optimize`` did, layer by layer."""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Optional

__all__ = ["LayerReport", "Report"]


@dataclasses.dataclass
class LayerReport:
    """One layer that was replaced."""

    #: Its name in the model.
    name: str
    #: ``linear`` or ``experts``.
    kind: str
    #: What the weights are quantized to: ``fp8``, ``mxfp8``, ``mxfp4`` or ``nvfp4``.
    recipe: str
    #: How they are multiplied: ``fp8 128x128``, ``fp8 1x128``, ``fp8 1x32``, ``fp8 32x32`` or ``bf16``; on Blackwell
    #: also ``mxfp8 1x32``, ``mxfp4 1x32`` and ``nvfp4 1x16``.
    runs_as: str
    #: ``[N, K]``, or ``[E, N, K]`` of the first projection of experts.
    shape: List[int]
    #: Bytes of the parameters and buffers before, and of codes, scales and biases now.
    bytes_before: int
    bytes_after: int
    #: Root of the mean square of the change of the weights, by that of the weights; 0 where none changed.
    weight_error: float
    #: The same of the outputs on the sample; None without a sample, or where the sample did not reach the layer.
    output_error: Optional[float] = None
    #: What there is to say besides, in a few words.
    note: str = ""


class Report:
    """Layers that were replaced, and modules that were left alone with the reason. ``str`` makes a table."""

    def __init__(self) -> None:
        self.layers: List[LayerReport] = []
        #: Reasons by the name of the module.
        self.left_alone: Dict[str, str] = {}

    @property
    def bytes_before(self) -> int:
        return sum(layer.bytes_before for layer in self.layers)

    @property
    def bytes_after(self) -> int:
        return sum(layer.bytes_after for layer in self.layers)

    @property
    def lossy(self) -> List[str]:
        """Names of the layers whose weights are not those from before."""
        return [layer.name for layer in self.layers if layer.weight_error > 0]

    def __str__(self) -> str:
        head = ["layer", "shape", "recipe", "runs as", "before", "after", "weights", "outputs", "note"]
        rows = [head, *(_row(layer) for layer in self.layers)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        count = f"{len(self.layers)} layers" if len(self.layers) != 1 else "1 layer"
        lines.append(f"{count}: {_bytes(self.bytes_before)} before, {_bytes(self.bytes_after)} after")
        if self.left_alone:
            lines.append("left alone:")
            lines += [f"  {name}: {reason}" for name, reason in self.left_alone.items()]
        return "\n".join(lines)

    __repr__ = __str__


def _row(layer: LayerReport) -> List[str]:
    shape = "x".join(map(str, layer.shape))
    output = "-" if layer.output_error is None else f"{layer.output_error:.1e}"
    weights = "exact" if layer.weight_error == 0 else f"{layer.weight_error:.1e}"
    sizes = [_bytes(layer.bytes_before), _bytes(layer.bytes_after)]
    return [layer.name, shape, layer.recipe, layer.runs_as, *sizes, weights, output, layer.note]


def _bytes(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
