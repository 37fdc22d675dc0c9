"""Comparison of arrays by name."""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np


def assert_same(
    found: Mapping[str, Any], expected: Mapping[str, Any], rtol: float = 1e-5, atol: float = 1e-6
) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol, atol, err_msg=name)
