"""Feature extractors of two layers, for runs in which the network is not the point.

Building, differentiating and exporting a MobileNet takes most of the time of a short run.
"""

from __future__ import annotations

import types
from typing import Any, Callable, Dict, List, Tuple

import pytest

from estimator_det.compat import slim, tf, tf1
from estimator_det.detectors import ssd
from estimator_det.detectors.center_net import center_net
from estimator_det.detectors.two_stage import faster_rcnn
from estimator_det.nets.normalization import batch_norm
from estimator_det.nets.object_paths import KERAS

SCOPES = ("Second", "Third", "Fourth", "Fifth", "Sixth")


class SmallExtractor:
    """Feature maps at strides 4 and 8, for `num_layers: 2` and images of 64 pixels.

    Args:
        num_maps: Number of maps; the stride doubles from each to the next.
        stride: Stride of the first map.
    """

    recipe = types.SimpleNamespace(quantizes=True, is_tf2_line=False)

    def __init__(self, num_maps: int = 2, stride: int = 4) -> None:
        self._num_maps, self._stride = num_maps, stride

    def classifier_name(self, name: str) -> str:
        return name

    def extract(self, inputs: tf.Tensor) -> List[tf.Tensor]:
        settings = {
            "normalizer_fn": batch_norm,
            "normalizer_params": {"scale": True, "decay": 0.9},
            "activation_fn": tf.nn.relu6,
            "weights_regularizer": slim.l2_regularizer(1e-4),
        }
        maps = [slim.conv2d(inputs, 16, 5, stride=self._stride, scope="First", **settings)]
        for name in SCOPES[: self._num_maps - 1]:
            maps.append(slim.conv2d(maps[-1], 16, 3, stride=2, scope=name, **settings))
        return maps


class SmallTwoStageExtractor:
    """A feature map at stride 8, and one layer for its crops."""

    recipe = types.SimpleNamespace(is_tf2_line=False)
    stride = 8

    def classifier_name(self, name: str) -> str:
        return name.partition("/")[2]

    def proposal_features(self, images: tf.Tensor) -> Tuple[tf.Tensor]:
        with tf1.variable_scope("FirstStageFeatureExtractor"):
            return (slim.conv2d(images, 8, 9, stride=8, scope="First", **_settings(tf.nn.relu)),)

    def map_sizes(self, height: int, width: int) -> List[Tuple[int, int]]:
        return [(-(-height // self.stride), -(-width // self.stride))]

    def box_features(self, crops: tf.Tensor) -> tf.Tensor:
        with tf1.variable_scope("SecondStageFeatureExtractor", reuse=tf1.AUTO_REUSE):
            return slim.conv2d(crops, 12, 3, scope="Second", **_settings(tf.nn.relu))


class SmallCenterNetExtractor:
    """One feature map at stride 4."""

    normalize = staticmethod(tf.identity)

    def extract(self, inputs: tf.Tensor) -> Tuple[tf.Tensor]:
        with tf1.variable_scope(f"Small{KERAS}"):
            return (slim.conv2d(inputs, 16, 5, stride=4, scope="First", **_settings(tf.nn.relu)),)


def _settings(activation: Callable[[tf.Tensor], tf.Tensor]) -> Dict[str, Any]:
    return {"activation_fn": activation, "weights_regularizer": slim.l2_regularizer(1e-4)}


def use(monkeypatch: pytest.MonkeyPatch, *of_ssd: int) -> None:
    """Makes every configuration describe one of them, regardless of its `feature_extractor`.

    Args:
        of_ssd: Arguments of `SmallExtractor`.
    """
    extractors = (
        (ssd, SmallExtractor(*of_ssd)),
        (faster_rcnn, SmallTwoStageExtractor()),
        (center_net, SmallCenterNetExtractor()),
    )
    for module, extractor in extractors:
        monkeypatch.setattr(module, "make_extractor", lambda *_, made=extractor: made)
