"""A feature extractor of two layers, for runs in which the network is not the point.

Building, differentiating and exporting a MobileNet takes most of the time of a short run.
"""

from __future__ import annotations

from typing import List

import pytest

from estimator_det.compat import slim, tf
from estimator_det.detectors import ssd
from estimator_det.nets.normalization import batch_norm


class SmallExtractor:
    """Two feature maps, at strides 4 and 8: those of `num_layers: 2` on images of 64 pixels."""

    def normalize(self, pixels: tf.Tensor) -> tf.Tensor:
        return pixels / 127.5 - 1.0

    def classifier_name(self, name: str) -> str:
        return name

    def extract(self, inputs: tf.Tensor) -> List[tf.Tensor]:
        settings = {
            "normalizer_fn": batch_norm,
            "normalizer_params": {"scale": True, "decay": 0.9},
            "activation_fn": tf.nn.relu6,
            "weights_regularizer": slim.l2_regularizer(1e-4),
        }
        first = slim.conv2d(inputs, 16, 5, stride=4, scope="First", **settings)
        return [first, slim.conv2d(first, 16, 3, stride=2, scope="Second", **settings)]


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every SSD configuration describe it, whatever its `feature_extractor` says."""
    monkeypatch.setattr(ssd, "make_extractor", lambda *_: SmallExtractor())
