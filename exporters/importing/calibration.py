"""Recomputes the statistics of batch norm that folding has removed, from images.

Outputs stay as they are: gamma and beta change with the statistics.
"""

from __future__ import annotations

from typing import Dict, List, Sequence

import numpy as np

from estimator_det.compat import tf1
from exporters.image_files import read_image
from exporters.importing.own_model import OwnModel
from exporters.importing.published import Norm


def calibrate(
    model: OwnModel,
    values: Dict[str, np.ndarray],
    folded: Sequence[Norm],
    image_paths: Sequence[str],
) -> Dict[str, np.ndarray]:
    """New values of the variables of folded batch norm.

    A layer without gamma keeps its variance, because only gamma could undo a change of it.
    """
    means: List[List[np.ndarray]] = []
    variances: List[List[np.ndarray]] = []
    with model.graph.as_default():
        inputs = [model.graph.get_operation_by_name(each.name).inputs[0] for each in folded]
        moments = [tf1.nn.moments(each, list(range(each.shape.rank - 1))) for each in inputs]
        with tf1.Session() as session:
            model.load(session, values)
            for path in image_paths:
                statistics = session.run(
                    moments, {model.images: read_image(path).pixels[np.newaxis]}
                )
                means.append([mean for mean, _ in statistics])
                variances.append([variance for _, variance in statistics])
    new: Dict[str, np.ndarray] = {}
    for layer, layer_means, layer_variances in zip(folded, zip(*means), zip(*variances)):
        mean_of_images = np.stack(layer_means).astype(np.float64)
        within_images = np.stack(layer_variances).astype(np.float64).mean(0)
        variance = within_images + mean_of_images.var(0)
        new.update(_renormalized(layer, values, mean_of_images.mean(0), variance))
    return new


def _renormalized(
    layer: Norm, values: Dict[str, np.ndarray], mean: np.ndarray, variance: np.ndarray
) -> Dict[str, np.ndarray]:
    """The variables of a layer for new statistics, with unchanged outputs."""
    old_scale = 1 / np.sqrt(values[layer.variance.name].astype(np.float64) + layer.epsilon)
    new = {}
    if layer.gamma is not None:
        old_scale = old_scale * values[layer.gamma.name]
        new[layer.gamma.name] = old_scale * np.sqrt(variance + layer.epsilon)
        new[layer.variance.name] = variance
    if layer.beta is not None:
        old_mean = values[layer.mean.name]
        new[layer.beta.name] = values[layer.beta.name] + old_scale * (mean - old_mean)
        new[layer.mean.name] = mean
    return {name: value.astype(np.float32) for name, value in new.items()}
