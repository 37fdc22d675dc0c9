from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from estimator_det.config.text import ConfigError
from estimator_det.protos import eval_pb2
from model_fn.evaluation.metrics import METRICS
from model_fn.evaluation.metrics.precision_at_recall import NAME

CATEGORIES = [{"id": 1, "name": "cat"}]


def test_nothing_at_all() -> None:
    results = METRICS.get(NAME)(eval_pb2.EvalConfig(), CATEGORIES).results()
    assert np.isnan(list(results.values())).all() and len(results) == 2


@pytest.mark.parametrize("bounds", [(0.5, 0.4), (-0.1, 1.0), (0.0, 1.1), (float("nan"), 1.0)])
def test_bounds_that_contain_no_recall_are_errors(bounds: Any) -> None:
    config = eval_pb2.EvalConfig(recall_lower_bound=bounds[0], recall_upper_bound=bounds[1])
    with pytest.raises(ConfigError, match=r"eval_config\.recall_lower_bound: is"):
        METRICS.get(NAME)(config, CATEGORIES)
