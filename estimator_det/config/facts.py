"""Questions about a configuration that more than one field answers."""

from __future__ import annotations

from typing import Iterator, Optional, Tuple

from estimator_det.protos import input_reader_pb2, model_pb2, pipeline_pb2


def readers(
    config: pipeline_pb2.TrainEvalPipelineConfig,
) -> Iterator[Tuple[str, input_reader_pb2.InputReader]]:
    """(path, reader) of every input reader, the training reader first."""
    if config.HasField("train_input_reader"):
        yield "train_input_reader", config.train_input_reader
    for index, reader in enumerate(config.eval_input_reader):
        yield f"eval_input_reader[{index}]", reader


def score_threshold_field(model: model_pb2.DetectionModel) -> str:
    """Path of the field that drops detections of a `DetectionModel` message by their score.

    Empty if no field does, as in a CenterNet without `post_processing`.
    """
    if model.HasField("center_net"):
        nms = "batch_non_max_suppression"
        has_nms = model.center_net.post_processing.HasField(nms)
        return f"model.center_net.post_processing.{nms}.score_threshold" if has_nms else ""
    if not model.HasField("faster_rcnn"):
        return "model.ssd.post_processing.batch_non_max_suppression.score_threshold"
    if model.faster_rcnn.number_of_stages == 1:
        return "model.faster_rcnn.first_stage_nms_score_threshold"
    nms = "second_stage_post_processing.batch_non_max_suppression"
    return f"model.faster_rcnn.{nms}.score_threshold"


def predicts_masks(model: model_pb2.DetectionModel) -> bool:
    """Whether a `DetectionModel` has a stage for instance masks."""
    return bool(model.faster_rcnn.number_of_stages == 3)


def predicts_keypoints(model: model_pb2.DetectionModel) -> bool:
    """True if detections of a `DetectionModel` have keypoints."""
    return bool(
        model.center_net.keypoint_estimation_task
        or model.ssd.box_coder.keypoint_box_coder.num_keypoints
    )


def is_class_agnostic(model: model_pb2.DetectionModel) -> bool:
    """Whether a `DetectionModel` finds objects of whatever class."""
    kind = model.WhichOneof("model")
    return bool(kind == "faster_rcnn" and model.faster_rcnn.number_of_stages == 1)


def context_shape(model: model_pb2.DetectionModel) -> Optional[Tuple[int, int]]:
    """Number of context features of an image, and their length; None without attention."""
    config = model.faster_rcnn.context_config
    if not (model.faster_rcnn.HasField("context_config") and config.use_long_term_attention):
        return None
    return config.max_num_context_features, config.context_feature_length
