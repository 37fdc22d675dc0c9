"""Two-stage detectors through the model_fn and the runner."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import numpy as np
import pytest

from estimator_det.compat import estimator, tf, tf1
from inputs import schema
from model_fn.checks.metric_names import metric_names
from model_fn.model_fn import create_model_fn
from tests.detectors.configs import labels_of
from tests.detectors.two_stage import configs
from tests.model_fn import fake

pytestmark = pytest.mark.usefixtures("small_network")
ModeKeys = estimator.ModeKeys
CONTEXT = """context_config {
  max_num_context_features: 3 context_feature_length: 5 attention_bottleneck_dimension: 4
}"""
TRAINING = """
train_config { optimizer { momentum_optimizer { learning_rate { constant_learning_rate {
  learning_rate: 0.01 } } } } }
"""


def _batch() -> Tuple[Dict[str, tf.Tensor], Dict[str, tf.Tensor]]:
    """Two images of 64 x 64 pixels with two boxes each, and a row of padding."""
    labels = configs.groundtruth(padding=1)
    random = np.random.default_rng(0)
    features = {
        schema.IMAGE: tf.constant(random.normal(size=[2, 64, 64, 3]).astype(np.float32)),
        schema.TRUE_IMAGE_SHAPE: tf.constant([[64, 64, 3]] * 2),
        schema.HASH: tf.constant([1, 2]),
    }
    return features, {**labels_of(labels), schema.MASKS: labels.masks}


def _config(overrides: str = configs.MASKS) -> Any:
    config = fake.pipeline_config(TRAINING)
    config.model.CopyFrom(configs.small_config(overrides))
    return config


def test_training_steps_lower_the_loss_in_a_graph_whose_size_does_not_depend_on_the_batch():
    counts = []
    for batch in (1, 2):
        with tf.Graph().as_default() as graph:
            tf1.set_random_seed(0)
            tf1.train.get_or_create_global_step()
            features, labels = (
                {key: tensor[:batch] for key, tensor in part.items()} for part in _batch()
            )
            assert features[schema.IMAGE].shape[0] == labels[schema.MASKS].shape[0] == batch
            features[schema.CONTEXT_FEATURES] = tf.random.normal([batch, 3, 5], seed=1)
            features[schema.VALID_CONTEXT_SIZE] = tf.fill([batch], 3)
            config = _config(configs.MASKS + CONTEXT)
            spec = create_model_fn(config)(features, labels, ModeKeys.TRAIN, {})
            counts.append(len(graph.get_operations()))
            assert any("AttentionBlock" in v.op.name for v in tf1.trainable_variables())
    assert counts[0] == counts[1]
    with graph.as_default(), tf1.Session() as session:  # of two images
        session.run(tf1.global_variables_initializer())
        losses = [session.run([spec.loss, spec.train_op])[0] for _ in range(6)]
        assert session.run(tf1.train.get_global_step()) == 6
        assert np.isfinite(losses).all() and losses[-1] < losses[0]


SETS = [
    "coco_detection_metrics",
    "coco_mask_metrics",
    "coco_panoptic_metrics",
    "pascal_voc_detection_metrics",
    "weighted_pascal_voc_instance_segmentation_metrics",
    "open_images_V2_detection_metrics",
    "oid_challenge_detection_metrics",
    "oid_challenge_segmentation_metrics",
]


def test_evaluation_and_prediction():
    config = _config()
    config.eval_config.metrics_set[:] = SETS
    model_fn = create_model_fn(config)
    with tf.Graph().as_default(), tf1.Session() as session:
        spec = model_fn(*_batch(), ModeKeys.EVAL, {})
        ops = spec.eval_metric_ops
        second = {
            f"BoxClassifierLoss/{kind}" for kind in ("localization", "classification", "mask")
        }
        terms = {"RPNLoss/localization", "RPNLoss/objectness", *second, "total"}
        assert {f"Loss/{term}_loss" for term in terms} <= set(ops)
        # Boxes and masks of eight sets, in one pass over the batch.
        names = set(metric_names(config)) - {"loss", "global_step"}
        assert names <= set(ops)
        of_sets = {name for name in names if not name.startswith(("Loss/", "learning_rate"))}
        assert len({ops[name][1] for name in of_sets}) == 1
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        session.run(ops["NumTotalClasses"][1])
        values = session.run({name: ops[name][0] for name in of_sets})
        assert values["NumTotalClasses"] == 2
        assert spec.predictions["detection_masks"].shape == (2, 5, 6, 5)
    with tf.Graph().as_default():
        spec = model_fn(_batch()[0], None, ModeKeys.PREDICT, {})
        served = spec.export_outputs["serving_default"].outputs
        assert {"detection_boxes", "detection_masks", "raw_detection_scores"} <= set(served)


def test_proposals_are_evaluated_regardless_of_class():
    config = _config("number_of_stages: 1")
    config.eval_config.metrics_set[:] = ["coco_detection_metrics"]
    config.eval_config.include_metrics_per_category = True
    with tf.Graph().as_default():
        spec = create_model_fn(config)(*_batch(), ModeKeys.EVAL, {})
    names = [name for name in spec.eval_metric_ops if "PerformanceByCategory" in name]
    assert names == ["DetectionBoxes_PerformanceByCategory/mAP/object"]
