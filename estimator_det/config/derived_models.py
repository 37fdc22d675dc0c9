"""Models and configurations that parts of a run derive from the configuration."""

from __future__ import annotations

import copy
import hashlib
from typing import Any, NamedTuple, Optional

from estimator_det.protos import model_pb2, pipeline_pb2


def evaluated_model(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
) -> model_pb2.DetectionModel:
    """The model of a `TrainEvalPipelineConfig`, for the preprocessing of an evaluation.

    With `eval_config.force_no_resize` it is a copy whose resizer leaves images as they are, as in
    the Object Detection API: the network then gets images of any size.
    """
    model = pipeline_config.model
    kind = model.WhichOneof("model")
    if kind is None or not pipeline_config.eval_config.force_no_resize:
        return model
    changed = copy.deepcopy(model)
    getattr(changed, kind).image_resizer.identity_resizer.SetInParent()
    return changed


def with_static_shapes(model: model_pb2.DetectionModel) -> model_pb2.DetectionModel:
    """A copy of a model's configuration whose tensors all have static shapes, for TPU and XLA."""
    static = copy.deepcopy(model)
    if static.HasField("ssd"):
        static.ssd.post_processing.batch_non_max_suppression.static_kernel = True
    elif static.center_net.post_processing.HasField("batch_non_max_suppression"):
        static.center_net.post_processing.batch_non_max_suppression.static_kernel = True
    elif static.HasField("faster_rcnn"):
        static.faster_rcnn.use_static_shapes = True
        static.faster_rcnn.use_static_shapes_for_eval = True
        post_processing = static.faster_rcnn.second_stage_post_processing
        post_processing.batch_non_max_suppression.static_kernel = True
    return static


def static_batches(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
) -> pipeline_pb2.TrainEvalPipelineConfig:
    """A copy whose readers leave incomplete batches out."""
    config = copy.deepcopy(pipeline_config)
    for reader in (config.train_input_reader, *config.eval_input_reader):
        reader.drop_remainder = True
    return config


class FinalScores(NamedTuple):
    """The part of a configuration that turns logits into the scores of detections."""

    path: str  # path of the `PostProcessing` message in the configuration
    post_processing: Any
    num_background_columns: int  # before the classes: 1, or 0 without a background class

    def column_of(self, class_id: int) -> int:
        """The column of the class scores of a class, as calibrations number them."""
        return class_id - 1 + self.num_background_columns

    def fingerprint(self) -> str:
        """Changes with every field that the scores depend on."""
        content = self.post_processing.SerializeToString(deterministic=True)
        return hashlib.sha256(content).hexdigest()[:16]


def final_scores(model: model_pb2.DetectionModel) -> Optional[FinalScores]:
    """The final scores of a `DetectionModel`; None if they are not plain class scores."""
    kind = model.WhichOneof("model")
    if kind == "ssd":
        ssd = model.ssd
        has_background = ssd.add_background_class or ssd.explicit_background_class
        return FinalScores("model.ssd.post_processing", ssd.post_processing, int(has_background))
    if kind == "faster_rcnn" and model.faster_rcnn.number_of_stages != 1:
        path = "model.faster_rcnn.second_stage_post_processing"
        return FinalScores(path, model.faster_rcnn.second_stage_post_processing, 1)
    tasks = model.center_net.keypoint_estimation_task
    if kind == "center_net" and not any(task.rescore_instances for task in tasks):
        return FinalScores("model.center_net.post_processing", model.center_net.post_processing, 0)
    return None
