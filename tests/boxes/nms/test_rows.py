from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from estimator_det.boxes.coders import CenterSizeCoder
from estimator_det.boxes.nms import multiclass, rows
from estimator_det.compat import tf

CODER = CenterSizeCoder(10.0, 10.0, 5.0, 5.0)
NUM_CLASSES = 4


def _scene(own_boxes: bool) -> rows.CodedBoxes:
    random = np.random.default_rng(5)
    low = random.uniform(0, 0.7, [2, 30, 2])
    anchors = np.concatenate([low, low + random.uniform(0.05, 0.5, [2, 30, 2])], axis=2)
    codes = random.normal(0, 2, [2, 30, NUM_CLASSES if own_boxes else 1, 4])
    return rows.CodedBoxes(tf.constant(codes, tf.float32), tf.constant(anchors, tf.float32), CODER)


@pytest.mark.parametrize("own_boxes", [True, False])
@pytest.mark.parametrize(
    "changes",
    [{}, {"class_agnostic": True}, {"soft_sigma": 0.4}, {"static_shapes": True}],
    ids=["hard", "class_agnostic", "soft", "static"],
)
def test_coded_boxes_give_what_decoded_ones_do(own_boxes: bool, changes: dict) -> None:
    coded = _scene(own_boxes)
    scores = np.random.default_rng(6).uniform(0, 1, [2, 30, NUM_CLASSES]).astype(np.float32)
    options = dataclasses.replace(multiclass.NmsOptions(0.2, 0.3, 9, 40), **changes)
    # Some boxes are outside of it; the second image has fewer anchors.
    more = {
        "clip_windows": tf.constant([[0.2, 0.2, 0.8, 0.9], [0.5, 0.0, 1.0, 0.6]]),
        "num_valid": tf.constant([30, 17]),
    }
    scores = tf.constant(scores)
    result = multiclass.multiclass_nms(coded, scores, options, **more)
    wanted = multiclass.multiclass_nms(coded.decode(), scores, options, **more)
    assert 2 < result.num[1] < result.num[0] <= 40
    np.testing.assert_array_equal(result.anchor_indices, wanted.anchor_indices)
    np.testing.assert_array_equal(result.classes, wanted.classes)
    np.testing.assert_allclose(result.boxes, wanted.boxes, rtol=1e-6)


@pytest.mark.parametrize("own_boxes", [True, False])
def test_only_what_is_picked_is_decoded(own_boxes: bool) -> None:
    coded = _scene(own_boxes)
    anchors, classes = tf.constant([[3, 29, 3], [0, 1, 2]]), tf.constant([[0, 3, 1], [2, 2, 0]])
    picked = rows.gather_picks(coded, anchors, classes)
    whole = coded.decode()
    assert coded.shape == whole.shape
    np.testing.assert_allclose(picked, rows.gather_picks(whole, anchors, classes), rtol=1e-6)
    select_classes = coded.select_classes(tf.fill([2, 30], 2)).decode()
    np.testing.assert_allclose(
        select_classes[:, :, 0], whole[:, :, 2 if own_boxes else 0], rtol=1e-6
    )
