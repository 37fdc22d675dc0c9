"""A small network with one head for two maps, and a folder of weights and images for it."""

from __future__ import annotations

import pathlib
from typing import Any, Dict, List

import numpy as np
import pytest

from benchmarks.conformance import goldens
from benchmarks.conformance.case import Case
from benchmarks.conformance.checks import build, model_variables
from estimator_det.compat import slim, tf
from estimator_det.config import pipeline
from estimator_det.detectors import ssd
from estimator_det.nets.layers import conv2d
from estimator_det.nets.normalization import batch_norm
from tests.detectors.configs import SMALL_SSD

SHARED_HEAD = """
model { ssd {
  inplace_batchnorm_update: true
  feature_extractor { conv_hyperparams { batch_norm { decay: 0.97 } } }
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


class _Extractor:
    """Layers that end with ReLU, ReLU6 and nothing; maps at strides 4 and 8."""

    quantizes = True

    def __init__(self, decay: float) -> None:
        self._decay = decay

    def normalize(self, pixels: tf.Tensor) -> tf.Tensor:
        return pixels / 127.5 - 1.0

    def extract(self, inputs: tf.Tensor) -> List[tf.Tensor]:
        settings = {
            "normalizer_fn": batch_norm,
            "normalizer_params": {"scale": True, "decay": self._decay},
            "weights_regularizer": slim.l2_regularizer(1e-4),
        }
        first = conv2d(inputs, 8, 5, stride=4, scope="First", activation_fn=tf.nn.relu, **settings)
        second = conv2d(
            first, 8, 3, stride=2, scope="Second", activation_fn=tf.nn.relu6, **settings
        )
        return [first, conv2d(second, 8, 1, scope="Third", activation_fn=tf.identity, **settings)]


def make_case(
    folder: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    trace: Dict[str, Any],
) -> Case:
    """The case of the small network, without numbers.

    Args:
        folder: Empty; weights and images are written there.
        monkeypatch: Has every detector use the small network.
        trace: Record of a train trace.
    """
    monkeypatch.setattr(
        ssd,
        "make_extractor",
        lambda config, *_: _Extractor(config.conv_hyperparams.batch_norm.decay),
    )
    (folder / "detinit.py").write_text(WEIGHTS)
    (folder / "numeric").mkdir()
    images = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3)).astype(np.uint8)
    np.savez(folder / "numeric" / "_inputs.npz", images_300=images)
    # Only one predictor and one anchor generator may be set: the last ones count.
    config = pipeline.parse_pipeline(f"model {{ {SMALL_SSD} }}")
    config.MergeFrom(pipeline.parse_pipeline(SHARED_HEAD))
    golden = goldens.Golden("small", "small", None, None, {}, trace)
    case = Case(golden, config, folder)
    with tf.Graph().as_default():
        build(case, config, images, is_training=True)
        variables = {v.op.name: [v.shape.as_list(), True] for v in model_variables()}
    graph = {"variables": variables}
    return Case(goldens.Golden("small", "small", graph, None, {}, trace), config, folder)
