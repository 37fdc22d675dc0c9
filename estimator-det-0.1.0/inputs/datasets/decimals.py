"""Decimal numbers whose float32 values are stored: recovers them, and says when that fails."""

from __future__ import annotations

from typing import Any

import numpy as np

MOST_DECIMALS = 9


def shortest(stored: float, scale: float = 1.0) -> float:
    """The number of fewest decimals that, divided by `scale`, has the float32 of `stored`."""
    target = np.float32(stored)
    value = float(target) * scale
    for decimals in range(MOST_DECIMALS):
        candidate = round(value, decimals)
        if np.float32(candidate / scale) == target:
            return candidate
    return value


def box_from_stored(sides: Any, height: int, width: int) -> Any:
    """COCO's x, y, width, height in pixels of float32 ymin, xmin, ymax, xmax as fractions."""
    ymin, xmin, ymax, xmax = (
        shortest(side, scale) for side, scale in zip(sides, (height, width, height, width))
    )
    return [xmin, ymin, round(xmax - xmin, MOST_DECIMALS), round(ymax - ymin, MOST_DECIMALS)]
