"""The accumulator of an evaluation: fed by a graph or in a loop, it returns the same results."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.protos import eval_pb2
from model_fn.evaluation.accumulator import Accumulator, Results, accumulator_ops
from model_fn.evaluation.diagnostics import EVAL_DIAGNOSTICS, chart_summary
from model_fn.evaluation.metrics.base import EvaluatedBatch

CATEGORIES: List[Dict[str, Any]] = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
SETS = ["coco_detection_metrics", "pascal_voc_detection_metrics"]


def _batch(seed: int) -> EvaluatedBatch:
    """Two images with three boxes each, found but for one of the wrong class, and padding."""
    corners = np.random.default_rng(seed).uniform(0, 50, [2, 3, 2]).astype(np.float32)
    boxes = np.concatenate([corners, corners + 30], axis=2)
    classes = np.array([[1, 2, 1], [2, 1, 1]], np.int32)
    detected = classes.copy()
    detected[0, 0] = 2
    return EvaluatedBatch(
        detection_boxes=boxes + 1,
        detection_scores=np.array([[0.9, 0.8, 0.7], [0.6, 0.5, 0.0]], np.float32),
        detection_classes=detected,
        num_detections=np.array([3, 2], np.int32),
        boxes=boxes,
        classes=classes,
        num_boxes=np.array([3, 2], np.int32),
        difficult=np.zeros([2, 3], bool),
    )


def _accumulator() -> Accumulator:
    return Accumulator(eval_pb2.EvalConfig(metrics_set=SETS), CATEGORIES)


@pytest.mark.usefixtures("no_charts")
def test_a_graph_and_a_loop_give_the_same_results() -> None:
    batches = [_batch(seed) for seed in (1, 2)]
    loop = _accumulator()
    for batch in batches:
        loop.add(batch)
    expected = loop.results()
    received: List[Results] = []
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        tensors = EvaluatedBatch(
            *(None if x is None else tf1.placeholder(x.dtype, [None, *x.shape[1:]]) for x in batch)
        )
        ops = accumulator_ops(_accumulator(), tensors, received.append)
        assert len(graph.get_operations()) < 60
        for batch in batches:
            feed = {p: array for p, array in zip(tensors, batch) if p is not None}
            session.run([update for _, update in ops.values()], feed)
        values = session.run({name: value for name, (value, _) in ops.items()})
    (results,) = received
    assert results.metrics == expected.metrics and results.counts == expected.counts
    assert results.counts["images"] == 4 and results.counts["boxes"] == {"cat": 6, "dog": 4}
    assert results.matches.all_classes_merged().num_boxes == 10
    assert results.matches.all_classes_merged().correct.sum() == 8
    assert values.pop(EVAL_DIAGNOSTICS) == chart_summary(results.chart)
    assert values == {name: np.float32(value) for name, value in expected.metrics.items()}
    assert 0 < results.metrics["PascalBoxes_Precision/mAP@0.5IOU"] < 1
