"""Comparisons that keep the largest relative error and where it lies."""

from __future__ import annotations

from typing import Any, Mapping, Optional

import numpy as np


def sums(values: Any) -> np.ndarray:
    """Sum and sum of magnitudes, float64 [2]."""
    values = np.asarray(values, np.float64)
    return np.array([values.sum(), np.abs(values).sum()])


class Check:
    """One cell of the table: ok, or what differs and by how much."""

    def __init__(self) -> None:
        self.compared = 0
        self.worst = 0.0
        self.failure: Optional[str] = None
        self.undecided = ""  # the first comparison that cannot fail
        self._failed_by = 0.0

    @property
    def ok(self) -> bool:
        return self.compared > 0 and self.failure is None

    def __str__(self) -> str:
        if self.failure is not None:
            return self.failure
        result = f"ok {self.worst:.0e}" if self.compared else "-"
        return f"{result}, undecided: {self.undecided}" if self.undecided else result

    def fail(self, message: str, by: float = np.inf) -> None:
        """Records a difference; only the largest one is kept."""
        if self.failure is None or by > self._failed_by:
            self.failure, self._failed_by = message, by

    def equal(self, actual: Any, expected: Any, where: str) -> None:
        self.compared += 1
        if actual != expected:
            self.fail(f"{where}: {actual!r}, expected {expected!r}")

    def error(self, relative: float, tolerance: float, where: str) -> None:
        """Compares a relative error with its tolerance."""
        self.compared += 1
        self.worst = max(self.worst, relative)
        if not relative <= tolerance:
            by = np.inf if np.isnan(relative) else relative
            self.fail(f"rel {relative:.1e} at {where}", by)

    def error_above_noise(
        self, difference: float, tolerance: float, expected: np.ndarray, where: str
    ) -> None:
        """Compares a mean error; undecided if even zeros in place of the values would pass."""
        if np.mean(np.abs(expected)) <= tolerance:
            self.undecided = self.undecided or where
        else:
            self.error(difference, tolerance, where)

    def close(
        self, actual: Any, expected: Any, tolerance: float, where: str, scale: float = 0.0
    ) -> None:
        """Largest difference, relative to `scale` or else to the largest expected value."""
        actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
        if actual.shape != expected.shape:
            self.fail(f"{where}: shape {list(actual.shape)}, expected {list(expected.shape)}")
            return
        if expected.size == 0:
            return
        scale = scale or float(np.max(np.abs(expected))) or 1.0
        self.error(float(np.max(np.abs(actual - expected))) / scale, tolerance, where)

    def statistics(
        self, actual: np.ndarray, recorded: Mapping[str, Any], tolerance: float, where: str
    ) -> None:
        """Shape and sums over a whole tensor; sums cancel, so they count against `abs_sum`."""
        self.equal(list(actual.shape), list(recorded["shape"]), f"{where} shape")
        if not recorded.get("finite", True):
            return
        for key, total in zip(("sum", "abs_sum"), sums(actual)):
            scale = max(abs(recorded["abs_sum"]), 1e-12)
            self.error(abs(total - recorded[key]) / scale, tolerance, f"{where} {key}")
