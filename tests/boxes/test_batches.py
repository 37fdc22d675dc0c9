"""Matchers and suppression: batches of known size, of unknown size, and of one image."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

import numpy as np
import pytest

from estimator_det.boxes.assign import TargetAssigner
from estimator_det.boxes.coders import CenterSizeCoder
from estimator_det.boxes.geometry import IOU_SIMILARITY
from estimator_det.boxes.matching import MATCHERS, make_matcher
from estimator_det.boxes.nms import multiclass
from estimator_det.compat import tf, tf1
from estimator_det.protos import matcher_pb2

ROWS, ANCHORS, CLASSES = 4, 7, 3
# Sizes known when the graph is built: images, then groundtruth rows.
SIZES = [(3, ROWS), (1, ROWS), (1, 1), (1, None), (None, ROWS), (None, None)]
ids = "{0[0]}x{0[1]}".format


def _random(shape: Sequence[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, np.float32)


def _boxes(shape: Sequence[int], seed: int = 0) -> np.ndarray:
    low, size = np.split(_random([*shape, 4], seed), 2, axis=-1)
    return np.concatenate([low, low + 0.1 + size], axis=-1)


def in_graph(function: Callable[..., Any], shapes: Sequence[Any], values: Sequence[Any]) -> Any:
    """Results of a function in a graph whose placeholders have these shapes, checked twice.

    The values must be the same in eager mode, and the batch size of each result must be as static
    as the batch size of the first input.
    """
    with tf.Graph().as_default() as graph:
        inputs = [tf1.placeholder(value.dtype, shape) for value, shape in zip(values, shapes)]
        results = tf.nest.flatten(function(*inputs))
    assert [result.shape[0] for result in results] == [shapes[0][0]] * len(results)
    with tf1.Session(graph=graph) as session:
        found = session.run(results, dict(zip(inputs, values)))
    eager = tf.nest.flatten(function(*map(tf.constant, values)))
    for result, got, wanted in zip(results, found, eager):
        assert result.shape.rank == wanted.shape.rank
        np.testing.assert_array_equal(got, wanted)
    return results


@pytest.mark.parametrize("size", SIZES, ids=ids)
@pytest.mark.parametrize("kind", sorted(MATCHERS))
@pytest.mark.parametrize("with_confidences", [False, True])
def test_targets(kind, size, with_confidences):
    batch, rows = size
    config = matcher_pb2.Matcher()
    getattr(config, kind).SetInParent()
    assigner = TargetAssigner(IOU_SIMILARITY, make_matcher(config), CenterSizeCoder())
    assign = assigner.assign_confidences if with_confidences else assigner.assign
    anchors = _boxes([ANCHORS], 1)
    label = [1.0, *[0.0] * CLASSES]
    lead = [batch or 2, rows or 2]
    classes = np.pad(_random([*lead, CLASSES]), [[0, 0], [0, 0], [1, 0]])
    values = [_boxes(lead), classes, np.ones(lead, np.float32), np.ones(lead, bool)]
    shapes = [[batch, rows, 4], [batch, rows, CLASSES + 1], [batch, rows], [batch, rows]]

    def run(boxes: tf.Tensor, classes: tf.Tensor, *rest: tf.Tensor) -> Any:
        return assign(anchors, boxes, classes, label, *rest)

    columns = [[CLASSES + 1], [CLASSES + 1 if with_confidences else 1], [4], [], []]
    found = [target.shape.as_list() for target in in_graph(run, shapes, values)]
    assert found == [[batch, ANCHORS, *numbers] for numbers in columns]


@pytest.mark.parametrize("batch", [3, 1, None])
@pytest.mark.parametrize(
    ("static_shapes", "soft_sigma", "class_agnostic"), [(False, 0.0, True), (True, 0.3, False)]
)
def test_suppression(static_shapes, soft_sigma, class_agnostic, batch):
    options = multiclass.NmsOptions(
        0.1, 0.5, 5, 6, class_agnostic, soft_sigma, static_shapes=static_shapes
    )

    def suppress(boxes: tf.Tensor, scores: tf.Tensor, windows: tf.Tensor) -> List[tf.Tensor]:
        fields = {"scores": scores}
        result = multiclass.multiclass_nms(boxes, scores, options, windows, fields=fields)
        return list(tf.nest.flatten(result._replace(masks=())))

    size = batch or 2
    windows = np.tile(np.float32([0, 0, 1, 1]), [size, 1])
    values = [_boxes([size, ANCHORS, 1]), _random([size, ANCHORS, CLASSES], 1), windows]
    shapes = [[batch, ANCHORS, 1, 4], [batch, ANCHORS, CLASSES], [batch, 4]]
    found = [result.shape.as_list() for result in in_graph(suppress, shapes, values)]
    assert found == [[batch, *more] for more in ([6, 4], [6], [6], [], [6, CLASSES], [6])]
