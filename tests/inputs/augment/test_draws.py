from __future__ import annotations

import math
from typing import List

import numpy as np

from tests.inputs.augment.draws import compare_probability, compare_quantiles, is_unlikely

BUDGET = math.log(1e6)


def _deciles(values: np.ndarray) -> List[float]:
    return [float(value) for value in np.quantile(values, np.linspace(0, 1, 11))]


def test_equal_distributions_pass_and_others_do_not() -> None:
    random = np.random.default_rng(5)
    for draws in (random.random(2000), random.integers(0, 3, 2000).astype(float)):
        known = _deciles(draws)
        for _ in range(50):
            again = random.permutation(draws)[:1000]
            assert not list(compare_quantiles("x", again, known, 2000, BUDGET))
    uniform = _deciles(random.random(2000))
    for other in (random.random(1000) * 1.1, random.random(1000) ** 2, np.full(1000, 0.5)):
        assert list(compare_quantiles("x", other, uniform, 2000, BUDGET))


def test_a_constant_has_no_exceptions() -> None:
    same, other = np.full(1000, 7.0), np.concatenate([np.full(960, 7.0), np.full(40, 8.0)])
    assert not list(compare_quantiles("x", same, [7.0] * 11, 2000, BUDGET))
    assert list(compare_quantiles("x", other, [7.0] * 11, 2000, BUDGET))


def test_probabilities() -> None:
    assert not list(compare_probability("p", 510, 1000, 0.5, 2000, BUDGET))
    assert list(compare_probability("p", 700, 1000, 0.5, 2000, BUDGET))
    assert list(compare_probability("p", 0, 1000, 0.1, 2000, BUDGET))


def test_bound_is_chernoffs() -> None:
    """Of 100 fair coins all show heads: 100 ln 2 = 69.3."""
    assert is_unlikely(100, 100, 0.5, 0.5, 69.0)
    assert not is_unlikely(100, 100, 0.5, 0.5, 70.0)
    assert not is_unlikely(60, 100, 0.5, 0.7, 1e-9)
