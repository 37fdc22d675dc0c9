from __future__ import annotations

import numpy as np
from pycocotools import mask as coco_mask

from model_fn.evaluation.metrics.run_lengths import Masks, encode_masks


def test_frames_of_detections_and_groundtruth() -> None:
    """A padded input of half the size, and a mask of 2 x 2 that fills the left half of its box."""
    inputs = np.zeros((1, 2, 16, 20), np.float32)
    inputs[0, 0, 2:6, 1:5] = 1  # of 12 x 10 real pixels
    inputs[0, 0, 12:] = 1  # in the padding, where nothing counts
    inputs[0, 1] = 1  # of a row that is padding
    masks = Masks(
        detected=np.float32([[[[1, 0], [1, 0]], [[1, 1], [1, 1]]]]),
        masks=inputs,
        real_sizes=np.int32([[12, 10]]),
        image_sizes=np.int32([[24, 20]]),
    )
    boxes = np.float32([[[4, 2, 12, 18], [0, 0, 24, 20]]])
    encoded = encode_masks(masks, boxes, np.int32([1]), np.int32([1]))
    for (entry,) in (encoded.groundtruth[0], encoded.detections[0]):
        drawn = coco_mask.decode(entry)
        assert drawn.shape == (24, 20)
        # The corners are aligned: 11 steps of the input are 23 of the image.
        assert np.argwhere(drawn).min(0).tolist() == [4, 2]
        assert np.argwhere(drawn).max(0).tolist() == [11, 9]
        assert drawn.sum() == 64
