"""Train traces: what is wrong shows, although batch norm of two images on a 1x1 map is chaotic."""

from __future__ import annotations

import pytest

from benchmarks.conformance import goldens, trace
from benchmarks.conformance.compare import Check
from tests.conftest import MODELS

NAME = "ssd_mobilenet_v1_300x300_coco14_sync"
MOMENTUM = "train_config.optimizer.momentum_optimizer"
LEARNING_RATE = f"{MOMENTUM}.learning_rate.constant_learning_rate.learning_rate"
WRONG = {
    "learning rate 3 % off": f"{LEARNING_RATE} = 1.03e-5",
    "no momentum": f"{MOMENTUM}.momentum_optimizer_value = 0.0",
    "decay 0.99 for 0.97": "model.ssd.feature_extractor.conv_hyperparams.batch_norm.decay = 0.99",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["right", *WRONG])
def test_real_steps(name):
    case = goldens.read(MODELS, NAME)
    assert case.trace is not None
    if name != "right":
        case.trace["overrides"].append(WRONG[name])
    cells = {"train trace": Check()}
    trace.check_trace(case, cells)
    assert cells["train trace"].ok == (name == "right"), cells["train trace"]
