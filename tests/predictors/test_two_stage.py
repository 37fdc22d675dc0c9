"""Heads of two-stage detectors: variables, shapes, and numbers by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import slim, tf, tf1
from estimator_det.errors import ConfigError
from estimator_det.nets.hyperparams import no_scope
from estimator_det.predictors import two_stage as heads
from estimator_det.protos import box_predictor_pb2
from tests.graphs import evaluate, shapes


@pytest.mark.parametrize(
    ("text", "keep"),
    [
        ("use_dropout: false dropout_keep_probability: 0.5", 1.0),
        ("use_dropout: true dropout_keep_probability: 0.75", 0.75),
        ("use_dropout: true", 0.5),
        ("", 1.0),
    ],
)
def test_region_box_head_drops_if_asked_to(text, keep):
    config = text_format.Parse(text, box_predictor_pb2.MaskRCNNBoxPredictor())
    head = heads.make_region_box_head(config, 2, is_training=True)
    assert head.dropout_keep_probability == keep and head.is_training


def test_region_box_head_as_configured():
    text = """share_box_across_classes: true fc_hyperparams { op: FC initializer {
        random_normal_initializer { mean: -2 stddev: 0 } } }"""
    config = text_format.Parse(text, box_predictor_pb2.MaskRCNNBoxPredictor())
    with tf.Graph().as_default():
        head = heads.make_region_box_head(config, 3, is_training=False)
        raw = head.predict(tf.ones([2, 1, 1, 4]))
        codes, logits = evaluate([raw.box_encodings, raw.class_logits])
    np.testing.assert_array_equal(codes, np.full([2, 1, 4], -8.0))  # one box for all classes
    np.testing.assert_array_equal(logits, np.full([2, 4], -8.0))


def _masks(head: heads.MaskHead, features: np.ndarray, last: float = 1.0) -> np.ndarray:
    """Masks where each convolution passes on its only channel, the last one times `last`."""
    with tf.Graph().as_default(), tf1.Session() as session:
        masks = head.predict(tf.constant(features))
        session.run(tf1.global_variables_initializer())
        passes = np.zeros([3, 3, 1, 1])
        passes[1, 1] = 1.0
        kernels = [v for v in tf1.global_variables() if v.op.name.endswith("weights")]
        for kernel in kernels:
            kernel.load(passes * (last if kernel is kernels[-1] else 1.0), session)
        return session.run(masks)[0, 0]


def test_masks_are_resized_from_corner_to_corner():
    features = np.float32([[[[0.0], [8.0]], [[16.0], [24.0]]]])
    found = _masks(heads.MaskHead(1, no_scope, 3, 5, conv_depth=1), features)
    assert found.tolist() == [[0, 2, 4, 6, 8], [8, 10, 12, 14, 16], [16, 18, 20, 22, 24]]
    negative = _masks(heads.MaskHead(1, no_scope, 2, 2, conv_depth=1), features, last=-1.0)
    assert negative.tolist() == [[0, -8], [-16, -24]]  # Logits have no activation.
    repeated = _masks(heads.MaskHead(1, no_scope, 2, 4, 1, convolve_first=True), features)
    assert repeated.tolist() == [[0, 0, 8, 8], [16, 16, 24, 24]]


@pytest.mark.parametrize("convolve_first", [True, False])
def test_mask_head(convolve_first):
    with tf.Graph().as_default():
        head = heads.MaskHead(3, no_scope, 8, 4, 6, num_layers=3, convolve_first=convolve_first)
        assert head.predict(tf.zeros([5, 4, 4, 9])).shape == (5, 3, 8, 4)
        kernels = list(shapes("weights").values())
        more = [[3, 3, 6, 6]] if convolve_first else []
        assert kernels == [[3, 3, 9, 6], [3, 3, 6, 6], *more, [3, 3, 6, 3]]
        last = list(shapes("weights"))[-1]
        assert last == f"SecondStageBoxPredictor/Conv_{len(kernels) - 1}/weights"


def test_mask_head_as_configured():
    text = """mask_height: 7 mask_width: 5 mask_prediction_conv_depth: 9
        mask_prediction_num_conv_layers: 4 masks_are_class_agnostic: true
        convolve_then_upsample_masks: true"""
    config = text_format.Parse(text, box_predictor_pb2.MaskRCNNBoxPredictor())
    head = heads.make_mask_head(config, 3, is_training=False)
    assert head == heads.MaskHead(3, head.conv_scope, 7, 5, 9, 4, True, True)


def test_chosen_depth():
    # The depth recorded for Mask R-CNN on ResNet, 90 classes.
    assert heads.default_depth(2048, 90) == 256
    assert heads.default_depth(1024, 1) == 16
    assert heads.default_depth(1024, 90) == 256  # 2 to the power of 7.9


def test_rfcn_head():
    with tf.Graph().as_default():
        head = heads.RfcnHead(2, no_scope, num_bins=(3, 2), depth=5, crop_size=(6, 4))
        raw = head.predict(tf.zeros([2, 6, 6, 8]), tf.zeros([2, 7, 4]))
        assert raw.box_encodings.shape == (14, 2, 4) and raw.class_logits.shape == (14, 3)
        assert shapes("weights") == {
            "SecondStageBoxPredictor/reduce_depth/weights": [1, 1, 8, 5],
            "SecondStageBoxPredictor/refined_locations/weights": [1, 1, 5, 48],
            "SecondStageBoxPredictor/class_predictions/weights": [1, 1, 5, 18],
        }


def test_predictions_of_rfcn_may_be_negative():
    def negative_kernels() -> Any:
        return slim.arg_scope([slim.conv2d], weights_initializer=tf1.constant_initializer(-1.0))

    head = heads.RfcnHead(2, negative_kernels, num_bins=(3, 2), depth=5, crop_size=(6, 4))
    with tf.Graph().as_default():
        whole = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
        codes, logits = evaluate(list(head.predict(-tf.ones([1, 6, 6, 8]), whole)))
    np.testing.assert_allclose(codes, np.full([1, 2, 4], -5 * 8.0))
    np.testing.assert_allclose(logits, np.full([1, 3], -5 * 8.0))


def test_dropout_drops_in_training_only():
    for is_training in (True, False):
        with tf.Graph().as_default(), tf1.Session() as session:
            head = heads.RegionBoxHead(
                2, no_scope, dropout_keep_probability=0.5, is_training=is_training
            )
            logits = head.predict(tf.ones([40, 2, 2, 8])).class_logits
            session.run(tf1.global_variables_initializer())
            spread = np.ptp(session.run(logits), axis=0).max()
        assert (spread > 1e-3) == is_training


def test_mask_head_repeats_whole_cells():
    head = heads.MaskHead(3, no_scope, 9, 8, 6, convolve_first=True)
    with tf.Graph().as_default(), pytest.raises(ConfigError, match="given: 9 and 8"):
        head.predict(tf.zeros([5, 4, 4, 9]))
