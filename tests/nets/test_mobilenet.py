from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.images.resize import pad_to_multiple


@pytest.mark.parametrize("static", [True, False])
def test_pad_to_multiple(static):
    spec = tf.TensorSpec([1, 5, 8, 1] if static else [None, None, None, 1], tf.float32)
    pad = tf.function(lambda images: pad_to_multiple(images, 4), input_signature=[spec])
    padded = pad(tf.ones([1, 5, 8, 1]))[0, :, :, 0]
    np.testing.assert_array_equal(padded, np.pad(np.ones((5, 8)), [[0, 3], [0, 0]]))
    if static:
        assert pad.get_concrete_function().outputs[0].shape == (1, 8, 8, 1)
