"""Detectors on a batch of one image whose size is known, as a reader with `drop_remainder` has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from estimator_det.boxes.matching import MATCHERS
from estimator_det.compat import tf, tf1
from estimator_det.detectors import Groundtruth
from tests.detectors import configs as ssd
from tests.detectors.two_stage import configs as two_stage
from tests.graphs import evaluate


def _check(detector: Any, labels: Groundtruth) -> None:
    """Loss, gradient and detections of one image; the detections have static shapes."""
    one = {name: rows[:1] for name, rows in labels._asdict().items() if rows is not None}
    with tf.Graph().as_default():
        tf1.set_random_seed(1)
        images = tf1.placeholder_with_default(np.zeros([1, 64, 64, 3], np.float32), [1, 64, 64, 3])
        inputs, shapes = detector.preprocess(images)
        truth = Groundtruth(**{name: tf.constant(rows.numpy()) for name, rows in one.items()})
        predictions = detector.predict(inputs, shapes, truth)
        loss = tf.add_n(list(detector.loss(predictions, truth).terms.values()))
        gradients = tf1.gradients(loss, tf1.trainable_variables())
        assert any(gradient is not None for gradient in gradients)
        detections = detector.postprocess(predictions, shapes)
        assert detections.boxes.shape == [1, 5, 4] and detections.num.shape == [1]
        assert np.isfinite(evaluate(loss))


@pytest.mark.parametrize("kind", sorted(MATCHERS))
@pytest.mark.usefixtures("small_network")
def test_ssd(kind):
    _check(ssd.small_detector(f"matcher {{ {kind} {{}} }}"), ssd.groundtruth())


@pytest.mark.parametrize("overrides", [two_stage.MASKS, two_stage.RFCN], ids=["masks", "rfcn"])
def test_two_stage(overrides):
    _check(two_stage.small_detector(overrides), two_stage.groundtruth())
