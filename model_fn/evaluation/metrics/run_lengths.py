"""Masks of an evaluation as COCO run lengths, at the size of the original image.

Letters: B images, N detections, G groundtruth boxes, H x W pixels of the network's input.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple

import numpy as np

from estimator_det.boxes.mask_regions import paste_mask, resize_mask, run_lengths

RunLength = Dict[str, Any]  # {"size": [height, width], "counts": bytes}


class Masks(NamedTuple):
    """Masks of detections and groundtruth, each in the frame that it was made in."""

    # float32 [B, N, h, w], each fills its box; or strings [B, N], compressed run lengths in the
    # original image.
    detected: Any
    masks: Any  # float32 [B, G, H, W], of the network's input
    real_sizes: Any  # int32 [B, 2], height and width of the real image in H x W
    image_sizes: Any  # int32 [B, 2], of the original image


class RunLengths(NamedTuple):
    """The masks of each image, in the order of its detections and its boxes, without padding."""

    detections: List[List[RunLength]]
    groundtruth: List[List[RunLength]]


def encode_masks(batch: Any) -> RunLengths:
    """The `Masks` of an `EvaluatedBatch` of arrays as run lengths, which need little memory."""
    masks, encoded = batch.masks, RunLengths([], [])
    for row, (height, width) in enumerate(masks.image_sizes.tolist()):
        size = (height, width)
        detected = masks.detected[row, : batch.num_detections[row]]
        if detected.ndim == 1:
            runs = [{"size": list(size), "counts": counts} for counts in detected]
        else:
            boxes = batch.detection_boxes[row] / np.tile(np.array(size, np.float32), 2)
            pairs = zip(detected, boxes)
            runs = [run_lengths(paste_mask(mask, box, size), size) for mask, box in pairs]
        encoded.detections.append(runs)
        real_height, real_width = masks.real_sizes[row]
        true = masks.masks[row, : batch.num_boxes[row], :real_height, :real_width]
        encoded.groundtruth.append([run_lengths(resize_mask(mask, size), size) for mask in true])
    return encoded
