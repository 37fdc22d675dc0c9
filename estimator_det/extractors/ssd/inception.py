"""Single-shot extractors on Inception v2 and v3."""

from __future__ import annotations

from typing import Dict, Sequence

from estimator_det.compat import tf
from estimator_det.extractors.maps import MapLayout, MapOptions, extended_pyramid
from estimator_det.extractors.recipe import Recipe
from estimator_det.extractors.ssd.registry import EXTRACTORS
from estimator_det.nets import inception
from estimator_det.nets.hyperparams import no_scope
from estimator_det.nets.layers import repeat_scope_in_range_names
from estimator_det.nets.necks.pyramids import EXTRA_LAYERS, FeatureMap


def _register(
    name: str, scope: str, blocks: Sequence[inception.InceptionBlock], *maps: FeatureMap
) -> None:
    def backbone(inputs: tf.Tensor, options: MapOptions) -> Dict[str, tf.Tensor]:
        with repeat_scope_in_range_names():
            return inception.inception(inputs, options.depth, blocks)

    EXTRACTORS.register(name)(
        Recipe(
            scope=scope,
            arg_scope=no_scope,
            layout=MapLayout(backbone, extended_pyramid(*maps)),
            takes=("num_layers",),
            needs_override=True,
        ),
    )


_register(
    "ssd_inception_v2",
    "InceptionV2",
    inception.V2_BLOCKS,
    FeatureMap("Mixed_4c"),
    FeatureMap("Mixed_5c"),
    *EXTRA_LAYERS,
)
_register(
    "ssd_inception_v3",
    "InceptionV3",
    inception.V3_BLOCKS,
    FeatureMap("Mixed_5d"),
    FeatureMap("Mixed_6e"),
    FeatureMap("Mixed_7c"),
    FeatureMap(depth=512),
    FeatureMap(depth=256),
    FeatureMap(depth=128),
)
