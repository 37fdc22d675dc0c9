"""One image with boxes that are easy to compare by hand."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

import numpy as np

from model_fn.evaluation.metrics import EvaluatedBatch
from model_fn.evaluation.metrics.run_lengths import RunLengths
from tests.model_fn.evaluation.metrics.golden import encode

CATEGORIES = [
    {"id": 1, "name": "cat", "frequency": "f"},
    {"id": 2, "name": "dog", "frequency": "r"},
    {"id": 3, "name": "owl", "frequency": "c"},
]
SIZE = 100  # of the image

# (class, top, left, bottom, right); of a detection, its score comes first.
Box = Tuple[int, int, int, int, int]
Detection = Tuple[float, int, int, int, int, int]


def image(boxes: Sequence[Box], detections: Sequence[Detection], **fields: Any) -> EvaluatedBatch:
    """A batch of one image; `fields` have a value for each of its boxes or classes, [n]."""
    found = np.array(detections, np.float32).reshape(1, -1, 6)
    true = np.array(boxes, np.float32).reshape(1, -1, 5)
    return EvaluatedBatch(
        detection_boxes=found[..., 2:],
        detection_scores=found[..., 0],
        detection_classes=found[..., 1].astype(np.int32),
        num_detections=np.int32([len(detections)]),
        boxes=true[..., 1:],
        classes=true[..., 0].astype(np.int32),
        num_boxes=np.int32([len(boxes)]),
        **{name: np.array([value]) for name, value in fields.items()},
    )


def with_masks(batch: EvaluatedBatch) -> EvaluatedBatch:
    """The masks are the boxes."""
    return batch._replace(
        masks=RunLengths([filled(batch.detection_boxes[0])], [filled(batch.boxes[0])])
    )


def filled(boxes: np.ndarray) -> List[Any]:
    """Run lengths of masks that fill boxes [n, 4] in pixels."""
    masks = np.zeros((len(boxes), SIZE, SIZE), np.uint8)
    for mask, (top, left, bottom, right) in zip(masks, boxes.astype(int)):
        mask[top:bottom, left:right] = 1
    return encode(masks)
