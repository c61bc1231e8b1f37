"""The weights of a mixture's experts and what is between them, as the extension takes them."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Tuple, Union

from ._arrays import dtype_name, expect_shape
from .errors import ArgumentError, ArgumentTypeError

#: A weight of all experts: bfloat16, or codes with their scales.
Weight = Union[Any, Tuple[Any, Any]]
#: One for each weight, or None.
Biases = Tuple[Optional[Any], Optional[Any]]
#: A weight, its scales and its bias.
Parts = Tuple[Any, Optional[Any], Optional[Any]]
#: The slope of the activation, the limit of gates and ups, and what is added to ups.
Gate = Optional[Tuple[float, float, float]]


class Experts(NamedTuple):
    """Experts whose dimensions are known."""

    gate_up: Parts
    down: Parts
    #: The activation, whether it has gates, and what is done with them.
    between: Tuple[str, bool, Gate]
    #: How many there are.
    count: int
    #: Columns between the products.
    inner: int
    #: Columns of tokens.
    columns: int

    @property
    def is_half(self) -> bool:
        """Whether tokens are multiplied as bfloat16."""
        return self.gate_up[1] is None


def experts_of(
    gate_up: Weight,
    down: Weight,
    biases: Biases,
    activation: str,
    gated: bool,
    gate: Gate,
) -> Experts:
    """Reads the arguments of a call. The extension checks what is in them."""
    (w1, s1), (w2, s2) = _parts("gate_up", gate_up), _parts("down", down)
    if not isinstance(biases, (tuple, list)) or len(biases) != 2:
        message = f"`biases` has the wrong type: expected a pair, found {type(biases).__name__}"
        raise ArgumentTypeError(message, "biases")
    if not isinstance(gated, bool):
        message = f"`gated` has the wrong type: expected a bool, found {type(gated).__name__}"
        raise ArgumentTypeError(message, "gated")
    count, both, columns = expect_shape("gate_up", w1, 3)
    columns *= 2 if dtype_name(w1.dtype) == "uint8" else 1
    inner = both // 2 if gated else both
    first, second = (w1, s1, biases[0]), (w2, s2, biases[1])
    return Experts(first, second, (activation, gated, gate), count, inner, columns)


def expect_columns(experts: Experts, columns: int) -> None:
    """Refuses experts for tokens of other columns."""
    if experts.columns != columns:
        found = tuple(experts.gate_up[0].shape)
        message = f"`gate_up` has the wrong shape: expected a K of {columns}, as `x` has, found {found}"
        raise ArgumentError(message, "gate_up")


def _parts(argument: str, weight: Weight) -> Tuple[Any, Optional[Any]]:
    """A weight and its scales, if it has some."""
    if not isinstance(weight, (tuple, list)):
        return weight, None
    if len(weight) != 2:
        message = f"`{argument}` has the wrong type: expected codes and scales, found {len(weight)} values"
        raise ArgumentTypeError(message, argument)
    codes, scales = weight
    return codes, scales
