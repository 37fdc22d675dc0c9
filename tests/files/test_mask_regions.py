from __future__ import annotations

from typing import Tuple

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from estimator_det.boxes import geometry
from estimator_det.compat import tf, tf1
from estimator_det.files.mask_regions import MaskRegion, paste_mask, resize_mask, run_lengths
from tests.conftest import golden_component


def _drawn(region: MaskRegion, size: Tuple[int, int]) -> np.ndarray:
    image = np.zeros(size, bool)
    rows, columns = region.inside.shape
    image[region.top : region.top + rows, region.left : region.left + columns] = region.inside
    return image


@pytest.mark.parametrize("size", [(40, 60), (7, 5), (1, 9), (6, 1)])
@pytest.mark.parametrize("mask_size", [(6, 5), (2, 2), (14, 3)])
def test_pasted_masks_are_those_of_the_graph(size, mask_size):
    random = np.random.default_rng(size[0] + mask_size[0])
    masks = random.random((60, *mask_size)).astype(np.float32)
    corners = np.sort(random.uniform(-0.3, 1.3, (60, 2, 2)), axis=1).reshape(60, 4)
    boxes = corners.astype(np.float32)
    boxes[:3] = [[0, 0, 1, 1], [0.5, 0.2, 0.5, 0.9], [1.1, 1.1, 1.2, 1.3]]
    boxes = boxes[(boxes[:, 2:] > boxes[:, :2]).all(axis=1)]
    image_in_box = geometry.change_frame(tf.constant([0.0, 0.0, 1.0, 1.0]), boxes)
    indices = tf.range(len(boxes))
    pasted = tf.image.crop_and_resize(masks[: len(boxes), ..., None], image_in_box, indices, size)
    for mask, box, wanted in zip(masks, boxes, pasted[..., 0].numpy()):
        drawn = _drawn(paste_mask(mask, box, size), size)
        unclear = np.abs(wanted - 0.5) < 1e-5
        assert ((drawn == (wanted > 0.5)) | unclear).all()


def test_golden():
    _, arrays = golden_component("crops")
    rows = zip(arrays["reframe_masks"], arrays["reframe_boxes"], arrays["reframe_out_40x60"])
    for mask, box, wanted in rows:
        drawn = _drawn(paste_mask(mask, box, (40, 60)), (40, 60))
        assert ((drawn == (wanted > 0.5)) | (np.abs(wanted - 0.5) < 1e-5)).all()


def test_boxes_that_are_not_finite_or_inverted_have_no_mask():
    for box in ([np.nan, 0, 1, 1], [0, 0, np.inf, 1], [0.5, 0, 0.2, 1]):
        assert not paste_mask(np.ones([3, 3]), np.float32(box), (9, 9)).inside.any()


@pytest.mark.parametrize("size", [(5, 7), (10, 21), (23, 3), (1, 1)])
def test_resized_masks_are_those_of_the_reference_operation(size):
    mask = (np.random.default_rng(1).random((10, 9)) > 0.5).astype(np.float32)
    expected = tf1.image.resize_images(
        mask[..., None], size, tf1.image.ResizeMethod.NEAREST_NEIGHBOR, align_corners=True
    )
    np.testing.assert_array_equal(resize_mask(mask, size).inside, expected[..., 0] > 0.5)


def test_run_lengths_are_those_of_pycocotools():
    random = np.random.default_rng(0)
    size = (6, 5)
    for trial in range(60):
        inside = random.random((random.integers(0, 7), random.integers(0, 6))) > 0.3
        inside |= trial % 3 == 0  # full columns, whose runs join
        top, left = (random.integers(0, full - part + 1) for full, part in zip(size, inside.shape))
        region = MaskRegion(int(top), int(left), inside)
        wanted = coco_mask.encode(np.asfortranarray(_drawn(region, size).astype(np.uint8)))
        assert run_lengths(region, size) == wanted
