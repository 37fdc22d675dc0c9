import io

import numpy as np
from PIL import Image

from estimator_det.compat import tf, tf1
from inputs import schema
from inputs.label_map import parse_label_map
from model_fn.training import input_images
from tests.detectors import configs


def test_pictures_show_pixels_and_boxes():
    label_map = parse_label_map("item { id: 1 name: 'cat' } item { id: 2 name: 'dog' }")
    detector = configs.small_detector()
    inputs, _ = detector.preprocess(tf.fill([2, 64, 64, 3], 200.0))
    inputs = tf.where(tf.range(2)[:, None, None, None] < 1, inputs, float("nan"))
    summary = input_images.summary(
        {schema.IMAGE: inputs}, configs.groundtruth(padding=2), detector.preprocess, label_map
    )
    written = tf1.Summary.FromString(summary.numpy())
    assert [value.tag for value in written.value] == ["Training_Inputs/0", "Training_Inputs/1"]
    picture = np.asarray(Image.open(io.BytesIO(written.value[0].image.encoded_image_string)))
    assert picture.shape == (64, 64, 3)
    assert np.abs(picture[2, 56] - 200.0).max() < 10  # outside all boxes
    assert np.abs(picture[20, 6] - 200.0).max() > 50  # left edge of the first, at 0.1 of 63
