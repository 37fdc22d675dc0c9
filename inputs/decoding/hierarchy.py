"""Expands labels along a class hierarchy, as Open Images requires in training and evaluation."""

from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, Set, Tuple

import numpy as np

from estimator_det import files
from estimator_det.compat import tf
from estimator_det.errors import UsageError
from estimator_det.protos import input_reader_pb2
from inputs import schema
from inputs.label_map import LabelMap
from inputs.sample import Sample, keep_boxes


class Hierarchy(NamedTuple):
    """Classes that a class implies; rows and columns are ids, row 0 is empty."""

    upward: np.ndarray  # bool [max_id + 1, max_id + 1]: True for ancestors and the class itself
    downward: np.ndarray  # bool, same shape: True for descendants and the class itself


def make_hierarchy(reader: input_reader_pb2.InputReader, label_map: LabelMap) -> Hierarchy:
    """The hierarchy of a reader's `label_hierarchy_path`, or else of its label map."""
    if reader.label_hierarchy_path:
        return read_hierarchy(reader.label_hierarchy_path, label_map)
    upward, downward = (
        np.zeros((label_map.max_id + 1, label_map.max_id + 1), bool) for _ in range(2)
    )
    for identifier in label_map.names:
        upward[identifier, [identifier, *label_map.ancestors[identifier]]] = True
        downward[identifier, [identifier, *label_map.descendants[identifier]]] = True
    return Hierarchy(upward, downward)


def read_hierarchy(path: str, label_map: LabelMap) -> Hierarchy:
    """Reads a JSON file of Open Images: {"LabelName": …, "Subcategory": […]}.

    The root is not a class. Classes that are missing in the hierarchy or in the label map are
    ignored; the classes above and below them stay related.
    """
    ancestors = _ancestors(path)
    known_ids = {name: label_map.ids[name] for name in ancestors if name in label_map.ids}
    if not known_ids:
        raise UsageError(
            f"{path}: no LabelName is a name of {label_map.path}, {_first_names(label_map.ids)}; "
            f"the hierarchy has {_first_names(ancestors)}. Set the label map of this hierarchy, "
            "with these names"
        )
    upward = np.eye(label_map.max_id + 1, dtype=bool)
    upward[0, 0] = False
    for name, identifier in known_ids.items():
        upward[identifier, [known_ids[x] for x in ancestors[name] if x in known_ids]] = True
    return Hierarchy(upward, upward.T.copy())


def _first_names(names: Any) -> str:
    return ", ".join(map(repr, list(names)[:3])) + (", …" if len(names) > 3 else "")


def _ancestors(path: str) -> Dict[str, Set[str]]:
    """Maps each label but the root to the labels above it, without the root."""
    try:
        root = json.loads(files.read_text(path))
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}: is not JSON: {error}; use a label hierarchy") from None
    labels_above: Dict[str, Set[str]] = {}
    # A loop instead of recursion, because a file may be deeply nested.
    pending: List[Tuple[Any, Tuple[str, ...]]] = [(child, ()) for child in _children(path, root)]
    while pending:
        node, ancestors = pending.pop()
        children = _children(path, node)
        name = node["LabelName"]
        labels_above.setdefault(name, set()).update(ancestors)
        pending += [(child, (*ancestors, name)) for child in children]
    return labels_above


def _children(path: str, node: Any) -> List[Any]:
    name = node.get("LabelName") if isinstance(node, dict) else None
    children = node.get("Subcategory", []) if isinstance(node, dict) else None
    if not isinstance(name, str) or not isinstance(children, list):
        raise UsageError(
            f"{path} is not a label hierarchy: each entry needs a LabelName, a text, and may have "
            f"Subcategory, a list; given: {str(node)[:80]}"
        )
    return children


def expand_boxes(sample: Sample, hierarchy: Hierarchy) -> Sample:
    """Repeats every box for each ancestor of its class, by rising class id."""
    pairs = tf.where(tf.gather(tf.constant(hierarchy.upward), sample.classes))
    return keep_boxes(sample, pairs[:, 0])._replace(classes=pairs[:, 1])


def expand_image_labels(sample: Sample, hierarchy: Hierarchy) -> Sample:
    """Expands image-level labels: a present class to its ancestors, an absent one to descendants.

    Labels of confidence 1 are present, labels of 0 absent; others do not change. Unlike boxes,
    every class then occurs once for each confidence.
    """
    level = dict(sample.image_level or {})
    classes, confidences = level[schema.IMAGE_CLASSES], level[schema.IMAGE_CONFIDENCES]
    for confidence, relation in ((1.0, hierarchy.upward), (0.0, hierarchy.downward)):
        is_expanded = tf.equal(confidences, confidence)
        rows = tf.gather(tf.constant(relation), tf.boolean_mask(classes, is_expanded))
        implied = tf.where(tf.reduce_any(rows, axis=0))[:, 0]
        is_unchanged = tf.logical_not(is_expanded)
        classes = tf.concat([tf.boolean_mask(classes, is_unchanged), implied], 0)
        confidences = tf.concat(
            [tf.boolean_mask(confidences, is_unchanged), tf.fill(tf.shape(implied), confidence)], 0
        )
    level[schema.IMAGE_CLASSES], level[schema.IMAGE_CONFIDENCES] = classes, confidences
    return sample._replace(image_level=level)
