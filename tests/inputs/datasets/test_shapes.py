import glob
import pathlib

import pytest

from estimator_det.compat import tf
from inputs.datasets import shapes


def test_boxes_are_inside_of_the_asked_size_and_hardly_overlap():
    options = shapes.ShapeOptions(min_extent=0.3, max_extent=0.5, max_shapes=3)
    for index in range(30):
        image = shapes.make_image((0, index), options)
        assert image.masks.shape == (len(image.boxes), *image.pixels.shape[:2])
        assert image.masks.sum(axis=0).max() == 1
        height, width = image.pixels.shape[:2]
        assert 1 <= len(image.boxes) == len(image.class_ids) <= 3
        assert (image.boxes >= 0).all() and (image.boxes <= 1).all()
        pixels = image.boxes * [height, width, height, width]
        longer = (pixels[:, 2:] - pixels[:, :2]).max(axis=1) / min(height, width)
        assert (longer > 0.3 - 1e-4).all() and (longer < 0.5 + 1e-4).all()
        for first in range(len(pixels)):
            for second in range(first):
                assert shapes._overlap(pixels[first], pixels[second]) <= shapes.MAX_OVERLAP


def test_data_set_on_disk(tmp_path):
    files = shapes.make_dataset(str(tmp_path), seed=3, size="tiny")
    train = sorted(glob.glob(files.train_pattern))
    assert len(train) == 2 and len(list(tf.data.TFRecordDataset(train))) == files.num_train == 64
    first = pathlib.Path(train[0]).read_bytes()
    shapes.make_dataset(str(tmp_path), seed=3, size="tiny")
    assert pathlib.Path(train[0]).read_bytes() == first


def test_wrong_options():
    with pytest.raises(ValueError, match="not one of"):
        shapes.make_dataset("unused", seed=0, size="huge")
    with pytest.raises(ValueError, match="0 or more"):
        shapes.make_dataset("unused", seed=-1)
