"""Feature extractors of single-shot detectors by type, the rules of their message, its maker."""

from __future__ import annotations

import dataclasses
from typing import Callable, Iterator, Optional, Sequence, Tuple

from estimator_det.config.registry import Registry
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.extractors.maps import (
    Backbone,
    ExtendedPyramid,
    FpnLevels,
    MapExtractor,
    MapLayout,
    MapOptions,
    keras_paths,
)
from estimator_det.extractors.recipe import Recipe, check_image_size
from estimator_det.images.resize import static_size
from estimator_det.nets.hyperparams import ArgScope, no_scope
from estimator_det.nets.necks.bifpn import BifpnOptions
from estimator_det.nets.object_paths import KERAS, ObjectPaths
from estimator_det.protos import fpn_pb2, ssd_pb2

EXTRACTORS: Registry[Recipe[MapLayout]] = Registry(
    "SSD feature extractor",
    tpu="use ssd_mobilenet_v1 or another feature extractor made for TPU",
    chosen_by="SsdFeatureExtractor.type",
)

COARSEST_BACKBONE_LEVEL = 5
MOST_LEVELS = 20


def pyramid_levels(config: ssd_pb2.SsdFeatureExtractor) -> Optional[Tuple[int, int]]:
    """Finest and coarsest level of the pyramid of a known type; None if it has no such levels."""
    recipe = EXTRACTORS.get(config.type)
    if "bifpn" in recipe.takes:
        return config.bifpn.min_level, config.bifpn.max_level
    return _fpn_levels(recipe, config)[:2] if "fpn" in recipe.takes else None


def num_maps(config: ssd_pb2.SsdFeatureExtractor) -> Optional[int]:
    """Number of feature maps of a known type; None if the network alone decides about it."""
    recipe, levels = EXTRACTORS.get(config.type), pyramid_levels(config)
    if levels is not None:
        return levels[1] - levels[0] + 1
    if isinstance(recipe.layout.pyramid, ExtendedPyramid):
        count = len(recipe.layout.pyramid.maps)
        is_cut = "num_layers" in recipe.takes and config.HasField("num_layers")
        return min(config.num_layers, count) if is_cut else count
    return recipe.layout.count


def _even_levels(recipe: Recipe[MapLayout], config: ssd_pb2.SsdFeatureExtractor) -> range:
    """Levels of maps that must have even sides: the next coarser map is enlarged to them."""
    fixed = recipe.layout.fixed_levels
    if fixed is not None:
        return range(fixed.min_level, fixed.max_level)
    coarsest = 0
    if "bifpn" in recipe.takes:
        coarsest = config.bifpn.max_level
    elif "fpn" in recipe.takes and not config.use_explicit_padding:  # which cuts enlarged maps
        coarsest = min(config.fpn.max_level, COARSEST_BACKBONE_LEVEL)
    finest = (config.bifpn if "bifpn" in recipe.takes else config.fpn).min_level
    return range(max(finest, 0), min(coarsest, MOST_LEVELS))


@rules(ssd_pb2.SsdFeatureExtractor)
def _check_extractor(config: ssd_pb2.SsdFeatureExtractor, at: str) -> Iterator[Problem]:
    if config.type not in EXTRACTORS:
        return
    recipe = EXTRACTORS.get(config.type)
    yield from recipe.check(config, at)
    yield from _check_levels(recipe, config, at)


def _check_levels(
    recipe: Recipe[MapLayout], config: ssd_pb2.SsdFeatureExtractor, at: str
) -> Iterator[Problem]:
    count = num_maps(config)
    is_cut = "num_layers" in recipe.takes and config.HasField("num_layers")
    if is_cut and count is not None and config.num_layers > count:
        message = f"is {config.num_layers}; {config.type} has {count} feature maps"
        yield error(f"{at}.num_layers", message, f"set it to {count}")
    fixed, levels = recipe.layout.fixed_levels, (config.fpn.min_level, config.fpn.max_level)
    if fixed is not None and config.HasField("fpn") and levels != fixed[:2]:
        yield error(
            f"{at}.fpn.min_level",
            f"is {levels[0]}, and max_level is {levels[1]}: {config.type} has levels "
            f"{fixed.min_level} to {fixed.max_level}",
            f"--set {at}.fpn.min_level={fixed.min_level} "
            f"--set {at}.fpn.max_level={fixed.max_level}",
        )


@rules(ssd_pb2.Ssd)
def _check_size(config: ssd_pb2.Ssd, at: str) -> Iterator[Problem]:
    """Images fit the network, if the resizer gives all of them the same size."""
    extractor, sides = config.feature_extractor, static_size(config.image_resizer)
    if sides is None or extractor.type not in EXTRACTORS:
        return
    recipe, at = EXTRACTORS.get(extractor.type), f"{at}.image_resizer"
    yield from check_image_size(sides, recipe.min_size, at, is_exact=recipe.is_size_exact)
    multiple = 1 if "pad_to_multiple" in recipe.ignores else max(extractor.pad_to_multiple, 1)
    padded = [-(-side // multiple) * multiple for side in sides]
    for level in _even_levels(recipe, extractor):
        maps = [-(-side // 2**level) for side in padded]
        if any(side % 2 for side in maps):
            step = 2 ** _even_levels(recipe, extractor).stop
            yield error(
                at,
                f"makes images of {sides[0]} x {sides[1]} pixels, whose maps at level {level} "
                f"have {maps[0]} x {maps[1]} cells; the next coarser level, enlarged twofold, "
                "does not match them",
                f"make height and width multiples of {step}, for example with "
                f"feature_extractor.pad_to_multiple: {step}",
            )
            return


def register_keras(
    name: str,
    neck_paths: ObjectPaths,
    order: Callable[[Sequence[str]], Sequence[str]] = list,
    *,
    backbone: Optional[Backbone] = None,
    arg_scope: Optional[ArgScope] = None,
) -> None:
    """Registers `<name>_keras`, the network of the TF2 line beside the type `name`.

    `neck_paths` and `order` are the arguments of `keras_paths`. The default backbone and argument
    scope come from `name`.
    """
    sister = EXTRACTORS.get(name)
    EXTRACTORS.register(name + KERAS)(
        dataclasses.replace(
            sister,
            scope=sister.scope + KERAS,
            arg_scope=arg_scope or sister.arg_scope,
            layout=dataclasses.replace(sister.layout, backbone=backbone or sister.layout.backbone),
            object_paths=keras_paths(neck_paths, order),
        )
    )


def _make_options(
    recipe: Recipe[MapLayout], config: ssd_pb2.SsdFeatureExtractor, is_training: bool
) -> MapOptions:
    """Reads the options of a type; fields that the type ignores have their defaults."""
    effective_config = recipe.effective_fields(config)
    scope = backbone_scope = no_scope
    if "conv_hyperparams" not in recipe.ignores:
        backbone_scope, scope = recipe.hyperparam_scopes(effective_config, is_training)
    return MapOptions(
        conv_scope=scope,
        fpn=_fpn_levels(recipe, effective_config),
        backbone_scope=backbone_scope,
        is_training=is_training,
        depth_multiplier=effective_config.depth_multiplier,
        min_depth=effective_config.min_depth,
        pad_to_multiple=effective_config.pad_to_multiple,
        use_explicit_padding=effective_config.use_explicit_padding,
        use_depthwise=effective_config.use_depthwise,
        num_layers=effective_config.num_layers if effective_config.HasField("num_layers") else None,
        architecture=effective_config.spaghettinet_arch_name,
        tf2_line=recipe.is_tf2_line,
        bifpn=_bifpn_options(effective_config.bifpn),
    )


def _bifpn_options(config: fpn_pb2.BidirectionalFeaturePyramidNetworks) -> BifpnOptions:
    return BifpnOptions(
        min_level=config.min_level,
        max_level=config.max_level,
        num_iterations=config.num_iterations,
        depth=config.num_filters,
        combine_method=config.combine_method,
    )


def _fpn_levels(recipe: Recipe[MapLayout], config: ssd_pb2.SsdFeatureExtractor) -> FpnLevels:
    if recipe.layout.fixed_levels is not None and not config.HasField("fpn"):
        return recipe.layout.fixed_levels
    return FpnLevels(config.fpn.min_level, config.fpn.max_level, config.fpn.additional_layer_depth)


def make_extractor(config: ssd_pb2.SsdFeatureExtractor, is_training: bool) -> MapExtractor:
    """Builds the extractor of a `SsdFeatureExtractor` message, but no graph.

    Batch norm learns with `is_training`, unless the message has `batch_norm_trainable: false`.
    """
    recipe = EXTRACTORS.get(config.type).with_parameters(config)
    return MapExtractor(
        recipe, _make_options(recipe, config, is_training and config.batch_norm_trainable)
    )
