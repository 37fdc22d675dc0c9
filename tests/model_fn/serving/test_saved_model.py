"""Whether weights fit into the file of a graph."""

from __future__ import annotations

import pytest

from estimator_det.compat import tf, tf1
from model_fn.serving import saved_model


@pytest.mark.parametrize(
    ("dtype", "size", "fits"),
    [
        (tf.float32, 2**29 - 2**24 - 1, True),
        (tf.float32, 2**29 - 2**24, False),  # 2**31 bytes with the graph
        (tf.bfloat16, 2**29, True),
    ],
)
def test_a_file_has_less_than_two_gigabytes(dtype: tf.DType, size: int, fits: bool) -> None:
    with tf.Graph().as_default():
        weights = tf1.get_variable("weights", [size], dtype)
        assert saved_model.fits_in_constants([weights]) == fits
