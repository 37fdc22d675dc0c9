"""Feature extractors of two-stage detectors by type, the rules of their message, its maker."""

from __future__ import annotations

from typing import Iterator, Optional, Tuple

from estimator_det.config.registry import Registry
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.extractors.maps import FpnLevels
from estimator_det.extractors.recipe import OVERRIDE, Recipe, check_image_size
from estimator_det.extractors.stages import StageExtractor, StageLayout, StageOptions
from estimator_det.images.resize import static_size
from estimator_det.nets.hyperparams import NORMALIZERS
from estimator_det.protos import faster_rcnn_pb2

# Fields that configure layers; most networks use the published settings instead.
LAYER_FIELDS = ("conv_hyperparams", OVERRIDE)

EXTRACTORS: Registry[Recipe[StageLayout]] = Registry(
    "Faster R-CNN feature extractor",
    tpu="use faster_rcnn_resnet50, whose layers all run on TPU",
    chosen_by="FasterRcnnFeatureExtractor.type",
)


@rules(faster_rcnn_pb2.FasterRcnnFeatureExtractor)
def _check_extractor(
    config: faster_rcnn_pb2.FasterRcnnFeatureExtractor, at: str
) -> Iterator[Problem]:
    if config.type not in EXTRACTORS:
        return
    recipe = EXTRACTORS.get(config.type)
    yield from recipe.check(config, at)
    stride, strides = config.first_stage_features_stride, recipe.layout.strides
    if stride not in strides:
        allowed = " or ".join(map(str, strides))
        message = f"must be {allowed} for {config.type}; given: {stride}"
        yield error(f"{at}.first_stage_features_stride", message, f"set it to {allowed}")


def pyramid_levels(
    config: faster_rcnn_pb2.FasterRcnnFeatureExtractor,
) -> Optional[Tuple[int, int]]:
    """Finest and coarsest level of the pyramid of a known type; None if it has a single map."""
    has_pyramid = "fpn" in EXTRACTORS.get(config.type).takes
    return (config.fpn.min_level, config.fpn.max_level) if has_pyramid else None


@rules(faster_rcnn_pb2.FasterRcnn)
def _check_size(config: faster_rcnn_pb2.FasterRcnn, at: str) -> Iterator[Problem]:
    kind, sides = config.feature_extractor.type, static_size(config.image_resizer)
    if sides is not None and kind in EXTRACTORS:
        yield from check_image_size(sides, EXTRACTORS.get(kind).min_size, f"{at}.image_resizer")


def _make_options(
    recipe: Recipe[StageLayout],
    config: faster_rcnn_pb2.FasterRcnnFeatureExtractor,
    is_training: bool,
) -> StageOptions:
    """Reads the options of a type; fields that the type ignores have their defaults."""
    effective_config = recipe.effective_fields(config)
    learns = is_training and effective_config.batch_norm_trainable
    scope, neck_scope = recipe.hyperparam_scopes(effective_config, learns)
    fpn = effective_config.fpn
    kind = effective_config.conv_hyperparams.WhichOneof("normalizer_oneof")
    return StageOptions(
        is_training=is_training,
        train_batch_norm=learns,
        stride=effective_config.first_stage_features_stride,
        conv_scope=scope,
        neck_scope=neck_scope,
        normalizer=NORMALIZERS[kind] if kind else None,
        fpn=FpnLevels(fpn.min_level, fpn.max_level, fpn.additional_layer_depth),
    )


def make_extractor(
    config: faster_rcnn_pb2.FasterRcnnFeatureExtractor, is_training: bool
) -> StageExtractor:
    """Builds the extractor of a `FasterRcnnFeatureExtractor` message, but no graph.

    If the model trains, batch norm learns only if the message has `batch_norm_trainable: true`.
    """
    recipe = EXTRACTORS.get(config.type).with_parameters(config)
    return StageExtractor(recipe, _make_options(recipe, config, is_training))
