"""Labels as a step gets them."""

from __future__ import annotations

import numpy as np
import pytest

from inputs import schema
from model_fn.training import step


@pytest.mark.parametrize(("counts", "rows"), [([1, 3], 3), ([3, 0], 3), ([5, 2], 5), ([0, 0], 1)])
def test_every_box_of_the_fullest_image_is_trained(counts, rows):
    labels = {
        schema.NUM_BOXES: np.array(counts, np.int32),
        schema.BOXES: np.arange(40, dtype=np.float32).reshape(2, 5, 4),
        schema.CLASSES: np.ones((2, 5, 7), np.float32),
    }
    left = step.without_padding(labels)
    np.testing.assert_array_equal(left[schema.BOXES], labels[schema.BOXES][:, :rows])
    assert left[schema.CLASSES].shape == (2, rows, 7)
    np.testing.assert_array_equal(left[schema.NUM_BOXES], counts)
    groundtruth = step.groundtruth_from_labels(left)
    assert groundtruth.valid.numpy().sum(1).tolist() == counts
