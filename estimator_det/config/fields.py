"""Fields of the schema that no run supports, and fields that no run uses: each fact is here once.

`config.check` reports the fields that a configuration sets. A value that equals the default of the
schema says nothing new and is not reported. Components without an entry in their registry are
refused by `model_fn.checks.names`, together with all fields of their messages.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, Tuple

from google.protobuf.message import Message

from estimator_det.config.problem import Problem, error, warning
from estimator_det.config.text import entries, is_repeated

_PACKAGE = "estimator_det.protos."

_NO_MODEL_USES_IT = "is not supported yet, because no model uses it"
# Field, by its message's name within the package -> why it must not be set.
REFUSED: Dict[str, str] = {
    "FasterRcnn.inplace_batchnorm_update": "updates of batch norm in place are not supported in "
    "Faster R-CNN",
    "FasterRcnnFeatureExtractor.fpn": "is not supported yet, because no feature extractor of two "
    "stages has a pyramid",
    "InputReader.external_input_reader": "readers of other formats are not supported",
    "InputReader.load_dense_pose": _NO_MODEL_USES_IT,
    "InputReader.load_keypoint_depth_features": _NO_MODEL_USES_IT,
    "InputReader.load_track_id": _NO_MODEL_USES_IT,
    "Ssd.mask_head_config": "is not supported yet, because single-shot detectors predict boxes "
    "only",
    "SsdFeatureExtractor.bifpn": "is not supported yet, because no feature extractor makes such a "
    "pyramid",
    "SsdFeatureExtractor.replace_preprocessor_with_placeholder": "is not supported yet: every "
    "model normalizes its pixels",
    "SsdFeatureExtractor.use_hardswish": "is not supported yet: the type chooses the activation",
}
# Field -> what to do, if that is not to remove it.
REMEDIES = {
    "FasterRcnn.inplace_batchnorm_update": "set it to false",
    "InputReader.external_input_reader": "convert the records to tf.train.Example and use "
    "tf_record_input_reader",
}

_SUPPRESSION = "all kinds of suppression have the same result, with static shapes"
_ANCHORWISE = "every loss has one value for each anchor"
_QUEUES = "input pipelines have no queues"

# Field -> why it has no effect.
NO_EFFECT: Dict[str, str] = {
    "BatchNonMaxSuppression.use_combined_nms": _SUPPRESSION,
    "BatchNonMaxSuppression.use_cpu_nms": _SUPPRESSION,
    "BatchNonMaxSuppression.use_partitioned_nms": _SUPPRESSION,
    "BatchNonMaxSuppression.use_static_shapes": _SUPPRESSION,
    "BootstrappedSigmoidClassificationLoss.anchorwise_output": _ANCHORWISE,
    "EvalConfig.eval_instance_masks": "metrics_set chooses what is evaluated",
    "EvalConfig.eval_master": "an evaluation runs in the process that starts it",
    "EvalConfig.export_path": "an evaluation writes metrics, not detections",
    "EvalConfig.groundtruth_box_visualization_color": "a box has the colour of its class",
    "EvalConfig.ignore_groundtruth": "an evaluation always compares with groundtruth",
    "EvalConfig.keep_image_id_for_visualization_export": "pictures are numbered",
    "EvalConfig.max_evals": "an evaluation ends as the options of the command say",
    "EvalConfig.save_graph": "an evaluation saves no graph",
    "EvalConfig.visualization_export_dir": "pictures are in the event files",
    "EvalConfig.visualize_groundtruth_boxes": "pictures always show groundtruth on the right",
    "FasterRcnn.use_combined_nms_in_first_stage": _SUPPRESSION,
    "FasterRcnn.use_partitioned_nms_in_first_stage": _SUPPRESSION,
    "FasterRcnn.use_static_balanced_label_sampler": "the sampler always has static shapes",
    "FasterRcnnFeatureExtractor.pad_to_multiple": "the image_resizer pads",
    "InputReader.keypoint_type_weight": "no model weights keypoints",
    "InputReader.min_after_dequeue": _QUEUES,
    "InputReader.num_parallel_map_calls": "num_parallel_batches replaces it",
    "InputReader.prefetch_size": "num_prefetch_batches replaces it",
    "InputReader.queue_capacity": _QUEUES,
    "InputReader.use_display_name": "class names are found by name and by display_name",
    "SigmoidFocalClassificationLoss.anchorwise_output": _ANCHORWISE,
    "TrainConfig.batch_queue_capacity": _QUEUES,
    "TrainConfig.fine_tune_checkpoint_version": "the names in the checkpoint decide what is read",
    "TrainConfig.num_batch_queue_threads": _QUEUES,
    "TrainConfig.prefetch_queue_capacity": _QUEUES,
    "TrainConfig.run_fine_tune_checkpoint_dummy_computation": "variables exist before a "
    "checkpoint is read",
    "TrainConfig.unpad_groundtruth_tensors": "padding rows are always there and never count",
    "WeightSharedConvolutionalBoxPredictor.apply_conv_hyperparams_pointwise": "conv_hyperparams "
    "always apply to pointwise convolutions",
    "WeightSharedConvolutionalBoxPredictor.apply_conv_hyperparams_to_heads": "conv_hyperparams "
    "always apply to the last layers",
    "WeightedL2LocalizationLoss.anchorwise_output": _ANCHORWISE,
    "WeightedSigmoidClassificationLoss.anchorwise_output": _ANCHORWISE,
    "WeightedSmoothL1LocalizationLoss.anchorwise_output": _ANCHORWISE,
    "WeightedSoftmaxClassificationAgainstLogitsLoss.anchorwise_output": _ANCHORWISE,
    "WeightedSoftmaxClassificationLoss.anchorwise_output": _ANCHORWISE,
    "XYPairs.training_data_type": "a calibration applies to the classes that its block names",
}

# Deprecated fields that work -> what to use instead.
REPLACED: Dict[str, str] = {
    "EvalConfig.num_examples": "remove it, for all records are evaluated; --eval_on_tpu alone asks "
    "how many there are",
    "TrainConfig.from_detection_checkpoint": "use fine_tune_checkpoint_type instead",
    "TrainConfig.max_number_of_boxes": "use max_number_of_boxes of each input reader instead",
}

# Field -> the field of the same message without which it has no effect.
NEEDS: Dict[str, str] = {
    "Context.context_feature_length": "use_long_term_attention",
    "Context.max_num_context_features": "use_long_term_attention",
    "Context.num_attention_heads": "use_long_term_attention",
    "Context.num_attention_layers": "use_long_term_attention",
    "Context.self_attention_in_sequence": "use_self_attention",
    "ConvolutionalBoxPredictor.dropout_keep_probability": "use_dropout",
    "EvalConfig.all_metrics_per_category": "include_metrics_per_category",
    "EvalConfig.keypoint_edge": "retain_original_images",
    "EvalConfig.num_visualizations": "retain_original_images",
    "EvalConfig.retain_original_image_additional_channels": "retain_original_images",
    "EvalConfig.super_categories": "include_metrics_per_category",
    "HardExampleMiner.min_negatives_per_image": "max_negatives_per_positive",
    "InputReader.label_hierarchy_path": "expand_labels_hierarchy",
    "Loss.desired_negative_sampling_ratio": "expected_loss_weights",
    "Loss.min_num_negative_samples": "expected_loss_weights",
    "Optimizer.moving_average_decay": "use_moving_average",
    "Ssd.implicit_example_weight": "use_confidences_as_targets",
    "WeightSharedConvolutionalBoxPredictor.dropout_keep_probability": "use_dropout",
}


def schema_name(field: Any) -> str:
    """The key of a field descriptor in the tables of this module."""
    return str(field.full_name).removeprefix(_PACKAGE)


def is_set_to_non_default(message: Message, field: Any) -> bool:
    """Whether a field is set to another value than its default."""
    if is_repeated(field):
        return len(getattr(message, field.name)) > 0
    if not message.HasField(field.name):
        return False
    return field.message_type is not None or getattr(message, field.name) != field.default_value


def non_default_fields(message: Message, names: Iterable[str]) -> Tuple[str, ...]:
    """Fields among some that are set to another value than their default."""
    fields = message.DESCRIPTOR.fields_by_name
    return tuple(name for name in names if is_set_to_non_default(message, fields[name]))


def check_fields(message: Message, prefix: str = "") -> Iterator[Problem]:
    """An error for each field that no run supports, a warning for each that has no effect.

    `prefix` is the path of `message`, with a point at its end.
    """
    seen = set()
    for path, parent, field, _ in entries(message, prefix):
        if is_repeated(field):
            path = path.rpartition("[")[0]
        name = schema_name(field)
        if path in seen or not is_set_to_non_default(parent, field):
            continue
        seen.add(path)
        if name in REFUSED:
            yield error(path, REFUSED[name], REMEDIES.get(name, "remove it"))
        elif name in NO_EFFECT:
            yield no_effect(path, NO_EFFECT[name], deprecated=field.GetOptions().deprecated)
        elif name in REPLACED:
            yield warning(path, "is deprecated", REPLACED[name])
        elif name in NEEDS and not getattr(parent, NEEDS[name]):
            yield no_effect(path, f"{NEEDS[name]} is not set")


def no_effect(path: str, reason: str, *, deprecated: bool = False) -> Problem:
    """A warning for a field that a run does not use."""
    what = "is deprecated and has no effect" if deprecated else "has no effect"
    return warning(path, f"{what}: {reason}", "remove it")
