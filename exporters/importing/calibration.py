"""Recomputes the statistics of batch norm that folding has removed, from images.

Outputs stay as they are: gamma and beta change with the statistics.
"""

from __future__ import annotations

from typing import Dict, List, Sequence

import numpy as np

from estimator_det.compat import tf1
from exporters.image_files import read_image
from exporters.importing.mapping import Folded
from exporters.importing.own_model import OwnModel


def calibrate(
    model: OwnModel,
    values: Dict[str, np.ndarray],
    folded: Sequence[Folded],
    image_paths: Sequence[str],
) -> Dict[str, np.ndarray]:
    """New values of the variables of folded batch norm.

    A layer without gamma keeps its variance, because only gamma could undo a change of it.
    """
    means: List[List[np.ndarray]] = []
    variances: List[List[np.ndarray]] = []
    with model.graph.as_default():
        inputs = [model.graph.get_operation_by_name(each.norm).inputs[0] for each in folded]
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
    for position, each in enumerate(folded):
        per_image = np.stack([row[position] for row in means]).astype(np.float64)
        variances_within = np.stack([row[position] for row in variances]).astype(np.float64)
        new.update(
            _renormalized(
                each, values, per_image.mean(0), variances_within.mean(0) + per_image.var(0)
            )
        )
    return new


def _renormalized(
    layer: Folded, values: Dict[str, np.ndarray], mean: np.ndarray, variance: np.ndarray
) -> Dict[str, np.ndarray]:
    """The variables of a layer for new statistics, with unchanged outputs."""
    old_scale = 1 / np.sqrt(values[layer.variance].astype(np.float64) + layer.epsilon)
    if layer.gamma is not None:
        old_scale = old_scale * values[layer.gamma]
    new = {}
    if layer.beta is not None:
        new[layer.beta] = values[layer.beta] + old_scale * (mean - values[layer.mean])
        new[layer.mean] = mean
    if layer.gamma is not None:
        new[layer.gamma] = old_scale * np.sqrt(variance + layer.epsilon)
        new[layer.variance] = variance
    return {name: value.astype(np.float32) for name, value in new.items()}
