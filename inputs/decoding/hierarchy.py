"""Expands labels along the class hierarchy of a label map, as training on Open Images requires."""

from __future__ import annotations

from typing import Dict, NamedTuple, Tuple

import numpy as np

from estimator_det.compat import tf
from inputs import schema
from inputs.augment.base import keep_boxes
from inputs.label_map import LabelMap
from inputs.schema import Sample


class Hierarchy(NamedTuple):
    """The classes that a class implies; rows and columns are ids, row 0 is empty."""

    upward: np.ndarray  # bool [max_id + 1, max_id + 1]: ancestors and the class itself
    downward: np.ndarray  # bool, same shape: descendants and the class itself

    @classmethod
    def from_label_map(cls, label_map: LabelMap) -> Hierarchy:
        def relation(relatives: Dict[int, Tuple[int, ...]]) -> np.ndarray:
            matrix = np.zeros((label_map.max_id + 1, label_map.max_id + 1), bool)
            for identifier in label_map.names:
                matrix[identifier, [identifier, *relatives[identifier]]] = True
            return matrix

        return cls(relation(label_map.ancestors), relation(label_map.descendants))


def expand_boxes(sample: Sample, hierarchy: Hierarchy) -> Sample:
    """Repeats every box for each ancestor of its class, by rising class id."""
    pairs = tf.where(tf.gather(tf.constant(hierarchy.upward), sample.classes))
    return keep_boxes(sample, pairs[:, 0])._replace(classes=pairs[:, 1])


def expand_image_labels(sample: Sample, hierarchy: Hierarchy) -> Sample:
    """Expands image-level labels: a present class to its ancestors, an absent one downwards.

    Labels of confidence 1 are present, those of 0 absent; others do not change. Unlike boxes, every
    class occurs once for each confidence afterwards.
    """
    level = dict(sample.image_level or {})
    classes, confidences = level[schema.IMAGE_CLASSES], level[schema.IMAGE_CONFIDENCES]
    for confidence, relation in ((1.0, hierarchy.upward), (0.0, hierarchy.downward)):
        chosen = tf.equal(confidences, confidence)
        rows = tf.gather(tf.constant(relation), tf.boolean_mask(classes, chosen))
        implied = tf.where(tf.reduce_any(rows, axis=0))[:, 0]
        others = tf.logical_not(chosen)
        classes = tf.concat([tf.boolean_mask(classes, others), implied], 0)
        confidences = tf.concat(
            [tf.boolean_mask(confidences, others), tf.fill(tf.shape(implied), confidence)], 0
        )
    level[schema.IMAGE_CLASSES], level[schema.IMAGE_CONFIDENCES] = classes, confidences
    return sample._replace(image_level=level)
