"""Checks of the model part of a configuration: missing pieces and options that exclude others."""

from __future__ import annotations

from typing import Any, Iterator, Optional, Tuple

from google.protobuf.message import Message

from estimator_det.config.field_rules import no_effect
from estimator_det.config.problem import Problem, error, warning
from estimator_det.protos import (
    faster_rcnn_pb2,
    input_reader_pb2,
    model_pb2,
    pipeline_pb2,
    ssd_anchor_generator_pb2,
    ssd_pb2,
)

Config = pipeline_pb2.TrainEvalPipelineConfig

# Parts without which a model of this kind cannot be built; where a part is a choice among several,
# a member of its oneof group must be given.
_SSD_PARTS = (
    "image_resizer",
    "feature_extractor",
    "box_coder",
    "matcher",
    "similarity_calculator",
    "box_predictor",
    "anchor_generator",
)
_FIRST_STAGE_PARTS = ("image_resizer", "feature_extractor", "first_stage_anchor_generator")
# Cropping from the feature map; R-FCN crops inside its predictor instead.
_CROP_PARTS = ("initial_crop_size", "maxpool_kernel_size", "maxpool_stride")


MOST_BATCH_BYTES = 2**40  # bytes of the images that enter the network


def check_model(config: Config) -> Iterator[Problem]:
    """Problems of `config.model` and of what the readers hand to it."""
    kind = config.model.WhichOneof("model")
    if kind is None:
        yield error("model", "no model is chosen", "add model { ssd { … } } or another kind")
        return
    model = getattr(config.model, kind)
    path = f"model.{kind}"
    if "num_classes" in model.DESCRIPTOR.fields_by_name and not model.HasField("num_classes"):
        yield error(
            f"{path}.num_classes",
            "is missing",
            "set it to the number of classes in the label map, without background",
        )
    yield from check_detector(config.model)
    yield from _check_mask_readers(config)
    if kind in ("ssd", "faster_rcnn"):
        yield from _check_batches(config, model.image_resizer, f"{path}.image_resizer")


def check_detector(model: model_pb2.DetectionModel) -> Iterator[Problem]:
    """Missing pieces of a model, and options that exclude others."""
    if model.HasField("ssd"):
        yield from _check_ssd(model.ssd, "model.ssd")
    elif model.HasField("faster_rcnn"):
        yield from _check_faster_rcnn(model.faster_rcnn, "model.faster_rcnn")


def readers(config: Config) -> Iterator[Tuple[str, input_reader_pb2.InputReader]]:
    """(path, reader) of every input reader, that of training first."""
    if config.HasField("train_input_reader"):
        yield "train_input_reader", config.train_input_reader
    for index, reader in enumerate(config.eval_input_reader):
        yield f"eval_input_reader[{index}]", reader


def _missing_parts(model: Any, path: str, parts: Tuple[str, ...]) -> Iterator[Problem]:
    for part in parts:
        if not model.HasField(part):
            yield error(f"{path}.{part}", "is missing", f"--set {path}.{part}=…")
            continue
        value = getattr(model, part)
        groups = value.DESCRIPTOR.oneofs if isinstance(value, Message) else ()
        for group in groups:
            # A pyramid is a choice that may be left open.
            if group.name != "feature_pyramid_oneof" and value.WhichOneof(group.name) is None:
                members = ", ".join(field.name for field in group.fields)
                yield error(f"{path}.{part}", "is empty", f"choose one of {members}")
        if part == "feature_extractor" and not value.type:
            remedy = "name the network, for example 'ssd_mobilenet_v1'"
            yield error(f"{path}.feature_extractor.type", "is missing", remedy)


def _check_ssd(model: ssd_pb2.Ssd, path: str) -> Iterator[Problem]:
    yield from _missing_parts(model, path, _SSD_PARTS)
    losses = ("localization_loss", "classification_loss")
    yield from _missing_parts(model.loss, f"{path}.loss", losses)
    if model.add_background_class and model.explicit_background_class:
        yield error(
            f"{path}.explicit_background_class",
            "excludes add_background_class, which is true unless set otherwise",
            f"--set {path}.add_background_class=false",
        )
    yield from _check_first_release(model, path)
    yield from _check_levels(model, path)
    yield from _check_code_size(model, path)
    yield from _check_scales(model.anchor_generator.ssd_anchor_generator, path)
    sigmoid_trained = model.loss.classification_loss.WhichOneof("classification_loss") in (
        "weighted_sigmoid",
        "weighted_sigmoid_focal",
        "bootstrapped_sigmoid",
    )
    if sigmoid_trained and not model.post_processing.HasField("score_converter"):
        yield warning(
            f"{path}.post_processing.score_converter",
            "is not set: detection scores are raw logits, though the loss trains a sigmoid",
            f"--set {path}.post_processing.score_converter=SIGMOID",
        )


def _check_first_release(model: ssd_pb2.Ssd, path: str) -> Iterator[Problem]:
    """Announces a field that published files of the API's first release have."""
    if not model.feature_extractor.HasField("batch_norm_trainable"):
        return
    field = f"{path}.feature_extractor.batch_norm_trainable"
    if model.feature_extractor.batch_norm_trainable:
        reason = f"batch norm trains unless {path}.freeze_batchnorm is set"
        yield warning(field, f"is true, which has no effect: {reason}", "remove it")
    else:
        yield warning(
            field,
            "is false: training keeps the batch norm of the feature extractor as it is",
            f"{path}.freeze_batchnorm=true replaces it; it keeps that of the box predictor, too",
        )


def _check_levels(model: ssd_pb2.Ssd, path: str) -> Iterator[Problem]:
    """Anchors of a pyramid's levels need the feature maps of the same levels."""
    pyramid = model.feature_extractor.WhichOneof("feature_pyramid_oneof")
    if pyramid is None or not model.anchor_generator.HasField("multiscale_anchor_generator"):
        return
    levels = getattr(model.feature_extractor, pyramid)
    anchors = model.anchor_generator.multiscale_anchor_generator
    if (anchors.min_level, anchors.max_level) != (levels.min_level, levels.max_level):
        yield error(
            f"{path}.anchor_generator.multiscale_anchor_generator",
            f"levels {anchors.min_level} to {anchors.max_level}, but the feature pyramid has "
            f"{levels.min_level} to {levels.max_level}",
            "set min_level and max_level alike in both",
        )


def _check_code_size(model: ssd_pb2.Ssd, path: str) -> Iterator[Problem]:
    """The predictor must give as many numbers per box as the coder decodes."""
    kind = model.box_predictor.WhichOneof("box_predictor_oneof")
    predictor = getattr(model.box_predictor, kind) if kind else None
    sizes = {
        "faster_rcnn_box_coder": 4,
        "mean_stddev_box_coder": 4,
        "square_box_coder": 3,
        "keypoint_box_coder": 4 + 2 * model.box_coder.keypoint_box_coder.num_keypoints,
    }
    coder = model.box_coder.WhichOneof("box_coder_oneof")
    if predictor is None or coder is None:
        return
    if predictor.box_code_size != sizes[coder]:
        yield error(
            f"{path}.box_predictor.{kind}.box_code_size",
            f"is {predictor.box_code_size}, but {coder} has codes of {sizes[coder]} numbers",
            f"set it to {sizes[coder]}",
        )


def _check_scales(
    anchors: ssd_anchor_generator_pb2.SsdAnchorGenerator, path: str
) -> Iterator[Problem]:
    """Announces scales beyond those of the layers and of the one past the last."""
    used = anchors.num_layers + int(anchors.interpolated_scale_aspect_ratio > 0)
    if len(anchors.scales) > used:
        path = f"{path}.anchor_generator.ssd_anchor_generator.scales"
        unused = ", ".join(f"{scale:g}" for scale in anchors.scales[used:])
        yield warning(
            path,
            f"has {len(anchors.scales)} values for {anchors.num_layers} layers: {unused} at its "
            "end have no effect",
            "remove them, or raise num_layers with the feature extractor's",
        )


def score_threshold_field(model: Any) -> str:
    """Path of the field that drops detections of a `DetectionModel` message by their score."""
    if not model.HasField("faster_rcnn"):
        return "model.ssd.post_processing.batch_non_max_suppression.score_threshold"
    if model.faster_rcnn.number_of_stages == 1:
        return "model.faster_rcnn.first_stage_nms_score_threshold"
    nms = "second_stage_post_processing.batch_non_max_suppression"
    return f"model.faster_rcnn.{nms}.score_threshold"


def predicts_masks(model: Any) -> bool:
    """Whether a `DetectionModel` has a stage for instance masks."""
    return bool(model.faster_rcnn.number_of_stages == 3)


def is_class_agnostic(model: Any) -> bool:
    """Whether a `DetectionModel` finds objects of whatever class."""
    kind = model.WhichOneof("model")
    return bool(kind == "faster_rcnn" and model.faster_rcnn.number_of_stages == 1)


def _check_mask_readers(config: Config) -> Iterator[Problem]:
    """A model learns and evaluates masks from records that have some."""
    for path, reader in readers(config):
        if predicts_masks(config.model) and not reader.load_instance_masks:
            edit = f"{path}.load_instance_masks=true"
            message = "is false, and the model learns masks"
            yield Problem("error", f"{path}.load_instance_masks", message, edits=(edit,))


def _check_faster_rcnn(model: faster_rcnn_pb2.FasterRcnn, path: str) -> Iterator[Problem]:
    yield from _missing_parts(model, path, _FIRST_STAGE_PARTS)
    if model.number_of_stages > 1:
        yield from _missing_parts(model, path, ("second_stage_box_predictor",))
        if not model.second_stage_box_predictor.HasField("rfcn_box_predictor"):
            yield from _missing_parts(model, path, _CROP_PARTS)
    yield from _check_context(model, path)
    predictor = model.second_stage_box_predictor.mask_rcnn_box_predictor
    head = f"{path}.second_stage_box_predictor.mask_rcnn_box_predictor"
    where = f"{head}.predict_instance_masks"
    if model.number_of_stages == 3 and not predictor.predict_instance_masks:
        yield error(where, "is false, and a third stage predicts masks", "set it, or use 2 stages")
    elif model.number_of_stages == 3 and not predictor.HasField("conv_hyperparams"):
        yield error(
            f"{head}.conv_hyperparams",
            "is missing, and predict_instance_masks needs it for the layers of the mask head",
            f"--set {head}.conv_hyperparams.initializer.truncated_normal_initializer.stddev=0.01",
        )
    if model.number_of_stages < 3 and predictor.predict_instance_masks:
        yield warning(
            where,
            "has no effect: masks need a third stage",
            "remove it, or set number_of_stages: 3, with load_instance_masks in the readers",
        )


def _check_batches(config: Config, image_resizer: Any, path: str) -> Iterator[Problem]:
    """Images of several sizes do not stack, and a batch must fit into some machine."""
    kind = image_resizer.WhichOneof("image_resizer_oneof")
    resizer: Any = getattr(image_resizer, kind) if kind else None
    height, width = 1, 1
    if kind == "fixed_shape_resizer":
        height, width = resizer.height, resizer.width
    elif kind == "keep_aspect_ratio_resizer":
        height = width = resizer.max_dimension
    stacks = kind in (None, "fixed_shape_resizer") or getattr(
        resizer, "pad_to_max_dimension", False
    )
    bytes_per_image = height * width * 3 * 4  # RGB in float32
    for field, size in (
        ("train_config.batch_size", config.train_config.batch_size),
        ("eval_config.batch_size", config.eval_config.batch_size),
    ):
        if size > 1 and not stacks:
            yield warning(
                field,
                f"is {size}, but {kind} leaves images of different sizes, which do not stack",
                "set keep_aspect_ratio_resizer.pad_to_max_dimension or use fixed_shape_resizer "
                f"in {path}, or use batches of 1",
            )
        # Each number may be in its range and their product beyond every machine.
        needed = size * bytes_per_image
        if needed > MOST_BATCH_BYTES:
            yield error(
                field,
                f"is {size}: a batch of such images takes {needed / 2**30:,.0f} GiB; allowed are "
                f"{MOST_BATCH_BYTES / 2**30:,.0f}",
                f"use {MOST_BATCH_BYTES // bytes_per_image} or fewer, or smaller images",
            )


def context_shape(model: Any) -> Optional[Tuple[int, int]]:
    """Number of context features of an image, and their length; None without attention."""
    config = model.faster_rcnn.context_config
    if not (model.faster_rcnn.HasField("context_config") and config.use_long_term_attention):
        return None
    return config.max_num_context_features, config.context_feature_length


def check_context_reader(reader: Any, model: Any, path: str) -> Iterator[Problem]:
    """An error where an `InputReader` message loads other context than a model takes."""
    if context_shape(model) is None:
        for field in ("load_context_features", "load_context_image_ids"):
            if getattr(reader, field):
                yield error(
                    f"{path}.{field}",
                    "the model takes no context features: it has no context_config with "
                    "use_long_term_attention",
                    "remove it",
                )
    elif not reader.load_context_features:
        yield error(
            f"{path}.load_context_features",
            "is not set, and the model needs context features",
            "set it to true; context_config without use_long_term_attention needs none",
        )


def _check_context(model: Any, path: str) -> Iterator[Problem]:
    """Problems of the `context_config` of a `FasterRcnn` message, if it has one."""
    if not model.HasField("context_config"):
        return
    config, path = model.context_config, f"{path}.context_config"
    if model.number_of_stages == 1:
        yield error(path, "needs a second stage, which attends", "use 2 stages, or remove it")
    elif model.second_stage_box_predictor.HasField("rfcn_box_predictor"):
        yield error(
            path,
            "rfcn_box_predictor has no features of single boxes, which attend",
            "use mask_rcnn_box_predictor, or remove it",
        )
    if config.attention_position == faster_rcnn_pb2.ATTENTION_DEFAULT:
        yield error(
            f"{path}.attention_position",
            "ATTENTION_DEFAULT is no position",
            "set it to POST_BOX_CLASSIFIER or POST_RPN",
        )
    if not (config.use_long_term_attention or config.use_self_attention):
        yield error(
            f"{path}.use_long_term_attention",
            "is false, and so is use_self_attention: nothing attends",
            "set one of them to true, or remove context_config",
        )
    elif config.self_attention_in_sequence and not config.use_long_term_attention:
        yield no_effect(f"{path}.self_attention_in_sequence", "use_long_term_attention is not set")
