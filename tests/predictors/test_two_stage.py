"""Heads of two-stage detectors: variables, shapes, and numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.config.text import ConfigError
from estimator_det.nets.hyperparams import no_scope
from estimator_det.predictors import box_head, mask_head, rfcn, rpn


def shapes() -> dict:
    return {v.op.name: v.shape.as_list() for v in tf1.global_variables() if "weights" in v.op.name}


def test_proposal_head() -> None:
    with tf.Graph().as_default():
        head = rpn.ProposalHead(no_scope, depth=7, kernel_size=5, atrous_rate=2)
        net, raw = head.predict(tf.zeros([2, 6, 8, 3]), [4])
        assert net.shape == (2, 6, 8, 7)
        assert raw.box_encodings.shape == (2, 192, 4) and raw.class_logits.shape == (2, 192, 2)
        assert shapes() == {
            "Conv/weights": [5, 5, 3, 7],
            "FirstStageBoxPredictor/BoxEncodingPredictor/weights": [1, 1, 7, 16],
            "FirstStageBoxPredictor/ClassPredictor/weights": [1, 1, 7, 8],
        }


@pytest.mark.parametrize("share", [True, False])
def test_region_box_head(share: bool) -> None:
    with tf.Graph().as_default():
        raw = box_head.RegionBoxHead(5, no_scope, share).predict(tf.ones([6, 3, 3, 8]))
        assert raw.box_encodings.shape == (6, 1 if share else 5, 4)
        assert raw.class_logits.shape == (6, 6)


def test_dropout_drops_in_training_only() -> None:
    for is_training in (True, False):
        with tf.Graph().as_default(), tf1.Session() as session:
            head = box_head.RegionBoxHead(
                2, no_scope, dropout_keep_probability=0.5, is_training=is_training
            )
            logits = head.predict(tf.ones([40, 2, 2, 8])).class_logits
            session.run(tf1.global_variables_initializer())
            spread = np.ptp(session.run(logits), axis=0).max()
        assert (spread > 1e-3) == is_training


@pytest.mark.parametrize("convolve_first", [True, False])
def test_mask_head(convolve_first: bool) -> None:
    with tf.Graph().as_default():
        head = mask_head.MaskHead(3, no_scope, 8, 4, 6, num_layers=3, convolve_first=convolve_first)
        assert head.predict(tf.zeros([5, 4, 4, 9])).shape == (5, 3, 8, 4)
        kernels = list(shapes().values())
        more = [[3, 3, 6, 6]] if convolve_first else []
        assert kernels == [[3, 3, 9, 6], [3, 3, 6, 6], *more, [3, 3, 6, 3]]
        assert list(shapes())[-1] == f"SecondStageBoxPredictor/Conv_{len(kernels) - 1}/weights"


def test_mask_head_repeats_whole_cells() -> None:
    head = mask_head.MaskHead(3, no_scope, 9, 8, 6, convolve_first=True)
    with tf.Graph().as_default(), pytest.raises(ConfigError, match="got 9 and 8"):
        head.predict(tf.zeros([5, 4, 4, 9]))


def test_chosen_depth() -> None:
    # The depth recorded for Mask R-CNN on ResNet, 90 classes.
    assert mask_head.chosen_depth(2048, 90) == 256
    assert mask_head.chosen_depth(1024, 1) == 16


def test_rfcn_head() -> None:
    with tf.Graph().as_default():
        head = rfcn.RfcnHead(2, no_scope, num_bins=(3, 2), depth=5, crop_size=(6, 4))
        raw = head.predict(tf.zeros([2, 6, 6, 8]), tf.zeros([2, 7, 4]))
        assert raw.box_encodings.shape == (14, 2, 4) and raw.class_logits.shape == (14, 3)
        assert shapes() == {
            "SecondStageBoxPredictor/reduce_depth/weights": [1, 1, 8, 5],
            "SecondStageBoxPredictor/refined_locations/weights": [1, 1, 5, 48],
            "SecondStageBoxPredictor/class_predictions/weights": [1, 1, 5, 18],
        }


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: box_head.RegionBoxHead(2, no_scope, dropout_keep_probability=0), "above 0"),
        (lambda: mask_head.MaskHead(2, no_scope, height=0), "mask_height: must be 1 or more"),
        (lambda: mask_head.MaskHead(2, no_scope, num_layers=1), "num_conv_layers: must be 2"),
        (lambda: rfcn.RfcnHead(2, no_scope, depth=0), "must be 1 or more; got 3, 3 and 0"),
        (lambda: rpn.ProposalHead(no_scope, kernel_size=0), "kernel_size: must be 1 or more"),
    ],
)
def test_out_of_range(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]
