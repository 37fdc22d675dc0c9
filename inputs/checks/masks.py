"""Finds out from the first records, before training, whether there are masks at all.

A box without a mask gets an empty one. Without any mask, a model would learn that all are empty.
"""

from __future__ import annotations

from estimator_det.config.text import ConfigError
from inputs.checks.class_names import first_examples
from inputs.decoding.example import MASKS, SIDES


def check_masks(path: str) -> None:
    """Refuses a file of Examples whose first records have boxes and no mask."""
    num_boxes = 0
    for example in first_examples(path):
        features = example.features.feature
        if MASKS in features and features[MASKS].WhichOneof("kind"):
            return
        if SIDES[0] in features:
            num_boxes += len(features[SIDES[0]].float_list.value)
    if num_boxes:
        raise ConfigError(
            f"{path}: none of the {num_boxes} boxes in its first records has a mask in {MASKS!r}, "
            "and the model learns masks. Write the masks into the records, or use a model without "
            "masks (faster_rcnn with number_of_stages: 2)"
        )
