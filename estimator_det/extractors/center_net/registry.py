"""Feature extractors of CenterNet by type, the rules of their message, its makers.

All are networks of the TF2 line, whose layers enlarge the last map to a quarter of the image.
"""

from __future__ import annotations

from typing import Callable, Iterator

from estimator_det.compat import tf
from estimator_det.config.registry import Registry
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.extractors.maps import MapExtractor, MapLayout, MapOptions
from estimator_det.extractors.recipe import Recipe
from estimator_det.images.resize import RGB
from estimator_det.protos import center_net_pb2

STRIDE = 4
"""Pixels of the image for each pixel of a feature map."""

EXTRACTORS: Registry[Recipe[MapLayout]] = Registry(
    "CenterNet feature extractor",
    chosen_by="CenterNetFeatureExtractor.type",
)

# Fields that only MobileNets use.
OWN_FIELDS = ("depth_multiplier", "use_separable_conv", "upsampling_interpolation")
INTERPOLATIONS = ("nearest", "bilinear")


@rules(center_net_pb2.CenterNetFeatureExtractor)
def _check_extractor(
    config: center_net_pb2.CenterNetFeatureExtractor, at: str
) -> Iterator[Problem]:
    for name in ("channel_means", "channel_stds"):
        values = getattr(config, name)
        if len(values) not in (0, RGB):
            yield error(
                f"{at}.{name}",
                f"has {len(values)} values, and images have {RGB} channels",
                f"write {RGB} values, or none",
            )
    if 0.0 in config.channel_stds:
        yield error(f"{at}.channel_stds", "divides pixels, and has a 0", "correct it")
    interpolation = config.upsampling_interpolation
    if interpolation not in INTERPOLATIONS:
        allowed = " or ".join(map(repr, INTERPOLATIONS))
        yield error(
            f"{at}.upsampling_interpolation",
            f"must be {allowed}; given: {interpolation!r}",
            f"use {allowed}",
        )
    if config.type in EXTRACTORS:
        yield from EXTRACTORS.get(config.type).check(config, at)


def make_normalization(
    config: center_net_pb2.CenterNetFeatureExtractor,
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Scaling of pixels 0..255 of a `CenterNetFeatureExtractor` message, then of its network."""
    means, deviations = list(config.channel_means), list(config.channel_stds)
    is_bgr, scale = config.bgr_ordering, EXTRACTORS.get(config.type).normalize

    def normalize(images: tf.Tensor) -> tf.Tensor:
        if is_bgr:  # the order of the means, too
            images = tf.reverse(images, [-1])
        if means:
            images -= tf.constant(means)
        if deviations:
            images /= tf.constant(deviations)
        return scale(images)

    return normalize


def make_extractor(config: center_net_pb2.CenterNetFeatureExtractor) -> MapExtractor:
    """Builds the extractor of a `CenterNetFeatureExtractor` message, but no graph."""
    recipe = EXTRACTORS.get(config.type)
    effective_config = recipe.effective_fields(config)
    options = MapOptions(
        depth_multiplier=effective_config.depth_multiplier,
        use_depthwise=effective_config.use_separable_conv,
        interpolation=effective_config.upsampling_interpolation,
        tf2_line=True,
    )
    return MapExtractor(recipe, options)
