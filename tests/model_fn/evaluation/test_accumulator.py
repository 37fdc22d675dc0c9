"""The accumulator of an evaluation: fed by a graph or in a loop, it returns the same results."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.detectors.base import Detections, Groundtruth
from estimator_det.protos import eval_pb2
from inputs import schema
from model_fn.evaluation import eval_ops
from model_fn.evaluation.accumulator import Accumulator, Results
from model_fn.evaluation.diagnostics import EVAL_DIAGNOSTICS, chart_summary
from model_fn.evaluation.metrics.base import EvaluatedBatch
from tests.model_fn.evaluation.metrics import golden

SETS = ["coco_detection_metrics", "pascal_voc_detection_metrics"]


def outputs_of(batch: EvaluatedBatch) -> Any:
    """Detections and groundtruth in images of one pixel."""
    detections = Detections(
        batch.detection_boxes,
        batch.detection_scores,
        np.float32(batch.detection_classes - 1),
        np.float32(batch.num_detections),
        raw_boxes=None,
        raw_scores=None,
    )
    groundtruth = Groundtruth(
        batch.boxes,
        np.eye(golden.NUM_CLASSES, dtype=np.float32)[batch.classes - 1],
        weights=None,
        valid=np.arange(batch.classes.shape[1]) < batch.num_boxes[:, np.newaxis],
        is_crowd=batch.is_crowd,
        difficult=batch.difficult,
    )
    return tf.nest.flatten([detections, groundtruth]), [detections, groundtruth]


@pytest.mark.usefixtures("no_charts")
def test_a_graph_and_a_loop_give_the_same_results() -> None:
    config = eval_pb2.EvalConfig(metrics_set=SETS)
    loop = Accumulator(config, golden.CATEGORIES)
    received: List[Results] = []
    images = [f"seg{k}" for k in range(8)]
    batches = [golden.make_batch(x, ["crowd", "difficult"], []) for x in (images[:4], images[4:])]
    for batch in batches:
        loop.add(batch)
    expected = loop.results()
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        arrays, structure = outputs_of(batches[0])
        inputs = [None if x is None else tf1.placeholder(x.dtype, [None] * x.ndim) for x in arrays]
        features = {schema.IMAGE: tf.ones([4, 1, 1, 3]), schema.TRUE_IMAGE_SHAPE: tf.ones([4, 3])}
        ops = eval_ops.evaluation_ops(
            *tf.nest.pack_sequence_as(structure, inputs),
            features,
            eval_config=config,
            categories=golden.CATEGORIES,
            handle_results=received.append,
        )
        assert len(graph.get_operations()) < 60
        for _ in range(2):  # two evaluations
            for batch in batches:
                feed = {p: x for p, x in zip(inputs, outputs_of(batch)[0]) if p is not None}
                session.run([update for _, update in ops.values()], feed)
            values = session.run({name: value for name, (value, _) in ops.items()})
    assert [results.metrics for results in received] == [expected.metrics] * 2
    results = received[-1]
    assert results.details == expected.details and results.details["counts"]["images"] == 8
    assert results.matches.all_classes_merged().num_boxes > 0
    assert values.pop(EVAL_DIAGNOSTICS) == chart_summary(results.chart)
    assert values == {name: np.float32(value) for name, value in expected.metrics.items()}
    assert 0 < results.metrics["PascalBoxes_Precision/mAP@0.5IOU"] < 1
