from __future__ import annotations

import numpy as np
from google.protobuf import text_format

from estimator_det.compat import tf
from estimator_det.images.preprocess import Preprocessor
from estimator_det.images.resize import make_resizer
from estimator_det.protos import image_resizer_pb2

PADDED = """keep_aspect_ratio_resizer {
  min_dimension: 4 max_dimension: 8 pad_to_max_dimension: true }"""


def test_padding_is_zero_or_black() -> None:
    resizer = make_resizer(text_format.Parse(PADDED, image_resizer_pb2.ImageResizer()))
    images = tf.fill([1, 4, 8, 3], 255.0)
    for last, padding in ((False, 0.0), (True, -100.0)):
        preprocess = Preprocessor(resizer, lambda pixels: pixels - 100.0, normalizes_last=last)
        inputs, shapes = preprocess(images)
        np.testing.assert_allclose(inputs[0, :4], np.full([4, 8, 3], 155.0))
        np.testing.assert_allclose(inputs[0, 4:], np.full([4, 8, 3], padding))
        np.testing.assert_array_equal(shapes, [[4, 8, 3]])
