"""Decoding and resizing a photograph, against pixels that TensorFlow's two IDCTs gave.

`tests/golden/photo/record.py` recorded them. What decodes or resizes otherwise gives a trained
model other pixels than it was trained on. Training and serving decode with TensorFlow's default,
the fast IDCT, as the Object Detection API does, and so does `detect`.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import tf, tf1
from estimator_det.images.resize import make_resizer
from estimator_det.protos import image_resizer_pb2
from exporters.image_files import read_image
from inputs import serving
from inputs.decoding.decoder import make_decoder
from tests.conftest import TESTS
from tests.inputs.examples import example, reader

PHOTO = TESTS / "golden" / "photo"
CHECKSUM = "f66f69441e8d16535f8074a956403e9c2a4f04b5b67cadd6c5fd94015c2e6cf9"


@pytest.fixture(scope="module")
def encoded() -> bytes:
    content = (PHOTO / "photo.jpg").read_bytes()
    # Other bytes than those whose pixels were recorded would make the comparison meaningless.
    assert hashlib.sha256(content).hexdigest() == CHECKSUM
    return content


@pytest.fixture(scope="module")
def golden() -> dict:
    with np.load(PHOTO / "photo.npz") as arrays:
        return dict(arrays)


def test_training_decodes_the_recorded_pixels(encoded, golden):
    record = example({"image/encoded": encoded})
    with tf.Graph().as_default(), tf1.Session() as session:
        pixels = session.run(make_decoder(reader())(tf.constant(record)).image)
    np.testing.assert_array_equal(pixels, golden["fast"])
    difference = np.abs(pixels.astype(int) - golden["accurate"])
    assert difference.max() <= 4 and difference.mean() < 1.5


def test_detect_decodes_the_recorded_pixels(golden):
    found = read_image(str(PHOTO / "photo.jpg"))
    np.testing.assert_array_equal(found.pixels, golden["fast"])


@pytest.mark.parametrize("input_type", ["encoded_image_string_tensor", "tf_example"])
def test_serving_decodes_and_resizes_the_same(encoded, golden, input_type):
    text = "fixed_shape_resizer { height: 30 width: 45 }"
    resizer = make_resizer(text_format.Parse(text, image_resizer_pb2.ImageResizer()))
    fed = example({"image/encoded": encoded}) if input_type == "tf_example" else encoded
    with tf.Graph().as_default(), tf1.Session() as session:
        receiver = serving.make_receiver(input_type, resizer.resize)
        resized = session.run(receiver.inputs, {receiver.placeholders["inputs"]: [fed]})[0]
    np.testing.assert_allclose(resized, _legacy_bilinear(golden["fast"], 30, 45), atol=1e-3)


def _legacy_bilinear(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Pixel i samples at i * old / new, without half a pixel's shift and without smoothing."""

    def along(values: np.ndarray, size: int) -> np.ndarray:
        at = np.arange(size) * (len(values) / size)
        low = at.astype(int)
        high = np.minimum(low + 1, len(values) - 1)
        share = (at - low).reshape(-1, *[1] * (values.ndim - 1))
        return values[low] * (1 - share) + values[high] * share

    rows = along(pixels.astype(np.float64), height)
    return along(rows.swapaxes(0, 1), width).swapaxes(0, 1)
