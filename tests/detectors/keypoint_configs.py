"""A small CenterNet that finds figures with three keypoints, and balls without any."""

from __future__ import annotations

import pathlib

from google.protobuf import text_format

from estimator_det.protos import model_pb2

LABEL_MAP = pathlib.Path(__file__).parent / "keypoints.pbtxt"
SIDE = 64  # pixels of an image
TASK = """keypoint_estimation_task { task_name: "pose" keypoint_class_name: "figure"
  loss { localization_loss { l1_localization_loss {} }
         classification_loss { penalty_reduced_logistic_focal_loss { alpha: 2 beta: 4 } } }
  keypoint_label_to_std { key: "head" value: 0.5 }
  offset_peak_radius: 1 }"""


def small_config(text: str = "", keypoints: str = TASK) -> model_pb2.DetectionModel:
    """A model of two classes; `text` is merged into it."""
    config = text_format.Parse(
        f"""center_net {{ num_classes: 2
          feature_extractor {{ type: "mobilenet_v2_fpn" depth_multiplier: 0.1 }}
          image_resizer {{ fixed_shape_resizer {{ height: {SIDE} width: {SIDE} }} }}
          object_center_params {{ max_box_predictions: 4 classification_loss {{
            penalty_reduced_logistic_focal_loss {{ alpha: 2 beta: 4 }} }} }}
          object_detection_task {{ localization_loss {{ l1_localization_loss {{}} }} }}
          {keypoints} }}""",
        model_pb2.DetectionModel(),
    )
    if keypoints:
        config.center_net.keypoint_label_map_path = str(LABEL_MAP)
    text_format.Merge(text, config.center_net)
    return config
