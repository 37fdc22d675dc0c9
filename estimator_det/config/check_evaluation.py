"""Checks of the evaluation part of a configuration."""

from __future__ import annotations

from typing import Any, Dict, Iterator, Sequence

from estimator_det.config.check_model import predicts_masks
from estimator_det.config.field_rules import no_effect
from estimator_det.config.problem import Problem, error
from estimator_det.console.printing import quoted


def check_evaluation(config: Any) -> Iterator[Problem]:
    """Problems of `eval_config` and `eval_input_reader` of a `TrainEvalPipelineConfig`."""
    evaluation = config.eval_config
    if evaluation.force_no_resize and evaluation.batch_size > 1:
        yield error(
            "eval_config.batch_size",
            f"is {evaluation.batch_size}, but force_no_resize leaves images of different sizes, "
            "which do not stack",
            "--set eval_config.batch_size=1",
        )
    if evaluation.use_moving_averages and not config.train_config.optimizer.use_moving_average:
        yield error(
            "eval_config.use_moving_averages",
            "is true, but training keeps no moving averages",
            "set train_config.optimizer.use_moving_average=true, or this to false",
        )
    yield from _check_keypoint_metrics(config)
    asks_for_masks = any(
        part in name for name in evaluation.metrics_set for part in ("mask", "segm", "panoptic")
    )
    if asks_for_masks and not predicts_masks(config.model):
        kind = config.model.WhichOneof("model")
        yield error(
            "eval_config.metrics_set",
            f"asks for mask metrics, and model.{kind} finds boxes only",
            "remove the mask metrics, or use faster_rcnn with number_of_stages: 3, and "
            "load_instance_masks in the readers",
        )
    yield from check_names(config.eval_input_reader)
    for index, reader in enumerate(config.eval_input_reader):
        if reader.HasField("num_epochs") and not reader.num_epochs:
            path = f"eval_input_reader[{index}].num_epochs"
            yield no_effect(path, "0 means no limit, but an evaluation ends")
    yield from _check_keypoint_edges(config)
    yield from _check_unused(config)


def check_names(readers: Sequence[Any]) -> Iterator[Problem]:
    """The results of a reader are kept under its name, or under its number if it has none."""
    first: Dict[str, int] = {}
    for index, reader in enumerate(readers):
        name = reader.name or str(index)
        if first.setdefault(name, index) != index:
            name_text = quoted(name) if reader.name else f"not set, which means {quoted(name)}"
            yield error(
                f"eval_input_reader[{index}].name",
                f"is {name_text}, the name of eval_input_reader[{first[name]}], too: one's results "
                "overwrite the other's",
                f"--set eval_input_reader[{index}].name=… with a name of its own",
            )


def _check_keypoint_metrics(config: Any) -> Iterator[Problem]:
    """Metrics of keypoints need a model that finds them and readers that load them."""
    evaluation = config.eval_config
    field = "eval_config.parameterized_metric"
    if not any(
        entry.HasField("coco_keypoint_metrics") for entry in evaluation.parameterized_metric
    ):
        field = "eval_config.metrics_set"
        if not any("keypoint" in name for name in evaluation.metrics_set):
            return
    if not config.model.ssd.box_coder.keypoint_box_coder.num_keypoints:
        yield error(
            field,
            f"asks for metrics of keypoints, and model.{config.model.WhichOneof('model')} finds "
            "boxes only",
            "remove it, or use ssd with a keypoint_box_coder",
        )
    for index, reader in enumerate(config.eval_input_reader):
        if not reader.num_keypoints:
            path = f"eval_input_reader[{index}].num_keypoints"
            yield error(path, f"is 0, but {field} asks for metrics of keypoints", "set it")


def _check_keypoint_edges(config: Any) -> Iterator[Problem]:
    """Edges connect keypoints that records or detections have."""
    coder = config.model.ssd.box_coder.keypoint_box_coder
    counts = [coder.num_keypoints, *(reader.num_keypoints for reader in config.eval_input_reader)]
    present = [count for count in counts if count]
    edges = config.eval_config.keypoint_edge
    if edges and not present and config.eval_config.retain_original_images:
        yield no_effect("eval_config.keypoint_edge", "no eval_input_reader sets num_keypoints")
        return
    for index, edge in enumerate(edges):
        for end in ("start", "end"):
            value = getattr(edge, end)
            if present and not 0 <= value < min(present):
                yield error(
                    f"eval_config.keypoint_edge[{index}].{end}",
                    f"is {value}, and there are {min(present)} keypoints",
                    f"give one of 0 to {min(present) - 1}",
                )


def _check_unused(config: Any) -> Iterator[Problem]:
    """Fields that have no effect beside the others."""
    evaluation = config.eval_config
    readers = config.eval_input_reader
    if (
        evaluation.retain_original_image_additional_channels
        and evaluation.retain_original_images
        and not any(reader.num_additional_channels for reader in readers)
    ):
        yield no_effect(
            "eval_config.retain_original_image_additional_channels",
            "no eval_input_reader sets num_additional_channels",
        )
    if (
        not evaluation.image_classes_field_map_empty_to_ones
        and not evaluation.skip_predictions_for_unlabeled_class
        and not any(name.startswith("oid_challenge") for name in evaluation.metrics_set)
    ):
        yield no_effect(
            "eval_config.image_classes_field_map_empty_to_ones",
            "skip_predictions_for_unlabeled_class is not set, and no oid_challenge_… metrics are "
            "chosen",
        )
