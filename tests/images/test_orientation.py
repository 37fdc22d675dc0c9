"""EXIF orientation is read from files; tests/inputs/conversion/test_images.py applies it."""

from __future__ import annotations

from estimator_det.images.orientation import exif_orientation
from tests.inputs.examples import encoded, orientation, picture


def test_damaged_or_missing_orientation_is_upright():
    for number in (0, 9):
        assert exif_orientation(encoded(picture(), exif=orientation(number))) == 1
    content = encoded(picture(), "JPEG", exif=orientation(6))
    assert exif_orientation(content) == 6
    assert exif_orientation(content.replace(b"Exif\0\0MM", b"Exif\0\0XX")) == 1
    assert exif_orientation(b"\xff\xd8Exif") == exif_orientation(b"") == 1
