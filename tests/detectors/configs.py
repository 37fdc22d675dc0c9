"""A small single-shot detector for tests: 64 x 64 pixels, thin MobileNet v1, two feature maps."""

from __future__ import annotations

from typing import Dict, Tuple

from google.protobuf import text_format

from estimator_det.compat import tf
from estimator_det.detectors import Groundtruth, TrainableDetector, make_detector
from estimator_det.protos import model_pb2
from inputs import schema

SMALL_SSD = """
ssd {
  num_classes: 2
  image_resizer { fixed_shape_resizer { height: 64 width: 64 } }
  feature_extractor {
    type: "ssd_mobilenet_v1" depth_multiplier: 0.1 min_depth: 4 num_layers: 2
    conv_hyperparams {
      regularizer { l2_regularizer { weight: 0.001 } } batch_norm { scale: true }
    }
  }
  box_coder { faster_rcnn_box_coder {} }
  matcher { argmax_matcher { force_match_for_each_row: true } }
  similarity_calculator { iou_similarity {} }
  box_predictor {
    convolutional_box_predictor {
      use_dropout: false
      conv_hyperparams { regularizer { l2_regularizer { weight: 0.001 } } }
    }
  }
  anchor_generator { ssd_anchor_generator { num_layers: 2 aspect_ratios: 1 } }
  post_processing {
    batch_non_max_suppression { max_detections_per_class: 5 max_total_detections: 5 }
    score_converter: SIGMOID
  }
  loss {
    classification_loss { weighted_sigmoid {} }
    localization_loss { weighted_smooth_l1 {} }
  }
}
"""


def small_config(overrides: str = "") -> model_pb2.DetectionModel:
    """The small detector's message with `ssd { overrides }` merged in."""
    config = text_format.Parse(SMALL_SSD, model_pb2.DetectionModel())
    text_format.Merge(f"ssd {{ {overrides} }}", config)
    return config


def small_detector(overrides: str = "", is_training: bool = True) -> TrainableDetector:
    """The small detector with overrides."""
    return make_detector(small_config(overrides), is_training)


def labels_of(groundtruth: Groundtruth) -> Dict[str, tf.Tensor]:
    """The labels of a batch with this groundtruth, two boxes in each image."""
    return {
        schema.NUM_BOXES: tf.constant([2, 2]),
        schema.BOXES: groundtruth.boxes,
        schema.CLASSES: groundtruth.classes,
        schema.WEIGHTS: groundtruth.weights,
    }


def shapes_of_detections(num: int, num_raw: int, num_columns: int) -> Dict[str, Tuple[int, ...]]:
    """Shapes of the detections of two images, whose boxes have so many scores."""
    return {
        "detection_boxes": (2, num, 4),
        "detection_scores": (2, num),
        "detection_classes": (2, num),
        "num_detections": (2,),
        "raw_detection_boxes": (2, num_raw, 4),
        "raw_detection_scores": (2, num_raw, num_columns),
        "detection_multiclass_scores": (2, num, num_columns),
    }


def groundtruth(padding: int = 0) -> Groundtruth:
    """Two images with two boxes each, and `padding` rows of zeros after them."""
    boxes = tf.constant(
        [[[0.1, 0.1, 0.6, 0.5], [0.3, 0.4, 0.9, 0.9]], [[0.0, 0.0, 0.4, 0.4], [0.5, 0.2, 1.0, 0.8]]]
    )
    classes = tf.one_hot([[0, 1], [1, 1]], 2)
    rows = [[0, 0], [0, padding]]
    return Groundtruth(
        boxes=tf.pad(boxes, [*rows, [0, 0]]),
        classes=tf.pad(classes, [*rows, [0, 0]]),
        weights=tf.pad(tf.ones([2, 2]), rows),
        valid=tf.pad(tf.ones([2, 2], tf.bool), rows),
        confidences=tf.pad(classes, [*rows, [0, 0]]),
    )
