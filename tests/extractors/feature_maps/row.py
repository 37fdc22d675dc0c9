"""A row of the tables: an extractor with some options, and its feature maps by arithmetic."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Tuple


class Row(NamedTuple):
    """An extractor with some options, and what it makes.

    Attributes:
        kind: The type.
        text: Further fields of the message.
        size: Height and width of the images.
        maps: Shapes of the feature maps without the batch.
        has: Variables below `scope` by name, with their shapes; None for any shape.
        lacks: Parts that no variable's name has.
        scope: Of every variable.
        variables: How many; 0 for any number.
        penalties: How many regularization losses; None for any number.
        like: Options that give the same variables.
        is_exhaustive: Other rows or goldens show the same.
    """

    kind: str
    text: str
    size: Tuple[int, int]
    maps: List[Tuple[int, ...]]
    scope: str = ""
    has: Dict[str, Any] = {}  # noqa: RUF012
    lacks: Tuple[str, ...] = ()
    variables: int = 0
    penalties: Any = None
    like: str = ""
    is_exhaustive: bool = False


LEAVES = [f"BatchNorm/{n}" for n in ("beta", "gamma", "moving_mean", "moving_variance")]


def squares(depths: List[int], sides: List[int]) -> List[Tuple[int, ...]]:
    return [(side, side, depth) for side, depth in zip(sides, depths)]


def wide(depth: int, *sides: Tuple[int, int]) -> List[Tuple[int, ...]]:
    return [(*side, depth) for side in sides]


def split(layer: str) -> Dict[str, None]:
    """Variables of a separable convolution with one batch norm."""
    return {f"{layer}/{leaf}": None for leaf in ("depthwise_weights", "pointwise_weights", *LEAVES)}
