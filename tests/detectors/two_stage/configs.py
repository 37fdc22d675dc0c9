"""A small two-stage detector for tests: 64 x 64 pixels, a network of two layers."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from estimator_det.compat import tf
from estimator_det.detectors import Groundtruth, make_detector
from estimator_det.detectors.two_stage.faster_rcnn import FasterRcnnDetector
from estimator_det.protos import model_pb2
from tests import small_extractor
from tests.detectors import configs

SMALL = """
faster_rcnn {
  num_classes: 2
  image_resizer { fixed_shape_resizer { height: 64 width: 64 } }
  feature_extractor { type: "faster_rcnn_resnet50" }
  first_stage_anchor_generator {
    grid_anchor_generator {
      height: 24 width: 24 height_stride: 8 width_stride: 8 scales: 1 aspect_ratios: [0.5, 1, 2]
    }
  }
  first_stage_box_predictor_conv_hyperparams { initializer { truncated_normal_initializer {} } }
  first_stage_box_predictor_depth: 8
  first_stage_max_proposals: 12
  initial_crop_size: 4
  maxpool_kernel_size: 2
  maxpool_stride: 2
  second_stage_batch_size: 6
  second_stage_box_predictor { mask_rcnn_box_predictor {} }
  second_stage_post_processing {
    batch_non_max_suppression { max_detections_per_class: 5 max_total_detections: 5 }
    score_converter: SOFTMAX
  }
}
"""
MASKS = """
number_of_stages: 3
second_stage_box_predictor {
  mask_rcnn_box_predictor {
    predict_instance_masks: true mask_height: 6 mask_width: 5 mask_prediction_conv_depth: 4
    conv_hyperparams {}
  }
}
"""
RFCN = """
second_stage_box_predictor {
  rfcn_box_predictor { depth: 4 num_spatial_bins_height: 2 crop_height: 4 crop_width: 6 }
}
"""


# In pixels of an image of 100 x 200: 0 to 50 in y, 0 to 100 in x; and the lower right quarter.
LABELS = Groundtruth(
    boxes=tf.constant([[[0.0, 0.0, 50.0, 100.0], [50.0, 100.0, 100.0, 200.0], [0.0] * 4]]),
    classes=tf.constant([[[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]]),
    weights=tf.constant([[1.0, 1.0, 0.0]]),
    valid=tf.constant([[True, True, False]]),
)


# One box in the first image, none in the second; pixels.
SCENE = Groundtruth(
    boxes=tf.constant([[[0.0, 0.0, 40.0, 40.0]], [[0.0] * 4]]),
    classes=tf.constant([[[0.0, 1.0]], [[0.0, 0.0]]]),
    weights=tf.constant([[1.0], [0.0]]),
    valid=tf.constant([[True], [False]]),
)


def small_config(overrides: str = "") -> model_pb2.DetectionModel:
    """The small detector's message with `faster_rcnn { overrides }` merged in."""
    config = text_format.Parse(SMALL, model_pb2.DetectionModel())
    text_format.Merge(f"faster_rcnn {{ {overrides} }}", config)
    return config


def small_detector(overrides: str = "", is_training: bool = True) -> FasterRcnnDetector:
    """The small detector with overrides."""
    with pytest.MonkeyPatch.context() as patch:
        small_extractor.use(patch)
        return make_detector(small_config(overrides), is_training)


def groundtruth(padding: int = 0) -> Groundtruth:
    """Two images with two boxes each and their masks, and `padding` rows of zeros after them."""
    labels = configs.groundtruth(padding)
    masks = tf.random.stateless_uniform([2, 2 + padding, 64, 64], [1, 2]) > 0.5
    return labels._replace(confidences=None, masks=tf.cast(masks, tf.float32))
