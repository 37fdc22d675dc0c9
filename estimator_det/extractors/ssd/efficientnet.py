"""Single-shot extractors on EfficientNets with bidirectional pyramids (EfficientDet)."""

from __future__ import annotations

import functools
from typing import Dict, Iterator, Sequence, Tuple

from estimator_det.compat import tf
from estimator_det.config.rules import rules
from estimator_det.config.text import nearest
from estimator_det.errors import Problem, error
from estimator_det.extractors.maps import MapLayout, MapOptions
from estimator_det.extractors.recipe import OVERRIDE, Recipe
from estimator_det.extractors.ssd.registry import EXTRACTORS
from estimator_det.nets import efficientnet
from estimator_det.nets.necks import bifpn
from estimator_det.nets.object_paths import KERAS, Paths
from estimator_det.protos import ssd_pb2

# Means and deviations of red, green and blue of the classifiers' images, in pixels of 0..1.
RGB_MEANS = (0.485, 0.456, 0.406)
RGB_DEVIATIONS = (0.229, 0.224, 0.225)

FINEST_LEVEL = 1


def _normalize(images: tf.Tensor) -> tf.Tensor:
    return (images / 255.0 - tf.constant(RGB_MEANS)) / tf.constant(RGB_DEVIATIONS)


def _backbone(
    inputs: tf.Tensor,
    options: MapOptions,
    *,
    scale: efficientnet.Scale,
    drop_connect_rate: float = efficientnet.DROP_RATE,
) -> Dict[str, tf.Tensor]:
    return efficientnet.efficientnet(
        inputs, scale, is_training=options.is_training, drop_rate=drop_connect_rate
    )


def _pyramid(end_points: Dict[str, tf.Tensor], options: MapOptions) -> Tuple[tf.Tensor, ...]:
    assert options.bifpn is not None
    names = efficientnet.END_POINTS[options.bifpn.min_level - FINEST_LEVEL :]
    return bifpn.bidirectional_maps([end_points[name] for name in names], options.bifpn)


@rules(ssd_pb2.SsdFeatureExtractor)
def _check(config: ssd_pb2.SsdFeatureExtractor, at: str) -> Iterator[Problem]:
    if config.type not in TYPES:
        return
    for field in ("num_iterations", "num_filters"):
        value = getattr(config.bifpn, field)
        if value < 1:
            yield error(f"{at}.bifpn.{field}", f"is {value}", "set it to 1 or more")
    method, known = config.bifpn.combine_method, list(bifpn.COMBINE_METHODS)
    if method not in known:
        message = f"{method!r} is not known{nearest(method, known)}"
        yield error(f"{at}.bifpn.combine_method", message, f"use one of {known}")
    rates = config.custom_parameters.fields
    if "drop_connect_rate" in rates and not 0 <= rates["drop_connect_rate"].number_value < 1:
        yield error(
            f"{at}.custom_parameters.drop_connect_rate",
            f"is {rates['drop_connect_rate'].number_value:g}",
            "set it to at least 0 and less than 1",
        )


def _object_paths(scopes: Sequence[str]) -> Paths:
    neck = bifpn.object_paths(scopes)
    backbone = [scope for scope in scopes if scope not in neck]
    return {**efficientnet.object_paths(backbone), **neck}


TYPES = {f"ssd_efficientnet-{name}_bifpn{KERAS}": name for name in efficientnet.SCALES}

for _type, _name in TYPES.items():
    EXTRACTORS.register(_type)(
        Recipe(
            scope=f"efficientnet-{_name}{KERAS}",
            arg_scope=efficientnet.arg_scope,
            layout=MapLayout(
                functools.partial(_backbone, scale=efficientnet.SCALES[_name]), _pyramid
            ),
            normalize=_normalize,
            takes=("bifpn",),
            refuses=("depth_multiplier", "use_explicit_padding", "use_depthwise", OVERRIDE),
            ignores=("min_depth",),
            quantizes=False,
            object_paths=_object_paths,
            covers_pointwise=True,
        ),
    )
