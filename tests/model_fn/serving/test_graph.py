import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.detectors.base import BatchDetections
from model_fn.serving import graph

pytestmark = pytest.mark.optimized


def _detections():
    return BatchDetections(
        boxes=tf.zeros([2, 5, 4]),
        scores=tf.zeros([2, 5]),
        classes=tf.constant(np.arange(10, dtype=np.float32).reshape(2, 5)),
        num=tf.constant([5, 3]),
        raw_boxes=tf.zeros([2, 7, 4]),
        raw_scores=tf.zeros([2, 7, 4]),
        anchor_indices=tf.zeros([2, 5]),
    )


def test_outputs_are_named_float32_and_count_classes_from_1():
    with tf.Graph().as_default(), tf.name_scope("somewhere"):
        outputs = graph.named_outputs(_detections())
        further = graph.named_outputs(_detections(), "tf_example_outputs")
        of_detections = {f"detection_{n}" for n in ("boxes", "scores", "classes", "anchor_indices")}
        raw = {"raw_detection_boxes", "raw_detection_scores"}
        assert set(outputs) == {"num_detections", *of_detections, *raw}
        for key, tensor in outputs.items():
            assert tensor.name == f"{key}:0"
            assert tensor.dtype == tf.float32
            assert further[key].name == f"tf_example_outputs/{key}:0"
        assert outputs["raw_detection_scores"].shape == [2, 7, 4]
        with tf1.Session() as session:
            classes = session.run(outputs["detection_classes"])
    np.testing.assert_array_equal(classes, np.arange(1, 11).reshape(2, 5))


def test_a_taken_name_is_an_error():
    with tf.Graph().as_default():
        tf.constant(0.0, name="detection_boxes")
        with pytest.raises(ValueError, match="detection_boxes"):
            graph.named_outputs(_detections())
