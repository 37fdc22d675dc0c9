import numpy as np
import pytest
from pycocotools import mask as coco_mask

from model_fn.evaluation.metrics.base import EvaluatedBatch
from model_fn.evaluation.metrics.overlaps import box_area, box_ioa, box_iou, mask_objects
from model_fn.evaluation.metrics.run_lengths import ImageSizes, encode_masks
from tests.model_fn.evaluation.metrics import hand

BOXES = np.float32([[0, 0, 10, 10], [0, 5, 10, 15], [20, 20, 30, 30], [5, 5, 5, 9], [9, 9, 2, 2]])


def test_boxes():
    """Half of a box is shared: 50 / 150, and 50 / 100; boxes without area share nothing."""
    assert box_area(BOXES).tolist() == [100, 100, 100, 0, 0]
    np.testing.assert_allclose(box_iou(BOXES[:1], BOXES), [[1, 1 / 3, 0, 0, 0]])
    np.testing.assert_allclose(box_ioa(BOXES[:1], BOXES), [[1, 1 / 2, 0, 0, 0]])
    inside = np.float32([[2, 2, 4, 4]])
    np.testing.assert_allclose(box_ioa(inside, BOXES[:1]), [[1]])
    np.testing.assert_allclose(box_ioa(BOXES[:1], inside), [[0.04]])
    np.testing.assert_array_equal(box_iou(BOXES[3:], BOXES[3:]), np.zeros((2, 2)))


def test_boxes_of_a_batch():
    batch = np.stack([BOXES, BOXES[::-1]])
    np.testing.assert_array_equal(box_iou(batch, batch[:, :2])[1], box_iou(batch[1], batch[1, :2]))
    assert box_iou(batch[:, :0], batch).shape == (2, 0, 5)
    assert box_ioa(batch, batch[:, :0]).shape == (2, 5, 0)


def test_areas_of_groundtruth_and_masks():
    """Groundtruth has the given area or its box's area; a detection has its mask's area."""
    box = (1, 0, 0, 10, 10)
    batch = hand.image([box, box], [(0.9, *box)], area=[7.0, 0.0], is_crowd=[False, True])
    batch = hand.with_masks(batch)
    half = hand.filled(np.float32([[0, 0, 5, 10]]))
    (image,) = batch._replace(masks=batch.masks._replace(detections=[half])).images()
    objects = mask_objects(image)
    assert objects.areas.tolist() == [50] and objects.true_areas.tolist() == [7, 100]
    assert objects.overlaps[0] == pytest.approx([0.5, 1.0])  # A crowd covers all of it.


def test_frames_of_detections_and_groundtruth():
    """A padded input of half the size, and a mask of 2 x 2 that fills the left half of its box."""
    inputs = np.zeros((1, 2, 16, 20), np.float32)
    inputs[0, 0, 2:6, 1:5] = 1  # of 12 x 10 real pixels
    inputs[0, 0, 12:] = 1  # in the padding, where nothing counts
    inputs[0, 1] = 1  # of a row that is padding
    detected = np.float32([[[[1, 0], [1, 0]], [[1, 1], [1, 1]]]])
    sizes = ImageSizes(None, np.int32([[12, 10]]), np.int32([[24, 20]]))
    boxes = np.float32([[[4, 2, 12, 18], [0, 0, 24, 20]]])
    one = np.int32([1])
    batch = EvaluatedBatch(boxes, None, None, one, None, None, one)
    encoded = encode_masks(detected, inputs, batch, sizes)
    for (entry,) in (encoded.groundtruth[0], encoded.detections[0]):
        drawn = coco_mask.decode(entry)
        assert drawn.shape == (24, 20)
        # The corners are aligned: 11 steps of the input are 23 of the image.
        assert np.argwhere(drawn).min(0).tolist() == [4, 2]
        assert np.argwhere(drawn).max(0).tolist() == [11, 9]
        assert drawn.sum() == 64
