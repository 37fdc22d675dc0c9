"""Losses against numbers of the Object Detection API."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import tf
from estimator_det.losses.classification import make_classification_loss
from estimator_det.losses.localization import make_localization_loss
from estimator_det.protos import losses_pb2
from tests.conftest import golden_component

SETTINGS, ARRAYS = golden_component("losses")
CLASSIFICATION = {
    "sigmoid": "weighted_sigmoid {}",
    "focal_g2_a.25": "weighted_sigmoid_focal { gamma: 2 alpha: 0.25 }",
    "focal_g0_anone": "weighted_sigmoid_focal { gamma: 0 }",
    "focal_g1.5_a.75": "weighted_sigmoid_focal { gamma: 1.5 alpha: 0.75 }",
    "softmax": "weighted_softmax {}",
    "softmax_scale4_w3": "weighted_softmax { logit_scale: 4 }",
    "softmax_against_logits": "weighted_logits_softmax {}",
    "softmax_against_logits_scale2": "weighted_logits_softmax { logit_scale: 2 }",
    "bootstrapped_soft_.5": "bootstrapped_sigmoid { alpha: 0.5 }",
    "bootstrapped_hard_.5": "bootstrapped_sigmoid { alpha: 0.5 hard_bootstrap: true }",
    "bootstrapped_soft_.9": "bootstrapped_sigmoid { alpha: 0.9 }",
    "dice": "weighted_dice_classification_loss {}",
    "penalty_reduced_focal": "penalty_reduced_logistic_focal_loss { alpha: 2 beta: 4 }",
}
LOCALIZATION = {
    "l2": "weighted_l2 {}",
    "smooth_l1": "weighted_smooth_l1 {}",
    "smooth_l1_d1": "weighted_smooth_l1 { delta: 1 }",
    "smooth_l1_d0.3": "weighted_smooth_l1 { delta: 0.3 }",
    "iou": "weighted_iou {}",
    "giou": "weighted_giou {}",
}
# Class indices are an argument that no detector gives.
CASES = [name for name in SETTINGS if not name.endswith("_class_indices")]


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    setting, options = SETTINGS[name], {}
    base = name.removesuffix("_masked").removesuffix("_ignore_nan")
    if base in CLASSIFICATION:
        config = text_format.Parse(CLASSIFICATION[base], losses_pb2.ClassificationLoss())
        loss = make_classification_loss(config)
    else:
        loss = make_localization_loss(
            text_format.Parse(LOCALIZATION[base], losses_pb2.LocalizationLoss())
        )
        options["ignore_nan_targets"] = setting.get("ignore_nan_targets", False)
    if "losses_mask" in setting:
        options["losses_mask"] = tf.constant(ARRAYS[setting["losses_mask"]])
    inputs = (tf.constant(ARRAYS[setting[key]]) for key in ("pred", "target", "weights"))
    got = loss(*inputs, **options)
    # The losses of boxes were written as one row.
    np.testing.assert_allclose(got, ARRAYS[name].reshape(got.shape), rtol=1e-5, atol=1e-6)
