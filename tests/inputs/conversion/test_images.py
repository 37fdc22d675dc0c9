"""Images: verified, unchanged unless asked, and EXIF rotation applied or refused."""

import io
import warnings

import numpy as np
import pytest
from PIL import Image, ImageOps

from estimator_det.errors import UsageError
from inputs.conversion.images import ImageFault, ImageOptions, check_image
from tests.inputs import examples
from tests.inputs.conversion.samples import png

DEFAULT = ImageOptions()


def rotated(orientation):
    pixels = np.zeros((6, 10, 3), np.uint8)
    pixels[:3, :4, 0] = 255  # a red corner of the file
    exif = examples.orientation(orientation)
    return examples.encoded(pixels, "JPEG", exif=exif, quality=100)


def fault_of(encoded, options=DEFAULT):
    with pytest.raises(ImageFault) as caught:
        check_image(encoded, options)
    return caught.value.kind


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_damage_inside_of_an_image_is_found(kind):
    encoded = bytearray(png(1, 64, 64, kind))
    middle = len(encoded) // 2
    # The pixels of a PNG, the tables of the entropy code of a JPEG.
    start = middle if kind == "PNG" else 200
    encoded[start : start + 60] = b"\xff" * 60
    assert fault_of(bytes(encoded)) == "undecodable_image"
    assert fault_of(png(1, 64, 64, kind)[:middle]) == "truncated_image"


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_absurd_sizes_are_refused_before_anything_is_decoded(kind, monkeypatch):
    huge = io.BytesIO()
    Image.new("1", (200, 100)).save(huge, kind)
    options = ImageOptions(max_megapixels=0.01)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 15_000)  # above which Pillow warns
    monkeypatch.setattr(Image.Image, "load", lambda *_: pytest.fail("decoded"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fault_of(huge.getvalue(), options) == "huge_image"
        again = ImageOptions(max_megapixels=0.01, encode="jpeg")
        assert fault_of(huge.getvalue(), again) == "huge_image"
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000)  # it refuses twice as many
        assert fault_of(huge.getvalue(), again) == "huge_image"


@pytest.mark.parametrize("orientation", range(2, 9))
def test_exif_rotation_is_refused_or_applied(orientation):
    encoded = rotated(orientation)
    assert fault_of(encoded) == "exif_rotation"
    checked = check_image(encoded, ImageOptions(exif="apply"))
    is_turned = orientation >= 5
    assert checked.size == ((10, 6) if is_turned else (6, 10))
    assert checked.turned_from == (6, 10) and checked.is_encoded_again
    upright = Image.open(io.BytesIO(checked.encoded))
    assert not upright.getexif()
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded)))
    difference = np.asarray(upright, np.int32) - np.asarray(expected, np.int32)
    assert np.abs(difference).max() < 60  # encoded twice; a red corner elsewhere is 255


def test_all_images_are_encoded_again_if_asked():
    encoded = png(2, 5, 7, "TIFF")
    checked = check_image(encoded, ImageOptions(encode="png"))
    again = Image.open(io.BytesIO(checked.encoded))
    assert again.format == "PNG" and checked.is_encoded_again and checked.turned_from is None
    np.testing.assert_array_equal(np.asarray(again), np.asarray(Image.open(io.BytesIO(encoded))))
    sizes = [
        len(check_image(png(2, 64, 64), ImageOptions(encode="jpeg", quality=quality)).encoded)
        for quality in (10, 95)
    ]
    assert sizes[0] < sizes[1] / 2


@pytest.mark.parametrize("options", [{"quality": 0}, {"max_megapixels": 0}])
def test_wrong_options(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        ImageOptions(**options)
