"""Train traces: changes since the start show a wrong optimizer, and rounding is no difference."""

from __future__ import annotations

import pathlib
from typing import Any, Dict

import numpy as np
import pytest

from benchmarks.conformance import goldens, trace
from benchmarks.conformance.checks import build, model_variables
from benchmarks.conformance.compare import Check
from benchmarks.conformance.goldens import Case, moved
from estimator_det.compat import tf
from estimator_det.config import pipeline
from tests import small_extractor
from tests.conftest import MODELS
from tests.detectors.configs import SMALL_SSD

MOMENTUM = "train_config.optimizer.momentum_optimizer"
LEARNING_RATE = f"{MOMENTUM}.learning_rate.constant_learning_rate.learning_rate"
HEAD = "model.ssd.box_predictor.weight_shared_convolutional_box_predictor"
DECAY = f"{HEAD}.conv_hyperparams.batch_norm.decay"
STEPS = 12
WRONG = {
    "learning rate 3 % off": (f"{LEARNING_RATE} = {{}}", 1.03),
    "no momentum": (f"{MOMENTUM}.momentum_optimizer_value = 0.0", 0),
    "decay 0.99 for 0.97": (f"{DECAY} = 0.99", 0),
}


SHARED_HEAD = """
model { ssd {
  inplace_batchnorm_update: true
  box_predictor {
    weight_shared_convolutional_box_predictor {
      depth: 8 num_layers_before_predictor: 1
      conv_hyperparams {
        regularizer { l2_regularizer { weight: 0.001 } } batch_norm { decay: 0.97 }
      }
    }
  }
  anchor_generator {
    multiscale_anchor_generator { min_level: 2 max_level: 3 scales_per_octave: 1 aspect_ratios: 1 }
  }
} }
train_config {
  optimizer {
    momentum_optimizer {
      momentum_optimizer_value: 0.9
      learning_rate { constant_learning_rate { learning_rate: 0.001 } }
    }
    use_moving_average: false
  }
}
"""

WEIGHTS = """
import zlib
import numpy as np

def det_value(name, shape):
    values = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape)
    positive = name.endswith(("gamma", "moving_variance"))
    return (1 + 0.1 * abs(values) if positive else 0.2 * values).astype(np.float32)
"""


def _wrong(name: str, learning_rate: float) -> str:
    line, factor = WRONG[name]
    return line.format(factor * learning_rate)


def _checked(case: Case) -> Check:
    cells = {"train trace": Check()}
    trace.check_trace(case, cells)
    return cells["train trace"]


def _record(case: Case, value: goldens.SeededValue) -> Dict[str, Any]:
    """The record of a first run."""
    assert case.graph is not None
    model_names = set(case.graph["variables"])
    config = case.overridden([])
    with trace.optimizer_steps(case, config, model_names) as (names, take_steps):
        steps = take_steps(STEPS, value)
    end = steps.values[-1]
    norms = {part: {n: v for n, v in end.items() if part in n} for part in ("/w", "moving")}
    return {
        "overrides": [],
        "steps": STEPS,
        "total_loss_per_step": steps.losses,
        "global_step_after": steps.step,
        "num_slots": len(names - model_names) - 1,
        "slot_names_sample": ["FeatureExtractor/First/weights/Momentum"],
        "weight_norms_after": norms["/w"],
        "bn_norms_after": norms["moving"],
    }


@pytest.fixture
def small(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """A small network with the record of weights moved by one unit in the last place."""
    small_extractor.use(monkeypatch)
    (tmp_path / "detinit.py").write_text(WEIGHTS)
    (tmp_path / "numeric").mkdir()
    images = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3)).astype(np.uint8)
    np.savez(tmp_path / "numeric" / "_inputs.npz", images_300=images)
    # Only one predictor and one anchor generator may be set: the last ones count.
    config = pipeline.parse_pipeline(f"model {{ {SMALL_SSD} }}")
    config.MergeFrom(pipeline.parse_pipeline(SHARED_HEAD))
    graph: Dict[str, Any] = {"variables": {}}
    record: Dict[str, Any] = {"overrides": [], "steps": STEPS}
    config_file = pathlib.Path(pipeline.save_pipeline(config, tmp_path))
    case = Case("small", config_file, tmp_path, graph, None, {}, record)
    with tf.Graph().as_default():
        build(case, config, images, is_training=True)
        graph["variables"].update({v.op.name: v.shape.as_list() for v in model_variables()})
    record.update(_record(case, moved(case.seeded_value(), 99)))
    return case


def test_the_same_steps_agree(small):
    assert str(_checked(small)).startswith("ok")


@pytest.mark.parametrize("name", WRONG)
def test_wrong_steps_are_refused(small, name):
    assert small.trace is not None
    small.trace["overrides"].append(_wrong(name, 0.001))
    check = _checked(small)
    assert not check.ok and "change" in str(check), check


NAME = "ssd_mobilenet_v1_300x300_coco14_sync"


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["right", *WRONG])
def test_real_steps(name):
    """Batch norm of two images on a 1x1 map is chaotic; what is wrong shows all the same."""
    case = goldens.read(MODELS, NAME)
    assert case.trace is not None
    if name != "right":
        # The head of this configuration has no batch norm.
        wrong = _wrong(name, 1e-5).replace(HEAD, "model.ssd.feature_extractor")
        case.trace["overrides"].append(wrong)
    check = _checked(case)
    assert check.ok == (name == "right"), check
