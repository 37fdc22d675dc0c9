"""Single-shot extractor on PNASNet-5 large."""

from __future__ import annotations

from typing import Dict, Tuple

from estimator_det.compat import slim, tf, tf1
from estimator_det.extractors.ssd import recipe
from estimator_det.nets import nasnet
from estimator_det.nets.necks.pyramids import EXTRA_LAYERS, FeatureMap
from estimator_det.nets.normalization import BATCH_NORMS

EXTRA_LAYERS_SCOPE = "SSD_feature_maps"

_extended_pyramid = recipe.extended_pyramid(
    FeatureMap("Cell_7"), FeatureMap("Cell_11"), *EXTRA_LAYERS
)


def _backbone(inputs: tf.Tensor, options: recipe.ExtractorOptions) -> Dict[str, tf.Tensor]:
    """Builds the published network; `depth_multiplier` and `min_depth` affect extra layers only."""
    # Innermost, because batch norm learns even if an override freezes it.
    with slim.arg_scope(list(BATCH_NORMS), is_training=options.is_training):
        return nasnet.searched_network(inputs, is_training=options.is_training)


def _pyramid(
    end_points: Dict[str, tf.Tensor], options: recipe.ExtractorOptions
) -> Tuple[tf.Tensor, ...]:
    with tf1.variable_scope(EXTRA_LAYERS_SCOPE):
        return _extended_pyramid(end_points, options)


recipe.register_recipe(
    "ssd_pnasnet",
    recipe.Recipe(
        scope="",
        base_scope=nasnet.arg_scope,
        backbone=_backbone,
        pyramid=_pyramid,
        min_size=1,
        # The published classifier is evaluated with moving averages of its variables.
        classifier_suffix="/ExponentialMovingAverage",
        quantizes=False,
    ),
)
