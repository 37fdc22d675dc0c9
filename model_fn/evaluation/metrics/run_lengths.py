"""Masks of an evaluation as COCO run lengths, at the size of the original image.

Letters: B images, N detections, G groundtruth boxes, H x W pixels of the network's input.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple

import numpy as np

from estimator_det.files.mask_regions import paste_mask, resize_mask, run_lengths

RunLength = Dict[str, Any]  # {"size": [height, width], "counts": bytes}


class ImageSizes(NamedTuple):
    """Heights and widths of the images of a batch."""

    padded: Any  # int32 [2], of the network's input
    real: Any  # int32 [B, 2], of the real image inside it
    original: Any  # int32 [B, 2], of the image in the record, or else the real one


class RunLengths(NamedTuple):
    """The masks of each image, in the order of its detections and its boxes, without padding."""

    detections: List[List[RunLength]]
    groundtruth: List[List[RunLength]]


def encode_masks(detected: Any, true: Any, batch: Any, sizes: ImageSizes) -> RunLengths:
    """Masks of a batch of arrays as run lengths, which need little memory.

    Args:
        detected: float32 [B, N, h, w], each fills its box; or strings [B, N], compressed run
            lengths in the original image.
        true: float32 [B, G, H, W], of the network's input.
        batch: `EvaluatedBatch` that the masks belong to.
    """
    encoded = RunLengths([], [])
    for row, (height, width) in enumerate(sizes.original.tolist()):
        size, masks = (height, width), detected[row, : batch.num_detections[row]]
        if masks.ndim == 1:
            runs = [{"size": list(size), "counts": counts} for counts in masks]
        else:
            boxes = batch.detection_boxes[row] / np.tile(np.array(size, np.float32), 2)
            pairs = zip(masks, boxes)
            runs = [run_lengths(paste_mask(mask, box, size), size) for mask, box in pairs]
        encoded.detections.append(runs)
        real_height, real_width = sizes.real[row]
        masks = true[row, : batch.num_boxes[row], :real_height, :real_width]
        encoded.groundtruth.append([run_lengths(resize_mask(mask, size), size) for mask in masks])
    return encoded
